"""``dlbf top``: a store or a guard while it is in use, seen from another process."""

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dlbf.cli.engines import engine_option
from dlbf.cli.stores import secret_option, store_argument
from dlbf.cli.text import bytes_text
from dlbf.cli.watching import open_readonly
from dlbf.plain import plain_data

if TYPE_CHECKING:
    from rich.table import Table

    from dlbf.storage import Guard, Store
    from dlbf.storage.report import Drift, Stats

__all__ = ["command"]


class Look(NamedTuple):
    """What was seen at one moment."""

    seconds: float  # of a clock that only rises
    stats: "Stats"
    drift: "Drift"


@click.command("top")
@store_argument
@engine_option
@secret_option
@click.option("--interval", type=click.FloatRange(min=0.05), default=2.0, show_default=True, help="Seconds.")
@click.option("--count", type=click.IntRange(min=1), help="Look so often, then end.  [default: until Ctrl-C]")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each look.")
def command(
    path: Path, engine: str | None, secret_file: Path | None, interval: float, count: int | None, as_json: bool
) -> None:
    """Watch the store or guard in PATH: rates, size, log, generation, what the filter saves.

    Other processes are not disturbed.  Lookups are those that they have reported, which each does every ten seconds or
    so while it is asked for absent keys, and when it closes.  Rates are between one look and the next.

    Exit codes: 0, also after Ctrl-C; 2 trouble: PATH is neither, or it cannot be opened.
    """
    from rich.live import Live

    from dlbf.cli.console import terminal

    with open_readonly(path, engine, secret_file) as store:
        before = look = _look(store)
        n_looks = 1
        try:
            if as_json:
                click.echo(json.dumps(_facts(before, look)))
                while n_looks != count:
                    time.sleep(interval)
                    before, look, n_looks = look, _look(store), n_looks + 1
                    click.echo(json.dumps(_facts(before, look)))
                return
            console = terminal()
            with Live(_table(path, before, look), console=console, auto_refresh=False) as live:
                while n_looks != count:
                    time.sleep(interval)
                    before, look, n_looks = look, _look(store), n_looks + 1
                    live.update(_table(path, before, look), refresh=True)
        except KeyboardInterrupt:
            pass  # how one ends it


def _look(store: "Store | Guard") -> Look:
    return Look(time.monotonic(), store.stats(), store.drift(estimate=False))


def _facts(before: Look, now: Look) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "stats": now.stats.asdict(),
        "drift": now.drift.asdict(),
        "commits_per_second": _rate(before, now, now.stats.last_txn - before.stats.last_txn),
        "keys_per_second": _rate(before, now, now.stats.keys - before.stats.keys),
    }
    plain: dict[str, Any] = plain_data(facts)
    return plain


def _rate(before: Look, now: Look, difference: int) -> float:
    """Per second; NaN at the first look."""
    return difference / (now.seconds - before.seconds) if now.seconds > before.seconds else math.nan


def _table(path: Path, before: Look, now: Look) -> "Table":
    from rich.table import Table

    table = Table(title=str(path), show_header=False, box=None, title_justify="left", pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in _rows(before, now):
        table.add_row(name, text)
    return table


def _rows(before: Look, now: Look) -> list[tuple[str, str]]:
    stats, drift = now.stats, now.drift
    kind = stats.design if stats.model == "none" else f"{stats.design}, {stats.model} model"
    bits = "-" if math.isnan(stats.bits_per_key) else f"{stats.bits_per_key:.2f} bits per key"
    rows = [
        ("state", stats.state + (f": {stats.reason}" if stats.reason else "")),
        ("keys", f"{stats.keys:,}  {_change(_rate(before, now, stats.keys - before.stats.keys))}"),
        ("commits", f"{stats.last_txn:,}  {_change(_rate(before, now, stats.last_txn - before.stats.last_txn))}"),
        ("filter", f"{kind}: {bytes_text(stats.filter_bytes + stats.model_bytes)}, {bits}"),
        ("generation", f"{stats.generation}; since it was made {drift.added:,} added, {drift.deleted:,} deleted"),
        ("log", f"{stats.journal_records:,} records, {bytes_text(stats.journal_bytes)} since the checkpoint"),
    ]
    if stats.layers is not None:
        layers = stats.layers
        rows.append(
            (
                "layers",
                f"base {layers.base_keys:,} keys, added {layers.added_keys:,} of {layers.planned_keys:,} planned",
            )
        )
    if math.isnan(drift.observed_fpr):
        rows.append(("saved", "no absent lookups reported yet"))
    else:
        saved = 1 - drift.observed_fpr
        rows.append(("saved", f"{saved:.2%} of the reads of absent keys ({drift.window:,} in the window)"))
        rows.append(("passed", f"{drift.observed_fpr:.3%}; the target is {drift.target:.3%}"))
    rows.append(("rebuild", "not due" if not drift.due else "DUE: " + "; ".join(drift.reasons)))
    return rows


def _change(per_second: float) -> str:
    return "" if math.isnan(per_second) else f"({per_second:+,.1f} per second)"
