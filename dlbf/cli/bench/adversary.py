"""``dlbf bench adversary``: attacks, games, the price of a bound and the cost of the defence."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import ratio, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

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
    figures: dict[str, Any] = {"machine": machine()}
    with terminal(stderr=True).status("reading keys") as status:
        split = made_split(n_keys) if folder is None else random_split(*read_urls(folder))
        split = section.smaller(split, n_keys)
        figures |= {"keys": len(split.keys), "queries": queries, "changes": changes}
        status.update("training one model for all designs")
        model = section.train(split)
        if "attacks" in wanted:
            figures["attacks"] = section.attacks(split, model, queries, changes, status.update, designs)
        if "store" in wanted:
            figures["store"] = section.stores(split, queries, changes, status.update)
        if "games" in wanted:
            figures["games"] = section.games(split, model, max(1, queries // 5), 5, status.update)
        if "price" in wanted or picture is not None:
            status.update("planning and building for several bounds")
            figures["price"] = section.price(split, model)
        if picture is not None:
            section.draw_price(figures["price"], picture)
        if "hybrid" in wanted:
            status.update("mixing ordinary and forged queries")
            figures["hybrid"] = section.hybrid(split, model)
        if "cost" in wanted:
            figures["cost"] = section.costs(split, model, rounds, status.update)
    if as_json:
        write_json(figures)
        return
    _tables(wide_console(170), figures)
    write_machine(figures["machine"])


def _measured(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    low, high = found["interval_99"]
    return f"{found['value']:.4f} ({low:.4f}-{high:.4f})"


def _tables(console: Console, figures: dict[str, Any]) -> None:
    from dlbf.adversary import ATTACKS

    names = [attack.name for attack in ATTACKS]
    if "attacks" in figures:
        table = Table(
            title=f"{figures['keys']:,} keys, {figures['queries']:,} distinct absent keys asked by each attack: "
            "share answered 'maybe' (99 % interval)"
        )
        for heading in ("design", "bits/key", "planned bound", "ordinary FPR", *names, "lost keys"):
            table.add_column(heading, justify="left" if heading == "design" else "right")
        for row in figures["attacks"]:
            lost = sum(row[name]["lost_keys"] for name in names if name in row)
            table.add_row(
                row["name"], f"{row['bits_per_key']:.2f}", f"{row['adversarial_fpr_planned']:.4f}",
                f"{row['fpr']['value']:.4f}", *(_measured(row.get(name)) for name in names), f"{lost}",
            )  # fmt: skip
        console.print(table)
    if "store" in figures:
        table = Table(title="a default store; its filter's bytes before and after")
        for heading in ("attack", "stated bound", "measured", "lost keys", "keys", "filter bytes"):
            table.add_column(heading, justify="left" if heading == "attack" else "right")
        for row in figures["store"]:
            table.add_row(
                row["attack"], f"{row['stated_bound']:g}", _measured(row), f"{row['lost_keys']}",
                f"{row['keys_before']:,} / {row['keys_after']:,}",
                f"{row['filter_bytes_before']:,} / {row['filter_bytes_after']:,}",
            )  # fmt: skip
        console.print(table)
    if "games" in figures:
        table = Table(title="games: share of the keys named at the end that are false positives")
        for heading in ("challenge", "target", "attack", "bound", "success", "refused"):
            table.add_column(heading, justify="right" if heading in ("bound", "success", "refused") else "left")
        for row in figures["games"]:
            table.add_row(
                row["challenge"], row["target"], row["attack"], f"{row['bound']:.4f}", _measured(row["forged"]),
                f"{row['refused']:,}",
            )  # fmt: skip
        console.print(table)
    if "price" in figures:
        table = Table(title="the price of a bound: bits per key, model included (planned, cells of one bit)")
        for heading in ("adversarial_fpr", "FPR 1 %", "FPR 0.1 %", "the bound alone"):
            table.add_column(heading, justify="right")
        for row in figures["price"]["curve"][::3]:
            table.add_row(*(f"{row[name]:.3g}" for name in ("adversarial FPR", "FPR 0.01", "FPR 0.001", "floor")))
        console.print(table)
    if "hybrid" in figures:
        found = figures["hybrid"]
        table = Table(title="forged among ordinary queries at equal memory: measured (predicted)")
        for heading in ("adversarial share", "bodega", "secure-bloom"):
            table.add_column(heading, justify="right")
        for i in range(0, len(found["shares"]), 2):
            pairs = [f"{found[name][i]:.4f} ({found[f'{name}_predicted'][i]:.4f})" for name in ("learned", "plain")]
            table.add_row(f"{found['shares'][i]:.2f}", *pairs)
        console.print(table)
        cross = [found[f"crossover_{word}"] for word in ("predicted", "measured")]
        click.echo("crossover: " + ", ".join("none" if at is None else f"{at:.2%}" for at in cross) + " (measured)")
    for row in figures.get("cost", ()):
        times = f"{row['with_ns']:.0f} / {row['without_ns']:.0f} ns"
        click.echo(f"cost     {row['what']:<44} {times:<16} {ratio(row['ratio'])}")
