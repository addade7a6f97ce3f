"""From a plan to bytes: what each plan costs when it is laid out for these keys, and which is the smallest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from dlbf.learned.assembly import FEW_KEYS, Part, build_parts, composite_bytes
from dlbf.learned.explanation import Alternative
from dlbf.learned.regions import predicted_rates
from dlbf.models import Model
from dlbf.theory import Plan, plan

__all__ = ["MAX_REGIONS", "Arguments", "Layout", "Scores", "alternatives_to", "planned", "smallest", "without_model"]

Scores = npt.NDArray[np.int32]

MAX_REGIONS = 8
# Each region has a filter of its own with room to spare, and an entry in the directory: few keys want few of them.
REGIONS_TRIED = (MAX_REGIONS, 4, 2)
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

    def fpr(self, found: Plan) -> float:
        """The rate of what is built."""
        initial, members = predicted_rates(self.parts(found), self.expected(found))
        return initial * sum(region.query_share * rate for region, rate in zip(found.regions, members, strict=True))


def _feasible(design: str, arguments: Arguments) -> Plan:
    found = plan(design, **arguments)
    if not found.feasible:
        raise ValueError(
            f"{design} cannot meet these targets: {found.reason}; the smallest budget that could is "
            f"{found.min_bits:.2f} bits per key"
        )
    return found


def planned(layout: Layout, design: str, arguments: Arguments, budget: float | None) -> Plan:
    """A plan that meets the targets; within the budget, if there is one, when laid out."""
    found = _feasible(design, arguments)
    return found if budget is None else _within_budget(layout, design, arguments, found, budget)


def smallest(
    layout: Layout,
    design: str,
    with_model: Arguments,
    plain: Arguments,
    bases: Sequence[str] | None,
    budget: float | None,
) -> tuple[Plan, Plan | None]:
    """The plan of ``auto`` or ``static`` that is the smallest (for a budget: has the lowest rate) as laid out, and the
    best with a model.  ``bases`` are those to choose from, None where the design fixes them.

    Plans count the bits of the filters.  Whole buckets, room for the luck of the draw in each region, and the directory
    come on top; with few keys they decide.
    """

    def price(found: Plan) -> float:
        return layout.fpr(found) if budget is not None else layout.nbytes(found)

    def tried(arguments: Arguments) -> list[Plan]:
        try:
            return [planned(layout, design, arguments, budget)]
        except ValueError:
            return []

    choice: Arguments = {} if bases is None else {"bases": bases}
    alone: list[Arguments] = [{}] if bases is None else [{"bases": (base,)} for base in bases]
    without = min((found for one in alone for found in tried({**plain, **one})), key=price, default=None)
    learned = None
    if layout.model.kind != "none":
        plans = [p for n in REGIONS_TRIED for p in tried({**with_model, **choice, "max_regions": n})]
        learned = min((found for found in plans if found.learned), key=price, default=None)
    if learned is not None and (without is None or price(learned) < (1 - MIN_SAVING) * price(without)):
        return learned, learned
    if without is None:
        # Nothing will do; say why not.
        return planned(layout, design, {**with_model, **choice}, budget), None
    return without, learned


def _within_budget(layout: Layout, design: str, arguments: Arguments, found: Plan, budget: float) -> Plan:
    """Plan for less until what is built, in whole cells and slots and with its directory, costs no more than asked."""
    spend = budget
    for _ in range(12):
        cost = layout.bits_per_key(found)
        if cost <= budget:
            break
        spend -= 1.2 * (cost - budget)
        if spend <= 0:
            n_keys = len(layout.key_scores)
            parts = [replace(part, shares_with=0) for part in layout.parts(found)]
            fixed = 8 * composite_bytes(parts, layout.model_bytes(found)) / n_keys
            raise ValueError(
                f"{budget:g} bits per key are too few for {n_keys} keys: directory and model alone take "
                f"{fixed:.1f}; the smallest budget that could do is {fixed + 1:.1f} bits per key"
            )
        found = _feasible(design, {**arguments, "bits_per_key": spend})
    return found


def alternatives_to(chosen: Plan, layout: Layout, arguments: Arguments, fpr: float | None) -> list[Alternative]:
    """What the same targets would cost otherwise, laid out."""
    others = []
    model = layout.model
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
