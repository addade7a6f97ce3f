"""Copying an environment that is in use to another file."""

import os
import signal
import threading
from collections.abc import Callable
from io import FileIO

import lmdb

from dlbf.storage.environment import Environment

__all__ = ["copy_environment"]

# Read at once from the copy that LMDB makes.
COPY_BYTES = 1 << 20


def copy_environment(environment: Environment, file: FileIO, meta_done: Callable[[], object]) -> None:
    """Write the environment to a file; ``meta_done`` is called when LMDB's writers need not wait.

    LMDB writes into a pipe, so that who reads from it can be interrupted, and sees when it has the meta pages.
    """
    reading, writing = os.pipe()
    problems: list[lmdb.Error] = []

    def write() -> None:
        try:
            if hasattr(signal, "pthread_sigmask"):
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])  # if nobody reads any more
            environment.handle.copyfd(writing)
        except lmdb.Error as error:
            problems.append(error)
        finally:
            os.close(writing)

    writer = threading.Thread(target=write, name="dlbf-backup", daemon=True)
    try:
        try:
            writer.start()
        except RuntimeError:  # there are too many threads
            os.close(writing)
            raise
        while part := os.read(reading, COPY_BYTES):
            file.write(part)
            if file.tell() >= 2 * environment.page_bytes:
                meta_done()
        os.fsync(file.fileno())
    finally:
        os.close(reading)
        if writer.is_alive():
            writer.join()
    if problems:
        raise problems[0]
