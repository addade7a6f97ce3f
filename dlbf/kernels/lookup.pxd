"""get, in, []: ask the ledger, then the source."""

from dlbf.kernels.ledger cimport LedgerCore
from dlbf.kernels.traffic cimport TrafficCore


cdef class SourceCore:
    cdef public object direct      # gets a value without ``fetch`` around it; None: there is no such

    cdef object _fetch(self, object key)


cdef class LookupCore:
    cdef readonly LedgerCore ledger
    cdef readonly TrafficCore traffic
    cdef readonly SourceCore source

    cdef object _look_up(self, object key, object default)
