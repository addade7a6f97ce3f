"""Guards for asyncio: an absent key is answered without a suspension point.

The filter, its log and the write protocol are those of ``dlbf.storage.Guard``.  Changes are made by one thread of the
guard's own, each as a whole: whoever is cancelled while waiting for one leaves a change that is made completely, and
never half of one.  Reads that the filter lets pass go to ``reader``, an asyncio client of the same server, or to a
thread.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

import numpy as np
import numpy.typing as npt

from dlbf.errors import StoreError
from dlbf.kernels.keys import read_keys
from dlbf.kernels.ledger import ABSENT, MAYBE
from dlbf.storage import guard as threads
from dlbf.storage.engines import engine_for
from dlbf.storage.engines.redis import GUARDS, RedisEngine, for_asyncio
from dlbf.storage.fleet.valkeylog import ValkeyLog
from dlbf.storage.keys import MISSING, Items, Key, Value, as_key
from dlbf.storage.rebuild import Progress
from dlbf.storage.report import Drift, RebuildReport, Stats, Verification

__all__ = ["Guard", "Options", "Reader"]

P = ParamSpec("P")
T = TypeVar("T")

# Larger batches are asked in a thread: about so many take as long as handing them over.
DIRECT_KEYS = 1024
ALL = (b"", None, None, False)  # no bounds: guards of many hosts know none
CHUNK_ITEMS = 512  # that a thread fetches at once for ``async for``


class Reader(Protocol):
    """A client such as ``redis.asyncio.Redis`` or ``valkey.asyncio.Valkey``, as far as it is used here."""

    def get(self, name: bytes, /) -> Awaitable[bytes | None]:
        """The value of a key."""
        ...

    def exists(self, name: bytes, /) -> Awaitable[int]:
        """Whether a key is there."""
        ...

    def hget(self, name: bytes, key: bytes, /) -> Awaitable[bytes | None]:
        """One field of a hash."""
        ...


class Options(TypedDict, total=False):
    """What ``dlbf.storage.Guard`` takes beside an engine and a directory; see there."""

    fpr: float | None
    attach: bool
    progress: Progress | None
    readonly: bool
    sync: str
    secret: bytes | None
    keyed: bool
    sample_misses: bool | int
    lock_timeout: float | None
    remember_bytes: int | None
    log: ValkeyLog | None
    consistency: str
    lease_seconds: float


class Guard:
    """A guard whose methods are awaited; see ``dlbf.storage.Guard``.

    Parameters
    ----------
    engine : object
        As for ``dlbf.storage.Guard``: changes, and all that is slow, go there, in threads.  Before a Redis or Valkey
        server a ``RedisEngine`` with a client that is not for asyncio.
    path : path
        The guard's directory; guards of other processes may have it open, with asyncio or without.
    reader : Reader, optional
        For an engine that is a ``RedisEngine``: a client of the same server and database for asyncio, without
        ``decode_responses``.  Reads that the filter lets pass need no thread then.
    **options
        As for ``dlbf.storage.Guard``.  Opening may read all keys of the engine: make it before the loop runs, or with
        ``await asyncio.to_thread(Guard, ...)``.

    Raises
    ------
    TypeError
        If the engine's client is one for asyncio, the reader is not, or it decodes what it reads.
    StoreError
        As for ``dlbf.storage.Guard``, and if the engine refuses to be used by another thread.

    Notes
    -----
    *Guarantee*: that of ``dlbf.storage.Guard``.  *Cancellation*: a change that was begun is finished by its thread;
    whether a cancelled one was made is not known to who cancelled it, as after any timeout.  *Without a suspension
    point*: as long as the filter is as far as the log.  When another process has just changed something, the first
    question after it follows the log in a thread.  *Many hosts* (``log=``): absent keys are answered at once while the
    host has its lease; ``rebuild`` takes no wishes there, ``keys`` and ``items`` no bounds, and there is no ``drift``.

    Examples
    --------
    >>> import asyncio, tempfile
    >>> async def main(folder):
    ...     async with Guard({b"apple": b"red"}, folder) as g:
    ...         await g.put(b"banana", b"yellow")
    ...         return await g.get(b"banana"), await g.get(b"cherry"), g.stats().filtered
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(main(folder))
    (b'yellow', None, 1)
    """

    def __init__(
        self, engine: object, path: str | os.PathLike[str], *, reader: Reader | None = None, **options: Unpack[Options]
    ) -> None:
        adapter = engine_for(engine)
        if reader is not None:
            _check_reader(adapter, reader)
        self._guard = threads.Guard(adapter, path, **options)
        self._changes = ThreadPoolExecutor(1, "dlbf-changes")
        self._closing: asyncio.Future[None] | None = None
        self._reader = reader
        self._prefix = b""
        self._note: bytes | None = None  # by which the reader's server is known to be the engine's
        self._compared = False
        try:
            try:
                self._changes.submit(adapter.has, b"dlbf").result()
            except Exception as error:
                raise StoreError(
                    f"the engine, a {type(adapter).__name__}, answered here but not in another thread: {error}; make it"
                    " so that threads may share it (sqlite3.connect(..., check_same_thread=False), for one)"
                ) from error
            if isinstance(adapter, RedisEngine):
                self._prefix = adapter.prefix
                self._note = adapter.client.hget(GUARDS, adapter.prefix)
        except BaseException:
            self._changes.shutdown()
            self._guard.close()
            raise

    # --- reading

    def _absent(self, key: bytes) -> bool | None:
        """Whether the filter knows that there is no such key; None: it must be asked where one may wait."""
        answer = self._guard.ledger.ask(key)
        if answer == ABSENT:
            self._guard.traffic.count(lookups=1, filtered=1)
            self._guard.traffic.absent(key)
            return True
        if answer != MAYBE or self._reader is None or self._prefix + key == GUARDS:
            return None
        return False

    def _read(self, key: bytes, there: bool) -> None:
        """Count a read by the reader."""
        self._guard.traffic.count(lookups=1, false_positives=not there)
        if not there:
            self._guard.traffic.absent(key)

    async def _checked_reader(self) -> Reader:
        """The reader, which has the engine's keys."""
        reader = self._reader
        assert reader is not None
        if not self._compared:
            found = await reader.hget(GUARDS, self._prefix)
            if found != self._note:
                raise StoreError(
                    f"expected a reader of the engine's server and database, found one where {GUARDS.decode()} has "
                    f"{found!r} for the prefix {self._prefix!r}, not {self._note!r}; give a client of the same server, "
                    "port and db"
                )
            self._compared = True
        return reader

    @overload
    async def get(self, key: Key, default: None = None) -> bytes | None: ...
    @overload
    async def get(self, key: Key, default: T) -> bytes | T: ...
    async def get(self, key: Key, default: T | None = None) -> bytes | T | None:
        """The value of a key; ``default``, at once, if the filter knows that there is none."""
        wanted = as_key(key)
        absent = self._absent(wanted)
        if absent:
            return default
        if absent is None:  # to follow the log may take a moment, too
            return await asyncio.to_thread(self._guard.get, wanted, default)
        reader = await self._checked_reader()
        value = await reader.get(self._prefix + wanted)
        self._read(wanted, value is not None)
        return default if value is None else value

    async def contains(self, key: Key) -> bool:
        """Whether a key is there; False, at once, if the filter knows that it is not."""
        wanted = as_key(key)
        absent = self._absent(wanted)
        if absent:
            return False
        if absent is None:
            return await asyncio.to_thread(self._guard.__contains__, wanted)
        reader = await self._checked_reader()
        there = bool(await reader.exists(self._prefix + wanted))
        self._read(wanted, there)
        return there

    @overload
    async def get_many(self, keys: Iterable[Key], default: None = None) -> list[bytes | None]: ...
    @overload
    async def get_many(self, keys: Iterable[Key], default: T) -> list[bytes | T]: ...
    async def get_many(self, keys: Iterable[Key], default: T = None) -> list[bytes | T]:  # type: ignore[assignment]
        """The values of many keys, ``default`` for those that are not there; at once if the filter denies all."""
        wanted = read_keys(keys)
        places = self._places(wanted)
        if places is None:
            return await asyncio.to_thread(self._guard.get_many, wanted, default)
        out: list[bytes | T] = [default] * len(wanted)
        if places:
            reader = await self._checked_reader()
            values = await asyncio.gather(*(reader.get(self._prefix + wanted[i]) for i in places))
            for i, value in zip(places, values, strict=True):
                out[i] = default if value is None else value
            self._count(wanted, places, [value is not None for value in values])
        else:
            self._count(wanted, [], [])
        return out

    async def contains_many(self, keys: Iterable[Key]) -> npt.NDArray[np.bool_]:
        """Which of many keys are there; at once if the filter denies all."""
        wanted = read_keys(keys)
        places = self._places(wanted)
        if places is None:
            return await asyncio.to_thread(self._guard.contains_many, wanted)
        out = np.zeros(len(wanted), dtype=np.bool_)
        if places:
            reader = await self._checked_reader()
            there = await asyncio.gather(*(reader.exists(self._prefix + wanted[i]) for i in places))
            out[places] = [bool(n) for n in there]
        self._count(wanted, places, out[places].tolist())
        return out

    def _places(self, wanted: list[bytes]) -> list[int] | None:
        """Where in a batch the keys are that must be read; None: the batch is one for a thread."""
        if len(wanted) > DIRECT_KEYS:
            return None
        ask = self._guard.ledger.ask
        answers = [ask(key) for key in wanted]
        places = [i for i, answer in enumerate(answers) if answer != ABSENT]
        if places and self._reader is None:
            return None
        direct = all(answers[i] == MAYBE and self._prefix + wanted[i] != GUARDS for i in places)
        return places if direct else None

    def _count(self, wanted: list[bytes], places: list[int], there: list[bool]) -> None:
        traffic = self._guard.traffic
        traffic.count(len(wanted), len(wanted) - len(places), there.count(False))
        traffic.draw_many(wanted, {i for i, found in zip(places, there, strict=True) if found})

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.keys()

    def keys(
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> AsyncIterator[bytes]:
        """Keys for ``async for``, fetched by threads; see ``dlbf.storage.Guard.keys``."""
        if (prefix, start, stop, reverse) == ALL:
            return self._chunks(lambda: iter(self._guard))
        return self._chunks(lambda: iter(self._guard.keys(prefix, start, stop, reverse)))

    def items(
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        """Keys and values for ``async for``, fetched by threads; see ``dlbf.storage.Guard.items``."""
        if (prefix, start, stop, reverse) == ALL:
            return self._chunks(lambda: iter(self._guard.items()))
        return self._chunks(lambda: iter(self._guard.items(prefix, start, stop, reverse)))

    async def _chunks(self, begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        made: list[Iterator[T]] = []

        def fetch() -> list[T]:
            if not made:
                made.append(begin())
            return list(islice(made[0], CHUNK_ITEMS))

        def end(_: object = None) -> None:
            for iterator in made:
                if hasattr(iterator, "close"):
                    iterator.close()

        fetching: asyncio.Future[list[T]] | None = None
        try:
            while True:
                fetching = asyncio.get_running_loop().run_in_executor(None, fetch)
                chunk = await _finished(fetching)
                if not chunk:
                    return
                for one in chunk:
                    yield one
        finally:
            # A thread may still be in the middle of it if this was cancelled.
            if fetching is None or fetching.done():
                end()
            else:
                fetching.add_done_callback(end)

    # --- changes

    async def _alone(self, act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Let the thread of changes do something; it is finished even if whoever waits is cancelled."""
        if self._closing is not None:
            raise StoreError(f"{self._guard.path}: the guard is closed; make another one")
        return await _finished(
            asyncio.get_running_loop().run_in_executor(self._changes, partial(act, *arguments, **named))
        )

    async def put(self, key: Key, value: Value, new: bool = False, ttl: float | None = None) -> None:
        """Store a value; ``ttl`` where the engine has expiry."""
        await self._alone(self._guard.put, key, value, new, ttl)

    async def delete(self, key: Key) -> bool:
        """Delete a key; says whether it was there."""
        return await self._alone(self._guard.delete, key)

    async def update(self, items: Items) -> None:
        """Store many items; an iterator of them is used up by another thread."""
        await self._alone(self._guard.update, items)

    async def delete_many(self, keys: Iterable[Key]) -> int:
        """Delete many keys; says how many were there."""
        return await self._alone(self._guard.delete_many, keys)

    @overload
    async def pop(self, key: Key) -> bytes: ...
    @overload
    async def pop(self, key: Key, default: T) -> bytes | T: ...
    async def pop(self, key: Key, default: object = MISSING) -> object:
        """Delete a key and return its value; ``default``, or a KeyError, if it is not there."""
        if default is MISSING:
            return await self._alone(self._guard.pop, key)
        return await self._alone(self._guard.pop, key, default)

    async def setdefault(self, key: Key, default: bytes = b"") -> bytes:
        """The value of a key, which is stored first if it is not there."""
        return await self._alone(self._guard.setdefault, key, default)

    async def clear(self) -> None:
        """Delete everything, in batches."""
        await self._alone(self._guard.clear)

    # --- care

    async def rebuild(self, **wishes: Any) -> RebuildReport:
        """See ``dlbf.storage.Guard.rebuild``; reads and changes go on meanwhile."""
        return await asyncio.to_thread(partial(self._guard.rebuild, **wishes))

    async def verify(self) -> Verification:
        """See ``dlbf.storage.Guard.verify``; changes wait meanwhile."""
        return await self._alone(self._guard.verify)

    async def drift(self, estimate: bool = True) -> Drift:
        """See ``dlbf.storage.Guard.drift``."""
        return await asyncio.to_thread(self._guard.drift, estimate)

    def stats(self) -> Stats:
        """See ``dlbf.storage.Guard.stats``."""
        return self._guard.stats()

    @property
    def state(self) -> str:
        """See ``dlbf.storage.Guard.state``."""
        return self._guard.state

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._guard)[1:]}"

    # --- closing

    async def aclose(self) -> None:
        """Finish the changes that were begun, and close the guard, not the engine nor the reader.  Twice is allowed."""

        def close() -> None:
            self._changes.shutdown(wait=True)
            self._guard.close()

        if self._closing is None:
            self._closing = asyncio.get_running_loop().run_in_executor(None, close)
        await _finished(self._closing)

    close = aclose

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _finished(future: "asyncio.Future[T]") -> T:
    """What a thread will have done; it goes on if whoever waits is cancelled."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        # Nobody waits any more: an error must not be reported as one that nobody has seen.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


def _check_reader(adapter: object, reader: object) -> None:
    """See at once that reads can go there."""
    kind = f"{type(reader).__module__}.{type(reader).__qualname__}"
    if not isinstance(adapter, RedisEngine):
        raise TypeError(f"reader= is for a RedisEngine, found a {type(adapter).__name__}; leave it out")
    encoder = getattr(reader, "get_encoder", None)
    if not for_asyncio(reader) or encoder is None:
        raise TypeError(
            f"expected a reader such as redis.asyncio.Redis or valkey.asyncio.Valkey, found a {kind}; clients that are "
            "not for asyncio are for the engine"
        )
    if hasattr(reader, "get_primaries") != adapter.is_cluster:
        expected = "a client of the cluster, too" if adapter.is_cluster else "a client of one server, as the engine has"
        raise TypeError(f"expected {expected}, found a {kind} as reader")
    if encoder().decode_responses:
        raise TypeError("the reader decodes what it reads; make one with decode_responses=False")
