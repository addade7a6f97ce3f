"""Threads on one filter: keys that stay are found whatever others do, and nothing crashes."""

import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from support import peek
from support.samples import SECRET, url_keys

import dlbf
from dlbf.capi import FilterReader

N = 6000
STAY = url_keys(N, seed=21)
GO = url_keys(N, seed=22)
MAKERS = {
    "bloom": lambda: dlbf.BloomFilter(3 * N, 1e-4),
    "counting-2": lambda: dlbf.CountingBloomFilter(3 * N, counter_bits=2),
    "counting-4": lambda: dlbf.CountingBloomFilter(3 * N),
    "counting-8-blocked": lambda: dlbf.CountingBloomFilter(3 * N, counter_bits=8, layout="blocked"),
    "deletable": lambda: dlbf.DeletableBloomFilter(3 * N),
    "dleft": lambda: dlbf.DLeftFilter(3 * N),
    "cuckoo": lambda: dlbf.CuckooFilter(3 * N),
    # Nearly full: most insertions move what is there.
    "cuckoo-crowded": lambda: dlbf.CuckooFilter(2 * N),
    "exact": lambda: dlbf.ExactSet(3 * N),
    "exact-growing": lambda: dlbf.ExactSet(1),
}


@pytest.fixture(params=sorted(MAKERS))
def shared(request):
    return MAKERS[request.param]()


