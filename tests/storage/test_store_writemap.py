"""Stores that are written through LMDB's map: the same store, one writer, and room on the disk before it is used."""

import ctypes
import errno
import gc
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading

import lmdb
import pytest
from support.samples import skip_without_writemap

from dlbf.errors import StoreError
from dlbf.storage import Store, room
from dlbf.storage.room import Room

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="writemap=True is for Linux")

MIB = 1 << 20


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where a store may be made; its file grows in small steps."""
    monkeypatch.setattr(room, "LEAST_BYTES", MIB)
    skip_without_writemap(tmp_path)
    return tmp_path / "store"


def open_mapped(path, **options):
    return Store(path, sync="none", writemap=True, **options)


def run(program, path, *, check=True):
    """Run a program in another process, with ``Store`` and ``path``."""
    head = "import os, sys\nfrom dlbf.storage import Store\npath = sys.argv[1]\n"
    return subprocess.run([sys.executable, "-c", head + program, path], capture_output=True, text=True, check=check)


def is_reserved(path):
    """Whether every byte of the file has a place on the disk."""
    status = (path / "data.mdb").stat()
    return status.st_blocks * 512 >= status.st_size


def test_it_is_the_same_store(path):
    """Changes of every kind beside a dict, across many steps of growth; then opened without the map."""
    rng = random.Random(1)
    model = {}
    with open_mapped(path) as store:
        for _ in range(60):
            kind = rng.randrange(4)
            if kind == 0:
                for _ in range(100):
                    key, value = b"%d" % rng.randrange(3000), rng.randbytes(rng.randrange(300))
                    store[key] = model[key] = value
            elif kind == 1:
                with store.write() as txn:
                    for _ in range(400):
                        key, value = b"%d" % rng.randrange(3000) * rng.choice([1, 1, 300]), rng.randbytes(700)
                        assert txn.put(key, value) == (key not in model)
                        model[key] = value
            elif kind == 2:
                for key in rng.sample(sorted(model), len(model) // 5):
                    assert store.delete(key)
                    del model[key]
            else:
                txn = store.write()
                txn.put(b"undone", bytes(100_000))
                txn.abort()
            assert len(store) == len(model)
        assert store.stats().map_size > 5 * MIB
        assert store.stats().map_size == store.stats().file_bytes
        assert dict(store) == model
        assert store.get_many([*model, b"absent"]) == [*model.values(), None]
        assert store.verify().ok
        store.rebuild()
        store.backup(path.with_name("copy"))
        store.sync()
    for place, options in ((path, {}), (path.with_name("copy"), {}), (path, {"readonly": True})):
        with Store(place, **options) as store:
            assert dict(store) == model
            assert store.verify().ok
    with open_mapped(path) as store:
        assert dict(store) == model


def test_transaction_larger_than_the_map_is_done_again_in_a_larger_one(path):
    with open_mapped(path) as store:
        store[b"0"] = b"old"
        with store.write() as txn:
            answers = [txn.put(b"%d" % (i % 3000), bytes(1000)) for i in range(6000)]
            txn.delete(b"7")
            assert txn.get(b"8") == bytes(1000)
        assert answers == [i not in (0,) and i < 3000 for i in range(6000)]
        assert len(store) == 2999
        store[b"huge"] = bytes(20 * MIB)
        assert len(store[b"huge"]) == 20 * MIB
        assert is_reserved(path)
        assert store.verify().ok


def test_map_size_is_what_the_file_begins_with(path):
    with open_mapped(path, map_size=5_000_000) as store:
        store[b"a"] = b"1"
        assert 5_000_000 <= store.stats().file_bytes < 5_000_000 + 2 * 65536
        assert is_reserved(path)


def test_room_is_reserved_also_in_a_file_with_holes(path):
    with Store(path, sync="none") as store:
        store.update({b"%d" % i: bytes(500) for i in range(2000)})
    data = path / "data.mdb"
    os.truncate(data, data.stat().st_size + 4 * MIB)
    assert not is_reserved(path)
    before = data.stat().st_size
    with open_mapped(path) as store:
        assert is_reserved(path)
        assert data.stat().st_size == before  # never shorter
        assert len(store) == 2000


@pytest.mark.parametrize("single", [True, False])
def test_full_disk_is_an_error_and_loses_nothing(path, single):
    """The limit for the size of files stands for the disk: reserving fails in the same place."""
    program = f"""
