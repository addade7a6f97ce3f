"""Absent keys that were asked for: a bounded, uniform sample of them, kept in the environment for training.

A process draws each absent lookup with probability ``1 / every`` (the compiled read path counts down to the next one)
and keeps the keys drawn in memory: one in ``LEAST_EVERY`` at first, half as many whenever there is no room for more.
They are written with a transaction that happens anyway, or by a thread of their own; never by a read.  Whoever polls
for one key gets one place each time.

Think of every lookup as having a random priority between 0 and 1, and of the sample as those below a threshold.  A
process that drew with probability ``t`` gives its keys priorities below ``t``; the database keeps the lowest ones up to
its limit, and the highest kept is the threshold for everybody from then on.  That is a uniform sample of all lookups of
all processes, in any order of arrival.

Nothing here decides whether a key is there: a damaged or strange sample costs bits, never a key.
"""

import random
import struct
from collections.abc import Iterator

from dlbf.errors import ChecksumError
from dlbf.kernels.hashing import checksum64
from dlbf.storage.lmdbtypes import Database, Txn
from dlbf.storage.longkeys import Databases

__all__ = [
    "BUFFER_BYTES",
    "BUFFER_KEYS",
    "DEFAULT_LIMIT",
    "LEAST_EVERY",
    "age_misses",
    "check_misses",
    "drawing_rate",
    "read_misses",
    "write_misses",
]

# Keys kept by default: a model learns from some ten thousands, and a rate of 0.1 % is seen to a tenth with this many.
DEFAULT_LIMIT = 1 << 16
# A tenth of a kilobyte each is usual; a sample of longer keys is smaller.
MAX_BYTES = 32 << 20
MAX_KEY_BYTES = 4096
# One lookup in so many is drawn at most.  A draw costs a tenth of an absent read, which makes this one per cent.
LEAST_EVERY = 8.0
# Keys that a process keeps in memory before they have to be written, or thinned: enough to learn from.
BUFFER_KEYS = 32768
BUFFER_BYTES = 8 << 20

# Below it priorities are spread anew.
LEAST_SCALE = 2.0**-24

PLACE = struct.Struct(">QI")
ONE = 1 << 64


def _place(priority: int, key: bytes) -> bytes:
    head = priority.to_bytes(8, "big")
    return head + (checksum64(head + key) & 0xFFFFFFFF).to_bytes(4, "big")


def write_misses(txn: Txn, dbs: Databases, keys: list[bytes], every: float, limit: int, scale: float) -> float:
    """Add keys that were drawn with probability ``1 / every``; returns how to draw from now on.

    ``scale`` is the priority of a lookup that is drawn whenever any is; see ``age_misses``.
    """
    highest = max(1, int(ONE * scale / every))
    limit_now = _highest(txn, dbs, limit) or ONE
    # 53 random bits will do: they are compared, not relied upon.  In order, LMDB finds its pages sooner.
    for priority, key in sorted((int(random.random() * highest), key) for key in keys):
        if priority >= limit_now:
            break
        if len(key) <= MAX_KEY_BYTES:
            txn.put(_place(priority, key), key, db=dbs.misses)
    _trim(txn, dbs, limit)
    return drawing_rate(txn, dbs, limit, scale)


def _n_bytes(txn: Txn, db: Database) -> int:
    stat = txn.stat(db)
    return int((stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"])


def _trim(txn: Txn, dbs: Databases, limit: int) -> None:
    """Keep the lowest priorities, as many as the limits allow."""
    db = dbs.misses
    cursor = txn.cursor(db)
    try:
        excess = txn.stat(db)["entries"] - limit
        while excess > 0 or _n_bytes(txn, db) > MAX_BYTES:
            # By bytes some at a time: the number of pages falls only when one becomes empty.
            for _ in range(excess if excess > 0 else 256):
                if not cursor.last():
                    return
                cursor.delete()
            excess = 0
    finally:
        cursor.close()


def _highest(txn: Txn, dbs: Databases, limit: int) -> int | None:
    """The highest priority in a full sample; None while there is room."""
    if txn.stat(dbs.misses)["entries"] < limit and _n_bytes(txn, dbs.misses) < 0.9 * MAX_BYTES:
        return None
    cursor = txn.cursor(dbs.misses)
    try:
        return max(1, int.from_bytes(cursor.key()[:8], "big")) if cursor.last() else None
    finally:
        cursor.close()


def drawing_rate(txn: Txn, dbs: Databases, limit: int, scale: float) -> float:
    """How to draw: one in so many."""
    highest = _highest(txn, dbs, limit)
    return LEAST_EVERY if highest is None else max(LEAST_EVERY, ONE * scale / highest)


def read_misses(txn: Txn, dbs: Databases) -> Iterator[bytes]:
    """The sampled keys, in random order; damaged ones are left out."""
    for place, key in txn.cursor(dbs.misses):
        if _is_sound(place, key):
            yield key


def check_misses(txn: Txn, dbs: Databases) -> None:
    """ChecksumError if a record has changed since it was written."""
    for place, key in txn.cursor(dbs.misses):
        if not _is_sound(place, key):
            raise ChecksumError(f"a sampled absent key (record {bytes(place).hex()} in misses) has changed")


def _is_sound(place: bytes, key: bytes) -> bool:
    return len(place) == PLACE.size and _place(int.from_bytes(place[:8], "big"), key) == place


def age_misses(txn: Txn, dbs: Databases, limit: int, scale: float, damaged: bool = False) -> float:
    """Make room for newer traffic once a rebuild has learnt from the sample; returns the new scale of priorities.

    From now on the sample counts as if it had just become full: all lookups before this moment weigh as much as
    ``LEAST_EVERY`` times their number in it.  Nothing is rewritten unless something is ``damaged``; new lookups get
    lower priorities instead.
    """
    if not damaged:
        highest = _highest(txn, dbs, limit)
        if highest is None:
            return scale
        scale = min(scale, highest * LEAST_EVERY / ONE)
        if scale > LEAST_SCALE:
            return scale
    # Or once in a long life: priorities get too small to tell lookups apart, so spread them again.
    keys = list(read_misses(txn, dbs))
    txn.drop(dbs.misses, delete=False)
    step = ONE / LEAST_EVERY / max(1, len(keys))
    for i, key in enumerate(keys):
        txn.put(_place(int((i + 0.5) * step), key), key, db=dbs.misses, append=True)
    return 1.0
