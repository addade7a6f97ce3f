"""Planners of designs with a model: one function for each shape of design."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dlbf.theory.allocation import Allocation, sandwich
from dlbf.theory.costs import EXACT_SET_BITS, Cost, base_cost
from dlbf.theory.cuts import choose_cut, cut_many
from dlbf.theory.outcomes import finish, infeasible, least_budget, members_of, short
from dlbf.theory.plans import FilterPlan, Plan
from dlbf.theory.shared_array import SharedArray, optimise_shared_array
from dlbf.theory.tasks import Task
from dlbf.theory.three_filter import (
    ThreeFilters,
    optimise_three_filters,
    pareto_front,
    smallest_three_filters,
)
from dlbf.theory.thresholds import best_thresholds

__all__ = ["plan_auto", "plan_exact_deleted", "plan_regions", "plan_sandwich", "plan_shared", "plan_three_filters"]

Floats = npt.NDArray[np.float64]


def plan_regions(task: Task) -> Plan:
    """A filter per region and nothing else."""
    row = task.design
    if row.regions == 2:

        def evaluate(cuts: tuple[int, ...], final: bool) -> Plan:
            keys, queries = task.merged(cuts)
            costs = [task.cost(base) for base in row.members(2)]
            found = task.allocate(keys, queries, costs)
            least = least_budget(task, keys, queries, costs)
            if not found.feasible:
                return short(task, least)
            return finish(task, keys, queries, cuts, members_of(found), least)

        return choose_cut(task, evaluate)
    costs = task.cost(row.member[0])
    cuts = cut_many(task, costs)
    keys, queries = task.merged(cuts)
    found = task.allocate(keys, queries, costs)
    least = least_budget(task, keys, queries, costs)
    if not found.feasible:
        return short(task, least)
    return finish(task, keys, queries, cuts, members_of(found), least)


@dataclass(frozen=True, slots=True)
class _Sandwich:
    """An initial filter and one per region, all of one kind, for regions whose shares are given."""

    task: Task
    cost: Cost
    keys: Floats
    queries: Floats

    @property
    def bare_top(self) -> bool:
        """Is the region of the highest scores without a filter?"""
        return self.task.design.member[-1] == "all"

    def spend(self, bits: float | None, fpr: float | None) -> Allocation:
        """The best rates of initial filter and member together."""
        # With a hidden score the ordinary rate is all an adversary can reach.
        worst = 1.0 if self.task.design.hides_score else self.task.adversarial_fpr
        task = replace(self.task, bits=bits, fpr=fpr, adversarial_fpr=worst)
        found = task.allocate(self.keys, self.queries, [self.cost])
        if found.feasible and self.bare_top and found.rates[-1] < max(found.rates):
            # The model is upside down; the best a sandwich without a top filter can do is to ignore it.
            whole = task.allocate(self.keys.sum(keepdims=True), self.queries.sum(keepdims=True), [self.cost])
            return replace(found, rates=whole.rates * 2, fpr=whole.fpr, bits=whole.bits)
        return found

    def meets(self, found: Allocation) -> bool:
        """Is this a sandwich, and does it keep the adversarial target?"""
        has_initial = found.feasible and (not self.bare_top or max(found.rates) < 1)
        hidden = self.task.design.hides_score
        return has_initial and (not hidden or found.fpr <= self.task.adversarial_fpr * (1 + 1e-12))

    def smallest(self) -> float:
        """The smallest budget for which there is a sandwich that meets the targets."""
        task, keys, queries = self.task, self.keys, self.queries
        if not self.bare_top:
            return least_budget(task, keys, queries, [self.cost])
        if task.deletability == 0 and task.adversarial_fpr == 1 and (keys > 0).all() and (queries > 0).all():
            # The published limit: e_low / e_high = (G/H of low) / (G/H of high), with e_high = 1.
            ratio = float(keys[0] * queries[1] / (queries[0] * keys[1]))
            return float(keys[0]) * self.cost.bits(ratio) if ratio < 1 else 0.0
        low, high = 0.0, 1.0
        while not self.meets(self.spend(high, None)):
            low, high = high, 2 * high
            if high > 4096:
                return math.inf
        while high - low > 1e-11 * high and low < 0.5 * (low + high) < high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.meets(self.spend(middle, None)) else (middle, high)
        return high


def plan_sandwich(task: Task) -> Plan:
    """An initial filter, then a filter per region; the point of the ridge where the weakest region needs none."""
    row = task.design
    assert row.initial is not None
    cost = base_cost(row.initial, task.counter_bits)
    target = task.fpr
    if row.hides_score and target is not None:
        target = min(target, task.adversarial_fpr)

    def evaluate(cuts: tuple[int, ...], final: bool) -> Plan:
        keys, queries = task.merged(cuts)
        regions = _Sandwich(task, cost, keys, queries)
        found = regions.spend(task.bits, target)
        # The smallest budget takes a search of its own, which only the final plan needs.
        least = regions.smallest() if final or not regions.meets(found) else math.nan
        if not regions.meets(found):
            reason = "below the smallest budget the best sandwich has no initial filter" if found.feasible else ""
            return infeasible(task, least, reason or "the budget is too small for the targets")
        front, own = sandwich(found.rates)
        initial = FilterPlan(cost.base, front, cost.bits(front)) if front < 1 else None
        members = [
            FilterPlan("all", 1.0, 0.0) if rate == 1 else FilterPlan(cost.base, rate, cost.bits(rate) if rate else 0.0)
            for rate in own
        ]
        return finish(task, keys, queries, cuts, members, least, initial=initial)

    return choose_cut(task, evaluate)


def plan_three_filters(task: Task) -> Plan:
    """One member filter, two filters of deleted keys; false negatives from the latter."""
    row = task.design
    cell_bits = 1 if row.member[0] == "bits" else task.counter_bits
    if task.deletions == 0:
        raise ValueError(f"{row.name} stores deleted keys: expected deletions > 0, found 0")
    if task.adversarial_fpr < 1:
        return infeasible(task, math.inf, "whoever forges a high score passes: there is no filter above the threshold")
    base, gone = row.member[0], row.deleted[0]
    # A target for FPR alone is met by forgetting every key; hold FNR to the same target unless told otherwise.
    allowed = task.fnr if task.fnr is not None else task.fpr

    def evaluate(cuts: tuple[int, ...], final: bool) -> Plan:
        keys, queries = task.merged(cuts)
        if not (keys.min() > 0 and queries.min() > 0 and keys.max() < 1 and queries.max() < 1):
            return infeasible(task, math.inf, "the design needs a model that errs on both sides")
        p, fn = float(queries[1]), float(keys[0])

        def best(bits: float) -> ThreeFilters | None:
            if allowed is None:
                return optimise_three_filters(p, fn, bits, task.deletions, cell_bits=cell_bits, weight=task.weight)
            front = pareto_front(p, fn, bits, task.deletions, cell_bits=cell_bits, fnr=[allowed]) if bits > 0 else []
            return front[0] if front else None

        def smallest(fpr: float | None) -> ThreeFilters | None:
            assert allowed is not None
            return smallest_three_filters(p, fn, task.deletions, fnr=allowed, fpr=fpr, cell_bits=cell_bits)

        least = 0.0
        if allowed is not None:
            enough = smallest(None)
            least = enough.bits if enough is not None else math.inf
        found = best(task.bits) if task.bits is not None else smallest(task.fpr)
        if found is None and task.bits is None:
            return infeasible(task, math.inf, f"no budget reaches the target rate: the model alone lets {p:.3g} pass")
        if found is None or (task.fpr is not None and found.fpr > task.fpr * (1 + 1e-12)):
            return infeasible(task, least, "the budget is too small for the targets")
        low_gone, high_gone = task.deletions * keys[0], task.deletions * keys[1]
        members = [FilterPlan(base, found.member, found.member_bits / float(keys[0])), FilterPlan("all", 1.0, 0.0)]
        sets = [
            FilterPlan(gone, found.deleted_low, found.deleted_low_bits / float(low_gone)),
            FilterPlan(gone, found.deleted_high, found.deleted_high_bits / float(high_gone)),
        ]
        worst = max(found.member * (1 - found.deleted_low), 1 - found.deleted_high)
        return finish(
            task, keys, queries, cuts, members, least, deleted=sets, fnr=found.fnr, fpr=found.fpr, deletability=1.0,
            adversarial_fpr=worst, bits=found.bits,
        )  # fmt: skip

    return choose_cut(task, evaluate)


def plan_exact_deleted(task: Task) -> Plan:
    """Counters below a cut; above it everything passes but an exact set of the deleted keys."""
    row = task.design
    cost = base_cost(row.member[0], task.counter_bits)
    if len(task.keys) <= task.max_regions:
        cuts: tuple[int, ...] = tuple(range(1, len(task.keys)))
    else:
        cuts = best_thresholds(task.keys, task.queries, task.max_regions, task.query_floor)
    keys, queries = task.merged(cuts)
    n_regions = len(keys)
    best: tuple[float, int, Allocation, float] | None = None
    least = math.inf
    for above in range(n_regions):
        if above and task.adversarial_fpr < 1:
            break  # whoever forges a high score passes
        below = n_regions - above
        kept_keys, kept_queries = keys[:below], queries[:below]
        if not kept_keys.any():
            break
        sets = task.deletions * float(keys[below:].sum()) * EXACT_SET_BITS
        passing = float(queries[below:].sum())
        floor = replace(task, fpr=1.0, bits=None).allocate(kept_keys, kept_queries, [cost])
        least = min(least, floor.bits + sets)
        if task.fpr is not None:
            if task.fpr <= passing:
                continue
            found = replace(task, fpr=task.fpr - passing).allocate(kept_keys, kept_queries, [cost])
            value = found.bits + sets
        else:
            assert task.bits is not None
            if task.bits < sets:
                continue
            found = replace(task, bits=task.bits - sets).allocate(kept_keys, kept_queries, [cost])
            value = found.fpr + passing
        if found.feasible and (best is None or value < best[0]):
            best = (value, above, found, sets)
    if best is None:
        return short(task, least)
    _, above, found, sets = best
    members = members_of(found) + [FilterPlan("all", 1.0, 0.0)] * above
    gone: list[FilterPlan | None] = [None] * (n_regions - above)
    gone += [FilterPlan("exact", 0.0, EXACT_SET_BITS)] * above
    return finish(
        task, keys, queries, cuts, members, least, deleted=gone, deletability=1 - found.kept, bits=found.bits + sets
    )


def plan_shared(task: Task) -> Plan:
    """One array, whole numbers of hashes per region."""
    cell_bits = 1 if task.design.member[0] == "bits" else task.counter_bits
    base = task.design.member[0]
    cost = base_cost(base, task.counter_bits)
    cuts = cut_many(task, [cost])
    keys, queries = task.merged(cuts)

    def solve(fpr: float | None, bits: float | None) -> SharedArray | None:
        return optimise_shared_array(
            keys, queries, cell_bits, fpr=fpr, bits=bits, deletability=task.deletability,
            adversarial_fpr=task.adversarial_fpr,
        )  # fmt: skip

    needs = task.deletability > 0 or task.adversarial_fpr < 1
    floor = solve(1.0, None) if needs else None
    least = 0.0 if not needs else (floor.bits if floor is not None else math.inf)
    found = solve(task.fpr, task.bits)
    if found is None:
        return infeasible(task, least, "the budget is too small for the targets")
    mean = float(keys @ np.array(found.hashes))
    members = [
        FilterPlan(base if count else "all", rate, found.bits * count / mean if mean else 0.0, count)
        for count, rate in zip(found.hashes, found.rates, strict=True)
    ]
    return finish(task, keys, queries, cuts, members, least, bits=found.bits)


def plan_auto(task: Task) -> Plan:
    """The cheapest base per region that the design allows, or without the model where that is no worse."""
    costs = task.cost(task.design.member[0])
    one = np.ones(1)
    plain_bits = None if task.bits is None else task.bits + task.model_bits
    plain = replace(task, bits=plain_bits).allocate(one, one, costs)
    plain_least = least_budget(task, one, one, costs)
    candidates = []
    if plain.feasible:
        candidates.append(finish(task, one, one, (), members_of(plain), plain_least, model_bits=0.0))
    least = plain_least
    if len(task.keys) > 1 and (task.bits is None or task.bits >= 0):
        cuts = cut_many(task, costs)
        keys, queries = task.merged(cuts)
        found = task.allocate(keys, queries, costs)
        floor = least_budget(task, keys, queries, costs)
        least = min(least, floor + task.model_bits)
        if found.feasible:
            members = members_of(found)
            initial = None
            used = {member.base for member in members if member.bits_per_key > 0}
            if used == {"counters"} and found.worst < 1:
                # Cells of one width: the sandwich is free, and faster.
                cost = base_cost("counters", task.counter_bits)
                front, own = sandwich(found.rates)
                initial = FilterPlan("counters", front, cost.bits(front))
                members = [
                    FilterPlan("all" if rate == 1 else "counters", rate, cost.bits(rate) if rate else 0.0)
                    for rate in own
                ]
            candidates.append(finish(task, keys, queries, cuts, members, floor, initial=initial))
    if not candidates:
        result = infeasible(task, least, "the budget is too small for the targets")
        return replace(result, min_bits=least)
    best = min(candidates, key=lambda found: found.bits if task.fpr is not None else found.fpr)
    return replace(best, min_bits=least)
