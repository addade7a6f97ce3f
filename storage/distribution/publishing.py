"""Publishing the filter of a store or guard, version by version."""

import os
import secrets
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from dlbf.errors import DlbfError, StoreError
from dlbf.filters.base import Filter, secret_of
from dlbf.kernels.locks import Held
from dlbf.storage import steps
from dlbf.storage.distribution.deltas import content_of, make_delta
from dlbf.storage.distribution.feed import DeltaFile, FullFile, Head, Manifest, file_name, sha256
from dlbf.storage.distribution.following import Copy, Follower, hex_sum
from dlbf.storage.distribution.places import Target, target_for
from dlbf.storage.distribution.ticking import Ticking
from dlbf.storage.ledger import Ledger
from dlbf.storage.lmdbtypes import Txn

__all__ = ["Published", "Publisher", "publish"]

# Deltas that a manifest names: a host that is further behind reads the whole filter.
MOST_DELTAS = 32
# Share of the whole filter that a delta may have; a larger one (a new base, say) is not worth having.
DELTA_SHARE = 0.5
# The whole filter is written anew when the deltas that a new host would read besides have this share of it, or are so
# many.
FULL_SHARE = 0.5
FULL_EVERY = 16
# How often a filter is looked at that is just being loaded or changed.
ATTEMPTS = 20


class Publishable(Protocol):
    """A store or a guard."""

    @property
    def ledger(self) -> Ledger[Txn]:
        """The filter that answers, and what it is complete for."""
        ...


@dataclass(frozen=True, slots=True)
class Taken:
    """A filter as it was at one moment."""

    filter: Filter
    position: int
    generation: int


@dataclass(frozen=True, slots=True)
class Published:
    """What was published.

    Attributes
    ----------
    how : {"same", "delta", "full"}
        Nothing had changed, and only the time was written; a delta; the whole filter (and perhaps a delta, too).
    feed : str
        Another one whenever a publisher cannot go on with what was published before.
    version, position, keys : int
        Of the filter: it is complete up to that position of the log.
    n_bytes : int
        Bytes that were written.
    delta_bytes : int
        Of the delta, which is all that hosts read that have the version before; 0: there is none.
    full_bytes : int
        Of the whole filter, which new hosts read.

    Examples
    --------
    >>> import dlbf, tempfile
    >>> from dlbf.storage import publish, subscribe
    >>> folder = tempfile.TemporaryDirectory()
    >>> fruit = dlbf.CuckooFilter(100)
    >>> with publish(fruit, folder.name, interval=None) as publisher:
    ...     fruit.add(b"apple")
    ...     done = publisher.publish()
    >>> done.how, done.version, done.keys, done.delta_bytes < done.full_bytes
    ('delta', 2, 1, True)
    >>> folder.cleanup()
    """

    how: str
    feed: str
    version: int
    position: int
    keys: int
    n_bytes: int
    delta_bytes: int
    full_bytes: int


