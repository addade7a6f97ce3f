"""``dlbf bench promises``: what becomes of the rate that a fit promises, with few and with many negatives.

One model is shared by all fits; each draws other negatives, plans by them, and is asked about many that it has not
seen.  The outcome is what the regions that were planned let pass of those: the luck of a single table is not in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlbf.bench.data import choose_keys
from dlbf.bench.timing import Say
from dlbf.learned import LearnedFilter
from dlbf.learned.preparing import prepare
from dlbf.learned.targets import Targets
from dlbf.models import train

__all__ = ["SIZES", "PromiseRow", "promises"]

SIZES = (500, 2_500, 10_000, 50_000, 100_000)
# Absent keys that the outcome is measured with, and that the model learns from.
UNSEEN = 150_000
LEARNT = 40_000
MODEL_BYTES = 1024


@dataclass(frozen=True)
class PromiseRow:
    """Fits with as many negatives, each with others.

    Attributes
    ----------
    outcomes : tuple of float
        Rate of queries that were not seen, over the rate that was asked for; of each fit.
    """

    negatives: int
    fpr: float
    adversarial_fpr: float
    bits_per_key: float
    outcomes: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean of the outcomes."""
        return float(np.mean(self.outcomes))

    def broken(self, by: float) -> int:
        """Fits that let more than so many times the promise pass."""
        return sum(outcome > by for outcome in self.outcomes)


def promises(
    given: str | None,
    n_keys: int,
    sizes: Sequence[int],
    n_fits: int,
    fpr: float,
    caps: Sequence[float],
    say: Say = lambda text: None,
) -> tuple[str, list[PromiseRow]]:
    """What was measured on, in words, and a row for every number of negatives and every cap."""
    say("reading keys")
    words, keys, absent = choose_keys(given, n_keys, LEARNT + UNSEEN + 2 * max(sizes))
    learnt, unseen, pool = absent[:LEARNT], absent[LEARNT : LEARNT + UNSEEN], absent[LEARNT + UNSEEN :]
    say("training a model")
    model = train(keys, learnt, kind="ngram", max_bytes=MODEL_BYTES, progress=False)
    scores = model.score_many(unseen)
    rows = []
    for cap in caps:
        targets = Targets(fpr=fpr, deletability=0.0, adversarial_fpr=cap, model=model)
        for size in sizes:
            outcomes, bits = [], []
            for seed in range(n_fits):
                say(f"cap {cap:g}, {size:,} negatives, fit {seed + 1} of {n_fits}")
                chosen = np.random.default_rng((seed, size)).choice(len(pool), size, replace=False)
                plan = prepare(
                    LearnedFilter, keys, [pool[i] for i in chosen.tolist()], targets, False, compare=False
                ).filter.plan
                thresholds = [region.low for region in plan.regions if region.low is not None]
                rates = plan.initial_fpr * np.array([region.fpr for region in plan.regions])
                met = rates[np.searchsorted(thresholds, scores, side="right")] if thresholds else rates
                outcomes.append(float(met.mean()) / fpr)
                bits.append(plan.bits_per_key)
            rows.append(PromiseRow(size, fpr, cap, float(np.mean(bits)), tuple(outcomes)))
    return words, rows
