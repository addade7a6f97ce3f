"""The thread that gives back a writers' lock which is kept for the next change of a guard.

To take the lock and give it back costs two system calls, as much as the rest of a change.  So a process that changes
one key after another keeps it in between, for some milliseconds at most.
"""

import _thread
import threading
import time
import weakref

from dlbf.kernels.guardchanges import GuardChanges
from dlbf.storage.environment import rouse

__all__ = ["LockWatch"]

KEEP_SECONDS = 0.005


class LockWatch:
    """Looks after one guard's lock, from the first time that it is kept."""

    def __init__(self) -> None:
        # Taken: the thread sleeps.  Not an Event: an exception from a signal handler could leave one locked for ever.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._is_running = False
        self._changes: weakref.ref[GuardChanges] | None = None

    def of(self, changes: GuardChanges) -> None:
        """Whose lock it is."""
        self._changes = weakref.ref(changes)

    def begin(self) -> None:
        """The lock is being kept from now on."""
        if not self._is_running:
            assert self._changes is not None
            try:
                # One call: an exception from a signal handler in a Thread's start() leaves it half begun.
                _thread.start_new_thread(_watch, (self._changes, self._wake))
                self._is_running = True
            except RuntimeError:  # there are too many threads, or the interpreter is about to end
                changes = self._changes()
                if changes is not None:
                    changes.keep_no_more()
        rouse(self._wake)

    def end(self) -> None:
        """The guard is closed."""
        rouse(self._wake)


def _watch(reference: "weakref.ref[GuardChanges]", wake: threading.Lock) -> None:
    while True:
        wake.acquire()
        while True:
            time.sleep(KEEP_SECONDS)
            changes = reference()
            if changes is None or not changes.is_open:
                return
            if changes.let_go():
                break
            del changes
        del changes
