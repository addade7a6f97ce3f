"""Guards for asyncio: no suspension for absent keys, and nothing half done by whoever is cancelled."""

import asyncio
import contextlib
import sqlite3
import threading

import pytest
from support import guard_engines

from dlbf.errors import StoreError
from dlbf.storage import Guard as ThreadGuard
from dlbf.storage.aio import Guard
from dlbf.storage.engines import RedisEngine, SqliteEngine
from dlbf.storage.engines.base import Adapter


class Slow(Adapter):
    """A dict that goes on with a change or a read only when it is let."""

    def __init__(self):
        self.data, self.go, self.reached = {}, threading.Event(), threading.Event()
        self.go.set()

    def _wait(self):
        self.reached.set()
        assert self.go.wait(60)

    def get(self, key):
        self._wait()
        return self.data.get(key)

    def put(self, key, value):
        self._wait()
        self.data[key] = value

    def delete(self, key):
        self._wait()
        self.data.pop(key, None)

    def scan(self, start):
        return iter(sorted(key for key in self.data if key >= start))

    def identity(self):
        return b"slow"


def at_once(coroutine):
    """What a coroutine returns that never suspends."""
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    return done.value.value


def test_absent_key_is_answered_without_a_suspension_point(tmp_path):
    guard = Guard({b"apple": b"red"}, tmp_path / "guard")
    assert at_once(guard.get(b"cherry")) is None
    assert at_once(guard.get("cherry", 7)) == 7
    assert at_once(guard.contains(b"cherry")) is False
    assert at_once(guard.get_many([b"cherry", b"plum"], 7)) == [7, 7]
    assert at_once(guard.contains_many([b"cherry", b"plum"])).tolist() == [False, False]
    assert (guard.stats().filtered, guard.stats().lookups) == (7, 7)
    coroutine = guard.get(b"apple")
    with pytest.raises(RuntimeError, match="no running event loop"):
        coroutine.send(None)  # it would wait for the engine
    asyncio.run(guard.aclose())


def test_mapping_like_methods(tmp_path):
    async def main():
        async with Guard({}, tmp_path / "guard") as guard:
            await guard.update((b"%d" % i, b"v%d" % i) for i in range(100))
            await guard.put(b"one", b"1")
            assert await guard.get(b"one") == b"1"
            assert await guard.get_many([b"7", b"none"]) == [b"v7", None]
            assert await guard.contains(b"one")
            assert (await guard.contains_many([b"7", b"none", b"one"])).tolist() == [True, False, True]
            assert await guard.get_many([b"x"] * 2000 + [b"7"], b"-") == [b"-"] * 2000 + [b"v7"]
            assert await guard.pop(b"3") == b"v3"
            assert await guard.pop(b"3", None) is None
            with pytest.raises(KeyError):
                await guard.pop(b"3")
            assert await guard.setdefault(b"3", b"v3") == b"v3"
            assert sorted([key async for key in guard]) == sorted([b"one", *(b"%d" % i for i in range(100))])
            assert [item async for item in guard.items(b"one")] == [(b"one", b"1")]
            assert await guard.delete(b"one")
            assert not await guard.delete(b"one")
            assert await guard.delete_many([b"1", b"2", b"none"]) == 2
            assert (await guard.rebuild(model=None)).keys == 98
            assert (await guard.verify()).ok
            assert "filtering" in repr(guard)
            assert not (await guard.drift(estimate=False)).due
            await guard.clear()
            assert [key async for key in guard] == []
        await guard.close()  # twice is allowed
        for act in (guard.put(b"one", b"1"), guard.get(b"one"), guard.get(b"none"), guard.get_many([b"none"])):
            with pytest.raises(StoreError, match="closed"):
                await act

    asyncio.run(main())


