"""``dlbf bench``: dlbf beside its peers."""

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dlbf.bench import filters as filters_section
from dlbf.bench.timing import machine

__all__ = ["command"]


@click.group("bench")
def command() -> None:
    """Measure dlbf beside its peers, same keys, same run."""


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ratio(value: tuple[float, float, float] | None) -> str:
    return "-" if value is None else f"{value[0]:.2f} ({value[1]:.2f}-{value[2]:.2f})"


@command.command("filters")
@click.option("--keys", "n_keys", default=1_000_000, show_default=True, help="Keys in each filter.")
@click.option("--fpr", default=0.01, show_default=True, help="Target false-positive rate.")
@click.option("--queries", "n_queries", default=300_000, show_default=True, help="Fresh keys asked per round.")
@click.option("--rounds", default=7, show_default=True, help="Rounds; the best of each filter counts.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def filters_command(n_keys: int, fpr: float, n_queries: int, rounds: int, as_json: bool) -> None:
    """Classical filters against rbloom, pybloomfiltermmap3 and fastbloom-rs."""
    console = Console(stderr=True)
    with console.status("starting") as status:
        rows = filters_section.measure(n_keys, fpr, n_queries, rounds, status.update)
    if as_json:
        figures = {
            "machine": machine(),
            "keys": n_keys,
            "fpr_target": fpr,
            "rows": [row.to_dict() for row in rows],
        }
        json.dump(figures, sys.stdout, indent=2)
        click.echo()
        return
    table = Table(
        title=f"{n_keys:,} URL-like keys at {fpr:.2%}; times in ns per key; ratios to rbloom's single query "
        "(quartiles over rounds)"
    )
    headings = ("filter", "bits/key", "measured FPR", "add", "absent", "ratio", "present", "batch", "ratio", "remove")
    for heading in (*headings, "2 threads", "cannot"):
        table.add_column(heading, justify="left" if heading in ("filter", "cannot") else "right")
    for row in rows:
        if row.error:
            table.add_row(f"{row.name} {row.version}", *["-"] * 10, f"did not run: {row.error}")
            continue
        table.add_row(
            f"{row.name} {row.version}",
            _number(row.bits_per_key, 1),
            "-" if row.fpr is None else f"{row.fpr:.3%}",
            _number(row.add_ns),
            _number(row.query_absent_ns),
            _ratio(row.query_absent_ratio),
            _number(row.query_present_ns),
            _number(row.batch_absent_ns),
            _ratio(row.batch_absent_ratio),
            _number(row.remove_ns),
            "-" if row.threads_speedup is None else f"{row.threads_speedup:.2f}x",
            ", ".join(row.cannot),
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    where = machine()
    click.echo(f"{where['processor']}, {where['cores']} cores, {where['system']}, Python {where['python']}")


@command.command("models")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@click.option("--keys", "n_keys", default=200_000, show_default=True, help="Keys to make when there is no folder.")
@click.option("--rounds", default=60, show_default=True, help="Short turns of the timing; the best counts.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def models_command(data: str | None, n_keys: int, rounds: int, as_json: bool) -> None:
    """What models of several sizes are worth, and what a score costs beside an LMDB miss."""
    from dlbf import models
    from dlbf.bench import models as models_section
    from dlbf.bench.data import data_folder, hard_split, random_split, read_urls
    from dlbf.bench.keys import listed_urls, ordinary_urls

    folder = data_folder(data)
    with Console(stderr=True).status("reading keys") as status:
        if folder is None:
            keys, negatives = list(listed_urls(n_keys)), list(ordinary_urls(n_keys))
        else:
            keys, negatives = read_urls(folder)
        worth = []
        for split in (random_split(keys, negatives), hard_split(keys, negatives)):
            worth += models_section.quality(split, say=status.update)
        status.update("training one model of each kind")
        sample = (keys[:50_000], negatives[:50_000])
        trained = [
            models.train(*sample, kind=kind, max_bytes=8192, progress=False)
            for kind in ("ngram", "svm", "naive-bayes", "trees")
        ]
        status.update("timing")
        asked = [key for key in negatives if 45 <= len(key) <= 55][:500]
        speed = models_section.bench_models(trained, asked + keys[:200_000], rounds=rounds)
    if as_json:
        json.dump({"machine": machine(), "quality": worth, "speed": speed}, sys.stdout, indent=2)
        click.echo()
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title="ngram models on negatives nothing was fitted on; bits per key include the model")
    for heading in (
        "split",
        "bytes",
        "weights",
        "KL",
        "1 %",
        "0.1 %",
        "1 %, D = 0.9",
        "0.1 %, D = 0.9",
        "KL float / int",
    ):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    for row in worth:
        bits = [f"{row[name]:.2f}" for name in ("bits_0.01_0", "bits_0.001_0", "bits_0.01_0.9", "bits_0.001_0.9")]
        loss = f"{row['kl_float']:.2f} / {row['kl_integer']:.2f}"
        table.add_row(row["split"], f"{row['nbytes']}", f"int{row['weight_bits']}", f"{row['kl']:.2f}", *bits, loss)
    console.print(table)
    table = Table(
        title="one score of a 45 to 55-byte key beside begin + get of an absent key in LMDB, 200,000 keys stored"
    )
    for heading in ("kind", "bytes", "score", "score_many", "LMDB miss", "ratio", "ratio, many", "predict, one row"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for row in speed:
        times = [f"{row[name]:.0f} ns" for name in ("score_ns", "score_many_ns", "lmdb_miss_ns")]
        ratios = [f"{row[name]:.3f}" for name in ("score_ratio", "score_many_ratio")]
        faster = f"{row['predict_ns'] / row['score_ns']:.0f}x" if "predict_ns" in row else "-"
        table.add_row(f"{row['kind']}, {row['form']}", f"{row['nbytes']}", *times, *ratios, faster)
    console.print(table)
    where = machine()
    click.echo(f"{where['processor']}, {where['cores']} cores, {where['system']}, Python {where['python']}")


SECTIONS = ("designs", "sizes", "queries", "fit")


@command.command("learned")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@click.option("--keys", "n_keys", default=100_000, show_default=True, help="Keys to make when there is no folder.")
@click.option("--bits-per-key", default=16.0, show_default=True, help="Budget of every design.")
@click.option("--rounds", default=60, show_default=True, help="Short turns of the timing; the best counts.")
@click.option("--model", "kind", default="auto", show_default=True, help="Model for the sizes.")
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Only these sections.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw bits against deletability.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def learned_command(
    data: str | None, n_keys: int, bits_per_key: float, rounds: int, kind: str, only: tuple[str, ...],
    picture: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Learned filters: every design, the sizes of auto, queries and fitting beside peers."""
    from dlbf.bench import learned as section
    from dlbf.bench.data import data_folder, hard_split, random_split, read_urls

    folder = data_folder(data)
    wanted = only or SECTIONS
    figures: dict[str, Any] = {"machine": machine()}
    with Console(stderr=True).status("reading keys") as status:
        if folder is None:
            splits = [section.made_split(n_keys)]
        else:
            keys, negatives = read_urls(folder)
            splits = [random_split(keys, negatives), hard_split(keys, negatives)]
        first = splits[0]
        if "designs" in wanted:
            figures["designs"] = section.designs(first, bits_per_key, status.update)
        if "sizes" in wanted or picture is not None:
            figures["sizes"] = [row for split in splits for row in section.sizes(split, kind, status.update)]
        if "queries" in wanted:
            figures["queries"] = section.query_times(first, rounds, say=status.update)
        if "fit" in wanted:
            figures["fit"] = section.fit_times(first, status.update)
        if picture is not None:
            from dlbf.learned import Explanation
            from dlbf.learned.picture import draw_tradeoff

            status.update("drawing")
            draw_tradeoff(Explanation.from_dict(figures["sizes"][1]["plan"]), picture)
    if as_json:
        json.dump(figures, sys.stdout, indent=2)
        click.echo()
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    if "designs" in figures:
        _designs_table(console, figures["designs"], len(first.keys), bits_per_key)
    if "sizes" in figures:
        table = Table(title="auto, model included; rates on negatives that nothing was fitted on")
        for heading in ("split", "keys", "target", "bits/key", "FPR", "deletability", "lost keys", "model", "fit"):
            table.add_column(heading, justify="left" if heading in ("split", "model") else "right")
        for row in figures["sizes"]:
            table.add_row(
                row["split"], f"{row['keys']:,}", f"{row['fpr_target']:g}, D {row['deletability_target']:g}",
                f"{row['bits_per_key']:.2f}", f"{row['fpr']:.4%}", _number(row["deletability"], 4),
                str(row["lost_keys"]), row["model"], f"{row['seconds']:.0f} s",
            )  # fmt: skip
        console.print(table)
    for name in ("queries", "fit"):
        for what, value in figures.get(name, {}).items():
            text = _ratio(value) if isinstance(value, tuple) else f"{value:,.2f}" if isinstance(value, float) else value
            click.echo(f"{name:<8} {what:<28} {text}")
    where = figures["machine"]
    click.echo(f"{where['processor']}, {where['cores']} cores, {where['system']}, Python {where['python']}")


def _designs_table(console: Console, rows: list[dict[str, Any]], n_keys: int, bits_per_key: float) -> None:
    table = Table(title=f"every design at {bits_per_key:g} bits per key, {n_keys:,} keys: measured (planned)")
    for heading in ("design", "bits/key", "FPR", "FNR", "deletability", "forged keys that pass", "ns"):
        table.add_column(heading, justify="left" if heading == "design" else "right")

    def pair(row: dict[str, Any], name: str) -> str:
        if row[name] is None:
            return "-"
        return f"{row[name]:.5f} ({row[f'{name}_planned']:.5f})"

    for row in rows:
        if "error" in row:
            table.add_row(row["design"], row["error"])
            continue
        cells = [pair(row, name) for name in ("fpr", "fnr", "deletability", "adversarial_fpr")]
        table.add_row(row["design"], f"{row['bits_per_key']:.2f}", *cells, _number(row["query_absent_ns"]))
    console.print(table)


ADVERSARY_SECTIONS = ("attacks", "store", "games", "price", "hybrid", "cost")


@command.command("adversary")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@click.option("--keys", "n_keys", default=200_000, show_default=True, help="Keys to store at most.")
@click.option("--queries", default=100_000, show_default=True, help="Distinct absent keys that each attack asks for.")
@click.option("--changes", default=20_000, show_default=True, help="Keys that an attack inserts or removes.")
@click.option("--rounds", default=60, show_default=True, help="Short turns of the timing; the best counts.")
@click.option("--only", type=click.Choice(ADVERSARY_SECTIONS), multiple=True, help="Only these sections.")
@click.option("--design", "designs", multiple=True, help="Attack only these designs.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the price of a bound here.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def adversary_command(
    data: str | None, n_keys: int, queries: int, changes: int, rounds: int, only: tuple[str, ...],
    designs: tuple[str, ...], picture: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Every attack on every design, the games, the price of a bound, and what the defence costs."""
    from dlbf.bench import adversary as section
    from dlbf.bench.data import data_folder, random_split, read_urls
    from dlbf.bench.learned import made_split

    folder = data_folder(data)
    wanted = only or ADVERSARY_SECTIONS
    figures: dict[str, Any] = {"machine": machine()}
    with Console(stderr=True).status("reading keys") as status:
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
        json.dump(figures, sys.stdout, indent=2)
        click.echo()
        return
    _adversary_tables(Console(width=None if sys.stdout.isatty() else 170), figures)
    where = figures["machine"]
    click.echo(f"{where['processor']}, {where['cores']} cores, {where['system']}, Python {where['python']}")


def _measured(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    low, high = found["interval_99"]
    return f"{found['value']:.4f} ({low:.4f}-{high:.4f})"


def _adversary_tables(console: Console, figures: dict[str, Any]) -> None:
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
        click.echo(f"cost     {row['what']:<44} {times:<16} {_ratio(row['ratio'])}")
