"""The sharded filter; what it is, and who may change what, is in ``sharded.pxd``."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from libc.string cimport memset

from dlbf.kernels.core cimport KEY_NO_ROOM
from dlbf.kernels.hashing cimport hash_for_filter, hash_key
from dlbf.kernels.keys cimport CHUNK_KEYS, KeyChunk
from dlbf.kernels.types cimport (
    gate_read_one_done, gate_try_read, gate_write, gate_write_done, likely, uint8_t, uint16_t, uint32_t, uint64_t,
)

import numpy as np

FILTER_ID = SHARD_ID

cdef enum:
    # Shards up to which the keys of a chunk are gathered shard by shard; beyond, most shards would have one or two.
    GATHERED_SHARDS = 512
    # Keys between a prefetch and the probe it is for.
    AHEAD = 16


cdef inline Py_ssize_t shard_of(uint64_t h, int shift) noexcept nogil:
    # In two steps: by 64, for one shard, is undefined.
    return <Py_ssize_t>((h >> 1) >> (shift - 1))


cdef class ShardedCore(FilterCore):
    """Kernel of :class:`dlbf.ShardedFilter`."""

    def _set_shards(self, list counts):
        """Begin with so many shards, a power of two, none of which is open; their numbers of keys."""
        cdef Py_ssize_t n = len(counts)
        if n < 1 or n & (n - 1):
            raise ValueError(f"the number of shards must be a power of two, found {n}")
        self.n_shards = n
        self.shift = 65 - n.bit_length()
        self.filters = list(counts)
        self.room = bytearray(n * sizeof(void*))
        self.cores = <void**>PyByteArray_AS_STRING(self.room)
        self.maybe = FilterCore()
        self.n_unchecked = n

    def _put_shard(self, Py_ssize_t number, FilterCore filter):
        """Answer from that filter for the keys of a shard; None: let all of them pass.  The first one put in stays."""
        if not 0 <= number < self.n_shards:
            raise IndexError(f"shard {number} of {self.n_shards}")
        if self.cores[number] != NULL:
            return
        if filter is None:
            filter = self.maybe
        elif filter.filter_id != SHARD_ID:
            raise ValueError(f"a filter with the id {filter.filter_id} is not a shard, which has {FILTER_ID}")
        else:
            self.filters[number] = filter
        self.cores[number] = <void*>filter
        self.n_unchecked -= 1

    def _drop_shard(self, Py_ssize_t number, uint64_t n_keys):
        """Open the shard anew when it is needed next; returns the filter that was there."""
        gate_write(&self.gate)
        before = self._shard_at(number)
        if self.cores[number] != NULL:
            self.n_unchecked += 1
        self.cores[number] = NULL
        self.filters[number] = n_keys
        gate_write_done(&self.gate)
        return before

    def _shard_at(self, Py_ssize_t number):
        """The filter of an open shard; None if it is not open, or lets everything pass."""
        filter = self.filters[number]
        return filter if isinstance(filter, FilterCore) else None

    def _is_open(self, Py_ssize_t number):
        """Whether something answers for that shard."""
        return self.cores[number] != NULL

    def _open_shard(self, number):
        """Called for a shard that is not open; puts something in.  The Python class knows."""
        raise NotImplementedError

    def _wanted_shard(self):
        """The shard that the last change could not be made in."""
        return self.wanted

    def _lock(self):
        """Be the only one at work on the filter until ``_unlock``; the owner must not ask it anything."""
        gate_write(&self.gate)

    def _unlock(self):
        gate_write_done(&self.gate)

    def _forget_shards(self):
        """After ``_detach``: no filter is open any more; returns those that were."""
        filters = [filter for filter in self.filters or () if isinstance(filter, FilterCore)]
        self.filters, self.cores, self.room, self.n_unchecked = None, NULL, None, 0
        return filters

    cdef int _check_places(self, uint64_t h) except -1:
        cdef Py_ssize_t number = shard_of(h, self.shift)
        if self.cores[number] == NULL:
            self._open_shard(number)
        return 0

    def _check_all(self):
        """Open every shard."""
        cdef Py_ssize_t number
        self._need_open()
        if self.n_unchecked:
            for number in range(self.n_shards):
                if self.cores[number] == NULL:
                    self._open_shard(number)

    def __len__(self):
        cdef Py_ssize_t number
        cdef uint64_t n = 0
        if self.cores == NULL:
            return 0
        for number in range(self.n_shards):
            if self.cores[number] == NULL or self.cores[number] == <void*>self.maybe:
                n += <uint64_t>self.filters[number]
            else:
                n += (<FilterCore>self.cores[number]).n_items
        return n

    def __bool__(self):
        return len(self) != 0

    def __contains__(self, key):
        cdef const uint8_t* data
        cdef size_t n
        cdef bint found
        cdef uint64_t h
        cdef void* core
        # The common case by itself: bytes, and the shard is open.
        if likely(PyBytes_Check(key) and self.data != NULL and gate_try_read(&self.gate)):
            data = <const uint8_t*>PyBytes_AS_STRING(key)
            n = PyBytes_GET_SIZE(key)
            h = hash_key(&self.hash_key, data, n)
            core = self.cores[shard_of(h, self.shift)]
            if likely(core != NULL):
                found = (<FilterCore>core)._contains(hash_for_filter(h, SHARD_ID), data, n)
                gate_read_one_done(&self.gate)
                return found
            gate_read_one_done(&self.gate)
        return self._contains_other(key)

    def _route(self, keys):
        """The number of the shard of every key of a batch, as a numpy array of uint32."""
        from dlbf.kernels.hashing import hash64_many  # not needed to answer
        return route_hashes(hash64_many(keys, self._secret), self.n_shards)

    # --- leaves

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef void* core = self.cores[shard_of(h, self.shift)]
        return core == NULL or (<FilterCore>core)._contains(hash_for_filter(h, SHARD_ID), key, n)

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        cdef void* core = self.cores[shard_of(h, self.shift)]
        if core != NULL:
            (<FilterCore>core)._prefetch(hash_for_filter(h, SHARD_ID))

    cdef void _contains_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        cdef const uint8_t* data[CHUNK_KEYS]
        cdef size_t n_bytes[CHUNK_KEYS]
        cdef uint64_t own[CHUNK_KEYS]
        cdef uint16_t index[CHUNK_KEYS]
        cdef uint16_t ends[GATHERED_SHARDS + 1]
        cdef uint8_t answers[CHUNK_KEYS]
        cdef KeyChunk part
        cdef Py_ssize_t i, at, number, start
        cdef void* core
        if self.n_shards > GATHERED_SHARDS:
            for i in range(chunk.n + AHEAD):
                if i < chunk.n:
                    self._prefetch(hashes[i])
                if i >= AHEAD:
                    out[i - AHEAD] = self._contains(
                        hashes[i - AHEAD], chunk.data[i - AHEAD], chunk.n_bytes[i - AHEAD]
                    )
            return
        part.hashes = NULL
        part.regions = NULL
        # Sort by counting: where the keys of each shard end, then each key to its place.
        memset(ends, 0, (self.n_shards + 1) * sizeof(uint16_t))
        for i in range(chunk.n):
            ends[shard_of(hashes[i], self.shift) + 1] += 1
        for number in range(self.n_shards):
            ends[number + 1] += ends[number]
        for i in range(chunk.n):
            number = shard_of(hashes[i], self.shift)
            at = ends[number]
            ends[number] += 1
            index[at] = <uint16_t>i
            data[at] = chunk.data[i]
            n_bytes[at] = chunk.n_bytes[i]
            own[at] = hash_for_filter(hashes[i], SHARD_ID)
        start = 0
        for number in range(self.n_shards):
            part.n = ends[number] - start
            if part.n:
                core = self.cores[number]
                if core == NULL:
                    memset(answers + start, 1, part.n)
                else:
                    part.data = data + start
                    part.n_bytes = n_bytes + start
                    (<FilterCore>core)._contains_chunk(&part, own + start, answers + start)
            start = ends[number]
        for i in range(chunk.n):
            out[index[i]] = answers[i]

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef Py_ssize_t number = shard_of(h, self.shift)
        cdef void* core = self.cores[number]
        cdef int answer = 0
        if core != NULL and core != <void*>self.maybe:
            answer = (<FilterCore>core)._add(hash_for_filter(h, SHARD_ID), key, n)
        if answer <= 0:
            self.wanted = number
        return answer

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef Py_ssize_t number = shard_of(h, self.shift)
        cdef void* core = self.cores[number]
        cdef int answer = KEY_NO_ROOM
        if core != NULL and core != <void*>self.maybe:
            answer = (<FilterCore>core)._remove(hash_for_filter(h, SHARD_ID), key, n)
        if answer == KEY_NO_ROOM:
            self.wanted = number
        return answer

    cdef void _zero(self) noexcept nogil:
        pass


def route_hashes(const uint64_t[::1] hashes, Py_ssize_t n_shards):
    """The number of the shard of every hash, as a numpy array of uint32.

    Examples
    --------
    >>> import numpy as np
    >>> route_hashes(np.array([0, 1 << 62, 3 << 62], dtype=np.uint64), 4)
    array([0, 1, 3], dtype=uint32)
    """
    cdef Py_ssize_t i, n = hashes.shape[0]
    cdef int shift = 65 - n_shards.bit_length()
    out = np.empty(n, dtype=np.uint32)
    cdef uint32_t[::1] numbers = out
    with nogil:
        for i in range(n):
            numbers[i] = <uint32_t>shard_of(hashes[i], shift)
    return out


def mix_for_shards(uint64_t[::1] hashes):
    """Turn hashes, in place, into what shards see."""
    cdef Py_ssize_t i
    with nogil:
        for i in range(hashes.shape[0]):
            hashes[i] = hash_for_filter(hashes[i], SHARD_ID)
