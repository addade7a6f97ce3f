"""Several guards, one engine: a second directory is refused where the engine's files can tell."""

import contextlib
import dbm
import errno
import fcntl
import gc
import json
import logging
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support import guard_engines

from dlbf.errors import StoreError
from dlbf.storage import Guard
from dlbf.storage.engines import DbmEngine, LevelEngine, LmdbEngine, SqliteEngine, engine_for, marks

LOCAL = guard_engines.LOCAL
KEYS = [b"key %d" % i for i in range(50)]
REFUSED = "belongs to the guard directory"


def open_guard(engine, path, **options):
    return Guard(engine, path, **{"sync": "none", **options})


@pytest.fixture(params=LOCAL)
def name(request):
    return request.param


def mark_of(engine):
    return engine_for(engine).place().path()


def change_mark(path, **fields):
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | fields))


def reads_keys(engine, path):
    """Whether opening a guard reads the engine's keys again."""
    with open_guard(engine, path, attach=False) as guard:
        return guard.state != "filtering"


def test_second_directory_is_refused_and_the_first_one_unharmed(name, tmp_path):
    with guard_engines.opened(name, tmp_path) as engine:
        with open_guard(engine, tmp_path / "a") as a:
            a.update(dict.fromkeys(KEYS, b"v"))
            with pytest.raises(StoreError, match=REFUSED) as error:
                open_guard(engine, tmp_path / "b")
            for part in (str(tmp_path / "a"), str(mark_of(engine)), "engine_for(engine).release()", "readonly=True"):
                assert part in str(error.value)
            a[b"more"] = b"v"
            assert a.verify().ok
        # A look at the keys, and at the files, shows nothing that was not stored.
        assert set(engine_for(engine).scan(b"")) == {*KEYS, b"more"}
    with guard_engines.opened(name, tmp_path) as engine:
        with pytest.raises(StoreError, match=REFUSED):
            open_guard(engine, tmp_path / "b")
        assert not reads_keys(engine, tmp_path / "a")
        with open_guard(engine, tmp_path / "a") as a:
            assert a.verify().ok


def test_second_directory_reads_without_its_filter(name, tmp_path):
    with open_guard({b"other": b"1"}, tmp_path / "b"):
        pass
    with guard_engines.opened(name, tmp_path) as engine, open_guard(engine, tmp_path / "a") as a:
        a.update(dict.fromkeys(KEYS, b"v"))
        with open_guard(engine, tmp_path / "b", readonly=True, sync="full") as b:
            assert b.state == "pass-through"
            assert REFUSED in b.stats().reason
            assert b.get_many([*KEYS, b"other"]) == [b"v"] * len(KEYS) + [None]


def test_directory_that_is_gone_leaves_the_engine_to_the_next(name, tmp_path, caplog):
    with guard_engines.opened(name, tmp_path) as engine:
        with open_guard(engine, tmp_path / "a") as a:
            a.update(dict.fromkeys(KEYS, b"v"))
        shutil.rmtree(tmp_path / "a")
        with caplog.at_level(logging.WARNING, "dlbf.storage"), open_guard(engine, tmp_path / "b") as b:
            assert b.verify().keys == len(KEYS)
            b[b"more"] = b"v"
        assert f"{tmp_path / 'a'} is gone" in caplog.text
        # At the same path, too; and the one in between comes too late.
        shutil.rmtree(tmp_path / "b")
        with open_guard(engine, tmp_path / "b") as b:
            assert (b.state, b.get(b"more")) == ("filtering", b"v")
        with pytest.raises(StoreError, match=REFUSED):
            open_guard(engine, tmp_path / "a")


def test_open_guard_keeps_its_engine_though_its_directory_is_gone(name, tmp_path, monkeypatch):
    monkeypatch.setattr(marks, "PATIENCE_SECONDS", 0.01)
    with guard_engines.opened(name, tmp_path) as engine:
        a = open_guard(engine, tmp_path / "a")
        shutil.rmtree(tmp_path / "a")
        with pytest.raises(StoreError, match="is open, in this process or another; close it first"):
            open_guard(engine, tmp_path / "b")
        with pytest.raises(StoreError, match="is open, in this process or another; close it first"):
            engine_for(engine).release()
        with contextlib.suppress(Exception):  # its files are gone
            a.close()
        with open_guard(engine, tmp_path / "b") as b:
            b[b"a"] = b"1"


