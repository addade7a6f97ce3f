"""A bounded set of keys that are known not to be there, for a filter that lets them pass.

An entry is the 128-bit keyed hash of a key (two SipHash-1-3 under random secrets of this process), so that another key
is taken for it once in 2^128 times.  Entries are in groups of eight buckets of eight; a key may be in one of two
buckets, both with the same number within their groups, which is the low three bits of the first hash.  These need not
be stored, and their place in the entry holds the flags.  Of sixteen entries the next in
turn that was not asked for makes way for a new one; when all of them were, that is forgotten.

::

    entry:  u64  the first hash, its low three bits replaced by flags: 1 = in use, 2 = asked for, 4 = was deleted
            u64  the second hash

Behind the entries there are tags of those that had to go: they tell a key that was forgotten from one that is new, for
the statistics only.

Nothing here is stored or shared between processes.  Whoever calls ``_enter``, ``_strike`` or ``_forget_all`` is alone;
readers may be many.
"""

from dlbf.kernels.hashing cimport HashKey
from dlbf.kernels.types cimport uint8_t, uint16_t, uint64_t

cdef enum:
    # Why a key that is entered had to be read.
    CAUSE_ORDINARY = 0
    CAUSE_DELETED = 1
    CAUSE_REPEATED = 2


cdef class AbsentSet:
    cdef uint64_t* entries
    cdef uint16_t* tags
    cdef uint64_t n_groups
    cdef uint64_t hand
    cdef readonly Py_ssize_t n_entries
    cdef readonly Py_ssize_t limit_bytes
    cdef readonly uint64_t n_answers     # questions that were answered from here
    cdef readonly uint64_t n_deleted     # keys entered by reading them that had been deleted,
    cdef readonly uint64_t n_repeated    # or that had been here before
    cdef HashKey first
    cdef HashKey second

    cdef bint _has(self, const uint8_t* key, size_t n) noexcept nogil
    cdef int _enter(self, const uint8_t* key, size_t n) noexcept nogil
    cdef int _put(self, const uint8_t* key, size_t n) noexcept nogil
    cdef bint _enter_deleted(self, const uint8_t* key, size_t n) noexcept nogil
    cdef bint _strike(self, const uint8_t* key, size_t n) noexcept nogil
    cdef void _forget_all(self) noexcept nogil
    cdef uint64_t* _find(self, uint64_t a, uint64_t b) noexcept nogil
    cdef uint64_t* _free(self, uint64_t a, uint64_t b) noexcept nogil
    cdef uint64_t* _evict(self, uint64_t a, uint64_t b) noexcept nogil
    cdef bint _grow(self) noexcept nogil


# --- for other kernels


cdef inline bint absent_has(AbsentSet absent, const uint8_t* key, size_t n) noexcept nogil:
    return absent.n_entries != 0 and absent._has(key, n)


cdef inline int absent_enter(AbsentSet absent, const uint8_t* key, size_t n) noexcept nogil:
    """A key was read and is not there; why it had to be read."""
    return absent._enter(key, n)


cdef inline bint absent_enter_deleted(AbsentSet absent, const uint8_t* key, size_t n) noexcept nogil:
    """A key was deleted; True if there was room for it."""
    return absent._enter_deleted(key, n)


cdef inline void absent_strike(AbsentSet absent, const uint8_t* key, size_t n) noexcept nogil:
    """A key is there now."""
    absent._strike(key, n)
