"""A bounded set of keys that are known not to be there; what an entry is, is in ``absent.pxd``."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from dlbf.kernels.hashing cimport hash_key_from, siphash13
from dlbf.kernels.types cimport mulhi64

import os

cdef enum:
    BUCKETS = 8                     # of a group
    SLOTS = 8                       # of a bucket
    GROUP_SLOTS = BUCKETS * SLOTS
    GROUP_TAGS = 16
    ENTRY_WORDS = 2
    GROUP_BYTES = GROUP_SLOTS * ENTRY_WORDS * 8 + GROUP_TAGS * 2

cdef enum:
    IN_USE = 1
    ASKED = 2
    DELETED = 4
    FLAGS = 7

cdef enum:
    # Of a tag: its key was deleted.
    TAG_DELETED = 1

# For the statistics.
ORDINARY = CAUSE_ORDINARY
AFTER_DELETE = CAUSE_DELETED
REPEATED = CAUSE_REPEATED


cdef inline uint64_t bucket_of(uint64_t place, uint64_t a, uint64_t n_groups) noexcept nogil:
    """The bucket of a hash ``a`` in the group that ``place`` chooses."""
    return BUCKETS * mulhi64(place, n_groups) + (a & FLAGS)


cdef inline uint64_t second_place(uint64_t b) noexcept nogil:
    return b * <uint64_t>0x9E3779B97F4A7C15


cdef inline uint64_t* slot_of(uint64_t* entries, uint64_t bucket, int i) noexcept nogil:
    return entries + ENTRY_WORDS * (SLOTS * bucket + <uint64_t>i)


cdef uint64_t* free_slot(uint64_t* entries, uint64_t n_groups, uint64_t a, uint64_t b) noexcept nogil:
    """A slot that is not in use in one of the two buckets, NULL if there is none."""
    cdef uint64_t bucket = bucket_of(a, a, n_groups)
    cdef uint64_t* slot
    cdef int i, _side
    for _side in range(2):
        for i in range(SLOTS):
            slot = slot_of(entries, bucket, i)
            if not slot[0] & IN_USE:
                return slot
        bucket = bucket_of(second_place(b), a, n_groups)
    return NULL


cdef class AbsentSet:
    """Keys that are not there though the filter lets them pass, at most ``limit_bytes`` of them.

    Examples
    --------
    >>> absent = AbsentSet(65536)
    >>> absent.enter(b"found nothing"), b"found nothing" in absent, absent.strike(b"found nothing"), len(absent)
    (0, True, True, 0)
    """

    def __cinit__(self, Py_ssize_t limit_bytes=0):
        self.limit_bytes = limit_bytes
        self.first = hash_key_from(os.urandom(16))
        self.second = hash_key_from(os.urandom(16))

    def __dealloc__(self):
        free(self.entries)

    def set_limit(self, Py_ssize_t limit_bytes):
        """Grow to so many bytes at most; a set that has more already forgets everything."""
        self.limit_bytes = limit_bytes
        if self.nbytes > limit_bytes:
            self._forget_all()

    def carry_counts(self, AbsentSet before):
        """Go on counting where another set has ended."""
        self.n_answers += before.n_answers
        self.n_deleted += before.n_deleted
        self.n_repeated += before.n_repeated

    @property
    def nbytes(self):
        """Bytes allocated now."""
        return <Py_ssize_t>self.n_groups * GROUP_BYTES

    def __len__(self):
        return self.n_entries

    def __contains__(self, bytes key):
        return self._has(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))

    def enter(self, bytes key):
        """A key was read and is not there; why it had to be read: ``ORDINARY``, ``AFTER_DELETE`` or ``REPEATED``."""
        return self._enter(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))

    def enter_deleted(self, bytes key):
        """A key was deleted; True if there was room for it."""
        return self._enter_deleted(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))

    def strike(self, bytes key):
        """A key is there now; True if it was in the set."""
        return self._strike(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))

    def clear(self):
        """Forget every key, and give the memory back."""
        self._forget_all()

    cdef bint _has(self, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint64_t* slot
        if self.n_entries == 0:
            return False
        slot = self._find(siphash13(self.first.sip, key, n), siphash13(self.second.sip, key, n))
        if slot == NULL:
            return False
        if not slot[0] & ASKED:
            slot[0] |= ASKED  # readers beside this one set the same bit
        self.n_answers += 1
        return True

    cdef int _enter(self, const uint8_t* key, size_t n) noexcept nogil:
        cdef int cause = self._put(key, n)
        self.n_deleted += cause == CAUSE_DELETED
        self.n_repeated += cause == CAUSE_REPEATED
        return cause

    cdef int _put(self, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint64_t a = siphash13(self.first.sip, key, n)
        cdef uint64_t b = siphash13(self.second.sip, key, n)
        cdef uint64_t* slot
        cdef uint16_t* tag
        cdef int cause = CAUSE_ORDINARY
        if self._find(a, b) != NULL:
            return CAUSE_REPEATED  # two threads have read it
        if self.n_groups:
            tag = self.tags + mulhi64(b, self.n_groups * GROUP_TAGS)
            if tag[0] >> 1 == (<uint16_t>a | 0x8000) >> 1:
                cause = CAUSE_DELETED if tag[0] & TAG_DELETED else CAUSE_REPEATED
                tag[0] = 0
        slot = self._free(a, b)
        if slot == NULL:
            slot = self._free(a, b) if self._grow() else NULL
            if slot == NULL:
                slot = self._evict(a, b)
                if slot == NULL:
                    return cause  # a limit of nothing
        slot[0] = (a & ~<uint64_t>FLAGS) | IN_USE
        slot[1] = b
        self.n_entries += 1
        return cause

    cdef bint _enter_deleted(self, const uint8_t* key, size_t n) noexcept nogil:
        """Where there is room already: most keys that are deleted are never asked for again."""
        cdef uint64_t a, b
        cdef uint64_t* slot
        if self.n_groups == 0:
            return False
        a, b = siphash13(self.first.sip, key, n), siphash13(self.second.sip, key, n)
        slot = self._find(a, b)
        if slot == NULL:
            slot = self._free(a, b)
            if slot == NULL:
                self.tags[mulhi64(b, self.n_groups * GROUP_TAGS)] = (<uint16_t>a | 0x8000 | TAG_DELETED)
                return False
            self.n_entries += 1
        slot[0] = (a & ~<uint64_t>FLAGS) | IN_USE | DELETED
        slot[1] = b
        return True

    cdef bint _strike(self, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint64_t* slot
        if self.n_entries == 0:
            return False
        slot = self._find(siphash13(self.first.sip, key, n), siphash13(self.second.sip, key, n))
        if slot == NULL:
            return False
        slot[0] = slot[1] = 0
        self.n_entries -= 1
        return True

    cdef void _forget_all(self) noexcept nogil:
        free(self.entries)
        self.entries = NULL
        self.tags = NULL
        self.n_groups = 0
        self.n_entries = 0

    cdef uint64_t* _find(self, uint64_t a, uint64_t b) noexcept nogil:
        cdef uint64_t bucket
        cdef uint64_t* slot
        cdef int i, _side
        if self.n_groups == 0:
            return NULL
        bucket = bucket_of(a, a, self.n_groups)
        for _side in range(2):
            for i in range(SLOTS):
                slot = slot_of(self.entries, bucket, i)
                if slot[1] == b and slot[0] & IN_USE and (slot[0] | FLAGS) == (a | FLAGS):
                    return slot
            bucket = bucket_of(second_place(b), a, self.n_groups)
        return NULL

    cdef uint64_t* _free(self, uint64_t a, uint64_t b) noexcept nogil:
        return free_slot(self.entries, self.n_groups, a, b) if self.n_groups else NULL

    cdef uint64_t* _evict(self, uint64_t a, uint64_t b) noexcept nogil:
        """Make a slot free: the first from the hand on that was not asked for; if all were, none counts as asked."""
        cdef uint64_t buckets[2]
        cdef uint64_t* slot
        cdef uint64_t bucket
        cdef int i, _turn
        if self.n_groups == 0:
            return NULL
        buckets[0] = bucket_of(a, a, self.n_groups)
        buckets[1] = bucket_of(second_place(b), a, self.n_groups)
        for _turn in range(2 * SLOTS):
            self.hand += 1
            bucket = buckets[self.hand & 1]
            slot = slot_of(self.entries, bucket, (self.hand >> 1) % SLOTS)
            if not slot[0] & ASKED:
                break
        if slot[0] & ASKED:
            for i in range(2 * SLOTS):
                slot_of(self.entries, buckets[i & 1], i >> 1)[0] &= ~<uint64_t>ASKED
        # The low bits of the hash are those of the bucket.
        self.tags[mulhi64(slot[1], self.n_groups * GROUP_TAGS)] = (
            <uint16_t>((slot[0] & ~<uint64_t>FLAGS) | (bucket & FLAGS)) & 0xFFFE | 0x8000
            | (TAG_DELETED if slot[0] & DELETED else 0)
        )
        slot[0] = slot[1] = 0
        self.n_entries -= 1
        return slot

    cdef bint _grow(self) noexcept nogil:
        """Twice the room, within the limit; False if there is none to be had, or it would be mostly empty."""
        cdef uint64_t most = <uint64_t>max(0, self.limit_bytes) / GROUP_BYTES
        cdef uint64_t n_groups = min(most, 2 * self.n_groups if self.n_groups else 1)
        cdef uint64_t* entries
        cdef uint64_t* slot
        cdef uint64_t* target
        cdef uint64_t i, a
        if n_groups <= self.n_groups or 4 * <uint64_t>self.n_entries < self.n_groups * GROUP_SLOTS:
            return False
        entries = <uint64_t*>calloc(n_groups, GROUP_BYTES)
        if entries == NULL:
            return False
        for i in range(self.n_groups * GROUP_SLOTS):
            slot = self.entries + ENTRY_WORDS * i
            if slot[0] & IN_USE:
                a = (slot[0] & ~<uint64_t>FLAGS) | ((i / SLOTS) & FLAGS)
                target = free_slot(entries, n_groups, a, slot[1])
                if target == NULL:
                    self.n_entries -= 1
                else:
                    target[0], target[1] = slot[0], slot[1]
        free(self.entries)
        self.entries = entries
        self.tags = <uint16_t*>(entries + n_groups * GROUP_SLOTS * ENTRY_WORDS)
        self.n_groups = n_groups
        return True

    def copy(self):
        """An independent one with the same entries, which has counted nothing; without any if there is no memory."""
        cdef AbsentSet other = AbsentSet(self.limit_bytes)
        if self.n_groups:
            other.entries = <uint64_t*>calloc(self.n_groups, GROUP_BYTES)
            if other.entries != NULL:
                memcpy(other.entries, self.entries, self.n_groups * GROUP_BYTES)
                other.tags = <uint16_t*>(other.entries + self.n_groups * GROUP_SLOTS * ENTRY_WORDS)
                other.n_groups = self.n_groups
                other.n_entries = self.n_entries
                other.first, other.second = self.first, self.second
        return other
