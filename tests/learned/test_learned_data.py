"""Bars on real URLs: bits per key of ``auto``, both splits, on negatives that nothing was fitted on."""

import random

import pytest

from dlbf import models
from dlbf.bench.data import Split, hard_split, random_split, read_urls
from dlbf.learned import LearnedFilter

pytestmark = [pytest.mark.data, pytest.mark.slow]

# fpr, deletability -> bits per key at most
BARS = {
    "random": {(0.01, 0.0): 2.0, (0.01, 0.9): 7.0, (0.001, 0.9): 7.5},
    "hard": {(0.01, 0.0): 3.5, (0.01, 0.9): 7.5, (0.001, 0.9): 8.5},
}


@pytest.fixture(scope="module", params=["random", "hard"])
def split(request, data_dir) -> Split:
    return {"random": random_split, "hard": hard_split}[request.param](*read_urls(data_dir))


@pytest.mark.parametrize(("fpr", "deletability"), [(0.01, 0.0), (0.01, 0.9), (0.001, 0.9)])
def test_auto_on_real_urls_is_within_its_bits(split, fpr, deletability):
    model = models.train(
        split.learnt_keys, split.learnt_negatives, kind="auto", fpr=fpr, deletability=deletability,
        validation=split.negatives, n_keys=len(split.keys), progress=False,
    )  # fmt: skip
    lf = LearnedFilter.fit(split.keys, split.negatives, fpr=fpr, deletability=deletability, model=model, progress=False)
    assert lf.bits_per_key <= BARS[split.name][fpr, deletability]
    assert lf.contains_many(split.keys).all()
    measured = lf.evaluate(split.unseen, deleted=random.Random(1).sample(split.keys, 20_000))
    assert measured.fpr.value <= 1.05 * fpr
    assert measured.deletability.value >= deletability - 0.01
