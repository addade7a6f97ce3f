/* The weights of a key of 4 to 62 bytes, on processors with AVX-512.
 *
 * The same integers as the portable walk in features.pxd: the key between its two marks is one register, and all
 * indices go to memory before any weight is looked up, for one key or for many.  On AMD's processors that is faster than
 * gathering weights eight at a time (ngram_avx2.h).  Reads stay within the key and the table.
 */
#ifndef DLBF_NGRAM_AVX512_H
#define DLBF_NGRAM_AVX512_H

#include "lexical_simd.h"

#define DLBF_INDEXED_MIN 4
#define DLBF_INDEXED_MAX 62     /* with its marks, 64 */
#define DLBF_INDEXED_CROSSED 10 /* indices that do not come from a run of bytes */

/* Room for the indices of one key: 63 runs of two bytes, and two registers after them; no register across two lines
 * of the cache as far as can be. */
typedef struct {
#if DLBF_HAVE_AVX2
    __attribute__((aligned(64)))
#endif
    uint32_t index[96];
} dlbf_indices;

/* The sum of the weights at n indices; those after them, up to a multiple of 16, are zero. */
static inline int32_t dlbf_weights_sum(const dlbf_indices *indices, int32_t n, const int8_t *weights) {
    const uint32_t *index = indices->index, *const end = index + n;
    int32_t even = 0, odd = 0, i;
    do { /* sixteen at a time: how often is what the processor foresees best */
        for (i = 0; i < 16; i += 2) {
            even += weights[index[i]];
            odd += weights[index[i + 1]];
        }
        index += 16;
    } while (index < end);
    return even + odd - (int32_t)(index - end) * weights[0];
}

#if DLBF_HAVE_AVX2
static inline int dlbf_indexing_is_faster(void) {
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
}

