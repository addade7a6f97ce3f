"""What a guard asks of an engine: four methods, and what an adapter may say beyond them."""

import inspect
import math
import reprlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from numbers import Real
from typing import Protocol, runtime_checkable

from dlbf.errors import StoreError

__all__ = ["Adapter", "Engine", "PlainAdapter", "checked_ttl", "keys_of", "refuse_asynchronous", "why_tables"]

MAX_TTL_SECONDS = 10_000_000_000  # 300 years: servers count milliseconds since 1970 in 63 bits


@runtime_checkable
class Engine(Protocol):
    """The least an engine must do.  Keys and values are bytes.

    Any object with these four methods can be guarded.  To tell a guard more (order, batches, what happens to a write
    whose writer dies), derive from ``Adapter`` instead.

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Guard
    >>> class Pairs:
    ...     def __init__(self):
    ...         self.pairs = []
    ...     def get(self, key):
    ...         return next((v for k, v in self.pairs if k == key), None)
    ...     def put(self, key, value):
    ...         self.delete(key)
    ...         self.pairs.append((key, value))
    ...     def delete(self, key):
    ...         self.pairs = [pair for pair in self.pairs if pair[0] != key]
    ...     def scan(self, start):
    ...         return iter([k for k, _ in self.pairs])
    >>> with tempfile.TemporaryDirectory() as folder, Guard(Pairs(), folder) as g:
    ...     g[b"a"] = b"1"
    ...     g.get(b"a"), g.get(b"b"), g.stats().filtered
    (b'1', None, 1)
    """

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None if it is not there."""
        ...

    def put(self, key: bytes, value: bytes) -> object:
        """Store a value; when this returns, every reader sees it."""
        ...

    def delete(self, key: bytes) -> object:
        """Delete a key; nothing happens if it is not there."""
        ...

    def scan(self, start: bytes) -> Iterator[bytes]:
        """All keys, each once, in any order.  One that is not bytes is refused by whoever reads them.

        Keys that come or go meanwhile may be left out or not; those that stay must be there.  An ``Adapter`` that is
        ``ordered`` yields the keys from ``start`` on in the order of bytes; others ignore ``start``.
        """
        ...


class Adapter(ABC):
    """An engine that says more about itself; every guard works with one of these.

    Attributes
    ----------
    ordered : bool
        ``scan(start)`` yields the keys from ``start`` on, in the order of bytes.  A rebuild beside writers is then
        exact; otherwise keys deleted meanwhile stay in the filter until the next one.
    fresh : bool
        Every read sees what was put before it began, by whichever process: it is of no older moment, and of no copy
        that lags behind.  While a key is overwritten, readers find the old value or the new one.  A guard's filter then
        has layers and remembers keys that were read and are not there, unless the engine is ``in_flight`` or
        ``revives``.
    in_flight : bool
        A write may still arrive after the process that sent it has failed or died (a network lies in between).  A
        guard then
        never takes a key back that it has announced: the filter keeps an entry for nothing, and misses nothing.
    repeats : bool
        ``scan`` may yield a key more than once.
    tells : bool
        ``delete_many`` says which keys were there, so they need not be asked for before.
    expires : bool
        ``put_expiring`` works: a key can be given a time after which the engine deletes it.
    revives : bool
        A key that is absent may be there again though nobody has put it: its time is over by a clock that can be set
        back.  A guard then takes back no entry because it finds the key absent.
    errors : tuple of exception types
        What the engine raises when it fails, besides ``OSError``.  One that comes when a write is done, and its keys
        are read for a larger filter, is logged; others are taken for a signal handler's, and raised.
    """

    ordered = False
    fresh = False
    in_flight = True
    repeats = False
    tells = False
    expires = False
    revives = False
    errors: tuple[type[Exception], ...] = ()

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """See ``Engine``."""

    @abstractmethod
    def put(self, key: bytes, value: bytes) -> object:
        """See ``Engine``."""

    @abstractmethod
    def delete(self, key: bytes) -> object:
        """See ``Engine``."""

    @abstractmethod
    def scan(self, start: bytes) -> Iterator[bytes]:
        """See ``Engine``."""

    def has(self, key: bytes) -> bool:
        """Whether a key is there."""
        return self.get(key) is not None

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of many keys."""
        return [self.get(key) for key in keys]

    def has_many(self, keys: list[bytes]) -> list[bool]:
        """Which keys are there."""
        return [self.has(key) for key in keys]

    def put_many(self, items: list[tuple[bytes, bytes]]) -> None:
        """Store many values."""
        for key, value in items:
            self.put(key, value)

    def put_expiring(self, key: bytes, value: bytes, seconds: float) -> object:
        """Store a value that the engine deletes after so many ``seconds``, if it ``expires`` keys.

        What was there goes, with its time; a ``put`` of the key makes it stay again.
        """
        raise NotImplementedError(f"{type(self).__name__}.expires is True, but it has no put_expiring")

    def delete_many(self, keys: list[bytes]) -> list[bool] | None:
        """Delete many keys; says which were there if the adapter ``tells``."""
        for key in keys:
            self.delete(key)
        return None

    def count(self) -> int | None:
        """Number of keys, if it is cheap to tell."""
        return None

    def sync(self) -> None:  # noqa: B027  (an engine that waits by itself has nothing to do here)
        """Wait until what was deleted is on disk: a key that comes back after a power failure must be in the filter."""

    def identity(self) -> bytes:
        """Something that another engine, or one that may have lost writes, does not say; empty: unknown."""
        return b""

    def claim(self, owner: bytes, place: str, write: bool) -> None:  # noqa: B027  (some engines have no room for it)
        """Keep guards of other directories from the engine: they would deny each other's keys.

        Parameters
        ----------
        owner : bytes
            The name of the guard's directory; empty: it has none.
        place : str
            Where it is, for people.
        write : bool
            Note the owner in the engine, in one step, if no owner is noted there.  False: only look.

        Raises
        ------
        StoreError
            If another owner is noted.
        """

    def leave(self, owner: bytes) -> None:  # noqa: B027
        """The guard that has claimed the engine for ``owner`` is closed; what is noted stays."""

    def release(self) -> None:  # noqa: B027
        """Forget which directory guards the engine; the next one that opens a guard has it, and reads all keys.

        For a directory that is lost, or was moved to another file system or machine.  Close its guards first: one that
        stays open would deny what others store from now on.
        """


