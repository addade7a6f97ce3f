"""A guard's waits for the disk, counted; and power loss, which undoes what was not waited for."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dlbf.storage import Guard, generations, ledger, steps
from dlbf.storage.engines.mapping import MappingEngine

HERE = Path(__file__).parent
SECTOR = 512


# --- how often a change waits


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("needs Linux and gcc for the shim")
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, HERE / "shim.c", "-ldl"], check=True)
    return library


def waits(shim, folder, sync):
    """How often each change waits."""
    command = [sys.executable, HERE / "sync_driver.py", folder, sync]
    environment = os.environ | {"LD_PRELOAD": str(shim)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-4000:]
    return {name: int(n) for name, n in (line.split() for line in result.stdout.splitlines())}


def test_full_sync_waits_once_per_new_key_or_batch_and_never_per_overwrite(shim, tmp_path):
    found = waits(shim, tmp_path / "guard", "full")
    once = {"put": 1, "put-slowly": 1, "batch": 1, "batch-slowly": 1}
    never = dict.fromkeys(("put-known", "put-old", "put-old-slowly", "batch-old", "get"), 0)
    # What is removed need not be on disk: its entry comes back, and costs a read.
    removed = {"delete": 0, "delete-slowly": 1}
    # Of nine threads the first, which puts a new key, waits, and then the eight others do together.
    together = {"puts": 2, "puts-engine": 0, "batches": 2, "batches-engine": 0}
    together |= {"deletes": 2, "deletes-engine": 1, "batches-deleted": 2, "batches-deleted-engine": 1}
    assert found == once | never | removed | together


def test_without_sync_nothing_waits(shim, tmp_path):
    assert set(waits(shim, tmp_path / "guard", "none").values()) == {0}


# --- power loss


class Volatile(MappingEngine):
    """An engine whose deletes are on disk when it was told to wait for them; puts always are."""

    in_flight = False

    def __init__(self, pairs):
        super().__init__(dict(pairs))
        self._identity = b"volatile"
        self.deleted = {}

    def put(self, key, value):
        self.mapping[key] = value
        self.deleted.pop(key, None)

    def delete(self, key):
        if key in self.mapping:
            self.deleted[key] = self.mapping.pop(key)

    def sync(self):
        self.deleted.clear()

    def after_power_loss(self, rng):
        """What the disk has: some deletes may not have happened."""
        back = {key: value for key, value in self.deleted.items() if rng.random() < 0.5}
        return Volatile(self.mapping | back)


class Disk:
    """The files of a guard with a volatile cache: what was written since the last wait may be there, sector by sector.

    A log that has taken the place of another one was on disk before it got its name.
    """

    def __init__(self, folder, engine, rng, waits):
        self.folder, self.engine, self.rng, self.waits = folder, engine, rng, waits
        self.images = []
        self.number, self.stable = None, b""
        self.note(True)

    def note(self, synced):
        """Look at the log; returns its bytes as they are in memory."""
        path = self.folder / "guard.log"
        now, number = path.read_bytes(), path.stat().st_ino
        if synced or number != self.number:
            self.stable, self.number = now, number
        return now

    def reached(self, step):
        """Perhaps lose the power here."""
        # The only wait that the order of log and engine needs, which is before the engine's put.
        now = self.note(self.waits and step == "guard-journaled")
        if self.rng.random() < 0.05:
            keep = self.rng.random()
            length = self.rng.choice([len(self.stable), len(now)])
            image = bytearray(self.stable.ljust(length, b"\0")[:length])
            for at in range(0, length, SECTOR):
                if self.rng.random() < keep and now[at : at + SECTOR] != image[at : at + SECTOR]:
                    image[at : at + SECTOR] = now[at : at + SECTOR]
            beside = {p.name: p.read_bytes() for p in self.folder.iterdir() if p.name.startswith(("filter.", "secret"))}
            self.images.append(
                (bytes(image), beside, self.engine.after_power_loss(self.rng), bytes(now) != self.stable)
            )


def change(guard, rng):
    """One of everything that writes."""
    keys = [b"key %d" % rng.randrange(400) for _ in range(rng.choice([1, 5, 40]))]
    kind = rng.random()
    if kind < 0.35:
        guard[keys[0]] = b"1"
    elif kind < 0.6:
        guard.update([(key, b"2") for key in keys])
    elif kind < 0.8:
        guard.delete(keys[0])
    elif kind < 0.95:
        guard.delete_many(keys)
    elif kind < 0.98:
        guard.checkpoint()
    else:
        guard.rebuild(model=None)


def power_loss(tmp_path, seed, n_changes, waits=True):
    """Lose the power at random steps of a workload, and open what is left; how many kept their filter."""
    rng = random.Random(seed)
    engine = Volatile({b"key %d" % i: b"0" for i in range(0, 400, 4)})
    folder = tmp_path / f"guard{seed}"
    with Guard(engine, folder, sync="full") as guard:
        disk = Disk(folder, engine, rng, waits)
        steps.set_hook(disk.reached)
        try:
            for _ in range(n_changes):
                change(guard, rng)
        finally:
            steps.set_hook(None)
    filtering = pending = 0
    for image, beside, left, was_pending in disk.images:
        place = tmp_path / "image"
        place.mkdir()
        for name, data in {"guard.log": image, "guard.lock": b"", **beside}.items():
            (place / name).write_bytes(data)
        with Guard(left, place, sync="full", attach=False) as guard:
            filtering += guard.state == "filtering"
            found = {key: guard.get(key) for key in left.mapping}
            assert found == left.mapping, [key for key in found if found[key] is None]
            assert guard.get_many(list(left.mapping)) == list(left.mapping.values())
            # It goes on, and what is stored now is found, too.
            guard[b"afterwards"] = b"1"
            assert guard[b"afterwards"] == b"1"
            guard.rebuild(model=None)
            assert guard.verify().ok
        pending += was_pending
        shutil.rmtree(place)
    assert pending > len(disk.images) / 4, (pending, len(disk.images))
    return filtering, len(disk.images)


@pytest.fixture
def often(monkeypatch, caplog):
    monkeypatch.setattr(generations, "MIN_CAPACITY", 64)
    monkeypatch.setattr(ledger, "MIN_LOG_BYTES", 2000)
    monkeypatch.setattr(ledger, "LOG_SHARE", 1)
    caplog.set_level("CRITICAL", "dlbf.storage")


@pytest.mark.parametrize("seed", [1, 2])
def test_power_loss_denies_no_key_that_the_engine_has(tmp_path, often, seed):
    filtering, n_images = power_loss(tmp_path, seed, 120)
    assert n_images > 20
    assert filtering > n_images / 4  # else nothing was tried


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_power_loss_many_times(tmp_path, often, seed):
    power_loss(tmp_path, seed, 2000)


def test_power_loss_check_notices_records_that_were_never_synced(tmp_path, often):
    """The check must be able to fail: as if nobody had waited before the engine's put."""
    with pytest.raises(AssertionError):
        power_loss(tmp_path, 3, 120, waits=False)
