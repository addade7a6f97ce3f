"""The file of an environment that is written through LMDB's map: who may do so, and room for it on the disk.

Where a commit does not wait for the disk, most of its time goes into handing pages to the system, one call for each.
LMDB can change them in its map instead (``MDB_WRITEMAP``), which takes a quarter of the time.  But the file is then as
long as the map, and every process that opens the environment like that, or moves its map, makes it so: what another
one has written behind that would be cut off.  And a page that has no place on the disk yet cannot be refused any more:
on a full disk the system ends the process.  Hence

- a process that writes through the map is the only one that writes: it has a lock (``flock``) on the data file for
  itself, and those that write with system calls share it;
- room is reserved on the disk before the map covers it, and only where a file system keeps that promise.

Processes that write with system calls take turns.  LMDB's own lock is one that nobody can stop waiting for, so they
take another one first: a byte far behind the end of the data file, see ``dlbf.kernels.filelock``.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import sys
import weakref
from io import FileIO
from pathlib import Path
from typing import NoReturn

from dlbf.errors import StoreError
from dlbf.kernels.filelock import FileLock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["WRITER_BYTE", "Room", "is_full", "open_or_make", "reserve_lock_file", "room_left"]

# Which byte is locked by the process that writes; no file is that long.
WRITER_BYTE = 1 << 62
# What a new file has, and what is added at least; larger ones grow by a quarter.
LEAST_BYTES = 1 << 24
# File systems (statfs(2)) on which a page that was reserved can always be written.  Btrfs and ZFS never write a page to
# the same place again, and need room every time; so does XFS for a file that shares its pages with a copy.
RESERVING = {0xEF53: "ext4", 0x01021994: "tmpfs"}

# A slot in LMDB's table of readers, and fallocate(2)'s FALLOC_FL_KEEP_SIZE.
READER_BYTES = 64
KEEP_LENGTH = 1

_open_rooms: "weakref.WeakSet[Room]" = weakref.WeakSet()


class Room:
    """A lock on the data file of an environment that is open for writing.

    Parameters
    ----------
    path : path
        The data file.  It is made, empty, if it is to be ``mapped`` and does not exist.
    mapped : bool
        Whether this process writes through the map, and so has to be the only one that writes.
    timeout : float, optional
        Most seconds to wait for the turn to write.

    Raises
    ------
    StoreError
        If another process writes in a way that this one cannot, or the file cannot be written through a map.
    """

    def __init__(self, path: Path, mapped: bool, timeout: float | None = None) -> None:
        self.turns: FileLock | None = None
        self.path = path
        self.mapped = mapped
        # A file object: it closes its descriptor once, whatever interrupts that, and when it is collected.
        self._file: FileIO | None = None
        if not mapped and fcntl is None:
            return
        try:
            if mapped:
                self._check_system()
                self._check_file_system()
            self._file = FileIO(path, "r+", opener=open_or_make if mapped else None)
            _open_rooms.add(self)
            self._lock()
            self.turns = FileLock(self._file.fileno(), WRITER_BYTE, path.parent, timeout, advisory=True)
        except BaseException:
            self.close()
            raise

    @property
    def _descriptor(self) -> int:
        return -1 if self._file is None or self._file.closed else self._file.fileno()

    def _check_system(self) -> None:
        if sys.platform != "linux" or ctypes.sizeof(ctypes.c_long) != 8:
            raise StoreError("writemap=True needs Linux on a 64-bit processor; open the store without it")

    def _check_file_system(self) -> None:
        kind = ctypes.create_string_buffer(256)
        if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(self.path.parent), kind) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(self.path))
        found = int.from_bytes(kind.raw[:8], sys.byteorder)
        if found not in RESERVING:
            raise StoreError(
                f"{self.path}: writemap=True needs a file system on which room can be reserved "
                f"({', '.join(RESERVING.values())}), found type {found:#x}; open the store without it"
            )

    def _lock(self) -> None:
        if sys.platform != "linux":
            return  # nobody writes through the map
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_EX if self.mapped else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            if self.mapped:
                raise StoreError(
                    f"{self.path}: already open for writing, in this process or another; with writemap=True there can "
                    "be no other that writes. Close that, or open the store without it"
                ) from None
            raise StoreError(
                f"{self.path}: another process has it open with writemap=True, and is then the only one that can "
                "write; open it with readonly=True, or close it there"
            ) from None
        except OSError:
            # A file system without such locks: nobody can have it for himself.
            if self.mapped:
                raise

    @property
    def n_bytes(self) -> int:
        """Length of the file."""
        return os.fstat(self._descriptor).st_size

    def first_bytes(self, n_bytes: int) -> bytes:
        """What the file begins with."""
        return os.pread(self._descriptor, n_bytes, 0)

    def reserve(self, n_bytes: int) -> None:
        """See to it that the file has at least so many bytes, all with a place on the disk.

        Raises
        ------
        StoreError
            If there is no room; the file is as it was.
        """
        before = self.n_bytes
        self.check(n_bytes)
        libc = ctypes.CDLL(None, use_errno=True)
        # Unlike posix_fallocate() this never writes, whatever the file system.
        if libc.fallocate(self._descriptor, 0, ctypes.c_long(0), ctypes.c_long(n_bytes)) != 0:
            number = ctypes.get_errno()
            # Nobody has used what was added before that failed: give it back.
            os.ftruncate(self._descriptor, before)
            self._refuse(n_bytes, number)

    def check(self, n_bytes: int) -> None:
        """Raise StoreError if there is certainly no room for a file of so many bytes."""
        disk = os.fstatvfs(self._descriptor)
        if n_bytes - 512 * os.fstat(self._descriptor).st_blocks > disk.f_bavail * disk.f_frsize:
            self._refuse(n_bytes, errno.ENOSPC)

    def _refuse(self, n_bytes: int, number: int) -> NoReturn:
        what = f"{n_bytes:,} bytes are needed, of which it has {self.n_bytes:,} ({os.strerror(number)})"
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreError(
                f"{self.path}: no room on the disk: {what}; {room_left(self.path.parent)}. Nothing has been stored; "
                "make room, and run it again"
            )
        raise StoreError(f"{self.path}: no room can be reserved: {what}; open the store without writemap=True")

    def grow(self, n_bytes: int) -> int:
        """Reserve room for more than ``n_bytes``, which are used up; how much it is now.

        Raises
        ------
        StoreError
            If there is none; the file is as it was.
        """
        step = max(LEAST_BYTES, n_bytes // 4)
        larger = self.fitting(n_bytes + step)
        try:
            self.reserve(larger)
        except StoreError:
            larger = self.fitting(n_bytes + step // 8)  # the last that is left
            self.reserve(larger)
        return larger

    def fitting(self, n_bytes: int) -> int:
        """How large a map of at least ``n_bytes`` must be, so that LMDB does not make the file shorter."""
        return -(-max(n_bytes, self.n_bytes, LEAST_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE

    def close(self) -> None:
        """Give the locks back."""
        if self.turns is not None:
            self.turns.close()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        _open_rooms.discard(self)

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # else its making was interrupted
            self.close()


def is_full(error: BaseException) -> bool:
    """Whether LMDB has met a full disk; it calls a write that was cut short an input/output error."""
    return any(text in str(error) for text in ("No space left", "Disk quota exceeded", "Input/output error"))


def room_left(path: Path) -> str:
    """Which file system something is on, and how much room that has, in words."""
    try:
        place = path.resolve()
        disk = os.statvfs(place)
        while not place.is_mount():
            place = place.parent
    except OSError:
        return "its file system does not tell how much room it has"
    return f"the file system on {place} has {disk.f_bavail * disk.f_frsize:,} bytes free"


def open_or_make(path: str, flags: int) -> int:
    """An opener for ``FileIO``: the file is made, empty, if it does not exist."""
    return os.open(path, flags | os.O_CREAT, 0o644)


def reserve_lock_file(path: Path, max_readers: int) -> None:
    """Make LMDB's table of readers, if there is none, with a place on the disk; LMDB leaves that to its use.

    One that is there may be in use, and to close a descriptor of it would drop this process's locks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return
    try:
        # LMDB sets the length, and reads from it how many slots there are.
        n_bytes = READER_BYTES * (max_readers + 8)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(descriptor, KEEP_LENGTH, ctypes.c_long(0), ctypes.c_long(n_bytes)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(descriptor)


def _forget() -> None:
    """In a child of fork(), which cannot use the store, and must not keep the lock when the parent is gone."""
    for room in list(_open_rooms):
        room.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
