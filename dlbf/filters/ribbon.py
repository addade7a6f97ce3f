"""The ribbon filter: built once from all of its keys, and then the smallest filter without a model."""

import os
from collections.abc import Callable
from typing import Never, Self

import numpy as np
import numpy.typing as npt

from dlbf.errors import StaticFilterError
from dlbf.filters.base import MAX_PAYLOAD_BYTES, Filter, aligned_zeros, check_count, check_rate
from dlbf.filters.hashed import KeyHashes, checked_hashes
from dlbf.filters.ribbon_sizes import (
    BLOCK_ROWS,
    MAX_COLUMNS,
    RibbonGeometry,
    ribbon_bytes,
    ribbon_columns,
    ribbon_fpr,
    ribbon_geometry,
    ribbon_keys,
    ribbon_price,
    ribbon_rows,
    ribbon_shards,
)
from dlbf.filters.row import Base
from dlbf.format import float_to_param
from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.ribbon import (
    RibbonCore,
    ribbon_bounds,
    ribbon_close_gap,
    ribbon_halve,
    ribbon_put_head,
    ribbon_solve,
    ribbon_sort,
)
from dlbf.typenames import Keys

__all__ = ["RIBBON", "RibbonFilter", "SortedHashes", "fill_ribbon", "usable_cores"]

MAX_ROWS = 1 << 44
# First rows are stored as their distance from where shards of equal size would start, in 24 bits.
MAX_OFFSET = 1 << 23
# A shard with more keys than this is no accident of a good hash.  Its equations are a longer band, which needs more
# spare rows: a quarter is enough for any length.
CROWDED_KEYS = 2600
# Shards that one thread solves at least: fewer are done before another thread has started.
SHARDS_PER_THREAD = 8
# Hashes that two threads sort rather than one, for the same reason.
SORTED_BY_TWO = 1 << 16

Hashes = npt.NDArray[np.uint64]
Room = npt.NDArray[np.uint8] | bytearray | memoryview  # writable


class SortedHashes:
    """The different hashes of a set of keys, as one filter sees them, and where the shards start among them.

    Parameters
    ----------
    hashes : numpy.ndarray of uint64
        Sorted in place, repeated ones dropped: the array is used up.
    filter_id : int
        Of the filter that is to be built.
    workers : int, optional
        Threads; by default one for every processor that this process may use.
    """

    def __init__(self, hashes: Hashes, filter_id: int = 0, workers: int | None = None) -> None:
        if not isinstance(hashes, np.ndarray) or hashes.dtype != np.uint64 or hashes.ndim != 1:
            found = f"{hashes.dtype}, {hashes.ndim}-d" if isinstance(hashes, np.ndarray) else type(hashes).__name__
            raise TypeError(f"hashes must be a numpy array of uint64 with one dimension, found {found}")
        if not (hashes.flags.writeable and hashes.flags.c_contiguous):
            raise ValueError("hashes are sorted in place, so they must be writable and contiguous; pass hashes.copy()")
        self.hashes = hashes
        self.n_keys = _sort(hashes, filter_id, usable_cores() if workers is None else workers)
        self.bounds = ribbon_bounds(hashes, self.n_keys, ribbon_shards(self.n_keys))
        self.spare = np.zeros(len(self.bounds), dtype=np.int64)
        counts = np.diff(self.bounds)
        self.spare[1:] = np.maximum(0, counts - CROWDED_KEYS) // 4

    @property
    def first_rows(self) -> npt.NDArray[np.int64]:
        """First row of each shard, and the number of all rows."""
        plain = [ribbon_rows(n_keys, shard) for shard, n_keys in enumerate(self.bounds.tolist())]
        return np.array(plain, dtype=np.int64) + np.cumsum(self.spare)

    def widen(self, shard: int) -> None:
        """Give a shard that cannot be solved more rows."""
        n_keys = int(self.bounds[shard + 1] - self.bounds[shard])
        self.spare[shard + 1] += 8 + n_keys // 64

    def geometry(self, fpr: float) -> RibbonGeometry:
        """What a filter of them at that rate looks like."""
        rows = self.first_rows
        n_shards, n_rows = len(rows) - 1, int(rows[-1])
        expected = np.arange(n_shards + 1) * (n_rows / max(1, n_shards))
        if np.abs(rows - expected).max() > MAX_OFFSET - 2:
            raise ValueError(
                f"the hashes are not spread evenly over 64 bits: a part of their range has {MAX_OFFSET} more than its "
                "share; pass what dlbf's own hash gives"
            )
        return RibbonGeometry(n_shards, n_rows, *ribbon_columns(n_rows, fpr))


