/* The sum of (a * x + b) * x over the terms of a quadratic form; their layout is in scoring.pxd.
 *
 * With |a| <= 2**24, |b| <= 2**31 and x < 2**16 no sum leaves 63 bits.  Vectors want the terms spread out: one word each, a
 * in its low and b in its high half, at the place of its value.  Their products take 32 signed bits, which x * x
 * fits up to DLBF_LARGEST_SQUARED; a larger value sends the key the plain way.
 */
#ifndef DLBF_QUADRATIC_H
#define DLBF_QUADRATIC_H

#include "lexical_simd.h"

#define DLBF_TERM_BYTES 12
#define DLBF_LARGEST_SQUARED 46340

/* Spread checked terms; 0 if two of them ask for one value, and their sum might not fit. */
static inline int dlbf_spread_terms(const uint8_t *payload, uint32_t n_terms, uint64_t *spread) {
    uint32_t seen = 0, i;
    memset(spread, 0, DLBF_ROOM_VALUES * sizeof *spread);
    for (i = 0; i < n_terms; i++) {
        const uint8_t *term = payload + DLBF_TERM_BYTES * (size_t)i;
        const uint32_t value = dlbf_load32(term);
        if ((seen >> value) & 1u) return 0;
        seen |= 1u << value;
        spread[value] = dlbf_load32(term + 4) | (uint64_t)dlbf_load32(term + 8) << 32;
    }
    return 1;
}

#if DLBF_HAVE_AVX2
DLBF_AVX2 static inline int dlbf_quadratic_avx2(const uint64_t *spread, const uint16_t *values, int64_t *total) {
    const __m256i largest = _mm256_set1_epi16((short)DLBF_LARGEST_SQUARED);
    const __m256i low = _mm256_loadu_si256((const __m256i *)values);
    const __m256i high = _mm256_loadu_si256((const __m256i *)(values + 16));
    const __m256i top = _mm256_max_epu16(_mm256_max_epu16(low, high), largest);
    __m256i sum = _mm256_setzero_si256();
    __m128i half;
    int i;
    if (dlbf_unlikely(_mm256_movemask_epi8(_mm256_cmpeq_epi16(top, largest)) != -1)) return 0;
    for (i = 0; i < DLBF_ROOM_VALUES; i += 4) {
        const __m256i x = _mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i *)(values + i)));
        const __m256i term = _mm256_loadu_si256((const __m256i *)(spread + i));
        sum = _mm256_add_epi64(sum, _mm256_mul_epi32(term, _mm256_mul_epi32(x, x)));
        sum = _mm256_add_epi64(sum, _mm256_mul_epi32(_mm256_srli_epi64(term, 32), x));
    }
    half = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    *total = (int64_t)((uint64_t)_mm_cvtsi128_si64(half) +
                       (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(half, half)));
    return 1;
}

DLBF_AVX512 static inline int dlbf_quadratic_avx512(const uint64_t *spread, const uint16_t *values, int64_t *total) {
    const __m512i all = _mm512_loadu_si512(values);
    __m512i sum = _mm512_setzero_si512();
    int i;
    if (dlbf_unlikely(_mm512_cmpgt_epu16_mask(all, _mm512_set1_epi16((short)DLBF_LARGEST_SQUARED)))) return 0;
    for (i = 0; i < DLBF_ROOM_VALUES; i += 8) {
        const __m512i x = _mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i *)(values + i)));
        const __m512i term = _mm512_loadu_si512(spread + i);
        sum = _mm512_add_epi64(sum, _mm512_mul_epi32(term, _mm512_mul_epi32(x, x)));
        sum = _mm512_add_epi64(sum, _mm512_mul_epi32(_mm512_srli_epi64(term, 32), x));
    }
    *total = _mm512_reduce_add_epi64(sum);
    return 1;
}
#endif

/* `values` are DLBF_ROOM_VALUES, zero beyond those there are.  `spread` may be NULL; else `way` is that of a vector. */
static inline int64_t dlbf_quadratic(const uint8_t *payload, uint32_t n_terms, const uint64_t *spread, int way,
                                     const uint16_t *values) {
    int64_t total = 0;
    uint32_t i;
#if DLBF_HAVE_AVX2
    if (spread != NULL && (way == DLBF_LEXICAL_AVX512 ? dlbf_quadratic_avx512(spread, values, &total)
                                                      : dlbf_quadratic_avx2(spread, values, &total)))
        return total;
#endif
    (void)way, (void)spread;
    for (i = 0; i < n_terms; i++) {
        const uint8_t *term = payload + DLBF_TERM_BYTES * (size_t)i;
        const int64_t x = values[dlbf_load32(term)];
        total += ((int64_t)(int32_t)dlbf_load32(term + 4) * x + (int32_t)dlbf_load32(term + 8)) * x;
    }
    return total;
}
#endif
