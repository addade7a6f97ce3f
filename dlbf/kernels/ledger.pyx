"""What answers: a filter, the position in the log that it is complete for, and the log's newest position.

A ledger answers as long as the newest position in the log, seen through shared memory, is the one its filter is
complete for: an absent key costs two loads, one hash and one probe; no system call, no lock.  When the two differ
nothing is answered from the filter, and :class:`dlbf.storage.ledger.Ledger` catches up first.

The filter that answers changes only in :meth:`LedgerCore.follow`, one compiled call.  Everything slower works on a
filter that nobody asks, and puts it in by one assignment (:meth:`dlbf.storage.ledger.Ledger.adopt`).
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from dlbf.kernels.journal cimport apply_operations

from dlbf.errors import FilterFullError

ABSENT = ANSWER_ABSENT
MAYBE = ANSWER_MAYBE
UNKNOWN = ANSWER_UNKNOWN

cdef uint64_t NEVER = <uint64_t>0xFFFFFFFFFFFFFFFF
# What a word shows that is not attached: no position is 0.
cdef uint64_t NOWHERE = 0


def boottime_ns():
    """Nanoseconds since the machine was booted, those it slept included: what ``Word.until_ns`` is compared with."""
    return boottime_now()


cdef class Word:
    """The newest position of a log: the larger of two numbers in memory that other processes may write.

    ``until_ns`` is for a log elsewhere, whose newest position is known for the time of a lease: nothing is answered
    from that moment on.  0: what is seen is true at every moment.
    """

    def __cinit__(self):
        self.first = self.second = self.note = <const uint8_t*>&NOWHERE

    def __dealloc__(self):
        if self.attached:
            PyBuffer_Release(&self.taken.view)

    def attach(self, buffer, Py_ssize_t first_offset, Py_ssize_t second_offset, Py_ssize_t note_offset=-1):
        """Watch two offsets of a buffer; and a third one, at which a writer's note is, if there is such."""
        cdef Py_ssize_t last = max(first_offset, second_offset, note_offset)
        self.detach()
        PyObject_GetBuffer(buffer, &self.taken.view, PyBUF_SIMPLE)
        if min(first_offset, second_offset) < 0 or last + 8 > self.taken.view.len:
            PyBuffer_Release(&self.taken.view)
            raise ValueError("the positions are outside of the buffer")
        self.attached = True
        self.first = <const uint8_t*>self.taken.view.buf + first_offset
        self.second = <const uint8_t*>self.taken.view.buf + second_offset
        if note_offset >= 0:
            self.note = <const uint8_t*>self.taken.view.buf + note_offset

    def detach(self):
        """Watch nothing; a second time nothing happens."""
        self.first = self.second = self.note = <const uint8_t*>&NOWHERE
        if self.attached:
            self.attached = False
            PyBuffer_Release(&self.taken.view)

    def newest(self):
        """The newest position, or None where it cannot be seen."""
        return word_newest(self) if self.attached else None


cdef class LedgerCore:
    """Base of :class:`dlbf.storage.ledger.Ledger`."""

    def __cinit__(self, *args, **kwargs):
        self.epoch = 1
        self.lock = LedgerLock()
        self.word = Word()
        self.current = NEVER
        self.own_forks = fork_count

    def watch(self, Word word):
        """Compare with this word from now on."""
        self.word = word

    cdef void _offer(self) noexcept:
        self.epoch += 1
        self.current = self.applied

    cdef void _withdraw(self) noexcept:
        self.epoch += 1
        self.current = NEVER

    cdef void _drop(self) noexcept:
        self._withdraw()
        self.filter = None
        self.applied = 0

    def offer(self):
        """Answer from the filter as long as the position it is complete for is the newest."""
        self._offer()

    def withdraw(self):
        """Answer nothing from the filter until it is offered again."""
        self._withdraw()

    def drop(self):
        """Forget the filter; the next catch-up loads it again."""
        self._drop()

    def is_current(self):
        """Whether the filter may be asked right now."""
        return bool(ledger_usable(self))

    def complete_for(self):
        """The position that answers are of; None while nothing answers."""
        return None if self.current == NEVER else self.current

    def answering(self):
        """The filter that answers, or None."""
        return None if self.current == NEVER else self.filter

    def ask(self, bytes key):
        """``ABSENT``, ``MAYBE``, or ``UNKNOWN``: the filter may not be asked right now."""
        return ledger_ask(self, key)

    def ask_at(self, bytes key, uint64_t position):
        """The same for a view of the past: the filter holds every key of it unless one was removed since."""
        if (
            self.current == NEVER or self.current < position or self.removed > position
            or fork_count != self.own_forks or self.word.until_ns
        ):
            return ANSWER_UNKNOWN
        return ledger_probe(self, key)

    def moment(self):
        """What :meth:`remember` must know: to be asked for before the data are read."""
        return ledger_moment(self)

    def remember(self, bytes key, uint64_t moment):
        """A key was read after ``moment`` was noted, and is not there; it may be entered among the absent ones."""
        ledger_remember(self, key, moment)

    cpdef bint follow(self, uint64_t position, record, Py_ssize_t n_operations) except -1:
        """Apply the (checked) record of ``position`` to the filter; :meth:`offer` may follow.

        False: it has no room, and is kept as ``full``.  After any exception there is no filter: it may be half changed.
        """
        cdef const uint8_t[::1] view = record
        return self._follow(position, &view[0], view.shape[0], n_operations)

    cdef bint _follow(
        self, uint64_t position, const uint8_t* record, Py_ssize_t size, Py_ssize_t n_operations,
        const uint64_t* hashes=NULL
    ) except -1:
        cdef Py_ssize_t n_removed = 0
        self._withdraw()
        if n_operations:
            try:
                n_removed = apply_operations(self.filter, record, size, None, hashes)
            except FilterFullError:
                self.full = self.filter
                self._drop()
                return False
            except BaseException:
                self._drop()
                raise
        self.applied = position
        self.added += n_operations - n_removed
        self.deleted += n_removed
        self.n_operations += n_operations
        self.log_bytes += size
        if n_removed:
            self.removed = position
        return True

    cdef int follow_own(
        self, uint64_t position, const uint8_t* record, Py_ssize_t size, Py_ssize_t n_operations,
        FilterCore hashed_for=None, const uint64_t* hashes=NULL
    ) except -1:
        """The same for a commit of this process, if nobody else is at it: then they, or the next reader, catch up.

        Who has hashed the keys for a filter may give the hashes: they serve if it is still that filter.
        """
        if self.lock.acquire(False):
            try:
                if (
                    self.filter is not None and self.applied == position - 1
                    and self._follow(
                        position, record, size, n_operations, hashes if self.filter is hashed_for else NULL
                    )
                ):
                    self._offer()
            finally:
                self.lock.release()
        return 0
