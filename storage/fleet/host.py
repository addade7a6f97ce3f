"""What one host knows: the epoch, its lease, how far its replica is, whether "absent" may be said.

Nothing here waits, and nothing here is locked: whoever runs operations of one host lets only one of them be between two
requests at a time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from dlbf.storage.fleet.messages import FleetError, LogReply, epoch_mark, epoch_number
from dlbf.storage.fleet.records import Add, Done, End, Record, Remove, decode

__all__ = [
    "Copy",
    "EpochChanged",
    "Gap",
    "Generation",
    "Host",
    "Note",
    "Replica",
    "Replicas",
    "Settings",
    "identities_of",
]

SECOND = 1_000_000_000
MOST_BLAMED = 1000  # leases whose delays are remembered


class EpochChanged(FleetError):
    """The log began a new epoch: what was under way has to be announced again."""


class Gap(FleetError):
    """Records that a replica needs are no longer in the log: load the generation again."""


class Replica(Protocol):
    """A filter that follows the log."""

    def apply(self, position: int, record: Add | Remove | None) -> None:
        """Follow one record; None if it changes nothing here."""

    def maybe(self, key: bytes) -> bool:
        """False if the key is certainly not among those added."""

    def save(self) -> tuple[bytes, list[bytes]]:
        """A few bytes about it, and chunks, from which `Replicas.load` makes the same."""


class Replicas(Protocol):
    """Makes replicas."""

    def load(self, generation: int, position: int, meta: bytes, chunks: list[bytes]) -> Replica:
        """A replica that is complete up to a position."""

    def count(self, meta: bytes) -> int:
        """How many chunks there are, from the few bytes about them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all hosts of one log must agree on, and what this one's engine can do.

    Parameters
    ----------
    ttl
        How long a lease lasts, in nanoseconds.
    margin
        More than two clocks can drift apart within ``ttl``.
    old_primary
        The longest time that a log server which another one replaced may still answer.
    strict
        Whether puts wait until every lease has acknowledged their add.
    durable
        Whether the log loses no acknowledged write, whatever fails.
    fenced
        Whether data servers have `DataPut` with its fence.  Without it each put must have its answer within
        ``put_limit``, a rebuild after the log's fail-over begins that much later, and nothing is replaced or removed
        between two generations, because a put of a host that was stopped may arrive after the scan.
    put_limit
        Nanoseconds; for engines without a fence.
    replaces
        Whether data servers have `DataReplace`; without it every put is announced.
    tells
        Whether `DataDelete` tells if there was something to delete; without it nothing is removed between generations.
    tries
        How often a put is announced anew before it gives up.
    """

    ttl: int = SECOND
    margin: int = SECOND // 10
    old_primary: int = 0
    strict: bool = True
    durable: bool = False
    fenced: bool = True
    put_limit: int = 5 * SECOND
    replaces: bool = True
    tells: bool = True
    tries: int = 5

    @property
    def grace(self) -> int:
        """From the first reply of an epoch until no lease of an older one can be valid."""
        return self.ttl + self.margin + self.old_primary

    @property
    def exact(self) -> bool:
        """Whether every key of the engine is in every generation, so that XX and DEL can be believed."""
        return self.fenced or self.durable


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation that is complete, and the data servers it was read from.

    ``places`` is what `Identities` said of each server: its identity, and perhaps a space and which slots it had.
    """

    number: int
    places: tuple[bytes, ...]

    @property
    def identities(self) -> frozenset[bytes]:
        """The servers, without their slots."""
        return frozenset(identities_of(self.places))


def identities_of(places: Iterable[bytes]) -> tuple[bytes, ...]:
    """Servers without their slots."""
    return tuple(place.partition(b" ")[0] for place in places)


@dataclass(frozen=True, slots=True)
class Note:
    """What was noted before a read of the engine, for the set of absent keys."""

    copy: "Copy"
    position: int


