"""Fitting a learned filter: train, measure on held-out negatives, plan, build, fill."""

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np
import numpy.typing as npt

from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.keys import read_keys
from dlbf.learned.assembly import FLAG_HIDES_SCORE, FLAG_OWN_KEYS
from dlbf.learned.composite import C, empty_composite, parts_of, with_plan
from dlbf.learned.drafts import Draft
from dlbf.learned.explanation import Alternative
from dlbf.learned.holding import ENOUGH_HITS, distinct, hold_out, new_heads, retouched, without
from dlbf.learned.layouts import (
    MAX_REGIONS,
    Arguments,
    Layout,
    Scores,
    alternatives_to,
    planned,
    smallest,
    without_model,
)
from dlbf.learned.promises import Sampled, runs, smoothed
from dlbf.learned.static import STATIC_COSTS, StaticBuilder
from dlbf.learned.strata import BINS, kinds_of, robust_weights
from dlbf.learned.targets import Progress, Targets
from dlbf.models import Model, no_model, train
from dlbf.models.measuring import Quality
from dlbf.theory import Plan, allocate, get_design, merge_shares, shares_from_scores
from dlbf.theory.planner import AUTO_BASES
from dlbf.typenames import Keys

__all__ = ["Prepared", "fit", "prepare"]

MAX_BINS = 1024
# Held-out negatives that are sorted into kinds: enough to see one of a twentieth.
MOST_SORTED = 20_000
# What a query counts for at least, whatever its kind.
LEAST_COUNTED = 0.1
# Bins kept in the plan, from which other targets are planned.
KEPT_BINS = 96


def fit(
    cls: type[C],
    keys: Keys,
    negatives: Keys,
    targets: Targets,
    progress: bool | Progress | None = None,
) -> C:
    """See ``dlbf.LearnedFilter.fit``."""
    report = _reporter(progress)
    report("reading keys", 0.0)
    key_list = distinct(_as_list(keys))
    prepared = prepare(cls, key_list, negatives, targets, report)
    report("filling", 0.0)
    filled = prepared.filled(key_list)
    report("measuring", 0.5)
    final = prepared.measured(filled)
    report("done", 1.0)
    return final


@dataclass(frozen=True)
class Prepared(Generic[C]):
    """A learned filter that is planned and laid out, and still empty.

    Attributes
    ----------
    filter : LearnedFilter
        Empty; somebody fills it.
    draft : Draft
        What it was made of.
    """

    filter: C
    draft: Draft

    @property
    def held(self) -> list[bytes]:
        """Negatives that the model has not seen."""
        return self.draft.held

    def filled(self, keys: list[bytes]) -> C:
        """``filter`` with these keys, all that there are; where it is static, another one."""
        if not self.filter.is_static:
            self.filter.update(keys)
            return self.filter
        builder = StaticBuilder(self.filter, len(keys))
        builder.add(keys)
        return builder.build()

    def measured(self, filled: C) -> C:
        """``filled``, which was made of ``filter``, with what the held-out negatives show in its plan."""
        # The text of the plan grows by what was measured: lay the parts out anew around it.
        return with_plan(filled, replace(self.draft, parts=parts_of(filled)).explain(filled))


