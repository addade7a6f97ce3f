"""A dict-like LMDB store with a filter in its read path.

How the parts fit together:

* ``dlbf.storage.upkeep``: what a store does behind its methods: reading, committing, growing;
* ``dlbf.storage.environment``, ``dlbf.storage.room``: opening LMDB's environment, and who may write it;
* ``dlbf.storage.layout``: what is on disk, and which writes share a transaction;
* ``dlbf.kernels.readpath``: compiled reads of absent keys, and changes of single ones;
* ``dlbf.storage.journal``: what each commit did;
* ``dlbf.storage.replica``: this process's copy of the filter;
* ``dlbf.storage.build``: the next generation, made while everything goes on;
* ``dlbf.storage.misses``: absent keys that were asked for, sampled to learn from;
* ``dlbf.storage.rebuild``, ``dlbf.storage.drift``: learning a filter, and when that is due;
* ``dlbf.storage.transactions``: write transactions and snapshots.

Locks, in the order they are taken: ``_write_lock`` (one write transaction in this process; LMDB's own lock is one in
all processes), then ``_lock`` (the replica).  Readers take neither: if the replica is being changed they read the data.
They are taken only with the compiled context managers of ``dlbf.kernels.readpath``: no signal's exception can keep
those from giving them back.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from io import FileIO
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import lmdb

from dlbf.errors import FormatError, StoreError, VersionError
from dlbf.kernels.filelock import FileLock
from dlbf.kernels.journal import OperationLog
from dlbf.kernels.keys import read_keys
from dlbf.kernels.methods import own_methods
from dlbf.kernels.readpath import Attempt, Reading, WriteLock, Writing
from dlbf.storage import generations, journal, misses
from dlbf.storage.drift import drift
from dlbf.storage.environment import SYNC_MODES, map_meta_pages, open_environment
from dlbf.storage.layout import (
    DATA_DATABASES,
    DATA_FILE,
    DATABASES,
    FLAG_OMITTED,
    GUARD_KEY,
    META_TXN_ID_OFFSET,
    PLAIN_KEY_BYTES,
    STORE_KEY,
    TAIL_KEY,
    StoreInfo,
)
from dlbf.storage.longkeys import Databases, count_range, scan
from dlbf.storage.rebuild import rebuild
from dlbf.storage.replica import Replica, read_traffic
from dlbf.storage.report import Drift, RebuildReport, Stats, Verification
from dlbf.storage.room import WRITER_BYTE
from dlbf.storage.secret import SECRET_BYTES, make_secret, read_secret
from dlbf.storage.transactions import Key, Snapshot, WriteTransaction, as_items, as_value
from dlbf.storage.upkeep import BEGIN_ERRORS, Overtaken, Upkeep, runs
from dlbf.storage.verify import verify
from dlbf.storage.views import ItemsRange, KeysRange, ValuesRange, bounds

__all__ = ["Store"]

log = logging.getLogger("dlbf.storage")

DEFAULT_FPR = 0.01
# How long close() waits for what other threads are writing.
CLOSE_PATIENCE_SECONDS = 30.0
# Read at once from the copy that a backup is made of.
COPY_BYTES = 1 << 20
# Fewer sampled keys are not worth a transaction when the store is closed.
FLUSH_LEAST_KEYS = 32


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse the empty path, which would be the current directory."""
    if not os.fspath(path):
        raise ValueError("path must name a directory, found an empty one; the current directory is '.'")


def check_lock_timeout(lock_timeout: float | None) -> None:
    """Refuse what is no number of seconds."""
    if lock_timeout is None:
        return
    if isinstance(lock_timeout, bool) or not isinstance(lock_timeout, (int, float)) or not 0 <= lock_timeout < 1e9:
        raise ValueError(
            f"lock_timeout must be a number of seconds from 0 on, or None to wait without end, found {lock_timeout!r}"
        )


