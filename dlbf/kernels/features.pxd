"""What a model sees of a key: integers computed from its bytes, the same on every machine.

Three views of a key; a model uses one of them:

* ``VIEW_NGRAM``: indices into a table of 2**log2_weights weights: every run of ``order`` bytes (with a start and an end
  mark), hashed with one multiplier before the first split byte and another after it; six crossed counts; four words at
  the places that say most (start, end, before and after the split).
* ``VIEW_LEXICAL``: N_LEXICAL counts and flags of text keys (length, digits, depth, address host, entropy, ...).
* ``VIEW_NUMERIC``: N_NUMERIC numbers of fixed-width binary and integer-like keys (bytes, words, decimal value, ...).

Only the first ``KEY_BYTES`` bytes of a key are looked at (the length counts them all): that bounds the time of a
score and keeps eight 8-bit counters in one word without carries.  Values of the last two views fit 16 bits.

Training and scoring call the same leaves, so what was learnt is what is asked.
"""

from libc.string cimport memchr

from dlbf.kernels.types cimport int8_t, int32_t, int64_t, load32, load64, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "ngram_avx2.h" nogil:
    int cpu_has_avx2 "dlbf_cpu_has_avx2"() noexcept
    int32_t sum8_avx2 "dlbf_ngram_sum8_avx2"(const uint8_t* key, int32_t n, uint32_t order, uint32_t split_byte,
                                             uint32_t shift, const uint8_t* table) noexcept
    int32_t sum4_avx2 "dlbf_ngram_sum4_avx2"(const uint8_t* key, int32_t n, uint32_t order, uint32_t split_byte,
                                             uint32_t shift, const uint8_t* table) noexcept
    const uint32_t HEAD_MUL "DLBF_HEAD_MUL"
    const uint32_t TAIL_MUL "DLBF_TAIL_MUL"
    const uint32_t CROSS_MUL "DLBF_CROSS_MUL"
    const uint32_t START_MUL "DLBF_START_MUL"
    const uint32_t END_MUL "DLBF_END_MUL"
    const uint32_t BEFORE_MUL "DLBF_BEFORE_MUL"
    const uint32_t AFTER_MUL "DLBF_AFTER_MUL"
    const uint32_t CROSS_LENGTH "DLBF_CROSS_LENGTH"
    const uint32_t CROSS_DEPTH "DLBF_CROSS_DEPTH"
    const uint32_t CROSS_HEAD "DLBF_CROSS_HEAD"
    const uint32_t CROSS_HEAD_DIGITS "DLBF_CROSS_HEAD_DIGITS"
    const uint32_t CROSS_DIGITS "DLBF_CROSS_DIGITS"
    const uint32_t CROSS_HYPHENS "DLBF_CROSS_HYPHENS"

cdef extern from "lexical_simd.h" nogil:
    enum:
        ROOM_VALUES "DLBF_ROOM_VALUES"
        N_SHORTENERS "DLBF_N_SHORTENERS"
        SHORTENER_BYTES "DLBF_SHORTENER_BYTES"
        NEED_SHORTENER "DLBF_NEED_SHORTENER"
        NEED_SEGMENTS "DLBF_NEED_SEGMENTS"
        NEED_RUNS "DLBF_NEED_RUNS"
        NEED_ENTROPY "DLBF_NEED_ENTROPY"

    ctypedef struct Shorteners "dlbf_shorteners":
        uint32_t[13] first_letters
        uint8_t[20] lengths
        uint8_t[20][12] hosts

    ctypedef struct LexicalTables "dlbf_lexical_tables":
        uint32_t[256] growth
        uint32_t[256] count_log_count
        uint8_t[128] even
        uint8_t[128] odd
        Shorteners shorteners

    bint is_shortener "dlbf_is_shortener"(const Shorteners* table, const uint8_t* host, int32_t n) noexcept
    uint16_t entropy "dlbf_entropy"(const uint8_t* key, int32_t n, const LexicalTables* tables) noexcept
    # 0: the processor has neither AVX2 nor AVX-512; 1: AVX2; 2: AVX-512 as from Ice Lake and Zen 4 on.
    int lexical_best "dlbf_lexical_best"() noexcept
    bint lexical_simd "dlbf_lexical_simd"(int way, const uint8_t* key, size_t n_bytes, uint32_t split_byte,
                                          uint32_t needed, const LexicalTables* tables, uint16_t* out) noexcept

