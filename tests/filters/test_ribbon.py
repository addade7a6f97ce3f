"""The ribbon filter: never a key missed, the rate and the size it promises, the same bytes however it is built."""

import copy
import math
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import peek
from support.samples import SECRET, url_keys

import dlbf
from dlbf.filters import ribbon
from dlbf.filters.base import aligned_zeros
from dlbf.filters.ribbon import SortedHashes, fill_ribbon
from dlbf.filters.ribbon_sizes import RibbonGeometry, ribbon_bytes, ribbon_fpr, ribbon_geometry
from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.ribbon import ribbon_close_gap

KEYS = url_keys(30_000, seed=1)
ABSENT = url_keys(40_000, seed=2)


def random_hashes(n, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)


# --- reference: the equations of ribbon.pxd, in plain Python

M64 = 2**64 - 1


def asked(data, geometry, h):
    """What the drawing in ribbon.pxd says about a hash: the answer, with no line shared with the kernel."""
    if geometry.n_rows == 0:
        return False
    mean = (geometry.n_rows << 16) // geometry.n_shards
    shard = h * geometry.n_shards >> 64

    def entry(s):
        return int.from_bytes(data[4 * s : 4 * s + 4], "little")

    first, end = ((s * mean >> 16) + (entry(s) >> 8) - 2**23 for s in (shard, shard + 1))
    seed = entry(shard) & 255
    start = max(0, (((h * ((2 * seed + 1) * 0x9E3779B97F4A7C15 & M64) & M64) >> 32) * (end - first + 1) >> 32) - 32)
    mixed = (h ^ h >> 32) * 0xD6E8FEB86659FD93 & M64
    coefficients = mixed ^ mixed >> 29 | 1
    print_ = (h ^ h >> 31) * 0xBF58476D1CE4E5B9 & M64
    print_ = (print_ ^ print_ >> 30) * 0x94D049BB133111EB & M64
    print_ ^= print_ >> 32
    table_bytes = 8 * ((geometry.n_shards + 2) // 2)

    def bit(row, column):
        block = row // 64
        word = block * geometry.n_columns + min(block, geometry.n_wide) + column
        return data[table_bytes + 8 * word + row % 64 // 8] >> row % 8 & 1

    n_columns = geometry.n_columns + ((first + start) // 64 + 1 < geometry.n_wide)
    picked = [first + start + i for i in range(min(64, end - first - start)) if coefficients >> i & 1]
    return all(sum(bit(row, c) for row in picked) % 2 == print_ >> c & 1 for c in range(n_columns))


@pytest.mark.parametrize("fpr", [0.9, 0.5, 0.13, 0.01, 1e-4])
@pytest.mark.parametrize("n", [0, 1, 5, 70, 2500, 9000])
def test_answers_are_those_of_the_documented_equations(n, fpr):
    f = dlbf.RibbonFilter.build(KEYS[:n], fpr)
    data = bytes(peek.payload(f))
    sample = KEYS[: min(n, 100)] + ABSENT[:300]
    expected = [asked(data, f.geometry, int(h)) for h in hash64_many(sample)]
    assert f.contains_many(sample).tolist() == expected
    assert [key in f for key in sample] == expected


# --- no key is missed


@pytest.mark.parametrize("secret", [None, SECRET], ids=["plain", "keyed"])
@pytest.mark.parametrize(
    "n", [*range(12), 30, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 300, 2047, 2048, 2049, 30_000]
)
def test_every_key_is_found(n, secret):
    for fpr in (0.6, 0.01, 1e-9):
        f = dlbf.RibbonFilter.build(KEYS[:n], fpr, secret=secret, filter_id=n % 3)
        assert len(f) == n
        assert f.contains_many(KEYS[:n]).all()
        assert all(key in f for key in KEYS[:100][:n])
    assert not f.contains_many(ABSENT[:2000]).any()


@given(st.sets(st.binary(max_size=12), max_size=400), st.floats(1e-12, 0.999), st.integers(0, 2**64 - 1))
def test_set_of_keys_is_found_whatever_the_rate(keys, fpr, filter_id):
    f = dlbf.RibbonFilter.build(keys, fpr, filter_id=filter_id)
    assert len(f) == len(keys)
    assert f.contains_many(list(keys)).all()
    assert f.expected_fpr <= fpr * (1 + 1e-9)


def test_hashes_that_are_not_random_are_solved_too():
    # One shard has nearly all, and neighbouring hashes are alike in most bits.
    for hashes in (
        np.arange(20_000, dtype=np.uint64),
        np.arange(20_000, dtype=np.uint64) << np.uint64(20),
        np.full(5000, 7, dtype=np.uint64),
        np.concatenate([random_hashes(3000), random_hashes(9000) >> np.uint64(9)]),
    ):
        f = dlbf.RibbonFilter.build_from_hashes(hashes.copy(), 0.01)
        data = bytes(peek.payload(f))
        assert len(f) == len(np.unique(hashes))
        assert all(asked(data, f.geometry, int(h)) for h in hashes[::97])


def test_shard_without_solution_gets_more_rows_and_is_solved():
    keys = SortedHashes(random_hashes(9000))
    before = keys.geometry(0.01)
    keys.spare[2] = -40  # fewer rows than keys
    tight = keys.geometry(0.01)
    assert tight.n_rows == before.n_rows - 40
    assert not fill_ribbon(keys, tight, aligned_zeros(ribbon_bytes(tight)))
    while not fill_ribbon(keys, wide := keys.geometry(0.01), payload := aligned_zeros(ribbon_bytes(wide))):
        pass
    assert wide.n_rows > tight.n_rows
    data = bytes(payload)
    assert all(asked(data, wide, int(h)) for h in keys.hashes[::50])


# --- rate and size


@pytest.mark.parametrize("fpr", [0.7, 0.3, 1 / 16, 0.01, 0.003])
def test_measured_rate_is_the_target(fpr):
    f = dlbf.RibbonFilter.build(KEYS, fpr)
    assert fpr * 0.995 < f.expected_fpr <= fpr
    # 40,000 questions: five standard errors of a binomial rate.
    assert abs(f.contains_many(ABSENT).mean() - fpr) < 5 * math.sqrt(fpr * (1 - fpr) / len(ABSENT)) + 0.005 * fpr


@pytest.mark.parametrize("n", [100_000, 1_000_000, 10_000_000])
def test_size_is_within_its_bar_of_the_bound(n):
    bound = {fpr: n * math.log2(1 / fpr) for fpr in (1 / 8, 1 / 64, 0.01, 0.001, 1e-6)}
    for fpr, bits in bound.items():
        assert 8 * ribbon_bytes(ribbon_geometry(n, fpr)) < 1.017 * bits
    # Between powers of two a mixture of rates costs 0.086 bits at most.
    for fpr in np.geomspace(1e-9, 1 / 8, 300):
        assert 8 * ribbon_bytes(ribbon_geometry(n, fpr)) < 1.003 * n * (math.log2(1 / fpr) + 0.087 + 32 / 2048)
        assert 0.99 * fpr < ribbon_fpr(ribbon_geometry(n, fpr)) <= fpr


def test_what_is_built_has_the_geometry_that_was_foretold():
    for n in (1, 100, 30_000):
        assert dlbf.RibbonFilter.build(KEYS[:n], 0.02).geometry == ribbon_geometry(n, 0.02)


# --- the same bytes


def test_bytes_depend_on_the_set_of_keys_alone():
    expected = dlbf.RibbonFilter.build(KEYS, 0.01).to_bytes()
    rng = random.Random(5)
    shuffled = rng.sample(KEYS, len(KEYS))
    for keys, workers in ((shuffled, 1), (iter(KEYS), 2), (shuffled + KEYS[:7000], 3), (KEYS, 40)):
        assert dlbf.RibbonFilter.build(keys, 0.01, workers=workers).to_bytes() == expected
    assert dlbf.RibbonFilter.build(KEYS[1:], 0.01).to_bytes() != expected


def test_hashes_build_what_keys_build():
    for secret, filter_id in ((None, 0), (SECRET, 0), (SECRET, 77)):
        hashes = hash64_many(KEYS, secret)
        made = dlbf.RibbonFilter.build_from_hashes(hashes, 0.1, secret=secret, filter_id=filter_id)
        assert made == dlbf.RibbonFilter.build(KEYS, 0.1, secret=secret, filter_id=filter_id)
        assert (np.diff(hashes[: len(KEYS)].astype(object)) > 0).all()  # used up, as the documentation says


def test_filter_is_built_in_the_buffer_of_the_caller():
    rooms = []

    def allocate(n_bytes):
        rooms.append(bytearray(n_bytes))
        return rooms[-1]

    f = dlbf.RibbonFilter.build_from_hashes(hash64_many(KEYS), 0.01, allocate=allocate)
    assert len(rooms) == 1
    assert f.nbytes == len(rooms[0]) == 8 * round(f.bits_per_key * len(f) / 64)
    assert f == dlbf.RibbonFilter.build(KEYS, 0.01)
    assert bytes(rooms[0]) == bytes(peek.payload(f))


# --- what every filter can do, and what this one cannot


def test_copies_files_and_pickles_are_the_same_filter(tmp_path):
    f = dlbf.RibbonFilter.build(KEYS, 0.01, secret=SECRET)
    f.save(tmp_path / "f")
    copies = [
        f.copy(), copy.deepcopy(f), pickle.loads(pickle.dumps(f)),
        dlbf.RibbonFilter.from_bytes(f.to_bytes(), SECRET), dlbf.open_filter(tmp_path / "f", secret=SECRET),
    ]  # fmt: skip
    for other in copies:
        assert other == f
        assert other.contains_many(KEYS).all()
        assert (other.contains_many(ABSENT) == f.contains_many(ABSENT)).all()
        assert (len(other), other.capacity, other.fpr_target, other.fill) == (30_000, 30_000, 0.01, f.fill)
    assert f != dlbf.RibbonFilter.build(KEYS, 0.02, secret=SECRET)
    assert f != dlbf.RibbonFilter.build(KEYS, 0.01)
    assert f.approximate_count() == len(f) == 30_000
    assert repr(f).startswith("<RibbonFilter: 30000 keys, ")


def test_mapped_file_is_checked_as_it_is_touched(tmp_path):
    f = dlbf.RibbonFilter.build(KEYS, 0.001)
    f.save(tmp_path / "f")
    data = bytearray((tmp_path / "f").read_bytes())
    data[256 + 16384 + 100] ^= 4  # in the second chunk
    (tmp_path / "f").write_bytes(data)
    refused = 0
    with dlbf.open_filter(tmp_path / "f") as mapped:
        for key in KEYS[:2000]:
            try:
                assert key in mapped
            except dlbf.ChecksumError:
                refused += 1
        with pytest.raises(dlbf.ChecksumError, match="chunk 1"):
            mapped.contains_many(KEYS)
    # A key reads two neighbouring blocks of 80 bytes; the second chunk is 16384 of 37,600 bytes.
    assert 2000 * 0.3 < refused < 2000 * 0.6


def test_changes_are_refused_with_advice(tmp_path):
    f = dlbf.RibbonFilter.build(KEYS[:100], 0.01)
    f.save(tmp_path / "f")
    before = f.to_bytes()
    for f_ in (f, dlbf.open_filter(tmp_path / "f", "r+")):
        for change in (
            lambda f=f_: f.add(b"x"), lambda f=f_: f.update([b"x"]), lambda f=f_: f.remove(KEYS[0]),
            lambda f=f_: f.discard(KEYS[0]), lambda f=f_: f.remove_many(KEYS), lambda f=f_: f.clear(),
            lambda f=f_: f | f, lambda f=f_: f.__ior__(f), lambda f=f_: f & f, lambda f=f_: f.__iand__(f),
        ):  # fmt: skip
            with pytest.raises(dlbf.StaticFilterError, match=r"built once.*RibbonFilter.build.*CuckooFilter"):
                change()
        assert f_.to_bytes() == before
        f_.close()
    assert issubclass(dlbf.StaticFilterError, dlbf.NotDeletableError)
    with pytest.raises(TypeError, match=r"RibbonFilter.build\(keys, fpr=0.01\)"):
        dlbf.RibbonFilter(1000, 0.01)


@pytest.mark.parametrize("fpr", [0, 1, -0.1, 1.5, math.nan, "x", None, True])
def test_impossible_rate_is_refused(fpr):
    with pytest.raises((TypeError, ValueError), match="fpr must be"):
        dlbf.RibbonFilter.build([b"a"], fpr)


def test_arguments_that_make_no_sense_are_refused():
    with pytest.raises(TypeError, match=r"numpy array of uint64.*found list"):
        dlbf.RibbonFilter.build_from_hashes([1, 2], 0.01)
    with pytest.raises(TypeError, match="found int64"):
        dlbf.RibbonFilter.build_from_hashes(np.zeros(3, dtype=np.int64), 0.01)
    frozen = random_hashes(10)
    frozen.setflags(write=False)
    for hashes in (frozen, random_hashes(10)[::2]):
        with pytest.raises(ValueError, match="sorted in place"):
            dlbf.RibbonFilter.build_from_hashes(hashes, 0.01)
    with pytest.raises(ValueError, match="workers"):
        dlbf.RibbonFilter.build([b"a"], workers=0)
    with pytest.raises(TypeError):
        dlbf.RibbonFilter.build([b"a", 5])


# --- damage


def test_whatever_the_table_says_nothing_outside_is_read():
    """Run under the sanitizers, too; here only that every answer comes back."""
    f = dlbf.RibbonFilter.build(KEYS[:5000], 0.01)
    header, payload = dlbf.format.unpack(f.to_bytes())
    rng = random.Random(3)
    for _ in range(50):
        damaged = bytearray(payload)
        for at in range(16):
            damaged[at] = rng.getrandbits(8)
        other = dlbf.RibbonFilter.from_bytes(dlbf.format.pack(header, damaged))
        assert len(other.contains_many(KEYS[:2000])) == 2000


@pytest.mark.parametrize(
    "geometry",
    [(1, 0, 7, 0), (0, 10, 7, 0), (11, 10, 7, 0), (1, 10, 57, 0), (1, 10, 7, 1), (1, 2**50, 7, 0), (2, 1000, 7, 16)],
)
def test_impossible_geometry_is_refused(geometry):
    with pytest.raises(ValueError, match="must be between"):
        dlbf.RibbonFilter._payload_bytes((0, 0, 0, *RibbonGeometry(*geometry)))


@pytest.mark.parametrize("filter_id", [0, 7])
@pytest.mark.parametrize("kind", ["random", "repeated", "low", "high", "equal"])
def test_two_threads_sort_as_one_does(monkeypatch, kind, filter_id):
    monkeypatch.setattr(ribbon, "SORTED_BY_TWO", 2)
    hashes = random_hashes(20_000)
    hashes = {
        "random": hashes,
        "repeated": np.concatenate([hashes, hashes[::-1], hashes[:5000]]),
        "low": hashes >> np.uint64(1),
        "high": hashes | np.uint64(1 << 63),
        "equal": np.full(5000, hashes[0]),
    }[kind]
    one, two = (SortedHashes(hashes.copy(), filter_id, workers) for workers in (1, 2))
    assert one.n_keys == two.n_keys == len(np.unique(hashes))
    assert (one.hashes[: one.n_keys] == two.hashes[: one.n_keys]).all()
    assert (np.diff(two.hashes[: two.n_keys]) > 0).all()
    assert (one.bounds == two.bounds).all()


def test_a_gap_is_closed_within_the_array_only():
    hashes = np.arange(10, dtype=np.uint64)
    ribbon_close_gap(hashes, 2, 4, 3)
    assert hashes.tolist() == [0, 1, 4, 5, 6, 5, 6, 7, 8, 9]
    for wrong in ((-1, 4, 3), (5, 4, 3), (0, 8, 3), (0, 4, -5)):
        with pytest.raises(ValueError, match="expected"):
            ribbon_close_gap(hashes, *wrong)
