"""``dlbf bench store``: the store beside other stores, on mixes of reads and writes like those of YCSB.

Every engine gets the same operations in the same order, in turns.  *Warm*: everything is in memory.  *Cold*: before
each turn the engine is opened anew, alone, its filter is loaded, and every page of its files is put out of memory.
"""

import gc
import importlib.metadata
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dlbf.bench.engines import ENGINES, DlbfStore, Engine, MappedStore, Operation, evict, missing
from dlbf.bench.timing import Timing

__all__ = ["MIXES", "Mix", "Workload", "bars", "measure"]

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
Say = Callable[[str], None]


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
    def _weights(n: int) -> Any:
        weights = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
        return weights / weights[-1]

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


def fresh(operations: Sequence[Operation]) -> list[Operation]:
    """The same keys as new objects, as they are when a request has just brought them."""
    return [(bytes(bytearray(key)), value) for key, value in operations]


def _run(engine: Engine, operations: Sequence[Operation], cold: bool = False) -> tuple[float, float, int]:
    """Nanoseconds and 4 KiB pages read from disk per operation, and reads that found something.

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
        found = engine.run(own)
        elapsed = now() - start
        after = resource.getrusage(WHO)
    finally:
        gc.enable()
    pages = (after.ru_inblock - before.ru_inblock) / 8
    return elapsed / len(own), pages / len(own), found


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
) -> dict[str, Any]:
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

    Returns
    -------
    dict
        ``engines`` (version, filter size, what it cannot do, or why it did not run) and ``cases``, each with the times,
        the ratios to plain py-lmdb, and the pages read.
    """
    workload = Workload(keys, absent, new, value_bytes)
    facts: dict[str, dict[str, Any]] = {}
    running: dict[str, Engine] = {}
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=folder) as top:
        try:
            for number, cls in enumerate(engines):
                fact: dict[str, Any] = {"cannot": list(cls.cannot)}
                facts[cls.name] = fact
                say(f"loading {cls.name}")
                fact["error"] = missing(cls.distribution)
                if fact["error"] is not None:
                    continue
                fact["version"] = importlib.metadata.version(cls.distribution)
                place = Path(top) / str(number)
                place.mkdir()
                try:
                    engine = cls(place)
                    running[cls.name] = engine
                    start = time.perf_counter()
                    engine.load(workload.items())
                    fact["load_us_per_key"] = (time.perf_counter() - start) / len(keys) * 1e6
                    engine.settle(absent[: len(absent) // 2])
                    size = engine.filter_bytes()
                    fact["filter_bits_per_key"] = None if size is None else 8 * size / len(keys)
                except Exception as error:  # a broken peer is named and left out, whatever it raises
                    fact["error"] = f"{type(error).__name__}: {error}"
                    if running.pop(cls.name, None) is not None:
                        engine.close()
            for temperature in temperatures:
                if temperature == "cold":
                    for engine in running.values():
                        engine.close()
                gc.collect()
                gc.freeze()  # else every turn would first look at millions of keys
                for mix in mixes:
                    for share in absent_shares:
                        say(f"{temperature}, mix {mix}, {share:.0%} of the reads absent")
                        cases.append(_case(running, workload, MIXES[mix], share, temperature, n_warm, n_cold, rounds))
        finally:
            gc.unfreeze()
            for engine in running.values():
                engine.close()
    return {
        "keys": len(keys),
        "value_bytes": value_bytes,
        "operations": {"warm": n_warm, "cold": n_cold},
        "rounds": rounds,
        "engines": facts,
        "cases": cases,
    }


def _case(
    running: dict[str, Engine], workload: Workload, mix: Mix, share: float, temperature: str, n_warm: int, n_cold: int,
    rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """One mix at one temperature: every engine in turns."""
    cold = temperature == "cold"
    names = [name for name, engine in running.items() if mix.name in engine.mixes]
    nanoseconds: dict[str, list[float]] = {name: [] for name in names}
    pages: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(min(rounds, 3) if cold else rounds):
        operations = workload.operations(mix, share, n_cold if cold else n_warm)
        answers = {}
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if cold:
                _chill(running[name], workload.absent[-N_PRIMING:])
            elapsed, read, answers[name] = _run(running[name], operations, cold)
            if cold:
                running[name].close()
            nanoseconds[name].append(elapsed)
            pages[name].append(read)
        if len(set(answers.values())) > 1:
            raise RuntimeError(f"mix {mix.name}: the engines found different numbers of keys: {answers}")
    timings = {name: Timing(tuple(values)) for name, values in nanoseconds.items()}
    base = timings.get(BASELINE)
    peers = [name for name in names if not name.startswith("dlbf")]
    fastest = min(peers, key=lambda name: timings[name].best, default=None)
    return {
        "mix": mix.name,
        "absent_share": share,
        "temperature": temperature,
        "ns": {name: timing.best for name, timing in timings.items()},
        "ratio": {name: timing.ratio(base) for name, timing in timings.items()} if base else {},
        "fastest_peer": fastest,
        "ratio_to_fastest": (
            {name: timings[name].ratio(timings[fastest]) for name in names if name not in peers} if fastest else {}
        ),
        "pages": {name: min(values) for name, values in pages.items()},
    }


def bars(figures: dict[str, Any], ours: Sequence[str] = (DlbfStore.name, MappedStore.name)) -> list[dict[str, Any]]:
    """What the project asks of the store, and what the figures say, for each of ``ours``.

    Ahead of every peer where 95 % of the reads are absent (mixes B and C); at most 1.15 times py-lmdb where none is.
    """
    rows = []
    for name in ours:
        for case in figures["cases"]:
            if case["absent_share"] == 0.95 and case["mix"] in "BC" and name in case["ratio_to_fastest"]:
                against, ratio, limit = case["fastest_peer"], case["ratio_to_fastest"][name], 1.0
            elif case["absent_share"] == 0.0 and name in case["ratio"]:
                against, ratio, limit = BASELINE, case["ratio"][name], 1.15
            else:
                continue
            rows.append(
                {
                    "store": name,
                    "mix": case["mix"],
                    "absent_share": case["absent_share"],
                    "temperature": case["temperature"],
                    "against": against,
                    "ratio": ratio[0],
                    "quartiles": ratio[1:],
                    "at_most": limit,
                    "met": ratio[0] <= limit,
                }
            )
    return rows
