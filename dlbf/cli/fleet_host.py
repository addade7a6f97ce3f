"""One host of ``dlbf fleet demo``: ``python -m dlbf.cli.fleet_host ABOUT``; prints its figures as lines of JSON.

The hosts share a file of numbers: how many keys each has stored, and a last one that tells them to end.
"""

import json
import mmap
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["FEW_SECONDS", "LEASE_SECONDS", "board_bytes", "stored"]

LEASE_SECONDS = 0.5
FEW_SECONDS = 0.2  # between two lines


def board_bytes(n_hosts: int) -> int:
    """Size of the file."""
    return 8 * (n_hosts + 1)


def stored(board: mmap.mmap, host: int) -> int:
    """How many keys a host has stored; of the last one: whether to end."""
    number: int = struct.unpack_from("<q", board, 8 * host)[0]
    return number


def serve(ports: list[int], folder: str, board_path: str, n_hosts: int, me: int, secret: str) -> None:
    """Put keys, ask for those of others and for keys that are not there, until told to end."""
    import redis
    from redis.cluster import ClusterNode

    from dlbf.errors import DlbfError
    from dlbf.storage.engines.redis import RedisEngine
    from dlbf.storage.logs import FleetGuard, ValkeyLog

    nodes = [ClusterNode("127.0.0.1", port) for port in ports]  # type: ignore[no-untyped-call]
    client: Any = redis.RedisCluster(startup_nodes=nodes, socket_timeout=1.0)
    with Path(board_path).open("r+b") as file:
        board = mmap.mmap(file.fileno(), board_bytes(n_hosts))
    r = random.Random(me)
    longest = 0.0
    denied = failed = 0
    told = 0.0
    with FleetGuard(
        RedisEngine(client),
        folder,
        log=ValkeyLog(client, "demo"),
        lease_seconds=LEASE_SECONDS,
        secret=bytes.fromhex(secret),
        label=f"host {me + 1}",
    ) as guard:
        while not stored(board, n_hosts):
            number = stored(board, me)
            began = time.monotonic()
            try:
                guard.put(b"%d:%d" % (me, number), b"value")
                struct.pack_into("<q", board, 8 * me, number + 1)
                longest = max(longest, time.monotonic() - began)
            except (DlbfError, redis.RedisError):
                failed += 1  # the same key again
            for _ in range(200):
                other = r.randrange(n_hosts)
                newest = stored(board, other)
                try:
                    guard.get(b"absent %d" % r.getrandbits(60))
                    before = guard.traffic.n_filtered
                    if newest and guard.get(b"%d:%d" % (other, max(0, newest - 1 - r.randrange(50)))) is None:
                        denied += guard.traffic.n_filtered > before
                except (DlbfError, redis.RedisError):
                    failed += 1
                    time.sleep(0.01)
            if time.monotonic() - told > FEW_SECONDS:
                told = time.monotonic()
                traffic = guard.traffic
                facts = {
                    "state": guard.state,
                    "stored": stored(board, me),
                    "lookups": traffic.n_lookups,
                    "saved": traffic.n_filtered,
                    "needless": traffic.n_false_positives,
                    "passed_through": traffic.n_unfiltered,
                    "denied": denied,
                    "failed": failed,
                    "longest_put_seconds": longest,
                }
                print(json.dumps(facts), flush=True)
                longest = 0.0


if __name__ == "__main__":
    serve(**json.loads(sys.argv[1]))
