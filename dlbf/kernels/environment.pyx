"""An open LMDB environment: its read transactions, its one write transaction, and the map under both.

A read is done in a transaction that is kept open for the next one as long as no newer commit is seen: beginning one
costs as much as the read.  But an open transaction keeps LMDB from reusing pages, so somebody has to call
:meth:`EnvironmentCore.sweep` a few times per second while there are reads, and the last one is gone soon after them.

What is taken here and has to be given back (locks, counts, transactions) is taken and given back in compiled code, by
objects for ``with``; :mod:`dlbf.kernels.locks` says why.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_INCREF

from dlbf.kernels.ledger cimport word_newest
from dlbf.kernels.locks cimport PyThread_get_thread_ident
from dlbf.kernels.types cimport unlikely

import sys
from time import monotonic, sleep

from dlbf.errors import StoreError
from dlbf.kernels.filelock import Busy

cdef extern from *:
    """
    #include <stdint.h>
    #ifdef __linux__
    #include <sys/mman.h>
    #include <unistd.h>
    static void dlbf_release_pages(const void *p, size_t n) {
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        uintptr_t from = ((uintptr_t)p + page - 1) & ~(page - 1), to = ((uintptr_t)p + n) & ~(page - 1);
        if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
    }
    #else
    static void dlbf_release_pages(const void *p, size_t n) { (void)p; (void)n; }
    #endif
    """
    void release "dlbf_release_pages"(const void* p, size_t n)

# --- reading


cdef class KeptRead:
    """A read transaction that is kept open for the next read."""


cdef class EnvironmentCore:
    """Base of :class:`dlbf.storage.environment.Environment`, which brings ``check``, ``refuse_while_closing``,
    ``blame_disk``, ``cannot_read`` and ``start_sweeping``.
    """

    def __cinit__(self, *args, **kwargs):
        self.kept = KeptRead()
        self.word = Word()
        self.own_forks = fork_count
        self.reading_threads = {}

    def __del__(self):
        # What a child of fork() inherits it must never free: py-lmdb would give back the parent's slots in LMDB's table
        # of readers, which both processes share.
        if fork_count != self.own_forks:
            self.drop_kept()
            if self.begin is not None:
                Py_INCREF(self.begin)  # and the environment, which it is bound to

    def attach(self, handle, begin, tuple begin_errors):
        """LMDB's environment, its ``begin``, and errors after which beginning may succeed."""
        self.handle = handle
        self.begin = begin
        self.begin_errors = begin_errors

    def detach(self):
        """It is closed, or about to be."""
        self.begin = None

    def keep_reads(self, bint keep):
        """Whether a read may leave its transaction open for the next one."""
        self.kept.allowed = keep
        if not keep:
            self.drop_kept()

    cpdef drop_kept(self):
        """End the transaction that is being kept; False if there is none."""
        txn = self.kept.txn
        self.kept.txn = None
        self.end_txn(txn)
        return txn is not None

    cdef int end_txn(self, object txn) except -1:
        """Abort a transaction if it has not ended."""
        if txn is None:
            return 0
        if unlikely(fork_count != self.own_forks):
            Py_INCREF(txn)  # for ever: see __del__
        else:
            txn.abort()
        return 0

    def reads_itself(self):
        """Whether this thread has begun a snapshot or an iterator that has not ended."""
        return PyThread_get_thread_ident() in self.reading_threads

    cdef int blame_closing(self, object error) except -1:
        """An error has come: if another thread has closed the environment meanwhile, or the disk is full, tell that."""
        if error is None:
            return 0
        if self.handle is not None:
            if type(error).__module__.startswith("lmdb"):
                self.blame_disk(error)
            return 0
        # LMDB's, or of Python where there is nothing any more; others have other reasons.
        if isinstance(error, (AttributeError, TypeError)) or type(error).__module__.startswith("lmdb"):
            self.check()
        return 0

    def sweep(self):
        """End the kept transaction unless it was used since the last call; False if there was none to look at."""
        cdef KeptRead kept = self.kept
        if kept.txn is None and not kept.used:
            kept.watched = False
            return False
        if not kept.used:
            self.drop_kept()
        kept.used = False
        return True

    def was_forked(self):
        """Whether this process is a child of the one that opened the environment."""
        return fork_count != self.own_forks


