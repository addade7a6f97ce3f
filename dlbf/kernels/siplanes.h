/* SipHash-1-3 and SipHash-2-4 of eight keys at once, one in each 64-bit lane of a vector.
 *
 * One SipHash is a chain of dependent additions and rotations that leaves most of a
 * processor idle; eight chains side by side cost little more than one.  The arithmetic is that of the
 * scalar code and so are the results (tested against it).  Compiled for AVX-512, which gathers the words of
 * eight keys in one instruction and rotates in one more, and for AVX2 with GCC's generic vectors; chosen at run
 * time.  Where neither exists dlbf_sip_lanes() says so and the caller uses the scalar code.
 */
#ifndef DLBF_SIPLANES_H
#define DLBF_SIPLANES_H

#include "siphash.h"

#define DLBF_LANES 8

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang_analyzer__)
#define DLBF_HAVE_LANES 1
#include <immintrin.h>

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

#define DLBF_VROUNDS(n) for (i = 0; i < (n); i++) DLBF_VROUND

/* With c rounds for each word and d at the end, for whoever may use AVX2. */
#define DLBF_SIP_BODY(c, d)                                                                \
    const dlbf_v8 zero = {0, 0, 0, 0, 0, 0, 0, 0};                                         \
    dlbf_v8 v0 = zero + state[0], v1 = zero + state[1];                                    \
    dlbf_v8 v2 = zero + state[2], v3 = zero + state[3];                                    \
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
        DLBF_VROUNDS(c);                                                                   \
        v0 ^= w;                                                                           \
        /* A key that has ended keeps its state while the longer ones go on. */            \
        v0 = (v0 & live) | (n0 & ~live);                                                   \
        v1 = (v1 & live) | (n1 & ~live);                                                   \
        v2 = (v2 & live) | (n2 & ~live);                                                   \
        v3 = (v3 & live) | (n3 & ~live);                                                   \
    }                                                                                      \
    v2 ^= 0xFF;                                                                            \
    DLBF_VROUNDS(d);                                                                       \
    v0 ^= v1 ^ v2 ^ v3;                                                                    \
    for (i = 0; i < DLBF_LANES; i++) out[i] = v0[i];

#define DLBF_ZROUND                                                                        \
    do {                                                                                   \
        v0 = _mm512_add_epi64(v0, v1);                                                     \
        v2 = _mm512_add_epi64(v2, v3);                                                     \
        v1 = _mm512_xor_si512(_mm512_rol_epi64(v1, 13), v0);                               \
        v3 = _mm512_xor_si512(_mm512_rol_epi64(v3, 16), v2);                               \
        v0 = _mm512_rol_epi64(v0, 32);                                                     \
        v2 = _mm512_add_epi64(v2, v1);                                                     \
        v0 = _mm512_add_epi64(v0, v3);                                                     \
        v1 = _mm512_xor_si512(_mm512_rol_epi64(v1, 17), v2);                               \
        v3 = _mm512_xor_si512(_mm512_rol_epi64(v3, 21), v0);                               \
        v2 = _mm512_rol_epi64(v2, 32);                                                     \
    } while (0)

/* Word t of every key; where a key has ended, its last word. */
#define DLBF_ZWORD(t)                                                                      \
    _mm512_mask_i64gather_epi64(last, _mm512_cmpgt_epu64_mask(words, _mm512_set1_epi64((long long)(t))), at, NULL, 1)

#define DLBF_ZROUNDS(n) for (i = 0; i < (n); i++) DLBF_ZROUND

