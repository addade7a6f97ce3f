"""The elastic Bloom filter on a flat buffer; layout and rationale are in ``elastic.pxd``."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy, memset

from dlbf.kernels.core cimport KEY_ABSENT, KEY_MAYBE, KEY_REMOVED
from dlbf.kernels.types cimport (
    gate_read, gate_read_done, gate_write, gate_write_done, int64_t, popcount64, store32, store64,
)

import numpy as np

cdef enum:
    STILL = 0
    DOUBLING = 1
    HALVING = 2

cdef enum:
    ROW_BYTES = 32          # bits of a bucket's positions
    EXTRA_STEPS = 8         # most buckets that an add divides beyond its share, should the rate still be too high

# What is missing when ``_add`` finds no room; see ``_missing``.
NOTHING_MISSING = 0
A_LEVEL_MISSING = 1
A_DOUBLING_MISSING = 2
SLOTS_MISSING = 3


# --- one bucket ----------------------------------------------------------------


cdef inline uint8_t* bucket_of(const Elastic* g, uint8_t* data, uint64_t number, uint32_t* entry_bits) noexcept nogil:
    cdef uint64_t position = number << ELASTIC_BUCKET_LOG2
    cdef const ElasticLevel* level = elastic_level(g, position)
    entry_bits[0] = level.entry_bits
    return data + level.buckets_at + ((position - level.first) >> ELASTIC_BUCKET_LOG2) * level.bucket_bytes


cdef inline uint8_t* row_of(const Elastic* g, uint8_t* data, uint64_t number) noexcept nogil:
    """The bits of a bucket's positions."""
    return data + elastic_bit_at(g, number << ELASTIC_BUCKET_LOG2)


cdef inline uint32_t bucket_count(const Elastic* g, const uint8_t* bucket) noexcept nogil:
    # A number that is too large occurs only in forged files; it must not lead outside.
    return min(<uint32_t>bucket[0] | <uint32_t>bucket[1] << 8, g.bucket_slots)


cdef inline void bucket_set_count(uint8_t* bucket, uint32_t n) noexcept nogil:
    bucket[0] = n & 0xFF
    bucket[1] = (n >> 8) & 0xFF


cdef inline uint64_t entry_get(const uint8_t* bucket, uint32_t entry_bits, uint32_t i) noexcept nogil:
    cdef uint64_t bit = <uint64_t>i * entry_bits
    cdef const uint8_t* at = bucket + 2 + (bit >> 3)
    cdef uint32_t shift = bit & 7
    cdef uint64_t word = load64(at) >> shift
    if shift + entry_bits > 64:
        word |= <uint64_t>at[8] << (64 - shift)
    return word & (~<uint64_t>0 >> (64 - entry_bits))


cdef inline void entry_put(uint8_t* bucket, uint32_t entry_bits, uint32_t i, uint64_t value) noexcept nogil:
    cdef uint64_t bit = <uint64_t>i * entry_bits
    cdef uint8_t* at = bucket + 2 + (bit >> 3)
    cdef uint32_t shift = bit & 7
    cdef uint64_t mask = ~<uint64_t>0 >> (64 - entry_bits)
    value &= mask
    store64(at, (load64(at) & ~(mask << shift)) | (value << shift))
    if shift + entry_bits > 64:
        at[8] = <uint8_t>((at[8] & ~((1 << (shift + entry_bits - 64)) - 1)) | <uint8_t>(value >> (64 - shift)))


cdef inline bint bucket_append(const Elastic* g, uint8_t* bucket, uint32_t entry_bits, uint64_t value) noexcept nogil:
    """False, and no change, if it is full: its last slot is the last thing that is written to."""
    cdef uint32_t n = bucket_count(g, bucket)
    if n == g.bucket_slots:
        return False
    entry_put(bucket, entry_bits, n, value)
    bucket_set_count(bucket, n + 1)
    return True


cdef inline uint64_t row_ones(const uint8_t* row) noexcept nogil:
    return (
        popcount64(load64(row)) + popcount64(load64(row + 8))
        + popcount64(load64(row + 16)) + popcount64(load64(row + 24))
    )