cdef class LmdbSourceCore(SourceCore):
    """Base of :class:`dlbf.storage.lmdbsource.LmdbSource`, which brings ``fetch_slowly``."""

    cdef readonly EnvironmentCore environment
    cdef object data_db
    cdef Py_ssize_t max_plain_bytes

    def __init__(self, EnvironmentCore environment, data_db, Py_ssize_t max_plain_bytes):
        self.environment = environment
        self.data_db = data_db
        self.max_plain_bytes = max_plain_bytes

    def fetch(self, bytes key):
        """The value of a key, None if it is not there."""
        return self._fetch(key)

    cdef object _fetch(self, object key):
        cdef EnvironmentCore environment = self.environment
        cdef KeptRead kept = environment.kept
        cdef Py_ssize_t n = PyBytes_GET_SIZE(key)
        cdef object txn, value = None
        cdef uint64_t number = 0
        cdef bint again = False
        if unlikely(n == 0 or n > self.max_plain_bytes or environment.held or environment.begin is None):
            return self.fetch_slowly(key)
        environment.n_reading += 1
        try:
            # Taken out of its place while it is used, so no other thread can have it.
            txn = kept.txn
            number = kept.number
            kept.txn = None
            if txn is not None and number != word_newest(environment.word):
                txn.abort()
                txn = None
            if txn is None:
                txn = environment.begin(self.data_db)
                if kept.allowed:
                    number = txn.id()
            value = txn.get(key)
            # Others may have read, committed and put theirs back while LMDB was asked: only the newest view is kept,
            # and with its own number.
            if kept.allowed and kept.txn is None and not environment.held and number == word_newest(environment.word):
                kept.txn = txn
                kept.number = number
                kept.used = True
                if unlikely(not kept.watched):
                    kept.watched = True
                    try:
                        environment.start_sweeping()
                    except BaseException:
                        kept.watched = False
                        raise
            else:
                txn.abort()
        except environment.begin_errors:
            again = True
        except Exception as error:
            environment.blame_closing(error)
            raise
        finally:
            environment.n_reading -= 1
        return self.fetch_slowly(key) if unlikely(again) else value


cdef class Reading:
    """A read transaction, ``with Reading(environment) as txn``, counted so that the map does not move under it."""

    cdef EnvironmentCore environment
    cdef bint buffers
    cdef object thread           # that has begun it; None: it has not begun, or has ended
    cdef object txn

    def __init__(self, EnvironmentCore environment, bint buffers=False):
        self.environment = environment
        self.buffers = buffers

    def __enter__(self):
        cdef EnvironmentCore environment = self.environment
        while True:
            environment.check()
            self._count()
            try:
                self.txn = environment.handle.begin(buffers=self.buffers)
                return self.txn
            except BaseException as error:
                self.end()
                problem = error
            environment.cannot_read(problem)

    cdef int _count(self) except -1:
        """Count it, as soon as reads are not held."""
        cdef EnvironmentCore environment = self.environment
        cdef object me = PyThread_get_thread_ident()
        # The map does not move before this thread has ended what it reads already, so it must not wait for that.
        while environment.held and me not in environment.reading_threads:
            if environment.holder == <uint64_t>me:
                raise StoreError(
                    "this thread is making the LMDB map larger, or follows another process that has; a signal handler "
                    "or a finalizer cannot read the data then. Do it later"
                )
            PyErr_CheckSignals()  # sleeping alone notices only signals that come in it
            sleep(0.0005)
        environment.reading_threads[me] = environment.reading_threads.get(me, 0) + 1
        environment.n_reading += 1
        self.thread = me
        return 0

    cpdef end(self):
        """End it; a second time nothing happens."""
        cdef EnvironmentCore environment = self.environment
        txn = self.txn
        thread = self.thread
        self.txn = self.thread = None
        if thread is None:
            return
        try:
            environment.end_txn(txn)
        finally:
            environment.n_reading -= 1
            environment.reading_threads[thread] -= 1
            if not environment.reading_threads[thread]:
                del environment.reading_threads[thread]

    def __exit__(self, kind, error, trace):
        self.end()
        self.environment.blame_closing(error)

    def __del__(self):
        self.end()


