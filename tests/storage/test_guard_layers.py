"""Guards whose filter has layers: which engines allow it, and every way in which a key could be denied.

Random operations before every engine are in ``test_guard_stateful.py``, kills in ``test_guard_kill.py``, races in
``test_guard_layer_races.py``.
"""

import contextlib
import dbm.dumb
import random
import shelve
import sqlite3
import threading

import pytest
from support import guard_engines, peek
from support.replica import Replica

from dlbf.errors import StoreError
from dlbf.filters.layered import LayeredFilter
from dlbf.kernels.ledger import ABSENT, MAYBE
from dlbf.storage import Guard, build, layers
from dlbf.storage.engines import Adapter, DbmEngine, RedisEngine, RocksEngine, SqliteEngine, engine_for
from dlbf.storage.engines.base import why_tables
from dlbf.storage.engines.mapping import MappingEngine

FEW = 8


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Every filter has layers."""
    monkeypatch.setattr(layers, "LEAST_KEYS", FEW)


class Slow(MappingEngine):
    """A dict whose writes wait until they may go on; and which shows whoever calls it to ``watch``."""

    def __init__(self, pairs=()):
        super().__init__(dict(pairs))
        self._identity = b"the one"
        self.arrived = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.watch = lambda what: None
        self.fail = False

    def put(self, key, value):
        self.arrived.set()
        self.watch("put")
        assert self.go_on.wait(30)
        if self.fail:
            raise OSError("no room")
        super().put(key, value)

    def delete(self, key):
        self.arrived.set()
        self.watch("delete")
        assert self.go_on.wait(30)
        super().delete(key)

    def has_many(self, keys):
        if self.fail:
            raise OSError("no answer")
        return super().has_many(keys)

    @contextlib.contextmanager
    def held(self, change):
        """While the engine is in the middle of a change, which a thread makes."""
        self.arrived.clear()
        self.go_on.clear()
        thread = threading.Thread(target=change)
        thread.start()
        try:
            assert self.arrived.wait(30)
            yield
        finally:
            self.go_on.set()
            thread.join()


def filled(path, engine=None, n_keys=200, **options):
    """A guard with layers, whose filter lets a third of all keys pass."""
    engine = engine if engine is not None else Slow()
    options = {"sync": "none", "fpr": 0.3, "keyed": False, **options}
    guard = Guard(engine, path, **options)
    guard.update({b"k%d" % i: b"v" for i in range(n_keys)})
    guard.rebuild(design="layers", model=None)
    assert isinstance(guard.ledger.filter, LayeredFilter)
    return guard


def passing(guard, n=1, prefix=b"absent "):
    """Absent keys that the filter lets pass."""
    found = [key for i in range(1000) if (key := prefix + b"%d" % i) in guard.ledger.filter]
    assert len(found) >= n
    return found[:n]


def denied(guard, n=1):
    """Keys that the filter does not let pass: to put one changes the tables."""
    return [key for i in range(1000) if (key := b"other %d" % i) not in guard.ledger.filter][:n]


def known(guard, key):
    """Whether a key is known to be absent."""
    return key in guard.ledger.filter.absent


# --- what is remembered


def test_a_false_positive_costs_one_read(tmp_path):
    with filled(tmp_path) as guard:
        for key in passing(guard, 20):
            before = guard.stats()
            assert [guard.get(key) for _ in range(5)] == [None] * 5
            after = guard.stats()
            assert after.false_positives - before.false_positives == 1
            assert after.remembered - before.remembered == 4
        assert after.layers.absent_keys == 20
        assert after.needless_reads.total == after.false_positives
        assert guard.get_many(passing(guard, 5, b"many ")) == [None] * 5
        assert guard.stats().layers.absent_keys == 25


def test_a_deleted_key_comes_back(tmp_path):
    with filled(tmp_path) as guard:
        guard.get(passing(guard)[0])  # there is room to remember deleted keys in
        for _ in range(3):
            del guard[b"k5"]
            assert guard.get(b"k5") is None
            assert known(guard, b"k5")
            guard[b"k5"] = b"back"
            assert guard.get(b"k5") == b"back"
            assert not known(guard, b"k5")
        assert guard.verify().ok


def test_nothing_is_remembered_with_a_limit_of_nothing(tmp_path):
    with filled(tmp_path, remember_bytes=0) as guard:
        (key,) = passing(guard)
        assert guard.get(key) is guard.get(key) is None
        assert guard.stats().false_positives == 2
    with pytest.raises(ValueError, match="remember_bytes"):
        Guard({}, tmp_path, remember_bytes=-1)


# --- a key that is announced, and not stored yet


@pytest.mark.parametrize("passes", [True, False])
def test_a_key_that_is_being_stored_is_not_remembered_as_absent(tmp_path, passes):
    # The record is in the log, every process has followed it, the engine does not have the key yet.
    with filled(tmp_path) as guard:
        key = (passing if passes else denied)(guard)[0]
        replica = Replica(guard)
        with guard.engine.held(lambda: guard.put(key, b"v")):
            assert replica.get(key) is None
            assert guard.get(key) is None
            assert guard.get_many([key]) == [None]
            assert not replica.knows(key)
            assert not known(guard, key)
        assert replica.get(key) == guard.get(key) == b"v"
        assert guard.verify().ok


def test_without_the_note_it_would_be_denied(tmp_path):
    # The same, but for a reader that does not look at the note: why it has to.
    with filled(tmp_path) as guard:
        (key,) = passing(guard)
        replica = Replica(guard)
        with guard.engine.held(lambda: guard.put(key, b"v")):
            assert replica.ask(key) == MAYBE
            replica.ledger.remember(key, replica.ledger.epoch)
        assert replica.get(key) is None
        assert guard.get(key) == b"v"


def test_a_note_that_was_looked_at_before_the_position_says_nothing(tmp_path):
    with filled(tmp_path) as guard:
        (key,) = passing(guard)
        replica = Replica(guard)
        assert replica.ask(key) == MAYBE
        before = replica.ledger.moment()
        with guard.engine.held(lambda: guard.put(key, b"v")):
            assert replica.ask(key) == MAYBE  # it follows the record
            assert guard.source.fetch(key) is None
            replica.ledger.remember(key, before)
            assert not replica.knows(key)
            # With that look, and the position of now:
            assert replica.ledger.moment() == 0 < before < replica.ledger.epoch
        assert replica.get(key) == b"v"


def test_what_was_read_before_a_put_is_not_entered_after_it(tmp_path):
    with filled(tmp_path) as guard:
        (key,) = passing(guard)
        replica = Replica(guard)
        assert replica.ask(key) == MAYBE
        moment = replica.ledger.moment()
        assert moment
        assert guard.source.fetch(key) is None
        guard[key] = b"v"
        replica.ledger.remember(key, moment)  # it has not seen the record
        assert not replica.knows(key)
        assert replica.ask(key) == MAYBE
        replica.ledger.remember(key, moment)  # and now it has
        assert replica.get(key) == b"v"


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("due", ["", "checkpoint", "growth"])
@pytest.mark.parametrize("sync", ["none", "full"])
def test_something_is_noted_while_the_engine_is_written(tmp_path, monkeypatch, quick, due, sync):
    with filled(tmp_path, sync=sync) as guard:
        others = iter(denied(guard, 300))
        seen = []
        replica = Replica(guard)

        def watch(what):
            (key,) = passing(guard)
            guard.get(key)  # the engine may read through its guard
            replica.get(key)
            seen.append((what, guard.ledger.moment(), replica.ledger.moment(), known(guard, key), replica.knows(key)))

        def make_due():
            if due == "checkpoint":
                guard.ledger.log_limit = 0
            elif due == "growth":
                monkeypatch.setattr(guard.ledger, "has_room", lambda operations: False)

        def keys(n):
            out = [next(others) for _ in range(n)]
            return out if quick else [bytearray(key) for key in out]

        for change in (
            lambda: guard.put(keys(1)[0], b"v"),
            lambda: guard.update([(key, b"v") for key in keys(5)]),
            lambda: guard.setdefault(keys(1)[0], b"v"),
            lambda: guard.delete(b"k1"),
            lambda: guard.delete_many([b"k2", b"k3"]),
        ):
            make_due()
            guard.engine.watch = watch
            change()
            guard.engine.watch = lambda what: None
            assert guard.ledger.state() == ("filtering", "")
            assert guard.ledger.moment() != 0
        assert len(seen) == 10
        for what, moment, other, *entered in seen:
            assert (moment, other, *entered) == (0, 0, False, False), what
        assert guard.verify().ok


def test_nothing_is_remembered_beside_the_note_of_a_dead_writer(tmp_path):
    with filled(tmp_path) as guard:
        key, other = passing(guard, 2)
        guard.engine.fail = True
        with pytest.raises(OSError, match="no room"):
            guard[other] = b"v"
        # The engine cannot say what became of it: the note stays.
        assert guard.get(key) is None
        assert not known(guard, key)
        guard.engine.fail = False
        guard[b"k1"] = b"w"
        guard[b"k1".upper()] = b"w"
        assert guard.get(key) is None
        assert known(guard, key)
        assert guard.get(other) is None
        guard[other] = b"v"
        assert guard.get(other) == b"v"
        assert guard.verify().ok


# --- jumps, deletes, damage


@pytest.mark.parametrize("act", ["checkpoint", "rebuild", "forget"])
def test_what_is_remembered_ends_with_the_filter_that_it_was_remembered_for(tmp_path, act):
    with filled(tmp_path) as guard:
        replica = Replica(guard)
        wanted = passing(guard, 10)
        for reader in (guard, replica):
            assert [reader.get(key) for key in wanted] == [None] * 10
        moment = replica.ledger.moment()
        if act == "checkpoint":
            guard.checkpoint()
        elif act == "rebuild":
            guard.rebuild(design="layers", model=None)
        else:
            guard.ledger.drop()
            replica.ledger.drop()
        assert guard.get(b"k1") == replica.get(b"k1") == b"v"
        assert len(guard.ledger.filter.absent) == (10 if act == "checkpoint" else 0)
        assert len(replica.ledger.filter.absent) == (10 if act == "checkpoint" else 0)
        replica.ledger.remember(b"k2", moment)  # of another filter, or another file
        assert replica.get(b"k2") == b"v"
        for key in wanted:
            guard[key] = b"v"
        assert [replica.get(key) for key in wanted] == [guard.get(key) for key in wanted] == [b"v"] * 10
        assert guard.verify().ok


def test_a_remove_leaves_the_tables_alone_where_the_base_lets_the_key_pass(tmp_path):
    # x in the base, y added, x removed: y must stay.
    with filled(tmp_path) as guard:
        added = denied(guard, 60)
        guard.update((key, b"v") for key in added[:40])
        for i in range(200):
            guard.delete(b"k%d" % i)
            assert guard.get_many(added[:40]) == [b"v"] * 40
        assert guard.verify().ok


def test_verify_finds_a_key_that_is_wrongly_known_to_be_absent(tmp_path):
    with filled(tmp_path) as guard:
        guard.ledger.filter.remember(b"k4")
        found = guard.verify()
        assert (found.missing, found.examples) == (1, (b"k4",))
        guard.rebuild(model=None)
        assert guard.verify().ok


class LateMaking(layers.Making):
    """A base that takes some steps to be made."""

    n_asked = 0

    def ready(self, patience_seconds=0.0):
        self.n_asked += 1
        return super().ready(patience_seconds) if self.n_asked > 4 or patience_seconds is None else None


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_operations_beside_the_walk_are_not_lost(tmp_path, monkeypatch, ordered, seed):
    # Keys ahead of the walk, behind it, deleted and back again, also while the base is being made.
    monkeypatch.setattr(build, "Making", LateMaking)
    # No other base is begun meanwhile: the walk would begin again.
    monkeypatch.setattr(layers, "REBUILT_SHARE", 2)
    monkeypatch.setattr(layers, "GROWN_SHARE", 2)
    monkeypatch.setattr(layers, "DEAD_SHARE", 2)
    engine = Slow()
    engine.ordered = ordered
    if ordered:
        engine.scan = lambda start: iter(sorted(key for key in engine.mapping if key >= start))
    # Half of all keys pass, and many look alike in the tables.
    with filled(tmp_path, engine, 3000, fpr=0.5) as guard:
        commits = peek.commits(guard)
        builder = commits.new_builder(layers.next_gathering(guard.ledger.filter, 5000, 0.5, peek.secret(guard)))
        rng = random.Random(seed)
        live = {b"k%d" % i for i in range(3000)}

        def change():
            for key in rng.sample([b"k%d" % i for i in range(4000)], 40):
                if key in live:
                    del guard[key]
                else:
                    guard[key] = b""
                live.symmetric_difference_update([key])

        while not builder.done:
            commits.step(builder, 200)
            change()
        for _ in range(5):
            change()
        commits.switch(builder)
        assert builder.restarts == 0  # it would, too, where it cannot follow the log
        assert guard.ledger.filter.base_keys > 2000
        for _ in range(5):
            change()
        assert guard.ledger.filter.n_added > 30
        assert all(key in guard for key in live)
        assert set(guard.keys()) == live
        found = guard.verify()
        # Without order, what was deleted when it had been passed may be left over.
        assert found.ok or (not ordered and found.missing == 0), found


@pytest.mark.parametrize("ordered", [False, True])
def test_engine_and_log_agree_whenever_a_walk_looks(tmp_path, ordered):
    # Whoever reads the engine's keys is the writer, and nothing is noted: see the rules for p0 and p1.
    engine = Slow()
    engine.ordered = ordered
    looks = []

    def look():
        writes = peek.guarded(guard)
        file = writes.log.folder.newest_file()
        looks.append((writes.mutex.is_mine(), writes.lock_file.writer.taken, file.head.whole_note))

    def scan(start):
        for key in sorted(key for key in engine.mapping if not ordered or key >= start):
            look()
            yield key

    def has_many(keys):
        look()
        return [key in engine.mapping for key in keys]

    with filled(tmp_path, engine) as guard:
        engine.scan, engine.has_many = scan, has_many
        commits = peek.commits(guard)
        builder = commits.new_builder(layers.next_gathering(guard.ledger.filter, 200, 0.3, peek.secret(guard)))
        commits.step(builder, 100)
        for key in (b"k1", b"k199"):
            del guard[key]
        guard[b"l"] = b"v"
        looks.clear()
        commits.build(builder, 200, lambda done, total: None)
        commits.switch(builder)
        assert len(looks) >= 50
        assert set(looks) == {(True, True, 0)}
        assert guard.verify().missing == 0


def test_a_base_whose_file_is_damaged_is_made_again(tmp_path):
    engine = Slow()
    filled(tmp_path, engine).close()
    (path,) = tmp_path.glob("filter.*")
    blob = bytearray(path.read_bytes())
    rng = random.Random(1)
    for _ in range(12):
        at = rng.randrange(len(blob))
        path.write_bytes(blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :])
        with Guard(engine, tmp_path, sync="none", readonly=True) as guard:
            assert guard.state == "pass-through"
            assert guard.get_many([b"k%d" % i for i in range(200)]) == [b"v"] * 200
    path.unlink()
    with Guard(engine, tmp_path, sync="none") as guard:
        assert guard.stats().design == "layers"
        assert guard.verify().ok


def test_a_guard_with_tables_opens_as_it_is_and_gets_layers_when_it_is_rebuilt(tmp_path, monkeypatch):
    engine = Slow()
    with monkeypatch.context() as patch:
        patch.setattr(layers, "LEAST_KEYS", 1 << 40)
        with Guard(engine, tmp_path, sync="none") as guard:
            guard.update({b"k%d" % i: b"v" for i in range(200)})
            assert guard.stats().design == "cuckoo"
    with Guard(engine, tmp_path, sync="none") as guard:
        assert guard.stats().design == "cuckoo"
        assert guard.stats().layers is None
        report = guard.rebuild(model=None)
        assert guard.stats().design == report.design == "layers"
        assert guard.verify().ok
    with Guard(engine, tmp_path, sync="none") as guard:
        assert guard.stats().layers.base_keys == 200


def test_growing_and_shrinking_makes_bases_beside_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "LEAST_KEYS", 500)
    monkeypatch.setattr(layers, "THREAD_KEYS", 2000)
    with Guard(Slow(), tmp_path, sync="none", sample_misses=False) as guard:
        generations, worst = set(), 0.0
        for i in range(12_000):
            guard[b"key %d" % i] = b""
            if i % 500 == 0:
                stats = guard.stats()
                generations.add(stats.generation)
                assert stats.design == ("layers" if i > 1500 else stats.design)
                worst = max(worst, stats.bits_per_key if i > 5000 else 0)
        assert len(generations) > 5
        assert worst < 11
        assert guard.verify().missing == 0
        for i in range(11_900):
            del guard[b"key %d" % i]
        assert guard.stats().design == "cuckoo"
        assert all(b"key %d" % i in guard for i in range(11_900, 12_000))
        assert guard.verify().missing == 0


# --- engines


class Fresh(Adapter):
    """What somebody's own adapter may say."""

    def __init__(self, **words):
        self.pairs = {}
        for name, word in words.items():
            setattr(self, name, word)

    def get(self, key):
        return self.pairs.get(key)

    def put(self, key, value):
        self.pairs[key] = value

    def delete(self, key):
        self.pairs.pop(key, None)

    def scan(self, start):
        return iter(list(self.pairs))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"fresh": True, "in_flight": False}, ""),
        ({"in_flight": False}, "may miss"),
        ({"fresh": True}, "may arrive"),
        ({"fresh": True, "in_flight": False, "revives": True}, "again"),
        ({}, "may arrive"),
    ],
)
def test_the_adapter_decides_and_the_report_says_why(tmp_path, words, why):
    with Guard(Fresh(**words), tmp_path, sync="none", fpr=0.3) as guard:
        guard.update({b"k%d" % i: b"v" for i in range(200)})
        report = guard.rebuild(model=None)
        stats = guard.stats()
        assert (stats.layers is None) == bool(why)
        assert (stats.design, report.design) == (("cuckoo",) * 2 if why else ("layers",) * 2)
        assert any(why in note for note in report.notes)
        if why:
            with pytest.raises(StoreError, match=f"no layers here: .*{why}"):
                guard.rebuild(design="layers")
        assert guard.verify().ok


