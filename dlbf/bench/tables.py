"""The tables of README and docs, made from recorded figures.

A *section* is a command of ``dlbf bench``; its output is recorded as ``docs/figures/SECTION.json``, with the machine
and the commit.  A *table* is made from such a record.  In a markdown file it stands between markers, and so does a
figure in running text::

    <!-- table: peers -->
    (this is written by ``make tables``)
    <!-- end -->

    It takes <!-- figure: learned/sizes/0/bits_per_key:.2f -->0.89<!-- end --> bits per key.

The first part of a figure is the section, the others lead into its record; after the colon is a Python format.  The
section ``derived`` has what is computed from a record, or from the theory alone: see ``DERIVED``.
``make tables SECTIONS="filters store"`` measures those sections anew and rewrites every file; without sections it only
rewrites.  A test fails when a file is not what the records give.

A section may bring tables of its own: a record with ``{"tables": {"name": {"headings": [...], "rows": [[...]]}}}``.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["SECTIONS", "TABLES", "Section", "Table", "main", "record", "render", "rewrite"]

ROOT = Path(__file__).parents[2]
FIGURES_FOLDER = "docs/figures"
BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)
INLINE = re.compile(r"(<!-- figure: (?P<path>[^:>]+):(?P<format>[^ >]*) -->)(?P<body>[^<]*)(<!-- end -->)")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """A command whose output is recorded.

    Attributes
    ----------
    arguments : tuple of str
        What follows ``dlbf bench``.
    made_keys : bool
        Measure on keys made here, even if there is a folder of real ones.
    by_default : bool
        Part of ``make tables SECTIONS=all``.
    dropped : tuple of str
        What is in the output but not recorded, because it is long and in no table.
    """

    arguments: tuple[str, ...]
    made_keys: bool = False
    by_default: bool = True
    dropped: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What a reader types to repeat it."""
        return shlex.join(("dlbf", "bench", *self.arguments))


SECTIONS = {
    "filters": Section(("filters",), made_keys=True),
    "models": Section(("models",)),
    "learned": Section(("learned", "--only", "sizes", "--only", "queries", "--only", "fit")),
    "designs": Section(("learned", "--keys", "20000", "--only", "designs"), made_keys=True),
    "store": Section(("store",)),
    "attacks": Section(("adversary", "--only", "attacks", "--only", "store")),
    "games": Section(("adversary", "--only", "games", "--keys", "50000")),
    "bounds": Section(("adversary", "--only", "price", "--only", "hybrid", "--only", "cost", "--keys", "100000")),
    "guard": Section(("guard", "--keys", "100000", "--queries", "5000"), made_keys=True),
    "replay": Section(("replay", "--plot", "docs/img/replay.png"), dropped=("rows",)),
    "scale": Section(("scale",), made_keys=True),
    "scale-large": Section(
        ("scale", "--max-keys", "3e7", "--plot", "docs/img/scale.png"), made_keys=True, by_default=False
    ),
}


@dataclass(frozen=True)
class Table:
    """A table of one section, or of none if it is computed."""

    section: str | None
    make: Callable[[Record], tuple[Sequence[str], Sequence[Sequence[str]]]]


# --- cells


def number(value: float | None, digits: int = 0) -> str:
    """A number for a cell."""
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 2) -> str:
    """A share for a cell."""
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def ratio(value: Sequence[float] | None) -> str:
    """A ratio with its quartiles."""
    return "-" if value is None else f"{value[0]:.2f} ({value[1]:.2f}-{value[2]:.2f})"


def met(row: Record) -> str:
    """Whether a bar is met."""
    return "met" if row["met"] else "**missed**"


# --- tables

PEERS_SHOWN = (
    "LearnedFilter", "CuckooFilter", "CountingBloomFilter", "rbloom", "fastbloom-rs", "fastbloom-rs counting",
    "pybloomfiltermmap3", "pyfusefilter Fuse8",
)  # fmt: skip


