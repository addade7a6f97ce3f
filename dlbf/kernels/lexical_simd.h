/* The lexical values of a key of up to 64 bytes, on processors with AVX-512 or AVX2.
 *
 * The same integers as the portable walk in features.pyx (tested against it): a class of bytes is found at once as a
 * 64-bit mask, bit i for byte i, and every value is a count, a first, a last or a longest run of bits.  What runs
 * is decided when a model is opened.  Reads stay within the key.
 */
#ifndef DLBF_LEXICAL_SIMD_H
#define DLBF_LEXICAL_SIMD_H

#include "ngram_avx2.h"

#if defined(__GNUC__) || defined(__clang__)
#define DLBF_INLINE __attribute__((always_inline)) static inline
#define DLBF_NOINLINE __attribute__((noinline, unused))
#define DLBF_ALIGNED __attribute__((aligned(64)))
#else
#define DLBF_INLINE static inline
#define DLBF_NOINLINE
#define DLBF_ALIGNED
#endif

/* Values that cost more than a count; bit v of a model's mask says that it needs value v. */
#define DLBF_NEED_SHORTENER (1u << 21)
#define DLBF_NEED_SEGMENTS (3u << 22)
#define DLBF_NEED_RUNS (7u << 24)
#define DLBF_LONGEST_RUNS (3u << 24)
#define DLBF_NEED_ENTROPY (1u << 27)

/* Room for one key's values: those there are, and zeros up to a whole register. */
#define DLBF_ROOM_VALUES 32

#define DLBF_N_SHORTENERS 20
#define DLBF_SHORTENER_BYTES 12

typedef struct {
    uint32_t first_letters[DLBF_SHORTENER_BYTES + 1]; /* by length: bit c - 'a' of every first letter there is */
    uint8_t lengths[DLBF_N_SHORTENERS];
    uint8_t hosts[DLBF_N_SHORTENERS][DLBF_SHORTENER_BYTES];
} dlbf_shorteners;

/* What the values are looked up in; filled once, when the features module is imported. */
typedef struct DLBF_ALIGNED {
    uint32_t growth[256];          /* count_log_count[c + 1] - count_log_count[c] */
    uint32_t count_log_count[256]; /* c log2 c with 16 fraction bits */
    /* Of an ASCII character, bit j: it counts for value 2 j, or 2 j + 1; but bit 0 of `even`: it is a letter. */
    uint8_t even[128], odd[128];
    dlbf_shorteners shorteners;
} dlbf_lexical_tables;

/* Not inlined: it is called seldom, and what its caller has in registers would be kept in memory for it. */
DLBF_NOINLINE static int dlbf_find_shortener(const dlbf_shorteners *s, const uint8_t *host, int32_t n) {
    int i;
    for (i = 0; i < DLBF_N_SHORTENERS; i++)
        if (s->lengths[i] == n && memcmp(s->hosts[i], host, (size_t)n) == 0) return 1;
    return 0;
}
static inline int dlbf_is_shortener(const dlbf_shorteners *s, const uint8_t *host, int32_t n) {
    uint32_t letters;
    if (dlbf_unlikely(n < 4)) return 0;
    /* One branch that is seldom taken: neither the length nor the letter can be foreseen. */
    letters = s->first_letters[n <= DLBF_SHORTENER_BYTES ? n : 0];
    return dlbf_unlikely((letters >> ((host[0] - 'a') & 31)) & 1u) && dlbf_find_shortener(s, host, n);
}

