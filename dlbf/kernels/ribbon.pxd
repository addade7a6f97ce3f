"""Ribbon filter: static, and the smallest filter here that has no model.

A key is one equation per column: the bits of a column that the key's row picks add up (mod 2) to a bit of the key's
fingerprint.  A row has 64 coefficients, so it touches 64 neighbouring bits of the column.  The equations of the keys
are solved once, when the filter is built; a key that is not one of them passes each column with probability 1/2.

Keys are split by the range of their hash into *shards* of about 2,048, each a system of its own with some 0.2 % more
unknowns (rows) than keys.  Think of a queue: row after row serves one of the keys whose window has reached it.  A row
that finds nobody waiting is lost, and a key that has waited for 64 rows cannot be served.  So the windows of some 32
keys start at the shard's first row, those of the others anywhere but in its last 32 (windows end where the shard ends),
and of several seeds, which move the windows, the first is taken that keeps the queue between empty and 64.

::

    payload:  | table: a u32 per shard, and one for the end | columns |
                padded to a multiple of 8 bytes

    entry s:  (first row of shard s - (s * mean >> 16) + 2^23) << 8 | seed        mean = (rows << 16) / shards

Rows of all shards follow each other without gaps.  64 rows are a *block*: its first word is rows 0 .. 63 of column 0
(row 0 in the lowest bit), then column 1, and so on.  The first ``n_wide`` blocks have one column more than the others:
a share of the queries is asked one bit more, which makes any rate possible, not only powers of two.

A query reads the table and one or two neighbouring blocks.  Whatever the bytes say, it reads nothing outside of the
payload.
"""

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.types cimport (
    counted_ones, counts_ones, likely, load32, load64, mulhi64, parity64, prefetch, uint8_t, uint32_t, uint64_t,
)

cdef enum:
    # Rows at the end of a shard in which no window starts, and keys, on average, whose windows start at its first row.
    RIBBON_EDGE = 32
    RIBBON_OFFSET = 1 << 23
    RIBBON_SEEDS = 256

ctypedef struct Ribbon:
    uint64_t n_shards
    uint64_t n_rows
    uint64_t n_columns        # of a narrow block
    uint64_t n_wide           # blocks with one column more
    uint64_t n_blocks
    uint64_t mean             # rows of a shard, times 2^16
    uint64_t table_bytes

# A key's equations: where they are, and what they must add up to.
ctypedef struct RibbonRow:
    const uint8_t* first      # block in which the row starts
    const uint8_t* second     # the next one
    uint64_t low, high        # coefficients within each
    uint64_t fingerprint
    uint64_t n_columns


cdef inline uint64_t ribbon_coefficients(uint64_t h) noexcept nogil:
    h = (h ^ (h >> 32)) * <uint64_t>0xD6E8FEB86659FD93
    return (h ^ (h >> 29)) | 1


cdef inline uint64_t ribbon_fingerprint(uint64_t h) noexcept nogil:
    h = (h ^ (h >> 31)) * <uint64_t>0xBF58476D1CE4E5B9
    h = (h ^ (h >> 30)) * <uint64_t>0x94D049BB133111EB
    return h ^ (h >> 32)


cdef inline uint64_t ribbon_start(uint64_t h, uint64_t seed, uint64_t n_rows) noexcept nogil:
    """The row of the shard at which the key's window starts: at most n_rows - RIBBON_EDGE, or 0."""
    cdef uint64_t at = (((h * ((2 * seed + 1) * <uint64_t>0x9E3779B97F4A7C15)) >> 32) * (n_rows + 1)) >> 32
    return at - RIBBON_EDGE if at > RIBBON_EDGE else 0


cdef inline uint64_t ribbon_masked(uint64_t coefficients, uint64_t n_rows) noexcept nogil:
    """The coefficients that are left when only so many rows follow."""
    return coefficients if n_rows >= 64 else coefficients & ((<uint64_t>1 << n_rows) - 1)


cdef inline uint64_t ribbon_first_row(const Ribbon* g, const uint8_t* data, uint64_t shard) noexcept nogil:
    return ((shard * g.mean) >> 16) + (load32(data + 4 * shard) >> 8) - RIBBON_OFFSET


