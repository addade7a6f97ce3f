"""Group commit: what threads change while one of them waits for the disk becomes one change, and waits once.

Only for engines whose writes never arrive late: where a group's write has failed, each thread makes its own change
again, and only who fails again is told.
"""

import contextlib
from collections.abc import Callable

from dlbf.kernels.locks import Held
from dlbf.storage.guarding import GuardedWrites

__all__ = ["Alone", "Groups"]

# Keys of a group, at most: as many as a batch has.  More are only those of one thread.
GROUP_KEYS = 8192


class Change:
    """What a thread waits to see done: values to be stored, or keys to be deleted."""

    __slots__ = ("deletes", "is_batch", "is_done", "stores", "there", "was_tried")

    def __init__(self, stores: dict[bytes, bytes], deletes: list[bytes], is_batch: bool = True) -> None:
        self.stores = stores
        self.deletes = deletes
        self.is_batch = is_batch  # not one key that is put
        self.there = set[bytes]()  # keys to be deleted that were there when the engine was told to
        self.was_tried = False  # with others: from now on alone
        self.is_done = False


class Alone:
    """Changes of which each is made by itself.

    Parameters
    ----------
    writes : GuardedWrites
    store_one, store_many : callable
        Store the value of a key, or those of many, as the writer.
    """

    def __init__(
        self,
        writes: GuardedWrites,
        store_one: Callable[[bytes, bytes], object],
        store_many: Callable[[dict[bytes, bytes]], object],
    ) -> None:
        self._writes = writes
        self._store_one = store_one
        self._store_many = store_many

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        self._writes.alone(self._store_one, key, value)

    def store(self, values: dict[bytes, bytes]) -> None:
        """Store values."""
        self._writes.alone(self._store_many, values)

    def delete(self, keys: list[bytes]) -> int:
        """Delete keys, each given once; how many were there."""
        return len(self._writes.alone(self._writes.delete, keys))


class Groups(Alone):
    """See the module."""

    def __init__(
        self,
        writes: GuardedWrites,
        store_one: Callable[[bytes, bytes], object],
        store_many: Callable[[dict[bytes, bytes]], object],
    ) -> None:
        super().__init__(writes, store_one, store_many)
        # Of threads that want to be the writer, in their order.  Appended to without a lock; only the writer, and
        # whoever waits no more, takes something out.
        self.waiting: list[Change] = []

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value, or have another thread do it."""
        self._change(Change({key: value}, [], is_batch=False))

    def store(self, values: dict[bytes, bytes]) -> None:
        """Store values, or have another thread do it."""
        self._change(Change(values, []))

    def delete(self, keys: list[bytes]) -> int:
        """Delete keys, each given once; how many were there, those not counted that another thread has deleted."""
        change = Change({}, keys)
        self._change(change)
        return len(change.there)

    def _change(self, mine: Change) -> None:
        writes = self._writes
        writes.environment.check()
        writes.refuse_within_change()
        try:
            self.waiting.append(mine)
            while not mine.is_done:
                with Held(writes.mutex):
                    if not mine.is_done:
                        writes.environment.refuse_while_closing()  # that may have begun while we waited
                        writes.as_writer(self._lead, mine)
        finally:
            # An exception has ended the waiting: nobody is to do it later.
            with contextlib.suppress(ValueError):
                self.waiting.remove(mine)

    def _lead(self, mine: Change) -> None:
        """Do what waits; or, after that has failed once, what one wants oneself."""
        group = [mine] if mine.was_tried else self._gather(mine)
        try:
            for do, part in (
                (self._store_all, [change for change in group if change.stores]),
                (self._delete_all, [change for change in group if not change.stores]),
            ):
                if part:
                    do(part)
                for change in part:
                    change.is_done = True
        except Exception:
            # What that has left is settled before the next change, in which each is alone.
            if len(group) == 1:
                raise

    def _gather(self, mine: Change) -> list[Change]:
        """Those who wait, as far as there is room, and who leads them."""
        group, n_keys = [mine], len(mine.stores) + len(mine.deletes)
        for change in list(self.waiting):
            if change is mine:
                continue
            n_keys += len(change.stores) + len(change.deletes)
            if n_keys > GROUP_KEYS:
                break
            group.append(change)
        for change in group:
            change.was_tried = True
            with contextlib.suppress(ValueError):  # its thread waits no more
                self.waiting.remove(change)
        return group

    def _store_all(self, changes: list[Change]) -> None:
        values = dict[bytes, bytes]()
        for change in changes:
            values |= change.stores
        if len(values) == 1 and not any(change.is_batch for change in changes):
            self._store_one(*values.popitem())
        else:
            self._store_many(values)

    def _delete_all(self, changes: list[Change]) -> None:
        """Delete keys; of those that several threads delete the first one is told that they were there."""
        there = self._writes.found(list(dict.fromkeys(key for change in changes for key in change.deletes)))
        left = set(there)
        for change in changes:
            change.there |= left.intersection(change.deletes)
            left -= change.there
        self._writes.delete(there, checked=True)
