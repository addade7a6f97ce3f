"""Guards: what they ask of an engine, what failing writes leave, damage, other processes, and every adapter."""

import contextlib
import gc
import logging
import multiprocessing
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import lmdb
import pytest
from support import guard_engines, peek
from support.places import TESTS
from support.racing import close_under, twins_of
from support.samples import url_keys

from dlbf.errors import StoreError
from dlbf.kernels.filelog import ADDING, LATE, NOTHING, REMOVING, LogHead
from dlbf.kernels.hashing import checksum64
from dlbf.kernels.journal import OperationLog
from dlbf.kernels.journal import operations as operations_of
from dlbf.storage import (
    Guard,
    Store,
    commits,
    filelog,
    folder,
    generations,
    guarding,
    intents,
    ledger,
    tablelog,
    tables,
)
from dlbf.storage import guard as guard_module
from dlbf.storage.engines import (
    Adapter,
    DbmEngine,
    LevelEngine,
    LmdbEngine,
    MappingEngine,
    RedisEngine,
    RocksEngine,
    SqliteEngine,
    engine_for,
    late,
    mapping,
)
from dlbf.storage.engines.building import OrderedBuilder, UnorderedBuilder

KEYS = url_keys(500)
ABSENT = url_keys(500, seed=1)


class Counting(MappingEngine):
    """A dict that counts what it is asked, and fails when it is told to."""

    def __init__(self, pairs=(), in_flight=False, ordered=False):
        super().__init__(dict(pairs))
        self.in_flight = in_flight
        self.ordered = ordered
        self.calls = []
        self.fail = None
        self._identity = b"the one"

    def get(self, key):
        self.calls.append("get")
        return self.mapping.get(key)

    def has(self, key):
        self.calls.append("has")
        return key in self.mapping

    def has_many(self, keys):
        self.calls.append(f"has_many {len(keys)}")
        return [key in self.mapping for key in keys]

    def get_many(self, keys):
        self.calls.append(f"get_many {len(keys)}")
        return [self.mapping.get(key) for key in keys]

    def put(self, key, value):
        self.calls.append("put")
        if self.fail == "before":
            raise OSError("no room")
        self.mapping[key] = value
        if self.fail == "after":
            raise OSError("no answer")

    def delete(self, key):
        self.calls.append("delete")
        if self.fail == "before":
            raise OSError("no")
        self.mapping.pop(key, None)
        if self.fail == "after":
            raise OSError("no answer")

    def scan(self, start):
        keys = sorted(self.mapping) if self.ordered else list(self.mapping)
        return iter([key for key in keys if not self.ordered or key >= start])


def open_guard(engine, path, **options):
    # Without a secret, so that the filter's answers are the same in every run.
    return Guard(engine, path, **{"sync": "none", "keyed": False, **options})


# --- what the engine is asked


def test_engine_is_asked_only_where_the_filter_cannot_know(tmp_path):
    engine = Counting()
    with open_guard(engine, tmp_path) as guard:
        guard.update((key, b"1") for key in KEYS)
        sure = [key for key in ABSENT if guard.ledger.ask(key) == 0]
        assert len(sure) > 400
        engine.calls.clear()
        assert [guard.get(key) for key in sure] == [None] * len(sure)
        assert guard.get_many(sure) == [None] * len(sure)
        assert not any(key in guard for key in sure)
        assert not guard.delete(sure[0])
        assert guard.delete_many(sure) == 0
        with pytest.raises(KeyError):
            del guard[sure[0]]
        assert engine.calls == []
        guard[sure[0]] = b"1"  # new: no question
        assert engine.calls == ["put"]
        engine.calls.clear()
        guard[KEYS[0]] = b"2"  # perhaps there: one
        assert engine.calls == ["has", "put"]
        engine.calls.clear()
        assert guard.delete(sure[0])
        assert engine.calls == ["has", "delete"]
        engine.calls.clear()
        sure = [key for key in sure if guard.ledger.ask(key) == 0]
        guard.update(dict.fromkeys([*sure[:50], *KEYS[:3]], b"1"))
        assert engine.calls[0] == "has_many 3"
        sure = [key for key in sure[100:] if guard.ledger.ask(key) == 0]
        assert guard.get_many([*sure, *KEYS[:3]])[-3:] == [b"1"] * 3
        assert engine.calls[-1] == "get_many 3"
        assert guard.stats().lookups == guard.stats().filtered + 3
        assert guard.contains_many([*sure, *KEYS[:3]]).tolist() == [False] * len(sure) + [True] * 3
        assert engine.calls[-1] == "has_many 3"  # no value is read
        assert guard.stats().lookups == guard.stats().filtered + 6


def test_key_that_this_process_has_just_put_is_overwritten_without_a_question(tmp_path):
    engine = Counting(dict.fromkeys(KEYS, b"1"))
    with open_guard(engine, tmp_path) as guard:
        guard[b"first"] = b"1"
        guard[b"second"] = b"1"  # from now on changes of one key are compiled
        guard[b"a"] = b"1"
        engine.calls.clear()
        guard[b"a"] = b"2"
        assert engine.calls == ["put"]
        del guard[b"a"]
        guard[b"a"] = b"3"
        guard.delete_many([b"a"])
        engine.calls.clear()
        guard[b"a"] = b"4"
        guard[b"a"] = b"5"
        assert engine.calls[-1] == "put"
        assert engine.mapping[b"a"] == b"5"
        assert guard.verify().ok


@pytest.mark.parametrize("act", ["delete_many", "rebuild", "checkpoint", "fail"])
def test_what_this_process_knows_of_keys_ends_with_any_other_change(tmp_path, act):
    engine = Counting(dict.fromkeys(KEYS, b"1"))
    with open_guard(engine, tmp_path) as guard:
        guard[b"first"] = b"1"
        guard[b"a"] = b"1"
        if act == "delete_many":
            guard.delete_many([b"a"])
        elif act == "fail":
            engine.fail = "before"
            with pytest.raises(OSError, match="no room"):
                guard[b"b"] = b"1"
            engine.fail = None
        elif act == "rebuild":
            engine.mapping.pop(b"a")  # behind the guard's back: the next filter has no entry for it
            guard.rebuild(model=None)
        else:
            guard.checkpoint()
        guard[b"next"] = b"1"
        guard[b"b"] = b"2"
        guard[b"a"] = b"2"
        assert guard.get(b"a") == guard.get(b"b") == b"2"
        assert guard.verify().ok


def test_overwriting_writes_nothing_into_the_guards_environment(tmp_path):
    with open_guard({b"a": b"1"}, tmp_path) as guard:
        before = guard.stats().last_txn
        guard[b"a"] = b"2"
        assert guard.stats().last_txn == before
        assert guard.stats().unfiltered == 0


def test_put_new_spares_the_question_and_a_wrong_claim_costs_an_entry(tmp_path):
    engine = Counting({b"a": b"1"})
    with open_guard(engine, tmp_path) as guard:
        engine.calls.clear()
        guard.put(b"a", b"2", new=True)
        assert engine.calls == ["put"]
        found = guard.verify()
        assert (found.missing, found.extra) == (0, 1)
        assert guard.delete(b"a")
        assert guard.get(b"a") is None
        guard.rebuild()
        assert guard.verify().ok


def test_keys_and_values_are_checked_before_anything_happens(tmp_path):
    engine = Counting()
    with open_guard(engine, tmp_path) as guard:
        engine.calls.clear()
        for key, value in ((1, b""), (b"a", 1), (None, b"")):
            with pytest.raises(TypeError):
                guard[key] = value
        guard["é"] = bytearray(b"1")
        assert engine.mapping == {"é".encode(): b"1"}
        assert guard["é"] == b"1"


# --- bulk attach


@pytest.mark.parametrize("ordered", [True, False])
def test_attach_takes_in_what_the_engine_holds(tmp_path, ordered):
    engine = Counting(dict.fromkeys(KEYS, b"1"), ordered=ordered)
    seen = []
    with open_guard(engine, tmp_path, attach=False) as guard:
        assert guard.state == "pass-through"
        assert "attach()" in guard.stats().reason
        assert guard.get(KEYS[0]) == b"1"
        guard[b"more"] = b"1"  # journaled for whoever attaches
        assert guard.delete(KEYS[1])
        guard.attach(lambda phase, done, total: seen.append((phase, done, total)))
        assert guard.state == "filtering"
        assert guard.verify() == type(guard.verify())(len(KEYS), 0, 0)
    assert ("build", len(KEYS), len(KEYS)) in seen


def test_attach_interrupted_is_begun_again_at_the_next_opening(tmp_path):
    engine = Counting(dict.fromkeys(KEYS, b"1"))

    def interrupt(phase, done, total):
        if phase == "build" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_guard(engine, tmp_path, progress=interrupt)
    with open_guard(engine, tmp_path, attach=False) as guard:
        assert guard.state == "pass-through"
        assert all(guard.get(key) == b"1" for key in KEYS)
    with open_guard(engine, tmp_path) as guard:
        assert guard.state == "filtering"
        assert guard.verify().ok


def test_foreign_write_is_found_by_verify_and_repaired_by_rebuild(tmp_path):
    engine = Counting(dict.fromkeys(KEYS, b"1"))
    with open_guard(engine, tmp_path) as guard:
        engine.mapping[ABSENT[0]] = b"behind the guard"
        del engine.mapping[KEYS[0]]
        found = guard.verify()
        assert (found.missing, found.extra, found.ok) == (1, 1, False)
        assert found.examples == (ABSENT[0],)
        guard.rebuild()
        assert guard.verify().ok
        assert guard.get(ABSENT[0]) == b"behind the guard"


