"""The two-region designs of the report built with real filters and a score that is the region itself, and asked.

Keys and queries fall into the regions in exactly the planned shares; what is random is the hashing.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dlbf.filters import BloomFilter, CountingBloomFilter

__all__ = ["Simulated", "TwoRegions", "simulate"]

Answers = npt.NDArray[np.bool_]
Names = npt.NDArray[np.bytes_]


@lru_cache(maxsize=4)
def _names(first: int, last: int) -> Names:
    """Numbers as keys; made once for all designs."""
    return np.arange(first, last).astype("S8")


@dataclass(frozen=True)
class TwoRegions:
    """Rates to build the filters of a design for; 1 is no filter.

    Attributes
    ----------
    initial, low, high : float
        Of the filter in front, and of those below and above the threshold.
    gone_low, gone_high : float
        Of the filters of deleted keys; 1 is none.
    cell_bits : int
        1 for Bloom filters, else the width of the counters.
    """

    initial: float = 1.0
    low: float = 1.0
    high: float = 1.0
    gone_low: float = 1.0
    gone_high: float = 1.0
    cell_bits: int = 4


@dataclass(frozen=True)
class Simulated:
    """What the built filters did; `first` and `after` are deletability by its two readings."""

    fpr: float
    fnr: float
    first: float
    after: float


class _Cells:
    """A filter of cells, or none where the rate is 1."""

    def __init__(self, n_keys: int, rate: float, cell_bits: int, number: int) -> None:
        self.filter: BloomFilter | CountingBloomFilter | None = None
        if rate < 1:
            capacity = max(1, n_keys)
            if cell_bits == 1:
                self.filter = BloomFilter(capacity, max(rate, 1e-9), filter_id=number)
            else:
                self.filter = CountingBloomFilter(capacity, max(rate, 1e-9), counter_bits=cell_bits, filter_id=number)

    def update(self, keys: Names) -> None:
        if self.filter is not None:
            self.filter.update(keys)

    def remove(self, keys: Names) -> None:
        if isinstance(self.filter, CountingBloomFilter):
            self.filter.remove_many(keys)

    def ask(self, keys: Names) -> Answers:
        return np.ones(len(keys), dtype=np.bool_) if self.filter is None else self.filter.contains_many(keys)


class _Built:
    """The filters of a design, filled with keys of which the first are the ones to be removed."""

    def __init__(self, model_fnr: float, rates: TwoRegions, removed: float, n_keys: int) -> None:
        self.keys = _names(0, n_keys)
        self.is_low = np.random.default_rng(5).permutation(np.arange(n_keys) < round(model_fnr * n_keys))
        n_low = int(self.is_low.sum())
        n_high = n_keys - n_low
        self.initial = _Cells(n_keys, rates.initial, rates.cell_bits, 1)
        self.low, self.high = (
            _Cells(n_low, rates.low, rates.cell_bits, 2),
            _Cells(n_high, rates.high, rates.cell_bits, 3),
        )
        self.remembers = rates.gone_low < 1 or rates.gone_high < 1
        self.gone_low = _Cells(round(removed * n_low), rates.gone_low, 1, 4)
        self.gone_high = _Cells(round(removed * n_high), rates.gone_high, 1, 5)
        self.add(0, n_keys)

    def add(self, first: int, last: int) -> None:
        names, below = self.keys[first:last], self.is_low[first:last]
        self.initial.update(names)
        self.low.update(names[below])
        self.high.update(names[~below])

    def remove(self, first: int, last: int) -> None:
        names, below = self.keys[first:last], self.is_low[first:last]
        if self.remembers:
            self.gone_low.update(names[below])
            self.gone_high.update(names[~below])
            return
        self.initial.remove(names)
        self.low.remove(names[below])
        self.high.remove(names[~below])

    def ask(self, names: Names, below: Answers) -> Answers:
        out = self.initial.ask(names)
        out[below] &= self.low.ask(names[below])
        out[~below] &= self.high.ask(names[~below])
        if self.remembers:
            out[below] &= ~self.gone_low.ask(names[below])
            out[~below] &= ~self.gone_high.ask(names[~below])
        return out

    def passing(self, first: int, last: int) -> float:
        """Share of these keys that pass."""
        return float(self.ask(self.keys[first:last], self.is_low[first:last]).mean())


def simulate(
    model_fpr: float,
    model_fnr: float,
    rates: TwoRegions,
    removed: float,
    *,
    n_keys: int = 20_000,
    n_queries: int = 400_000,
) -> Simulated:
    """Build, fill, ask; then remove a share of the keys and ask for those.

    Parameters
    ----------
    model_fpr, model_fnr : float
        Shares of the queries above and of the keys below the threshold.
    rates : TwoRegions
        What to build.
    removed : float
        Share of the keys to remove.
    n_keys, n_queries : int
        How many there are.

    Notes
    -----
    Deletability of the first removal is that of removing one key in two hundred, twenty times.
    """
    built = _Built(model_fnr, rates, removed, n_keys)
    asked = _names(n_keys, n_keys + n_queries)
    scores_low = np.arange(n_queries) >= round(model_fpr * n_queries)
    few, many = n_keys // 200, round(removed * n_keys)
    first, fpr = 1.0, 0.0
    if not built.remembers:
        fpr = float(built.ask(asked, scores_low).mean())
        kept = []
        for start in range(0, 20 * few, few):
            built.remove(start, start + few)
            kept.append(built.passing(start, start + few))
            built.add(start, start + few)
        first = 1 - sum(kept) / len(kept)
    built.remove(0, many)
    if built.remembers:  # its rates are for that many deletions
        fpr = float(built.ask(asked, scores_low).mean())
    return Simulated(fpr, 1 - built.passing(many, n_keys), first, 1 - built.passing(0, many))
