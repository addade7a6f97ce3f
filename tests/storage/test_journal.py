"""The journal: its tail in LMDB's main page, its blocks, and changes of single keys, which write it without Python."""

import random
import subprocess
import sys
import threading

import lmdb
import pytest
from support import peek

from dlbf.errors import DlbfError, FormatError, StoreError
from dlbf.kernels.journal import OperationLog, Tail, operations, read_record, split_entry
from dlbf.storage import Store, layers, layout, steps
from dlbf.storage.lmdblog import LmdbLog
from dlbf.storage.longkeys import Databases


def open_store(path, **options):
    return Store(path, **{"sync": "none", **options})


def record_of(number, keys, flags=0):
    log = OperationLog()
    for key in keys:
        log.added(key)
    return log.record(number, 7, flags)


@pytest.mark.parametrize("seed", range(8))
def test_every_record_is_found_whatever_its_size_and_whoever_wrote_before(tmp_path, seed):
    """Against a list: records from nothing to more than a tail, aborted transactions, writers that take turns."""
    rng = random.Random(seed)
    env = lmdb.open(str(tmp_path / "env"), max_dbs=2, sync=False)
    handle = env.open_db(b"journal")
    dbs = Databases(None, None, None, handle, handle, None, None, env.open_db())
    logs = [LmdbLog(None, dbs), LmdbLog(None, dbs)]
    written = {}
    first = None
    for _ in range(300):
        log = rng.choice(logs) if rng.random() < 0.1 else logs[0]
        with env.begin(write=True) as txn:
            number = txn.id()
            first = first or number
            size = rng.choice([0, 1, 30, 400, 1500, 1860, 1900, 5000])
            record = record_of(number, [rng.randbytes(size)] if size else [])
            log.append(txn, number, record)
            if rng.random() < 0.1:
                txn.abort()
                continue
        log.tail.known = number
        written[number] = record
        if rng.random() < 0.1:
            with env.begin(buffers=True) as txn:
                start = rng.randint(first, number)
                found = {}
                while start <= number:
                    run = log.read_run(txn, start)
                    assert run, start
                    found |= {txn_id: bytes(value) for txn_id, value in run}
                    start = run[-1][0] + 1
                assert found == {n: r for n, r in written.items() if n >= min(found)}
                assert log.read_run(txn, number + 1) == []
                assert [n for n, _ in LmdbLog(None, dbs).entries(txn)] == sorted(written)
                assert log.count_records(txn) == len(written)
    env.close()