@pytest.mark.parametrize("tells", [False, True])
def test_clear_ends_and_takes_out_what_others_have_put_into_the_engine(tmp_path, monkeypatch, tells):
    class Engine(Counting):
        def delete_many(self, keys):
            return [self.mapping.pop(key, None) is not None for key in keys]

    engine = Engine()
    engine.tells = tells
    monkeypatch.setattr(guard_module, "BATCH_KEYS", 100)
    with open_guard(engine, tmp_path) as guard:
        guard.update((key, b"1") for key in KEYS[:300])
        engine.mapping.update((key, b"2") for key in ABSENT if guard.ledger.ask(key) == 0)
        thread = threading.Thread(target=guard.clear, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert not engine.mapping
        assert guard.verify().ok
        assert not guard.ledger.filter


def test_clear_of_an_engine_that_keeps_its_keys_is_an_error(tmp_path):
    class Engine(Counting):
        def delete_many(self, keys):
            pass

    with open_guard(Engine(), tmp_path) as guard:
        guard.update((key, b"1") for key in KEYS)
        with pytest.raises(StoreError, match="still gives 500 keys"):
            guard.clear()


# --- engines that fail


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_failing_put_never_loses_the_key_and_a_local_one_leaves_nothing(tmp_path, when, in_flight):
    engine = Counting({b"old": b"1"}, in_flight=in_flight)
    with open_guard(engine, tmp_path) as guard:
        engine.fail = when
        for key in (b"new", b"old"):
            with pytest.raises(OSError, match="no"):
                guard[key] = b"2"
        engine.fail = None
        assert {key: guard.get(key) for key in engine.mapping} == engine.mapping
        found = guard.verify()
        assert found.missing == 0
        # A remote one may yet do it: "new" stays announced, and "old" keeps its entry when it is deleted.
        assert found == type(found)(len(engine.mapping), 0, 0)
        assert peek.late_keys(guard) == ({b"new", b"old"} if in_flight else set())
        if in_flight:
            engine.mapping[b"new"] = b"late"  # here it comes
            assert guard.get(b"new") == b"late"
            assert guard.delete(b"old")
            engine.mapping[b"old"] = b"late"
            assert guard.get(b"old") == b"late"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_failing_delete_never_loses_a_key(tmp_path, when, in_flight):
    engine = Counting({b"old": b"1", b"other": b"1"}, in_flight=in_flight)
    with open_guard(engine, tmp_path) as guard:
        engine.fail = when
        with pytest.raises(OSError, match="no"):
            guard.delete(b"old")
        engine.fail = None
        assert {key: guard.get(key) for key in engine.mapping} == engine.mapping
        found = guard.verify()
        assert (found.missing, found.extra) == (0, 1 if in_flight and when == "after" else 0)
        guard[b"old"] = b"2"
        assert guard.delete(b"old")
        assert guard.get(b"other") == b"1"


# --- writes that arrive after they have failed


def renewed(guard, how):
    """Give the guard a new filter."""
    before = guard.stats().generation
    if how == "grow":
        guard.update((b"more %d" % i, b"") for i in range(3000))
    elif how == "grow in steps":
        for i in range(0, 3000, 30):
            guard.update((b"more %d" % j, b"") for j in range(i, i + 30))
    else:
        guard.rebuild(model=None)
    assert guard.stats().generation > before


def fail(engine, change):
    engine.fail = "before"
    with pytest.raises(OSError, match="no"):
        change()
    engine.fail = None


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("how", ["grow", "grow in steps", "rebuild"])
def test_failed_put_that_arrives_after_a_new_filter_is_found(tmp_path, how, ordered):
    engine = Counting(dict.fromkeys(KEYS, b"1"), in_flight=True, ordered=ordered)
    with open_guard(engine, tmp_path, fpr=0.001) as guard:
        fail(engine, lambda: guard.put(b"new", b"late"))
        fail(engine, lambda: guard.update({KEYS[0]: b"late", b"newer": b"late"}))
        assert guard.verify() == type(guard.verify())(len(KEYS), 0, 0)
        renewed(guard, how)
        assert guard.verify() == type(guard.verify())(len(engine.mapping), 0, 0)
        assert guard.delete(KEYS[0])
        renewed(guard, "rebuild")
        assert guard.verify() == type(guard.verify())(len(engine.mapping), 0, 0)
    with open_guard(engine, tmp_path, attach=False) as guard:
        assert guard.state == "filtering"
        for key in (b"new", b"newer", KEYS[0]):
            assert guard.get(key) is None
            engine.mapping[key] = b"late"  # here it comes
            assert guard.get(key) == b"late"
        assert guard.verify() == type(guard.verify())(len(engine.mapping), 0, 0)


@pytest.mark.parametrize("tells", [True, False])
def test_key_of_a_failed_put_has_one_entry_whatever_happens_to_it(tmp_path, tells):
    class Telling(Counting):
        def delete_many(self, keys):
            return [self.mapping.pop(key, None) is not None for key in keys]

    engine = Telling(in_flight=True)
    engine.tells = tells
    with open_guard(engine, tmp_path) as guard:
        fail(engine, lambda: guard.put(b"key", b"late"))
        for i in range(20):
            guard[b"key"] = b"%d" % i
            assert guard.get(b"key") == b"%d" % i
            assert guard.delete(b"key")
            guard.put(b"key", b"", new=True)
            guard.update({b"key": b"1", b"%d" % i: b"1"})
            assert guard.delete_many([b"key", b"%d" % i]) == 2
            assert guard.verify() == type(guard.verify())(0, 0, 0)
        guard.clear()
        engine.mapping[b"key"] = b"late"
        assert guard.get(b"key") == b"late"


@pytest.mark.parametrize("keys", [[b"new"], [KEYS[0]], [KEYS[0], b"new", KEYS[1]]], ids=["new", "old", "both"])
def test_put_of_a_dead_process_that_arrives_after_a_new_filter_is_found(tmp_path, keys):
    class Dying(Counting):
        def put_many(self, items):
            shutil.copytree(tmp_path / "g", tmp_path / "left")  # what a process leaves that dies here

    engine = Dying(dict.fromkeys(KEYS, b"1"), in_flight=True)
    with open_guard(engine, tmp_path / "g") as guard:
        guard.update(dict.fromkeys(keys, b"late"))
        assert peek.late_keys(guard) == set()
        assert peek.guarded(guard).log.intended() == (NOTHING, None)
    for _ in range(2):
        with open_guard(engine, tmp_path / "left", attach=False) as guard:
            guard.rebuild(model=None)
            guard.delete_many(keys)
            assert guard.verify() == type(guard.verify())(len(set(KEYS) - set(keys)), 0, 0)
    engine.mapping.update(dict.fromkeys(keys, b"late"))
    with open_guard(engine, tmp_path / "left", attach=False) as guard:
        assert guard.state == "filtering"
        assert [guard.get(key) for key in keys] == [b"late"] * len(keys)


def test_late_keys_are_forgotten_after_a_day_and_when_there_are_too_many(tmp_path, monkeypatch, caplog):
    engine = Counting(dict.fromkeys(KEYS, b"1"), in_flight=True)
    monkeypatch.setattr(late, "MAX_KEYS", 3)
    with open_guard(engine, tmp_path) as guard:
        for key in (b"a", b"b", b"c", b"a"):
            fail(engine, lambda key=key: guard.put(key, b""))
        assert peek.late_keys(guard) == {b"a", b"b", b"c"}
        assert not caplog.messages
        fail(engine, lambda: guard.update({b"d": b"", b"e": b""}))
        assert peek.late_keys(guard) == {b"a", b"d", b"e"}
        assert "more than 3 writes" in caplog.text
        assert guard.verify().extra == 2
        now = time.time()
        monkeypatch.setattr(late.time, "time", lambda: now + late.MAX_SECONDS + 10)
        fail(engine, lambda: guard.put(b"f", b""))
        assert peek.late_keys(guard) == {b"f"}
        monkeypatch.setattr(late.time, "time", lambda: now + 2 * late.MAX_SECONDS + 30)
        guard.rebuild(model=None)
        assert peek.late_keys(guard) == set()
        assert guard.verify() == type(guard.verify())(len(KEYS), 0, 0)


@pytest.mark.parametrize("ordered", [True, False])
def test_late_keys_that_come_and_go_during_a_walk_are_not_missed(tmp_path, monkeypatch, ordered):
    monkeypatch.setattr(late, "MAX_KEYS", 4)
    rng = random.Random(3)
    engine = Counting(dict.fromkeys(sorted(KEYS), b"1"), in_flight=True, ordered=ordered)
    with open_guard(engine, tmp_path, fpr=0.1) as guard:
        fail(engine, lambda: guard.put(min(KEYS), b""))
        for _ in range(4):
            builder = peek.commits(guard).new_builder(generations.new_filter("auto", 4000, 0.1, peek.secret(guard)))
            for _ in range(20):
                peek.commits(guard).step(builder, 20)
                for key in rng.sample(KEYS, 3):
                    fail(engine, lambda key=key: guard.put(key, b""))
                    guard.delete(key)
                listed = peek.late_keys(guard)
                for key in rng.sample(sorted(listed), 2):
                    engine.mapping[key] = b"late"
            while not builder.done:
                peek.commits(guard).step(builder, 50)
            assert builder.restarts > 0
            peek.commits(guard).switch(builder)
            assert guard.verify().missing == 0
            assert {key: guard.get(key) for key in engine.mapping} == engine.mapping


def test_many_late_keys_of_a_small_engine_find_room(tmp_path):
    engine = Counting(in_flight=True)
    with open_guard(engine, tmp_path) as guard:
        engine.put_many = lambda items: 1 / 0
        with pytest.raises(ZeroDivisionError):
            guard.update((b"%d" % i, b"") for i in range(8000))
        renewed(guard, "rebuild")
        assert guard.verify() == type(guard.verify())(0, 0, 0)


def test_record_of_a_late_key_golden_bytes_and_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(late.time, "time", lambda: 1_700_000_000.5)
    engine = Counting(in_flight=True)
    with open_guard(engine, tmp_path) as guard:
        fail(engine, lambda: guard.put(b"key", b""))
        number = guard.stats().last_txn
    monkeypatch.undo()
    with open_guard(engine, tmp_path, attach=False) as guard:

        def damage(txn):
            [(place, value)] = list(txn.cursor(db=peek.dbs(guard).data))
            assert place == struct.pack(">QI", number, 0)
            assert value[8:] == struct.pack("<Q", 1_700_000_000) + b"key"
            assert value[:8] == checksum64(value[8:]).to_bytes(8, "little")
            txn.put(place, value[:-1], db=peek.dbs(guard).data)
            return OperationLog()

        peek.guarded(guard).alone(peek.commits(guard).transact, damage)
    with open_guard(engine, tmp_path) as guard:
        assert peek.late_keys(guard) == set()
        fail(engine, lambda: guard.put(b"other", b""))
        assert peek.late_keys(guard) == {b"other"}


@pytest.mark.parametrize("is_own", [True, False])
def test_error_of_the_engine_when_a_write_is_done_is_logged_and_any_other_raised(tmp_path, caplog, is_own):
    class EngineError(Exception):
        pass

    class Engine(Counting):
        errors = (EngineError,) if is_own else ()
        scanned = 0

        def scan(self, start):
            self.scanned += 1
            if self.scanned > 1:  # the first is attach()
                raise EngineError("the connection is gone")
            return super().scan(start)

    engine = Engine()
    with open_guard(engine, tmp_path) as guard:

        def put():
            for i in range(1000):  # the first filter is for 1,024 keys, and the next one is begun before that
                guard[b"%d" % i] = b"1"

        if is_own:
            put()
            assert "the connection is gone" in caplog.text
        else:
            with pytest.raises(EngineError):
                put()
        assert engine.scanned > 1
        assert guard.get_many(list(engine.mapping)) == [b"1"] * len(engine.mapping)


def test_adapters_know_the_errors_of_their_engines(tmp_path):
    redis, plyvel = pytest.importorskip("redis"), pytest.importorskip("plyvel")
    assert engine_for(redis.Redis()).errors == (redis.RedisError,)
    with contextlib.closing(plyvel.DB(str(tmp_path / "level"), create_if_missing=True)) as database:
        assert engine_for(database).errors == (plyvel.Error,)
    assert SqliteEngine.errors == (sqlite3.Error,)


def test_engine_that_cannot_be_asked_keeps_the_note_for_later(tmp_path):
    engine = Counting({b"old": b"1"})
    with open_guard(engine, tmp_path) as guard:
        engine.fail = "after"
        broken = engine.has_many
        engine.has_many = lambda keys: 1 / 0
        with pytest.raises(OSError, match="no answer"):
            guard.delete(b"old")
        engine.fail = None
        with pytest.raises(StoreError, match="cannot be asked"):
            guard[b"b"] = b"1"
        engine.has_many = broken
        guard[b"b"] = b"1"
        assert guard.verify().ok


# --- changes that are interrupted

OTHER_CHANGES = {
    "put": lambda guard, key: guard.put(key, b"3"),
    "update": lambda guard, key: guard.update({key: b"3"}),
    "delete": lambda guard, key: guard.delete(key),
    "delete_many": lambda guard, key: guard.delete_many([key]),
    "pop": lambda guard, key: guard.pop(key, None),
    "setdefault": lambda guard, key: guard.setdefault(key, b"3"),
    "clear": lambda guard, key: guard.clear(),
    "checkpoint": lambda guard, key: guard.checkpoint(),
    "flush": lambda guard, key: peek.commits(guard).flush(),
    "verify": lambda guard, key: guard.verify(),
    "rebuild": lambda guard, key: guard.rebuild(),
    "close": lambda guard, key: guard.close(),
}


@pytest.mark.parametrize("inner", OTHER_CHANGES)
@pytest.mark.parametrize("outer", ["put", "delete", "pop", "delete_many"])
def test_change_in_the_middle_of_a_change_is_refused(tmp_path, outer, inner):
    """As by a signal handler or a finalizer: the key was there when the outer one asked."""

    class Hooked(Counting):
        hook = None

        def has(self, key):
            found = super().has(key)
            self.interrupt()
            return found

        def has_many(self, keys):
            found = super().has_many(keys)
            self.interrupt()
            return found

        def interrupt(self):
            hook, self.hook = self.hook, None
            if hook is not None:
                hook()

    engine = Hooked()
    refusals = []

    def interrupt():
        assert guard.get(first) == b"1"  # reading is allowed
        with pytest.raises(StoreError, match="in the middle of a change") as refusal:
            OTHER_CHANGES[inner](guard, first)
        refusals.append(refusal)

    with open_guard(engine, tmp_path, fpr=0.1) as guard:
        first, other = twins_of(guard.ledger.filter)
        guard.update({first: b"1", other: b"2"})
        engine.hook = interrupt
        OTHER_CHANGES[outer](guard, first)
        assert len(refusals) == 1
        assert guard.get(other) == b"2"
        assert guard.verify() == type(guard.verify())(len(engine.mapping), 0, 0)
        OTHER_CHANGES[inner](guard, first)  # later


LOCK_WATCHER = """
import fcntl
with open(sys.argv[2] + "/guard.lock", "r+b") as file:
    for line in sys.stdin:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[3]))
            fcntl.lockf(file, fcntl.LOCK_UN, 1, int(sys.argv[3]))
            print("free", flush=True)
        except OSError:
            print("held", flush=True)
"""


class Interrupted(Exception):
    pass


def interrupted_at(number, files, change):
    """Run ``change`` and raise where a signal handler could do so for the ``number``-th time in code of ``files``:
    when a function of Python begins, or a compiled one has returned.  False if it came to its end before.
    """
    left = number

    def profile(frame, event, argument):
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename in files:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise Interrupted

    sys.setprofile(profile)
    try:
        change()
        return False
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    "change",
    [
        lambda guard: guard.put(b"old", b"2"),
        lambda guard: guard.put(b"new", b"1"),
        lambda guard: guard.update({b"new": b"1", b"old": b"2"}),
        lambda guard: guard.delete(b"old"),
        lambda guard: guard.pop(b"old"),
        lambda guard: guard.verify(),
    ],
    ids=["overwrite", "put", "update", "delete", "pop", "verify"],
)
@pytest.mark.parametrize("kind", ["compiled", "slow", "in flight"])
def test_interrupted_change_keeps_no_lock_and_loses_nothing(tmp_path, change, kind):
    in_flight = kind == "in flight"  # never compiled
    gc.collect()  # lock files that others have left are not to end in the middle of this
    engine = Counting({b"old": b"1", b"other": b"1"}, in_flight=in_flight)
    modules = (guard_module, guarding, intents, filelog, folder, tables, tablelog, commits)
    files = {module.__file__ for module in modules}
    taken = []
    with open_guard(engine, tmp_path) as guard, spawn(LOCK_WATCHER, tmp_path, intents.WRITER_BYTE) as watcher:
        if kind == "compiled":
            files |= {__file__, mapping.__file__}  # nothing of Python is called but the engine
        else:
            guard._changes = None
        lock = peek.guarded(guard).lock_file.lock
        peek.guarded(guard).lock_file.lock = lambda wait: (taken.append(1), lock(wait))[1]
        number = 0
        while interrupted_at(number, files, lambda: change(guard)):
            number += 1
            assert not peek.guarded(guard).mutex.is_mine()
            for _ in range(1 if kind != "compiled" else 2000):  # it is kept for some milliseconds
                watcher.stdin.write("?\n")
                watcher.stdin.flush()
                if (state := watcher.stdout.readline()) == "free\n":
                    break
                time.sleep(0.005)
            assert state == "free\n", number
            guard.update({b"other": b"%d" % number})
            taken.clear()
            guard.setdefault(b"other", b"")  # never compiled: those changes take the lock themselves
            assert len(taken) == 1
            assert {key: guard.get(key) for key in engine.mapping} == engine.mapping
            found = guard.verify()
            assert (found.keys, found.missing) == (len(engine.mapping), 0)
            assert found.extra == 0 or in_flight, number
            guard[b"old"] = b"1"
            guard.delete(b"new")
        assert number >= (2 if kind == "compiled" else 10)
        watcher.stdin.close()
        assert watcher.wait(60) == 0


