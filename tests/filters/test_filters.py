"""The public filters: what every class promises, at its edges and beside them."""

import copy
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from support import peek
from support.samples import DELETABLE, SECRET, SMALL_FILTERS, small_filters, url_keys

import dlbf

KEYS = url_keys(40, seed=1)
OTHERS = url_keys(40, seed=2)
CLASSES = [dlbf.BloomFilter, dlbf.CountingBloomFilter, dlbf.DeletableBloomFilter, dlbf.DLeftFilter, dlbf.CuckooFilter]


def loaded(maker, keys=KEYS):
    f = maker()
    f.update(keys)
    return f


# --- keys


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize("name", sorted(SMALL_FILTERS))
def test_filter_of_awkward_keys_finds_them_all(name, secret):
    f = small_filters(secret)[name]()
    keys = [b"", b"\0", b"\0\0", b"a\0b", b"a", b"x" * 1_000_000, b"\xff" * 17, "ключ".encode(), b"y" * 16385]
    for key in keys:
        assert key not in f
    for key in keys[::2]:
        f.add(key)
    f.update(keys[1::2])
    for key in keys:
        assert key in f
    assert f.contains_many(keys).all()
    assert "ключ" in f
    assert len(f) == len(keys)
    back = type(f).from_bytes(f.to_bytes(), secret=secret)
    assert back == f
    assert back.contains_many(keys).all()


def test_len_bool_and_repr_follow_the_keys(make_filter):
    f = make_filter()
    assert not f
    assert len(f) == 0
    assert f.fill == 0
    assert math.isnan(f.bits_per_key)
    assert f.expected_fpr == 0
    f.update(KEYS)
    assert f
    assert len(f) == len(KEYS)
    assert f.bits_per_key == 8 * f.nbytes / len(KEYS)
    assert 0 < f.fill <= 1
    assert 0 <= f.expected_fpr < 1
    assert type(f).__name__ in repr(f)
    assert "40 keys" in repr(f)


def test_filter_is_not_hashable_nor_iterable(make_filter):
    with pytest.raises(TypeError, match="unhashable"):
        hash(make_filter())
    if not isinstance(make_filter(), dlbf.ExactSet):
        with pytest.raises(TypeError, match="not iterable"):
            iter(make_filter())


@pytest.mark.parametrize("cls", CLASSES)
def test_filter_remembers_what_it_was_planned_for(cls):
    f = cls(1000, 0.02)
    assert f.capacity == 1000
    assert f.fpr_target == 0.02
    back = cls.from_bytes(f.to_bytes())
    assert (back.capacity, back.fpr_target) == (1000, 0.02)


@pytest.mark.parametrize("name", sorted(set(SMALL_FILTERS) - {"exact"}))
def test_filter_of_exact_geometry_was_planned_for_nothing(name):
    f = SMALL_FILTERS[name]()
    assert f.capacity is None
    assert f.fpr_target is None


# --- arguments


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("fpr", [0, 0.0, 1, 1.0, -0.1, 1.1, math.nan, math.inf, -math.inf, 1e-16])
def test_fpr_outside_its_range_refused(cls, fpr):
    with pytest.raises(ValueError, match=r"fpr must be at least 1e-15 and below 1, found"):
        cls(1000, fpr)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("fpr", ["0.01", None, [0.01], True, 1j])
def test_fpr_of_another_type_refused(cls, fpr):
    with pytest.raises(TypeError, match="fpr must be a number"):
        cls(1000, fpr)


@pytest.mark.parametrize("cls", [*CLASSES, dlbf.ExactSet])
@pytest.mark.parametrize("capacity", [0, -1, 1 << 50, 1 << 64, 10**30])
def test_capacity_outside_its_range_refused(cls, capacity):
    with pytest.raises(ValueError, match=r"capacity must be between 1 and"):
        cls(capacity)


@pytest.mark.parametrize("cls", [*CLASSES, dlbf.ExactSet])
@pytest.mark.parametrize("capacity", ["1000", 1.5, [1], True, math.nan, math.inf])
def test_capacity_of_another_type_refused(cls, capacity):
    with pytest.raises(TypeError, match="capacity must be a whole number"):
        cls(capacity)


@pytest.mark.parametrize("cls", CLASSES)
def test_capacity_missing_says_what_to_pass(cls):
    with pytest.raises(TypeError, match="pass capacity="):
        cls()


@pytest.mark.parametrize("cls", [*CLASSES, dlbf.ExactSet])
def test_capacity_beyond_memory_is_an_error_and_not_a_crash(cls):
    # 2^42 keys are terabytes; either the size is refused or the memory is.
    with pytest.raises((MemoryError, ValueError)):
        cls(1 << 42, filter_id=1) if cls is not dlbf.ExactSet else cls(1 << 40)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("capacity", [1, 1.0, np.int64(1), 2, 3, 1e3])
