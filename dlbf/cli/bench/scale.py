"""``dlbf bench scale``: what a key costs in small sets and in large ones."""

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import number, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

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

    if max_keys < section.SIZES[0]:
        raise click.UsageError(f"--max-keys: expected at least {section.SIZES[0]:,}, found {max_keys:g}")
    with terminal(stderr=True).status("starting") as status:
        figures = {"machine": machine(), **section.measure(int(max_keys), rounds, folder, status.update)}
    if plot is not None:
        try:
            section.draw(figures, plot)
        except ImportError as error:
            raise click.ClickException(
                f"the picture needs matplotlib ({error}); install it with: pip install 'dlbf[plot]'"
            ) from error
    if as_json:
        write_json(figures)
    else:
        _write_tables(figures)


def _write_tables(figures: dict[str, Any]) -> None:
    from dlbf.bench.scale import FIGURES, STORE_FIGURES

    console = wide_console()
    rows = figures["sizes"]
    for figure, (title, unit) in FIGURES.items():
        table = Table(title=f"{title}, {unit}")
        table.add_column("filter")
        for row in rows:
            table.add_column(f"{row['keys']:,}", justify="right")
        table.add_column("slope", justify="right")
        for name, filters in rows[0]["filters"].items():
            if figure in filters:
                values = [number(row["filters"][name][figure], 1) for row in rows]
                table.add_row(name, *values, f"{figures['slopes'][name][figure]:+.3f}")
        console.print(table)
    table = Table(title="store, keys in order")
    for heading in ("", "unit", *(f"{row['keys']:,}" for row in rows), "slope"):
        table.add_column(heading, justify="left" if heading in ("", "unit") else "right")
    for figure, (title, unit) in STORE_FIGURES.items():
        slope = figures["store_slopes"].get(figure)
        values = [number(row["store"][figure], 2) for row in rows]
        table.add_row(title, unit, *values, "-" if slope is None else f"{slope:+.3f}")
    if "fit_seconds" in rows[0]["filters"].get("LearnedFilter", {}):
        fits = [f"{row['filters']['LearnedFilter']['fit_seconds']:.2f}" for row in rows]
        table.add_row("fitting the learned filter to a sample", "s", *fits, "")
    table.add_row("peak memory of all that", "MiB", *(f"{row['peak_bytes'] / 2**20:,.0f}" for row in rows), "")
    console.print(table)
    click.echo("slope: exponent of the power law through the points; 0 is flat, 1 in proportion to the number of keys")
    for name, reason in rows[0]["missing"].items():
        click.echo(f"{name} did not run: {reason}")
    for row in figures["bars"]:
        click.echo(
            f"{'met   ' if row['met'] else 'MISSED'} {row['what']}: grows {row['growth']:.2f} times from a million "
            f"keys to the largest set, at most {row['at_most']:.2f}"
        )
    write_machine(figures["machine"])
