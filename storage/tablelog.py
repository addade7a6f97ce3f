"""What a log keeps in tables: which filter there is, its model, what it has met, what the last rebuild knew.

The tables are LMDB's databases in a store (``dlbf.storage.lmdblog``), and small ones in memory in a guard
(``dlbf.storage.filelog``); both have transactions with the same methods.
"""

import contextlib
from collections.abc import Iterator

from dlbf.errors import FormatError
from dlbf.kernels.environment import Reading, WritesCore
from dlbf.kernels.ledger import Word
from dlbf.kernels.log import LogCore
from dlbf.storage import misses, steps
from dlbf.storage.environment import Environment
from dlbf.storage.layout import (
    BUILD_KEY,
    CHECKPOINT_KEY,
    COMPILED_KEY,
    ESTIMATOR_KEY,
    STATE_BROKEN,
    TRAFFIC_KEY,
    BuildInfo,
    Checkpoint,
    TrafficRecord,
    sealed,
)
from dlbf.storage.lmdbtypes import AnyTxn, Txn
from dlbf.storage.log import Record
from dlbf.storage.longkeys import Databases

__all__ = ["TableLog"]


class TableLog(LogCore):
    """See the module, and ``dlbf.storage.log.Log``; subclasses bring records and filters."""

    environment: Environment
    dbs: Databases
    maps_filters = False

    @property
    def word(self) -> Word:
        """The newest position, in shared memory."""
        return self.environment.word

    def reading(self, buffers: bool = False) -> Reading:
        """A view of one moment, for ``with``."""
        return self.environment.reading(buffers)

    def position(self, txn: AnyTxn) -> int:
        """The newest position that a view sees; of a write transaction, its own."""
        return int(txn.id())

    def n_stored(self, txn: AnyTxn) -> int | None:
        """How many keys the data have, where the log can tell."""
        return None

    # --- what each kind of log does in its own way

    def commit_gap(self, writes: WritesCore, txn: Txn, position: int) -> None:
        """Commit so that whoever can read the filter sees that it is not complete any more."""
        raise NotImplementedError

    def newest(self, txn: AnyTxn) -> int:
        """The position of the newest record that can be read."""
        raise NotImplementedError

    def read_run(self, txn: AnyTxn, position: int) -> list[tuple[int, Record]]:
        """Some records from ``position`` on, not checked; none if it has none."""
        raise NotImplementedError

    def entries(self, txn: AnyTxn) -> Iterator[tuple[int, Record]]:
        """Every record there is, in order, with the position it should belong to; FormatError at damage."""
        raise NotImplementedError

    def count_records(self, txn: Txn) -> int:
        """Number of records."""
        raise NotImplementedError

    def trim(self, txn: Txn, position: int) -> None:
        """Forget records before ``position``; some of them may stay."""
        raise NotImplementedError

    def read_filter(self, txn: AnyTxn, checkpoint: Checkpoint, where: str) -> tuple[bytearray, bytes]:
        """The bytes of a checkpoint's filter, and the sums of its pieces; Unusable if they are not all there."""
        raise NotImplementedError

    def write_checkpoint(
        self, txn: Txn, blob: bytes, checkpoint: Checkpoint, known: tuple[Checkpoint | None, bytes]
    ) -> tuple[Checkpoint, bytes]:
        """Write a filter's bytes as the checkpoint of the transaction that ``txn`` is; trims the records.

        ``checkpoint`` says which filter and which position; ``known`` are the last checkpoint that this process has
        seen and the sums of its pieces, of which only those that changed need be written.
        """
        raise NotImplementedError

    # --- checkpoints

    def checkpoint_record(self, txn: AnyTxn) -> bytes:
        """The checkpoint record as it is; empty: there is none."""
        return bytes(txn.get(CHECKPOINT_KEY, db=self.dbs.meta) or b"")

    def read_checkpoint(self, txn: AnyTxn) -> Checkpoint | None:
        """The checkpoint record, None if there is none that can be read."""
        record = self.checkpoint_record(txn)
        try:
            return Checkpoint.unpack(record) if record else None
        except FormatError:
            return None

    def mark_broken(self, txn: Txn, position: int, reason: str) -> Checkpoint:
        """From now on there is no filter, for the reason given; one that is marked already stays as it is."""
        before = self.read_checkpoint(txn)
        if before is not None and before.state == STATE_BROKEN:
            return before
        broken = Checkpoint(position, position, position, position, 0, 0, STATE_BROKEN, reason)
        txn.put(CHECKPOINT_KEY, broken.pack(), db=self.dbs.meta)
        txn.drop(self.dbs.filter, delete=False)
        steps.reached("broken-marked")
        return broken

    # --- what goes with a generation

    def write_model(self, txn: Txn, compiled: bytes | None, estimator: bytes | None) -> None:
        """Keep the compiled model of a filter (None: it has none) and what that was compiled from."""
        db = self.dbs.model
        record = None if compiled is None else sealed(compiled)
        if txn.get(COMPILED_KEY, db=db) == record and (record is not None or not txn.stat(db)["entries"]):
            return  # a filter that grows keeps its model
        txn.drop(db, delete=False)
        if record is not None:
            txn.put(COMPILED_KEY, record, db=db)
            if estimator is not None:
                txn.put(ESTIMATOR_KEY, sealed(estimator), db=db)

    def read_traffic(self, txn: AnyTxn) -> TrafficRecord:
        """What the filter has met; as if it had met nothing if that cannot be read."""
        record = txn.get(TRAFFIC_KEY, db=self.dbs.meta)
        try:
            return TrafficRecord.unpack(bytes(record) if record is not None else None)
        except FormatError:
            return TrafficRecord()

    def write_traffic(self, txn: Txn, traffic: TrafficRecord) -> None:
        """Keep what the filter has met."""
        txn.put(TRAFFIC_KEY, traffic.pack(), db=self.dbs.meta)

    def read_misses(self, txn: Txn) -> Iterator[bytes]:
        """The sample of absent keys that were asked for, in random order."""
        return misses.read_misses(txn, self.dbs)

    def read_build(self, txn: AnyTxn) -> BuildInfo | None:
        """What the last rebuild wrote; None if there was none, or it cannot be read."""
        with contextlib.suppress(ValueError):
            record = txn.get(BUILD_KEY, db=self.dbs.meta)
            return BuildInfo.unpack(bytes(record) if record is not None else None)
        return None