# --- one entry -----------------------------------------------------------------


cdef inline uint32_t bits_used(const Elastic* g, const uint8_t* data, uint64_t number) noexcept nogil:
    """How many bits of a hash led to this bucket: e, or one more if it was divided."""
    cdef uint32_t log2 = elastic_log2(g, data)
    cdef uint64_t home = number & ((<uint64_t>1 << (log2 - ELASTIC_BUCKET_LOG2)) - 1)
    return log2 + (home < load64(data + ELASTIC_AT_SPLIT))


cdef inline uint64_t entry_of(uint64_t x, uint64_t position, uint32_t used) noexcept nogil:
    return ((x >> used) << ELASTIC_BUCKET_LOG2) | (position & 0xFF)


cdef inline uint64_t hash_of(uint64_t entry, uint64_t number, uint32_t used) noexcept nogil:
    """The inverse of ``entry_of``."""
    return ((entry >> ELASTIC_BUCKET_LOG2) << used) | (number << ELASTIC_BUCKET_LOG2) | (entry & 0xFF)


cdef inline uint64_t weigh(uint8_t* data, int64_t change) noexcept nogil:
    cdef uint64_t weight = load64(data + ELASTIC_AT_WEIGHT) + <uint64_t>change
    store64(data + ELASTIC_AT_WEIGHT, weight)
    return weight


cdef inline uint64_t stash_get(const uint8_t* data, uint64_t i) noexcept nogil:
    return load64(data + ELASTIC_AT_STASH + 8 * i)


cdef inline uint64_t stashed(const uint8_t* data) noexcept nogil:
    return load64(data + ELASTIC_AT_STASHED)


cdef inline void stash_drop(uint8_t* data, uint64_t i) noexcept nogil:
    cdef uint64_t last = stashed(data) - 1
    store64(data + ELASTIC_AT_STASH + 8 * i, stash_get(data, last))
    store64(data + ELASTIC_AT_STASH + 8 * last, 0)
    store64(data + ELASTIC_AT_STASHED, last)


cdef inline void stash_put(uint8_t* data, uint64_t x) noexcept nogil:
    store64(data + ELASTIC_AT_STASH + 8 * stashed(data), x)
    store64(data + ELASTIC_AT_STASHED, stashed(data) + 1)


cdef void entry_insert(const Elastic* g, uint8_t* data, uint64_t x) noexcept nogil:
    """Store one hash; the caller has seen that its bucket or the stash has room."""
    cdef uint64_t position = elastic_position(g, data, x)
    cdef uint64_t number = position >> ELASTIC_BUCKET_LOG2
    cdef uint32_t used = bits_used(g, data, number), entry_bits = 0
    cdef uint8_t* bucket = bucket_of(g, data, number, &entry_bits)
    cdef uint8_t* byte = data + elastic_bit_at(g, position)
    cdef uint8_t bit = <uint8_t>(1 << (position & 7))
    if not bucket_append(g, bucket, entry_bits, entry_of(x, position, used)):
        stash_put(data, x)
    if not byte[0] & bit:
        byte[0] |= bit
        weigh(data, 2 - (used > elastic_log2(g, data)))


cdef uint64_t entry_count(const Elastic* g, const uint8_t* data, uint64_t x) noexcept nogil:
    """How often a hash is stored."""
    cdef uint64_t position = elastic_position(g, data, x)
    cdef uint64_t number = position >> ELASTIC_BUCKET_LOG2
    cdef uint64_t wanted = entry_of(x, position, bits_used(g, data, number)), i, n = 0
    cdef uint32_t slot, entry_bits = 0
    cdef const uint8_t* bucket = bucket_of(g, <uint8_t*>data, number, &entry_bits)
    for slot in range(bucket_count(g, bucket)):
        n += entry_get(bucket, entry_bits, slot) == wanted
    for i in range(stashed(data)):
        n += stash_get(data, i) == x
    return n


