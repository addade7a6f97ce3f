"""What threads, other processes, signals and copies can do in the middle of something; each was once a key denied."""

import contextlib
import dis
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest
from support import peek
from support.racing import close_under, start, twins_of

from dlbf.capi import FilterReader
from dlbf.errors import StoreError
from dlbf.kernels.locks import Held, LedgerLock
from dlbf.storage import Guard, Store, build, generations, ledger, lmdblog, steps
from dlbf.storage import store as store_module
from dlbf.storage.environment import BEGIN_ERRORS


def open_store(path, **options):
    return Store(path, **{"sync": "none", **options})


@pytest.fixture
def store(path):
    """With two keys that share an entry, and quick changes allowed."""
    with open_store(path, fpr=0.1, keyed=False) as store:
        store[b"start"] = b""
        store.twins = twins_of(store.ledger.filter)
        store[store.twins[0]], store[store.twins[1]] = b"1", b"2"
        for i in range(20):
            store[b"fill %d" % i] = b""
        assert peek.changes(store).n_allowed > 0
        yield store
        assert store.get(store.twins[1]) == b"2"
        assert store.verify().ok


def elsewhere(path, *lines, **options):
    """Run lines in another process that has the store open."""
    code = "import sys; from dlbf.storage import Store\nstore = Store(sys.argv[1], sync='none', **" + repr(options)
    subprocess.run([sys.executable, "-c", "\n".join([code + ")", *lines, "store._close()"]), str(path)], check=True)


def test_quick_change_that_waits_for_the_filter_is_not_applied_twice(store):
    """A batch is asked meanwhile, and another thread catches up."""
    held, free = threading.Event(), threading.Event()

    def hold():
        reader = FilterReader(store.ledger.filter)
        held.set()
        free.wait(60)
        reader.close()

    threads = [start(hold)]
    assert held.wait(60)
    last = peek.environment(store).handle.info()["last_txnid"]
    threads.append(start(store.delete, store.twins[0]))
    while peek.environment(store).handle.info()["last_txnid"] == last:  # it is committed, and then waits
        time.sleep(0.01)
    threads.append(start(store.get, b"whatever"))
    time.sleep(0.2)  # so that it comes before; it may come later as well
    free.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert store.twins[0] not in store


def test_commit_without_operations_does_not_set_the_filter_back(store):
    def hook(name):
        if name == "commit-done":
            steps.set_hook(None)
            elsewhere(store.path, f"assert store.delete({store.twins[0]!r})")
            start(store.get, b"whatever").join(60)

    steps.set_hook(hook)
    try:
        with store.write() as txn:
            txn.put(b"start", b"again")
    finally:
        steps.set_hook(None)
    assert store.twins[0] not in store


def test_lock_of_the_replica_lets_one_thread_in_at_a_time_and_forgets_none():
    lock = LedgerLock()
    inside = []
    passed = []

    def work(number):
        for _ in range(200):
            with Held(lock):
                inside.append(number)
                time.sleep(0)  # others run here, and wait
                assert inside == [number]
                inside.pop()
        passed.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(passed) == list(range(8))
    assert lock.acquire(False)
    assert not lock.acquire(False)
    with pytest.raises(StoreError, match="in the middle of a change"):
        lock.acquire()
    lock.release()
    assert lock.acquire(False)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs SIGUSR1")
def test_signal_handler_of_a_thread_that_waits_for_the_replica_may_take_it_or_give_up():
    lock = LedgerLock()
    log = []
    ready, handled = threading.Event(), threading.Event()

    def hold():
        lock.acquire()
        ready.set()
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert handled.wait(60)
        time.sleep(0.1)  # the handler is waiting behind the one it has interrupted
        log.append("given back")
        lock.release()

    def take(*_):
        handled.set()
        with Held(lock):
            log.append("handler")

    def give_up(*_):
        handled.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, take)
    try:
        thread = threading.Thread(target=hold)
        thread.start()
        ready.wait()
        with Held(lock):
            log.append("waited")
        thread.join()
        assert log == ["given back", "handler", "waited"]
        signal.signal(signal.SIGUSR1, give_up)
        ready.clear()
        handled.clear()
        thread = threading.Thread(target=hold)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012, it may come early
            thread.start()
            ready.wait()
            lock.acquire()
        thread.join()
        assert lock.acquire(False)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs SIGUSR1")
