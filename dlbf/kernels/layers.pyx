"""The layered filter; what its layers are, and why no key is denied, is in ``layers.pxd``."""

from dlbf.kernels.absent cimport absent_enter, absent_enter_deleted, absent_has, absent_strike
from dlbf.kernels.core cimport (
    KEY_ABSENT, KEY_MAYBE, KEY_REMOVED, filter_contains, filter_contains_chunk, filter_prefetch,
)
from dlbf.kernels.cuckoo cimport (
    CUCKOO_WORD_BITS, Cuckoo, CuckooCore, cuckoo_bucket, cuckoo_contains, cuckoo_fingerprint, cuckoo_insert,
    cuckoo_matches, cuckoo_other, cuckoo_prefetch, cuckoo_remove,
)
from dlbf.kernels.hashing cimport hash_for_filter
from dlbf.kernels.keys cimport CHUNK_KEYS, KeyChunk
from dlbf.kernels.ribbon cimport RibbonCore, ribbon_contains
from dlbf.kernels.types cimport (
    gate_read, gate_read_done, gate_try_write_one, gate_write, gate_write_done, gate_write_one_done, likely,
    uint32_t,
)

cdef extern from "alike.h" nogil:
    bint any_alike "dlbf_any_alike"(
        const uint8_t** tables, int n_tables, uint64_t first, uint64_t second, const uint64_t* suffixes,
        const uint64_t* ones, const uint64_t* tops,
    ) noexcept

MOST_TABLES = MAX_TABLES

cdef enum:
    # Keys of a batch between the prefetch of their places in the tables and the look at them.
    AHEAD = 16

cdef enum:
    # Of ``_remember``: nothing was entered.
    NOT_ENTERED = -1


