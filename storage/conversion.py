"""A guard that an older version made: its LMDB environment becomes a log, once, when it is opened for writing.

The log gets its name when everything is in it.  ``data.mdb`` becomes a line of text then, which no older version takes
for an environment; that is on disk before anybody uses the log.  So as long as there is an environment, it is what
counts, and whoever is killed leaves the guard as it was.

What a dying writer was about to do is in ``guard.lock`` there::

    guard.lock:   0      8  u64   XXH3-64 of everything behind it
                  8      8  bytes b"dlbf-g\\x00\\x01": magic and version
                 16      8  u64   intent: 0 = none, 1 = keys are being added, 2 = keys are being removed
                 24      8  u64   transaction of the environment that journals it
                 32      8  u64   generation of the filter then
                 40     16  bytes boot of the machine in which transactions were not synced; zeros: none
                 56      8  u64   newest transaction that is on disk all the same (clean close); 0: not known
                 64      8  u64   bytes of keys that follow
                 72      -        keys being removed, or whose writes may arrive later: u32 length, bytes
"""

import contextlib
import errno
import fcntl
import logging
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dlbf.errors import DlbfError
from dlbf.filters.writing import replace_file
from dlbf.kernels.filelog import ADDING, LATE, NOTHING, REMOVING, LogFile, LogHead, sync_path
from dlbf.kernels.hashing import checksum64
from dlbf.kernels.journal import OperationLog
from dlbf.storage import steps
from dlbf.storage.folder import FILTER_FILE, LOG_FILE, new_log
from dlbf.storage.layout import (
    CHECKPOINT_KEY,
    DATA_FILE,
    FLAG_OMITTED,
    FLAG_REMOVED,
    READERS_FILE,
    STATE_BROKEN,
    Checkpoint,
)
from dlbf.storage.lmdblog import LmdbLog
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.parts import Opened
from dlbf.storage.tables import TABLES, Table
from dlbf.storage.trouble import Unusable

__all__ = ["OldNote", "convert", "is_converted", "is_in_use", "old_note"]

log = logging.getLogger("dlbf.storage")

MAGIC = b"dlbf-g\x00\x01"
HEAD = struct.Struct("<Q8sQQQ16sQQ")
NO_BOOT = bytes(16)
KEPT = ("data", "meta", "model", "misses")
LEFT = b"The filter and its log are in guard.log now; a version of dlbf that does not know that file is too old.\n"


class OldNote(NamedTuple):
    """The content of the old ``guard.lock``."""

    intent: int = NOTHING
    txn_id: int = 0
    generation: int = 0
    unsynced_boot: bytes = NO_BOOT
    clean_txn: int = 0
    keys: tuple[bytes, ...] = ()

    @classmethod
    def unpack(cls, data: bytes) -> "OldNote | None":
        """From bytes; None if they are not a whole note."""
        if len(data) < HEAD.size:
            return None
        checksum, magic, intent, txn_id, generation, boot, clean, n_bytes = HEAD.unpack_from(data)
        data = data[: HEAD.size + n_bytes]
        if magic != MAGIC or len(data) != HEAD.size + n_bytes or checksum64(data[8:]) != checksum:
            return None
        keys = []
        at = HEAD.size
        while at < len(data):
            n = int.from_bytes(data[at : at + 4], "little")
            keys.append(data[at + 4 : at + 4 + n])
            at += 4 + n
        return cls(intent, txn_id, generation, boot, clean, tuple(keys))


def old_note(data: bytes) -> tuple[OldNote, bool, bool]:
    """The note in the ``guard.lock`` of an old guard; whether that is one of a guard, and whether it cannot be read."""
    note = OldNote.unpack(data)
    return note or OldNote(), data[8:16] == MAGIC, bool(data) and note is None


def is_converted(folder: Path) -> bool:
    """Whether what is called data.mdb is what a conversion has left."""
    try:
        with (folder / DATA_FILE).open("rb") as file:
            return file.read(len(LEFT)) == LEFT
    except FileNotFoundError:
        return False