def test_signal_handler_that_reads_does_not_replay_what_is_being_replayed(store, monkeypatch):
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(store.get(b"from the handler")))
    elsewhere(store.path, f"assert store.delete({store.twins[0]!r})")
    real = ledger.read_record

    def interrupted(*arguments):
        monkeypatch.setattr(ledger, "read_record", real)
        answer = real(*arguments)
        os.kill(os.getpid(), signal.SIGUSR1)  # between the change and the note that it is done
        return answer

    monkeypatch.setattr(ledger, "read_record", interrupted)
    try:
        assert store.get(b"x") is None
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [None]


def test_signal_handler_that_writes_in_the_middle_of_a_replay_gets_an_error_not_a_deadlock(store, monkeypatch):
    elsewhere(store.path, f"assert store.delete({store.twins[0]!r})")
    real = ledger.read_record
    refused = []

    def handler(*arguments):
        monkeypatch.setattr(ledger, "read_record", real)
        answer = real(*arguments)
        try:
            store[b"from the handler"] = b""
        except StoreError as error:
            refused.append(str(error))
        return answer

    monkeypatch.setattr(ledger, "read_record", handler)
    assert store.get(b"x") is None
    assert "in the middle of a change" in refused[0]
    store[b"later"] = b"1"
    assert store.get(b"later") == b"1"


