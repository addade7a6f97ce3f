/* The lexical values of a key of up to 64 bytes, on processors with AVX-512 or AVX2.
 *
 * The same integers as the portable walk in features.pyx (tested against it): a class of bytes is found at once as a
 * 64-bit mask, bit i for byte i, and every value is a count, a first, a last or a longest run of bits.  What runs
 * is decided when a model is opened.  Reads stay within the key.
 */
#ifndef DLBF_LEXICAL_SIMD_H
#define DLBF_LEXICAL_SIMD_H

#include "ngram_avx2.h"

/* Values that cost more than a count; bit v of a model's mask says that it needs value v. */
#define DLBF_NEED_SHORTENER (1u << 21)
#define DLBF_NEED_SEGMENTS (3u << 22)
#define DLBF_NEED_RUNS (7u << 24)
#define DLBF_NEED_ENTROPY (1u << 27)

#define DLBF_N_SHORTENERS 20
#define DLBF_SHORTENER_BYTES 12

typedef struct {
    uint32_t first_letters[DLBF_SHORTENER_BYTES + 1]; /* by length: bit c - 'a' of every first letter there is */
    uint8_t lengths[DLBF_N_SHORTENERS];
    uint8_t hosts[DLBF_N_SHORTENERS][DLBF_SHORTENER_BYTES];
} dlbf_shorteners;

static inline int dlbf_is_shortener(const dlbf_shorteners *s, const uint8_t *host, int32_t n) {
    int i;
    if (n < 4 || n > DLBF_SHORTENER_BYTES || (uint32_t)(host[0] - 'a') > 25u) return 0;
    if (dlbf_likely(!((s->first_letters[n] >> (host[0] - 'a')) & 1u))) return 0;
    for (i = 0; i < DLBF_N_SHORTENERS; i++)
        if (s->lengths[i] == n && memcmp(s->hosts[i], host, (size_t)n) == 0) return 1;
    return 0;
}

/* The entropy of a key in sixteenths of a bit per byte.  `growth[c]` is what c log2 c grows by when c does, and
 * `n_log_n` the same function of n, with 16 fraction bits; both are below 2**27. */