def test_damaged_block_is_an_error_or_its_records_are():
    """Every bit and every length of a small block: the records are those that were written, or something complains."""
    records = [record_of(n, [b"key %d" % n]) for n in (5, 6, 7)]
    tail = Tail()
    for number, record in zip((5, 6, 7), records, strict=True):
        assert tail.stage(record, number)
    block = tail.block()
    assert [(n, bytes(r)) for n, r in split_entry(block, 7)] == list(zip((5, 6, 7), records, strict=True))

    def survives(damaged):
        try:
            found = [(n, bytes(r)) for n, r in split_entry(damaged, 7)]
            for number, record in found:
                read_record(record, number)
        except DlbfError:
            return False
        return found == list(zip((5, 6, 7), records, strict=True))

    assert survives(block)
    for i in range(8 * len(block)):
        damaged = bytearray(block)
        damaged[i // 8] ^= 1 << i % 8
        assert not survives(bytes(damaged)), i
    for n in range(len(block)):
        # Less than whole records are an error; fewer records are not all of them, and the key names the last one.
        assert not survives(block[:n]), n
    value = bytes(tail.value)
    for i in range(len(block), len(value)):
        damaged = bytearray(value)
        damaged[i] = 1
        with pytest.raises(FormatError):
            Tail().load(bytes(damaged))
    with pytest.raises(FormatError, match="bytes"):
        Tail().load(value[:-1])


def test_small_commits_leave_the_journal_database_alone(path):
    with open_store(path) as store:
        store[b"0"] = b""
        with peek.reading(store) as txn:
            before = txn.stat(peek.dbs(store).journal)["entries"]
        for i in range(8):
            store[b"%d" % i] = b""
        with peek.reading(store) as txn:
            assert txn.stat(peek.dbs(store).journal)["entries"] == before
        for i in range(300):
            store[b"%d" % i] = b""
        with peek.reading(store) as txn:
            # Blocks of some 40 records each.
            assert 300 / 60 <= txn.stat(peek.dbs(store).journal)["entries"] - before <= 300 / 15
            numbers = [number for number, _ in peek.log(store).entries(txn)]
            assert numbers == list(range(numbers[0], txn.id() + 1))
        assert store.stats().journal_records == len(numbers)
        assert store.verify().ok


def test_single_changes_are_quick_and_do_what_slow_ones_do(path, tmp_path):
    """The same changes in two stores, quickly and in transactions: the same data, flags and operations."""
    rng = random.Random(1)
    with open_store(path, keyed=False) as quick, open_store(tmp_path / "slow", keyed=False) as slow:
        n_quick = 0
        model = {}
        for i in range(4000):
            key, value = b"%d" % rng.randrange(1500), b"%d" % i
            n_quick += peek.changes(quick).n_allowed > 0
            if rng.random() < 0.3:
                found = quick.delete(key)
                assert found == (model.pop(key, None) is not None)
                with slow.write() as txn:
                    assert txn.delete(key) == found
            else:
                quick[key] = model[key] = value
                with slow.write() as txn:
                    txn.put(key, value)
            assert quick.get(key) == model.get(key)
        assert n_quick > 3000
        assert dict(quick) == dict(slow) == model
        done = []
        for store in (quick, slow):
            with peek.reading(store) as txn:
                records = list(peek.log(store).entries(txn))
            done.append([(read_record(record, number)[1], operations(record)) for number, record in records])
            assert store.verify().ok
        shorter = min(len(part) for part in done)
        assert shorter > 500
        assert done[0][-shorter:] == done[1][-shorter:]
        stats = quick.stats()
        assert stats.keys == len(model)


@pytest.mark.parametrize("name", ["write-began", "data-written", "journal-written", "commit-done", "filter-applied"])
@pytest.mark.parametrize("removal", [False, True])
def test_single_change_that_fails_at_any_step_is_done_or_is_not(path, name, removal):
    def fail(step):
        if step == name:
            raise OSError("no")

    with open_store(path) as store:
        for i in range(200):
            store[b"%d" % i] = b"old"
        assert peek.changes(store).n_allowed > 0
        steps.set_hook(fail)
        try:
            with pytest.raises(OSError, match="no"):
                store.delete(b"7") if removal else store.put(b"new", b"x")
        finally:
            steps.set_hook(None)
        committed = name in ("commit-done", "filter-applied")
        assert (store.get(b"7") is None) == (removal and committed)
        assert (store.get(b"new") == b"x") == (not removal and committed)
        store[b"after"] = b"y"  # nobody holds a lock
        assert store.get(b"after") == b"y"
        assert store.verify().ok


def test_change_from_within_a_change_is_refused_not_a_deadlock(path):
    with open_store(path) as store:
        for i in range(100):
            store[b"%d" % i] = b""
        caught = []

        def again(step):
            if step == "data-written" and not caught:
                try:
                    store[b"inner"] = b""
                except StoreError as error:
                    caught.append(str(error))

        steps.set_hook(again)
        try:
            store[b"outer"] = b""
        finally:
            steps.set_hook(None)
        assert "this thread has a write transaction already" in caught[0]
        assert b"outer" in store
        assert b"inner" not in store
        with store.write(), pytest.raises(StoreError, match="this thread has a write transaction"):
            store[b"inner"] = b""
        assert store.verify().ok


def test_threads_change_single_keys_side_by_side(path):
    with open_store(path) as store:
        errors = []

        def work(name):
            try:
                for i in range(400):
                    store[b"%s %d" % (name, i)] = b"%d" % i
                    assert store.get(b"%s %d" % (name, i)) == b"%d" % i
                    if i % 3 == 0:
                        assert store.delete(b"%s %d" % (name, i))
                        assert store.get(b"%s %d" % (name, i)) is None
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(b"%d" % i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert len(store) == 4 * (400 - 134)
        assert store.verify().ok


OTHER = """
import sys
from dlbf.storage import Store
with Store(sys.argv[1], sync="none") as store:
    for line in sys.stdin:
        key = line.strip().encode()
        found = store.get(key)
        store[b"other " + key] = b"2"
        print(found, flush=True)  # after the commit: whoever reads this line must find the key
"""


def test_processes_that_take_turns_see_each_others_single_changes(path):
    with open_store(path) as store:
        store[b"first"] = b"1"
        command = [sys.executable, "-c", OTHER, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            for i in range(120):
                key = b"k%d" % i
                store[key] = b"v%d" % i
                other.stdin.write(key.decode() + "\n")
                other.stdin.flush()
                assert other.stdout.readline().strip() == repr(b"v%d" % i)
                assert store.get(b"other " + key) == b"2"
                if i % 5 == 0:
                    store[key] = b"again"  # two of ours in a row
            other.stdin.close()
            assert other.wait(60) == 0
        assert len(store) == 241
        assert store.verify().ok


def test_store_of_the_first_journal_format_is_read_and_goes_on(path):
    """Version 1 had a record under every key, no blocks and no tail."""
    model = {}
    with open_store(path) as store:
        for i in range(100):
            store[b"%d" % i] = model[b"%d" % i] = b"v"
        peek.close_untidily(store)
    with lmdb.open(str(path), max_dbs=9) as env:
        handles = [env.open_db(name.encode()) for name in layout.DATABASES]
        dbs = Databases(*handles, env.open_db())
        with env.begin() as txn:
            records = [(number, bytes(record)) for number, record in LmdbLog(None, dbs).entries(txn)]
            checkpoint = LmdbLog(None, dbs).read_checkpoint(txn)
            next_id = txn.id() + 1
        old = layout.Checkpoint.FORMAT.pack(
            1, checkpoint.state, checkpoint.generation, checkpoint.txn_id, checkpoint.removed, checkpoint.previous,
            checkpoint.n_bytes, checkpoint.sums,
        )  # fmt: skip
        with env.begin(write=True) as txn:
            assert txn.id() == next_id
            LmdbLog(None, dbs).drop(txn)
            # This very transaction is one of ours, too.
            for number, record in [*records, (next_id, OperationLog().record(next_id, checkpoint.generation, 0))]:
                txn.put(layout.journal_key(number), record, db=dbs.journal)
            txn.put(layout.CHECKPOINT_KEY, layout.sealed(old), db=dbs.meta)
    with open_store(path) as store:
        assert store.get(b"absent") is None
        assert store.stats().state == "filtering"
        assert store.verify().ok
        store[b"more"] = model[b"more"] = b"v"
        assert dict(store) == model
        assert store.verify().ok


def test_bulk_load_is_given_a_filter_of_its_size(path):
    keys = [b"key %d" % i for i in range(30_000)]
    with open_store(path) as store:
        store.update((key, b"") for key in keys)
        assert len(keys) <= store.stats().capacity <= (1 + layers.GROWN_SHARE) * len(keys) + 1
        assert 8 * store.stats().filter_bytes / len(keys) < 7.5
        # Then it grows as a store does that is filled little by little.
        for i in range(0, 9000, 500):
            store.update((b"more %d" % j, b"") for j in range(i, i + 500))
        assert store.stats().capacity > 1.4 * len(keys)
        assert store.verify().ok
