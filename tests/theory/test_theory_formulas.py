"""Closed forms: against enumeration, simulation and the published numbers."""

import doctest
import importlib
import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

import dlbf
from dlbf import theory
from dlbf.geometry import cell_fpr, cuckoo_bucket_bits, cuckoo_geometry, dleft_geometry
from dlbf.theory.costs import base_cost, base_costs


@pytest.mark.parametrize(
    ("n_bits", "hashes", "n_keys"), [(m, k, n) for m in range(1, 7) for k in range(1, 4) for n in range(5)]
)
def test_exact_bloom_fpr_small_equals_enumeration(n_bits, hashes, n_keys):
    # Of all m^(kn) ways to throw, count how many bits are set; a stranger then passes with (set/m)^k.  Throws are
    # added one at a time to a table {bitmap: ways}, which enumerates every sequence without listing each.
    ways = {0: 1}
    for _ in range(n_keys * hashes):
        after: dict[int, int] = {}
        for bitmap, number in ways.items():
            for bit in range(n_bits):
                after[bitmap | 1 << bit] = after.get(bitmap | 1 << bit, 0) + number
        ways = after
    passing = 0
    for bitmap, number in ways.items():
        hits = sum(all(bitmap >> bit & 1 for bit in probe) for probe in itertools.product(range(n_bits), repeat=hashes))
        passing += number * hits
    expected = Fraction(passing, n_bits ** (n_keys * hashes + hashes))
    assert theory.exact_bloom_fpr(n_keys, n_bits, hashes) == expected


def test_exact_bloom_fpr_at_240_bits_equals_simulation():
    # 200,000 filters of m=240, k=5, n=22; a stranger passes one with (set bits / m)^k, so the mean of that is the rate.
    # Five standard errors of the mean, from the sample itself: about 0.25 % of the rate.
    rng = np.random.default_rng(240)
    passing = []
    for _ in range(20):
        bits = np.zeros((10_000, 240), dtype=bool)
        np.put_along_axis(bits, rng.integers(0, 240, (len(bits), 110)), True, axis=1)
        passing.append((bits.sum(axis=1) / 240) ** 5)
    sample = np.concatenate(passing)
    margin = 5 * sample.std() / math.sqrt(len(sample))
    assert abs(sample.mean() - float(theory.exact_bloom_fpr(22, 240, 5))) < margin
    # The same test tells the textbook formula, 1.5 % lower, from the truth.
    assert abs(sample.mean() - (1 - (1 - 1 / 240) ** 110) ** 5) > 3 * margin


def test_exact_bloom_fpr_equals_the_floating_rate_of_the_filters():
    for n_keys, n_bits, hashes in [(22, 240, 5), (100, 960, 7), (10, 64, 4)]:
        exact = float(theory.exact_bloom_fpr(n_keys, n_bits, hashes))
        assert cell_fpr(n_keys, n_bits, hashes) == pytest.approx(exact, rel=1e-9)


def test_counting_deletability_equals_one_minus_rate_of_the_rest():
    assert theory.counting_deletability(1, 400, 4, 3) == 1.0
    found = theory.counting_deletability(1000, 38_400, 4, 7)
    assert found == pytest.approx(1 - (1 - (1 - 1 / 9600) ** (7 * 999)) ** 7, rel=1e-12)


