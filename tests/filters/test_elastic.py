"""The elastic Bloom filter: it doubles and halves without its keys, and never loses one."""

import contextlib
import itertools
import math
import mmap
from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from support import peek
from support.samples import SECRET, elastic_of_buckets, url_keys

import dlbf
from dlbf.filters import elastic
from dlbf.filters.elastic_sizes import elastic_bytes, elastic_geometry, elastic_keys
from dlbf.theory.costs import base_cost
from dlbf.theory.planner import AUTO_BASES

STASH = 64  # entries
TARGET = 0.01
ABSENT = url_keys(40_000, seed=99)


def keys_of(n: int, seed: int = 1) -> list[bytes]:
    return [b"%d/%d" % (seed, i) for i in range(n)]


def allowed(rate: float, n: int) -> float:
    """A measured rate of n questions, four standard deviations above the true one."""
    return rate + 4 * math.sqrt(rate * (1 - rate) / n)


# --- from 2^10 to 2^20 and back


@pytest.mark.parametrize("largest", [14, pytest.param(20, marks=pytest.mark.slow)])
def test_from_1024_bits_to_a_million_and_back_no_key_is_denied_and_the_rate_holds(largest):
    keys = keys_of(60_000 >> (20 - largest))
    wave = len(keys) // 30
    f = dlbf.ElasticBloomFilter(60, TARGET)
    assert f.bits == 2**10
    doubled_at = {}
    for first in range(0, len(keys), wave):
        for key in keys[first : first + wave]:
            before = f.is_moving
            f.add(key)
            if f.is_moving and not before:
                doubled_at[f.geometry.allocated_log2 - 1] = len(f)
            assert f.expected_fpr <= TARGET  # at every single step
        assert f.contains_many(keys[: first + wave]).all()
        assert len(f) == min(first + wave, len(keys))
        measured = f.contains_many(ABSENT).mean()
        assert measured <= allowed(TARGET, len(ABSENT))
    assert f.bits == 2**largest
    assert f.geometry.allocated_log2 == largest
    # It doubles where the published formula says: n = -ln(1 - f) m / k, five standard deviations of luck around it.
    for log2, n in doubled_at.items():
        expected = elastic_keys(2**log2, f.hashes, f.geometry.full_share)
        assert abs(n - expected) < 5 * math.sqrt(2**log2) / f.hashes + 1, log2
    assert set(doubled_at) == set(range(10, largest))
    # And back: remove in another order than they came.
    left = keys[::2] + keys[1::2]
    sizes = set()
    while left:
        gone, left = left[:wave], left[wave:]
        for key in gone:
            assert f.remove(key) is (key not in f)
            sizes.add(f.bits)
        assert f.contains_many(left).all()
        assert len(f) == len(left)
        assert f.expected_fpr <= TARGET
        assert f.contains_many(ABSENT).mean() <= allowed(TARGET, len(ABSENT))
    assert f.bits == 2**10
    assert f.nbytes == dlbf.ElasticBloomFilter(60, TARGET).nbytes
    assert f == dlbf.ElasticBloomFilter(60, TARGET)
    assert {2**log2 for log2 in range(10, largest + 1)} <= sizes


@pytest.mark.parametrize("fpr", [0.3, 0.01, 1e-4])
def test_measured_rate_is_the_share_of_ones_to_the_power_of_hashes_and_below_the_target(fpr):
    f = dlbf.ElasticBloomFilter(20, fpr)
    added = itertools.count()
    for n in [20, 100, 300, 1000, 3000, 6000, 12_000, 25_000]:
        f.update(b"%d" % next(added) for _ in range(n - len(f)))
        measured = f.contains_many(ABSENT).mean()
        noise = 4 * math.sqrt(f.expected_fpr / len(ABSENT)) + 1e-12
        assert abs(measured - f.expected_fpr) <= max(noise, 3 / len(ABSENT)), n
        assert measured <= allowed(fpr, len(ABSENT)), n
        assert f.expected_fpr <= fpr
        # The textbook's share of ones, where nothing is under way.
        if not f.is_moving:
            assert f.fill == pytest.approx(-math.expm1(-n * f.hashes / f.bits), abs=5 / math.sqrt(f.bits))


