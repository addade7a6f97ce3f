"""Many filters as one: a key's hash says which of them, its *shard*, has it.

The top bits of the hash are the number of the shard.  All keys of a shard have them in common, so the shard sees the
hash mixed once more (``SHARD_ID``), which spreads its keys over its whole table again.

A shard that was not opened yet is NULL in ``cores``: it is opened when a key of its is asked for.  One that is damaged
or missing is a filter that lets everything pass.

Threads: the gate of the whole is the only one.  Shards are put in under the GIL and never replaced while somebody may
be at work on them (``_drop`` takes the gate).
"""

from dlbf.kernels.core cimport FilterCore

cdef enum:
    # The filter id of every shard.
    SHARD_ID = 0x53


cdef class ShardedCore(FilterCore):
    cdef list filters           # by number; of a shard that is not open, or lets everything pass, its number of keys
    cdef bytearray room         # of ``cores``
    cdef void** cores
    cdef FilterCore maybe
    cdef readonly Py_ssize_t n_shards
    cdef int shift
    cdef Py_ssize_t wanted      # shard that the last change could not be made in
