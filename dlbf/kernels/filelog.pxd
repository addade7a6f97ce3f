"""One file of a guard's log: a mapped header with the newest position, and frames of records behind it."""

from dlbf.kernels.environment cimport WritesCore
from dlbf.kernels.log cimport LogCore
from dlbf.kernels.types cimport Export, uint8_t, uint32_t, uint64_t

cdef enum:
    # What a writer is about to do, in the header's note.
    NOTE_NOTHING = 0
    NOTE_ADDING = 1          # the keys of the newest record are being stored
    NOTE_REMOVING = 2        # the keys of the staged record, the next one, are being deleted
    NOTE_LATE = 3            # the keys of the staged record are being stored, and may arrive later


cdef class LogHead:
    cdef object map
    cdef Export taken
    cdef uint8_t* at               # NULL: nothing is mapped

    cdef uint64_t word(self) noexcept
    cdef bint ends_at(self, uint64_t end) noexcept
    cdef void show(self, uint64_t position, uint64_t end) noexcept
    cdef void set_note(self, uint64_t intent, uint64_t position) noexcept
    cdef bint is_idle(self, bytes boot) noexcept


cdef class LogFile:
    cdef readonly object path
    cdef object file               # keeps the descriptor open
    cdef int descriptor
    cdef readonly bint writable
    cdef readonly LogHead head
    cdef object body_map
    cdef Export body_taken
    cdef uint8_t* body
    cdef Py_ssize_t n_mapped       # bytes of ``body``
    cdef readonly uint64_t base          # position before the first record
    cdef readonly Py_ssize_t start       # where the frames begin
    cdef readonly uint64_t position      # as far as this process has walked,
    cdef readonly Py_ssize_t end         # and where the frame of it ends
    cdef list marks                # (position, where its frame begins) of some frames, in order

    cdef uint64_t _sum(self, uint64_t n_snapshot) noexcept
    cdef int _map_body(self) except -1
    cdef int _walked(self, Py_ssize_t end) except -1
    cdef Py_ssize_t _frame(self, Py_ssize_t at, uint64_t position, uint32_t kind) except -1
    cdef bint has_room(self, Py_ssize_t n_bytes) noexcept
    cdef uint8_t* space(self) noexcept
    cdef void place_record(self, Py_ssize_t size) noexcept
    cdef void stage_in_place(self, Py_ssize_t size) noexcept
    cdef int show(self, uint64_t position) except -1
    cpdef write(self, uint64_t position, bytes record, bytes changes)
    cpdef publish(self, uint64_t position)
    cpdef sync(self)


cdef class FileLogCore(LogCore):
    cdef public LogFile file       # the newest; None: closed
    cdef public bint waits         # whether a record is on disk before its commit returns
