"""What is used of the objects of redis-py and valkey-py."""

from typing import Protocol

__all__ = ["Client", "Connection", "Node", "Pool"]


class Retries(Protocol):
    """How often a connection tries to connect."""

    def update_retries(self, value: int) -> None: ...


class Connection(Protocol):
    """A connection to a server."""

    retry: Retries

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def can_read(self, timeout: float) -> bool: ...


class Maker(Protocol):
    """Makes connections."""

    def __call__(self, **options: object) -> Connection: ...


class Pool(Protocol):
    """What a client has its connections from."""

    connection_class: Maker
    connection_kwargs: dict[str, object]


class Encoder(Protocol):
    """How a client turns bytes into strings."""

    decode_responses: bool


class Client(Protocol):
    """``redis.Redis``, also Sentinel's, or ``redis.RedisCluster``, or the same of valkey."""

    connection_pool: Pool  # not of a cluster's client

    def get_encoder(self) -> Encoder: ...


class Node(Protocol):
    """A server of a cluster."""

    name: str


class Nodes(Protocol):
    """A cluster's table of slots."""

    def initialize(self) -> None: ...


class ClusterClient(Client, Protocol):
    """``redis.RedisCluster`` and ``valkey.ValkeyCluster``."""

    nodes_manager: Nodes

    def get_node_from_key(self, key: bytes) -> Node | None: ...
    def get_primaries(self) -> list[Node]: ...
    def get_node(self, host: str, port: int) -> Node | None: ...


def pool_of(cluster: ClusterClient, node: Node) -> Pool:
    """What a cluster's client has connections to one server from."""
    for library in ("redis", "valkey"):
        if hasattr(node, f"{library}_connection"):
            client: Client | None = getattr(node, f"{library}_connection")
            if client is None:
                client = getattr(cluster, f"get_{library}_connection")(node)
            assert client is not None
            return client.connection_pool
    raise TypeError(f"expected a node of redis-py or valkey-py, found {node!r}")
