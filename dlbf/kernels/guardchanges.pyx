"""A change of one key, or a batch of new ones, through a guard, without Python around it but for the engine.

The same steps as in :mod:`dlbf.storage.guarding`, in the same order: the writers' lock, is the key there, a note, the
record, the word, the engine.  The lock is kept for the next change, and given back some milliseconds later by a thread
that looks after it (:meth:`GuardChanges.let_go`): taking it costs as much as everything else.

Whatever is not the common case (another process has written, a checkpoint or a larger filter is due, the log's file has
to grow) is refused before anything has changed, and left to that module.  To overwrite a key needs nothing of the log.
"""

cimport cython
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE

from dlbf.kernels.filelog cimport NOTE_ADDING, NOTE_NOTHING, NOTE_REMOVING
from dlbf.kernels.forks cimport fork_count
from dlbf.kernels.journal cimport NUMBER_BYTES, RECORD_HEAD_BYTES, RECORD_REMOVED, put_head, put_operation, reached
from dlbf.kernels.ledger cimport ANSWER_ABSENT, ledger_probe
from dlbf.kernels.locks cimport PyThread_get_thread_ident
from dlbf.kernels.types cimport unlikely

cdef enum:
    # Keys that a process knows the filter to have entries for, at most.
    MOST_KNOWN = 4096

cdef enum:
    # What became of a change.
    CHANGE_REFUSED = -1      # not the common case: do it slowly
    CHANGE_NOTHING = 0       # there was nothing to be deleted
    CHANGE_DONE = 1


