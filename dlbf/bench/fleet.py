"""``dlbf bench fleet``: what hosts that share a filter cost and save, on a real cluster."""

import json
import random
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dlbf.bench.fleet_host import Client, connect, open_host
from dlbf.bench.timing import Ratio, Say, call_with_each, side_by_side
from dlbf.kernels.ledger import ABSENT
from dlbf.storage import Guard
from dlbf.storage.logs import FleetGuard

__all__ = [
    "BARS",
    "Bar",
    "FleetCosts",
    "Opened",
    "Paused",
    "Puts",
    "Reads",
    "bars",
    "measure",
]

N_READERS = 4
LEASE_SECONDS = 1.0
MARGIN = 0.1
ROUND_PUTS = 20  # of each kind before the next one has its turn
N_PAUSES = 5
FILL_KEYS = 2000  # in one batch
VALUE = b"v" * 32
# What is asked of each figure: its bar, and whether it is the most or the least.
BARS = {
    "absent get, over a local guard's": (1.2, "most"),
    "absent get, times as fast as the round trip": (100.0, "least"),
    "share of absent reads that needed no round trip, %": (98.0, "least"),
    "put of a new key with four hosts that read, over SET": (2.5, "most"),
    "put over an existing key, over SET": (1.1, "most"),
    "longest put while a reader was stopped, in leases": (1.0 + MARGIN + 0.05, "most"),
    "a new host answers from a filter of many keys, s": (2.0, "most"),
}


@dataclass(frozen=True)
class Reads:
    """Nanoseconds for one read of an absent key."""

    keys: int
    local_ns: float
    host_ns: float
    trip_ns: float
    over_local: Ratio


@dataclass(frozen=True)
class Puts:
    """Medians in microseconds, and tenths and nine tenths."""

    count: int
    bare: tuple[float, float, float]
    new: tuple[float, float, float]
    over: tuple[float, float, float]


@dataclass(frozen=True)
class Paused:
    """Puts while a host that reads is stopped, in seconds: the first of each time, and the next one."""

    lease_seconds: float
    first: tuple[float, ...]
    next: tuple[float, ...]


@dataclass(frozen=True)
class Opened:
    """A host that comes to a filter that others made."""

    keys: int
    filter_bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class FleetCosts:
    """Everything; ``saved`` is the share of absent reads that needed no round trip."""

    readers: int
    reads: Reads
    puts: Puts
    paused: Paused
    saved: float
    saved_reads: int
    opened: Opened | None


@dataclass(frozen=True)
class Bar:
    """A figure and what is asked of it."""

    what: str
    found: float
    bar: float
    met: bool


def bars(costs: FleetCosts) -> list[Bar]:
    """The figures that have one."""
    found = {
        "absent get, over a local guard's": costs.reads.over_local[0],
        "absent get, times as fast as the round trip": costs.reads.trip_ns / costs.reads.host_ns,
        "share of absent reads that needed no round trip, %": 100 * costs.saved,
        "put of a new key with four hosts that read, over SET": costs.puts.new[0] / costs.puts.bare[0],
        "put over an existing key, over SET": costs.puts.over[0] / costs.puts.bare[0],
        "longest put while a reader was stopped, in leases": max(costs.paused.first) / costs.paused.lease_seconds,
    }
    if costs.opened is not None:
        found["a new host answers from a filter of many keys, s"] = statistics.median(costs.opened.seconds)
    judged = []
    for what, figure in found.items():
        bar, side = BARS[what]
        judged.append(Bar(what, figure, bar, figure <= bar if side == "most" else figure >= bar))
    return judged


class Reader:
    """The parent's side of a host that reads."""

    def __init__(self, about: dict[str, object]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dlbf.bench.fleet_host", json.dumps(about)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait(self) -> None:
        """Until it answers from its filter."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line != "ready\n":
            raise RuntimeError(f"a host did not begin; its process printed {line!r}")

    def end(self) -> list[int]:
        """Its figures."""
        figures: list[int] = json.loads(self.process.communicate()[0])
        return figures

    def kill(self) -> None:
        """End it at once; a second time nothing happens."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def measure(
    ports: list[int], folder: Path, n_keys: int, n_puts: int, n_reads: int, rounds: int, opened_keys: int, say: Say
) -> FleetCosts:
    """All of it, on a cluster of which these are the ports.

    Parameters
    ----------
    n_keys : int
        Keys stored before.
    n_puts : int
        Puts of each kind.
    n_reads, rounds : int
        Absent keys asked in a round, and rounds.
    opened_keys : int
        Keys of the filter that a new host loads; 0: leave that out.
    """
    client = connect(ports)
    secret = secrets.token_hex(16)
    opened = opening(client, folder, opened_keys, secret, say) if opened_keys else None
    say(f"storing {n_keys:,} keys")
    fill(client, b"bench:", n_keys)
    about = {"ports": ports, "name": "bench", "secret": secret, "lease_seconds": LEASE_SECONDS}
    say("opening the hosts")
    readers: list[Reader] = []
    try:
        with open_host(client, "bench", str(folder / "writer"), secret, "writer", LEASE_SECONDS) as guard:
            for number in range(N_READERS):
                label = f"reader {number}"
                readers.append(Reader(about | {"folder": str(folder / label), "label": label}))
            for reader in readers:
                reader.wait()
            puts = put_costs(client, guard, n_puts, say)
            paused = pauses(guard, readers, say)
            reads = read_costs(client, guard, folder, n_keys, n_reads, rounds, say)
            before = guard.traffic.n_filtered, guard.traffic.n_false_positives, guard.traffic.n_unfiltered
            r = random.Random(1)
            for _ in range(n_reads):
                guard.get(b"share %d" % r.getrandbits(60))
            after = guard.traffic.n_filtered, guard.traffic.n_false_positives, guard.traffic.n_unfiltered
            figures = [reader.end() for reader in readers]
    finally:
        for reader in readers:
            reader.kill()
    filtered, lookups = after[0] - before[0], sum(after) - sum(before)
    filtered += sum(one[1] for one in figures)
    lookups += sum(one[0] for one in figures)
    return FleetCosts(N_READERS, reads, puts, paused, filtered / lookups, lookups, opened)


