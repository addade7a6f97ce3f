"""A dbm database of the standard library."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlbf.errors import StoreError
from dlbf.storage.engines.marks import FileAdapter, Place

__all__ = ["DbmEngine"]

ENDS = (".dat", ".db", ".pag")  # dbm.dumb; dbm.ndbm


def database_file(path: Path) -> Path:
    """The file of the data, of which some implementations change the name."""
    names = [path.with_name(path.name + end) for end in ("", *ENDS)]
    for name in names:
        if name.is_file():
            return name
    raise StoreError(
        f"{path}: expected a file of a dbm database, found none with this name, nor with {', '.join(ENDS)} after "
        "it; give the name that dbm.open was given"
    )


class DbmEngine(FileAdapter):
    """What ``dbm.open`` returns, whichever implementation it is.

    Parameters
    ----------
    database : dbm database
    file : path, optional
        What ``dbm.open`` was given.  No database tells where it is, so only with this are guards of a second directory
        refused.

    Raises
    ------
    StoreError
        If there is no such file.

    Examples
    --------
    >>> import dbm.dumb, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, dbm.dumb.open(folder + "/db", "c") as db:
    ...     engine = DbmEngine(db)
    ...     engine.put(b"a", b"1")
    ...     engine.get(b"a"), engine.get(b"b"), list(engine.scan(b""))
    (b'1', None, [b'a'])
    """

    def __init__(self, database: Any, file: str | os.PathLike[str] | None = None) -> None:
        self.database = database
        self._file = None if file is None else database_file(Path(file).resolve())

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

    def place(self) -> Place | None:
        """Beside the file, if it is known."""
        path = self._file
        if path is None or not path.exists():
            return None
        return Place(path.parent, f"{path.name}.", str(path.stat().st_ino))

    def sync(self) -> None:
        """Write what is in memory, where the implementation can."""
        if hasattr(self.database, "sync"):
            self.database.sync()
