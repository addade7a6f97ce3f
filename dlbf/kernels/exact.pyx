"""The exact set on a flat buffer; layout and rationale are in ``exact.pxd``."""

from libc.string cimport memcmp, memcpy

from dlbf.kernels.core cimport KEY_ABSENT, KEY_REMOVED


cdef bint exact_find(
    const Exact* g, const uint8_t* data, uint64_t h, const uint8_t* key, size_t n, uint64_t* slot,
) noexcept nogil:
    """The slot of the key; else the free slot that ends its run."""
    cdef uint64_t at = exact_home(g, h)
    cdef uint64_t entry, _step
    cdef const uint8_t* stored
    for _step in range(g.n_slots):
        entry = exact_slot(data, at)
        if entry == 0:
            slot[0] = at
            return False
        stored = exact_arena(g, data) + entry - 1
        if load64(stored) == h and load32(stored + 8) == n and memcmp(stored + EXACT_ENTRY_BYTES, key, n) == 0:
            slot[0] = at
            return True
        at += 1
        if at == g.n_slots:
            at = 0
    slot[0] = g.n_slots
    return False


cdef int exact_add(const Exact* g, uint8_t* data, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
    """1: added; 2: was there; 0: no room, nothing changed."""
    cdef uint64_t slot = 0
    cdef uint64_t n_keys = load64(data)
    cdef uint64_t used = load64(data + 8)
    cdef uint64_t size = (EXACT_ENTRY_BYTES + <uint64_t>n + 3) & ~<uint64_t>3
    cdef uint8_t* stored
    if exact_find(g, data, h, key, n, &slot):
        return 2
    # One slot in four stays free, so runs stay short.
    if 4 * (n_keys + 1) > 3 * g.n_slots or used + size > g.arena_bytes or n > <uint64_t>0xFFFFFFFF:
        return 0
    stored = data + EXACT_HEAD_BYTES + 8 * g.n_slots + used
    store64(stored, h)
    stored[8] = n & 0xFF
    stored[9] = (n >> 8) & 0xFF
    stored[10] = (n >> 16) & 0xFF
    stored[11] = (n >> 24) & 0xFF
    memcpy(stored + EXACT_ENTRY_BYTES, key, n)
    store64(data + EXACT_HEAD_BYTES + 8 * slot, 1 + used)
    store64(data, n_keys + 1)
    store64(data + 8, used + size)
    return 1


cdef bint exact_remove(const Exact* g, uint8_t* data, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
    """Whether the key was there."""
    cdef uint64_t hole = 0, at, entry, home
    if not exact_find(g, data, h, key, n, &hole):
        return False
    at = hole
    while True:
        at += 1
        if at == g.n_slots:
            at = 0
        entry = exact_slot(data, at)
        if entry == 0:
            break
        home = exact_home(g, load64(exact_arena(g, data) + entry - 1))
        # The entry may move into the hole unless its home lies after the hole, on the way to it.
        if (at > hole and (home <= hole or home > at)) or (at < hole and home <= hole and home > at):
            store64(data + EXACT_HEAD_BYTES + 8 * hole, entry)
            hole = at
    store64(data + EXACT_HEAD_BYTES + 8 * hole, 0)
    store64(data, load64(data) - 1)
    return True


cdef class ExactCore(FilterCore):
    """Kernel of :class:`dlbf.ExactSet`."""

    def _set_geometry(self, uint64_t n_slots, uint64_t arena_bytes):
        """Fix the geometry; the caller has checked the values."""
        self.geometry.n_slots = n_slots
        self.geometry.arena_bytes = arena_bytes

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint64_t slot
        return exact_find(&self.geometry, self.data, h, key, n, &slot)

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef int added = exact_add(&self.geometry, self.data, h, key, n)
        self.n_items += added == 1
        return added

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        if not exact_remove(&self.geometry, self.data, h, key, n):
            return KEY_ABSENT
        self.n_items -= 1
        return KEY_REMOVED

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        prefetch(self.data + EXACT_HEAD_BYTES + 8 * exact_home(&self.geometry, h))

    def _keys(self):
        """Every key, as a list of bytes."""
        cdef uint64_t slot, entry
        cdef const uint8_t* stored
        self._check_all()
        out = []
        for slot in range(self.geometry.n_slots):
            entry = exact_slot(self.data, slot)
            if entry:
                stored = exact_arena(&self.geometry, self.data) + entry - 1
                out.append((<const char*>stored)[EXACT_ENTRY_BYTES:EXACT_ENTRY_BYTES + load32(stored + 8)])
        return out

    def _is_sound(self):
        """Whether every slot points into the arena: asked once of a table that came from outside."""
        cdef uint64_t slot, entry, end, n_keys = 0
        cdef uint64_t used = load64(self.data + 8)
        cdef const uint8_t* arena = exact_arena(&self.geometry, self.data)
        if used > self.geometry.arena_bytes:
            return False
        for slot in range(self.geometry.n_slots):
            entry = exact_slot(self.data, slot)
            if entry:
                n_keys += 1
                if entry + EXACT_ENTRY_BYTES - 1 > used:
                    return False
                end = entry - 1 + EXACT_ENTRY_BYTES + load32(arena + entry - 1 + 8)
                if end > used:
                    return False
        return n_keys == load64(self.data) == self.n_items and n_keys < self.geometry.n_slots
