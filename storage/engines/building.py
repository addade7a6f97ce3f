"""Building a filter from an engine's keys while guarded writes go on.

Every step runs while no guarded write is under way, so journal and engine agree at its beginning and its end.

An ordered engine is walked like a store: operations on keys behind the position are applied, those ahead will be met.
In an engine without order nobody knows whether a key has been passed, so keys that the journal names are set aside,
and at the end the engine is asked for each.  One that was passed before it was deleted stays in the filter: an entry
for nothing.
"""

from collections.abc import Iterator
from typing import Any

from dlbf.kernels.journal import operations
from dlbf.storage.build import Builder
from dlbf.storage.engines.base import Adapter
from dlbf.storage.longkeys import Databases

__all__ = ["OrderedBuilder", "UnorderedBuilder", "builder_for"]


def builder_for(dbs: Databases, filter: Any, engine: Adapter) -> Builder:
    """The builder that suits an engine."""
    return (OrderedBuilder if engine.ordered else UnorderedBuilder)(dbs, filter, engine)


class OrderedBuilder(Builder):
    """Walks through an engine whose keys come in order."""

    def __init__(self, dbs: Databases, filter: Any, engine: Adapter) -> None:
        super().__init__(dbs, filter)
        self.engine = engine

    def _ahead(self, txn: Any) -> Iterator[bytes]:
        keys = self.engine.scan(self.position or b"")
        first = next(keys, None)
        if first is not None and (self.position is None or first != self.position):
            yield first
        yield from keys


class UnorderedBuilder(Builder):
    """Walks through an engine whose keys come in any order."""

    def __init__(self, dbs: Databases, filter: Any, engine: Adapter) -> None:
        super().__init__(dbs, filter)
        self.engine = engine
        self._keys: Iterator[bytes] | None = None
        # Keys that the journal has named since the walk began; True: added last.
        self._touched: dict[bytes, bool] = {}

    def restart(self) -> None:
        """Begin again, with the same filter."""
        super().restart()
        self._keys = None
        self._touched = {}

    def _begun(self) -> bool:
        return self._keys is not None or self.done

    def _meet(self, record: Any) -> None:
        """Set aside the keys that the journal names; apply it once the walk is at its end."""
        if self.done:
            super()._meet(record)
        else:
            self._touched |= {key: not removal for removal, key in operations(record)}

    def _ahead(self, txn: Any) -> Iterator[bytes]:
        if self._keys is None:
            self._keys = self.engine.scan(b"")
        return (key for key in self._keys if key not in self._touched)

    def _walk(self, txn: Any, n_keys: int) -> int:
        was_done = self.done
        passed = super()._walk(txn, n_keys)
        if self.done and not was_done:
            touched = list(self._touched)
            there = self.engine.has_many(touched) if touched else []
            # What was announced last may still be on its way.
            late = self.engine.in_flight
            self.filter.update([k for k, yes in zip(touched, there, strict=True) if yes or (late and self._touched[k])])
        return passed
