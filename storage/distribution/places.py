"""Where a feed is: a folder, a web server that serves one, or keys of a Redis or Valkey server.

A place has a clock: publisher and subscribers read the age of a filter from the same one.  For a server of keys it is
the server's; for a folder and a web server it is the wall clock of each host, which must agree to within the
subscriber's ``clock_error``.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlencode, urljoin, urlsplit, urlunsplit

from dlbf.errors import StoreError
from dlbf.filters.writing import replace_file
from dlbf.storage.distribution.feed import HEAD_NAME, MOST_HEAD_BYTES, is_ours

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

__all__ = ["Folder", "Place", "Seen", "ServerKeys", "Target", "WebFolder", "place_for", "target_for"]

# A file that no manifest names any more may still be on its way to a slow host for so long.
GRACE_SECONDS = 600.0
# How long a web server or a server of keys may take to answer.
PATIENCE_SECONDS = 10.0
# A value of a server of keys has at most 512 MiB; smaller ones do not keep others waiting.
PIECE_BYTES = 1 << 20
LOCK_NAME = ".publisher"
SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}


class Seen(NamedTuple):
    """A head, and what the place's clock said no earlier than it was asked for."""

    head: bytes
    now_ns: int


class Place(Protocol):
    """What a subscriber needs.  Every method raises StoreError if the place cannot be read."""

    where: str

    def read_head(self) -> Seen | None:
        """The head; None: nothing was published yet."""
        ...

    def read(self, name: str, n_bytes: int) -> bytes:
        """A file; the caller compares it with its SHA-256.  No more than ``n_bytes`` are read."""
        ...

    def close(self) -> None:
        """Let go of files and connections of its own."""


class Target(Place, Protocol):
    """What a publisher needs besides."""

    def now_ns(self) -> int:
        """What the place's clock says."""
        ...

    def write(self, name: str, data: bytes | memoryview) -> None:
        """A file, all of it or nothing."""

    def write_head(self, head: bytes, before: bytes | None) -> None:
        """The head in one step; StoreError if it is not ``before`` any more: somebody else publishes here."""

    def sweep(self, keep: set[str]) -> None:
        """Remove files with other names, but not at once: somebody may be reading them."""


def _unreadable(where: str, what: str, error: object) -> StoreError:
    return StoreError(f"{where}: {what} cannot be read ({error}); it is tried again, and meanwhile nothing is denied")


def _elsewhere(where: str) -> StoreError:
    return StoreError(f"{where}: somebody else publishes here; end the other publisher, or choose another target")


class Folder:
    """A folder, on one machine or shared by many; any web server can serve it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.where = str(path)
        self._lock: Any = None

    def now_ns(self) -> int:
        """The wall clock of this host."""
        return time.time_ns()

    def read_head(self) -> Seen | None:
        """See ``Place``."""
        now = self.now_ns()
        try:
            with (self.path / HEAD_NAME).open("rb") as file:
                return Seen(file.read(MOST_HEAD_BYTES + 1), now)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(self.where, HEAD_NAME, error) from error

    def read(self, name: str, n_bytes: int) -> bytes:
        """See ``Place``."""
        try:
            with (self.path / name).open("rb") as file:
                return file.read(n_bytes + 1)
        except OSError as error:
            raise _unreadable(self.where, name, error) from error

    def _hold(self) -> None:
        """Be the only publisher until ``close``, where the system can tell."""
        if self._lock is not None or fcntl is None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        file = (self.path / LOCK_NAME).open("a")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise _elsewhere(self.where) from None
        except OSError:
            pass  # a file system without locks: ``write_head`` still looks
        self._lock = file

    def write(self, name: str, data: bytes | memoryview) -> None:
        """See ``Target``."""
        try:
            self._hold()
            # Not synced: what a power failure spoils does not match its sum, and is published again.
            replace_file(self.path / name, bytes(data), sync=False)
        except OSError as error:
            raise StoreError(f"{self.where}: {name} cannot be written ({error}); what was there stays") from error

    def write_head(self, head: bytes, before: bytes | None) -> None:
        """See ``Target``."""
        seen = self.read_head()
        if (seen.head if seen else None) != before:
            raise _elsewhere(self.where)
        self.write(HEAD_NAME, head)

    def sweep(self, keep: set[str]) -> None:
        """See ``Target``."""
        for path in self.path.iterdir():
            name = path.name
            # The second kind is what a publisher was writing when it died.
            if (is_ours(name) and name not in keep) or name.startswith((".manifest-", ".full-", ".delta-", ".head.")):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > GRACE_SECONDS:
                        path.unlink()

    def close(self) -> None:
        """Let others publish."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


