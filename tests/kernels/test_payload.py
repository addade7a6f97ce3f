"""The buffer that a filter works on is let go of in order, whoever frees the filter."""

import gc

from dlbf import CuckooFilter
from dlbf.filters.base import open_over


def test_the_collector_releases_a_buffer_before_its_owner(monkeypatch):
    """A filter, a view of bytes that it works on, and a cycle through both: they are freed without an error."""
    made = CuckooFilter(1000)
    made.update(b"%d" % i for i in range(500))
    contents = bytearray(made._payload())
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", lambda fault: unraisable.append(fault.exc_value))
    gc.collect()
    for _ in range(10):
        filter = open_over(CuckooFilter, made._params, memoryview(contents), len(made), None)
        assert b"7" in filter
        filter.itself = filter
        del filter
    gc.collect()
    assert unraisable == []
    contents.append(0)  # BufferError if anybody still uses it
