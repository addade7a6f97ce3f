"""``dlbf plan``: every design for the user's numbers, side by side; or the published figures."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from dlbf.theory import Plan, plan
from dlbf.theory.costs import COUNTER_WIDTHS
from dlbf.theory.designs import DESIGNS, MANY, Design
from dlbf.theory.shares import two_regions
from dlbf.theory.trade import trade, trade_lines

__all__ = ["command"]

Floats = npt.NDArray[np.float64]


def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> list[float] | None:
    if value is None:
        return None
    try:
        return [float(part) for part in value.replace(",", " ").split()]
    except ValueError:
        raise click.BadParameter(f"expected numbers separated by commas, found {value!r}") from None


@click.command("plan")
@click.argument("designs", nargs=-1)
@click.option("--model-fpr", type=float, help="Share of absent keys the model takes for keys.")
@click.option("--model-fnr", type=float, help="Share of keys the model takes for absent.")
@click.option("--key-shares", callback=_numbers, help="Instead: shares of the keys per region, low score first.")
@click.option("--query-shares", callback=_numbers, help="And of the queries for absent keys.")
@click.option("--bits-per-key", type=float, help="Budget, model included.")
@click.option("--fpr", type=float, help="Or the false-positive rate wanted (default 0.01).")
@click.option(
    "--deletability", type=float, default=0.0, help="Least chance that the first key removed answers 'absent'."
)
@click.option("--adversarial-fpr", type=float, help="Largest rate for forged scores; 1 - deletability.")
@click.option("--counter-bits", type=int, default=4, help=f"Counter width: {', '.join(map(str, COUNTER_WIDTHS))}.")
@click.option("--deletions", type=float, default=0.1, help="Share of the keys that will be removed.")
@click.option("--model-bits-per-key", type=float, default=0.0, help="Size of the model.")
@click.option("--max-regions", type=int, default=8, help="Most regions for designs with many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--details", is_flag=True, help="Print the filters of each design, not the table.")
@click.option("--figures", type=click.Path(file_okay=False, path_type=Path), help="Write the published figures here.")
@click.option("--only", default="", help="With --figures: those whose name starts with this.")
def command(
    designs: tuple[str, ...],
    model_fpr: float | None,
    model_fnr: float | None,
    key_shares: list[float] | None,
    query_shares: list[float] | None,
    bits_per_key: float | None,
    fpr: float | None,
    as_json: bool,
    details: bool,
    figures: Path | None,
    only: str,
    **settings: Any,
) -> None:
    """What every design costs and delivers for a model of your quality.

    Name DESIGNS to see only those; `auto` alone also shows what a lower worst case would cost.  Without a model only
    the designs that need none are shown.

    \b
    dlbf plan --model-fpr 0.01 --model-fnr 0.5 --bits-per-key 20
    dlbf plan --model-fpr 0.01 --model-fnr 0.5 --fpr 0.001 --deletability 0.9
    dlbf plan --figures figures/
    """
    if figures is not None:
        _figures(figures, only)
        return
    if fpr is None and bits_per_key is None:
        fpr = 0.01
    quality: dict[str, Any] = {
        "model_fpr": model_fpr, "model_fnr": model_fnr, "key_shares": key_shares, "query_shares": query_shares,
    }  # fmt: skip
    has_model = any(value is not None for value in quality.values())
    rows = [row for row in DESIGNS.values() if has_model or not row.learned or row.chooses_model]
    try:
        if designs:
            from dlbf.theory.designs import get_design

            rows = [get_design(name) for name in designs]
        plans = [plan(row.name, bits_per_key=bits_per_key, fpr=fpr, **quality, **settings) for row in rows]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps([found.to_dict() for found in plans], indent=2, allow_nan=False))
    elif details:
        click.echo("\n".join(map(str, plans)))
    else:
        _table(rows, plans, settings["counter_bits"])
        if has_model and designs == ("auto",):
            if key_shares is None or query_shares is None:
                shares = two_regions(quality["model_fpr"], quality["model_fnr"])
            else:
                shares = np.array(key_shares), np.array(query_shares)
            _trade(*shares, fpr, bits_per_key, settings["model_bits_per_key"])


def _places(row: Design, found: Plan) -> str:
    """The filters in words: the one in front; members, low score to high; sets of the keys that are gone."""
    parts = []
    if found.initial is not None:
        parts.append(f"first {found.initial.base}")
    if found.regions:
        members = [region.member.base for region in found.regions]
        many = len(set(members)) == 1 and len(members) > 1
        parts.append(f"{len(members)} x {members[0]}" if many else ", ".join(members))
        gone = sorted({region.deleted.base for region in found.regions if region.deleted is not None})
        if gone:
            parts.append(f"gone: {', '.join(gone)}")
    elif row.regions == MANY:
        parts.append("per region")
    return "; ".join(parts)


def _table(rows: list[Design], plans: list[Plan], counter_bits: int) -> None:
    try:
        from rich.table import Table

        from dlbf.cli.console import terminal
    except ImportError as error:
        raise click.ClickException(
            f"the table needs the [cli] extra ({error}); install it with: pip install 'dlbf[cli]', or use --json"
        ) from error

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (
        ("design", "left"), ("bits/key", "right"), ("FPR", "right"), ("FNR", "right"), ("deletable", "right"),
        ("forged", "right"), ("filters", "left"),
    ):  # fmt: skip
        table.add_column(title, justify=justify, no_wrap=title != "filters")  # type: ignore[arg-type]

    feasible = [found for found in plans if found.feasible and not found.false_negatives]
    refused: dict[str, list[str]] = {}
    for row, found in zip(rows, plans, strict=True):
        if not found.feasible:
            least = "" if math.isinf(found.min_bits) else f"; from {found.min_bits:.3g} bits per key"
            refused.setdefault(f"{found.reason}{least}", []).append(row.name)
            continue
        best = bool(feasible) and found is min(feasible, key=lambda each: (each.bits, each.fpr))
        table.add_row(
            row.name,
            f"{found.bits:.2f}",
            f"{found.fpr:.2e}" if found.fpr < 0.001 else f"{found.fpr:.4f}",
            f"{found.fnr:.1e}" if found.fnr else "0",
            f"{found.deletability:.4f}" if row.deletable else "no",
            f"{found.adversarial_fpr:.2e}" if found.adversarial_fpr < 0.001 else f"{found.adversarial_fpr:.4f}",
            _places(row, found),
            style="bold" if best else None,
        )
    console = terminal()
    if table.rows:
        console.print(table)
    for reason, names in refused.items():
        console.print(f"not feasible ({reason}): {', '.join(names)}", style="dim", highlight=False, markup=False)
    console.print(
        "deletable: chance that the first key removed then answers 'absent'.  forged: FPR for someone who can "
        "choose the score but not the keyed hash.  "
        f"counters: {counter_bits} bits.",
        style="dim",
        highlight=False,
    )


def _trade(keys: Floats, queries: Floats, fpr: float | None, bits_per_key: float | None, model_bits: float) -> None:
    """What a lower worst case costs ``auto``, as a small table below the other."""
    rows = trade(
        key_shares=keys, query_shares=queries, fpr=fpr, bits_per_key=bits_per_key, model_bits_per_key=model_bits
    )
    if lines := trade_lines(rows):
        click.echo("\nauto, by worst case:\n" + "\n".join(lines))


def _figures(folder: Path, only: str) -> None:
    from dlbf.figures.catalogue import write_figures

    start = time.perf_counter()
    try:
        written = write_figures(folder, only)
    except (ModuleNotFoundError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    for path in written:
        click.echo(path)
    click.echo(f"{len(written)} files in {time.perf_counter() - start:.1f} s")
