"""Changes of a store's data: a single key in a transaction of its own, and many in one."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE

from dlbf.kernels.journal cimport RECORD_REMOVED, reached
from dlbf.kernels.ledger cimport ledger_usable
from dlbf.kernels.locks cimport PyThread_get_thread_ident
from dlbf.kernels.log cimport LogCore
from dlbf.kernels.types cimport uint8_t, unlikely

from dlbf.errors import StoreError

cdef enum:
    # Most bytes of a record of one change, less its key.
    SINGLE_RECORD_BYTES = 64

cdef enum:
    # What became of a change.
    CHANGE_REFUSED = -1      # not the common case: do it slowly
    CHANGE_NOTHING = 0       # the key was there already, or was not there to be deleted
    CHANGE_COUNTS = 1        # a key is new, or was deleted


cpdef commit_change(
    WritesCore writes, LogCore log, LedgerCore ledger, txn, uint64_t position, OperationLog operations
):
    """Commit a transaction that has changed data, with its record, and let the filter follow: every commit but those
    that write a checkpoint, too.
    """
    cdef uint64_t flags = RECORD_REMOVED if operations.n_removed else 0
    cdef bytes record = operations.record(position, ledger.generation, flags)
    log.commit(writes, txn, position, record)
    ledger.follow_own(
        position, <const uint8_t*>PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record),
        operations.n_added + operations.n_removed,
    )
    reached("filter-applied")


cdef class SingleChanges:
    """A change of one key in a transaction of its own, without Python around it.

    Whatever is not the common case (another process has written, a long key, the map may have to grow) is refused, and
    left to the slower way of the store.
    """

    def __init__(
        self, WritesCore writes, LmdbLogCore log, LedgerCore ledger, TrafficCore traffic, transaction,
        tuple map_errors, Py_ssize_t max_plain_bytes
    ):
        self.writes = writes
        self.log = log
        self.ledger = ledger
        self.traffic = traffic
        self.operations = OperationLog()
        self.txn_id = transaction.id
        self.txn_put = transaction.put
        self.txn_delete = transaction.delete
        self.txn_commit = transaction.commit
        self.map_errors = map_errors
        self.max_plain_bytes = max_plain_bytes

    def allow(self, Py_ssize_t n_changes):
        """Let so many follow, with the write lock held; any other write transaction takes that back."""
        self.n_allowed = n_changes
        self.allowed_at = self.writes.n_taken

    cdef bint may_be_quick(self, object key) noexcept:
        cdef Py_ssize_t n
        cdef LedgerCore ledger = self.ledger
        if not PyBytes_CheckExact(key) or self.n_allowed <= 0 or not ledger_usable(ledger):
            return False
        n = PyBytes_GET_SIZE(key)
        return (
            0 < n <= self.max_plain_bytes
            and ledger.log_bytes + SINGLE_RECORD_BYTES + n <= ledger.log_limit
            and not self.traffic.report_due
        )

    cdef int change(self, bytes key, object value) except -2:
        """Store a value, or with None delete the key."""
        cdef WritesCore writes = self.writes
        cdef LedgerCore ledger = self.ledger
        cdef uint64_t position
        cdef bint counts
        cdef object txn = None
        # Not waiting here: who waits may find everything changed.
        if not writes.try_take():
            return CHANGE_REFUSED
        try:
            if self.n_allowed <= 0 or self.allowed_at != writes.n_taken:
                self.n_allowed = 0
                return CHANGE_REFUSED
            self.n_allowed -= 1
            writes.environment.drop_kept()
            if writes.turns is not None and not writes.turns.acquire(False):
                return CHANGE_REFUSED
            txn = writes.begin_raw()
            position = self.txn_id(txn)
            if not (ledger.current == ledger.applied == self.log.tail.known == position - 1):
                # An empty commit, unlike abort, does not wait for readers.
                self.txn_commit(txn)
                txn = None
                return CHANGE_REFUSED
            reached("write-began")
            if value is None:
                counts = self.txn_delete(txn, key)
                if not counts:
                    self.txn_commit(txn)
                    txn = None
                    return CHANGE_NOTHING
            else:
                # Overwriting?  A key that is there costs a second call.
                counts = self.txn_put(txn, key, value, True, False)
                if not counts:
                    self.txn_put(txn, key, value)
            reached("data-written")
            self.operations.clear()
            if counts:
                if value is None:
                    self.operations.removed(key)
                else:
                    self.operations.added(key)
            commit_change(writes, self.log, ledger, txn, position, self.operations)
            txn = None
            return CHANGE_COUNTS if counts else CHANGE_NOTHING
        except self.map_errors:
            return CHANGE_REFUSED
        except Exception as error:
            writes.environment.blame_closing(error)
            raise
        finally:
            try:
                if txn is not None:
                    writes.abort(txn)
            finally:
                writes.give_up()


cdef class StoreCore(LookupCore):
    """Base of :class:`dlbf.storage.Store`, which brings ``_set_slowly``, ``_delete_slowly`` and ``_grow_if_due``."""

    cdef int _quick_change(self, object key, object value) except -2:
        cdef int answer = CHANGE_REFUSED
        cdef SingleChanges changes = self._changes
        if changes is not None and changes.may_be_quick(key):
            answer = changes.change(key, value)
            if unlikely(changes.ledger.filter is None):
                self._grow_if_due(1)  # it had no room
        return answer

    def __setitem__(self, key, value):
        if not PyBytes_CheckExact(value) or self._quick_change(key, value) == CHANGE_REFUSED:
            self._set_slowly(key, value)

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
        cdef int answer = self._quick_change(key, None)
        return self._delete_slowly(key) if answer == CHANGE_REFUSED else answer == CHANGE_COUNTS

    def __delitem__(self, key):
        if not self.delete(key):
            raise KeyError(key)


cdef class PutPath:
    """Base of :class:`dlbf.storage.transactions.WriteTransaction`: a put of bytes without Python around it.

    Subclasses bring ``commit``, ``_put_slowly``, for everything else, and ``_again``, for a map that is full.
    """

    def _begin(self, WritesCore writes):
        """Begin LMDB's transaction."""
        self.writing = Writing(writes)
        self._txn = self.writing.begin()

    def _end(self):
        """End it: what is not committed is undone."""
        cdef bint unchanged = self._txn is not None and not self._dirty and not self._torn
        self._check_thread()
        self._txn = self._redo = self.plain_put = None
        if self.writing is not None:
            try:
                if unchanged and self.writing.owner != 0:
                    self.writing.writes.end_unchanged()
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
            return self._put_slowly(key, value)
        n = PyBytes_GET_SIZE(key)
        if unlikely(n == 0 or n > self.max_plain_bytes):
            return self._put_slowly(key, value)
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
            self.writing.writes.environment.blame_closing(error)
            raise
