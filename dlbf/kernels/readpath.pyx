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

The second half of the file is the journal's inner loop: operations on keys as bytes, and applying them to a filter.
"""

from cpython.buffer cimport (
    Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.math cimport log, log1p
from libc.string cimport memcmp, memcpy

from dlbf.kernels.core cimport KEY_ABSENT, KEY_NO_ROOM, FilterCore
from dlbf.kernels.hashing cimport hash_for_filter, hash_key, xxh3
from dlbf.kernels.types cimport (
    gate_read_one_done, gate_try_read, gate_write, gate_write_done, likely, load64, store64, uint8_t, uint64_t,
    unlikely,
)

from dlbf.errors import ChecksumError, FilterFullError, FormatError, StoreError

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

cdef uint64_t NEVER = <uint64_t>0xFFFFFFFFFFFFFFFF

cdef enum:
    # Bytes of a journal record before its operations; see storage/layout.py.
    RECORD_HEAD_BYTES = 40
    # Operations parsed, hashed and prefetched before the first of them is applied.
    GROUP = 32


cdef class ReadPath:
    """Base of :class:`dlbf.storage.Store`; subclasses bring ``_get_slow``, ``_fetch_slow``, ``_samples_full`` and
    ``_start_sweeping``.
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
    cdef object map_error          # LMDB's "somebody made the map larger"
    cdef Py_ssize_t max_plain_bytes
    cdef object live               # a read transaction kept for the next read; None: none, or in use
    cdef uint64_t live_id          # the transaction it sees
    cdef readonly bint live_used   # whether it was used since somebody last cleared this
    cdef bint keep_live            # whether one may be kept at all
    cdef bint swept                # whether somebody is watching that it is not kept for long
    cdef readonly Py_ssize_t n_reading   # read transactions open in this process
    cdef bint held                 # no new ones: the map is about to move
    cdef readonly uint64_t n_lookups
    cdef readonly uint64_t n_filtered
    cdef readonly uint64_t n_false_positives
    cdef readonly uint64_t n_unfiltered
    cdef readonly uint64_t epoch   # raised whenever the filter changes
    cdef list samples              # absent keys that were drawn and not taken yet
    cdef Py_ssize_t max_samples
    cdef readonly double sample_every    # one in so many absent keys is drawn; 0: none
    cdef uint64_t sample_in        # absent keys until the next one that is drawn
    cdef uint64_t sample_state     # of the generator that draws
    cdef double sample_log         # 1 / log(1 - 1 / sample_every)

    def __cinit__(self, *args, **kwargs):
        self.has_meta = False
        self.current = NEVER
        self.own_forks = fork_count
        self.samples = []
        self.sample_every = 0
        self.sample_in = NEVER

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

    def _attach_reader(self, begin, data_db, map_error, Py_ssize_t max_plain_bytes):
        """How to read: ``Environment.begin``, the database of the data, the longest key stored as it is."""
        self.begin = begin
        self.data_db = data_db
        self.map_error = map_error
        self.max_plain_bytes = max_plain_bytes

    def _keep_live(self, bint keep):
        """Whether a read may leave its transaction open for the next one."""
        self.keep_live = keep
        if not keep:
            self._drop_live()

    def _drop_live(self):
        """End the transaction that is being kept, if any."""
        txn = self.live
        self.live = None
        if txn is not None:
            txn.abort()

    def _sweep(self):
        """End the kept transaction unless it was used since the last call; False if there was none to look at."""
        if self.live is None and not self.live_used:
            self.swept = False
            return False
        if not self.live_used:
            self._drop_live()
        self.live_used = False
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
        self.epoch += 1
        self.current = txn_id

    def _withdraw(self):
        """Answer nothing from the filter until the next offer."""
        self.epoch += 1
        self.current = NEVER

    def _word(self):
        """The newest transaction id, or None where it cannot be seen."""
        return self._newest() if self.has_meta else None

    def _is_current(self):
        return bool(self._usable())

    def _was_forked(self):
        """Whether this process is a child of the one that opened the store."""
        return fork_count != self.own_forks

    def _hold_reads(self, bint held):
        self.held = held

    def _read_began(self):
        """Count a read transaction; False while the map is about to move."""
        if self.held:
            return False
        self.n_reading += 1
        return True

    def _read_ended(self):
        self.n_reading -= 1

    def _sample_misses(self, double every, Py_ssize_t max_samples, uint64_t seed):
        """Draw each absent key with probability ``1 / every`` (0: none), all by chance and none by its turn.

        ``_samples_full`` is called when ``max_samples`` have been drawn and not taken.
        """
        self.sample_every = every
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
    def n_samples(self):
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
        if self.sample_every <= 1:
            return 1
        u = (<double>(z >> 11) + 1) / 9007199254740992.0  # above 0, at most 1
        return 1 + <uint64_t>(log(u) * self.sample_log)

    cdef int _draw(self, object key) except -1:
        if not self.sample_every:
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
            self.sample_in = self._gap() if self.sample_every else NEVER
        self.sample_in -= n_absent - at
        return out

    def _add_samples(self, keys):
        self.samples.extend(keys)
        if len(self.samples) >= self.max_samples:
            self._samples_full()

    def _count(self, uint64_t lookups=0, uint64_t filtered=0, uint64_t false_positives=0, uint64_t unfiltered=0):
        self.n_lookups += lookups
        self.n_filtered += filtered
        self.n_false_positives += false_positives
        self.n_unfiltered += unfiltered

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
        if unlikely(n == 0 or n > self.max_plain_bytes or self.held):
            return self._fetch_slow(key, default, asked)
        self.n_reading += 1
        try:
            # Taken out of its place while it is used, so no other thread can have it.
            txn = self.live
            self.live = None
            if txn is not None and (not self.has_meta or self.live_id != self._newest()):
                txn.abort()
                txn = None
            if txn is None:
                txn = self.begin(self.data_db)
                if self.keep_live:
                    self.live_id = txn.id()
            value = txn.get(key)
            if self.keep_live and self.live is None and not self.held:
                self.live = txn
                self.live_used = True
                if unlikely(not self.swept):
                    self.swept = True
                    self._start_sweeping()
            else:
                txn.abort()
        except self.map_error:
            value = NotImplemented
        finally:
            self.n_reading -= 1
        if unlikely(value is NotImplemented):
            return self._fetch_slow(key, default, asked)
        if value is None:
            if asked:
                self.n_false_positives += 1
            self._absent(key)
            return default
        return value

    # --- the mapping

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
        cdef int answer = self._quick(key)
        if likely(answer == ABSENT):
            self.n_lookups += 1
            self.n_filtered += 1
            self._absent(key)
            return default
        if answer == MAYBE:
            self.n_lookups += 1
            return self._fetch(key, default, True)
        return self._get_slow(key, default)

    def __contains__(self, key):
        return self.get(key, self) is not self

    def __getitem__(self, key):
        value = self.get(key, self)
        if value is self:
            raise KeyError(key)
        return value


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


