"""``dlbf info``: what a store, a guard's directory or a filter file is, and whether a filter should be rebuilt."""

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlbf import format
from dlbf.cli.engines import check_engine, engine_option, without_password
from dlbf.cli.reading import read_secret
from dlbf.cli.stores import check_filter_file, is_guard
from dlbf.cli.text import bytes_text
from dlbf.cli.watching import open_readonly
from dlbf.errors import DlbfError
from dlbf.filters.base import check_all, geometry_of
from dlbf.filters.files import open_filter
from dlbf.plain import plain_data

if TYPE_CHECKING:
    from dlbf.learned.explanation import Explanation
    from dlbf.storage import Layers
    from dlbf.storage.report import Drift, Stats

__all__ = ["command"]

HEALTHY, DUE, UNHEALTHY = 0, 1, 3


@click.command("info")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@engine_option
@click.option("--secret-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Of a keyed filter.")
@click.option("--check", is_flag=True, help="Exit 1 if a rebuild is due, 3 if the filter cannot be used.")
@click.option("--fast", is_flag=True, help="Do not learn from a sample to estimate what a model would save.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(path: Path, engine: str | None, secret_file: Path | None, check: bool, fast: bool, as_json: bool) -> None:
    """What is in PATH, the folder of a store or a guard, or a filter file.

    Of a store: size, filter, model, traffic, and whether a rebuild is due and what it would save.  Of a guard: the
    same, and which engine it was made for; with --engine also whether this is the one, and what learning from its keys
    would save.  Of a file: kind, geometry, size and, of a learned filter, the plan; every byte is checked.

    Exit codes with --check: 0 healthy; 1 a rebuild is due; 3 the filter (or the file) cannot be used, so every read
    goes to the data; 2 trouble: bad usage, or PATH is none of them.  Without it: 0 or 2.
    """
    check_engine(path, engine, needed=False)
    if not path.is_dir():
        check_filter_file(path)
    try:
        if path.is_dir():
            code = _store(path, engine, secret_file, not fast, as_json)
        else:
            code = _file(path, None if secret_file is None else read_secret(secret_file), as_json)
    except DlbfError as error:
        if not check:
            raise
        click.echo(f"Error: {error}", err=True)
        code = UNHEALTHY
    sys.exit(code if check else 0)


# --- a store


def _store(path: Path, engine: str | None, secret_file: Path | None, estimate: bool, as_json: bool) -> int:
    from dlbf.storage.engineless import EnginelessGuard, InspectedGuard

    guarded = is_guard(path)
    with open_readonly(path, engine, secret_file) as store:
        stats = store.stats()
        drift = store.drift(estimate and not isinstance(store, EnginelessGuard))  # learning would read keys
        filter = store.ledger.filter
        plan = getattr(filter, "plan", None)
        guard = store.facts() if isinstance(store, InspectedGuard) else None
    if guard is not None and engine is not None:
        guard["opened"] = without_password(engine)
    code = UNHEALTHY if not drift.healthy else DUE if drift.due else HEALTHY
    if as_json:
        facts = {
            "path": str(path),
            "kind": "guard" if guarded else "store",
            "status": {HEALTHY: "healthy", DUE: "rebuild due", UNHEALTHY: "unhealthy"}[code],
            "stats": plain_data(stats.asdict()),
            "drift": drift.asdict(),
        }
        if guard is not None:
            facts["guard"] = guard
        if plan is not None:
            facts["plan"] = plan.to_dict()
        click.echo(json.dumps(facts, indent=2, allow_nan=False))
        return code
    for name, text in _rows(path, stats, drift, plan, guard):
        click.echo(f"{name:<12}{text}")
    return code


def _rows(
    path: Path, stats: "Stats", drift: "Drift", plan: "Explanation | None", guard: dict[str, object] | None
) -> list[tuple[str, str]]:
    """One screen: headings and what stands behind them."""
    from dlbf.storage.drift import LEAST_SAVED_BYTES
    from dlbf.storage.generations import MIN_CAPACITY

    rows = _heading(path, stats, guard)
    rows.append(("state", stats.state + (f": {stats.reason}" if stats.reason else "")))
    if drift.healthy:
        kind = stats.design if stats.model == "none" else f"{stats.design}, {stats.model} model"
        size = bytes_text(stats.filter_bytes + stats.model_bytes)
        rows.append(("filter", f"{kind}: {size}, {drift.growth:.0%} of {stats.capacity:,} keys"))
        if guard is not None:
            rows.append(("", f"generation {stats.generation}"))
        if stats.keys >= MIN_CAPACITY:  # fewer keys do not decide how large a filter is
            rows.append(("", _bits(stats)))
        if stats.layers is not None:
            rows.append(("", _layers(stats.layers)))
            most = bytes_text(stats.layers.absent_limit_bytes)
            rows.append(
                ("", f"each process remembers up to {most} of absent keys; its stats() counts what that spares")
            )
        if plan is not None:
            rows.append(("", f"planned: FPR {plan.fpr:.3%}, deletability {plan.deletability:.3f}"))
    seen = "no absent lookups seen yet"
    if not math.isnan(drift.observed_fpr):
        seen = f"{drift.observed_fpr:.3%} of {drift.window:,} absent lookups passed"
    built = "never"
    if drift.built:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(drift.built))
        built = f"{when}, with {drift.keys_at_build:,} keys"
    rows += [
        ("traffic", f"{seen}; the target is {drift.target:.3%}"),
        ("", f"{drift.misses:,} absent keys sampled to learn from"),
        ("rebuilt", built),
        ("since then", f"{drift.added:,} added, {drift.deleted:,} deleted"),
        ("journal", f"{stats.journal_records:,} records, {bytes_text(stats.journal_bytes)}"),
        ("rebuild", "not due" if not drift.due else "DUE" if drift.healthy else "NEEDED"),
        *(("", reason) for reason in drift.reasons),
    ]
    if drift.healthy and drift.saving_bytes >= LEAST_SAVED_BYTES:
        how = " with a model" if drift.would_learn else ""
        bits = f"about {drift.estimated_bits_per_key:.2f} bits per key{how}"
        rows.append(("", f"it would take {bits}, saving {bytes_text(drift.saving_bytes)}"))
    if guard is not None:
        rows.append(("to open it", f"{guard['open']}; then g.stats(), g.verify(), g.rebuild()"))
        where = f"'{guard['opened']}'" if "opened" in guard else "URL"
        rows.append(("", f"or: dlbf rebuild {path} --engine {where}; dlbf verify --help has the URLs"))
    elif drift.due:
        rows.append(("", f"run: dlbf rebuild {path}"))
    return rows


