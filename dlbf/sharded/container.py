"""The bytes of a sharded filter: an index, and behind it the shards.

The index is an object of kind 40 in the format of ``dlbf.format``; its parameters::

    0 capacity   1 rate (IEEE 754)   2 zero   3 number of shards S   4 set id
    5 bytes behind the index   6 bytes of the pattern

and its payload::

    offset  width   field (all little-endian)
         0      p   the pattern: an empty LearnedFilter, whose model, regions and plan all shards share; p = 0 if the
                    shards are plain filters.  Padded with zeros to 8
         p   32*S   table, for every shard: u64 offset from the start of the file (a multiple of 64), u64 bytes (0: the
                    shard is missing), u64 keys, u64 the checksum of the shard's header

A shard is an object of kind 41.  Its first 12 parameters, its payload and its number of items are those of the filter
that it is; parameters 12 to 15 are the kind of that filter, the number of the shard, the number of shards, and the set
id: what is put together must have been made for each other.  The checksum of its header covers its sums, and they cover
its payload, so the index says which version of a shard belongs to it.  Bytes between shards are zero.

A learned shard has neither model nor directory nor plan (see ``dlbf/sharded/learned.py``).  The set id is the checksum
of what all shards have in common.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dlbf import format
from dlbf.errors import FormatError

__all__ = [
    "MAX_SHARDS",
    "Entry",
    "Index",
    "Table",
    "aligned",
    "index_bytes",
    "inner_header",
    "pack_shard",
    "pieces",
    "place_shards",
    "read_index",
    "shard_header",
]

MAX_SHARDS = 1 << 20
ALIGN = 64
AT_KIND = 12
ENTRY = struct.Struct("<4Q")

Buffer = bytes | bytearray | memoryview


class Entry(NamedTuple):
    """One row of the table of shards."""

    offset: int
    n_bytes: int
    n_items: int
    checksum: int


class Table(Sequence[Entry]):
    """The table of shards as it is in a file: a row is read when it is asked for, so that opening takes no time."""

    def __init__(self, rows: npt.NDArray[np.uint64]) -> None:
        self.rows = rows

    @classmethod
    def empty(cls, n_shards: int) -> "Table":
        """Of shards that are in no file."""
        return cls(np.zeros((n_shards, 4), dtype=np.uint64))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Entry:  # type: ignore[override]
        return Entry(*self.rows[number].tolist())

    def __iter__(self) -> Iterator[Entry]:
        return (Entry(*row) for row in self.rows.tolist())


class Index(NamedTuple):
    """What the index of a sharded filter says."""

    set_id: int
    pattern: bytes
    entries: Table


def aligned(n_bytes: int, to: int = ALIGN) -> int:
    """The next multiple."""
    return -(-n_bytes // to) * to


# --- one shard


def shard_header(header: format.Header, number: int, n_shards: int, set_id: int) -> format.Header:
    """The header of a shard that is the filter with that header."""
    own = header.params + (0,) * (AT_KIND - len(header.params))
    if len(own) > AT_KIND:
        raise ValueError(f"a filter of kind {header.kind} has too many parameters for a shard")
    return replace(header, kind=format.KIND_SHARD, params=(*own, header.kind, number, n_shards, set_id))


def inner_header(header: format.Header, number: int, n_shards: int, set_id: int, where: str) -> format.Header:
    """The header of the filter that a shard is; FormatError if it is not that shard of that set."""
    if header.kind != format.KIND_SHARD:
        found = format.KIND_NAMES.get(header.kind, f"kind {header.kind}")
        raise FormatError(f"{where}: expected a shard, found a {found}")
    kind, *place = header.params[AT_KIND:]
    if place != [number, n_shards, set_id]:
        raise FormatError(
            f"{where}: expected shard {number} of {n_shards} of the set {set_id:016x}, found {place[0]} of {place[1]} "
            f"of {place[2]:016x}; it was built with another blueprint, or for another place"
        )
    return replace(header, kind=kind, params=header.params[:AT_KIND])


def pack_shard(header: format.Header, payload: Buffer, number: int, n_shards: int, set_id: int) -> bytes:
    """A shard as bytes: a filter's header and payload."""
    return format.pack(shard_header(header, number, n_shards, set_id), payload)


# --- the index


