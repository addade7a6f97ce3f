"""Elastic Bloom filter (Wu et al., 2021): a Bloom filter that forgets, doubles and halves without its keys.

A key has k hashes of 64 bits.  Of each, the lowest e bits are a position in the array of m = 2^e bits, the others its
fingerprint.  The bits alone answer questions.  The fingerprints, kept by position, are what lets the array change: a
bit is cleared when the last fingerprint of its position goes, and when m doubles, the lowest bit of a fingerprint says
whether it stays at position i or moves to i + m.  Nothing is lost on the way, so m can halve again.

Fingerprints of 256 neighbouring positions share a *bucket* of S entries.  Doubling and halving go a bucket at a time,
a few with each change: buckets below ``n_split`` have been divided already, and a hash that leads to one of them uses
e + 1 bits.  Every doubling appends a *level* to the buffer, the bits and buckets of positions m .. 2m - 1; what is
there stays where it is.

::

    offset   width   field (all little-endian)
         0       4   u32  doublings d: e = e_0 + d
         4       4   u32  what is under way: 0 nothing, 1 doubling, 2 halving
         8       8   u64  buckets that are divided, n_split < 2^e / 256
        16       8   u64  keys
        24       8   u64  ones, those below divided buckets counted once, all others twice: of 2m, the chance of a hit
        32       8   u64  entries of the stash in use
        40      24   zero
        64     512   stash: 64 hashes (u64) whose bucket was full
       576           levels 0 .. a - e_0, each on a multiple of 64 bytes:
                       positions / 8 bytes      the bits
                       positions / 256 buckets  u16 number of entries, then S entries of 72 - e_0 - level bits:
                                                bits 0 .. 7 the position modulo 256, the others the fingerprint
                       16 bytes of padding, zero

Level 0 has the positions 0 .. 2^e_0 - 1, level l > 0 those from 2^(e_0 + l - 1) to 2^(e_0 + l) - 1.
A bucket is full about once in a million, by luck; then entries wait in the stash for room, and take part in everything.
Entries are a multiset: a key that was added twice has all of its entries twice, and so have two keys with one hash.
"""

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.types cimport load32, load64, prefetch, uint8_t, uint32_t, uint64_t

cdef extern from * nogil:
    """
    /* Bits of x without leading zeros; 0 for 0. */
    static inline int dlbf_bit_length64(uint64_t x) {
    #if defined(__GNUC__) || defined(__clang__)
        return x ? 64 - (int)__builtin_clzll(x) : 0;
    #else
        int n = 0;
        for (; x; x >>= 1) n++;
        return n;
    #endif
    }
    """
    int bit_length64 "dlbf_bit_length64"(uint64_t x) noexcept

cdef enum:
    ELASTIC_BUCKET_LOG2 = 8     # positions of a bucket
    ELASTIC_MAX_LEVELS = 40
    ELASTIC_MAX_HASHES = 64
    ELASTIC_STASH = 64
    ELASTIC_HEAD_BYTES = 576

cdef enum:
    # Offsets in the head.
    ELASTIC_AT_DOUBLINGS = 0
    ELASTIC_AT_MOVE = 4
    ELASTIC_AT_SPLIT = 8
    ELASTIC_AT_KEYS = 16
    ELASTIC_AT_WEIGHT = 24
    ELASTIC_AT_STASHED = 32
    ELASTIC_AT_STASH = 64

ctypedef struct ElasticLevel:
    uint64_t first          # position
    uint64_t bits_at        # offsets in bytes
    uint64_t buckets_at
    uint64_t bucket_bytes
    uint32_t entry_bits

ctypedef struct Elastic:
    uint32_t initial_log2
    uint32_t allocated_log2     # positions that the buffer has room for
    uint32_t n_hashes
    uint32_t bucket_slots
    uint64_t full_share         # of ones at which the array doubles, in units of 2^-32
    const ElasticLevel* levels


cdef inline uint64_t elastic_hash(uint64_t h, uint32_t i) noexcept nogil:
    """Hash number ``i`` of a key: SplitMix64's finaliser, a bijection of ``h`` for every ``i``."""
    h += (i + 1) * <uint64_t>0xD1342543DE82EF95
    h = (h ^ (h >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    h = (h ^ (h >> 27)) * <uint64_t>0x94D049BB133111EB
    return h ^ (h >> 31)


cdef inline uint32_t elastic_log2(const Elastic* g, const uint8_t* data) noexcept nogil:
    """The e of m = 2^e."""
    return g.initial_log2 + load32(data + ELASTIC_AT_DOUBLINGS)


cdef inline uint64_t elastic_position(const Elastic* g, const uint8_t* data, uint64_t x) noexcept nogil:
    """Where a hash leads to now."""
    cdef uint32_t log2 = elastic_log2(g, data)
    cdef uint64_t position = x & ((<uint64_t>1 << log2) - 1)
    # One bit more if its bucket is divided; without a branch, which nobody could foresee.
    return position | (
        x & (<uint64_t>(position >> ELASTIC_BUCKET_LOG2 < load64(data + ELASTIC_AT_SPLIT)) << log2)
    )


cdef inline const ElasticLevel* elastic_level(const Elastic* g, uint64_t position) noexcept nogil:
    return g.levels + bit_length64(position >> g.initial_log2)


cdef inline uint64_t elastic_bit_at(const Elastic* g, uint64_t position) noexcept nogil:
    """The byte that has the bit of a position."""
    cdef const ElasticLevel* level = elastic_level(g, position)
    return level.bits_at + ((position - level.first) >> 3)


cdef inline bint elastic_contains(const Elastic* g, const uint8_t* data, uint64_t h) noexcept nogil:
    cdef uint64_t position
    cdef uint32_t i
    for i in range(g.n_hashes):
        position = elastic_position(g, data, elastic_hash(h, i))
        if not (data[elastic_bit_at(g, position)] >> (position & 7)) & 1:
            return False
    return True


cdef inline void elastic_prefetch(const Elastic* g, const uint8_t* data, uint64_t h) noexcept nogil:
    # Half of all bits are ones at most: two looks settle three questions of four.
    cdef uint32_t i
    for i in range(min(g.n_hashes, <uint32_t>2)):
        prefetch(data + elastic_bit_at(g, elastic_position(g, data, elastic_hash(h, i))))


cdef bint elastic_add(const Elastic* g, uint8_t* data, uint64_t h) noexcept nogil
cdef bint elastic_remove(const Elastic* g, uint8_t* data, uint64_t h) noexcept nogil
cdef uint64_t elastic_count(const Elastic* g, const uint8_t* data, uint64_t h) noexcept nogil


cdef class ElasticCore(FilterCore):
    cdef Elastic geometry
    cdef ElasticLevel levels[ELASTIC_MAX_LEVELS]

    cdef int _take_again(self) except -1
