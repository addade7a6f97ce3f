"""What a host of a run on a real cluster did lately: every question to the log and the data, with its answer and times.

A ring in memory.  It is written to a file when somebody has seen a stored key denied, so that this explains itself.
"""

import threading
from collections import deque

from dlbf.storage.fleet.commands import DataCommand, LogCommand, LogPutChunk
from dlbf.storage.fleet.messages import Batch
from support.fleet_board import now
from support.peek import keeper

MOST_EVENTS = 50_000
MOST_WORDS = 400


class Recorder:
    """Remembers what a guard's driver asks and is told.

    Parameters
    ----------
    guard : FleetGuard
    path : Path
        Where to write it.
    """

    def __init__(self, guard, path):
        self.host = keeper(guard).host
        self.path = path
        self.events = deque(maxlen=MOST_EVENTS)
        driver = keeper(guard).driver
        self._wrap(driver, "_perform", self._asked)
        follow = self.host.follow

        def followed(found):
            records = list(found)
            if records:
                self.say(f"follows {records}")
            follow(records)

        self.host.follow = followed

    def _wrap(self, owner, name, note):
        inner = getattr(owner, name)

        def wrapped(*arguments):
            sent = now()
            try:
                answer = inner(*arguments)
            except Exception as error:
                self.events.append((sent, now(), threading.current_thread().name, arguments[0], error))
                raise
            note(sent, arguments, answer)
            return answer

        setattr(owner, name, wrapped)

    def _asked(self, sent, arguments, answer):
        request = arguments[0]
        if isinstance(request, LogPutChunk):
            request = f"put_chunk {request.upload!r} {request.number}"
        shown = [getattr(one, "raw", one) for one in answer.batch] if isinstance(request, Batch) else answer.raw
        if isinstance(request, LogCommand | DataCommand | Batch) or shown:
            self.events.append((sent, now(), threading.current_thread().name, request, shown))

    def say(self, text):
        """Remember something else."""
        self.events.append((now(), now(), threading.current_thread().name, text, ""))

    def beliefs(self):
        """What the host takes for true at this moment."""
        host, copy = self.host, self.host.copy
        return {
            "epoch": host.epoch.decode(),
            "settled": host.settled,
            "head": host.head,
            "lease": host.lease.decode(),
            "lease_left": host.until / 1e9 - now(),
            "position": copy and copy.position,
            "generation": copy and copy.generation.number,
            "newest": copy and copy.newest.number,
            "known": host.known and host.known.number,
            "trusted": host.trusted and host.trusted.number,
        }

    def dump(self):
        """Write everything; a later time it is written anew."""
        with self.path.open("w") as file:
            for sent, received, thread, request, answer in list(self.events):
                told = f"{answer!r}"[:MOST_WORDS]
                asked = f"{request!r}" if not isinstance(request, str) else request
                file.write(f"{sent:.4f} +{1000 * (received - sent):.1f} ms {thread}: {asked[:MOST_WORDS]} -> {told}\n")
            file.write(f"{now():.4f} believes {self.beliefs()}\n")
