"""Budgets: never exceeded, never refused above the least, whatever the headroom."""

import warnings

import numpy as np
import pytest

from dlbf import LearnedFilter
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.models import train

KEYS, ABSENT = list(listed_urls(6000)), list(ordinary_urls(20000))
UNSEEN = list(ordinary_urls(60000))[20000:]
MODEL = train(KEYS, ABSENT[:10000], kind="ngram", max_bytes=256)


def fit(bits, headroom, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return LearnedFilter.fit(KEYS, ABSENT, bits_per_key=bits, headroom=headroom, model=MODEL, **more)


@pytest.mark.parametrize(("bits", "headroom"), [(4.0, 4.0), (8.0, 1.0), (12.0, 1.5), (16.0, 2.0)])
def test_budget_is_kept_and_spent(bits, headroom):
    lf = fit(bits, headroom)
    assert lf.bits_per_key <= bits
    # Whole buckets of few keys: not to the last bit.
    assert lf.bits_per_key > 0.8 * bits
    assert lf.capacity == int(np.ceil(len(KEYS) * headroom))


def test_refusal_names_a_budget_that_does():
    with pytest.raises(ValueError, match="smallest budget") as refused:
        fit(4.0, 4.0, deletability=0.9)
    words = str(refused.value).split()
    least = float(words[words.index("is") + 1])
    lf = fit(least * 1.01, 4.0, deletability=0.9)
    assert lf.bits_per_key <= least * 1.01
    assert lf.plan.deletability >= 0.88


def test_more_bits_have_a_lower_rate():
    few, many = fit(4.0, 1.0), fit(12.0, 1.0)
    assert few.plan.fpr > 4 * many.plan.fpr
    for lf in (few, many):
        # Four standard deviations of the number that passes of 40,000.
        expected = 1.2 * lf.plan.fpr * len(UNSEEN)
        assert lf.contains_many(UNSEEN).sum() <= expected + 4 * expected**0.5
