"""``dlbf bench shards``: filters in shards beside one filter, and what building them takes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import met, ratio, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal
from dlbf.cli.exits import Trouble

if TYPE_CHECKING:
    from dlbf.bench.shards import ShardFigures

__all__ = ["command"]

PARTS = ("times", "sizes", "even", "build", "arithmetic")


@click.command("shards")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@counted("--keys", "n_keys", default=743_476, least=1000, help="Keys stored, for times and sizes.")
@counted("--negatives", "n_negatives", default=840_000, least=2000, help="Absent keys; half are only asked for.")
@counted("--built", default=20_000_000, least=1000, help="Made keys that one process builds, and two.")
@counted("--rounds", default=30, help="Rounds of the times.")
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="Only these parts.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where files are made.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    data: str | None, n_keys: int, n_negatives: int, built: int, rounds: int, only: tuple[str, ...],
    folder: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Filters in shards: time and size beside one filter, how even they are, and what building them takes.

    Exit code 1 if a stored key was denied.
    """
    from dlbf.bench import shards as section
    from dlbf.bench.data import choose_keys
    from dlbf.errors import DlbfError

    parts = only or PARTS
    with terminal(stderr=True).status("reading keys") as status, tempfile.TemporaryDirectory(dir=folder) as top:
        words, keys, absent = choose_keys(data, n_keys, n_negatives)
        half = len(absent) // 2
        try:
            figures = section.measure(
                keys, absent[:half], absent[half:], Path(top), parts=parts, rounds=rounds, built_keys=built,
                say=status.update,
            )  # fmt: skip
        except DlbfError as error:
            raise Trouble(str(error)) from error
    judged = section.bars(figures)
    if as_json:
        write_json({"machine": machine(), "data": words, **vars(figures), "bars": judged})
    else:
        click.echo(words)
        _write(figures)
        for bar in judged:
            click.echo(f"{met(bar.met)} {bar.what}: {bar.found:,.4g}, at most {bar.at_most:,.4g}")
        write_machine(machine())
    if figures.missed_keys:
        click.echo(f"{figures.missed_keys:,} stored keys were denied", err=True)
        sys.exit(1)


def _write(figures: ShardFigures) -> None:
    console = wide_console(150)
    if figures.times:
        shown = table(
            "64 shards beside one filter", ("", "asked", "keys", "one", "shards", "ratio"), left=("", "asked")
        )
        for row in figures.times:
            shown.add_row(
                row.kind, row.asked, "present" if row.present else "absent", f"{row.one_ns:.0f} ns",
                f"{row.shards_ns:.0f} ns", ratio(row.ratio),
            )  # fmt: skip
        console.print(shown)
    for size in figures.sizes:
        click.echo(
            f"{size.keys:,} keys in {size.shards} shards: {size.shards_bits:.3f} bits per key, {size.one_bits:.3f} in "
            f"one; {size.shards_fpr:.4%} of {size.unseen:,} unseen keys pass, {size.one_fpr:.4%}; {size.missed_keys} "
            f"missed; opened in {1000 * size.open_seconds:.2f} ms"
        )
    if figures.even:
        shown = table("the largest shard", ("keys", "shards", "", "mean", "largest", "room", "deviations"))
        for each in figures.even:
            shown.add_row(
                f"{each.keys:,}", f"{each.shards:,}", "hashed" if each.hashed else f"thrown {each.rounds:,} times",
                f"{each.mean:,.0f}", f"{each.largest:,}", f"{each.room:,}", f"{each.deviations:.2f}",
            )  # fmt: skip
        console.print(shown)
    for built in figures.build:
        phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in built.phases.items())
        click.echo(
            f"{built.keys:,} made keys, {built.who}: {built.seconds:.1f} s ({phases}), at most "
            f"{built.worker_bytes / 2**20:,.0f} MiB in a worker"
        )
    if figures.arithmetic:
        shown = table(
            f"computed from {figures.core_ns:,.0f} ns of one core per key",
            ("keys", "shards", "filter", "runs", "memory of a worker", "network", "minutes of one core"),
        )
        for line in figures.arithmetic:
            shown.add_row(
                f"{line.keys:,}", f"{line.shards:,}", f"{line.filter_bytes:,}", f"{line.run_bytes:,}",
                f"{line.worker_bytes:,}", f"{line.network_bytes:,}", f"{line.core_minutes:,.1f}",
            )  # fmt: skip
        console.print(shown)
