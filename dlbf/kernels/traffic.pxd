"""Counters of lookups, and a uniform sample of the absent keys among them."""

from dlbf.kernels.types cimport uint64_t, unlikely


cdef class TrafficCore:
    cdef readonly uint64_t n_lookups
    cdef readonly uint64_t n_filtered          # answered "absent" by the filter
    cdef readonly uint64_t n_false_positives   # let through by the filter, and absent
    cdef readonly uint64_t n_unfiltered        # read without asking the filter
    cdef list samples              # absent keys that were drawn and not taken yet
    cdef Py_ssize_t max_samples
    cdef readonly double sample_every    # one in so many absent keys is drawn; 0: none
    cdef uint64_t sample_in        # absent keys until the next one that is drawn
    cdef uint64_t sample_state     # of the generator that draws
    cdef double sample_log         # 1 / log(1 - 1 / sample_every)

    cdef uint64_t _gap(self) noexcept
    cdef int _draw(self, object key) except -1


cdef inline int traffic_absent(TrafficCore traffic, object key) except -1:
    """A key was asked for and is not there."""
    traffic.sample_in -= 1
    if unlikely(traffic.sample_in == 0):
        return traffic._draw(key)
    return 0
