"""The optimiser: which filter, at which rate, in which region.

Regions ``r`` hold a share ``G_r`` of the keys and meet a share ``H_r`` of the queries for absent keys.  A filter of
rate ``e_r`` is bought in each, at prices from ``dlbf.theory.costs``, under three targets::

    ordinary      sum_r H_r e_r <= f          what a query for an absent key meets
    deletability  sum_r G_r e_r <= 1 - D      what a deleted key meets: it still looks like a key
    adversarial   max_r e_r     <= A          what someone meets who can forge any score

Once each region's kind of filter is fixed the problem is convex and its optimum has the closed form
``e_r = min(cap_r, s_r G_r / (l1 H_r + l2 G_r))`` with two multipliers: for a given ratio of the two the level follows
from one sort (the "water level"), and the ratio by bracketing.  There is no starting point to get wrong.

A fingerprint table has a fixed price, so *which* regions have one is a discrete choice and not always a threshold on
the likelihood ratio (it is a small knapsack).  It is settled exactly by branch and bound; the bound is the Lagrangian
dual, where each region chooses its kind by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlbf.theory.costs import Cost

__all__ = ["Allocation", "allocate", "lagrangian", "sandwich", "smallest_budget", "undominated"]

Floats = npt.NDArray[np.float64]

# Branch and bound stops when no choice of kinds can be cheaper by more than this, relatively ...
GAP = 1e-6
# Nodes after which the search settles for the best so far.  Measured beside thousands of nodes, on 90 random splits and
# on 31 plans of several sets of scores: the start is up to 7 % dearer, 20 nodes up to 0.3 %, 50 nodes up to 0.07 %.
# 100 were compared on the hardest plan only, without a difference.  Where no proof has come by then, it takes thousands
# more.
MAX_NODES = 200
# ... and, for a budget, when none can have a lower rate by more than this.
FPR_GAP = 1e-5
# The least share and the least target that double precision has room around.
LEAST = 1e-100


@dataclass(frozen=True, slots=True)
class Allocation:
    """Result of ``allocate``; all tuples are in the order of the regions given.

    Attributes
    ----------
    feasible : bool
        False when no allocation meets the targets; the rates are then empty and the numbers NaN.
    rates, bases, bits_per_key : tuple
        False-positive rate, name of the base filter and bits per key *stored in that region*.
    bits : float
        Bits per key over all keys.
    fpr, kept, worst : float
        ``sum H e``, ``sum G e`` (one minus the deletability) and ``max e``.
    multipliers : tuple of float
        Bits per key that one unit of ``f`` and of ``1 - D`` is worth at the optimum.

    Examples
    --------
    >>> from dlbf.theory import allocate, base_costs
    >>> a = allocate([0.2, 0.8], [0.9, 0.1], base_costs("bits"), fpr=0.01)
    >>> a.feasible, [round(rate, 4) for rate in a.rates], round(a.bits, 2)
    (True, [0.0022, 0.08], 6.75)
    """

    feasible: bool
    rates: tuple[float, ...]
    bases: tuple[str, ...]
    bits_per_key: tuple[float, ...]
    bits: float
    fpr: float
    kept: float
    worst: float
    multipliers: tuple[float, float]


_NOTHING = Allocation(False, (), (), (), math.nan, math.nan, math.nan, math.nan, (0.0, 0.0))


# --- one choice of kinds: convex -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Solution:
    rates: Floats
    bits: float
    fpr: float
    multipliers: tuple[float, float]


def _level(weights: Floats, caps: Floats, shape: Floats, target: float) -> float:
    """The ``v`` with ``sum weights * min(caps, v * shape) = target``; exact, one sort.  inf when the caps fit.

    The sums below add up in another order than the first: where they disagree in the last digits, the turns decide.
    """
    if float(weights @ caps) <= target:
        return math.inf
    with np.errstate(divide="ignore"):
        turns = np.where(np.isinf(shape), 0.0, caps / shape)  # v at which each region reaches its cap
    order = np.argsort(turns)
    turns = turns[order]
    capped = np.concatenate(([0.0], np.cumsum((weights * caps)[order])))
    slope = (weights * np.where(np.isinf(shape), 0.0, shape))[order]
    slopes = np.concatenate((np.cumsum(slope[::-1])[::-1], [0.0]))  # of the regions not yet capped
    # Up to and including which turn is the sum still below the target?
    at_turn = capped[:-1] + turns * slopes[:-1]
    first = int(np.searchsorted(at_turn, target))
    if first == len(turns):
        return math.inf
    low = float(turns[first - 1]) if first else 0.0
    if slopes[first] <= 0:
        return low
    return min(max(float((target - capped[first]) / slopes[first]), low), float(turns[first]))


def _log_level(weights: Floats, caps: Floats, shape: Floats, budget: float) -> float:
    """The ``u = ln v`` with ``sum weights * ln(1 / min(caps, v * shape)) = budget``; exact, one sort."""
    with np.errstate(divide="ignore"):
        log_shape = np.log(shape)
        turns = np.log(caps) - log_shape
    order = np.argsort(turns)[::-1]  # as v falls from infinity, the region with the largest turn starts first
    started_weight = np.cumsum(weights[order])
    capped_cost = -(weights * np.log(caps))[order]
    rest = float(capped_cost.sum()) - np.cumsum(capped_cost)
    free = np.where(np.isfinite(log_shape), weights * log_shape, 0.0)[order]
    started_shape = np.cumsum(free)
    # With the first i+1 started: -u W_i - S_i + rest_i = budget.
    with np.errstate(over="ignore"):  # a budget beyond all reason
        levels = (rest - started_shape - budget) / started_weight
    nexts = np.append(turns[order][1:], -math.inf)
    ok = levels >= nexts
    return float(levels[int(np.argmax(ok))])


def _bracket(function: Callable[[float], float], low: float, high: float) -> float:
    """Root of a function with ``function(low) > 0 >= function(high)``; returns the end where it is <= 0.

    Illinois steps, and a bisection whenever the bracket has not halved.
    """
    at_low, at_high = function(low), function(high)
    if at_low <= 0:
        return low
    side = 0
    for step in range(200):
        width = high - low
        if at_high == 0 or width <= 4e-16 * max(abs(low), abs(high)):
            break
        if step % 3 == 2 or not math.isfinite(at_low - at_high):
            middle = 0.5 * (low + high)
        else:
            middle = high - at_high * (high - low) / (at_high - at_low)
            if not low < middle < high:
                middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        value = function(middle)
        if value > 0:
            low, at_low = middle, value
            if side == -1:
                at_high *= 0.5
            side = -1
        else:
            high, at_high = middle, value
            if side == 1:
                at_low *= 0.5
            side = 1
    return high


class _Problem:
    """Shares and targets without the regions that hold no key, whose (empty) filters answer no for free."""

    def __init__(self, keys: Floats, queries: Floats, fpr: float, kept: float, worst: float) -> None:
        self.keys = keys
        self.queries = queries
        self.ratios = queries / keys
        self.fpr = fpr
        self.kept = kept
        self.worst = worst
        positive = self.ratios[self.ratios > 0]
        # Beyond these, one of the two targets has no influence on the rates to double precision.
        self.log_low = math.log(float(positive.min())) - 40 if len(positive) else -40.0
        self.log_high = math.log(float(positive.max())) + 40 if len(positive) else 40.0

    def shape(self, slopes: Floats, log_mix: float) -> Floats:
        """``s / (L + rho)``: the rates up to their level, for the ratio ``rho = exp(log_mix)`` of the multipliers."""
        if log_mix == math.inf:
            return slopes
        below = self.ratios if log_mix == -math.inf else self.ratios + math.exp(log_mix)
        with np.errstate(divide="ignore", invalid="ignore"):
            return slopes / below

    def cheapest(self, slopes: Floats, fixed: Floats, caps: Floats) -> _Solution | None:
        """Fewest bits for the targets, kinds given."""
        free = slopes > 0
        fpr, kept = self.fpr, self.kept
        if not free.all():
            held = ~free
            fpr -= float(self.queries[held] @ caps[held])
            kept -= float(self.keys[held] @ caps[held])
            # A constant region may use the target up to the last rounding error, never beyond.
            fpr = 0.0 if -1e-12 * self.fpr < fpr < 0 else fpr
            kept = 0.0 if -1e-12 * self.kept < kept < 0 else kept
        keys, queries = np.where(free, self.keys, 0.0), np.where(free, self.queries, 0.0)
        needed = bool(free.any())
        if fpr < 0 or kept < 0 or (needed and kept == 0) or (fpr == 0 and float(queries.sum()) > 0):
            return None

        def rates_at(log_mix: float, weights: Floats, target: float) -> tuple[Floats, float]:
            shape = self.shape(slopes, log_mix)
            level = _level(weights, caps, np.where(free, shape, math.inf), target)
            if level == math.inf:
                return caps, level
            with np.errstate(invalid="ignore"):
                return np.where(free & np.isfinite(shape), np.minimum(caps, level * shape), caps), level

        rates, level = rates_at(-math.inf, queries, fpr)
        multipliers = (1 / level, 0.0)
        if float(keys @ rates) > kept:
            rates, level = rates_at(math.inf, keys, kept)
            multipliers = (0.0, 1 / level)
            if float(queries @ rates) > fpr:

                def excess(log_mix: float) -> float:
                    return float(keys @ rates_at(log_mix, queries, fpr)[0]) / kept - 1

                log_mix = _bracket(excess, self.log_low, self.log_high)
                rates, level = rates_at(log_mix, queries, fpr)
                multipliers = (1 / level, math.exp(log_mix) / level)
        return self._solution(rates, slopes, fixed, multipliers)

    def best(self, slopes: Floats, fixed: Floats, caps: Floats, budget: float) -> _Solution | None:
        """Smallest ordinary rate for a budget, kinds given."""
        free = slopes > 0
        left = budget - float(self.keys @ fixed)
        weights = np.where(free, self.keys * slopes, 0.0)
        least = float(weights @ -np.log(caps))
        if left < least - 1e-12 * max(1.0, budget):
            return None
        kept = self.kept - float(self.keys[~free] @ caps[~free])
        keys = np.where(free, self.keys, 0.0)
        if kept < -1e-12 * self.kept:
            return None

        def rates_at(log_mix: float) -> tuple[Floats, float]:
            shape = self.shape(slopes, log_mix)
            moving = free & np.isfinite(shape)
            if not moving.any() or left <= least:
                return caps, math.inf
            held = float(weights[~moving] @ -np.log(caps[~moving]))
            log_level = _log_level(weights[moving], caps[moving], shape[moving], left - held)
            rates = caps.copy()
            # Budgets beyond all reason still give a positive rate.
            logs = np.maximum(log_level + np.log(shape[moving]), -690.0)
            rates[moving] = np.minimum(caps[moving], np.exp(logs))
            return rates, math.exp(max(log_level, -690.0))

        rates, level = rates_at(-math.inf)
        multipliers = (1 / level, 0.0)
        limit = kept * (1 + 1e-12)
        if float(keys @ rates) > limit:
            if float(keys @ rates_at(math.inf)[0]) > limit:
                return None

            def excess(log_mix: float) -> float:
                return float(keys @ rates_at(log_mix)[0]) / kept - 1

            if excess(self.log_high) > 0:
                log_mix = self.log_high
            else:
                log_mix = _bracket(excess, self.log_low, self.log_high)
            rates, level = rates_at(log_mix)
            multipliers = (1 / level, math.exp(log_mix) / level)
        return self._solution(rates, slopes, fixed, multipliers)

    def _solution(self, rates: Floats, slopes: Floats, fixed: Floats, multipliers: tuple[float, float]) -> _Solution:
        bits = float(self.keys @ (fixed - slopes * np.log(rates)))
        return _Solution(rates, bits, float(self.queries @ rates), multipliers)


# --- the choice of kinds: branch and bound ---------------------------------------------------------------------------


def lagrangian(
    ratios: Floats, slopes: Floats, fixed: Floats, caps: Floats, price_fpr: Any, price_kept: Any
) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Per key of a region with likelihood ratio ``H/G``: bits plus priced errors of the best kind, and that kind.

    ``slopes``, ``fixed`` and ``caps`` have one entry per kind (last axis of ``caps`` may add regions); the prices
    broadcast against ``ratios``.
    """
    weight = price_fpr * ratios + price_kept
    best: Floats | None = None
    kind = np.zeros(np.shape(weight), dtype=np.intp)
    for index, (slope, extra) in enumerate(zip(slopes, fixed, strict=True)):
        cap = caps[index]
        if slope > 0:
            with np.errstate(divide="ignore"):
                rate = np.minimum(cap, slope / weight)
            value = extra - slope * np.log(rate) + weight * rate
        else:
            value = extra + weight * cap
        if best is None:
            best = np.broadcast_to(value, np.shape(weight)).copy()
        else:
            better = value < best
            best = np.where(better, value, best)
            kind = np.where(better, index, kind)
    assert best is not None
    return best, kind


