"""The tables of stores, guards, hosts, large sets and replayed histories."""

from collections.abc import Callable

from dlbf.bench.scale_results import STORE_FIGURES
from tools.tables.cells import Grid, Record, Table, met, number, percent, ratio

__all__ = ["TABLES"]


def _store_engines(record: Record) -> Grid:
    rows = [
        [name, fact.get("version", "-"), "-", "-", "-", f"did not run: {fact['error']}"]
        if fact["error"]
        else [
            name,
            fact["version"],
            number(fact["load_us_per_key"], 1),
            number(fact["filter_bits_per_key"], 1),
            fact.get("filter_design") or "-",
            ", ".join(fact["cannot"]) or "-",
        ]
        for name, fact in record["engines"].items()
    ]
    return ("store", "version", "load, µs per key", "filter, bits per key", "filter", "cannot"), rows


def _store(temperature: str) -> Callable[[Record], Grid]:
    def make(record: Record) -> Grid:
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


def _store_bars(record: Record) -> Grid:
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


def _scale(figure: str) -> Callable[[Record], Grid]:
    def make(record: Record) -> Grid:
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


def _scale_store(record: Record) -> Grid:
    rows = []
    for figure, (title, unit) in STORE_FIGURES.items():
        slope = record["store_slopes"].get(figure)
        values = [number(size["store"][figure], 0 if unit == "ns" else 2) for size in record["sizes"]]
        rows.append([f"{title}, {unit}", *values, "-" if slope is None else f"{slope:+.3f}"])
    peaks = [number(size["peak_bytes"] / 2**20) for size in record["sizes"]]
    rows.append(["peak memory of measuring all of it, MiB", *peaks, "-"])
    return ("", *(f"{size['keys']:,}" for size in record["sizes"]), "slope"), rows


def _scale_bars(record: Record) -> Grid:
    rows = [[row["what"], f"{row['growth']:.2f}", f"{row['at_most']:.2f}", met(row)] for row in record["bars"]]
    return ("what", "growth from a million keys to the largest set", "at most", ""), rows


def _guard_rocksdb(record: Record) -> Grid:
    rocksdb = record["rocksdb"]
    rows = [
        [name, number(absent["ns"]), ratio(absent["peer_over_this"]), number(rocksdb["present"][name]["ns"])]
        for name, absent in rocksdb["absent"].items()
    ]
    return ("", "absent, ns", "RocksDB's Bloom filter to it", "present, ns"), rows


def _guard_costs(record: Record) -> Grid:
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


def _counts(*names: str) -> Callable[[Record], str]:
    return lambda record: " / ".join(f"{record[name]:,}" for name in names)


def _chosen(record: Record) -> str:
    """How many batches each kind of filter answered."""
    return ", ".join(f"{name} {n:,}" for name, n in record["batches_by_design"].items())


REPLAY_ROWS: dict[str, Callable[[Record], str]] = {
    "batches": _counts("batches"),
    "insertions / deletions / re-insertions": _counts("insertions", "deletions", "reinsertions"),
    "keys missed": _counts("missed_keys"),
    "rate, all / worst batch": lambda one: f"{percent(one['fpr_overall'])} / {percent(one['fpr_worst_batch'])}",
    "batches above 1.5 times the target": _counts("batches_above_bar"),
    "rate of keys it never met, all / worst ten batches": lambda one: (
        f"{percent(one['fpr_unseen'])} / {percent(one['fpr_unseen_worst'])}"
    ),
    "needless reads: ordinary / deleted / repeated": lambda one: " / ".join(
        f"{one['needless_reads'][cause]:,}" for cause in ("ordinary", "deleted", "repeated")
    ),
    "spared by what is remembered": lambda one: f"{one['needless_reads']['remembered']:,}",
    "rebuilds": _counts("rebuilds"),
    "bits per live key, mean / at the end": lambda one: (
        f"{one['bits_per_live_key']:.1f} / {one['bits_per_live_key_at_end']:.1f}"
    ),
    "of the mean, for keys that are remembered": lambda one: number(one["bits_remembered"], 1),
    "batches answered by": _chosen,
}


def _replay(record: Record) -> Grid:
    designs = record["designs"]
    rows = [[title, *map(cell, designs.values())] for title, cell in REPLAY_ROWS.items()]
    return ("replay", *(f"`{name}`" for name in designs)), rows


def _replay_bars(record: Record) -> Grid:
    rows = [
        [row["store"], row["what"], f"{row['found']:,.2f}", f"{row['at_most']:g}", met(row)] for row in record["bars"]
    ]
    return ("store", "what", "found", "at most", ""), rows


def _layers(record: Record) -> Grid:
    rows = [
        [
            f"after a rebuild, {row['name']}", f"{row['bits_per_key']:.2f}", f"{row['at_most']:g}",
            percent(row["measured_fpr"], 2), f"{row['model_bytes']:,}", f"{row['missed_keys']:,}",
        ]
        for row in record["sizes"]
    ]  # fmt: skip
    life, grown = record["life"], record["growing"]
    bars = {bar["what"]: bar["at_most"] for bar in record["bars"]}
    rows += [
        [
            "0.01, worst case 0.1, from rebuild to rebuild: 5 % added, 1 % deleted", f"{life['mean_bits']:.2f}",
            f"{bars['bits per key, from rebuild to rebuild']:g}", percent(life["worst_fpr"], 2), "-",
            f"{life['missed_keys']:,}",
        ],
        [
            f"0.01, no model, growing to {grown['keys']:,} keys, at most", f"{grown['most_bits']:.2f}",
            f"{bars['bits per key, while growing without a model']:g}", "-", "0", f"{grown['missed_keys']:,}",
        ],
    ]  # fmt: skip
    return ("store", "bits per key", "at most", "rate of unseen keys", "bytes of the model", "keys missed"), rows


def _fleet(record: Record) -> Grid:
    costs = record["costs"]
    reads, puts = costs["reads"], costs["puts"]
    rows = [
        [what, f"{middle:,.0f}", f"{low:,.0f}-{high:,.0f}"]
        for what, (middle, low, high) in {
            "`SET` by the client, without a guard": puts["bare"],
            "put of a new key, four other hosts read": puts["new"],
            "put over an existing key": puts["over"],
        }.items()
    ]
    rows += [
        ["absent `get`, a round trip without a guard", f"{reads['trip_ns'] / 1e3:,.0f}", ""],
        ["absent `get`, a host with a lease", f"{reads['host_ns'] / 1e3:.2f}", ""],
        ["absent `get`, a guard of one host", f"{reads['local_ns'] / 1e3:.2f}", ""],
    ]
    return ("operation", "µs, median", "a tenth to nine tenths"), rows


def _fleet_bars(record: Record) -> Grid:
    rows = [[row["what"], f"{row['found']:,.2f}", f"{row['bar']:g}", met(row)] for row in record["bars"]]
    return ("what", "found", "bar", ""), rows


def _distribution(record: Record) -> Grid:
    rows = [[what, number(n_bytes)] for what, n_bytes in record["sizes"].items()]
    return (f"{record['keys']:,} keys, {100 * record['fpr']:g} %, without a model", "bytes"), rows


TABLES = {
    "distribution": Table("distribution", _distribution),
    "fleet": Table("fleet", _fleet),
    "fleet-bars": Table("fleet", _fleet_bars),
    "layers": Table("layers", _layers),
    "guard-rocksdb": Table("guard", _guard_rocksdb),
    "guard-costs": Table("guard", _guard_costs),
    "replay": Table("replay", _replay),
    "replay-bars": Table("replay", _replay_bars),
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
