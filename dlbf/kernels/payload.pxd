"""The buffer that a filter works on: somebody else's memory, a gate in front of it, and sums to check it by."""

from dlbf.kernels.types cimport Export, Gate, uint8_t


cdef class ChunkSums:
    cdef bytes sums
    cdef bytearray checked
    cdef Py_ssize_t chunk_bytes


cdef class PayloadCore:
    cdef object __weakref__
    cdef object owner
    cdef Export taken
    cdef bint writable
    cdef bint inherited         # the file of the process that this one was forked from
    cdef uint8_t* data
    cdef readonly Py_ssize_t n_payload_bytes
    cdef Gate gate
    cdef dict readers           # thread -> open dlbf.capi.FilterReaders it has made; None: nobody has any
    cdef ChunkSums sums         # of a mapped file; None: all of it may be trusted
    cdef Py_ssize_t n_unchecked

    cdef int _take(self, object buffer, object sums, Py_ssize_t chunk_bytes) except -1
    cdef int _check_chunk(self, Py_ssize_t i) except -1
    cdef int _need_open(self) except -1
    cdef int _need_writable(self) except -1
    cdef int _hold(self, size_t thread, int change) except -1
    cdef int _need_no_reader(self) except -1


# --- for other kernels


cdef inline int payload_need_writable(PayloadCore payload) except -1:
    """An error if the buffer cannot be changed by this thread now."""
    return payload._need_writable()


cdef inline int payload_hold(PayloadCore payload, size_t thread, int change) except -1:
    """A thread has one FilterReader more or less."""
    return payload._hold(thread, change)


cdef inline int payload_check(PayloadCore payload) except -1:
    """Compare what is left of a mapped file with its sums."""
    payload._check_all()
    return 0