def test_interrupted_builder_is_not_gone_on_with(path, monkeypatch):
    with open_store(path, fpr=0.1, keyed=False) as store:
        store[b"start"] = b""
        empty = generations.successor(store.ledger.filter, 20_000, 0.1, None)
        first, other = twins_of(empty)
        store[first], store[other] = b"1", b"2"
        store.update((b"z%05d" % i, b"") for i in range(600))
        growth = peek.commits(store).growth
        growth.builder, growth.generation = peek.commits(store).new_builder(empty), store.ledger.generation
        peek.commits(store).step(growth.builder, 300)
        real = build.apply_record

        def interrupted(*arguments):
            monkeypatch.setattr(build, "apply_record", real)
            real(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(build, "apply_record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.delete(first)
        assert peek.commits(store).growth.builder is None
        for i in range(100):
            store[b"y%d" % i] = b""
        assert store.get(other) == b"2"
        assert store.verify().ok


@pytest.mark.parametrize("step", ["commit-done", "filter-applied"])
def test_change_interrupted_before_or_after_the_filter_follows_is_followed_once(store, step):
    def interrupt(reached):
        if reached == step:
            raise KeyboardInterrupt

    steps.set_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), store.write() as txn:
            txn.delete(store.twins[0])
    finally:
        steps.set_hook(None)
    assert store.get(store.twins[1]) == b"2"
    assert store.twins[0] not in store


def test_read_transaction_of_the_past_is_not_kept_for_the_next_read(path):
    """One thread's read lasts while another commits and reads."""
    with open_store(path) as store:
        store[b"old"] = b"1"
        assert store.get(b"old") == b"1"
        peek.environment(store).drop_kept()
        begin = peek.environment(store).handle.begin
        taken, go = threading.Event(), threading.Event()

        class Slow:
            def __init__(self, txn, before_get):
                self.txn, self.before_get = txn, before_get
                self.id, self.abort = txn.id, txn.abort

            def get(self, key):
                self.before_get()
                return self.txn.get(key)

        def attach(before_get):
            def wrapped(*arguments):
                return Slow(begin(*arguments), before_get) if len(arguments) == 1 else begin(*arguments)

            peek.environment(store).attach(peek.environment(store).handle, wrapped, BEGIN_ERRORS)

        attach(lambda: (taken.set(), go.wait(60)))
        first = start(store.get, b"old")
        assert taken.wait(60)
        store[b"new"] = b"2"
        attach(lambda: (go.set(), first.join(60)))
        assert store.get(b"new") == b"2"
        attach(lambda: None)
        assert store.get(b"new") == b"2"
        peek.environment(store).drop_kept()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_compacted_copy_is_read_without_the_filter_until_it_is_rebuilt(path, tmp_path, checkpointed):
    """LMDB counts its transactions from the beginning, so the journal and the filter are of another history."""
    with open_store(path) as store:
        for i in range(30):
            store[b"k%d" % i] = b"v"
            if checkpointed and i == 10:
                store.checkpoint()
        peek.close_untidily(store)
    copy = tmp_path / "copy"
    copy.mkdir()
    with lmdb.open(str(path), max_dbs=9) as env:
        env.copy(str(copy), compact=True)
    shutil.copy(path / "secret.key", copy)
    with open_store(copy) as store:
        assert all(store.get(b"k%d" % i) == b"v" for i in range(30))
        assert store.stats().state == "pass-through"
        for i in range(3):
            store[b"m%d" % i] = b"v"
        with peek.reading(store) as txn:
            assert peek.log(store).newest(txn) == txn.id()
        # A builder beside writers follows the new records, not the old ones of the same numbers.
        builder = peek.commits(store).new_builder(generations.new_filter("auto", 2000, 0.001, peek.secret(store)))
        peek.commits(store).step(builder, 1000)
        for i in range(40):
            store[b"a%02d" % i] = b"v"
        peek.commits(store).switch(builder)
        assert all(store.get(b"a%02d" % i) == b"v" for i in range(40))
        assert store.stats().state == "filtering"
        assert store.verify().ok


def test_checkpoints_of_two_processes_do_not_mix(path):
    with open_store(path) as store:
        store.update((b"k%d" % i, b"") for i in range(5000))
        store.checkpoint()
        elsewhere(path, "store[b'K'] = b''", "store.checkpoint()", "store.delete(b'K')")
        assert store.get(b"x") is None  # replays, does not load
        store.checkpoint()
        assert store.verify().ok
    with open_store(path) as store:
        assert store.stats().state == "filtering"


def test_reader_and_writer_that_both_follow_a_grown_map_do_not_wait_for_each_other(path):
    with open_store(path, map_size=1 << 20) as store:
        store[b"start"] = b""
        elsewhere(path, "store[b'big'] = bytes(8 << 20)", map_size=1 << 20)
        adopt, resize = peek.environment(store).adopt_map, peek.environment(store).resize
        grown, ready = threading.Event(), threading.Event()

        def slowly():
            ready.set()
            grown.wait(3)
            adopt()

        def resized(size):
            resize(size)
            grown.set()

        peek.environment(store).adopt_map = slowly
        reader = start(store.get, b"absent")
        assert ready.wait(60)
        peek.environment(store).resize = resized
        writer = start(store.put, b"new", b"1")
        for thread in (reader, writer):
            thread.join(60)
            assert not thread.is_alive()
        assert store.get(b"new") == b"1"


def test_filter_is_loaded_later_if_no_thread_can_be_started(path, monkeypatch):
    with open_store(path) as store:
        store.update((b"k%d" % i, b"") for i in range(5000))
    monkeypatch.setattr("dlbf.storage.ledger.LOAD_ASIDE_BYTES", 0)
    real = threading.Thread.start

    def fail(thread):
        if thread.name == "dlbf-loader":
            raise RuntimeError("can't start new thread")
        real(thread)

    with open_store(path) as store:
        monkeypatch.setattr(threading.Thread, "start", fail)
        assert store.get(b"x") is None
        monkeypatch.undo()
        assert store.stats().state == "filtering"


def test_filter_is_not_loaded_aside_while_the_store_is_being_closed(path, monkeypatch):
    with open_store(path) as store:
        store.update((b"k%d" % i, b"") for i in range(5000))
    monkeypatch.setattr("dlbf.storage.ledger.LOAD_ASIDE_BYTES", 0)
    begun = []
    real = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (begun.append(thread.name), real(thread)))
    store = open_store(path)
    environment = peek.environment(store)
    let_go = environment.let_go

    def read_first():
        # The map is about to go: who loads the filter from it would read what is not there any more.
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(store.get, b"k1").result() == b""
        let_go()

    monkeypatch.setattr(environment, "let_go", read_first)
    store.close()
    assert "dlbf-loader" not in begun


def test_close_waits_for_a_thread_that_reads_the_filter_out_of_the_map(path, monkeypatch):
    with open_store(path) as store:
        store.update((b"k%d" % i, b"") for i in range(5000))
    store = open_store(path)
    closer = threading.Thread(target=store.close)
    was_open = []
    real = lmdblog.aligned_zeros

    def close_meanwhile(n_bytes):
        # Now this thread has views of the map, and is about to read them.
        closer.start()
        closer.join(0.2)
        was_open.append(peek.environment(store).handle is not None)
        return real(n_bytes) if was_open[0] else pytest.fail("the map is gone")

    monkeypatch.setattr(lmdblog, "aligned_zeros", close_meanwhile)
    with contextlib.suppress(StoreError):  # it is closed now
        assert store.get(b"k1") == b""
    closer.join(60)
    assert was_open == [True]
    assert store.state == "closed"


