/* The runs of a key, eight at a time, on processors with AVX2.
 *
 * The same integers as the portable walk in features.pxd, in another order of addition; which one runs is decided
 * when a model is opened, by asking the processor.  Reads stay within the key and the table: the table is gathered in
 * aligned groups of four bytes, the end mark comes from a register.
 */
#ifndef DLBF_NGRAM_AVX2_H
#define DLBF_NGRAM_AVX2_H

#include <stdint.h>
#include <string.h>

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#define DLBF_HAVE_AVX2 1
#include <immintrin.h>

static inline int dlbf_cpu_has_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
}

#define DLBF_AVX2 __attribute__((target("avx2,bmi,popcnt")))

DLBF_AVX2 static inline __m256i dlbf_ngram_eight(__m128i bytes, __m256i place, __m256i split, __m256i mask,
                                                 __m256i tail_mul, __m256i mul_change, __m256i shift,
                                                 const uint8_t *table, int four_bits) {
    const __m256i windows = _mm256_setr_epi8(0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6, 4, 5, 6, 7, 5, 6, 7, 8, 6, 7,
                                             8, 9, 7, 8, 9, 10);
    __m256i run = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), windows), mask);
    __m256i mul = _mm256_xor_si256(tail_mul, _mm256_and_si256(_mm256_cmpgt_epi32(split, place), mul_change));
    __m256i index = _mm256_srlv_epi32(_mm256_mullo_epi32(run, mul), shift);
    if (four_bits) {
        __m256i group = _mm256_i32gather_epi32((const int *)table, _mm256_srli_epi32(index, 3), 4);
        __m256i up = _mm256_slli_epi32(_mm256_andnot_si256(index, _mm256_set1_epi32(7)), 2);
        return _mm256_srli_epi32(_mm256_sllv_epi32(group, up), 28);
    } else {
        __m256i group = _mm256_i32gather_epi32((const int *)table, _mm256_srli_epi32(index, 2), 4);
        __m256i up = _mm256_slli_epi32(_mm256_andnot_si256(index, _mm256_set1_epi32(3)), 3);
        return _mm256_srai_epi32(_mm256_sllv_epi32(group, up), 24);
    }
}

/* The sum of the weights of all runs but the one with the start mark; 16 <= n <= 248.
 * counts and head get the fields that the crossed counts need, laid out as in features.pxd. */
