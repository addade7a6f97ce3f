"""RocksDB through rocksdict."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from dlbf.storage.engines.marks import FileAdapter, Place

__all__ = ["RocksEngine"]

# So many keys are looked for at once.
RUN_KEYS = 32


class Answering(Protocol):
    """What a ``rocksdict.Rdict`` tells about itself."""

    def get(self, key: str) -> object: ...
    def property_value(self, name: str) -> object: ...
    def set_options(self, options: dict[str, str]) -> None: ...


def is_raw(database: Answering) -> bool:
    """Whether keys and values are bytes and nothing else; rocksdict only tells by refusing to look for text."""
    try:
        database.get("")
    except KeyError:
        return True
    return False


def column_family(database: Answering) -> str | None:
    """The column family of a database; rocksdict only tells in what it prints for people."""
    _, _, rest = str(database.property_value("rocksdb.cfstats-no-file-histogram")).partition("** Compaction Stats [")
    name, end, _ = rest.partition("] **\n")
    return name if end else None


def follows_another(database: Answering) -> bool:
    """Whether a database is a secondary one, which sees what the primary one has put when it is told to catch up."""
    try:
        database.set_options({})  # refused by every other one because it is empty
    except Exception as error:
        return "Invalid argument" not in str(error)
    return True


class RocksEngine(FileAdapter):
    """A ``rocksdict.Rdict`` whose keys and values are bytes.

    Parameters
    ----------
    database : rocksdict.Rdict
        Opened with ``Options(raw_mode=True)``.  Its own Bloom filter is not needed behind a guard.

    Raises
    ------
    TypeError
        If it is in its default mode: keys may be text or numbers there, and no bytes that a guard knows find them.
    """

    ordered = True

    def __init__(self, database: Any) -> None:
        self.database = database
        self._folder = Path(database.path()).absolute()
        self.fresh = not follows_another(database)
        if not is_raw(database):
            raise TypeError(
                "expected a rocksdict.Rdict opened with rocksdict.Options(raw_mode=True), found one in its default "
                "mode, in which keys may be str or int and values are pickled; a guard knows only bytes, and would "
                "deny such keys. Open it with raw_mode=True; if it holds data already, copy that into a new database, "
                "because each key is stored behind a byte for its type"
            )

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        value: bytes | None = self.database.get(key)
        return value

    def has(self, key: bytes) -> bool:
        """Whether a key is there.

        A guard asks for keys that most likely are.  To read one takes no longer than ``in``, which looks in memory
        first, and then reads all the same.
        """
        return self.database.get(key) is not None

    def has_many(self, keys: list[bytes]) -> list[bool]:
        """Which keys are there, some in one call: their values are in memory meanwhile."""
        runs = (keys[i : i + RUN_KEYS] for i in range(0, len(keys), RUN_KEYS))
        return [value is not None for run in runs for value in self.database.get(run)]

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
        keys: Iterator[bytes] = self.database.keys(from_key=start) if start else self.database.keys()
        return keys

    def sync(self) -> None:
        """Wait for the write-ahead log."""
        self.database.flush_wal(True)

    def place(self) -> Place | None:
        """In the database's directory; each column family has a mark of its own."""
        folder, family = self._folder, column_family(self.database)
        try:
            engine = f"{(folder / 'IDENTITY').read_text().strip()} {folder.stat().st_ino}"
        except OSError:
            return None
        return None if family is None else Place(folder, "", engine, b"" if family == "default" else family.encode())

    def _write(self, method: str, arguments: Sequence[tuple[bytes, ...]]) -> None:
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for each in arguments:
            getattr(batch, method)(*each)
        self.database.write(batch)