def test_open_readonly_guard_keeps_its_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(marks, "PATIENCE_SECONDS", 0.01)
    with guard_engines.opened("sqlite3", tmp_path) as engine:
        with open_guard(engine, tmp_path / "a"):
            pass
        with open_guard(engine, tmp_path / "a", readonly=True, sync="full") as a:
            assert a.state == "filtering"
            with pytest.raises(StoreError, match="close it first"):
                engine_for(engine).release()
        engine_for(engine).release()
        with open_guard(engine, tmp_path / "a", readonly=True, sync="full") as a:
            assert a.state == "pass-through"  # another directory may have had the engine in between


def test_guard_that_is_collected_keeps_nothing(tmp_path):
    with guard_engines.opened("rocksdict", tmp_path) as engine:
        open_guard(engine, tmp_path / "a")
        gc.collect()
        engine_for(engine).release()
        with open_guard(engine, tmp_path / "b"):
            pass


def test_directory_of_another_host_keeps_its_engine_until_it_is_released(name, tmp_path):
    with guard_engines.opened(name, tmp_path) as engine:
        with open_guard(engine, tmp_path / "a"):
            pass
        shutil.rmtree(tmp_path / "a")
        change_mark(mark_of(engine), place=f"far.example:{tmp_path}/a")
        with pytest.raises(StoreError, match=r"far\.example"):
            open_guard(engine, tmp_path / "b")
        engine_for(engine).release()
        assert not mark_of(engine).exists()
        with open_guard(engine, tmp_path / "b"):
            pass
        engine_for(engine).release()
        engine_for(engine).release()  # twice is allowed


def test_one_directory_after_another_misses_nothing(name, tmp_path):
    with guard_engines.opened(name, tmp_path) as engine:
        for i in range(4):
            with open_guard(engine, tmp_path / "ab"[i % 2]) as guard:
                guard[b"%d" % i] = b"v"
                assert guard.get_many([b"%d" % j for j in range(i + 1)]) == [b"v"] * (i + 1)
                assert guard.verify().ok
            engine_for(engine).release()


def copied(name, source, target):
    """A copy of an engine, with all that is in its folder or begins with its name."""
    target.mkdir()
    for path in source.iterdir():
        if path.name.startswith(name):
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, target / path.name)


def test_copy_of_an_engine_is_another_one(name, tmp_path):
    with guard_engines.opened(name, tmp_path) as engine, open_guard(engine, tmp_path / "a") as a:
        a.update(dict.fromkeys(KEYS, b"v"))
        mark = mark_of(engine)
    copied(name, tmp_path, tmp_path / "copy")
    assert (tmp_path / "copy" / mark.relative_to(tmp_path)).exists()
    with guard_engines.opened(name, tmp_path / "copy") as engine:
        assert reads_keys(engine, tmp_path / "a")  # it may be older than the filter
        with open_guard(engine, tmp_path / "a") as a:
            assert a.verify().ok
    with guard_engines.opened(name, tmp_path) as engine:
        assert reads_keys(engine, tmp_path / "a")
        with open_guard(engine, tmp_path / "a") as a:
            a[b"here"] = b"v"
    copied(name, tmp_path, tmp_path / "second")
    with guard_engines.opened(name, tmp_path / "second") as engine, open_guard(engine, tmp_path / "b") as b:
        b[b"there"] = b"v"
        assert b.verify().keys == len(KEYS) + 2
    with guard_engines.opened(name, tmp_path) as engine:
        assert not reads_keys(engine, tmp_path / "a")


