"""A filter that somebody else keeps: read here, and believed as long as it is fresh enough."""

import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from dlbf import format
from dlbf.errors import DlbfError, StoreError
from dlbf.filters.base import Filter, open_payload
from dlbf.filters.kinds import class_of_kind
from dlbf.filters.layered import LayeredFilter
from dlbf.kernels.keys import read_keys
from dlbf.kernels.ledger import boottime_ns
from dlbf.storage.distribution.feed import Head
from dlbf.storage.distribution.following import Copy, Follower, Refreshed
from dlbf.storage.distribution.places import Place, place_for
from dlbf.storage.distribution.ticking import Ticking
from dlbf.storage.keys import Key, as_key

__all__ = ["Freshness", "Subscription", "open_copy", "subscribe"]

log = logging.getLogger("dlbf.storage")


@dataclass(frozen=True, slots=True)
class Freshness:
    """What a subscription knows, and how fresh it is.

    Attributes
    ----------
    state : {"filtering", "pass-through"}
        Whether the filter may say "absent".
    reason : str
        Why not.
    feed : str
        Another one whenever a publisher begins anew.
    version, position : int
        Of the filter that is here: it is complete up to this position of the publisher's log.
    age_seconds : float
        How long ago it was complete, at most; infinite without a filter.
    limit_seconds : float
        The most that may be; infinite if any age will do.
    keys, n_bytes : int
        Of the filter.
    passed : int
        Questions that were answered "maybe" because it was not fresh enough.

    Examples
    --------
    >>> import dlbf, tempfile
    >>> from dlbf.storage import publish, subscribe
    >>> folder = tempfile.TemporaryDirectory()
    >>> fruit = dlbf.CuckooFilter(100)
    >>> with publish(fruit, folder.name, interval=None) as publisher:
    ...     fruit.add(b"apple")
    ...     _ = publisher.publish()
    >>> with subscribe(folder.name, interval=None, max_age=5.0) as copy:
    ...     told = copy.freshness()
    >>> told.state, told.version, told.keys, told.limit_seconds
    ('filtering', 2, 1, 5.0)
    >>> folder.cleanup()
    """

    state: str
    reason: str
    feed: str
    version: int
    position: int
    age_seconds: float
    limit_seconds: float
    keys: int
    n_bytes: int
    passed: int


class _Held:
    """A filter, and until when it may be believed; the moment is moved on while nothing changes."""

    __slots__ = ("as_of_ns", "copy", "filter", "head", "until_ns")

    def __init__(self, filter: Filter, copy: Copy, head: Head) -> None:
        self.filter = filter
        self.copy = copy
        self.head = head
        self.as_of_ns = 0
        self.until_ns = 0


