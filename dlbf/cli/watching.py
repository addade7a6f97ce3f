"""A store or a guard that is opened to be looked at, whichever PATH is."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dlbf.cli.engines import check_engine, open_guard
from dlbf.cli.reading import read_secret
from dlbf.cli.stores import check_store, is_guard

if TYPE_CHECKING:
    from dlbf.storage import Guard, Store

__all__ = ["open_readonly"]


@contextlib.contextmanager
def open_readonly(path: Path, engine: str | None, secret_file: Path | None) -> Iterator["Store | Guard"]:
    """The store or guard in a directory, for reading; closed at the end.

    Parameters
    ----------
    path : Path
    engine : str or None
        Of a guard: the URL of its engine; None: what the filter tells without it.
    secret_file : Path or None
        Where the secret is, if it is not in the directory.

    Raises
    ------
    Trouble
        If it is neither, or cannot be opened.
    """
    from dlbf.storage import Store
    from dlbf.storage.engineless import EnginelessGuard

    secret = None if secret_file is None else read_secret(secret_file)
    check_engine(path, engine, needed=False)
    check_store(path, guards=True)
    if engine is not None:
        with open_guard(path, engine, write=False, secret=secret) as guard:
            yield guard
    else:
        with (EnginelessGuard if is_guard(path) else Store)(path, readonly=True, secret=secret) as opened:
            yield opened
