"""The filter every kernel derives from: a hash, leaves over a flat buffer, and the entry points.

A kernel fills in the leaves below.  Contract of the leaves:

* they get a key's hash (already separated by filter id) and, for exact sets, the key itself;
* they trust their input and never fail; ``_add`` answers 1, or 0 when there is no room, or -1 when the key
  cannot be taken, and then has changed nothing; ``_remove`` answers ``KEY_ABSENT`` when the key is certainly not
  there, or ``KEY_NO_ROOM`` when remembering the removal needs room, and then has changed nothing;
* they run without the GIL, readers beside readers, a writer alone (the gate sees to that).
"""

from dlbf.kernels.hashing cimport HashKey
from dlbf.kernels.keys cimport KeyChunk
from dlbf.kernels.payload cimport PayloadCore
from dlbf.kernels.types cimport uint8_t, uint64_t

cdef enum:
    KEY_NO_ROOM = -2    # nothing changed; make room and try again
    KEY_ABSENT = -1     # certainly was not there; nothing changed
    KEY_MAYBE = 0       # removed, but the filter still answers "maybe"
    KEY_REMOVED = 1     # removed, and the filter now answers "absent"

cdef enum:
    # Most places in the payload that one query looks at.
    MAX_PLACES = 256


cdef class FilterCore(PayloadCore):
    cdef HashKey hash_key
    cdef readonly uint64_t filter_id
    cdef uint64_t n_items

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil
    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil
    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil
    cdef uint64_t _count(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil
    cdef void _zero(self) noexcept nogil
    cdef void _prefetch(self, uint64_t h) noexcept nogil
    cdef int _places(self, uint64_t h, uint64_t* out) noexcept nogil
    cdef void _contains_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil
    cdef Py_ssize_t _add_chunk(
        self, const KeyChunk* chunk, const uint64_t* hashes, Py_ssize_t i, int* answer
    ) noexcept nogil
    cdef Py_ssize_t _remove_chunk(
        self, const KeyChunk* chunk, const uint64_t* hashes, Py_ssize_t i, uint8_t* out
    ) noexcept nogil
    cdef void _regions_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil

    cdef void _hash_chunk(self, const KeyChunk* chunk, uint64_t* out) noexcept nogil
    cdef uint64_t _hash_one(self, key) except? 0
    cdef bytearray _ask_many(self, object keys, bint regions, bytearray kept=*)
    cdef bytearray _change_many(self, object keys, bint removing)
    cdef bint _contains_other(self, key) except -1
    cdef int _check_places(self, uint64_t h) except -1


# --- the leaves, for other kernels


cdef inline bint filter_contains(FilterCore filter, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
    return filter._contains(h, key, n)


cdef inline void filter_hash_chunk(FilterCore filter, const KeyChunk* chunk, uint64_t* out) noexcept nogil:
    filter._hash_chunk(chunk, out)


cdef inline void filter_contains_chunk(
    FilterCore filter, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out
) noexcept nogil:
    filter._contains_chunk(chunk, hashes, out)


cdef inline int filter_add(FilterCore filter, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
    return filter._add(h, key, n)


cdef inline int filter_remove(FilterCore filter, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
    return filter._remove(h, key, n)


cdef inline void filter_prefetch(FilterCore filter, uint64_t h) noexcept nogil:
    filter._prefetch(h)


cdef inline int filter_make_room(FilterCore filter, size_t n_key_bytes) except -1:
    """After ``KEY_NO_ROOM``, or an ``_add`` that answered 0: returns when there is some, or raises; takes the gate."""
    filter._make_room(n_key_bytes)
    return 0
