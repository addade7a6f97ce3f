"""Succinct counters on a flat buffer; layout and rationale are in ``succinct.pxd``."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcmp, memcpy, memset

from dlbf.kernels.cells cimport cells_at, cells_get, cells_step
from dlbf.kernels.core cimport KEY_ABSENT, KEY_MAYBE, KEY_REMOVED, FilterCore
from dlbf.kernels.keys cimport KeyChunk
from dlbf.kernels.types cimport (
    gate_read, gate_read_done, gate_write, gate_write_done, likely, mulhi64, prefetch, store64, unlikely,
)

cdef enum:
    # Answers of cell_raise.
    NO_ROOM = 0
    RAISED = 1
    SATURATED = 2


cdef void succinct_set_geometry(Succinct* g, uint64_t n_cells, uint32_t n_hashes, uint64_t n_slots) noexcept nogil:
    g.cells.n_cells = n_cells
    g.cells.n_hashes = n_hashes
    g.cells.block_cells = 0
    g.cells.n_blocks = 1
    g.cells.log2_bits = 0
    g.cells.max_count = 1
    g.n_groups = (n_cells + SUCCINCT_GROUP - 1) // SUCCINCT_GROUP
    g.n_slots = n_slots


# --- a whole group: the way of the rare ones that have a slot, or get or lose one


cdef void group_read(const Succinct* g, const uint8_t* data, uint64_t group, uint8_t* counts) noexcept nogil:
    """The 64 counts of a group."""
    cdef uint64_t bits = load64(data + succinct_bits_at(g, group))
    cdef uint64_t code = load64(data + succinct_code_at(g, group))
    cdef int i, n
    if succinct_outgrown(code):
        memcpy(counts, data + succinct_slot_at(g, succinct_slot(code)), SUCCINCT_GROUP)
        return
    memset(counts, 0, SUCCINCT_GROUP)
    for i in range(SUCCINCT_GROUP):
        if (bits >> i) & 1:
            n = popcount64(code ^ (code + 1))
            counts[i] = <uint8_t>n
            code = code >> n if n < 64 else 0


cdef bint slot_is_free(const Succinct* g, const uint8_t* data, uint64_t slot) noexcept nogil:
    cdef const uint8_t* at = data + succinct_slot_at(g, slot)
    cdef uint64_t any_of = 0
    cdef int i
    for i in range(0, SUCCINCT_GROUP, 8):
        any_of |= load64(at + i)
    return any_of == 0


cdef bint slot_find(const Succinct* g, const uint8_t* data, uint64_t group, uint64_t* found) noexcept nogil:
    """A free slot, looked for from a place of the group's own.

    As in a hash table: a few steps while slots are mostly free, as planned, and no list of free ones to keep.
    """
    cdef uint64_t slot = mulhi64((group + 1) * <uint64_t>0x9E3779B97F4A7C15, g.n_slots)
    cdef uint64_t _step
    for _step in range(g.n_slots):
        if slot_is_free(g, data, slot):
            found[0] = slot
            return True
        slot = slot + 1 if slot + 1 < g.n_slots else 0
    return False


cdef bint group_write(const Succinct* g, uint8_t* data, uint64_t group, const uint8_t* counts) noexcept nogil:
    """Give a group new counts; False, and no change, if they need a slot and none is free."""
    cdef uint64_t code = load64(data + succinct_code_at(g, group))
    cdef uint64_t bits = 0, new_code = 0, slot = 0
    cdef uint32_t total = 0, at = 0
    cdef int i
    for i in range(SUCCINCT_GROUP):
        total += counts[i]
        bits |= <uint64_t>(counts[i] != 0) << i
    if total > SUCCINCT_GROUP:
        if succinct_outgrown(code):
            slot = succinct_slot(code)
        elif not slot_find(g, data, group, &slot):
            return False
        memcpy(data + succinct_slot_at(g, slot), counts, SUCCINCT_GROUP)
        new_code = slot | (<uint64_t>1 << 63)
    else:
        if succinct_outgrown(code):
            memset(data + succinct_slot_at(g, succinct_slot(code)), 0, SUCCINCT_GROUP)
        for i in range(SUCCINCT_GROUP):
            if counts[i]:
                # count - 1 ones, from bit `at`; at + counts[i] <= 64, so no shift is too far.
                new_code |= ((<uint64_t>1 << (counts[i] - 1)) - 1) << at
                at += counts[i]
    store64(data + succinct_code_at(g, group), new_code)
    store64(data + succinct_bits_at(g, group), bits)
    return True


cdef uint32_t group_merge(
    const Succinct* g, const uint8_t* data, const uint8_t* other, uint64_t group, bint union, uint8_t* counts,
) noexcept nogil:
    """The counts of a group in two tables combined; returns their sum."""
    cdef uint8_t theirs[SUCCINCT_GROUP]
    cdef uint32_t a, total = 0
    cdef int i
    group_read(g, data, group, counts)
    group_read(g, other, group, theirs)
    for i in range(SUCCINCT_GROUP):
        if union:
            a = min(<uint32_t>counts[i] + theirs[i], <uint32_t>SUCCINCT_MAX_COUNT)
        else:
            a = min(counts[i], theirs[i])
        counts[i] = <uint8_t>a
        total += a
    return total


# --- one cell


cdef int cell_raise_slowly(const Succinct* g, uint8_t* data, uint64_t cell) noexcept nogil:
    cdef uint8_t counts[SUCCINCT_GROUP]
    group_read(g, data, cell // SUCCINCT_GROUP, counts)
    if counts[cell & 63] == SUCCINCT_MAX_COUNT:
        return SATURATED
    counts[cell & 63] += 1
    return RAISED if group_write(g, data, cell // SUCCINCT_GROUP, counts) else NO_ROOM


cdef inline int cell_raise(const Succinct* g, uint8_t* data, uint64_t cell) noexcept nogil:
    """Count a cell once more."""
    cdef uint8_t* at_bits = data + succinct_bits_at(g, cell // SUCCINCT_GROUP)
    cdef uint8_t* at_code = data + succinct_code_at(g, cell // SUCCINCT_GROUP)
    cdef uint64_t bits = load64(at_bits), code = load64(at_code)
    cdef uint64_t low, bit = <uint64_t>1 << (cell & 63)
    cdef int start
    if unlikely(succinct_outgrown(code) or popcount64(bits) + popcount64(code) >= SUCCINCT_GROUP):
        return cell_raise_slowly(g, data, cell)
    start = succinct_start(bits, code, cell)
    low = (<uint64_t>1 << start) - 1
    # A zero is a new code of its own, a one makes the cell's code longer.
    store64(at_code, (code & low) | ((code & ~low) << 1) | (<uint64_t>((bits & bit) != 0) << start))
    store64(at_bits, bits | bit)
    return RAISED


cdef void cell_lower_slowly(const Succinct* g, uint8_t* data, uint64_t cell) noexcept nogil:
    cdef uint8_t counts[SUCCINCT_GROUP]
    group_read(g, data, cell // SUCCINCT_GROUP, counts)
    if counts[cell & 63]:
        counts[cell & 63] -= 1
        # The group has its slot already, or needs none.
        group_write(g, data, cell // SUCCINCT_GROUP, counts)


cdef inline void cell_lower(const Succinct* g, uint8_t* data, uint64_t cell) noexcept nogil:
    """Undo one ``cell_raise`` that answered RAISED."""
    cdef uint8_t* at_bits = data + succinct_bits_at(g, cell // SUCCINCT_GROUP)
    cdef uint8_t* at_code = data + succinct_code_at(g, cell // SUCCINCT_GROUP)
    cdef uint64_t bits = load64(at_bits), code = load64(at_code)
    cdef uint64_t low
    cdef int start
    if unlikely(succinct_outgrown(code)):
        cell_lower_slowly(g, data, cell)
        return
    start = succinct_start(bits, code, cell)
    low = (<uint64_t>1 << start) - 1
    store64(at_code, (code & low) | ((code >> 1) & ~low))
    # A code that starts with its zero was the cell's last count.
    store64(at_bits, bits & ~(<uint64_t>(((code >> start) & 1) == 0) << (cell & 63)))


# --- one key


cdef inline void key_cells(const Succinct* g, const uint8_t* data, uint64_t h, uint64_t* cells) noexcept nogil:
    cdef uint64_t x = h
    cdef uint32_t i
    for i in range(g.cells.n_hashes):
        cells[i] = cells_at(&g.cells, h, x)
        # All cache misses at once: what is done to one cell decides nothing about where the next is.
        prefetch(data + succinct_bits_at(g, cells[i] // SUCCINCT_GROUP))
        prefetch(data + succinct_code_at(g, cells[i] // SUCCINCT_GROUP))
        x = cells_step(x)


cdef bint succinct_add(const Succinct* g, uint8_t* data, uint64_t h) noexcept nogil:
    """Count a key once more; False, and no change, if a group needs a slot and none is free."""
    cdef uint64_t cells[SUCCINCT_MAX_HASHES]
    cdef uint64_t raised = 0
    cdef uint32_t i
    cdef int answer
    key_cells(g, data, h, cells)
    for i in range(g.cells.n_hashes):
        answer = cell_raise(g, data, cells[i])
        raised |= <uint64_t>(answer == RAISED) << i
        if unlikely(answer == NO_ROOM):
            # Backwards, and only what was raised: a counter that was at its maximum before is not lowered, one that
            # got there just now is.
            while i > 0:
                i -= 1
                if (raised >> i) & 1:
                    cell_lower(g, data, cells[i])
            return False
    return True


cdef bint succinct_subtract(const Succinct* g, uint8_t* data, uint64_t h) noexcept nogil:
    """Undo one ``succinct_add``; False and no change when a count says it cannot have happened."""
    cdef uint64_t cells[SUCCINCT_MAX_HASHES]
    cdef uint32_t i, j, times
    key_cells(g, data, h, cells)
    for i in range(g.cells.n_hashes):
        if not cells_get(&g.cells, data, cells[i]):
            return False
    for i in range(g.cells.n_hashes):
        # A cell that the key uses more than once must have counted it as often.
        times = 1
        for j in range(i):
            times += cells[j] == cells[i]
        if unlikely(times > 1) and succinct_get(g, data, cells[i]) < times:
            return False
    for i in range(g.cells.n_hashes):
        # Saturated counters stay at the maximum: see cells.pxd.  Only slots count that far.
        if likely(not succinct_outgrown(load64(data + succinct_code_at(g, cells[i] // SUCCINCT_GROUP)))):
            cell_lower(g, data, cells[i])
        elif succinct_get(g, data, cells[i]) < SUCCINCT_MAX_COUNT:
            cell_lower_slowly(g, data, cells[i])
    return True


cdef uint8_t succinct_least(const Succinct* g, const uint8_t* data, uint64_t h) noexcept nogil:
    """The smallest count among the key's cells."""
    cdef uint64_t x = h
    cdef uint8_t count, least = SUCCINCT_MAX_COUNT
    cdef uint32_t _i
    for _i in range(g.cells.n_hashes):
        count = succinct_get(g, data, cells_at(&g.cells, h, x))
        if count < least:
            least = count
        x = cells_step(x)
    return least


