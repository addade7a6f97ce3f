"""An open LMDB environment: read transactions and the map under them, and one write transaction at a time."""

import _thread
import logging
import mmap
import threading
import time
import weakref
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import lmdb

from dlbf.errors import StoreError
from dlbf.kernels.environment import EnvironmentCore, Reading, ReadsHeld, WriteLock, WritesCore
from dlbf.kernels.filelock import FileLock
from dlbf.storage.layout import DATA_FILE
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.longkeys import Databases
from dlbf.storage.opening import map_meta_pages
from dlbf.storage.room import WRITER_BYTE, Room, is_full, room_left

__all__ = ["BEGIN_ERRORS", "MAP_ERRORS", "Environment", "Overtaken", "Writes", "rouse"]

log = logging.getLogger("dlbf.storage")

# A transaction keeps its changes for a second try when the map has less room than this.
ROOMY_MAP_BYTES = 1 << 36
RESIZE_PATIENCE_SECONDS = 30.0
# Nobody else is likely to end what the thread that waits has begun.
OWN_PATIENCE_SECONDS = 1.0
# How long, at most twice, a read transaction is kept open for the next read.
KEEP_SECONDS = 0.02
# After which beginning to read may succeed, see Environment.cannot_read.
BEGIN_ERRORS = (lmdb.MapResizedError, lmdb.ReadersFullError)
# After which a change of one key is tried again the slower way.
MAP_ERRORS = (lmdb.MapResizedError, lmdb.MapFullError)


class Overtaken(StoreError):
    """Another process has written between the two tries of a transaction."""


def sweep(reference: "weakref.ref[Environment]", wake: threading.Lock) -> None:
    """End read transactions that are kept open and not used; while there are none it sleeps until ``wake`` is free."""
    while True:
        wake.acquire()
        while True:
            time.sleep(KEEP_SECONDS)
            environment = reference()
            if environment is None or environment.handle is None:
                rouse(wake)  # another one, if an exception came between its start and the note of it
                return
            if not environment.sweep():
                break
            del environment
        del environment


def rouse(wake: threading.Lock) -> None:
    """Wake the sweeper, if it sleeps."""
    try:
        wake.release()
    except RuntimeError:
        pass  # it is awake