def test_engine_and_directory_may_be_moved(name, tmp_path):
    (tmp_path / "old").mkdir()
    with (
        guard_engines.opened(name, tmp_path / "old") as engine,
        open_guard(engine, tmp_path / "old" / "guard") as guard,
    ):
        guard.update(dict.fromkeys(KEYS, b"v"))
    (tmp_path / "old").rename(tmp_path / "new")
    with guard_engines.opened(name, tmp_path / "new") as engine:
        assert not reads_keys(engine, tmp_path / "new" / "guard")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_engine_that_may_not_be_written_has_no_mark(name, number, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(number, "not here")

    monkeypatch.setattr(marks, "put_mark", refuse)
    with guard_engines.opened(name, tmp_path) as engine:
        for folder in "ab":
            with open_guard(engine, tmp_path / folder) as guard:
                assert guard.state == "filtering"
            assert not reads_keys(engine, tmp_path / folder)
        assert not mark_of(engine).exists()


def test_full_disk_is_told(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with guard_engines.opened("sqlite3", tmp_path) as engine:
        with open_guard(engine, tmp_path / "a"):
            pass
        engine_for(engine).release()
        monkeypatch.setattr(marks.os, "link", fail)
        before = set(tmp_path.iterdir())
        with pytest.raises(OSError, match="No space left"):
            open_guard(engine, tmp_path / "a")
        assert set(tmp_path.iterdir()) == before  # no file of ours is left


def test_damaged_mark_is_made_anew_and_the_keys_are_read(tmp_path):
    with guard_engines.opened("sqlite3", tmp_path) as engine:
        with open_guard(engine, tmp_path / "a") as a:
            a.update(dict.fromkeys(KEYS, b"v"))
        mark = mark_of(engine)
        whole = mark.read_bytes()
        for damaged in (b"", b"\x00", b"[]", b"7", b"{}", whole[:-9], whole.replace(b'"space": "', b'"space": "x')):
            mark.write_bytes(damaged)
            with open_guard(engine, tmp_path / "a", readonly=True, sync="full") as a:
                assert (a.state, a.get(KEYS[0])) == ("pass-through", b"v")
            assert mark.read_bytes() == damaged
            with open_guard(engine, tmp_path / "a") as a:
                assert a.verify().ok
            record = json.loads(mark.read_bytes())
            assert record.keys() == json.loads(whole).keys()
            assert record["token"] not in whole.decode()


def test_mark_of_a_newer_version_or_that_cannot_be_read_is_told(tmp_path):
    with guard_engines.opened("sqlite3", tmp_path) as engine:
        with open_guard(engine, tmp_path / "a"):
            pass
        mark = mark_of(engine)
        change_mark(mark, dlbf=2)

        def check(words):
            with pytest.raises(StoreError, match=words) as error:
                open_guard(engine, tmp_path / "a")
            assert str(mark) in str(error.value)
            with open_guard(engine, tmp_path / "a", readonly=True, sync="full") as a:
                assert a.state == "pass-through"

        check("expected version 1, found 2; use the newer dlbf")
        mark.unlink()
        mark.symlink_to(mark.name)
        check("cannot be read: Too many levels of symbolic links; allow it, or delete the file")
        mark.unlink()
        mark.mkdir()
        check("Is a directory")


PROCESS = """
import sqlite3, sys
from dlbf.errors import StoreError
from dlbf.storage import Guard
from dlbf.storage.engines import SqliteEngine

connection = sqlite3.connect(sys.argv[1], timeout=60)
engine = SqliteEngine(connection, "pairs")
print("ready", flush=True)
sys.stdin.readline()
try:
    guard = Guard(engine, sys.argv[2], sync="none")
except StoreError as error:
    print(error, flush=True)
else:
    print("opened", flush=True)
    sys.stdin.readline()
    guard.close()
"""


@contextlib.contextmanager
def processes(database, folders):
    """Processes that each open a guard of the database, all at once."""
    with contextlib.ExitStack() as stack:
        running = []
        for folder in folders:
            process = subprocess.Popen(
                [sys.executable, "-c", PROCESS, database, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.stdin.close)
            stack.callback(process.stdout.close)
            running.append(process)
        for process in running:
            assert process.stdout.readline() == "ready\n"
        for process in running:
            process.stdin.write("go\n")
            process.stdin.flush()
        yield [process.stdout.readline().strip() for process in running]


def test_processes_of_one_directory_share_an_engine(tmp_path):
    with (
        guard_engines.opened("sqlite3", tmp_path) as engine,
        open_guard(engine, tmp_path / "a"),
        processes(tmp_path / "sqlite3", [tmp_path / "a"] * 3) as said,
    ):
        assert said == ["opened"] * 3


@pytest.mark.parametrize("before", ["nothing", "gone", "copied"])
def test_of_directories_that_come_at_once_one_has_the_engine(tmp_path, before):
    with guard_engines.opened("sqlite3", tmp_path) as engine:
        if before != "nothing":
            with open_guard(engine, tmp_path / "first"):
                pass
        if before == "gone":
            shutil.rmtree(tmp_path / "first")
        if before == "copied":
            change_mark(mark_of(engine), engine="another")
        folders = [tmp_path / f"{i}" for i in range(4)]
        with processes(tmp_path / "sqlite3", folders) as said:
            assert sorted(line == "opened" for line in said) == [False, False, False, True]
            assert all(line == "opened" or REFUSED in line for line in said)
            owner = folders[said.index("opened")]
        assert json.loads(mark_of(engine).read_text())["place"].endswith(str(owner))
        with open_guard(engine, owner) as guard:
            assert guard.verify().ok
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


# --- parts of engines


def test_tables_have_marks_of_their_own(tmp_path):
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "data.db")) as connection,
        open_guard(SqliteEngine(connection, "a"), tmp_path / "1"),
        open_guard(SqliteEngine(connection, "b"), tmp_path / "2"),
    ):
        for table in ("A", "b"):
            with pytest.raises(StoreError, match=REFUSED):
                open_guard(SqliteEngine(connection, table), tmp_path / "4")
    assert len(list(tmp_path.glob("data.db.dlbf-*.guard"))) == 2


