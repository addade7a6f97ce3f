"""This process's copy of the filter: loaded from a checkpoint, kept current by replaying the journal.

A replica is either complete for one transaction (``applied``) or unusable, with a reason.  Nothing in between is ever
visible: it is taken out of the read path before it changes, and an exception in the middle of a change drops it.
"""

import logging
from typing import Any

import lmdb

from dlbf.errors import ChecksumError, DlbfError, FilterFullError, FormatError, StoreError, VersionError
from dlbf.filters.base import aligned_zeros
from dlbf.kernels.hashing import checksum64, checksum64_chunks
from dlbf.kernels.journal import Tail, apply_record, read_record
from dlbf.kernels.readpath import ReplicaState, release_pages
from dlbf.storage import generations, journal, steps
from dlbf.storage.layout import (
    CHECKPOINT_KEY,
    FLAG_OMITTED,
    FLAG_REMOVED,
    GUARD_KEY,
    PIECE_BYTES,
    STATE_BROKEN,
    TRAFFIC_KEY,
    Checkpoint,
    Traffic,
    piece_key,
)
from dlbf.storage.longkeys import Databases, count_keys

__all__ = [
    "DAMAGE",
    "FULL",
    "SECRET",
    "VERSION",
    "Replica",
    "Unusable",
    "read_checkpoint",
    "read_traffic",
]

log = logging.getLogger("dlbf.storage")

# A shorter journal is never worth a checkpoint.
MIN_JOURNAL_BYTES = 128 * 1024
# Bytes of journal per byte of the filter that make a checkpoint due: writing it costs a loader as much as a quarter of
# the journal, replaying the journal a reader some ten nanoseconds per byte of the filter.
JOURNAL_SHARE = 4


# Why a filter cannot be used.  DAMAGE: nobody can, until it is rebuilt.  FULL: nobody can, until the next commit makes
# a larger one.
# SECRET: this process cannot.  VERSION: this version of dlbf cannot.
DAMAGE, FULL, SECRET, VERSION = "damage", "full", "secret", "version"


class Unusable(StoreError):
    """The stored filter cannot be used."""

    def __init__(self, reason: str, kind: str = DAMAGE) -> None:
        super().__init__(reason)
        self.kind = kind


