"""Fits the filter that is recommended, and the one whose model serves the comparison."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import dlbf
from dlbf.filters.base import Filter
from dlbf.learned import LearnedFilter
from dlbf.report.inputs import Inputs, Targets, sample_evenly
from dlbf.report.progress import Say, part_of

__all__ = ["BUILT_KEYS", "Fitted", "fit", "plain_filter"]

# Keys that every design is built for: all 22 take a quarter of a minute.
BUILT_KEYS = 100_000


@dataclass(frozen=True)
class Fitted:
    """What was fitted.

    Attributes
    ----------
    recommended : LearnedFilter
        The filter that ``dlbf fit`` would make, unless one without a model is no larger.
    basis : LearnedFilter or None
        Its model serves the comparison; None where there is nothing to train one on.
    for_comparison_only : bool
        The model of ``basis`` did not pay: the recommended filter has none.
    few_negatives : bool
        Fitting warned that the absent keys are too few.
    """

    recommended: LearnedFilter
    basis: LearnedFilter | None
    for_comparison_only: bool
    few_negatives: bool


def fit(inputs: Inputs, targets: Targets, quick: bool, say: Say) -> Fitted:
    """Fit both filters."""
    best, few = _fit_best(inputs, targets, quick, part_of(say, 0.0, 0.85))
    if best.model.kind == "none":
        basis = _fit_basis(inputs, targets, part_of(say, 0.85, 1.0))
        return Fitted(best, basis, basis is not None, few)
    without = _fit_plain(inputs, targets)
    # What was planned to be a little smaller came out no smaller: a model must earn its place.
    if best.nbytes >= without.nbytes:
        return Fitted(without, best, True, few)
    return Fitted(best, best, False, few)


def _fit_best(inputs: Inputs, targets: Targets, quick: bool, say: Say) -> tuple[LearnedFilter, bool]:
    """The filter that ``dlbf fit`` would make, and whether it said that the absent keys are too few."""
    # A quick model is not searched for, so its size has to be guessed: under half a bit per key.
    guess: dict[str, Any] = {
        "model": "ngram",
        "max_model_bytes": int(min(8192, max(256, 2 ** int(math.log2(len(inputs.keys) / 20))))),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        best = LearnedFilter.fit(
            inputs.keys, inputs.learnt, fpr=targets.fpr, deletability=targets.deletability,
            adversarial_fpr=targets.adversarial_fpr, secret=targets.secret, random_state=targets.seed, progress=say,
            **(guess if quick else {}),
        )  # fmt: skip
    return best, bool(caught)


def _fit_plain(inputs: Inputs, targets: Targets) -> LearnedFilter:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return LearnedFilter.fit(
            inputs.keys, inputs.learnt, fpr=targets.fpr, deletability=targets.deletability, model=None,
            adversarial_fpr=targets.adversarial_fpr, secret=targets.secret, random_state=targets.seed, progress=False,
        )  # fmt: skip


def _fit_basis(inputs: Inputs, targets: Targets, say: Say) -> LearnedFilter | None:
    """A filter with a model that is trained only to compare."""
    if len(inputs.learnt) < 50 or len(inputs.keys) < 50:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        small = LearnedFilter.fit(
            sample_evenly(inputs.keys, BUILT_KEYS), inputs.learnt, fpr=targets.fpr, design="plbf", model="ngram",
            max_model_bytes=1024, random_state=targets.seed, progress=say,
        )  # fmt: skip
    return small if small.model.kind != "none" else None


def plain_filter(keys: list[bytes], targets: Targets) -> Filter:
    """A filter without a model that meets the targets, to be timed beside the recommended one."""
    plain = dlbf.CuckooFilter(max(1, len(keys)), min(targets.fpr, targets.adversarial_fpr, 0.25), secret=targets.secret)
    plain.update(keys)
    return plain