def prepare(
    cls: type[C],
    key_list: list[bytes],
    negatives: Keys,
    targets: Targets,
    progress: bool | Progress | None = None,
    *,
    n_keys: int | None = None,
    spare: float = 0.0,
    compare: bool = True,
) -> Prepared[C]:
    """Train, plan and lay out a learned filter without filling it.

    Parameters
    ----------
    cls : type
        Class of the filter to make.
    key_list : list of bytes
        Distinct keys: all that will be stored, or a random sample of them.
    negatives : iterable of keys
        As in ``dlbf.LearnedFilter.fit``.
    progress : callable, optional
        As in ``dlbf.LearnedFilter.fit``.
    targets : Targets
        What is asked of the filter.
    n_keys : int, optional
        How many will be stored, if ``key_list`` is a sample.
    spare : float
        Room in each region for so many standard deviations more than its share: where keys come and go, or are a
        sample, the regions' shares are not exact.
    compare : bool
        Also plan what else was possible, for people to see.
    """
    targets, row = targets.with_defaults(), get_design(targets.design)
    report = _reporter(progress)
    # A key that was asked for often tells no more about others; and held out, it would have been learnt all the same.
    given = distinct(as_given := _as_list(negatives))
    if not key_list:
        raise ValueError("no keys to fit: pass at least one, or use a plain filter such as dlbf.CuckooFilter")
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        warnings.warn(text, stacklevel=5)  # whoever called LearnedFilter.fit

    negative_list = without(given, key_list)
    if n_stored := len(given) - len(negative_list):
        note(
            f"{n_stored:,} of {len(given):,} negatives are among the keys, and were left out: a negative is a key that "
            "is asked for and absent" + ("" if negative_list else "; none is left to learn from")
        )
    goal = targets.fpr if targets.fpr is not None else 0.01
    held, learnt, groups = hold_out(negative_list, goal, targets.random_state, targets.groups, as_given)
    scarce = len(held) * goal < ENOUGH_HITS
    if scarce and row.learned and (negative_list or not n_stored):
        needed = math.ceil(ENOUGH_HITS / goal / 0.5)
        note(
            f"{len(negative_list)} negatives cannot show a rate of {goal:g}; give at least {needed:,}. "
            "The plan assumes the worst that they allow, so the filter is larger than it need be"
        )
    total = max(n_keys or 0, len(key_list))
    model = _model(targets, row.learned and len(held) >= 2, key_list, learnt, held, goal, total, report)
    report("scoring", 0.0)
    key_scores = _scores(model, key_list, targets.secret, row.hides_score)
    held_scores = _scores(model, held, targets.secret, row.hides_score)
    report("planning", 0.0)
    arguments, edges = _arguments(targets, model, key_scores, held_scores, total)
    sampled = Sampled(held_scores, kinds_of(held[:MOST_SORTED], held_scores[:MOST_SORTED]), groups)
    layout = Layout(edges, key_scores, model, total / len(key_list), spare, targets.headroom, sampled, targets.fpr)
    _even_out(arguments, layout)
    if len(edges):
        layout = _in_runs(arguments, layout)
    plan, alternatives = _choose_plan(layout, targets, arguments, compare)
    planned_shares = layout.planned_shares(plan) if targets.fpr is not None else None
    if model.kind != "none" and row.chooses_model and len(plan.regions) == 1:
        layout = replace(layout, model=no_model())
    bins = _kept_bins(key_scores, held_scores) if layout.model.kind != "none" else ()
    if len(plan.regions) > 1 and layout.model.kind == "none":
        raise ValueError(f"the design {plan.design!r} needs a model, and these keys gave none; use design='auto'")
    held_scores = _scores(layout.model, held, targets.secret, row.hides_score)
    held_regions = np.searchsorted(layout.thresholds(plan), held_scores, side="right")
    shifted = _shifted(layout.model, targets, key_list, held, learnt)
    parts, asked = layout.parts(plan), _asked(targets)
    draft = Draft(
        layout, plan, parts, total, held, held_regions, asked, alternatives, notes, bins, shifted, planned_shares
    )
    return Prepared(_empty(cls, draft, targets), draft)


def _shifted(
    model: Model, targets: Targets, keys: list[bytes], held: list[bytes], learnt: list[bytes]
) -> tuple[tuple[str, list[bytes]], ...]:
    """Samples unlike what the model learnt from, each with its name."""
    if model.kind == "none" or model.features is None or get_design(targets.design).hides_score:
        return ()
    samples = [("stored keys with two bytes changed", retouched(keys, targets.random_state))]
    if not isinstance(targets.model, Model):  # what a model that was given has met is not known
        samples.insert(0, ("held-out negatives with a new head", new_heads(held, learnt, model.features.split)))
    return tuple((name, sample) for name, sample in samples if len(sample) >= ENOUGH_HITS)


