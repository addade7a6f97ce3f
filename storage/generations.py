"""The filter of a generation: what it must be able to do, how it becomes bytes, how large the next one is.

This is the one place that knows kinds of filters.  To store another kind, give it the methods of
``GenerationFilter``, register how to open its bytes (``register``) and build it where a design is named
(``new_filter``).  ``dlbf.learned`` is imported only where a filter is learned: a program whose stores have plain
filters need not load what learned ones bring.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt

from dlbf import format
from dlbf.errors import FormatError, StoreError, VersionError
from dlbf.filters.base import Filter, open_payload, secret_of
from dlbf.filters.kinds import BASES, base_of_kind
from dlbf.filters.layered import LayeredFilter
from dlbf.filters.part import stuck_count
from dlbf.filters.tables import CuckooFilter
from dlbf.geometry import cuckoo_fpr

if TYPE_CHECKING:
    from dlbf.learned.composite import Composite

__all__ = [
    "LAYERS",
    "TABLES",
    "GenerationFilter",
    "composite_of",
    "grow_at",
    "is_learned",
    "load",
    "new_filter",
    "region_counts",
    "register",
    "shrink_at",
    "slack",
    "successor",
]

# The design of a layered filter.
LAYERS = "layers"
# What forces the other kind: tables that delete in place.
TABLES = "tables"
# The smallest filter: 1.2 KB at 1 %, so that a small store does not grow with every few keys.
MIN_CAPACITY = 1024
# A grown filter has room for twice the keys.  Each growth reads every key once, so a key is read once or twice in its
# life; a smaller step would save memory just after growing and read more often.
GROWTH = 2.0
# The same after a transaction that brought at least half of the keys: a store is seldom loaded twice, and if it is the
# next such transaction pays for another filter as this one did.  Not where a learned filter may be followed by a plain
# one: it would be compared with one that has less room.
BULK_SHARE = 0.5
BULK_GROWTH = 1.1
# A learned filter was asked for to save memory: it grows in smaller steps, and its keys are read more often.
LEARNED_GROWTH = 1.25
# Share of the capacity at which the next filter is begun, so that it is ready before the old one is full.
GROW_AT = 0.97
# Share of the capacity below which a smaller filter is begun.
SHRINK_AT = 1 / 6
# What an asked-for rebuild leaves free.
REBUILD_ROOM = 1.05


class GenerationFilter(Protocol):
    """What a store needs of a filter.

    ``remove`` is only called for keys that were added, ``add`` only for keys that are not in it: the store knows.
    The same operations on the same bytes must give the same bytes, in every process: replicas rely on it.
    """

    def add(self, key: bytes) -> None:
        """Take a key in; FilterFullError if there is no room."""

    def remove(self, key: bytes) -> bool:
        """Take a key out; KeyError if it is certainly not there."""
        ...

    def update(self, keys: Iterable[bytes]) -> None:
        """Add many."""

    def __contains__(self, key: bytes) -> bool: ...
    def __len__(self) -> int: ...
    def contains_many(self, keys: Iterable[bytes]) -> npt.NDArray[np.bool_]:
        """Ask for many."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        ...

    @property
    def capacity(self) -> int | None:
        """Keys it was planned for."""
        ...

    def to_bytes(self) -> bytes:
        """All of it, checksummed, in the format of ``dlbf.format``."""
        ...

    def copy(self) -> "GenerationFilter":
        """An independent one."""
        ...

    def clear(self) -> None:
        """Forget every key; geometry, model and secret stay."""


def check_fpr(fpr: float | None) -> None:
    """ValueError unless it is a rate, or None."""
    if fpr is None:
        return
    if not isinstance(fpr, (int, float)) or not 0 < fpr < 1:
        raise ValueError(f"fpr must be a number between 0 and 1, found {fpr!r}")


Loader = Callable[[format.Header, memoryview, bytes | None, str], Filter]
_LOADERS: dict[int, Loader] = {}


def register(kind: int, loader: Loader) -> None:
    """Say how to open filters of a kind.

    Parameters
    ----------
    kind : int
        A ``KIND_*`` of ``dlbf.format``.
    loader : callable
        Called with the header, the payload (writable, checked, nobody else's: use it without copying), the secret
        and a name for errors.
    """
    _LOADERS[kind] = loader