cdef extern from "ngram_avx512.h" nogil:
    enum:
        INDEXED_MIN "DLBF_INDEXED_MIN"
        INDEXED_MAX "DLBF_INDEXED_MAX"

    ctypedef struct Indices "dlbf_indices":
        pass

    # Whether this processor is one on which indices in memory are faster than ngram_sum_avx2.
    bint indexing_is_faster "dlbf_indexing_is_faster"() noexcept
    # For keys of INDEXED_MIN to INDEXED_MAX bytes.
    int32_t ngram_indices "dlbf_ngram_indices"(const uint8_t* key, int32_t n, uint32_t order, uint32_t split_byte,
                                               uint32_t shift, Indices* out) noexcept
    int32_t weights_sum "dlbf_weights_sum"(const Indices* indices, int32_t n, const int8_t* weights) noexcept

cdef enum:
    VIEW_NONE = 0
    VIEW_NGRAM = 1
    VIEW_LEXICAL = 2
    VIEW_NUMERIC = 3

cdef enum:
    KEY_BYTES = 248
    NO_SPLIT = 256
    MARK_START = 2
    MARK_END = 3
    N_CROSSED = 10                       # indices that do not come from a run of bytes
    MAX_INDICES = 264                    # KEY_BYTES + 2 - (2 - 1) runs and N_CROSSED, rounded up
    N_LEXICAL = 28
    N_NUMERIC = 28

# What to do with an index (see ngram_take).
cdef enum:
    TAKE_INDICES = 0
    TAKE_INT8 = 1
    TAKE_INT4 = 2

# The fields of the two count words, 8 bits each (see count_low and count_high in features.pyx).
cdef enum:
    LOW_DIGIT = 0
    LOW_UPPER = 8
    LOW_VOWEL = 16
    LOW_CONSONANT = 24
    LOW_DOT = 32
    LOW_SLASH = 40
    LOW_HYPHEN = 48
    LOW_UNDERSCORE = 56
    HIGH_PERCENT = 0
    HIGH_AT = 8
    HIGH_QUERY = 16
    HIGH_PUNCTUATION = 24
    HIGH_CONTROL = 32
    HIGH_NON_ASCII = 40
    HIGH_HEX_LETTER = 48

cdef uint64_t[256] count_low
cdef uint64_t[256] count_high

cdef const LexicalTables* lexical_tables() noexcept nogil
cdef void lexical_values(const uint8_t* key, size_t n_bytes, uint32_t split_byte, uint32_t needed, int way,
                         const uint64_t* low, const uint64_t* high, uint16_t* out) noexcept nogil
cdef int check_packed(const uint8_t[::1] data, const int64_t[::1] offsets, const int64_t[::1] rows) except -1
cdef void numeric_values(const uint8_t* key, size_t n_bytes, uint16_t* out) noexcept nogil


cdef inline uint32_t low_of(uint64_t counts, int field) noexcept nogil:
    return <uint32_t>(counts >> field) & 255


cdef inline uint32_t word_at(const uint8_t* key, Py_ssize_t n, Py_ssize_t at) noexcept nogil:
    """Four bytes of the key from ``at``, or from the nearest place that has four; a shorter key's are zero-filled."""
    cdef uint32_t word = 0
    cdef Py_ssize_t i
    if n >= 4:
        at = at if at > 0 else 0
        return load32(key + (at if at < n - 4 else n - 4))
    for i in range(n):
        word |= <uint32_t>key[i] << (8 * i)
    return word


