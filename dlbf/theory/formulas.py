"""Closed forms from the literature that are about whole designs or about exactness.

Per-filter rates and sizes used by the filters themselves are in ``dlbf.geometry``.  Symbols: ``alpha = 2^(-ln
2)`` (about 0.6185) is the rate of a Bloom filter with one bit per key.
"""

from __future__ import annotations

import math
from fractions import Fraction

__all__ = [
    "ALPHA",
    "bodega_fpr",
    "counting_deletability",
    "dlbf_clean_chance",
    "dlbf_deletability",
    "exact_bloom_fpr",
    "hybrid_crossover",
    "hybrid_fpr",
    "lbf_2cbf_split",
    "lbf_3sbf_rates",
    "slbf_2cbf_split",
]

ALPHA = 2.0 ** -math.log(2.0)


def _count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected an integer >= {least}, found {value!r}")


def _share(name: str, value: float, inner: bool = False) -> None:
    if not (0 < value < 1 if inner else 0 <= value <= 1):
        raise ValueError(f"{name}: expected {'0 < x < 1' if inner else '0 <= x <= 1'}, found {value!r}")


def exact_bloom_fpr(n_keys: int, n_bits: int, hashes: int) -> Fraction:
    """Exact rate of a Bloom filter whose hashes are independent and uniform (and may coincide).

    ``m^-(k(n+1)) sum_i i^k i! C(m,i) S(kn,i)`` in integers; ``i! C(m,i) S(kn,i)`` counts the ways ``kn`` throws hit
    exactly ``i`` of ``m`` bits.  The textbook ``(1 - e^(-kn/m))^k`` is below it, by Jensen's inequality.

    Parameters
    ----------
    n_keys, n_bits, hashes : int
        ``n``, ``m`` and ``k``.

    Notes
    -----
    Takes ``k n min(m, k n)`` big-integer steps.

    Examples
    --------
    >>> exact_bloom_fpr(1, 2, 2)
    Fraction(5, 8)
    """
    _count("n_keys", n_keys, 0)
    _count("n_bits", n_bits, 1)
    _count("hashes", hashes, 1)
    throws = n_keys * hashes
    # ways[i]: sequences of throws that hit exactly i different bits.  One more throw hits one of those i, or a new bit.
    ways = [1]
    for _ in range(throws):
        top = min(len(ways), n_bits)
        longer = [0] * (top + 1)
        for hit, number in enumerate(ways):
            longer[hit] += number * hit
            if hit < n_bits:
                longer[hit + 1] += number * (n_bits - hit)
        ways = longer
    total = sum(number * hit**hashes for hit, number in enumerate(ways))
    return Fraction(total, n_bits ** (throws + hashes))


def counting_deletability(n_keys: int, n_bits: int, counter_bits: int, hashes: int) -> float:
    """Chance that one of `n_keys` keys answers "absent" once it is removed from a counting filter.

    ``1 - (1 - (1 - c/z)^(k(y-1)))^k``: the filter that is left holds ``y - 1`` keys, and the removed one is a stranger
    to it.

    Examples
    --------
    >>> round(counting_deletability(1000, 40_000, counter_bits=4, hashes=7), 3)
    0.992
    """
    _count("n_keys", n_keys, 1)
    _count("counter_bits", counter_bits, 1)
    _count("n_bits", n_bits, counter_bits)
    _count("hashes", hashes, 1)
    cells = n_bits / counter_bits
    if cells <= 1:
        return 1.0 if n_keys == 1 else 0.0
    empty = math.exp(hashes * (n_keys - 1) * math.log1p(-1 / cells))
    return 1 - (1 - empty) ** hashes


