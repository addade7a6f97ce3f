"""Guards as version 0.1 wrote them when they had an LMDB environment: they are converted once, and deny no key.

``guard.v1.tar.xz`` has five, each with records behind its last checkpoint, as a kill leaves it.  All have keys 5 to 69.
*adding*: a writer died before it had put ``new`` into the engine; *removing*: before it had deleted key 10; *late*: the
engine was sent ``new`` and another value of key 10, and has not answered; *unsynced*: nothing waited for the disk.
"""

import logging
import shutil
import subprocess
import sys
import tarfile

import lmdb
import pytest
from support import peek
from support.places import DATA

from dlbf.errors import StoreError
from dlbf.kernels.filelog import NOTHING
from dlbf.storage import Guard, Store, conversion, guardopening, steps
from dlbf.storage import guard as guard_module
from dlbf.storage.engines import MappingEngine

NAMES = ("plain", "adding", "removing", "late", "unsynced")
KEYS = [b"key %d" % i for i in range(5, 70)]
DELETED = [b"key %d" % i for i in range(5)]


class Fixed(MappingEngine):
    """A dict that is the engine of all of them."""

    def __init__(self, in_flight=False, keys=KEYS):
        super().__init__(dict.fromkeys(keys, b"1"))
        self._identity = b"fixed"
        self.in_flight = in_flight


