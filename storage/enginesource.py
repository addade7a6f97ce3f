"""Data in any engine, behind an adapter; the guard's environment only lists keys whose writes may still arrive."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from dlbf.filters.base import Filter
from dlbf.kernels.hashing import checksum64
from dlbf.kernels.journal import OperationLog
from dlbf.kernels.journal import operations as operations_of
from dlbf.kernels.lookup import SourceCore
from dlbf.storage.engines import Adapter
from dlbf.storage.engines.base import keys_of
from dlbf.storage.engines.late import LateKeys
from dlbf.storage.environment import Environment
from dlbf.storage.lmdbtypes import Txn

__all__ = ["EngineSource"]

ITEMS_PER_READ = 256


class EngineSource(SourceCore):
    """See ``dlbf.storage.source.Source``."""

    def __init__(self, engine: Adapter, environment: Environment) -> None:
        self.engine = engine
        self.environment = environment
        self.direct = engine.get
        self.late = LateKeys(environment.dbs)

    def fetch(self, key: bytes) -> bytes | None:
        """The value of a key, None if it is not there."""
        return self.engine.get(key)

    def fetch_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of many keys."""
        return self.engine.get_many(keys)

    def fetch_places(
        self, keys: list[bytes], places: Sequence[int], position: int
    ) -> tuple[Sequence[int], list[bytes | None]]:
        """Values of the keys in those places."""
        return places, self.engine.get_many([keys[i] for i in places])

    def has_places(self, keys: list[bytes], places: Sequence[int], position: int) -> tuple[Sequence[int], list[bool]]:
        """Whether the keys in those places are there."""
        return places, self.engine.has_many([keys[i] for i in places])

    def count(self, txn: Txn) -> int:
        """Number of keys in the engine."""
        n_keys = self.engine.count()
        return sum(1 for _ in self._engine_keys()) if n_keys is None else n_keys

    def count_cheaply(self, txn: Txn, filter: Filter | None) -> int:
        """The same, or what the filter says where the engine would have to read for it."""
        n_keys = self.engine.count()
        return n_keys if n_keys is not None else len(filter) if filter is not None else 0

    def count_after(self, txn: Txn, operations: OperationLog, filter: Filter | None) -> int:
        """Number of keys, or more, when ``operations`` are done."""
        if filter is not None:
            return operations.n_added + len(filter)
        return operations.n_added + self.count(txn) + len(self.late.keys(txn))

    def scan(self, txn: Txn) -> Iterator[bytes]:
        """The keys that the filter should know, each once."""
        return self._with_late(txn, self._engine_keys())

    def scan_after(self, txn: Txn, operations: OperationLog) -> Iterator[bytes]:
        """The same with those that ``operations`` add: new keys are logged before the engine has them."""
        added = [key for removal, key in operations_of(operations.record(0, 0, 0)) if not removal]
        return self._with_late(txn, chain(keys_of(self.engine, b""), added))

    def _with_late(self, txn: Txn, keys: Iterator[bytes]) -> Iterator[bytes]:
        late = self.late.keys(txn)
        return chain((key for key in keys if key not in late), late) if late else keys

    def _engine_keys(self) -> Iterator[bytes]:
        keys = keys_of(self.engine, b"")
        return first_times(keys) if self.engine.repeats else keys

    def batches(self, n_keys: int) -> Iterator[list[bytes]]:
        """All keys in lists of up to ``n_keys``."""
        keys = keys_of(self.engine, b"")
        while part := list(islice(keys, n_keys)):
            yield part

    def keys(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[bytes]:
        """Keys of a range, in the engine's order; in reverse all of them, sorted."""
        self.environment.check()
        keys = self._keys(start, stop)
        return iter(sorted(keys, reverse=True)) if reverse else keys

    def _keys(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        for key in keys_of(self.engine, start):
            if stop is not None and key >= stop:
                if self.engine.ordered:
                    return
            elif key >= start:
                yield key

    def items(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a range."""
        keys = self.keys(start, stop, reverse)
        while part := list(islice(keys, ITEMS_PER_READ)):
            for key, value in zip(part, self.engine.get_many(part), strict=True):
                if value is not None:
                    yield key, value

    def count_range(self, start: bytes, stop: bytes | None) -> int:
        """Number of keys of a range."""
        return sum(1 for _ in self.keys(start, stop, False))


def first_times(keys: Iterator[bytes]) -> Iterator[bytes]:
    """Keys without their repetitions."""
    seen: set[int] = set()
    for key in keys:
        number = checksum64(key)
        if number not in seen:
            seen.add(number)
            yield key