PUTS = """
guard.update({b"ready": b""})
ready()
for i in range(3000):
    guard[b"%d %d" % (number, i)] = b""
    if i % 50 == 0:
        guard.update({b"%d %d more" % (number, i): b""})
"""


def test_two_processes_that_keep_the_lock_and_write_slowly_in_between_both_go_on(tmp_path):
    """Who has the lock must not stand in line for it behind who waits for it."""
    with guard_engines.running("sqlite3") as folder:
        peers = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "import sys\nsys.path.insert(0, sys.argv[4])\nfrom support import guard_engines\n"
                    "from dlbf.storage import Guard\nnumber = int(sys.argv[3])\n"
                    "def ready():\n    print('ready', flush=True)\n    sys.stdin.readline()\n"
                    "with guard_engines.opened('sqlite3', sys.argv[1]) as engine, "
                    "Guard(engine, sys.argv[2], sync='none', lock_timeout=60) as guard:\n"
                    + "".join(f"    {line}\n" for line in PUTS.strip().splitlines()),
                    str(folder),
                    str(tmp_path / "g"),
                    str(number),
                    str(TESTS),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        assert [peer.stdout.readline() for peer in peers] == ["ready\n"] * 2
        for peer in peers:
            peer.stdin.write("go\n")
            peer.stdin.flush()
        assert [peer.wait(180) for peer in peers] == [0, 0]
        for peer in peers:
            peer.stdin.close()
            peer.stdout.close()
        with guard_engines.opened("sqlite3", folder) as engine, Guard(engine, tmp_path / "g", sync="none") as guard:
            assert len(guard) == 2 * 3060 + 1
            assert guard.verify().ok


# --- the note


def n_descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_note_golden_bytes():
    """Intent and position, and behind them the highest 14 bits of their product with an odd number."""
    assert (NOTHING, ADDING, REMOVING, LATE) == (0, 1, 2, 3)
    for intent, position in [(ADDING, 7), (REMOVING, 8), (LATE, 1 << 40)]:
        note = position << 2 | intent
        check = (note * 0x9E3779B97F4A7C15 & 2**64 - 1) >> 50
        assert LogHead.packed_note(intent, position) == check << 50 | note
    assert LogHead.packed_note(ADDING, 7) == 0xEC4800000000001D


def test_note_every_bit_counts(tmp_path):
    with open_guard({}, tmp_path) as guard:
        file = peek.guarded(guard).log.folder.newest_file()
        for intent, position in [(ADDING, 7), (REMOVING, 7), (LATE, 123_456_789_012)]:
            file.head.note(intent, position)
            assert file.head.noted() == (intent, position)
            packed = LogHead.packed_note(intent, position)
            assert packed == file.head.whole_note
            for i in range(64):
                changed = packed ^ 1 << i
                write_at(tmp_path / "guard.log", 88, changed.to_bytes(8, "little"))
                assert file.head.whole_note == changed
                assert file.head.noted() == (NOTHING, 0), i
        file.head.note(NOTHING, 0)
        assert (file.head.whole_note, file.head.noted()) == (0, (NOTHING, 0))


def write_at(path, place, data):
    """Change bytes of a file in their place."""
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def test_note_with_many_keys_has_all_of_them(tmp_path):
    keys = [b"%04d" % i + b"x" * 1000 for i in range(2000)]
    engine = Counting(dict.fromkeys(keys, b"1"))
    with open_guard(engine, tmp_path) as guard:
        log = peek.guarded(guard).log
        operations = OperationLog()
        for key in keys:
            operations.removed(key)
        newest = log.folder.newest_file().head.newest()
        log.intend(REMOVING, newest + 1, guard.ledger.generation, operations)
        shutil.copytree(tmp_path, tmp_path / "left")
        intent, record = log.intended()
        assert intent == REMOVING
        assert [key for _, key in operations_of(record)] == keys
        assert log.folder.newest_file().head.newest() == newest
        log.settle()
        assert log.intended() == (NOTHING, None)
    del engine.mapping[keys[0]], engine.mapping[keys[-1]]
    with open_guard(engine, tmp_path / "left", attach=False) as guard:
        assert peek.guarded(guard).log.intended() == (NOTHING, None)
        assert guard.verify() == type(guard.verify())(1998, 0, 0)


# Also what closes a file that was opened is interrupted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_lock_file_whose_opening_is_interrupted_leaves_no_descriptor_and_no_lock(tmp_path):
    gc.collect()
    before = n_descriptors()
    number = 0
    while interrupted_at(number, {intents.__file__}, lambda: intents.LockFile(tmp_path)):
        number += 1
        assert n_descriptors() == before, number
        intents.LockFile(tmp_path).close()
    assert number >= 5


