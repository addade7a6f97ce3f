"""Guard a Redis or Valkey server: an absent key saves the round trip.

Run with ``python examples/guard_redis.py [port]`` beside a server on this machine; needs
``pip install 'dlbf[engines]'``.
"""

import sys
import tempfile

import redis

from dlbf.storage import Guard
from dlbf.storage.engines import RedisEngine


def main() -> None:
    """Store some keys, ask for others, count the commands that reached the server."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 6379
    with redis.Redis(host="127.0.0.1", port=port) as client, tempfile.TemporaryDirectory() as folder:
        engine = RedisEngine(client, prefix=b"dlbf example:")
        with Guard(engine, folder) as guard:
            guard.update((b"user:%d" % i, b"record") for i in range(5000))
            before = client.info("stats")["total_commands_processed"]
            assert guard.get_many([b"guest:%d" % i for i in range(5000)]) == [None] * 5000
            after = client.info("stats")["total_commands_processed"]
            print(f"5000 absent keys: {after - before - 1} commands reached the server")
            guard.clear()
        engine.release()  # the server's keys were this directory's, which is gone now; the next run has another


if __name__ == "__main__":
    main()
