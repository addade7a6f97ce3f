"""What a ledger needs of a log: an ordered record of adds and removes, with a cheap word for the newest position.

A *view* is one moment of the log, and of whatever else is kept with it; what it is, only the log knows.  LMDB's
transactions are the views of ``dlbf.storage.lmdblog.LmdbLog``.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from dlbf.kernels.ledger import Word
from dlbf.storage.layout import BuildInfo, Checkpoint, TrafficRecord

__all__ = ["Log", "Record", "View"]

View = TypeVar("View")
# As it was written, and not checked; see ``dlbf.kernels.journal.read_record``.
Record = bytes | memoryview


class Log(Protocol[View]):
    """Positions are numbers that rise by one with each record; 0 is before the first."""

    @property
    def maps_filters(self) -> bool:
        """Whether ``read_filter`` gives bytes of a file that is mapped: processes share what they do not change."""
        ...

    @property
    def word(self) -> Word:
        """The newest position, in shared memory: a record is there before the word shows its position."""
        ...

    def reading(self, buffers: bool = False) -> AbstractContextManager[View]:
        """A view of this moment; with ``buffers`` only for the methods here, which then copy less."""
        ...

    def position(self, txn: View) -> int:
        """The newest position in a view; of one that is being written, its own."""
        ...

    def newest(self, txn: View) -> int:
        """The position of the newest record that can be read."""
        ...

    def read_run(self, txn: View, position: int) -> list[tuple[int, Record]]:
        """Some records from ``position`` on; none if it has none."""
        ...

    def n_stored(self, txn: View) -> int | None:
        """How many keys the data have, where the log can tell."""
        ...

    def checkpoint_record(self, txn: View) -> bytes:
        """The bytes of the checkpoint record."""
        ...

    def read_checkpoint(self, txn: View) -> Checkpoint | None:
        """Which filter is kept, complete for which position."""
        ...

    def read_filter(self, txn: View, checkpoint: Checkpoint, where: str) -> tuple[bytearray, bytes]:
        """The bytes of that filter and the sums of its pieces."""
        ...

    def read_traffic(self, txn: View) -> TrafficRecord:
        """What the filter has met."""
        ...

    def read_misses(self, txn: View) -> Iterator[bytes]:
        """The sample of absent keys that were asked for."""
        ...

    def read_build(self, txn: View) -> BuildInfo | None:
        """What the last rebuild knew."""
        ...
