"""Keys as C sees them: a pointer and a length.

One key (``KeyRef``): bytes as they are, str as UTF-8, any other contiguous buffer.
Many keys (``KeyReader``): a stream of batches, each readable chunk by chunk without the GIL; ``open_keys`` of ``keys``
has one for every kind of batch.
"""

from cpython.buffer cimport Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE

from dlbf.kernels.types cimport uint8_t, uint64_t

cdef enum:
    # Keys per chunk: large enough to fill the pipelines of hashing and probing, small enough that what
    # they keep for each key stays in the first-level cache.
    CHUNK_KEYS = 2048
    # Objects taken in one hold of the GIL.  Two threads that ask for it wait for each other, which costs as much as
    # a few thousand keys, so the more the better, as long as those that are let go and those that are
    # taken next are in the second-level cache together.
    HELD_KEYS = 8192

ctypedef struct KeyRef:
    const uint8_t* data
    size_t n_bytes
    bint has_view
    Py_buffer view

ctypedef struct KeyChunk:
    Py_ssize_t n
    const uint8_t** data
    size_t* n_bytes
    # Of keys that were hashed, and routed, before: NULL if they were not.  There data and n_bytes are those of no key.
    const uint64_t* hashes
    const uint8_t* regions

cdef int key_open_other(object key, KeyRef* ref) except -1
cdef void key_close_view(KeyRef* ref) noexcept


cdef inline int key_open(object key, KeyRef* ref) except -1:
    """Fill ``ref`` from a key object; pair with ``key_close``.  ``key`` must outlive ``ref``."""
    if PyBytes_Check(key):
        ref.data = <const uint8_t*>PyBytes_AS_STRING(key)
        ref.n_bytes = PyBytes_GET_SIZE(key)
        ref.has_view = False
        return 0
    return key_open_other(key, ref)


cdef inline void key_close(KeyRef* ref) noexcept:
    if ref.has_view:
        key_close_view(ref)


cdef class KeyReader:
    cdef KeyChunk chunk                  # what next_chunk() gave
    cdef readonly Py_ssize_t n_read      # keys handed out in all chunks so far
    # Room for what a chunk points to.
    cdef bytearray pointer_bytes, length_bytes
    cdef const uint8_t** pointers
    cdef size_t* lengths
    cdef Py_ssize_t n_room

    cdef Py_ssize_t next_batch(self) except -1
    cdef Py_ssize_t next_chunk(self) noexcept nogil
    cdef int make_room(self, Py_ssize_t n) except -1
    cdef Py_ssize_t give(self, Py_ssize_t first, Py_ssize_t n) noexcept nogil
