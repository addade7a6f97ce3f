"""Commands to Valkey and Redis servers over connections of our own, each sent exactly once.

Client libraries send a command again when no answer came, which one `SET` of the protocol must not be.  So only their
connections are used (address, password, TLS, Sentinel's word for the primary), and of a cluster's client its table of
slots.  What a server has certainly not done (it redirects, has no such function, is loading) is sent again.
"""

import binascii
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias, cast

from dlbf.kernels.resp import pack
from dlbf.storage.fleet.clients import Client, ClusterClient, Node, Pool, pool_of
from dlbf.storage.fleet.messages import FleetError, Raw
from dlbf.storage.fleet.wire import Answer, ErrorAnswer, Wire

__all__ = ["SLOTS", "Channel", "Command", "Place", "Refused", "Unanswered", "certain", "slot_of"]

Command: TypeAlias = "tuple[bytes | int | str, ...]"
Reply: TypeAlias = "Raw | FleetError"
SLOTS = 16384
# A server says so before it does anything.
NOT_DONE = {"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"}
PAUSE_SECONDS = 0.02
TRIES = 8
REFRESH_SECONDS = 0.1  # between two questions for the table of slots
IDLE_SECONDS = 1.0  # a connection that was idle for longer is looked at first: the server may have closed it
MISSING = "Function not found"
ANSWER_SECONDS = 5.0


class Unanswered(FleetError):
    """No answer came: the command may have been done, or may be done later."""


class Refused(FleetError):
    """A server answered with an error."""


def certain(answer: Reply) -> Raw:
    """An answer, raised if it is none."""
    if isinstance(answer, FleetError):
        raise answer
    return answer


def slot_of(key: bytes) -> int:
    """The slot of a key in a cluster.

    Examples
    --------
    >>> slot_of(b"123456789"), slot_of(b"a{123456789}b"), slot_of(b"{}x") == slot_of(b"x")
    (12739, 12739, False)
    """
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key, 0) % SLOTS


class Place:
    """One server, and connections to it that nobody uses."""

    def __init__(self, pool: Pool, name: str, timeout_seconds: float) -> None:
        self.pool = pool
        self.name = name
        self.timeout_seconds = timeout_seconds
        self.idle: list[Wire] = []

    def _connect(self) -> Wire:
        """A connection like those of the client, whose settings it has, but for how long it tries and waits."""
        options = dict(self.pool.connection_kwargs)
        limit = self.timeout_seconds
        for name in ("socket_timeout", "socket_connect_timeout"):
            given = options.get(name)
            options[name] = min(given, limit) if isinstance(given, (int, float)) and given else limit
        seconds = options["socket_timeout"]
        assert isinstance(seconds, (int, float))
        connection = self.pool.connection_class(**options)
        with suppress(AttributeError):
            connection.retry.update_retries(0)
        connection.connect()
        return Wire(connection, seconds)

    def take(self) -> Wire:
        """A connection that is there, or a new one; whatever fails, nothing was sent yet."""
        while True:
            try:
                wire = self.idle.pop()
            except IndexError:
                return self._connect()
            with suppress(Exception):
                if time.monotonic() - wire.used < IDLE_SECONDS or wire.is_quiet:
                    return wire
            with suppress(Exception):
                wire.close()

    @contextmanager
    def using(self, wire: Wire) -> Iterator[None]:
        """One exchange over a connection; if that is interrupted in any way, this one and idle ones are closed."""
        try:
            yield
        except BaseException:
            with suppress(Exception):
                wire.close()
            self.close()
            raise
        wire.used = time.monotonic()
        self.idle.append(wire)

    def close(self) -> None:
        """Close what is idle."""
        while True:
            try:
                wire = self.idle.pop()
            except IndexError:
                return
            with suppress(Exception):
                wire.close()


