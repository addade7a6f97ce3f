"""``dlbf demo``: the main job, end to end."""

import tempfile
import time
from pathlib import Path

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
    """Fill filters with URL-like keys, delete a tenth, save, map, and compare."""
    console = Console()
    console.print(f"Making [bold]{n_keys:,}[/] listed URLs and as many ordinary ones ...")
    keys, absent = list(listed_urls(n_keys)), list(ordinary_urls(n_keys))
    gone, kept = keys[: n_keys // 10], keys[n_keys // 10 :]
    table = Table(title=f"{n_keys:,} keys, {fpr:.1%} asked; a tenth deleted, saved, mapped again")
    for heading in ("filter", "bits/key", "FPR", "ns/key batch", "lost keys", "deleted keys forgotten"):
        table.add_column(heading, justify="left" if heading == "filter" else "right")
    with tempfile.TemporaryDirectory() as folder:
        for cls in (
            dlbf.BloomFilter,
            dlbf.CountingBloomFilter,
            dlbf.DeletableBloomFilter,
            dlbf.DLeftFilter,
            dlbf.CuckooFilter,
        ):
            filter_ = cls(n_keys, fpr)
            filter_.update(keys)
            rate = filter_.contains_many(absent).mean()
            start = time.perf_counter_ns()
            filter_.contains_many(absent)
            nanoseconds = (time.perf_counter_ns() - start) / n_keys
            forgotten = "cannot"
            if filter_.DELETABLE:
                forgotten = f"{filter_.remove_many(gone).mean():.1%}"
            path = Path(folder) / "filter.dlbf"
            filter_.save(path)
            with dlbf.open_filter(path) as mapped:
                lost = int((~mapped.contains_many(kept)).sum())
            table.add_row(
                cls.__name__,
                f"{8 * filter_.nbytes / n_keys:.1f}",
                f"{rate:.2%}",
                f"{nanoseconds:.0f}",
                f"{lost}",
                forgotten,
            )
    console.print(table)
