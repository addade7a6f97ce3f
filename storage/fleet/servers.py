"""The log's server, and the driver: what the protocol yields becomes commands, their answers what it is sent."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dlbf.kernels.ledger import boottime_ns
from dlbf.storage.fleet.channel import Channel, Command, certain
from dlbf.storage.fleet.clients import Client
from dlbf.storage.fleet.commands import DataCommand, LogCommand, LogRevoke
from dlbf.storage.fleet.data import RESERVED, Data, source_of
from dlbf.storage.fleet.messages import (
    Answer,
    Batch,
    FleetError,
    Identities,
    Lost,
    Operation,
    Pause,
    RaiseFences,
    Raw,
    Request,
    Scan,
    array,
    text,
    whole,
)

__all__ = ["LATE_SECONDS", "Driver", "HostRow", "LogServer", "records_of"]

T = TypeVar("T")
PARTS = ("", ":log", ":leases", ":acks", ":open", ":waits")
SECOND = 1_000_000_000
ANSWER_SECONDS = 2.0
# A server that waits for us may answer a little later than we asked it to.
LATE_SECONDS = 2.0


@dataclass(frozen=True)
class HostRow:
    """A host that holds a lease, as operators see it.

    Attributes
    ----------
    name : str
        Of its lease.
    label : str
        What the host calls itself: its machine and process, unless it was told another name.
    position : int
        The last record of the log that it has acknowledged.
    behind : int
        Records that it has not.
    """

    name: str
    label: str
    position: int
    behind: int


def records_of(found: Raw) -> list[tuple[int, bytes]]:
    """Positions and records, from what XREAD answers."""
    if not found:
        return []
    # [[stream, entries]], or [stream, entries] where a map came; an entry is [id, [field, record]].
    first = array(found)[0]
    entries = array(array(first)[1] if isinstance(first, list) else array(found)[1])
    rows = [array(one) for one in entries]
    return [(int(text(row[0]).partition(b"-")[0]), text(array(row[1])[1])) for row in rows]


class LogServer:
    """The log called ``name`` on a server or cluster."""

    def __init__(self, client: Client, name: str, durable: bool, lease_seconds: float = 1.0) -> None:
        self.channel = Channel(client, source_of("log"), max(ANSWER_SECONDS, 2 * lease_seconds))
        self.state = RESERVED + b"{%s}" % name.encode()
        self.keys = [self.state + part.encode() for part in PARTS]
        self.durable = int(durable)

    def ask(self, *command: bytes | int | str, patience_seconds: float = 0.0) -> Raw:
        """The answer to a command about the log's keys."""
        return self.channel.call(self.state, command, patience_seconds)

    def call(self, command: LogCommand) -> Raw:
        """The answer to a command of the protocol."""
        return self.ask(*self.words(command))

    def words(self, command: LogCommand) -> Command:
        """A command of the protocol as servers take it."""
        return (
            "FCALL",
            b"dlbf_log_" + command.function.encode(),
            len(PARTS),
            *self.keys,
            self.durable,
            *command.arguments(),
        )

    @property
    def stream(self) -> bytes:
        """The key of the records."""
        return self.keys[1]

    def wait_for_wake(self, position: int, seconds: float) -> bytes:
        """Wait until the add at a position is acknowledged by all; the epoch that the log says then, or nothing."""
        key = self.state + b":wake:%d" % position
        # A server ends waits up to a tenth of a second late, so it is told to wait for longer than we do.
        found = self.ask("BLPOP", key, f"{seconds + LATE_SECONDS:.3f}", patience_seconds=seconds)
        return text(array(found)[1]) if found else b""

    def hosts(self) -> list[HostRow]:
        """Who holds a lease, and how far each is."""
        labels = array(self.ask("HGETALL", self.keys[2]))
        head = self.ask("HGET", self.state, "head") or 0
        rows = []
        for i in range(0, len(labels), 2):
            name, label = text(labels[i]), text(labels[i + 1]).split(b" ", 2)[2]
            acked = self.ask("ZSCORE", self.keys[3], name)
            position = int(float(text(acked))) if acked else 0
            behind = max(0, whole(head) - position)
            rows.append(HostRow(name.decode(), label.decode(errors="replace"), position, behind))
        return sorted(rows, key=lambda row: (row.label, row.name))

    def has_generation(self) -> bool:
        """Whether there is a filter."""
        found = self.ask("HGET", self.state, "generation")
        return bool(found) and whole(found) > 0

    def checkpoint_position(self) -> int:
        """How far the last checkpoint is."""
        found = self.ask("HGET", self.state, "position")
        return whole(found) if found else 0

    def try_to_be_builder(self, owner: bytes, milliseconds: int) -> bool:
        """Whether this host should make the next generation; only saves work, and decides nothing else."""
        key = self.state + b":builder"
        taken = self.ask("SET", key, owner, "NX", "PX", milliseconds)
        return bool(taken) or self.ask("GET", key) == owner

    def end_building(self, owner: bytes) -> None:
        """Let another host do so."""
        key = self.state + b":builder"
        if self.ask("GET", key) == owner:
            self.ask("DEL", key)

    def evicts(self) -> str:
        """The server's rule for what it forgets when memory is short, if the log's keys are among that; else empty."""
        place = self.channel.place_of(self.state)
        answer = self.channel.call_at(place, [("CONFIG", "GET", "maxmemory-policy")])[0]
        if isinstance(answer, FleetError):
            return ""  # it does not say
        found = array(certain(answer))
        policy = text(found[1]).decode() if len(found) > 1 else ""
        return policy if policy.startswith("allkeys") else ""