def test_tables_in_memory_and_handles_cannot_tell(tmp_path):
    import lmdb

    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        engine = SqliteEngine(connection, "pairs")
        assert (engine.place(), engine.identity()) == (None, b"")
        with open_guard(engine, tmp_path / "a"), open_guard(SqliteEngine(connection, "pairs"), tmp_path / "b"):
            pass
    with lmdb.open(str(tmp_path / "env"), max_dbs=1) as environment:
        assert LmdbEngine(environment, environment.open_db(b"x")).place() is None
    with dbm.open(str(tmp_path / "words"), "c") as database:
        assert DbmEngine(database).place() is engine_for(database).place() is None
    assert LevelEngine(object()).place() is None


def test_dbm_of_any_kind_is_known_by_its_file(tmp_path):
    import dbm.dumb

    for i, module in enumerate([dbm, dbm.dumb]):
        file = tmp_path / f"words {i}"
        with module.open(str(file), "c") as database:
            with open_guard(DbmEngine(database, file), tmp_path / f"{i}") as guard:
                guard[b"a"] = b"1"
                with pytest.raises(StoreError, match=REFUSED):
                    open_guard(DbmEngine(database, str(file)), tmp_path / "more")
            with pytest.raises(StoreError, match=r"no words: expected a file of a dbm database"):
                DbmEngine(database, tmp_path / "no words")
    assert len(list(tmp_path.glob("*.guard"))) == 2


def test_databases_of_an_environment_have_marks_of_their_own(tmp_path):
    import lmdb

    with lmdb.open(str(tmp_path / "env"), max_dbs=2) as environment:
        with (
            open_guard(LmdbEngine(environment), tmp_path / "1"),
            open_guard(LmdbEngine(environment, b"a"), tmp_path / "2"),
            open_guard(LmdbEngine(environment, b"b"), tmp_path / "3"),
        ):
            for database in (None, b"a", b"b"):
                with pytest.raises(StoreError, match=REFUSED):
                    open_guard(LmdbEngine(environment, database), tmp_path / "4")
        assert len(list((tmp_path / "env").glob("*.guard"))) == 3
    with lmdb.open(str(tmp_path / "env.file"), subdir=False) as environment, open_guard(environment, tmp_path / "5"):
        assert (tmp_path / "env.file.dlbf.guard").exists()


def test_column_families_have_marks_of_their_own(tmp_path):
    rocksdict = pytest.importorskip("rocksdict")
    database = rocksdict.Rdict(str(tmp_path / "db"), rocksdict.Options(raw_mode=True))
    parts = [database, *(database.create_column_family(n, rocksdict.Options(raw_mode=True)) for n in ("x", "x] **y"))]
    with contextlib.ExitStack() as stack:
        for i, part in enumerate(parts):
            stack.enter_context(open_guard(part, tmp_path / f"{i}"))
        for part in parts:
            with pytest.raises(StoreError, match=REFUSED):
                open_guard(part, tmp_path / "more")
    for part in reversed(parts):
        part.close()
    assert len(list((tmp_path / "db").glob("*.guard"))) == 3


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [(b"", b"a", True), (b"a", b"", True), (b"a", b"ab", True), (b"ab", b"a", True), (b"a", b"b", False)],
)
def test_leveldb_prefixes_clash_if_one_begins_the_other(tmp_path, first, second, clash):
    plyvel = pytest.importorskip("plyvel")
    with contextlib.closing(plyvel.DB(str(tmp_path / "db"), create_if_missing=True)) as database:
        one, two = (database.prefixed_db(each) if each else database for each in (first, second))
        with open_guard(one, tmp_path / "a"):
            if clash:
                with pytest.raises(StoreError, match=REFUSED):
                    open_guard(two, tmp_path / "b")
            else:
                open_guard(two, tmp_path / "b").close()
        n_marks = len(list((tmp_path / "db").glob("*.guard")))
        assert n_marks == (1 if clash else 2)
        shutil.rmtree(tmp_path / "a")
        with open_guard(two, tmp_path / "b") as b:
            assert b.state == "filtering"
        assert len(list((tmp_path / "db").glob("*.guard"))) == n_marks


