"""A table of an SQLite database."""

import logging
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from sqlite3 import Connection, Error
from typing import Any

from dlbf.errors import StoreError
from dlbf.storage.engines.base import refuse_asynchronous
from dlbf.storage.engines.marks import FileAdapter, Place

__all__ = ["SqliteEngine"]

log = logging.getLogger("dlbf.storage")

SCAN_ROWS = 1000  # fetched at once, while other threads wait


def affinity(declared: str) -> str:
    """What SQLite turns values of a column into, by the rules for its declared type."""
    for kind, parts in {"INTEGER": ("INT",), "TEXT": ("CHAR", "CLOB", "TEXT"), "BLOB": ("BLOB",)}.items():
        if any(part in declared.upper() for part in parts):
            return kind
    return "NUMERIC" if declared else "BLOB"


def serves_one_thread(connection: Connection) -> bool:
    """Whether only the thread that made a connection may use it; the module tells by refusing another."""
    refused = sqlite3.threadsafety == 0  # SQLite built without locks

    def use() -> None:
        nonlocal refused
        try:
            connection.cursor().close()
        except sqlite3.ProgrammingError:
            refused = True

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    return refused


def database_file(connection: Connection) -> Path | None:
    """The file of a connection's tables; None: they are in memory."""
    files = {name: file for _, name, file in connection.execute("PRAGMA database_list")}
    return Path(files["main"]).resolve() if files["main"] else None


