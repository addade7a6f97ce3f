"""The planner: published numbers, equal designs, feasibility, and every design at every kind of target."""

import itertools
import json
import math

import numpy as np
import pytest

from dlbf import theory
from dlbf.theory import DESIGNS, plan

MODEL = {"model_fpr": 0.01, "model_fnr": 0.5}
SHARES = {
    "key_shares": [0.05, 0.05, 0.1, 0.2, 0.3, 0.3],
    "query_shares": [0.6, 0.2, 0.1, 0.05, 0.04, 0.01],
}


def test_worked_example_lbf_2cbf():
    found = plan("lbf-2cbf", bits_per_key=20, counter_bits=2, **MODEL)
    shares = [region.key_share * region.member.bits_per_key for region in found.regions]
    assert shares == [pytest.approx(14.782, abs=5e-4), pytest.approx(5.218, abs=5e-4)]
    assert found.fpr == pytest.approx(0.00163, abs=5e-6)


def test_worked_example_slbf_2cbf():
    found = plan("slbf-2cbf", bits_per_key=20, counter_bits=2, **MODEL)
    low, high = found.regions
    assert low.key_share * low.member.bits_per_key == pytest.approx(9.564, abs=5e-4)
    assert high.member.base == "all"
    assert found.initial.bits_per_key == pytest.approx(10.436, abs=5e-4)
    assert found.fpr == pytest.approx(0.00163, abs=5e-6)
    assert found.fpr == pytest.approx(theory.ALPHA ** (found.initial.bits_per_key / 2) * 0.01 / 0.5, rel=1e-12)
    assert found.min_bits == pytest.approx(9.564, abs=5e-4)


def random_settings(count):
    rng = np.random.default_rng(7)
    for _ in range(count):
        yield {
            "model_fnr": float(rng.uniform(0.01, 0.99)),
            "model_fpr": float(10 ** rng.uniform(-4, -0.31)),
            "counter_bits": int(rng.choice([2, 4, 8])),
            "bits_per_key": float(rng.uniform(1, 80)),
        }


def test_two_region_counting_designs_are_equal_wherever_the_sandwich_is_feasible():
    compared = below = 0
    for setting in random_settings(4000):
        sandwich = plan("slbf-2cbf", **setting)
        sides = plan("lbf-2cbf", **setting)
        if setting["model_fnr"] >= 1 - setting["model_fpr"]:
            continue  # worse than guessing: the model is upside down
        limit = theory.slbf_2cbf_split(**{name: setting[name] for name in ("model_fpr", "model_fnr", "bits_per_key")},
                                       counter_bits=setting["counter_bits"])[1]  # fmt: skip
        assert sandwich.feasible == (setting["bits_per_key"] > limit)
        assert sandwich.min_bits == pytest.approx(limit, rel=1e-8)
        if sandwich.feasible:
            three = plan("slbf-3cbf", **setting)
            for other in (sandwich, three):
                assert other.fpr == pytest.approx(sides.fpr, rel=1e-9)
                assert 1 - other.deletability == pytest.approx(1 - sides.deletability, rel=1e-9)
                assert other.bits == pytest.approx(sides.bits, rel=1e-9)
            compared += 1
        else:
            counting = plan("counting", bits_per_key=setting["bits_per_key"], counter_bits=setting["counter_bits"])
            assert sides.fpr <= counting.fpr * (1 + 1e-9)
            below += 1
        if compared >= 1000 and below >= 300:
            break
    assert compared >= 1000
    assert below >= 300


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("quality", [MODEL, SHARES], ids=["rates", "shares"])
@pytest.mark.parametrize(
    "targets",
    [
        {"bits_per_key": 12},
        {"bits_per_key": 40, "deletability": 0.9},
        {"bits_per_key": 40, "adversarial_fpr": 0.2},
        {"fpr": 0.02},
        {"fpr": 0.02, "deletability": 0.9, "adversarial_fpr": 0.3},
    ],
    ids=["budget", "budget+D", "budget+A", "fpr", "fpr+D+A"],
)
def test_every_design_keeps_its_targets_or_says_why_not(design, quality, targets):
    found = plan(design, **quality, **targets)
    row = DESIGNS[design]
    assert found.design == design
    if not found.feasible:
        assert found.reason
        assert math.isnan(found.fpr)
        if "bits_per_key" in targets:
            assert found.min_bits > targets["bits_per_key"]
        return
    assert 0 <= found.fpr <= targets.get("fpr", 1) * (1 + 1e-9)
    assert found.bits <= targets.get("bits_per_key", math.inf) * (1 + 1e-9)
    assert found.deletability >= targets.get("deletability", 0) - 1e-9
    assert found.adversarial_fpr <= targets.get("adversarial_fpr", 1) * (1 + 1e-9)
    assert found.adversarial_fpr >= found.fpr * (1 - 1e-9)
    assert (found.fnr > 0) == row.false_negatives
    assert (found.deletability > 0) == row.deletable
    assert sum(region.key_share for region in found.regions) == pytest.approx(1)
    assert sum(region.query_share for region in found.regions) == pytest.approx(1)
    if row.regions:
        assert len(found.regions) == row.regions
    # The parts add up to the whole.
    total = found.initial.bits_per_key if found.initial else 0
    for region in found.regions:
        total += region.key_share * region.member.bits_per_key
        if region.deleted:
            total += found.deletions * region.key_share * region.deleted.bits_per_key
    assert total == pytest.approx(found.filter_bits, rel=1e-9)
    if not row.false_negatives:
        front = found.initial.fpr if found.initial else 1
        assert found.fpr == pytest.approx(front * sum(r.query_share * r.member.fpr for r in found.regions), rel=1e-9)


