"""Small tables of bytes in memory, and transactions on them that look like LMDB's.

What a guard keeps beside its filter and its log is small: settings, a checkpoint, a model, a sample of absent keys.  So
each process has all of it in memory, and a change is a list of puts and deletes in a frame of the log
(``dlbf.storage.filelog``).  The code that reads and writes these records is the same for stores, which keep them in
LMDB: hence the names of the methods, and their meaning, are LMDB's.

Bytes of a change, one after the other::

    0  1  u8   which table (its place in TABLES)
    1  1  u8   0 = put, 1 = delete, 2 = empty the table
    2  4  u32  length of the key, little-endian
    6  4  u32  length of the value, little-endian
   10  -       key, value
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Self

from dlbf.errors import FormatError

__all__ = ["TABLES", "Cursor", "Table", "Tables", "TablesTxn", "apply_changes", "decode", "encode"]

TABLES = ("data", "long", "filter", "journal", "meta", "model", "misses")
PUT, DELETE, EMPTY = 0, 1, 2
HEAD = struct.Struct("<BBII")
PAGE_BYTES = 4096

# How many bytes of changes, and what gives them.
Unread = tuple[int, Callable[[], bytes]]
# Which table, what happens, key, value.
Change = tuple[str, int, bytes, bytes]


class Table:
    """Keys and values; read out of their bytes when somebody asks for one, sorted when somebody asks for their order.

    A sample of absent keys is long, and most processes never look at it.
    """

    __slots__ = ("_items", "_n_bytes", "_order", "_unread")

    def __init__(self, items: dict[bytes, bytes] | None = None, n_bytes: int = 0) -> None:
        self._items = items if items is not None else {}
        self._n_bytes = n_bytes
        self._order: list[bytes] | None = None
        self._unread: tuple[Unread, ...] = ()

    @property
    def items(self) -> dict[bytes, bytes]:
        """All of them; not to be changed."""
        if self._unread:
            read = Table(self._items.copy(), self._n_bytes)
            for _, get in self._unread:
                for _, what, key, value in decode(get()):
                    if what == PUT:
                        read.put(key, value)
                    elif what == DELETE:
                        read.delete(key)
                    else:
                        read = Table()
            # Whoever comes in between does the same again.
            self._items, self._n_bytes, self._unread = read._items, read._n_bytes, ()
        return self._items

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values, or some more: what was deleted counts until it is read."""
        return self._n_bytes + sum(n for n, _ in self._unread)

    def after(self, n_bytes: int, get: Callable[[], bytes]) -> "Table":
        """The table after changes of so many bytes, which are read later."""
        out = Table(self._items, self._n_bytes)
        out._unread = (*self._unread, (n_bytes, get))
        return out

    def copy(self) -> "Table":
        """One that can be changed while this one is read."""
        items = self.items.copy()
        return Table(items, self._n_bytes)

    def order(self) -> list[bytes]:
        """The keys in order; not to be changed."""
        items = self.items
        if self._order is None:
            self._order = sorted(items)
        return self._order

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        items = self.items
        before = items.get(key)
        if before is None:
            self._order = None
            self._n_bytes += len(key) + len(value)
        else:
            self._n_bytes += len(value) - len(before)
        items[key] = value

    def delete(self, key: bytes) -> bool:
        """Delete a key; True if it was there."""
        value = self.items.pop(key, None)
        if value is None:
            return False
        self._n_bytes -= len(key) + len(value)
        if self._order and self._order[-1] == key:
            self._order.pop()
        else:
            self._order = None
        return True


Tables = Mapping[str, Table]


def encode(changes: list[Change]) -> bytes:
    """Changes as bytes."""
    parts = []
    for name, what, key, value in changes:
        parts += [HEAD.pack(TABLES.index(name), what, len(key), len(value)), key, value]
    return b"".join(parts)


def decode(data: bytes) -> list[Change]:
    """Changes from bytes.

    Raises
    ------
    FormatError
        If they are not whole changes.
    """
    out = []
    at = 0
    while at < len(data):
        try:
            table, what, n_key, n_value = HEAD.unpack_from(data, at)
            name = TABLES[table]
        except (struct.error, IndexError):
            raise FormatError(f"a change of tables at byte {at} cannot be read") from None
        at += HEAD.size
        if what > EMPTY or at + n_key + n_value > len(data):
            raise FormatError(f"a change of table {name!r} is not whole")
        out.append((name, what, data[at : at + n_key], data[at + n_key : at + n_key + n_value]))
        at += n_key + n_value
    return out


