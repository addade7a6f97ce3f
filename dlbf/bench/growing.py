"""``dlbf bench growing``: the filter that grows, from a few keys to a thousandfold, beside what was promised of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import dlbf
from dlbf.bench.data import choose_keys
from dlbf.bench.timing import Ratio, Say, Work, ask_each_in, fresh, side_by_side

__all__ = ["GrowingFigures", "SizeRow", "grow", "query_ratios", "worst_add"]

# Sizes between one doubling and the next, at which the bits per key are taken: pages split at about the same time, so
# they rise and fall.
STEPS = 8
TURN_QUERIES = 4000


@dataclass(frozen=True)
class SizeRow:
    """The filter after one doubling."""

    keys: int
    bits_per_key: float
    fpr: float
    expected_fpr: float


@dataclass(frozen=True)
class GrowingFigures:
    """What was measured.

    Attributes
    ----------
    bits_per_key : float
        Mean over the last doubling.
    worst_fpr : float
        The largest rate of any doubling, over the target.
    worst_add_us : float
        Of equal runs each add has its shortest time, so that what the machine does meanwhile does not count; the
        longest of these.
    in_ratio, many_ratio : Ratio
        Time for absent keys over that of a ``CuckooFilter`` with the same keys and rate: ``in`` and ``contains_many``.
    """

    rows: tuple[SizeRow, ...]
    bits_per_key: float
    worst_fpr: float
    worst_add_us: float
    in_ratio: Ratio
    many_ratio: Ratio


def grow(first: int, doublings: int, fpr: float, n_absent: int, say: Say) -> tuple[list[SizeRow], float]:
    """A row for every doubling, and the mean bits per key over the last one."""
    absent = dlbf.hash_keys(np.arange(10**15, 10**15 + n_absent))
    made = dlbf.GrowingFilter(fpr, first)
    rows: list[SizeRow] = []
    bits: list[float] = []
    n = 0
    for doubling in range(doublings + 1):
        last = first << doubling
        say(f"growing to {last:,} keys")
        bits = []
        for size in np.linspace(n, last, STEPS + 1).astype(int)[1:].tolist():
            made.update(np.arange(n, size))
            n = size
            bits.append(made.bits_per_key)
        rate = float(made.contains_hashes(absent).mean())
        rows.append(SizeRow(n, made.bits_per_key, rate, made.expected_fpr))
    return rows, float(np.mean(bits))


def worst_add(keys: Sequence[bytes], fpr: float, runs: int, say: Say) -> float:
    """Microseconds of the single add that takes longest in each of several equal runs."""
    shortest: npt.NDArray[np.int64] = np.full(len(keys), np.iinfo(np.int64).max)
    now: Callable[[], int] = time.perf_counter_ns
    for run in range(runs):
        say(f"single adds, run {run + 1} of {runs}")
        add = dlbf.GrowingFilter(fpr).add
        times = np.empty(len(keys), dtype=np.int64)
        for i, key in enumerate(keys):
            start = now()
            add(key)
            times[i] = now() - start
        np.minimum(shortest, times, out=shortest)
    return float(shortest.max()) / 1000


def query_ratios(given: str | None, n_keys: int, fpr: float, rounds: int, say: Say) -> tuple[str, Ratio, Ratio]:
    """The keys in words, and the ratios of ``in`` and of ``contains_many`` to a cuckoo filter's, of absent keys."""
    say("reading keys")
    words, keys, absent = choose_keys(given, n_keys, n_keys)
    growing, cuckoo = dlbf.GrowingFilter(fpr), dlbf.CuckooFilter(len(keys), fpr)
    growing.update(keys)
    cuckoo.update(keys)

    def asked(turn: int) -> list[bytes]:
        chosen = np.random.default_rng(turn).integers(0, len(absent), TURN_QUERIES)
        return fresh(absent[i] for i in chosen.tolist())

    def compared(ours: Work, theirs: Work) -> Ratio:
        times = side_by_side({"growing": ours, "cuckoo": theirs}, asked, rounds)
        return times["growing"].ratio(times["cuckoo"])

    say("asking")
    one = compared(ask_each_in(growing), ask_each_in(cuckoo))
    return words, one, compared(growing.contains_many, cuckoo.contains_many)
