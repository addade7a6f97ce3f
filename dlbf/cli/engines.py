"""Engines of guards for the command line: from a URL to an open engine, and closed again.

::

    rocksdb:PATH[?cf=NAME]                                        leveldb:PATH[?prefix=TEXT]
    sqlite:FILE?table=NAME[&key=COLUMN&value=COLUMN&text=yes]     lmdb:PATH[?db=NAME]
    redis://[user:password@]host[:port][/db][?prefix=TEXT]        (rediss://, valkey://, valkeys://, unix://)

As in any URL ``%xx`` is a byte: ``%3F`` for a question mark in a path.  Nothing is made: what is not there is an error.
The commands never change an engine's data; where an engine can be opened for reading only it is.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import click

from dlbf.cli.exits import Trouble

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dlbf.storage import Guard
    from dlbf.storage.engines import Adapter

__all__ = ["FORMS", "check_engine", "engine_option", "open_engine", "open_guard", "without_password"]

F = TypeVar("F", bound=Callable[..., object])  # a command, or a function that becomes one

FORMS = {
    "rocksdb": "rocksdb:PATH",
    "sqlite": "sqlite:FILE?table=NAME",
    "redis": "redis://HOST:PORT/DB",
    "lmdb": "lmdb:PATH",
    "leveldb": "leveldb:PATH",
}
OPTIONS = {
    "rocksdb": ("cf",),
    "leveldb": ("prefix",),
    "sqlite": ("table", "key", "value", "text"),
    "lmdb": ("db",),
}
# Other names of the same; what redis-py calls them.
SERVERS = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss", "unix": "unix"}
YES, NO = ("1", "yes", "true"), ("0", "no", "false")
LMDB_MAGIC = bytes.fromhex("dec0efbe")  # behind the header of its first page, in the machine's byte order
SQLITE_MAGIC = b"SQLite format 3\0"


class Url(NamedTuple):
    """An engine's URL in its parts."""

    text: str
    scheme: str
    path: Path
    options: dict[str, str]


def engine_option(command: F) -> F:
    """The option ``--engine`` of commands that read a guard's engine."""
    return click.option(
        "--engine",
        metavar="URL",
        shell_complete=_complete,
        help=f"Of a guard: where its data are. {', '.join(FORMS.values())}.",
    )(command)


def check_engine(path: Path, engine: str | None, needed: bool = True) -> None:
    """See that a guard's directory comes with its engine, and nothing else with one.

    Parameters
    ----------
    path : Path
        What the command is about.
    engine : str or None
        What ``--engine`` says.
    needed : bool
        Whether the command can do nothing for a guard without it.

    Raises
    ------
    Trouble
        If one of them is missing.
    """
    is_guard = (path / "guard.lock").exists()
    if engine is not None and not is_guard:
        found = "a file" if path.is_file() else "a directory without guard.lock"
        raise Trouble(f"{path}: --engine is for the directory of a guard, found {found}; leave it out, or check PATH")
    if needed and is_guard and engine is None:
        raise Trouble(
            f"{path}: the directory of a guard, whose data are in its engine; add --engine with one of "
            f"{', '.join(FORMS.values())}. Another engine only your program can open: there, with "
            f'g = Guard(engine, "{path}"): g.verify(), g.rebuild(). What can be told without: dlbf info {path}'
        )


# --- opening


