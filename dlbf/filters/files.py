"""Filters in files, mapped for reading or for writing.

A file mapped with ``mode="r"`` is checked chunk by chunk as it is touched;
``mode="r+"`` checks all of it once, marks it as open, and writes fresh sums when it is closed.
"""

import atexit
import dataclasses
import mmap
import os
import sys
import traceback
import warnings
import weakref
from pathlib import Path
from typing import Any, BinaryIO

from dlbf import format
from dlbf.errors import ChecksumError, DlbfError, FormatError
from dlbf.filters.base import Filter, detach, inherit, is_held, mapped_file, set_mapped_file, write_sums
from dlbf.filters.kinds import class_of_kind

try:
    import fcntl
except ImportError:  # not a POSIX system: files are not locked there
    fcntl = None  # type: ignore[assignment]

__all__ = ["open_filter"]


class MappedFile:
    """An open, mapped, locked filter file."""

    def __init__(self, path: Path, mode: str) -> None:
        self.path = path
        self.writable = mode == "r+"
        self._process = os.getpid()
        self.file = self._open()
        try:
            size = os.fstat(self.file.fileno()).st_size
            if size < format.HEADER_BYTES:
                raise FormatError(
                    f"{path}: expected at least {format.HEADER_BYTES} bytes, found {size}; the file is cut"
                )
            access = mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ
            self.map = mmap.mmap(self.file.fileno(), 0, access=access)
        except BaseException:
            self.file.close()
            raise
        self.view = memoryview(self.map)
        self.payload = self.view

    def _open(self) -> BinaryIO:
        """The file that has the path, locked."""
        while True:
            file = self.path.open("r+b" if self.writable else "rb")
            try:
                self._lock(file)
                here, there = os.fstat(file.fileno()), self.path.stat()
            except BaseException:
                file.close()
                raise
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
                return file
            file.close()  # replaced before it was locked

    def _lock(self, file: BinaryIO) -> None:
        if fcntl is None:
            return
        kind = fcntl.LOCK_EX if self.writable else fcntl.LOCK_SH
        try:
            fcntl.flock(file.fileno(), kind | fcntl.LOCK_NB)
        except OSError:
            other = "in use" if self.writable else "being written"
            raise DlbfError(f"{self.path}: {other} by another filter object or process; close it there first") from None

    def mark_open(self, header: format.Header) -> None:
        """Say on disk that the sums no longer hold, before the first change can."""
        marked = dataclasses.replace(header, flags=format.FLAG_OPEN_FOR_WRITING)
        self.view[: format.HEADER_BYTES] = format.write_header(marked)
        self.map.flush(0, min(mmap.PAGESIZE, len(self.map)))

    def close(self, filter: Filter | None) -> None:
        """Write back if writable and a filter is there to write, unmap, unlock."""
        if filter is not None:
            _MAPPED.pop(id(filter), None)
            # From here on nobody changes the contents, so the sums will be those of what is written.
            detach(filter)
            self.write_back(filter)
        self.payload.release()
        self.view.release()
        self.map.close()
        self.file.close()

    def write_back(self, filter: Filter) -> None:
        """Write fresh sums, the count, and no flag.

        Nothing if it is not writable, or in a child made by fork(): its parent goes on writing.
        """
        if not self.writable or os.getpid() != self._process:
            return
        if os.name == "posix" and os.fstat(self.file.fileno()).st_nlink == 0:
            warnings.warn(
                f"{self.path}: removed or replaced while it was mapped with mode='r+'; the changes are lost",
                RuntimeWarning,
                stacklevel=3,
            )
            return
        write_sums(filter, self.view, self.payload, self.map.flush)


def _forget(error: BaseException, before: BaseException | None) -> None:
    """Drop what those who raised were working on, filters and views that would keep the file mapped.

    ``before`` is the error that the caller was handling, which is not ours to change.
    """
    chained: BaseException | None = error
    while chained is not None and chained is not before:
        traceback.clear_frames(chained.__traceback__)
        chained = chained.__context__


# Filters that are mapped now; those still here when the interpreter ends are closed then.
_MAPPED: "dict[int, weakref.ref[Filter]]" = {}


def _remember(filter: Filter) -> None:
    number = id(filter)
    _MAPPED[number] = weakref.ref(filter, lambda _: _MAPPED.pop(number, None))


