r"""What a store looks like on disk: LMDB databases, their keys and records, and which writes share a transaction.

A store is a directory: ``data.mdb`` and ``lock.mdb`` (one LMDB environment, everything below is in it) and
``secret.key`` (16 bytes, mode 0600, absent when the caller keeps the secret).

::

    database   key                              value
    data       the key, 1 .. 494 bytes          the user's value, as it is
               first 495 bytes of a longer key  node number (u64, little-endian): the rest is in ``long``
    long       node number (u64, big-endian)    see below: rests of long keys, and the empty key
               + up to 480 bytes of the key
    filter     generation, piece (u64, u32,     one piece of the checkpoint: 65,520 bytes, the last one fewer
               big-endian)
    journal    transaction id (u64, big-endian) record of that transaction, or a block of which it is the last one
    meta       b"store"                         what this is: version, target rate, creation
               b"checkpoint"                    which filter, complete for which transaction
               b"long"                          number of nodes in use
               b"guard"                         in a guard's environment only: which engine the filter is for
               b"build"                         the last rebuild: what it learnt from and planned (JSON)
               b"traffic"                       absent lookups and false positives seen by all processes
    model      b"compiled"                      the compiled model of a learned filter (a second copy: the filter
                                                has its own), sealed
               b"estimator"                     the estimator it was compiled from, as a tagged pickle, sealed;
                                                read by nobody but whoever asks for it
    misses     priority (u64), sum (u32),       an absent key that was asked for
               both big-endian
    (main)     b"tail"                          the newest records of the journal: a block, zeros up to 1,920 bytes

Integers in values are little-endian; integers in keys are big-endian, so that LMDB's order is theirs.

**data** holds what the user stored and nothing else: any LMDB program can read it, and no damage to the filter
touches it.

**long.**  LMDB keys end at 511 bytes.  A key of 495 bytes or more is cut into 495 bytes (a record in ``data``, whose
value is the number of a node) and rests of 480 bytes (records in ``long``: node number + rest, whose value is the next
node's number).  A rest of fewer than 480 bytes ends the key; its record holds the user's value.  No key of 494 bytes or
fewer can be taken for the beginning of a longer one, equal beginnings share nodes, and LMDB's order of the pieces is
the order of the keys.  Node 0 holds the empty key, which LMDB does not allow.  The number of keys is ``entries(data) +
entries(long) - nodes in use``.

**filter.**  The pieces, joined, are a filter object in the format of ``dlbf.format``: a header, the payload, and sums
over every 16 KiB, which between them cover every bit.  A piece is 16 LMDB pages less the page header, so it wastes
none.  A layered filter may become longer within a generation; the pieces of its base stay as they are.

**journal.**  Every transaction of ours writes exactly one record, and its key is LMDB's own transaction id.  So the
records since the checkpoint have no gap; a gap means that somebody else has written (LMDB counts their transaction,
nobody wrote a record).

::

    record:  offset  width  type  field
                  0      8  u64   XXH3-64 of everything behind it
                  8      8  u64   transaction id
                 16      8  u64   generation of the filter the operations are for: the transaction that brought it
                 24      8  u64   flags: 1 = operations left out (they are in the checkpoint of this transaction),
                                  2 = some key was removed; other bits zero
                 32      8  u64   number of operations
                 40      -        operations: LEB128 of 2 * len(key) + (1 if removed), then the key

    block:        0      8        the bytes "block", 0, 0, 1
                  8      -        records of consecutive transactions, each behind its length (u32)

    checkpoint:   0      8  u64   XXH3-64 of everything behind it
                  8      8  u64   version of this record, now 2
                 16      8  u64   state: 1 = complete, 2 = not to be used (reason follows)
                 24      8  u64   generation
                 32      8  u64   transaction id it is complete for
                 40      8  u64   newest transaction that removed a key
                 48      8  u64   transaction id of the checkpoint before it
                 56      8  u64   bytes of the filter object
                 64      8  u64   XXH3-64 of the XXH3-64 sums of the pieces
                 72      -  utf8  reason

    store:        0      8  u64   XXH3-64 of everything behind it
                  8      8  u64   version of the layout, now 1
                 16      8  f64   target false-positive rate
                 24      8  u64   time of creation, seconds since 1970
                 32      8  u64   flags: 1 = secret kept by the caller, 2 = no secret (XXH3-64)

    long:         0      8  u64   XXH3-64 of everything behind it
                  8      8  u64   nodes in use

    guard:        0      8  u64   XXH3-64 of everything behind it
                  8      8  u64   version of this record, now 1
                 16      8  u64   XXH3-64 of the class of the engine's adapter, a space, and what that says about its
                                  identity
                 24      -  bytes the first 80 bytes of these

    build:        0      8  u64   XXH3-64 of everything behind it
                  8      -  JSON  see ``BuildInfo``

    traffic:      0      8  u64   XXH3-64 of everything behind it
                  8      8  u64   generation of the filter that was asked
                 16      8  u64   absent lookups (when they pass a million both counts are halved: a window)
                 24      8  u64   of these, let through by the filter
                 32      8  u64   keys added since the last rebuild, up to the checkpoint
                 40      8  u64   keys deleted since then
                 48      8  f64   priority of a lookup that is drawn whenever any is (see ``misses``)

**misses** is a sample of all absent lookups: each gets a random 64-bit priority, and those with the lowest are kept.
So the sample is uniform over the traffic whoever adds to it and in whatever order, and the highest priority in a full
sample says how rarely a lookup still enters.  The sum is the low half of XXH3-64 of the priority and the key.

**Sealed** values begin with the XXH3-64 of what follows.

A **guard** (``dlbf.storage.Guard``) has such an environment for its filter alone: ``long`` stays empty, ``data`` lists
keys whose writes may still arrive (see ``dlbf.storage.engines.late``), and beside it lies ``guard.lock`` (see
``dlbf.storage.intents``) and ``guard.id`` (see ``dlbf.storage.owner``).

**One transaction** holds: the user's changes of ``data`` and ``long``, the counters of ``long`` if they changed, and
the journal record; nothing else.  A checkpoint's pieces, its record in ``meta``, the trimming of the journal and the
user's changes that made it due, if any, are one transaction too; so is the switch to another generation.  Either all of
it is there after a crash or none.

**Tail.**  Every commit writes the page of LMDB's main database that has the roots of the others, so a record that
fits there costs no other page.  When the tail is full its records move into ``journal`` as one block, under the last
one's transaction; a record that is too large for it goes there by itself, behind those that were in it.

**Trimming** leaves the records since the checkpoint before the last, so that a process that is a little behind replays
instead of loading the whole filter again.

**Versions.**  The version in ``store`` is raised when an old reader would misread ``data`` or ``long``; such a store is
refused.  The version in ``checkpoint`` is raised when only filter or journal change; an older dlbf then reads and
writes the data without the filter, and its writes show as a gap to a newer one.  Version 1 of ``checkpoint`` had no
tail and no blocks, and is read like version 2.
"""