cdef class ReadsHeld:
    """``with ReadsHeld(environment)``: no new read transactions, the map is about to move."""

    cdef EnvironmentCore environment
    cdef bint holds

    def __init__(self, EnvironmentCore environment):
        self.environment = environment

    def __enter__(self):
        self.environment.holder = PyThread_get_thread_ident()
        self.holds = self.environment.held = True

    cpdef end(self):
        """Let them go on; a second time nothing happens."""
        if self.holds:
            self.holds = self.environment.held = False
            self.environment.holder = 0

    def __exit__(self, *exc_info):
        self.end()

    def __del__(self):
        self.end()


def release_pages(memoryview view):
    """Take pages of LMDB's map out of this process's memory; they come back when they are next touched.

    Only for views that py-lmdb gave out in a read transaction: of anything else it would destroy the contents.
    """
    cdef Py_buffer buffer
    if view.obj is not None or not view.readonly:
        raise ValueError("not a view of LMDB's map")
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    release(buffer.buf, buffer.len)
    PyBuffer_Release(&buffer)

# --- writing


cdef class WritesCore:
    """Base of :class:`dlbf.storage.environment.Writes`, which brings ``begin_locked``."""

    def __init__(self, EnvironmentCore environment, lock):
        self.environment = environment
        self.acquire_lock = lock.acquire
        self.release_lock = lock.release
        self.begin_arguments = (None, None, True)

    def attach(self, data_db):
        """The database that write transactions are for, unless they name another."""
        self.begin_arguments = (data_db, None, True)

    cdef bint take(self, bint blocking, double timeout=-1) except -1:
        """Take the lock for this thread; False if it is taken and the caller does not want to wait (so long)."""
        cdef EnvironmentCore environment = self.environment
        cdef uint64_t me = PyThread_get_thread_ident()
        cdef double end = monotonic() + timeout
        cdef double left = 1.0
        if self.abandoned and self.writer == me:
            self.give()
        while not self.acquire_lock(False):
            if timeout >= 0:
                left = min(1.0, end - monotonic())
            if not blocking or left <= 0:
                return False
            environment.refuse_while_closing()
            if self.writer == me:
                raise StoreError(
                    "this thread has a write transaction already, or is in the middle of a backup; use that "
                    "transaction (txn.put, txn.delete, txn.get), and in a signal handler or a finalizer do it later"
                )
            if self.abandoned:
                # LMDB's own lock can be given back by the thread that took it, or by anybody once that has ended.
                if self.writer in sys._current_frames():
                    raise StoreError(
                        "a write transaction was left open and collected in another thread than the one that began "
                        "it, which alone can end it, and does with its next write; end transactions with `with`, "
                        "commit() or abort() in their own thread"
                    )
                self.give()
            elif self.acquire_lock(True, left):
                break
        self.writer = me
        self.n_taken += 1
        # In C: a signal handler's exception is not to be taken for a refusal.
        if unlikely(environment.handle is None or (environment.closing != 0 and environment.closing != me)):
            self.give()
            if not blocking:
                return False
            environment.refuse_while_closing()
        return True

    cdef bint try_take(self) except -1:
        """Take the lock for the change of a single key, if nobody has it; :meth:`give_up` must follow."""
        if not self.acquire_lock(False):
            return False
        self.writer = PyThread_get_thread_ident()
        return True

    cdef int give_up(self) except -1:
        """Give back a lock that ``try_take`` has taken."""
        self.give_turn()
        self.writer = 0
        self.release_lock()
        return 0

    cdef int give(self) except -1:
        """Undo the open write transaction, if it was not committed, and give the lock back."""
        txn = self.txn
        self.txn = None
        self.abandoned = False
        try:
            self.abort(txn)
        finally:
            self.give_turn()
            self.writer = 0
            self.release_lock()
        return 0

    cpdef give_turn(self):
        """Let another process write."""
        # A child has not inherited the lock, and the descriptor may be of another file by now.
        if self.turns is not None and fork_count == self.environment.own_forks:
            self.turns.release()

    def end_left_open(self):
        """Before closing: undo a transaction of this thread, or one that nobody can end any more."""
        if self.txn is not None and (
            self.writer == PyThread_get_thread_ident()
            or self.abandoned and self.writer not in sys._current_frames()
        ):
            self.give()

    cpdef abort(self, txn):
        """Undo a write transaction, if it has not ended.

        py-lmdb waits there for a moment in which no thread of this process is in LMDB, and threads that read all the
        time leave none: they are held meanwhile.
        """
        cdef EnvironmentCore environment = self.environment
        cdef bint held = environment.held
        environment.held = True
        try:
            environment.drop_kept()
            environment.end_txn(txn)
        finally:
            environment.held = held

    cdef int end_unchanged(self) except -1:
        """End the write transaction, which has changed nothing: an empty commit, unlike abort, waits for no reader."""
        cdef EnvironmentCore environment = self.environment
        txn = self.txn
        if txn is not None and environment.begin is not None and fork_count == environment.own_forks:
            self.txn = None
            txn.commit()
        return 0

    def begin_write(self, bint wait=True):
        """Take the lock and begin LMDB's transaction, for :class:`Writing`.

        Unless the caller wants to ``wait`` it is Busy if anybody else is writing.
        """
        cdef EnvironmentCore environment = self.environment
        cdef uint64_t number
        environment.check()
        if environment.readonly:
            raise StoreError(f"{environment.path}: opened with readonly=True; open it again to write")
        if not self.take(wait):
            raise Busy(f"{environment.path}: another thread is writing; try again later")
        number = self.n_taken
        try:
            if self.turns is not None and not self.turns.acquire(wait):
                raise Busy(f"{environment.path}: {self.turns.holder()} is writing; try again later")
            return self.begin_locked()
        except BaseException as error:
            # Unless a signal handler has closed the environment, and given it back.
            if self.writer == PyThread_get_thread_ident() and self.n_taken == number:
                self.give()
            environment.blame_closing(error)
            raise

    cdef object begin_raw(self):
        """Begin LMDB's transaction, with the lock and the turn held."""
        return self.environment.begin(*self.begin_arguments)

    def begin_txn(self):
        """The same, and note it, so that it is undone when the lock is given back."""
        # LMDB waits where nothing can interrupt it; with this turn it need not, unless another program writes.
        if self.turns is not None and not self.turns.taken:
            self.turns.acquire()
        self.txn = self.begin_raw()
        return self.txn