def test_capacity_small_or_of_number_types_accepted(cls, capacity):
    f = cls(capacity)
    f.update(url_keys(int(capacity)))
    assert f.contains_many(url_keys(int(capacity))).all()
    assert type(f).from_bytes(f.to_bytes()) == f


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("fpr", [0.999999, 0.9, 0.5, 1e-3, np.float32(0.01)])
def test_fpr_extremes_hold_their_capacity(cls, fpr):
    for n in (1, 10, 300):
        f = cls(n, fpr)
        f.update(url_keys(n))
        assert f.contains_many(url_keys(n)).all()


@pytest.mark.parametrize("cls", [dlbf.CuckooFilter, dlbf.DLeftFilter])
def test_tables_hold_their_capacity_at_every_small_size(cls):
    # Small tables are where luck matters: 20 different key sets for each size.
    for n in [*range(1, 40), 100, 300]:
        for seed in range(20):
            f = cls(n, 0.05)
            f.update([b"%d-%d" % (seed, i) for i in range(n)])
            assert len(f) == n


@pytest.mark.parametrize("fpr", [0.28, 0.1, 0.01])
def test_large_table_stays_full_while_all_its_keys_are_replaced(fpr):
    n = 100_000
    f = dlbf.CuckooFilter(n, fpr)
    f.update([b"0-%d" % i for i in range(n)])
    # One in, one out, all the way around: the load is the planned one at every step.
    for i in range(n):
        f.remove(b"0-%d" % i)
        f.add(b"1-%d" % i)
    assert len(f) == n
    assert f.contains_many([b"1-%d" % i for i in range(n)]).all()


@pytest.mark.parametrize(
    ("cls", "arguments", "error", "message"),
    [
        (dlbf.BloomFilter, {"bits": 100}, TypeError, "mixture"),
        (dlbf.BloomFilter, {"hashes": 3}, TypeError, "mixture"),
        (dlbf.BloomFilter, {"capacity": 10, "bits": 100, "hashes": 3}, TypeError, "mixture"),
        (dlbf.BloomFilter, {"bits": 0, "hashes": 3}, ValueError, "bits must be between 1 and"),
        (dlbf.BloomFilter, {"bits": 1 << 60, "hashes": 3}, ValueError, "bits must be between 1 and"),
        (dlbf.BloomFilter, {"bits": 100, "hashes": 0}, ValueError, "hashes must be between 1 and 64"),
        (dlbf.BloomFilter, {"bits": 100, "hashes": 65}, ValueError, "hashes must be between 1 and 64"),
        (dlbf.BloomFilter, {"bits": 100, "hashes": 2.5}, TypeError, "hashes must be a whole number"),
        (dlbf.BloomFilter, {"bits": 100, "hashes": 2, "layout": "blocked"}, ValueError, "a multiple of 512 bits"),
        (dlbf.BloomFilter, {"capacity": 10, "layout": "round"}, ValueError, "'classic' or 'blocked', found 'round'"),
        (dlbf.BloomFilter, {"capacity": 10, "secret": b"x"}, ValueError, "exactly 16 bytes, found 1"),
        (dlbf.BloomFilter, {"capacity": 10, "secret": "x"}, TypeError, "16 bytes or None"),
        (dlbf.BloomFilter, {"capacity": 10, "filter_id": -1}, ValueError, "filter_id must be between 0 and"),
        (dlbf.BloomFilter, {"capacity": 10, "filter_id": 2**64}, ValueError, "filter_id must be between 0 and"),
        (dlbf.CountingBloomFilter, {"capacity": 10, "counter_bits": 3}, ValueError, "must be 2, 4 or 8, found 3"),
        (dlbf.CountingBloomFilter, {"capacity": 10, "counter_bits": 1}, ValueError, "must be 2, 4 or 8, found 1"),
        (dlbf.CountingBloomFilter, {"capacity": 10, "counter_bits": 16}, ValueError, "counter_bits"),
        (dlbf.CountingBloomFilter, {"capacity": 10, "counter_bits": "4"}, TypeError, "counter_bits"),
        (dlbf.CountingBloomFilter, {"bits": 10, "counters": 10, "hashes": 1}, ValueError, "either counters= or bits="),
        (dlbf.CountingBloomFilter, {"bits": 10, "hashes": 1}, ValueError, "a multiple of counter_bits"),
        (dlbf.CountingBloomFilter, {"counters": 0, "hashes": 1}, ValueError, "counters must be between 1"),
        (dlbf.CountingBloomFilter, {"counters": 1 << 60, "hashes": 1}, ValueError, "counters must be between 1"),
        (dlbf.DeletableBloomFilter, {"bits": 240, "hashes": 5}, TypeError, "mixture"),
        (dlbf.DeletableBloomFilter, {"bits": 240, "hashes": 5, "regions": 0}, ValueError, "regions must be between"),
        (dlbf.DeletableBloomFilter, {"bits": 240, "hashes": 5, "regions": 121}, ValueError, "regions must be between"),
        (dlbf.DeletableBloomFilter, {"bits": 1, "hashes": 5, "regions": 1}, ValueError, "bits must be between 2"),
        (dlbf.DeletableBloomFilter, {"capacity": 10, "regions": 10**9}, ValueError, "regions must be between 1"),
        (dlbf.DLeftFilter, {"buckets": 4}, TypeError, "mixture"),
        (dlbf.DLeftFilter, {"buckets": 4, "remainder_bits": 31}, ValueError, "remainder_bits must be between 1 and 30"),
        (dlbf.DLeftFilter, {"buckets": 4, "remainder_bits": 8, "tables": 9}, ValueError, "tables must be between 1"),
        (dlbf.DLeftFilter, {"buckets": 4, "remainder_bits": 8, "cells": 65}, ValueError, "cells must be between 1"),
        (dlbf.DLeftFilter, {"capacity": 4, "counter_bits": 9}, ValueError, "counter_bits must be between 1 and 8"),
        (dlbf.DLeftFilter, {"capacity": 4, "tables": 3}, TypeError, "belong to an exact geometry"),
        (dlbf.DLeftFilter, {"capacity": 4, "fpr": 1e-12}, ValueError, "cannot reach fpr=1e-12"),
        (dlbf.CuckooFilter, {"buckets": 4}, TypeError, "mixture"),
        (dlbf.CuckooFilter, {"capacity": 4, "prefixes": 8}, TypeError, "mixture"),
        (dlbf.CuckooFilter, {"buckets": 4, "suffix_bits": 25}, ValueError, "suffix_bits must be between 0 and 24"),
        (dlbf.CuckooFilter, {"buckets": 4, "suffix_bits": 3, "prefixes": 29}, ValueError, "prefixes must be between 2"),
        (dlbf.CuckooFilter, {"buckets": 0, "suffix_bits": 3}, ValueError, "buckets must be between 1"),
        (dlbf.CuckooFilter, {"capacity": 4, "fpr": 1e-12}, ValueError, "cannot reach fpr=1e-12"),
    ],
)
def test_arguments_that_make_no_filter_refused(cls, arguments, error, message):
    with pytest.raises(error, match=message):
        cls(**arguments)


