"""lbf-3sbf: the optimiser against a dense grid and against descent from many starts; the front."""

import itertools

import numpy as np
import pytest

from dlbf import theory
from dlbf.theory.formulas import ALPHA


def grid_minimum(p, fnr, bits, deletions, cell_bits, weight, steps=400):
    """Objective on a grid over both free shares of the budget, fine near the edges."""
    side = np.unique(np.concatenate((np.linspace(0, 1, steps), np.geomspace(1e-6, 1, steps))))
    two, three = np.meshgrid(side * bits, side * bits, indexing="ij")
    one = bits - two - three
    a = ALPHA ** (1 / cell_bits)
    with np.errstate(over="ignore"):
        e, u, v = a ** (one / fnr), a ** (two / (deletions * (1 - fnr))), a ** (three / (deletions * fnr))
    value = weight * (p * (1 - u) + (1 - p) * (1 - v) * e) + (1 - weight) * ((1 - fnr) * u + fnr * v)
    return float(value[one >= 0].min())


@pytest.mark.parametrize("seed", range(40))
def test_optimiser_is_never_above_a_dense_grid(seed):
    rng = np.random.default_rng(seed)
    p, fnr = 10 ** rng.uniform(-3, -0.5), rng.uniform(0.1, 0.9)
    bits, deletions = rng.uniform(0.2, 20), rng.uniform(0.01, 0.5)
    cell_bits, weight = float(rng.choice([1, 4])), rng.uniform(0.05, 0.95)
    found = theory.optimise_three_filters(p, fnr, bits, deletions, cell_bits=cell_bits, weight=weight)
    value = weight * found.fpr + (1 - weight) * found.fnr
    least = grid_minimum(p, fnr, bits, deletions, cell_bits, weight)
    assert value <= least * (1 + 1e-9)
    # ... and not by more than the grid's own coarseness, or it would be wrong about its value.
    assert value >= 0.8 * least
    assert found.bits == pytest.approx(bits)
    fpr, fnr_again = theory.lbf_3sbf_rates(p, fnr, found.member, found.deleted_high, found.deleted_low)
    assert (fpr, fnr_again) == (pytest.approx(found.fpr, abs=1e-12), pytest.approx(found.fnr))


def test_descent_from_a_start_can_stop_where_the_optimiser_does_not():
    # The published method: SLSQP on the three shares.  From some starts it stays at a saddle where all keys below the
    # threshold count as deleted (FNR = F_n); it never ends below ours.
    optimize = pytest.importorskip("scipy.optimize")
    p, fnr, deletions = 0.005, 0.55, 0.1
    rng = np.random.default_rng(3)
    stuck = 0
    for bits in (2.0, 3.0):
        ours = theory.optimise_three_filters(p, fnr, bits, deletions)

        def objective(x):
            e, u = ALPHA ** (x[0] / fnr), ALPHA ** (x[1] / (deletions * (1 - fnr)))
            v = ALPHA ** (x[2] / (deletions * fnr))
            return p * (1 - u) + (1 - p) * (1 - v) * e + (1 - fnr) * u + fnr * v

        for _ in range(30):
            result = optimize.minimize(
                objective,
                rng.dirichlet(np.ones(3)) * bits,
                bounds=[(0, bits)] * 3,
                constraints=[{"type": "eq", "fun": lambda x, bits=bits: x.sum() - bits}],
                method="SLSQP",
            )
            assert ours.fpr + ours.fnr <= result.fun + 1e-7
            stuck += result.fun > 1.5 * (ours.fpr + ours.fnr)
    assert stuck


def test_result_does_not_depend_on_the_size_of_the_scan():
    rng = np.random.default_rng(8)
    for _ in range(20):
        arguments = (10 ** rng.uniform(-3, -1), rng.uniform(0.2, 0.8), rng.uniform(1, 15), 10 ** rng.uniform(-3, -0.5))
        coarse, fine = (theory.optimise_three_filters(*arguments, points=points) for points in (101, 20_001))
        assert coarse.fpr + coarse.fnr == pytest.approx(fine.fpr + fine.fnr, rel=1e-12)


def test_objective_fpr_alone_forgets_every_key():
    found = theory.optimise_three_filters(0.005, 0.55, 10, 0.1, weight=1)
    assert (found.fpr, found.fnr) == (0, 1)


def test_front_is_monotone_and_contains_the_weighted_optima():
    arguments = (0.005, 0.55, 8, 0.1)
    front = theory.pareto_front(*arguments)
    assert len(front) > 30
    assert all(a.fnr < b.fnr and a.fpr > b.fpr for a, b in itertools.pairwise(front))
    for weight in (0.1, 0.5, 0.9):
        best = theory.optimise_three_filters(*arguments, weight=weight)
        (same,) = theory.pareto_front(*arguments, fnr=[best.fnr])
        assert same.fpr <= best.fpr * (1 + 1e-6)
        assert weight * same.fpr + (1 - weight) * same.fnr >= (weight * best.fpr + (1 - weight) * best.fnr) * (1 - 1e-6)


def test_front_leaves_out_what_the_budget_cannot_reach():
    assert theory.pareto_front(0.005, 0.55, 0.5, 0.1, fnr=[1e-6]) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_fpr": 0}, "model_fpr: expected 0 < model_fpr < 1, found 0"),
        ({"model_fnr": 1}, "model_fnr"),
        ({"deletions": 0}, "deletions: expected 0 < deletions <= 1, found 0"),
        ({"bits_per_key": -1}, "bits_per_key"),
        ({"weight": 2}, "weight: expected 0 <= weight <= 1, found 2"),
        ({"cell_bits": 0}, "cell_bits"),
    ],
)
def test_nonsense_input_is_a_value_error_that_says_what_was_found(changes, words):
    arguments = {"model_fpr": 0.01, "model_fnr": 0.5, "bits_per_key": 8, "deletions": 0.1}
    with pytest.raises(ValueError, match=words):
        theory.optimise_three_filters(**(arguments | changes))


@pytest.mark.parametrize("cell_bits", [1, 4])
@pytest.mark.parametrize(("fpr", "fnr"), [(0.05, 0.05), (0.01, 0.001), (0.006, 0.3)])
def test_smallest_three_filters_is_where_the_front_meets_the_target(fpr, fnr, cell_bits):
    found = theory.smallest_three_filters(0.005, 0.55, 0.1, fnr=fnr, fpr=fpr, cell_bits=cell_bits)
    assert found.fpr == pytest.approx(fpr, rel=1e-12)
    assert found.fnr == pytest.approx(fnr, rel=1e-12)
    for factor, enough in ((1 + 1e-6, True), (1 - 1e-6, False)):
        (at,) = theory.pareto_front(0.005, 0.55, found.bits * factor, 0.1, fnr=[fnr], cell_bits=cell_bits)
        assert (at.fpr <= fpr) is enough


def test_smallest_three_filters_for_any_rate_and_for_an_impossible_one():
    least = theory.smallest_three_filters(0.005, 0.55, 0.1, fnr=0.01)
    assert theory.pareto_front(0.005, 0.55, least.bits * (1 + 1e-9), 0.1, fnr=[0.01])
    assert not theory.pareto_front(0.005, 0.55, least.bits * (1 - 1e-6), 0.1, fnr=[0.01])
    # Above the threshold everything that is not deleted passes: 0.005 of the queries, but for the share denied.
    assert theory.smallest_three_filters(0.005, 0.55, 0.1, fnr=0.01, fpr=0.0048) is None
    assert theory.smallest_three_filters(0.005, 0.55, 0.1, fnr=1.0).bits == 0
