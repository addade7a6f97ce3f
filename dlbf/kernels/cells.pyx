"""Bloom and counting Bloom filters on a flat buffer; leaves and their rationale are in ``cells.pxd``."""

from dlbf.kernels.core cimport KEY_ABSENT, KEY_MAYBE, KEY_REMOVED, FilterCore
from libc.string cimport memset

from dlbf.kernels.keys cimport CHUNK_KEYS, KeyChunk
from dlbf.kernels.types cimport (
    gate_read, gate_read_done, gate_write, gate_write_done, load64, popcount64, prefetch, uint16_t,
)

cdef enum:
    AHEAD = 24


cdef inline void cells_contains_many(
    const Cells* g, const uint8_t* data, const uint64_t* hashes, Py_ssize_t n, uint8_t* out,
) noexcept nogil:
    """A sieve: probe 0 of every key, then probe 1 of those that are left, and so on.

    An absent key is out after two probes on average, so only two cache lines are fetched for it, each well
    ahead of its use; and no branch depends on an answer, so none is mispredicted.
    """
    cdef uint64_t state[CHUNK_KEYS]
    cdef uint16_t index[CHUNK_KEYS]
    cdef uint64_t x, base, span
    cdef Py_ssize_t i, left
    cdef uint32_t _probe
    cdef bint hit
    memset(out, 0, n)
    for i in range(n):
        cells_start(g, hashes[i], &x, &base, &span)
        state[i] = x
        index[i] = <uint16_t>i
    left = n
    for _probe in range(g.n_hashes):
        n = left
        left = 0
        for i in range(n):
            if i + AHEAD < n:
                prefetch(data + cells_offset(g, hashes[index[i + AHEAD]], state[i + AHEAD]))
            x = state[i]
            hit = cells_get(g, data, cells_at(g, hashes[index[i]], x)) != 0
            state[left] = cells_step(x)
            index[left] = index[i]
            left += hit
    for i in range(left):
        out[index[i]] = 1


cdef inline void cells_add_many(
    const Cells* g, uint8_t* data, uint8_t* bits, const uint64_t* hashes, Py_ssize_t i, Py_ssize_t n,
) noexcept nogil:
    cdef Py_ssize_t ahead
    for ahead in range(i, min(i + AHEAD, n)):
        cells_prefetch(g, data, hashes[ahead])
    for i in range(i, n):
        if i + AHEAD < n:
            cells_prefetch(g, data, hashes[i + AHEAD])
        cells_add(g, data, hashes[i], bits)


cdef inline uint64_t even_bits(uint64_t x) noexcept nogil:
    """Bits 0, 2, 4, ... of ``x``, side by side."""
    x &= <uint64_t>0x5555555555555555
    x = (x | x >> 1) & <uint64_t>0x3333333333333333
    x = (x | x >> 2) & <uint64_t>0x0F0F0F0F0F0F0F0F
    x = (x | x >> 4) & <uint64_t>0x00FF00FF00FF00FF
    x = (x | x >> 8) & <uint64_t>0x0000FFFF0000FFFF
    return (x | x >> 16) & <uint64_t>0x00000000FFFFFFFF


