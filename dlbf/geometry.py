"""Rates and sizes of the base filters: the one place where a target becomes a geometry, and a rate a price.

Pure arithmetic on Python numbers.  ``n_keys`` is what the filter is planned for; a *cell* is a bit of a Bloom
filter or a counter of a counting one; rates are probabilities for a key that is not in the filter.
"""

import math
from functools import lru_cache
from typing import NamedTuple

__all__ = [
    "BUCKET_SLOTS",
    "CUCKOO_LOAD",
    "DLEFT_LOAD",
    "CellGeometry",
    "CuckooGeometry",
    "DLeftGeometry",
    "Price",
    "SuccinctGeometry",
    "blocked_fpr",
    "cell_fpr",
    "cell_geometry",
    "cell_price",
    "cell_rate_at_load",
    "cuckoo_fpr",
    "cuckoo_geometry",
    "dleft_fpr",
    "dleft_geometry",
    "fingerprint_price",
    "fingerprint_rate_at_load",
    "succinct_bytes",
    "succinct_geometry",
    "succinct_slots",
]

LN2_SQUARED = math.log(2.0) ** 2


class CellGeometry(NamedTuple):
    """Bloom and counting filters: cells, probes per key, cells per block (0: classic, one block)."""

    n_cells: int
    n_hashes: int
    block_cells: int = 0


class CuckooGeometry(NamedTuple):
    """Cuckoo filter: buckets of four fingerprints, each a sorted prefix and a plain suffix."""

    n_buckets: int
    n_prefixes: int
    suffix_bits: int


class DLeftGeometry(NamedTuple):
    """d-left counting filter: subtables of buckets of cells (remainder, counter)."""

    n_tables: int
    n_buckets: int  # in each subtable
    bucket_cells: int
    remainder_bits: int
    counter_bits: int


class SuccinctGeometry(NamedTuple):
    """Succinct counters: cells, probes per key, overflow slots for groups of 64 cells."""

    n_cells: int
    n_hashes: int
    n_slots: int


class Price(NamedTuple):
    """Bits per stored key at the rate ``e``: ``slope * ln(1/e) + fixed``, for ``e`` up to ``max_fpr``."""

    slope: float
    fixed: float = 0.0
    max_fpr: float = 1.0


def cell_price(cell_bits: float) -> Price:
    """Price of cells of so many bits, with the best (real) number of hashes."""
    return Price(cell_bits / LN2_SQUARED)


def fingerprint_price(load: float, extra_bits: float, max_fpr: float) -> Price:
    """Price of a table of fingerprints, ``(log2(1/e) + extra_bits) / load``; extra bits are for slots and counters."""
    return Price(1 / (load * math.log(2.0)), extra_bits / load, max_fpr)


# --- partly filled ---------------------------------------------------------


def cell_rate_at_load(fpr: float, load: float, n_hashes: int | None = None) -> float:
    """Rate of a filter of cells that has the rate ``fpr`` when full, once it holds a share ``load`` of its keys.

    With ``k`` hashes a share ``f = fpr^(1/k)`` of the cells is in use when full, and ``1 - (1 - f)^load`` now.  Without
    ``n_hashes`` it has the best number, that of half the cells in use; never fewer than one.

    Examples
    --------
    >>> round(cell_rate_at_load(0.01, 0.5), 6)
    0.000286
    """
    if fpr <= 0:
        return 0.0
    hashes = max(1.0, math.log2(1 / fpr)) if n_hashes is None else float(n_hashes)
    free = 1 - fpr ** (1 / hashes) if hashes else 0.0
    return float((1 - free**load) ** hashes) if free else 1.0


def fingerprint_rate_at_load(fpr: float, load: float, n_hashes: int | None = None) -> float:
    """The same for a table of fingerprints: each entry a lookup meets is one more chance to be taken for another.

    Examples
    --------
    >>> round(fingerprint_rate_at_load(0.01, 0.5), 6)
    0.005013
    """
    return -math.expm1(load * math.log1p(-fpr)) if fpr < 1 else 1.0


# --- cells -----------------------------------------------------------------


@lru_cache(maxsize=64)
def _surjections(n_probes: int) -> list[int]:
    """S(k, d) * d!, the ways in which k probes hit exactly d given cells."""
    row = [1] + [0] * n_probes
    for _ in range(n_probes):
        row = [0] + [d * (row[d] + row[d - 1]) for d in range(1, n_probes + 1)]
    return row


