"""The d-left counting filter on a flat buffer; layout and rationale are in ``dleft.pxd``."""

from libc.string cimport memcpy

from dlbf.kernels.core cimport KEY_ABSENT, KEY_MAYBE, KEY_REMOVED
from dlbf.kernels.types cimport gate_read, gate_read_done, gate_write, gate_write_done


cdef class DLeftCore(FilterCore):
    """Kernel of :class:`dlbf.DLeftFilter`."""

    def _set_geometry(
        self, uint32_t n_tables, uint64_t n_buckets, uint32_t bucket_cells, uint32_t remainder_bits,
        uint32_t counter_bits,
    ):
        """Fix the geometry; the caller has checked the values."""
        self.geometry.n_tables = n_tables
        self.geometry.n_buckets = n_buckets
        self.geometry.bucket_cells = bucket_cells
        self.geometry.remainder_bits = remainder_bits
        self.geometry.counter_bits = counter_bits
        self.geometry.cell_bits = remainder_bits + counter_bits
        self.geometry.max_count = (<uint32_t>1 << counter_bits) - 1

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return dleft_contains(&self.geometry, self.data, h)

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint64_t b
        cdef uint32_t r
        cdef bint added
        dleft_fingerprint(&self.geometry, h, &b, &r)
        added = dleft_insert(&self.geometry, self.data, b, r, 1)
        self.n_items += added
        return added

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        if not dleft_subtract(&self.geometry, self.data, h):
            return KEY_ABSENT
        if self.n_items:
            self.n_items -= 1
        return KEY_MAYBE if dleft_contains(&self.geometry, self.data, h) else KEY_REMOVED

    cdef uint64_t _count(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return dleft_count(&self.geometry, self.data, h)

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        cdef uint64_t b, bucket
        cdef uint32_t r, remainder, table
        dleft_fingerprint(&self.geometry, h, &b, &r)
        for table in range(self.geometry.n_tables):
            dleft_place(&self.geometry, b, r, table, &bucket, &remainder)
            prefetch(self.data + (dleft_bit(&self.geometry, table, bucket) >> 3))

    cdef int _places(self, uint64_t h, uint64_t* out) noexcept nogil:
        cdef uint64_t b, bucket, at
        cdef uint32_t r, remainder, table
        dleft_fingerprint(&self.geometry, h, &b, &r)
        for table in range(self.geometry.n_tables):
            dleft_place(&self.geometry, b, r, table, &bucket, &remainder)
            at = dleft_bit(&self.geometry, table, bucket)
            out[2 * table] = at >> 3
            out[2 * table + 1] = (at + self.geometry.bucket_cells * self.geometry.cell_bits - 1) >> 3
        return 2 * self.geometry.n_tables

    def _occupied(self):
        """Cells in use, and the sum of all counters."""
        cdef uint64_t i, count, cells = 0, total = 0
        cdef uint64_t n_cells = self.geometry.n_tables * self.geometry.n_buckets * self.geometry.bucket_cells
        gate_read(&self.gate)
        try:
            self._check_all()
            with nogil:
                for i in range(n_cells):
                    count = packed_get(self.data, i * self.geometry.cell_bits, self.geometry.counter_bits)
                    cells += count != 0
                    total += count
        finally:
            gate_read_done(&self.gate)
        return cells, total

    def _merge(self, DLeftCore other, bint union):
        """Count every fingerprint of ``other`` as often as it does; False, and no change, if one finds no room."""
        cdef uint64_t bucket, at, b = 0
        cdef uint32_t table, i, cell, r = 0
        cdef bint fits = True
        cdef DLeft* g = &self.geometry
        _, payload, n_items = other._snapshot(bytearray)
        cdef const uint8_t[::1] theirs = payload
        cdef bytes before
        self._need_writable()
        gate_write(&self.gate)
        try:
            self._need_open()
            before = (<const char*>self.data)[:self.n_payload_bytes]
            with nogil:
                for table in range(g.n_tables):
                    for bucket in range(g.n_buckets):
                        for i in range(g.bucket_cells):
                            at = dleft_bit(g, table, bucket) + i * <uint64_t>g.cell_bits
                            cell = packed_get(&theirs[0], at, g.cell_bits)
                            if fits and (cell & g.max_count):
                                dleft_unplace(g, bucket, cell >> g.counter_bits, table, &b, &r)
                                fits = dleft_insert(g, self.data, b, r, cell & g.max_count)
            if fits:
                self._add_items(n_items)
            else:
                memcpy(self.data, <const char*>before, self.n_payload_bytes)
        finally:
            gate_write_done(&self.gate)
        return fits
