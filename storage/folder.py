"""A guard's directory as this process has it open: the newest file of its log, and the tables as that tells them.

It stands where a store has LMDB's environment, and has those of its methods that are needed.  ``State`` is one moment:
whoever begins to read walks from the last one to the newest position, and puts in another by one assignment, so
nothing here needs a lock.  Whoever writes has the writers' lock (``dlbf.storage.intents``).
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, cast

from dlbf.errors import FormatError, StoreError
from dlbf.kernels.filelog import LogFile, LogHead, sync_path
from dlbf.storage.environment import Environment
from dlbf.storage.layout import CHECKPOINT_KEY, GUARD_LOG_FILE, STATE_BROKEN, Checkpoint, sealed
from dlbf.storage.longkeys import Databases
from dlbf.storage.room import is_full, room_left
from dlbf.storage.tables import TABLES, Table, Tables, TablesTxn, apply_changes, encode, everything
from dlbf.storage.weak import weakly

__all__ = ["DBS", "FILTER_FILE", "LOG_FILE", "Folder", "FolderEnvironment", "State", "new_log", "refuse_full_disk"]

LOG_FILE = GUARD_LOG_FILE
NEW_LOG_FILE = "guard.log.new"
FILTER_FILE = "filter."
NO_BOOT = bytes(16)

# The handles of a guard's tables are their names.
DBS = Databases._make((*TABLES, ""))
NO_TABLES: Tables = {name: Table() for name in TABLES}


class State(NamedTuple):
    """One moment of the log."""

    file: LogFile
    position: int
    end: int  # where the frame of ``position`` ends
    tables: Tables
    n_changed: int = 0  # bytes of changes in the frames so far
    damage: str = ""  # why what is behind it cannot be read


class FolderTxn(TablesTxn):
    """A moment of the tables, and of the log."""

    def __init__(self, state: State, position: int, write: bool) -> None:
        super().__init__(state.tables, position, write)
        self.state = state
        self.keep_from: int | None = None  # a new file is made, with the records from this position on

    def encoded(self) -> bytes:
        """What it has changed, as bytes with their checksum; empty: nothing."""
        return sealed(encode(self.changes)) if self.changes else b""


class Folder:
    """See the module.

    Parameters
    ----------
    path : path
        The directory.
    readonly : bool

    Raises
    ------
    FormatError
        If the log cannot be read.
    FileNotFoundError
        If there is none.
    """

    def __init__(self, path: Path, readonly: bool) -> None:
        self.path = path
        self.readonly = readonly
        # Called when another file has become the newest.
        self.watchers: list[Callable[[LogFile], object]] = []
        self._before: LogFile | None = None  # a thread may just be looking at it
        self.state = self._load()

    def _load(self) -> State:
        file = FileIO(self.path / LOG_FILE, "r" if self.readonly else "r+")
        try:
            log = LogFile(self.path / LOG_FILE, file, not self.readonly)
            tables = apply_changes(NO_TABLES, log.snapshot(len(TABLES)), log.part)
            return _newest(State(log, log.position, log.end, tables))
        except BaseException:
            file.close()
            raise

    def reload(self) -> None:
        """Another file has taken the place of the one that is open."""
        state = self._load()
        if self.state.file.number == state.file.number:
            state.file.close()  # another thread was faster
        else:
            self._before, self.state = self.state.file, state
        for watcher in self.watchers:
            watcher(self.state.file)

    def watch(self, watcher: Callable[[LogFile], object]) -> None:
        """Call this with the newest file: now, and whenever another one is."""
        self.watchers.append(watcher)
        watcher(self.state.file)

    def newest_file(self) -> LogFile:
        """The file to be written, for who has the writers' lock."""
        if self.state.file.head.is_retired:
            self._follow_file(True)
        file = self.state.file
        with contextlib.suppress(FormatError):  # whoever reads or commits finds that, too
            file.tidy()
        return file

    def begin(self, db: str = "", parent: None = None, write: bool = False, buffers: bool = False) -> FolderTxn:
        """A transaction, as of now."""
        if self.state.file.head.is_retired:
            self._follow_file(write)
        if write:
            self.newest_file()
        before = self.state
        state = _newest(before)
        if self.state is before:  # else another thread has walked as far, or to another file
            self.state = state
        return FolderTxn(state, state.position + 1 if write else state.position, write)

    def _follow_file(self, write: bool) -> None:
        """The file counts for nothing any more: take the next one."""
        file = self.state.file
        try:
            status = (self.path / LOG_FILE).stat()
        except OSError as error:
            raise StoreError(
                f"{self.path}: guard.log is not there any more ({error}); the directory was moved or removed while the "
                "guard was open. Close it, and open it where it is now"
            ) from error
        if (status.st_dev, status.st_ino) != file.number:
            try:
                self.reload()
            except FormatError as error:
                raise StoreError(f"{error}; open the guard again") from error
        elif write:
            file.head.restore()  # whoever was about to replace it died before that

    # --- writing, by who has the writers' lock

    def append(
        self, txn: FolderTxn, position: int, record: bytes, changes: bytes, before_shown: Callable[[], object]
    ) -> None:
        """Append a record with what the transaction has changed, and show both."""
        file = txn.state.file
        with refuse_full_disk(self.path):
            file.make_room(len(record) + len(changes))
        file.write(position, record, changes)
        before_shown()
        file.publish(position)
        self.state = State(file, position, file.end, txn.tables, txn.state.n_changed + len(changes))

    def replace(
        self, txn: FolderTxn, position: int, record: bytes, sync: bool, before_shown: Callable[[], object]
    ) -> None:
        """The same with a new file, which has all tables and only the records that are to be kept."""
        before = txn.state.file
        keep_from = txn.keep_from if txn.keep_from is not None else position
        records = [*_records(before, keep_from, position), record]
        with refuse_full_disk(self.path):
            head = before.head
            temporary = new_log(self.path, txn.tables, position, records, sync, head.boot, head.clean, head.whole_note)
            before_shown()
            try:
                before.head.retire()
                temporary.replace(self.path / LOG_FILE)
                if sync:
                    sync_path(self.path)
            except BaseException:
                status = (self.path / LOG_FILE).stat()
                if (status.st_dev, status.st_ino) == before.number:
                    before.head.restore()
                raise
            self.reload()
        self._tidy(position)

    def _tidy(self, position: int) -> None:
        """Remove filters that nobody will look for any more, now that there is a log with ``position``.

        So go those that somebody was writing when it died: whoever writes one has the writers' lock, as we do.
        """
        state = self.state
        if state.position < position:
            return  # a thread has just put an older moment back
        newest = f"{FILTER_FILE}{filter_number(state)}"
        for path in (*self.path.glob(f"{FILTER_FILE}*"), *self.path.glob(f".{FILTER_FILE}*")):
            if path.name != newest:
                with contextlib.suppress(OSError):
                    path.unlink()

    # --- what LMDB's environment has, too

    def stat(self) -> dict[str, int]:
        """The size of a page."""
        return {"psize": 4096}

    def info(self) -> dict[str, int]:
        """How much there is."""
        file = self.state.file
        return {
            "map_size": file.nbytes,
            "last_pgno": -(-file.end // 4096) - 1,
            "last_txnid": file.head.newest(),
            "num_readers": 0,
        }

    def sync(self, force: bool = True) -> None:
        """Wait until everything is on disk."""
        with contextlib.suppress(FileNotFoundError):
            sync_path(self.path / f"{FILTER_FILE}{filter_number(self.state)}")
        sync_path(self.path)
        self.state.file.sync()

    def close(self) -> None:
        """Let go of the file."""
        self.state.file.close()
        if self._before is not None:
            self._before.close()


def filter_number(state: State) -> int:
    """The number of the filter's file; 0: there is none."""
    try:
        checkpoint = Checkpoint.unpack(state.tables["meta"].items.get(CHECKPOINT_KEY, b""))
    except FormatError:
        return 0
    return 0 if checkpoint.state == STATE_BROKEN else checkpoint.txn_id


def _newest(state: State) -> State:
    """The newest moment of the same file."""
    file = state.file
    if file.head.newest() == state.position:
        return state
    if state.damage:
        return state._replace(position=file.head.newest())
    try:
        runs, position, end = file.changes_since(state.position, state.end, len(TABLES))
        n_changed = state.n_changed + sum(stop - start for _, start, stop in runs)
        return State(file, position, end, apply_changes(state.tables, runs, file.part), n_changed)
    except FormatError as error:
        return state._replace(position=file.head.newest(), damage=str(error))


def _records(file: LogFile, start: int, stop: int) -> list[bytes]:
    """The records from one position to before another; from the first one behind a gap."""
    out: list[bytes] = []
    position = max(start, file.base + 1)
    while position < stop:
        try:
            run = file.read_run(position)
        except FormatError:
            run = []
        if not run:
            return []
        out += [record for number, record in run if number < stop]
        position = run[-1][0] + 1
    return out


def new_log(
    folder: Path,
    tables: Tables,
    position: int,
    records: list[bytes],
    sync: bool,
    boot: bytes = NO_BOOT,
    clean: int = 0,
    note: int = 0,
    staged: bytes = b"",
) -> Path:
    """Write a log whose last record is that of ``position``; it counts for nothing before it has its name."""
    frames = b"".join(LogFile.frame(record) for record in records)
    snapshot = encode(everything(tables))
    header = LogHead.new(position - len(records), snapshot, position, len(frames), boot, clean, note)
    path = folder / NEW_LOG_FILE
    try:
        with path.open("wb") as file:
            file.write(header + snapshot + bytes(-len(snapshot) % 8) + frames + staged)
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)  # on a full disk above all
        raise
    return path


