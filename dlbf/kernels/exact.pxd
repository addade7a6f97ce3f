"""Exact set of keys: no false answers at all, for the few keys where even one is too many.

::

    offset       width      field
         0           8      number of keys
         8           8      bytes of the arena in use
        16     8 * slots    slots, open addressing with linear probing: 0 = free, else 1 + offset into the arena
         ...       arena    per key: hash (8), length (4), the key's bytes; padded to a multiple of 4

A removed key leaves no tombstone: later entries of its run move up.  Its bytes stay in the arena until the set
moves to a larger buffer or, where it cannot (a mapped file), is written anew in its place.
"""

from cpython.buffer cimport Py_buffer

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.types cimport load32, load64, mulhi64, prefetch, store64, uint8_t, uint32_t, uint64_t

cdef enum:
    EXACT_HEAD_BYTES = 16
    EXACT_ENTRY_BYTES = 12

ctypedef struct Exact:
    uint64_t n_slots
    uint64_t arena_bytes


cdef inline uint64_t exact_home(const Exact* g, uint64_t h) noexcept nogil:
    return mulhi64(h, g.n_slots)


cdef inline const uint8_t* exact_arena(const Exact* g, const uint8_t* data) noexcept nogil:
    return data + EXACT_HEAD_BYTES + 8 * g.n_slots


cdef inline uint64_t exact_slot(const uint8_t* data, uint64_t slot) noexcept nogil:
    return load64(data + EXACT_HEAD_BYTES + 8 * slot)


cdef bint exact_find(
    const Exact* g, const uint8_t* data, uint64_t h, const uint8_t* key, size_t n, uint64_t* slot,
) noexcept nogil
cdef int exact_add(const Exact* g, uint8_t* data, uint64_t h, const uint8_t* key, size_t n) noexcept nogil
cdef bint exact_remove(const Exact* g, uint8_t* data, uint64_t h, const uint8_t* key, size_t n) noexcept nogil


cdef class ExactCore(FilterCore):
    cdef Exact geometry

    cdef int _pour(self, const Exact* larger, Py_buffer* view) except -1
