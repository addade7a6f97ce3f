"""Data in the databases ``data`` and ``long`` of the same LMDB environment as the log."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from dlbf.filters.base import Filter
from dlbf.kernels.environment import LmdbSourceCore, Reading
from dlbf.kernels.journal import OperationLog
from dlbf.storage.environment import Environment
from dlbf.storage.layout import HEAD_PART_BYTES, PLAIN_KEY_BYTES, node_key
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.longkeys import Databases, count_keys, count_range, get_any, long_state, scan

__all__ = ["LmdbSource"]


class LmdbSource(LmdbSourceCore):
    """See ``dlbf.storage.source.Source``."""

    environment: Environment

    def __init__(self, environment: Environment, dbs: Databases) -> None:
        super().__init__(environment, dbs.data, PLAIN_KEY_BYTES)
        self.dbs = dbs

    def fetch_slowly(self, key: bytes) -> bytes | None:
        """Every fetch that is not the common one; see ``dlbf.kernels.environment.LmdbSourceCore``."""
        return self.fetch_many([key])[0]

    def fetch_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of many keys, all of one moment."""
        with self.environment.reading() as txn:
            return [get_any(txn, self.dbs, key) for key in keys]

    def fetch_places(
        self, keys: list[bytes], places: Sequence[int], position: int
    ) -> tuple[Sequence[int], list[bytes | None]]:
        """Values of the keys in those places; or of all, if the filter's answers were of another moment."""
        with self.environment.reading() as txn:
            if txn.id() != position:
                places = range(len(keys))
            return places, [get_any(txn, self.dbs, keys[i]) for i in places]

    def has_places(self, keys: list[bytes], places: Sequence[int], position: int) -> tuple[Sequence[int], list[bool]]:
        """Whether the keys in those places are there; or all, if the filter's answers were of another moment."""
        places, values = self.fetch_places(keys, places, position)
        return places, [value is not None for value in values]

    def count(self, txn: Txn) -> int:
        """Number of keys."""
        return count_keys(txn, self.dbs)

    def count_cheaply(self, txn: Txn, filter: Filter | None) -> int:
        """Number of keys."""
        return count_keys(txn, self.dbs)

    def count_after(self, txn: Txn, operations: OperationLog, filter: Filter | None) -> int:
        """Number of keys: ``txn`` has seen to the operations."""
        return count_keys(txn, self.dbs)

    def scan(self, txn: Txn) -> Iterator[bytes]:
        """The keys that ``txn`` sees, in order."""
        return self.keys_after(txn, None)

    def scan_after(self, txn: Txn, operations: OperationLog) -> Iterator[bytes]:
        """The same: ``txn`` has seen to the operations."""
        return self.keys_after(txn, None)

    def keys_after(self, txn: Txn, position: bytes | None) -> Iterator[bytes]:
        """The keys above ``position`` (None: all) in order, as fast as LMDB gives them where none of them is long."""
        dbs = self.dbs
        if long_state(txn, dbs).n_nodes or (position is not None and len(position) >= HEAD_PART_BYTES):
            return (key for key, _ in scan(txn, dbs, position or b"") if key != position)
        cursor = txn.cursor(dbs.data)
        found = cursor.set_range(position or b"\0")
        if found and cursor.key() == position:
            found = cursor.next()
        keys: Iterator[bytes] = cursor.iternext(values=False) if found else iter(())
        if position is None and txn.get(node_key(0, b""), db=dbs.long) is not None:
            return chain([b""], keys)
        return keys

    def batches(self, n_keys: int) -> Iterator[list[bytes]]:
        """All keys in lists of up to ``n_keys``, each list of another moment."""
        position: bytes | None = None
        while True:
            with self.environment.reading() as txn:
                part = list(islice(self.keys_after(txn, position), n_keys))
            if not part:
                return
            position = part[-1]
            yield part

    def items(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a range, in order, of this moment."""
        # Here, not when the first item is asked for: what is put in between is not of the moment it was begun.
        reading = self.environment.reading()
        return self._walk(reading, scan(reading.__enter__(), self.dbs, start, stop, reverse))

    def _walk(self, reading: Reading, items: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Items of a read transaction, which ends with them; or with the last reference, if it never begins."""
        try:
            self.environment.check()
            for item in items:
                yield item
                # The parent may have ended the transaction since, and its pages may have become others.
                if self.environment.was_forked():
                    self.environment.check()
        except BaseException as error:
            reading.__exit__(type(error), error, error.__traceback__)
            raise
        finally:
            reading.end()

    def keys(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[bytes]:
        """Keys of a range, in order, of one moment."""
        return (key for key, _ in self.items(start, stop, reverse))

    def count_range(self, start: bytes, stop: bytes | None) -> int:
        """Number of keys of a range."""
        with self.environment.reading() as txn:
            return count_range(txn, self.dbs, start, stop)
