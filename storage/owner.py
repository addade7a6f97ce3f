"""The name of a guard's directory, which a copy of it does not have.

``guard.id`` holds 32 hexadecimal digits, made once.  The name is these and the number of the file's inode: a directory
that is moved within a file system keeps it, one that is copied, or restored from a backup, gets another.
"""

import os
import secrets
from pathlib import Path

__all__ = ["ID_FILE", "owner_name"]

ID_FILE = "guard.id"


def owner_name(folder: Path, make: bool) -> bytes:
    """The name of a directory, which gets one if ``make``; empty: it has none."""
    path = folder / ID_FILE
    if make and not path.exists():
        temporary = path.with_name(f".{ID_FILE}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            with temporary.open("x") as file:
                file.write(secrets.token_hex(16))
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # fails if another process has made one
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)
    try:
        return path.read_bytes() + b"-%d" % path.stat().st_ino
    except FileNotFoundError:
        return b""
