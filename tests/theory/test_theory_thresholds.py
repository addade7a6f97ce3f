"""Cutting the score into regions: against brute force, and against its own proof of optimality."""

import itertools
import math

import numpy as np
import pytest

from dlbf import theory
from dlbf.theory.costs import ALL, base_cost, cell_cost


def bins(rng, n_bins):
    return rng.dirichlet(np.ones(n_bins)), rng.dirichlet(np.ones(n_bins))


def every_partition(n_bins, regions):
    for inner in range(regions):
        yield from itertools.combinations(range(1, n_bins), inner)


def gaussian_bins(n_bins):
    """Scores of keys around 2, of queries around 0."""
    edges = np.linspace(-6, 8, n_bins + 1)
    shares = []
    for centre, width in ((2, 1.2), (0, 1.0)):
        cumulative = np.array([0.5 * (1 + math.erf((edge - centre) / width / math.sqrt(2))) for edge in edges])
        shares.append(np.diff(cumulative) / (cumulative[-1] - cumulative[0]))
    return shares


@pytest.mark.parametrize("seed", range(20))
def test_best_thresholds_equal_brute_force(seed):
    rng = np.random.default_rng(seed)
    n_bins, regions = int(rng.integers(2, 10)), int(rng.integers(1, 5))
    keys, queries = bins(rng, n_bins)

    def gain(cuts):
        return theory.kl_divergence(theory.merge_shares(keys, cuts), theory.merge_shares(queries, cuts))

    found = theory.best_thresholds(keys, queries, regions)
    assert len(found) < regions
    assert gain(found) == pytest.approx(max(map(gain, every_partition(n_bins, regions))), rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("costs", [[cell_cost(1)], [ALL, base_cost("counters"), base_cost("cuckoo")]])
def test_cheapest_thresholds_lie_between_brute_force_and_the_bound(seed, costs):
    rng = np.random.default_rng(seed)
    n_bins, regions = int(rng.integers(3, 8)), int(rng.integers(2, 4))
    keys, queries = bins(rng, n_bins)
    targets = {"fpr": 10 ** rng.uniform(-3, -1), "deletability": float(rng.choice([0.0, 0.8]))}
    if seed % 2:
        targets = {"bits": float(rng.uniform(6, 12)), "deletability": targets["deletability"]}

    def value(found):
        return found.bits if "fpr" in targets else found.fpr

    best = min(
        value(found)
        for cuts in every_partition(n_bins, regions)
        if (
            found := theory.allocate(
                theory.merge_shares(keys, cuts), theory.merge_shares(queries, cuts), costs, **targets
            )
        ).feasible
    )
    found = theory.cheapest_thresholds(keys, queries, regions, costs, **targets)
    assert found.bound <= best * (1 + 1e-6)
    assert best * (1 - 1e-5) <= value(found.allocation)
    # It stops within 1e-4 of the bound.  With fixed prices there may be a gap between bound and optimum; on problems of
    # this size the cuts found are the best all the same.
    assert value(found.allocation) <= best * (1 + 1e-4)


@pytest.mark.parametrize(
    "targets",
    [
        {"fpr": 0.01},
        {"fpr": 0.01, "deletability": 0.9},
        {"fpr": 0.001, "adversarial_fpr": 0.1},
        {"bits": 6.0, "deletability": 0.5},
    ],
)
def test_cheapest_thresholds_on_a_thousand_bins_are_proven_optimal(targets):
    keys, queries = gaussian_bins(1000)
    found = theory.cheapest_thresholds(keys, queries, 8, [cell_cost(1)], query_floor=1e-6, **targets)
    value = found.allocation.bits if "fpr" in targets else found.allocation.fpr
    assert found.bound * (1 - 1e-9) <= value <= found.bound * (1 + 1e-4)
    plain = theory.best_thresholds(keys, queries, 8, 1e-6)
    kl_only = theory.allocate(
        theory.merge_shares(keys, plain), theory.merge_shares(queries, plain) + 1e-6, [cell_cost(1)], **targets
    )
    assert value < (kl_only.bits if "fpr" in targets else kl_only.fpr) * (1 - 1e-3)


def test_cheapest_thresholds_with_fingerprint_tables_are_within_one_percent_of_the_bound():
    keys, queries = gaussian_bins(500)
    costs = [ALL, base_cost("counters"), base_cost("d-left"), base_cost("cuckoo")]
    for targets in ({"fpr": 0.01}, {"fpr": 0.001, "deletability": 0.9}):
        found = theory.cheapest_thresholds(keys, queries, 8, costs, query_floor=1e-6, **targets)
        assert found.bound * (1 - 1e-9) <= found.allocation.bits <= 1.01 * found.bound


def test_query_floor_keeps_a_lucky_bin_from_looking_perfect():
    # The last bin holds one key in a thousand and no sampled query; with a floor it is not worth a region of its own.
    keys, queries = [0.3, 0.3, 0.399, 0.001], [0.6, 0.3, 0.1, 0.0]
    assert 3 in theory.best_thresholds(keys, queries, 2)
    assert 3 not in theory.best_thresholds(keys, queries, 2, query_floor=0.01)


def test_more_regions_than_bins_is_every_bin_on_its_own():
    assert theory.best_thresholds([0.1, 0.2, 0.7], [0.7, 0.2, 0.1], 16) == (1, 2)


def test_shares_from_scores_agree_with_the_edges():
    rng = np.random.default_rng(5)
    key_scores, query_scores = rng.normal(300, 100, 5000).astype(int), rng.normal(0, 120, 7000).astype(int)
    for max_bins in (1, 2, 16, 5000):
        keys, queries, edges = theory.shares_from_scores(key_scores, query_scores, max_bins=max_bins)
        assert len(keys) == len(queries) == len(edges) + 1 <= max_bins
        counted = np.bincount(np.searchsorted(edges, key_scores, side="right"), minlength=len(keys))
        assert np.allclose(counted / 5000, keys)
        assert queries.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.best_thresholds([1], [1], 0), "regions: expected an integer >= 1, found 0"),
        (lambda: theory.best_thresholds([1], [1], 1, -1), "query_floor: expected a finite share >= 0, found -1"),
        (lambda: theory.merge_shares([0.5, 0.5], [2]), "cuts: expected increasing inner edges"),
        (lambda: theory.shares_from_scores([], [1]), "found 0 and 1"),
        (lambda: theory.shares_from_scores([1], [1], max_bins=0), "max_bins: expected at least 1, found 0"),
    ],
)
def test_nonsense_input_is_a_value_error_that_says_what_was_found(call, words):
    with pytest.raises(ValueError, match=words):
        call()
