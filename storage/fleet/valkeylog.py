"""The log that guards of many hosts share, as users name it."""

import re
from contextlib import suppress

from dlbf.storage.fleet.clients import Client
from dlbf.storage.fleet.host import SECOND
from dlbf.storage.fleet.messages import FleetError, array, whole
from dlbf.storage.fleet.servers import LogServer

__all__ = ["ValkeyLog"]

NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
SENTINEL_SECONDS = 30.0
CLUSTER_SECONDS = 15.0  # what servers have if nobody told them another cluster-node-timeout


class ValkeyLog:
    """A log that guards of many hosts share: on a Valkey or Redis server (7 or newer), Sentinel's primary, a cluster.

    Parameters
    ----------
    client : redis.Redis, redis.RedisCluster, or the same of valkey
        Without ``decode_responses``.  Only its settings are used: each guard makes connections of its own.
    name : str
        The same on all hosts; letters, digits and ``_ . : -``.
    durable : bool
        Whether the server loses no write that it has acknowledged, whatever fails.  Plain Valkey and Redis do.
    failover_seconds : float, optional
        The longest time that a server which another one replaced may still answer.  By default what the cluster's
        servers are set to (``cluster-node-timeout``), 30 behind Sentinel, 0 for a single server.

    Examples
    --------
    >>> import redis
    >>> ValkeyLog(redis.Redis(), "users")
    <ValkeyLog 'users'>
    """

    def __init__(
        self, client: Client, name: str, *, durable: bool = False, failover_seconds: float | None = None
    ) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"expected a name of 1 to 64 letters, digits or _ . : -, found {name!r}")
        if failover_seconds is not None and not failover_seconds >= 0:
            raise ValueError(f"expected failover_seconds of 0 or more, found {failover_seconds!r}")
        self.client = client
        self.name = name
        self.durable = durable
        self.failover_seconds = failover_seconds
        self.server(1.0)  # a client that cannot be used is refused here

    def server(self, lease_seconds: float) -> LogServer:
        """The log's server, over connections of their own."""
        return LogServer(self.client, self.name, self.durable, lease_seconds)

    def old_primary_ns(self, server: LogServer) -> int:
        """The longest time that a replaced server may still answer."""
        seconds = self.failover_seconds
        if seconds is None:
            seconds = 0.0
            if server.channel.is_cluster:
                seconds = CLUSTER_SECONDS
                with suppress(FleetError, IndexError):
                    place = server.channel.place_of(server.state)
                    found = server.channel.call_at(place, [("CONFIG", "GET", "cluster-node-timeout")])[0]
                    if not isinstance(found, FleetError):
                        seconds = whole(array(found)[1]) / 1000
            elif "Sentinel" in type(self.client.connection_pool).__name__:
                seconds = SENTINEL_SECONDS
        return int(seconds * SECOND)

    def __repr__(self) -> str:
        return f"<ValkeyLog {self.name!r}>"