class Publisher:
    """Keeps a feed; see ``publish``, which makes it.

    Examples
    --------
    >>> import dlbf, tempfile
    >>> from dlbf.storage import publish, subscribe
    >>> folder = tempfile.TemporaryDirectory()
    >>> fruit = dlbf.CuckooFilter(100)
    >>> with publish(fruit, folder.name, interval=None) as publisher:
    ...     fruit.add(b"apple")
    ...     publisher.publish().version, publisher.publish().how
    (2, 'same')
    >>> folder.cleanup()
    """

    def __init__(self, source: "Publishable | Filter", target: Target) -> None:
        self._source = source
        self._target = target
        self._lock = threading.Lock()
        self._copy: Copy | None = None
        self._head: Head | None = None
        self._raw_head: bytes | None = None
        self._last: Taken | None = None
        self._ticking: Ticking | None = None
        self._resume()

    def _resume(self) -> None:
        """Go on with what is there, if all of it can be read."""
        follower = Follower(self._target)
        seen = self._target.read_head()
        try:
            follower.refresh()
        except DlbfError:
            # Whatever it is: the next version is a whole filter, in a feed with another name.
            self._raw_head = seen.head if seen is not None else None
            return
        self._copy, self._head, self._raw_head = follower.copy, follower.head, follower.raw_head

    def publish(self, full: bool = False) -> Published:
        """Publish the filter as it is now.

        Parameters
        ----------
        full : bool
            Write the whole filter, even if a delta would do.

        Raises
        ------
        StoreError
            If the store's filter cannot be used, the target cannot be written, or somebody else publishes there.
            What was published before stays; hosts pass everything through once it is too old.
        """
        with self._lock:
            as_of_ns = self._target.now_ns()  # before the newest position is looked at
            taken = self._take()
            head, copy = self._head, self._copy
            manifest = copy.manifest if copy is not None else None
            if taken is self._last and head is not None and manifest is not None and not full:
                return self._renew(head, manifest, as_of_ns, taken)
            content = content_of(taken.filter.to_bytes())
            new = Copy(content, hex_sum(content), None)
            if copy is not None and new.sum == copy.sum and head is not None and manifest is not None and not full:
                return self._renew(head, manifest, as_of_ns, taken)
            return self._write(as_of_ns, taken, new, full)

    def _take(self) -> Taken:
        source = self._source
        if isinstance(source, Filter):
            taken = Taken(source.copy(), 0, 0)
        else:
            taken = _take_from(source.ledger, self._last)
        if getattr(taken.filter, "false_negatives", False):
            raise StoreError("the filter's design may deny keys that it has; hosts would. Publish one that does not")
        return taken

    def _write(self, as_of_ns: int, taken: Taken, new: Copy, full: bool) -> Published:
        old, head = self._copy, self._head
        manifest = old.manifest if old is not None else None
        version = head.version + 1 if head is not None else 1
        feed = head.feed if head is not None else secrets.token_hex(8)
        n_written = delta_bytes = 0
        deltas: tuple[DeltaFile, ...] = ()
        if old is not None and manifest is not None and old.sum != new.sum:
            data = make_delta(old.content, new.content)
            if len(data) <= DELTA_SHARE * len(new.content):
                delta = DeltaFile.of(version, data, old.sum, new.sum)
                self._target.write(delta.name, data)
                steps.reached("publish-delta-written")
                deltas = (*manifest.deltas, delta)
                n_written, delta_bytes = len(data), len(data)
        whole = manifest.full if manifest is not None and deltas else None
        if full or whole is None or _is_far(whole, deltas):
            blob = new.content.tobytes()
            whole = FullFile.of(version, blob, new.sum)
            self._target.write(whole.name, blob)
            steps.reached("publish-full-written")
            n_written += len(blob)
        made = Manifest(
            feed, version, taken.generation, len(taken.filter), len(new.content), whole, _kept(deltas, whole)
        )  # fmt: skip
        data = made.pack()
        digest = sha256(data)
        name = file_name("manifest", version, digest)
        self._target.write(name, data)
        steps.reached("publish-manifest-written")
        n_written += len(data)
        newest = Head(feed, version, as_of_ns, taken.position, new.sum, name, digest)
        n_written += self._write_head(newest, taken.filter)
        steps.reached("publish-head-written")
        self._copy = Copy(new.content, new.sum, made)
        self._last = taken
        before = {manifest.full.name, *manifest.names(), head.manifest} if manifest is not None and head else set()
        self._target.sweep(made.names() | {name} | before)
        how = "full" if whole.version == version else "delta"
        return Published(how, feed, version, taken.position, made.n_keys, n_written, delta_bytes, whole.n_bytes)

    def _renew(self, head: Head, manifest: Manifest, as_of_ns: int, taken: Taken) -> Published:
        """Nothing has changed: say that this is so now."""
        renewed = Head(
            head.feed, head.version, as_of_ns, taken.position, head.content, head.manifest, head.digest
        )  # fmt: skip
        n_bytes = self._write_head(renewed, taken.filter)
        self._last = taken
        return Published(
            "same", head.feed, head.version, taken.position, manifest.n_keys, n_bytes, 0, manifest.full.n_bytes
        )

    def _write_head(self, head: Head, filter: Filter) -> int:
        data = head.pack(secret_of(filter))
        self._target.write_head(data, self._raw_head)
        self._head, self._raw_head = head, data
        return len(data)

    def start(self, interval: float) -> None:
        """Publish every ``interval`` seconds, in a thread of its own."""
        self._ticking = Ticking(self.publish, interval, "publisher")

    def close(self) -> None:
        """End the thread; what was published stays."""
        if self._ticking is not None:
            self._ticking.close()
        with self._lock:
            self._target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _take_from(ledger: Ledger[Txn], last: Taken | None) -> Taken:
    """The filter, complete at least up to what is the newest position now; ``last`` if nothing has changed."""
    newest = ledger.word.newest()
    for _ in range(ATTEMPTS):
        if newest is None:
            break
        if not ledger.is_current():
            ledger.refresh(wait=True)
        with Held(ledger.lock):
            filter, position = ledger.answering(), ledger.complete_for()
            if filter is not None and position is not None and position >= newest:
                if last is not None and (last.position, last.generation) == (position, ledger.generation):
                    return last
                assert isinstance(filter, Filter)
                return Taken(filter.copy(), position, ledger.generation)
    reason = ledger.state()[1] or "it is being changed all the time"
    raise StoreError(f"{ledger.settings.where}: the filter cannot be used, so nothing is published: {reason}")


