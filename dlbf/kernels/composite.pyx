"""Evaluating the composite; what it is and how it is stored is in ``composite.pxd``."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy, memset

from dlbf.kernels.cells cimport CellsCore, cells_add, cells_contains, cells_prefetch, cells_subtract
from dlbf.kernels.core cimport KEY_ABSENT, KEY_MAYBE, KEY_NO_ROOM, KEY_REMOVED
from dlbf.kernels.cuckoo cimport (
    CuckooCore, cuckoo_bucket, cuckoo_contains, cuckoo_contains_many, cuckoo_fingerprint, cuckoo_insert,
    cuckoo_prefetch, cuckoo_remove,
)
from dlbf.kernels.deletable cimport DeletableCore, deletable_add, deletable_clear
from dlbf.kernels.dleft cimport (
    DLeftCore, dleft_contains, dleft_fingerprint, dleft_insert, dleft_prefetch, dleft_subtract,
)
from dlbf.kernels.elastic cimport ElasticCore, elastic_add, elastic_contains, elastic_prefetch, elastic_remove
from dlbf.kernels.exact cimport (
    EXACT_ENTRY_BYTES, ExactCore, exact_add, exact_arena, exact_find, exact_remove, exact_slot,
)
from dlbf.kernels.hashing cimport HASH_XXH3, HashKey, hash_for_filter, hash_key
from dlbf.kernels.keys cimport CHUNK_KEYS, KeyChunk
from dlbf.kernels.ribbon cimport RibbonCore, ribbon_contains, ribbon_contains_many, ribbon_prefetch
from dlbf.kernels.scoring cimport MODEL_NONE, model_open, model_scores
from dlbf.kernels.succinct cimport (
    SuccinctCore, succinct_add, succinct_contains, succinct_prefetch, succinct_subtract,
)
from dlbf.kernels.types cimport (
    gate_write, gate_write_done, load32, load64, store64,
)

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

cdef enum:
    ROLE_INITIAL = 0
    ROLE_MEMBER = 1
    ROLE_DELETED = 2

cdef enum:
    FLAG_HIDES_SCORE = 1
    FLAG_OWN_KEYS = 2

cdef enum:
    # One bit less than len() can say.
    MAX_UNSTORED_BITS = 62

# For the test that walks the table of dlbf.filters.kinds.
DIRECT = {
    "bits": PART_BITS, "counters": PART_COUNTERS, "dlbf": PART_DELETABLE, "d-left": PART_DLEFT, "cuckoo": PART_CUCKOO,
    "exact": PART_EXACT, "succinct": PART_SUCCINCT, "ribbon": PART_RIBBON, "elastic": PART_ELASTIC,
}


# --- one part ------------------------------------------------------------------


cdef inline bint part_contains(const Part* p, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
    cdef uint64_t slot
    if p.kind == PART_ALL:
        return True
    h = hash_for_filter(h, p.filter_id)
    if p.kind == PART_CUCKOO:
        return cuckoo_contains(&p.cuckoo, p.data, h)
    if p.kind == PART_RIBBON:
        return ribbon_contains(&p.ribbon, p.data, h)
    if p.kind == PART_BITS or p.kind == PART_COUNTERS:
        return cells_contains(&p.cells, p.data, h)
    if p.kind == PART_SUCCINCT:
        return succinct_contains(&p.succinct, p.data, h)
    if p.kind == PART_DLEFT:
        return dleft_contains(&p.dleft, p.data, h)
    if p.kind == PART_DELETABLE:
        return cells_contains(&p.deletable.cells, p.data, h)
    if p.kind == PART_EXACT:
        return exact_find(&p.exact, p.data, h, key, n, &slot)
    if p.kind == PART_ELASTIC:
        return elastic_contains(&p.elastic, p.data, h)
    return (<FilterCore>p.core)._contains(h, key, n)


cdef inline void part_prefetch(const Part* p, uint64_t h) noexcept nogil:
    if p.kind == PART_ALL:
        return
    h = hash_for_filter(h, p.filter_id)
    if p.kind == PART_CUCKOO:
        cuckoo_prefetch(&p.cuckoo, p.data, h)
    elif p.kind == PART_RIBBON:
        ribbon_prefetch(&p.ribbon, p.data, h)
    elif p.kind == PART_BITS or p.kind == PART_COUNTERS:
        cells_prefetch(&p.cells, p.data, h)
    elif p.kind == PART_SUCCINCT:
        succinct_prefetch(&p.succinct, p.data, h)
    elif p.kind == PART_DELETABLE:
        cells_prefetch(&p.deletable.cells, p.data, h)
    elif p.kind == PART_DLEFT:
        dleft_prefetch(&p.dleft, p.data, h)
    elif p.kind == PART_ELASTIC:
        elastic_prefetch(&p.elastic, p.data, h)


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
    if p.kind == PART_SUCCINCT:
        return succinct_add(&p.succinct, p.data, h)
    if p.kind == PART_DLEFT:
        dleft_fingerprint(&p.dleft, h, &b, &r)
        return dleft_insert(&p.dleft, p.data, b, r, 1)
    if p.kind == PART_DELETABLE:
        deletable_add(&p.deletable, p.data, h)
        return True
    if p.kind == PART_EXACT:
        return exact_add(&p.exact, p.data, h, key, n) != 0
    if p.kind == PART_ELASTIC:
        return elastic_add(&p.elastic, p.data, h)
    if p.kind == PART_RIBBON:
        return False
    return (<FilterCore>p.core)._add(h, key, n) > 0


cdef inline bint part_remove(Part* p, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
    """False, and no change, if the key is certainly not there.  Parts that cannot forget keep the key."""
    if p.kind == PART_ALL:
        return True
    h = hash_for_filter(h, p.filter_id)
    if p.kind == PART_CUCKOO:
        return cuckoo_remove(&p.cuckoo, p.data, h)
    if p.kind == PART_BITS or p.kind == PART_COUNTERS:
        return cells_subtract(&p.cells, p.data, h)
    if p.kind == PART_SUCCINCT:
        return succinct_subtract(&p.succinct, p.data, h)
    if p.kind == PART_DLEFT:
        return dleft_subtract(&p.dleft, p.data, h)
    if p.kind == PART_DELETABLE:
        if not cells_contains(&p.deletable.cells, p.data, h):
            return False
        deletable_clear(&p.deletable, p.data, h)
        return True
    if p.kind == PART_EXACT:
        return exact_remove(&p.exact, p.data, h, key, n)
    if p.kind == PART_ELASTIC:
        return elastic_remove(&p.elastic, p.data, h)
    if p.kind == PART_RIBBON:
        return False
    return (<FilterCore>p.core)._remove(h, key, n) != KEY_ABSENT


cdef bint part_pour(const Part* source, Part* target) noexcept nogil:
    """Copy the contents of a part to one of the same kind: same size, or an exact set with room; else False."""
    cdef uint64_t slot, entry
    cdef const uint8_t* stored
    if source.kind != target.kind:
        return False
    if source.kind == PART_ALL:
        return True
    if source.kind != PART_EXACT:
        if source.n_bytes != target.n_bytes:
            return False
        memcpy(target.data, source.data, source.n_bytes)
        return True
    for slot in range(source.exact.n_slots):
        entry = exact_slot(source.data, slot)
        if entry:
            # The hash is stored beside the key, so neither the secret nor the filter id is needed.
            stored = exact_arena(&source.exact, source.data) + entry - 1
            if not exact_add(
                &target.exact, target.data, load64(stored), stored + EXACT_ENTRY_BYTES, load32(stored + 8)
            ):
                return False
    return True


cdef int part_open(Part* p, FilterCore core) except -1:
    """Take over the geometry of a filter on no buffer; whoever calls keeps the filter alive."""
    if p.kind == PART_BITS or p.kind == PART_COUNTERS:
        p.cells = (<CellsCore?>core).geometry
    elif p.kind == PART_SUCCINCT:
        p.succinct = (<SuccinctCore?>core).succinct
    elif p.kind == PART_DELETABLE:
        p.deletable = (<DeletableCore?>core).geometry
    elif p.kind == PART_DLEFT:
        p.dleft = (<DLeftCore?>core).geometry
    elif p.kind == PART_CUCKOO:
        p.cuckoo = (<CuckooCore?>core).geometry
    elif p.kind == PART_EXACT:
        p.exact = (<ExactCore?>core).geometry
    elif p.kind == PART_RIBBON:
        p.ribbon = (<RibbonCore?>core).geometry
    elif p.kind == PART_ELASTIC:
        p.elastic = (<ElasticCore?>core).geometry  # its levels are the core's, which is kept
    else:
        # The bytes are the composite's, and so are the gate and the checks: the filter is only its leaves.
        core.data, core.n_payload_bytes = p.data, p.n_bytes
        p.core = <void*>core
    return 0


cdef uint64_t part_key(const HashKey* key, uint32_t role, uint32_t region) noexcept nogil:
    """The key of one part: SipHash of its place under the filter's secret, which it does not give away.

    It takes the place of the part's public number in ``hash_for_filter``, so what one part's answers or bits may tell
    about places says nothing about another part, or about what the model sees.
    """
    cdef uint8_t label[16]
    memcpy(label, b"dlbfpart", 8)
    store64(label + 8, (<uint64_t>role << 32) | region)
    return hash_key(key, label, 16)


# --- the whole -------------------------------------------------------------------


cdef void composite_regions(
    const Composite* c, const KeyChunk* chunk, const uint64_t* hashes, const uint16_t* at, Py_ssize_t n, uint8_t* out,
) noexcept nogil:
    """The regions of some keys of a chunk, those at ``at``; scored together, which keeps the processor busier."""
    cdef const uint8_t* keys[CHUNK_KEYS]
    cdef size_t n_bytes[CHUNK_KEYS]
    cdef int32_t scores[CHUNK_KEYS]
    cdef uint8_t hidden[8 * CHUNK_KEYS]
    cdef Py_ssize_t i
    cdef uint32_t t
    cdef int32_t threshold
    for i in range(n):
        out[i] = 0
    if c.n_regions == 1:
        return
    for i in range(n):
        if c.hides_score:
            store64(hidden + 8 * i, hashes[at[i]])
            keys[i] = hidden + 8 * i
            n_bytes[i] = 8
        else:
            keys[i] = chunk.data[at[i]]
            n_bytes[i] = chunk.n_bytes[at[i]]
    model_scores(&c.model, keys, n_bytes, n, scores)
    for t in range(c.n_regions - 1):
        threshold = c.thresholds[t]
        for i in range(n):
            out[i] += scores[i] >= threshold


# --- the directory -----------------------------------------------------------------


cdef uint32_t read_head(Composite* c, const uint8_t* d, uint64_t size) except 0xffffffff:
    """Take over what stands before the parts, checking it; returns the number of parts."""
    cdef uint32_t i, n_parts
    if size < DIRECTORY_BYTES:
        raise FormatError(f"a learned filter needs {DIRECTORY_BYTES} bytes or more, found {size}")
    c.n_regions = load32(d)
    n_parts = load32(d + 4)
    if not 1 <= c.n_regions <= MAX_REGIONS or n_parts > 2 * MAX_REGIONS + 1 or load32(d + 8) > 3 or load32(d + 12):
        raise FormatError("the directory of a learned filter makes no sense; build it again")
    if DIRECTORY_BYTES + <uint64_t>n_parts * PART_BYTES > size:
        raise FormatError(f"{n_parts} parts do not fit {size} bytes; the filter is cut")
    if load64(d + AT_UNSTORED) >> MAX_UNSTORED_BITS:
        raise FormatError(f"{load64(d + AT_UNSTORED)} keys without a filter make no sense; build it again")
    c.hides_score = load32(d + 8) & FLAG_HIDES_SCORE
    for i in range(<uint32_t>MAX_REGIONS):
        c.thresholds[i] = <int32_t>load32(d + AT_THRESHOLDS + 4 * i)
        if 0 < i < c.n_regions - 1 and c.thresholds[i] < c.thresholds[i - 1]:
            raise FormatError("the thresholds of a learned filter must ascend; build it again")
        if i + 1 >= c.n_regions and c.thresholds[i] != 0:
            raise FormatError("a threshold without a region; written by a newer dlbf?")
    return n_parts


cdef tuple read_range(const uint8_t* d, uint64_t size, str what):
    """The first byte of something in the filter and the one behind its last."""
    cdef uint64_t offset = load64(d), n_bytes = load64(d + 8)
    if offset > size or n_bytes > size - offset:
        raise FormatError(f"{what} lies outside of the filter; build it again")
    return offset, offset + n_bytes


cdef Part* place_of(Composite* c, const uint8_t* d, uint32_t number) except NULL:
    """Where a part of that role in that region belongs, which must be free."""
    cdef uint32_t role = load32(d), region = load32(d + 4)
    cdef Part* part
    if role > ROLE_DELETED or region >= c.n_regions or (role == ROLE_INITIAL and region) or load32(d + 12):
        raise FormatError(f"part {number} has role {role} in region {region} of {c.n_regions}")
    if role == ROLE_INITIAL:
        part = &c.initial
        c.has_initial = True
    elif role == ROLE_MEMBER:
        part = &c.member[region]
    else:
        part = &c.deleted[region]
        c.has_deleted = True
    if part.kind != PART_ALL:
        raise FormatError(f"part {number} takes the place of another")
    return part


cdef int check_ranges(list ranges) except -1:
    """FormatError if two ranges have a byte in common."""
    ranges = sorted([pair for pair in ranges if pair[0] < pair[1]])
    for before, after in zip(ranges, ranges[1:]):
        if before[1] > after[0]:
            raise FormatError(f"bytes {after[0]} to {before[1]} of a learned filter have two meanings; build it again")
    return 0


cdef class CompositeCore(FilterCore):
    """Kernel of :class:`dlbf.LearnedFilter`."""

    def _load(self, bytes directory=None, CompositeCore like=None, uint64_t n_head_bytes=0):
        """Read the directory, checking everything that will be trusted.

        It is the start of the attached buffer, unless one is given for a buffer that has none.  The model is that of
        ``like`` if one is given, for a shard: what all of them ask stays in the processor's cache.  A shard's buffer
        begins with a head of ``n_head_bytes``, the first eight of them the number of keys without a filter.
        """
        cdef Composite fresh
        cdef Composite* c = &fresh
        cdef uint64_t params[11]
        cdef const uint8_t* head
        cdef const uint8_t* d
        cdef uint64_t size = self.n_payload_bytes
        cdef uint64_t first, end
        cdef uint32_t i, n_parts
        cdef Part* part
        memset(c, 0, sizeof(Composite))
        self._check_all()
        head = self.data
        if directory is not None:
            head = directory
        n_parts = read_head(c, head, size if directory is None else len(directory))
        if load32(head + 8) & FLAG_OWN_KEYS and self.hash_key.kind == HASH_XXH3:
            raise FormatError("a learned filter with keys for its parts, but without a secret; build it again")
        ranges = [] if directory is not None else [(0, DIRECTORY_BYTES + n_parts * PART_BYTES)]
        for i in range(11):
            params[i] = load64(head + AT_MODEL_PARAMS + 8 * i)
        if like is None:
            first, end = read_range(head + AT_MODEL, size, "the model")
            ranges.append((first, end))
            kept = [model_open(&c.model, self.data + first, end - first, params)]
        else:
            ranges.append((0, n_head_bytes))
            like._need_open()
            c.model = like.composite.model
            kept = [like.kept, like.owner]
        if c.n_regions > 1 and c.model.kind == MODEL_NONE:
            raise FormatError("several regions and no model; build the filter again")
        ranges.append(read_range(head + AT_PLAN, size, "the plan"))
        arrays = {}
        for i in range(n_parts):
            d = head + DIRECTORY_BYTES + i * PART_BYTES
            part = place_of(c, d, i)
            kept.append(self._load_part(part, d, i, load32(head + 8) & FLAG_OWN_KEYS, ranges, arrays))
            c.is_static = c.is_static or part.is_static
        check_ranges(ranges)
        self.kept = kept
        self.composite = fresh
        self.always_zero = 0
        if like is not None:
            self.unstored = self.data
        else:
            self.unstored = self.data + AT_UNSTORED if directory is None else <uint8_t*>&self.always_zero

    cdef FilterCore _load_part(
        self, Part* part, const uint8_t* d, uint32_t number, bint own_keys, list ranges, dict arrays
    ):
        """Open one part; notes its bytes in ``ranges``, and in ``arrays`` what the member at an offset is like.

        Returns what must be kept alive with it.
        """
        cdef uint32_t role = load32(d), region = load32(d + 4)
        cdef uint64_t offset, end
        offset, end = read_range(d + 16, self.n_payload_bytes, f"part {number}")
        part.kind = load32(d + 8)
        part.data = self.data + offset
        part.n_bytes = end - offset
        part.filter_id = load64(d + 32)
        params = tuple([load64(d + 40 + 8 * j) for j in range(5)])
        # The class of that kind knows what its parameters may be and how many bytes they need.
        if self._part_bytes(part.kind, params) != part.n_bytes:
            raise FormatError(f"part {number} has {part.n_bytes} bytes, its parameters call for another number")
        # One array for several regions: everything but the number of hashes agrees.
        like = (role, part.kind, part.n_bytes, part.filter_id, params[0], params[2:])
        before, first_region = arrays.get(offset, (None, region))
        if role != ROLE_MEMBER or part.kind not in (PART_BITS, PART_COUNTERS) or before != like:
            ranges.append((offset, end))
            first_region = region
        arrays[offset] = (like, first_region)
        if own_keys:
            part.filter_id = part_key(&self.hash_key, role, first_region)
        core, part.can_forget, part.may_be_full, part.is_static = self._part_core(part.kind, params)
        part_open(part, core)
        return core

    def _part_bytes(self, kind, params):
        """Bytes that a part of that kind with those parameters has; the Python class knows."""
        raise NotImplementedError

    def _part_core(self, kind, params):
        """A filter of that kind on no buffer; whether it can forget keys, can be full, and is built once."""
        raise NotImplementedError

    def _member_id(self, uint32_t region):
        """The filter id of a region's member as hashes are mixed with it: with a secret a key of its own."""
        return self.composite.member[region].filter_id if region < self.composite.n_regions else 0

    @property
    def _unstored(self):
        """Keys held by no filter because their region lets everything pass."""
        self._need_open()
        return load64(self.unstored)

    def _set_unstored(self, uint64_t n_keys):
        """Set that number; called under ``_lock``."""
        self._need_writable()
        store64(self.unstored, n_keys)

    # --- the buffer as a whole

    def _lock(self):
        """Be the only one at work on the filter until ``_unlock``; the owner must not ask it anything."""
        gate_write(&self.gate)

    def _unlock(self):
        gate_write_done(&self.gate)

    def _wipe(self):
        """Zero every part and the counts; directory, model and plan stay."""
        cdef Composite* c = &self.composite
        cdef uint32_t r
        self._need_writable()
        gate_write(&self.gate)
        try:
            self._need_open()
            with nogil:
                if c.has_initial:
                    memset(c.initial.data, 0, c.initial.n_bytes)
                for r in range(c.n_regions):
                    if c.member[r].kind != PART_ALL:
                        memset(c.member[r].data, 0, c.member[r].n_bytes)
                    if c.deleted[r].kind != PART_ALL:
                        memset(c.deleted[r].data, 0, c.deleted[r].n_bytes)
                store64(self.unstored, 0)
            self.n_items = 0
        finally:
            gate_write_done(&self.gate)

    def _pour(self, CompositeCore target):
        """Copy the contents of all parts to an empty filter with the same parts, its exact sets perhaps larger."""
        cdef Composite* c = &self.composite
        cdef Composite* t = &target.composite
        cdef uint32_t r
        cdef bint fits
        self._need_open()
        target._need_writable()
        fits = c.n_regions == t.n_regions and part_pour(&c.initial, &t.initial)
        for r in range(c.n_regions):
            fits = fits and part_pour(&c.member[r], &t.member[r]) and part_pour(&c.deleted[r], &t.deleted[r])
        if not fits:
            raise AssertionError("a learned filter poured into one that does not fit")
        store64(target.unstored, load64(self.unstored))
        target.n_items = self.n_items

    def _adopt(self, buffer):
        """Go on in another buffer, which holds the same keys; called under ``_lock``."""
        cdef Py_buffer view
        cdef Py_buffer old = self.taken.view
        self._need_writable()
        before = self.owner
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.taken.view, self.owner = view, buffer
        self.data, self.n_payload_bytes = <uint8_t*>view.buf, view.len
        try:
            self._load()
        except BaseException:
            self.taken.view, self.owner = old, before
            self.data, self.n_payload_bytes = <uint8_t*>old.buf, old.len
            PyBuffer_Release(&view)
            raise
        PyBuffer_Release(&old)

    # --- leaves

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
        cdef Py_ssize_t i, at, n = 0
        cdef uint32_t r
        cdef uint64_t own[CHUNK_KEYS]
        if c.n_regions == 1 and not c.has_initial and not c.has_deleted and (
            c.member[0].kind == PART_CUCKOO or c.member[0].kind == PART_RIBBON
        ):
            # No model: as fast as the plain filter it is.
            for i in range(chunk.n):
                own[i] = hash_for_filter(hashes[i], c.member[0].filter_id)
            if c.member[0].kind == PART_CUCKOO:
                cuckoo_contains_many(&c.member[0].cuckoo, c.member[0].data, own, chunk.n, out)
            else:
                ribbon_contains_many(&c.member[0].ribbon, c.member[0].data, own, chunk.n, out)
            return
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
        if chunk.regions != NULL:
            for i in range(n):
                region[i] = chunk.regions[index[i]]
        else:
            composite_regions(c, chunk, hashes, index, n, region)
        for i in range(n):
            part_prefetch(&c.member[region[i]], hashes[index[i]])
        for i in range(n):
            at = index[i]
            r = region[i]
            out[at] = part_contains(&c.member[r], hashes[at], chunk.data[at], chunk.n_bytes[at])
            if c.has_deleted and out[at] and c.deleted[r].kind != PART_ALL:
                out[at] = not part_contains(&c.deleted[r], hashes[at], chunk.data[at], chunk.n_bytes[at])

    cdef void _regions_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        cdef uint16_t index[CHUNK_KEYS]
        cdef Py_ssize_t i
        for i in range(chunk.n):
            index[i] = <uint16_t>i
        composite_regions(&self.composite, chunk, hashes, index, chunk.n, out)

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef Composite* c = &self.composite
        cdef uint32_t r = composite_region(c, h, key, n)
        cdef Part* gone = &c.deleted[r]
        cdef Part* member = &c.member[r]
        cdef Part* first = member
        cdef Part* second = &c.initial
        if c.is_static:
            return -1
        if gone.kind != PART_ALL and part_contains(gone, h, key, n):
            if not gone.can_forget:
                # The deleted set cannot forget: the key would be stored and answered "absent".
                return -1
            if part_contains(member, h, key, n) and part_remove(gone, h, key, n):
                # Still a member: it only had to leave the deleted set.
                self._counted(member, 1)
                return 1
            # Never a member, so its place among the deleted is a collision: a false negative that stays.
        if c.has_initial and c.initial.may_be_full:
            # Taking a key back out of a table leaves no trace, out of counters it may (they saturate): tables first.
            first, second = second, first
        if not part_add(first, h, key, n):
            return 0
        if not part_add(second, h, key, n):
            part_remove(first, h, key, n)
            return 0
        self._counted(member, 1)
        return 1

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef Composite* c = &self.composite
        cdef uint32_t r
        cdef Part* member
        if not self._contains(h, key, n):
            return KEY_ABSENT
        r = composite_region(c, h, key, n)
        member = &c.member[r]
        if c.deleted[r].kind != PART_ALL:
            if not part_add(&c.deleted[r], h, key, n):
                return KEY_NO_ROOM
        else:
            # "No" here means that a cell which the key needs twice was counted once: it was never added.
            if not part_remove(&c.initial, h, key, n):
                return KEY_ABSENT
            if not part_remove(member, h, key, n):
                part_add(&c.initial, h, key, n)
                return KEY_ABSENT
        self._counted(member, -1)
        return KEY_MAYBE if self._contains(h, key, n) else KEY_REMOVED

    cdef void _counted(self, const Part* member, int change) noexcept nogil:
        """Count one key more or less; never below zero, whatever a caller removes."""
        cdef uint64_t unstored
        if change > 0 or self.n_items:
            self.n_items += change
        if member.kind == PART_ALL:
            unstored = load64(self.unstored)
            if change > 0 or unstored:
                store64(self.unstored, unstored + change)

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        if self.composite.has_initial:
            part_prefetch(&self.composite.initial, h)

    def _regions_many(self, keys):
        """The score region of every key, as a numpy array of uint8."""
        return np.frombuffer(self._ask_many(keys, True), dtype=np.uint8)

    def _route_many(self, keys):
        """Hash and score region of every key, as numpy arrays of uint64 and uint8."""
        cdef bytearray hashes = bytearray()
        regions = self._ask_many(keys, True, hashes)
        return np.frombuffer(hashes, dtype=np.uint64), np.frombuffer(regions, dtype=np.uint8)
