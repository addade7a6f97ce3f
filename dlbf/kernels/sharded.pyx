"""The sharded filter; what it is, and who may change what, is in ``sharded.pxd``."""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from libc.string cimport memset

from dlbf.kernels.cells cimport CellsCore, cells_contains, cells_prefetch
from dlbf.kernels.composite cimport (
    PART_ALL, PART_BITS, PART_COUNTERS, PART_CUCKOO, PART_RIBBON, Composite, composite_region, composite_regions,
)
from dlbf.kernels.core cimport KEY_NO_ROOM
from dlbf.kernels.cuckoo cimport (
    CuckooCore, cuckoo_bucket, cuckoo_contains, cuckoo_fingerprint, cuckoo_matches, cuckoo_other,
)
from dlbf.kernels.hashing cimport hash_for_filter, hash_key
from dlbf.kernels.keys cimport CHUNK_KEYS, KeyChunk
from dlbf.kernels.ribbon cimport RibbonCore, RibbonRow, ribbon_contains, ribbon_holds, ribbon_row
from dlbf.kernels.types cimport (
    gate_read_one_done, gate_try_read, gate_write, gate_write_done, likely, memory_barrier, prefetch, uint8_t, uint16_t,
    uint32_t, uint64_t, unlikely,
)

import numpy as np

FILTER_ID = SHARD_ID

cdef enum:
    # Shards without probes up to which the keys of a chunk are gathered shard by shard; beyond, most shards would have
    # one or two.
    GATHERED_SHARDS = 512
    # Keys between a prefetch and the look it is for; a power of two.
    AHEAD = 16
    # Probes up to which there are some: beyond, no cache would hold them.
    MAX_PROBES = 1 << 20
    NO_PROBE = 0xFFFF


# A key of a batch, between the prefetch and the look.
ctypedef struct Look:
    const Probe* probe
    uint32_t kind
    uint32_t value
    uint64_t h
    uint64_t first
    uint64_t second
    RibbonRow row


cdef inline Py_ssize_t shard_of(uint64_t h, int shift) noexcept nogil:
    # In two steps: by 64, for one shard, is undefined.
    return <Py_ssize_t>((h >> 1) >> (shift - 1))


cdef inline bint has_probe(uint32_t kind) noexcept nogil:
    return kind == PART_CUCKOO or kind == PART_RIBBON or kind == PART_BITS or kind == PART_COUNTERS


cdef inline void look_ahead(Look* look, uint32_t kind) noexcept nogil:
    """Work out where a key is and fetch it."""
    cdef const Cuckoo* cuckoo = &look.probe.geometry.cuckoo
    cdef const uint8_t* data = look.probe.data
    if kind == PART_CUCKOO:
        look.value = cuckoo_fingerprint(cuckoo, look.h)
        look.first = cuckoo_bucket(cuckoo, look.h)
        look.second = cuckoo_other(cuckoo, look.first, look.value)
        prefetch(data + ((look.first * cuckoo.bucket_bits) >> 3))
        prefetch(data + ((look.second * cuckoo.bucket_bits) >> 3))
    elif kind == PART_RIBBON:
        if look.probe.geometry.ribbon.n_rows:
            ribbon_row(&look.probe.geometry.ribbon, data, look.h, &look.row)
            prefetch(look.row.first)
            prefetch(look.row.second)
    elif kind == PART_BITS or kind == PART_COUNTERS:
        cells_prefetch(&look.probe.geometry.cells, data, look.h)


cdef inline bint look_at(const Look* look, uint32_t kind) noexcept nogil:
    """The answer."""
    cdef const Cuckoo* cuckoo = &look.probe.geometry.cuckoo
    cdef const uint8_t* data = look.probe.data
    if kind == PART_CUCKOO:
        return (
            cuckoo_matches(cuckoo, data, look.first, look.value) | cuckoo_matches(cuckoo, data, look.second, look.value)
        ) != 0
    if kind == PART_RIBBON:
        return look.probe.geometry.ribbon.n_rows != 0 and ribbon_holds(&look.row)
    if kind == PART_BITS or kind == PART_COUNTERS:
        return cells_contains(&look.probe.geometry.cells, data, look.h)
    return True


cdef inline bint look_many(
    const Probe* probes, int shift, uint32_t kind, const uint64_t* hashes, Py_ssize_t n, uint8_t* out,
) noexcept nogil:
    """The answers of plain shards, all of one ``kind``, which callers write out: so it is decided once, not for every
    key.  False if a shard has no probe; its keys are answered with "maybe" then."""
    cdef Look looks[AHEAD]
    cdef Look* look
    cdef Py_ssize_t i
    cdef bint all_there = True
    for i in range(n + AHEAD):
        look = &looks[i & (AHEAD - 1)]
        if i >= AHEAD:
            out[i - AHEAD] = look.probe.data == NULL or look_at(look, kind)
        if i < n:
            look.probe = &probes[shard_of(hashes[i], shift)]
            if likely(look.probe.data != NULL):
                look.h = hash_for_filter(hashes[i], SHARD_ID)
                look_ahead(look, kind)
            else:
                all_there = False
    return all_there


