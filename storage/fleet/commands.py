"""The functions of the two server libraries, with their arguments; each docstring says what the rest of the reply is.

`LogCommand`: ``FCALL function KEYS... durable *arguments``.  Every reply of the log begins with its epoch, whether that
is settled, head, generation, the position of its end, and the floor: the least position that a lease has acknowledged.
`DataCommand`: ``FCALL function KEYS... *arguments``.  Servers never look into records (`records`) or chunks.
"""

from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "DataCommand",
    "DataDelete",
    "DataPut",
    "DataReplace",
    "LogAdd",
    "LogBegin",
    "LogCheckpoint",
    "LogChunk",
    "LogCommand",
    "LogDone",
    "LogEnd",
    "LogHello",
    "LogLeases",
    "LogLook",
    "LogNewEpoch",
    "LogPutChunk",
    "LogRemove",
    "LogRenew",
    "LogRevoke",
    "LogSettle",
    "LogTrim",
    "RaiseFence",
]

# --- the log server


@dataclass(frozen=True, slots=True)
class LogCommand:
    """A function of the library ``dlbf_log``.

    It is done only if ``epoch`` is the log's own; otherwise the reply has nothing but its six first fields.  b"" is
    never the log's own: who does not know the epoch learns it so.
    """

    function: ClassVar[str] = ""
    epoch: bytes

    def arguments(self) -> list[bytes | int]:
        """What follows the function's keys, the epoch first."""
        return [self.epoch]


@dataclass(frozen=True, slots=True)
class LogLook(LogCommand):
    """-> [1, upload, position, meta, begin record, open adds, records after a position]: the last checkpoint."""

    function: ClassVar[str] = "look"
    after: int
    limit: int

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.after, self.limit]


@dataclass(frozen=True, slots=True)
class LogHello(LogCommand):
    """-> [1, records after acked] or [0, milliseconds]: register a lease and read the head, in one step.

    A lease is called ``owner.number``; the log takes leases of the same owner with a smaller number away.  It refuses
    one if the owner has a lease with a greater number (this is a late copy), or if other leases last another time.
    """

    function: ClassVar[str] = "hello"
    lease: bytes
    label: bytes
    ttl_ms: int
    acked: int
    limit: int

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.lease, self.label, self.ttl_ms, self.acked, self.limit]


@dataclass(frozen=True, slots=True)
class LogRenew(LogCommand):
    """-> [1, records] or [0] if there is no such lease: renew it, acknowledge, report adds that are done."""

    function: ClassVar[str] = "renew"
    lease: bytes
    acked: int
    limit: int
    done: tuple[int, ...]
    record: bytes  # a Done of them; b"" without

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.lease, self.acked, self.limit, self.record, *self.done]


@dataclass(frozen=True, slots=True)
class LogAdd(LogCommand):
    """-> [1, position, leases]: append an add, keep it as open, and read the leases after it."""

    function: ClassVar[str] = "add"
    owner: bytes  # the caller, for whose own leases it does not wait
    record: bytes

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.owner, self.record]


@dataclass(frozen=True, slots=True)
class LogLeases(LogCommand):
    """-> [1, leases]."""

    function: ClassVar[str] = "leases"


@dataclass(frozen=True, slots=True)
class LogRevoke(LogCommand):
    """-> [1], or [0] if the counter is another or there is no such lease."""

    function: ClassVar[str] = "revoke"
    lease: bytes
    counter: int

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.lease, self.counter]


@dataclass(frozen=True, slots=True)
class LogDone(LogCommand):
    """-> [1]: adds are no longer open.  Appends the record if one of them was."""

    function: ClassVar[str] = "done"
    record: bytes
    done: tuple[int, ...]

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.record, *self.done]


@dataclass(frozen=True, slots=True)
class LogRemove(LogCommand):
    """-> [1, position], or [0] if another generation is the present one.  Never sent twice."""

    function: ClassVar[str] = "remove"
    generation: int
    record: bytes

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.generation, self.record]