@pytest.fixture
def folders(tmp_path):
    with tarfile.open(DATA / "guard.v1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture(autouse=True)
def same_boot(folders, monkeypatch):
    """The machine has not been started since."""
    note, _, _ = conversion.old_note((folders / "unsynced" / "guard.lock").read_bytes())
    assert note.unsynced_boot != conversion.NO_BOOT
    monkeypatch.setattr(guard_module, "boot_id", lambda: note.unsynced_boot)


def open_guard(engine, path, **options):
    return Guard(engine, path, **{"sync": "none", "keyed": False, "attach": False, **options})


LOCK = """
import fcntl, sys
from dlbf.storage.intents import WRITER_BYTE
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, WRITER_BYTE)
        print("free")
    except OSError:
        print("taken")
"""


def test_writers_lock_is_held_while_an_old_guard_is_converted(folders, monkeypatch):
    """Two processes that convert at once would each write a log, and the later one lacks what the earlier has."""
    seen = []
    real = guardopening.convert

    def watched(folder, *arguments):
        done = subprocess.run([sys.executable, "-c", LOCK, folder / "guard.lock"], capture_output=True, text=True)
        seen.append(done.stdout)
        real(folder, *arguments)

    monkeypatch.setattr(guardopening, "convert", watched)
    with open_guard(Fixed(), folders / "plain") as guard:
        assert guard.state == "filtering"
    assert seen == ["taken\n"]


def check(guard, engine, extra=0):
    """It answers from the filter that the older version made, and denies no key."""
    assert guard.state == "filtering"
    assert {key: guard.get(key) for key in engine.mapping} == engine.mapping
    found = guard.verify()
    assert (found.keys, found.missing, found.extra) == (len(engine.mapping), 0, extra)
    assert [guard.get(key) for key in DELETED] == [None] * len(DELETED)


def is_text(path):
    return (path / "data.mdb").read_bytes().startswith(b"The filter and its log are in guard.log now")


@pytest.mark.parametrize("sync", ["none", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_guard_of_an_older_version_is_converted_once(folders, name, sync, caplog):
    caplog.set_level(logging.INFO, "dlbf.storage")
    engine = Fixed(in_flight=name == "late")
    path = folders / name
    with pytest.raises(StoreError, match="open it once without readonly"):
        open_guard(engine, path, readonly=True)
    with open_guard(engine, path, sync=sync) as guard:
        assert peek.guarded(guard).log.intended() == (NOTHING, None)
        check(guard, engine)
        assert peek.late_keys(guard) == ({b"new", b"key 10"} if name == "late" else set())
        generation = guard.stats().generation
    assert caplog.text.count("has been converted") == 1
    assert is_text(path)
    assert not (path / "data.mdb.damaged").exists()
    with open_guard(engine, path, sync=sync) as guard:
        check(guard, engine)
        assert guard.stats().generation == generation
        guard[b"more"] = b"1"
        assert guard.delete(b"key 20")
        check(guard, engine)
        guard.rebuild(model=None)
        check(guard, engine)
    with open_guard(engine, path, readonly=True) as guard:
        check(guard, engine)
    assert caplog.text.count("has been converted") == 1
    with pytest.raises(StoreError, match="directory of a guard"):
        Store(path)


@pytest.mark.parametrize("was_done", [True, False])
@pytest.mark.parametrize("name", ["adding", "removing", "late"])
def test_what_a_dead_writer_was_about_to_do_is_settled(folders, name, was_done):
    engine = Fixed(in_flight=name == "late")
    if was_done and name in ("adding", "late"):
        engine.put(b"new", b"1")
    elif was_done:
        engine.delete(b"key 10")
    with open_guard(engine, folders / name) as guard:
        check(guard, engine)  # no entry is left over, and none is missing
        guard.rebuild(model=None)
        guard.delete(b"key 10")
        check(guard, engine)
        if name == "late":
            engine.mapping.update({b"new": b"arrived", b"key 10": b"arrived"})
            check(guard, engine)


def test_unsynced_guard_is_made_anew_after_another_start(folders, monkeypatch, caplog):
    monkeypatch.setattr(guard_module, "boot_id", lambda: b"another boot    ")
    engine = Fixed()
    engine.put(b"lost", b"1")  # its record was not on disk
    with open_guard(engine, folders / "unsynced", attach=True) as guard:
        check(guard, engine)
    assert "machine stopped" in caplog.text
    assert (folders / "unsynced" / "data.mdb.damaged").exists()
    with open_guard(engine, folders / "unsynced") as guard:
        check(guard, engine)
    with open_guard(Fixed(), folders / "plain") as guard:  # which was synced
        check(guard, Fixed())


@pytest.mark.parametrize("damage", ["filter", "journal", "data.mdb", "guard.lock"])
def test_damaged_guard_of_an_older_version_denies_no_key(folders, damage):
    path, engine = folders / "plain", Fixed()
    engine.put(b"unknown", b"1")
    if damage in ("filter", "journal"):
        with lmdb.open(str(path), max_dbs=9) as env, env.begin(write=True) as txn:
            txn.drop(env.open_db(damage.encode(), txn=txn), delete=False)
        (path / "lock.mdb").unlink()
    elif damage == "data.mdb":
        (path / damage).write_bytes(b"nonsense" * 5000)
    else:
        data = bytearray((path / damage).read_bytes())
        data[30] ^= 1
        (path / damage).write_bytes(data)
    with open_guard(engine, path) as guard:
        assert guard.state == "pass-through"
        assert {key: guard.get(key) for key in engine.mapping} == engine.mapping
    with open_guard(engine, path, attach=True) as guard:
        check(guard, engine)


@pytest.mark.parametrize("name", ["plain", "adding", "removing", "late"])
@pytest.mark.parametrize("step", steps.CONVERSION_STEPS)
def test_conversion_that_is_killed_leaves_a_guard_that_opens(folders, name, step):
    engine = Fixed(in_flight=name == "late")

    class Killed(BaseException):
        pass

    def hook(reached):
        if reached == step:
            shutil.copytree(folders / name, folders / "left")
            raise Killed

    steps.set_hook(hook)
    try:
        with pytest.raises(Killed):
            open_guard(engine, folders / name)
    finally:
        steps.set_hook(None)
    for path in (folders / "left", folders / name):
        with open_guard(engine, path) as guard:
            check(guard, engine)
            assert peek.late_keys(guard) == ({b"new", b"key 10"} if name == "late" else set())
        assert is_text(path)
        with open_guard(engine, path) as guard:
            check(guard, engine)


def test_environment_counts_until_it_is_text(folders):
    """The older version may go on with it after a conversion that was killed."""
    engine = Fixed()
    shutil.copytree(folders / "plain", folders / "before")
    open_guard(engine, folders / "plain").close()
    for name in ("data.mdb", "guard.lock"):  # the one with a key more
        shutil.copy(folders / "adding" / name, folders / "plain")
    engine.put(b"new", b"1")
    with pytest.raises(StoreError, match="open it once without readonly"):
        open_guard(engine, folders / "plain", readonly=True)
    with open_guard(engine, folders / "plain") as guard:
        check(guard, engine)


OLDER = """
import lmdb, sys
with lmdb.open(sys.argv[1], max_dbs=9):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_guard_that_an_older_version_has_open_is_not_converted(folders):
    path, engine = folders / "plain", Fixed()
    before = (path / "data.mdb").read_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", OLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match="close it there"):
            open_guard(engine, path)
        assert (path / "data.mdb").read_bytes() == before
        assert not (path / "guard.log").exists()
        process.stdin.close()
        assert process.wait(60) == 0
    with open_guard(engine, path) as guard:
        check(guard, engine)


def test_environment_of_somebody_else_in_a_guards_directory_is_left_alone(folders):
    engine = Fixed()
    path = folders / "new"
    open_guard(engine, path, attach=True).close()
    with lmdb.open(str(path)) as env, env.begin(write=True) as txn:
        txn.put(b"somebody's", b"data")
    before = (path / "data.mdb").read_bytes()
    for readonly in (False, True):
        with pytest.raises(StoreError):
            open_guard(engine, path, readonly=readonly)
    assert (path / "data.mdb").read_bytes() == before
