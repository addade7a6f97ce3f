"""What a fit promises: one rule, whatever the number of negatives."""

import math
import warnings

import numpy as np
import pytest

from dlbf.bench.promises import PromiseRow, promises
from dlbf.learned.promises import SIGMAS, Sampled, keep_promise, smoothed, upper_rate


def test_upper_rate_is_the_rate_and_its_standard_errors():
    counts, rates = [900_000, 100_000], [0.001, 0.1]
    mean = 0.9 * 0.001 + 0.1 * 0.1
    error = math.sqrt((0.9 * 0.001**2 + 0.1 * 0.1**2 - mean**2) / 1_000_000)
    assert upper_rate(counts, rates) == pytest.approx(mean + SIGMAS * error, rel=1e-4)
    assert upper_rate(counts, rates, 0.01) == pytest.approx(mean + SIGMAS * 0.01, rel=1e-4)
    # Nothing seen where everything passes: three of n, as the rule of three has it for 95 %.
    assert upper_rate([10_000, 0], [0.0, 1.0]) == pytest.approx(3 / 10_000, rel=1e-3)
    assert upper_rate([0, 0], [0.5, 1.0]) <= 1


def test_promise_counts_groups_and_kinds():
    scores = np.repeat(np.arange(10, dtype=np.int32), 1000)
    rates, one_kind = np.array([0.0, 0.1]), np.zeros(10_000, dtype=np.intp)
    plain = Sampled(scores, one_kind).promise([9], rates)
    assert plain == pytest.approx(0.01 + SIGMAS * math.sqrt((0.001 - 0.0001) / 10_000), rel=0.01)
    # Drawn in ten groups, one of them unlucky: as uncertain as ten draws.
    grouped = Sampled(scores, one_kind, np.repeat(np.arange(10), 1000)).promise([9], rates)
    assert grouped == pytest.approx(0.01 + SIGMAS * math.sqrt((0.001 - 0.0001) / 10), rel=0.01)
    # A tenth of the queries is of a kind that passes at a tenth; a kind may have 1.25 times the rate of all.
    kinds = (scores == 9).astype(np.intp)
    assert Sampled(scores, kinds).promise([9], rates) == pytest.approx(0.1 / 1.25)
    assert Sampled(scores, kinds).promise([], np.array([0.02])) == 0.02


@pytest.mark.parametrize("n", [100, 3000, 10**6])
def test_promise_is_kept_and_used_up(n):
    def attempt(aim):
        promise = aim + 2 * math.sqrt(aim / n)
        return (aim, promise), promise

    aim, promise = keep_promise(0.01, 0.01, attempt)
    assert 0.99 * 0.01 <= promise <= 0.01 * 1.001
    assert aim < promise


def test_promise_that_cannot_be_kept_is_as_low_as_it_can_be():
    assert keep_promise(0.01, 0.01, lambda aim: (aim, 0.02 + aim)) < 0.005
    assert keep_promise(0.01, 0.01, lambda aim: None) is None
    # What promises far less at its first attempt has other targets to keep.
    assert keep_promise(0.5, 0.5, lambda aim: (aim, 0.1)) == 0.5


def test_fits_keep_their_promise():
    """12 fits, of which a fiftieth may break it by more than 1.05: the chance that two do is 3 %."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, rows = promises(None, 6000, (500, 4000), 3, 0.01, (0.1, 1.0))
    assert sum(row.broken(1.05) for row in rows) <= 1
    assert not any(row.broken(1.2) for row in rows)
    # Those that know more give less away.
    assert rows[0].bits_per_key > rows[1].bits_per_key
    assert rows[2].bits_per_key > rows[3].bits_per_key
    assert PromiseRow(1, 0.01, 1.0, 1.0, (1.0, 1.3)).mean == pytest.approx(1.15)


def test_shares_are_smoothed_to_speak_for_keys_as_the_score_rises():
    rng = np.random.default_rng(3)
    keys, queries = rng.dirichlet(np.linspace(1, 9, 60)), rng.dirichlet(np.linspace(9, 1, 60))
    found = smoothed(keys, queries)
    ratios = found / keys
    assert (np.diff(ratios) <= 1e-12).all()
    assert found.sum() == pytest.approx(1)
    # It is the closest such: nothing changes that falls already, and bins without keys go with those below.
    assert smoothed(keys, found) == pytest.approx(found)
    assert smoothed([0.5, 0.0, 0.5], [0.2, 0.4, 0.4]).tolist() == pytest.approx([0.6, 0.0, 0.4])
    assert smoothed([0.0, 0.0], [0.3, 0.7]).tolist() == pytest.approx([0.3, 0.7])
