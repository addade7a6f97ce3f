/* SipHash-2-4 of eight keys at once, one in each 64-bit lane of a vector.
 *
 * One SipHash is a chain of dependent additions and rotations that leaves most of a
 * processor idle; eight chains side by side cost little more than one.  The vectors are GCC's
 * generic ones, so the arithmetic is that of the scalar code and so are the results
 * (tested against it).  Compiled for AVX-512 and AVX2 and chosen at run time; where
 * neither exists dlbf_sip_lanes() says so and the caller uses the scalar code.
 */
#ifndef DLBF_SIPLANES_H
#define DLBF_SIPLANES_H

#include "portable.h"

#define DLBF_LANES 8

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang_analyzer__)
#define DLBF_HAVE_LANES 1

typedef uint64_t dlbf_v8 __attribute__((vector_size(64)));

#define DLBF_VROT(x, r) (((x) << (r)) | ((x) >> (64 - (r))))
#define DLBF_VROUND             \
    do {                        \
        v0 += v1;               \
        v2 += v3;               \
        v1 = DLBF_VROT(v1, 13) ^ v0; \
        v3 = DLBF_VROT(v3, 16) ^ v2; \
        v0 = DLBF_VROT(v0, 32); \
        v2 += v1;               \
        v0 += v3;               \
        v1 = DLBF_VROT(v1, 17) ^ v2; \
        v3 = DLBF_VROT(v3, 21) ^ v0; \
        v2 = DLBF_VROT(v2, 32); \
    } while (0)

/* The last word of a key: its last n % 8 bytes, and its length modulo 256 on top. */
static inline uint64_t dlbf_sip_last(const uint8_t *p, size_t n) {
    uint64_t word = 0;
    size_t left = n & 7;
    if (n >= 8) {
        if (left) word = dlbf_load64(p + n - 8) >> (8 * (8 - left));
    } else {
        while (left) word = (word << 8) | p[--left];
    }
    return word | ((uint64_t)n << 56);
}

#define DLBF_SIP_BODY                                                                      \
    const dlbf_v8 zero = {0, 0, 0, 0, 0, 0, 0, 0};                                         \
    dlbf_v8 v0 = zero + (k0 ^ 0x736F6D6570736575ULL), v1 = zero + (k1 ^ 0x646F72616E646F6DULL);\
    dlbf_v8 v2 = zero + (k0 ^ 0x6C7967656E657261ULL), v3 = zero + (k1 ^ 0x7465646279746573ULL);\
    dlbf_v8 w = zero, live, n0, n1, n2, n3, ends = zero;                                   \
    uint64_t last[DLBF_LANES], words[DLBF_LANES], most = 0, t;                             \
    int i;                                                                                 \
    for (i = 0; i < DLBF_LANES; i++) {                                                     \
        words[i] = n_bytes[i] >> 3;                                                        \
        if (words[i] > most) most = words[i];                                              \
        last[i] = dlbf_sip_last(data[i], n_bytes[i]);                                      \
    }                                                                                      \
    memcpy(&ends, words, sizeof ends);                                                     \
    for (t = 0; t <= most; t++) {                                                          \
        live = (dlbf_v8)(ends >= zero + t);                                                \
        for (i = 0; i < DLBF_LANES; i++) w[i] = t < words[i] ? dlbf_load64(data[i] + 8 * t) : last[i];\
        n0 = v0, n1 = v1, n2 = v2, n3 = v3;                                                \
        v3 ^= w;                                                                           \
        DLBF_VROUND;                                                                       \
        DLBF_VROUND;                                                                       \
        v0 ^= w;                                                                           \
        /* A key that has ended keeps its state while the longer ones go on. */            \
        v0 = (v0 & live) | (n0 & ~live);                                                   \
        v1 = (v1 & live) | (n1 & ~live);                                                   \
        v2 = (v2 & live) | (n2 & ~live);                                                   \
        v3 = (v3 & live) | (n3 & ~live);                                                   \
    }                                                                                      \
    v2 ^= 0xFF;                                                                            \
    DLBF_VROUND;                                                                           \
    DLBF_VROUND;                                                                           \
    DLBF_VROUND;                                                                           \
    DLBF_VROUND;                                                                           \
    v0 ^= v1 ^ v2 ^ v3;                                                                    \
    for (i = 0; i < DLBF_LANES; i++) out[i] = v0[i];

__attribute__((target("avx512f"))) static void dlbf_sip8_avx512(
    uint64_t k0, uint64_t k1, const uint8_t **data, const size_t *n_bytes, uint64_t *out) {
    DLBF_SIP_BODY
}
__attribute__((target("avx2"))) static void dlbf_sip8_avx2(
    uint64_t k0, uint64_t k1, const uint8_t **data, const size_t *n_bytes, uint64_t *out) {
    DLBF_SIP_BODY
}

/* 2: AVX-512, 1: AVX2, 0: neither. */
static inline int dlbf_sip_lanes(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") ? 2 : __builtin_cpu_supports("avx2") ? 1 : 0;
}
static inline void dlbf_sip8(
    int lanes, uint64_t k0, uint64_t k1, const uint8_t **data, const size_t *n_bytes, uint64_t *out) {
    if (lanes == 2)
        dlbf_sip8_avx512(k0, k1, data, n_bytes, out);
    else
        dlbf_sip8_avx2(k0, k1, data, n_bytes, out);
}
#else
static inline int dlbf_sip_lanes(void) { return 0; }
static inline void dlbf_sip8(
    int lanes, uint64_t k0, uint64_t k1, const uint8_t **data, const size_t *n_bytes, uint64_t *out) {
    (void)lanes, (void)k0, (void)k1, (void)data, (void)n_bytes, (void)out;
}
#endif

#endif