@pytest.mark.parametrize("design", [name for name, row in DESIGNS.items() if not row.false_negatives])
def test_a_larger_budget_is_never_worse(design):
    rates = [
        found.fpr
        for bits in np.linspace(1, 45, 23)
        if (found := plan(design, bits_per_key=float(bits), counter_bits=2, **SHARES)).feasible
    ]
    assert len(rates) > 5
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(rates))


@pytest.mark.parametrize(
    "design", ["slbf", "slbf-2cbf", "uptown", "lbf-2cbf", "cuckoo", "pddbf", "auto", "ada-cbf", "dlbf"]
)
def test_smallest_budget_is_the_edge_of_feasibility(design):
    targets = {"deletability": 0.6} if DESIGNS[design].deletable else {}
    least = plan(design, bits_per_key=0.05, **targets, **MODEL).min_bits
    assert 0 < least < 100
    assert plan(design, bits_per_key=least * 1.001, **targets, **MODEL).feasible
    assert not plan(design, bits_per_key=least * 0.999, **targets, **MODEL).feasible


def test_auto_is_never_worse_than_no_model_nor_than_any_deletable_design():
    rng = np.random.default_rng(11)
    for _ in range(25):
        n_regions = int(rng.integers(2, 7))
        quality = {"key_shares": rng.dirichlet(np.ones(n_regions)), "query_shares": rng.dirichlet(np.ones(n_regions))}
        target = {"fpr": float(10 ** rng.uniform(-4, -1)), "deletability": float(rng.choice([0.0, 0.9]))}
        model = float(rng.uniform(0, 4))
        auto = plan("auto", model_bits_per_key=model, **quality, **target)
        for other in ("counting", "cuckoo", "d-left", "lbf-2cbf", "plbf-cbf"):
            found = plan(other, model_bits_per_key=model, **quality, **target)
            assert auto.bits <= found.bits * (1 + 2e-6)


def test_auto_without_structure_uses_no_model():
    shares = [0.25] * 4
    found = plan("auto", key_shares=shares, query_shares=shares, fpr=0.01, model_bits_per_key=0.1)
    assert not found.learned
    assert found.model_bits == 0
    assert found.regions[0].member.base == "cuckoo"


def test_model_bits_are_part_of_the_budget():
    without = plan("lbf-2cbf", bits_per_key=20, **MODEL)
    with_model = plan("lbf-2cbf", bits_per_key=21.5, model_bits_per_key=1.5, **MODEL)
    assert with_model.fpr == pytest.approx(without.fpr)
    assert with_model.bits == pytest.approx(21.5)
    assert with_model.filter_bits == pytest.approx(20)
    too_small = plan("slbf-2cbf", bits_per_key=1, model_bits_per_key=1.5, **MODEL)
    assert not too_small.feasible
    assert too_small.min_bits == pytest.approx(19.128 + 1.5, abs=1e-3)