cdef class ShardedCore(FilterCore):
    """Kernel of :class:`dlbf.ShardedFilter`."""

    def _set_shards(self, list counts, CompositeCore router=None):
        """Begin with so many shards, a power of two, none of which is open; their numbers of keys.

        ``router`` is the pattern of learned ones.
        """
        cdef Py_ssize_t n = len(counts)
        cdef uint32_t r
        if n < 1 or n & (n - 1):
            raise ValueError(f"the number of shards must be a power of two, found {n}")
        self.n_shards = n
        self.at.shift = 65 - n.bit_length()
        self.filters = list(counts)
        room = bytearray(n * sizeof(void*))
        self.room = [room]
        self.at.cores = <void**>PyByteArray_AS_STRING(room)
        self.maybe = FilterCore()
        self.n_unchecked = n
        self.router = router
        self.at.n_regions = 1 if router is None else router.composite.n_regions
        self.at.probes = NULL
        for r in range(<uint32_t>MAX_REGIONS):
            self.at.kind[r] = NO_PROBE
            self.at.table_id[r] = 0
        if n * <Py_ssize_t>self.at.n_regions <= MAX_PROBES and self._set_kinds():
            self._set_room()

    cdef bint _set_kinds(self) noexcept:
        """Note what tables the regions have; False if they have none that there are probes of."""
        cdef const Composite* c
        cdef uint32_t r
        if self.router is None:
            return True  # the first shard that is opened says
        c = &self.router.composite
        if c.has_initial or c.has_deleted or c.hides_score:
            return False
        for r in range(self.at.n_regions):
            if not (c.member[r].kind == PART_ALL or has_probe(c.member[r].kind)):
                return False
            self.at.kind[r] = c.member[r].kind
            if self.at.kind[r] != PART_ALL:
                self.at.table_id[r] = c.member[r].filter_id
        return True

    def _set_room(self):
        """Room for probes: aligned to cache lines, and no memory before it is written to."""
        cdef uint64_t[::1] view
        cdef size_t at
        room = np.zeros(8 + self.n_shards * self.at.n_regions * (sizeof(Probe) // 8), dtype=np.uint64)
        self.room.append(room)
        view = room
        at = <size_t>&view[0]
        self.at.probes = <Probe*>(at + (64 - at % 64) % 64)

    def _put_shard(self, Py_ssize_t number, FilterCore filter):
        """Answer from that filter for the keys of a shard; None: let all of them pass.  The first one put in stays."""
        self._check_shard(number, filter)
        if self.at.cores[number] != NULL:
            return
        self._put_in(number, filter)
        self.n_unchecked -= 1

    def _replace_shard(self, Py_ssize_t number, FilterCore filter not None):
        """Answer from another filter for the keys of a shard, in one step; returns the one before, if there was."""
        self._check_shard(number, filter)
        gate_write(&self.gate)
        try:
            self._need_open()
            before = self._shard_at(number)
            if self.at.cores[number] == NULL:
                self.n_unchecked -= 1
            # Nobody is at work on it, so what its probe says may change.
            self._put_in(number, filter)
        finally:
            gate_write_done(&self.gate)
        return before

    cdef int _check_shard(self, Py_ssize_t number, FilterCore filter) except -1:
        self._need_open()
        if not 0 <= number < self.n_shards:
            raise IndexError(f"shard {number} of {self.n_shards}")
        if filter is not None and filter.filter_id != SHARD_ID:
            raise ValueError(f"a filter with the id {filter.filter_id} is not a shard, which has {FILTER_ID}")
        return 0

    cdef int _put_in(self, Py_ssize_t number, FilterCore filter) except -1:
        cdef Probe* probe = NULL
        cdef const uint8_t* data[MAX_REGIONS]
        cdef uint32_t r
        cdef bint has_probes = False
        if filter is None:
            filter = self.maybe
        else:
            self.filters[number] = filter
        if self.at.probes != NULL:
            probe = self.at.probes + number * self.at.n_regions
            has_probes = filter is not self.maybe and self._fill_probes(filter, probe, data)
        # Batches that are at work on other shards see all of it, or nothing, without the GIL.
        memory_barrier()
        self.at.cores[number] = <void*>filter
        if probe != NULL:
            for r in range(self.at.n_regions):
                probe[r].data = data[r] if has_probes else NULL
        return 0

    cdef bint _fill_probes(self, FilterCore filter, Probe* probe, const uint8_t** data) except -1:
        """Note what questions need of a shard, all but where its tables are; False if it must be asked through its
        class."""
        cdef const Composite* c
        cdef uint32_t r, kind
        if self.router is None:
            kind = getattr(filter, "KIND", NO_PROBE)
            if not has_probe(kind):
                return False
            if kind == PART_CUCKOO:
                probe.geometry.cuckoo = (<CuckooCore?>filter).geometry
            elif kind == PART_RIBBON:
                probe.geometry.ribbon = (<RibbonCore?>filter).geometry
            else:
                probe.geometry.cells = (<CellsCore?>filter).geometry
            if self.at.kind[0] == NO_PROBE:
                self.at.kind[0] = kind
            data[0] = filter.data
            return self.at.kind[0] == kind
        c = &(<CompositeCore?>filter).composite
        if c.n_regions != self.at.n_regions or c.has_initial or c.has_deleted or c.hides_score:
            return False
        for r in range(self.at.n_regions):
            kind = c.member[r].kind
            if kind != self.at.kind[r] or (kind != PART_ALL and c.member[r].filter_id != self.at.table_id[r]):
                return False
            # Where everything passes there is no table, but there is an answer.
            data[r] = c.member[r].data if kind != PART_ALL else filter.data
            if kind == PART_CUCKOO:
                probe[r].geometry.cuckoo = c.member[r].cuckoo
            elif kind == PART_RIBBON:
                probe[r].geometry.ribbon = c.member[r].ribbon
            elif kind != PART_ALL:
                probe[r].geometry.cells = c.member[r].cells
        return True

    def _shard_at(self, Py_ssize_t number):
        """The filter of an open shard; None if it is not open, or lets everything pass."""
        filter = self.filters[number]
        return filter if isinstance(filter, FilterCore) else None

    def _is_open(self, Py_ssize_t number):
        """Whether something answers for that shard."""
        return self.at.cores[number] != NULL

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
        self.at.cores, self.at.probes = NULL, NULL
        self.filters, self.room, self.router, self.n_unchecked = None, None, None, 0
        return filters

    cdef int _check_places(self, uint64_t h) except -1:
        cdef Py_ssize_t number = shard_of(h, self.at.shift)
        if self.at.cores[number] == NULL:
            self._open_shard(number)
        return 0

    def _check_all(self):
        """Open every shard."""
        cdef Py_ssize_t number
        self._need_open()
        if self.n_unchecked:
            for number in range(self.n_shards):
                if self.at.cores[number] == NULL:
                    self._open_shard(number)

    def __len__(self):
        cdef Py_ssize_t number
        cdef uint64_t n = 0
        if self.at.cores == NULL:
            return 0
        for number in range(self.n_shards):
            if self.at.cores[number] == NULL or self.at.cores[number] == <void*>self.maybe:
                n += <uint64_t>self.filters[number]
            else:
                n += (<FilterCore>self.at.cores[number]).n_items
        return n

    def __bool__(self):
        return len(self) != 0

    def __contains__(self, key):
        cdef const uint8_t* data
        cdef size_t n
        cdef bint found
        cdef uint64_t h
        cdef Py_ssize_t number
        cdef const Probe* probe
        # The common case by itself: bytes, and the shard is open.
        if likely(PyBytes_Check(key) and self.data != NULL and gate_try_read(&self.gate)):
            data = <const uint8_t*>PyBytes_AS_STRING(key)
            n = PyBytes_GET_SIZE(key)
            h = hash_key(&self.hash_key, data, n)
            number = shard_of(h, self.at.shift)
            probe = self._probe_of(number)
            if likely(probe != NULL):
                found = self._probe_one(probe, hash_for_filter(h, SHARD_ID), data, n)
                gate_read_one_done(&self.gate)
                return found
            if likely(self.at.cores[number] != NULL):
                found = (<FilterCore>self.at.cores[number])._contains(hash_for_filter(h, SHARD_ID), data, n)
                gate_read_one_done(&self.gate)
                return found
            gate_read_one_done(&self.gate)
        return self._contains_other(key)

    @cython.final
    cdef inline const Probe* _probe_of(self, Py_ssize_t number) noexcept nogil:
        """The first probe of a shard, NULL if there is none."""
        cdef const Probe* probe = self.at.probes
        if unlikely(probe == NULL):
            return NULL
        probe += number * self.at.n_regions
        return probe if likely(probe.data != NULL) else NULL

    @cython.final
    cdef inline bint _probe_one(self, const Probe* probe, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        """Whether a shard whose probes begin there has the key; its hash as shards see it."""
        cdef uint32_t r = 0
        if self.at.n_regions > 1:
            r = composite_region(&self.router.composite, h, key, n)
            probe += r
        h = hash_for_filter(h, self.at.table_id[r])
        if self.at.kind[r] == PART_CUCKOO:
            return cuckoo_contains(&probe.geometry.cuckoo, probe.data, h)
        if self.at.kind[r] == PART_RIBBON:
            return ribbon_contains(&probe.geometry.ribbon, probe.data, h)
        if self.at.kind[r] == PART_BITS or self.at.kind[r] == PART_COUNTERS:
            return cells_contains(&probe.geometry.cells, probe.data, h)
        return True

    def _route(self, keys):
        """The number of the shard of every key of a batch, as a numpy array of uint32."""
        from dlbf.kernels.hashing import hash64_many  # not needed to answer
        return route_hashes(hash64_many(keys, self._secret), self.n_shards)

    # --- leaves

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef Py_ssize_t number = shard_of(h, self.at.shift)
        cdef const Probe* probe = self._probe_of(number)
        cdef void* core
        h = hash_for_filter(h, SHARD_ID)
        if probe != NULL:
            return self._probe_one(probe, h, key, n)
        core = self.at.cores[number]
        return core == NULL or (<FilterCore>core)._contains(h, key, n)

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        cdef void* core = self.at.cores[shard_of(h, self.at.shift)]
        if core != NULL:
            (<FilterCore>core)._prefetch(hash_for_filter(h, SHARD_ID))

    cdef void _contains_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        cdef Look looks[AHEAD]
        cdef uint16_t index[CHUNK_KEYS]
        cdef uint8_t regions[CHUNK_KEYS]
        cdef Look* look
        cdef Py_ssize_t i
        cdef uint32_t r = 0
        if self.at.probes == NULL or self.at.kind[0] == NO_PROBE:
            self._contains_gathered(chunk, hashes, out)
            return
        if self.at.n_regions == 1 and self.router is None:
            self._contains_plain(chunk, hashes, out)
            return
        if self.at.n_regions > 1:
            for i in range(chunk.n):
                index[i] = <uint16_t>i
            composite_regions(&self.router.composite, chunk, hashes, index, chunk.n, regions)
        for i in range(chunk.n + AHEAD):
            look = &looks[i & (AHEAD - 1)]
            if i >= AHEAD:
                if likely(look.probe != NULL):
                    out[i - AHEAD] = look_at(look, look.kind)
                else:
                    out[i - AHEAD] = self._contains(
                        hashes[i - AHEAD], chunk.data[i - AHEAD], chunk.n_bytes[i - AHEAD]
                    )
            if i < chunk.n:
                look.probe = self._probe_of(shard_of(hashes[i], self.at.shift))
                if likely(look.probe != NULL):
                    if self.at.n_regions > 1:
                        r = regions[i]
                        look.probe += r
                    look.kind = self.at.kind[r]
                    look.h = hash_for_filter(hash_for_filter(hashes[i], SHARD_ID), self.at.table_id[r])
                    look_ahead(look, look.kind)

    cdef void _contains_plain(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        cdef bint all_there
        cdef Py_ssize_t i
        if self.at.kind[0] == PART_CUCKOO:
            all_there = look_many(self.at.probes, self.at.shift, PART_CUCKOO, hashes, chunk.n, out)
        elif self.at.kind[0] == PART_BITS:
            all_there = look_many(self.at.probes, self.at.shift, PART_BITS, hashes, chunk.n, out)
        elif self.at.kind[0] == PART_COUNTERS:
            all_there = look_many(self.at.probes, self.at.shift, PART_COUNTERS, hashes, chunk.n, out)
        else:
            all_there = look_many(self.at.probes, self.at.shift, PART_RIBBON, hashes, chunk.n, out)
        if not all_there:
            for i in range(chunk.n):
                if self._probe_of(shard_of(hashes[i], self.at.shift)) == NULL:
                    out[i] = self._contains(hashes[i], chunk.data[i], chunk.n_bytes[i])

    cdef void _contains_gathered(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        """The answers of shards that have no probes: each is asked at once for all of its keys."""
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
            ends[shard_of(hashes[i], self.at.shift) + 1] += 1
        for number in range(self.n_shards):
            ends[number + 1] += ends[number]
        for i in range(chunk.n):
            number = shard_of(hashes[i], self.at.shift)
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
                core = self.at.cores[number]
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
        cdef Py_ssize_t number = shard_of(h, self.at.shift)
        cdef void* core = self.at.cores[number]
        cdef int answer = 0
        if core != NULL and core != <void*>self.maybe:
            answer = (<FilterCore>core)._add(hash_for_filter(h, SHARD_ID), key, n)
        if answer <= 0:
            self.wanted = number
        return answer

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef Py_ssize_t number = shard_of(h, self.at.shift)
        cdef void* core = self.at.cores[number]
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
