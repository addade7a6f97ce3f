"""A dict-like LMDB store with a filter in its read path.

A store is a face: reads are those of ``dlbf.kernels.lookup`` and ``dlbf.storage.face``, and each write is one
transaction that holds the data and its record of the log (``dlbf.storage.commits``).  ARCHITECTURE.md shows how the
parts fit together.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, MutableMapping
from functools import partial
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import TypeVar

import lmdb

from dlbf.errors import StoreError
from dlbf.kernels.changes import SingleChanges, StoreCore
from dlbf.kernels.environment import WriteLock
from dlbf.kernels.methods import own_methods
from dlbf.storage.build import store_builder
from dlbf.storage.commits import Commits
from dlbf.storage.copying import copy_environment
from dlbf.storage.environment import MAP_ERRORS, Overtaken
from dlbf.storage.face import Face, sample_limit
from dlbf.storage.keys import Items, Key, Value, as_items, as_value
from dlbf.storage.layout import DATA_FILE, PLAIN_KEY_BYTES
from dlbf.storage.lmdblog import LmdbLog
from dlbf.storage.lmdbparts import StoreParts
from dlbf.storage.lmdbsource import LmdbSource
from dlbf.storage.parts import Options, checked_path, open_parts
from dlbf.storage.report import Verification
from dlbf.storage.secret import make_secret
from dlbf.storage.transactions import Snapshot, WriteTransaction, put_all
from dlbf.storage.verify import verify

__all__ = ["Store"]

T = TypeVar("T")

log = logging.getLogger("dlbf.storage")


@own_methods("get", "put", "delete")
class Store(StoreCore, Face, MutableMapping[bytes, bytes]):
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
    remember_bytes : int, optional
        Most memory, in this process, for absent keys that the filter lets pass and that were read once: they cost no
        second read.  None: 64 KiB, or a tenth of the filter if that is more; it is allocated as it fills.  0: none.

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
        remember_bytes: int | None = None,
    ) -> None:
        options = Options(
            fpr, readonly, sync, writemap, secret, keyed, map_size, max_readers, create, lock_timeout, remember_bytes
        )
        options.check()
        limit = sample_limit(sample_misses, readonly)
        opened = open_parts(checked_path(path), options)
        environment, log = opened.environment, opened.log
        ledger, traffic = self._prepare(opened, limit)
        source = LmdbSource(environment, environment.dbs)
        new_builder = partial(store_builder, log, source.keys_after)
        self._commits = Commits(opened, ledger, source, traffic, new_builder)
        self._commits.parts = StoreParts(source)
        assert isinstance(log, LmdbLog)
        self._changes = SingleChanges(
            opened.writes, log, ledger, traffic, lmdb.Transaction, MAP_ERRORS, PLAIN_KEY_BYTES
        )
        # The filter is loaded when it is first needed: a process that only wants a few present keys never pays for it.
        self._wire(ledger, traffic, source)
        try:
            with environment.reading() as txn:
                traffic.start(txn, log)
        except BaseException:
            self._close()
            raise

    def __repr__(self) -> str:
        return f"<Store {str(self.path)!r}{': ' if self.state != 'closed' else ', '}{self.state}>"

    # --- changes, each in a transaction of its own

    def _change_alone(self, change: Callable[[WriteTransaction], T]) -> T:
        """Make a change in a transaction of its own; again, if another process was faster."""
        while True:
            try:
                with self.write() as txn:
                    return change(txn)
            except Overtaken as error:
                log.debug("%s: %s", self.path, error)

    def _set_slowly(self, key: Key, value: Value) -> None:
        self._change_alone(lambda txn: txn.put(key, value))
        self._allow_quick_changes()

    def _delete_slowly(self, key: Key) -> bool:
        was_there = self._change_alone(lambda txn: txn.delete(key))
        self._allow_quick_changes()
        return was_there

    def _grow_if_due(self, n_operations: int) -> None:
        self._commits.grow_if_due(n_operations)

    def _allow_quick_changes(self) -> None:
        """Let so many single changes follow without a look at anything but the key."""
        with WriteLock(self._commits.writes, blocking=False) as taken:
            # If not, somebody changes what is counted here.
            if taken and self._commits.growth.builder is None:
                self._changes.allow(self._environment.take_roomy(self.ledger.quiet_changes()))

    def update(self, other: Items = (), /, **more: bytes) -> None:
        """Store many items, in one transaction."""
        put_all(self._commits, chain(as_items(other), more.items()))

    def _take(self, key: bytes) -> bytes | None:
        def take(txn: WriteTransaction) -> bytes | None:
            value = txn.get(key)
            if value is not None:
                txn.delete(key)
            return value

        return self._change_alone(take)

    def popitem(self) -> tuple[bytes, bytes]:
        """Delete the first key and return it with its value; KeyError if the store is empty."""

        def take(txn: WriteTransaction) -> tuple[bytes, bytes] | None:
            item = next(txn.items(), None)
            if item is not None:
                txn.delete(item[0])
            return item

        item = self._change_alone(take)
        if item is None:
            raise KeyError("popitem(): the store is empty")
        return item

    def setdefault(self, key: Key, default: bytes = b"") -> bytes:
        """The value of a key, which is stored first if it is not there."""
        default = as_value(default)

        def look(txn: WriteTransaction) -> bytes:
            value = txn.get(key)
            if value is not None:
                return value
            txn.put(key, default)
            return default

        return self._change_alone(look)

    def clear(self) -> None:
        """Delete everything, in one transaction."""

        def delete_all(txn: WriteTransaction) -> None:
            for key in list(txn.keys()):
                txn.delete(key)

        self._change_alone(delete_all)

    # --- transactions

    def snapshot(self) -> Snapshot:
        """The store as it is now, unchanged by what follows; close it soon (it is a context manager)."""
        self._environment.check()
        return Snapshot(self._environment, self.ledger, self.traffic)

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
        return WriteTransaction(self._commits)

    # --- care

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the whole store to a new directory while it is in use; the copy is a store of one moment.

        A secret kept in the store's directory is copied too.  Writers of this process wait until it is done, those of
        others go on.
        """
        environment, writes, settings = self._environment, self._commits.writes, self.ledger.settings
        environment.check()
        target = Path(path)
        if writes.writer == threading.get_ident():
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
            with WriteLock(writes), FileIO(target / DATA_FILE, "x") as file:
                turns = writes.turns
                assert turns is not None
                turns.acquire(shared=True)
                try:
                    copy_environment(environment, file, turns.release)
                finally:
                    turns.release()
        except BaseException as error:
            with contextlib.suppress(OSError):
                (target / DATA_FILE).unlink(missing_ok=True)
            if isinstance(error, (lmdb.Error, OSError)):
                raise StoreError(f"{target}: the copy cannot be written: {error}") from error
            raise
        if settings.info.keyed and not settings.info.secret_elsewhere and settings.secret is not None:
            make_secret(target, settings.secret)

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
        self._environment.check()
        return verify(self.ledger, self.source)
