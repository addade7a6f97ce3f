"""rebuild(on=...): the same filter by several processes, nothing missed whatever is written meanwhile."""

import random
import threading
from contextlib import contextmanager

import pytest
from support.learned_common import small_model

import dlbf
from dlbf.build.workers import Here
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.storage import Guard, Store, lmdbparts
from dlbf.storage.ranges import even_cuts

KEYS = list(listed_urls(6000))
LONG = [b"long" * 200 + b"%d" % i for i in range(20)]


def filled(path):
    store = Store(path, sync="none")
    store.update(dict.fromkeys([*KEYS, *LONG, b"\0", b"\xff" * 20], b"v"))
    return store


def base_of(store):
    return store.ledger.filter.base.to_bytes()


def test_processes_gather_what_one_does(tmp_path):
    with filled(tmp_path / "s") as store:
        store.rebuild(design="layers")
        alone = base_of(store)
        report = store.rebuild(design="layers", on=2)
        assert report.done
        assert base_of(store) == alone
        assert report.keys == len(store) == len(store.ledger.filter)
        assert not [note for note in report.notes if "one part" in note]
        assert store.verify().ok


def test_a_model_scores_in_the_processes(tmp_path):
    absent = list(ordinary_urls(6000))
    with filled(tmp_path / "s") as store:
        store.rebuild(absent, design="layers", model=small_model())
        alone = base_of(store)
        report = store.rebuild(absent, design="layers", model=small_model(), on=2)
        assert store.ledger.filter.base.model_bytes
        assert base_of(store) == alone
        assert report.done
        assert store.verify().ok


@contextmanager
def here(store, between):
    """Parts are scanned by this process, one after the other; ``between`` is called before each list of keys."""

    class Worker(Here):
        def run(self, function, tasks):
            return super().run(function, random.sample(tasks, len(tasks)))

    @contextmanager
    def workers_on(on, n_workers=None):
        yield Worker()

    def batches(part, n_keys):
        for keys in lmdbparts.read_part(store.source, part.after, part.upto, 500):
            yield keys
            between()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dlbf.build.workers.workers_on", workers_on)
        patch.setattr(lmdbparts.StorePart, "batches", batches)
        yield


@pytest.mark.parametrize("seed", range(6))
def test_keys_that_change_while_parts_are_scanned_are_never_missed(tmp_path, seed):
    rng = random.Random(seed)
    with filled(tmp_path / "s") as store:
        model = dict(store.items())
        known = [*model, *(b"new %d" % i for i in range(3000))]

        def change():
            for key in rng.sample(known, 40):
                if key in model and rng.random() < 0.5:
                    del store[key], model[key]
                else:
                    store[key] = model[key] = b"%d" % seed

        with here(store, change):
            assert store.rebuild(design="layers", on=2).done
        for _ in range(20):
            change()
        assert store.ledger.filter.contains_many(list(model)).all()
        assert dict(store.items()) == model
        assert all(store.get(key) == model.get(key) for key in known)
        assert len(store.ledger.filter) == len(model)
        assert store.verify().ok
    with Store(tmp_path / "s") as store:
        assert all(store.get(key) == model.get(key) for key in known)


def test_writers_of_this_process_beside_those_that_scan(tmp_path):
    stop = threading.Event()
    with filled(tmp_path / "s") as store:
        model = dict(store.items())

        def write():
            rng = random.Random(1)
            while not stop.wait(0.0005):
                key = rng.choice(KEYS) if rng.random() < 0.5 else b"new %d" % rng.randrange(5000)
                if key in model and rng.random() < 0.5:
                    del store[key], model[key]
                else:
                    store[key] = model[key] = b"w"

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert store.rebuild(design="layers", on=2).done
        finally:
            stop.set()
            writer.join()
        assert store.ledger.filter.contains_many(list(model)).all()
        assert dict(store.items()) == model
        assert store.verify().ok


def test_a_worker_that_fails_leaves_the_old_filter(tmp_path):
    def fail():
        raise OSError("no such disk")

    with filled(tmp_path / "s") as store:
        store.rebuild(design="layers")
        before = base_of(store)
        with here(store, fail), pytest.raises(dlbf.StoreError, match="the old filter stays: no such disk"):
            store.rebuild(design="layers", on=2)
        assert base_of(store) == before
        assert store.state == "filtering"


def test_what_others_cannot_scan_is_scanned_here_and_said(tmp_path):
    with Guard(dict.fromkeys(KEYS, b"v"), tmp_path / "g") as guard:
        report = guard.rebuild(on=2)
        assert report.done
        assert [note for note in report.notes if "one part, by this process" in note]
    with filled(tmp_path / "s") as store:
        report = store.rebuild(design="tables", on=2)
        assert [note for note in report.notes if "only what layers are made of" in note]
        for wrong in (0, -1, True, "nobody"):
            with pytest.raises(ValueError, match="on: expected"):
                store.rebuild(on=wrong)


@pytest.mark.parametrize("n_keys", [0, 1, 2, 5000])
def test_parts_have_all_keys_once(tmp_path, n_keys):
    rng = random.Random(n_keys)
    keys = sorted({rng.randbytes(rng.randrange(1, 12)) for _ in range(n_keys)} | {b"" for _ in range(n_keys > 2)})
    with Store(tmp_path / "s", sync="none") as store:
        store.update(dict.fromkeys(keys, b""))
        parts = lmdbparts.StoreParts(store.source)
        for sampled in ([], keys[::7]):
            cut = parts.cut(8, sampled)
            found = [
                key
                for part in cut
                for batch in lmdbparts.read_part(store.source, part.after, part.upto, 100)
                for key in batch
            ]
            assert found == keys
            assert len(cut) <= 8
        if n_keys == 5000:
            assert len(parts.cut(8, [])) >= 6


def test_cuts_of_keys_that_begin_alike():
    keys = [b"http://www.example/%04d" % i for i in range(1000)]
    cuts = even_cuts(4, [], lambda after: next((key for key in keys if key > after), None))
    places = [keys.index(cut) for cut in cuts]
    assert len(cuts) >= 2
    assert places == sorted(set(places))