@pytest.fixture(autouse=True)
def _switch_often():
    """Threads change places far more often than they would."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def run(*functions, seconds=0.25):
    """Call each function again and again, at least once, in a thread of its own; the first error of any is raised."""
    stop = threading.Event()
    errors = []

    def loop(function):
        try:
            function()
            while not stop.is_set():
                function()
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=loop, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def come_and_go(f, batch=True):
    def go():
        if batch:
            f.update(GO)
            if f.DELETABLE:
                f.remove_many(GO)
        else:
            for key in GO[:500]:
                f.add(key)
            if f.DELETABLE:
                for key in GO[:500]:
                    f.discard(key)

    return go


def ask_batch(f):
    def ask():
        assert f.contains_many(STAY).all()

    return ask


def ask_one(f):
    def ask():
        for key in STAY[::7]:
            assert key in f

    return ask


@pytest.mark.parametrize("batch", [True, False])
def test_readers_beside_a_writer_find_what_stays(shared, batch):
    shared.update(STAY)
    run(come_and_go(shared, batch), ask_batch(shared), ask_one(shared))
    assert shared.contains_many(STAY).all()


def test_two_writers_and_two_readers_find_what_stays(shared):
    shared.update(STAY)
    if isinstance(shared, dlbf.CuckooFilter):
        shared = dlbf.CuckooFilter(6 * N)
        shared.update(STAY)
    run(come_and_go(shared), come_and_go(shared, batch=False), ask_batch(shared), ask_one(shared))
    assert shared.contains_many(STAY).all()


def test_writers_of_different_keys_lose_none(shared):
    if shared.capacity == 2 * N:
        shared = dlbf.CuckooFilter(3 * N)
    parts = [STAY[i::3] for i in range(3)]
    threads = [
        threading.Thread(target=shared.update, args=(parts[0],)),
        threading.Thread(target=lambda: [shared.add(key) for key in parts[1]]),
        threading.Thread(target=shared.update, args=(iter(parts[2]),)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shared) == N
    assert shared.contains_many(STAY).all()


def test_exact_set_that_grows_under_many_hands_loses_none():
    # Every add may move the whole table to another place: the moment in which others could lose theirs.
    for _ in range(20):
        s = dlbf.ExactSet(1)
        parts = [[b"%d/%d" % (i, j) for j in range(800)] for i in range(4)]
        threads = [threading.Thread(target=s.update, args=(iter(part),)) for part in parts[:2]]
        threads += [threading.Thread(target=lambda s=s, p=part: [s.add(key) for key in p]) for part in parts[2:]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(s) == 3200
        assert sorted(s) == sorted(itertools.chain(*parts))


def test_bytes_taken_beside_a_writer_are_whole(shared):
    shared.update(STAY)

    def read():
        # from_bytes compares every checksum, so a byte changed between sum and copy would show.
        assert type(shared).from_bytes(shared.to_bytes()).contains_many(STAY).all()
        assert shared.copy().contains_many(STAY).all()
        assert pickle.loads(pickle.dumps(shared)).contains_many(STAY).all()

    run(come_and_go(shared), come_and_go(shared, batch=False) if shared.capacity == 3 * N else ask_one(shared), read)


def test_union_in_place_beside_readers_keeps_what_stays(shared):
    if shared.capacity == 2 * N or isinstance(shared, dlbf.DLeftFilter):
        shared = type(shared)(6 * N)
    shared.update(STAY)
    other = shared.copy()
    other.clear()
    other.update(GO[:100])

    def merge():
        nonlocal shared
        try:
            shared |= other
        except dlbf.FilterFullError:
            shared.remove_many(GO[:100] * 5)

    run(merge, ask_batch(shared), ask_one(shared))


def test_unions_of_each_other_do_not_deadlock():
    f, g = dlbf.CountingBloomFilter(1000), dlbf.CountingBloomFilter(1000)
    f.update(STAY[:500])
    g.update(GO[:500])
    run(lambda: f.__ior__(g), lambda: g.__ior__(f), lambda: f.__ior__(f), lambda: f == g)
    assert f.contains_many(STAY[:500] + GO[:500]).all()


def test_statistics_beside_a_writer(shared):
    shared.update(STAY)

    def read():
        assert 0 < shared.fill <= 1
        assert shared.approximate_count() >= 0
        assert len(shared) >= 0
        repr(shared)
        if isinstance(shared, dlbf.ExactSet):
            assert len(list(shared)) >= N

    run(come_and_go(shared), read)


def test_close_beside_readers_is_an_error_for_them_and_not_a_crash(shared, tmp_path):
    shared.update(STAY)
    shared.save(tmp_path / "f")
    for mode in ("r", "r+"):
        for _ in range(5):
            f = dlbf.open_filter(tmp_path / "f", mode)
            ready = threading.Barrier(4)
            errors = []

            def use(ask, f=f, ready=ready, errors=errors):
                ready.wait()
                try:
                    while True:
                        ask(f)
                except BaseException as failure:
                    errors.append(str(failure))

            def statistics(f):
                assert f.fill > 0
                assert f.copy().contains_many(STAY).all()
                if f.closed:
                    raise ValueError("closed")

            asks = (lambda f: ask_batch(f)(), lambda f: ask_one(f)(), statistics)
            threads = [threading.Thread(target=use, args=(ask,)) for ask in asks]
            for thread in threads:
                thread.start()
            ready.wait()
            f.close()
            for thread in threads:
                thread.join()
            assert [error for error in errors if "closed" not in error] == []
    with dlbf.open_filter(tmp_path / "f") as f:
        assert f.contains_many(STAY).all()


def test_close_beside_writers_leaves_a_whole_file(tmp_path):
    for maker in (MAKERS["counting-4"], MAKERS["cuckoo"]):
        f = maker()
        f.update(STAY)
        f.save(tmp_path / "f")
        for _ in range(10):
            f = dlbf.open_filter(tmp_path / "f", "r+")

            errors = []

            def change(go, errors=errors):
                try:
                    while True:
                        go()
                except ValueError as failure:
                    errors.append(str(failure))

            threads = [threading.Thread(target=change, args=(come_and_go(f, batch),)) for batch in (True, False)]
            for thread in threads:
                thread.start()
            f.close()
            for thread in threads:
                thread.join()
            assert errors == ["this filter is closed"] * 2
            with dlbf.open_filter(tmp_path / "f", "r+") as f:  # r+ compares every sum
                assert f.contains_many(STAY).all()
                f.clear()
                f.update(STAY)


def test_lazily_checked_map_asked_by_many_threads(tmp_path):
    f = dlbf.CuckooFilter(200_000)
    keys = url_keys(200_000, seed=23)
    f.update(keys)
    f.save(tmp_path / "f")
    for _ in range(5):
        with dlbf.open_filter(tmp_path / "f") as mapped:
            answers = []

            def ask(part, mapped=mapped, answers=answers):
                answers.append(mapped.contains_many(part).all() and all(key in mapped for key in part[::50]))

            threads = [threading.Thread(target=ask, args=(keys[i::4],)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert answers == [True] * 4


class Exported:
    """An Arrow array whose export, in which pyarrow lets go of the GIL, has been done."""

    def __init__(self, keys):
        self.capsules = pa.array(keys, pa.binary()).__arrow_c_array__()

    def __arrow_c_array__(self, requested_schema=None):
        return self.capsules


SHAPES = {
    "list": list,
    "tuple": tuple,
    "list of str": lambda keys: [key.decode() for key in keys],
    "tuple of str": lambda keys: tuple(key.decode() for key in keys),
    "numpy S": np.array,
    "arrow": lambda keys: pa.array(keys, pa.binary()),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_batch_goes_on_while_another_thread_keeps_the_gil(shape):
    # Threads that wait for each other at every few keys do less than one alone; so a batch needs the GIL rarely.  Here
    # it never gets it back, and yet the last of 8192 keys must arrive.  They are long, so that the other thread has the
    # GIL before the first chunk is done.
    keys = [key * (4096 // len(key)) for key in url_keys(8192, seed=24)]
    batch = Exported(keys) if shape == "arrow" else SHAPES[shape](keys)
    expected = dlbf.BloomFilter(10_000, secret=SECRET)
    expected.update(keys)
    wanted = bytes(peek.payload(expected))
    f = dlbf.BloomFilter(10_000, secret=SECRET)
    seen = peek.payload(f)
    thread = threading.Thread(target=f.update, args=(batch,))
    sys.setswitchinterval(600)
    thread.start()
    end = time.monotonic() + 60
    while seen != wanted and time.monotonic() < end:
        pass
    arrived = seen == wanted
    sys.setswitchinterval(1e-5)
    thread.join()
    assert arrived


def test_reading_batch_leaves_the_gate_to_a_writer():
    # A key that is added while a batch is asked must not wait for its end: then the batch's last question finds it.
    keys = (*url_keys(20_000, seed=25) * 50, b"late")

    def found_by_the_batch_beside_it():
        f = dlbf.BloomFilter(10_000)
        begun = threading.Event()
        answers = []

        def ask():
            begun.set()
            answers.append(f.contains_many(keys)[-1])

        thread = threading.Thread(target=ask)
        sys.setswitchinterval(600)  # whoever waits for `begun` goes on when the batch gives the GIL up, not before
        thread.start()
        begun.wait()
        f.add(b"late")
        sys.setswitchinterval(1e-5)
        thread.join()
        return answers[0]

    # On a busy machine a batch may be at its end before this thread has its turn, so there are more of them.
    assert any(found_by_the_batch_beside_it() for _ in range(100))


@pytest.mark.parametrize("shape", ["tuple", "list", "mixed"])
def test_batch_left_early_by_a_reader_misses_no_key(shape):
    f = dlbf.BloomFilter(100_000, 1e-4)
    keys = url_keys(50_000, seed=26)
    f.update(keys)
    kinds = (bytes, bytes.decode, bytearray)
    keys += [b"absent %d" % i for i in range(7)]
    if shape == "mixed":
        keys = [kinds[i // 5 % 3](key) for i, key in enumerate(keys)]
    if shape != "list":
        keys = tuple(keys)
    expected = f.contains_many(keys)
    assert expected[:-7].all()

    def ask():
        assert (f.contains_many(keys) == expected).all()

    run(ask, lambda: f.add(STAY[0]), ask, seconds=1)


def batches_per_second(work, f, keys, seconds, out, place):
    done, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        done += work(f, keys)
    out[place] = done / spent


def ask(f, keys):
    f.contains_many(keys)
    return 1


def change(f, keys):
    f.update(keys)
    if f.DELETABLE:
        f.remove_many(keys)
    return 1 + f.DELETABLE


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize("shape", ["list", "tuple", "numpy S", "arrow"])
@pytest.mark.parametrize("maker", [dlbf.BloomFilter, dlbf.CountingBloomFilter, dlbf.CuckooFilter])
@pytest.mark.parametrize("work", [ask, change])
def test_two_threads_do_at_least_1_7_times_the_work_of_one(work, maker, shape):
    """Two processes share nothing: what they reach is what the machine gives at the moment.

    Threads ask one filter; each changes one of its own, for a filter has one writer at a time.
    """
    f = maker(1_400_000)
    f.update(url_keys(1_000_000, seed=27))
    filters = [f, f if work is ask else f.copy()]
    absent = url_keys(400_000, seed=28)
    halves = [SHAPES[shape](absent[:200_000]), SHAPES[shape](absent[200_000:])]
    reached = {"one": [], "threads": [], "processes": []}
    fork = multiprocessing.get_context("fork")
    for _ in range(8):
        for name, (workers, make) in {
            "one": (1, threading.Thread),
            "threads": (2, threading.Thread),
            "processes": (2, fork.Process),
        }.items():
            out = fork.Array("d", workers)
            running = [
                make(target=batches_per_second, args=(work, filters[i], halves[i], 0.2, out, i)) for i in range(workers)
            ]
            for worker in running:
                worker.start()
            for worker in running:
                worker.join()
            reached[name].append(sum(out))
    threads, processes = (max(reached[name]) / max(reached["one"]) for name in ("threads", "processes"))
    print(f"{work.__name__}, {maker.__name__}, {shape}: threads {threads:.2f}x, processes {processes:.2f}x")
    if processes < 1.75:
        pytest.skip(f"needs two idle cores: two processes did {processes:.2f} times the work of one")
    assert threads >= 1.7


BUSY = {
    "writing": lambda f, keys: (f.update(keys), f.remove_many(keys)),
    "reading": lambda f, keys: f.contains_many(keys),
    "waiting": lambda f, keys: (f.contains_many(keys), f.add(keys[0]), f.discard(keys[0])),
}
USES = (
    lambda f: STAY[0] in f,
    lambda f: f.contains_many(STAY),
    lambda f: f.add(b"new"),
    lambda f: f.update([b"new", b"newer"]),
    lambda f: f.copy(),
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("busy", BUSY)
@pytest.mark.parametrize("name", ["counting-4", "cuckoo", "exact"])
def test_child_of_a_process_whose_threads_are_at_work_has_a_whole_filter(name, busy):
    """Two threads are in the middle of a batch nearly all the time; in the child nobody would end it."""
    f = MAKERS[name]()
    f.update(STAY)
    codes = []

    def fork():
        for use in USES:
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                use(f)
                os._exit(0 if all(f.contains_many(STAY)) else 1)
            codes.append(os.waitpid(child, 0)[1])

    first, second = tuple(GO[: N // 2]), tuple(GO[N // 2 :])
    run(lambda: BUSY[busy](f, first), lambda: BUSY[busy](f, second), fork, seconds=0.5)
    assert len(codes) >= len(USES)
    assert not any(codes)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_thread_that_has_a_reader_may_fork():
    f = dlbf.CuckooFilter(100)
    f.add(b"a")
    with FilterReader(f) as reader:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(0 if b"a" in reader and b"a" in f else 1)
        assert os.waitpid(child, 0)[1] == 0
    f.add(b"b")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_signal_does_not_end_the_wait_of_who_forks():
    """Python forks all the same when a handler raises there: the child hung, and the exception was only printed."""
    program = """
