"""The servers that have the data: what the protocol asks of them becomes commands to them."""

from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import islice
from typing import Protocol

from dlbf.storage.engines.base import Adapter, keys_of
from dlbf.storage.engines.redis import GUARDS, SCAN_COUNT, RedisEngine
from dlbf.storage.fleet.channel import SLOTS, Channel, Place, Unanswered, certain, slot_of
from dlbf.storage.fleet.commands import DataCommand, DataDelete, DataPut, DataReplace, RaiseFence
from dlbf.storage.fleet.layout import merged, owners
from dlbf.storage.fleet.messages import FleetError, Raw, array, fence_number, text, whole

__all__ = ["RESERVED", "Data", "EngineData", "RedisData", "data_for", "source_of"]

SCAN_KEYS = 1000
FENCES_AT_ONCE = 2048
RESERVED = b"dlbf:fleet:"


def source_of(library: str) -> str:
    """A library's text."""
    return (files("dlbf.storage.fleet") / f"{library}.lua").read_text()


class Data(Protocol):
    """Servers that have the data."""

    fenced: bool
    replaces: bool
    tells: bool
    owner: Callable[[tuple[bytes, ...], bytes], bytes] | None  # see `Host`

    def call_many(self, commands: tuple[DataCommand, ...]) -> "list[Raw | FleetError]":
        """Answers, or `Unanswered`, in order."""

    def identities(self) -> list[Raw]:
        """See `Identities`."""

    def raise_fences(self, stamp: bytes, identities: tuple[bytes, ...]) -> bytes:
        """See `RaiseFences`."""

    def scan(self) -> Iterator[list[bytes]]:
        """All keys, in lists; some may come twice."""

    def close(self) -> None:
        """Let go of connections."""


class RedisData:
    """The keys of a `RedisEngine`; the functions of ``dlbf_data`` are loaded onto its servers."""

    fenced = replaces = tells = True

    def __init__(self, engine: RedisEngine, name: str) -> None:
        self.engine = engine
        self.channel = Channel(engine.client, source_of("data"))
        self.fence = RESERVED + name.encode() + b":fence:"
        self.owner: Callable[[tuple[bytes, ...], bytes], bytes] | None = None
        if self.channel.is_cluster:
            self.owner = self._owner
        self._tags: list[bytes] = []
        self._known: dict[Place, bytes] = {}  # identities by server, as `identities` has last said

    def _owner(self, places: tuple[bytes, ...], key: bytes) -> bytes:
        """The server that had a key's slot."""
        return owners(places)[slot_of(self.engine.prefix + key)]

    def _fence_of(self, slot: int) -> bytes:
        """The key of a slot's fence, itself of that slot; without a cluster there is one."""
        if not self.channel.is_cluster:
            return self.fence + b"{0}"
        if not self._tags:
            tags: dict[int, bytes] = {}
            number = 0
            while len(tags) < SLOTS:
                tag = b"%d" % number
                tags.setdefault(slot_of(tag), tag)
                number += 1
            self._tags = [tags[one] for one in range(SLOTS)]
        return self.fence + b"{" + self._tags[slot] + b"}"

    def call_many(self, commands: tuple[DataCommand, ...]) -> "list[Raw | FleetError]":
        """See `Data`."""
        prepared = []
        for command in commands:
            key = self.engine.prefix + command.key
            fence = self._fence_of(slot_of(key) if self.channel.is_cluster else 0)
            prepared.append((key, ("FCALL", "dlbf_data_" + command.function, 2, key, fence, *command.arguments())))
        return self.channel.call_many(prepared)

    def identities(self) -> list[Raw]:
        """See `Data`."""
        known: dict[Place, bytes] = {}
        names: dict[bytes, bytes] = {}
        views: dict[bytes, bytes] = {}
        for place in self.channel.primaries():
            if not self.channel.is_cluster:
                known[place] = self._identity_of(place)
                continue
            known[place] = self._identity_of(place)
            name, nodes = map(certain, self.channel.call_at(place, [("CLUSTER", "MYID"), ("CLUSTER", "NODES")]))
            names[text(name)] = known[place]
            views[text(name)] = text(nodes)
        self._known = known
        if not self.channel.is_cluster:
            return [b"", *known.values()]
        layout = merged(views)
        if strange := layout.slots.keys() - names.keys():
            self.channel.ask_for_slots()
            raise Unanswered(f"{len(strange)} primaries of the cluster are not known here yet")
        return [layout.word, *sorted(b"%s %s" % (names[name], slots) for name, slots in layout.slots.items())]

    def _identity_of(self, place: Place) -> bytes:
        return text(certain(self.channel.call_at(place, [("FCALL", "dlbf_data_identity", 0)])[0]))

    def raise_fences(self, stamp: bytes, identities: tuple[bytes, ...]) -> bytes:
        """See `Data`."""
        highest = b""
        commands = []
        for slot in range(SLOTS) if self.channel.is_cluster else range(1):
            fence = self._fence_of(slot)
            identity = self._known.get(self.channel.place_of(fence), b"?")
            raising = RaiseFence(fence, stamp, identity if identity in identities else b"?")
            commands.append((fence, ("FCALL", "dlbf_data_raise_fence", 2, fence, fence, *raising.arguments())))
        for start in range(0, len(commands), FENCES_AT_ONCE):
            for answer in self.channel.call_many(commands[start : start + FENCES_AT_ONCE]):
                raised, found = array(certain(answer))
                if not whole(raised):
                    if not found:
                        raise Unanswered("a data server was replaced while its fence was being raised")
                    highest = max(highest, text(found), key=fence_number)
        return highest

    def scan(self) -> Iterator[list[bytes]]:
        """See `Data`.  Each page comes with the word of its server that it is still the one `identities` named."""
        prefix = self.engine.prefix
        glob = b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in prefix)
        options: tuple[bytes | str, ...] = ("MATCH", glob + b"*") if prefix else ()
        for place, identity in self._known.items():
            cursor = b"0"
            while True:
                page = ("SCAN", cursor, *options, "COUNT", SCAN_COUNT)
                found, same = map(certain, self.channel.call_at(place, [page, ("FCALL", "dlbf_data_identity", 0)]))
                if same != identity:
                    raise Unanswered("a data server was replaced during the scan")
                cursor, keys = text(array(found)[0]), array(array(found)[1])
                yield [key[len(prefix) :] for key in map(text, keys) if key != GUARDS and not key.startswith(RESERVED)]
                if cursor == b"0":
                    break

    def close(self) -> None:
        """See `Data`."""
        self.channel.close()


