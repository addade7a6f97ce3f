"""Real engines for the tests of guards: each can be opened, closed and opened again in a folder."""

import contextlib
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest

from dlbf.storage.engines import DbmEngine, LmdbEngine, SqliteEngine, engine_for

LOCAL = ("rocksdict", "plyvel", "sqlite3", "dbm", "lmdb")
REMOTE = ("redis", "redis-cluster")
DURABLE = (*LOCAL, *REMOTE)
ALL = ("dict", *DURABLE)
# Whose guards may have layers.
FRESH = ("rocksdict", "plyvel", "sqlite3", "lmdb")


@contextlib.contextmanager
def opened(name, folder):
    """The engine ``name`` of a folder, as a guard takes it; a redis server must be running there."""
    place = str(Path(folder) / name)
    if name == "dict":
        yield {}
    elif name == "rocksdict":
        rocksdict = pytest.importorskip("rocksdict")
        options = rocksdict.Options(raw_mode=True)
        options.set_write_buffer_size(1 << 20)
        database = rocksdict.Rdict(place, options)
        try:
            yield database
        finally:
            database.close()
    elif name == "plyvel":
        plyvel = pytest.importorskip("plyvel")
        with contextlib.closing(plyvel.DB(place, create_if_missing=True)) as database:
            yield database
    elif name == "sqlite3":
        with contextlib.closing(sqlite3.connect(place)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            yield SqliteEngine(connection, "pairs")
    elif name == "dbm":
        import dbm.dumb  # the one that is everywhere

        with dbm.dumb.open(place, "c") as database:
            yield DbmEngine(database, place)
    elif name == "lmdb":
        import lmdb

        with lmdb.open(place, map_size=1 << 26, max_dbs=1, sync=False) as environment:
            yield LmdbEngine(environment, b"pairs")
    elif name == "redis":
        import redis

        with redis.Redis(host="127.0.0.1", port=int((Path(folder) / "port").read_text())) as client:
            yield client
    elif name == "redis-cluster":
        import redis

        with redis.RedisCluster(host="127.0.0.1", port=int((Path(folder) / "port").read_text())) as client:
            yield client
    else:
        raise ValueError(name)


@contextlib.contextmanager
def running(name):
    """A folder with whatever server the engine needs running for it."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        with contextlib.ExitStack() as servers:
            if name in REMOTE:
                from support import valkey  # which skips the test if there is no client

                if name == "redis":
                    port = servers.enter_context(valkey.Server()).port
                else:
                    port = servers.enter_context(valkey.Cluster(n_primaries=3, n_replicas=0)).servers[0].port
                (folder / "port").write_text(str(port))
            yield folder
    finally:
        shutil.rmtree(folder)


def clear(name, folder):
    """Make a running engine empty."""
    if name in REMOTE:
        with opened(name, folder) as client:
            client.flushall()


def release(name, folder):
    """Let another directory guard a running engine."""
    with opened(name, folder) as engine:
        engine_for(engine).release()
