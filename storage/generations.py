"""The filter of a generation: what it must be able to do, how it becomes bytes, how large the next one is.

This is the one place that knows kinds of filters.  To store another kind, give it the methods of
:class:`GenerationFilter`, register
how to open its bytes (:func:`register`) and build it where a design is named (:func:`new_filter`).
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dlbf import format
from dlbf.errors import StoreError, VersionError
from dlbf.filters.files import CLASSES
from dlbf.filters.tables import CuckooFilter

__all__ = ["GenerationFilter", "grow_at", "load", "new_filter", "register", "shrink_at", "successor"]

# The smallest filter: 1.2 KB at 1 %, so that a small store does not grow with every few keys.
MIN_CAPACITY = 1024
# A grown filter has room for twice the keys.  Each growth reads every key once, so a key is read once or twice in its
# life; a smaller step would save memory just after growing and read more often.
GROWTH = 2.0
# Share of the capacity at which the next filter is begun, so that it is ready before the old one is full.
GROW_AT = 0.9
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
    def contains_many(self, keys: Iterable[bytes]) -> Any:
        """Ask for many; numpy array of bool."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        ...

    @property
    def capacity(self) -> int | None:
        """Keys it was planned for."""
        ...

    def to_bytes(self) -> bytes:
        """All of it, checksummed, in the format of :mod:`dlbf.format`."""
        ...

    def copy(self) -> "GenerationFilter":
        """An independent one."""
        ...

    def clear(self) -> None:
        """Forget every key; geometry, model and secret stay."""


Loader = Callable[[format.Header, memoryview, bytes | None, str], Any]
_LOADERS: dict[int, Loader] = {}


def register(kind: int, loader: Loader) -> None:
    """Say how to open filters of a kind.

    Parameters
    ----------
    kind : int
        A ``KIND_*`` of :mod:`dlbf.format`.
    loader : callable
        Called with the header, the payload (writable, checked, nobody else's: use it without copying), the secret
        and a name for errors.
    """
    _LOADERS[kind] = loader


def _base_loader(header: format.Header, payload: memoryview, secret: bytes | None, where: str) -> Any:
    return CLASSES[header.kind]._from_payload(header, payload, secret, where)


for _kind, _class in CLASSES.items():
    if _class.DELETABLE:
        register(_kind, _base_loader)


def load(blob: bytearray, secret: bytes | None, where: str) -> Any:
    """The filter whose :meth:`to_bytes` gave ``blob``; it keeps ``blob`` as its buffer.

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


def new_filter(design: str, n_keys: int, fpr: float, secret: bytes | None) -> Any:
    """An empty filter with room for ``n_keys`` at the target rate."""
    if design not in ("auto", "cuckoo"):
        raise StoreError(f"unknown design {design!r} for a store's filter; choose 'auto' or 'cuckoo'")
    return CuckooFilter(max(MIN_CAPACITY, n_keys), fpr, secret=secret)


def capacity_of(filter: Any) -> int:
    """Keys that may be in the filter before its rate passes the target."""
    return int(filter.capacity or 0)


def grow_at(capacity: int) -> int:
    """Number of keys above which the next, larger filter is begun."""
    return int(GROW_AT * capacity)


def shrink_at(capacity: int) -> int:
    """Number of keys below which a smaller filter is begun."""
    return int(SHRINK_AT * capacity) if capacity > 4 * MIN_CAPACITY else 0


def successor(filter: Any, n_keys: int, fpr: float, secret: bytes | None) -> Any:
    """The empty filter that follows ``filter`` (None: there is none) in a store that has grown or shrunk to
    ``n_keys``."""
    return new_filter("auto", math.ceil(n_keys * GROWTH), fpr, secret)
