"""A deletable Bloom filter (DlBF) while keys come and go: what its marks cost in the long run.

A region of ``S`` cells is clean until a throw hits a bit that is set.  Then it is marked, for ever: its bits are never
cleared again.  In a clean region every set bit is some stored key's alone.  So a region is a small Markov chain: its
number of set bits while clean, or marked.  In one turnover (as many removals and insertions as there are keys) throws
arrive at the rate ``a = k n / r``; one that finds ``j`` of the ``S`` bits set marks the region with the chance ``j/S``
and sets one more bit otherwise; each set bit is cleared at the rate 1, when its key is removed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Churned", "dlbf_under_churn"]

State = tuple[npt.NDArray[np.float64], float]
STEPS = 200  # of a turnover; the chain is stiff only where regions are large


@dataclass(frozen=True, slots=True)
class Churned:
    """A DlBF after some turnover.

    Attributes
    ----------
    turnover : float
        Keys exchanged since it was filled, as a multiple of those it holds.
    removable : float
        Chance that a stored key can be removed.
    fpr : float
        Rate for strangers; keys that could not be removed are part of it.
    marked : float
        Share of the regions that are marked.

    Examples
    --------
    >>> (found,) = dlbf_under_churn(12, 7, 9, [0.5])
    >>> round(found.removable, 2), round(found.fpr, 3), round(found.marked, 2)
    (0.29, 0.027, 0.91)
    """

    turnover: float
    removable: float
    fpr: float
    marked: float


def dlbf_under_churn(
    bits_per_key: float, hashes: int, region_cells: int, turnovers: list[float] | tuple[float, ...]
) -> list[Churned]:
    """What is left of a DlBF that was filled and then exchanged its keys, at each of the turnovers.

    Parameters
    ----------
    bits_per_key : float
        All bits, marks included, for each key that it holds throughout.
    hashes : int
        Probes per key.
    region_cells : int
        Cells under one mark.
    turnovers : sequence of float
        In rising order.

    Examples
    --------
    >>> found = dlbf_under_churn(12, 7, 9, [0, 1, 3])
    >>> [round(each.removable, 2) for each in found], [round(each.fpr, 3) for each in found]
    ([0.7, 0.11, 0.0], [0.006, 0.083, 0.541])
    """
    if not (bits_per_key > 0 and hashes >= 1 and region_cells >= 1):
        raise ValueError(
            f"expected bits_per_key > 0, hashes >= 1 and region_cells >= 1, found {bits_per_key!r}, {hashes!r} and "
            f"{region_cells!r}"
        )
    if list(turnovers) != sorted(turnovers) or (len(turnovers) and turnovers[0] < 0):
        raise ValueError(f"turnovers: expected numbers >= 0 in rising order, found {turnovers!r}")
    size = region_cells
    regions_per_key = bits_per_key / (size + 1)
    arrivals = hashes / regions_per_key  # throws at a region in one turnover
    bits = np.arange(size + 1.0)
    start = np.zeros(size + 1)
    start[0] = 1.0
    state = (start, 0.0)  # chance to be clean with j bits set; bits set in marked regions, for each region

    def advance(state: State, time: float, clearing: float) -> State:
        steps = max(1, round(STEPS * time * max(1.0, arrivals)))
        step = time / steps
        clean, dirty = state
        for _ in range(steps):
            marking = arrivals * bits / size * clean
            setting = arrivals * (1 - bits / size) * clean
            clearing_now = clearing * bits * clean
            change = -marking - setting - clearing_now
            change[1:] += setting[:-1]
            change[:-1] += clearing_now[1:]
            cells_marked = size * (1 - clean.sum())
            dirty += step * (float(bits @ marking) + (cells_marked - dirty) * arrivals / size)
            clean = clean + step * change
        return clean, dirty

    def told(turnover: float) -> Churned:
        clean, dirty = state
        own = float(bits @ clean)
        lone = min(1.0, own * regions_per_key / hashes)  # of a key's bits, those in clean regions
        fill = min(1.0, float(own + dirty) / size)
        return Churned(turnover, 1 - (1 - lone) ** hashes, fill**hashes, 1 - float(clean.sum()))

    state = advance(state, 1.0, 0.0)
    found, now = [], 0.0
    for turnover in turnovers:
        if turnover > now:
            state = advance(state, turnover - now, 1.0)
            now = turnover
        found.append(told(turnover))
    return found
