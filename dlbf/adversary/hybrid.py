"""The hybrid model measured: ordinary and forged queries in every proportion, a Bodega filter beside a keyed Bloom
filter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlbf.learned import LearnedFilter
from dlbf.learned.evaluation import Rate
from dlbf.theory import hybrid_crossover, hybrid_fpr

__all__ = ["Hybrid", "measure_hybrid"]

SHARES = tuple(i / 20 for i in range(21))


@dataclass(frozen=True)
class Hybrid:
    """Rates of two filters against the adversary's share of the queries; each rate has its prediction.

    Attributes
    ----------
    shares : tuple of float
    learned, plain : tuple of Rate
        Of the filter with a region on each side of a threshold, and of the one without a model.
    crossover_predicted, crossover_measured : float or None
        Share at which the two are equal; None where one is better throughout.
    """

    shares: tuple[float, ...]
    learned: tuple[Rate, ...]
    plain: tuple[Rate, ...]
    crossover_predicted: float | None
    crossover_measured: float | None

    def to_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        return {
            "shares": list(self.shares),
            "learned": [rate.value for rate in self.learned],
            "learned_predicted": [rate.predicted for rate in self.learned],
            "plain": [rate.value for rate in self.plain],
            "plain_predicted": [rate.predicted for rate in self.plain],
            "crossover_predicted": self.crossover_predicted,
            "crossover_measured": self.crossover_measured,
        }


def measure_hybrid(
    learned: LearnedFilter,
    plain: LearnedFilter,
    ordinary: Sequence[bytes],
    forged: Sequence[bytes],
    *,
    shares: Sequence[float] = SHARES,
    queries: int = 20_000,
    seed: int = 0,
) -> Hybrid:
    """Ask two filters of equal memory for a mixture of ordinary and forged keys, for every share of the latter.

    Parameters
    ----------
    learned : LearnedFilter
        With two regions, such as bodega.
    plain : LearnedFilter
        Without a model, such as secure-bloom.
    ordinary, forged : sequence of bytes
        Absent keys: those of honest users, and the adversary's.
    shares : sequence of float
        The adversary's shares of the queries.
    queries : int
        How many to ask for each share.
    """
    if len(learned.plan.regions) != 2:
        raise ValueError(f"learned: expected a filter with two regions, found {len(learned.plan.regions)}")
    if not ordinary or not forged:
        raise ValueError("expected ordinary and forged keys, found none")
    low, high = (learned.plan.initial_fpr * region.fpr for region in learned.plan.regions)
    model_fpr = learned.plan.regions[1].query_share
    weight = float((learned.region_of(forged) == 1).mean())
    # Every answer once; a mixture is then a draw from the answers.
    answers = [(f.contains_many(ordinary), f.contains_many(forged)) for f in (learned, plain)]
    rng = random.Random(seed)
    rows: tuple[list[Rate], list[Rate]] = ([], [])
    for share in shares:
        n_forged = round(share * queries)
        picks = (
            np.array(rng.choices(range(len(ordinary)), k=queries - n_forged), dtype=np.int64),
            np.array(rng.choices(range(len(forged)), k=n_forged), dtype=np.int64),
        )
        predicted = (hybrid_fpr(model_fpr, high, low, share * weight, share * (1 - weight)), plain.plan.fpr)
        for row, given, expected in zip(rows, answers, predicted, strict=True):
            hits = sum(int(answer[pick].sum()) for answer, pick in zip(given, picks, strict=True))
            row.append(Rate(hits, queries, expected))
    # The line through what was measured at both ends, from all answers.
    start, end = (float(answer.mean()) for answer in answers[0])
    level = float(np.concatenate(answers[1]).mean())
    measured = hybrid_crossover(0.0, end, start, level)
    return Hybrid(
        tuple(shares),
        tuple(rows[0]),
        tuple(rows[1]),
        hybrid_crossover(model_fpr, high, low, plain.plan.fpr, weight),
        measured,
    )