# --- a table from outside


cdef bint succinct_is_sound(const Succinct* g, const uint8_t* data, uint8_t* seen) noexcept nogil:
    """Whether the table is one that additions and removals can lead to; ``seen`` is ``n_slots`` zero bytes."""
    cdef uint64_t group, slot, bits, code
    cdef const uint8_t* counts
    cdef uint32_t total
    cdef int i
    for group in range(g.n_groups):
        bits = load64(data + succinct_bits_at(g, group))
        code = load64(data + succinct_code_at(g, group))
        if group == g.n_groups - 1 and g.cells.n_cells % SUCCINCT_GROUP:
            if bits >> (g.cells.n_cells % SUCCINCT_GROUP):
                return False
        if succinct_outgrown(code):
            slot = succinct_slot(code)
            if slot >= g.n_slots or seen[slot]:
                return False
            seen[slot] = 1
            counts = data + succinct_slot_at(g, slot)
            total = 0
            for i in range(SUCCINCT_GROUP):
                total += counts[i]
                if (counts[i] != 0) != ((bits >> i) & 1):
                    return False
            if total <= SUCCINCT_GROUP:
                return False
        else:
            total = popcount64(bits) + popcount64(code)
            # Codes that end with a zero at bit total - 1 are as many as there are bits.
            if total > SUCCINCT_GROUP or (code if total == 0 else code >> (total - 1)) != 0:
                return False
    for slot in range(g.n_slots):
        if not seen[slot] and not slot_is_free(g, data, slot):
            return False
    return True