def test_signal_handler_may_close_the_store_and_end_the_process_while_the_filter_is_read(path, monkeypatch):
    with open_store(path) as store:
        store.update((b"k%d" % i, b"") for i in range(5000))
    store = open_store(path)

    def handler(n_bytes):
        store.close()
        sys.exit(0)

    monkeypatch.setattr(lmdblog, "aligned_zeros", handler)
    with pytest.raises(SystemExit):
        store.get(b"k1")
    assert store.state == "closed"


CLOSING_HANDLER = """
import sys
from dlbf.errors import StoreError
from dlbf.storage import Store, lmdblog
store = Store(sys.argv[1], sync="none")
real = lmdblog.aligned_zeros

def handler(n_bytes):
    lmdblog.aligned_zeros = real
    store.close()
    return real(n_bytes)

lmdblog.aligned_zeros = handler
try:
    store.get(b"k1")
except StoreError as error:
    print("closed" if "closed" in str(error) else error)
print(store.state)
store.close()  # and now the map goes
with Store(sys.argv[1], sync="none") as store:
    print(len(store), store.verify().ok)
"""


def test_signal_handler_may_close_the_store_and_go_on_while_the_filter_is_read(path):
    with open_store(path) as store:
        store.update((b"k%d" % i, b"") for i in range(5000))
    ran = subprocess.run([sys.executable, "-c", CLOSING_HANDLER, path], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.split("\n")[-3:] == ["closed", "5000 True", ""]


def test_single_changes_are_quick_where_no_absent_keys_are_sampled(path):
    with open_store(path, sample_misses=False) as store:
        for i in range(200):
            store[b"%d" % i] = b""
        changes = peek.changes(store)
        before = changes.n_allowed
        assert before > 50
        for i in range(20):
            store[b"new %d" % i] = b""
            del store[b"%d" % i]
        assert changes.n_allowed == before - 40  # what is not quick would have set it anew


@pytest.mark.parametrize("name", ["dlbf-loader", "dlbf-misses"])
def test_thread_whose_beginning_is_interrupted_is_begun_again(path, monkeypatch, name):
    with open_store(path) as store:
        store.update((b"k%d" % i, b"v") for i in range(5000))
    monkeypatch.setattr("dlbf.storage.ledger.LOAD_ASIDE_BYTES", 0)
    monkeypatch.setattr("dlbf.storage.traffic.FLUSH_SECONDS", 0.0)
    real = threading.Thread.start
    seen = []

    def interrupted(thread):
        if thread.name == name:
            seen.append(name)
            if len(seen) == 1:
                raise Interrupt
        real(thread)

    def use():
        if name == "dlbf-misses":
            store.traffic.sample(1.0, 1, 1)
        assert store.get(b"absent") is None
        assert store.get(b"k1") == b"v"

    with open_store(path) as store:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(Interrupt):
            use()
        use()
        assert seen == [name] * 2
    store = open_store(path)
    seen.clear()
    with pytest.raises(Interrupt):
        use()
    store.close()


def test_reads_go_on_if_no_thread_can_be_started_to_end_their_transactions(path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("can't start new thread")

    with open_store(path, sample_misses=False) as store:
        store[b"key"] = b"v"
        monkeypatch.setattr("_thread.start_new_thread", fail)
        assert store.get(b"key") == b"v"
        assert store.get(b"key") == b"v"
        assert not peek.environment(store).drop_kept()  # nobody would end it
        monkeypatch.undo()


def test_readers_batches_and_single_changes_side_by_side(path):
    """Committed keys of others are there, in batches and one by one, while the filter changes under them."""
    with open_store(path) as store:
        keys = [b"kept %d" % i for i in range(2000)]
        store.update((key, b"v") for key in keys)
        stop = threading.Event()
        errors = []

        def guarded(number):
            def run():
                try:
                    while not stop.is_set():
                        functions[number]()
                        rounds[number] += 1
                except BaseException as error:
                    errors.append(error)

            return run

        def one_by_one():
            for key in keys[::37]:
                assert store.get(key) == b"v"

        def together():
            assert store.get_many(keys) == [b"v"] * len(keys)

        def change():
            for i in range(50):
                store[b"new %d" % i] = b"1"
                assert store.get(b"new %d" % i) == b"1"
            for i in range(50):
                assert store.delete(b"new %d" % i)
                assert store.get(b"new %d" % i) is None

        functions = [one_by_one, one_by_one, together, change]
        rounds = [0] * len(functions)
        threads = [start(guarded(number)) for number in range(len(functions))]
        while min(rounds) < 120 and not errors:
            time.sleep(0.01)
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not errors
        assert store.verify().ok


def test_quick_changes_do_not_take_the_slow_way(path, monkeypatch):
    with open_store(path) as store:
        for i in range(300):
            store[b"%d" % i] = b""
        assert peek.changes(store).n_allowed > 50

        def slow(*arguments):
            raise AssertionError("slow")

        monkeypatch.setattr(Store, "_set_slowly", slow)
        monkeypatch.setattr(Store, "_delete_slowly", slow)
        for i in range(20):
            store[b"%d" % i] = b"again"
            store[b"new %d" % i] = b""
            assert store.delete(b"new %d" % i)
        monkeypatch.undo()
        assert store.verify().ok


def test_filter_that_a_quick_change_outgrows_is_made_larger_at_once(path, monkeypatch):
    with open_store(path) as store:
        for i in range(300):
            store[b"%d" % i] = b""
        before = store.stats().generation
        monkeypatch.setattr(store.ledger.filter.__class__, "_make_room", lambda self, n: full())

        def full():
            from dlbf.errors import FilterFullError

            raise FilterFullError("no room")

        peek.changes(store).n_allowed = 10**6
        for i in range(300, 5000):
            store[b"%d" % i] = b""
            if store.stats().generation != before:
                break
        monkeypatch.undo()
        assert store.stats().generation != before
        assert all(b"%d" % j in store for j in range(i + 1))
        assert store.stats().state == "filtering"
        assert store.verify().ok


def in_a_snapshot(store):
    with store.snapshot() as view:
        len(view), view.get(b"k1"), view.get(b"absent"), list(view.items()), b"k2" in view


def in_a_transaction(store):
    with store.write() as txn:
        txn.put(b"k3", b"w"), txn.delete(b"new"), txn.get(b"k1"), len(txn), list(txn)


def back_up(store):
    with tempfile.TemporaryDirectory() as folder:
        store.backup(folder)


USES = {
    "get": lambda store: [store.get(b"k%d" % i) for i in range(100)],
    "get_many": lambda store: store.get_many([b"k1", b"absent", b"k" * 600]),
    "iterate": lambda store: list(store.items()),
    "len": len,
    "snapshot": in_a_snapshot,
    "put": lambda store: store.put(b"k1", b"v"),
    "slow put": lambda store: store.put("k1", b"v"),
    "transaction": in_a_transaction,
    "change": lambda store: (store.update({b"new": b""}), store.pop(b"new", None), store.setdefault(b"k1", b"")),
    "care": lambda store: (store.stats(), store.checkpoint(), store.sync(), store.state),
    "verify": lambda store: store.verify(),
    "rebuild": lambda store: store.rebuild(model=None),
    "drift": lambda store: store.drift(),
    "backup": lambda store: back_up(store),
    "refresh": lambda store: (store.ledger.withdraw(), store.get(b"absent")),
}


@pytest.mark.parametrize("name", USES)
def test_thread_that_uses_a_store_that_another_closes_is_told_so(path, caplog, name):
    for turn in range(15):
        store = open_store(path)
        store.update((b"k%d" % i, b"v") for i in range(100))
        close_under(store, USES[name], 0.001 * turn)
    assert not caplog.records


class Interrupt(BaseException):
    """As Ctrl-C raises it, or a timeout."""


def interrupt(function, number):
    """Call a function, and raise at the ``number``-th place in the store's code where a signal's exception may come.

    Those are the beginning of a function and the return of a call.  False if there are not so many.
    """
    folder = str(Path(steps.__file__).parent) + os.sep
    places = 0

    def reach():
        nonlocal places
        places += 1
        if places == number:
            sys.settrace(None)
            raise Interrupt

    def trace(frame, event, argument):
        if event != "call" or not frame.f_code.co_filename.startswith(folder):
            return None
        frame.f_trace_opcodes = True
        before = ""

        def trace_frame(frame, event, argument):
            nonlocal before
            if event == "opcode":
                called = before.startswith("CALL")
                before = dis.opname[frame.f_code.co_code[frame.f_lasti]]
                if called:
                    reach()
            return trace_frame

        reach()
        return trace_frame

    tracer = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except Interrupt:
        return True
    finally:
        sys.settrace(tracer)
    return False


def in_transaction(store):
    with store.write() as txn:
        txn.put(b"new", b"1")
        txn.delete(b"key 1")


def in_snapshot(store):
    with store.snapshot() as view:
        assert view.get(b"key 2") == b"v"


def make_successor(store):
    peek.commits(store).growth.builder = None
    peek.commits(store).grow_if_due(1)


OPERATIONS = {
    "transaction": in_transaction,
    "put": lambda store: store.put("text", b"v"),
    "delete": lambda store: store.delete("text"),
    "snapshot": in_snapshot,
    "get": lambda store: (store.get("key 2"), store.get("no such key")),
    "get_many": lambda store: store.get_many([b"key 2", b"no such key"]),
    "items": lambda store: list(store.items(prefix=b"key 2")),
    "checkpoint": lambda store: store.checkpoint(),
    "flush": lambda store: peek.commits(store).flush(),
    "follow": lambda store: (store.ledger.drop(), store.ledger.withdraw(), store.ledger.refresh(wait=True)),
    "successor": make_successor,
    "map": lambda store: peek.environment(store).adopt_map(),
    "quick": lambda store: store._allow_quick_changes(),
}


def check_that_nothing_is_held(store):
    assert not peek.writes(store).lock.locked()
    assert not peek.writes(store).writer
    assert not peek.commits(store)._build_lock.locked()
    assert not peek.environment(store).n_reading
    assert store.ledger.lock.acquire(False)
    store.ledger.lock.release()
    thread = start(len, store)
    thread.join(60)
    assert not thread.is_alive()


# What interrupts a finalizer is lost, and told.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", OPERATIONS)
def test_interrupted_operation_gives_back_every_lock_and_count(path, monkeypatch, name):
    with open_store(path) as store:
        store.update((b"key %d" % i, b"v") for i in range(300))
        if name == "successor":
            monkeypatch.setattr(ledger.Ledger, "needs_successor", lambda self: self.filter is not None)
        number = 1
        while interrupt(lambda: OPERATIONS[name](store), number):
            check_that_nothing_is_held(store)
            number += 1
        assert number > 2
        monkeypatch.undo()
        store[b"after"] = b"1"
        assert store.get(b"after") == b"1"
        assert store.verify().ok


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_commit_of_a_checkpoint_is_not_followed_twice(store):
    first, other = store.twins

    def delete():
        store.ledger.log_limit = store.ledger.log_bytes  # so that it makes a checkpoint, and has a record of its own
        with store.write() as txn:
            txn.delete(first)

    number = n_committed = 0
    interrupted = True
    while interrupted:
        number += 1
        interrupted = interrupt(delete, number)
        assert store.get(other) == b"2"
        assert store.state == "filtering"
        n_committed += first not in store
        store[first] = b"1"
        store.update((b"another key %d" % i, b"") for i in range(20))
        with store.write() as txn:
            for i in range(20):
                txn.delete(b"another key %d" % i)
    assert n_committed > 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_timeouts_by_signal_give_back_every_lock_and_count(path):
    armed = False

    def handler(*_):
        if armed:
            raise Interrupt

    chance = random.Random(7)
    before = signal.signal(signal.SIGALRM, handler)
    n_interrupted = 0
    store = open_store(path)
    try:
        store.update((b"key %d" % i, b"v") for i in range(300))
        while n_interrupted < 2000:
            operation = OPERATIONS[chance.choice(["transaction", "put", "snapshot", "get", "get_many"])]
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 300e-6))
                operation(store)
                armed = False
            except Interrupt:
                armed = False
                n_interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            check_that_nothing_is_held(store)
        assert store.verify().ok
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        peek.close_untidily(store)  # close() would wait for a lock that was not given back


