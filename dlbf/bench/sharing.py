"""What each of several processes that have one store open needs for itself: ``dlbf bench layers --only sharing``."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dlbf.bench.timing import Say

__all__ = ["Sharing", "measure_sharing"]

# Opens the store, asks, says what it needs, and waits for the others.  Imported modules do not count.
CHILD = """
import gc, json, sys
from dlbf.storage import Store

def private():
    gc.collect()
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))

with Store(sys.argv[2]) as small:  # whatever a first store brings along
    small.get(b"x")
    before = private()
    with Store(sys.argv[1], readonly=True) as store:
        for i in range(int(sys.argv[3])):
            store.get(b"asked for %d" % i)
        stats = store.stats()
        sys.stdout.write(json.dumps([stats.layers.shared, stats.filter_bytes + stats.model_bytes]) + "\\n")
        sys.stdout.flush()
        sys.stdin.readline()  # all of them have it now
        sys.stdout.write(json.dumps(private() - before) + "\\n")
        sys.stdout.flush()
        sys.stdin.readline()
"""


@dataclass(frozen=True)
class Sharing:
    """Processes with one store: private memory of the one that has most, beside the bytes of the filter."""

    keys: int
    processes: int
    filter_bytes: int
    private_bytes: int
    sharing: int  # how many of them use the common copy

    @property
    def share(self) -> float:
        """Private memory over the filter's bytes."""
        return self.private_bytes / self.filter_bytes


def measure_sharing(n_keys: int, processes: int, asked: int, folder: Path, say: Say = lambda text: None) -> Sharing:
    """Make a store without a model and open it in several processes; needs Linux.

    Parameters
    ----------
    n_keys, processes, asked : int
        Keys in the store, who opens it, and absent keys that each asks for.
    folder : path
        Where the store is made.
    say : callable
        Told what is under way.
    """
    from dlbf.storage import Store

    say(f"a store of {n_keys:,} keys")
    folder.mkdir(parents=True, exist_ok=True)
    with Store(folder / "shared", sync="none") as store:
        store.update((b"key %d" % i, b"") for i in range(n_keys))
        store.rebuild(design="layers")
    Store(folder / "small").close()
    say(f"{processes} processes with it")
    command = [sys.executable, "-c", CHILD, str(folder / "shared"), str(folder / "small"), str(asked)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(processes)
    ]
    try:
        opened = [json.loads(_line(process)) for process in running]
        for process in running:
            _go_on(process)
        private = [json.loads(_line(process)) for process in running]
    finally:
        for process in running:
            process.communicate("\n")
    return Sharing(n_keys, processes, opened[0][1], max(private), sum(shared for shared, _ in opened))


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _go_on(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
