"""A Redis or Valkey server, or a cluster of them, through redis-py: an absent key saves the round trip."""

from collections.abc import Iterator
from typing import Any

from dlbf.errors import StoreError
from dlbf.storage.engines.base import Adapter, library_errors

__all__ = ["RedisEngine"]

SCAN_COUNT = 1000


class RedisEngine(Adapter):
    """String values of a ``redis.Redis`` or ``redis.RedisCluster`` client (``valkey`` clients are the same).

    Parameters
    ----------
    client : redis.Redis or redis.RedisCluster
        Without ``decode_responses``: keys and values are bytes.
    prefix : bytes
        Put before every key, so that the guard minds only its own keys of a shared server.
    """

    repeats = True
    tells = True

    def __init__(self, client: Any, prefix: bytes = b"") -> None:
        self.client = client
        self.prefix = prefix
        self.is_cluster = hasattr(client, "get_primaries")
        self.errors = library_errors(client, "RedisError", "ValkeyError")
        if client.get_encoder().decode_responses:
            raise TypeError("the client decodes what it reads; make one with decode_responses=False")

    def get(self, key: bytes) -> bytes | None:
        """The value of a key: one round trip."""
        value: bytes | None = self.client.get(self.prefix + key)
        return value

    def has(self, key: bytes) -> bool:
        """Whether a key is there; the value stays on the server."""
        return bool(self.client.exists(self.prefix + key))

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of many keys: one round trip per server."""
        return self._many("get", [(key,) for key in keys])

    def has_many(self, keys: list[bytes]) -> list[bool]:
        """Which keys are there: one round trip per server."""
        return [bool(n) for n in self._many("exists", [(key,) for key in keys])]

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        self.client.set(self.prefix + key, value)

    def put_many(self, items: list[tuple[bytes, bytes]]) -> None:
        """Store many values: one round trip per server."""
        self._many("set", items)

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.client.delete(self.prefix + key)

    def delete_many(self, keys: list[bytes]) -> list[bool]:
        """Delete many keys, one round trip per server; says which were there."""
        return [bool(n) for n in self._many("delete", [(key,) for key in keys])]

    def scan(self, start: bytes) -> Iterator[bytes]:
        """All keys, server by server; a key may come twice."""
        glob = b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in self.prefix)
        slots = self._slots()
        for client in self._servers():
            for key in client.scan_iter(match=glob + b"*" if self.prefix else None, count=SCAN_COUNT):
                yield key[len(self.prefix) :]
        if self._slots() != slots:
            raise StoreError("slots moved between the cluster's servers during the scan; run it again afterwards")

    def count(self) -> int | None:
        """Number of keys of the server; unknown behind a prefix."""
        return None if self.prefix else sum(client.dbsize() for client in self._servers())

    def sync(self) -> None:
        """Nothing: what a server keeps is decided there (``appendfsync``)."""

    def identity(self) -> bytes:
        """The servers' run ids: a server that was started again may have lost writes."""
        return b" ".join(sorted(client.info("server")["run_id"].encode() for client in self._servers()))

    def _many(self, command: str, arguments: Any) -> list[Any]:
        pipeline = self.client.pipeline(transaction=False)
        for key, *rest in arguments:
            getattr(pipeline, command)(self.prefix + key, *rest)
        out: list[Any] = pipeline.execute()
        return out

    def _servers(self) -> list[Any]:
        if not self.is_cluster:
            return [self.client]
        return [self.client.get_redis_connection(node) for node in self.client.get_primaries()]

    def _slots(self) -> Any:
        return sorted(map(repr, self.client.cluster_slots().items())) if self.is_cluster else None
