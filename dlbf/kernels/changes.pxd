"""Changes of a store's data: a single key in a transaction of its own, and many in one."""

from dlbf.kernels.environment cimport WritesCore, Writing
from dlbf.kernels.journal cimport OperationLog
from dlbf.kernels.ledger cimport LedgerCore
from dlbf.kernels.lmdblog cimport LmdbLogCore
from dlbf.kernels.lookup cimport LookupCore
from dlbf.kernels.traffic cimport TrafficCore
from dlbf.kernels.types cimport uint64_t


cdef class SingleChanges:
    cdef WritesCore writes
    cdef LmdbLogCore log
    cdef LedgerCore ledger
    cdef TrafficCore traffic
    cdef OperationLog operations
    cdef object txn_id             # methods of LMDB's transactions
    cdef object txn_put
    cdef object txn_delete
    cdef object txn_commit
    cdef tuple map_errors          # LMDB's "somebody made the map larger" and "the map is full"
    cdef Py_ssize_t max_plain_bytes
    cdef public Py_ssize_t n_allowed     # how many may follow before somebody must look whether a larger filter is due
    cdef uint64_t allowed_at       # when that was said, in takings of the write lock

    cdef bint may_be_quick(self, object key) noexcept
    cdef int change(self, bytes key, object value) except -2


cdef class StoreCore(LookupCore):
    cdef public SingleChanges _changes

    cdef int _quick_change(self, object key, object value) except -2


cdef class PutPath:
    cdef Writing writing
    cdef public object _txn        # LMDB's transaction; None: it has ended
    cdef public list _redo         # the changes so far, if it may have to make them again; or None
    cdef object plain_put          # the put of LMDB's transaction; None: every put is a slow one
    cdef object full_error         # LMDB's "the map is full"
    cdef OperationLog plain_log
    cdef Py_ssize_t max_plain_bytes
    cdef public bint _dirty        # whether anything was written
    cdef public bint _torn         # a change was begun and not ended: data and journal may not say the same
