"""From a plan to bytes: what each plan costs when it is laid out for these keys, and which is the smallest."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from dlbf.learned.assembly import FEW_KEYS, Part, build_parts, composite_bytes
from dlbf.learned.explanation import Alternative
from dlbf.learned.promises import Sampled, Scores, keep_promise
from dlbf.learned.regions import predicted_rates
from dlbf.models import Model
from dlbf.theory import Plan, allocate, get_design, merge_shares, plan
from dlbf.theory.costs import Cost, base_costs
from dlbf.theory.designs import MANY
from dlbf.theory.outcomes import members_of
from dlbf.theory.plans import FilterPlan

__all__ = ["MAX_REGIONS", "Arguments", "Layout", "Scores", "alternatives_to", "planned", "smallest", "without_model"]

MAX_REGIONS = 8
# Each region has a filter of its own with room to spare, and an entry in the directory: few keys want few of them.
REGIONS_TRIED = (MAX_REGIONS, 4, 2)
# A budget is searched in so many plans at most, and is spent when less than this share of it is left.
BUDGET_STEPS = 16
BUDGET_GAP = 0.005
# Designs from which nothing can be removed, and which ``auto`` may follow where nothing is asked of removed keys.
KEEPING = ("plbf", "lbf", "slbf", "ada-bf")
# A model that saves less than this share of the bits is not worth its time.
MIN_SAVING = 0.01


class Arguments(TypedDict, total=False):
    """What ``dlbf.theory.plan`` is asked."""

    bits_per_key: float | None
    fpr: float | None
    deletability: float
    adversarial_fpr: float | None
    counter_bits: int
    deletions: float
    max_regions: int
    bases: Sequence[str]
    # These are about a model.
    key_shares: npt.ArrayLike
    query_shares: npt.ArrayLike
    model_bits_per_key: float
    query_floor: float


def without_model(arguments: Arguments, fpr: float | None) -> Arguments:
    """The same targets for a plan that has no model, and so aims at the rate itself."""
    plain = arguments.copy()
    plain["fpr"] = fpr
    plain.pop("key_shares", None)
    plain.pop("query_shares", None)
    plain.pop("model_bits_per_key", None)
    plain.pop("query_floor", None)
    return plain


@dataclass(frozen=True)
class Layout:
    """How a plan for these keys becomes bytes."""

    edges: npt.NDArray[np.int64]  # of the bins of scores that plans cut between
    key_scores: Scores
    model: Model
    scale: float  # keys to store for each one known
    spare: float
    headroom: float
    sampled: Sampled
    target: float | None  # rate to promise; None where there is a budget instead

    def thresholds(self, found: Plan) -> list[int]:
        """Cut c lies before bin c, and bin c starts at edges[c - 1]."""
        if len(self.edges):
            return [int(self.edges[cut - 1]) for cut in found.cuts]
        return [0] * (len(found.regions) - 1)

    def counts(self, found: Plan) -> list[int]:
        """Keys of each region, of those known."""
        regions = np.searchsorted(self.thresholds(found), self.key_scores, side="right")
        return [int(n) for n in np.bincount(regions, minlength=len(found.regions))]

    def sizes(self, found: Plan) -> list[int]:
        """Keys that each region is made for."""
        few = FEW_KEYS if self.spare else 0
        return [math.ceil(self.scale * (n + self.spare * math.sqrt(n))) + few for n in self.counts(found)]

    def expected(self, found: Plan) -> list[int]:
        """Keys that will be in each region when as many are stored as the filter is planned for."""
        return [math.ceil(self.scale * self.headroom * n) for n in self.counts(found)]

    def parts(self, found: Plan) -> list[Part]:
        """The base filters."""
        return build_parts(found, self.sizes(found), self.headroom)

    def model_bytes(self, found: Plan) -> int:
        """Bytes of the model, where the plan uses it."""
        return self.model.nbytes if len(found.regions) > 1 else 0

    def nbytes(self, found: Plan) -> int:
        """What the filter's ``nbytes`` will be."""
        return composite_bytes(self.parts(found), self.model_bytes(found))

    def bits_per_key(self, found: Plan) -> float:
        """The same for each key."""
        return 8 * self.nbytes(found) / (self.scale * len(self.key_scores))

    def rates(self, found: Plan) -> npt.NDArray[np.float64]:
        """Rate in each region, as laid out."""
        initial, members = predicted_rates(self.parts(found), self.expected(found))
        return initial * np.array(members)

    def promise(self, found: Plan) -> float:
        """The rate that can be promised of what is built."""
        return self.sampled.promise(self.thresholds(found), self.rates(found))

    def planned_shares(self, found: Plan) -> tuple[float, ...] | None:
        """Shares of the queries that, times the rates, add up to what the kind that passes most often meets; None where
        there is one kind, or one region."""
        if len(found.regions) == 1 or not self.sampled.kinds.any():
            return None
        shares, rates = np.array([region.query_share for region in found.regions]), self.rates(found)
        worst = self.sampled.of_kinds(self.thresholds(found), rates)
        return tuple(round(float(share), 9) for share in worst / max(1e-12, float(shares @ rates)) * shares)