def _peers(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = {row["name"]: row for row in record["rows"]}
    shown = []
    for name in PEERS_SHOWN:
        row = rows[name]
        title = f"dlbf `{name}`" if row["keeps"].endswith("checksummed") else name
        if row["error"]:
            shown.append([title, *["-"] * 5, f"did not run: {row['error']}"])
            continue
        shown.append(
            [
                title,
                number(row["bits_per_key"], 1),
                percent(row["fpr"]),
                number(row["query_absent_ns"]),
                number(row["batch_absent_ns"]),
                "no" if "remove" in row["cannot"] else "yes",
                row["keeps"],
            ]
        )
    headings = ("filter", "bits per key", "measured FPR", "ns per `in`", "ns per key, batch", "deletes", "kept as")
    return headings, shown


def _filters(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    shown = []
    for row in record["rows"]:
        title = f"{row['name']} {row['version']}"
        if row["error"]:
            shown.append([title, *["-"] * 9, f"did not run: {row['error']}"])
            continue
        shown.append(
            [
                title,
                number(row["bits_per_key"], 1),
                percent(row["fpr"]),
                number(row["add_ns"]),
                number(row["query_absent_ns"]),
                ratio(row["query_absent_ratio"]),
                number(row["query_present_ns"]),
                number(row["batch_absent_ns"]),
                ratio(row["batch_absent_ratio"]),
                number(row["remove_ns"]),
                ", ".join(row["cannot"]) or "-",
            ]
        )
    return (
        ("filter", "bits per key", "FPR", "add, ns", "absent, ns", "to rbloom", "present, ns", "batch, ns",
         "to rbloom's `in`", "remove, ns", "cannot"),
        shown,
    )  # fmt: skip


def _which_filter(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    import dlbf

    n = 1_000_000
    words = {
        "CuckooFilter": ("yes", "the smallest deletable filter, smaller than a Bloom filter below about 2 %"),
        "CountingBloomFilter": (
            "yes",
            "keys added many times, `count(key)`, filters that may be overfilled; a large one keeps a quarter more in "
            "memory (not in files), for speed",
        ),
        "SuccinctCountingFilter": (
            "yes", "the same counts in half the space, asked as fast as a `BloomFilter`; up to its capacity"
        ),
        "DLeftFilter": ("yes", "keys added many times at half the size of counters"),
        "DeletableBloomFilter": ("most", "a Bloom filter that can forget where nothing collides"),
        "BloomFilter": ("no", "the fastest single query"),
    }  # fmt: skip
    rows = [
        [
            f"`{name}`",
            " / ".join(f"{8 * getattr(dlbf, name)(n, fpr).nbytes / n:.1f}" for fpr in (0.01, 0.001)),
            removes,
            use,
        ]
        for name, (removes, use) in words.items()
    ]
    rows.append(["`ExactSet`", "the keys", "yes", "no false positives at all"])
    return ("class", "bits per key at 1 % / 0.1 %", "removes", "choose it for"), rows


def _learned_sizes(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [
            row["split"],
            f"{row['keys']:,}",
            f"{100 * row['fpr_target']:g} %, D ≥ {row['deletability_target']:g}",
            f"**{row['bits_per_key']:.2f}**",
            percent(row["fpr"], 3),
            number(row["deletability"], 3),
            str(row["lost_keys"]),
            row["model"],
        ]
        for row in record["sizes"]
    ]
    headings = ("split", "keys", "target", "bits per key", "FPR", "deletability", "lost keys", "model")
    return headings, rows


def _learned_speed(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    times = record["queries"]
    rows = []
    for title, name in (
        ("`key in lf`", "learned"), ("`lf.contains_many`, per key", "learned, batch"),
        ("`key in CuckooFilter`", "CuckooFilter"), ("rbloom", "rbloom"),
    ):  # fmt: skip
        if f"{name} ns" not in times:
            rows.append([title, "-", str(times.get(name, "did not run"))])
            continue
        against = times.get(f"{name} / rbloom")
        rows.append([title, number(times[f"{name} ns"]), "1" if name == "rbloom" else ratio(against)])
    if "learnedbf ns" in times:
        rows.append(
            ["learnedbf, one row", number(times["learnedbf ns"]),
             f"{times['learnedbf / learned']:,.0f} times `key in lf`"]
        )  # fmt: skip
    else:
        rows.append(["learnedbf, one row", "-", str(times["learnedbf"])])
    return ("absent key", "ns", "to rbloom"), rows


def _learned_fit(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    fit = record["fit"]
    rows = [
        [f"`LearnedFilter.fit`, model `{kind}`", f"{fit[f'fit {kind} s']:.1f}",
         f"{fit[f'fit {kind} / scikit-learn']:.2f}"]
        for kind in ("ngram", "auto")
    ]  # fmt: skip
    rows.append(["HashingVectorizer (3-grams) and SGDClassifier", f"{fit['scikit-learn s']:.1f}", "1"])
    heading = f"fitting {fit['keys']:,} keys and {fit['negatives']:,} negatives; {fit['peak MiB']:,.0f} MiB at most"
    return (heading, "seconds", "to scikit-learn"), rows


def _designs(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    def pair(row: Record, name: str) -> str:
        return "-" if row[name] is None else f"{row[name]:.5f} ({row[f'{name}_planned']:.5f})"

    rows = []
    for row in record["designs"]:
        if "error" in row:
            rows.append([row["design"], row["error"], *["-"] * 5])
            continue
        cells = [pair(row, name) for name in ("fpr", "fnr", "deletability", "adversarial_fpr")]
        rows.append([row["design"], f"{row['bits_per_key']:.2f}", *cells, number(row["query_absent_ns"])])
    return ("design", "bits per key", "FPR", "FNR", "deletability", "forged keys that pass", "ns"), rows


def _models_worth(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [
            row["split"],
            f"{row['nbytes']:,}",
            f"int{row['weight_bits']}",
            f"{row['kl']:.2f}",
            *(f"{row[name]:.2f}" for name in ("bits_0.01_0", "bits_0.001_0", "bits_0.01_0.9", "bits_0.001_0.9")),
            f"{row['kl_float']:.2f} / {row['kl_integer']:.2f}",
        ]
        for row in record["quality"]
    ]
    targets = [f"{fpr} %, {how}" for how in ("D free", "D = 0.9") for fpr in ("1", "0.1")]
    return ("split", "bytes", "weights", "KL", *targets, "KL as trained / as integers"), rows


def _models_time(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [
            f"`{row['kind']}`, {row['form']}, {row['nbytes']:,} bytes",
            words,
            *(f"{row[name][time]:,.0f} ns" for time in ("score_ns", "score_many_ns", "lmdb_miss_ns")),
            f"{row[name]['score_ratio']:.3f} / {row[name]['score_many_ratio']:.3f}",
            f"{row['predict_ns'] / row[name]['score_ns']:,.0f}" if "predict_ns" in row else "-",
        ]
        for row in record["speed"]
        for name, words in (("fresh", "fresh"), ("same", "the same"))
    ]
    headings = (
        "model", "keys", "`score`", "`score_many`, per key", "LMDB miss", "ratios", "scikit-learn, one row, to `score`",
    )  # fmt: skip
    return headings, rows


def _store_engines(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [name, fact.get("version", "-"), "-", "-", f"did not run: {fact['error']}"]
        if fact["error"]
        else [
            name,
            fact["version"],
            number(fact["load_us_per_key"], 1),
            number(fact["filter_bits_per_key"], 1),
            ", ".join(fact["cannot"]) or "-",
        ]
        for name, fact in record["engines"].items()
    ]
    return ("store", "version", "load, µs per key", "filter, bits per key", "cannot"), rows


def _store(temperature: str) -> Callable[[Record], tuple[Sequence[str], Sequence[Sequence[str]]]]:
    def make(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        names = [name for name, fact in record["engines"].items() if not fact["error"]]
        rows = []
        for case in record["cases"]:
            if case["temperature"] != temperature:
                continue
            times = case["ns"]
            best = min(times, key=times.__getitem__)
            cells = []
            for name in names:
                if name not in times:
                    cells.append("-")
                    continue
                text = f"{times[name] / 1000:,.2f}"
                if temperature == "cold":
                    text += f" ({case['pages'][name]:.2f})"
                cells.append(f"**{text}**" if name == best else text)
            spread = case["ratio"].get("dlbf Store")
            rows.append([f"{case['mix']}, {100 * case['absent_share']:.0f} %", *cells, ratio(spread)])
        return ("mix, absent reads", *names, "dlbf Store to py-lmdb"), rows

    return make


def _store_bars(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [
            row["store"],
            f"{row['mix']}, {100 * row['absent_share']:.0f} %",
            row["temperature"],
            row["against"],
            f"{row['ratio']:.2f}",
            "{:.2f}-{:.2f}".format(*row["quartiles"]),
            f"{row['at_most']:g}",
            met(row),
        ]
        for row in record["bars"]
    ]
    headings = ("store", "mix, absent reads", "", "compared with", "best to best", "half of the turns", "at most", "")
    return headings, rows


def _scale(figure: str) -> Callable[[Record], tuple[Sequence[str], Sequence[Sequence[str]]]]:
    def make(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        sizes = record["sizes"]
        rows = [
            [
                name,
                *(number(size["filters"][name][figure], 1 if figure == "bits" else 0) for size in sizes),
                f"{record['slopes'][name][figure]:+.3f}",
            ]
            for name, filters in sizes[0]["filters"].items()
            if figure in filters
        ]
        return ("filter", *(f"{size['keys']:,}" for size in sizes), "slope"), rows

    return make


def _scale_store(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    from dlbf.bench.scale import STORE_FIGURES

    rows = []
    for figure, (title, unit) in STORE_FIGURES.items():
        slope = record["store_slopes"].get(figure)
        values = [number(size["store"][figure], 0 if unit == "ns" else 2) for size in record["sizes"]]
        rows.append([f"{title}, {unit}", *values, "-" if slope is None else f"{slope:+.3f}"])
    peaks = [number(size["peak_bytes"] / 2**20) for size in record["sizes"]]
    rows.append(["peak memory of measuring all of it, MiB", *peaks, "-"])
    return ("", *(f"{size['keys']:,}" for size in record["sizes"]), "slope"), rows


def _scale_bars(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [[row["what"], f"{row['growth']:.2f}", f"{row['at_most']:.2f}", met(row)] for row in record["bars"]]
    return ("what", "growth from a million keys to the largest set", "at most", ""), rows


def measured(found: Record | None) -> str:
    """A rate with its 99 % interval."""
    if found is None:
        return "-"
    low, high = found["interval_99"]
    return f"{100 * found['value']:.2f} % ({100 * low:.2f}-{100 * high:.2f})"


def bound(value: float) -> str:
    """A bound that is worth the name, in percent."""
    return "none" if value > 0.5 else f"{100 * value:.3g} %"


ATTACK_NAMES = ("black-box mutation", "white-box mutation", "hash collision", "pollution", "deletion")


def _attacks(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [
            row["name"],
            number(row["bits_per_key"], 2),
            bound(row["adversarial_fpr_planned"]) if row["keyed"] else "none",
            percent(row["fpr"]["value"]),
            *(measured(row.get(name)) for name in ATTACK_NAMES),
            f"{sum(row[name]['lost_keys'] for name in ATTACK_NAMES if name in row):,}",
        ]
        for row in record["attacks"]
    ]
    return ("design", "bits per key", "planned bound", "ordinary FPR", *ATTACK_NAMES, "lost keys"), rows


def _attacked_store(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [
            row["attack"],
            bound(row["stated_bound"]),
            measured(row),
            str(row["lost_keys"]),
            f"{row['keys_before']:,} / {row['keys_after']:,}",
            f"{row['filter_bytes_before']:,} / {row['filter_bytes_after']:,}",
        ]
        for row in record["store"]
    ]
    return (
        "attack",
        "stated bound",
        "measured",
        "lost keys",
        "keys before / after",
        "filter bytes before / after",
    ), rows


def _games(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [row["challenge"], row["target"], row["attack"], bound(row["bound"]), measured(row["forged"]),
         f"{row['refused']:,}"]
        for row in record["games"]
    ]  # fmt: skip
    return ("game", "target", "attack", "bound", "success", "insertions refused"), rows


def _price(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [
            f"{100 * row['adversarial FPR']:.3g} %",
            *(number(row[name], 1) for name in ("FPR 0.01", "FPR 0.001", "floor")),
        ]
        for row in record["price"]["curve"][::3]
    ]
    return ("`adversarial_fpr`", "FPR 1 %", "FPR 0.1 %", "the bound alone"), rows


def _defence_cost(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [row["what"], f"{row['with_ns']:.0f} ns", f"{row['without_ns']:.0f} ns", ratio(row["ratio"])]
        for row in record["cost"]
    ]
    return ("absent key", "with", "without", "ratio"), rows


def _hybrid(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    found = record["hybrid"]
    rows = [
        [
            percent(share, 0),
            *(f"{percent(found[name][i])} ({percent(found[f'{name}_predicted'][i])})" for name in ("learned", "plain")),
        ]
        for i, share in enumerate(found["shares"])
        if i % 2 == 0
    ]
    return ("adversarial share", "bodega, measured (predicted)", "secure-bloom, measured (predicted)"), rows


def _guard_rocksdb(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    found = record["rocksdb"]
    rows = [
        [name, number(absent["ns"]), ratio(absent["peer_over_this"]), number(found["present"][name]["ns"])]
        for name, absent in found["absent"].items()
    ]
    return ("", "absent, ns", "RocksDB's Bloom filter to it", "present, ns"), rows


def _guard_costs(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    names = ("absent", "present", "put new", "overwrite", "delete", "batch of new")
    rows = [
        [
            row["engine"],
            f"{row['keys']:,}",
            *(f"{row[name]['bare_ns'] / 1e3:,.2f} / {row[name]['guarded_ns'] / 1e3:,.2f}" for name in names),
        ]
        for row in record["costs"]
    ]
    return ("engine", "keys", *names), rows


def _replay(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    def count(name: str) -> str:
        return f"{record[name]:,}"

    rows = [
        ["batches", count("batches")],
        ["insertions / deletions / re-insertions", " / ".join(map(count, ("insertions", "deletions", "reinsertions")))],
        ["keys missed", count("missed_keys")],
        ["rate, all / worst batch", f"{percent(record['fpr_overall'])} / {percent(record['fpr_worst_batch'])}"],
        ["batches above 1.5 times the target", count("batches_above_bar")],
        ["rebuilds", count("rebuilds")],
        ["bits per live key, mean / at the end",
         f"{record['bits_per_live_key']:.1f} / {record['bits_per_live_key_at_end']:.1f}"],
    ]  # fmt: skip
    return ("replay", ""), rows


def _claims(record: Record) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    from dlbf.theory.figures import published_claims

    rows = [
        [claim.statement, claim.published, claim.computed, "" if claim.agrees else "differs"]
        for claim in published_claims()
    ]
    return ("statement", "published", "computed", ""), rows


TABLES = {
    "claims": Table(None, _claims),
    "attacks": Table("attacks", _attacks),
    "attacked-store": Table("attacks", _attacked_store),
    "games": Table("games", _games),
    "price": Table("bounds", _price),
    "defence-cost": Table("bounds", _defence_cost),
    "hybrid": Table("bounds", _hybrid),
    "guard-rocksdb": Table("guard", _guard_rocksdb),
    "guard-costs": Table("guard", _guard_costs),
    "replay": Table("replay", _replay),
    "which-filter": Table(None, _which_filter),
    "peers": Table("filters", _peers),
    "filters": Table("filters", _filters),
    "learned-sizes": Table("learned", _learned_sizes),
    "learned-speed": Table("learned", _learned_speed),
    "learned-fit": Table("learned", _learned_fit),
    "designs": Table("designs", _designs),
    "models-worth": Table("models", _models_worth),
    "models-time": Table("models", _models_time),
    "store-engines": Table("store", _store_engines),
    "store-warm": Table("store", _store("warm")),
    "store-cold": Table("store", _store("cold")),
    "store-bars": Table("store", _store_bars),
    "scale-build": Table("scale-large", _scale("build")),
    "scale-absent": Table("scale-large", _scale("absent")),
    "scale-present": Table("scale-large", _scale("present")),
    "scale-store": Table("scale-large", _scale_store),
    "scale-bars": Table("scale-large", _scale_bars),
}


# --- figures that no record has as they are


def _over_bound(record: Record) -> float:
    """The most that a mutation or collision got of a planned bound."""
    return max(
        float(row[attack]["value"] / row["adversarial_fpr_planned"])
        for row in record["attacks"]
        if row["keyed"] and row["adversarial_fpr_planned"] <= 0.5
        for attack in ("black-box mutation", "white-box mutation", "hash collision")
        if attack in row
    )


def _bodega_crossover(name: str) -> Callable[[Record], float]:
    def find(record: Record) -> float:
        from dlbf.theory.figures import bodega_crossovers

        return bodega_crossovers()[name]

    return find


DERIVED: dict[str, tuple[str | None, Callable[[Record], float]]] = {
    "attacked-without-secret": ("attacks", lambda record: sum(not row["keyed"] for row in record["attacks"])),
    "attacks-over-bound": ("attacks", _over_bound),
    "bodega-crossover-predicted": (None, _bodega_crossover("predicted")),
    "bodega-crossover-measured": (None, _bodega_crossover("measured")),
    "bodega-crossover-one-hash": (None, _bodega_crossover("one_hash")),
}


# --- records


def read_record(section: str, root: Path = ROOT) -> dict[str, Any]:
    """What was recorded of a section."""
    path = root / FIGURES_FOLDER / f"{section}.json"
    if not path.exists():
        raise FileNotFoundError(f'{path}: not recorded yet; run: make tables SECTIONS="{section}"')
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _without_plans(value: Any) -> Any:
    """The figures without the explanations, which are long and in no table."""
    if isinstance(value, dict):
        return {name: _without_plans(inner) for name, inner in value.items() if name != "plan"}
    return [_without_plans(inner) for inner in value] if isinstance(value, list) else value


def record(name: str, root: Path = ROOT, more: Sequence[str] = ()) -> Path:
    """Run a section's command and write what it prints.

    Parameters
    ----------
    name : str
        One of ``SECTIONS``.
    root : path
        The checkout.
    more : sequence of str
        Further arguments of the command.
    """
    section = SECTIONS[name]
    environment = {key: value for key, value in os.environ.items() if not (section.made_keys and key == "DLBF_DATA")}
    done = subprocess.run(
        [sys.executable, "-m", "dlbf", "bench", *section.arguments, *more, "--json"],
        stdout=subprocess.PIPE, text=True, env=environment, cwd=root, check=False,
    )  # fmt: skip
    # A section that has found a bar missed exits with 1, after its figures.
    if done.returncode and not (done.returncode == 1 and done.stdout.startswith("{")):
        raise subprocess.CalledProcessError(done.returncode, section.command)
    printed = {key: value for key, value in json.loads(done.stdout).items() if key not in section.dropped}
    figures = {"command": section.command, **_without_plans(printed)}
    path = root / FIGURES_FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")
    return path


# --- markdown


def render(name: str, root: Path = ROOT) -> str:
    """A table as markdown, and under it where its figures come from; or that it has not been recorded."""
    known = TABLES.get(name)
    if known is not None:
        if known.section is not None and not (root / FIGURES_FOLDER / f"{known.section}.json").exists():
            return f'*Not recorded yet; `make tables SECTIONS="{known.section}"` does it.*\n'
        found: dict[str, Any] = {} if known.section is None else read_record(known.section, root)
        headings, rows = known.make(found)
    else:
        for path in sorted((root / FIGURES_FOLDER).glob("*.json")):
            found = json.loads(path.read_text())
            if name in found.get("tables", {}):
                headings, rows = found["tables"][name]["headings"], found["tables"][name]["rows"]
                break
        else:
            raise KeyError(f"no table {name!r}; there are: {', '.join(sorted(TABLES))}, and those that records bring")
    lines = [f"| {' | '.join(headings)} |", "|" + "|".join(_alignment(rows, i) for i in range(len(headings))) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in map(str, row))} |" for row in rows]
    if "machine" in found:
        where = found["machine"]
        data = f"; {found['data']}" if "data" in found else ""
        lines += [
            "",
            f"<sub>`{found['command']}`{data}; {where['processor']}, {where['cores']} cores, {where['memory']}, "
            f"Python {where['python']}, commit {where['commit']}, {where['date']}</sub>",
        ]
    return "\n".join(lines) + "\n"


def _alignment(rows: Sequence[Sequence[str]], column: int) -> str:
    """Numbers to the right."""
    cells = [str(row[column]).strip("*") for row in rows if str(row[column]) not in ("-", "")]
    return "---:" if cells and all(re.match(r"[+<-]?\d", cell) for cell in cells) else "---"


def figure(path: str, spec: str, root: Path = ROOT) -> str:
    """One number: a path into a section's record, or ``derived`` and a name; and a Python format."""
    section, *steps = path.strip().split("/")
    if section == "derived":
        source, derive = DERIVED["/".join(steps)]
        return format(derive({} if source is None else read_record(source, root)), spec)
    value: Any = read_record(section, root)
    for step in steps:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return format(value, spec)


def rewrite(text: str, root: Path = ROOT) -> str:
    """A markdown file with every table and figure as the records give it."""
    text = BLOCK.sub(lambda found: found[1] + render(found["name"], root) + found[4], text)
    return INLINE.sub(lambda found: found[1] + figure(found["path"], found["format"], root) + found[5], text)


def documents(root: Path = ROOT) -> list[Path]:
    """README and all pages of the documentation."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m dlbf.bench.tables``: record sections, then rewrite the files; 1 if a section failed."""
    parser = argparse.ArgumentParser(prog="python -m dlbf.bench.tables", description=main.__doc__)
    parser.add_argument("sections", nargs="*", help=f"all, or some of: {', '.join(SECTIONS)}")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    arguments = parser.parse_args(argv)
    wanted = list(arguments.sections)
    if wanted == ["all"]:
        wanted = [name for name, section in SECTIONS.items() if section.by_default]
    unknown = sorted(set(wanted) - set(SECTIONS))
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; there are: {', '.join(SECTIONS)}")
    failed = []
    for name in wanted:
        start = time.monotonic()
        print(f"{name}: {SECTIONS[name].command}", flush=True)
        try:
            record(name, arguments.root)
        except (subprocess.CalledProcessError, ValueError, OSError) as error:
            failed.append(name)
            print(f"{name}: failed, its old record stays: {error}", flush=True)
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    for path in documents(arguments.root):
        text = path.read_text()
        try:
            new = rewrite(text, arguments.root)
        except (OSError, KeyError, IndexError) as error:
            failed.append(path.name)
            print(f"{path.name}: left as it is: {error}", flush=True)
            continue
        if new != text:
            path.write_text(new)
            print(f"{path.name}: rewritten", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
