"""``dlbf bench store``: the store beside other stores, on mixes of reads and writes like those of YCSB.

Every engine gets the same operations in the same order, in turns.  *Warm*: everything is in memory.  *Cold*: before
each turn the engine is opened anew, alone, its filter is loaded, and every page of its files is put out of memory.
"""

import gc
import importlib.metadata
import resource
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dlbf.bench.engines import ENGINES, DlbfStore, Engine, MappedStore, Operation, evict, missing
from dlbf.bench.timing import Ratio, Say, Timing

__all__ = [
    "MIXES", "Bar", "Case", "EngineFacts", "Figures", "Mix", "Turn", "Workload", "bars", "measure", "take_turn",
]  # fmt: skip

# Skew of YCSB's zipfian choice of keys.
ZIPF_EXPONENT = 0.99
# Values are cut from so many random bytes, as YCSB's are random: LevelDB and RocksDB compress their blocks, and of one
# value for all keys nothing would be left to read.
VALUE_POOL_BYTES = 1 << 20
BASELINE = "py-lmdb"
# Reads before a cold turn, so that every engine has its filter, or those of all its files, in memory.
N_PRIMING = 200
# Disk reads of this thread alone, where the system tells them apart: engines work in the background too.
WHO = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


@dataclass(frozen=True)
class Mix:
    """What share of the operations writes, and whether a write brings a new key.

    With ``inserts`` reads prefer the newest keys; else some keys are popular, wherever they are.
    """

    name: str
    writes: float
    inserts: bool
    words: str


MIXES = {
    "A": Mix("A", 0.5, False, "half reads, half overwrites"),
    "B": Mix("B", 0.05, False, "95 % reads, 5 % overwrites"),
    "C": Mix("C", 0.0, False, "reads only"),
    "D": Mix("D", 0.05, True, "95 % reads of the newest keys, 5 % new keys"),
}


class Workload:
    """Makes operations; the same ones for the same calls.

    Parameters
    ----------
    keys : sequence of bytes
        What is stored at first.
    absent : sequence of bytes
        What is asked for and never stored.
    new : iterable of bytes
        Keys that mix D inserts, in this order.
    value_bytes : int
        Length of every value; values are random, printable bytes.
    """

    def __init__(
        self, keys: Sequence[bytes], absent: Sequence[bytes], new: Iterable[bytes], value_bytes: int = 100
    ) -> None:
        self.order = list(keys)
        self.absent = absent
        self.new = iter(new)
        self.random = np.random.default_rng(1)
        self.value_bytes = value_bytes
        self.pool = bytes(self.random.integers(32, 127, VALUE_POOL_BYTES + value_bytes, dtype=np.uint8))
        self.n_first = len(self.order)
        self.popular = self.random.permutation(self.n_first)
        self.sought = self.random.permutation(len(absent))
        self.weights = {n: self._weights(n) for n in {self.n_first, len(absent)}}

    @staticmethod
    def _weights(n: int) -> npt.NDArray[np.float64]:
        weights = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
        shares: npt.NDArray[np.float64] = weights / weights[-1]
        return shares

    def _values(self, random: np.random.Generator, n: int) -> list[bytes]:
        starts = random.integers(0, VALUE_POOL_BYTES, n, endpoint=True).tolist()
        return [self.pool[start : start + self.value_bytes] for start in starts]

    def items(self) -> list[tuple[bytes, bytes]]:
        """What an engine is loaded with."""
        values = self._values(np.random.default_rng(2), self.n_first)
        return list(zip(self.order[: self.n_first], values, strict=True))

    def operations(self, mix: Mix, absent_share: float, n: int) -> list[Operation]:
        """``n`` operations; ``absent_share`` of the reads ask for keys that are not there."""
        random = self.random
        writes = random.random(n) < mix.writes
        absent = random.random(n) < absent_share
        ranks = np.searchsorted(self.weights[self.n_first], random.random(n)).tolist()
        sought = self.sought[np.searchsorted(self.weights[len(self.absent)], random.random(n))].tolist()
        popular = self.popular[ranks].tolist()
        values = self._values(random, n)
        out: list[Operation] = []
        for i in range(n):
            if writes[i] and mix.inserts:
                key = next(self.new)
                self.order.append(key)
                out.append((key, values[i]))
            elif writes[i]:
                out.append((self.order[popular[i]], values[i]))
            elif absent[i]:
                out.append((self.absent[sought[i]], None))
            elif mix.inserts:
                out.append((self.order[-1 - ranks[i]], None))
            else:
                out.append((self.order[popular[i]], None))
        return out


