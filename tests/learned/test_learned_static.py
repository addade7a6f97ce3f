"""The static design: ribbons per region, built from hashes and regions; never a key missed, never one added."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.learned_common import FRESH, KEYS, NEGATIVES, fit, fitted, small_model
from support.samples import SECRET, url_keys

import dlbf
from dlbf.datasets import listed_urls
from dlbf.filters import kinds
from dlbf.filters.ribbon_sizes import ribbon_geometry
from dlbf.kernels.hashing import hash64_many
from dlbf.learned.assembly import MEMBER, Part
from dlbf.learned.composite import empty_composite, member_id, parts_of
from dlbf.learned.fitting import StaticBuilder, Targets, build_static, prepare
from dlbf.theory import plan

SHARES = {"key_shares": [0.1, 0.3, 0.6], "query_shares": [0.9, 0.09, 0.01]}


@cache
def template(**more):
    targets = Targets(**({"design": "static", "model": small_model(), "fpr": 0.01} | more))
    return prepare(KEYS[:500], NEGATIVES, targets, n_keys=len(KEYS)).filter


# --- the model


def test_models_are_compared_at_the_prices_of_ribbons_and_with_the_cap():
    def bits(worst):
        targets = Targets(fpr=0.01, design="static", adversarial_fpr=worst, model="ngram", max_model_bytes=256)
        report = prepare(KEYS, NEGATIVES, targets, n_keys=100_000).draft.layout.model.report
        assert report["plain_bits_per_key"] == pytest.approx(6.64, abs=0.11)
        return report["total_bits_per_key"]

    free, capped = bits(None), bits(0.1)
    # No region may do with less than log2(10) bits.
    assert free < capped - 0.5
    assert capped > 3.32


# --- the plan


def test_static_plan_is_smaller_than_any_that_deletes_and_near_the_bound():
    static = plan("static", fpr=0.01, adversarial_fpr=0.1, **SHARES)
    assert static.feasible
    assert not static.deletable
    assert static.adversarial_fpr <= 0.1
    assert static.bits < plan("auto", fpr=0.01, adversarial_fpr=0.1, **SHARES).bits - 1.4
    bound = sum(
        share * -np.log2(region.member.fpr) for share, region in zip(SHARES["key_shares"], static.regions, strict=True)
    )
    assert bound < static.bits < bound + 0.09


def test_region_that_lets_all_pass_costs_nothing():
    free = plan("static", fpr=0.01, key_shares=[0.1, 0.3, 0.6], query_shares=[0.95, 0.049, 0.001])
    assert [region.member.base for region in free.regions][-1] == "all"
    assert free.regions[-1].member.bits_per_key == 0


def test_static_needs_no_model_and_takes_none_that_does_not_pay():
    assert plan("static", fpr=0.01).bits == pytest.approx(6.64, abs=0.11)
    alike = {"key_shares": [0.5, 0.5], "query_shares": [0.5, 0.5], "model_bits_per_key": 0.5}
    assert len(plan("static", fpr=0.01, **alike).regions) == 1


def test_static_cannot_delete_and_auto_never_chooses_it():
    assert not plan("static", fpr=0.01, deletability=0.5, **SHARES).feasible
    for deletability in (0.0, 0.9):
        chosen = plan("auto", fpr=0.01, deletability=deletability, **SHARES)
        assert "ribbon" not in {region.member.base for region in chosen.regions}
    with pytest.raises(ValueError, match="expected deletable base filters, found 'ribbon'"):
        plan("auto", fpr=0.01, bases=("ribbon",))
    with pytest.raises(ValueError, match="cannot delete"):
        fit(design="static", fpr=0.01, deletability=0.5)


# --- the filter


@pytest.mark.parametrize("secret", [None, SECRET], ids=["plain", "keyed"])
@pytest.mark.parametrize(
    "targets", [{"fpr": 0.01}, {"fpr": 0.02, "adversarial_fpr": 0.1}, {"fpr": 0.05, "model": None}, {"bits_per_key": 6}]
)
def test_fitted_filter_has_every_key_and_keeps_its_targets(targets, secret, tmp_path):
    lf = fit(design="static", secret=secret, **targets)
    assert lf.contains_many(KEYS).all()
    assert all(key in lf for key in KEYS[:200])
    assert lf.is_static
    assert not lf.deletable
    assert len(lf) == lf.approximate_count() == len(KEYS)
    assert lf.plan.adversarial_fpr <= targets.get("adversarial_fpr", 1.0)
    assert lf.bits_per_key <= targets.get("bits_per_key", 99)
    if "fpr" in targets:
        # 20,000 questions, five standard errors; the plan aims lower where it learnt from few.
        limit = targets["fpr"] + 5 * np.sqrt(targets["fpr"] / len(FRESH))
        assert lf.contains_many(FRESH).mean() < limit
    lf.save(tmp_path / "f")
    with dlbf.open_filter(tmp_path / "f", secret=secret) as mapped:
        assert mapped == lf == lf.copy() == dlbf.LearnedFilter.from_bytes(lf.to_bytes(), secret)
        assert (mapped.contains_many(FRESH) == lf.contains_many(FRESH)).all()
    again = fit(list(reversed(KEYS)), design="static", secret=secret, **targets)
    assert again == lf


def test_static_filter_refuses_changes_with_advice():
    lf = fitted("static").copy()
    before = lf.to_bytes()
    for change in (lambda: lf.add(b"x"), lambda: lf.update([b"x"]), lf.clear, lambda: lf | lf):
        with pytest.raises(dlbf.StaticFilterError, match=r"built once.*design='auto'"):
            change()
    for change in (lambda: lf.remove(KEYS[0]), lambda: lf.discard(KEYS[0]), lambda: lf.remove_many(KEYS)):
        with pytest.raises(dlbf.NotDeletableError, match="cannot remove"):
            change()
    assert lf.to_bytes() == before
    assert lf.evaluate(FRESH).fpr.value == lf.contains_many(FRESH).mean()


# --- built from hashes and regions


@settings(max_examples=15)
@given(st.integers(0, 3000), st.integers(0, 2**32), st.booleans())
def test_builder_has_exactly_the_keys_of_its_batches(n, seed, keyed):
    made = template(secret=SECRET if keyed else None)
    keys = url_keys(n // 2, seed=seed % 1000 + 10) + list(listed_urls(n - n // 2, seed=seed % 7))
    builder = StaticBuilder(made)
    at = 0
    for size in np.random.default_rng(seed).integers(0, 700, 40):
        builder.add(keys[at : at + size])
        at += int(size)
    builder.add(iter(keys[at:] + keys[:50]))  # some twice
    assert len(builder) == len(keys) + len(keys[:50])
    built = builder.build()
    assert len(builder) == 0
    assert len(built) == len(set(keys)) or 1.0 in {region.fpr for region in built.plan.regions}
    assert built.contains_many(keys).all()
    assert (built.region_of(keys) == made.region_of(keys)).all()


def test_hashes_and_regions_build_what_keys_build_in_any_order():
    made = template(adversarial_fpr=0.1)
    builder = StaticBuilder(made, n_keys=len(KEYS))
    builder.add(KEYS)
    expected = builder.build(workers=1)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(KEYS))
        hashes, regions = hash64_many(KEYS)[order], made.region_of(KEYS)[order].copy()
        assert build_static(made, hashes, regions, workers=seed + 1) == expected
    assert expected.contains_many(KEYS).all()


@pytest.mark.parametrize("kind", [tuple, np.array, iter, set, dict.fromkeys])
def test_builder_takes_every_kind_of_batch(kind):
    made = template()
    builder, expected = StaticBuilder(made), StaticBuilder(made)
    builder.add(kind(KEYS))
    expected.add(KEYS)
    assert builder.build() == expected.build()


def test_builder_takes_arrow_arrays():
    pa = pytest.importorskip("pyarrow")
    made = template()
    builder, expected = StaticBuilder(made), StaticBuilder(made)
    builder.add(pa.array(KEYS))
    expected.add(KEYS)
    assert builder.build() == expected.build()


def test_rates_of_the_template_are_those_of_what_is_built():
    made = template(adversarial_fpr=0.1)
    builder = StaticBuilder(made)
    builder.add(list(listed_urls(20_000, seed=3)))
    built = builder.build()
    for before, after in zip(parts_of(made), parts_of(built), strict=True):
        rates = [part.row.rate(0, part.params) for part in (before, after)]
        assert rates[1] == pytest.approx(rates[0], rel=0.02)
        assert rates[1] <= rates[0] * 1.0001


def test_wrong_template_or_regions_are_refused():
    with pytest.raises(dlbf.DlbfError, match="filled key by key"):
        build_static(fitted("auto"), hash64_many(KEYS), np.zeros(len(KEYS), dtype=np.uint8))
    made = fitted("static")
    with pytest.raises(ValueError, match="expected a region for each of"):
        build_static(made, hash64_many(KEYS), np.zeros(3, dtype=np.uint8))
    with pytest.raises(ValueError, match="regions must be below"):
        build_static(made, hash64_many(KEYS), np.full(len(KEYS), 200, dtype=np.uint8))


# --- the kernel calls the ribbon's leaves directly; a class of another number it asks


@pytest.mark.parametrize("secret", [None, SECRET], ids=["plain", "keyed"])
def test_composite_asks_a_static_class_as_it_calls_its_leaves(secret):
    row = kinds.BASES["ribbon"]
    cls = type("RibbonFilter", (row.cls,), {"KIND": row.number + 100, "__hash__": None})
    double = kinds.Base(**{**row.__dict__, "name": "ribbon again", "cls": cls})
    kinds.add_base(double)
    try:
        like = fitted("lbf-2cbf")
        cut = int(np.median(like.model.score_many(KEYS)))
        both = []
        for number in (row.number, double.number):
            parts = [Part(MEMBER, r, number, 0, tuple(ribbon_geometry(700, 0.2))) for r in (0, 1)]
            flags = 2 if secret else 0
            empty = empty_composite(dlbf.LearnedFilter, parts, [cut], like.model, flags, like.plan, 60, 0.1, secret)
            assert member_id(empty, 0) != member_id(empty, 1) or secret is None
            both.append(build_static(empty, hash64_many(KEYS, secret), empty.region_of(KEYS).copy()))
        direct, asked = both
        assert direct.contains_many(KEYS).all()
        assert asked.contains_many(KEYS).all()
        assert (direct.contains_many(FRESH) == asked.contains_many(FRESH)).all()
        assert [key in direct for key in FRESH[:500]] == [key in asked for key in FRESH[:500]]
        with pytest.raises(dlbf.StaticFilterError):
            asked.add(b"x")
    finally:
        del kinds.BASES[double.name], kinds._NUMBERED[double.number], dlbf.format.KIND_NAMES[double.number]