class _Kinds:
    """The kinds of filter on offer, one column each, and which region may use which."""

    def __init__(self, options: Sequence[Sequence[Cost]], worst: float) -> None:
        self.costs: list[Cost] = []
        for row in options:
            self.costs += [cost for cost in row if cost not in self.costs]
        self.slopes = np.array([cost.slope for cost in self.costs])
        self.fixed = np.array([cost.fixed for cost in self.costs])
        self.caps = np.array([min(cost.max_fpr, worst) if cost.slope else cost.max_fpr for cost in self.costs])
        allowed = np.array([[cost in row for cost in self.costs] for row in options])
        allowed &= self.caps <= worst * (1 + 1e-12)
        for column in range(len(self.costs)):
            for other in range(len(self.costs)):
                if other != column and self._dominates(other, column):
                    allowed[:, column] &= ~allowed[:, other]
        self.allowed = allowed

    def _dominates(self, one: int, other: int) -> bool:
        """Is kind ``one`` never dearer than kind ``other``, at any rate the other offers?  (Ties: the first wins.)"""
        reach = self.slopes[one] > 0
        if self.caps[one] < self.caps[other] or (not reach and self.slopes[other] > 0):
            return False
        if not reach:
            below = self.caps[one] == self.caps[other] and self.fixed[one] <= self.fixed[other]
            return bool(below and (self.fixed[one] < self.fixed[other] or one < other))
        at_cap = self.fixed[one] - self.slopes[one] * math.log(self.caps[other])
        dearer = self.fixed[other] - self.slopes[other] * math.log(self.caps[other])
        # An option with a single rate has no slope of its own to compare.
        slope = self.slopes[one] <= self.slopes[other] if self.slopes[other] > 0 else True
        same = self.costs[one].slope == self.costs[other].slope and self.fixed[one] == self.fixed[other]
        return bool(slope and at_cap <= dearer and (not same or one < other))


