"""Filters that keep fingerprints in tables: cuckoo and d-left."""

import math

from dlbf.errors import ChecksumError, FilterFullError
from dlbf.filters.base import MAX_PAYLOAD_BYTES, Filter, check_count, check_target
from dlbf.filters.row import Base, PlainDesign
from dlbf.geometry import (
    BUCKET_SLOTS,
    CUCKOO_LOAD,
    CUCKOO_MAX_FPR,
    DLEFT_CELLS,
    DLEFT_COUNTER_BITS,
    DLEFT_LOAD,
    DLEFT_TABLES,
    MAX_CELL_BITS,
    MAX_PREFIXES,
    MAX_SUFFIX_BITS,
    CuckooGeometry,
    DLeftGeometry,
    Price,
    cuckoo_bucket_bits,
    cuckoo_buckets,
    cuckoo_fpr,
    cuckoo_geometry,
    dleft_fpr,
    dleft_geometry,
    fingerprint_price,
)
from dlbf.kernels.cuckoo import CuckooCore
from dlbf.kernels.dleft import DLeftCore
from dlbf.typenames import Key

__all__ = ["CUCKOO", "DLEFT", "CuckooFilter", "DLeftFilter"]

PADDING_BYTES = 8  # bit fields are read eight bytes at a time
WORD_BITS = 57  # buckets of at most so many bits change in one store


