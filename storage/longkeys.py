"""Keys that LMDB cannot hold: longer than its limit, or empty.

See ``dlbf.storage.layout`` for the records.  All functions work inside a transaction of the caller's.
"""

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from dlbf.errors import FormatError, StoreError
from dlbf.storage.layout import HEAD_PART_BYTES, LONG_KEY, PART_BYTES, PLAIN_KEY_BYTES, LongState, node_key
from dlbf.storage.lmdbtypes import AnyTxn, Database, Txn

__all__ = [
    "Databases",
    "count_keys",
    "count_range",
    "delete_long",
    "get_any",
    "get_long",
    "is_plain",
    "long_state",
    "prefix_end",
    "put_long",
    "scan",
]


class Databases(NamedTuple):
    """Handles of the named databases."""

    data: Database
    long: Database
    filter: Database
    journal: Database
    meta: Database
    model: Database
    misses: Database
    main: Database  # LMDB's own, with the roots of these


def is_plain(key: bytes) -> bool:
    """Whether the key is stored in ``data`` as it is."""
    return 0 < len(key) <= PLAIN_KEY_BYTES


def _parts(key: bytes) -> tuple[bytes, list[bytes]]:
    """The part in ``data`` and those in ``long``; the last one is shorter than the others."""
    rest = key[HEAD_PART_BYTES:]
    return key[:HEAD_PART_BYTES], [rest[i : i + PART_BYTES] for i in range(0, len(rest) + 1, PART_BYTES)]


def _node(value: bytes | None) -> int | None:
    if value is None:
        return None
    if len(value) != 8:
        raise StoreError(
            f"the beginning of a long key has {len(value)} bytes instead of a node number of 8; "
            "another program wrote a key of 495 bytes or more into 'data'. Remove it there"
        )
    return int.from_bytes(value, "little")


def long_state(txn: AnyTxn, dbs: Databases) -> LongState:
    """The number of nodes in use; counted again if the record of it is lost or damaged."""
    record = txn.get(LONG_KEY, db=dbs.meta)
    try:
        if record is not None or _last_node(txn, dbs) == 0:
            return LongState.unpack(None if record is None else bytes(record))
    except FormatError:
        pass
    heads = sum(len(key) == HEAD_PART_BYTES for key in txn.cursor(dbs.data).iternext(values=False))
    parts = sum(len(key) == 8 + PART_BYTES for key in txn.cursor(dbs.long).iternext(values=False))
    return LongState(heads + parts)


def _last_node(txn: AnyTxn, dbs: Databases) -> int:
    """The highest node number in use; a node in use has a record."""
    cursor = txn.cursor(dbs.long)
    try:
        return int.from_bytes(cursor.key()[:8], "big") if cursor.last() else 0
    finally:
        cursor.close()


def get_long(txn: Txn, dbs: Databases, key: bytes) -> bytes | None:
    """The value of a key that is not plain."""
    if not key:
        value: bytes | None = txn.get(node_key(0, b""), db=dbs.long)
        return value
    head, parts = _parts(key)
    node = _node(txn.get(head, db=dbs.data))
    for part in parts[:-1]:
        if node is None:
            return None
        node = _node(txn.get(node_key(node, part), db=dbs.long))
    if node is None:
        return None
    found: bytes | None = txn.get(node_key(node, parts[-1]), db=dbs.long)
    return found


def get_any(txn: Txn, dbs: Databases, key: bytes) -> bytes | None:
    """The value of any key, None if it is not there."""
    value: bytes | None = txn.get(key, db=dbs.data) if is_plain(key) else get_long(txn, dbs, key)
    return value


def put_long(txn: Txn, dbs: Databases, key: bytes, value: bytes) -> bool:
    """Store a key that is not plain; True if it is new."""
    if not key:
        place = node_key(0, b"")
    else:
        head, parts = _parts(key)
        before: LongState | None = None
        made = 0
        last = _last_node(txn, dbs)
        steps = [(head, dbs.data)]
        for i in range(len(parts)):
            place, db = steps[-1]
            node = _node(txn.get(place, db=db))
            if node is None:
                made += 1
                node = last + made
                before = before or long_state(txn, dbs)
                txn.put(place, node.to_bytes(8, "little"), db=db)
            steps.append((node_key(node, parts[i]), dbs.long))
        if before is not None:
            txn.put(LONG_KEY, LongState(before.n_nodes + made).pack(), db=dbs.meta)
        place = steps[-1][0]
    if txn.put(place, value, db=dbs.long, overwrite=False):
        return True
    txn.put(place, value, db=dbs.long)
    return False


def _is_empty(txn: Txn, dbs: Databases, node: int) -> bool:
    cursor = txn.cursor(dbs.long)
    prefix = node_key(node, b"")
    try:
        return not (cursor.set_range(prefix) and cursor.key()[:8] == prefix)
    finally:
        cursor.close()