@contextlib.contextmanager
def open_guard(
    path: Path, engine: str, *, write: bool, secret: bytes | None = None, adopt: bool = False
) -> Iterator["Guard"]:
    """A guard with its engine open; both are closed at the end.

    Parameters
    ----------
    path : Path
        Its directory.
    engine : str
        The URL of its engine.
    write : bool
        Open the guard (not the engine's data) for writing: other guards of the directory then wait where they must.
    secret : bytes, optional
        If it is not kept in the directory.
    adopt : bool
        Whether the engine may be another one than the filter was made for, or another directory's.  Otherwise nothing
        is changed then, so that a slip of the pen costs nobody a filter.

    Raises
    ------
    Trouble
        If one of them cannot be opened, the engine fails, or it is another one.
    """
    from dlbf.storage import Guard
    from dlbf.storage.engineless import InspectedGuard
    from dlbf.storage.guard import ANOTHER_ENGINE, ANOTHER_OWNER

    with open_engine(engine, exclusive=write) as adapter:
        guard: Guard = InspectedGuard(adapter, path, readonly=True, secret=secret, sample_misses=False)
        if write:
            with guard:
                reason = guard.stats().reason
            if reason.startswith(ANOTHER_OWNER):
                if not adopt:
                    raise Trouble(f"{path}: {reason}. Here: dlbf rebuild with --adopt-engine")
                adapter.release()
            if reason == ANOTHER_ENGINE and not adopt:
                raise Trouble(
                    f"{path}: expected the engine that its filter was made for, found that {without_password(engine)} "
                    "is another one, or was restored, copied or started anew since; check --engine. If it is the right "
                    f"one: close the programs that use the guard, and run dlbf rebuild {path} --engine "
                    f"'{without_password(engine)}' --adopt-engine"
                )
            guard = Guard(adapter, path, attach=False, secret=secret, sample_misses=False)
        with guard:
            yield guard


@contextlib.contextmanager
def open_engine(text: str, exclusive: bool = True) -> Iterator["Adapter"]:
    """The engine of a URL as a guard takes it; closed at the end.

    Parameters
    ----------
    text : str
        See the module.
    exclusive : bool
        What is read must be the newest, so that an engine for one process at a time must be this one's.  False: the
        state of some moment will do, if the engine can be looked at while another process has it.

    Raises
    ------
    Trouble
        If it cannot be opened, or fails while it is open.
    """
    url = parse(text)
    opener = OPENERS[url.scheme]
    with contextlib.ExitStack() as stack:
        adapter = opener(url, exclusive, stack)
        try:
            yield adapter
        except adapter.errors as error:
            raise Trouble(f"{without_password(text)}: the engine failed: {error}") from error


def parse(text: str) -> Url:
    """A URL's parts.

    Raises
    ------
    Trouble
        If the scheme or an option is unknown, or something is missing.
    """
    scheme, colon, rest = text.partition(":")
    scheme = scheme.lower()
    if not colon or scheme not in OPENERS:
        found = f"{scheme + ':'!r}" if colon else f"{text!r}"
        raise Trouble(f"--engine: expected one of {', '.join(FORMS.values())}, found {found}; {_advice(text, colon)}")
    if scheme in SERVERS:
        return Url(text, scheme, Path(), {})
    place, _, query = rest.partition("?")
    form = FORMS[scheme]
    if not place:
        raise Trouble(f"--engine {text}: expected {form}, found no path; add it")
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS[scheme]:
            known = ", ".join(OPTIONS[scheme])
            raise Trouble(
                f"--engine {text}: unknown option {name!r}; {scheme} has {known} (in a path ? is written %3F, & %26)"
            )
        if name in options:
            raise Trouble(f"--engine {text}: option {name!r} is there twice; give it once")
        options[name] = value
    return Url(text, scheme, Path(unquote(place)), options)


def _advice(text: str, has_scheme: str) -> str:
    if not has_scheme and Path(text).exists():
        return f"say what kind of engine {text} is"
    return "for an engine of another kind use g.verify() and g.rebuild() in the program that opens it"


def without_password(text: str) -> str:
    """A URL that may be shown."""
    return re.sub(r"^(\w+://[^/@:?]*:)[^?]*@", r"\1***@", text)


def _missing(url: Url, what: str, found: str, advice: str = "check the path; nothing was made") -> Trouble:
    return Trouble(f"--engine {url.text}: expected {what}, found {found}; {advice}")


def _folder(url: Url, what: str, files: tuple[str, ...]) -> None:
    """See that a directory has the files of an engine."""
    path = url.path
    if not path.is_dir():
        raise _missing(url, what, f"that {path} is a file" if path.exists() else f"that {path} does not exist")
    if not all((path / name).exists() for name in files):
        others = ", ".join(sorted(each.name for each in path.iterdir())[:3]) or "an empty directory"
        raise _missing(url, f"{what} with {' and '.join(files)} in it", others)


def _is_rocksdb(path: Path) -> bool:
    return (path / "IDENTITY").exists() or any(path.glob("OPTIONS-*"))