/* The entropy of a key of 1 to 248 bytes, in sixteenths of a bit per byte; c log2 c stays below 2**27. */
static inline uint16_t dlbf_entropy(const uint8_t *key, int32_t n, const dlbf_lexical_tables *tables) {
    const uint32_t *growth = tables->growth;
    uint8_t histogram[256];
    uint32_t total = 0;
    int32_t i, j;
    memset(histogram, 0, sizeof histogram);
    for (i = 0; i + 8 <= n; i += 8) {
        uint64_t eight = dlbf_load64(key + i);
        for (j = 0; j < 8; j++) {
            const uint8_t byte = (uint8_t)eight, count = histogram[byte];
            eight >>= 8;
            histogram[byte] = (uint8_t)(count + 1);
            total += growth[count];
        }
    }
    for (; i < n; i++) {
        const uint8_t count = histogram[key[i]];
        histogram[key[i]] = (uint8_t)(count + 1);
        total += growth[count];
    }
    return (uint16_t)(((tables->count_log_count[n] - total) >> 12) / (uint32_t)n);
}

#define DLBF_LEXICAL_NONE 0
#define DLBF_LEXICAL_AVX2 1   /* keys of 16 to 64 bytes */
#define DLBF_LEXICAL_AVX512 2 /* keys of 1 to 64 bytes */

#if DLBF_HAVE_AVX2

/* Where in a key the bytes of each class are. */
typedef struct {
    uint64_t digit, upper, vowel, consonant, dot, slash, hyphen, underscore, percent, at, query, control, hex, beyond, split;
} dlbf_classes;

/* A set of ASCII characters: for each low half of a byte, bit h if the character of high half h is in the set. */
#define DLBF_ROWS(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)                                                   \
    _mm_setr_epi8((char)(a), (char)(b), (char)(c), (char)(d), (char)(e), (char)(f), (char)(g), (char)(h), (char)(i), \
                  (char)(j), (char)(k), (char)(l), (char)(m), (char)(n), (char)(o), (char)(p))
#define DLBF_ROWS_DIGIT DLBF_ROWS(8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 0, 0, 0, 0, 0, 0)
#define DLBF_ROWS_UPPER DLBF_ROWS(32, 48, 48, 48, 48, 48, 48, 48, 48, 48, 48, 16, 16, 16, 16, 16)
#define DLBF_ROWS_VOWEL DLBF_ROWS(0, 64, 0, 0, 0, 192, 0, 0, 0, 64, 0, 0, 0, 0, 0, 64)
#define DLBF_ROWS_CONSONANT DLBF_ROWS(128, 128, 192, 192, 192, 0, 192, 192, 192, 128, 192, 64, 64, 64, 64, 0)
#define DLBF_ROWS_QUERY DLBF_ROWS(0, 0, 0, 4, 0, 0, 4, 0, 0, 0, 4, 4, 0, 8, 0, 8) /* # & * + = ? */
#define DLBF_ROWS_CONTROL DLBF_ROWS(7, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 131) /* 0 .. 32 and 127 */
#define DLBF_ROWS_HEX DLBF_ROWS(0, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0)  /* a .. f */

/* All of them; BYTE(b) and SET(rows) find one, BEYOND the bytes that are not ASCII. */
#define DLBF_FIND_CLASSES(found, split_byte, BYTE, SET, BEYOND) \
    do {                                                        \
        (found)->digit = SET(DLBF_ROWS_DIGIT);                  \
        (found)->upper = SET(DLBF_ROWS_UPPER);                  \
        (found)->vowel = SET(DLBF_ROWS_VOWEL);                  \
        (found)->consonant = SET(DLBF_ROWS_CONSONANT);          \
        (found)->dot = BYTE('.');                               \
        (found)->slash = BYTE('/');                             \
        (found)->hyphen = BYTE('-');                            \
        (found)->underscore = BYTE('_');                        \
        (found)->percent = BYTE('%');                           \
        (found)->at = BYTE('@');                                \
        (found)->query = SET(DLBF_ROWS_QUERY);                  \
        (found)->control = SET(DLBF_ROWS_CONTROL);              \
        (found)->hex = SET(DLBF_ROWS_HEX);                      \
        (found)->beyond = BEYOND;                               \
        (found)->split = split_byte < 256 ? BYTE(split_byte) : 0; \
    } while (0)