class Subscription:
    """A filter that is published elsewhere; see ``subscribe``, which makes it.

    ``key in subscription`` is False only if the publisher's store certainly did not have the key a little while ago, at
    most ``max_age`` seconds.  Everything else is True: a filter that is older, damaged or not there yet denies nothing.

    *Threads* may share it.  After ``fork`` the child has no thread that refreshes it, and passes everything through
    after ``max_age``, unless it calls ``refresh`` itself.

    Examples
    --------
    >>> import dlbf, tempfile
    >>> from dlbf.storage import publish, subscribe
    >>> folder = tempfile.TemporaryDirectory()
    >>> fruit = dlbf.CuckooFilter(100)
    >>> with publish(fruit, folder.name, interval=None) as publisher:
    ...     fruit.add(b"apple")
    ...     with subscribe(folder.name, interval=None) as copy:
    ...         before = b"apple" in copy
    ...         _ = publisher.publish()
    ...         before, copy.refresh().how, b"apple" in copy
    (False, 'delta', True)
    >>> folder.cleanup()
    """

    def __init__(
        self, place: Place, max_age: float | None, clock_error: float, secret: bytes | None, cache: Path | None
    ) -> None:
        self._follower = Follower(place, secret, cache)
        self._secret = secret
        self._max_age = max_age
        self._clock_error = clock_error
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._problem = "nothing was read yet"
        self._passed = 0
        self._ticking: Ticking | None = None

    # --- asking

    def __contains__(self, key: Key) -> bool:
        held = self._held
        if held is None or boottime_ns() > held.until_ns:
            as_key(key)
            self._passed += 1
            return True
        return key in held.filter

    def contains_many(self, keys: "list[bytes]") -> npt.NDArray[np.bool_]:
        """Which keys may be there; all of them while the filter is not fresh enough."""
        wanted = read_keys(keys)
        held = self._held
        if held is None or boottime_ns() > held.until_ns:
            self._passed += len(wanted)
            return np.ones(len(wanted), dtype=np.bool_)
        return held.filter.contains_many(wanted)

    # --- keeping it fresh

    def refresh(self) -> Refreshed:
        """Look for a newer version now.

        Raises
        ------
        StoreError, FormatError
            If the feed cannot be read.  The filter that was here goes on answering until it is too old.
        """
        with self._lock:
            try:
                done = self._follower.refresh()
                self._take(done)
            except (DlbfError, ValueError) as error:
                self._problem = str(error)
                if isinstance(error, DlbfError):
                    raise
                raise StoreError(f"{self._follower.place.where}: {error}") from error
            return done

    def _take(self, done: Refreshed) -> None:
        follower = self._follower
        copy, held = follower.copy, self._held
        if done.how == "nothing" or copy is None or follower.head is None:
            self._problem = "nothing was published there yet"
            return
        if held is None or held.copy.sum != copy.sum:
            filter = open_copy(copy, self._secret, follower.place.where)
            held = _Held(filter, copy, follower.head)
        self._problem = ""
        until = self._until(follower.as_of_ns, done.age_seconds)
        # Never earlier than before for the same filter: the copy was complete at both moments.
        if until >= held.until_ns:
            held.head, held.as_of_ns, held.until_ns = follower.head, follower.as_of_ns, until
        # An older head than one that was seen (a cache, a server that lost writes) may name an older filter.
        before = self._held
        if before is None or before is held or until >= before.until_ns:
            self._held = held

    def _until(self, as_of_ns: int, age_seconds: float) -> int:
        if age_seconds < -self._clock_error:
            self._problem = (
                f"the newest version is from {-age_seconds:.1f} s in the future, expected at most "
                f"{self._clock_error:g}; set the clocks of the hosts"
            )
            return 0
        if self._max_age is None:
            return (1 << 63) - 1
        return as_of_ns + int((self._max_age - self._clock_error) * 1e9)

    def freshness(self) -> Freshness:
        """How fresh the filter is, and whether it answers."""
        with self._lock:
            held = self._held
            now = boottime_ns()
            limit = float("inf") if self._max_age is None else self._max_age
            if held is None:
                return Freshness("pass-through", self._problem, "", 0, 0, float("inf"), limit, 0, 0, self._passed)
            age, head = (now - held.as_of_ns) / 1e9, held.head
            answers = now <= held.until_ns
            late = f"the filter is {age:.1f} s old, expected at most {limit:g} less {self._clock_error:g} for clocks"
            reason = "" if answers else f"{late}; is the publisher running?"
            if not answers and self._problem:
                reason = f"{late}: {self._problem}"
            return Freshness(
                "filtering" if answers else "pass-through", reason, head.feed, head.version, head.position, age, limit,
                len(held.filter), len(held.copy.content), self._passed,
            )  # fmt: skip

    def start(self, interval: float) -> None:
        """Refresh it every ``interval`` seconds, in a thread of its own."""
        self._ticking = Ticking(self.refresh, interval, "subscription")

    def close(self) -> None:
        """End the thread and deny nothing any more."""
        if self._ticking is not None:
            self._ticking.close()
        with self._lock:
            self._held = None
            self._problem = "it was closed"
            self._follower.place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_copy(copy: Copy, secret: bytes | None, where: str) -> Filter:
    """The filter with these bytes, all of them checked; nobody changes it.

    Raises
    ------
    FormatError, ChecksumError, VersionError
    ValueError
        If the secret is missing or wrong.
    StoreError
        If the filter's design may deny keys that were added.
    """
    header, payload = format.unpack(copy.content.data, where)
    cls = LayeredFilter if header.kind == format.KIND_LAYERED else class_of_kind(header.kind, where)
    filter = open_payload(cls, header, payload, secret, where)
    if getattr(filter, "false_negatives", False):
        raise StoreError(f"{where}: the design of this filter may deny keys that it has; publish one that does not")
    return filter


def subscribe(
    source: "str | os.PathLike[str] | Place",
    *,
    max_age: float | None = 60.0,
    interval: float | None = 1.0,
    clock_error: float = 1.0,
    secret: bytes | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Subscription:
    """Follow a filter that ``publish`` keeps elsewhere.

    Parameters
    ----------
    source : path, str or Place
        A folder; ``http://`` or ``https://`` and the address of one that a web server serves;
        ``redis://HOST:PORT/DB?feed=NAME`` (also ``rediss``, ``valkey``, ``valkeys``); or
        ``dlbf.storage.distribution.ServerKeys(client, name)``.
    max_age : float, optional
        Seconds.  An older filter denies nothing.  None: any age will do, and what was stored since is denied.
    interval : float, optional
        Seconds between two looks, in a thread.  None: call ``refresh``.
    clock_error : float
        How far the clocks of publisher and subscriber may be apart, in seconds; taken off ``max_age``.
    secret : bytes, optional
        That of the published store or filter, if it has one.  It is not in the feed.
    cache : path, optional
        A file for a copy, so that after a restart only what has changed is read.

    Returns
    -------
    Subscription
        If the feed cannot be read now it passes everything through, logs that once, and tries again.

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store, publish
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Store(folder.name + "/store", keyed=False) as store:
    ...     store[b"apple"] = b"red"
    ...     with publish(store, folder.name + "/feed", interval=None) as publisher:
    ...         with subscribe(folder.name + "/feed", interval=None) as fruit:
    ...             print(b"apple" in fruit, b"cherry" in fruit, fruit.freshness().state)
    ...             store[b"cherry"] = b"red"
    ...             print(publisher.publish().how, fruit.refresh().how, b"cherry" in fruit)
    True False filtering
    delta delta True
    >>> folder.cleanup()
    """
    if max_age is not None and not max_age > clock_error:
        raise ValueError(f"max_age must be more than clock_error ({clock_error:g} s), found {max_age!r}")
    if clock_error < 0 or (interval is not None and not interval > 0):
        raise ValueError(f"clock_error and interval are positive numbers, found {clock_error!r} and {interval!r}")
    made = Subscription(place_for(source), max_age, clock_error, secret, None if cache is None else Path(cache))
    try:
        made.refresh()
    except DlbfError as error:
        log.warning("subscription: everything is passed through: %s", error)
    if interval is not None:
        made.start(interval)
    return made