def test_a_layered_filter_that_the_engine_does_not_allow_any_more_remembers_nothing(tmp_path):
    engine = Fresh(fresh=True, in_flight=False)
    with Guard(engine, tmp_path, sync="none", fpr=0.3, keyed=False) as guard:
        guard.update({b"k%d" % i: b"v" for i in range(200)})
        guard.rebuild(design="layers", model=None)
    engine.fresh = False
    with Guard(engine, tmp_path, sync="none") as guard:
        assert guard.stats().design == "layers"
        (key,) = passing(guard)
        assert guard.get(key) is guard.get(key) is None
        assert guard.stats().false_positives == 2
        del guard[b"k1"]
        assert not known(guard, b"k1")
        assert guard.rebuild(model=None).design == "cuckoo"


def test_what_the_adapters_say(tmp_path):
    assert why_tables(engine_for({})) == ""
    with shelve.open(str(tmp_path / "shelf")) as shelf:
        assert "may miss" in why_tables(MappingEngine(shelf))
    with dbm.dumb.open(str(tmp_path / "dbm"), "c") as database:
        assert "may miss" in why_tables(DbmEngine(database))
    assert RedisEngine.in_flight
    for name in guard_engines.FRESH:
        with contextlib.suppress(pytest.skip.Exception), guard_engines.opened(name, tmp_path) as engine:
            assert why_tables(engine_for(engine)) == "", name


