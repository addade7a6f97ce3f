"""Arrays of 1, 2, 4 or 8-bit cells: Bloom and counting Bloom filters in one kernel.

A Bloom filter is a counting filter with 1-bit counters: its only count is also its maximum, and a saturated
counter is never decremented, so it cannot forget.  Everything else is the same code.

Positions of a key: x_0 = h, x_(i+1) = A x_i + C modulo 2^64; probe i is cell floor(x_i * m / 2^64).  In
a blocked array h picks the block and x_1, x_2, ... the cells in it.  Positions are independent enough for the exact
formulas of ``dlbf.geometry`` to hold down to 240 cells (tested).
"""

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.types cimport mulhi64, prefetch, uint8_t, uint32_t, uint64_t

ctypedef struct Cells:
    uint64_t n_cells
    uint64_t block_cells      # 0: classic
    uint64_t n_blocks
    uint32_t n_hashes
    uint32_t log2_bits        # cells of 1 << log2_bits bits
    uint8_t max_count         # (1 << bits) - 1, and the mask of a cell


cdef inline uint64_t cells_step(uint64_t x) noexcept nogil:
    # Multiplier: Steele and Vigna, "Computationally easy, spectrally good multipliers", 64-bit LCG.
    return x * <uint64_t>0xD1342543DE82EF95 + <uint64_t>0x9E3779B97F4A7C15


cdef inline void cells_start(const Cells* g, uint64_t h, uint64_t* x, uint64_t* base, uint64_t* span) noexcept nogil:
    """Where the probes of ``h`` begin: state of the generator, first cell and number of cells to choose from."""
    if g.block_cells:
        base[0] = mulhi64(h, g.n_blocks) * g.block_cells
        span[0] = g.block_cells
        x[0] = cells_step(h)
    else:
        base[0] = 0
        span[0] = g.n_cells
        x[0] = h


cdef inline uint64_t cells_at(const Cells* g, uint64_t h, uint64_t x) noexcept nogil:
    """The cell that generator state ``x`` of key hash ``h`` probes."""
    if g.block_cells:
        return mulhi64(h, g.n_blocks) * g.block_cells + mulhi64(x, g.block_cells)
    return mulhi64(x, g.n_cells)


cdef inline uint64_t cells_offset(const Cells* g, uint64_t h, uint64_t x) noexcept nogil:
    """Its byte."""
    return (cells_at(g, h, x) << g.log2_bits) >> 3


cdef inline uint8_t cells_get(const Cells* g, const uint8_t* data, uint64_t cell) noexcept nogil:
    cdef uint64_t bit = cell << g.log2_bits
    return (data[bit >> 3] >> (bit & 7)) & g.max_count


cdef inline void cells_put(const Cells* g, uint8_t* data, uint64_t cell, uint8_t value) noexcept nogil:
    cdef uint64_t bit = cell << g.log2_bits
    cdef int shift = bit & 7
    data[bit >> 3] = <uint8_t>((data[bit >> 3] & ~(g.max_count << shift)) | (value << shift))


cdef inline bint cells_contains(const Cells* g, const uint8_t* data, uint64_t h) noexcept nogil:
    # All probes, and no branch on any: at half-full the first is a coin toss that no processor predicts, and a
    # wrong guess costs more than the loads, which overlap.
    cdef uint64_t x, base, span
    cdef uint32_t _i
    cdef bint found = True
    cells_start(g, h, &x, &base, &span)
    for _i in range(g.n_hashes):
        found &= cells_get(g, data, base + mulhi64(x, span)) != 0
        x = cells_step(x)
    return found


cdef inline void cells_prefetch(const Cells* g, const uint8_t* data, uint64_t h) noexcept nogil:
    cdef uint64_t x, base, span
    cells_start(g, h, &x, &base, &span)
    prefetch(data + (((base + mulhi64(x, span)) << g.log2_bits) >> 3))
    if not g.block_cells:
        x = cells_step(x)
        prefetch(data + ((mulhi64(x, span) << g.log2_bits) >> 3))
        x = cells_step(x)
        prefetch(data + ((mulhi64(x, span) << g.log2_bits) >> 3))


cdef inline void cells_add(const Cells* g, uint8_t* data, uint64_t h, uint8_t* bits=NULL) noexcept nogil:
    """Count one more in the key's cells; ``bits``, where kept, says which cells are not zero."""
    cdef uint64_t x, base, span, cell
    cdef uint8_t count
    cdef uint32_t _i
    cells_start(g, h, &x, &base, &span)
    for _i in range(g.n_hashes):
        cell = base + mulhi64(x, span)
        count = cells_get(g, data, cell)
        if count < g.max_count:
            cells_put(g, data, cell, count + 1)
        if bits != NULL:
            bits[cell >> 3] |= <uint8_t>(1 << (cell & 7))
        x = cells_step(x)


cdef inline bint cells_subtract(const Cells* g, uint8_t* data, uint64_t h, uint8_t* bits=NULL) noexcept nogil:
    """Undo one ``cells_add``; False and no change when a count says it cannot have happened."""
    cdef uint64_t x, base, span, cell
    cdef uint8_t count
    cdef uint32_t i, _j
    cells_start(g, h, &x, &base, &span)
    for i in range(g.n_hashes):
        cell = base + mulhi64(x, span)
        count = cells_get(g, data, cell)
        if count == 0:
            # Certainly absent, perhaps found only at a cell this key uses twice: put back what was taken.
            cells_start(g, h, &x, &base, &span)
            for _j in range(i):
                cell = base + mulhi64(x, span)
                count = cells_get(g, data, cell)
                if count < g.max_count:
                    cells_put(g, data, cell, count + 1)
                if bits != NULL:
                    bits[cell >> 3] |= <uint8_t>(1 << (cell & 7))
                x = cells_step(x)
            return False
        # Saturated counters stay at the maximum: their true count is lost, and
        # decrementing one could erase a key that is still stored.
        if count < g.max_count:
            cells_put(g, data, cell, count - 1)
            if bits != NULL:
                bits[cell >> 3] &= <uint8_t>~((count == 1) << (cell & 7))
        x = cells_step(x)
    return True


cdef inline uint8_t cells_least(const Cells* g, const uint8_t* data, uint64_t h) noexcept nogil:
    """The smallest count among the key's cells."""
    cdef uint64_t x, base, span
    cdef uint8_t count, least = g.max_count
    cdef uint32_t _i
    cells_start(g, h, &x, &base, &span)
    for _i in range(g.n_hashes):
        count = cells_get(g, data, base + mulhi64(x, span))
        if count < least:
            least = count
        x = cells_step(x)
    return least


cdef class CellsCore(FilterCore):
    cdef Cells geometry
    # Of counters: which are not zero, a bit for each, if such a summary is kept; queries then read nothing else.
    cdef uint8_t* bits
    cdef object bits_owner
    cdef Cells bits_geometry

    cdef void _fill_bits(self) noexcept nogil
