"""What every log has for those who commit."""

from dlbf.kernels.environment cimport WritesCore
from dlbf.kernels.types cimport uint64_t


cdef class LogCore:
    cpdef commit(self, WritesCore writes, txn, uint64_t position, bytes record, str written=*, str done=*)