# --- the journal's inner loop


cdef class OperationLog:
    """Operations of one transaction, in the bytes of a journal record.

    An operation is a LEB128 number, twice the key's length plus one for a removal, then the key.
    """

    cdef bytearray buffer
    cdef Py_ssize_t size
    cdef readonly Py_ssize_t n_added
    cdef readonly Py_ssize_t n_removed
    cdef readonly Py_ssize_t n_most       # most keys there were on the way, over those at the start

    def __cinit__(self):
        self.buffer = bytearray(256)
        self.size = RECORD_HEAD_BYTES

    @property
    def nbytes(self):
        """Bytes of the record so far."""
        return self.size

    def __len__(self):
        return self.n_added + self.n_removed

    cdef int _append(self, bytes key, int removal) except -1:
        cdef Py_ssize_t n = PyBytes_GET_SIZE(key)
        cdef uint64_t number = (<uint64_t>n << 1) | removal
        cdef uint8_t* out
        if self.size + n + 10 > len(self.buffer):
            PyByteArray_Resize(self.buffer, 2 * (self.size + n + 10))
        out = <uint8_t*>PyByteArray_AS_STRING(self.buffer) + self.size
        while number >= 0x80:
            out[0] = <uint8_t>(number | 0x80)
            out += 1
            number >>= 7
        out[0] = <uint8_t>number
        out += 1
        memcpy(out, PyBytes_AS_STRING(key), n)
        self.size = (out - <uint8_t*>PyByteArray_AS_STRING(self.buffer)) + n
        return 0

    cpdef added(self, bytes key):
        """A key that was not there is there now."""
        self._append(key, 0)
        self.n_added += 1
        if self.n_added - self.n_removed > self.n_most:
            self.n_most = self.n_added - self.n_removed

    def removed(self, bytes key):
        """A key that was there is not there any more."""
        self._append(key, 1)
        self.n_removed += 1

    def record(self, uint64_t txn_id, uint64_t generation, uint64_t flags, bint with_operations=True):
        """The journal record of transaction ``txn_id``."""
        cdef Py_ssize_t size = self.size if with_operations else RECORD_HEAD_BYTES
        cdef uint8_t* out = <uint8_t*>PyByteArray_AS_STRING(self.buffer)
        store64(out + 8, txn_id)
        store64(out + 16, generation)
        store64(out + 24, flags)
        store64(out + 32, len(self) if with_operations else 0)
        store64(out, xxh3(out + 8, size - 8))
        return PyByteArray_AS_STRING(self.buffer)[:size]


