"""Cuckoo filter with sorted buckets: the smallest deletable filter here.

A key's fingerprint v (1 .. P * 2^s - 1; 0 is "empty") lives in one of two buckets of four, i and (H(v) - i) mod n.
The order of four fingerprints in a bucket means nothing, so it is not stored: the four prefixes v >> s, sorted, are one
of C(P + 3, 4) multisets and stored as its number; the suffixes follow, s bits each, in the order of their prefixes.

::

    bucket, lowest bit first:  | number of the prefix multiset | suffix 0 | suffix 1 | suffix 2 | suffix 3 |
                                 ceil(log2 C(P+3, 4)) bits        s bits each

That saves a bit per fingerprint against a plain bucket, and as P need not be a power of two the size
follows the asked rate in quarter-bit steps.  With P = 6 the 126 multisets take 7 bits instead of 10.3.

A query decodes two multiset numbers by table and compares all four prefixes and suffixes of both buckets: no branch
depends on what is found, for the processor could foresee none.  Insertion searches breadth-first for the shortest chain
of moves before it moves anything, so a full table fails without a change.
"""

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.packed cimport packed_get, packed_put
from dlbf.kernels.types cimport load64, mulhi64, prefetch, uint8_t, uint32_t, uint64_t

cdef enum:
    # A field of so many bits fits in eight bytes from wherever its first byte starts.
    CUCKOO_WORD_BITS = 57

ctypedef struct Cuckoo:
    uint64_t n_buckets
    uint64_t n_values         # fingerprints there are: P * 2^s - 1
    uint32_t n_prefixes
    uint32_t suffix_bits
    uint32_t code_bits
    uint32_t bucket_bits
    const uint32_t* multisets  # number -> four sorted prefixes, one per byte, smallest lowest


cdef inline uint32_t cuckoo_fingerprint(const Cuckoo* g, uint64_t h) noexcept nogil:
    return <uint32_t>(1 + mulhi64(h * <uint64_t>0x9E3779B97F4A7C15, g.n_values))


cdef inline uint64_t cuckoo_bucket(const Cuckoo* g, uint64_t h) noexcept nogil:
    return mulhi64(h, g.n_buckets)


cdef inline uint64_t cuckoo_other(const Cuckoo* g, uint64_t bucket, uint32_t v) noexcept nogil:
    """The other bucket of a fingerprint; its own inverse."""
    cdef uint64_t x = v * <uint64_t>0xD1342543DE82EF95
    cdef uint64_t target
    x ^= x >> 32
    target = mulhi64(x * <uint64_t>0xBF58476D1CE4E5B9, g.n_buckets)
    return target - bucket if target >= bucket else target + g.n_buckets - bucket


cdef inline uint32_t cuckoo_multiset(const Cuckoo* g, const uint8_t* data, uint64_t bucket) noexcept nogil:
    return g.multisets[packed_get(data, bucket * g.bucket_bits, g.code_bits)]


cdef inline uint32_t cuckoo_suffix(const Cuckoo* g, const uint8_t* data, uint64_t bucket, int slot) noexcept nogil:
    return packed_get(data, bucket * g.bucket_bits + g.code_bits + slot * g.suffix_bits, g.suffix_bits)


cdef inline int cuckoo_matches(const Cuckoo* g, const uint8_t* data, uint64_t bucket, uint32_t v) noexcept nogil:
    """How many slots of the bucket hold ``v``."""
    cdef uint64_t at = bucket * g.bucket_bits
    cdef uint32_t suffix_mask = (<uint32_t>1 << g.suffix_bits) - 1
    cdef uint32_t prefix = v >> g.suffix_bits, suffix = v & suffix_mask
    cdef uint32_t prefixes, slot, _slot, apart
    cdef uint64_t word
    cdef int n = 0
    if g.bucket_bits <= CUCKOO_WORD_BITS:
        word = load64(data + (at >> 3)) >> (at & 7)
        prefixes = g.multisets[word & ((<uint64_t>1 << g.code_bits) - 1)] ^ (prefix * <uint32_t>0x01010101)
        word >>= g.code_bits
        for _slot in range(4):
            apart = (prefixes & 0xFF) | ((<uint32_t>word ^ suffix) & suffix_mask)
            n += apart == 0
            prefixes >>= 8
            word >>= g.suffix_bits
        return n
    prefixes = cuckoo_multiset(g, data, bucket)
    for slot in range(4):
        if (prefixes >> (8 * slot)) & 0xFF == prefix:
            n += cuckoo_suffix(g, data, bucket, <int>slot) == suffix
    return n


cdef inline bint cuckoo_contains(const Cuckoo* g, const uint8_t* data, uint64_t h) noexcept nogil:
    cdef uint32_t v = cuckoo_fingerprint(g, h)
    cdef uint64_t bucket = cuckoo_bucket(g, h)
    # Both at once, so that their cache misses overlap.
    return (cuckoo_matches(g, data, bucket, v) | cuckoo_matches(g, data, cuckoo_other(g, bucket, v), v)) != 0


cdef inline void cuckoo_prefetch(const Cuckoo* g, const uint8_t* data, uint64_t h) noexcept nogil:
    cdef uint64_t bucket = cuckoo_bucket(g, h)
    prefetch(data + ((bucket * g.bucket_bits) >> 3))
    prefetch(data + ((cuckoo_other(g, bucket, cuckoo_fingerprint(g, h)) * g.bucket_bits) >> 3))


cdef void cuckoo_contains_many(
    const Cuckoo* geometry, const uint8_t* data, const uint64_t* hashes, Py_ssize_t n, uint8_t* out,
) noexcept nogil
cdef bint cuckoo_insert(const Cuckoo* g, uint8_t* data, uint64_t bucket, uint32_t v) noexcept nogil
cdef bint cuckoo_remove(const Cuckoo* g, uint8_t* data, uint64_t h) noexcept nogil
cdef object cuckoo_set_geometry(Cuckoo* g, uint64_t n_buckets, uint32_t n_prefixes, uint32_t suffix_bits)


cdef class CuckooCore(FilterCore):
    cdef Cuckoo geometry
    cdef object table          # keeps the multiset table alive
