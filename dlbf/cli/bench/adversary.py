"""``dlbf bench adversary``: attacks, games, the price of a bound and the cost of the defence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import ratio, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

if TYPE_CHECKING:
    from dlbf.bench.adversary import AttackRow, Cost, GameRow, HybridFigures, Price, StoreRow
    from dlbf.learned.evaluation import Rate

__all__ = ["command"]

SECTIONS = ("attacks", "store", "games", "price", "hybrid", "cost")


@click.command("adversary")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@counted("--keys", "n_keys", default=200_000, least=1000, help="Keys to store at most.")
@counted("--queries", default=100_000, help="Distinct absent keys that each attack asks for.")
@counted("--changes", default=20_000, help="Keys that an attack inserts or removes.")
@counted("--rounds", default=60, help="Short turns of the timing; the best counts.")
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Only these sections.")
@click.option("--design", "designs", multiple=True, help="Attack only these designs.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the price of a bound here.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    data: str | None, n_keys: int, queries: int, changes: int, rounds: int, only: tuple[str, ...],
    designs: tuple[str, ...], picture: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Every attack on every design, the games, the price of a bound, and what the defence costs."""
    from dlbf.bench import adversary as section
    from dlbf.bench.data import data_folder, random_split, read_urls
    from dlbf.bench.learned import made_split

    folder = data_folder(data)
    wanted = only or SECTIONS
    attacks, stores, games, price, hybrid, costs = None, None, None, None, None, None
    with terminal(stderr=True).status("reading keys") as status:
        split = made_split(n_keys) if folder is None else random_split(*read_urls(folder))
        split = section.smaller(split, n_keys)
        status.update("training one model for all designs")
        model = section.train(split)
        if "attacks" in wanted:
            attacks = section.attacks(split, model, queries, changes, status.update, designs)
        if "store" in wanted:
            stores = section.stores(split, queries, changes, status.update)
        if "games" in wanted:
            games = section.games(split, model, max(1, queries // 5), 5, status.update)
        if "price" in wanted or picture is not None:
            status.update("planning and building for several bounds")
            price = section.price(split, model)
        if picture is not None and price is not None:
            section.draw_price(price, picture)
        if "hybrid" in wanted:
            status.update("mixing ordinary and forged queries")
            hybrid = section.hybrid(split, model)
        if "cost" in wanted:
            costs = section.costs(split, model, rounds, status.update)
    if as_json:
        figures = {
            "attacks": attacks, "store": stores, "games": games, "price": price, "hybrid": hybrid, "cost": costs,
        }  # fmt: skip
        told = {name: figure for name, figure in figures.items() if figure is not None}
        write_json({"machine": machine(), "keys": len(split.keys), "queries": queries, "changes": changes, **told})
        return
    console = wide_console(170)
    if attacks is not None:
        console.print(_attacks_table(attacks, len(split.keys), queries))
    if stores is not None:
        console.print(_stores_table(stores))
    if games is not None:
        console.print(_games_table(games))
    if price is not None:
        console.print(_price_table(price))
    if hybrid is not None:
        console.print(_hybrid_table(hybrid))
        _write_crossover(hybrid)
    _write_costs(costs or [])
    write_machine(machine())


def _measured(rate: Rate | None) -> str:
    if rate is None:
        return "-"
    low, high = rate.interval
    return f"{rate.value:.4f} ({low:.4f}-{high:.4f})"


def _attacks_table(rows: list[AttackRow], n_keys: int, queries: int) -> Table:
    from dlbf.adversary import ATTACKS

    names = [attack.name for attack in ATTACKS]
    shown = table(
        f"{n_keys:,} keys, {queries:,} distinct absent keys asked by each attack: share answered 'maybe' "
        "(99 % interval)",
        ("design", "bits/key", "planned bound", "ordinary FPR", *names, "lost keys"),
        left=("design",),
    )
    for row in rows:
        rates = {name: outcome.queries for name, outcome in row.outcomes.items()}
        shown.add_row(
            row.name, f"{row.bits_per_key:.2f}", f"{row.adversarial_fpr_planned:.4f}", f"{row.fpr.value:.4f}",
            *(_measured(rates.get(name)) for name in names), f"{sum(each.lost for each in row.outcomes.values())}",
        )  # fmt: skip
    return shown


def _stores_table(rows: list[StoreRow]) -> Table:
    shown = table(
        "a default store; its filter's bytes before and after",
        ("attack", "stated bound", "measured", "lost keys", "keys", "filter bytes"),
        left=("attack",),
    )
    for row in rows:
        shown.add_row(
            row.attack, f"{row.stated_bound:g}", _measured(row.rate), f"{row.lost_keys}",
            f"{row.keys_before:,} / {row.keys_after:,}",
            f"{row.filter_bytes_before:,} / {row.filter_bytes_after:,}",
        )  # fmt: skip
    return shown


def _games_table(rows: list[GameRow]) -> Table:
    shown = table(
        "games: share of the keys named at the end that are false positives",
        ("challenge", "target", "attack", "bound", "success", "refused"),
        left=("challenge", "target", "attack"),
    )
    for row in rows:
        outcome = row.outcome
        shown.add_row(
            outcome.challenge, row.target, outcome.attack, f"{outcome.bound:.4f}", _measured(outcome.forged),
            f"{outcome.refused:,}",
        )  # fmt: skip
    return shown


def _price_table(price: Price) -> Table:
    shown = table(
        "the price of a bound: bits per key, model included (planned, cells of one bit)",
        ("adversarial_fpr", "FPR 1 %", "FPR 0.1 %", "the bound alone"),
    )
    for row in price.curve[::3]:
        shown.add_row(*(f"{row[name]:.3g}" for name in ("adversarial FPR", "FPR 0.01", "FPR 0.001", "floor")))
    return shown


def _hybrid_table(hybrid: HybridFigures) -> Table:
    shown = table(
        "forged among ordinary queries at equal memory: measured (predicted)",
        ("adversarial share", "bodega", "secure-bloom"),
    )
    rates = hybrid.rates
    for share, *pair in list(zip(rates.shares, rates.learned, rates.plain, strict=True))[::2]:
        shown.add_row(f"{share:.2f}", *(f"{rate.value:.4f} ({rate.predicted:.4f})" for rate in pair))
    return shown


def _write_crossover(hybrid: HybridFigures) -> None:
    places = (hybrid.rates.crossover_predicted, hybrid.rates.crossover_measured)
    click.echo("crossover: " + ", ".join("none" if at is None else f"{at:.2%}" for at in places) + " (measured)")


def _write_costs(costs: list[Cost]) -> None:
    for cost in costs:
        times = f"{cost.one_ns:.0f} / {cost.other_ns:.0f} ns"
        click.echo(f"cost     {cost.what:<44} {times:<16} {ratio(cost.ratio)}")