class WebFolder:
    """A folder that a web server serves; for subscribers.  A head that has not changed is not sent again (ETag)."""

    def __init__(self, url: str) -> None:
        self.where = url
        self._base = url if url.endswith("/") else url + "/"
        self._head: tuple[str, bytes] | None = None  # ETag and what came with it

    def read_head(self) -> Seen | None:
        """See ``Place``."""
        from urllib.error import HTTPError

        now = time.time_ns()
        headers = {"Cache-Control": "no-cache"}
        if self._head is not None:
            headers["If-None-Match"] = self._head[0]
        try:
            data, etag = self._get(HEAD_NAME, MOST_HEAD_BYTES, headers)
        except HTTPError as error:
            error.close()
            if error.code == 304 and self._head is not None:
                return Seen(self._head[1], now)
            if error.code == 404:
                return None
            raise _unreadable(self.where, HEAD_NAME, error) from error
        self._head = (etag, data) if etag else None
        return Seen(data, now)

    def read(self, name: str, n_bytes: int) -> bytes:
        """See ``Place``."""
        from urllib.error import HTTPError

        try:
            return self._get(name, n_bytes, {})[0]
        except HTTPError as error:
            error.close()
            raise _unreadable(self.where, name, error) from error

    def _get(self, name: str, n_bytes: int, headers: dict[str, str]) -> tuple[bytes, str]:
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        try:
            with urlopen(
                Request(urljoin(self._base, quote(name)), headers=headers), timeout=PATIENCE_SECONDS
            ) as reply:  # fmt: skip
                return reply.read(n_bytes + 1), reply.headers.get("ETag", "")
        except HTTPError:
            raise
        except (OSError, HTTPException, ValueError) as error:
            raise _unreadable(self.where, name, error) from error

    def close(self) -> None:
        """Nothing is open between two questions."""