@own_methods("get", "put", "delete")
class Store(Upkeep, MutableMapping[bytes, bytes]):
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
    lock_timeout : float, optional
        Most seconds that opening, a write, a rebuild or a backup waits for another process that is writing; then it is
        a StoreError.  None: as long as that takes.  Ctrl-C ends the wait, and after three seconds the log tells which
        process it is for.

    Raises
    ------
    StoreError
        If the directory holds something else, the store is open in this process already, or another process writes
        for longer than ``lock_timeout``.
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
    What else in this process writes to wrong addresses can damage the store.  Linux only, on ext4 or tmpfs.

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
        lock_timeout: float | None = None,
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
        check_path(path)
        if secret is not None and not keyed:
            raise ValueError("pass either secret= or keyed=False, not both")
        if not isinstance(sample_misses, int) or sample_misses < 0:
            raise ValueError(f"sample_misses must be True, False or a number of keys, found {sample_misses!r}")
        check_lock_timeout(lock_timeout)
        limit = misses.DEFAULT_LIMIT if sample_misses is True else int(sample_misses)
        super().__init__(Path(path), readonly, 0 if readonly else limit)
        self._close_lock = threading.RLock()
        self._estimate: tuple[tuple[int, int, int], float] | None = None  # see drift()
        if (readonly or not create) and not self._has_data():
            raise StoreError(f"{self.path}: there is no store; expected a directory with data.mdb. Check the path")
        self._env, self._room = open_environment(
            self.path,
            map_size,
            max_readers,
            sync,
            readonly=readonly,
            writemap=writemap,
            lock_timeout=lock_timeout,
        )
        try:
            self._file_lock = self._room.turns if self._room is not None else None
            if self._file_lock is None:
                # A backup, which also who only reads can make, has to wait for who writes.
                data = FileIO(self.path / DATA_FILE)
                self._file_lock = FileLock(data, WRITER_BYTE, self.path, lock_timeout, advisory=True)
            self._open(fpr, secret, keyed)
        except BaseException as error:
            self._close()
            self._blame_disk(error)
            if isinstance(error, lmdb.Error):
                raise StoreError(f"{self.path}: LMDB cannot read it: {error}; restore a backup") from error
            raise

    # --- opening

    def _has_data(self) -> bool:
        try:
            return (self.path / DATA_FILE).exists()
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be opened: {error}") from error

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
        opening for writing waits for the current writer.
        """
        while True:
            try:
                return self._find_databases(fpr, secret, keyed)
            except lmdb.MapResizedError:
                self._resize(0)

    def _find_databases(self, fpr: float, secret: bytes | None, keyed: bool) -> Databases:
        env = self._env
        if self.readonly:
            try:
                named = [env.open_db(name.encode(), create=False) for name in DATABASES]
                return Databases._make([*named, env.open_db()])
            except (lmdb.NotFoundError, lmdb.IncompatibleError, lmdb.ReadonlyError) as error:
                raise StoreError(
                    f"{self.path}: an LMDB environment, but not a store, or a damaged one ({error}); check the path, "
                    "or open it once without readonly=True"
                ) from error
        with Attempt(self._file_lock or threading.Lock()), env.begin(write=True) as txn:
            is_new = txn.stat()["entries"] == 0
            # One of ours that was dropped is made anew, so that the data can be read; the filter is not trusted then,
            # because this transaction has no record in the journal.
            is_ours = sum(txn.get(name.encode()) is not None for name in DATABASES) > len(DATABASES) // 2
            try:
                named = [
                    env.open_db(name.encode(), txn=txn, create=is_new or (is_ours and name not in DATA_DATABASES))
                    for name in DATABASES
                ]
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
            If another thread has been writing, or making a backup, for 30 seconds: the store stays open then.  It never
            waits for another *process*: if one is writing, the journal stays as it is, and the sample of absent keys
            that this process has not written yet is lost.
        """
        if self._was_forked():
            # Not ours to close: it would free the parent's slots in LMDB's table of readers.
            self._env = None
            return
        if self._env is None:
            self._let_go()  # what is left, if that was interrupted
            return
        self._end_left_open()
        with Attempt(self._close_lock):
            if self._env is None:
                return  # another thread was faster
            self._closing = threading.get_ident()
            try:
                if not self.readonly:
                    self._without_writers(lambda: None)  # and nobody begins to write from now on
                    self._leave_tidy()
                self._close()
            finally:
                self._may_have_closed()

    def _leave_tidy(self) -> None:
        """Save the next who opens it a long journal, and keep what was sampled; unless another process is writing."""
        replica = self._replica
        with contextlib.suppress(lmdb.Error, StoreError):
            if replica.filter is not None and replica.journal_bytes > 4096:
                self._checkpoint(wait=False)
            if self._n_samples >= FLUSH_LEAST_KEYS:
                self._flush(wait=False)

    def _close(self) -> None:
        if self._env is None or self._was_forked():
            self._let_go()
            return
        self._closing = threading.get_ident()
        try:
            for thread in (self._flusher, self._loader):
                if thread is not None and runs(thread):
                    thread.join(CLOSE_PATIENCE_SECONDS)
                    if thread.is_alive():
                        # It waits for this one: a signal handler that came in the middle of a change.
                        raise StoreError(f"{self.path}: a change of the store has not ended; close it later")
            # py-lmdb waits for a write transaction of another thread, which could not end it any more then.
            if hasattr(self, "_replica"):
                self._replica.quiet = True  # a thread that is loading the filter will fail, and is right to
            self._without_writers(self._let_go)
        finally:
            self._may_have_closed()

    def _may_have_closed(self) -> None:
        if self._env is not None:
            self._closing = 0

    def _without_writers(self, act: Callable[[], object]) -> None:
        """Wait until no thread of this process writes, and do something before the next one does."""
        with WriteLock(self, timeout=CLOSE_PATIENCE_SECONDS) as taken:
            if not taken:
                raise StoreError(
                    f"{self.path}: another thread has been writing, or making a backup, for "
                    f"{CLOSE_PATIENCE_SECONDS:.0f} s; end its transaction there, then close the store"
                )
            act()

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
        epoch = self._epoch
        number = self._complete_for()
        filter = self._filter() if self._is_current() else None
        if filter is None:
            return None, 0
        answers = filter.contains_many(keys)
        if self._epoch == epoch:
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

    def _set_slow(self, key: Key, value: bytes | bytearray | memoryview) -> None:
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
            if taken and self._growth.builder is None:
                quiet = self._replica.quiet_changes()
                if self._roomy:  # else the next transaction looks how much room there is
                    quiet = min(quiet, self._roomy)
                    self._roomy -= quiet
                self._quick_changes = quiet

    def update(self, other: Any = (), /, **more: bytes) -> None:
        """Store many items, in one transaction."""
        items = chain(as_items(other), more.items())
        while True:
            made: list[Any] | None = None
            try:
                with WriteTransaction(self) as txn:
                    made = txn._redo  # kept where another process can come in between; the transaction lets go of it
                    for key, value in items:
                        txn.put(key, value)
                return
            except Overtaken as error:
                if made is None:
                    raise
                # Nothing of it depends on what another process has written meanwhile.
                log.debug("%s: %s", self.path, error)
                items = chain(made, items)

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

    def popitem(self) -> tuple[bytes, bytes]:
        """Delete the first key and return it with its value; KeyError if the store is empty."""

        def take(txn: WriteTransaction) -> tuple[bytes, bytes] | None:
            item = next(txn.items(), None)
            if item is not None:
                txn.delete(item[0])
            return item

        item: tuple[bytes, bytes] | None = self._change_alone(take)
        if item is None:
            raise KeyError("popitem(): the store is empty")
        return item

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

    def items(
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> ItemsRange:
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
        ItemsRange
            A view, like that of a dict.  Each of its iterators is of the moment it was begun; the store may be changed
            meanwhile.  While one is not exhausted or closed, LMDB keeps old pages and the file grows with each write.
        """
        return ItemsRange(self, *bounds(prefix, start, stop), reverse)

    def _item_range(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        # Here, not when the first item is asked for: what is put in between is not of the moment it was begun.
        reading = self._reading()
        return self._walk(reading, scan(reading.__enter__(), self._dbs, b"", start, stop, reverse))

    def _walk(self, reading: Reading, found: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """What was found in a read transaction, which ends with it; or with the last reference, if it never begins."""
        try:
            self._check_process()
            for item in found:
                yield item
                # The parent may have ended the transaction since, and its pages may have become others.
                if self._was_forked():
                    self._check_process()
        except BaseException as error:
            reading.__exit__(type(error), error, error.__traceback__)
            raise
        finally:
            reading.end()

    def _count_range(self, start: bytes, stop: bytes | None) -> int:
        with self._reading() as txn:
            return count_range(txn, self._dbs, start, stop)

    def _key_range(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[bytes]:
        return (key for key, _ in self._item_range(start, stop, reverse))

    def keys(
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> KeysRange:
        """Keys in order; see ``items``."""
        return KeysRange(self, *bounds(prefix, start, stop), reverse)

    def values(
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> ValuesRange:
        """Values in the order of their keys; see ``items``."""
        return ValuesRange(self, *bounds(prefix, start, stop), reverse)

    def __iter__(self) -> Iterator[bytes]:
        return self._key_range(b"", None, False)

    def __reversed__(self) -> Iterator[bytes]:
        return self._key_range(b"", None, True)

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

    # --- growing and rebuilding

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
            ``dlbf.theory.DESIGNS``.
        model : str, Model or None
            As for ``dlbf.LearnedFilter.fit``; None: no model.
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
            Do nothing unless ``drift`` says that a rebuild is due.
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
        self._checkpoint()

    def _checkpoint(self, wait: bool = True) -> None:
        with Writing(self, wait) as txn:
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
        if self.readonly:
            raise StoreError(f"{self.path}: opened with readonly=True; sync() is for who writes")
        with self._reading():  # so that the map does not move meanwhile
            self._env.sync(True)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the whole store to a new directory while it is in use; the copy is a store of one moment.

        A secret kept in the store's directory is copied too.  Writers of this process wait until it is done, those of
        others go on.
        """
        self._check_process()
        target = Path(path)
        if self._writer == threading.get_ident():
            raise StoreError("this thread has a write transaction; commit it before the backup")
        try:
            target.mkdir(parents=True, exist_ok=True)
            is_empty = not any(target.iterdir())
        except OSError as error:
            raise StoreError(
                f"{target}: expected no directory or an empty one: {error}; choose another path"
            ) from error
        if not is_empty:
            raise StoreError(f"{target}: expected no directory or an empty one, found files; choose another path")
        try:
            # py-lmdb's copy waits for LMDB's writer while it keeps this process's transactions from ending: none may
            # write.
            with WriteLock(self), FileIO(target / DATA_FILE, "x") as file:
                turns = self._file_lock
                assert turns is not None
                turns.acquire(shared=True)
                try:
                    self._copy(file, turns.release)
                finally:
                    turns.release()
        except BaseException as error:
            with contextlib.suppress(OSError):
                (target / DATA_FILE).unlink(missing_ok=True)
            if isinstance(error, (lmdb.Error, OSError)):
                raise StoreError(f"{target}: the copy cannot be written: {error}") from error
            raise
        if self._info.keyed and not self._info.secret_elsewhere and self._secret is not None:
            make_secret(target, self._secret)

    def _copy(self, file: FileIO, meta_done: Callable[[], object]) -> None:
        """Write the environment to a file; ``meta_done`` is called when LMDB's writers need not wait.

        LMDB writes into a pipe, so that who reads from it can be interrupted, and sees when it has the meta pages.
        """
        reading, writing = os.pipe()
        problems: list[lmdb.Error] = []

        def write() -> None:
            try:
                if hasattr(signal, "pthread_sigmask"):
                    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])  # if nobody reads any more
                self._env.copyfd(writing)
            except lmdb.Error as error:
                problems.append(error)
            finally:
                os.close(writing)

        writer = threading.Thread(target=write, name="dlbf-backup", daemon=True)
        try:
            try:
                writer.start()
            except RuntimeError:  # there are too many threads
                os.close(writing)
                raise
            while part := os.read(reading, COPY_BYTES):
                file.write(part)
                if file.tell() >= 2 * self._page_bytes:
                    meta_done()
            os.fsync(file.fileno())
        finally:
            os.close(reading)
            if writer.is_alive():
                writer.join()
        if problems:
            raise problems[0]

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
            info = self._env.info()
        psize = self._page_bytes
        replica = self._replica
        filter = replica.filter
        learned = generations.is_learned(filter)
        return Stats(
            keys=n_keys,
            filter_bytes=filter.nbytes - getattr(filter, "model_bytes", 0) if filter is not None else 0,
            model_bytes=getattr(filter, "model_bytes", 0),
            lookups=self._n_lookups,
            filtered=self._n_filtered,
            false_positives=self._n_false_positives,
            unfiltered=self._n_unfiltered,
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
            file_bytes=self._file_bytes(),
            readers=info["num_readers"],
            design="none" if filter is None else generations.design_of(filter),
            model=filter.model.kind if learned else "none",
            misses=n_misses,
        )

    def _file_bytes(self) -> int:
        try:
            return (self.path / DATA_FILE).stat().st_size
        except OSError as error:
            raise StoreError(
                f"{self.path}: data.mdb is not there any more ({error}); the directory was moved or removed while the "
                "store was open. Close it, and open it where it is now"
            ) from error

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