cdef class WriteLock:
    """``with WriteLock(writes, blocking, timeout) as taken``: nobody else in this process writes.

    Belongs to the thread that took it.  When nothing refers to it any more it is given back: at once, or if another
    thread finds out (the garbage collector runs in any), with the next write of its own.
    """

    def __init__(self, WritesCore writes, bint blocking=True, double timeout=-1):
        self.writes = writes
        self.blocking = blocking
        self.timeout = timeout

    def __enter__(self):
        if not self.writes.take(self.blocking, self.timeout):
            return False
        self.has_begun()
        return True

    cdef int has_begun(self) except -1:
        self.owner = self.writes.writer
        self.number = self.writes.n_taken
        return 0

    cdef bint is_of(self, uint64_t thread) noexcept:
        """Whether the lock is taken by ``thread``, and was last taken here."""
        return self.writes.writer == thread and self.writes.n_taken == self.number

    cpdef end(self):
        """Give it back; a second time nothing happens."""
        cdef uint64_t me = PyThread_get_thread_ident()
        if self.owner == 0:
            return
        if self.owner != me:
            raise StoreError("this write transaction was begun in another thread; use it, and end it, there")
        self.owner = 0
        if self.is_of(me):
            self.writes.give()

    def __exit__(self, *exc_info):
        self.end()

    def __del__(self):
        if self.owner == PyThread_get_thread_ident():
            self.end()
        elif self.owner and self.is_of(self.owner):
            self.writes.abandoned = True


cdef class Writing(WriteLock):
    """``with Writing(writes, wait) as txn``: LMDB's write transaction, undone if it is not committed.

    Busy if somebody else is writing and the caller does not want to wait.
    """

    def __enter__(self):
        return self.begin()

    def __exit__(self, kind, error, trace):
        self.end()
        self.writes.environment.blame_closing(error)

    cpdef begin(self):
        """Begin it."""
        cdef WritesCore writes = self.writes
        cdef uint64_t before = writes.n_taken
        try:
            txn = writes.begin_write(self.blocking)
        except BaseException:
            # It was interrupted when it had begun.
            if writes.writer == PyThread_get_thread_ident() and writes.n_taken != before:
                writes.give()
            raise
        self.has_begun()
        return txn
