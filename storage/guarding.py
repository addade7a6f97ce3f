"""How a guard writes: order instead of a common transaction, one writer, and notes for whoever comes after a crash.

*Order.*  A new key is logged before the engine stores it, a deleted one after the engine has deleted it.  So at every
moment the filter knows all keys of the engine, and perhaps one batch more.

*One writer.*  From the question whether a key is there to the last step of the change, one thread of one process is at
work (``dlbf.storage.intents``); readers never wait.

*Notes.*  The writer notes what it is about to do.  If it dies, the next writer finds the note, asks the engine, and
takes back what was announced and did not happen.  It does so only if log and generation prove that the entry is still
there: an entry for nothing is harmless, taking one out twice is not.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple

from dlbf.errors import StoreError
from dlbf.filters.base import Filter
from dlbf.kernels.filelock import Busy
from dlbf.kernels.filelog import ADDING, LATE, NOTHING, REMOVING
from dlbf.kernels.guardchanges import GuardChanges
from dlbf.kernels.journal import OperationLog
from dlbf.kernels.journal import operations as operations_of
from dlbf.kernels.ledger import ABSENT, UNKNOWN
from dlbf.kernels.locks import Held, OwnLock
from dlbf.storage import generations, steps
from dlbf.storage.build import Builder
from dlbf.storage.commits import Commits
from dlbf.storage.engines.building import builder_for
from dlbf.storage.enginesource import EngineSource
from dlbf.storage.environment import Environment
from dlbf.storage.filelog import FileLog
from dlbf.storage.intents import LockFile
from dlbf.storage.layers import Gathering
from dlbf.storage.ledger import Ledger
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.lockwatch import LockWatch
from dlbf.storage.log import Record
from dlbf.storage.traffic import Traffic
from dlbf.storage.weak import weakly

__all__ = ["GuardedWrites"]

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class GuardedWrites:
    """See the module.

    Parameters
    ----------
    lock_file : LockFile
    boot : bytes or None
        This boot of the machine.
    sync : bool
        Whether each commit is on disk before the engine is written.
    """

    environment: Environment
    log: FileLog
    ledger: Ledger[Txn]
    source: EngineSource
    commits: Commits

    def __init__(self, lock_file: LockFile, boot: bytes | None, sync: bool) -> None:
        self.lock_file = lock_file
        self.sync = sync
        self._boot = boot
        # Whether a change is under way is what this lock says itself, so that no interruption can make it wrong.
        self.mutex = OwnLock()
        # Called when the engine has refused a write: it may have become another directory's.
        self.on_refusal: Callable[[], object] = bool
        self._changes: GuardChanges | None = None
        self.watch = LockWatch()

    def wire(
        self, environment: Environment, log: FileLog, ledger: Ledger[Txn], source: EngineSource, commits: Commits
    ) -> None:
        """What is written to."""
        self.environment = environment
        self.log = log
        self.ledger = ledger
        self.source = source
        self.commits = commits

    def single_changes(self, traffic: Traffic) -> GuardChanges | None:
        """What changes one key without Python around it; None where an engine needs more than that."""
        engine = self.source.engine
        if engine.in_flight or engine.tells or self.environment.readonly:
            return None
        self._changes = GuardChanges(
            self.environment,
            self.log,
            self.ledger,
            traffic,
            self.mutex,
            self.lock_file.writer,
            engine,
            weakly(self.has_failed),
            weakly(self.commits.grow_if_due),
            None if self.sync else self._boot,
            self.watch.begin,
        )
        self.watch.of(self._changes)
        return self._changes

    def allow_quick_changes(self) -> None:
        """Let so many changes of one key follow without a look whether another filter is due."""
        if self._changes is not None and self.commits.growth.builder is None:
            self._changes.allow(self.ledger.quiet_changes())

    # --- one writer at a time

    def alone(self, change: Callable[[*Arguments], Result], /, *arguments: *Arguments, wait: bool = True) -> Result:
        """Do something as the writer, of whom there is one; what a dead one left is settled first.

        Unless the caller wants to ``wait`` it is Busy if there is another one.

        The exception of a signal handler may come wherever a call has returned or a function of Python begins.  So
        both locks are given back by compiled code that nothing of Python comes before.
        """
        self.environment.check()
        if self.environment.readonly:
            raise StoreError(f"{self.environment.path}: opened with readonly=True; open it again to write")
        self.refuse_within_change()
        with Held(self.mutex, wait) as taken:
            if not taken:
                raise Busy(f"{self.environment.path}: another thread is in the middle of a change; try again later")
            self.environment.refuse_while_closing()  # that may have begun while we waited
            return self.as_writer(change, *arguments, wait=wait)

    def as_writer(self, change: Callable[[*Arguments], Result], /, *arguments: *Arguments, wait: bool = True) -> Result:
        """The same, with the threads' lock held."""
        lock_file = self.lock_file
        try:
            self._become_writer(wait)
            return change(*arguments)
        finally:
            lock_file.unlock()

    def within(self, part: Callable[[*Arguments], Result], /, *arguments: *Arguments, wait: bool = True) -> Result:
        """Do a part of a change, or the same by itself; whoever calls this knows which, and is no signal handler."""
        return part(*arguments) if self.mutex.is_mine() else self.alone(part, *arguments, wait=wait)

    def refuse_within_change(self) -> None:
        """Raise if this thread is in the middle of a change."""
        if self.mutex.is_mine():
            raise StoreError(
                "this thread is in the middle of a change through the guard; a signal handler or a finalizer, or the "
                "engine itself, cannot make another one then. Do it later"
            )

    def _become_writer(self, wait: bool) -> None:
        lock_file = self.lock_file
        if not lock_file.lock(wait):
            raise Busy(f"{self.environment.path}: another process is in the middle of a change; try again later")
        file = self.log.folder.newest_file()
        if file.head.noted()[0] != NOTHING:
            self.resolve()
            file = self.log.folder.newest_file()
        if not self.sync and (file.head.boot != self._boot or file.head.clean):
            assert self._boot is not None
            file.head.mark(self._boot)
            file.sync()
        steps.reached("guard-locked")

    def mark_clean(self) -> None:
        """Everything to disk, so that a power failure from now on is none of our business."""
        folder = self.log.folder
        file = folder.newest_file()
        folder.sync()
        file.head.mark(file.head.boot, file.head.newest())
        file.sync()

    # --- steps of a change

    def log_keys(self, intent: int, keys: Sequence[bytes], act: Callable[[], object] | None = None) -> None:
        """Log that ``keys`` are added or removed; ``act`` is done between the note and the commit."""
        done = act is None

        def write(txn: Txn) -> OperationLog:
            nonlocal done
            operations = OperationLog()
            operations.add_all(list(keys), intent == REMOVING)
            generation = self.ledger.generation if self.ledger.filter is not None else 0
            # The record of this commit tells which keys are added; one of what is removed comes too late for that.
            position = self.log.position(txn)
            self.log.intend(intent, position, generation, operations if intent == REMOVING else None)
            steps.reached("guard-intent-written")
            if not done:
                assert act is not None
                act()
                done = True
                steps.reached("guard-engine-written")
            return operations

        self.commits.transact(write)
        steps.reached("guard-journaled")

    def settle(self, n_keys: int) -> None:
        """A change is complete."""
        self.log.settle()
        steps.reached("guard-intent-cleared")
        self.commits.grow_if_due(n_keys)

    def exists(self, key: bytes) -> bool:
        """Whether a key is in the engine; one that the filter denies needs no question."""
        answer = self.ledger.ask(key)
        if answer == UNKNOWN and self.ledger.refresh():
            answer = self.ledger.ask(key)
        return answer != ABSENT and self.source.engine.has(key)

    def existing(self, keys: list[bytes]) -> list[bool]:
        """Which keys are in the engine; those that the filter denies need no question."""
        places = self.maybe(keys)
        out = [False] * len(keys)
        if places:
            for i, there in zip(places, self.source.engine.has_many([keys[i] for i in places]), strict=True):
                out[i] = there
        return out

    def found(self, keys: list[bytes]) -> list[bytes]:
        """Those of the keys that are in the engine."""
        if len(keys) == 1:
            return keys if self.exists(keys[0]) else []
        return [key for key, yes in zip(keys, self.existing(keys), strict=True) if yes]

    def maybe(self, keys: list[bytes]) -> Sequence[int]:
        """The places of keys that the filter does not deny."""
        answers, _ = self.ledger.ask_many(keys)
        return range(len(keys)) if answers is None else answers.nonzero()[0].tolist()

    def store(self, new: list[bytes], old: list[bytes], store: Callable[[], object]) -> None:
        """Let the engine store keys of which some are ``new``."""
        late = self.late_keys(new)
        if late:
            old = [*old, *(key for key in new if key in late)]
            new = [key for key in new if key not in late]
        in_flight = self.source.engine.in_flight
        if new:
            self.log_keys(ADDING, new)
        if in_flight:
            # Those of old keys may arrive late as well, after a delete by whoever comes next.
            self._announce([*new, *old])
        try:
            store()
            steps.reached("guard-engine-written")
        except BaseException as error:
            if in_flight:
                with contextlib.suppress(Exception):
                    # It may yet arrive, an old key also after a delete that is answered before it.
                    self.remember([*new, *old])
                    self.log.settle()
            self.has_failed(error)
            raise
        if new:
            self.settle(len(new))
        elif in_flight:
            self.log.settle()

    def has_failed(self, error: BaseException) -> None:
        """A write of the engine has ended with an exception, which will be raised."""
        with contextlib.suppress(Exception):
            self.resolve()
        if isinstance(error, StoreError):
            with contextlib.suppress(Exception):
                self.on_refusal()

    def _announce(self, keys: Sequence[bytes]) -> None:
        """Note keys whose writes are about to be sent."""
        operations = OperationLog()
        operations.add_all(list(keys), False)
        self.log.intend(LATE, self.log.folder.newest_file().head.newest(), self.ledger.generation, operations)

    def delete(self, keys: list[bytes], checked: bool = False) -> list[bytes]:
        """Delete those of the keys that are there, and tell which; ``checked``: all of them are."""
        engine = self.source.engine
        if engine.tells:
            # Nothing to ask first: the answer to the delete says what was there.
            keys = [keys[i] for i in self.maybe(keys)]
            steps.reached("guard-checked")
            told = (engine.delete_many(keys) if keys else None) or []
            steps.reached("guard-engine-written")
            there = [key for key, yes in zip(keys, told, strict=True) if yes]
            late = self.late_keys(there)
            if gone := [key for key in there if key not in late]:
                self.log_keys(REMOVING, gone)
                self.settle(len(gone))
            return there
        there = keys if checked else self.found(keys)
        steps.reached("guard-checked")
        if not there:
            return []

        def act() -> None:
            engine.delete_many(there)
            if self.sync:
                engine.sync()

        late = self.late_keys(there)
        if not (gone := [key for key in there if key not in late]):
            act()
            return there
        try:
            self.log_keys(REMOVING, gone, act)
        except BaseException:
            with contextlib.suppress(Exception):
                self.resolve()
            raise
        self.settle(len(gone))
        return there

    # --- writes that may still arrive

    def late_keys(self, keys: Sequence[bytes]) -> frozenset[bytes]:
        """Keys that are listed because their writes may still arrive, if any of ``keys`` may be among them."""
        if not keys or not self.source.engine.in_flight:
            return frozenset()
        with self.environment.reading() as txn:
            return self.source.late.keys(txn)

    def remember(self, keys: Sequence[bytes]) -> None:
        """List keys that the filter has entries for, and whose writes may still arrive."""

        def write(txn: Txn) -> OperationLog:
            self.source.late.add(txn, self.commits.log.position(txn), keys)
            return OperationLog()

        if keys:
            self.commits.transact(write)

    def new_builder(self, empty: Filter | Gathering) -> Builder[Txn]:
        """What fills an empty filter, or makes a layered one, from the engine's keys, step by step."""
        self.within(self.forget_late)
        log = self.commits.log
        with log.reading() as txn:
            n_late = len(self.source.late.keys(txn))
        if n_late and not isinstance(empty, Gathering):
            # Nobody has counted them.
            empty = generations.enlarged(empty, 1 + n_late / max(1, generations.capacity_of(empty)))
        return builder_for(log, empty, self.source.engine, self.source.late)

    def forget_late(self) -> None:
        """Take keys from the list whose writes will not arrive any more."""

        def write(txn: Txn) -> OperationLog:
            self.source.late.forget_old(txn)
            return OperationLog()

        with self.environment.reading() as txn:
            has_old = self.source.late.has_old(txn)
        if has_old:
            self.commits.transact(write)

    # --- what a dead writer left

    def resolve(self) -> None:
        """Settle what a writer has noted and did not bring to its end."""
        intent, record = self.log.intended()
        keys = [key for _, key in operations_of(record)] if record is not None else []
        engine = self.source.engine
        if engine.in_flight:
            if intent in (ADDING, LATE):
                self.remember(keys)
        elif keys and not engine.revives and self._are_known(record):
            try:
                there = engine.has_many(keys)
            except Exception as error:
                raise StoreError(
                    f"{self.environment.path}: a writer died in the middle of a change, and the engine cannot be asked "
                    f"what became of it ({error}); repair the engine"
                ) from error
            gone = [key for key, yes in zip(keys, there, strict=True) if not yes]
            if gone:
                self.log_keys(REMOVING, gone)
                steps.reached("guard-resolved")
        self.log.settle()

    def _are_known(self, record: Record | None) -> bool:
        """Whether the keys of a record are certainly in the filter: it is of the same generation."""
        with self.log.reading() as txn:
            checkpoint = self.log.read_checkpoint(txn)
        if record is None or checkpoint is None:
            return False
        return int.from_bytes(record[16:24], "little") == checkpoint.generation
