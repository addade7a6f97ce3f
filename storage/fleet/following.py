"""Records as they are logged, over a connection of their own."""

from contextlib import suppress

from dlbf.kernels.ledger import boottime_ns
from dlbf.kernels.resp import pack
from dlbf.storage.fleet.host import Copy
from dlbf.storage.fleet.messages import Lost, Raw
from dlbf.storage.fleet.servers import LATE_SECONDS, LogServer, records_of
from dlbf.storage.fleet.wire import ErrorAnswer, Wire

__all__ = ["Follower"]


class Follower:
    """Waits for records of a log; one thread uses it.

    Parameters
    ----------
    log : LogServer
    limit : int
        Records at once.
    """

    def __init__(self, log: LogServer, limit: int) -> None:
        self.log = log
        self.limit = limit
        self._wire: Wire | None = None
        self._copy: Copy | None = None  # for which records were asked
        self._waits = False  # whether the server was asked for records and has not answered
        self._patience = 0.0

    def wait(self, copy: Copy, seconds: float) -> list[tuple[int, bytes]]:
        """Records after those that a copy has, perhaps with some that it has; none if there is none for so long.

        Raises
        ------
        Lost
            If the server did not answer.
        """
        if copy is not self._copy:
            self.close()  # what was asked for another one
        if not self._waits:
            self._ask(copy, seconds)
        found = self._receive(self._patience)
        self._waits = False
        return records_of(found)

    def _ask(self, copy: Copy, seconds: float) -> None:
        """Ask for records after those that a copy has."""
        self._copy = copy
        self._patience = seconds + LATE_SECONDS
        block = max(1, int(seconds * 1000))
        after = b"%d-0" % copy.position
        self._send(pack(("XREAD", "COUNT", self.limit, "BLOCK", block, "STREAMS", self.log.stream, after)))
        self._waits = True

    def _send(self, data: bytes) -> None:
        try:
            if self._wire is None:
                self._wire = self.log.channel.place_of(self.log.state).take()
            self._wire.send(data)
        except Exception as error:
            raise self._lost(f"{type(error).__name__}: {error}") from error

    def _receive(self, seconds: float | None) -> Raw:
        assert self._wire is not None
        try:
            answer = self._wire.receive(seconds)
        except Exception as error:
            raise self._lost(f"{type(error).__name__}: {error}") from error
        if isinstance(answer, ErrorAnswer):
            raise self._lost(answer.text)
        return answer

    def _lost(self, why: str) -> Lost:
        self.close()
        self.log.channel.ask_for_slots()
        return Lost(boottime_ns(), why)

    def close(self) -> None:
        """Let go of the connection, and of what was asked over it."""
        wire, self._wire = self._wire, None
        self._waits = False
        if wire is not None:
            with suppress(Exception):
                wire.close()
