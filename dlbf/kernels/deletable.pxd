"""DlBF: a Bloom filter that remembers in which parts of it two keys have met.

The first ``n_cells`` bits are a classic Bloom filter, cut into ``n_regions`` runs of equal length; one more bit per
region says that some bit in it was set twice.  A key can be forgotten by clearing its bits in regions without such a
collision: nobody else uses them.  (Rothenberg et al., "The Deletable Bloom filter", 2010.)
"""

from dlbf.kernels.cells cimport Cells, cells_at, cells_get, cells_put, cells_start, cells_step
from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.types cimport uint8_t, uint32_t, uint64_t

ctypedef struct Deletable:
    Cells cells               # classic, one bit each
    uint64_t n_regions
    uint64_t region_cells     # cells in a region, rounded up


cdef inline uint64_t deletable_flag(const Deletable* g, uint64_t cell) noexcept nogil:
    """The bit that says whether the cell's region has seen a collision."""
    return g.cells.n_cells + cell // g.region_cells


cdef inline void deletable_add(const Deletable* g, uint8_t* data, uint64_t h) noexcept nogil:
    cdef uint64_t x = h, cell
    cdef uint32_t _i
    for _i in range(g.cells.n_hashes):
        cell = cells_at(&g.cells, h, x)
        # A key that probes one cell twice collides with itself; counting that is safe and simple.
        if cells_get(&g.cells, data, cell):
            cells_put(&g.cells, data, deletable_flag(g, cell), 1)
        else:
            cells_put(&g.cells, data, cell, 1)
        x = cells_step(x)


cdef inline bint deletable_clear(const Deletable* g, uint8_t* data, uint64_t h) noexcept nogil:
    """Clear what nobody else can be using; whether anything was."""
    cdef uint64_t x = h, cell
    cdef uint32_t _i
    cdef bint cleared = False
    for _i in range(g.cells.n_hashes):
        cell = cells_at(&g.cells, h, x)
        if not cells_get(&g.cells, data, deletable_flag(g, cell)):
            cells_put(&g.cells, data, cell, 0)
            cleared = True
        x = cells_step(x)
    return cleared


cdef class DeletableCore(FilterCore):
    cdef Deletable geometry