class Driver:
    """Runs operations of one host, in any number of threads.

    Parameters
    ----------
    log : LogServer
        Whom to ask about the log.
    data : Data
        Whom to ask about keys.
    changed : callable
        Called, with ``lock`` held, whenever an operation has taken a step: what the host knows may have changed.
    """

    def __init__(self, log: LogServer, data: Data, changed: Callable[[], None]) -> None:
        self.log = log
        self.data = data
        self.lock = threading.Lock()  # one operation is between two requests
        self.waits = 0
        self.waited_ns = 0
        self.revoked: dict[bytes, int] = {}  # leases that this host took away, and how often
        self._changed = changed

    def run(self, operation: Operation[T]) -> T:
        """Bring an operation to its end."""
        try:
            with self.lock:
                try:
                    request = next(operation)
                finally:
                    self._changed()
            while True:
                answer = self._answer(request)
                with self.lock:
                    try:
                        request = operation.throw(answer) if isinstance(answer, Lost) else operation.send(answer)
                    finally:
                        self._changed()
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            operation.close()

    def _answer(self, request: Request) -> "Answer | Lost":
        sent = boottime_ns()
        try:
            return self._perform(request, sent)
        except Lost as lost:
            return lost
        except FleetError as error:
            return Lost(boottime_ns(), str(error))

    def _perform(self, request: Request, sent: int) -> Answer:
        match request:
            case LogCommand():
                raw = self.log.call(request)
                if isinstance(request, LogRevoke) and isinstance(raw, list) and raw[6:7] == [1]:
                    self.revoked[request.lease] = self.revoked.get(request.lease, 0) + 1
                return Answer(sent, boottime_ns(), raw)
            case Batch(commands):
                return self._perform_batch(commands, sent)
            case Pause(until, wake):
                return self._pause(until, wake, sent)
            case Identities():
                servers = self.data.identities()
                return Answer(sent, boottime_ns(), servers)
            case RaiseFences(stamp, identities):
                refused = self.data.raise_fences(stamp, identities)
                return Answer(sent, boottime_ns(), refused)
            case Scan(build):
                for part in self.data.scan():
                    build.scanned(part)
                return Answer(sent, boottime_ns())
            case DataCommand():
                return self._perform_batch((request,), sent)
        raise AssertionError(request)

    def _perform_batch(self, commands: tuple[DataCommand, ...], sent: int) -> Answer:
        answers = self.data.call_many(commands)
        now = boottime_ns()
        batch = tuple(Lost(now, str(one)) if isinstance(one, FleetError) else Answer(sent, now, one) for one in answers)
        return Answer(sent, now, batch=batch)

    def _pause(self, until: int, wake: int, sent: int) -> Answer:
        raw = b""
        seconds = max(0.0, (until - sent) / SECOND)
        try:
            if wake:
                self.waits += 1
                raw = self.log.wait_for_wake(wake, max(0.001, seconds))
            else:
                time.sleep(seconds)
        except FleetError:
            # The protocol asks again.
            time.sleep(min(max(0.0, (until - boottime_ns()) / SECOND), 0.05))
        now = boottime_ns()
        if wake:
            self.waited_ns += now - sent
        return Answer(sent, now, raw)

    def close(self) -> None:
        """Let go of connections."""
        self.log.channel.close()
        self.data.close()
