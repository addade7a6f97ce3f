"""The secret of a store's keyed hash, in a file of its own beside the environment."""

import os
import time
from pathlib import Path

from dlbf.errors import StoreError
from dlbf.storage.layout import SECRET_FILE

__all__ = ["SECRET_BYTES", "make_secret", "read_secret"]

SECRET_BYTES = 16


def make_secret(folder: Path, secret: bytes | None = None) -> bytes:
    """A secret in its file, a new one if none is given; the one that is there if there is one."""
    path = folder / SECRET_FILE
    secret = secret or os.urandom(SECRET_BYTES)
    temporary = path.with_name(f".{SECRET_FILE}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secret)
                file.flush()
                os.fsync(file.fileno())
            # A link fails if there is a secret already, and a reader never sees half of one.
            os.link(temporary, path)
        finally:
            temporary.unlink()
    except FileExistsError:
        found = read_secret(folder)
        if found is None:
            raise StoreError(
                f"{path}: expected {SECRET_BYTES} bytes, found another size; restore or remove it"
            ) from None
        secret = found
    except OSError as error:
        raise StoreError(f"{path}: the secret cannot be written: {error}") from error
    return secret


def read_secret(folder: Path) -> bytes | None:
    """The secret, None if there is none."""
    try:
        secret = (folder / SECRET_FILE).read_bytes()
    except OSError:
        return None
    return secret if len(secret) == SECRET_BYTES else None