def test_many_score_bins_are_cut_into_few_regions():
    rng = np.random.default_rng(2)
    key_scores, query_scores = rng.normal(2, 1.2, 50_000), rng.normal(0, 1, 50_000)
    keys, queries, _ = theory.shares_from_scores(key_scores * 1000, query_scores * 1000, max_bins=300)
    common = {"key_shares": keys, "query_shares": queries, "query_floor": 2e-5, "fpr": 0.01}
    two = plan("lbf-2cbf", **common)
    many = plan("plbf-cbf", **common)
    assert len(two.cuts) == 1
    assert 2 < len(many.regions) <= 8
    assert many.bits < two.bits
    assert plan("plbf-cbf", max_regions=2, **common).bits <= two.bits * (1 + 1e-3)
    # The cut of the sandwich is the best one, or next to it.
    every = min(
        plan("slbf-2cbf", key_shares=theory.merge_shares(keys, [cut]), query_shares=theory.merge_shares(queries, [cut]),
             fpr=0.01).bits
        for cut in range(len(keys) // 3, len(keys))
        if plan("slbf-2cbf", key_shares=theory.merge_shares(keys, [cut]),
                query_shares=theory.merge_shares(queries, [cut]), fpr=0.01).feasible
    )  # fmt: skip
    assert plan("slbf-2cbf", **common).bits <= every * 1.002


def test_shared_array_with_whole_hashes_is_close_to_separate_filters():
    for target in ({"fpr": 0.01}, {"bits_per_key": 10}):
        shared, separate = plan("ada-bf", **target, **SHARES), plan("plbf", **target, **SHARES)
        if "fpr" in target:
            assert separate.bits <= shared.bits <= 1.05 * separate.bits
        else:
            assert separate.fpr <= shared.fpr <= 1.2 * separate.fpr
        fill = shared.regions[0].member.fpr ** (1 / shared.regions[0].member.hashes)
        assert all(r.member.fpr == pytest.approx(fill**r.member.hashes) for r in shared.regions)
        # The fill follows from the size: 1 - exp(-sum G k / cells per key).
        mean = sum(r.key_share * r.member.hashes for r in shared.regions)
        assert fill == pytest.approx(1 - math.exp(-mean / shared.bits), rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_shared_array_equals_brute_force_over_whole_hashes(seed):
    rng = np.random.default_rng(seed)
    keys, queries = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3))
    bits = float(rng.uniform(3, 9))
    found = theory.optimise_shared_array(keys, queries, 1, bits=bits)
    hashes = np.array(list(itertools.product(range(13), repeat=3)))
    fill = 1 - np.exp(-(hashes @ keys) / bits)
    rates = (fill[:, None] ** hashes) @ queries
    assert np.dot(queries, found.rates) <= rates.min() * (1 + 1e-9)


def test_exact_deleted_set_is_used_when_deletions_are_rare_and_the_top_is_clean():
    quality = {"key_shares": [0.2, 0.8], "query_shares": [0.9999, 0.0001]}
    found = plan("pddbf", fpr=0.01, deletability=0.9, deletions=0.001, **quality)
    assert found.regions[1].member.base == "all"
    assert found.regions[1].deleted.base == "exact"
    assert found.deletability >= 0.9
    often = plan("pddbf", fpr=0.01, deletability=0.9, deletions=0.3, **quality)
    assert often.regions[1].member.base == "counters"


def test_false_negatives_are_bounded_on_request():
    found = plan("lbf-3sbf", bits_per_key=8, fnr=0.001, **MODEL)
    assert found.fnr == pytest.approx(0.001)
    by_target = plan("lbf-3sbf", fpr=0.02, **MODEL)
    assert by_target.fnr <= 0.02 * (1 + 1e-9)
    assert by_target.fpr <= 0.02 * (1 + 1e-9)
    assert found.deletability == 1


def test_uptown_hides_the_score_so_forging_gains_nothing():
    found = plan("uptown", bits_per_key=12, **MODEL)
    assert found.adversarial_fpr == found.fpr
    assert plan("slbf", bits_per_key=12, **MODEL).adversarial_fpr > 10 * found.fpr


def test_model_that_is_upside_down_is_ignored_by_the_sandwich():
    found = plan("slbf-2cbf", model_fpr=0.9, model_fnr=0.9, bits_per_key=20)
    assert found.fpr == pytest.approx(plan("counting", bits_per_key=20).fpr)


@pytest.mark.parametrize(("model_fpr", "model_fnr"), [(0.0, 0.5), (0.01, 0.0), (1.0, 0.5), (0.01, 1.0)])
@pytest.mark.parametrize("design", DESIGNS)
def test_perfect_and_useless_models_have_a_plan_or_a_reason(design, model_fpr, model_fnr):
    found = plan(design, bits_per_key=12, model_fpr=model_fpr, model_fnr=model_fnr)
    assert found.feasible or found.reason
    if found.feasible:
        assert 0 <= found.fpr <= 1


