"""Builds of made keys, each in a process of its own: ``dlbf bench shards --only build``."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dlbf.bench.timing import Say
from dlbf.errors import DlbfError

__all__ = ["Built", "build_both"]

# Builds, and says how long that took, in which phases, and what the worker with most memory had at its peak.
CHILD = """
import hashlib, json, resource, sys, time

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

if __name__ == "__main__":
    from pathlib import Path
    import dlbf.build
    source, output, negatives, who, shards, model = sys.argv[1:7]
    ends = {}
    def progress(phase, fraction):
        ends[phase] = time.perf_counter()
    absent = Path(negatives).read_bytes().split(b"\\n")
    def build(**more):
        start = time.perf_counter()
        dlbf.build.build_file(
            [source], output, absent, shards=int(shards), model=None if model == "none" else model, progress=progress,
            **more,
        )
        phases, before = {}, start
        for phase, end in ends.items():
            phases[phase], before = end - before, end
        return time.perf_counter() - start, phases
    if who == "one process":
        seconds, phases = build(workers=1)
        most = peak()
    else:
        import distributed
        cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
        with cluster, distributed.Client(cluster) as client:
            seconds, phases = build(on=client)
            most = max(client.run(peak).values())
    data = hashlib.sha256()
    with open(output, "rb") as file:
        while block := file.read(1 << 20):
            data.update(block)
    print(json.dumps([seconds, phases, most, data.hexdigest()]))
"""
WHO = ("one process", "Dask, 2 workers")


@dataclass(frozen=True)
class Built:
    """One build of made keys."""

    who: str
    keys: int
    shards: int
    seconds: float
    phases: dict[str, float]
    worker_bytes: int  # the most that a worker had at its peak, libraries included
    file_sum: str

    @property
    def ns_per_key(self) -> float:
        """Of the whole build."""
        return 1e9 * self.seconds / self.keys


def build_both(
    n_keys: int, negatives: Sequence[bytes], folder: Path, say: Say, shards: int, model: str = "none"
) -> list[Built]:
    """One process, then Dask with two workers; the bytes must be the same.

    Raises
    ------
    DlbfError
        If they differ, a build fails, or Dask is not installed.
    """
    if importlib.util.find_spec("distributed") is None:
        raise DlbfError("Dask is not installed; install it with: pip install 'dlbf[dask]', or leave this part out")
    say(f"{n_keys:,} made keys")
    source = folder / "made.txt"
    with source.open("wb") as file:
        for first in range(0, n_keys, 100_000):
            last = min(first + 100_000, n_keys)
            file.write(b"".join(b"http://made.example/a/page/%d\n" % i for i in range(first, last)))
    (folder / "absent.txt").write_bytes(b"\n".join(negatives[:100_000]))
    (folder / "child.py").write_text(CHILD)
    made: list[Built] = []
    for who in WHO:
        say(f"{n_keys:,} made keys: {who}")
        given = [str(source), str(folder / f"{len(made)}.dlbf"), str(folder / "absent.txt"), who, str(shards), model]
        done = subprocess.run(
            [sys.executable, str(folder / "child.py"), *given], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DlbfError(f"{who}: the build failed: {done.stderr.strip()[-500:]}")
        seconds, phases, most, data = json.loads(done.stdout.splitlines()[-1])
        made.append(Built(who, n_keys, shards, seconds, phases, most, data))
    if len({each.file_sum for each in made}) > 1:
        raise DlbfError("the bytes of the two builds differ; please report this")
    return made
