"""Needless reads where questions repeat: what a store remembers of the false positives it has found."""

import tempfile
from pathlib import Path

from dlbf.bench.stress_subjects import STRESSED, Keys, Size, train
from dlbf.bench.stress_workloads import circle, count, popular_orders, replay
from dlbf.datasets import listed_urls, ordinary_urls

from .common import FPR, TINY, size

N_KEYS = size(50_000, 2000)
N_ASKED = size(100_000, 4000)
N_QUESTIONS = size(500_000, 4000)
BITS_PER_KEY = 12.9 if TINY else 8.2  # a model of few keys weighs more per key
NAMES = ["LearnedFilter", "Store", "Store, learned"]


class Stressed:
    """A filter or a store of a given size, or made for a given rate."""

    params = [NAMES]
    param_names = ["contender"]
    timeout = 600

    def setup_cache(self):
        absent = list(ordinary_urls(2 * N_ASKED))
        keys = Keys(list(listed_urls(N_KEYS)), absent[:N_ASKED], absent[N_ASKED:])
        return keys, train(keys, "ngram")

    wanted = Size(bits_per_key=BITS_PER_KEY)

    def setup(self, cache, contender):
        keys, shared = cache
        self.folder = tempfile.TemporaryDirectory()
        self.subject = STRESSED[contender].make(keys, self.wanted, shared, Path(self.folder.name) / "store")
        self.subject.restart()
        self.ask = lambda places: self.subject.ask(keys.asked, places)

    def teardown(self, cache, contender):
        self.subject.close()
        self.folder.cleanup()


class StressedBySize(Stressed):
    """At the bits per key of the literature."""

    def setup_cache(self):
        return super().setup_cache()

    def track_replay_per_million(self, cache, contender):
        return replay(N_ASKED, N_QUESTIONS, self.ask, seed=0).per_million

    track_replay_per_million.unit = "needless reads"

    def track_zipf_per_million(self, cache, contender):
        (places,) = popular_orders(N_ASKED, N_QUESTIONS, 1.5, 1, seed=0)
        return count(places, self.ask(places)).per_million

    track_zipf_per_million.unit = "needless reads"


class StressedAtRate(Stressed):
    """Made for 1 %."""

    wanted = Size(fpr=FPR)

    def setup_cache(self):
        return super().setup_cache()

    def track_zipf_per_million(self, cache, contender):
        (places,) = popular_orders(N_ASKED, N_QUESTIONS, 1.0, 1, seed=0)
        return count(places, self.ask(places)).per_million

    track_zipf_per_million.unit = "needless reads"

    def track_circle_per_million(self, cache, contender):
        return circle(N_ASKED, 1000, N_QUESTIONS, self.ask)[1].per_million

    track_circle_per_million.unit = "needless reads"
