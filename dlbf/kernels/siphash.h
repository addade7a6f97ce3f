/* SipHash of one key and of two; of eight at once in siplanes.h.
 *
 * SipHash-c-d mixes every word of a key in c rounds and ends with d (Aumasson and Bernstein, 2012).  Two are used:
 * SipHash-1-3, and SipHash-2-4 for what dlbf 0.1 has written.  Both begin with the same state.
 */
#ifndef DLBF_SIPHASH_H
#define DLBF_SIPHASH_H

#include "portable.h"

/* The rounds are constants once the compiler has these in their callers. */
#if defined(__GNUC__) || defined(__clang__)
#define DLBF_SIP_INLINE static inline __attribute__((always_inline))
#else
#define DLBF_SIP_INLINE static inline
#endif

DLBF_SIP_INLINE void dlbf_sip_rounds(uint64_t *v, int n) {
    uint64_t v0 = v[0], v1 = v[1], v2 = v[2], v3 = v[3];
    while (n--) {
        v0 += v1;
        v2 += v3;
        v1 = dlbf_rotl64(v1, 13) ^ v0;
        v3 = dlbf_rotl64(v3, 16) ^ v2;
        v0 = dlbf_rotl64(v0, 32);
        v2 += v1;
        v0 += v3;
        v1 = dlbf_rotl64(v1, 17) ^ v2;
        v3 = dlbf_rotl64(v3, 21) ^ v0;
        v2 = dlbf_rotl64(v2, 32);
    }
    v[0] = v0, v[1] = v1, v[2] = v2, v[3] = v3;
}

/* The last word of a key: its last n % 8 bytes, and its length modulo 256 on top. */
DLBF_SIP_INLINE uint64_t dlbf_sip_last(const uint8_t *p, size_t n) {
    uint64_t word = 0;
    size_t left = n & 7;
    if (dlbf_likely(n >= 8)) {
        /* One load that ends with the key, shifted so that only its tail is left, in two steps: by 64 is undefined. */
        word = dlbf_load64(p + n - 8) >> (8 * (7 - left)) >> 8;
    } else {
        while (left) word = (word << 8) | p[--left];
    }
    return word | ((uint64_t)n << 56);
}

DLBF_SIP_INLINE uint64_t dlbf_sip(const uint64_t *state, const uint8_t *p, size_t n, int c, int d) {
    uint64_t v[4] = {state[0], state[1], state[2], state[3]};
    const uint64_t last = dlbf_sip_last(p, n);
    const uint8_t *end = p + (n & ~(size_t)7);
    for (; p != end; p += 8) {
        const uint64_t word = dlbf_load64(p);
        v[3] ^= word;
        dlbf_sip_rounds(v, c);
        v[0] ^= word;
    }
    v[3] ^= last;
    dlbf_sip_rounds(v, c);
    v[0] ^= last;
    v[2] ^= 0xFF;
    dlbf_sip_rounds(v, d);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Two keys at once: one SipHash is a chain of dependent steps that leaves half of a processor idle. */
DLBF_SIP_INLINE void dlbf_sip_two(
    const uint64_t *state, const uint8_t **data, const size_t *n, uint64_t *out, int c, int d) {
    uint64_t v[4] = {state[0], state[1], state[2], state[3]}, w[4] = {state[0], state[1], state[2], state[3]};
    const uint64_t x = dlbf_sip_last(data[0], n[0]), y = dlbf_sip_last(data[1], n[1]);
    const size_t both = (n[0] < n[1] ? n[0] : n[1]) & ~(size_t)7;
    size_t at;
    int i;
    for (at = 0; at < both; at += 8) {
        const uint64_t a = dlbf_load64(data[0] + at), b = dlbf_load64(data[1] + at);
        v[3] ^= a;
        w[3] ^= b;
        for (i = 0; i < c; i++) {
            dlbf_sip_rounds(v, 1);
            dlbf_sip_rounds(w, 1);
        }
        v[0] ^= a;
        w[0] ^= b;
    }
    for (at = both; at + 8 <= n[0]; at += 8) {
        const uint64_t a = dlbf_load64(data[0] + at);
        v[3] ^= a;
        dlbf_sip_rounds(v, c);
        v[0] ^= a;
    }
    for (at = both; at + 8 <= n[1]; at += 8) {
        const uint64_t b = dlbf_load64(data[1] + at);
        w[3] ^= b;
        dlbf_sip_rounds(w, c);
        w[0] ^= b;
    }
    v[3] ^= x;
    w[3] ^= y;
    for (i = 0; i < c; i++) {
        dlbf_sip_rounds(v, 1);
        dlbf_sip_rounds(w, 1);
    }
    v[0] ^= x;
    w[0] ^= y;
    v[2] ^= 0xFF;
    w[2] ^= 0xFF;
    for (i = 0; i < d; i++) {
        dlbf_sip_rounds(v, 1);
        dlbf_sip_rounds(w, 1);
    }
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    out[1] = w[0] ^ w[1] ^ w[2] ^ w[3];
}

static inline uint64_t dlbf_siphash13(const uint64_t *state, const uint8_t *p, size_t n) {
    return dlbf_sip(state, p, n, 1, 3);
}
static inline uint64_t dlbf_siphash24(const uint64_t *state, const uint8_t *p, size_t n) {
    return dlbf_sip(state, p, n, 2, 4);
}

#endif
