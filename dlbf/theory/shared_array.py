"""One array for all regions, ``k_r`` hashes in region ``r`` (ada-bf, ada-cbf).

With fill ``x`` a region's rate is ``x^k_r``, and ``m`` cells reach the fill ``1 - exp(-n sum G_r k_r / m)``.  For
real ``k_r`` and half fill this is exactly the allocation of separate filters; whole numbers of hashes cost a little
more, and here they are searched: start from the rounded optimum at several fills, then change one region at a time
while that helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlbf.theory.allocation import allocate
from dlbf.theory.costs import cell_cost

__all__ = ["SharedArray", "optimise_shared_array"]

Floats = npt.NDArray[np.float64]
MAX_HASHES = 64
NO_KEYS_RATE = 1e-6


@dataclass(frozen=True, slots=True)
class SharedArray:
    """Hashes per region, their rates, the fill of the array, and bits per key.

    Examples
    --------
    >>> found = optimise_shared_array(np.array([0.2, 0.8]), np.array([0.9, 0.1]), 1, fpr=0.01)
    >>> found.hashes, round(found.bits, 2)
    ((10, 4), 6.78)
    """

    hashes: tuple[int, ...]
    rates: tuple[float, ...]
    fill: float
    bits: float


def _fill_for(hashes: Floats, keys: Floats, queries: Floats, fpr: float, kept: float, worst: float) -> float:
    """Largest fill that meets the targets."""
    if not (hashes * keys).any():
        return 0.0

    def meets(fill: float) -> bool:
        rates = fill**hashes
        return bool(queries @ rates <= fpr and keys @ rates <= kept and rates[keys > 0].max() <= worst)

    high = 1.0 - 1e-9
    if meets(high):
        return high
    if not meets(0.0):
        return 0.0
    # Log rates are convex in the log of the fill, so Newton's steps from above never go below where they are met.
    stored = hashes[keys > 0]
    log_fill = min(0.0, math.log(worst) / max(float(stored.min()), 1e-300)) if worst < 1 else 0.0
    for shares, most in ((queries, fpr), (keys, kept)):
        for _ in range(60):
            parts = shares * np.exp(hashes * log_fill)
            total = float(parts.sum())
            if total <= most:
                break
            step = math.log(total / most) * total / float(parts @ hashes)
            log_fill -= step
            if step < 1e-14 * -log_fill:
                break
    fill, shrink = min(high, math.exp(log_fill)), 1e-15
    while not meets(fill):
        fill *= 1 - shrink
        shrink = min(0.5, 2 * shrink)
    return fill


@dataclass(frozen=True, slots=True)
class _Search:
    """The targets of one call of ``optimise_shared_array``."""

    keys: Floats
    queries: Floats
    cell_bits: float
    fpr: float | None
    bits: float | None
    kept: float
    worst: float

    def score(self, hashes: Floats) -> tuple[float, float]:
        """What to minimise, and the fill."""
        keys, queries = self.keys, self.queries
        if self.fpr is not None:
            fill = _fill_for(hashes, keys, queries, self.fpr, self.kept, self.worst)
            if fill <= 0:
                # An array that nobody writes to rejects whatever is looked up in it.
                rates = np.where(hashes > 0, 0.0, 1.0)
                within = queries @ rates <= self.fpr and keys @ rates <= self.kept and self.worst >= 1
                return (0.0 if within else math.inf), 0.5
            return float(keys @ hashes) * self.cell_bits / -math.log1p(-fill), fill
        assert self.bits is not None
        fill = -math.expm1(-float(keys @ hashes) * self.cell_bits / self.bits) if self.bits > 0 else 1.0
        rates = fill**hashes
        if keys @ rates > self.kept or rates[keys > 0].max() > self.worst:
            return math.inf, fill
        return float(queries @ rates), fill

    def climb(self, hashes: Floats) -> tuple[float, Floats, float]:
        """Add or take away one hash of one region as long as that helps."""
        value, fill = self.score(hashes)
        improved = True
        while improved:
            improved = False
            for region in range(len(hashes)):
                for step in (-1, 1):
                    changed = hashes.copy()
                    changed[region] = min(MAX_HASHES, max(0, changed[region] + step))
                    new, new_fill = self.score(changed)
                    if new < value * (1 - 1e-12):
                        hashes, value, fill, improved = changed, new, new_fill, True
        return value, hashes, fill


def optimise_shared_array(
    keys: Floats,
    queries: Floats,
    cell_bits: float,
    *,
    fpr: float | None = None,
    bits: float | None = None,
    deletability: float = 0.0,
    adversarial_fpr: float = 1.0,
) -> SharedArray | None:
    """Hashes per region with the fewest bits for `fpr`, or the lowest rate for `bits`; None if nothing fits.

    Examples
    --------
    >>> found = optimise_shared_array(np.array([0.2, 0.8]), np.array([0.9, 0.1]), 4, fpr=0.01)
    >>> found.hashes, [round(rate, 4) for rate in found.rates]
    ((10, 4), [0.002, 0.0824])
    """
    real = allocate(
        keys,
        queries,
        [cell_cost(cell_bits)],
        fpr=fpr,
        bits=bits,
        deletability=deletability,
        adversarial_fpr=adversarial_fpr,
    )
    if not real.feasible:
        return None
    kept = 1 - deletability if deletability > 0 else math.inf
    # A region without keys costs nothing however many hashes it has.
    nats = np.array([-math.log(max(rate, NO_KEYS_RATE)) for rate in real.rates])

    search = _Search(keys, queries, cell_bits, fpr, bits, kept, adversarial_fpr)
    rounding: list[Callable[[Floats], Floats]] = [np.round, np.ceil]
    starts = {
        tuple(np.clip(how(nats / -math.log(fill)), 0, MAX_HASHES))
        for fill in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
        for how in rounding
    }
    value, hashes, fill = min((search.climb(np.array(start)) for start in sorted(starts)), key=lambda found: found[0])
    if not math.isfinite(value):
        return None
    # A region without keys still answers through the shared array, with as many hashes as any other.
    hashes = np.where(keys > 0, hashes, hashes.max())
    rates = fill**hashes
    return SharedArray(
        tuple(int(count) for count in hashes),
        tuple(float(rate) for rate in rates),
        float(fill),
        value if fpr is not None else float(bits or 0.0),
    )