class Copy:
    """A replica of one generation and what was said since: adds that are open, newer generations."""

    __slots__ = ("epoch", "generation", "newest", "open", "position", "replica")

    def __init__(self, epoch: bytes, generation: Generation, position: int, replica: Replica) -> None:
        self.epoch = epoch
        self.generation = generation
        self.newest = generation
        self.position = position
        self.replica = replica
        self.open: dict[int, tuple[bytes, ...]] = {}

    def follow(self, found: Iterable[tuple[int, bytes]]) -> None:
        """Apply records in order; those that were applied before are skipped.

        Raises
        ------
        Gap
            If one is missing, or written in another epoch.
        """
        for position, data in found:
            if position <= self.position:
                continue
            mark, record = decode(data)
            if position != self.position + 1 or mark != epoch_mark(self.epoch):
                raise Gap(f"the replica is complete up to record {self.position}, the log goes on with {position}")
            self.replica.apply(position, self._effect(position, record))
            self.position = position

    def _effect(self, position: int, record: Record) -> Add | Remove | None:
        match record:
            case Add(keys):
                self.open[position] = keys
                return record
            case Done(positions):
                for one in positions:
                    self.open.pop(one, None)
            case Remove(generation, _) if generation == self.generation.number:
                return record
            case End(generation, identities):
                self.newest = Generation(generation, identities)
            case _:
                pass
        return None

    @property
    def outdated(self) -> bool:
        """Whether a newer generation was read from other data servers: this one must not answer any more."""
        return self.newest.identities != self.generation.identities


