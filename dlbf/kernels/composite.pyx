"""Evaluating the composite; what it is and how it is stored is in ``composite.pxd``."""

from libc.string cimport memset

from dlbf.kernels.cells cimport (
    cells_add, cells_contains, cells_prefetch, cells_subtract,
)
from dlbf.kernels.core cimport KEY_ABSENT, KEY_MAYBE, KEY_NO_ROOM, KEY_REMOVED
from dlbf.kernels.cuckoo cimport (
    cuckoo_bucket, cuckoo_contains, cuckoo_fingerprint, cuckoo_insert, cuckoo_prefetch, cuckoo_remove,
    cuckoo_set_geometry,
)
from dlbf.kernels.deletable cimport deletable_add, deletable_clear
from dlbf.kernels.dleft cimport dleft_contains, dleft_fingerprint, dleft_insert, dleft_prefetch, dleft_subtract
from dlbf.kernels.exact cimport exact_add, exact_find, exact_remove
from dlbf.kernels.hashing cimport hash_for_filter
from dlbf.kernels.keys cimport CHUNK_KEYS, KeyChunk, KeyReader
from dlbf.kernels.scoring cimport MODEL_NONE, model_open, model_score
from dlbf.kernels.types cimport load32, load64, store64, uint16_t

import numpy as np

from dlbf.errors import FormatError

cdef enum:
    DIRECTORY_BYTES = 208
    PART_BYTES = 80
    AT_THRESHOLDS = 16
    AT_MODEL_PARAMS = 80
    AT_MODEL = 168
    AT_PLAN = 184
    AT_UNSTORED = 200


# --- one part ------------------------------------------------------------------


