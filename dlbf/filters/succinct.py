"""Counters in two bits each: a Bloom filter for queries, and rank-coded counts beside it."""

import math

from dlbf.errors import ChecksumError, FormatError
from dlbf.filters.base import MAX_PAYLOAD_BYTES, check_count, check_target
from dlbf.filters.bloom import MAX_HASHES, CountingCells, scaled_cells
from dlbf.filters.row import Base, Planned
from dlbf.geometry import (
    SuccinctGeometry,
    cell_fpr,
    cell_price,
    cell_rate_at_load,
    succinct_bytes,
    succinct_geometry,
    succinct_slots,
)
from dlbf.kernels.succinct import SuccinctCore

__all__ = ["SUCCINCT", "SuccinctCountingFilter"]


class SuccinctCountingFilter(SuccinctCore, CountingCells):
    """A counting Bloom filter in half the space of 4-bit counters, asked as fast as a Bloom filter.

    Parameters
    ----------
    capacity : int
        Number of keys to plan for, as for ``dlbf.BloomFilter``.
    fpr : float
        False-positive rate when it holds ``capacity`` keys.
    secret : bytes, optional
        16 bytes for the keyed hash, as for ``dlbf.BloomFilter``.
    filter_id : int
        Separates the positions of filters that share a hash.
    counters, hashes : int
        Exact geometry instead of ``capacity`` and ``fpr``: number of counters, probes per key.
    slots : int, optional
        Groups of 64 counters whose counts may add up to more than 64; each costs 64 bytes.  By default as many as
        ``capacity`` different keys need, and a tenth more of them; ask for more if keys are added dozens of times.

    Notes
    -----
    Counts are exact up to 255, where a counter stays.  They are kept in a few more than two bits per counter, whatever
    they are, as long as the 64 of a group add up to at most 64; groups that outgrow this take one of a few slots.
    At a tenth over capacity, or with many keys added dozens of times, the slots are used up: ``add`` raises
    ``dlbf.FilterFullError`` and nothing has changed.  Every key that was added can be removed.

    Remove only keys that were added.  The filter refuses (KeyError) when it can tell; when it cannot, the
    removal damages other keys.

    A file mapped with ``mode="r+"`` and not closed cannot be recovered: a count lives in two words, and a process
    killed between the two leaves a table that looks sound and may have lost keys.

    Examples
    --------
    >>> f = SuccinctCountingFilter(1000, 0.01)
    >>> f.update([b"a", b"a", b"b"]); f.count(b"a")
    2
    >>> f.remove(b"b"), b"b" in f, f.remove(b"a"), b"a" in f
    (True, False, False, True)
    """

    KIND = 7
    # Blocks are always 0 (classic): with the array of bits apart, a blocked one would share the kernel.
    PARAMS = ("n_cells", "n_hashes", "block_cells", "n_slots")

    def __init__(
        self,
        capacity: int | None = None,
        fpr: float = 0.01,
        *,
        counters: int | None = None,
        hashes: int | None = None,
        slots: int | None = None,
        secret: bytes | None = None,
        filter_id: int = 0,
    ) -> None:
        if counters is None and hashes is None:
            capacity, fpr = check_target(capacity, fpr)
            geometry = succinct_geometry(capacity, fpr)
        elif capacity is not None or counters is None or hashes is None:
            raise TypeError("pass either capacity and fpr, or both counters= and hashes=, not a mixture")
        else:
            n_cells = check_count("counters", counters, 1, MAX_PAYLOAD_BYTES)
            n_hashes = check_count("hashes", hashes, 1, MAX_HASHES)
            # Different keys enough to fill half of the cells.
            n_slots = succinct_slots(n_cells * math.log(2) / n_hashes, n_cells, n_hashes)
            geometry, capacity, fpr = SuccinctGeometry(n_cells, n_hashes, n_slots), 0, 0.0
        if slots is not None:
            geometry = geometry._replace(n_slots=check_count("slots", slots, 1, MAX_PAYLOAD_BYTES // 64))
        own = (geometry.n_cells, geometry.n_hashes, 0, geometry.n_slots)
        self._create(own, capacity, fpr, secret, filter_id)

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        n_cells, n_hashes, block_cells, n_slots = params[3:]
        check_count("n_cells", n_cells, 1, MAX_PAYLOAD_BYTES)
        check_count("n_hashes", n_hashes, 1, MAX_HASHES)
        check_count("block_cells", block_cells, 0, 0)
        check_count("n_slots", n_slots, 1, MAX_PAYLOAD_BYTES // 64)
        return succinct_bytes(n_cells, n_slots)

    def _recovered_count(self) -> int:
        raise ChecksumError(
            "was being written and not closed; succinct counters change in more than one step, so a "
            "kill may have left half of a change, and nothing would show it. Build it again"
        )

    def _check_opened(self) -> None:
        # A mapped read-only file is left alone: queries read bits, which may have any value, and the kernel
        # limits slot numbers itself.
        if self.is_writable and not self._is_sound():
            raise FormatError(f"the counters of a {type(self).__name__} contradict its bits; build it again")

    @property
    def geometry(self) -> SuccinctGeometry:
        """Counters, probes per key, overflow slots."""
        return SuccinctGeometry(self.counters, self.hashes, self.slots)

    @property
    def slots(self) -> int:
        """Overflow slots: groups of 64 counters that may hold more than 64 counts."""
        return self._param("n_slots")

    @property
    def slots_used(self) -> int:
        """How many of them are in use; when all are, ``add`` may raise FilterFullError."""
        return int(self._slots_used())

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        # Which slot a group got depends on the order of additions, and means nothing.
        return not self._differences(other) and bool(self._same_contents(other))

    __hash__ = None  # type: ignore[assignment]


# --- the row

# Bits per cell: one plain bit, one of rank-coded counts, and the overflow slots.
CELL_BITS = 2.03


def _geometry(n_keys: int, planned: Planned, counter_bits: int) -> tuple[int, ...]:
    n_cells, n_hashes, n_slots = succinct_geometry(n_keys, min(planned.fpr, 0.999))
    return (n_cells, n_hashes, 0, n_slots)


def _scaled(params: tuple[int, ...], n_before: int, n_keys: int) -> tuple[int, ...]:
    n_cells, n_hashes, block_cells, _, *rest = params
    n_cells = scaled_cells(n_cells, n_before, n_keys)
    return (n_cells, n_hashes, block_cells, succinct_slots(n_keys, n_cells, n_hashes), *rest)


SUCCINCT = Base(
    name="succinct",
    cls=SuccinctCountingFilter,
    words="succinct counting filter",
    geometry=_geometry,
    scaled=_scaled,
    rate=lambda n_keys, params: cell_fpr(n_keys, *params[:3]),
    price=lambda counter_bits: (cell_price(CELL_BITS),),
    fills=True,
    rate_at_load=cell_rate_at_load,
)
