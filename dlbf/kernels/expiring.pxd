"""Expiring filter: cuckoo tables that take turns, so that entries leave by themselves.

Time is counted in *steps*: the time to live divided by a small number, rounded up.  Keys that are added during a step
go to a table of that step; when its last key has lived its time, the whole table is emptied.  So an entry leaves at
most one step late, and never early.  A step may need several tables; all have the same geometry and see the same hash,
so a key's place in them is computed once.

::

    offset        width   field (all little-endian)
         0            8   u64  newest step in which the filter was changed
         8            8   u64  number of the table that takes keys now
        16           48   zero
        64   16 a table   u64  step of the table, plus one; 0: nobody uses it
                          u64  its entries
    then, on a multiple of 64 bytes, the tables, each on a multiple of 64 bytes, as in ``cuckoo.pxd``

A step is a number since 1970, so files agree on it, whoever opens them.  A clock that was set back must not deny what
is stored: no time before the newest step is believed.

A removal takes the oldest entry there is.  Whichever keys share a fingerprint, the entries that are left then leave no
earlier than the keys that are left.  A table counts a fingerprint up to ``EXPIRING_COPIES`` times; then it is full for
that one, and stays so until its table is emptied, as a saturated counter does.
"""

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.cuckoo cimport Cuckoo
from dlbf.kernels.types cimport uint8_t, uint32_t, uint64_t

cdef enum:
    EXPIRING_AT_STEP = 0
    EXPIRING_AT_CURRENT = 8
    EXPIRING_AT_TABLES = 64
    EXPIRING_ENTRY_BYTES = 16
    EXPIRING_MOST_TABLES = 49       # of which a question may look at four places each (MAX_PLACES)
    EXPIRING_COPIES = 4


ctypedef struct Turns:
    uint64_t ttl_ns
    uint64_t step_ns
    uint64_t tables_at              # offset in bytes
    uint64_t table_bytes
    uint64_t table_room             # entries
    uint32_t n_tables


cdef class SystemClock:
    cdef uint64_t offset_ns         # from the steady clock to the time of day

    cdef uint64_t _now(self) noexcept nogil


cdef class ManualClock(SystemClock):
    cdef uint64_t now_ns


cdef class ExpiringCore(FilterCore):
    cdef Cuckoo geometry
    cdef object multisets           # keeps what ``geometry`` points to alive
    cdef SystemClock time_source
    cdef Turns turns

    cdef uint64_t _time(self) noexcept nogil
    cdef bint _lives(self, uint32_t number, uint64_t now) noexcept nogil
    cdef uint64_t _tidy(self) noexcept nogil
    cdef int _begin(self, uint64_t step) noexcept nogil
    cdef bint _has_room(self, uint32_t number, uint64_t step) noexcept nogil
    cdef int _table_of(self, uint64_t step) noexcept nogil
    cdef int _store(self, uint32_t number, uint64_t bucket, uint32_t v) noexcept nogil
    cdef bint _merge_table(self, const uint8_t* theirs, uint64_t step) noexcept nogil
