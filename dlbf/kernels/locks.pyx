"""Locks that no exception of a signal handler can leave taken.

The exception of a signal handler, Ctrl-C or a timeout, can come between any two steps of Python code, even between
``lock.acquire()`` and ``try``.  Compiled code has no such moments unless it calls Python or waits: so what must be
given back is taken and given back here, by objects for ``with``.
"""

from dlbf.kernels.types cimport unlikely

from _thread import allocate_lock

from dlbf.errors import StoreError


cdef class Held:
    """``with Held(lock, blocking) as taken``: hold a lock, or find out that somebody else does.

    With a ``timeout`` that is found out after so many seconds.  For a lock that ``with`` takes anyway, too: Python 3.14
    can be interrupted between ``__enter__`` and the block.
    """

    cdef object lock
    cdef bint blocking
    cdef double timeout          # below 0: none
    cdef bint taken

    def __init__(self, lock, bint blocking=True, double timeout=-1):
        self.lock = lock
        self.blocking = blocking
        self.timeout = timeout

    def __enter__(self):
        if self.timeout < 0:
            self.taken = self.lock.acquire(self.blocking)
        else:
            self.taken = self.lock.acquire(True, self.timeout)
        return bool(self.taken)

    cpdef end(self):
        """Give it back; a second time nothing happens."""
        if self.taken:
            self.taken = False
            self.lock.release()

    def __exit__(self, *exc_info):
        self.end()

    def __del__(self):
        self.end()


cdef class LedgerLock:
    """The lock of a ledger.  It costs next to nothing while nobody waits: only who has the GIL changes its fields.

    Not for the same thread twice: what a signal handler or a finalizer does in the middle of a change must not change
    the same again.  But a thread that waits may run a signal handler that takes it, so nobody is promised a turn: when
    it is given back everybody who waits tries again.
    """

    def __cinit__(self):
        self.waiting = []

    cpdef bint acquire(self, bint blocking=True) except -1:
        """Take it; False if somebody has it and the caller does not want to wait."""
        cdef uint64_t me = PyThread_get_thread_ident()
        while unlikely(self.held):
            if not blocking:
                return False
            if self.owner == me:
                raise StoreError(
                    "this thread is in the middle of a change of the store's filter; a signal handler or a finalizer "
                    "cannot write to the store then, or ask for its state. Do it later"
                )
            turn = allocate_lock()
            turn.acquire()
            # From here the GIL is not given up before we wait; until here finalizers may have run.
            if self.held:
                self.waiting.append(turn)
                turn.acquire()
        self.held = True
        self.owner = me
        return True

    cpdef release(self):
        """Give it back."""
        self.held = False
        self.owner = 0
        while unlikely(len(self.waiting) > 0):
            self.waiting.pop().release()

    def is_mine(self):
        """Whether this thread has it."""
        return self.held and self.owner == PyThread_get_thread_ident()


cdef class OwnLock:
    """A lock that a thread can ask whether it is its own, whatever signal handlers have interrupted."""

    def __cinit__(self):
        self.lock = allocate_lock()

    def acquire(self, bint blocking=True, double timeout=-1):
        """Take it; False if somebody has it and the caller does not want to wait (so long)."""
        if not self.lock.acquire(blocking, timeout):
            return False
        self.owner = PyThread_get_thread_ident()
        return True

    def release(self):
        """Give it back."""
        self.owner = 0
        self.lock.release()

    def is_mine(self):
        """Whether this thread has it."""
        return self.owner == PyThread_get_thread_ident()