@pytest.mark.parametrize(
    "make",
    [
        lambda: dlbf.BloomFilter(bits=1, hashes=64),
        lambda: dlbf.BloomFilter(bits=7, hashes=1, filter_id=2**64 - 1),
        lambda: dlbf.CountingBloomFilter(counters=1, hashes=1, counter_bits=2),
        lambda: dlbf.CountingBloomFilter(bits=16, hashes=2, counter_bits=8),
        lambda: dlbf.CountingBloomFilter(100, counter_bits=4.0),
        lambda: dlbf.DeletableBloomFilter(bits=2, hashes=1, regions=1),
        lambda: dlbf.DeletableBloomFilter(bits=101, hashes=64, regions=50),
        lambda: dlbf.DLeftFilter(buckets=1, remainder_bits=1, tables=1, cells=1),
        lambda: dlbf.DLeftFilter(buckets=3.0, remainder_bits=24.0, tables=8, cells=64, counter_bits=8),
        lambda: dlbf.DLeftFilter(buckets=3, remainder_bits=30, counter_bits=2),
        lambda: dlbf.CuckooFilter(buckets=1, prefixes=2, suffix_bits=0),
        lambda: dlbf.CuckooFilter(buckets=2, prefixes=28, suffix_bits=24),
        lambda: dlbf.ExactSet(1),
    ],
)
def test_extreme_geometries_work(make):
    f = make()
    f.add(b"a")
    assert b"a" in f
    back = type(f).from_bytes(f.to_bytes())
    assert back == f
    assert b"a" in back
    assert len(back) == 1
    assert f.approximate_count() >= 0
    if f.DELETABLE:
        f.remove(b"a")
    f.clear()
    assert b"a" not in f


# --- removing


def test_remove_present_key_then_absent(make_deletable):
    f = make_deletable()
    f.add(b"key")
    assert f.remove(b"key") is True
    assert b"key" not in f
    assert len(f) == 0
    before = f.to_bytes()
    with pytest.raises(KeyError, match="key"):
        f.remove(b"key")
    assert f.discard(b"key") is False
    assert f.remove_many([b"key", b"other"]).tolist() == [False, False]
    assert f.to_bytes() == before


def test_remove_absent_key_changes_nothing(make_deletable):
    f = loaded(make_deletable)
    before = f.to_bytes()
    absent = [key for key in url_keys(3000, seed=9) if key not in f]
    assert absent
    for key in absent[:500]:
        with pytest.raises(KeyError):
            f.remove(key)
        assert f.discard(key) is False
    assert not f.remove_many(absent).any()
    assert f.to_bytes() == before


