"""``dlbf bench scale``: what a key costs in small sets and in large ones.

Every size is measured in a process of its own, so that memory is that of the size.  Keys are made in batches and
forgotten; a key is a function of its number, so that any of them can be made again.  What happens once (building,
loading, rebuilding) is told in processor time; the rest is the best of many short turns.
"""

import contextlib
import gc
import json
import math
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dlbf
from dlbf.bench.contenders import OURS, PEERS, ask_each, size_in_bits
from dlbf.bench.timing import side_by_side

__all__ = ["FIGURES", "bars", "draw", "make_keys", "measure", "measure_size", "slope"]

SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
FPR = 0.01
BATCH = 100_000
# The learned filter is fitted to so many keys, with room for the others, which are then added.  Its build time is that
# of adding; fitting takes the same time at every size and is told apart.
LEARN_FROM = 100_000
LEARNED_ROOM = 1.1
RECOVERY_COMMITS = 200
ABSENT = 1 << 40  # numbers from here on belong to no stored key
PEER = "rbloom"
SCALED = ("CuckooFilter", "CountingBloomFilter", "BloomFilter", "BloomFilter blocked")
Say = Callable[[str], None]
Contenders = dict[str, Callable[[Sequence[bytes]], object]]

# name in the results -> heading and unit
FIGURES = {
    "build": ("build", "ns per key"),
    "absent": ("query, absent key", "ns"),
    "present": ("query, present key", "ns"),
    "batch": ("batch of absent keys", "ns per key"),
    "bits": ("size", "bits per key"),
}
STORE_FIGURES = {
    "load_us": ("load, batches of 100,000", "µs per key"),
    "lmdb_load_us": ("the same in py-lmdb", "µs per key"),
    "absent_ns": ("get, absent key", "ns"),
    "present_ns": ("get, present key", "ns"),
    "lmdb_present_ns": ("the same in py-lmdb", "ns"),
    "rebuild_us": ("rebuild", "µs per key"),
    "open_ms": ("open", "ms"),
    "first_read_ms": ("first read", "ms"),
    "loaded_ms": ("until the filter answers; larger ones are loaded beside the reads", "ms"),
    "recovery_ms": (f"open and read after a kill, {RECOVERY_COMMITS} commits since the checkpoint", "ms"),
    "recovered_ms": ("the same until the filter answers", "ms"),
    "reader_bytes_per_key": ("private memory of a reader", "bytes per key"),
}


def make_keys(numbers: Any) -> list[bytes]:
    """Keys of 26 bytes, with a little structure for a model to learn; the same number gives the same key.

    Parameters
    ----------
    numbers : array of int
        From ``ABSENT`` on they are of another kind.

    Examples
    --------
    >>> make_keys(np.array([0, 1]))[0] == make_keys(np.array([0]))[0], len(set(make_keys(np.arange(1000))))
    (True, 1000)
    """
    values = np.asarray(numbers, dtype=np.uint64)
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    text = mixed.astype(">u8").tobytes().hex().encode()
    # Every tenth key looks like one of the other kind: no model is perfect.
    odd = (mixed % np.uint64(10) == 0).tolist()
    absent = (values >= ABSENT).tolist()
    return [
        (b"news/page/" if absent[i] != odd[i] else b"cdn7/files") + text[16 * i : 16 * i + 16]
        for i in range(len(absent))
    ]


def batches(n_keys: int) -> Iterator[list[bytes]]:
    """All keys of a size, a batch at a time."""
    for first in range(0, n_keys, BATCH):
        yield make_keys(np.arange(first, min(first + BATCH, n_keys)))