class Environment(EnvironmentCore):
    """LMDB's environment as this process has it open.

    Parameters
    ----------
    path : path
        The directory.
    readonly : bool
        Whether nothing is written.
    handle : lmdb.Environment
    room : Room or None
        The lock of those that write it.
    """

    dbs: Databases
    # For messages: whose it is, and why a child of fork() cannot use it.
    owner = "store"
    no_forks = "which LMDB does not allow"

    def __init__(self, path: Path, readonly: bool, handle: lmdb.Environment, room: Room | None) -> None:
        self.path = path
        self.readonly = readonly
        self.room = room
        # Not owned: they own the environment.
        self._writes: Callable[[], Writes | None] = lambda: None
        self.page_bytes: int = handle.stat()["psize"]
        self._meta_map: mmap.mmap | None = None
        self._data: FileIO | None = None  # where those who only read wait for who writes
        self._roomy = 0  # transactions that may follow without a look how full the map is
        # Taken: the sweeper sleeps.  Not an Event: an exception from a signal handler could leave one locked for ever.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._is_swept = False  # whether the sweeper has been started
        self.attach(handle, handle.begin, BEGIN_ERRORS)

    @property
    def writes(self) -> "Writes":
        """The write transactions, as long as who opened the environment has them."""
        alive = self._writes()
        assert alive is not None, "whoever opened the environment keeps them"
        return alive

    def take_turns(self, timeout: float | None) -> None:
        """Wait for other processes that write, up to ``timeout`` seconds, where that can be interrupted."""
        if self.room is not None and self.room.turns is not None:
            self.writes.turns = self.room.turns
            return
        # A backup, which also who only reads can make, has to wait for who writes.
        self._data = FileIO(self.path / DATA_FILE)
        self.writes.turns = FileLock(self._data, WRITER_BYTE, self.path, timeout, advisory=True)

    def serve(self, dbs: Databases) -> None:
        """The databases are known: reads and writes can begin."""
        self.dbs = dbs
        self.keep_reads(True)
        watched = map_meta_pages(self.path, self.handle)
        if watched is not None:
            self._meta_map = watched[0]
            self.word.attach(*watched)

    # --- who may use it

    def refuse_while_closing(self) -> None:
        """Raise if it is closed, or another thread has begun to close it."""
        if self.handle is None:
            raise StoreError(f"{self.path}: this {self.owner} is closed; open it again")
        if self.closing not in (0, threading.get_ident()):
            raise StoreError(f"{self.path}: this {self.owner} is being closed by another thread; open it again")

    def check(self) -> None:
        """Raise if it is closed, or this is a child of the process that opened it."""
        if self.handle is None:
            self.refuse_while_closing()
        if self.was_forked():
            raise StoreError(
                f"{self.path}: opened before fork() and used in the child, {self.no_forks}; "
                "open it after the fork in both, or start the child with spawn"
            )

    def blame_disk(self, error: BaseException) -> None:
        """An error of LMDB has come: if the disk is full, or fails, say so."""
        if isinstance(error, lmdb.Error) and is_full(error):
            raise StoreError(
                f"{self.path}: the disk is full or fails: LMDB says {error}, and {room_left(self.path)}. Nothing of "
                "this transaction has been stored, and everything before it is; make room, and run it again"
            ) from error

    def leave(self) -> None:
        """Count as closed; LMDB's map stays for who is reading it."""
        if self.handle is not None:
            if not self.was_forked():
                self.keep_reads(False)
            self.leaving = self.handle
            self.handle = None
        self.word.detach()
        self.detach()

    def let_go(self) -> None:
        """Close everything; what an exception has interrupted is done when it is called again."""
        self.leave()
        if self._meta_map is not None:
            self._meta_map.close()
            self._meta_map = None
        if self.leaving is not None:
            self.leaving.close()
            self.leaving = None
        writes = self._writes()
        if writes is not None:
            writes.turns = None
        if self._data is not None:
            self._data.close()
        if self.room is not None:
            self.room.close()
        rouse(self._wake)

    # --- read transactions and the map

    def reading(self, buffers: bool = False) -> Reading:
        """A read transaction, counted so that the map does not move under it; for ``with``."""
        return Reading(self, buffers)

    def cannot_read(self, error: BaseException) -> None:
        """A read transaction could not be begun: see to it that the next try may succeed, or raise."""
        self.check()
        handle = self.handle
        try:
            if isinstance(error, lmdb.MapResizedError):
                self.adopt_map()
            elif not isinstance(error, lmdb.ReadersFullError):
                raise error
            elif not self.drop_kept() and not handle.reader_check():
                raise StoreError(
                    f"{self.path}: all {handle.max_readers()} reader slots are in use; close snapshots, "
                    "or open the store with a larger max_readers"
                ) from None
        except (lmdb.Error, AttributeError, TypeError) as problem:
            self.check()  # another thread may have closed it meanwhile
            self.blame_disk(problem)
            raise

    def start_sweeping(self) -> None:
        """A read has left its transaction open: see that it is not for long."""
        if not self._is_swept:
            try:
                # One call: an exception from a signal handler in a Thread's start() leaves it half begun.
                _thread.start_new_thread(sweep, (weakref.ref(self), self._wake))
                self._is_swept = True
            except RuntimeError as error:  # there are too many threads, or the interpreter is about to end
                self.keep_reads(False)
                log.debug("%s: read transactions are not kept: %s", self.path, error)
        rouse(self._wake)

    def adopt_map(self) -> None:
        """Another process has made the map larger: follow."""
        with WriteLock(self.writes):
            self.resize(0)

    def resize(self, size: int) -> None:
        """Move the map; the caller holds the write lock and has no transaction."""
        with ReadsHeld(self):
            own = self.reads_itself()
            patience = OWN_PATIENCE_SECONDS if own else RESIZE_PATIENCE_SECONDS
            end = time.monotonic() + patience
            self.drop_kept()
            while self.n_reading:
                if time.monotonic() > end:
                    raise StoreError(
                        f"{self.path}: the LMDB map must grow, but {self.n_reading} snapshots or iterators of this "
                        f"{'thread' if own else 'process'} have been open for {patience:.0f} s; close them, or open "
                        "the store with a larger map_size"
                    )
                time.sleep(0.0005)
            room = self.room
            if room is not None and room.mapped:
                # Another program has made the file longer, or it is full.
                size = room.fitting(0) if size == 0 else room.grow(self.handle.info()["map_size"])
                room.reserve(size)
            try:
                self.handle.set_mapsize(size)
            except lmdb.Error as error:
                self.let_go()  # py-lmdb has closed it
                raise StoreError(
                    f"{self.path}: the LMDB map cannot be made {size:,} bytes large ({error}); nothing has been "
                    "stored, and the store is closed now. Free memory and open it again"
                ) from error

    def map_may_fill(self) -> bool:
        """Whether the next transaction might find the map full."""
        if self._roomy:
            # Nothing short of ROOMY_MAP_BYTES / 2 in each thousand transactions could change that.
            self._roomy -= 1
            return False
        info = self.handle.info()
        free: int = info["map_size"] - (info["last_pgno"] + 1) * self.page_bytes
        self._roomy = 1000 * (free // ROOMY_MAP_BYTES)
        return free < ROOMY_MAP_BYTES

    def take_roomy(self, n_wanted: int) -> int:
        """How many of the next transactions need not look how full the map is."""
        if not self._roomy:
            return n_wanted  # the next transaction looks
        taken = min(n_wanted, self._roomy)
        self._roomy -= taken
        return taken

    @property
    def data_bytes(self) -> int:
        """Length of the data file."""
        try:
            return (self.path / DATA_FILE).stat().st_size
        except OSError as error:
            raise StoreError(
                f"{self.path}: data.mdb is not there any more ({error}); the directory was moved or removed while the "
                "store was open. Close it, and open it where it is now"
            ) from error


class Writes(WritesCore):
    """The write transactions of an environment: one at a time in this process, and by LMDB's lock in all of them."""

    environment: Environment

    def __init__(self, environment: Environment) -> None:
        self.lock = threading.Lock()
        super().__init__(environment, self.lock)
        environment._writes = weakref.ref(self)
        # Called with each new transaction before it is used: the ledger catches up.
        self.on_begin: Callable[[Txn], None] = lambda txn: None

    def begin_locked(self) -> Txn:
        """Begin, with the lock held."""
        environment = self.environment
        environment.drop_kept()  # it will be of the past, and would keep pages from being used again
        while True:
            try:
                txn = self.begin_txn()
                break
            except lmdb.MapResizedError:
                environment.resize(0)
        self.on_begin(txn)
        return txn

    def begin_again(self, txn: Txn, number: int | None = None) -> Txn:
        """After a full map: abort, make it larger, begin again; as transaction ``number``, where that matters."""
        environment = self.environment
        self.abort(txn)
        self.give_turn()
        environment.resize(2 * environment.handle.info()["map_size"])
        log.info("%s: the map has grown to %d bytes", environment.path, environment.handle.info()["map_size"])
        txn = self.begin_locked()
        if number is not None and txn.id() != number:
            self.abort(txn)
            raise Overtaken(
                "another process wrote while the LMDB map was being made larger; nothing of this transaction has "
                "been stored. Run it again"
            )
        return txn
