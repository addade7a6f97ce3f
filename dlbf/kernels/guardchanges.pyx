"""A change of one key, or a batch of new ones, through a guard, without Python around it but for the engine.

The same steps as in :mod:`dlbf.storage.guarding`, in the same order: the writers' lock, is the key there, a note, the
record, the word, the engine.  The lock is kept for the next change, and given back some milliseconds later by a thread
that looks after it (:meth:`GuardChanges.let_go`): taking it costs as much as everything else.

Whatever is not the common case (another process has written, a checkpoint or a larger filter is due, the log's file has
to grow) is refused before anything has changed, and left to that module.  To overwrite a key needs nothing of the log.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE

from dlbf.kernels.core cimport filter_contains_chunk, filter_hash_chunk
from dlbf.kernels.filelog cimport NOTE_ADDING, NOTE_NOTHING, NOTE_REMOVING
from dlbf.kernels.forks cimport fork_count
from dlbf.kernels.journal cimport NUMBER_BYTES, RECORD_HEAD_BYTES, RECORD_REMOVED, put_head, put_operation, reached
from dlbf.kernels.keychunks cimport CHUNK_KEYS
from dlbf.kernels.ledger cimport ANSWER_ABSENT, ledger_probe
from dlbf.kernels.locks cimport PyThread_get_thread_ident
from dlbf.kernels.types cimport gate_read_one_done, gate_try_read, unlikely

cdef enum:
    # Keys that a process knows the filter to have entries for, at most.
    MOST_KNOWN = 4096

cdef enum:
    # Pairs of a batch that is stored here, at most: their numbers from 1 on fit 16 bits.
    MOST_PAIRS = 0xFFFF

cdef enum:
    # What became of a change.
    CHANGE_REFUSED = -1      # not the common case: do it slowly
    CHANGE_NOTHING = 0       # there was nothing to be deleted
    CHANGE_DONE = 1


cdef class PairBatch:
    """Pairs whose keys are hashed once: to see that none is there twice, for the probe, and for the filter's entries.

    Parameters
    ----------
    pairs : list of tuples of bytes
        Nobody else changes it: it keeps the keys alive.
    filter : FilterCore
        The one that answers.
    """

    def __cinit__(self, list pairs, FilterCore filter):
        cdef Py_ssize_t n = len(pairs), n_places = 2
        cdef uint8_t* at
        self.pairs = pairs
        self.filter = filter
        self.n = n
        while n_places < 2 * n:
            n_places *= 2
        self.room = bytearray(n * (sizeof(void*) + sizeof(size_t) + sizeof(uint64_t) + 1) + n_places * sizeof(uint16_t))
        at = <uint8_t*>PyByteArray_AS_STRING(self.room)
        self.data = <const uint8_t**>at
        self.lengths = <size_t*>(self.data + n)
        self.hashes = <uint64_t*>(self.lengths + n)
        self.places = <uint16_t*>(self.hashes + n)
        self.answers = <uint8_t*>(self.places + n_places)
        self.place_mask = n_places - 1

    cdef bint read(self) except -1:
        """Hash the keys; False: they are more than ``places`` has numbers for, or something is not a pair of bytes."""
        cdef Py_ssize_t i
        cdef KeyChunk chunk
        if self.n > MOST_PAIRS:
            return False
        for i in range(self.n):
            pair = self.pairs[i]
            if type(pair) is not tuple or len(<tuple>pair) != 2:
                return False
            key = (<tuple>pair)[0]
            if not PyBytes_CheckExact(key) or not PyBytes_CheckExact((<tuple>pair)[1]):
                return False
            self.data[i] = <const uint8_t*>PyBytes_AS_STRING(key)
            self.lengths[i] = PyBytes_GET_SIZE(key)
        for i in range(0, self.n, CHUNK_KEYS):
            chunk = self.chunk(i)
            filter_hash_chunk(self.filter, &chunk, self.hashes + i)
        return True

    cdef KeyChunk chunk(self, Py_ssize_t first) noexcept nogil:
        """The keys from a number on."""
        cdef KeyChunk out
        out.n = min(self.n - first, CHUNK_KEYS)
        out.data = self.data + first
        out.n_bytes = self.lengths + first
        out.hashes = NULL
        out.regions = NULL
        return out

    cdef bint is_repeated(self) noexcept nogil:
        """Whether two keys have the same hash, as the same key has."""
        cdef Py_ssize_t i
        cdef uint64_t place
        for i in range(self.n):
            place = self.hashes[i] & self.place_mask
            while self.places[place]:
                if self.hashes[self.places[place] - 1] == self.hashes[i]:
                    return True
                place = (place + 1) & self.place_mask
            self.places[place] = <uint16_t>(i + 1)
        return False

    cdef bint probe(self) except -1:
        """Ask the filter; False: it is being changed."""
        cdef Py_ssize_t i
        cdef KeyChunk chunk
        if unlikely(not gate_try_read(&self.filter.gate)):
            return False
        for i in range(0, self.n, CHUNK_KEYS):
            chunk = self.chunk(i)
            filter_contains_chunk(self.filter, &chunk, self.hashes + i, self.answers + i)
        gate_read_one_done(&self.filter.gate)
        return True

    cdef list doubtful(self):
        """The keys that the filter lets pass."""
        cdef Py_ssize_t i
        return [(<tuple>self.pairs[i])[0] for i in range(self.n) if self.answers[i]]

    cdef int settle(self, list there, Py_ssize_t n_asked) except -1:
        """Which of those the engine has."""
        cdef Py_ssize_t i, at = 0
        if len(there) != n_asked:
            raise ValueError(
                f"the engine's has_many() gave {len(there)} answers for {n_asked} keys; expected one for each"
            )
        for i in range(self.n):
            if self.answers[i]:
                self.answers[i] = bool(there[at])
                at += 1
        return 0

    cdef Py_ssize_t keep_new(self, Py_ssize_t* n_bytes) noexcept:
        """Only the hashes of keys that have no entry; how many they are, and the bytes of a record they may take."""
        cdef Py_ssize_t i, n_new = 0
        n_bytes[0] = 0
        for i in range(self.n):
            if not self.answers[i]:
                self.hashes[n_new] = self.hashes[i]
                n_bytes[0] += NUMBER_BYTES + self.lengths[i]
                n_new += 1
        return n_new

    cdef Py_ssize_t write(self, uint8_t* out) except -1:
        """Their operations; returns the bytes written."""
        cdef Py_ssize_t i, size = 0
        for i in range(self.n):
            if not self.answers[i]:
                size += put_operation(out + size, <bytes>(<tuple>self.pairs[i])[0], 0)
        return size


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

    cdef int _show(
        self, LogFile file, uint8_t* record, Py_ssize_t size, Py_ssize_t n_keys, PairBatch batch=None
    ) except -1:
        """The record that was written is the newest: let the filter follow."""
        cdef uint64_t position = file.position + 1
        file.place_record(size)
        reached("journal-written")
        file.show(position)
        reached("commit-done")
        if batch is None:
            self.ledger.follow_own(position, record, size, n_keys)
        else:
            self.ledger.follow_own(position, record, size, n_keys, batch.filter, batch.hashes)
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

    def store_batch(self, list pairs):
        """Store the values of (key, value) pairs, the last one of each key; False: nothing has changed, not here.

        One record has all keys that are new.
        """
        cdef Py_ssize_t n_bytes = 0, size, n_new
        cdef uint8_t* record
        cdef PairBatch batch
        cdef LogFile file = self._begin()
        if file is None:
            return False
        try:
            batch = PairBatch(pairs, self.ledger.filter)
            if not batch.read():
                return False
            if unlikely(batch.is_repeated()):
                pairs = list(dict(pairs).items())
                batch = PairBatch(pairs, batch.filter)
                batch.read()
            if not batch.probe():
                return False
            doubtful = batch.doubtful()
            if doubtful:
                batch.settle(list(self.has_many(doubtful)), len(doubtful))
            reached("guard-checked")
            n_new = batch.keep_new(&n_bytes)
            if n_new and not self._may_log(file, n_new, n_bytes):
                return False
            if n_new:
                record = file.space()
                size = RECORD_HEAD_BYTES + batch.write(record + RECORD_HEAD_BYTES)
                put_head(record, size, file.position + 1, self.ledger.generation, 0, n_new)
                reached("data-written")
                file.head.set_note(NOTE_ADDING, file.position + 1)
                reached("guard-intent-written")
                if self.known_at == file.position:
                    self.known_at = file.position + 1  # they are known, still
                self._show(file, record, size, n_new, batch)
            try:
                if n_new:
                    if self.sync is not None:
                        file.sync()
                    reached("guard-journaled")
                self.put_many(pairs)
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
