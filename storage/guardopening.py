"""Opening a guard's directory: its lock, its log, and what to do with one that cannot be trusted."""

import logging
from collections.abc import Callable
from pathlib import Path

import lmdb

from dlbf.errors import FormatError, StoreError
from dlbf.kernels.filelog import NOTHING, sync_path
from dlbf.kernels.journal import OperationLog
from dlbf.storage.conversion import convert, is_converted, is_in_use, old_note
from dlbf.storage.environment import Writes
from dlbf.storage.filelog import FileLog
from dlbf.storage.folder import (
    DBS,
    LOG_FILE,
    NO_BOOT,
    Folder,
    FolderEnvironment,
    new_log,
    refuse_full_disk,
)
from dlbf.storage.intents import LOCK_FILE, LockFile
from dlbf.storage.layout import (
    CHECKPOINT_KEY,
    DATA_FILE,
    FLAG_OMITTED,
    GUARD_KEY,
    READERS_FILE,
    SECRET_FILE,
    STATE_BROKEN,
    STORE_KEY,
    Checkpoint,
    GuardInfo,
)
from dlbf.storage.owner import ID_FILE
from dlbf.storage.parts import Opened, Options, new_info, open_parts, read_settings
from dlbf.storage.tables import TABLES, Table

__all__ = ["UNATTACHED", "Opening", "prepare_folder"]

log = logging.getLogger("dlbf.storage")
# A directory with none of these is not a guard's.
OWN_FILES = {LOCK_FILE, LOG_FILE, ID_FILE, SECRET_FILE, DATA_FILE, READERS_FILE}
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
    """Opening a guard's log; one that cannot be trusted is put aside, because all of it can be made again."""

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
        """The parts of the guard."""
        lock_file = self.lock_file
        lock_file.join_users()
        if self.options.readonly:
            lock_file.lock_quietly()
            try:
                return self._open_to_read()
            finally:
                lock_file.unlock()
        lock_file.lock()
        try:
            return self._open_or_discard()
        finally:
            lock_file.unlock()

    def _open_to_read(self) -> Opened:
        if (self.folder / DATA_FILE).exists() and not is_converted(self.folder):
            raise StoreError(
                f"{self.folder}: expected guard.log, found data.mdb; if an older version of dlbf made this guard, open "
                "it once without readonly=True"
            )
        if not (self.folder / LOG_FILE).exists():
            raise StoreError(f"{self.folder}: there is no guard; expected a directory with guard.log. Check the path")
        try:
            folder = Folder(self.folder, True)
        except FormatError as error:
            raise StoreError(f"{error}; open it for writing, which makes the filter again") from error
        if self._may_be_behind(folder):
            self.problem = "the machine stopped while commits were not on disk; open it for writing"
        elif damage := _damage(folder):
            self.problem = f"{damage}; open it for writing"
        return self._parts(folder)

    def _open_or_discard(self) -> Opened:
        if (self.folder / DATA_FILE).exists() and not is_converted(self.folder):
            self._convert()  # again, if whoever did so was killed before its end: nobody has used the log yet
        elif not (self.folder / LOG_FILE).exists():
            self._make()
        for last in (False, True):
            try:
                folder = Folder(self.folder, False)
                problem = self._problem_of(folder)
                if not problem:
                    return self._parts(folder)
                folder.close()
            except FormatError as error:
                problem = str(error)
            assert not last, problem
            self._discard(problem)
            self._make()
        raise AssertionError

    def _problem_of(self, folder: Folder) -> str:
        """Why a log cannot be used; empty: it can."""
        if self._may_be_behind(folder):
            return "the machine stopped while commits were not on disk"
        file = folder.newest_file()
        damage = _damage(folder)
        if not damage:
            file.advance()
            if not file.ends_well():
                file.adopt()
        return damage

    def _parts(self, folder: Folder) -> Opened:
        environment = FolderEnvironment(self.folder, self.options.readonly, folder)
        try:
            writes = Writes(environment)
            writes.attach(DBS.data)
            settings = read_settings(environment, DBS, self.options, True)
            return Opened(environment, writes, FileLog(environment, DBS, self.options.sync == "full"), settings)
        except BaseException:
            environment.let_go()
            raise

    def _make(self) -> None:
        """Write the log of a new guard."""
        with refuse_full_disk(self.folder):
            info, _ = new_info(self.folder, self.options)
            tables = {name: Table() for name in TABLES}
            unattached = Checkpoint(1, 1, 1, 1, 0, 0, STATE_BROKEN, UNATTACHED)
            tables["meta"].put(STORE_KEY, info.pack())
            tables["meta"].put(CHECKPOINT_KEY, unattached.pack())
            tables["meta"].put(GUARD_KEY, GuardInfo(self.identity()).pack())
            record = OperationLog().record(1, 1, FLAG_OMITTED)
            new_log(self.folder, tables, 1, [record], self.options.sync == "full").replace(self.folder / LOG_FILE)
            if self.options.sync == "full":
                sync_path(self.folder)

    def _may_be_behind(self, folder: Folder) -> bool:
        """Whether the log may lack records that the engine's changes followed."""
        file = folder.state.file
        return file.head.boot not in (NO_BOOT, self.boot) and not file.head.clean

    def _discard(self, reason: str) -> None:
        """Put the log aside."""
        if not self.lock_file.only_user():
            raise StoreError(
                f"{self.folder}: the log cannot be used ({reason}), and the guard is open in another process; close it "
                "there, or choose another directory"
            )
        log.warning("%s: %s; its filter is made again, the old log is kept as guard.log.damaged", self.folder, reason)
        (self.folder / LOG_FILE).replace(self.folder / "guard.log.damaged")

    # --- guards of older versions

    def _convert(self) -> None:
        """Make a log of an LMDB environment, or put that aside if it cannot be trusted."""
        if is_in_use(self.folder):
            raise StoreError(
                f"{self.folder}: an older version of dlbf made this guard, and has it open; close it there, so that it "
                "can be converted"
            )
        note, is_guards, is_damaged = old_note(self.lock_file.old_bytes())
        problem = ""
        if is_guards and note.unsynced_boot not in (NO_BOOT, self.boot) and not note.clean_txn:
            problem = "the machine stopped while commits were not on disk"
        elif is_damaged:
            problem = "guard.lock cannot be read"
        else:
            try:
                # Whoever has no record of a guard is refused there.
                old = open_parts(self.folder, self.options, lambda txn, new: None)
                convert(self.folder, old, note, self.options.sync == "full")
                return
            except StoreError as error:
                if not isinstance(error.__cause__, (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError)):
                    raise
                problem = f"LMDB cannot open it ({error.__cause__})"
        if not is_guards or not self.lock_file.only_user():
            raise StoreError(
                f"{self.folder}: the environment cannot be used ({problem}), and it is open in another process or was "
                "not made by a guard; close it there, or choose another directory"
            )
        log.warning("%s: %s; its filter is made again, the old file is kept as data.mdb.damaged", self.folder, problem)
        (self.folder / DATA_FILE).replace(self.folder / "data.mdb.damaged")
        (self.folder / READERS_FILE).unlink(missing_ok=True)
        self._make()


def _damage(folder: Folder) -> str:
    """What is wrong with a log that was just opened; empty: nothing is."""
    file = folder.state.file
    if folder.state.damage:
        return folder.state.damage
    if file.head.whole_note and file.head.noted()[0] == NOTHING:
        return f"{file.path}: what a writer noted cannot be read"
    try:
        file.advance()
        whole = file.ends_well()
    except FormatError as error:
        return str(error)
    return "" if whole or file.writable else "a writer died in the middle of a change"
