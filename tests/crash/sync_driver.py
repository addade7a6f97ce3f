"""Runs with the shim preloaded: counts how often changes through a guard wait for the disk.

Called as ``python sync_driver.py FOLDER SYNC``; prints one line per change: its name and the number of waits.
"""

import ctypes
import sys
import threading
import time

from dlbf.storage import Guard
from dlbf.storage.engines.mapping import MappingEngine

shim = ctypes.CDLL(None)


class Local(MappingEngine):
    """An engine in memory, which counts how often it is told to wait for its deletes."""

    in_flight = False
    n_syncs = 0

    def sync(self):
        self.n_syncs += 1


def change_in_threads(guard, changes):
    """Let threads make a change each while another one is in the middle of a put."""
    engine, begun, goes_on = guard.engine, threading.Event(), threading.Event()

    def slow_put(key, value):
        begun.set()
        assert goes_on.wait(60)
        MappingEngine.put(engine, key, value)

    engine.put = slow_put
    guard._changes = None  # which has the engine's method
    first = threading.Thread(target=guard.put, args=(b"meanwhile %d" % len(engine.mapping), b"1"))
    first.start()
    assert begun.wait(60)
    threads = [threading.Thread(target=change) for change in changes]
    for thread in threads:
        thread.start()
    while len(guard._changing.waiting) < len(threads):
        time.sleep(0.001)
    goes_on.set()
    for thread in (first, *threads):
        thread.join()
    del engine.put


def count(title, act):
    """How many waits an act costs."""
    before = shim.shim_syncs()
    act()
    print(title, shim.shim_syncs() - before)


def by_threads(guard):
    """Eight threads that wait for a ninth; the engine's own waits are those for deletes."""
    engine, numbers = guard.engine, range(8)

    def run(title, change_of):
        before = engine.n_syncs
        count(title, lambda: change_in_threads(guard, [change_of(i) for i in numbers]))
        print(f"{title}-engine", engine.n_syncs - before)

    run("puts", lambda i: lambda: guard.put(b"thread %d" % i, b"1"))
    run("deletes", lambda i: lambda: guard.delete(b"thread %d" % i))
    run("batches", lambda i: lambda: guard.update([(b"thread %d %d" % (i, j), b"1") for j in range(50)]))
    run("batches-deleted", lambda i: lambda: guard.delete_many([b"thread %d %d" % (i, j) for j in range(50)]))


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
        changes, guard._changes = guard._changes, None
        count("put-slowly", lambda: guard.put(b"newer", b"1"))
        count("put-old-slowly", lambda: guard.put(b"old 2", b"1"))
        count("batch-slowly", lambda: guard.update([(b"slow %d" % i, b"1") for i in range(50)]))
        count("delete-slowly", lambda: guard.delete(b"newer"))
        if sync == "full":
            by_threads(guard)
        guard._changes = changes


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
