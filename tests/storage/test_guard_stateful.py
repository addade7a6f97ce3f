"""Random operations on a guard and a dict, compared after each, for every engine."""

import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from support import guard_engines
from support.replica import Replica

from dlbf.storage import Guard, generations, layers, ledger

keys = st.binary(min_size=1, max_size=2) | st.builds(lambda n: b"k" * n, st.sampled_from([100, 493, 495, 511]))
values = st.binary(max_size=20)


class AgainstDict(RuleBasedStateMachine):
    """See the module; subclasses say which engine."""

    name = ""
    server = None
    fpr = 0.01

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.data = self.server or self.folder
        guard_engines.clear(self.name, self.data)
        self.model = {}
        self.mapping = {}
        self.open()

    def open(self):
        self.stack = contextlib.ExitStack()
        engine = self.mapping
        if self.name != "dict":
            engine = self.stack.enter_context(guard_engines.opened(self.name, self.data))
        self.guard = self.stack.enter_context(Guard(engine, self.folder / "guard", self.fpr, sync="none"))
        self.replica = Replica(self.guard)  # of another process

    def close(self):
        self.replica = None
        self.stack.close()

    def teardown(self):
        self.close()
        shutil.rmtree(self.folder)

    @rule(key=keys, value=values)
    def put(self, key, value):
        self.guard[key] = value
        self.model[key] = value

    @rule(key=keys, value=values)
    def put_new(self, key, value):
        if key not in self.model:
            self.guard.put(key, value, new=True)
            self.model[key] = value

    @rule(key=keys)
    def delete(self, key):
        assert self.guard.delete(key) == (self.model.pop(key, None) is not None)

    @rule(pairs=st.lists(st.tuples(keys, values), max_size=40))
    def update(self, pairs):
        self.guard.update(pairs)
        self.model.update(pairs)

    @rule(wanted=st.lists(keys, max_size=10))
    def delete_many(self, wanted):
        assert self.guard.delete_many(wanted) == sum(self.model.pop(key, None) is not None for key in wanted)

    @rule(key=keys, value=values)
    def pop_and_setdefault(self, key, value):
        assert self.guard.pop(key, None) == self.model.pop(key, None)
        assert self.guard.setdefault(key, value) == self.model.setdefault(key, value)

    @precondition(lambda self: len(self.model) > 3)
    @rule()
    def clear(self):
        self.guard.clear()
        self.model.clear()

    @rule()
    def checkpoint(self):
        self.guard.checkpoint()

    @rule(design=st.sampled_from(["auto", "tables"]))
    def rebuild(self, design):
        self.guard.rebuild(design=design)

    @rule()
    def reopen(self):
        self.close()
        self.open()

    @rule()
    def lose_the_guard(self):
        self.close()
        shutil.rmtree(self.folder / "guard")
        guard_engines.release(self.name, self.data)
        self.open()

    @rule(key=keys, low=keys, high=keys, reverse=st.booleans())
    def scans(self, key, low, high, reverse):
        expected = sorted(k for k in self.model if k.startswith(key[:1]))
        assert sorted(self.guard.keys(prefix=key[:1])) == expected
        found = list(self.guard.keys(start=low, stop=high, reverse=reverse))
        expected = sorted((k for k in self.model if low <= k < high), reverse=reverse)
        assert (found if reverse or self.guard.engine.ordered else sorted(found)) == expected

    @invariant()
    def same(self):
        guard, model = self.guard, self.model
        assert len(guard) == len(model)
        assert dict(guard.items()) == model
        wanted = [*model, b"absent", b"b" * 400, *(b"%d" % i for i in range(10))]
        assert guard.get_many(wanted) == [model.get(key) for key in wanted]
        for reader in (guard, self.replica, guard, self.replica):
            assert [reader.get(key) for key in wanted] == [model.get(key) for key in wanted]
        assert guard.state == "filtering"
        assert guard.verify() == type(guard.verify())(len(model), 0, 0)


EVERY = [(name, False) for name in guard_engines.ALL] + [(name, True) for name in ("dict", *guard_engines.FRESH)]


@pytest.mark.parametrize(
    ("name", "layered"), EVERY, ids=[f"{name}-layers" if layered else name for name, layered in EVERY]
)
def test_guard_behaves_like_a_dict(name, layered, monkeypatch):
    monkeypatch.setattr(generations, "MIN_CAPACITY", 32)
    monkeypatch.setattr(layers, "LEAST_KEYS", 8 if layered else 1 << 40)
    monkeypatch.setattr(layers, "BREAK_EVEN", 1e9)
    monkeypatch.setattr(ledger, "MIN_LOG_BYTES", 600)
    monkeypatch.setattr(ledger, "LOG_SHARE", 1)
    with guard_engines.running(name) as folder:
        fpr = 0.3 if layered else 0.01  # where there are layers, many keys that pass are to be remembered
        machine = type("Against", (AgainstDict,), {"name": name, "server": folder, "fpr": fpr})
        if name not in guard_engines.REMOTE:
            machine.server = None
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=3 if name == "redis-cluster" else 8,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
