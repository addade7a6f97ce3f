"""The layered filter and its set of absent keys, against sets, with collisions everywhere."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.places import DATA

import dlbf
from dlbf import format
from dlbf.errors import FilterFullError, FormatError, StaticFilterError
from dlbf.filters.layered import PLANNED_TABLES, LayeredFilter
from dlbf.kernels.absent import AFTER_DELETE, ORDINARY, REPEATED, AbsentSet
from dlbf.kernels.hashing import Sip24Secret
from dlbf.kernels.layers import MOST_TABLES

KEYS = [b"%d" % i for i in range(400)]
SECRET = bytes(range(16))
keys = st.sampled_from(KEYS)


def crowded(n_keys=100, fpr=0.3, added=40, added_fpr=0.9, secret=None):
    """Rates so high that keys look alike in the base and in the tables."""
    base = dlbf.RibbonFilter.build(KEYS[:n_keys], fpr, secret=secret)
    return LayeredFilter.over(base, fpr, added, added_fpr)


def golden(secret):
    """What ``tests/data/layered-tables-13.v1.bin`` holds, and with the older hash ``layered-tables.v1.bin``."""
    base = dlbf.RibbonFilter.build([b"key %d" % i for i in range(500)], 0.01, secret=secret)
    filter = LayeredFilter.over(base, 0.01, 256, 0.002)
    filter.update(b"added %d" % i for i in range(90))
    for i in range(0, 60, 3):
        filter.remove(b"key %d" % i)
        filter.remove(b"added %d" % i)
    return filter


# In the oldest one each table has a hash of its own.
# Of the 70 keys that were added and stayed, the base lets one or two pass.
@pytest.mark.parametrize(
    ("name", "written", "n_added"),
    [("layered-tables-13", SECRET, 69), ("layered-tables", Sip24Secret(SECRET), 68), ("layered", None, 68)],
)
def test_golden_bytes_are_what_is_written_and_still_answer(name, written, n_added):
    blob = (DATA / f"{name}.v1.bin").read_bytes()
    if written is not None:
        assert golden(written).to_bytes() == blob
    filter = LayeredFilter.from_bytes(blob, SECRET)
    assert (len(filter), filter.base_keys, filter.n_added) == (550, 500, n_added)
    assert all(b"key %d" % i in filter for i in range(500))
    assert all(b"added %d" % i in filter for i in range(90) if i >= 60 or i % 3)
    assert LayeredFilter.from_bytes(blob, SECRET).to_bytes() == blob
    with pytest.raises(ValueError, match="secret"):
        LayeredFilter.from_bytes(blob)
    # It goes on as it is: with tables of either kind beside each other.
    filter.update(b"later %d" % i for i in range(200))
    for i in range(60, 90):
        filter.remove(b"added %d" % i)
    assert all(b"later %d" % i in filter for i in range(200))
    assert all(b"added %d" % i in filter for i in range(60) if i % 3)


class AgainstSet(RuleBasedStateMachine):
    """Adds, removes, reads, copies and reloads; a replica follows the same log and reads other keys."""

    @initialize(seed=st.integers(0, 99), limit=st.sampled_from([0, 2000, 65536]), keyed=st.booleans())
    def begin(self, seed, limit, keyed):
        self.secret = SECRET if keyed else None
        self.filter = crowded(random.Random(seed).randrange(0, 200), secret=self.secret)
        self.filter.absent.set_limit(limit)
        self.held = set(KEYS[: self.filter.base_keys])
        self.replica = self.filter.copy()
        self.limit = limit

    def change(self, filter, key):
        if key in self.held:
            filter.remove(key)
        else:
            filter.add(key)

    @rule(key=keys)
    def toggle(self, key):
        before = self.filter.to_bytes()
        try:
            self.change(self.filter, key)
        except FilterFullError:
            assert self.filter.to_bytes() == before or len(self.filter) == len(self.held)
            with pytest.raises(FilterFullError):
                self.change(self.replica, key)
            return
        self.change(self.replica, key)
        self.held ^= {key}

    @rule(key=keys, replica=st.booleans())
    def read(self, key, replica):
        filter = self.replica if replica else self.filter
        if key in self.held:
            assert key in filter
        elif key in filter:
            filter.remember(key)
            assert key not in filter or not self.limit

    @rule(reload=st.booleans())
    def jump(self, reload):
        if reload:
            self.filter = LayeredFilter.from_bytes(self.filter.to_bytes(), self.secret)
        else:
            self.filter = self.filter.copy()
        self.filter.absent.set_limit(self.limit)

    @invariant()
    def holds(self):
        assert len(self.filter) == len(self.replica) == len(self.held)
        assert all(key in self.filter and key in self.replica for key in self.held)
        # What was read decides nothing about what is stored.
        assert self.filter.to_bytes() == self.replica.to_bytes()

    def teardown(self):
        answers = self.filter.contains_many(KEYS).tolist()
        assert answers == [key in self.filter for key in KEYS]
        assert all(answer for key, answer in zip(KEYS, answers, strict=True) if key in self.held)


AgainstSet.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestAgainstSet = AgainstSet.TestCase


def fingerprints_alike(filter, found):
    """A key that is not in the base, and passes one of the tables though it was not added."""
    return next(k for k in (b"x%d" % i for i in range(100000)) if found(k) and not base_passes(filter, k))


def base_passes(filter, key):
    return key in filter.base


def test_removing_a_key_of_the_base_takes_nothing_out_of_a_table():
    # "Decrement although base says maybe": x in the base, add(y), remove(x): y denied.
    filter = crowded()
    added = [k for k in (b"y%d" % i for i in range(1000)) if not base_passes(filter, k)][:30]
    filter.update(added)
    for key in KEYS[:100]:
        filter.remove(key)
    assert all(key in filter for key in added)
    assert filter.n_added == len(added) == len(filter)


def test_a_key_is_taken_out_of_the_table_that_has_it():
    # Tables match by chance all the time here; whichever order keys go in, those that stay are found.
    for seed in range(20):
        rng = random.Random(seed)
        filter = crowded(0, added=8, added_fpr=0.9)
        held = []
        for i in range(300):
            if held and rng.random() < 0.45:
                filter.remove(held.pop(rng.randrange(len(held))))
            else:
                try:
                    filter.add(b"%d" % i)
                    held.append(b"%d" % i)
                except FilterFullError:
                    pass
            assert all(key in filter for key in held)
        assert filter.n_added == len(held)


# Fingerprints of 5 to 29 bits: without a suffix, with suffixes that fill a word by four, and longer ones.
@pytest.mark.parametrize("added_fpr", [0.99, 0.5, 0.1, 1e-3, 1e-4, 3e-5, 1e-5, 1e-6, 5e-7])
def test_what_is_asked_of_all_tables_at_once_is_what_each_of_them_says(added_fpr):
    base = dlbf.RibbonFilter.build(KEYS[:50], 0.01)
    filter = LayeredFilter.over(base, 0.5, 400, added_fpr)
    rng = random.Random(7)
    present = set()
    for i in range(1000):
        key = b"added %d" % i
        try:
            filter.add(key)
        except FilterFullError:
            break  # so many look alike that a bucket is full of them
        present.add(key)
        if i % 3 == 0:
            gone = rng.choice(sorted(present))
            filter.remove(gone)
            present.remove(gone)
    filter.absent.clear()
    tables = filter._counted_tables()
    asked = [b"absent %d" % i for i in range(3000)] + sorted(present) + KEYS[:50]
    said = [key in base or any(key in table for table in tables) for key in asked]
    assert len(present) > 250 or added_fpr > 0.4
    assert [key in filter for key in asked] == said
    assert filter.contains_many(asked).tolist() == said
    assert all(said[3000:])


def test_tables_are_begun_as_they_fill_and_no_more_than_there_may_be():
    filter = LayeredFilter.over(dlbf.RibbonFilter.build([b"a"], 0.01), 0.01, 256, 0.001)
    assert filter.delta_bytes == 0
    assert filter.planned_added == 256
    seen = set()
    for i in range(filter.n_free):
        filter.add(b"k%d" % i)
        seen.add(filter.delta_bytes)
    with pytest.raises(FilterFullError, match="Make a new base"):
        filter.update(b"more %d" % i for i in range(100))
    assert len(seen) == MOST_TABLES == 2 * PLANNED_TABLES
    assert all(b"k%d" % j in filter for j in range(i))
    assert filter.n_free == 0


def test_a_table_that_takes_fewer_keys_than_it_is_meant_for_is_followed_by_another():
    # Twice as many keys as there are slots: each table refuses one long before its room is used up.
    filter = LayeredFilter.over(dlbf.RibbonFilter.build([b"a"], 0.01), 0.01, 256, 0.001)
    filter._params = (*filter._params[:6], 512, *filter._params[7:])
    filter.set_layers(filter.base, [], 512)
    added = []

    def add_all():
        for i in range(10_000):
            filter.add(b"%d" % i)
            added.append(b"%d" % i)

    with pytest.raises(FilterFullError):
        add_all()
    assert 400 < len(added) < 8 * 100
    assert all(key in filter for key in added)


def test_the_base_is_shared_by_copies_and_never_changed():
    filter = crowded()
    before = filter.base.to_bytes()
    other = filter.copy()
    assert other.base is filter.base
    for key in KEYS[:50]:
        other.remove(key)
    for i in range(30):
        other.add(b"new %d" % i)
    assert filter.base.to_bytes() == before
    assert len(filter) == 100
    assert all(key in filter for key in KEYS[:100])


def test_a_copy_does_not_share_what_is_remembered():
    # The copy follows a commit that may fail: what it enters must not be denied by the filter that answers.
    filter = crowded()
    filter.absent.set_limit(65536)
    filter.remember(b"warm")
    other = filter.copy()
    other.remove(KEYS[0])
    assert KEYS[0] not in other
    assert KEYS[0] in filter


def test_bytes_that_make_no_sense_are_refused():
    filter = crowded()
    filter.update([b"n%d" % i for i in range(40)])
    blob = filter.to_bytes()
    assert format.read_header(blob).kind == format.KIND_LAYERED
    for at in range(0, len(blob), max(1, len(blob) // 400)):
        damaged = bytearray(blob)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(dlbf.DlbfError):
            LayeredFilter.from_bytes(bytes(damaged))
    header = format.read_header(blob)
    payload = blob[format.HEADER_BYTES : format.HEADER_BYTES + header.n_payload_bytes]
    nested = format.pack(header, payload)
    params = (*header.params[:3], len(nested), 0, *header.params[5:])
    forged = format.pack(format.Header(header.kind, len(nested), params, header.n_items, header.hash_kind), nested)
    with pytest.raises(FormatError, match="is one itself"):
        LayeredFilter.from_bytes(forged)
    buckets, prefixes, suffix_bits = header.params[7:10]
    foreign = dlbf.CuckooFilter(buckets=buckets, prefixes=prefixes, suffix_bits=suffix_bits, filter_id=7).to_bytes()
    more = payload + foreign
    params = (*header.params[:4], header.params[4] + len(foreign), *header.params[5:])
    forged = format.pack(format.Header(header.kind, len(more), params, header.n_items, header.hash_kind), more)
    with pytest.raises(FormatError, match="the place of another"):
        LayeredFilter.from_bytes(forged)


def test_it_cannot_be_made_empty_or_by_itself():
    with pytest.raises(TypeError, match="over"):
        LayeredFilter(100)
    with pytest.raises(StaticFilterError):
        crowded().clear()


def test_rates_are_those_that_are_predicted():
    base = dlbf.RibbonFilter.build([b"%d" % i for i in range(20_000)], 0.008)
    filter = LayeredFilter.over(base, 0.01, 5000, 0.002)
    filter.update([b"a%d" % i for i in range(5000)])
    n = 100_000
    passed = filter.contains_many([b"q%d" % i for i in range(n)]).sum() / n
    # Five standard errors of a rate of 1 % in 100,000 questions are 0.16 %.
    assert abs(passed - filter.expected_fpr) < 0.0016
    assert filter.expected_fpr <= 0.01


class TestAbsentSet:
    def test_it_is_bounded_and_allocated_as_it_fills(self):
        absent = AbsentSet(65536)
        assert absent.nbytes == 0
        sizes = []
        for i in range(20_000):
            absent.enter(b"%d" % i)
            sizes.append(absent.nbytes)
        assert sizes == sorted(sizes)
        assert sizes[10] < 2048
        assert sizes[-1] <= 65536
        assert 3500 < len(absent) <= 4096

    def test_what_it_has_is_a_subset_of_what_was_entered_and_not_struck(self):
        rng = random.Random(3)
        for limit in (0, 1500, 3000, 65536):
            absent, entered = AbsentSet(limit), set()
            for _ in range(20_000):
                key = b"%d" % rng.randrange(6000)
                chance = rng.random()
                if chance < 0.5:
                    absent.enter(key)
                    entered.add(key)
                elif chance < 0.6:
                    if absent.enter_deleted(key):
                        entered.add(key)
                elif chance < 0.9:
                    absent.strike(key)
                    entered.discard(key)
                else:
                    assert key in entered or key not in absent
                assert absent.nbytes <= limit
            assert sum(b"%d" % i in absent for i in range(6000)) == len(absent)
            assert all(b"%d" % i in entered for i in range(6000) if b"%d" % i in absent)

    def test_a_thousand_keys_asked_in_a_circle_stay(self):
        absent = AbsentSet(65536)
        missed = 0
        for turn in range(20):
            for i in range(1000):
                key = b"%d" % i
                if key not in absent:
                    missed += turn > 0
                    absent.enter(key)
        assert missed == 0

    def test_keys_that_are_asked_for_again_outlive_those_that_are_not(self):
        absent = AbsentSet(65536)
        hot = [b"hot %d" % i for i in range(1000)]
        for key in hot:
            absent.enter(key)
        for i in range(20_000):
            absent.enter(b"cold %d" % i)
            if i % 20 == 0:
                for key in hot:
                    key in absent  # noqa: B015
        assert sum(key in absent for key in hot) > 990

    def test_it_tells_why_a_key_had_to_be_read(self):
        rng = random.Random(7)
        absent = AbsentSet(65536)
        assert absent.enter(b"new") == ORDINARY
        fill = [b"fill %d" % i for i in range(10_000)]
        for key in fill:
            absent.enter(key)
        while absent.enter_deleted(b"gone"):
            absent.strike(b"gone")
            absent.enter(b"one more")
            absent.strike(b"one more")
            absent.enter(rng.randbytes(8))
        # Some random keys share a tag with one that was there.
        n_deleted, n_repeated = absent.n_deleted, absent.n_repeated
        assert absent.enter(b"gone") == AFTER_DELETE
        causes = [absent.enter(key) for key in fill if key not in absent]
        # Some are told from new ones: there is a tag for every fourth entry.
        assert causes.count(REPEATED) > 10
        assert absent.n_deleted == n_deleted + 1 + causes.count(AFTER_DELETE)
        assert absent.n_repeated == n_repeated + causes.count(REPEATED)

    def test_deleting_allocates_nothing(self):
        absent = AbsentSet(65536)
        assert not absent.enter_deleted(b"a")
        assert absent.nbytes == 0
        assert len(absent) == 0
        absent.enter(b"b")
        assert absent.enter_deleted(b"a")
        assert b"a" in absent

    def test_a_smaller_limit_forgets_everything(self):
        absent = AbsentSet(65536)
        for i in range(1000):
            absent.enter(b"%d" % i)
        absent.set_limit(1100)
        assert len(absent) == 0
        assert absent.nbytes == 0
        absent.enter(b"a")
        assert b"a" in absent
        absent.clear()
        assert b"a" not in absent
