"""The composite: a model and base filters as one filter, evaluated in one go.

::

    query(x) = initial(x)  AND  member[r](x)  AND NOT deleted[r](x)      with r = region(score(x))

Every design of ``dlbf.theory.designs`` is data for this one kernel.  It calls the leaves of the base filters it knows
(``PART_*``) directly, and those of any other in the table of ``dlbf.filters.kinds`` as ``core.pxd`` has them, through
the filter's class: a few nanoseconds more for each question.  All parts live in one flat buffer, described by
a directory at its start, so a composite is saved, mapped and copied like any other filter.

::

    offset  width   field (all little-endian)
         0      4   u32  number of score regions R, 1 .. 16
         4      4   u32  number of parts
         8      4   u32  flags: bit 0 = the model sees the hash instead of the key
                               bit 1 = every part has a key of its own, derived from the secret
        12      4   u32  zero
        16     64   i32  thresholds[16]: region r has thresholds[r - 1] <= score < thresholds[r]; unused ones zero
        80     88   u64  parameters[11] of the model, as in its own header
       168     16   u64  offset and size of the model's payload
       184     16   u64  offset and size of the plan (JSON, for people)
       200      8   u64  keys that answer "maybe" without being stored anywhere ("all" regions)
       208  80 * n  parts: u32 role (0 initial, 1 member, 2 deleted), u32 region, u32 kind, u32 zero,
                           u64 offset, u64 size, u64 filter id, u64 parameters[5] of the kind

One region without a model, whose only part is its member filter, has no directory: the filter costs what its base
filter costs alone.  The payload is the part and then the plan, and what the directory would say is in the header's
parameters: 4 the payload's size, 5 the plan's size, 6 the flags, 7 the kind of the part, 8 to 12 its parameters.
Where there is a directory, parameters 5 to 12 are zero.

Members may share one range of bytes: that is how one array serves all regions of the ada designs.  Otherwise the
directory, the model, the plan and the parts lie apart from each other, or the filter is refused: a part written to
must not change what was checked when the filter was opened.
"""

from dlbf.kernels.cells cimport Cells
from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.cuckoo cimport Cuckoo
from dlbf.kernels.deletable cimport Deletable
from dlbf.kernels.dleft cimport DLeft
from dlbf.kernels.elastic cimport Elastic
from dlbf.kernels.exact cimport Exact
from dlbf.kernels.keys cimport KeyChunk
from dlbf.kernels.ribbon cimport Ribbon
from dlbf.kernels.scoring cimport Model, model_score
from dlbf.kernels.succinct cimport Succinct
from dlbf.kernels.types cimport int32_t, store64, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    MAX_REGIONS = 16

cdef enum:
    # The base filters whose leaves are called directly, by their numbers in the table of dlbf.filters.kinds.
    PART_ALL = 0            # no filter: everything passes
    PART_BITS = 1
    PART_COUNTERS = 2
    PART_DELETABLE = 3
    PART_DLEFT = 4
    PART_CUCKOO = 5
    PART_EXACT = 6
    PART_SUCCINCT = 7
    PART_RIBBON = 8
    PART_ELASTIC = 10

ctypedef struct Part:
    uint32_t kind
    bint can_forget
    bint may_be_full
    bint is_static
    uint64_t filter_id
    uint8_t* data
    uint64_t n_bytes
    void* core              # the FilterCore of a kind that is not a PART_* above; kept alive by CompositeCore.kept
    Cells cells
    Cuckoo cuckoo
    DLeft dleft
    Deletable deletable
    Exact exact
    Succinct succinct
    Ribbon ribbon
    Elastic elastic

ctypedef struct Composite:
    uint32_t n_regions
    bint hides_score
    bint has_initial
    bint has_deleted
    bint is_static          # a part is built once, so no key can be added
    int32_t thresholds[MAX_REGIONS]
    Model model
    Part initial
    Part member[MAX_REGIONS]
    Part deleted[MAX_REGIONS]


# --- the region of a key, for other kernels


cdef inline uint32_t composite_region(
    const Composite* c, uint64_t h, const uint8_t* key, size_t n,
) noexcept nogil:
    cdef int32_t score
    cdef uint32_t r = 0
    cdef uint32_t i
    cdef uint8_t hidden[8]
    if c.n_regions == 1:
        return 0
    if c.hides_score:
        # The model sees only the keyed hash, so nobody without the secret can choose a score.
        store64(hidden, h)
        score = model_score(&c.model, hidden, 8)
    else:
        score = model_score(&c.model, key, n)
    for i in range(c.n_regions - 1):
        r += score >= c.thresholds[i]
    return r


cdef void composite_regions(
    const Composite* c, const KeyChunk* chunk, const uint64_t* hashes, const uint16_t* at, Py_ssize_t n, uint8_t* out,
) noexcept nogil


cdef class CompositeCore(FilterCore):
    cdef Composite composite
    cdef list kept             # what the parts and the model point to besides the buffer
    cdef uint8_t* unstored     # the count in the directory; in a filter without one `always_zero`
    cdef uint64_t always_zero

    cdef FilterCore _load_part(
        self, Part* part, const uint8_t* d, uint32_t number, bint own_keys, list ranges, dict arrays
    )
    cdef void _counted(self, const Part* member, int change) noexcept nogil
