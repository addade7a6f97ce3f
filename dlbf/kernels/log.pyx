"""What every log has for those who commit."""


cdef class LogCore:
    """Base of the logs; see :class:`dlbf.storage.log.Log`."""

    cpdef commit(
        self, WritesCore writes, txn, uint64_t position, bytes record, str written="journal-written",
        str done="commit-done"
    ):
        """Append the record, commit and let another process write; ``written`` and ``done`` name the two steps."""
        raise NotImplementedError
