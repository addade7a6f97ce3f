"""The log of a store inside LMDB's own transactions: records and checkpoints.

A position is the number of LMDB's transaction.  Every transaction of ours has exactly one record, so a position without
one tells that somebody else has written.  The newest few records are in LMDB's main database: every commit writes the
page of it that has the roots of the others, so a record kept there costs a small commit no page of its own.  When it
has no room for another one its records move, as one block, into ``journal``; a record too large for it goes there by
itself.
"""

import contextlib
from collections.abc import Callable, Iterator

import lmdb

from dlbf.errors import DlbfError, FormatError
from dlbf.filters.base import aligned_zeros
from dlbf.kernels.environment import WritesCore, release_pages
from dlbf.kernels.hashing import checksum64, checksum64_chunks
from dlbf.kernels.journal import Tail, split_entry
from dlbf.kernels.lmdblog import LmdbLogCore
from dlbf.storage import steps
from dlbf.storage.environment import Environment
from dlbf.storage.layout import (
    CHECKPOINT_KEY,
    PIECE_BYTES,
    TAIL_KEY,
    Checkpoint,
    journal_key,
    piece_key,
)
from dlbf.storage.lmdbtypes import AnyTxn, Txn
from dlbf.storage.log import Record
from dlbf.storage.longkeys import Databases
from dlbf.storage.tablelog import TableLog
from dlbf.storage.trouble import Unusable

__all__ = ["LmdbLog"]