/* The longest run of ones.  Bit i of runs[k] says that 2**k ones begin at i, bit i of `ends` that the longest run found
 * so far ends before i. */
static inline uint32_t dlbf_longest_run(uint64_t ones) {
    uint64_t runs[6], ends = ~0ull;
    uint32_t length = 0;
    int k;
    if (ones == ~0ull) return 64;
    runs[0] = ones;
    for (k = 1; k < 6; k++) runs[k] = runs[k - 1] & (runs[k - 1] >> (1 << (k - 1)));
    for (k = 5; k >= 0; k--) {
        const uint64_t longer = ends & runs[k];
        const uint64_t any = 0 - (uint64_t)(longer != 0); /* no branch: the processor could not foresee it */
        ends ^= (ends ^ (longer << (1 << k))) & any;
        length += (uint32_t)any & (1u << k);
    }
    return length;
}

/* The values from the classes.  No target of its own: it is compiled for that of its caller. */
DLBF_INLINE void dlbf_lexical_from(
    const dlbf_classes *c, const uint8_t *key, int32_t n, uint32_t needed, const dlbf_lexical_tables *tables,
    uint16_t *out) {
#define DLBF_ONES(x) ((uint16_t)__builtin_popcountll(x))
    const uint64_t valid = ~0ull >> (64 - n), letter = c->upper | c->vowel | c->consonant;
    const int32_t split = c->split ? (int32_t)__builtin_ctzll(c->split) : n;
    const uint64_t head = split < 64 ? (1ull << split) - 1 : ~0ull;
    const uint32_t head_digits = DLBF_ONES(c->digit & head), head_dots = DLBF_ONES(c->dot & head);
    out[0] = (uint16_t)n;
    out[1] = DLBF_ONES(c->digit);
    out[2] = DLBF_ONES(c->upper);
    out[3] = DLBF_ONES(c->vowel);
    out[4] = DLBF_ONES(c->consonant);
    out[5] = DLBF_ONES(c->dot);
    out[6] = DLBF_ONES(c->slash);
    out[7] = DLBF_ONES(c->hyphen);
    out[8] = DLBF_ONES(c->underscore);
    out[9] = DLBF_ONES(c->percent);
    out[10] = DLBF_ONES(c->at);
    out[11] = DLBF_ONES(c->query);
    /* What is in no other class. */
    out[12] = DLBF_ONES(valid & ~(c->digit | letter | c->dot | c->slash | c->hyphen | c->underscore | c->percent |
                                  c->at | c->query | c->control | c->beyond));
    out[13] = DLBF_ONES(c->control);
    out[14] = DLBF_ONES(c->beyond);
    out[15] = DLBF_ONES(c->hex);
    out[16] = (uint16_t)split;
    out[17] = (uint16_t)head_dots;
    out[18] = (uint16_t)head_digits;
    out[19] = DLBF_ONES(c->hyphen & head);
    out[20] = (head_dots == 3) & (head_digits >= 4) & (head_digits + head_dots == (uint32_t)split);
    memset(out + 21, 0, (DLBF_ROOM_VALUES - 21) * sizeof *out);
    if (needed & DLBF_NEED_SHORTENER) out[21] = (uint16_t)dlbf_is_shortener(&tables->shorteners, key, split);
    if (needed & DLBF_NEED_SEGMENTS) {
        const int32_t start = c->slash ? 64 - (int32_t)__builtin_clzll(c->slash) : 0;
        const int32_t after_dot = c->dot ? 64 - (int32_t)__builtin_clzll(c->dot) : 0;
        out[22] = (uint16_t)(n - start);
        out[23] = (uint16_t)((n - after_dot) & -(after_dot > start)); /* no branch */
    }
    if (needed & DLBF_NEED_RUNS) {
        const uint64_t changed = (c->digit ^ (c->digit << 1)) | (letter ^ (letter << 1));
        out[24] = (uint16_t)dlbf_longest_run(c->digit);
        out[25] = (uint16_t)dlbf_longest_run(letter);
        out[26] = (uint16_t)(1 + DLBF_ONES(changed & valid & ~1ull));
    }
    if (needed & DLBF_NEED_ENTROPY) out[27] = dlbf_entropy(key, n, tables);
#undef DLBF_ONES
}