def test_lock_file_that_is_collected_while_another_is_opened_stops_nobody(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    left = [intents.LockFile(tmp_path / "a")]

    real = os.fstat

    def stat(number):
        left.clear()  # as the garbage collector may at any time
        return real(number)

    monkeypatch.setattr(intents.os, "fstat", stat)
    opening = threading.Thread(target=lambda: intents.LockFile(tmp_path / "b").close(), daemon=True)
    opening.start()
    opening.join(60)
    assert not opening.is_alive()


def test_parts_of_a_guard_that_is_gone_say_so(tmp_path):
    guard = open_guard({}, tmp_path)
    commits = peek.commits(guard)
    environment = commits.environment
    del guard
    gc.collect()
    with pytest.raises(StoreError, match="is gone"):
        commits.checkpoint()
    environment.let_go()


def test_large_batches_are_changed_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(guard_module, "BATCH_KEYS", 100)
    pairs = [(b"%d" % i, b"v") for i in range(1050)]
    with open_guard({}, tmp_path) as guard:
        guard.update(pairs, last=b"v")
        assert len(guard) == 1051
        assert guard.delete_many(key for key, _ in pairs) == 1050
        assert list(guard) == [b"last"]
        assert guard.verify().ok


# --- damage


def test_lost_guard_is_made_again_from_the_engine(tmp_path):
    engine = Counting(dict.fromkeys(KEYS, b"1"))
    open_guard(engine, tmp_path / "g").close()
    shutil.rmtree(tmp_path / "g")
    with open_guard(engine, tmp_path / "g") as guard:
        assert guard.verify() == type(guard.verify())(len(KEYS), 0, 0)


@pytest.mark.parametrize("damage", ["nonsense", "cut", "flipped filter", "cut filter", "lost filter", "lost secret"])
def test_damaged_guard_reads_the_engine_and_is_repaired(tmp_path, damage, caplog):
    engine = Counting(dict.fromkeys(KEYS, b"1"))
    with open_guard(engine, tmp_path, keyed=True) as guard:
        guard.checkpoint()
    if damage == "nonsense":
        (tmp_path / "guard.log").write_bytes(b"nonsense" * 2000)
    elif damage == "cut":
        (tmp_path / "guard.log").write_bytes((tmp_path / "guard.log").read_bytes()[:-8])
    elif damage == "lost secret":
        (tmp_path / "secret.key").unlink()
    else:
        [path] = tmp_path.glob("filter.*")
        if damage == "lost filter":
            path.unlink()
        elif damage == "cut filter":
            path.write_bytes(path.read_bytes()[:-1])
        else:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    if damage not in ("nonsense", "cut"):
        with open_guard(engine, tmp_path, attach=False, keyed=True) as guard:
            assert guard.state == "pass-through"
            assert all(guard.get(key) == b"1" for key in KEYS)
            guard[b"new"] = b"1"
            assert guard.get(b"new") == b"1"
    caplog.clear()
    with caplog.at_level(logging.WARNING), open_guard(engine, tmp_path, keyed=True) as guard:
        assert guard.state == "filtering"
        assert guard.verify().ok
        assert all(guard.get(key) == b"1" for key in KEYS)
    assert len(caplog.messages) == 1
    assert (tmp_path / "guard.log.damaged").exists() == (damage in ("nonsense", "cut"))


def test_guard_touches_nothing_that_is_not_a_guards(tmp_path):
    with Store(tmp_path / "store") as store:
        store[b"a"] = b"1"
    with pytest.raises(StoreError, match="environment of a store"):
        Guard({}, tmp_path / "store")
    assert not (tmp_path / "store" / "guard.lock").exists()
    with Store(tmp_path / "store") as store:
        assert store[b"a"] == b"1"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.mdb").write_bytes(b"somebody's" * 1000)
    with pytest.raises(StoreError):
        Guard({}, tmp_path / "other")
    assert (tmp_path / "other" / "data.mdb").read_bytes() == b"somebody's" * 1000
    Guard({}, tmp_path / "guard").close()
    with pytest.raises(StoreError, match="directory of a guard"):
        Store(tmp_path / "guard")


def test_other_engine_at_the_same_path_is_noticed(tmp_path):
    one, other = Counting(dict.fromkeys(KEYS, b"1")), Counting(dict.fromkeys(ABSENT, b"2"))
    other._identity = b"another"
    open_guard(one, tmp_path).close()
    with open_guard(other, tmp_path, readonly=True) as guard:
        assert guard.state == "pass-through"
        assert guard.get(ABSENT[0]) == b"2"
    with open_guard(other, tmp_path, attach=False) as guard:
        assert guard.state == "pass-through"
        assert [guard.get(key) for key in ABSENT] == [b"2"] * len(ABSENT)
    with open_guard(other, tmp_path) as guard:
        assert guard.state == "filtering"
        assert guard.verify().ok
    with open_guard(other, tmp_path, attach=False) as guard:
        assert guard.state == "filtering"
        other._identity = b"started anew"
        guard.rebuild()
    with open_guard(other, tmp_path, attach=False) as guard:
        assert guard.state == "filtering"


def another_boot(monkeypatch):
    monkeypatch.setattr(guard_module, "boot_id", lambda: b"another boot    ")


def test_adapter_of_another_class_at_the_same_path_is_noticed(tmp_path):
    """Even if neither says which engine it is."""

    class First(Counting):
        def identity(self):
            return b""

    class Second(First):
        pass

    open_guard(First({b"a": b"1"}), tmp_path).close()
    with open_guard(First({b"a": b"1"}), tmp_path, attach=False) as guard:
        assert guard.state == "filtering"
    with open_guard(Second({b"b": b"1"}), tmp_path, attach=False) as guard:
        assert guard.state == "pass-through"
        assert guard.get(b"b") == b"1"


def test_unsynced_commits_are_not_trusted_after_a_power_failure(tmp_path, monkeypatch):
    engine = Counting(dict.fromkeys(KEYS, b"1"))
    with open_guard(engine, tmp_path) as guard:
        guard[b"new"] = b"1"
        shutil.copytree(tmp_path, tmp_path / "copy")  # as the disk might be when the power fails
    another_boot(monkeypatch)
    with open_guard(engine, tmp_path / "copy", readonly=True) as guard:
        assert guard.state == "pass-through"
        assert guard.get(b"new") == b"1"
    with open_guard(engine, tmp_path / "copy") as guard:
        assert guard.verify().ok
    assert (tmp_path / "copy" / "guard.log.damaged").exists()  # made again
    # Closed, everything was on disk.
    with open_guard(engine, tmp_path, attach=False) as guard:
        assert guard.state == "filtering"
        guard[b"newer"] = b"1"
        assert guard.verify().ok


def test_synced_commits_are_trusted_after_a_power_failure(tmp_path, monkeypatch):
    engine = Counting(dict.fromkeys(KEYS, b"1"))
    with Guard(engine, tmp_path) as guard:
        guard[b"new"] = b"1"
        shutil.copytree(tmp_path, tmp_path / "copy")
    another_boot(monkeypatch)
    with Guard(engine, tmp_path / "copy", attach=False) as guard:
        assert guard.state == "filtering"
        assert guard.verify().ok


def test_engine_is_synced_before_a_removal_is_journaled(tmp_path):
    events = []

    class Synced(Counting):
        def sync(self):
            events.append(("sync", guard.stats().last_txn))

    with Guard(Synced({b"a": b"1"}), tmp_path) as guard:
        before = guard.stats().last_txn
        del guard[b"a"]
        assert events == [("sync", before)]
        assert guard.stats().last_txn == before + 1


def test_unreadable_note_makes_the_guard_anew(tmp_path):
    engine = Counting(dict.fromkeys(KEYS, b"1"))
    open_guard(engine, tmp_path).close()
    packed = bytearray((tmp_path / "guard.log").read_bytes())
    packed[90] ^= 1
    (tmp_path / "guard.log").write_bytes(packed)
    with open_guard(engine, tmp_path, readonly=True) as guard:
        assert guard.state == "pass-through"
        assert "noted cannot be read" in guard.stats().reason
    with open_guard(engine, tmp_path) as guard:
        assert guard.verify().ok
    assert (tmp_path / "guard.log.damaged").exists()


# --- rebuilding beside writers


def build_beside(engine, path, builder_type, changes):
    """Walk through an engine in small steps with changes between them; returns the guard's builder."""
    with open_guard(engine, path) as guard:
        filter = generations.new_filter("auto", 4000, 0.01, peek.secret(guard))
        builder = peek.commits(guard).new_builder(filter)
        assert type(builder) is builder_type
        for change in changes:
            peek.commits(guard).step(builder, 20)
            change(guard)
        while not builder.done:
            peek.commits(guard).step(builder, 50)
        guard[b"after the walk"] = b"1"
        assert guard.delete(KEYS[-1]) in (True, False)
        peek.commits(guard).switch(builder)
        return guard.verify(), set(engine.mapping)


def churn(rng, n):
    def change(guard):
        for key in rng.sample(KEYS, n):
            if rng.random() < 0.5:
                guard.delete(key)
            else:
                guard[key] = b"2"

    return change


def test_ordered_walk_beside_writers_is_exact(tmp_path):
    rng = random.Random(1)
    engine = Counting(dict.fromkeys(rng.sample(KEYS, 300), b"1"), ordered=True)
    found, keys = build_beside(engine, tmp_path, OrderedBuilder, [churn(rng, 30) for _ in range(12)])
    assert found == type(found)(len(keys), 0, 0)


def test_unordered_walk_beside_writers_misses_nothing(tmp_path):
    rng = random.Random(2)
    engine = Counting(dict.fromkeys(rng.sample(KEYS, 300), b"1"))
    found, _ = build_beside(engine, tmp_path, UnorderedBuilder, [churn(rng, 30) for _ in range(12)])
    assert found.missing == 0
    assert 0 <= found.extra <= 12 * 30  # keys passed and deleted afterwards


@pytest.mark.parametrize("ordered", [True, False])
def test_walk_outrun_by_checkpoints_begins_again(tmp_path, ordered, monkeypatch):
    monkeypatch.setattr(ledger, "MIN_LOG_BYTES", 100)
    monkeypatch.setattr(ledger, "LOG_SHARE", 1)
    monkeypatch.setattr(generations, "MIN_CAPACITY", 64)
    engine = Counting(dict.fromkeys(KEYS, b"1"), ordered=ordered)
    with open_guard(engine, tmp_path) as guard:
        builder = peek.commits(guard).new_builder(generations.new_filter("auto", 4000, 0.01, peek.secret(guard)))
        peek.commits(guard).step(builder, 50)
        for i in range(3):
            guard.update((b"%d %d" % (i, j), b"") for j in range(1000))
            guard.checkpoint()
        while not builder.done:
            peek.commits(guard).step(builder, 500)
        assert builder.restarts >= 1
        peek.commits(guard).switch(builder)
        assert guard.verify().ok


def test_rebuild_while_threads_write_misses_nothing(tmp_path):
    engine = Counting(dict.fromkeys(KEYS, b"1"))
    stop = threading.Event()
    with open_guard(engine, tmp_path) as guard:

        def work(seed):
            rng = random.Random(seed)
            change = churn(rng, 20)
            while not stop.is_set():
                change(guard)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            guard.rebuild()
        stop.set()
        for thread in threads:
            thread.join()
        found = guard.verify()
        assert found.missing == 0
        assert {key: guard.get(key) for key in engine.mapping} == engine.mapping
        guard.rebuild()
        assert guard.verify().ok


def test_guard_grows_and_shrinks_with_its_engine(tmp_path):
    with open_guard(Counting(ordered=True), tmp_path, fpr=0.01) as guard:
        for i in range(0, 12_000, 60):
            guard.update((b"key %d" % j, b"") for j in range(i, i + 60))
        grown = guard.stats()
        assert grown.capacity >= 12_000
        wrong = sum(guard.ledger.ask(b"absent %d" % i) for i in range(20_000))
        assert wrong < 20_000 * 0.0125  # 1 % and six deviations of 0.07 %
        for i in range(0, 11_900, 100):
            guard.delete_many(b"key %d" % j for j in range(i, i + 100))
        assert guard.stats().filter_bytes < grown.filter_bytes / 2
        assert guard.verify().ok


def test_guard_learns_from_its_misses(tmp_path):
    pytest.importorskip("sklearn")
    from dlbf.datasets import listed_urls, ordinary_urls

    keys = list(listed_urls(3000))
    engine = Counting(dict.fromkeys(keys, b"1"), ordered=True)
    with open_guard(engine, tmp_path) as guard:
        plain = guard.stats()
        for key in ordinary_urls(40_000, seed=3):
            guard.get(key)
        report = guard.rebuild(deletability=0.0)
        learned = guard.stats()
        assert report.negatives_from == "traffic"
        assert report.done
        assert learned.model_bytes > 0, report
        assert learned.bits_per_key < plain.bits_per_key
        assert guard.verify().ok
        guard.update((key, b"2") for key in listed_urls(1500, seed=5))
        assert guard.delete_many(keys[:1000]) == 1000
        assert guard.verify().ok
        assert all(guard.get(key) == b"1" for key in keys[1000:])
    with open_guard(engine, tmp_path, attach=False) as guard:
        assert guard.stats().model_bytes > 0
        assert all(guard.get(key) == b"1" for key in keys[1000:])


# --- processes


def spawn(code, *arguments):
    """A Python process of its own."""
    program = "import sys\nsys.path.insert(0, sys.argv[1])\n" + code
    return subprocess.Popen(
        [sys.executable, "-c", program, str(TESTS), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


READER = """
from support import guard_engines
from dlbf.storage import Guard
name, folder = sys.argv[2:]
with guard_engines.opened(name, folder) as engine, Guard(engine, folder + "/guard", readonly=True) as guard:
    print("ready", flush=True)
    for line in sys.stdin:
        key = bytes.fromhex(line)
        print((guard.get(key) or b"-").decode(), guard.state, guard.traffic.n_filtered, flush=True)
"""


@pytest.mark.parametrize("name", ["sqlite3", "lmdb", "redis"])
def test_other_process_sees_every_guarded_write_at_once(name):
    with (
        guard_engines.running(name) as folder,
        guard_engines.opened(name, folder) as engine,
        open_guard(engine, folder / "guard") as guard,
        spawn(READER, name, folder) as process,
    ):
        assert process.stdout.readline() == "ready\n"

        def ask(key):
            process.stdin.write(key.hex() + "\n")
            process.stdin.flush()
            return process.stdout.readline().split()

        n_filtered = 0
        for i in range(30):
            key = b"key %d" % i
            assert ask(key)[:2] == ["-", "filtering"]
            guard[key] = b"value%d" % i
            assert ask(key)[:2] == [f"value{i}", "filtering"]
            if i % 3 == 0:
                del guard[key]
                answer = ask(key)
                assert answer[:2] == ["-", "filtering"]
                n_filtered = int(answer[2])
        assert n_filtered >= 25  # the answers came from the filter
        process.stdin.close()
        assert process.wait(60) == 0


WRITER = """
import random
from support import guard_engines
from dlbf.storage import Guard
name, folder, seed = sys.argv[2:]
rng = random.Random(seed)
with guard_engines.opened(name, folder) as engine, Guard(engine, folder + "/guard", sync="none") as guard:
    for i in range(400):
        key = b"key %d" % rng.randrange(60)
        if rng.random() < 0.5:
            guard[key] = b"%s %d" % (seed.encode(), i)
        else:
            guard.delete(key)
"""


@pytest.mark.parametrize("name", ["lmdb", "redis"])
def test_writers_of_several_processes_take_turns(name):
    """Without one lock from the question to the last step two processes remove one key twice, or add it twice."""
    with guard_engines.running(name) as folder, guard_engines.opened(name, folder) as engine:
        open_guard(engine, folder / "guard").close()
        processes = [spawn(WRITER, name, folder, seed) for seed in (1, 2)]
        for process in processes:
            with process:
                assert process.wait(120) == 0
        with open_guard(engine, folder / "guard", attach=False) as guard:
            found = guard.verify()
            assert found == type(found)(len(list(guard)), 0, 0)
            assert len(guard) > 10


def test_threads_share_a_guard(tmp_path):
    with (
        lmdb.open(str(tmp_path / "data"), map_size=1 << 26, sync=False) as env,
        open_guard(env, tmp_path / "g") as guard,
    ):
        errors = []

        def work(number):
            rng = random.Random(number)
            mine = {}
            try:
                for i in range(150):
                    key = b"%d %d" % (number, rng.randrange(40))
                    if rng.random() < 0.6:
                        guard[key] = mine[key] = b"%d" % i
                    else:
                        assert guard.delete(key) == (mine.pop(key, None) is not None)
                    assert guard.get(key) == mine.get(key)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert guard.verify().ok


def in_child(guard, results):
    try:
        guard.get(b"a")
        results.put("read")
    except StoreError:
        pass
    try:
        guard[b"a"] = b"1"
        results.put("wrote")
    except StoreError:
        results.put("refused")


GUARD_USES = {
    "put": lambda guard: [(guard.put(b"new", b""), guard.delete(b"new")) for _ in range(20)],
    "update": lambda guard: (guard.update({b"a": b"", b"b": b""}), guard.delete_many([b"a", b"b"])),
    "care": lambda guard: (guard.stats(), guard.verify(), guard.checkpoint(), len(guard)),
}


@pytest.mark.parametrize("name", GUARD_USES)
def test_thread_that_uses_a_guard_that_another_closes_is_told_so(tmp_path, name):
    for turn in range(10):
        guard = open_guard(Counting((key, b"1") for key in KEYS), tmp_path)
        close_under(guard, GUARD_USES[name], 0.002 * turn)


def test_guard_has_few_enough_attributes_for_quick_calls(tmp_path):
    with open_guard(Counting(), tmp_path) as guard:
        guard[b"a"] = b"1"
        guard.rebuild()
        assert len(vars(guard)) <= 30


def test_close_waits_for_a_change_of_another_thread_but_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(guard_module, "CLOSE_PATIENCE_SECONDS", 0.2)
    reached, answer = threading.Event(), threading.Event()

    class Slow(Counting):
        def put(self, key, value):
            reached.set()
            answer.wait(60)
            super().put(key, value)

    engine = Slow()
    guard = open_guard(engine, tmp_path)
    thread = threading.Thread(target=guard.put, args=(b"key", b"value"), daemon=True)
    thread.start()
    assert reached.wait(60)
    with pytest.raises(StoreError, match="in the middle of a change"):
        guard.close()
    monkeypatch.undo()
    answer.set()
    guard.close()
    thread.join(60)
    with open_guard(engine, tmp_path) as guard:
        assert guard.get(b"key") == b"value"
        assert guard.verify().ok


def test_fork_is_noticed(tmp_path):
    context = multiprocessing.get_context("fork")
    with open_guard({b"a": b"1"}, tmp_path) as guard:
        results = context.Queue()
        process = context.Process(target=in_child, args=(guard, results))
        process.start()
        assert results.get(timeout=300) == "refused"
        process.join()
        guard[b"b"] = b"1"
        assert guard.verify().ok


# --- the object


def test_guard_says_what_it_is_and_refuses_what_it_is_not(tmp_path):
    guard = open_guard({b"a": b"1"}, tmp_path)
    assert repr(guard) == f"<Guard {str(tmp_path)!r} of a MappingEngine: filtering>"
    for method in (guard.snapshot, guard.write):
        with pytest.raises(StoreError, match="engine"):
            method()
    with pytest.raises(StoreError, match="engine"):
        guard.backup(tmp_path / "backup")
    with pytest.raises(StoreError, match="already open"):
        open_guard({}, tmp_path)
    check = "import sys; from dlbf.storage.intents import LockFile; f = LockFile(sys.argv[2]); print(f.only_user())"
    with spawn(check.replace("sys.argv[2]", "__import__('pathlib').Path(sys.argv[2])"), tmp_path) as process:
        assert process.stdout.read() == "False\n"  # the attempt has not dropped the guard's lock
    assert guard.popitem() == (b"a", b"1")
    with pytest.raises(KeyError):
        guard.pop(b"a")
    assert guard.pop(b"a", None) is None
    guard.close()
    guard.close()
    assert "closed" in repr(guard)
    for use in (lambda: guard.get(b"a"), lambda: guard.put(b"a", b""), lambda: len(guard), guard.verify):
        with pytest.raises(StoreError, match="closed"):
            use()


def test_readonly_guard_reads_and_refuses_to_write(tmp_path):
    engine = Counting(dict.fromkeys(KEYS, b"1"))
    with pytest.raises(StoreError, match="no guard"):
        Guard(engine, tmp_path / "nowhere", readonly=True)
    open_guard(engine, tmp_path / "g").close()
    with Guard(engine, tmp_path / "g", readonly=True) as guard:
        assert guard.state == "filtering"
        assert guard.get(KEYS[0]) == b"1"
        assert guard.verify().ok
        for write in (lambda: guard.put(KEYS[0], b""), lambda: guard.delete(KEYS[0]), guard.clear, guard.rebuild):
            with pytest.raises(StoreError, match="readonly"):
                write()


@pytest.mark.parametrize("options", [{"sync": "data"}, {"fpr": 2}, {"secret": b"short"}])
def test_open_checks_its_arguments(tmp_path, options):
    with pytest.raises(ValueError):
        Guard({}, tmp_path / "g", **options)


def test_sync_none_needs_to_know_the_boot(tmp_path, monkeypatch):
    monkeypatch.setattr(guard_module, "boot_id", lambda: None)
    with pytest.raises(ValueError, match="Linux"):
        Guard({}, tmp_path, sync="none")
    with Guard({b"a": b"1"}, tmp_path) as guard:
        assert guard.get(b"a") == b"1"


# --- adapters


def test_engine_for_finds_the_adapter_by_type(tmp_path):
    for name, adapter in (("rocksdict", RocksEngine), ("plyvel", LevelEngine), ("dbm", DbmEngine)):
        with guard_engines.opened(name, tmp_path) as engine:
            assert type(engine_for(engine)) is adapter
    with lmdb.open(str(tmp_path / "l")) as env:
        assert type(engine_for(env)) is LmdbEngine
    redis = pytest.importorskip("redis")
    assert type(engine_for(redis.Redis())) is RedisEngine
    mine = Counting()
    assert engine_for(mine) is mine
    with sqlite3.connect(":memory:") as connection, pytest.raises(TypeError, match="SqliteEngine"):
        engine_for(connection)
    connection.close()
    for strange in (1, object(), [], Adapter):
        with pytest.raises(TypeError, match="get, put, delete and scan"):
            engine_for(strange)


@pytest.mark.parametrize("name", guard_engines.ALL)
def test_adapter_does_what_the_guard_relies_on(name):
    with guard_engines.running(name) as folder, guard_engines.opened(name, folder) as raw:
        engine = engine_for(raw)
        assert (engine.get(b"a"), engine.has(b"a"), list(engine.scan(b""))) == (None, False, [])
        engine.delete(b"a")  # nothing happens
        engine.put(b"a", b"1")
        engine.put(b"a", b"")  # an empty value is a value
        assert (engine.get(b"a"), engine.has(b"a")) == (b"", True)
        pairs = [(bytes([i, j]), b"%d" % i) for i in range(0, 256, 5) for j in (0, 42, 91, 255)]
        engine.put_many(pairs)
        assert engine.get_many([b"zz", b"a", *(key for key, _ in pairs)]) == [None, b"", *(v for _, v in pairs)]
        assert engine.has_many([b"zz", b"a", b"\x05\x00"]) == [False, True, True]
        everything = sorted([b"a", *(key for key, _ in pairs)])
        assert sorted(engine.scan(b"")) == everything
        if engine.ordered:
            assert list(engine.scan(b"")) == everything
            for start in (b"\x05\x00", b"\x05\x01", b"a", b"\xff\xff\xff"):
                assert list(engine.scan(start)) == [key for key in everything if key >= start]
        assert engine.count() in (None, len(everything))
        told = engine.delete_many([b"a", b"never", b"\x05\x00"])
        assert told == ([True, False, True] if engine.tells else None)
        assert sorted(engine.scan(b"")) == [key for key in everything if key not in (b"a", b"\x05\x00")]
        engine.sync()
        assert engine.identity() == engine.identity()


STRANGE = ["text", 7, 2.5, None, True, ("a", 1), bytearray(b"a"), memoryview(b"a")]


@pytest.mark.parametrize("strange", STRANGE, ids=lambda key: type(key).__name__)
@pytest.mark.parametrize("ordered", [True, False])
def test_key_that_is_not_bytes_is_refused_by_every_scan_and_hides_nothing(tmp_path, caplog, strange, ordered):
    """Whatever adapter gives it, wherever among the others."""

    class Engine(Counting):
        extra = ()

        def scan(self, start):
            keys = list(super().scan(start))
            middle = len(keys) // 2
            return iter([*keys[:middle], *self.extra, *keys[middle:]])

    engine = Engine([(key, b"1") for key in KEYS], ordered=ordered)
    refused = pytest.raises(
        StoreError, match=f"keys of bytes, but Engine found a key of type {type(strange).__name__}:"
    )
    engine.extra = (strange,)
    with refused:
        open_guard(engine, tmp_path / "new")
    engine.extra = ()
    with open_guard(engine, tmp_path / "old") as guard:
        engine.extra = (strange,)
        for scan in (
            guard.verify, guard.rebuild, guard.attach, guard.clear,
            lambda: list(guard), lambda: list(guard.items()), lambda: len(guard.keys(start=b"\0")),
        ):  # fmt: skip
            with refused:
                scan()
        with refused:
            guard.rebuild(design="auto", negatives=ABSENT)
        engine.extra = ()
        guard.clear()
        engine.extra = (strange,)
        # A filter that should grow says why it does not in the log; when it has no room left a put is refused.
        with refused:
            for i in range(5000):
                guard[b"%d" % i] = b"1"
        assert "could not be made larger: a guard needs keys of bytes" in caplog.text
        assert len(engine.mapping) == i
        assert guard.get_many(list(engine.mapping)) == [b"1"] * len(engine.mapping)
        engine.extra = ()
        guard.rebuild()
        assert guard.verify().ok


def test_mapping_with_other_keys_is_refused(tmp_path):
    with pytest.raises(StoreError, match="keys of bytes, but MappingEngine found a key of type str: 'text'"):
        Guard({b"bytes": b"1", "text": b"1"}, tmp_path)


def test_rocksdict_in_its_default_mode_is_refused_with_what_to_do(tmp_path):
    rocksdict = pytest.importorskip("rocksdict")
    with contextlib.closing(rocksdict.Rdict(str(tmp_path / "data"))) as database:
        for fill in ({}, {b"bytes": b"1"}, {"text": 1}):  # whatever is in it: text may come later
            for key, value in fill.items():
                database[key] = value
            with pytest.raises(TypeError, match=r"rocksdict.Options\(raw_mode=True\), found one in its default mode"):
                Guard(database, tmp_path / "g")
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("strange", ["1", "2.5", "'text'", "x'00ff'", "CAST(x'ff61' AS TEXT)"])
def test_sqlite_key_of_another_type_is_refused_by_every_scan(tmp_path, text, strange):
    fits = strange.startswith("'") if text else strange.startswith("x")
    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as connection:
        # A column without a type keeps what it is given.
        connection.execute("CREATE TABLE t (key UNIQUE, value)")
        engine = SqliteEngine(connection, "t", text=text)
        with open_guard(engine, tmp_path / "g") as guard:
            guard.update({b"%d" % i: b"1" for i in range(50)})
            connection.execute("INSERT INTO t VALUES (NULL, x'00')")  # a row without a key
            connection.commit()
            assert guard.verify() == type(guard.verify())(50, 0, 0)
            connection.execute(f"INSERT INTO t VALUES ({strange}, x'00')")
            connection.commit()
            for scan in (guard.verify, guard.rebuild, lambda: list(guard), lambda: len(guard)):
                if fits:
                    scan()
                else:
                    with pytest.raises(StoreError, match="table 't': expected keys of"):
                        scan()
            assert guard.get_many([b"%d" % i for i in range(50)]) == [b"1"] * 50


def test_plyvel_prefixed_part_is_guarded_by_itself(tmp_path):
    plyvel = pytest.importorskip("plyvel")
    with contextlib.closing(plyvel.DB(str(tmp_path / "data"), create_if_missing=True)) as database:
        database.put(b"other", b"1")
        with open_guard(database.prefixed_db(b"mine "), tmp_path / "g") as guard:
            guard.update({b"a": b"1", b"b": b"2"})
            del guard[b"a"]
            assert guard.verify() == type(guard.verify())(1, 0, 0)
        assert dict(database) == {b"mine b": b"2", b"other": b"1"}


def test_sqlite_table_of_a_program_with_text_keys(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.execute('CREATE TABLE "my files" (id INTEGER PRIMARY KEY, name TEXT UNIQUE, body BLOB)')
        connection.executemany(
            'INSERT INTO "my files" (name, body) VALUES (?, ?)', [(f"é{i}", b"%d" % i) for i in range(100)]
        )
        connection.commit()
        engine = SqliteEngine(connection, "my files", key="name", value="body", text=True)
        with open_guard(engine, tmp_path / "g") as guard:
            assert guard["é7"] == b"7"
            guard["ü"] = b"new"
            guard["é7"] = b"changed"
            assert guard.delete("é8")
            assert guard.get(b"\xff\xfe") is None
            assert engine.get(b"\xff\xfe") is None
            assert guard.verify() == type(guard.verify())(100, 0, 0)
        rows = dict(connection.execute('SELECT name, body FROM "my files"'))
        assert (rows["ü"], rows["é7"], "é8" in rows) == (b"new", b"changed", False)


@pytest.mark.parametrize(
    ("statements", "text", "error"),
    [
        (["PRAGMA encoding = 'UTF-16le'", "CREATE TABLE t (key TEXT PRIMARY KEY, value)"], True, "UTF-8.*UTF-16le"),
        (["CREATE TABLE t (key INTEGER PRIMARY KEY, value)"], True, "TEXT, found INTEGER"),
        (["CREATE TABLE t (key REAL PRIMARY KEY, value)"], True, "TEXT, found REAL"),
        (["CREATE TABLE t (key DATE PRIMARY KEY, value)"], False, "BLOB, found DATE; keep"),
        (["CREATE TABLE t (key VARCHAR(9) PRIMARY KEY, value)"], False, "BLOB, found VARCHAR.*text=True"),
        (["CREATE TABLE t (key TEXT COLLATE NOCASE PRIMARY KEY, value)"], True, "BINARY collation, found NOCASE"),
        (["CREATE TABLE t (key TEXT COLLATE RTRIM UNIQUE, value)"], True, "BINARY collation, found RTRIM"),
        (["CREATE TABLE t (key TEXT, value, PRIMARY KEY (key, value))"], True, "found none"),
        (["CREATE TABLE t (key TEXT, value)", "CREATE UNIQUE INDEX i ON t (key) WHERE value"], True, "found none"),
        (["CREATE TABLE t (name TEXT PRIMARY KEY, value)"], True, "column 'key', found name, value"),
        (["CREATE TABLE t (key TEXT PRIMARY KEY, body)"], True, "column 'value', found key, body"),
    ],
)
def test_sqlite_table_whose_keys_are_not_bytes_is_refused(statements, text, error):
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)
        with pytest.raises(StoreError, match=error):
            SqliteEngine(connection, "t", text=text)


@pytest.mark.parametrize(
    ("statements", "text"),
    [
        (["PRAGMA encoding = 'UTF-16le'", "CREATE TABLE t (key BLOB PRIMARY KEY, value)"], False),
        (["CREATE TABLE t (KEY PRIMARY KEY, value)"], False),
        (["CREATE TABLE t (key PRIMARY KEY, value)"], True),
        (["CREATE TABLE t (value, key VARCHAR(9) PRIMARY KEY)"], True),
        (["CREATE TABLE t (key TEXT COLLATE NOCASE, value)", "CREATE UNIQUE INDEX i ON t (key COLLATE BINARY)"], True),
        (["CREATE TABLE t (value PRIMARY KEY, key TEXT UNIQUE) WITHOUT ROWID"], True),
    ],
)
def test_sqlite_table_whose_keys_are_bytes_is_taken(tmp_path, statements, text):
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)
        engine = SqliteEngine(connection, "t", text=text)
        with open_guard(engine, tmp_path) as guard:
            keys = [b"b", b"B", b"a", b"A ", b"A", b"_"]
            guard.update((key, b"%d" % i) for i, key in enumerate(keys))
            assert guard.get_many(keys) == [b"%d" % i for i in range(len(keys))]
            assert list(guard) == sorted(keys)
            assert list(guard.keys(start=b"B")) == sorted(keys)[2:]
            assert guard.delete(b"b")
            assert guard.get(b"B") == b"1"
            assert guard.verify() == type(guard.verify())(5, 0, 0)


def test_plyvel_order_of_its_own_counts_as_none(tmp_path):
    plyvel = pytest.importorskip("plyvel")
    backwards = {"comparator": lambda a, b: (a < b) - (a > b), "comparator_name": b"backwards"}
    with contextlib.closing(plyvel.DB(str(tmp_path / "data"), create_if_missing=True, **backwards)) as database:
        engine = LevelEngine(database)
        assert not engine.ordered
        assert not LevelEngine(database.prefixed_db(b"mine ")).ordered
        with open_guard(engine, tmp_path / "g") as guard:
            guard.update((b"%03d" % i, b"") for i in range(100, 200))
            builder = peek.commits(guard).new_builder(generations.new_filter("auto", 1000, 0.01, peek.secret(guard)))
            peek.commits(guard).step(builder, 50)
            guard[b"199a"] = b""  # behind the walk, in this order
            while not builder.done:
                peek.commits(guard).step(builder, 50)
            peek.commits(guard).switch(builder)
            assert guard.verify() == type(guard.verify())(101, 0, 0)
            assert sorted(guard.keys(start=b"150", stop=b"160")) == [b"%03d" % i for i in range(150, 160)]


def test_sqlite_open_transaction_is_refused(tmp_path):
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "db")) as connection,
        open_guard(SqliteEngine(connection, "pairs"), tmp_path / "g") as guard,
    ):
        guard[b"a"] = b"1"
        connection.execute("INSERT INTO pairs VALUES (x'62', x'31')")
        for change in (lambda: guard.put(b"c", b"1"), lambda: guard.delete(b"a")):
            with pytest.raises(StoreError, match="open transaction"):
                change()
        connection.rollback()
        guard[b"c"] = b"1"
        assert guard.verify() == type(guard.verify())(2, 0, 0)


