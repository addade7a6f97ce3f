"""What ``dlbf bench stress`` asks for: orders of questions about absent keys, and how their answers are counted.

A question is the place of a key in a list of absent ones.  Every order is drawn from a seed, so that all subjects get
the same questions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "WORKLOADS",
    "Answers",
    "Ask",
    "Cost",
    "Places",
    "circle",
    "count",
    "one_pass",
    "popular_orders",
    "replay",
    "uniform",
]

# Places of keys in the list of absent keys, in the order in which they are asked for.
Places = npt.NDArray[np.intp]
# For each question whether the answer was not "absent", so that the data were read for nothing.
Answers = npt.NDArray[np.bool_]
# Asks for keys and tells which of the questions were needless reads.
Ask = Callable[[Places], Answers]

# "targets" are those that are run at a rate instead of a size.
WORKLOADS = ("one-pass", "uniform", "zipf", "replay", "churn", "targets")
# Of the questions in the second half of a replay so many are false positives that the first half has found.
REPLAYED_SHARE = 0.1


@dataclass(frozen=True)
class Cost:
    """Needless reads in a run of questions about absent keys.

    Attributes
    ----------
    questions : int
        How many were asked.
    distinct : int
        Needless reads for a key that had cost none before in this run.
    repeated : int
        Needless reads for a key that had cost one before in this run: none, if what was found is remembered.

    Examples
    --------
    >>> from dlbf.bench.stress_workloads import Cost
    >>> Cost(questions=2_000_000, distinct=10, repeated=30).per_million
    20.0
    """

    questions: int
    distinct: int
    repeated: int

    @property
    def needless(self) -> int:
        """All of them."""
        return self.distinct + self.repeated

    @property
    def per_million(self) -> float:
        """Needless reads per million questions."""
        return 1e6 * self.needless / self.questions if self.questions else 0.0

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "questions": self.questions, "distinct": self.distinct, "repeated": self.repeated,
            "per_million": self.per_million,
        }  # fmt: skip


def count(places: Places, needless: Answers, found: Places | None = None) -> Cost:
    """The cost of a run; ``found``: keys that had cost a needless read before it."""
    cost = places[needless]
    new = np.unique(cost) if found is None else np.setdiff1d(cost, found)
    return Cost(len(places), len(new), len(cost) - len(new))


def one_pass(n_absent: int, ask: Ask) -> Cost:
    """Every absent key once."""
    places = np.arange(n_absent)
    return count(places, ask(places))


def uniform(n_absent: int, n_questions: int, ask: Ask, seed: int) -> Cost:
    """Every question about any key, each as likely."""
    places = _random("uniform", seed).integers(0, n_absent, n_questions)
    return count(places, ask(places))


def popular_orders(n_absent: int, n_questions: int, exponent: float, n_orders: int, seed: int) -> Iterator[Places]:
    """Questions of a Zipf law: the key of rank r is asked for in proportion to r ** -exponent.

    Which key has which rank differs from order to order: whether a false positive is popular is a matter of luck, and
    the worst of several orders shows how bad that can be.
    """
    shares = np.cumsum(np.arange(1, n_absent + 1, dtype=np.float64) ** -exponent)
    shares /= shares[-1]
    for number in range(n_orders):
        random = _random(f"popular {number}", seed)
        ranks = np.searchsorted(shares, random.random(n_questions), side="right")
        yield random.permutation(n_absent)[np.minimum(ranks, n_absent - 1)]


def replay(n_absent: int, n_questions: int, ask: Ask, seed: int) -> Cost:
    """The first half asks for any key and notes false positives; a tenth of the second half asks for those again.

    Only the second half is counted; what the first has found is repeated there.
    """
    random = _random("replay", seed)
    first = random.integers(0, n_absent, n_questions // 2)
    found = np.unique(first[ask(first)])
    places = random.integers(0, n_absent, n_questions - len(first))
    if len(found):
        again = random.random(len(places)) < REPLAYED_SHARE
        places[again] = found[random.integers(0, len(found), int(again.sum()))]
    return count(places, ask(places), found)


def circle(n_absent: int, n_wanted: int, n_questions: int, ask: Ask) -> tuple[int, Cost]:
    """False positives are found by asking for one absent key after the other, and are then asked for in a circle.

    Returns
    -------
    tuple
        How many were found, at most ``n_wanted``, and what the questions of the circle cost.
    """
    found: list[Places] = []
    n_found, step = 0, max(1, n_absent // 100)
    for start in range(0, n_absent, step):
        places = np.arange(start, min(start + step, n_absent))
        found.append(places[ask(places)])
        n_found += len(found[-1])
        if n_found >= n_wanted:
            break
    known = np.concatenate(found)[:n_wanted] if found else np.arange(0)
    if not len(known):
        return 0, Cost(0, 0, 0)
    places = np.resize(known, n_questions)
    return len(known), count(places, ask(places), known)


def _random(what: str, seed: int) -> np.random.Generator:
    """Random numbers of their own for each workload, whichever others run."""
    return np.random.default_rng([seed, *what.encode()])
