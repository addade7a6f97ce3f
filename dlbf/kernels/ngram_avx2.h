/* The weights of a key, runs eight at a time, on processors with AVX2.
 *
 * The same integers as the portable walk in features.pxd, in another order of addition; which one runs is decided
 * when a model is opened, by asking the processor.  Reads stay within the key and the table: the table is gathered in
 * aligned groups of four bytes, the end mark comes from a register.
 */
#ifndef DLBF_NGRAM_AVX2_H
#define DLBF_NGRAM_AVX2_H

#include "portable.h"

/* The multipliers that hash each family of features, and what separates the crossed counts.  Part of every stored
 * model's meaning: never change them. */
#define DLBF_HEAD_MUL 0x2C1B3C6Du
#define DLBF_TAIL_MUL 0x297A2D39u
#define DLBF_CROSS_MUL 0x45D9F3B5u
#define DLBF_START_MUL 0x7FEB352Du
#define DLBF_END_MUL 0x6B2B5A91u
#define DLBF_BEFORE_MUL 0x31848BABu
#define DLBF_AFTER_MUL 0x58F38DEDu
#define DLBF_CROSS_LENGTH 0x1F3D5B79u
#define DLBF_CROSS_DEPTH 0x2A4C6E81u
#define DLBF_CROSS_HEAD 0x35B7D9FBu
#define DLBF_CROSS_HEAD_DIGITS 0x4E607284u
#define DLBF_CROSS_DIGITS 0x59ABCDEFu
#define DLBF_CROSS_HYPHENS 0x6B8D0F21u

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

DLBF_AVX2 static inline int32_t dlbf_ngram_weight(uint32_t product, uint32_t shift, const uint8_t *table,
                                                  int four_bits) {
    const uint32_t index = product >> shift;
    return four_bits ? (table[index >> 1] >> ((index & 1) << 2)) & 15 : ((const int8_t *)table)[index];
}

/* The sum of the weights of a key of 16 bytes or more (with four_bits, of the weights + 8); 16 <= n <= 248. */
DLBF_AVX2 static inline int32_t dlbf_ngram_sum_any(const uint8_t *key, int32_t n, uint32_t order, uint32_t split_byte,
                                                   uint32_t shift_bits, const uint8_t *table, int four_bits) {
    uint32_t digits = 0, uppers = 0, slashes = 0, hyphens = 0, head_digits = 0, head_dots = 0, head_hyphens = 0;
    int32_t total;
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
            digits += (uint32_t)_mm_popcnt_u32(digit);
            uppers += (uint32_t)_mm_popcnt_u32(upper);
            slashes += (uint32_t)_mm_popcnt_u32(slash);
            hyphens += (uint32_t)_mm_popcnt_u32(hyphen);
            head_digits += (uint32_t)_mm_popcnt_u32(digit & before);
            head_dots += (uint32_t)_mm_popcnt_u32(dot & before);
            head_hyphens += (uint32_t)_mm_popcnt_u32(hyphen & before);
            split += _mm_popcnt_u32(before & valid);
        }
    } while (at < n);
#define DLBF_TAKE(value, multiplier) dlbf_ngram_weight((value) * (multiplier), shift_bits, table, four_bits)
    total = DLBF_TAKE(DLBF_CROSS_LENGTH ^ ((uint32_t)n >> 1), DLBF_CROSS_MUL);
    total += DLBF_TAKE(DLBF_CROSS_DEPTH ^ (slashes << 8 | (uint32_t)n >> 3), DLBF_CROSS_MUL);
    total += DLBF_TAKE(DLBF_CROSS_HEAD ^ (head_dots << 8 | (uint32_t)split >> 1), DLBF_CROSS_MUL);
    total += DLBF_TAKE(DLBF_CROSS_HEAD_DIGITS ^ (head_digits << 8 | head_hyphens), DLBF_CROSS_MUL);
    total += DLBF_TAKE(DLBF_CROSS_DIGITS ^ (digits << 8 | uppers >> 1), DLBF_CROSS_MUL);
    total += DLBF_TAKE(DLBF_CROSS_HYPHENS ^ (hyphens << 8 | slashes), DLBF_CROSS_MUL);
    {
        const int32_t before = split > 4 ? split - 4 : 0, after = split + 1 < n - 4 ? split + 1 : n - 4;
        const uint32_t start = dlbf_load32(key);
        total += DLBF_TAKE(start, DLBF_START_MUL);
        total += DLBF_TAKE(dlbf_load32(key + n - 4), DLBF_END_MUL);
        total += DLBF_TAKE(dlbf_load32(key + (before < n - 4 ? before : n - 4)), DLBF_BEFORE_MUL);
        total += DLBF_TAKE(dlbf_load32(key + after), DLBF_AFTER_MUL);
        total += DLBF_TAKE((start << 8 | 2u) & (0xFFFFFFFFu >> (32 - 8 * order)), DLBF_HEAD_MUL);
    }
#undef DLBF_TAKE

    {
        const __m256i mask = _mm256_set1_epi32((int)(0xFFFFFFFFu >> (32 - 8 * order)));
        const __m256i tail_mul = _mm256_set1_epi32((int)DLBF_TAIL_MUL);
        const __m256i mul_change = _mm256_set1_epi32((int)(DLBF_HEAD_MUL ^ DLBF_TAIL_MUL));
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
        return total + _mm_cvtsi128_si32(low);
    }
}

DLBF_AVX2 static inline int32_t dlbf_ngram_sum8_avx2(const uint8_t *key, int32_t n, uint32_t order, uint32_t split_byte,
                                              uint32_t shift, const uint8_t *table) {
    return dlbf_ngram_sum_any(key, n, order, split_byte, shift, table, 0);
}
DLBF_AVX2 static inline int32_t dlbf_ngram_sum4_avx2(const uint8_t *key, int32_t n, uint32_t order, uint32_t split_byte,
                                              uint32_t shift, const uint8_t *table) {
    return dlbf_ngram_sum_any(key, n, order, split_byte, shift, table, 1);
}
#else
#define DLBF_HAVE_AVX2 0
static inline int dlbf_cpu_has_avx2(void) { return 0; }
static inline int32_t dlbf_ngram_sum8_avx2(const uint8_t *key, int32_t n, uint32_t order, uint32_t split_byte,
                                           uint32_t shift, const uint8_t *table) {
    (void)key, (void)n, (void)order, (void)split_byte, (void)shift, (void)table;
    return 0; /* never called: dlbf_cpu_has_avx2() says no */
}
#define dlbf_ngram_sum4_avx2 dlbf_ngram_sum8_avx2
#endif
#endif
