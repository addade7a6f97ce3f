"""Layered filters of stores and guards: gathering the keys of the next base, making it, and when another one is due.

What a layered filter is, and why it denies no key, is in ``dlbf/kernels/layers.pxd``.

The next base is made beside reads and writes.  A builder walks through the keys as for any other filter, but only their
hashes are kept (8 bytes of each, and one for its region of the model), and operations on keys that were passed are kept
too, in order.  At the end of the walk a thread solves the base, without the GIL; then the operations follow, by the
same rules as later ones: whether the new base has a key was decided when the walk passed it, and they begin there.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dlbf.errors import StoreError
from dlbf.filters.base import Filter, secret_of
from dlbf.filters.layered import LayeredFilter
from dlbf.filters.ribbon import RibbonFilter
from dlbf.filters.ribbon_sizes import ribbon_bytes, ribbon_geometry
from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.journal import OperationLog
from dlbf.storage import generations
from dlbf.storage.observing import TOLERATED, least_rate

if TYPE_CHECKING:
    from dlbf.learned.composite import Composite

__all__ = [
    "GROWN_SHARE",
    "KEYS_AT_ONCE",
    "LEAST_KEYS",
    "REBUILT_SHARE",
    "THREAD_KEYS",
    "WITNESSES",
    "Gathered",
    "Gathering",
    "Making",
    "Plan",
    "has_room",
    "has_to_fold",
    "is_due",
    "limit_absent",
    "next_gathering",
    "quiet_changes",
    "reads_pay",
    "rebuilt_bytes",
]

# A store with fewer keys has a table: 5 KB at 1 %, of which layers would save two.
LEAST_KEYS = 4096
# Keys that may be added before the next base, as a share of those there are.  Each base reads every key once, so growth
# by a quarter reads five keys for each that is added; a store that was just rebuilt is not expected to grow soon, and
# pays for less room.
GROWN_SHARE = 0.25
REBUILT_SHARE = 0.05
# Keys that the walk for the next base passes for each one that is added meanwhile, about: it is begun so early that it
# is at its end when the tables are full (see ``commits.BUILD_KEYS_PER_OPERATION``), but not before they are half full.
PACE = 44
EARLIEST = 0.5
# Share of what is planned for that a single transaction may not pass: it brings a base of its own.
MOST_OVER = 1.5
# A base of fewer keys is made at once, in some milliseconds.
THREAD_KEYS = 1 << 16
# Share of the base's keys that may have been deleted: each of them costs a read when it is asked for.
DEAD_SHARE = 0.1
# Keys that the making of a base passes in the time of one needless read: 0.3 us for each, against some 2 us at least.
KEYS_PER_READ = 8
# Share of the base's keys that must have been deleted, or added since, before a new base can better the rate much.
LEAST_FOLDED = 0.01
# Changes of single keys between two looks at that.
MOST_QUIET = 1024
# Share of the keys that is deleted between two bases, and asked for again, above which tables that delete in place are
# the better choice: to remember them exactly costs more than the 2.2 bits per key that such tables cost.
BREAK_EVEN = 0.013
# Hashed and scored together.
KEYS_AT_ONCE = 8192
# Of these, so many are kept to ask the new base for.
WITNESSES = 4
LEAST_ABSENT_BYTES = 64 * 1024


@dataclass(frozen=True)
class Plan:
    """What a layered filter is made for.

    The rate is shared out so that the whole is smallest: with ``share`` times the keys added, that share of it goes to
    the tables.  ``pattern`` has the model and the regions of a learned base, none of which may let more than ``cap``
    pass; tables included.
    """

    fpr: float
    share: float
    secret: bytes | None
    pattern: "Composite | None" = None
    cap: float = 1.0

    @property
    def hashed_with(self) -> bytes | None:
        """The secret of the base: its pattern's own, which may be for the hash of an older release."""
        return self.secret if self.pattern is None else secret_of(self.pattern)

    @property
    def base_fpr(self) -> float:
        """Rate of the base."""
        return self.fpr / (1 + self.share)

    @property
    def added_fpr(self) -> float:
        """Rate of the tables when as many keys have been added as are planned for."""
        return self.fpr - self.base_fpr

    @property
    def base_cap(self) -> float:
        """The largest rate of a region of the base: the tables let what they let pass in every region alike."""
        return max(self.base_fpr, self.cap - self.added_fpr)

    def rates(self) -> list[float]:
        """Rate of each region of the base."""
        if self.pattern is None:
            return [self.base_fpr]
        from dlbf.learned.static import static_rates

        return static_rates(self.pattern, self.base_fpr, self.base_cap)

    def base_bytes(self, n_keys: int) -> int:
        """Bytes of a base of so many keys."""
        if self.pattern is None:
            return int(ribbon_bytes(ribbon_geometry(n_keys, self.base_fpr)))
        from dlbf.learned.static import static_bytes

        return static_bytes(self.pattern, self.rates(), n_keys)

    def make_base(self, hashes: npt.NDArray[np.uint64], regions: npt.NDArray[np.uint8]) -> Filter:
        """The base of the keys with these hashes, in these regions of the model if there is one; uses both up."""
        if self.pattern is None:
            return RibbonFilter.build_from_hashes(hashes, self.base_fpr, secret=self.secret)
        from dlbf.learned.static import build_base

        return build_base(self.pattern, self.rates(), self.cap, hashes, regions)


