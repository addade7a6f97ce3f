"""Opening a guard's directory: its lock, its environment, and what to do with one that cannot be trusted."""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import lmdb

from dlbf.errors import StoreError
from dlbf.storage.intents import LOCK_FILE, NO_BOOT, LockFile, Note
from dlbf.storage.layout import (
    CHECKPOINT_KEY,
    DATA_FILE,
    GUARD_KEY,
    READERS_FILE,
    SECRET_FILE,
    STATE_BROKEN,
    Checkpoint,
    GuardInfo,
)
from dlbf.storage.lmdblog import LmdbLog
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.owner import ID_FILE
from dlbf.storage.parts import Opened, Options, open_parts

__all__ = ["UNATTACHED", "Opening", "prepare_folder"]

log = logging.getLogger("dlbf.storage")
# A directory with none of these is not a guard's.
OWN_FILES = {LOCK_FILE, ID_FILE, SECRET_FILE, DATA_FILE, READERS_FILE}
UNATTACHED = "the engine's keys have not been read yet; run attach()"


def prepare_folder(folder: Path) -> None:
    """A directory for a guard, made if it does not exist; StoreError if it is somebody else's."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder}: expected a directory for the guard, found a file; give it another path")
    folder.mkdir(parents=True, exist_ok=True)
    strange = sorted(entry.name for entry in folder.iterdir())
    if strange and not OWN_FILES & set(strange):
        raise StoreError(
            f"{folder}: expected an empty or a new directory, found {', '.join(strange[:3])}; "
            "give the guard a directory of its own"
        )


class Opening:
    """Opening a guard's environment; one that cannot be trusted is put aside, because all of it can be made again."""

    def __init__(
        self,
        folder: Path,
        options: Options,
        lock_file: LockFile,
        boot: bytes | None,
        identity: Callable[[], bytes],
    ) -> None:
        self.folder = folder
        self.options = options
        self.lock_file = lock_file
        self.boot = boot
        self.identity = identity
        self.problem = ""  # why a guard that was opened for reading cannot use its filter

    def open(self) -> Opened:
        """The environment."""
        lock_file = self.lock_file
        if self.options.readonly:
            lock_file.join_users()
            lock_file.read_quietly()
            opened = open_parts(self.folder, self.options, self._fill)
            if self._may_be_behind() or lock_file.damaged:
                self.problem = "the machine stopped while commits were not on disk; open it for writing"
            return opened
        lock_file.lock()
        try:
            return self._open_or_discard()
        finally:
            lock_file.unlock()

    def _open_or_discard(self) -> Opened:
        lock_file = self.lock_file
        lock_file.join_users()
        lock_file.read()
        if self._may_be_behind():
            self._discard("the machine stopped while commits were not on disk")
        elif lock_file.damaged and lock_file.only_user():
            # Whether commits were on disk when the machine stopped was written there.
            self._discard("guard.lock cannot be read")
        try:
            opened = open_parts(self.folder, self.options, self._fill)
        except StoreError as error:
            if not isinstance(error.__cause__, (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError)):
                raise
            self._discard(f"LMDB cannot open it ({error.__cause__})")
            opened = open_parts(self.folder, self.options, self._fill)
        if not lock_file.exists():
            lock_file.mark(NO_BOOT)
        return opened

    def _fill(self, txn: Txn, new: LmdbLog) -> None:
        """What a guard's environment has beside what every new one has."""
        position = new.position(txn)
        unattached = Checkpoint(position, position, position, position, 0, 0, STATE_BROKEN, UNATTACHED)
        txn.put(CHECKPOINT_KEY, unattached.pack(), db=new.dbs.meta)
        txn.put(GUARD_KEY, GuardInfo(self.identity()).pack(), db=new.dbs.meta)

    def _may_be_behind(self) -> bool:
        """Whether the environment may lack commits that the engine's changes followed."""
        note = self.lock_file.note
        return note.unsynced_boot not in (NO_BOOT, self.boot) and not note.clean_txn

    def _discard(self, reason: str) -> None:
        folder, lock_file = self.folder, self.lock_file
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
            (folder / READERS_FILE).unlink()
        lock_file.note = Note()
        lock_file.mark(NO_BOOT)
