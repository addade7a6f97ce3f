"""Records of the shared log, and the one encoding they have.

A record is a type byte, the mark of the epoch it was written in (`messages.epoch_mark`), and its fields.  Every number
is a varint (7 bits to a byte, the least significant first, the top bit set on all but the last); byte strings have
their length in front::

    A mark n key*n                 keys will be stored: everybody must know of them first
    D mark n position*n            what the adds at these positions announced has happened
    R mark generation n key*n      these keys were deleted, and generation counted them
    B mark n identity*n            a generation begins; its name is the position of this record
    E mark generation n identity*n generation is complete; identities are the data servers it was read from

Servers never look into records: they keep them whole, in the log and in the list of open adds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from dlbf.errors import FormatError

__all__ = ["MAX_KEYS", "Add", "Begin", "Done", "End", "Record", "Remove", "decode", "encode", "may_be_awaited"]

MAX_KEYS = 8192  # keys in one record; operations on more write several


@dataclass(frozen=True, slots=True)
class Add:
    """Keys that will be stored."""

    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Positions of adds whose keys have been stored, or never will be."""

    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """Keys that were deleted, each of which ``generation`` counted."""

    generation: int
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A builder begins to read these data servers."""

    identities: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class End:
    """A generation is complete, and was read from these data servers."""

    generation: int
    identities: tuple[bytes, ...]


Record: TypeAlias = Add | Done | Remove | Begin | End


def _varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _strings(strings: Iterable[bytes]) -> bytes:
    parts = []
    count = 0
    for one in strings:
        parts.append(_varint(len(one)))
        parts.append(one)
        count += 1
    return _varint(count) + b"".join(parts)


def encode(record: Record, mark: int) -> bytes:
    """The bytes of a record written in the epoch with this mark.

    Examples
    --------
    >>> encode(Add((b"k1", b"k2")), 3)
    b'A\\x03\\x02\\x02k1\\x02k2'
    """
    epoch = _varint(mark)
    match record:
        case Add(keys):
            return b"A" + epoch + _strings(keys)
        case Done(positions):
            return b"D" + epoch + _varint(len(positions)) + b"".join(map(_varint, positions))
        case Remove(generation, keys):
            return b"R" + epoch + _varint(generation) + _strings(keys)
        case Begin(identities):
            return b"B" + epoch + _strings(identities)
        case End(generation, identities):
            return b"E" + epoch + _varint(generation) + _strings(identities)


def may_be_awaited(data: bytes) -> bool:
    """Whether somebody may be waiting until every host has acknowledged a record.

    Examples
    --------
    >>> may_be_awaited(encode(Add((b"k",)), 3)), may_be_awaited(encode(Done((1,)), 3))
    (True, False)
    """
    return data[:1] in (b"A", b"E")


class _Cursor:
    """Reads one record from front to back."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def varint(self) -> int:
        data = self.data
        at = self.at
        value = shift = 0
        while True:
            if at >= len(data):
                raise FormatError(
                    f"a record of the shared log is cut: a number begins at byte {self.at} of {len(data)}"
                )
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                self.at = at
                return value
            shift += 7

    def strings(self) -> tuple[bytes, ...]:
        found = []
        for _ in range(self.varint()):
            length = self.varint()
            end = self.at + length
            if end > len(self.data):
                raise FormatError(f"a record of the shared log is cut: it needs {end} bytes and has {len(self.data)}")
            found.append(self.data[self.at : end])
            self.at = end
        return tuple(found)


def decode(data: bytes) -> tuple[int, Record]:
    """The mark of the epoch a record was written in, and the record.

    Raises
    ------
    FormatError
        For bytes that no `encode` gave.

    Examples
    --------
    >>> decode(b"A\\x03\\x02\\x02k1\\x02k2")
    (3, Add(keys=(b'k1', b'k2')))
    """
    if not data:
        raise FormatError("a record of the shared log is empty")
    cursor = _Cursor(data, 1)
    mark = cursor.varint()
    record: Record
    match data[:1]:
        case b"A":
            record = Add(cursor.strings())
        case b"D":
            record = Done(tuple(cursor.varint() for _ in range(cursor.varint())))
        case b"R":
            record = Remove(cursor.varint(), cursor.strings())
        case b"B":
            record = Begin(cursor.strings())
        case b"E":
            record = End(cursor.varint(), cursor.strings())
        case kind:
            raise FormatError(f"a record of the shared log has the type {kind!r}; this version knows A, D, R, B and E")
    if cursor.at != len(data):
        raise FormatError(f"a record of the shared log ends at byte {cursor.at} but has {len(data)} bytes")
    return mark, record