import os, signal, threading, time, dlbf
f = dlbf.CountingBloomFilter(2_000_000)
keys = [b"%d" % i for i in range(200_000)]
f.update(keys)
ended = False
def work():
    while not ended:
        f.contains_many(keys)
        f.update(keys[:20_000])
def ring(number, frame):
    global rung
    rung = True
    raise TimeoutError
signal.signal(signal.SIGALRM, ring)
threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
hung = lost = 0
for i in range(100):
    child, rung = None, False
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + i % 50 * 0.00005)  # a slow machine may be rung before it forks
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 60)
            f.contains_many(keys[:10])
            f.update(keys[:10])
            os._exit(0)
        while not rung:
            time.sleep(0.001)
        lost += 1  # it was raised where nobody could catch it
    except TimeoutError:
        pass
    while True:
        try:
            hung += os.wait()[1] != 0
        except ChildProcessError:
            break
ended = True
for thread in threads:
    thread.join()
print(hung, lost)
"""
    # Python 3.12 and later warn of threads when they fork, and lose what a handler raises meanwhile, without dlbf too.
    quietly = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(quietly, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.stderr) == ("0 0\n", "")


@pytest.mark.parametrize("what", ["contains_many", "in", "add", "update", "reader"])
def test_thread_that_writes_batch_after_batch_starves_nobody(what):
    """It gives the GIL up only inside of its batches, so whoever else got it found the filter taken, for ever."""
    f = dlbf.CuckooFilter(20_000)
    # Batches of a millisecond: others wake up in them.
    # Between them less than the five after which the GIL changes hands.
    coming, own = url_keys(5000, seed=3), url_keys(100, seed=4)
    f.update(own)
    at_work, ended = threading.Event(), threading.Event()
    n_done = 0

    def write():
        while not ended.is_set():
            for key in coming:
                f.add(key)
            f.remove_many(coming)
            at_work.set()

    def other():
        nonlocal n_done
        for _ in range(20):
            if what == "contains_many":
                assert f.contains_many(own).all()
            elif what == "in":
                assert own[0] in f
            elif what == "add":
                f.add(b"another")
                f.remove(b"another")
            elif what == "update":
                f.update([b"another"] * 3)
                f.remove_many([b"another"] * 3)
            else:
                with FilterReader(f) as reader:
                    assert own[0] in reader
            n_done += 1

    sys.setswitchinterval(0.005)  # as it is outside of these tests: others are not let in by force
    threads = [threading.Thread(target=work, daemon=True) for work in (write, other)]
    threads[0].start()
    assert at_work.wait(60)
    threads[1].start()
    threads[1].join(60)
    n_in_time = n_done
    ended.set()
    for thread in threads:
        thread.join()
    # Some ten milliseconds for all of them; without turns none in a minute.
    assert n_in_time == 20
