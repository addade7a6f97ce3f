"""The results of ``dlbf bench scale``: costs at every size, how they grow, and the bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

__all__ = [
    "FIGURES",
    "FPR",
    "LEARNED",
    "PEER",
    "RECOVERY_COMMITS",
    "STORE_FIGURES",
    "Bar",
    "FilterCosts",
    "ScaleFigures",
    "SizeFigures",
    "StoreCosts",
    "bars",
    "slope",
]

FPR = 0.01
PEER = "rbloom"
LEARNED = "LearnedFilter"
RECOVERY_COMMITS = 200

# Name in the results -> heading and unit.
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


@dataclass
class FilterCosts:
    """What a key costs in one filter: nanoseconds and bits; ``batch`` is None for a filter that takes no batches."""

    build: float
    bits: float
    absent: float = 0.0
    present: float = 0.0
    batch: float | None = None
    fit_seconds: float | None = None

    def to_dict(self) -> dict[str, float]:
        """For JSON: without what was not measured."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class StoreCosts:
    """What a key costs in a store, and what opening and recovery take; see ``STORE_FIGURES``."""

    load_us: float
    lmdb_load_us: float
    rebuild_us: float
    present_ns: float
    lmdb_present_ns: float
    absent_ns: float
    open_ms: float
    first_read_ms: float
    loaded_ms: float
    reader_bytes_per_key: float | None
    recovery_ms: float
    recovered_ms: float


@dataclass(frozen=True)
class SizeFigures:
    """Everything for one number of keys; ``missing`` says why a peer did not run."""

    keys: int
    filters: dict[str, FilterCosts]
    missing: dict[str, str]
    store: StoreCosts
    peak_bytes: int

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> SizeFigures:
        """What another process measured and wrote as JSON."""
        return cls(
            plain["keys"],
            {name: FilterCosts(**costs) for name, costs in plain["filters"].items()},
            plain["missing"],
            StoreCosts(**plain["store"]),
            plain["peak_bytes"],
        )


@dataclass(frozen=True)
class Bar:
    """How something may grow from a million keys to the largest set, and how it grew."""

    what: str
    growth: float
    at_most: float
    met: bool


@dataclass(frozen=True)
class ScaleFigures:
    """Every size, the exponents of growth by filter and figure, and the bars."""

    fpr: float
    sizes: list[SizeFigures]
    slopes: dict[str, dict[str, float]]
    store_slopes: dict[str, float]
    bars: list[Bar]

    @classmethod
    def of(cls, sizes: list[SizeFigures]) -> ScaleFigures:
        """The figures of these sizes."""
        n_keys = [size.keys for size in sizes]
        slopes = {
            name: {
                figure: slope(n_keys, [getattr(size.filters[name], figure) for size in sizes])
                for figure in FIGURES
                if getattr(costs, figure) is not None
            }
            for name, costs in sizes[0].filters.items()
        }
        told = {figure: [getattr(size.store, figure) for size in sizes] for figure in STORE_FIGURES}
        store_slopes = {figure: slope(n_keys, costs) for figure, costs in told.items() if None not in costs}
        return cls(FPR, sizes, slopes, store_slopes, bars(sizes))


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


def bars(sizes: Sequence[SizeFigures]) -> list[Bar]:
    """From a million keys to the largest set: growth beside rbloom's, and of opening and recovery."""
    from_million = [size for size in sizes if size.keys >= 1_000_000]
    if len(from_million) < 2:
        return []
    small, large = from_million[0], from_million[-1]
    out = []
    if PEER in small.filters:
        for figure in ("build", "absent", "present"):
            growth = {
                name: getattr(large.filters[name], figure) / getattr(costs, figure)
                for name, costs in small.filters.items()
            }
            out += [
                Bar(f"{name}, {figure}", grown, growth[PEER], grown <= growth[PEER])
                for name, grown in growth.items()
                if name != PEER
            ]
    for figure in ("open_ms", "recovery_ms"):
        grown = getattr(large.store, figure) / getattr(small.store, figure)
        # Milliseconds of system calls: a quarter more is noise, not growth.
        out.append(Bar(f"store, {figure}", grown, 1.25, grown <= 1.25))
    return out
