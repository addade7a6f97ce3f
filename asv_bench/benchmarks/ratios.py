"""What is said of speed as a ratio, measured in turns with what it is compared to: the best time over the best time.

    python -m benchmarks.ratios [NAME ...]

in ``asv_bench`` prints them.  A busy machine changes ratios less than times; those below 1 are better the smaller they
are, and ``threads_contains_many`` is how much more two threads do than one.
"""

import importlib.util
import random
import shutil
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import dlbf
from dlbf.bench.data import choose_keys
from dlbf.bench.shards import pair
from dlbf.bench.timing import ask_each_in, call_with_each, fresh, side_by_side

from .common import FPR, SECRET, TINY, rbloom_or_skip, size

__all__ = ["Ratios"]

N_KEYS = size(100_000)
N_QUERIES = size(4000, 200)
ROUNDS = 3 if TINY else 40
VALUE = b"a value of some length"
PEERS_OF = {"learned_many_to_rbloom": "rbloom", "get_absent_to_rocksdb": "rocksdict"}  # packages


def ratio(ours, theirs, absent):
    """Best time of the first over that of the second."""

    def asked(turn):
        return fresh(random.Random(turn).choices(absent, k=N_QUERIES))

    times = side_by_side({"ours": ours, "theirs": theirs}, asked, ROUNDS)
    return times["ours"].best / times["theirs"].best


def filled(keys, secret=None):
    f = dlbf.CuckooFilter(len(keys), FPR, secret=secret)
    f.update(keys)
    return f


class Ratios:
    """One ratio each."""

    params = [
        [
            "get_many_absent_to_filter", "get_many_learned_to_get", "learned_many_to_rbloom", "get_absent_to_rocksdb",
            "in_keyed_to_unkeyed", "threads_contains_many", "load_to_lmdb", "in_shards_to_one", "many_shards_to_one",
            "in_learned_shards_to_one", "many_learned_shards_to_one",
        ]
    ]  # fmt: skip
    param_names = ["ratio"]
    unit = "times"
    timeout = 600

    def setup(self, name):
        if name in PEERS_OF and importlib.util.find_spec(PEERS_OF[name]) is None:
            raise NotImplementedError  # asv skips it
        self.folder = Path(tempfile.mkdtemp(prefix="dlbf-ratios"))
        _, self.keys, self.absent = choose_keys(None, N_KEYS, N_KEYS)
        self.keys, self.absent = self.keys[:N_KEYS], self.absent[:N_KEYS]

    def teardown(self, name):
        shutil.rmtree(self.folder, ignore_errors=True)

    def track_ratio(self, name):
        return getattr(self, f"_{name}")()

    def _store(self, keys):
        from dlbf.storage import Store

        store = Store(self.folder / "store", FPR, secret=SECRET, sync="none", sample_misses=False)
        store.update(dict.fromkeys(keys, VALUE))
        store.rebuild()
        return store

    def _get_many_absent_to_filter(self):
        with self._store(self.keys) as store:
            return ratio(store.get_many, store.ledger.filter.contains_many, self.absent)

    def _get_many_learned_to_get(self):
        with self._store(self.keys) as store:
            half = len(self.absent) // 2
            store.rebuild(self.absent[:half], model="ngram", design="auto")
            return ratio(store.get_many, call_with_each(store.get), self.absent[half:])

    def _learned_many_to_rbloom(self):
        peer = rbloom_or_skip(len(self.keys))
        peer.update(self.keys)
        half = len(self.absent) // 2
        learned = dlbf.LearnedFilter.fit(self.keys, self.absent[:half], fpr=FPR, model="ngram", progress=False)
        return ratio(learned.contains_many, ask_each_in(peer), self.absent[half:])

    def _get_absent_to_rocksdb(self):
        from dlbf.bench.engines import RocksBloom

        engine = RocksBloom(self.folder / "rocksdb")
        try:
            engine.load([(key, VALUE) for key in self.keys])
            engine.settle([])
            with self._store(self.keys) as store:
                return ratio(call_with_each(store.get), call_with_each(engine.db.get), self.absent)
        finally:
            engine.close()

    def _in_keyed_to_unkeyed(self):
        return ratio(ask_each_in(filled(self.keys, SECRET)), ask_each_in(filled(self.keys)), self.absent)

    def _shards(self, kind, way):
        half = len(self.absent) // 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # few negatives: sizes are cautious
            one, shards = pair(kind, self.keys, self.absent[:half], self.folder)
        with shards:
            return ratio(way(shards), way(one), self.absent[half:])

    def _in_shards_to_one(self):
        return self._shards("cuckoo", ask_each_in)

    def _many_shards_to_one(self):
        return self._shards("cuckoo", lambda f: f.contains_many)

    def _in_learned_shards_to_one(self):
        return self._shards("learned", ask_each_in)

    def _many_learned_shards_to_one(self):
        return self._shards("learned", lambda f: f.contains_many)

    def _threads_contains_many(self):
        f = filled(self.keys)

        def two(batch):
            half = len(batch) // 2
            threads = [threading.Thread(target=f.contains_many, args=(part,)) for part in (batch[:half], batch[half:])]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        many = fresh(self.absent * (1 if TINY else 10))
        times = side_by_side({"one": f.contains_many, "two": two}, lambda turn: many, 3 if TINY else 15)
        return times["one"].best / times["two"].best

    def _load_to_lmdb(self):
        import lmdb

        from dlbf.storage import Store

        turn = iter(range(1000))

        def ours(batch):
            with Store(self.folder / f"{next(turn)}", FPR, sync="none") as store:
                store.update((key, VALUE) for key in batch)

        def theirs(batch):
            with (
                lmdb.open(str(self.folder / f"{next(turn)}"), map_size=1 << 30, sync=False) as environment,
                environment.begin(write=True) as txn,
            ):
                for key in batch:
                    txn.put(key, VALUE)

        many = sorted(self.keys)
        times = side_by_side({"ours": ours, "theirs": theirs}, lambda turn: many, 3 if TINY else 7)
        return times["ours"].best / times["theirs"].best


def main():
    """Print every ratio, or those named."""
    for name in sys.argv[1:] or Ratios.params[0]:
        case = Ratios()
        try:
            case.setup(name)
        except NotImplementedError:
            print(f"{name}: what it is compared to is not installed")
            continue
        try:
            print(f"{name}: {case.track_ratio(name):.2f}", flush=True)
        finally:
            case.teardown(name)


if __name__ == "__main__":
    main()
