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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlbf.theory.branching import Choice, search, simple_choices
from dlbf.theory.convex import Problem, Solution
from dlbf.theory.costs import Cost
from dlbf.theory.filter_kinds import Kinds
from dlbf.theory.shares import as_shares

__all__ = ["Allocation", "allocate", "sandwich", "smallest_budget"]

Floats = npt.NDArray[np.float64]

# For a budget the search stops when no choice of kinds can have a lower rate by more than this, relatively.
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
    kinds = Kinds(stored, worst)
    # The targets may not bind: shares can add up to less than 1.
    kept = 1 - deletability if deletability > 0 else max(1.0, float(keys.sum()))
    problem = Problem(keys[used], queries[used], max(target, 0.0), kept, worst)
    if fpr is None:
        problem.fpr = max(1.0, float(queries.sum()))

    found = search(problem, kinds)
    if found is None:
        return _NOTHING
    if bits is not None:
        if found[0].bits > bits * (1 + 1e-12) + 1e-12:
            return _NOTHING
        found = _spend(problem, kinds, bits, found)
    solution, choice = found
    return _expand(solution, [kinds.costs[index] for index in choice], keys, queries, used)


def _spend(problem: Problem, kinds: Kinds, budget: float, first: tuple[Solution, Choice]) -> tuple[Solution, Choice]:
    """Lowest rate for a budget, over every choice of kinds.

    Spend the budget on one choice of kinds; then ask for the cheapest choice that is a little better than that.  If it
    costs more than the budget the choice was optimal, else it is the next choice.  Each rate is lower than the last.
    """

    def spend(choice: Choice) -> Solution | None:
        return problem.best(kinds.slopes[choice], kinds.fixed[choice], kinds.caps[choice], budget)

    best = first
    if (kinds.allowed.sum(axis=1) == 1).all():
        return spend(first[1]) or first[0], first[1]
    for choice in (first[1], *simple_choices(kinds)):
        found = spend(choice)
        if found is not None and found.fpr < best[0].fpr:
            best = (found, choice)
    for _ in range(100):
        problem.fpr = best[0].fpr * (1 - FPR_GAP)
        if problem.fpr < LEAST:
            break
        cheaper = search(problem, kinds, budget)
        if cheaper is None or cheaper[0].bits > budget:
            break
        found = spend(cheaper[1])
        best = (found if found is not None and found.fpr < cheaper[0].fpr else cheaper[0], cheaper[1])
    return best


def _expand(
    solution: Solution, costs: list[Cost], keys: Floats, queries: Floats, used: npt.NDArray[np.bool_]
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