cdef bint entry_take(const Elastic* g, uint8_t* data, uint64_t x) noexcept nogil:
    """Take one hash out, and clear its bit if it was the last at its position; False if it is not there."""
    cdef uint64_t position = elastic_position(g, data, x)
    cdef uint64_t number = position >> ELASTIC_BUCKET_LOG2, i, other
    cdef uint32_t used = bits_used(g, data, number), slot, n, entry_bits = 0
    cdef uint8_t* bucket = bucket_of(g, data, number, &entry_bits)
    cdef uint64_t wanted = entry_of(x, position, used), entry
    cdef uint32_t found = g.bucket_slots
    cdef bint shared = False, taken = False
    n = bucket_count(g, bucket)
    for slot in range(n):
        entry = entry_get(bucket, entry_bits, slot)
        if entry == wanted and found == g.bucket_slots:
            found = slot
        else:
            shared |= (entry & 0xFF) == (position & 0xFF)
    if found < g.bucket_slots:
        taken = True
        entry_put(bucket, entry_bits, found, entry_get(bucket, entry_bits, n - 1))
        entry_put(bucket, entry_bits, n - 1, 0)
        bucket_set_count(bucket, n - 1)
    i = 0
    while i < stashed(data):
        other = elastic_position(g, data, stash_get(data, i))
        if not taken and stash_get(data, i) == x:
            taken = True
            stash_drop(data, i)
            continue
        shared |= other == position
        if other >> ELASTIC_BUCKET_LOG2 == number and bucket_append(
            g, bucket, entry_bits, entry_of(stash_get(data, i), other, used)
        ):
            stash_drop(data, i)
            continue
        i += 1
    if taken and not shared:
        data[elastic_bit_at(g, position)] &= <uint8_t>~(1 << (position & 7))
        weigh(data, -2 + <int64_t>(used > elastic_log2(g, data)))
    return taken


# --- doubling and halving ------------------------------------------------------


cdef inline uint64_t full_weight(const Elastic* g, const uint8_t* data) noexcept nogil:
    """The weight, of 2m, at which the array doubles."""
    cdef uint32_t log2 = elastic_log2(g, data) + 1
    return g.full_share << (log2 - 32) if log2 >= 32 else g.full_share >> (32 - log2)


cdef void complete(uint8_t* data) noexcept nogil:
    """All buckets are divided: that is one doubling more, and nothing under way."""
    store32(data + ELASTIC_AT_DOUBLINGS, load32(data + ELASTIC_AT_DOUBLINGS) + 1)
    store32(data + ELASTIC_AT_MOVE, STILL)
    store64(data + ELASTIC_AT_SPLIT, 0)
    store64(data + ELASTIC_AT_WEIGHT, 2 * load64(data + ELASTIC_AT_WEIGHT))


cdef void split_one(const Elastic* g, uint8_t* data) noexcept nogil:
    """Divide the next bucket; the last one completes the doubling."""
    cdef uint32_t log2 = elastic_log2(g, data), entry_bits = 0, upper_bits = 0, slot, n, kept = 0
    cdef uint64_t n_buckets = <uint64_t>1 << (log2 - ELASTIC_BUCKET_LOG2)
    cdef uint64_t lower = load64(data + ELASTIC_AT_SPLIT), entry, position, number, i, x
    cdef uint64_t upper = lower + n_buckets
    cdef uint8_t* low_row = row_of(g, data, lower)
    cdef uint8_t* high_row = row_of(g, data, upper)
    cdef uint8_t* low = bucket_of(g, data, lower, &entry_bits)
    cdef uint8_t* high = bucket_of(g, data, upper, &upper_bits)
    weigh(data, -2 * <int64_t>row_ones(low_row))
    memset(low_row, 0, ROW_BYTES)
    memset(high_row, 0, ROW_BYTES)
    n = bucket_count(g, low)
    bucket_set_count(high, 0)
    for slot in range(n):
        entry = entry_get(low, entry_bits, slot)
        position = entry & 0xFF
        # The lowest bit of the fingerprint becomes the highest of the position.
        if (entry >> ELASTIC_BUCKET_LOG2) & 1:
            bucket_append(g, high, upper_bits, ((entry >> (ELASTIC_BUCKET_LOG2 + 1)) << ELASTIC_BUCKET_LOG2) | position)
            high_row[position >> 3] |= <uint8_t>(1 << (position & 7))
        else:
            entry_put(low, entry_bits, kept, ((entry >> (ELASTIC_BUCKET_LOG2 + 1)) << ELASTIC_BUCKET_LOG2) | position)
            low_row[position >> 3] |= <uint8_t>(1 << (position & 7))
            kept += 1
    for slot in range(kept, n):
        entry_put(low, entry_bits, slot, 0)
    bucket_set_count(low, kept)
    store64(data + ELASTIC_AT_SPLIT, lower + 1)
    i = 0
    while i < stashed(data):
        x = stash_get(data, i)
        position = elastic_position(g, data, x)
        number = position >> ELASTIC_BUCKET_LOG2
        if number == lower or number == upper:
            data[elastic_bit_at(g, position)] |= <uint8_t>(1 << (position & 7))
            if bucket_append(
                g, low if number == lower else high, entry_bits if number == lower else upper_bits,
                entry_of(x, position, log2 + 1),
            ):
                stash_drop(data, i)
                continue
        i += 1
    weigh(data, <int64_t>(row_ones(low_row) + row_ones(high_row)))
    if lower + 1 == n_buckets:
        complete(data)


