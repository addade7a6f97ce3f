"""A host of ``dlbf bench fleet`` that reads: ``python -m dlbf.bench.fleet_host ABOUT``.

It asks for absent keys all the time, a hundred a second, until its standard input ends; then it prints its figures.
"""

import json
import random
import sys
import threading
from typing import TYPE_CHECKING, Protocol, Self, cast

if TYPE_CHECKING:
    from dlbf.storage.logs import FleetGuard

__all__ = ["Client", "connect", "open_host"]

PAUSE_SECONDS = 0.01


class Pipeline(Protocol):
    """Commands that are sent together."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def set(self, key: bytes, value: bytes) -> object: ...
    def execute(self) -> object: ...


class Client(Protocol):
    """A cluster's client, as far as it is used here."""

    def get(self, key: bytes) -> object: ...
    def set(self, key: bytes, value: bytes) -> object: ...
    def pipeline(self) -> Pipeline: ...


def connect(ports: list[int]) -> Client:
    """A client of a cluster on this machine."""
    import redis
    from redis.cluster import ClusterNode

    nodes = [ClusterNode("127.0.0.1", port) for port in ports]  # type: ignore[no-untyped-call]
    return cast(Client, redis.RedisCluster(startup_nodes=nodes, socket_timeout=30.0))


def open_host(client: Client, name: str, folder: str, secret: str, label: str, lease: float) -> "FleetGuard":
    """A guard of keys that begin with its log's name."""
    from dlbf.storage.engines.redis import RedisEngine
    from dlbf.storage.fleet.clients import Client as LogClient
    from dlbf.storage.logs import FleetGuard, ValkeyLog

    return FleetGuard(
        RedisEngine(client, prefix=name.encode() + b":"),
        folder,
        log=ValkeyLog(cast(LogClient, client), name),
        lease_seconds=lease,
        secret=bytes.fromhex(secret),
        label=label,
    )


def serve(ports: list[int], name: str, folder: str, secret: str, label: str, lease_seconds: float) -> None:
    """See the module."""
    r = random.Random(label)
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    with open_host(connect(ports), name, folder, secret, label, lease_seconds) as guard:
        print("ready", flush=True)
        while not over.wait(PAUSE_SECONDS):
            guard.get(b"absent %d" % r.getrandbits(60))
        traffic = guard.traffic
        facts = [traffic.n_lookups, traffic.n_filtered, traffic.n_false_positives, traffic.n_unfiltered]
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    serve(**json.loads(sys.argv[1]))
