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
from dlbf.cli.bench.output import met
from dlbf.cli.console import terminal

if TYPE_CHECKING:
    from dlbf.bench.replay import Replay, Row

__all__ = ["command"]


@click.command("replay")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of the history (or DLBF_DATA).")
@click.option("--batches", "n_batches", type=click.IntRange(min=1), help="Only so many batches of it.")
@counted("--keys", "n_keys", default=20_000, least=100, help="Keys to make when there is no folder.")
@click.option("--fpr", type=RATE, default=0.01, show_default=True, help="Target rate of false positives.")
@click.option("--queries", "n_queries", type=int, help="Absent keys asked for after a batch; default 300 / fpr.")
@click.option(
    "--design", "designs", multiple=True, default=("auto",), show_default=True,
    help="Design for the rebuilds (layers, tables, ...); of several each gets a store of its own.",
)  # fmt: skip
@click.option(
    "--model", "models", multiple=True, default=("auto",), show_default=True,
    help="Model for the rebuilds, or none; each of several with each design.",
)  # fmt: skip
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
    models: tuple[str, ...],
    rebuild: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """A block list's history through a store: no key may be missed, the rate must stay below 1.5 x target.

    The history is trace.urls.malicious.tsv of the folder, or is made here.  After every batch all of its keys and a
    sample of the others are looked up, absent keys are asked for, and the store is rebuilt if it is due.  A third of
    the absent keys is kept from the store and asked of its filter alone.  Exit code 1 if something was wrong.

    \b
    dlbf bench replay --design auto --design layers --design tables --model ngram --model none
    """
    from dlbf.bench.data import data_folder
    from dlbf.bench.histories import made_trace, read_trace
    from dlbf.bench.pictures import draw_replay
    from dlbf.bench.replay import replay

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
        for number, (store, design, model) in enumerate(_stores(designs, models)):
            with _progress(console, store, len(changes)) as show:
                results[store] = replay(
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
        told = {store: result.to_dict() for store, result in results.items()}
        bars = [bar.to_dict() for store, result in results.items() for bar in result.bars(store)]
        click.echo(json.dumps({"machine": machine(), "designs": told, "bars": bars}, indent=1, allow_nan=False))
    else:
        history = "made here" if folder is None else "real"
        for store, result in results.items():
            _write_summary(store, result, history)
    if not all(result.ok for result in results.values()):
        sys.exit(1)


def _stores(designs: tuple[str, ...], models: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """What each store is called, with its design and its model."""
    several = len(set(models)) > 1
    for model in dict.fromkeys(models):
        for design in dict.fromkeys(designs):
            words = "no model" if model == "none" else model
            yield (f"{design}, {words}" if several else design), design, model


@contextmanager
def _progress(console: Console, store: str, n_batches: int) -> Iterator[Callable[[int, Row], None]]:
    """A bar, and the function that moves it."""
    columns = (
        TextColumn(f"replaying, {store}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn(),
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


def _write_summary(store: str, result: Replay, history: str) -> None:
    from dlbf.bench.replay import BAR, STRETCH

    figures = result.summary()
    reads = figures.needless_reads
    lines = (
        ("store", store),
        ("history", f"{figures.batches:,} batches, {history}"),
        ("insertions", f"{figures.insertions:,} ({figures.reinsertions:,} of keys that had left)"),
        ("deletions", f"{figures.deletions:,}"),
        ("live keys", f"at most {figures.most_live_keys:,}, {figures.live_keys_at_end:,} at the end"),
        ("missed keys", f"{figures.missed_keys:,}"),
        (
            "needless reads",
            f"{figures.fpr_overall:.3%} of {figures.absent_lookups:,} absent; worst batch "
            f"{figures.fpr_worst_batch:.3%}, bar {BAR * figures.fpr_target:.3%}",
        ),
        (
            "by cause",
            f"{reads['ordinary']:,} ordinary, {reads['deleted']:,} deleted, {reads['repeated']:,} repeated; "
            f"{reads['remembered']:,} spared",
        ),
        (
            "unseen keys",
            f"{figures.fpr_unseen:.3%} pass the filter; {figures.fpr_unseen_worst:.3%} in the worst {STRETCH} batches",
        ),
        ("deleted, absent", f"{figures.deletability:.2%} of deleted keys are answered by the filter"),
        (
            "bits per live key",
            f"{figures.bits_per_live_key:.2f} on average, {figures.bits_per_live_key_at_end:.2f} at the end "
            f"(least without a model: {math.log2(1 / figures.fpr_target):.2f})",
        ),
        ("of that", f"{figures.bits_remembered:.2f} on average for keys known to be absent"),
        ("filter", ", ".join(f"{name} after {n:,} batches" for name, n in figures.batches_by_design.items())),
        ("rebuilds", f"{figures.rebuilds}, {figures.rebuild_seconds:.0f} s of {figures.seconds:.0f} s"),
    )
    for name, text in lines:
        click.echo(f"{name:<18} {text}")
    for bar in result.bars(store):
        click.echo(f"{met(bar.met)}             {bar.what}: {bar.found:,.3f}, at most {bar.at_most:g}")
    for problem in figures.problems[:20]:
        click.echo(f"WRONG: {problem}")
    click.echo("ok" if figures.ok else f"{len(figures.problems)} problems")