@pytest.mark.parametrize("where", ["backup", "map"])
def test_signal_handler_that_writes_where_the_write_lock_is_held_gets_an_error_not_a_deadlock(
    path, tmp_path, monkeypatch, where
):
    with open_store(path) as store:
        store[b"key"] = b"v"
        env = peek.environment(store).handle
        refused = []

        def handler():
            try:
                store["from the handler"] = b"1"
            except StoreError as error:
                refused.append(str(error))

        class Environment:
            def set_mapsize(self, size):
                env.set_mapsize(size)
                handler()

            def __getattr__(self, name):
                return getattr(env, name)

        copy = store_module.copy_environment
        monkeypatch.setattr(store_module, "copy_environment", lambda *arguments: (copy(*arguments), handler()))
        peek.environment(store).handle = Environment()
        adopt = peek.environment(store).adopt_map
        thread = start(*{"backup": (store.backup, tmp_path / "copy"), "map": (adopt,)}[where])
        thread.join(60)
        assert not thread.is_alive()
        assert "in the middle of a backup" in refused[0]
        peek.environment(store).handle = env
        store["later"] = b"1"
        assert dict(store) == {b"key": b"v", b"later": b"1"}


def during_resize(store, function):
    """Have a function called, as a signal handler might be, where a thread moves the map; returns what it raised."""
    env = peek.environment(store).handle
    raised = []

    class Environment:
        def set_mapsize(self, size):
            try:
                function()
            except StoreError as error:
                raised.append(str(error))
            env.set_mapsize(size)

        def __getattr__(self, name):
            return getattr(env, name)

    peek.environment(store).handle = Environment()
    thread = start(peek.environment(store).adopt_map)
    thread.join(60)
    assert not thread.is_alive()
    peek.environment(store).handle = env
    return raised