def _kept_bins(key_scores: Scores, held_scores: Scores) -> tuple[tuple[float, float], ...]:
    """Shares of the keys and of the queries in few bins, to plan other targets with."""
    keys, queries, _ = shares_from_scores(key_scores, held_scores, KEPT_BINS)
    return tuple((round(float(k), 6), round(float(q), 6)) for k, q in zip(keys, queries, strict=True))


def _asked(targets: Targets) -> dict[str, float | None]:
    """What the explanation says was asked for."""
    names = ("fpr", "bits_per_key", "deletability", "adversarial_fpr", "headroom")
    return {name: getattr(targets, name) for name in names}


def _empty(cls: type[C], draft: Draft, targets: Targets) -> C:
    """The filter that the draft describes, without keys."""
    plan, layout = draft.plan, draft.layout
    fpr = targets.fpr if targets.fpr is not None else plan.fpr
    hides, keyed = get_design(plan.design).hides_score, targets.secret is not None
    flags = FLAG_HIDES_SCORE * hides | FLAG_OWN_KEYS * keyed
    return empty_composite(
        cls, draft.parts, layout.thresholds(plan), layout.model, flags, draft.explain(None), draft.capacity, fpr,
        targets.secret,
    )  # fmt: skip


def _arguments(
    targets: Targets, model: Model, key_scores: Scores, held_scores: Scores, n_keys: int
) -> tuple[Arguments, npt.NDArray[np.int64]]:
    """What ``dlbf.theory.plan`` is asked, and the edges of the bins of scores that it cuts between."""
    arguments: Arguments = {
        "bits_per_key": targets.bits_per_key,
        "fpr": targets.fpr,
        "deletability": targets.deletability or 0.0,
        "adversarial_fpr": targets.adversarial_fpr,
        "counter_bits": targets.counter_bits or 4,
        "deletions": targets.deletions,
        "max_regions": MAX_REGIONS,
    }
    edges: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
    if model.kind != "none":
        key_shares, query_shares, edges = shares_from_scores(key_scores, held_scores, MAX_BINS)
        arguments["key_shares"], arguments["query_shares"] = key_shares, query_shares
        # For a rate, whether the model pays is seen when plans are laid out.
        arguments["model_bits_per_key"] = 8 * model.nbytes / n_keys if targets.bits_per_key is not None else 0.0
        arguments["query_floor"] = 1 / max(1, len(held_scores))
    elif get_design(targets.design).learned and not get_design(targets.design).chooses_model:
        arguments["key_shares"] = arguments["query_shares"] = [1.0, 0.0]
    return arguments, edges


def _even_out(arguments: Arguments, layout: Layout) -> None:
    """Plan for shares of the queries with which no kind of them passes much more often than the target says."""
    aim, sampled, edges = arguments["fpr"], layout.sampled, layout.edges
    if aim is None or not len(edges) or not sampled.kinds.any():
        return
    scores = sampled.scores[: len(sampled.kinds)]
    coarse, _, few_edges = shares_from_scores(layout.key_scores, scores, BINS)
    bins = np.searchsorted(few_edges, scores, side="right")
    worst = arguments["adversarial_fpr"] or 1.0
    if (found := robust_weights(coarse, bins, sampled.kinds, aim, worst)) is None:
        return
    weights, arguments["fpr"] = found
    # What hardly counts still has to be told apart: where there are queries and no keys, a cut is all that it takes.
    weights = (1 - LEAST_COUNTED) * weights / weights.mean() + LEAST_COUNTED
    places = np.searchsorted(edges, scores, side="right")
    arguments["query_shares"] = np.bincount(places, weights, len(edges) + 1) / weights.sum()


def _in_runs(arguments: Arguments, layout: Layout) -> Layout:
    """Plan with smoothed shares, in as few bins as have all the cuts that can pay; the layout of those."""
    keys = arguments["key_shares"]
    queries = smoothed(keys, arguments["query_shares"])
    cuts = runs(keys, queries)
    arguments["key_shares"], arguments["query_shares"] = merge_shares(keys, cuts), merge_shares(queries, cuts)
    return replace(layout, edges=layout.edges[[cut - 1 for cut in cuts]])


