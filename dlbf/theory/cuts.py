"""Where a planner cuts the score into regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dlbf.theory.costs import Cost
from dlbf.theory.plans import Plan
from dlbf.theory.tasks import Task
from dlbf.theory.thresholds import cheapest_thresholds

__all__ = ["choose_cut", "cut_many"]


def choose_cut(task: Task, evaluate: Callable[[tuple[int, ...], bool], Plan]) -> Plan:
    """Best of the plans for one cut between the shares: all cuts, or with many shares a search that narrows in.

    ``evaluate(cuts, final)`` plans for one cut; `final` when the plan is the one to be returned.
    """
    n_bins = len(task.keys)

    def order(found: Plan) -> tuple[bool, float]:
        if not found.feasible:
            return True, found.min_bits
        if task.fpr is not None:
            return False, found.bits
        weight = task.weight if found.fnr and task.fnr is None else 1.0
        return False, weight * found.fpr + (1 - weight) * found.fnr

    if n_bins == 2:
        return evaluate((1,), True)
    tried: dict[int, Plan] = {}
    candidates = np.arange(1, n_bins) if n_bins <= 65 else np.unique(np.linspace(1, n_bins - 1, 33).round().astype(int))
    while True:
        for cut in candidates.tolist():
            if cut not in tried:
                tried[cut] = evaluate((cut,), False)
        best = min(tried, key=lambda cut: order(tried[cut]))
        known = sorted(tried)
        place = known.index(best)
        low, high = known[max(0, place - 1)], known[min(len(known) - 1, place + 1)]
        candidates = np.unique(np.linspace(low, high, 17).round().astype(int))
        if all(int(cut) in tried for cut in candidates):
            return evaluate((best,), True)


def cut_many(task: Task, costs: Sequence[Cost]) -> tuple[int, ...]:
    """The cheapest cuts into as many regions as the task allows."""
    if len(task.keys) <= task.max_regions:
        return tuple(range(1, len(task.keys)))
    found = cheapest_thresholds(
        task.keys, task.queries, task.max_regions, costs, fpr=task.fpr, bits=task.bits,
        deletability=task.deletability, adversarial_fpr=task.adversarial_fpr, query_floor=task.query_floor,
    )  # fmt: skip
    return found.cuts
