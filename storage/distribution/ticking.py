"""A thread that calls a method now and then, and does not keep its object alive."""

import logging
import random
import threading
import weakref
from collections.abc import Callable

__all__ = ["Ticking"]

log = logging.getLogger("dlbf.storage")


class Ticking:
    """Calls ``method`` every ``interval`` seconds or so, until ``close`` or until its object is gone.

    An error is logged when it is the first after a success, and so is the next success.
    """

    def __init__(self, method: Callable[[], object], interval: float, name: str) -> None:
        self._end = threading.Event()
        reference = weakref.WeakMethod(method)
        self._thread = threading.Thread(
            target=_tick, args=(reference, interval, self._end, name), name=f"dlbf-{name}", daemon=True
        )
        self._thread.start()

    def close(self, patience_seconds: float = 10.0) -> None:
        """End it, and wait for the call that is under way."""
        self._end.set()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(patience_seconds)


def _tick(
    reference: "weakref.WeakMethod[Callable[[], object]]", interval: float, end: threading.Event, name: str
) -> None:
    failing = False
    # Not all hosts at the same moment.
    while not end.wait(interval * random.uniform(0.9, 1.1)):
        method = reference()
        if method is None:
            return
        try:
            method()
        except Exception as error:
            if not failing and not end.is_set():
                log.warning("%s: %s", name, error)
            failing = True
        else:
            if failing:
                log.warning("%s: works again", name)
            failing = False
        del method
