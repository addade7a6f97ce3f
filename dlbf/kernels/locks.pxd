"""Locks that no exception of a signal handler can leave taken."""

from dlbf.kernels.types cimport uint64_t

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident()


cdef class LedgerLock:
    cdef bint held
    cdef uint64_t owner
    cdef list waiting            # a closed lock for each thread that waits

    cpdef bint acquire(self, bint blocking=*) except -1
    cpdef release(self)


cdef class OwnLock:
    cdef object lock
    cdef uint64_t owner          # thread that has it; 0: none
