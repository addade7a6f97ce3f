"""How a change gets into data, log and filter: one routine for every commit, and the filters that follow.

A commit writes the data (the caller has) and one record of the log in the same transaction; then the filter follows.
If the log has become long a checkpoint goes with it, if the filter has no room a larger one does: in either case a
filter that nobody asks is made ready before the commit, and put in after it.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar, TypeVarTuple

import lmdb

from dlbf.errors import FilterFullError, StoreError
from dlbf.filters.base import Filter
from dlbf.filters.layered import LayeredFilter
from dlbf.kernels.changes import commit_change
from dlbf.kernels.environment import Writing
from dlbf.kernels.filelock import Busy
from dlbf.kernels.journal import OperationLog, apply_record
from dlbf.kernels.locks import Held
from dlbf.storage import generations, layers, steps
from dlbf.storage.build import CLOSE_RECORDS, TOO_MANY_ALIKE, Builder, fill_successor
from dlbf.storage.growth import Growth
from dlbf.storage.layers import Gathering
from dlbf.storage.layout import FLAG_OMITTED, FLAG_REMOVED, Checkpoint, TrafficRecord
from dlbf.storage.ledger import Ledger
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.parts import Opened
from dlbf.storage.source import Parts, Source
from dlbf.storage.traffic import Traffic
from dlbf.storage.trouble import DAMAGE, FULL, SECRET, VERSION

__all__ = ["Commits", "Turn"]

log = logging.getLogger("dlbf.storage")

# Keys that the next generation's builder passes per key changed: it is done before the rest of the
# capacity (see generations.GROW_AT) has arrived.
BUILD_KEYS_PER_OPERATION = 48
# And at least so many at once, a quarter of a millisecond: each time costs as much as a hundred of them.
BUILD_KEYS_AT_ONCE = 1024
BUILD_KEYS_PER_STEP = 8192
# Records that a store without a usable filter keeps for a rebuild to catch up with.
BROKEN_JOURNAL_RECORDS = 4096
BROKEN_RECORD_BYTES = 1 << 20

Prepare = Callable[[Txn, int], TrafficRecord]


Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Turn(Protocol):
    """Calls a function when it is this thread's turn to write; Busy if that is not now and it may not ``wait``."""

    def __call__(
        self, part: Callable[[*Arguments], Result], /, *arguments: *Arguments, wait: bool = True
    ) -> Result: ...


def run_now(part: Callable[[*Arguments], Result], /, *arguments: *Arguments, wait: bool = True) -> Result:
    """Whoever may begin a write transaction is the writer."""
    return part(*arguments)