/* Fill `out` for dlbf_weights_sum, and return how many indices there are. */
DLBF_AVX512 static inline int32_t dlbf_ngram_indices(const uint8_t *key, int32_t n, uint32_t order, uint32_t split_byte,
                                                     uint32_t shift_bits, dlbf_indices *out) {
    uint32_t *const index = out->index;
    /* Of characters 32 .. 95, found by their lower six bits: 1 digit, 2 upper case, 4 slash, 8 hyphen, 16 dot. */
    static const uint8_t class_of[64] = {0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,  2, 2, 2, 2, 2, 2, 2,
                                         2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0,
                                         0, 8, 16, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0};
    const __m512i windows = _mm512_set_epi32(0x1211100F, 0x11100F0E, 0x100F0E0D, 0x0F0E0D0C, 0x0E0D0C0B, 0x0D0C0B0A,
                                             0x0C0B0A09, 0x0B0A0908, 0x0A090807, 0x09080706, 0x08070605, 0x07060504,
                                             0x06050403, 0x05040302, 0x04030201, 0x03020100);
    /* One start, and after the key only ends. */
    const __m512i marks =
        _mm512_set_epi64(0x0303030303030303, 0x0303030303030303, 0x0303030303030303, 0x0303030303030303, 0x0303030303030303,
                         0x0303030303030303, 0x0303030303030303, 0x0303030303030302);
    const __m128i shift = _mm_cvtsi32_si128((int)shift_bits);
    const int32_t runs = n + 3 - (int32_t)order;
    /* Byte i + 1 of the register is byte i of the key, and so is bit i + 1 of a mask. */
    const uint64_t inside = _bzhi_u64(~0ull, (uint32_t)n + 1) & ~1ull;
    const __m512i v = _mm512_mask_loadu_epi8(marks, inside, key - 1);
    const uint64_t splits =
        split_byte < 256 ? _mm512_mask_cmpeq_epi8_mask(inside, v, _mm512_set1_epi8((char)split_byte)) : 0;
    const uint64_t head = (splits - 1) & ~splits; /* bits below the first split byte; all if there is none */
#define DLBF_RUNS(j)                                                                                              \
    _mm512_storeu_si512(                                                                                          \
        index + 16 * (j),                                                                                         \
        _mm512_srl_epi32(                                                                                         \
            _mm512_mullo_epi32(                                                                                   \
                _mm512_and_si512(_mm512_permutexvar_epi8(_mm512_add_epi8(windows, _mm512_set1_epi8(16 * (j))), v), \
                                 _mm512_set1_epi32((int)(0xFFFFFFFFu >> (32 - 8 * order)))),                      \
                _mm512_mask_set1_epi32(_mm512_set1_epi32((int)DLBF_TAIL_MUL), (__mmask16)(head >> (16 * (j))),    \
                                       (int)DLBF_HEAD_MUL)),                                                      \
            shift))
    DLBF_RUNS(0);
    DLBF_RUNS(1);
    DLBF_RUNS(2);
    DLBF_RUNS(3);
#undef DLBF_RUNS
    {
        /* Masks of the five classes, two that are empty, and the key's; their counts are every second 32-bit lane. */
        const __mmask64 known =
            _mm512_mask_cmplt_epu8_mask(inside, _mm512_sub_epi8(v, _mm512_set1_epi8(32)), _mm512_set1_epi8(64));
        const __m512i masks = _mm512_mask_set1_epi64(
            dlbf_planes_in_order(_mm512_maskz_permutexvar_epi8(known, v, _mm512_loadu_si512(class_of))), 0x80,
            (long long)inside);
        const __m512i counts = _mm512_popcnt_epi64(masks);
        const __m512i heads = _mm512_popcnt_epi64(_mm512_and_si512(masks, _mm512_set1_epi64((long long)head)));
        enum { DIGITS = 0, ZERO = 1, UPPERS = 2, SLASHES = 4, HYPHENS = 6, DOTS = 8, LENGTH = 14, HEAD = 16 };
        const __m512i high = _mm512_permutex2var_epi32(
            counts,
            _mm512_setr_epi32(ZERO, SLASHES, HEAD + DOTS, HEAD + DIGITS, DIGITS, HYPHENS, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
            heads);
        const __m512i low = _mm512_srlv_epi32(
            _mm512_permutex2var_epi32(counts,
                                      _mm512_setr_epi32(LENGTH, LENGTH, HEAD + LENGTH, HEAD + HYPHENS, UPPERS, SLASHES, 1, 1,
                                                        1, 1, 1, 1, 1, 1, 1, 1),
                                      heads),
            _mm512_setr_epi32(1, 3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
        const __m512i apart = _mm512_setr_epi32((int)DLBF_CROSS_LENGTH, (int)DLBF_CROSS_DEPTH, (int)DLBF_CROSS_HEAD,
                                                (int)DLBF_CROSS_HEAD_DIGITS, (int)DLBF_CROSS_DIGITS,
                                                (int)DLBF_CROSS_HYPHENS, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        const __m512i crossed = _mm512_xor_si512(apart, _mm512_or_si512(_mm512_slli_epi32(high, 8), low));
        /* Where the four words begin: first, last, before and after the split, each moved to where the key has four. */
        const __m512i split = _mm512_permutexvar_epi32(_mm512_set1_epi32(LENGTH), heads);
        const __m512i wanted =
            _mm512_add_epi32(split, _mm512_setr_epi32(0, 0, 0, 0, 0, 0, -64, 64, -3, 2, 0, 0, 0, 0, 0, 0));
        const __m512i places =
            _mm512_min_epi32(_mm512_max_epi32(wanted, _mm512_set1_epi32(1)), _mm512_set1_epi32(n - 3));
        const __m512i four_times =
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
        const __m512i bytes =
            _mm512_add_epi8(_mm512_shuffle_epi8(places, four_times), _mm512_set1_epi32(0x03020100));
        const __m512i values = _mm512_mask_permutexvar_epi8(crossed, 0xFFFF000000ull, bytes, v);
        const __m512i multipliers = _mm512_setr_epi32(
            (int)DLBF_CROSS_MUL, (int)DLBF_CROSS_MUL, (int)DLBF_CROSS_MUL, (int)DLBF_CROSS_MUL, (int)DLBF_CROSS_MUL,
            (int)DLBF_CROSS_MUL, (int)DLBF_START_MUL, (int)DLBF_END_MUL, (int)DLBF_BEFORE_MUL, (int)DLBF_AFTER_MUL, 0, 0, 0,
            0, 0, 0);
        _mm512_storeu_si512(index + runs, _mm512_srl_epi32(_mm512_mullo_epi32(values, multipliers), shift));
        _mm512_storeu_si512(index + runs + 16, _mm512_setzero_si512());
    }
    /* Or the compiler takes them from the registers again, one by one, which takes longer than from memory. */
    __asm__("" : "+m"(*out));
    return runs + DLBF_INDEXED_CROSSED;
}
#else
static inline int dlbf_indexing_is_faster(void) { return 0; }
static inline int32_t dlbf_ngram_indices(const uint8_t *key, int32_t n, uint32_t order, uint32_t split_byte,
                                         uint32_t shift_bits, dlbf_indices *out) {
    (void)key, (void)n, (void)order, (void)split_byte, (void)shift_bits, (void)out;
    return 0; /* never called: there is no AVX-512 */
}
#endif
#endif
