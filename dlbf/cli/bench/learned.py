"""``dlbf bench learned``: every design, the sizes of auto, and its speed beside its peers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlbf.bench.timing import machine
from dlbf.cli.bench.learned_peers import write_peers
from dlbf.cli.bench.options import RATE, counted
from dlbf.cli.bench.output import number, ratio, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

if TYPE_CHECKING:
    from dlbf.bench.learned import DesignRow, FitTimes, QueryTimes, SizeRow

__all__ = ["command"]

SECTIONS = ("designs", "sizes", "queries", "fit")


@click.command("learned")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@counted("--keys", "n_keys", default=100_000, least=1000, help="Keys to make when there is no folder; keys of --peers.")
@click.option("--bits-per-key", default=16.0, show_default=True, help="Budget of every design.")
@counted("--rounds", default=60, help="Short turns of the timing; the best counts.")
@click.option("--model", "kind", default="auto", show_default=True, help="Model for the sizes.")
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Only these sections.")
@click.option("--peers", is_flag=True, help="Only the published learned filters beside ours, with one model for all.")
@click.option(
    "--target", "targets", type=RATE, multiple=True, default=(0.01, 0.001), show_default=True, help="Rates of --peers."
)
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw bits against deletability.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    data: str | None, n_keys: int, bits_per_key: float, rounds: int, kind: str, only: tuple[str, ...], peers: bool,
    targets: tuple[float, ...], picture: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Learned filters: every design, the sizes of auto, queries and fitting beside peers.

    \b
    dlbf bench learned --only designs
    dlbf bench learned --peers --keys 20000 --target 0.01
    """
    if peers:
        if only or picture is not None:
            raise click.UsageError("--peers is a section of its own: leave out --only and --picture")
        write_peers(data, n_keys, targets, kind, rounds, as_json)
        return
    from dlbf.bench import learned as section
    from dlbf.bench.data import data_folder, data_words, hard_split, random_split, read_urls

    folder = data_folder(data)
    wanted = only or SECTIONS
    words = data_words(folder, n_keys)
    designs, sizes, queries, fit = None, None, None, None
    with terminal(stderr=True).status("reading keys") as status:
        if folder is None:
            splits = [section.made_split(n_keys)]
        else:
            keys, negatives = read_urls(folder)
            splits = [random_split(keys, negatives), hard_split(keys, negatives)]
        first = splits[0]
        if "designs" in wanted:
            designs = section.designs(first, bits_per_key, status.update)
        if "sizes" in wanted or picture is not None:
            sizes = [row for split in splits for row in section.sizes(split, kind, status.update)]
        if "queries" in wanted:
            queries = section.query_times(first, rounds, say=status.update)
        if "fit" in wanted:
            fit = section.fit_times(first, status.update)
        if picture is not None and sizes is not None:
            from dlbf.learned import Explanation
            from dlbf.learned.picture import draw_tradeoff

            status.update("drawing")
            draw_tradeoff(Explanation.from_dict(sizes[1].plan), picture)
    if as_json:
        figures = {"designs": designs, "sizes": sizes, "queries": queries, "fit": fit}
        told = {name: figure for name, figure in figures.items() if figure is not None}
        write_json({"machine": machine(), "data": words, "bits_budget": bits_per_key, **told})
        return
    if designs is not None:
        _write_designs(designs, len(first.keys), bits_per_key)
    if sizes is not None:
        _write_sizes(sizes)
    for name, times in (("queries", queries), ("fit", fit)):
        if times is not None:
            _write_times(name, times)
    write_machine(machine())


def _write_designs(rows: list[DesignRow], n_keys: int, bits_per_key: float) -> None:
    shown = table(
        f"every design at {bits_per_key:g} bits per key, {n_keys:,} keys: measured (planned)",
        ("design", "bits/key", "FPR", "FNR", "deletability", "forged keys that pass", "ns"),
        left=("design",),
    )

    def pair(measured: float | None, planned: float | None) -> str:
        return "-" if measured is None or planned is None else f"{measured:.5f} ({planned:.5f})"

    for row in rows:
        if isinstance(row.figures, str):
            shown.add_row(row.design, row.figures)
            continue
        measured = row.figures
        shown.add_row(
            row.design, f"{measured.bits_per_key:.2f}", pair(measured.fpr, measured.fpr_planned),
            pair(measured.fnr, measured.fnr_planned), pair(measured.deletability, measured.deletability_planned),
            pair(measured.adversarial_fpr, measured.adversarial_fpr_planned), number(measured.query_absent_ns),
        )  # fmt: skip
    wide_console().print(shown)


def _write_sizes(rows: list[SizeRow]) -> None:
    shown = table(
        "auto, model included; rates on negatives that nothing was fitted on",
        ("split", "keys", "target", "bits/key", "FPR", "deletability", "lost keys", "model", "fit"),
        left=("split", "model"),
    )
    for row in rows:
        shown.add_row(
            row.split, f"{row.keys:,}", f"{row.fpr_target:g}, D {row.deletability_target:g}",
            f"{row.bits_per_key:.2f}", f"{row.fpr:.4%}", number(row.deletability, 4),
            str(row.lost_keys), row.model, f"{row.seconds:.0f} s",
        )  # fmt: skip
    wide_console().print(shown)


def _write_times(name: str, times: QueryTimes | FitTimes) -> None:
    for what, value in times.to_dict().items():
        text = ratio(value) if isinstance(value, tuple) else f"{value:,.2f}" if isinstance(value, float) else value
        click.echo(f"{name:<8} {what:<28} {text}")
