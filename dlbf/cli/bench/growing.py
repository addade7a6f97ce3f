"""``dlbf bench growing``: the filter that grows without its keys."""

import click

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import RATE, counted
from dlbf.cli.bench.output import met, number, ratio, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

__all__ = ["command"]

HEADINGS = ("keys", "bits/key", "FPR", "of the target", "expected FPR")
BARS = ("figure", "measured", "at most", "")
# At 1 % and over a thousandfold growth; a rate and the query's ratio hold for all.
MOST_BITS, MOST_RATE, MOST_ADD_US, MOST_QUERY = 15.0, 1.1, 1000.0, 1.5


@click.command("growing")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@counted("--first", default=1000, help="Keys that it begins with.")
@counted("--doublings", default=10, help="How often their number doubles.")
@counted("--absent", "n_absent", default=300_000, help="Absent keys that each rate is measured with.")
@counted("--runs", default=5, help="Equal runs that single adds are timed in.")
@counted("--queried", "n_queried", default=1_000_000, help="Keys of the filters whose questions are timed.")
@counted("--rounds", default=60, help="Rounds of questions.")
@click.option("--fpr", default=0.01, show_default=True, type=RATE)
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    data: str | None,
    first: int,
    doublings: int,
    n_absent: int,
    runs: int,
    n_queried: int,
    rounds: int,
    fpr: float,
    as_json: bool,
) -> None:
    """Grow a filter from a few keys, and compare bits, rates, single adds and questions with what is promised."""
    from dlbf.bench.growing import GrowingFigures, grow, query_ratios, worst_add

    with terminal(stderr=True).status("growing") as status:
        rows, bits = grow(first, doublings, fpr, n_absent, status.update)
        slowest = worst_add([b"key %d" % i for i in range(first << doublings)], fpr, runs, status.update)
        words, one, many = query_ratios(data, n_queried, fpr, rounds, status.update)
    worst_fpr = max(row.fpr for row in rows) / fpr
    figures = GrowingFigures(tuple(rows), bits, worst_fpr, slowest, one, many)
    if as_json:
        write_json({"machine": machine(), "data": f"{words}; target {fpr:g}", "growing": figures})
        return
    shown = table(f"growing from {first:,} keys at {fpr:g}", HEADINGS)
    for row in rows:
        shown.add_row(
            f"{row.keys:,}", number(row.bits_per_key, 2), f"{row.fpr:.4%}", f"{row.fpr / fpr:.2f} x",
            f"{row.expected_fpr:.4%}",
        )  # fmt: skip
    wide_console().print(shown)
    bars = table(f"what is promised at 1 % and of a thousandfold growth; questions about {words}", BARS, ("figure", ""))
    for name, cell, most, good in (
        ("bits per key, mean of the last doubling", f"{bits:.2f}", f"{MOST_BITS:g}", bits <= MOST_BITS),
        ("worst rate over the target", f"{worst_fpr:.2f} x", f"{MOST_RATE:g} x", worst_fpr <= MOST_RATE),
        ("worst single add, least of the runs", f"{slowest:.0f} µs", f"{MOST_ADD_US:g} µs", slowest <= MOST_ADD_US),
        ("`in`, absent, to CuckooFilter", ratio(one), f"{MOST_QUERY:g}", one[0] <= MOST_QUERY),
        ("`contains_many`, absent, to CuckooFilter", ratio(many), f"{MOST_QUERY:g}", many[0] <= MOST_QUERY),
    ):
        bars.add_row(name, cell, most, met(good))
    wide_console().print(bars)
    write_machine(machine())
