"""LevelDB through plyvel."""

from collections.abc import Iterator
from typing import Any

from dlbf.storage.engines.base import Adapter

__all__ = ["LevelEngine"]


class LevelEngine(Adapter):
    """A ``plyvel.DB``, or a part of one with a prefix."""

    ordered = True
    in_flight = False

    def __init__(self, database: Any) -> None:
        self.database = database

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        value: bytes | None = self.database.get(key)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        self.database.put(key, value)

    def put_many(self, items: list[tuple[bytes, bytes]]) -> None:
        """Store many values, in one write."""
        with self.database.write_batch(transaction=True) as batch:
            for key, value in items:
                batch.put(key, value)

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.database.delete(key)

    def delete_many(self, keys: list[bytes]) -> None:
        """Delete many keys, in one write."""
        with self.database.write_batch(transaction=True) as batch:
            for key in keys:
                batch.delete(key)

    def scan(self, start: bytes) -> Iterator[bytes]:
        """The keys of this moment, in order."""
        keys: Iterator[bytes] = self.database.iterator(start=start or None, include_value=False)
        return keys

    def sync(self) -> None:
        """Wait for the log."""
        with self.database.write_batch(sync=True):
            pass
