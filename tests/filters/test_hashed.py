"""Hash once: the answers by hash are those by key, for every kind, and hashes of another identity are refused."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.learned_common import KEYS as LEARNT
from support.learned_common import NEGATIVES, fit, with_exact_set
from support.samples import DELETABLE, SECRET, SMALL_FILTERS, small_filters, url_keys

import dlbf
from dlbf import format
from dlbf.filters.layered import LayeredFilter
from dlbf.kernels.hashing import Sip24Secret
from dlbf.kernels.keys import read_keys
from dlbf.learned.routing import RoutedKeys

KEYS = url_keys(40, seed=1)
OTHERS = url_keys(3000, seed=2)
BY_HASH = sorted(set(SMALL_FILTERS) - {"exact"})

batches = st.lists(st.binary(max_size=12), max_size=30)


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize("name", BY_HASH)
@settings(max_examples=15, deadline=None)
@given(added=batches, removed=batches, asked=batches)
def test_what_is_done_by_hash_is_what_is_done_by_key(name, secret, added, removed, asked):
    by_key, by_hash = small_filters(secret)[name](), small_filters(secret)[name]()
    by_key.update(added)
    by_hash.add_hashes(dlbf.hash_keys(added, secret))
    assert by_hash == by_key
    if name in DELETABLE:
        # Only what was added may be removed.
        gone = [key for key in dict.fromkeys(removed) if key in added]
        assert by_hash.remove_hashes(dlbf.hash_keys(gone, secret)).tolist() == by_key.remove_many(gone).tolist()
        assert by_hash == by_key
    asked = asked + added
    hashes = dlbf.hash_keys(asked, secret)
    assert by_hash.contains_hashes(hashes).tolist() == by_key.contains_many(asked).tolist()
    assert len(by_hash) == len(by_key)


@pytest.mark.parametrize("filter_id", [0, 3, 2**63])
def test_one_hash_serves_filters_of_every_id_and_more_keys_than_a_chunk(filter_id):
    f = dlbf.CuckooFilter(3000, filter_id=filter_id)
    f.add_hashes(dlbf.hash_keys(iter(OTHERS)))
    assert f.contains_many(OTHERS).all()
    assert f.contains_hashes(dlbf.hash_keys(np.array(OTHERS))).all()
    absent = url_keys(5000, seed=3)
    assert f.contains_hashes(dlbf.hash_keys(absent)).tolist() == f.contains_many(absent).tolist()


def test_static_filter_is_built_and_asked_by_hash():
    h = dlbf.hash_keys(OTHERS, SECRET)
    f = dlbf.RibbonFilter.build_from_hashes(h, 0.01, secret=SECRET)
    assert f == dlbf.RibbonFilter.build(OTHERS, 0.01, secret=SECRET)
    assert h == dlbf.hash_keys(OTHERS, SECRET)  # sorted in place, but not in here
    assert f.contains_hashes(h).all()
    with pytest.raises(dlbf.StaticFilterError):
        f.add_hashes(h)
    with pytest.raises(dlbf.StaticFilterError):
        f.remove_hashes(h)
    with pytest.raises(dlbf.HashMismatchError):
        dlbf.RibbonFilter.build_from_hashes(h, 0.01)


def test_filter_that_cannot_forget_refuses_hashes_too():
    f = dlbf.BloomFilter(100)
    with pytest.raises(dlbf.NotDeletableError):
        f.remove_hashes(dlbf.hash_keys(KEYS))


def test_filter_that_compares_keys_says_so():
    s = dlbf.ExactSet()
    for method in (s.contains_hashes, s.add_hashes, s.remove_hashes):
        with pytest.raises(
            TypeError, match=r"ExactSet compares whole keys, so their hashes are not enough; pass the keys"
        ):
            method(dlbf.hash_keys(KEYS))


@pytest.mark.parametrize(
    ("made_with", "filter_with", "expected", "found", "advice"),
    [
        (None, SECRET, "SipHash-1-3 under the secret", "XXH3-64 without", r"secret=\.\.\."),
        (SECRET, None, "XXH3-64 without", "SipHash-1-3 under the secret", r"hash_keys\(keys\)$"),
        (bytes(16), SECRET, "SipHash-1-3 under the secret", "SipHash-1-3 under the secret", r"secret=\.\.\."),
    ],
)
def test_hashes_of_another_identity_are_refused(made_with, filter_with, expected, found, advice):
    f = dlbf.CuckooFilter(100, secret=filter_with)
    h = dlbf.hash_keys(KEYS, made_with)
    for method in (f.contains_hashes, f.add_hashes, f.remove_hashes):
        with pytest.raises(dlbf.HashMismatchError, match=f"expects hashes by {expected}.* found .*{found}.*{advice}"):
            method(h)
    assert len(f) == 0


@pytest.mark.parametrize("thing", [KEYS, dlbf.hash_keys(KEYS).values, None, b"x"])
def test_bare_numbers_and_keys_are_no_hashes(thing):
    with pytest.raises(TypeError, match=r"expected the KeyHashes that dlbf\.hash_keys gives, found"):
        dlbf.CuckooFilter(100).contains_hashes(thing)


def test_hashes_are_no_keys():
    with pytest.raises(TypeError, match="found KeyHashes"):
        dlbf.CuckooFilter(100).update(dlbf.hash_keys(KEYS))


def test_hashes_select_compare_pickle_and_show_themselves():
    h = dlbf.hash_keys(KEYS, SECRET)
    assert h[2:5] == dlbf.hash_keys(KEYS[2:5], SECRET)
    assert h[::2] == dlbf.hash_keys(KEYS[::2], SECRET)
    assert h[np.arange(40) % 3 == 0] == dlbf.hash_keys(KEYS[::3], SECRET)
    assert pickle.loads(pickle.dumps(h)) == h
    assert h != dlbf.hash_keys(KEYS)
    assert h != h[1:]
    assert "40 by SipHash-1-3" in repr(h)
    assert SECRET.hex() not in repr(h)
    with pytest.raises(ValueError, match="read-only"):
        h.values[0] = 1
    with pytest.raises(TypeError, match=r"use a slice, \[3:4\]"):
        h[3]
    with pytest.raises(TypeError, match="expected one dimension of uint64, found 1 of int64"):
        dlbf.KeyHashes(np.zeros(3, np.int64), 1, 0)
    with pytest.raises(TypeError, match="unhashable"):
        hash(h)


def test_hashes_of_arrow_arrays_are_those_of_their_strings():
    pa = pytest.importorskip("pyarrow")
    words = ["anna", "bob", "", "ключ"]
    assert dlbf.hash_keys(pa.array(words)) == dlbf.hash_keys(words)
    assert dlbf.hash_keys(pa.chunked_array([words, words])) == dlbf.hash_keys(words * 2)
    with pytest.raises(TypeError, match=r"integers as a numpy array \(column\.to_numpy\(\)\)"):
        dlbf.hash_keys(pa.array([1, 2]))


def test_closed_filter_refuses_hashes():
    f = dlbf.CuckooFilter(100)
    f.close()
    with pytest.raises(ValueError, match="closed"):
        f.contains_hashes(dlbf.hash_keys(KEYS))


def test_mapped_filter_answers_hashes_after_checking_what_it_reads(tmp_path):
    path = tmp_path / "f.dlbf"
    f = dlbf.CuckooFilter(200_000)
    f.update(OTHERS)
    f.save(path)
    h = dlbf.hash_keys(OTHERS)
    with dlbf.open_filter(path) as mapped:
        assert mapped.contains_hashes(h).all()
    raw = bytearray(path.read_bytes())
    raw[300_00] ^= 1
    path.write_bytes(raw)
    with dlbf.open_filter(path) as mapped, pytest.raises(dlbf.ChecksumError):
        mapped.contains_hashes(h)


# --- integers


@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(st.integers(-(2**63), 2**64 - 1), max_size=20, unique=True))
def test_integer_keys_differ_and_their_arrays_are_read_the_same_way_at_every_width(numbers):
    keys = [dlbf.int_key(number) for number in numbers]
    assert len(set(keys)) == len(keys)
    for dtype in ("i1", "u1", "<i2", ">i2", "u2", "i4", ">u4", "i8", ">i8", "u8", ">u8"):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        fits = [number for number in numbers if low <= number <= high]
        assert read_keys(np.array(fits, dtype=dtype)) == [dlbf.int_key(number) for number in fits]
    strided = np.array([[number, 1] for number in numbers if number >= 0], dtype=np.uint64).reshape(-1, 2)[:, 0]
    assert read_keys(strided) == [dlbf.int_key(number) for number in numbers if number >= 0]


def test_integer_key_is_written_down():
    assert dlbf.int_key(0) == bytes(8)
    assert dlbf.int_key(258) == b"\x02\x01" + bytes(6)
    assert dlbf.int_key(2**64 - 1) == b"\xff" * 8
    assert dlbf.int_key(-1) == b"\xff" * 9
    assert dlbf.int_key(-(2**63)) == bytes(7) + b"\x80\xff"
    assert dlbf.int_key(np.int16(-2)) == b"\xfe" + b"\xff" * 8


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
def test_integer_too_large_for_a_key_refused(number):
    with pytest.raises(ValueError, match=r"use str\(number\)"):
        dlbf.int_key(number)


@pytest.mark.parametrize("thing", [True, 1.0, "1", None, np.bool_(1)])
def test_integer_key_of_something_else_refused(thing):
    with pytest.raises(TypeError, match="expected an integer, found"):
        dlbf.int_key(thing)


def test_range_of_integers_goes_in_and_is_found():
    f = dlbf.CuckooFilter(10_000)
    f.update(np.arange(5000))
    assert f.contains_many(np.arange(5000, dtype=np.uint16)).all()
    assert f.contains_many(np.arange(5000, 10_000)).mean() < 0.05
    assert dlbf.int_key(4999) in f
    assert f.contains_hashes(dlbf.hash_keys(np.arange(5000, dtype=">i8"))).all()
    with pytest.raises(TypeError, match=r"dlbf\.int_key\(key\)"):
        f.add(7)


# --- with a model


def fitted(design, secret=None):
    return fit(design=design, fpr=0.05, secret=secret)


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize("design", ["auto", "slbf-2cbf", "plbf", "ada-bf", "lbf-3cbf"])
def test_routed_keys_are_answered_as_the_keys_are(design, secret):
    lf, keys, absent = fitted(design, secret), LEARNT, NEGATIVES
    routed = lf.route_keys(keys + absent)
    assert len(routed) == len(keys) + len(absent)
    assert lf.contains_routed(routed).tolist() == lf.contains_many(keys + absent).tolist()
    part = routed[np.arange(len(routed)) % 7 == 3]
    assert lf.copy().contains_routed(part).tolist() == lf.contains_many((keys + absent)[3::7]).tolist()
    assert routed.hashes == dlbf.hash_keys(keys + absent, secret)
    assert lf.contains_routed(lf.route_keys(iter(keys))).all() or lf.false_negatives
    if lf.plan.regions and len(lf.plan.regions) > 1:
        with pytest.raises(TypeError, match="has a model that scores keys"):
            lf.contains_hashes(dlbf.hash_keys(keys, secret))


def test_routed_keys_of_another_model_secret_or_kind_are_refused():
    lf, keys = fitted("plbf"), LEARNT
    routed = lf.route_keys(keys)
    with pytest.raises(dlbf.HashMismatchError, match=r"another hash .*route the keys again: lf\.route_keys\(keys\)"):
        fitted("plbf", SECRET).contains_routed(routed)
    with pytest.raises(dlbf.HashMismatchError, match="another model or thresholds"):
        fitted("lbf").contains_routed(routed)
    with pytest.raises(TypeError, match="expected the RoutedKeys that route_keys gives, found list"):
        lf.contains_routed(keys)
    wild = RoutedKeys(routed.hashes, np.full(len(routed), 200, np.uint8), routed.route)
    with pytest.raises(dlbf.HashMismatchError, match="expected regions below"):
        lf.contains_routed(wild)
    with pytest.raises(TypeError, match="expected 1500 regions of dtype uint8"):
        dataclasses.replace(routed, regions=routed.regions[1:])
    assert lf.contains_routed(lf.route_keys([])).tolist() == []


def test_learned_filter_without_a_model_takes_hashes():
    lf, keys, absent = fitted("cuckoo"), LEARNT, NEGATIVES
    h = dlbf.hash_keys(keys + absent)
    assert lf.contains_hashes(h).tolist() == lf.contains_many(keys + absent).tolist()
    assert lf.contains_routed(lf.route_keys(keys)).all()


def test_design_with_an_exact_set_needs_keys():
    lf, keys = with_exact_set()
    with pytest.raises(TypeError, match="compares whole keys with those of an exact set"):
        lf.contains_routed(lf.route_keys(keys))


# --- what dlbf 0.1 made

OLD = Sip24Secret(SECRET)


def every_class(secret):
    """A filter of every class that takes a secret, with KEYS."""
    made = [make() for name, make in small_filters(secret).items()]
    made.append(dlbf.GrowingFilter(0.01, 100, secret=secret))
    made.append(dlbf.ShardedFilter(dlbf.CuckooFilter, 1000, 0.01, shards=4, secret=secret))
    for f in made:
        f.update(KEYS)
    base = dlbf.RibbonFilter.build(KEYS[:30], 0.001, secret=secret)
    layered = LayeredFilter.over(base, 0.01, 100, 0.001)
    layered.update(KEYS[30:])
    return [*made, base, layered]


@pytest.mark.parametrize("number", range(len(every_class(None))))
def test_filter_with_the_older_hash_goes_on_with_it(number):
    old, new = every_class(OLD)[number], every_class(SECRET)[number]
    kept = KEYS[:30] if isinstance(old, dlbf.RibbonFilter) else KEYS
    data = old.to_bytes()
    assert format.read_header(data).hash_kind == format.HASH_SIP24
    assert format.read_header(new.to_bytes()).hash_kind == format.HASH_SIP13
    back = type(old).from_bytes(data, SECRET)
    for f in (back, back.copy(), pickle.loads(pickle.dumps(back))):
        assert f.contains_many(kept).all()
        assert all(key in f for key in kept)
        assert f.to_bytes() == data
        assert f.hash_keys(KEYS) == old.hash_keys(KEYS) != new.hash_keys(KEYS)
        if not isinstance(f, dlbf.RibbonFilter):
            f.add(b"one more")
            assert b"one more" in f
            assert f.contains_many(kept).all()
    if f.NEEDS_KEYS:
        return
    assert back.contains_hashes(back.hash_keys(kept)).all()
    with pytest.raises(dlbf.HashMismatchError, match=r"by SipHash-2-4 .* found .* SipHash-1-3 .*own hash_keys\(keys\)"):
        back.contains_hashes(dlbf.hash_keys(kept, SECRET))
    with pytest.raises(dlbf.HashMismatchError, match=r"by SipHash-1-3 .* found .* SipHash-2-4"):
        new.contains_hashes(back.hash_keys(kept))


def test_filters_of_both_hashes_do_not_combine():
    old, new = dlbf.CuckooFilter(100, secret=OLD), dlbf.CuckooFilter(100, secret=SECRET)
    assert old != new
    with pytest.raises(ValueError, match="differ in hash"):
        old | new


def test_part_with_another_hash_than_the_whole_is_refused():
    base = dlbf.RibbonFilter.build(KEYS, 0.001, secret=SECRET)
    whole = LayeredFilter.over(base, 0.01, 100, 0.001).to_bytes()
    header, payload = format.unpack(whole)
    other = dlbf.RibbonFilter.build(KEYS, 0.001, secret=OLD).to_bytes()
    assert len(other) == len(payload)
    with pytest.raises(ValueError, match="wrong secret"):
        LayeredFilter.from_bytes(format.pack(header, other), SECRET)


def test_hash_of_the_other_kind_in_the_header_is_a_wrong_secret():
    header, payload = format.unpack(dlbf.CuckooFilter(100, secret=OLD).to_bytes())
    forged = dataclasses.replace(header, hash_kind=format.HASH_SIP13)
    with pytest.raises(ValueError, match="wrong secret"):
        dlbf.CuckooFilter.from_bytes(format.pack(forged, payload), SECRET)
