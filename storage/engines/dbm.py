"""A dbm database of the standard library."""

from collections.abc import Iterator
from typing import Any

from dlbf.storage.engines.base import Adapter

__all__ = ["DbmEngine"]


class DbmEngine(Adapter):
    """What ``dbm.open`` returns, whichever implementation it is.

    Examples
    --------
    >>> import dbm.dumb, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, dbm.dumb.open(folder + "/db", "c") as db:
    ...     engine = DbmEngine(db)
    ...     engine.put(b"a", b"1")
    ...     engine.get(b"a"), engine.get(b"b"), list(engine.scan(b""))
    (b'1', None, [b'a'])
    """

    in_flight = False

    def __init__(self, database: Any) -> None:
        self.database = database

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        try:
            value: bytes = self.database[key]
            return value
        except KeyError:
            return None

    def has(self, key: bytes) -> bool:
        """Whether a key is there."""
        return key in self.database

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        self.database[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        if key in self.database:
            del self.database[key]

    def scan(self, start: bytes) -> Iterator[bytes]:
        """The keys of now: dbm's own iteration may skip some when others are deleted."""
        return iter(list(self.database.keys()))

    def sync(self) -> None:
        """Write what is in memory, where the implementation can."""
        if hasattr(self.database, "sync"):
            self.database.sync()