cdef inline void ribbon_row(const Ribbon* g, const uint8_t* data, uint64_t h, RibbonRow* row) noexcept nogil:
    """The equations of a key; there must be rows."""
    cdef uint64_t shard = mulhi64(h, g.n_shards)
    cdef uint64_t first = ribbon_first_row(g, data, shard)
    cdef uint64_t n_rows = ribbon_first_row(g, data, shard + 1) - first
    cdef uint64_t start = ribbon_start(h, load32(data + 4 * shard) & 0xFF, n_rows)
    cdef uint64_t coefficients = ribbon_masked(ribbon_coefficients(h), n_rows - start)
    cdef uint64_t block = (first + start) >> 6
    cdef uint64_t bit = (first + start) & 63
    cdef bint is_last
    block = block if block < g.n_blocks else g.n_blocks - 1     # only in a damaged table
    is_last = block + 1 == g.n_blocks
    row.first = data + g.table_bytes + 8 * (block * g.n_columns + (block if block < g.n_wide else g.n_wide))
    row.second = row.first if is_last else row.first + 8 * (g.n_columns + (block < g.n_wide))
    row.low = coefficients << bit
    row.high = (coefficients >> 1) >> (63 - bit)
    row.fingerprint = ribbon_fingerprint(h)
    row.n_columns = g.n_columns + (block + 1 < g.n_wide)


cdef inline uint64_t ribbon_picked(const RibbonRow* row, uint64_t column) noexcept nogil:
    """What the key's row picks of a column, to be added up."""
    return (load64(row.first + 8 * column) & row.low) ^ (load64(row.second + 8 * column) & row.high)


cdef inline uint64_t ribbon_four(const RibbonRow* row, uint64_t column) noexcept nogil:
    """Odd if one of four equations does not hold.  No branch depends on them: the processor could foresee none."""
    cdef uint64_t asked = row.fingerprint >> column
    if likely(counts_ones()):
        return (
            (counted_ones(ribbon_picked(row, column)) ^ asked)
            | (counted_ones(ribbon_picked(row, column + 1)) ^ (asked >> 1))
            | (counted_ones(ribbon_picked(row, column + 2)) ^ (asked >> 2))
            | (counted_ones(ribbon_picked(row, column + 3)) ^ (asked >> 3))
        )
    return (
        (parity64(ribbon_picked(row, column)) ^ asked)
        | (parity64(ribbon_picked(row, column + 1)) ^ (asked >> 1))
        | (parity64(ribbon_picked(row, column + 2)) ^ (asked >> 2))
        | (parity64(ribbon_picked(row, column + 3)) ^ (asked >> 3))
    )


cdef inline bint ribbon_holds(const RibbonRow* row) noexcept nogil:
    """Whether all equations hold."""
    cdef uint64_t column = 0, wrong = 0
    while column + 4 <= row.n_columns:
        if ribbon_four(row, column) & 1:
            return False
        column += 4
    while column < row.n_columns:
        wrong |= parity64(ribbon_picked(row, column)) ^ (row.fingerprint >> column)
        column += 1
    return not wrong & 1


cdef inline bint ribbon_contains(const Ribbon* g, const uint8_t* data, uint64_t h) noexcept nogil:
    cdef RibbonRow row
    if g.n_rows == 0:
        return False
    ribbon_row(g, data, h, &row)
    return ribbon_holds(&row)


cdef inline void ribbon_prefetch(const Ribbon* g, const uint8_t* data, uint64_t h) noexcept nogil:
    cdef RibbonRow row
    if g.n_rows:
        ribbon_row(g, data, h, &row)
        prefetch(row.first)
        prefetch(row.second)


cdef void ribbon_set_geometry(
    Ribbon* g, uint64_t n_shards, uint64_t n_rows, uint64_t n_columns, uint64_t n_wide
) noexcept nogil
cdef void ribbon_contains_many(
    const Ribbon* geometry, const uint8_t* data, const uint64_t* hashes, Py_ssize_t n, uint8_t* out,
) noexcept nogil


cdef class RibbonCore(FilterCore):
    cdef Ribbon geometry