/* AVX2: bytes 0 .. 31 and n - 32 .. n - 1; of a key shorter than 32, bytes 0 .. 15 in the low half of `first` and
 * n - 16 .. n - 1 in the high half of `last`. */
typedef struct {
    __m256i first, last;
    __m256i first_row, last_row; /* one bit for the high half of a byte; all bits for a byte beyond ASCII */
    uint32_t keep_first, keep_last;
    int up; /* where the bits of `last` belong */
} dlbf_window;

DLBF_AVX2 static inline uint64_t dlbf_join(const dlbf_window *w, __m256i first, __m256i last) {
    const uint64_t low = (uint32_t)_mm256_movemask_epi8(first) & w->keep_first;
    const uint64_t high = (uint32_t)_mm256_movemask_epi8(last) & w->keep_last;
    /* A rotation: left from n = 32 on, right before, where the bits that would come round are not kept. */
    return low | (high << (w->up & 63)) | (high >> (-w->up & 63));
}
DLBF_AVX2 static inline uint64_t dlbf_byte_avx2(const dlbf_window *w, uint32_t byte) {
    const __m256i same = _mm256_set1_epi8((char)byte);
    return dlbf_join(w, _mm256_cmpeq_epi8(w->first, same), _mm256_cmpeq_epi8(w->last, same));
}
DLBF_AVX2 static inline uint64_t dlbf_set_avx2(const dlbf_window *w, __m128i rows) {
    /* A byte beyond ASCII picks no bits from `rows`, so it never equals its row of all bits. */
    const __m256i both = _mm256_broadcastsi128_si256(rows);
    const __m256i first = _mm256_and_si256(_mm256_shuffle_epi8(both, w->first), w->first_row);
    const __m256i last = _mm256_and_si256(_mm256_shuffle_epi8(both, w->last), w->last_row);
    return dlbf_join(w, _mm256_cmpeq_epi8(first, w->first_row), _mm256_cmpeq_epi8(last, w->last_row));
}
DLBF_AVX2 static void dlbf_lexical_avx2(const uint8_t *key, int32_t n, uint32_t split_byte, uint32_t needed,
                                        const dlbf_lexical_tables *tables, uint16_t *out) {
    const __m256i half = _mm256_set1_epi8(15);
    const __m256i row_of = _mm256_broadcastsi128_si256(
        DLBF_ROWS(1, 2, 4, 8, 16, 32, 64, 128, 255, 255, 255, 255, 255, 255, 255, 255));
    dlbf_classes found;
    dlbf_window w;
    if (n >= 32) {
        w.first = _mm256_loadu_si256((const __m256i *)key);
        w.last = _mm256_loadu_si256((const __m256i *)(key + n - 32));
        w.keep_first = w.keep_last = 0xFFFFFFFFu;
    } else {
        w.first = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)key));
        w.last = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(key + n - 16)));
        w.keep_first = 0xFFFFu;
        w.keep_last = 0xFFFF0000u;
    }
    w.up = n - 32;
    w.first_row = _mm256_shuffle_epi8(row_of, _mm256_and_si256(_mm256_srli_epi16(w.first, 4), half));
    w.last_row = _mm256_shuffle_epi8(row_of, _mm256_and_si256(_mm256_srli_epi16(w.last, 4), half));
#define DLBF_BYTE(byte) dlbf_byte_avx2(&w, byte)
#define DLBF_SET(rows) dlbf_set_avx2(&w, rows)
    DLBF_FIND_CLASSES(&found, split_byte, DLBF_BYTE, DLBF_SET, dlbf_join(&w, w.first, w.last));