__attribute__((target("avx512f"), always_inline)) static inline void dlbf_sip8_avx512(
    const uint64_t *state, const uint8_t **data, const size_t *n_bytes, uint64_t *out, int c, int d) {
    const __m512i n = _mm512_loadu_si512(n_bytes), words = _mm512_srli_epi64(n, 3), eight = _mm512_set1_epi64(8);
    const uint64_t most = _mm512_reduce_max_epu64(words), least = _mm512_reduce_min_epu64(words);
    __m512i v0 = _mm512_set1_epi64((long long)state[0]);
    __m512i v1 = _mm512_set1_epi64((long long)state[1]);
    __m512i v2 = _mm512_set1_epi64((long long)state[2]);
    __m512i v3 = _mm512_set1_epi64((long long)state[3]);
    __m512i at = _mm512_loadu_si512(data), last, word, now;
    uint64_t t;
    int i;
    if (least) {
        /* As in dlbf_sip_last; a shift by 64, where nothing is left, gives zero. */
        const __m512i left = _mm512_slli_epi64(_mm512_and_si512(n, _mm512_set1_epi64(7)), 3);
        last = _mm512_i64gather_epi64(_mm512_sub_epi64(_mm512_add_epi64(at, n), eight), NULL, 1);
        last = _mm512_srlv_epi64(last, _mm512_sub_epi64(_mm512_set1_epi64(64), left));
        last = _mm512_or_si512(last, _mm512_slli_epi64(n, 56));
    } else {
        uint64_t lasts[DLBF_LANES];
        for (i = 0; i < DLBF_LANES; i++) lasts[i] = dlbf_sip_last(data[i], n_bytes[i]);
        last = _mm512_loadu_si512(lasts);
    }
    /* The next words are fetched before this one is mixed in: a gather takes long, but not of the same units. */
    word = DLBF_ZWORD(0);
    for (t = 0; t < least;) {
        now = word;
        t++;
        at = _mm512_add_epi64(at, eight);
        word = DLBF_ZWORD(t);
        v3 = _mm512_xor_si512(v3, now);
        DLBF_ZROUNDS(c);
        v0 = _mm512_xor_si512(v0, now);
    }
    while (t <= most) {
        /* A key that has ended keeps its state while the longer ones go on. */
        const __mmask8 live = _mm512_cmpge_epu64_mask(words, _mm512_set1_epi64((long long)t));
        const __m512i n0 = v0, n1 = v1, n2 = v2, n3 = v3;
        now = word;
        t++;
        at = _mm512_add_epi64(at, eight);
        word = DLBF_ZWORD(t);
        v3 = _mm512_xor_si512(v3, now);
        DLBF_ZROUNDS(c);
        v0 = _mm512_xor_si512(v0, now);
        v0 = _mm512_mask_mov_epi64(n0, live, v0);
        v1 = _mm512_mask_mov_epi64(n1, live, v1);
        v2 = _mm512_mask_mov_epi64(n2, live, v2);
        v3 = _mm512_mask_mov_epi64(n3, live, v3);
    }
    v2 = _mm512_xor_si512(v2, _mm512_set1_epi64(0xFF));
    DLBF_ZROUNDS(d);
    _mm512_storeu_si512(out, _mm512_xor_si512(_mm512_xor_si512(v0, v1), _mm512_xor_si512(v2, v3)));
}
#define DLBF_SIP8(c, d)                                                                    \
    __attribute__((target("avx512f"))) static void dlbf_sip8_avx512_##c##d(                \
        const uint64_t *state, const uint8_t **data, const size_t *n_bytes, uint64_t *out) {\
        dlbf_sip8_avx512(state, data, n_bytes, out, c, d);                                 \
    }                                                                                      \
    __attribute__((target("avx2"))) static void dlbf_sip8_avx2_##c##d(                     \
        const uint64_t *state, const uint8_t **data, const size_t *n_bytes, uint64_t *out) {\
        DLBF_SIP_BODY(c, d)                                                                \
    }
DLBF_SIP8(1, 3)
DLBF_SIP8(2, 4)

/* 2: AVX-512, 1: AVX2, 0: neither. */
static inline int dlbf_sip_lanes(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") ? 2 : __builtin_cpu_supports("avx2") ? 1 : 0;
}
/* SipHash-1-3, or SipHash-2-4 if it is to be that. */
static inline void dlbf_sip8(
    int lanes, int is24, const uint64_t *state, const uint8_t **data, const size_t *n_bytes, uint64_t *out) {
    if (lanes == 2)
        (is24 ? dlbf_sip8_avx512_24 : dlbf_sip8_avx512_13)(state, data, n_bytes, out);
    else
        (is24 ? dlbf_sip8_avx2_24 : dlbf_sip8_avx2_13)(state, data, n_bytes, out);
}
#else
static inline int dlbf_sip_lanes(void) { return 0; }
static inline void dlbf_sip8(
    int lanes, int is24, const uint64_t *state, const uint8_t **data, const size_t *n_bytes, uint64_t *out) {
    (void)lanes, (void)is24, (void)state, (void)data, (void)n_bytes, (void)out;
}
#endif

#endif
