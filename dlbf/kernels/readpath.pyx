"""The read path of a store: is the filter current, does it know the key, and only then Python.

``ReadPath`` is the compiled base of :class:`dlbf.storage.Store`.  An absent key costs two loads, one hash and one
probe: no LMDB transaction, no system call, no lock.

*Current* means: the newest transaction id in LMDB's two meta pages, seen through a map of our own, equals the
transaction that the filter is complete for.  LMDB writes a meta page as the last act of a commit, before the call
returns, so a commit of any process is visible here to every read that starts after it.  When the two differ nothing is
answered from the filter; the Python side catches up first.

A key that may be there is read in a transaction that is kept open for the next read as long as no newer commit is seen:
beginning one costs as much as the read.  But an open transaction keeps LMDB from reusing pages, so somebody has to call
``_sweep`` a few times per second while there are reads, and the last one is gone soon after them.

Everything here holds the GIL from the check to the probe, and whoever changes the filter withdraws it first
(``_withdraw``) and offers it again when it is whole (``_offer``): a reader never meets half of a change.

``WritePath`` adds the change of a single key in a transaction of its own, and ``PutPath`` is the put of a larger one.

What is taken here and has to be given back (locks, counts, transactions) is taken and given back in compiled code, by
objects for ``with``.  The exception of a signal handler, Ctrl-C or a timeout, can come between any two steps of Python
code, even between ``lock.acquire()`` and ``try``; compiled code has no such moments unless it calls Python or waits.
"""

