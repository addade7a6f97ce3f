"""A base filter that dlbf does not know: kernel, class and row, all that a new one needs, in one file.

Cells of one byte that count; ``tests/filters/test_toy_base.py`` compiles it and takes it through the library.
"""

import math

from dlbf.filters.base import Filter, check_target
from dlbf.filters.kinds import add_base
from dlbf.filters.row import Base, PlainDesign
from dlbf.geometry import cell_fpr, cell_geometry, cell_price

from dlbf.kernels.core cimport KEY_ABSENT, KEY_MAYBE, KEY_REMOVED, FilterCore
from dlbf.kernels.types cimport mulhi64, uint8_t, uint32_t, uint64_t


cdef class ToyCore(FilterCore):
    cdef uint64_t n_cells
    cdef uint32_t n_hashes

    def _set_geometry(self, uint64_t n_cells, uint32_t n_hashes):
        self.n_cells, self.n_hashes = n_cells, n_hashes

    cdef uint64_t place(self, uint64_t h, uint32_t i) noexcept nogil:
        """A cell for each probe; the steps are odd, so all of a key's are different numbers."""
        return mulhi64(h * (2 * <uint64_t>i + 1) + i * <uint64_t>0x9E3779B97F4A7C15, self.n_cells)

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint32_t i
        for i in range(self.n_hashes):
            if self.data[self.place(h, i)] == 0:
                return False
        return True

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint32_t i
        for i in range(self.n_hashes):
            if self.data[self.place(h, i)] < 255:
                self.data[self.place(h, i)] += 1
        self.n_items += 1
        return 1

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint32_t i
        if not self._contains(h, key, n):
            return KEY_ABSENT
        for i in range(self.n_hashes):
            if 0 < self.data[self.place(h, i)] < 255:
                self.data[self.place(h, i)] -= 1
        if self.n_items:
            self.n_items -= 1
        return KEY_MAYBE if self._contains(h, key, n) else KEY_REMOVED

    def _occupied(self):
        cdef uint64_t i, n = 0
        self._check_all()
        for i in range(self.n_cells):
            n += self.data[i] != 0
        return n


class ToyFilter(ToyCore, Filter):
    """Counting cells of a byte each."""

    KIND = 99
    PARAMS = ("n_cells", "n_hashes")

    def __init__(self, capacity, fpr=0.01, *, secret=None, filter_id=0):
        capacity, fpr = check_target(capacity, fpr)
        n_cells, n_hashes, _ = cell_geometry(capacity, fpr)
        self._create((n_cells, n_hashes), capacity, fpr, secret, filter_id)

    @classmethod
    def _payload_bytes(cls, params):
        n_cells, n_hashes = params[3:]
        if not (0 < n_cells < 1 << 40 and 0 < n_hashes <= 64):
            raise ValueError(f"{n_hashes} hashes in {n_cells} cells")
        return n_cells

    def _apply(self, params):
        self._set_geometry(*params[3:])

    @property
    def fill(self):
        return self._occupied() / self._param("n_cells")

    def approximate_count(self):
        return round(-math.log1p(-min(self.fill, 0.999)) * self._param("n_cells") / self._param("n_hashes"))

    @property
    def expected_fpr(self):
        return cell_fpr(len(self), *self._params[3:])


TOY = Base(
    name="toy",
    cls=ToyFilter,
    words="toy filter",
    geometry=lambda n_keys, planned, counter_bits: tuple(cell_geometry(n_keys, min(planned.fpr, 0.999)))[:2],
    scaled=lambda params, n_before, n_keys: (max(64, math.ceil(params[0] * n_keys / n_before)), *params[1:]),
    rate=lambda n_keys, params: cell_fpr(n_keys, *params[:2]),
    price=lambda counter_bits: (cell_price(8),),
    design=PlainDesign("toy", "Toy filter"),
)
add_base(TOY)