class BudgetError(ValueError):
    """A budget that no plan keeps; ``least`` is the smallest that would do."""

    def __init__(self, text: str, least: float) -> None:
        super().__init__(text)
        self.least = least


def _plan(design: str, arguments: Arguments, changed: Arguments) -> Plan:
    """The plan for these arguments, some of them changed."""
    together: Arguments = {**arguments, **changed}
    return plan(design, **together)


def planned(layout: Layout, design: str, arguments: Arguments, budget: float | None) -> Plan:
    """A plan that promises the rate, or that keeps the budget, when laid out."""
    if budget is not None:
        return _most_for(layout, design, arguments, budget)
    asked, target = arguments["fpr"], layout.target
    assert asked is not None
    assert target is not None
    aim = layout.sampled.first_aim(asked, arguments["adversarial_fpr"] or 1.0) if "key_shares" in arguments else asked
    first = _plan(design, arguments, {"fpr": aim})
    if not first.feasible and aim < asked:
        aim, first = asked, plan(design, **arguments)
    if not first.feasible:
        raise ValueError(
            f"{design} cannot meet these targets: {first.reason}; the smallest budget that could is "
            f"{first.min_bits:.2f} bits per key"
        )
    if len(first.regions) == 1:
        return first  # its rate does not depend on the queries
    again = _with_cuts(design, arguments, first.cuts)

    def attempt(rate: float) -> tuple[Plan, float] | None:
        found = first if rate == aim else again({"fpr": rate})
        return (found, layout.promise(found)) if found.feasible else None

    return keep_promise(target, aim, attempt) or first


def _with_cuts(design: str, arguments: Arguments, cuts: Sequence[int]) -> Callable[[Arguments], Plan]:
    """Plans with these cuts, for other targets: where to cut is most of the work, and hardly depends on them."""
    fixed = arguments.copy()
    if cuts:
        fixed["key_shares"] = merge_shares(arguments["key_shares"], cuts)
        fixed["query_shares"] = merge_shares(arguments["query_shares"], cuts)

    def again(changed: Arguments) -> Plan:
        found = _plan(design, fixed, changed)
        return replace(found, cuts=tuple(cuts[cut - 1] for cut in found.cuts)) if cuts else found

    return again


def _with_kinds(first: Plan, arguments: Arguments) -> Callable[[Arguments], Plan]:
    """Plans with the cuts and the kinds of filters of ``first``, for other budgets."""
    keys, queries = ([getattr(r, name) for r in first.regions] for name in ("key_share", "query_share"))
    worst = arguments["adversarial_fpr"]

    def line(member: FilterPlan) -> Cost:
        """The price that the filter was chosen for."""
        lines = [one for one in base_costs(member.base, first.counter_bits) if member.fpr <= one.max_fpr * (1 + 1e-9)]
        return min(lines, key=lambda one: abs(one.bits(member.fpr or 1.0) - member.bits_per_key))

    costs = [[line(region.member)] for region in first.regions]

    def again(changed: Arguments) -> Plan:
        spend = changed["bits_per_key"]
        assert spend is not None
        found = allocate(
            keys, queries, costs, bits=max(0.0, spend - first.model_bits), deletability=arguments["deletability"],
            adversarial_fpr=1.0 if worst is None else worst,
        )  # fmt: skip
        if not found.feasible:
            return replace(first, feasible=False)
        regions = tuple(replace(r, member=m) for r, m in zip(first.regions, members_of(found), strict=True))
        return replace(
            first, regions=regions, fpr=found.fpr, deletability=1 - found.kept, adversarial_fpr=found.worst,
            bits=found.bits + first.model_bits,
        )  # fmt: skip

    return again


def _most_for(layout: Layout, design: str, arguments: Arguments, budget: float) -> Plan:
    """The plan that keeps the budget and can promise the lowest rate, over how many regions there may be."""
    n_regions = REGIONS_TRIED if get_design(design).regions == MANY and "key_shares" in arguments else (MAX_REGIONS,)
    found, refusals = [], []
    for most in n_regions:
        try:
            found.append(_within_budget(layout, design, {**arguments, "max_regions": most}, budget))
        except BudgetError as error:
            refusals.append(error)
    if not found:
        raise min(refusals, key=lambda error: error.least)
    return min(found, key=layout.promise)


