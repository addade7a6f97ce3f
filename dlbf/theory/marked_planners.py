"""Planners of learned designs whose filters are deletable Bloom filters (DlBF): plbf-dlbf and slbf-2dlbf.

A DlBF has two rates of its own: the one for strangers, and the chance that a removed key stays because none of its bits
could be cleared.  More cells help both, more marks only the second.  With ``x`` cells for each key, ``k`` hashes and a
share ``s`` of the bits for marks (``S = (1-s)/s`` cells for each, a whole number)::

    l = k/x    rate = (1 - e^-l)^k    kept = (1 - e^-l ((1+l) e^-l)^(S-1))^k    bits = x / (1-s)

No line gives its price, so the filters are chosen from a table of those that are the best for some prices of the two
rates, and then all of a design are scaled together until the targets or the budget are just met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dlbf.theory.costs import cell_cost
from dlbf.theory.cuts import choose_cut, cut_many
from dlbf.theory.outcomes import finish, infeasible
from dlbf.theory.plain_planners import MARK_SHARES
from dlbf.theory.plans import FilterPlan, Plan
from dlbf.theory.tasks import Task

__all__ = ["marked_filter", "plan_marked_regions", "plan_marked_sandwich"]

Floats = npt.NDArray[np.float64]
# Prices of each of the two rates for which the table has the best filter; a sandwich looks at every pair of filters.
MANY_PRICES, FEW_PRICES = 60, 20


def marked_filter(cells: Floats, hashes: Floats, marks: Floats) -> tuple[Floats, Floats, Floats]:
    """Bits per key, rate for strangers, and chance to be kept, of DlBFs with so many cells per key.

    Examples
    --------
    >>> bits, rate, kept = marked_filter(np.array([9.0]), np.array([5.0]), np.array([0.1]))
    >>> round(float(bits[0]), 2), round(float(rate[0]), 4), round(float(kept[0]), 3)
    (10.0, 0.0141, 0.269)
    """
    load = hashes / cells
    rate = (-np.expm1(-load)) ** hashes
    clean = np.exp(-load + ((1 - marks) / marks - 1) * (np.log1p(load) - load))
    return cells / (1 - marks), rate, (1 - clean) ** hashes


@dataclass(frozen=True)
class _Table:
    """Filters worth choosing: each is the best for some prices of its two rates."""

    cells: Floats
    hashes: Floats
    marks: Floats
    bits: Floats
    rate: Floats
    kept: Floats


@lru_cache(maxsize=2)
def _table(n_prices: int) -> _Table:
    axes = np.meshgrid(
        np.geomspace(0.25, 120, 120),
        np.arange(1.0, 21.0),
        np.array(MARK_SHARES),
    )
    cells, hashes, marks = (axis.ravel() for axis in axes)
    bits, rate, kept = marked_filter(cells, hashes, marks)
    prices = np.concatenate(([0.0], np.geomspace(0.5, 1e6, n_prices)))
    best = {int(np.argmin(bits + one * rate + two * kept)) for one in prices for two in prices}
    chosen = np.array(sorted(best))
    values = (np.append(column[chosen], none) for column, none in zip((cells, hashes, marks), (0, 0, 0.5), strict=True))
    # The last one is no filter: nothing to pay, everything passes.
    numbers = (np.append(column[chosen], none) for column, none in zip((bits, rate, kept), (0, 1, 1), strict=True))
    return _Table(*values, *numbers)


# What a choice amounts to: bits per key of the whole design, FPR, share of removed keys kept, largest rate of a region.
Figures = tuple[float, float, float, float]


def _meets(task: Task, figures: Figures) -> bool:
    bits, fpr, kept, worst = figures
    return (
        (task.bits is None or bits <= task.bits * (1 + 1e-12))
        and (task.fpr is None or fpr <= task.fpr * (1 + 1e-12))
        and kept <= 1 - task.deletability + 1e-12
        and worst <= task.adversarial_fpr * (1 + 1e-12)
    )


def _scaled(task: Task, figures: Callable[[float], Figures]) -> float | None:
    """By how much to scale the cells of all filters: up to the budget, or down until the targets are just met."""
    low, high = 0.5, 2.0
    if task.bits is not None:
        # The largest that fits; it must meet the targets as well.
        for _ in range(50):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if figures(middle)[0] <= task.bits else (low, middle)
        return low if _meets(task, figures(low)) else None
    if not _meets(task, figures(high)):
        return None
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _meets(task, figures(middle)) else (middle, high)
    return high


def _filter_plan(cells: float, hashes: float, marks: float) -> FilterPlan:
    if hashes == 0:
        return FilterPlan("all", 1.0, 0.0)
    bits, rate, kept = marked_filter(np.array([cells]), np.array([hashes]), np.array([marks]))
    return FilterPlan("dlbf", float(rate[0]), float(bits[0]), int(hashes), marks, float(kept[0]))


def _rates(cells: Floats, hashes: Floats, marks: Floats) -> tuple[Floats, Floats, Floats]:
    """As ``marked_filter``, where no hashes are no filter."""
    with np.errstate(divide="ignore", invalid="ignore"):
        bits, rate, kept = marked_filter(cells, hashes, marks)
    none = hashes == 0
    return np.where(none, 0.0, bits), np.where(none, 1.0, rate), np.where(none, 1.0, kept)


def _candidates(task: Task, keys: Floats, queries: Floats) -> npt.NDArray[np.intp]:
    """Filters for all regions, one row each: the best for some prices of the two rates."""
    table = _table(MANY_PRICES)
    barred = np.where(table.rate <= task.adversarial_fpr * (1 + 1e-9), 0.0, math.inf)
    passing = np.outer(queries, table.rate)
    rows = []
    for price_kept in (0.0,) if task.deletability == 0 else (0.0, *np.geomspace(0.5, 1e6, 40).tolist()):
        own = keys[:, None] * (table.bits + price_kept * table.kept) + barred
        rows += [np.argmin(own + price * passing, axis=1) for price in np.geomspace(1e-3, 1e9, 80).tolist()]
    return np.unique(np.array(rows), axis=0)


def plan_marked_regions(task: Task) -> Plan:
    """A DlBF per region."""
    cuts = cut_many(task, [cell_cost(1)])
    keys, queries = task.merged(cuts)
    table, chosen = _table(MANY_PRICES), _candidates(task, keys, queries)
    cells, hashes, marks = table.cells[chosen], table.hashes[chosen], table.marks[chosen]
    spent = table.bits[chosen] @ keys
    # Bits grow with the cells, so a budget says by how much to scale each; else each is tried at several sizes.
    if task.bits is not None:
        scales = (task.bits / np.maximum(spent, 1e-12))[:, None]
    else:
        scales = np.broadcast_to(np.geomspace(0.7, 1.4, 15), (len(chosen), 15))
    best: tuple[float, int, float] | None = None
    for column in scales.T:
        _, rate, kept = _rates(column[:, None] * cells, hashes, marks)
        fpr = rate @ queries
        good = (kept @ keys <= 1 - task.deletability) & (rate.max(axis=1) <= task.adversarial_fpr * (1 + 1e-9))
        good &= ((column >= 0.5) & (column <= 2)) if task.fpr is None else (fpr <= task.fpr)
        value = np.where(good, fpr if task.bits is not None else column * spent, math.inf)
        at = int(np.argmin(value))
        if math.isfinite(value[at]) and (best is None or value[at] < best[0]):
            best = (float(value[at]), at, float(column[at]))
    if best is None:
        return infeasible(task, _least(task, plan_marked_regions), "the budget is too small for the targets")
    _, at, scale = best

    def figures(more: float) -> Figures:
        bits, rate, kept = _rates(more * scale * cells[at], hashes[at], marks[at])
        return float(keys @ bits), float(queries @ rate), float(keys @ kept), float(rate.max())

    scale *= (_scaled(task, figures) or 1.0) if task.bits is None else 1.0
    members = [
        _filter_plan(scale * float(x), float(k), float(share))
        for x, k, share in zip(cells[at], hashes[at], marks[at], strict=True)
    ]
    return _finished(task, keys, queries, cuts, members, None, plan_marked_regions)


def plan_marked_sandwich(task: Task) -> Plan:
    """A DlBF in front, another below the threshold: every pair of the table is looked at."""
    table = _table(FEW_PRICES)

    def evaluate(cuts: tuple[int, ...], final: bool) -> Plan:
        keys, queries = task.merged(cuts)
        one, two = (axis.ravel() for axis in np.meshgrid(*[np.arange(len(table.bits) - 1)] * 2))
        spent = table.bits[one] + keys[0] * table.bits[two]
        # Bits grow with the cells, so a budget says by how much to scale each pair.
        scales = np.ones(len(one)) if task.bits is None else task.bits / spent
        _, first_rate, first_kept = _rates(scales * table.cells[one], table.hashes[one], table.marks[one])
        _, low_rate, low_kept = _rates(scales * table.cells[two], table.hashes[two], table.marks[two])
        fpr = first_rate * (queries[1] + queries[0] * low_rate)
        kept = first_kept * (keys[1] + keys[0] * low_kept)
        good = (kept <= 1 - task.deletability) & (first_rate <= task.adversarial_fpr) & (scales >= 0.5) & (scales <= 2)
        if task.fpr is not None:
            good &= fpr <= task.fpr
        if not good.any():
            least = _least(task, plan_marked_sandwich) if final else math.nan
            return infeasible(task, least, "the budget is too small for the targets")
        at = int(np.argmin(np.where(good, fpr if task.bits is not None else spent, math.inf)))
        pair = np.array([one[at], two[at]])
        hashes, marks = table.hashes[pair], table.marks[pair]

        def figures(scale: float) -> Figures:
            bits, rate, stays = _rates(scale * table.cells[pair], hashes, marks)
            passing, staying = queries[1] + queries[0] * rate[1], keys[1] + keys[0] * stays[1]
            return (
                float(bits[0] + keys[0] * bits[1]),
                float(rate[0] * passing),
                float(stays[0] * staying),
                float(rate[0]),
            )

        scale = _scaled(task, figures) or 1.0
        first, low = (
            _filter_plan(scale * float(cells), float(k), float(s))
            for cells, k, s in zip(table.cells[pair], hashes, marks, strict=True)
        )
        members = [low, FilterPlan("all", 1.0, 0.0)]
        return _finished(task, keys, queries, cuts, members, first, plan_marked_sandwich if final else None)

    return choose_cut(task, evaluate)


def _finished(
    task: Task,
    keys: Floats,
    queries: Floats,
    cuts: Sequence[int],
    members: list[FilterPlan],
    initial: FilterPlan | None,
    planner: Callable[[Task], Plan] | None,
) -> Plan:
    least = _least(task, planner) if planner is not None else math.nan
    front = 1.0 if initial is None else initial.kept_at(1.0)
    kept = front * sum(float(g) * member.kept_at(1.0) for g, member in zip(keys, members, strict=True))
    return finish(task, keys, queries, cuts, members, least, initial=initial, deletability=1 - kept)


def _least(task: Task, planner: Callable[[Task], Plan]) -> float:
    """The smallest budget that meets the deletability and adversarial targets."""
    if task.deletability == 0 and task.adversarial_fpr == 1:
        return 0.0
    if task.fpr == 1.0 - 1e-9:
        return math.inf
    found = planner(replace(task, bits=None, fpr=1.0 - 1e-9))
    return found.filter_bits if found.feasible else math.inf
