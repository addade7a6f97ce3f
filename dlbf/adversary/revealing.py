"""What a break-in shows: model, thresholds and all filter bits, but not the secret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlbf.filters import BloomFilter, CountingBloomFilter, DeletableBloomFilter, Filter
from dlbf.filters.base import geometry_of, secret_of
from dlbf.learned import LearnedFilter
from dlbf.learned.assembly import DELETED, INITIAL, Part, part_fpr
from dlbf.learned.composite import open_part, parts_of
from dlbf.models import Model
from dlbf.theory import get_design

__all__ = ["Revealed", "region_rates", "reveal", "stated_bound"]


@dataclass(frozen=True)
class Revealed:
    """A filter as somebody sees it who has everything but the secret.

    Attributes
    ----------
    image : bytes
        The whole filter as it would be saved: every bit of it, and its plan.
    model : Model or None
        The model, if there is one and it sees keys as they are.
    thresholds : tuple of int
        Where its regions begin.
    rates : tuple of float
        The rate of each region, read off the bits.
    filter : Filter or None
        A working copy, if the hash has no secret: then any question can be answered without asking.
    """

    image: bytes
    model: Model | None
    thresholds: tuple[int, ...]
    rates: tuple[float, ...]
    filter: Filter | None

    @property
    def weakest(self) -> int:
        """The region with the highest rate."""
        return int(np.argmax(self.rates))

    def regions(self, keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """The region of each key; zeros where nobody without the secret can tell."""
        if self.model is None:
            return np.zeros(len(keys), dtype=np.int64)
        return np.searchsorted(self.thresholds, self.model.score_many(keys), side="right").astype(np.int64)

    def misses(self, keys: Sequence[bytes], region: int) -> npt.NDArray[np.int64]:
        """By how much the score of each key misses a region; 0 inside it."""
        if self.model is None:
            return np.zeros(len(keys), dtype=np.int64)
        scores = np.asarray(self.model.score_many(keys), dtype=np.int64)
        below = np.full(len(keys), 0, dtype=np.int64)
        if region > 0:
            below = np.maximum(0, self.thresholds[region - 1] - scores)
        if region < len(self.thresholds):
            below = np.maximum(below, scores - self.thresholds[region] + 1)
        return below


def _part_rate(part: Part, inside: Filter) -> float:
    """The rate of one part by its contents."""
    if isinstance(inside, (BloomFilter, CountingBloomFilter, DeletableBloomFilter)):
        return float(inside.fill ** part.params[1])
    return part_fpr(part.kind, part.params, inside.approximate_count())


def region_rates(filter: Filter) -> tuple[float, ...]:
    """The rate that somebody meets in each score region, read off the contents as they are now.

    The plan's rates are for the planned keys.  Where many more came to one region, or counters are stuck, this is what
    tells: compare ``max(region_rates(f))`` with ``f.plan.adversarial_fpr`` and build the filter anew when it is higher.

    Examples
    --------
    >>> from dlbf import BloomFilter
    >>> f = BloomFilter(1000, 0.01); f.update(b"%d" % i for i in range(1000))
    >>> [round(rate, 3) for rate in region_rates(f)]
    [0.01]
    """
    if not isinstance(filter, LearnedFilter):
        geometry = geometry_of(filter)
        hashes, blocked = geometry.get("n_hashes", 0), geometry.get("block_cells", 0)
        return (float(filter.fill**hashes) if hashes and not blocked else filter.expected_fpr,)
    initial, rates = 1.0, [1.0] * len(filter.plan.regions)
    for number, part in enumerate(parts_of(filter)):
        if part.role == DELETED:
            continue
        with open_part(filter, number) as inside:
            rate = _part_rate(part, inside)
        if part.role == INITIAL:
            initial = rate
        else:
            rates[part.region] = rate
    return tuple(initial * rate for rate in rates)


def reveal(filter: Filter) -> Revealed:
    """Everything about a filter but its secret.

    Examples
    --------
    >>> from dlbf import BloomFilter
    >>> reveal(BloomFilter(10, 0.01, secret=bytes(16))).filter is None, reveal(BloomFilter(10, 0.01)).filter is None
    (True, False)
    """
    keyed = secret_of(filter) is not None
    model: Model | None = None
    thresholds: tuple[int, ...] = ()
    if isinstance(filter, LearnedFilter) and len(filter.plan.regions) > 1:
        thresholds = tuple(region.low for region in filter.plan.regions if region.low is not None)
        if not get_design(filter.design).hides_score:
            model = filter.model
    return Revealed(filter.to_bytes(), model, thresholds, region_rates(filter), None if keyed else filter.copy())


def stated_bound(target: object) -> float:
    """The largest false-positive rate that a filter or store promises against somebody without its secret.

    1 where there is no secret: whoever can compute the hash needs one query for one false positive.

    Examples
    --------
    >>> from dlbf import CuckooFilter
    >>> stated_bound(CuckooFilter(1000, 0.01, secret=bytes(16))), stated_bound(CuckooFilter(1000, 0.01))
    (0.01, 1.0)
    """
    store: Any = getattr(target, "store", target)
    if not isinstance(store, Filter):
        ledger = getattr(store, "ledger", None)
        if ledger is None:
            raise TypeError(f"expected a filter or a store of dlbf, found {type(store).__name__}")
        stats = store.stats()  # brings the ledger up to date
        if isinstance(ledger.filter, LearnedFilter):
            return stated_bound(ledger.filter)
        return float(stats.fpr_target) if ledger.settings.secret is not None else 1.0
    target = store
    if secret_of(target) is None:
        return 1.0
    if isinstance(target, LearnedFilter):
        return target.plan.adversarial_fpr
    return target.fpr_target or target.expected_fpr