@dataclass
class EngineFacts:
    """What is to be said of an engine besides its times; ``error`` says why it did not run.

    ``filter_bits_per_key`` and ``filter_design`` are None where there is no filter, or they are not told.
    """

    cannot: list[str]
    error: str | None = None
    version: str | None = None
    load_us_per_key: float | None = None
    filter_bits_per_key: float | None = None
    filter_design: str | None = None

    def to_dict(self) -> dict[str, object]:
        """For JSON: without what was not measured."""
        out: dict[str, object] = {"cannot": self.cannot, "error": self.error}
        if self.version is not None:
            out["version"] = self.version
        if self.load_us_per_key is not None:
            out["load_us_per_key"] = self.load_us_per_key
        if self.error is None:
            out |= {"filter_bits_per_key": self.filter_bits_per_key, "filter_design": self.filter_design}
        return out


@dataclass(frozen=True)
class Case:
    """One mix at one temperature.

    Attributes
    ----------
    ns, pages : dict
        Engine to nanoseconds, and to pages read from disk, per operation.
    ratio : dict
        Engine to its time over that of plain py-lmdb; empty if that did not run.
    fastest_peer : str or None
        The fastest engine that is not ours.
    ratio_to_fastest : dict
        Our engines to their time over that of the fastest peer.
    """

    mix: str
    absent_share: float
    temperature: str
    ns: dict[str, float]
    ratio: dict[str, Ratio]
    fastest_peer: str | None
    ratio_to_fastest: dict[str, Ratio]
    pages: dict[str, float]


@dataclass(frozen=True)
class Figures:
    """All engines in all cases."""

    keys: int
    value_bytes: int
    operations: dict[str, int]
    rounds: int
    engines: dict[str, EngineFacts] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)


@dataclass(frozen=True)
class Bar:
    """What the project asks of a store in one case, and what was measured."""

    store: str
    mix: str
    absent_share: float
    temperature: str
    against: str
    ratio: float
    quartiles: tuple[float, float]
    at_most: float
    met: bool


@dataclass(frozen=True)
class Turn:
    """One turn of one engine: nanoseconds and 4 KiB pages read from disk per operation, reads that found something."""

    ns: float
    pages: float
    hits: int


class Runs(Protocol):
    """What operations can be run on."""

    def run(self, operations: Sequence[Operation], /) -> int: ...


def fresh(operations: Sequence[Operation]) -> list[Operation]:
    """The same keys as new objects, as they are when a request has just brought them."""
    return [(bytes(bytearray(key)), value) for key, value in operations]


def take_turn(engine: Runs, operations: Sequence[Operation], cold: bool = False) -> Turn:
    """Run the operations and measure.

    Warm operations never wait, so their time is that of the processor (with what the engine does in the background),
    which a busy machine disturbs less; cold ones do, so theirs is that of the clock on the wall.
    """
    now = time.perf_counter_ns if cold else time.process_time_ns
    own = fresh(operations)
    gc.collect()
    gc.disable()
    try:
        before = resource.getrusage(WHO)
        start = now()
        hits = engine.run(own)
        elapsed = now() - start
        after = resource.getrusage(WHO)
    finally:
        gc.enable()
    pages = (after.ru_inblock - before.ru_inblock) / 8
    return Turn(elapsed / len(own), pages / len(own), hits)


def _chill(engine: Engine, absent: Sequence[bytes]) -> None:
    """Open anew, let all of the filter be loaded by reads of absent keys, and put everything else out of memory."""
    evict(engine.folder)
    engine.open()
    engine.run([(key, None) for key in absent])
    evict(engine.folder)


def measure(
    keys: Sequence[bytes],
    absent: Sequence[bytes],
    new: Iterable[bytes],
    *,
    mixes: Sequence[str] = ("A", "B", "C", "D"),
    absent_shares: Sequence[float] = (0.0, 0.5, 0.95),
    temperatures: Sequence[str] = ("warm", "cold"),
    n_warm: int = 3000,
    n_cold: int = 2000,
    rounds: int = 15,
    value_bytes: int = 100,
    engines: Sequence[type[Engine]] = ENGINES,
    folder: Path | None = None,
    say: Say = lambda text: None,
) -> Figures:
    """Load every engine with the same keys and time it beside the others.

    Parameters
    ----------
    keys, absent, new : sequence of bytes
        See ``Workload``.
    value_bytes : int
        The same.
    mixes, absent_shares, temperatures : sequence
        The cases: all combinations.
    n_warm, n_cold : int
        Operations of one turn.
    rounds : int
        Turns of every engine in every case; the best counts.  Cold cases take at most three.
    folder : path, optional
        Where the stores are made; on a disk if ``cold`` is to mean anything.

    """
    workload = Workload(keys, absent, new, value_bytes)
    figures = Figures(len(keys), value_bytes, {"warm": n_warm, "cold": n_cold}, rounds)
    running: dict[str, Engine] = {}
    with tempfile.TemporaryDirectory(dir=folder) as top:
        try:
            for number, cls in enumerate(engines):
                say(f"loading {cls.name}")
                facts = figures.engines[cls.name] = EngineFacts(list(cls.cannot), missing(cls.distribution))
                if facts.error is None:
                    engine = _loaded(cls, Path(top) / str(number), workload, facts)
                    if engine is not None:
                        running[cls.name] = engine
            for temperature in temperatures:
                if temperature == "cold":
                    for engine in running.values():
                        engine.close()
                gc.collect()
                gc.freeze()  # else every turn would first look at millions of keys
                for mix in mixes:
                    for share in absent_shares:
                        say(f"{temperature}, mix {mix}, {share:.0%} of the reads absent")
                        figures.cases.append(
                            _case(running, workload, MIXES[mix], share, temperature, figures.operations, rounds)
                        )
        finally:
            gc.unfreeze()
            for engine in running.values():
                engine.close()
    return figures