DLBF_AVX2 static inline int32_t dlbf_ngram_runs_avx2(const uint8_t *key, int32_t n, uint32_t order,
                                                     uint32_t split_byte, uint32_t shift_bits, uint32_t head_multiplier,
                                                     uint32_t tail_multiplier, const uint8_t *table, int four_bits,
                                                     uint64_t *counts, uint64_t *head, int32_t *split_at) {
    uint64_t digits = 0, uppers = 0, slashes = 0, hyphens = 0, head_digits = 0, head_dots = 0, head_hyphens = 0;
    uint32_t alive = 0xFFFFFFFFu;
    int32_t split = 0, at = 0;
    const uint32_t no_split = split_byte > 255;
    do {
        __m256i v;
        uint32_t valid = 0xFFFFFFFFu;
        if (n < 32) {
            /* First and last sixteen; those seen twice count once. */
            v = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)key)),
                                        _mm_loadu_si128((const __m128i *)(key + n - 16)), 1);
            valid = 0xFFFFu | (uint32_t)(0xFFFF0000ull << (32 - n));
        } else if (at + 32 <= n) {
            v = _mm256_loadu_si256((const __m256i *)(key + at));
        } else {
            v = _mm256_loadu_si256((const __m256i *)(key + n - 32));
            valid = (uint32_t)(0xFFFFFFFFull << (at + 32 - n));
        }
        at += 32;
        {
            __m256i d = _mm256_sub_epi8(v, _mm256_set1_epi8('0'));
            __m256i u = _mm256_sub_epi8(v, _mm256_set1_epi8('A'));
            uint32_t digit = (uint32_t)_mm256_movemask_epi8(
                                 _mm256_cmpeq_epi8(_mm256_min_epu8(d, _mm256_set1_epi8(9)), d)) & valid;
            uint32_t upper = (uint32_t)_mm256_movemask_epi8(
                                 _mm256_cmpeq_epi8(_mm256_min_epu8(u, _mm256_set1_epi8(25)), u)) & valid;
            uint32_t dot = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_set1_epi8('.'))) & valid;
            uint32_t slash = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_set1_epi8('/'))) & valid;
            uint32_t hyphen = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_set1_epi8('-'))) & valid;
            uint32_t found =
                (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_set1_epi8((char)split_byte))) & valid;
            uint32_t before;
            found = no_split ? 0 : found;
            before = (found - 1) & ~found & alive; /* bits below the first split byte; all if there is none */
            alive = found ? 0 : alive;
            digits += (uint64_t)_mm_popcnt_u32(digit);
            uppers += (uint64_t)_mm_popcnt_u32(upper);
            slashes += (uint64_t)_mm_popcnt_u32(slash);
            hyphens += (uint64_t)_mm_popcnt_u32(hyphen);
            head_digits += (uint64_t)_mm_popcnt_u32(digit & before);
            head_dots += (uint64_t)_mm_popcnt_u32(dot & before);
            head_hyphens += (uint64_t)_mm_popcnt_u32(hyphen & before);
            split += _mm_popcnt_u32(before & valid);
        }
    } while (at < n);
    *counts = digits | uppers << 8 | slashes << 40 | hyphens << 48;
    *head = head_digits | head_dots << 32 | head_hyphens << 48;
    *split_at = split;

    {
        const __m256i mask = _mm256_set1_epi32((int)(0xFFFFFFFFu >> (32 - 8 * order)));
        const __m256i tail_mul = _mm256_set1_epi32((int)tail_multiplier);
        const __m256i mul_change = _mm256_set1_epi32((int)(head_multiplier ^ tail_multiplier));
        const __m256i splits = _mm256_set1_epi32(split);
        const __m256i shift = _mm256_set1_epi32((int)shift_bits);
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m128i end = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0);
        const __m128i last = _mm_loadu_si128((const __m128i *)(key + n - 16));
        /* The last eight bytes and the end mark: places n - 8 to n + 1 - order. */
        __m256i sum = dlbf_ngram_eight(_mm_or_si128(_mm_srli_si128(last, 8), end),
                                       _mm256_add_epi32(lane, _mm256_set1_epi32(n - 8)), splits, mask, tail_mul,
                                       mul_change, shift, table, four_bits);
        __m128i low;
        int32_t p;
        sum = _mm256_and_si256(sum, _mm256_cmpgt_epi32(_mm256_set1_epi32(10 - (int32_t)order), lane));
        /* Places 0 to n - 9, eight at a time; the last eight may begin before p, and then count only from p on.  One
         * loop without a remainder: its end is the only branch here that the processor cannot foresee. */
        for (p = 0; p < n - 8; p += 8) {
            const int32_t from = p + 16 <= n ? p : n - 16;
            const __m256i place = _mm256_add_epi32(lane, _mm256_set1_epi32(from));
            const __m256i weights =
                dlbf_ngram_eight(_mm_loadu_si128((const __m128i *)(key + from)), place, splits, mask, tail_mul,
                                 mul_change, shift, table, four_bits);
            sum = _mm256_add_epi32(sum, _mm256_and_si256(weights, _mm256_cmpgt_epi32(place, _mm256_set1_epi32(p - 1))));
        }
        low = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        low = _mm_add_epi32(low, _mm_shuffle_epi32(low, 0x4E));
        low = _mm_add_epi32(low, _mm_shuffle_epi32(low, 0xB1));
        return _mm_cvtsi128_si32(low);
    }
}
#else
#define DLBF_HAVE_AVX2 0
static inline int dlbf_cpu_has_avx2(void) { return 0; }
static inline int32_t dlbf_ngram_runs_avx2(const uint8_t *key, int32_t n, uint32_t order, uint32_t split_byte,
                                           uint32_t shift_bits, uint32_t head_multiplier, uint32_t tail_multiplier,
                                           const uint8_t *table, int four_bits, uint64_t *counts, uint64_t *head,
                                           int32_t *split_at) {
    (void)key, (void)n, (void)order, (void)split_byte, (void)shift_bits, (void)head_multiplier, (void)tail_multiplier;
    (void)table, (void)four_bits;
    *counts = *head = 0;
    *split_at = 0;
    return 0;
}
#endif
#endif