cdef class PutPath:
    """Base of :class:`dlbf.storage.transactions.WriteTransaction`: a put of bytes without Python around it.

    Subclasses bring ``_put_slow``, for everything else, and ``_again``, for a map that is full.
    """

    cdef object plain_put          # the put of LMDB's transaction; None: every put is a slow one
    cdef object data_db
    cdef object full_error         # LMDB's "the map is full"
    cdef OperationLog plain_log
    cdef Py_ssize_t max_plain_bytes
    cdef public bint _dirty        # whether anything was written

    def _attach_put(self, plain_put, data_db, OperationLog journal, full_error, Py_ssize_t max_plain_bytes):
        """Put keys of up to ``max_plain_bytes`` with ``plain_put``, and log those that are new."""
        self.data_db = data_db
        self.plain_log = journal
        self.full_error = full_error
        self.max_plain_bytes = max_plain_bytes
        self.plain_put = plain_put

    def _detach_put(self):
        """Leave every put to ``_put_slow``."""
        self.plain_put = None

    def put(self, key, value):
        """Store a value; True if the key is new."""
        cdef Py_ssize_t n
        if unlikely(
            self.plain_put is None or not PyBytes_CheckExact(key) or not PyBytes_CheckExact(value)
        ):
            return self._put_slow(key, value)
        n = PyBytes_GET_SIZE(key)
        if unlikely(n == 0 or n > self.max_plain_bytes):
            return self._put_slow(key, value)
        self._dirty = True
        try:
            # value, overwriting?, appending?: a key that is there costs a second call, a new one the journal.
            if self.plain_put(key, value, True, False, False, self.data_db):
                self.plain_log.added(<bytes>key)
                return True
            self.plain_put(key, value, True, True, False, self.data_db)
            return False
        except self.full_error:
            return self._again()


def read_record(record, uint64_t txn_id):
    """Check a journal record; returns its generation, flags and number of operations.

    Raises
    ------
    ChecksumError, FormatError
        If it is not the whole, unchanged record of transaction ``txn_id``.
    """
    cdef const uint8_t[::1] view = record
    cdef Py_ssize_t n = view.shape[0]
    if n < RECORD_HEAD_BYTES:
        raise FormatError(f"journal record {txn_id}: expected at least {RECORD_HEAD_BYTES} bytes, found {n}")
    if load64(&view[0]) != xxh3(&view[8], n - 8):
        raise ChecksumError(f"journal record {txn_id} does not match its checksum")
    if load64(&view[8]) != txn_id:
        raise FormatError(f"journal record {txn_id} says that it belongs to transaction {load64(&view[8])}")
    return load64(&view[16]), load64(&view[24]), load64(&view[32])


