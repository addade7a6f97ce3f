"""The file that processes lock to write through a guard: one writer at a time, and who has the guard open.

Bytes far behind the end of ``guard.lock``, which is empty, are locked (``fcntl``): the writer's, exclusively (and the
one before it, by who waits: see ``dlbf.kernels.filelock``), and the users', shared by every process that has the guard
open.  The log is another file because it is replaced, and this one must not be.
"""

import fcntl
import os
import threading
import weakref
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from dlbf.errors import StoreError
from dlbf.kernels.filelock import FileLock
from dlbf.storage.room import open_or_make

__all__ = ["LOCK_FILE", "LockFile", "boot_id"]

LOCK_FILE = "guard.lock"

# A note of an older version is not longer.
OLD_BYTES = 4096 + (1 << 20)

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


class LockFile:
    """See the module.  Locking is for processes; threads of one process need a lock of their own."""

    def __init__(self, folder: Path, readonly: bool = False, timeout: float | None = None) -> None:
        self.path = folder / LOCK_FILE
        # A file object: it closes its descriptor once, whatever interrupts that, and when it is collected.
        self._file: FileIO | None = None
        self._fd = -1
        self._process = os.getpid()
        self.writer = FileLock(-1, WRITER_BYTE, folder)
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
        self.writer = FileLock(self._fd, WRITER_BYTE, folder, timeout)
        self.unlock: Callable[[], object] = self.writer.release

    def close(self) -> None:
        """Let go of the file and its locks."""
        if self._file is not None and not self._file.closed:
            with _opening:
                self.writer.close()
                self._fd = -1
                self._file.close()

    def _is_open(self) -> bool:
        return self._file is not None and not self._file.closed and self._process == os.getpid()

    def __del__(self) -> None:
        if hasattr(self, "writer"):  # else its making was interrupted
            self.close()

    def old_bytes(self) -> bytes:
        """What an older version has noted here; through our own descriptor: to close another one drops the locks."""
        return os.pread(self._fd, OLD_BYTES, 0)

    # --- locks

    def lock(self, wait: bool = True) -> bool:
        """Become the writer; False if there is one, and the caller does not want to wait."""
        # It may be kept from the last change; to stand in line for it then would be to wait for oneself.
        return self.writer.taken or self.writer.acquire(wait)

    def lock_quietly(self) -> None:
        """Wait until nobody writes, without becoming the writer; ``unlock`` must follow."""
        self.writer.acquire(shared=True)

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
