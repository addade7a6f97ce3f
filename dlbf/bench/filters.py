"""``dlbf bench filters``: our filters beside their peers, same keys, same run.

The first row, rbloom, is what the others are compared with: it is the fastest Bloom filter without deletion
that Python has.
"""

import functools
import gc
import importlib.metadata
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dlbf
from dlbf.bench.timing import Timing, side_by_side
from dlbf.datasets import listed_urls, ordinary_urls

__all__ = ["Row", "measure"]

SECRET = bytes(range(16))
# Short turns: on a busy machine some of many run undisturbed, and the best is one of those.
TURN_QUERIES = 20_000


@dataclass
class Row:
    """One line of the table; times in nanoseconds per key, None where the filter cannot do it.

    Adding and removing happen once, so they are told in processor time, which a busy machine disturbs less.
    """

    name: str
    version: str
    bits_per_key: float | None = None
    fpr: float | None = None
    add_ns: float | None = None
    query_absent_ns: float | None = None
    query_absent_ratio: tuple[float, float, float] | None = None
    query_present_ns: float | None = None
    batch_absent_ns: float | None = None
    batch_absent_ratio: tuple[float, float, float] | None = None
    remove_ns: float | None = None
    threads_speedup: float | None = None
    keeps: str = ""
    cannot: list[str] = field(default_factory=list)
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


@dataclass(frozen=True)
class Contender:
    """A filter in the table.

    Attributes
    ----------
    distribution : str
        The package whose version is reported.
    make : callable
        Makes it empty, for so many keys at a rate.
    keeps : str
        How it is kept through a restart.
    cannot : tuple of str
        What it cannot do that others can.
    """

    distribution: str
    make: Callable[[int, float], Any]
    keeps: str
    cannot: tuple[str, ...] = ()


def _rbloom(n: int, fpr: float) -> Any:
    import rbloom

    return rbloom.Bloom(n, fpr)


def _pybloomfiltermmap(n: int, fpr: float) -> Any:
    import pybloomfilter

    return pybloomfilter.BloomFilter(n, fpr, str(Path(tempfile.mkdtemp()) / "filter"))


class FastBloom:
    """fastbloom-rs under the names the others use."""

    def __init__(self, n: int, fpr: float, counting: bool = False) -> None:
        import fastbloom_rs

        builder = fastbloom_rs.FilterBuilder(n, fpr)
        self.filter = builder.build_counting_bloom_filter() if counting else builder.build_bloom_filter()
        self.ask = self.filter.contains_bytes
        self.contains_many = self.filter.contains_bytes_batch
        self.update = self.filter.add_bytes_batch
        if counting:
            self.remove = self.filter.remove_bytes

    @property
    def nbytes(self) -> int:
        return len(self.filter.get_bytes())


class Hazy:
    """hazy's filters under the names the others use."""

    def __init__(self, kind: str, n: int, fpr: float) -> None:
        import hazy

        # Its cuckoo filter has one rate, whatever is asked for.
        self.filter = hazy.CuckooFilter(n) if kind == "CuckooFilter" else getattr(hazy, kind)(n, fpr)
        self.ask = self.filter.__contains__
        self.contains_many = self.filter.query_many
        self.update = self.filter.update
        if kind != "BloomFilter":
            self.remove = self.filter.remove

    @property
    def nbytes(self) -> int:
        return int(self.filter.size_in_bytes)


class Fuse:
    """pyfusefilter: made from all keys at once."""

    def __init__(self, n: int, fpr: float) -> None:
        import xxhash
        from pyfusefilter import pyfusefilter

        try:
            pyfusefilter.hash("key")
        except TypeError:
            # Release 1.3.0 hands text to xxhash, which since its version 4 wants bytes.  Repaired here, in its favour:
            # keys need not become text first.
            pyfusefilter.hash = xxhash.xxh64_intdigest
        self.make = pyfusefilter.Fuse8

    def build_from(self, keys: list[bytes]) -> Any:
        return self.make(keys)


