"""A batch of pairs through a guard: its keys are hashed once, for the filter that answers."""

import pytest
from support import peek
from support.places import DATA

import dlbf
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.storage import Guard, steps
from dlbf.storage.engines import MappingEngine


class Local(MappingEngine):
    """A dict, as an engine that is asked and told about many keys at once."""

    in_flight = False

    def __init__(self, pairs=()):
        super().__init__(dict(pairs))
        self.batches = []
        self.asked = []
        self.on_question = list

    def has_many(self, keys):
        self.asked.append(list(keys))
        return self.on_question(key in self.mapping for key in keys)

    def put_many(self, items):
        self.batches.append(len(items))
        super().put_many(items)


START = {b"old %d" % i: b"0" for i in range(200)}


@pytest.fixture
def guard(tmp_path):
    with Guard(Local(START), tmp_path, sync="none") as guard:
        guard.update([(b"a", b"1"), (b"b", b"1")])  # looks whether a larger filter is due
        guard.engine.batches.clear()
        guard.engine.asked.clear()
        yield guard


def alone(guard, monkeypatch, allowed=False):
    """Count changes that are not compiled; none is ``allowed``."""
    writes, counted = peek.guarded(guard), []
    really = writes.alone

    def counting(change, *arguments, **options):
        assert allowed, "not the common case"
        counted.append(change)
        return really(change, *arguments, **options)

    monkeypatch.setattr(writes, "alone", counting)
    return counted


def check(guard, expected):
    """The engine has just this, and the filter just that."""
    assert guard.engine.mapping == expected
    assert {key: guard.get(key) for key in expected} == expected
    verified = guard.verify()
    assert (verified.missing, verified.extra, verified.keys) == (0, 0, len(expected))
    # What they were added with is what they are taken out with, one by one and together.
    keys = list(expected)
    for key in keys[::2]:
        assert guard.delete(key)
    assert guard.delete_many(keys[1::2]) == len(keys[1::2])
    assert guard.verify().ok
    assert not guard.engine.mapping
    filter = guard.ledger.filter
    assert len(filter) == 0


HERE = START | {b"a": b"1", b"b": b"1"}


def test_batch_with_repeated_keys_stores_the_last_value_of_each_in_one_record(guard, monkeypatch):
    alone(guard, monkeypatch)
    position = guard.stats().last_txn
    pairs = [(b"new %d" % (i % 7), b"%d" % i) for i in range(40)] + [(b"old 1", b"1"), (b"old 1", b"2")]
    guard.update(pairs)
    assert guard.stats().last_txn == position + 1
    assert guard.engine.batches == [8]
    monkeypatch.undo()
    check(guard, HERE | dict(pairs))


@pytest.mark.parametrize(
    "odd", [("text", b"1"), (b"text", bytearray(b"1")), [b"text", b"1"], (memoryview(b"text"), b"1")]
)
def test_batch_of_other_things_than_bytes_is_compiled_all_the_same(guard, monkeypatch, odd):
    alone(guard, monkeypatch)
    guard.update([(b"new", b"1"), odd, (b"text", b"2"), (b"old 1", b"1")])
    assert guard.engine.batches == [3]
    monkeypatch.undo()
    check(guard, HERE | {b"new": b"1", b"text": b"2", b"old 1": b"1"})


@pytest.mark.parametrize("wrong", [(b"new", None), (7.5, b"1"), (b"new",), (b"new", b"1", b"2"), None, b"ab!"])
def test_batch_with_something_that_is_no_pair_changes_nothing(guard, wrong):
    position = guard.stats().last_txn
    with pytest.raises((TypeError, ValueError)):
        guard.update([(b"newer", b"1"), wrong])
    assert guard.stats().last_txn == position
    check(guard, HERE)


def test_compiled_batch_refuses_what_it_cannot_hold(guard):
    changes = peek.changes(guard)
    position = guard.stats().last_txn
    assert changes.store_batch([(b"old 1", b"1")] * 65535) is True
    for pairs in (
        [(b"old 1", b"2")] * 65536,
        [(b"1", b"1"), [b"2", b"1"]],
        [(b"1", b"1"), (b"2",)],
        [(b"1", b"1"), ("2", b"1")],
        [(b"1", b"1"), (b"2", None)],
        [(b"1", b"1"), None],
    ):
        assert changes.store_batch(pairs) is False
    assert guard.stats().last_txn == position
    check(guard, HERE | {b"old 1": b"1"})


