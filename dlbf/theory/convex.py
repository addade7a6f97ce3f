"""The best rates once the kind of filter in each region is given: a convex problem with a closed form.

``e_r = min(cap_r, s_r G_r / (l1 H_r + l2 G_r))`` with two multipliers: for a given ratio of the two the level follows
from one sort (the "water level"), and the ratio by bracketing.  There is no starting point to get wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Problem", "Solution"]

Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Solution:
    """Rates of the regions, and what they cost and give."""

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


def bracket(function: Callable[[float], float], low: float, high: float) -> float:
    """Root of a function with ``function(low) > 0 >= function(high)``; returns the end where it is <= 0.

    Illinois steps, and a bisection whenever the bracket has not halved.
    """
    at_low, at_high = function(low), function(high)
    if at_low <= 0:
        return low
    if at_high > 0:
        return high  # there is none, by a rounding error or more: this is as near as it gets
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


class Problem:
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

    def cheapest(self, slopes: Floats, fixed: Floats, caps: Floats) -> Solution | None:
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

                log_mix = bracket(excess, self.log_low, self.log_high)
                rates, level = rates_at(log_mix, queries, fpr)
                multipliers = (1 / level, math.exp(log_mix) / level)
        return self._solution(rates, slopes, fixed, multipliers)

    def best(self, slopes: Floats, fixed: Floats, caps: Floats, budget: float) -> Solution | None:
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
                log_mix = bracket(excess, self.log_low, self.log_high)
            rates, level = rates_at(log_mix)
            multipliers = (1 / level, math.exp(log_mix) / level)
        return self._solution(rates, slopes, fixed, multipliers)

    def _solution(self, rates: Floats, slopes: Floats, fixed: Floats, multipliers: tuple[float, float]) -> Solution:
        bits = float(self.keys @ (fixed - slopes * np.log(rates)))
        return Solution(rates, bits, float(self.queries @ rates), multipliers)
