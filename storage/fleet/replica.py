"""The filter of one host: what follows the log, what is made of a scan, and how both travel."""

import struct

from dlbf.errors import FormatError
from dlbf.filters.base import Filter
from dlbf.kernels.journal import OperationLog
from dlbf.kernels.ledger import LedgerCore
from dlbf.storage import generations
from dlbf.storage.figures import figures as filter_figures
from dlbf.storage.fleet.host import Gap
from dlbf.storage.fleet.records import Add, Remove
from dlbf.storage.report import FilterFigures

__all__ = ["Builds", "FilterBuild", "FilterReplica", "FilterReplicas", "Full"]

CHUNK_BYTES = 1 << 20
META = struct.Struct("<4sIQ")  # what it is, number of chunks, bytes of the filter
MAGIC = b"DLF1"
# A new generation has room for twice its keys: others add while it travels, and each costs a scan.
ROOM = 2.0


class Full(Gap):
    """A filter has no room for what the log says: the next generation is larger."""


class FilterReplica:
    """A filter that follows the log; see `Replica`.

    It is changed by its ``core`` alone: the ledger that answers once this replica does, before that one that nobody
    asks.
    """

    def __init__(self, filter: Filter, generation: int, position: int) -> None:
        self.core = LedgerCore()
        self.core.filter = filter
        self.core.generation = generation
        self.core.applied = position
        self.began = position

    def hand_over(self, ledger: LedgerCore) -> None:
        """Let a ledger answer with this replica from now on; it is offered by who knows that it may."""
        before = self.core
        ledger.drop()
        ledger.generation = before.generation
        ledger.applied = before.applied
        ledger.filter = before.filter
        self.core = ledger

    def apply(self, position: int, record: Add | Remove | None) -> None:
        """Follow one record, in one compiled call."""
        core = self.core
        if record is None:
            core.follow(position, b"\0", 0)
            return
        operations = OperationLog()
        operations.add_all(list(record.keys), isinstance(record, Remove))
        data = operations.record(position, core.generation, 0)
        if not core.follow(position, data, len(record.keys)):
            raise Full("the filter has no room; the next generation is larger")

    def maybe(self, key: bytes) -> bool:
        """What it says to a writer."""
        filter = self.core.filter
        return filter is None or key in filter

    @property
    def is_nearly_full(self) -> bool:
        """Whether a larger one is due."""
        filter = self.core.filter
        return filter is not None and len(filter) > generations.grow_at(generations.capacity_of(filter))

    def save(self) -> tuple[bytes, list[bytes]]:
        """The filter as chunks."""
        filter = self.core.filter
        if filter is None:
            raise Full("the filter has no room; the next generation is larger")
        return split(filter.to_bytes())


class FilterReplicas:
    """Makes replicas of what travelled."""

    def __init__(self, secret: bytes | None, where: str) -> None:
        self.secret = secret
        self.where = where

    def count(self, meta: bytes) -> int:
        """How many chunks there are."""
        return _read_meta(meta)[0]

    def load(self, generation: int, position: int, meta: bytes, chunks: list[bytes]) -> FilterReplica:
        """A replica of what was saved.

        Raises
        ------
        FormatError, ValueError
            If it is none, or was made with another secret.
        """
        blob = bytearray().join(chunks)
        if len(blob) != _read_meta(meta)[1]:
            raise FormatError(f"{self.where}: the shared filter has {len(blob)} bytes, expected {_read_meta(meta)[1]}")
        filter = generations.load(blob, self.secret, self.where)
        return FilterReplica(filter, generation, position)


def _read_meta(meta: bytes) -> tuple[int, int]:
    if len(meta) != META.size or not meta.startswith(MAGIC):
        raise FormatError(f"the shared filter is of a kind that this version does not know: {meta[:4]!r}")
    _, n_chunks, n_bytes = META.unpack(meta)
    return n_chunks, n_bytes


def split(blob: bytes) -> tuple[bytes, list[bytes]]:
    """A few bytes about a filter, and its chunks."""
    chunks = [blob[at : at + CHUNK_BYTES] for at in range(0, len(blob), CHUNK_BYTES)]
    return META.pack(MAGIC, len(chunks), len(blob)), chunks


class Builds:
    """Begins filters."""

    def __init__(self, fpr: float, secret: bytes | None) -> None:
        self.fpr = fpr
        self.secret = secret

    def __call__(self) -> "FilterBuild":
        return FilterBuild(self.fpr, self.secret)


class FilterBuild:
    """A filter in the making; see `Build`.  Keys of the scan are kept until it ends: their number decides its size."""

    def __init__(self, fpr: float, secret: bytes | None) -> None:
        self.fpr = fpr
        self.secret = secret
        self.n_keys = 0
        self.figures: FilterFigures | None = None
        self._keys: set[bytes] = set()
        self._added: list[bytes] = []

    def start(self, generation: int, keys: list[bytes]) -> None:
        """Begin, with adds that are open."""
        self._keys = set()
        self._added = list(keys)

    def scanned(self, keys: list[bytes]) -> None:
        """Keys of the scan; some may come twice."""
        self._keys.update(keys)

    def added(self, keys: tuple[bytes, ...]) -> None:
        """Keys that were announced meanwhile: an entry for each, beside the scan's."""
        self._added.extend(keys)

    def finish(self) -> tuple[bytes, list[bytes]]:
        """The filter."""
        self.n_keys = len(self._keys)
        filter = generations.new_filter("auto", int(ROOM * (self.n_keys + len(self._added))), self.fpr, self.secret)
        filter.update(list(self._keys))
        filter.update(self._added)
        self._keys = set()
        self._added = []
        self.figures = filter_figures(filter, self.n_keys)
        return split(filter.to_bytes())