class Replica(ReplicaState):
    """See the module."""

    def __init__(self, dbs: Databases, secret: bytes | None, where: str, quiet: bool = False) -> None:
        self.dbs = dbs
        self.secret = secret
        self.where = where
        self.quiet = quiet
        self.filter: Any = None
        self.tail = Tail()
        self.checkpoint: Checkpoint | None = None
        self.capacity = 0
        self.grow_at = 0
        self.shrink_at = 0
        self.journal_limit = MIN_JOURNAL_BYTES
        self.sums = b""  # of the checkpoint's pieces
        self.full: Any = None  # the filter that had no room, until there is another: its model goes on
        self.traffic = Traffic()  # up to the checkpoint
        self._look_again_at = 0
        self.reason = ""
        self.kind = ""
        self._failed_record: bytes | None = None
        self._warned = ""

    # --- life

    def drop(self) -> None:
        """Forget the filter; the next catch-up loads it again."""
        self.filter = None
        self.applied = 0
        self.torn = False

    def adopt(self, filter: Any, checkpoint: Checkpoint, sums: bytes) -> None:
        """Go on with a filter that was just written as ``checkpoint``."""
        self.filter = filter
        self.torn = False
        self.capacity = generations.capacity_of(filter)
        self.grow_at = generations.grow_at(self.capacity)
        self.shrink_at = generations.shrink_at(self.capacity)
        self.journal_limit = max(MIN_JOURNAL_BYTES, JOURNAL_SHARE * filter.nbytes)
        self.applied = checkpoint.txn_id
        self.removed = checkpoint.removed
        self.generation = checkpoint.generation
        self.checkpoint = checkpoint
        self.journal_bytes = 0
        self.sums = sums
        self.reason = self.kind = ""
        self.full = None
        self._failed_record = None
        self._look_again_at = self.n_operations

    def needs_successor(self) -> bool:
        """Whether the filter, or a region of it, is nearly full; or it is mostly empty."""
        filter = self.filter  # another thread may drop it
        if filter is None:
            return False
        if not self.shrink_at <= len(filter) <= self.grow_at:
            return True
        if self.n_operations < self._look_again_at or not generations.is_learned(filter):
            return False
        # Counting what is in each region takes a while; it cannot be too much before so many keys have come.
        slack = generations.slack(filter)
        self._look_again_at = self.n_operations + slack
        return slack <= 0

    def quiet_changes(self) -> int:
        """How many changes of one key may follow before another filter can be due."""
        filter = self.filter  # another thread may drop it
        if filter is None:
            return 0
        n_keys = len(filter)
        quiet = min(self.grow_at - n_keys, n_keys - self.shrink_at)
        if generations.is_learned(filter):
            quiet = min(quiet, self._look_again_at - self.n_operations)
        return max(0, quiet)

    # --- catching up

    def catch_up(self, txn: Any, now: int) -> bool:
        """Become complete for transaction ``now``, the one ``txn`` sees; False if that is impossible.

        The caller holds the store's lock and has withdrawn the filter from the read path.
        """
        if self.torn:
            self.drop()  # an exception has ended a change of it
        if self.filter is not None:
            if self.applied >= now:
                return True
            try:
                if self._replay(txn, now):
                    return True
            except (Unusable, lmdb.Error) as error:
                self._fail(error, txn)
                return False
            except BaseException:
                self.drop()
                raise
        try:
            self._load(txn, now)
            return True
        except (Unusable, lmdb.Error) as error:
            self._fail(error, txn)
            return False
        except BaseException:
            self.drop()
            raise

    def _fail(self, error: "Unusable | lmdb.Error", txn: Any) -> None:
        self.drop()
        if isinstance(error, Unusable):
            self.reason, self.kind = str(error), error.kind
        else:
            self.reason, self.kind = f"LMDB cannot read the filter or its journal ({error}); run rebuild()", DAMAGE
        try:
            self._failed_record = bytes(txn.get(CHECKPOINT_KEY, db=self.dbs.meta) or b"")
        except lmdb.Error:
            self._failed_record = None
        if self._warned != self.reason and not self.quiet:
            self._warned = self.reason
            log.warning("%s: reading without the filter: %s", self.where, self.reason)

    def _replay(self, txn: Any, now: int) -> bool:
        """Replay the journal; False if loading the checkpoint is needed."""
        while self.applied < now:
            txn_id = self.applied + 1
            problem = "another program wrote to the environment "
            try:
                run = journal.read_run(txn, self.dbs, txn_id)
            except FormatError as error:
                run, problem = [], f"{error} "
            if not run:
                checkpoint = read_checkpoint(txn, self.dbs)
                if checkpoint is not None and checkpoint.txn_id > self.applied:
                    return False
                raise Unusable(f"{problem}(transaction {txn_id} of {now} has no journal record); run rebuild()")
            for number, record in run:
                if number <= now and not self._replay_record(number, record):
                    return False
        return True

    def _replay_record(self, txn_id: int, record: Any) -> bool:
        try:
            generation, flags, n_operations = read_record(record, txn_id)
            if flags & ~(FLAG_OMITTED | FLAG_REMOVED):
                raise Unusable(f"journal record {txn_id} has unknown flags {flags:#x}; use a newer dlbf", VERSION)
            if generation != self.generation or flags & FLAG_OMITTED:
                return False
            self.torn = True
            n_removed = apply_record(self.filter, record)
        except FilterFullError:
            self.full = self.filter
            raise Unusable(
                f"the filter is full at transaction {txn_id}; the next commit makes a larger one", FULL
            ) from None
        except Unusable:
            raise
        except (DlbfError, ValueError) as error:
            raise Unusable(f"{error}; run rebuild()") from None
        self.passed(txn_id, n_operations - n_removed, n_removed, len(record))
        return True

    def _load(self, txn: Any, now: int) -> None:
        record = txn.get(CHECKPOINT_KEY, db=self.dbs.meta)
        record = bytes(record) if record is not None else None
        if self._failed_record is not None and (record or b"") == self._failed_record and self.reason:
            # Nothing has been repaired since; do not read it all again.
            raise Unusable(self.reason, self.kind)
        try:
            checkpoint = Checkpoint.unpack(record) if record is not None else None
        except VersionError as error:
            raise Unusable(str(error), VERSION) from None
        except FormatError as error:
            raise Unusable(f"{error}; run rebuild()") from None
        if checkpoint is None:
            raise Unusable("the filter's checkpoint is missing; run rebuild()")
        if checkpoint.state == STATE_BROKEN:
            raise Unusable(checkpoint.reason)
        if checkpoint.txn_id > now:
            raise Unusable(
                f"the filter is of transaction {checkpoint.txn_id}, the data of {now} "
                "(a compacted or partly restored copy?); run rebuild()"
            )
        newest = journal.newest(txn, self.dbs)
        if newest != now:
            raise Unusable(
                f"the journal ends with transaction {newest}, the data with {now} (another program wrote, or this is a "
                "compacted copy); run rebuild()"
            )
        filter, sums = self._read_filter(txn, checkpoint)
        self.adopt(filter, checkpoint, sums)
        self.traffic = read_traffic(txn, self.dbs)
        self.added, self.deleted = self.traffic.added, self.traffic.deleted
        if not self._replay(txn, now):
            raise Unusable("the journal does not continue the checkpoint; run rebuild()")
        n_keys, n_known = count_keys(txn, self.dbs), len(self.filter)
        if n_keys > n_known and txn.get(GUARD_KEY, db=self.dbs.meta) is None:
            # A copy may count its transactions from 1 again, until another program's last one has the number of ours.
            raise Unusable(f"the filter has {n_known} keys, the data {n_keys} (another program wrote); run rebuild()")

    def _read_filter(self, txn: Any, checkpoint: Checkpoint) -> tuple[Any, bytes]:
        where = f"{self.where}: filter of generation {checkpoint.generation}"
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
        try:
            return generations.load(blob, self.secret, where), sums
        except VersionError as error:
            raise Unusable(str(error), VERSION) from None
        except (FormatError, ChecksumError) as error:
            raise Unusable(f"{error}; run rebuild()") from None
        except ValueError as error:
            where = "secret.key is missing or cannot be read, and no secret= was given: " if self.secret is None else ""
            raise Unusable(
                f"{where}{error} (or run rebuild() to make a new filter with a new secret)", SECRET
            ) from None

    # --- writing

    def write_checkpoint(
        self, txn: Any, filter: Any, txn_id: int, generation: int, removed: int
    ) -> tuple[Checkpoint, bytes]:
        """Write ``filter`` as the checkpoint of the transaction that ``txn`` is; trims the journal."""
        blob = filter.to_bytes()
        sums = checksum64_chunks(blob, PIECE_BYTES)
        view = memoryview(blob)
        before = read_checkpoint(txn, self.dbs)
        same = before is not None and (before.generation, before.n_bytes) == (generation, len(blob))
        # Another process may have written one since; its pieces are not those that we know the sums of.
        known = same and before == self.checkpoint
        if not same:
            # A new generation is loaded, not replayed to.  Emptying the databases also rids them of any damage: records
            # under wrong keys could not be found one by one.
            txn.drop(self.dbs.filter, delete=False)
            journal.drop(txn, self.dbs, self.tail)
        for i in range(-(-len(blob) // PIECE_BYTES)):
            if not known or sums[8 * i : 8 * i + 8] != self.sums[8 * i : 8 * i + 8]:
                txn.put(piece_key(generation, i), view[i * PIECE_BYTES : (i + 1) * PIECE_BYTES], db=self.dbs.filter)
                steps.reached("checkpoint-piece-written")
        previous = before.txn_id if before is not None else txn_id
        checkpoint = Checkpoint(generation, txn_id, removed, previous, len(blob), checksum64(sums))
        txn.put(CHECKPOINT_KEY, checkpoint.pack(), db=self.dbs.meta)
        steps.reached("checkpoint-record-written")
        if same:
            journal.trim(txn, self.dbs, previous)
        steps.reached("journal-trimmed")
        return checkpoint, sums


def read_traffic(txn: Any, dbs: Databases) -> Traffic:
    """The record of what the filter has met; as if it had met nothing if that cannot be read."""
    record = txn.get(TRAFFIC_KEY, db=dbs.meta)
    try:
        return Traffic.unpack(bytes(record) if record is not None else None)
    except FormatError:
        return Traffic()


def read_checkpoint(txn: Any, dbs: Databases) -> Checkpoint | None:
    """The checkpoint record, None if there is none that can be read."""
    record = txn.get(CHECKPOINT_KEY, db=dbs.meta)
    try:
        return Checkpoint.unpack(bytes(record)) if record is not None else None
    except FormatError:
        return None