def test_plan_is_json_and_readable():
    for design in DESIGNS:
        for bits in (0.5, 25):
            found = plan(design, bits_per_key=bits, **MODEL)
            data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
            assert data["design"] == design
            assert len(data["regions"]) == len(found.regions)
            assert str(found).startswith(f"{design}: ")


def test_table_of_designs_is_consistent():
    for name, row in DESIGNS.items():
        assert name == row.name
        assert len(row.members(4, 2)) == 4
        assert len(row.deleted_bases(4, 2)) == 4
        assert row.learned == (row.regions != 1)
        assert not (row.false_negatives and not row.deleted)
    assert DESIGNS["pddbf"].members(4, 1) == ("counters", "counters", "counters", "all")
    assert DESIGNS["pddbf"].deleted_bases(4, 1) == (None, None, None, "exact")
    assert DESIGNS["lbf-3sbf"].deleted_bases(2) == ("bits", "bits")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"design": "quantum"}, "design: expected one of .*slbf-2cbf.*, found 'quantum'"),
        ({"bits_per_key": None}, "exactly one of bits_per_key and fpr"),
        ({"fpr": 0.01}, "exactly one of bits_per_key and fpr"),
        ({"bits_per_key": 0}, "bits_per_key: expected 0 < bits_per_key < inf, found 0"),
        ({"bits_per_key": math.inf}, "bits_per_key"),
        ({"bits_per_key": math.nan}, "bits_per_key: expected a number, found nan"),
        ({"bits_per_key": "20"}, "bits_per_key: expected a number, found '20'"),
        ({"bits_per_key": None, "fpr": 1.0}, "fpr: expected 0 < fpr < 1, found 1.0"),
        ({"model_fpr": None}, "expected model_fpr and model_fnr, found None and 0.5"),
        ({"model_fpr": 1.5}, "model_fpr: expected 0 <= model_fpr <= 1, found 1.5"),
        ({"model_fpr": True}, "model_fpr: expected a number, found True"),
        ({"model_fpr": None, "model_fnr": None}, "slbf-2cbf uses a model"),
        ({"key_shares": [0.5, 0.5]}, "found some of both"),
        ({"counter_bits": 3}, "counter_bits: expected one of \\(2, 4, 8\\), found 3"),
        ({"deletions": 2}, "deletions: expected 0 <= deletions <= 1, found 2"),
        ({"deletability": 1}, "deletability: expected 0 <= deletability < 1, found 1"),
        ({"adversarial_fpr": 0}, "adversarial_fpr: expected 0 < adversarial_fpr <= 1, found 0"),
        ({"model_bits_per_key": -1}, "model_bits_per_key"),
        ({"max_regions": 0}, "max_regions: expected an integer from 1 to 255, found 0"),
        ({"objective": "speed"}, "objective: expected 'fpr', 'fpr\\+fnr' or a weight"),
        ({"objective": 2}, "objective: expected 0 <= objective <= 1, found 2"),
        ({"bases": ["bits"]}, "bases: expected deletable base filters, found 'bits'"),
        ({"design": "lbf-3sbf", "deletions": 0}, "expected deletions > 0, found 0"),
    ],
)
def test_nonsense_input_is_a_value_error_that_says_what_was_found(changes, words):
    arguments = {"design": "slbf-2cbf", "bits_per_key": 20, **MODEL}
    with pytest.raises(ValueError, match=words):
        plan(**(arguments | changes))


@pytest.mark.parametrize(
    ("keys", "queries", "words"),
    [
        ([0.5, 0.5], None, "found no query_shares"),
        ([0.5, 0.6], [0.5, 0.5], "key_shares: expected shares that add up to 1, found a sum of 1.1"),
        ([1.0], [1.0], "expected at least two shares, found one"),
        ([0.5, 0.5], [0.2, 0.3, 0.5], "expected as many query_shares as key_shares \\(2\\), found 3"),
    ],
)
def test_nonsense_shares_are_a_value_error(keys, queries, words):
    with pytest.raises(ValueError, match=words):
        plan("slbf-2cbf", key_shares=keys, query_shares=queries, bits_per_key=20)