# Hashes of keys, their regions if there is a model, and some of the keys themselves.
Gathered = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8], list[bytes]]


class Gathering:
    """The keys of the next base as far as a walk has met them, and what has happened to these since.

    It takes what a builder gives to an empty filter; ``make_base`` and ``finish`` make the filter of it.
    """

    def __init__(self, plan: Plan, n_keys: int) -> None:
        self.plan = plan
        self._expected = n_keys
        self.clear()

    def clear(self) -> None:
        """Forget everything, and begin again; what a thread is making of it goes on with its own."""
        # A little more than expected: to make them larger costs as much memory again for a moment.
        self._begin(int(1.03 * self._expected) + 64)

    def _begin(self, room: int) -> None:
        self._hashes: npt.NDArray[np.uint64] = np.empty(room, dtype=np.uint64)
        self._regions: npt.NDArray[np.uint8] = np.empty(room if self.plan.pattern is not None else 0, dtype=np.uint8)
        self._n_keys = 0
        self._n_there: int | None = None  # where that is not the number of those gathered
        self._pending: list[tuple[bool, bytes]] = []
        self._witnesses: list[bytes] = []

    def __len__(self) -> int:
        return self._n_keys

    def update(self, keys: Iterable[bytes]) -> None:
        """Keys that the walk has met."""
        keys, pattern = iter(keys), self.plan.pattern
        while part := list(islice(keys, KEYS_AT_ONCE)):
            regions = np.empty(0, np.uint8) if pattern is None else pattern.region_of(part)
            self.take((hash64_many(part, self.plan.hashed_with), regions, part[:: len(part) // WITNESSES + 1]))

    def take(self, gathered: Gathered) -> None:
        """The same of keys that were gathered elsewhere."""
        hashes, regions, witnesses = gathered
        if self.plan.pattern is not None and len(regions) != len(hashes):
            raise StoreError(f"expected a region of each of {len(hashes)} keys, found {len(regions)}")
        self._witnesses += witnesses
        end = self._n_keys + len(hashes)
        if end > len(self._hashes):
            room = end + end // 8 + 64
            self._hashes.resize(room, refcheck=False)
            if self.plan.pattern is not None:
                self._regions.resize(room, refcheck=False)
        self._hashes[self._n_keys : end] = hashes
        if self.plan.pattern is not None:
            self._regions[self._n_keys : end] = regions
        self._n_keys = end

    def correct_count(self, n_keys: int) -> None:
        """So many keys there are at the end of the walk, of which some were gathered twice, or are gone since."""
        self._n_there = n_keys

    def add(self, key: bytes) -> None:
        """A key that was passed without being there is there now."""
        self._pending.append((False, key))

    def remove(self, key: bytes) -> None:
        """A key that was there when it was passed, or was added since, is not there any more."""
        self._pending.append((True, key))

    def make_base(self) -> Filter:
        """The base; takes a tenth of a microsecond for each key, without the GIL."""
        return self.plan.make_base(self._hashes[: self._n_keys], self._regions[: self._n_keys])

    def finish(self, base: Filter) -> LayeredFilter:
        """The filter, with all that has happened meanwhile; the hashes are given back before it is written down."""
        plan, pending = self.plan, self._pending
        if not base.contains_many(self._witnesses).all():
            # Of a base that hashes or routes keys in another way than they were gathered none would pass.
            raise StoreError("a new base denies keys that it was made of; the old filter stays. Please report this")
        n_added = sum(not removal for removal, _ in pending)
        filter = LayeredFilter.over(base, plan.fpr, max(int(plan.share * len(self)), 2 * n_added), plan.added_fpr)
        if self._n_there is None:
            filter.correct_count(len(self))
        else:
            filter.correct_count(max(self._n_there, len(base)), self._n_there)
        for removal, key in pending:
            if not removal:
                filter.add(key)
                continue
            try:
                filter.remove(key)
            except KeyError:
                raise StoreError("the filter does not hold a key that the journal removes") from None
        self._begin(0)
        return filter

    @property
    def pattern(self) -> "Composite | None":
        """Whose model and regions the base will have; None: neither."""
        return self.plan.pattern

    @property
    def nbytes(self) -> int:
        """Bytes that the filter will have when it is made, before the first key is added."""
        return self.plan.base_bytes(self._expected)

    @property
    def capacity(self) -> int:
        """Keys it is planned for."""
        return self._expected + int(self.plan.share * self._expected)

    def enlarged(self, room: float) -> "Gathering":
        """An empty one for a filter with ``room`` times the room."""
        return Gathering(replace(self.plan, share=room * self.plan.share), self._expected)


def next_gathering(before: Filter | None, n_keys: int, fpr: float, secret: bytes | None) -> Gathering | None:
    """What gathers the layered filter that follows ``before`` in a store that has grown or shrunk to ``n_keys``; None
    if a table will do."""
    if n_keys < LEAST_KEYS:
        return None
    plan = Plan(fpr, GROWN_SHARE, secret)
    pattern = generations.composite_of(before)
    if pattern is None:
        return Gathering(plan, n_keys)
    from dlbf.learned.static import can_be_static, static_cap

    if not can_be_static(pattern):
        return None
    learned = replace(plan, pattern=pattern, cap=static_cap(pattern))
    return Gathering(learned if learned.base_bytes(n_keys) < plan.base_bytes(n_keys) else plan, n_keys)


def rebuilt_bytes(filter: LayeredFilter, n_keys: int, fpr: float, secret: bytes | None) -> int:
    """Bytes of a filter like this one when a rebuild has made it for ``n_keys``."""
    plan = Plan(fpr, REBUILT_SHARE, secret)
    pattern = generations.composite_of(filter)
    if pattern is None:
        return plan.base_bytes(n_keys)
    from dlbf.learned.static import static_cap

    return min(plan.base_bytes(n_keys), replace(plan, pattern=pattern, cap=static_cap(pattern)).base_bytes(n_keys))


class Making:
    """A base that is being made, in a thread of its own if it is ``large``."""

    def __init__(self, make: Callable[[], Filter], large: bool) -> None:
        self._base: Filter | None = None
        self._error: BaseException | None = None
        self._make = make
        self._thread = threading.Thread(target=self._run, name="dlbf-base", daemon=True)
        try:
            if large:
                self._thread.start()
        except RuntimeError:  # there are too many threads, or the interpreter is about to end
            large = False
        if not large:
            self._run()

    def _run(self) -> None:
        try:
            self._base = self._make()
        except BaseException as error:
            self._error = error

    def ready(self, patience_seconds: float | None = 0.0) -> Filter | None:
        """The base, if it is made within so many seconds (None: however long that takes)."""
        if self._thread.is_alive():
            self._thread.join(patience_seconds)
        if self._error is not None:
            raise self._error
        return self._base


def limit_absent(filter: LayeredFilter, n_bytes: int | None) -> None:
    """Let the filter remember so many bytes of absent keys; None: 64 KiB, or a tenth of the filter if that is more."""
    if n_bytes is None:
        n_bytes = max(LEAST_ABSENT_BYTES, (filter.base_bytes + filter.delta_bytes) // 10)
    filter.absent.set_limit(n_bytes)


def churn(n_added: int, n_deleted: int, n_keys: int) -> float:
    """Share of the keys that is deleted between two bases, from what was added and deleted since the last rebuild."""
    n_bases = max(1.0, n_added / max(1.0, REBUILT_SHARE * n_keys))
    return n_deleted / max(1, n_keys) / n_bases


# --- when the next base is due


def _most_added(filter: LayeredFilter) -> int:
    return max(int(EARLIEST * filter.planned_added), filter.planned_added - len(filter) // PACE)


def _most_dead(filter: LayeredFilter) -> int:
    return max(0, int(DEAD_SHARE * filter.base_keys) - 1)


def is_due(filter: LayeredFilter) -> bool:
    """Whether the next base should be begun: the tables are nearly full, or many keys of the base are gone."""
    return filter.n_added > _most_added(filter) or filter.dead > _most_dead(filter)


def quiet_changes(filter: LayeredFilter) -> int:
    """How many changes of one key may follow before that, or before what is read should be looked at."""
    return max(0, min(_most_added(filter) - filter.n_added, _most_dead(filter) - filter.dead, MOST_QUIET))


def has_to_fold(filter: LayeredFilter) -> bool:
    """Whether so many keys of the base are gone, or were added since, that a new base would let fewer pass."""
    return filter.dead + filter.n_added >= max(1, LEAST_FOLDED * filter.base_keys)


def reads_pay(filter: LayeredFilter, n_absent: int, n_needless: int, fpr: float) -> bool:
    """Whether needless reads make the next base due, long before its tables are full or many of its keys are gone.

    Three things must be so.  The rate is surely above the target.  A new base has something to fold in, for nothing
    else of it would differ.  And what was read beyond the target has cost as much as a new base costs: so, whoever asks
    for what, making bases never costs more than the reads there were, and none follows another at once.
    """
    if KEYS_PER_READ * (n_needless - fpr * n_absent) < len(filter) or not has_to_fold(filter):
        return False
    return least_rate(n_absent, n_needless) > TOLERATED * fpr


def has_room(filter: LayeredFilter, operations: OperationLog) -> bool:
    """Whether the filter can take a transaction and keep about its rate.

    One that adds too much, or that by itself deletes a good part of what may be deleted, brings a base of its own:
    another commit, which would make it, may be a day away.
    """
    most = _most_dead(filter)
    if operations.n_removed > EARLIEST * most and filter.dead + operations.n_removed > most:
        return False
    return filter.n_added + operations.n_added <= MOST_OVER * filter.planned_added
