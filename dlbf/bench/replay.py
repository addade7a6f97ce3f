"""``dlbf bench replay``: a block list's history through a store, with traffic and rebuilds in between.

Each batch of the history is one transaction: keys leave the list, keys come (back).  Then all keys of the batch and a
sample of the others are looked up, absent keys are asked for, and the store is rebuilt if it says that it is time.

**How many absent keys.**  The bar is 1.5 times the target t, for the rate that is seen, without any allowance.  A store
whose true rate is 1.2 t should pass all of 2,000 batches but once in several hundred runs: the count of q lookups has a
mean of 1.2 t q and a standard deviation of sqrt(1.2 t q); q = 300 / t puts the bar 4.7 of those above the mean.

**Keys nobody asked the store for.**  What a store is asked for it learns from and remembers.  So a third of the absent
keys is kept from it: its filter alone is asked for those.  Their rate over any ten batches in a row may be 1.05 times
the target; ten batches have 5,000 / t of them, so a store that keeps to the target is 3.5 deviations below that.
"""

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from dlbf.bench.histories import Change
from dlbf.bench.results import Bar

if TYPE_CHECKING:
    from dlbf.storage import Store
    from dlbf.storage.report import NeedlessReads

__all__ = ["FORCED", "Replay", "Row", "Summary", "replay", "worst_stretch"]

BAR = 1.5
EXPECTED_FALSE_POSITIVES = 300
# For the keys that are asked of the filter alone: times the target, over so many batches, so many of them in each.
MOST_PASSING = 1.05
STRETCH = 10
UNSEEN_EXPECTED = 500
# Designs that a store is given before its history begins to count, because it would choose for itself.
FORCED = ("layers", "tables")
SAMPLE_OF_LIVE_KEYS = 2000
ABSENT_PER_CALL = 10_000


@dataclass(frozen=True)
class Row:
    """What was seen after one batch; ``design`` is that of the filter which answered the next.

    Attributes
    ----------
    false_positives : int
        Needless reads among ``queries``: absent keys that the store looked up in its data.
    unseen, unseen_passing : int
        Absent keys that the store never met, asked of its filter alone; how many passed.
    ordinary, deleted, repeated : int
        Needless reads of the whole batch by cause, see ``dlbf.storage.report.NeedlessReads``.
    remembered : int
        Questions that would have cost such a read, were the key not known to be absent.
    absent_bytes : int
        Of ``filter_bytes``, the keys known to be absent.
    """

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
    unseen: int = 0
    unseen_passing: int = 0
    ordinary: int = 0
    deleted: int = 0
    repeated: int = 0
    remembered: int = 0
    absent_bytes: int = 0

    @property
    def fpr(self) -> float:
        """Rate of needless reads seen."""
        return self.false_positives / self.queries if self.queries else math.nan

    @property
    def unseen_fpr(self) -> float:
        """Rate at which the filter lets pass keys that the store never met."""
        return self.unseen_passing / self.unseen if self.unseen else math.nan

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
    fpr_unseen: float
    fpr_unseen_worst: float
    needless_reads: dict[str, int]
    deletability: float
    bits_per_live_key: float
    bits_per_live_key_at_end: float
    bits_remembered: float
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
            fpr_unseen=sum(row.unseen_passing for row in rows) / max(1, sum(row.unseen for row in rows)),
            fpr_unseen_worst=worst_stretch(rows),
            needless_reads={
                cause: sum(getattr(row, cause) for row in rows)
                for cause in ("ordinary", "deleted", "repeated", "remembered")
            },
            deletability=1 - sum(row.removed_passing for row in rows) / max(1, removed),
            bits_per_live_key=sum(8 * (row.filter_bytes + row.model_bytes) for row in rows) / max(1, live),
            bits_per_live_key_at_end=rows[-1].bits_per_key if rows else math.nan,
            bits_remembered=sum(8 * row.absent_bytes for row in rows) / max(1, live),
            rebuilds=sum(bool(row.rebuilt) for row in rows),
            rebuild_seconds=sum(row.rebuild_seconds for row in rows),
            seconds=self.seconds,
            batches_by_design=dict(Counter(row.design for row in rows)),
            ok=self.ok,
            problems=self.problems,
        )

    def bars(self, store: str) -> list[Bar]:
        """What is asked of a store at every moment of its history."""
        figures = self.summary()
        passing = figures.fpr_unseen_worst / self.fpr_target
        return [
            Bar(store, "keys missed", figures.missed_keys, 0),
            Bar(store, "worst batch, needless reads over the target", figures.fpr_worst_batch / self.fpr_target, BAR),
            Bar(store, f"worst {STRETCH} batches, rate of unseen keys over the target", passing, MOST_PASSING),
        ]

    def to_dict(self) -> dict[str, object]:
        """Everything, for a machine (JSON: NaN is None)."""
        rows = [
            asdict(row) | {"fpr": row.fpr, "unseen_fpr": row.unseen_fpr, "bits_per_key": row.bits_per_key}
            for row in self.rows
        ]
        return _without_nan(asdict(self.summary())) | {"rows": list(map(_without_nan, rows))}