def test_remove_key_error_carries_the_key():
    f = dlbf.CuckooFilter(10)
    for key in (b"bytes", "text"):
        with pytest.raises(KeyError) as caught:
            f.remove(key)
        assert caught.value.args == (key,)


def test_remove_of_every_key_leaves_the_rest(make_deletable):
    f = loaded(make_deletable, KEYS + OTHERS if make_deletable().nbytes > 160 else KEYS)
    stay = len(f) - len(KEYS)
    for i, key in enumerate(KEYS):
        removed = f.remove(key)
        # A DlBF that says False has cleared nothing and still holds the key; counters have one less.
        stay += isinstance(f, dlbf.DeletableBloomFilter) and not removed
        assert isinstance(removed, bool)
        assert (key not in f) is removed
        assert f.contains_many(KEYS[i + 1 :]).all()
    assert len(f) == stay


def test_remove_answers_false_while_a_copy_is_left():
    for name in set(DELETABLE) - {"exact", "deletable"}:
        f = SMALL_FILTERS[name]()
        f.add(b"twice")
        f.add(b"twice")
        assert f.remove(b"twice") is False
        assert b"twice" in f
        assert f.remove(b"twice") is True, name
        assert b"twice" not in f


def test_bloom_filter_cannot_remove_and_says_what_can():
    f = dlbf.BloomFilter(100)
    f.add(b"a")
    for call in (f.remove, f.discard, lambda key: f.remove_many([key])):
        with pytest.raises(dlbf.NotDeletableError, match=r"a BloomFilter cannot remove keys; use CuckooFilter"):
            call(b"a")
    assert not f.DELETABLE
    assert issubclass(dlbf.NotDeletableError, TypeError)


@pytest.mark.parametrize("counter_bits", [2, 4, 8])
def test_counter_saturates_and_stays(counter_bits):
    top = 2**counter_bits - 1
    f = dlbf.CountingBloomFilter(counters=64, hashes=1, counter_bits=counter_bits)
    for n in range(1, top + 1):
        f.add(b"k")
        assert f.count(b"k") == n
    assert f.saturated == 1 / 64
    full = f.to_bytes()[256:]
    for _ in range(3 * top):
        f.add(b"k")
    assert f.count(b"k") == top
    for _ in range(5 * top):
        assert f.discard(b"k") is False
        assert b"k" in f
    # Neighbours in the same byte never noticed, and neither the counter itself.
    payload = f.to_bytes()[256:]
    assert payload == full
    assert f.fill == 1 / 64
    assert len(f) == 0


@pytest.mark.parametrize("counter_bits", [2, 4, 8])
def test_counter_below_the_maximum_counts_down_to_nothing(counter_bits):
    top = 2**counter_bits - 1
    f = dlbf.CountingBloomFilter(counters=64, hashes=1, counter_bits=counter_bits)
    f.update([b"k"] * (top - 1))
    for n in range(top - 2, 0, -1):
        assert f.remove(b"k") is False
        assert f.count(b"k") == n
    if top > 1:
        assert f.remove(b"k") is True
    with pytest.raises(KeyError):
        f.remove(b"k")
    assert f.fill == 0


@pytest.mark.parametrize("counter_bits", range(1, 9))
def test_dleft_counter_saturates_and_stays(counter_bits):
    top = 2**counter_bits - 1
    f = dlbf.DLeftFilter(buckets=4, remainder_bits=8, counter_bits=counter_bits)
    f.update([b"k"] * (top - 1))
    for n in range(top - 1, 0, -1):
        assert f.count(b"k") == n
        f.remove(b"k")
    assert b"k" not in f
    f.update([b"k"] * (top + 5))
    assert f.count(b"k") == top
    for _ in range(top + 10):
        assert f.discard(b"k") is False
    assert b"k" in f
    assert f.count(b"k") == top


def test_counting_key_that_probes_a_cell_twice_is_forgotten_whole():
    # With 3 counters and 8 hashes every key meets itself.
    for i in range(200):
        f = dlbf.CountingBloomFilter(counters=3, hashes=8, counter_bits=8)
        f.add(b"%d" % i)
        assert f.remove(b"%d" % i) is True
        assert f.fill == 0


def test_counting_failed_removal_puts_everything_back():
    f = dlbf.CountingBloomFilter(counters=16, hashes=6, counter_bits=2)
    f.update([b"a", b"b"])
    before = f.to_bytes()
    refused = 0
    for i in range(2000):
        if f.copy()._remove_one(b"%d" % i) == -1:
            refused += 1
            assert f.discard(b"%d" % i) is False
            assert f.to_bytes() == before
    assert refused > 100


def test_count_is_never_below_the_truth(make_deletable):
    f = make_deletable()
    if not hasattr(f, "count"):
        pytest.skip("does not count")
    for n in range(1, 4):
        f.update(KEYS[:10])
        for key in KEYS[:10]:
            assert f.count(key) >= min(n, 3)
    assert f.count(b"certainly absent from forty keys") in (0, 1, 2, 3)


