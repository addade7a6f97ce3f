"""``dlbf bench stress``: the workloads that learned, stacked and adaptive filters are compared on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from dlbf.bench.stress_workloads import WORKLOADS
from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import met, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

if TYPE_CHECKING:
    from dlbf.bench.stress import Bar, StressFigures, StressRow
    from dlbf.bench.stress_workloads import Cost

__all__ = ["command"]


@click.command("stress")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@counted("--keys", "n_keys", default=100_000, least=1000, help="Keys stored.")
@counted("--negatives", "n_negatives", default=400_000, least=2000, help="Absent keys: half learnt from, half asked.")
@counted("--questions", default=1_000_000, least=100, help="Questions of a workload, an order and a round.")
@counted("--target-questions", default=3_000_000, least=100, help="Questions of the workloads at a rate of 1 %.")
@counted("--orders", default=20, help="Orders of popularity; the median and the worst are shown.")
@counted("--rounds", default=10, help="Rounds of churn; in each a fifth of the keys is exchanged.")
@click.option(
    "--bits-per-key", "budgets", type=click.FloatRange(1, 64), multiple=True, default=(8.2, 12.9), show_default=True,
    help="Size of everything, the model included.",
)  # fmt: skip
@click.option("--only", type=click.Choice(WORKLOADS), multiple=True, help="Only these workloads.")
@click.option("--contender", "names", multiple=True, metavar="NAME", help="Only these filters and stores.")
@click.option("--model", default="ngram", show_default=True, help="Kind of the model that learned ones share.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Other seeds, other questions.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where stores are made.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    data: str | None, n_keys: int, n_negatives: int, questions: int, target_questions: int, orders: int, rounds: int,
    budgets: tuple[float, ...], only: tuple[str, ...], names: tuple[str, ...], model: str, seed: int,
    folder: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Needless reads of filters and stores of one size: popular keys, replayed false positives, churn.

    All questions are about absent keys; a needless read is one that memory did not answer.  "Distinct" counts those of
    keys that had cost none before, "again" the others.  Exit code 1 if a stored key was denied.
    """
    from dlbf.bench import stress as section
    from dlbf.bench.data import choose_keys
    from dlbf.bench.stress_subjects import STRESSED, Keys

    unknown = sorted(set(names) - set(STRESSED))
    if unknown:
        raise click.UsageError(f"--contender: expected some of {', '.join(STRESSED)}; found {', '.join(unknown)}")
    with terminal(stderr=True).status("reading keys") as status:
        words, stored, absent = choose_keys(data, n_keys, n_negatives)
        half = len(absent) // 2
        try:
            figures = section.measure(
                Keys(stored, absent[:half], absent[half:]),
                section.Settings(questions, target_questions, orders, rounds, seed),
                budgets=budgets, names=names, workloads=only or WORKLOADS, model=model, folder=folder,
                say=status.update,
            )  # fmt: skip
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    judged = section.bars(figures)
    if as_json:
        write_json({"machine": machine(), "data": words, **vars(figures), "bars": judged})
    else:
        _write(figures, judged, words)
    if figures.lost_keys:
        click.echo(f"{figures.lost_keys:,} stored keys were denied", err=True)
        sys.exit(1)


def _write(figures: StressFigures, judged: list[Bar], words: str) -> None:
    settings = figures.settings
    click.echo(
        f"{words}; {figures.asked:,} of the absent ones are asked for; {settings.questions:,} questions of each "
        f"workload, {settings.orders} orders, {settings.rounds} rounds, seed {settings.seed}"
    )
    console = wide_console(190)
    for budget in dict.fromkeys(row.budget for row in figures.rows):
        console.print(_rows_table([row for row in figures.rows if row.budget == budget], budget))
    if figures.targets:
        console.print(_targets_table(figures))
    for bar in judged:
        click.echo(f"{met(bar.met)} {bar.store}: {bar.what}: {bar.found:,.2f}, at most {bar.at_most:g}")
    write_machine(machine())


def _cost(cost: Cost | None) -> str:
    """Needless reads per million, and how they divide."""
    return "-" if cost is None else f"{cost.per_million:,.0f} ({cost.distinct:,} + {cost.repeated:,})"


def _churn(row: StressRow) -> str:
    worst = row.churn_worst
    if worst is None:
        return row.churn if isinstance(row.churn, str) else "-"
    refused = sum(each.refused for each in row.rounds)
    text = f"{worst.cost.per_million:,.0f}, {row.rounds[-1].bits_per_key:.1f} bits"
    return f"{text}, {refused:,} refused" if refused else text


def _rows_table(rows: list[StressRow], budget: float) -> Table:
    shown = table(
        f"{budget:g} bits per key: needless reads per million questions (distinct + again)",
        (
            "", "bits/key", "target", "one pass", "uniform", "Zipf 1.5, median", "worst order", "replay",
            "churn, worst round", "lost",
        ),
        left=("",),
    )  # fmt: skip
    for row in rows:
        if row.error is not None:
            shown.add_row(row.name, row.error)
            continue
        median = "-" if row.zipf_median is None else f"{row.zipf_median:,.0f}"
        shown.add_row(
            row.name, f"{row.bits_per_key:.2f}", f"{1e6 * row.fpr_target:,.0f}", _cost(row.one_pass),
            _cost(row.uniform), median, _cost(row.zipf_worst), _cost(row.replay), _churn(row), f"{row.lost_in_all}",
        )  # fmt: skip
    return shown


def _targets_table(figures: StressFigures) -> Table:
    shown = table(
        f"made for 1 %, {figures.settings.target_questions:,} questions: needless reads per million (distinct + again)",
        ("", "bits/key", "afterwards", "Zipf 1.0", "in the circle", "circle"),
        left=("",),
    )
    for row in figures.targets:
        shown.add_row(
            row.name, f"{row.bits_per_key:.2f}", f"{row.bits_per_key_after:.2f}", _cost(row.zipf), f"{row.in_circle:,}",
            _cost(row.circle),
        )  # fmt: skip
    return shown