cdef inline bint part_contains(const Part* p, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
    cdef uint64_t slot
    if p.kind == PART_ALL:
        return True
    h = hash_for_filter(h, p.filter_id)
    if p.kind == PART_CUCKOO:
        return cuckoo_contains(&p.cuckoo, p.data, h)
    if p.kind == PART_BITS or p.kind == PART_COUNTERS:
        return cells_contains(&p.cells, p.data, h)
    if p.kind == PART_DLEFT:
        return dleft_contains(&p.dleft, p.data, h)
    if p.kind == PART_DELETABLE:
        return cells_contains(&p.deletable.cells, p.data, h)
    return exact_find(&p.exact, p.data, h, key, n, &slot)


cdef inline void part_prefetch(const Part* p, uint64_t h) noexcept nogil:
    if p.kind == PART_ALL:
        return
    h = hash_for_filter(h, p.filter_id)
    if p.kind == PART_CUCKOO:
        cuckoo_prefetch(&p.cuckoo, p.data, h)
    elif p.kind == PART_BITS or p.kind == PART_COUNTERS:
        cells_prefetch(&p.cells, p.data, h)
    elif p.kind == PART_DELETABLE:
        cells_prefetch(&p.deletable.cells, p.data, h)
    elif p.kind == PART_DLEFT:
        dleft_prefetch(&p.dleft, p.data, h)


cdef inline bint part_add(Part* p, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
    """False, and no change, if there is no room."""
    cdef uint64_t b
    cdef uint32_t r
    if p.kind == PART_ALL:
        return True
    h = hash_for_filter(h, p.filter_id)
    if p.kind == PART_CUCKOO:
        return cuckoo_insert(&p.cuckoo, p.data, cuckoo_bucket(&p.cuckoo, h), cuckoo_fingerprint(&p.cuckoo, h))
    if p.kind == PART_BITS or p.kind == PART_COUNTERS:
        cells_add(&p.cells, p.data, h)
        return True
    if p.kind == PART_DLEFT:
        dleft_fingerprint(&p.dleft, h, &b, &r)
        return dleft_insert(&p.dleft, p.data, b, r, 1)
    if p.kind == PART_DELETABLE:
        deletable_add(&p.deletable, p.data, h)
        return True
    return exact_add(&p.exact, p.data, h, key, n) != 0


cdef inline bint part_remove(Part* p, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
    """False, and no change, if the key is certainly not there.  Parts that cannot forget keep the key."""
    if p.kind == PART_ALL:
        return True
    h = hash_for_filter(h, p.filter_id)
    if p.kind == PART_CUCKOO:
        return cuckoo_remove(&p.cuckoo, p.data, h)
    if p.kind == PART_BITS or p.kind == PART_COUNTERS:
        return cells_subtract(&p.cells, p.data, h)
    if p.kind == PART_DLEFT:
        return dleft_subtract(&p.dleft, p.data, h)
    if p.kind == PART_DELETABLE:
        if not cells_contains(&p.deletable.cells, p.data, h):
            return False
        deletable_clear(&p.deletable, p.data, h)
        return True
    return exact_remove(&p.exact, p.data, h, key, n)


# --- the whole -------------------------------------------------------------------


cdef inline uint32_t composite_region(
    const Composite* c, uint64_t h, const uint8_t* key, size_t n,
) noexcept nogil:
    cdef int32_t score
    cdef uint32_t r = 0
    cdef uint32_t i
    cdef uint8_t hidden[8]
    if c.n_regions == 1:
        return 0
    if c.hides_score:
        # The model sees only the keyed hash, so nobody without the secret can choose a score.
        store64(hidden, h)
        score = model_score(&c.model, hidden, 8)
    else:
        score = model_score(&c.model, key, n)
    for i in range(c.n_regions - 1):
        r += score >= c.thresholds[i]
    return r


cdef class CompositeCore(FilterCore):
    """Kernel of :class:`dlbf.LearnedFilter`."""

    def _load(self):
        """Read the directory of the attached buffer, checking everything that will be trusted."""
        cdef Composite* c = &self.composite
        cdef const uint8_t* d
        cdef uint64_t size = self.n_payload_bytes
        cdef uint64_t offset, n_bytes
        cdef uint32_t i, n_parts, role, region
        cdef Part* part
        memset(c, 0, sizeof(Composite))
        self.tables = []
        self._check_all()
        d = self.data
        if size < DIRECTORY_BYTES:
            raise FormatError(f"a learned filter needs {DIRECTORY_BYTES} bytes or more, found {size}")
        c.n_regions = load32(d)
        n_parts = load32(d + 4)
        if not 1 <= c.n_regions <= MAX_REGIONS or n_parts > 2 * MAX_REGIONS + 1 or load32(d + 8) > 1 or load32(d + 12):
            raise FormatError("the directory of a learned filter makes no sense; build it again")
        if DIRECTORY_BYTES + <uint64_t>n_parts * PART_BYTES > size:
            raise FormatError(f"{n_parts} parts do not fit {size} bytes; the filter is cut")
        c.hides_score = load32(d + 8) & 1
        for i in range(<uint32_t>MAX_REGIONS):
            c.thresholds[i] = <int32_t>load32(d + AT_THRESHOLDS + 4 * i)
            if 0 < i < c.n_regions - 1 and c.thresholds[i] < c.thresholds[i - 1]:
                raise FormatError("the thresholds of a learned filter must ascend; build it again")
        for i in range(11):
            self.model_params[i] = load64(d + AT_MODEL_PARAMS + 8 * i)
        offset, n_bytes = load64(d + AT_MODEL), load64(d + AT_MODEL + 8)
        if offset > size or n_bytes > size - offset:
            raise FormatError("the model lies outside of the filter; build it again")
        model_open(&c.model, d + offset, n_bytes, self.model_params)
        if c.n_regions > 1 and c.model.kind == MODEL_NONE:
            raise FormatError("several regions and no model; build the filter again")
        offset, n_bytes = load64(d + AT_PLAN), load64(d + AT_PLAN + 8)
        if offset > size or n_bytes > size - offset:
            raise FormatError("the plan lies outside of the filter; build it again")
        for i in range(n_parts):
            d = self.data + DIRECTORY_BYTES + i * PART_BYTES
            role, region = load32(d), load32(d + 4)
            if role > 2 or region >= c.n_regions:
                raise FormatError(f"part {i} has role {role} in region {region} of {c.n_regions}")
            if role == 0:
                part = &c.initial
                c.has_initial = True
            elif role == 1:
                part = &c.member[region]
            else:
                part = &c.deleted[region]
                c.has_deleted = True
            if part.kind != PART_ALL:
                raise FormatError(f"part {i} takes the place of another")
            part.kind = load32(d + 8)
            offset, n_bytes = load64(d + 16), load64(d + 24)
            if offset > size or n_bytes > size - offset:
                raise FormatError(f"part {i} lies outside of the filter; build it again")
            part.data = self.data + offset
            part.filter_id = load64(d + 32)
            params = tuple([load64(d + 40 + 8 * j) for j in range(5)])
            # The class of that kind knows what its parameters may be and how many bytes they need.
            if self._part_bytes(part.kind, params) != n_bytes:
                raise FormatError(f"part {i} has {n_bytes} bytes, its parameters call for another number")
            self._set_part(i, role, region, params)

    def _set_part(self, uint32_t number, uint32_t role, uint32_t region, params):
        cdef Composite* c = &self.composite
        cdef Part* p = &c.initial if role == 0 else (&c.member[region] if role == 1 else &c.deleted[region])
        if p.kind == PART_BITS or p.kind == PART_COUNTERS:
            p.cells.n_cells, p.cells.n_hashes, p.cells.block_cells = params[0], params[1], params[2]
            p.cells.n_blocks = p.cells.n_cells // p.cells.block_cells if p.cells.block_cells else 1
            p.cells.log2_bits = {1: 0, 2: 1, 4: 2, 8: 3}[params[3]]
            p.cells.max_count = (1 << <int>params[3]) - 1
        elif p.kind == PART_DELETABLE:
            p.deletable.cells.n_cells, p.deletable.cells.n_hashes = params[0], params[1]
            p.deletable.cells.n_blocks = p.deletable.cells.max_count = 1
            p.deletable.n_regions = params[2]
            p.deletable.region_cells = (p.deletable.cells.n_cells + p.deletable.n_regions - 1) // p.deletable.n_regions
        elif p.kind == PART_DLEFT:
            p.dleft.n_tables, p.dleft.n_buckets, p.dleft.bucket_cells = params[0], params[1], params[2]
            p.dleft.remainder_bits, p.dleft.counter_bits = params[3], params[4]
            p.dleft.cell_bits = p.dleft.remainder_bits + p.dleft.counter_bits
            p.dleft.max_count = (<uint32_t>1 << p.dleft.counter_bits) - 1
        elif p.kind == PART_CUCKOO:
            self.tables.append(cuckoo_set_geometry(&p.cuckoo, params[0], params[1], params[2]))
        elif p.kind == PART_EXACT:
            p.exact.n_slots, p.exact.arena_bytes = params[0], params[1]
        else:
            raise FormatError(f"part {number} is of unknown kind {p.kind}; written by a newer dlbf?")

    def _part_bytes(self, kind, params):
        """Bytes that a part of that kind with those parameters has; the Python class knows."""
        raise NotImplementedError

    @property
    def _unstored(self):
        """Keys held by no filter because their region lets everything pass."""
        return load64(self.data + AT_UNSTORED)

    # --- leaves

    cdef int _region(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return composite_region(&self.composite, h, key, n)

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef const Composite* c = &self.composite
        cdef uint32_t r
        if c.has_initial and not part_contains(&c.initial, h, key, n):
            return False
        r = composite_region(c, h, key, n)
        if not part_contains(&c.member[r], h, key, n):
            return False
        return not (c.has_deleted and c.deleted[r].kind != PART_ALL and part_contains(&c.deleted[r], h, key, n))

    cdef void _contains_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        cdef const Composite* c = &self.composite
        cdef uint16_t index[CHUNK_KEYS]
        cdef uint8_t region[CHUNK_KEYS]
        cdef Py_ssize_t i, at, n = 0, left
        cdef uint32_t r
        memset(out, 0, chunk.n)
        if c.has_initial:
            for i in range(chunk.n):
                if i + 16 < chunk.n:
                    part_prefetch(&c.initial, hashes[i + 16])
                index[n] = <uint16_t>i
                n += part_contains(&c.initial, hashes[i], chunk.data[i], chunk.n_bytes[i])
        else:
            for i in range(chunk.n):
                index[i] = <uint16_t>i
            n = chunk.n
        # Score and fetch first, look later: by then the lines have arrived.
        for i in range(n):
            at = index[i]
            r = composite_region(c, hashes[at], chunk.data[at], chunk.n_bytes[at])
            region[i] = <uint8_t>r
            part_prefetch(&c.member[r], hashes[at])
        for i in range(n):
            at = index[i]
            r = region[i]
            out[at] = part_contains(&c.member[r], hashes[at], chunk.data[at], chunk.n_bytes[at])
            if c.has_deleted and out[at] and c.deleted[r].kind != PART_ALL:
                out[at] = not part_contains(&c.deleted[r], hashes[at], chunk.data[at], chunk.n_bytes[at])

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef Composite* c = &self.composite
        cdef uint32_t r = composite_region(c, h, key, n)
        cdef Part* gone = &c.deleted[r]
        if gone.kind != PART_ALL and part_contains(gone, h, key, n):
            if gone.kind == PART_BITS:
                # The deleted set cannot forget: the key would be stored and answered "absent".
                return -1
            if part_contains(&c.member[r], h, key, n):
                # Still a member: it only has to leave the deleted set.
                part_remove(gone, h, key, n)
                self.n_items += 1
                return 1
            # Never a member, so its place among the deleted is a collision: a false negative that stays.
        if c.has_initial and not part_add(&c.initial, h, key, n):
            return 0
        if not part_add(&c.member[r], h, key, n):
            if c.has_initial:
                part_remove(&c.initial, h, key, n)
            return 0
        if c.member[r].kind == PART_ALL:
            store64(self.data + AT_UNSTORED, load64(self.data + AT_UNSTORED) + 1)
        self.n_items += 1
        return 1

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef Composite* c = &self.composite
        cdef uint32_t r
        cdef uint64_t unstored
        if not self._contains(h, key, n):
            return KEY_ABSENT
        r = composite_region(c, h, key, n)
        if c.deleted[r].kind != PART_ALL:
            if not part_add(&c.deleted[r], h, key, n):
                return KEY_NO_ROOM
        else:
            if c.has_initial and not part_remove(&c.initial, h, key, n):
                return KEY_ABSENT
            if not part_remove(&c.member[r], h, key, n):
                if c.has_initial:
                    part_add(&c.initial, h, key, n)
                return KEY_ABSENT
            if c.member[r].kind == PART_ALL:
                unstored = load64(self.data + AT_UNSTORED)
                if unstored:
                    store64(self.data + AT_UNSTORED, unstored - 1)
        if self.n_items:
            self.n_items -= 1
        return KEY_MAYBE if self._contains(h, key, n) else KEY_REMOVED

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        if self.composite.has_initial:
            part_prefetch(&self.composite.initial, h)

    def _regions_many(self, keys):
        """The score region of every key, as a numpy array of uint8."""
        cdef KeyReader reader = KeyReader(keys)
        cdef uint64_t hashes[CHUNK_KEYS]
        cdef uint8_t[::1] view
        cdef Py_ssize_t i
        self._need_open()
        blocks = []
        while reader.next_chunk():
            block = np.empty(reader.chunk.n, dtype=np.uint8)
            view = block
            with nogil:
                self._hash_chunk(&reader.chunk, hashes)
                for i in range(reader.chunk.n):
                    view[i] = <uint8_t>composite_region(
                        &self.composite, hashes[i], reader.chunk.data[i], reader.chunk.n_bytes[i]
                    )
            blocks.append(block)
        return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.uint8)
