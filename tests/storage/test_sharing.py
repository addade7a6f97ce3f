"""Processes of one machine use one copy of a layered filter's base, and nothing that happens to it denies a key."""

import contextlib
import fcntl
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlbf.storage import Store, sharing
from dlbf.storage.layout import SHARED_FILE

pytestmark = pytest.mark.skipif(not sharing.CAN_SHARE, reason="needs Linux: anonymous files with seals, /proc")

N = 20_000
KEYS = [b"key %d" % i for i in range(N)]
ABSENT = [b"none %d" % i for i in range(2000)]


@pytest.fixture(autouse=True)
def _share_small_ones(monkeypatch):
    monkeypatch.setattr(sharing, "LEAST_BYTES", 1)


@pytest.fixture
def path(tmp_path):
    with Store(tmp_path / "store") as store:
        store.update((key, b"v") for key in KEYS)
        assert store.stats().layers.shared
    del store
    gc.collect()  # its mapping ends with it
    return tmp_path / "store"


def check(store, keys=KEYS, absent=ABSENT):
    assert all(store.get_many(keys))
    assert not any(store.get_many(absent))
    assert store.traffic.n_unfiltered == 0
    passed = store.traffic.n_false_positives
    assert passed <= 60  # 20 expected at 1 %; 60 is nine standard deviations more


def mapped():
    """Inodes of the shared bases that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:dlbf-base" in line}


def held():
    """Descriptors of shared bases that this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:dlbf-base" in str(link.readlink()):
                found.add(int(link.name))
    return found


HEAD = """
import json, os, signal, sys
from pathlib import Path
from dlbf.storage import Store, sharing, steps
sharing.LEAST_BYTES = 1
KEYS = [b"key %d" % i for i in range({n})]
def mapped():
    return sorted({{l.split()[4] for l in open("/proc/self/maps") if "memfd:dlbf-base" in l}})
"""


def start(path, code):
    """A process that has nothing of ours but the path, and runs ``code`` with the store open as ``s``."""
    text = HEAD.format(n=N) + f"with Store({str(path)!r}) as s:\n    assert all(s.get_many(KEYS[1:]))\n"
    text += "".join(f"    {line}\n" for line in code.strip().splitlines())
    return subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def in_process(path, code):
    """What ``code`` prints in such a process, as JSON."""
    process = start(path, code)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(out)


WHERE = "print(json.dumps([mapped(), s.stats().layers.shared]))"
PRIVATE = """
n, inside = 0, False
for line in Path("/proc/self/smaps").read_text().splitlines():
    first = line.split()[0]
    if "-" in first and ":" not in first:
        inside = "memfd:dlbf-base" in line
    elif inside and line.startswith("Private_"):
        n += int(line.split()[1])
print(json.dumps([len(mapped()), n]))
"""


def test_two_processes_map_the_same_memory(path):
    with Store(path) as store:
        check(store)
        own = mapped()
        assert len(own) == 1
        assert in_process(path, WHERE) == [list(own), True]
    del store
    gc.collect()
    assert mapped() == set()
    assert held() == set()


def test_private_memory_is_small(path):
    """Of the mapping nothing is private once a second process has it."""
    with Store(path) as store:
        check(store)
        assert in_process(path, PRIVATE) == [1, 0]


def test_a_rebuild_is_shared_before_others_look(path):
    with Store(path) as store:
        check(store)
        before = mapped()
        process = start(path, "s.rebuild(design='layers'); print(json.dumps(mapped()), flush=True); sys.stdin.read()")
        made = set(json.loads(process.stdout.readline()))
        assert len(made) == 1
        assert made.isdisjoint(before)
        check(store)
        assert made <= mapped()
        process.communicate(timeout=60)
        check(store)


def test_who_made_the_copy_may_end(path):
    process = start(path, "print(json.dumps(mapped()), flush=True); sys.stdin.read()")
    made = json.loads(process.stdout.readline())
    with Store(path) as store:
        check(store)
        assert list(mapped()) == made
        process.communicate(timeout=60)
        assert in_process(path, WHERE) == [made, True]