cdef void merge_one(const Elastic* g, uint8_t* data) noexcept nogil:
    """Undo the last division; nothing if bucket and stash have no room for its entries."""
    cdef uint32_t log2 = elastic_log2(g, data), entry_bits = 0, upper_bits = 0, slot, n, n_high
    cdef uint64_t lower = load64(data + ELASTIC_AT_SPLIT) - 1, entry
    cdef uint64_t upper = lower + (<uint64_t>1 << (log2 - ELASTIC_BUCKET_LOG2))
    cdef uint8_t* low_row = row_of(g, data, lower)
    cdef uint8_t* high_row = row_of(g, data, upper)
    cdef uint8_t* low = bucket_of(g, data, lower, &entry_bits)
    cdef uint8_t* high = bucket_of(g, data, upper, &upper_bits)
    cdef int i
    n = bucket_count(g, low)
    n_high = bucket_count(g, high)
    if n + n_high > g.bucket_slots + ELASTIC_STASH - stashed(data):
        if lower + 1 == upper - lower:
            complete(data)
        store32(data + ELASTIC_AT_MOVE, STILL)
        return
    for slot in range(n):
        entry = entry_get(low, entry_bits, slot)
        entry_put(low, entry_bits, slot, ((entry >> ELASTIC_BUCKET_LOG2) << (ELASTIC_BUCKET_LOG2 + 1)) | (entry & 0xFF))
    for slot in range(n_high):
        entry = entry_get(high, upper_bits, slot)
        if not bucket_append(
            g, low, entry_bits,
            ((entry >> ELASTIC_BUCKET_LOG2) << (ELASTIC_BUCKET_LOG2 + 1))
            | (<uint64_t>1 << ELASTIC_BUCKET_LOG2) | (entry & 0xFF),
        ):
            stash_put(data, hash_of(entry, upper, log2 + 1))
    weigh(data, -<int64_t>(row_ones(low_row) + row_ones(high_row)))
    for i in range(ROW_BYTES):
        low_row[i] |= high_row[i]
    memset(high_row, 0, ROW_BYTES)
    memset(high, 0, 2 + ((<uint64_t>n_high * upper_bits + 7) >> 3))
    weigh(data, 2 * <int64_t>row_ones(low_row))
    store64(data + ELASTIC_AT_SPLIT, lower)
    if lower == 0:
        store32(data + ELASTIC_AT_MOVE, STILL)


cdef void move_on(const Elastic* g, uint8_t* data) noexcept nogil:
    """The share of one change in what is under way."""
    cdef uint32_t _step, n_steps = 1 + g.n_hashes // 16
    for _step in range(n_steps + EXTRA_STEPS):
        if load32(data + ELASTIC_AT_MOVE) == DOUBLING:
            if _step >= n_steps and load64(data + ELASTIC_AT_WEIGHT) <= full_weight(g, data):
                return
            split_one(g, data)
        elif load32(data + ELASTIC_AT_MOVE) == HALVING and _step < n_steps:
            merge_one(g, data)
        else:
            return


