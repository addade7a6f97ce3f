"""One connection to a server: commands out, answers in, each awaited for as long as the caller says."""

import socket
import time
from typing import TypeAlias, cast

from dlbf.kernels.resp import AnswerReader, ErrorAnswer
from dlbf.storage.fleet.clients import Connection
from dlbf.storage.fleet.messages import Raw

__all__ = ["Answer", "ErrorAnswer", "Wire"]

READ_BYTES = 1 << 16
Answer: TypeAlias = "Raw | ErrorAnswer"


class Wire:
    """A connection that a client library made; from then on only its socket is used.

    Parameters
    ----------
    connection
        That is connected, and has read every answer.
    seconds : float
        How long to wait for an answer, if not told otherwise.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self.connection = connection
        self.seconds = seconds
        self.used = time.monotonic()  # when it was last
        self._sock: socket.socket = connection.__dict__["_sock"]
        self._limit = seconds
        self._sock.settimeout(seconds)
        self._answers = AnswerReader()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come that nobody asked for: the end of the connection, most of all."""
        return not self.connection.can_read(timeout=0)

    def send(self, data: bytes) -> None:
        """Send commands."""
        self._sock.sendall(data)

    def receive(self, seconds: float | None = None) -> Answer:
        """The next answer.

        Raises
        ------
        OSError
            If nothing comes for so long, or the connection has ended.
        FormatError
            If it is none.
        """
        limit = self.seconds if seconds is None else seconds
        answers = self._answers
        while (found := answers.take()) is None:
            if limit != self._limit:
                self._sock.settimeout(limit)
                self._limit = limit
            data = self._sock.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the server has closed the connection")
            answers.feed(data)
        return cast(Answer, found[0])

    def hear_pushes(self) -> None:
        """From now on ``receive_all`` has what the server pushes, too."""
        self._answers.hears_pushes = True

    def receive_all(self) -> list[Answer]:
        """All answers that are there, after something has come."""
        pending = getattr(self._sock, "pending", int)  # what TLS has read and nobody took
        while True:
            data = self._sock.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the server has closed the connection")
            self._answers.feed(data)
            if not pending():
                break
        found = []
        while (one := self._answers.take()) is not None:
            found.append(cast(Answer, one[0]))
        return found

    def fileno(self) -> int:
        """Of the socket."""
        return self._sock.fileno()

    def close(self) -> None:
        """End it."""
        self.connection.disconnect()
