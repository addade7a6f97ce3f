"""What making a base takes besides the data: at most twelve bytes for each key."""

import tracemalloc

from support.learned_common import small_model

from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.storage import Store, rebuild
from dlbf.storage.build import KEYS_PER_UPDATE

N_KEYS = 150_000
MOST_BYTES_PER_KEY = 12
# The walk has a batch of keys as Python objects, and the next one before the last is gone: of each key a pointer, the
# header of a bytes object and 60 characters.
BATCH_BYTES = 2 * KEYS_PER_UPDATE * (8 + 40 + 60)


def test_memory_of_a_rebuild_beyond_what_it_learns_from(path, monkeypatch):
    choose = rebuild.choose_layers

    def traced(*arguments):
        # From here on, where the room for hashes is made; what is learned from is bounded by itself.
        tracemalloc.start()
        return choose(*arguments)

    monkeypatch.setattr(rebuild, "choose_layers", traced)
    monkeypatch.setattr(rebuild, "MAX_KEYS", 8000)
    with Store(path, sync="none") as store:
        store.update((key, b"v") for key in listed_urls(N_KEYS, seed=3))
        for model, negatives in (None, None), (small_model(), list(ordinary_urls(8000, seed=3))):
            try:
                report = store.rebuild(negatives, "layers", model=model)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert (report.design, report.model) == ("layers", "none" if model is None else "ngram")
            bytes_per_key = (peak - BATCH_BYTES) / report.keys
            print(f"{report.model}: {peak} bytes, {bytes_per_key:.2f} per key beside the batches")
            assert bytes_per_key <= MOST_BYTES_PER_KEY