def _contenders(n_keys: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The filters by name, empty, and why others do not take part."""
    made: dict[str, Any] = {name: OURS[name].make(n_keys, FPR) for name in SCALED}
    missing = {}
    try:
        made[PEER] = PEERS[PEER].make(n_keys, FPR)
    except Exception as error:  # a missing or broken peer is named, whatever it raises
        missing[PEER] = f"{type(error).__name__}: {error}"
    return made, missing


def _filters(n_keys: int, rounds: int, say: Say) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    filters, missing = _contenders(n_keys)
    seconds: dict[str, float] = dict.fromkeys(filters, 0.0)
    learnt = min(LEARN_FROM, n_keys // 2)
    fit_seconds = None
    with contextlib.suppress(ImportError):
        say("fitting a model")
        # The model learns from keys that are not stored: those it knows score higher than those still to come, and
        # regions sized by them would soon be full.
        n_learnt = max(learnt, 10_000)  # fewer absent keys cannot show a rate of 1 %
        likes, unlikes, unseen = (
            make_keys(np.arange(first, first + n_learnt)) for first in (ABSENT // 2, 2 * ABSENT, 3 * ABSENT)
        )
        keys = make_keys(np.arange(learnt))
        start = time.perf_counter()
        model = dlbf.models.train(likes, unlikes, kind="ngram", max_bytes=4096, progress=False)
        filters["LearnedFilter"] = dlbf.LearnedFilter.fit(
            keys,
            unseen,
            fpr=FPR,
            deletability=0.9,
            headroom=n_keys / learnt * LEARNED_ROOM,
            model=model,
            progress=False,
        )
        fit_seconds = time.perf_counter() - start
        seconds["LearnedFilter"] = 0.0
    names = list(filters)
    added = dict.fromkeys(names, 0)
    for number, batch in enumerate(batches(n_keys)):
        say(f"building, {number * BATCH:,} keys done")
        for name in names[number % len(names) :] + names[: number % len(names)]:
            fresh = batch[max(0, learnt - number * BATCH) :] if name == "LearnedFilter" else batch
            start = time.process_time()
            filters[name].update(fresh)
            seconds[name] += time.process_time() - start
            added[name] += len(fresh)
    out = {
        name: {"build": seconds[name] / added[name] * 1e9, "bits": size_in_bits(filters[name]) / n_keys}
        for name in names
    }
    n_asked = 4000
    rng = np.random.default_rng(3)

    def absent(turn: int) -> list[bytes]:
        return make_keys(rng.integers(ABSENT, 1 << 50, n_asked))

    def present(turn: int) -> list[bytes]:
        return make_keys(rng.integers(0, n_keys, n_asked))

    gc.collect()
    say("asking")
    each: Contenders = {name: ask_each(filter_) for name, filter_ in filters.items()}
    many: Contenders = {
        name: filter_.contains_many for name, filter_ in filters.items() if hasattr(filter_, "contains_many")
    }
    for figure, contenders, inputs in (("absent", each, absent), ("present", each, present), ("batch", many, absent)):
        for name, timing in side_by_side(contenders, inputs, rounds).items():
            out[name][figure] = timing.best
    if fit_seconds is not None:
        out["LearnedFilter"]["fit_seconds"] = fit_seconds
    return out, missing


WRITER = """
import os, signal, sys
from dlbf.storage import Store
store = Store(sys.argv[1], sync="none")
store.checkpoint()
for i in range(int(sys.argv[2])):
    store[b"~recovered %d %09d" % (os.getpid(), i)] = b"v"  # new ones each time: known ones leave the filter as it is
os.kill(os.getpid(), signal.SIGKILL)
"""

READER = """
import gc, json, sys, time
from pathlib import Path
from dlbf.storage import Store
def private():
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty"):
            return int(line.split()[1]) * 1024
    return 0
path, empty, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store(empty, readonly=True) as store:
    store.get(b"code and libraries are warm")
gc.collect()
before = private() if Path("/proc/self/smaps_rollup").exists() else 0
best_open = best_first = best_loaded = 1e9
# Opening by itself: a filter that was copied just before has put everything else out of the processor's cache.
for turn in range(rounds - 1):
    start = time.perf_counter()
    store = Store(path, readonly=True)
    best_open = min(best_open, time.perf_counter() - start)
    store.close()
for turn in range(rounds):
    start = time.perf_counter()
    store = Store(path, readonly=True)
    middle = time.perf_counter()
    store.get(b"an absent key")
    end = time.perf_counter()
    while not store.stats().filtered:
        store.get(b"an absent key")
    loaded = time.perf_counter()
    best_open, best_first = min(best_open, middle - start), min(best_first, end - middle)
    best_loaded = min(best_loaded, loaded - middle)
    if turn < rounds - 1:
        store.close()
after = private() if before else 0
milliseconds = [1e3 * seconds for seconds in (best_open, best_first, best_loaded)]
print(json.dumps([*milliseconds, after - before if before else None, store.state]))
"""


def _child(code: str, *arguments: object) -> str:
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(done.stderr)
    return done.stdout


def _ordered(batch: list[bytes], first: int) -> list[bytes]:
    """The keys with their number before them: LMDB appends, as with ids that count up."""
    return [b"%010d/%s" % (first + i, key) for i, key in enumerate(batch)]


def _store(n_keys: int, folder: Path, rounds: int, say: Say) -> dict[str, float | None]:
    import lmdb

    from dlbf.storage import Store

    out: dict[str, float | None] = {}
    environment = lmdb.open(str(folder / "lmdb"), map_size=1 << 38, sync=False, readahead=False, max_spare_txns=1)
    store = Store(folder / "store", fpr=FPR, sync="none")
    Store(folder / "empty", fpr=FPR, sync="none").close()
    ours = plain = 0.0
    for number, batch in enumerate(batches(n_keys)):
        say(f"loading the store, {number * BATCH:,} keys done")
        keys = _ordered(batch, number * BATCH)
        start = time.process_time()
        with environment.begin(write=True) as txn:
            for key in keys:
                txn.put(key, b"value")
        middle = time.process_time()
        with store.write() as writing:
            for key in keys:
                writing.put(key, b"value")
        end = time.process_time()
        plain, ours = plain + middle - start, ours + end - middle
    out["load_us"], out["lmdb_load_us"] = ours / n_keys * 1e6, plain / n_keys * 1e6
    say("rebuilding")
    start = time.process_time()
    store.rebuild(design="cuckoo")
    out["rebuild_us"] = (time.process_time() - start) / n_keys * 1e6
    rng = random.Random(5)

    def present(turn: int) -> list[bytes]:
        numbers = [rng.randrange(n_keys) for _ in range(2000)]
        return [b"%010d/%s" % pair for pair in zip(numbers, make_keys(np.array(numbers)), strict=True)]

    def absent(turn: int) -> list[bytes]:
        return [b"%010d?" % rng.randrange(n_keys) for _ in range(2000)]

    def get(keys: Sequence[bytes]) -> None:
        for key in keys:
            store.get(key)

    def get_plain(keys: Sequence[bytes]) -> None:
        begin = environment.begin
        for key in keys:
            with begin() as txn:
                txn.get(key)

    say("reading")
    times = side_by_side({"store": get, "lmdb": get_plain}, present, rounds)
    out["present_ns"], out["lmdb_present_ns"] = times["store"].best, times["lmdb"].best
    out["absent_ns"] = side_by_side({"store": get}, absent, rounds)["store"].best
    environment.close()
    store.close()
    say("opening")
    opened = json.loads(_child(READER, folder / "store", folder / "empty", 20))
    out["open_ms"], out["first_read_ms"], out["loaded_ms"] = opened[:3]
    # A reader opens a store once; one that does it twenty times keeps memory of threads that have ended.
    reader = json.loads(_child(READER, folder / "store", folder / "empty", 1))
    out["reader_bytes_per_key"] = None if reader[3] is None else reader[3] / n_keys
    say("recovering")
    best = best_loaded = math.inf
    for _ in range(3):
        _child(WRITER, folder / "store", RECOVERY_COMMITS)
        opened = json.loads(_child(READER, folder / "store", folder / "empty", 1))
        if opened[4] != "filtering":
            raise RuntimeError(f"after a kill the store is in state {opened[4]!r}")
        best = min(best, opened[0] + opened[1])
        best_loaded = min(best_loaded, opened[0] + opened[2])
    out["recovery_ms"], out["recovered_ms"] = best, best_loaded
    return out


def measure_size(
    n_keys: int, rounds: int = 40, folder: Path | None = None, say: Say = lambda text: None
) -> dict[str, Any]:
    """Everything for one number of keys, in this process."""
    filters, missing = _filters(n_keys, rounds, lambda text: say(f"{n_keys:,} keys: {text}"))
    gc.collect()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        store = _store(n_keys, Path(place), rounds, lambda text: say(f"{n_keys:,} keys: {text}"))
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "keys": n_keys,
        "filters": filters,
        "missing": missing,
        "store": store,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }


def measure(
    max_keys: int = 3_000_000, rounds: int = 40, folder: Path | None = None, say: Say = lambda text: None
) -> dict[str, Any]:
    """Every size up to ``max_keys``, each in a process of its own; slopes and bars."""
    rows = []
    for n_keys in (size for size in SIZES if size <= max_keys):
        code = (
            "import json, sys; from pathlib import Path; from dlbf.bench.scale import measure_size; "
            "print(json.dumps(measure_size(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3] else "
            "None, lambda text: print(text, file=sys.stderr, flush=True))))"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(n_keys), str(rounds), str(folder or "")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stderr is not None
        last = ""
        for line in child.stderr:
            last += line
            say(line.strip())
        text = child.stdout.read()
        if child.wait():
            raise RuntimeError(f"measuring {n_keys:,} keys failed: {last[-2000:]}")
        rows.append(json.loads(text))
    figures: dict[str, Any] = {"fpr": FPR, "sizes": rows}
    figures["slopes"] = {
        name: {
            figure: slope([row["keys"] for row in rows], [row["filters"][name][figure] for row in rows])
            for figure in FIGURES
            if figure in rows[0]["filters"][name]
        }
        for name in rows[0]["filters"]
    }
    figures["store_slopes"] = {
        figure: slope([row["keys"] for row in rows], [row["store"][figure] for row in rows])
        for figure in STORE_FIGURES
        if None not in [row["store"][figure] for row in rows]
    }
    figures["bars"] = bars(rows)
    return figures


def slope(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The exponent of the power law through the points: 0 is flat, 1 in proportion to the number of keys.

    Examples
    --------
    >>> round(slope([10, 100, 1000], [5.0, 50.0, 500.0]), 6)
    1.0
    """
    if len(sizes) < 2:
        return 0.0
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(costs, 1e-9)), 1)[0])