cdef class GuardChanges:
    """See the module.

    Parameters
    ----------
    environment, log, ledger, traffic
        Parts of the guard.
    mutex : OwnLock
        One thread changes something.
    writer : FileLock
        One process does.
    engine : Adapter
        One whose writes never arrive late, and that does not tell what it has deleted.
    failed, grow : callable
        Called with the exception of an engine's write, to settle it; and when the filter had no room for a key.
    boot : bytes, optional
        This boot of the machine, if records are not synced.
    watch : callable, optional
        Called when the writers' lock was taken and is kept for the next change: see that ``let_go`` is called soon.
    """

    def __init__(
        self, EnvironmentCore environment, FileLogCore log, LedgerCore ledger, TrafficCore traffic, OwnLock mutex,
        FileLock writer, engine, failed, grow, bytes boot=None, watch=None
    ):
        self.environment = environment
        self.log = log
        self.ledger = ledger
        self.traffic = traffic
        self.mutex = mutex
        self.writer = writer
        self.put = engine.put
        self.put_many = engine.put_many
        self.has = engine.has
        self.has_many = engine.has_many
        self.delete = engine.delete
        self.sync = engine.sync if boot is None else None
        self.failed = failed
        self.grow = grow
        self.boot = boot
        self.watch = watch
        self.known = set()

    def allow(self, Py_ssize_t n_changes):
        """Let so many follow; whatever else changes the filter counts as well."""
        self.n_last = self.ledger.n_operations + n_changes
        self.generation = self.ledger.generation

    cdef bint _may_be_quick(self) noexcept:
        return (
            self.ledger.filter is not None and self.ledger.generation == self.generation
            and self.environment.handle is not None and self.environment.closing == 0
            and fork_count == self.ledger.own_forks
        )

    cdef bint _may_log(self, LogFile file, Py_ssize_t n_keys, Py_ssize_t n_bytes) noexcept:
        """Whether a record of so many keys, whose operations have at most ``n_bytes``, can be written now, and no
        other code has run since :meth:`_begin` that has changed something: a signal handler, a finalizer.
        """
        cdef LedgerCore ledger = self.ledger
        return (
            file is self.log.file and file.head.word() == ledger.current
            and ledger.n_operations + n_keys <= self.n_last
            and ledger.log_bytes + RECORD_HEAD_BYTES + n_bytes <= ledger.log_limit
            and not self.traffic.report_due and file.has_room(RECORD_HEAD_BYTES + n_bytes)
        )

    cdef LogFile _begin(self):
        """Become the writer; the file to write to, or None: this change is not for here.  :meth:`_end` must follow a
        file, and nothing else.
        """
        cdef LogFile file
        cdef LedgerCore ledger = self.ledger
        cdef bint fits = False, kept
        if not self._may_be_quick() or not self.mutex.lock.acquire(False):
            return None
        self.mutex.owner = PyThread_get_thread_ident()
        try:
            kept = self.writer.taken
            if kept or self.writer.acquire(False):
                if not kept and self.watch is not None:
                    self.watch()
                file = self.log.file
                fits = (
                    file.head.word() == ledger.current == ledger.applied == file.position
                    and self._may_be_quick() and file.head.is_idle(self.boot) and file.head.ends_at(file.end)
                )
        finally:
            if not fits:
                self._end(False)
        if not fits:
            return None
        reached("guard-locked")
        return file

    cdef int _end(self, bint keep) except -1:
        """Let other threads write; and other processes, unless the lock is kept for the next change."""
        if not keep or self.is_wanted or self.watch is None:
            self.is_wanted = False
            self.writer.release()
        self.mutex.owner = 0
        self.mutex.lock.release()
        return 0

    def let_go(self):
        """Give back a lock that is being kept; False: a thread is in the middle of a change, try again."""
        if not self.mutex.lock.acquire(False):
            self.is_wanted = True  # whoever has it gives it back
            return False
        if fork_count == self.ledger.own_forks:
            self.writer.release()
        self.mutex.lock.release()
        return True

    def keep_no_more(self):
        """Nobody would give back a lock that is being kept."""
        self.watch = None

    @property
    def is_open(self):
        """Whether the guard is."""
        return self.environment.handle is not None

    cdef uint8_t* _record(self, LogFile file, bytes key, int removal, Py_ssize_t* size) noexcept:
        """Write a record of one key behind the newest one; where it is, and its length."""
        cdef uint8_t* record = file.space()
        size[0] = RECORD_HEAD_BYTES + put_operation(record + RECORD_HEAD_BYTES, key, removal)
        put_head(
            record, size[0], file.position + 1, self.ledger.generation, RECORD_REMOVED if removal else 0, 1
        )
        return record

    cdef int _show(self, LogFile file, uint8_t* record, Py_ssize_t size, Py_ssize_t n_keys) except -1:
        """The record that was written is the newest: let the filter follow."""
        cdef uint64_t position = file.position + 1
        file.place_record(size)
        reached("journal-written")
        file.show(position)
        reached("commit-done")
        self.ledger.follow_own(position, record, size, n_keys)
        reached("filter-applied")
        return 0

    cdef bint _is_there(self, bytes key) except -1:
        """Whether the engine has a key; what the filter denies needs no question."""
        return ledger_probe(self.ledger, key) != ANSWER_ABSENT and self.has(key)

    cdef bint _is_known(self, bytes key) except -1:
        """Whether a key that the filter lets pass has an entry: the engine is asked, unless this process knows.

        It knows of keys that it has stored or asked for since anybody else has changed something.
        """
        return key in self.known or self.has(key)

    cdef int _know(self, LogFile file, bytes key) except -1:
        """The newest change was ours, or there was none: a key has an entry."""
        if unlikely(len(self.known) >= MOST_KNOWN):
            self.known.clear()
        self.known.add(key)
        self.known_at = file.position
        return 0

    cdef int store(self, bytes key, bytes value, bint new) except -2:
        """Store a value."""
        cdef Py_ssize_t size = 0
        cdef uint8_t* record
        cdef LogFile file = self._begin()
        if file is None:
            return CHANGE_REFUSED
        try:
            if self.known_at != file.position:
                self.known.clear()
                self.known_at = file.position
            if not new and ledger_probe(self.ledger, key) != ANSWER_ABSENT and self._is_known(key):
                reached("guard-checked")
                try:
                    self.put(key, value)
                    reached("guard-engine-written")
                except BaseException as error:
                    self.failed(error)
                    raise
                if file.position == self.known_at:
                    self._know(file, key)
                return CHANGE_DONE
            reached("guard-checked")
            if unlikely(not self._may_log(file, 1, NUMBER_BYTES + PyBytes_GET_SIZE(key))):
                return CHANGE_REFUSED
            record = self._record(file, key, 0, &size)
            reached("data-written")
            file.head.set_note(NOTE_ADDING, file.position + 1)
            reached("guard-intent-written")
            self._show(file, record, size, 1)
            try:
                if self.sync is not None:
                    file.sync()
                reached("guard-journaled")
                self.put(key, value)
                reached("guard-engine-written")
            except BaseException as error:
                self.failed(error)
                raise
            file.head.set_note(NOTE_NOTHING, 0)
            reached("guard-intent-cleared")
            if file.position == self.known_at + 1:
                self._know(file, key)
            if unlikely(self.ledger.filter is None):
                self.grow(1)
            return CHANGE_DONE
        finally:
            self._end(True)

    def store_batch(self, dict batch, list items):
        """Store many values, of which ``items`` has the pairs (each key once); False: not here.

        One record has all keys that are new.
        """
        cdef Py_ssize_t n_bytes = 0, size = RECORD_HEAD_BYTES, i, n_new
        cdef list new = [], doubtful = []
        cdef uint8_t* record
        cdef LogFile file = self._begin()
        if file is None:
            return False
        try:
            for key in batch:
                (new if ledger_probe(self.ledger, key) == ANSWER_ABSENT else doubtful).append(key)
            if doubtful:
                for key, there in zip(doubtful, self.has_many(doubtful), strict=True):
                    if not there:
                        new.append(key)
            reached("guard-checked")
            n_new = len(new)
            for i in range(n_new):
                n_bytes += NUMBER_BYTES + PyBytes_GET_SIZE(<bytes>new[i])
            if n_new and not self._may_log(file, n_new, n_bytes):
                return False
            if n_new:
                record = file.space()
                for i in range(n_new):
                    size += put_operation(record + size, <bytes>new[i], 0)
                put_head(record, size, file.position + 1, self.ledger.generation, 0, n_new)
                reached("data-written")
                file.head.set_note(NOTE_ADDING, file.position + 1)
                reached("guard-intent-written")
                if self.known_at == file.position:
                    self.known_at = file.position + 1  # they are known, still
                self._show(file, record, size, n_new)
            try:
                if n_new:
                    if self.sync is not None:
                        file.sync()
                    reached("guard-journaled")
                self.put_many(items)
                reached("guard-engine-written")
            except BaseException as error:
                self.failed(error)
                raise
            if n_new:
                file.head.set_note(NOTE_NOTHING, 0)
                reached("guard-intent-cleared")
                if unlikely(self.ledger.filter is None):
                    self.grow(n_new)
            return True
        finally:
            self._end(True)

    cdef int remove(self, bytes key) except -2:
        """Delete a key."""
        cdef Py_ssize_t size = 0
        cdef LogFile file = self._begin()
        if file is None:
            return CHANGE_REFUSED
        try:
            if not self._is_there(key):
                return CHANGE_NOTHING
            reached("guard-checked")
            if unlikely(not self._may_log(file, 1, NUMBER_BYTES + PyBytes_GET_SIZE(key))):
                return CHANGE_REFUSED
            self._record(file, key, 1, &size)
            file.stage_in_place(size)
            file.head.set_note(NOTE_REMOVING, file.position + 1)
            reached("guard-intent-written")
            try:
                self.delete(key)
                if self.sync is not None:
                    self.sync()
                reached("guard-engine-written")
            except BaseException as error:
                self.failed(error)
                raise
            reached("data-written")
            if self.known_at == file.position:
                self.known.discard(key)
                self.known_at = file.position + 1
            self._show(file, file.space(), size, 1)  # where it is now: another thread may have mapped the file anew
            reached("guard-journaled")
            file.head.set_note(NOTE_NOTHING, 0)
            reached("guard-intent-cleared")
            if unlikely(self.ledger.filter is None):
                self.grow(1)
            return CHANGE_DONE
        finally:
            self._end(True)


