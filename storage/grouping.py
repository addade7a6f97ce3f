"""Group commit: what threads store while one of them waits for the disk becomes one record, and waits once.

Only for engines whose writes never arrive late: where a group's write has failed, each thread stores its own key again,
and only who fails again is told.
"""

import contextlib
from collections.abc import Callable

from dlbf.kernels.locks import Held
from dlbf.storage.guarding import GuardedWrites

__all__ = ["Groups"]


class Put:
    """A key that a thread waits to see stored."""

    __slots__ = ("is_done", "key", "value", "was_tried")

    def __init__(self, key: bytes, value: bytes) -> None:
        self.key = key
        self.value = value
        self.was_tried = False  # with others: from now on alone
        self.is_done = False


class Groups:
    """See the module.

    Parameters
    ----------
    writes : GuardedWrites
    """

    def __init__(self, writes: GuardedWrites) -> None:
        self._writes = writes
        # Of threads that want to be the writer, in their order.  Appended to without a lock; only the writer, and
        # whoever waits no more, takes something out.
        self.waiting: list[Put] = []

    def put(
        self,
        key: bytes,
        value: bytes,
        store: Callable[[bytes, bytes], object],
        store_many: Callable[[dict[bytes, bytes]], object],
    ) -> None:
        """Store a value, by ``store`` or with those of other threads by ``store_many``, as the writer."""
        writes = self._writes
        writes.environment.check()
        writes.refuse_within_change()
        mine = Put(key, value)
        try:
            self.waiting.append(mine)
            while not mine.is_done:
                with Held(writes.mutex):
                    if not mine.is_done:
                        writes.environment.refuse_while_closing()  # that may have begun while we waited
                        writes.as_writer(self._lead, mine, store, store_many)
        finally:
            # An exception has ended the waiting: nobody is to store it later.
            with contextlib.suppress(ValueError):
                self.waiting.remove(mine)

    def _lead(
        self,
        mine: Put,
        store: Callable[[bytes, bytes], object],
        store_many: Callable[[dict[bytes, bytes]], object],
    ) -> None:
        """Store what waits; or, after that has failed once, one's own key."""
        group = [mine] if mine.was_tried else self._gather(mine)
        if len(group) == 1:
            store(mine.key, mine.value)
        else:
            try:
                store_many({put.key: put.value for put in group})
            except Exception:
                return  # what that has left is settled before the next change, in which each is alone
        for put in group:
            put.is_done = True

    def _gather(self, mine: Put) -> list[Put]:
        group = list(self.waiting)
        for put in group:
            put.was_tried = True
        del self.waiting[: len(group)]
        return group if mine in group else [*group, mine]
