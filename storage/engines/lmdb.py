"""An LMDB environment that exists already and stays its program's."""

from collections.abc import Iterator
from pathlib import Path

import lmdb

from dlbf.errors import StoreError
from dlbf.storage.engines.marks import FileAdapter, Place
from dlbf.storage.lmdbtypes import Database

__all__ = ["LmdbEngine"]


class LmdbEngine(FileAdapter):
    """A database of a py-lmdb ``Environment``; for a new one a ``dlbf.storage.Store`` is faster and simpler.

    Parameters
    ----------
    environment : lmdb.Environment
    database : bytes or handle, optional
        A named database, made if it does not exist, or what ``open_db`` returned; by default the unnamed one.
        Not one with ``dupsort``; one with ``reverse_key`` or ``integerkey`` counts as without order.

    Examples
    --------
    >>> import lmdb, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, lmdb.open(folder, max_dbs=1) as env:
    ...     engine = LmdbEngine(env, b"pairs")
    ...     engine.put(b"a", b"1")
    ...     engine.get(b"a"), engine.get(b"b"), list(engine.scan(b""))
    (b'1', None, [b'a'])
    """

    fresh = True

    def __init__(self, environment: lmdb.Environment, database: "bytes | Database | None" = None) -> None:
        self.environment = environment
        self._path = Path(environment.path()).absolute()
        self._name = b"" if database is None else database if isinstance(database, bytes) else None
        self.db = environment.open_db(database) if isinstance(database, bytes) else database
        flags = self.db.flags() if self.db is not None else None
        if flags is not None and flags["dupsort"]:
            raise StoreError(
                "expected an LMDB database with one value for each key, found one with dupsort=True; a guard is a "
                "mapping, so keep its data in a database without"
            )
        self.ordered = flags is None or not (flags["reverse_key"] or flags["integerkey"])

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        with self.environment.begin(db=self.db) as txn:
            value: bytes | None = txn.get(key) if key else None
        return value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of many keys, of one moment."""
        with self.environment.begin(db=self.db) as txn:
            return [txn.get(key) if key else None for key in keys]

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        self.put_many([(key, value)])

    def put_many(self, items: list[tuple[bytes, bytes]]) -> None:
        """Store many values, in one transaction."""
        with self.environment.begin(db=self.db, write=True) as txn:
            for key, value in items:
                txn.put(key, value)

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.delete_many([key])

    def delete_many(self, keys: list[bytes]) -> None:
        """Delete many keys, in one transaction."""
        with self.environment.begin(db=self.db, write=True) as txn:
            for key in keys:
                txn.delete(key)

    def scan(self, start: bytes) -> Iterator[bytes]:
        """The keys of this moment; from ``start`` on if they are in the order of bytes."""
        with self.environment.begin(db=self.db) as txn:
            cursor = txn.cursor()
            if cursor.set_range(start) if start and self.ordered else cursor.first():
                yield from cursor.iternext(values=False)

    def count(self) -> int | None:
        """Number of keys."""
        with self.environment.begin() as txn:
            return int((txn.stat(self.db) if self.db is not None else txn.stat())["entries"])

    def place(self) -> Place | None:
        """In the environment's directory, or beside its file; not of a database that was given as a handle, which does
        not tell its name."""
        path = self._path
        data = path / "data.mdb" if path.is_dir() else path
        begin = "" if path.is_dir() else f"{path.name}."
        if self._name is None or not data.exists():
            return None
        return Place(data.parent, begin, str(data.stat().st_ino), self._name)

    def sync(self) -> None:
        """Wait for the disk, whatever the environment's flags."""
        self.environment.sync(True)