def test_signal_handler_that_reads_while_its_thread_moves_the_map_gets_an_error_not_a_deadlock(path):
    with open_store(path) as store:
        store[b"key"] = b"v"
        for read in (lambda: store.get(b"key"), lambda: len(store), store.snapshot):
            assert "making the LMDB map larger" in during_resize(store, read)[0]
        assert store.get(b"key") == b"v"
        check_that_nothing_is_held(store)


def test_thread_that_iterates_may_read_while_another_waits_to_move_the_map(path):
    with open_store(path) as store:
        store.update((b"%d" % i, b"v") for i in range(3))
        seen = []

        def iterate():
            for key in store:
                if not seen:
                    threads.append(start(peek.environment(store).adopt_map))
                    time.sleep(0.2)  # reads are held now
                seen.append((key, store[key], store.get_many([key]), len(store)))

        threads = []
        start(iterate).join(60)
        assert seen == [(b"%d" % i, b"v", [b"v"], 3) for i in range(3)]
        threads[0].join(60)
        assert not threads[0].is_alive()
        check_that_nothing_is_held(store)


def abandon(store):
    """Begin a write transaction that only the garbage collector can end."""
    txn = store.write()
    txn.put(b"lost", b"1")
    cycle = [txn]
    cycle.append(cycle)


