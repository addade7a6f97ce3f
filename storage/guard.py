"""The filter of a store before any other engine.

The data stay where they are, in an engine that knows nothing of this; the filter, its journal and its checkpoints are
in an LMDB environment of the guard's own, and everything there works as in ``dlbf.storage.store``.  What is
different:

*Order instead of a common transaction.*  A new key is journaled before the engine stores it, a deleted one after the
engine has deleted it.  So at every moment the filter knows all keys of the engine, and perhaps one batch more.

*One writer.*  From the question whether a key is there to the last step of the change, one thread of one process is at
work (``dlbf.storage.intents``); readers never wait.

*Notes.*  The writer notes what it is about to do.  If it dies, the next writer finds the note, asks the engine, and
takes back what was announced and did not happen.  It does so only if journal and generation prove that the entry is
still there: an entry for nothing is harmless, taking one out twice is not.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import lmdb

from dlbf.errors import DlbfError, FormatError, StoreError
from dlbf.kernels.filelock import Busy
from dlbf.kernels.hashing import checksum64
from dlbf.kernels.journal import OperationLog, read_record
from dlbf.kernels.journal import operations as operations_of
from dlbf.kernels.keys import read_keys
from dlbf.kernels.methods import own_methods
from dlbf.kernels.readpath import Attempt, Writing
from dlbf.storage import generations, journal, steps
from dlbf.storage.build import Builder
from dlbf.storage.engines import Adapter, engine_for
from dlbf.storage.engines.base import PlainAdapter, keys_of
from dlbf.storage.engines.building import builder_for
from dlbf.storage.engines.late import LateKeys
from dlbf.storage.intents import ADDING, LOCK_FILE, NO_BOOT, NOTHING, REMOVING, LockFile, Note, boot_id
from dlbf.storage.layout import (
    CHECKPOINT_KEY,
    DATA_FILE,
    FLAG_OMITTED,
    GUARD_KEY,
    READERS_FILE,
    SECRET_FILE,
    STATE_BROKEN,
    Checkpoint,
    GuardInfo,
    Traffic,
)
from dlbf.storage.longkeys import Databases
from dlbf.storage.owner import ID_FILE, owner_name
from dlbf.storage.rebuild import Progress
from dlbf.storage.replica import DAMAGE, SECRET, Unusable, read_checkpoint
from dlbf.storage.report import RebuildReport, Verification
from dlbf.storage.store import CLOSE_PATIENCE_SECONDS, Store, check_lock_timeout, check_path
from dlbf.storage.transactions import Key, Snapshot, WriteTransaction, as_items, as_key, as_value
from dlbf.storage.views import KeysRange

__all__ = ["Guard"]

log = logging.getLogger("dlbf.storage")
# A directory with none of these is not a guard's.
OWN_FILES = {LOCK_FILE, ID_FILE, SECRET_FILE, DATA_FILE, READERS_FILE}

# Keys that are changed together: one commit, and one question to the engine, for so many.
BATCH_KEYS = 8192
ITEMS_PER_READ = 256
SYNC_MODES = ("full", "none")
UNATTACHED = "the engine's keys have not been read yet; run attach()"


@own_methods("get")
class Guard(Store):
    """A mapping of bytes to bytes in any engine; reads of absent keys do not reach it.

    Parameters
    ----------
    engine : object
        What holds the data: see ``dlbf.storage.engines.engine_for``.  It stays yours: the guard never closes it.
    path : path
        A directory for the filter; it is created if it does not exist.
    fpr : float, optional
        Target false-positive rate of the filter, 0.01 for a new guard.
    attach : bool
        Read the engine's keys at once if there is no filter that can be used: the guard is new, damaged, or was another
        engine's.  False: read without the filter until ``attach`` or ``rebuild``.
    progress : callable, optional
        For that reading: called with the name of the phase, how much is done and how much there is.
    readonly : bool
        Read only; the guard must exist.
    sync : {"full", "none"}
        What a write waits for.  "full": the guard's journal is on disk before the engine stores a new key.  "none":
        nothing; after a power failure the keys are read again at the next opening (this needs Linux), a killed
        process costs nothing.
    secret : bytes, optional
        16 bytes for the keyed hash, as for ``dlbf.storage.Store``, which tells of those below, too.
    keyed : bool
        False for a new guard whose filter anybody can compute.
    map_size : int, optional
        Bytes of address space to start with.
    max_readers : int
        Processes and threads that may read at once.
    sample_misses : bool or int
        Whether to keep a sample of the absent keys that are asked for, or how many of them.
    lock_timeout : float, optional
        Most seconds to wait for another process that is writing.

    Raises
    ------
    StoreError
        If the directory holds something else, the guard is open in this process already, or the engine is guarded by
        another directory (Redis and Valkey tell).
    TypeError
        If the engine is none.

    Notes
    -----
    *Guarantee*: a key that was stored through the guard, or was in the engine when it was attached, is never reported
    absent, whatever step a process dies at.  *Limit*: all writes must go through guards of this directory.  A guard
    cannot see that somebody else has put a key into the engine; ``verify`` tells, ``rebuild`` repairs.

    *Cost of a write*: a counting filter must know whether the key is there.  If it says "absent" that is certain and
    free; else the engine is asked once (``put(key, value, new=True)`` spares it).  A new or deleted key costs one
    commit of the guard's environment besides the engine's own.  Overwriting costs no commit.

    *Threads* may share a guard if they may share the engine.  *Processes* each open their own; one of them writes at
    a time.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> data = {b"apple": b"red"}
    >>> with Guard(data, folder.name, fpr=0.01) as g:
    ...     g[b"banana"] = b"yellow"
    ...     g.get(b"apple"), g.get(b"cherry"), g.stats().filtered, g.verify().ok
    (b'red', None, 1, True)
    >>> sorted(data)
    [b'apple', b'banana']
    >>> folder.cleanup()
    """

    _PLAIN_KEY_BYTES = 0
    _IS_GUARD = True

    def __init__(
        self,
        engine: Any,
        path: str | os.PathLike[str],
        fpr: float | None = None,
        *,
        attach: bool = True,
        progress: Progress | None = None,
        readonly: bool = False,
        sync: str = "full",
        secret: bytes | None = None,
        keyed: bool = True,
        map_size: int | None = None,
        max_readers: int = 254,
        sample_misses: bool | int = True,
        lock_timeout: float | None = None,
    ) -> None:
        if sync not in SYNC_MODES:
            raise ValueError(f"sync must be one of {', '.join(SYNC_MODES)}, found {sync!r}")
        self._boot = boot_id()
        if sync == "none" and self._boot is None:
            raise ValueError('sync="none" needs a system that tells one boot from another (Linux); use sync="full"')
        generations.check_fpr(fpr)
        check_path(path)
        check_lock_timeout(lock_timeout)
        self.engine: Adapter = engine_for(engine)
        self._growth_errors = (*Store._growth_errors, *self.engine.errors)
        self._sync = sync == "full"
        # Whether a change is under way is what this lock says itself, so that no interruption can make it wrong.
        self._mutex: Any = threading.RLock()
        self._late = LateKeys()
        self._lock_file: LockFile | None = None
        self._opened = False
        self._scanned_identity = b""
        folder = Path(path)
        if not readonly:
            if folder.exists() and not folder.is_dir():
                raise StoreError(f"{folder}: expected a directory for the guard, found a file; give it another path")
            folder.mkdir(parents=True, exist_ok=True)
            strange = sorted(entry.name for entry in folder.iterdir())
            if strange and not OWN_FILES & set(strange):
                raise StoreError(
                    f"{folder}: expected an empty or a new directory, found {', '.join(strange[:3])}; "
                    "give the guard a directory of its own"
                )
        is_new = not (folder / LOCK_FILE).exists()
        try:
            self._lock_file = LockFile(folder, readonly, lock_timeout)
        except FileNotFoundError:
            raise StoreError(
                f"{folder}: there is no guard; expected a directory with guard.lock. Check the path"
            ) from None
        options: dict[str, Any] = {
            "readonly": readonly,
            "sync": sync,
            "secret": secret,
            "keyed": keyed,
            "map_size": map_size,
            "max_readers": max_readers,
            "sample_misses": sample_misses,
            "lock_timeout": lock_timeout,
        }
        try:
            if readonly:
                self._lock_file.join_users()
                self._lock_file.read_quietly()
                super().__init__(folder, fpr, **options)
                if self._may_be_behind() or self._lock_file.damaged:
                    self._distrust("the machine stopped while commits were not on disk; open it for writing")
            else:
                self._lock_file.lock()
                try:
                    self._open_or_discard(folder, fpr, options)
                finally:
                    self._lock_file.unlock()
            self._opened = True
            self._check_engine(attach and not readonly, progress)
            if not readonly:
                self._alone(bool)  # what a dead writer left is settled now
        except BaseException:
            self._lock_file.close()
            if is_new and not self._lock_file.path.stat().st_size:
                self._lock_file.path.unlink()  # somebody else's directory
            if getattr(self, "_env", None) is not None:
                self._close()
            raise

    # --- opening and closing

    def _open_or_discard(self, folder: Path, fpr: float | None, options: dict[str, Any]) -> None:
        """Open the environment; one that cannot be trusted is put aside, because all of it can be made again."""
        lock_file = self._lock_file
        assert lock_file is not None
        lock_file.join_users()
        lock_file.read()
        if self._may_be_behind():
            self._discard(folder, "the machine stopped while commits were not on disk")
        elif lock_file.damaged and lock_file.only_user():
            # Whether commits were on disk when the machine stopped was written there.
            self._discard(folder, "guard.lock cannot be read")
        try:
            super().__init__(folder, fpr, **options)
        except StoreError as error:
            if not isinstance(error.__cause__, (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError)):
                raise
            self._discard(folder, f"LMDB cannot open it ({error.__cause__})")
            super().__init__(folder, fpr, **options)
        if not lock_file.exists():
            lock_file.mark(NO_BOOT)

    def _may_be_behind(self) -> bool:
        """Whether the environment may lack commits that the engine's changes followed."""
        assert self._lock_file is not None
        note = self._lock_file.note
        return note.unsynced_boot not in (NO_BOOT, self._boot) and not note.clean_txn

    def _discard(self, folder: Path, reason: str) -> None:
        lock_file = self._lock_file
        assert lock_file is not None
        data = folder / DATA_FILE
        if not data.exists():
            return
        if not lock_file.exists() or not lock_file.only_user():
            raise StoreError(
                f"{folder}: the environment cannot be used ({reason}), and it is open in another process or was not "
                "made by a guard; close it there, or choose another directory"
            )
        log.warning("%s: %s; its filter is made again, the old file is kept as data.mdb.damaged", folder, reason)
        data.replace(folder / "data.mdb.damaged")
        with contextlib.suppress(FileNotFoundError):
            (folder / "lock.mdb").unlink()
        lock_file.note = Note()
        lock_file.mark(NO_BOOT)

    def _create(self, txn: Any, dbs: Databases, fpr: float, secret: bytes | None, keyed: bool) -> None:
        super()._create(txn, dbs, fpr, secret, keyed)
        number = txn.id()
        unattached = Checkpoint(number, number, number, number, 0, 0, STATE_BROKEN, UNATTACHED)
        txn.put(CHECKPOINT_KEY, unattached.pack(), db=dbs.meta)
        txn.put(GUARD_KEY, GuardInfo(self._identity()).pack(), db=dbs.meta)

    def _identity(self) -> bytes:
        engine = self.engine.engine if isinstance(self.engine, PlainAdapter) else self.engine
        identity = type(engine).__name__.encode() + b" " + self.engine.identity()
        # Of any length; only whether it is the same matters.
        return checksum64(identity).to_bytes(8, "little") + identity[:80]

    def _check_engine(self, attach: bool, progress: Progress | None) -> None:
        """See whether the filter is this engine's; make it so if ``attach``."""
        replica = self._replica
        replica.quiet = attach
        try:
            if not self._claim():
                return
            self._check_identity(self._identity())
            if not attach:
                return
            state, reason = self._state()
            can_repair = replica.kind == DAMAGE or (replica.kind == SECRET and not self._info.secret_elsewhere)
            if state == "filtering" or not can_repair:
                return
            if reason != UNATTACHED:
                log.warning("%s: reading the engine's keys again: %s", self.path, reason)
            self.attach(progress)
        finally:
            replica.quiet = False

    def _claim(self) -> bool:
        """See that no other directory's guards write the engine, where it can tell; if they do the filter is used no
        more, and a guard that would write is refused."""
        place = f"{socket.gethostname()}:{self.path.absolute()}"
        try:
            self.engine.claim(owner_name(self.path, not self.readonly), place, not self.readonly)
        except StoreError as error:
            self._distrust(f"the engine may have keys of guards of another directory: {error}")
            if not self.readonly:
                raise
            return False
        return True

    def _check_identity(self, identity: bytes) -> bool:
        """Whether the filter was made for the engine of this identity; if not it is used no more."""
        with self._reading() as txn:
            record = txn.get(GUARD_KEY, db=self._dbs.meta)
            checkpoint = read_checkpoint(txn, self._dbs)
        try:
            if record is not None and GuardInfo.unpack(record).identity == identity:
                return True
        except FormatError:
            pass
        if checkpoint is None or checkpoint.state != STATE_BROKEN:
            self._distrust(
                "the filter was made for another engine, or for this one before it was started anew; run rebuild()"
            )
        return False

    def _distrust(self, reason: str) -> None:
        """Use the filter no more, in any process if this one may write."""
        if self.readonly:
            with self._reading() as txn, Attempt(self._lock):
                self._withdraw()
                self._replica._fail(Unusable(reason), txn)
            return
        self._within(self._mark_distrusted, reason)

    def _mark_distrusted(self, reason: str) -> None:
        with Writing(self) as txn:
            with Attempt(self._lock):
                self._withdraw()
                self._replica._fail(Unusable(reason), txn)
            self._commit(txn, OperationLog(), True)

    def close(self) -> None:
        """Let go of the environment, not of the engine; a long journal is checkpointed first.  Twice is allowed."""
        if self._env is not None and not self._was_forked():
            self._refuse_within_change()
        super().close()

    def _without_writers(self, act: Callable[[], object]) -> None:
        with Attempt(self._mutex, timeout=CLOSE_PATIENCE_SECONDS) as taken:
            if not taken:
                raise StoreError(
                    f"{self.path}: another thread has been in the middle of a change through the guard for "
                    f"{CLOSE_PATIENCE_SECONDS:.0f} s; close the guard when the engine has answered"
                )
            super()._without_writers(act)

    def _let_go(self) -> None:
        lock_file = self._lock_file
        if self._opened and self._env is not None and not self._sync and not self.readonly and not self._was_forked():
            # Everything to disk, so that a power failure from now on is none of our business.
            with contextlib.suppress(Exception):
                # Not if another process is changing something: it marks it, too, when it closes.
                self._as_writer(self._mark_clean, wait=False)
        super()._let_go()
        if lock_file is not None:
            lock_file.close()

    def _mark_clean(self) -> None:
        lock_file = self._lock_file
        assert lock_file is not None
        self._env.sync(True)
        lock_file.mark(lock_file.note.unsynced_boot, self._env.info()["last_txnid"])

    # --- one writer at a time

    def _alone(self, change: Callable[..., Any], *arguments: Any, wait: bool = True) -> Any:
        """Do something as the writer, of whom there is one; what a dead one left is settled first.

        Unless the caller wants to ``wait`` it is Busy if there is another one.
        The exception of a signal handler may come wherever a call has returned or a function of Python begins.  So
        both locks are given back by compiled code that nothing of Python comes before.
        """
        self._check_process()
        if self.readonly:
            raise StoreError(f"{self.path}: opened with readonly=True; open it again to write")
        self._refuse_within_change()
        with Attempt(self._mutex, wait) as taken:
            if not taken:
                raise Busy(f"{self.path}: another thread is in the middle of a change; try again later")
            self._refuse_while_closing()  # that may have begun while we waited
            return self._as_writer(change, *arguments, wait=wait)

    def _as_writer(self, change: Callable[..., Any], *arguments: Any, wait: bool = True) -> Any:
        """The same, with the threads' lock held."""
        lock_file = self._lock_file
        assert lock_file is not None
        try:
            self._become_writer(lock_file, wait)
            return change(*arguments)
        finally:
            lock_file.unlock()

    def _refuse_within_change(self) -> None:
        if self._mutex._is_owned():
            raise StoreError(
                "this thread is in the middle of a change through the guard; a signal handler or a finalizer, or the "
                "engine itself, cannot make another one then. Do it later"
            )

    def _within(self, part: Callable[..., Any], *arguments: Any) -> Any:
        """Do a part of a change, or the same by itself; whoever calls this knows which, and is no signal handler."""
        return part(*arguments) if self._mutex._is_owned() else self._alone(part, *arguments)

    def _become_writer(self, lock_file: LockFile, wait: bool) -> None:
        if not lock_file.lock(wait):
            raise Busy(f"{self.path}: another process is in the middle of a change; try again later")
        if lock_file.read() and lock_file.note.intent != NOTHING:
            self._resolve()
        if not self._sync and (lock_file.note.unsynced_boot != self._boot or lock_file.note.clean_txn):
            assert self._boot is not None
            lock_file.mark(self._boot)
        steps.reached("guard-locked")

    def _begin_write(self, wait: bool = True) -> Any:
        assert self._mutex._is_owned(), "only the writer begins write transactions"
        return super()._begin_write(wait)

    def _flush(self, wait: bool = True) -> None:
        self._alone(super()._flush, wait, wait=wait)

    def checkpoint(self) -> None:
        """Write the filter into the environment and shorten the journal, so that opening needs no replay."""
        self._checkpoint()

    def _checkpoint(self, wait: bool = True) -> None:
        self._alone(super()._checkpoint, wait, wait=wait)

    # --- changes

    def _transaction(self, prepare: Callable[[Any, int], OperationLog], write: Callable[[Any, int], None]) -> None:
        """A write transaction; ``write`` may find the map full, and both are done again then."""
        with Writing(self) as txn:
            while True:
                number = txn.id()
                operations = prepare(txn, number)
                try:
                    write(txn, number)
                    self._commit(txn, operations, True)
                    return
                except lmdb.MapFullError:
                    txn = self._begin_write_again(txn)

    def _journal(self, intent: int, keys: Sequence[bytes], act: Callable[[], object] | None = None) -> None:
        """Journal that ``keys`` are added or removed; ``act`` is done between the note and the commit."""
        lock_file = self._lock_file
        assert lock_file is not None
        acted = act is None

        def prepare(txn: Any, number: int) -> OperationLog:
            nonlocal acted
            operations = OperationLog()
            for key in keys:
                if intent == ADDING:
                    operations.added(key)
                else:
                    operations.removed(key)
            generation = self._replica.generation if self._replica.filter is not None else 0
            # The journal tells which keys are added, unless the commit makes a checkpoint: see _resolve.
            lock_file.intend(intent, number, generation, keys if intent == REMOVING or self.engine.in_flight else ())
            steps.reached("guard-intent-written")
            if not acted:
                assert act is not None
                act()
                acted = True
                steps.reached("guard-engine-written")
            return operations

        self._transaction(prepare, lambda txn, number: None)
        steps.reached("guard-journaled")

    def _late_keys(self, keys: Sequence[bytes]) -> frozenset[bytes]:
        """Keys that are listed because their writes may still arrive, if any of ``keys`` may be among them."""
        if not keys or not self.engine.in_flight:
            return frozenset()
        with self._reading() as txn:
            return self._late.keys(txn, self._dbs)

    def _remember(self, keys: Sequence[bytes]) -> None:
        """List keys that the filter has entries for, and whose writes may still arrive."""
        if keys:
            self._transaction(
                lambda txn, number: OperationLog(), lambda txn, number: self._late.add(txn, self._dbs, number, keys)
            )

    def _forget_late(self) -> None:
        """Take keys from the list whose writes will not arrive any more."""
        with self._reading() as txn:
            has_old = self._late.has_old(txn, self._dbs)
        if has_old:
            self._transaction(
                lambda txn, number: OperationLog(), lambda txn, number: self._late.forget_old(txn, self._dbs)
            )

    def _settle(self, n_keys: int) -> None:
        """A change is complete."""
        lock_file = self._lock_file
        assert lock_file is not None
        lock_file.settle()
        steps.reached("guard-intent-cleared")
        self._tend(n_keys)

    def _resolve(self) -> None:
        """Settle what a writer has noted and did not bring to its end."""
        lock_file = self._lock_file
        assert lock_file is not None
        note = lock_file.note
        if self.engine.in_flight:
            self._remember(self._announced(note))
        else:
            doubtful = self._unfinished(note)
            try:
                there = self.engine.has_many(doubtful) if doubtful else []
            except Exception as error:
                raise StoreError(
                    f"{self.path}: a writer died in the middle of a change, and the engine cannot be asked what "
                    f"became of it ({error}); repair the engine"
                ) from error
            gone = [key for key, yes in zip(doubtful, there, strict=True) if not yes]
            if gone:
                self._journal(REMOVING, gone)
                steps.reached("guard-resolved")
        lock_file.settle()

    def _unfinished(self, note: Note) -> list[bytes]:
        """Keys that are certainly in the filter, and may not be in the engine."""
        with self._reading() as txn:
            checkpoint = read_checkpoint(txn, self._dbs)
            try:
                run = journal.read_run(txn, self._dbs, note.txn_id)
            except DlbfError:
                run = []
            newest = txn.id()
        if checkpoint is None or checkpoint.generation != note.generation:
            return []
        if note.intent == REMOVING:
            # Not journaled: its transaction would be there.
            return list(note.keys) if newest < note.txn_id else []
        try:
            if not run or read_record(run[0][1], note.txn_id)[1] & FLAG_OMITTED:
                return []
        except DlbfError:
            return []
        return [key for removal, key in operations_of(run[0][1]) if not removal]

    def _announced(self, note: Note) -> list[bytes]:
        """Keys that are certainly in the filter, and whose writes may still arrive."""
        with self._reading() as txn:
            if note.intent != ADDING or txn.id() < note.txn_id:
                return []
            if note.keys:
                return list(note.keys)
            try:
                run = journal.read_run(txn, self._dbs, note.txn_id)
                return [key for removal, key in operations_of(run[0][1]) if not removal] if run else []
            except DlbfError:
                return []

    def _existing(self, keys: list[bytes]) -> list[bool]:
        """Which keys are in the engine; those that the filter denies need no question."""
        maybe = self._ask_many(keys)
        if maybe is None:
            return self.engine.has_many(keys)
        out = [False] * len(keys)
        places = maybe.nonzero()[0].tolist()
        if places:
            for i, there in zip(places, self.engine.has_many([keys[i] for i in places]), strict=True):
                out[i] = there
        return out

    def _exists(self, key: bytes) -> bool:
        answer = self._ask(key)
        if answer == 2 and self._refresh():
            answer = self._ask(key)
        return answer != 0 and self.engine.has(key)

    def _store(self, new: list[bytes], old: list[bytes], store: Callable[[], object]) -> None:
        """Let the engine store keys of which some are ``new``."""
        late = self._late_keys(new)
        if late:
            old = [*old, *(key for key in new if key in late)]
            new = [key for key in new if key not in late]
        lock_file = self._lock_file
        assert lock_file is not None
        if new:
            self._journal(ADDING, new)
        if old and self.engine.in_flight:
            # Theirs may arrive late as well, after a delete by whoever comes next.
            lock_file.intend(ADDING, lock_file.note.txn_id, lock_file.note.generation, [*new, *old])
        try:
            store()
            steps.reached("guard-engine-written")
        except BaseException as error:
            with contextlib.suppress(Exception):
                if self.engine.in_flight:
                    # It may yet arrive, an old key also after a delete that is answered before it.
                    self._remember([*new, *old])
                    lock_file.settle()
                else:
                    self._resolve()
            if isinstance(error, StoreError):
                with contextlib.suppress(Exception):
                    self._claim()  # the engine may have become another directory's
            raise
        if new:
            self._settle(len(new))
        elif self.engine.in_flight:
            lock_file.settle()

    def put(self, key: Key, value: bytes | bytearray | memoryview, new: bool = False) -> None:
        """Store a value.

        Parameters
        ----------
        key : key
        value : buffer
        new : bool
            True: the caller knows that the key is not there, so the engine is not asked.  Where that is wrong the
            filter gets an entry too many (until the next rebuild) and nothing worse.
        """
        if type(key) is not bytes:
            key = as_key(key)
        self._alone(self._put, key, as_value(value), new)

    def _put(self, key: bytes, value: bytes, new: bool = False) -> None:
        exists = not new and self._exists(key)
        steps.reached("guard-checked")
        if exists:
            self._store([], [key], lambda: self.engine.put(key, value))
        else:
            self._store([key], [], lambda: self.engine.put(key, value))

    def __setitem__(self, key: Key, value: bytes | bytearray | memoryview) -> None:
        self.put(key, value)

    def update(self, other: Any = (), /, **more: bytes) -> None:
        """Store many items, in batches: one commit and at most one question to the engine for thousands of them."""
        self._update(iter(as_items(other)))
        self._update(iter(more.items()))

    def _update(self, items: Iterator[tuple[Key, bytes]]) -> None:
        while batch := {as_key(key): as_value(value) for key, value in islice(items, BATCH_KEYS)}:
            self._alone(self._put_batch, batch)

    def _put_batch(self, batch: dict[bytes, bytes]) -> None:
        keys = list(batch)
        exists = self._existing(keys)
        steps.reached("guard-checked")
        new = [key for key, there in zip(keys, exists, strict=True) if not there]
        old = [key for key, there in zip(keys, exists, strict=True) if there]
        self._store(new, old, lambda: self.engine.put_many(list(batch.items())))

    def delete(self, key: Key) -> bool:
        """Delete a key; True if it was there."""
        return bool(self._alone(self._delete, as_key(key)))

    def _delete(self, key: bytes) -> bool:
        if not self.engine.tells and not self._exists(key):
            return False
        return bool(self._delete_batch([key], checked=not self.engine.tells))

    def delete_many(self, keys: Iterable[Key]) -> int:
        """Delete many keys, in batches; returns how many were there."""
        source = iter(read_keys(keys))
        n_deleted = 0
        while batch := list(dict.fromkeys(islice(source, BATCH_KEYS))):
            n_deleted += len(self._alone(self._delete_batch, batch))
        return n_deleted

    def _delete_batch(self, keys: list[bytes], checked: bool = False) -> list[bytes]:
        """Delete those of the keys that are there, and tell which; ``checked``: all of them are."""
        engine = self.engine
        if engine.tells:
            # Nothing to ask first: the answer to the delete says what was there.
            maybe = self._ask_many(keys)
            if maybe is not None:
                keys = [keys[i] for i in maybe.nonzero()[0].tolist()]
            steps.reached("guard-checked")
            told = (engine.delete_many(keys) if keys else None) or []
            steps.reached("guard-engine-written")
            there = [key for key, yes in zip(keys, told, strict=True) if yes]
            late = self._late_keys(there)
            if gone := [key for key in there if key not in late]:
                self._journal(REMOVING, gone)
                self._settle(len(gone))
            return there
        there = keys
        if not checked:
            there = [key for key, yes in zip(keys, self._existing(keys), strict=True) if yes]
        steps.reached("guard-checked")
        if not there:
            return []

        def act() -> None:
            engine.delete_many(there)
            if self._sync:
                engine.sync()

        late = self._late_keys(there)
        if not (gone := [key for key in there if key not in late]):
            act()
            return there
        try:
            self._journal(REMOVING, gone, act)
        except BaseException:
            with contextlib.suppress(Exception):
                self._resolve()
            raise
        self._settle(len(gone))
        return there

    def __delitem__(self, key: Key) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def pop(self, key: Key, default: Any = Store._MISSING) -> Any:
        """Delete a key and return its value."""
        value = self._alone(self._pop, as_key(key))
        if value is not None:
            return value
        if default is self._MISSING:
            raise KeyError(key)
        return default

    def _pop(self, key: bytes) -> bytes | None:
        value: bytes | None = self.get(key)
        return value if value is not None and self._delete(key) else None

    def popitem(self) -> tuple[bytes, bytes]:
        """Delete a key that the engine gives first and return it with its value; KeyError if there is none."""
        item: tuple[bytes, bytes] = self._alone(self._popitem)
        return item

    def _popitem(self) -> tuple[bytes, bytes]:
        for key in self.keys():
            value = self._pop(key)
            if value is not None:
                return key, value
        raise KeyError("popitem(): the engine has no keys")

    def setdefault(self, key: Key, default: bytes = b"") -> bytes:
        """The value of a key, which is stored first if it is not there."""
        return bytes(self._alone(self._get_or_put, as_key(key), as_value(default)))

    def _get_or_put(self, key: bytes, default: bytes) -> bytes:
        value: bytes | None = self.get(key)
        if value is None:
            self._put(key, default)
            return default
        return value

    def clear(self) -> None:
        """Delete everything, in batches."""
        self._alone(self._clear)

    def _clear(self) -> None:
        before: set[bytes] = set()
        while keys := list(dict.fromkeys(islice(keys_of(self.engine, b""), BATCH_KEYS))):
            given = set(keys)
            if given == before:
                raise StoreError(
                    f"{self.path}: the engine still gives {len(keys)} keys that it was told to delete, {keys[0]!r} for "
                    "one; it does not delete them, or somebody else stores them again"
                )
            before = given
            # Somebody else has put in what the filter denies: it has no entry to be taken out.
            maybe = self._ask_many(keys)
            if maybe is not None and not maybe.all():
                self.engine.delete_many([keys[i] for i in (~maybe).nonzero()[0].tolist()])
            self._delete_batch(keys)

    # --- where the data are

    def _fetch_places(self, keys: list[bytes], places: Sequence[int], asked_at: int) -> list[bytes | None]:
        return self._fetch_many([keys[i] for i in places])

    def _fetch_many(self, keys: list[bytes]) -> list[bytes | None]:
        return self.engine.get_many(keys)

    def _fetch_one(self, key: bytes) -> bytes | None:
        return self.engine.get(key)

    def _count_keys(self, txn: Any) -> int:
        count = self.engine.count()
        return sum(1 for _ in self._engine_keys()) if count is None else count

    def _known_keys(self, txn: Any) -> int:
        count = self.engine.count()
        if count is not None:
            return count
        return len(self._replica.filter) if self._replica.filter is not None else 0

    def _count_after(self, txn: Any, operations: OperationLog) -> int:
        filter = self._replica.filter
        if filter is not None:
            return operations.n_added + len(filter)
        return operations.n_added + self._count_keys(txn) + len(self._late.keys(txn, self._dbs))

    def _scan_keys(self, txn: Any) -> Iterator[bytes]:
        """The keys that the filter should know."""
        late = self._late.keys(txn, self._dbs)
        return chain((key for key in self._engine_keys() if key not in late), late) if late else self._engine_keys()

    def _engine_keys(self) -> Iterator[bytes]:
        keys = keys_of(self.engine, b"")
        if not self.engine.repeats:
            return keys
        return self._first_times(keys)

    @staticmethod
    def _first_times(keys: Iterator[bytes]) -> Iterator[bytes]:
        seen: set[int] = set()
        for key in keys:
            number = checksum64(key)
            if number not in seen:
                seen.add(number)
                yield key

    def _keys_after(self, txn: Any, operations: OperationLog) -> Iterator[bytes]:
        # New keys are journaled before the engine has them.
        added = [key for removal, key in operations_of(operations.record(0, 0, 0)) if not removal]
        late = self._late.keys(txn, self._dbs)
        keys = chain(keys_of(self.engine, b""), added)
        return chain((key for key in keys if key not in late), late) if late else keys

    def _key_batches(self, n_keys: int) -> Iterator[list[bytes]]:
        keys = keys_of(self.engine, b"")
        while part := list(islice(keys, n_keys)):
            yield part

    def _new_builder(self, filter: Any) -> Builder:
        self._within(self._forget_late)
        with self._reading() as txn:
            n_late = len(self._late.keys(txn, self._dbs))
        if n_late:
            # Nobody has counted them.
            filter = generations.enlarged(filter, 1 + n_late / max(1, generations.capacity_of(filter)))
        return builder_for(self._dbs, filter, self.engine, self._late)

    def _step(self, builder: Builder, n_keys: int) -> tuple[int, int]:
        found: tuple[int, int] = self._within(super()._step, builder, n_keys)
        return found

    def keys(
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> KeysRange:
        """Keys, in the engine's order.

        Parameters
        ----------
        prefix, start, stop : key, optional
            Only keys that begin with ``prefix``, from ``start`` on, before ``stop``.  An ordered engine reads no
            others.
        reverse : bool
            All of them, sorted, from the last to the first.

        Notes
        -----
        What happens to an iterator when keys come and go meanwhile is up to the engine.
        """
        return super().keys(prefix, start, stop, reverse)

    def _count_range(self, start: bytes, stop: bytes | None) -> int:
        return sum(1 for _ in self._key_range(start, stop, False))

    def _key_range(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[bytes]:
        self._check_process()
        found = self._keys(start, stop)
        return iter(sorted(found, reverse=True)) if reverse else found

    def _keys(self, low: bytes, end: bytes | None) -> Iterator[bytes]:
        for key in keys_of(self.engine, low):
            if end is not None and key >= end:
                if self.engine.ordered:
                    return
            elif key >= low:
                yield key

    def _item_range(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        keys = self._key_range(start, stop, reverse)
        while part := list(islice(keys, ITEMS_PER_READ)):
            for key, value in zip(part, self.engine.get_many(part), strict=True):
                if value is not None:
                    yield key, value

    # --- care

    def attach(self, progress: Progress | None = None) -> RebuildReport:
        """Read the keys that the engine holds and begin to answer from the filter.

        Parameters
        ----------
        progress : callable, optional
            As for ``rebuild``.

        Notes
        -----
        A rebuild without a model, so that it takes no longer than reading the keys.  Guarded reads and writes go on
        meanwhile.
        Killed at any moment it leaves nothing: begin again.
        """
        return self.rebuild(model=None, progress=progress)

    def rebuild(self, negatives: Iterable[Key] | None = None, design: str = "auto", **options: Any) -> RebuildReport:
        """Make a new filter for the keys that the engine holds, while guarded reads and writes go on.

        The same as ``dlbf.storage.Store.rebuild``.  Run it after anything that changed the engine behind the
        guard: another program's writes, a restored backup, a server that came back with less or more than it had.
        """
        self._check_process()
        if not self.readonly:
            self._refuse_within_change()
            self._claim()
            self._scanned_identity = self._identity()
            self._check_identity(self._scanned_identity)
        return super().rebuild(negatives, design, **options)

    def _switch(self, builder: Builder, prepare: Callable[[Any, int], Traffic] | None = None) -> None:
        prepared = prepare or self._traffic_so_far

        def prepare_all(txn: Any, number: int) -> Traffic:
            txn.put(GUARD_KEY, GuardInfo(self._scanned_identity).pack(), db=self._dbs.meta)
            return prepared(txn, number)

        # A filter that only grows is for the engine it was for.
        self._within(super()._switch, builder, prepared if prepare is None else prepare_all)

    def verify(self) -> Verification:
        """Read all keys of the engine and compare the filter with them; guarded writes wait meanwhile.

        Returns
        -------
        Verification
            ``missing`` keys were put into the engine behind the guard; ``extra`` entries belong to keys that died
            with a process or expired. ``rebuild`` repairs both.  An entry for a write that failed and may still
            arrive is neither.
        """
        return self._verify() if self.readonly else self._alone(self._verify)

    def _verify(self) -> Verification:
        found = super().verify()
        with self._reading() as txn:
            late = list(self._late.keys(txn, self._dbs))
        # They are in the filter for good reason, but not all of them in the engine.
        n_absent = len(late) - sum(self.engine.has_many(late)) if late else 0
        return replace(found, keys=found.keys - n_absent)

    def snapshot(self) -> Snapshot:
        """Not for guards: only the engine could keep a moment."""
        raise StoreError("a guard has no snapshots: the data are in the engine; use the engine's own, if it has them")

    def write(self) -> WriteTransaction:
        """Not for guards: engine and filter share no transaction."""
        raise StoreError("a guard has no transactions: the data are in the engine; use update() and delete_many()")

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Not for guards: the data are in the engine, and the filter can be made again."""
        raise StoreError("a guard has no data to back up; back up the engine, and let a new guard read it")

    def __repr__(self) -> str:
        engine = type(self.engine).__name__
        return f"<Guard {str(self.path)!r} of a {engine}: {'closed' if self._env is None else self.state}>"
