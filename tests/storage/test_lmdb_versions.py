"""Stores in environments of LMDB 0.9 and of LMDB 1.0, whose pages differ: both are filtered, alike.

``LMDB_DEFAULT_LIB_VERSION=1`` makes every new store of a process one of LMDB 1.0: ``make test-lmdb1`` runs the tests of
stores so.
"""

import random
import shutil
import struct
import subprocess
import sys

import lmdb
import pytest

from dlbf.errors import StoreError
from dlbf.storage import Store
from dlbf.storage.cutfile import lost_pages
from dlbf.storage.metapages import FORMATS, format_of, read_metas
from dlbf.storage.opening import map_meta_pages

VERSIONS = {0: FORMATS[0], 1: FORMATS[1]}

WRITE = """
import sys
from dlbf.storage import Store
with Store(sys.argv[1], sync="none") as store:
    assert store.get(b"first") == b"1"
    store[b"second"] = b"2"
    del store[b"first"]
"""


@pytest.fixture(params=sorted(VERSIONS), ids=lambda number: VERSIONS[number].name)
def version(request):
    """Each version of LMDB that this py-lmdb has."""
    try:
        lmdb.version(lib_version=request.param)
    except (lmdb.Error, TypeError):
        pytest.skip("this py-lmdb does not have it")
    return request.param


@pytest.fixture
def new(version, tmp_path):
    """Makes an empty environment, which Store() then fills."""

    def make(name="store"):
        path = tmp_path / name
        with lmdb.open(str(path), lib_version=version):
            return path

    return make


def test_store_answers_from_its_filter(new, version):
    path = new()
    with Store(path, sync="none") as store:
        store.update({b"key %d" % i: b"v" * (i % 300) for i in range(5000)})
        del store[b"key 7"]
        store[b"k" * 3000] = b"long"
        assert store.stats().state == "filtering"
        assert store.get_many([b"absent %d" % i for i in range(1000)]) == [None] * 1000
        assert store.stats().filtered > 900
        store.rebuild()
    with (path / "data.mdb").open("rb") as file:
        kind, *_ = read_metas(file.fileno())
    assert kind is VERSIONS[version]
    with Store(path, readonly=True) as store:
        assert store.verify().ok
        assert store.get(b"key 8") == b"v" * 8
        assert store.get(b"key 7") is None
        assert store.get(b"k" * 3000) == b"long"
        assert store.stats().state == "filtering"


def test_commits_of_another_process_are_seen_at_once(new):
    path = new()
    with Store(path, sync="none") as store:
        store[b"first"] = b"1"
    with Store(path, readonly=True) as store:
        assert store.get(b"second") is None
        subprocess.run([sys.executable, "-c", WRITE, str(path)], check=True)
        assert store.get(b"second") == b"2"
        assert store.get(b"first") is None
        assert store.stats().state == "filtering"


def test_backup_and_writemap_filter_too(new, version, tmp_path):
    path = new()
    with Store(path, sync="none", writemap=True) as store:
        store.update({b"key %d" % i: b"value" for i in range(3000)})
        store.backup(tmp_path / "copy")
        assert store.stats().state == "filtering"
    with Store(tmp_path / "copy") as store:
        assert store.stats().state == "filtering"
        assert store.verify().ok
        assert len(store) == 3000


def test_file_that_was_cut_short_is_refused(new):
    path = new()
    with Store(path, sync="none") as store:
        store.update({b"key %d" % i: random.Random(i).randbytes(3000) for i in range(300)})
    data = path / "data.mdb"
    whole = data.read_bytes()
    n_pages = len(whole) // 4096
    assert lost_pages(data) == 0
    for n_left in (2, 3, 100, n_pages - 1):
        data.write_bytes(whole[: n_left * 4096])
        assert lost_pages(data) == n_pages - n_left
        with pytest.raises(StoreError, match=f"cut short: {n_pages - n_left:,} pages in use"):
            Store(path, readonly=True)


def test_free_pages_behind_the_end_are_not_missed(new):
    # Pages that were used and freed in one transaction are counted, and never written.
    n_short = 0
    for seed in range(4):
        rng = random.Random(seed)
        path = new(f"store {seed}")
        with Store(path, sync="none") as store:
            for _ in range(12):
                with store.write() as txn:
                    keys = [b"%d" % rng.randrange(500) for _ in range(rng.choice([1, 10, 200]))]
                    for key in keys:
                        txn.put(key, b"x" * rng.choice([10, 3000, 50_000]))
                    for key in set(rng.sample(keys, rng.randrange(len(keys) + 1))):
                        txn.delete(key)
            n_keys = len(store)
        with (path / "data.mdb").open("rb") as file:
            _, *metas = read_metas(file.fileno())
        n_short += (max(metas).last_page + 1) * 4096 > (path / "data.mdb").stat().st_size
        with Store(path, readonly=True) as store:
            assert len(store) == n_keys
    assert n_short


def test_meta_pages_say_what_lmdb_says(new, version):
    path = new()
    with lmdb.open(str(path)) as env:
        for i in range(20):
            with env.begin(write=True) as txn:
                txn.put(b"%d" % i, b"x" * 10_000)
            with (path / "data.mdb").open("rb") as file:
                kind, *metas = read_metas(file.fileno())
            newest = max(metas)
            assert kind is VERSIONS[version]
            assert newest.txn_id == env.info()["last_txnid"]
            assert newest.last_page == env.info()["last_pgno"]
            assert newest.page_bytes == env.stat()["psize"]


def test_unknown_data_format_is_read_without_the_filter(new, version, tmp_path, caplog):
    path = new()
    with Store(path, sync="none") as store:
        store[b"key"] = b"value"
    # A copy that another LMDB would have made is served beside the file that this one has open.
    kind = VERSIONS[version]
    odd = bytearray((path / "data.mdb").read_bytes())
    for page in (0, 4096):
        struct.pack_into("=I", odd, page + kind.head_bytes + 4, 7)
    assert format_of(bytes(odd[:4096])) is None
    with Store(path) as store:
        environment = store.source.environment
        shutil.copytree(path, tmp_path / "odd")
        (tmp_path / "odd" / "data.mdb").write_bytes(odd)
        assert map_meta_pages(tmp_path / "odd", environment.handle) is None
    assert "not of a known layout" in caplog.text
