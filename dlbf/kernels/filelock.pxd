cdef class FileLock:
    cdef readonly object where         # what the lock is of, for messages
    cdef readonly bint taken
    cdef object file                   # keeps the descriptor open, unless it is a number
    cdef int descriptor
    cdef long long place               # byte of the one who has it; those who wait stand in line at the byte before it
    cdef double timeout                # most seconds to wait; below 0: no limit
    cdef bint advisory                 # where files cannot be locked it counts as taken
    cdef double lined_up               # when this process last stood in line

    cdef bint _try(self, long long place, bint shared) except -1
    cdef bint _line_up(self, bint wait, bint shared) except -1
    cpdef bint acquire(self, bint wait=*, bint shared=*) except -1
    cpdef release(self)
