"""The file beside a guard's environment: one writer at a time, what it is about to do, and what a power failure may
undo.

An engine and the guard's environment share no transaction.  So the writer, while it holds the lock, notes in this file
what it is about to do; if it dies in between, the next one finds the note and asks the engine how far it came.

::

    guard.lock:   0      8  u64   XXH3-64 of everything behind it
                  8      8  bytes b"dlbf-g\\x00\\x01": magic and version
                 16      8  u64   intent: 0 = none, 1 = keys are being added, 2 = keys are being removed
                 24      8  u64   transaction of the environment that journals it
                 32      8  u64   generation of the filter then
                 40     16  bytes boot of the machine in which transactions were not synced; zeros: none
                 56      8  u64   newest transaction that is on disk all the same (clean close); 0: not known
                 64      8  u64   bytes of keys that follow
                 72      -        keys being removed: u32 length, bytes (those being added are in the journal, and
                                  here as well, with those overwritten, if their writes may arrive later)

Integers are little-endian.  Nothing waits for the disk here, but for the boot mark: a note lost in a power failure
costs an entry of the filter that belongs to no key until the next rebuild, nothing more.

Bytes far behind the end are locked (``fcntl``): the writer's, exclusively (and the one before it, by who waits: see
``dlbf.kernels.filelock``), and the users', shared by every process that has the guard open.
"""

import fcntl
import os
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from dlbf.errors import StoreError
from dlbf.kernels.filelock import FileLock
from dlbf.kernels.hashing import checksum64
from dlbf.storage.room import open_or_make

__all__ = ["ADDING", "NOTHING", "REMOVING", "LockFile", "Note", "boot_id"]

LOCK_FILE = "guard.lock"
MAGIC = b"dlbf-g\x00\x01"
HEAD = struct.Struct("<Q8sQQQ16sQQ")
NO_BOOT = bytes(16)

NOTHING, ADDING, REMOVING = 0, 1, 2
# Longer lists of keys are not noted: a crash then leaves them in the filter.
MAX_KEYS_BYTES = 1 << 20
READ_BYTES = 4096

WRITER_BYTE = 1 << 40
USERS_BYTE = WRITER_BYTE + 1


# Files open in this process.  A second descriptor must not be: closing any of them drops the process's locks.
_open_here: "weakref.WeakValueDictionary[tuple[int, int], LockFile]" = weakref.WeakValueDictionary()
_opening = threading.RLock()  # one that is collected meanwhile closes its file


