"""What answers: a filter, the position in the log that it is complete for, and the log's newest position."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE

from dlbf.kernels.core cimport FilterCore, filter_contains
from dlbf.kernels.forks cimport fork_count
from dlbf.kernels.hashing cimport hash_for_filter, hash_key
from dlbf.kernels.layers cimport LayeredCore, layered_remember
from dlbf.kernels.locks cimport LedgerLock
from dlbf.kernels.types cimport Export, gate_read_one_done, gate_try_read, likely, uint8_t, uint64_t, unlikely

cdef extern from *:
    """
    /* Logs write positions in native order; the memory is shared with other processes. */
    #if defined(__GNUC__) || defined(__clang__)
    #define dlbf_load_shared64(p) __atomic_load_n((const uint64_t *)(p), __ATOMIC_ACQUIRE)
    #else
    #define dlbf_load_shared64(p) (*(const volatile uint64_t *)(p))
    #endif

    /* Nanoseconds since the machine was booted, those it slept included: leases must lapse while it sleeps.  On Linux
       this is read from memory, without a system call; macOS has no such name, and its CLOCK_MONOTONIC goes on. */
    #include <time.h>
    #ifdef CLOCK_BOOTTIME
    #define DLBF_LEASE_CLOCK CLOCK_BOOTTIME
    #else
    #define DLBF_LEASE_CLOCK CLOCK_MONOTONIC
    #endif
    static inline uint64_t dlbf_boottime_ns(void) {
        struct timespec now;
        if (clock_gettime(DLBF_LEASE_CLOCK, &now))
            return UINT64_MAX;  /* no clock: every lease is over */
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }
    """
    uint64_t load_shared64 "dlbf_load_shared64"(const uint8_t* p) noexcept nogil
    uint64_t boottime_now "dlbf_boottime_ns"() noexcept nogil

cdef enum:
    ANSWER_ABSENT = 0
    ANSWER_MAYBE = 1
    ANSWER_UNKNOWN = 2


cdef class Word:
    cdef Export taken
    cdef readonly bint attached
    cdef const uint8_t* first
    cdef const uint8_t* second
    cdef const uint8_t* note             # not 0: a writer has announced what it has not done yet
    cdef public uint64_t until_ns        # nothing is answered from this ``boottime_ns`` on; 0: no such time


cdef class LedgerCore:
    # Guarded by ``lock``, except that the GIL alone guards what one compiled call reads or changes.
    cdef readonly LedgerLock lock
    cdef public FilterCore filter        # what the log says up to ``applied``; None: there is none that can be used
    cdef public FilterCore full          # the one that had no room, until there is another: its model goes on
    cdef readonly Word word              # the log's newest position
    cdef uint64_t current                # the position that ``filter`` answers for; NEVER: it does not
    cdef public uint64_t applied         # the position that ``filter`` is complete for
    cdef public uint64_t removed         # newest position that took a key out of it
    cdef public uint64_t generation
    cdef public Py_ssize_t log_bytes     # of records since the checkpoint
    cdef public Py_ssize_t log_limit     # more of them make a checkpoint due
    cdef public uint64_t added           # keys added since the last rebuild,
    cdef public uint64_t deleted         # and removed
    cdef public Py_ssize_t n_operations  # followed since this process has the filter
    cdef readonly uint64_t epoch         # raised whenever what answers changes
    cdef uint64_t own_forks

    cdef void _offer(self) noexcept
    cdef void _withdraw(self) noexcept
    cdef void _drop(self) noexcept
    cpdef bint follow(self, uint64_t position, record, Py_ssize_t n_operations) except -1
    cdef bint _follow(
        self, uint64_t position, const uint8_t* record, Py_ssize_t size, Py_ssize_t n_operations,
        const uint64_t* hashes=*
    ) except -1
    cdef int follow_own(
        self, uint64_t position, const uint8_t* record, Py_ssize_t size, Py_ssize_t n_operations,
        FilterCore hashed_for=*, const uint64_t* hashes=*
    ) except -1


cdef inline uint64_t word_newest(Word word) noexcept nogil:
    cdef uint64_t a = load_shared64(word.first)
    cdef uint64_t b = load_shared64(word.second)
    return a if a > b else b


cdef inline bint ledger_usable(LedgerCore ledger) noexcept nogil:
    # One that does not answer has current == NEVER, which no position ever is.
    # Where the word comes over a network it is believed for as long as a lease lasts: the clock is asked only there.
    return (
        word_newest(ledger.word) == ledger.current and fork_count == ledger.own_forks
        and (likely(ledger.word.until_ns == 0) or boottime_now() < ledger.word.until_ns)
    )


cdef inline int ledger_probe(LedgerCore ledger, object key) noexcept:
    """What the filter says about a key (bytes), whichever position it is of."""
    cdef FilterCore filter = ledger.filter
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(key)
    cdef size_t n = PyBytes_GET_SIZE(key)
    cdef uint64_t h
    cdef bint maybe
    if unlikely(not gate_try_read(&filter.gate)):
        return ANSWER_UNKNOWN
    h = hash_for_filter(hash_key(&filter.hash_key, data, n), filter.filter_id)
    maybe = filter_contains(filter, h, data, n)
    gate_read_one_done(&filter.gate)
    return ANSWER_MAYBE if maybe else ANSWER_ABSENT


cdef inline uint64_t ledger_moment(LedgerCore ledger) noexcept:
    """What :func:`ledger_remember` needs to know of the moment before a read: the epoch, or 0, in which nothing may be
    remembered.

    A guard's writer announces keys in the log, and then stores them in the engine; until the word shows them, and the
    note that it has set before is cleared, they may not be there yet.  The note is looked at after the epoch: one that
    is set later belongs to a position that the filter does not have yet.
    """
    cdef uint64_t epoch = ledger.epoch
    return epoch if likely(load_shared64(ledger.word.note) == 0) else 0


cdef inline void ledger_remember(LedgerCore ledger, object key, uint64_t moment) noexcept:
    """A key that passed was read and is not there; ``moment`` was noted before it was read.

    It is entered only if the data were those of the position that the filter answers for.  Then nothing was announced
    and not done at that moment, no change has been begun since (each raises the epoch), and the word is still what it
    was: so what was read is neither older nor newer.  Newer data would deny a key to a snapshot that has it.  The GIL
    is held from here to the end.
    """
    cdef const uint8_t* data
    if moment and ledger.epoch == moment and ledger_usable(ledger) and isinstance(ledger.filter, LayeredCore):
        data = <const uint8_t*>PyBytes_AS_STRING(key)
        layered_remember(ledger.filter, data, PyBytes_GET_SIZE(key))


cdef inline int ledger_ask(LedgerCore ledger, object key) noexcept:
    """What the filter says about a key, if it may be asked right now: position first, then the filter, then the probe.

    The GIL is held from the check to the probe, and whoever changes the filter withdraws it in the same compiled call:
    a reader never meets half of a change.
    """
    if likely(PyBytes_Check(key) and ledger_usable(ledger)):
        return ledger_probe(ledger, key)
    return ANSWER_UNKNOWN
