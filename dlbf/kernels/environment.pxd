"""An open LMDB environment: its read transactions, its one write transaction, and the map under both."""

from dlbf.kernels.filelock cimport FileLock
from dlbf.kernels.forks cimport fork_count
from dlbf.kernels.ledger cimport Word
from dlbf.kernels.lookup cimport SourceCore
from dlbf.kernels.types cimport uint64_t


cdef class KeptRead:
    cdef object txn                # kept for the next read; None: none, or in use
    cdef uint64_t number           # the transaction that it sees
    cdef bint used                 # whether it was used since somebody last looked
    cdef bint allowed              # whether one may be kept at all
    cdef bint watched              # whether somebody sees to it that it is not kept for long


cdef class EnvironmentCore:
    cdef public object handle      # LMDB's environment; None: closed
    cdef public object leaving     # the same while it is being closed
    cdef object begin              # its method, bound
    cdef object begin_errors       # LMDB's "somebody made the map larger" and "no slot for a reader"
    cdef readonly Word word        # the newest transaction, seen through a map of the meta pages
    cdef KeptRead kept
    cdef readonly Py_ssize_t n_reading   # read transactions open in this process
    cdef bint held                 # no new ones: the map is about to move
    cdef uint64_t holder           # thread that has told them so; 0: none, or only to end its transaction
    cdef dict reading_threads      # how many of them each thread has begun that has any, but for those of ``fetch``
    cdef public uint64_t closing   # thread that is closing the environment, or has; 0: none
    cdef uint64_t own_forks

    cpdef drop_kept(self)
    cdef int end_txn(self, object txn) except -1
    cdef int blame_closing(self, object error) except -1


cdef class WritesCore:
    # The lock of all writers of this process guards the rest.
    cdef object acquire_lock
    cdef object release_lock
    cdef readonly EnvironmentCore environment
    cdef public FileLock turns           # of the one process that writes; None: LMDB's own has to do
    cdef readonly uint64_t writer        # thread that has the lock; 0: none
    cdef uint64_t n_taken                # how often it was taken, but for changes of single keys
    cdef bint abandoned                  # who has it was collected in another thread, which cannot end it
    cdef object txn                      # the open write transaction, or None
    cdef tuple begin_arguments           # of ``begin``, for a write transaction

    cdef bint take(self, bint blocking, double timeout=*) except -1
    cdef bint try_take(self) except -1
    cpdef give_turn(self)
    cdef int give(self) except -1
    cdef int give_up(self) except -1
    cdef object begin_raw(self)
    cpdef abort(self, txn)
    cdef int end_unchanged(self) except -1


cdef class WriteLock:
    cdef WritesCore writes
    cdef bint blocking
    cdef double timeout          # below 0: none
    cdef uint64_t owner          # thread that has taken it; 0: none has
    cdef uint64_t number         # which taking of the lock it was

    cdef int has_begun(self) except -1
    cdef bint is_of(self, uint64_t thread) noexcept
    cpdef end(self)


cdef class Writing(WriteLock):
    cpdef begin(self)