class EngineData:
    """Any other engine: it has no fences, and tells no identity in the same step."""

    fenced = replaces = False

    def __init__(self, engine: Adapter) -> None:
        self.engine = engine
        self.owner: Callable[[tuple[bytes, ...], bytes], bytes] | None = None
        self.tells = engine.tells

    def call_many(self, commands: tuple[DataCommand, ...]) -> "list[Raw | FleetError]":
        """See `Data`."""
        answers: list[Raw | FleetError] = []
        for command in commands:
            try:
                answers.append(self._call(command))
            except Exception as error:
                answers.append(Unanswered(f"{type(error).__name__}: {error}"))
        return answers

    def _call(self, command: DataCommand) -> Raw:
        engine, key = self.engine, command.key
        match command:
            case DataPut():
                if command.px:
                    engine.put_expiring(key, command.value, command.px / 1000)
                else:
                    engine.put(key, command.value)
                return [1, 0, engine.identity(), b""]
            case DataDelete():
                there = engine.delete_many([key]) if engine.tells else None
                if there is None:
                    was_there = engine.has(key)
                    engine.delete(key)
                    return [int(was_there), engine.identity()]
                return [int(there[0]), engine.identity()]
            case DataReplace():
                return [0, engine.identity()]
        raise FleetError(f"an engine without functions was asked for {command.function}")

    def identities(self) -> list[Raw]:
        """See `Data`."""
        return [b"", self.engine.identity()]

    def raise_fences(self, stamp: bytes, identities: tuple[bytes, ...]) -> bytes:
        """See `Data`."""
        return b""

    def scan(self) -> Iterator[list[bytes]]:
        """See `Data`."""
        keys = keys_of(self.engine, b"")
        while part := list(islice(keys, SCAN_KEYS)):
            yield part

    def close(self) -> None:
        """See `Data`."""


def data_for(engine: Adapter, name: str) -> Data:
    """What asks an engine's servers."""
    return RedisData(engine, name) if isinstance(engine, RedisEngine) else EngineData(engine)
