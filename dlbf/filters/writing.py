"""Writing a file whole or not at all, and not under somebody who has it mapped for writing."""

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from dlbf.errors import DlbfError

try:
    import fcntl
except ImportError:  # not a POSIX system: files are not locked there
    fcntl = None  # type: ignore[assignment]

__all__ = ["replace_file", "write_file", "write_pieces"]


def write_file(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``, as ``write_pieces`` does."""
    write_pieces(path, (data,))


def write_pieces(path: Path, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
    """Replace ``path`` by these, one after the other.

    A reader, or a crash, sees the old file or the new one, never a part.  A link is followed.

    Raises
    ------
    DlbfError
        If the file is mapped with ``mode="r+"``: its changes would go on to the file that is no longer there.
    """
    path = Path(os.path.realpath(path))
    with _not_being_written(path):
        _replace(path, pieces, True)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def replace_file(path: Path, data: bytes, sync: bool) -> None:
    """Write a file under another name and give it its own in one step; with ``sync`` it is on disk first.

    One that is there keeps its permissions.  That the name is on disk, too, is the caller's business.
    """
    _replace(path, (data,), sync)


def _replace(path: Path, pieces: Iterable[bytes | bytearray | memoryview], sync: bool) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o7777)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def _not_being_written(path: Path) -> Iterator[None]:
    """See that nobody has the file mapped for writing, nor maps it meanwhile; readers keep what they have."""
    try:
        file = path.open("rb") if fcntl is not None and path.is_file() else None
    except OSError:
        file = None  # it may be replaced without being read
    if file is None:
        yield
        return
    with file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DlbfError(
                f"{path}: open with mode='r+', by this filter or another one; changes go to the file by themselves, "
                "and close() completes it. Close it first, or save to another path"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
