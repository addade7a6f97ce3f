"""Entry points shared by all kernels: one key, and batches.

Threads: any number of readers, or one writer.  Operations on one key hold the GIL; batches release
it and pass a gate, so a reader never sees half of a change.

Taking the GIL back while another thread wants it costs as much as thousands of keys, so a batch does that as rarely as
its source allows (see keys.pyx).  Passing the gate needs the GIL, leaving it does not: a reading batch leaves as soon
as somebody waits to write, or to fork, a writing batch after ``WRITE_CHUNKS``.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from libc.string cimport memcpy, memset

from dlbf.kernels.hashing cimport hash_chunk, hash_for_filter, hash_key, hash_key_from
from dlbf.kernels.keys cimport CHUNK_KEYS, KeyReader, KeyRef, key_close, key_open, open_keys
from dlbf.kernels.types cimport (
    gate_read, gate_read_done, gate_read_one, gate_read_one_done, gate_try_read, gate_write, gate_write_done,
    gate_write_one, gate_write_one_done, likely, unlikely,
)

import numpy as np

from dlbf.errors import DlbfError, FilterFullError

cdef enum:
    # Keys between a prefetch and the probe it is for.
    AHEAD = 16
    # Chunks that a batch writes before it lets readers in: some tenths of a millisecond.
    WRITE_CHUNKS = 4


cdef class FilterCore(PayloadCore):
    """A filter over a flat buffer; see the public classes in ``dlbf.filters``."""

    # --- the buffer

    def _attach(self, buffer, secret, uint64_t n_items, uint64_t filter_id, sums=None, Py_ssize_t chunk_bytes=0):
        """Work on ``buffer`` from now on.

        With ``sums`` (the chunk sums of a mapped file) each chunk is checked before its first use.
        """
        cdef HashKey key = hash_key_from(secret)
        self._take(buffer, sums, chunk_bytes)
        self.hash_key = key
        self.filter_id = filter_id
        self.n_items = n_items

    def _snapshot(self, allocate):
        """The contents at one moment, which no writer is in the middle of changing.

        Returns the parameters, a copy of the payload in ``allocate(n_bytes)``, and the number of items.
        """
        cdef uint8_t[::1] copy
        gate_read(&self.gate)
        try:
            self._check_all()
            out = allocate(self.n_payload_bytes)
            copy = out
            with nogil:
                memcpy(&copy[0], self.data, self.n_payload_bytes)
            return self._params, out, self.n_items
        finally:
            gate_read_done(&self.gate)

    def _wipe(self):
        """Zero the buffer and the count."""
        self._need_writable()
        gate_write(&self.gate)
        if self.data == NULL:
            gate_write_done(&self.gate)
            self._need_open()
        with nogil:
            self._zero()
        self.n_items = 0
        gate_write_done(&self.gate)

    def _set_items(self, uint64_t n_items):
        self.n_items = n_items

    def _add_items(self, uint64_t n_items):
        # A filter joined with itself again and again would count past what len() can say.
        self.n_items = min(self.n_items + n_items, <uint64_t>1 << 62)

    cdef int _check_places(self, uint64_t h) except -1:
        cdef uint64_t places[MAX_PLACES]
        cdef int i, n
        n = self._places(h, places)
        if n < 0:
            self._check_all()
        for i in range(n):
            self._check_chunk(places[i] // self.sums.chunk_bytes)
        return 0

    # --- leaves, filled in by the kernels

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return True

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return 0

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return KEY_MAYBE

    cdef uint64_t _count(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return self._contains(h, key, n)

    cdef void _zero(self) noexcept nogil:
        memset(self.data, 0, self.n_payload_bytes)

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        pass

    cdef int _places(self, uint64_t h, uint64_t* out) noexcept nogil:
        """Offsets in bytes that a query for ``h`` reads; -1: all of them."""
        return -1

    cdef void _contains_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(min(AHEAD, chunk.n)):
            self._prefetch(hashes[i])
        for i in range(chunk.n):
            if i + AHEAD < chunk.n:
                self._prefetch(hashes[i + AHEAD])
            out[i] = self._contains(hashes[i], chunk.data[i], chunk.n_bytes[i])

    cdef Py_ssize_t _add_chunk(
        self, const KeyChunk* chunk, const uint64_t* hashes, Py_ssize_t i, int* answer
    ) noexcept nogil:
        """Add the keys from number ``i`` on; the number of the first that was not added, and why (see ``_add``)."""
        cdef Py_ssize_t ahead
        for ahead in range(i, min(i + AHEAD, chunk.n)):
            self._prefetch(hashes[ahead])
        while i < chunk.n:
            if i + AHEAD < chunk.n:
                self._prefetch(hashes[i + AHEAD])
            answer[0] = self._add(hashes[i], chunk.data[i], chunk.n_bytes[i])
            if answer[0] <= 0:
                break
            i += 1
        return i

    cdef Py_ssize_t _remove_chunk(
        self, const KeyChunk* chunk, const uint64_t* hashes, Py_ssize_t i, uint8_t* out
    ) noexcept nogil:
        """Remove the keys from number ``i`` on; the number of the first for which there was no room."""
        cdef Py_ssize_t ahead
        cdef int answer
        for ahead in range(i, min(i + AHEAD, chunk.n)):
            self._prefetch(hashes[ahead])
        while i < chunk.n:
            if i + AHEAD < chunk.n:
                self._prefetch(hashes[i + AHEAD])
            answer = self._remove(hashes[i], chunk.data[i], chunk.n_bytes[i])
            if answer == KEY_NO_ROOM:
                break
            out[0] = answer == KEY_REMOVED
            out += 1
            i += 1
        return i

    cdef void _regions_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        """The score region of every key; without a model there is one."""
        memset(out, 0, chunk.n)

    def _make_room(self, n_key_bytes):
        """Called when ``_add`` finds no room for a key of that size; returns after making some, or raises."""
        raise FilterFullError(
            f"no room for one more key after {self.n_items} of them (fill {self.fill:.3f}); nothing was lost. "
            "Build a larger filter and add the keys to it again"
        )

    def _refuse_key(self):
        """Called when ``_add`` says that this key cannot be added; raises."""
        raise DlbfError("this key cannot be added")

    # --- one key

    def __contains__(self, key):
        cdef const uint8_t* data
        cdef size_t n
        cdef bint found
        # The common case by itself: bytes, and nothing left to check.
        if likely(PyBytes_Check(key) and self.data != NULL and self.n_unchecked == 0 and gate_try_read(&self.gate)):
            data = <const uint8_t*>PyBytes_AS_STRING(key)
            n = PyBytes_GET_SIZE(key)
            found = self._contains(
                hash_for_filter(hash_key(&self.hash_key, data, n), self.filter_id), data, n
            )
            gate_read_one_done(&self.gate)
            return found
        return self._contains_other(key)

    cdef bint _contains_other(self, key) except -1:
        cdef KeyRef ref
        cdef uint64_t h
        cdef bint found
        key_open(key, &ref)
        gate_read_one(&self.gate)
        try:
            self._need_open()
            h = hash_for_filter(hash_key(&self.hash_key, ref.data, ref.n_bytes), self.filter_id)
            if unlikely(self.n_unchecked != 0):
                self._check_places(h)
            found = self._contains(h, ref.data, ref.n_bytes)
        finally:
            gate_read_one_done(&self.gate)
            key_close(&ref)
        return found

    def add(self, key):
        """Add one key.

        Raises
        ------
        FilterFullError
            If a table has no room for it; nothing has changed then.
        """
        cdef KeyRef ref
        cdef uint64_t h
        cdef int added
        key_open(key, &ref)
        try:
            self._need_writable()
            h = hash_for_filter(hash_key(&self.hash_key, ref.data, ref.n_bytes), self.filter_id)
            while True:
                gate_write_one(&self.gate)
                added = self._add(h, ref.data, ref.n_bytes) if self.data != NULL else 0
                gate_write_one_done(&self.gate)
                if added > 0:
                    break
                self._need_open()
                if added < 0:
                    self._refuse_key()
                self._make_room(ref.n_bytes)
        finally:
            key_close(&ref)

    def _remove_one(self, key):
        cdef KeyRef ref
        cdef uint64_t h
        cdef int answer
        key_open(key, &ref)
        try:
            self._need_writable()
            h = hash_for_filter(hash_key(&self.hash_key, ref.data, ref.n_bytes), self.filter_id)
            while True:
                gate_write_one(&self.gate)
                answer = self._remove(h, ref.data, ref.n_bytes) if self.data != NULL else KEY_ABSENT
                gate_write_one_done(&self.gate)
                self._need_open()
                if answer != KEY_NO_ROOM:
                    break
                self._make_room(ref.n_bytes)
        finally:
            key_close(&ref)
        return answer

    def remove(self, key):
        """Remove one key that was added before.

        Removing a key that was never added but that the filter takes for present damages
        other keys; no filter of this kind can notice.

        Returns
        -------
        bool
            True: the filter now answers "absent".  False: it still answers "maybe".

        Raises
        ------
        KeyError
            If the key is certainly not there; nothing has changed then.
        """
        cdef int answer = self._remove_one(key)
        if answer == KEY_ABSENT:
            raise KeyError(key)
        return answer == KEY_REMOVED

    def discard(self, key):
        """Like :meth:`remove`, but False instead of KeyError for a key that is certainly not there."""
        return <int>self._remove_one(key) == KEY_REMOVED

    cdef uint64_t _hash_one(self, key) except? 0:
        """The key's hash as this filter sees it."""
        cdef KeyRef ref
        cdef uint64_t h
        key_open(key, &ref)
        h = hash_for_filter(hash_key(&self.hash_key, ref.data, ref.n_bytes), self.filter_id)
        key_close(&ref)
        return h

    def _count_one(self, key):
        cdef KeyRef ref
        cdef uint64_t h, n
        key_open(key, &ref)
        try:
            self._need_open()
            h = hash_for_filter(hash_key(&self.hash_key, ref.data, ref.n_bytes), self.filter_id)
            gate_read_one(&self.gate)
            try:
                self._need_open()
                if self.n_unchecked:
                    self._check_places(h)
                n = self._count(h, ref.data, ref.n_bytes)
            finally:
                gate_read_one_done(&self.gate)
        finally:
            key_close(&ref)
        return n

    def __len__(self):
        return self.n_items

    def __bool__(self):
        return self.n_items != 0

    # --- batches

    cdef void _hash_chunk(self, const KeyChunk* chunk, uint64_t* out) noexcept nogil:
        cdef Py_ssize_t i
        if chunk.hashes != NULL:
            memcpy(out, chunk.hashes, chunk.n * sizeof(uint64_t))
        else:
            hash_chunk(&self.hash_key, chunk.data, chunk.n_bytes, chunk.n, out)
        if self.filter_id:
            for i in range(chunk.n):
                out[i] = hash_for_filter(out[i], self.filter_id)

    def update(self, keys):
        """Add every key of a batch.

        Parameters
        ----------
        keys : iterable of keys, numpy array of dtype S, U, object or integers, or Arrow string or binary array
            Generators are streamed.  An integer is the key ``dlbf.int_key(i)``, whatever the array's width.

        Raises
        ------
        TypeError
            At the first thing that is not a key; the keys before it may have been added.
        FilterFullError
            If a table is full; the keys before the one that did not fit have been added.

        Notes
        -----
        The GIL is released while keys are hashed and stored.
        """
        self._change_many(keys, False)

    def contains_many(self, keys):
        """Ask for every key of a batch.

        Parameters
        ----------
        keys : iterable of keys, numpy array of dtype S, U, object or integers, or Arrow string or binary array

        Returns
        -------
        numpy.ndarray of bool

        Notes
        -----
        The GIL is released while keys are hashed and looked up; several threads may ask one filter at once.
        """
        return np.frombuffer(self._ask_many(keys, False), dtype=np.bool_)

    def remove_many(self, keys):
        """:meth:`discard` every key of a batch.

        Returns
        -------
        numpy.ndarray of bool
            True where the filter now answers "absent" because of the removal; False where it still answers "maybe"
            and where the key was certainly not there.
        """
        return np.frombuffer(self._change_many(keys, True), dtype=np.bool_)

    cdef bytearray _ask_many(self, object keys, bint regions, bytearray kept=None):
        """One byte for every key of a batch: whether it is there, or its region; ``kept`` gets the hashes."""
        cdef KeyReader reader = open_keys(keys)
        cdef uint64_t hashes[CHUNK_KEYS]
        cdef bytearray out = bytearray()
        cdef uint8_t* answers
        cdef uint64_t* kept_hashes = NULL
        cdef Py_ssize_t i, n, done = 0
        self._need_open()
        while True:
            n = reader.next_batch()
            PyByteArray_Resize(out, done + n)
            if kept is not None:
                PyByteArray_Resize(kept, (done + n) * sizeof(uint64_t))
                kept_hashes = <uint64_t*>PyByteArray_AS_STRING(kept)
            if n == 0:
                return out
            answers = <uint8_t*>PyByteArray_AS_STRING(out)
            gate_read(&self.gate)
            try:
                self._need_open()
                with nogil:
                    while reader.next_chunk():
                        self._hash_chunk(&reader.chunk, hashes)
                        if regions:
                            self._regions_chunk(&reader.chunk, hashes, answers + done)
                            if kept_hashes != NULL:
                                memcpy(kept_hashes + done, hashes, reader.chunk.n * sizeof(uint64_t))
                        else:
                            if unlikely(self.n_unchecked != 0):
                                with gil:
                                    for i in range(reader.chunk.n):
                                        self._check_places(hashes[i])
                            self._contains_chunk(&reader.chunk, hashes, answers + done)
                        done += reader.chunk.n
                        if unlikely(self.gate.waiting != 0 or self.gate.crowd.forker != 0):
                            break
            finally:
                gate_read_done(&self.gate)

    cdef bytearray _change_many(self, object keys, bint removing):
        """Add or discard every key of a batch; returns what a removal answers for each."""
        cdef KeyReader reader = open_keys(keys)
        cdef uint64_t hashes[CHUNK_KEYS]
        cdef bytearray out = bytearray()
        cdef uint8_t* answers = NULL
        cdef Py_ssize_t i = 0, n = 0, chunks, first, more, done = 0
        cdef int answer = 1
        self._need_writable()
        while True:
            # A chunk that is not finished (i < n) needed room in the middle.
            if i == n:
                more = reader.next_batch()
                if removing:
                    PyByteArray_Resize(out, done + more)
                    answers = <uint8_t*>PyByteArray_AS_STRING(out)
                if more == 0:
                    return out
                self._need_writable()  # what brings the keys may have opened a reader, or forked
            gate_write(&self.gate)
            if self.data == NULL:
                gate_write_done(&self.gate)
                self._need_open()
            with nogil:
                chunks = 0
                while True:
                    if i == n:
                        if chunks == WRITE_CHUNKS:
                            break
                        chunks += 1
                        i = 0
                        n = reader.next_chunk()
                        if n == 0:
                            break
                        self._hash_chunk(&reader.chunk, hashes)
                    if removing:
                        first = i
                        i = self._remove_chunk(&reader.chunk, hashes, i, answers + done)
                        done += i - first
                    else:
                        i = self._add_chunk(&reader.chunk, hashes, i, &answer)
                    if i < n:
                        break
            gate_write_done(&self.gate)
            if i < n:
                if not removing and answer < 0:
                    self._refuse_key()
                self._make_room(reader.chunk.n_bytes[i])
