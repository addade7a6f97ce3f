"""The log of a guard: a file of records, the newest position in a mapped word of its header, and a filter beside it.

``guard.log``, all integers little-endian, words (64 to 96) in the machine's own order::

       0     8  bytes  b"dllog-\\x00\\x01": magic and version
       8     8  u64    XXH3-64 of the bytes 16 to 64 and of the snapshot's own XXH3-64
      16     8  u64    position before the first record
      24     8  u64    bytes of the snapshot
      64     8  u64    the word: newest position; its highest bit: another file has taken the place of this one
      72     8  u64    where the frame of the newest record ends
      80     8  u64    where a record was last staged
      88     8  u64    note of a writer: what it is about to do (2 bits), position (48), check (14); 0: nothing
      96    16  bytes  boot of the machine in which records were not synced; zeros: none
     112     8  u64    newest position that is on disk all the same (clean close); 0: not known
    4096     -  bytes  snapshot: the tables when the file was made (``dlbf.storage.tables``), padded to 8
       -     -  frames, one per position

    frame:  0  4  u32   kind: a record, or one that is only staged
            4  4  u32   bytes of the record
            8  4  u32   bytes of the changes of tables
           12  4  u32   low half of the XXH3-64 of the twelve bytes before
           16  -  bytes record (``dlbf.storage.layout``, which has a checksum and the position)
            -  -  bytes XXH3-64 of the changes, changes; if there are any
            -  -  zeros up to a multiple of 8

*Order.*  A frame is complete before the header says where it ends, and that before the word shows its position.  Bytes
behind the newest frame are nobody's, but for a *staged* one: the record of a delete that is under way, or of writes
that may arrive late, together with a note, for whoever comes after a crash.

*A new file* is made with every checkpoint, and has all tables.  It gets its name in one step, and the word of the file
before it is retired first, so that nobody answers from that any more.

*The filter* of a checkpoint is in ``filter.N``, N its position: ``to_bytes`` of the filter.  Processes map it, and
share the pages that they have not changed.
"""

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np

from dlbf.errors import DlbfError, FormatError
from dlbf.filters.writing import replace_file
from dlbf.kernels.environment import WritesCore
from dlbf.kernels.filelog import ADDING, LATE, NOTHING, REMOVING, FileLogCore, LogFile
from dlbf.kernels.hashing import checksum64, checksum64_chunks
from dlbf.kernels.journal import OperationLog, read_record
from dlbf.storage import steps
from dlbf.storage.folder import FILTER_FILE, Folder, FolderEnvironment, FolderTxn, refuse_full_disk
from dlbf.storage.layout import CHECKPOINT_KEY, FLAG_OMITTED, FLAG_REMOVED, PIECE_BYTES, Checkpoint
from dlbf.storage.lmdbtypes import AnyTxn, Txn
from dlbf.storage.longkeys import Databases
from dlbf.storage.tablelog import TableLog
from dlbf.storage.trouble import Unusable
from dlbf.storage.weak import weakly

__all__ = ["FileLog"]

# A file is made anew when it has so many bytes more than its tables and the records that are needed.
SPARE_BYTES = 4 << 20
# Between the newest frame and the keys of writes that may arrive late, besides their own length.
LATE_GAP_BYTES = 4096


def own(txn: object) -> FolderTxn:
    """A transaction, which is of a guard's folder."""
    assert isinstance(txn, FolderTxn)
    return txn