def usable_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _sort(hashes: Hashes, filter_id: int, workers: int) -> int:
    """Sort as the filter of that id sees them, the different ones to the front; returns how many these are."""
    if workers == 1 or len(hashes) < SORTED_BY_TWO:
        return ribbon_sort(hashes, filter_id)
    from concurrent.futures import ThreadPoolExecutor  # heavy, and only a large build needs it

    n_low = ribbon_halve(hashes, filter_id)
    with ThreadPoolExecutor(2) as pool:
        low, high = pool.map(ribbon_sort, (hashes[:n_low], hashes[n_low:]))
    # No hash is in both halves.
    ribbon_close_gap(hashes, low, n_low, high)
    return low + high


def fill_ribbon(keys: SortedHashes, geometry: RibbonGeometry, payload: Room, workers: int | None = None) -> bool:
    """Build the filter in ``payload``, ``ribbon_bytes(geometry)`` zeros.

    Returns False when a shard could not be solved (one time in many millions, unless the hashes are not random): it has
    more rows now, and ``keys.geometry`` says how many bytes to try again with.
    """
    rows = keys.first_rows
    n_shards = geometry.n_shards
    workers = usable_cores() if workers is None else workers
    n_runs = max(1, min(workers, n_shards // SHARDS_PER_THREAD))
    starts = [n_shards * run // n_runs for run in range(n_runs + 1)]

    def solve(run: int) -> tuple[int, Hashes]:
        return ribbon_solve(
            keys.hashes, keys.bounds, rows, geometry.n_columns, geometry.n_wide, payload, starts[run], starts[run + 1]
        )

    if n_runs == 1:
        outcomes = [solve(0)]
    else:
        from concurrent.futures import ThreadPoolExecutor  # heavy, and only a large build needs it

        with ThreadPoolExecutor(n_runs) as pool:
            outcomes = list(pool.map(solve, range(n_runs)))
    for run, (failed, head) in enumerate(outcomes):
        if failed >= 0:
            keys.widen(failed)
        ribbon_put_head(rows, geometry.n_columns, geometry.n_wide, payload, starts[run], head)
    return all(failed < 0 for failed, _ in outcomes)


class RibbonFilter(RibbonCore, Filter):
    """The smallest filter without a model, built once from all of its keys: 6.75 bits per key at 1 %, 10.0 at 0.1 %.

    Made by ``build``, or by ``build_from_hashes``; no key can be added or removed afterwards.

    Notes
    -----
    Within 0.8 % of the least that any filter needs, log2(1/fpr) bits per key, at rates that are powers of two; between
    two of them up to 0.086 bits per key more.  The bytes depend on the keys and on the rate alone, not on the order
    of the keys or on the number of threads.

    Examples
    --------
    >>> keys = [b"%d" % i for i in range(10_000)]
    >>> f = RibbonFilter.build(keys, fpr=0.01)
    >>> len(f), b"7" in f, bool(f.contains_many(keys).all()), round(f.bits_per_key, 1)
    (10000, True, True, 6.8)
    """

    KIND = 8
    PARAMS = ("n_shards", "n_rows", "n_columns", "n_wide")
    DELETABLE = False

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise TypeError("a RibbonFilter is made from all of its keys at once: RibbonFilter.build(keys, fpr=0.01)")

    @classmethod
    def build(
        cls,
        keys: Keys,
        fpr: float = 0.01,
        *,
        secret: bytes | None = None,
        filter_id: int = 0,
        workers: int | None = None,
    ) -> Self:
        """The filter of these keys.

        Parameters
        ----------
        keys : iterable of keys, numpy array of dtype S, U, object or integers, or Arrow string or binary array
            Repeated ones count once.  Generators are streamed: only a hash of each key is kept, 8 bytes.
        fpr : float
            False-positive rate.
        secret : bytes, optional
            16 bytes for the keyed hash, as for ``dlbf.BloomFilter``.
        filter_id : int
            Separates the positions of filters that share a hash.
        workers : int, optional
            Threads; by default one for every processor that this process may use.

        Examples
        --------
        >>> f = RibbonFilter.build(["anna", "bob"], 0.001)
        >>> "anna" in f, "clara" in f
        (True, False)
        """
        check_rate(fpr)
        hashes = hash64_many(keys, secret)
        return cls.build_from_hashes(hashes, fpr, secret=secret, filter_id=filter_id, workers=workers)

    @classmethod
    def build_from_hashes(
        cls,
        hashes: Hashes | KeyHashes,
        fpr: float = 0.01,
        *,
        secret: bytes | None = None,
        filter_id: int = 0,
        workers: int | None = None,
        allocate: Callable[[int], Room] = aligned_zeros,
    ) -> Self:
        """The filter of the keys that have these hashes.

        Parameters
        ----------
        hashes : KeyHashes, or numpy.ndarray of uint64
            What ``dlbf.hash_keys`` gives, which is copied; or the bare hash of every key under ``secret``, in any
            order, repeated ones as they come (``dlbf.kernels.hashing.hash64_many``).  These are sorted in place: the
            array is used up.  Besides it and the filter, building needs some hundred kilobytes for each thread.
        fpr : float
            False-positive rate.
        secret : bytes, optional
            That the keys were hashed with.
        filter_id : int
            As for ``build``.
        workers : int, optional
            As for ``build``.
        allocate : callable
            ``allocate(n_bytes)`` gives the writable buffer of zeros in which the filter is built and then stays, a
            mapped file, say; by default memory of its own.

        Examples
        --------
        >>> from dlbf import hash_keys
        >>> f = RibbonFilter.build_from_hashes(hash_keys([b"a", b"b", b"a"]), 0.001)
        >>> len(f), b"a" in f
        (2, True)
        """
        fpr = check_rate(fpr)
        filter_id = check_count("filter_id", filter_id, 0, 2**64 - 1)
        if workers is not None:
            workers = check_count("workers", workers, 1, 1 << 16)
        if isinstance(hashes, KeyHashes):
            hashes = checked_hashes(hashes, secret, cls.__name__).copy()
        keys = SortedHashes(hashes, filter_id, workers)
        while True:
            geometry = keys.geometry(fpr)
            payload = allocate(ribbon_bytes(geometry))
            if fill_ribbon(keys, geometry, payload, workers):
                break
        self = cls.__new__(cls)
        self._open((keys.n_keys, float_to_param(fpr), filter_id, *geometry), payload, keys.n_keys, secret)
        return self

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        geometry = RibbonGeometry(*params[3:])
        check_count("n_rows", geometry.n_rows, 0, MAX_ROWS)
        check_count("n_shards", geometry.n_shards, min(1, geometry.n_rows), geometry.n_rows)
        check_count("n_columns", geometry.n_columns, 0, MAX_COLUMNS)
        n_blocks = -(-geometry.n_rows // BLOCK_ROWS)
        check_count("n_wide", geometry.n_wide, 0, max(0, n_blocks - 1))
        return check_count("payload bytes", ribbon_bytes(geometry), 8, MAX_PAYLOAD_BYTES)

    def _apply(self, params: tuple[int, ...]) -> None:
        self._set_geometry(*params[3:])

    @property
    def geometry(self) -> RibbonGeometry:
        """Shards, rows, columns, blocks with one column more."""
        return RibbonGeometry(*self._params[3:])

    @property
    def fill(self) -> float:
        """Share of the rows that a key's equations use."""
        return len(self) / self.geometry.n_rows if self.geometry.n_rows else 0.0

    def approximate_count(self) -> int:
        """Number of different keys it was built from, by the number of rows; a part of a composite has no other."""
        return ribbon_keys(self.geometry)

    @property
    def expected_fpr(self) -> float:
        """False-positive rate that theory gives."""
        return ribbon_fpr(self.geometry)

    # --- what a filter that is built once cannot do

    def _refuse(self, what: str) -> Never:
        raise StaticFilterError(
            f"a RibbonFilter is built once, from all of its keys, so {what}; build another one "
            "(RibbonFilter.build), or use CuckooFilter (smallest that changes) or BloomFilter"
        )

    def add(self, key: object) -> Never:
        """Always raises StaticFilterError."""
        self._refuse("no key can be added")

    def update(self, keys: object) -> Never:
        """Always raises StaticFilterError."""
        self._refuse("no key can be added")

    def remove(self, key: object) -> Never:
        """Always raises StaticFilterError."""
        self._refuse("no key can be removed")

    def discard(self, key: object) -> Never:
        """Always raises StaticFilterError."""
        self._refuse("no key can be removed")

    def remove_many(self, keys: object) -> Never:
        """Always raises StaticFilterError."""
        self._refuse("no key can be removed")

    def clear(self) -> Never:
        """Always raises StaticFilterError."""
        self._refuse("it cannot be emptied")

    def __or__(self, other: object) -> Never:
        self._refuse("it cannot be combined with another")

    def __ior__(self, other: object) -> Never:
        self._refuse("it cannot be combined with another")

    def __and__(self, other: object) -> Never:
        self._refuse("it cannot be combined with another")

    def __iand__(self, other: object) -> Never:
        self._refuse("it cannot be combined with another")


def _scaled(params: tuple[int, ...], n_before: int, n_keys: int) -> tuple[int, ...]:
    return tuple(ribbon_geometry(n_keys, ribbon_fpr(RibbonGeometry(*params[:4]))))


RIBBON = Base(
    name="ribbon",
    cls=RibbonFilter,
    words="ribbon filter",
    geometry=lambda n_keys, planned, counter_bits: tuple(ribbon_geometry(n_keys, min(planned.fpr, 0.9999))),
    scaled=_scaled,
    rate=lambda n_keys, params: ribbon_fpr(RibbonGeometry(*params[:4])),
    price=lambda counter_bits: (ribbon_price(),),
    forgets=False,
    static=True,
    rate_at_load=lambda fpr, load, hashes: fpr,
)
