"""Learned filters: every design's queries, rates and size at one budget; fitting."""

import warnings

import dlbf
from dlbf import models
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.learned import LearnedFilter
from dlbf.theory import DESIGNS

from .common import SECRET, TINY, queries, size, sizes

N_KEYS = size(50_000, 4000)
N_QUERIES = size(10_000)
BUDGET = 24 if TINY else 16  # a model of few keys weighs more per key
NAMES = list(DESIGNS)


def one_of_each():
    """Bytes of a filter of every design, absent keys nothing was fitted on, and keys to delete."""
    keys = list(listed_urls(N_KEYS))
    ordinary = list(ordinary_urls(3 * N_KEYS))
    model = models.train(keys, ordinary[:N_KEYS], kind="ngram", max_bytes=4096, progress=False)
    made = {}
    for name, design in DESIGNS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # few negatives: sizes are cautious
            try:
                made[name] = LearnedFilter.fit(
                    keys, ordinary[N_KEYS : 2 * N_KEYS], design=name, bits_per_key=BUDGET, model=model,
                    secret=SECRET if design.keyed else None, progress=False,
                ).to_bytes()  # fmt: skip
            except ValueError:
                made[name] = None  # not feasible at this budget
    return made, ordinary[2 * N_KEYS :], keys


def opened(made, name):
    if made[name] is None:
        raise NotImplementedError
    return LearnedFilter.from_bytes(made[name], secret=SECRET if DESIGNS[name].keyed else None)


class OneOfEach:
    """The filters of all designs, made once for all benchmarks that use them."""

    timeout = 600

    def setup_cache(self):
        return one_of_each()


class LearnedQuery(OneOfEach):
    """One key and batches; absent keys mostly end at the first filter, present ones visit all."""

    params = [NAMES, [0.0, 0.5, 1.0]]
    param_names = ["design", "hit_ratio"]

    def setup(self, cache, design, hit_ratio):
        made, _, keys = cache
        self.filter = opened(made, design)
        self.asked = queries(N_QUERIES, hit_ratio, keys)

    def time_query(self, cache, design, hit_ratio):
        filter_ = self.filter
        for key in self.asked:
            key in filter_  # noqa: B015

    def time_contains_many(self, cache, design, hit_ratio):
        self.filter.contains_many(self.asked)


class LearnedRates(OneOfEach):
    """What every design delivers at the same budget."""

    params = [NAMES]
    param_names = ["design"]

    def setup(self, cache, design):
        made, self.absent, _ = cache
        self.filter = opened(made, design)

    def track_fpr(self, cache, design):
        return float(self.filter.contains_many(self.absent).mean())

    def track_bits_per_key(self, cache, design):
        return self.filter.bits_per_key

    track_bits_per_key.unit = "bits"


class LearnedForgets(OneOfEach):
    """How many of the removed keys then answer "absent"; high scores pass, so not all."""

    params = [[name for name, design in DESIGNS.items() if design.deletable]]
    param_names = ["design"]

    def setup(self, cache, design):
        made, _, keys = cache
        self.filter = opened(made, design)
        self.gone = keys[: N_KEYS // 10]

    def track_deletability(self, cache, design):
        self.filter.remove_many(self.gone)
        return float((~self.filter.contains_many(self.gone)).mean())


class LearnedUpdate(OneOfEach):
    """Adding and removing where a design can."""

    params = [["auto", "plbf-cbf", "lbf-2cbf", "ada-cbf", "pddbf"]]
    param_names = ["design"]
    number = 1

    def setup(self, cache, design):
        made, _, keys = cache
        self.filter = opened(made, design)
        self.some = keys[: N_KEYS // 10]

    def time_remove_and_add(self, cache, design):
        self.filter.remove_many(self.some)
        self.filter.update(self.some)


class LearnedFit:
    """Training, planning and filling; planning is a second or less of it whatever the number of keys."""

    params = [sizes(5_000, 50_000)]
    param_names = ["n_keys"]
    timeout = 300
    number = 1
    repeat = (1, 3, 20.0)

    def setup(self, n_keys):
        self.keys, self.negatives = list(listed_urls(n_keys)), list(ordinary_urls(2 * n_keys))

    def _fit(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return dlbf.LearnedFilter.fit(
                self.keys, self.negatives, fpr=0.05, deletability=0.5, model="ngram", progress=False
            )

    def time_fit(self, n_keys):
        self._fit()

    def peakmem_fit(self, n_keys):
        self._fit()

    def track_bits_per_key(self, n_keys):
        return self._fit().bits_per_key

    track_bits_per_key.unit = "bits"
