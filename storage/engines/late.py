"""Keys whose writes may still arrive.

An engine behind a network may carry out a write long after it has failed for its writer, and no scan shows it before.
The keys of such writes are listed in ``data`` of the guard's environment, which is empty otherwise::

    key:    0  8  u64   transaction that listed it, big-endian
            8  4  u32   which of its keys, big-endian
    value:  0  8  u64   XXH3-64 of everything behind it, little-endian
            8  8  u64   time, seconds since 1970, little-endian
           16  -  bytes the key

While a key is listed the filter has an entry for it, whether the engine has the key or not: every new filter gets one,
a put adds none and a delete takes none out.  A key stays for a day, or until 65,536 younger ones have come; then its
entry is like any other.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any

from dlbf.errors import FormatError
from dlbf.storage.layout import opened, sealed
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.longkeys import Databases

__all__ = ["LateKeys"]

log = logging.getLogger("dlbf.storage")

MAX_KEYS = 65_536
MAX_SECONDS = 86_400


class LateKeys:
    """The list of a guard's environment, read again when it has changed."""

    def __init__(self, dbs: Databases) -> None:
        self._dbs = dbs
        self._read: tuple[Any, frozenset[bytes]] = (None, frozenset())
        self._warned = False

    def keys(self, txn: Txn) -> frozenset[bytes]:
        """The keys that a transaction sees."""
        with txn.cursor(self._dbs.data) as cursor:
            if not cursor.last():
                return frozenset()
            # Who adds keys does so behind all others; who only takes some out changes their number.
            last = cursor.key()
        stamp = (last, txn.stat(self._dbs.data)["entries"])
        before, keys = self._read
        if stamp != before:
            keys = frozenset(key for _, _, key in _records(txn, self._dbs))
            if int.from_bytes(last[:8], "big") < txn.id():  # else it may be a transaction that is undone
                self._read = (stamp, keys)
        return keys

    def add(self, txn: Txn, number: int, keys: Iterable[bytes]) -> None:
        """List keys in transaction ``number``; those that have been listed for too long, or are too many, go."""
        new = dict.fromkeys(keys)
        now = int(time.time())
        self.forget_old(txn)
        places = {key: place for place, _, key in _records(txn, self._dbs)}
        for key in new.keys() & places.keys():
            txn.delete(places.pop(key), db=self._dbs.data)
        for i, key in enumerate(new):
            place = number.to_bytes(8, "big") + i.to_bytes(4, "big")
            txn.put(place, sealed(now.to_bytes(8, "little") + key), db=self._dbs.data)
            places[key] = place
        excess = sorted(places.values())[: max(0, len(places) - MAX_KEYS)]
        for place in excess:
            txn.delete(place, db=self._dbs.data)
        if excess and not self._warned:
            self._warned = True
            log.warning(
                "more than %d writes have failed that the engine may still carry out; the oldest are not minded any "
                "more, so run rebuild() when it answers again",
                MAX_KEYS,
            )

    def has_old(self, txn: Txn) -> bool:
        """Whether some have been listed for too long."""
        oldest = min((added for _, added, _ in _records(txn, self._dbs)), default=None)
        return oldest is not None and oldest < time.time() - MAX_SECONDS

    def forget_old(self, txn: Txn) -> None:
        """Take out those that have been listed for too long."""
        end = time.time() - MAX_SECONDS
        for place in [place for place, added, _ in _records(txn, self._dbs) if added < end]:
            txn.delete(place, db=self._dbs.data)


def _records(txn: Txn, dbs: Databases) -> Iterator[tuple[bytes, int, bytes]]:
    """Places, times and keys; a record that cannot be read names no key."""
    with txn.cursor(dbs.data) as cursor:
        for place, value in cursor:
            try:
                body = opened(value, 8, "late", "data")
            except FormatError:
                continue
            yield bytes(place), int.from_bytes(body[:8], "little"), body[8:]