cdef class GuardCore(LookupCore):
    """Base of :class:`dlbf.storage.Guard`, which brings ``_put_slowly`` and ``_delete_slowly``."""

    def __setitem__(self, key, value):
        cdef GuardChanges changes = self._changes
        if (
            changes is None or not PyBytes_CheckExact(key) or not PyBytes_CheckExact(value)
            or changes.store(<bytes>key, <bytes>value, False) == CHANGE_REFUSED
        ):
            self._put_slowly(key, value, False, None)

    # A plain method; see methods.pyx.
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def put(self, key, value, new=False, ttl=None):
        """Store a value.

        Parameters
        ----------
        key : key
        value : buffer
        new : bool
            True: the caller knows that the key is not there, so the engine is not asked.  Where that is wrong the
            filter gets an entry too many (until the next rebuild) and nothing worse.
        ttl : float, optional
            Seconds after which the engine deletes the key by itself, for engines whose keys expire (Redis and Valkey).
            The filter is not told: the key keeps its entry, one needless read when it is asked for, until the next
            rebuild.  A put without ``ttl`` makes the key stay, as the engine's own does.

        Raises
        ------
        StoreError
            If the engine's keys do not expire; nothing has changed then.
        """
        cdef GuardChanges changes = self._changes
        if (
            changes is None or ttl is not None or not PyBytes_CheckExact(key) or not PyBytes_CheckExact(value)
            or changes.store(<bytes>key, <bytes>value, bool(new)) == CHANGE_REFUSED
        ):
            self._put_slowly(key, value, new, ttl)

    # A plain method; see methods.pyx.
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def delete(self, key):
        """Delete a key; True if it was there."""
        cdef GuardChanges changes = self._changes
        cdef int answer = CHANGE_REFUSED
        if changes is not None and PyBytes_CheckExact(key):
            answer = changes.remove(<bytes>key)
        return self._delete_slowly(key) if answer == CHANGE_REFUSED else answer == CHANGE_DONE

    def __delitem__(self, key):
        if not self.delete(key):
            raise KeyError(key)