def n_learnt(n_keys: int) -> int:
    """Absent keys that a model learns from: as many as there are keys, and enough to show a rate of 1 %."""
    return max(n_keys, 10_000)


class Learned:
    """Ours with a model; the negatives it learns from are not those that are asked for."""

    def __init__(self, n: int, fpr: float) -> None:
        self.fpr = fpr
        self.negatives = list(ordinary_urls(n_learnt(n)))

    def build_from(self, keys: list[bytes]) -> Any:
        return dlbf.LearnedFilter.fit(
            keys, self.negatives, fpr=self.fpr, deletability=0.9, model="ngram", progress=False
        )


STATIC = ("remove", "add", "batch query", "keyed hash", "checksummed file", "rates other than 0.4 %")
NOT_OURS = ("keyed hash", "checksummed file")
PEERS = {
    "rbloom": Contender("rbloom", _rbloom, "file", ("remove", "batch query", *NOT_OURS)),
    "pybloomfiltermmap3": Contender(
        "pybloomfiltermmap3", _pybloomfiltermmap, "mapped file", ("remove", "batch query", *NOT_OURS)
    ),
    "fastbloom-rs": Contender("fastbloom-rs", FastBloom, "bytes", ("remove", *NOT_OURS)),
    "fastbloom-rs counting": Contender("fastbloom-rs", functools.partial(FastBloom, counting=True), "bytes", NOT_OURS),
    "hazy Bloom": Contender("hazy", functools.partial(Hazy, "BloomFilter"), "file", ("remove", *NOT_OURS)),
    "hazy counting": Contender("hazy", functools.partial(Hazy, "CountingBloomFilter"), "file", NOT_OURS),
    "hazy cuckoo": Contender("hazy", functools.partial(Hazy, "CuckooFilter"), "file", ("choose the rate", *NOT_OURS)),
    "pyfusefilter Fuse8": Contender("pyfusefilter", Fuse, "bytes", STATIC),
}
KEEPS = "mapped file, checksummed"
OURS = {
    "BloomFilter": Contender("dlbf", dlbf.BloomFilter, KEEPS, ("remove",)),
    "BloomFilter blocked": Contender("dlbf", functools.partial(dlbf.BloomFilter, layout="blocked"), KEEPS, ("remove",)),
    "CountingBloomFilter": Contender("dlbf", dlbf.CountingBloomFilter, KEEPS),
    "CountingBloomFilter keyed": Contender("dlbf", functools.partial(dlbf.CountingBloomFilter, secret=SECRET), KEEPS),
    "SuccinctCountingFilter": Contender("dlbf", dlbf.SuccinctCountingFilter, KEEPS),
    "DeletableBloomFilter": Contender("dlbf", dlbf.DeletableBloomFilter, KEEPS, ("remove every key",)),
    "DLeftFilter": Contender("dlbf", dlbf.DLeftFilter, KEEPS),
    "CuckooFilter": Contender("dlbf", dlbf.CuckooFilter, KEEPS),
    "CuckooFilter keyed": Contender("dlbf", functools.partial(dlbf.CuckooFilter, secret=SECRET), KEEPS),
    "LearnedFilter": Contender("dlbf", Learned, KEEPS),
}


def _bits(filter_: Any) -> float:
    """Size in bits, under whatever name the filter tells it."""
    for name in ("size_in_bits", "num_bits"):
        if hasattr(filter_, name):
            return float(getattr(filter_, name))
    return 8 * float(filter_.nbytes if hasattr(filter_, "nbytes") else filter_.size_in_bytes())


def _ask_each(filter_: Any) -> Callable[[Sequence[bytes]], None]:
    """A loop over the fastest way to ask for one key: a method if there is one, else ``in``."""
    ask = getattr(filter_, "ask", None)
    if ask is not None:

        def run(batch: Sequence[bytes]) -> None:
            for key in batch:
                ask(key)
    else:

        def run(batch: Sequence[bytes]) -> None:
            for key in batch:
                key in filter_  # noqa: B015

    return run


