/* Is a suffix among those at a key's two places, in any of several tables?
 *
 * A word at a place has the suffixes of a bucket side by side, from one of its lowest eight bits on.  ``ones`` has a one
 * at the lowest bit of each of them, ``tops`` at the highest, ``suffixes`` what is looked for, once for each.  Where a
 * suffix is the one that is looked for, the difference is zero, and subtracting one from every suffix borrows from above
 * there first: the highest bit becomes one though that of the difference is not.  Without such a suffix it never does.
 */
#ifndef DLBF_ALIKE_H
#define DLBF_ALIKE_H

#include <stdint.h>
#include <string.h>

#include "portable.h"

#if defined(__SSE2__)
#include <emmintrin.h>

/* Both places of a table at once. */
static inline int dlbf_any_alike(const uint8_t *const *tables, int n_tables, uint64_t first, uint64_t second,
                                 const uint64_t suffixes[2], const uint64_t ones[2], const uint64_t tops[2]) {
    const __m128i wanted = _mm_set_epi64x((long long)suffixes[1], (long long)suffixes[0]);
    const __m128i one = _mm_set_epi64x((long long)ones[1], (long long)ones[0]);
    const __m128i top = _mm_set_epi64x((long long)tops[1], (long long)tops[0]);
    __m128i alike = _mm_setzero_si128();
    for (int i = 0; i < n_tables; i++) {
        const __m128i low = _mm_loadl_epi64((const __m128i *)(tables[i] + first));
        const __m128i words =
            _mm_castpd_si128(_mm_loadh_pd(_mm_castsi128_pd(low), (const double *)(tables[i] + second)));
        const __m128i apart = _mm_xor_si128(words, wanted);
        alike = _mm_or_si128(alike, _mm_andnot_si128(apart, _mm_sub_epi64(apart, one)));
    }
    alike = _mm_and_si128(alike, top);
    return _mm_movemask_epi8(_mm_cmpeq_epi8(alike, _mm_setzero_si128())) != 0xFFFF;
}
#else
static inline int dlbf_any_alike(const uint8_t *const *tables, int n_tables, uint64_t first, uint64_t second,
                                 const uint64_t suffixes[2], const uint64_t ones[2], const uint64_t tops[2]) {
    uint64_t alike = 0;
    for (int i = 0; i < n_tables; i++) {
        const uint64_t a = dlbf_load64(tables[i] + first) ^ suffixes[0];
        const uint64_t b = dlbf_load64(tables[i] + second) ^ suffixes[1];
        alike |= ((a - ones[0]) & ~a & tops[0]) | ((b - ones[1]) & ~b & tops[1]);
    }
    return alike != 0;
}
#endif

#endif
