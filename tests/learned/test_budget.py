"""Budgets: never exceeded, never refused above the least, never better spent by a named design."""

import warnings

import numpy as np
import pytest

from dlbf import LearnedFilter
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.learned.preparing import prepare
from dlbf.learned.targets import Targets
from dlbf.models import train
from dlbf.theory import DESIGNS

KEYS, ABSENT = list(listed_urls(6000)), list(ordinary_urls(20000))
UNSEEN = list(ordinary_urls(60000))[20000:]
MODEL = train(KEYS, ABSENT[:10000], kind="ngram", max_bytes=256)


def fit(bits, headroom, model=MODEL, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return LearnedFilter.fit(KEYS, ABSENT, bits_per_key=bits, headroom=headroom, model=model, **more)


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


def planned(bits, headroom, design="auto", **more):
    """The empty filter, or None where the budget is refused."""
    targets = Targets(bits_per_key=bits, headroom=headroom, model=MODEL, design=design, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            return prepare(LearnedFilter, KEYS, ABSENT, targets, False, compare=False).filter
        except ValueError:
            return None


# Keyed designs ask for a secret, and what is static cannot take keys: other promises, as are false negatives.
# Deletable Bloom filters are left out for their time: they are Bloom filters with marks on top.
OTHERS = ("auto", "static", "dlbf", "slbf-2dlbf", "plbf-dlbf")
SAME = [n for n, row in DESIGNS.items() if not (row.keyed or row.false_negatives or n in OTHERS)]


@pytest.mark.parametrize(
    ("bits", "headroom", "deletability"),
    [(2.0, 1.0, 0.0), (4.0, 1.0, 0.0), (12.0, 2.0, 0.0), (9.0, 1.0, 0.9)],
)
def test_auto_promises_no_more_than_a_named_design(bits, headroom, deletability):
    found = planned(bits, headroom, deletability=deletability)
    assert found is not None
    assert found.plan.bits_per_key <= bits
    for name in SAME:
        # What remembers deleted keys exactly has no cap of its own; under the same cap it is the same as without.
        other = planned(bits, headroom, name, deletability=deletability, adversarial_fpr=1 - deletability or None)
        if other is not None:
            assert other.plan.bits_per_key <= bits
            assert found.plan.fpr <= other.plan.fpr * (1 + 1e-9), name


def test_budget_of_few_bits_keeps_removed_keys_and_loses_none():
    lf = fit(3.0, 1.0, model=None)
    assert [region.base for region in lf.plan.regions] == ["bits"]
    assert lf.plan.deletability == 0
    assert not lf.remove_many(KEYS[:1000]).any()
    assert lf.contains_many(KEYS).all()
    assert len(lf) == len(KEYS) - 1000
    measured = lf.evaluate(UNSEEN[:2000], deleted=KEYS[1000:1500])
    assert measured.deletability.value == measured.deletability.predicted == 0


def test_more_than_enough_bits_are_spent_on_tables():
    lf = fit(14.0, 1.0)
    assert {region.base for region in lf.plan.regions} == {"cuckoo"}
    removed = lf.remove_many(KEYS[:1000])
    assert removed.mean() > 0.8
    assert lf.contains_many(KEYS[1000:]).all()
