"""``dlbf bench filters``: our filters beside their peers, same keys, same run.

The first row, rbloom, is what the others are compared with: it is the fastest Bloom filter without deletion
that Python has.
"""

import importlib.metadata
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import dlbf
from dlbf.bench.keys import listed_urls, ordinary_urls
from dlbf.bench.timing import Timing, side_by_side

__all__ = ["Row", "measure"]

SECRET = bytes(range(16))


class Peer(Protocol):
    """What a filter needs for this table."""

    def __contains__(self, key: bytes) -> bool: ...


@dataclass
class Row:
    """One line of the table; times in nanoseconds per key, None where the filter cannot do it."""

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
    cannot: list[str] = field(default_factory=list)
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def _rbloom(n: int, fpr: float) -> tuple[Any, float]:
    import rbloom

    peer = rbloom.Bloom(n, fpr)
    return peer, float(peer.size_in_bits)


def _pybloomfiltermmap(n: int, fpr: float) -> tuple[Any, float]:
    import pybloomfilter

    folder = tempfile.mkdtemp()
    peer = pybloomfilter.BloomFilter(n, fpr, str(Path(folder) / "filter"))
    return peer, float(peer.num_bits)


class FastBloom:
    """fastbloom-rs under the names the others use."""

    def __init__(self, n: int, fpr: float, counting: bool) -> None:
        import fastbloom_rs

        builder = fastbloom_rs.FilterBuilder(n, fpr)
        self.filter = builder.build_counting_bloom_filter() if counting else builder.build_bloom_filter()
        self.contains = self.filter.contains_bytes
        self.contains_many = self.filter.contains_bytes_batch
        self.update = self.filter.add_bytes_batch
        if counting:
            self.remove = self.filter.remove_bytes

    def __contains__(self, key: bytes) -> bool:
        return bool(self.contains(key))


def _fastbloom(n: int, fpr: float, counting: bool = False) -> tuple[Any, float]:
    peer = FastBloom(n, fpr, counting)
    return peer, 8.0 * len(peer.filter.get_bytes())


# name -> (distribution, maker of (filter, bits), what it cannot do)
PEERS: dict[str, tuple[str, Callable[[int, float], tuple[Any, float]], list[str]]] = {
    "rbloom": ("rbloom", _rbloom, ["remove", "batch query", "keyed hash", "checksummed file"]),
    "pybloomfiltermmap3": (
        "pybloomfiltermmap3",
        _pybloomfiltermmap,
        ["remove", "batch query", "keyed hash", "checksummed file"],
    ),
    "fastbloom-rs": ("fastbloom-rs", _fastbloom, ["remove", "keyed hash", "checksummed file"]),
    "fastbloom-rs counting": (
        "fastbloom-rs",
        lambda n, fpr: _fastbloom(n, fpr, counting=True),
        ["keyed hash", "checksummed file"],
    ),
}


def _ours(make: Callable[[int, float], Any]) -> Callable[[int, float], tuple[Any, float]]:
    def build(n: int, fpr: float) -> tuple[Any, float]:
        made = make(n, fpr)
        return made, 8.0 * made.nbytes

    return build


OURS: dict[str, tuple[Callable[[int, float], tuple[Any, float]], list[str]]] = {
    "BloomFilter": (_ours(dlbf.BloomFilter), ["remove"]),
    "BloomFilter blocked": (_ours(lambda n, fpr: dlbf.BloomFilter(n, fpr, layout="blocked")), ["remove"]),
    "CountingBloomFilter": (_ours(dlbf.CountingBloomFilter), []),
    "CountingBloomFilter keyed": (_ours(lambda n, fpr: dlbf.CountingBloomFilter(n, fpr, secret=SECRET)), []),
    "SuccinctCountingFilter": (_ours(dlbf.SuccinctCountingFilter), []),
    "DeletableBloomFilter": (_ours(dlbf.DeletableBloomFilter), ["remove every key"]),
    "DLeftFilter": (_ours(dlbf.DLeftFilter), []),
    "CuckooFilter": (_ours(dlbf.CuckooFilter), []),
    "CuckooFilter keyed": (_ours(lambda n, fpr: dlbf.CuckooFilter(n, fpr, secret=SECRET)), []),
}


def _ask_each(filter_: Peer) -> Callable[[Sequence[bytes]], None]:
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
    rounds: int = 7,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """Build every filter on the same keys and time it beside the others."""
    say = progress or (lambda text: None)
    say("making keys")
    keys = list(listed_urls(n_keys))
    absent = list(ordinary_urls(n_queries, seed=1_000_000))
    rows: dict[str, Row] = {}
    filters: dict[str, Any] = {}
    for name, (distribution, make, cannot) in PEERS.items():
        row = rows[name] = Row(name, "", cannot=cannot)
        try:
            row.version = importlib.metadata.version(distribution)
            say(f"building {name}")
            filters[name], bits = make(n_keys, fpr)
            row.bits_per_key = bits / n_keys
        except Exception as error:  # a missing or broken peer is reported, whatever it raises
            row.error = f"{type(error).__name__}: {error}"
    for name, (make, cannot) in OURS.items():
        row = rows[name] = Row(name, dlbf.__version__, cannot=cannot)
        filters[name], bits = make(n_keys, fpr)
        row.bits_per_key = bits / n_keys
    for name, filter_ in filters.items():
        say(f"filling {name}")
        start = time.perf_counter_ns()
        filter_.update(keys)
        rows[name].add_ns = (time.perf_counter_ns() - start) / n_keys
        rows[name].fpr = sum(key in filter_ for key in absent) / n_queries
    batched = {name: filter_ for name, filter_ in filters.items() if hasattr(filter_, "contains_many")}

    def fresh_absent(turn: int) -> list[bytes]:
        return list(ordinary_urls(n_queries, seed=turn))

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
        lambda turn: [bytes(bytearray(key)) for key in keys[: n_queries // 2]],
        max(3, rounds // 2),
        say,
    )
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
            start = time.perf_counter_ns()
            for key in gone:
                filter_.remove(key)
            row.remove_ns = (time.perf_counter_ns() - start) / len(gone)
    return list(rows.values())
