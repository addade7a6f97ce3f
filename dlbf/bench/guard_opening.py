"""``dlbf bench guard --only opening``: how soon a guard of many keys answers, and what a second process has of its own.

The engine makes its keys up, so that nothing but the guard takes time and memory.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlbf.bench.timing import Say
from dlbf.storage import Guard
from dlbf.storage.engines import Adapter

__all__ = ["ANSWER_MS_AT_MOST", "PRIVATE_AT_MOST", "Numbered", "Opening", "opening", "second_process"]

# The bars.
ANSWER_MS_AT_MOST = 20.0
PRIVATE_AT_MOST = 0.15
ASKED_KEYS = 1000
VALUE = b"v"


class Numbered(Adapter):
    """An engine with the keys ``b"key 000000000000"`` and so on, which it does not store."""

    ordered = True
    in_flight = False
    fresh = True

    def __init__(self, n_keys: int) -> None:
        self.n_keys = n_keys

    def get(self, key: bytes) -> bytes | None:
        """The same value for every key."""
        number = key[4:]
        is_key = len(key) == 16 and key.startswith(b"key ") and number.isdigit() and int(number) < self.n_keys
        return VALUE if is_key else None

    def put(self, key: bytes, value: bytes) -> None:
        """Its keys never change."""
        raise NotImplementedError("the keys of this engine never change")

    def delete(self, key: bytes) -> None:
        """Its keys never change."""
        raise NotImplementedError("the keys of this engine never change")

    def scan(self, start: bytes) -> Iterator[bytes]:
        """The keys from one of them on."""
        first = int(start[4:]) if start else 0
        return (b"key %012d" % number for number in range(first, self.n_keys))

    def count(self) -> int:
        """Number of keys."""
        return self.n_keys

    def identity(self) -> bytes:
        """The same in every process."""
        return b"numbered %d" % self.n_keys


@dataclass(frozen=True)
class Opening:
    """What opening a guard costs a process, while another one has it open."""

    keys: int
    filter_bytes: int
    first_answer_ms: float  # from opening to the first answer, the best of some processes
    private_bytes: int | None  # memory of its own after some questions, the least; None where the system does not tell

    @property
    def private_share(self) -> float | None:
        """The same over the filter."""
        return None if self.private_bytes is None else self.private_bytes / max(1, self.filter_bytes)

    @property
    def met(self) -> bool:
        """Whether both bars are met."""
        share = self.private_share
        return self.first_answer_ms <= ANSWER_MS_AT_MOST and (share is None or share <= PRIVATE_AT_MOST)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "keys": self.keys,
            "filter_bytes": self.filter_bytes,
            "first_answer_ms": self.first_answer_ms,
            "private_bytes": self.private_bytes,
            "private_share": self.private_share,
            "met": self.met,
        }


def opening(n_keys: int, rounds: int, folder: Path | None = None, say: Say = lambda text: None) -> Opening:
    """Make a guard, keep it open, and let other processes open it."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        say(f"opening: reading {n_keys:,} keys into a guard")
        Guard(Numbered(n_keys), place, sync="none").close()
        with Guard(Numbered(n_keys), place, sync="none") as guard:
            filter_bytes = guard.stats().filter_bytes
            found = []
            for turn in range(max(1, rounds)):
                say(f"opening: process {turn + 1} of {rounds}")
                command = [sys.executable, "-c", f"import {__name__} as o; o.second_process({n_keys}, {place!r})"]
                found.append(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))
    private = [each["private_bytes"] for each in found if each["private_bytes"] is not None]
    return Opening(n_keys, filter_bytes, min(each["ms"] for each in found), min(private) if private else None)


def second_process(n_keys: int, place: str) -> None:
    """Open the guard, ask it, and print what that took."""
    engine = Numbered(n_keys)
    before = _private_bytes()
    began = time.perf_counter()
    with Guard(engine, place, sync="none") as guard:
        guard.get(b"absent")
        ms = 1e3 * (time.perf_counter() - began)
        assert guard.state == "filtering", guard.stats().reason  # waits until it is loaded
        for i in range(ASKED_KEYS):
            assert guard.get(b"key %012d" % (i * n_keys // ASKED_KEYS)) == VALUE
            guard.get(b"absent %d" % i)
        after = _private_bytes()
    print(json.dumps({"ms": ms, "private_bytes": None if before is None or after is None else max(0, after - before)}))


def _private_bytes() -> int | None:
    """Memory that no other process shares."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))
