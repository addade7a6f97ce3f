"""Features of keys, in bulk for training and one key at a time for scoring.

The definitions (what is counted, in which order, with which constants) are part of the meaning of every stored model:
they never change.  A better set of features becomes a new view with a new number.
"""

import numpy as np

from libc.string cimport memcpy, memset

from dlbf.kernels.keys cimport KeyReader, open_keys
from dlbf.kernels.types cimport int32_t, int64_t, popcount64

LEXICAL_NAMES = (
    "length", "digits", "upper", "vowels", "consonants", "dots", "slashes", "hyphens", "underscores", "percents", "ats",
    "query_marks", "punctuation", "controls", "non_ascii", "hex_letters", "host_length", "host_dots", "host_digits",
    "host_hyphens", "host_is_address", "host_is_shortener", "last_segment_length", "extension_length",
    "longest_digit_run", "longest_letter_run", "class_changes", "entropy_sixteenths",
)
NUMERIC_NAMES = (
    "length", "byte_0", "byte_1", "byte_2", "byte_3", "byte_4", "byte_5", "byte_6", "byte_7", "byte_end_4",
    "byte_end_3", "byte_end_2", "byte_end_1", "word_0", "word_2", "word_4", "word_6", "word_end_4", "word_end_2",
    "one_bits", "zero_bytes", "is_decimal", "decimal_magnitude", "decimal_low_byte", "decimal_last_digit",
    "decimal_last_three", "big_endian_magnitude", "little_endian_magnitude",
)
assert len(LEXICAL_NAMES) == N_LEXICAL and len(NUMERIC_NAMES) == N_NUMERIC

# Hosts that only forward elsewhere.  The list is part of the view: it never changes.
cdef tuple SHORTENERS = (
    b"t.co", b"t.ly", b"is.gd", b"v.gd", b"ow.ly", b"rb.gy", b"bit.ly", b"goo.gl", b"adf.ly", b"cutt.ly", b"tiny.cc",
    b"buff.ly", b"s.id", b"shorturl.at", b"tinyurl.com", b"rebrand.ly", b"bitly.com", b"bl.ink", b"lnkd.in", b"qr.ae",
)

cdef LexicalTables tables
cdef uint8_t[256] letter_class          # 0 other, 1 digit, 2 letter


cdef uint64_t log2_fixed(uint64_t value) noexcept nogil:
    """log2 of 1 .. 2**32 with 16 fraction bits, by repeated squaring: no floating point."""
    cdef uint64_t whole = 0, fraction = 0
    cdef int _bit
    while (value >> whole) > 1:
        whole += 1
    value = (value << 31) >> whole
    for _bit in range(16):
        value = (value * value) >> 31
        fraction <<= 1
        if value >= <uint64_t>1 << 32:
            fraction |= 1
            value >>= 1
    return (whole << 16) | fraction


cdef inline uint16_t field(uint64_t counts, int at) noexcept nogil:
    return <uint16_t>((counts >> at) & 255)