#undef DLBF_BYTE
#undef DLBF_SET
    dlbf_lexical_from(&found, key, n, needed, tables, out);
}

/* AVX-512: the whole key in one register, zeros after it.  Wants what came with Ice Lake and Zen 4. */
#define DLBF_AVX512                                                                                                \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bitalg,avx512vpopcntdq,gfni,bmi,bmi2," \
                          "lzcnt,popcnt")))

/* Eight words of eight bytes, turned over: byte 8 i + j becomes byte 8 j + i. */
DLBF_AVX512 static inline __m512i dlbf_turn_bytes(__m512i bytes) {
    const __m512i across = _mm512_set_epi8(63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22, 14, 6, 61, 53, 45, 37, 29,
                                           21, 13, 5, 60, 52, 44, 36, 28, 20, 12, 4, 59, 51, 43, 35, 27, 19, 11, 3, 58, 50,
                                           42, 34, 26, 18, 10, 2, 57, 49, 41, 33, 25, 17, 9, 1, 56, 48, 40, 32, 24, 16, 8, 0);
    return _mm512_permutexvar_epi8(across, bytes);
}
/* Word j: bit j of every byte.  Within eight bytes in reverse order, which does not matter to who only counts. */
DLBF_AVX512 static inline __m512i dlbf_planes(__m512i bytes) {
    const __m512i units = _mm512_set1_epi64((long long)0x8040201008040201ull);
    return dlbf_turn_bytes(_mm512_gf2p8affine_epi64_epi8(units, bytes, 0));
}
DLBF_AVX512 static inline __m512i dlbf_planes_in_order(__m512i bytes) {
    return dlbf_planes(_mm512_shuffle_epi8(
        bytes, _mm512_broadcast_i32x4(_mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7))));
}

/* dlbf_longest_run of two words at once; `ends` as there, and two bits of the length are found in one go. */
DLBF_AVX512 static inline __m128i dlbf_longest_runs(__m128i ones) {
    const __m128i zero = _mm_setzero_si128();
    const __m128i two = _mm_and_si128(ones, _mm_srli_epi64(ones, 1)), three = _mm_and_si128(two, _mm_srli_epi64(ones, 2));
    const __m128i four = _mm_and_si128(two, _mm_srli_epi64(two, 2)), eight = _mm_and_si128(four, _mm_srli_epi64(four, 4));
    const __m128i twelve = _mm_and_si128(eight, _mm_srli_epi64(four, 8));
    const __m128i sixteen = _mm_and_si128(eight, _mm_srli_epi64(eight, 8));
    const __m128i none = _mm_cmpeq_epi64(sixteen, zero);
    __m128i ends = _mm_or_si128(none, _mm_slli_epi64(sixteen, 16));
    __m128i length = _mm_add_epi64(_mm_andnot_si128(none, _mm_set1_epi64x(16)), _mm_set1_epi64x(3 * 4 + 3 * 1));
    if (dlbf_unlikely(!_mm_testz_si128(sixteen, _mm_srli_epi64(sixteen, 16)))) /* 32 and more */
        return _mm_set_epi64x(dlbf_longest_run((uint64_t)_mm_extract_epi64(ones, 1)),
                              dlbf_longest_run((uint64_t)_mm_cvtsi128_si64(ones)));
    /* no ? old : new */
#define DLBF_CHOOSE(no, old, new) _mm_ternarylogic_epi64(no, old, new, 0xCA)
#define DLBF_LONGER(once, twice, thrice, size)                                                                              \
    do {                                                                                                                    \
        const __m128i one = _mm_and_si128(ends, once), pair = _mm_and_si128(ends, twice);                                   \
        const __m128i triple = _mm_and_si128(ends, thrice);                                                                 \
        const __m128i no_one = _mm_cmpeq_epi64(one, zero), no_pair = _mm_cmpeq_epi64(pair, zero);                           \
        const __m128i no_triple = _mm_cmpeq_epi64(triple, zero);                                                            \
        ends = DLBF_CHOOSE(no_one, ends, _mm_slli_epi64(one, size));                                                        \
        ends = DLBF_CHOOSE(no_pair, ends, _mm_slli_epi64(pair, 2 * (size)));                                                \
        ends = DLBF_CHOOSE(no_triple, ends, _mm_slli_epi64(triple, 3 * (size)));                                            \
        /* Less one for each that there is none of. */                                                                      \
        length = _mm_add_epi64(length, _mm_slli_epi64(_mm_add_epi64(_mm_add_epi64(no_one, no_pair), no_triple), (size) / 2)); \
    } while (0)
    DLBF_LONGER(four, eight, twelve, 4);
    DLBF_LONGER(ones, two, three, 1);
#undef DLBF_LONGER
#undef DLBF_CHOOSE
    return length;
}