def test_mark_does_not_disturb_rocksdb(tmp_path):
    rocksdict = pytest.importorskip("rocksdict")
    place, options = str(tmp_path / "db"), rocksdict.Options(raw_mode=True)
    database = rocksdict.Rdict(place, options)
    with open_guard(database, tmp_path / "a") as a:
        a.update(dict.fromkeys(KEYS, b"v"))
        first = mark_of(database)
    database.close()
    rocksdict.Rdict.repair(place, options)
    database = rocksdict.Rdict(place, options)
    assert sorted(database.keys()) == sorted(KEYS)
    database.close()
    assert first.exists()
    rocksdict.Rdict.destroy(place, options)
    database = rocksdict.Rdict(place, options)
    with open_guard(database, tmp_path / "b") as b:  # the mark was of the database before
        assert len(b) == 0
    database.close()


def test_mark_does_not_disturb_leveldb(tmp_path):
    plyvel = pytest.importorskip("plyvel")
    place = str(tmp_path / "plyvel")
    with guard_engines.opened("plyvel", tmp_path) as database, open_guard(database, tmp_path / "a") as a:
        a.update(dict.fromkeys(KEYS, b"v"))
    plyvel.repair_db(place)
    with contextlib.closing(plyvel.DB(place)) as database:
        assert sorted(database.iterator(include_value=False)) == sorted(KEYS)
        assert mark_of(database).exists()
    plyvel.destroy_db(place)
    with guard_engines.opened("plyvel", tmp_path) as database, open_guard(database, tmp_path / "a") as a:
        assert list(a) == []


def test_engine_of_a_relative_path_is_found_after_a_change_of_directory(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with guard_engines.opened(name, Path()) as engine:
        adapter = engine_for(engine)
        monkeypatch.chdir(tmp_path / "elsewhere")
        with open_guard(adapter, tmp_path / "a"):
            assert adapter.place().path().exists()
            assert adapter.place().folder.is_relative_to(tmp_path)
        assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("step", [fcntl.LOCK_SH, fcntl.LOCK_EX])
def test_mark_that_changes_between_two_steps_is_looked_at_again(step, tmp_path, monkeypatch):
    with guard_engines.opened("sqlite3", tmp_path) as engine:
        with open_guard(engine, tmp_path / "b"):
            pass
        mark = mark_of(engine)
        theirs = mark.read_bytes()
        engine_for(engine).release()
        with open_guard(engine, tmp_path / "a"):
            pass
        shutil.rmtree(tmp_path / "a")
        lock = marks.HeldMark.lock

        def late(self, kind):
            if kind == step:
                monkeypatch.setattr(marks.HeldMark, "lock", lock)
                (tmp_path / "new").write_bytes(theirs)
                (tmp_path / "new").rename(self.path)  # by a guard of "b", meanwhile
            return lock(self, kind)

        monkeypatch.setattr(marks.HeldMark, "lock", late)
        if step == fcntl.LOCK_SH:
            held = marks.HeldMark.find(mark)
            assert held.is_current()
            assert held.read().place.endswith(str(tmp_path / "b"))
            held.close()
        else:
            with pytest.raises(StoreError, match=f"{REFUSED} .*{tmp_path / 'b'} "):
                open_guard(engine, tmp_path / "a")
        assert mark.read_bytes() == theirs


def test_one_directory_may_change_its_prefix(tmp_path):
    plyvel = pytest.importorskip("plyvel")
    with contextlib.closing(plyvel.DB(str(tmp_path / "db"), create_if_missing=True)) as database:
        for engine in (database, database.prefixed_db(b"a"), database.prefixed_db(b"ab"), database):
            with open_guard(engine, tmp_path / "guard") as guard:
                guard[b"abc"] = b"v"
                assert guard.verify().ok
        assert sorted(database.iterator(include_value=False)) == [b"aabc", b"ababc", b"abc"]