def test_cuckoo_one_key_eight_times_then_full():
    f = dlbf.CuckooFilter(1000)
    for n in range(1, 9):
        f.add(b"same")
        assert f.count(b"same") == n
    before = f.to_bytes()
    with pytest.raises(dlbf.FilterFullError, match="up to eight times"):
        f.add(b"same")
    assert f.to_bytes() == before
    for n in range(7, -1, -1):
        assert f.remove(b"same") is (n == 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: dlbf.CuckooFilter(buckets=50, suffix_bits=4),
        lambda: dlbf.CuckooFilter(buckets=1, suffix_bits=4),
        lambda: dlbf.CuckooFilter(buckets=64, prefixes=28, suffix_bits=20),
        lambda: dlbf.DLeftFilter(buckets=6, remainder_bits=10),
        lambda: dlbf.DLeftFilter(buckets=5, remainder_bits=12, tables=2, cells=3, counter_bits=4),
    ],
)
def test_full_table_raises_and_loses_nothing(make):
    f = make()
    stored = []
    refused = 0
    for key in url_keys(1500, seed=4):
        before = f.to_bytes()
        try:
            f.add(key)
            stored.append(key)
        except dlbf.FilterFullError:
            refused += 1
            assert f.to_bytes() == before
        if refused % 50 == 0:
            assert f.contains_many(stored).all()
    assert refused > 100
    assert len(f) == len(stored)
    assert f.fill > 0.75
    assert f.contains_many(stored).all()
    # It is still a filter: what goes makes room.
    for key in stored[:8]:
        f.remove(key)
    assert f.contains_many(stored[8:]).all()


@pytest.mark.parametrize("cls", [dlbf.CuckooFilter, dlbf.DLeftFilter])
def test_full_table_in_a_batch_keeps_the_keys_before(cls):
    f = cls(1000)
    keys = url_keys(5000, seed=5)
    with pytest.raises(dlbf.FilterFullError, match="nothing was lost"):
        f.update(keys)
    assert len(f) >= 1000
    assert f.contains_many(keys[: len(f)]).all()
    with pytest.raises(dlbf.FilterFullError):
        f.update(iter(keys))
    assert f.contains_many(keys[:1000]).all()


def test_deletable_marks_collisions():
    f = dlbf.DeletableBloomFilter(bits=1001, hashes=4, regions=100)
    assert f.bits == 1001
    assert f.regions == 100
    f.add(b"a")
    assert f.is_removable(b"a")
    assert not f.is_removable(b"b")
    f.add(b"a")
    assert not f.is_removable(b"a")
    assert f.collided > 0
    assert f.remove(b"a") is False
    assert b"a" in f


def test_deletable_removable_says_what_remove_does():
    f = dlbf.DeletableBloomFilter(bits=240, hashes=5, regions=24)
    keys = url_keys(22, seed=6)
    f.update(keys)
    for key in keys:
        g = f.copy()
        expected = g.is_removable(key)
        assert g.remove(key) is expected
        assert (key not in g) is expected
        assert g.contains_many([other for other in keys if other != key]).all()


# --- sets


