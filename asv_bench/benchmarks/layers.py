"""The layered filter of a store: an absent get just after a rebuild and with added keys, its size, and a new base."""

import tempfile
from pathlib import Path

from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.storage import Store

from .common import FPR, size

N_KEYS = size(200_000, 6000)
N_ASKED = size(20_000, 500)
# Of as many as are planned for: before the next base is begun.
ADDED_SHARES = [0.0, 0.02]


class Layered:
    """A store of each design with a share of its keys added since its filter was made."""

    params = [["layers", "tables"], ADDED_SHARES]
    param_names = ["design", "added"]
    timeout = 600

    def setup(self, design, added):
        keys = list(listed_urls(N_KEYS))
        n_first = round(N_KEYS * (1 - added))
        self.absent = list(ordinary_urls(N_ASKED))
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self.folder.name) / "store", fpr=FPR, sync="none")
        self.store.update((key, b"v") for key in keys[:n_first])
        self.store.rebuild(design=design, model=None)
        for key in keys[n_first:]:
            self.store[key] = b"v"
        self.ask()  # what is read for nothing is known afterwards

    def teardown(self, design, added):
        self.store.close()
        self.folder.cleanup()

    def ask(self):
        get = self.store.get
        for key in self.absent:
            get(key)

    def time_absent_gets(self, design, added):
        self.ask()

    def track_bits_per_key(self, design, added):
        return self.store.stats().bits_per_key

    track_bits_per_key.unit = "bits"

    def time_rebuild(self, design, added):
        self.store.rebuild(design=design, model=None)
