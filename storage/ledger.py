"""This process's copy of the filter: loaded from a checkpoint, kept current by following the log.

A ledger is either complete for one position (``applied``) or unusable, with a reason.  Nothing in between is ever
visible: the filter that answers changes in one compiled call, and an exception in the middle of it drops the filter.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

import lmdb
import numpy as np
import numpy.typing as npt

from dlbf.errors import ChecksumError, DlbfError, FormatError, VersionError
from dlbf.filters.base import Filter
from dlbf.filters.layered import LayeredFilter
from dlbf.kernels.journal import OperationLog, read_record
from dlbf.kernels.ledger import LedgerCore
from dlbf.kernels.locks import Held
from dlbf.storage import generations, layers
from dlbf.storage.layout import FLAG_OMITTED, FLAG_REMOVED, STATE_BROKEN, Checkpoint, StoreInfo
from dlbf.storage.log import Log, Record, View
from dlbf.storage.sharing import SharedBases
from dlbf.storage.trouble import DAMAGE, FULL, SECRET, VERSION, Trouble, Unusable

__all__ = ["Ledger", "Settings", "Sizes"]

log = logging.getLogger("dlbf.storage")

# A shorter log is never worth a checkpoint.
MIN_LOG_BYTES = 128 * 1024
# Bytes of records per byte of the filter that make a checkpoint due: writing it costs a loader as much as a quarter of
# the records, replaying them a reader some ten nanoseconds per byte of the filter.
LOG_SHARE = 4
# Loading a filter of so many bytes takes less than a millisecond.
LOAD_ASIDE_BYTES = 1 << 20


@dataclass(slots=True)
class Settings:
    """What a filter is made for, and with which secret."""

    where: str  # for messages
    info: StoreInfo
    secret: bytes | None
    why_tables: str = ""  # why the filter may not be a layered one; empty: it may
    remember_bytes: int | None = (
        None  # of absent keys that a layered one may remember; None: see ``dlbf.storage.layers``
    )
    bases: SharedBases = field(init=False)  # those that processes have in common

    def __post_init__(self) -> None:
        self.bases = SharedBases(Path(self.where))


@dataclass(slots=True)
class Sizes:
    """When another filter is due."""

    capacity: int = 0
    grow_at: int = 0
    shrink_at: int = 0
    look_again_at: int = 0  # operations after which a region of a learned filter may be nearly full

    @classmethod
    def of(cls, filter: Filter, look_again_at: int) -> "Sizes":
        """Those of a filter."""
        capacity = generations.capacity_of(filter)
        return cls(capacity, generations.grow_at(capacity), generations.shrink_at(capacity), look_again_at)


class Ledger(LedgerCore, Generic[View]):
    """See the module.  ``lock`` guards everything here, except where a method says that the caller needs none.

    Parameters
    ----------
    log : Log
    settings : Settings
    on_adopt : callable, optional
        Called with the generation whenever another filter is put in.
    is_open : callable, optional
        Whether the log may be followed: not when the map is about to go, which waits for ``lock``.
    """

    def __init__(
        self,
        log: Log[View],
        settings: Settings,
        on_adopt: Callable[[int], None] | None = None,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self.log = log
        self.settings = settings
        self.trouble = Trouble()
        self.sizes = Sizes()
        self.checkpoint: Checkpoint | None = None
        self.sums = b""  # of the checkpoint's pieces
        self.log_limit = MIN_LOG_BYTES
        self._on_adopt = on_adopt
        self._is_open = is_open
        self._unusable_at = -1  # the newest position when there was no usable filter: another one may bring one
        self._loader: threading.Thread | None = None

    # --- what answers

    def adopt(self, filter: Filter, checkpoint: Checkpoint, sums: bytes) -> None:
        """Go on with a filter that was just read or written as ``checkpoint``; ``offer`` may follow.

        There is none until everything about it is known: an exception from a signal handler must leave no filter with
        the position of another, because what it knows already would be followed again.
        """
        before = self.filter
        self.drop()
        self.sizes = Sizes.of(filter, self.n_operations)
        self.log_limit = max(MIN_LOG_BYTES, LOG_SHARE * filter.nbytes)
        self.removed = checkpoint.removed
        self.generation = checkpoint.generation
        self.checkpoint = checkpoint
        self.log_bytes = 0
        self.sums = sums
        self.trouble.clear()
        self.full = None
        if isinstance(filter, LayeredFilter):
            # Only where what was read says all that there was: see ``dlbf.storage.engines.base.why_tables``.
            layers.limit_absent(filter, 0 if self.settings.why_tables else self.settings.remember_bytes)
            if isinstance(before, LayeredFilter):
                filter.absent.carry_counts(before.absent)
        if self._on_adopt is not None:
            self._on_adopt(self.generation)
        self.applied = checkpoint.txn_id
        self.filter = filter

    def shared(self, filter: Filter, checkpoint: Checkpoint, txn: View) -> Filter:
        """A filter that was just written as a checkpoint; its base is in memory that other processes use too, if it has
        one and that is possible."""
        if not isinstance(filter, LayeredFilter):
            return filter
        if not self.log.maps_filters:
            return self.settings.bases.share(filter, checkpoint.generation)
        try:
            return self._read_filter(txn, checkpoint)[0]  # what others map
        except Unusable as error:
            log.debug("%s: this process has a copy of its own: %s", self.settings.where, error)
            return filter

    def state(self) -> tuple[str, str]:
        """ "filtering" or "pass-through", and why; the caller needs no lock."""
        if self.word.newest() is None:
            return "pass-through", "LMDB's meta pages cannot be watched"
        if not self.is_current():
            self.refresh(wait=True)
        if self.filter is None and self.trouble.reason:
            return "pass-through", self.trouble.reason
        return "filtering", ""

    def ask_many(self, keys: list[bytes]) -> tuple[npt.NDArray[np.bool_] | None, int]:
        """The filter's answers and the position they are of; None if it may not be asked.  Needs no lock."""
        if not self.is_current() and not self.refresh():
            return None, 0
        epoch, position = self.epoch, self.complete_for()
        filter = self.answering() if self.is_current() else None
        if filter is None or position is None:
            return None, 0
        answers = filter.contains_many(keys)
        if self.epoch == epoch:
            return answers, position
        # The filter changed while it was being asked; between two changes of one transaction it may have lacked a key.
        with Held(self.lock):
            filter, position = (self.answering() if self.is_current() else None), self.complete_for()
            return (None, 0) if filter is None or position is None else (filter.contains_many(keys), position)

    # --- when another one is due

    def needs_successor(self) -> bool:
        """Whether the filter, or a region of it, is nearly full; or it is mostly empty."""
        filter, sizes = self.filter, self.sizes  # another thread may drop it
        if filter is None:
            return False
        if isinstance(filter, LayeredFilter):
            return layers.is_due(filter)
        if not sizes.shrink_at <= len(filter) <= sizes.grow_at:
            return True
        if self.n_operations < sizes.look_again_at or not generations.is_learned(filter):
            return False
        # Counting what is in each region takes a while; it cannot be too much before so many keys have come.
        slack = generations.slack(filter)
        sizes.look_again_at = self.n_operations + slack
        return slack <= 0

    def is_overdue(self) -> bool:
        """Whether more keys have come than were planned for, so that writers should let the next filter be made."""
        filter = self.filter
        return isinstance(filter, LayeredFilter) and filter.n_added > filter.planned_added

    def has_room(self, operations: OperationLog) -> bool:
        """Whether the filter, which must be there, can take a transaction."""
        if isinstance(self.filter, LayeredFilter):
            return layers.has_room(self.filter, operations)
        return bool(len(self.filter) + operations.n_most <= self.sizes.capacity)

    def quiet_changes(self) -> int:
        """How many changes of one key may follow before another filter can be due."""
        filter, sizes = self.filter, self.sizes  # another thread may drop it
        if filter is None:
            return 0
        if isinstance(filter, LayeredFilter):
            return layers.quiet_changes(filter)
        n_keys = len(filter)
        quiet = min(sizes.grow_at - n_keys, n_keys - sizes.shrink_at)
        if generations.is_learned(filter):
            quiet = min(quiet, sizes.look_again_at - self.n_operations)
        return max(0, quiet)

    # --- catching up

    def refresh(self, wait: bool = False, txn: View | None = None) -> bool:
        """Bring the filter up to date, or to what the view ``txn`` sees; False if it cannot be used now.

        One that takes a while to load is loaded aside, and until then the data are read, unless the caller wants to
        ``wait``.  Needs no lock.
        """
        newest = self.word.newest()
        if newest is None or newest == self._unusable_at:
            return False
        # In this order: beginning to read may have to follow a map that has grown, which takes the writers' lock, and
        # writers wait for the ledger.
        if txn is None:
            with self.log.reading(buffers=True) as txn:
                return self._refresh(txn, wait)
        return self._refresh(txn, wait)

    def _refresh(self, txn: View, wait: bool) -> bool:
        if not self._is_open():
            return False
        with Held(self.lock, wait) as taken:
            if not taken:
                return False
            if self.is_current():
                return True
            if not wait and self.filter is None and self._is_large(txn):
                self._load_aside()
                return False
            now = self.log.position(txn)
            if self.catch_up(txn, now):
                self.offer()
                return True
            self._unusable_at = now
            return False

    def _is_large(self, txn: View) -> bool:
        checkpoint = self.log.read_checkpoint(txn)
        return checkpoint is not None and checkpoint.n_bytes > LOAD_ASIDE_BYTES

    def _load_aside(self) -> None:
        """Load the filter in a thread of its own."""
        if self._loader is not None and self._loader.is_alive():
            return

        def load() -> None:
            newest = self.word.newest()
            try:
                self.refresh(wait=True)
            except Exception as error:
                if not self.trouble.quiet:
                    log.warning("%s: reading without the filter until the next commit: %s", self.settings.where, error)
                self._unusable_at = -1 if newest is None else newest
            finally:
                self._loader = None

        self._loader = threading.Thread(target=load, name="dlbf-loader", daemon=True)
        try:
            self._loader.start()
        except RuntimeError as error:  # there are too many threads, or the interpreter is about to end
            self._loader = None
            log.debug("%s: the filter is not loaded: %s", self.settings.where, error)

    def end_loading(self, patience_seconds: float) -> bool:
        """Before closing: wait for the thread that loads the filter; False if it has not ended."""
        self.trouble.quiet = True  # it will fail, and is right to
        thread = self._loader
        if thread is None or not thread.is_alive():
            return True
        thread.join(patience_seconds)
        return not thread.is_alive()

    def catch_up_before(self, txn: View) -> None:
        """A write transaction has begun: be current then, if that can be."""
        now = self.log.position(txn) - 1
        if self.filter is None or self.applied != now:
            with Held(self.lock):
                if self.catch_up(txn, now):
                    self.offer()

    def catch_up(self, txn: View, now: int) -> bool:
        """Become complete for position ``now``, the one that the view sees; False if that is impossible."""
        try:
            if self.filter is not None and (self.applied >= now or self._replay(txn, now)):
                return True
            self._load(txn, now)
            return True
        except (Unusable, lmdb.Error) as error:
            self.fail(error, txn)
            return False
        except BaseException:
            self.drop()
            raise

    def fail(self, error: "Unusable | lmdb.Error", txn: View) -> None:
        """There is no filter that can be used."""
        trouble = self.trouble
        self.drop()
        if isinstance(error, Unusable):
            trouble.reason, trouble.kind = str(error), error.kind
        else:
            trouble.reason = f"LMDB cannot read the filter or its journal ({error}); run rebuild()"
            trouble.kind = DAMAGE
        try:
            trouble.failed_record = self.log.checkpoint_record(txn)
        except lmdb.Error:
            trouble.failed_record = None
        trouble.tell(self.settings.where)

    def _replay(self, txn: View, now: int) -> bool:
        """Follow the log; False if loading the checkpoint is needed."""
        while self.applied < now:
            position = self.applied + 1
            problem = "another program wrote to the environment "
            try:
                run = self.log.read_run(txn, position)
            except FormatError as error:
                run, problem = [], f"{error} "
            if not run:
                checkpoint = self.log.read_checkpoint(txn)
                if checkpoint is not None and checkpoint.txn_id > self.applied:
                    return False
                raise Unusable(f"{problem}(transaction {position} of {now} has no journal record); run rebuild()")
            for number, record in run:
                if number <= now and not self._replay_record(number, record):
                    return False
        return True

    def _replay_record(self, position: int, record: Record) -> bool:
        try:
            generation, flags, n_operations = read_record(record, position)
            if flags & ~(FLAG_OMITTED | FLAG_REMOVED):
                raise Unusable(f"journal record {position} has unknown flags {flags:#x}; use a newer dlbf", VERSION)
            if generation != self.generation or flags & FLAG_OMITTED:
                return False
            if not self.follow(position, record, n_operations):
                raise Unusable(
                    f"the filter is full at transaction {position}; the next commit makes a larger one", FULL
                )
            return True
        except Unusable:
            raise
        except (DlbfError, ValueError) as error:
            raise Unusable(f"{error}; run rebuild()") from None

    def _load(self, txn: View, now: int) -> None:
        checkpoint = self._usable_checkpoint(txn, now)
        filter, sums = self._read_filter(txn, checkpoint)
        self.adopt(filter, checkpoint, sums)
        traffic = self.log.read_traffic(txn)
        self.added, self.deleted = traffic.added, traffic.deleted
        if not self._replay(txn, now):
            raise Unusable("the journal does not continue the checkpoint; run rebuild()")
        n_keys, n_known = self.log.n_stored(txn), len(self.filter)
        if n_keys is not None and n_keys > n_known:
            # A copy may count its transactions from 1 again, until another program's last one has the number of ours.
            raise Unusable(f"the filter has {n_known} keys, the data {n_keys} (another program wrote); run rebuild()")

    def _usable_checkpoint(self, txn: View, now: int) -> Checkpoint:
        record = self.log.checkpoint_record(txn)
        trouble = self.trouble
        if trouble.failed_record is not None and record == trouble.failed_record and trouble.reason:
            # Nothing has been repaired since; do not read it all again.
            raise Unusable(trouble.reason, trouble.kind)
        try:
            checkpoint = Checkpoint.unpack(record) if record else None
        except VersionError as error:
            raise Unusable(str(error), VERSION) from None
        except FormatError as error:
            raise Unusable(f"{error}; run rebuild()") from None
        if checkpoint is None:
            raise Unusable("the filter's checkpoint is missing; run rebuild()")
        if checkpoint.state == STATE_BROKEN:
            raise Unusable(checkpoint.reason)
        if checkpoint.txn_id > now:
            raise Unusable(
                f"the filter is of transaction {checkpoint.txn_id}, the data of {now} "
                "(a compacted or partly restored copy?); run rebuild()"
            )
        newest = self.log.newest(txn)
        if newest != now:
            raise Unusable(
                f"the journal ends with transaction {newest}, the data with {now} (another program wrote, or this is a "
                "compacted copy); run rebuild()"
            )
        return checkpoint

    def _read_filter(self, txn: View, checkpoint: Checkpoint) -> tuple[Filter, bytes]:
        where = f"{self.settings.where}: filter of generation {checkpoint.generation}"
        blob, sums = self.log.read_filter(txn, checkpoint, where)
        try:
            filter = generations.load(blob, self.settings.secret, where)
        except VersionError as error:
            raise Unusable(str(error), VERSION) from None
        except (FormatError, ChecksumError) as error:
            raise Unusable(f"{error}; run rebuild()") from None
        except ValueError as error:
            lost = self.settings.secret is None
            where = "secret.key is missing or cannot be read, and no secret= was given: " if lost else ""
            raise Unusable(
                f"{where}{error} (or run rebuild() to make a new filter with a new secret)", SECRET
            ) from None
        if not isinstance(filter, LayeredFilter):
            return filter, sums
        if self.log.maps_filters:
            self.settings.bases.note(filter)
            return filter, sums
        return self.settings.bases.share(filter, checkpoint.generation), sums