def test_copy_is_equal_and_independent(make_filter):
    f = loaded(make_filter)
    for other in (f.copy(), copy.copy(f), copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert other == f
        assert other is not f
        assert type(other) is type(f)
        assert len(other) == len(f)
        other.add(b"new")
        assert other != f
        assert b"new" not in f
        other.clear()
        assert f.contains_many(KEYS).all()


def test_pickle_keeps_the_secret():
    f = dlbf.CuckooFilter(100, secret=SECRET)
    f.add(b"a")
    g = pickle.loads(pickle.dumps(f))
    assert b"a" in g
    assert g == f
    assert "keyed" in repr(g)


def test_clear_forgets_all_and_keeps_the_geometry(make_filter):
    f = loaded(make_filter)
    f.clear()
    assert len(f) == 0
    assert f.fill == 0
    assert not f.contains_many(KEYS).any()
    assert f == make_filter()
    f.update(KEYS)
    assert f == loaded(make_filter)


def test_equality_needs_equal_contents_and_class(make_filter):
    f = loaded(make_filter)
    assert f == loaded(make_filter)
    assert f != make_filter()
    assert f != loaded(make_filter, KEYS[:-1])
    assert f != "something else"
    assert f != dlbf.BloomFilter(17)


def test_union_holds_both(make_filter):
    f, g = loaded(make_filter, KEYS[:30]), loaded(make_filter, OTHERS[:30])
    before = f.to_bytes(), g.to_bytes()
    h = f | g
    assert (f.to_bytes(), g.to_bytes()) == before
    assert type(h) is type(f)
    assert len(h) == 60
    assert h.contains_many(KEYS[:30] + OTHERS[:30]).all()
    f |= g
    assert f == h
    assert len(f) == 60
    f |= f
    assert f.contains_many(KEYS[:30] + OTHERS[:30]).all()


def test_union_can_be_taken_apart_again(make_deletable):
    f, g = loaded(make_deletable, KEYS[:30]), loaded(make_deletable, OTHERS[:30])
    h = f | g
    h.remove_many(OTHERS[:30])
    assert h.contains_many(KEYS[:30]).all()


@pytest.mark.parametrize("cls", [dlbf.CuckooFilter, dlbf.DLeftFilter])
def test_union_that_does_not_fit_changes_nothing(cls):
    f, g = cls(200), cls(200)
    f.update(url_keys(200, seed=1))
    g.update(url_keys(200, seed=2))
    before = f.to_bytes(), g.to_bytes()
    with pytest.raises(dlbf.FilterFullError, match="union of 200 and 200 keys does not fit"):
        f | g
    with pytest.raises(dlbf.FilterFullError, match="both filters are unchanged"):
        f |= g
    assert (f.to_bytes(), g.to_bytes()) == before


@pytest.mark.parametrize("counter_bits", [2, 4, 8])
def test_union_of_counters_saturates(counter_bits):
    top = 2**counter_bits - 1
    f = dlbf.CountingBloomFilter(counters=16, hashes=1, counter_bits=counter_bits)
    f.update([b"k"] * (top - 1))
    g = f | f
    assert g.count(b"k") == top
    assert g.fill == 1 / 16
    for _ in range(3 * top):
        g.discard(b"k")
    assert b"k" in g
    assert (f | make_empty(f)).count(b"k") == top - 1


def make_empty(f):
    g = f.copy()
    g.clear()
    return g


@pytest.mark.parametrize("counter_bits", [2, 4, 8])
@pytest.mark.parametrize("layout", ["classic", "blocked"])
def test_large_counters_in_memory_are_asked_through_a_summary_mapped_ones_are_not(tmp_path, counter_bits, layout):
    keys, more = KEYS[:20], KEYS[20:30]
    n_counters = (8 << 20) // counter_bits
    f = dlbf.CountingBloomFilter(counters=n_counters, hashes=5, counter_bits=counter_bits, layout=layout)
    f.update(keys)
    f.save(tmp_path / "filter")
    assert peek.is_summarised(f)
    assert not peek.is_summarised(dlbf.CountingBloomFilter(1000))
    with dlbf.open_filter(tmp_path / "filter", "r+") as mapped:
        assert not peek.is_summarised(mapped)
        mapped.update(more)
        mapped.remove_many(keys[:5])
        f.update(more)
        f.remove_many(keys[:5])
        for g in (f.copy(), f | f, f & mapped, mapped.copy(), type(f).from_bytes(mapped.to_bytes())):
            assert peek.is_summarised(g)
            assert g.contains_many(KEYS).tolist() == [key in mapped for key in KEYS] == [key in g for key in KEYS]
            assert g.fill == mapped.fill
    f.clear()
    assert not f.contains_many(KEYS).any()
    assert f.fill == 0
    f.close()
    with pytest.raises(ValueError, match="closed"):
        keys[0] in f  # noqa: B015


def test_union_of_dleft_adds_the_counts():
    f, g = dlbf.DLeftFilter(100, counter_bits=4), dlbf.DLeftFilter(100, counter_bits=4)
    f.update([b"a"] * 5 + [b"b"])
    g.update([b"a"] * 4 + [b"c"])
    h = f | g
    assert [h.count(key) for key in (b"a", b"b", b"c")] == [9, 1, 1]
    g.update([b"a"] * 20)
    assert (f | g).count(b"a") == 15


def test_intersection_keeps_common_keys(make_filter):
    f, g = loaded(make_filter, KEYS[:30]), loaded(make_filter, KEYS[15:])
    if not hasattr(f, "__and__"):
        with pytest.raises(TypeError, match="unsupported operand"):
            f & g
        with pytest.raises(TypeError, match="unsupported operand"):
            f &= g
        return
    h = f & g
    assert h.contains_many(KEYS[15:30]).all()
    assert sum(key in h for key in KEYS[:15] + KEYS[30:]) < 15
    assert len(h) <= 30
    f &= g
    assert f == h
    if h.DELETABLE:
        h.remove_many(KEYS[15:20])
        assert h.contains_many(KEYS[20:30]).all()


def test_sets_of_another_class_refused(make_filter):
    f = loaded(make_filter)
    other = dlbf.CuckooFilter(10) if not isinstance(f, dlbf.CuckooFilter) else dlbf.BloomFilter(10)
    for operation in (lambda: f | other, lambda: f | {b"a"}, lambda: f & other, lambda: f & None):
        with pytest.raises(TypeError, match="unsupported operand"):
            operation()


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (dlbf.BloomFilter(bits=100, hashes=3), dlbf.BloomFilter(bits=101, hashes=3), r"n_cells \(100 and 101\)"),
        (dlbf.BloomFilter(bits=100, hashes=3), dlbf.BloomFilter(bits=100, hashes=4), r"n_hashes \(3 and 4\)"),
        (dlbf.BloomFilter(bits=512, hashes=3), dlbf.BloomFilter(bits=512, hashes=3, layout="blocked"), "block_cells"),
        (dlbf.BloomFilter(10), dlbf.BloomFilter(10, filter_id=1), r"filter_id \(0 and 1\)"),
        (dlbf.BloomFilter(10), dlbf.BloomFilter(10, secret=SECRET), "hash"),
        (dlbf.BloomFilter(10, secret=bytes(16)), dlbf.BloomFilter(10, secret=SECRET), "hash"),
        (
            dlbf.CountingBloomFilter(counters=9, hashes=1, counter_bits=2),
            dlbf.CountingBloomFilter(counters=9, hashes=1, counter_bits=4),
            r"cell_bits \(2 and 4\)",
        ),
        (
            dlbf.DeletableBloomFilter(bits=240, hashes=5, regions=24),
            dlbf.DeletableBloomFilter(bits=240, hashes=5, regions=20),
            r"n_cells \(216 and 220\), n_regions \(24 and 20\)",
        ),
        (dlbf.CuckooFilter(10), dlbf.CuckooFilter(1000), "n_buckets"),
        (dlbf.DLeftFilter(10), dlbf.DLeftFilter(10, counter_bits=3), "counter_bits"),
        (dlbf.ExactSet(), dlbf.ExactSet(secret=SECRET), "hash"),
    ],
)
def test_union_of_filters_that_differ_says_in_what(one, other, message):
    for operation in (lambda: one | other, lambda: one.copy().__ior__(other)):
        with pytest.raises(ValueError, match=message):
            operation()
    assert one != other


