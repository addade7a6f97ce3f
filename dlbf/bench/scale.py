"""``dlbf bench scale``: what a key costs in small sets and in large ones.

Every size is measured in a process of its own, so that memory is that of the size.  Keys are made in batches and
forgotten; a key is a function of its number, so that any of them can be made again.  What happens once (building,
loading, rebuilding) is told in processor time; the rest is the best of many short turns.
"""

import gc
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from dlbf.bench.scale_filters import measure_filters
from dlbf.bench.scale_results import ScaleFigures, SizeFigures
from dlbf.bench.scale_store import measure_store
from dlbf.bench.timing import Say

__all__ = ["SIZES", "measure", "measure_size"]

SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)


def measure_size(
    n_keys: int, rounds: int = 40, folder: Path | None = None, say: Say = lambda text: None
) -> SizeFigures:
    """Everything for one number of keys, in this process."""

    def say_here(text: str) -> None:
        say(f"{n_keys:,} keys: {text}")

    filters, missing = measure_filters(n_keys, rounds, say_here)
    gc.collect()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        store = measure_store(n_keys, Path(place), rounds, say_here)
    unit = 1 if sys.platform == "darwin" else 1024
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return SizeFigures(n_keys, filters, missing, store, peak_bytes)


MEASURER = """
import json, sys
from pathlib import Path
from dlbf.bench.results import plain
from dlbf.bench.scale import measure_size
n_keys, rounds, folder = sys.argv[1:]
figures = measure_size(
    int(n_keys), int(rounds), Path(folder) if folder else None, lambda text: print(text, file=sys.stderr, flush=True)
)
print(json.dumps(figures, default=plain))
"""


def _measure_in_a_process(n_keys: int, rounds: int, folder: Path | None, say: Say) -> SizeFigures:
    child = subprocess.Popen(
        [sys.executable, "-c", MEASURER, str(n_keys), str(rounds), str(folder or "")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stderr is not None
    last = ""
    for line in child.stderr:
        last += line
        say(line.strip())
    text = child.stdout.read()
    if child.wait():
        raise RuntimeError(f"measuring {n_keys:,} keys failed: {last[-2000:]}")
    return SizeFigures.from_dict(json.loads(text))


def measure(
    max_keys: int = 3_000_000, rounds: int = 40, folder: Path | None = None, say: Say = lambda text: None
) -> ScaleFigures:
    """Every size up to ``max_keys``, each in a process of its own; slopes and bars."""
    return ScaleFigures.of([_measure_in_a_process(size, rounds, folder, say) for size in SIZES if size <= max_keys])
