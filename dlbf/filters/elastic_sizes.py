"""Sizes and rates of elastic Bloom filters: the published formulas, and the bytes of a geometry.

With ``k`` hashes a question about an absent key is answered "maybe" with the chance ``f^k``, where ``f`` is the share
of ones.  So a target rate ``e`` sets the share at which the array doubles, ``f = e^(1/k)``, with ``k = log2(1/e)``
hashes, rounded up, as for any Bloom filter; ``m`` bits reach it with ``n = -ln(1 - f) m / k`` keys.
"""

import math
from typing import NamedTuple

from dlbf.geometry import LN2_SQUARED, Price

__all__ = [
    "BUCKET_POSITIONS",
    "HEAD_BYTES",
    "LEAST_LOG2",
    "MAX_HASHES",
    "MAX_LOG2",
    "MAX_SLOTS",
    "SHARE_UNIT",
    "ElasticGeometry",
    "elastic_bytes",
    "elastic_geometry",
    "elastic_hashes",
    "elastic_keys",
    "elastic_levels",
    "elastic_log2",
    "elastic_price",
    "elastic_share",
    "elastic_slots",
]

BUCKET_POSITIONS = 256  # that share a bucket of fingerprints
HEAD_BYTES = 576
LEAST_LOG2 = 8
MAX_LOG2 = 40
MAX_HASHES = 64
MAX_SLOTS = 4096
SHARE_UNIT = 1 << 32
# More ones make larger buckets; only rates above 36 % would ask for them.
MOST_ONES = 0.6


class ElasticGeometry(NamedTuple):
    """Elastic filter: bits at first and those with room now (powers of two), hashes, when it doubles, bucket size."""

    initial_log2: int
    allocated_log2: int
    n_hashes: int
    full_share: int  # of ones, in units of 2^-32
    bucket_slots: int


def elastic_hashes(fpr: float) -> int:
    """Hashes for a rate.

    Examples
    --------
    >>> elastic_hashes(0.01), elastic_hashes(0.9)
    (7, 1)
    """
    return max(1, math.ceil(math.log2(1 / fpr) - 1e-9))


def elastic_share(fpr: float, n_hashes: int) -> int:
    """Share of ones at which a filter of that rate doubles, in units of 2^-32.

    Examples
    --------
    >>> round(elastic_share(0.01, 7) / SHARE_UNIT, 3)
    0.518
    """
    return int(min(MOST_ONES, fpr ** (1 / n_hashes)) * SHARE_UNIT)


def elastic_keys(n_bits: int, n_hashes: int, full_share: int) -> float:
    """Keys with which so many bits reach the share of ones, on average.

    Examples
    --------
    >>> round(elastic_keys(1 << 20, 7, elastic_share(0.01, 7)))
    109307
    """
    return -math.log1p(-full_share / SHARE_UNIT) * n_bits / n_hashes


def elastic_log2(n_keys: int, n_hashes: int, full_share: int) -> int:
    """Bits (as a power of two) that hold so many keys without doubling, five standard deviations of luck included.

    Examples
    --------
    >>> elastic_log2(1000, 7, elastic_share(0.01, 7))
    14
    """
    for log2 in range(LEAST_LOG2, MAX_LOG2):
        n_bits = 1 << log2
        mean = n_keys * n_hashes / n_bits  # fingerprints at a position
        deviation = math.sqrt(n_bits * math.exp(-mean) * -math.expm1(-mean))
        if -math.expm1(-mean) * n_bits + 5 * deviation + n_hashes <= full_share / SHARE_UNIT * n_bits:
            return log2
    return MAX_LOG2


def elastic_slots(full_share: int) -> int:
    """Slots of a bucket: the fingerprints of its positions when the filter doubles, and five standard deviations.

    Examples
    --------
    >>> elastic_slots(elastic_share(0.01, 7))
    256
    """
    mean = elastic_keys(BUCKET_POSITIONS, 1, full_share)
    return math.ceil(mean + 5 * math.sqrt(mean))


def elastic_geometry(n_keys: int, fpr: float) -> ElasticGeometry:
    """The geometry for so many keys, to begin with, at a rate.

    Examples
    --------
    >>> elastic_geometry(1000, 0.01)[:3]
    (14, 14, 7)
    """
    n_hashes = elastic_hashes(fpr)
    full_share = elastic_share(fpr, n_hashes)
    log2 = elastic_log2(n_keys, n_hashes, full_share)
    return ElasticGeometry(log2, log2, n_hashes, full_share, elastic_slots(full_share))


def elastic_levels(geometry: ElasticGeometry) -> tuple[list[tuple[int, ...]], int]:
    """First position, offsets of bits and buckets, bytes of a bucket and bits of an entry, for each level; all bytes.

    Examples
    --------
    >>> elastic_levels(ElasticGeometry(10, 11, 7, 1 << 31, 100))
    ([(0, 576, 704, 777, 62), (1024, 3840, 3968, 765, 61)], 7104)
    """
    levels: list[tuple[int, ...]] = []
    end = HEAD_BYTES
    for level in range(geometry.allocated_log2 - geometry.initial_log2 + 1):
        n_positions = 1 << (geometry.initial_log2 + max(0, level - 1))
        entry_bits = 72 - geometry.initial_log2 - level
        bucket_bytes = 2 + (geometry.bucket_slots * entry_bits + 7) // 8
        buckets_at = end + n_positions // 8
        levels.append((n_positions if level else 0, end, buckets_at, bucket_bytes, entry_bits))
        end = buckets_at + n_positions // BUCKET_POSITIONS * bucket_bytes + 16
        end = (end + 63) // 64 * 64
    return levels, end


def elastic_bytes(geometry: ElasticGeometry) -> int:
    """Size of the payload."""
    return elastic_levels(geometry)[1]


def elastic_price() -> Price:
    """Bits per key of one that is planned for its keys, around a million bits.

    A Bloom filter's bits; for each of them a slot (at half ones, with the reserve for luck) of 52 bits; and as sizes
    are powers of two, 1 / ln 2 times what is needed on average.

    Examples
    --------
    >>> round(elastic_price().slope * math.log(100))
    733
    """
    return Price((1 + 52) / math.log(2) / LN2_SQUARED)
