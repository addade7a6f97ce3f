"""A Redis or Valkey server, or a cluster of them, through redis-py: an absent key saves the round trip."""

import math
import secrets
from collections.abc import Iterator
from typing import Any

from dlbf.errors import StoreError
from dlbf.storage.engines.base import Adapter, library_errors

__all__ = ["RedisEngine", "for_asyncio"]

SCAN_COUNT = 1000
# A hash on the server: for each prefix the name of the directory whose guards have its keys, a number that another
# claim does not have, and where the directory is.  No guard's keys are there, whatever its prefix.
GUARDS = b"dlbf:guards"


def for_asyncio(client: object) -> bool:
    """Whether a client's methods must be awaited."""
    return hasattr(type(client), "__aenter__") and not hasattr(type(client), "__enter__")


class RedisEngine(Adapter):
    """String values of a ``redis.Redis`` or ``redis.RedisCluster`` client (``valkey`` clients are the same).

    Parameters
    ----------
    client : redis.Redis or redis.RedisCluster
        Without ``decode_responses``: keys and values are bytes.
    prefix : bytes
        Put before every key, so that the guard minds only its own keys of a shared server.

    Notes
    -----
    The first guard that opens notes its directory on the server, in the hash ``dlbf:guards``; guards of other
    directories are refused from then on.  See ``release``.
    """

    repeats = True
    tells = True
    expires = True

    def __init__(self, client: Any, prefix: bytes = b"") -> None:
        if for_asyncio(client):
            raise TypeError(
                f"expected a client that is not for asyncio, found a {type(client).__module__}.{type(client).__name__};"
                " give redis.Redis or redis.RedisCluster, and this one as reader= of dlbf.storage.aio.Guard"
            )
        self.client = client
        self.prefix = prefix
        self.is_cluster = hasattr(client, "get_primaries")
        self.errors = library_errors(client, "RedisError", "ValkeyError")
        self._refusals = library_errors(client, "ResponseError")
        self._claimed: tuple[bytes, str] | None = None
        self._refused = ""  # why this directory may not write
        self._reserved = GUARDS[len(prefix) :] if GUARDS.startswith(prefix) else None
        if client.get_encoder().decode_responses:
            raise TypeError("the client decodes what it reads; make one with decode_responses=False")

    def get(self, key: bytes) -> bytes | None:
        """The value of a key: one round trip."""
        value: bytes | None = self.client.get(self.prefix + key) if key != self._reserved else None
        return value

    def has(self, key: bytes) -> bool:
        """Whether a key is there; the value stays on the server."""
        return key != self._reserved and bool(self.client.exists(self.prefix + key))

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of many keys: one round trip per server."""
        if self._reserved in keys:
            return super().get_many(keys)
        return self._many("get", keys)

    def has_many(self, keys: list[bytes]) -> list[bool]:
        """Which keys are there: one round trip per server."""
        if self._reserved in keys:
            return super().has_many(keys)
        return [bool(n) for n in self._many("exists", keys)]

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        self.put_many([(key, value)])

    def put_many(self, items: list[tuple[bytes, bytes]]) -> None:
        """Store many values: one round trip per server, which also tells whose keys they are by now."""
        self._set(items)

    def put_expiring(self, key: bytes, value: bytes, seconds: float) -> None:
        """Store a value that the server deletes after some time, in milliseconds, rounded up."""
        self._set([(key, value)], math.ceil(seconds * 1000))

    def _set(self, items: list[tuple[bytes, bytes]], milliseconds: int | None = None) -> None:
        if self._refused:
            raise StoreError(self._refused)
        if self._reserved in [key for key, _ in items]:
            raise StoreError(
                f"the key {self._reserved!r} is reserved: in {GUARDS.decode()} guards note whose keys the server's "
                "are; use another key, or another prefix"
            )
        expiry = {} if milliseconds is None else {"px": milliseconds}
        pipeline = self.client.pipeline(transaction=False)
        for key, value in items:
            pipeline.set(self.prefix + key, value, **expiry)
        pipeline.hget(GUARDS, self.prefix)
        note = pipeline.execute()[-1]
        if self._claimed is not None and (note or b"").partition(b" ")[0] != self._claimed[0]:
            self.claim(*self._claimed, write=True)  # lost by FLUSHALL or eviction, or another's

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        if key != self._reserved:
            self.client.delete(self.prefix + key)

    def delete_many(self, keys: list[bytes]) -> list[bool]:
        """Delete many keys, one round trip per server; says which were there."""
        if self._reserved in keys:
            return [key != self._reserved and bool(self.client.delete(self.prefix + key)) for key in keys]
        return [bool(n) for n in self._many("delete", keys)]

    def scan(self, start: bytes) -> Iterator[bytes]:
        """All keys, server by server; a key may come twice."""
        glob = b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in self.prefix)
        slots = self._slots()
        for client in self._servers():
            for key in client.scan_iter(match=glob + b"*" if self.prefix else None, count=SCAN_COUNT):
                if key != GUARDS:
                    yield key[len(self.prefix) :]
        if self._slots() != slots:
            raise StoreError("slots moved between the cluster's servers during the scan; run it again afterwards")

    def count(self) -> int | None:
        """Number of keys of the server; unknown behind a prefix."""
        if self.prefix:
            return None
        return int(sum(client.dbsize() for client in self._servers()) - self.client.exists(GUARDS))

    def sync(self) -> None:
        """Nothing: what a server keeps is decided there (``appendfsync``)."""

    def identity(self) -> bytes:
        """The servers' run ids, because one that was started again may have lost writes, and the note of the claim:
        it is another one for every database and prefix, and after FLUSHALL."""
        run_ids = sorted(client.info("server")["run_id"].encode() for client in self._servers())
        return b" ".join([*run_ids, self.client.hget(GUARDS, self.prefix) or b""])

    def claim(self, owner: bytes, place: str, write: bool) -> None:
        """Note on the server whose keys these are; a prefix that begins another one's claims its keys, too."""
        note = b"%s %s %s" % (owner, secrets.token_hex(8).encode(), place.encode(errors="backslashreplace"))
        try:
            is_new = write and self.client.hsetnx(GUARDS, self.prefix, note)
            notes: dict[bytes, bytes] = self.client.hgetall(GUARDS)
        except self._refusals as error:
            raise StoreError(
                f"the server refuses to note which directory guards its keys, in the hash {GUARDS.decode()}: {error}; "
                "allow it, or open the guard with readonly=True"
            ) from error
        for prefix, found in notes.items():
            other, _, rest = found.partition(b" ")
            overlaps = prefix.startswith(self.prefix) or self.prefix.startswith(prefix)
            if overlaps and other != owner:
                if is_new:
                    self.client.hdel(GUARDS, self.prefix)
                self._refused = self._occupied(prefix, rest.partition(b" ")[2].decode(errors="replace"))
                raise StoreError(self._refused)
        self._refused = ""
        self._claimed = (owner, place) if write else None

    def _occupied(self, prefix: bytes, place: str) -> str:
        whose = f"keys that begin with {prefix!r}" if prefix else "all keys"
        return (
            f"expected a server whose keys no other directory guards, found that {whose} belong to the guard directory "
            f"{place} (noted on the server in the hash {GUARDS.decode()}); guards of two directories deny each other's "
            "keys. Use that directory, or another prefix, database or server. If it is gone, or was moved or copied "
            f"here: close its guards, run RedisEngine(client, prefix={prefix!r}).release() once, and open this one"
        )

    def release(self) -> None:
        """Forget which directory guards these keys; see ``Adapter``."""
        self.client.hdel(GUARDS, self.prefix)

    def _many(self, command: str, keys: list[bytes]) -> list[Any]:
        pipeline = self.client.pipeline(transaction=False)
        for key in keys:
            getattr(pipeline, command)(self.prefix + key)
        out: list[Any] = pipeline.execute()
        return out

    def _servers(self) -> list[Any]:
        if not self.is_cluster:
            return [self.client]
        connect = getattr(self.client, "get_redis_connection", None) or self.client.get_valkey_connection
        return [connect(node) for node in self.client.get_primaries()]

    def _slots(self) -> Any:
        return sorted(map(repr, self.client.cluster_slots().items())) if self.is_cluster else None
