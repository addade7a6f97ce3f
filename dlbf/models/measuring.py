"""What a model is worth: regions of its scores, their divergence, and the bits per key a filter then needs.

A model divides keys and queries into regions by score.  ``G`` is the share of the keys in each region, ``H`` that of
the absent keys that will be asked for.  KL(G||H), in nats, is what learning saves: a filter cell costs
``1 / ln(2)**2`` bits for every nat.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Quality", "choose_thresholds", "filter_bits", "measure", "region_shares"]

Array = npt.NDArray[Any]

# Regions are chosen among at most this many bins; more changes the third digit of KL.
N_BINS = 320


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
    n = len(edges) + 1
    keys = np.bincount(np.searchsorted(edges, key_scores, side="right"), minlength=n) / len(key_scores)
    queries = np.bincount(np.searchsorted(edges, query_scores, side="right"), minlength=n) / len(query_scores)
    key_sums = np.concatenate(([0.0], np.cumsum(keys)))
    query_sums = np.concatenate(([0.0], np.cumsum(queries)))
    # A region in which fewer than three negatives fell is not known to be that empty.
    floor = 3.0 / len(query_scores)
    share = key_sums[None, :] - key_sums[:, None]
    other = np.maximum(query_sums[None, :] - query_sums[:, None], floor)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0) / other), 0.0)
    gain[np.tril_indices(n + 1)] = -np.inf
    best = np.full(n + 1, -np.inf)
    best[0] = 0.0
    choices = []
    for _ in range(n_regions):
        total = best[:, None] + gain
        total[np.arange(n + 1), np.arange(n + 1)] = best  # a region may stay unused
        choices.append(total.argmax(axis=0))
        best = total.max(axis=0)
    cuts = []
    at = n
    for choice in reversed(choices):
        before = int(choice[at])
        if 0 < before < at:
            cuts.append(edges[before - 1])
        at = before
    return np.array(cuts[::-1], dtype=edges.dtype)


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


def _cell_bits(rates: Array, deletable: bool) -> Array:
    """Bits per stored key of the cheapest base filter at each false-positive rate."""
    log = np.log2(1 / rates)
    bits = log / np.log(2)
    if not deletable:
        return np.asarray(bits)
    # Succinct counters against fingerprints at 95 % load; both nothing at rate 1.
    return np.asarray(np.minimum(2.1 * bits, np.where(log > 0, (log + 3) / 0.95, 0.0)))


def filter_bits(key_shares: Array, query_shares: Array, fpr: float, deletability: float = 0.0) -> float:
    """Bits per key of the best filter behind regions with these shares.

    The optimum is ``e = min(1, G / (l1 H + l2 G))`` with ``sum H e <= fpr`` and ``sum G e <= 1 - deletability``.

    Examples
    --------
    >>> round(filter_bits(np.ones(1), np.ones(1), 0.01), 2)  # no model: a Bloom filter
    9.59
    """
    used = key_shares > 0
    keys, queries = key_shares[used], query_shares[used]

    def rates(l1: float, l2: float) -> Array:
        return np.minimum(1.0, keys / np.maximum(l1 * queries + l2 * keys, 1e-300))

    def with_l2(l2: float) -> Array:
        if (queries * rates(0.0, l2)).sum() <= fpr:
            return rates(0.0, l2)
        low, high = 1e-12, 1e12
        for _ in range(80):
            middle = float(np.sqrt(low * high))
            if (queries * rates(middle, l2)).sum() > fpr:
                low = middle
            else:
                high = middle
        return rates(high, l2)

    chosen = with_l2(0.0)
    if (keys * chosen).sum() > 1 - deletability:
        low, high = 1e-9, 1e9
        for _ in range(60):
            middle = float(np.sqrt(low * high))
            if (keys * with_l2(middle)).sum() > 1 - deletability:
                low = middle
            else:
                high = middle
        chosen = with_l2(high)
    return float((keys * _cell_bits(chosen, deletability > 0)).sum())


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
