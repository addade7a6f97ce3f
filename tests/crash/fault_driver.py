"""Runs with the shim preloaded: records a workload, or makes its writes fail.

Called as ``python fault_driver.py record STORE LOG SEED N SYNC`` or ``python fault_driver.py fail FOLDER SEED N``;
prints one line per
case and "done" at the end.
"""

import ctypes
import errno
import logging
import os
import random
import sys
from pathlib import Path

import crash_harness as harness
import lmdb

from dlbf.errors import DlbfError
from dlbf.storage import Store

shim = ctypes.CDLL(None)


def record(path, log, seed, n_transactions, sync):
    """Log everything that a workload writes, with an acknowledgement after every commit."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    shim.shim_record(descriptor)
    store = Store(path, sync=sync)
    shim.shim_ack(ctypes.c_long(0))

    def announce(kind, number):
        if kind == harness.AFTER:
            shim.shim_ack(ctypes.c_long(number + 1))

    harness.run(store, seed, 0, n_transactions, announce)
    shim.shim_record(-1)
    os._exit(0)  # no orderly end: closing writes too


def fail(folder, seed, n_cases):
    """Make the n-th write fail, in many ways; the store must go on, or open again, with nothing lost."""
    rng = random.Random(seed)
    raised = 0
    for case in range(n_cases):
        path = Path(folder) / f"store{case}"
        error = rng.choice([errno.ENOSPC, errno.EIO, -errno.ENOSPC, -errno.EIO])
        store = Store(path, sync=rng.choice(["full", "none"]))
        model = {}
        begun = 0
        harness.run(store, case, 0, 3, lambda kind, number: None)
        for number in range(3):
            model = harness.apply_to(model, harness.changes(case, number))
        shim.shim_fail(ctypes.c_long(rng.randrange(12)), ctypes.c_long(rng.choice([1, 1, 3, 1000])), error)
        allowed = [model]
        for number in range(3, 10):
            try:
                harness.run(store, case, number, number + 1, lambda kind, number: None)
                model = harness.apply_to(model, harness.changes(case, number))
                allowed = [model]
            except (lmdb.Error, DlbfError, OSError):
                raised += 1
                # Did it happen or not?  Either is allowed, but readers must agree with the data.
                allowed = [model, harness.apply_to(model, harness.changes(case, number))]
                begun = number
                break
        try:
            found = dict(store.items())
            assert found in allowed, harness.difference(found, allowed)
            assert store.get_many(list(found)) == list(found.values())
            assert all(store.get(key) == value for key, value in found.items())
        except lmdb.Error as problem:
            print(f"case {case}: after the failure LMDB wants to be opened again: {problem}")
        shim.shim_fail(ctypes.c_long(0), ctypes.c_long(0), 0)
        try:
            # Once there is room again the same process may go on.
            store[b"after"] = b"1"
            allowed = [model | {b"after": b"1"} for model in allowed]
        except (lmdb.Error, DlbfError):
            pass
        store._close()
        harness.check(path, allowed)
        print(f"case {case}: errno {error}, stopped at {begun}, ok")
    assert raised > n_cases / 3, raised
    print("done")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    harness.make_everything_happen_often()
    if sys.argv[1] == "record":
        record(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    else:
        fail(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
