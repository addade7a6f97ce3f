"""The store beside plain LMDB: reads, writes, opening, recovery, rebuilding, sizes, disk reads."""

import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lmdb

from dlbf.bench.engines import evict
from dlbf.bench.scale_store import WRITER
from dlbf.datasets import ordinary_urls
from dlbf.errors import StoreError
from dlbf.storage import Store

from .common import make_keys, queries, size, sizes

N_QUERIES = size(20_000)
SIZES = sizes(10_000, 100_000, 1_000_000)
VALUE = b"a value of some length"
RECOVERY_COMMITS = size(200, 20)


def fill_both(n_keys, folder):
    """A store and a plain LMDB environment with the same keys, closed."""
    keys = make_keys(n_keys)
    environment = open_lmdb(folder / "lmdb")
    with environment.begin(write=True) as txn:
        for key in keys:
            txn.put(key, VALUE)
    environment.close()
    with Store(folder / "store", sync="none") as store:
        store.update((key, VALUE) for key in keys)


def open_lmdb(path):
    return lmdb.open(str(path), map_size=1 << 36, sync=False, readahead=False, max_spare_txns=1)


class Filled:
    """Both stores, made once for all benchmarks of a class."""

    timeout = 600

    def setup_cache(self):
        folders = {}
        for n_keys in SIZES:
            folders[n_keys] = Path.cwd() / f"{type(self).__name__} {n_keys}"
            folders[n_keys].mkdir()
            fill_both(n_keys, folders[n_keys])
        return folders


class StoreRead(Filled):
    """Reading: absent keys end in the filter, present ones pay for it and then for LMDB."""

    params = [["store", "lmdb"], SIZES, [0.0, 0.05, 0.5, 1.0]]
    param_names = ["engine", "n_keys", "hit_ratio"]

    def setup_cache(self):
        return super().setup_cache()

    def setup(self, folders, engine, n_keys, hit_ratio):
        self.queries = queries(min(N_QUERIES, n_keys), hit_ratio, make_keys(n_keys))
        self.store = Store(folders[n_keys] / "store", readonly=True)
        self.environment = open_lmdb(folders[n_keys] / "lmdb")
        self.store.get(b"load the filter")

    def teardown(self, folders, engine, n_keys, hit_ratio):
        self.store.close()
        self.environment.close()

    def time_get(self, folders, engine, n_keys, hit_ratio):
        if engine == "store":
            for key in self.queries:
                self.store.get(key)
        else:
            for key in self.queries:
                with self.environment.begin() as txn:
                    txn.get(key)

    def time_contains_many(self, folders, engine, n_keys, hit_ratio):
        if engine == "store":
            self.store.contains_many(self.queries)
        else:
            with self.environment.begin(buffers=True) as txn:
                for key in self.queries:
                    txn.get(key)

    def time_get_many(self, folders, engine, n_keys, hit_ratio):
        if engine == "store":
            self.store.get_many(self.queries)
        else:
            with self.environment.begin() as txn:
                for key in self.queries:
                    txn.get(key)


class StoreCold(Filled):
    """Disk reads for absent keys, with every page of the data out of memory."""

    params = [["store", "lmdb"], SIZES]
    param_names = ["engine", "n_keys"]

    def setup_cache(self):
        return super().setup_cache()

    def setup(self, folders, engine, n_keys):
        self.folder = folders[n_keys]
        self.queries = queries(2000, 0.0, [])
        self.store = Store(self.folder / "store", readonly=True)
        self.environment = open_lmdb(self.folder / "lmdb")
        self.store.get(b"load the filter")

    def teardown(self, folders, engine, n_keys):
        self.store.close()
        self.environment.close()

    def _faults(self, engine):
        evict(self.folder)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        for key in self.queries:
            if engine == "store":
                self.store.get(key)
            else:
                with self.environment.begin() as txn:
                    txn.get(key)
        return resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before

    def track_major_faults_per_1000(self, folders, engine, n_keys):
        return 1000 * self._faults(engine) / len(self.queries)

    track_major_faults_per_1000.unit = "faults"


