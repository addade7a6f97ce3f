"""``dlbf bench filters``: our filters beside their peers, same keys, same run.

The first row, rbloom, is what the others are compared with: it is the fastest Bloom filter without deletion
that Python has.
"""

import gc
import importlib.metadata
import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dlbf.bench.contenders import OURS, PEERS, Contender, ask_each, n_learnt, size_in_bits
from dlbf.bench.timing import Ratio, Say, Timing, Work, fresh, side_by_side
from dlbf.datasets import listed_urls, ordinary_urls

__all__ = ["Row", "measure"]

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
    query_absent_ratio: Ratio | None = None
    query_present_ns: float | None = None
    batch_absent_ns: float | None = None
    batch_absent_ratio: Ratio | None = None
    remove_ns: float | None = None
    threads_speedup: float | None = None
    keeps: str = ""
    cannot: list[str] = field(default_factory=list)
    error: str | None = None


class Batched(Protocol):
    """A filter that takes batches."""

    def contains_many(self, keys: Sequence[bytes], /) -> object: ...


def _threads_speedup(filter: Batched, batch: Sequence[bytes]) -> float:
    """Work two threads do in the time one needs for half of it."""
    halves = [list(batch[: len(batch) // 2]), list(batch[len(batch) // 2 :])]
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        for half in halves:
            filter.contains_many(half)
        alone = time.perf_counter() - start
        threads = [threading.Thread(target=filter.contains_many, args=(half,)) for half in halves]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(best, alone / (time.perf_counter() - start))
    return best


def _fill(row: Row, contender: Contender, keys: list[bytes], absent: Sequence[bytes], fpr: float, say: Say) -> Any:
    """The contender with all keys, its size and rate noted in the row; None, with the reason noted, if it fails."""
    try:
        row.version = importlib.metadata.version(contender.distribution)
        say(f"filling {row.name}")
        filter = contender.make(len(keys), fpr)
        start = time.process_time_ns()
        if hasattr(filter, "build_from"):
            filter = filter.build_from(keys)
        else:
            filter.update(keys)
        row.add_ns = (time.process_time_ns() - start) / len(keys)
        ask = getattr(filter, "ask", None) or filter.__contains__
        row.fpr = sum(map(ask, absent)) / len(absent)
        row.bits_per_key = size_in_bits(filter) / len(keys)
    except importlib.metadata.PackageNotFoundError:
        row.error = f"not installed; pip install {contender.distribution}"
        return None
    except Exception as error:  # a broken peer is reported, whatever it raises
        row.error = f"{type(error).__name__}: {error}"
        return None
    return filter


class _FreshTurns:
    """Absent keys for every turn: the next ones of a stream, the same for all contenders, as new objects."""

    def __init__(self, stream: Iterator[bytes], n_turn: int) -> None:
        self._stream = stream
        self._n_turn = n_turn
        self._turn = -1
        self._keys: list[bytes] = []

    def __call__(self, turn: int) -> list[bytes]:
        if turn > self._turn:
            self._turn, self._keys = turn, list(itertools.islice(self._stream, self._n_turn))
        return fresh(self._keys)


def measure(
    n_keys: int = 1_000_000,
    fpr: float = 0.01,
    n_queries: int = 300_000,
    rounds: int = 40,
    progress: Say | None = None,
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
        filter = _fill(row, contender, keys, absent, fpr, say)
        if filter is not None:
            filters[name] = filter
    each: dict[str, Work] = {name: ask_each(filter) for name, filter in filters.items()}
    batched: dict[str, Work] = {
        f"{name}, batch": filter.contains_many for name, filter in filters.items() if hasattr(filter, "contains_many")
    }
    gc.collect()
    gc.freeze()  # else every turn would first look at millions of keys
    say("asking for absent keys")
    absent_times = side_by_side(each | batched, _FreshTurns(stream, n_turn), rounds, say)
    say("asking for present keys")
    present_times = side_by_side(each, lambda turn: fresh(keys[turn * n_turn % n_keys :][:n_turn]), rounds, say)
    gc.unfreeze()
    for name, filter in filters.items():
        row = rows[name]
        _note_times(row, absent_times, present_times)
        if name in OURS and row.batch_absent_ns is not None:
            row.threads_speedup = _threads_speedup(filter, absent)
        if "remove" not in row.cannot:
            say(f"removing from {name}")
            gone = keys[: n_keys // 10]
            start = time.process_time_ns()
            for key in gone:
                filter.remove(key)
            row.remove_ns = (time.process_time_ns() - start) / len(gone)
    return list(rows.values())


def _note_times(row: Row, absent: Mapping[str, Timing], present: Mapping[str, Timing]) -> None:
    """Put the times of the row's filter into it, with their ratios to rbloom's single query."""
    reference, batch = absent.get("rbloom"), absent.get(f"{row.name}, batch")
    row.query_absent_ns = absent[row.name].best
    row.query_present_ns = present[row.name].best
    if reference is not None:
        row.query_absent_ratio = absent[row.name].ratio(reference)
    if batch is not None:
        row.batch_absent_ns = batch.best
        row.batch_absent_ratio = batch.ratio(reference) if reference is not None else None