def test_planned_capacity_does_not_stand_in_the_way_of_a_union():
    geometry = dlbf.BloomFilter(1000)
    other = dlbf.BloomFilter(bits=geometry.bits, hashes=geometry.hashes)
    other.add(b"a")
    assert b"a" in (geometry | other)


# --- the exact set


def test_exact_set_grows_and_never_errs():
    s = dlbf.ExactSet(1)
    keys = url_keys(20_000, seed=8)
    s.update(keys)
    assert len(s) == len(keys)
    s.update(keys[:100])
    assert len(s) == len(keys)
    assert sorted(s) == sorted(keys)
    assert not s.contains_many(url_keys(20_000, seed=9)).any()
    assert s.remove_many(keys[::2]).all()
    assert sorted(s) == sorted(keys[1::2])
    assert not s.contains_many(keys[::2]).any()
    assert s.expected_fpr == 0
    assert s.approximate_count() == len(s) == 10_000


def test_exact_set_of_one_huge_key_grows_to_it():
    s = dlbf.ExactSet()
    s.add(b"x" * 5_000_000)
    s.update([b"y" * 100_000, b"z"])
    assert b"x" * 5_000_000 in s
    assert b"x" * 4_999_999 not in s
    assert sorted(map(len, s)) == [1, 100_000, 5_000_000]


def test_exact_set_churn_does_not_grow_for_ever():
    s = dlbf.ExactSet(16)
    for i in range(50_000):
        s.add(b"%d" % i)
        if i >= 10:
            s.remove(b"%d" % (i - 10))
    assert len(s) == 10
    assert s.nbytes < 4096


def test_exact_set_union_grows_in_place():
    s, t = dlbf.ExactSet(1), dlbf.ExactSet(1000)
    t.update(url_keys(900))
    s |= t
    assert len(s) == 900
    assert s == t
    s.add(b"more")
    assert s != t
    assert dlbf.ExactSet.from_bytes(s.to_bytes()) == s


def test_exact_set_removal_around_the_end_of_the_table():
    # Linear probing wraps; removal moves entries back, across the end too.  Every order of few keys in few slots.
    for seed in range(300):
        s = dlbf.ExactSet(1)
        keys = [b"%d/%d" % (seed, i) for i in range(6)]
        s.update(keys)
        assert peek.param(s, "n_slots") == 8
        for i, key in enumerate(keys):
            assert s.remove(key)
            assert s.contains_many(keys[i + 1 :]).all()
            assert not s.contains_many(keys[: i + 1]).any()


# --- closed


def test_closed_filter_refuses_everything(make_filter):
    f = loaded(make_filter)
    other = f.copy()
    assert not f.closed
    f.close()
    f.close()
    assert f.closed
    assert not f.is_writable
    assert "closed" in repr(f)
    calls = [
        lambda: b"a" in f,
        lambda: "a" in f,
        lambda: f.add(b"a"),
        lambda: f.update([b"a"]),
        lambda: f.contains_many([b"a"]),
        f.clear,
        f.copy,
        f.to_bytes,
        lambda: f | other,
        lambda: other | f,
        lambda: f.__ior__(other),
        lambda: other.__ior__(f),
        lambda: f == other,
        lambda: pickle.dumps(f),
    ]
    if f.DELETABLE:
        calls += [lambda: f.remove(b"a"), lambda: f.discard(b"a"), lambda: f.remove_many([b"a"])]
    for name in ("fill", "saturated", "collided"):
        if hasattr(type(f), name) and not isinstance(f, dlbf.ExactSet):
            calls.append(lambda name=name: getattr(f, name))
    if hasattr(f, "count"):
        calls.append(lambda: f.count(b"a"))
    if hasattr(f, "is_removable"):
        calls.append(lambda: f.is_removable(b"a"))
    if isinstance(f, dlbf.ExactSet):
        calls.append(lambda: list(f))
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()