def delete_long(txn: Txn, dbs: Databases, key: bytes) -> bool:
    """Delete a key that is not plain, and the nodes that nothing else uses; True if it was there."""
    if not key:
        return bool(txn.delete(node_key(0, b""), db=dbs.long))
    head, parts = _parts(key)
    path: list[tuple[bytes, Database, int]] = []
    place, db = head, dbs.data
    for part in parts:
        node = _node(txn.get(place, db=db))
        if node is None:
            return False
        path.append((place, db, node))
        place, db = node_key(node, part), dbs.long
    if not txn.delete(place, db=dbs.long):
        return False
    removed = 0
    before: LongState | None = None
    for place, db, node in reversed(path):
        if not _is_empty(txn, dbs, node):
            break
        before = before or long_state(txn, dbs)
        txn.delete(place, db=db)
        removed += 1
    if before is not None:
        txn.put(LONG_KEY, LongState(before.n_nodes - removed).pack(), db=dbs.meta)
    return True


def count_keys(txn: AnyTxn, dbs: Databases) -> int:
    """Number of keys, from the databases' own counts."""
    n_nodes = long_state(txn, dbs).n_nodes
    return int(txn.stat(dbs.data)["entries"] + txn.stat(dbs.long)["entries"] - n_nodes)


def _node_records(
    txn: Txn, dbs: Databases, node: int, bound: bytes | None, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Parts of keys and values below a node, in order: from the part ``bound`` on, in reverse back from it."""
    cursor = txn.cursor(dbs.long)
    first = node_key(node, b"")
    if reverse:
        last = node_key(node + 1, b"") if bound is None else node_key(node, bound)
        found = cursor.set_range(last)
        if not (found and bound is not None and cursor.key() == last):
            found = cursor.prev() if found else cursor.last()
        items = cursor.iterprev() if found else iter(())
    else:
        items = cursor.iternext() if cursor.set_range(node_key(node, bound or b"")) else iter(())
    for place, value in items:
        if place[:8] != first:
            return
        yield place[8:], value


def _scan_node(
    txn: Txn, dbs: Databases, node: int, before: bytes, bound: bytes | None, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Keys that begin with ``before``, which ``node`` stands for, in order: from ``bound`` on, in reverse back from it.

    Not by recursion: a key of a megabyte is two thousand nodes deep.
    """

    def bound_part(n_before: int) -> bytes | None:
        return bound[n_before : n_before + PART_BYTES] if bound is not None else None

    if bound is not None and not bound.startswith(before):
        bound = None
    # For each level its records, and the bound's part if the bound begins with what is above.
    at = bound_part(len(before))
    levels = [(_node_records(txn, dbs, node, at, reverse), at)]
    parts = [before]
    while levels:
        records, at = levels[-1]
        for part, value in records:
            if len(part) == PART_BYTES:
                child = _node(value)
                assert child is not None
                at = bound_part(len(before) + len(levels) * PART_BYTES) if part == at else None
                levels.append((_node_records(txn, dbs, child, at, reverse), at))
                parts.append(part)
                break
            yield b"".join(parts) + part, value
        else:
            levels.pop()
            parts.pop()


def scan(
    txn: Txn,
    dbs: Databases,
    low: bytes = b"",
    high: bytes | None = None,
    reverse: bool = False,
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values in key order, from ``low`` on and before ``high``."""
    if high is not None and high <= low:
        return

    def inside(key: bytes) -> bool:
        return key >= low and (high is None or key < high)

    empty = txn.get(node_key(0, b""), db=dbs.long) if inside(b"") else None
    if empty is not None and not reverse:
        yield b"", empty
    cursor = txn.cursor(dbs.data)
    # A record of 495 bytes stands for keys that begin with it, so bounds are cut to that length before seeking.
    low_place = low[:HEAD_PART_BYTES]
    if reverse:
        if high is None:
            found = cursor.last()
        elif cursor.set_range(high[:HEAD_PART_BYTES]):
            found = cursor.key() == high[:HEAD_PART_BYTES] or cursor.prev()
        else:
            found = cursor.last()
        items = cursor.iterprev() if found else iter(())
    else:
        found = cursor.set_range(low_place) if low_place else cursor.first()
        items = cursor.iternext() if found else iter(())
    for place, value in items:
        if len(place) == HEAD_PART_BYTES:
            node = _node(value)
            assert node is not None
            for key, long_value in _scan_node(txn, dbs, node, place, high if reverse else low, reverse):
                if inside(key):
                    yield key, long_value
                elif key < low if reverse else key >= low:
                    return
            if (high is not None and place > high) if not reverse else place < low_place:
                break
        elif inside(place):
            yield place, value
        elif (place >= high if high is not None else False) if not reverse else place < low:
            break
    if empty is not None and reverse:
        yield b"", empty


def count_range(txn: Txn, dbs: Databases, low: bytes, high: bytes | None) -> int:
    """Number of keys from ``low`` on and before ``high``; without their values, where no key is long."""
    if long_state(txn, dbs).n_nodes:
        return sum(1 for _ in scan(txn, dbs, low, high))
    cursor = txn.cursor(dbs.data)
    keys = cursor.iternext(values=False) if cursor.set_range(low or b"\0") else iter(())
    empty = not low and high != b"" and txn.get(node_key(0, b""), db=dbs.long) is not None
    return empty + sum(1 for _ in (keys if high is None else takewhile(high.__gt__, keys)))


def prefix_end(prefix: bytes) -> bytes | None:
    """The smallest key above all keys that begin with ``prefix``; None if there is none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None