def _loaded(cls: type[Engine], place: Path, workload: Workload, facts: EngineFacts) -> Engine | None:
    """An engine with the first keys of the workload, noted in ``facts``; None, with the reason noted, if it fails."""
    facts.version = importlib.metadata.version(cls.distribution)
    place.mkdir()
    engine = None
    try:
        engine = cls(place)
        start = time.perf_counter()
        engine.load(workload.items())
        facts.load_us_per_key = (time.perf_counter() - start) / workload.n_first * 1e6
        engine.settle(workload.absent[: len(workload.absent) // 2])
        size = engine.filter_bytes()
        facts.filter_bits_per_key = None if size is None else 8 * size / workload.n_first
        facts.filter_design = engine.filter_design()
    except Exception as error:  # a broken peer is named and left out, whatever it raises
        facts.error = f"{type(error).__name__}: {error}"
        if engine is not None:
            engine.close()
        return None
    return engine


def _case(
    running: Mapping[str, Engine], workload: Workload, mix: Mix, share: float, temperature: str,
    n_operations: Mapping[str, int], rounds: int,
) -> Case:  # fmt: skip
    """One mix at one temperature: every engine in turns."""
    cold = temperature == "cold"
    names = [name for name, engine in running.items() if mix.name in engine.mixes]
    taken: dict[str, list[Turn]] = {name: [] for name in names}
    for number in range(min(rounds, 3) if cold else rounds):
        operations = workload.operations(mix, share, n_operations[temperature])
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if cold:
                _chill(running[name], workload.absent[-N_PRIMING:])
            taken[name].append(take_turn(running[name], operations, cold))
            if cold:
                running[name].close()
        hits = {name: turns[-1].hits for name, turns in taken.items()}
        if len(set(hits.values())) > 1:
            raise RuntimeError(f"mix {mix.name}: the engines found different numbers of keys: {hits}")
    timings = {name: Timing(tuple(turn.ns for turn in turns)) for name, turns in taken.items()}
    base = timings.get(BASELINE)
    peers = [name for name in names if not name.startswith("dlbf")]
    fastest = min(peers, key=lambda name: timings[name].best, default=None)
    return Case(
        mix.name,
        share,
        temperature,
        ns={name: timing.best for name, timing in timings.items()},
        ratio={name: timing.ratio(base) for name, timing in timings.items()} if base else {},
        fastest_peer=fastest,
        ratio_to_fastest=(
            {name: timings[name].ratio(timings[fastest]) for name in names if name not in peers} if fastest else {}
        ),
        pages={name: min(turn.pages for turn in turns) for name, turns in taken.items()},
    )


def bars(cases: Sequence[Case], ours: Sequence[str] = (DlbfStore.name, MappedStore.name)) -> list[Bar]:
    """What the project asks of the store, and what the cases say, for each of ``ours``.

    Ahead of every peer where 95 % of the reads are absent (mixes B and C); at most 1.15 times py-lmdb where none is.
    """
    rows = []
    for name in ours:
        for case in cases:
            peer = case.fastest_peer
            if case.absent_share == 0.95 and case.mix in "BC" and peer and name in case.ratio_to_fastest:
                against, ratio, limit = peer, case.ratio_to_fastest[name], 1.0
            elif case.absent_share == 0.0 and name in case.ratio:
                against, ratio, limit = BASELINE, case.ratio[name], 1.15
            else:
                continue
            rows.append(
                Bar(
                    name, case.mix, case.absent_share, case.temperature, against, ratio[0], ratio[1:], limit,
                    ratio[0] <= limit,
                )
            )  # fmt: skip
    return rows