import json
import struct
import time
from dataclasses import MISSING, asdict, dataclass, fields

from dlbf.errors import ChecksumError, FormatError, VersionError
from dlbf.kernels.hashing import checksum64
from dlbf.kernels.journal import FLAG_REMOVED

__all__ = [
    "DATABASES",
    "DATA_DATABASES",
    "DATA_FILE",
    "FLAG_OMITTED",
    "FLAG_REMOVED",
    "PIECE_BYTES",
    "PLAIN_KEY_BYTES",
    "READERS_FILE",
    "SECRET_FILE",
    "SHARED_FILE",
    "BuildInfo",
    "Checkpoint",
    "GuardInfo",
    "LongState",
    "StoreInfo",
    "TrafficRecord",
    "journal_key",
    "opened",
    "piece_key",
    "sealed",
]

DATABASES = ("data", "long", "filter", "journal", "meta", "model", "misses")
# Those that cannot be made again from others.
DATA_DATABASES = ("data", "long")
# What LMDB calls its files.
DATA_FILE = "data.mdb"
READERS_FILE = "lock.mdb"
SECRET_FILE = "secret.key"
GUARD_LOG_FILE = "guard.log"
SHARED_FILE = "base.shared"

LAYOUT_VERSION = 1
CHECKPOINT_VERSION = 2
GUARD_VERSION = 1