cdef class SuccinctCore(CellsCore):
    """Kernel of :class:`dlbf.SuccinctCountingFilter`: a query is a Bloom filter's, inherited as it is."""

    def _set_geometry(self, uint64_t n_cells, uint32_t n_hashes, uint64_t block_cells, uint64_t n_slots):
        """Fix the geometry; the caller has checked the values, and ``block_cells`` is 0."""
        succinct_set_geometry(&self.succinct, n_cells, n_hashes, n_slots)
        self.geometry = self.succinct.cells

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef bint added = succinct_add(&self.succinct, self.data, h)
        self.n_items += added
        return added

    cdef Py_ssize_t _add_chunk(
        self, const KeyChunk* chunk, const uint64_t* hashes, Py_ssize_t i, int* answer
    ) noexcept nogil:
        # Not that of plain cells: there may be no room.
        return FilterCore._add_chunk(self, chunk, hashes, i, answer)

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        if not succinct_subtract(&self.succinct, self.data, h):
            return KEY_ABSENT
        if self.n_items:
            self.n_items -= 1
        return KEY_MAYBE if succinct_contains(&self.succinct, self.data, h) else KEY_REMOVED

    cdef uint64_t _count(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return succinct_least(&self.succinct, self.data, h)

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        # Called ahead of writes only, which touch both words of every cell; batches of queries go through the sieve.
        cdef uint64_t group, x = h
        cdef uint32_t _i
        for _i in range(self.geometry.n_hashes):
            group = cells_at(&self.geometry, h, x) // SUCCINCT_GROUP
            prefetch(self.data + succinct_bits_at(&self.succinct, group))
            prefetch(self.data + succinct_code_at(&self.succinct, group))
            x = cells_step(x)

    def _count_one(self, key):
        # A mapped file is checked where a query looks; counts are elsewhere.
        self._check_all()
        return CellsCore._count_one(self, key)

    def _copied(self):
        """The contents at one moment, and the number of items."""
        gate_read(&self.gate)
        try:
            self._check_all()
            return PyBytes_FromStringAndSize(<const char*>self.data, self.n_payload_bytes), self.n_items
        finally:
            gate_read_done(&self.gate)

    def _counts(self):
        """All counters, a byte each."""
        cdef uint64_t group
        cdef bytearray out = bytearray(self.succinct.n_groups * SUCCINCT_GROUP)
        cdef uint8_t* counts = out
        cdef bytes copied = self._copied()[0]
        cdef const uint8_t* data = copied
        with nogil:
            for group in range(self.succinct.n_groups):
                group_read(&self.succinct, data, group, counts + group * SUCCINCT_GROUP)
        return out[:self.geometry.n_cells]

    def _slots_used(self):
        """Number of overflow slots in use."""
        cdef uint64_t slot, n = 0
        gate_read(&self.gate)
        try:
            self._check_all()
            with nogil:
                for slot in range(self.succinct.n_slots):
                    n += not slot_is_free(&self.succinct, self.data, slot)
        finally:
            gate_read_done(&self.gate)
        return n

    def _saturated(self):
        """Number of counters at their maximum; only slots count that far."""
        cdef uint64_t i, n = 0
        cdef const uint8_t* slots
        gate_read(&self.gate)
        try:
            self._check_all()
            slots = self.data + succinct_slot_at(&self.succinct, 0)
            with nogil:
                for i in range(self.succinct.n_slots * SUCCINCT_GROUP):
                    n += slots[i] == SUCCINCT_MAX_COUNT
        finally:
            gate_read_done(&self.gate)
        return n

    def _is_sound(self):
        """Whether the contents are a table at all; see ``succinct_is_sound``."""
        cdef bytearray seen = bytearray(self.succinct.n_slots)
        cdef uint8_t* at = seen
        cdef bint sound
        gate_read(&self.gate)
        try:
            self._check_all()
            with nogil:
                sound = succinct_is_sound(&self.succinct, self.data, at)
        finally:
            gate_read_done(&self.gate)
        return sound

    def _same_contents(self, SuccinctCore other):
        """Whether every counter is equal, in whichever slots they are, and the number of items."""
        cdef uint64_t group
        cdef uint8_t mine[SUCCINCT_GROUP]
        cdef uint8_t theirs[SUCCINCT_GROUP]
        cdef bint same = True
        # One after the other: both may be the same filter.
        my_copy, my_items = self._copied()
        their_copy, their_items = other._copied()
        cdef const uint8_t* my_data = <bytes>my_copy
        cdef const uint8_t* their_data = <bytes>their_copy
        with nogil:
            for group in range(self.succinct.n_groups):
                group_read(&self.succinct, my_data, group, mine)
                group_read(&other.succinct, their_data, group, theirs)
                if memcmp(mine, theirs, SUCCINCT_GROUP):
                    same = False
                    break
        return same and my_items == their_items

    def _merge(self, CellsCore other, bint union):
        """Counter by counter: the saturating sum, or (intersection) the smaller.

        False, and no change, if more groups would need a slot than there are.
        """
        cdef uint64_t group, n_outgrown = 0
        cdef uint8_t counts[SUCCINCT_GROUP]
        cdef bint fits = False
        copied, n_items = (<SuccinctCore?>other)._copied()
        cdef const uint8_t* theirs = <bytes>copied
        self._need_writable()
        gate_write(&self.gate)
        try:
            self._need_open()
            with nogil:
                for group in range(self.succinct.n_groups):
                    n_outgrown += group_merge(&self.succinct, self.data, theirs, group, union, counts) > SUCCINCT_GROUP
                fits = n_outgrown <= self.succinct.n_slots
                if fits:
                    for group in range(self.succinct.n_groups):
                        group_merge(&self.succinct, self.data, theirs, group, union, counts)
                        group_write(&self.succinct, self.data, group, counts)
            if fits and union:
                self.n_items += n_items
        finally:
            gate_write_done(&self.gate)
        return fits