def apply_changes(
    tables: Tables, runs: list[tuple[int, int, int]], get: Callable[[int, int], bytes]
) -> dict[str, Table]:
    """The tables after runs of changes; ``get`` gives the bytes from a start to an end when they are needed."""
    out = dict(tables)
    for table, start, end in runs:
        name = TABLES[table]
        out[name] = out[name].after(end - start, partial(get, start, end))
    return out


def everything(tables: Tables) -> list[Change]:
    """The changes that make these tables out of empty ones."""
    return [(name, PUT, key, table.items[key]) for name, table in tables.items() for key in table.order()]


class Cursor:
    """A place in a table's order, like LMDB's cursor."""

    def __init__(self, txn: "TablesTxn", name: str) -> None:
        self._txn = txn
        self._name = name
        self._key = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing has to be given back."""

    def first(self) -> bool:
        """Go to the first key; False if there is none."""
        return self._go(0)

    def last(self) -> bool:
        """Go to the last key; False if there is none."""
        return self._go(-1)

    def _go(self, place: int) -> bool:
        order = self._txn.table(self._name).order()
        self._key = order[place] if order else b""
        return bool(order)

    def key(self) -> bytes:
        """The key of this place; empty: there is none."""
        return self._key

    def value(self) -> bytes:
        """Its value."""
        return self._txn.table(self._name).items.get(self._key, b"")

    def delete(self) -> bool:
        """Delete the key of this place."""
        return self._txn.delete(self._key, db=self._name)

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        """Keys, values or both, in order."""
        table = self._txn.table(self._name)
        for key in list(table.order()):
            yield (key, table.items[key]) if keys and values else key if keys else table.items[key]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self.iternext()


class TablesTxn:
    """A moment of the tables; in a write transaction they change for this one only, until it is committed.

    Parameters
    ----------
    tables : mapping
    position : int
        Of the moment; of a write transaction, the one that it will have.
    write : bool
    """

    def __init__(self, tables: Tables, position: int, write: bool) -> None:
        self._tables = dict(tables)
        self._position = position
        self._is_own: set[str] = set()
        self.write = write
        self.changes: list[Change] = []

    def id(self) -> int:
        """The position."""
        return self._position

    def table(self, name: str) -> Table:
        """A table as this transaction sees it."""
        return self._tables[name]

    @property
    def tables(self) -> Tables:
        """All of them."""
        return self._tables

    def get(self, key: bytes, default: bytes | None = None, db: str = "data") -> bytes | None:
        """The value of a key."""
        return self._tables[db].items.get(key, default)

    def put(
        self, key: bytes, value: bytes | memoryview, overwrite: bool = True, append: bool = False, db: str = "data"
    ) -> bool:
        """Store a value."""
        own = self._own(db)
        if not overwrite and key in own.items:
            return False
        value = bytes(value)
        own.put(key, value)
        self.changes.append((db, PUT, key, value))
        return True

    def delete(self, key: bytes, db: str = "data") -> bool:
        """Delete a key; True if it was there."""
        if not self._own(db).delete(key):
            return False
        self.changes.append((db, DELETE, key, b""))
        return True

    def drop(self, db: str, delete: bool = True) -> None:
        """Empty a table."""
        if self._tables[db].items:
            self._own(db)
            self._tables[db] = Table()
            self.changes.append((db, EMPTY, b"", b""))

    def stat(self, db: str = "data") -> dict[str, int]:
        """How much there is."""
        table = self._tables[db]
        return {
            "entries": len(table.items),
            "psize": PAGE_BYTES,
            "leaf_pages": -(-table.n_bytes // PAGE_BYTES),
            "overflow_pages": 0,
        }

    def cursor(self, db: str) -> Cursor:
        """A cursor."""
        return Cursor(self, db)

    def _own(self, name: str) -> Table:
        if not self.write:
            raise FormatError("a transaction that only reads was asked to write")
        if name not in self._is_own:
            self._is_own.add(name)
            self._tables[name] = self._tables[name].copy()
        return self._tables[name]

    def abort(self) -> None:
        """Nothing of it is kept."""

    def commit(self) -> None:
        """An empty commit: what has changed something is committed with its record, by the log."""
