"""A change of one key, or a batch of new ones, through a guard, without Python around it but for the engine."""

from dlbf.kernels.core cimport FilterCore
from dlbf.kernels.environment cimport EnvironmentCore
from dlbf.kernels.filelock cimport FileLock
from dlbf.kernels.filelog cimport FileLogCore, LogFile
from dlbf.kernels.keychunks cimport KeyChunk
from dlbf.kernels.ledger cimport LedgerCore
from dlbf.kernels.locks cimport OwnLock
from dlbf.kernels.lookup cimport LookupCore
from dlbf.kernels.traffic cimport TrafficCore
from dlbf.kernels.types cimport uint8_t, uint16_t, uint64_t


cdef class PairBatch:
    cdef list pairs
    cdef FilterCore filter         # that the hashes are for
    cdef Py_ssize_t n
    cdef bytearray room            # for what follows
    cdef const uint8_t** data      # of each key
    cdef size_t* lengths
    cdef uint64_t* hashes
    cdef uint16_t* places          # a table to find keys that are there twice
    cdef uint64_t place_mask
    cdef uint8_t* answers          # 1: the key has an entry, or may have

    cdef bint read(self) except -1
    cdef KeyChunk chunk(self, Py_ssize_t first) noexcept nogil
    cdef bint is_repeated(self) noexcept nogil
    cdef bint probe(self) except -1
    cdef list doubtful(self)
    cdef int settle(self, list there, Py_ssize_t n_asked) except -1
    cdef Py_ssize_t keep_new(self, Py_ssize_t* n_bytes) noexcept
    cdef Py_ssize_t write(self, uint8_t* out) except -1


cdef class GuardChanges:
    cdef object __weakref__
    cdef EnvironmentCore environment
    cdef FileLogCore log
    cdef LedgerCore ledger
    cdef TrafficCore traffic
    cdef OwnLock mutex
    cdef FileLock writer
    cdef object put                # methods of the engine's adapter
    cdef object put_many
    cdef object has
    cdef object has_many
    cdef object delete
    cdef object sync               # None: nothing waits for the disk
    cdef object failed             # called with the exception that a write has ended with
    cdef object watch              # called when the writers' lock is kept for the next change; None: it never is
    cdef object grow               # called when the filter has no room
    cdef bint is_wanted            # the lock has been kept long enough
    cdef set known                 # keys that the filter has entries for, at ``known_at``; see ``_is_known``
    cdef uint64_t known_at         # position in the log
    cdef bytes boot                # that must be marked in the log; None: records are synced
    cdef Py_ssize_t n_last         # operations followed when somebody must look whether a larger filter is due
    cdef uint64_t generation       # of the filter that was said for

    cdef bint _may_be_quick(self) noexcept
    cdef bint _may_log(self, LogFile file, Py_ssize_t n_keys, Py_ssize_t n_bytes) noexcept
    cdef LogFile _begin(self)
    cdef int _end(self, bint keep) except -1
    cdef uint8_t* _record(self, LogFile file, bytes key, int removal, Py_ssize_t* size) noexcept
    cdef int _show(
        self, LogFile file, uint8_t* record, Py_ssize_t size, Py_ssize_t n_keys, PairBatch batch=*
    ) except -1
    cdef bint _is_there(self, bytes key) except -1
    cdef bint _is_known(self, bytes key) except -1
    cdef int _know(self, LogFile file, bytes key) except -1
    cdef int store(self, bytes key, bytes value, bint new) except -2
    cdef int remove(self, bytes key) except -2


cdef class GuardCore(LookupCore):
    cdef public GuardChanges _changes
