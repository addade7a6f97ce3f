"""``plan``: what a design will cost and deliver, before anything is built."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dlbf.filters.kinds import BASES
from dlbf.plain import plain_data
from dlbf.theory.allocation import Allocation, allocate, sandwich
from dlbf.theory.costs import ALL, COUNTER_WIDTHS, EXACT_SET_BITS, Cost, base_cost, base_costs
from dlbf.theory.designs import Design, get_design
from dlbf.theory.formulas import dlbf_deletability
from dlbf.theory.shared_array import optimise_shared_array
from dlbf.theory.shares import as_shares, kl_divergence, merge_shares, two_regions
from dlbf.theory.three_filter import (
    ThreeFilters,
    optimise_three_filters,
    pareto_front,
    smallest_three_filters,
)
from dlbf.theory.thresholds import best_thresholds, cheapest_thresholds

__all__ = ["AUTO_BASES", "FilterPlan", "Plan", "RegionPlan", "plan"]

Floats = npt.NDArray[np.float64]

# What `auto` chooses from, region by region.
AUTO_BASES = tuple(row.name for row in BASES.values() if row.deletable and row.price is not None)

# Keys a per-key formula is evaluated for when it needs a number of keys (the limit is reached to 1e-5 long before).
_MANY_KEYS = 1_000_000


@dataclass(frozen=True, slots=True)
class FilterPlan:
    """One base filter to build.

    Attributes
    ----------
    base : str
        Kind: ``"bits"``, ``"counters"``, ``"succinct"``, ``"dlbf"``, ``"d-left"``, ``"cuckoo"``, ``"exact"``;
        ``"all"`` is no filter.
    fpr : float
        Rate to build it for.
    bits_per_key : float
        Bits per key *it stores*.
    hashes : int or None
        Hashes, where the plan fixes them (a shared array, a deletable Bloom filter).
    marks : float or None
        Share of the bits that mark collisions, in a deletable Bloom filter.

    Examples
    --------
    >>> p = plan("cuckoo", fpr=0.01)
    >>> p.regions[0].member.base, round(p.regions[0].member.fpr, 3)
    ('cuckoo', 0.01)
    """

    base: str
    fpr: float
    bits_per_key: float
    hashes: int | None = None
    marks: float | None = None


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """One score region: what falls into it and the filters it has.

    Attributes
    ----------
    key_share, query_share : float
        Shares of the keys and of the absent-key queries (``G_r``, ``H_r``).
    member : FilterPlan
        Filter of the stored keys.
    deleted : FilterPlan or None
        Filter of the deleted keys.

    Examples
    --------
    >>> p = plan("plbf-cbf", key_shares=[0.2, 0.8], query_shares=[0.9, 0.1], fpr=0.01)
    >>> [(region.key_share, round(region.member.fpr, 4)) for region in p.regions]
    [(0.2, 0.0022), (0.8, 0.08)]
    """

    key_share: float
    query_share: float
    member: FilterPlan
    deleted: FilterPlan | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What ``plan`` found.

    Attributes
    ----------
    design : str
        Name of the design.
    feasible : bool
        Do the targets and the budget fit together?  If not, `reason` says why, `min_bits` what would do, and the
        rates are NaN.
    fpr : float
        Rate for a query drawn like the query shares.
    fnr : float
        Rate of stored keys answered "absent"; 0 for designs that promise none.
    deletability : float
        Share of deleted keys answered "absent"; 0 for designs that cannot delete.
    adversarial_fpr : float
        Rate for someone who can forge any score but not the hash (keyed hashing).
    bits : float
        Bits per key, model included.
    model_bits : float
        Of these, the model's.
    min_bits : float
        Smallest budget for which the design and its deletability and adversarial targets are feasible; inf if none is.
    initial : FilterPlan or None
        Filter in front of the model.
    regions : tuple of RegionPlan
        Low score to high.
    cuts : tuple of int
        Which of the given shares each region covers: its inner edges, as indices.
    counter_bits : int
        Width of a counter.
    deletions : float
        Deleted keys planned for, as a share of the keys.
    kl : float
        ``KL(G||H)`` of the regions in nats.
    reason : str
        Why not, when not feasible.

    Examples
    --------
    >>> p = plan("lbf-2cbf", model_fpr=0.01, model_fnr=0.5, bits_per_key=20, counter_bits=2)
    >>> p.feasible, round(p.fpr, 5), p.fnr
    (True, 0.00163, 0.0)
    >>> plan("lbf-2cbf", model_fpr=0.01, model_fnr=0.5, bits_per_key=1, deletability=0.9).reason
    'the budget is too small for the targets'
    """

    design: str
    feasible: bool
    fpr: float
    fnr: float
    deletability: float
    adversarial_fpr: float
    bits: float
    model_bits: float
    min_bits: float
    initial: FilterPlan | None
    regions: tuple[RegionPlan, ...]
    cuts: tuple[int, ...]
    counter_bits: int
    deletions: float
    kl: float
    reason: str = ""

    @property
    def filter_bits(self) -> float:
        """Bits per key of the filters alone."""
        return self.bits - self.model_bits

    @property
    def learned(self) -> bool:
        """Does the plan use a model?  ``auto`` may do without."""
        return len(self.regions) > 1

    @property
    def keyed(self) -> bool:
        """Is a secret part of the design?"""
        return get_design(self.design).keyed

    @property
    def deletable(self) -> bool:
        """Can keys be removed?"""
        return get_design(self.design).deletable

    @property
    def false_negatives(self) -> bool:
        """Can a stored key be answered "absent"?"""
        return get_design(self.design).false_negatives

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: numbers that are not finite become None."""
        result: dict[str, Any] = plain_data(dataclasses.asdict(self))
        return result

    def __str__(self) -> str:
        if not self.feasible:
            return f"{self.design}: not feasible, {self.reason} (smallest budget {self.min_bits:.3f} bits per key)"
        lines = [
            f"{self.design}: {self.bits:.3f} bits per key, FPR {self.fpr:.3g}, FNR {self.fnr:.3g}, "
            f"deletability {self.deletability:.4g}, adversarial FPR {self.adversarial_fpr:.3g}"
        ]
        if self.model_bits:
            lines.append(f"  model                {self.model_bits:8.3f} bits per key")
        if self.initial is not None:
            lines.append(
                f"  initial   {self.initial.base:<10} {self.initial.bits_per_key:8.3f} bits per key, "
                f"e {self.initial.fpr:.3g}"
            )
        for number, region in enumerate(self.regions):
            member = region.member
            text = (
                f"  region {number:<2} {member.base:<10} {member.bits_per_key:8.3f} bits per key, e {member.fpr:<9.3g}"
                f" keys {region.key_share:7.2%}  queries {region.query_share:7.2%}"
            )
            if member.hashes is not None:
                text += f"  hashes {member.hashes}"
            if region.deleted is not None:
                text += f"  deleted: {region.deleted.base}, e {region.deleted.fpr:.3g}"
            lines.append(text)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Task:
    """Checked arguments of one call of ``plan``."""

    design: Design
    keys: Floats
    queries: Floats
    bits: float | None  # of the filters
    fpr: float | None
    fnr: float | None
    deletability: float
    adversarial_fpr: float
    counter_bits: int
    deletions: float
    model_bits: float
    max_regions: int
    weight: float
    bases: tuple[str, ...]
    query_floor: float

    def replace(self, **changes: Any) -> _Task:
        return dataclasses.replace(self, **changes)

    def cost(self, base: str) -> list[Cost]:
        if base == "chosen":
            lines = [line for name in self.bases for line in base_costs(name, self.counter_bits)]
            # Above one half a filter of cells has one hash and is dearer than the formula: what is chosen must be real.
            honest = [line if line.fixed else dataclasses.replace(line, max_fpr=0.5) for line in lines]
            return [ALL, *honest]
        return base_costs(base, self.counter_bits)

    def merged(self, cuts: Sequence[int]) -> tuple[Floats, Floats]:
        queries = merge_shares(self.queries, cuts) + self.query_floor
        return merge_shares(self.keys, cuts), queries / queries.sum()

    def allocate(self, keys: Floats, queries: Floats, costs: Any, **changes: Any) -> Allocation:
        targets: dict[str, Any] = {
            "fpr": self.fpr,
            "bits": self.bits,
            "deletability": self.deletability,
            "adversarial_fpr": self.adversarial_fpr,
        }
        targets.update(changes)
        return allocate(keys, queries, costs, **targets)


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
    adversarial_fpr: float = 1.0,
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
        Least share of deleted keys that answer "absent".
    adversarial_fpr : float
        Largest rate for forged scores.
    fnr : float, optional
        Largest false-negative rate, for the designs that have false negatives; replaces `objective`.  With a target
        `fpr` it is the same as that unless given.
    counter_bits : int
        2, 4 or 8.
    deletions : float
        Deleted keys kept in mind, as a share of the keys, for designs that store them.
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
    task = _check(
        row, model_fpr, model_fnr, key_shares, query_shares, bits_per_key, fpr, deletability, adversarial_fpr, fnr,
        counter_bits, deletions, model_bits_per_key, max_regions, objective, bases, query_floor,
    )  # fmt: skip
    if task.deletability > 0 and not row.deletable:
        return _infeasible(task, math.inf, "the design cannot delete")
    if task.bits is not None and task.bits < 0 and design != "auto":
        least = PLANNERS[row.planner](task.replace(bits=0.0)).min_bits
        return _infeasible(task, least - task.model_bits, "the model alone is larger than the budget")
    return PLANNERS[row.planner](task)


def _check(
    row: Design,
    model_fpr: float | None,
    model_fnr: float | None,
    key_shares: npt.ArrayLike | None,
    query_shares: npt.ArrayLike | None,
    bits_per_key: float | None,
    fpr: float | None,
    deletability: float,
    adversarial_fpr: float,
    fnr: float | None,
    counter_bits: int,
    deletions: float,
    model_bits: float,
    max_regions: int,
    objective: str | float,
    bases: Sequence[str],
    query_floor: float,
) -> _Task:
    by_rates = model_fpr is not None or model_fnr is not None
    by_shares = key_shares is not None or query_shares is not None
    if by_rates and by_shares:
        raise ValueError("expected model_fpr and model_fnr, or key_shares and query_shares; found some of both")
    if by_rates:
        if model_fpr is None or model_fnr is None:
            raise ValueError(f"expected model_fpr and model_fnr, found {model_fpr!r} and {model_fnr!r}")
        keys, queries = two_regions(_number("model_fpr", model_fpr), _number("model_fnr", model_fnr))
    elif by_shares:
        if key_shares is None or query_shares is None:
            missing = "key_shares" if key_shares is None else "query_shares"
            raise ValueError(f"expected key_shares and query_shares, found no {missing}")
        keys, queries = as_shares(key_shares, query_shares)
        for name, shares in (("key_shares", keys), ("query_shares", queries)):
            if not math.isclose(float(shares.sum()), 1, abs_tol=1e-6):
                raise ValueError(f"{name}: expected shares that add up to 1, found a sum of {float(shares.sum()):.6g}")
        keys, queries = keys / keys.sum(), queries / queries.sum()
    elif row.regions == 1 or row.name == "auto":
        keys, queries = np.ones(1), np.ones(1)
    else:
        raise ValueError(f"{row.name} uses a model: expected model_fpr and model_fnr, or key_shares and query_shares")
    if row.regions == 2 and len(keys) == 1:
        raise ValueError(f"{row.name} has two regions: expected at least two shares, found one")
    if (fpr is None) == (bits_per_key is None):
        raise ValueError(f"expected exactly one of bits_per_key and fpr, found {bits_per_key!r} and {fpr!r}")

    def inside(name: str, value: float, low: float, high: float, open_low: bool, open_high: bool) -> float:
        value = _number(name, value)
        if not ((value > low if open_low else value >= low) and (value < high if open_high else value <= high)):
            signs = ("<" if open_low else "<=", "<" if open_high else "<=")
            raise ValueError(f"{name}: expected {low:g} {signs[0]} {name} {signs[1]} {high:g}, found {value!r}")
        return value

    if fpr is not None:
        fpr = inside("fpr", fpr, 0, 1, True, True)
    bits = None
    model_bits = inside("model_bits_per_key", model_bits, 0, math.inf, False, True)
    if bits_per_key is not None:
        bits = inside("bits_per_key", bits_per_key, 0, math.inf, True, True) - (model_bits if row.learned else 0.0)
    inside("deletability", deletability, 0, 1, False, True)
    inside("adversarial_fpr", adversarial_fpr, 0, 1, True, False)
    inside("query_floor", query_floor, 0, 1, False, False)
    if fnr is not None:
        inside("fnr", fnr, 0, 1, True, False)
    inside("deletions", deletions, 0, 1, False, False)
    if counter_bits not in COUNTER_WIDTHS:
        raise ValueError(f"counter_bits: expected one of {COUNTER_WIDTHS}, found {counter_bits!r}")
    if not (isinstance(max_regions, (int, np.integer)) and 1 <= max_regions <= 255):
        raise ValueError(f"max_regions: expected an integer from 1 to 255, found {max_regions!r}")
    if isinstance(objective, str):
        if objective not in ("fpr", "fpr+fnr"):
            raise ValueError(f"objective: expected 'fpr', 'fpr+fnr' or a weight from 0 to 1, found {objective!r}")
        weight = 1.0 if objective == "fpr" else 0.5
    else:
        weight = inside("objective", objective, 0, 1, False, False)
    bases = tuple(bases)
    for base in bases:
        if base_cost(base).base == "all" or not BASES[base].deletable:
            raise ValueError(f"bases: expected deletable base filters, found {base!r}")
    return _Task(
        row, keys, queries, bits, fpr, fnr, float(deletability), float(adversarial_fpr), counter_bits, float(deletions),
        model_bits if row.learned else 0.0, int(max_regions), weight, bases, float(query_floor),
    )  # fmt: skip


def _number(name: str, value: float) -> float:
    if isinstance(value, (bool, str, bytes)):
        raise ValueError(f"{name}: expected a number, found {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected a number, found {value!r}") from None
    if math.isnan(number):
        raise ValueError(f"{name}: expected a number, found {value!r}")
    return number


# --- building the result
# -----------------------------------------------------------------------------------------------


def _infeasible(task: _Task, min_bits: float, reason: str) -> Plan:
    nan = math.nan
    least = min_bits + task.model_bits
    budget = nan if task.bits is None else task.bits + task.model_bits
    return Plan(
        task.design.name, False, nan, nan, nan, nan, budget, task.model_bits, least, None, (), (), task.counter_bits,
        task.deletions, nan, reason,
    )  # fmt: skip


def _finish(
    task: _Task,
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


def _members(found: Allocation) -> list[FilterPlan]:
    return [
        FilterPlan(base, rate, spent)
        for base, rate, spent in zip(found.bases, found.rates, found.bits_per_key, strict=True)
    ]


# --- one planner per shape
# ---------------------------------------------------------------------------------------------


def _plan_single(task: _Task) -> Plan:
    one = np.ones(1)
    costs = task.cost(task.design.member[0])
    least = _least(task, one, one, costs)
    found = task.allocate(one, one, costs)
    if not found.feasible:
        return _infeasible(task, least, "the budget is too small for the targets")
    return _finish(task, one, one, (), _members(found), least)


def _least(task: _Task, keys: Floats, queries: Floats, costs: Any) -> float:
    """Smallest budget for the deletability and adversarial targets (and, with many regions, for these regions)."""
    found = task.allocate(keys, queries, costs, fpr=1.0, bits=None)
    return found.bits if found.feasible else math.inf


def _plan_dlbf(task: _Task) -> Plan:
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
        for share in np.concatenate(([0.1], np.linspace(0.1, 0.8, 141)[1:])):
            rate, gone, hashes = rates(bits, float(share))
            if gone >= task.deletability and rate <= task.adversarial_fpr and (best is None or rate < best[0]):
                best = (rate, gone, float(share), hashes)
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
        return _infeasible(task, least, "the budget is too small for the targets")
    return _finish(
        task, one, one, (), [FilterPlan("dlbf", found[0], bits, found[3], found[2])], least, deletability=found[1]
    )


def _choose_cut(task: _Task, evaluate: Callable[[tuple[int, ...], bool], Plan]) -> Plan:
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


def _plan_regions(task: _Task) -> Plan:
    """A filter per region and nothing else."""
    row = task.design
    if row.regions == 2:

        def evaluate(cuts: tuple[int, ...], final: bool) -> Plan:
            keys, queries = task.merged(cuts)
            costs = [task.cost(base) for base in row.members(2)]
            found = task.allocate(keys, queries, costs)
            least = _least(task, keys, queries, costs)
            if not found.feasible:
                return _short(task, least)
            return _finish(task, keys, queries, cuts, _members(found), least)

        return _choose_cut(task, evaluate)
    costs = task.cost(row.member[0])
    cuts = _cut_many(task, costs)
    keys, queries = task.merged(cuts)
    found = task.allocate(keys, queries, costs)
    least = _least(task, keys, queries, costs)
    if not found.feasible:
        return _short(task, least)
    return _finish(task, keys, queries, cuts, _members(found), least)


def _short(task: _Task, least: float) -> Plan:
    """Infeasible for want of a budget, or at any."""
    if math.isinf(least):
        return _infeasible(task, least, "no budget meets the targets: a region without a filter lets everything pass")
    if task.fpr is not None:
        reason = "no budget reaches the target rate: a region without a filter lets more than that pass"
        return _infeasible(task, math.inf, reason)
    return _infeasible(task, least, "the budget is too small for the targets")


def _cut_many(task: _Task, costs: Sequence[Cost]) -> tuple[int, ...]:
    if len(task.keys) <= task.max_regions:
        return tuple(range(1, len(task.keys)))
    found = cheapest_thresholds(
        task.keys, task.queries, task.max_regions, costs, fpr=task.fpr, bits=task.bits,
        deletability=task.deletability, adversarial_fpr=task.adversarial_fpr, query_floor=task.query_floor,
    )  # fmt: skip
    return found.cuts


def _plan_sandwich(task: _Task) -> Plan:
    """An initial filter, then a filter per region; the point of the ridge where the weakest region needs none."""
    row = task.design
    assert row.initial is not None
    cost = base_cost(row.initial, task.counter_bits)
    # With a hidden score the ordinary rate is all an adversary can reach.
    hidden = row.hides_score
    target = task.fpr
    if hidden and target is not None:
        target = min(target, task.adversarial_fpr)
    worst = 1.0 if hidden else task.adversarial_fpr
    bare_top = row.member[-1] == "all"

    def evaluate(cuts: tuple[int, ...], final: bool) -> Plan:
        keys, queries = task.merged(cuts)

        def spend(bits: float | None, fpr: float | None) -> Allocation:
            found = task.allocate(keys, queries, [cost], bits=bits, fpr=fpr, adversarial_fpr=worst)
            if found.feasible and bare_top and found.rates[-1] < max(found.rates):
                # The model is upside down; the best a sandwich without a top filter can do is to ignore it.
                whole = task.allocate(
                    keys.sum(keepdims=True),
                    queries.sum(keepdims=True),
                    [cost],
                    bits=bits,
                    fpr=fpr,
                    adversarial_fpr=worst,
                )
                return dataclasses.replace(found, rates=whole.rates * 2, fpr=whole.fpr, bits=whole.bits)
            return found

        def has_initial(found: Allocation) -> bool:
            return found.feasible and (not bare_top or max(found.rates) < 1)

        def meets(found: Allocation) -> bool:
            return has_initial(found) and (not hidden or found.fpr <= task.adversarial_fpr * (1 + 1e-12))

        def smallest() -> float:
            if not bare_top:
                return _least(task, keys, queries, [cost])
            if task.deletability == 0 and task.adversarial_fpr == 1 and (keys > 0).all() and (queries > 0).all():
                # The published limit: e_low / e_high = (G/H of low) / (G/H of high), with e_high = 1.
                ratio = float(keys[0] * queries[1] / (queries[0] * keys[1]))
                return float(keys[0]) * cost.bits(ratio) if ratio < 1 else 0.0
            low, high = 0.0, 1.0
            while not meets(spend(high, None)):
                low, high = high, 2 * high
                if high > 4096:
                    return math.inf
            while high - low > 1e-11 * high and low < 0.5 * (low + high) < high:
                middle = 0.5 * (low + high)
                low, high = (low, middle) if meets(spend(middle, None)) else (middle, high)
            return high

        found = spend(task.bits, target)
        # The smallest budget takes a search of its own, which only the final plan needs.
        least = smallest() if final or not meets(found) else math.nan
        if not meets(found):
            reason = "below the smallest budget the best sandwich has no initial filter" if found.feasible else ""
            return _infeasible(task, least, reason or "the budget is too small for the targets")
        front, own = sandwich(found.rates)
        initial = FilterPlan(cost.base, front, cost.bits(front)) if front < 1 else None
        members = [
            FilterPlan("all", 1.0, 0.0) if rate == 1 else FilterPlan(cost.base, rate, cost.bits(rate) if rate else 0.0)
            for rate in own
        ]
        return _finish(task, keys, queries, cuts, members, least, initial=initial)

    return _choose_cut(task, evaluate)


def _plan_three_filters(task: _Task) -> Plan:
    """One member filter, two filters of deleted keys; false negatives from the latter."""
    row = task.design
    cell_bits = 1 if row.member[0] == "bits" else task.counter_bits
    if task.deletions == 0:
        raise ValueError(f"{row.name} stores deleted keys: expected deletions > 0, found 0")
    if task.adversarial_fpr < 1:
        return _infeasible(task, math.inf, "whoever forges a high score passes: there is no filter above the threshold")
    base, gone = row.member[0], row.deleted[0]
    # A target for FPR alone is met by forgetting every key; hold FNR to the same target unless told otherwise.
    allowed = task.fnr if task.fnr is not None else task.fpr

    def evaluate(cuts: tuple[int, ...], final: bool) -> Plan:
        keys, queries = task.merged(cuts)
        if not (keys.min() > 0 and queries.min() > 0 and keys.max() < 1 and queries.max() < 1):
            return _infeasible(task, math.inf, "the design needs a model that errs on both sides")
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
            return _infeasible(task, math.inf, f"no budget reaches the target rate: the model alone lets {p:.3g} pass")
        if found is None or (task.fpr is not None and found.fpr > task.fpr * (1 + 1e-12)):
            return _infeasible(task, least, "the budget is too small for the targets")
        low_gone, high_gone = task.deletions * keys[0], task.deletions * keys[1]
        members = [FilterPlan(base, found.member, found.member_bits / float(keys[0])), FilterPlan("all", 1.0, 0.0)]
        sets = [
            FilterPlan(gone, found.deleted_low, found.deleted_low_bits / float(low_gone)),
            FilterPlan(gone, found.deleted_high, found.deleted_high_bits / float(high_gone)),
        ]
        worst = max(found.member * (1 - found.deleted_low), 1 - found.deleted_high)
        return _finish(
            task, keys, queries, cuts, members, least, deleted=sets, fnr=found.fnr, fpr=found.fpr, deletability=1.0,
            adversarial_fpr=worst, bits=found.bits,
        )  # fmt: skip

    return _choose_cut(task, evaluate)


def _plan_exact_deleted(task: _Task) -> Plan:
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
        floor = task.allocate(kept_keys, kept_queries, [cost], fpr=1.0, bits=None)
        least = min(least, floor.bits + sets)
        if task.fpr is not None:
            if task.fpr <= passing:
                continue
            found = task.allocate(kept_keys, kept_queries, [cost], fpr=task.fpr - passing)
            value = found.bits + sets
        else:
            assert task.bits is not None
            if task.bits < sets:
                continue
            found = task.allocate(kept_keys, kept_queries, [cost], bits=task.bits - sets)
            value = found.fpr + passing
        if found.feasible and (best is None or value < best[0]):
            best = (value, above, found, sets)
    if best is None:
        return _short(task, least)
    _, above, found, sets = best
    members = _members(found) + [FilterPlan("all", 1.0, 0.0)] * above
    gone: list[FilterPlan | None] = [None] * (n_regions - above)
    gone += [FilterPlan("exact", 0.0, EXACT_SET_BITS)] * above
    return _finish(
        task, keys, queries, cuts, members, least, deleted=gone, deletability=1 - found.kept, bits=found.bits + sets
    )


def _plan_shared(task: _Task) -> Plan:
    """One array, whole numbers of hashes per region."""
    cell_bits = 1 if task.design.member[0] == "bits" else task.counter_bits
    base = task.design.member[0]
    cost = base_cost(base, task.counter_bits)
    cuts = _cut_many(task, [cost])
    keys, queries = task.merged(cuts)

    def solve(fpr: float | None, bits: float | None) -> Any:
        return optimise_shared_array(
            keys, queries, cell_bits, fpr=fpr, bits=bits, deletability=task.deletability,
            adversarial_fpr=task.adversarial_fpr,
        )  # fmt: skip

    needs = task.deletability > 0 or task.adversarial_fpr < 1
    floor = solve(1.0, None) if needs else None
    least = 0.0 if not needs else (floor.bits if floor is not None else math.inf)
    found = solve(task.fpr, task.bits)
    if found is None:
        return _infeasible(task, least, "the budget is too small for the targets")
    mean = float(keys @ np.array(found.hashes))
    members = [
        FilterPlan(base if count else "all", rate, found.bits * count / mean if mean else 0.0, count)
        for count, rate in zip(found.hashes, found.rates, strict=True)
    ]
    return _finish(task, keys, queries, cuts, members, least, bits=found.bits)


def _plan_auto(task: _Task) -> Plan:
    """The cheapest deletable base per region, or without the model where that is no worse."""
    costs = task.cost("chosen")
    one = np.ones(1)
    plain_bits = None if task.bits is None else task.bits + task.model_bits
    plain = task.allocate(one, one, costs, bits=plain_bits)
    plain_least = _least(task, one, one, costs)
    candidates = []
    if plain.feasible:
        candidates.append(_finish(task, one, one, (), _members(plain), plain_least, model_bits=0.0))
    least = plain_least
    if len(task.keys) > 1 and (task.bits is None or task.bits >= 0):
        cuts = _cut_many(task, costs)
        keys, queries = task.merged(cuts)
        found = task.allocate(keys, queries, costs)
        floor = _least(task, keys, queries, costs)
        least = min(least, floor + task.model_bits)
        if found.feasible:
            members = _members(found)
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
            candidates.append(_finish(task, keys, queries, cuts, members, floor, initial=initial))
    if not candidates:
        result = _infeasible(task, least, "the budget is too small for the targets")
        return dataclasses.replace(result, min_bits=least)
    best = min(candidates, key=lambda found: found.bits if task.fpr is not None else found.fpr)
    return dataclasses.replace(best, min_bits=least)


# What the column `planner` of the table of designs names.
PLANNERS: dict[str, Callable[[_Task], Plan]] = {
    "single": _plan_single,
    "dlbf": _plan_dlbf,
    "regions": _plan_regions,
    "sandwich": _plan_sandwich,
    "three-filters": _plan_three_filters,
    "exact-deleted": _plan_exact_deleted,
    "shared": _plan_shared,
    "auto": _plan_auto,
}