def test_closed_filter_as_context_manager(make_filter):
    with make_filter() as f:
        f.add(b"a")
        assert b"a" in f
    with pytest.raises(ValueError, match="closed"):
        f.add(b"b")


def test_approximate_count_is_near_the_truth():
    n = 20_000
    for f in (
        dlbf.BloomFilter(n),
        dlbf.BloomFilter(n, layout="blocked"),
        dlbf.CountingBloomFilter(n),
        dlbf.CountingBloomFilter(n, counter_bits=2, layout="blocked"),
        dlbf.DeletableBloomFilter(n),
    ):
        f.update(url_keys(n, seed=7))
        # "Accurate to about sqrt(n)": five of them.
        assert abs(f.approximate_count() - n) < 5 * math.sqrt(n)
        f.update(url_keys(n, seed=7)[:5000])
        assert abs(f.approximate_count() - n) < 5 * math.sqrt(n)
    for f in (dlbf.CuckooFilter(n), dlbf.DLeftFilter(n), dlbf.ExactSet(n)):
        f.update(url_keys(n, seed=7))
        assert f.approximate_count() == n


def test_approximate_count_of_a_full_array_is_finite():
    f = dlbf.BloomFilter(bits=64, hashes=2)
    f.update(url_keys(5000))
    assert f.fill == 1
    assert 0 < f.approximate_count() < 5000
    assert f.expected_fpr == pytest.approx(1)


# --- what is left when keys go


def test_deletable_key_that_stays_is_still_counted():
    f = dlbf.DeletableBloomFilter(bits=1001, hashes=4, regions=100)
    f.add(b"twice")
    f.add(b"twice")  # every region of the key has seen a collision now
    for _ in range(3):
        assert not f.remove(b"twice")
        assert b"twice" in f
        assert len(f) == 2
    assert f.expected_fpr > 0


def test_mapped_exact_set_reuses_the_room_of_removed_keys(tmp_path):
    path = tmp_path / "set.dlbf"
    made = dlbf.ExactSet(40)
    made.update(KEYS[:20])
    made.save(path)
    size = path.stat().st_size
    with dlbf.open_filter(path, "r+") as mapped:
        for i in range(2000):  # far more bytes in turn than the arena has
            mapped.add(b"guest number %d" % i)
            assert mapped.contains_many(KEYS[:20]).all()
            mapped.remove(b"guest number %d" % i)
        with pytest.raises(dlbf.FilterFullError):
            mapped.add(b"x" * size)  # no room even without the guests
        assert sorted(mapped) == sorted(KEYS[:20])
    assert path.stat().st_size == size
    with dlbf.open_filter(path) as back:
        assert sorted(back) == sorted(KEYS[:20])


def test_mapped_exact_set_killed_while_it_is_written_anew_is_refused(tmp_path):
    path = tmp_path / "set.dlbf"
    made = dlbf.ExactSet(40)
    made.update(KEYS[:20])
    made.save(path)
    code = (
        "import dlbf, os, sys; f = dlbf.open_filter(sys.argv[1], 'r+')\n"
        "f._payload()[:8] = b'\\xff' * 8\n"  # what the first step of it leaves behind
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, path], check=False)
    with pytest.raises(dlbf.FormatError):
        dlbf.open_filter(path, "r+", recover=True)


def test_opened_and_closed_files_leave_nothing_behind(tmp_path):
    from dlbf.filters import files

    path = tmp_path / "f.dlbf"
    dlbf.CuckooFilter(10).save(path)
    before = len(files._MAPPED)
    for _ in range(50):
        dlbf.open_filter(path).close()
        assert len(dlbf.open_filter(path)) == 0  # and dropped without being closed
    assert len(files._MAPPED) == before
    kept = dlbf.open_filter(path)
    assert len(files._MAPPED) == before + 1
    kept.close()


def test_file_left_open_at_exit_is_written(tmp_path):
    path = tmp_path / "f.dlbf"
    dlbf.CuckooFilter(10).save(path)
    code = "import dlbf, sys; f = dlbf.open_filter(sys.argv[1], 'r+'); f.add(b'kept'); dlbf.hold = f"
    subprocess.run([sys.executable, "-c", code, path], check=True)
    with dlbf.open_filter(path) as back:
        assert b"kept" in back