def test_compiled_batches_of_any_length_add_each_key_once(tmp_path):
    expected = {b"%d" % i: b"0" for i in range(60_000)}
    engine = Local(expected)
    with Guard(engine, tmp_path, sync="none") as guard:
        guard.update([(b"a", b"1")])
        expected[b"a"] = b"1"
        for n in (1, 2, 3, 31, 32, 33, 2047, 2048, 2049):  # they are hashed 2,048 at a time
            peek.guarded(guard).allow_quick_changes()
            batch = [(b"k" * (i % 50) + b"%d %d" % (n, i), b"%d" % i) for i in range(n)]
            batch[n // 2] = (b"", b"nothing")
            # All but some at the end are old, since no more changes may follow without a look at the filter's size.
            for i in range(1, n - 300):
                batch[i] = (b"%d" % (20_000 + i), b"old")
            assert peek.changes(guard).store_batch(batch)
            expected |= dict(batch)
        old = dict.fromkeys(list(expected)[:20_000], b"2")
        assert peek.changes(guard).store_batch(list(old.items()))
        expected |= old
        assert engine.mapping == expected
        assert guard.get_many(list(expected)) == list(expected.values())
        verified = guard.verify()
        assert (verified.missing, verified.extra, verified.keys) == (0, 0, len(expected))
        assert guard.delete_many(list(expected)) == len(expected)
        assert guard.verify().ok
        assert len(guard.ledger.filter) == 0


def test_batch_asks_the_engine_only_for_keys_that_the_filter_lets_pass(guard):
    pairs = [(b"new %d" % i, b"1") for i in range(100)] + [(b"old %d" % i, b"1") for i in range(50)]
    guard.update(pairs)
    assert len(guard.engine.asked) == 1
    asked = set(guard.engine.asked[0])
    assert {b"old %d" % i for i in range(50)} <= asked
    assert len(asked) < 60  # a filter is wrong once in a hundred
    check(guard, HERE | dict(pairs))


@pytest.mark.parametrize("answer", [lambda there: list(there)[:-1], lambda there: [*there, True]])
def test_engine_that_gives_too_few_or_too_many_answers_is_told(guard, answer):
    guard.engine.on_question = answer
    with pytest.raises(ValueError, match=r"has_many\(\) gave (1|3) answers for 2 keys"):
        guard.update([(b"old 1", b"1"), (b"old 2", b"1")])
    guard.engine.on_question = list
    check(guard, HERE)


def test_question_that_fails_leaves_everything_as_it_was(guard):
    def fail(there):
        raise OSError("no answer")

    position = guard.stats().last_txn
    guard.engine.on_question = fail
    with pytest.raises(OSError, match="no answer"):
        guard.update([(b"old 1", b"1"), (b"new", b"1")])
    assert guard.stats().last_txn == position
    guard.engine.on_question = list
    guard.update([(b"old 1", b"1"), (b"new", b"1")])  # no lock is left taken
    check(guard, HERE | {b"old 1": b"1", b"new": b"1"})


@pytest.mark.parametrize("step", ["guard-checked", "guard-intent-written", "journal-written", "guard-journaled"])
def test_exception_in_the_middle_of_a_batch_denies_no_key(guard, step):
    class Interrupted(Exception):
        pass

    def interrupt(reached):
        if reached == step:
            steps.set_hook(None)
            raise Interrupted

    pairs = [(b"new %d" % i, b"1") for i in range(50)] + [(b"old 1", b"1")]
    steps.set_hook(interrupt)
    try:
        with pytest.raises(Interrupted):
            guard.update(pairs)
    finally:
        steps.set_hook(None)
    assert {key: guard.get(key) for key in guard.engine.mapping} == guard.engine.mapping == HERE
    guard.update(pairs)
    check(guard, HERE | dict(pairs))


def test_filter_that_was_replaced_between_the_probe_and_the_entries_gets_its_own(guard, monkeypatch):
    """While the engine is asked another thread may have loaded the filter again: hashes are for one filter only."""
    alone(guard, monkeypatch, allowed=True)
    before = guard.ledger.filter

    def load_again(there):
        guard.ledger.drop()
        assert guard.get(b"old 3") == b"0"  # which loads the filter
        return list(there)

    guard.engine.on_question = load_again
    pairs = [(b"new %d" % i, b"1") for i in range(50)] + [(b"old 1", b"1")]
    guard.update(pairs)
    assert guard.ledger.filter is not before
    guard.engine.on_question = list
    monkeypatch.undo()
    check(guard, HERE | dict(pairs))


def test_batches_before_a_learned_filter_with_regions(tmp_path):
    with dlbf.open_filter(DATA / "learned.v1.bin") as learned:
        model = learned.model
    keys = list(listed_urls(2_200, seed=3))
    engine = Local(dict.fromkeys(keys[:2_000], b"0"))
    with Guard(engine, tmp_path, sync="none", fpr=0.01) as guard:
        guard.rebuild(list(ordinary_urls(2_000, seed=3)), "plbf-cbf", model=model)
        assert guard.stats().model_bytes > 0
        guard.put(keys[0], b"0")
        position = guard.stats().last_txn
        pairs = [(key, b"1") for key in keys[1_970:2_030]]
        guard.update(pairs)
        assert guard.stats().last_txn == position + 1
        assert len(guard.engine.asked[-1]) < 60
        check(guard, dict.fromkeys(keys[:2_000], b"0") | dict(pairs))
