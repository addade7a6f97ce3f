"""Measuring a learned filter honestly: on keys it has not seen, with intervals, beside the prediction."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlbf.kernels.keys import read_keys
from dlbf.learned.composite import Composite, parts_of
from dlbf.learned.regions import predicted_deletability
from dlbf.notebook import Shown
from dlbf.typenames import Keys

__all__ = ["Evaluation", "Rate", "evaluate"]

Z_99 = 2.5758293035489004
# Keys that are removed, asked for and put back, one at a time, to measure the first removal.
MOST_SINGLE_REMOVALS = 2_000


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
class Evaluation(Shown):
    """What ``dlbf.LearnedFilter.evaluate`` measured; rates are ``Rate``, None where not measured.

    Attributes
    ----------
    fpr, fnr : Rate
        Absent keys that pass; stored keys that do not.
    deletability : Rate
        Removed keys that answer "absent" once all of them are gone.
    first_removal : Rate
        The same when the key is the only one removed: what a plan promises as ``deletability``.
    average_removal : Rate
        The same asked at once after each removal, while one after the other goes.
    removed_share : float
        The keys that were removed, as a share of all.

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
    first_removal: Rate | None = None
    average_removal: Rate | None = None
    removed_share: float | None = None

    def to_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        out: dict[str, Any] = {}
        for name in ("fpr", "fnr", "deletability", "first_removal", "average_removal"):
            rate: Rate | None = getattr(self, name)
            out[name] = rate and {
                "value": rate.value,
                "interval_99": list(rate.interval),
                "predicted": rate.predicted,
                "hits": rate.hits,
                "trials": rate.trials,
            }
        return out | {"removed_share": self.removed_share}

    def __str__(self) -> str:
        lines = [f"FPR           {self.fpr}"]
        if self.fnr is not None:
            lines.append(f"FNR           {self.fnr}")
        for title, rate in (
            ("first", self.first_removal),
            ("average", self.average_removal),
            ("after", self.deletability),
        ):
            if rate is not None:
                lines.append(f"{f'deletable, {title}':<18}  {rate}")
        if self.removed_share is not None:
            lines.append(f"(one key removed; on average while {self.removed_share:.1%} of the keys go; after that)")
        return "\n".join(lines)


def evaluate(filter: Composite, negatives: Keys, deleted: Keys | None) -> Evaluation:
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
    expected = predicted_deletability(filter, keys)
    single = _removed_alone(filter, keys[:: max(1, len(keys) // MOST_SINGLE_REMOVALS)][:MOST_SINGLE_REMOVALS])
    copy = filter.copy()
    at_once = copy.remove_many(keys)
    gone = ~copy.contains_many(keys)
    if filter.false_negatives:
        at_once = gone  # it says False of a key that was taken for deleted before
    return Evaluation(
        fpr,
        fnr,
        _share(gone, expected.after),
        _share(gone if single is None else single, expected.first),
        _share(at_once, expected.average),
        len(keys) / len(filter) if len(filter) else 0.0,
    )


def _share(answers: npt.NDArray[np.bool_], predicted: float) -> Rate:
    return Rate(int(answers.sum()), len(answers), predicted)


def _removed_alone(filter: Composite, keys: list[bytes]) -> npt.NDArray[np.bool_] | None:
    """Does each key, removed alone, answer "absent"?  None where it cannot be put back, and order does not matter."""
    if filter.false_negatives or not all(part.row.forgets for part in parts_of(filter)):
        return None
    copy = filter.copy()
    answers = np.zeros(len(keys), dtype=np.bool_)
    for number, key in enumerate(keys):
        answers[number] = copy.discard(key)
        copy.add(key)
    return answers