@dataclass(frozen=True, slots=True)
class LogBegin(LogCommand):
    """-> [1, generation, open adds], or [0] before the epoch is settled."""

    function: ClassVar[str] = "begin"
    record: bytes

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.record]


@dataclass(frozen=True, slots=True)
class LogPutChunk(LogCommand):
    """-> [1]: one part of a filter on its way; expires unless `LogEnd` or `LogCheckpoint` names its upload."""

    function: ClassVar[str] = "put_chunk"
    upload: bytes
    number: int
    data: bytes
    checksum: bytes

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.upload, self.number, self.data, self.checksum]


@dataclass(frozen=True, slots=True)
class LogChunk(LogCommand):
    """-> [1, data, checksum], or [0] if it is no longer there."""

    function: ClassVar[str] = "chunk"
    upload: bytes
    number: int

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.upload, self.number]


@dataclass(frozen=True, slots=True)
class LogEnd(LogCommand):
    """-> [1, position], or [0] unless the generation began in this epoch and is newer than the present one.

    Also [0] if records after ``position`` were trimmed meanwhile: nobody could load it.
    """

    function: ClassVar[str] = "end"
    generation: int
    position: int
    upload: bytes
    meta: bytes
    record: bytes

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.generation, self.position, self.upload, self.meta, self.record]


@dataclass(frozen=True, slots=True)
class LogCheckpoint(LogCommand):
    """-> [1], or [0] unless the generation is the present one and the position newer than its last."""

    function: ClassVar[str] = "checkpoint"
    generation: int
    position: int
    upload: bytes
    meta: bytes

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.generation, self.position, self.upload, self.meta]


@dataclass(frozen=True, slots=True)
class LogTrim(LogCommand):
    """-> [1]: forget records up to a position, but none after the generation's last checkpoint."""

    function: ClassVar[str] = "trim"
    position: int

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.position]


@dataclass(frozen=True, slots=True)
class LogSettle(LogCommand):
    """-> [1]: the grace after an epoch's beginning is over."""

    function: ClassVar[str] = "settle"


@dataclass(frozen=True, slots=True)
class LogNewEpoch(LogCommand):
    """-> [1], or [0] if the epoch's number is no smaller: begin a new epoch with at least this number."""

    function: ClassVar[str] = "new_epoch"
    at_least: int

    def arguments(self) -> list[bytes | int]:
        return [self.epoch, self.at_least]


# --- data servers


@dataclass(frozen=True, slots=True)
class DataCommand:
    """A function of the library ``dlbf_data``, on the server that has ``key`` and the fence of its slot."""

    function: ClassVar[str] = ""
    key: bytes

    def arguments(self) -> list[bytes | int]:
        """What follows the function's keys (the key, and the fence's where the function needs it)."""
        return []


@dataclass(frozen=True, slots=True)
class DataPut(DataCommand):
    """-> [stored, existed, identity, fence]: SET if the fence is this epoch, raised on this server.

    Never sent twice for one add.
    """

    function: ClassVar[str] = "put"
    value: bytes
    stamp: bytes
    px: int  # milliseconds to live; 0 for ever

    def arguments(self) -> list[bytes | int]:
        return [self.value, self.stamp, self.px]


@dataclass(frozen=True, slots=True)
class DataReplace(DataCommand):
    """-> [existed, identity]: SET XX if the server is among those that the generation was read from."""

    function: ClassVar[str] = "replace"
    value: bytes
    px: int
    identities: tuple[bytes, ...]

    def arguments(self) -> list[bytes | int]:
        return [self.value, self.px, *self.identities]


@dataclass(frozen=True, slots=True)
class DataDelete(DataCommand):
    """-> [deleted, identity]."""

    function: ClassVar[str] = "delete"


@dataclass(frozen=True, slots=True)
class RaiseFence(DataCommand):
    """-> [raised, fence]: raise the fence of the key's slot to an epoch, if the server is still the one named."""

    function: ClassVar[str] = "raise_fence"
    stamp: bytes
    identity: bytes

    def arguments(self) -> list[bytes | int]:
        return [self.stamp, self.identity]
