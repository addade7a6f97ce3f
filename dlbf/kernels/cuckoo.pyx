"""The cuckoo filter on a flat buffer; layout and rationale are in ``cuckoo.pxd``."""

from libc.string cimport memcpy

from dlbf.kernels.core cimport KEY_ABSENT, KEY_MAYBE, KEY_REMOVED
from dlbf.kernels.keys cimport KeyChunk
from dlbf.kernels.types cimport gate_read, gate_read_done, gate_write, gate_write_done, int32_t, load64, store64

import numpy as np

cdef enum:
    # Buckets looked at before an insertion is given up.  At the planned load of 0.955 the search ends
    # after some hundred; past 0.97 even ten times the limit would rarely help.
    SEARCH_NODES = 2048

cdef enum:
    # Keys between the prefetch of their buckets and the look at them; a power of two.
    AHEAD = 16

cdef dict multiset_tables = {}


cdef object multiset_table(uint32_t n_prefixes):
    """The table for P prefixes: entry ``number`` is its four sorted prefixes, one per byte."""
    cdef uint32_t p0, p1, p2, p3
    cdef uint64_t P = n_prefixes, number = 0
    cdef uint32_t[::1] view
    if n_prefixes not in multiset_tables:
        # Bit patterns past the last multiset occur only in damaged tables; they decode to "empty" within the table.
        n_multisets = P * (P + 1) * (P + 2) * (P + 3) // 24
        table = np.zeros(1 << int(n_multisets - 1).bit_length(), dtype=np.uint32)
        view = table
        # The number that ``bucket_write`` computes is the place in this order.
        for p3 in range(n_prefixes):
            for p2 in range(p3 + 1):
                for p1 in range(p2 + 1):
                    for p0 in range(p1 + 1):
                        view[number] = p0 | p1 << 8 | p2 << 16 | p3 << 24
                        number += 1
        multiset_tables[n_prefixes] = table
    return multiset_tables[n_prefixes]


cdef object cuckoo_set_geometry(Cuckoo* g, uint64_t n_buckets, uint32_t n_prefixes, uint32_t suffix_bits):
    """Fill in ``g``; the object returned must be kept as long as ``g`` is used."""
    cdef object table = multiset_table(n_prefixes)
    cdef const uint32_t[::1] view = table
    g.n_buckets = n_buckets
    g.n_prefixes = n_prefixes
    g.suffix_bits = suffix_bits
    g.n_values = (<uint64_t>n_prefixes << suffix_bits) - 1
    g.code_bits = int(len(table)).bit_length() - 1
    g.bucket_bits = g.code_bits + 4 * suffix_bits
    g.multisets = &view[0]
    return table


cdef inline void bucket_read(const Cuckoo* g, const uint8_t* data, uint64_t bucket, uint32_t* values) noexcept nogil:
    cdef uint32_t prefixes = cuckoo_multiset(g, data, bucket)
    cdef int slot
    for slot in range(4):
        values[slot] = (
            (((prefixes >> (8 * slot)) & 0xFF) << g.suffix_bits) | cuckoo_suffix(g, data, bucket, slot)
        )


cdef inline void bucket_write(const Cuckoo* g, uint8_t* data, uint64_t bucket, uint32_t* values) noexcept nogil:
    cdef uint64_t at = bucket * g.bucket_bits
    cdef uint64_t word, mask
    cdef uint32_t p[4]
    cdef uint32_t v, number, at_word
    cdef int i, j
    # Sorting whole fingerprints sorts the prefixes, and makes equal buckets equal bytes.
    for i in range(1, 4):
        v = values[i]
        j = i
        while j > 0 and values[j - 1] > v:
            values[j] = values[j - 1]
            j -= 1
        values[j] = v
    for i in range(4):
        p[i] = values[i] >> g.suffix_bits
    number = (
        p[0]
        + p[1] * (p[1] + 1) // 2
        + p[2] * (p[2] + 1) * (p[2] + 2) // 6
        + p[3] * (p[3] + 1) * (p[3] + 2) * (p[3] + 3) // 24
    )
    if g.bucket_bits <= CUCKOO_WORD_BITS:
        # One store: a process killed between two would leave half of a bucket behind.
        word = number
        at_word = g.code_bits
        for i in range(4):
            word |= <uint64_t>(values[i] & ((<uint32_t>1 << g.suffix_bits) - 1)) << at_word
            at_word += g.suffix_bits
        mask = ((<uint64_t>1 << g.bucket_bits) - 1) << (at & 7)
        store64(data + (at >> 3), (load64(data + (at >> 3)) & ~mask) | (word << (at & 7)))
        return
    packed_put(data, at, g.code_bits, number)
    at += g.code_bits
    for i in range(4):
        packed_put(data, at, g.suffix_bits, values[i] & ((<uint32_t>1 << g.suffix_bits) - 1))
        at += g.suffix_bits