class Commits:
    """See the module.

    Parameters
    ----------
    opened : Opened
    ledger : Ledger
    source : Source
    traffic : Traffic
    new_builder : callable
        Gives what fills an empty filter with the source's keys.
    alone, within : callable
        Call a function when no other writer is at work (Busy if it may not ``wait`` for one); ``within`` also where
        this thread is the writer already.  LMDB's own lock is enough where all data are in LMDB.
    errors : tuple of exception types
        What the source may raise when its keys are read for a larger filter; anything else comes from a signal handler.
    """

    def __init__(
        self,
        opened: Opened,
        ledger: Ledger[Txn],
        source: Source[Txn],
        traffic: Traffic,
        new_builder: Callable[[Filter | Gathering], Builder[Txn]],
        alone: Turn = run_now,
        within: Turn = run_now,
        errors: tuple[type[Exception], ...] = (),
    ) -> None:
        self.environment = opened.environment
        self.writes = opened.writes
        self.log = opened.log
        self.ledger = ledger
        self.source = source
        self.traffic = traffic
        self.new_builder = new_builder
        self.growth = Growth()
        self._build_lock = threading.Lock()  # ``growth.builder``
        self._alone = alone
        self._within = within
        self._errors: tuple[type[Exception], ...] = (lmdb.Error, StoreError, OSError, MemoryError, *errors)
        self.writes.on_begin = ledger.catch_up_before
        # Called in the transaction that puts in a rebuilt filter, not one that has only grown.
        self.on_rebuilt: Callable[[Txn], object] = lambda txn: None
        self.parts: Parts[Txn] | None = None  # what other processes can scan for a rebuild

    # --- committing

    def commit(self, txn: Txn, operations: OperationLog) -> None:
        """Commit what ``txn`` has changed, with its record."""
        ledger = self.ledger
        position = self.log.position(txn)
        steps.reached("data-written")
        if ledger.filter is None:
            if ledger.trouble.kind == FULL:
                self._commit_grown(txn, operations, position)
            else:
                self._commit_unfiltered(txn, operations, position)
        elif not ledger.has_room(operations):
            self._commit_grown(txn, operations, position)
        elif ledger.log_bytes + operations.nbytes > ledger.log_limit:
            self._commit_checkpoint(txn, operations, position)
        else:
            if self.traffic.report_due:
                self.traffic.report(txn, self.log, ledger.generation)
            commit_change(self.writes, self.log, ledger, txn, position, operations)

    def _commit_checkpoint(self, txn: Txn, operations: OperationLog, position: int) -> None:
        """Commit together with a checkpoint, which the log's length has made due."""
        ledger = self.ledger
        flags = FLAG_REMOVED if operations.n_removed else 0
        record = operations.record(position, ledger.generation, flags)
        filter = ledger.filter.copy()
        try:
            apply_record(filter, record)
        except FilterFullError:
            self._commit_grown(txn, operations, position)
            return
        removed = position if operations.n_removed else ledger.removed
        changes = ledger.added + operations.n_added, ledger.deleted + operations.n_removed
        self.traffic.report(txn, self.log, ledger.generation, changes)
        checkpoint, sums = self._write_checkpoint(txn, filter, Checkpoint.of(ledger.generation, position, removed))
        # Operations that take more room than the filter are left to the checkpoint.
        if len(record) > ledger.log_limit:
            record = operations.record(position, ledger.generation, flags | FLAG_OMITTED, False)
        with Held(ledger.lock):
            self.log.commit(self.writes, txn, position, record)
            self._put_in(filter, checkpoint, sums, changes)

    def _commit_grown(self, txn: Txn, operations: OperationLog, position: int) -> None:
        """Commit together with a larger filter, made from the data as this transaction leaves it."""
        ledger, source = self.ledger, self.source
        before = ledger.full if ledger.filter is None else ledger.filter
        try:
            filter = fill_successor(
                before,
                source.count_after(txn, operations, ledger.filter),
                operations.n_added,
                lambda: source.scan_after(txn, operations),
                ledger.settings.info.fpr,
                ledger.settings.secret,
                self._is_layered(txn),
            )
        except FilterFullError:
            # The data comes first: it is stored, and read without a filter until a rebuild.
            with Held(ledger.lock):
                ledger.drop()
                ledger.full = None
                ledger.trouble.reason, ledger.trouble.kind = f"{TOO_MANY_ALIKE}; remove them and run rebuild()", DAMAGE
            self._commit_unfiltered(txn, operations, position)
            return
        steps.reached("growth-scanned")
        traffic = self.traffic_so_far(txn, position)
        added, deleted = traffic.added + operations.n_added, traffic.deleted + operations.n_removed
        self._write_generation(txn, operations, filter, position, replace(traffic, added=added, deleted=deleted))

    def _commit_unfiltered(self, txn: Txn, operations: OperationLog, position: int) -> None:
        """Commit in a store whose filter this process cannot use."""
        trouble = self.ledger.trouble
        if trouble.kind == VERSION:
            # Not ours to write.
            self.log.commit_gap(self.writes, txn, position)
            steps.reached("commit-done")
            return
        ours = trouble.kind != SECRET
        checkpoint = self.log.mark_broken(txn, position, trouble.reason) if ours else self.log.read_checkpoint(txn)
        if ours and position % 256 == 0:
            self.log.trim(txn, max(0, position - BROKEN_JOURNAL_RECORDS))
        generation = checkpoint.generation if checkpoint is not None else position
        flags = FLAG_REMOVED if operations.n_removed else 0
        omit = operations.nbytes > BROKEN_RECORD_BYTES and ours
        record = operations.record(position, generation, flags | (FLAG_OMITTED if omit else 0), not omit)
        self.log.commit(self.writes, txn, position, record)

    def _write_checkpoint(self, txn: Txn, filter: Filter, checkpoint: Checkpoint) -> tuple[Checkpoint, bytes]:
        ledger = self.ledger
        return self.log.write_checkpoint(txn, filter.to_bytes(), checkpoint, (ledger.checkpoint, ledger.sums))

    def _put_in(self, filter: Filter, checkpoint: Checkpoint, sums: bytes, changes: tuple[int, int]) -> None:
        """It is committed: answer from this filter from now on; the ledger's lock is held."""
        ledger = self.ledger
        ledger.adopt(filter, checkpoint, sums)
        ledger.added, ledger.deleted = changes
        ledger.offer()

    def _write_generation(
        self, txn: Txn, operations: OperationLog, filter: Filter, position: int, traffic: TrafficRecord
    ) -> None:
        """Make ``filter`` the next generation and commit."""
        checkpoint, sums = self._write_checkpoint(txn, filter, Checkpoint.of(position, position, position))
        composite = generations.composite_of(filter)
        model = composite.model if composite is not None and composite.model_bytes else None
        secret = self.ledger.settings.secret
        self.log.write_model(
            txn,
            model.to_bytes() if model is not None else None,
            model.seal(secret) if model is not None and secret is not None else None,
        )
        self.log.write_traffic(txn, replace(traffic, generation=position, absent=0, false_positives=0))
        flags = FLAG_OMITTED | (FLAG_REMOVED if operations.n_removed else 0)
        record = operations.record(position, position, flags, False)
        filter = self.ledger.shared(filter, checkpoint, txn)  # before others look for it
        with Held(self.ledger.lock):
            self.log.commit(self.writes, txn, position, record, "switch-written", "switch-done")
            self.growth.builder = None
            self._put_in(filter, checkpoint, sums, (traffic.added, traffic.deleted))

    def traffic_so_far(self, txn: Txn, position: int) -> TrafficRecord:
        """The traffic record, with the changes before ``position``."""
        return replace(self.log.read_traffic(txn), added=self.ledger.added, deleted=self.ledger.deleted)

    def transact(self, write: Callable[[Txn], OperationLog]) -> None:
        """A write transaction; ``write`` changes something, and is called again if the map was full."""
        with Writing(self.writes) as txn:
            while True:
                try:
                    self.commit(txn, write(txn))
                    return
                except lmdb.MapFullError:
                    txn = self.writes.begin_again(txn)

    def checkpoint(self, wait: bool = True) -> None:
        """Write the filter into the environment and shorten the log; ``wait`` for who writes, or be Busy."""
        self._alone(self._checkpoint, wait, wait=wait)

    def _checkpoint(self, wait: bool) -> None:
        with Writing(self.writes, wait) as txn:
            while True:
                if self.ledger.filter is None:
                    return
                try:
                    self._commit_checkpoint(txn, OperationLog(), self.log.position(txn))
                    return
                except lmdb.MapFullError:
                    txn = self.writes.begin_again(txn)

    def flush(self, wait: bool = True) -> None:
        """Write what is known of the traffic, in a transaction of its own; ``wait`` for who writes, or be Busy."""
        self._alone(self._flush, wait, wait=wait)

    def _flush(self, wait: bool) -> None:
        with Writing(self.writes, wait) as txn:
            self.traffic.report(txn, self.log, self.ledger.generation)
            self.commit(txn, OperationLog())

    def flush_samples(self, wait: bool = True) -> None:
        """Write the absent keys that this process has drawn, if it may; ``wait`` for who writes, or leave it.

        Whoever writes may be just writing them: until that is committed they are neither here nor there.
        """
        if self.environment.readonly or self.writes.writer == threading.get_ident():
            return
        if self.traffic.n_samples or self.writes.writer:
            with contextlib.suppress(Busy):
                self.flush(wait)

    # --- growing

    def grow_if_due(self, n_operations: int) -> None:
        """After a commit: a step of the next generation, if one is due.

        What was committed is stored whatever becomes of that, so a failure is no error of the caller's; it is tried
        again later, and by the commit that needs it.
        """
        growth = self.growth
        if growth.is_paused(self.ledger.generation):
            return
        try:
            self._grow(n_operations)
        except TimeoutError:
            raise  # from a signal handler
        except self._errors as error:
            if self.environment.handle is not None and growth.has_failed(str(error)):
                log.warning(
                    "%s: the change is stored, but the filter could not be made larger: %s",
                    self.environment.path,
                    error,
                )

    def _grow(self, n_operations: int) -> None:
        ledger, growth = self.ledger, self.growth
        if ledger.filter is None and ledger.full is not None:
            self._grow_full()
            return
        if growth.builder is None and not self._is_due():
            return
        with Held(self._build_lock, blocking=False) as taken:
            if not taken:
                return
            builder = growth.builder
            if builder is None or growth.generation != ledger.generation:
                builder = growth.builder = self._next_builder()
                if builder is None:
                    return
            try:
                self.step(builder, BUILD_KEYS_AT_ONCE + BUILD_KEYS_PER_OPERATION * n_operations)
                if not builder.done and ledger.is_overdue():
                    builder.wait()
                if builder.done:
                    self.switch(builder)
            except FilterFullError:
                growth.builder = None
                growth.misfit = ledger.generation
            except BaseException:
                growth.builder = None  # it may have met a key, and not know that it has
                raise

    def _is_due(self) -> bool:
        """Whether the next generation should be begun."""
        ledger = self.ledger
        if ledger.needs_successor():
            return True
        filter = ledger.filter
        if not isinstance(filter, LayeredFilter):
            return False
        return layers.reads_pay(filter, *self.traffic.reads_of(ledger.generation), ledger.settings.info.fpr)

    def _next_builder(self) -> Builder[Txn] | None:
        """What makes the next generation, if that is still needed."""
        ledger, growth = self.ledger, self.growth
        growth.builder = None
        filter = ledger.filter
        if filter is None or not self._is_due():
            return None
        # One that did not fit into the regions that its predecessor's keys suggested is made without a model.
        before = None if growth.misfit == ledger.generation else filter
        settings = ledger.settings
        n_keys, fpr, secret = len(filter), settings.info.fpr, settings.secret
        with self.log.reading() as txn:
            gathering = layers.next_gathering(before, n_keys, fpr, secret) if self._is_layered(txn) else None
        growth.generation = ledger.generation
        if gathering is not None:
            return self.new_builder(gathering)
        return self.new_builder(generations.successor(before, n_keys, fpr, secret))

    def _is_layered(self, txn: Txn) -> bool:
        """Whether a filter that has grown may be a layered one: unless the last rebuild was for tables."""
        if self.ledger.settings.why_tables:
            return False
        build = self.log.read_build(txn)
        return build is None or not build.tables

    def _grow_full(self) -> None:
        """Our last commit brought a region more keys than it has room for: make a larger filter now.

        The next commit would do it, too, but that may be a day away, and until then every read would go to the data.
        """
        with Writing(self.writes) as txn:
            while True:
                if self.ledger.filter is not None or self.ledger.trouble.kind != FULL:
                    return
                try:
                    self._commit_grown(txn, OperationLog(), self.log.position(txn))
                    return
                except lmdb.MapFullError:
                    txn = self.writes.begin_again(txn)

    def step(self, builder: Builder[Txn], n_keys: int) -> tuple[int, int]:
        """Let a builder pass up to ``n_keys`` keys; returns how many it passed, and at which position."""
        return self._within(self._step, builder, n_keys)

    def _step(self, builder: Builder[Txn], n_keys: int) -> tuple[int, int]:
        with self.log.reading() as txn:
            return builder.step(txn, n_keys), self.log.position(txn)

    def build(self, builder: Builder[Txn], n_keys: int, progress: Callable[[int, int], None]) -> None:
        """Fill a builder's filter up to the newest position but a few."""
        passed = 0
        # Five times outrun by writers: the switch will do the rest while they wait.
        while builder.restarts < 5:
            before, restarts = builder.applied, builder.restarts
            n_passed, now = self.step(builder, BUILD_KEYS_PER_STEP)
            passed = passed + n_passed if builder.restarts == restarts else 0
            progress(min(passed, n_keys), n_keys)
            builder.wait()
            if builder.done and now - before <= CLOSE_RECORDS:
                return

    def switch(self, builder: Builder[Txn], prepare: Prepare | None = None) -> None:
        """Make a finished builder's filter the one that answers, in one transaction.

        ``prepare`` is called with the transaction and its position, and writes what else belongs to the new generation.
        """
        self._within(self._switch, builder, prepare or self.traffic_so_far)

    def _switch(self, builder: Builder[Txn], prepare: Prepare) -> None:
        with Writing(self.writes) as txn:
            while True:
                steps.reached("switch-began")
                position = self.log.position(txn)
                try:
                    builder.finish(txn)
                    traffic = prepare(txn, position)
                    self._write_generation(txn, OperationLog(), builder.filter, position, traffic)
                    return
                except lmdb.MapFullError:
                    txn = self.writes.begin_again(txn)