def test_transaction_collected_in_another_thread_is_ended_by_its_own(path):
    with open_store(path) as store:
        begun, collected = threading.Event(), threading.Event()
        errors = []

        def write(key):
            try:
                store[key] = b"1"
            except StoreError as error:
                errors.append(str(error))

        def own():
            abandon(store)
            begun.set()
            collected.wait(60)
            write(b"own")

        gc.disable()
        try:
            owner = start(own)
            assert begun.wait(60)
            waiting = start(write, b"waiting")
            time.sleep(0.1)
            gc.collect()
        finally:
            gc.enable()
        other = start(write, b"other")
        for thread in (waiting, other):
            thread.join(60)
            assert not thread.is_alive()
        assert len(errors) == 2
        assert all("collected in another thread" in error for error in errors)
        collected.set()
        owner.join(60)
        assert not owner.is_alive()
        store[b"later"] = b"1"
        assert dict(store) == {b"own": b"1", b"later": b"1"}


def test_transaction_of_a_thread_that_has_ended_is_ended_by_any(path):
    with open_store(path) as store:
        gc.disable()
        try:
            start(abandon, store).join()
            gc.collect()
        finally:
            gc.enable()
        thread = start(store.put, b"later", b"1")
        thread.join(60)
        assert not thread.is_alive()
        store[b"last"] = b"1"
        assert dict(store) == {b"later": b"1", b"last": b"1"}


