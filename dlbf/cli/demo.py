"""``dlbf demo``: the main job, end to end."""

import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import dlbf
from dlbf.bench.keys import listed_urls, ordinary_urls

__all__ = ["command"]


@click.command("demo")
@click.option("--keys", "n_keys", default=200_000, show_default=True, help="Keys to make.")
@click.option("--fpr", default=0.01, show_default=True, help="Target false-positive rate.")
def command(n_keys: int, fpr: float) -> None:
    """Fill filters with URL-like keys, learn, delete a tenth, save, map, and compare."""
    console = Console()
    console.print(f"Making [bold]{n_keys:,}[/] listed URLs and as many ordinary ones ...")
    keys, absent = list(listed_urls(n_keys)), list(ordinary_urls(n_keys))
    unseen = list(ordinary_urls(n_keys, seed=1))
    makers: dict[str, Callable[[], Any]] = {
        cls.__name__: functools.partial(_filled, cls, n_keys, fpr, keys)
        for cls in (
            dlbf.BloomFilter,
            dlbf.CountingBloomFilter,
            dlbf.SuccinctCountingFilter,
            dlbf.DLeftFilter,
            dlbf.CuckooFilter,
        )
    }
    for deletability in (0.9, 0.5, 0.0):
        makers[f"LearnedFilter, forgets {deletability:.0%}"] = functools.partial(
            dlbf.LearnedFilter.fit, keys, absent, fpr=fpr, deletability=deletability, model="ngram", progress=False
        )
    table = Table(title=f"{n_keys:,} keys, {fpr:.1%} asked; a tenth deleted, then saved and mapped again")
    for heading in ("filter", "bits/key", "FPR", "ns/key", "lost keys", "forgotten"):
        table.add_column(heading, justify="left" if heading == "filter" else "right", no_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in makers.items():
            with console.status(f"building {name}"):
                table.add_row(name, *_measure(make(), keys, unseen, Path(folder) / "filter.dlbf"))
    console.print(table)
    console.print(
        "FPR and ns/key: a batch of absent keys nothing was fitted on.  Lost keys: stored ones answered absent after "
        "the deletions.  Forgotten: deleted keys that now answer absent.",
        style="dim",
    )


def _filled(cls: Any, n_keys: int, fpr: float, keys: list[bytes]) -> Any:
    made = cls(n_keys, fpr)
    made.update(keys)
    return made


def _measure(filter_: Any, keys: list[bytes], unseen: list[bytes], path: Path) -> tuple[str, ...]:
    """Bits per key, rate, time, lost keys and forgotten keys, as text."""
    gone, kept = keys[: len(keys) // 10], keys[len(keys) // 10 :]
    bits = 8 * filter_.nbytes / len(keys)
    rate = filter_.contains_many(unseen).mean()
    start = time.perf_counter_ns()
    filter_.contains_many(unseen)
    nanoseconds = (time.perf_counter_ns() - start) / len(unseen)
    forgotten = "cannot"
    if not isinstance(filter_, dlbf.BloomFilter):
        filter_.remove_many(gone)
        forgotten = f"{(~filter_.contains_many(gone)).mean():.1%}"
    filter_.save(path)
    with dlbf.open_filter(path) as mapped:
        lost = int((~mapped.contains_many(kept)).sum())
    return f"{bits:.2f}", f"{rate:.2%}", f"{nanoseconds:.0f}", f"{lost}", forgotten
