"""Threads that use what another closes, and keys that share an entry of a filter."""

import threading
import time

import numpy as np

from dlbf.errors import StoreError


def start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def close_under(store, use, seconds):
    """Close a store, after some time, while two threads use it; both must be told."""
    begun = threading.Barrier(3)
    errors = []

    def run():
        begun.wait()
        try:
            while True:
                use(store)
        except BaseException as error:
            errors.append((type(error), str(error)))  # not its traceback, which would keep the store

    threads = [start(run), start(run)]
    begun.wait()
    time.sleep(seconds)
    store.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [kind for kind, _ in errors] == [StoreError] * 2, errors
    assert all("closed" in text for _, text in errors)


def twins_of(filter):
    """Two keys with one entry: whoever removes the first one twice removes the other."""
    scratch = filter.copy()
    for i in range(200):
        first = b"a%d" % i
        scratch.clear()
        scratch.add(first)
        others = [b"b%d" % j for j in range(20_000)]
        for other in np.array(others, dtype=object)[scratch.contains_many(others)]:
            scratch.clear()
            scratch.update([first, other])
            scratch.remove(first)
            if other in scratch and first in scratch:
                scratch.remove(first)
                if other not in scratch:
                    return first, other
            scratch.clear()
            scratch.add(first)
    raise AssertionError("no twins")
