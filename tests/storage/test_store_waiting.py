"""Waiting for a process that writes and has been stopped: it can be interrupted, ends in time, and says for whom."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support import peek

from dlbf.errors import StoreError
from dlbf.storage import Guard, Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

COMMON = """
import logging, sys
from dlbf.kernels import filelock
from dlbf.storage import Guard, Store
filelock.NOTICE_SECONDS = 0  # at once: then the test knows that it waits
kind, path, task = sys.argv[1:]
class Told(logging.Handler):
    def emit(self, record):
        if "waiting for" in record.getMessage():
            tell("waiting " + record.getMessage())
logging.getLogger("dlbf.storage").addHandler(Told())
def tell(line):
    print(line, flush=True)
def opened(**options):
    engine = {b"k%d" % i: b"v" for i in range(100)}
    return Store(path, sync="none", **options) if kind == "store" else Guard(engine, path, **options)
"""

# Is in the middle of a change until it is told to end it.
WRITER = (
    COMMON
    + """
store = opened()
if kind == "store":
    with store.write() as txn:
        txn.put(b"writer", b"was here")
        tell("writing")
        sys.stdin.readline()
else:
    def change():
        tell("writing")
        sys.stdin.readline()
    store._writes.alone(change)
tell("written")
store.close()
"""
)

# Does a task; after Ctrl-C, once more when it is told to.
WAITER = (
    COMMON
    + """
from dlbf.errors import StoreError
tasks = {
    "put": lambda s: s.put(b"new", b"value"),
    "delete": lambda s: s.delete(b"k1"),
    "update": lambda s: s.update({b"new": b"value"}),
    "write": lambda s: s.write().commit(),
    "checkpoint": lambda s: s.checkpoint(),
    "rebuild": lambda s: s.rebuild(model=None),
    "backup": lambda s: s.backup(path + ".copy"),
    "verify": lambda s: s.verify(),
}
store = opened() if task in tasks else None
if task == "backup-readonly":
    store = opened(readonly=True)
tell("ready")
sys.stdin.readline()
for turn in range(2):
    try:
        if task == "open":
            store = opened()
        else:
            tasks[task.split("-")[0]](store)
        tell("done")
        break
    except KeyboardInterrupt:
        assert store is None or store._environment.writes.writer == 0
        tell("interrupted")
        sys.stdin.readline()
if task != "backup-readonly":
    assert store.verify().ok
    store.put(b"after", b"all")
store.close()
tell("closed")
"""
)


class Process:
    """A process that is told what to do in lines, and tells how far it is."""

    def __init__(self, program, kind, path, task=""):
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, kind, str(path), task],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def says(self, expected):
        line = self.process.stdout.readline().strip()
        assert line.startswith(expected), line
        return line

    def tell(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def signal(self, number):
        os.kill(self.pid, number)

    def stop(self):
        """Stop it, and wait until it is."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(tmp_path):
    """Start processes of a store or a guard; with the first one, which is stopped while it writes."""
    started = []

    def begin(program, kind, task=""):
        process = Process(program, kind, tmp_path / "store", task)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.end()


def make(kind, path):
    if kind == "store":
        with Store(path, sync="none") as store:
            store.update({b"k%d" % i: b"v" for i in range(100)})
    else:
        Guard({b"k%d" % i: b"v" for i in range(100)}, path).close()


STORE_TASKS = ["put", "delete", "update", "write", "checkpoint", "rebuild", "backup", "backup-readonly", "open"]
GUARD_TASKS = ["put", "delete", "update", "checkpoint", "rebuild", "verify", "open"]


@pytest.mark.parametrize(
    ("kind", "task"), [("store", task) for task in STORE_TASKS] + [("guard", task) for task in GUARD_TASKS]
)
def test_waiting_for_a_stopped_writer_names_it_and_can_be_interrupted(tmp_path, start, kind, task):
    make(kind, tmp_path / "store")
    waiter = start(WAITER, kind, task)
    waiter.says("ready")
    writer = start(WRITER, kind)
    writer.says("writing")
    writer.stop()
    waiter.tell()
    line = waiter.says("waiting")
    assert f"process {writer.pid} (" in line
    assert "which is stopped" in line
    waiter.signal(signal.SIGINT)
    waiter.says("interrupted")
    writer.signal(signal.SIGCONT)
    writer.tell()
    writer.says("written")
    assert writer.process.wait(60) == 0
    waiter.tell()
    waiter.says("done")
    waiter.says("closed")
    assert waiter.process.wait(60) == 0
    if kind == "store":
        with Store(tmp_path / "store") as store:
            assert store[b"writer"] == b"was here"
            assert store.verify().ok
        if "backup" in task:
            with Store(tmp_path / "store.copy") as copy:
                assert copy[b"writer"] == b"was here"
                assert copy.verify().ok