PIECE_BYTES = 16 * 4096 - 16
PLAIN_KEY_BYTES = 494
HEAD_PART_BYTES = PLAIN_KEY_BYTES + 1
PART_BYTES = 480

STORE_KEY = b"store"
CHECKPOINT_KEY = b"checkpoint"
LONG_KEY = b"long"
GUARD_KEY = b"guard"
BUILD_KEY = b"build"
TRAFFIC_KEY = b"traffic"
COMPILED_KEY = b"compiled"
ESTIMATOR_KEY = b"estimator"
TAIL_KEY = b"tail"

FLAG_OMITTED = 1  # the other, FLAG_REMOVED, is also that of the compiled writer

STATE_COMPLETE = 1
STATE_BROKEN = 2

STORE_SECRET_ELSEWHERE = 1
STORE_UNKEYED = 2


def journal_key(txn_id: int) -> bytes:
    """The key of a transaction's journal record."""
    return txn_id.to_bytes(8, "big")


def piece_key(generation: int, index: int) -> bytes:
    """The key of a piece of a checkpoint."""
    return struct.pack(">QI", generation, index)


def node_key(node: int, part: bytes) -> bytes:
    """The key of a record in ``long``."""
    return node.to_bytes(8, "big") + part


def sealed(body: bytes) -> bytes:
    """A value with its checksum before it."""
    return checksum64(body).to_bytes(8, "little") + body


def opened(record: bytes, least: int, name: str, database: str = "meta") -> bytes:
    """The value behind its checksum, if they match and it has ``least`` bytes."""
    if len(record) < 8 + least:
        raise FormatError(f"record {name!r} in {database}: expected at least {8 + least} bytes, found {len(record)}")
    body = record[8:]
    if checksum64(body).to_bytes(8, "little") != record[:8]:
        raise ChecksumError(f"record {name!r} in {database} does not match its checksum")
    return body


@dataclass(frozen=True)
class StoreInfo:
    """The ``store`` record."""

    fpr: float
    created: int
    secret_elsewhere: bool = False
    keyed: bool = True

    FORMAT = struct.Struct("<QdQQ")

    @classmethod
    def new(cls, fpr: float, secret_elsewhere: bool, keyed: bool) -> "StoreInfo":
        """The record of a store that is being created."""
        return cls(fpr, int(time.time()), secret_elsewhere, keyed)

    def pack(self) -> bytes:
        """As bytes."""
        flags = self.secret_elsewhere * STORE_SECRET_ELSEWHERE | (not self.keyed) * STORE_UNKEYED
        return sealed(self.FORMAT.pack(LAYOUT_VERSION, self.fpr, self.created, flags))

    @classmethod
    def unpack(cls, record: bytes) -> "StoreInfo":
        """From bytes, checked."""
        body = opened(record, cls.FORMAT.size, "store")
        version, fpr, created, flags = cls.FORMAT.unpack_from(body)
        if (
            version != LAYOUT_VERSION
            or flags & ~(STORE_SECRET_ELSEWHERE | STORE_UNKEYED)
            or len(body) != cls.FORMAT.size
        ):
            raise VersionError(
                f"store layout version {version} found, this dlbf reads {LAYOUT_VERSION}; open it with a newer dlbf"
            )
        return cls(fpr, created, bool(flags & STORE_SECRET_ELSEWHERE), not flags & STORE_UNKEYED)


