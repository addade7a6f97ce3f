"""Several processes on one store: what one commits the next read of any other sees."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import lmdb
import pytest
from support.samples import skip_without_writemap

from dlbf.errors import StoreError
from dlbf.storage import Store, layers

context = multiprocessing.get_context("fork")


@pytest.fixture(params=["tables", "layers"])
def kind(request, monkeypatch):
    """What the filters of all processes are made of; with layers, every few keys bring a new base."""
    if request.param == "layers":
        monkeypatch.setattr(layers, "LEAST_KEYS", 8)


def in_child(function, *arguments):
    """Run a function in a forked process; it fails the test if it raises."""
    process = context.Process(target=_quietly, args=(function, arguments))
    process.start()
    return process


def _quietly(function, arguments):
    try:
        function(*arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def joined(process, seconds=600):
    process.join(seconds)
    assert process.exitcode == 0


@pytest.mark.usefixtures("kind")
def test_commit_is_seen_by_the_next_read_of_another_process(path):
    there, here = context.Pipe()

    def reader(pipe):
        with Store(path, sync="none") as store:
            pipe.send("ready")
            while (key := pipe.recv()) is not None:
                pipe.send((store.get(key), store.get_many([key])[0], key in store))
            pipe.send((store.stats(), store.verify()))

    Store(path, sync="none").close()
    process = in_child(reader, there)
    assert here.recv() == "ready"
    rng = random.Random(1)
    model = {}
    with Store(path, sync="none") as store:
        for i in range(2000):
            key = b"%d" % rng.randrange(300)
            action = rng.random()
            if action < 0.5:
                store[key] = model[key] = b"%d" % i
            elif action < 0.9:
                store.delete(key)
                model.pop(key, None)
            elif action < 0.97:
                store.checkpoint()
            else:
                store.rebuild()
            here.send(key)
            value = model.get(key)
            assert here.recv() == (value, value, value is not None)
        here.send(None)
        stats, verification = here.recv()
    joined(process)
    # Most absent keys were answered by the other process's filter, not by reading the data.
    assert stats.filtered > 500
    assert stats.unfiltered == 0
    assert verification.ok


@pytest.mark.usefixtures("kind")
def test_writers_in_several_processes_take_turns(path):
    def writer(number):
        rng = random.Random(number)
        with Store(path, sync="none") as store:
            for i in range(150):
                with store.write() as txn:
                    count = int(txn.get(b"count", b"0"))
                    txn.put(b"count", b"%d" % (count + 1))
                    txn.put(b"%d-%d" % (number, i), b"")
                    if rng.random() < 0.3:
                        txn.delete(b"%d-%d" % (number, rng.randrange(i + 1)))
                assert store.get(b"%d-%d" % (number, i), b"gone") in (b"", b"gone")

    Store(path, sync="none").close()
    processes = [in_child(writer, n) for n in range(4)]
    for process in processes:
        joined(process)
    with Store(path) as store:
        assert store[b"count"] == b"600"
        assert store.verify().ok


def test_map_grown_by_another_process_is_followed(path):
    there, here = context.Pipe()

    def reader(pipe):
        with Store(path, sync="none", map_size=1 << 20) as store:
            view = store.snapshot()
            view.close()
            pipe.send("ready")
            while (key := pipe.recv()) is not None:
                pipe.send(store.get(key))
            store[b"from the reader"] = b"y" * 5_000_000
            pipe.send(store.stats().map_size)

    Store(path, sync="none", map_size=1 << 20).close()
    process = in_child(reader, there)
    assert here.recv() == "ready"
    with Store(path, sync="none", map_size=1 << 20) as store:
        for i in range(40):
            store[b"%d" % i] = b"x" * 200_000
            here.send(b"%d" % i)
            assert here.recv() == b"x" * 200_000
        here.send(None)
        assert here.recv() > 8_000_000
        assert store.get(b"from the reader") == b"y" * 5_000_000
    joined(process)


@pytest.mark.usefixtures("kind")
def test_foreign_write_makes_every_process_read_the_data(path, caplog):
    with Store(path, sync="none") as store:
        store.update({b"%d" % i: b"v" for i in range(100)})
    program = (
        "import lmdb, sys\n"
        "env = lmdb.open(sys.argv[1], max_dbs=9, map_size=1 << 30)\n"
        "db = env.open_db(b'data')\n"
        "with env.begin(write=True) as txn: txn.put(b'foreign', b'1', db=db)\n"
    )
    there, here = context.Pipe()

    def other(pipe):
        pipe.recv()
        with Store(path, sync="none") as store:
            assert store.get(b"foreign") == b"1"
            assert store.state == "pass-through"
            store.rebuild()
            assert store.state == "filtering"
            assert store.verify().ok

    process = in_child(other, there)
    with Store(path, sync="none") as store:
        assert store.get(b"foreign") is None
        subprocess.run([sys.executable, "-c", program, str(path)], check=True)
        assert store.get(b"foreign") == b"1"
        assert store.get(b"5") == b"v"
        assert store.stats().state == "pass-through"
        assert "another program" in store.stats().reason
        assert "rebuild" in store.stats().reason
        assert len(caplog.records) == 1
        # Our own writes go on, and a process that opens the store now knows as well.
        store[b"later"] = b"2"
        assert store.get(b"later") == b"2"
        assert not store.verify().ok
        for i in range(600):
            store[b"later %d" % i] = b""
        assert len(caplog.records) == 1

        here.send("go")
        joined(process)
        assert store.get(b"foreign") == b"1"
        assert store.state == "filtering"
        assert store.verify().ok
        before = store.traffic.n_filtered + store.traffic.n_false_positives
        assert store.get(b"absent") is None
        assert store.traffic.n_filtered + store.traffic.n_false_positives == before + 1


def test_foreign_write_between_two_of_ours_is_noticed(path):
    with Store(path, sync="none") as store:
        store[b"a"] = b"1"
    with lmdb.open(str(path), max_dbs=9, map_size=1 << 30) as env:
        db = env.open_db(b"data")
        with env.begin(write=True) as txn:
            txn.put(b"foreign", b"1", db=db)
    with Store(path, sync="none") as store:
        store[b"b"] = b"2"
        assert store.state == "pass-through"
        assert store.get(b"foreign") == b"1"
        store.rebuild()
        assert store.verify().ok


@pytest.mark.usefixtures("kind")
def test_writer_killed_in_a_transaction_does_not_stop_others(path):
    there, here = context.Pipe()

    def writer(pipe):
        pipe.recv()
        store = Store(path, sync="none")
        txn = store.write()
        txn.put(b"lost", b"1")
        pipe.send("in it")
        signal.pause()

    process = in_child(writer, there)
    with Store(path, sync="none") as store:
        store[b"kept"] = b"1"
        here.send("go")
        assert here.recv() == "in it"
        process.kill()
        process.join()
        store[b"after"] = b"1"
        assert list(store) == [b"after", b"kept"]
        assert store.verify().ok


def test_full_reader_table_says_what_to_do(path):
    with Store(path, sync="none", max_readers=4) as store:
        views = [store.snapshot() for _ in range(3)]
        with pytest.raises(StoreError, match="max_readers"):
            views.extend(store.snapshot() for _ in range(10))
        for view in views:
            view.close()
        assert store.get(b"x") is None


def test_own_kept_read_transaction_does_not_count_as_a_taken_slot(path, monkeypatch):
    monkeypatch.setattr("dlbf.storage.environment.KEEP_SECONDS", 60.0)
    with Store(path, sync="none", max_readers=2) as store, store.snapshot():
        store.update({b"k": b"v"})
        assert store.get(b"k") == b"v"  # keeps its transaction, in the only other slot
        assert len(store) == 1
        assert store.get(b"k") == b"v"
        assert list(iter(store)) == [b"k"]  # list(store) asks for the length while the iterator has a slot
        assert store.get(b"k") == b"v"
        with store.snapshot() as view:
            assert view.get(b"k") == b"v"
            assert view.get(b"absent") is None
            with pytest.raises(StoreError, match="max_readers"):
                store.get(b"k")
        assert store.get(b"k") == b"v"


@pytest.mark.usefixtures("kind")
def test_snapshot_brings_the_filter_up_to_its_own_moment(path):
    with Store(path, sync="none", max_readers=2) as store, store.snapshot():
        store.update({b"k": b"v"})
        store.ledger.withdraw()  # as if another process had committed
        with store.snapshot() as view:
            assert store.ledger.complete_for() == view.txn_id
            assert view.get(b"absent") is None


def busy(path, n_written, n_asked, n_keys=400):
    """One writer, three readers: inserting, deleting, checkpointing, rebuilding, until ``n_written`` keys were stored
    and each reader has asked for ``n_asked``; none may be missed."""
    permanent = [b"permanent %d" % i for i in range(n_keys)]
    with Store(path, sync="none") as store:
        store.update(dict.fromkeys(permanent, b"p"))
    progress = context.Value("q", 0)
    deleted = context.Value("q", 0)
    asked = context.Array("q", 3)
    stop = context.Event()

    def writer():
        rng = random.Random(0)
        n = removed = 0
        with Store(path, sync="none") as store:
            while not stop.is_set():
                with store.write() as txn:
                    for _ in range(rng.choice([1, 5, 100])):
                        txn.put(b"key %d" % n, b"v")
                        n += 1
                # Everything below `progress` is committed, everything below `deleted` may be gone.
                progress.value = n
                if n - removed > 3000:
                    deleted.value = target = n - 2000
                    with store.write() as txn:
                        for i in range(removed, target):
                            txn.delete(b"key %d" % i)
                    removed = target
                if rng.random() < 0.02:
                    store.checkpoint()
                if rng.random() < 0.01:
                    store.rebuild()

    def reader(number):
        rng = random.Random(number)
        with Store(path, sync="none", readonly=number == 0) as store:
            while not stop.is_set():
                last = progress.value
                first = deleted.value
                wanted = [b"key %d" % i for i in range(max(first, last - 50), last)] + rng.sample(permanent, 10)
                found = store.get_many(wanted) if rng.random() < 0.3 else [store.get(key) for key in wanted]
                for key, value in zip(wanted, found, strict=True):
                    if value is None and not (key.startswith(b"key") and int(key[4:]) < deleted.value):
                        raise AssertionError(f"{key!r} missed after {asked[number]} reads, {store.stats()}")
                assert store.get(b"absent %d" % rng.randrange(10**9)) is None
                asked[number] += len(wanted)
            stats = store.stats()
            assert stats.state == "filtering"
            assert stats.filtered > 0

    processes = [in_child(writer), *(in_child(reader, n) for n in range(3))]
    while (progress.value < n_written or min(asked) < n_asked) and all(process.is_alive() for process in processes):
        time.sleep(0.01)
    stop.set()
    for process in processes:
        joined(process)
    assert progress.value >= n_written
    assert min(asked) >= n_asked
    with Store(path, sync="none") as store:
        assert store.verify().ok


@pytest.mark.usefixtures("kind")
def test_busy_readers_and_a_writer_miss_nothing(path):
    busy(path, 100_000, 200_000)


@pytest.mark.slow
def test_busy_readers_and_a_writer_miss_nothing_for_long(path):
    busy(path, 1_500_000, 3_000_000)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("options", ["readonly=True", "sync='none'", "sync='none', writemap=True", "map_size=1 << 30"])
def test_data_larger_than_the_address_space_is_an_error(tmp_path, options):
    """Opening tried the same size for ever; or LMDB's own error came out."""
    if "writemap" in options:
        skip_without_writemap(tmp_path)
    path = tmp_path / "store"
    with Store(path, sync="none") as store:
        store[b"key"] = bytes(80 << 20)
    program = f"""
import resource, sys
from dlbf.errors import StoreError
from dlbf.storage import Store
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20),) * 2)
try:
    Store(sys.argv[1], {options})
except StoreError as error:
    assert "may not map" in str(error), error
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "refused\n", done.stderr
