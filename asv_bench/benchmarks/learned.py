"""Learned filters: queries and batches of keys inside and outside, size, rates, fitting."""

from dlbf import models
from dlbf.bench.keys import listed_urls, ordinary_urls
from dlbf.learned import LearnedFilter

N_KEYS = 50_000
DESIGNS = ["auto", "plbf-cbf", "lbf-2cbf", "cuckoo"]


class LearnedQuery:
    """One key and batches; absent keys mostly end at the first filter, present ones visit all."""

    params = [DESIGNS, ["inside", "outside"]]
    param_names = ["design", "keys"]

    def setup_cache(self):
        keys, negatives = list(listed_urls(N_KEYS)), list(ordinary_urls(N_KEYS))
        model = models.train(keys, negatives, kind="ngram", max_bytes=4096, progress=False)
        return {
            design: LearnedFilter.fit(keys, negatives, design=design, bits_per_key=16, model=model, progress=False)
            for design in DESIGNS
        }

    def setup(self, filters, design, keys):
        self.filter = filters[design]
        self.asked = list(listed_urls(10_000) if keys == "inside" else ordinary_urls(10_000, seed=7))

    def time_query(self, filters, design, keys):
        filter_ = self.filter
        for key in self.asked:
            key in filter_  # noqa: B015

    def time_contains_many(self, filters, design, keys):
        self.filter.contains_many(self.asked)

    def track_share_found(self, filters, design, keys):
        return float(self.filter.contains_many(self.asked).mean())


class LearnedFit:
    """Training, planning and filling; planning is a second or less of it whatever the number of keys."""

    params = [[5_000, 50_000]]
    param_names = ["n_keys"]
    timeout = 300

    def setup(self, n_keys):
        self.keys, self.negatives = list(listed_urls(n_keys)), list(ordinary_urls(n_keys))

    def _fit(self):
        return LearnedFilter.fit(self.keys, self.negatives, fpr=0.05, model="ngram", progress=False)

    def time_fit(self, n_keys):
        self._fit()

    def peakmem_fit(self, n_keys):
        self._fit()

    def track_bits_per_key(self, n_keys):
        return self._fit().bits_per_key