cdef inline bint is_crowded(const Elastic* g, const uint8_t* data) noexcept nogil:
    """Buckets are full, and not because of repeated keys alone: doubling will help, and halving will not undo it."""
    return 4 * load64(data + ELASTIC_AT_WEIGHT) > 3 * full_weight(g, data)


cdef inline bint doubling_due(const Elastic* g, const uint8_t* data, uint32_t n_entries) noexcept nogil:
    """Before so many entries more: would the rate pass its target, or is the stash half full?"""
    if load64(data + ELASTIC_AT_WEIGHT) + 2 * <uint64_t>n_entries > full_weight(g, data):
        return True
    return 2 * stashed(data) >= ELASTIC_STASH and is_crowded(g, data)


cdef inline bint has_level(const Elastic* g, const uint8_t* data) noexcept nogil:
    """Whether the buffer has room for the doubling that is under way or would be next."""
    return elastic_log2(g, data) < g.allocated_log2


cdef bint has_slots(const Elastic* g, const uint8_t* data, const uint64_t* hashes, uint32_t n) noexcept nogil:
    """Whether so many hashes find room, all of them in one bucket if it must be."""
    cdef uint64_t needed = stashed(data)
    cdef uint32_t i, entry_bits = 0
    for i in range(n):
        needed += bucket_count(
            g, bucket_of(g, <uint8_t*>data, elastic_position(g, data, hashes[i]) >> ELASTIC_BUCKET_LOG2, &entry_bits)
        ) + n > g.bucket_slots
    return needed <= ELASTIC_STASH


cdef bint insert_all(const Elastic* g, uint8_t* data, const uint64_t* hashes, uint32_t n) noexcept nogil:
    """Store so many hashes; False, and no change, if there is no room."""
    cdef uint32_t i
    if load32(data + ELASTIC_AT_MOVE) != DOUBLING and doubling_due(g, data, n):
        if not has_level(g, data):
            return False
        store32(data + ELASTIC_AT_MOVE, DOUBLING)
    if not has_slots(g, data, hashes, n):
        return False
    for i in range(n):
        entry_insert(g, data, hashes[i])
    move_on(g, data)
    return True