@dataclass(frozen=True)
class Checkpoint:
    """The ``checkpoint`` record."""

    generation: int
    txn_id: int
    removed: int
    previous: int
    n_bytes: int
    sums: int
    state: int = STATE_COMPLETE
    reason: str = ""

    FORMAT = struct.Struct("<8Q")

    @classmethod
    def of(cls, generation: int, txn_id: int, removed: int) -> "Checkpoint":
        """One that is about to be written."""
        return cls(generation, txn_id, removed, txn_id, 0, 0)

    @property
    def n_pieces(self) -> int:
        """Number of pieces in ``filter``."""
        return -(-self.n_bytes // PIECE_BYTES)

    def pack(self) -> bytes:
        """As bytes."""
        return sealed(
            self.FORMAT.pack(
                CHECKPOINT_VERSION,
                self.state,
                self.generation,
                self.txn_id,
                self.removed,
                self.previous,
                self.n_bytes,
                self.sums,
            )
            + self.reason.encode()
        )

    @classmethod
    def unpack(cls, record: bytes) -> "Checkpoint":
        """From bytes, checked."""
        body = opened(record, cls.FORMAT.size, "checkpoint")
        version, state, generation, txn_id, removed, previous, n_bytes, sums = cls.FORMAT.unpack_from(body)
        if not 1 <= version <= CHECKPOINT_VERSION or state not in (STATE_COMPLETE, STATE_BROKEN):
            raise VersionError(
                f"checkpoint version {version}, state {state} found, this dlbf knows versions up to "
                f"{CHECKPOINT_VERSION}; open the store with a newer dlbf"
            )
        reason = body[cls.FORMAT.size :].decode(errors="replace")
        return cls(generation, txn_id, removed, previous, n_bytes, sums, state, reason)


@dataclass(frozen=True)
class LongState:
    """The ``long`` record: how many nodes are in use."""

    n_nodes: int = 0

    FORMAT = struct.Struct("<Q")

    def pack(self) -> bytes:
        """As bytes."""
        return sealed(self.FORMAT.pack(self.n_nodes))

    @classmethod
    def unpack(cls, record: bytes | None) -> "LongState":
        """From bytes, checked; a store without long keys has no record."""
        if record is None:
            return cls()
        return cls(*cls.FORMAT.unpack_from(opened(record, cls.FORMAT.size, "long")))


@dataclass(frozen=True)
class BuildInfo:
    """The ``build`` record: what the last rebuild knew and planned.  For people and for ``drift()``."""

    generation: int
    time: float
    keys: int
    negatives: int
    design: str
    model: str
    fpr_predicted: float
    fpr_measured: float | None
    bits_per_key: float
    seconds: float
    allow_false_negatives: bool = False
    tables: bool = False  # no layers: tables that delete in place were asked for, or keys are deleted often

    def pack(self) -> bytes:
        """As bytes."""
        return sealed(json.dumps(asdict(self), allow_nan=False).encode())

    @classmethod
    def unpack(cls, record: bytes | None) -> "BuildInfo | None":
        """From bytes, checked; None if the store was never rebuilt."""
        if record is None:
            return None
        body = opened(record, 2, "build")
        try:
            found = json.loads(body)
            # What an earlier release did not write has its default.
            written = [field.name for field in fields(cls) if field.default is MISSING or field.name in found]
            return cls(**{name: found[name] for name in written})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise VersionError(f"record 'build' in meta cannot be read ({error}); use a newer dlbf") from None


@dataclass(frozen=True)
class TrafficRecord:
    """The ``traffic`` record: what a generation's filter has met."""

    generation: int = 0
    absent: int = 0
    false_positives: int = 0
    added: int = 0
    deleted: int = 0
    scale: float = 1.0

    FORMAT = struct.Struct("<5Qd")

    def pack(self) -> bytes:
        """As bytes."""
        return sealed(
            self.FORMAT.pack(self.generation, self.absent, self.false_positives, self.added, self.deleted, self.scale)
        )

    @classmethod
    def unpack(cls, record: bytes | None) -> "TrafficRecord":
        """From bytes, checked; nothing seen if there is no record."""
        if record is None:
            return cls()
        found = cls(*cls.FORMAT.unpack_from(opened(record, cls.FORMAT.size, "traffic")))
        if not 0 < found.scale <= 1:
            raise FormatError(f"record 'traffic' in meta: expected a scale between 0 and 1, found {found.scale}")
        return found


@dataclass(frozen=True)
class GuardInfo:
    """The ``guard`` record: which engine the filter is for."""

    identity: bytes = b""

    FORMAT = struct.Struct("<Q")

    def pack(self) -> bytes:
        """As bytes."""
        return sealed(self.FORMAT.pack(GUARD_VERSION) + self.identity)

    @classmethod
    def unpack(cls, record: bytes) -> "GuardInfo":
        """From bytes, checked."""
        body = opened(record, cls.FORMAT.size, "guard")
        (version,) = cls.FORMAT.unpack_from(body)
        if version != GUARD_VERSION:
            raise VersionError(
                f"guard record version {version} found, this dlbf reads {GUARD_VERSION}; use a newer dlbf"
            )
        return cls(body[cls.FORMAT.size :])