class SqliteEngine(FileAdapter):
    """A table with a unique key column; it is made if it does not exist.

    Parameters
    ----------
    connection : sqlite3.Connection
        Every change is a transaction of its own, so none may be open.  For a guard that threads share, connect with
        ``check_same_thread=False``: they take turns here.  Otherwise, or if SQLite was built without locks
        (``sqlite3.threadsafety`` is 0), a warning is logged, and other threads get a StoreError.
    table, key, value : str
        Names of the table and its columns.
    text : bool
        Keys are TEXT (UTF-8), not BLOB.
    expires : str, optional
        Name of a column that says when a key expires, in seconds since 1970 by this machine's clock; NULL: never.  With
        it a guard takes ``put(key, value, ttl=60)``.  Rows whose time is over are absent to every read and stay in the
        table until ``purge``.  Every program that writes the table must name the column.

    Raises
    ------
    StoreError
        If keys of the table are not compared by their bytes: its database is not in UTF-8 (with ``text``), the key
        column is of another type or has no PRIMARY KEY or UNIQUE constraint of its own with the BINARY collation.
    TypeError
        If the connection is one for asyncio.

    Examples
    --------
    >>> import sqlite3
    >>> connection = sqlite3.connect(":memory:")
    >>> engine = SqliteEngine(connection, "pairs")
    >>> engine.put(b"a", b"1")
    >>> engine.get(b"a"), engine.get(b"b"), list(engine.scan(b""))
    (b'1', None, [b'a'])
    >>> connection.close()
    """

    ordered = True
    errors = (Error,)

    def __init__(
        self,
        connection: Connection,
        table: str,
        key: str = "key",
        value: str = "value",
        text: bool = False,
        expires: str | None = None,
    ) -> None:
        refuse_asynchronous(connection)
        self.connection = connection
        self.expires = self.revives = expires is not None
        self.table = table
        self._space = f"{table}.{key}".lower().encode()
        # Held for a whole change, so that nobody reads what may be undone.
        self._turn = threading.RLock()
        self._thread = threading.get_ident() if serves_one_thread(connection) else None
        if self._thread is not None:
            log.warning(
                "table %r: the SQLite connection serves this thread only; in others a guard of it answers for absent "
                "keys and fails for the rest. To use it there, connect with check_same_thread=False",
                table,
            )
        t, k, v, e = ('"' + name.replace('"', '""') + '"' for name in (table, key, value, expires or ""))
        kind = "TEXT" if text else "BLOB"
        by_bytes = " COLLATE BINARY"  # whatever the column's collation
        self._as_key: Any = bytes.decode if text else bytes
        # A scan yields keys whose time is over, too: a clock that is set back must not bring back what a filter denies.
        living = f" AND ({e} IS NULL OR {e} > ?)" if self.expires else ""
        columns = [v, e] if self.expires else [v]
        self._sql = {
            "get": f"SELECT {v} FROM {t} WHERE {k} = ?{by_bytes}{living}",
            "has": f"SELECT 1 FROM {t} WHERE {k} = ?{by_bytes}{living}",
            "put": f"INSERT INTO {t} ({', '.join([k, *columns])}) VALUES (?{', ?' * len(columns)}) "
            f"ON CONFLICT ({k}{by_bytes}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in columns)}",
            "purge": f"DELETE FROM {t} WHERE {e} <= ?",
            "delete": f"DELETE FROM {t} WHERE {k} = ?{by_bytes}",
            "scan": f"SELECT CAST({k} AS BLOB) FROM {t} WHERE {k} >= ?{by_bytes} ORDER BY {k}{by_bytes}",
            # SQLite sorts numbers before text before blobs, so keys of other types are found without a search.
            "others": " UNION ALL ".join(
                f"SELECT * FROM (SELECT typeof({k}), CAST(quote({k}) AS BLOB) FROM {t} "
                f"WHERE {k} {where}{by_bytes} LIMIT 1)"
                for where in (["< ''", ">= x''"] if text else ["< x''"])
            ),
        }
        self._kind = kind
        more = f", {e} REAL" if self.expires else ""
        self._change(f"CREATE TABLE IF NOT EXISTS {t} ({k} {kind} PRIMARY KEY, {v} BLOB{more}) WITHOUT ROWID", [()])
        self._check(table, key, value, text, expires)
        self._file = database_file(connection)
        # With a write-ahead log others may write while a statement of this connection is being read, and nothing that
        # the connection asks meanwhile is newer than that; otherwise they wait.
        self.fresh = self._file is None or self._rows("PRAGMA main.journal_mode")[0][0] != "wal"

    def _check(self, table: str, key: str, value: str, text: bool, expires: str | None) -> None:
        """Refuse a table in which two keys of bytes may be one, or are in another order."""
        types = dict(self._rows("SELECT lower(name), type FROM pragma_table_xinfo(?)", table))
        for name in (key, value):
            if name.lower() not in types:
                found = ", ".join(types)
                raise StoreError(f"table {table!r}: expected a column {name!r}, found {found}; set key= and value=")
        if expires is not None and expires.lower() not in types:
            raise StoreError(
                f"table {table!r}: expected a column {expires!r} for the time at which a key expires, found "
                f'{", ".join(types)}; add it: ALTER TABLE "{table}" ADD COLUMN "{expires}" REAL'
            )
        if expires is not None and affinity(types[expires.lower()]) == "TEXT":
            raise StoreError(
                f"table {table!r}: expected a column {expires!r} of numbers (REAL), seconds since 1970, found "
                f"{types[expires.lower()]}; use another column"
            )
        if text and (encoding := self._rows("PRAGMA encoding")[0][0]) != "UTF-8":
            raise StoreError(
                f"table {table!r}: expected a database in UTF-8, the bytes of a guard's keys, found {encoding}; "
                "copy the table into a database in UTF-8"
            )
        kind = types[key.lower()]
        if affinity(kind) not in (("TEXT", "BLOB") if text else ("BLOB",)):
            hint = "pass text=True" if affinity(kind) == "TEXT" else "keep the keys in a column of that type"
            raise StoreError(
                f"table {table!r}: expected a column {key!r} of type {'TEXT' if text else 'BLOB'}, found {kind}; {hint}"
            )
        collations = []
        for (index,) in self._rows('SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', table):
            columns = self._rows("SELECT lower(name), coll FROM pragma_index_xinfo(?) WHERE key", index)
            if [name for name, _ in columns] == [key.lower()]:
                collations.append(columns[0][1])
        if "BINARY" not in collations:
            raise StoreError(
                f"table {table!r}: expected a PRIMARY KEY or UNIQUE constraint for {key!r} alone with the BINARY "
                f"collation, found {' and '.join(collations) or 'none'}; declare it so, or make a UNIQUE INDEX on "
                f'"{key}" COLLATE BINARY'
            )

    def _rows(self, sql: str, *arguments: str) -> list[tuple[Any, ...]]:
        with self._turn:
            return self._connected().execute(sql, arguments).fetchall()

    def _connected(self) -> Connection:
        if self._thread not in (None, threading.get_ident()):
            raise StoreError(
                f"table {self.table!r}: the SQLite connection serves only the thread that made it, and this is another "
                "one; connect with check_same_thread=False, and threads take turns (absent keys need no connection, "
                "so asking for those works in any thread)"
            )
        return self.connection

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        row = self._find("get", key)
        return None if row is None else row[0]

    def has(self, key: bytes) -> bool:
        """Whether a key is there."""
        return self._find("has", key) is not None

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        self.put_many([(key, value)])

    def put_many(self, items: list[tuple[bytes, bytes]]) -> None:
        """Store many values, in one transaction."""
        never = (None,) if self.expires else ()
        self._change(self._sql["put"], ((self._as_key(key), value, *never) for key, value in items))

    def put_expiring(self, key: bytes, value: bytes, seconds: float) -> None:
        """Store a value that is there for some time."""
        self._change(self._sql["put"], [(self._as_key(key), value, time.time() + seconds)])

    def purge(self) -> int:
        """Delete the rows whose time is over, for their room; returns how many.

        To every reader they were gone already.  Their entries stay in a guard's filter until the next rebuild.
        """
        if not self.expires:
            return 0
        return self._change(self._sql["purge"], [(time.time(),)])

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.delete_many([key])

    def delete_many(self, keys: list[bytes]) -> None:
        """Delete many keys, in one transaction."""
        self._change(self._sql["delete"], ((self._as_key(key),) for key in keys))

    def scan(self, start: bytes) -> Iterator[bytes]:
        """The keys in order; a row whose key is NULL has none.

        Raises
        ------
        StoreError
            If a key is of another type than the table's keys are: no bytes find it.
        """
        for found, quoted in self._rows(self._sql["others"]):
            literal = quoted[:60].decode(errors="backslashreplace")
            raise StoreError(
                f"table {self.table!r}: expected keys of type {self._kind}, found one of type {found.upper()}: "
                f"{literal}; a guard would deny it. Store keys of one type, or keep others in another table"
            )
        with self._turn:
            cursor = self._connected().execute(self._sql["scan"], (self._as_key(start),))
        while True:
            with self._turn:
                rows = cursor.fetchmany(SCAN_ROWS)
            if not rows:
                return
            for (key,) in rows:
                try:
                    self._as_key(key)
                except UnicodeDecodeError:
                    raise StoreError(
                        f"table {self.table!r}: expected keys of text in UTF-8, found {key[:60]!r}, which no text "
                        "finds; store it as text, or keep keys of bytes in a BLOB column (text=False)"
                    ) from None
                yield key

    def place(self) -> Place | None:
        """Beside the database's file; each table and key column has a mark of its own."""
        path = self._file
        if path is None or not path.exists():
            return None
        return Place(path.parent, f"{path.name}.", str(path.stat().st_ino), self._space)

    def _find(self, what: str, key: bytes) -> Any:
        try:
            wanted = self._as_key(key)
        except UnicodeDecodeError:
            return None  # no text, so not a key of this table
        with self._turn:
            now = (time.time(),) if self.expires else ()
            return self._connected().execute(self._sql[what], (wanted, *now)).fetchone()

    def _change(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        with self._turn:
            connection = self._connected()
            if connection.in_transaction:
                raise StoreError(
                    "the SQLite connection has an open transaction, and undoing it would bring deleted keys back "
                    "behind the guard; commit it first, or give the guard a connection of its own"
                )
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                return connection.executemany(sql, rows).rowcount