class Host:
    """One process that reads and writes through the shared log.

    Parameters
    ----------
    name
        Unique among all processes there ever were; leases are called after it.
    settings
        The same on every host, as far as they concern the log.
    replicas
        Makes this host's replicas.
    label
        What operators see.
    owner
        Gives the identity of the server that had a key's slot, from the `Generation.places` and the key.  Needed where
        slots move; without it any server of a generation counts.
    """

    def __init__(
        self,
        name: bytes,
        settings: Settings,
        replicas: Replicas,
        label: bytes = b"",
        owner: Callable[[tuple[bytes, ...], bytes], bytes] | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.replicas = replicas
        self.label = label
        self.owner = owner
        self.epoch = b""
        self.epoch_seen = 0  # when the first reply of the epoch came
        self.older_since = 0  # since when the log has spoken of an older epoch than ours
        self.settled = False
        self.head = 0  # of the latest reply
        self.until = 0  # "absent" may be said before this time
        self.copy: Copy | None = None
        self.known: Generation | None = None  # the last end seen
        self.trusted: Generation | None = None  # every lease has acknowledged its end: what exists is in all filters
        self.lease = b""
        self.leases = 0  # how many this host has had: each is called by another name
        self.uploads = 0
        self.finished: list[int] = []  # adds that are done and not yet reported
        self.rebuild_due = ""  # why
        self.waited: dict[bytes, int] = {}  # nanoseconds that puts waited for each lease, for operators

    # --- what replies say

    def heard(self, reply: LogReply) -> None:
        """Take in what every reply of the log begins with.

        Raises
        ------
        EpochChanged
            If the log is in another epoch; this host then is too, or knows since when the log has been in an older one.
        """
        if reply.epoch != self.epoch:
            if self.epoch and epoch_number(reply.epoch) <= epoch_number(self.epoch):
                self.older_since = self.older_since or reply.received
            else:
                self.enter(reply.epoch, reply.received)
                self._take(reply)
            raise EpochChanged(f"the log is in the epoch {reply.epoch!r}")
        self.older_since = 0
        self._take(reply)

    def _take(self, reply: LogReply) -> None:
        self.settled = self.settled or reply.settled
        self.head = max(self.head, reply.head)
        known = self.known
        if known is not None and reply.generation == known.number and reply.floor >= reply.end_position:
            self.trusted = known

    def enter(self, epoch: bytes, now: int) -> None:
        """Forget everything of the epoch before."""
        self.epoch = epoch
        self.epoch_seen = now
        self.older_since = 0
        self.settled = False
        self.head = 0
        self.until = 0
        self.copy = None
        self.known = None
        self.trusted = None
        self.lease = b""
        self.finished.clear()

    def granted(self, reply: LogReply) -> None:
        """A lease was registered or renewed: it is valid from when that was *sent*."""
        self.until = max(self.until, reply.sent + self.settings.ttl - self.settings.margin)

    def follow(self, found: Iterable[tuple[int, bytes]]) -> None:
        """Let the replica follow; it is dropped at a gap, and when a generation of other data servers is complete."""
        copy = self.copy
        if copy is None:
            return
        try:
            copy.follow(found)
        except Gap:
            self.copy = None
            return
        self.learn(copy.newest)
        if copy.outdated:
            self.copy = None

    def learn(self, generation: Generation) -> None:
        """A generation is complete."""
        if self.known is None or generation.number > self.known.number:
            self.known = generation
            self.rebuild_due = ""  # whoever made it; what it was due for shows again if it still is

    def adopt(self, copy: Copy) -> None:
        """Answer from another copy, if it is as far as the present one."""
        self.learn(copy.newest)
        self.copy = None if copy.outdated else copy

    def next_lease(self) -> bytes:
        """The name of the next lease: the log takes earlier ones of this host away when it registers one."""
        self.leases += 1
        return b"%s.%d" % (self.name, self.leases)

    def next_upload(self) -> bytes:
        self.uploads += 1
        return b"%s.%d" % (self.name, self.uploads)

    def owns(self, lease: bytes) -> bool:
        """Whether a lease is this host's, the present one or an earlier one."""
        return lease.rpartition(b".")[0] == self.name

    def blame(self, leases: Iterable[bytes], nanoseconds: int) -> None:
        """A put has waited for these leases."""
        if len(self.waited) > MOST_BLAMED:
            self.waited.clear()
        for lease in leases:
            self.waited[lease] = self.waited.get(lease, 0) + nanoseconds

    # --- what readers and writers ask

    @property
    def wants_load(self) -> bool:
        """Whether there is a newer generation than the one that answers, or none does."""
        return self.copy is None or self.copy.newest.number > self.copy.generation.number

    @property
    def owes(self) -> bool:
        """Whether there are adds to report as done."""
        return bool(self.finished)

    def answers(self, now: int) -> bool:
        """Whether "absent" may be said at this time.  Ask this first, then take `copy`, then probe."""
        copy = self.copy
        return now < self.until and copy is not None and copy.position >= self.head and copy.epoch == self.epoch

    def denies(self, key: bytes, now: int) -> bool:
        """Whether a key is certainly absent, by what is known at this time."""
        if not self.answers(now):
            return False
        copy = self.copy
        return copy is not None and not copy.replica.maybe(key)

    def maybe(self, key: bytes) -> bool:
        """What the replica says to a writer; it may be arbitrarily stale."""
        copy = self.copy
        return copy is None or copy.replica.maybe(key)

    def replaceable(self) -> Generation | None:
        """The generation on whose data servers an existing key is in every filter; None before that is known."""
        return self.trusted if self.settings.exact and self.settings.replaces else None

    def servers(self, generation: Generation, key: bytes) -> tuple[bytes, ...]:
        """The servers on which a generation counted a key: the one that had its slot.

        A slot that moved there since may come from a server that was replaced, with keys whose deletion was logged.
        """
        if self.owner is None:
            return tuple(sorted(generation.identities))
        return (self.owner(generation.places, key),)

    def removable(self) -> Generation | None:
        """The generation a deletion may be counted for: note it before deleting."""
        return self.known if self.settings.exact and self.settings.tells else None

    # --- the set of absent keys

    def note(self, key: bytes) -> Note | None:
        """Note the position before a read of the engine; None if what it finds may not enter the set of absent keys."""
        copy = self.copy
        if copy is None or any(key in keys for keys in copy.open.values()):
            return None
        return Note(copy, copy.position)

    def may_enter(self, key: bytes, note: Note | None) -> bool:
        """Whether a key that a read of the engine did not find may enter the set of absent keys.

        Ask this, and enter the key, under the lock under which records are applied.  The read must have been of a
        primary: what a replica, or a primary that was replaced, does not have says nothing.  A remove record never
        enters a key.
        """
        return note is not None and note.copy is self.copy and note.position == note.copy.position
