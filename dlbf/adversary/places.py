"""Where a filter of cells puts a hash: the arithmetic of ``dlbf/kernels/cells.pxd`` as an adversary repeats it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["cells_of_hashes"]

STEP_MULTIPLIER = np.uint64(0xD1342543DE82EF95)
STEP_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)

Hashes = npt.NDArray[np.uint64]


def _high_product(a: Hashes, b: int) -> Hashes:
    """The upper 64 bits of a 128-bit product."""
    b_high, b_low = np.uint64(b >> 32), np.uint64(b & 0xFFFFFFFF)
    a_high, a_low = a >> SHIFT, a & HALF
    low_high, high_low = a_low * b_high, a_high * b_low
    carry = ((a_low * b_low >> SHIFT) + (low_high & HALF) + (high_low & HALF)) >> SHIFT
    product: Hashes = a_high * b_high + (low_high >> SHIFT) + (high_low >> SHIFT) + carry
    return product


def cells_of_hashes(hashes: Hashes, n_cells: int, n_hashes: int) -> Hashes:
    """The cells that each hash uses, one row per hash.

    Parameters
    ----------
    hashes : array of uint64
    n_cells, n_hashes : int
        Geometry of a classic (not blocked) Bloom or counting filter.

    Examples
    --------
    >>> cells_of_hashes(np.array([0, 1 << 63], dtype=np.uint64), 100, 3)[:, 0].tolist()
    [0, 50]
    """
    places = np.empty((len(hashes), n_hashes), dtype=np.uint64)
    state = hashes.astype(np.uint64)
    for i in range(n_hashes):
        places[:, i] = _high_product(state, n_cells)
        state = state * STEP_MULTIPLIER + STEP_INCREMENT
    return places
