"""Keys that an engine deletes by itself after a time."""

import contextlib
import math
import sqlite3
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import guard_engines

from dlbf.errors import StoreError
from dlbf.storage import Guard
from dlbf.storage.engines import Adapter, MappingEngine, RedisEngine, SqliteEngine

LONG = 1000.0  # outlives every test


@pytest.fixture(params=["redis", "redis-cluster"])
def client(request):
    with guard_engines.running(request.param) as folder, guard_engines.opened(request.param, folder) as client:
        yield client


def wait_until_gone(client, key):
    end = time.monotonic() + 60
    while client.exists(key):
        assert time.monotonic() < end
        time.sleep(0.001)


def test_ttl_reaches_the_server_and_overwriting_has_its_meaning(client, tmp_path):
    with Guard(RedisEngine(client, prefix=b"p:"), tmp_path, sync="none") as guard:
        guard.put(b"a", b"1", ttl=LONG)
        assert 0 < client.pttl(b"p:a") <= LONG * 1000
        guard.put(b"a", b"2", ttl=2 * LONG)  # of a key that is there
        assert LONG * 1000 < client.pttl(b"p:a") <= 2 * LONG * 1000
        assert guard.get(b"a") == b"2"
        guard.put(b"a", b"3")
        assert client.pttl(b"p:a") == -1  # stays
        guard.put(b"a", b"4", ttl=LONG)
        assert client.pttl(b"p:a") > 0
        guard[b"a"] = b"5"
        assert client.pttl(b"p:a") == -1
        guard.put(b"a", b"6", ttl=LONG)
        guard.update({b"a": b"7"})
        assert client.pttl(b"p:a") == -1
        guard.put(b"b", b"1", new=True, ttl=LONG)
        assert client.pttl(b"p:b") > 0
        assert guard.verify().ok
        assert guard.delete(b"b")
        assert guard.verify().ok


def test_expired_key_leaves_an_entry_until_the_next_rebuild(client, tmp_path):
    with Guard(client, tmp_path, sync="none") as guard:
        guard.put(b"stays", b"1")
        guard.put(b"goes", b"1", ttl=0.0001)  # rounded up to a millisecond
        wait_until_gone(client, b"goes")
        assert guard.get(b"goes") is None
        assert b"goes" not in guard
        found = guard.verify()
        assert (found.keys, found.missing, found.extra) == (1, 0, 1)
        guard.put(b"goes", b"2", ttl=LONG)  # comes back: a second entry
        assert guard.get(b"goes") == b"2"
        found = guard.verify()
        assert (found.keys, found.missing, found.extra) == (2, 0, 1)
        assert guard.delete(b"goes")
        assert (guard.verify().missing, guard.verify().extra) == (0, 1)
        guard.put(b"goes", b"3", ttl=0.001)
        wait_until_gone(client, b"goes")
        guard.rebuild()
        assert guard.verify().ok
        assert guard.get(b"stays") == b"1"


class Plain:
    """Four methods."""

    def __init__(self):
        self.data = {}
        self.get, self.delete = self.data.get, self.data.pop

    def put(self, key, value):
        self.data[key] = value

    def scan(self, start):
        return iter(self.data)


@pytest.mark.parametrize("name", ["dict", "rocksdict", "plyvel", "sqlite3", "dbm", "lmdb", "plain"])
def test_other_engines_refuse_before_anything_is_changed(name, tmp_path):
    def check(engine):
        with Guard(engine, tmp_path / "guard", sync="none") as guard:
            guard[b"old"] = b"1"
            before = guard.stats().last_txn, guard.stats().journal_records
            for key in (b"old", b"new"):
                with pytest.raises(StoreError, match="expected an engine whose keys expire") as error:
                    guard.put(key, b"2", ttl=LONG)
                assert ("found Plain," if name == "plain" else "Engine, which keeps") in str(error.value)
            assert (guard.stats().last_txn, guard.stats().journal_records) == before
            assert (guard[b"old"], guard.get(b"new")) == (b"1", None)
            assert guard.verify().ok
            guard.put(b"old", b"3", ttl=None)

    if name == "plain":
        check(Plain())
    else:
        with guard_engines.opened(name, tmp_path) as engine:
            check(engine)


