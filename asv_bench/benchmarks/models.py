"""Models: scoring one key and many, training, what a model is worth at a size."""

from dlbf import models
from dlbf.bench.keys import listed_urls, ordinary_urls

N_TRAIN = 50_000
N_QUERIES = 20_000
KINDS = ["ngram", "svm", "naive-bayes", "trees"]
SIZES = [1024, 8192, 65536]


def key_sets():
    return list(listed_urls(N_TRAIN)), list(ordinary_urls(N_TRAIN, 3)), list(ordinary_urls(N_QUERIES, 11))


class ModelScore:
    """Scoring absent keys: hashing every run of bytes dominates ``ngram``, the passes over the key the others."""

    params = [KINDS, ["one", "many"]]
    param_names = ["kind", "how"]

    def setup_cache(self):
        keys, negatives, queries = key_sets()
        made = {kind: models.train(keys, negatives, kind=kind, max_bytes=8192).to_bytes() for kind in KINDS}
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


class ModelOpen:
    """Reading a model: one checksum and one pass over its nodes; no training library is imported."""

    params = [SIZES]
    param_names = ["n_bytes"]

    def setup(self, n_bytes):
        keys, negatives, _ = key_sets()
        self.data = models.train(keys, negatives, max_bytes=n_bytes, epochs=1).to_bytes()

    def time_from_bytes(self, n_bytes):
        models.from_bytes(self.data)


class ModelTrain:
    """Training: gradient steps dominate, features are a third of it."""

    params = [["ngram", "auto"], SIZES]
    param_names = ["kind", "max_bytes"]
    timeout = 300
    number = 1
    repeat = 3

    def setup(self, kind, max_bytes):
        self.keys, self.negatives, _ = key_sets()

    def time_train(self, kind, max_bytes):
        models.train(self.keys, self.negatives, kind=kind, max_bytes=max_bytes)

    def peakmem_train(self, kind, max_bytes):
        models.train(self.keys, self.negatives, kind=kind, max_bytes=max_bytes)

    def track_kl(self, kind, max_bytes):
        return models.train(self.keys, self.negatives, kind=kind, max_bytes=max_bytes).report["kl_integer"]

    track_kl.unit = "nats"

    def track_total_bits_per_key(self, kind, max_bytes):
        return models.train(self.keys, self.negatives, kind=kind, max_bytes=max_bytes).report["total_bits_per_key"]

    track_total_bits_per_key.unit = "bits"