def boot_id() -> bytes | None:
    """16 bytes that differ after every start of the machine; None where the system does not tell."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
        return bytes.fromhex(text.strip().replace("-", ""))
    except (OSError, ValueError):
        return None


class Note(NamedTuple):
    """The content of the file."""

    intent: int = NOTHING
    txn_id: int = 0
    generation: int = 0
    unsynced_boot: bytes = NO_BOOT
    clean_txn: int = 0
    keys: tuple[bytes, ...] = ()

    def pack(self) -> bytes:
        """As bytes."""
        body = b"".join(len(key).to_bytes(4, "little") + key for key in self.keys)
        head = HEAD.pack(
            0, MAGIC, self.intent, self.txn_id, self.generation, self.unsynced_boot, self.clean_txn, len(body)
        )
        packed = head[8:] + body
        return checksum64(packed).to_bytes(8, "little") + packed

    @classmethod
    def unpack(cls, data: bytes) -> "Note | None":
        """From bytes; None if they are not a whole note."""
        if len(data) < HEAD.size:
            return None
        checksum, magic, intent, txn_id, generation, boot, clean, n_bytes = HEAD.unpack_from(data)
        data = data[: HEAD.size + n_bytes]
        if magic != MAGIC or len(data) != HEAD.size + n_bytes or checksum64(data[8:]) != checksum:
            return None
        keys = []
        at = HEAD.size
        while at < len(data):
            n = int.from_bytes(data[at : at + 4], "little")
            keys.append(data[at + 4 : at + 4 + n])
            at += 4 + n
        return cls(intent, txn_id, generation, boot, clean, tuple(keys))


class LockFile:
    """See the module.  Locking is for processes; threads of one process need a lock of their own."""

    def __init__(self, folder: Path, readonly: bool = False, timeout: float | None = None) -> None:
        self.path = folder / LOCK_FILE
        # A file object: it closes its descriptor once, whatever interrupts that, and when it is collected.
        self._file: FileIO | None = None
        self._fd = -1
        self._process = os.getpid()
        self._writer = FileLock(-1, WRITER_BYTE, folder)
        with _opening:
            found = self.path.stat() if self.path.exists() else None
            other = _open_here.get((found.st_dev, found.st_ino)) if found is not None else None
            if other is not None and other._is_open():
                raise StoreError(f"{folder}: already open in this process; share that guard, or close it first")
            self._file = FileIO(self.path, "r" if readonly else "r+", opener=None if readonly else open_or_make)
            self._fd = self._file.fileno()
            status = os.fstat(self._fd)
            _open_here[status.st_dev, status.st_ino] = self
        # Be the writer no more.  Compiled, so that no signal handler's exception comes before it has happened.
        self._writer = FileLock(self._fd, WRITER_BYTE, folder, timeout)
        self.unlock: Callable[[], object] = self._writer.release
        self._idle = b""
        self.note = Note()
        self.damaged = False

    def close(self) -> None:
        """Let go of the file and its locks."""
        if self._file is not None and not self._file.closed:
            with _opening:
                self._writer.close()
                self._fd = -1
                self._file.close()

    def _is_open(self) -> bool:
        return self._file is not None and not self._file.closed and self._process == os.getpid()

    def __del__(self) -> None:
        if hasattr(self, "_writer"):  # else its making was interrupted
            self.close()

    # --- locks

    def lock(self, wait: bool = True) -> bool:
        """Become the writer; False if there is one, and the caller does not want to wait."""
        return self._writer.acquire(wait)

    def read_quietly(self) -> None:
        """Read the note while nobody is writing it, without becoming the writer."""
        self._writer.acquire(shared=True)
        try:
            self.read()
        finally:
            self.unlock()

    def join_users(self) -> None:
        """Tell others that this process has the guard open."""
        fcntl.lockf(self._fd, fcntl.LOCK_SH, 1, USERS_BYTE)

    def only_user(self) -> bool:
        """Whether no other process has the guard open; the answer holds while this one is the writer."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, USERS_BYTE)
        except OSError:
            return False
        self.join_users()
        return True

    # --- the note

    def read(self) -> bool:
        """Read the note; False if nothing is pending and nothing has changed since the last look."""
        data = os.pread(self._fd, READ_BYTES, 0)
        if data.startswith(self._idle) and self._idle:
            return False
        if len(data) == READ_BYTES:
            data = os.pread(self._fd, READ_BYTES + MAX_KEYS_BYTES, 0)
        found = Note.unpack(data)
        # Half a note is one that was being written when its writer died: what it was about had not begun.
        self.note = found if found is not None else Note()
        self.damaged = bool(data) and found is None
        self._idle = data[: HEAD.size] if found is not None and found.intent == NOTHING else b""
        return True

    def exists(self) -> bool:
        """Whether there is a note: this is the directory of a guard."""
        return os.pread(self._fd, HEAD.size, 0)[8:16] == MAGIC

    def intend(self, intent: int, txn_id: int, generation: int, keys: Sequence[bytes] = ()) -> None:
        """Note what is about to happen."""
        if sum(map(len, keys)) + 4 * len(keys) > MAX_KEYS_BYTES:
            keys = ()
        before = self.note
        self.note = Note(intent, txn_id, generation, before.unsynced_boot, before.clean_txn, tuple(keys))
        os.pwrite(self._fd, self.note.pack(), 0)

    def settle(self) -> None:
        """It has happened, or it never will."""
        self.note = Note(unsynced_boot=self.note.unsynced_boot, clean_txn=self.note.clean_txn)
        self._idle = self._idle or self.note.pack()
        os.pwrite(self._fd, self._idle, 0)

    def mark(self, unsynced_boot: bytes, clean_txn: int = 0) -> None:
        """Note, on disk, in which boot transactions are not synced, and up to which they are."""
        self.note = self.note._replace(unsynced_boot=unsynced_boot, clean_txn=clean_txn)
        packed = self.note.pack()
        self._idle = packed if self.note.intent == NOTHING else b""
        os.pwrite(self._fd, packed, 0)
        os.fsync(self._fd)