@pytest.mark.parametrize("what", ["put", "delete", "get", "overwrite"])
def test_cancelled_at_its_await_nothing_is_denied_and_notes_are_settled(tmp_path, what):
    engine = Slow()

    async def main():
        guard = Guard(engine, tmp_path / "guard")
        await guard.put(b"there", b"1")
        await guard.put(b"gone", b"1")
        engine.go.clear()
        engine.reached.clear()
        act = {
            "put": lambda: guard.put(b"new", b"1"), "delete": lambda: guard.delete(b"gone"),
            "get": lambda: guard.get(b"there"), "overwrite": lambda: guard.put(b"there", b"2"),
        }[what]  # fmt: skip
        task = asyncio.create_task(act())
        while not engine.reached.is_set():  # it is in the middle of it
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine.go.set()
        # The next change waits for the one that nobody waits for.
        await guard.put(b"after", b"1")
        for key, value in engine.data.items():
            assert await guard.get(key) == value
        assert (await guard.verify()).ok
        await guard.aclose()

    asyncio.run(main())
    assert engine.data.get(b"there") == (b"2" if what == "overwrite" else b"1")
    assert (b"new" in engine.data, b"gone" in engine.data) == (what == "put", what != "delete")
    with ThreadGuard(engine, tmp_path / "guard") as guard:
        assert all(key in guard for key in engine.data)
        assert guard.verify().ok


@pytest.mark.parametrize("n_turns", range(6))
def test_cancelled_after_any_number_of_turns_of_the_loop(tmp_path, n_turns):
    data = {}

    async def main():
        async with Guard(data, tmp_path / "guard") as guard:
            for number in range(20):
                for act in (guard.put(b"key %d" % number, b""), guard.delete(b"key %d" % (number - 3))):
                    task = asyncio.create_task(act)
                    for _ in range(n_turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            await guard.put(b"last", b"")
            for key in data:
                assert await guard.get(key) is not None, key
            assert (await guard.verify()).ok

    asyncio.run(main())


def test_closing_waits_for_changes_that_were_begun(tmp_path):
    engine = Slow()

    async def main():
        guard = Guard(engine, tmp_path / "guard")
        engine.go.clear()
        engine.reached.clear()
        put = asyncio.create_task(guard.put(b"key", b"1"))
        while not engine.reached.is_set():
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(guard.aclose())
        await asyncio.sleep(0.01)
        assert not closing.done()
        engine.go.set()
        await asyncio.gather(put, closing)

    asyncio.run(main())
    assert engine.data == {b"key": b"1"}


def test_iteration_that_is_cancelled_ends_its_iterator(tmp_path):
    ended = threading.Event()

    class Scanned(Slow):
        def scan(self, start):
            try:
                for number in range(2000):
                    if number == 700:  # in the second chunk
                        self._wait()
                    yield b"%06d" % number
            finally:
                ended.set()

    engine = Scanned()

    async def main():
        async with Guard(engine, tmp_path / "guard", attach=False) as guard:
            engine.go.clear()
            engine.reached.clear()
            ended.clear()
            seen = []

            async def walk():
                async for key in guard:
                    seen.append(key)

            task = asyncio.create_task(walk())
            while not engine.reached.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(seen) == 512
            assert not ended.is_set()  # a thread is in the middle of it
            engine.go.set()
            while not ended.is_set():
                await asyncio.sleep(0.001)

    asyncio.run(main())


def test_error_of_a_change_that_nobody_waits_for_is_not_reported(tmp_path, caplog):
    class Broken(Slow):
        def put(self, key, value):
            super().put(key, value)
            raise OSError("broken")

    engine = Broken()

    async def main():
        guard = Guard(engine, tmp_path / "guard")
        engine.go.clear()
        engine.reached.clear()
        task = asyncio.create_task(guard.put(b"key", b"1"))
        while not engine.reached.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        engine.go.set()
        with pytest.raises(OSError, match="broken"):
            await guard.put(b"other", b"1")
        assert await guard.get(b"key") == b"1"
        await guard.aclose()

    asyncio.run(main())
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_engine_that_threads_cannot_share_is_refused(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "data")) as connection:
        connection.execute("CREATE TABLE pairs (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        with pytest.raises(StoreError, match="check_same_thread=False"):
            Guard(SqliteEngine(connection, "pairs"), tmp_path / "guard")
        ThreadGuard(SqliteEngine(connection, "pairs"), tmp_path / "guard").close()  # it was let go


def clients(library):
    """The classes of a client library: plain, for asyncio, and for asyncio and clusters."""
    module, waiting = pytest.importorskip(library), pytest.importorskip(f"{library}.asyncio")
    name = library.capitalize()
    return getattr(module, name), getattr(waiting, name), getattr(waiting, f"{name}Cluster")


@pytest.mark.parametrize("library", ["redis", "valkey"])
def test_reads_go_to_an_asyncio_client(tmp_path, library):
    plain, waiting, _ = clients(library)

    def n_calls(client, command):
        return client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]

    async def main(port):
        with plain(host="127.0.0.1", port=port) as client:
            reader = waiting(host="127.0.0.1", port=port)
            engine = RedisEngine(client, prefix=b"users:")
            async with await asyncio.to_thread(Guard, engine, tmp_path / "guard", reader=reader) as guard:
                await guard.put(b"ann", b"1")
                n_gets, n_exists = n_calls(client, "get"), n_calls(client, "exists")
                assert await guard.get(b"ann") == b"1"
                assert await guard.get(b"bob") is None
                assert await guard.get_many([b"ann", b"bob"]) == [b"1", None]
                assert await guard.contains(b"ann")
                assert (await guard.contains_many([b"ann", b"bob"])).tolist() == [True, False]
                assert (n_calls(client, "get"), n_calls(client, "exists")) == (n_gets + 2, n_exists + 2)
                client.delete(b"users:ann")  # behind the guard
                assert await guard.get(b"ann", b"none") == b"none"
                assert not await guard.contains(b"ann")
                assert await guard.get_many([b"ann", b"bob"], b"none") == [b"none", b"none"]
                assert guard.stats().false_positives == 3
            await reader.aclose()
            elsewhere = waiting(host="127.0.0.1", port=port, db=1)
            async with await asyncio.to_thread(Guard, engine, tmp_path / "guard", reader=elsewhere) as guard:
                await guard.put(b"ann", b"1")
                with pytest.raises(StoreError, match="same server, port and db"):
                    await guard.get(b"ann")
            await elsewhere.aclose()

    with guard_engines.running("redis") as folder:
        asyncio.run(main(int((folder / "port").read_text())))


