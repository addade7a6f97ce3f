"""GrowingFilter: never a false negative, its rate at every size, removals, bytes."""

import itertools
import pickle
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.samples import SECRET, url_keys

import dlbf
from dlbf import format
from dlbf.filters.growing import fingerprint_lengths
from dlbf.kernels.growing import select_by_processor

GOLDEN = Path(__file__).parent.parent / "data" / "growing.v1.bin"
KEYS = url_keys(3000, seed=1)
OTHERS = url_keys(3000, seed=2)


def loaded(keys=KEYS, **more):
    f = dlbf.GrowingFilter(0.01, 100, **more)
    f.update(keys)
    return f


def hashes(values):
    return dlbf.KeyHashes(np.asarray(values, dtype=np.uint64), 1, 0)


def crowded(n, seed, one_in=6):
    """Hashes whose top bits are zero, so that pages are split for a few keys and entries are void early."""
    return np.random.default_rng(seed).integers(0, 1 << (64 - one_in), n, dtype=np.uint64)


# --- looking for a key


def decoded(data):
    """The pages of a saved filter as ``growing.pxd`` draws them: depth, entries of each bucket, void items."""
    words = format.unpack(data)[1]
    bits = int.from_bytes(words, "little")
    take = lambda at, n: bits >> at & ((1 << n) - 1)  # noqa: E731
    at, pages = 128, []
    for _ in range(take(0, 64)):
        n, voids, depth, width = take(at, 16), take(at + 16, 16), take(at + 32, 8), take(at + 40, 8)
        entries_at = at + 128 + -(-(256 + n) // 64) * 64
        voids_at = entries_at + -(-n * width // 64) * 64
        buckets, bit, entry = [], at + 128, entries_at
        for _bucket in range(256):
            buckets.append([])
            while take(bit, 1):
                buckets[-1].append(take(entry, width))
                bit, entry = bit + 1, entry + width
            bit += 1
        pages.append((depth, width, buckets, [take(voids_at + 16 * i, 16) for i in range(voids)]))
        at = voids_at + -(-voids // 4) * 64
    return pages


def answer(pages, h):
    """What a filter with these pages says of a hash."""
    place = 0
    for page in pages:
        if h >> (64 - page[0]) << (32 - page[0]) == place:
            break
        place += 1 << (32 - page[0])
    depth, width, buckets, voids = page
    rest = h << depth & (1 << 64) - 1
    bucket, wanted = rest >> 56, (rest << 8 & (1 << 64) - 1) >> (64 - width)
    for value in buckets[bucket]:
        known = (value & -value) << 1  # the lowest one ends the fingerprint
        if value // known == wanted // known:
            return True
    return any(item >> 8 >= 8 or (item & 255 ^ bucket) >> (item >> 8) == 0 for item in voids)


@pytest.mark.parametrize("by_processor", [True, False])
@pytest.mark.parametrize(
    ("fpr", "n_keys"), [(0.9, 3000), (0.9, 40), (0.5, 20_000), (0.01, 5000), (1e-9, 700), (0.3, 0)]
)
def test_answers_are_those_of_the_documented_layout(fpr, n_keys, by_processor):
    try:
        if select_by_processor(by_processor) != by_processor:
            pytest.skip("this processor does not select by itself")
        rng = np.random.default_rng(n_keys)
        f = dlbf.GrowingFilter(fpr, 1)
        # Some in few pages, so that entries lose all their bits; some in few buckets, so that these are full.
        near = np.concatenate([crowded(n_keys // 2, 1), rng.integers(0, 1 << 64, n_keys // 4, dtype=np.uint64)])
        full = rng.integers(0, 1 << 46, min(n_keys // 4, 300), dtype=np.uint64) | np.uint64(0xABC << 52)
        keys = np.concatenate([near, full])
        for part in np.array_split(keys, 5):
            f.add_hashes(hashes(part))
        f.remove_hashes(hashes(keys[::7]))
        pages = decoded(f.to_bytes())
        asked = np.concatenate([keys, crowded(2000, 2), rng.integers(0, 1 << 64, 3000, dtype=np.uint64)])
        asked = np.concatenate([asked, full ^ rng.integers(0, 1 << 53, full.size, dtype=np.uint64)])
        found = f.contains_hashes(hashes(asked))
        assert found.tolist() == [answer(pages, h) for h in asked.tolist()]
        # One key at a time goes another way.
        urls = url_keys(300, seed=3)
        f.update(urls[:100])
        assert [key in f for key in urls] == f.contains_many(urls).tolist()
        assert f.contains_many(urls[:100]).all()
    finally:
        select_by_processor(True)


# --- growing


def test_rate_holds_at_every_doubling_and_the_bits_stay():
    f = dlbf.GrowingFilter(0.01, 1000)
    absent = dlbf.hash_keys(np.arange(10**9, 10**9 + 300_000))
    n = 0
    sizes = []
    for target in [1000 * 2**i for i in range(10)] + list(range(600_000, 1_000_001, 100_000)):
        f.update(np.arange(n, target))
        n = target
        rate = f.contains_hashes(absent).mean()
        assert rate <= 1.1 * 0.01
        assert rate == pytest.approx(f.expected_fpr, rel=0.15, abs=0.0003)
        if n > 500_000:
            sizes.append(f.bits_per_key)
    assert f.contains_many(np.arange(n)).all()
    assert np.mean(sizes) <= 15
    assert len(f) == f.approximate_count() == n


@pytest.mark.parametrize("fpr", [0.9, 0.1, 0.001, 1e-6, 1e-9])
def test_promised_rate_of_any_growth_stays_below_the_target(fpr):
    lengths = fingerprint_lengths(fpr, 3)
    assert len(lengths) == 33
    assert all(after >= before - 1 for before, after in itertools.pairwise(lengths[3:]))
    # Pages of depth 20 hold 200 million keys; 64 bits of hash do not give 1e-9 for 2**32 pages.
    spent = 1.5 * 2.0 ** -lengths[3] + sum(0.75 * 2.0**-length for length in lengths[4:21])
    assert spent <= fpr * 1.0001
    f = dlbf.GrowingFilter(fpr, 10)
    f.update(KEYS)
    assert f.contains_many(KEYS).all()
    assert f.expected_fpr <= fpr


@pytest.mark.parametrize("seed", [1, 2])
def test_entries_without_bits_are_kept_and_removed_from_every_page_that_has_them(seed):
    f = dlbf.GrowingFilter(0.9, 1)
    keys = crowded(90_000, seed)
    f.add_hashes(hashes(keys[:400]))
    f.add_hashes(hashes(keys[400:]))
    entries, void_keys, *_ = f._figures()
    assert void_keys > 300  # the first generation, and more
    assert entries + round(void_keys) == len(keys)
    assert f._figures()[4] > 14  # some are in several pages
    assert f.contains_hashes(hashes(keys)).all()
    order = np.random.default_rng(seed).permutation(len(keys))
    for part in np.array_split(order, 7):
        f.remove_hashes(hashes(keys[part]))
        order = order[len(part) :]
        assert f.contains_hashes(hashes(keys[order])).all()
        assert len(f) == len(order)
    assert f._figures()[:3] == (0, 0.0, 0.0)
    assert not f.contains_hashes(hashes(keys)).any()


def test_keys_come_and_go_while_it_grows():
    rng = np.random.default_rng(5)
    f = dlbf.GrowingFilter(0.02, 50)
    here = np.array([], dtype=np.int64)
    for turn in range(12):
        new = np.arange(turn * 10_000, turn * 10_000 + 5000)
        f.update(new)
        here = rng.permutation(np.concatenate([here, new]))
        gone, here = here[:2000], here[2000:]
        removed = f.remove_many(gone)
        assert f.contains_many(here).all()
        assert removed.mean() > 0.9
    assert len(f) == len(here)
    assert f.expected_fpr <= 0.02


class AgainstCounter(RuleBasedStateMachine):
    """A multiset of few, badly spread hashes: collisions, splits and void entries in every run."""

    def __init__(self):
        super().__init__()
        self.f = dlbf.GrowingFilter(0.9, 1)
        self.here = Counter()
        self.seed = 0

    @rule(n=st.integers(1, 900), spread=st.integers(3, 20))
    def add(self, n, spread):
        self.seed += 1
        new = crowded(n, self.seed, 2) >> np.uint64(64 - spread - 2) << np.uint64(64 - spread - 2)
        new = [value for value in new.tolist() if self.here[value] < 5]
        new = list(dict.fromkeys(new))
        self.f.add_hashes(hashes(new))
        self.here.update(new)

    @rule(share=st.floats(0, 1))
    def remove(self, share):
        self.seed += 1
        all_here = sorted(self.here.elements())
        chosen = np.random.default_rng(self.seed).permutation(len(all_here))[: int(share * len(all_here))]
        gone = [all_here[i] for i in chosen]
        self.f.remove_hashes(hashes(gone))
        self.here -= Counter(gone)

    @rule()
    def through_bytes(self):
        back = dlbf.GrowingFilter.from_bytes(self.f.to_bytes())
        assert back == self.f
        self.f = back

    @rule()
    def copied(self):
        before, self.f = self.f, self.f.copy()
        before.clear()
        assert len(before) == 0

    @invariant()
    def holds_what_was_added(self):
        assert len(self.f) == sum(self.here.values())
        assert self.f.approximate_count() == len(self.f)
        assert self.f.contains_hashes(hashes(list(self.here))).all()


TestAgainstCounter = AgainstCounter.TestCase
TestAgainstCounter.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_one_key_again_and_again():
    f = dlbf.GrowingFilter(0.01)
    f.update([b"same"] * 500)
    f.update(KEYS)
    assert b"same" in f
    with pytest.raises(dlbf.FilterFullError, match="nothing was lost"):
        f.update([b"same"] * 500)
    n = len(f)
    for _ in range(n - len(KEYS)):
        f.remove(b"same")
    assert len(f) == len(KEYS)
    assert f.contains_many(KEYS).all()


def test_remove_says_what_it_did():
    f = loaded()
    assert f.remove(KEYS[0]) is True
    with pytest.raises(KeyError):
        f.remove(KEYS[0])
    assert f.discard(KEYS[0]) is False
    f.add(KEYS[1])
    assert f.remove(KEYS[1]) is False
    assert f.remove(KEYS[1]) is True


# --- what it is


def test_filter_tells_about_itself():
    f = dlbf.GrowingFilter()
    assert (len(f), f.fill, f.expected_fpr, f.capacity, f.fpr_target) == (0, 0, 0, 1000, 0.01)
    f.update(KEYS)
    assert repr(f) == f"<GrowingFilter: 3000 keys, {f.nbytes} bytes>"
    assert 0 < f.fill < 1
    small = f.nbytes
    f.remove_many(KEYS)
    assert f.nbytes < small / 2
    f.clear()
    assert f == dlbf.GrowingFilter()


@pytest.mark.parametrize("arguments", [(1e-10,), (0,), (1,), (0.01, 0), (0.01, 1 << 40)])
def test_arguments_out_of_range_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        dlbf.GrowingFilter(*arguments)


def test_hashes_keys_secrets_and_ids():
    by_key, by_hash = loaded(secret=SECRET, filter_id=7), dlbf.GrowingFilter(0.01, 100, secret=SECRET, filter_id=7)
    by_hash.add_hashes(dlbf.hash_keys(KEYS, SECRET))
    assert by_hash == by_key
    one_by_one = dlbf.GrowingFilter(0.01, 100, secret=SECRET, filter_id=7)
    for key in KEYS:
        one_by_one.add(key)
    assert one_by_one == by_key
    assert loaded() != by_key
    assert [key in by_key for key in OTHERS] == by_key.contains_many(OTHERS).tolist()
    with pytest.raises(dlbf.DlbfError, match=r"cannot be united.*add_hashes"):
        by_key | by_hash
    with pytest.raises(dlbf.DlbfError, match="cannot be united"):
        by_key |= by_hash


def test_readers_see_every_key_while_another_thread_makes_it_grow():
    f = loaded()
    stop = threading.Event()
    missed = []

    def ask():
        while not stop.is_set():
            missed.append(not f.contains_many(KEYS).all() or any(key not in f for key in KEYS[:200]))

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(8):
        new = np.arange(turn * 5000, turn * 5000 + 5000)
        f.update(new)
        f.remove_many(new)
    stop.set()
    for reader in readers:
        reader.join()
    assert missed
    assert not any(missed)
    assert len(f) == len(KEYS)


def test_closed_filter_refuses():
    f = loaded()
    f.close()
    assert f.nbytes == 0
    with pytest.raises(ValueError, match="closed"):
        KEYS[0] in f  # noqa: B015
    with pytest.raises(ValueError, match="closed"):
        f.to_bytes()
    with pytest.raises(ValueError, match="closed"):
        f.expected_fpr  # noqa: B018


# --- bytes


def test_golden_bytes():
    f = dlbf.GrowingFilter(0.9, 1)
    f.add_hashes(hashes(crowded(3000, 9)))
    f.remove_hashes(hashes(crowded(3000, 9)[:100]))
    assert f._figures()[1] > 10
    assert f.to_bytes() == GOLDEN.read_bytes()
    back = dlbf.GrowingFilter.from_bytes(GOLDEN.read_bytes())
    assert back == f
    back.add_hashes(hashes(crowded(5000, 10)))
    assert back.contains_hashes(hashes(crowded(5000, 10))).all()


def test_filter_goes_through_bytes_pickle_and_copy():
    f = loaded(secret=SECRET)
    for back in (dlbf.GrowingFilter.from_bytes(f.to_bytes(), SECRET), pickle.loads(pickle.dumps(f)), f.copy()):
        assert back == f
        assert back.contains_many(KEYS).all()
        back.update(OTHERS)
        assert back.contains_many(KEYS + OTHERS).all()
        assert len(f) == 3000
        assert back != f
    with pytest.raises(ValueError, match="secret"):
        dlbf.GrowingFilter.from_bytes(f.to_bytes())


def test_file_is_mapped_read_in_another_process_and_not_changed_in_place(tmp_path):
    path = tmp_path / "f.dlbf"
    f = loaded()
    f.save(path)
    with dlbf.open_filter(path) as mapped:
        assert mapped == f
        assert mapped.contains_many(KEYS).all()
        assert KEYS[0] in mapped
        with pytest.raises(dlbf.ReadOnlyError, match=r"filter\.copy\(\)"):
            mapped.add(b"new")
        with pytest.raises(dlbf.ReadOnlyError):
            mapped.remove_many(KEYS)
        changed = mapped.copy()
        changed.add(b"new")
    assert b"new" in changed
    with pytest.raises(dlbf.DlbfError, match=r"cannot be changed in its file; use .*from_bytes"):
        dlbf.open_filter(path, "r+")
    code = f"import dlbf; f = dlbf.open_filter({str(path)!r}); print(len(f), {KEYS[5]!r} in f, b'no' in f)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3000", "True", "False"]


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path):
    f = dlbf.GrowingFilter(0.01, 10)
    f.update(KEYS[:20])
    whole = f.to_bytes()
    for n in range(len(whole)):
        with pytest.raises(dlbf.FormatError):
            dlbf.GrowingFilter.from_bytes(whole[:n])
    path = tmp_path / "f.dlbf"
    for at in range(8 * len(whole)):
        raw = bytearray(whole)
        raw[at // 8] ^= 1 << at % 8
        with pytest.raises((dlbf.FormatError, ValueError)):
            dlbf.GrowingFilter.from_bytes(raw)
        if at % 37 == 0:
            path.write_bytes(raw)
            with pytest.raises((dlbf.FormatError, ValueError)):
                dlbf.open_filter(path)


def test_forged_contents_are_refused_or_harmless():
    f = dlbf.GrowingFilter(0.9, 1)
    f.add_hashes(hashes(crowded(1500, 4)))
    params, payload, n_items = f._snapshot(bytearray)
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(400):
        raw = bytearray(payload)
        for _ in range(rng.integers(1, 4)):
            raw[rng.integers(0, len(raw)) if rng.random() < 0.5 else rng.integers(0, 64)] ^= 1 << int(
                rng.integers(0, 8)
            )
        forged = format.pack(format.Header(34, len(raw), params, n_items, 1, 0), raw)
        try:
            back = dlbf.GrowingFilter.from_bytes(forged)
        except dlbf.FormatError:
            refused += 1
            continue
        back.contains_many(KEYS)
        back.update(KEYS)
        back.remove_many(OTHERS)
        assert back.contains_many(KEYS[:0]).tolist() == []
    assert refused > 130


def test_forged_parameters_are_refused():
    f = loaded()
    params, payload, n_items = f._snapshot(bytearray)
    for at, value in ((1, 0), (1, 2**63), (3, 32), (3, 60), (4, 8), (4, len(payload) + 8), (5, 1)):
        wrong = [*params, 0]
        wrong[at] = value
        header = format.Header(34, len(payload), tuple(wrong), n_items, 1, 0)
        with pytest.raises(dlbf.FormatError):
            dlbf.GrowingFilter.from_bytes(format.pack(header, payload))