cdef inline uint32_t ngram_index(uint32_t value, uint32_t multiplier, uint32_t shift) noexcept nogil:
    """The high bits of a product: Fibonacci hashing.  The multipliers are odd and random."""
    return (value * multiplier) >> shift


cdef inline int32_t ngram_take(uint32_t index, int mode, const uint8_t* table, uint32_t* out,
                               Py_ssize_t at) noexcept nogil:
    """One index: kept in ``out``, or turned into its weight.  ``mode`` is a constant, so only one branch is left."""
    if mode == TAKE_INDICES:
        out[at] = index
        return 0
    if mode == TAKE_INT8:
        return (<const int8_t*>table)[index]
    return (table[index >> 1] >> ((index & 1) << 2)) & 15


cdef inline int32_t ngram_crossed(const uint8_t* key, Py_ssize_t n, Py_ssize_t split, uint64_t counts, uint64_t head,
                                  uint32_t shift, int mode, const uint8_t* table, uint32_t* out,
                                  Py_ssize_t m) noexcept nogil:
    """The ten indices that come from counts and from places; ``out`` is filled from ``m`` on."""
    cdef int32_t total = 0
    cdef uint32_t depth, length = <uint32_t>n
    # The counts of the head stop before the split byte; those of the whole key do not.
    depth = low_of(counts, LOW_SLASH)
    total += ngram_take(ngram_index(CROSS_LENGTH ^ (length >> 1), CROSS_MUL, shift), mode, table, out, m)
    total += ngram_take(ngram_index(
        CROSS_DEPTH ^ (depth << 8 | length >> 3), CROSS_MUL, shift), mode, table, out, m + 1)
    total += ngram_take(ngram_index(
        CROSS_HEAD ^ (low_of(head, LOW_DOT) << 8 | <uint32_t>split >> 1), CROSS_MUL, shift),
        mode, table, out, m + 2)
    total += ngram_take(ngram_index(
        CROSS_HEAD_DIGITS ^ (low_of(head, LOW_DIGIT) << 8 | low_of(head, LOW_HYPHEN)), CROSS_MUL, shift),
        mode, table, out, m + 3)
    total += ngram_take(ngram_index(
        CROSS_DIGITS ^ (low_of(counts, LOW_DIGIT) << 8 | low_of(counts, LOW_UPPER) >> 1), CROSS_MUL, shift),
        mode, table, out, m + 4)
    total += ngram_take(ngram_index(
        CROSS_HYPHENS ^ (low_of(counts, LOW_HYPHEN) << 8 | depth), CROSS_MUL, shift), mode, table, out, m + 5)
    total += ngram_take(ngram_index(word_at(key, n, 0), START_MUL, shift), mode, table, out, m + 6)
    total += ngram_take(ngram_index(word_at(key, n, n - 4), END_MUL, shift), mode, table, out, m + 7)
    total += ngram_take(ngram_index(word_at(key, n, split - 4), BEFORE_MUL, shift), mode, table, out, m + 8)
    total += ngram_take(ngram_index(word_at(key, n, split + 1), AFTER_MUL, shift), mode, table, out, m + 9)
    return total