def undominated(costs: Sequence[Cost], adversarial_fpr: float = 1.0) -> list[Cost]:
    """The kinds that are the cheapest at some rate up to `adversarial_fpr`."""
    kinds = _Kinds([costs], adversarial_fpr)
    return [cost for cost, allowed in zip(kinds.costs, kinds.allowed[0], strict=True) if allowed]


def _search(
    problem: _Problem, kinds: _Kinds, budget: float = math.inf
) -> tuple[_Solution, npt.NDArray[np.intp]] | None:
    """Fewest bits over every choice of kinds; choices that cannot fit the budget are not looked into."""

    def solve(choice: npt.NDArray[np.intp]) -> _Solution | None:
        return problem.cheapest(kinds.slopes[choice], kinds.fixed[choice], kinds.caps[choice])

    def bound(allowed: npt.NDArray[np.bool_], start: tuple[float, float] | None) -> tuple[float, Any, Any]:
        """Lagrangian dual over the two prices, by zooming into ever smaller grids (any point is a valid bound)."""
        top = math.log(float(kinds.slopes.max()) + float(kinds.fixed.max()) + 1)
        caps = np.where(allowed.T, kinds.caps[:, None], math.nan)  # (kinds, regions)

        def dual(one: Floats, two: Floats) -> tuple[Floats, Floats]:
            shape = (*one.shape, 1)
            weight_caps = caps[:, None, None, :]
            values = np.full((*one.shape, len(problem.keys)), math.inf)
            weight = one.reshape(shape) * problem.ratios + two.reshape(shape)
            for index in range(len(kinds.costs)):
                if not allowed[:, index].any():
                    continue
                cap = weight_caps[index]
                slope = kinds.slopes[index]
                with np.errstate(divide="ignore", invalid="ignore"):
                    rate = np.minimum(cap, slope / weight) if slope > 0 else cap + 0 * weight
                    value = kinds.fixed[index] + weight * rate
                    if slope > 0:
                        value = value - slope * np.log(rate)
                values = np.fmin(values, value)
            total = values @ problem.keys - one * problem.fpr - two * min(problem.kept, 1e300)
            return total, values

        lows = [-30.0, -30.0]
        highs = [top - math.log(problem.fpr) + 1, top - math.log(problem.kept) + 1]
        if start is not None:
            for axis in range(2):
                if start[axis] > 0:
                    centre = math.log(start[axis])
                    lows[axis], highs[axis] = centre - 4, centre + 4
        single = problem.kept >= 1
        best, best_point = -math.inf, (0.0, 0.0)
        for _ in range(18):
            grid_one = np.exp(np.linspace(lows[0], highs[0], 9))
            if single:
                grid_two = np.zeros(1)
            else:
                grid_two = np.concatenate((np.exp(np.linspace(lows[1], highs[1], 9)), [0.0]))
                grid_one = np.append(grid_one, 0.0)
            one, two = np.meshgrid(grid_one, grid_two, indexing="ij")
            total, _ = dual(one, two)
            at = np.unravel_index(int(np.argmax(total)), total.shape)
            if total[at] > best:
                best, best_point = float(total[at]), (float(one[at]), float(two[at]))
            for axis in range(2):
                step = (highs[axis] - lows[axis]) / 8
                centre = math.log(best_point[axis]) if best_point[axis] > 0 else lows[axis]
                lows[axis], highs[axis] = centre - 1.1 * step, centre + 1.1 * step
        _, values = dual(np.array([[best_point[0]]]), np.array([[best_point[1]]]))
        return best, best_point, values[0, 0]

    def choose(allowed: npt.NDArray[np.bool_], prices: tuple[float, float]) -> tuple[npt.NDArray[np.intp], Floats]:
        table = np.full(allowed.shape, math.inf)
        for index in range(len(kinds.costs)):
            value, _ = lagrangian(
                problem.ratios, kinds.slopes[index : index + 1], kinds.fixed[index : index + 1],
                kinds.caps[index : index + 1], prices[0], prices[1],
            )  # fmt: skip
            table[:, index] = np.where(allowed[:, index], value, math.inf)
        order = np.sort(table, axis=1)
        margin = (order[:, 1] - order[:, 0]) * problem.keys if allowed.shape[1] > 1 else np.full(len(allowed), math.inf)
        return np.argmin(table, axis=1), np.where(allowed.sum(axis=1) > 1, margin, math.inf)

    best: tuple[_Solution, npt.NDArray[np.intp]] | None = None

    def offer(choice: npt.NDArray[np.intp]) -> bool:
        nonlocal best
        found = solve(choice)
        if found is not None and (best is None or found.bits < best[0].bits * (1 - 1e-12)):
            best = (found, choice.copy())
            return True
        return False

    if not kinds.allowed.any(axis=1).all():
        return None
    if (kinds.allowed.sum(axis=1) == 1).all():
        offer(np.argmax(kinds.allowed, axis=1))
        return best

    # Every region at its least demanding and at its cheapest-per-nat kind, then one change at a time.
    for preference in (-kinds.caps, kinds.slopes + (kinds.slopes == 0) * 1e9, kinds.fixed):
        offer(np.argmin(np.where(kinds.allowed, preference, math.inf), axis=1))
    value, prices, _ = bound(kinds.allowed, None)
    offer(choose(kinds.allowed, prices)[0])
    improved = best is not None
    while improved:
        improved = False
        assert best is not None
        for region in range(len(problem.keys)):
            for other in np.flatnonzero(kinds.allowed[region]):
                if other != best[1][region]:
                    changed = best[1].copy()
                    changed[region] = other
                    improved |= offer(changed)

    twins = [
        region > 0 and problem.keys[region] == problem.keys[region - 1]
        and problem.queries[region] == problem.queries[region - 1]
        and bool((kinds.allowed[region] == kinds.allowed[region - 1]).all())
        for region in range(len(problem.keys))
    ]  # fmt: skip
    stack = [(value, prices, kinds.allowed)]
    n_nodes = 0
    while stack and n_nodes < MAX_NODES:
        n_nodes += 1
        value, prices, allowed = stack.pop()
        if value > budget or (best is not None and value >= best[0].bits - GAP * max(best[0].bits, 1e-3)):
            continue
        choice, margin = choose(allowed, prices)
        offer(choice)
        if np.isinf(margin).all():
            continue  # every region decided: `choice` was the only one
        region = int(np.argmin(margin))
        kind = int(choice[region])
        only, without = allowed.copy(), allowed.copy()
        only[region] = False
        only[region, kind] = True
        without[region, kind] = False
        for child in (without, only):
            # Equal regions are interchangeable: keep only choices that do not fall along them.
            for later in range(1, len(twins)):
                if twins[later]:
                    first = int(np.argmax(child[later - 1]))
                    child[later, :first] = False
            if not child.any(axis=1).all():
                continue
            child_value, child_prices, _ = bound(child, prices)
            stack.append((max(value, child_value), child_prices, child))
    return best