def fill(client: Client, prefix: bytes, n_keys: int) -> None:
    """Store keys without a guard."""
    for start in range(0, n_keys, FILL_KEYS):
        with client.pipeline() as pipe:
            for number in range(start, min(n_keys, start + FILL_KEYS)):
                pipe.set(prefix + b"key %d" % number, VALUE)
            pipe.execute()


def spread(seconds: list[float]) -> tuple[float, float, float]:
    """The median, a tenth and nine tenths, in microseconds."""
    cuts = statistics.quantiles(seconds, n=10)
    return 1e6 * statistics.median(seconds), 1e6 * cuts[0], 1e6 * cuts[-1]


def put_costs(client: Client, guard: FleetGuard, n_puts: int, say: Say) -> Puts:
    """Puts of new keys and over existing ones beside SET, in turns."""
    times: dict[str, list[float]] = {"bare": [], "new": [], "over": []}
    numbers = iter(range(10**9))

    def run(act: Callable[[bytes, bytes], object], keys: Iterator[bytes]) -> list[float]:
        found = []
        for key in keys:
            begun = time.perf_counter()
            act(key, VALUE)
            found.append(time.perf_counter() - begun)
        return found

    for turn in range(n_puts // ROUND_PUTS + 1):
        say(f"puts: {turn * ROUND_PUTS:,} of {n_puts:,}")
        new = [b"new %d" % next(numbers) for _ in range(ROUND_PUTS)]
        old = [b"key %d" % next(numbers) for _ in range(ROUND_PUTS)]
        bare = run(client.set, (b"bench:bare %d" % next(numbers) for _ in range(ROUND_PUTS)))
        fresh = run(guard.put, iter(new))
        over = run(guard.put, (new[i] if i % 2 else new[0] for i in range(len(old))))
        if turn:  # not the first: connections are made in it
            times["bare"] += bare
            times["new"] += fresh
            times["over"] += over
    n = len(times["new"])
    return Puts(n, spread(times["bare"]), spread(times["new"]), spread(times["over"]))


def pauses(guard: FleetGuard, readers: list[Reader], say: Say) -> Paused:
    """How long a put waits when a host that reads is stopped, and the next one."""
    first: list[float] = []
    after: list[float] = []
    for turn in range(N_PAUSES):
        say(f"stopping a host: {turn + 1} of {N_PAUSES}")
        reader = readers[turn % len(readers)]
        time.sleep(LEASE_SECONDS * (0.3 + 0.17 * turn))  # at another moment of its lease each time
        reader.process.send_signal(signal.SIGSTOP)
        try:
            for times in (first, after):
                begun = time.perf_counter()
                guard.put(b"paused %d %d" % (turn, len(after)), VALUE)
                times.append(time.perf_counter() - begun)
        finally:
            reader.process.send_signal(signal.SIGCONT)
        time.sleep(LEASE_SECONDS)
    return Paused(LEASE_SECONDS, tuple(first), tuple(after))


def read_costs(
    client: Client, guard: FleetGuard, folder: Path, n_keys: int, n_reads: int, rounds: int, say: Say
) -> Reads:
    """A read of an absent key: of a guard of one host, of a host among many, and of the cluster."""
    say("absent reads")
    own = {b"key %d" % number: VALUE for number in range(n_keys)}
    r = random.Random(0)

    def absent(turn: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < n_reads:
            key = b"absent %d" % r.getrandbits(60)
            # Each guard lets others through: what is measured is the answer "absent".
            if guard.ledger.ask(key) == local.ledger.ask(key) == ABSENT:
                found.append(key)
        return found

    with Guard(own, folder / "local") as local:
        timed = side_by_side({"local": call_with_each(local.get), "host": call_with_each(guard.get)}, absent, rounds)
    trips = []
    for key in (b"bench:absent %d" % number for number in range(500)):
        begun = time.perf_counter_ns()
        client.get(key)
        trips.append(time.perf_counter_ns() - begun)
    host, beside = timed["host"], timed["local"]
    return Reads(n_keys, beside.best, host.best, statistics.median(trips), host.ratio(beside))


def opening(client: Client, folder: Path, n_keys: int, secret: str, say: Say, times: int = 3) -> Opened:
    """How soon a host answers that comes to a filter of so many keys."""
    say(f"storing {n_keys:,} keys")
    fill(client, b"large:", n_keys)
    say("making a filter of them")
    seconds = []
    with open_host(client, "large", str(folder / "large"), secret, "first", LEASE_SECONDS) as first:
        while first.state != "filtering":
            time.sleep(0.1)
        n_bytes = first.stats().filter_bytes
        for turn in range(times):
            say(f"opening a new host: {turn + 1} of {times}")
            begun = time.perf_counter()
            with open_host(client, "large", str(folder / f"large {turn}"), secret, "new", LEASE_SECONDS) as guard:
                key = b"absent"
                while not guard.ledger.is_current():
                    time.sleep(0.001)
                guard.get(key)
                seconds.append(time.perf_counter() - begun)
    return Opened(n_keys, n_bytes, tuple(seconds))
