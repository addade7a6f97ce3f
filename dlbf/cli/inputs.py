"""Lines of a file as a stream, with the place reached, for progress bars."""

import contextlib
import gzip
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dlbf.cli.exits import Trouble

__all__ = ["BAD_FILE", "OPENERS", "Lines", "open_lines"]

# How compressed files are opened, from a path or from an open file.
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
# What reading such a file raises when the file is the problem.
BAD_FILE = (OSError, EOFError, zlib.error, lzma.LZMAError)


class Lines:
    """The lines of an open file; iterating raises ``Trouble`` where the file cannot be read on."""

    def __init__(self, name: str, raw: BinaryIO, file: Any, n_bytes: int | None) -> None:
        self.name = name
        self.n_bytes = n_bytes
        self._raw = raw
        self._file = file

    def position(self) -> int:
        """Bytes read so far, compressed ones if the file is; 0 if that has no meaning."""
        return 0 if self.n_bytes is None else self._raw.tell()

    def __iter__(self) -> Iterator[bytes]:
        try:
            # Not "yield from": a generator that ends early would close the file.
            for line in self._file:  # noqa: UP028
                yield line
        except BAD_FILE as error:
            raise _unreadable(self.name, error) from error


def _unreadable(name: str, error: BaseException) -> Trouble:
    return Trouble(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}")


@contextlib.contextmanager
def open_lines(name: str) -> Iterator[Lines]:
    """Open a file, decompressed if it ends in .gz or .xz; ``-`` is standard input.

    Raises
    ------
    Trouble
        If it cannot be opened.
    """
    if name == "-":
        yield Lines("standard input", sys.stdin.buffer, sys.stdin.buffer, None)
        return
    path = Path(name)
    with contextlib.ExitStack() as stack:
        try:
            raw = stack.enter_context(path.open("rb"))
            status = os.fstat(raw.fileno())
            file = stack.enter_context(OPENERS[path.suffix](raw)) if path.suffix in OPENERS else raw
        except OSError as error:
            raise _unreadable(name, error) from error
        yield Lines(name, raw, file, status.st_size if stat.S_ISREG(status.st_mode) else None)
