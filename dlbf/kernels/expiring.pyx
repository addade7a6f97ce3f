"""The expiring filter on a flat buffer; layout and rationale are in ``expiring.pxd``."""

from libc.string cimport memcpy, memset

from dlbf.kernels.core cimport KEY_ABSENT, KEY_MAYBE, KEY_REMOVED
from dlbf.kernels.cuckoo cimport (
    cuckoo_bucket, cuckoo_contains_many, cuckoo_fingerprint, cuckoo_insert, cuckoo_matches, cuckoo_multiset,
    cuckoo_other, cuckoo_remove, cuckoo_set_geometry, cuckoo_suffix,
)
from dlbf.kernels.keys cimport CHUNK_KEYS, KeyChunk
from dlbf.kernels.types cimport gate_read, gate_read_done, gate_write, gate_write_done, load64, prefetch, store64

import time

cdef extern from * nogil:
    """
    #include <stdint.h>
    #if defined(_WIN32)
    #ifndef WIN32_LEAN_AND_MEAN
    #define WIN32_LEAN_AND_MEAN
    #endif
    #ifndef NOMINMAX
    #define NOMINMAX
    #endif
    #include <windows.h>
    static uint64_t dlbf_steady_ns(void) { return (uint64_t)GetTickCount64() * 1000000u; }
    #else
    #include <time.h>
    /* A clock that nobody sets, and that goes on while the machine sleeps where there is such a one. */
    static uint64_t dlbf_steady_ns(void) {
        struct timespec t = {0, 0};
    #if defined(CLOCK_BOOTTIME)
        if (clock_gettime(CLOCK_BOOTTIME, &t) != 0)
    #endif
            clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    #endif
    """
    uint64_t steady_ns "dlbf_steady_ns"() noexcept

COPIES = EXPIRING_COPIES
HEAD_BYTES = EXPIRING_AT_TABLES
ENTRY_BYTES = EXPIRING_ENTRY_BYTES
MOST_TABLES = EXPIRING_MOST_TABLES

cdef enum:
    NO_TABLE = -1


cdef uint64_t in_ns(seconds) except? 0:
    cdef double value = seconds
    if not 0 <= value < 9e9:
        raise ValueError(f"expected seconds since 1970, at least 0 and below 9e9, found {seconds!r}")
    return int(value * 1e9)


cdef class SystemClock:
    """The time of day when it was made, and from then on a clock that nobody sets.

    Examples
    --------
    >>> SystemClock().now() > 1.7e9
    True
    """

    def __cinit__(self, *args):
        self.offset_ns = <uint64_t>time.time_ns() - steady_ns()

    cdef uint64_t _now(self) noexcept nogil:
        return steady_ns() + self.offset_ns

    def now(self):
        """Seconds since 1970."""
        return self._now() / 1e9


cdef class ManualClock(SystemClock):
    """A clock that stands still until it is told the time: for tests, and for streams with times of their own.

    Parameters
    ----------
    seconds : float
        Time to begin with, in seconds since 1970 or any other moment.

    Examples
    --------
    >>> import dlbf
    >>> clock = ManualClock(1000)
    >>> f = dlbf.ExpiringFilter(100, 0.01, ttl=60, clock=clock)
    >>> f.add("anna"); clock.advance(60); "anna" in f
    True
    >>> clock.advance(f.lateness); "anna" in f
    False
    """

    def __init__(self, seconds=0.0):
        self.now_ns = in_ns(seconds)

    cdef uint64_t _now(self) noexcept nogil:
        return self.now_ns

    def set(self, seconds):
        """Let it be that time."""
        self.now_ns = in_ns(seconds)

    def advance(self, seconds):
        """Let so much time pass."""
        self.now_ns = in_ns(self.now_ns / 1e9 + seconds)


cdef inline uint8_t* table_at(const Turns* turns, uint8_t* data, uint64_t number) noexcept nogil:
    return data + turns.tables_at + number * turns.table_bytes


cdef inline void read_bucket(const Cuckoo* g, const uint8_t* data, uint64_t bucket, uint32_t* values) noexcept nogil:
    cdef uint32_t prefixes = cuckoo_multiset(g, data, bucket)
    cdef int slot
    for slot in range(4):
        values[slot] = (((prefixes >> (8 * slot)) & 0xFF) << g.suffix_bits) | cuckoo_suffix(g, data, bucket, slot)


cdef inline uint64_t copies(const Cuckoo* g, const uint8_t* data, uint64_t bucket, uint32_t v) noexcept nogil:
    cdef uint64_t other = cuckoo_other(g, bucket, v)
    cdef uint64_t n = cuckoo_matches(g, data, bucket, v)
    return n + cuckoo_matches(g, data, other, v) if other != bucket else n