def _heading(path: Path, stats: "Stats", guard: dict[str, object] | None) -> list[tuple[str, str]]:
    """What it is, and where its data are."""
    on_disk = f"{bytes_text(stats.file_bytes)} on disk, {stats.readers} readers"
    if guard is None:
        return [("store", f"{path}: {stats.keys:,} keys, {on_disk}")]
    counted = "keys known to its filter" if "opened" not in guard else "keys"
    about = f"opened: {guard['opened']}" if "opened" in guard else "not opened; the data is there"
    return [
        ("guard", f"{path}: {stats.keys:,} {counted}, {on_disk}"),
        ("engine", f"{guard['engine']} ({about})"),
        ("writer", str(guard["writer"])),
    ]


def _bits(stats: "Stats") -> str:
    """Size per key, and what it comes to when the room is used."""
    full = 8 * (stats.filter_bytes + stats.model_bytes) / max(stats.keys, stats.capacity)
    bits = f"{stats.bits_per_key:.2f} bits per key, {full:.2f} when full"
    if stats.model_bytes:
        bits += f"; the model takes {8 * stats.model_bytes / stats.keys:.2f} of them"
    return bits


def _layers(layers: "Layers") -> str:
    """What each layer has."""
    shared = " (shared by processes)" if layers.shared else ""
    return (
        f"base {bytes_text(layers.base_bytes)}{shared} of {layers.base_keys:,} keys, "
        f"{layers.dead_keys:,} of them gone; "
        f"{layers.added_keys:,} of {layers.planned_keys:,} added in {bytes_text(layers.delta_bytes)}"
    )


# --- a file


def _file(path: Path, secret: bytes | None, as_json: bool) -> int:
    header = format.read_header(path.read_bytes(), str(path))
    keyed = format.is_keyed(header)
    facts: dict[str, Any] = {
        "file": str(path),
        "file_bytes": path.stat().st_size,
        "kind": format.KIND_NAMES.get(header.kind, f"kind {header.kind}"),
        "keyed": keyed,
    }
    plan = None
    if keyed and secret is None:
        facts["items"] = header.n_items
        facts["note"] = "keyed: pass --secret-file to see more and to check it"
    else:
        with open_filter(path, secret=secret) as found:
            check_all(found)
            facts |= {"items": len(found), "nbytes": found.nbytes, "capacity": found.capacity}
            facts |= {"fpr_target": found.fpr_target, "bits_per_key": found.bits_per_key if len(found) else None}
            if header.kind == format.KIND_LEARNED:
                plan = found.plan
            else:
                facts["geometry"] = geometry_of(found)
    if as_json:
        click.echo(
            json.dumps(facts | ({"plan": plan.to_dict()} if plan is not None else {}), indent=2, allow_nan=False)
        )
        return HEALTHY
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {inner}" for key, inner in value.items())
        elif isinstance(value, float):
            value = f"{value:.4g}"
        click.echo(f"{name.replace('_', ' '):<14}{value}")
    if plan is not None:
        click.echo(f"\n{plan}")
    return HEALTHY
