"""d-left counting filter: fingerprints with counters in d subtables, each key in the emptiest of d buckets.

A key's fingerprint is a pair (b, r), b below the number of buckets, r of ``remainder_bits`` bits.  Subtable t sees it
through a permutation of all such pairs, (b, r) -> (b_t, r_t): b_t = b + F_t(r) mod n, then r_t = r xor G_t(b_t).  Being
permutations, two fingerprints meet in one subtable only if they are equal, so a fingerprint has at most
one cell in the whole filter and removal never has to guess.  (Bonomi et al., "An improved construction for
counting Bloom filters", 2006.)

::

    cell, lowest bit first:  | counter, 0 = free | remainder |

Counters saturate at their maximum and stay there.
"""

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.packed cimport packed_get, packed_put
from dlbf.kernels.types cimport mulhi64, prefetch, uint8_t, uint32_t, uint64_t

cdef enum:
    DLEFT_MAX_TABLES = 8

ctypedef struct DLeft:
    uint64_t n_buckets        # in each subtable
    uint32_t n_tables
    uint32_t bucket_cells
    uint32_t remainder_bits
    uint32_t counter_bits
    uint32_t cell_bits
    uint32_t max_count


cdef inline uint64_t dleft_mix(uint64_t x, uint64_t table) noexcept nogil:
    x = (x + table + 1) * <uint64_t>0xD1342543DE82EF95
    x ^= x >> 32
    return x * <uint64_t>0xBF58476D1CE4E5B9


cdef inline void dleft_place(
    const DLeft* g, uint64_t b, uint32_t r, uint32_t table, uint64_t* bucket, uint32_t* remainder,
) noexcept nogil:
    """The permutation of subtable ``table``."""
    cdef uint64_t to = b + mulhi64(dleft_mix(r, 2 * table), g.n_buckets)
    if to >= g.n_buckets:
        to -= g.n_buckets
    bucket[0] = to
    remainder[0] = r ^ <uint32_t>(dleft_mix(to, 2 * table + 1) >> (64 - g.remainder_bits))


cdef inline void dleft_unplace(
    const DLeft* g, uint64_t bucket, uint32_t remainder, uint32_t table, uint64_t* b, uint32_t* r,
) noexcept nogil:
    """Its inverse."""
    cdef uint64_t shift
    r[0] = remainder ^ <uint32_t>(dleft_mix(bucket, 2 * table + 1) >> (64 - g.remainder_bits))
    shift = mulhi64(dleft_mix(r[0], 2 * table), g.n_buckets)
    b[0] = bucket - shift if bucket >= shift else bucket + g.n_buckets - shift


cdef inline void dleft_fingerprint(const DLeft* g, uint64_t h, uint64_t* b, uint32_t* r) noexcept nogil:
    b[0] = mulhi64(h, g.n_buckets)
    r[0] = <uint32_t>((h * <uint64_t>0x9E3779B97F4A7C15) >> (64 - g.remainder_bits))


cdef inline uint64_t dleft_bit(const DLeft* g, uint32_t table, uint64_t bucket) noexcept nogil:
    """Where a bucket starts, in bits."""
    return (table * g.n_buckets + bucket) * (g.bucket_cells * <uint64_t>g.cell_bits)


cdef inline bint dleft_find(
    const DLeft* g, const uint8_t* data, uint64_t b, uint32_t r, uint64_t* found,
) noexcept nogil:
    """The bit offset of the cell that holds (b, r)."""
    cdef uint64_t bucket, at
    cdef uint32_t remainder, cell
    cdef uint32_t table, _i
    for table in range(g.n_tables):
        dleft_place(g, b, r, table, &bucket, &remainder)
        at = dleft_bit(g, table, bucket)
        for _i in range(g.bucket_cells):
            cell = packed_get(data, at, g.cell_bits)
            if (cell >> g.counter_bits) == remainder and (cell & g.max_count):
                found[0] = at
                return True
            at += g.cell_bits
    return False


cdef inline bint dleft_contains(const DLeft* g, const uint8_t* data, uint64_t h) noexcept nogil:
    cdef uint64_t b, at
    cdef uint32_t r
    dleft_fingerprint(g, h, &b, &r)
    return dleft_find(g, data, b, r, &at)


cdef inline uint32_t dleft_count(const DLeft* g, const uint8_t* data, uint64_t h) noexcept nogil:
    cdef uint64_t b, at
    cdef uint32_t r
    dleft_fingerprint(g, h, &b, &r)
    return packed_get(data, at, g.counter_bits) if dleft_find(g, data, b, r, &at) else 0


cdef inline bint dleft_insert(
    const DLeft* g, uint8_t* data, uint64_t b, uint32_t r, uint32_t times,
) noexcept nogil:
    """Count (b, r) ``times`` more; False, and no change, if it needs a cell and none is free."""
    cdef uint64_t at = 0, bucket, free_at, best_at = 0
    cdef uint32_t remainder, best_remainder = 0, best_load, load, count, table, _i
    if dleft_find(g, data, b, r, &at):
        count = packed_get(data, at, g.counter_bits)
        packed_put(data, at, g.counter_bits, min(count + times, g.max_count))
        return True
    best_load = g.bucket_cells
    for table in range(g.n_tables):
        dleft_place(g, b, r, table, &bucket, &remainder)
        at = dleft_bit(g, table, bucket)
        load = 0
        free_at = 0
        for _i in range(g.bucket_cells):
            if packed_get(data, at, g.counter_bits):
                load += 1
            else:
                free_at = at
            at += g.cell_bits
        # Strictly emptier wins, so ties go to the left: that is what keeps the buckets even.
        if load < best_load:
            best_load, best_at, best_remainder = load, free_at, remainder
    if best_load == g.bucket_cells:
        return False
    packed_put(data, best_at, g.cell_bits, (best_remainder << g.counter_bits) | min(times, g.max_count))
    return True


cdef inline bint dleft_subtract(const DLeft* g, uint8_t* data, uint64_t h) noexcept nogil:
    """Count the key once less; False if it has no cell."""
    cdef uint64_t b, at
    cdef uint32_t r, count
    dleft_fingerprint(g, h, &b, &r)
    if not dleft_find(g, data, b, r, &at):
        return False
    count = packed_get(data, at, g.counter_bits)
    # Saturated counters stay: see cells.pxd.  (A counter of one bit is saturated at one.)
    if count == g.max_count:
        return True
    if count == 1:
        packed_put(data, at, g.cell_bits, 0)
    else:
        packed_put(data, at, g.counter_bits, count - 1)
    return True


cdef class DLeftCore(FilterCore):
    cdef DLeft geometry
