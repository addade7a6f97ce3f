"""The journal's inner loops: operations on keys as bytes, records, blocks of them, and applying them to a filter.

What the bytes mean is in :mod:`dlbf.storage.layout`.  Nothing here reads or writes a database.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcmp, memcpy, memset

from dlbf.kernels.core cimport (
    KEY_ABSENT, KEY_NO_ROOM, FilterCore, filter_add, filter_make_room, filter_prefetch, filter_remove,
)
from dlbf.kernels.hashing cimport hash_for_filter, hash_key, xxh3
from dlbf.kernels.payload cimport payload_need_writable
from dlbf.kernels.types cimport gate_write, gate_write_done, load32, load64, store64, uint8_t, uint64_t

from dlbf.errors import ChecksumError, FilterFullError, FormatError, StoreError

cdef enum:
    # Operations parsed, hashed and prefetched before the first of them is applied.
    GROUP = 32
    # Before the records of a block, and before each of them.
    BLOCK_HEAD_BYTES = 8
    FRAME_HEAD_BYTES = 4
    # With the databases' own entries, one page of LMDB's main database; more would take a page of its own.
    TAIL_BYTES = 1920

# "block", version 1.  A record begins with its checksum: one in 2**64 is taken for a block, and then found damaged.
cdef uint64_t BLOCK_MAGIC = <uint64_t>0x0100006B636F6C62

FLAG_REMOVED = RECORD_REMOVED  # for dlbf.storage.layout

# --- named steps, see storage/steps.py

cdef object step_hook = None


def set_hook(hook):
    """Call ``hook(name)`` at every step; None: no more."""
    global step_hook
    step_hook = hook


cpdef reached(str name):
    """The store is at this step."""
    if step_hook is not None:
        step_hook(name)


# --- writing

cdef Py_ssize_t put_operation(uint8_t* out, bytes key, int removal) noexcept:
    """Write an operation, of at most ``NUMBER_BYTES`` and the key; returns its length."""
    cdef Py_ssize_t n = PyBytes_GET_SIZE(key), at = 0
    cdef uint64_t number = (<uint64_t>n << 1) | <uint64_t>removal
    while number >= 0x80:
        out[at] = <uint8_t>(number | 0x80)
        at += 1
        number >>= 7
    out[at] = <uint8_t>number
    at += 1
    memcpy(out + at, PyBytes_AS_STRING(key), n)
    return at + n


cdef void put_head(
    uint8_t* out, Py_ssize_t size, uint64_t txn_id, uint64_t generation, uint64_t flags, uint64_t n_operations,
) noexcept:
    """Complete a record of ``size`` bytes, whose operations are there."""
    store64(out + 8, txn_id)
    store64(out + 16, generation)
    store64(out + 24, flags)
    store64(out + 32, n_operations)
    store64(out, xxh3(out + 8, size - 8))


cdef class OperationLog:
    """Operations of one transaction, in the bytes of a journal record.

    An operation is a LEB128 number, twice the key's length plus one for a removal, then the key.
    """

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
        if self.size + n + NUMBER_BYTES > len(self.buffer):
            PyByteArray_Resize(self.buffer, 2 * (self.size + n + NUMBER_BYTES))
        self.size += put_operation(<uint8_t*>PyByteArray_AS_STRING(self.buffer) + self.size, key, removal)
        return 0

    cpdef added(self, bytes key):
        """A key that was not there is there now."""
        self._append(key, 0)
        self.n_added += 1
        if self.n_added - self.n_removed > self.n_most:
            self.n_most = self.n_added - self.n_removed

    cpdef removed(self, bytes key):
        """A key that was there is not there any more."""
        self._append(key, 1)
        self.n_removed += 1

    def add_all(self, list keys, bint removal):
        """All of these keys (bytes) were added, or removed."""
        cdef bytes key
        for key in keys:
            if removal:
                self.removed(key)
            else:
                self.added(key)

    cpdef clear(self):
        """No operations."""
        self.size = RECORD_HEAD_BYTES
        self.n_added = self.n_removed = self.n_most = 0

    cpdef bytes record(self, uint64_t txn_id, uint64_t generation, uint64_t flags, bint with_operations=True):
        """The journal record of transaction ``txn_id``."""
        cdef Py_ssize_t size = self.size if with_operations else RECORD_HEAD_BYTES
        cdef uint8_t* out = <uint8_t*>PyByteArray_AS_STRING(self.buffer)
        put_head(out, size, txn_id, generation, flags, len(self) if with_operations else 0)
        return PyByteArray_AS_STRING(self.buffer)[:size]


cdef class Tail:
    """The newest records of the journal, as the one value that holds them: a block, and zeros behind it.

    ``known`` says of which committed transaction it is; whoever changes it sets that to 0 first, and to the new
    transaction when that is committed.  So what an aborted one has left here is never taken for what is on disk.
    """

    def __cinit__(self):
        self.value = bytearray(TAIL_BYTES)
        self.data = <uint8_t*>PyByteArray_AS_STRING(self.value)
        self.clear()

    def clear(self):
        """No records."""
        self.known = self.last = 0
        memset(self.data, 0, TAIL_BYTES)
        store64(self.data, BLOCK_MAGIC)
        self.n_bytes = BLOCK_HEAD_BYTES

    def load(self, value):
        """Take the value that was read; None: there was none.

        Raises
        ------
        FormatError
            If it is no block of consecutive records; it is empty then.
        """
        cdef const uint8_t[::1] view
        self.clear()
        if value is None:
            return
        runs = frames(value)
        if len(value) != TAIL_BYTES:
            raise FormatError(f"the journal's tail has {len(value)} bytes, expected {TAIL_BYTES}")
        if runs:
            view = value
            memcpy(self.data, &view[0], TAIL_BYTES)
            start, end = runs[len(runs) - 1]
            self.n_bytes = end
            self.last = load64(self.data + <Py_ssize_t>start + 8)

    cpdef bint stage(self, bytes record, uint64_t txn_id) except -1:
        """Add a record; False if it has no room."""
        cdef Py_ssize_t n = PyBytes_GET_SIZE(record)
        if n > self.room():
            return False
        memcpy(self.frame(n), PyBytes_AS_STRING(record), n)
        self.last = txn_id
        return True

    def block(self):
        """The records as a block, without the zeros."""
        return PyByteArray_AS_STRING(self.value)[:self.n_bytes]

    cdef Py_ssize_t room(self) noexcept:
        """Bytes of the largest record that can be added."""
        return TAIL_BYTES - self.n_bytes - FRAME_HEAD_BYTES

    cdef uint8_t* frame(self, Py_ssize_t n_bytes) noexcept:
        """Where a record of ``n_bytes`` goes, which is now the newest."""
        cdef uint8_t* out = self.data + self.n_bytes
        out[0] = <uint8_t>n_bytes
        out[1] = <uint8_t>(n_bytes >> 8)
        self.n_bytes += FRAME_HEAD_BYTES + n_bytes
        return out + FRAME_HEAD_BYTES


# --- reading


cdef list frames(value):
    """Where the records of a block begin and end; consecutive ones, and nothing but zeros behind them."""
    cdef const uint8_t[::1] view = value
    cdef Py_ssize_t size = view.shape[0], at = BLOCK_HEAD_BYTES, n
    cdef uint64_t last = 0
    cdef list out = []
    if size < BLOCK_HEAD_BYTES or load64(&view[0]) != BLOCK_MAGIC:
        raise FormatError("a block of the journal does not begin as one")
    while at + FRAME_HEAD_BYTES <= size:
        n = load32(&view[at])
        if n == 0:
            break
        at += FRAME_HEAD_BYTES
        if n < RECORD_HEAD_BYTES or n > size - at:
            raise FormatError(f"a block of the journal has a record of {n} bytes where {size - at} are left")
        if last and load64(&view[at + 8]) != last + 1:
            raise FormatError(f"a block of the journal has {load64(&view[at + 8])} after {last}")
        last = load64(&view[at + 8])
        out.append((at, at + n))
        at += n
    while at < size:
        if view[at]:
            raise FormatError("a block of the journal has bytes behind its last record")
        at += 1
    return out


def split_entry(value, uint64_t txn_id):
    """The records of a journal entry under the key ``txn_id``: itself, or those of a block whose last one that is.

    Returns
    -------
    list of (int, buffer)
        Transaction and record; the records are not checked, see :func:`read_record`.

    Raises
    ------
    FormatError
        If it is a block, and not a whole one.
    """
    cdef const uint8_t[::1] view = value
    cdef Py_ssize_t start, end
    if view.shape[0] < BLOCK_HEAD_BYTES or load64(&view[0]) != BLOCK_MAGIC:
        return [(txn_id, value)]
    return [(load64(&view[start + 8]), value[start:end]) for start, end in frames(value)]


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
    cdef Py_ssize_t n_removed = 0
    if isinstance(filter, FilterCore):
        return apply_operations(filter, &view[0], view.shape[0], upto)
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


cdef Py_ssize_t apply_operations(
    FilterCore core, const uint8_t* record, Py_ssize_t size, bytes upto, const uint64_t* known_hashes=NULL
) except -1:
    """The same for a compiled filter; who has the hashes of all keys (then ``upto`` is None) may give them."""
    cdef Py_ssize_t at = RECORD_HEAD_BYTES
    cdef const uint8_t* keys[GROUP]
    cdef size_t lengths[GROUP]
    cdef int kinds[GROUP]
    cdef uint64_t hashes[GROUP]
    cdef int i, n
    cdef int answer = 1
    cdef size_t length
    cdef int kind, order
    cdef Py_ssize_t n_removed = 0, n_before = 0
    payload_need_writable(core)
    gate_write(&core.gate)
    try:
        while at < size:
            n = 0
            while at < size and n < GROUP:
                kind = next_operation(record, size, &at, &length)
                if upto is not None:
                    order = memcmp(record + at - length, PyBytes_AS_STRING(upto), min(length, <size_t>len(upto)))
                    if order > 0 or (order == 0 and length > <size_t>len(upto)):
                        continue
                kinds[n] = kind
                keys[n] = record + at - length
                lengths[n] = length
                if known_hashes == NULL:
                    hashes[n] = hash_for_filter(hash_key(&core.hash_key, keys[n], length), core.filter_id)
                else:
                    hashes[n] = known_hashes[n_before + n]
                filter_prefetch(core, hashes[n])
                n += 1
            n_before += n
            i = 0
            while i < n:
                if kinds[i]:
                    answer = filter_remove(core, hashes[i], keys[i], lengths[i])
                    if answer == KEY_ABSENT and not getattr(core, "false_negatives", False):
                        raise StoreError("the filter does not hold a key that the journal removes")
                    if answer != KEY_NO_ROOM:
                        n_removed += 1
                        i += 1
                        continue
                else:
                    answer = filter_add(core, hashes[i], keys[i], lengths[i])
                    if answer > 0:
                        i += 1
                        continue
                    if answer < 0:
                        raise FilterFullError("the store's filter cannot take a key back that it has forgotten")
                # A set of deleted keys may grow; anything else says that it is full.  It takes the gate itself.
                gate_write_done(&core.gate)
                try:
                    filter_make_room(core, lengths[i])
                finally:
                    gate_write(&core.gate)
    finally:
        gate_write_done(&core.gate)
    return n_removed
