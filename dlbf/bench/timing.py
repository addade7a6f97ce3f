"""Timing side by side: contenders take turns, the best round of each counts.

Machines are noisy and slow down together, so only ratios of times from the same run mean something.  The spread is that
of the per-round ratios.
"""

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Timing", "machine", "side_by_side"]


@dataclass(frozen=True)
class Timing:
    """Times of one contender over all rounds, in nanoseconds per operation."""

    rounds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The fastest round."""
        return min(self.rounds)

    def ratio(self, other: "Timing") -> tuple[float, float, float]:
        """Best over best, and the quartiles of the ratios within rounds."""
        ratios = sorted(mine / theirs for mine, theirs in zip(self.rounds, other.rounds, strict=True))
        if len(ratios) < 3:
            return self.best / other.best, ratios[0], ratios[-1]
        low, _, high = statistics.quantiles(ratios, n=4)
        return self.best / other.best, low, high


def side_by_side(
    contenders: dict[str, Callable[[Sequence[bytes]], object]],
    inputs: Callable[[int], Sequence[bytes]],
    rounds: int = 7,
    progress: Callable[[str], None] | None = None,
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
    return {name: Timing(tuple(values)) for name, values in times.items()}


def machine() -> dict[str, str]:
    """What a reader needs to know about where figures come from."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    except OSError:
        pass
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
