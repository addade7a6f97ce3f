"""Timing side by side: contenders take turns, the best round of each counts.

Machines are noisy and slow down together, so only ratios of times from the same run mean something.  The spread is that
of the per-round ratios.
"""

import functools
import gc
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dlbf._version import __version__

__all__ = [
    "Answers",
    "Ratio",
    "Say",
    "Timing",
    "Work",
    "ask_each_in",
    "call_with_each",
    "commit",
    "fresh",
    "machine",
    "side_by_side",
]

# Told in words what is being done.
Say = Callable[[str], None]
# Best over best, and the quartiles of the ratios within rounds.
Ratio = tuple[float, float, float]
# A piece of work on a batch of keys.
Work = Callable[[Sequence[bytes]], object]


@dataclass(frozen=True)
class Timing:
    """Times of one contender over all rounds, in nanoseconds per operation."""

    rounds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The fastest round."""
        return min(self.rounds)

    def ratio(self, other: "Timing") -> Ratio:
        """Best over best, and the quartiles of the ratios within rounds."""
        ratios = sorted(mine / theirs for mine, theirs in zip(self.rounds, other.rounds, strict=True))
        if len(ratios) < 3:
            return self.best / other.best, ratios[0], ratios[-1]
        low, _, high = statistics.quantiles(ratios, n=4)
        return self.best / other.best, low, high


def side_by_side(
    contenders: Mapping[str, Work],
    inputs: Callable[[int], Sequence[bytes]],
    rounds: int = 7,
    progress: Say | None = None,
) -> dict[str, Timing]:
    """Run every contender once a round, each on fresh input, in rotating order.

    Parameters
    ----------
    contenders : dict
        Name to function of a batch.
    inputs : callable
        Makes a fresh batch for a seed; the making is not timed.
    rounds : int
        How often.
    progress : callable, optional
        Told the name of what runs.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    gc.collect()
    # What is there already need not be looked through before every turn.
    gc.freeze()
    try:
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                if progress:
                    progress(name)
                batch = inputs(turn)
                gc.collect()
                gc.disable()
                try:
                    start = time.perf_counter_ns()
                    contenders[name](batch)
                    times[name].append((time.perf_counter_ns() - start) / len(batch))
                finally:
                    gc.enable()
    finally:
        gc.unfreeze()
    return {name: Timing(tuple(values)) for name, values in times.items()}


class Answers(Protocol):
    """What a key can be asked to be in."""

    def __contains__(self, key: bytes, /) -> bool: ...


def ask_each_in(filter: Answers) -> Callable[[Sequence[bytes]], None]:
    """A loop that asks whether each key of a batch is in something."""

    def run(batch: Sequence[bytes]) -> None:
        for key in batch:
            key in filter  # noqa: B015

    return run


def call_with_each(function: Callable[[bytes], object]) -> Callable[[Sequence[bytes]], None]:
    """A loop that calls a function with each key of a batch."""

    def run(batch: Sequence[bytes]) -> None:
        for key in batch:
            function(key)

    return run


def fresh(keys: Iterable[bytes]) -> list[bytes]:
    """The same keys as new objects, as they are when a request has just brought them."""
    return [bytes(bytearray(key)) for key in keys]


def machine() -> dict[str, str]:
    """What a reader needs to know about where figures come from."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    try:
        memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError):
        memory = "unknown"
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "memory": memory,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "dlbf": __version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def commit() -> str:
    """The commit of the checkout that dlbf is imported from, "+" if files differ from it; "none" outside of one."""
    here = Path(__file__).parents[2]
    if not (here / ".git").exists():
        return "none"
    try:
        run = functools.partial(subprocess.run, cwd=here, capture_output=True, text=True, check=True)
        head = run(["git", "rev-parse", "--short=10", "HEAD"]).stdout.strip()
        changed = run(["git", "status", "--porcelain", "--untracked-files=no", "--", "dlbf", "storage"]).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return head + ("+" if changed else "")
