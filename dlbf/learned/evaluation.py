"""Measuring a learned filter honestly: on keys it has not seen, with intervals, beside the prediction."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dlbf.kernels.keys import read_keys
from dlbf.learned.composite import Composite
from dlbf.learned.regions import predicted_deletability

__all__ = ["Evaluation", "Rate", "evaluate"]

Z_99 = 2.5758293035489004


@dataclass(frozen=True)
class Rate:
    """A measured share with its 99 % interval (Wilson), beside what was predicted.

    Examples
    --------
    >>> rate = Rate(hits=12, trials=1000, predicted=0.01)
    >>> float(rate)
    0.012
    >>> print(rate)
    1.2000% (99 %: 0.5810% .. 2.4623%; predicted 1.0000%)
    """

    hits: int
    trials: int
    predicted: float

    @property
    def value(self) -> float:
        """The share."""
        return self.hits / self.trials if self.trials else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """99 % interval of the true share."""
        if not self.trials:
            return 0.0, 1.0
        p, n, z2 = self.value, self.trials, Z_99**2
        centre = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = Z_99 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
        return max(0.0, centre - half), min(1.0, centre + half)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.4%} (99 %: {low:.4%} .. {high:.4%}; predicted {self.predicted:.4%})"


@dataclass(frozen=True)
class Evaluation:
    """What ``dlbf.LearnedFilter.evaluate`` measured; rates are ``Rate``, None where not measured.

    Examples
    --------
    >>> e = Evaluation(fpr=Rate(12, 1000, 0.01))
    >>> print(e)
    FPR           1.2000% (99 %: 0.5810% .. 2.4623%; predicted 1.0000%)
    >>> e.to_dict()["fpr"]["hits"]
    12
    """

    fpr: Rate
    fnr: Rate | None = None
    deletability: Rate | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        out: dict[str, Any] = {}
        for name in ("fpr", "fnr", "deletability"):
            rate: Rate | None = getattr(self, name)
            out[name] = rate and {
                "value": rate.value,
                "interval_99": list(rate.interval),
                "predicted": rate.predicted,
                "hits": rate.hits,
                "trials": rate.trials,
            }
        return out

    def __str__(self) -> str:
        lines = [f"FPR           {self.fpr}"]
        if self.fnr is not None:
            lines.append(f"FNR           {self.fnr}")
        if self.deletability is not None:
            lines.append(f"deletability  {self.deletability}")
        return "\n".join(lines)


def evaluate(filter: Composite, negatives: Iterable[Any], deleted: Iterable[Any] | None) -> Evaluation:
    """See ``dlbf.LearnedFilter.evaluate``."""
    plan = filter.plan
    answers = filter.contains_many(negatives)
    fpr = Rate(int(answers.sum()), len(answers), plan.fpr)
    if deleted is None:
        return Evaluation(fpr)
    # Once each: removing a key twice would take another with it.
    keys = list(dict.fromkeys(read_keys(deleted)))
    answers = filter.contains_many(keys)
    fnr = Rate(int((~answers).sum()), len(keys), plan.fnr)
    if not filter.deletable:
        return Evaluation(fpr, fnr)
    copy = filter.copy()
    copy.remove_many(keys)
    gone = ~copy.contains_many(keys)
    return Evaluation(fpr, fnr, Rate(int(gone.sum()), len(keys), predicted_deletability(filter, keys)))
