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

from dlbf.errors import DlbfError, StoreError
from dlbf.filters.base import Filter
from dlbf.kernels.filelock import Busy
from dlbf.kernels.journal import OperationLog, read_record
from dlbf.kernels.journal import operations as operations_of
from dlbf.kernels.ledger import ABSENT, UNKNOWN
from dlbf.kernels.locks import Held, OwnLock
from dlbf.storage import generations, steps
from dlbf.storage.build import Builder
from dlbf.storage.commits import Commits
from dlbf.storage.engines.building import builder_for
from dlbf.storage.enginesource import EngineSource
from dlbf.storage.environment import Environment
from dlbf.storage.intents import ADDING, NOTHING, REMOVING, LockFile, Note
from dlbf.storage.layers import Gathering
from dlbf.storage.layout import FLAG_OMITTED
from dlbf.storage.ledger import Ledger
from dlbf.storage.lmdbtypes import Txn

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

    def wire(self, environment: Environment, ledger: Ledger[Txn], source: EngineSource, commits: Commits) -> None:
        """What is written to."""
        self.environment = environment
        self.ledger = ledger
        self.source = source
        self.commits = commits

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
        if lock_file.read() and lock_file.note.intent != NOTHING:
            self.resolve()
        if not self.sync and (lock_file.note.unsynced_boot != self._boot or lock_file.note.clean_txn):
            assert self._boot is not None
            lock_file.mark(self._boot)
        steps.reached("guard-locked")

    def mark_clean(self) -> None:
        """Everything to disk, so that a power failure from now on is none of our business."""
        handle = self.environment.handle
        handle.sync(True)
        self.lock_file.mark(self.lock_file.note.unsynced_boot, handle.info()["last_txnid"])

    # --- steps of a change

    def log_keys(self, intent: int, keys: Sequence[bytes], act: Callable[[], object] | None = None) -> None:
        """Log that ``keys`` are added or removed; ``act`` is done between the note and the commit."""
        done = act is None

        def write(txn: Txn) -> OperationLog:
            nonlocal done
            operations = OperationLog()
            for key in keys:
                if intent == ADDING:
                    operations.added(key)
                else:
                    operations.removed(key)
            generation = self.ledger.generation if self.ledger.filter is not None else 0
            # The log tells which keys are added, unless the commit makes a checkpoint: see resolve().
            noted = keys if intent == REMOVING or self.source.engine.in_flight else ()
            self.lock_file.intend(intent, self.commits.log.position(txn), generation, noted)
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
        self.lock_file.settle()
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
        lock_file, in_flight = self.lock_file, self.source.engine.in_flight
        if new:
            self.log_keys(ADDING, new)
        if old and in_flight:
            # Theirs may arrive late as well, after a delete by whoever comes next.
            lock_file.intend(ADDING, lock_file.note.txn_id, lock_file.note.generation, [*new, *old])
        try:
            store()
            steps.reached("guard-engine-written")
        except BaseException as error:
            with contextlib.suppress(Exception):
                if in_flight:
                    # It may yet arrive, an old key also after a delete that is answered before it.
                    self.remember([*new, *old])
                    lock_file.settle()
                else:
                    self.resolve()
            if isinstance(error, StoreError):
                with contextlib.suppress(Exception):
                    self.on_refusal()
            raise
        if new:
            self.settle(len(new))
        elif in_flight:
            lock_file.settle()

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
        there = keys
        if not checked:
            there = [key for key, yes in zip(keys, self.existing(keys), strict=True) if yes]
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

    def new_builder(self, filter: Filter | Gathering) -> Builder[Txn]:
        """What fills an empty filter with the engine's keys, step by step."""
        assert not isinstance(filter, Gathering)  # no layers: see ``Settings.layered``
        self.within(self.forget_late)
        log = self.commits.log
        with log.reading() as txn:
            n_late = len(self.source.late.keys(txn))
        if n_late:
            # Nobody has counted them.
            filter = generations.enlarged(filter, 1 + n_late / max(1, generations.capacity_of(filter)))
        return builder_for(log, filter, self.source.engine, self.source.late)

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
        note, engine = self.lock_file.note, self.source.engine
        if engine.in_flight:
            self.remember(self._announced(note))
        else:
            doubtful = self._unfinished(note)
            try:
                there = engine.has_many(doubtful) if doubtful else []
            except Exception as error:
                raise StoreError(
                    f"{self.environment.path}: a writer died in the middle of a change, and the engine cannot be asked "
                    f"what became of it ({error}); repair the engine"
                ) from error
            gone = [key for key, yes in zip(doubtful, there, strict=True) if not yes]
            if gone:
                self.log_keys(REMOVING, gone)
                steps.reached("guard-resolved")
        self.lock_file.settle()

    def _unfinished(self, note: Note) -> list[bytes]:
        """Keys that are certainly in the filter, and may not be in the engine."""
        log = self.commits.log
        with log.reading() as txn:
            checkpoint = log.read_checkpoint(txn)
            try:
                run = log.read_run(txn, note.txn_id)
            except DlbfError:
                run = []
            newest = log.position(txn)
        if checkpoint is None or checkpoint.generation != note.generation:
            return []
        if note.intent == REMOVING:
            # Not logged: its transaction would be there.
            return list(note.keys) if newest < note.txn_id else []
        try:
            if not run or read_record(run[0][1], note.txn_id)[1] & FLAG_OMITTED:
                return []
        except DlbfError:
            return []
        return [key for removal, key in operations_of(run[0][1]) if not removal]

    def _announced(self, note: Note) -> list[bytes]:
        """Keys that are certainly in the filter, and whose writes may still arrive."""
        log = self.commits.log
        with log.reading() as txn:
            if note.intent != ADDING or log.position(txn) < note.txn_id:
                return []
            if note.keys:
                return list(note.keys)
            try:
                run = log.read_run(txn, note.txn_id)
                return [key for removal, key in operations_of(run[0][1]) if not removal] if run else []
            except DlbfError:
                return []