def test_dlbf_deletability_reference_theory_and_simulation():
    assert theory.dlbf_deletability(22, 240, 5, 24, as_published=True) == pytest.approx(0.932, abs=1e-3)
    # Published simulation: about 0.80.  Ours: 4,000 filters of 22 keys; sd of a mean of dependent keys is below
    # sqrt(0.16 / 4000) = 0.0063 even if all keys of a filter share one fate.  The published theory is 20 sd off.
    rng = np.random.default_rng(93)
    free = 0
    for _ in range(4000):
        probes = rng.integers(0, 216, (22, 5))
        counts = np.bincount(probes.ravel(), minlength=216)
        clean = (counts <= 1).reshape(24, 9).all(axis=1)
        free += int(clean[probes // 9].any(axis=1).sum())
    assert free / 88_000 == pytest.approx(0.80, abs=0.02)
    assert free / 88_000 == pytest.approx(theory.dlbf_deletability(22, 240, 5, 24), abs=0.02)


def test_published_splits_of_the_worked_example():
    initial, backup = theory.slbf_2cbf_split(0.01, 0.5, 20, counter_bits=2)
    assert (initial, backup) == (pytest.approx(10.436, abs=5e-4), pytest.approx(9.564, abs=5e-4))
    # The printed 4.782 is that of one-bit cells.
    assert theory.slbf_2cbf_split(0.01, 0.5, 20, counter_bits=1)[1] == pytest.approx(4.782, abs=5e-4)
    assert theory.lbf_2cbf_split(0.01, 0.5, 20, counter_bits=2) == (
        pytest.approx(14.782, abs=5e-4),
        pytest.approx(5.218, abs=5e-4),
    )


@pytest.mark.parametrize(
    ("model_fpr", "model_fnr", "limit", "printed"), [(0.005, 0.55, 23.3, 5.83), (0.001, 0.76, 36.4, 9.10)]
)
def test_feasibility_limits_with_four_bit_counters_are_not_the_printed_ones(model_fpr, model_fnr, limit, printed):
    assert theory.slbf_2cbf_split(model_fpr, model_fnr, 1, 4)[1] == pytest.approx(limit, abs=0.05)
    assert theory.slbf_2cbf_split(model_fpr, model_fnr, 1, 1)[1] == pytest.approx(printed, abs=0.01)


def test_bodega_rates_without_and_with_an_adversary():
    assert theory.bodega_fpr(0.25, 0.1, 0.02) == pytest.approx(0.25 * 0.1 + 0.75 * 0.02)
    ordinary = theory.bodega_fpr(0.25, 0.1, 0.02)
    assert theory.hybrid_fpr(0.25, 0.1, 0.02, 0, 0) == ordinary
    assert theory.hybrid_fpr(0.25, 0.1, 0.02, 1, 0) == 0.1
    assert theory.hybrid_fpr(0.25, 0.1, 0.02, 0, 1) == 0.02
    assert theory.hybrid_fpr(0.25, 0.1, 0.02, 0.3, 0.2) == pytest.approx(0.03 + 0.004 + 0.5 * ordinary)


def test_three_filter_rates_at_the_corners():
    assert theory.lbf_3sbf_rates(0.01, 0.5, 0.1, 0, 0) == (pytest.approx(0.01 + 0.99 * 0.1), 0)
    assert theory.lbf_3sbf_rates(0.01, 0.5, 0.1, 1, 1) == (0, 1)


def test_saved_bits_are_kl_times_cell_bits_over_ln2_squared():
    keys, queries = [0.5, 0.5], [0.99, 0.01]
    plain = theory.allocate([1], [1], [theory.cell_cost(4)], fpr=0.001).bits
    learned = theory.allocate(keys, queries, [theory.cell_cost(4)], fpr=0.001).bits
    assert plain - learned == pytest.approx(theory.saved_bits(keys, queries, 4), rel=1e-12)
    # 2.08 bits per nat for bits, 8.3 for four-bit counters.
    assert theory.saved_bits(keys, queries, 1) / theory.kl_divergence(keys, queries) == pytest.approx(2.08, abs=2e-3)
    assert theory.kl_divergence([1, 0], [0, 1]) == math.inf


@pytest.mark.parametrize("fpr", [0.28, 0.2, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-6])
def test_fingerprint_costs_run_through_the_steps_of_the_real_tables(fpr):
    n_keys = 10**6
    cuckoo = cuckoo_geometry(n_keys, fpr)
    built = cuckoo.n_buckets * cuckoo_bucket_bits(cuckoo.n_prefixes, cuckoo.suffix_bits) / n_keys
    assert min(line.bits(fpr) for line in base_costs("cuckoo")) == pytest.approx(built, abs=0.2)
    dleft = dleft_geometry(n_keys, fpr)
    cells = dleft.n_tables * dleft.n_buckets * dleft.bucket_cells
    built = cells * (dleft.remainder_bits + dleft.counter_bits) / n_keys
    assert base_cost("d-left").bits(fpr) == pytest.approx(built, abs=1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.exact_bloom_fpr(-1, 8, 2), "n_keys: expected an integer >= 0, found -1"),
        (lambda: theory.exact_bloom_fpr(1, 8.0, 2), "n_bits: expected an integer"),
        (lambda: theory.exact_bloom_fpr(1, 8, True), "hashes: expected an integer"),
        (lambda: theory.counting_deletability(0, 8, 4, 2), "n_keys"),
        (lambda: theory.dlbf_deletability(4, 8, 2, 7), "n_bits: expected an integer >= 9, found 8"),
        (lambda: theory.slbf_2cbf_split(0, 0.5, 20), "model_fpr: expected 0 < x < 1, found 0"),
        (lambda: theory.lbf_3sbf_rates(0.1, 0.5, 2, 0, 0), "member: expected 0 <= x <= 1, found 2"),
        (lambda: theory.hybrid_fpr(0.1, 0.1, 0.1, 0.7, 0.7), "share_high \\+ share_low <= 1"),
        (lambda: theory.cell_cost(0), "cell_bits: expected a finite number > 0, found 0"),
        (lambda: theory.fingerprint_cost("x", 1.5, 3, 0.5), "load: expected 0 < load <= 1, found 1.5"),
        (lambda: theory.base_cost("quotient"), "base: expected one of .*cuckoo.*, found 'quotient'"),
        (lambda: theory.Cost("x", -1), "slope of 'x'"),
        (lambda: theory.Cost("x", 1, 0, 2), "max_fpr of 'x'"),
        (lambda: theory.cell_cost(1).bits(0), "rate of 'bits'"),
    ],
)
def test_nonsense_input_is_a_value_error_that_says_what_was_found(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    "module", ["allocation", "costs", "designs", "formulas", "planner", "shares", "thresholds", "three_filter"]
)
def test_docstring_examples_are_true(module):
    assert doctest.testmod(importlib.import_module(f"dlbf.theory.{module}")).failed == 0


