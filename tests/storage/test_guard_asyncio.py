"""Clients whose answers are awaited are refused when a guard is made, before anything is written."""

import sqlite3

import pytest

from dlbf.storage import Guard
from dlbf.storage.engines import RedisEngine, SqliteEngine, engine_for

WORDS = r"expected an engine that answers at once, found .*, whose answers are awaited; .* dlbf\.storage\.aio"


@pytest.mark.parametrize("package", ["redis", "valkey"])
def test_asynchronous_clients_are_refused(package, tmp_path):
    pytest.importorskip(package)
    module = pytest.importorskip(f"{package}.asyncio")
    name = "Redis" if package == "redis" else "Valkey"
    for client in (getattr(module, name)(), getattr(module, f"{name}Cluster")("127.0.0.1", 1)):
        for make in (engine_for, RedisEngine, lambda it: Guard(it, tmp_path / "guard")):
            with pytest.raises(
                TypeError, match=r"expected a client that is not for asyncio, .* dlbf\.storage\.aio\.Guard"
            ):
                make(client)
    assert not (tmp_path / "guard").exists()


def test_engines_of_coroutines_are_refused(tmp_path):
    class Pairs:
        async def get(self, key):
            return None

        async def put(self, key, value):
            return None

        async def delete(self, key):
            return None

        def scan(self, start):
            return iter(())

    with pytest.raises(TypeError, match=WORDS):
        Guard(Pairs(), tmp_path)

    class Connection(sqlite3.Connection):
        async def execute(self, *arguments):
            return None

    connection = Connection(":memory:")
    with pytest.raises(TypeError, match=WORDS):
        SqliteEngine(connection, "pairs")
    connection.close()
