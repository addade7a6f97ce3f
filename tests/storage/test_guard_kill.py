"""A guard's writer killed with SIGKILL at every named step, before every durable engine."""

import random

import pytest
from support import guard_engines, guard_kill

from dlbf.storage import Guard, generations, ledger, steps

OPERATIONS = {
    "put": ("put", [(b"new", b"1")]),
    "overwrite": ("put", [(b"old", b"2")]),
    "delete": ("delete", [(b"old", None)]),
    "update": ("update", [(b"new", b"1"), (b"old", b"2"), (b"newer", b"3")]),
    "delete_many": ("delete_many", [(b"old", None), (b"never", None), (b"older", None)]),
}
START = {b"old": b"1", b"older": b"1"}
CHANGES = {"guard-intent-written", "guard-journaled", "guard-intent-cleared", "journal-written", "commit-done"}
STEPS_OF = {
    "put": CHANGES | {"guard-locked", "guard-checked", "guard-engine-written"},
    "overwrite": {"guard-locked", "guard-checked", "guard-engine-written"},
}
STEPS_OF |= dict.fromkeys(("update", "delete", "delete_many"), STEPS_OF["put"])


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(generations, "MIN_CAPACITY", 64)
    monkeypatch.setattr(ledger, "MIN_LOG_BYTES", 2000)
    monkeypatch.setattr(ledger, "LOG_SHARE", 1)


def reached(guard, what):
    """The steps of an operation."""
    seen = []
    steps.set_hook(seen.append)
    try:
        guard_kill.run(guard, *what)
    finally:
        steps.set_hook(None)
    return seen


@pytest.mark.parametrize("name", guard_engines.DURABLE)
def test_kill_at_each_step_of_a_guarded_write_misses_no_key(name, often):
    processes = guard_kill.context()
    with guard_engines.running(name) as folder:
        for title, what in OPERATIONS.items():
            for step in sorted(STEPS_OF[title]):
                guard_engines.clear(name, folder)
                place = guard_kill.fresh(name, folder)
                with guard_engines.opened(name, folder) as engine, Guard(engine, place, sync="none") as guard:
                    guard.clear()
                    guard.update(START)
                model = dict(START)
                doubtful = guard_kill.kill_once(processes, name, folder, place, [what], step, 1, model)
                assert doubtful or step == "guard-intent-cleared" or title == "overwrite", (title, step)
                # A local engine can be asked what became of it, so nothing is left over.
                exact = name in guard_engines.LOCAL
                guard_kill.check(name, folder, place, model, doubtful, exact=exact)


def test_steps_of_guarded_writes_are_those_that_are_killed_at(tmp_path, often):
    with Guard({}, tmp_path, sync="none") as guard:
        for title, what in OPERATIONS.items():
            guard.clear()
            guard.update(START)
            assert STEPS_OF[title] <= set(reached(guard, what)), title


def kill_many(name, n_kills, seed):
    """Kill the writer of a random workload over and over, at all steps in turn."""
    rng = random.Random(seed)
    processes = guard_kill.context()
    with guard_engines.running(name) as folder:
        model = {}
        place = guard_kill.fresh(name, folder)
        with guard_engines.opened(name, folder) as engine:
            Guard(engine, place, sync="none").close()
        for i in range(n_kills):
            step = guard_kill.ALL_STEPS[i % len(guard_kill.ALL_STEPS)]
            hit = rng.choice([1, 3, 10, 30])
            doubtful = guard_kill.kill_once(processes, name, folder, place, seed + i, step, hit, model)
            guard_kill.check(name, folder, place, model, doubtful)
        assert len(model) > 5


@pytest.mark.parametrize("name", guard_engines.DURABLE)
def test_kills_during_a_random_workload_miss_no_key(name, often):
    kill_many(name, len(guard_kill.ALL_STEPS), 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", guard_engines.DURABLE)
def test_a_thousand_kills_miss_no_key(name, often):
    kill_many(name, 1000, 10_000)
