"""Writing a file so that whoever looks finds all of it or nothing."""

import os
import secrets
from pathlib import Path

__all__ = ["write_file"]


def write_file(path: Path, data: bytes, sync: bool) -> None:
    """Write a file under another name and give it its own in one step; with ``sync`` it is on disk first."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