def test_transaction_is_not_ended_in_another_thread(path):
    with open_store(path) as store:
        txn = store.write()
        txn.put(b"key", b"1")
        errors = []

        def use(function):
            try:
                function()
            except StoreError as error:
                errors.append(str(error))

        for function in (txn.commit, txn.abort, lambda: txn.get(b"key")):
            start(use, function).join()
        assert len(errors) == 3
        assert all("begun in another thread" in error for error in errors)
        txn.commit()
        assert dict(store) == {b"key": b"1"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("held", ["len(store)", "view = store.snapshot()", "txn = store.write()"])
def test_child_that_only_ends_does_not_free_what_the_parent_reads_with(path, held):
    elsewhere(
        path,
        "import os, warnings; warnings.simplefilter('ignore')",
        "store[b'key'] = b'v'",
        held,
        "child = os.fork()",
        "if not child: sys.exit()",
        "assert os.waitpid(child, 0)[1] == 0",
        "if 'txn' in globals(): txn.put(b'new', b''); txn.commit()",
        "assert 'view' not in globals() or f' {view.txn_id}' in store._environment.handle.readers()",
        "assert len(store) == 1 + ('txn' in globals()) and store.get(b'key') == b'v'",
        "store[b'other'] = b''; assert store.verify().ok",
    )


def test_close_that_was_interrupted_is_finished_by_the_next(path):
    store = open_store(path)
    store[b"a"] = b"1"
    meta_map, peek.environment(store)._meta_map = peek.environment(store)._meta_map, Interrupting()
    with pytest.raises(TimeoutError):
        store.close()
    store.close()
    meta_map.close()
    with open_store(path) as again:
        assert again[b"a"] == b"1"


def test_interrupted_close_of_a_guard_closes_no_file_twice(path):
    engine = {b"key": b"v"}
    number = 1
    while True:
        guard = Guard(engine, path, sync="none")
        interrupted = interrupt(guard.close, number)
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]  # which may have the numbers of what was closed
        guard.close()
        for other in others:
            os.close(other)
        if not interrupted:
            break
        number += 1
    assert number > 2


class Interrupting:
    """A map that cannot be closed at first."""

    n_calls = 0

    def close(self):
        self.n_calls += 1
        if self.n_calls == 1:
            raise TimeoutError


def test_exception_from_a_handler_leaves_nobody_asleep_for_ever(path):
    """It may come anywhere, also in the middle of waking the thread that ends unused transactions."""

    class Stop(Exception):
        pass

    def stop(number, frame):
        raise Stop

    with open_store(path) as store:
        store[b"a"] = b"1"
        before = signal.signal(signal.SIGALRM, stop)
        try:
            for i in range(3000):
                with contextlib.suppress(Stop):
                    signal.setitimer(signal.ITIMER_REAL, 1e-5 + i % 50 * 1e-6)
                    while True:
                        peek.environment(store).start_sweeping()
                        store.get(b"a")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert store.get(b"a") == b"1"


def test_figures_of_a_filter_that_another_thread_takes_away(path):
    from dlbf.storage import figures

    with open_store(path) as store:
        store[b"a"] = b"1"
        reading = peek.environment(store).reading

        def taken_away(*arguments):
            store.ledger.filter = None
            return reading(*arguments)

        assert store.state == "filtering"
        peek.environment(store).reading = taken_away
        assert figures.figures_now(store.ledger).keys == 1


def test_thread_that_does_not_end_keeps_close_from_waiting_for_ever(path, monkeypatch):
    monkeypatch.setattr("dlbf.storage.face.CLOSE_PATIENCE_SECONDS", 0.1)
    store = open_store(path)
    end = threading.Event()
    store.ledger._loader = threading.Thread(target=end.wait, daemon=True)
    store.ledger._loader.start()
    with pytest.raises(StoreError, match="close it later"):
        store.close()
    store[b"a"] = b"1"  # it is still open
    monkeypatch.undo()
    end.set()
    store.close()


def test_opening_with_a_small_map_while_another_process_appends(path):
    open_store(path, map_size=1 << 20).close()
    program = (
        "import sys\nfrom dlbf.storage import Store\n"
        "with Store(sys.argv[1], sync='none') as store:\n"
        "    print('ready', flush=True)\n"
        "    for i in range(10**9):\n"
        "        store[b'%d' % i] = bytes(8000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE) as writer:
        try:
            writer.stdout.readline()
            for i in range(200):
                with open_store(path, map_size=1 << 20, readonly=i % 2 == 0) as store:
                    assert store.get(b"0") in (None, bytes(8000))
        finally:
            writer.kill()


def test_signal_handler_may_close_the_store_and_end_the_process_while_a_transaction_begins(tmp_path):
    """The write lock, which that gave back, was given back again: RuntimeError instead of the end."""
    program = """
import os, signal, sys
from dlbf.storage import Store
store = Store(sys.argv[1])
def end(number, frame):
    store.close()
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
from dlbf.storage.environment import Writes
before = Writes.begin_locked
def begin(writes):
    txn = before(writes)
    os.kill(os.getpid(), signal.SIGTERM)
    return txn
Writes.begin_locked = begin
store.update({b"a": b"1"})
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "store"], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (7, "")