@pytest.mark.parametrize("library", ["redis", "valkey"])
def test_wrong_clients_are_refused_when_the_guard_is_made(tmp_path, library):
    plain, waiting, cluster = clients(library)
    engine = RedisEngine(plain())
    for refused, match in (
        (lambda: Guard(waiting(), tmp_path / "guard"), "reader= of dlbf.storage.aio.Guard"),
        (lambda: ThreadGuard(waiting(), tmp_path / "guard"), "not for asyncio"),
        (lambda: Guard(engine, tmp_path / "guard", reader=plain()), "are for the engine"),
        (lambda: Guard(engine, tmp_path / "guard", reader=object()), "are for the engine"),
        (lambda: Guard(engine, tmp_path / "guard", reader=waiting(decode_responses=True)), "decode_responses=False"),
        (lambda: Guard(engine, tmp_path / "guard", reader=cluster(host="127.0.0.1")), "client of one server"),
        (lambda: Guard({}, tmp_path / "guard", reader=waiting()), "is for a RedisEngine"),
    ):
        with pytest.raises(TypeError, match=match):
            refused()
    assert not (tmp_path / "guard").exists()


def test_guards_of_many_hosts_answer_at_once_and_are_cancelled_safely(tmp_path):
    redis = pytest.importorskip("redis")
    valkey = pytest.importorskip("support.valkey")
    logs = pytest.importorskip("dlbf.storage.logs")

    async def main(port):
        client = redis.Redis(port=port)
        waiting = redis.asyncio.Redis(port=port)
        options = {"log": logs.ValkeyLog(client, "aio"), "lease_seconds": 0.3, "secret": b"s" * 16}
        engine = RedisEngine(client)
        async with (
            await asyncio.to_thread(Guard, engine, tmp_path / "a", reader=waiting, **options) as one,
            await asyncio.to_thread(Guard, engine, tmp_path / "b", **options) as other,
        ):
            await one.put(b"key", b"1")
            assert await other.get(b"key") == await one.get(b"key") == b"1"
            assert {at_once(one.get(b"absent %d" % i)) for i in range(20)} <= {None}
            for number in range(1, 10):  # after no turn at all it was never begun
                task = asyncio.create_task(one.put(b"cut %d" % number, b"v"))
                for _ in range(number):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await one.update({b"last": b"v", b"gone": b"v"})
            assert await other.delete(b"gone")
            stored = {key async for key in other}
            assert stored == {b"key", b"last", *(b"cut %d" % number for number in range(1, 10))}
            assert all(await asyncio.gather(*(other.contains(key) for key in stored)))
            assert await one.get_many([b"gone", b"last"]) == [None, b"v"]
            assert (await other.verify()).missing == 0
        await waiting.aclose()

    with valkey.Server() as server:
        asyncio.run(main(server.port))