class Channel:
    """Commands to a server, or to the servers of a cluster.

    Parameters
    ----------
    client : redis.Redis, redis.RedisCluster, or the same of valkey
        A client of Sentinel's ``master_for`` is one of the first kind.
    library : str
        Source of the functions that commands call; it is loaded where it is missing.
    timeout_seconds : float
        How long to wait for an answer, if the client does not say less.
    """

    def __init__(self, client: Client, library: str = "", timeout_seconds: float = ANSWER_SECONDS) -> None:
        if client.get_encoder().decode_responses:
            raise TypeError("the client decodes what it reads; make one with decode_responses=False")
        self.client = client
        self.is_cluster = hasattr(client, "get_node_from_key")
        self.cluster = cast(ClusterClient, client)  # if it is one
        self.library = library
        self.timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._places: dict[str, Place] = {}
        self._refreshed = 0.0
        self._is_stale = False

    # --- where

    def place_of(self, key: bytes) -> Place:
        """The primary that has a key."""
        if not self.is_cluster:
            return self._place(self.client.connection_pool, "server")
        if self._is_stale:
            self.refresh()
        try:
            node = self.cluster.get_node_from_key(key)
            if node is None:
                raise LookupError("nobody has it")
            return self._node_place(node)
        except Exception as error:
            self._is_stale = True
            raise Unanswered(f"the cluster has no server for a slot: {error}") from error

    def primaries(self) -> list[Place]:
        """All servers that have data."""
        if not self.is_cluster:
            return [self._place(self.client.connection_pool, "server")]
        self.refresh(at_once=True)
        return sorted(map(self._node_place, self.cluster.get_primaries()), key=lambda place: place.name)

    def _node_place(self, node: Node) -> Place:
        return self._place(pool_of(self.cluster, node), node.name)

    def _place(self, pool: Pool, name: str) -> Place:
        place = self._places.get(name)
        if place is None or place.pool is not pool:
            with self._lock:
                place = self._places[name] = Place(pool, name, self.timeout_seconds)
        return place

    def refresh(self, at_once: bool = False) -> None:
        """Ask for the cluster's table of slots again."""
        if not self.is_cluster or (not at_once and time.monotonic() - self._refreshed < REFRESH_SECONDS):
            return
        with self._lock:
            self._refreshed = time.monotonic()
            self._is_stale = False
            try:
                self.cluster.nodes_manager.initialize()
            except Exception as error:
                self._is_stale = True
                raise Unanswered(f"no server of the cluster tells where its slots are: {error}") from error

    # --- what

    def call(self, key: bytes, command: Command, patience_seconds: float = 0.0) -> Raw:
        """The answer to one command about a key.

        Parameters
        ----------
        patience_seconds
            How long the server may wait before it answers.

        Raises
        ------
        Unanswered
            If none came.
        Refused
            If it is an error.
        """
        return certain(self.call_many([(key, command)], patience_seconds)[0])

    def call_many(self, items: Sequence[tuple[bytes, Command]], patience_seconds: float = 0.0) -> list[Reply]:
        """The answers to commands about keys, those of one server together; `Unanswered` or `Refused` for some."""
        answers: list[Reply] = [Unanswered("not sent")] * len(items)
        todo = list(range(len(items)))
        for attempt in range(TRIES):
            again: list[int] = []
            groups: dict[Place, list[int]] = {}
            for i in todo:
                try:
                    groups.setdefault(self.place_of(items[i][0]), []).append(i)
                except Unanswered as error:
                    answers[i] = error
                    again.append(i)
            for place, members in groups.items():
                exchange = Exchange(self, place, [items[i][1] for i in members], patience_seconds)
                again.extend(members[at] for at in exchange.send())
                for at, i in enumerate(members):
                    answers[i] = exchange.answers[at]
            if not again:
                break
            todo = again
            if attempt:
                time.sleep(PAUSE_SECONDS * attempt)
        return answers

    def call_at(self, place: Place, commands: Sequence[Command]) -> list[Reply]:
        """The answers of one server, in order; what it redirects is `Refused`."""
        exchange = Exchange(self, place, commands)
        if exchange.send():
            exchange.send()
        return exchange.answers

    def ask_for_slots(self) -> None:
        """The table of slots is wrong: ask again before the next command."""
        self._is_stale = True

    def server_at(self, host: str, port: int) -> Place | None:
        """The server at an address, if it is known."""
        node = self.cluster.get_node(host=host, port=port)
        return None if node is None else self._node_place(node)

    def close(self) -> None:
        """Close connections that are idle; those in use close themselves when they are given back."""
        for place in list(self._places.values()):
            place.close()


class Exchange:
    """Commands to one server, and its answers; ``send`` may be called again for those that were certainly not done."""

    def __init__(
        self, channel: Channel, place: Place, commands: Sequence[Command], patience_seconds: float = 0.0
    ) -> None:
        self.channel = channel
        self.place = place
        self.commands = commands
        self.patience_seconds = patience_seconds or None
        self.answers: list[Reply] = [Unanswered("not sent")] * len(commands)
        self.todo = list(range(len(commands)))

    def send(self) -> list[int]:
        """Send what was not done yet and read what comes; those that again were certainly not done."""
        waiting, self.todo = self.todo, []
        try:
            wire = self.place.take()
        except Exception as error:
            self._failed(waiting, error)
            self.todo = waiting
            return waiting
        missing = False
        try:
            with self.place.using(wire):
                wire.send(b"".join([pack(self.commands[i]) for i in waiting]))
                while waiting:
                    missing |= self._read(wire.receive(self.patience_seconds), waiting[0])
                    waiting.pop(0)
        except Exception as error:
            self._failed(waiting, error)
        if missing and not self._load():
            self.todo = []
        return self.todo

    def _failed(self, waiting: list[int], error: Exception) -> None:
        self.channel.ask_for_slots()
        for i in waiting:
            self.answers[i] = Unanswered(f"{type(error).__name__}: {error}")

    def _read(self, answer: Answer, at: int) -> bool:
        """Take one answer; whether the server lacks the functions."""
        if not isinstance(answer, ErrorAnswer):
            self.answers[at] = answer
            return False
        self.answers[at] = Refused(answer.text)
        if MISSING in answer.text and self.channel.library:
            self.todo.append(at)
            return True
        if answer.kind == "ASK":
            host, _, port = answer.text.rpartition(" ")[2].rpartition(":")
            self._ask(host, int(port), at)
        elif answer.kind == "MOVED" or answer.kind in NOT_DONE:
            self.channel.ask_for_slots()
            self.todo.append(at)
        return False

    def _load(self) -> bool:
        command = ("FUNCTION", "LOAD", "REPLACE", self.channel.library)
        answer = Exchange(self.channel, self.place, [command])
        answer.send()
        if isinstance(answer.answers[0], FleetError):
            for at in self.todo:
                self.answers[at] = answer.answers[0]
            return False
        return True

    def _ask(self, host: str, port: int, at: int) -> None:
        """A slot is moving: ask the server it goes to, this once."""
        place = self.channel.server_at(host, port)
        if place is None:
            self.channel.ask_for_slots()
            self.todo.append(at)
            return
        asking = Exchange(self.channel, place, [("ASKING",), self.commands[at]])
        asking.send()
        asked, answer = asking.answers
        self.answers[at] = asked if isinstance(asked, FleetError) else answer
        if 1 in asking.todo:
            self.todo.append(at)