cdef inline int32_t ngram_walk(const uint8_t* key, size_t n_bytes, uint32_t order, uint32_t split_byte, uint32_t shift,
                               const uint64_t* low, int mode, const uint8_t* table, uint32_t* out,
                               Py_ssize_t* n_indices) noexcept nogil:
    """Visit the table indices of a key: fill ``out`` (room for MAX_INDICES), or return the sum of their weights.

    ``shift`` is 32 - log2_weights.  The runs are those of the bytes START key END; a run belongs to the head if it
    begins before the split byte.
    """
    cdef Py_ssize_t n = <Py_ssize_t>n_bytes if n_bytes < KEY_BYTES else KEY_BYTES
    cdef Py_ssize_t split = n, i, m = 0, last, stop
    cdef uint64_t counts = 0, head = 0, eight
    cdef uint32_t mask = <uint32_t>0xFFFFFFFF >> (32 - 8 * order)
    cdef uint32_t word, mul
    cdef int32_t a = 0, b = 0
    cdef int part
    cdef const uint8_t* found
    cdef uint8_t[8] small
    if split_byte < 256 and n:
        found = <const uint8_t*>memchr(key, <int>split_byte, n)
        if found != NULL:
            split = found - key
    if n >= 4:
        # The start mark stands before the key, so its run belongs to the head whatever follows.
        a += ngram_take(ngram_index(((load32(key) << 8) | MARK_START) & mask, HEAD_MUL, shift), mode, table, out, 0)
        m = 1
        last = n - 3                      # runs from here on need the end mark's word
        i = 0
        for part in range(2):
            mul = HEAD_MUL if part == 0 else TAIL_MUL
            stop = min(split, last) if part == 0 else last
            while i + 4 <= stop and i + 8 <= n:
                # Four runs of up to four bytes need seven; one load gives eight.
                eight = load64(key + i)
                counts += low[eight & 255]
                a += ngram_take(ngram_index(<uint32_t>eight & mask, mul, shift), mode, table, out, m + i)
                counts += low[(eight >> 8) & 255]
                b += ngram_take(ngram_index(<uint32_t>(eight >> 8) & mask, mul, shift), mode, table, out, m + i + 1)
                counts += low[(eight >> 16) & 255]
                a += ngram_take(ngram_index(<uint32_t>(eight >> 16) & mask, mul, shift), mode, table, out, m + i + 2)
                counts += low[(eight >> 24) & 255]
                b += ngram_take(ngram_index(<uint32_t>(eight >> 24) & mask, mul, shift), mode, table, out, m + i + 3)
                i += 4
            while i < stop:
                counts += low[key[i]]
                a += ngram_take(ngram_index(load32(key + i) & mask, mul, shift), mode, table, out, m + i)
                i += 1
            if part == 0:
                head = counts
        m += last
        word = (load32(key + n - 4) >> 8) | (<uint32_t>MARK_END << 24)
        for i in range(3):
            if last + i == split:
                head = counts
            counts += low[key[last + i]]
            if <uint32_t>i + order <= 4:
                mul = HEAD_MUL if last + i < split else TAIL_MUL
                a += ngram_take(ngram_index((word >> (8 * i)) & mask, mul, shift), mode, table, out, m)
                m += 1
        if split >= n:
            head = counts
    else:
        for i in range(8):
            small[i] = 0
        small[0] = MARK_START
        for i in range(n):
            small[i + 1] = key[i]
            counts += low[key[i]]
            if i < split:
                head = counts
        small[n + 1] = MARK_END
        i = 0
        while i + <Py_ssize_t>order <= n + 2:
            mul = HEAD_MUL if i <= split else TAIL_MUL
            a += ngram_take(ngram_index(load32(small + i) & mask, mul, shift), mode, table, out, m)
            m += 1
            i += 1
    a += b + ngram_crossed(key, n, split, counts, head, shift, mode, table, out, m)
    n_indices[0] = m + N_CROSSED
    return a


cdef inline int32_t ngram_sum_avx2(const uint8_t* key, size_t n_bytes, uint32_t order, uint32_t split_byte,
                                   uint32_t shift, int mode, const uint8_t* table,
                                   Py_ssize_t* n_indices) noexcept nogil:
    """What ``ngram_walk`` returns for keys of 16 bytes and more, on a processor that has AVX2."""
    cdef int32_t n = <int32_t>n_bytes if n_bytes < KEY_BYTES else KEY_BYTES
    n_indices[0] = n + 3 - <Py_ssize_t>order + N_CROSSED
    if mode == TAKE_INT8:
        return sum8_avx2(key, n, order, split_byte, shift, table)
    return sum4_avx2(key, n, order, split_byte, shift, table)
