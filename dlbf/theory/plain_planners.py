"""Planners of designs without a model: one filter for all keys."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dlbf.theory.formulas import dlbf_deletability
from dlbf.theory.outcomes import finish, infeasible, least_budget, members_of
from dlbf.theory.plans import FilterPlan, Plan
from dlbf.theory.tasks import Task

__all__ = ["MARK_SHARES", "plan_dlbf", "plan_single"]

# Shares of the bits that mark collisions, one for each whole number of cells under a mark.  With more than nine cells
# hardly a key can be removed.
MARK_SHARES = tuple(1 / (cells + 1) for cells in range(9, 0, -1))

# Keys a per-key formula is evaluated for when it needs a number of keys (the limit is reached to 1e-5 long before).
_MANY_KEYS = 1_000_000


def plan_single(task: Task) -> Plan:
    """One filter of the cheapest size."""
    one = np.ones(1)
    costs = task.cost(task.design.member[0])
    least = least_budget(task, one, one, costs)
    found = task.allocate(one, one, costs)
    if not found.feasible:
        return infeasible(task, least, "the budget is too small for the targets")
    return finish(task, one, one, (), members_of(found), least)


def plan_dlbf(task: Task) -> Plan:
    """m bits, of which r mark collisions; the fewest marks that meet the deletability, at least a tenth of all bits."""
    one = np.ones(1)

    def rates(bits: float, share: float) -> tuple[float, float, int]:
        n_bits = max(16, round(bits * _MANY_KEYS))
        marks = min(n_bits - 2, max(1, round(share * n_bits)))
        per_key = (n_bits - marks) / _MANY_KEYS
        hashes = max(1, round(per_key * math.log(2)))
        fpr = -math.expm1(-hashes / per_key)
        return fpr**hashes, dlbf_deletability(_MANY_KEYS, n_bits, hashes, marks), hashes

    def fit(bits: float) -> tuple[float, float, float, int] | None:
        """Rate, deletability, share of marks and hashes: the best rate among those deletable enough."""
        best = None
        for share in MARK_SHARES:
            rate, gone, hashes = rates(bits, share)
            if gone >= task.deletability and rate <= task.adversarial_fpr and (best is None or rate < best[0]):
                best = (rate, gone, share, hashes)
            if best is not None and task.deletability == 0 and task.adversarial_fpr == 1:
                break
        return best

    def smallest(accept: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0
        while not accept(high):
            low, high = high, high * 2
            if high > 4096:
                return math.inf
        while high - low > 1e-9 * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if accept(middle) else (middle, high)
        return high

    needs = task.deletability > 0 or task.adversarial_fpr < 1
    least = smallest(lambda bits: fit(bits) is not None) if needs else 0.0
    if task.bits is not None:
        bits = task.bits
    else:
        target = task.fpr or 0.0
        bits = smallest(lambda bits: (found := fit(bits)) is not None and found[0] <= target)
    found = fit(bits) if math.isfinite(bits) else None
    if found is None:
        return infeasible(task, least, "the budget is too small for the targets")
    return finish(
        task,
        one,
        one,
        (),
        [FilterPlan("dlbf", found[0], bits, found[3], found[2], 1 - found[1])],
        least,
        deletability=found[1],
    )