def _all_hit(n_balls: float, n_cells: int, n_hashes: int) -> float:
    """Probability that n_hashes random probes all hit cells that n_balls random balls have hit.

    Exact (up to rounding) for independent uniform probes with repetition.  The textbook
    (1 - (1 - 1/m)^t)^k takes the number of hit cells to be its mean, which underestimates: by 0.1 % at
    10,000 cells, by several percent in a block of 512.
    """
    if n_balls <= 0:
        return 0.0
    if n_hashes > 20 or n_cells > 1 << 24:
        # The sum below cancels badly for many probes, and the textbook's error is below 1e-6 at this size.
        return float((-math.expm1(n_balls * math.log1p(-1 / n_cells) if n_cells > 1 else -math.inf)) ** n_hashes)
    missed = [1.0] + [
        math.exp(n_balls * math.log1p(-i / n_cells)) if i < n_cells else 0.0 for i in range(1, n_hashes + 1)
    ]
    ways = _surjections(n_hashes)
    total = 0.0
    for d in range(1, min(n_hashes, n_cells) + 1):
        occupied = math.fsum((-1) ** i * math.comb(d, i) * missed[i] for i in range(d + 1))
        # C(m, d) * d! S(k, d) / m^k = probability that k probes hit exactly d cells
        probability = ways[d] / math.factorial(d) * math.perm(n_cells, d) / n_cells**n_hashes
        total += probability * occupied
    return min(1.0, max(0.0, total))


def cell_fpr(n_keys: int, n_cells: int, n_hashes: int, block_cells: int = 0) -> float:
    """False-positive rate of a Bloom or counting filter that holds ``n_keys`` keys.

    Examples
    --------
    >>> round(cell_fpr(1000, 9600, 7), 4)
    0.01
    """
    if block_cells:
        return blocked_fpr(n_keys, n_cells, n_hashes, block_cells)
    return _all_hit(n_keys * n_hashes, n_cells, n_hashes)


def blocked_fpr(n_keys: int, n_cells: int, n_hashes: int, block_cells: int) -> float:
    """False-positive rate when all probes of a key fall into one block of ``block_cells``.

    Blocks receive a Poisson number of keys; crowded ones cost more than empty ones save.

    Examples
    --------
    >>> round(blocked_fpr(1000, 9585, 7, 512), 4)
    0.0117
    """
    mean = n_keys * block_cells / n_cells
    if mean <= 0:
        return 0.0
    if mean * n_hashes > 60 * block_cells:
        return 1.0  # no cell is left empty, and the sum below would overflow
    width = 10 * math.sqrt(mean) + 20
    low, high = max(0, int(mean - width)), int(mean + width)
    return math.fsum(
        math.exp(j * math.log(mean) - mean - math.lgamma(j + 1)) * _block_table(block_cells, n_hashes, j)
        for j in range(max(1, low), high + 1)
    )


@lru_cache(maxsize=65536)
def _block_table(block_cells: int, n_hashes: int, n_keys: int) -> float:
    return _all_hit(n_keys * n_hashes, block_cells, n_hashes)


def cell_geometry(n_keys: int, fpr: float, block_cells: int = 0) -> CellGeometry:
    """The fewest cells that hold ``n_keys`` at ``fpr``, and the number of probes that goes with them.

    Examples
    --------
    >>> geometry = cell_geometry(1000, 0.01)
    >>> cell_fpr(1000, geometry.n_cells, geometry.n_hashes) <= 0.01
    True
    """
    ideal = max(1, round(-math.log2(fpr)))
    candidates = range(max(1, ideal - (4 if block_cells else 1)), ideal + 2)
    return min(
        (CellGeometry(_fewest_cells(n_keys, fpr, k, block_cells), k, block_cells) for k in candidates),
        key=lambda geometry: geometry.n_cells,
    )


