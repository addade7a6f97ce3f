"""The expiring filter: no key is denied within its time, and none stays longer than is said."""

import contextlib
import itertools
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from support import peek
from support.samples import SECRET, url_keys

import dlbf

TTL, STEPS = 100, 4
STEP = TTL // STEPS
EXACT = 1e-6  # a rate at which no test meets a false positive
KEYS = url_keys(30_000)


def expiring(capacity: int = 200, fpr: float = EXACT, **more) -> tuple[dlbf.ExpiringFilter, dlbf.ManualClock]:
    clock = dlbf.ManualClock(1000)
    return dlbf.ExpiringFilter(capacity, fpr, ttl=TTL, steps=STEPS, clock=clock, **more), clock


# --- when entries leave


@pytest.mark.parametrize("begin", [0, 1, 12, 24, 24.999])
def test_key_stays_for_its_time_and_leaves_within_a_step(begin):
    f, clock = expiring()
    assert f.lateness == STEP
    clock.set(1000 + begin)
    f.add(b"key")
    clock.advance(TTL)
    assert b"key" in f
    assert f.contains_many([b"key"]).all()
    assert (len(f), f.count(b"key"), bool(f)) == (1, 1, True)
    clock.advance(f.lateness)
    assert b"key" not in f
    assert not f.contains_many([b"key"]).any()
    assert (len(f), f.count(b"key"), bool(f)) == (0, 0, False)
    with pytest.raises(KeyError):
        f.remove(b"key")


@pytest.mark.parametrize(("ttl", "steps"), [(100, 4), (1, 1), (0.001, 24), (3600.7, 7), (86_400 * 365, 8)])
def test_every_key_of_an_even_stream_leaves_on_time(ttl, steps):
    clock = dlbf.ManualClock(5000)
    f = dlbf.ExpiringFilter(620, EXACT, ttl=ttl, steps=steps, clock=clock)
    added = {}
    slack = ttl * 1e-6 + 1e-6  # the clock is set in floating point
    for i in range(1500):
        clock.advance(ttl / 300)
        f.add(b"%d" % i)
        added[b"%d" % i] = clock.now()
        if i % 50 == 0:
            for key, then in added.items():
                if clock.now() <= then + ttl - slack:
                    assert key in f
                elif clock.now() >= then + ttl + f.lateness + slack:
                    assert key not in f
    assert f.lateness <= ttl / steps + 1e-9
    assert len(f) <= 300 * (1 + 1 / steps) + 1


def test_adding_again_keeps_a_key_for_longer():
    f, clock = expiring()
    for _ in range(30):
        f.add(b"kept")
        clock.advance(TTL / 2)
        assert b"kept" in f
    clock.advance(TTL + STEP)
    assert b"kept" not in f


def test_stream_that_takes_long_gives_every_key_its_own_time():
    f, clock = expiring(20_000)
    then = {}

    def slowly():
        for key in KEYS[:10_000]:
            clock.advance(TTL / 5000)
            then[key] = clock.now()
            yield key

    f.update(slowly())
    now = clock.now()
    within = [key for key, at in then.items() if at + TTL >= now]
    assert len(within) >= 4000
    assert f.contains_many(within).all()


def test_full_capacity_fits_at_once_or_evenly_and_the_rate_holds():
    absent = url_keys(40_000, seed=7)
    for fpr in (0.1, 0.01):
        f, clock = expiring(4000, fpr)
        f.update(KEYS[:4000])
        assert f.contains_many(KEYS[:4000]).all()
        assert f.contains_many(absent).mean() <= fpr + 4 * (fpr / len(absent)) ** 0.5
        assert f.expected_fpr <= fpr * 1.0001
        f.clear()
        # Four thousand within any time to live and one step.
        for i in range(12_500):
            clock.advance((TTL + STEP) / 4000)
            f.add(KEYS[i])
        assert 3000 < len(f) <= 4000
        assert f.contains_many(absent).mean() <= fpr + 4 * (fpr / len(absent)) ** 0.5
        assert f.contains_many(KEYS[12_500 - 3200 : 12_500]).all()