/* The same as dlbf_entropy for a key of which all bytes are 32 .. 127, none of them 32 times; else ~0.
 *
 * A character is a row (its upper three bits) and a column; where it stands is the meet of two masks.  Eight columns are
 * counted at once, and their c log2 c looked up. */
DLBF_AVX512 static inline uint32_t dlbf_entropy_avx512(__m512i v, __mmask64 valid, int32_t n,
                                                       const dlbf_lexical_tables *tables) {
    /* Which bits of 0 .. 7 are clear, one lane each. */
    const __m512i clear0 = _mm512_set_epi64(0, -1, 0, -1, 0, -1, 0, -1);
    const __m512i clear1 = _mm512_set_epi64(0, 0, -1, -1, 0, 0, -1, -1);
    const __m512i clear2 = _mm512_set_epi64(0, 0, 0, 0, -1, -1, -1, -1);
    const __m512i low_logs = _mm512_loadu_si512(tables->count_log_count);
    const __m512i high_logs = _mm512_loadu_si512(tables->count_log_count + 16);
    const uint32_t inverse = ((1u << 20) + (uint32_t)n - 1) / (uint32_t)n;
    __m512i columns, rows, left, right, total = _mm512_setzero_si512(), seen = total;
    uint64_t planes[8], row[8];
    _mm512_storeu_si512(planes, dlbf_planes(v));
#define DLBF_ALL(x) _mm512_set1_epi64((long long)(x)) /* read again from memory: that is what costs least */
    /* a & (b ^ c) */
#define DLBF_MEET(a, b, c) _mm512_ternarylogic_epi64(a, DLBF_ALL(b), c, 0x60)
    columns = DLBF_MEET(_mm512_xor_si512(DLBF_ALL(planes[0]), clear0), planes[1], clear1);
    columns = DLBF_MEET(columns, planes[2], clear2);
    rows = DLBF_MEET(_mm512_xor_si512(DLBF_ALL(planes[4]), clear0), planes[5], clear1);
    rows = DLBF_MEET(rows, planes[6], clear2);
    _mm512_storeu_si512(row, rows);
    left = _mm512_andnot_si512(DLBF_ALL(planes[3]), columns);
    right = _mm512_and_si512(DLBF_ALL(planes[3]), columns);
#define DLBF_ROW(i)                                                                                           \
    do {                                                                                                      \
        const __m512i a = _mm512_popcnt_epi64(_mm512_and_si512(left, DLBF_ALL(row[i])));                      \
        const __m512i b = _mm512_popcnt_epi64(_mm512_and_si512(right, DLBF_ALL(row[i])));                     \
        seen = _mm512_ternarylogic_epi64(seen, a, b, 0xFE);                                                   \
        total = _mm512_add_epi32(total, _mm512_add_epi32(_mm512_permutex2var_epi32(low_logs, a, high_logs),   \
                                                         _mm512_permutex2var_epi32(low_logs, b, high_logs))); \
    } while (0)
    DLBF_ROW(2);
    DLBF_ROW(3);
    DLBF_ROW(4);
    DLBF_ROW(5);
    DLBF_ROW(6);
    DLBF_ROW(7);
#undef DLBF_ROW
#undef DLBF_MEET
#undef DLBF_ALL
    if (dlbf_unlikely(_mm512_mask_cmplt_epi8_mask(valid, v, _mm512_set1_epi8(32)) ||
                      _mm512_test_epi64_mask(seen, _mm512_set1_epi64(~31ll))))
        return ~0u;
    /* floor(x / n) is exact: x < 2**13, so x n < 2**20. */
    return (((tables->count_log_count[n] - (uint32_t)_mm512_reduce_add_epi64(total)) >> 12) * inverse) >> 20;
}

