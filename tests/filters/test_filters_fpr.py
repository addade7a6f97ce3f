"""Measured false-positive rates, sizes, and the deletable share of the DlBF paper."""

import lzma
import math
import random

import pytest
from support.samples import SECRET, url_keys

import dlbf
from dlbf import geometry

FPRS = (0.05, 0.01, 0.001)
CLASSES = {
    "bloom": dlbf.BloomFilter,
    "bloom-blocked": lambda n, fpr, **more: dlbf.BloomFilter(n, fpr, layout="blocked", **more),
    "counting-2": lambda n, fpr, **more: dlbf.CountingBloomFilter(n, fpr, counter_bits=2, **more),
    "counting-4": dlbf.CountingBloomFilter,
    "counting-8": lambda n, fpr, **more: dlbf.CountingBloomFilter(n, fpr, counter_bits=8, **more),
    "counting-blocked": lambda n, fpr, **more: dlbf.CountingBloomFilter(n, fpr, layout="blocked", **more),
    "deletable": dlbf.DeletableBloomFilter,
    "dleft": dlbf.DLeftFilter,
    "cuckoo": dlbf.CuckooFilter,
}
Z = 3.29  # two-sided 99.9 %


def bounds(rate: float, n_queries: int) -> tuple[float, float]:
    """The 99.9 % binomial interval of a share measured with ``n_queries`` (normal approximation; at least 100 hits)."""
    assert rate * n_queries >= 100
    width = Z * math.sqrt(rate * (1 - rate) / n_queries)
    return rate - width, rate + width


@pytest.fixture(scope="module")
def absent() -> list[bytes]:
    return url_keys(500_000, seed=77)


@pytest.fixture(scope="module", params=[100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def present(request) -> list[bytes]:
    return url_keys(request.param, seed=3)


@pytest.mark.parametrize("fpr", FPRS)
@pytest.mark.parametrize("name", CLASSES)
def test_fpr_at_capacity_is_the_one_asked_for(name, fpr, present, absent):
    f = CLASSES[name](len(present), fpr)
    f.update(present)
    assert f.contains_many(present).all()
    measured = f.contains_many(absent).mean()
    low, high = bounds(fpr, len(absent))
    assert measured <= high
    if name.startswith(("bloom", "counting")):
        # These deliver what was asked and no more.  The filter itself is random too: at 1e5 keys its
        # fill of one half varies by 0.0003, its rate by a relative 0.0005 k, far inside the interval.
        assert measured >= low
    expected_low, expected_high = bounds(f.expected_fpr, len(absent))
    # d-left and cuckoo round their fingerprints up to whole bits and are better than asked; theory knows by how much.
    assert expected_low <= measured <= expected_high


@pytest.mark.parametrize("name", CLASSES)
def test_fpr_with_a_secret_and_a_filter_id_is_the_same(name, absent):
    f = CLASSES[name](100_000, 0.01, secret=SECRET, filter_id=5)
    keys = url_keys(100_000, seed=4)
    f.update(keys)
    assert f.contains_many(keys).all()
    assert f.contains_many(absent).mean() <= bounds(0.01, len(absent))[1]


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"bloom", "bloom-blocked", "deletable"}))
def test_fpr_after_churn_is_the_one_asked_for(name, absent):
    # Half of the keys go and others come, five times; the rate must not creep up.  2-bit counters do creep,
    # by design: one in 29 saturates per filling, and that is measured elsewhere.
    f = CLASSES[name](20_000, 0.01)
    keys = url_keys(70_000, seed=5)
    f.update(keys[:20_000])
    for i in range(5):
        f.remove_many(keys[10_000 * i : 10_000 * (i + 1)])
        f.update(keys[20_000 + 10_000 * i : 30_000 + 10_000 * i])
    assert f.contains_many(keys[50_000:]).all()
    if name != "counting-2":
        assert f.contains_many(absent).mean() <= bounds(0.01, len(absent))[1] * (1 + 5e-3)
        f.remove_many(keys[50_000:])
        # An occasional pair of equal fingerprints or a saturated d-left counter may stay.
        assert f.contains_many(absent).mean() < 1e-4
    assert len(f) in (0, 20_000)


def test_fpr_small_filters_equal_the_exact_formula():
    # 240 cells, 22 keys, 5 probes: 4,000 filters of 250 queries.  Queries to one filter share its luck; the variance of
    # a filter's own rate p is below p, so the standard error is at most sqrt(p (1/4000 + 1/1e6)): 0.0014 at p = 0.008.
    hits = 0
    for i in range(4000):
        f = dlbf.BloomFilter(bits=240, hashes=5)
        f.update([b"%d:%d" % (i, j) for j in range(22)])
        hits += int(f.contains_many([b"%d?%d" % (i, j) for j in range(250)]).sum())
    assert hits / 1e6 == pytest.approx(geometry.cell_fpr(22, 240, 5), abs=Z * 0.0002)


@pytest.mark.parametrize("n", [100_000, 1_000_000])
def test_size_of_tables_against_4_bit_counters(n):
    counters = dlbf.CountingBloomFilter(n, 0.01).nbytes
    assert dlbf.DLeftFilter(n, 0.01).nbytes <= 0.55 * counters
    assert dlbf.CuckooFilter(n, 0.01).nbytes <= 0.35 * counters


def test_counters_at_capacity_saturate_as_documented():
    f = dlbf.CountingBloomFilter(100_000, 0.01, counter_bits=2)
    f.update(url_keys(100_000, seed=3))
    # Counts are Poisson with mean k n / m.  959,000 counters, 36,000 of them saturated: 3 % are 5 standard errors.
    mean = f.hashes * 100_000 / f.counters
    expected = 1 - math.exp(-mean) * (1 + mean + mean**2 / 2)
    assert f.saturated == pytest.approx(expected, rel=0.03)
    assert round(1 / f.saturated) in (26, 27)
    f = dlbf.CountingBloomFilter(100_000, 0.01)
    f.update(url_keys(100_000, seed=3))
    assert f.saturated == 0


def deletable_share(words: list[str], n_filters: int, seed: int) -> float:
    """The share of keys that could be forgotten, and a check that nothing else is."""
    rng = random.Random(seed)
    deletable = 0
    for i in range(n_filters):
        keys = rng.sample(words, 22)
        f = dlbf.DeletableBloomFilter(bits=240, hashes=5, regions=24)
        f.update(keys)
        assert f.contains_many(keys).all()
        deletable += sum(map(f.is_removable, keys))
        if i % 10 == 0:
            # Forget them one by one: who is left stays found.
            for j, key in enumerate(keys):
                assert f.remove(key) is (key not in f)
                assert f.contains_many(keys[j + 1 :]).all()
    return deletable / (22 * n_filters)


def test_deletable_share_of_made_up_words():
    # 2,000 filters: keys of a filter share its luck, so at most 2,000 independent shares with a deviation below
    # 0.25 each: standard error below 0.006.
    rng = random.Random(1)
    words = list({"".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 14))) for _ in range(20_000)})
    words.sort()
    share = deletable_share(words, 2000, seed=2)
    assert share == pytest.approx(0.80, abs=0.03)


@pytest.mark.data
def test_deletable_share_of_dictionary_words(data_dir):
    path = data_dir / "words.english-insane.txt.xz"
    if not path.exists():
        pytest.skip(f"no {path.name} in DLBF_DATA")
    words = lzma.decompress(path.read_bytes()).decode().split("\n")[:-1]
    share = deletable_share(words, 2000, seed=3)
    assert share == pytest.approx(0.80, abs=0.03)