class StoreWrite:
    """Writing new keys: LMDB dominates, the journal and the growing filter are what we add."""

    params = [["store", "store, writemap", "lmdb"], [1, 1000]]
    param_names = ["engine", "batch"]
    number = 1

    def setup(self, engine, batch):
        self.folder = tempfile.mkdtemp()
        self.keys = make_keys(size(20_000))
        self.environment = open_lmdb(f"{self.folder}/lmdb")
        try:
            self.store = Store(f"{self.folder}/store", sync="none", writemap=engine.endswith("writemap"))
        except StoreError as error:  # a file system that gives no room
            self.environment.close()
            shutil.rmtree(self.folder)
            raise NotImplementedError(str(error)) from None

    def teardown(self, engine, batch):
        self.store.close()
        self.environment.close()
        shutil.rmtree(self.folder)

    def _begin(self, engine):
        return self.environment.begin(write=True) if engine == "lmdb" else self.store.write()

    def time_put(self, engine, batch):
        for i in range(0, len(self.keys), batch):
            with self._begin(engine) as txn:
                for key in self.keys[i : i + batch]:
                    txn.put(key, VALUE)

    def time_put_and_delete(self, engine, batch):
        self.time_put(engine, batch)
        for i in range(0, len(self.keys), batch):
            with self._begin(engine) as txn:
                for key in self.keys[i : i + batch]:
                    txn.delete(key)


class StoreOpen(Filled):
    """Opening does not read the data; the first read copies the filter; after a kill the journal is replayed."""

    params = [SIZES]
    param_names = ["n_keys"]
    number = 1

    def setup_cache(self):
        return super().setup_cache()

    def setup(self, folders, n_keys):
        self.path = folders[n_keys] / "store"
        # A writer that is killed after its commits: what is opened below has a journal to replay.
        subprocess.run([sys.executable, "-c", WRITER, str(self.path), str(RECOVERY_COMMITS)], check=False)

    def time_open(self, folders, n_keys):
        Store(self.path, readonly=True).close()

    def time_recover(self, folders, n_keys):
        with Store(self.path, readonly=True) as store:
            store.get(b"an absent key")

    def peakmem_open_and_read(self, folders, n_keys):
        with Store(self.path, readonly=True) as store:
            store.get(b"an absent key")


class Designed(Filled):
    """A store whose filter is made without a model, or learns from absent keys."""

    params = [SIZES, ["cuckoo", "learned"]]
    param_names = ["n_keys", "design"]
    number = 1

    def setup(self, folders, n_keys, design):
        self.store = Store(folders[n_keys] / "store", sync="none")
        self.absent = list(ordinary_urls(size(200_000, 10_000)))

    def teardown(self, folders, n_keys, design):
        self.store.close()

    def _rebuild(self, design):
        if design == "cuckoo":
            self.store.rebuild(design="cuckoo")
        else:
            self.store.rebuild(negatives=self.absent[::2], model="ngram")


class StoreRebuild(Designed):
    """Making the filter anew, and what it costs."""

    def setup_cache(self):
        return super().setup_cache()

    def time_rebuild(self, folders, n_keys, design):
        self._rebuild(design)

    def peakmem_rebuild(self, folders, n_keys, design):
        self._rebuild(design)

    def track_bits_per_key(self, folders, n_keys, design):
        self._rebuild(design)
        return self.store.stats().bits_per_key

    track_bits_per_key.unit = "bits"

    def track_observed_fpr(self, folders, n_keys, design):
        self._rebuild(design)
        for key in self.absent[1::2]:
            self.store.get(key)
        return self.store.stats().observed_fpr


class StoreVerify(Designed):
    """Comparing a filter with the data; setup makes that of the design, whatever ran before."""

    def setup_cache(self):
        return super().setup_cache()

    def setup(self, folders, n_keys, design):
        super().setup(folders, n_keys, design)
        self._rebuild(design)

    def time_verify(self, folders, n_keys, design):
        self.store.verify()


class StoreGrown(Filled):
    """The filter as it has grown by itself, between a rebuild and the next."""

    params = [SIZES]
    param_names = ["n_keys"]

    def setup_cache(self):
        return super().setup_cache()

    def track_bits_per_key(self, folders, n_keys):
        with Store(folders[n_keys] / "store", readonly=True) as store:
            return store.stats().bits_per_key

    track_bits_per_key.unit = "bits"