def _choose_plan(
    layout: Layout, targets: Targets, arguments: Arguments, compare: bool
) -> tuple[Plan, list[Alternative]]:
    """The plan to build, and what else was considered."""
    design, budget = targets.design, targets.bits_per_key
    if not get_design(design).chooses_model:
        return planned(layout, design, arguments, budget), []
    bases: Sequence[str] | None = AUTO_BASES if targets.counter_bits is None else ("counters",)
    if get_design(design).member != ("chosen",):
        bases = None
    # Without a model there is nothing to be uncertain of: that one aims at the rate itself.
    chosen, with_model = smallest(layout, design, arguments, without_model(arguments, targets.fpr), bases, budget)
    alternatives = alternatives_to(chosen, layout, arguments, targets.fpr) if compare else []
    model = layout.model
    if model.kind != "none" and len(chosen.regions) == 1:
        bits = None if with_model is None else layout.bits_per_key(with_model)
        alternatives.insert(0, Alternative(f"{model.kind} model", bits, "saves less than it costs"))
    return chosen, alternatives


def _reporter(progress: bool | Progress | None) -> Progress:
    if callable(progress):
        report: Progress = progress
        return report
    if progress is None:
        progress = sys.stderr.isatty()
    if not progress:
        return lambda stage, fraction: None

    def show(stage: str, fraction: float) -> None:
        sys.stderr.write(f"\rdlbf: {stage:<44s} {fraction:4.0%}" + ("\n" if fraction >= 1 else ""))
        sys.stderr.flush()

    return show


def _as_list(keys: Keys) -> list[bytes]:
    if isinstance(keys, list) and all(type(key) is bytes for key in keys):
        return keys
    return read_keys(keys)


def _model(
    targets: Targets,
    wanted: bool,
    keys: list[bytes],
    learnt: list[bytes],
    held: list[bytes],
    fpr: float,
    n_keys: int,
    report: Progress,
) -> Model:
    """The model that was given, or is trained; none where none is wanted or there is too little to learn from."""
    model, secret = targets.model, targets.secret
    if isinstance(model, Model) and wanted:
        return model
    if model is None or isinstance(model, Model) or model == "none" or not wanted or len(learnt) < 4:
        return no_model()
    if get_design(targets.design).hides_score:
        # The model is trained on what it will see: the keyed hash.
        keys, learnt, held = (_hidden(batch, secret) for batch in (keys, learnt, held))
    return train(
        keys,
        learnt,
        kind=model,
        max_bytes=targets.max_model_bytes,
        validation=held,
        fpr=fpr,
        deletability=targets.deletability or 0.0,
        n_keys=n_keys,
        objective=_objective(targets, fpr, n_keys),
        random_state=targets.random_state,
        progress=report,
        secret=secret,
    )


def _objective(targets: Targets, fpr: float, n_keys: int) -> Callable[[Quality, int], float] | None:
    """Bits per key of a static filter with a model, by which models are compared; None: the usual estimate will do."""
    if get_design(targets.design).member != ("ribbon",):
        return None
    cap = 1.0 if targets.adversarial_fpr is None else targets.adversarial_fpr

    def bits(quality: Quality, n_bytes: int) -> float:
        found = allocate(quality.key_shares, quality.query_shares, STATIC_COSTS, fpr=fpr, adversarial_fpr=cap)
        return found.bits + 8 * n_bytes / n_keys

    return bits


def _hidden(keys: Sequence[bytes], secret: bytes | None) -> list[bytes]:
    return [int(h).to_bytes(8, "little") for h in hash64_many(keys, secret)]


def _scores(model: Model, keys: list[bytes], secret: bytes | None, hides_score: bool) -> Scores:
    scores: Scores = model.score_many(_hidden(keys, secret) if hides_score else keys)
    return scores
