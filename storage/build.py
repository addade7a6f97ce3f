"""Building the next generation while reads and writes go on.

A builder walks through the keys in order, a bounded number per step, each step in a view of its own.  Between steps it
keeps up by the log: an operation on a key it has passed is applied, one on a key still ahead is not, because the walk
will meet its outcome.  So after every step the new filter holds exactly the keys up to ``position`` of one committed
state; when the walk is at its end it is complete, and the switch needs one short transaction.

Nothing is written before the switch: a builder that dies leaves no trace, and the old generation goes on serving.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic

from dlbf.errors import DlbfError, FilterFullError
from dlbf.filters.base import Filter
from dlbf.kernels.journal import apply_record, read_record
from dlbf.storage import generations, steps
from dlbf.storage.layout import FLAG_OMITTED
from dlbf.storage.log import Log, Record, View

__all__ = ["TOO_MANY_ALIKE", "Builder", "fill_successor"]

KEYS_PER_UPDATE = 4096
# Why a filter with room enough is full all the same.
TOO_MANY_ALIKE = (
    "more than eight keys have the same hash, which happens on purpose only and needs a store whose hash anybody can "
    "compute (keyed=False) or whose secret is known"
)
# Journal records that a switch may still have to apply; a few milliseconds.
CLOSE_RECORDS = 64


def fill_successor(
    before: Filter | None,
    n_keys: int,
    n_new: int,
    all_keys: Callable[[], Iterator[bytes]],
    fpr: float,
    secret: bytes | None,
) -> Filter:
    """The filter that follows ``before`` (None: unknown), with all of ``n_keys`` keys, ``n_new`` of them just added."""
    is_bulk = n_new >= generations.BULK_SHARE * n_keys and not generations.is_learned(before)
    growth = generations.BULK_GROWTH if is_bulk else generations.GROWTH
    filter = generations.successor(before, n_keys, fpr, secret, growth=growth)
    try:
        filter.update(all_keys())
        return filter
    except FilterFullError:
        if not generations.is_learned(filter) or not generations.is_learned(before):
            raise
        # The new keys are not spread over the regions of the model as the old ones were: look where they are.
        keys = all_keys()
        counts = generations.region_counts(before, iter(lambda: list(islice(keys, KEYS_PER_UPDATE)), []))
    filter = generations.successor(before, n_keys, fpr, secret, counts, growth)
    filter.update(all_keys())
    return filter


class Builder(Generic[View]):
    """Fills an empty filter with keys that come in order, step by step.

    Parameters
    ----------
    log : Log
        What happens to the keys meanwhile.
    filter : GenerationFilter
        Empty; the builder owns it until it is done.
    keys_after : callable
        Gives the keys of a view that are above another one (None: all of them), in order; none where a subclass knows
        how to get them.
    """

    def __init__(
        self,
        log: Log[View],
        filter: Filter,
        keys_after: Callable[[View, bytes | None], Iterator[bytes]] = lambda txn, position: iter(()),
    ) -> None:
        self.log = log
        self.filter = filter
        self._keys_after = keys_after
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

    def catch_up(self, txn: View, now: int) -> bool:
        """Apply the journal up to transaction ``now``; False if the walk had to be begun again."""
        if not self._begun():
            self.applied = now
            return True
        try:
            while self.applied < now:
                run = self.log.read_run(txn, self.applied + 1)
                for number, record in run:
                    if number > now:
                        break
                    if read_record(record, number)[1] & FLAG_OMITTED:
                        return self._begin_again(now)
                    self._meet(record)
                    self.applied = number
                if not run:
                    return self._begin_again(now)
        except FilterFullError:
            raise
        except (DlbfError, ValueError):
            return self._begin_again(now)
        return True

    def _begun(self) -> bool:
        """Whether there is anything that the journal could change."""
        return self.position is not None or self.done

    def _begin_again(self, now: int) -> bool:
        """The journal cannot be followed from where this is."""
        self.restart()
        self.applied = now
        return False

    def _meet(self, record: Record) -> None:
        """Follow a record of the journal."""
        apply_record(self.filter, record, None if self.done else self.position)

    def step(self, txn: View, n_keys: int) -> int:
        """Catch up with ``txn`` (a read transaction) and pass up to ``n_keys`` more keys; returns how many."""
        self.catch_up(txn, self.log.position(txn))
        return self._walk(txn, n_keys)

    def finish(self, txn: View) -> None:
        """Inside a write transaction that has not changed anything: become complete for it."""
        self.catch_up(txn, self.log.position(txn) - 1)
        while not self.done:
            self._walk(txn, 1 << 30)

    def _ahead(self, txn: View) -> Iterator[bytes]:
        """The keys behind ``position``."""
        return self._keys_after(txn, self.position)

    def _walk(self, txn: View, n_keys: int) -> int:
        if self.done:
            return 0
        passed = 0
        keys = self._ahead(txn)
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
