"""What becomes of a transaction, or a batch of reads, that something comes in between of."""

import contextlib
import gc
import shutil
import subprocess
import sys
import threading
import time

import lmdb
import pytest
from support import peek

from dlbf.errors import StoreError
from dlbf.storage import Store, longkeys, steps
from dlbf.storage.environment import Overtaken


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store", sync="none") as store:
        yield store


class Interrupting:
    """A journal that is interrupted before it notes anything."""

    nbytes = 0

    def __len__(self):
        return 0

    def added(self, key):
        raise TimeoutError

    removed = added


@pytest.mark.parametrize("key", ["a string", b"long" * 300, b""])
@pytest.mark.parametrize("removal", [False, True])
def test_commit_after_a_change_that_was_interrupted_stores_nothing(store, key, removal):
    if removal:
        store[key] = b"old"
    txn = store.write()
    txn.put(b"before", b"1")
    txn._log = Interrupting()
    with pytest.raises(TimeoutError):
        txn.delete(key) if removal else txn.put(key, b"value")
    with pytest.raises(StoreError, match="interrupted halfway"):
        txn.commit()
    assert dict(store) == ({key.encode() if isinstance(key, str) else key: b"old"} if removal else {})
    store[b"after"] = b"2"
    assert store.get(b"after") == b"2"
    assert store.verify().ok


def test_long_key_half_put_does_not_lend_its_node_to_the_next(store, monkeypatch):
    def interrupt(*args):
        raise TimeoutError

    first, second = b"a" * 1500, b"b" * 1500
    txn = store.write()
    with monkeypatch.context() as patch:
        patch.setattr(longkeys, "node_key", interrupt)
        with pytest.raises(TimeoutError):
            txn.put(first, b"1")
    with pytest.raises(StoreError, match="interrupted halfway"):
        txn.put(second, b"2")
    txn.abort()
    store[second] = b"2"
    assert store.get(first) is None
    assert store.delete(first) is False
    assert store.get(second) == b"2"
    assert store.verify().ok


@contextlib.contextmanager
def overtaken(store, where="journal-written"):
    """The map is full, and another process writes while it is being made larger."""
    program = "import sys; from dlbf.storage import Store; s = Store(sys.argv[1]); s[b'other'] = b'x'; s.close()"
    resize = peek.environment(store).resize

    def other_writes(size):
        resize(size)
        subprocess.run([sys.executable, "-c", program, store.path], check=True)

    def full(name):
        if name == where:
            steps.set_hook(None)
            raise lmdb.MapFullError("as LMDB says where its pages end")

    peek.environment(store).resize = other_writes
    steps.set_hook(full)
    try:
        yield
    finally:
        steps.set_hook(None)
        peek.environment(store).resize = resize