def keys_of(engine: Adapter, start: bytes) -> Iterator[bytes]:
    """What ``engine.scan(start)`` yields.

    Raises
    ------
    StoreError
        At a key that is not bytes: the filter would know another one, or none, and deny what is stored.
    """
    for key in engine.scan(start):
        if not isinstance(key, bytes):
            raise StoreError(
                f"a guard needs keys of bytes, but {type(engine).__name__} found a key of type {type(key).__name__}: "
                f"{reprlib.repr(key)}; store such keys as bytes, or elsewhere"
            )
        yield key


def checked_ttl(engine: Adapter, ttl: object) -> float:
    """Seconds after which an engine is to delete a key.

    Raises
    ------
    TypeError, ValueError
        If it is no number, or none that a time can be.
    StoreError
        If the engine's keys do not expire.
    """
    if isinstance(ttl, bool) or not isinstance(ttl, Real):
        raise TypeError(f"expected ttl as a number of seconds, found a {type(ttl).__name__}: {reprlib.repr(ttl)}")
    try:
        seconds = float(ttl)
    except OverflowError:
        seconds = math.inf
    if not 0 < seconds <= MAX_TTL_SECONDS:  # NaN neither
        raise ValueError(
            f"expected a ttl above 0 and up to {MAX_TTL_SECONDS:,} seconds, found {reprlib.repr(ttl)}; leave it out "
            "for a key that stays, and delete one that is to go at once"
        )
    if not engine.expires:
        name = type(engine.engine if isinstance(engine, PlainAdapter) else engine).__name__
        raise StoreError(
            f"expected an engine whose keys expire (Redis, Valkey, SqliteEngine with expires=), found {name}, which "
            "keeps them until they are deleted; leave ttl out, or keep the time in the value and delete what is over"
        )
    return seconds


def refuse_asynchronous(engine: object) -> None:
    """Refuse clients whose answers must be awaited: a guard would take the promise of an answer for the answer.

    Raises
    ------
    TypeError
        If it is a client for asyncio.
    """
    asked = [getattr(engine, name, None) for name in ("execute_command", "execute", "get", "put")]
    if any(map(inspect.iscoroutinefunction, asked)):
        kind = type(engine)
        raise TypeError(
            f"expected an engine that answers at once, found {kind.__module__}.{kind.__qualname__}, whose answers are "
            "awaited; give one without asyncio: dlbf.storage.aio.Guard makes that awaitable"
        )


def why_tables(engine: Adapter) -> str:
    """Why a filter before this engine may not have layers; empty: it may."""
    if engine.in_flight:
        return "a write of the engine may arrive after its writer has died"
    if engine.revives:
        return "a key of the engine may be there again though nobody has put it"
    if not engine.fresh:
        return "a read of the engine may miss what another process has just put (``Adapter.fresh``)"
    return ""


def library_errors(engine: object, *names: str) -> tuple[type[Exception], ...]:
    """Exceptions with these names of the library that an engine is of, without importing that."""
    packages = {parent.__module__.partition(".")[0] for parent in type(engine).__mro__}
    found = [getattr(sys.modules.get(package), name, None) for package in packages for name in names]
    return tuple(error for error in found if isinstance(error, type) and issubclass(error, Exception))


class PlainAdapter(Adapter):
    """An ``Engine`` of which nothing else is known."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def get(self, key: bytes) -> bytes | None:
        """See ``Engine``."""
        return self.engine.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """See ``Engine``."""
        self.engine.put(key, value)

    def delete(self, key: bytes) -> None:
        """See ``Engine``."""
        self.engine.delete(key)

    def scan(self, start: bytes) -> Iterator[bytes]:
        """See ``Engine``."""
        return self.engine.scan(start)