def test_published_formulas_for_hashes_threshold_and_size():
    f = dlbf.ElasticBloomFilter(100_000, 0.01)
    assert f.hashes == math.ceil(math.log2(100)) == 7
    assert f.full_share == pytest.approx(0.01 ** (1 / 7), abs=1e-9)
    assert f.full_share**f.hashes <= 0.01
    best = 100_000 * math.log(100) / math.log(2) ** 2  # a Bloom filter's bits
    assert best < f.bits < 2 * 1.05 * best
    for fpr in (0.999, 0.7, 0.5, 0.4, 0.25, 0.1, 1e-9, 1e-15):
        f = dlbf.ElasticBloomFilter(10, fpr)
        assert f.full_share**f.hashes <= fpr
        f.update(keys_of(100))
        assert f.contains_many(keys_of(100)).all()


def test_initial_capacity_fits_without_doubling():
    for n, seed in itertools.product([1, 10, 19, 100, 1000], range(10)):
        f = dlbf.ElasticBloomFilter(n, 0.02)
        before = f.bits
        f.update(keys_of(n, seed))
        assert f.bits == before


def test_no_single_change_pays_for_all():
    """An add divides a few buckets, a removal joins a few; nothing walks over the whole."""
    f = dlbf.ElasticBloomFilter(50, 1e-3)
    keys = keys_of(5000)

    def divided():
        log2, _, n_split, *_ = f._head()
        return (1 << (log2 - 8)) + n_split

    steps = []
    for key in keys:
        before = divided()
        f.add(key)
        steps.append(divided() - before)
    assert f.bits >= 2**15
    assert max(steps) <= 9
    assert sum(steps) >= 2**7 - 8
    for key in keys:
        before = divided()
        f.remove(key)
        assert 0 <= before - divided() <= 1
    assert f.bits == 2**f.geometry.initial_log2


def test_large_filter_grows_without_being_copied():
    f = dlbf.ElasticBloomFilter(14_000, 0.01)
    if not isinstance(f._owner, mmap.mmap):
        pytest.skip("memory of this system cannot grow in place")
    owner = f._owner
    f.update(keys_of(30_000))
    assert f._owner is owner
    back = dlbf.ElasticBloomFilter.from_bytes(f.to_bytes())
    owner = back._owner
    back.update(keys_of(30_000, seed=2))
    assert back._owner is owner
    with memoryview(peek.payload(back)):  # somebody looks at it: then it must be copied
        back.update(keys_of(60_000, seed=3))
    assert back._owner is not owner
    for seed, n in ((1, 30_000), (2, 30_000), (3, 60_000)):
        assert back.contains_many(keys_of(n, seed)).all()


# --- the three faults of the public reference code


@pytest.mark.parametrize("slots", [1, 5, 20, 60])
def test_full_bucket_loses_no_key(slots):
    """There, an overflowing bucket dropped entries, and the next doubling their bits."""
    f = elastic_of_buckets(512, slots)
    stored = []
    for key in keys_of(3000):
        try:
            f.add(key)
        except dlbf.FilterFullError:
            assert f.contains_many(stored).all()
            break
        stored.append(key)
        assert peek.is_sound(f) or len(stored) > 200
    assert peek.is_sound(f)
    assert f.contains_many(stored).all()
    assert all(f.contains(key, exact=True) for key in stored)
    assert len(stored) * 3 >= STASH
    for i, key in enumerate(stored):
        f.remove(key)
        if i % 50 == 0:
            assert f.contains_many(stored[i + 1 :]).all()
    assert f.fill == 0
    assert len(f) == 0


