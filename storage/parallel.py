"""Gathering the keys of the next base by several processes, each of which scans a part of them: ``rebuild(on=...)``.

What comes of a part are the hashes of its keys, and their regions of the model, nine bytes for each key; the base is
made of them as of any others.  The parts are scanned without a common view, each in views of its own.  Why nothing is
missed:

- The position in the log is taken before any part is begun.  A key that was there then, and that no record names until
  the scan is at its end, is there for every part, and one of them meets it.
- Of keys that records name meanwhile nobody knows what a part has seen.  They are kept, and at the end the data are
  asked for each, in a view that has all of these records and no more: those that are there are taken in.

So the base has all keys there are in that view.  It may have more, which were deleted meanwhile: an entry for nothing,
that stays until the next base.  From then on every record is followed, as after any other walk.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dlbf.errors import StoreError
from dlbf.filters.base import Filter
from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.journal import operations
from dlbf.storage import steps
from dlbf.storage.build import POLL_SECONDS, Builder, LayeredBuilder
from dlbf.storage.commits import Commits
from dlbf.storage.layers import KEYS_AT_ONCE, THREAD_KEYS, WITNESSES, Gathered, Gathering, Making
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.log import Log, Record
from dlbf.storage.source import Part, Parts

if TYPE_CHECKING:
    from dlbf.learned.composite import Composite

__all__ = ["NewBuilder", "builders_on", "check_on", "why_alone"]

NewBuilder = Callable[[Filter | Gathering], Builder[Txn]]

# Parts for each worker: keys are not spread evenly over the parts, and who is done takes the next one.
PARTS_OF_A_WORKER = 4
# Where nobody knows how many workers there are.
PARTS = 32


@dataclass(frozen=True)
class Task:
    """A part, and what its keys are scored by; ``router`` is the bytes of a filter with the model and no keys."""

    part: Part
    secret: bytes | None
    router: bytes | None


def gather_part(task: Task) -> Gathered:
    """What the next base is made of, of one part; run by a worker."""
    router: Composite | None = None
    if task.router is not None:
        from dlbf.learned import LearnedFilter

        router = LearnedFilter.from_bytes(task.router, task.secret)
    hashes, regions, witnesses = [np.empty(0, np.uint64)], [np.empty(0, np.uint8)], list[bytes]()
    for keys in task.part.batches(KEYS_AT_ONCE):
        witnesses += keys[:: len(keys) // WITNESSES + 1]
        hashes.append(hash64_many(keys, task.secret))
        if router is not None:
            regions.append(router.region_of(keys))
    return np.concatenate(hashes), np.concatenate(regions), witnesses[:: len(witnesses) // 1024 + 1]


class Scan:
    """Parts that workers scan, watched by a thread."""

    def __init__(self, on: object, tasks: Sequence[Task]) -> None:
        self._on, self._tasks = on, tasks
        self._found: list[Gathered] = []
        self._error: BaseException | None = None
        self._dropped = False
        self._thread = threading.Thread(target=self._run, name="dlbf-scan", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from dlbf.build.workers import workers_on

        try:
            with workers_on(*_asked(self._on)) as workers:
                for _, found in workers.run(gather_part, self._tasks):
                    if self._dropped:
                        return
                    self._found.append(found)
        except BaseException as error:
            self._error = error

    def ready(self, patience_seconds: float | None) -> list[Gathered] | None:
        """What all parts gave, if that is there within so many seconds (None: however long it takes)."""
        self._thread.join(patience_seconds)
        if self._thread.is_alive():
            return None
        if self._error is not None:
            raise StoreError(f"the scan in parts failed; the old filter stays: {self._error}") from self._error
        return self._found

    def drop(self) -> None:
        """Nobody waits for it any more: no more parts are waited for, once that under way is done."""
        self._dropped = True


class PartsBuilder(LayeredBuilder[Txn]):
    """Has the parts scanned, sets aside the keys that records name meanwhile, and asks for these at the end."""

    def __init__(self, log: Log[Txn], gathering: Gathering, start: Callable[[], Scan], parts: Parts[Txn]) -> None:
        super().__init__(log, gathering, lambda txn, position: iter(()))
        self._start, self._parts = start, parts
        self._scan: Scan | None = None
        self._scanned = False
        self._touched: set[bytes] = set()

    def restart(self) -> None:
        """Begin again."""
        super().restart()
        self.drop()
        self._scan, self._scanned, self._touched = None, False, set()

    def drop(self) -> None:
        """Let go of the workers."""
        if self._scan is not None:
            self._scan.drop()

    def _begun(self) -> bool:
        return self._scan is not None

    def _meet(self, record: Record) -> None:
        if self._scanned:
            super()._meet(record)
        else:
            self._touched.update(key for _, key in operations(record))

    def _walk(self, txn: Txn, n_keys: int) -> int:
        if self.done:
            return 0
        passed = 0
        if self._scan is None:
            # ``applied`` is the position of this view, which is what the scan must not be older than.
            self._scan = self._start()
        elif not self._scanned and (found := self._scan.ready(0.0)) is not None:
            passed = self._take_in(txn, found)
        if self._scanned:
            self._collect(0.0)
        steps.reached("build-stepped")
        return passed

    def _take_in(self, txn: Txn, found: list[Gathered]) -> int:
        """The parts, and of the keys that were touched those that this view has."""
        for gathered in found:
            self.gathering.take(gathered)
        self.gathering.update(self._parts.there(txn, sorted(self._touched)))
        self.gathering.correct_count(self._parts.count(txn))
        self._touched = set()
        self._scanned = self.walked = True
        self._making = Making(self.gathering.make_base, len(self.gathering) >= THREAD_KEYS)
        return len(self.gathering)

    def wait(self) -> None:
        """Before another step: let the parts be scanned, and the base be made."""
        if self._scan is not None and not self._scanned:
            self._scan.ready(POLL_SECONDS)
        else:
            super().wait()

    def finish(self, txn: Txn) -> None:
        """Inside a write transaction that has not changed anything: become complete for it."""
        self.catch_up(txn, self.log.position(txn) - 1)
        while not self.done:
            self._walk(txn, 1 << 30)
            if self._scan is not None and not self._scanned:
                self._scan.ready(None)
            elif not self.done:
                self._collect(None)


def check_on(on: object) -> None:
    """Refuse what is nobody who could scan."""
    if isinstance(on, bool) or (isinstance(on, int) and on < 1):
        raise ValueError(f"on: expected a number of processes, 1 or more, found {on!r}")
    if isinstance(on, int) or on is None or not isinstance(on, str):
        return
    if on not in ("processes", "ray", "spark") and not on.startswith(("dask://", "ray://")):
        raise ValueError(
            f"on: expected a number of processes, 'processes', 'dask://host:port' or a client of Dask, found {on!r}"
        )


def _asked(on: object) -> tuple[object, int | None]:
    return ("processes", on) if isinstance(on, int) else (on, None)


def why_alone(commits: Commits, on: object, layered: bool) -> list[str]:
    """Why this process does all of it, though others were to help."""
    if on is None:
        return []
    if not layered:
        return ["one part, by this process: only what layers are made of is gathered by others"]
    if commits.parts is None:
        return ["one part, by this process: other processes cannot read these data beside it"]
    return []


@contextmanager
def builders_on(commits: Commits, on: object, sampled: Sequence[bytes]) -> Iterator[NewBuilder]:
    """What makes builders for a rebuild on these workers, which are let go of at the end.

    Parameters
    ----------
    commits : Commits
    on : None, int, str or client
        None: this process.
    sampled : sequence of bytes
        Keys by which parts are cut evenly; none: by the range of the keys.
    """
    made: list[PartsBuilder] = []
    parts = commits.parts if on is not None and on != 1 else None

    def new_builder(empty: Filter | Gathering) -> Builder[Txn]:
        if parts is None or not isinstance(empty, Gathering):
            return commits.new_builder(empty)
        secret = empty.plan.hashed_with  # it names the hash, in every process
        router = None if empty.plan.pattern is None else router_of(empty.plan.pattern, secret)

        def start() -> Scan:
            n_parts = PARTS_OF_A_WORKER * on if isinstance(on, int) else PARTS
            return Scan(on, [Task(part, secret, router) for part in parts.cut(n_parts, sampled)])

        made.append(PartsBuilder(commits.log, empty, start, parts))
        return made[-1]

    try:
        yield new_builder
    finally:
        for builder in made:
            builder.drop()


def router_of(pattern: "Composite", secret: bytes | None) -> bytes:
    """A filter with that model and its regions, and room for hardly any key."""
    from dlbf.sharded.learned import pattern_of

    return pattern_of(pattern, secret).to_bytes()  # type: ignore[arg-type]