def in_thread(act):
    """What a function returns, or the exception it ends with, in another thread."""
    done = []

    def run():
        try:
            done.append(act())
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return done[0]


@pytest.mark.parametrize("why", ["check_same_thread", "threadsafety"])
def test_sqlite_connection_of_one_thread_is_told_at_once_and_where_it_fails(tmp_path, caplog, monkeypatch, why):
    if why == "threadsafety":
        monkeypatch.setattr(sqlite3, "threadsafety", 0)
    connection = sqlite3.connect(tmp_path / "db", check_same_thread=why == "check_same_thread")
    with contextlib.closing(connection):
        engine = SqliteEngine(connection, "pairs")
        assert "serves this thread only" in caplog.text
        assert "check_same_thread=False" in caplog.text
        with open_guard(engine, tmp_path / "g") as guard:
            guard.update((key, b"1") for key in KEYS)
            sure = [key for key in ABSENT if guard.ledger.ask(key) == 0]
            assert in_thread(lambda: guard.get(sure[0])) is None
            for act in (
                lambda: guard.get(KEYS[0]), lambda: guard.get_many(KEYS), lambda: guard.put(sure[0], b"1"),
                lambda: guard.delete(KEYS[0]), guard.verify, guard.rebuild, lambda: list(guard),
            ):  # fmt: skip
                error = in_thread(act)
                assert isinstance(error, StoreError)
                assert "connect with check_same_thread=False" in str(error)
            assert guard.get(sure[0]) is None
            guard[sure[1]] = b"1"  # settles what the other thread has left
            assert guard.verify() == type(guard.verify())(len(KEYS) + 1, 0, 0)


