"""``dlbf bench learned``: every design, the sizes of auto, and its speed beside its peers."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import number, ratio, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

__all__ = ["command"]

SECTIONS = ("designs", "sizes", "queries", "fit")


@click.command("learned")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@counted("--keys", "n_keys", default=100_000, least=1000, help="Keys to make when there is no folder.")
@click.option("--bits-per-key", default=16.0, show_default=True, help="Budget of every design.")
@counted("--rounds", default=60, help="Short turns of the timing; the best counts.")
@click.option("--model", "kind", default="auto", show_default=True, help="Model for the sizes.")
@click.option("--only", type=click.Choice(SECTIONS), multiple=True, help="Only these sections.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw bits against deletability.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    data: str | None, n_keys: int, bits_per_key: float, rounds: int, kind: str, only: tuple[str, ...],
    picture: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Learned filters: every design, the sizes of auto, queries and fitting beside peers."""
    from dlbf.bench import learned as section
    from dlbf.bench.data import data_folder, data_words, hard_split, random_split, read_urls

    folder = data_folder(data)
    wanted = only or SECTIONS
    words = data_words(folder, n_keys)
    figures: dict[str, Any] = {"machine": machine(), "data": words, "bits_budget": bits_per_key}
    with terminal(stderr=True).status("reading keys") as status:
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
        write_json(figures)
        return
    console = wide_console()
    if "designs" in figures:
        _designs_table(console, figures["designs"], len(first.keys), bits_per_key)
    if "sizes" in figures:
        table = Table(title="auto, model included; rates on negatives that nothing was fitted on")
        for heading in ("split", "keys", "target", "bits/key", "FPR", "deletability", "lost keys", "model", "fit"):
            table.add_column(heading, justify="left" if heading in ("split", "model") else "right")
        for row in figures["sizes"]:
            table.add_row(
                row["split"], f"{row['keys']:,}", f"{row['fpr_target']:g}, D {row['deletability_target']:g}",
                f"{row['bits_per_key']:.2f}", f"{row['fpr']:.4%}", number(row["deletability"], 4),
                str(row["lost_keys"]), row["model"], f"{row['seconds']:.0f} s",
            )  # fmt: skip
        console.print(table)
    for name in ("queries", "fit"):
        for what, value in figures.get(name, {}).items():
            text = ratio(value) if isinstance(value, tuple) else f"{value:,.2f}" if isinstance(value, float) else value
            click.echo(f"{name:<8} {what:<28} {text}")
    write_machine(figures["machine"])


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
        table.add_row(row["design"], f"{row['bits_per_key']:.2f}", *cells, number(row["query_absent_ns"]))
    console.print(table)
