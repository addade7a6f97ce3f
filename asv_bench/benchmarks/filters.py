"""Classical filters: adding, asking, removing, one key and batches, sizes and rates."""

import threading
import time

import numpy as np

import dlbf
from dlbf.filters.base import secret_of
from dlbf.kernels.hashing import hash64_many

from .common import DELETABLE, FILTERS, FPR, make_keys, queries, rbloom_or_skip, size, sizes

WORST_ADD_RUNS = 5
N_QUERIES = size(50_000)
SIZES = sizes(10_000, 1_000_000)


class WithKeys:
    """Keys made once for all benchmarks: making a million takes longer than most of what is measured."""

    timeout = 300

    def setup_cache(self):
        return make_keys(max(SIZES))


class FilterBuild(WithKeys):
    """Adding dominates; hashing is a third of it, cache misses of large filters the rest."""

    params = [list(FILTERS), SIZES]
    param_names = ["filter", "n_keys"]

    def setup(self, keys, name, n_keys):
        self.keys = keys[:n_keys]

    def time_update(self, keys, name, n_keys):
        FILTERS[name](n_keys).update(self.keys)

    def peakmem_build(self, keys, name, n_keys):
        FILTERS[name](n_keys).update(self.keys)

    def track_bits_per_key(self, keys, name, n_keys):
        return 8 * FILTERS[name](n_keys).nbytes / n_keys

    track_bits_per_key.unit = "bits"


class Ribbon(WithKeys):
    """The static filter: building sorts the hashes and solves equations; a query adds up bits of each column."""

    params = [SIZES, [0.1, 0.01, 0.001]]
    param_names = ["n_keys", "fpr"]

    def setup(self, keys, n_keys, fpr):
        self.keys = keys[:n_keys]
        self.hashes = hash64_many(self.keys)
        self.filter = dlbf.RibbonFilter.build(self.keys, fpr)
        self.absent = queries(min(N_QUERIES, n_keys), 0.0, self.keys)
        self.present = queries(min(N_QUERIES, n_keys), 1.0, self.keys)

    def time_build(self, keys, n_keys, fpr):
        dlbf.RibbonFilter.build(self.keys, fpr)

    def time_build_from_hashes(self, keys, n_keys, fpr):
        dlbf.RibbonFilter.build_from_hashes(self.hashes.copy(), fpr)

    def peakmem_build(self, keys, n_keys, fpr):
        dlbf.RibbonFilter.build(self.keys, fpr)

    def time_query_absent(self, keys, n_keys, fpr):
        filter_ = self.filter
        for key in self.absent:
            key in filter_  # noqa: B015

    def time_contains_many_absent(self, keys, n_keys, fpr):
        self.filter.contains_many(self.absent)

    def time_contains_many_present(self, keys, n_keys, fpr):
        self.filter.contains_many(self.present)

    def track_bits_per_key(self, keys, n_keys, fpr):
        return self.filter.bits_per_key

    track_bits_per_key.unit = "bits"


class Elastic(WithKeys):
    """The filter that doubles by itself: adding moves fingerprints along, removing looks through buckets of them."""

    params = [SIZES[:1]]
    param_names = ["n_keys"]
    number = 1

    def setup(self, keys, n_keys):
        self.keys = keys[:n_keys]
        self.filter = dlbf.ElasticBloomFilter(100, FPR)
        self.filter.update(self.keys)
        self.absent = queries(min(N_QUERIES, n_keys), 0.0, self.keys)

    def time_grow(self, keys, n_keys):
        dlbf.ElasticBloomFilter(100, FPR).update(self.keys)

    def time_shrink(self, keys, n_keys):
        self.filter.copy().remove_many(self.keys)

    def time_batch_absent(self, keys, n_keys):
        self.filter.contains_many(self.absent)

    def track_bits_per_key(self, keys, n_keys):
        return self.filter.bits_per_key

    track_bits_per_key.unit = "bits"


