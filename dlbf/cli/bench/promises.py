"""``dlbf bench promises``: what becomes of a promised rate."""

import warnings

import click

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import number, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

__all__ = ["command"]

HEADINGS = ("negatives", "cap", "fits", "bits/key", "outcome, mean", "worst", "above 1.05 x", "above 1.2 x")


@click.command("promises")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@counted("--keys", "n_keys", default=20_000, least=1000, help="Keys of the filters.")
@counted("--fits", "n_fits", default=20, help="Fits for each number of negatives.")
@click.option("--negatives", "sizes", multiple=True, type=click.IntRange(100), help="Number of negatives; repeat.")
@click.option("--fpr", default=0.01, show_default=True, type=click.FloatRange(0, 0.5, min_open=True))
@click.option("--cap", "caps", multiple=True, type=click.FloatRange(0, 1, min_open=True), help="Worst case; repeat.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    data: str | None,
    n_keys: int,
    n_fits: int,
    sizes: tuple[int, ...],
    fpr: float,
    caps: tuple[float, ...],
    as_json: bool,
) -> None:
    """Fit with few and with many negatives, and see what passes of queries that no fit has seen."""
    from dlbf.bench.promises import SIZES, promises

    with terminal(stderr=True).status("reading keys") as status, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that few negatives cannot show a rate is what this is about
        words, rows = promises(data, n_keys, sizes or SIZES, n_fits, fpr, caps or (0.1, 1.0), status.update)
    cells = [
        (
            f"{row.negatives:,}", f"{row.adversarial_fpr:g}", str(len(row.outcomes)), number(row.bits_per_key, 2),
            f"{row.mean:.2f} x", f"{max(row.outcomes):.2f} x", str(row.broken(1.05)), str(row.broken(1.2)),
        )
        for row in rows
    ]  # fmt: skip
    if as_json:
        tables = {"promises": {"headings": HEADINGS, "rows": cells}}
        write_json({"machine": machine(), "data": f"{words}; target {fpr:g}", "promises": rows, "tables": tables})
        return
    shown = table(f"the rate of queries never seen, over the {fpr:g} that was asked for; {words}", HEADINGS)
    for line in cells:
        shown.add_row(*line)
    wide_console().print(shown)
    write_machine(machine())
