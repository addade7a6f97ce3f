"""``dlbf bench guard``: engines with and without a guard."""

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import ratio, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

__all__ = ["command"]


@click.command("guard")
@counted("--keys", "n_keys", default=200_000, least=10, help="Keys stored.")
@counted("--queries", "n_queries", default=20_000, help="Keys asked per round.")
@counted("--rounds", default=9, help="Rounds; the best of each contender counts.")
@click.option("--redis-port", type=int, help="Port of a Redis server on this machine to measure with, too.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where to put the files.")
@click.option("--only", type=click.Choice(["rocksdb", "costs"]), multiple=True, help="Only these sections.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    n_keys: int, n_queries: int, rounds: int, redis_port: int | None, folder: Path | None, only: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """A guarded RocksDB beside RocksDB with its Bloom filter; what a guard saves and costs before every engine."""
    from dlbf.bench import guard as section

    figures: dict[str, Any] = {"machine": machine()}
    with terminal(stderr=True).status("starting") as status:
        if not only or "rocksdb" in only:
            figures["rocksdb"] = section.against_rocksdb(n_keys, n_queries, rounds, folder, status.update)
            figures["bar"] = section.bar(figures["rocksdb"])
        if not only or "costs" in only:
            figures["costs"] = section.costs(n_keys, n_queries, rounds, redis_port, folder, status.update)
    if as_json:
        write_json(figures)
        return
    console = wide_console()
    if "rocksdb" in figures:
        found = figures["rocksdb"]
        table = Table(
            title=f"{found['keys']:,} keys in memory; ns per read; how many times as long RocksDB's Bloom filter takes "
            "(quartiles)"
        )
        for heading in ("", "absent", "times", "present", "times"):
            table.add_column(heading, justify="right" if heading else "left")
        for name, absent in found["absent"].items():
            present = found["present"][name]
            table.add_row(
                name, f"{absent['ns']:.0f}", ratio(absent["peer_over_this"]), f"{present['ns']:.0f}",
                ratio(present["peer_over_this"]),
            )  # fmt: skip
        console.print(table)
        bar = figures["bar"]
        click.echo(
            f"{'met   ' if bar['met'] else 'MISSED'} absent reads: {bar['ratio'][0]:.2f} times as fast as RocksDB with "
            f"its Bloom filter, at least {bar['at_least']:g}"
        )
    if "costs" in figures:
        table = Table(title="µs per operation, bare / guarded (ratio); nothing waits for a disk")
        names = ("absent", "present", "put new", "overwrite", "delete", "batch of new")
        for heading in ("engine", "keys", *names):
            table.add_column(heading, justify="left" if heading == "engine" else "right")
        for row in figures["costs"]:
            cells = [
                f"{row[name]['bare_ns'] / 1e3:.2f} / {row[name]['guarded_ns'] / 1e3:.2f} ({row[name]['ratio'][0]:.2f})"
                for name in names
            ]
            table.add_row(row["engine"], f"{row['keys']:,}", *cells)
        console.print(table)
    write_machine(figures["machine"])