static inline uint16_t dlbf_entropy(const uint8_t *key, int32_t n, const uint32_t *growth, uint32_t n_log_n) {
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
    return (uint16_t)(((n_log_n - total) >> 12) / (uint32_t)n);
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

/* The longest run of ones: bit i of runs[k] says that 2**k ones begin at i. */
static inline uint32_t dlbf_longest_run(uint64_t ones) {
    uint64_t runs[6], starts = ~0ull;
    uint32_t length = 0;
    int k;
    if (ones == ~0ull) return 64;
    runs[0] = ones;
    for (k = 1; k < 6; k++) runs[k] = runs[k - 1] & (runs[k - 1] >> (1 << (k - 1)));
    for (k = 5; k >= 0; k--) {
        const uint64_t longer = starts & (runs[k] >> length);
        const uint64_t any = 0 - (uint64_t)(longer != 0); /* no branch: the processor could not foresee it */
        starts ^= (starts ^ longer) & any;
        length += (uint32_t)any & (1u << k);
    }
    return length;
}

/* The values from the classes.  No target of its own: it is compiled for that of its caller. */
__attribute__((always_inline)) static inline void dlbf_lexical_from(
    const dlbf_classes *c, const uint8_t *key, int32_t n, uint32_t needed, const uint32_t *growth,
    const uint32_t *count_log_count, const dlbf_shorteners *shorteners, uint16_t *out) {
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
    out[21] = out[22] = out[23] = out[24] = out[25] = out[26] = out[27] = 0;
    if (needed & DLBF_NEED_SHORTENER) out[21] = (uint16_t)dlbf_is_shortener(shorteners, key, split);
    if (needed & DLBF_NEED_SEGMENTS) {
        const int32_t start = c->slash ? 64 - (int32_t)__builtin_clzll(c->slash) : 0;
        const int32_t after_dot = c->dot ? 64 - (int32_t)__builtin_clzll(c->dot) : 0;
        out[22] = (uint16_t)(n - start);
        out[23] = (uint16_t)(after_dot > start ? n - after_dot : 0);
    }
    if (needed & DLBF_NEED_RUNS) {
        const uint64_t changed = (c->digit ^ (c->digit << 1)) | (letter ^ (letter << 1));
        out[24] = (uint16_t)dlbf_longest_run(c->digit);
        out[25] = (uint16_t)dlbf_longest_run(letter);
        out[26] = (uint16_t)(1 + DLBF_ONES(changed & valid & ~1ull));
    }
    if (needed & DLBF_NEED_ENTROPY) out[27] = dlbf_entropy(key, n, growth, count_log_count[n]);
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
                                        const uint32_t *growth, const uint32_t *count_log_count,
                                        const dlbf_shorteners *shorteners, uint16_t *out) {
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
    dlbf_lexical_from(&found, key, n, needed, growth, count_log_count, shorteners, out);
}

/* AVX-512: the whole key in one register, zeros after it. */
#define DLBF_AVX512 __attribute__((target("avx512f,avx512bw,bmi,lzcnt,popcnt")))
DLBF_AVX512 static void dlbf_lexical_avx512(const uint8_t *key, int32_t n, uint32_t split_byte, uint32_t needed,
                                            const uint32_t *growth, const uint32_t *count_log_count,
                                            const dlbf_shorteners *shorteners, uint16_t *out) {
    const __mmask64 valid = ~0ull >> (64 - n);
    const __m512i v = _mm512_maskz_loadu_epi8(valid, key);
    const __m512i row_of =
        _mm512_broadcast_i32x4(DLBF_ROWS(1, 2, 4, 8, 16, 32, 64, 128, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m512i row = _mm512_shuffle_epi8(row_of, _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)));
    dlbf_classes found;
#define DLBF_BYTE(byte) _mm512_mask_cmpeq_epi8_mask(valid, v, _mm512_set1_epi8((char)(byte)))
#define DLBF_SET(rows) _mm512_mask_test_epi8_mask(valid, _mm512_shuffle_epi8(_mm512_broadcast_i32x4(rows), v), row)
    DLBF_FIND_CLASSES(&found, split_byte, DLBF_BYTE, DLBF_SET, _mm512_movepi8_mask(v));
#undef DLBF_BYTE
#undef DLBF_SET
    dlbf_lexical_from(&found, key, n, needed, growth, count_log_count, shorteners, out);
}

/* The best that this processor has. */
static inline int dlbf_lexical_best(void) {
    if (!dlbf_cpu_has_avx2()) return DLBF_LEXICAL_NONE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return DLBF_LEXICAL_AVX512;
    return DLBF_LEXICAL_AVX2;
}

/* Fill `out` if this way can read a key of that length; 0 if not. */
static inline int dlbf_lexical_simd(int way, const uint8_t *key, size_t n_bytes, uint32_t split_byte, uint32_t needed,
                                    const uint32_t *growth, const uint32_t *count_log_count,
                                    const dlbf_shorteners *shorteners, uint16_t *out) {
    if (n_bytes - 1 >= 64 || !way) return 0;
    if (way == DLBF_LEXICAL_AVX512)
        dlbf_lexical_avx512(key, (int32_t)n_bytes, split_byte, needed, growth, count_log_count, shorteners, out);
    else if (n_bytes >= 16)
        dlbf_lexical_avx2(key, (int32_t)n_bytes, split_byte, needed, growth, count_log_count, shorteners, out);
    else
        return 0;
    return 1;
}
#else
static inline int dlbf_lexical_best(void) { return DLBF_LEXICAL_NONE; }
static inline int dlbf_lexical_simd(int way, const uint8_t *key, size_t n_bytes, uint32_t split_byte, uint32_t needed,
                                    const uint32_t *growth, const uint32_t *count_log_count,
                                    const dlbf_shorteners *shorteners, uint16_t *out) {
    (void)way, (void)key, (void)n_bytes, (void)split_byte, (void)needed, (void)growth, (void)count_log_count;
    (void)shorteners, (void)out;
    return 0;
}
#endif
#endif