cdef int fill_tables() except -1:
    cdef int c, v
    cdef bytes host
    memset(&tables, 0, sizeof(tables))
    memset(count_low, 0, sizeof(count_low))
    memset(count_high, 0, sizeof(count_high))
    for c in range(256):
        letter_class[c] = 0
        if c"0" <= c <= c"9":
            count_low[c] = <uint64_t>1 << LOW_DIGIT
            letter_class[c] = 1
        elif c"A" <= c <= c"Z":
            count_low[c] = <uint64_t>1 << LOW_UPPER
            letter_class[c] = 2
        elif c"a" <= c <= c"z":
            count_low[c] = <uint64_t>1 << (LOW_VOWEL if c in (97, 101, 105, 111, 117) else LOW_CONSONANT)
            if c <= c"f":
                count_high[c] = <uint64_t>1 << HIGH_HEX_LETTER
            letter_class[c] = 2
        elif c == c".":
            count_low[c] = <uint64_t>1 << LOW_DOT
        elif c == c"/":
            count_low[c] = <uint64_t>1 << LOW_SLASH
        elif c == c"-":
            count_low[c] = <uint64_t>1 << LOW_HYPHEN
        elif c == c"_":
            count_low[c] = <uint64_t>1 << LOW_UNDERSCORE
        elif c == c"%":
            count_high[c] = <uint64_t>1 << HIGH_PERCENT
        elif c == c"@":
            count_high[c] = <uint64_t>1 << HIGH_AT
        elif c in b"?=&*#+":
            count_high[c] = <uint64_t>1 << HIGH_QUERY
        elif c <= 32 or c == 127:
            count_high[c] = <uint64_t>1 << HIGH_CONTROL
        elif c >= 128:
            count_high[c] = <uint64_t>1 << HIGH_NON_ASCII
        else:
            count_high[c] = <uint64_t>1 << HIGH_PUNCTUATION
        # Rounded down bit by bit.
        tables.count_log_count[c] = <uint32_t>(c * log2_fixed(c)) if c else 0
    for c in range(255):
        tables.growth[c] = tables.count_log_count[c + 1] - tables.count_log_count[c]
    # Values 1 to 8 are the fields of count_low, 9 to 15 those of count_high.
    for c in range(128):
        tables.even[c] = letter_class[c] == 2
        for v in range(1, 16):
            if field(count_low[c], 8 * (v - 1)) if v <= 8 else field(count_high[c], 8 * (v - 9)):
                if v % 2:
                    tables.odd[c] |= <uint8_t>(1 << v // 2)
                else:
                    tables.even[c] |= <uint8_t>(1 << v // 2)
    for c in range(N_SHORTENERS):
        host = SHORTENERS[c]
        tables.shorteners.lengths[c] = <uint8_t>len(host)
        tables.shorteners.first_letters[len(host)] |= <uint32_t>1 << (host[0] - c"a")
        memcpy(tables.shorteners.hosts[c], <const char*>host, len(host))
    return 0


assert len(SHORTENERS) == N_SHORTENERS and max(map(len, SHORTENERS)) <= SHORTENER_BYTES
fill_tables()


cdef const LexicalTables* lexical_tables() noexcept nogil:
    """What ``lexical_simd`` looks values up in."""
    return &tables


cdef void lexical_values(const uint8_t* key, size_t n_bytes, uint32_t split_byte, uint32_t needed, int way,
                         const uint64_t* low, const uint64_t* high, uint16_t* out) noexcept nogil:
    """Fill ``out`` (N_LEXICAL values, zeros up to ROOM_VALUES), what costs a pass only if its bit in ``needed`` is set.

    ``way`` is 0 or, for speed, up to ``lexical_best()``: the values are the same.
    """
    if lexical_simd(way, key, n_bytes, split_byte, needed, &tables, out):
        return
    cdef Py_ssize_t n = <Py_ssize_t>n_bytes if n_bytes < KEY_BYTES else KEY_BYTES
    cdef Py_ssize_t split = n, i, start
    cdef uint64_t low_counts = 0, high_counts = 0, head = 0
    cdef const uint8_t* found
    cdef uint32_t digits, dots, run, kind, last_kind, digit_run, letter_run, changes, same, length
    memset(out, 0, ROOM_VALUES * sizeof(uint16_t))
    if split_byte < 256 and n:
        found = <const uint8_t*>memchr(key, <int>split_byte, n)
        if found != NULL:
            split = found - key
    for i in range(split):
        low_counts += low[key[i]]
        high_counts += high[key[i]]
    head = low_counts
    for i in range(split, n):
        low_counts += low[key[i]]
        high_counts += high[key[i]]
    out[0] = <uint16_t>(n_bytes if n_bytes < 65535 else 65535)
    out[1] = field(low_counts, LOW_DIGIT)
    out[2] = field(low_counts, LOW_UPPER)
    out[3] = field(low_counts, LOW_VOWEL)
    out[4] = field(low_counts, LOW_CONSONANT)
    out[5] = field(low_counts, LOW_DOT)
    out[6] = field(low_counts, LOW_SLASH)
    out[7] = field(low_counts, LOW_HYPHEN)
    out[8] = field(low_counts, LOW_UNDERSCORE)
    out[9] = field(high_counts, HIGH_PERCENT)
    out[10] = field(high_counts, HIGH_AT)
    out[11] = field(high_counts, HIGH_QUERY)
    out[12] = field(high_counts, HIGH_PUNCTUATION)
    out[13] = field(high_counts, HIGH_CONTROL)
    out[14] = field(high_counts, HIGH_NON_ASCII)
    out[15] = field(high_counts, HIGH_HEX_LETTER)
    digits = field(head, LOW_DIGIT)
    dots = field(head, LOW_DOT)
    out[16] = <uint16_t>split
    out[17] = <uint16_t>dots
    out[18] = <uint16_t>digits
    out[19] = field(head, LOW_HYPHEN)
    out[20] = dots == 3 and digits >= 4 and <Py_ssize_t>(digits + dots) == split
    if needed & NEED_SHORTENER:
        out[21] = is_shortener(&tables.shorteners, key, <int32_t>split)
    if needed & NEED_SEGMENTS:
        start = n
        while start and key[start - 1] != c"/":
            start -= 1
        out[22] = <uint16_t>(n - start)
        i = n
        while i > start and key[i - 1] != c".":
            i -= 1
        out[23] = <uint16_t>(n - i) if i > start else 0
    if needed & NEED_RUNS:
        run = digit_run = letter_run = changes = 0
        last_kind = 3
        # Without branches: classes change too often to be foreseen.
        for i in range(n):
            kind = letter_class[key[i]]
            same = kind == last_kind
            last_kind = kind
            changes += 1 - same
            run = (run & (0 - same)) + 1
            length = run & (0 - <uint32_t>(kind == 1))
            digit_run = length if length > digit_run else digit_run
            length = run & (0 - <uint32_t>(kind == 2))
            letter_run = length if length > letter_run else letter_run
        out[24] = <uint16_t>digit_run
        out[25] = <uint16_t>letter_run
        out[26] = <uint16_t>changes
    if needed & NEED_ENTROPY and n:
        out[27] = entropy(key, <int32_t>n, &tables)


cdef inline uint16_t magnitude(uint64_t value) noexcept nogil:
    """A growing 16-bit picture of a 64-bit number: its bit length and the ten bits after the first."""
    cdef uint32_t length = 0
    cdef uint64_t rest = value
    while rest:
        rest >>= 1
        length += 1
    if length <= 11:
        return <uint16_t>value
    return <uint16_t>(((length - 10) << 10) | ((value >> (length - 11)) & 1023))


cdef void numeric_values(const uint8_t* key, size_t n_bytes, uint16_t* out) noexcept nogil:
    """Fill ``out`` (N_NUMERIC values, zeros up to ROOM_VALUES) for a fixed-width binary or integer-like key."""
    cdef Py_ssize_t n = <Py_ssize_t>n_bytes if n_bytes < KEY_BYTES else KEY_BYTES
    cdef Py_ssize_t i
    cdef uint8_t[8] head
    cdef uint8_t[4] tail
    cdef uint64_t big = 0, little = 0, decimal = 0
    cdef uint32_t ones = 0, zeros = 0
    cdef bint is_decimal = 0 < n_bytes <= 19
    memset(head, 0, 8)
    memset(tail, 0, 4)
    for i in range(min(n, 8)):
        head[i] = key[i]
    for i in range(min(n, 4)):
        tail[3 - i] = key[n - 1 - i]
    for i in range(n):
        ones += popcount64(key[i])
        zeros += key[i] == 0
    for i in range(8):
        big = (big << 8) | head[i]
        little |= <uint64_t>head[i] << (8 * i)
    if n < 8:
        big >>= 8 * (8 - n) if n else 0
    if is_decimal:
        for i in range(n):
            if not c"0" <= key[i] <= c"9":
                is_decimal = False
                break
            decimal = 10 * decimal + (key[i] - c"0")
    if not is_decimal:
        decimal = 0
    out[0] = <uint16_t>(n_bytes if n_bytes < 65535 else 65535)
    for i in range(8):
        out[1 + i] = head[i]
    for i in range(4):
        out[9 + i] = tail[i]
    for i in range(4):
        out[13 + i] = <uint16_t>(head[2 * i] << 8 | head[2 * i + 1])
    for i in range(2):
        out[17 + i] = <uint16_t>(tail[2 * i] << 8 | tail[2 * i + 1])
    out[19] = <uint16_t>ones
    out[20] = <uint16_t>zeros
    out[21] = is_decimal
    out[22] = magnitude(decimal)
    out[23] = <uint16_t>(decimal & 255)
    out[24] = <uint16_t>(decimal % 10)
    out[25] = <uint16_t>(decimal % 1000)
    out[26] = magnitude(big)
    out[27] = magnitude(little)
    memset(out + N_NUMERIC, 0, (ROOM_VALUES - N_NUMERIC) * sizeof(uint16_t))


def pack_keys(keys):
    """All keys of a batch as one array of bytes and the n + 1 places where they begin.

    Parameters
    ----------
    keys : iterable of keys, numpy array or Arrow array
        What every batch method takes.

    Returns
    -------
    data : numpy.ndarray of uint8
    offsets : numpy.ndarray of int64
        Key ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

    Examples
    --------
    >>> data, offsets = pack_keys([b"ab", "c"])
    >>> bytes(data), offsets.tolist()
    (b'abc', [0, 2, 3])
    """
    cdef KeyReader reader = open_keys(keys)
    cdef Py_ssize_t i, n_bytes
    cdef int64_t total = 0
    cdef int64_t[::1] ends
    cdef uint8_t[::1] view
    cdef const uint8_t** pointers
    cdef size_t* lengths
    blocks = []
    starts = [np.zeros(1, dtype=np.int64)]
    while reader.next_batch():
        while reader.next_chunk():
            pointers = reader.chunk.data
            lengths = reader.chunk.n_bytes
            n_bytes = 0
            for i in range(reader.chunk.n):
                n_bytes += lengths[i]
            block = np.empty(n_bytes, dtype=np.uint8)
            places = np.empty(reader.chunk.n, dtype=np.int64)
            view = block
            ends = places
            n_bytes = 0
            for i in range(reader.chunk.n):
                if lengths[i]:
                    memcpy(&view[n_bytes], pointers[i], lengths[i])
                n_bytes += lengths[i]
                total += lengths[i]
                ends[i] = total
            blocks.append(block)
            starts.append(places)
    data = np.concatenate(blocks) if blocks else np.empty(0, dtype=np.uint8)
    return data, np.concatenate(starts)


cdef int check_packed(const uint8_t[::1] data, const int64_t[::1] offsets, const int64_t[::1] rows) except -1:
    """Leaves trust their input; this is where it is checked."""
    cdef Py_ssize_t i, n = offsets.shape[0] - 1
    if n < 0 or offsets[0] != 0 or offsets[n] != data.shape[0]:
        raise ValueError("offsets must begin with 0 and end with the size of data; pass what pack_keys returned")
    for i in range(n):
        if offsets[i] > offsets[i + 1]:
            raise ValueError(f"offsets must not fall, but offsets[{i}] > offsets[{i + 1}]")
    for i in range(rows.shape[0]):
        if not 0 <= rows[i] < n:
            raise IndexError(f"row {rows[i]} is not one of the {n} packed keys")
    return 0


def check_ngram(order, split_byte, log2_weights):
    """Raise ValueError unless the three numbers describe a table of hashed runs."""
    if order not in (2, 3, 4):
        raise ValueError(f"order must be 2, 3 or 4 bytes, found {order!r}")
    if not (isinstance(split_byte, int) and 0 <= split_byte <= NO_SPLIT):
        raise ValueError(f"the split byte must be 0 .. 255, or 256 for none, found {split_byte!r}")
    if not (isinstance(log2_weights, int) and 4 <= log2_weights <= 24):
        raise ValueError(f"log2_weights must be 4 .. 24, found {log2_weights!r}")


def ngram_rows(const uint8_t[::1] data, const int64_t[::1] offsets, const int64_t[::1] rows, order, split_byte,
               log2_weights):
    """Table indices of packed keys, as the two index arrays of a CSR matrix.

    Parameters
    ----------
    data, offsets : arrays
        From `pack_keys`.
    rows : array of int64
        Which keys, in which order.
    order, split_byte, log2_weights : int
        Bytes per run (2 .. 4), the byte that ends the head (256: none), and the table's size.

    Returns
    -------
    indices : numpy.ndarray of int32
        An index that occurs twice in a key is listed twice.
    indptr : numpy.ndarray of int32
        ``indices[indptr[i]:indptr[i + 1]]`` belong to ``rows[i]``.

    Examples
    --------
    >>> data, offsets = pack_keys([b"abc"])
    >>> indices, indptr = ngram_rows(data, offsets, np.array([0]), 3, 47, 13)
    >>> indptr.tolist()  # <abc, abc> and ten crossed counts and places
    [0, 13]
    """
    check_ngram(order, split_byte, log2_weights)
    check_packed(data, offsets, rows)
    cdef uint32_t run = order, split = split_byte, shift = 32 - log2_weights
    cdef Py_ssize_t i, m, n = rows.shape[0]
    cdef int64_t at = 0, room = 0, length
    for i in range(n):
        length = offsets[rows[i] + 1] - offsets[rows[i]]
        room += min(length, <int64_t>KEY_BYTES) + 2 + N_CROSSED
    if room > 2**31 - 1:
        raise ValueError(f"{n} keys have more than 2**31 indices; ask for fewer rows at a time")
    indices = np.empty(room, dtype=np.int32)
    indptr = np.zeros(n + 1, dtype=np.int32)
    cdef int32_t[::1] index_view = indices
    cdef int32_t[::1] pointer_view = indptr
    cdef uint32_t[MAX_INDICES] found
    cdef const uint8_t* base = &data[0] if data.shape[0] else NULL
    cdef uint8_t nothing = 0
    if base == NULL:
        base = &nothing
    with nogil:
        for i in range(n):
            ngram_walk(base + offsets[rows[i]], offsets[rows[i] + 1] - offsets[rows[i]], run, split, shift,
                       count_low, TAKE_INDICES, NULL, found, &m)
            memcpy(&index_view[at], found, m * sizeof(uint32_t))
            at += m
            pointer_view[i + 1] = <int32_t>at
    return indices[:at], indptr


def value_rows(const uint8_t[::1] data, const int64_t[::1] offsets, const int64_t[::1] rows, view, split_byte=47):
    """Lexical or numeric values of packed keys, one row of 16-bit integers per key.

    Parameters
    ----------
    data, offsets, rows : arrays
        As for `ngram_rows`.
    view : {"lexical", "numeric"}
        The columns are named by ``LEXICAL_NAMES`` and ``NUMERIC_NAMES``.
    split_byte : int
        The byte that ends the host (256: none); the numeric view has none.

    Returns
    -------
    numpy.ndarray of uint16, shape (len(rows), n_values)

    Examples
    --------
    >>> data, offsets = pack_keys([b"10.0.0.1/a.exe"])
    >>> row = value_rows(data, offsets, np.array([0]), "lexical")[0]
    >>> dict(zip(LEXICAL_NAMES, row.tolist()))["host_is_address"]
    1
    """
    if view not in ("lexical", "numeric"):
        raise ValueError(f"view must be 'lexical' or 'numeric', found {view!r}")
    if not (isinstance(split_byte, int) and 0 <= split_byte <= NO_SPLIT):
        raise ValueError(f"the split byte must be 0 .. 255, or 256 for none, found {split_byte!r}")
    check_packed(data, offsets, rows)
    cdef bint lexical = view == "lexical"
    cdef int way = lexical_best()
    cdef uint32_t split = split_byte
    cdef Py_ssize_t i, n = rows.shape[0]
    cdef size_t n_values = N_LEXICAL if lexical else N_NUMERIC
    out = np.zeros((n, n_values), dtype=np.uint16)
    cdef uint16_t[:, ::1] values = out
    cdef uint16_t[ROOM_VALUES] row
    cdef uint8_t nothing = 0
    cdef const uint8_t* base = &data[0] if data.shape[0] else NULL
    if base == NULL:
        base = &nothing
    with nogil:
        for i in range(n):
            if lexical:
                lexical_values(base + offsets[rows[i]], offsets[rows[i] + 1] - offsets[rows[i]], split,
                               <uint32_t>0xFFFFFFFF, way, count_low, count_high, row)
            else:
                numeric_values(base + offsets[rows[i]], offsets[rows[i] + 1] - offsets[rows[i]], row)
            memcpy(&values[i, 0], row, n_values * sizeof(uint16_t))
    return out