def _fewest_cells(n_keys: int, fpr: float, n_hashes: int, block_cells: int) -> int:
    """The fewest cells, in whole blocks or words of 64, that hold ``n_keys`` at ``fpr`` with that many probes."""
    unit = block_cells or 64
    # Textbook size first; then the exact rate decides, in steps of the unit.
    fill = fpr ** (1 / n_hashes)
    units = max(1, math.ceil(-n_keys * n_hashes / math.log1p(-fill) / unit)) if fill < 1 else 1
    low, high = max(1, units // 2), units
    while cell_fpr(n_keys, high * unit, n_hashes, block_cells) > fpr:
        low, high = high, high + max(1, high // 16)
    while low < high:
        middle = (low + high) // 2
        if cell_fpr(n_keys, middle * unit, n_hashes, block_cells) <= fpr:
            high = middle
        else:
            low = middle + 1
    return high * unit


# --- succinct counters -----------------------------------------------------

SUCCINCT_GROUP = 64  # cells that share a bit word and a count word; also the largest sum that the count word holds
# Slots are planned for a tenth more keys than asked for: they run out over a few percent of growth, and it costs
# less than a hundredth of the size.
SUCCINCT_HEADROOM = 1.1


def succinct_slots(n_keys: float, n_cells: int, n_hashes: int) -> int:
    """Overflow slots for ``n_keys`` and a tenth more: expected number of groups whose counts exceed 64, and slack.

    The counts of a group add up to the number of probes that fell into it, which is Poisson.  At ``n_keys`` itself
    the slots run out with a probability below 1e-9 (a group each is always enough).

    Examples
    --------
    >>> succinct_slots(10**6, 9_616_704, 6)
    327
    """
    n_groups = -(-n_cells // SUCCINCT_GROUP)
    mean = SUCCINCT_HEADROOM * SUCCINCT_GROUP * n_keys * n_hashes / n_cells
    fits = math.fsum(math.exp(j * math.log(mean) - mean - math.lgamma(j + 1)) for j in range(SUCCINCT_GROUP + 1))
    expected = n_groups * max(0.0, 1 - fits)
    return min(n_groups, math.ceil(expected + 4 * math.sqrt(expected) + 2))


def succinct_bytes(n_cells: int, n_slots: int) -> int:
    """Bytes of succinct counters: two words for each group, and the slots."""
    return -(-n_cells // SUCCINCT_GROUP) * 16 + n_slots * SUCCINCT_GROUP


def succinct_geometry(n_keys: int, fpr: float) -> SuccinctGeometry:
    """The smallest succinct counters for ``n_keys`` at ``fpr``.

    Fewer probes than a Bloom filter's optimum need a few more cells, but crowd them less, and with them the slots.

    Examples
    --------
    >>> geometry = succinct_geometry(10**6, 0.01)
    >>> round(8 * succinct_bytes(geometry.n_cells, geometry.n_slots) / 10**6, 1)
    19.4
    """
    ideal = max(1, round(-math.log2(fpr)))

    def with_hashes(n_hashes: int) -> SuccinctGeometry:
        n_cells = _fewest_cells(n_keys, fpr, n_hashes, 0)
        return SuccinctGeometry(n_cells, n_hashes, succinct_slots(n_keys, n_cells, n_hashes))

    return min(
        map(with_hashes, range(max(1, ideal - 2), ideal + 2)),
        key=lambda geometry: succinct_bytes(geometry.n_cells, geometry.n_slots),
    )


# --- cuckoo ----------------------------------------------------------------

BUCKET_SLOTS = 4
# Four-slot buckets fill to 0.976 before insertion fails.  Breadth-first eviction, within its limit, reaches 0.965 with
# 700,000 keys where there are 24 fingerprints and 0.971 where there are 76; ten times the keys take off 0.004, 0.002.
# Small tables need room for the luck of the draw besides.
CUCKOO_LOAD = 0.955
CUCKOO_FULL_LOAD = 0.96  # of large tables with so many fingerprints:
CUCKOO_MANY_VALUES = 64
# With a dozen fingerprints a bucket has too few others to move keys to, and tables jam at half of their load.
CUCKOO_LEAST_VALUES = 24
# So there is a largest rate a cuckoo filter can be built for.
CUCKOO_MAX_FPR = -math.expm1(8 * CUCKOO_LOAD * math.log1p(-1 / (CUCKOO_LEAST_VALUES - 1)))
MAX_PREFIXES = 28
MAX_SUFFIX_BITS = 24


@lru_cache(maxsize=64)
def bucket_code_bits(n_prefixes: int) -> int:
    """Bits for the sorted prefixes of a bucket: one of C(P + 3, 4) multisets."""
    return (math.comb(n_prefixes + 3, 4) - 1).bit_length()


def cuckoo_bucket_bits(n_prefixes: int, suffix_bits: int) -> int:
    """Bits of a whole bucket of four."""
    return bucket_code_bits(n_prefixes) + BUCKET_SLOTS * suffix_bits


def cuckoo_fpr(n_keys: int, n_buckets: int, n_prefixes: int, suffix_bits: int) -> float:
    """False-positive rate of a cuckoo filter that holds ``n_keys`` fingerprints.

    One of the P * 2^s values means "empty"; an absent key meets the occupied ones of eight slots.

    Examples
    --------
    >>> round(cuckoo_fpr(1000, 270, 28, 5), 4)
    0.0082
    """
    values = (n_prefixes << suffix_bits) - 1
    occupied = 2 * BUCKET_SLOTS * min(1.0, n_keys / (BUCKET_SLOTS * n_buckets))
    return -math.expm1(occupied * math.log1p(-1 / values))


def cuckoo_buckets(n_keys: int, n_values: int) -> int:
    """Buckets that take ``n_keys`` of so many possible fingerprints without an insertion failing."""
    slots = (n_keys + 3 * math.sqrt(n_keys) + 8) / CUCKOO_LOAD
    if n_values >= CUCKOO_MANY_VALUES:
        slots = min(slots, (n_keys + 1.5 * math.sqrt(n_keys) + 400) / CUCKOO_FULL_LOAD)
    return max(2, math.ceil(slots / BUCKET_SLOTS))


def cuckoo_geometry(n_keys: int, fpr: float) -> CuckooGeometry:
    """The smallest cuckoo filter for ``n_keys`` at ``fpr``.

    Examples
    --------
    >>> geometry = cuckoo_geometry(10**6, 0.01)
    >>> geometry.n_prefixes << geometry.suffix_bits >= 760
    True
    """
    best: tuple[int, CuckooGeometry] | None = None
    for n_prefixes in range(6, MAX_PREFIXES + 1):
        for suffix_bits in range(MAX_SUFFIX_BITS + 1):
            if (values := n_prefixes << suffix_bits) < CUCKOO_LEAST_VALUES:
                continue
            n_buckets = cuckoo_buckets(n_keys, values)
            if cuckoo_fpr(n_keys, n_buckets, n_prefixes, suffix_bits) <= fpr:
                bits = n_buckets * cuckoo_bucket_bits(n_prefixes, suffix_bits)
                if best is None or bits < best[0]:
                    best = (bits, CuckooGeometry(n_buckets, n_prefixes, suffix_bits))
                break
    if best is None:
        raise ValueError(f"a cuckoo filter cannot reach fpr={fpr!r}; the least is about 2e-8")
    return best[1]


# --- d-left ----------------------------------------------------------------

DLEFT_TABLES = 4
DLEFT_CELLS = 8
# Four subtables of eight cells: at an average of six keys a bucket none overflows in
# practice (Bonomi et al. 2006); the same slack as for the cuckoo table covers small ones.
DLEFT_LOAD = 0.80
DLEFT_COUNTER_BITS = 2
MAX_CELL_BITS = 32  # remainder and counter


def dleft_fpr(n_keys: int, geometry: DLeftGeometry) -> float:
    """False-positive rate: the occupied cells of d buckets, each matching one remainder in 2^r.

    Examples
    --------
    >>> round(dleft_fpr(10**6, dleft_geometry(10**6, 0.01)), 4)
    0.0062
    """
    cells = geometry.n_tables * geometry.n_buckets * geometry.bucket_cells
    occupied = geometry.n_tables * geometry.bucket_cells * min(1.0, n_keys / cells)
    return -math.expm1(occupied * math.log1p(-(2.0**-geometry.remainder_bits)))


def dleft_geometry(n_keys: int, fpr: float, counter_bits: int = DLEFT_COUNTER_BITS) -> DLeftGeometry:
    """The smallest d-left filter for ``n_keys`` at ``fpr``.

    Examples
    --------
    >>> dleft_geometry(10**6, 0.01).remainder_bits
    12
    """
    slack = 3 * math.sqrt(n_keys) + 8
    per_bucket = DLEFT_TABLES * DLEFT_CELLS
    least = max(1, math.ceil((n_keys + slack) / (per_bucket * DLEFT_LOAD)))
    best: tuple[int, DLeftGeometry] | None = None
    for remainder_bits in range(2, MAX_CELL_BITS - counter_bits + 1):
        n_buckets = least
        geometry = DLeftGeometry(DLEFT_TABLES, n_buckets, DLEFT_CELLS, remainder_bits, counter_bits)
        if dleft_fpr(n_keys, geometry) > fpr:
            # A sparser table has fewer remainders to match by chance.
            allowed = math.log1p(-fpr) / math.log1p(-(2.0**-remainder_bits))
            n_buckets = math.ceil(n_keys * per_bucket / allowed / per_bucket)
            geometry = geometry._replace(n_buckets=n_buckets)
            if n_buckets > 2 * least or dleft_fpr(n_keys, geometry) > fpr:
                continue
        bits = per_bucket * n_buckets * (remainder_bits + counter_bits)
        if best is None or bits < best[0]:
            best = (bits, geometry)
    if best is None:
        least_fpr = DLEFT_TABLES * DLEFT_CELLS * DLEFT_LOAD / 2 * 2.0 ** (counter_bits - MAX_CELL_BITS)
        raise ValueError(
            f"a d-left filter with counters of {counter_bits} bits cannot reach fpr={fpr!r}; "
            f"the least is about {least_fpr:.0e}"
        )
    return best[1]
