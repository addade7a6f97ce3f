"""``dlbf bench learned --peers``: the published learned filters beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.table import Table

from dlbf.bench.timing import machine
from dlbf.cli.bench.output import met, number, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

if TYPE_CHECKING:
    from dlbf.bench.learned_peers import PeerRow

__all__ = ["write_peers"]

# Absent keys for each stored one: two thirds are learnt from, a sixth chooses sizes, a sixth is only measured on.
ABSENT_PER_KEY = 4


def write_peers(data: str | None, n_keys: int, targets: Sequence[float], kind: str, rounds: int, as_json: bool) -> None:
    """Measure, and print for a person or a machine; exit code 1 if a filter denied a stored key."""
    from dlbf.bench import learned_peers as section
    from dlbf.bench.data import choose_keys, random_split

    with terminal(stderr=True).status("reading keys") as status:
        words, keys, absent = choose_keys(data, n_keys, ABSENT_PER_KEY * n_keys)
        figures = section.measure(
            random_split(keys, absent), tuple(dict.fromkeys(targets)), kind=kind, rounds=rounds, say=status.update
        )
    judged = section.bars(figures)
    if as_json:
        write_json({"machine": machine(), "data": words, **vars(figures), "bars": judged})
    else:
        click.echo(f"{words}; rates of {figures.unseen:,} absent keys that nothing was fitted on")
        for fpr, shared in figures.models.items():
            rows = [row for row in figures.rows if f"{row.fpr_target:g}" == fpr]
            wide_console(190).print(_table(rows, f"{fpr}, all with {shared['model']}"))
        for bar in judged:
            click.echo(f"{met(bar.met)} {bar.store}, {bar.what}: {bar.found:.3f}, at most {bar.at_most:.3f}")
        write_machine(machine())
    if figures.lost_keys:
        click.echo(f"{figures.lost_keys:,} stored keys were denied", err=True)
        sys.exit(1)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.4%}"


def _table(rows: Sequence[PeerRow], title: str) -> Table:
    shown = table(
        title,
        (
            "filter", "code", "bits/key", "planned", "measured", "to planned", "to target", "lost", "ns", "ns, batch",
            "build", "deletes", "cannot",
        ),
        left=("filter", "code", "cannot"),
    )  # fmt: skip
    for row in rows:
        if row.error is not None:
            shown.add_row(row.name, row.code, *["-"] * 10, row.error)
            continue
        shown.add_row(
            row.name, row.code, number(row.bits_per_key, 2), _percent(row.fpr_planned), _percent(row.fpr),
            number(row.over_planned, 2), number(row.over_target, 2), str(row.lost_keys), number(row.query_ns),
            number(row.batch_ns), f"{row.build_seconds:.1f} s", "yes" if row.deletable else "no",
            ", ".join(row.cannot) or "-",
        )  # fmt: skip
    return shown