class FilterQuery(WithKeys):
    """Asking: absent keys end at the first empty cell, present ones need every probe."""

    params = [[*FILTERS, "rbloom"], SIZES, [0.0, 0.5, 1.0]]
    param_names = ["filter", "n_keys", "hit_ratio"]

    def setup(self, keys, name, n_keys, hit_ratio):
        keys = keys[:n_keys]
        self.filter = rbloom_or_skip(n_keys) if name == "rbloom" else FILTERS[name](n_keys)
        self.filter.update(keys)
        self.queries = queries(min(N_QUERIES, n_keys), hit_ratio, keys)

    def time_query(self, keys, name, n_keys, hit_ratio):
        filter_ = self.filter
        for key in self.queries:
            key in filter_  # noqa: B015


class FilterBatchQuery(WithKeys):
    """The same in batches, where the next keys are fetched while one is looked up."""

    params = [list(FILTERS), SIZES, [0.0, 0.5, 1.0]]
    param_names = ["filter", "n_keys", "hit_ratio"]

    def setup(self, keys, name, n_keys, hit_ratio):
        self.filter = FILTERS[name](n_keys)
        self.filter.update(keys[:n_keys])
        self.queries = queries(min(N_QUERIES, n_keys), hit_ratio, keys)

    def time_contains_many(self, keys, name, n_keys, hit_ratio):
        self.filter.contains_many(self.queries)


class Expiring(WithKeys):
    """The filter whose entries leave: asking looks into a table for every step, adding into one."""

    params = [SIZES]
    param_names = ["n_keys"]
    number = 1

    def setup(self, keys, n_keys):
        self.keys = keys[:n_keys]
        self.clock = dlbf.ManualClock(0)
        self.filter = dlbf.ExpiringFilter(n_keys, FPR, ttl=3600, clock=self.clock)
        for first in range(8):  # an eighth of the keys in every step
            self.filter.update(self.keys[first::8])
            self.clock.advance(self.filter.lateness)
        self.absent = queries(min(N_QUERIES, n_keys), 0.0, self.keys)

    def time_add(self, keys, n_keys):
        dlbf.ExpiringFilter(n_keys, FPR, ttl=3600).update(self.keys)

    def time_batch_absent(self, keys, n_keys):
        self.filter.contains_many(self.absent)

    def track_bits_per_key(self, keys, n_keys):
        return self.filter.bits_per_key

    track_bits_per_key.unit = "bits"


class Growing(WithKeys):
    """The filter that grows: adding from nothing, asking, how large it is, and the add that waits longest."""

    params = [SIZES]
    param_names = ["n_keys"]

    def setup(self, keys, n_keys):
        self.keys = keys[:n_keys]
        self.filter = dlbf.GrowingFilter(FPR)
        self.filter.update(self.keys)
        self.absent = queries(min(N_QUERIES, n_keys), 0.0, self.keys)

    def time_update(self, keys, n_keys):
        dlbf.GrowingFilter(FPR).update(self.keys)

    def time_query_absent(self, keys, n_keys):
        filter_ = self.filter
        for key in self.absent:
            key in filter_  # noqa: B015

    def time_contains_many_absent(self, keys, n_keys):
        self.filter.contains_many(self.absent)

    def track_bits_per_key(self, keys, n_keys):
        return self.filter.bits_per_key

    track_bits_per_key.unit = "bits"

    def track_worst_add(self, keys, n_keys):
        """Of equal runs each add has its shortest time, so that what the machine does meanwhile does not count."""
        shortest = np.full(n_keys, np.iinfo(np.int64).max)
        for _ in range(WORST_ADD_RUNS):
            filter_ = dlbf.GrowingFilter(FPR)
            times = np.empty(n_keys, dtype=np.int64)
            for i, key in enumerate(self.keys):
                start = time.perf_counter_ns()
                filter_.add(key)
                times[i] = time.perf_counter_ns() - start
            shortest = np.minimum(shortest, times)
        return shortest.max() / 1000

    track_worst_add.unit = "µs"


class FilterHashed(WithKeys):
    """Asking by hashes made before: what is left when nobody hashes keys."""

    params = [list(FILTERS), SIZES]
    param_names = ["filter", "n_keys"]

    def setup(self, keys, name, n_keys):
        self.filter = FILTERS[name](n_keys)
        self.filter.update(keys[:n_keys])
        self.queries = queries(min(N_QUERIES, n_keys), 0.0, keys)
        self.secret = secret_of(self.filter)
        self.hashes = dlbf.hash_keys(self.queries, self.secret)

    def time_hash_keys(self, keys, name, n_keys):
        dlbf.hash_keys(self.queries, self.secret)

    def time_contains_hashes(self, keys, name, n_keys):
        self.filter.contains_hashes(self.hashes)


