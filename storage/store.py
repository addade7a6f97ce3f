"""A dict-like LMDB store with a filter in its read path.

How the parts fit together:

* :mod:`dlbf.storage.layout`: what is on disk, and which writes share a transaction;
* :mod:`dlbf.kernels.readpath`: compiled reads of absent keys, and changes of single ones;
* :mod:`dlbf.storage.journal`: what each commit did;
* :mod:`dlbf.storage.replica`: this process's copy of the filter;
* :mod:`dlbf.storage.build`: the next generation, made while everything goes on;
* :mod:`dlbf.storage.misses`: absent keys that were asked for, sampled to learn from;
* :mod:`dlbf.storage.rebuild`, :mod:`dlbf.storage.drift`: learning a filter, and when that is due;
* :mod:`dlbf.storage.transactions`: write transactions and snapshots.

Locks, in the order they are taken: ``_write_lock`` (one write transaction in this process; LMDB's own lock is one in
all processes), then ``_lock`` (the replica).  Readers take neither: if the replica is being changed they read the data.
They are taken only with the compiled context managers of :mod:`dlbf.kernels.readpath`: no signal's exception can keep
those from giving them back.
"""

import contextlib
import logging
import mmap
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import lmdb

from dlbf.errors import FilterFullError, FormatError, StoreError, VersionError
from dlbf.kernels.journal import OperationLog, apply_record
from dlbf.kernels.keys import read_keys
from dlbf.kernels.readpath import Asking, Attempt, Reading, ReadsHeld, ReplicaLock, WriteLock, WritePath, Writing
from dlbf.storage import generations, journal, misses, steps
from dlbf.storage.build import CLOSE_RECORDS, TOO_MANY_ALIKE, Builder, fill_successor, keys_after
from dlbf.storage.drift import drift, observe
from dlbf.storage.environment import SYNC_MODES, map_meta_pages, open_environment
from dlbf.storage.layout import (
    CHECKPOINT_KEY,
    COMPILED_KEY,
    DATA_FILE,
    DATABASES,
    ESTIMATOR_KEY,
    FLAG_OMITTED,
    FLAG_REMOVED,
    GUARD_KEY,
    META_TXN_ID_OFFSET,
    PLAIN_KEY_BYTES,
    STATE_BROKEN,
    STORE_KEY,
    TAIL_KEY,
    TRAFFIC_KEY,
    Checkpoint,
    StoreInfo,
    Traffic,
    sealed,
)
from dlbf.storage.longkeys import Databases, count_keys, get_long, is_plain, scan
from dlbf.storage.rebuild import rebuild
from dlbf.storage.replica import DAMAGE, FULL, SECRET, VERSION, Replica, read_checkpoint, read_traffic
from dlbf.storage.report import Drift, RebuildReport, Stats, Verification
from dlbf.storage.room import Room
from dlbf.storage.secret import SECRET_BYTES, make_secret, read_secret
from dlbf.storage.transactions import Key, Snapshot, WriteTransaction, as_key, as_value
from dlbf.storage.verify import verify

__all__ = ["Store"]

log = logging.getLogger("dlbf.storage")

DEFAULT_FPR = 0.01
# A transaction keeps its changes for a second try when the map has less room than this.
ROOMY_MAP_BYTES = 1 << 36
RESIZE_PATIENCE_SECONDS = 30.0
# Nobody else is likely to end what the thread that waits has begun.
OWN_PATIENCE_SECONDS = 1.0
# How long close() waits for what other threads are writing.
CLOSE_PATIENCE_SECONDS = 30.0
# How long, at most twice, a read transaction is kept open for the next read.
KEEP_SECONDS = 0.02
# After which beginning to read may succeed, see Store._cannot_read.
BEGIN_ERRORS = (lmdb.MapResizedError, lmdb.ReadersFullError)
# Keys that the next generation's builder passes per key changed: it is done before the rest of the
# capacity (see generations.GROW_AT) has arrived.
BUILD_KEYS_PER_OPERATION = 48
# And at least so many at once, a quarter of a millisecond: each time costs as much as a hundred of them.
BUILD_KEYS_AT_ONCE = 1024
BUILD_KEYS_PER_STEP = 8192
# A larger filter that could not be made is tried again after 2, 4, 8 commits, at most so many.
GROWTH_PAUSE_COMMITS = 1024
# Loading a filter of so many bytes takes less than a millisecond.
LOAD_ASIDE_BYTES = 1 << 20
# A process writes the absent keys it has sampled by itself at most so often; more are thinned until then.
FLUSH_SECONDS = 10.0
# Fewer of them are not worth a transaction when the store is closed.
FLUSH_LEAST_KEYS = 32
# Records that a store without a usable filter keeps for a rebuild to catch up with.
BROKEN_JOURNAL_RECORDS = 4096
BROKEN_RECORD_BYTES = 1 << 20


class Overtaken(StoreError):
    """Another process has written between the two tries of a transaction."""


def sweep(reference: "weakref.ref[Store]", wake: threading.Event) -> None:
    """End read transactions that are kept open and not used; sleeps while there are none."""
    while True:
        wake.wait()
        wake.clear()
        while True:
            time.sleep(KEEP_SECONDS)
            store = reference()
            if store is None or store._env is None:
                return
            if not store._sweep():
                break
            del store
        del store


def runs(thread: threading.Thread | None) -> bool:
    """Whether a thread is at work; one whose beginning was interrupted, by a signal handler's exception, is not."""
    return thread is not None and thread.is_alive()


