"""``dlbf bench replay``: a block list's history through a store, with traffic and rebuilds in between.

Each batch of the history is one transaction: keys leave the list, keys come (back).  Then all keys of the batch and a
sample of the others are looked up, absent keys are asked for, and the store is rebuilt if it says that it is time.

**How many absent keys.**  The bar is 1.5 times the target t, for the rate that is seen, without any allowance.  A store
whose true rate is 1.2 t should pass all of 2,000 batches but once in several hundred runs: the count of q lookups has a
mean of 1.2 t q and a standard deviation of sqrt(1.2 t q); q = 300 / t puts the bar 4.7 of those above the mean.
"""

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dlbf.bench.data import read_named
from dlbf.datasets import listed_urls, ordinary_urls

if TYPE_CHECKING:
    from dlbf.storage import Store

__all__ = ["Change", "Replay", "Row", "Summary", "made_trace", "read_trace", "replay"]

BAR = 1.5
EXPECTED_FALSE_POSITIVES = 300
SAMPLE_OF_LIVE_KEYS = 2000
ABSENT_PER_CALL = 10_000


@dataclass(frozen=True)
class Change:
    """One batch of the history: first keys are removed, then keys are added."""

    when: str
    removed: list[bytes]
    added: list[bytes]


@dataclass(frozen=True)
class Row:
    """What was seen after one batch; ``design`` is that of the filter which answered the next."""

    when: str
    added: int
    removed: int
    live: int
    missed: int
    undead: int
    queries: int
    false_positives: int
    removed_passing: int
    filter_bytes: int
    model_bytes: int
    state: str
    design: str
    rebuilt: str
    rebuild_seconds: float

    @property
    def fpr(self) -> float:
        """Rate of false positives seen."""
        return self.false_positives / self.queries if self.queries else math.nan

    @property
    def bits_per_key(self) -> float:
        """Bits of filter and model per live key."""
        return 8 * (self.filter_bytes + self.model_bytes) / self.live if self.live else math.nan


@dataclass(frozen=True)
class Summary:
    """The figures of a whole history."""

    batches: int
    insertions: int
    deletions: int
    reinsertions: int
    most_live_keys: int
    live_keys_at_end: int
    missed_keys: int
    absent_lookups: int
    fpr_target: float
    fpr_overall: float
    fpr_worst_batch: float
    batches_above_bar: int
    deletability: float
    bits_per_live_key: float
    bits_per_live_key_at_end: float
    rebuilds: int
    rebuild_seconds: float
    seconds: float
    batches_by_design: dict[str, int]
    ok: bool
    problems: list[str]


@dataclass
class Replay:
    """A whole history.

    Attributes
    ----------
    rows : list of Row
        One per batch.
    problems : list of str
        What must not be: missed keys, removed keys that are still there, a rate above the bar, a failed verification.
    """

    fpr_target: float
    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    reinserted: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def summary(self) -> Summary:
        """The figures of the whole history."""
        rows = self.rows
        asked = [row for row in rows if row.queries]
        live = sum(row.live for row in rows)
        removed = sum(row.removed for row in rows)
        return Summary(
            batches=len(rows),
            insertions=sum(row.added for row in rows),
            deletions=removed,
            reinsertions=self.reinserted,
            most_live_keys=max((row.live for row in rows), default=0),
            live_keys_at_end=rows[-1].live if rows else 0,
            missed_keys=sum(row.missed for row in rows),
            absent_lookups=sum(row.queries for row in rows),
            fpr_target=self.fpr_target,
            fpr_overall=sum(row.false_positives for row in asked) / max(1, sum(row.queries for row in asked)),
            fpr_worst_batch=max((row.fpr for row in asked), default=math.nan),
            batches_above_bar=sum(row.fpr > BAR * self.fpr_target for row in asked),
            deletability=1 - sum(row.removed_passing for row in rows) / max(1, removed),
            bits_per_live_key=sum(8 * (row.filter_bytes + row.model_bytes) for row in rows) / max(1, live),
            bits_per_live_key_at_end=rows[-1].bits_per_key if rows else math.nan,
            rebuilds=sum(bool(row.rebuilt) for row in rows),
            rebuild_seconds=sum(row.rebuild_seconds for row in rows),
            seconds=self.seconds,
            batches_by_design=dict(Counter(row.design for row in rows)),
            ok=self.ok,
            problems=self.problems,
        )

    def to_dict(self) -> dict[str, object]:
        """Everything, for a machine (JSON: NaN is None)."""
        rows = [asdict(row) | {"fpr": row.fpr, "bits_per_key": row.bits_per_key} for row in self.rows]
        return _without_nan(asdict(self.summary())) | {"rows": list(map(_without_nan, rows))}