@pytest.mark.parametrize(
    ("ttl", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (0.0, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (10**400, ValueError),
        (1e11, ValueError),
        (True, TypeError),
        ("60", TypeError),
        (b"60", TypeError),
        (1j, TypeError),
    ],
)
def test_ttl_that_is_no_time_is_refused(ttl, error, tmp_path):
    engine = Expiring({})
    with Guard(engine, tmp_path) as guard:
        with pytest.raises(error, match=r"expected .*ttl"):
            guard.put(b"a", b"1", ttl=ttl)
        assert not engine.mapping
        assert guard.verify().ok


class Expiring(MappingEngine):
    """Says how long keys are to live."""

    expires = True

    def __init__(self, mapping):
        super().__init__(mapping)
        self.times = {}

    def put_expiring(self, key, value, seconds):
        self.mapping[key] = value
        self.times[key] = seconds


@pytest.mark.parametrize("ttl", [60, 0.5, np.float64(2.5), np.int64(3), 1e10])
def test_engine_of_ones_own_gets_the_seconds(ttl, tmp_path):
    engine = Expiring({})
    with Guard(engine, tmp_path) as guard:
        guard.put(b"a", b"1", ttl=ttl)
        guard.put("b", bytearray(b"2"), ttl=ttl)
        assert engine.times == {b"a": ttl, b"b": ttl}
        assert type(engine.times[b"a"]) is float
        assert (guard[b"a"], guard[b"b"]) == (b"1", b"2")
        assert guard.verify().ok


def test_put_that_the_engine_fails_is_taken_back(tmp_path):
    class Failing(Expiring):
        def put_expiring(self, key, value, seconds):
            raise OSError("full")

    with Guard(Failing({}), tmp_path) as guard:
        with pytest.raises(OSError, match="full"):
            guard.put(b"a", b"1", ttl=1)
        assert guard.verify().ok


def test_engine_that_promises_expiry_must_have_it(tmp_path):
    class Promising(MappingEngine):
        expires = True

    with Guard(Promising({}), tmp_path) as guard, pytest.raises(NotImplementedError, match="expires is True"):
        guard.put(b"a", b"1", ttl=1)


def test_only_redis_says_that_its_keys_expire():
    assert RedisEngine.expires
    assert not Adapter.expires
    assert not SqliteEngine.expires


# --- a column of SQLite


@contextlib.contextmanager
def sqlite_at(now):
    """A table whose keys expire, and a clock that stands still until it is set."""
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(sqlite3.connect(":memory:")) as connection:
        patch.setattr("dlbf.storage.engines.sqlite.time", SimpleNamespace(time=lambda: now[0]))
        yield SqliteEngine(connection, "pairs", expires="until")


def test_sqlite_keys_expire_by_a_column(tmp_path):
    now = [1000.0]
    with sqlite_at(now) as engine, Guard(engine, tmp_path, sync="none") as guard:
        guard.put(b"a", b"1", ttl=60)
        guard[b"b"] = b"2"
        assert engine.connection.execute("SELECT key, until FROM pairs ORDER BY key").fetchall() == [
            (b"a", 1060.0), (b"b", None),
        ]  # fmt: skip
        now[0] = 1059.9
        assert (guard.get(b"a"), b"a" in guard) == (b"1", True)
        now[0] = 1060.0
        assert (guard.get(b"a"), b"a" in guard, guard.delete(b"a")) == (None, False, False)
        guard.put(b"a", b"3")  # comes back, and stays
        now[0] = 9e9
        assert guard.get(b"a") == b"3"
        guard.put(b"b", b"4", ttl=1)
        now[0] += 1
        assert (engine.purge(), engine.purge()) == (1, 0)
        assert engine.connection.execute("SELECT count(*) FROM pairs").fetchone() == (1,)
        assert guard.verify().missing == 0
        guard.rebuild()
        assert guard.verify().ok
        assert guard.get_many([b"a", b"b"]) == [b"3", None]


@settings(max_examples=40, deadline=None)
@given(
    operations=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 4), st.one_of(st.none(), st.integers(1, 3))),
            st.tuples(st.just("delete"), st.integers(0, 4), st.none()),
            st.tuples(st.just("clock"), st.integers(-3, 3), st.none()),
            st.tuples(st.sampled_from(["purge", "rebuild"]), st.just(0), st.none()),
        ),
        max_size=25,
    )
)
def test_sqlite_guard_with_expiry_is_a_table_of_times(operations, tmp_path_factory):
    """Also when the clock is set back: rows that nobody has purged are there again."""
    now = [100.0]
    rows = {}
    with sqlite_at(now) as engine, Guard(engine, tmp_path_factory.mktemp("guard"), sync="none") as guard:
        for number, (name, i, ttl) in enumerate(operations):
            key, value = b"%d" % i, b"%d" % number
            alive = {k: v for k, (v, until) in rows.items() if until > now[0]}
            if name == "put":
                guard.put(key, value, ttl=ttl)
                rows[key] = value, math.inf if ttl is None else now[0] + ttl
            elif name == "delete":
                assert guard.delete(key) == (key in alive)
                if key in alive:
                    del rows[key]
            elif name == "clock":
                now[0] += i
            elif name == "purge":
                assert engine.purge() == len(rows) - len(alive)
                rows = {k: row for k, row in rows.items() if k in alive}
            else:
                guard.rebuild()
            for k in map(b"%d".__mod__, range(5)):
                value, until = rows.get(k, (None, 0))
                assert guard.get(k) == (value if until > now[0] else None)
            assert guard.verify().missing == 0


def test_sqlite_entry_of_an_unfinished_put_stays_where_keys_expire(tmp_path):
    """After a failure the key looks absent because its time is over; a clock that is set back makes it present."""
    now = [100.0]
    with sqlite_at(now) as engine:
        guard = Guard(engine, tmp_path, sync="none")
        real = engine.put_expiring

        def put(*arguments):
            real(*arguments)
            now[0] = 200.0
            raise OSError("the disk is gone")

        engine.put_expiring = put
        with pytest.raises(OSError):
            guard.put(b"a", b"1", ttl=10)
        assert guard.get(b"a") is None
        now[0] = 105.0
        assert guard.get(b"a") == b"1"
        guard.close()


def test_sqlite_column_that_cannot_hold_times_is_refused():
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        SqliteEngine(connection, "pairs")
        with pytest.raises(StoreError, match='ALTER TABLE "pairs" ADD COLUMN "until" REAL'):
            SqliteEngine(connection, "pairs", expires="until")
        connection.execute('ALTER TABLE "pairs" ADD COLUMN "until" REAL')
        assert SqliteEngine(connection, "pairs", expires="until").expires
        assert SqliteEngine(connection, "pairs").purge() == 0
        connection.execute('ALTER TABLE "pairs" ADD COLUMN "words" TEXT')
        with pytest.raises(StoreError, match="of numbers"):
            SqliteEngine(connection, "pairs", expires="words")