def _within_budget(layout: Layout, design: str, arguments: Arguments, budget: float) -> Plan:
    """The plan for the most bits that, built in whole cells and slots with headroom and directory, keeps the budget.

    What is built costs about ``headroom`` times what the filters of a plan do: try that, then bracket.
    """
    model_bits = min(budget, arguments.get("model_bits_per_key", 0.0))
    spend = model_bits + (budget - model_bits) / layout.headroom
    first = _plan(design, arguments, {"bits_per_key": spend})
    if not first.feasible and math.isfinite(first.min_bits):
        # A hair more, or rounding could make that infeasible, too.
        spend = max(first.min_bits * (1 + 1e-9), 1e-6)
        first = _plan(design, arguments, {"bits_per_key": spend})
    if not first.feasible:
        raise BudgetError(f"{design} cannot meet these targets at any budget: {first.reason}", math.inf)
    chosen = get_design(design).chooses_model and first.initial is None
    again = _with_kinds(first, arguments) if chosen else _with_cuts(design, arguments, first.cuts)
    low, high = max(first.min_bits * (1 + 1e-9), 1e-6), 2 * budget
    found, best = first, None
    for _ in range(BUDGET_STEPS):
        cost = layout.bits_per_key(found) if found.feasible else math.inf
        if cost <= budget:
            best, low = found, spend
            if cost > (1 - BUDGET_GAP) * budget:
                break
            spend += 0.95 * (budget - cost) / layout.headroom
        else:
            high = spend
            spend = spend - 1.05 * (cost - budget) / layout.headroom if found.feasible else low
        spend = spend if low < spend < high else (low + high) / 2
        if high - low < 1e-4 * budget:
            break
        found = again({"bits_per_key": spend})
    if best is None:
        best = again({"bits_per_key": max(first.min_bits * (1 + 1e-9), 1e-6)})
        if (needed := layout.bits_per_key(best) if best.feasible else math.inf) > budget:
            raise BudgetError(
                f"{budget:g} bits per key are too few for {design} with {len(layout.key_scores):,} keys and headroom "
                f"{layout.headroom:g}; the smallest budget that could do is {needed:.2f} bits per key",
                needed,
            )
    return best


def smallest(
    layout: Layout,
    design: str,
    with_model: Arguments,
    plain: Arguments,
    bases: Sequence[str] | None,
    budget: float | None,
) -> tuple[Plan, Plan | None]:
    """The plan of ``auto`` or ``static`` that is the smallest (for a budget: promises the lowest rate) as laid out, and
    the best with a model.  ``bases`` are those to choose from, None where the design fixes them.

    Plans count the bits of the filters.  Whole buckets, room for the luck of the draw in each region, and the directory
    come on top; with few keys they decide.
    """
    refusals: list[ValueError] = []
    # Where nothing is asked of removed keys, a filter that keeps them will do: it is the best there is for few bits.
    keeps = budget is not None and bases is not None and not with_model["deletability"]

    def price(found: Plan) -> float:
        return layout.promise(found) if budget is not None else layout.nbytes(found)

    def tried(name: str, arguments: Arguments) -> list[Plan]:
        try:
            return [replace(planned(layout, name, arguments, budget), design=design)]
        except ValueError as error:
            refusals.append(error)
            return []

    choice: Arguments = {} if bases is None else {"bases": bases}
    alone: list[Arguments] = [{}] if bases is None else [{"bases": (base,)} for base in bases]
    plans = [p for one in alone for p in tried(design, {**plain, **one})]
    plans += tried("bloom", plain) if keeps else []
    without = min(plans, key=price, default=None)
    learned = None
    if layout.model.kind != "none":
        n_regions = REGIONS_TRIED if budget is None else (MAX_REGIONS,)
        plans = [p for n in n_regions for p in tried(design, {**with_model, **choice, "max_regions": n})]
        plans += [p for name in KEEPING for p in tried(name, with_model)] if keeps else []
        learned = min((found for found in plans if found.learned), key=price, default=None)
    # With a budget a model costs nothing that is not counted; else it is not worth its time for a little.
    worth = 1.0 if budget is not None else 1 - MIN_SAVING
    if learned is not None and (without is None or price(learned) < worth * price(without)):
        return learned, learned
    if without is None:
        raise min(refusals, key=lambda error: getattr(error, "least", math.inf))
    return without, learned


def alternatives_to(chosen: Plan, layout: Layout, arguments: Arguments, fpr: float | None) -> list[Alternative]:
    """What the same targets would cost otherwise, laid out."""
    others = []
    model = layout.model
    if fpr is not None and chosen.learned:
        # They would have to aim as low.
        arguments = {**arguments, "fpr": min(fpr, chosen.fpr)}
    plain = without_model(arguments, fpr)
    for name in ("cuckoo", "d-left", "counting"):
        other = plan(name, **plain)
        if other.feasible and [region.member.base for region in chosen.regions] != [other.regions[0].member.base]:
            others.append(Alternative(f"{name}, no model", layout.bits_per_key(other), "larger"))
    if model.kind != "none":
        for name in ("lbf-2cbf", "plbf-cbf"):
            other = plan(name, **arguments)
            if other.feasible:
                bits = layout.bits_per_key(other)
                others.append(Alternative(name, bits, "counters cost more than fingerprints"))
    for candidate in model.report.get("candidates", ()) if model.report else ():
        if not candidate.get("screened") or candidate["kind"] == "none":
            continue
        name = f"{candidate['kind']} model, {candidate['nbytes']:,} bytes"
        others.append(Alternative(name, candidate["total_bits"], "estimated on a sample"))
    return others
