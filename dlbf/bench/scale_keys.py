"""The keys of ``dlbf bench scale``: functions of their number, made in batches and forgotten."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["ABSENT", "BATCH", "batches", "make_keys"]

BATCH = 100_000
ABSENT = 1 << 40  # numbers from here on belong to no stored key


def make_keys(numbers: npt.NDArray[np.integer]) -> list[bytes]:
    """Keys of 26 bytes, with a little structure for a model to learn; the same number gives the same key.

    Parameters
    ----------
    numbers : array of int
        From ``ABSENT`` on they are of another kind.

    Examples
    --------
    >>> make_keys(np.array([0, 1]))[0] == make_keys(np.array([0]))[0], len(set(make_keys(np.arange(1000))))
    (True, 1000)
    """
    values = np.asarray(numbers, dtype=np.uint64)
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    text = mixed.astype(">u8").tobytes().hex().encode()
    # Every tenth key looks like one of the other kind: no model is perfect.
    odd = (mixed % np.uint64(10) == 0).tolist()
    absent = (values >= ABSENT).tolist()
    return [
        (b"news/page/" if absent[i] != odd[i] else b"cdn7/files") + text[16 * i : 16 * i + 16]
        for i in range(len(absent))
    ]


def batches(n_keys: int) -> Iterator[tuple[int, list[bytes]]]:
    """All keys of a size, a batch at a time, each with the number of its first key."""
    for first in range(0, n_keys, BATCH):
        yield first, make_keys(np.arange(first, min(first + BATCH, n_keys)))
