"""``dlbf bench models``: what models are worth and what a score costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

if TYPE_CHECKING:
    from dlbf.bench.models import Speed, Worth

__all__ = ["command"]


@click.command("models")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@counted("--keys", "n_keys", default=200_000, least=1000, help="Keys to make when there is no folder.")
@counted("--rounds", default=60, help="Short turns of the timing; the best counts.")
@click.option("--quick", is_flag=True, help="20,000 keys and short turns: a look, not a measurement.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(data: str | None, n_keys: int, rounds: int, quick: bool, as_json: bool) -> None:
    """What models of several sizes are worth, and what a score costs beside an LMDB miss."""
    from dlbf import models
    from dlbf.bench import models as models_section
    from dlbf.bench.data import data_folder, data_words, hard_split, random_split, read_urls
    from dlbf.datasets import listed_urls, ordinary_urls
    from dlbf.models.kinds import ROWS

    if quick:
        n_keys, rounds = min(n_keys, 20_000), min(rounds, 5)
    folder = data_folder(data)
    words = data_words(folder, n_keys)
    with terminal(stderr=True).status("reading keys") as status:
        if folder is None:
            keys, negatives = list(listed_urls(n_keys)), list(ordinary_urls(n_keys))
        else:
            keys, negatives = read_urls(folder)
            if quick:
                keys, negatives = keys[:n_keys], negatives[:n_keys]
        worth = []
        for split in (random_split(keys, negatives), hard_split(keys, negatives)):
            worth += models_section.quality(split, say=status.update)
        status.update("training one model of each kind")
        sample = (keys[:50_000], negatives[:50_000])
        trained = [models.train(*sample, kind=kind, max_bytes=8192, progress=False) for kind in ROWS if kind != "none"]
        status.update("timing")
        asked = [key for key in negatives if 45 <= len(key) <= 55][:30_000]
        speed = models_section.bench_models(trained, asked, keys[:200_000], rounds=rounds)
    if as_json:
        write_json({"machine": machine(), "data": words, "quality": worth, "speed": speed})
        return
    _write_worth(worth)
    _write_speed(speed, min(len(keys), 200_000))
    write_machine(machine())


def _write_worth(rows: list[Worth]) -> None:
    from dlbf.bench.models import TARGETS

    shown = table(
        "ngram models on negatives nothing was fitted on; bits per key include the model",
        ("split", "bytes", "weights", "KL", "1 %", "0.1 %", "1 %, D = 0.9", "0.1 %, D = 0.9", "KL float / int"),
        left=("split",),
    )
    for row in rows:
        bits = [f"{row.bits[target]:.2f}" for target in TARGETS]
        loss = f"{row.kl_float:.2f} / {row.kl_integer:.2f}"
        shown.add_row(row.split, f"{row.nbytes}", f"int{row.weight_bits}", f"{row.kl:.2f}", *bits, loss)
    wide_console().print(shown)


def _write_speed(rows: list[Speed], n_stored: int) -> None:
    shown = table(
        f"one score of a 45 to 55-byte key beside begin + get of an absent key in LMDB, {n_stored:,} keys stored",
        ("kind", "bytes", "keys", "score", "score_many", "LMDB miss", "ratio", "ratio, many", "predict, one row"),
        left=("kind", "keys"),
    )
    for row in rows:
        for times, keys_are in ((row.fresh, "other ones every turn"), (row.same, "the same 500")):
            cells = [f"{ns:.0f} ns" for ns in (times.score_ns, times.score_many_ns, times.lmdb_miss_ns)]
            cells += [f"{times.score_ratio:.3f}", f"{times.score_many_ratio:.3f}"]
            cells.append("-" if row.predict_ns is None else f"{row.predict_ns / times.score_ns:.0f}x")
            shown.add_row(f"{row.kind}, {row.form}", f"{row.nbytes}", keys_are, *cells)
    wide_console().print(shown)
