"""What a learned filter can promise about its rate, from the negatives that its model has not seen.

One rule, whatever their number: a region is counted with one query more than were seen there, and the rate that follows
is promised with two standard errors on top.  A region without any queries that lets everything pass then counts for 3
of n, the "rule of three"; with many queries the promise is the rate itself, nearly.

A query of region r passes with chance ``e_r``, so the standard error of the rate ``f`` is
``sqrt((sum H e^2 - f^2) / n)``: where no region lets more than a tenth pass, at most a third of ``sqrt(f / n)``.
``dlbf bench promises`` shows what becomes of promises.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dlbf.learned.holding import standard_error
from dlbf.learned.strata import Labels, excess

__all__ = ["SIGMAS", "Sampled", "keep_promise", "runs", "smoothed", "upper_rate"]

T = TypeVar("T")

Scores = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

# Standard errors on top of the rate.
SIGMAS = 2.0
# A rate is aimed at until the promise that follows is within this share of the target, in so many plans at most.
AIM_GAP = 0.01
AIM_STEPS = 6
# Bins in which queries per key are the same are put together, but not more of the keys than one of so many.
MOST_RUN = 64


def smoothed(key_shares: npt.ArrayLike, query_shares: npt.ArrayLike) -> Floats:
    """Shares of the queries in bins of the score with which a higher score always speaks more for a key.

    Where few queries were seen, there are gaps between them by chance.  Cut there, a region of many keys would seem to
    have no queries.  So neighbours are put together until queries per key fall from bin to bin (isotonic regression).

    Examples
    --------
    >>> smoothed([0.1, 0.3, 0.3, 0.3], [0.9, 0.0, 0.06, 0.04]).round(3).tolist()
    [0.9, 0.033, 0.033, 0.033]
    """
    blocks: list[tuple[float, float, int]] = []
    keys = np.asarray(key_shares, dtype=np.float64)
    for key, query in zip(keys.tolist(), np.asarray(query_shares, dtype=np.float64).tolist(), strict=True):
        block = key, query, 1
        while blocks and blocks[-1][1] * block[0] < block[1] * blocks[-1][0]:
            before = blocks.pop()
            block = before[0] + block[0], before[1] + block[1], before[2] + block[2]
        blocks.append(block)
    sizes = [size for _, _, size in blocks]
    own, seen = (np.repeat([block[column] for block in blocks], sizes) for column in (0, 1))
    within = np.where(own > 0, keys / np.where(own > 0, own, 1.0), 1 / np.repeat(sizes, sizes))
    result: Floats = seen * within
    return result


def runs(key_shares: npt.ArrayLike, query_shares: npt.ArrayLike) -> list[int]:
    """Where to cut shares that are ``smoothed`` into runs of bins within which nothing is gained by a cut.

    Queries per key are the same within a run, so its parts would get the same filter.  There are some dozens of runs
    where there were a thousand bins, and cuts are sought in a hundredth of the time.

    Examples
    --------
    >>> runs([0.001, 0.001, 0.97, 0.028], [0.4, 0.4, 0.19, 0.01])
    [2, 3]
    """
    keys, queries = np.asarray(key_shares, dtype=np.float64), np.asarray(query_shares, dtype=np.float64)
    one, other = queries[1:] * keys[:-1], queries[:-1] * keys[1:]
    pieces = np.floor(np.cumsum(keys) * MOST_RUN * (1 - 1e-9))
    apart = (np.abs(one - other) > 1e-9 * np.maximum(one, other)) | (np.diff(pieces) > 0)
    return [int(cut) for cut in np.flatnonzero(apart) + 1]


def upper_rate(counts: npt.ArrayLike, rates: npt.ArrayLike, least_error: float = 0.0) -> float:
    """The rate that can be promised where so many queries were seen in regions of these rates.

    ``least_error`` is a standard error known from elsewhere.

    Examples
    --------
    >>> round(1000 * upper_rate([999, 0], [0.0, 1.0]), 1)
    3.0
    >>> upper_rate([1000], [0.01])
    0.01
    """
    seen, passing = np.asarray(counts, dtype=np.float64), np.asarray(rates, dtype=np.float64)
    shares = (seen + 1) / (seen + 1).sum()
    rate = float(shares @ passing)
    error = math.sqrt(max(0.0, float(shares @ passing**2) - rate**2) / max(1.0, float(seen.sum())))
    return min(1.0, rate + SIGMAS * max(error, least_error))


def keep_promise(target: float, aim: float, attempt: Callable[[float], tuple[T, float] | None]) -> T | None:
    """What aims as high as it can and promises no more than ``target``; what promises least if nothing does.

    Parameters
    ----------
    target : float
        Rate to promise.
    aim : float
        Rate to aim at first.
    attempt : callable
        What comes of an aim, and the rate that it can promise; None if there is no such thing.

    Examples
    --------
    >>> aim = keep_promise(0.01, 0.01, lambda aim: (aim, aim + 0.01 * aim**0.5))
    >>> 0.0099 < aim + 0.01 * aim**0.5 < 0.01001
    True
    """
    best: T | None = None
    least: tuple[T, float] | None = None
    for _ in range(AIM_STEPS):
        if (made := attempt(aim)) is None:
            break
        found, promise = made
        if least is None or promise < least[1]:
            least = made
        if promise <= target * (1 + 1e-3):
            best = found
            if promise >= (1 - AIM_GAP) * target or aim >= 0.99:
                break
        # What the promise has on top of the aim goes with its square root.
        extra = max(0.0, promise - aim) / math.sqrt(aim)
        following = ((math.sqrt(extra**2 + 4 * target) - extra) / 2) ** 2 if extra else aim * target / promise
        if following >= 2 * aim:
            break  # the other targets ask for so much that this one is kept anyway
        aim = min(0.99, following)
    return best if best is not None or least is None else least[0]


@dataclass(frozen=True)
class Sampled:
    """Held-out negatives as the model scores them.

    Attributes
    ----------
    scores : array of int
        Their scores.
    kinds : array of int
        The kind of each of the first (see ``dlbf.learned.strata``); all the same where there is but one.
    groups : array of int or None
        The group that each was drawn with, if whole groups were held out.
    """

    scores: Scores
    kinds: Labels
    groups: npt.NDArray[np.int64] | None = None

    def first_aim(self, target: float, worst: float) -> float:
        """About what to aim at to promise ``target`` if all that passes is in regions with the worst rate."""
        extra = SIGMAS * math.sqrt(worst / max(1, len(self.scores)))
        return ((math.sqrt(extra**2 + 4 * target) - extra) / 2) ** 2

    def _regions(self, thresholds: Sequence[int]) -> Labels:
        return np.searchsorted(np.asarray(thresholds, dtype=np.int64), self.scores, side="right")

    def promise(self, thresholds: Sequence[int], rates: Floats) -> float:
        """The rate that regions between these thresholds, with these rates, can promise: over all queries, and to no
        kind of them much more."""
        if len(rates) == 1:
            return float(rates[0])
        regions = self._regions(thresholds)
        error = 0.0 if self.groups is None else standard_error(rates[regions], self.groups)
        return max(
            upper_rate(np.bincount(regions, minlength=len(rates)), rates, error), self.of_kinds(thresholds, rates)
        )

    def of_kinds(self, thresholds: Sequence[int], rates: Floats) -> float:
        """The largest rate of a kind of queries, over what a kind may have for each 1 that all have; 0 for one kind."""
        if not self.kinds.any():
            return 0.0
        return excess(rates, self._regions(thresholds)[: len(self.kinds)], self.kinds, 1.0)
