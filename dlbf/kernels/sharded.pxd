"""Many filters as one: a key's hash says which of them, its *shard*, has it.

The top bits of the hash are the number of the shard.  All keys of a shard have them in common, so the shard sees the
hash mixed once more (``SHARD_ID``), which spreads its keys over its whole table again.

A shard that was not opened yet is NULL in ``cores``: it is opened when a key of its is asked for.  One that is damaged
or missing is a filter that lets everything pass.

A question for one key would touch the fields of another object for every shard, which are never in the processor's
nearest cache.  So what a question needs of a table is copied to one cache line, a ``Probe`` of 64 bytes: one for each
shard or, if shards are learned, for each region of each shard.  Model and thresholds, and what kind of table a region
has, are the same in all shards; ``router`` has them.  Shards that have no probe (its ``data`` is NULL) are asked
through their class; where no shard has one, batches gather the keys of each.

Threads: the gate of the whole is the only one.  Shards are put in under the GIL, the pointers to them last, beside
batches that are at work on other shards.  They are replaced, and their probes changed, only by who has the gate to
write (``_replace_shard``): a batch keeps the gate from a pointer's first use to its last.  No shard is given to
users, who could close it; what they get are copies.
"""

from dlbf.kernels.cells cimport Cells
from dlbf.kernels.composite cimport MAX_REGIONS, CompositeCore
from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.cuckoo cimport Cuckoo
from dlbf.kernels.keys cimport KeyChunk
from dlbf.kernels.ribbon cimport Ribbon
from dlbf.kernels.types cimport uint8_t, uint32_t, uint64_t

cdef enum:
    # The filter id of every shard.
    SHARD_ID = 0x53

cdef union Geometry:
    Cuckoo cuckoo
    Ribbon ribbon
    Cells cells

ctypedef struct Probe:
    Geometry geometry
    const uint8_t* data


# What questions follow without the GIL.
ctypedef struct Places:
    void** cores                            # the filter of each shard; NULL: it is not open
    int shift                               # of a hash, to the number of its shard
    Probe* probes                           # ``n_regions`` of each shard, one after the other; NULL: there are none
    uint32_t n_regions
    uint32_t kind[MAX_REGIONS]              # of the tables that probes are of
    uint64_t table_id[MAX_REGIONS]          # with which hashes are mixed for them; 0: not at all


cdef class ShardedCore(FilterCore):
    cdef list filters           # by number; of a shard that is not open, or lets everything pass, its number of keys
    cdef list room              # of what ``at`` points to
    cdef Places at
    cdef CompositeCore router   # whose model and thresholds all shards share; None: they are plain
    cdef FilterCore maybe
    cdef readonly Py_ssize_t n_shards
    cdef Py_ssize_t wanted      # shard that the last change could not be made in

    cdef bint _set_kinds(self) noexcept
    cdef int _check_shard(self, Py_ssize_t number, FilterCore filter) except -1
    cdef int _put_in(self, Py_ssize_t number, FilterCore filter) except -1
    cdef bint _fill_probes(self, FilterCore filter, Probe* probe, const uint8_t** data) except -1
    cdef const Probe* _probe_of(self, Py_ssize_t number) noexcept nogil
    cdef void _contains_plain(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil
    cdef void _contains_gathered(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil
    cdef bint _probe_one(self, const Probe* probe, uint64_t h, const uint8_t* key, size_t n) noexcept nogil
