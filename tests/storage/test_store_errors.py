"""Full disks, moved directories and wrong options: errors that say what was found and what to do."""

import subprocess
import sys

import lmdb
import pytest
from support import peek

from dlbf.errors import StoreError
from dlbf.storage import Guard, Store

# Under a limit of the size of files, beyond which the system refuses writes as a full disk does: some bytes, or none.
FULL = """
import resource, signal, sys
from dlbf.errors import StoreError
from dlbf.storage import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(sys.argv[1], sync="none", map_size=1 << 26)
store[b"before"] = b"v"
size = (store.path / "data.mdb").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 6000, resource.RLIM_INFINITY))
big = b"x" * 100_000
changes = {
    "put": lambda: [store.put(b"k%d" % i, big) for i in range(3)],
    "update": lambda: store.update({b"k%d" % i: big for i in range(3)}),
    "write": lambda: with_write(),
}
def with_write():
    with store.write() as txn:
        txn.put(b"k", big)
try:
    changes[sys.argv[2]]()
except StoreError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store[b"after"] = b"v"
assert store.verify().ok
assert sorted(store.keys(prefix=b"k")) == []
store.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of the size of files")
@pytest.mark.parametrize("change", ["put", "update", "write"])
def test_write_that_is_cut_short_names_the_file_system_and_what_to_do(tmp_path, change):
    found = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "store"), change], capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0, found.stderr
    assert "the disk is full or fails" in found.stdout
    assert "bytes free" in found.stdout
    assert "make room" in found.stdout


@pytest.mark.parametrize("text", ["mdb_put: No space left on device", "mdb_txn_commit: Input/output error"])
def test_full_disk_is_an_error_of_the_store(tmp_path, text):
    with Store(tmp_path / "store", sync="none") as store:
        with pytest.raises(StoreError, match=r"file system on /.* bytes free.*make room"):
            peek.environment(store).blame_disk(lmdb.DiskError(text))
        peek.environment(store).blame_disk(lmdb.MapFullError("mdb_put: MDB_MAP_FULL"))
        peek.environment(store).blame_disk(ValueError(text))


@pytest.mark.parametrize("wrong", [1, 0, -5, 10**9, "8", 2.5])
def test_max_readers_is_checked_first(tmp_path, wrong):
    with pytest.raises(ValueError, match="max_readers must be from 2 to"):
        Store(tmp_path / "x", max_readers=wrong)
    assert not (tmp_path / "x" / "data.mdb").exists()


def test_empty_path_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="path must name a directory"):
        Store("")
    with pytest.raises(ValueError, match="path must name a directory"):
        Guard({}, "")
    assert not list(tmp_path.iterdir())


def test_stats_of_a_moved_directory_say_so(tmp_path):
    with Store(tmp_path / "store", sync="none") as store:
        store[b"k"] = b"v"
        (tmp_path / "store").rename(tmp_path / "elsewhere")
        with pytest.raises(StoreError, match="moved or removed"):
            store.stats()
        assert store[b"k"] == b"v"


@pytest.mark.parametrize("kind", [Store, Guard])
def test_one_whose_init_has_not_run_is_an_error_not_a_crash(kind):
    class Unopened(kind):
        def __init__(self):
            pass  # forgets super().__init__()

    def put(face):
        face[b"key"] = b"v"

    for use in (lambda face: face.get(b"key"), lambda face: b"key" in face, put, lambda face: face.delete(b"key")):
        with pytest.raises(AttributeError, match="has no attribute"):
            use(Unopened())