def _threads_speedup(filter_: Any, batch: Sequence[bytes]) -> float:
    """Work two threads do in the time one needs for half of it."""
    halves = [list(batch[: len(batch) // 2]), list(batch[len(batch) // 2 :])]
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        for half in halves:
            filter_.contains_many(half)
        alone = time.perf_counter() - start
        threads = [threading.Thread(target=filter_.contains_many, args=(half,)) for half in halves]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(best, alone / (time.perf_counter() - start))
    return best


def measure(
    n_keys: int = 1_000_000,
    fpr: float = 0.01,
    n_queries: int = 300_000,
    rounds: int = 40,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """Build every filter on the same keys and time it beside the others."""
    say = progress or (lambda text: None)
    say("making keys")
    keys = list(listed_urls(n_keys))
    # One stream: the first of it is what a model learns from (see Learned), what follows is asked for.
    n_turn = min(n_queries, TURN_QUERIES)
    stream = itertools.islice(ordinary_urls(10**9), n_learnt(n_keys), None)
    absent = list(itertools.islice(stream, n_queries))
    rows: dict[str, Row] = {}
    filters: dict[str, Any] = {}
    for name, contender in (PEERS | OURS).items():
        row = rows[name] = Row(name, "", keeps=contender.keeps, cannot=list(contender.cannot))
        try:
            row.version = importlib.metadata.version(contender.distribution)
            say(f"filling {name}")
            filter_ = contender.make(n_keys, fpr)
            start = time.process_time_ns()
            if hasattr(filter_, "build_from"):
                filter_ = filter_.build_from(keys)
            else:
                filter_.update(keys)
            row.add_ns = (time.process_time_ns() - start) / n_keys
            ask = getattr(filter_, "ask", None) or filter_.__contains__
            row.fpr = sum(map(ask, absent)) / n_queries
            row.bits_per_key = _bits(filter_) / n_keys
            filters[name] = filter_
        except importlib.metadata.PackageNotFoundError:
            row.error = f"not installed; pip install {contender.distribution}"
        except Exception as error:  # a broken peer is reported, whatever it raises
            row.error = f"{type(error).__name__}: {error}"
    batched = {name: filter_ for name, filter_ in filters.items() if hasattr(filter_, "contains_many")}

    turns: list[list[bytes]] = []

    def fresh_absent(turn: int) -> list[bytes]:
        if turn == len(turns):
            turns.append(list(itertools.islice(stream, n_turn)))
            turns[:-1] = [[] for _ in turns[:-1]]
        return [bytes(bytearray(key)) for key in turns[turn]]

    gc.collect()
    gc.freeze()  # else every turn would first look at millions of keys
    say("asking for absent keys")
    contenders: dict[str, Callable[[Sequence[bytes]], object]] = {}
    for name, filter_ in filters.items():
        contenders[name] = _ask_each(filter_)
    for name, filter_ in batched.items():
        contenders[f"{name}, batch"] = filter_.contains_many
    absent_times = side_by_side(contenders, fresh_absent, rounds, say)
    say("asking for present keys")
    present_times = side_by_side(
        {name: _ask_each(filter_) for name, filter_ in filters.items()},
        lambda turn: [bytes(bytearray(key)) for key in keys[turn * n_turn % n_keys :][:n_turn]],
        rounds,
        say,
    )
    gc.unfreeze()
    reference: Timing | None = absent_times.get("rbloom")
    for name, filter_ in filters.items():
        row = rows[name]
        row.query_absent_ns = absent_times[name].best
        row.query_present_ns = present_times[name].best
        if reference:
            row.query_absent_ratio = absent_times[name].ratio(reference)
        if name in batched:
            timing = absent_times[f"{name}, batch"]
            row.batch_absent_ns = timing.best
            row.batch_absent_ratio = timing.ratio(reference) if reference else None
            if name in OURS:
                row.threads_speedup = _threads_speedup(filter_, absent)
        if "remove" not in row.cannot:
            say(f"removing from {name}")
            gone = keys[: n_keys // 10]
            start = time.process_time_ns()
            for key in gone:
                filter_.remove(key)
            row.remove_ns = (time.process_time_ns() - start) / len(gone)
    return list(rows.values())
