"""Every filter against a multiset, through every operation, file and process: never a false negative.

The geometries are small, so that counters saturate and tables fill up while the machine runs.
"""

import atexit
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support import peek
from support.samples import SECRET

import dlbf
from dlbf.filters import bloom

WORKER = """
    import json, sys, dlbf
    for line in sys.stdin:
        path, secret, keys = json.loads(line)
        with dlbf.open_filter(path, secret=bytes.fromhex(secret) or None) as f:
            missing = [key for key in keys if bytes.fromhex(key) not in f]
            print(json.dumps([len(f), missing]), flush=True)
    """


class Worker:
    """Another process that opens files and asks them; one for all machines, so that asking is cheap."""

    process: subprocess.Popen[str] | None = None

    @classmethod
    def ask(cls, path: Path, secret: bytes | None, keys: list[bytes]) -> tuple[int, list[str]]:
        if cls.process is None:
            cls.process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            atexit.register(cls.process.kill)
        request = [str(path), (secret or b"").hex(), [key.hex() for key in keys]]
        cls.process.stdin.write(json.dumps(request) + "\n")
        cls.process.stdin.flush()
        n_items, missing = json.loads(cls.process.stdout.readline())
        return n_items, missing


@pytest.fixture(autouse=True, scope="module")
def _worker_ends():
    yield
    if Worker.process is not None:
        Worker.process.stdin.close()
        Worker.process.wait()
        Worker.process.stdout.close()
        Worker.process = None


# Few keys, so that they repeat; awkward ones among them.
POOL = [b"", b"\0", b"a\0", "ключ".encode(), b"long" * 100, *(b"k%d" % i for i in range(25))]
keys = st.sampled_from(POOL)
batches = st.lists(keys, max_size=30)


class FilterMachine(RuleBasedStateMachine):
    """A filter beside a Counter of what it must still hold."""

    make = staticmethod(lambda: dlbf.CountingBloomFilter(100))
    secret: bytes | None = None

    def __init__(self):
        super().__init__()
        self.folder = contextlib.ExitStack()
        # In memory where there is such a place: every save waits for the disk otherwise.
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.path = Path(self.folder.enter_context(tempfile.TemporaryDirectory(prefix="dlbf-test-", dir=base)))
        self.numbers = itertools.count()
        self.f = self.make()
        self.model: Counter[bytes] = Counter()

    def teardown(self):
        self.f.close()
        self.folder.close()

    @initialize(batch=batches)
    def start(self, batch):
        self.fill(self.f, self.model, batch)

    def fill(self, f, model, batch):
        """Add one by one; a full table must not take anything with it."""
        for key in batch:
            try:
                f.add(key)
            except dlbf.FilterFullError:
                continue
            self.added(model, key)

    def added(self, model, key):
        model[key] = 1 if isinstance(self.f, dlbf.ExactSet) else model[key] + 1

    def removed(self, key):
        self.model[key] -= 1
        if not self.model[key]:
            del self.model[key]

    @property
    def is_deletable(self):
        return self.f.DELETABLE

    @rule(key=keys)
    def add(self, key):
        before = len(self.f)
        try:
            self.f.add(key)
        except dlbf.FilterFullError:
            assert len(self.f) == before
            return
        self.added(self.model, key)

    @rule(batch=batches, generator=st.booleans())
    def update(self, batch, generator):
        before = len(self.f)
        try:
            self.f.update(iter(batch) if generator else batch)
        except dlbf.FilterFullError:
            batch = batch[: len(self.f) - before]
        for key in batch:
            self.added(self.model, key)

    @precondition(lambda self: self.is_deletable and self.model)
    @rule(data=st.data())
    def remove(self, data):
        key = data.draw(st.sampled_from(sorted(self.model)))
        self.removed(key)
        answer = self.f.remove(key)
        assert answer == (key not in self.f)

    @precondition(lambda self: self.is_deletable)
    @rule(key=keys)
    def discard_if_stored_or_certainly_absent(self, key):
        # Discarding a false positive is the one thing that damages others; a caller must not do it.
        if key in self.model:
            self.removed(key)
            self.f.discard(key)
        elif key not in self.f:
            before = len(self.f)
            assert self.f.discard(key) is False
            with pytest.raises(KeyError):
                self.f.remove(key)
            assert len(self.f) == before

    @precondition(lambda self: self.is_deletable and self.model)
    @rule(data=st.data())
    def remove_many(self, data):
        stored = sorted(self.model.elements())
        batch = data.draw(st.lists(st.sampled_from(range(len(stored))), unique=True, max_size=20))
        batch = [stored[i] for i in batch]
        for key in batch:
            self.removed(key)
        assert len(self.f.remove_many(batch)) == len(batch)

    @rule()
    def to_bytes_and_back(self):
        self.f = type(self.f).from_bytes(self.f.to_bytes(), self.secret)

    @rule()
    def copy(self):
        other = self.f.copy()
        assert other == self.f
        with contextlib.suppress(dlbf.FilterFullError):
            self.f.add(b"only in the old one")
        self.f = other

    @rule()
    def clear(self):
        if len(self.model) > 20:
            self.f.clear()
            self.model.clear()
            assert len(self.f) == 0

    @rule(batch=batches, in_place=st.booleans())
    def union(self, batch, in_place):
        other, model = self.make(), Counter()
        self.fill(other, model, batch)
        try:
            if in_place:
                self.f |= other
            else:
                self.f = self.f | other
        except dlbf.FilterFullError:
            return
        self.model = self.model | model if isinstance(self.f, dlbf.ExactSet) else self.model + model

    @precondition(lambda self: hasattr(self.f, "__and__"))
    @rule(batch=batches)
    def intersection(self, batch):
        other, model = self.make(), Counter()
        self.fill(other, model, [*batch, *self.model])
        self.f = self.f & other
        self.model &= model

    def save(self):
        path = self.path / f"{next(self.numbers)}"
        self.f.save(path)
        return path

    @rule()
    def open_read_only(self):
        with dlbf.open_filter(self.save(), secret=self.secret) as mapped:
            assert mapped.contains_many(sorted(self.model)).all()
            assert all(key in mapped for key in self.model)
            assert mapped == self.f
            self.f = mapped.copy()

    @rule(batch=batches, data=st.data())
    def change_in_place(self, batch, data):
        path = self.save()
        with dlbf.open_filter(path, "r+", secret=self.secret) as mapped:
            self.f = mapped
            self.fill(mapped, self.model, batch)
            if self.is_deletable and self.model:
                self.remove(data)
            self.no_false_negative()
        self.f = dlbf.open_filter(path, secret=self.secret).copy()

    @rule()
    def reload_in_another_process(self):
        n_items, missing = Worker.ask(self.save(), self.secret, sorted(self.model))
        assert not missing
        assert n_items == len(self.f)

    @invariant()
    def no_false_negative(self):
        stored = sorted(self.model)
        assert self.f.contains_many(stored).all()
        assert all(key in self.f for key in stored)
        if isinstance(self.f, dlbf.ExactSet):
            assert sorted(self.f) == stored
            assert len(self.f) == len(stored)

    @invariant()
    def counts_are_not_below_the_truth(self):
        if isinstance(self.f, dlbf.CountingBloomFilter):
            top = 2**self.f.counter_bits - 1
        elif isinstance(self.f, dlbf.DLeftFilter):
            top = 2**self.f.geometry.counter_bits - 1
        elif isinstance(self.f, dlbf.CuckooFilter):
            top = 8
        else:
            return
        for key, n in self.model.items():
            assert self.f.count(key) >= min(n, top)
        for key in POOL:
            assert (key in self.f) == (self.f.count(key) > 0)