class ServerKeys:
    """Keys of a Redis or Valkey server, or of one slot of a cluster.

    Parameters
    ----------
    client : redis.Redis or redis.RedisCluster
        Or one of ``valkey``; without ``decode_responses``.
    feed : str
        A name: all keys begin with ``dlbf:feed:{name}:``.
    owned : bool
        Whether to close the client at the end.
    """

    def __init__(self, client: Any, feed: str, owned: bool = False) -> None:
        self.where = f"feed {feed!r}"
        self._client = client
        self._owned = owned
        self._prefix = f"dlbf:feed:{{{feed}}}:"
        from dlbf.storage.engines.base import library_errors

        self._errors: tuple[type[Exception], ...] = (*library_errors(client, "RedisError", "ValkeyError"), OSError)

    def _key(self, name: str) -> str:
        return self._prefix + name

    def now_ns(self) -> int:
        """The clock of the server that has the keys."""
        try:
            return self._now(self._client.eval("return redis.call('TIME')", 1, self._key(HEAD_NAME)))
        except self._errors as error:
            raise _unreadable(self.where, "the clock", error) from error

    @staticmethod
    def _now(told: Any) -> int:
        return int(told[0]) * 10**9 + int(told[1]) * 1000

    def read_head(self) -> Seen | None:
        """See ``Place``: head and clock in one step."""
        script = "local t = redis.call('TIME') return {redis.call('GET', KEYS[1]), t[1], t[2]}"
        try:
            head, *told = self._client.eval(script, 1, self._key(HEAD_NAME))
        except self._errors as error:
            raise _unreadable(self.where, HEAD_NAME, error) from error
        return None if head is None else Seen(head, self._now(told))

    def read(self, name: str, n_bytes: int) -> bytes:
        """See ``Place``."""
        parts: list[bytes] = []
        try:
            n_parts = int(self._client.hget(self._key(name), "parts") or 0)
            while len(parts) < n_parts and sum(map(len, parts)) <= n_bytes:
                parts.append(self._client.hget(self._key(name), str(len(parts))) or b"")
        except self._errors as error:
            raise _unreadable(self.where, name, error) from error
        except ValueError as error:
            raise _unreadable(self.where, name, error) from error
        if not parts:
            raise _unreadable(self.where, name, "it is not there")
        return b"".join(parts)

    def write(self, name: str, data: bytes | memoryview) -> None:
        """See ``Target``; what is cut does not match its SHA-256."""
        try:
            self._client.sadd(self._key("files"), name)
            places = range(0, len(data), PIECE_BYTES)
            for number, start in enumerate(places):
                self._client.hset(self._key(name), str(number), bytes(data[start : start + PIECE_BYTES]))
            self._client.hset(self._key(name), "parts", len(places))
            self._client.persist(self._key(name))
        except self._errors as error:
            raise StoreError(f"{self.where}: {name} cannot be written ({error}); what was there stays") from error

    def write_head(self, head: bytes, before: bytes | None) -> None:
        """See ``Target``."""
        script = (
            "if (redis.call('GET', KEYS[1]) or '') ~= ARGV[2] then return 0 end "
            "redis.call('SET', KEYS[1], ARGV[1]) return 1"
        )
        try:
            done = self._client.eval(script, 1, self._key(HEAD_NAME), head, before or b"")
        except self._errors as error:
            raise StoreError(f"{self.where}: the head cannot be written ({error}); what was there stays") from error
        if not done:
            raise _elsewhere(self.where)

    def sweep(self, keep: set[str]) -> None:
        """See ``Target``."""
        with contextlib.suppress(*self._errors):
            for member in self._client.smembers(self._key("files")):
                if member.decode() not in keep:
                    self._client.expire(self._key(member.decode()), int(GRACE_SECONDS))
                    self._client.srem(self._key("files"), member)

    def close(self) -> None:
        """Close the client, if it was made here."""
        if self._owned:
            self._client.close()


def target_for(target: "str | os.PathLike[str] | Target") -> Target:
    """The place that a publisher was told; see ``dlbf.storage.publish``."""
    place = place_for(target)
    if isinstance(place, WebFolder):
        raise ValueError(f"{place.where}: a web server cannot be written to; publish into the folder that it serves")
    return place  # type: ignore[return-value]


def place_for(source: "str | os.PathLike[str] | Place") -> Place:
    """The place that a subscriber was told; see ``dlbf.storage.subscribe``."""
    if not isinstance(source, (str, os.PathLike)):
        if not callable(getattr(source, "read_head", None)):
            raise TypeError(f"expected a folder, a URL or a place of a feed, found a {type(source).__name__}")
        return source
    text = os.fspath(source)
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme in ("http", "https"):
        return WebFolder(text)
    if scheme == "file":
        return Folder(unquote(urlsplit(text).path))
    if scheme in SCHEMES:
        return _server_keys(text, scheme)
    if scheme:
        raise ValueError(f"{text}: expected a folder, http(s)://..., or redis://HOST:PORT/DB?feed=NAME")
    return Folder(text)


def _server_keys(text: str, scheme: str) -> ServerKeys:
    parts = urlsplit(text)
    options = dict(parse_qsl(parts.query))
    feed = options.pop("feed", "")
    if not feed or set(feed) & set("{}"):
        raise ValueError(f"{scheme}://...: expected ?feed=NAME in the URL, without braces, found {feed!r}")
    import redis

    url = urlunsplit((SCHEMES[scheme], parts.netloc, parts.path, urlencode(options), ""))
    timeouts: dict[str, Any] = {"socket_timeout": PATIENCE_SECONDS, "socket_connect_timeout": PATIENCE_SECONDS}
    return ServerKeys(redis.Redis.from_url(url, **timeouts), feed, owned=True)
