"""``dlbf bench store``: the store beside other stores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import met, number, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

if TYPE_CHECKING:
    from dlbf.bench.store import Bar, Case, EngineFacts

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
    judged = section.bars(figures.cases)
    if as_json:
        write_json({"machine": machine(), "data": words, **vars(figures), "bars": judged})
        return
    click.echo(f"{words}; values of {value_bytes} bytes")
    _write_engines(figures.engines)
    running = [name for name, facts in figures.engines.items() if not facts.error]
    for heat in ("warm", "cold"):
        _write_cases(heat, [case for case in figures.cases if case.temperature == heat], running)
    _write_bars(judged)
    write_machine(machine())


def _write_engines(engines: Mapping[str, EngineFacts]) -> None:
    shown = table(
        "the stores, loaded in batches of 10,000",
        ("store", "version", "load, µs per key", "filter, bits per key", "filter", "cannot"),
        left=("store", "version", "filter", "cannot"),
    )
    for name, facts in engines.items():
        if facts.error:
            shown.add_row(name, facts.version or "-", "-", "-", "-", f"did not run: {facts.error}")
            continue
        bits = number(facts.filter_bits_per_key, 1)
        load = number(facts.load_us_per_key, 1)
        shown.add_row(name, facts.version, load, bits, facts.filter_design or "-", ", ".join(facts.cannot))
    wide_console().print(shown)


def _write_cases(temperature: str, cases: list[Case], running: list[str]) -> None:
    if not cases:
        return
    what = "ns per operation (ratio to py-lmdb, quartiles)"
    shown = table(
        f"{temperature}: {what}" + ("; pages read per operation" if temperature == "cold" else ""),
        ("store", *(f"{case.mix} {case.absent_share:.0%}" for case in cases)),
        left=("store",),
    )
    for name in running:
        shown.add_row(name, *(_cell(case, name) for case in cases))
    wide_console(220).print(shown)


def _cell(case: Case, name: str) -> str:
    if name not in case.ns:
        return "-"
    lines = [f"{case.ns[name]:,.0f}"]
    if name in case.ratio:
        best, low, high = case.ratio[name]
        lines += [f"{best:.2f}", f"({low:.2f}-{high:.2f})"]
    if case.temperature == "cold":
        lines.append(f"{case.pages[name]:.2f} p")
    return "\n".join(lines)


def _write_bars(bars: list[Bar]) -> None:
    for bar in bars:
        click.echo(
            f"{met(bar.met)} {bar.store}: mix {bar.mix}, {bar.absent_share:.0%} "
            f"absent, {bar.temperature}: {bar.ratio:.2f} of {bar.against}'s time, at most {bar.at_most:g}"
        )