@pytest.mark.parametrize("kind", ["store", "guard", "guard that does not sync"])
def test_close_does_not_wait_for_a_stopped_writer(tmp_path, start, kind):
    """Its sample of misses, its checkpoint and its mark of a clean close are all optional."""
    path = tmp_path / "store"
    sync = "none" if kind == "guard that does not sync" else "full"
    kind = kind.split()[0]
    make(kind, path)
    engine = {b"k%d" % i: b"v" for i in range(100)}
    store = Store(path, sync="none") if kind == "store" else Guard(engine, path, sync=sync)
    store.update({b"a long journal %d" % i: b"" for i in range(300)})
    for i in range(5000):
        assert store.get(b"absent %d" % i) is None
    assert store.traffic.n_samples >= 32
    assert store.ledger.log_bytes > 4096
    writer = start(WRITER, kind)
    writer.says("writing")
    writer.stop()
    store.traffic._flush_aside()
    assert store.traffic.n_samples >= 32
    store.close()
    writer.signal(signal.SIGCONT)
    writer.tell()
    writer.says("written")
    assert writer.process.wait(60) == 0


@pytest.mark.parametrize("kind", ["store", "guard"])
def test_lock_timeout_names_the_process(tmp_path, start, kind):
    path = tmp_path / "store"
    make(kind, path)

    def opened():
        if kind == "store":
            return Store(path, lock_timeout=0.05)
        return Guard({b"k%d" % i: b"v" for i in range(100)}, path, lock_timeout=0.05)

    with opened() as store:
        writer = start(WRITER, kind)
        writer.says("writing")
        writer.stop()
        expected = rf"process {writer.pid} \(.*, which is stopped\) is writing.*lock_timeout=0.05"
        with pytest.raises(StoreError, match=expected):
            store[b"new"] = b"value"
        with pytest.raises(StoreError, match=expected):
            store.checkpoint()
        assert store.get(b"absent") is None
        assert peek.writes(store).writer == 0
    with pytest.raises(StoreError, match=expected):
        opened()
    writer.end()  # whoever dies gives the lock back
    with opened() as store:
        store[b"new"] = b"value"
        assert store.verify().ok


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "1", True])
@pytest.mark.parametrize("kind", ["store", "guard"])
def test_lock_timeout_is_checked_first(tmp_path, kind, wrong):
    with pytest.raises(ValueError, match="lock_timeout must be"):
        Store(tmp_path / "x", lock_timeout=wrong) if kind == "store" else Guard({}, tmp_path / "x", lock_timeout=wrong)
    assert not (tmp_path / "x").exists()


def test_forked_child_does_not_keep_the_lock(tmp_path):
    """A child that lives on after its parent has died in the middle of a transaction."""
    path = tmp_path / "store"
    make("store", path)
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        store = Store(path)
        txn = store.write()
        txn.put(b"lost", b"")
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        os.write(writing, b"%d" % child)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    child = int(os.read(reading, 20))
    try:
        with Store(path, lock_timeout=0) as store:
            store[b"new"] = b"value"
            assert b"lost" not in store
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_process_that_writes_all_the_time_lets_others_in(tmp_path):
    """It gives the lock back for a microsecond only, and others look for it now and then."""
    path = tmp_path / "store"
    make("store", path)
    child = os.fork()
    if child == 0:
        try:
            with Store(path, sync="none") as busy:
                while b"enough" not in busy:
                    busy[b"busy"] = b"x"
            os._exit(0)
        finally:
            os._exit(1)
    with Store(path, sync="none") as store:
        try:
            while store.get(b"busy") is None:
                time.sleep(0.001)
            for i in range(20):
                store[b"mine %d" % i] = b""
        finally:
            store[b"enough"] = b""
        assert os.waitpid(child, 0)[1] == 0
        assert store.verify().ok