def dlbf_deletability(n_keys: int, n_bits: int, hashes: int, regions: int, *, as_published: bool = False) -> float:
    """Chance that a key of a deletable Bloom filter has a bit that may be reset.

    ``m' = m - r`` bits hold the keys; each of ``r`` bits marks a run of ``s = m'/r`` of them in which some bit was hit
    twice.  One of the key's bits may be reset if its run is clean: no other throw hit that very bit, and none of the
    other ``s - 1`` bits was hit twice.  ``p_d = 1 - (1 - p_0' (p_0 + p_1)^(s-1))^k``, with ``p_0``, ``p_1`` the chances
    that a bit is hit never or once, and ``p_0'`` that the other ``kn - 1`` throws miss one.

    Parameters
    ----------
    n_keys, n_bits, hashes, regions : int
        ``n``, ``m``, ``k`` and ``r``.
    as_published : bool
        ``1 - (1 - (p_0 + p_1)^s)^k`` instead (the published Eq. 1 with the leading "1 -" it has lost).  It takes the
        key's own bit for one like any other, that may be hit once more; hence its 0.93 against the published
        simulation's 0.80.

    Examples
    --------
    >>> round(dlbf_deletability(22, 240, hashes=5, regions=24), 2)
    0.8
    >>> round(dlbf_deletability(22, 240, hashes=5, regions=24, as_published=True), 2)
    0.93
    """
    clean = dlbf_clean_chance(n_keys, n_bits, hashes, regions, as_published=as_published)
    return 1 - math.pow(1 - clean, hashes)


def dlbf_clean_chance(n_keys: int, n_bits: int, hashes: int, regions: int, *, as_published: bool = False) -> float:
    """Chance that one given bit of a key of a deletable Bloom filter may be reset; see ``dlbf_deletability``.

    Examples
    --------
    >>> round(dlbf_clean_chance(22, 240, hashes=5, regions=24), 2)
    0.28
    """
    _count("n_keys", n_keys, 1)
    _count("hashes", hashes, 1)
    _count("regions", regions, 1)
    _count("n_bits", n_bits, regions + 2)
    cells = n_bits - regions
    throws = hashes * n_keys
    miss = math.log1p(-1 / cells)
    at_most_once = min(1.0, math.exp(throws * miss) + throws / cells * math.exp((throws - 1) * miss))
    if as_published:
        return math.pow(at_most_once, cells / regions)
    return math.exp((throws - 1) * miss) * math.pow(at_most_once, cells / regions - 1)


def slbf_2cbf_split(
    model_fpr: float, model_fnr: float, bits_per_key: float, counter_bits: float = 4
) -> tuple[float, float]:
    """Published optimum of the sandwich with two counting filters: bits per key of the initial and of the backup
    filter.

    The initial filter's are negative when the budget is below the smallest feasible one (which is the backup's).

    Examples
    --------
    >>> [round(bits, 3) for bits in slbf_2cbf_split(0.01, 0.5, 20, counter_bits=2)]
    [10.436, 9.564]
    """
    _share("model_fpr", model_fpr, inner=True)
    _share("model_fnr", model_fnr, inner=True)
    odds = model_fpr / ((1 - model_fpr) * (1 / model_fnr - 1))
    backup = model_fnr * counter_bits * math.log(odds) / math.log(ALPHA)
    return bits_per_key - backup, backup


def lbf_2cbf_split(
    model_fpr: float, model_fnr: float, bits_per_key: float, counter_bits: float = 4
) -> tuple[float, float]:
    """Published optimum with one counting filter on each side of the threshold: bits per key below and above it.

    Examples
    --------
    >>> [round(bits, 3) for bits in lbf_2cbf_split(0.01, 0.5, 20, counter_bits=2)]
    [14.782, 5.218]
    """
    _share("model_fpr", model_fpr, inner=True)
    _share("model_fnr", model_fnr, inner=True)
    odds = (1 - model_fpr) * (1 - model_fnr) / (model_fnr * model_fpr)
    shift = counter_bits * model_fnr * (1 - model_fnr) / math.log(ALPHA) * math.log(odds)
    below = bits_per_key * model_fnr - shift
    return below, bits_per_key - below


