"""A guard before an engine: what it saves for absent keys and costs for others, beside the bare engine."""

import shutil
import tempfile

from dlbf.storage import Guard

from .common import make_keys, queries, size, sizes

N_QUERIES = size(20_000)
SIZES = sizes(10_000, 100_000)
VALUE = b"a value of some length"


def open_engine(name, folder):
    """A bare engine with ``get``; a benchmark of one that is not installed is skipped."""
    if name == "dict":
        return {}
    try:
        import rocksdict
    except ImportError:
        raise NotImplementedError from None
    return rocksdict.Rdict(f"{folder}/db", rocksdict.Options(raw_mode=True))


class Engines:
    """An engine with its guard, filled; removed afterwards."""

    timeout = 300

    def fill(self, name, n_keys):
        self.folder = tempfile.mkdtemp()
        try:
            self.engine = open_engine(name, self.folder)
        except NotImplementedError:
            shutil.rmtree(self.folder)
            raise
        self.guard = Guard(self.engine, f"{self.folder}/guard", sync="none")
        self.keys = make_keys(n_keys)
        self.guard.update(dict.fromkeys(self.keys, VALUE))

    def teardown(self, name, *_):
        self.guard.close()
        if name != "dict":
            self.engine.close()
        shutil.rmtree(self.folder)


class GuardRead(Engines):
    """Absent keys end in the filter, present ones pay for it and then for the engine."""

    params = [["dict", "rocksdb"], SIZES, [0.0, 0.5, 1.0]]
    param_names = ["engine", "n_keys", "hit_ratio"]

    def setup(self, name, n_keys, hit_ratio):
        self.fill(name, n_keys)
        self.queries = queries(min(N_QUERIES, n_keys), hit_ratio, self.keys)

    def time_get(self, name, n_keys, hit_ratio):
        get = self.guard.get
        for key in self.queries:
            get(key)

    def time_get_bare(self, name, n_keys, hit_ratio):
        get = self.engine.get
        for key in self.queries:
            get(key)


class GuardWrite(Engines):
    """New keys and deletes, one by one and in batches: each is a commit of the guard."""

    params = [["dict", "rocksdb"], [1, 1000]]
    param_names = ["engine", "batch"]
    number = 1

    def setup(self, name, batch):
        self.fill(name, size(10_000))
        self.new = [b"~" + key for key in self.keys[: size(2000, 200)]]

    def time_put_and_delete(self, name, batch):
        for i in range(0, len(self.new), batch):
            self.guard.update(dict.fromkeys(self.new[i : i + batch], VALUE))
        for i in range(0, len(self.new), batch):
            self.guard.delete_many(self.new[i : i + batch])
