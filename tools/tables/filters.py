"""The tables of filters, learned filters and models."""

import numpy as np

import dlbf
from dlbf.filters.ribbon_sizes import ribbon_bytes, ribbon_geometry
from tools.tables.cells import Grid, Record, Table, met, number, percent, ratio

__all__ = ["TABLES"]

PEERS_SHOWN = (
    "LearnedFilter", "CuckooFilter", "CountingBloomFilter", "rbloom", "fastbloom-rs", "fastbloom-rs counting",
    "pybloomfiltermmap3", "pyfusefilter Fuse8",
)  # fmt: skip


def _peers(record: Record) -> Grid:
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


def _filters(record: Record) -> Grid:
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


def _which_filter(record: Record) -> Grid:
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
        "GrowingFilter": ("yes", "no idea how many keys there will be: it grows without them and keeps its rate"),
        "RibbonFilter": (
            "no, nor adds", "sets that do not change: the smallest without a model, built once (`RibbonFilter.build`)"
        ),
        "ElasticBloomFilter": (
            "yes", "the published filter that doubles and halves without its keys; `contains(key, exact=True)`"
        ),
    }  # fmt: skip

    def bits_per_key(name: str, fpr: float) -> float:
        if name == "RibbonFilter":
            return 8 * ribbon_bytes(ribbon_geometry(n, fpr)) / n
        if name == "GrowingFilter":
            grown = dlbf.GrowingFilter(fpr)
            grown.update(np.arange(n))
            return grown.bits_per_key
        return float(8 * getattr(dlbf, name)(n, fpr).nbytes / n)

    rows = [
        [
            f"`{name}`",
            " / ".join(f"{bits_per_key(name, fpr):.1f}" for fpr in (0.01, 0.001)),
            removes,
            use,
        ]
        for name, (removes, use) in words.items()
    ]
    rows.append(["`ExactSet`", "the keys", "yes", "no false positives at all"])
    return ("class", "bits per key at 1 % / 0.1 %", "removes", "choose it for"), rows


def _learned_sizes(record: Record) -> Grid:
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


def _learned_speed(record: Record) -> Grid:
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


def _learned_fit(record: Record) -> Grid:
    fit = record["fit"]
    rows = [
        [f"`LearnedFilter.fit`, model `{kind}`", f"{fit[f'fit {kind} s']:.1f}",
         f"{fit[f'fit {kind} / scikit-learn']:.2f}"]
        for kind in ("ngram", "auto")
    ]  # fmt: skip
    rows.append(["HashingVectorizer (3-grams) and SGDClassifier", f"{fit['scikit-learn s']:.1f}", "1"])
    heading = f"fitting {fit['keys']:,} keys and {fit['negatives']:,} negatives; {fit['peak MiB']:,.0f} MiB at most"
    return (heading, "seconds", "to scikit-learn"), rows


def _learned_peers(record: Record) -> Grid:
    rows = []
    for row in record["rows"]:
        title = f"{100 * row['fpr_target']:g} %, {row['name']}"
        if row["error"]:
            rows.append([title, row["code"], *["-"] * 7, row["error"]])
            continue
        rows.append(
            [
                title, row["code"], f"{row['bits_per_key']:.2f}",
                f"{percent(row['fpr_planned'], 3)} / {percent(row['fpr'], 3)}", number(row["over_planned"], 2),
                number(row["over_target"], 2), f"{number(row['query_ns'])} / {number(row['batch_ns'])}",
                number(row["build_seconds"], 1), "yes" if row["deletable"] else "no", ", ".join(row["cannot"]) or "-",
            ]
        )  # fmt: skip
    headings = (
        "target, filter", "code", "bits per key", "planned / measured", "measured to planned", "to the target",
        "ns, alone / in a batch", "build, s", "deletes", "cannot",
    )  # fmt: skip
    return headings, rows


def _clbf(record: Record) -> Grid:
    rows = [[row["what"], f"{row['found']:.3f}", f"{row['at_most']:.3f}", met(row)] for row in record["bars"]]
    return ("CLBF's claim beside PLBF, asked of ours", "found", "at most", ""), rows


def _designs(record: Record) -> Grid:
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


def _models_worth(record: Record) -> Grid:
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


def _models_time(record: Record) -> Grid:
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


TABLES = {
    "which-filter": Table(None, _which_filter),
    "peers": Table("filters", _peers),
    "filters": Table("filters", _filters),
    "learned-sizes": Table("learned", _learned_sizes),
    "learned-speed": Table("learned-times", _learned_speed),
    "learned-fit": Table("learned-times", _learned_fit),
    "learned-peers": Table("learned-peers", _learned_peers),
    "clbf": Table("learned-peers", _clbf),
    "designs": Table("designs", _designs),
    "models-worth": Table("models", _models_worth),
    "models-time": Table("models", _models_time),
}