def test_sqlite_connection_of_all_threads_is_shared(tmp_path, caplog):
    with contextlib.closing(sqlite3.connect(tmp_path / "db", check_same_thread=False)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        engine = SqliteEngine(connection, "pairs")
        assert not caplog.text
        with open_guard(engine, tmp_path / "g") as guard:
            guard.update((key, b"0") for key in KEYS)
            failed = []

            def work(seed):
                rng = random.Random(seed)
                try:
                    for i in range(50):
                        key = rng.choice(KEYS[seed::4])
                        guard[key] = b"%d" % i
                        if guard.get(key) != b"%d" % i or sum(1 for _ in guard.keys(prefix=key)) < 1:
                            failed.append(key)
                except Exception as error:
                    failed.append(error)

            threads = [threading.Thread(target=work, args=[seed]) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failed == []
            assert guard.verify().ok


def test_sqlite_change_that_is_undone_is_seen_by_no_thread(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "db", check_same_thread=False)) as connection:
        engine = SqliteEngine(connection, "pairs")
        engine.put(b"a", b"old")
        seen = []
        reader = threading.Thread(target=lambda: seen.append(engine.get(b"a")))

        def pairs():
            yield b"a", b"new"
            yield b"b", b"new"
            reader.start()
            reader.join(0.2)  # as long as it may take; it waits for its turn
            raise OSError("no more")

        with pytest.raises(OSError, match="no more"):
            engine.put_many(pairs())
        reader.join()
        assert seen == [b"old"]


def test_sqlite_autocommit_connection_works(tmp_path):
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as connection,
        open_guard(SqliteEngine(connection, "pairs"), tmp_path / "g") as guard,
    ):
        guard.update({b"a": b"1", b"b": b"2"})
        del guard[b"a"]
        assert guard.verify() == type(guard.verify())(1, 0, 0)


