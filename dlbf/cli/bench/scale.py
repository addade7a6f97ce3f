"""``dlbf bench scale``: what a key costs in small sets and in large ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import met, number, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

if TYPE_CHECKING:
    from dlbf.bench.scale_results import ScaleFigures

__all__ = ["command"]


@click.command("scale")
@click.option("--max-keys", type=float, default=3e6, show_default=True, help="Largest set, up to 3e7.")
@counted("--rounds", default=40, help="Short turns of the timing; the best counts.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A folder on a disk.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the curves: FILE.svg or FILE.png.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(max_keys: float, rounds: int, folder: Path | None, plot: Path | None, as_json: bool) -> None:
    """Build, query, rebuild, open, recovery and memory at 100,000 keys, 300,000, a million, ... up to 30 million."""
    from dlbf.bench import scale as section
    from dlbf.bench.pictures import draw_scale

    if max_keys < section.SIZES[0]:
        raise click.UsageError(f"--max-keys: expected at least {section.SIZES[0]:,}, found {max_keys:g}")
    with terminal(stderr=True).status("starting") as status:
        figures = section.measure(int(max_keys), rounds, folder, status.update)
    if plot is not None:
        try:
            draw_scale(figures, plot)
        except ImportError as error:
            raise click.ClickException(
                f"the picture needs matplotlib ({error}); install it with: pip install 'dlbf[plot]'"
            ) from error
    if as_json:
        write_json({"machine": machine(), **vars(figures)})
    else:
        _write_tables(figures)


def _write_tables(figures: ScaleFigures) -> None:
    from dlbf.bench.scale_results import FIGURES

    console = wide_console()
    for figure, (title, unit) in FIGURES.items():
        console.print(_filters_table(figures, figure, f"{title}, {unit}"))
    console.print(_store_table(figures))
    click.echo("slope: exponent of the power law through the points; 0 is flat, 1 in proportion to the number of keys")
    for name, reason in figures.sizes[0].missing.items():
        click.echo(f"{name} did not run: {reason}")
    for bar in figures.bars:
        click.echo(
            f"{met(bar.met)} {bar.what}: grows {bar.growth:.2f} times from a million "
            f"keys to the largest set, at most {bar.at_most:.2f}"
        )
    write_machine(machine())


def _filters_table(figures: ScaleFigures, figure: str, title: str) -> Table:
    shown = table(title, ("filter", *(f"{size.keys:,}" for size in figures.sizes), "slope"), left=("filter",))
    for name, slopes in figures.slopes.items():
        if figure in slopes:
            values = [number(getattr(size.filters[name], figure), 1) for size in figures.sizes]
            shown.add_row(name, *values, f"{slopes[figure]:+.3f}")
    return shown


def _store_table(figures: ScaleFigures) -> Table:
    from dlbf.bench.scale_results import LEARNED, STORE_FIGURES

    sizes = figures.sizes
    shown = table(
        "store, keys in order", ("", "unit", *(f"{size.keys:,}" for size in sizes), "slope"), left=("", "unit")
    )
    for figure, (title, unit) in STORE_FIGURES.items():
        slope = figures.store_slopes.get(figure)
        values = [number(getattr(size.store, figure), 2) for size in sizes]
        shown.add_row(title, unit, *values, "-" if slope is None else f"{slope:+.3f}")
    if LEARNED in sizes[0].filters:
        fits = [number(size.filters[LEARNED].fit_seconds, 2) for size in sizes]
        shown.add_row("fitting the learned filter to a sample", "s", *fits, "")
    shown.add_row("peak memory of all that", "MiB", *(f"{size.peak_bytes / 2**20:,.0f}" for size in sizes), "")
    return shown