def _without_nan(figures: dict[str, object]) -> dict[str, object]:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in figures.items()}


# --- histories


def read_trace(folder: Path) -> tuple[list[Change], list[bytes]]:
    """The real history in a folder (see ``dlbf.bench.data``), and keys that never were on the list, shuffled.

    ``trace.urls.malicious.tsv`` has a line per batch: time, name, removed, added; the latter two are differences of
    ascending line numbers, from 1, of ``urls.malicious.txt``.
    """
    keys = read_named(folder, "urls.malicious.txt")

    def named(differences: bytes) -> list[bytes]:
        at, found = 0, []
        for difference in differences.split():
            at += int(difference)
            found.append(keys[at - 1])
        return found

    changes = []
    for line in read_named(folder, "trace.urls.malicious.tsv"):
        when, _, removed, added = line.split(b"\t")
        changes.append(Change(when.decode(), named(removed), named(added)))
    absent = read_named(folder, "urls.benign.txt")
    random.Random("absent").shuffle(absent)
    return changes, absent


def made_trace(n_batches: int, n_keys: int, seed: int = 0) -> tuple[list[Change], list[bytes]]:
    """A history made here, as lumpy as a real one: keys stay for some batches, some come back, once half vanish.

    Parameters
    ----------
    n_batches : int
        Length of the history.
    n_keys : int
        Different keys in it.
    seed : int
        Same seed, same history.
    """
    rng = random.Random(f"trace {seed}")
    fresh = iter(listed_urls(n_keys, seed))
    live: dict[bytes, int] = {}
    former: dict[bytes, None] = {}
    vanished: list[bytes] = []
    changes = []
    for number in range(n_batches):
        removed = [key for key, until in live.items() if until <= number]
        returning, vanished = vanished, []
        if number == n_batches // 2:
            vanished = [key for key, until in live.items() if until > number][::2]
            removed += vanished
        for key in removed:
            del live[key]
        # The first batch brings a fifth of all keys, a later one in twenty a burst.
        share = n_keys / 5 if number == 0 else 0.8 * n_keys / n_batches
        added = _take(fresh, int(share * (3 if rng.random() < 0.05 else 1)))
        returning += rng.sample(list(former), min(len(former), len(added) // 2))
        added = list(dict.fromkeys(added + returning))
        for key in added:
            live[key] = number + 1 + int(rng.expovariate(1 / 12))
            former.pop(key, None)
        former |= dict.fromkeys(removed)
        changes.append(Change(f"batch {number}", removed, added))
    return changes, list(ordinary_urls(max(100_000, n_keys), seed))


def _take(source: Iterator[bytes], n: int) -> list[bytes]:
    return [key for key, _ in zip(source, range(n), strict=False)]


# --- replaying


def replay(
    path: Path,
    changes: Sequence[Change],
    absent: Sequence[bytes],
    *,
    fpr: float = 0.01,
    n_queries: int | None = None,
    design: str = "auto",
    model: str = "auto",
    rebuild: bool = True,
    progress: Callable[[int, Row], None] | None = None,
) -> Replay:
    """Drive a new store through a history and look at it after every batch.

    Parameters
    ----------
    path : Path
        Where to make the store.
    changes : sequence of Change
        The history.
    absent : sequence of bytes
        Keys that are never stored; they are asked for in turn.
    fpr : float
        Target rate.
    n_queries : int, optional
        Absent keys asked for after each batch; by default enough to see the bar passed, see the module.
    design, model : str
        For ``dlbf.storage.Store.rebuild``.
    rebuild : bool
        Rebuild when the store says so; if False, never.
    progress : callable, optional
        Told the number of batches done and the last row.
    """
    from dlbf.storage import Store

    n_queries = math.ceil(EXPECTED_FALSE_POSITIVES / fpr) if n_queries is None else n_queries
    out = Replay(fpr)
    rng = random.Random("live keys to look up")
    live = _LiveKeys()
    ever: set[bytes] = set()
    traffic = _Traffic(absent)
    started = time.perf_counter()
    with Store(path, fpr, sync="none") as store:
        for number, change in enumerate(changes):
            with store.write() as txn:
                for key in change.removed:
                    txn.delete(key)
                for key in change.added:
                    txn.put(key, change.when.encode())
            live.change(change)
            out.reinserted += sum(key in ever for key in change.added)
            ever.update(change.added)
            present = change.added + live.sample(rng, SAMPLE_OF_LIVE_KEYS)
            missed = _count_absent(store, present)
            gone = [key for key in change.removed if key not in live]
            before = store.stats().filtered
            undead = len(gone) - _count_absent(store, gone)
            removed_passing = len(gone) - (store.stats().filtered - before)
            false_positives = _ask(store, traffic, n_queries)
            rebuilt, seconds = _rebuild_if_needed(store, design, model) if rebuild else ("", 0.0)
            stats = store.stats()
            row = Row(
                change.when, len(change.added), len(change.removed), len(live), missed, undead, n_queries,
                false_positives, removed_passing, stats.filter_bytes, stats.model_bytes, stats.state, stats.design,
                rebuilt, seconds,
            )  # fmt: skip
            out.rows.append(row)
            out.problems += _problems(number, row, fpr, stats.keys)
            if progress is not None:
                progress(number + 1, row)
        missed = _count_absent(store, live.keys)
        if missed:
            out.problems.append(f"at the end: {missed} of {len(live)} live keys are not found")
        if dict(store.items()).keys() != set(live.keys):
            out.problems.append("at the end: the keys of the store are not those of the list")
        verified = store.verify()
        out.problems += [f"at the end: {problem}" for problem in verified.problems]
    out.seconds = time.perf_counter() - started
    return out


def _problems(number: int, row: Row, fpr: float, n_keys: int) -> list[str]:
    found = []
    where = f"batch {number} ({row.when})"
    if row.missed:
        found.append(f"{where}: {row.missed} stored keys were not found")
    if row.undead:
        found.append(f"{where}: {row.undead} removed keys were found")
    if row.state != "filtering":
        found.append(f"{where}: the store is read without its filter")
    if n_keys != row.live:
        found.append(f"{where}: {n_keys} keys in the store, {row.live} on the list")
    if row.queries and row.fpr > BAR * fpr:
        found.append(f"{where}: {row.fpr:.3%} false positives seen, at most {BAR * fpr:.3%} expected")
    return found


class _LiveKeys:
    """The list as it is now, with quick sampling."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self._place: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, key: bytes) -> bool:
        return key in self._place

    def change(self, change: Change) -> None:
        for key in change.removed:
            at = self._place.pop(key)
            last = self.keys.pop()
            if last != key:
                self.keys[at] = last
                self._place[last] = at
        for key in change.added:
            if key not in self._place:
                self._place[key] = len(self.keys)
                self.keys.append(key)

    def sample(self, rng: random.Random, n: int) -> list[bytes]:
        return rng.sample(self.keys, min(n, len(self.keys)))


class _Traffic:
    """Absent keys in turn, over and over."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise ValueError("no absent keys to ask for")
        self._keys = keys
        self._at = 0

    def next(self, n: int) -> list[bytes]:
        part = list(self._keys[self._at : self._at + n])
        self._at = (self._at + n) if self._at + n < len(self._keys) else 0
        return part


def _ask(store: "Store", traffic: _Traffic, n: int) -> int:
    """Ask for ``n`` absent keys, nine in ten in batches and the others one by one; returns how many passed."""
    before = store.stats().filtered
    left = n
    while left > 0:
        part = traffic.next(min(left, ABSENT_PER_CALL))
        left -= len(part)
        singles = len(part) // 10
        for key in part[:singles]:
            store.get(key)
        store.get_many(part[singles:])
    # Not the store's count of false positives: a store that reads without its filter lets everything through.
    return n - int(store.stats().filtered - before)


def _count_absent(store: "Store", keys: Iterable[bytes]) -> int:
    return sum(value is None for value in store.get_many(list(keys)))


def _rebuild_if_needed(store: "Store", design: str, model: str) -> tuple[str, float]:
    """Why the store was rebuilt, "" if it was not, and how long that took."""
    started = time.perf_counter()
    report = store.rebuild(design=design, model=model, if_needed=True)
    return (str(report.reason) or "due", time.perf_counter() - started) if report.done else ("", 0.0)
