"""Which directory guards an engine of files: a small file in the engine's directory, or beside its file, says so.

Guards of two directories would deny each other's keys: each filter knows only what was stored through its own.  So the
first guard that opens an engine for writing leaves a mark there, and guards of other directories are refused, or read
without their filter if they are opened for reading.  The mark is a line of JSON::

    {"dlbf": 1, "space": "", "engine": "...", "owner": "...", "token": "...", "place": "host:/path"}

``space``
    The part of the engine that is guarded, in hexadecimal: a table, a database, a prefix.  Each has a mark of its own.
``engine``
    What a copy of the engine does not say (the number of an inode, mostly): a mark that was copied with it is void.
``owner``, ``place``
    The name of the guard's directory (``dlbf.storage.owner``), and where it is, for people.
``token``
    Another one for every claim.  It is part of the engine's identity: a guard whose mark was lost, or given to another
    directory in between, finds another token and reads the keys again.  So one directory after the other is always
    safe, and only two at a time are not.

A mark is written whole beside its place and then linked or renamed there, so nobody sees half of one.  Every open guard
holds a shared lock on it (``flock``); who takes a mark over needs it exclusively, so no guard is open then.  That
happens by itself if the directory in ``place`` is gone, or another one is there.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import socket
import time
from pathlib import Path
from typing import NamedTuple

from dlbf.errors import StoreError
from dlbf.kernels.hashing import checksum64
from dlbf.storage.engines.base import Adapter
from dlbf.storage.owner import owner_name

__all__ = ["FileAdapter", "Place"]

log = logging.getLogger("dlbf.storage")

VERSION = 1
MAX_BYTES = 1 << 16
PATIENCE_SECONDS = 1.0  # for another process that is between two steps
READONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


class Place(NamedTuple):
    """Where an engine's mark is.

    ``begin`` is how the names of its marks begin, ``engine`` is what a copy of it does not say; in an engine whose
    ``space`` is a ``prefix`` of keys, one that begins another has its keys, too.
    """

    folder: Path
    begin: str
    engine: str
    space: bytes = b""
    prefix: bool = False

    def path(self) -> Path:
        """The file of this space's mark."""
        number = f"-{checksum64(self.space):016x}" if self.space else ""
        return self.folder / f"{self.begin}dlbf{number}.guard"

    def overlaps(self, space: bytes) -> bool:
        """Whether keys of another space may be this one's."""
        return space == self.space or (self.prefix and (space.startswith(self.space) or self.space.startswith(space)))


