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
from dlbf.storage.layers import THREAD_KEYS, Gathering, Making, next_gathering
from dlbf.storage.layout import FLAG_OMITTED
from dlbf.storage.log import Log, Record, View

__all__ = ["TOO_MANY_ALIKE", "Builder", "LayeredBuilder", "fill_successor", "store_builder"]

KEYS_PER_UPDATE = 4096
# Why a filter with room enough is full all the same.
TOO_MANY_ALIKE = (
    "more than eight keys have the same hash, which happens on purpose only and needs a store whose hash anybody can "
    "compute (keyed=False) or whose secret is known"
)
# How long a rebuild waits for a base before it follows the journal again.
POLL_SECONDS = 0.05
# Journal records that a switch may still have to apply; a few milliseconds.
CLOSE_RECORDS = 64


def fill_successor(
    before: Filter | None,
    n_keys: int,
    n_new: int,
    all_keys: Callable[[], Iterator[bytes]],
    fpr: float,
    secret: bytes | None,
    layered: bool,
) -> Filter:
    """The filter that follows ``before`` (None: unknown), with all of ``n_keys`` keys, ``n_new`` of them just added."""
    gathering = next_gathering(before, n_keys, fpr, secret) if layered else None
    if gathering is not None:
        gathering.update(all_keys())
        return gathering.finish(gathering.make_base())
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
        self.walked = False  # every key was passed
        self.applied = 0
        self.restarts = 0

    @property
    def done(self) -> bool:
        """Whether the filter is complete, but for what the log says since ``applied``."""
        return self.walked

    def restart(self) -> None:
        """Begin again, with the same filter."""
        self.filter.clear()
        self._walk_again()

    def _walk_again(self) -> None:
        self.position = None
        self.walked = False
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
        return self.position is not None or self.walked

    def _begin_again(self, now: int) -> bool:
        """The journal cannot be followed from where this is."""
        self.restart()
        self.applied = now
        return False

    def _take(self, keys: list[bytes]) -> None:
        """Keys that the walk has met."""
        self.filter.update(keys)

    def _take_rest(self, txn: View) -> None:
        """At the end of the walk: keys that it has not met for a reason."""

    def wait(self) -> None:
        """Before another step: nothing is under way that it would have to wait for."""

    def _meet(self, record: Record) -> None:
        """Follow a record of the journal."""
        apply_record(self.filter, record, None if self.walked else self.position)

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
        if self.walked:
            return 0
        passed = 0
        keys = self._ahead(txn)
        while passed < n_keys:
            wanted = min(KEYS_PER_UPDATE, n_keys - passed)
            part = list(islice(keys, wanted))
            if part:
                self._take(part)
                self.position = part[-1]
                passed += len(part)
            if len(part) < wanted:
                self._take_rest(txn)
                self.walked = True
                break
        steps.reached("build-stepped")
        return passed


class LayeredBuilder(Builder[View]):
    """Gathers the keys of the next base, has it made, and lets the tables follow; see ``dlbf.storage.layers``.

    There is no ``filter`` before it is done.
    """

    def __init__(
        self,
        log: Log[View],
        gathering: Gathering,
        keys_after: Callable[[View, bytes | None], Iterator[bytes]] = lambda txn, position: iter(()),
    ) -> None:
        self.log = log
        self.gathering = gathering
        self._keys_after = keys_after
        self._making: Making | None = None  # since the walk is at its end
        self._is_made = False
        self.position = None
        self.walked = False
        self.applied = 0
        self.restarts = 0

    @property
    def done(self) -> bool:
        """Whether there is a filter."""
        return self._is_made

    def restart(self) -> None:
        """Begin again."""
        self.gathering.clear()
        self._making = None
        self._is_made = False
        self._walk_again()

    def _take(self, keys: list[bytes]) -> None:
        self.gathering.update(keys)

    def _meet(self, record: Record) -> None:
        if self.done:
            apply_record(self.filter, record)
        else:
            # Behind the last key there may be more by now; the walk will not meet them.
            apply_record(self.gathering, record, None if self.walked else self.position)

    def _walk(self, txn: View, n_keys: int) -> int:
        if self.done:
            return 0
        passed = super()._walk(txn, n_keys)
        if self.walked and self._making is None:
            self._making = Making(self.gathering.make_base, len(self.gathering) >= THREAD_KEYS)
        self._collect(0.0)
        return passed

    def _collect(self, patience_seconds: float | None) -> None:
        """Go on with the base that was made, if it is."""
        base = self._making.ready(patience_seconds) if self._making is not None else None
        if base is not None:
            self.filter = self.gathering.finish(base)
            self._making, self._is_made = None, True

    def wait(self) -> None:
        """Before another step: let the base be made."""
        if self._making is not None:
            self._making.ready(POLL_SECONDS)

    def finish(self, txn: View) -> None:
        """Inside a write transaction that has not changed anything: become complete for it."""
        self.catch_up(txn, self.log.position(txn) - 1)
        while not self.done:
            self._walk(txn, 1 << 30)
            if not self.done:
                self._collect(None)


def store_builder(
    log: Log[View], keys_after: Callable[[View, bytes | None], Iterator[bytes]], empty: Filter | Gathering
) -> Builder[View]:
    """What fills an empty filter, or makes a layered one, from the keys of a store."""
    if isinstance(empty, Gathering):
        return LayeredBuilder(log, empty, keys_after)
    return Builder(log, empty, keys_after)