import resource, itertools
from dlbf.errors import StoreError
from dlbf.storage import room
room.LEAST_BYTES = 1 << 20
store = Store(path, sync="none", writemap=True)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, hard))
done = 0
try:
    for done in itertools.count():
        if {single}:
            store[b"%d" % done] = bytes(1000)
        else:
            with store.write() as txn:
                for i in range(100):
                    txn.put(b"%d" % (100 * done + i), bytes(1000))
except StoreError as error:
    assert "no room on the disk" in str(error) and "make room" in str(error) and "bytes free" in str(error), error
n = done if {single} else 100 * done
assert len(store) == n, (len(store), n)
assert store.get_many([b"%d" % i for i in range(n)]) == [bytes(1000)] * n
assert store.get(b"%d" % n) is None and store.verify().ok
# Reading goes on, and so does writing once there is room.
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
for i in range(n // 2):
    del store[b"%d" % i]
store[b"small"] = b"1"
store.close()
print(n)
"""
    n = int(run(program, path).stdout)
    with Store(path) as store:
        assert len(store) == n - n // 2 + 1
        assert store.verify().ok


def test_there_is_only_one_writer(path):
    Store(path).close()
    with open_mapped(path) as store:
        store[b"a"] = b"1"
        with pytest.raises(StoreError, match="already open"):
            open_mapped(path)
        for options in ("", ", sync='none'"):
            other = run(f"Store(path{options})", path, check=False)
            assert "another process has it open with writemap=True" in other.stderr
        other = run("Store(path, sync='none', writemap=True)", path, check=False)
        assert "already open for writing" in other.stderr
        # Any number of readers.
        assert run("print(Store(path, readonly=True)[b'a'])", path).stdout == "b'1'\n"
        store[b"a"] = b"2"  # and it goes on
    with Store(path) as store:
        other = run("Store(path, sync='none', writemap=True)", path, check=False)
        assert "already open for writing" in other.stderr
        assert run("print(Store(path)[b'a'])", path).stdout == "b'2'\n"
    run("Store(path, sync='none', writemap=True)[b'a'] = b'3'", path)
    with Store(path) as store:
        assert store[b"a"] == b"3"


def test_lock_is_gone_with_its_process_even_if_that_had_forked(path):
    program = """
import signal, time
store = Store(path, sync="none", writemap=True)
store[b"a"] = b"1"
child = os.fork()
if child == 0:
    os.close(1)
    os.close(2)
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = run(program, path, check=False)
    assert ended.returncode == -signal.SIGKILL
    child = int(ended.stdout)
    try:
        os.kill(child, 0)
        with open_mapped(path) as store:
            assert store[b"a"] == b"1"
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("writemap", [True, False])
def test_lock_is_gone_with_a_store_that_nobody_closed(path, writemap):
    store = Store(path, sync="none", writemap=writemap)
    store[b"a"] = b"1"
    del store
    gc.collect()
    with open_mapped(path) as store:
        assert store[b"a"] == b"1"


def test_readers_in_another_process_follow_growth_and_commits(path):
    with open_mapped(path) as store:
        store[b"0"] = b""
        program = """
with Store(path, readonly=True) as store:
    for i in iter(sys.stdin.readline, ""):
        i = int(i)
        assert store.get(b"%d" % i) == bytes(i) and store.get(b"%d" % (i + 1)) is None
        print(store.state, flush=True)
"""
        head = "import os, sys\nfrom dlbf.storage import Store\npath = sys.argv[1]\n"
        with subprocess.Popen(
            [sys.executable, "-c", head + program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader:
            for i in range(1, 300_000, 4999):
                store[b"%d" % i] = bytes(i)
                reader.stdin.write(f"{i}\n")
                reader.stdin.flush()
                assert reader.stdout.readline() == "filtering\n"
            reader.stdin.close()
        assert reader.returncode == 0
        assert store.stats().map_size > 4 * MIB


@pytest.mark.parametrize("own", [True, False])
def test_growth_waits_for_iterators_and_then_says_whose_they_are(path, monkeypatch, own):
    from dlbf.storage import environment as module

    monkeypatch.setattr(module, "OWN_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(module, "RESIZE_PATIENCE_SECONDS", 60.0 if own else 0.2)
    with open_mapped(path) as store:
        store[b"a"] = b"1"
        views = []
        if own:
            views.append(store.snapshot())
        else:
            thread = threading.Thread(target=lambda: views.append(store.snapshot()))
            thread.start()
            thread.join()
        with pytest.raises(StoreError, match="iterators of this " + ("thread" if own else "process")):
            store[b"big"] = bytes(4 * MIB)
        views.pop().close()
        assert dict(store) == {b"a": b"1"}
        store[b"big"] = bytes(4 * MIB)
        assert store.verify().ok


@pytest.mark.parametrize("options", [{"sync": "full"}, {"sync": "data"}, {"sync": "none", "readonly": True}])
def test_options_that_it_does_not_go_with(path, options):
    Store(path).close()
    with pytest.raises(ValueError, match="writemap=True is for writing"):
        Store(path, writemap=True, **options)


def test_file_systems_that_cannot_reserve_are_refused(path, monkeypatch):
    monkeypatch.setattr(room, "RESERVING", {1: "another"})
    with pytest.raises(StoreError, match="needs a file system on which room can be reserved"):
        open_mapped(path)
    with Store(path) as store:
        store[b"a"] = b"1"


def test_what_is_not_a_store_is_left_alone(path):
    with pytest.raises(StoreError, match="cannot be opened for writing"):
        open_mapped(path / "deep" / "er")
    path.mkdir()
    (path / "data.mdb").write_bytes(b"somebody's" * 1000)
    with pytest.raises(StoreError, match="not an LMDB file"):
        open_mapped(path)
    assert (path / "data.mdb").read_bytes() == b"somebody's" * 1000
    shutil.rmtree(path)
    with lmdb.open(str(path), max_dbs=2) as env, env.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
    with pytest.raises(StoreError, match="another program"):
        open_mapped(path)
    with lmdb.open(str(path), max_dbs=2) as env, env.begin() as txn:
        assert txn.get(b"theirs") == b"1"


def test_room_that_was_not_enough_is_given_back(path, monkeypatch):
    """A file system may make the file longer before it finds that it has no more."""

    class Half:
        def fallocate(self, descriptor, mode, start, n_bytes):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size + MIB)
            ctypes.set_errno(errno.ENOSPC)
            return -1

    with open_mapped(path) as store:
        before = store.stats().file_bytes
        with monkeypatch.context() as patch:
            patch.setattr(room.ctypes, "CDLL", lambda *arguments, **more: Half())
            with pytest.raises(StoreError, match="no room on the disk"):
                store[b"big"] = bytes(4 * MIB)
        assert store.stats().file_bytes == before
        store[b"big"] = bytes(4 * MIB)
        assert store.verify().ok


def test_growth_tries_a_last_small_step(path, monkeypatch):
    with open_mapped(path) as store:
        asked = []
        reserve = Room.reserve

        def small_disk(self, n_bytes):
            asked.append(n_bytes)
            if n_bytes > 8 * MIB:
                raise StoreError("no room on the disk")
            reserve(self, n_bytes)

        monkeypatch.setattr(Room, "reserve", small_disk)
        n = 0

        def fill():
            nonlocal n
            while True:
                store[b"%d" % n] = bytes(1000)
                n += 1

        with pytest.raises(StoreError, match="no room"):
            fill()
        assert store.stats().file_bytes == store.stats().map_size > 7.5 * MIB
        assert max(asked) > 8 * MIB
        assert len(store) == n
        assert store.verify().ok
        store[b"0"] = b"overwritten"


@pytest.mark.parametrize("is_new", [True, False])
def test_room_that_the_disk_has_not_is_not_asked_for(path, is_new):
    if not is_new:
        open_mapped(path).close()
    before = (path / "data.mdb").stat().st_size if not is_new else 0
    free = os.statvfs(path.parent).f_bavail
    with pytest.raises(StoreError, match="no room on the disk"):
        open_mapped(path, map_size=1 << 45)
    assert (path / "data.mdb").stat().st_size == before
    assert os.statvfs(path.parent).f_bavail > free // 2
    with open_mapped(path) as store:
        store[b"a"] = b"1"


@pytest.mark.parametrize("map_size", [-1, 1 << 47, (1 << 64) + 5])
def test_map_sizes_that_no_processor_has(path, map_size):
    with pytest.raises(ValueError, match="map_size must be from 0"):
        open_mapped(path, map_size=map_size)


def test_slots_of_readers_have_their_place_on_the_disk(path):
    with open_mapped(path, max_readers=500):
        status = (path / "lock.mdb").stat()
        assert status.st_blocks * 512 >= status.st_size >= 500 * 64


def test_map_that_cannot_be_moved_closes_the_store_and_says_so(path):
    program = """
import resource, itertools
from dlbf.errors import StoreError
from dlbf.storage import room
room.LEAST_BYTES = 64 << 20
store = Store(path, sync="none", writemap=True)
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (16 << 20),) * 2)
n = 0
try:
    for n in itertools.count():
        store[b"%d" % n] = bytes(100_000)
except StoreError as error:
    assert "cannot be made" in str(error) and "open it again" in str(error), error
for use in (lambda: store.get(b"absent"), lambda: store.get(b"1"), lambda: store[b"1"], store.stats, store.verify):
    try:
        use()
        assert False
    except StoreError as error:
        assert "closed" in str(error), error
store.close()
print(n)
"""
    n = int(run(program, path).stdout)
    with open_mapped(path) as store:
        assert len(store) == n
        assert store.verify().ok


def test_change_that_was_refused_or_interrupted_is_not_made_when_the_map_grows(path, monkeypatch):
    with open_mapped(path) as store:
        store[b"precious"] = b"1"
        with store.write() as txn:
            errors = []

            def elsewhere():
                for change in (lambda: txn.delete(b"precious"), lambda: txn.put(b"long" * 200, b"")):
                    try:
                        change()
                    except StoreError as error:
                        errors.append(str(error))

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            assert len(errors) == 2
            for i in range(3000):
                txn.put(b"%d" % i, bytes(1000))
        assert store[b"precious"] == b"1"
        assert len(store) == 3001


def test_interrupted_transaction_answers_nothing(path):
    with open_mapped(path) as store:
        txn = store.write()
        put = txn._put

        def interrupted(key, value):
            if key == b"100":
                raise TimeoutError
            return put(key, value)

        txn._put = interrupted
        with pytest.raises(TimeoutError):
            list(map(txn.put, (b"%d" % i for i in range(3000)), [bytes(1000)] * 3000))
        for use in (lambda: txn.get(b"500"), lambda: b"500" in txn, lambda: len(txn), lambda: list(txn)):
            with pytest.raises(StoreError, match="only be aborted"):
                use()
        txn.abort()
        assert dict(store) == {}


def test_iterator_of_a_transaction_whose_map_has_grown_says_so(path):
    with open_mapped(path) as store:
        store.update({b"a": b"1", b"b": b"2"})
        with store.write() as txn:
            begun, waiting = txn.items(), txn.keys()
            next(begun)
            for i in range(3000):
                txn.put(b"%d" % i, bytes(1000))
            for walk in (begun, waiting):
                with pytest.raises(StoreError, match="the LMDB map has grown"):
                    list(walk)
            assert len(list(txn.items())) == 3002


def test_sync_and_stats_while_the_map_grows(path):
    with open_mapped(path) as store:
        problems = []
        done = threading.Event()

        def ask():
            while not done.is_set():
                try:
                    store.sync()
                    store.stats()
                except Exception as error:
                    problems.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        for i in range(400):
            store[b"%d" % i] = bytes(100_000)
        done.set()
        thread.join()
        assert problems == []
        assert store.stats().map_size > 30 * MIB


def test_close_that_is_interrupted_anywhere_gives_the_lock_back_when_it_is_repeated(path):
    """Between noting that the file is closed and closing it, too: nobody could write the store any more."""
    for step in itertools.count():
        store = open_mapped(path)
        seen = []

        def trace(frame, event, argument, step=step, seen=seen):
            if frame.f_code.co_filename != room.__file__:
                return None
            seen.append(frame.f_lineno)
            if len(seen) == step + 1:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            store.close()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        store.close()
        open_mapped(path).close()
        if len(seen) <= step:
            break
    assert step > 2
