"""Group commit: what threads change while one of them waits becomes one change."""

import contextlib
import random
import signal
import threading
import time

import pytest

from dlbf.storage import Guard, grouping
from dlbf.storage.engines import MappingEngine
from dlbf.storage.grouping import Alone


class Gated(MappingEngine):
    """A dict whose first put waits, and that refuses what it is told to."""

    in_flight = False

    def __init__(self, pairs=()):
        super().__init__(dict(pairs))
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.refused = None
        self.refused_delete = None
        self.batches = []
        self.deleted = []
        self.n_puts = 0
        self.n_syncs = 0

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

    def delete(self, key):
        self.delete_many([key])

    def delete_many(self, keys):
        """The keys before the one that is refused are gone."""
        self.deleted.append(len(keys))
        for key in keys:
            if key == self.refused_delete:
                raise OSError("no answer")
            del self.mapping[key]

    def sync(self):
        self.n_syncs += 1


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


def in_threads(guard, changes):
    """Make changes in threads, all of which wait, in this order; what each returned, or its OSError."""
    results = [None] * len(changes)

    def run(number, change, arguments):
        try:
            results[number] = change(*arguments)
        except OSError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(i, *change)) for i, change in enumerate(changes)]
    with busy(guard):
        for i, thread in enumerate(threads):
            thread.start()
            deadline = time.monotonic() + 60
            while len(guard._changing.waiting) <= i:
                assert time.monotonic() < deadline
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert not guard._changing.waiting
    return results


def put_in_threads(guard, items):
    """Put items in threads, all of which wait; the exceptions by key."""
    results = in_threads(guard, [(guard.put, item) for item in items])
    return {key: error for (key, _), error in zip(items, results, strict=True) if error is not None}


def check(guard, expected):
    """The engine has this, the filter just that."""
    assert guard.engine.mapping == expected
    assert {key: guard[key] for key in expected} == expected
    verified = guard.verify()
    assert (verified.missing, verified.extra, verified.keys) == (0, 0, len(expected))


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


START = {b"old %d" % i: b"0" for i in range(20)}


def test_deletes_that_wait_are_one_change_and_one_thread_is_told(tmp_path):
    engine = Gated(START)
    with Guard(engine, tmp_path, sync="full") as guard:
        position = guard.stats().last_txn
        found = in_threads(
            guard,
            [
                (guard.delete, [b"old 1"]),
                (guard.delete, [b"old 2"]),
                (guard.delete, [b"absent"]),
                (guard.delete, [b"old 2"]),
                (guard.delete_many, [[b"old 3", b"old 2", b"old 3", b"old 4", b"absent"]]),
            ],
        )
        # Whoever leads is first, the others are in their order.
        assert found[0] is True
        assert found[2] is False
        assert sorted([found[1], found[3], found[4] == 3]) == [False, False, True]
        assert found[4] in (2, 3)
        assert engine.deleted == [4]
        assert engine.n_syncs == 1
        assert guard.stats().last_txn == position + 2
        gone = {b"old 1", b"old 2", b"old 3", b"old 4"}
        check(guard, {key: value for key, value in START.items() if key not in gone} | {b"first": b"1"})


def test_batches_that_wait_are_one_record(tmp_path):
    engine = Gated(START)
    with Guard(engine, tmp_path, sync="full") as guard:
        position = guard.stats().last_txn
        batches = [{b"%d %d" % (i, j): b"%d" % i for j in range(30)} | {b"old %d" % i: b"new"} for i in range(4)]
        in_threads(guard, [(guard.update, [batch]) for batch in batches] + [(guard.put, (b"single", b"1"))])
        assert engine.batches == [4 * 31 + 1]
        assert guard.stats().last_txn == position + 2
        expected = dict(START) | {b"first": b"1", b"single": b"1"}
        for batch in batches:
            expected |= batch
        check(guard, expected)


def test_groups_have_no_more_keys_than_a_batch_but_one_threads_own(tmp_path, monkeypatch):
    monkeypatch.setattr(grouping, "GROUP_KEYS", 10)
    engine = Gated()
    with Guard(engine, tmp_path, sync="full") as guard:
        batches = [{b"%d %d" % (i, j): b"1" for j in range(n)} for i, n in enumerate([4, 4, 4, 25])]
        in_threads(guard, [(guard.update, [batch]) for batch in batches])
        assert sum(engine.batches) == 37
        assert all(n <= 10 or n == 25 for n in engine.batches)
        assert 8 in engine.batches
        check(guard, {key: b"1" for batch in batches for key in batch} | {b"first": b"1"})


def test_puts_and_deletes_of_one_key_that_wait_happen_in_some_order(tmp_path):
    engine = Gated(START)
    with Guard(engine, tmp_path, sync="full") as guard:
        found = in_threads(
            guard,
            [
                (guard.delete, [b"new"]),
                (guard.put, (b"new", b"1")),
                (guard.put, (b"old 1", b"1")),
                (guard.delete, [b"old 1"]),
            ],
        )
        assert found == [True, None, None, True]  # stored first
        check(guard, {key: value for key, value in START.items() if key != b"old 1"} | {b"first": b"1"})


def test_only_the_thread_whose_delete_is_refused_is_told(tmp_path):
    engine = Gated(START)
    engine.refused_delete = b"old 3"
    with Guard(engine, tmp_path, sync="full") as guard:
        keys = [b"old 1", b"old 2", b"old 3", b"old 4", b"absent"]
        found = in_threads(guard, [(guard.delete, [key]) for key in keys] + [(guard.put, (b"new", b"1"))])
        # Also who was told that the group has failed, after its key was gone.
        assert [found[i] for i in (0, 1, 3, 4)] == [True, True, True, False]
        assert isinstance(found[2], OSError)
        assert found[5] is None
        gone = {b"old 1", b"old 2", b"old 4"}
        check(guard, {key: value for key, value in START.items() if key not in gone} | {b"first": b"1", b"new": b"1"})


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
                assert not guard._changing.waiting
            guard[b"next"] = b"1"
            assert sorted(guard) == [b"first", b"next"]
            assert guard.verify().ok
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_guards_that_wait_for_nothing_make_no_groups(tmp_path):
    with Guard({}, tmp_path, sync="none") as guard:
        assert type(guard._changing) is Alone


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
            value = b"%d" % i
            if rng.random() < 0.5:
                guard[key] = value
                guard[shared] = value
            else:
                guard.update([(key, value), (shared, value)])
            if guard.get(key) != value:
                wrong.append(key)
            if rng.random() < 0.4:
                if not guard.delete(key) or guard.get(key) is not None:
                    wrong.append(key)
                guard.delete_many([shared, key])

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
