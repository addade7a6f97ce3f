"""A guard's writer that dies: in a process of its own, forked from one that has never opened an engine."""

import contextlib
import multiprocessing
import os
import random
import signal
from multiprocessing import forkserver
from pathlib import Path

from dlbf.storage import Guard, generations, layers, ledger, sharing, steps
from support import guard_engines
from support.places import TESTS

N_KEYS = 300
# Those of a commit that a guarded write passes through; "write-began" is a transaction's.
COMMIT_STEPS = tuple(step for step in steps.STEPS if step not in ("write-began", "broken-marked"))
ALL_STEPS = (*steps.GUARD_STEPS, *COMMIT_STEPS)


def context():
    """Starts processes from a clean one, so that threads of engines opened in the tests are not missing in them."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["support.guard_kill", "redis", "rocksdict", "plyvel"])
    # The server does not learn sys.path, and one that cannot import leaves it to every child, which takes seconds.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(TESTS)
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return made


def make_everything_happen_often(layered, patch=setattr):
    """Small filters and logs; layers where the engine lets them be, however few keys there are, or nowhere."""
    patch(generations, "MIN_CAPACITY", 64)
    patch(ledger, "MIN_LOG_BYTES", 2000)
    patch(ledger, "LOG_SHARE", 1)
    patch(layers, "LEAST_KEYS", 1 if layered else 1 << 40)
    patch(layers, "BREAK_EVEN", 1e9)
    patch(layers, "THREAD_KEYS", 100)
    patch(sharing, "LEAST_BYTES", 1)


def operation(seed, number):
    """What operation ``number`` of a workload is: its name and its (key, value or None) pairs."""
    rng = random.Random(f"{seed} {number}")
    put_share = 0.75 if (seed + number // 30) % 2 == 0 else 0.3
    if rng.random() < 0.05:
        return rng.choice(["checkpoint", "rebuild"]), []
    name = "put" if rng.random() < put_share else "delete"
    if rng.random() < 0.4:
        name = {"put": "update", "delete": "delete_many"}[name]
    n = 1 if name in ("put", "delete") else rng.choice([2, 10, 60])
    wanted = {b"key %d" % rng.randrange(N_KEYS): None for _ in range(n)}
    return name, [(key, b"%08d" % rng.randrange(10**8) if name in ("put", "update") else None) for key in wanted]


def run(guard, name, pairs):
    """Do an operation."""
    if name == "put":
        guard.put(*pairs[0])
    elif name == "update":
        guard.update(pairs)
    elif name == "delete":
        guard.delete(pairs[0][0])
    elif name == "delete_many":
        guard.delete_many([key for key, _ in pairs])
    else:
        getattr(guard, name)()


def apply_to(model, pairs):
    """The dict after an operation."""
    for key, value in pairs:
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value


def options(layered):
    """How the guard is opened: where there are layers, so that every third key passes them."""
    return {"sync": "none", "fpr": 0.3 if layered else 0.01}


def compare(guard, number):
    """Ask for some keys, so that those which are not there are remembered: nothing is denied."""
    for i in range(number % 7, N_KEYS, 7):
        key = b"key %d" % i
        assert guard.get(key) == guard.engine.get(key), key


def child(name, folder, place, layered, operations, step, hit, pipe):
    """Run operations (a list, or a seed for endless ones) until the ``hit``-th time a step is reached, then die."""
    make_everything_happen_often(layered)
    left = [hit]

    def hook(reached):
        if reached == step:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    with guard_engines.opened(name, folder) as engine, Guard(engine, place, sync="none", attach=False) as guard:
        if layered:
            compare(guard, 0)
        steps.set_hook(hook)
        number = 0
        while isinstance(operations, int) or number < len(operations):
            what = operation(operations, number) if isinstance(operations, int) else operations[number]
            pipe.send((what, False))
            run(guard, *what)
            if layered:
                compare(guard, number)
            pipe.send((what, True))
            number += 1
            if number > 400:
                break  # a step that this workload does not reach
        os.kill(os.getpid(), signal.SIGKILL)


def kill_once(processes, name, folder, place, layered, operations, step, hit, model):
    """Start a child and let it die; updates ``model``; returns the pairs that were under way."""
    here, there = processes.Pipe(duplex=False)
    process = processes.Process(target=child, args=(name, folder, place, layered, operations, step, hit, there))
    process.start()
    there.close()
    doubtful = []
    with contextlib.suppress(EOFError):
        while True:
            (what, pairs), done = here.recv()
            doubtful = [] if done else pairs or [what]
            if done:
                apply_to(model, pairs)
    process.join()
    here.close()
    assert process.exitcode == -signal.SIGKILL, process.exitcode
    return doubtful


def check(name, folder, place, model, doubtful, exact=False):
    """No key of the engine is missed; ``model`` becomes what the engine holds."""
    chores = [what for what in doubtful if isinstance(what, str)]
    allowed = dict(pair for pair in doubtful if not isinstance(pair, str))
    with guard_engines.opened(name, folder) as engine, Guard(engine, place, sync="none", attach=False) as guard:
        assert guard.state == "filtering", guard.stats().reason
        found = {key: guard.engine.get(key) for key in guard.engine.scan(b"")}
        # Through the filter: every key of the engine is found.
        assert {key: guard.get(key) for key in found} == found
        assert guard.get_many(list(found)) == list(found.values())
        for key in found.keys() | model.keys():
            assert found.get(key) == model.get(key) or (key in allowed and found.get(key) == allowed[key]), key
        verification = guard.verify()
        assert verification.missing == 0, verification
        assert verification.extra <= (0 if exact or chores else len(allowed)), verification
        assert verification.keys == len(found)
        if verification.extra:
            guard.rebuild()
            assert guard.verify().ok
        # It goes on working.
        guard.put(b"afterwards", b"1")
        assert guard.get(b"afterwards") == b"1"
        assert guard.delete(b"afterwards")
        assert guard.verify().ok
    model.clear()
    model.update(found)


def fresh(name, folder):
    """A path for another guard, which takes the place of those before it."""
    guard_engines.release(name, folder)
    number = len(list(Path(folder).glob("guard-*")))
    return Path(folder) / f"guard-{number}"
