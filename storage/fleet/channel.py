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

from dlbf.storage.fleet.clients import Client, ClusterClient, Connection, Node, Pool, Word, pool_of
from dlbf.storage.fleet.messages import FleetError, Raw

__all__ = ["SLOTS", "Channel", "Command", "Place", "Refused", "Unanswered", "certain", "slot_of"]

Command: TypeAlias = "tuple[bytes | int | str, ...]"
Reply: TypeAlias = "Raw | FleetError"
SLOTS = 16384
# A server says so before it does anything.
NOT_DONE = {"TryAgainError", "ClusterDownError", "BusyLoadingError", "MasterDownError", "ReadOnlyError"}
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


def plain(found: Word) -> Raw:
    """An answer as protocol 2 has it: protocol 3 gives dicts, pairs of a list, and fractions."""
    if isinstance(found, dict):
        return [plain(one) for pair in found.items() for one in pair]
    if isinstance(found, list):
        return [plain(one) for one in found]
    if isinstance(found, float):
        return b"%d" % int(found)
    if isinstance(found, str):
        return found.encode()
    return b"" if found is None else found


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


def pack(command: Command) -> bytes:
    """A command as servers read it."""
    parts = [b"*%d\r\n" % len(command)]
    for word in command:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Place:
    """One server, and connections to it that nobody uses."""

    def __init__(self, pool: Pool, name: str, timeout_seconds: float) -> None:
        self.pool = pool
        self.name = name
        self.timeout_seconds = timeout_seconds
        self.idle: list[tuple[float, Connection]] = []

    def _connect(self) -> Connection:
        """A connection like those of the client, whose settings it has, but for how long it tries and waits."""
        options = dict(self.pool.connection_kwargs)
        for name in ("socket_timeout", "socket_connect_timeout"):
            given = options.get(name)
            limit = self.timeout_seconds
            options[name] = min(given, limit) if isinstance(given, (int, float)) and given else limit
        connection = self.pool.connection_class(**options)
        with suppress(AttributeError):
            connection.retry.update_retries(0)
        connection.connect()
        return connection

    def take(self) -> Connection:
        """A connection that is there, or a new one; whatever fails, nothing was sent yet."""
        while True:
            try:
                since, connection = self.idle.pop()
            except IndexError:
                return self._connect()
            with suppress(Exception):
                if time.monotonic() - since < IDLE_SECONDS or not connection.can_read(timeout=0):
                    return connection
            with suppress(Exception):
                connection.disconnect()

    @contextmanager
    def using(self, connection: Connection) -> Iterator[None]:
        """One exchange over a connection; if that is interrupted in any way, this one and idle ones are closed."""
        try:
            yield
        except BaseException:
            with suppress(Exception):
                connection.disconnect()
            self.close()
            raise
        self.idle.append((time.monotonic(), connection))

    def close(self) -> None:
        """Close what is idle."""
        while True:
            try:
                _, connection = self.idle.pop()
            except IndexError:
                return
            with suppress(Exception):
                connection.disconnect()


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
        self.patience_seconds = patience_seconds
        self.answers: list[Reply] = [Unanswered("not sent")] * len(commands)
        self.todo = list(range(len(commands)))

    def send(self) -> list[int]:
        """Send what was not done yet and read what comes; those that again were certainly not done."""
        waiting, self.todo = self.todo, []
        try:
            connection = self.place.take()
        except Exception as error:
            self._failed(waiting, error)
            self.todo = waiting
            return waiting
        missing = False
        try:
            with self.place.using(connection):
                connection.send_packed_command([b"".join(pack(self.commands[i]) for i in waiting)], check_health=False)
                _wait(connection, self.patience_seconds)
                while waiting:
                    missing |= self._read(connection, waiting[0])
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

    def _read(self, connection: Connection, at: int) -> bool:
        """Read one answer; whether the server lacks the functions."""
        try:
            self.answers[at] = plain(connection.read_response())
            return False
        except Exception as error:
            kind = type(error).__name__
            if not _is_answer(error):
                raise
            self.answers[at] = Refused(f"{kind}: {error}")
            if MISSING in str(error) and self.channel.library:
                self.todo.append(at)
                return True
            if kind == "AskError":
                self._ask(str(getattr(error, "host", "")), int(getattr(error, "port", 0)), at)
            elif kind == "MovedError" or kind in NOT_DONE:
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


def _wait(connection: Connection, seconds: float) -> None:
    """Let the server take its time."""
    if seconds:
        end = time.monotonic() + seconds
        while not connection.can_read(timeout=max(0.0, end - time.monotonic())):
            if time.monotonic() >= end:
                raise TimeoutError(f"no answer within {seconds:.1f} s")


def _is_answer(error: Exception) -> bool:
    """Whether a server has said this; the connection can be used again."""
    kinds = {parent.__name__ for parent in type(error).__mro__}
    return "ResponseError" in kinds or bool(kinds & NOT_DONE)
