"""Computes, without building, what filters would cost at other targets."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypedDict

import numpy as np

from dlbf.learned import Explanation
from dlbf.report.figures import Curve, EqualForgetting, Point, PriceCurve, Tradeoff
from dlbf.report.inputs import Targets
from dlbf.report.progress import Say, say_nothing
from dlbf.theory import DESIGNS, plan

__all__ = ["curves", "equal_forgetting", "for_all_keys", "trade_offs"]

# Rates of the curves; the target is added.
RATES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0001)
DELETABILITIES = (0.0, 0.5, 0.65, 0.9, 0.99)
FORGED_RATES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
# Planning takes a second per point for a few designs: those get three points and coarser bins (off by 2 % at most).
COARSE = 4
# Filters as papers describe them: name, whether it can delete, bits per key given log2(1 / rate).
TEXTBOOK: tuple[tuple[str, bool, Callable[[float], float]], ...] = (
    ("cuckoo, textbook", True, lambda log: (log + 3) / 0.95),
    ("xor", False, lambda log: 1.23 * log),
    ("binary fuse", False, lambda log: 1.125 * log),
)


class Shares(TypedDict, total=False):
    """What ``plan`` is told of a model; nothing where there is none."""

    key_shares: Sequence[float]
    query_shares: Sequence[float]
    query_floor: float
    model_bits_per_key: float


def for_all_keys(explanation: Explanation, model_bytes: int, n_keys: int) -> Explanation:
    """The plan of a sample as it would be for all keys: the model's share of the bits shrinks."""
    return replace(explanation, model_bits_per_key=8 * model_bytes / n_keys)


def _shares(explanation: Explanation | None, merged: int = 1) -> Shares:
    """Shares of keys and queries that other targets are planned with, so many neighbours in one."""
    if explanation is None or not explanation.bins:
        return {}
    shares = np.add.reduceat(np.array(explanation.bins), np.arange(0, len(explanation.bins), merged), axis=0)
    keys, queries = (shares / shares.sum(axis=0)).T
    return {
        "key_shares": keys,
        "query_shares": queries,
        "query_floor": 1 / explanation.held_out if explanation.held_out else 0.0,
        "model_bits_per_key": explanation.model_bits_per_key,
    }


def curves(
    names: Sequence[str], explanation: Explanation | None, targets: Targets, say: Say = say_nothing
) -> list[Curve]:
    """Bits per key against the false-positive rate: all designs, textbook filters, and the least without a model.

    Computed, not built; designs whose curves coincide are one curve with several names.
    """
    drawn: list[Curve] = []
    for curve in _design_curves(names, explanation, targets, say):
        _put(drawn, curve)
    logs = [(rate, math.log2(1 / rate)) for rate in _rates(targets)]
    for name, deletable, cost in TEXTBOOK:
        _put(drawn, Curve([name], "textbook", deletable, False, [(rate, cost(log)) for rate, log in logs]))
    for deletable in (True, False):
        _put(drawn, Curve(["least without a model"], "bound", deletable, False, logs))
    return drawn


def _rates(targets: Targets) -> list[float]:
    return sorted({*RATES, targets.fpr}, reverse=True)


def _design_curves(names: Sequence[str], explanation: Explanation | None, targets: Targets, say: Say) -> list[Curve]:
    fine, coarse = _shares(explanation), _shares(explanation, COARSE)
    blind: Shares = {**fine, "key_shares": [0.5, 0.5], "query_shares": [0.5, 0.5]}
    few_rates = sorted({min(0.1, 10 * targets.fpr), targets.fpr, targets.fpr / 10}, reverse=True)
    drawn = []
    for number, name in enumerate(names):
        design = DESIGNS[name]
        say(f"curve of {name}", number / len(names))
        if design.learned and not fine and not design.chooses_model:
            continue
        slow = design.shared or design.false_negatives
        # A model that sees only a keyed hash knows nothing, whatever others know.
        shares = blind if design.hides_score else coarse if slow else fine
        points = []
        for rate in few_rates if slow else _rates(targets):
            planned = plan(
                name, fpr=rate, deletability=targets.deletability if design.deletable else 0.0,
                adversarial_fpr=targets.adversarial_fpr, **(shares if design.learned else {}),
            )  # fmt: skip
            if planned.feasible:
                points.append((rate, planned.bits))
        if points:
            drawn.append(Curve([name], "design", design.deletable, design.learned, points))
    return drawn


def _put(drawn: list[Curve], curve: Curve) -> None:
    """Add a curve, or only its name to one that runs along the same points."""
    for other in drawn:
        same = (other.kind, other.deletable) == (curve.kind, curve.deletable)
        if same and _coincide(curve.points, other.points):
            other.names.extend(curve.names)
            return
    drawn.append(curve)


def _coincide(points: Sequence[Point], others: Sequence[Point]) -> bool:
    return len(points) == len(others) and all(
        rate == other_rate and math.isclose(bits, other_bits, rel_tol=0.005)
        for (rate, bits), (other_rate, other_bits) in zip(points, others, strict=True)
    )


def trade_offs(explanation: Explanation, targets: Targets, quick: bool, recommended: bool = True) -> Tradeoff:
    """Bits per key for more or less forgetting, and for more or less resistance to forged keys.

    ``recommended``: the explanation is that of the filter which the report recommends.
    """
    rates = [targets.fpr]
    if not quick:
        rates = sorted({min(0.25, 5 * targets.fpr), targets.fpr, targets.fpr / 10}, reverse=True)
    deletabilities = tuple(sorted({*DELETABILITIES, targets.deletability}))
    rows = [replace(row, chosen=row.chosen and recommended) for row in explanation.trade()]
    prices = [
        PriceCurve(rate, [(share, bits) for share, bits in points if math.isfinite(bits)])
        for rate, points in explanation.tradeoff(deletabilities, tuple(rates)).items()
    ]
    return Tradeoff(prices, _forged_tradeoff(explanation, targets), rows)


def _forged_tradeoff(explanation: Explanation, targets: Targets) -> list[Point]:
    """Bits per key of ``auto`` against the largest rate allowed to forged keys, and so to removed ones."""
    shares = _shares(explanation)
    points = []
    for rate in sorted({*(r for r in FORGED_RATES if r >= targets.fpr), targets.adversarial_fpr}, reverse=True):
        planned = plan("auto", fpr=targets.fpr, adversarial_fpr=rate, **shares)
        if planned.feasible:
            points.append((rate, planned.bits))
    return points


def equal_forgetting(
    explanation: Explanation, targets: Targets, plain_design: str | None, drawn: Sequence[Curve]
) -> EqualForgetting | None:
    """What a model saves if removed keys must be forgotten as well as without one; both sizes are computed.

    None where that was asked for anyway, or there is no filter without a model to compare with.
    """
    # A filter without a model forgets a removed key unless it raises a false alarm.
    deletability = 1 - targets.fpr
    if plain_design is None or targets.deletability >= deletability:
        return None
    plain = next(
        (bits for curve in drawn if plain_design in curve.names for rate, bits in curve.points if rate == targets.fpr),
        math.inf,
    )
    (_, learned), *_ = explanation.tradeoff((deletability,), (targets.fpr,))[targets.fpr]
    if not math.isfinite(learned) or not math.isfinite(plain):
        return None
    return EqualForgetting(deletability, learned, plain, saved_share=max(0.0, 1 - learned / plain))