cdef inline bint passes_base(LayeredCore layers, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
    cdef uint64_t own = hash_for_filter(h, layers.base.filter_id)
    if layers.is_plain:
        return ribbon_contains(&(<RibbonCore>layers.base).geometry, layers.base.data, own)
    return filter_contains(layers.base, own, key, n)


cdef inline bint alike_from(
    LayeredCore layers, uint64_t first, uint64_t second, uint64_t suffix
) noexcept nogil:
    """Whether a table has the suffix behind one of these two bits."""
    cdef uint64_t suffixes[2]
    cdef uint64_t ones[2]
    cdef uint64_t tops[2]
    ones[0], ones[1] = layers.suffixes.ones[first & 7], layers.suffixes.ones[second & 7]
    tops[0], tops[1] = layers.suffixes.tops[first & 7], layers.suffixes.tops[second & 7]
    suffixes[0], suffixes[1] = suffix * ones[0], suffix * ones[1]
    return any_alike(layers.suffixes.data, layers.n_tables, first >> 3, second >> 3, suffixes, ones, tops)


cdef inline bint may_match(LayeredCore layers, uint64_t h) noexcept nogil:
    """False if no table lets it pass; a few in a hundred others are true for nothing.

    All tables are asked, without a way out: what they have is read side by side.
    """
    cdef const Cuckoo* g = &layers.table[0].cuckoo
    cdef uint64_t own, bucket, first, second, suffix
    cdef uint32_t v
    if not layers.suffixes.in_step:
        return layers.n_tables != 0
    own = hash_for_filter(h, layers.table[0].filter_id)
    v = cuckoo_fingerprint(g, own)
    bucket = cuckoo_bucket(g, own)
    first = bucket * g.bucket_bits + g.code_bits
    second = cuckoo_other(g, bucket, v) * g.bucket_bits + g.code_bits
    suffix = v & layers.suffixes.mask
    if likely(layers.suffixes.at_once == 4):
        return alike_from(layers, first, second, suffix)
    return (
        alike_from(layers, first, second, suffix)
        or alike_from(layers, first + 2 * g.suffix_bits, second + 2 * g.suffix_bits, suffix)
    )


cdef class LayeredCore(FilterCore):
    """Kernel of :class:`dlbf.filters.layered.LayeredFilter`."""

    def __cinit__(self, *args, **kwargs):
        self.absent = AbsentSet()
        self.tables = []

    def set_layers(self, FilterCore base, list tables, uint64_t table_room):
        """Go on with these; the tables hold what their own counts say."""
        if len(tables) > MAX_TABLES:
            raise AssertionError(f"{len(tables)} tables, at most {MAX_TABLES} are possible")
        self.base = base
        self.is_plain = isinstance(base, RibbonCore)
        self.table_room = table_room
        self.tables = []
        self.n_tables = 0
        self.suffixes.in_step = False
        for table in tables:
            self._add_table(table)

    def _add_table(self, CuckooCore table):
        """One more, behind the others; nobody else is at work on the filter."""
        cdef Table* t = &self.table[self.n_tables]
        t.cuckoo = table.geometry
        t.data = table.data
        t.filter_id = table.filter_id
        t.n_keys = table.n_items
        self.suffixes.data[self.n_tables] = table.data
        self.tables.append(table)
        self.n_tables += 1
        self.suffixes.in_step = t.cuckoo.suffix_bits > 0 and len({each.filter_id for each in self.tables}) == 1
        self._set_suffixes(t.cuckoo.suffix_bits)

    cdef void _set_suffixes(self, uint32_t n_bits) noexcept:
        """The tables have suffixes of so many bits; see ``alike.h``."""
        cdef int i, at
        # A word from any byte on has 57 bits of what follows a bit of that byte.
        self.suffixes.at_once = 4 if 4 * n_bits <= CUCKOO_WORD_BITS else 2
        self.suffixes.mask = (<uint64_t>1 << n_bits) - 1
        for at in range(8):
            self.suffixes.ones[at] = self.suffixes.tops[at] = 0
            for i in range(self.suffixes.at_once):
                self.suffixes.ones[at] |= <uint64_t>1 << (at + i * n_bits)
                if n_bits:
                    self.suffixes.tops[at] |= <uint64_t>1 << (at + (i + 1) * n_bits - 1)

    def _counted_tables(self):
        """The tables as filters of their own, each with its count; for whoever is alone, or writes them down."""
        cdef int i
        cdef CuckooCore table
        for i in range(self.n_tables):
            table = self.tables[i]
            table.n_items = self.table[i].n_keys
        return self.tables

    def set_absent(self, AbsentSet absent):
        """Go on with another set."""
        self.absent = absent

    def _lock(self):
        """Be the only one at work on the filter until ``_unlock``; the owner must not ask it anything."""
        gate_write(&self.gate)

    def _unlock(self):
        gate_write_done(&self.gate)

    def _begin_reading(self):
        """Keep everybody from changing the filter until ``_end_reading``."""
        gate_read(&self.gate)

    def _end_reading(self):
        gate_read_done(&self.gate)

    @property
    def n_added(self):
        """Entries of all tables."""
        cdef int i
        cdef uint64_t n = 0
        for i in range(self.n_tables):
            n += self.table[i].n_keys
        return n

    @property
    def n_free(self):
        """Keys that the tables there are, and those that may still be made, have room for."""
        cdef uint64_t free = <uint64_t>(MAX_TABLES - self.n_tables) * self.table_room
        if self.n_tables and self.table[self.n_tables - 1].n_keys < self.table_room:
            free += self.table_room - self.table[self.n_tables - 1].n_keys
        return free

    # --- leaves

    cdef int _match(self, uint64_t h) noexcept nogil:
        """The first table that lets it pass, -1 if none does."""
        cdef int i, found = -1
        cdef const Table* t
        cdef uint64_t own, bucket = 0, other = 0
        cdef uint32_t value = 0
        if not may_match(self, h):
            return -1
        # The last one first: what is found in an earlier one takes its place.
        for i in range(self.n_tables - 1, -1, -1):
            t = &self.table[i]
            if i == self.n_tables - 1 or t.filter_id != self.table[i + 1].filter_id:
                own = hash_for_filter(h, t.filter_id)
                value = cuckoo_fingerprint(&t.cuckoo, own)
                bucket = cuckoo_bucket(&t.cuckoo, own)
                other = cuckoo_other(&t.cuckoo, bucket, value)
            if cuckoo_matches(&t.cuckoo, t.data, bucket, value) | cuckoo_matches(&t.cuckoo, t.data, other, value):
                found = i
        return found

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        if not passes_base(self, h, key, n) and (not may_match(self, h) or self._match(h) < 0):
            return False
        return not absent_has(self.absent, key, n)

    cdef void _contains_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        cdef uint64_t own[CHUNK_KEYS]
        cdef Py_ssize_t i
        cdef const uint64_t* given = hashes
        if self.base.filter_id:
            for i in range(chunk.n):
                own[i] = hash_for_filter(hashes[i], self.base.filter_id)
            given = own
        filter_contains_chunk(self.base, chunk, given, out)
        if self.n_tables:
            for i in range(chunk.n + AHEAD):
                if i < chunk.n and not out[i]:
                    self._prefetch_tables(hashes[i])
                if i >= AHEAD and not out[i - AHEAD]:
                    out[i - AHEAD] = self._match(hashes[i - AHEAD]) >= 0
        if self.absent.n_entries:
            for i in range(chunk.n):
                if out[i]:
                    out[i] = not absent_has(self.absent, chunk.data[i], chunk.n_bytes[i])

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef int at
        cdef Table* t
        cdef uint64_t own
        absent_strike(self.absent, key, n)
        if passes_base(self, h, key, n):
            self.n_items += 1
            return 1
        at = self._match(h)
        if at < 0:
            at = self.n_tables - 1
            if at < 0 or self.table[at].n_keys >= self.table_room:
                return 0
        t = &self.table[at]
        own = hash_for_filter(h, t.filter_id)
        if not cuckoo_insert(&t.cuckoo, t.data, cuckoo_bucket(&t.cuckoo, own), cuckoo_fingerprint(&t.cuckoo, own)):
            # A table that matches must take it: in another one nobody would look for it.
            return -1 if cuckoo_contains(&t.cuckoo, t.data, own) else 0
        t.n_keys += 1
        self.n_items += 1
        return 1

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef int at
        cdef Table* t
        if not passes_base(self, h, key, n):
            at = self._match(h)
            if at < 0:
                return KEY_ABSENT
            t = &self.table[at]
            cuckoo_remove(&t.cuckoo, t.data, hash_for_filter(h, t.filter_id))
            if t.n_keys:
                t.n_keys -= 1
            if self._match(h) < 0:
                if self.n_items:
                    self.n_items -= 1
                return KEY_REMOVED
        if self.n_items:
            self.n_items -= 1
        return KEY_REMOVED if absent_enter_deleted(self.absent, key, n) else KEY_MAYBE

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        filter_prefetch(self.base, hash_for_filter(h, self.base.filter_id))
        self._prefetch_tables(h)

    cdef void _prefetch_tables(self, uint64_t h) noexcept nogil:
        cdef int i
        for i in range(self.n_tables):
            cuckoo_prefetch(&self.table[i].cuckoo, self.table[i].data, hash_for_filter(h, self.table[i].filter_id))

    cdef void _zero(self) noexcept nogil:
        pass

    # --- what reading finds

    cdef int _remember(self, const uint8_t* key, size_t n) noexcept:
        """A key that passes was read and is not there; why it had to be read, or NOT_ENTERED while others are at work.

        The caller knows that no change was begun since it noted the position that the data was read at.
        """
        cdef int cause
        if not gate_try_write_one(&self.gate):
            return NOT_ENTERED
        cause = absent_enter(self.absent, key, n)
        gate_write_one_done(&self.gate)
        return cause

    def remember(self, bytes key):
        """The same for whoever can be sure of that."""
        return self._remember(<const uint8_t*><const char*>key, len(key))