def _is_far(whole: FullFile, deltas: tuple[DeltaFile, ...]) -> bool:
    """Whether a new host would have to read many deltas, or much, after the whole filter."""
    after = [delta for delta in deltas if delta.version > whole.version]
    return len(after) >= FULL_EVERY or sum(delta.n_bytes for delta in after) > FULL_SHARE * whole.n_bytes


def _kept(deltas: tuple[DeltaFile, ...], whole: FullFile) -> tuple[DeltaFile, ...]:
    """The newest deltas: as many as are named at most, and no more of them than the whole filter is long."""
    kept = list(deltas[-MOST_DELTAS:])
    while kept and kept[0].version <= whole.version and sum(delta.n_bytes for delta in kept) > whole.n_bytes:
        del kept[0]
    return tuple(kept)


def publish(
    store: "Publishable | Filter", target: "str | os.PathLike[str] | Target", *, interval: float | None = 1.0
) -> Publisher:
    """Publish the filter of a store or guard for any number of hosts, which ``subscribe`` to it.

    Parameters
    ----------
    store : Store, Guard or filter
        Of a filter by itself ``publish`` is to be called again when it has changed.
    target : path, str or Target
        A folder, which any web server may serve; ``redis://HOST:PORT/DB?feed=NAME`` (also ``rediss``, ``valkey``,
        ``valkeys``); or ``dlbf.storage.distribution.ServerKeys(client, name)``.
    interval : float, optional
        Seconds between two versions, in a thread.  Hosts pass everything through when they hear nothing for longer
        than their ``max_age``, so it is written also when nothing has changed.  None: call ``publish`` of what is
        returned.

    Returns
    -------
    Publisher
        The first version is published already.

    Raises
    ------
    StoreError
        If the store's filter cannot be used, or the target cannot be written.

    Notes
    -----
    Neither keys nor the secret are published.  Hosts need the secret of a keyed store: hand it to them by other means.
    One publisher per target.  A publisher that is killed at any moment leaves the version before, or the new one.

    Examples
    --------
    >>> import dlbf, tempfile
    >>> from dlbf.storage import publish, subscribe
    >>> folder = tempfile.TemporaryDirectory()
    >>> fruit = dlbf.CuckooFilter(100)
    >>> with publish(fruit, folder.name, interval=None) as publisher:
    ...     fruit.add(b"apple")
    ...     publisher.publish().keys
    1
    >>> with subscribe(folder.name, interval=None) as copy:
    ...     b"apple" in copy, b"cherry" in copy
    (True, False)
    >>> folder.cleanup()
    """
    if interval is not None and not interval > 0:
        raise ValueError(f"interval must be a positive number of seconds or None, found {interval!r}")
    if not isinstance(store, Filter) and not isinstance(getattr(store, "ledger", None), Ledger):
        raise TypeError(f"expected a store, a guard or a filter, found a {type(store).__name__}")
    publisher = Publisher(store, target_for(target))
    try:
        publisher.publish()
    except BaseException:
        publisher.close()
        raise
    if interval is not None:
        publisher.start(interval)
    return publisher
