"""Makes the figures of a report: fits, builds, measures and plans."""

import datetime
from dataclasses import dataclass, replace

import numpy as np

import dlbf
from dlbf.bench.timing import machine
from dlbf.report.advice import recommend, warnings_for
from dlbf.report.comparing import design_rows, measure_built, peer_rows, smallest_plain
from dlbf.report.figures import (
    Built,
    Curve,
    DesignRow,
    EqualForgetting,
    Figures,
    InputFigures,
    KeyFigures,
    NegativeFigures,
    PeerRow,
    TargetFigures,
    Tradeoff,
)
from dlbf.report.fitting import BUILT_KEYS, Fitted, fit, plain_filter
from dlbf.report.inputs import Inputs, Targets, sample_evenly
from dlbf.report.planning import curves, equal_forgetting, for_all_keys, trade_offs
from dlbf.report.progress import Say, part_of, say_nothing
from dlbf.report.readpath import add_up, measure_steps
from dlbf.report.scoring import region_figures, score_figures
from dlbf.report.wording import SHORT_LIST
from dlbf.theory import DESIGNS

__all__ = ["collect"]

# Absent keys that every design is asked for.
ASKED_ABSENT = 100_000


def collect(
    inputs: Inputs, targets: Targets, examples: bool = True, quick: bool = False, say: Say = say_nothing
) -> Figures:
    """Fit, build, measure and plan.

    Parameters
    ----------
    inputs : Inputs
        At least one key.
    targets : Targets
        Rates asked for.
    examples : bool
        Whether some of the keys themselves may be shown.
    quick : bool
        A first look: one kind of model, the designs of the short list, and shorter timing.
    say : callable
        Told the stage and how far the whole is, from 0 to 1.

    Raises
    ------
    ValueError
        If there are no keys, or the targets make no sense.
    """
    if not inputs.keys:
        raise ValueError("a report needs at least one key")
    fitted = fit(inputs, targets, quick, part_of(say, 0.02, 0.35))
    lf = fitted.recommended
    asked, made_up = _asked(inputs)
    main = measure_built(lf, inputs.keys, asked, inputs.n_keys)
    rest = _compare(inputs, targets, fitted, main, asked, made_up, quick, say)
    plain, rounds, timing = plain_filter(inputs.keys, targets), 5 if quick else 20, part_of(say, 0.9, 1.0)
    times = measure_steps(lf, plain, inputs.keys, asked, targets.secret, rounds, timing)
    read_path = None if times is None else add_up(times, main, rest.plain[1] if rest.plain else None)
    scores = None if fitted.basis is None else score_figures(fitted.basis, fitted.for_comparison_only, inputs)
    rejected = scores if fitted.for_comparison_only else None
    figures = Figures(
        dlbf=dlbf.__version__,
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=machine(),
        targets=_target_figures(targets),
        inputs=_input_figures(inputs, min(len(inputs.keys), BUILT_KEYS), len(asked), made_up),
        warnings=warnings_for(
            inputs, targets, lf, main, fitted.few_negatives, rejected, rest.tradeoff.forged, rest.equal_forgetting
        ),
        recommendation=recommend(inputs, lf, main, rest.plain, read_path, rejected),
        designs=rest.designs,
        peers=rest.peers,
        curves=rest.curves,
        tradeoff=rest.tradeoff,
        equal_forgetting=rest.equal_forgetting,
        scores=scores,
        regions=region_figures(lf, inputs, examples),
        read_path=read_path,
        examples_shown=examples,
        quick=quick,
    )
    say("done", 1.0)
    # The page and the JSON say the same: what JSON cannot hold (infinity, NaN) is None in both.
    return Figures.from_dict(figures.to_dict())


@dataclass(frozen=True)
class Comparison:
    """What the recommended filter is compared with."""

    designs: list[DesignRow]
    plain: tuple[str, Built] | None
    peers: list[PeerRow]
    curves: list[Curve]
    tradeoff: Tradeoff
    equal_forgetting: EqualForgetting | None


def _compare(
    inputs: Inputs,
    targets: Targets,
    fitted: Fitted,
    main: Built,
    asked: list[bytes],
    made_up: bool,
    quick: bool,
    say: Say,
) -> Comparison:
    """Build the designs and the peers, and plan for other targets."""
    names = SHORT_LIST if quick else tuple(DESIGNS)
    basis, n_keys = fitted.basis, inputs.n_keys
    sample = sample_evenly(inputs.keys, BUILT_KEYS)
    rows = design_rows(names, sample, inputs.learnt, asked, targets, basis, n_keys, part_of(say, 0.35, 0.6))
    designs = [_adjusted(row, main, made_up) for row in rows]
    plain = smallest_plain(designs)
    peers = peer_rows(sample, asked, targets.fpr, part_of(say, 0.6, 0.65))
    explanation = None if basis is None else for_all_keys(basis.plan, basis.model.nbytes, n_keys)
    drawn = curves(names, explanation, targets, part_of(say, 0.65, 0.8))
    say("trade-offs", 0.8)
    lf = fitted.recommended
    planned = explanation or for_all_keys(lf.plan, lf.model.nbytes, n_keys)
    tradeoff = trade_offs(planned, targets, quick, not fitted.for_comparison_only)
    equal = equal_forgetting(planned, targets, plain[0] if plain else None, drawn) if main.uses_model else None
    return Comparison(designs, plain, peers, drawn, tradeoff, equal)


def _asked(inputs: Inputs) -> tuple[list[bytes], bool]:
    """Absent keys to measure on; True if they had to be made up, which does for filters without a model only."""
    if inputs.unseen:
        return sample_evenly(inputs.unseen, ASKED_ABSENT), False
    stored = set(inputs.keys)
    raw = np.random.default_rng(0).bytes(16 * 20_000)
    return [key for i in range(20_000) if (key := raw[16 * i : 16 * i + 16]) not in stored], True


def _adjusted(row: DesignRow, main: Built, made_up: bool) -> DesignRow:
    """A row as the page should have it: the recommended filter's own figures, and no rate that says nothing."""
    if row.design == "auto":
        # Built for all keys, not for the sample.
        row = replace(row, reason=None, built=main)
    if row.built and row.built.uses_model and made_up:
        # Absent keys nobody asked for say nothing about a model.
        row = replace(row, built=replace(row.built, fpr_measured=None))
    return row


def _target_figures(targets: Targets) -> TargetFigures:
    return TargetFigures(
        fpr=targets.fpr,
        deletability=targets.deletability,
        adversarial_fpr=targets.adversarial_fpr,
        keyed=targets.secret is not None,
        seed=targets.seed,
    )


def _input_figures(inputs: Inputs, built: int, asked: int, made_up: bool) -> InputFigures:
    keys = KeyFigures(
        name=inputs.key_source.name,
        is_store=inputs.key_source.is_store,
        lines=inputs.key_source.total,
        used=len(inputs.keys),
        sampled=inputs.key_source.sampled,
        duplicates=inputs.duplicate_keys,
        n_keys=inputs.n_keys,
        mean_bytes=float(np.mean([len(key) for key in inputs.keys])),
    )
    negatives = NegativeFigures(
        name=inputs.negative_source.name,
        is_store=inputs.negative_source.is_store,
        lines=inputs.negative_source.total,
        used=len(inputs.learnt) + len(inputs.unseen),
        sampled=inputs.negative_source.sampled,
        overlapping=inputs.overlapping,
        repeated=inputs.repeated_negatives,
        learnt=len(inputs.learnt),
        unseen=len(inputs.unseen),
    )
    return InputFigures(keys, negatives, built_keys=built, asked_absent=asked, asked_made_up=made_up)