def bars(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """From a million keys to the largest set: growth beside rbloom's, and of opening and recovery."""
    from_million = [row for row in rows if row["keys"] >= 1_000_000]
    if len(from_million) < 2:
        return []
    small, large = from_million[0], from_million[-1]
    out = []
    if PEER in small["filters"]:
        for figure in ("build", "absent", "present"):
            growth = {
                name: large["filters"][name][figure] / small["filters"][name][figure] for name in small["filters"]
            }
            for name in growth:
                if name != PEER:
                    out.append(
                        {"what": f"{name}, {figure}", "growth": growth[name], "at_most": growth[PEER],
                         "met": growth[name] <= growth[PEER]}
                    )  # fmt: skip
    for figure in ("open_ms", "recovery_ms"):
        growth_of = large["store"][figure] / small["store"][figure]
        # Milliseconds of system calls: a quarter more is noise, not growth.
        out.append({"what": f"store, {figure}", "growth": growth_of, "at_most": 1.25, "met": growth_of <= 1.25})
    return out


def draw(figures: dict[str, Any], path: Path) -> None:
    """The curves, as SVG, PNG or whatever matplotlib knows by the ending."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = figures["sizes"]
    sizes = [row["keys"] for row in rows]
    canvas, axes = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for name in rows[0]["filters"]:
        style = {"color": "black", "linestyle": "--"} if name == PEER else {}
        for axis, figure in zip(axes, ("build", "absent"), strict=False):
            axis.loglog(sizes, [row["filters"][name][figure] for row in rows], marker="o", label=name, **style)
    for figure in ("open_ms", "first_read_ms", "recovery_ms"):
        axes[2].loglog(sizes, [row["store"][figure] for row in rows], marker="o", label=figure.removesuffix("_ms"))
    for axis, title, unit in zip(
        axes, ("build", "query of an absent key", "store"), ("ns per key", "ns", "ms"), strict=True
    ):
        axis.set(title=title, xlabel="keys", ylabel=unit)
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=7)
    canvas.savefig(path)
    pyplot.close(canvas)