class LmdbLog(LmdbLogCore, TableLog):
    """See the module, and ``dlbf.storage.log.Log``.

    Parameters
    ----------
    environment : Environment
    dbs : Databases
    n_stored : callable, optional
        How many keys a transaction sees, where the data are in the same environment.
    """

    def __init__(
        self, environment: Environment, dbs: Databases, n_stored: Callable[[AnyTxn], int] | None = None
    ) -> None:
        super().__init__(lmdb.Transaction, dbs.main, TAIL_KEY)
        self.environment = environment
        self.dbs = dbs
        self._n_stored = n_stored

    def n_stored(self, txn: AnyTxn) -> int | None:
        """How many keys the data have, where they are in the same environment; a filter with fewer is not theirs."""
        return self._n_stored(txn) if self._n_stored is not None else None

    # --- records

    def commit_gap(self, writes: WritesCore, txn: Txn, position: int) -> None:
        """Commit without a record: the gap tells whoever can read the filter that it is not complete."""
        txn.commit()
        writes.give_turn()

    def append_slowly(self, txn: Txn, position: int, record: bytes) -> None:
        """Every append that is not the common one; see ``dlbf.kernels.lmdblog.LmdbLogCore``."""
        tail, damaged = self.tail, False
        if tail.known != position - 1:
            value = txn.get(TAIL_KEY, db=self.dbs.main)
            try:
                tail.load(value)
            except FormatError:
                damaged = True  # nobody can read it; the gap will be seen
            if value is None:
                self._mark_version(txn)
            if self.newest(txn) >= position:
                self.drop(txn)  # of another history: a compacted copy counts its transactions from the beginning
                damaged = False
        was_empty = not tail.last and not damaged
        tail.known = 0
        if tail.last not in (0, position - 1) or not tail.stage(record, position):
            if tail.last:
                self._put(txn, tail.last, tail.block())
            tail.clear()
            if not tail.stage(record, position):
                self._put(txn, position, record)
        if tail.last or not was_empty:
            txn.put(TAIL_KEY, tail.value, db=self.dbs.main)

    def _mark_version(self, txn: Txn) -> None:
        """The first record in a tail: a version that knows none must not take that for damage."""
        record = txn.get(CHECKPOINT_KEY, db=self.dbs.meta)
        if record is not None:
            with contextlib.suppress(DlbfError):
                txn.put(CHECKPOINT_KEY, Checkpoint.unpack(bytes(record)).pack(), db=self.dbs.meta)

    def _put(self, txn: Txn, position: int, value: bytes) -> None:
        if not txn.put(journal_key(position), value, append=True, db=self.dbs.journal):
            # A damaged key behind ours: appending is refused, storing is not.
            txn.put(journal_key(position), value, db=self.dbs.journal)

    def newest(self, txn: AnyTxn) -> int:
        """The position of the newest record, 0 if there is none that can be read."""
        tail = Tail()
        with contextlib.suppress(FormatError):
            tail.load(txn.get(TAIL_KEY, db=self.dbs.main))
        with txn.cursor(self.dbs.journal) as cursor:
            last = int.from_bytes(cursor.key(), "big") if cursor.last() else 0
        return max(int(tail.last), last)

    def read_run(self, txn: AnyTxn, position: int) -> list[tuple[int, Record]]:
        """Positions from ``position`` on and their records, as many as are kept together; none if it has no record.

        The records are not checked; see ``dlbf.kernels.journal.read_record``.

        Raises
        ------
        FormatError
            If there is none and a block that may have had it is damaged.
        """
        damage = ""
        for key, value in self._places(txn, position):
            try:
                records = split_entry(value, key)
            except FormatError as error:
                damage = str(error)  # not itself: it knows this frame, and both would wait for the garbage collector
                continue
            run = [pair for pair in records if pair[0] >= position]
            if run and run[0][0] == position:
                return run
        if damage:
            raise FormatError(damage)
        return []

    def _places(self, txn: AnyTxn, position: int) -> Iterator[tuple[int, Record]]:
        """Where the record may be."""
        tail = txn.get(TAIL_KEY, db=self.dbs.main)
        if tail is not None:
            yield 0, tail
        with txn.cursor(self.dbs.journal) as cursor:
            if cursor.set_range(journal_key(position)):
                yield int.from_bytes(cursor.key(), "big"), cursor.value()

    def entries(self, txn: AnyTxn) -> Iterator[tuple[int, Record]]:
        """Every record there is, in order, with the position it should belong to.

        Raises
        ------
        FormatError
            At a block that is damaged.
        """
        for key, value in txn.cursor(self.dbs.journal):
            position = int.from_bytes(key, "big")
            records = split_entry(value, position)
            if not records or records[-1][0] != position:
                raise FormatError(f"journal entry {position} does not end with the record of that transaction")
            yield from records
        tail = txn.get(TAIL_KEY, db=self.dbs.main)
        if tail is not None:
            Tail().load(tail)
            yield from split_entry(tail, 0)

    def count_records(self, txn: Txn) -> int:
        """Number of records, from the first one's position: there is no gap."""
        with txn.cursor(self.dbs.journal) as cursor:
            position, value = (int.from_bytes(cursor.key(), "big"), cursor.value()) if cursor.first() else (0, None)
        if value is None:
            value = txn.get(TAIL_KEY, db=self.dbs.main)
        try:
            records = split_entry(value, position) if value is not None else []
        except FormatError:
            return 0
        return max(0, int(txn.id()) - records[0][0] + 1) if records else 0

    def drop(self, txn: Txn) -> None:
        """Forget every record, damaged ones and such under wrong keys too."""
        self.tail.clear()
        txn.drop(self.dbs.journal, delete=False)
        txn.delete(TAIL_KEY, db=self.dbs.main)

    def trim(self, txn: Txn, position: int) -> None:
        """Forget records before ``position``; some of them may stay."""
        stop = journal_key(position)
        with txn.cursor(self.dbs.journal) as cursor:
            found = cursor.first()
            while found and cursor.key() < stop:
                found = cursor.delete() and bool(cursor.key())

    # --- checkpoints

    def read_filter(self, txn: AnyTxn, checkpoint: Checkpoint, where: str) -> tuple[bytearray, bytes]:
        """The bytes of a checkpoint's filter, and the sums of its pieces.

        Raises
        ------
        Unusable
            If a piece is missing, or they do not match their checksum.
        """
        stat = txn.stat(self.dbs.filter)
        if not 0 < checkpoint.n_pieces <= stat["entries"]:
            raise Unusable(f"{where}: {checkpoint.n_pieces} pieces expected, {stat['entries']} found; run rebuild()")
        pieces = []
        for i in range(checkpoint.n_pieces):
            piece = txn.get(piece_key(checkpoint.generation, i), db=self.dbs.filter)
            expected = min(PIECE_BYTES, checkpoint.n_bytes - i * PIECE_BYTES)
            if piece is None or len(piece) != expected:
                found = "nothing" if piece is None else f"{len(piece)} bytes"
                raise Unusable(f"{where}: piece {i}: {expected} bytes expected, {found} found; run rebuild()")
            pieces.append(piece)
        # The only copy: out of the map into the buffer that the filter will use.  An array, because large ones are of
        # large pages, of which fewer have to be made.
        blob = aligned_zeros(checkpoint.n_bytes)
        view = memoryview(blob)
        for i, piece in enumerate(pieces):
            view[i * PIECE_BYTES : i * PIECE_BYTES + len(piece)] = piece
            if isinstance(piece, memoryview):
                release_pages(piece)
        del pieces, piece, view
        sums = checksum64_chunks(blob, PIECE_BYTES)
        if checksum64(sums) != checkpoint.sums:
            raise Unusable(f"{where}: the pieces do not match their checksum; run rebuild()")
        return blob, sums

    def write_checkpoint(
        self, txn: Txn, blob: bytes, checkpoint: Checkpoint, known: tuple[Checkpoint | None, bytes]
    ) -> tuple[Checkpoint, bytes]:
        """Write a filter's bytes as the checkpoint of the transaction that ``txn`` is; trims the records.

        ``checkpoint`` says which filter and which position; ``known`` are the last checkpoint that this process has
        seen and the sums of its pieces, of which only those that changed are written.
        """
        sums = checksum64_chunks(blob, PIECE_BYTES)
        view = memoryview(blob)
        generation = checkpoint.generation
        before = self.read_checkpoint(txn)
        same = before is not None and before.generation == generation and before.n_bytes <= len(blob)
        # Another process may have written one since; its pieces are not those that we know the sums of.
        unchanged = known[1] if same and before == known[0] else b""
        if not same:
            # A new generation is loaded, not replayed to.  Emptying the databases also rids them of any damage: records
            # under wrong keys could not be found one by one.
            txn.drop(self.dbs.filter, delete=False)
            self.drop(txn)
        for i in range(-(-len(blob) // PIECE_BYTES)):
            if sums[8 * i : 8 * i + 8] != unchanged[8 * i : 8 * i + 8]:
                txn.put(piece_key(generation, i), view[i * PIECE_BYTES : (i + 1) * PIECE_BYTES], db=self.dbs.filter)
                steps.reached("checkpoint-piece-written")
        previous = before.txn_id if before is not None else checkpoint.txn_id
        written = Checkpoint(generation, checkpoint.txn_id, checkpoint.removed, previous, len(blob), checksum64(sums))
        txn.put(CHECKPOINT_KEY, written.pack(), db=self.dbs.meta)
        steps.reached("checkpoint-record-written")
        if same:
            self.trim(txn, previous)
        steps.reached("journal-trimmed")
        return written, sums
