"""The exact set on a flat buffer; layout and rationale are in ``exact.pxd``."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcmp, memcpy

from dlbf.kernels.core cimport KEY_ABSENT, KEY_REMOVED
from dlbf.kernels.types cimport gate_read, gate_read_done, gate_write, gate_write_done, memory_barrier


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

    def _lock(self):
        """Be the only one at work on the table until ``_unlock``; the owner must not ask the set anything."""
        gate_write(&self.gate)

    def _unlock(self):
        gate_write_done(&self.gate)

    def _used_bytes(self):
        """Arena bytes that the keys need, without those of removed keys; called under ``_lock``."""
        cdef uint64_t slot, entry, size, n = 0
        self._need_open()
        for slot in range(self.geometry.n_slots):
            entry = exact_slot(self.data, slot)
            if entry:
                size = load32(exact_arena(&self.geometry, self.data) + entry + 7)
                n += (EXACT_ENTRY_BYTES + size + 3) & ~<uint64_t>3
        return n

    cdef int _pour(self, const Exact* larger, Py_buffer* view) except -1:
        """Copy every key to a zeroed buffer of that geometry, which has room for them."""
        cdef uint64_t slot, entry
        cdef const uint8_t* stored
        cdef bint fits = True
        with nogil:
            for slot in range(self.geometry.n_slots):
                entry = exact_slot(self.data, slot)
                if entry and fits:
                    stored = exact_arena(&self.geometry, self.data) + entry - 1
                    fits = exact_add(
                        larger, <uint8_t*>view.buf, load64(stored), stored + EXACT_ENTRY_BYTES, load32(stored + 8)
                    ) == 1
        if not fits:
            raise AssertionError("an ExactSet moved to a buffer without room for its keys")
        return 0

    def _move_to(self, buffer, uint64_t n_slots, uint64_t arena_bytes):
        """Go on in a zeroed buffer of another geometry, which has room for every key; called under ``_lock``."""
        cdef Exact larger
        cdef Py_buffer view
        self._need_writable()
        larger.n_slots = n_slots
        larger.arena_bytes = arena_bytes
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            self._pour(&larger, &view)
        except BaseException:
            PyBuffer_Release(&view)
            raise
        PyBuffer_Release(&self.taken.view)
        self.taken.view = view
        self.owner = buffer
        self.data = <uint8_t*>view.buf
        self.n_payload_bytes = view.len
        self.geometry = larger

    def _compact(self, buffer):
        """Write the keys anew in the same place, by way of a zeroed buffer of the same size; called under ``_lock``."""
        cdef Py_buffer view
        self._need_writable()
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            self._pour(&self.geometry, &view)
            # An impossible number of keys: a file whose writer was killed half way is refused, not recovered.
            store64(self.data, <uint64_t>0xFFFFFFFFFFFFFFFF)
            memory_barrier()
            memcpy(self.data + 8, <uint8_t*>view.buf + 8, self.n_payload_bytes - 8)
            memory_barrier()
            memcpy(self.data, view.buf, 8)
        finally:
            PyBuffer_Release(&view)

    def _keys(self):
        """Every key, as a list of bytes."""
        cdef uint64_t slot, entry
        cdef const uint8_t* stored
        out = []
        gate_read(&self.gate)
        try:
            self._check_all()
            for slot in range(self.geometry.n_slots):
                entry = exact_slot(self.data, slot)
                if entry:
                    stored = exact_arena(&self.geometry, self.data) + entry - 1
                    out.append((<const char*>stored)[EXACT_ENTRY_BYTES:EXACT_ENTRY_BYTES + load32(stored + 8)])
        finally:
            gate_read_done(&self.gate)
        return out

    def _stored_items(self):
        """Number of keys the table itself says it has."""
        return load64(self.data)

    def _is_sound(self):
        """Whether every slot points into the arena: asked once of a table that came from outside."""
        cdef uint64_t slot, entry, n_keys = 0
        cdef uint64_t used = load64(self.data + 8)
        cdef const uint8_t* arena = exact_arena(&self.geometry, self.data)
        if used > self.geometry.arena_bytes:
            return False
        for slot in range(self.geometry.n_slots):
            entry = exact_slot(self.data, slot)
            if entry:
                n_keys += 1
                # Compared without sums that could wrap: entries are whatever the file says.
                if entry > used or used - (entry - 1) < EXACT_ENTRY_BYTES:
                    return False
                if used - (entry - 1) - EXACT_ENTRY_BYTES < load32(arena + entry - 1 + 8):
                    return False
        return n_keys == load64(self.data) == self.n_items and n_keys < self.geometry.n_slots
