"""``dlbf bench store``: the store beside other stores."""

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import number, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

__all__ = ["command"]


@click.command("store")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@counted("--keys", "n_keys", default=200_000, least=100, help="Keys stored at first.")
@click.option("--value-bytes", default=100, show_default=True, help="Length of the values.")
@counted("--operations", "n_warm", default=3000, help="Operations of a warm turn.")
@counted("--cold-operations", "n_cold", default=2000, help="Operations of a cold turn.")
@counted("--rounds", default=15, help="Turns of every store; the best counts.")
@click.option("--mix", "mixes", type=click.Choice(list("ABCD")), multiple=True, help="Only these mixes.")
@click.option("--temperature", type=click.Choice(["warm", "cold"]), multiple=True, help="Only warm or cold.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A folder on a disk.")
@click.option("--quick", is_flag=True, help="20,000 keys and short turns: a look, not a measurement.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    data: str | None, n_keys: int, value_bytes: int, n_warm: int, n_cold: int, rounds: int, mixes: tuple[str, ...],
    temperature: tuple[str, ...], folder: Path | None, quick: bool, as_json: bool,
) -> None:  # fmt: skip
    """YCSB-like mixes on dlbf's Store, py-lmdb, rbloom before py-lmdb, RocksDB (Bloom, Ribbon) and LevelDB.

    Keys are chosen with YCSB's zipfian skew; of the reads 0, 50 or 95 % ask for keys that are not there.  No store
    waits for the disk when it commits.
    """
    from dlbf.bench import store as section
    from dlbf.bench.data import choose_keys
    from dlbf.datasets import listed_urls

    if quick:
        n_keys, n_warm, n_cold, rounds = min(n_keys, 20_000), min(n_warm, 2000), min(n_cold, 500), min(rounds, 3)
    with terminal(stderr=True).status("reading keys") as status:
        words, keys, absent = choose_keys(data, n_keys, n_keys)
        figures = section.measure(
            keys, absent, listed_urls(10**9, seed=1),
            mixes=mixes or tuple("ABCD"), temperatures=temperature or ("warm", "cold"), n_warm=n_warm, n_cold=n_cold,
            rounds=rounds, value_bytes=value_bytes, folder=folder, say=status.update,
        )  # fmt: skip
    figures = {"machine": machine(), "data": words, **figures, "bars": section.bars(figures)}
    if as_json:
        write_json(figures)
    else:
        _write_tables(figures)


def _write_tables(figures: dict[str, Any]) -> None:
    console = wide_console()
    click.echo(f"{figures['data']}; values of {figures['value_bytes']} bytes")
    running = {name: fact for name, fact in figures["engines"].items() if not fact["error"]}
    table = Table(title="the stores, loaded in batches of 10,000")
    for heading in ("store", "version", "load, µs per key", "filter, bits per key", "cannot"):
        table.add_column(heading, justify="left" if heading in ("store", "version", "cannot") else "right")
    for name, fact in figures["engines"].items():
        if fact["error"]:
            table.add_row(name, fact.get("version", "-"), "-", "-", f"did not run: {fact['error']}")
            continue
        bits = number(fact["filter_bits_per_key"], 1)
        table.add_row(name, fact["version"], number(fact["load_us_per_key"], 1), bits, ", ".join(fact["cannot"]))
    console.print(table)
    for temperature in ("warm", "cold"):
        cases = [case for case in figures["cases"] if case["temperature"] == temperature]
        if not cases:
            continue
        what = "ns per operation (ratio to py-lmdb, quartiles)"
        table = Table(title=f"{temperature}: {what}" + ("; pages read per operation" if temperature == "cold" else ""))
        table.add_column("store")
        for case in cases:
            table.add_column(f"{case['mix']} {case['absent_share']:.0%}", justify="right")
        for name in running:
            table.add_row(name, *(_cell(case, name) for case in cases))
        wide_console(220).print(table)
    for row in figures["bars"]:
        click.echo(
            f"{'met   ' if row['met'] else 'MISSED'} {row['store']}: mix {row['mix']}, {row['absent_share']:.0%} "
            f"absent, {row['temperature']}: {row['ratio']:.2f} of {row['against']}'s time, at most {row['at_most']:g}"
        )
    write_machine(figures["machine"])


def _cell(case: dict[str, Any], name: str) -> str:
    if name not in case["ns"]:
        return "-"
    lines = [f"{case['ns'][name]:,.0f}"]
    if name in case["ratio"]:
        best, low, high = case["ratio"][name]
        lines += [f"{best:.2f}", f"({low:.2f}-{high:.2f})"]
    if case["temperature"] == "cold":
        lines.append(f"{case['pages'][name]:.2f} p")
    return "\n".join(lines)
