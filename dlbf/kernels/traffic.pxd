"""Counters of lookups, and a sample of the absent keys among them that gives each the same chance."""

from dlbf.kernels.types cimport uint64_t, unlikely


cdef class TrafficCore:
    cdef readonly uint64_t n_lookups
    cdef readonly uint64_t n_filtered          # answered "absent" by the filter
    cdef readonly uint64_t n_false_positives   # let through by the filter, and absent
    cdef readonly uint64_t n_unfiltered        # read without asking the filter
    cdef public bint report_due    # what is known of the traffic should be written with the next commit
    cdef readonly Py_ssize_t sample_bytes    # of the keys in ``samples``
    cdef list samples              # absent keys that were drawn and not taken yet
    cdef readonly double sample_every    # one in so many absent keys is drawn; 0: none
    cdef Py_ssize_t check_at       # samples_grown() is called when there are so many samples
    cdef uint64_t sample_in        # absent keys until the next one that is drawn
    cdef uint64_t sample_state     # of the generator that draws
    cdef double gap_width          # the gap between two that are drawn is below this, over 2**53

    cdef uint64_t _random(self) noexcept
    cdef uint64_t _gap(self) noexcept
    cdef int _keep(self, object key) except -1
    cdef int _draw(self, object key) except -1


cdef inline int traffic_absent(TrafficCore traffic, object key) except -1:
    """A key was asked for and is not there."""
    traffic.sample_in -= 1
    if unlikely(traffic.sample_in == 0):
        return traffic._draw(key)
    return 0
