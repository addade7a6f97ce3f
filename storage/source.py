"""Where the data are: what reading, building, verifying and statistics need of them, in LMDB or in any engine."""

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from dlbf.filters.base import Filter
from dlbf.kernels.journal import OperationLog

__all__ = ["Part", "Parts", "Source"]

View = TypeVar("View", contravariant=True)


class Part(Protocol):
    """Keys that one worker scans; pickled on the way to it."""

    def batches(self, n_keys: int) -> Iterator[list[bytes]]:
        """All of its keys that stay, in lists of up to so many."""
        ...


class Parts(Protocol[View]):
    """Data that several processes can read, each a part."""

    def cut(self, n_parts: int, sampled: Sequence[bytes]) -> Sequence[Part]:
        """About so many parts, with all keys; none of their views may be of an older moment than now."""
        ...

    def count(self, txn: View) -> int:
        """Number of keys in a view."""
        ...

    def there(self, txn: View, keys: list[bytes]) -> list[bytes]:
        """Those of ``keys`` that are there in a view."""
        ...


class Source(Protocol[View]):
    """``txn`` is a view of the log (``dlbf.storage.log.Log``); a source elsewhere has no use for it."""

    def fetch(self, key: bytes) -> bytes | None:
        """The value of a key, None if it is not there."""
        ...

    def fetch_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of many keys, all of one moment where that can be."""
        ...

    def fetch_places(
        self, keys: list[bytes], places: Sequence[int], position: int
    ) -> tuple[Sequence[int], list[bytes | None]]:
        """Values of keys that a filter of ``position`` let pass, and their places: those given, or all."""
        ...

    def has_places(self, keys: list[bytes], places: Sequence[int], position: int) -> tuple[Sequence[int], list[bool]]:
        """The same, but only whether the keys are there."""
        ...

    def count(self, txn: View) -> int:
        """Number of keys."""
        ...

    def count_cheaply(self, txn: View, filter: Filter | None) -> int:
        """The same, or about that, without reading anything for it; ``filter`` may tell."""
        ...

    def count_after(self, txn: View, operations: OperationLog, filter: Filter | None) -> int:
        """Number of keys, or more, when ``operations`` are done."""
        ...

    def scan(self, txn: View) -> Iterator[bytes]:
        """The keys that the filter should know, each once."""
        ...

    def scan_after(self, txn: View, operations: OperationLog) -> Iterator[bytes]:
        """The same when ``operations`` are done."""
        ...

    def batches(self, n_keys: int) -> Iterator[list[bytes]]:
        """All keys in lists of up to ``n_keys``, each list of another moment."""
        ...

    def keys(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[bytes]:
        """Keys of a range."""
        ...

    def items(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a range."""
        ...

    def count_range(self, start: bytes, stop: bytes | None) -> int:
        """Number of keys of a range."""
        ...
