"""The journal in bytes: operations of a transaction, records, and blocks of records; see storage/layout.py."""

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.types cimport uint8_t, uint64_t

cdef enum:
    # Bytes of a record before its operations.
    RECORD_HEAD_BYTES = 40
    # The flag of a record that removes a key.
    RECORD_REMOVED = 2


cdef class OperationLog:
    cdef bytearray buffer
    cdef Py_ssize_t size
    cdef readonly Py_ssize_t n_added
    cdef readonly Py_ssize_t n_removed
    cdef readonly Py_ssize_t n_most       # most keys there were on the way, over those at the start

    cdef int _append(self, bytes key, int removal) except -1
    cpdef added(self, bytes key)
    cpdef removed(self, bytes key)
    cpdef clear(self)
    cpdef bytes record(self, uint64_t txn_id, uint64_t generation, uint64_t flags, bint with_operations=*)


cdef class Tail:
    cdef readonly bytearray value
    cdef uint8_t* data
    cdef Py_ssize_t n_bytes            # of the block so far
    cdef readonly uint64_t last        # transaction of the newest record in it; 0: it is empty
    cdef public uint64_t known         # committed state that it is of, by its transaction; 0: not known

    cdef Py_ssize_t room(self) noexcept
    cdef uint8_t* frame(self, Py_ssize_t n_bytes) noexcept
    cpdef bint stage(self, bytes record, uint64_t txn_id) except -1


cdef enum:
    # Most bytes of the number before a key.
    NUMBER_BYTES = 10

cdef Py_ssize_t put_operation(uint8_t* out, bytes key, int removal) noexcept
cdef void put_head(
    uint8_t* out, Py_ssize_t size, uint64_t txn_id, uint64_t generation, uint64_t flags, uint64_t n_operations,
) noexcept
cdef Py_ssize_t apply_operations(
    FilterCore core, const uint8_t* record, Py_ssize_t size, bytes upto, const uint64_t* known_hashes=*
) except -1

cpdef reached(str name)