# --- entry points
# ------------------------------------------------------------------------------------------------------


def _options(costs: Sequence[Cost] | Sequence[Sequence[Cost]], n_regions: int) -> list[list[Cost]]:
    if not len(costs):
        raise ValueError("costs: expected at least one kind of filter, found none")
    if isinstance(costs[0], Cost):
        return [list(costs)] * n_regions  # type: ignore[arg-type]
    if len(costs) != n_regions:
        raise ValueError(f"costs: expected one list for each of {n_regions} regions, found {len(costs)}")
    return [list(row) for row in costs]  # type: ignore[arg-type]


def _rate(name: str, value: float, low_open: bool = True) -> float:
    value = float(value)
    if not ((value > 0 if low_open else value >= 0) and value <= 1):
        raise ValueError(f"{name}: expected {'0 <' if low_open else '0 <='} {name} <= 1, found {value!r}")
    return value


def allocate(
    key_shares: npt.ArrayLike,
    query_shares: npt.ArrayLike,
    costs: Sequence[Cost] | Sequence[Sequence[Cost]],
    *,
    fpr: float | None = None,
    bits: float | None = None,
    deletability: float = 0.0,
    adversarial_fpr: float = 1.0,
) -> Allocation:
    """Cheapest filters for a target rate, or lowest rate for a budget.

    Parameters
    ----------
    key_shares, query_shares : array_like
        Share of the keys and of the absent-key queries in each region.  They need not add up to 1.
    costs : sequence of Cost, or one such sequence per region
        Kinds of filter on offer; include ``ALL`` where a region may go without.
    fpr : float, optional
        Ordinary target; give it or `bits`.
    bits : float, optional
        Budget in bits per key; give it or `fpr`.
    deletability : float
        Least share of deleted keys that answer "absent".
    adversarial_fpr : float
        Largest rate in any region.

    Returns
    -------
    Allocation

    Notes
    -----
    Exact for given kinds of filter (a closed form and a bracketed root); over the choice of kinds within
    ``1e-6`` of the fewest bits, or ``1e-5`` of the lowest rate, proven by branch and bound.  A region without keys
    gets an empty filter: rate 0, no bits.

    Examples
    --------
    >>> from dlbf.theory.costs import cell_cost
    >>> found = allocate([0.5, 0.5], [0.99, 0.01], [cell_cost(2)], bits=20)
    >>> [round(g * b, 3) for g, b in zip([0.5, 0.5], found.bits_per_key)]
    [14.782, 5.218]
    >>> round(found.fpr, 5)
    0.00163
    """
    from dlbf.theory.shares import as_shares

    keys, queries = (
        np.where(shares > 0, np.maximum(shares, LEAST), 0.0) for shares in as_shares(key_shares, query_shares)
    )
    options = _options(costs, len(keys))
    if (fpr is None) == (bits is None):
        raise ValueError(f"expected exactly one of fpr and bits, found fpr={fpr!r} and bits={bits!r}")
    target = 1.0 if fpr is None else _rate("fpr", fpr)
    if target < LEAST:
        raise ValueError(f"fpr: expected at least {LEAST:g}, found {fpr!r}")
    if bits is not None and not (math.isfinite(bits) and bits >= 0):
        raise ValueError(f"bits: expected a finite number >= 0, found {bits!r}")
    if not 0 <= deletability < 1:
        raise ValueError(f"deletability: expected 0 <= deletability < 1, found {deletability!r}")
    worst = _rate("adversarial_fpr", adversarial_fpr)

    used = keys > 0
    stored = [row for row, has_keys in zip(options, used, strict=True) if has_keys]
    if not stored:
        raise ValueError("key_shares: expected at least one region with keys, found none")
    kinds = _Kinds(stored, worst)
    # The targets may not bind: shares can add up to less than 1.
    kept = 1 - deletability if deletability > 0 else max(1.0, float(keys.sum()))
    problem = _Problem(keys[used], queries[used], max(target, 0.0), kept, worst)
    if fpr is None:
        problem.fpr = max(1.0, float(queries.sum()))

    found = _search(problem, kinds)
    if found is None:
        return _NOTHING
    if bits is not None:
        if found[0].bits > bits * (1 + 1e-12) + 1e-12:
            return _NOTHING
        found = _spend(problem, kinds, bits, found)
    solution, choice = found
    return _expand(solution, [kinds.costs[index] for index in choice], keys, queries, used)


