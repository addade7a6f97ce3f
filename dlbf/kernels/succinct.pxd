"""Succinct counters: a Bloom filter for queries, exact counts beside it, two bits per cell for both.

::

    | bit of every cell: "not zero" | counts: a word for each 64 cells | overflow: n_slots * 64 bytes |
      8 bytes per 64 cells            8 bytes per 64 cells

The first part is a plain Bloom filter, and a query is one: it touches nothing else, so it is as fast as with bits
that cannot forget.  The 64 cells of a *group* share a bit word and a count word.  The count word has, for each cell
that is not zero, in order, its count in unary, lowest bit first: count - 1 ones, then a zero.

::

    cells 3, 17, 40 hold 1, 3, 2:   bit word  2^3 + 2^17 + 2^40      count word, lowest bit first  0 110 10 000...

So it is as long as the sum of the group's counts, a cell's rank in the bit word finds its code, one more is one bit
inserted there and one less is one bit deleted, whatever the count was.  Bits past the end are zero.

Sums up to 64 fit: the last bit of a full word ends a code and is zero.  That bit set means that the group has
outgrown its word: the rest is the number of a *slot*, 64 counters of 8 bits.  The group goes back as soon as its
sum is 64 again, and its slot is zeroed, which is what "free" looks like.  Counters of a slot that
reach 255 stay there.  With no free slot the addition fails and has changed nothing: counts are never dropped, so
whatever could be added can be removed.

A group's two words change one after the other.  A process killed in between leaves counts that belong to other
cells, and nothing in the table shows it: a file that was not closed must not be trusted, and is refused.

Limits: the sum of a group is about Poisson, 40 to 45 at capacity; ``dlbf.geometry`` plans enough slots for
capacity and a tenth more, and a filter well past that is full.  A key added more than some fifty times takes
a slot in every group it touches.
"""

from dlbf.kernels.cells cimport Cells, CellsCore, cells_contains, cells_prefetch
from dlbf.kernels.types cimport load64, popcount64, select64, uint8_t, uint32_t, uint64_t

cdef enum:
    SUCCINCT_GROUP = 64           # cells of a group, bits of a word, bytes of a slot
    SUCCINCT_MAX_COUNT = 255
    SUCCINCT_MAX_HASHES = 64

ctypedef struct Succinct:
    Cells cells                   # the bit words as an array of 1-bit cells
    uint64_t n_groups
    uint64_t n_slots              # at least 1


cdef inline uint64_t succinct_bits_at(const Succinct* g, uint64_t group) noexcept nogil:
    """Offset in bytes of a bit word."""
    return 8 * group


cdef inline uint64_t succinct_code_at(const Succinct* g, uint64_t group) noexcept nogil:
    """Offset in bytes of a count word."""
    return 8 * (g.n_groups + group)


cdef inline uint64_t succinct_slot_at(const Succinct* g, uint64_t slot) noexcept nogil:
    """Offset in bytes of an overflow slot.

    The number comes from the table.  A table from outside may hold any number, so it is limited here, where it costs
    nothing: only one group in hundreds has a slot.
    """
    return 16 * g.n_groups + SUCCINCT_GROUP * (slot if slot < g.n_slots else g.n_slots - 1)


cdef inline bint succinct_outgrown(uint64_t code) noexcept nogil:
    return (code >> 63) != 0


cdef inline uint64_t succinct_slot(uint64_t code) noexcept nogil:
    return code & ~(<uint64_t>1 << 63)


cdef inline int succinct_start(uint64_t bits, uint64_t code, uint64_t cell) noexcept nogil:
    """Bit of the count word at which the code of ``cell`` starts, or would be inserted."""
    cdef int rank = popcount64(bits & ((<uint64_t>1 << (cell & 63)) - 1))
    # After as many codes as there are lower cells; each ends with a zero.  (The mask is for tables from outside.)
    return (select64(~code, rank - 1) + 1) & 63 if rank else 0


cdef inline bint succinct_contains(const Succinct* g, const uint8_t* data, uint64_t h) noexcept nogil:
    return cells_contains(&g.cells, data, h)


cdef inline void succinct_prefetch(const Succinct* g, const uint8_t* data, uint64_t h) noexcept nogil:
    """For a query; writing touches the count words too."""
    cells_prefetch(&g.cells, data, h)


cdef inline uint8_t succinct_get(const Succinct* g, const uint8_t* data, uint64_t cell) noexcept nogil:
    """The count of a cell."""
    cdef uint64_t group = cell // SUCCINCT_GROUP
    cdef uint64_t bits = load64(data + succinct_bits_at(g, group))
    cdef uint64_t code
    if not (bits >> (cell & 63)) & 1:
        return 0
    code = load64(data + succinct_code_at(g, group))
    if succinct_outgrown(code):
        return data[succinct_slot_at(g, succinct_slot(code)) + (cell & 63)]
    code >>= succinct_start(bits, code, cell)
    # The ones at the low end and the zero above them.
    return <uint8_t>popcount64(code ^ (code + 1))


cdef void succinct_set_geometry(Succinct* g, uint64_t n_cells, uint32_t n_hashes, uint64_t n_slots) noexcept nogil
cdef bint succinct_add(const Succinct* g, uint8_t* data, uint64_t h) noexcept nogil
cdef bint succinct_subtract(const Succinct* g, uint8_t* data, uint64_t h) noexcept nogil
cdef uint8_t succinct_least(const Succinct* g, const uint8_t* data, uint64_t h) noexcept nogil
cdef bint succinct_is_sound(const Succinct* g, const uint8_t* data, uint8_t* seen) noexcept nogil


cdef class SuccinctCore(CellsCore):
    cdef Succinct succinct