class FileLog(FileLogCore, TableLog):
    """See the module, and ``dlbf.storage.log.Log``.

    Parameters
    ----------
    environment : FolderEnvironment
    dbs : Databases
    waits : bool
        Whether a record is on disk before its commit returns.
    """

    maps_filters = True

    def __init__(self, environment: FolderEnvironment, dbs: Databases, waits: bool) -> None:
        self.environment = environment
        self.dbs = dbs
        self.waits = waits
        self.folder.watch(weakly(self._take_file))

    def _take_file(self, file: LogFile) -> None:
        self.file = file

    @property
    def folder(self) -> Folder:
        """The directory."""
        folder: Folder = self.environment.handle
        return folder

    # --- records

    def commit_slowly(self, txn: Txn, position: int, record: bytes, written: str) -> None:
        """Append the record with what the transaction has changed; see ``dlbf.kernels.filelog.FileLogCore``."""
        folder, file = self.folder, own(txn).state.file
        changes = own(txn).encoded()
        if own(txn).keep_from is None and not own(txn).state.damage:
            checkpoint = self.read_checkpoint(txn)
            needed_from = checkpoint.txn_id + 1 if checkpoint is not None else position
            if not self._is_long(txn, needed_from) and self._spares_staged(file, len(record) + len(changes)):
                folder.append(own(txn), position, record, changes, lambda: steps.reached(written))
                if self.waits:
                    with refuse_full_disk(folder.path):
                        file.sync()
                return
            own(txn).keep_from = needed_from
        folder.replace(own(txn), position, record, self.waits, lambda: steps.reached(written))

    def _spares_staged(self, file: LogFile, n_bytes: int) -> bool:
        """Whether a frame of so many bytes leaves the keys of writes alone that may arrive late."""
        return bool(file.head.noted()[0] != LATE or file.end + n_bytes + 32 <= file.head.staged_at)

    def _is_long(self, txn: Txn, needed_from: int) -> bool:
        """Whether a file has too many bytes, and another one would have far fewer."""
        state = own(txn).state
        n_bytes, n_records = state.file.end - state.file.start, state.position - state.file.base
        if n_bytes <= self._limit(txn):
            return False
        return bool(2 * state.n_changed > n_bytes or 2 * (needed_from - state.file.base - 1) > n_records)

    def _limit(self, txn: Txn) -> int:
        """Bytes of frames that a file may have."""
        n_bytes: int = sum(table.n_bytes for table in own(txn).tables.values())
        checkpoint = self.read_checkpoint(txn)
        # Up to four times the filter are records that are needed: see ``dlbf.storage.ledger.LOG_SHARE``.
        return SPARE_BYTES + 2 * n_bytes + 8 * (checkpoint.n_bytes if checkpoint is not None else 0)

    def commit_gap(self, writes: WritesCore, txn: Txn, position: int) -> None:
        """Commit so that whoever can read the filter sees that it is not complete any more."""
        self.commit(writes, txn, position, OperationLog().record(position, 0, FLAG_OMITTED))

    def newest(self, txn: AnyTxn) -> int:
        """The position of the newest record that can be read; 0: some cannot."""
        return 0 if own(txn).state.damage else int(own(txn).state.position)

    def read_run(self, txn: AnyTxn, position: int) -> list[tuple[int, bytes]]:  # type: ignore[override]
        """Some records from ``position`` on, not checked; none if it has none."""
        file: LogFile = own(txn).state.file
        file.advance()
        return file.read_run(position)

    def entries(self, txn: AnyTxn) -> Iterator[tuple[int, bytes]]:
        """Every record there is, in order, with the position it should belong to; FormatError at damage."""
        if own(txn).state.damage:
            raise FormatError(own(txn).state.damage)
        position, stop = own(txn).state.file.base + 1, own(txn).state.position
        while position <= stop:
            run = self.read_run(txn, position)
            if not run:
                raise FormatError(f"the journal has no record {position}")
            yield from (pair for pair in run if pair[0] <= stop)
            position = run[-1][0] + 1

    def count_records(self, txn: Txn) -> int:
        """Number of records."""
        return int(own(txn).state.position - own(txn).state.file.base)

    def trim(self, txn: Txn, position: int) -> None:
        """Forget records before ``position``, when they are many."""
        file = own(txn).state.file
        if file.end - file.start > SPARE_BYTES:
            own(txn).keep_from = position

    # --- what a writer is about to do, for whoever comes after a crash

    def intend(self, intent: int, position: int, generation: int, operations: OperationLog | None = None) -> None:
        """Note it; ``operations`` are staged as the record behind the newest one."""
        file = self.folder.newest_file()
        if operations is not None and not self.folder.state.damage:
            # Keys of late writes are needed until the commit that lists them is shown; it must not overwrite them.
            gap = 2 * operations.nbytes + LATE_GAP_BYTES if intent == LATE else 0
            with refuse_full_disk(self.folder.path):
                file.make_room(gap + operations.nbytes)
            flags = FLAG_REMOVED if operations.n_removed else 0
            file.stage(operations.record(file.position + 1, generation, flags), gap)
        file.head.note(intent, position)

    def settle(self) -> None:
        """It has happened, or it never will."""
        self.folder.newest_file().head.note(NOTHING, 0)

    def intended(self) -> tuple[int, bytes | None]:
        """What is noted, and the record with its keys; None: there is no such record, or it cannot be read.

        Whoever notes something holds the writers' lock until it is settled: so a note of any other position than the
        newest, or the next one, is none.
        """
        file = self.folder.state.file
        intent, position = file.head.noted()
        newest = file.head.newest()
        record: bytes | None = None
        number = position if intent == ADDING else newest + 1
        try:
            file.advance()
            if intent == ADDING and position == newest:
                record = next((found for _, found in file.read_run(position, 1)), None)
            elif intent in (REMOVING, LATE) and position == newest + (intent == REMOVING):
                record = file.staged(number)
            if record is not None and read_record(record, number)[1] & FLAG_OMITTED:
                record = None
        except DlbfError:
            record = None
        return intent, record

    # --- filters

    def read_filter(self, txn: AnyTxn, checkpoint: Checkpoint, where: str) -> tuple[bytearray, bytes]:
        """The bytes of a checkpoint's filter, mapped so that processes share what they do not change; and its sums.

        Raises
        ------
        Unusable
            If the file is not there, or does not match its checksum.
        """
        path = self.folder.path / f"{FILTER_FILE}{checkpoint.txn_id}"
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise Unusable(f"{where}: {path.name} cannot be read ({error}); run rebuild()") from None
        if len(mapped) != checkpoint.n_bytes:
            raise Unusable(
                f"{where}: {path.name} has {len(mapped)} bytes, expected {checkpoint.n_bytes}; run rebuild()"
            )
        blob: Any = np.frombuffer(mapped, dtype=np.uint8)
        sums = checksum64_chunks(blob, PIECE_BYTES)
        if checksum64(sums) != checkpoint.sums:
            raise Unusable(f"{where}: {path.name} does not match its checksum; run rebuild()")
        return blob, sums

    def write_checkpoint(
        self, txn: Txn, blob: bytes, checkpoint: Checkpoint, known: tuple[Checkpoint | None, bytes]
    ) -> tuple[Checkpoint, bytes]:
        """Write a filter's bytes as the checkpoint of the transaction that ``txn`` is; the next file has no records
        before it.
        """
        sums = checksum64_chunks(blob, PIECE_BYTES)
        before = self.read_checkpoint(txn)
        with refuse_full_disk(self.folder.path):
            replace_file(self.folder.path / f"{FILTER_FILE}{checkpoint.txn_id}", blob, self.waits)
        steps.reached("checkpoint-piece-written")
        previous = before.txn_id if before is not None else checkpoint.txn_id
        written = Checkpoint(
            checkpoint.generation, checkpoint.txn_id, checkpoint.removed, previous, len(blob), checksum64(sums)
        )
        txn.put(CHECKPOINT_KEY, written.pack(), db=self.dbs.meta)
        steps.reached("checkpoint-record-written")
        own(txn).keep_from = checkpoint.txn_id
        steps.reached("journal-trimmed")
        return written, sums