/* The values of a key of 1 to 64 bytes, a byte each (none exceeds 96), once in either half of the register; in
 * `without_runs` all but the two longest runs, which take longer than the others. */
DLBF_AVX512 DLBF_INLINE __m512i dlbf_lexical_bytes(const uint8_t *key, int32_t n, uint32_t split_byte, uint32_t needed,
                                                   const dlbf_lexical_tables *tables, __m512i *without_runs) {
    const uint64_t valid = ~0ull >> (64 - n);
    const __m512i v = _mm512_maskz_loadu_epi8(valid, key);
    const uint64_t beyond = _mm512_movepi8_mask(v);
    const uint64_t splits =
        split_byte < 256 ? _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8((char)split_byte)) & valid : 0;
    const uint64_t head = splits ? (splits - 1) & ~splits : valid;
#define DLBF_ONES(x) ((uint64_t)_mm_popcnt_u64(x))
    const uint64_t split = DLBF_ONES(head);
    uint64_t digit, dot, letter, slash, digits, dots, shape;
    __m512i odd, even, values;
    __m128i more;
#define DLBF_LOOK_UP(mask, table) \
    dlbf_planes_in_order(        \
        _mm512_maskz_permutex2var_epi8(mask, _mm512_loadu_si512(table), v, _mm512_loadu_si512((table) + 64)))
    odd = DLBF_LOOK_UP(valid, tables->odd);
    even = DLBF_LOOK_UP(valid, tables->even);
    if (dlbf_unlikely(beyond)) { /* else nothing waits for the mask */
        odd = DLBF_LOOK_UP(valid & ~beyond, tables->odd);
        even = DLBF_LOOK_UP(valid & ~beyond, tables->even);
    }
