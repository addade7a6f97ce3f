"""Group commit: threads that put keys while one of them waits share one record."""

import contextlib
import random
import signal
import threading
import time

import pytest

from dlbf.storage import Guard
from dlbf.storage.engines import MappingEngine


class Gated(MappingEngine):
    """A dict whose first put waits, and that refuses what it is told to."""

    in_flight = False

    def __init__(self):
        super().__init__({})
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.refused = None
        self.batches = []
        self.n_puts = 0

    def put(self, key, value):
        self.n_puts += 1
        self.begun.set()
        assert self.goes_on.wait(60)
        if value == self.refused:
            raise OSError("no room")
        super().put(key, value)

    def put_many(self, items):
        self.batches.append(len(items))
        super().put_many(items)


@contextlib.contextmanager
def busy(guard):
    """While a thread is in the middle of a put."""
    engine = guard.engine
    first = threading.Thread(target=guard.put, args=(b"first", b"1"))
    first.start()
    assert engine.begun.wait(60)
    try:
        yield
    finally:
        engine.goes_on.set()
        first.join()


def put_in_threads(guard, items):
    """Put items in threads, all of which wait; the exceptions by key."""
    errors = {}

    def put(key, value):
        try:
            guard[key] = value
        except OSError as error:
            errors[key] = error

    threads = [threading.Thread(target=put, args=item) for item in items]
    with busy(guard):
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while len(guard._groups.waiting) < len(threads):
            assert time.monotonic() < deadline
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert not guard._groups.waiting
    return errors


def test_threads_that_wait_share_one_record(tmp_path):
    engine = Gated()
    with Guard(engine, tmp_path, sync="full") as guard:
        position = guard.stats().last_txn
        items = [(b"key %d" % i, b"%d" % i) for i in range(8)]
        assert not put_in_threads(guard, items)
        assert engine.batches == [8]
        assert engine.n_puts == 9  # nobody did it again
        assert guard.stats().last_txn == position + 2
        assert engine.mapping == dict(items) | {b"first": b"1"}
        assert {key: guard[key] for key in engine.mapping} == engine.mapping
        verified = guard.verify()
        assert (verified.missing, verified.extra, verified.keys) == (0, 0, 9)


def test_only_the_thread_whose_value_is_refused_is_told(tmp_path):
    engine = Gated()
    engine.refused = b"bad"
    with Guard(engine, tmp_path, sync="full") as guard:
        values = [b"1", b"2", b"bad", b"3"]
        errors = put_in_threads(guard, [(b"key %d" % i, value) for i, value in enumerate(values)])
        assert set(errors) == {b"key 2"}
        assert engine.mapping == {b"first": b"1", b"key 0": b"1", b"key 1": b"2", b"key 3": b"3"}
        assert {key: guard[key] for key in engine.mapping} == engine.mapping
        verified = guard.verify()
        assert (verified.missing, verified.extra, verified.keys) == (0, 0, 4)


class Interrupted(Exception):
    pass


def test_put_that_is_interrupted_while_it_waits_never_happens(tmp_path):
    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Guard(Gated(), tmp_path, sync="full") as guard:
            with busy(guard):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(Interrupted):
                    guard[b"mine"] = b"1"
                assert not guard._groups.waiting
            guard[b"next"] = b"1"
            assert sorted(guard) == [b"first", b"next"]
            assert guard.verify().ok
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_guards_that_wait_for_nothing_make_no_groups(tmp_path):
    with Guard({}, tmp_path, sync="none") as guard:
        assert guard._groups is None


@pytest.mark.parametrize("seed", [1, 2])
def test_threads_that_put_and_delete_lose_nothing(tmp_path, seed):
    engine = Gated()
    engine.goes_on.set()
    wrong = []

    def work(guard, number):
        rng = random.Random(seed * 100 + number)
        for i in range(60):
            key = b"%d %d" % (number, rng.randrange(20))  # its own keys
            shared = b"shared %d" % rng.randrange(5)
            guard[key] = value = b"%d" % i
            if guard.get(key) != value:
                wrong.append(key)
            guard[shared] = value
            if rng.random() < 0.4:
                guard.delete(key)
                if guard.get(key) is not None:
                    wrong.append(key)
                guard.delete(shared)

    with Guard(engine, tmp_path, sync="full") as guard:
        threads = [threading.Thread(target=work, args=(guard, number)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert {key: guard.get(key) for key in engine.mapping} == engine.mapping
        verified = guard.verify()
        assert (verified.missing, verified.extra, verified.keys) == (0, 0, len(engine.mapping))
