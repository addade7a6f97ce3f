"""``dlbf bench guard``: engines with and without a guard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import met, ratio, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

if TYPE_CHECKING:
    from dlbf.bench.guard import Bar, EngineCosts, Reads
    from dlbf.bench.guard_opening import Opening

__all__ = ["command"]


@click.command("guard")
@counted("--keys", "n_keys", default=200_000, least=10, help="Keys stored.")
@counted("--queries", "n_queries", default=20_000, help="Keys asked per round.")
@counted("--rounds", default=9, help="Rounds; the best of each contender counts.")
@counted("--opened-keys", default=1_000_000, help="Keys of the guard that other processes open.")
@click.option("--redis-port", type=int, help="Port of a Redis server on this machine to measure with, too.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where to put the files.")
@click.option("--only", type=click.Choice(["rocksdb", "costs", "opening"]), multiple=True, help="Only these sections.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    n_keys: int, n_queries: int, rounds: int, opened_keys: int, redis_port: int | None, folder: Path | None,
    only: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """A guarded RocksDB beside RocksDB with its Bloom filter; what a guard saves and costs before every engine.

    And how soon one answers that another process has open.
    """
    from dlbf.bench import guard as section
    from dlbf.bench.guard_opening import opening

    reads, judged, costs, opened = None, None, None, None
    with terminal(stderr=True).status("starting") as status:
        if not only or "rocksdb" in only:
            reads = section.against_rocksdb(n_keys, n_queries, rounds, folder, status.update)
            judged = section.bar(reads)
        if not only or "costs" in only:
            costs = section.costs(n_keys, n_queries, rounds, redis_port, folder, status.update)
        if not only or "opening" in only:
            opened = opening(opened_keys, rounds, folder, status.update)
    if as_json:
        figures = {"machine": machine(), "rocksdb": reads, "bar": judged, "costs": costs, "opening": opened}
        write_json({name: figure for name, figure in figures.items() if figure is not None})
        return
    if reads is not None and judged is not None:
        _write_reads(reads, judged)
    if costs is not None:
        _write_costs(costs)
    if opened is not None:
        _write_opening(opened)
    write_machine(machine())


def _write_reads(reads: Reads, bar: Bar) -> None:
    shown = table(
        f"{reads.keys:,} keys in memory; ns per read; how many times as long RocksDB's Bloom filter takes (quartiles)",
        ("", "absent", "times", "present", "times"),
        left=("",),
    )
    for name, absent in reads.absent.items():
        present = reads.present[name]
        shown.add_row(
            name, f"{absent.ns:.0f}", ratio(absent.peer_over_this), f"{present.ns:.0f}", ratio(present.peer_over_this)
        )
    wide_console().print(shown)
    click.echo(
        f"{met(bar.met)} absent reads: {bar.ratio[0]:.2f} times as fast as RocksDB with "
        f"its Bloom filter, at least {bar.at_least:g}"
    )


def _write_costs(costs: list[EngineCosts]) -> None:
    from dlbf.bench.guard import PAIRS

    shown = table(
        "µs per operation, bare / guarded (ratio); nothing waits for a disk", ("engine", "keys", *PAIRS), ("engine",)
    )
    for row in costs:
        pairs = [row.pairs[name] for name in PAIRS]
        cells = [f"{pair.bare_ns / 1e3:.2f} / {pair.guarded_ns / 1e3:.2f} ({pair.ratio[0]:.2f})" for pair in pairs]
        shown.add_row(row.engine, f"{row.keys:,}", *cells)
    wide_console().print(shown)


def _write_opening(opened: Opening) -> None:
    from dlbf.bench.guard_opening import ANSWER_MS_AT_MOST, PRIVATE_AT_MOST

    memory = "unknown memory"
    if opened.private_bytes is not None and opened.private_share is not None:
        memory = f"{opened.private_bytes / 1024:,.0f} KiB of its own, {opened.private_share:.1%} of the filter"
    click.echo(
        f"{met(opened.met)} a guard of {opened.keys:,} keys, its filter {opened.filter_bytes / 1024:,.0f} KiB, "
        f"opened by a second process: first answer after {opened.first_answer_ms:.1f} ms, at most "
        f"{ANSWER_MS_AT_MOST:g}; {memory}, "
        f"at most {PRIVATE_AT_MOST:.0%}"
    )