def test_lmdb_order_of_its_own_counts_as_none_and_several_values_are_refused(tmp_path):
    with lmdb.open(str(tmp_path / "data"), max_dbs=3, map_size=1 << 26, sync=False) as env:
        with pytest.raises(StoreError, match="dupsort"):
            LmdbEngine(env, env.open_db(b"several", dupsort=True))
        assert not LmdbEngine(env, env.open_db(b"numbers", integerkey=True)).ordered
        engine = LmdbEngine(env, env.open_db(b"backwards", reverse_key=True))
        assert not engine.ordered
        with open_guard(engine, tmp_path / "g") as guard:
            guard.update((b"%03d" % i, b"") for i in range(100, 200))
            builder = peek.commits(guard).new_builder(generations.new_filter("auto", 1000, 0.01, peek.secret(guard)))
            peek.commits(guard).step(builder, 50)
            guard[b"9990"] = b""  # behind the walk, in this order
            while not builder.done:
                peek.commits(guard).step(builder, 50)
            peek.commits(guard).switch(builder)
            assert guard.verify() == type(guard.verify())(101, 0, 0)
            assert sorted(guard.keys(start=b"150", stop=b"160")) == [b"%03d" % i for i in range(150, 160)]


def test_lmdb_environment_stays_its_programs(tmp_path):
    with lmdb.open(str(tmp_path / "data"), max_dbs=2, map_size=1 << 26) as env:
        db = env.open_db(b"names")
        with env.begin(write=True, db=db) as txn:
            txn.put(b"a", b"1")
        with open_guard(LmdbEngine(env, db), tmp_path / "g") as guard:
            assert guard[b"a"] == b"1"
            guard[b"b"] = b"2"
            with pytest.raises(lmdb.BadValsizeError):
                guard[b"x" * 600] = b"too long for LMDB"
            with pytest.raises(lmdb.BadValsizeError):
                guard[b""] = b"1"
            assert guard.verify().ok
        with env.begin(db=db) as txn:
            assert dict(txn.cursor()) == {b"a": b"1", b"b": b"2"}


# --- redis


@pytest.fixture(scope="module")
def redis_folder():
    with guard_engines.running("redis") as folder:
        yield folder


@pytest.fixture
def client(redis_folder):
    guard_engines.clear("redis", redis_folder)
    with guard_engines.opened("redis", redis_folder) as client:
        yield client


def n_commands(client):
    return client.info("stats")["total_commands_processed"]


def test_redis_absent_keys_save_the_round_trip(client, tmp_path):
    with open_guard(client, tmp_path) as guard:
        guard.update((key, b"1") for key in KEYS)
        sure = [key for key in ABSENT if guard.ledger.ask(key) == 0]
        before = n_commands(client)
        assert [guard.get(key) for key in sure] == [None] * len(sure)
        assert guard.get_many(sure) == [None] * len(sure)
        assert guard.delete_many(sure) == 0
        assert n_commands(client) - before == 1  # the question itself
        before = n_commands(client)
        assert guard.get_many([*sure, *KEYS[:7]])[-7:] == [b"1"] * 7
        assert n_commands(client) - before == 8  # only keys that may be there cross the network


def test_redis_expired_keys_become_extra_and_nothing_is_missed(client, tmp_path):
    def expire():
        client.pexpire(b"short", 1)
        while client.exists(b"short"):
            pass

    with open_guard(client, tmp_path) as guard:
        guard.update({b"short": b"1", b"long": b"1"})
        expire()
        assert guard.get(b"short") is None
        assert not guard.delete(b"short")
        found = guard.verify()
        assert (found.missing, found.extra) == (0, 1)
        for i in range(12):  # comes back and expires, over and over: more entries than one place has room for
            guard[b"short"] = b"%d" % i
            assert guard.get(b"short") == b"%d" % i
            expire()
        guard[b"short"] = b"2"
        assert guard.get(b"short") == b"2"
        assert guard.get(b"long") == b"1"
        assert guard.verify().missing == 0
        guard.rebuild()
        assert guard.verify().ok


def test_redis_prefix_keeps_to_its_own_keys(client, tmp_path):
    client.set(b"other", b"1")
    client.lpush(b"list", b"1")
    prefix = b"mine*[1]-\\:"
    client.set(prefix + b"there", b"1")
    client.set(b"mineXX1Y", b"1")
    with open_guard(RedisEngine(client, prefix), tmp_path) as guard:
        guard[b"a"] = b"2"
        assert sorted(guard) == [b"a", b"there"]
        assert guard.verify() == type(guard.verify())(2, 0, 0)
        assert len(guard) == 2
        guard.clear()
    assert sorted(client.keys()) == [b"dlbf:guards", b"list", b"mineXX1Y", b"other"]


def test_redis_client_that_decodes_is_refused():
    redis = pytest.importorskip("redis")
    with pytest.raises(TypeError, match="decode_responses"):
        RedisEngine(redis.Redis(decode_responses=True))


def test_redis_started_anew_is_noticed(tmp_path):
    redis = pytest.importorskip("redis")
    from support import valkey

    with valkey.Server() as server:
        with redis.Redis(host="127.0.0.1", port=server.port) as client, open_guard(client, tmp_path) as guard:
            guard[b"a"] = b"1"
        server.kill()
        assert server.start()  # on the same port
        with redis.Redis(host="127.0.0.1", port=server.port) as client:
            client.set(b"b", b"restored")  # as from a snapshot that the guard never saw
            with open_guard(client, tmp_path, attach=False) as guard:
                assert guard.state == "pass-through"
                assert guard.get(b"b") == b"restored"
            with open_guard(client, tmp_path) as guard:
                assert guard.state == "filtering"
                assert guard.get(b"b") == b"restored"
                assert guard.verify().ok


def test_redis_cluster_scan_that_slots_moved_under_is_refused(client, tmp_path, monkeypatch):
    engine = RedisEngine(client)
    slots = iter(range(10))
    monkeypatch.setattr(engine, "_slots", lambda: next(slots))
    with pytest.raises(StoreError, match="slots moved"):
        Guard(engine, tmp_path, sync="none")
    monkeypatch.setattr(engine, "_slots", lambda: None)
    with open_guard(engine, tmp_path) as guard:
        assert guard.state == "filtering"


# --- two directories before one server