def test_a_secondary_rocksdb_lags_behind(tmp_path):
    rocksdict = pytest.importorskip("rocksdict")

    def opened(**options):
        raw = rocksdict.Options(raw_mode=True)
        return contextlib.closing(rocksdict.Rdict(str(tmp_path / "db"), raw, **options))

    with opened() as primary:
        assert why_tables(RocksEngine(primary)) == ""
        with opened(access_type=rocksdict.AccessType.secondary(str(tmp_path / "second"))) as secondary:
            primary[b"k"] = b"v"
            assert secondary.get(b"k") is None
            assert "may miss" in why_tables(RocksEngine(secondary))


def test_sqlite_with_a_write_ahead_log_may_read_an_older_moment(tmp_path):
    file = tmp_path / "db"
    with contextlib.closing(sqlite3.connect(file)) as one, contextlib.closing(sqlite3.connect(file)) as other:
        assert why_tables(SqliteEngine(one, "pairs")) == ""
        one.execute("PRAGMA journal_mode = WAL")
        writer, reader = SqliteEngine(one, "pairs"), SqliteEngine(other, "pairs")
        assert "may miss" in why_tables(writer)
        writer.put_many([(b"%d" % i, b"v") for i in range(5000)])
        keys = reader.scan(b"")
        next(keys)
        writer.put(b"new", b"v")
        # It is there, and a reader with a statement under way does not see it: why there is no remembering.
        assert writer.get(b"new") == b"v"
        assert reader.get(b"new") is None
        del keys
        assert reader.get(b"new") == b"v"


