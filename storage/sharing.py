"""One copy of a layered filter's base for all processes of a machine.

The base never changes, so processes that have the same store open can use the same memory: an anonymous file
(``memfd_create``) with seals, which nobody can shrink or write any more, whoever made it included.  It is found by a
list in the store's folder of who has it open: ``/proc/PID/fd/N`` leads there while that process lives.

Nothing found is trusted: it is compared, byte by byte, with what was read from the environment.  The list may be
removed, cut short or overwritten at any time; then somebody makes another copy.  Where there are no such files (other
systems, another user's process), each process has its own copy.
"""

import logging
import mmap
import os
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Self

from dlbf.filters.base import Filter
from dlbf.filters.layered import LayeredFilter
from dlbf.storage import steps
from dlbf.storage.layout import SHARED_FILE

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

__all__ = ["SharedBases"]

log = logging.getLogger("dlbf.storage")

CAN_SHARE = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS") and Path("/proc/self/fd").is_dir()
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL if CAN_SHARE else 0
CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
# A smaller base is not worth a descriptor in every process.
LEAST_BYTES = 256 * 1024
# To share is optional: who has the list and does not go on is not waited for.  It takes some milliseconds.
PATIENCE_SECONDS = 3.0
POLL_SECONDS = 0.002
# Processes on the list; the newest come first, and one that lives is enough.
MOST_HOLDERS = 64
MOST_LIST_BYTES = 8192
# Slices, not views: of views each byte would be compared as an object.
COMPARED_AT_ONCE = 1 << 16


class Holder(NamedTuple):
    """A process that has a base open: a line of the list."""

    generation: int
    n_bytes: int
    pid: int
    descriptor: int


class SharedBases:
    """Gives filters whose base other processes use too.

    Parameters
    ----------
    folder : Path
        The store's, which has the list.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SHARED_FILE
        self._bases: tuple[weakref.ref[Filter], ...] = ()  # those that are, of this process

    def has(self, filter: LayeredFilter) -> bool:
        """Whether the filter's base is in memory that other processes can use."""
        return any(base() is filter.static for base in self._bases)

    def note(self, filter: LayeredFilter) -> None:
        """The base of this one is in memory that other processes can use."""
        self._bases = (*(base for base in self._bases if base() is not None), weakref.ref(filter.static))

    def share(self, filter: LayeredFilter, generation: int) -> LayeredFilter:
        """The same filter over shared memory; the one that was given if that is not possible."""
        if not CAN_SHARE or filter.base_bytes < LEAST_BYTES or self.has(filter):
            return filter
        try:
            shared = filter.with_base(memoryview(self._mapped(filter.static.to_bytes(), generation)))
        except (OSError, MemoryError) as error:
            log.debug("%s: this process has a copy of its own: %s", self._path, error)
            return filter
        self.note(shared)
        return shared

    def _mapped(self, data: bytes, generation: int) -> "_Mapped":
        """Memory with these bytes, which nobody can change."""
        with self._list() as descriptor:
            holders = _read_holders(descriptor, generation, len(data))
            mapped = None
            while holders and mapped is None:
                mapped = _map_found(holders[0], data)
                if mapped is None:
                    del holders[0]  # it has ended, or closed the store
            if mapped is None:
                mapped = _Mapped.of(_sealed(data))
            steps.reached("base-shared")
            own = Holder(generation, len(data), os.getpid(), mapped.descriptor)
            _write_holders(descriptor, [own, *(holder for holder in holders if holder != own)])
        return mapped

    @contextmanager
    def _list(self) -> Iterator[int]:
        """The list, for this process alone; OSError if it cannot be had soon."""
        with self._open_list() as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{self._path} is no file")
            end = time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(POLL_SECONDS)
            yield file.fileno()

    def _open_list(self) -> FileIO:
        try:
            return FileIO(self._path, "r+", opener=lambda path, flags: _open(path, flags | os.O_CREAT))
        except PermissionError:
            return FileIO(self._path, opener=_open)


def _open(path: str, flags: int) -> int:
    """Follows no link, and waits for nobody at the other end of a pipe."""
    return os.open(path, flags | CAREFULLY, 0o600)


class _Mapped(mmap.mmap):
    """Read-only memory, and the file by which other processes find it; both end together."""

    descriptor: int

    @classmethod
    def of(cls, file: FileIO) -> Self:
        """The memory of a sealed file, which is not the caller's any more."""
        mapped = cls(file.fileno(), os.fstat(file.fileno()).st_size, prot=mmap.PROT_READ)
        mapped.descriptor = file.fileno()
        weakref.finalize(mapped, file.close).atexit = False
        return mapped


def _sealed(data: bytes) -> FileIO:
    """An anonymous file with these bytes that nobody can change any more, for reading."""
    with FileIO(os.memfd_create("dlbf-base", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w") as writing:
        rest = memoryview(data)
        while rest:
            rest = rest[writing.write(rest) :]
        fcntl.fcntl(writing.fileno(), fcntl.F_ADD_SEALS, SEALS)
        # Older kernels map a sealed file only by a descriptor that could never write.
        return FileIO(f"/proc/self/fd/{writing.fileno()}")


def _map_found(holder: Holder, data: bytes) -> _Mapped | None:
    """What a process on the list has, if that is sealed and the same."""
    where = Path(f"/proc/{holder.pid}/fd/{holder.descriptor}")
    try:
        found = where.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size != len(data):
            return None
        file = FileIO(where, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))
        try:
            is_sealed = fcntl.fcntl(file.fileno(), fcntl.F_GET_SEALS) & SEALS == SEALS
            mapped = _Mapped.of(file) if is_sealed else None
        except OSError:
            mapped = None
    except OSError:
        return None
    if mapped is None:
        file.close()
        return None
    parts = (slice(i, i + COMPARED_AT_ONCE) for i in range(0, len(data), COMPARED_AT_ONCE))
    return mapped if all(mapped[part] == data[part] for part in parts) else None


def _read_holders(descriptor: int, generation: int, n_bytes: int) -> list[Holder]:
    """Who may have the base, as far as the list can be read."""
    holders = []
    for line in os.pread(descriptor, MOST_LIST_BYTES, 0).splitlines():
        words = line.split()
        if len(words) == len(Holder._fields) and all(word.isdigit() and len(word) < 20 for word in words):
            holders.append(Holder._make(map(int, words)))
    return [holder for holder in holders if (holder.generation, holder.n_bytes) == (generation, n_bytes)]


def _write_holders(descriptor: int, holders: list[Holder]) -> None:
    """The whole list anew; where it cannot be written, others make another copy."""
    text = b"".join(b"%d %d %d %d\n" % holder for holder in holders[:MOST_HOLDERS])
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
    except OSError as error:
        log.debug("the list of shared bases cannot be written: %s", error)