CHANGES = {
    "put": lambda store: store.put("b", b"2"),
    "delete": lambda store: store.delete("a"),
    "pop": lambda store: store.pop(b"a"),
    "setdefault": lambda store: store.setdefault(b"b", b"2"),
    "clear": lambda store: store.clear(),
    "update": lambda store: store.update(((b"b%d" % i, b"2") for i in range(3)), b=b"2"),
    "checkpoint": lambda store: store.checkpoint(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_that_another_process_came_in_between_of_is_made_again(tmp_path, name):
    with Store(tmp_path / "store", sync="none", map_size=1 << 20) as store:
        store[b"a"] = b"1"
        with overtaken(store):
            answer = CHANGES[name](store)
        expected = {b"a": b"1", b"other": b"x"}
        if name in ("put", "setdefault"):
            expected[b"b"] = b"2"
        elif name in ("delete", "pop"):
            assert answer == {"delete": True, "pop": b"1"}[name]
            del expected[b"a"]
        elif name == "clear":
            expected.clear()
        elif name == "update":
            expected |= {b"b": b"2", b"b0": b"2", b"b1": b"2", b"b2": b"2"}
        assert dict(store) == expected
        assert store.verify().ok


def test_update_that_another_process_came_in_between_of_in_the_middle_loses_nothing(tmp_path):
    """Its items can be had only once."""
    with Store(tmp_path / "store", sync="none", map_size=1 << 20) as store:
        begin_again, calls = peek.writes(store).begin_again, []

        def overtake(txn, number=0):
            if not calls:
                calls.append(txn)
                txn.abort()
                raise Overtaken("another process wrote")
            return begin_again(txn, number)

        peek.writes(store).begin_again = overtake
        store.update((b"%d" % i, bytes(20_000)) for i in range(200))
        assert calls
        assert sorted(store) == sorted(b"%d" % i for i in range(200))
        assert store.verify().ok


def test_rebuild_that_another_process_came_in_between_of_is_not_lost(tmp_path):
    with Store(tmp_path / "store", sync="none", map_size=1 << 20) as store:
        store.update((b"%d" % i, b"v") for i in range(2000))
        with overtaken(store, "switch-written"):
            assert store.rebuild().done
        assert store.get(b"other") == b"x"
        assert store.stats().state == "filtering"
        assert store.verify().ok


def test_commit_that_another_process_came_in_between_of_can_be_run_again(tmp_path):
    with Store(tmp_path / "store", sync="none", map_size=1 << 20) as store:
        store[b"a"] = b"1"
        with overtaken(store), pytest.raises(StoreError, match="Run it again"), store.write() as txn:
            txn.put(b"b", b"2")
        with store.write() as again:
            again.put(b"b", b"2")
        assert dict(store) == {b"a": b"1", b"b": b"2", b"other": b"x"}


def test_interrupted_repetition_after_a_full_map_commits_nothing(tmp_path):
    with Store(tmp_path / "store", sync="none", map_size=1 << 20) as store:
        txn = store.write()
        put, calls = txn._put, []

        def interrupt(key, value):
            calls.append(key)
            if key == b"1":  # in the repetition: the first time it was put without Python around it
                raise TimeoutError
            return put(key, value)

        txn._put = interrupt
        with pytest.raises(TimeoutError):
            list(map(txn.put, (b"%d" % i for i in range(200)), [bytes(20_000)] * 200))
        with pytest.raises(StoreError, match="interrupted halfway"):
            txn.put(b"more", b"")
        with pytest.raises(StoreError, match="interrupted halfway"):
            txn.commit()
        assert dict(store) == {}


def test_transaction_is_of_one_thread(store):
    errors = []

    def put():
        with pytest.raises(StoreError, match="another thread") as caught:
            txn.put(b"b", b"")
        errors.append(caught)

    with store.write() as txn:
        txn.put(b"a", b"")
        thread = threading.Thread(target=put)
        thread.start()
        thread.join()
    assert errors
    assert list(store) == [b"a"]


def test_close_ends_a_transaction_that_a_thread_has_left_open(store):
    def begin():
        txn = store.write()
        txn.put(b"a", b"")
        cycle = [txn]
        cycle.append(cycle)  # so that it is collected later, by another thread

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    gc.collect()
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()


def test_close_does_not_wait_for_ever_for_a_transaction_of_another_thread(store, monkeypatch):
    monkeypatch.setattr("dlbf.storage.face.CLOSE_PATIENCE_SECONDS", 0.2)
    store.update({b"a": b"1", b"b": b"2"})
    begun, go = threading.Event(), threading.Event()
    seen = []

    def write():
        with store.write() as txn:
            walk = txn.items()
            seen.append(next(walk))
            begun.set()
            go.wait(60)
            seen.append(next(walk))
            txn.put(b"c", b"3")

    def close():
        with pytest.raises(StoreError, match="another thread has been writing") as caught:
            store.close()
        seen.append(caught)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert begun.wait(60)
    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    assert len(seen) == 2
    go.set()
    writer.join(60)
    assert not writer.is_alive()
    assert dict(store) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    store[b"d"] = b"4"
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.get(b"a")


def test_close_lets_a_transaction_of_another_thread_end(tmp_path):
    begun, errors = threading.Event(), []

    def write():
        try:
            with store.write() as txn:
                begun.set()
                for i in range(50):
                    txn.put(b"%d" % i, b"")
                    assert txn.get(b"%d" % i) == b""
                    time.sleep(0.005)
        except BaseException as error:
            errors.append(error)

    store = Store(tmp_path / "store", sync="none")
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert begun.wait(60)
    store.close()
    writer.join(60)
    assert not errors
    with Store(tmp_path / "store") as store:
        assert len(store) == 50
        assert store.verify().ok


def test_threads_that_close_a_store_at_once_all_succeed(store):
    closed = []

    def close():
        store.close()
        closed.append(store.state)

    store._leave_tidy = lambda: time.sleep(0.2)  # so that all have begun
    threads = [threading.Thread(target=close, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert closed == ["closed"] * 3


@pytest.mark.parametrize("kind", ["snapshot", "write"])
def test_view_lives_as_long_as_its_iterator_and_an_ended_one_says_so(store, kind):
    store.update({b"a": b"1", b"b": b"2"})
    assert list(getattr(store, kind)().items()) == [(b"a", b"1"), (b"b", b"2")]
    assert list(getattr(store, kind)()) == [b"a", b"b"]
    with getattr(store, kind)() as view:
        walk = view.items()
        next(walk)
    with pytest.raises(StoreError, match="has ended"):
        next(walk)
    store[b"c"] = b"3"


@pytest.mark.parametrize("key", [b"k", "k", b"k" * 600])
def test_transaction_of_a_store_that_is_closed_says_so(store, key):
    txn = store.write()
    txn.put(b"a", b"1")
    store.close()
    for use in (lambda: txn.put(key, b""), lambda: txn.get(key), lambda: txn.delete(key), txn.commit):
        with pytest.raises(StoreError, match="closed"):
            use()


def test_empty_value_is_not_taken_for_a_missing_key(store):
    store[b"empty"] = b""
    store.traffic.sample(1.0, 1000, 1)
    store.traffic.take_samples()
    assert store.get_many([b"empty", b"absent"], b"") == [b"", b""]
    assert store.traffic.take_samples() == [b"absent"]


def test_failure_to_make_the_filter_larger_is_none_of_the_commit_before_it(store, caplog):
    def fail(*args):
        raise lmdb.DiskError("no space")

    switch, peek.commits(store).switch = peek.commits(store).switch, fail
    for i in range(1000):  # the first filter is for 1,024 keys, and the next one is begun before that
        store[b"k%d" % i] = b"v"
    assert len(store) == 1000
    assert store.verify().ok
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the change is stored" in caplog.text
    peek.commits(store).switch = switch
    store.update((b"more %d" % i, b"v") for i in range(2000))
    assert store.stats().capacity > 2000
    assert store.verify().ok


def test_larger_filter_that_cannot_be_made_is_not_tried_with_every_commit(store):
    tried = []

    def fail(*args):
        tried.append(len(store))
        raise lmdb.DiskError("no space")

    switch, peek.commits(store).switch = peek.commits(store).switch, fail
    for i in range(1020):
        store[b"k%d" % i] = b"v"
    assert 2 < len(tried) < 10
    assert store.stats().capacity == 1024
    peek.commits(store).switch = switch
    while store.stats().capacity == 1024:  # the commit that needs it makes it
        i += 1
        store[b"k%d" % i] = b"v"
    assert i < 1030
    assert store.verify().ok
    peek.commits(store).growth.pause = 1000
    n_keys = store.stats().capacity
    store.update((b"more %d" % i, b"v") for i in range(n_keys))
    peek.commits(store).grow_if_due(1)  # which is of another generation
    assert peek.commits(store).growth.pause == 0


def test_get_many_is_of_one_moment_although_a_commit_comes_in_between(store):
    store[b"old"] = b"0"
    ask = store.ledger.ask_many

    def ask_and_commit(keys):
        answers = ask(keys)
        store.update({b"old": b"1", b"new": b"1"})
        return answers

    store.ledger.ask_many = ask_and_commit
    assert store.get_many([b"old", b"new"]) == [b"1", b"1"]


@pytest.mark.parametrize("kind", ["delete", "setdefault", "abort"])
def test_threads_that_read_do_not_keep_a_transaction_from_being_given_up(store, kind):
    store.update((b"k%d" % i, b"v") for i in range(1000))
    stop = threading.Event()

    def read():
        i = 0
        while not stop.is_set():
            i += 1
            store.get(b"k%d" % (i % 1000))

    def give_up():
        for _ in range(5):
            if kind == "delete":
                assert not store.delete(b"absent")
            elif kind == "setdefault":
                assert store.setdefault(b"k1", b"") == b"v"
            else:
                txn = store.write()
                txn.put(b"k1", b"w")
                txn.abort()
        done.set()

    done = threading.Event()
    readers = [threading.Thread(target=read) for _ in range(3)]
    writer = threading.Thread(target=give_up)
    for thread in (*readers, writer):
        thread.start()
    try:
        assert done.wait(60)
    finally:
        stop.set()
        for thread in (*readers, writer):
            thread.join()
    assert store.get(b"k1") == b"v"


def test_foreign_writes_in_a_compacted_copy_are_noticed_when_their_number_is_that_of_our_last_commit(tmp_path):
    with Store(tmp_path / "store", sync="none") as store:
        for i in range(30):
            store[b"k%d" % i] = b"v"
    copy = tmp_path / "copy"
    copy.mkdir()
    with lmdb.open(str(tmp_path / "store"), max_dbs=9) as env:
        newest = env.info()["last_txnid"]
        env.copy(str(copy), compact=True)
    shutil.copy(tmp_path / "store" / "secret.key", copy)
    with lmdb.open(str(copy), max_dbs=9) as env:
        data = env.open_db(b"data")
        while env.info()["last_txnid"] < newest:
            with env.begin(write=True, db=data) as txn:
                txn.put(b"foreign %d" % env.info()["last_txnid"], b"v")
    with Store(copy, sync="none") as store:
        assert store.stats().state != "filtering"
        assert len(list(store.keys(prefix=b"foreign"))) > 20
        assert all(store.get(key) == b"v" for key in store)
        store.rebuild()
        assert store.stats().state == "filtering"
        assert store.verify().ok