def _spend(
    problem: _Problem, kinds: _Kinds, budget: float, first: tuple[_Solution, npt.NDArray[np.intp]]
) -> tuple[_Solution, npt.NDArray[np.intp]]:
    """Lowest rate for a budget, over every choice of kinds.

    Spend the budget on one choice of kinds; then ask for the cheapest choice that is a little better than that.  If it
    costs more than the budget the choice was optimal, else it is the next choice.  Each rate is lower than the last.
    """

    def spend(choice: npt.NDArray[np.intp]) -> _Solution | None:
        return problem.best(kinds.slopes[choice], kinds.fixed[choice], kinds.caps[choice], budget)

    best = first
    if (kinds.allowed.sum(axis=1) == 1).all():
        return spend(first[1]) or first[0], first[1]
    starts = [first[1]]
    for preference in (-kinds.caps, kinds.slopes + (kinds.slopes == 0) * 1e9, kinds.fixed):
        starts.append(np.argmin(np.where(kinds.allowed, preference, math.inf), axis=1))
    for choice in starts:
        found = spend(choice)
        if found is not None and found.fpr < best[0].fpr:
            best = (found, choice)
    for _ in range(100):
        problem.fpr = best[0].fpr * (1 - FPR_GAP)
        if problem.fpr < LEAST:
            break
        cheaper = _search(problem, kinds, budget)
        if cheaper is None or cheaper[0].bits > budget:
            break
        found = spend(cheaper[1])
        best = (found if found is not None and found.fpr < cheaper[0].fpr else cheaper[0], cheaper[1])
    return best


