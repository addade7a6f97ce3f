"""Layers with a model in the base: what it costs, what it lets pass, and that it denies nothing."""

import numpy as np
import pytest
from support import peek
from support.learned_common import small_model
from support.learnt_urls import ABSENT, FRESH, KEYS, N_KEYS

from dlbf.datasets import listed_urls
from dlbf.learned.promises import upper_rate
from dlbf.learned.static import can_be_static, static_bytes, static_cap, static_rates
from dlbf.storage import Store, generations, layers


def learned(path, **options):
    store = Store(path, sync="none")
    store.update((key, b"v") for key in KEYS)
    report = store.rebuild(ABSENT, model=small_model(), **options)
    assert (report.design, report.model) == ("layers", "ngram")
    return store


def rate(store):
    return float(store.ledger.filter.contains_many(FRESH).mean())


def test_it_is_smaller_than_tables_and_than_no_model_and_denies_nothing(path):
    with learned(path) as store:
        with_model = store.stats()
        assert store.get_many(KEYS) == [b"v"] * N_KEYS
        assert store.verify().ok
        # 40,000 fresh negatives at 1 %: five standard errors are a quarter of it.
        assert rate(store) <= 0.01 * 1.25
        store.rebuild(model=None)
        assert with_model.bits_per_key < 0.9 * store.stats().bits_per_key
        store.rebuild(ABSENT, model=small_model(), design="tables")
        assert with_model.bits_per_key < 0.75 * store.stats().bits_per_key


def test_the_worst_case_is_bounded_by_what_was_asked_for(path):
    with learned(path) as store:
        base = generations.composite_of(store.ledger.filter)
        assert max(region.fpr for region in base.plan.regions) <= 0.1
        assert static_cap(base) == pytest.approx(0.1)
        capped = store.stats().bits_per_key
        store.rebuild(ABSENT, model=small_model(), deletability=0.0, adversarial_fpr=0.5)
        half = store.stats().bits_per_key
        store.rebuild(ABSENT, model=small_model(), deletability=0.0)
        free = store.stats().bits_per_key
        assert free <= half < capped
        assert rate(store) <= 0.01 * 1.3
        assert store.get_many(KEYS) == [b"v"] * N_KEYS


def test_it_grows_with_its_model_and_its_cap(path):
    with learned(path) as store:
        new = [key for key in listed_urls(8000, seed=99) if key not in store]
        generation = store.stats().generation
        for i in range(0, len(new), 100):
            store.update((key, b"v") for key in new[i : i + 100])
        stats = store.stats()
        assert stats.generation > generation
        assert (stats.design, stats.model) == ("layers", "ngram")
        assert static_cap(generations.composite_of(store.ledger.filter)) == pytest.approx(0.1)
        assert store.get_many(KEYS + new) == [b"v"] * (N_KEYS + len(new))
        assert rate(store) <= 0.01 * 1.3
        assert store.verify().ok
    with Store(path, sync="none") as store:
        assert store.get_many(KEYS + new) == [b"v"] * (N_KEYS + len(new))
        assert store.stats().model == "ngram"


def test_a_learned_filter_with_tables_becomes_one_with_layers_when_it_grows(path):
    with Store(path, sync="none") as store:
        store.update((key, b"v") for key in KEYS)
        store.rebuild(ABSENT, model=small_model(), design="tables")
        before = generations.composite_of(store.ledger.filter)
        assert can_be_static(before)
        gathering = layers.next_gathering(before, N_KEYS, 0.01, peek.secret(store))
        assert gathering.pattern is before
        gathering.update(KEYS)
        filter = gathering.finish(gathering.make_base())
        assert filter.contains_many(KEYS).all()
        assert float(filter.contains_many(FRESH).mean()) <= 0.01 * 1.25
        # One that deletes with the help of another filter cannot.
        store.rebuild(ABSENT, "pddbf", model=small_model())
        assert not can_be_static(store.ledger.filter)
        assert layers.next_gathering(store.ledger.filter, N_KEYS, 0.01, None) is None


def test_rates_use_up_the_target_and_no_more(path):
    with learned(path) as store:
        base = generations.composite_of(store.ledger.filter)
        shares = np.array([region.query_share for region in base.plan.regions])
        for fpr, cap in [(0.01, 1.0), (0.01, 0.1), (0.001, 0.1), (0.3, 0.5)]:
            rates = static_rates(base, fpr, cap)
            assert max(rates) <= cap
            # Passing are as many less as shares measured on so few queries may be wrong.
            assert shares @ rates < fpr
            assert 0.98 * fpr <= upper_rate(shares * base.plan.held_out, rates) <= 1.01 * fpr
        assert static_rates(base, 0.3, 0.1) == [0.1] * len(shares)
        assert static_bytes(base, static_rates(base, 0.01, 0.1), N_KEYS) < N_KEYS


def test_a_base_that_denies_its_keys_is_refused(path, monkeypatch):
    with learned(path) as store:
        before = store.stats().generation
        monkeypatch.setattr(layers, "hash64_many", lambda keys, secret: layers.np.arange(len(keys), dtype="u8") << 40)
        with pytest.raises(Exception, match="denies keys"):
            store.rebuild(ABSENT, model=small_model())
        assert store.stats().generation == before
        assert store.get_many(KEYS) == [b"v"] * N_KEYS
