"""A commit that brings one region of a learned filter more keys than it has room for."""

import pytest

pytest.importorskip("sklearn")

from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.storage import Store


def test_a_commit_that_fills_a_region_leaves_a_store_that_filters(tmp_path):
    """No later commit may be needed: a list that changes once a day would be read without its filter for a day."""
    with Store(tmp_path / "s", sync="none") as store:
        store.update((key, b"") for key in listed_urls(20_000))
        report = store.rebuild(ordinary_urls(20_000), model="ngram", deletability=0.0, design="tables")
        assert report.model == "ngram"
        # Fewer than the filter has room for, but all of the kind that has little.
        room = store.stats().capacity - len(store)
        new = list(ordinary_urls(room - 1, seed=1))
        store.update((key, b"") for key in new)
        assert store.stats().state == "filtering"
        before = store.stats().filtered
        store.get_many(ordinary_urls(1000, seed=2))
        assert store.stats().filtered - before > 900
        assert None not in store.get_many(new)
        assert store.verify().ok
