"""``plan``: what a design will cost and deliver, before anything is built."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy.typing as npt

from dlbf.filters.kinds import BASES
from dlbf.theory.designs import get_design
from dlbf.theory.learned_planners import (
    plan_auto,
    plan_exact_deleted,
    plan_regions,
    plan_sandwich,
    plan_shared,
    plan_three_filters,
)
from dlbf.theory.marked_planners import plan_marked_regions, plan_marked_sandwich
from dlbf.theory.outcomes import infeasible
from dlbf.theory.plain_planners import plan_dlbf, plan_single
from dlbf.theory.plans import Plan
from dlbf.theory.tasks import Task, check_task

__all__ = ["AUTO_BASES", "PLANNERS", "plan"]

# What `auto` chooses from, region by region.
AUTO_BASES = tuple(row.name for row in BASES.values() if row.deletable and row.price is not None)

# What the column `planner` of the table of designs names.
PLANNERS: dict[str, Callable[[Task], Plan]] = {
    "single": plan_single,
    "dlbf": plan_dlbf,
    "regions": plan_regions,
    "sandwich": plan_sandwich,
    "three-filters": plan_three_filters,
    "exact-deleted": plan_exact_deleted,
    "shared": plan_shared,
    "auto": plan_auto,
    "marked-regions": plan_marked_regions,
    "marked-sandwich": plan_marked_sandwich,
}


def plan(
    design: str = "auto",
    *,
    model_fpr: float | None = None,
    model_fnr: float | None = None,
    key_shares: npt.ArrayLike | None = None,
    query_shares: npt.ArrayLike | None = None,
    bits_per_key: float | None = None,
    fpr: float | None = None,
    deletability: float = 0.0,
    adversarial_fpr: float | None = None,
    fnr: float | None = None,
    counter_bits: int = 4,
    deletions: float = 0.1,
    model_bits_per_key: float = 0.0,
    max_regions: int = 8,
    objective: Literal["fpr", "fpr+fnr"] | float = "fpr+fnr",
    bases: Sequence[str] = AUTO_BASES,
    query_floor: float = 0.0,
) -> Plan:
    """Predict a design and allocate its filters.

    Parameters
    ----------
    design : str
        A name from ``dlbf.theory.designs.DESIGNS``.
    model_fpr, model_fnr : float, optional
        Error rates of the model at its threshold; two regions.
    key_shares, query_shares : array_like, optional
        Instead: share of the keys and of the absent-key queries per score region or score bin, low score first.  Where
        there are more than the design has regions, neighbours are merged at the best cuts.
    bits_per_key, fpr : float, optional
        Budget (model included) or target rate; give one.
    deletability : float
        Least chance that the first key to be removed then answers "absent".  It rises with every removal;
        ``Plan.average_deletability`` and ``Plan.deletability_after`` say to what.
    adversarial_fpr : float, optional
        Largest rate for forged scores, in any region; ``1 - deletability`` if not given (1 for designs that store
        deleted keys).
    fnr : float, optional
        Largest false-negative rate, for the designs that have false negatives; replaces `objective`.  With a target
        `fpr` it is the same as that unless given.
    counter_bits : int
        2, 4 or 8.
    deletions : float
        Share of the keys that will be removed: what designs that store deleted keys make room for, and what the other
        two readings of deletability are for, the average over it and the value after it.
    model_bits_per_key : float
        Size of the model; part of the budget of every design that uses it.
    max_regions : int
        Most regions for designs that may have many.
    objective : {"fpr+fnr", "fpr"} or float
        For designs with false negatives: what to minimise, or the weight of FPR against FNR (0.5 is the sum).
    bases : sequence of str
        What ``auto`` may choose from.
    query_floor : float
        Added to the query share of each region, so that one without sampled queries is not trusted to stay so; about
        one over the number of queries sampled.

    Returns
    -------
    Plan
        Also when nothing fits: then ``feasible`` is False and ``min_bits`` says what would.

    Raises
    ------
    ValueError
        Arguments that make no sense.

    Examples
    --------
    >>> p = plan("slbf-2cbf", model_fpr=0.01, model_fnr=0.5, bits_per_key=20, counter_bits=2)
    >>> round(p.fpr, 5), round(p.deletability, 4), p.feasible
    (0.00163, 0.9588, True)
    >>> plan("slbf-2cbf", model_fpr=0.01, model_fnr=0.5, bits_per_key=9, counter_bits=2).feasible
    False
    """
    row = get_design(design)
    task = check_task(
        row, model_fpr, model_fnr, key_shares, query_shares, bits_per_key, fpr, deletability, adversarial_fpr, fnr,
        counter_bits, deletions, model_bits_per_key, max_regions, objective, bases, query_floor,
    )  # fmt: skip
    if task.deletability > 0 and not row.deletable:
        return infeasible(task, math.inf, "the design cannot delete")
    if task.bits is not None and task.bits < 0 and not row.chooses_model:
        least = PLANNERS[row.planner](dataclasses.replace(task, bits=0.0)).min_bits
        return infeasible(task, least - task.model_bits, "the model alone is larger than the budget")
    return PLANNERS[row.planner](task)