cdef int next_operation(const uint8_t* data, Py_ssize_t size, Py_ssize_t* at, size_t* n_bytes) except -1:
    """Parse one operation; ``at`` then points behind its key.  1: a removal, 0: an addition."""
    cdef uint64_t number = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        if at[0] >= size or shift > 56:
            raise FormatError("a journal record ends inside an operation")
        byte = data[at[0]]
        at[0] += 1
        number |= <uint64_t>(byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if (number >> 1) > <uint64_t>(size - at[0]):
        raise FormatError("a journal record ends inside a key")
    n_bytes[0] = number >> 1
    at[0] += n_bytes[0]
    return number & 1


def operations(record):
    """The operations of a record as (is_removal, key) pairs."""
    cdef const uint8_t[::1] view = record
    cdef Py_ssize_t at = RECORD_HEAD_BYTES, size = view.shape[0]
    cdef size_t n
    cdef int removal
    out = []
    while at < size:
        removal = next_operation(&view[0], size, &at, &n)
        out.append((bool(removal), (<const char*>&view[0] + at - n)[:n]))
    return out


def apply_record(filter, record, bytes upto=None):
    """Apply the operations of a (checked) record to a filter, in order.

    Parameters
    ----------
    filter : FilterCore or any object with ``add`` and ``remove``
    record : buffer
    upto : bytes, optional
        Only keys up to this one, itself included.

    Returns
    -------
    int
        Number of removals applied.

    Raises
    ------
    FilterFullError
        If the filter has no room; some operations have been applied then.
    StoreError
        If a key to remove is certainly not in the filter, which means that it was not complete (or has false negatives
        by design, which is no error).
    """
    cdef const uint8_t[::1] view = record
    cdef const uint8_t* base = &view[0]
    cdef Py_ssize_t at = RECORD_HEAD_BYTES, size = view.shape[0]
    cdef const uint8_t* keys[GROUP]
    cdef size_t lengths[GROUP]
    cdef int kinds[GROUP]
    cdef uint64_t hashes[GROUP]
    cdef int i, n
    cdef int answer = 1
    cdef size_t length
    cdef int kind, order
    cdef Py_ssize_t n_removed = 0
    cdef FilterCore core
    if not isinstance(filter, FilterCore):
        for removal, key in operations(record):
            if upto is None or key <= upto:
                if not removal:
                    filter.add(key)
                else:
                    n_removed += 1
                    try:
                        filter.remove(key)
                    except KeyError:
                        raise StoreError("the filter does not hold a key that the journal removes") from None
        return n_removed
    core = <FilterCore>filter
    core._need_writable()
    gate_write(&core.gate)
    try:
        while at < size:
            n = 0
            while at < size and n < GROUP:
                kind = next_operation(base, size, &at, &length)
                if upto is not None:
                    order = memcmp(base + at - length, PyBytes_AS_STRING(upto), min(length, <size_t>len(upto)))
                    if order > 0 or (order == 0 and length > <size_t>len(upto)):
                        continue
                kinds[n] = kind
                keys[n] = base + at - length
                lengths[n] = length
                hashes[n] = hash_for_filter(hash_key(&core.hash_key, keys[n], length), core.filter_id)
                core._prefetch(hashes[n])
                n += 1
            i = 0
            while i < n:
                if kinds[i]:
                    answer = core._remove(hashes[i], keys[i], lengths[i])
                    if answer == KEY_ABSENT and not getattr(filter, "false_negatives", False):
                        raise StoreError("the filter does not hold a key that the journal removes")
                    if answer != KEY_NO_ROOM:
                        n_removed += 1
                        i += 1
                        continue
                else:
                    answer = core._add(hashes[i], keys[i], lengths[i])
                    if answer > 0:
                        i += 1
                        continue
                    if answer < 0:
                        raise FilterFullError("the store's filter cannot take a key back that it has forgotten")
                # A set of deleted keys may grow; anything else says that it is full.  It takes the gate itself.
                gate_write_done(&core.gate)
                try:
                    core._make_room(lengths[i])
                finally:
                    gate_write(&core.gate)
    finally:
        gate_write_done(&core.gate)
    return n_removed
