"""What a model is worth: regions of its scores, their divergence, and the bits per key a filter then needs.

A model divides keys and queries into regions by score.  ``G`` is the share of the keys in each region, ``H`` that of
the absent keys that will be asked for.  KL(G||H), in nats, is what learning saves: a filter cell costs
``1 / ln(2)**2`` bits for every nat.

Where to cut and how to share out the rates is theory's business (``dlbf.theory``); here scores become shares.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dlbf.theory.allocation import allocate
from dlbf.theory.costs import Cost, cell_cost, fingerprint_cost
from dlbf.theory.thresholds import best_thresholds

__all__ = ["Quality", "choose_thresholds", "filter_bits", "measure", "region_shares"]

Array = npt.NDArray[np.int32] | npt.NDArray[np.int64] | npt.NDArray[np.float64]

# Regions are chosen among at most this many bins; more changes the third digit of KL.
N_BINS = 320

# What a deletable filter is taken to cost while models are compared: a little more than the prices it is then planned
# with (dlbf.theory.costs), so that a model has to earn its place with a margin.
DELETABLE_PRICES: tuple[Cost, ...] = (cell_cost(2.1, "succinct"), fingerprint_cost("cuckoo", 0.95, 3.0, 1.0))


class Quality(NamedTuple):
    """What a set of scores is worth.

    Attributes
    ----------
    kl : float
        KL(G||H) in nats, thresholds chosen on one half of the negatives, shares measured on the other.
    bits_per_key : float
        What a filter needs behind this model, the model not included.
    key_shares, query_shares : tuple of float
        G and H, low scores first.
    thresholds : tuple of int or float
        A key of region r has ``thresholds[r - 1] <= score < thresholds[r]``.

    Examples
    --------
    >>> keys, queries = np.array([5, 6, 7, 8] * 50), np.array([1, 2, 3, 6] * 50)
    >>> quality = measure(keys, queries)
    >>> quality.kl > 0, len(quality.key_shares) == len(quality.thresholds) + 1
    (True, True)
    """

    kl: float
    bits_per_key: float
    key_shares: tuple[float, ...]
    query_shares: tuple[float, ...]
    thresholds: tuple[float, ...]


def _bin_edges(key_scores: Array, query_scores: Array) -> Array:
    """Candidate thresholds: even in both classes, denser where the classes' tails meet."""
    inner = np.linspace(0, 1, N_BINS // 2 + 1)[1:-1]
    tail = np.geomspace(1e-4, 0.1, N_BINS // 8)
    points = [
        np.quantile(np.concatenate((key_scores, query_scores)), inner),
        np.quantile(query_scores, 1 - tail),
        np.quantile(key_scores, tail),
    ]
    edges = np.unique(np.concatenate(points))
    if np.issubdtype(key_scores.dtype, np.integer):
        edges = np.unique(np.ceil(edges).astype(np.int64))
    return edges


def choose_thresholds(key_scores: Array, query_scores: Array, n_regions: int = 8) -> Array:
    """Thresholds that maximise KL(G||H) over ``n_regions`` regions, by dynamic programming over score bins.

    Examples
    --------
    >>> choose_thresholds(np.array([5, 6, 7, 8] * 9), np.array([0, 1, 2, 3] * 9), n_regions=2).tolist()
    [4]
    """
    edges = _bin_edges(key_scores, query_scores)
    keys, queries = (
        np.bincount(np.searchsorted(edges, scores, side="right"), minlength=len(edges) + 1) / len(scores)
        for scores in (key_scores, query_scores)
    )
    # A region in which fewer than three negatives fell is not known to be that empty.
    cuts = best_thresholds(keys, queries, n_regions, least_query_share=3.0 / len(query_scores))
    # Cut c lies before bin c, and bin c starts at edges[c - 1].
    return edges[[cut - 1 for cut in cuts]]


def region_shares(thresholds: Array, key_scores: Array, query_scores: Array) -> tuple[Array, Array]:
    """The shares G and H of the regions; H with one imagined query in each, so that none is free.

    Examples
    --------
    >>> keys, queries = region_shares(np.array([5]), np.array([4, 6, 7, 8]), np.array([1, 2, 3]))
    >>> keys.tolist(), queries.tolist()
    ([0.25, 0.75], [0.8, 0.2])
    """
    n = len(thresholds) + 1
    keys = np.bincount(np.searchsorted(thresholds, key_scores, side="right"), minlength=n)
    queries = np.bincount(np.searchsorted(thresholds, query_scores, side="right"), minlength=n) + 1.0
    return keys / max(1, keys.sum()), queries / queries.sum()


def filter_bits(key_shares: Array, query_shares: Array, fpr: float, deletability: float = 0.0) -> float:
    """Bits per key of the best filter behind regions with these shares.

    The rates are those of cells (``dlbf.theory.allocate``); at each the cheaper base filter is paid.  That is
    thousands of times faster than choosing the bases together with the rates, and enough to compare models.

    Examples
    --------
    >>> round(filter_bits(np.ones(1), np.ones(1), 0.01), 2)  # no model: a Bloom filter
    9.59
    """
    found = allocate(key_shares, query_shares, [cell_cost(1)], fpr=fpr, deletability=deletability)
    prices = DELETABLE_PRICES if deletability > 0 else (cell_cost(1),)
    return sum(
        float(share) * min(price.bits(rate) for price in prices)
        for share, rate in zip(key_shares, found.rates, strict=True)
        if share > 0 and rate < 1
    )


def measure(
    key_scores: Array, query_scores: Array, n_regions: int = 8, fpr: float = 0.01, deletability: float = 0.0
) -> Quality:
    """Choose thresholds on half of the negatives, measure on the other half.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> quality = measure(rng.normal(2, 1, 5000), rng.normal(0, 1, 5000))
    >>> 1.5 < quality.kl < 2.1  # 2 is the divergence of the two normals
    True
    """
    chosen_on, measured_on = query_scores[::2], query_scores[1::2]
    if not len(key_scores) or not len(measured_on):
        raise ValueError("measuring needs at least one key and two negatives")
    thresholds = choose_thresholds(key_scores, chosen_on, n_regions)
    keys, queries = region_shares(thresholds, key_scores, measured_on)
    used = keys > 0
    kl = float((keys[used] * np.log(keys[used] / queries[used])).sum())
    bits = filter_bits(keys, queries, fpr, deletability)
    return Quality(kl, bits, tuple(keys.tolist()), tuple(queries.tolist()), tuple(thresholds.tolist()))
