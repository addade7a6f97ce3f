"""What processes of a run on a real cluster know of each other: which keys are stored, since when, and what to do.

A file in shared memory.  Writer ``w`` puts its key ``i`` once, with ``i`` rising; ``state`` says how that went.
"""

import mmap
import time
from pathlib import Path

import numpy as np

MOST_KEYS = 200_000  # of each writer
STORED, GONE, UNSURE = 1, 2, 3  # put has returned; a delete began; put has failed, or its process died
# What hosts should do: put and get; end; odd orders above: get well and say so; even ones: look at every stored key.
RUN, END = 0, -1


def now():
    """Seconds of the clock that leases are counted on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Board:
    """See the module."""

    def __init__(self, path, n_writers):
        header = 8 * (2 + n_writers)
        size = header + n_writers * MOST_KEYS * 9
        path = Path(path)
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        words = np.frombuffer(self._map, dtype=np.int64, count=2 + n_writers)
        self.order = words[:1]
        self.alarm = words[1:2]  # raised by who has seen a stored key denied: everybody writes down what it did lately
        self.next = words[2:]
        times = np.frombuffer(self._map, dtype=np.float64, offset=header, count=n_writers * MOST_KEYS)
        self.times = times.reshape(n_writers, MOST_KEYS)
        state = np.frombuffer(self._map, dtype=np.uint8, offset=header + n_writers * MOST_KEYS * 8)
        self.state = state.reshape(n_writers, MOST_KEYS)

    def stored(self, writer, number):
        """``put`` has returned."""
        self.times[writer, number] = now()
        self.state[writer, number] = STORED

    def numbers(self, writer):
        """The keys of a writer that are stored, and were never deleted."""
        return np.nonzero(self.state[writer, : int(self.next[writer])] == STORED)[0].tolist()


def key_of(writer, number):
    return b"w%d-%d" % (writer, number)