def _rocksdb(url: Url, exclusive: bool, stack: contextlib.ExitStack) -> "Adapter":
    _folder(url, "the directory of a RocksDB database", ("CURRENT",))
    if not _is_rocksdb(url.path):
        # RocksDB would open it, and LevelDB never again.
        raise _missing(url, "a RocksDB database", "one of LevelDB", f"use leveldb:{url.path}")
    import rocksdict

    from dlbf.storage.engines import RocksEngine

    access = rocksdict.AccessType.read_write() if exclusive else rocksdict.AccessType.read_only()
    try:
        # Without options it takes those that the database was last opened with.
        database = rocksdict.Rdict(str(url.path), access_type=access)
    except Exception as error:  # rocksdict raises no class of its own
        raise _cannot_open(url, "RocksDB", error) from error
    stack.callback(database.close)
    name = url.options.get("cf", "default")
    if name != "default":
        names = rocksdict.Rdict.list_cf(str(url.path))
        if name not in names:
            raise _missing(url, f"a column family {name!r}", ", ".join(names), "check cf=")
        database = database.get_column_family(name)
        stack.callback(database.close)
    try:
        return RocksEngine(database)
    except TypeError as error:
        raise Trouble(f"{url.text}: {error}") from error


def _leveldb(url: Url, exclusive: bool, stack: contextlib.ExitStack) -> "Adapter":
    _folder(url, "the directory of a LevelDB database", ("CURRENT",))
    if _is_rocksdb(url.path):
        raise _missing(url, "a LevelDB database", "one of RocksDB", f"use rocksdb:{url.path}")
    import plyvel

    from dlbf.storage.engines import LevelEngine

    try:
        database = plyvel.DB(str(url.path), create_if_missing=False)
    except plyvel.Error as error:
        raise _cannot_open(url, "LevelDB", error) from error
    stack.callback(database.close)
    prefix = os.fsencode(url.options.get("prefix", ""))
    return LevelEngine(database.prefixed_db(prefix) if prefix else database)


def _cannot_open(url: Url, kind: str, error: Exception) -> Trouble:
    hint = ""
    if "lock" in str(error).lower():
        hint = (
            f"; {kind} lets in one process at a time: stop the one that has it open, or do this there, with g.verify() "
            "or g.rebuild()"
        )
    return Trouble(f"{url.text}: {kind} cannot open it: {error}{hint}")


def _sqlite(url: Url, exclusive: bool, stack: contextlib.ExitStack) -> "Adapter":
    import sqlite3

    from dlbf.storage.engines import SqliteEngine

    path, options = url.path, url.options
    if not path.is_file():
        found = f"that {path} is a directory" if path.is_dir() else f"that {path} does not exist"
        raise _missing(url, "the file of an SQLite database", found)
    with path.open("rb") as file:
        magic = file.read(len(SQLITE_MAGIC))
    if magic not in (SQLITE_MAGIC, b""):  # a new one is empty
        raise _missing(url, f"a file that begins with {SQLITE_MAGIC!r}", f"{magic!r}", "check the path")
    text = options.get("text", "no").lower()
    if text not in YES + NO:
        raise _missing(url, "text=yes or text=no", f"text={options['text']}", "correct it")
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path.absolute()))}?mode=ro", uri=True, check_same_thread=False
    )
    stack.callback(connection.close)
    try:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        tables = [name for (name,) in rows]
        table = options.get("table", "")
        if table.lower() not in [name.lower() for name in tables]:
            what = f"a table {table!r}" if table else "table=NAME"
            there = f"the tables {', '.join(tables[:10])}" if tables else "no table"
            raise _missing(url, what, there, "name the guard's" if tables else "check the path")
        names = {name: options[name] for name in ("key", "value") if name in options}
        return SqliteEngine(connection, table, text=text in YES, **names)
    except sqlite3.Error as error:
        raise Trouble(f"{url.text}: SQLite cannot open it: {error}") from error


