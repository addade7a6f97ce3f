"""Bloom and counting Bloom filters: one array of cells, of one bit or of several."""

import math

import numpy as np
import numpy.typing as npt

from dlbf.errors import NotDeletableError
from dlbf.filters.base import MAX_PAYLOAD_BYTES, Filter, Intersecting, aligned_zeros, check_count, check_target
from dlbf.filters.row import Base, PlainDesign, Planned
from dlbf.geometry import CellGeometry, cell_fpr, cell_geometry, cell_price, cell_rate_at_load
from dlbf.kernels.cells import CellsCore
from dlbf.typenames import Key, Keys

__all__ = ["BITS", "COUNTERS", "BloomFilter", "CountingBloomFilter", "planned_cells", "scaled_cells"]

BLOCK_BITS = 512  # a cache line
MAX_HASHES = 64
# Counters that are larger than a core's own cache are asked through a summary.
SUMMARY_LEAST_BYTES = 1 << 20
LAYOUTS = ("classic", "blocked")


class CellFilter(CellsCore, Intersecting):
    """What Bloom and counting filters share."""

    PARAMS = ("n_cells", "n_hashes", "block_cells", "cell_bits")

    def _create_cells(
        self,
        capacity: object,
        fpr: object,
        n_cells: int | None,
        hashes: object,
        layout: str,
        cell_bits: int,
        secret: bytes | None,
        filter_id: int,
    ) -> None:
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be 'classic' or 'blocked', found {layout!r}")
        block_cells = BLOCK_BITS // cell_bits if layout == "blocked" else 0
        if n_cells is None and hashes is None:
            capacity, fpr = check_target(capacity, fpr)
            geometry = cell_geometry(capacity, fpr, block_cells)
        elif capacity is not None or n_cells is None or hashes is None:
            raise TypeError("pass either capacity and fpr, or both the number of bits and hashes=, not a mixture")
        else:
            n_hashes = check_count("hashes", hashes, 1, MAX_HASHES)
            if block_cells and n_cells % block_cells:
                raise ValueError(f"a blocked filter needs a multiple of {BLOCK_BITS} bits, found {n_cells * cell_bits}")
            geometry, capacity, fpr = CellGeometry(n_cells, n_hashes, block_cells), 0, 0.0
        self._create((*geometry, cell_bits), capacity, fpr, secret, filter_id)

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        n_cells, n_hashes, block_cells, cell_bits = params[3:]
        if cell_bits not in cls._cell_bits_allowed():
            raise ValueError(f"cells of {cell_bits} bits in a {cls.__name__}")
        check_count("n_cells", n_cells, 1, MAX_PAYLOAD_BYTES * 8 // cell_bits)
        check_count("n_hashes", n_hashes, 1, MAX_HASHES)
        if block_cells and (block_cells != BLOCK_BITS // cell_bits or n_cells % block_cells):
            raise ValueError(f"blocks of {block_cells} in {n_cells} cells")
        return -(-n_cells * cell_bits // 8)

    @classmethod
    def _cell_bits_allowed(cls) -> tuple[int, ...]:
        raise NotImplementedError

    def _apply(self, params: tuple[int, ...]) -> None:
        self._set_geometry(*params[3:])

    @property
    def hashes(self) -> int:
        """Probes per key."""
        return self._param("n_hashes")

    @property
    def layout(self) -> str:
        """``"classic"``, or ``"blocked"`` if all probes of a key share a cache line."""
        return LAYOUTS[self._param("block_cells") > 0]

    @property
    def fill(self) -> float:
        """Share of cells that are not zero; half at the planned capacity."""
        n_cells = self._param("n_cells")
        return float(self._occupied(0, n_cells)) / n_cells

    def approximate_count(self) -> int:
        """Number of distinct keys, estimated from the share of empty cells.

        Accurate to about ``sqrt(n)`` up to the planned capacity; an overfull filter only gives a lower bound.
        """
        n_cells, n_hashes, block_cells = (self._param(name) for name in ("n_cells", "n_hashes", "block_cells"))
        occupied = min(self._occupied(0, n_cells), n_cells - 1) if n_cells > 1 else 0
        span = block_cells or n_cells
        # A key misses a given cell of its span with (1 - 1/span)^hashes; keys per span are Poisson.
        hit = -math.expm1(n_hashes * math.log1p(-1 / span)) if span > 1 else 1.0
        return round(-math.log1p(-occupied / n_cells) / hit * (n_cells / span))

    @property
    def expected_fpr(self) -> float:
        """False-positive rate that theory gives for as many keys as are stored now."""
        n_cells, n_hashes, block_cells = (self._param(name) for name in ("n_cells", "n_hashes", "block_cells"))
        return cell_fpr(len(self), n_cells, n_hashes, block_cells)


class NotDeletable(Filter):
    """Mixin for filters that cannot forget: the removing methods say so."""

    DELETABLE = False

    def _refuse(self) -> NotDeletableError:
        return NotDeletableError(
            f"a {type(self).__name__} cannot remove keys; use CuckooFilter (smallest), CountingBloomFilter, "
            "DLeftFilter or DeletableBloomFilter"
        )

    def remove(self, key: Key) -> bool:
        """Always raises NotDeletableError."""
        raise self._refuse()

    def discard(self, key: Key) -> bool:
        """Always raises NotDeletableError."""
        raise self._refuse()

    def remove_many(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Always raises NotDeletableError."""
        raise self._refuse()


class BloomFilter(NotDeletable, CellFilter):
    """A Bloom filter: a set that never forgets a key and sometimes claims one it does not have.

    Parameters
    ----------
    capacity : int
        Number of keys to plan for.  More may be added; the false-positive rate grows then.
    fpr : float
        False-positive rate when it holds ``capacity`` keys.
    bits, hashes : int
        Exact geometry instead of ``capacity`` and ``fpr``.
    layout : {"classic", "blocked"}
        Blocked keeps all probes of a key in one cache line: 3 % more bits at 1 %, 8 % at 0.1 %, and a little faster
        once the filter is larger than the caches.
    secret : bytes, optional
        16 bytes; keys are then hashed with SipHash-1-3 and nobody without the secret can aim at the filter.
    filter_id : int
        Separates the positions of filters that share a hash.

    Examples
    --------
    >>> f = BloomFilter(1000, 0.01)
    >>> f.add(b"one"); f.update(["two", "three"])
    >>> b"one" in f, "two" in f, b"four" in f
    (True, True, False)
    >>> len(f), f.nbytes
    (3, 1200)
    """

    KIND = 1

    def __init__(
        self,
        capacity: int | None = None,
        fpr: float = 0.01,
        *,
        bits: int | None = None,
        hashes: int | None = None,
        layout: str = "classic",
        secret: bytes | None = None,
        filter_id: int = 0,
    ) -> None:
        n_cells = None if bits is None else check_count("bits", bits, 1, MAX_PAYLOAD_BYTES * 8)
        self._create_cells(capacity, fpr, n_cells, hashes, layout, 1, secret, filter_id)

    @classmethod
    def _cell_bits_allowed(cls) -> tuple[int, ...]:
        return (1,)

    @classmethod
    def _after_kill(cls, params: tuple[int, ...]) -> str:
        return ""

    @property
    def bits(self) -> int:
        """Number of bits."""
        return self._param("n_cells")


class CountingCells(CellFilter):
    """What filters of counters share, however they store them."""

    @property
    def counters(self) -> int:
        """Number of counters."""
        return self._param("n_cells")

    @property
    def saturated(self) -> float:
        """Share of counters that have reached their maximum and stay there."""
        return float(self._saturated()) / self.counters

    def count(self, key: Key) -> int:
        """How often the key was added, at most: its smallest counter.

        Never less than the true number, up to the counters' maximum; more when other keys share all its
        counters.  ``count(key) >= t`` is the threshold query "stored at least t times, or a collision".
        """
        return int(self._count_one(key))


class CountingBloomFilter(CountingCells):
    """A Bloom filter with counters: keys can be removed, and added more than once.

    Parameters
    ----------
    capacity : int
        Number of keys to plan for, as for ``BloomFilter``.
    fpr : float
        False-positive rate when it holds ``capacity`` keys.
    counter_bits : {2, 4, 8}
        Counters count to 3, 15 or 255.  One that gets there stays there: its true count is lost, so it is never
        decremented, and a key that meets it cannot be forgotten through it any more.  At capacity that is one counter
        in 27 with 2 bits, one in 10**15 with 4.
    counters, bits : int
        Exact geometry: number of counters, or of all their bits; with ``hashes``.
    hashes : int
        Probes per key, as for ``BloomFilter``.
    layout : {"classic", "blocked"}
        As for ``BloomFilter``.
    secret : bytes, optional
        16 bytes for the keyed hash, as for ``BloomFilter``.
    filter_id : int
        Separates the positions of filters that share a hash.

    Notes
    -----
    Remove only keys that were added.  The filter refuses (KeyError) when it can tell; when it cannot, the
    removal damages other keys.

    From a MiB upwards a filter in memory keeps one bit more for each counter, which says whether it is zero, and
    queries read only those: a quarter more memory beside counters of 4 bits (``nbytes`` and files are without it),
    for answers as quick as a Bloom filter's where the counters do not fit the caches.  Mapped files have no such bits.

    Examples
    --------
    >>> f = CountingBloomFilter(1000, 0.01)
    >>> f.update([b"a", b"a", b"b"]); f.count(b"a")
    2
    >>> f.remove(b"b"), b"b" in f, f.remove(b"a"), b"a" in f
    (True, False, False, True)
    """

    KIND = 2

    def __init__(
        self,
        capacity: int | None = None,
        fpr: float = 0.01,
        *,
        counter_bits: int = 4,
        counters: int | None = None,
        bits: int | None = None,
        hashes: int | None = None,
        layout: str = "classic",
        secret: bytes | None = None,
        filter_id: int = 0,
    ) -> None:
        if check_count("counter_bits", counter_bits, 1, 8) not in self._cell_bits_allowed():
            raise ValueError(f"counter_bits must be 2, 4 or 8, found {counter_bits!r}")
        counter_bits = int(counter_bits)
        if bits is not None:
            bits = check_count("bits", bits, counter_bits, MAX_PAYLOAD_BYTES * 8)
            if counters is not None or bits % counter_bits:
                raise ValueError(f"pass either counters= or bits=, a multiple of counter_bits ({counter_bits})")
            counters = bits // counter_bits
        if counters is not None:
            counters = check_count("counters", counters, 1, MAX_PAYLOAD_BYTES)
        self._create_cells(capacity, fpr, counters, hashes, layout, counter_bits, secret, filter_id)

    @classmethod
    def _cell_bits_allowed(cls) -> tuple[int, ...]:
        return (2, 4, 8)

    @classmethod
    def _after_kill(cls, params: tuple[int, ...]) -> str:
        return ""

    def _settle(self) -> None:
        if self.nbytes >= SUMMARY_LEAST_BYTES:
            self._summarise(aligned_zeros(-(-self.counters // 8)))

    @property
    def counter_bits(self) -> int:
        """Bits of a counter."""
        return self._param("cell_bits")


# --- the rows


def planned_cells(n_keys: int, planned: Planned, cell_bits: int) -> CellGeometry:
    """Cells for a planned rate; where the plan fixes bits and hashes, those."""
    if planned.hashes is not None:
        return CellGeometry(max(64, round(planned.bits_per_key * n_keys / cell_bits)), planned.hashes)
    return cell_geometry(n_keys, min(planned.fpr, 0.999))


def scaled_cells(n_cells: int, n_before: int, n_keys: int) -> int:
    """Cells, in words of 64, for so many keys instead of ``n_before``."""
    return max(64, math.ceil(n_cells * n_keys / n_before / 64) * 64)


def _scaled(params: tuple[int, ...], n_before: int, n_keys: int) -> tuple[int, ...]:
    return (scaled_cells(params[0], n_before, n_keys), *params[1:])


def _rate(n_keys: int, params: tuple[int, ...]) -> float:
    return cell_fpr(n_keys, *params[:3])


BITS = Base(
    name="bits",
    cls=BloomFilter,
    words="Bloom filter",
    geometry=lambda n_keys, planned, counter_bits: (*planned_cells(n_keys, planned, 1), 1),
    scaled=_scaled,
    rate=_rate,
    price=lambda counter_bits: (cell_price(1),),
    design=PlainDesign("bloom", "Bloom filter"),
    rate_at_load=cell_rate_at_load,
)
COUNTERS = Base(
    name="counters",
    cls=CountingBloomFilter,
    words="counting Bloom filter",
    geometry=lambda n_keys, planned, counter_bits: (*planned_cells(n_keys, planned, counter_bits), counter_bits),
    scaled=_scaled,
    rate=_rate,
    price=lambda counter_bits: (cell_price(counter_bits),),
    design=PlainDesign("counting", "Counting Bloom filter (4\N{NON-BREAKING HYPHEN}bit)"),
    rate_at_load=cell_rate_at_load,
)
