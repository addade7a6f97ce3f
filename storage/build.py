"""Building the next generation while reads and writes go on.

A builder walks through the keys in order, a bounded number per step, each step in a read transaction of its own.
Between steps it
keeps up by the journal: an operation on a key it has passed is applied, one on a key still ahead is not, because the
walk will
meet its outcome.  So after every step the new filter holds exactly the keys up to ``position`` of one committed state;
when
the walk is at its end it is complete, and the switch needs one short transaction.

Nothing is written before the switch: a builder that dies leaves no trace, and the old generation goes on serving.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from dlbf.errors import DlbfError, FilterFullError
from dlbf.kernels.readpath import apply_record, read_record
from dlbf.storage import steps
from dlbf.storage.layout import FLAG_OMITTED, HEAD_PART_BYTES, journal_key
from dlbf.storage.longkeys import Databases, long_state, scan

__all__ = ["Builder", "fill"]

KEYS_PER_UPDATE = 4096


def fill(txn: Any, dbs: Databases, filter: Any) -> None:
    """Add every key that ``txn`` sees."""
    if long_state(txn, dbs).n_nodes == 0:
        # No long keys: what is in ``data`` are the keys themselves (and the empty key is elsewhere).
        filter.update(txn.cursor(dbs.data).iternext(values=False))
        if txn.stat(dbs.long)["entries"]:
            filter.add(b"")
    else:
        filter.update(key for key, _ in scan(txn, dbs))


class Builder:
    """Fills an empty filter with the keys of a store, step by step.

    Parameters
    ----------
    dbs : Databases
    filter : GenerationFilter
        Empty; the builder owns it until it is done.
    """

    def __init__(self, dbs: Databases, filter: Any) -> None:
        self.dbs = dbs
        self.filter = filter
        self.position: bytes | None = None  # the last key passed; None: none yet
        self.done = False
        self.applied = 0
        self.restarts = 0

    def restart(self) -> None:
        """Begin again, with the same filter."""
        self.filter.clear()
        self.position = None
        self.done = False
        self.restarts += 1

    def catch_up(self, txn: Any, now: int) -> bool:
        """Apply the journal up to transaction ``now``; False if the walk had to be begun again."""
        if self.position is None and not self.done:
            self.applied = now
            return True
        while self.applied < now:
            record = txn.get(journal_key(self.applied + 1), db=self.dbs.journal)
            try:
                known = record is not None and not read_record(record, self.applied + 1)[1] & FLAG_OMITTED
                if known:
                    apply_record(self.filter, record, None if self.done else self.position)
            except FilterFullError:
                raise
            except (DlbfError, ValueError):
                known = False
            if not known:
                self.restart()
                self.applied = now
                return False
            self.applied += 1
        return True

    def step(self, txn: Any, n_keys: int) -> int:
        """Catch up with ``txn`` (a read transaction) and pass up to ``n_keys`` more keys; returns how many."""
        self.catch_up(txn, txn.id())
        return self._walk(txn, n_keys)

    def finish(self, txn: Any) -> None:
        """Inside a write transaction that has not changed anything: become complete for it."""
        self.catch_up(txn, txn.id() - 1)
        while not self.done:
            self._walk(txn, 1 << 30)

    def _ahead(self, txn: Any, n_keys: int) -> tuple[Iterator[bytes], int]:
        """The keys behind ``position``, and how many of them (at most ``n_keys``) to take this way."""
        has_long = long_state(txn, self.dbs).n_nodes != 0
        if has_long or self.position is None or len(self.position) >= HEAD_PART_BYTES:
            # The slow way, also for the first step: it knows the empty key.
            n_keys = n_keys if has_long else min(n_keys, 1)
            keys = (key for key, _ in scan(txn, self.dbs, start=self.position) if key != self.position)
        else:
            cursor = txn.cursor(self.dbs.data)
            found = cursor.set_range(self.position or b"\0")
            if found and cursor.key() == self.position:
                found = cursor.next()
            keys = cursor.iternext(values=False) if found else iter(())
        return keys, n_keys

    def _walk(self, txn: Any, n_keys: int) -> int:
        if self.done:
            return 0
        passed = 0
        keys, n_keys = self._ahead(txn, n_keys)
        while passed < n_keys:
            wanted = min(KEYS_PER_UPDATE, n_keys - passed)
            part = list(islice(keys, wanted))
            if part:
                self.filter.update(part)
                self.position = part[-1]
                passed += len(part)
            if len(part) < wanted:
                self.done = True
                break
        steps.reached("build-stepped")
        return passed