def _expand(
    solution: _Solution, costs: list[Cost], keys: Floats, queries: Floats, used: npt.NDArray[np.bool_]
) -> Allocation:
    rates: list[float] = []
    bases: list[str] = []
    spent: list[float] = []
    chosen = iter(zip(solution.rates.tolist(), costs, strict=True))
    for has_keys in used:
        if not has_keys:
            rates.append(0.0)
            bases.append("all")
            spent.append(0.0)
            continue
        rate, cost = next(chosen)
        rates.append(rate)
        bases.append("all" if rate == 1 and cost.fixed == 0 else cost.base)
        spent.append(cost.fixed - cost.slope * math.log(rate))
    return Allocation(
        True,
        tuple(rates),
        tuple(bases),
        tuple(spent),
        float(keys @ np.array(spent)),
        float(queries @ np.array(rates)),
        float(keys @ np.array(rates)),
        max(rates),
        solution.multipliers,
    )


def smallest_budget(
    key_shares: npt.ArrayLike,
    query_shares: npt.ArrayLike,
    costs: Sequence[Cost] | Sequence[Sequence[Cost]],
    *,
    deletability: float = 0.0,
    adversarial_fpr: float = 1.0,
) -> float:
    """Fewest bits per key that meet the deletability and adversarial targets at all; inf when none do.

    Examples
    --------
    >>> from dlbf.theory import base_costs
    >>> round(smallest_budget([0.2, 0.8], [0.9, 0.1], base_costs("cuckoo"), deletability=0.9), 2)
    5.52
    """
    found = allocate(
        key_shares, query_shares, costs, fpr=1.0, deletability=deletability, adversarial_fpr=adversarial_fpr
    )
    return found.bits if found.feasible else math.inf


def sandwich(rates: Sequence[float]) -> tuple[float, tuple[float, ...]]:
    """The fastest point of the ridge: an initial filter that takes over the weakest region's whole rate.

    Moving ``b0`` bits per key from the regions into an initial filter multiplies every region's own rate by the same
    factor that the initial filter contributes, so memory, false positives and deletability stay as they are (cells of
    one width).  The furthest one can go is ``e_0 = max_r e_r``; the weakest region then has no filter of its own and
    most absent keys are rejected before the model runs.

    Returns
    -------
    initial : float
        Rate of the initial filter; 1 means there is none.
    members : tuple of float
        Rates of the regions' own filters; initial times member is the rate given.

    Examples
    --------
    >>> sandwich([0.01, 0.5])
    (0.5, (0.02, 1.0))
    """
    if not len(rates):
        raise ValueError("rates: expected at least one, found none")
    initial = max(_rate("rates", rate, low_open=False) for rate in rates)
    if initial == 0:
        return 1.0, tuple(rates)
    return initial, tuple(rate / initial for rate in rates)