def _base_loader(header: format.Header, payload: memoryview, secret: bytes | None, where: str) -> Filter:
    row = base_of_kind(header.kind)
    assert row is not None  # registered below
    return open_payload(row.cls, header, payload, secret, where)


def _learned_loader(header: format.Header, payload: memoryview, secret: bytes | None, where: str) -> Filter:
    from dlbf.learned import LearnedFilter

    filter = open_payload(LearnedFilter, header, payload, secret, where)
    if not filter.deletable:
        raise FormatError(f"{where}: the design {filter.design!r} cannot forget keys")
    return filter


for _row in BASES.values():
    if _row.deletable:
        register(_row.number, _base_loader)
register(format.KIND_LEARNED, _learned_loader)


def _layered_loader(header: format.Header, payload: memoryview, secret: bytes | None, where: str) -> Filter:
    return open_payload(LayeredFilter, header, payload, secret, where)


register(format.KIND_LAYERED, _layered_loader)


def load(blob: bytearray, secret: bytes | None, where: str) -> Filter:
    """The filter whose ``to_bytes`` gave ``blob``; it keeps ``blob`` as its buffer.

    The caller has checked the bytes against a checksum of its own, so the sums inside are not looked at again.

    Raises
    ------
    FormatError, ChecksumError, VersionError
        If the bytes are not a whole, unchanged filter that can forget keys.
    ValueError
        If the secret is missing or wrong.
    """
    header = format.read_header(blob, where)
    format.read_sums(blob, header, where)
    payload = memoryview(blob)[format.layout(header.n_payload_bytes).payload]
    loader = _LOADERS.get(header.kind)
    if loader is None:
        name = format.KIND_NAMES.get(header.kind, f"kind {header.kind}")
        raise VersionError(f"{where}: a {name} cannot be a store's filter here; open the store with a newer dlbf")
    return loader(header, payload, secret, where)


def new_filter(design: str, n_keys: int, fpr: float, secret: bytes | None) -> Filter:
    """An empty filter with room for ``n_keys`` at the target rate."""
    if design not in ("auto", "cuckoo"):
        raise StoreError(f"unknown design {design!r} for a store's filter; choose 'auto' or 'cuckoo'")
    return CuckooFilter(max(MIN_CAPACITY, n_keys), fpr, secret=secret)


def capacity_of(filter: Filter) -> int:
    """Keys that may be in the filter before its rate passes the target."""
    return int(filter.capacity or 0)


def grow_at(capacity: int) -> int:
    """Number of keys above which the next, larger filter is begun."""
    return int(GROW_AT * capacity)


def shrink_at(capacity: int) -> int:
    """Number of keys below which a smaller filter is begun."""
    return int(SHRINK_AT * capacity) if capacity > 4 * MIN_CAPACITY else 0


def is_learned(filter: Filter | None) -> TypeGuard["Composite"]:
    """Whether the filter is a composite with a plan (and perhaps a model)."""
    return getattr(filter, "KIND", None) == format.KIND_LEARNED


def composite_of(filter: Filter | None) -> "Composite | None":
    """The composite that a filter is, or that its base is."""
    inside = filter.static if isinstance(filter, LayeredFilter) else filter
    return inside if is_learned(inside) else None


def lasting_bytes(filter: Filter) -> int:
    """Bytes of the filter without what it only remembers."""
    return int(filter.nbytes) - (filter.absent.nbytes if isinstance(filter, LayeredFilter) else 0)


def slack(filter: Filter) -> int:
    """Keys that may come, whichever they are, before a part of the filter is nearly full."""
    if is_learned(filter):
        from dlbf.learned import regions

        return regions.slack(filter, GROW_AT)
    return grow_at(capacity_of(filter)) - len(filter)


def region_counts(filter: "Composite", batches: Iterable[list[bytes]]) -> list[int]:
    """How many of these keys belong to each region of a learned filter."""
    counts = [0] * len(filter.plan.regions)
    for batch in batches:
        for region in filter.region_of(batch).tolist():
            counts[region] += 1
    return counts


