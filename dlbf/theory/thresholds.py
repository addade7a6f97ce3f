"""Where to cut the score into regions, by dynamic programming over score bins.

Two objectives, both sums over regions and so both exact by the same recursion:

- ``best_thresholds`` maximises ``KL(G||H)``, which is optimal as long as every region has a filter of one cell
  width;
- ``cheapest_thresholds`` minimises bits (or the rate for a budget) under the real prices and all three targets.
  For given prices of the two error targets the Lagrangian is a sum over regions; prices come from the allocation,
  cuts from the prices, until nothing improves.  The last Lagrangian is a proof of how far from the optimum one can
  be.

Time is ``bins^2 * regions / 2`` vectorised operations: a few tens of milliseconds for 1,000 bins, and a second for
5,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlbf.theory.allocation import Allocation, allocate
from dlbf.theory.costs import Cost
from dlbf.theory.filter_kinds import lagrangian, undominated
from dlbf.theory.shares import as_shares, merge_shares

__all__ = ["Thresholds", "best_thresholds", "cheapest_thresholds"]

Floats = npt.NDArray[np.float64]

# How close to the bound is close enough, relatively.
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Result of ``cheapest_thresholds``.

    Attributes
    ----------
    cuts : tuple of int
        Inner edges: region ``r`` holds the bins from ``cuts[r-1]`` up to, not including, ``cuts[r]``.
    allocation : Allocation
        Filters for these regions.
    bound : float
        No choice of at most as many regions, and no allocation, can have fewer bits (or a lower rate) than this.

    Examples
    --------
    >>> from dlbf.theory import base_costs
    >>> found = cheapest_thresholds([0.1, 0.2, 0.7], [0.7, 0.25, 0.05], 2, base_costs("bits"), fpr=0.01)
    >>> found.cuts, round(found.allocation.bits, 2)
    ((2,), 6.46)
    """

    cuts: tuple[int, ...]
    allocation: Allocation
    bound: float


def _partition(segment: Callable[[int], Floats], n_bins: int, regions: int) -> tuple[tuple[int, ...], float]:
    """Inner edges and value of the cheapest partition into at most `regions` runs.

    ``segment(stop)`` is the cost of each run ``[start, stop)``, for ``start = 0 .. stop-1``.
    """
    value = np.full((regions + 1, n_bins + 1), math.inf)
    value[0, 0] = 0.0
    back = np.zeros((regions + 1, n_bins + 1), dtype=np.intp)
    rows = np.arange(regions)
    for stop in range(1, n_bins + 1):
        total = value[:-1, :stop] + segment(stop)
        start = np.argmin(total, axis=1)
        value[1:, stop] = total[rows, start]
        back[1:, stop] = start
    used = 1 + int(np.argmin(value[1:, n_bins]))
    edges = []
    stop = n_bins
    for row in range(used, 0, -1):
        stop = int(back[row, stop])
        edges.append(stop)
    return tuple(edges[::-1][1:]), float(value[used, n_bins])


def _check(regions: int, query_floor: float) -> None:
    if not (isinstance(regions, (int, np.integer)) and regions >= 1):
        raise ValueError(f"regions: expected an integer >= 1, found {regions!r}")
    if not (math.isfinite(query_floor) and query_floor >= 0):
        raise ValueError(f"query_floor: expected a finite share >= 0, found {query_floor!r}")


def best_thresholds(
    key_shares: npt.ArrayLike,
    query_shares: npt.ArrayLike,
    regions: int,
    query_floor: float = 0.0,
    least_query_share: float = 0.0,
) -> tuple[int, ...]:
    """Inner edges of at most `regions` runs of bins with the largest ``KL(G||H)``.

    Parameters
    ----------
    key_shares, query_shares : array_like
        Share of the keys and of the queries in each score bin.
    regions : int
        Most regions wanted.
    query_floor : float
        Added to the query share of every region before it is judged, so that a run without sampled queries is not taken
        for one that never gets any; about one over the number of queries sampled.
    least_query_share : float
        Regions with a smaller share of the queries are judged as if they had this one.

    Examples
    --------
    >>> best_thresholds([0.1, 0.1, 0.4, 0.4], [0.4, 0.4, 0.1, 0.1], regions=2)
    (2,)
    """
    keys, queries = as_shares(key_shares, query_shares)
    _check(regions, query_floor)
    if not (math.isfinite(least_query_share) and least_query_share >= 0):
        raise ValueError(f"least_query_share: expected a finite share >= 0, found {least_query_share!r}")
    key_sums = np.concatenate(([0.0], np.cumsum(keys)))
    query_sums = np.concatenate(([0.0], np.cumsum(queries)))
    # Without a floor a run of keys and no queries would be worth infinitely much; rank such runs by their keys.
    floor = max(query_floor, 1e-300)

    def segment(stop: int) -> Floats:
        run_keys = np.maximum(key_sums[stop] - key_sums[:stop], 0.0)
        run_queries = np.maximum(query_sums[stop] - query_sums[:stop], least_query_share) + floor
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = run_keys * np.log(run_keys / run_queries)
        return np.where(run_keys > 0, -gain, 0.0)

    return _partition(segment, len(keys), min(int(regions), len(keys)))[0]


