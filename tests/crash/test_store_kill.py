"""A writer killed with SIGKILL: at random moments, and at every named step."""

import os
import random
import shutil
import tempfile
from pathlib import Path

import crash_harness as harness
import lmdb
import pytest
from support.samples import skip_without_writemap

from dlbf.storage import Store, steps

FOLDER = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def path(monkeypatch):
    harness.make_everything_happen_often(monkeypatch.setattr)
    folder = tempfile.mkdtemp(dir=FOLDER)
    yield Path(folder) / "store"
    shutil.rmtree(folder)


@pytest.fixture
def mapped_path(path):
    skip_without_writemap(path.parent)
    return path


MAPPED = {"sync": "none", "writemap": True}


def kill_many(path, n_kills, first_seed, options=None):
    """Kill a writer over and over on one store; half at random moments, half at named steps."""
    rng = random.Random(first_seed)
    model = {}
    Store(path, **(options or {"sync": "none"})).close()
    reached = dict.fromkeys(steps.STEPS, 0)
    i = committed = 0
    # On a machine so busy that most are killed before their first commit there are more of them.
    while i < n_kills or (committed <= n_kills / 4 and i < 10 * n_kills):
        seed = first_seed + i
        before = len(model)
        if i % 2:
            step = steps.STEPS[i // 2 % len(steps.STEPS)]
            if step == "broken-marked":
                step = "commit-done"
            allowed = harness.kill_once(path, seed, model, step=step, hit=rng.choice([1, 1, 2, 5]), options=options)
            reached[step] += 1
        else:
            allowed = harness.kill_once(path, seed, model, delay=rng.random() ** 2 * 0.03, options=options)
        model = harness.check(path, allowed, options)
        committed += len(model) != before
        i += 1
    assert committed > n_kills / 4  # the workload did something
    return reached


def test_kills_lose_nothing_and_invent_nothing(path):
    kill_many(path, 200, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_kills_lose_nothing_and_invent_nothing(path, part):
    kill_many(path, 1000, 100_000 * (part + 1))


def test_kills_while_writing_through_the_map_lose_nothing(mapped_path):
    kill_many(mapped_path, 100, 2000, MAPPED)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_two_thousand_kills_while_writing_through_the_map_lose_nothing(mapped_path, part):
    kill_many(mapped_path, 1000, 100_000 * (part + 11), MAPPED)


def test_every_named_step_is_reached(path):
    """So that killing at a step means something."""
    seen = set()
    steps.set_hook(seen.add)
    try:
        with Store(path, sync="none") as store:
            harness.run(store, 1, 0, 150, lambda kind, number: None)
        assert seen >= set(steps.STEPS) - {"broken-marked"}
    finally:
        steps.set_hook(None)


@pytest.mark.parametrize("step", ["data-written", "broken-marked", "journal-written", "commit-done", "switch-written"])
def test_kill_while_the_filter_is_unusable_loses_nothing(path, step):
    with Store(path, sync="none") as store:
        harness.run(store, 3, 0, 5, lambda kind, number: None)
        model = dict(store.items())
    with lmdb.open(str(path), max_dbs=9) as env:
        db = env.open_db(b"data")
        with env.begin(write=True) as txn:
            txn.put(b"foreign", b"1", db=db)
            model[b"foreign"] = b"1"
    # Marked once, a store stays so until it is rebuilt.
    for i in range(1 if step == "broken-marked" else 4):
        # Rebuilds of the workload may repair it on the way; both are right.
        allowed = harness.kill_once(path, 40 + i, model, step=step, hit=i + 1)
        with Store(path, sync="none") as store:
            model = dict(store.items())
            assert model in allowed
            assert store.get_many(list(model)) == list(model.values())
    with Store(path, sync="none") as store:
        store.rebuild()
    harness.check(path, [model])


def test_harness_notices_a_lost_key(path):
    """The check must be able to fail."""
    with Store(path, sync="none") as store:
        store[b"a"] = b"1"
    with pytest.raises(AssertionError):
        harness.check(path, [{b"a": b"1", b"b": b"2"}])
    with pytest.raises(AssertionError):
        harness.check(path, [{}])
    with Store(path, sync="none") as store:
        assert store.state == "filtering"
        store.ledger.filter.remove(b"a")
        store.checkpoint()
    with pytest.raises(AssertionError):
        harness.check(path, [{b"a": b"1"}])


def test_witness_with_the_store_open_sees_what_survived(path):
    """A process that stays while writers are killed beside it, so that nobody resets LMDB's lock file."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    Store(path, sync="none").close()

    def witness():
        with Store(path, sync="none") as store:
            there.send("ready")
            while (keys := there.recv()) is not None:
                single = [store.get(key) for key in keys[:50]]
                there.send((single, store.get_many(keys), store.verify().ok, store.state))

    process = context.Process(target=witness, daemon=True)
    process.start()
    assert here.recv() == "ready"
    rng = random.Random(9)
    model = {}
    for i in range(60):
        step = rng.choice(["commit-done", "journal-written", "switch-done", "filter-applied", None])
        allowed = harness.kill_once(path, i, model, step=step, hit=rng.choice([1, 3]), delay=rng.random() * 0.02)
        keys = [*{**allowed[0], **allowed[1]}, b"absent"]
        here.send(keys)
        single, found, ok, state = here.recv()
        assert (ok, state) == (True, "filtering")
        assert single == found[:50]
        seen = {key: value for key, value in zip(keys, found, strict=True) if value is not None}
        assert seen in allowed, harness.difference(seen, allowed)
        model = harness.check(path, [seen])
    here.send(None)
    process.join(60)
    assert process.exitcode == 0