def test_no_room_loses_nothing_and_time_makes_room():
    f, clock = expiring(100)
    with pytest.raises(dlbf.FilterFullError, match="planned for 100"):
        f.update(KEYS)
    stored = KEYS[: len(f)]
    assert len(stored) >= 200
    assert f.contains_many(stored).all()
    clock.advance(TTL + STEP)
    f.update(KEYS[500:600])
    assert len(f) == 100
    assert not f.contains_many(stored[:400]).any()


# --- clocks


def test_clock_that_is_set_back_denies_nothing_and_time_stands_still():
    f, clock = expiring()
    f.add(b"before")
    clock.set(300)
    assert b"before" in f
    f.add(b"after")
    clock.advance(TTL)
    assert f.contains_many([b"before", b"after"]).all()
    clock.set(1000 + TTL)  # by then the filter's time goes on
    assert f.contains_many([b"before", b"after"]).all()
    clock.advance(STEP)
    assert len(f) == 0
    clock.set(10)
    f.clear()
    f.add(b"now")
    clock.advance(TTL + STEP)
    assert b"now" not in f  # which forgot the newest change


def test_running_process_does_not_notice_that_the_time_of_day_was_changed(monkeypatch):
    f = dlbf.ExpiringFilter(100, EXACT, ttl=3600)
    f.add(b"key")
    now = time.time_ns()
    for jump in (10**6, -(10**6)):
        monkeypatch.setattr(time, "time_ns", lambda jump=jump: now + jump * 10**9)
        assert b"key" in f
        f.add(b"%d" % jump)
        assert f.contains_many([b"key", b"%d" % jump]).all()
    # What is opened then does: late if the clock was set back, early if it was set forward.
    assert b"key" in dlbf.ExpiringFilter.from_bytes(f.to_bytes())
    monkeypatch.setattr(time, "time_ns", lambda: now + 10**6 * 10**9)
    assert len(dlbf.ExpiringFilter.from_bytes(f.to_bytes())) == 0


def test_system_clock_is_the_time_of_day():
    assert abs(dlbf.ExpiringFilter(10, ttl=1).clock.now() - time.time()) < 5


@pytest.mark.parametrize("seconds", [-1, 9e9, float("nan")])
def test_time_that_is_none_refused(seconds):
    clock = dlbf.ManualClock(0)
    with pytest.raises(ValueError, match="expected seconds since 1970"):
        clock.set(seconds)
    with pytest.raises(TypeError):
        dlbf.ExpiringFilter(10, ttl=1).clock = None


# --- removing


def test_removal_takes_the_entry_that_would_leave_first():
    """Of two keys with one fingerprint the one that stays must not leave with the other's time."""
    for first_removed in (True, False):
        f, clock = expiring(50, 0.5)
        f.add(b"old")
        young = next(key for key in KEYS if f.count(key))
        clock.advance(TTL / 2)
        f.add(young)
        f.remove(b"old" if first_removed else young)
        clock.advance(TTL / 2)
        assert (young if first_removed else b"old") in f
        clock.advance(TTL / 2)
        if first_removed:
            assert young in f


def test_key_added_often_in_one_step_is_counted_four_times_and_leaves_with_its_step():
    f, clock = expiring()
    f.update([b"hot"] * 1000)
    assert f.count(b"hot") == len(f) == 4
    assert f.remove(b"hot") is False
    assert f.count(b"hot") == 4
    clock.advance(TTL + STEP)
    assert b"hot" not in f
    f.update([b"warm"] * 3)
    assert [f.remove(b"warm") for _ in range(3)] == [False, False, True]


# --- against a dict of deadlines

POOL = [b"", b"\0", "ключ".encode(), *(b"k%d" % i for i in range(25))]
keys = st.sampled_from(POOL)
batches = st.lists(keys, max_size=25)


