"""Damage to the filter's side of a store: reads go to the data, verify notices, rebuild repairs."""

import contextlib
import faulthandler
import functools
import logging
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest
from support import peek

from dlbf import models
from dlbf.errors import StoreError
from dlbf.learned import layouts
from dlbf.storage import Store, layers, layout, rebuild

OURS = ("filter", "journal", "meta", "model", "misses")
EVERYTHING = (*OURS, "tail")


def open_store(path, **options):
    return Store(path, **{"sync": "none", **options})


NEGATIVES = [b"another %d" % i for i in range(600)]


@functools.cache
def small_model():
    return models.train([b"key %d" % i for i in range(300)], NEGATIVES, max_bytes=64, epochs=2, progress=False)


def learn_layers(store):
    """So few keys are not worth a model: have one priced as if they were."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers.Plan, "base_bytes", lambda plan, n_keys: n_keys if plan.pattern is None else n_keys // 2)
        patch.setattr(layouts, "MIN_SAVING", -1e9)
        patch.setattr(rebuild, "LEAST_KEYS", 1)
        store.rebuild(NEGATIVES, "layers", model=small_model(), fpr=0.05)


# A design that is named is taken even where it does not pay.
FILTERS = {
    "learned tables": lambda store: store.rebuild(NEGATIVES, "lbf-2cbf", model=small_model(), fpr=0.05),
    "layers": lambda store: store.rebuild(design="layers", model=None),
    "learned layers": learn_layers,
}


def filled(path, n_keys=300, filter="learned tables"):
    """A closed store with a checkpoint, a journal behind it, misses, and a long key; its contents."""
    model = {b"key %d" % i: b"value %d" % i for i in range(n_keys)} | {b"long" * 200: b"x"}
    store = open_store(path)
    store.update(model)
    FILTERS[filter](store)
    assert store.stats().model == ("ngram" if "learned" in filter else "none")
    assert (store.stats().layers is not None) == ("layers" in filter)
    store.traffic.sample(8.0, 10**6, 1)
    store.get_many([b"missed %d" % i for i in range(400)])
    store.checkpoint()
    for i in range(20):
        del store[b"key %d" % i]
        del model[b"key %d" % i]
        store[b"new %d" % i] = model[b"new %d" % i] = b"n"
    peek.close_untidily(store)
    return model


def places(path):
    """(database, what, offset in data.mdb, size) of every key and value in our databases."""
    out = []
    with lmdb.open(str(path), max_dbs=9, readonly=True, lock=False) as env:
        base = next(
            int(line.split("-")[0], 16)
            for line in Path("/proc/self/maps").read_text().splitlines()
            if line.endswith(str(path / "data.mdb"))
        )
        handles = [(name, env.open_db(name.encode(), create=False)) for name in OURS]
        with env.begin(buffers=True) as txn:
            found = [(name, key, value) for name, db in handles for key, value in txn.cursor(db)]
            found += [("tail", key, value) for key, value in txn.cursor() if key == b"tail"]
            for name, key, value in found:
                for what, part in (("key", key), ("value", value)):
                    address = np.frombuffer(part, np.uint8).__array_interface__["data"][0]
                    out.append((name, f"{what} of {bytes(key)!r}", address - base, len(part)))
            del found
        del key, value, part
    return out


@contextlib.contextmanager
def flipped(path, offset, bit):
    """One bit of a file, the other way round for a while."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))
    try:
        yield
    finally:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(bytes([byte]))


def check_damaged(path, model, what):
    with open_store(path, readonly=True) as store:
        missed = [key for key, value in model.items() if store.get(key) != value]
        assert not missed, (what, missed[:3])
        assert all(store.get(b"key %d" % i) is None for i in range(20))
        verification = store.verify()
        assert not verification.ok, what
        assert verification.problems
        assert not verification.missing or verification.examples


def test_undamaged_store_verifies(path):
    model = filled(path)
    with open_store(path, readonly=True) as store:
        assert store.verify().ok
        assert store.verify().keys == len(model)


