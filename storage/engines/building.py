"""Building a filter from an engine's keys while guarded writes go on.

Every step runs while no guarded write is under way, so journal and engine agree at its beginning and its end.

An ordered engine is walked like a store: operations on keys behind the position are applied, those ahead will be met.
In an engine without order nobody knows whether a key has been passed, so keys that the journal names are set aside,
and at the end the engine is asked for each.  One that was passed before it was deleted stays in the filter: an entry
for nothing.  So at the end of the walk a filter has all keys that there are, and perhaps more, and from then on it
follows every record.

Keys whose writes may still arrive (``dlbf.storage.engines.late``) are passed over and added at the end, each once.
"""

from collections.abc import Iterator

from dlbf.filters.base import Filter
from dlbf.kernels.journal import operations
from dlbf.storage.build import Builder, LayeredBuilder
from dlbf.storage.engines.base import Adapter, keys_of
from dlbf.storage.engines.late import LateKeys
from dlbf.storage.layers import Gathering
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.log import Log, Record

__all__ = ["OrderedBuilder", "UnorderedBuilder", "builder_for"]


def builder_for(log: Log[Txn], empty: Filter | Gathering, engine: Adapter, late: LateKeys) -> Builder[Txn]:
    """The builder that suits an engine, and what is to be filled."""
    if isinstance(empty, Gathering):
        return (OrderedLayersBuilder if engine.ordered else UnorderedLayersBuilder)(log, empty, engine, late)
    return (OrderedBuilder if engine.ordered else UnorderedBuilder)(log, empty, engine, late)


class EngineBuilder(Builder[Txn]):
    """Walks through an engine; ``_ahead`` is its subclasses'.  What is filled is theirs, too: see the last ones."""

    def __init__(self, log: Log[Txn], empty: Filter | Gathering, engine: Adapter, late: LateKeys) -> None:
        super().__init__(log, empty)  # type: ignore[arg-type]
        self.engine = engine
        self.late = late
        # All that were listed at a step of the walk: it has passed over them, or met them too early.
        self._awaited: set[bytes] = set()

    def restart(self) -> None:
        """Begin again, with the same filter."""
        super().restart()
        self._awaited = set()

    def catch_up(self, txn: Txn, now: int) -> bool:
        """Apply the journal up to transaction ``now``; False if the walk had to be begun again."""
        if not self.walked and not self._awaited <= self.late.keys(txn):
            # One is listed no more: it may have arrived, or the journal may remove it, and it is not in the filter yet.
            return self._begin_again(now)
        return super().catch_up(txn, now)

    def _on_time(self, txn: Txn, keys: Iterator[bytes]) -> Iterator[bytes]:
        late = self.late.keys(txn)
        self._awaited |= late
        return (key for key in keys if key not in late) if late else keys

    def _take_rest(self, txn: Txn) -> None:
        self._take(list(self._rest(self._awaited | self.late.keys(txn))))

    def _rest(self, late: set[bytes]) -> set[bytes]:
        """What belongs into the filter and was not met, with the ``late`` keys."""
        return late


class OrderedBuilder(EngineBuilder):
    """Walks through an engine whose keys come in order."""

    def _ahead(self, txn: Txn) -> Iterator[bytes]:
        return self._on_time(txn, self._behind_position())

    def _behind_position(self) -> Iterator[bytes]:
        keys = keys_of(self.engine, self.position or b"")
        first = next(keys, None)
        if first is not None and (self.position is None or first != self.position):
            yield first
        yield from keys


class UnorderedBuilder(EngineBuilder):
    """Walks through an engine whose keys come in any order."""

    def __init__(self, log: Log[Txn], empty: Filter | Gathering, engine: Adapter, late: LateKeys) -> None:
        super().__init__(log, empty, engine, late)
        self._keys: Iterator[bytes] | None = None
        # Keys that the journal has named since the walk began; True: added last.
        self._touched: dict[bytes, bool] = {}

    def restart(self) -> None:
        """Begin again, with the same filter."""
        super().restart()
        self._keys = None
        self._touched = {}

    def _begun(self) -> bool:
        return self._keys is not None or super()._begun()

    def _meet(self, record: Record) -> None:
        """Set aside the keys that the journal names; apply it once the walk is at its end."""
        if self.walked:
            super()._meet(record)
        else:
            self._touched |= {key: not removal for removal, key in operations(record)}

    def _ahead(self, txn: Txn) -> Iterator[bytes]:
        if self._keys is None:
            self._keys = keys_of(self.engine, b"")
        return self._on_time(txn, (key for key in self._keys if key not in self._touched))

    def _rest(self, late: set[bytes]) -> set[bytes]:
        touched = [key for key in self._touched if key not in late]
        there = self.engine.has_many(touched) if touched else []
        # What was announced last may still be on its way.
        in_flight = self.engine.in_flight
        met = {k for k, yes in zip(touched, there, strict=True) if yes or (in_flight and self._touched[k])}
        return late | met


class OrderedLayersBuilder(OrderedBuilder, LayeredBuilder[Txn]):
    """The same walk; it gathers the keys of a base."""


class UnorderedLayersBuilder(UnorderedBuilder, LayeredBuilder[Txn]):
    """The same walk; it gathers the keys of a base."""
