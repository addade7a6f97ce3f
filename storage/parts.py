"""Opening the environment of a store or a guard: its databases, what it says about itself, its log."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lmdb

from dlbf.errors import FormatError, StoreError, VersionError
from dlbf.kernels.journal import OperationLog
from dlbf.kernels.locks import Held
from dlbf.storage import generations
from dlbf.storage.environment import Environment, Writes
from dlbf.storage.layout import (
    DATA_DATABASES,
    DATA_FILE,
    DATABASES,
    FLAG_OMITTED,
    GUARD_KEY,
    GUARD_LOG_FILE,
    STORE_KEY,
    Checkpoint,
    StoreInfo,
)
from dlbf.storage.ledger import Settings
from dlbf.storage.lmdblog import LmdbLog
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.longkeys import Databases, count_keys
from dlbf.storage.opening import SYNC_MODES, open_environment
from dlbf.storage.secret import SECRET_BYTES, make_secret, read_secret
from dlbf.storage.tablelog import TableLog

__all__ = ["DEFAULT_FPR", "Opened", "Options", "checked_path", "new_info", "open_parts", "read_settings"]

log = logging.getLogger("dlbf.storage")

DEFAULT_FPR = 0.01

# Writes what else a new environment has, in the transaction that makes it.
OnCreate = Callable[[Txn, LmdbLog], None]


def checked_path(path: str | os.PathLike[str]) -> Path:
    """A path; not the empty one, which would be the current directory."""
    if not os.fspath(path):
        raise ValueError("path must name a directory, found an empty one; the current directory is '.'")
    return Path(path)


@dataclass(frozen=True, slots=True)
class Options:
    """How an environment is opened; see ``dlbf.storage.Store``."""

    fpr: float | None = None
    readonly: bool = False
    sync: str = "full"
    writemap: bool = False
    secret: bytes | None = None
    keyed: bool = True
    map_size: int | None = None
    max_readers: int = 254
    create: bool = True
    lock_timeout: float | None = None
    remember_bytes: int | None = None

    def check(self) -> None:
        """ValueError if they cannot be meant."""
        if self.sync not in SYNC_MODES:
            raise ValueError(f"sync must be one of {', '.join(SYNC_MODES)}, found {self.sync!r}")
        if self.writemap and (self.sync != "none" or self.readonly):
            raise ValueError(
                f'writemap=True is for writing with sync="none", found sync={self.sync!r}, readonly={self.readonly}; '
                "leave it out"
            )
        if self.secret is not None and len(self.secret) != SECRET_BYTES:
            raise ValueError(f"secret must be {SECRET_BYTES} bytes, found {len(self.secret)}")
        generations.check_fpr(self.fpr)
        remember = self.remember_bytes
        if remember is not None and (not isinstance(remember, int) or isinstance(remember, bool) or remember < 0):
            raise ValueError(f"remember_bytes must be a number of bytes from 0 on, or None, found {remember!r}")
        timeout = self.lock_timeout
        is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and 0 <= timeout < 1e9):
            raise ValueError(
                f"lock_timeout must be a number of seconds from 0 on, or None to wait without end, found {timeout!r}"
            )
        if self.secret is not None and not self.keyed:
            raise ValueError("pass either secret= or keyed=False, not both")


@dataclass(frozen=True, slots=True)
class Opened:
    """What a face is made of, beside its source."""

    environment: Environment
    writes: Writes
    log: TableLog
    settings: Settings


def open_parts(path: Path, options: Options, on_create: OnCreate | None = None) -> Opened:
    """Open, or make, an environment; ``on_create`` says that it is a guard's."""
    if on_create is None and (path / GUARD_LOG_FILE).exists():
        raise StoreError(f"{path}: this is the directory of a guard; open it with Guard(engine, path)")
    if (options.readonly or not options.create) and not _has_data(path):
        raise StoreError(f"{path}: there is no store; expected a directory with data.mdb. Check the path")
    handle, room = open_environment(
        path,
        options.map_size,
        options.max_readers,
        options.sync,
        readonly=options.readonly,
        writemap=options.writemap,
        lock_timeout=options.lock_timeout,
    )
    environment = Environment(path, options.readonly, handle, room)
    writes = Writes(environment)
    try:
        environment.take_turns(options.lock_timeout)
        with contextlib.suppress(lmdb.Error):
            handle.reader_check()
        dbs = _databases(environment, options, on_create)
        settings = read_settings(environment, dbs, options, on_create is not None)
        environment.serve(dbs)
        writes.attach(dbs.data)
        n_stored = None if on_create is not None else lambda txn: count_keys(txn, dbs)
        return Opened(environment, writes, LmdbLog(environment, dbs, n_stored), settings)
    except BaseException as error:
        environment.let_go()
        environment.blame_disk(error)
        if isinstance(error, lmdb.Error):
            raise StoreError(f"{path}: LMDB cannot read it: {error}; restore a backup") from error
        raise