cdef inline bint bucket_replace(
    const Cuckoo* g, uint8_t* data, uint64_t bucket, uint32_t old, uint32_t new,
) noexcept nogil:
    """Put ``new`` where one ``old`` is; False if there is none."""
    cdef uint32_t values[4]
    cdef int i
    bucket_read(g, data, bucket, values)
    for i in range(4):
        if values[i] == old:
            values[i] = new
            bucket_write(g, data, bucket, values)
            return True
    return False


cdef bint cuckoo_insert(const Cuckoo* g, uint8_t* data, uint64_t bucket, uint32_t v) noexcept nogil:
    """Store ``v`` in ``bucket`` or its other one; False, and no change, if no chain of moves makes room."""
    cdef uint64_t at[SEARCH_NODES]
    cdef int32_t parent[SEARCH_NODES]
    cdef uint32_t moved[SEARCH_NODES]        # the fingerprint that goes from the parent's bucket to this one
    cdef uint32_t values[4]
    cdef uint64_t target
    cdef int head = 0, n = 2, slot, node, above
    if bucket_replace(g, data, bucket, 0, v):
        return True
    at[0] = bucket
    at[1] = cuckoo_other(g, bucket, v)
    parent[0] = parent[1] = -1
    if bucket_replace(g, data, at[1], 0, v):
        return True
    while head < n and n < SEARCH_NODES - 4:
        bucket_read(g, data, at[head], values)
        for slot in range(4):
            target = cuckoo_other(g, at[head], values[slot])
            # A chain must not pass a bucket twice: what it would move the second time may be gone.
            above = head
            while above >= 0 and at[above] != target:
                above = parent[above]
            if above >= 0:
                continue
            at[n] = target
            parent[n] = head
            moved[n] = values[slot]
            if bucket_replace(g, data, target, 0, values[slot]):
                # Found: undo the search from its end; each move leaves a hole for the one before.
                node = n
                while parent[node] >= 0:
                    above = parent[node]
                    if parent[above] >= 0:
                        bucket_replace(g, data, at[above], moved[node], moved[above])
                    else:
                        bucket_replace(g, data, at[above], moved[node], v)
                    node = above
                return True
            n += 1
        head += 1
    return False


cdef bint cuckoo_remove(const Cuckoo* g, uint8_t* data, uint64_t h) noexcept nogil:
    """Take one copy out; False if there is none."""
    cdef uint32_t v = cuckoo_fingerprint(g, h)
    cdef uint64_t bucket = cuckoo_bucket(g, h)
    return bucket_replace(g, data, bucket, v, 0) or bucket_replace(g, data, cuckoo_other(g, bucket, v), v, 0)


cdef void cuckoo_contains_many(
    const Cuckoo* geometry, const uint8_t* data, const uint64_t* hashes, Py_ssize_t n, uint8_t* out,
) noexcept nogil:
    cdef Cuckoo g = geometry[0]
    cdef uint64_t first[AHEAD]
    cdef uint64_t second[AHEAD]
    cdef uint32_t values[AHEAD]
    cdef Py_ssize_t i, at
    cdef uint32_t v
    for i in range(n + AHEAD):
        at = i & (AHEAD - 1)
        if i >= AHEAD:
            v = values[at]
            out[i - AHEAD] = (
                cuckoo_matches(&g, data, first[at], v) | cuckoo_matches(&g, data, second[at], v)
            ) != 0
        if i < n:
            v = cuckoo_fingerprint(&g, hashes[i])
            values[at] = v
            first[at] = cuckoo_bucket(&g, hashes[i])
            second[at] = cuckoo_other(&g, first[at], v)
            prefetch(data + ((first[at] * g.bucket_bits) >> 3))
            prefetch(data + ((second[at] * g.bucket_bits) >> 3))