def design_of(filter: Filter) -> str:
    """The name of the filter's design."""
    if is_learned(filter):
        return str(filter.design)
    if isinstance(filter, LayeredFilter):
        return LAYERS
    row = base_of_kind(filter.KIND)
    return row.design.name if row is not None and row.design is not None else type(filter).__name__


def expected_rates(filter: Filter, n_keys: int) -> tuple[float, float]:
    """False-positive rate and deletability of a filter that holds ``n_keys``, for the queries it was built for."""
    if is_learned(filter):
        from dlbf.learned import regions

        return regions.expected_rates(filter, n_keys)
    if isinstance(filter, LayeredFilter):
        # A deleted key that is in the base passes until it was read once.
        return filter.rate_with(filter.n_added), 0.0
    if isinstance(filter, CuckooFilter):
        fpr = cuckoo_fpr(n_keys, *filter.geometry)
    else:
        fpr = float(filter.fpr_target or filter.expected_fpr)
    return fpr, 1 - fpr


def remainder(filter: Filter) -> int:
    """Entries that are left in a filter from which every key of the store was removed.

    Filters that cannot forget everything (collisions of a deletable Bloom filter, approximate deleted sets) leave some
    by design: there it says nothing, and 0 is the answer.
    """
    if is_learned(filter):
        from dlbf.learned import regions

        return regions.remainder(filter)
    if isinstance(filter, LayeredFilter):
        return max(filter.n_added, len(filter))  # what is in the tables is counted, too
    row = base_of_kind(filter.KIND)
    if row is not None and not row.forgets:
        return 0
    return int(filter.approximate_count()) - stuck_count(filter)


def rebuilt_capacity(n_keys: int) -> int:
    """Keys that a rebuild plans for."""
    return max(MIN_CAPACITY, int(n_keys * REBUILD_ROOM) + 64)


def enlarged(filter: Filter, room: float) -> Filter:
    """An empty filter like this one with ``room`` times the room."""
    if is_learned(filter):
        from dlbf.learned import regions

        return regions.relaid(filter, [math.ceil(room * n) + 16 for n in regions.region_rooms(filter)])
    fpr = filter.fpr_target
    assert fpr is not None  # a store makes its filters for a rate
    return new_filter("auto", math.ceil(room * capacity_of(filter)), fpr, secret_of(filter))


def pays(learned: Filter, plain: Filter) -> bool:
    """Whether a filter with a model is worth having instead of one without."""
    return bool(learned.nbytes < plain.nbytes)


def tightened(filter: "Composite", n_keys: int) -> "Composite":
    """An empty learned filter like this one, at the size that a rebuild would give it."""
    return _relaid(filter, rebuilt_capacity(n_keys), None)


def _relaid(filter: "Composite", n_keys: int, counts: Sequence[int] | None) -> "Composite":
    from dlbf.learned import regions

    present = list(counts if counts is not None else regions.region_counts(filter))
    if not any(present):
        present = regions.region_rooms(filter)
    scale = n_keys / sum(present)
    # Three standard deviations besides: which keys come next is not known.
    return regions.relaid(filter, [math.ceil(scale * n + 3 * math.sqrt(scale * n)) for n in present], counts)


def successor(
    filter: Filter | None,
    n_keys: int,
    fpr: float,
    secret: bytes | None,
    counts: Sequence[int] | None = None,
    growth: float = GROWTH,
) -> Filter:
    """The empty filter that follows ``filter`` (None: there is none) in a store that has grown or shrunk to
    ``n_keys``.

    A learned filter is followed by one with the same model and rates and larger (or smaller) parts, so its rate stays;
    unless one without a model, with room for ``growth`` times the keys, has become smaller.  ``counts`` are the keys of
    each region; without them they are expected where those of ``filter`` are.
    """
    plain = new_filter("auto", math.ceil(n_keys * growth), fpr, secret)
    if not is_learned(filter):
        return plain
    learned = _relaid(filter, max(MIN_CAPACITY, math.ceil(n_keys * LEARNED_GROWTH)), counts)
    return learned if pays(learned, plain) or filter.design != "auto" else plain
