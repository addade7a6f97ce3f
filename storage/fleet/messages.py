"""What the protocol asks of the log server, of data servers and of its driver, and what it is told.

Operations (`protocol`) are generators: they yield a `Request` and are sent an `Answer`, or `Lost` is thrown in.  Times
are nanoseconds of CLOCK_BOOTTIME on this host.

A driver calls a `LogCommand` as ``FCALL function KEYS... durable *arguments`` (``durable``: 0 or 1) and a `DataCommand`
as ``FCALL function KEYS... *arguments`` on the server that has the key; `Answer.raw` is the reply as client libraries
give it (integers, bytes, lists).
"""

import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

from dlbf.errors import DlbfError, FormatError
from dlbf.storage.fleet.commands import DataCommand, LogCommand

__all__ = [
    "Answer",
    "Batch",
    "Build",
    "FleetError",
    "Identities",
    "LeaseRow",
    "LogReply",
    "Lost",
    "Operation",
    "Pause",
    "RaiseFences",
    "Raw",
    "Request",
    "Scan",
    "array",
    "epoch_mark",
    "epoch_number",
    "fence_number",
    "foreign",
    "lease_rows",
    "pairs",
    "text",
    "whole",
]

Raw: TypeAlias = "bytes | int | list[Raw]"
HEADING = 6  # fields every reply of the log begins with


class FleetError(DlbfError):
    """An operation over many hosts that could not be finished."""


class Lost(FleetError):
    """No reply came: what was asked may have happened, may happen later, or never.

    ``received`` is the time at which the driver gave up.
    """

    def __init__(self, received: int, why: str = "no reply") -> None:
        super().__init__(why)
        self.received = received


def whole(raw: Raw) -> int:
    """A number of a reply."""
    if isinstance(raw, int):
        return raw
    if isinstance(raw, bytes):
        return int(raw)
    raise FormatError(f"a reply of the log or of a data server has a list where a number belongs: {raw!r:.80}")


def text(raw: Raw) -> bytes:
    """A byte string of a reply."""
    if isinstance(raw, bytes):
        return raw
    raise FormatError(f"a reply of the log or of a data server has {raw!r:.80} where bytes belong")


def array(raw: Raw) -> list[Raw]:
    """A list of a reply."""
    if isinstance(raw, list):
        return raw
    raise FormatError(f"a reply of the log or of a data server has {raw!r:.80} where a list belongs")


def pairs(raw: Raw) -> Iterator[tuple[int, bytes]]:
    """Positions and records, from the flat list in which the server gives them."""
    flat = array(raw)
    for at in range(0, len(flat), 2):
        yield whole(flat[at]), text(flat[at + 1])


def epoch_number(epoch: bytes) -> int:
    """The number in front of an epoch's identity; 0 for none.

    Examples
    --------
    >>> epoch_number(b"12:ab"), epoch_number(b"")
    (12, 0)
    """
    return int(epoch.partition(b":")[0] or 0)


def epoch_mark(epoch: bytes) -> int:
    """What records say of the epoch they were written in: two servers may each have begun one with the same number.

    Examples
    --------
    >>> epoch_mark(b"12:ab") == epoch_mark(b"12:cd")
    False
    """
    return zlib.crc32(epoch) >> 4  # four bytes in a record


def fence_number(fence: bytes) -> int:
    """The number of the epoch in a fence ``number:identity@server``; 0 for none."""
    return epoch_number(fence)


def foreign(fence: bytes, epoch: bytes) -> bool:
    """Whether a fence is of another epoch that is no older than this one."""
    return fence_number(fence) >= epoch_number(epoch) and fence.rpartition(b"@")[0] != epoch


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease as the log server knows it."""

    name: bytes
    counter: int
    acked: int
    ttl_ns: int


def lease_rows(raw: Raw) -> list[LeaseRow]:
    """Leases, from the flat list in which the server gives them: name, counter, acknowledged position, milliseconds."""
    flat = array(raw)
    return [
        LeaseRow(text(flat[at]), whole(flat[at + 1]), whole(flat[at + 2]), whole(flat[at + 3]) * 1_000_000)
        for at in range(0, len(flat), 4)
    ]


# --- what only a driver can do


@dataclass(frozen=True, slots=True)
class Batch:
    """Commands that may be sent together, in any order; ``Answer.batch`` has the answer, or `Lost`, for each."""

    commands: tuple[DataCommand, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until a time, or until the log wakes the add at position ``wake``.

    ``Answer.raw`` is the epoch that the log pushed when it did, or b"" if time is over.
    """

    until: int
    wake: int = 0


@dataclass(frozen=True, slots=True)
class Identities:
    """-> [layout, identity...]: every data server that has data, sorted, and a word that changes when a slot moves.

    The servers are the primaries of this moment, as a majority knows them; the word also changes while a slot is on its
    way.  An identity may be followed by a space and what `Host`'s ``owner`` needs to tell whose slot a key is in.
    """


@dataclass(frozen=True, slots=True)
class RaiseFences:
    """-> fence or b"": raise every fence that there is, each as `RaiseFence` would; the highest that refused."""

    stamp: bytes
    identities: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """-> anything: give every key of every data server to ``build.scanned``; `Lost` if one is not of `Identities`."""

    build: "Build"


class Build(Protocol):
    """A filter in the making, on the builder's side."""

    def start(self, generation: int, keys: list[bytes]) -> None:
        """A generation begins with the keys of adds that are open."""

    def scanned(self, keys: list[bytes]) -> None:
        """Keys that the driver found."""

    def added(self, keys: tuple[bytes, ...]) -> None:
        """Keys that were announced meanwhile."""

    def finish(self) -> tuple[bytes, list[bytes]]:
        """What a replica needs to load it: a few bytes about it, and its chunks."""


Request: TypeAlias = LogCommand | DataCommand | Batch | Pause | Identities | RaiseFences | Scan


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and when this host sent the request and got it."""

    sent: int
    received: int
    raw: Raw = b""
    batch: "tuple[Answer | Lost, ...]" = field(default=())


T = TypeVar("T")
Operation: TypeAlias = Generator[Request, Answer, T]


class LogReply:
    """A reply of the log: what each begins with, and the rest if the command was done."""

    __slots__ = ("end_position", "epoch", "floor", "generation", "head", "received", "rest", "sent", "settled")

    def __init__(self, answer: Answer) -> None:
        raw = array(answer.raw)
        self.epoch = text(raw[0])
        self.settled = whole(raw[1]) == 1
        self.head = whole(raw[2])
        self.generation = whole(raw[3])
        self.end_position = whole(raw[4])
        self.floor = whole(raw[5])
        self.rest = raw[HEADING:]
        self.sent = answer.sent
        self.received = answer.received

    @property
    def granted(self) -> bool:
        """Whether the function did what it was asked for."""
        return bool(self.rest) and self.rest[0] == 1
