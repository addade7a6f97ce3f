"""``dlbf bench replay``: a block list's history through a store."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import RATE, counted
from dlbf.cli.console import terminal

if TYPE_CHECKING:
    from dlbf.bench.replay import Replay, Row, Summary

__all__ = ["command"]


@click.command("replay")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of the history (or DLBF_DATA).")
@click.option("--batches", "n_batches", type=click.IntRange(min=1), help="Only so many batches of it.")
@counted("--keys", "n_keys", default=20_000, least=100, help="Keys to make when there is no folder.")
@click.option("--fpr", type=RATE, default=0.01, show_default=True, help="Target rate of false positives.")
@click.option("--queries", "n_queries", type=int, help="Absent keys asked for after a batch; default 300 / fpr.")
@click.option(
    "--design", "designs", multiple=True, default=("auto",), show_default=True,
    help="Design for the rebuilds; of several each gets a store of its own.",
)  # fmt: skip
@click.option("--model", default="auto", show_default=True, help="Model for the rebuilds.")
@click.option("--rebuild/--no-rebuild", default=True, show_default=True, help="Rebuild when the store says so.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it (PNG or SVG).")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, every batch, on standard output.")
def command(
    data: str | None,
    n_batches: int | None,
    n_keys: int,
    fpr: float,
    n_queries: int | None,
    designs: tuple[str, ...],
    model: str,
    rebuild: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """A block list's history through a store: no key may be missed, the rate must stay below 1.5 x target.

    The history is trace.urls.malicious.tsv of the folder, or is made here.  After every batch all of its keys and a
    sample of the others are looked up, absent keys are asked for, and the store is rebuilt if it is due.  Exit code 1
    if something was wrong.
    """
    from dlbf.bench.data import data_folder
    from dlbf.bench.pictures import draw_replay
    from dlbf.bench.replay import made_trace, read_trace, replay

    folder = data_folder(data)
    console = terminal(stderr=True)
    with console.status("reading the history"):
        if folder is None:
            changes, absent = made_trace(n_batches or 200, n_keys)
        else:
            changes, absent = read_trace(folder)
    changes = changes[:n_batches]
    results: dict[str, Replay] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for number, design in enumerate(dict.fromkeys(designs)):
            with _progress(console, design, len(changes)) as show:
                results[design] = replay(
                    Path(temporary) / str(number), changes, absent, fpr=fpr, n_queries=n_queries, design=design,
                    model=model, rebuild=rebuild, progress=show,
                )  # fmt: skip
    if plot is not None:
        try:
            draw_replay(results, plot)
        except ImportError as error:
            raise click.ClickException(
                f"the picture needs matplotlib ({error}); install it with: pip install 'dlbf[plot]'"
            ) from error
    if as_json:
        told = {design: result.to_dict() for design, result in results.items()}
        click.echo(json.dumps({"machine": machine(), "designs": told}, indent=1, allow_nan=False))
    else:
        history = "made here" if folder is None else "real"
        for design, result in results.items():
            _write_summary(design, result.summary(), history)
    if not all(result.ok for result in results.values()):
        sys.exit(1)


@contextmanager
def _progress(console: Console, design: str, n_batches: int) -> Iterator[Callable[[int, Row], None]]:
    """A bar, and the function that moves it."""
    columns = (
        TextColumn(f"replaying, {design}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )  # fmt: skip
    rebuilds = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=n_batches, state="")

        def show(done: int, row: Row) -> None:
            nonlocal rebuilds
            rebuilds += bool(row.rebuilt)
            state = f"{row.bits_per_key:.1f} bits/key, {row.fpr:.2%}, {row.design}, {rebuilds} rebuilds"
            bar.update(task, completed=done, state=state)

        yield show


def _write_summary(design: str, figures: Summary, history: str) -> None:
    from dlbf.bench.replay import BAR

    lines = (
        ("design asked for", design),
        ("history", f"{figures.batches:,} batches, {history}"),
        ("insertions", f"{figures.insertions:,} ({figures.reinsertions:,} of keys that had left)"),
        ("deletions", f"{figures.deletions:,}"),
        ("live keys", f"at most {figures.most_live_keys:,}, {figures.live_keys_at_end:,} at the end"),
        ("missed keys", f"{figures.missed_keys:,}"),
        (
            "false positives",
            f"{figures.fpr_overall:.3%} of {figures.absent_lookups:,}; worst batch "
            f"{figures.fpr_worst_batch:.3%}, bar {BAR * figures.fpr_target:.3%}",
        ),
        ("deleted, absent", f"{figures.deletability:.2%} of deleted keys are answered by the filter"),
        (
            "bits per live key",
            f"{figures.bits_per_live_key:.2f} on average, {figures.bits_per_live_key_at_end:.2f} at the end "
            f"(least without a model: {math.log2(1 / figures.fpr_target):.2f})",
        ),
        ("filter", ", ".join(f"{name} after {n:,} batches" for name, n in figures.batches_by_design.items())),
        ("rebuilds", f"{figures.rebuilds}, {figures.rebuild_seconds:.0f} s of {figures.seconds:.0f} s"),
    )
    for name, text in lines:
        click.echo(f"{name:<18} {text}")
    for problem in figures.problems[:20]:
        click.echo(f"WRONG: {problem}")
    click.echo("ok" if figures.ok else f"{len(figures.problems)} problems")
