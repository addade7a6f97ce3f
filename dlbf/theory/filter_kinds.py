"""The kinds of filter on offer to the optimiser: which region may use which, and which is best at given prices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlbf.theory.costs import Cost

__all__ = ["Kinds", "lagrangian", "undominated"]

Floats = npt.NDArray[np.float64]


def lagrangian(
    ratios: Floats, slopes: Floats, fixed: Floats, caps: Floats, price_fpr: float | Floats, price_kept: float | Floats
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


class Kinds:
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
    kinds = Kinds([costs], adversarial_fpr)
    return [cost for cost, allowed in zip(kinds.costs, kinds.allowed[0], strict=True) if allowed]
