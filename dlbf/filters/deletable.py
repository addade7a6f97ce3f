"""The Deletable Bloom filter (DlBF): a Bloom filter plus a map of its collisions."""

import math

from dlbf.filters.base import MAX_PAYLOAD_BYTES, Filter, check_count, check_target
from dlbf.filters.bloom import MAX_HASHES, planned_cells, scaled_cells
from dlbf.filters.row import Base, PlainDesign, Planned
from dlbf.geometry import cell_fpr, cell_geometry, cell_rate_at_load
from dlbf.kernels.deletable import DeletableCore
from dlbf.typenames import Key

__all__ = ["DELETABLE", "DeletableBloomFilter"]

# One bit in ten marks collisions, as in the paper's example; of a filter at capacity and 1 % somewhat more than half
# of the keys can then be forgotten (each alone; every removal also frees room for others).
CELLS_PER_REGION = 9


class DeletableBloomFilter(DeletableCore, Filter):
    """A Bloom filter that can forget most of its keys, at little more than its size.

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
    bits, hashes, regions : int
        Exact geometry: all bits including one per region, probes per key, regions.

    Notes
    -----
    ``remove`` clears the key's bits wherever no other key can be using them.  Where every one of its regions has seen a
    collision nothing can be cleared: it returns False, and the key stays and stays counted by ``len``.  Adding a key
    twice counts as a collision.

    Examples
    --------
    >>> f = DeletableBloomFilter(bits=240, hashes=5, regions=24)
    >>> f.add(b"key"); f.remove(b"key"), b"key" in f
    (True, False)
    """

    KIND = 3
    PARAMS = ("n_cells", "n_hashes", "n_regions")

    def __init__(
        self,
        capacity: int | None = None,
        fpr: float = 0.01,
        *,
        bits: int | None = None,
        hashes: int | None = None,
        regions: int | None = None,
        secret: bytes | None = None,
        filter_id: int = 0,
    ) -> None:
        if bits is None and hashes is None:
            capacity, fpr = check_target(capacity, fpr)
            n_cells, n_hashes, _ = cell_geometry(capacity, fpr)
            n_regions = -(-n_cells // CELLS_PER_REGION) if regions is None else regions
            n_regions = check_count("regions", n_regions, 1, n_cells)
        elif capacity is not None or bits is None or hashes is None or regions is None:
            raise TypeError("pass either capacity and fpr, or all of bits=, hashes= and regions=, not a mixture")
        else:
            bits = check_count("bits", bits, 2, MAX_PAYLOAD_BYTES * 8)
            n_regions = check_count("regions", regions, 1, bits // 2)
            n_cells, n_hashes = bits - n_regions, check_count("hashes", hashes, 1, MAX_HASHES)
            capacity, fpr = 0, 0.0
        self._create((n_cells, n_hashes, n_regions), capacity, fpr, secret, filter_id)

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        n_cells, n_hashes, n_regions = params[3:]
        check_count("n_cells", n_cells, 1, MAX_PAYLOAD_BYTES * 8)
        check_count("n_hashes", n_hashes, 1, MAX_HASHES)
        check_count("n_regions", n_regions, 1, n_cells)
        return -(-(n_cells + n_regions) // 8)

    @classmethod
    def _after_kill(cls, params: tuple[int, ...]) -> str:
        return ""

    def _apply(self, params: tuple[int, ...]) -> None:
        self._set_geometry(*params[3:])

    @property
    def bits(self) -> int:
        """All bits, collision map included."""
        return self._param("n_cells") + self.regions

    @property
    def hashes(self) -> int:
        """Probes per key."""
        return self._param("n_hashes")

    @property
    def regions(self) -> int:
        """Number of regions whose collisions are tracked."""
        return self._param("n_regions")

    @property
    def collided(self) -> float:
        """Share of regions that have seen a collision."""
        n_cells = self._param("n_cells")
        return float(self._occupied(n_cells, n_cells + self.regions)) / self.regions

    @property
    def fill(self) -> float:
        """Share of the Bloom filter's bits that are set."""
        n_cells = self._param("n_cells")
        return float(self._occupied(0, n_cells)) / n_cells

    def approximate_count(self) -> int:
        """Number of keys, estimated from the share of empty bits."""
        n_cells = self._param("n_cells")
        occupied = min(self._occupied(0, n_cells), n_cells - 1) if n_cells > 1 else 0
        return round(-math.log1p(-occupied / n_cells) * n_cells / self.hashes)

    @property
    def expected_fpr(self) -> float:
        """False-positive rate that theory gives for as many keys as are stored now."""
        return cell_fpr(len(self), self._param("n_cells"), self.hashes)

    def is_removable(self, key: Key) -> bool:
        """Whether ``remove(key)`` would make the filter answer "absent"; changes nothing."""
        return bool(self._removable(key))


# --- the row


def _geometry(n_keys: int, planned: Planned, counter_bits: int) -> tuple[int, ...]:
    n_cells, n_hashes, _ = planned_cells(n_keys, planned, 1)
    # Rounded up, so that a region has no more cells than planned.
    n_regions = max(1, math.ceil(n_cells * (planned.marks or 0.1)))
    return (n_cells - n_regions, n_hashes, n_regions)


def _scaled(params: tuple[int, ...], n_before: int, n_keys: int) -> tuple[int, ...]:
    n_cells, n_hashes, n_regions, *rest = params
    n_regions = max(1, math.ceil(n_regions * n_keys / n_before))
    return (scaled_cells(n_cells, n_before, n_keys), n_hashes, n_regions, *rest)


DELETABLE = Base(
    name="dlbf",
    cls=DeletableBloomFilter,
    words="deletable Bloom filter",
    geometry=_geometry,
    scaled=_scaled,
    rate=lambda n_keys, params: cell_fpr(n_keys, params[0], params[1]),
    design=PlainDesign(
        "dlbf", "Deletable Bloom filter", "deletable Bloom filter: a bitmap of collisions", planner="dlbf"
    ),
    forgets=False,
    rate_at_load=cell_rate_at_load,
)
