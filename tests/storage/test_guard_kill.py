"""A guard's writer killed with SIGKILL at every named step, before every durable engine."""

import random

import pytest
from support import guard_engines, guard_kill

from dlbf.storage import Guard, steps

OPERATIONS = {
    "put": ("put", [(b"new", b"1")]),
    "overwrite": ("put", [(b"old", b"2")]),
    "delete": ("delete", [(b"old", None)]),
    "update": ("update", [(b"new", b"1"), (b"old", b"2"), (b"newer", b"3")]),
    "delete_many": ("delete_many", [(b"old", None), (b"never", None), (b"older", None)]),
}
# So many that none of the operations brings a base of its own.
START = {b"old": b"1", b"older": b"1"} | {b"kept %d" % i: b"1" for i in range(60)}
CHANGES = {"guard-intent-written", "guard-journaled", "guard-intent-cleared", "journal-written", "commit-done"}
STEPS_OF = {
    "put": CHANGES | {"guard-locked", "guard-checked", "guard-engine-written"},
    "overwrite": {"guard-locked", "guard-checked", "guard-engine-written"},
}
STEPS_OF |= dict.fromkeys(("update", "delete", "delete_many"), STEPS_OF["put"])


# Engines, and whether the filters before them have layers.
EVERY = [(name, False) for name in guard_engines.DURABLE] + [(name, True) for name in guard_engines.FRESH]
every_engine = pytest.mark.parametrize(
    ("name", "layered"), EVERY, ids=[f"{name}-layers" if layered else name for name, layered in EVERY]
)


@pytest.fixture
def often(layered, monkeypatch):
    guard_kill.make_everything_happen_often(layered, monkeypatch.setattr)


def reached(guard, what):
    """The steps of an operation."""
    seen = []
    steps.set_hook(seen.append)
    try:
        guard_kill.run(guard, *what)
    finally:
        steps.set_hook(None)
    return seen


@every_engine
def test_kill_at_each_step_of_a_guarded_write_misses_no_key(name, layered, often):
    processes = guard_kill.context()
    with guard_engines.running(name) as folder:
        for title, what in OPERATIONS.items():
            for step in sorted(STEPS_OF[title]):
                guard_engines.clear(name, folder)
                place = guard_kill.fresh(name, folder)
                options = guard_kill.options(layered)
                with guard_engines.opened(name, folder) as engine, Guard(engine, place, **options) as guard:
                    guard.clear()
                    guard.update(START)
                    if layered:
                        guard.rebuild(design="layers", model=None)
                model = dict(START)
                doubtful = guard_kill.kill_once(processes, name, folder, place, layered, [what], step, 1, model)
                assert doubtful or step == "guard-intent-cleared" or title == "overwrite", (title, step)
                # A local engine can be asked what became of it, so nothing is left over.
                exact = name in guard_engines.LOCAL
                guard_kill.check(name, folder, place, model, doubtful, exact=exact)


@pytest.mark.parametrize("layered", [False, True])
def test_steps_of_guarded_writes_are_those_that_are_killed_at(layered, tmp_path, often):
    with Guard({}, tmp_path, **guard_kill.options(layered)) as guard:
        for title, what in OPERATIONS.items():
            guard.clear()
            guard.update(START)
            if layered:
                guard.rebuild(design="layers", model=None)
            assert STEPS_OF[title] <= set(reached(guard, what)), title


def kill_many(name, layered, n_kills, seed):
    """Kill the writer of a random workload over and over, at all steps in turn."""
    rng = random.Random(seed)
    processes = guard_kill.context()
    with guard_engines.running(name) as folder:
        model = {}
        place = guard_kill.fresh(name, folder)
        with guard_engines.opened(name, folder) as engine:
            Guard(engine, place, **guard_kill.options(layered)).close()
        for i in range(n_kills):
            step = guard_kill.ALL_STEPS[i % len(guard_kill.ALL_STEPS)]
            hit = rng.choice([1, 3, 10, 30])
            doubtful = guard_kill.kill_once(processes, name, folder, place, layered, seed + i, step, hit, model)
            guard_kill.check(name, folder, place, model, doubtful)
        assert len(model) > 5
        with guard_engines.opened(name, folder) as engine, Guard(engine, place, sync="none") as guard:
            assert (guard.stats().layers is not None) == layered


@every_engine
def test_kills_during_a_random_workload_miss_no_key(name, layered, often):
    kill_many(name, layered, len(guard_kill.ALL_STEPS), 100)


@pytest.mark.slow
@every_engine
@pytest.mark.parametrize("part", range(5))
def test_a_thousand_kills_miss_no_key(name, layered, part, often):
    kill_many(name, layered, 200, 10_000 + 200 * part)