class CuckooFilter(CuckooCore, Filter):
    """The smallest deletable filter: fingerprints in sorted buckets, 9.1 bits per key at 1 %.

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
    buckets, prefixes, suffix_bits : int
        Exact geometry: buckets of four; fingerprints of ``prefixes * 2**suffix_bits - 1`` values.

    Notes
    -----
    A table takes its capacity and little more; then ``add`` raises ``dlbf.FilterFullError`` and nothing
    has changed.  One key can be in it up to eight times.  Remove only keys that were added: removing another
    key with the same fingerprint removes the stored one.

    Examples
    --------
    >>> f = CuckooFilter(1000, 0.01)
    >>> f.update([b"a", b"b"]); f.remove(b"a"), b"a" in f, b"b" in f
    (True, False, True)
    """

    KIND = 5
    PARAMS = ("n_buckets", "n_prefixes", "suffix_bits")

    def __init__(
        self,
        capacity: int | None = None,
        fpr: float = 0.01,
        *,
        buckets: int | None = None,
        prefixes: int | None = None,
        suffix_bits: int | None = None,
        secret: bytes | None = None,
        filter_id: int = 0,
    ) -> None:
        if buckets is None and prefixes is None and suffix_bits is None:
            capacity, fpr = check_target(capacity, fpr)
            geometry = cuckoo_geometry(capacity, fpr)
        elif capacity is not None or buckets is None or suffix_bits is None:
            raise TypeError("pass either capacity and fpr, or both buckets= and suffix_bits=, not a mixture")
        else:
            geometry = CuckooGeometry(
                check_count("buckets", buckets, 1, 1 << 40),
                check_count("prefixes", 16 if prefixes is None else prefixes, 2, MAX_PREFIXES),
                check_count("suffix_bits", suffix_bits, 0, MAX_SUFFIX_BITS),
            )
            capacity, fpr = 0, 0.0
        self._create(geometry, capacity, fpr, secret, filter_id)

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        n_buckets, n_prefixes, suffix_bits = params[3:]
        check_count("n_buckets", n_buckets, 1, 1 << 40)
        check_count("n_prefixes", n_prefixes, 2, MAX_PREFIXES)
        check_count("suffix_bits", suffix_bits, 0, MAX_SUFFIX_BITS)
        return -(-n_buckets * cuckoo_bucket_bits(n_prefixes, suffix_bits) // 8) + PADDING_BYTES

    def _apply(self, params: tuple[int, ...]) -> None:
        self._set_geometry(*params[3:])

    def _make_room(self, n_key_bytes: int) -> None:
        if self.fill < 0.5:
            raise FilterFullError(
                f"no room for one more copy of this key or of its fingerprint (fill {self.fill:.3f}); nothing was "
                "lost. A cuckoo filter holds a key up to eight times; count repeats with DLeftFilter or "
                "CountingBloomFilter"
            )
        super()._make_room(n_key_bytes)

    def _recovered_count(self) -> int:
        if torn := self._after_kill(self.geometry):
            raise ChecksumError(f"was being written and not closed; {torn}. Build it again")
        return super()._recovered_count()

    @classmethod
    def _after_kill(cls, params: tuple[int, ...]) -> str:
        if cuckoo_bucket_bits(*params[1:3]) <= WORD_BITS:
            return ""
        return "buckets of this size change in more than one step, so a kill may have left one half changed"

    @property
    def geometry(self) -> CuckooGeometry:
        """Buckets, prefixes, suffix bits."""
        return CuckooGeometry(*self._params[3:])

    @property
    def fill(self) -> float:
        """Share of slots in use."""
        return float(self._occupied()) / (BUCKET_SLOTS * self.geometry.n_buckets)

    def approximate_count(self) -> int:
        """Number of fingerprints stored (exact)."""
        return int(self._occupied())

    @property
    def expected_fpr(self) -> float:
        """False-positive rate that theory gives for as many keys as are stored now."""
        return cuckoo_fpr(len(self), *self.geometry)

    def count(self, key: Key) -> int:
        """How many fingerprints equal to the key's are where the key's would be."""
        return int(self._count_one(key))


class DLeftFilter(DLeftCore, Filter):
    """A d-left counting filter: half the bits of counters, and keys may be added many times.

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
    counter_bits : int
        Bits of a counter, 1 to 8; one that reaches its maximum stays there.
    buckets, remainder_bits : int
        Exact geometry, with ``tables`` subtables of ``buckets`` buckets of ``cells`` cells.

    Notes
    -----
    A full table raises ``dlbf.FilterFullError`` and nothing has changed.

    Examples
    --------
    >>> f = DLeftFilter(1000, 0.01)
    >>> f.update([b"a", b"a", b"b"]); f.count(b"a"), f.remove(b"b"), b"b" in f
    (2, True, False)
    """

    KIND = 4
    PARAMS = ("n_tables", "n_buckets", "bucket_cells", "remainder_bits", "counter_bits")

    def __init__(
        self,
        capacity: int | None = None,
        fpr: float = 0.01,
        *,
        counter_bits: int = 2,
        tables: int = DLEFT_TABLES,
        buckets: int | None = None,
        cells: int = DLEFT_CELLS,
        remainder_bits: int | None = None,
        secret: bytes | None = None,
        filter_id: int = 0,
    ) -> None:
        counter_bits = check_count("counter_bits", counter_bits, 1, 8)
        if buckets is None and remainder_bits is None:
            capacity, fpr = check_target(capacity, fpr)
            geometry = dleft_geometry(capacity, fpr, counter_bits)
            if (tables, cells) != (DLEFT_TABLES, DLEFT_CELLS):
                raise TypeError("tables= and cells= belong to an exact geometry; pass buckets= and remainder_bits= too")
        elif capacity is not None or buckets is None or remainder_bits is None:
            raise TypeError("pass either capacity and fpr, or both buckets= and remainder_bits=, not a mixture")
        else:
            geometry = self._checked(DLeftGeometry(tables, buckets, cells, remainder_bits, counter_bits))
            capacity, fpr = 0, 0.0
        self._create(geometry, capacity, fpr, secret, filter_id)

    @staticmethod
    def _checked(geometry: DLeftGeometry) -> DLeftGeometry:
        counter_bits = check_count("counter_bits", geometry.counter_bits, 1, 8)
        return DLeftGeometry(
            check_count("tables", geometry.n_tables, 1, 8),
            check_count("buckets", geometry.n_buckets, 1, 1 << 38),
            check_count("cells", geometry.bucket_cells, 1, 64),
            check_count("remainder_bits", geometry.remainder_bits, 1, MAX_CELL_BITS - counter_bits),
            counter_bits,
        )

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        geometry = cls._checked(DLeftGeometry(*params[3:]))
        cells = geometry.n_tables * geometry.n_buckets * geometry.bucket_cells
        n_bytes = -(-cells * (geometry.remainder_bits + geometry.counter_bits) // 8) + PADDING_BYTES
        return check_count("payload bytes", n_bytes, 1, MAX_PAYLOAD_BYTES)

    def _apply(self, params: tuple[int, ...]) -> None:
        self._set_geometry(*params[3:])

    @classmethod
    def _after_kill(cls, params: tuple[int, ...]) -> str:
        return ""

    def _stuck_count(self) -> int:
        # Three keys with one fingerprint bring a counter to its maximum, where it stays.
        n_cells, total = self._occupied()
        return int(total) if total == n_cells * ((1 << self.geometry.counter_bits) - 1) else 0

    @property
    def geometry(self) -> DLeftGeometry:
        """Subtables, buckets, cells, remainder bits, counter bits."""
        return DLeftGeometry(*self._params[3:])

    @property
    def fill(self) -> float:
        """Share of cells in use."""
        geometry = self.geometry
        return float(self._occupied()[0]) / (geometry.n_tables * geometry.n_buckets * geometry.bucket_cells)

    def approximate_count(self) -> int:
        """The sum of all counters: exact until one saturates."""
        return int(self._occupied()[1])

    @property
    def expected_fpr(self) -> float:
        """False-positive rate that theory gives for as many keys as are stored now."""
        return dleft_fpr(len(self), self.geometry)

    def count(self, key: Key) -> int:
        """How often the key was added, at most, up to the counters' maximum."""
        return int(self._count_one(key))


# --- the rows
# Both tables come in steps (whole bits, whole prefixes); their prices are lines through the middle of the steps.


def _dleft_scaled(params: tuple[int, ...], n_before: int, n_keys: int) -> tuple[int, ...]:
    n_tables, n_buckets, *rest = params
    # The slack for the luck of the draw grows with the root.
    grown = (n_keys + 3 * math.sqrt(n_keys) + 8) / (n_before + 3 * math.sqrt(n_before) + 8)
    return (n_tables, max(1, math.ceil(n_buckets * grown)), *rest)


def _dleft_price(counter_bits: int) -> tuple[Price, ...]:
    # 32 cells compared at that load (4.7 bits), a 2-bit counter, and half a bit lost to whole bits.
    return (fingerprint_price(DLEFT_LOAD, math.log2(32 * DLEFT_LOAD) + DLEFT_COUNTER_BITS + 0.4, 0.5),)


def _cuckoo_price(counter_bits: int) -> tuple[Price, ...]:
    # Eight slots compared (3 bits), of which sorting the prefixes of a bucket wins back about 0.9.  Above a rate of a
    # few percent eight slots rarely match at once and the table is cheaper than that line: a second, steeper one.
    return fingerprint_price(CUCKOO_LOAD, 2.1, CUCKOO_MAX_FPR), Price(1.66, 1.7, CUCKOO_MAX_FPR)


DLEFT = Base(
    name="d-left",
    cls=DLeftFilter,
    words="d-left counting filter",
    geometry=lambda n_keys, planned, counter_bits: tuple(dleft_geometry(n_keys, planned.fpr)),
    scaled=_dleft_scaled,
    rate=lambda n_keys, params: dleft_fpr(n_keys, DLeftGeometry(*params[:5])),
    price=_dleft_price,
    design=PlainDesign("d-left", "d-left counting filter"),
    fills=True,
)
CUCKOO = Base(
    name="cuckoo",
    cls=CuckooFilter,
    words="cuckoo filter",
    geometry=lambda n_keys, planned, counter_bits: tuple(cuckoo_geometry(n_keys, planned.fpr)),
    scaled=lambda params, n_before, n_keys: (cuckoo_buckets(n_keys, params[1] << params[2]), *params[1:]),
    rate=lambda n_keys, params: cuckoo_fpr(n_keys, *params[:3]),
    price=_cuckoo_price,
    design=PlainDesign("cuckoo", "Cuckoo filter"),
    fills=True,
)