def test_copies_of_one_key_until_nothing_fits_then_all_removed():
    f = dlbf.ElasticBloomFilter(bits=1024, hashes=4)
    f.update(keys_of(30))
    with pytest.raises(dlbf.FilterFullError, match="no room for one more copy of this key"):
        f.update(itertools.repeat(b"hot"))
    copies = len(f) - 30
    assert copies >= 64
    assert f.bits == 1024  # doubling would not have parted the copies
    assert f.count(b"hot") == copies
    assert len(f) == 30 + copies
    assert f.contains_many(keys_of(30)).all()
    assert peek.is_sound(f)
    with pytest.raises(dlbf.FilterFullError):
        f.update([b"hot"] * 5)
    for left in range(copies - 1, -1, -1):
        assert f.remove(b"hot") is (left == 0)
        assert f.count(b"hot") == left
    with pytest.raises(KeyError):
        f.remove(b"hot")
    assert f == (dlbf.ElasticBloomFilter(bits=1024, hashes=4) | f)
    assert f.contains_many(keys_of(30)).all()


def test_no_bucket_is_written_past_its_last_slot():
    """There, a full bucket wrote one slot too far, over the first of the next bucket."""
    slots = 24
    f = elastic_of_buckets(512, slots, hashes=1, share=0.9)
    (_, _, at, n_bytes, entry_bits), *_ = elastic.elastic_levels(f.geometry)[0]
    lowest = [key for key in keys_of(5000) if _position(f, key) < 256][: slots + 10]
    other = next(key for key in keys_of(5000, seed=2) if _position(f, key) >= 256)
    f.add(other)
    neighbour = bytes(peek.payload(f)[at + n_bytes : at + 2 * n_bytes])
    beyond = bytes(peek.payload(f)[at + 2 * n_bytes :])
    for n, key in enumerate(lowest, start=1):
        f.add(key)
        assert bytes(peek.payload(f)[at + n_bytes : at + 2 * n_bytes]) == neighbour
        assert bytes(peek.payload(f)[at + 2 * n_bytes :]) == beyond
        assert peek.payload(f)[at] == min(n, slots)
    # What lies between the last slot and the next bucket is less than a byte.
    assert n_bytes == 2 + -(-slots * entry_bits // 8)
    assert f._head()[5] == 10  # the others wait in the stash
    assert f.contains_many([*lowest, other]).all()


def _position(f: dlbf.ElasticBloomFilter, key: bytes) -> int:
    one = f.copy()
    one.clear()
    one.add(key)
    return int(one._entries()[0][0]) % f.bits


def test_equal_fingerprints_of_two_keys_are_two_entries():
    """There, a fingerprint that was in its bucket already was taken for a repetition, and went with the other key."""
    for seed in range(20):
        f = dlbf.ElasticBloomFilter(bits=256, hashes=4)
        f.add(b"mine")
        mine = f._entries()[0]
        # Another key that shares two whole hashes with the first one, and has two of its own.
        other = np.concatenate([mine[:2], np.random.default_rng(seed).integers(0, 2**64, 2, dtype=np.uint64)])
        f._unite(other, 1)
        assert len(f) == 2
        f.remove(b"mine")
        assert len(f) == 1
        assert sorted(f._entries()[0]) == sorted(other)
        assert all(peek.payload(f)[576 + (int(x) % 256 >> 3)] >> (int(x) % 8) & 1 for x in other)
        assert peek.is_sound(f)


def test_repetition_is_counted_and_no_key_is_two():
    f = dlbf.ElasticBloomFilter(100)
    f.update([b"a", b"a", b"b"])
    assert (len(f), f.count(b"a"), f.count(b"b"), f.count(b"c")) == (3, 2, 1, 0)
    assert f.remove(b"a") is False
    assert b"a" in f
    assert f.remove(b"a") is True
    with pytest.raises(KeyError):
        f.remove(b"a")
    assert len(f) == 1


# --- a multiset, up and down


class Elastic(RuleBasedStateMachine):
    """Waves of keys in and out, so that it doubles and halves several times in one run."""

    make = staticmethod(lambda: dlbf.ElasticBloomFilter(bits=256, hashes=3))

    def __init__(self):
        super().__init__()
        self.f = self.make()
        self.model: Counter[bytes] = Counter()
        self.numbers = itertools.count()

    def try_to_add(self, key):
        try:
            self.f.add(key)
        except dlbf.FilterFullError:
            return
        self.model[key] += 1

    @rule(n=st.integers(1, 150))
    def wave_in(self, n):
        for _ in range(n):
            self.try_to_add(b"%d" % next(self.numbers))

    @rule(n=st.integers(1, 5))
    def again(self, n):
        for key in itertools.islice(list(self.model), n):
            self.try_to_add(key)

    @precondition(lambda self: self.model)
    @rule(share=st.sampled_from([0.1, 0.5, 0.9, 1.0]), newest=st.booleans(), batch=st.booleans())
    def wave_out(self, share, newest, batch):
        stored = sorted(self.model.elements(), reverse=newest)
        gone = stored[: math.ceil(share * len(stored))]
        if batch:
            self.f.remove_many(gone)
        else:
            for key in gone:
                self.f.remove(key)
        self.model -= Counter(gone)

    @rule(n=st.integers(0, 60), union=st.booleans())
    def combine(self, n, union):
        other, theirs = self.make(), Counter()
        for key in [*itertools.islice(self.model, n // 2), *(b"o%d" % i for i in range(n))]:
            with contextlib.suppress(dlbf.FilterFullError):
                other.add(key)
                theirs[key] += 1
        try:
            self.f = self.f | other if union else self.f & other
        except dlbf.FilterFullError:
            return
        self.model = self.model + theirs if union else self.model & theirs

    @rule()
    def bytes_and_back(self):
        self.f = dlbf.ElasticBloomFilter.from_bytes(self.f.to_bytes())

    @invariant()
    def is_the_multiset(self):
        assert len(self.f) == self.model.total() == self.f.approximate_count()
        assert peek.is_sound(self.f)
        stored = list(self.model)
        assert self.f.contains_many(stored).all()
        assert [self.f.count(key) for key in stored[:40]] == [self.model[key] for key in stored[:40]]
        assert not any(self.f.contains(key, exact=True) for key in ABSENT[:10])
        assert self.f.fill <= self.f.full_share


@pytest.mark.parametrize("slots", [None, 70], ids=["buckets as planned", "buckets that overflow"])
def test_elastic_against_multiset(slots):
    class Machine(Elastic):
        make = staticmethod(Elastic.make if slots is None else lambda: elastic_of_buckets(256, slots))

    run_state_machine_as_test(Machine, settings=settings(max_examples=settings().max_examples // 2))


# --- asking exactly, sets, files


def test_exact_question_sees_through_false_positives():
    f = dlbf.ElasticBloomFilter(1000, 0.3)
    f.update(keys_of(2000))
    false = [key for key in ABSENT[:5000] if key in f]
    assert len(false) > 300
    for key in false:
        assert f.contains(key)
        assert not f.contains(key, exact=True)
        with pytest.raises(KeyError):
            f.remove(key)
    assert f.contains_many(keys_of(2000)).all()
    assert len(f) == 2000


def test_filters_of_different_sizes_combine():
    small, large = dlbf.ElasticBloomFilter(10), dlbf.ElasticBloomFilter(5000)
    small.update(keys_of(300))
    large.update(keys_of(400)[100:])
    both = small | large
    assert len(both) == 600
    assert both.contains_many(keys_of(400)).all()
    assert both.count(keys_of(400)[200]) == 2
    common = small & large
    assert len(common) == 200
    assert common.contains_many(keys_of(300)[100:]).all()
    assert not any(common.contains(key, exact=True) for key in keys_of(100))
    again = large & small
    assert again == common
    assert again.bits == large.bits
    assert small != large
    grown = dlbf.ElasticBloomFilter(10)
    grown.update(keys_of(400)[100:])
    assert grown == large


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (dlbf.ElasticBloomFilter(10, 0.001), "n_hashes"),
        (dlbf.ElasticBloomFilter(10, filter_id=1), "filter_id"),
        (dlbf.ElasticBloomFilter(10, secret=SECRET), "hash"),
    ],
)
def test_filters_of_different_hashes_do_not_combine(other, what):
    f = dlbf.ElasticBloomFilter(10)
    for combine in (lambda: f | other, lambda: f & other):
        with pytest.raises(ValueError, match=f"cannot be combined; they differ in {what}"):
            combine()
    assert f != other


def test_union_that_does_not_fit_changes_nothing():
    f, other = dlbf.ElasticBloomFilter(bits=256, hashes=4), dlbf.ElasticBloomFilter(bits=256, hashes=4)
    for each in (f, other):
        each.update([b"hot"] * 60)
    f.update(keys_of(3))
    before = f.copy()
    with pytest.raises(dlbf.FilterFullError, match="does not fit"):
        f |= other
    assert f == before
    assert f.contains_many(keys_of(3)).all()
    assert peek.is_sound(f)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_file_in_the_middle_of_a_move_goes_on_where_it_was(tmp_path, secret):
    f = dlbf.ElasticBloomFilter(2000, secret=secret)
    keys = keys_of(20_000)
    n = 0
    while not (f.is_moving and len(f) > 5000):
        f.add(keys[n])
        n += 1
    f.save(tmp_path / "f")
    with dlbf.open_filter(tmp_path / "f", secret=secret) as mapped:
        assert mapped.is_moving
        assert mapped.contains_many(keys[:n]).all()
        assert mapped.count(keys[0]) == 1
        assert mapped == f
    with dlbf.open_filter(tmp_path / "f", "r+", secret=secret) as mapped:
        more = n
        while mapped.is_moving:
            mapped.add(keys[more])
            more += 1
        with pytest.raises(dlbf.FilterFullError, match="a mapped ElasticBloomFilter cannot double"):
            mapped.update(keys[more:])
        full = len(mapped)
        assert mapped.contains_many(keys[:full]).all()
        assert mapped.expected_fpr <= 0.01
        for key in keys[100:full]:
            mapped.remove(key)
        assert mapped.bits == 2**mapped.geometry.initial_log2
    back = dlbf.open_filter(tmp_path / "f", secret=secret).copy()
    assert len(back) == 100
    assert back.contains_many(keys[:100]).all()
    back.update(keys[100:])
    assert back.contains_many(keys).all()


def test_file_that_was_not_closed_is_not_recovered(tmp_path):
    f = dlbf.ElasticBloomFilter(100)
    f.save(tmp_path / "f")
    data = bytearray((tmp_path / "f").read_bytes())
    header, payload = dlbf.format.unpack(data)
    values = {name: getattr(header, name) for name in header.__dataclass_fields__} | {"flags": 1}
    (tmp_path / "f").write_bytes(dlbf.format.pack(dlbf.format.Header(**values), payload))
    with pytest.raises(dlbf.ChecksumError, match="change in more than one step"):
        dlbf.open_filter(tmp_path / "f", "r+", recover=True)


# --- arguments, price


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "pass initial_capacity="),
        ({"initial_capacity": 0}, ValueError, "initial_capacity must be between 1"),
        ({"initial_capacity": "1"}, TypeError, "initial_capacity must be a whole number"),
        ({"initial_capacity": 10, "fpr": 0}, ValueError, "fpr must be at least"),
        ({"bits": 1024}, TypeError, "mixture"),
        ({"bits": 1000, "hashes": 3}, ValueError, "bits must be a power of two, found 1000"),
        ({"bits": 128, "hashes": 3}, ValueError, "bits must be between 256"),
        ({"bits": 256, "hashes": 65}, ValueError, "hashes must be between 1 and 64"),
        ({"initial_capacity": 10, "bits": 256, "hashes": 3}, TypeError, "mixture"),
    ],
)
def test_arguments_that_make_no_filter_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        dlbf.ElasticBloomFilter(**arguments)


def test_price_is_that_of_planned_filters_and_no_plan_chooses_it():
    cost = base_cost("elastic")
    for fpr in (0.1, 0.01, 0.001):
        # Sizes are powers of two: the mean over an octave, to a twentieth where k is whole.
        taken = [8 * elastic_bytes(elastic_geometry(n, fpr)) / n for n in np.geomspace(50_000, 100_000, 41).astype(int)]
        assert 0.8 < np.mean(taken) / cost.bits(fpr) < 1.2, fpr
    assert "elastic" in AUTO_BASES
    assert cost.bits(0.01) > 50 * min(line.bits(0.01) for line in dlbf.theory.costs.base_costs("cuckoo"))
    plan = dlbf.theory.plan("auto", model_fpr=0.01, model_fnr=0.5, fpr=0.01)
    assert all(region.member.base != "elastic" for region in plan.regions)