class _Search:
    """Cuts and allocations of one call of ``cheapest_thresholds``."""

    def __init__(
        self,
        keys: Floats,
        queries: Floats,
        regions: int,
        costs: Sequence[Cost],
        fpr: float | None,
        bits: float | None,
        deletability: float,
        adversarial_fpr: float,
        query_floor: float,
    ) -> None:
        self.keys, self.queries, self.regions, self.costs = keys, queries, regions, costs
        self.fpr, self.bits = fpr, bits
        self.deletability, self.adversarial_fpr, self.query_floor = deletability, adversarial_fpr, query_floor
        self.key_sums = np.concatenate(([0.0], np.cumsum(keys)))
        self.query_sums = np.concatenate(([0.0], np.cumsum(queries)))
        self.kept = 1 - deletability if deletability > 0 else max(1.0, float(keys.sum()))
        usable = undominated(costs, adversarial_fpr)
        self.slopes = np.array([cost.slope for cost in usable])
        self.fixed = np.array([cost.fixed for cost in usable])
        self.caps = np.array([min(cost.max_fpr, adversarial_fpr) for cost in usable])

    def fill(self, cuts: tuple[int, ...]) -> Allocation:
        """The best filters for the regions between these cuts."""
        floored = merge_shares(self.queries, cuts) + self.query_floor
        return allocate(
            merge_shares(self.keys, cuts), floored, self.costs, fpr=self.fpr, bits=self.bits,
            deletability=self.deletability, adversarial_fpr=self.adversarial_fpr,
        )  # fmt: skip

    def cut(self, prices: tuple[float, float]) -> tuple[tuple[int, ...], float]:
        """The best cuts at these prices, and the Lagrangian there."""
        key_sums, query_sums = self.key_sums, self.query_sums

        def segment(stop: int) -> Floats:
            run_keys = np.maximum(key_sums[stop] - key_sums[:stop], 0.0)
            run_queries = np.maximum(query_sums[stop] - query_sums[:stop], 0.0) + self.query_floor
            full = run_keys > 0
            ratios = np.where(full, run_queries, 0.0) / np.where(full, run_keys, 1.0)
            value, _ = lagrangian(ratios, self.slopes, self.fixed, self.caps, *prices)
            return np.where(full, run_keys * value, 0.0)

        return _partition(segment, len(self.keys), self.regions)

    def objective(self, found: Allocation) -> float:
        """What is minimised: the bits, or for a budget the rate."""
        if not found.feasible:
            return math.inf
        return found.bits if self.bits is None else found.fpr

    def weigh(self, value: float, prices: tuple[float, float]) -> float:
        """Lower bound on the objective from the Lagrangian at these prices."""
        if self.bits is None:
            assert self.fpr is not None
            return value - prices[0] * self.fpr - prices[1] * self.kept
        return (value - self.bits - prices[1] * self.kept) / prices[0] if prices[0] > 0 else 0.0


def cheapest_thresholds(
    key_shares: npt.ArrayLike,
    query_shares: npt.ArrayLike,
    regions: int,
    costs: Sequence[Cost],
    *,
    fpr: float | None = None,
    bits: float | None = None,
    deletability: float = 0.0,
    adversarial_fpr: float = 1.0,
    query_floor: float = 0.0,
    rounds: int = 8,
) -> Thresholds:
    """Cuts and filters with the fewest bits for `fpr`, or the lowest rate for `bits`, under all three targets.

    Parameters
    ----------
    key_shares, query_shares : array_like
        As for ``best_thresholds``; the allocation is made for the query shares with the floor.
    regions : int
        As for ``best_thresholds``, like ``query_floor``.
    query_floor : float
        Added to the query share of every region.
    costs : sequence of Cost
        As for ``dlbf.theory.allocation.allocate``, like what follows.
    fpr, bits : float, optional
        Rate wanted, or bits to spend.
    deletability, adversarial_fpr : float
        Least share of removed keys that is forgotten, largest rate for forged keys.
    rounds : int
        Most rounds of cuts and prices; it stops as soon as the bound proves the result within ``1e-4``.

    Examples
    --------
    >>> from dlbf.theory import base_costs
    >>> cheapest_thresholds([0.1, 0.2, 0.7], [0.7, 0.25, 0.05], 3, base_costs("bits"), fpr=0.01).cuts
    (1, 2)
    """
    keys, queries = as_shares(key_shares, query_shares)
    _check(regions, query_floor)
    regions = min(int(regions), len(keys))
    search = _Search(keys, queries, regions, costs, fpr, bits, deletability, adversarial_fpr, query_floor)
    best_cuts = best_thresholds(keys, queries, regions, query_floor)
    best = search.fill(best_cuts)
    bound = 0.0
    seen = {best_cuts}
    trials = [best.multipliers]
    for _ in range(rounds):
        improved = False
        for prices in trials:
            if not best.feasible or not any(prices) or not all(map(math.isfinite, prices)):
                continue
            cuts, value = search.cut(prices)
            bound = max(bound, search.weigh(value, prices))
            if cuts in seen:
                continue
            seen.add(cuts)
            found = search.fill(cuts)
            if search.objective(found) < search.objective(best):
                best_cuts, best, improved = cuts, found, True
                break
        if not best.feasible or search.objective(best) <= bound * (1 + TOLERANCE):
            break
        if improved:
            trials = [best.multipliers]
        elif len(trials) > 1:
            break
        else:
            # A fixed price makes the optimal prices jump; look on both sides of them.
            one, two = best.multipliers
            trials = [(one * f, two * g) for f in (0.5, 1.0, 2.0) for g in ((0.5, 1.0, 2.0) if two else (1.0,))]
            trials.remove((one, two))
    return Thresholds(best_cuts, best, bound)
