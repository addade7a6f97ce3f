"""Filters in shards: what they cost beside one filter, how even they are, how fast and in what memory they are built.

*times*: a question to 64 shards over one to a single filter, for one key and for batches.  *sizes*: bits per key and
rates of a learned filter in shards and in one piece.  *even*: the largest shard when the keys of a billion-key filter
are thrown at random, and when real hashes choose.  *build*: made keys from one file by one process and by two workers
of Dask.  *arithmetic*: what a build takes from a million keys to 100 billion, from the measured time per key.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

import dlbf
from dlbf.bench.results import Bar
from dlbf.bench.shard_builds import Built, build_both
from dlbf.bench.timing import Say, ask_each_in, fresh, side_by_side
from dlbf.build import auto_shards, blueprint, build_shard, combine, route, shard_memory
from dlbf.filters.base import Filter
from dlbf.filters.ribbon_sizes import ribbon_bytes, ribbon_geometry
from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.sharded import route_hashes
from dlbf.sharded.filter import SLACK_DEVIATIONS, shard_room

__all__ = ["PARTS", "Arithmetic", "Even", "Question", "ShardFigures", "Size", "bars", "measure", "pair"]

PARTS = ("times", "sizes", "even", "build", "arithmetic")
KINDS = ("cuckoo", "bloom", "learned")
FPR = 0.01
SHARDS = 64
# What the project asks.
TIME_AT_MOST = 1.1
SIZE_AT_MOST = 1.02
OPEN_AT_MOST = 0.005
RATE_AT_MOST = 1.05  # of the target, as for every learned filter: what a sample of unseen keys may show
FASTER_AT_LEAST = 1.6
WORKER_BYTES_AT_MOST = 600 << 20

BILLION = 10**9
EVEN_KEYS = 10 * BILLION
EVEN_SHARDS = (64, 1024, 4096)
HASHED_KEYS = 10**7
# Nanoseconds of one core for each key, where nothing was measured in the same run.
ASSUMED_NS = 1500.0


@dataclass(frozen=True)
class Question:
    """What it costs to ask: nanoseconds for each key, and the ratio with its quartiles."""

    kind: str
    asked: str  # "in" or "contains_many"
    present: bool
    one_ns: float
    shards_ns: float
    ratio: tuple[float, float, float]


@dataclass(frozen=True)
class Size:
    """The same keys, model kind and rate in one filter and in shards."""

    keys: int
    shards: int
    one_bits: float
    shards_bits: float
    one_fpr: float
    shards_fpr: float
    unseen: int
    missed_keys: int
    open_seconds: float

    @property
    def ratio(self) -> float:
        """Bits of the shards over those of the one."""
        return self.shards_bits / self.one_bits


@dataclass(frozen=True)
class Even:
    """The largest of some shards, in many rounds, or once where real hashes choose."""

    keys: int
    shards: int
    rounds: int
    hashed: bool
    mean: float
    largest: int
    room: int  # what plain shards leave room for
    deviations: float  # the largest above the mean

    @property
    def overflows(self) -> bool:
        """Whether a shard had more keys than room."""
        return self.largest > self.room


@dataclass(frozen=True)
class Arithmetic:
    """What a build of so many keys takes."""

    keys: int
    shards: int
    filter_bytes: int
    run_bytes: int
    worker_bytes: int
    network_bytes: int
    core_minutes: float


@dataclass
class ShardFigures:
    """All of it."""

    times: list[Question] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    even: list[Even] = field(default_factory=list)
    build: list[Built] = field(default_factory=list)
    arithmetic: list[Arithmetic] = field(default_factory=list)
    core_ns: float = ASSUMED_NS  # of one core for each key, sampling and training left out

    @property
    def missed_keys(self) -> int:
        """Keys denied: none."""
        return sum(size.missed_keys for size in self.sizes)


def bars(figures: ShardFigures) -> list[Bar]:
    """What is asked, beside what was found."""
    found = [
        Bar("shards", f"{each.asked} of {'present' if each.present else 'absent'} keys, {each.kind}, over one filter",
            each.ratio[0], TIME_AT_MOST)
        for each in figures.times
    ]  # fmt: skip
    for size in figures.sizes:
        found += [
            Bar("shards", "bits per key, over one filter", size.ratio, SIZE_AT_MOST),
            Bar("shards", "seconds to open", size.open_seconds, OPEN_AT_MOST),
            Bar("shards", "rate of unseen keys", size.shards_fpr, FPR * RATE_AT_MOST),
        ]
    found += [
        Bar("shards", f"deviations of the largest of {each.shards} shards", each.deviations, SLACK_DEVIATIONS)
        for each in figures.even
    ]
    if len(figures.build) == 2:
        one, two = figures.build
        found += [
            Bar("shards", "time of two workers, over one process", two.seconds / one.seconds, 1 / FASTER_AT_LEAST),
            Bar("shards", "bytes of a worker at its peak", two.worker_bytes, WORKER_BYTES_AT_MOST),
        ]
    return found


def pair(
    kind: str, keys: Sequence[bytes], negatives: Sequence[bytes], folder: Path, shards: int = SHARDS
) -> tuple[Filter, Filter]:
    """One filter, and the same in shards, opened from a file.

    Parameters
    ----------
    kind : {"cuckoo", "bloom", "learned"}
        ``"learned"`` is static, with an n-gram model.
    keys, negatives : sequence of bytes
    folder : path
        Where the file is made.
    shards : int
    """
    path = folder / f"{kind}-{shards}.dlbf"
    if kind == "learned":
        one = dlbf.LearnedFilter.fit(keys, negatives, fpr=FPR, model="ngram", design="static", progress=False)
        _build(path, keys, negatives, shards, "ngram")
        return one, dlbf.open_filter(path)
    base = cast("type[dlbf.CuckooFilter]", {"cuckoo": dlbf.CuckooFilter, "bloom": dlbf.BloomFilter}[kind])
    plain, many = base(len(keys), FPR), dlbf.ShardedFilter(base, len(keys), FPR, shards=shards)
    plain.update(keys)
    many.update(keys)
    many.save(path)
    return plain, dlbf.open_filter(path)


def _build(path: Path, keys: Sequence[bytes], negatives: Sequence[bytes], shards: int, model: str) -> None:
    rng = np.random.default_rng(7)
    sample = [keys[i] for i in rng.permutation(len(keys))[:100_000].tolist()]
    plan = blueprint(sample, negatives, n_keys=len(keys), fpr=FPR, shards=shards, model=model)
    own: list[list[bytes]] = [[] for _ in range(shards)]
    for key, number in zip(keys, route(plan, keys).tolist(), strict=True):
        own[number].append(key)
    combine(path, [build_shard(plan, number, some) for number, some in enumerate(own)])


def measure(
    keys: Sequence[bytes],
    negatives: Sequence[bytes],
    unseen: Sequence[bytes],
    folder: Path,
    *,
    parts: Sequence[str] = PARTS,
    rounds: int = 30,
    built_keys: int = 20_000_000,
    say: Say = lambda text: None,
) -> ShardFigures:
    """Measure.

    Parameters
    ----------
    keys, negatives, unseen : sequence of bytes
        Stored; absent, to learn from; absent, to measure on.
    folder : path
    parts : sequence of str
        Of ``PARTS``.
    rounds : int
        Of the times.
    built_keys : int
        Made keys that are built by one process and by two.
    say : callable
        Told what is under way.
    """
    figures = ShardFigures()
    if "times" in parts:
        for kind in KINDS:
            say(f"times of {kind}")
            figures.times += _times(kind, keys, negatives, unseen, folder, rounds)
    if "sizes" in parts:
        say("sizes")
        figures.sizes.append(_sizes(keys, negatives, unseen, folder))
    if "even" in parts:
        say("throwing keys")
        figures.even = [_thrown(EVEN_KEYS, shards, 1000) for shards in EVEN_SHARDS]
        figures.even += [_hashed(HASHED_KEYS, shards) for shards in EVEN_SHARDS]
    if "build" in parts:
        figures.build = build_both(built_keys, negatives, folder, say, SHARDS)
        one = figures.build[0]
        figures.core_ns = 1e9 * sum(one.phases[phase] for phase in ("sample", "count", "build", "combine")) / one.keys
    if "arithmetic" in parts:
        figures.arithmetic = [computed(10**power, figures.core_ns) for power in range(6, 12)]
    return figures


def _batch_of(batches: Sequence[Sequence[bytes]], turn: int) -> list[bytes]:
    return fresh(batches[turn % len(batches)])


def _times(
    kind: str, keys: Sequence[bytes], negatives: Sequence[bytes], unseen: Sequence[bytes], folder: Path, rounds: int
) -> list[Question]:
    one, many = pair(kind, keys, negatives, folder)
    found = []
    ways: Mapping[str, Callable[[Filter], Callable[[Sequence[bytes]], object]]] = {
        "in": ask_each_in,
        "contains_many": lambda f: f.contains_many,
    }
    for asked, way in ways.items():
        for present, some in ((False, unseen), (True, keys)):
            rng = np.random.default_rng(7)
            batches = [[some[i] for i in rng.integers(0, len(some), min(20_000, len(some))).tolist()] for _ in range(4)]
            times = side_by_side({"one": way(one), "shards": way(many)}, partial(_batch_of, batches), rounds)
            found.append(
                Question(
                    kind, asked, present, times["one"].best, times["shards"].best, times["shards"].ratio(times["one"])
                )
            )
    many.close()
    return found


def _sizes(keys: Sequence[bytes], negatives: Sequence[bytes], unseen: Sequence[bytes], folder: Path) -> Size:
    one = dlbf.LearnedFilter.fit(keys, negatives, fpr=FPR, design="static", progress=False)
    path = folder / "sizes.dlbf"
    _build(path, keys, negatives, SHARDS, "auto")
    opened = []
    for _ in range(5):
        start = time.perf_counter()
        dlbf.open_filter(path).close()
        opened.append(time.perf_counter() - start)
    with dlbf.open_filter(path) as many:
        return Size(
            len(many), SHARDS, 8 * one.nbytes / len(one), 8 * many.nbytes / len(many),
            float(one.contains_many(unseen).mean()), float(many.contains_many(unseen).mean()), len(unseen),
            int(np.count_nonzero(~many.contains_many(keys))), statistics.median(opened),
        )  # fmt: skip


def _thrown(n_keys: int, shards: int, rounds: int) -> Even:
    """Balls in bins: the numbers of keys of all shards, drawn together as often as there are rounds."""
    rng = np.random.default_rng(23)
    largest = max(int(rng.multinomial(n_keys, [1 / shards] * shards).max()) for _ in range(rounds))
    return _even(n_keys, shards, rounds, False, largest)


def _hashed(n_keys: int, shards: int) -> Even:
    """What the hash itself does with keys that are nearly alike: numbers that follow each other."""
    counts = np.zeros(shards, dtype=np.int64)
    for first in range(0, n_keys, 1_000_000):
        hashes = hash64_many(np.arange(first, min(first + 1_000_000, n_keys)))
        counts += np.bincount(route_hashes(hashes, shards), minlength=shards)
    return _even(n_keys, shards, 1, True, int(counts.max()))


def _even(n_keys: int, shards: int, rounds: int, hashed: bool, largest: int) -> Even:
    mean = n_keys / shards
    deviation = math.sqrt(mean * (1 - 1 / shards))
    return Even(n_keys, shards, rounds, hashed, mean, largest, shard_room(n_keys, shards), (largest - mean) / deviation)


def computed(n_keys: int, core_ns: float) -> Arithmetic:
    """What a build of so many keys takes with a filter without a model at 1 %, which is the largest.

    Every key's hash and region, 9 bytes, is written to the folder that all workers see and read from there; so are the
    shards, whose bytes are read once more when they are put together, and the file is written.
    """
    shards = auto_shards(n_keys)
    own = -(-n_keys // shards)
    filter_bytes = shards * ribbon_bytes(ribbon_geometry(own, FPR))
    runs = 9 * n_keys
    return Arithmetic(
        n_keys, shards, filter_bytes, runs, shard_memory(own, 8 * filter_bytes / n_keys), 2 * runs + 3 * filter_bytes,
        n_keys * core_ns / 60e9,
    )  # fmt: skip
