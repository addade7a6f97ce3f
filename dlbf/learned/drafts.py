"""A learned filter that is planned and not yet filled, and the explanation of it before and after."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlbf.learned.assembly import DELETED, INITIAL, MEMBER, Part, composite_bytes
from dlbf.learned.composite import Composite
from dlbf.learned.explanation import Alternative, Explanation, Region, Shifted
from dlbf.learned.layouts import Layout
from dlbf.learned.regions import kept_rates, predicted_rates
from dlbf.theory import Plan, get_design

__all__ = ["Draft"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Draft:
    """What was planned for which keys, and how it came about."""

    layout: Layout
    plan: Plan
    parts: list[Part]
    n_keys: int
    held: list[bytes]  # negatives that the model has not seen
    held_regions: npt.NDArray[np.intp]
    targets: dict[str, Any]
    alternatives: list[Alternative]
    notes: list[str]
    bins: tuple[tuple[float, float], ...]
    shifted: tuple[tuple[str, list[bytes]], ...] = ()  # samples unlike what was learnt, with their names
    planned_shares: tuple[float, ...] | None = None  # of the queries, if not as counted: see ``Region``

    @property
    def capacity(self) -> int:
        """Keys that the filter is planned for."""
        return math.ceil(self.n_keys * self.layout.headroom)

    def explain(self, filled: Composite | None) -> Explanation:
        """The plan in words and figures; with a filter that has been filled, also what it does to the negatives."""
        plan, layout, parts = self.plan, self.layout, self.parts
        model, hides = layout.model, get_design(plan.design).hides_score
        initial, members = predicted_rates(parts, layout.expected(plan))
        rates = initial * np.array(members)
        key_shares, query_shares = self._shares()
        fpr, fnr, deletability = self._predicted(rates, key_shares, query_shares)
        overall, measured = self._measured(filled)
        thresholds, sizes = layout.thresholds(plan), layout.sizes(plan)
        deleted_rates = [0.0 if r.deleted is None or r.deleted.base == "exact" else r.deleted.fpr for r in plan.regions]
        n_bytes = {(part.role, part.region): part.nbytes for part in parts}
        bases = {(part.role, part.region): part.base for part in parts}
        return Explanation(
            design=plan.design,
            fpr=fpr,
            fnr=fnr,
            deletability=deletability,
            # A score that nobody can see or choose cannot be forged: the ordinary rate is all there is.
            adversarial_fpr=fpr if hides else float(max(rates)),
            bits_per_key=8 * composite_bytes(parts, model.nbytes) / self.n_keys,
            model_bits_per_key=8 * model.nbytes / self.n_keys,
            model=f"{model.kind}, {model.nbytes:,} bytes" if model.kind != "none" else "no model",
            n_keys=self.n_keys,
            initial_base=bases.get((INITIAL, 0)),
            initial_fpr=initial,
            initial_bytes=n_bytes.get((INITIAL, 0), 0),
            counter_bits=plan.counter_bits,
            deletions=plan.deletions,
            regions=tuple(
                Region(
                    low=None if r == 0 else thresholds[r - 1],
                    key_share=float(key_shares[r]),
                    query_share=float(query_shares[r]),
                    base=bases.get((MEMBER, r), "all"),
                    n_keys=sizes[r],
                    n_bytes=n_bytes.get((MEMBER, r), 0),
                    fpr=members[r],
                    measured_fpr=measured[r],
                    deleted_base=bases.get((DELETED, r)),
                    deleted_fpr=deleted_rates[r] if (DELETED, r) in bases else None,
                    planned_share=None if self.planned_shares is None else self.planned_shares[r],
                )
                for r in range(len(plan.regions))
            ),
            targets=self.targets,
            measured_fpr=overall,
            alternatives=tuple(self.alternatives),
            warnings=tuple(self.notes),
            bins=self.bins,
            held_out=len(self.held),
            shifted=self._shifted(filled),
        )

    def _shifted(self, filled: Composite | None) -> tuple[Shifted, ...]:
        """What the filter lets pass of samples unlike those it learnt from."""
        if filled is None:
            return ()
        return tuple(
            Shifted(name, len(sample), float(filled.contains_many(sample).mean())) for name, sample in self.shifted
        )

    def _shares(self) -> tuple[Floats, Floats]:
        """Shares of the keys and of the queries in each region, as counted."""
        regions = self.plan.regions
        key_shares = np.array(self.layout.counts(self.plan)) / max(1, len(self.layout.key_scores))
        held_counts = np.bincount(self.held_regions, minlength=len(regions))
        if not self.held:
            return key_shares, np.array([region.query_share for region in regions])
        return key_shares, held_counts / len(self.held)

    def _predicted(self, rates: Floats, key_shares: Floats, query_shares: Floats) -> tuple[float, float, float]:
        """False-positive rate, false-negative rate and deletability of the filters as built."""
        plan = self.plan
        if plan.false_negatives:
            return plan.fpr, plan.fnr, plan.deletability
        # For a budget the lowest rate was sought, and found where few queries happened to be: say what holds.
        fpr = float(query_shares @ rates) if self.layout.target is not None else self.layout.promise(plan)
        if any(region.member.kept is not None for region in plan.regions):
            return fpr, 0.0, plan.deletability
        exact = np.array([region.deleted is not None for region in plan.regions])
        if exact.any():
            return fpr, 0.0, 1 - float((key_shares * rates)[~exact].sum())
        return fpr, 0.0, 1 - float(key_shares @ kept_rates(self.parts, rates)) if plan.deletable else 0.0

    def _measured(self, filled: Composite | None) -> tuple[float | None, list[float | None]]:
        """Share of the held-out negatives that pass, of all and of each region; None where there are none to ask."""
        measured: list[float | None] = [None] * len(self.plan.regions)
        if filled is None or not self.held:
            return None, measured
        answers = filled.contains_many(self.held)
        for r in range(len(measured)):
            inside = self.held_regions == r
            measured[r] = float(answers[inside].mean()) if inside.any() else None
        return float(answers.mean()), measured
