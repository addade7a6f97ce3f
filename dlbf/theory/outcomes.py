"""What every planner ends with: a feasible plan, or the reason why there is none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlbf.theory.allocation import Allocation
from dlbf.theory.plans import FilterPlan, Plan, RegionPlan
from dlbf.theory.shares import kl_divergence
from dlbf.theory.tasks import Costs, Task

__all__ = ["finish", "infeasible", "least_budget", "members_of", "short"]

Floats = npt.NDArray[np.float64]


def infeasible(task: Task, min_bits: float, reason: str) -> Plan:
    """The plan that says why not; ``min_bits`` of the filters would do."""
    nan = math.nan
    least = min_bits + task.model_bits
    budget = nan if task.bits is None else task.bits + task.model_bits
    return Plan(
        task.design.name, False, nan, nan, nan, nan, budget, task.model_bits, least, None, (), (), task.counter_bits,
        task.deletions, nan, reason,
    )  # fmt: skip


def finish(
    task: Task,
    keys: Floats,
    queries: Floats,
    cuts: Sequence[int],
    members: Sequence[FilterPlan],
    min_bits: float,
    *,
    initial: FilterPlan | None = None,
    deleted: Sequence[FilterPlan | None] | None = None,
    fnr: float = 0.0,
    fpr: float | None = None,
    deletability: float | None = None,
    adversarial_fpr: float | None = None,
    bits: float | None = None,
    model_bits: float | None = None,
) -> Plan:
    """The feasible plan of these regions; what is not given follows from the rates of the members."""
    front = 1.0 if initial is None else initial.fpr
    rates = np.array([member.fpr for member in members]) * front
    if deletability is None:
        deletability = 1 - float(keys @ rates) if task.design.deletable else 0.0
    if bits is None:
        bits = float(keys @ np.array([member.bits_per_key for member in members]))
        bits += 0.0 if initial is None else initial.bits_per_key
    fpr = float(queries @ rates) if fpr is None else fpr
    if adversarial_fpr is None:
        adversarial_fpr = fpr if task.design.hides_score else float(rates.max())
    model = task.model_bits if model_bits is None else model_bits
    sets = deleted or [None] * len(members)
    return Plan(
        design=task.design.name,
        feasible=True,
        fpr=fpr,
        fnr=fnr,
        deletability=deletability,
        adversarial_fpr=adversarial_fpr,
        bits=bits + model,
        model_bits=model,
        min_bits=min_bits + model,
        initial=initial,
        regions=tuple(
            RegionPlan(float(g), float(h), member, gone)
            for g, h, member, gone in zip(keys, queries, members, sets, strict=True)
        ),
        cuts=tuple(int(cut) for cut in cuts),
        counter_bits=task.counter_bits,
        deletions=task.deletions,
        kl=kl_divergence(keys, queries),
    )


def members_of(found: Allocation) -> list[FilterPlan]:
    """The member filter of each region, as allocated."""
    return [
        FilterPlan(base, rate, spent)
        for base, rate, spent in zip(found.bases, found.rates, found.bits_per_key, strict=True)
    ]


def least_budget(task: Task, keys: Floats, queries: Floats, costs: Costs) -> float:
    """Smallest budget for the deletability and adversarial targets (and, with many regions, for these regions)."""
    found = dataclasses.replace(task, fpr=1.0, bits=None).allocate(keys, queries, costs)
    return found.bits if found.feasible else math.inf


def short(task: Task, least: float) -> Plan:
    """Infeasible for want of a budget, or at any."""
    if math.isinf(least):
        return infeasible(task, least, "no budget meets the targets: a region without a filter lets everything pass")
    if task.fpr is not None:
        reason = "no budget reaches the target rate: a region without a filter lets more than that pass"
        return infeasible(task, math.inf, reason)
    return infeasible(task, least, "the budget is too small for the targets")