class Record(NamedTuple):
    """The content of a mark."""

    space: bytes
    engine: str
    owner: str
    token: str
    place: str

    def pack(self) -> bytes:
        """As bytes."""
        return json.dumps({"dlbf": VERSION} | self._asdict() | {"space": self.space.hex()}).encode() + b"\n"

    @classmethod
    def unpack(cls, data: bytes) -> "Record | None":
        """From bytes; None if they are no mark.

        Raises
        ------
        StoreError
            If it is one of a newer version.
        """
        try:
            fields = json.loads(data)
            version = fields.pop("dlbf")
            if version == VERSION:
                record = cls(**fields)
                return record._replace(space=bytes.fromhex(fields["space"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        raise StoreError(f"expected version {VERSION}, found {version!r}; use the newer dlbf that has written it")


class HeldMark:
    """A mark that is there, with a shared lock on it: who has it knows that nobody replaces it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def find(cls, path: Path) -> "HeldMark | None":
        """The mark of a path; None if there is none.

        Raises
        ------
        StoreError
            If it cannot be looked at.
        """
        while True:
            try:
                held = cls(path, os.open(path, os.O_RDONLY))
            except FileNotFoundError:
                return None
            except OSError as error:
                raise StoreError(
                    f"{path}, where guards note which directory an engine has, cannot be read: {error.strerror}; "
                    "allow it, or delete the file if no guard uses the engine"
                ) from error
            if not held.lock(fcntl.LOCK_SH):
                held.close()
                raise StoreError(f"{path}: another process is taking over the engine; try again")
            if held.is_current():
                return held
            held.close()

    def lock(self, kind: int) -> bool:
        """Take a lock, or exchange the one that is held; False if others do not give it up."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > end:
                    return False
                time.sleep(0.005)

    def is_current(self) -> bool:
        """Whether it is still what its path leads to."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        own = os.fstat(self.descriptor)
        return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)

    def read(self) -> Record | None:
        """What it says; None if that is no mark."""
        try:
            return Record.unpack(os.pread(self.descriptor, MAX_BYTES, 0))
        except (StoreError, OSError) as error:
            raise StoreError(f"{self.path}, where guards note which directory an engine has: {error}") from error

    def close(self) -> None:
        """Let go of it.  Not unlocked: a process that was forked has the same lock."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class FileAdapter(Adapter):
    """An adapter of an engine that is kept in files; ``place`` says where its mark may be.

    Notes
    -----
    Where nothing can be written, and no mark is there, none is made: then nobody keeps others from the engine.
    """

    in_flight = False
    _held: dict[bytes, HeldMark | None] | None = None  # by owner, while their guards are open

    def place(self) -> Place | None:
        """Where the engine's mark is; None: it has no files, or does not tell where they are."""
        return None

    def identity(self) -> bytes:
        """What only this engine says, and the token of its claim."""
        where = self.place()
        if where is None:
            return b""
        held, record = find_mark(where)
        if held is not None:
            held.close()
        return f"{where.engine} {record.token if record is not None else ''}".strip().encode()

    def claim(self, owner: bytes, place: str, write: bool) -> None:
        """Leave a mark, or see whose it is; see ``Adapter``."""
        where = self.place()
        if where is None:
            return
        new = Record(where.space, where.engine, owner.decode(), secrets.token_hex(8), place)
        held = made = None
        while True:
            held, record = find_mark(where)
            if record is not None and record.owner == new.owner:
                break
            try:
                if record is not None:
                    check_gone(where.path(), record, write)
                elif not write:
                    break  # nobody's
                made = put_mark(where.path(), held, new) or made
            except OSError as error:
                if error.errno in READONLY:
                    break
                raise
            finally:
                if held is not None:
                    held.close()
                    held = None
        try:
            clear_overlapping(where, new.owner, write)
        except StoreError:
            if made:
                where.path().unlink(missing_ok=True)
            raise
        self._keep(owner, held)

    def leave(self, owner: bytes) -> None:
        """The guard is closed: its directory keeps the mark, and nobody the lock on it."""
        self._keep(owner, None)

    def _keep(self, owner: bytes, held: HeldMark | None) -> None:
        self._held = self._held or {}
        before, self._held[owner] = self._held.get(owner), held
        if before is not None:
            before.close()

    def release(self) -> None:
        """Forget which directory guards this engine; see ``Adapter``.

        Raises
        ------
        StoreError
            If a guard of it is open.
        """
        where = self.place()
        for path in [] if where is None else marks_of(where):
            held = HeldMark.find(path)
            if held is not None:
                remove_mark(held)


def find_mark(where: Place) -> tuple[HeldMark | None, Record | None]:
    """The mark of a place, and what it says of this engine; None: nothing, or of another one."""
    held = HeldMark.find(where.path())
    record = held.read() if held is not None else None
    return held, record if record is not None and record.engine == where.engine else None


def marks_of(where: Place) -> list[Path]:
    """Files that may be marks of the same keys."""
    if not where.prefix:
        return [where.path()]
    names = [path.name for path in where.folder.iterdir()]
    return [where.folder / name for name in names if name.startswith(f"{where.begin}dlbf") and name.endswith(".guard")]


def clear_overlapping(where: Place, owner: str, write: bool) -> None:
    """See that no other space's mark is about the same keys.

    Raises
    ------
    StoreError
        If there is one, and its directory, too.
    """
    for path in marks_of(where):
        held = HeldMark.find(path) if path != where.path() else None
        if held is None:
            continue
        record = held.read()
        if record is None or record.engine != where.engine or record.owner == owner or not where.overlaps(record.space):
            held.close()
            continue
        check_gone(path, record, write)
        remove_mark(held)


def check_gone(path: Path, record: Record, write: bool) -> None:
    """Refuse to take an engine from a directory that is still there, or may be."""
    host, _, folder = record.place.partition(":")
    if write and host == socket.gethostname():
        with contextlib.suppress(OSError, ValueError):
            if owner_name(Path(folder), False).decode() != record.owner:  # gone, or another one now
                log.warning("%s: the guard directory %s is gone; the engine gets another one", path, record.place)
                return
    raise StoreError(
        f"expected an engine that no other directory guards, found that it belongs to the guard directory "
        f"{record.place} (noted in {path}); guards of two directories deny each other's keys. Use that directory. If "
        "it was moved or copied here, or is not needed any more: close its guards, run engine_for(engine).release() of "
        "dlbf.storage.engines once, and open this one. With readonly=True it opens now, and reads without its filter"
    )


def put_mark(path: Path, held: HeldMark | None, record: Record) -> bool:
    """Write a mark where none is, or instead of ``held``, which no guard may have open; False: look again."""
    if held is not None:
        if not held.lock(fcntl.LOCK_EX):
            raise still_open(path)
        if not held.is_current():
            return False
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(record.pack())
            file.flush()
            os.fsync(file.fileno())
        if held is not None:
            temporary.replace(path)
        else:
            os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def remove_mark(held: HeldMark) -> None:
    """Delete a mark that no guard has open, and let go of it."""
    try:
        if not held.lock(fcntl.LOCK_EX):
            raise still_open(held.path)
        if held.is_current():
            held.path.unlink()
    finally:
        held.close()


def still_open(path: Path) -> StoreError:
    """The error where a mark is in use."""
    return StoreError(
        f"{path}: a guard of the directory that is noted there is open, in this process or another; close it first"
    )
