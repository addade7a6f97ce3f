"""The log in LMDB's own transaction: the common append, and the commit."""

from dlbf.kernels.journal cimport Tail
from dlbf.kernels.log cimport LogCore
from dlbf.kernels.types cimport uint64_t


cdef class LmdbLogCore(LogCore):
    cdef readonly Tail tail
    cdef object put_record         # methods of LMDB's transactions
    cdef object commit_txn
    cdef object main_db
    cdef bytes tail_key

    cpdef append(self, txn, uint64_t position, bytes record)