@atexit.register
def _close_all() -> None:
    for reference in list(_MAPPED.values()):
        filter = reference()
        if filter is None:
            continue
        file = mapped_file(filter)
        if file is not None and is_held(filter):
            # Some thread still reads it by a FilterReader, so nobody changes it: write, and let the system unmap it.
            file.write_back(filter)
        else:
            filter.close()


def _inherit_all() -> None:
    """In a child of fork(): its parent's files are not its own to change."""
    for reference in list(_MAPPED.values()):
        filter = reference()
        file = mapped_file(filter) if filter is not None else None
        if filter is not None and file is not None and file.writable:
            inherit(filter)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inherit_all)


def open_filter(
    path: str | os.PathLike[str], mode: str = "r", *, secret: bytes | None = None, recover: bool = False
) -> Any:
    """Map a saved filter.

    Parameters
    ----------
    path : path
        A file written by ``filter.save``.
    mode : {"r", "r+"}
        ``"r"``: read-only and usable at once, whatever its size; each 16 KiB are checked against their sum when first
        touched, of a ``ShardedFilter`` each shard, and one that is damaged answers "maybe".  ``"r+"``: changes go to
        the file; the whole file (each shard when first touched) is checked and summed again by ``close()``.  Both in
        this process alone: those forked from it can only read it.
    secret : bytes, optional
        The secret it was made with, if any.
    recover : bool
        Accept, in mode ``"r+"``, a file that was being written when its process died.  Safe after a killed process;
        after a power cut the contents may be anything.

    Returns
    -------
    The filter, of the class it was saved from.  ``close()`` it, or use it in a ``with`` statement.

    Raises
    ------
    FileNotFoundError
    FormatError, ChecksumError, VersionError
        If the file is not a whole, unchanged filter.  Nothing of it stays mapped or locked.
    ValueError
        If ``secret`` is not the one it was made with.
    DlbfError
        If somebody else has it open in a way that excludes this one.

    Notes
    -----
    While it is mapped the file must not become shorter.  ``save`` replaces files whole and does no harm; a program that
    truncates one, or writes it anew in place, makes the system end whoever reads what is gone (SIGBUS).  The
    ``from_bytes`` of its class copies instead.

    Examples
    --------
    >>> import dlbf, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> dlbf.CuckooFilter(100).save(f"{folder.name}/f.dlbf")
    >>> with dlbf.open_filter(f"{folder.name}/f.dlbf", "r+") as f:
    ...     f.add(b"key")
    >>> with dlbf.open_filter(f"{folder.name}/f.dlbf") as f:
    ...     b"key" in f, f.is_writable
    (True, False)
    >>> folder.cleanup()
    """
    if mode not in ("r", "r+"):
        raise ValueError(f"mode must be 'r' or 'r+', found {mode!r}; to make a new file use filter.save(path)")
    if recover and mode != "r+":
        raise ValueError("recover=True needs mode='r+': it writes fresh checksums")
    path = Path(path)
    file = MappedFile(path, mode)
    filter: Filter | None = None
    before = sys.exception()
    try:
        where = str(path)
        header = format.read_header(file.view, where)
        cls = class_of_kind(header.kind, where)
        if mode == "r+" and not cls.IN_PLACE:
            raise DlbfError(
                f"{where}: a {cls.__name__} changes its size, so it cannot be changed in its file; use "
                f"dlbf.{cls.__name__}.from_bytes(path.read_bytes()) and save(path)"
            )
        file.payload = file.view[format.layout(header.n_payload_bytes).payload]
        abandoned = bool(header.flags & format.FLAG_OPEN_FOR_WRITING)
        if recover and abandoned:
            if header.kind != format.KIND_SHARDED:  # whose index is still that of the last time it was closed
                header = dataclasses.replace(header, n_items=0)
            filter = cls._from_payload(header, file.payload, secret, where, recover=True)
        else:
            sums = format.read_sums(file.view, header, where)
            if file.writable:
                if format.chunk_sums(file.payload) != sums:
                    raise ChecksumError(f"{where}: contents do not match their checksums; restore it or build it again")
                filter = cls._from_payload(header, file.payload, secret, where)
            else:
                filter = cls._from_payload(header, file.payload, secret, where, sums)
        if file.writable:
            file.mark_open(header)
    except BaseException as error:
        if filter is not None:
            detach(filter)
        _forget(error, before)
        file.close(None)
        raise
    set_mapped_file(filter, file)
    _remember(filter)
    return filter