cdef class ExpiringCore(FilterCore):
    """Kernel of :class:`dlbf.ExpiringFilter`."""

    def __cinit__(self):
        self.time_source = SystemClock()

    def _set_geometry(
        self, uint64_t ttl_ns, uint64_t step_ns, uint32_t n_tables, uint64_t table_room, uint64_t tables_at,
        uint64_t table_bytes, uint64_t n_buckets, uint32_t n_prefixes, uint32_t suffix_bits,
    ):
        """Fix the geometry; the caller has checked the values."""
        self.multisets = cuckoo_set_geometry(&self.geometry, n_buckets, n_prefixes, suffix_bits)
        self.turns.ttl_ns, self.turns.step_ns = ttl_ns, step_ns
        self.turns.n_tables, self.turns.table_room = n_tables, table_room
        self.turns.tables_at, self.turns.table_bytes = tables_at, table_bytes

    @property
    def clock(self):
        """Where the time comes from; a ``dlbf.ManualClock`` may take its place."""
        return self.time_source

    @clock.setter
    def clock(self, SystemClock value not None):
        gate_write(&self.gate)  # a batch may be asking the old one
        self.time_source = value
        gate_write_done(&self.gate)

    # --- time

    cdef uint64_t _time(self) noexcept nogil:
        """Now; never before the newest step."""
        return max(self.time_source._now(), load64(self.data + EXPIRING_AT_STEP) * self.turns.step_ns)

    cdef bint _lives(self, uint32_t number, uint64_t now) noexcept nogil:
        """Whether a table has entries that may be within their time."""
        cdef uint64_t step = load64(self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * number)
        # The step ends at step * step_ns, as it is stored plus one.
        return step != 0 and now < step * self.turns.step_ns + self.turns.ttl_ns

    cdef uint64_t _tidy(self) noexcept nogil:
        """Empty the tables that have lived their time; the step that it is now."""
        cdef uint64_t now = self._time(), step = now // self.turns.step_ns
        cdef uint8_t* entry
        cdef uint32_t i
        for i in range(self.turns.n_tables):
            entry = self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * i
            if load64(entry) and not self._lives(i, now):
                # Its bytes first: a process killed on the way leaves a table that is still over.
                memset(table_at(&self.turns, self.data, i), 0, self.turns.table_bytes)
                self.n_items -= min(self.n_items, load64(entry + 8))
                store64(entry + 8, 0)
                store64(entry, 0)
        store64(self.data + EXPIRING_AT_STEP, step)
        return step

    cdef int _begin(self, uint64_t step) noexcept nogil:
        """Give a table that nobody uses to a step; NO_TABLE if there is none."""
        cdef uint32_t i
        for i in range(self.turns.n_tables):
            if load64(self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * i) == 0:
                store64(self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * i, step + 1)
                return <int>i
        return NO_TABLE

    cdef bint _has_room(self, uint32_t number, uint64_t step) noexcept nogil:
        """Whether a table is of that step, and has fewer entries than it is meant for."""
        cdef const uint8_t* entry = self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * number
        return load64(entry) == step + 1 and load64(entry + 8) < self.turns.table_room

    cdef int _table_of(self, uint64_t step) noexcept nogil:
        """A table of that step that has room; begun if it must be, NO_TABLE if it cannot."""
        cdef uint32_t i
        for i in range(self.turns.n_tables):
            if self._has_room(i, step):
                return <int>i
        return self._begin(step)

    cdef int _store(self, uint32_t number, uint64_t bucket, uint32_t v) noexcept nogil:
        """1: stored, or there as often as is counted; 0: no room in this table."""
        cdef uint8_t* table = table_at(&self.turns, self.data, number)
        cdef uint8_t* entry = self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * number
        if copies(&self.geometry, table, bucket, v) >= EXPIRING_COPIES:
            return 1
        if not cuckoo_insert(&self.geometry, table, bucket, v):
            return 0
        store64(entry + 8, load64(entry + 8) + 1)
        self.n_items += 1
        return 1

    # --- leaves

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint64_t now = self._time()
        cdef uint32_t v = cuckoo_fingerprint(&self.geometry, h), i
        cdef uint64_t bucket = cuckoo_bucket(&self.geometry, h)
        cdef uint64_t other = cuckoo_other(&self.geometry, bucket, v)
        cdef const uint8_t* table
        for i in range(self.turns.n_tables):
            if self._lives(i, now):
                table = table_at(&self.turns, self.data, i)
                if cuckoo_matches(&self.geometry, table, bucket, v) | cuckoo_matches(&self.geometry, table, other, v):
                    return True
        return False

    cdef void _contains_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        cdef uint8_t found[CHUNK_KEYS]
        cdef uint64_t now = self._time()
        cdef Py_ssize_t j
        cdef uint32_t i
        memset(out, 0, chunk.n)
        for i in range(self.turns.n_tables):
            if self._lives(i, now):
                cuckoo_contains_many(&self.geometry, table_at(&self.turns, self.data, i), hashes, chunk.n, found)
                for j in range(chunk.n):
                    out[j] |= found[j]

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint64_t step = self._tidy(), bucket = cuckoo_bucket(&self.geometry, h)
        cdef uint32_t v = cuckoo_fingerprint(&self.geometry, h)
        cdef uint32_t current = <uint32_t>load64(self.data + EXPIRING_AT_CURRENT)
        cdef const uint8_t* entry = self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * current
        cdef bint is_current = load64(entry) == step + 1
        cdef int begun
        if self._has_room(current, step) and self._store(current, bucket, v):
            return 1
        begun = self._begin(step)
        if begun != NO_TABLE:
            store64(self.data + EXPIRING_AT_CURRENT, <uint64_t>begun)
            return self._store(<uint32_t>begun, bucket, v)
        # A table takes a little more than it is meant for.
        return self._store(current, bucket, v) if is_current else 0

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint32_t v = cuckoo_fingerprint(&self.geometry, h), i
        cdef uint64_t bucket = cuckoo_bucket(&self.geometry, h), step, oldest = 0
        cdef uint8_t* table
        cdef uint8_t* entry
        cdef int at = NO_TABLE
        self._tidy()
        for i in range(self.turns.n_tables):
            step = load64(self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * i)
            if step and (at == NO_TABLE or step < oldest):
                if copies(&self.geometry, table_at(&self.turns, self.data, i), bucket, v):
                    at, oldest = <int>i, step
        if at == NO_TABLE:
            return KEY_ABSENT
        table = table_at(&self.turns, self.data, <uint64_t>at)
        if copies(&self.geometry, table, bucket, v) >= EXPIRING_COPIES:
            return KEY_MAYBE  # more may have been added than were counted
        cuckoo_remove(&self.geometry, table, h)
        entry = self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * at
        store64(entry + 8, load64(entry + 8) - min(<uint64_t>1, load64(entry + 8)))
        self.n_items -= min(<uint64_t>1, self.n_items)
        return KEY_MAYBE if self._contains(h, key, n) else KEY_REMOVED

    cdef uint64_t _count(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint64_t now = self._time(), bucket = cuckoo_bucket(&self.geometry, h), found = 0
        cdef uint32_t v = cuckoo_fingerprint(&self.geometry, h), i
        for i in range(self.turns.n_tables):
            if self._lives(i, now):
                found += copies(&self.geometry, table_at(&self.turns, self.data, i), bucket, v)
        return found

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        # The table that takes keys now: only additions and removals ask for this.
        cdef uint64_t bucket = cuckoo_bucket(&self.geometry, h)
        cdef const uint8_t* table = table_at(&self.turns, self.data, load64(self.data + EXPIRING_AT_CURRENT))
        prefetch(table + ((bucket * self.geometry.bucket_bits) >> 3))

    cdef int _places(self, uint64_t h, uint64_t* out) noexcept nogil:
        cdef uint64_t bucket = cuckoo_bucket(&self.geometry, h), at
        cdef uint64_t other = cuckoo_other(&self.geometry, bucket, cuckoo_fingerprint(&self.geometry, h))
        cdef uint32_t bits = self.geometry.bucket_bits, i
        out[0] = 0
        for i in range(self.turns.n_tables):
            at = self.turns.tables_at + i * self.turns.table_bytes
            out[4 * i + 1] = at + ((bucket * bits) >> 3)
            out[4 * i + 2] = at + ((bucket * bits + bits - 1) >> 3)
            out[4 * i + 3] = at + ((other * bits) >> 3)
            out[4 * i + 4] = at + ((other * bits + bits - 1) >> 3)
        return 4 * self.turns.n_tables + 1

    # --- entries

    def _entries(self):
        """Entries of each table that has not lived its time."""
        cdef uint32_t i
        gate_read(&self.gate)
        try:
            self._need_open()
            if self.n_unchecked:
                self._check_chunk(0)
            now = self._time()
            return [
                load64(self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * i + 8)
                for i in range(self.turns.n_tables) if self._lives(i, now)
            ]
        finally:
            gate_read_done(&self.gate)

    def _drop(self):
        """Empty the tables that have lived their time, which every change does, too."""
        self._need_writable()
        gate_write(&self.gate)
        try:
            self._need_open()
            self._tidy()
        finally:
            gate_write_done(&self.gate)

    def __len__(self):
        # What is closed counts as before, for the sake of the header that is written then.
        return sum(self._entries()) if self.data != NULL else self.n_items

    def __bool__(self):
        return len(self) != 0

    def _head_is_sound(self):
        """Whether the head leads nowhere outside of the buffer: asked once of a filter that came from outside."""
        cdef uint64_t step, entries
        cdef uint32_t i
        if self.n_unchecked:
            self._check_chunk(0)
        # Far enough below 2^64 that no sum of times wraps.
        if load64(self.data) > (<uint64_t>1 << 63) // self.turns.step_ns:
            return False
        if load64(self.data + EXPIRING_AT_CURRENT) >= self.turns.n_tables:
            return False
        if any((<const char*>self.data)[16:EXPIRING_AT_TABLES]):
            return False
        for i in range(self.turns.n_tables):
            step = load64(self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * i)
            entries = load64(self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * i + 8)
            if step > load64(self.data) + 1 or entries > 4 * self.geometry.n_buckets or (entries and not step):
                return False
        return True

    def _stored(self):
        """Entries of all tables, those among them that have lived their time."""
        cdef uint64_t total = 0
        cdef uint32_t i
        for i in range(self.turns.n_tables):
            total += load64(self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * i + 8)
        return total

    def _recount(self):
        """Count the entries of all tables anew; their number."""
        cdef uint32_t values[4]
        cdef uint64_t bucket, n, total = 0
        cdef uint8_t* table
        cdef uint32_t i
        cdef int slot
        for i in range(self.turns.n_tables):
            table = table_at(&self.turns, self.data, i)
            n = 0
            if load64(self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * i):
                for bucket in range(self.geometry.n_buckets):
                    read_bucket(&self.geometry, table, bucket, values)
                    for slot in range(4):
                        n += values[slot] != 0
            else:
                memset(table, 0, self.turns.table_bytes)
            store64(self.data + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * i + 8, n)
            total += n
        return total

    # --- sets

    cdef bint _merge_table(self, const uint8_t* theirs, uint64_t step) noexcept nogil:
        """Store what a table of that step has; False if it does not fit."""
        cdef uint32_t values[4]
        cdef uint64_t bucket
        cdef int slot, at = NO_TABLE
        for bucket in range(self.geometry.n_buckets):
            read_bucket(&self.geometry, theirs, bucket, values)
            for slot in range(4):
                if values[slot] == 0:
                    continue
                if at == NO_TABLE or not self._has_room(<uint32_t>at, step):
                    at = self._table_of(step)
                if at != NO_TABLE and self._store(<uint32_t>at, bucket, values[slot]):
                    continue
                at = self._begin(step)
                if at == NO_TABLE or not self._store(<uint32_t>at, bucket, values[slot]):
                    return False
        return True

    def _merge(self, ExpiringCore other, bint union):
        """Store every entry of ``other`` with its time; False, and no change, if one finds no room."""
        cdef const uint8_t[::1] theirs
        cdef uint64_t clock, mine, other_time, step, current, before_items
        cdef uint32_t i
        cdef bint fits = True
        cdef bytes before
        _, payload, _ = other._snapshot(bytearray)
        theirs = payload
        self._need_writable()
        gate_write(&self.gate)
        try:
            self._need_open()
            before, before_items = (<const char*>self.data)[:self.n_payload_bytes], self.n_items
            self._tidy()
            # Where a clock was set back, the time of one of them stands still, and the other's does not: what an entry
            # has left to live is the same in both.  Nothing lives longer than what is added now.
            clock = self.time_source._now()
            mine = max(clock, load64(self.data) * self.turns.step_ns)
            other_time = max(clock, load64(&theirs[0]) * self.turns.step_ns)
            current = mine // self.turns.step_ns
            store64(self.data, current)
            for i in range(self.turns.n_tables):
                step = load64(&theirs[0] + EXPIRING_AT_TABLES + EXPIRING_ENTRY_BYTES * i)
                if not fits or not step or other_time >= step * self.turns.step_ns + self.turns.ttl_ns:
                    continue
                step -= 1
                if mine > other_time:
                    step += (mine - other_time + self.turns.step_ns - 1) // self.turns.step_ns
                else:
                    step -= min(step, (other_time - mine) // self.turns.step_ns)
                with nogil:
                    fits = self._merge_table(table_at(&self.turns, <uint8_t*>&theirs[0], i), min(step, current))
            if not fits:
                memcpy(self.data, <const char*>before, self.n_payload_bytes)
                self.n_items = before_items
        finally:
            gate_write_done(&self.gate)
        return fits
