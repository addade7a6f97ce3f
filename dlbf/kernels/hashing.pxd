"""One 64-bit hash of a key, the source of every position and fingerprint.

Three published functions, chosen once per filter and recorded with it:

* ``HASH_XXH3``: XXH3-64 with seed 0 and the standard secret.  Fast; anybody can compute it.
* ``HASH_SIP13``: SipHash-1-3 under a 128-bit secret.  A PRF; nobody else can compute it.
* ``HASH_SIP24``: SipHash-2-4 under a 128-bit secret, of what dlbf 0.1 has written.

64 bits are enough: two of n keys share a hash with probability n / 2**64 per query, 5e-11 at a
billion keys.  Filters of one composite share the hash; ``hash_for_filter`` separates their positions.
"""

from dlbf.kernels.types cimport (
    bswap64, load32, load64, mulfold64, rotl64, uint8_t, uint16_t, uint32_t, uint64_t,
)

cdef enum:
    HASH_XXH3 = 1
    HASH_SIP24 = 2
    HASH_SIP13 = 3

ctypedef struct HashKey:
    uint32_t kind
    uint64_t sip[4]    # the state of either SipHash under the secret before any byte of a key

cdef extern from "siphash.h" nogil:
    # Of the state that a HashKey has, and a key.
    uint64_t siphash13 "dlbf_siphash13"(const uint64_t* state, const uint8_t* data, size_t n) noexcept
    uint64_t siphash24 "dlbf_siphash24"(const uint64_t* state, const uint8_t* data, size_t n) noexcept

cdef extern from *:
    """
    #ifndef DLBF_XXH3_SECRET
    #define DLBF_XXH3_SECRET
    /* The 192 bytes of the XXH3 specification. */
    static const uint8_t dlbf_xxh3_secret[192] = {
        0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
        0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
        0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
        0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
        0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
        0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
        0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
        0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
        0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
        0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
        0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
        0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e
    };
    #endif
    """
    const uint8_t* XXH3_SECRET "dlbf_xxh3_secret"

cdef uint64_t xxh3_long(const uint8_t* data, size_t n) noexcept nogil


cdef inline uint64_t xxh3_avalanche(uint64_t h) noexcept nogil:
    h ^= h >> 37
    h *= <uint64_t>0x165667919E3779F9
    return h ^ (h >> 32)


cdef inline uint64_t xxh64_avalanche(uint64_t h) noexcept nogil:
    h ^= h >> 33
    h *= <uint64_t>0xC2B2AE3D27D4EB4F
    h ^= h >> 29
    h *= <uint64_t>0x165667B19E3779F9
    return h ^ (h >> 32)


cdef inline uint64_t xxh3_mix16(const uint8_t* data, int at) noexcept nogil:
    return mulfold64(load64(data) ^ load64(XXH3_SECRET + at), load64(data + 8) ^ load64(XXH3_SECRET + at + 8))


cdef inline uint64_t xxh3_short(const uint8_t* data, size_t n) noexcept nogil:
    """Up to 16 bytes."""
    cdef uint64_t a, b
    if n > 8:
        a = load64(data) ^ load64(XXH3_SECRET + 24) ^ load64(XXH3_SECRET + 32)
        b = load64(data + n - 8) ^ load64(XXH3_SECRET + 40) ^ load64(XXH3_SECRET + 48)
        return xxh3_avalanche(n + bswap64(a) + b + mulfold64(a, b))
    if n >= 4:
        a = load32(data + n - 4) + (<uint64_t>load32(data) << 32)
        a ^= load64(XXH3_SECRET + 8) ^ load64(XXH3_SECRET + 16)
        a ^= rotl64(a, 49) ^ rotl64(a, 24)
        a *= <uint64_t>0x9FB21C651E98DF25
        a ^= (a >> 35) + n
        a *= <uint64_t>0x9FB21C651E98DF25
        return a ^ (a >> 28)
    if n:
        a = (<uint64_t>data[0] << 16) | (<uint64_t>data[n >> 1] << 24) | data[n - 1] | (<uint64_t>n << 8)
        return xxh64_avalanche(a ^ (load32(XXH3_SECRET) ^ load32(XXH3_SECRET + 4)))
    return xxh64_avalanche(load64(XXH3_SECRET + 56) ^ load64(XXH3_SECRET + 64))


cdef inline uint64_t xxh3(const uint8_t* data, size_t n) noexcept nogil:
    cdef uint64_t a
    if n <= 16:
        return xxh3_short(data, n)
    if n > 128:
        return xxh3_long(data, n)
    a = n * <uint64_t>0x9E3779B185EBCA87
    if n > 32:
        if n > 64:
            if n > 96:
                a += xxh3_mix16(data + 48, 96) + xxh3_mix16(data + n - 64, 112)
            a += xxh3_mix16(data + 32, 64) + xxh3_mix16(data + n - 48, 80)
        a += xxh3_mix16(data + 16, 32) + xxh3_mix16(data + n - 32, 48)
    a += xxh3_mix16(data, 0) + xxh3_mix16(data + n - 16, 16)
    return xxh3_avalanche(a)


cdef inline uint64_t hash_key(const HashKey* key, const uint8_t* data, size_t n) noexcept nogil:
    if key.kind == HASH_XXH3:
        return xxh3(data, n)
    if key.kind == HASH_SIP13:
        return siphash13(key.sip, data, n)
    return siphash24(key.sip, data, n)


cdef void hash_chunk(
    const HashKey* key, const uint8_t** data, const size_t* n_bytes, Py_ssize_t n, uint64_t* out,
) noexcept nogil


cdef inline uint64_t hash_for_filter(uint64_t h, uint64_t filter_id) noexcept nogil:
    """The hash as filter number ``filter_id`` of a composite sees it; filter 0 sees it unchanged.

    The mixing step is a bijection (SplitMix64's finaliser), so no two hashes become one.
    """
    if filter_id == 0:
        return h
    h += filter_id * <uint64_t>0x9E3779B97F4A7C15
    h = (h ^ (h >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    h = (h ^ (h >> 27)) * <uint64_t>0x94D049BB133111EB
    return h ^ (h >> 31)


cdef HashKey hash_key_from(object secret) except *
