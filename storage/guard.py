"""The filter of a store before any other engine.

The data stay where they are, in an engine that knows nothing of this; the filter and its log are in files of the
guard's own (``dlbf.storage.filelog``).  How they are written is in ``dlbf.storage.guarding``.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import replace
from itertools import islice
from typing import NoReturn, cast

from dlbf.errors import FormatError, StoreError
from dlbf.kernels.guardchanges import GuardCore
from dlbf.kernels.hashing import checksum64
from dlbf.kernels.journal import OperationLog
from dlbf.kernels.keys import are_pairs_of_bytes, read_keys
from dlbf.kernels.locks import Held
from dlbf.kernels.methods import own_methods
from dlbf.storage import steps
from dlbf.storage.commits import Commits
from dlbf.storage.engines import Adapter, engine_for
from dlbf.storage.engines.base import PlainAdapter, checked_ttl, keys_of, why_tables
from dlbf.storage.enginesource import EngineSource
from dlbf.storage.face import CLOSE_PATIENCE_SECONDS, Face, sample_limit
from dlbf.storage.filelog import FileLog
from dlbf.storage.fleet.opening import refuse_shared_options, takes_log
from dlbf.storage.fleet.valkeylog import ValkeyLog
from dlbf.storage.folder import LOG_FILE
from dlbf.storage.grouping import Alone, Groups
from dlbf.storage.guarding import GuardedWrites
from dlbf.storage.guardopening import UNATTACHED, Opening, prepare_folder
from dlbf.storage.intents import LOCK_FILE, LockFile, boot_id
from dlbf.storage.keys import Items, Key, Value, as_items, as_key, as_value
from dlbf.storage.layout import GUARD_KEY, STATE_BROKEN, GuardInfo
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.owner import owner_name
from dlbf.storage.parts import Opened, Options, checked_path
from dlbf.storage.rebuild import Progress
from dlbf.storage.report import RebuildReport, Verification
from dlbf.storage.trouble import DAMAGE, SECRET, Unusable
from dlbf.storage.verify import verify
from dlbf.storage.weak import weakly

__all__ = ["Guard"]

log = logging.getLogger("dlbf.storage")

# Keys that are changed together: one commit, and one question to the engine, for so many.
BATCH_KEYS = 8192
SYNC_MODES = ("full", "none")
ANOTHER_OWNER = "the engine may have keys of guards of another directory"
ANOTHER_ENGINE = "the filter was made for another engine, or for this one before it was started anew; run rebuild()"


@takes_log
@own_methods("get", "put", "delete")
class Guard(GuardCore, Face, MutableMapping[bytes, bytes]):
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
    sample_misses : bool or int
        Whether to keep a sample of the absent keys that are asked for, or how many of them.
    lock_timeout : float, optional
        Most seconds to wait for another process that is writing.
    remember_bytes : int, optional
        As for ``dlbf.storage.Store``, where the filter has layers: see ``Adapter.fresh`` of ``dlbf.storage.engines``.
    log : dlbf.storage.logs.ValkeyLog, optional
        A log on a server, for guards on many hosts: see ``dlbf.storage.logs.FleetGuard`` for this and what follows.
    consistency : {"strict", "bounded"}
    lease_seconds : float

    Raises
    ------
    StoreError
        If the directory holds something else, the guard is open in this process already, or the engine is guarded by
        another directory, where it can tell (``Adapter.claim``).
    TypeError
        If the engine is none.

    Notes
    -----
    *Guarantee*: a key that was stored through the guard, or was in the engine when it was attached, is never reported
    absent, whatever step a process dies at.  *Limit*: all writes must go through guards of this directory.  A guard
    cannot see that somebody else has put a key into the engine; ``verify`` tells, ``rebuild`` repairs.

    *Cost of a write*: a counting filter must know whether the key is there.  If it says "absent" that is certain and
    free; else the engine is asked once (``put(key, value, new=True)`` spares it).  A new or deleted key costs one
    record in the guard's log besides the engine's own, and with ``sync="full"`` the change waits for the disk, together
    with what other threads change meanwhile.  Overwriting costs neither.

    *Threads* may share a guard if they may share the engine.  *Processes* each open their own; one of them writes at
    a time, and goes on with its next changes for some milliseconds before another one can.

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

    source: EngineSource
    _owner: bytes | None = None  # for whom the engine is claimed
    _changing: Alone  # what is not the common case, and is a put or a delete

    def __init__(
        self,
        engine: object,
        path: str | os.PathLike[str],
        fpr: float | None = None,
        *,
        attach: bool = True,
        progress: Progress | None = None,
        readonly: bool = False,
        sync: str = "full",
        secret: bytes | None = None,
        keyed: bool = True,
        sample_misses: bool | int = True,
        lock_timeout: float | None = None,
        remember_bytes: int | None = None,
        log: ValkeyLog | None = None,
        consistency: str = "strict",
        lease_seconds: float = 1.0,
    ) -> None:
        refuse_shared_options(consistency, lease_seconds)
        if sync not in SYNC_MODES:
            raise ValueError(f"sync must be one of {', '.join(SYNC_MODES)}, found {sync!r}")
        boot = boot_id()
        if sync == "none" and boot is None:
            raise ValueError('sync="none" needs a system that tells one boot from another (Linux); use sync="full"')
        options = Options(
            fpr, readonly, sync, secret=secret, keyed=keyed, lock_timeout=lock_timeout, remember_bytes=remember_bytes
        )
        options.check()
        limit = sample_limit(sample_misses, readonly)
        self.engine: Adapter = engine_for(engine)
        folder = checked_path(path)
        if not readonly:
            prepare_folder(folder)
        is_new = not (folder / LOCK_FILE).exists()
        try:
            lock_file = LockFile(folder, readonly, lock_timeout)
        except FileNotFoundError:
            raise StoreError(
                f"{folder}: there is no guard; expected a directory with guard.lock. Check the path"
            ) from None
        try:
            opening = Opening(folder, options, lock_file, boot, self._identity)
            self._build(opening.open(), GuardedWrites(lock_file, boot, sync == "full"), limit)
            if opening.problem:
                self._distrust(opening.problem)
            self._check_engine(attach and not readonly, progress)
            if not readonly:
                self._writes.alone(bool)  # what a dead writer left is settled now
        except BaseException:
            lock_file.close()
            if is_new and not (folder / LOG_FILE).exists():
                lock_file.path.unlink(missing_ok=True)  # somebody else's directory
            if hasattr(self, "_commits") and self._environment.handle is not None:
                self._close()
            raise

    def _build(self, opened: Opened, writes: GuardedWrites, limit: int) -> None:
        """Put the parts together."""
        self._writes = writes
        writes.on_refusal = weakly(self._claim)
        opened.settings.why_tables = why_tables(self.engine)
        ledger, traffic = self._prepare(opened, limit)
        source = EngineSource(self.engine, opened.environment)
        self._commits = Commits(
            opened,
            ledger,
            source,
            traffic,
            weakly(writes.new_builder),
            weakly(writes.alone),
            weakly(writes.within),
            self.engine.errors,
        )
        self._wire(ledger, traffic, source)
        assert isinstance(opened.log, FileLog)
        writes.wire(opened.environment, opened.log, ledger, source, self._commits)
        self._changes = writes.single_changes(traffic)
        waits = self._changes is not None and writes.sync
        self._changing = (Groups if waits else Alone)(writes, weakly(self._put), weakly(self._put_batch))
        traffic.start_often()

    # --- whose filter it is

    def _identity(self) -> bytes:
        engine = self.engine.engine if isinstance(self.engine, PlainAdapter) else self.engine
        identity = type(engine).__name__.encode() + b" " + self.engine.identity()
        # Of any length; only whether it is the same matters.
        return checksum64(identity).to_bytes(8, "little") + identity[:80]

    def _check_engine(self, attach: bool, progress: Progress | None) -> None:
        """See whether the filter is this engine's; make it so if ``attach``."""
        trouble = self.ledger.trouble
        trouble.quiet = attach
        try:
            if not self._claim():
                return
            self._check_identity(self._identity())
            if not attach:
                return
            state, reason = self.ledger.state()
            lost_secret = trouble.kind == SECRET and not self.ledger.settings.info.secret_elsewhere
            if state == "filtering" or not (trouble.kind == DAMAGE or lost_secret):
                return
            if reason != UNATTACHED:
                log.warning("%s: reading the engine's keys again: %s", self.path, reason)
            self.attach(progress)
        finally:
            trouble.quiet = False

    def _claim(self) -> bool:
        """See that no other directory's guards write the engine, where it can tell; if they do the filter is used no
        more, and a guard that would write is refused."""
        place = f"{socket.gethostname()}:{self.path.absolute()}"
        try:
            owner = owner_name(self.path, not self.readonly)
            self.engine.claim(owner, place, not self.readonly)
            self._owner = owner
        except StoreError as error:
            self._distrust(f"{ANOTHER_OWNER}: {error}")
            if not self.readonly:
                raise
            return False
        return True

    def _check_identity(self, identity: bytes) -> None:
        """If the filter was not made for the engine of this identity it is used no more."""
        environment = self._environment
        with environment.reading() as txn:
            record = txn.get(GUARD_KEY, db=environment.dbs.meta)
            checkpoint = self._commits.log.read_checkpoint(txn)
        with contextlib.suppress(FormatError):
            if record is not None and GuardInfo.unpack(record).identity == identity:
                return
        if checkpoint is None or checkpoint.state != STATE_BROKEN:
            self._distrust(ANOTHER_ENGINE)

    def _distrust(self, reason: str) -> None:
        """Use the filter no more, in any process if this one may write."""

        def fail(txn: Txn) -> OperationLog:
            with Held(self.ledger.lock):
                self.ledger.fail(Unusable(reason), txn)
            return OperationLog()

        if self.readonly:
            with self._environment.reading() as txn:
                fail(txn)
            return
        self._writes.within(self._commits.transact, fail)

    # --- changes

    def _put_slowly(self, key: Key, value: Value, new: bool, ttl: float | None) -> None:
        """Every put that is not the common one: see ``dlbf.kernels.guardchanges``."""
        if type(key) is not bytes:
            key = as_key(key)
        seconds = None if ttl is None else checked_ttl(self.engine, ttl)
        if new or ttl is not None:
            self._writes.alone(self._put, key, as_value(value), new, seconds)
        else:
            self._changing.put(key, as_value(value))
        self._writes.allow_quick_changes()

    def _put(self, key: bytes, value: bytes, new: bool = False, seconds: float | None = None) -> None:
        writes, engine = self._writes, self.engine
        exists = not new and writes.exists(key)
        steps.reached("guard-checked")

        def store() -> object:
            return engine.put(key, value) if seconds is None else engine.put_expiring(key, value, seconds)

        writes.store(*(([], [key]) if exists else ([key], [])), store)

    def update(self, other: Items = (), /, **more: bytes) -> None:
        """Store many items, in batches: one commit and at most one question to the engine for thousands of them."""
        for items in (iter(as_items(other)), iter(more.items())):
            while pairs := list(islice(items, BATCH_KEYS)):
                if are_pairs_of_bytes(pairs):
                    batch = cast("list[tuple[bytes, bytes]]", pairs)
                else:
                    batch = [(as_key(key), as_value(value)) for key, value in pairs]
                if self._changes is None or not self._changes.store_batch(batch):
                    self._changing.store(dict(batch))
                    self._writes.allow_quick_changes()

    def _put_batch(self, batch: dict[bytes, bytes]) -> None:
        keys = list(batch)
        exists = self._writes.existing(keys)
        steps.reached("guard-checked")
        new, old = keys, list[bytes]()
        if any(exists):
            new = [key for key, there in zip(keys, exists, strict=True) if not there]
            old = [key for key, there in zip(keys, exists, strict=True) if there]
        self._writes.store(new, old, lambda: self.engine.put_many(list(batch.items())))

    def _delete_slowly(self, key: Key) -> bool:
        was_there = self._changing.delete([as_key(key)]) > 0
        self._writes.allow_quick_changes()
        return was_there

    def delete_many(self, keys: Iterable[Key]) -> int:
        """Delete many keys, in batches; returns how many were there."""
        source = iter(read_keys(keys))
        n_deleted = 0
        while batch := list(dict.fromkeys(islice(source, BATCH_KEYS))):
            n_deleted += self._changing.delete(batch)
        return n_deleted

    def _take(self, key: bytes) -> bytes | None:
        return self._writes.alone(self._pop, key)

    def _pop(self, key: bytes) -> bytes | None:
        value = self.get(key)
        return value if value is not None and self._writes.delete([key]) else None

    def popitem(self) -> tuple[bytes, bytes]:
        """Delete a key that the engine gives first and return it with its value; KeyError if there is none."""
        return self._writes.alone(self._popitem)

    def _popitem(self) -> tuple[bytes, bytes]:
        for key in self.keys():
            value = self._pop(key)
            if value is not None:
                return key, value
        raise KeyError("popitem(): the engine has no keys")

    def setdefault(self, key: Key, default: bytes = b"") -> bytes:
        """The value of a key, which is stored first if it is not there."""
        return self._writes.alone(self._get_or_put, as_key(key), as_value(default))

    def _get_or_put(self, key: bytes, default: bytes) -> bytes:
        value = self.get(key)
        if value is None:
            self._put(key, default)
            return default
        return value

    def clear(self) -> None:
        """Delete everything, in batches."""
        self._writes.alone(self._clear)

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
            known = set(self._writes.maybe(keys))
            if unknown := [key for i, key in enumerate(keys) if i not in known]:
                self.engine.delete_many(unknown)
            self._writes.delete(keys)

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
        meanwhile.  Killed at any moment it leaves nothing: begin again.
        """
        return self.rebuild(model=None, progress=progress)

    def _before_rebuild(self) -> None:
        """The filter that will be made is this engine's; one that only grows stays that of the engine it was for."""
        self._writes.refuse_within_change()
        self._claim()
        identity = self._identity()
        self._check_identity(identity)
        record, meta = GuardInfo(identity).pack(), self._environment.dbs.meta
        self._commits.on_rebuilt = lambda txn: txn.put(GUARD_KEY, record, db=meta)

    def verify(self) -> Verification:
        """Read all keys of the engine and compare the filter with them; guarded writes wait meanwhile.

        Returns
        -------
        Verification
            ``missing`` keys were put into the engine behind the guard; ``extra`` entries belong to keys that died
            with a process or expired. ``rebuild`` repairs both.  An entry for a write that failed and may still
            arrive is neither.
        """
        self._environment.check()
        return self._verify() if self.readonly else self._writes.alone(self._verify)

    def _verify(self) -> Verification:
        verified = verify(self.ledger, self.source)
        with self._environment.reading() as txn:
            late = list(self.source.late.keys(txn))
        # They are in the filter for good reason, but not all of them in the engine.
        n_absent = len(late) - sum(self.engine.has_many(late)) if late else 0
        return replace(verified, keys=verified.keys - n_absent)

    def snapshot(self) -> NoReturn:
        """Not for guards: only the engine could keep a moment."""
        raise StoreError("a guard has no snapshots: the data are in the engine; use the engine's own, if it has them")

    def write(self) -> NoReturn:
        """Not for guards: engine and filter share no transaction."""
        raise StoreError("a guard has no transactions: the data are in the engine; use update() and delete_many()")

    def backup(self, path: str | os.PathLike[str]) -> NoReturn:
        """Not for guards: the data are in the engine, and the filter can be made again."""
        raise StoreError("a guard has no data to back up; back up the engine, and let a new guard read it")

    def __repr__(self) -> str:
        return f"<Guard {str(self.path)!r} of a {type(self.engine).__name__}: {self.state}>"

    # --- closing

    def close(self) -> None:
        """Let go of the log, not of the engine; a long one is checkpointed first.  Twice is allowed."""
        if self._environment.handle is not None and not self._environment.was_forked():
            self._writes.refuse_within_change()
        super().close()

    def _without_writers(self, act: Callable[[], object]) -> None:
        with Held(self._writes.mutex, timeout=CLOSE_PATIENCE_SECONDS) as taken:
            if not taken:
                raise StoreError(
                    f"{self.path}: another thread has been in the middle of a change through the guard for "
                    f"{CLOSE_PATIENCE_SECONDS:.0f} s; close the guard when the engine has answered"
                )
            super()._without_writers(act)

    def _let_go(self) -> None:
        environment, writes = self._environment, self._writes
        is_open = environment.handle is not None and not environment.was_forked()
        if is_open and not writes.sync and not self.readonly:
            with contextlib.suppress(Exception):
                # Not if another process is changing something: it marks it, too, when it closes.
                writes.as_writer(writes.mark_clean, wait=False)
        super()._let_go()
        writes.lock_file.close()
        writes.watch.end()
        if self._owner is not None:
            self.engine.leave(self._owner)