cdef void after_removal(const Elastic* g, uint8_t* data) noexcept nogil:
    """Begin to halve if hardly a bit is left; go on with what is under way."""
    cdef uint32_t doublings = load32(data + ELASTIC_AT_DOUBLINGS)
    cdef uint64_t weight = load64(data + ELASTIC_AT_WEIGHT)
    if load32(data + ELASTIC_AT_MOVE) == STILL and 4 * weight < full_weight(g, data):
        if load64(data + ELASTIC_AT_SPLIT):
            store32(data + ELASTIC_AT_MOVE, HALVING)
        elif doublings:
            # Twice as many positions are the same as half as many, all of them divided.
            store32(data + ELASTIC_AT_DOUBLINGS, doublings - 1)
            store32(data + ELASTIC_AT_MOVE, HALVING)
            store64(data + ELASTIC_AT_SPLIT, <uint64_t>1 << (g.initial_log2 + doublings - 1 - ELASTIC_BUCKET_LOG2))
            store64(data + ELASTIC_AT_WEIGHT, weight // 2)
    move_on(g, data)


# --- one key -------------------------------------------------------------------


cdef bint elastic_add(const Elastic* g, uint8_t* data, uint64_t h) noexcept nogil:
    """False, and no change, if there is no room: neither in its buckets, nor for a doubling that is due."""
    cdef uint64_t hashes[ELASTIC_MAX_HASHES]
    cdef uint32_t i
    for i in range(g.n_hashes):
        hashes[i] = elastic_hash(h, i)
    if not insert_all(g, data, hashes, g.n_hashes):
        return False
    store64(data + ELASTIC_AT_KEYS, load64(data + ELASTIC_AT_KEYS) + 1)
    return True


cdef bint elastic_remove(const Elastic* g, uint8_t* data, uint64_t h) noexcept nogil:
    """Take one copy out; False, and no change, if a bit or a fingerprint says that there is none."""
    cdef uint32_t i
    cdef bint whole = True
    if not elastic_contains(g, data, h) or elastic_count(g, data, h) == 0:
        return False
    for i in range(g.n_hashes):
        whole &= entry_take(g, data, elastic_hash(h, i))
    if whole and load64(data + ELASTIC_AT_KEYS):
        store64(data + ELASTIC_AT_KEYS, load64(data + ELASTIC_AT_KEYS) - 1)
    after_removal(g, data)
    return True


cdef uint64_t elastic_count(const Elastic* g, const uint8_t* data, uint64_t h) noexcept nogil:
    """How many copies of a key's fingerprints are stored."""
    cdef uint64_t least = ~<uint64_t>0, n
    cdef uint32_t i
    for i in range(g.n_hashes):
        n = entry_count(g, data, elastic_hash(h, i))
        if n == 0:
            return 0
        least = min(least, n)
    return least


# --- the filter ----------------------------------------------------------------


cdef class ElasticCore(FilterCore):
    """Kernel of :class:`dlbf.ElasticBloomFilter`."""

    def _set_geometry(
        self, uint32_t initial_log2, uint32_t allocated_log2, uint32_t n_hashes, uint64_t full_share,
        uint32_t bucket_slots, list levels,
    ):
        """Fix the geometry; the caller has checked the values.  ``levels``: first position, offsets, sizes of each."""
        cdef Py_ssize_t i
        for i in range(len(levels)):
            (
                self.levels[i].first, self.levels[i].bits_at, self.levels[i].buckets_at, self.levels[i].bucket_bytes,
                self.levels[i].entry_bits,
            ) = levels[i]
        self.geometry.initial_log2 = initial_log2
        self.geometry.allocated_log2 = allocated_log2
        self.geometry.n_hashes = n_hashes
        self.geometry.bucket_slots = bucket_slots
        self.geometry.full_share = full_share
        self.geometry.levels = self.levels

    # --- leaves

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return elastic_contains(&self.geometry, self.data, h)

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef bint added = elastic_add(&self.geometry, self.data, h)
        self.n_items += added
        return added

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        if not elastic_remove(&self.geometry, self.data, h):
            return KEY_ABSENT
        if self.n_items:
            self.n_items -= 1
        return KEY_MAYBE if elastic_contains(&self.geometry, self.data, h) else KEY_REMOVED

    cdef uint64_t _count(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return elastic_count(&self.geometry, self.data, h) if elastic_contains(&self.geometry, self.data, h) else 0

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        elastic_prefetch(&self.geometry, self.data, h)

    cdef int _places(self, uint64_t h, uint64_t* out) noexcept nogil:
        cdef uint32_t i
        for i in range(self.geometry.n_hashes):
            out[i] = elastic_bit_at(
                &self.geometry, elastic_position(&self.geometry, self.data, elastic_hash(h, i))
            )
        return self.geometry.n_hashes

    # --- the buffer

    def _lock(self):
        """Be the only one at work on the filter until ``_unlock``; the owner must not ask it anything."""
        gate_write(&self.gate)

    def _unlock(self):
        gate_write_done(&self.gate)

    cdef int _take_again(self) except -1:
        """Use the owner's buffer as it is now."""
        cdef Py_buffer view
        PyObject_GetBuffer(self.owner, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.taken.view = view
        self.data, self.n_payload_bytes = <uint8_t*>view.buf, view.len
        return 0

    def _resize(self, n_bytes):
        """Let the owner, an ``mmap``, change its size without moving what is in it; called under ``_lock``."""
        self._need_writable()
        PyBuffer_Release(&self.taken.view)
        self.data = NULL
        try:
            self.owner.resize(n_bytes)
        finally:
            self._take_again()

    def _go_on_in(self, buffer):
        """Move to a zeroed buffer of another size; called under ``_lock``."""
        cdef uint8_t[::1] target = buffer
        self._need_writable()
        memcpy(&target[0], self.data, min(self.n_payload_bytes, len(buffer)))
        PyBuffer_Release(&self.taken.view)
        self.owner = buffer
        self._take_again()

    @property
    def _owner(self):
        """What the buffer belongs to."""
        return self.owner

    def _spare_levels(self):
        """How many levels the buffer has that nothing needs now."""
        cdef const Elastic* g = &self.geometry
        if self.data == NULL:
            return 0
        return (
            <int>g.allocated_log2 - <int>elastic_log2(g, self.data)
            - (load64(self.data + ELASTIC_AT_SPLIT) > 0 or load32(self.data + ELASTIC_AT_MOVE) == DOUBLING)
        )

    # --- what the head says

    def _head(self):
        """The e of m, what is under way, divided buckets, keys, ones weighed, entries of the stash; all checked."""
        cdef const uint8_t* data
        gate_read(&self.gate)
        try:
            self._need_open()
            if self.n_unchecked:
                self._check_chunk(0)
            data = self.data
            return (
                elastic_log2(&self.geometry, data), load32(data + ELASTIC_AT_MOVE), load64(data + ELASTIC_AT_SPLIT),
                load64(data + ELASTIC_AT_KEYS), load64(data + ELASTIC_AT_WEIGHT), stashed(data),
            )
        finally:
            gate_read_done(&self.gate)

    def _head_is_sound(self):
        """Whether the head leads nowhere outside of the buffer: asked once of a filter that came from outside."""
        cdef const Elastic* g = &self.geometry
        cdef uint64_t split, n_buckets, keys
        cdef uint32_t move
        if self.n_unchecked:
            self._check_chunk(0)
        # Compared without sums that could wrap: these are whatever the file says.
        if load32(self.data) > g.allocated_log2 - g.initial_log2:
            return False
        split, move = load64(self.data + ELASTIC_AT_SPLIT), load32(self.data + ELASTIC_AT_MOVE)
        keys = load64(self.data + ELASTIC_AT_KEYS)
        n_buckets = <uint64_t>1 << (elastic_log2(g, self.data) - ELASTIC_BUCKET_LOG2)
        if move > HALVING or split >= n_buckets:
            return False
        if (split or move == DOUBLING) and not has_level(g, self.data):
            return False
        if (move == HALVING and not split) or load64(self.data + ELASTIC_AT_WEIGHT) > n_buckets << 9 or keys >> 62:
            return False
        return stashed(self.data) <= ELASTIC_STASH and not any((<const char*>self.data)[40:ELASTIC_AT_STASH])

    def _is_sound(self):
        """Whether bits and counts are those of the entries."""
        cdef const Elastic* g = &self.geometry
        cdef uint64_t n_buckets = <uint64_t>1 << (elastic_log2(g, self.data) - ELASTIC_BUCKET_LOG2)
        cdef uint64_t split = load64(self.data + ELASTIC_AT_SPLIT), number, i, weight = 0, n_entries = 0, position
        cdef uint32_t slot, entry_bits = 0
        cdef uint8_t row[ROW_BYTES]
        cdef uint8_t* bucket
        cdef bint sound = True
        with nogil:
            for number in range(n_buckets + split):
                memset(row, 0, ROW_BYTES)
                bucket = bucket_of(g, self.data, number, &entry_bits)
                if (<uint32_t>bucket[0] | <uint32_t>bucket[1] << 8) > g.bucket_slots:
                    sound = False
                    break
                n_entries += bucket_count(g, bucket)
                for slot in range(bucket_count(g, bucket)):
                    position = entry_get(bucket, entry_bits, slot) & 0xFF
                    row[position >> 3] |= <uint8_t>(1 << (position & 7))
                for i in range(stashed(self.data)):
                    position = elastic_position(g, self.data, stash_get(self.data, i))
                    if position >> ELASTIC_BUCKET_LOG2 == number:
                        row[(position & 0xFF) >> 3] |= <uint8_t>(1 << (position & 7))
                for i in range(<uint64_t>ROW_BYTES):
                    sound = sound and row[i] == row_of(g, self.data, number)[i]
                weight += row_ones(row) * (1 if number < split or number >= n_buckets else 2)
        n_entries += stashed(self.data)
        return (
            sound
            and weight == load64(self.data + ELASTIC_AT_WEIGHT)
            and n_entries // g.n_hashes == load64(self.data + ELASTIC_AT_KEYS)
        )

    # --- growing

    def _missing(self):
        """Why ``_add`` found no room; called under ``_lock``."""
        cdef const Elastic* g = &self.geometry
        self._need_open()
        if load32(self.data + ELASTIC_AT_MOVE) != DOUBLING and doubling_due(g, self.data, g.n_hashes):
            return NOTHING_MISSING if has_level(g, self.data) else A_LEVEL_MISSING
        # The stash is full, or nearly so.
        return A_DOUBLING_MISSING if is_crowded(g, self.data) else SLOTS_MISSING

    def _double_now(self):
        """Complete the doubling that is under way, or begin one and complete it; called under ``_lock``."""
        if not has_level(&self.geometry, self.data):
            raise AssertionError("an elastic filter doubled without room for another level")
        with nogil:
            store32(self.data + ELASTIC_AT_MOVE, DOUBLING)
            while load32(self.data + ELASTIC_AT_MOVE) == DOUBLING:
                split_one(&self.geometry, self.data)

    # --- all entries

    def _entries(self):
        """Every stored hash, k for each key, in no particular order: a numpy array of uint64, and the keys."""
        cdef const Elastic* g = &self.geometry
        cdef uint64_t number, n = 0, i
        cdef uint32_t slot, used, entry_bits = 0
        cdef uint64_t[::1] out
        cdef uint8_t* bucket
        gate_read(&self.gate)
        try:
            self._check_all()
            n_buckets = (1 << (elastic_log2(g, self.data) - ELASTIC_BUCKET_LOG2)) + load64(self.data + ELASTIC_AT_SPLIT)
            for number in range(<uint64_t>n_buckets):
                n += bucket_count(g, bucket_of(g, self.data, number, &entry_bits))
            array = np.empty(n + stashed(self.data), dtype=np.uint64)
            out = array
            n = 0
            for number in range(<uint64_t>n_buckets):
                bucket = bucket_of(g, self.data, number, &entry_bits)
                used = bits_used(g, self.data, number)
                for slot in range(bucket_count(g, bucket)):
                    out[n] = hash_of(entry_get(bucket, entry_bits, slot), number, used)
                    n += 1
            for i in range(stashed(self.data)):
                out[n] = stash_get(self.data, i)
                n += 1
            return array, load64(self.data + ELASTIC_AT_KEYS)
        finally:
            gate_read_done(&self.gate)

    def _put_entries(self, const uint64_t[::1] entries, Py_ssize_t i):
        """Store hashes from number ``i`` on; the number of the first that found no room."""
        cdef bint fits = True
        self._need_writable()
        gate_write(&self.gate)
        try:
            self._need_open()
            with nogil:
                while i < entries.shape[0] and fits:
                    fits = insert_all(&self.geometry, self.data, &entries[i], 1)
                    i += fits
        finally:
            gate_write_done(&self.gate)
        return i

    def _take_entries(self, const uint64_t[::1] entries):
        """Take out hashes that are there."""
        cdef Py_ssize_t i
        self._need_writable()
        gate_write(&self.gate)
        try:
            self._need_open()
            with nogil:
                for i in range(entries.shape[0]):
                    entry_take(&self.geometry, self.data, entries[i])
                    after_removal(&self.geometry, self.data)
        finally:
            gate_write_done(&self.gate)

    def _count_keys(self, int64_t change):
        """Add to the head's number of keys."""
        gate_write(&self.gate)
        try:
            self._need_open()
            store64(self.data + ELASTIC_AT_KEYS, load64(self.data + ELASTIC_AT_KEYS) + <uint64_t>change)
        finally:
            gate_write_done(&self.gate)
