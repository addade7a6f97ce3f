"""RocksDB through rocksdict."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dlbf.storage.engines.base import Adapter

__all__ = ["RocksEngine"]


class RocksEngine(Adapter):
    """A ``rocksdict.Rdict``; keys that are not bytes are none of the guard's business.

    Parameters
    ----------
    database : rocksdict.Rdict
        Its own Bloom filter is not needed behind a guard.
    """

    ordered = True
    in_flight = False

    def __init__(self, database: Any) -> None:
        self.database = database
        self._raw = False

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        value: bytes | None = self.database.get(key)
        return value

    def has(self, key: bytes) -> bool:
        """Whether a key is there."""
        return key in self.database

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of many keys, in one call."""
        values: list[bytes | None] = self.database.get(keys)
        return values

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        self.database[key] = value

    def put_many(self, items: list[tuple[bytes, bytes]]) -> None:
        """Store many values, in one write."""
        self._write("put", items)

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.database.delete(key)

    def delete_many(self, keys: list[bytes]) -> None:
        """Delete many keys, in one write."""
        self._write("delete", [(key,) for key in keys])

    def scan(self, start: bytes) -> Iterator[bytes]:
        """The keys of this moment, in order."""
        keys = self.database.keys(from_key=start) if start else self.database.keys()
        return (key for key in keys if isinstance(key, bytes))

    def sync(self) -> None:
        """Wait for the write-ahead log."""
        self.database.flush_wal(True)

    def identity(self) -> bytes:
        """What RocksDB calls this database."""
        try:
            return (Path(self.database.path()) / "IDENTITY").read_bytes().strip()
        except OSError:
            return b""

    def _write(self, method: str, arguments: Sequence[tuple[bytes, ...]]) -> None:
        from rocksdict import WriteBatch

        while True:
            batch = WriteBatch(raw_mode=self._raw)
            for each in arguments:
                getattr(batch, method)(*each)
            try:
                self.database.write(batch)
                return
            except Exception as error:
                # A batch must be made in the mode of its database, which only a mistake tells.
                if "raw_mode" not in str(error) or self._raw:
                    raise
                self._raw = True