cdef class CuckooCore(FilterCore):
    """Kernel of :class:`dlbf.CuckooFilter`."""

    def _set_geometry(self, uint64_t n_buckets, uint32_t n_prefixes, uint32_t suffix_bits):
        """Fix the geometry; the caller has checked the values."""
        self.table = cuckoo_set_geometry(&self.geometry, n_buckets, n_prefixes, suffix_bits)

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return cuckoo_contains(&self.geometry, self.data, h)

    cdef void _contains_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        cuckoo_contains_many(&self.geometry, self.data, hashes, chunk.n, out)

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef bint added = cuckoo_insert(
            &self.geometry, self.data, cuckoo_bucket(&self.geometry, h), cuckoo_fingerprint(&self.geometry, h)
        )
        self.n_items += added
        return added

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        if not cuckoo_remove(&self.geometry, self.data, h):
            return KEY_ABSENT
        if self.n_items:
            self.n_items -= 1
        return KEY_MAYBE if cuckoo_contains(&self.geometry, self.data, h) else KEY_REMOVED

    cdef uint64_t _count(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint32_t v = cuckoo_fingerprint(&self.geometry, h)
        cdef uint64_t bucket = cuckoo_bucket(&self.geometry, h)
        cdef uint64_t other = cuckoo_other(&self.geometry, bucket, v)
        cdef uint64_t found = cuckoo_matches(&self.geometry, self.data, bucket, v)
        if other != bucket:
            found += cuckoo_matches(&self.geometry, self.data, other, v)
        return found

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        cuckoo_prefetch(&self.geometry, self.data, h)

    cdef int _places(self, uint64_t h, uint64_t* out) noexcept nogil:
        cdef uint64_t bucket = cuckoo_bucket(&self.geometry, h)
        cdef uint64_t other = cuckoo_other(&self.geometry, bucket, cuckoo_fingerprint(&self.geometry, h))
        cdef uint32_t bits = self.geometry.bucket_bits
        out[0] = (bucket * bits) >> 3
        out[1] = (bucket * bits + bits - 1) >> 3
        out[2] = (other * bits) >> 3
        out[3] = (other * bits + bits - 1) >> 3
        return 4

    def _occupied(self):
        """Number of slots in use."""
        cdef uint64_t i, n = 0
        cdef uint32_t values[4]
        cdef int slot
        gate_read(&self.gate)
        try:
            self._check_all()
            with nogil:
                for i in range(self.geometry.n_buckets):
                    bucket_read(&self.geometry, self.data, i, values)
                    for slot in range(4):
                        n += values[slot] != 0
        finally:
            gate_read_done(&self.gate)
        return n

    def _merge(self, CuckooCore other, bint union):
        """Store every fingerprint of ``other``; False, and no change, if one finds no room."""
        cdef uint64_t i
        cdef uint32_t values[4]
        cdef int slot
        cdef bint fits = True
        _, payload, n_items = other._snapshot(bytearray)
        cdef const uint8_t[::1] theirs = payload
        cdef bytes before
        self._need_writable()
        gate_write(&self.gate)
        try:
            self._need_open()
            before = (<const char*>self.data)[:self.n_payload_bytes]
            with nogil:
                for i in range(self.geometry.n_buckets):
                    bucket_read(&self.geometry, &theirs[0], i, values)
                    for slot in range(4):
                        if fits and values[slot]:
                            fits = cuckoo_insert(&self.geometry, self.data, i, values[slot])
            if fits:
                self._add_items(n_items)
            else:
                memcpy(self.data, <const char*>before, self.n_payload_bytes)
        finally:
            gate_write_done(&self.gate)
        return fits