def lbf_3sbf_rates(
    model_fpr: float, model_fnr: float, member: float, deleted_high: float, deleted_low: float
) -> tuple[float, float]:
    """FPR and FNR of the design that remembers deleted keys in two more Bloom filters.

    Parameters
    ----------
    model_fpr, model_fnr : float
        ``p`` and ``F_n`` of the model.
    member : float
        Rate of the filter of the keys below the threshold (``e1``).
    deleted_high, deleted_low : float
        Rates of the filters of deleted keys above and below it (``eD1``, ``eD2``).

    Examples
    --------
    >>> [round(rate, 6) for rate in lbf_3sbf_rates(0.01, 0.5, member=0.02, deleted_high=0.1, deleted_low=0.1)]
    [0.02682, 0.1]
    """
    for name, value in (
        ("model_fpr", model_fpr),
        ("model_fnr", model_fnr),
        ("member", member),
        ("deleted_high", deleted_high),
        ("deleted_low", deleted_low),
    ):
        _share(name, value)
    fpr = model_fpr * (1 - deleted_high) + (1 - model_fpr) * (1 - deleted_low) * member
    fnr = (1 - model_fnr) * deleted_high + model_fnr * deleted_low
    return fpr, fnr


def bodega_fpr(model_fpr: float, high: float, low: float, model_tnr: float | None = None) -> float:
    """Downtown Bodega filter (Theorem 4): ``FPR_L FPR(S'', m_A) + TNR_L FPR(S', m_B)``.

    `high` is the rate of the keyed filter of the keys the model accepts, `low` of those it rejects; `model_tnr` is
    ``1 - model_fpr`` unless given (the paper scales it by the share ``Q_N`` of negative queries).

    Examples
    --------
    >>> round(bodega_fpr(0.01, high=0.1, low=0.001), 5)
    0.00199
    """
    model_tnr = 1 - model_fpr if model_tnr is None else model_tnr
    for name, value in (("model_fpr", model_fpr), ("high", high), ("low", low), ("model_tnr", model_tnr)):
        _share(name, value)
    return model_fpr * high + model_tnr * low


def hybrid_fpr(
    model_fpr: float, high: float, low: float, share_high: float, share_low: float, model_tnr: float | None = None
) -> float:
    """Downtown Bodega filter when an adversary writes part of the queries (Theorem 5).

    ``a_P high + a_N low + (1 - a_P - a_N) FPR_DB``, with ``a_P`` and ``a_N`` the shares of all queries that are the
    adversary's and score high and low.

    Examples
    --------
    >>> round(hybrid_fpr(0.01, high=0.1, low=0.001, share_high=0.5, share_low=0), 5)
    0.051
    """
    for name, value in (("share_high", share_high), ("share_low", share_low)):
        _share(name, value)
    if share_high + share_low > 1 + 1e-12:
        raise ValueError(f"expected share_high + share_low <= 1, found {share_high} + {share_low}")
    ordinary = bodega_fpr(model_fpr, high, low, model_tnr)
    return share_high * high + share_low * low + max(0.0, 1 - share_high - share_low) * ordinary


def hybrid_crossover(
    model_fpr: float,
    high: float,
    low: float,
    plain: float,
    high_weight: float = 1.0,
    model_tnr: float | None = None,
) -> float | None:
    """Adversarial share of the queries at which a Bodega filter is no better than a keyed Bloom filter.

    The rate is a straight line in that share, from ``FPR_DB`` to what the adversary meets.

    Parameters
    ----------
    model_fpr, high, low, model_tnr : float
        As for ``hybrid_fpr``.
    plain : float
        Rate of a keyed Bloom filter with the same memory.
    high_weight : float
        Share of the adversary's queries that score high.

    Returns
    -------
    float or None
        None if one of the two is better at every share.

    Examples
    --------
    >>> round(hybrid_crossover(0.01, 0.3, 0.0, 0.01), 4)
    0.0236
    """
    _share("plain", plain)
    _share("high_weight", high_weight)
    start = hybrid_fpr(model_fpr, high, low, 0.0, 0.0, model_tnr)
    end = hybrid_fpr(model_fpr, high, low, high_weight, 1 - high_weight, model_tnr)
    if (start <= plain) == (end <= plain):
        return None
    return (plain - start) / (end - start)