@dataclass
class Old:
    """What is read of an old environment."""

    tables: dict[str, Table]
    position: int
    records: list[bytes]
    filter: bytes = b""
    filter_number: int = 0


def convert(folder: Path, opened: Opened, note: OldNote, sync: bool) -> None:
    """Write the log of an old guard, whose environment is open, and let go of that."""
    environment = opened.environment
    old_log = opened.log
    assert isinstance(old_log, LmdbLog)
    try:
        with environment.reading() as txn:
            old = _read(txn, old_log)
    finally:
        environment.let_go()
    if old.filter:
        replace_file(folder / f"{FILTER_FILE}{old.filter_number}", old.filter, sync)
        steps.reached("conversion-filter-written")
    whole_note, staged = _noted(note, old)
    path = new_log(
        folder, old.tables, old.position, old.records, sync, note.unsynced_boot, note.clean_txn, whole_note, staged
    )
    steps.reached("conversion-written")
    path.replace(folder / LOG_FILE)
    sync_path(folder)
    steps.reached("conversion-named")
    leave_text(folder)
    log.info("%s: the guard of an older version has been converted", folder)


def is_in_use(folder: Path) -> bool:
    """Whether a process has the environment open, as LMDB's own lock tells."""
    try:
        with (folder / READERS_FILE).open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return True
        raise
    return False


def leave_text(folder: Path) -> None:
    """Leave a line of text where the environment was."""
    replace_file(folder / DATA_FILE, LEFT, True)
    sync_path(folder)
    steps.reached("conversion-text-left")
    with contextlib.suppress(FileNotFoundError):
        (folder / READERS_FILE).unlink()


def _read(txn: Txn, old_log: LmdbLog) -> Old:
    tables = {name: Table() for name in TABLES}
    for name in KEPT:
        for key, value in txn.cursor(getattr(old_log.dbs, name)):
            tables[name].put(bytes(key), bytes(value))
    position = old_log.position(txn)
    try:
        checkpoint = old_log.read_checkpoint(txn)
        if checkpoint is None:
            raise Unusable("the filter's checkpoint is missing; run rebuild()")
        if checkpoint.state == STATE_BROKEN:
            raise Unusable(checkpoint.reason)
        records: list[bytes] = []
        while checkpoint.txn_id + len(records) < position:
            run = old_log.read_run(txn, checkpoint.txn_id + len(records) + 1)
            if not run:
                raise Unusable("the journal of the older version has a gap; run rebuild()")
            records += [bytes(record) for _, record in run]
        blob, _ = old_log.read_filter(txn, checkpoint, "the filter of the older version")
        return Old(tables, position, records, bytes(blob), checkpoint.txn_id)
    except DlbfError as error:
        broken = Checkpoint(position, position, position, position, 0, 0, STATE_BROKEN, str(error))
        tables["meta"].put(CHECKPOINT_KEY, broken.pack())
        return Old(tables, position, [OperationLog().record(position, position, FLAG_OMITTED)])


def _noted(note: OldNote, old: Old) -> tuple[int, bytes]:
    """The note of a new log, and the record that is staged with it."""
    operations = OperationLog()
    if note.intent == ADDING and note.keys and note.txn_id <= old.position:
        for key in note.keys:
            operations.added(key)
        staged = LogFile.staged_frame(operations.record(old.position + 1, note.generation, 0))
        return LogHead.packed_note(LATE, old.position), staged
    if note.intent == ADDING and note.txn_id == old.position:
        return LogHead.packed_note(ADDING, old.position), b""
    if note.intent == REMOVING and note.txn_id > old.position:
        for key in note.keys:
            operations.removed(key)
        staged = LogFile.staged_frame(operations.record(old.position + 1, note.generation, FLAG_REMOVED))
        return LogHead.packed_note(REMOVING, old.position + 1), staged
    return 0, b""
