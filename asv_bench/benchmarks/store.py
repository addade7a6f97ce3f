"""The store beside plain LMDB: reads of present and absent keys, writes, opening, sizes."""

import shutil
import tempfile

import lmdb

from dlbf.storage import Store

from .common import make_keys, queries

N_QUERIES = 20_000
SIZES = [10_000, 1_000_000]
VALUE = b"a value of some length"


class _Filled:
    """Makes both stores once per parameter set; reads then compare like with like."""

    def make(self, n_keys):
        self.folder = tempfile.mkdtemp()
        self.keys = make_keys(n_keys)
        self.env = lmdb.open(f"{self.folder}/lmdb", map_size=1 << 36, sync=False)
        with self.env.begin(write=True) as txn:
            for key in self.keys:
                txn.put(key, VALUE)
        self.store = Store(f"{self.folder}/store", sync="none")
        self.store.update((key, VALUE) for key in self.keys)

    def teardown(self, *params):
        if hasattr(self, "folder"):
            self.store.close()
            self.env.close()
            shutil.rmtree(self.folder)


class StoreRead(_Filled):
    """Reading: absent keys end in the filter, present ones pay for it and then for LMDB."""

    params = [["store", "lmdb"], SIZES, [0.0, 0.5, 1.0]]
    param_names = ["engine", "n_keys", "hit_ratio"]

    def setup(self, engine, n_keys, hit_ratio):
        self.make(n_keys)
        self.queries = queries(min(N_QUERIES, n_keys), hit_ratio, self.keys)
        self.store.get(b"load the filter")

    def time_get(self, engine, n_keys, hit_ratio):
        if engine == "store":
            for key in self.queries:
                self.store.get(key)
        else:
            for key in self.queries:
                with self.env.begin() as txn:
                    txn.get(key)

    def time_get_many(self, engine, n_keys, hit_ratio):
        if engine == "store":
            self.store.get_many(self.queries)
        else:
            with self.env.begin() as txn:
                for key in self.queries:
                    txn.get(key)


class StoreWrite:
    """Writing new keys: LMDB dominates, the journal and the growing filter are what we add."""

    params = [["store", "lmdb"], [1, 1000]]
    param_names = ["engine", "batch"]
    number = 1

    def setup(self, engine, batch):
        self.folder = tempfile.mkdtemp()
        self.keys = make_keys(20_000)
        self.env = lmdb.open(f"{self.folder}/lmdb", map_size=1 << 36, sync=False)
        self.store = Store(f"{self.folder}/store", sync="none")

    def teardown(self, engine, batch):
        self.store.close()
        self.env.close()
        shutil.rmtree(self.folder)

    def time_put(self, engine, batch):
        for i in range(0, len(self.keys), batch):
            with self.store.write() if engine == "store" else self.env.begin(write=True) as txn:
                for key in self.keys[i : i + batch]:
                    txn.put(key, VALUE)


class StoreLife(_Filled):
    """Opening, rebuilding, verifying; and what the filter costs."""

    params = [SIZES]
    param_names = ["n_keys"]
    timeout = 300

    def setup(self, n_keys):
        self.make(n_keys)

    def time_open(self, n_keys):
        self.store.close()
        self.store = Store(f"{self.folder}/store", sync="none")

    def time_open_and_read(self, n_keys):
        self.store.close()
        self.store = Store(f"{self.folder}/store", sync="none")
        self.store.get(b"load the filter")

    def time_rebuild(self, n_keys):
        self.store.rebuild()

    def time_verify(self, n_keys):
        self.store.verify()

    def track_bits_per_key_grown(self, n_keys):
        return self.store.stats().bits_per_key

    track_bits_per_key_grown.unit = "bits"

    def track_bits_per_key_rebuilt(self, n_keys):
        return self.store.rebuild().bits_per_key

    track_bits_per_key_rebuilt.unit = "bits"