def test_sqlite_without_one_lets_nobody_write_beside_a_reader(tmp_path):
    file = tmp_path / "db"
    with (
        contextlib.closing(sqlite3.connect(file, timeout=0.1)) as one,
        contextlib.closing(sqlite3.connect(file)) as other,
    ):
        writer, reader = SqliteEngine(one, "pairs"), SqliteEngine(other, "pairs")
        writer.put_many([(b"%d" % i, b"v") for i in range(5000)])
        keys = reader.scan(b"")
        next(keys)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            writer.put(b"new", b"v")
        keys.close()
        del keys
        writer.put(b"new", b"v")
        assert reader.get(b"new") == b"v"


def test_the_filter_is_asked_at_the_newest_position_only(tmp_path):
    with filled(tmp_path) as guard:
        replica = Replica(guard)
        (key,) = passing(guard)
        assert replica.get(key) is None
        assert replica.ask(key) == ABSENT
        guard[key] = b"v"
        assert replica.ledger.ask(key) not in (ABSENT, MAYBE)
        assert replica.get(key) == b"v"


def test_the_base_is_in_the_file_that_processes_map(tmp_path):
    engine = Slow()
    with filled(tmp_path, engine, 5000) as guard:
        assert guard.stats().layers.shared  # who has made it maps it, too
        assert not (tmp_path / "base.shared").exists()
        replica = Replica(guard)
        assert replica.get(b"k1") == b"v"
        assert replica.ledger.settings.bases.has(replica.ledger.filter)
        # The file may be removed: what is mapped stays, and the next checkpoint writes another.
        (path,) = tmp_path.glob("filter.*")
        path.unlink()
        added = denied(guard, 50)
        guard.update((key, b"v") for key in added)
        assert guard.get_many([*added, b"k4999"]) == [b"v"] * 51
        assert [replica.get(key) for key in added] == [b"v"] * 50
        assert "cannot be read" in guard.verify().problems[0]
        guard.checkpoint()
        assert guard.verify().ok
        assert guard.stats().layers.shared
    with Guard(engine, tmp_path, sync="none") as guard:
        assert guard.get(b"k1") == b"v"
        assert guard.stats().layers.shared
        assert guard.verify().ok