MACHINES = {
    "bloom": lambda **more: dlbf.BloomFilter(bits=150, hashes=3, **more),
    "bloom-blocked": lambda **more: dlbf.BloomFilter(bits=512, hashes=3, layout="blocked", **more),
    "counting-2": lambda **more: dlbf.CountingBloomFilter(counters=60, hashes=3, counter_bits=2, **more),
    "counting-4": lambda **more: dlbf.CountingBloomFilter(counters=40, hashes=3, counter_bits=4, **more),
    "counting-8": lambda **more: dlbf.CountingBloomFilter(counters=40, hashes=3, counter_bits=8, **more),
    "counting-tiny": lambda **more: dlbf.CountingBloomFilter(counters=5, hashes=4, counter_bits=2, **more),
    "counting-blocked": lambda **more: dlbf.CountingBloomFilter(counters=128, hashes=3, layout="blocked", **more),
    "deletable": lambda **more: dlbf.DeletableBloomFilter(bits=240, hashes=4, regions=24, **more),
    "deletable-odd": lambda **more: dlbf.DeletableBloomFilter(bits=601, hashes=3, regions=97, **more),
    "dleft": lambda **more: dlbf.DLeftFilter(buckets=2, remainder_bits=6, cells=3, **more),
    "dleft-1-bit": lambda **more: dlbf.DLeftFilter(buckets=3, remainder_bits=6, counter_bits=1, **more),
    "dleft-crowded": lambda **more: dlbf.DLeftFilter(buckets=2, remainder_bits=2, tables=2, counter_bits=3, **more),
    "cuckoo": lambda **more: dlbf.CuckooFilter(buckets=8, prefixes=16, suffix_bits=2, **more),
    "cuckoo-crowded": lambda **more: dlbf.CuckooFilter(buckets=7, prefixes=5, suffix_bits=0, **more),
    "cuckoo-wide": lambda **more: dlbf.CuckooFilter(buckets=9, prefixes=28, suffix_bits=24, **more),
    "exact": lambda **more: dlbf.ExactSet(3, **more),
    "elastic": lambda **more: dlbf.ElasticBloomFilter(bits=256, hashes=4, **more),
}


@pytest.mark.parametrize("name", MACHINES)
def test_filter_against_multiset_never_a_false_negative(name):
    class Machine(FilterMachine):
        make = staticmethod(MACHINES[name])

    run_state_machine_as_test(Machine)


@pytest.mark.parametrize("name", [name for name in MACHINES if name.startswith("counting")])
def test_summarised_counters_against_multiset_answer_as_their_counts(name, monkeypatch):
    monkeypatch.setattr(bloom, "SUMMARY_LEAST_BYTES", 0)

    class Machine(FilterMachine):
        make = staticmethod(MACHINES[name])

        @invariant()
        def summary_says_what_the_counters_say(self):
            n_bits, cells = self.f.counter_bits, int.from_bytes(peek.payload(self.f), "little")
            counts = [cells >> i * n_bits & (1 << n_bits) - 1 for i in range(self.f.counters)]
            assert [self.f._occupied(i, i + 1) for i in range(self.f.counters)] == [count > 0 for count in counts]

    run_state_machine_as_test(Machine)


@pytest.mark.parametrize("name", ["counting-2", "cuckoo", "exact", "elastic"])
def test_keyed_filter_against_multiset_never_a_false_negative(name):
    class Machine(FilterMachine):
        make = staticmethod(lambda: MACHINES[name](secret=SECRET, filter_id=3))
        secret = SECRET

    run_state_machine_as_test(Machine)
