"""Runs with the shim preloaded: counts how often changes through a guard wait for the disk.

Called as ``python sync_driver.py FOLDER SYNC``; prints one line per change: its name and the number of waits.
"""

import ctypes
import sys

from dlbf.storage import Guard
from dlbf.storage.engines.mapping import MappingEngine

shim = ctypes.CDLL(None)


class Local(MappingEngine):
    """An engine in memory whose own waits are not counted."""

    in_flight = False


def count(title, act):
    """How many waits an act costs."""
    before = shim.shim_syncs()
    act()
    print(title, shim.shim_syncs() - before)


def main(folder, sync):
    """Each change in the common case, and once where Python does it."""
    with Guard(Local({b"old %d" % i: b"1" for i in range(100)}), folder, sync=sync) as guard:
        guard.put(b"first", b"1")  # not the common case: it looks whether a larger filter is due
        guard.update([(b"first %d" % i, b"1") for i in range(10)])
        count("put", lambda: guard.put(b"new", b"1"))
        count("put-known", lambda: guard.put(b"new", b"2"))
        count("put-old", lambda: guard.put(b"old 1", b"2"))
        count("batch", lambda: guard.update([(b"batch %d" % i, b"1") for i in range(50)]))
        count("batch-old", lambda: guard.update([(b"batch %d" % i, b"2") for i in range(50)]))
        count("get", lambda: guard.get(b"absent"))
        count("delete", lambda: guard.delete(b"new"))
        guard._changes = None
        count("put-slowly", lambda: guard.put(b"newer", b"1"))
        count("put-old-slowly", lambda: guard.put(b"old 2", b"1"))
        count("batch-slowly", lambda: guard.update([(b"slow %d" % i, b"1") for i in range(50)]))
        count("delete-slowly", lambda: guard.delete(b"newer"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
