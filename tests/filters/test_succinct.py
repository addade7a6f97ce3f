"""Succinct counters: the same behaviour as a list of counters, in two bits each."""

import dataclasses
import math
import pickle
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support import peek

import dlbf
from dlbf import format
from dlbf.geometry import cell_fpr, cell_geometry, succinct_bytes, succinct_geometry, succinct_slots
from dlbf.kernels.hashing import hash64

GROUP = 64
MAX_COUNT = 255


def make_keys(n: int, seed: int = 0) -> list[bytes]:
    return [b"https://host-%d.example/%d/%d" % (i % 97, seed, i) for i in range(n)]


def payload(f: dlbf.SuccinctCountingFilter) -> bytes:
    return bytes(format.unpack(f.to_bytes())[1])


def repacked(f: dlbf.SuccinctCountingFilter, contents: bytes | bytearray, flags: int = 0) -> bytes:
    """A file like that of ``f`` with other contents, whose checksums are right."""
    return format.pack(dataclasses.replace(format.unpack(f.to_bytes())[0], flags=flags), contents)


class Reference:
    """A list of counters, and the one thing that can go wrong: more groups past 64 than there are slots."""

    def __init__(self, n_cells: int, n_hashes: int, n_slots: int) -> None:
        self.counts = [0] * n_cells
        self.n_hashes = n_hashes
        self.n_slots = n_slots

    def cells(self, key: bytes) -> list[int]:
        x = hash64(key)
        cells = []
        for _ in range(self.n_hashes):
            cells.append(x * len(self.counts) >> 64)
            x = (x * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64
        return cells

    def outgrown(self) -> int:
        starts = range(0, len(self.counts), GROUP)
        return sum(sum(self.counts[start : start + GROUP]) > GROUP for start in starts)

    def add(self, key: bytes) -> bool:
        before = list(self.counts)
        for cell in self.cells(key):
            self.counts[cell] = min(self.counts[cell] + 1, MAX_COUNT)
        if self.outgrown() > self.n_slots:
            self.counts = before
            return False
        return True

    def remove(self, key: bytes) -> bool:
        needed = Counter(self.cells(key))
        if any(self.counts[cell] < times for cell, times in needed.items()):
            return False
        for cell in self.cells(key):
            if self.counts[cell] < MAX_COUNT:
                self.counts[cell] -= 1
        return True

    def count(self, key: bytes) -> int:
        return min(self.counts[cell] for cell in self.cells(key))


def assert_same(f: dlbf.SuccinctCountingFilter, reference: Reference) -> None:
    assert f._counts() == bytes(reference.counts)
    assert f.slots_used == reference.outgrown()
    assert peek.is_sound(f)


# Few cells and slots, so that groups outgrow their words, come back, and run out of slots all the time.  Sizes are
# at and beside the edges of a group; 64 hashes make a key use cells twice.
GEOMETRIES = [(1, 1, 1), (63, 3, 1), (64, 4, 1), (65, 7, 1), (200, 3, 2), (640, 5, 3), (640, 64, 10), (3000, 6, 4)]


@pytest.mark.parametrize(("n_cells", "n_hashes", "n_slots"), GEOMETRIES)
@pytest.mark.parametrize("seed", range(3))
def test_random_operations_equal_list_of_counters(n_cells: int, n_hashes: int, n_slots: int, seed: int) -> None:
    rng = random.Random(seed)
    keys = make_keys(60 + 2 * n_cells // n_hashes)
    f = dlbf.SuccinctCountingFilter(counters=n_cells, hashes=n_hashes, slots=n_slots)
    reference = Reference(n_cells, n_hashes, n_slots)
    n_full = n_refused = n_items = 0
    for turn in range(1500):
        key = rng.choice(keys)
        # Up, down, up again: thresholds are crossed in both directions.
        if rng.random() < (0.75 if turn // 300 % 2 == 0 else 0.25):
            fits = reference.add(key)
            if fits:
                f.add(key)
            else:
                n_full += 1
                before = f.to_bytes()
                with pytest.raises(dlbf.FilterFullError):
                    f.add(key)
                assert f.to_bytes() == before
            n_items += fits
        else:
            removed = reference.remove(key)
            if removed:
                assert f.remove(key) == (reference.count(key) == 0)
                n_items = max(0, n_items - 1)
            else:
                n_refused += 1
                before = f.to_bytes()
                with pytest.raises(KeyError):
                    f.remove(key)
                assert f.to_bytes() == before
        assert len(f) == n_items
        if turn % 50 == 0:
            assert_same(f, reference)
    assert_same(f, reference)
    assert [f.count(key) for key in keys] == [reference.count(key) for key in keys]
    expected = [reference.count(key) > 0 for key in keys]
    assert [key in f for key in keys] == expected
    assert f.contains_many(keys).tolist() == expected
    if n_slots < n_cells // GROUP - 1:
        assert n_full  # the case this geometry is here for
    assert n_refused or n_cells < 100


def test_one_key_300_times_counts_to_255_and_stays() -> None:
    f = dlbf.SuccinctCountingFilter(10_000, 0.01, slots=20)
    others = make_keys(5000, seed=1)
    f.update(others)
    for n in range(1, 301):
        f.add(b"again")
        assert f.count(b"again") == min(n, 255)
    assert f.slots_used >= f.hashes - 1
    assert peek.is_sound(f)
    for _ in range(300):
        assert f.remove(b"again") is False
    assert b"again" in f  # its true count is lost, so it can never be let go
    assert f.saturated > 0
    assert f.contains_many(others).all()
    f.remove_many(others)
    # What is left is the saturated counters and nothing else.
    assert set(f._counts()) == {0, 255}


def test_one_key_254_times_can_be_removed_as_often() -> None:
    f = dlbf.SuccinctCountingFilter(10_000, 0.01, slots=20)
    for _ in range(254):
        f.add(b"again")
    assert f.slots_used == len({cell // GROUP for cell in Reference(f.counters, f.hashes, 0).cells(b"again")})
    for n in range(254, 0, -1):
        assert f.count(b"again") == n
        assert f.remove(b"again") == (n == 1)
    assert not any(payload(f))


def test_rolled_back_add_lowers_a_counter_that_had_just_reached_its_maximum() -> None:
    # Group 0 is at 254 in a slot, the only one; group 1 is full.  A key in both raises the first to 255, finds no slot
    # for the second, and must take the first back, although counters at 255 are never lowered otherwise.
    reference = Reference(128, 2, 1)
    keys = make_keys(20_000)
    by_cells = {tuple(reference.cells(key)): key for key in keys}
    only_0 = next(key for cells, key in by_cells.items() if cells[0] == cells[1] < GROUP)
    cell = reference.cells(only_0)[0]
    only_1 = next(key for cells, key in by_cells.items() if cells[0] >= GROUP and cells[1] >= GROUP)
    both = next(key for cells, key in by_cells.items() if cells[0] == cell and cells[1] >= GROUP)
    f = dlbf.SuccinctCountingFilter(counters=128, hashes=2, slots=1)
    for _ in range(127):
        f.add(only_0)
    for _ in range(32):
        f.add(only_1)
    assert f.slots_used == 1
    assert f._counts()[cell] == 254
    before = f.to_bytes()
    with pytest.raises(dlbf.FilterFullError):
        f.add(both)
    assert f.to_bytes() == before


def test_removing_everything_leaves_zeros() -> None:
    keys = make_keys(100_000)
    f = dlbf.SuccinctCountingFilter(len(keys), 0.05)
    f.update(keys)
    assert f.slots_used > 0
    assert f.contains_many(keys).all()
    random.Random(3).shuffle(keys)
    f.remove_many(keys)
    assert len(f) == 0
    assert not any(payload(f))


@pytest.mark.parametrize("fpr", [0.05, 0.01, 0.001])
def test_rate_and_size_at_capacity(fpr: float) -> None:
    n = 100_000
    f = dlbf.SuccinctCountingFilter(n, fpr)
    f.update(make_keys(n))
    assert 8 * f.nbytes / f.counters <= 2.06
    # At most 4 % more bits than two per cell of the smallest Bloom filter.
    assert 8 * f.nbytes <= 1.04 * 2 * cell_geometry(n, fpr).n_cells
    n_absent = 300_000
    found = int(f.contains_many(make_keys(n_absent, seed=9)).sum())
    # 99.9 % of a binomial, two-sided: 3.29 standard deviations.
    expected = n_absent * fpr
    assert abs(found - expected) <= 3.29 * math.sqrt(expected * (1 - fpr))
    assert f.expected_fpr == pytest.approx(fpr, rel=0.002)
    assert f.approximate_count() == pytest.approx(n, rel=0.01)


@pytest.mark.parametrize("n", [1, 10, 100, 1000, 10_000, 100_000])
@pytest.mark.parametrize("fpr", [0.5, 0.05, 0.01, 0.0001])
def test_planned_capacity_fits(n: int, fpr: float) -> None:
    f = dlbf.SuccinctCountingFilter(n, fpr)
    f.update(make_keys(n))
    assert len(f) == n
    assert cell_fpr(n, f.counters, f.hashes) <= fpr


def test_a_tenth_over_capacity_fits_and_much_more_is_refused() -> None:
    f = dlbf.SuccinctCountingFilter(100_000, 0.01)
    f.update(make_keys(108_000))
    with pytest.raises(dlbf.FilterFullError, match="nothing was lost"):
        f.update(make_keys(60_000, seed=1))
    # The keys before the one that did not fit are in, and all of them come out again.
    keys = make_keys(108_000) + make_keys(len(f) - 108_000, seed=1)
    assert f.contains_many(keys).all()
    f.remove_many(keys)
    assert not any(payload(f))


def test_slots_are_at_most_one_per_group() -> None:
    assert succinct_slots(10**6, 640, 5) == 10
    geometry = succinct_geometry(10**6, 0.01)
    assert 8 * succinct_bytes(geometry.n_cells, geometry.n_slots) / 10**6 < 19.5


def test_union_and_intersection_are_counter_by_counter() -> None:
    a, b = make_keys(3000, seed=1), make_keys(3000, seed=2)
    f = dlbf.SuccinctCountingFilter(10_000, 0.01, slots=100)
    g, both = f.copy(), f.copy()
    f.update(a + a)
    g.update(a + b)
    both.update(b + a + a + a)
    assert f | g == both
    assert (f & g)._counts() == bytes(map(min, f._counts(), g._counts()))
    f |= g
    assert f == both
    assert len(f) == 12_000
    assert peek.is_sound(f)
    both.remove(b[0])
    assert f != both


def test_union_saturates() -> None:
    f = dlbf.SuccinctCountingFilter(counters=100, hashes=1)
    for _ in range(200):
        f.add(b"key")
    assert (f | f).count(b"key") == 255


def test_union_that_does_not_fit_says_so_and_changes_nothing() -> None:
    f = dlbf.SuccinctCountingFilter(counters=640, hashes=5, slots=1)
    f.update(make_keys(80))
    before = f.to_bytes()
    with pytest.raises(dlbf.FilterFullError, match="does not fit"):
        f |= f.copy()
    assert f.to_bytes() == before


def test_equal_contents_in_different_slots_are_equal() -> None:
    n_groups = 20
    reference = Reference(n_groups * GROUP, 1, 0)
    # One key for each group; their slots depend on who came first where two look for the same one.
    by_group = {reference.cells(key)[0] // GROUP: key for key in make_keys(2000)}
    f = dlbf.SuccinctCountingFilter(counters=n_groups * GROUP, hashes=1, slots=n_groups)
    g = f.copy()
    for group in range(n_groups):
        f.update([by_group[group]] * 65)
        g.update([by_group[n_groups - 1 - group]] * 65)
    assert f.to_bytes() != g.to_bytes()
    assert f == g


def test_words_and_slots_are_laid_out_as_documented() -> None:
    f = dlbf.SuccinctCountingFilter(counters=128, hashes=1, slots=2)
    key_of = {Reference(128, 1, 0).cells(key)[0]: key for key in make_keys(3000)}
    for cell, count in ((3, 1), (17, 3), (40, 2)):
        f.update([key_of[cell]] * count)
    words = [int.from_bytes(payload(f)[at : at + 8], "little") for at in range(0, 32, 8)]
    assert words == [1 << 3 | 1 << 17 | 1 << 40, 0, 0b010110, 0]
    f.update([key_of[64 + 5]] * 70)
    contents = payload(f)
    assert int.from_bytes(contents[8:16], "little") == 1 << 5
    code = int.from_bytes(contents[24:32], "little")
    assert code >> 63 == 1
    slot = code & (2**63 - 1)
    slots = bytearray(128)
    slots[64 * slot + 5] = 70
    assert contents[32:] == slots


def filled() -> dlbf.SuccinctCountingFilter:
    # Seven hashes instead of six: crowded enough that some twenty groups have a slot.
    f = dlbf.SuccinctCountingFilter(counters=192_000, hashes=7, slots=80)
    f.update(make_keys(20_000))
    f.update(make_keys(100))
    assert f.slots_used
    return f


def test_saved_mapped_and_pickled_filters_are_equal(tmp_path) -> None:
    f = filled()
    assert dlbf.SuccinctCountingFilter.from_bytes(f.to_bytes()) == f
    assert pickle.loads(pickle.dumps(f)) == f
    path = tmp_path / "filter"
    f.save(path)
    with dlbf.open_filter(path) as g:
        assert type(g) is dlbf.SuccinctCountingFilter
        assert g.contains_many(make_keys(20_000)).all()
        assert [g.count(key) for key in make_keys(200)] == [f.count(key) for key in make_keys(200)]
        assert g == f
        with pytest.raises(dlbf.ReadOnlyError):
            g.add(b"key")
    with dlbf.open_filter(path, "r+") as g:
        g.remove_many(make_keys(20_000))
        g.remove_many(make_keys(100))
    with dlbf.open_filter(path) as g:
        assert not any(payload(g))


def test_mapped_query_checks_only_what_it_touches(tmp_path) -> None:
    f = filled()
    path = tmp_path / "filter"
    f.save(path)
    damaged = bytearray(path.read_bytes())
    damaged[format.HEADER_BYTES + f.nbytes - 1] ^= 1  # in the last slot
    path.write_bytes(damaged)
    with dlbf.open_filter(path) as g:
        assert make_keys(1)[0] in g
        with pytest.raises(dlbf.ChecksumError):
            g.count(make_keys(1)[0])


def test_file_that_was_not_closed_is_refused_even_for_recovery(tmp_path) -> None:
    f = filled()
    path = tmp_path / "filter"
    path.write_bytes(repacked(f, payload(f), flags=format.FLAG_OPEN_FOR_WRITING))
    with pytest.raises(dlbf.ChecksumError, match="more than one step"):
        dlbf.open_filter(path, "r+", recover=True)


def outgrown_group(f: dlbf.SuccinctCountingFilter) -> int:
    n_groups = f.counters // GROUP
    codes = payload(f)[8 * n_groups : 16 * n_groups]
    return next(i for i in range(n_groups) if codes[8 * i + 7] & 0x80)


def damage_slot_number(f: dlbf.SuccinctCountingFilter, contents: bytearray) -> None:
    at = f.counters // 8 + 8 * outgrown_group(f)
    contents[at : at + 8] = b"\xff" * 8


def damage_shared_slot(f: dlbf.SuccinctCountingFilter, contents: bytearray) -> None:
    group, n_bits = outgrown_group(f), f.counters // 8
    to = (group + 1) % (f.counters // GROUP)
    contents[n_bits + 8 * to : n_bits + 8 * to + 8] = contents[n_bits + 8 * group : n_bits + 8 * group + 8]
    contents[8 * to : 8 * to + 8] = contents[8 * group : 8 * group + 8]


def damage_bit(f: dlbf.SuccinctCountingFilter, contents: bytearray) -> None:
    contents[8 * outgrown_group(f)] ^= 1


def damage_codes(f: dlbf.SuccinctCountingFilter, contents: bytearray) -> None:
    group = next(i for i in range(f.counters // GROUP) if contents[f.counters // 8 + 8 * i + 7] == 0)
    contents[f.counters // 8 + 8 * group + 7] = 0x7F


def damage_orphan(f: dlbf.SuccinctCountingFilter, contents: bytearray) -> None:
    n_groups = f.counters // GROUP
    free = next(s for s in range(f.slots) if not any(contents[16 * n_groups + 64 * s :][:64]))
    contents[16 * n_groups + 64 * free] = 1


DAMAGE = [damage_slot_number, damage_shared_slot, damage_bit, damage_codes, damage_orphan]


@pytest.mark.parametrize("damage", DAMAGE)
def test_forged_table_is_refused(damage) -> None:
    f = filled()
    contents = bytearray(payload(f))
    damage(f, contents)
    with pytest.raises(dlbf.FormatError, match="contradict"):
        dlbf.SuccinctCountingFilter.from_bytes(repacked(f, contents))


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_stay_inside_the_buffer(seed: int, tmp_path) -> None:
    # A forged file mapped read-only is not looked through; nor is its copy.  Whatever it holds, no operation
    # may reach outside of the buffer (the sanitizer build would stop) or change the bytes after it.
    f = dlbf.SuccinctCountingFilter(counters=1000, hashes=6, slots=3)
    rng = random.Random(seed)
    path = tmp_path / "filter"
    path.write_bytes(repacked(f, rng.randbytes(f.nbytes)))
    keys = make_keys(300)
    with dlbf.open_filter(path) as mapped:
        for key in keys:
            assert mapped.count(key) >= 0
        g = mapped.copy()
    for key in keys:
        g.discard(key)
        try:
            g.add(key)
        except dlbf.FilterFullError:
            pass
    assert (g | g if peek.is_sound(g) else g).nbytes == f.nbytes


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"capacity": 100, "counters": 100, "hashes": 3}, TypeError),
        ({"counters": 100}, TypeError),
        ({"hashes": 3}, TypeError),
        ({}, TypeError),
        ({"counters": 0, "hashes": 3}, ValueError),
        ({"counters": 100, "hashes": 65}, ValueError),
        ({"counters": 100, "hashes": 3, "slots": 0}, ValueError),
        ({"capacity": 0}, ValueError),
        ({"capacity": 10, "fpr": 1}, ValueError),
    ],
)
def test_wrong_arguments_are_errors(arguments: dict[str, int], error: type[Exception]) -> None:
    with pytest.raises(error):
        dlbf.SuccinctCountingFilter(**arguments)


def test_different_geometry_cannot_be_combined() -> None:
    f = dlbf.SuccinctCountingFilter(counters=640, hashes=5, slots=1)
    with pytest.raises(ValueError, match="n_slots"):
        f | dlbf.SuccinctCountingFilter(counters=640, hashes=5, slots=2)


KEYS = st.integers(0, 30).map(lambda i: b"key %d" % i)


class SuccinctMachine(RuleBasedStateMachine):
    """Against a multiset: no false negative, counts never too low, nothing left behind."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = dlbf.SuccinctCountingFilter(counters=300, hashes=4, slots=2)
        self.model: Counter[bytes] = Counter()
        self.saturated = False

    @rule(key=KEYS, times=st.sampled_from([1, 1, 1, 2, 17, 65, 300]))
    def add(self, key: bytes, times: int) -> None:
        for _ in range(times):
            try:
                self.filter.add(key)
            except dlbf.FilterFullError:
                break
            self.model[key] += 1

    @rule(key=KEYS, times=st.integers(1, 20))
    def remove(self, key: bytes, times: int) -> None:
        for _ in range(min(times, self.model[key])):
            assert self.filter.remove(key) == (key not in self.filter)
            self.model[key] -= 1

    @rule(key=KEYS)
    def ask_absent(self, key: bytes) -> None:
        if key not in self.filter:
            assert self.model[key] == 0
            with pytest.raises(KeyError):
                self.filter.remove(key)

    @rule()
    def save_and_load(self) -> None:
        self.filter = dlbf.SuccinctCountingFilter.from_bytes(self.filter.to_bytes())

    @rule()
    def remove_all(self) -> None:
        for key, times in self.model.items():
            for _ in range(times):
                self.filter.remove(key)
        self.model.clear()
        # Only counters whose count was lost are left.
        assert set(self.filter._counts()) <= {0, 255}
        if not self.saturated:
            assert not any(payload(self.filter))

    @invariant()
    def counts_are_never_too_low(self) -> None:
        self.saturated |= self.filter.saturated > 0
        assert len(self.filter) == self.model.total()
        for key, times in self.model.items():
            if times:
                assert key in self.filter
                assert self.filter.count(key) >= min(times, 255)

    @invariant()
    def table_is_sound(self) -> None:
        assert peek.is_sound(self.filter)


TestSuccinctMachine = SuccinctMachine.TestCase
TestSuccinctMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
