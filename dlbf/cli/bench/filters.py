"""``dlbf bench filters``: classical filters beside their peers."""

import click

from dlbf.bench import filters as section
from dlbf.bench.timing import machine
from dlbf.cli.bench.options import RATE, counted
from dlbf.cli.bench.output import number, ratio, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

__all__ = ["command"]


@click.command("filters")
@counted("--keys", "n_keys", default=1_000_000, least=10, help="Keys in each filter.")
@click.option("--fpr", type=RATE, default=0.01, show_default=True, help="Target false-positive rate.")
@counted("--queries", "n_queries", default=300_000, help="Absent keys to measure the rate on.")
@counted("--rounds", default=40, help="Short turns of the timing; the best counts.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(n_keys: int, fpr: float, n_queries: int, rounds: int, as_json: bool) -> None:
    """Filters against rbloom, pybloomfiltermmap3, fastbloom-rs, hazy and pyfusefilter."""
    console = terminal(stderr=True)
    with console.status("starting") as status:
        rows = section.measure(n_keys, fpr, n_queries, rounds, status.update)
    if as_json:
        figures = {
            "machine": machine(),
            "data": "URL-like keys made by dlbf.datasets",
            "keys": n_keys,
            "fpr_target": fpr,
            "rows": rows,
        }
        write_json(figures)
        return
    shown = table(
        f"{n_keys:,} URL-like keys at {fpr:.2%}; times in ns per key; ratios to rbloom's single query "
        "(quartiles over rounds)",
        ("filter", "bits/key", "measured FPR", "add", "absent", "ratio", "present", "batch", "ratio", "remove",
         "2 threads", "cannot"),
        left=("filter", "cannot"),
    )  # fmt: skip
    for row in rows:
        if row.error:
            shown.add_row(f"{row.name} {row.version}", *["-"] * 10, f"did not run: {row.error}")
            continue
        shown.add_row(
            f"{row.name} {row.version}",
            number(row.bits_per_key, 1),
            "-" if row.fpr is None else f"{row.fpr:.3%}",
            number(row.add_ns),
            number(row.query_absent_ns),
            ratio(row.query_absent_ratio),
            number(row.query_present_ns),
            number(row.batch_absent_ns),
            ratio(row.batch_absent_ratio),
            number(row.remove_ns),
            "-" if row.threads_speedup is None else f"{row.threads_speedup:.2f}x",
            ", ".join(row.cannot),
        )
    wide_console(200).print(shown)
    write_machine(machine())
