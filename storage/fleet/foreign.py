"""A trip-wire for writers that do not go through guards: servers tell of every change, and what no log announced shows.

It is no guarantee: what is written while no server tells (between two connections, after a fail-over) stays unseen, and
between such a write and the alarm its key is denied.
"""

import logging
import selectors
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from dlbf.kernels.resp import ErrorAnswer, pack
from dlbf.storage.engines.redis import GUARDS
from dlbf.storage.fleet import protocol
from dlbf.storage.fleet.channel import Command, Place
from dlbf.storage.fleet.data import RESERVED, RedisData
from dlbf.storage.fleet.host import Copy, Host
from dlbf.storage.fleet.messages import FleetError
from dlbf.storage.fleet.servers import Driver
from dlbf.storage.fleet.wire import Wire

__all__ = ["Trust"]

log = logging.getLogger("dlbf.storage")
RETRY_SECONDS = 1.0
TICK_SECONDS = 0.2
LOOKS = 3  # so often a key must be there and be denied, with the log followed to its end in between
MOST_SUSPECTS = 10_000
MEND_SECONDS = 5.0  # between two filters that are made because somebody writes past the guards
LAYOUT_SECONDS = 10.0  # how often it is looked whether the primaries are others


class Trust:
    """Which generations may answer: none that was begun before a write past the guards was found.

    Parameters
    ----------
    host : Host
    driver : Driver
        Of the host.
    distrust : callable
        Told why nothing is denied until there is a newer filter, and whether that is news; called until there is one.
    where : str
        For messages.
    """

    def __init__(self, host: Host, driver: Driver, distrust: Callable[[str, bool], None], where: str) -> None:
        self.host = host
        self.foreign = 0  # keys that were found
        self._driver = driver
        self._distrust = distrust
        self._where = where
        self._epoch = b""
        self._newest = -1  # of the generations of that epoch that do not answer any more
        self._why = ""
        self._mended = 0.0  # when a newer one was asked for
        self._watch: ForeignWatch | None = None

    def has(self, copy: Copy) -> bool:
        """Whether a copy may answer."""
        return copy.epoch != self._epoch or copy.generation.number > self._newest

    def watch(self, seconds: float) -> None:
        """Look for writes past the guards from now on; returns when servers tell of changes, or after so long."""
        data = self._driver.data
        assert isinstance(data, RedisData)
        self._watch = ForeignWatch(data, self.host, self._driver, self._found, self._where)
        self._watch.start(seconds)

    def stop(self) -> None:
        """Look for nothing any more; twice is allowed."""
        if self._watch is not None:
            self._watch.stop()

    def _found(self, keys: list[bytes]) -> None:
        host = self.host
        if keys:
            self.foreign += len(keys)
            self._why = f"somebody wrote {keys[0]!r} and perhaps more to the engine past the guards of this log"
            self._epoch, self._newest = host.epoch, host.head
            log.warning("%s: reads pass through until there is a new filter: %s", self._where, self._why)
        copy = host.copy
        is_due = copy is not None and not self.has(copy) and time.monotonic() - self._mended > MEND_SECONDS
        if is_due:
            self._mended = time.monotonic()
        if keys or is_due:
            self._distrust(self._why, bool(keys))


class ForeignWatch:
    """Has a data server tell of changed keys, each by each, and finds those that nobody announced.

    Parameters
    ----------
    data : RedisData
    host : Host
    driver : Driver
        Of the host.
    found : callable
        Told keys that are in the engine and that the host's filter denies; called now and then without any, too.
    where : str
        For messages.
    """

    def __init__(
        self,
        data: RedisData,
        host: Host,
        driver: Driver,
        found: Callable[[list[bytes]], None],
        where: str,
    ) -> None:
        self.data = data
        self.host = host
        self.driver = driver
        self.where = where
        self._found = found
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="dlbf-foreign", daemon=True)

    def start(self, seconds: float) -> None:
        """Begin; returns when servers tell of changes, or after so long."""
        self._thread.start()
        self._ready.wait(seconds)

    def stop(self) -> None:
        """End; twice is allowed."""
        self._closing.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def _keep(self) -> None:
        while not self._closing.is_set():
            wires: dict[Place, Wire] = {}
            try:
                for place in self.data.channel.primaries():
                    wires[place] = self._connect(place)
                self._ready.set()
                self._listen(wires)
            except Exception as error:
                if not self._closing.is_set():
                    log.warning("%s: writes past the guards are not watched for at the moment: %s", self.where, error)
                    self._ready.set()
                    self._closing.wait(RETRY_SECONDS)
            finally:
                for wire in wires.values():
                    with suppress(Exception):
                        wire.close()

    def _connect(self, place: Place) -> Wire:
        """A connection on which a server tells of each key that changes."""
        wire = place.take()
        prefix = self.data.engine.prefix
        options: Command = ("PREFIX", prefix) if prefix else ()
        wire.send(pack(("HELLO", 3)) + pack(("CLIENT", "TRACKING", "ON", "BCAST", *options)))
        for _ in range(2):
            answer = wire.receive()
            if isinstance(answer, ErrorAnswer):
                wire.close()
                raise FleetError(f"{place.name} does not tell of changes: {answer.text}")
        wire.hear_pushes()
        return wire

    def _listen(self, wires: dict[Place, Wire]) -> None:
        """Until the primaries are others."""
        looked = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for wire in wires.values():
                selector.register(wire.fileno(), selectors.EVENT_READ, wire)
            while not self._closing.is_set():
                if time.monotonic() - looked > LAYOUT_SECONDS:
                    looked = time.monotonic()
                    if set(self.data.channel.primaries()) != wires.keys():
                        return
                suspects: dict[bytes, None] = {}
                for ready, _ in selector.select(TICK_SECONDS):
                    for pushed in ready.data.receive_all():
                        self._collect(pushed, suspects)
                self._found(self._foreign(list(suspects)))

    def _collect(self, pushed: object, suspects: dict[bytes, None]) -> None:
        """Keys of one message that the filter denies."""
        if not isinstance(pushed, list) or pushed[0] != b"invalidate" or not isinstance(pushed[1], list):
            return
        n = len(self.data.engine.prefix)
        for full in pushed[1]:
            is_ours = full == GUARDS or full.startswith(RESERVED)
            if not is_ours and len(suspects) < MOST_SUSPECTS and self._denies(full[n:]):
                suspects[full[n:]] = None

    def _denies(self, key: bytes) -> bool:
        """Whether the filter is there and does not have a key, whatever the lease."""
        copy = self.host.copy
        return copy is not None and not copy.replica.maybe(key)

    def _foreign(self, keys: list[bytes]) -> list[bytes]:
        """Those of keys that are there and that nobody announced.

        The log is followed to its end after a key was found: a guard's add is in it before its key can be.  A key that
        was deleted since is not there the second time, and one that came back was announced before the end.
        """
        for _ in range(LOOKS):
            if not keys:
                break
            prefix = self.data.engine.prefix
            answers = self.data.channel.call_many([(prefix + key, ("EXISTS", prefix + key)) for key in keys])
            self.driver.run(protocol.catch_up(self.host))
            keys = [key for key, there in zip(keys, answers, strict=True) if there == 1 and self._denies(key)]
        return keys
