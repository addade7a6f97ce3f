"""The DlBF on a flat buffer; leaves and their rationale are in ``deletable.pxd``."""

from dlbf.kernels.cells cimport cells_contains, cells_prefetch
from dlbf.kernels.core cimport KEY_ABSENT, KEY_MAYBE, KEY_REMOVED
from dlbf.kernels.types cimport gate_write, gate_write_done


cdef class DeletableCore(FilterCore):
    """Kernel of :class:`dlbf.DeletableBloomFilter`."""

    def _set_geometry(self, uint64_t n_cells, uint32_t n_hashes, uint64_t n_regions):
        """Fix the geometry; the caller has checked the values."""
        self.geometry.cells.n_cells = n_cells
        self.geometry.cells.n_hashes = n_hashes
        self.geometry.cells.block_cells = 0
        self.geometry.cells.n_blocks = 1
        self.geometry.cells.log2_bits = 0
        self.geometry.cells.max_count = 1
        self.geometry.n_regions = n_regions
        self.geometry.region_cells = (n_cells + n_regions - 1) // n_regions

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return cells_contains(&self.geometry.cells, self.data, h)

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        deletable_add(&self.geometry, self.data, h)
        self.n_items += 1
        return 1

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        if not cells_contains(&self.geometry.cells, self.data, h):
            return KEY_ABSENT
        if not deletable_clear(&self.geometry, self.data, h):
            # Every region of the key has seen a collision: nothing changed, the key is still there and counted.
            return KEY_MAYBE
        if self.n_items:
            self.n_items -= 1
        return KEY_REMOVED

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        cells_prefetch(&self.geometry.cells, self.data, h)

    cdef int _places(self, uint64_t h, uint64_t* out) noexcept nogil:
        cdef uint64_t x = h
        cdef uint32_t i
        for i in range(self.geometry.cells.n_hashes):
            out[i] = cells_at(&self.geometry.cells, h, x) >> 3
            x = cells_step(x)
        return self.geometry.cells.n_hashes

    def _removable(self, key):
        """Whether one of the key's bits lies in a region without a collision."""
        cdef uint64_t h, x, cell
        cdef uint32_t _i
        cdef Cells* g = &self.geometry.cells
        if key not in self:
            return False
        self._check_all()
        h = x = self._hash_one(key)
        for _i in range(g.n_hashes):
            cell = cells_at(g, h, x)
            if not cells_get(g, self.data, deletable_flag(&self.geometry, cell)):
                return True
            x = cells_step(x)
        return False

    def _occupied(self, uint64_t start, uint64_t stop):
        """Number of bits set from ``start`` to before ``stop``; region flags follow the ``n_cells`` bits."""
        cdef uint64_t i, n = 0
        self._check_all()
        for i in range(start, stop):
            n += cells_get(&self.geometry.cells, self.data, i)
        return n

    def _merge(self, DeletableCore other, bint union):
        """Union: a bit set on both sides is a collision of its region."""
        cdef uint64_t i
        cdef Cells* g = &self.geometry.cells
        _, payload, n_items = other._snapshot(bytearray)
        cdef const uint8_t[::1] theirs = payload
        self._need_writable()
        gate_write(&self.gate)
        try:
            self._need_open()
            with nogil:
                for i in range(g.n_cells):
                    if cells_get(g, &theirs[0], i):
                        if cells_get(g, self.data, i):
                            cells_put(g, self.data, deletable_flag(&self.geometry, i), 1)
                        else:
                            cells_put(g, self.data, i, 1)
                for i in range(g.n_cells, g.n_cells + self.geometry.n_regions):
                    if cells_get(g, &theirs[0], i):
                        cells_put(g, self.data, i, 1)
            self._add_items(n_items)
        finally:
            gate_write_done(&self.gate)
        return True
