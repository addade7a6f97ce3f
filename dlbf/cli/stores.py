"""Stores for the command line: opening one, and saying what is wrong when it cannot be opened."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from dlbf.cli.exits import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_NO, EXIT_TROUBLE, Trouble
from dlbf.cli.reading import read_secret

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dlbf.storage import Store

__all__ = [
    "EXIT_INTERRUPTED",
    "EXIT_NO",
    "EXIT_TROUBLE",
    "Trouble",
    "check_filter_file",
    "check_store",
    "is_guard",
    "open_store",
    "secret_option",
    "store_argument",
    "trouble",
    "uninterrupted",
]

F = TypeVar("F", bound=Callable[..., object])  # a command, or a function that becomes one
STORE_FILES = ("data.mdb", "lock.mdb")


@contextlib.contextmanager
def trouble() -> Iterator[None]:
    """Turn errors that a user can do something about into ``Trouble``."""
    import lmdb

    from dlbf.errors import DlbfError

    try:
        yield
    except BrokenPipeError:
        # The reader has seen enough (| head): end as quietly as a program that the signal SIGPIPE ends.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_BROKEN_PIPE) from None
    except click.UsageError:
        raise
    except click.ClickException as error:
        raise Trouble(error.message) from error
    except (DlbfError, OSError) as error:
        raise Trouble(str(error)) from error
    except lmdb.Error as error:
        hint = "; make room on the disk and run it again" if "No space" in str(error) else ""
        raise Trouble(f"LMDB: {error}{hint}") from error


def store_argument(command: F) -> F:
    """The argument PATH: the directory of a store."""
    return click.argument("path", metavar="PATH", type=click.Path(path_type=Path), shell_complete=_directories)(command)


def _directories(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """Tell the shell to complete directories, not files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


def secret_option(command: F) -> F:
    """The option ``--secret-file``."""
    return click.option(
        "--secret-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="16 bytes, of a store whose secret is kept elsewhere.",
    )(command)


@contextlib.contextmanager
def open_store(
    path: Path, *, write: bool = False, create: bool = False, fpr: float | None = None, secret_file: Path | None = None
) -> Iterator["Store"]:
    """An open store; closed at the end.

    Parameters
    ----------
    path : Path
        Its directory.
    write, create : bool
        Open it for writing; make one if there is none (and say so on standard error).
    fpr : float, optional
        Target rate of a new store.
    secret_file : Path, optional
        Where the secret is, if it is not in the directory.

    Raises
    ------
    Trouble
        If that cannot be done, or something goes wrong while it is open.
    """
    with trouble():
        _check_path(path, write, create)
        from dlbf.storage import Store

        is_new = not (path / "data.mdb").exists()
        secret = None if secret_file is None else read_secret(secret_file)
        with Store(path, fpr, readonly=not write, create=create, secret=secret) as store:
            if is_new:
                click.echo(
                    f"{path}: made a new store; its filter is for {store.stats().fpr_target:.3g} false positives",
                    err=True,
                )
            yield store


def is_guard(path: Path) -> bool:
    """Whether a directory is a guard's."""
    return (path / "guard.lock").exists()


def check_store(path: Path, guards: bool = False) -> None:
    """Say what a directory is that is not a store's (or, with ``guards``, a guard's).

    Raises
    ------
    Trouble
        If there is no store that could be read.
    """
    _check_path(path, write=False, create=False, guards=guards)


def check_filter_file(path: Path) -> None:
    """Say what a file is that is no filter's.

    Raises
    ------
    Trouble
        If it does not begin as our files do; what else may be wrong with it is for the caller to find.
    """
    from dlbf.format import MAGIC

    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
    if magic != MAGIC:
        if path.name in STORE_FILES:
            raise Trouble(f"{path}: {_what_file(path)}")
        raise Trouble(
            f"{path}: neither a store nor a filter file: expected a directory, or a file that begins with {MAGIC!r}, "
            f"found {magic!r}; check the path"
        )


def _check_path(path: Path, write: bool, create: bool, guards: bool = False) -> None:
    """Find what LMDB would only have a number for."""
    data = path / "data.mdb"
    if is_guard(path) and not guards:
        raise Trouble(
            f"{path}: the directory of a guard, not of a store: this needs the keys and values, which are in its "
            f'engine, and only your program can open that. There, with g = Guard(engine, "{path}"): g.get(key), '
            f"g.verify(), g.rebuild(). What can be told without the engine: dlbf info {path}"
        )
    if path.is_file():
        raise Trouble(f"{path}: {_what_file(path)}")
    if not path.exists():
        if not create:
            raise Trouble(f"{path}: there is no store; make one with: dlbf put {path} KEY VALUE, or: dlbf load {path}")
        if not path.absolute().parent.is_dir():
            raise Trouble(f"{path}: the folder {path.absolute().parent} does not exist; make it, or check the path")
        _check_access(path.absolute().parent, os.W_OK | os.X_OK, "make a store in it")
        return
    _check_access(path, os.R_OK | os.X_OK, "read it")
    if is_guard(path):
        for file in (path / "guard.lock", path / "guard.log"):
            if file.exists():  # else who opens it says what is missing
                _check_access(file, os.R_OK, "read it")
        return
    if not data.exists():
        others = sorted(each.name for each in path.iterdir())[:3]
        if create and not others:
            _check_access(path, os.W_OK, "make a store in it")
            return
        instead = f"found {', '.join(others)}" if others else "found an empty directory"
        advice = "a new store needs a directory of its own" if create else "check the path"
        raise Trouble(f"{path}: not a store: expected data.mdb in it, {instead}; {advice}")
    _check_access(data, os.R_OK | (os.W_OK if write else 0), "write to it" if write else "read it")
    # Readers write their place into LMDB's table of readers.
    lock = path / "lock.mdb"
    _check_access(lock if lock.exists() else path, os.R_OK | os.W_OK, "use it, for reading too")


def _check_access(path: Path, mode: int, purpose: str) -> None:
    if not os.access(path, mode):
        raise Trouble(
            f"{path}: no permission to {purpose} (mode {path.stat().st_mode & 0o777:03o}, owner {_owner(path)}, "
            f"you are {os.getuid()}); run this as its owner or change its mode"
        )


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, OSError):
        return str(path.stat().st_uid)


def _what_file(path: Path) -> str:
    """What a file is that was named where a store's directory is expected."""
    from dlbf import format
    from dlbf.errors import FormatError

    if path.name in STORE_FILES:
        return f"a file of a store; name its directory: {path.absolute().parent}"
    try:
        with path.open("rb") as file:
            is_ours = file.read(len(format.MAGIC)) == format.MAGIC
        header = format.read_header(path.read_bytes(), str(path)) if is_ours else None
    except (FormatError, OSError):
        header = None
    if header is None:
        return "expected the directory of a store, found a file; check the path"
    kind = format.KIND_NAMES.get(header.kind, "filter")
    return f"expected the directory of a store, found a {kind} in a file; dlbf info {path} describes it"


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until the end of the block, so that what is counted is what was stored."""
    caught: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    except ValueError:  # not the main thread: signals do not come here
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught:
        raise KeyboardInterrupt
