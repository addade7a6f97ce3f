"""LevelDB through plyvel."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlbf.storage.engines.base import library_errors
from dlbf.storage.engines.marks import FileAdapter, Place

__all__ = ["LevelEngine"]

BYTEWISE = b"leveldb.BytewiseComparator"


def is_bytewise(database: Any) -> bool:
    """Whether keys are in the order of bytes; plyvel does not tell, but the manifest begins with the order's name.

    Its first record: a header of 7 bytes, the tag 1 (comparator), the length of the name and the name.
    """
    try:
        folder = Path(database.name)
        manifest = folder / (folder / "CURRENT").read_text().strip()
        with manifest.open("rb") as file:
            return file.read(9 + len(BYTEWISE))[7:] == bytes([1, len(BYTEWISE)]) + BYTEWISE
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def folder_of(database: Any) -> Path | None:
    """Where a database is."""
    name = getattr(database, "name", None)
    return Path(os.fsdecode(name)).absolute() if isinstance(name, str | bytes) else None


class LevelEngine(FileAdapter):
    """A ``plyvel.DB``, or a part of one with a prefix; one with a comparator of its own counts as without order."""

    fresh = True  # one process has it open

    def __init__(self, database: Any) -> None:
        self.database = database
        self._folder = folder_of(getattr(database, "db", database))
        self.ordered = is_bytewise(getattr(database, "db", database))
        self.errors = library_errors(database, "Error")

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
        """The keys of this moment; from ``start`` on if they are in the order of bytes."""
        first = start if self.ordered else b""
        keys: Iterator[bytes] = self.database.iterator(start=first or None, include_value=False)
        return keys

    def place(self) -> Place | None:
        """In the database's directory; a prefix that begins another one has its keys, too."""
        folder, space = self._folder, getattr(self.database, "prefix", b"")
        if folder is None or not folder.is_dir():
            return None
        return Place(folder, "", str(folder.stat().st_ino), space, prefix=True)

    def sync(self) -> None:
        """Wait for the log."""
        with self.database.write_batch(sync=True):
            pass
