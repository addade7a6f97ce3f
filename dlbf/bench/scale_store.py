"""What a key costs in a store of one size, and what opening and recovery take, for ``dlbf bench scale``."""

import json
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np

from dlbf.bench.scale_keys import batches, make_keys
from dlbf.bench.scale_results import FPR, RECOVERY_COMMITS, StoreCosts
from dlbf.bench.timing import Say, call_with_each, side_by_side
from dlbf.storage import Store

__all__ = ["WRITER", "measure_store"]

N_ASKED = 2000

WRITER = """
import os, signal, sys
from dlbf.storage import Store
store = Store(sys.argv[1], sync="none")
store.checkpoint()
for i in range(int(sys.argv[2])):
    store[b"~recovered %d %09d" % (os.getpid(), i)] = b"v"  # new ones each time: known ones leave the filter as it is
os.kill(os.getpid(), signal.SIGKILL)
"""

READER = """
import gc, itertools, json, sys, time
from pathlib import Path
from dlbf.storage import Store
def private():
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty"):
            return int(line.split()[1]) * 1024
    return 0
path, empty, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store(empty, readonly=True) as store:
    store.get(b"code and libraries are warm")
gc.collect()
before = private() if Path("/proc/self/smaps_rollup").exists() else 0
best_open = best_first = best_loaded = 1e9
# Opening by itself: a filter that was copied just before has put everything else out of the processor's cache.
for turn in range(rounds - 1):
    start = time.perf_counter()
    store = Store(path, readonly=True)
    best_open = min(best_open, time.perf_counter() - start)
    store.close()
for turn in range(rounds):
    start = time.perf_counter()
    store = Store(path, readonly=True)
    middle = time.perf_counter()
    store.get(b"an absent key")
    end = time.perf_counter()
    # Another key every time: one may be a false positive, and would never be filtered.
    for number in itertools.count():
        if store.stats().filtered:
            break
        store.get(b"absent key %d" % number)
    loaded = time.perf_counter()
    best_open, best_first = min(best_open, middle - start), min(best_first, end - middle)
    best_loaded = min(best_loaded, loaded - middle)
    if turn < rounds - 1:
        store.close()
after = private() if before else 0
milliseconds = [1e3 * seconds for seconds in (best_open, best_first, best_loaded)]
print(json.dumps([*milliseconds, after - before if before else None, store.state]))
"""


def _child(code: str, *arguments: object) -> str:
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(done.stderr)
    return done.stdout


@dataclass(frozen=True)
class _Opened:
    """What ``READER`` prints: best milliseconds, private bytes (None where the system does not tell), the state."""

    open_ms: float
    first_read_ms: float
    loaded_ms: float
    private_bytes: int | None
    state: str


def _open_in_a_process(folder: Path, rounds: int) -> _Opened:
    return _Opened(*json.loads(_child(READER, folder / "store", folder / "empty", rounds)))


def _numbered(number: int, key: bytes) -> bytes:
    """The key with its number before it: LMDB appends, as with ids that count up."""
    return b"%010d/%s" % (number, key)


def _load(environment: lmdb.Environment, store: Store, n_keys: int, say: Say) -> tuple[float, float]:
    """Put all keys into both; the processor seconds of LMDB and of the store."""
    plain = ours = 0.0
    for first, batch in batches(n_keys):
        say(f"loading the store, {first:,} keys done")
        keys = [_numbered(first + i, key) for i, key in enumerate(batch)]
        start = time.process_time()
        with environment.begin(write=True) as txn:
            for key in keys:
                txn.put(key, b"value")
        middle = time.process_time()
        with store.write() as writing:
            for key in keys:
                writing.put(key, b"value")
        end = time.process_time()
        plain, ours = plain + middle - start, ours + end - middle
    return plain, ours


def _read(environment: lmdb.Environment, store: Store, n_keys: int, rounds: int) -> tuple[float, float, float]:
    """Nanoseconds of a present key in the store and in LMDB, and of an absent key in the store."""
    rng = random.Random(5)

    def present(turn: int) -> list[bytes]:
        numbers = [rng.randrange(n_keys) for _ in range(N_ASKED)]
        return [_numbered(*pair) for pair in zip(numbers, make_keys(np.array(numbers)), strict=True)]

    def absent(turn: int) -> list[bytes]:
        return [b"%010d?" % rng.randrange(n_keys) for _ in range(N_ASKED)]

    def get_plain(keys: Sequence[bytes]) -> None:
        begin = environment.begin
        for key in keys:
            with begin() as txn:
                txn.get(key)

    get = call_with_each(store.get)
    times = side_by_side({"store": get, "lmdb": get_plain}, present, rounds)
    missed = side_by_side({"store": get}, absent, rounds)["store"]
    return times["store"].best, times["lmdb"].best, missed.best


def _recover(folder: Path) -> tuple[float, float]:
    """Best milliseconds of opening after a kill: to the first read, and until the filter answers."""
    best = best_loaded = math.inf
    for _ in range(3):
        _child(WRITER, folder / "store", RECOVERY_COMMITS)
        opened = _open_in_a_process(folder, 1)
        if opened.state != "filtering":
            raise RuntimeError(f"after a kill the store is in state {opened.state!r}")
        best = min(best, opened.open_ms + opened.first_read_ms)
        best_loaded = min(best_loaded, opened.open_ms + opened.loaded_ms)
    return best, best_loaded


def measure_store(n_keys: int, folder: Path, rounds: int, say: Say) -> StoreCosts:
    """The costs of a store of so many keys, made in a folder."""
    environment = lmdb.open(str(folder / "lmdb"), map_size=1 << 38, sync=False, readahead=False, max_spare_txns=1)
    store = Store(folder / "store", fpr=FPR, sync="none")
    Store(folder / "empty", fpr=FPR, sync="none").close()
    plain, ours = _load(environment, store, n_keys, say)
    say("rebuilding")
    start = time.process_time()
    store.rebuild(design="cuckoo")
    rebuild = time.process_time() - start
    say("reading")
    present_ns, lmdb_present_ns, absent_ns = _read(environment, store, n_keys, rounds)
    environment.close()
    store.close()
    say("opening")
    opened = _open_in_a_process(folder, 20)
    # A reader opens a store once; one that does it twenty times keeps memory of threads that have ended.
    private = _open_in_a_process(folder, 1).private_bytes
    say("recovering")
    recovery_ms, recovered_ms = _recover(folder)
    return StoreCosts(
        load_us=ours / n_keys * 1e6,
        lmdb_load_us=plain / n_keys * 1e6,
        rebuild_us=rebuild / n_keys * 1e6,
        present_ns=present_ns,
        lmdb_present_ns=lmdb_present_ns,
        absent_ns=absent_ns,
        open_ms=opened.open_ms,
        first_read_ms=opened.first_read_ms,
        loaded_ms=opened.loaded_ms,
        reader_bytes_per_key=None if private is None else private / n_keys,
        recovery_ms=recovery_ms,
        recovered_ms=recovered_ms,
    )