def _lmdb(url: Url, exclusive: bool, stack: contextlib.ExitStack) -> "Adapter":
    import lmdb

    from dlbf.storage.engines import LmdbEngine

    path = url.path  # of an environment, or of its one file (subdir=False)
    if not path.is_file():
        _folder(url, "an LMDB environment", ("data.mdb",))
    name = url.options.get("db")
    file = path if path.is_file() else path / "data.mdb"
    with file.open("rb") as opened:
        magic = opened.read(20)[16:]
    if magic not in (LMDB_MAGIC, LMDB_MAGIC[::-1]):  # LMDB would say so, too, having made a lock file beside it
        raise _missing(url, f"LMDB's number {LMDB_MAGIC.hex()} in {file}", magic.hex() or "nothing", "check the path")
    try:
        environment = lmdb.open(
            str(path), create=False, readonly=True, subdir=path.is_dir(), max_dbs=1 if name else 0, max_spare_txns=1
        )
    except lmdb.Error as error:
        raise Trouble(f"{url.text}: LMDB cannot open it: {error}") from error
    stack.callback(environment.close)
    if name:
        try:
            environment.open_db(os.fsencode(name), create=False)
        except (lmdb.NotFoundError, lmdb.IncompatibleError):
            with environment.begin() as txn:
                keys = [key.decode(errors="backslashreplace") for key in txn.cursor().iternext(values=False)]
            there = ", ".join(keys[:10]) if keys else "none"
            raise _missing(url, f"a database {name!r}", there, "check db=") from None
    return LmdbEngine(environment, os.fsencode(name) if name else None)


def _redis(url: Url, exclusive: bool, stack: contextlib.ExitStack) -> "Adapter":
    import redis

    from dlbf.storage.engines import RedisEngine

    parts = urlsplit(url.text)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = os.fsencode(options.pop("prefix", ""))
    if url.scheme != "unix" and not parts.hostname:
        raise Trouble(f"--engine {url.text}: expected {FORMS['redis']}, found no host; add it")
    query = "&".join(f"{quote(name)}={quote(value)}" for name, value in options.items())
    plain = parts._replace(scheme=SERVERS[url.scheme], query=query).geturl()
    arguments: dict[str, Any] = {}
    if parts.password is None and "REDISCLI_AUTH" in os.environ:
        arguments["password"] = os.environ["REDISCLI_AUTH"]  # as redis-cli does: a command line can be read by others
    shown = without_password(url.text)
    hint = "check --engine; a password may be in the URL or in the environment variable REDISCLI_AUTH"
    try:
        client: Any = redis.Redis.from_url(plain, **arguments)
        stack.callback(client.close)
        if client.info("cluster").get("cluster_enabled"):
            client = redis.RedisCluster.from_url(plain, **arguments)
            stack.callback(client.close)
    except (redis.RedisError, redis.exceptions.RedisClusterException) as error:
        raise Trouble(f"{shown}: the server cannot be used: {error}; {hint}") from error
    except (ValueError, TypeError) as error:  # what redis-py says about URLs
        raise Trouble(f"--engine {shown}: {error}; expected {FORMS['redis']}") from error
    return RedisEngine(client, prefix)


OPENERS: dict[str, Callable[[Url, bool, contextlib.ExitStack], "Adapter"]] = {
    "rocksdb": _rocksdb,
    "leveldb": _leveldb,
    "sqlite": _sqlite,
    "lmdb": _lmdb,
    **dict.fromkeys(SERVERS, _redis),
}


# --- completion


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """Schemes, then paths."""
    from click.shell_completion import CompletionItem

    scheme, colon, place = incomplete.partition(":")
    if not colon:
        starts = [f"{name}:" for name in OPTIONS] + ["redis://", "valkey://"]
        return [CompletionItem(each) for each in starts if each.startswith(incomplete)]
    if scheme not in OPTIONS or "?" in place:
        return []
    folder, _, name = place.rpartition("/")
    base = Path(unquote(folder) or ("/" if place.startswith("/") else "."))
    items = []
    with contextlib.suppress(OSError):
        for entry in sorted(base.iterdir()):
            if entry.name.startswith(unquote(name)) and (name or not entry.name.startswith(".")):
                before = f"{folder}/" if "/" in place else ""
                after = "/" if entry.is_dir() else "?table=" if scheme == "sqlite" else ""
                items.append(CompletionItem(f"{scheme}:{before}{quote(entry.name)}{after}"))
    return items
