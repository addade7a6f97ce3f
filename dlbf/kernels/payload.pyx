"""The buffer of a filter: taking it, letting go of it, who may change it, and the checking of mapped files.

fork() copies a filter as it is at that moment and none of the threads at work on it, so ``os.fork`` waits until no
batch is under way; what a child inherits is whole, and nothing in it waits for a thread that is not there.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.pythread cimport PyThread_get_thread_ident

from dlbf.kernels.hashing cimport xxh3
from dlbf.kernels.types cimport Crowd, gate_pause, gate_write, gate_write_done, load64, unlikely

import os
from _thread import allocate_lock
from time import monotonic

from dlbf.errors import ChecksumError, DlbfError, ReadOnlyError

# A batch takes less than a second; only a fork inside a batch (in a signal handler) can wait this long.
cdef double FORK_PATIENCE_SECONDS = 10.0

cdef Crowd crowd
crowd.inside = 0
crowd.forker = 0
cdef object fork_turn = allocate_lock()


def _before_fork():
    """Keep batches out of all filters, and wait for those that are under way.

    No signal handler may run here: Python only prints what it raises, and forks before the batches have ended.
    """
    cdef double end = monotonic() + FORK_PATIENCE_SECONDS
    if crowd.forker == PyThread_get_thread_ident():
        return
    while not fork_turn.acquire(False):
        gate_pause()
    crowd.forker = PyThread_get_thread_ident()
    while crowd.inside > 0 and monotonic() < end:
        gate_pause()


def _after_fork():
    """Let them in again."""
    if crowd.forker == PyThread_get_thread_ident():
        crowd.forker = 0
        fork_turn.release()


def _after_fork_in_child():
    """Let them in again; there are no others any more."""
    global fork_turn
    crowd.forker = 0
    crowd.inside = 0
    fork_turn = allocate_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )


cdef class ChunkSums:
    """The sums of a mapped file's chunks, and which chunks have been compared with theirs."""

    def __cinit__(self, sums, Py_ssize_t chunk_bytes, Py_ssize_t n_chunks):
        self.sums = bytes(sums)
        self.checked = bytearray(n_chunks)
        self.chunk_bytes = chunk_bytes


cdef class PayloadCore:
    """A flat buffer; ``FilterCore`` is the filter over it."""

    def __cinit__(self):
        # All else is zero: no buffer, nobody at the gate.
        self.gate.crowd = &crowd

    def __dealloc__(self):
        PyBuffer_Release(&self.taken.view)  # which does nothing if there is none

    # --- the buffer

    cdef int _take(self, object buffer, object sums, Py_ssize_t chunk_bytes) except -1:
        """Work on ``buffer`` from now on; with ``sums`` each chunk is checked before its first use."""
        cdef Py_buffer view
        cdef bint writable = True
        try:
            PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        except BufferError:
            writable = False
            PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        self._detach()
        self.taken.view = view
        self.writable = writable and sums is None
        self.inherited = False
        self.owner = buffer
        self.data = <uint8_t*>view.buf
        self.n_payload_bytes = view.len
        if sums is not None:
            self.n_unchecked = (view.len + chunk_bytes - 1) // chunk_bytes
            self.sums = ChunkSums(sums, chunk_bytes, self.n_unchecked)
        return 0

    def _detach(self):
        """Let go of the buffer; every later operation raises ValueError."""
        if self.data != NULL:
            self._need_no_reader()
            gate_write(&self.gate)
            PyBuffer_Release(&self.taken.view)
            self.data = NULL
            self.writable = False
            gate_write_done(&self.gate)
        self.owner = None
        self.sums = None
        self.n_unchecked = 0

    def _inherit(self):
        """In a child of fork(): the buffer is shared with the parent, which no gate keeps apart from this process."""
        self.inherited = self.writable
        self.writable = False

    def _payload(self):
        """The buffer itself as a memoryview, all of it checked; whoever writes to it must be alone."""
        self._check_all()
        view = memoryview(self.owner).cast("B")
        return view if self.writable else view.toreadonly()

    cdef int _need_open(self) except -1:
        if unlikely(self.data == NULL):
            raise ValueError("this filter is closed")
        return 0

    cdef int _need_writable(self) except -1:
        if unlikely(not self.writable):
            self._need_open()
            if self.inherited:
                raise ReadOnlyError(
                    "this filter is a file that the process before fork() has open with mode='r+', and that alone "
                    "changes it; open the file here when it is closed there, or change a copy (filter.copy())"
                )
            raise ReadOnlyError(
                "this filter is mapped read-only; open it with mode='r+', or change a copy (filter.copy())"
            )
        return self._need_no_reader()

    def _check_readers(self):
        """DlbfError if this thread has a FilterReader of the filter."""
        self._need_no_reader()

    cdef int _need_no_reader(self) except -1:
        """A thread that waits for a reader of its own would wait for ever."""
        if unlikely(self.readers is not None) and PyThread_get_thread_ident() in self.readers:
            raise DlbfError("this thread has a FilterReader of the filter; close() it before changing the filter")
        return 0

    @property
    def _is_held(self):
        """Whether any thread has a FilterReader of this filter."""
        return self.readers is not None

    cdef int _hold(self, size_t thread, int change) except -1:
        """A thread has one reader more or less."""
        if self.readers is None:
            self.readers = {}
        held = self.readers.get(thread, 0) + change
        if held:
            self.readers[thread] = held
        else:
            del self.readers[thread]
            if not self.readers:
                self.readers = None
        return 0

    @property
    def is_writable(self):
        """Whether keys can be added: False for a file mapped with ``mode="r"``, and once it is closed."""
        return bool(self.writable)

    @property
    def closed(self):
        """Whether :meth:`close` was called."""
        return self.data == NULL

    # --- checking what is mapped

    cdef int _check_chunk(self, Py_ssize_t i) except -1:
        cdef uint8_t* checked = <uint8_t*>PyByteArray_AS_STRING(self.sums.checked)
        cdef Py_ssize_t n_bytes = self.sums.chunk_bytes
        cdef Py_ssize_t start = i * n_bytes
        cdef const uint8_t* sums = <const uint8_t*><char*>self.sums.sums
        if checked[i]:
            return 0
        if xxh3(self.data + start, min(n_bytes, self.n_payload_bytes - start)) != load64(sums + 8 * i):
            raise ChecksumError(
                f"chunk {i} of the mapped filter does not match its checksum; restore the file or build it again"
            )
        checked[i] = 1
        self.n_unchecked -= 1
        return 0

    def _check_all(self):
        """Check every chunk of a mapped file that has not been checked yet."""
        cdef Py_ssize_t i
        self._need_open()
        if self.n_unchecked:
            for i in range(len(self.sums.checked)):
                self._check_chunk(i)