@pytest.mark.parametrize(
    ("name", "filter"),
    [(name, "learned tables") for name in EVERYTHING]
    + [(name, filter) for name in ("filter", "journal") for filter in ("layers", "learned layers")],
)
def test_flipped_bit_is_never_a_missed_key_and_always_noticed(path, name, filter, caplog):
    caplog.set_level(logging.CRITICAL, "dlbf.storage")
    model = filled(path, filter=filter)
    found = [(f"{db} {what}", offset, size) for db, what, offset, size in places(path) if db == name]
    bits = [(what, offset + i // 8, i % 8) for what, offset, size in found for i in range(8 * size)]
    assert len(bits) > 1000
    # Golden paths first: every first and last byte, then a sample.
    edges = [(what, at, bit) for what, offset, size in found for at in (offset, offset + size - 1) for bit in (0, 7)]
    rng = random.Random(1)
    for what, offset, bit in rng.sample(edges, min(len(edges), 60)) + rng.sample(bits, 140):
        with flipped(path / "data.mdb", offset, bit):
            check_damaged(path, model, what)
    with open_store(path, readonly=True) as store:
        assert store.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("name", EVERYTHING)
def test_every_flipped_bit_is_never_a_missed_key_and_always_noticed(path, name, filter, caplog):
    caplog.set_level(logging.CRITICAL, "dlbf.storage")
    model = filled(path, 250, filter)
    for db, what, offset, size in places(path):
        if db == name:
            for i in range(8 * size):
                with flipped(path / "data.mdb", offset + i // 8, i % 8):
                    check_damaged(path, model, what)


def test_flipped_bits_in_lmdb_pages_of_ours_lose_no_key_silently(path):
    """The B-tree around our records is LMDB's: it may refuse or crash, but no read may deny a key."""
    model = filled(path)
    pages = sorted({offset // 4096 for _, _, offset, _ in places(path)})
    rng = random.Random(2)
    outcomes = {}
    for _ in range(200):
        page, byte, bit = rng.choice(pages), rng.choice([rng.randrange(64), rng.randrange(4096)]), rng.randrange(8)
        with flipped(path / "data.mdb", page * 4096 + byte, bit):
            pid = os.fork()
            if pid == 0:
                code = 3
                try:
                    logging.disable(logging.CRITICAL)
                    faulthandler.disable()
                    with open_store(path, readonly=True) as store:
                        code = 1 if any(store.get(key) != value for key, value in model.items()) else 0
                        if code == 0:
                            code = 0 if store.verify().ok else 2
                except (lmdb.Error, StoreError):
                    code = 3
                except BaseException:
                    code = 4
                os._exit(code)
            outcome = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    # 0: in bytes nobody reads; 2: noticed; 3: LMDB refused; negative: LMDB crashed.
    assert outcomes.get(1, 0) == 0, outcomes
    assert outcomes.get(4, 0) == 0, outcomes
    assert outcomes.get(2, 0) > 50, outcomes


@pytest.mark.parametrize("filter", FILTERS)
def test_rebuild_repairs_whatever_was_damaged(path, filter, caplog):
    caplog.set_level(logging.CRITICAL, "dlbf.storage")
    model = filled(path, filter=filter)
    rng = random.Random(3)
    found = places(path)
    for i in range(25 if filter == "learned tables" else 8):
        copy = path.with_name(f"copy{i}")
        shutil.copytree(path, copy)
        _, what, offset, size = rng.choice(found)
        with (copy / "data.mdb").open("r+b") as file:
            file.seek(offset + rng.randrange(size))
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 0x10]))
        with open_store(copy) as store:
            store[b"written while damaged"] = b"1"
            assert all(store.get(key) == value for key, value in model.items()), what
            store.rebuild()
            assert store.state == "filtering", what
            assert store.verify().ok, (what, store.verify())
        with open_store(copy) as store:
            assert store.verify().ok, what
            assert dict(store.items()) == model | {b"written while damaged": b"1"}


def test_missing_secret_reads_the_data_and_says_why(path, caplog):
    model = filled(path)
    secret = (path / "secret.key").read_bytes()
    (path / "secret.key").unlink()
    with open_store(path) as store:
        assert all(store.get(key) == value for key, value in model.items())
        assert store.state == "pass-through"
        assert "secret" in store.stats().reason
        assert "rebuild" in caplog.text
        assert len(caplog.records) == 1
        store[b"meanwhile"] = b"1"
        store.delete(b"key 30")
    # The owner of the secret goes on where it was: a process without it still writes the journal.
    with open_store(path, secret=secret) as store:
        assert store.state == "filtering"
        assert store.get(b"meanwhile") == b"1"
        assert store.verify().ok
    with open_store(path) as store:
        store.rebuild()
        assert store.state == "filtering"
        assert store.verify().ok
    assert (path / "secret.key").read_bytes() != secret
    with open_store(path) as store:
        assert store.verify().ok


def test_wrong_secret_is_noticed(path, caplog):
    model = filled(path)
    with open_store(path, secret=b"another secret!!") as store:
        assert store.state == "pass-through"
        assert "wrong secret" in caplog.text
        assert all(store.get(key) == value for key, value in model.items())


def test_secret_of_the_caller_is_not_kept(path):
    with open_store(path, secret=b"0123456789abcdef") as store:
        store[b"k"] = b"v"
    assert not (path / "secret.key").exists()
    with open_store(path) as store:
        assert store.state == "pass-through"
        assert store.get(b"k") == b"v"
        with pytest.raises(StoreError, match="secret="):
            store.rebuild()
    with open_store(path, secret=b"0123456789abcdef") as store:
        assert store.state == "filtering"
        assert store.verify().ok


def test_newer_checkpoint_is_read_around_and_left_alone(path):
    model = filled(path)
    with lmdb.open(str(path), max_dbs=9) as env:
        db = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            body = layout.Checkpoint.FORMAT.pack(99, 1, 1, 1, 1, 1, 1, 1)
            record = layout.sealed(body)
            txn.put(b"checkpoint", record, db=db)
    with open_store(path) as store:
        assert store.state == "pass-through"
        assert "newer dlbf" in store.stats().reason
        assert all(store.get(key) == value for key, value in model.items())
        store[b"more"] = b"1"
        with peek.reading(store) as txn:
            assert txn.get(b"checkpoint", db=peek.dbs(store).meta) == record


def test_compacted_copy_is_read_around_until_rebuilt(path, tmp_path):
    model = filled(path)
    with lmdb.open(str(path), max_dbs=9) as env:
        (tmp_path / "copy").mkdir()
        shutil.copy(path / "secret.key", tmp_path / "copy" / "secret.key")
        env.copy(str(tmp_path / "copy"), compact=True)
    with open_store(tmp_path / "copy") as store:
        assert store.state == "pass-through"
        assert all(store.get(key) == value for key, value in model.items())
        assert "copy" in store.stats().reason
        store.rebuild()
        assert store.state == "filtering"
        assert store.verify().ok


@pytest.mark.parametrize("names", [(name,) for name in OURS] + [("filter", "journal", "meta")])
def test_store_that_has_lost_a_database_of_ours_is_read_without_the_filter(path, names):
    model = filled(path)
    with lmdb.open(str(path), max_dbs=8) as env:
        for name in names:
            handle = env.open_db(name.encode(), create=False)
            with env.begin(write=True) as txn:
                txn.drop(handle, delete=True)
    with pytest.raises(StoreError, match="readonly"):  # nothing can be made there
        open_store(path, readonly=True)
    with open_store(path) as store:
        assert store.get_many(model) == list(model.values())
        assert dict(store) == model
        assert store.stats().state == "pass-through"
        assert not store.verify().ok
        assert store.rebuild(NEGATIVES).done
        assert store.verify().ok
        assert store.stats().state == "filtering"


def test_environment_of_another_program_gets_no_databases_of_ours(path):
    with lmdb.open(str(path), max_dbs=8) as env:
        env.open_db(b"data")
        env.open_db(b"meta")
    with pytest.raises(StoreError, match="another program"):
        open_store(path)
    with lmdb.open(str(path), max_dbs=8) as env, env.begin() as txn:
        assert [key for key, _ in txn.cursor()] == [b"data", b"meta"]


# --- a file that has been cut short

READ_ALL = """
import sys
from dlbf.errors import StoreError
from dlbf.storage import Store
try:
    with Store(sys.argv[1], readonly=sys.argv[2] == "read", writemap=sys.argv[2] == "map", sync="none") as store:
        store.get(b"absent"), dict(store), store.verify()
except StoreError as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["read", "write", "map"])
def test_file_that_was_cut_short_is_refused_instead_of_ending_the_process(path, how):
    with open_store(path) as store:
        store.update({b"key %d" % i: random.Random(i).randbytes(3000) for i in range(500)})
    data = path / "data.mdb"
    whole = data.read_bytes()
    for n_pages in (2, 3, 100, len(whole) // 4096 - 1):
        data.write_bytes(whole[: n_pages * 4096])
        # Another process: LMDB would end it.
        ran = subprocess.run(
            [sys.executable, "-c", READ_ALL, str(path), how], capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, ""), n_pages
        assert f"data.mdb has been cut short: {len(whole) // 4096 - n_pages:,} pages in use" in ran.stdout
        assert "restore a backup" in ran.stdout
        assert data.read_bytes() == whole[: n_pages * 4096]
    data.write_bytes(whole)
    with open_store(path) as store:
        assert len(store) == 500
        assert store.verify().ok


def test_whole_file_that_is_shorter_than_its_pages_opens(path):
    # Pages that were used and freed in one transaction are counted, and never written.
    n_short = 0
    for seed in range(8):
        rng = random.Random(seed)
        folder = path.with_name(f"store {seed}")
        expected = {}
        with open_store(folder) as store:
            for _ in range(12):
                with store.write() as txn:
                    keys = [b"%d" % rng.randrange(500) for _ in range(rng.choice([1, 10, 200]))]
                    for key in keys:
                        expected[key] = b"x" * rng.choice([10, 3000, 50_000])
                        txn.put(key, expected[key])
                    for key in set(rng.sample(keys, rng.randrange(len(keys) + 1))):
                        txn.delete(key)
                        del expected[key]
        with lmdb.open(str(folder), readonly=True, lock=False, max_dbs=9) as env:
            n_short += (env.info()["last_pgno"] + 1) * 4096 > (folder / "data.mdb").stat().st_size
        with open_store(folder) as store:
            assert dict(store) == expected
    assert n_short