def test_dlbf_under_churn_follows_a_filter_whose_keys_are_exchanged():
    n_keys, rng = 4000, random.Random(1)
    turnovers = (0, 0.25, 1)
    expected = theory.dlbf_under_churn(12, 7, 9, turnovers)
    filled = dlbf.DeletableBloomFilter(bits=12 * n_keys, hashes=7, regions=12 * n_keys // 10)
    live = [b"key %d" % number for number in range(n_keys)]
    filled.update(live)
    asked = [b"asked %d" % number for number in range(100_000)]
    fresh, now = n_keys, 0.0
    for law in expected:
        for _ in range(round((law.turnover - now) * n_keys)):
            place = rng.randrange(n_keys)
            filled.discard(live[place])
            live[place] = b"key %d" % fresh
            fresh += 1
            filled.add(live[place])
        now = law.turnover
        removable = sum(filled.is_removable(key) for key in live) / n_keys
        # 4,000 keys: five standard errors are 0.04; the marked regions (4,800) vary by 0.03.
        assert removable == pytest.approx(law.removable, abs=0.05)
        assert filled.collided == pytest.approx(law.marked, abs=0.03)
        assert filled.contains_many(asked).mean() == pytest.approx(law.fpr, rel=0.2)
        assert filled.contains_many(live).all()
    assert [law.removable for law in expected] == sorted((law.removable for law in expected), reverse=True)


@pytest.mark.parametrize(
    "arguments", [(0, 5, 9, [0]), (12, 0, 9, [0]), (12, 5, 0, [0]), (12, 5, 9, [1, 0]), (12, 5, 9, [-1])]
)
def test_dlbf_under_churn_refuses_nonsense(arguments):
    with pytest.raises(ValueError, match="expected"):
        theory.dlbf_under_churn(*arguments)
