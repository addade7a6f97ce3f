"""``dlbf bench layers``: what a store's layered filter takes, lets pass and costs to ask."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import met, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

if TYPE_CHECKING:
    from dlbf.bench.layers import LayerFigures

__all__ = ["command"]

PARTS = ("sizes", "life", "growing", "times", "sharing")


@click.command("layers")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@counted("--keys", "n_keys", default=743_476, least=10_000, help="Keys stored.")
@counted("--negatives", "n_negatives", default=840_000, least=6000, help="Absent keys; a sixth is only asked for.")
@counted("--shared-keys", "shared_keys", default=10_000_000, least=1000, help="Keys that eight processes share.")
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="Only these parts.")
@click.option("--model", default="auto", show_default=True, help="Kind of the models that stores learn.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where stores are made.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    data: str | None, n_keys: int, n_negatives: int, shared_keys: int, only: tuple[str, ...], model: str,
    folder: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """A store's layered filter: bits per key, rates, and the time of an absent get, beside what was promised.

    Exit code 1 if a stored key was denied.
    """
    from dlbf.bench import layers as section
    from dlbf.bench.data import choose_keys

    with terminal(stderr=True).status("reading keys") as status:
        words, keys, absent = choose_keys(data, n_keys, n_negatives)
        learnt = len(absent) * 5 // 6
        with tempfile.TemporaryDirectory(dir=folder) as top:
            figures = section.measure(
                keys, absent[:learnt], absent[learnt:], Path(top), parts=only or PARTS, model=model,
                shared_keys=shared_keys, say=status.update,
            )  # fmt: skip
    judged = section.bars(figures)
    if as_json:
        write_json({"machine": machine(), "data": words, **vars(figures), "bars": judged})
    else:
        click.echo(words)
        _write(figures)
        for bar in judged:
            click.echo(f"{met(bar.met)} {bar.what}: {bar.found:,.4g}, at most {bar.at_most:g}")
        write_machine(machine())
    if figures.missed_keys:
        click.echo(f"{figures.missed_keys:,} stored keys were denied", err=True)
        sys.exit(1)


def _write(figures: LayerFigures) -> None:
    console = wide_console(150)
    if figures.sizes:
        shown = table(
            "just after a rebuild",
            ("", "bits per key", "at most", "rate of unseen keys", "model bytes", "rebuilt in", "missed"),
            left=("",),
        )
        for row in figures.sizes:
            shown.add_row(
                row.name, f"{row.bits_per_key:.3f}", f"{row.at_most:g}", f"{row.measured_fpr:.4%}",
                f"{row.model_bytes:,}", f"{row.rebuild_seconds:.0f} s", f"{row.missed_keys}",
            )  # fmt: skip
        console.print(shown)
    if figures.life is not None:
        life = figures.life
        click.echo(
            f"from rebuild to rebuild: {life.mean_bits:.2f} bits per key on average, {life.first_bits:.2f} at first, "
            f"{life.last_bits:.2f} at last; at most {life.worst_fpr:.3%} of unseen keys pass; {life.missed_keys} missed"
        )
    if figures.growing is not None:
        grown = figures.growing
        click.echo(
            f"growing to {grown.keys:,} keys: at most {grown.most_bits:.2f} bits per key, at {grown.most_bits_at:,} "
            f"keys; {grown.mean_bits:.2f} on average; {grown.missed_keys} missed"
        )
    for times in figures.times:
        click.echo(
            f"absent get, {times.what}: {times.layers_ns:.0f} ns with layers, {times.added_keys:,} of their keys in "
            f"tables; {times.tables_ns:.0f} ns with tables alone, {times.ratio:.2f} times"
        )
    if figures.sharing is not None:
        shared = figures.sharing
        click.echo(
            f"{shared.processes} processes with one store of {shared.keys:,} keys, {shared.sharing} of them with the "
            f"common base: at most {shared.private_bytes:,} bytes of their own, {shared.share:.1%} of the filter"
        )
