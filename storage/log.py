"""What a ledger needs of a log: an ordered record of adds and removes, with a cheap word for the newest position.

A *view* is one moment of the log, and of whatever else is kept with it; what it is, only the log knows.  LMDB's
transactions are the views of ``dlbf.storage.lmdblog.LmdbLog``.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dlbf.kernels.ledger import Word
from dlbf.storage.layout import BuildInfo, Checkpoint, TrafficRecord

__all__ = ["Log"]


class Log(Protocol):
    """Positions are numbers that rise by one with each record; 0 is before the first."""

    @property
    def word(self) -> Word:
        """The newest position, in shared memory: a record is there before the word shows its position."""
        ...

    def reading(self, buffers: bool = False) -> AbstractContextManager[Any]:
        """A view of this moment."""
        ...

    def position(self, txn: Any) -> int:
        """The newest position in a view; of one that is being written, its own."""
        ...

    def newest(self, txn: Any) -> int:
        """The position of the newest record that can be read."""
        ...

    def read_run(self, txn: Any, position: int) -> list[tuple[int, Any]]:
        """Some records from ``position`` on; none if it has none."""
        ...

    def n_stored(self, txn: Any) -> int | None:
        """How many keys the data have, where the log can tell."""
        ...

    def checkpoint_record(self, txn: Any) -> bytes:
        """The bytes of the checkpoint record."""
        ...

    def read_checkpoint(self, txn: Any) -> Checkpoint | None:
        """Which filter is kept, complete for which position."""
        ...

    def read_filter(self, txn: Any, checkpoint: Checkpoint, where: str) -> tuple[Any, bytes]:
        """The bytes of that filter and the sums of its pieces."""
        ...

    def read_traffic(self, txn: Any) -> TrafficRecord:
        """What the filter has met."""
        ...

    def read_misses(self, txn: Any) -> Iterator[bytes]:
        """The sample of absent keys that were asked for."""
        ...

    def read_build(self, txn: Any) -> BuildInfo | None:
        """What the last rebuild knew."""
        ...
