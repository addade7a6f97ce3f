"""Which kind of filter in which region: branch and bound, where the bound is the Lagrangian dual."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dlbf.theory.convex import Problem, Solution
from dlbf.theory.filter_kinds import Kinds, lagrangian

__all__ = ["Choice", "search", "simple_choices"]

Floats = npt.NDArray[np.float64]
Prices = tuple[float, float]  # in bits per key, of one unit of the ordinary rate and of what deleted keys meet
Choice = npt.NDArray[np.intp]  # the number of the kind in each region
Allowed = npt.NDArray[np.bool_]  # for each region, which kinds it may have

# Branch and bound stops when no choice of kinds can be cheaper by more than this, relatively.
GAP = 1e-6
# Nodes after which the search settles for the best so far.  Measured beside thousands of nodes, on 90 random splits and
# on 31 plans of several sets of scores: the start is up to 7 % dearer, 20 nodes up to 0.3 %, 50 nodes up to 0.07 %.
# 100 were compared on the hardest plan only, without a difference.  Where no proof has come by then, it takes thousands
# more.
MAX_NODES = 200


def search(problem: Problem, kinds: Kinds, budget: float = math.inf) -> tuple[Solution, Choice] | None:
    """Fewest bits over every choice of kinds; choices that cannot fit the budget are not looked into."""
    if not kinds.allowed.any(axis=1).all():
        return None
    run = _Search(problem, kinds)
    if (kinds.allowed.sum(axis=1) == 1).all():
        run.offer(np.argmax(kinds.allowed, axis=1))
        return run.best
    for choice in simple_choices(kinds):
        run.offer(choice)
    bound, prices = run.bound(kinds.allowed, None)
    run.offer(run.choose(kinds.allowed, prices)[0])
    run.change_one_at_a_time()
    run.branch(bound, prices, budget)
    return run.best


def simple_choices(kinds: Kinds) -> list[Choice]:
    """In every region the least demanding kind; or the cheapest per nat; or the one with the least fixed price."""
    preferences = (-kinds.caps, kinds.slopes + (kinds.slopes == 0) * 1e9, kinds.fixed)
    return [np.argmin(np.where(kinds.allowed, preference, math.inf), axis=1) for preference in preferences]


class _Search:
    """One search: the problem, and the best choice of kinds so far."""

    def __init__(self, problem: Problem, kinds: Kinds) -> None:
        self.problem = problem
        self.kinds = kinds
        self.best: tuple[Solution, Choice] | None = None

    def offer(self, choice: Choice) -> bool:
        """Take this choice if it is the cheapest so far."""
        kinds = self.kinds
        solution = self.problem.cheapest(kinds.slopes[choice], kinds.fixed[choice], kinds.caps[choice])
        if solution is not None and (self.best is None or solution.bits < self.best[0].bits * (1 - 1e-12)):
            self.best = (solution, choice.copy())
            return True
        return False

    def change_one_at_a_time(self) -> None:
        """Change the kind of one region after the other, as long as that helps."""
        improved = self.best is not None
        while improved:
            improved = False
            assert self.best is not None
            for region in range(len(self.problem.keys)):
                for other in np.flatnonzero(self.kinds.allowed[region]):
                    if other != self.best[1][region]:
                        changed = self.best[1].copy()
                        changed[region] = other
                        improved |= self.offer(changed)

    def branch(self, bound: float, prices: Prices, budget: float) -> None:
        """Divide the choices in two, again and again, and leave out what its bound says cannot be the best."""
        twins = self._twins()
        stack = [(bound, prices, self.kinds.allowed)]
        n_nodes = 0
        while stack and n_nodes < MAX_NODES:
            n_nodes += 1
            bound, prices, allowed = stack.pop()
            best = self.best
            if bound > budget or (best is not None and bound >= best[0].bits - GAP * max(best[0].bits, 1e-3)):
                continue
            choice, margin = self.choose(allowed, prices)
            self.offer(choice)
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
                child_bound, child_prices = self.bound(child, prices)
                stack.append((max(bound, child_bound), child_prices, child))

    def _twins(self) -> list[bool]:
        """For each region: is it equal to the one before?"""
        keys, queries, allowed = self.problem.keys, self.problem.queries, self.kinds.allowed
        return [
            region > 0 and keys[region] == keys[region - 1]
            and queries[region] == queries[region - 1]
            and bool((allowed[region] == allowed[region - 1]).all())
            for region in range(len(keys))
        ]  # fmt: skip

    def choose(self, allowed: Allowed, prices: Prices) -> tuple[Choice, Floats]:
        """The best kind of each region at these prices, and what the second best would cost more."""
        problem, kinds = self.problem, self.kinds
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

    def bound(self, allowed: Allowed, start: Prices | None) -> tuple[float, Prices]:
        """Lagrangian dual over the two prices, by zooming into ever smaller grids (any point is a valid bound)."""
        problem, kinds = self.problem, self.kinds
        top = math.log(float(kinds.slopes.max()) + float(kinds.fixed.max()) + 1)
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
            total = self._dual(allowed, one, two)
            at = np.unravel_index(int(np.argmax(total)), total.shape)
            if total[at] > best:
                best, best_point = float(total[at]), (float(one[at]), float(two[at]))
            for axis in range(2):
                step = (highs[axis] - lows[axis]) / 8
                centre = math.log(best_point[axis]) if best_point[axis] > 0 else lows[axis]
                lows[axis], highs[axis] = centre - 1.1 * step, centre + 1.1 * step
        return best, best_point

    def _dual(self, allowed: Allowed, one: Floats, two: Floats) -> Floats:
        """Bits and priced errors less the priced targets, with the best kind in each region; for a grid of prices."""
        problem, kinds = self.problem, self.kinds
        caps = np.where(allowed.T, kinds.caps[:, None], math.nan)  # (kinds, regions)
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
        total: Floats = values @ problem.keys - one * problem.fpr - two * min(problem.kept, 1e300)
        return total