def _has_data(path: Path) -> bool:
    try:
        return (path / DATA_FILE).exists()
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened: {error}") from error


def _databases(environment: Environment, options: Options, on_create: OnCreate | None) -> Databases:
    """The handles of the databases; a new environment is filled in one transaction.

    py-lmdb gives out lasting handles only in a write transaction (or in an environment that is read-only), so opening
    for writing waits for the current writer.
    """
    while True:
        try:
            return _existing(environment) if options.readonly else _made(environment, options, on_create)
        except lmdb.MapResizedError:
            environment.resize(0)


def _existing(environment: Environment) -> Databases:
    handle = environment.handle
    try:
        named = [handle.open_db(name.encode(), create=False) for name in DATABASES]
        return Databases._make([*named, handle.open_db()])
    except (lmdb.NotFoundError, lmdb.IncompatibleError, lmdb.ReadonlyError) as error:
        raise StoreError(
            f"{environment.path}: an LMDB environment, but not a store, or a damaged one ({error}); check the path, "
            "or open it once without readonly=True"
        ) from error


def _made(environment: Environment, options: Options, on_create: OnCreate | None) -> Databases:
    handle = environment.handle
    with Held(environment.writes.turns or threading.Lock()), handle.begin(write=True) as txn:
        is_new = txn.stat()["entries"] == 0
        # One of ours that was dropped is made anew, so that the data can be read; the filter is not trusted then,
        # because this transaction has no record in the journal.
        is_ours = sum(txn.get(name.encode()) is not None for name in DATABASES) > len(DATABASES) // 2
        try:
            named = [
                handle.open_db(name.encode(), txn=txn, create=is_new or (is_ours and name not in DATA_DATABASES))
                for name in DATABASES
            ]
            dbs = Databases._make([*named, handle.open_db(txn=txn)])
        except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
            raise StoreError(
                f"{environment.path}: an LMDB environment of another program ({error}); choose another directory"
            ) from error
        if is_new:
            _fill(txn, LmdbLog(environment, dbs), options, on_create)
    return dbs


def _fill(txn: Txn, new: LmdbLog, options: Options, on_create: OnCreate | None) -> None:
    """Write what a new environment has."""
    info, secret = new_info(new.environment.path, options)
    blob = generations.new_filter("auto", 0, info.fpr, secret).to_bytes()
    position = new.position(txn)
    new.write_checkpoint(txn, blob, Checkpoint.of(position, position, 0), (None, b""))
    new.append(txn, position, OperationLog().record(position, position, FLAG_OMITTED))
    txn.put(STORE_KEY, info.pack(), db=new.dbs.meta)
    if on_create is not None:
        on_create(txn, new)


def new_info(path: Path, options: Options) -> tuple[StoreInfo, bytes | None]:
    """What a new store or guard says about itself, and its secret, which is kept if it was not given."""
    fpr, secret = DEFAULT_FPR if options.fpr is None else options.fpr, options.secret
    info = StoreInfo.new(fpr, secret is not None, options.keyed)
    if options.keyed and secret is None:
        secret = make_secret(path)
    return info, secret


def read_settings(environment: Environment, dbs: Databases, options: Options, is_guard: bool) -> Settings:
    """What a store or a guard says about itself."""
    path, fpr = environment.path, options.fpr
    with environment.reading() as txn:
        record = txn.get(STORE_KEY, db=dbs.meta)
        is_guards = txn.get(GUARD_KEY, db=dbs.meta) is not None
    if is_guards != is_guard:
        found, expected = ("guard", "Guard(engine, path)") if is_guards else ("store", "Store(path)")
        raise StoreError(f"{path}: this is the environment of a {found}; open it with {expected}")
    try:
        if record is None:
            raise FormatError("record 'store' in meta is missing")
        info = StoreInfo.unpack(record)
    except VersionError:
        raise
    except FormatError:
        # Everything in it can be guessed; verify() tells, rebuild() repairs.
        info = StoreInfo(fpr or DEFAULT_FPR, 0, options.secret is not None, options.keyed)
    if fpr is not None and abs(fpr - info.fpr) > 1e-12:
        log.warning(
            "%s: opened with fpr=%g, but the store was made for %g and keeps it; change it with rebuild(fpr=%g)",
            path,
            fpr,
            info.fpr,
            fpr,
        )
    secret = None
    if info.keyed:
        secret = read_secret(path) if options.secret is None else bytes(options.secret)
    why_tables = "what its engine can do is not known" if is_guard else ""
    return Settings(str(path), info, secret, why_tables, options.remember_bytes)
