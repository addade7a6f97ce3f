"""Shares of keys and of absent-key queries per score region: checking, merging, and measuring them from scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["as_shares", "kl_divergence", "merge_shares", "saved_bits", "shares_from_scores", "two_regions"]

Floats = npt.NDArray[np.float64]


def as_shares(key_shares: npt.ArrayLike, query_shares: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Both as float arrays; ValueError when they are not shares of the same regions."""
    result = []
    for name, shares in (("key_shares", key_shares), ("query_shares", query_shares)):
        try:
            array = np.asarray(shares, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{name}: expected a list of numbers, found {shares!r}") from None
        if array.ndim != 1 or not len(array):
            raise ValueError(f"{name}: expected one number per region, found an array of shape {array.shape}")
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise ValueError(
                f"{name}: expected finite shares >= 0, found {array[~(array >= 0) | ~np.isfinite(array)][0]}"
            )
        result.append(array)
    if len(result[0]) != len(result[1]):
        raise ValueError(f"expected as many query_shares as key_shares ({len(result[0])}), found {len(result[1])}")
    return result[0], result[1]


def two_regions(model_fpr: float, model_fnr: float) -> tuple[Floats, Floats]:
    """Shares below and above the threshold of a model with these error rates: G = (F_n, 1-F_n), H = (1-p, p)."""
    for name, rate in (("model_fpr", model_fpr), ("model_fnr", model_fnr)):
        if not 0 <= rate <= 1:
            raise ValueError(f"{name}: expected 0 <= {name} <= 1, found {rate!r}")
    return np.array([model_fnr, 1 - model_fnr]), np.array([1 - model_fpr, model_fpr])


def kl_divergence(key_shares: npt.ArrayLike, query_shares: npt.ArrayLike) -> float:
    """KL(G||H) in nats: what the model knows.  inf when a region has keys and no queries.

    Examples
    --------
    >>> round(kl_divergence([0.5, 0.5], [0.99, 0.01]), 3)
    1.614
    """
    keys, queries = as_shares(key_shares, query_shares)
    used = keys > 0
    if (queries[used] == 0).any():
        return math.inf
    return float(np.sum(keys[used] * np.log(keys[used] / queries[used])))


def saved_bits(key_shares: npt.ArrayLike, query_shares: npt.ArrayLike, cell_bits: float = 1) -> float:
    """Bits per key the model saves over a plain filter of the same cells: ``c KL(G||H) / (ln 2)^2``.

    Holds as long as no region is without a filter.

    Examples
    --------
    >>> round(saved_bits([0.5, 0.5], [0.99, 0.01], cell_bits=4), 2)
    13.44
    """
    return cell_bits * kl_divergence(key_shares, query_shares) / math.log(2.0) ** 2


def merge_shares(shares: npt.ArrayLike, cuts: Sequence[int]) -> Floats:
    """Sum the bins between the inner edges `cuts` (``[3, 7]``: bins 0-2, 3-6, 7-).

    Examples
    --------
    >>> merge_shares([0.125, 0.125, 0.25, 0.5], [2]).tolist()
    [0.25, 0.75]
    """
    array = np.asarray(shares, dtype=np.float64)
    edges = [0, *cuts]
    if any(not low < high for low, high in zip(edges, [*edges[1:], len(array)], strict=True)):
        raise ValueError(f"cuts: expected increasing inner edges between 1 and {len(array) - 1}, found {list(cuts)}")
    return np.add.reduceat(array, edges)


def shares_from_scores(
    key_scores: npt.ArrayLike, query_scores: npt.ArrayLike, max_bins: int = 1024
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Bin integer scores; each bin has about the same number of scores.

    Returns
    -------
    key_shares, query_shares : ndarray
        Share of the keys and of the queries in each bin, low scores first.
    edges : ndarray of int64
        Lowest score of each bin but the first: a score ``s`` is in bin ``searchsorted(edges, s, side="right")``.

    Examples
    --------
    >>> keys, queries, edges = shares_from_scores([3, 5, 5, 9], [1, 3, 3, 5])
    >>> keys.tolist(), queries.tolist(), edges.tolist()
    ([0.0, 0.25, 0.5, 0.25], [0.25, 0.5, 0.25, 0.0], [3, 5, 9])
    """
    keys, queries = np.sort(np.asarray(key_scores, np.int64)), np.sort(np.asarray(query_scores, np.int64))
    if not len(keys) or not len(queries):
        raise ValueError(f"expected scores of keys and of queries, found {len(keys)} and {len(queries)}")
    if max_bins < 1:
        raise ValueError(f"max_bins: expected at least 1, found {max_bins}")
    # Quantiles of both, half the edges each: neither side may be left with a few huge bins.
    levels = np.linspace(0, 1, max(2, (max_bins + 1) // 2 + 1))[1:-1]
    edges = [scores[(levels * len(scores)).astype(np.int64)] for scores in (keys, queries)]
    distinct = np.unique(np.concatenate((keys, queries)))
    inner = distinct[1:] if len(distinct) <= max_bins else np.setdiff1d(np.concatenate(edges), distinct[:1])
    result = []
    for scores in (keys, queries):
        below = np.concatenate(([0], np.searchsorted(scores, inner, side="left"), [len(scores)]))
        result.append(np.diff(below) / len(scores))
    return result[0], result[1], inner.astype(np.int64)