class Deadlines(RuleBasedStateMachine):
    """A filter beside the times at which each key was added.

    Times are the filter's: those of the clock, but none before the newest step in which it was changed.  A key whose
    time was over by then does not come back when the clock is set back.
    """

    fpr = EXACT
    secret = None

    def __init__(self):
        super().__init__()
        self.stack = contextlib.ExitStack()
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.path = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="dlbf-test-", dir=base)))
        self.numbers = itertools.count()
        self.clock = dlbf.ManualClock(100_000)  # far enough from 0 to be set back often
        self.f = self.make()
        self.must = defaultdict(list)  # steps of entries, and the times until which each must stay
        self.may = defaultdict(list)  # steps of entries that may be there
        self.newest = 0

    def make(self):
        return dlbf.ExpiringFilter(40, self.fpr, ttl=TTL, steps=STEPS, secret=self.secret, clock=self.clock)

    def teardown(self):
        self.f.close()
        self.stack.close()

    @property
    def now(self):
        return self.clock.now()

    @property
    def time(self):
        return max(self.now, self.newest * STEP)

    def changed(self):
        self.newest = max(self.newest, int(self.now // STEP))

    def added(self, key):
        self.changed()
        self.must[key].append((self.newest, self.time + TTL))
        self.may[key].append(self.newest)

    @rule(key=keys)
    def add(self, key):
        try:
            self.f.add(key)
        except dlbf.FilterFullError:
            self.changed()
            return
        self.added(key)

    @rule(batch=batches)
    def update(self, batch):
        for key in batch:
            self.add(key)

    @rule(batch=st.lists(keys, max_size=5))
    def add_hashes(self, batch):
        with contextlib.suppress(dlbf.FilterFullError):
            self.f.add_hashes(dlbf.hash_keys(batch, self.secret))
            for key in batch:
                self.added(key)
            return
        self.changed()
        for key in batch:  # some of them may be there
            self.may[key].append(self.newest)

    @rule(seconds=st.sampled_from([0.5, 10, STEP, 40, TTL, TTL + STEP]))
    def advance(self, seconds):
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([1, STEP, 150]))
    def set_back(self, seconds):
        self.clock.set(self.now - seconds)

    @precondition(lambda self: self.within())
    @rule(data=st.data(), batch=st.booleans())
    def remove(self, data, batch):
        key = data.draw(st.sampled_from(self.within()))
        before = self.f.count(key)
        if batch:
            self.f.remove_many([key])
        else:
            self.f.remove(key)
        self.changed()
        self.must[key].remove(min(entry for entry in self.must[key] if self.lives(entry[0])))
        if self.f.count(key) < before:
            self.may[key].remove(min(step for step in self.may[key] if self.lives(step)))

    def within(self):
        return sorted(key for key, ends in self.must.items() if any(end >= self.time for _, end in ends))

    def lives(self, step):
        return self.time < (step + 1) * STEP + TTL

    @rule()
    def to_bytes_and_back(self):
        self.f = dlbf.ExpiringFilter.from_bytes(self.f.to_bytes(), self.secret)
        self.f.clock = self.clock

    @rule()
    def copy(self):
        other = self.f.copy()
        assert other == self.f
        with contextlib.suppress(dlbf.FilterFullError):
            self.f.add(b"only in the old one")
        self.f = other

    @rule()
    def clear(self):
        self.f.clear()
        self.must.clear()
        self.may.clear()
        self.newest = 0

    @rule()
    def expire(self):
        assert self.f.expire() == len(self.f)
        self.changed()

    @rule(batch=batches)
    def union(self, batch):
        other = self.make()
        other.update(batch)
        steps = max(self.newest, int(self.now // STEP))
        try:
            self.f |= other
        except dlbf.FilterFullError:
            return
        self.newest = steps
        for key in batch:
            self.must[key].append((steps, self.time + TTL))
            self.may[key].append(steps)

    @rule(write=st.booleans(), key=keys)
    def file(self, write, key):
        path = self.path / str(next(self.numbers))
        self.f.save(path)
        with dlbf.open_filter(path, "r+" if write else "r", secret=self.secret) as self.f:
            self.f.clock = self.clock
            if write:
                self.add(key)
            self.answers_are_right()
        self.f = dlbf.open_filter(path, secret=self.secret).copy()
        self.f.clock = self.clock

    @invariant()
    def answers_are_right(self):
        within = self.within()
        assert self.f.contains_many(within).all()
        assert all(key in self.f for key in within)
        if self.fpr == EXACT:
            gone = [key for key in POOL if not any(map(self.lives, self.may[key]))]
            assert not self.f.contains_many(gone).any()
            assert not any(key in self.f for key in gone)
            assert len(self.f) <= sum(self.lives(step) for steps in self.may.values() for step in steps)


@pytest.mark.parametrize(("fpr", "secret"), [(EXACT, None), (EXACT, SECRET), (0.5, None)])
def test_expiring_against_deadlines(fpr, secret):
    class Machine(Deadlines):
        pass

    Machine.fpr, Machine.secret = fpr, secret
    run_state_machine_as_test(Machine, settings=settings(max_examples=settings().max_examples // 2))


# --- sets, files


def test_union_keeps_the_time_of_every_entry():
    f, clock = expiring()
    other = dlbf.ExpiringFilter(200, EXACT, ttl=TTL, steps=STEPS, clock=clock)
    f.update(KEYS[:50])
    clock.advance(TTL / 2)
    other.update(KEYS[50:100])
    f.update(KEYS[100:150])
    both = f | other
    assert len(both) == 150
    assert both.clock is clock
    clock.advance(TTL / 2 + STEP)
    assert both.contains_many(KEYS[50:150]).all()
    assert not both.contains_many(KEYS[:50]).any()
    clock.advance(TTL / 2)
    assert len(both) == 0


@pytest.mark.parametrize("ahead", ["mine", "other"])
def test_union_after_a_clock_was_set_back_denies_nothing(ahead):
    f, clock = expiring()
    other = f.copy()
    clock.advance(7 * TTL)
    (f if ahead == "mine" else other).add(b"ahead")
    clock.advance(-7 * TTL)
    (other if ahead == "mine" else f).add(b"behind")
    for both in (f | other, other | f):
        for _ in range(2):
            assert both.contains_many([b"ahead", b"behind"]).all()
            clock.advance(TTL / 2)
        assert both.contains_many([b"ahead", b"behind"]).all()
        clock.advance(-TTL)


def test_union_that_does_not_fit_changes_nothing():
    f, _ = expiring(50)
    other = f.copy()
    f.update(KEYS[:80])
    other.update(KEYS[100:180])
    before = f.copy()
    with pytest.raises(dlbf.FilterFullError, match="does not fit"):
        f |= other
    assert f == before
    assert len(f) == 80


def test_filters_of_different_times_do_not_combine():
    f, _ = expiring()
    with pytest.raises(ValueError, match="differ in ttl_ns"):
        f |= dlbf.ExpiringFilter(200, EXACT, ttl=TTL + 1, steps=STEPS)


def test_file_ages_in_another_process(tmp_path):
    """What was saved long ago is empty when it is opened; what was saved now is not."""
    age = 1000
    for name, then in (("old", time.time() - age), ("new", time.time())):
        f = dlbf.ExpiringFilter(100, EXACT, ttl=age - 200, clock=dlbf.ManualClock(then))
        f.update(KEYS[:100])
        f.save(tmp_path / name)
    script = (
        "import sys, dlbf\n"
        "for mode in ('r', 'r+'):\n"
        "    for name in ('old', 'new'):\n"
        "        with dlbf.open_filter(sys.argv[1] + '/' + name, mode) as f:\n"
        "            print(len(f), b'another' in f, f.contains_many(sys.argv[2:]).sum())\n"
        "            if mode == 'r+': f.add(b'another')\n"
    )
    arguments = [key.decode() for key in KEYS[:100]]
    out = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), *arguments], capture_output=True, text=True, check=True
    )
    assert out.stdout.splitlines() == ["0 False 0", "100 False 100"] * 2
    with dlbf.open_filter(tmp_path / "old") as f:
        assert (len(f), b"another" in f) == (1, True)


def test_killed_writer_leaves_a_file_that_is_recovered(tmp_path):
    f, clock = expiring(1000, 0.01)
    f.update(KEYS[:500])
    clock.advance(STEP)
    f.update(KEYS[500:600])
    header, payload = dlbf.format.unpack(f.to_bytes())
    damaged = bytearray(payload)
    damaged[64 + 8 : 64 + 16] = (123).to_bytes(8, "little")  # a count that had not been written yet
    values = {name: getattr(header, name) for name in header.__dataclass_fields__} | {"flags": 1}
    path = tmp_path / "f"
    path.write_bytes(dlbf.format.pack(dlbf.format.Header(**values), damaged))
    with dlbf.open_filter(path, "r+", recover=True) as back:
        back.clock = clock
        assert len(back) == 600
        assert back.contains_many(KEYS[:600]).all()


@pytest.mark.parametrize(
    ("offset", "value"),
    [(0, 2**63), (8, 9), (16, 1), (64, 10**9), (72, 10**9), (64 + 16 * 8 + 8, 1)],
    ids=["step", "current", "reserved", "later than the newest", "too many entries", "entries of nobody"],
)
def test_head_that_contradicts_itself_refused(offset, value):
    f, _ = expiring(50)
    f.update(KEYS[:20])
    header, payload = dlbf.format.unpack(f.to_bytes())
    damaged = bytearray(payload)
    damaged[offset : offset + 8] = value.to_bytes(8, "little")
    with pytest.raises(dlbf.FormatError, match="contradicts itself"):
        dlbf.ExpiringFilter.from_bytes(dlbf.format.pack(header, damaged))


def test_table_that_left_is_empty_bytes():
    f, clock = expiring()
    empty = bytes(peek.payload(f))
    f.update(KEYS[:100])
    clock.advance(TTL + STEP)
    assert f.expire() == 0
    assert bytes(peek.payload(f))[64:] == empty[64:]


# --- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ttl": 1}, TypeError, "pass capacity="),
        ({"capacity": 10, "ttl": 0}, ValueError, "ttl must be between 0.001"),
        ({"capacity": 10, "ttl": "1h"}, TypeError, "ttl must be seconds or a timedelta"),
        ({"capacity": 10, "ttl": True}, TypeError, "ttl must be seconds"),
        ({"capacity": 10, "ttl": float("nan")}, ValueError, "ttl must be between"),
        ({"capacity": 10, "ttl": 1, "steps": 25}, ValueError, "steps must be between 1 and 24"),
        ({"capacity": 10, "ttl": 1, "fpr": 0}, ValueError, "fpr must be at least"),
    ],
)
def test_arguments_that_make_no_filter_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        dlbf.ExpiringFilter(**arguments)


def test_ttl_as_timedelta_and_properties():
    f = dlbf.ExpiringFilter(1000, 0.01, ttl=timedelta(hours=1), steps=6)
    assert (f.ttl, f.steps, f.lateness, f.capacity, f.fpr_target) == (3600.0, 6, 600.0, 1000, 0.01)
    f.update(KEYS[:1000])
    assert (f.approximate_count(), len(f)) == (1000, 1000)
    assert 0 < f.fill < 0.6
    assert f.nbytes < 3 * dlbf.CuckooFilter(1000, 0.01).nbytes + 1000
    assert np.isnan(dlbf.ExpiringFilter(10, ttl=1).bits_per_key)
