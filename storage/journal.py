"""The journal on disk: one record per transaction, the newest few of them in LMDB's main database.

Every commit writes the page of the main database that has the roots of the others, so a record kept there costs a
small commit no page of its own.  When it has no room for another one its records move, as one block, into ``journal``;
a record too large for it goes there by itself.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from dlbf.errors import DlbfError, FormatError
from dlbf.kernels.journal import Tail, split_entry
from dlbf.storage.layout import CHECKPOINT_KEY, TAIL_KEY, Checkpoint, journal_key
from dlbf.storage.longkeys import Databases

__all__ = ["append", "count_records", "delete_range", "drop", "entries", "newest", "read_run", "trim"]


def append(txn: Any, dbs: Databases, tail: Tail, number: int, record: bytes) -> None:
    """Write the record of transaction ``number``, which ``txn`` is; set ``tail.known`` when it is committed."""
    damaged = False
    if tail.known != number - 1:
        value = txn.get(TAIL_KEY, db=dbs.main)
        try:
            tail.load(value)
        except FormatError:
            damaged = True  # nobody can read it; the gap will be seen
        if value is None:
            _mark_version(txn, dbs)
        if newest(txn, dbs) >= number:
            drop(txn, dbs, tail)  # of another history: a compacted copy counts its transactions from the beginning
            damaged = False
    was_empty = not tail.last and not damaged
    tail.known = 0
    if tail.last not in (0, number - 1) or not tail.stage(record, number):
        if tail.last:
            _put(txn, dbs, tail.last, tail.block())
        tail.clear()
        if not tail.stage(record, number):
            _put(txn, dbs, number, record)
    if tail.last or not was_empty:
        txn.put(TAIL_KEY, tail.value, db=dbs.main)


def _mark_version(txn: Any, dbs: Databases) -> None:
    """The first record in a tail: a version that knows none must not take that for damage."""
    record = txn.get(CHECKPOINT_KEY, db=dbs.meta) if dbs.meta is not None else None
    if record is not None:
        with contextlib.suppress(DlbfError):
            txn.put(CHECKPOINT_KEY, Checkpoint.unpack(bytes(record)).pack(), db=dbs.meta)


def newest(txn: Any, dbs: Databases) -> int:
    """The transaction of the newest record, 0 if there is none that can be read."""
    tail = Tail()
    with contextlib.suppress(FormatError):
        tail.load(txn.get(TAIL_KEY, db=dbs.main))
    with txn.cursor(dbs.journal) as cursor:
        last = int.from_bytes(cursor.key(), "big") if cursor.last() else 0
    return max(int(tail.last), last)


def _put(txn: Any, dbs: Databases, number: int, value: bytes) -> None:
    if not txn.put(journal_key(number), value, append=True, db=dbs.journal):
        # A damaged key behind ours: appending is refused, storing is not.
        txn.put(journal_key(number), value, db=dbs.journal)


def read_run(txn: Any, dbs: Databases, number: int) -> list[tuple[int, Any]]:
    """Transactions from ``number`` on and their records, as many as are kept together; none if it has no record.

    The records are not checked; see ``dlbf.kernels.journal.read_record``.

    Raises
    ------
    FormatError
        If there is none and a block that may have had it is damaged.
    """
    damage = ""
    for key, value in _places(txn, dbs, number):
        try:
            records = split_entry(value, key)
        except FormatError as error:
            damage = str(error)  # not itself: it knows this frame, and both would wait for the garbage collector
            continue
        found = [pair for pair in records if pair[0] >= number]
        if found and found[0][0] == number:
            return found
    if damage:
        raise FormatError(damage)
    return []


def _places(txn: Any, dbs: Databases, number: int) -> Iterator[tuple[int, Any]]:
    """Where the record may be."""
    tail = txn.get(TAIL_KEY, db=dbs.main)
    if tail is not None:
        yield 0, tail
    with txn.cursor(dbs.journal) as cursor:
        if cursor.set_range(journal_key(number)):
            yield int.from_bytes(cursor.key(), "big"), cursor.value()


def entries(txn: Any, dbs: Databases) -> Iterator[tuple[int, Any]]:
    """Every record there is, in order, with the transaction it should belong to.

    Raises
    ------
    FormatError
        At a block that is damaged.
    """
    for key, value in txn.cursor(dbs.journal):
        number = int.from_bytes(key, "big")
        records = split_entry(value, number)
        if not records or records[-1][0] != number:
            raise FormatError(f"journal entry {number} does not end with the record of that transaction")
        yield from records
    tail = txn.get(TAIL_KEY, db=dbs.main)
    if tail is not None:
        Tail().load(tail)
        yield from split_entry(tail, 0)


def count_records(txn: Any, dbs: Databases) -> int:
    """Number of records, from the first one's transaction: there is no gap."""
    with txn.cursor(dbs.journal) as cursor:
        first = (int.from_bytes(cursor.key(), "big"), cursor.value()) if cursor.first() else (0, None)
    if first[1] is None:
        first = (0, txn.get(TAIL_KEY, db=dbs.main))
    try:
        records = split_entry(first[1], first[0]) if first[1] is not None else []
    except FormatError:
        return 0
    return max(0, int(txn.id()) - records[0][0] + 1) if records else 0


def drop(txn: Any, dbs: Databases, tail: Tail) -> None:
    """Forget everything, damaged records and such under wrong keys too."""
    tail.clear()
    txn.drop(dbs.journal, delete=False)
    txn.delete(TAIL_KEY, db=dbs.main)


def trim(txn: Any, dbs: Databases, number: int) -> None:
    """Forget records before transaction ``number``; some of them may stay."""
    delete_range(txn, dbs.journal, b"", journal_key(number))


def delete_range(txn: Any, db: Any, start: bytes, stop: bytes | None) -> None:
    """Delete the records of a database from ``start`` on, before ``stop``."""
    cursor = txn.cursor(db)
    found = cursor.set_range(start) if start else cursor.first()
    while found and (stop is None or cursor.key() < stop):
        found = cursor.delete() and bool(cursor.key())
    cursor.close()