@pytest.mark.parametrize("damage", ["cut", "noise", "removed", "folder", "pipe", "link", "numbers"])
def test_whatever_happens_to_the_list(path, tmp_path, damage):
    file = path / SHARED_FILE
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    with Store(path) as store:
        check(store)
        if damage == "cut":
            os.truncate(file, 3)
        elif damage == "noise":
            file.write_bytes(os.urandom(5000))
        elif damage == "numbers":
            pid = os.getpid()
            lines = [f"{g} {n} {pid} {d}" for g in (0, 5, 10**19) for n in (1, 4096) for d in range(20)]
            file.write_text("\n".join(lines))
        else:
            file.unlink()
        if damage == "folder":
            file.mkdir()
        elif damage == "pipe":
            os.mkfifo(file)
        elif damage == "link":
            file.symlink_to(victim)
        check(store)
        _, shared = in_process(path, WHERE)
        assert shared == (damage not in ("folder", "pipe", "link"))
        store.rebuild(design="layers")
        check(store)
    assert victim.read_bytes() == b"mine"
    with Store(path) as store:
        check(store)


def test_nobody_can_change_or_shrink_the_copy(path):
    with Store(path) as store:
        check(store)
        descriptor = min(held())  # Python maps by a second one
        for flags in (os.O_RDWR, os.O_WRONLY):
            with contextlib.suppress(OSError):
                other = os.open(f"/proc/self/fd/{descriptor}", flags)
                with pytest.raises(OSError):
                    os.ftruncate(other, 0)
                with pytest.raises(OSError):
                    os.pwrite(other, b"x", 100)
                os.close(other)
        check(store)


@pytest.mark.parametrize("fake", ["other bytes", "not sealed", "a socket", "a closed one"])
def test_what_is_found_is_not_trusted(path, fake, monkeypatch):
    """Somebody on the list has a descriptor with the right size and other contents, or none that can be used."""
    with Store(path) as store:
        line = (path / SHARED_FILE).read_text().split()
    generation, n_bytes = int(line[0]), int(line[1])
    end = None
    if fake == "other bytes":
        end = sharing._sealed(bytes(n_bytes))
        descriptor = end.fileno()
    elif fake == "not sealed":
        descriptor = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, n_bytes)
    else:
        end = socket.socket()
        descriptor = end.fileno()
        if fake == "a closed one":
            end.close()
    (path / SHARED_FILE).write_text(f"{generation} {n_bytes} {os.getpid()} {descriptor}\n")
    with Store(path) as store:
        check(store)
        assert store.stats().layers.shared
    if end is not None:
        end.close()
    else:
        os.close(descriptor)


def test_who_holds_the_list_is_not_waited_for(path):
    """A process that was stopped with the list in its hands costs others some seconds, and their share."""
    file = os.open(path / SHARED_FILE, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        begun = time.monotonic()
        with Store(path) as store:
            check(store)
            assert not store.stats().layers.shared
        assert time.monotonic() - begun < 30
    finally:
        os.close(file)
    with Store(path) as store:
        check(store)
        assert store.stats().layers.shared


@pytest.mark.parametrize("error", [OSError, MemoryError])
@pytest.mark.parametrize("name", ["memfd_create", "ftruncate"])
def test_without_room_each_has_its_own(path, monkeypatch, name, error):
    def fail(*arguments):
        raise error(28, "No space left on device")  # a new one each time: it keeps what was under way alive

    if name == "ftruncate" and error is MemoryError:
        monkeypatch.setattr(sharing, "_map_found", fail)  # somebody is on the list
    monkeypatch.setattr(os, name, fail)
    with Store(path) as store:
        check(store)


def test_without_seals_each_has_its_own(path, monkeypatch):
    monkeypatch.setattr(sharing, "CAN_SHARE", False)
    with Store(path) as store:
        check(store)
        assert not store.stats().layers.shared


@pytest.mark.parametrize("operation", ["pass", "s.rebuild(design='layers')"])
def test_killed_while_sharing(path, operation):
    code = HEAD.format(n=N) + (
        "steps.set_hook(lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == 'base-shared' else None)\n"
        f"with Store({str(path)!r}) as s:\n    s.get(b'x')\n    {operation}\n"
    )
    process = subprocess.run([sys.executable, "-c", code])
    assert process.returncode == -signal.SIGKILL
    with Store(path) as store:
        check(store)
        assert store.stats().layers.shared
        assert store.verify().ok


def test_changes_are_not_shared(path):
    changed = "print(json.dumps([s.get(b'new') == b'v', s.get(KEYS[0]) is None, len(mapped())]))"
    with Store(path) as store:
        check(store)
        store[b"new"] = b"v"
        del store[KEYS[0]]
        assert store.get(b"new") == b"v"
        assert store.get(KEYS[0]) is None
        assert in_process(path, changed) == [True, True, 1]
        store.checkpoint()
        assert len(mapped()) == 1
        assert in_process(path, changed) == [True, True, 1]