cimport cython
from cpython.buffer cimport (
    Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_INCREF
from libc.math cimport log, log1p

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.filelock cimport FileLock
from dlbf.kernels.hashing cimport hash_for_filter, hash_key
from dlbf.kernels.journal cimport RECORD_REMOVED, OperationLog, Tail, apply_operations, reached
from dlbf.kernels.types cimport gate_read_one_done, gate_try_read, likely, uint8_t, uint64_t, unlikely

import sys
from _thread import allocate_lock
from time import monotonic, sleep

from dlbf.errors import FilterFullError, StoreError
from dlbf.kernels.filelock import Busy

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident()

cdef extern from *:
    """
    #include <stdint.h>
    #ifndef _WIN32
    #include <pthread.h>
    #endif
    static uint64_t dlbf_fork_count = 0;
    static void dlbf_count_fork(void) { dlbf_fork_count += 1; }
    static int dlbf_watch_forks(void) {
    #ifndef _WIN32
        return pthread_atfork(NULL, NULL, dlbf_count_fork);
    #else
        return 0;
    #endif
    }
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
    /* LMDB stores ids in native order; the pages are shared with other processes. */
    #if defined(__GNUC__) || defined(__clang__)
    #define dlbf_load_shared64(p) __atomic_load_n((const uint64_t *)(p), __ATOMIC_ACQUIRE)
    #else
    #define dlbf_load_shared64(p) (*(const volatile uint64_t *)(p))
    #endif
    """
    uint64_t fork_count "dlbf_fork_count"
    int watch_forks "dlbf_watch_forks"()
    void release "dlbf_release_pages"(const void* p, size_t n)
    uint64_t load_shared64 "dlbf_load_shared64"(const uint8_t* p) noexcept nogil

watch_forks()

cdef enum:
    ABSENT = 0
    MAYBE = 1
    UNKNOWN = 2

cdef enum:
    # Most bytes of a record of one change, less its key.
    SINGLE_RECORD_BYTES = 64

cdef uint64_t NEVER = <uint64_t>0xFFFFFFFFFFFFFFFF

cdef class ReadPath:
    """Base of :class:`dlbf.storage.Store`; subclasses bring ``_get_slow``, ``_fetch_slow``, ``_samples_full``,
    ``_start_sweeping`` and ``_blame_disk``.
    """

    cdef FilterCore core           # what answers; None while nothing may
    cdef object other              # the same for a filter that is no FilterCore
    cdef uint64_t current          # transaction the filter is complete for; NEVER: none
    cdef uint64_t removed          # newest transaction that took a key out of it
    cdef const uint8_t* word_a
    cdef const uint8_t* word_b
    cdef Py_buffer meta_view
    cdef bint has_meta
    cdef uint64_t own_forks
    cdef object begin              # Environment.begin, bound
    cdef object data_db
    cdef object begin_errors       # LMDB's "somebody made the map larger" and "no slot for a reader"
    cdef Py_ssize_t max_plain_bytes
    cdef object live               # a read transaction kept for the next read; None: none, or in use
    cdef uint64_t live_id          # the transaction it sees
    cdef readonly bint _live_used   # whether it was used since somebody last cleared this
    cdef bint keep_live            # whether one may be kept at all
    cdef bint swept                # whether somebody is watching that it is not kept for long
    cdef readonly Py_ssize_t _n_reading   # read transactions open in this process
    cdef bint held                 # no new ones: the map is about to move
    cdef uint64_t holder           # thread that has told them so; 0: none, or only to end its transaction
    cdef dict reading_threads      # how many of them each thread has begun that has any, but for those of ``_fetch``
    cdef readonly uint64_t _n_lookups
    cdef readonly uint64_t _n_filtered
    cdef readonly uint64_t _n_false_positives
    cdef readonly uint64_t _n_unfiltered
    cdef readonly uint64_t _epoch   # raised whenever the filter changes
    cdef list samples              # absent keys that were drawn and not taken yet
    cdef Py_ssize_t max_samples
    cdef readonly double _sample_every    # one in so many absent keys is drawn; 0: none
    cdef uint64_t sample_in        # absent keys until the next one that is drawn
    cdef uint64_t sample_state     # of the generator that draws
    cdef double sample_log         # 1 / log(1 - 1 / _sample_every)
    # The subclass's own.  CPython keeps 30 attributes in an object itself; with more every call would first look into a
    # dict for a method.
    cdef public object path
    cdef public object readonly
    cdef public object _env        # LMDB's environment; None: closed
    cdef public object _leaving    # the environment while it is being closed
    cdef public object _room
    cdef public object _meta_map

    def __cinit__(self, *args, **kwargs):
        self.has_meta = False
        self.current = NEVER
        self.own_forks = fork_count
        self.reading_threads = {}
        self.samples = []
        self._sample_every = 0
        self.sample_in = NEVER

    def __del__(self):
        # What a child of fork() inherits it must never free: py-lmdb would give back the parent's slots in LMDB's table
        # of readers, which both processes share.
        if fork_count != self.own_forks:
            self._drop_live()
            if self.begin is not None:
                Py_INCREF(self.begin)  # and the environment, which it is bound to

    def __dealloc__(self):
        if self.has_meta:
            PyBuffer_Release(&self.meta_view)

    # --- life, called by the store

    def _attach_meta(self, buffer, Py_ssize_t offset_a, Py_ssize_t offset_b):
        """Watch the transaction ids at two offsets of a map of LMDB's meta pages."""
        PyObject_GetBuffer(buffer, &self.meta_view, PyBUF_SIMPLE)
        if min(offset_a, offset_b) < 0 or max(offset_a, offset_b) + 8 > self.meta_view.len:
            PyBuffer_Release(&self.meta_view)
            raise ValueError("the transaction ids are outside of the map")
        self.has_meta = True
        self.word_a = <const uint8_t*>self.meta_view.buf + offset_a
        self.word_b = <const uint8_t*>self.meta_view.buf + offset_b

    def _detach_meta(self):
        self._withdraw()
        if self.has_meta:
            self.has_meta = False
            self.word_a = self.word_b = NULL
            PyBuffer_Release(&self.meta_view)

    def _attach_reader(self, begin, data_db, begin_errors, Py_ssize_t max_plain_bytes):
        """How to read: ``Environment.begin``, the database of the data, errors to try again after, the longest key
        stored as it is.
        """
        self.begin = begin
        self.data_db = data_db
        self.begin_errors = begin_errors
        self.max_plain_bytes = max_plain_bytes

    def _keep_live(self, bint keep):
        """Whether a read may leave its transaction open for the next one."""
        self.keep_live = keep
        if not keep:
            self._drop_live()

    def _drop_live(self):
        """End the transaction that is being kept; False if there is none."""
        txn = self.live
        self.live = None
        self._end_txn(txn)
        return txn is not None

    cdef int _end_txn(self, object txn) except -1:
        """Abort a transaction if it has not ended."""
        if txn is None:
            return 0
        if unlikely(fork_count != self.own_forks):
            Py_INCREF(txn)  # for ever: see __del__
        else:
            txn.abort()
        return 0

    def _reads_itself(self):
        """Whether this thread has begun a snapshot or an iterator that has not ended."""
        return PyThread_get_thread_ident() in self.reading_threads

    cdef int _blame_closing(self, object error) except -1:
        """An error has come: if another thread has closed the store meanwhile, or the disk is full, tell that."""
        if error is None:
            return 0
        if self._env is not None:
            if type(error).__module__.startswith("lmdb"):
                self._blame_disk(error)
            return 0
        # LMDB's, or of Python where there is nothing any more; others have other reasons.
        if isinstance(error, (AttributeError, TypeError)) or type(error).__module__.startswith("lmdb"):
            self._check_process()
        return 0

    def _sweep(self):
        """End the kept transaction unless it was used since the last call; False if there was none to look at."""
        if self.live is None and not self._live_used:
            self.swept = False
            return False
        if not self._live_used:
            self._drop_live()
        self._live_used = False
        return True

    def _offer(self, filter, uint64_t txn_id, uint64_t removed):
        """Answer from ``filter`` as long as ``txn_id`` is the newest transaction."""
        if isinstance(filter, FilterCore):
            self.core = <FilterCore>filter
            self.other = None
        else:
            self.core = None
            self.other = filter
        self.removed = removed
        self._epoch += 1
        self.current = txn_id

    def _withdraw(self):
        """Answer nothing from the filter until the next offer."""
        self._epoch += 1
        self.current = NEVER

    def _word(self):
        """The newest transaction id, or None where it cannot be seen."""
        return self._newest() if self.has_meta else None

    def _complete_for(self):
        """The transaction that what answers is complete for; meaningless while nothing answers."""
        return self.current

    def _is_current(self):
        return bool(self._usable())

    def _was_forked(self):
        """Whether this process is a child of the one that opened the store."""
        return fork_count != self.own_forks

    def _sample_misses(self, double every, Py_ssize_t max_samples, uint64_t seed):
        """Draw each absent key with probability ``1 / every`` (0: none), all by chance and none by its turn.

        ``_samples_full`` is called when ``max_samples`` have been drawn and not taken.
        """
        self._sample_every = every
        self.sample_log = 1 / log1p(-1 / every) if every > 1 else 0
        self.max_samples = max_samples
        if seed:
            self.sample_state = seed
        self.sample_in = self._gap() if every else NEVER

    def _take_samples(self):
        """The absent keys drawn since the last call."""
        taken = self.samples
        self.samples = []
        return taken

    @property
    def _n_samples(self):
        """Absent keys drawn and not taken yet."""
        return len(self.samples)

    cdef uint64_t _gap(self) noexcept:
        """Number of absent keys up to and with the next one drawn: geometric, as if each were drawn for itself."""
        cdef uint64_t z
        cdef double u
        # splitmix64
        self.sample_state += <uint64_t>0x9E3779B97F4A7C15
        z = self.sample_state
        z = (z ^ (z >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * <uint64_t>0x94D049BB133111EB
        z = z ^ (z >> 31)
        if self._sample_every <= 1:
            return 1
        u = (<double>(z >> 11) + 1) / 9007199254740992.0  # above 0, at most 1
        return 1 + <uint64_t>(log(u) * self.sample_log)

    cdef int _draw(self, object key) except -1:
        if not self._sample_every:
            self.sample_in = NEVER
            return 0
        self.sample_in = self._gap()
        self.samples.append(key)
        if len(self.samples) >= self.max_samples:
            self._samples_full()
        return 0

    cdef inline int _absent(self, object key) except -1:
        """A key was asked for and is not there."""
        self.sample_in -= 1
        if unlikely(self.sample_in == 0):
            return self._draw(key)
        return 0

    def _was_absent(self, bytes key):
        """The same, for readers in Python."""
        self._absent(key)

    def _draw_many(self, uint64_t n_absent):
        """Which of ``n_absent`` absent keys in a row are drawn: their numbers from 0."""
        cdef uint64_t at = 0
        out = []
        while self.sample_in <= n_absent - at:
            at += self.sample_in
            out.append(at - 1)
            self.sample_in = self._gap() if self._sample_every else NEVER
        self.sample_in -= n_absent - at
        return out

    def _add_samples(self, keys):
        self.samples.extend(keys)
        if len(self.samples) >= self.max_samples:
            self._samples_full()

    def _count(self, uint64_t lookups=0, uint64_t filtered=0, uint64_t false_positives=0, uint64_t unfiltered=0):
        self._n_lookups += lookups
        self._n_filtered += filtered
        self._n_false_positives += false_positives
        self._n_unfiltered += unfiltered

    def _filter(self):
        """What answers now, or None."""
        if self.current == NEVER:
            return None
        return self.core if self.core is not None else self.other

    # --- leaves

    cdef inline uint64_t _newest(self) noexcept nogil:
        cdef uint64_t a = load_shared64(self.word_a)
        cdef uint64_t b = load_shared64(self.word_b)
        return a if a > b else b

    cdef inline bint _usable(self) noexcept nogil:
        # A store without a filter has current == NEVER, which no transaction id ever is.
        return self.has_meta and self._newest() == self.current and fork_count == self.own_forks

    cdef inline int _probe_core(self, object key) noexcept:
        cdef FilterCore core = self.core
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(key)
        cdef size_t n = PyBytes_GET_SIZE(key)
        cdef uint64_t h
        cdef bint found
        if unlikely(not gate_try_read(&core.gate)):
            return UNKNOWN
        h = hash_for_filter(hash_key(&core.hash_key, data, n), core.filter_id)
        found = core._contains(h, data, n)
        gate_read_one_done(&core.gate)
        return MAYBE if found else ABSENT

    cdef inline int _probe(self, object key) except -1:
        if likely(self.core is not None):
            return self._probe_core(key)
        if self.other is None:
            return UNKNOWN
        return MAYBE if key in self.other else ABSENT

    cdef inline int _quick(self, object key) except -1:
        """What the filter says about a key, if it may be asked right now."""
        if likely(PyBytes_Check(key) and self._usable()):
            return self._probe(key)
        return UNKNOWN

    def _ask(self, bytes key):
        """0: absent, 1: maybe, 2: the filter may not be asked right now."""
        return self._quick(key)

    def _ask_at(self, bytes key, uint64_t txn_id):
        """The same for a view of the past: the filter holds every key of it unless one was removed since."""
        if self.current == NEVER or self.current < txn_id or self.removed > txn_id or fork_count != self.own_forks:
            return UNKNOWN
        return self._probe(key)

    cdef object _fetch(self, object key, object default, bint asked):
        """Read the data; ``asked``: the filter has said "maybe"."""
        cdef Py_ssize_t n = PyBytes_GET_SIZE(key)
        cdef object txn, value
        cdef uint64_t txn_id = 0
        if unlikely(n == 0 or n > self.max_plain_bytes or self.held):
            return self._fetch_slow(key, default, asked)
        self._n_reading += 1
        try:
            # Taken out of its place while it is used, so no other thread can have it.
            txn = self.live
            txn_id = self.live_id
            self.live = None
            if txn is not None and (not self.has_meta or txn_id != self._newest()):
                txn.abort()
                txn = None
            if txn is None:
                txn = self.begin(self.data_db)
                if self.keep_live:
                    txn_id = txn.id()
            value = txn.get(key)
            # Others may have read, committed and put theirs back while LMDB was asked: only the newest view is kept,
            # and with its own number.
            if self.keep_live and self.live is None and not self.held and self.has_meta and txn_id == self._newest():
                self.live = txn
                self.live_id = txn_id
                self._live_used = True
                if unlikely(not self.swept):
                    self.swept = True
                    try:
                        self._start_sweeping()
                    except BaseException:
                        self.swept = False
                        raise
            else:
                txn.abort()
        except self.begin_errors:
            value = NotImplemented
        except Exception as error:
            self._blame_closing(error)
            raise
        finally:
            self._n_reading -= 1
        if unlikely(value is NotImplemented):
            return self._fetch_slow(key, default, asked)
        if value is None:
            if asked:
                self._n_false_positives += 1
            self._absent(key)
            return default
        return value

    # --- the mapping

    cdef inline object _look_up(self, object key, object default):
        cdef int answer = self._quick(key)
        if likely(answer == ABSENT):
            self._n_lookups += 1
            self._n_filtered += 1
            self._absent(key)
            return default
        if answer == MAYBE:
            self._n_lookups += 1
            return self._fetch(key, default, True)
        return self._get_slow(key, default)

    # A plain method; see methods.pyx.
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def get(self, key, default=None):
        """The value of a key, or ``default``.

        Parameters
        ----------
        key : bytes, str or buffer
        default : object, optional

        Returns
        -------
        bytes or ``default``

        Notes
        -----
        A key that the filter knows to be absent costs no read of the data, no lock and no system call.
        """
        return self._look_up(key, default)

    def __contains__(self, key):
        return self._look_up(key, self) is not self

    def __getitem__(self, key):
        value = self._look_up(key, self)
        if value is self:
            raise KeyError(key)
        return value


cdef class Reading:
    """A read transaction, ``with Reading(store) as txn``, counted so that the map does not move under it."""

    cdef ReadPath store
    cdef bint buffers
    cdef object thread           # that has begun it; None: it has not begun, or has ended
    cdef object txn

    def __init__(self, ReadPath store, bint buffers=False):
        self.store = store
        self.buffers = buffers

    def __enter__(self):
        cdef ReadPath store = self.store
        while True:
            store._check_process()
            self._count()
            try:
                self.txn = store._env.begin(buffers=self.buffers)
                return self.txn
            except BaseException as error:
                self.end()
                problem = error
            store._cannot_read(problem)

    cdef int _count(self) except -1:
        """Count it, as soon as reads are not held."""
        cdef ReadPath store = self.store
        cdef object me = PyThread_get_thread_ident()
        # The map does not move before this thread has ended what it reads already, so it must not wait for that.
        while store.held and me not in store.reading_threads:
            if store.holder == <uint64_t>me:
                raise StoreError(
                    "this thread is making the LMDB map larger, or follows another process that has; a signal handler "
                    "or a finalizer cannot read the data then. Do it later"
                )
            PyErr_CheckSignals()  # sleeping alone notices only signals that come in it
            sleep(0.0005)
        store.reading_threads[me] = store.reading_threads.get(me, 0) + 1
        store._n_reading += 1
        self.thread = me
        return 0

    cpdef end(self):
        """End it; a second time nothing happens."""
        cdef ReadPath store = self.store
        txn = self.txn
        thread = self.thread
        self.txn = self.thread = None
        if thread is None:
            return
        try:
            store._end_txn(txn)
        finally:
            store._n_reading -= 1
            store.reading_threads[thread] -= 1
            if not store.reading_threads[thread]:
                del store.reading_threads[thread]

    def __exit__(self, kind, error, trace):
        self.end()
        self.store._blame_closing(error)

    def __del__(self):
        self.end()


cdef class Asking:
    """``with Asking(store)``: the environment is asked something, and another thread may close the store meanwhile."""

    cdef ReadPath store

    def __init__(self, ReadPath store):
        self.store = store

    def __enter__(self):
        self.store._check_process()
        return self.store._env

    def __exit__(self, kind, error, trace):
        self.store._blame_closing(error)


cdef class ReadsHeld:
    """``with ReadsHeld(store)``: no new read transactions, the map is about to move."""

    cdef ReadPath store
    cdef bint holds

    def __init__(self, ReadPath store):
        self.store = store

    def __enter__(self):
        self.store.holder = PyThread_get_thread_ident()
        self.holds = self.store.held = True

    cpdef end(self):
        """Let them go on; a second time nothing happens."""
        if self.holds:
            self.holds = self.store.held = False
            self.store.holder = 0

    def __exit__(self, *exc_info):
        self.end()

    def __del__(self):
        self.end()


cdef class Attempt:
    """``with Attempt(lock, blocking) as taken``: take a lock, or find out that somebody else has it.

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


cdef class ReplicaState:
    """What changes with every commit in a process's copy of the filter; base of `dlbf.storage.replica.Replica`."""

    cdef public uint64_t applied         # transaction that the filter is complete for
    cdef public uint64_t removed         # newest transaction that took a key out
    cdef public uint64_t generation
    cdef public Py_ssize_t journal_bytes  # since the checkpoint
    cdef public Py_ssize_t journal_limit  # more of them make a checkpoint due
    cdef public uint64_t added           # keys added since the last rebuild,
    cdef public uint64_t deleted         # and removed
    cdef public Py_ssize_t n_operations  # passed since this process has the filter
    cdef public bint torn                # a change was begun and not ended: the filter is not to be used

    cpdef passed(self, uint64_t txn_id, Py_ssize_t n_added, Py_ssize_t n_removed, Py_ssize_t n_bytes):
        """The filter is complete for transaction ``txn_id`` now, which did so much."""
        self.torn = False
        self.applied = txn_id
        self.added += n_added
        self.deleted += n_removed
        self.n_operations += n_added + n_removed
        self.journal_bytes += n_bytes
        if n_removed:
            self.removed = txn_id


cdef class ReplicaLock:
    """The lock of a process's replica.  It costs next to nothing while nobody waits: only who has the GIL changes its
    fields.

    Not for the same thread twice: what a signal handler or a finalizer does in the middle of a change must not change
    the same again.  But a thread that waits may run a signal handler that takes it, so nobody is promised a turn: when
    it is given back everybody who waits tries again.
    """

    cdef bint held
    cdef uint64_t owner
    cdef list waiting            # a closed lock for each thread that waits

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

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *exc_info):
        self.release()


cdef class WritePath(ReadPath):
    """A change of one key in a transaction of its own, without Python around it.

    ``_quick_changes`` says how many such changes may follow before somebody must look whether a larger filter is due;
    0 while a write transaction is open.  Whatever is not the common case (another process has written,
    a long key, the map may have to grow) is left to ``_set_slow`` and ``_delete_slow`` of the subclass, which also
    brings ``_distrust_replica``, for a filter that could not follow a commit, and ``_tend``, which makes a larger one.
    """

    cdef public Py_ssize_t _quick_changes
    cdef public FileLock _file_lock      # of the one process that writes; None: LMDB's own has to do
    cdef public uint64_t _closing        # thread that is closing the store, or has; 0: none
    cdef readonly uint64_t _writer       # thread that has the write lock; 0: none
    cdef uint64_t n_taken                # how often it was taken, but for changes of single keys
    cdef bint abandoned                  # who has it was collected in another thread, which cannot end it
    cdef object write_txn                # LMDB's transaction of who has it
    cdef object write_acquire
    cdef object write_release
    cdef tuple write_args                # of ``begin``, for a write transaction
    cdef object txn_id                   # methods of LMDB's transactions
    cdef object txn_put
    cdef object txn_delete
    cdef object txn_commit
    cdef object journal_db
    cdef object main_db
    cdef bytes tail_key
    cdef tuple map_errors                # LMDB's "somebody made the map larger" and "the map is full"
    cdef ReplicaState replica
    cdef ReplicaLock replica_lock
    cdef bint outgrown                   # a quick change has found the filter full
    cdef Tail tail

    def _attach_lock(self, write_lock):
        """The lock of all writers of this process."""
        self.write_acquire = write_lock.acquire
        self.write_release = write_lock.release

    def _attach_writer(
        self, ReplicaLock replica_lock, ReplicaState replica, Tail tail, transaction, journal_db, main_db,
        bytes tail_key, tuple map_errors
    ):
        """This process's replica, LMDB's type of transactions, where the journal is, and errors to try again after."""
        self.map_errors = map_errors
        self.write_args = (self.data_db, None, True)
        self.txn_id = transaction.id
        self.txn_put = transaction.put
        self.txn_delete = transaction.delete
        self.txn_commit = transaction.commit
        self.replica_lock = replica_lock
        self.replica = replica
        self.tail = tail
        self.journal_db = journal_db
        self.main_db = main_db
        self.tail_key = tail_key

    cdef bint _take(self, bint blocking, double timeout=-1) except -1:
        """Take the write lock for this thread; False if it is taken and the caller does not want to wait (so long)."""
        cdef uint64_t me = PyThread_get_thread_ident()
        cdef double end = monotonic() + timeout
        cdef double left = 1.0
        if self.abandoned and self._writer == me:
            self._give()
        while not self.write_acquire(False):
            if timeout >= 0:
                left = min(1.0, end - monotonic())
            if not blocking or left <= 0:
                return False
            self._refuse_while_closing()
            if self._writer == me:
                raise StoreError(
                    "this thread has a write transaction already, or is in the middle of a backup; use that "
                    "transaction (txn.put, txn.delete, txn.get), and in a signal handler or a finalizer do it later"
                )
            if self.abandoned:
                # LMDB's own lock can be given back by the thread that took it, or by anybody once that has ended.
                if self._writer in sys._current_frames():
                    raise StoreError(
                        "a write transaction was left open and collected in another thread than the one that began "
                        "it, which alone can end it, and does with its next write; end transactions with `with`, "
                        "commit() or abort() in their own thread"
                    )
                self._give()
            elif self.write_acquire(True, left):
                break
        self._writer = me
        self.n_taken += 1
        # In C: a signal handler's exception is not to be taken for a refusal.
        if unlikely(self._env is None or (self._closing != 0 and self._closing != me)):
            self._give()
            if not blocking:
                return False
            self._refuse_while_closing()
        return True

    cdef int _give(self) except -1:
        """Undo the write transaction of who has the write lock, if it was not committed, and give that back."""
        txn = self.write_txn
        self.write_txn = None
        self.abandoned = False
        try:
            self._abort(txn)
        finally:
            self._give_file_lock()
            self._writer = 0
            self.write_release()
        return 0

    cpdef _give_file_lock(self):
        """Let another process write."""
        # A child has not inherited the lock, and the descriptor may be of another file by now.
        if self._file_lock is not None and fork_count == self.own_forks:
            self._file_lock.release()

    def _end_left_open(self):
        """Before the store is closed: undo a transaction of this thread, or one that nobody can end any more."""
        if self.write_txn is not None and (
            self._writer == PyThread_get_thread_ident()
            or self.abandoned and self._writer not in sys._current_frames()
        ):
            self._give()

    cpdef _abort(self, txn):
        """Undo a write transaction, if it has not ended.

        py-lmdb waits there for a moment in which no thread of this process is in LMDB, and threads that read all the
        time leave none: they are held meanwhile.
        """
        cdef bint held = self.held
        self.held = True
        try:
            self._drop_live()
            self._end_txn(txn)
        finally:
            self.held = held

    cdef int _end_unchanged(self) except -1:
        """End the write transaction, which has changed nothing: to commit that does nothing, and waits for nobody."""
        txn = self.write_txn
        if txn is not None and self.begin is not None and fork_count == self.own_forks:
            self.write_txn = None
            self.txn_commit(txn)
        return 0

    def _begin_write(self, bint wait=True):
        """Take the write lock and begin LMDB's transaction; ``_end_write`` must follow.

        Unless the caller wants to ``wait`` it is Busy if anybody else is writing.
        """
        cdef uint64_t number
        self._check_process()
        if self.readonly:
            raise StoreError(f"{self.path}: opened with readonly=True; open it again to write")
        if not self._take(wait):
            raise Busy(f"{self.path}: another thread is writing; try again later")
        number = self.n_taken
        try:
            if self._file_lock is not None and not self._file_lock.acquire(wait):
                raise Busy(f"{self.path}: {self._file_lock.holder()} is writing; try again later")
            self._quick_changes = 0
            return self._begin_locked()
        except BaseException as error:
            # Unless a signal handler has closed the store, and given it back.
            if self._writer == PyThread_get_thread_ident() and self.n_taken == number:
                self._give()
            self._blame_closing(error)
            raise

    def _begin_txn(self):
        """Begin LMDB's transaction, with the write lock held."""
        # LMDB waits where nothing can interrupt it; with this lock it need not, unless another program writes.
        if self._file_lock is not None and not self._file_lock.taken:
            self._file_lock.acquire()
        self.write_txn = self.begin(*self.write_args)
        return self.write_txn

    def _end_write(self):
        """The write transaction of this thread is over; if it was not committed it is undone."""
        if self._writer == PyThread_get_thread_ident():
            self._give()

    cdef bint _may_be_quick(self, object key) noexcept:
        cdef Py_ssize_t n
        if not PyBytes_CheckExact(key) or not self._quick_changes or self.core is None or not self._usable():
            return False
        n = PyBytes_GET_SIZE(key)
        return (
            0 < n <= self.max_plain_bytes
            and self.replica.journal_bytes + SINGLE_RECORD_BYTES + n <= self.replica.journal_limit
            and 4 * len(self.samples) < self.max_samples
        )

    cdef int _change(self, bytes key, object value) except -2:
        """Store a value, or with None delete the key.  1: it was new or was deleted; 0: neither; -1: do it slowly."""
        cdef ReplicaState replica = self.replica
        cdef Tail tail = self.tail
        cdef uint64_t number
        cdef bint counts
        cdef object txn = None
        # Not waiting here: who waits may find everything changed.
        if not self.write_acquire(False):
            return -1
        self._writer = PyThread_get_thread_ident()
        try:
            if self._quick_changes <= 0:
                return -1
            self._quick_changes -= 1
            if self.live is not None:
                self._drop_live()
            if self._file_lock is not None and not self._file_lock.acquire(False):
                return -1
            txn = self.begin(*self.write_args)
            number = self.txn_id(txn)
            if self.current != number - 1 or replica.applied != number - 1 or tail.known != number - 1:
                # Nothing has changed, so to commit does nothing; but unlike to abort it does not wait for readers.
                self.txn_commit(txn)
                txn = None
                return -1
            reached("write-began")
            if value is None:
                counts = self.txn_delete(txn, key)
                if not counts:
                    self.txn_commit(txn)
                    txn = None
                    return 0
            else:
                # Overwriting?  A key that is there costs a second call.
                counts = self.txn_put(txn, key, value, True, False)
                if not counts:
                    self.txn_put(txn, key, value)
            reached("data-written")
            tail.known = 0
            if not self._record(txn, number, key if counts else None, value is None):
                return -1
            reached("journal-written")
            self.txn_commit(txn)
            txn = None
            self._give_file_lock()
            tail.known = number
            reached("commit-done")
            # Who has the lock is catching up, or the next reader will.
            if self.replica_lock.acquire(False):
                try:
                    if self.current == number - 1 and replica.applied == number - 1 and not replica.torn:
                        self._follow(number, counts, value is None)
                finally:
                    self.replica_lock.release()
            reached("filter-applied")
            return counts
        except self.map_errors:
            return -1
        except Exception as error:
            self._blame_closing(error)
            raise
        finally:
            try:
                if txn is not None:
                    self._abort(txn)
            finally:
                self._give_file_lock()
                self._writer = 0
                self.write_release()

    cdef int _record(self, object txn, uint64_t number, bytes key, bint removal) except -1:
        """Write the journal record; 0 if that is not possible here."""
        cdef Tail tail = self.tail
        cdef uint64_t flags = RECORD_REMOVED if removal else 0
        if not tail.push(number, self.replica.generation, flags, key, removal):
            if not self.txn_put(txn, tail.last.to_bytes(8, "big"), tail.block(), True, True, True, self.journal_db):
                return 0
            tail.clear()
            if not tail.push(number, self.replica.generation, flags, key, removal):
                return 0
        self.txn_put(txn, self.tail_key, tail.value, True, True, False, self.main_db)
        return 1

    cdef int _follow(self, uint64_t number, bint counts, bint removal) except -1:
        """Do to the filter what was just committed."""
        cdef ReplicaState replica = self.replica
        cdef Tail tail = self.tail
        cdef Py_ssize_t size = tail.n_bytes - tail.newest_at
        self._withdraw()
        if counts:
            replica.torn = True
            try:
                apply_operations(self.core, tail.data + tail.newest_at, size, None)
            except FilterFullError:
                self._distrust_replica(True)
                self.outgrown = True
                return 0
            except BaseException:
                self._distrust_replica(False)
                raise
        replica.passed(number, counts and not removal, counts and removal, size)
        self.removed = replica.removed
        self.current = number
        return 0

    def __setitem__(self, key, value):
        if self._may_be_quick(key) and PyBytes_CheckExact(value) and self._change(key, value) >= 0:
            self._after_quick()
            return
        self._set_slow(key, value)

    cdef int _after_quick(self) except -1:
        if unlikely(self.outgrown):
            self.outgrown = False
            self._tend(1)
        return 0

    # A plain method; see methods.pyx.
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def put(self, key, value):
        """Store a value, in a transaction of its own."""
        self[key] = value

    # A plain method; see methods.pyx.
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def delete(self, key):
        """Delete a key, in a transaction of its own; True if it was there."""
        cdef int answer
        if self._may_be_quick(key):
            answer = self._change(key, None)
            if answer >= 0:
                self._after_quick()
                return bool(answer)
        return self._delete_slow(key)

    def __delitem__(self, key):
        if not self.delete(key):
            raise KeyError(key)


cdef class WriteLock:
    """``with WriteLock(store, blocking, timeout) as taken``: nobody else in this process writes.

    Belongs to the thread that took it.  When nothing refers to it any more it is given back: at once, or if another
    thread finds out (the garbage collector runs in any), with the next write of its own.
    """

    cdef WritePath store
    cdef bint blocking
    cdef double timeout          # below 0: none
    cdef uint64_t owner          # thread that has taken it; 0: none has
    cdef uint64_t number         # which taking of the lock it was

    def __init__(self, WritePath store, bint blocking=True, double timeout=-1):
        self.store = store
        self.blocking = blocking
        self.timeout = timeout

    def __enter__(self):
        if not self.store._take(self.blocking, self.timeout):
            return False
        self._has_begun()
        return True

    cdef int _has_begun(self) except -1:
        self.owner = self.store._writer
        self.number = self.store.n_taken
        return 0

    cdef bint _is_of(self, uint64_t thread) noexcept:
        """Whether the lock is taken by ``thread``, and was last taken here."""
        return self.store._writer == thread and self.store.n_taken == self.number

    cpdef end(self):
        """Give it back; a second time nothing happens."""
        cdef uint64_t me = PyThread_get_thread_ident()
        if self.owner == 0:
            return
        if self.owner != me:
            raise StoreError("this write transaction was begun in another thread; use it, and end it, there")
        self.owner = 0
        if self._is_of(me):
            self.store._give()

    def __exit__(self, *exc_info):
        self.end()

    def __del__(self):
        if self.owner == PyThread_get_thread_ident():
            self.end()
        elif self.owner and self._is_of(self.owner):
            self.store.abandoned = True


cdef class Writing(WriteLock):
    """``with Writing(store, wait) as txn``: LMDB's write transaction, undone if it is not committed.

    Busy if somebody else is writing and the caller does not want to wait.
    """

    def __enter__(self):
        return self.begin()

    def __exit__(self, *exc_info):
        self.end()
        self.store._blame_closing(exc_info[1])

    cpdef begin(self):
        """Begin it."""
        cdef WritePath store = self.store
        cdef uint64_t before = store.n_taken
        try:
            txn = store._begin_write(self.blocking)
        except BaseException:
            # A subclass was interrupted when it had begun.
            if store._writer == PyThread_get_thread_ident() and store.n_taken != before:
                store._give()
            raise
        self._has_begun()
        return txn


cdef class PutPath:
    """Base of :class:`dlbf.storage.transactions.WriteTransaction`: a put of bytes without Python around it.

    Subclasses bring ``commit``, ``_put_slow``, for everything else, and ``_again``, for a map that is full.
    """

    cdef Writing writing
    cdef public object _txn        # LMDB's transaction; None: it has ended
    cdef public list _redo         # the changes so far, if it may have to make them again; or None
    cdef object plain_put          # the put of LMDB's transaction; None: every put is a slow one
    cdef object full_error         # LMDB's "the map is full"
    cdef OperationLog plain_log
    cdef Py_ssize_t max_plain_bytes
    cdef public bint _dirty        # whether anything was written
    cdef public bint _torn         # a change was begun and not ended: data and journal may not say the same

    def _begin(self, WritePath store):
        """Begin LMDB's transaction."""
        self.writing = Writing(store)
        self._txn = self.writing.begin()

    def _end(self):
        """End it: what is not committed is undone."""
        cdef bint unchanged = self._txn is not None and not self._dirty and not self._torn
        self._check_thread()
        self._txn = self._redo = self.plain_put = None
        if self.writing is not None:
            try:
                if unchanged and self.writing.owner != 0:
                    self.writing.store._end_unchanged()
            finally:
                self.writing.end()

    @property
    def _ended(self):
        return self.writing is None or self.writing.owner == 0

    def _check_thread(self):
        if self.writing is not None and self.writing.owner not in (0, PyThread_get_thread_ident()):
            raise StoreError("this write transaction was begun in another thread; use it, and end it, there")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self.writing is None or self.writing.owner == 0:
            return
        try:
            if kind is None:
                self.commit()
        finally:
            self._end()

    def _attach_put(self, plain_put, OperationLog journal, full_error, Py_ssize_t max_plain_bytes):
        """Put keys of up to ``max_plain_bytes`` with ``plain_put``, and log those that are new."""
        self.plain_log = journal
        self.full_error = full_error
        self.max_plain_bytes = max_plain_bytes
        self.plain_put = plain_put

    def _detach_put(self):
        """LMDB's transaction is about to end: every put is a slow one until another is attached."""
        self.plain_put = None

    # A plain method; see methods.pyx.
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def put(self, key, value):
        """Store a value; True if the key is new."""
        cdef Py_ssize_t n
        if unlikely(
            self.plain_put is None or self._torn or self.writing.owner != PyThread_get_thread_ident()
            or not PyBytes_CheckExact(key) or not PyBytes_CheckExact(value)
        ):
            return self._put_slow(key, value)
        n = PyBytes_GET_SIZE(key)
        if unlikely(n == 0 or n > self.max_plain_bytes):
            return self._put_slow(key, value)
        self._dirty = True
        self._torn = True
        if self._redo is not None:
            self._redo.append((key, value))
        try:
            # Overwriting?  A key that is there costs a second call, a new one the journal.
            if self.plain_put(key, value, True, False):
                self.plain_log.added(<bytes>key)
                self._torn = False
                return True
            self.plain_put(key, value)
            self._torn = False
            return False
        except self.full_error:
            return self._again()
        except Exception as error:
            self.writing.store._blame_closing(error)
            raise