def index_bytes(n_pattern_bytes: int, n_shards: int) -> int:
    """Bytes of the index, before the first shard."""
    return format.layout(aligned(n_pattern_bytes, 8) + ENTRY.size * n_shards).total


def place_shards(n_pattern_bytes: int, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each shard begins, and the size of the file; those of no bytes have no place."""
    at = index_bytes(n_pattern_bytes, len(sizes))
    total, offsets = at, []
    for size in sizes:
        offsets.append(aligned(total) if size else 0)
        total = offsets[-1] + size if size else total
    return offsets, total


def pieces(header: format.Header, pattern: bytes, shards: Sequence[Buffer | None]) -> Iterator[Buffer]:
    """The file of a sharded filter, piece by piece.

    Parameters
    ----------
    header : Header
        Its hash, capacity and rate, and parameters 3 and 4.
    pattern : bytes
    shards : sequence of buffers
        ``pack_shard`` of each, or None where one is missing.
    """
    offsets, total = place_shards(len(pattern), [0 if shard is None else len(shard) for shard in shards])
    entries = []
    for offset, shard in zip(offsets, shards, strict=True):
        if shard is None:
            entries.append(Entry(0, 0, 0, 0))
            continue
        n_items = int.from_bytes(shard[32:40], "little")
        entries.append(Entry(offset, len(shard), n_items, int.from_bytes(shard[248:256], "little")))
    before = index_bytes(len(pattern), len(shards))
    index = pack_index(replace(header, params=(*header.params[:5], total - before, len(pattern))), pattern, entries)
    yield index
    at = len(index)
    for offset, shard in zip(offsets, shards, strict=True):
        if shard is not None:
            yield bytes(offset - at)
            yield shard
            at = offset + len(shard)


def pack_index(header: format.Header, pattern: bytes, entries: Sequence[Entry]) -> bytes:
    """The index: header, pattern, table, sums."""
    table = b"".join(ENTRY.pack(*entry) for entry in entries)
    payload = pattern.ljust(aligned(len(pattern), 8), b"\0") + table
    return format.pack(replace(header, n_items=sum(entry.n_items for entry in entries)), payload)


def read_index(header: format.Header, payload: memoryview, where: str) -> Index:
    """What an index says; all that will be trusted is checked.  Its sums were compared before."""
    _, _, filter_id, n_shards, set_id, n_behind, n_pattern, *rest = header.params
    if filter_id or any(rest):
        raise FormatError(f"{where}: unknown parameters of a sharded filter; written by a newer dlbf?")
    if not 1 <= n_shards <= MAX_SHARDS or n_shards & (n_shards - 1):
        raise FormatError(f"{where}: expected a power of two of shards, at most {MAX_SHARDS}, found {n_shards}")
    at = aligned(n_pattern, 8)
    if at + ENTRY.size * n_shards != len(payload):
        raise FormatError(
            f"{where}: an index of {len(payload)} bytes for {n_shards} shards and a pattern of {n_pattern}"
        )
    rows = np.frombuffer(payload, dtype="<u8", offset=at).reshape(n_shards, 4).astype(np.uint64)  # a copy
    _check_places(rows, index_bytes(n_pattern, n_shards), n_behind, where)
    return Index(set_id, bytes(payload[:n_pattern]), Table(rows))


def _check_places(rows: npt.NDArray[np.uint64], first: int, n_behind: int, where: str) -> None:
    """That shards follow each other without a gap, and end where the file does."""
    there = np.flatnonzero(rows[:, 1])
    nowhere = np.flatnonzero((rows[:, 1] == 0) & rows.any(axis=1))
    if nowhere.size:
        raise FormatError(f"{where}: shard {nowhere[0]} has no bytes and is said to be somewhere")
    offsets, n_bytes = rows[there, 0], rows[there, 1]
    bad = (rows[there, :3] >> np.uint64(62)).any(axis=1) | (n_bytes < format.HEADER_BYTES)  # so no sum overflows
    ends = np.concatenate((np.array([first], dtype=np.uint64), offsets + n_bytes))
    bad |= offsets != -(-ends[:-1].astype(np.int64) // ALIGN).astype(np.uint64) * np.uint64(ALIGN)
    if bad.any():
        raise FormatError(f"{where}: shard {there[bad.argmax()]} is not where it belongs; build the file again")
    if int(ends[-1]) - first != n_behind:
        raise FormatError(f"{where}: the shards end at byte {ends[-1]}, expected {first + n_behind}")