class FakeServer:
    """What a RedisEngine asks of a client, in memory; ``refuses`` are commands that fail."""

    class ResponseError(Exception):
        pass

    def __init__(self):
        self.strings, self.hashes, self.run_id, self.refuses = {}, {}, "1", ()
        self.n_commands = 0

    def _command(self, name):
        self.n_commands += 1
        if name in self.refuses:
            raise self.ResponseError(f"READONLY You can't {name} against a read only replica.")

    def get_encoder(self):
        return type("Encoder", (), {"decode_responses": False})

    def get(self, key):
        self._command("get")
        assert key not in self.hashes, "WRONGTYPE"
        return self.strings.get(key)

    def set(self, key, value):
        self._command("set")
        self.hashes.pop(key, None)
        self.strings[key] = value

    def exists(self, key):
        return int(key in self.strings or key in self.hashes)

    def delete(self, key):
        return len([each.pop(key) for each in (self.strings, self.hashes) if key in each])

    def hget(self, key, field):
        return self.hashes.get(key, {}).get(field)

    def hgetall(self, key):
        return dict(self.hashes.get(key, {}))

    def hsetnx(self, key, field, value):
        self._command("hsetnx")
        fields = self.hashes.setdefault(key, {})
        return int(fields.setdefault(field, value) is value)

    def hdel(self, key, field):
        self.hashes.get(key, {}).pop(field, None)

    def flushall(self):
        self.strings.clear()
        self.hashes.clear()

    def scan_iter(self, match, count):
        begins = b"" if match is None else match.replace(b"\\", b"")[:-1]
        return iter([key for key in (*self.strings, *self.hashes) if key.startswith(begins)])

    def dbsize(self):
        return len(self.strings) + len(self.hashes)

    def info(self, section):
        return {"run_id": self.run_id}

    def pipeline(self, transaction):
        server, answers = self, []

        class Pipeline:
            def __getattr__(self, name):
                return lambda *arguments: answers.append(getattr(server, name)(*arguments))

            def execute(self):
                return answers

        return Pipeline()


class FakeEngine(RedisEngine):
    def __init__(self, client, prefix=b""):
        super().__init__(client, prefix)
        self._refusals = (FakeServer.ResponseError,)


@pytest.fixture(params=["fake", "redis", "redis-cluster"])
def server(request):
    """A server, and what makes the engine of a client of it."""
    if request.param == "fake":
        yield FakeServer(), FakeEngine
        return
    with guard_engines.running(request.param) as folder, guard_engines.opened(request.param, folder) as client:
        yield client, RedisEngine


OTHERS = "belong to the guard directory"


def test_second_directory_before_one_server_is_refused_until_it_is_released(server, tmp_path):
    client, engine = server
    with open_guard(engine(client), tmp_path / "a") as a:
        a.update((key, b"1") for key in KEYS[:20])
        with pytest.raises(StoreError, match=OTHERS) as error:
            open_guard(engine(client), tmp_path / "b")
        for part in (str(tmp_path / "a"), "dlbf:guards", "RedisEngine(client, prefix=b'').release()"):
            assert part in str(error.value)
        a[b"more"] = b"1"  # as before
        assert (a.state, len(a), a.verify().ok) == ("filtering", 21, True)
        assert b"dlbf:guards" not in list(a)
    # Reading is harmless: past the filter.
    with pytest.raises(StoreError, match=OTHERS):
        open_guard(engine(client), tmp_path / "b", attach=False)
    with open_guard(engine(client), tmp_path / "b", readonly=True) as b:
        assert b.state == "pass-through"
        assert OTHERS in b.stats().reason
        assert b.get(b"more") == b"1"
    with open_guard(engine(client), tmp_path / "a", attach=False) as a:
        assert a.state == "filtering"  # nothing was read again
        with pytest.raises(StoreError, match=OTHERS):
            open_guard(engine(client), tmp_path / "b")
    engine(client).release()
    with open_guard(engine(client), tmp_path / "b") as b:
        assert b.get_many([b"more", *KEYS[:20]]) == [b"1"] * 21
        b[b"b"] = b"1"
        assert b.verify().ok
    with pytest.raises(StoreError, match=OTHERS):
        open_guard(engine(client), tmp_path / "a")
    engine(client).release()
    with open_guard(engine(client), tmp_path / "a") as a:  # what others have stored meanwhile is read
        assert a.get(b"b") == b"1"
        assert a.verify().ok


def test_moved_directory_is_the_same_and_a_copied_one_is_not(tmp_path):
    client = FakeServer()
    with open_guard(FakeEngine(client), tmp_path / "a") as a:
        a[b"k"] = b"1"
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    (tmp_path / "a").rename(tmp_path / "moved")
    with open_guard(FakeEngine(client), tmp_path / "moved", attach=False) as moved:
        assert moved.state == "filtering"
    with pytest.raises(StoreError, match=OTHERS):
        open_guard(FakeEngine(client), tmp_path / "copy")
    # Damage of the log does not change whose keys they are.
    (tmp_path / "moved" / "guard.log").write_bytes(b"nonsense")
    with open_guard(FakeEngine(client), tmp_path / "moved") as moved:
        assert moved.get(b"k") == b"1"
        assert moved.verify().ok


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [(b"", b"", True), (b"", b"u:", True), (b"u:", b"", True), (b"u:", b"u:1", True), (b"u:", b"v:", False)],
)
def test_prefixes_clash_if_one_begins_the_other(tmp_path, first, second, clash):
    client = FakeServer()
    with open_guard(FakeEngine(client, first), tmp_path / "a") as a:
        a[b"k"] = b"1"
        if clash:
            for _ in range(2):
                with pytest.raises(StoreError, match=OTHERS):
                    open_guard(FakeEngine(client, second), tmp_path / "b")
            assert list(client.hashes[b"dlbf:guards"]) == [first]  # the refused one left no note
            a.rebuild()
        else:
            open_guard(FakeEngine(client, second), tmp_path / "b").close()
    # The same directory with another prefix reads other keys.
    with open_guard(FakeEngine(client, first + b"2"), tmp_path / "a", attach=False) as a:
        assert a.state == "pass-through"


@pytest.mark.parametrize("restart", [False, True])
def test_flushed_server_is_claimed_anew_and_whoever_comes_first_has_it(tmp_path, restart):
    client = FakeServer()
    a = open_guard(FakeEngine(client), tmp_path / "a")
    a[b"old"] = b"1"
    client.flushall()
    if restart:
        a.close()
        a = open_guard(FakeEngine(client), tmp_path / "a", attach=False)
        assert a.state == "pass-through"  # its keys may be others
        a.attach()
        assert a.verify().ok
    a[b"new"] = b"1"
    with pytest.raises(StoreError, match=OTHERS):
        open_guard(FakeEngine(client), tmp_path / "b")
    # Somebody else comes first: noticed by the next write, and nothing is denied from then on.
    client.flushall()
    with open_guard(FakeEngine(client), tmp_path / "b") as b, a:
        b[b"b"] = b"1"
        n_strings = 0
        for _ in range(3):
            with pytest.raises(StoreError, match=OTHERS):
                a[b"a"] = b"1"
            n_strings = n_strings or len(client.strings)
            assert len(client.strings) == n_strings  # the first write told, the next were not sent
        assert a.state == "pass-through"
        assert (a.get(b"b"), a.get(b"new")) == (b"1", None)
        with pytest.raises(StoreError, match=OTHERS):
            a.rebuild()
        assert b.get(b"b") == b"1"
        assert b.state == "filtering"


def test_server_that_cannot_be_written_is_refused_and_can_be_read(tmp_path):
    client = FakeServer()
    with open_guard(FakeEngine(client), tmp_path / "a") as a:
        a[b"k"] = b"1"
    client.flushall()
    client.set(b"k", b"1")
    client.refuses = ("hsetnx", "set")
    with pytest.raises(StoreError, match=r"refuses to note .* READONLY .* readonly=True"):
        open_guard(FakeEngine(client), tmp_path / "a")
    with open_guard(FakeEngine(client), tmp_path / "a", readonly=True) as a:
        assert a.get(b"k") == b"1"


def test_two_openers_at_once_are_never_both_let_in(tmp_path):
    """Whoever notes its directory first has the server, in whatever order the commands come."""
    client = FakeServer()
    turn = threading.Barrier(2)
    found = client.hgetall

    def hgetall(key):
        with contextlib.suppress(threading.BrokenBarrierError):
            turn.wait(5)  # both have noted, or tried to
        return found(key)

    client.hgetall = hgetall
    outcomes = []

    def run(name, prefix):
        try:
            with open_guard(FakeEngine(client, prefix), tmp_path / name):
                outcomes.append("open")
        except StoreError as error:
            outcomes.append("refused" if OTHERS in str(error) else error)
        turn.abort()

    threads = [threading.Thread(target=run, args=each) for each in (("a", b""), ("b", b""))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["open", "refused"]


def test_reserved_key_is_absent_and_is_not_stored(server, tmp_path):
    client, engine = server
    for prefix in (b"", b"dlbf:"):
        engine(client).release()
        engine(client, b"dlbf:").release()
        key = b"dlbf:guards"[len(prefix) :]
        with open_guard(engine(client, prefix), tmp_path / prefix.hex()) as guard:
            guard[b"other"] = b"1"
            bare = guard.engine
            assert (bare.get(key), bare.has(key), bare.delete(key)) == (None, False, None)
            assert bare.get_many([key, b"other"]) == [None, b"1"]
            assert bare.has_many([key, b"other"]) == [False, True]
            assert bare.delete_many([key, b"absent"]) == [False, False]
            for put in (lambda: guard.put(key, b"1"), lambda: guard.update({b"x": b"1", key: b"1"})):  # noqa: B023
                with pytest.raises(StoreError, match="reserved"):
                    put()
            assert (guard.get(key), key in guard, guard.delete(key)) == (None, False, False)
            assert guard.state == "filtering"
            assert list(guard) == [b"other"]
            assert len(guard) == 1
            guard.clear()
            assert client.exists(b"dlbf:guards")


def test_directory_of_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "CURRENT").write_text("MANIFEST")
    with pytest.raises(StoreError, match="directory of its own"):
        Guard({}, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["CURRENT"]
    with pytest.raises(StoreError, match="found a file"):
        Guard({}, tmp_path / "CURRENT")


@pytest.mark.parametrize("fpr", ["1%", 0, 1, -0.5])
def test_bad_rate_is_refused_before_anything_is_made(tmp_path, fpr):
    with pytest.raises(ValueError, match="number between 0 and 1"):
        Guard({}, tmp_path / "guard", fpr=fpr)
    assert not list(tmp_path.iterdir())


# --- the bench


def test_bench_beside_rocksdb_gives_its_figures_and_leaves_no_files(tmp_path):
    pytest.importorskip("rocksdict")
    from dlbf.bench import guard as section

    figures = section.against_rocksdb(2000, 500, 2, tmp_path)
    assert section.bar(figures).at_least == section.AT_LEAST
    assert not list(tmp_path.iterdir())