class FilterBatchInput(WithKeys):
    """The cost of getting at the keys: objects one by one, or arrays at once."""

    params = [["list", "tuple", "generator", "numpy S", "arrow"]]
    param_names = ["input"]

    def setup(self, keys, kind):
        keys = keys[: size(200_000)]
        self.filter = FILTERS["CountingBloomFilter"](len(keys))
        self.filter.update(keys)
        absent = queries(N_QUERIES, 0.0, keys)
        if kind == "arrow":
            try:
                import pyarrow
            except ImportError:
                raise NotImplementedError from None
            self.input = pyarrow.array(absent)
        elif kind == "numpy S":
            self.input = np.array(absent)
        else:
            self.input = tuple(absent) if kind == "tuple" else absent
        self.kind = kind

    def time_contains_many(self, keys, kind):
        self.filter.contains_many(iter(self.input) if kind == "generator" else self.input)


class FilterRemove(WithKeys):
    """Removing a tenth of the keys; setup fills the filter anew each time."""

    params = [DELETABLE, SIZES]
    param_names = ["filter", "n_keys"]
    number = 1
    repeat = 5

    def setup(self, keys, name, n_keys):
        keys = keys[:n_keys]
        self.filter = FILTERS[name](n_keys)
        self.filter.update(keys)
        self.gone = keys[: n_keys // 10]

    def time_remove(self, keys, name, n_keys):
        for key in self.gone:
            self.filter.remove(key)

    def time_remove_many(self, keys, name, n_keys):
        self.filter.remove_many(self.gone)


class FilterThreads(WithKeys):
    """One batch shared by one or two threads: the GIL is released, so two should take half the time."""

    params = [["CountingBloomFilter", "CuckooFilter"], [1, 2]]
    param_names = ["filter", "n_threads"]

    def setup(self, keys, name, n_threads):
        self.filter = FILTERS[name](len(keys))
        self.filter.update(keys)
        absent = queries(size(400_000), 0.0, keys)
        share = len(absent) // n_threads
        self.parts = [absent[i * share : (i + 1) * share] for i in range(n_threads)]

    def time_contains_many(self, keys, name, n_threads):
        threads = [threading.Thread(target=self.filter.contains_many, args=(part,)) for part in self.parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class FilterRates(WithKeys):
    """What a filter asked for 1 % delivers."""

    params = [list(FILTERS)]
    param_names = ["filter"]

    def setup(self, keys, name):
        self.keys = keys[: size(100_000)]
        self.filter = FILTERS[name](len(self.keys))
        self.filter.update(self.keys)
        self.absent = queries(size(500_000), 0.0, [])

    def track_fpr_over_target(self, keys, name):
        return float(self.filter.contains_many(self.absent).mean()) / FPR

    track_fpr_over_target.unit = "ratio"


class FilterForgets(WithKeys):
    """How many of the removed keys then answer "absent"."""

    params = [DELETABLE]
    param_names = ["filter"]

    def setup(self, keys, name):
        self.keys = keys[: size(100_000)]
        self.filter = FILTERS[name](len(self.keys))
        self.filter.update(self.keys)

    def track_deletability(self, keys, name):
        gone = self.keys[: len(self.keys) // 10]
        self.filter.remove_many(gone)
        return float((~self.filter.contains_many(gone)).mean())


class FilterFiles:
    """Opening maps; it must not depend on the size."""

    params = [sizes(10_000, 3_000_000)]
    param_names = ["n_keys"]

    def setup(self, n_keys):
        import tempfile
        from pathlib import Path

        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "filter"
        filter_ = FILTERS["CuckooFilter"](n_keys)
        filter_.update(make_keys(1000))
        filter_.save(self.path)

    def teardown(self, n_keys):
        self.folder.cleanup()

    def time_open_and_ask(self, n_keys):
        import dlbf

        with dlbf.open_filter(self.path) as filter_:
            b"no such key" in filter_  # noqa: B015