class Store(WritePath, MutableMapping[bytes, bytes]):
    """A mapping of bytes to bytes in an LMDB environment; reads of absent keys do not touch the data.

    Parameters
    ----------
    path : path
        A directory; it is created if it does not exist.
    fpr : float, optional
        Target false-positive rate of the filter, 0.01 for a new store.  An existing store keeps its own until
        ``rebuild(fpr=...)``.
    readonly : bool
        Open an existing store for reading.
    sync : {"full", "data", "none"}
        What a commit waits for.  "full": everything is on disk.  "data": the last commit may be lost in a power
        failure,
        the store stays whole.  "none": a power failure may damage the store; a killed process may not.
    writemap : bool
        With ``sync="none"``: change pages in LMDB's map instead of handing them to the system, which makes single
        writes several times as fast.  No other process can write then (any number can read); see the notes.
    secret : bytes, optional
        16 bytes for the keyed hash.  By default a random secret is kept in the file ``secret.key`` in the
        directory, readable by the owner only; a secret given here is not written anywhere.
    keyed : bool
        False for a new store whose filter anybody can compute (a little faster).
    map_size : int, optional
        Bytes of address space to start with, and with ``writemap`` of the file; it grows by itself.
    max_readers : int
        Processes and threads that may read at once.
    create : bool
        False: an error if there is no store.
    sample_misses : bool or int
        Keep a sample of the absent keys that are asked for, so that ``rebuild()`` can learn from them: 65,536 of them,
        or the number given; False: none are drawn here.  Those kept are the keys themselves, as plain as the data.

    Raises
    ------
    StoreError
        If the directory holds something else, or the store is open in this process already.
    VersionError
        If the store's data was written by a newer dlbf.

    Notes
    -----
    *Guarantee*: a committed key is never reported absent.  If the filter cannot be used, whatever the reason, every
    read goes to the data;
    ``stats().state`` says so, and one warning is logged.

    *Threads* may share a store.  *Processes* each open their own, any number; one of them writes at a time and the
    others wait.  After
    ``fork`` a child cannot use it, nor open the same store again: open after the fork in both, or start processes with
    ``spawn``.

    *With* ``writemap`` room for the file is reserved on the disk, a quarter at a time, so a full disk is an error as
    ever.  The map has to be moved then, which waits for the snapshots and iterators of this process: end them soon.
    What else in this process writes to wrong addresses can damage the store.  Linux only, on ext4, XFS or tmpfs.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Store(folder.name + "/store", fpr=0.01) as s:
    ...     s[b"apple"] = b"red"
    ...     with s.write() as txn:
    ...         new = txn.put(b"banana", b"yellow"), txn.put(b"apple", b"green")
    ...     s.get(b"apple"), s.get(b"cherry"), new, list(s.items(prefix=b"b"))
    (b'green', None, (True, False), [(b'banana', b'yellow')])
    >>> with Store(folder.name + "/store", readonly=True) as s:
    ...     len(s), s.verify().ok, s.stats().state
    (2, True, 'filtering')
    >>> folder.cleanup()
    """

    # Longest key that the compiled read path may look for in ``data`` by itself.
    _PLAIN_KEY_BYTES = PLAIN_KEY_BYTES
    _IS_GUARD = False
    # What may come when a larger filter is made; anything else comes from a signal handler.
    _growth_errors: tuple[type[Exception], ...] = (lmdb.Error, StoreError, OSError, MemoryError)

    def __init__(
        self,
        path: str | os.PathLike[str],
        fpr: float | None = None,
        *,
        readonly: bool = False,
        sync: str = "full",
        writemap: bool = False,
        secret: bytes | None = None,
        keyed: bool = True,
        map_size: int | None = None,
        max_readers: int = 254,
        create: bool = True,
        sample_misses: bool | int = True,
    ) -> None:
        if sync not in SYNC_MODES:
            raise ValueError(f"sync must be one of {', '.join(SYNC_MODES)}, found {sync!r}")
        if writemap and (sync != "none" or readonly):
            raise ValueError(
                f'writemap=True is for writing with sync="none", found sync={sync!r}, readonly={readonly}; leave it out'
            )
        if secret is not None and len(secret) != SECRET_BYTES:
            raise ValueError(f"secret must be {SECRET_BYTES} bytes, found {len(secret)}")
        generations.check_fpr(fpr)
        if secret is not None and not keyed:
            raise ValueError("pass either secret= or keyed=False, not both")
        if not isinstance(sample_misses, int) or sample_misses < 0:
            raise ValueError(f"sample_misses must be True, False or a number of keys, found {sample_misses!r}")
        self.path = Path(path)
        self.readonly = readonly
        self._env: Any = None
        self._room: Room | None = None
        self._meta_map: mmap.mmap | None = None
        self._lock = ReplicaLock()
        self._write_lock = threading.Lock()
        self._attach_lock(self._write_lock)
        self._build_lock = threading.Lock()
        self._sample_lock = threading.RLock()
        self._builder: Builder | None = None
        self._builder_generation = 0
        self._dead_word = -1
        self._roomy = 0
        self._wake = threading.Event()
        self._sweeper: threading.Thread | None = None
        self._flusher: threading.Thread | None = None
        self._loader: threading.Thread | None = None
        self._close_lock = threading.RLock()
        self._flushed_at = -FLUSH_SECONDS
        # Lookups that are in the traffic record already, and the filter that had answered them.
        self._reported = (0, 0, 0)
        self._failed_build = 0  # generation whose successor did not fit
        self._growth_failed = ""  # why a larger filter than that of the following generation was last not made
        self._growth_failed_at = 0
        self._growth_failures = 0  # and how often
        self._growth_pause = 0  # commits until it is tried again
        self._estimate: tuple[tuple[int, int, int], float] | None = None  # see drift()
        self._miss_limit = misses.DEFAULT_LIMIT if sample_misses is True else int(sample_misses)
        if readonly:
            self._miss_limit = 0
        if (readonly or not create) and not (self.path / DATA_FILE).exists():
            raise StoreError(f"{self.path}: there is no store; expected a directory with data.mdb. Check the path")
        self._env, self._room = open_environment(
            self.path, map_size, max_readers, sync, readonly=readonly, writemap=writemap
        )
        try:
            self._open(fpr, secret, keyed)
        except BaseException:
            self._close()
            raise

    # --- opening

    def _open(self, fpr: float | None, secret: bytes | None, keyed: bool) -> None:
        env = self._env
        self._page_bytes = env.stat()["psize"]
        with contextlib.suppress(lmdb.Error):
            env.reader_check()
        dbs = self._dbs = self._open_databases(DEFAULT_FPR if fpr is None else fpr, secret, keyed)
        with self._reading() as txn:
            record = txn.get(STORE_KEY, db=dbs.meta)
            is_guard = txn.get(GUARD_KEY, db=dbs.meta) is not None
        if is_guard != self._IS_GUARD:
            found, expected = ("guard", "Guard(engine, path)") if is_guard else ("store", "Store(path)")
            raise StoreError(f"{self.path}: this is the environment of a {found}; open it with {expected}")
        try:
            if record is None:
                raise FormatError("record 'store' in meta is missing")
            self._info = StoreInfo.unpack(record)
        except VersionError:
            raise
        except FormatError:
            # Everything in it can be guessed; verify() tells, rebuild() repairs.
            self._info = StoreInfo(fpr or DEFAULT_FPR, 0, secret is not None, keyed)
        if fpr is not None and abs(fpr - self._info.fpr) > 1e-12:
            log.warning(
                "%s: opened with fpr=%g, but the store was made for %g and keeps it; change it with rebuild(fpr=%g)",
                self.path,
                fpr,
                self._info.fpr,
                fpr,
            )
        self._secret = None
        if self._info.keyed:
            self._secret = read_secret(self.path) if secret is None else bytes(secret)
        self._replica = Replica(dbs, self._secret, str(self.path))
        self._attach_reader(env.begin, dbs.data, BEGIN_ERRORS, self._PLAIN_KEY_BYTES)
        self._attach_writer(
            self._lock,
            self._replica,
            self._replica.tail,
            lmdb.Transaction,
            dbs.journal,
            dbs.main,
            TAIL_KEY,
            (lmdb.MapResizedError, lmdb.MapFullError),
        )
        self._keep_live(True)
        # The filter is loaded when it is first needed: a process that only wants a few present keys never pays for it.
        meta_map = self._meta_map = map_meta_pages(self.path, env)
        if meta_map is not None:
            self._attach_meta(meta_map, META_TXN_ID_OFFSET, self._page_bytes + META_TXN_ID_OFFSET)
        if self._miss_limit:
            with self._reading() as txn:
                every = misses.drawing_rate(txn, dbs, self._miss_limit, read_traffic(txn, dbs).scale)
            self._sample_misses(every, misses.BUFFER_KEYS, int.from_bytes(os.urandom(8), "little") | 1)

    def _open_databases(self, fpr: float, secret: bytes | None, keyed: bool) -> Databases:
        """The handles of the databases; a new store is made in one transaction.

        py-lmdb gives out lasting handles only in a write transaction (or in an environment that is read-only), so
        opening for
        writing waits for the current writer.
        """
        env = self._env
        if self.readonly:
            try:
                named = [env.open_db(name.encode(), create=False) for name in DATABASES]
                return Databases._make([*named, env.open_db()])
            except (lmdb.NotFoundError, lmdb.IncompatibleError, lmdb.ReadonlyError) as error:
                raise StoreError(
                    f"{self.path}: an LMDB environment, but not a store ({error}); check the path"
                ) from error
        with env.begin(write=True) as txn:
            is_new = txn.stat()["entries"] == 0
            try:
                named = [env.open_db(name.encode(), txn=txn, create=is_new) for name in DATABASES]
                handles = Databases._make([*named, env.open_db(txn=txn)])
            except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
                raise StoreError(
                    f"{self.path}: an LMDB environment of another program ({error}); choose another directory"
                ) from error
            if is_new:
                self._create(txn, handles, fpr, secret, keyed)
        return handles

    def _create(self, txn: Any, dbs: Databases, fpr: float, secret: bytes | None, keyed: bool) -> None:
        """Write what a new store has."""
        info = StoreInfo.new(fpr, secret is not None, keyed)
        if keyed and secret is None:
            secret = make_secret(self.path)
        filter = generations.new_filter("auto", 0, fpr, secret)
        number = txn.id()
        replica = Replica(dbs, secret, str(self.path))
        replica.write_checkpoint(txn, filter, number, number, 0)
        journal.append(txn, dbs, replica.tail, number, OperationLog().record(number, number, FLAG_OMITTED))
        txn.put(STORE_KEY, info.pack(), db=dbs.meta)

    # --- closing

    def close(self) -> None:
        """Let go of the environment; a long journal is checkpointed first.  Closing twice is allowed.

        Write transactions of this thread are undone, iterators and snapshots end.

        Raises
        ------
        StoreError
            If another thread has been writing, or making a backup, for 30 seconds: the store stays open then.
        """
        if self._env is None:
            return
        if self._was_forked():
            # Not ours to close: it would free the parent's slots in LMDB's table of readers.
            self._env = None
            return
        self._end_left_open()
        with Attempt(self._close_lock):
            if self._env is None:
                return  # another thread was faster
            self._closing = threading.get_ident()
            try:
                if not self.readonly:
                    with self._no_writers():
                        pass  # and nobody begins to write from now on
                    self._leave_tidy()
                self._close()
            finally:
                self._may_have_closed()

    def _leave_tidy(self) -> None:
        """Save the next who opens it a long journal, and keep what was sampled."""
        replica = self._replica
        with contextlib.suppress(lmdb.Error, StoreError):
            if replica.filter is not None and replica.journal_bytes > 4096:
                self.checkpoint()
            if self.n_samples >= FLUSH_LEAST_KEYS:
                self._flush()

    def _close(self) -> None:
        if self._env is None or self._was_forked():
            self._let_go()
            return
        self._closing = threading.get_ident()
        try:
            for thread in (self._flusher, self._loader):
                if thread is not None and runs(thread):
                    thread.join()
            # py-lmdb waits for a write transaction of another thread, which could not end it any more then.
            with self._no_writers():
                if hasattr(self, "_replica"):
                    self._replica.quiet = True  # a thread that is loading the filter will fail, and is right to
                self._let_go()
        finally:
            self._may_have_closed()

    def _may_have_closed(self) -> None:
        if self._env is not None:
            self._closing = 0

    @contextlib.contextmanager
    def _no_writers(self) -> Iterator[None]:
        """Wait until no thread of this process writes, and let none begin."""
        with WriteLock(self, timeout=CLOSE_PATIENCE_SECONDS) as taken:
            if not taken:
                raise StoreError(
                    f"{self.path}: another thread has been writing, or making a backup, for "
                    f"{CLOSE_PATIENCE_SECONDS:.0f} s; end its transaction there, then close the store"
                )
            yield

    def _let_go(self) -> None:
        self._withdraw()
        if self._env is not None and not self._was_forked():
            self._keep_live(False)
        self._wake.set()
        env, self._env = self._env, None
        self._detach_meta()
        self._attach_reader(None, None, BEGIN_ERRORS, 0)
        if self._meta_map is not None:
            self._meta_map.close()
            self._meta_map = None
        if env is not None:
            env.close()
        if self._room is not None:
            self._room.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if self._env is None:
            return f"<Store {str(self.path)!r}, closed>"
        return f"<Store {str(self.path)!r}: {self.state}>"

    def _refuse_while_closing(self) -> None:
        """Nothing is written any more when a thread is closing the store, but by that one."""
        if self._env is None or self._closing not in (0, threading.get_ident()):
            raise StoreError(f"{self.path}: this store is closed; open it again")

    def _check_process(self) -> None:
        if self._env is None:
            self._refuse_while_closing()
        if self._was_forked():
            raise StoreError(
                f"{self.path}: opened before fork() and used in the child, which LMDB does not allow; "
                "open it after the fork in both, or start the child with spawn"
            )

    # --- read transactions and the map

    def _reading(self, buffers: bool = False) -> Reading:
        """A read transaction, counted so that the map does not move under it; for ``with``."""
        return Reading(self, buffers)

    def _cannot_read(self, error: BaseException) -> None:
        """A read transaction could not be begun: see to it that the next try may succeed, or raise."""
        with Asking(self) as env:
            if isinstance(error, lmdb.MapResizedError):
                self._adopt_map()
            elif not isinstance(error, lmdb.ReadersFullError):
                raise error
            elif not self._drop_live() and not env.reader_check():
                raise StoreError(
                    f"{self.path}: all {env.max_readers()} reader slots are in use; close snapshots, "
                    "or open the store with a larger max_readers"
                ) from None

    def _start_sweeping(self) -> None:
        """A read has left its transaction open: see that it is not for long."""
        if not runs(self._sweeper):
            self._sweeper = threading.Thread(
                target=sweep, args=(weakref.ref(self), self._wake), name="dlbf-sweeper", daemon=True
            )
            try:
                self._sweeper.start()
            except RuntimeError as error:  # there are too many threads, or the interpreter is about to end
                self._keep_live(False)
                log.debug("%s: read transactions are not kept: %s", self.path, error)
        self._wake.set()

    def _adopt_map(self) -> None:
        """Another process has made the map larger: follow."""
        with WriteLock(self):
            self._resize(0)

    def _resize(self, size: int) -> None:
        """Move the map; the caller holds the write lock and has no transaction."""
        with ReadsHeld(self):
            own = self._reads_itself()
            patience = OWN_PATIENCE_SECONDS if own else RESIZE_PATIENCE_SECONDS
            end = time.monotonic() + patience
            self._drop_live()
            while self.n_reading:
                if time.monotonic() > end:
                    raise StoreError(
                        f"{self.path}: the LMDB map must grow, but {self.n_reading} snapshots or iterators of this "
                        f"{'thread' if own else 'process'} have been open for {patience:.0f} s; close them, or open "
                        "the store with a larger map_size"
                    )
                time.sleep(0.0005)
            room = self._room
            if room is not None and room.mapped:
                size = room.fitting(size)
                room.reserve(size)
            self._env.set_mapsize(size)

    def _map_may_fill(self) -> bool:
        if self._roomy:
            # Nothing short of ROOMY_MAP_BYTES / 2 in each thousand transactions could change that.
            self._roomy -= 1
            return False
        info = self._env.info()
        free: int = info["map_size"] - (info["last_pgno"] + 1) * self._page_bytes
        self._roomy = 1000 * (free // ROOMY_MAP_BYTES)
        return free < ROOMY_MAP_BYTES

    # --- the replica

    def _refresh(self, wait: bool = False, txn: Any = None) -> bool:
        """Bring the filter up to date, or to what the read transaction ``txn`` sees; False if it cannot be used now.

        One that takes a while to load is loaded aside, and until then the data are read, unless the caller wants to
        ``wait``.
        """
        word = self._word()
        if word is None or word == self._dead_word:
            return False
        # In this order: beginning to read may have to follow a map that has grown, which takes the writers' lock, and
        # writers wait for the replica.
        if txn is None:
            with self._reading(buffers=True) as txn:
                return self._refresh_in(txn, wait)
        return self._refresh_in(txn, wait)

    def _refresh_in(self, txn: Any, wait: bool) -> bool:
        with Attempt(self._lock, wait) as taken:
            if not taken:
                return False
            if self._is_current():
                return True
            now = txn.id()
            if not wait and self._replica.filter is None and self._is_large(txn):
                self._load_aside()
                return False
            self._withdraw()
            if self._replica.catch_up(txn, now):
                self._watch_generation()
                self._offer(self._replica.filter, self._replica.applied, self._replica.removed)
                return True
            self._dead_word = now
            return False

    def _is_large(self, txn: Any) -> bool:
        checkpoint = read_checkpoint(txn, self._dbs)
        return checkpoint is not None and checkpoint.n_bytes > LOAD_ASIDE_BYTES

    def _load_aside(self) -> None:
        """Load the filter in a thread of its own; the caller holds ``_lock``."""
        if runs(self._loader) or self._closing:
            return

        def load() -> None:
            word = self._word()
            try:
                self._refresh(wait=True)
            except Exception as error:
                log.warning("%s: reading without the filter until the next commit: %s", self.path, error)
                self._dead_word = -1 if word is None else word
            finally:
                self._loader = None

        self._loader = threading.Thread(target=load, name="dlbf-loader", daemon=True)
        try:
            self._loader.start()
        except RuntimeError as error:  # there are too many threads, or the interpreter is about to end
            self._loader = None
            log.debug("%s: the filter is not loaded: %s", self.path, error)

    def _get_slow(self, key: Any, default: Any) -> Any:
        self._check_process()
        key = as_key(key)
        self._count(lookups=1)
        answer = self._ask(key)
        if answer == 2 and self._refresh():
            answer = self._ask(key)
        if answer == 0:
            self._count(filtered=1)
            self._was_absent(key)
            return default
        return self._fetch_slow(key, default, answer == 1)

    def _fetch_slow(self, key: bytes, default: Any, asked: bool) -> Any:
        value = self._fetch_one(key)
        if not asked:
            self._count(unfiltered=1)
        elif value is None:
            self._count(false_positives=1)
        if value is None:
            self._was_absent(key)
            return default
        return value

    # --- where the data are: a guard has them elsewhere

    def _fetch_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values from the data, all of one moment."""
        with self._reading() as txn:
            return self._values(txn, keys)

    def _fetch_places(self, keys: list[bytes], places: Sequence[int], asked_at: int) -> list[bytes | None]:
        """Values of the keys in those places; or of all, if the filter's answers were of another moment."""
        with self._reading() as txn:
            if txn.id() == asked_at:
                keys = [keys[i] for i in places]
            return self._values(txn, keys)

    def _values(self, txn: Any, keys: list[bytes]) -> list[bytes | None]:
        """The values that ``txn`` sees."""
        dbs = self._dbs
        return [txn.get(key, db=dbs.data) if is_plain(key) else get_long(txn, dbs, key) for key in keys]

    def _fetch_one(self, key: bytes) -> bytes | None:
        """The value of a key from the data."""
        return self._fetch_many([key])[0]

    def _count_keys(self, txn: Any) -> int:
        """Number of keys that ``txn`` sees."""
        return count_keys(txn, self._dbs)

    def _known_keys(self, txn: Any) -> int:
        """The same, or about that, without reading anything for it."""
        return self._count_keys(txn)

    def _count_after(self, txn: Any, operations: OperationLog) -> int:
        """Number of keys when ``txn``, with its ``operations``, is committed."""
        return self._count_keys(txn)

    def _keys_after(self, txn: Any, operations: OperationLog) -> Iterator[bytes]:
        """All keys then."""
        return self._scan_keys(txn)

    def _scan_keys(self, txn: Any) -> Iterator[bytes]:
        """The keys that ``txn`` sees, each once."""
        return keys_after(txn, self._dbs, None)

    def _key_batches(self, n_keys: int) -> Iterator[list[bytes]]:
        """All keys in lists of up to ``n_keys``, each list of another moment."""
        position: bytes | None = None
        while True:
            with self._reading() as txn:
                part = list(islice(keys_after(txn, self._dbs, position), n_keys))
            if not part:
                return
            position = part[-1]
            yield part

    def _new_builder(self, filter: Any) -> Builder:
        return Builder(self._dbs, filter)

    def _step(self, builder: Builder, n_keys: int) -> tuple[int, int]:
        """Let a builder pass up to ``n_keys`` keys; returns how many it passed, and at which transaction."""
        with self._reading() as txn:
            return builder.step(txn, n_keys), txn.id()

    # --- what the traffic is like

    def _watch_generation(self) -> None:
        """Another filter answers from now on: count its lookups from here."""
        if self._reported[2] != self._replica.generation:
            self._reported = (self.n_filtered, self.n_false_positives, self._replica.generation)

    def _samples_full(self) -> None:
        """Many absent keys have been drawn: have them written soon, and draw fewer until then."""
        is_flushing = runs(self._flusher)
        if not is_flushing and time.monotonic() - self._flushed_at >= FLUSH_SECONDS and not self._was_forked():
            if self._closing:
                return
            self._flusher = threading.Thread(target=self._flush_aside, name="dlbf-misses", daemon=True)
            try:
                self._flusher.start()
            except RuntimeError:
                self._flusher = None
                self._draw_every(2 * self.sample_every)
        elif not is_flushing or self.n_samples >= 2 * misses.BUFFER_KEYS:
            self._draw_every(2 * self.sample_every)

    def _draw_every(self, every: float) -> None:
        """Draw one absent key in ``every``; those that wait to be written are thinned to that, so all stay uniform."""
        with Attempt(self._sample_lock):
            waiting, before = self._take_samples(), self.sample_every
            if waiting:
                every = max(every, before)  # there are no more of them than were drawn
            self._sample_misses(every, misses.BUFFER_KEYS, 0)
            self._add_samples([key for key in waiting if random.random() * every < before])

    def _flush_aside(self) -> None:
        try:
            self._flush()
        except (lmdb.Error, StoreError) as error:
            log.debug("%s: sampled absent keys were not written: %s", self.path, error)
        finally:
            self._flusher = None

    def _flush(self) -> None:
        """Write what is known of the traffic, in a transaction of its own."""
        with Writing(self) as txn:
            self._report(txn)
            self._commit(txn, OperationLog(), True)

    def _report(self, txn: Any, added: int | None = None, deleted: int | None = None) -> None:
        """Write sampled absent keys and counts of lookups; ``added``, ``deleted``: as of the checkpoint in ``txn``."""
        replica = self._replica
        self._flushed_at = time.monotonic()
        traffic = read_traffic(txn, self._dbs)
        lookups, passed, generation = self.n_filtered, self.n_false_positives, replica.generation
        fresh = (lookups - self._reported[0], passed - self._reported[1])
        self._reported = (lookups, passed, generation)
        traffic = observe(traffic, generation, sum(fresh), fresh[1])
        if added is not None and deleted is not None:
            traffic = replace(traffic, added=added, deleted=deleted)
        if self._miss_limit:
            drawn, every = self._take_samples(), self.sample_every
            every = misses.write_misses(txn, self._dbs, drawn, every, self._miss_limit, traffic.scale)
            self._draw_every(every)
        txn.put(TRAFFIC_KEY, traffic.pack(), db=self._dbs.meta)
        replica.traffic = traffic

    # --- the mapping

    def get_many(self, keys: Iterable[Key], default: Any = None) -> list[Any]:
        """The values of many keys, ``default`` for those that are not there.

        Parameters
        ----------
        keys : iterable of keys
            Anything that the filters take as a batch.
        default : object, optional

        Returns
        -------
        list
            One value per key, in their order, all of one moment.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as s:
        ...     s.update({b"a": b"1", b"b": b"2"})
        ...     s.get_many([b"b", b"x", b"a"])
        [b'2', None, b'1']
        """
        self._check_process()
        wanted = read_keys(keys)
        self._count(lookups=len(wanted))
        maybe, asked_at = self._ask_many_at(wanted)
        out = [default] * len(wanted)
        places = range(len(wanted)) if maybe is None else maybe.nonzero()[0].tolist()
        present: set[int] = set()
        if places:
            values = self._fetch_places(wanted, places, asked_at)
            if len(values) > len(places):
                maybe, places = None, range(len(wanted))
            for i, value in zip(places, values, strict=True):
                if value is not None:
                    out[i] = value
                    present.add(i)
        found = len(present)
        if maybe is None:
            self._count(unfiltered=len(wanted))
        else:
            self._count(filtered=len(wanted) - len(places), false_positives=len(places) - found)
        drawn = self._draw_many(len(wanted) - found)
        if drawn:
            absent = [i for i in range(len(wanted)) if i not in present]
            self._add_samples([wanted[absent[i]] for i in drawn])
        return out

    def _ask_many(self, keys: list[bytes]) -> Any:
        """The filter's answers, None if it may not be asked."""
        return self._ask_many_at(keys)[0]

    def _ask_many_at(self, keys: list[bytes]) -> tuple[Any, int]:
        """The same, and the transaction they are of."""
        if not self._is_current() and not self._refresh():
            return None, 0
        epoch = self.epoch
        number = self._complete_for()
        filter = self._filter() if self._is_current() else None
        if filter is None:
            return None, 0
        answers = filter.contains_many(keys)
        if self.epoch == epoch:
            return answers, number
        # The filter changed while it was being asked; between two changes of one transaction it may have lacked a key.
        with Attempt(self._lock):
            filter = self._filter() if self._is_current() else None
            return (None, 0) if filter is None else (filter.contains_many(keys), self._complete_for())

    def _change_alone(self, change: Callable[[WriteTransaction], Any]) -> Any:
        """Make a change in a transaction of its own; again, if another process was faster."""
        while True:
            try:
                with WriteTransaction(self) as txn:
                    return change(txn)
            except Overtaken as error:
                log.debug("%s: %s", self.path, error)

    def _set_slow(self, key: Key, value: bytes) -> None:
        self._change_alone(lambda txn: txn.put(key, value))
        self._allow_quick_changes()

    def _delete_slow(self, key: Key) -> bool:
        found: bool = self._change_alone(lambda txn: txn.delete(key))
        self._allow_quick_changes()
        return found

    def _allow_quick_changes(self) -> None:
        """Let so many single changes follow without a look at anything but the key."""
        with WriteLock(self, blocking=False) as taken:
            # If not, somebody changes what is counted here.
            if taken and self._builder is None:
                quiet = self._replica.quiet_changes()
                if self._roomy:  # else the next transaction looks how much room there is
                    quiet = min(quiet, self._roomy)
                    self._roomy -= quiet
                self._quick_changes = quiet

    def update(self, other: Any = (), /, **more: bytes) -> None:
        """Store many items, in one transaction."""
        items = other.items() if isinstance(other, Mapping) else other
        with WriteTransaction(self) as txn:
            for key, value in items:
                txn.put(key, value)
            for name, value in more.items():
                txn.put(name, value)

    _MISSING = object()

    def pop(self, key: Key, default: Any = _MISSING) -> Any:
        """Delete a key and return its value."""

        def take(txn: WriteTransaction) -> bytes | None:
            value: bytes | None = txn.get(key)
            if value is not None:
                txn.delete(key)
            return value

        value = self._change_alone(take)
        if value is not None:
            return value
        if default is self._MISSING:
            raise KeyError(key)
        return default

    def setdefault(self, key: Key, default: bytes = b"") -> bytes:
        """The value of a key, which is stored first if it is not there."""
        default = as_value(default)

        def look(txn: WriteTransaction) -> bytes:
            value = txn.get(key)
            if value is not None:
                return bytes(value)
            txn.put(key, default)
            return default

        found: bytes = self._change_alone(look)
        return found

    def clear(self) -> None:
        """Delete everything, in one transaction."""

        def delete_all(txn: WriteTransaction) -> None:
            for key in list(txn.keys()):
                txn.delete(key)

        self._change_alone(delete_all)

    def __len__(self) -> int:
        with self._reading() as txn:
            return self._count_keys(txn)

    def items(  # type: ignore[override]
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in key order.

        Parameters
        ----------
        prefix : key
            Only keys that begin with it.
        start, stop : key, optional
            Only keys from ``start`` on, and before ``stop``.
        reverse : bool
            From the last to the first.

        Returns
        -------
        iterator of (bytes, bytes)
            Of the moment it was begun; the store may be changed meanwhile.  While it is not exhausted or closed, LMDB
            keeps
            old pages and the file grows with each write.
        """
        low = None if start is None else as_key(start)
        high = None if stop is None else as_key(stop)
        return self._items(as_key(prefix), low, high, reverse)

    def _items(
        self, prefix: bytes, start: bytes | None, stop: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        with self._reading() as txn:
            yield from scan(txn, self._dbs, prefix, start, stop, reverse)

    def keys(  # type: ignore[override]
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> Iterator[bytes]:
        """Keys in order; see :meth:`items`."""
        return (key for key, _ in self.items(prefix, start, stop, reverse))

    def values(  # type: ignore[override]
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> Iterator[bytes]:
        """Values in the order of their keys; see :meth:`items`."""
        return (value for _, value in self.items(prefix, start, stop, reverse))

    def __iter__(self) -> Iterator[bytes]:
        return self.keys()

    # --- transactions

    def snapshot(self) -> Snapshot:
        """The store as it is now, unchanged by what follows; close it soon (it is a context manager)."""
        self._check_process()
        return Snapshot(self)

    def write(self) -> WriteTransaction:
        """Begin a write transaction; a context manager that commits, or aborts on an exception.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as s:
        ...     with s.write() as txn:
        ...         _ = txn.put(b"k", b"v")
        ...         inside, outside = txn.get(b"k"), s.get(b"k")
        ...     inside, outside, s.get(b"k")
        (b'v', None, b'v')
        """
        return WriteTransaction(self)

    def _begin_locked(self) -> Any:
        """Begin, with the write lock held; the replica is current then if it can be."""
        self._drop_live()  # it will be of the past, and would keep pages from being used again
        while True:
            try:
                txn = self._begin_txn()
                break
            except lmdb.MapResizedError:
                self._resize(0)
        now = txn.id() - 1
        replica = self._replica
        if replica.filter is None or replica.applied != now or replica.torn:
            with Attempt(self._lock):
                self._withdraw()
                if replica.catch_up(txn, now):
                    self._watch_generation()
                    self._offer(replica.filter, replica.applied, replica.removed)
        return txn

    def _begin_write_again(self, txn: Any, number: int | None = None) -> Any:
        """After a full map: abort, make it larger, begin again; as transaction ``number``, where that matters."""
        self._abort(txn)
        size = self._env.info()["map_size"]
        size = Room.larger(size) if self._room is not None and self._room.mapped else 2 * size
        self._resize(size)
        log.info("%s: the map has grown to %d bytes", self.path, size)
        txn = self._begin_locked()
        if number is not None and txn.id() != number:
            self._abort(txn)
            raise Overtaken(
                "another process wrote while the LMDB map was being made larger; nothing of this transaction has "
                "been stored. "
                "Run it again"
            )
        return txn

    def _commit(self, txn: Any, operations: OperationLog, dirty: bool) -> None:
        """Commit the data and, with it, the journal record."""
        if not dirty:
            return
        number = txn.id()
        replica = self._replica
        steps.reached("data-written")
        if replica.filter is None:
            if replica.kind == FULL:
                with Attempt(self._lock):
                    self._commit_grown(txn, operations, number)
            else:
                self._commit_unfiltered(txn, operations, number)
            return
        flags = FLAG_REMOVED if operations.n_removed else 0
        due = replica.journal_bytes + operations.nbytes > replica.journal_limit
        if len(replica.filter) + operations.n_most > replica.capacity:
            with Attempt(self._lock):
                self._commit_grown(txn, operations, number)
        elif due:
            with Attempt(self._lock):
                self._commit_checkpoint(txn, operations, number, flags)
        else:
            if self.n_samples >= misses.BUFFER_KEYS // 4:
                self._report(txn)
            record = operations.record(number, replica.generation, flags)
            self._commit_with(txn, number, record)
            if len(operations):
                with Attempt(self._lock):
                    self._apply(record, number, operations)
            else:
                with Attempt(self._lock):
                    if replica.filter is not None and replica.applied == number - 1:
                        replica.passed(number, 0, 0, len(record))
                        self._offer(replica.filter, number, replica.removed)
            steps.reached("filter-applied")

    def _commit_with(
        self, txn: Any, number: int, record: bytes, names: tuple[str, str] = ("journal-written", "commit-done")
    ) -> None:
        """Write the journal record and commit; ``names`` of the two steps."""
        tail = self._replica.tail
        journal.append(txn, self._dbs, tail, number, record)
        steps.reached(names[0])
        txn.commit()
        tail.known = number
        steps.reached(names[1])

    def _distrust_replica(self, is_full: bool) -> None:
        """The filter could not follow a commit of ours: it is dropped, not trusted."""
        replica = self._replica
        if is_full:
            replica.full = replica.filter
        replica.drop()

    def _apply(self, record: bytes, number: int, operations: OperationLog) -> None:
        """Apply our own commit, which has happened."""
        replica = self._replica
        if replica.filter is None or replica.applied != number - 1:
            return  # another thread has caught up already
        self._withdraw()
        replica.torn = True
        try:
            apply_record(replica.filter, record)
        except FilterFullError:
            self._distrust_replica(True)
            return
        except BaseException:
            self._distrust_replica(False)
            raise
        replica.passed(number, operations.n_added, operations.n_removed, len(record))
        self._offer(replica.filter, number, replica.removed)

    def _commit_checkpoint(self, txn: Any, operations: OperationLog, number: int, flags: int) -> None:
        """Commit together with a checkpoint, which the journal's length has made due."""
        replica = self._replica
        record = operations.record(number, replica.generation, flags)
        # Operations that take more room than the filter are left to the checkpoint.
        omit = len(record) > replica.journal_limit
        self._withdraw()
        filter = replica.filter
        replica.drop()  # until it is all done: the filter is ahead of the data now
        try:
            apply_record(filter, record)
        except FilterFullError:
            replica.full = filter
            self._commit_grown(txn, operations, number)
            return
        removed = number if flags & FLAG_REMOVED else replica.removed
        added, deleted = replica.added + operations.n_added, replica.deleted + operations.n_removed
        self._report(txn, added, deleted)
        checkpoint, sums = replica.write_checkpoint(txn, filter, number, replica.generation, removed)
        if omit:
            record = operations.record(number, replica.generation, flags | FLAG_OMITTED, False)
        self._commit_with(txn, number, record)
        replica.adopt(filter, checkpoint, sums)
        replica.added, replica.deleted = added, deleted
        self._offer(filter, number, removed)

    def _commit_grown(self, txn: Any, operations: OperationLog, number: int) -> None:
        """Commit together with a larger filter, made from the data as this transaction leaves it."""
        replica = self._replica
        try:
            filter = fill_successor(
                replica.full if replica.filter is None else replica.filter,
                self._count_after(txn, operations),
                operations.n_added,
                lambda: self._keys_after(txn, operations),
                self._info.fpr,
                self._secret,
            )
        except FilterFullError:
            # The data comes first: it is stored, and read without a filter until a rebuild.
            self._withdraw()
            replica.drop()
            replica.reason, replica.kind = f"{TOO_MANY_ALIKE}; remove them and run rebuild()", DAMAGE
            self._commit_unfiltered(txn, operations, number)
            return
        steps.reached("growth-scanned")
        flags = FLAG_REMOVED if operations.n_removed else 0
        traffic = self._traffic_so_far(txn, number)
        added, deleted = traffic.added + operations.n_added, traffic.deleted + operations.n_removed
        self._write_generation(txn, operations, filter, number, flags, replace(traffic, added=added, deleted=deleted))

    def _traffic_so_far(self, txn: Any, number: int) -> Traffic:
        """The traffic record, with the changes before transaction ``number``."""
        return replace(read_traffic(txn, self._dbs), added=self._replica.added, deleted=self._replica.deleted)

    def _write_generation(
        self, txn: Any, operations: OperationLog, filter: Any, number: int, flags: int, traffic: Traffic
    ) -> None:
        """Make ``filter`` the next generation and commit."""
        replica = self._replica
        checkpoint, sums = replica.write_checkpoint(txn, filter, number, number, number)
        self._write_model(txn, filter)
        traffic = replace(traffic, generation=number, absent=0, false_positives=0)
        txn.put(TRAFFIC_KEY, traffic.pack(), db=self._dbs.meta)
        record = operations.record(number, number, flags | FLAG_OMITTED, False)
        self._commit_with(txn, number, record, ("switch-written", "switch-done"))
        self._withdraw()
        self._builder = None
        replica.adopt(filter, checkpoint, sums)
        replica.traffic = traffic
        replica.added, replica.deleted = traffic.added, traffic.deleted
        self._watch_generation()
        self._offer(filter, number, checkpoint.removed)

    def _write_model(self, txn: Any, filter: Any) -> None:
        """Keep the model of a learned filter beside it, and what it was compiled from."""
        db = self._dbs.model
        model = filter.model if generations.is_learned(filter) and filter.model_bytes else None
        compiled = sealed(model.to_bytes()) if model is not None else None
        if txn.get(COMPILED_KEY, db=db) == compiled and (compiled is not None or not txn.stat(db)["entries"]):
            return  # a filter that grows keeps its model
        txn.drop(db, delete=False)
        if model is None:
            return
        txn.put(COMPILED_KEY, compiled, db=db)
        pickle = model.seal(self._secret) if self._secret is not None else None
        if pickle is not None:
            txn.put(ESTIMATOR_KEY, sealed(pickle), db=db)

    def _commit_unfiltered(self, txn: Any, operations: OperationLog, number: int) -> None:
        """Commit in a store whose filter this process cannot use."""
        replica = self._replica
        if replica.kind != VERSION:
            checkpoint = read_checkpoint(txn, self._dbs)
            if replica.kind != SECRET and (checkpoint is None or checkpoint.state != STATE_BROKEN):
                broken = Checkpoint(number, number, number, number, 0, 0, STATE_BROKEN, replica.reason)
                txn.put(CHECKPOINT_KEY, broken.pack(), db=self._dbs.meta)
                journal.delete_range(txn, self._dbs.filter, b"", None)
                checkpoint = broken
                steps.reached("broken-marked")
            if replica.kind != SECRET and number % 256 == 0:
                journal.trim(txn, self._dbs, max(0, number - BROKEN_JOURNAL_RECORDS))
            generation = checkpoint.generation if checkpoint is not None else number
            flags = FLAG_REMOVED if operations.n_removed else 0
            omit = operations.nbytes > BROKEN_RECORD_BYTES and replica.kind != SECRET
            record = operations.record(number, generation, flags | (FLAG_OMITTED if omit else 0), not omit)
            self._commit_with(txn, number, record)
        else:
            # Not ours to write: the gap tells whoever can read the filter.
            txn.commit()
            steps.reached("commit-done")

    # --- growing and rebuilding

    def _tend(self, n_operations: int) -> None:
        """After a commit: a step of the next generation, if one is due.

        What was committed is stored whatever becomes of that, so a failure is no error of the caller's; it is tried
        again later, and by the commit that needs it.
        """
        if self._growth_failed_at != self._replica.generation:
            self._growth_failed, self._growth_failed_at = "", self._replica.generation
            self._growth_failures = self._growth_pause = 0
        if self._growth_pause:
            self._growth_pause -= 1
            return
        try:
            self._grow(n_operations)
        except TimeoutError:
            raise  # from a signal handler
        except self._growth_errors as error:
            self._growth_failures += 1
            self._growth_pause = min(1 << self._growth_failures, GROWTH_PAUSE_COMMITS)
            if str(error) != self._growth_failed:
                self._growth_failed = str(error)
                log.warning("%s: the change is stored, but the filter could not be made larger: %s", self.path, error)

    def _grow(self, n_operations: int) -> None:
        replica = self._replica
        if replica.filter is None and replica.full is not None:
            self._grow_full()
            return
        if self._builder is None and not replica.needs_successor():
            return
        with Attempt(self._build_lock, blocking=False) as taken:
            if not taken:
                return
            builder = self._builder
            if builder is None or self._builder_generation != replica.generation:
                self._builder = None
                filter = replica.filter
                if not replica.needs_successor():
                    return
                # One that did not fit into the regions that its predecessor's keys suggested is made without a model.
                failed = self._failed_build == replica.generation
                empty = generations.successor(None if failed else filter, len(filter), self._info.fpr, self._secret)
                builder = self._builder = self._new_builder(empty)
                self._builder_generation = self._replica.generation
            try:
                self._step(builder, BUILD_KEYS_AT_ONCE + BUILD_KEYS_PER_OPERATION * n_operations)
                if builder.done:
                    self._switch(builder)
            except FilterFullError:
                self._builder = None
                self._failed_build = replica.generation
            except BaseException:
                self._builder = None  # it may have met a key, and not know that it has
                raise

    def _grow_full(self) -> None:
        """Our last commit brought a region more keys than it has room for: make a larger filter now.

        The next commit would do it, too, but that may be a day away, and until then every read would go to the data.
        """
        with Writing(self) as txn:
            while True:
                if self._replica.kind != FULL:
                    return
                number = txn.id()
                try:
                    with Attempt(self._lock):
                        self._commit_grown(txn, OperationLog(), number)
                    return
                except lmdb.MapFullError:
                    txn = self._begin_write_again(txn)

    def _switch(self, builder: Builder, prepare: Callable[[Any, int], Traffic] | None = None) -> None:
        """Make a finished builder's filter the store's, in one transaction.

        ``prepare`` is called with the transaction and its number, and writes what else belongs to the new generation.
        """
        prepare = prepare or self._traffic_so_far
        with Writing(self) as txn:
            while True:
                steps.reached("switch-began")
                number = txn.id()
                try:
                    with Attempt(self._lock):
                        builder.finish(txn)
                        traffic = prepare(txn, number)
                        self._write_generation(txn, OperationLog(), builder.filter, number, 0, traffic)
                    return
                except lmdb.MapFullError:
                    txn = self._begin_write_again(txn)

    def _build(self, builder: Builder, n_keys: int, progress: Callable[[int, int], None]) -> None:
        """Fill a builder's filter up to the newest transaction but a few."""
        passed = 0
        before = 0
        # Five times outrun by writers: the switch will do the rest while they wait.
        while builder.restarts < 5:
            before, restarts = builder.applied, builder.restarts
            n_passed, now = self._step(builder, BUILD_KEYS_PER_STEP)
            passed += n_passed
            behind = now - before
            if builder.restarts != restarts:
                passed = 0
            progress(min(passed, n_keys), n_keys)
            if builder.done and behind <= CLOSE_RECORDS:
                return

    def rebuild(
        self,
        negatives: Iterable[Key] | None = None,
        design: str = "auto",
        *,
        model: Any = "auto",
        fpr: float | None = None,
        deletability: float | None = None,
        adversarial_fpr: float = 1.0,
        dry_run: bool = False,
        if_needed: bool = False,
        allow_false_negatives: bool = False,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> RebuildReport:
        """Learn from the keys there are and the absent ones asked for, and make a new filter, while reads and writes go
        on.

        Parameters
        ----------
        negatives : iterable of keys, optional
            Keys that are asked for and absent.  By default those that the store has sampled itself; if there are too
            few to learn from, the filter gets no model.
        design : str
            "auto": the cheapest of all, with a model where that pays.  "cuckoo": no model.  Or a deletable design of
            :data:`dlbf.theory.DESIGNS`.
        model : str, Model or None
            As for :meth:`dlbf.LearnedFilter.fit`; None: no model.
        fpr : float, optional
            A new target rate.
        deletability : float, optional
            Least share of deleted keys that then answer "absent" without reading the data; 0.9 by default, what costs
            3.3 bits per key.  A store that hardly deletes, or is hardly asked for what it deleted, takes 0.
        adversarial_fpr : float
            Largest rate for somebody who can make keys that look like stored ones.
        dry_run : bool
            Learn and plan, and change nothing.
        if_needed : bool
            Do nothing unless :meth:`drift` says that a rebuild is due.
        allow_false_negatives : bool
            Accept a design that may answer "absent" for a stored key.
        progress : callable, optional
            Called with the phase's name, how much of it is done and how much there is.

        Returns
        -------
        RebuildReport
            Print it.

        Raises
        ------
        StoreError
            If the design cannot be a store's filter, or the store cannot be written.

        Notes
        -----
        Repairs a store whose filter cannot be used.  Nothing is written before the switch, which is one transaction:
        interrupted at any moment, the old filter goes on serving.

        Run it in a process of its own (``dlbf rebuild``) where reads must not wait: training takes a core or two.
        Memory: at most 500,000 keys and as many absent ones are kept to learn from, whatever the size of the store.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as s:
        ...     s.update({b"key %d" % i: b"" for i in range(2000)})
        ...     report = s.rebuild()
        ...     report.done, report.design, s.stats().bits_per_key < 12
        (True, 'cuckoo', True)
        """
        self._check_process()
        if self.readonly:
            raise StoreError(f"{self.path}: opened with readonly=True; open it again to rebuild")
        return rebuild(
            self,
            negatives,
            design=design,
            model=model,
            fpr=fpr,
            deletability=deletability,
            adversarial_fpr=adversarial_fpr,
            dry_run=dry_run,
            if_needed=if_needed,
            allow_false_negatives=allow_false_negatives,
            progress=progress,
        )

    def drift(self, estimate: bool = True) -> Drift:
        """How far the store is from what its filter was built for, and whether a rebuild is due.

        Parameters
        ----------
        estimate : bool
            Also learn from a small sample to tell what a model would save, where that is not known yet; takes a second
            or two, and scikit-learn.

        Returns
        -------
        Drift
            ``due`` and ``reasons``, with the figures behind them.
        """
        self._check_process()
        return drift(self, estimate)

    # --- care

    def checkpoint(self) -> None:
        """Write the filter into the environment and shorten the journal, so that opening needs no replay."""
        with Writing(self) as txn:
            while True:
                number = txn.id()
                if self._replica.filter is None:
                    return
                try:
                    with Attempt(self._lock):
                        self._commit_checkpoint(txn, OperationLog(), number, 0)
                    return
                except lmdb.MapFullError:
                    txn = self._begin_write_again(txn)

    def sync(self) -> None:
        """Wait until everything committed is on disk (for the modes in which commits do not)."""
        with Asking(self) as env:
            env.sync(True)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the whole store to a new directory while it is in use; the copy is a store of one moment.

        A secret kept in the store's directory is copied too.
        """
        self._check_process()
        target = Path(path)
        if target.exists() and any(target.iterdir()):
            raise StoreError(f"{target}: expected no directory or an empty one, found files; choose another path")
        target.mkdir(parents=True, exist_ok=True)
        if self._writer == threading.get_ident():
            raise StoreError("this thread has a write transaction; commit it before the backup")
        # py-lmdb's copy waits for LMDB's writer while it keeps this process's transactions from ending: none may write.
        with WriteLock(self):
            self._env.copy(str(target))
        if self._info.keyed and not self._info.secret_elsewhere and self._secret is not None:
            make_secret(target, self._secret)

    @property
    def state(self) -> str:
        """ "filtering" or "pass-through"."""
        return self._state()[0]

    def _state(self) -> tuple[str, str]:
        if self._env is None:
            return "closed", ""
        if self._word() is None:
            return "pass-through", "LMDB's meta pages cannot be watched"
        if not self._is_current():
            self._refresh(wait=True)
        if self._replica.filter is None and self._replica.reason:
            return "pass-through", self._replica.reason
        return "filtering", ""

    def stats(self) -> Stats:
        """Figures for operators; cheap enough to ask for every second."""
        self._check_process()
        state, reason = self._state()
        with self._reading() as txn:
            n_keys = self._known_keys(txn)
            journal_records = journal.count_records(txn, self._dbs)
            n_misses = txn.stat(self._dbs.misses)["entries"]
            last_txn = txn.id()
        with Asking(self) as env:
            info = env.info()
        psize = self._page_bytes
        replica = self._replica
        filter = replica.filter
        learned = generations.is_learned(filter)
        return Stats(
            keys=n_keys,
            filter_bytes=filter.nbytes - getattr(filter, "model_bytes", 0) if filter is not None else 0,
            model_bytes=getattr(filter, "model_bytes", 0),
            lookups=self.n_lookups,
            filtered=self.n_filtered,
            false_positives=self.n_false_positives,
            unfiltered=self.n_unfiltered,
            fpr_target=self._info.fpr,
            state=state,
            reason=reason,
            capacity=replica.capacity if filter is not None else 0,
            generation=replica.generation if filter is not None else 0,
            journal_records=journal_records,
            journal_bytes=replica.journal_bytes,
            checkpoint_txn=replica.checkpoint.txn_id if replica.checkpoint is not None else 0,
            last_txn=last_txn,
            map_size=info["map_size"],
            map_used=(info["last_pgno"] + 1) * psize,
            file_bytes=(self.path / DATA_FILE).stat().st_size,
            readers=info["num_readers"],
            design="none" if filter is None else generations.design_of(filter),
            model=filter.model.kind if learned else "none",
            misses=n_misses,
        )

    def verify(self) -> Verification:
        """Read everything again and compare the filter with the data.

        Returns
        -------
        Verification
            ``ok``, ``missing`` (keys that the filter would deny), ``extra`` (its entries for no key), ``problems``.

        Notes
        -----
        Reads all data and takes a copy of the filter; reads and writes go on.
        """
        self._check_process()
        return verify(self)