cdef class CellsCore(FilterCore):
    """Kernel of :class:`dlbf.BloomFilter` and :class:`dlbf.CountingBloomFilter`."""

    def _set_geometry(self, uint64_t n_cells, uint32_t n_hashes, uint64_t block_cells, int cell_bits):
        """Fix the geometry; the caller has checked the values."""
        self.geometry.n_cells = n_cells
        self.geometry.n_hashes = n_hashes
        self.geometry.block_cells = block_cells
        self.geometry.n_blocks = n_cells // block_cells if block_cells else 1
        self.geometry.log2_bits = {1: 0, 2: 1, 4: 2, 8: 3}[cell_bits]
        self.geometry.max_count = (1 << cell_bits) - 1

    def _summarise(self, bits):
        """Keep in ``bits``, an array of bytes of its own, which counters are not zero; queries then read only that.

        Only for a buffer that nobody else changes.  A query for an absent key waits for whichever of its cells
        comes last, so four times less to keep in the caches is worth more than the few bits it takes.
        """
        cdef uint8_t[::1] view = bits
        self.bits_geometry = self.geometry
        self.bits_geometry.log2_bits = 0
        self.bits_geometry.max_count = 1
        self.bits_owner = bits
        self.bits = &view[0]
        with nogil:
            self._fill_bits()

    @property
    def _is_summarised(self):
        """Whether queries read a summary of the counters."""
        return self.bits != NULL

    cdef void _fill_bits(self) noexcept nogil:
        """Make the summary say what the counters say."""
        cdef Cells g = self.geometry
        cdef uint64_t i, cell, word, n_words = self.n_payload_bytes // 8
        cdef uint32_t _i, j, n_bytes = 8 >> g.log2_bits
        for i in range(n_words):
            word = load64(self.data + 8 * i)
            for _i in range(g.log2_bits):
                word = even_bits(word | word >> 1)
            for j in range(n_bytes):
                self.bits[i * n_bytes + j] = <uint8_t>(word >> 8 * j)
        cell = n_words * 64 >> g.log2_bits
        memset(self.bits + (cell >> 3), 0, ((g.n_cells + 7) >> 3) - (cell >> 3))
        for cell in range(cell, g.n_cells):
            self.bits[cell >> 3] |= <uint8_t>((cells_get(&g, self.data, cell) != 0) << (cell & 7))

    def _detach(self):
        FilterCore._detach(self)
        self.bits = NULL
        self.bits_owner = None

    cdef void _zero(self) noexcept nogil:
        FilterCore._zero(self)
        if self.bits != NULL:
            memset(self.bits, 0, (self.geometry.n_cells + 7) // 8)

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        if self.bits != NULL:
            return cells_contains(&self.bits_geometry, self.bits, h)
        return cells_contains(&self.geometry, self.data, h)

    cdef void _contains_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        # The geometry is copied, and its common values written as constants, so that the compiler makes a loop
        # for each: a fifth of the time.
        cdef Cells g = self.geometry
        cdef const uint8_t* data = self.data
        if self.bits != NULL:
            g, data = self.bits_geometry, self.bits
        if g.log2_bits == 0 and g.block_cells == 0:
            g.log2_bits, g.max_count, g.block_cells = 0, 1, 0
            cells_contains_many(&g, data, hashes, chunk.n, out)
        elif g.log2_bits == 2 and g.block_cells == 0:
            g.log2_bits, g.max_count, g.block_cells = 2, 15, 0
            cells_contains_many(&g, data, hashes, chunk.n, out)
        else:
            cells_contains_many(&g, data, hashes, chunk.n, out)

    cdef Py_ssize_t _add_chunk(
        self, const KeyChunk* chunk, const uint64_t* hashes, Py_ssize_t i, int* answer
    ) noexcept nogil:
        # As above: a loop for each of the common geometries.
        cdef Cells g = self.geometry
        answer[0] = 1
        self.n_items += chunk.n - i
        if g.log2_bits == 0 and g.block_cells == 0:
            g.log2_bits, g.max_count, g.block_cells = 0, 1, 0
            cells_add_many(&g, self.data, NULL, hashes, i, chunk.n)
        elif g.log2_bits == 2 and g.block_cells == 0:
            g.log2_bits, g.max_count, g.block_cells = 2, 15, 0
            cells_add_many(&g, self.data, self.bits, hashes, i, chunk.n)
        else:
            cells_add_many(&g, self.data, self.bits, hashes, i, chunk.n)
        return chunk.n

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        # Two calls, so that the common one is compiled without the summary.
        if self.bits == NULL:
            cells_add(&self.geometry, self.data, h)
        else:
            cells_add(&self.geometry, self.data, h, self.bits)
        self.n_items += 1
        return 1

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        if not cells_subtract(&self.geometry, self.data, h, self.bits):
            return KEY_ABSENT
        if self.n_items:
            self.n_items -= 1
        return KEY_MAYBE if self._contains(h, key, n) else KEY_REMOVED

    cdef uint64_t _count(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return cells_least(&self.geometry, self.data, h)

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        cells_prefetch(&self.geometry, self.data, h)

    cdef int _places(self, uint64_t h, uint64_t* out) noexcept nogil:
        cdef uint64_t x, base, span
        cdef uint32_t i
        cells_start(&self.geometry, h, &x, &base, &span)
        for i in range(self.geometry.n_hashes):
            out[i] = ((base + mulhi64(x, span)) << self.geometry.log2_bits) >> 3
            x = cells_step(x)
        return self.geometry.n_hashes

    def _occupied(self, uint64_t start, uint64_t stop):
        """Number of cells that are not zero, from cell ``start`` to before ``stop``."""
        cdef uint64_t i, n = 0
        cdef Cells g = self.geometry
        cdef const uint8_t* data
        gate_read(&self.gate)
        try:
            self._check_all()
            data = self.data
            if self.bits != NULL:
                g, data = self.bits_geometry, self.bits
            with nogil:
                if g.log2_bits == 0 and start % 64 == 0 and stop % 64 == 0:
                    for i in range(start // 64, stop // 64):
                        n += popcount64(load64(data + 8 * i))
                else:
                    for i in range(start, stop):
                        n += cells_get(&g, data, i) != 0
        finally:
            gate_read_done(&self.gate)
        return n

    def _saturated(self):
        """Number of cells at their maximum."""
        cdef uint64_t i, n = 0
        cdef Cells g = self.geometry
        gate_read(&self.gate)
        try:
            self._check_all()
            with nogil:
                for i in range(g.n_cells):
                    n += cells_get(&g, self.data, i) == g.max_count
        finally:
            gate_read_done(&self.gate)
        return n

    def _merge(self, CellsCore other, bint union):
        """Cell by cell: the saturating sum, or (intersection) the smaller count."""
        cdef uint64_t i
        cdef int a, b
        cdef Cells g = self.geometry
        _, payload, n_items = other._snapshot(bytearray)
        cdef const uint8_t[::1] theirs = payload
        self._need_writable()
        gate_write(&self.gate)
        try:
            self._need_open()
            with nogil:
                for i in range(g.n_cells):
                    a = cells_get(&g, self.data, i)
                    b = cells_get(&g, &theirs[0], i)
                    if union:
                        a = min(a + b, <int>g.max_count)
                    elif b < a:
                        a = b
                    cells_put(&g, self.data, i, <uint8_t>a)
                if self.bits != NULL:
                    self._fill_bits()
            if union:
                self._add_items(n_items)
        finally:
            gate_write_done(&self.gate)
        return True