def worst_stretch(rows: Sequence[Row], length: int = STRETCH) -> float:
    """The highest rate of unseen keys over so many batches in a row; over all of them if there are fewer."""
    passing = [0, *accumulate(row.unseen_passing for row in rows)]
    asked = [0, *accumulate(row.unseen for row in rows)]
    length = min(length, len(rows))
    rates = [
        (passing[end] - passing[end - length]) / (asked[end] - asked[end - length])
        for end in range(max(1, length), len(rows) + 1)
        if asked[end] > asked[end - length]
    ]
    return max(rates, default=math.nan)


def _without_nan(figures: dict[str, object]) -> dict[str, object]:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in figures.items()}


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
        Keys that are never stored: the first third is kept from the store, the others are asked for in turn.
    fpr : float
        Target rate.
    n_queries : int, optional
        Absent keys asked for after each batch; by default enough to see the bar passed, see the module.
    design, model : str
        For ``dlbf.storage.Store.rebuild``; with one of ``FORCED`` the store is rebuilt after the first batch.
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
    kept = len(absent) // 3
    traffic = _Traffic(absent[kept:])
    unseen = _Traffic(absent[:kept] or absent)
    n_unseen = min(math.ceil(UNSEEN_EXPECTED / fpr), len(unseen))
    started = time.perf_counter()
    with Store(path, fpr, sync="none") as store:
        for number, change in enumerate(changes):
            with store.write() as txn:
                for key in change.removed:
                    txn.delete(key)
                for key in change.added:
                    txn.put(key, change.when.encode())
            if number == 0 and rebuild and design in FORCED:
                store.rebuild(design=design, model=model)
            live.change(change)
            out.reinserted += sum(key in ever for key in change.added)
            ever.update(change.added)
            seen = _look(store, change, live, rng, traffic, n_queries)
            passing = _passing(store, unseen.next(n_unseen))
            rebuilt, seconds = _rebuild_if_needed(store, design, model) if rebuild else ("", 0.0)
            stats = store.stats()
            row = Row(
                change.when, len(change.added), len(change.removed), len(live), seen.missed, seen.undead, n_queries,
                seen.false_positives, seen.removed_passing, stats.filter_bytes, stats.model_bytes, stats.state,
                stats.design, rebuilt, seconds, n_unseen, passing, seen.reads.ordinary, seen.reads.deleted,
                seen.reads.repeated, seen.reads.spared, stats.layers.absent_bytes if stats.layers else 0,
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


@dataclass(frozen=True)
class _Seen:
    """What reading a store after a batch has shown."""

    missed: int
    undead: int
    removed_passing: int
    false_positives: int
    reads: "NeedlessReads"


def _look(
    store: "Store", change: Change, live: "_LiveKeys", rng: random.Random, traffic: "_Traffic", n_queries: int
) -> _Seen:
    """Look up the keys of a batch, a sample of the others, the removed ones, and absent ones."""
    reads = store.stats().needless_reads
    missed = _count_absent(store, change.added + live.sample(rng, SAMPLE_OF_LIVE_KEYS))
    gone = [key for key in change.removed if key not in live]
    before = store.stats().filtered
    undead = len(gone) - _count_absent(store, gone)
    removed_passing = len(gone) - (store.stats().filtered - before)
    false_positives = _ask(store, traffic, n_queries)
    after = store.stats().needless_reads
    causes = {name: value - getattr(reads, name) for name, value in vars(after).items()}
    return _Seen(missed, undead, removed_passing, false_positives, replace(after, **causes))


def _passing(store: "Store", absent: Sequence[bytes]) -> int:
    """How many keys that the store never met its filter lets pass: all of them where there is none to ask."""
    filter = store.ledger.filter
    return len(absent) if filter is None else int(filter.contains_many(absent).sum())


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

    def __len__(self) -> int:
        return len(self._keys)

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