@pytest.mark.parametrize("seed", range(100))
def test_random_problems_keep_their_targets(seed):
    # Skewed shares, empty regions, budgets and targets from trivial to impossible; warnings are errors here.
    rng = np.random.default_rng(seed)
    n_bins = int(rng.choice([2, 3, 5, 12]))
    keys = rng.dirichlet(np.full(n_bins, rng.choice([0.05, 0.3, 1, 5])))
    queries = rng.dirichlet(np.full(n_bins, rng.choice([0.05, 0.3, 1, 5])))
    keys[rng.integers(n_bins)] *= rng.integers(2)
    queries[rng.integers(n_bins)] *= rng.integers(2)
    targets = {
        "deletability": float(rng.choice([0, 0.3, 0.999])),
        "adversarial_fpr": float(rng.choice([1, 0.5, 0.01])),
        "query_floor": float(rng.choice([0, 1e-4])),
        "max_regions": int(rng.choice([2, 8])),
        "model_bits_per_key": float(rng.choice([0, 0.5])),
        "deletions": float(rng.choice([0.001, 1])),
    }
    if rng.random() < 0.5:
        targets["bits_per_key"] = float(10 ** rng.uniform(-2, 2.5))
    else:
        targets["fpr"] = float(10 ** rng.uniform(-9, -0.01))
    for design in rng.choice(list(DESIGNS), 3, replace=False):
        found = plan(str(design), key_shares=keys / keys.sum(), query_shares=queries / queries.sum(), **targets)
        if not found.feasible:
            assert found.reason
            continue
        assert 0 <= found.fpr <= targets.get("fpr", 1) * (1 + 1e-9)
        assert found.bits <= targets.get("bits_per_key", math.inf) * (1 + 1e-9)
        assert found.deletability >= targets["deletability"] - 1e-9
        assert found.adversarial_fpr <= targets["adversarial_fpr"] * (1 + 1e-9)


# --- deletability as keys go


@pytest.mark.parametrize("design", [name for name, row in DESIGNS.items() if row.deletable])
def test_deletability_starts_at_the_first_removal_and_never_falls(design):
    quality = {} if DESIGNS[design].regions == 1 else SHARES
    found = plan(design, bits_per_key=20, **quality)
    shares = [0, 0.1, 0.3, 0.7, 1]
    after = [found.deletability_after(share) for share in shares]
    assert after[0] == pytest.approx(found.deletability, abs=1e-9)
    assert after == sorted(after)
    for share, value in zip(shares[1:], after[1:], strict=True):
        # Simpson's rule against a fine sum.
        steps = [found.deletability_after(share * (step + 0.5) / 2000) for step in range(2000)]
        assert found.average_deletability(share) == pytest.approx(sum(steps) / 2000, abs=1e-5)
        assert after[0] - 1e-9 <= found.average_deletability(share) <= value + 1e-9
    if design == "dlbf":
        assert len(set(after)) == 1


def test_plan_says_which_deletability_it_means():
    found = plan("counting", fpr=0.05, deletions=0.4)
    data = found.to_dict()
    assert data["deletability"] == found.deletability_after(0)
    assert data["deletability_after"] == found.deletability_after(0.4) > data["average_deletability"]
    assert data["average_deletability"] == found.average_deletability(0.4) > data["deletability"]
    assert "deletability is for the first removal" in str(found)
    assert "first removal" not in str(plan("bloom", fpr=0.05))
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="removed: expected a share from 0 to 1"):
            found.deletability_after(wrong)
    nothing = plan("counting", bits_per_key=1, deletability=0.99)
    assert nothing.to_dict()["average_deletability"] is None


@pytest.mark.parametrize("design", ["plbf-dlbf", "slbf-2dlbf"])
def test_learned_deletable_bloom_filters_cost_less_than_counters_and_keep_their_targets(design):
    quality = {"model_fpr": 0.01, "model_fnr": 0.5}
    bits = []
    for deletability in (0, 0.5, 0.9):
        found = plan(design, fpr=0.01, deletability=deletability, **quality)
        assert found.fpr <= 0.01 * (1 + 1e-9)
        assert found.deletability >= deletability - 1e-9
        bits.append(found.bits)
        assert found.bits < plan("lbf-2cbf", fpr=0.01, deletability=deletability, counter_bits=2, **quality).bits
        # A budget of what the target took reaches the target, but for the steps of the table.
        again = plan(design, bits_per_key=found.bits, deletability=deletability, **quality)
        assert again.feasible
        assert again.fpr <= 0.0105
        for region in found.regions:
            if region.member.base == "dlbf":  # a whole number of cells under each mark
                assert 1 / region.member.marks == pytest.approx(round(1 / region.member.marks))
    assert bits == sorted(bits)
    assert plan("auto", fpr=0.01, deletability=0.9, **quality).bits < bits[-1]
    refused = plan(design, bits_per_key=2, deletability=0.9, **quality)
    assert not refused.feasible
    assert plan(design, bits_per_key=refused.min_bits * 1.1, deletability=0.9, **quality).feasible
