"""Models: scoring one key and many, opening, training, what a model is worth at a size."""

from dlbf import models
from dlbf.datasets import listed_urls, ordinary_urls

from .common import TINY, size

N_TRAIN = size(50_000)
N_QUERIES = size(20_000)
KINDS = ["ngram", "svm", "naive-bayes", "trees"]
SIZES = [1024] if TINY else [1024, 8192, 65536]


def key_sets():
    """Keys and negatives to learn from, and absent keys to score, all of one making."""
    ordinary = list(ordinary_urls(N_TRAIN + N_QUERIES))
    return list(listed_urls(N_TRAIN)), ordinary[:N_TRAIN], ordinary[N_TRAIN:]


class ModelScore:
    """Scoring absent keys: hashing every run of bytes dominates ``ngram``, the passes over the key the others."""

    params = [KINDS, ["one", "many"]]
    param_names = ["kind", "how"]
    timeout = 300

    def setup_cache(self):
        keys, negatives, queries = key_sets()
        made = {
            kind: models.train(keys, negatives, kind=kind, max_bytes=8192, progress=False).to_bytes() for kind in KINDS
        }
        return made, queries

    def setup(self, cache, kind, how):
        made, self.queries = cache
        self.model = models.from_bytes(made[kind])

    def time_score(self, cache, kind, how):
        if how == "many":
            self.model.score_many(self.queries)
            return
        score = self.model.score
        for key in self.queries:
            score(key)

    def track_model_bytes(self, cache, kind, how):
        return self.model.nbytes

    track_model_bytes.unit = "bytes"


class ModelOpen:
    """Reading a model: one checksum and one pass over its nodes; no training library is imported."""

    params = [SIZES]
    param_names = ["n_bytes"]

    def setup_cache(self):
        keys, negatives, _ = key_sets()
        return {
            n_bytes: models.train(keys, negatives, kind="ngram", max_bytes=n_bytes, epochs=1, progress=False).to_bytes()
            for n_bytes in SIZES
        }

    def setup(self, made, n_bytes):
        self.data = made[n_bytes]

    def time_from_bytes(self, made, n_bytes):
        models.from_bytes(self.data)


class ModelTrain:
    """Training: gradient steps dominate, features are a third of it."""

    params = [["ngram", "auto"], SIZES]
    param_names = ["kind", "max_bytes"]
    timeout = 300
    number = 1
    repeat = (1, 3, 20.0)

    def setup(self, kind, max_bytes):
        self.keys, self.negatives, _ = key_sets()

    def _train(self, kind, max_bytes):
        return models.train(self.keys, self.negatives, kind=kind, max_bytes=max_bytes, progress=False)

    def time_train(self, kind, max_bytes):
        self._train(kind, max_bytes)

    def peakmem_train(self, kind, max_bytes):
        self._train(kind, max_bytes)

    def track_kl(self, kind, max_bytes):
        return self._train(kind, max_bytes).report["kl_integer"]

    track_kl.unit = "nats"

    def track_total_bits_per_key(self, kind, max_bytes):
        return self._train(kind, max_bytes).report["total_bits_per_key"]

    track_total_bits_per_key.unit = "bits"