#undef DLBF_LOOK_UP
    digit = (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(odd));
    dot = (uint64_t)_mm_cvtsi128_si64(_mm256_extracti128_si256(_mm512_castsi512_si256(odd), 1));
    letter = (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(even));
    slash = (uint64_t)_mm_extract_epi64(_mm256_extracti128_si256(_mm512_castsi512_si256(even), 1), 1);
    digits = DLBF_ONES(digit & head);
    dots = DLBF_ONES(dot & head);
    shape = (uint64_t)n | DLBF_ONES(beyond) << 8 | split << 16;
    shape |= (uint64_t)((dots == 3) & (digits >= 4) & (digits + dots == split)) << 24;
    if (needed & DLBF_NEED_SHORTENER) shape |= (uint64_t)dlbf_is_shortener(&tables->shorteners, key, (int32_t)split) << 32;
    if (needed & DLBF_NEED_SEGMENTS) {
        const uint64_t start = 64 - _lzcnt_u64(slash), after_dot = 64 - _lzcnt_u64(dot);
        shape |= ((uint64_t)n - start) << 40;
        shape |= (((uint64_t)n - after_dot) & (0 - (uint64_t)(after_dot > start))) << 48;
    }
    if (needed & DLBF_NEED_RUNS) {
        const uint64_t changed = (digit ^ (digit << 1)) | (letter ^ (letter << 1));
        shape |= (1 + DLBF_ONES(changed & valid & ~1ull)) << 56;
    }
    more = _mm_cvtsi64_si128((long long)shape);
    if (needed & DLBF_NEED_ENTROPY) {
        uint32_t entropy = dlbf_entropy_avx512(v, valid, n, tables);
        if (dlbf_unlikely(entropy == ~0u)) entropy = dlbf_entropy(key, n, tables);
        more = _mm_insert_epi64(more, (long long)entropy, 1);
    }
    /* Of every class, a byte each: how many of the even value, of the odd one, and of that before the split.  Letters are no
     * value, and their count (place 0) is not taken; place 7 is a zero. */
    values = _mm512_permutex2var_epi8(
        _mm512_ternarylogic_epi64(
            _mm512_popcnt_epi64(even), _mm512_slli_epi64(_mm512_popcnt_epi64(odd), 8),
            _mm512_slli_epi64(_mm512_popcnt_epi64(_mm512_and_si512(odd, _mm512_set1_epi64((long long)head))), 16), 0xFE),
        _mm512_broadcast_i64x4(_mm256_setr_epi8(
            64, 1, 8, 9, 16, 17, 24, 25, 32, 33, 40, 41, 48, 49, 65, 57, 66, 18, 2, 26, 67, 68, 69, 70, 7, 7, 71, 72, 7, 7, 7,
            7)),
        _mm512_zextsi128_si512(more));
    *without_runs = values;
    if (needed & DLBF_NEED_RUNS)
        values = _mm512_mask_permutexvar_epi8(
            values, 3ull << 24 | 3ull << 56, _mm512_set1_epi16(8 << 8),
            _mm512_castsi128_si512(
                dlbf_longest_runs(_mm_unpacklo_epi64(_mm512_castsi512_si128(odd), _mm512_castsi512_si128(even)))));
    return values;
#undef DLBF_ONES
}

DLBF_AVX512 static void dlbf_lexical_avx512(const uint8_t *key, int32_t n, uint32_t split_byte, uint32_t needed,
                                            const dlbf_lexical_tables *tables, uint16_t *out) {
    __m512i without_runs;
    const __m512i bytes = dlbf_lexical_bytes(key, n, split_byte, needed, tables, &without_runs);
    _mm512_storeu_si512(out, _mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes)));
}

/* The best that this processor has. */
static inline int dlbf_lexical_best(void) {
    if (!dlbf_cpu_has_avx2()) return DLBF_LEXICAL_NONE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("avx512vpopcntdq") &&
        __builtin_cpu_supports("gfni") && __builtin_cpu_supports("bmi2"))
        return DLBF_LEXICAL_AVX512;
    return DLBF_LEXICAL_AVX2;
}

/* Fill `out` (room for DLBF_ROOM_VALUES) if this way can read a key of that length; 0 if not. */
static inline int dlbf_lexical_simd(int way, const uint8_t *key, size_t n_bytes, uint32_t split_byte, uint32_t needed,
                                    const dlbf_lexical_tables *tables, uint16_t *out) {
    if (n_bytes - 1 >= 64 || !way) return 0;
    if (way == DLBF_LEXICAL_AVX512)
        dlbf_lexical_avx512(key, (int32_t)n_bytes, split_byte, needed, tables, out);
    else if (n_bytes >= 16)
        dlbf_lexical_avx2(key, (int32_t)n_bytes, split_byte, needed, tables, out);
    else
        return 0;
    return 1;
}
#else
static inline int dlbf_lexical_best(void) { return DLBF_LEXICAL_NONE; }
static inline int dlbf_lexical_simd(int way, const uint8_t *key, size_t n_bytes, uint32_t split_byte, uint32_t needed,
                                    const dlbf_lexical_tables *tables, uint16_t *out) {
    (void)way, (void)key, (void)n_bytes, (void)split_byte, (void)needed, (void)tables, (void)out;
    return 0;
}
#endif
#endif
