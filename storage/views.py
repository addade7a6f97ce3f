"""What ``keys()``, ``items()`` and ``values()`` of a store give: views like those of a dict, of all keys or a range."""

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Protocol

from dlbf.storage.keys import Key, as_key
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.longkeys import prefix_end
from dlbf.storage.source import Source

__all__ = ["ItemsRange", "KeysRange", "Range", "ValuesRange", "bounds"]


class Looked(Protocol):
    """A store or a guard, as far as a view asks it."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value of a key, or None."""

    def __contains__(self, key: object, /) -> bool: ...
    def __len__(self) -> int: ...


class Range:
    """Which keys a view is of.

    Notes
    -----
    A view reads nothing and keeps nothing open.  Each iterator of it is of the moment it was begun, and keeps old pages
    of LMDB until it is exhausted or closed.
    """

    def __init__(self, store: Looked, source: Source[Txn], start: bytes, stop: bytes | None, reverse: bool) -> None:
        self._store = store
        self._source = source
        self._start = start
        self._stop = stop
        self._reverse = reverse

    def _may_have(self, key: bytes) -> bool:
        return key >= self._start and (self._stop is None or key < self._stop)

    def __len__(self) -> int:
        if not self._start and self._stop is None:
            return len(self._store)
        return self._source.count_range(self._start, self._stop)  # also before list() of it

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._store!r}>"


class KeysRange(Range, KeysView[bytes]):
    """Keys in order."""

    def __iter__(self) -> Iterator[bytes]:
        return self._source.keys(self._start, self._stop, self._reverse)

    def __reversed__(self) -> Iterator[bytes]:
        return self._source.keys(self._start, self._stop, not self._reverse)

    def __contains__(self, key: object) -> bool:
        wanted = as_key(key)
        return self._may_have(wanted) and wanted in self._store


class ItemsRange(Range, ItemsView[bytes, bytes]):
    """Keys and values in key order."""

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._source.items(self._start, self._stop, self._reverse)

    def __reversed__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._source.items(self._start, self._stop, not self._reverse)

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        wanted = as_key(item[0])
        return bool(self._may_have(wanted) and self._store.get(wanted) == item[1])


class ValuesRange(Range, ValuesView[bytes]):
    """Values in the order of their keys."""

    def __iter__(self) -> Iterator[bytes]:
        return (value for _, value in self._source.items(self._start, self._stop, self._reverse))

    def __reversed__(self) -> Iterator[bytes]:
        return (value for _, value in self._source.items(self._start, self._stop, not self._reverse))

    def __contains__(self, value: object) -> bool:
        return any(found == value for found in self)


def bounds(prefix: Key, start: Key | None, stop: Key | None) -> tuple[bytes, bytes | None]:
    """From which key on, and before which one."""
    begin = as_key(prefix)
    low = begin if start is None else max(begin, as_key(start))
    ends = [prefix_end(begin) if begin else None, None if stop is None else as_key(stop)]
    return low, min((end for end in ends if end is not None), default=None)