@contextlib.contextmanager
def refuse_full_disk(folder: Path) -> Iterator[None]:
    """Say that the disk is full, or fails, where the system says so."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise StoreError(
            f"{folder}: the disk is full or fails ({error.strerror}), and {room_left(folder)}. Nothing of this change "
            "has been stored, and everything before it is; make room, and run it again"
        ) from error


class FolderEnvironment(Environment):
    """A guard's directory, with the methods of LMDB's environment that a face needs."""

    handle: Any
    owner = "guard"
    no_forks = "which has none of its locks"

    def __init__(self, path: Path, readonly: bool, folder: Folder) -> None:
        super().__init__(path, readonly, cast(Any, folder), None)
        self.serve(DBS)

    def serve(self, dbs: Databases) -> None:
        """Reads and writes can begin."""
        self.dbs = dbs
        self.handle.watch(weakly(self._watch_file))

    def _watch_file(self, file: LogFile) -> None:
        file.head.watch(self.word)

    def take_turns(self, timeout: float | None) -> None:
        """Writers have a lock of their own: see ``dlbf.storage.intents``."""

    @property
    def data_bytes(self) -> int:
        """Length of the log and of the filter's file."""
        folder: Folder = self.handle
        try:
            n_bytes = (self.path / LOG_FILE).stat().st_size
        except OSError as error:
            raise StoreError(
                f"{self.path}: guard.log is not there any more ({error}); the directory was moved or removed while the "
                "guard was open. Close it, and open it where it is now"
            ) from error
        with contextlib.suppress(OSError):
            n_bytes += (self.path / f"{FILTER_FILE}{filter_number(folder.state)}").stat().st_size
        return n_bytes
