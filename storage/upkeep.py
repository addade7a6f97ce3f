"""Keeping the filter right: read transactions, the process's replica, commits, samples of the traffic, growth.

What ``dlbf.storage.Store`` does behind its methods; the locks, and in which order they are taken, are described
there.
"""

import _thread
import logging
import mmap
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

from dlbf.errors import FilterFullError, StoreError
from dlbf.kernels.journal import OperationLog, apply_record
from dlbf.kernels.readpath import Asking, Attempt, Reading, ReadsHeld, ReplicaLock, WriteLock, WritePath, Writing
from dlbf.storage import generations, journal, misses, steps
from dlbf.storage.build import CLOSE_RECORDS, TOO_MANY_ALIKE, Builder, fill_successor, keys_after
from dlbf.storage.drift import observe
from dlbf.storage.layout import (
    CHECKPOINT_KEY,
    COMPILED_KEY,
    ESTIMATOR_KEY,
    FLAG_OMITTED,
    FLAG_REMOVED,
    STATE_BROKEN,
    TRAFFIC_KEY,
    Checkpoint,
    StoreInfo,
    Traffic,
    sealed,
)
from dlbf.storage.longkeys import Databases, count_keys, get_long, is_plain
from dlbf.storage.replica import DAMAGE, FULL, SECRET, VERSION, Replica, read_checkpoint, read_traffic
from dlbf.storage.room import Room, is_full, room_left
from dlbf.storage.transactions import as_key

__all__ = ["Upkeep"]

log = logging.getLogger("dlbf.storage")

# A transaction keeps its changes for a second try when the map has less room than this.
ROOMY_MAP_BYTES = 1 << 36
RESIZE_PATIENCE_SECONDS = 30.0
# Nobody else is likely to end what the thread that waits has begun.
OWN_PATIENCE_SECONDS = 1.0
# How long, at most twice, a read transaction is kept open for the next read.
KEEP_SECONDS = 0.02
# After which beginning to read may succeed, see Store._cannot_read.
BEGIN_ERRORS = (lmdb.MapResizedError, lmdb.ReadersFullError)
# Keys that the next generation's builder passes per key changed: it is done before the rest of the
# capacity (see generations.GROW_AT) has arrived.
BUILD_KEYS_PER_OPERATION = 48
# And at least so many at once, a quarter of a millisecond: each time costs as much as a hundred of them.
BUILD_KEYS_AT_ONCE = 1024
BUILD_KEYS_PER_STEP = 8192
# A larger filter that could not be made is tried again after 2, 4, 8 commits, at most so many.
GROWTH_PAUSE_COMMITS = 1024
# Loading a filter of so many bytes takes less than a millisecond.
LOAD_ASIDE_BYTES = 1 << 20
# A process writes the absent keys it has sampled by itself at most so often; more are thinned until then.
FLUSH_SECONDS = 10.0
# Records that a store without a usable filter keeps for a rebuild to catch up with.
BROKEN_JOURNAL_RECORDS = 4096
BROKEN_RECORD_BYTES = 1 << 20


class Overtaken(StoreError):
    """Another process has written between the two tries of a transaction."""


def sweep(reference: "weakref.ref[Upkeep]", wake: threading.Lock) -> None:
    """End read transactions that are kept open and not used; while there are none it sleeps until ``wake`` is free."""
    while True:
        wake.acquire()
        while True:
            time.sleep(KEEP_SECONDS)
            store = reference()
            if store is None or store._env is None:
                rouse(wake)  # another one, if an exception came between its start and the note of it
                return
            if not store._sweep():
                break
            del store
        del store


def rouse(wake: threading.Lock) -> None:
    """Wake the sweeper, if it sleeps."""
    try:
        wake.release()
    except RuntimeError:
        pass  # it is awake


def runs(thread: threading.Thread | None) -> bool:
    """Whether a thread is at work; one whose beginning was interrupted, by a signal handler's exception, is not."""
    return thread is not None and thread.is_alive()


@dataclass(slots=True)
class Growth:
    """The next generation of a filter: how far it is, and what has kept it from being made."""

    builder: Builder | None = None
    generation: int = 0  # that the builder's filter will follow
    misfit: int = 0  # generation whose successor had no room in one of its regions
    failure: str = ""  # why the successor of the following generation was last not made
    failed_at: int = 0
    n_failures: int = 0
    pause: int = 0  # commits until it is tried again


class Upkeep(WritePath):
    """An open environment with the filter of its keys: the part of a store that its users do not see.

    Parameters
    ----------
    path : path
        The directory.
    readonly : bool
        Whether nothing is written.
    miss_limit : int
        How many absent keys are sampled.
    """

    _dbs: Databases
    _info: StoreInfo
    _secret: bytes | None
    _replica: Replica
    _page_bytes: int
    _room: Room | None
    _meta_map: mmap.mmap | None
    # What may come when a larger filter is made; anything else comes from a signal handler.
    _growth_errors: tuple[type[Exception], ...] = (lmdb.Error, StoreError, OSError, MemoryError)

    def __init__(self, path: Path, readonly: bool, miss_limit: int) -> None:
        self.path = path
        self.readonly = readonly
        self._env = None
        self._lock = ReplicaLock()
        self._write_lock = threading.Lock()
        self._attach_lock(self._write_lock)
        self._build_lock = threading.Lock()
        self._sample_lock = threading.RLock()
        self._growth = Growth()
        self._dead_word = -1
        self._roomy = 0
        # Taken: the sweeper sleeps.  Not an Event: an exception from a signal handler could leave one locked for ever.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._is_swept = False  # whether the sweeper has been started
        self._flusher: threading.Thread | None = None
        self._loader: threading.Thread | None = None
        self._flushed_at = -FLUSH_SECONDS
        # Lookups that are in the traffic record already, and the filter that had answered them.
        self._reported = (0, 0, 0)
        self._miss_limit = miss_limit

    def _refuse_while_closing(self) -> None:
        """Raise if the store is closed, or another thread has begun to close it."""
        if self._env is None:
            raise StoreError(f"{self.path}: this store is closed; open it again")
        if self._closing not in (0, threading.get_ident()):
            raise StoreError(f"{self.path}: this store is being closed by another thread; open it again")

    def _check_process(self) -> None:
        if self._env is None:
            self._refuse_while_closing()
        if self._was_forked():
            raise StoreError(
                f"{self.path}: opened before fork() and used in the child, which LMDB does not allow; "
                "open it after the fork in both, or start the child with spawn"
            )

    def _blame_disk(self, error: BaseException) -> None:
        """An error of LMDB has come: if the disk is full, or fails, say so."""
        if isinstance(error, lmdb.Error) and is_full(error):
            raise StoreError(
                f"{self.path}: the disk is full or fails: LMDB says {error}, and {room_left(self.path)}. Nothing of "
                "this transaction has been stored, and everything before it is; make room, and run it again"
            ) from error

    def _let_go(self) -> None:
        """Close everything; what an exception has interrupted is done when it is called again."""
        if self._env is not None:
            self._withdraw()
            if not self._was_forked():
                self._keep_live(False)
            self._leaving = self._env
            self._env = None
        self._detach_meta()
        self._attach_reader(None, None, BEGIN_ERRORS, 0)
        if self._meta_map is not None:
            self._meta_map.close()
            self._meta_map = None
        if self._leaving is not None:
            self._leaving.close()
            self._leaving = None
        self._file_lock = None
        if self._room is not None:
            self._room.close()
        rouse(self._wake)

    # --- read transactions and the map

    def _reading(self, buffers: bool = False) -> Reading:
        """A read transaction, counted so that the map does not move under it; for ``with``."""
        return Reading(self, buffers)

    def _cannot_read(self, error: BaseException) -> None:
        """A read transaction could not be begun: see to it that the next try may succeed, or raise."""
        with Asking(self) as env:
            if isinstance(error, lmdb.MapResizedError):
                self._adopt_map()
            elif not isinstance(error, lmdb.ReadersFullError):
                raise error
            elif not self._drop_live() and not env.reader_check():
                raise StoreError(
                    f"{self.path}: all {env.max_readers()} reader slots are in use; close snapshots, "
                    "or open the store with a larger max_readers"
                ) from None

    def _start_sweeping(self) -> None:
        """A read has left its transaction open: see that it is not for long."""
        if not self._is_swept:
            try:
                # One call: an exception from a signal handler in a Thread's start() leaves it half begun.
                _thread.start_new_thread(sweep, (weakref.ref(self), self._wake))
                self._is_swept = True
            except RuntimeError as error:  # there are too many threads, or the interpreter is about to end
                self._keep_live(False)
                log.debug("%s: read transactions are not kept: %s", self.path, error)
        rouse(self._wake)

    def _adopt_map(self) -> None:
        """Another process has made the map larger: follow."""
        with WriteLock(self):
            self._resize(0)

    def _resize(self, size: int) -> None:
        """Move the map; the caller holds the write lock and has no transaction."""
        with ReadsHeld(self):
            own = self._reads_itself()
            patience = OWN_PATIENCE_SECONDS if own else RESIZE_PATIENCE_SECONDS
            end = time.monotonic() + patience
            self._drop_live()
            while self._n_reading:
                if time.monotonic() > end:
                    raise StoreError(
                        f"{self.path}: the LMDB map must grow, but {self._n_reading} snapshots or iterators of this "
                        f"{'thread' if own else 'process'} have been open for {patience:.0f} s; close them, or open "
                        "the store with a larger map_size"
                    )
                time.sleep(0.0005)
            room = self._room
            if room is not None and room.mapped:
                # Another program has made the file longer, or it is full.
                size = room.fitting(0) if size == 0 else room.grow(self._env.info()["map_size"])
                room.reserve(size)
            try:
                self._env.set_mapsize(size)
            except lmdb.Error as error:
                self._let_go()  # py-lmdb has closed it
                raise StoreError(
                    f"{self.path}: the LMDB map cannot be made {size:,} bytes large ({error}); nothing has been "
                    "stored, and the store is closed now. Free memory and open it again"
                ) from error

    def _map_may_fill(self) -> bool:
        if self._roomy:
            # Nothing short of ROOMY_MAP_BYTES / 2 in each thousand transactions could change that.
            self._roomy -= 1
            return False
        info = self._env.info()
        free: int = info["map_size"] - (info["last_pgno"] + 1) * self._page_bytes
        self._roomy = 1000 * (free // ROOMY_MAP_BYTES)
        return free < ROOMY_MAP_BYTES

    # --- the replica

    def _refresh(self, wait: bool = False, txn: Any = None) -> bool:
        """Bring the filter up to date, or to what the read transaction ``txn`` sees; False if it cannot be used now.

        One that takes a while to load is loaded aside, and until then the data are read, unless the caller wants to
        ``wait``.
        """
        word = self._word()
        if word is None or word == self._dead_word:
            return False
        # In this order: beginning to read may have to follow a map that has grown, which takes the writers' lock, and
        # writers wait for the replica.
        if txn is None:
            with self._reading(buffers=True) as txn:
                return self._refresh_in(txn, wait)
        return self._refresh_in(txn, wait)

    def _refresh_in(self, txn: Any, wait: bool) -> bool:
        with Attempt(self._lock, wait) as taken:
            if not taken:
                return False
            if self._is_current():
                return True
            now = txn.id()
            if not wait and self._replica.filter is None and self._is_large(txn):
                self._load_aside()
                return False
            self._withdraw()
            if self._replica.catch_up(txn, now):
                self._watch_generation()
                self._offer(self._replica.filter, self._replica.applied, self._replica.removed)
                return True
            self._dead_word = now
            return False

    def _is_large(self, txn: Any) -> bool:
        checkpoint = read_checkpoint(txn, self._dbs)
        return checkpoint is not None and checkpoint.n_bytes > LOAD_ASIDE_BYTES

    def _load_aside(self) -> None:
        """Load the filter in a thread of its own; the caller holds ``_lock``."""
        if runs(self._loader) or self._closing:
            return

        def load() -> None:
            word = self._word()
            try:
                self._refresh(wait=True)
            except Exception as error:
                log.warning("%s: reading without the filter until the next commit: %s", self.path, error)
                self._dead_word = -1 if word is None else word
            finally:
                self._loader = None

        self._loader = threading.Thread(target=load, name="dlbf-loader", daemon=True)
        try:
            self._loader.start()
        except RuntimeError as error:  # there are too many threads, or the interpreter is about to end
            self._loader = None
            log.debug("%s: the filter is not loaded: %s", self.path, error)

    def _get_slow(self, key: Any, default: Any) -> Any:
        self._check_process()
        key = as_key(key)
        self._count(lookups=1)
        answer = self._ask(key)
        if answer == 2 and self._refresh():
            answer = self._ask(key)
        if answer == 0:
            self._count(filtered=1)
            self._was_absent(key)
            return default
        return self._fetch_slow(key, default, answer == 1)

    def _fetch_slow(self, key: bytes, default: Any, asked: bool) -> Any:
        value = self._fetch_one(key)
        if not asked:
            self._count(unfiltered=1)
        elif value is None:
            self._count(false_positives=1)
        if value is None:
            self._was_absent(key)
            return default
        return value

    # --- where the data are: a guard has them elsewhere

    def _fetch_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values from the data, all of one moment."""
        with self._reading() as txn:
            return self._values(txn, keys)

    def _fetch_places(self, keys: list[bytes], places: Sequence[int], asked_at: int) -> list[bytes | None]:
        """Values of the keys in those places; or of all, if the filter's answers were of another moment."""
        with self._reading() as txn:
            if txn.id() == asked_at:
                keys = [keys[i] for i in places]
            return self._values(txn, keys)

    def _values(self, txn: Any, keys: list[bytes]) -> list[bytes | None]:
        """The values that ``txn`` sees."""
        dbs = self._dbs
        return [txn.get(key, db=dbs.data) if is_plain(key) else get_long(txn, dbs, key) for key in keys]

    def _fetch_one(self, key: bytes) -> bytes | None:
        """The value of a key from the data."""
        return self._fetch_many([key])[0]

    def _count_keys(self, txn: Any) -> int:
        """Number of keys that ``txn`` sees."""
        return count_keys(txn, self._dbs)

    def _known_keys(self, txn: Any) -> int:
        """The same, or about that, without reading anything for it."""
        return self._count_keys(txn)

    def _count_after(self, txn: Any, operations: OperationLog) -> int:
        """Number of keys when ``txn``, with its ``operations``, is committed."""
        return self._count_keys(txn)

    def _keys_after(self, txn: Any, operations: OperationLog) -> Iterator[bytes]:
        """All keys then."""
        return self._scan_keys(txn)

    def _scan_keys(self, txn: Any) -> Iterator[bytes]:
        """The keys that ``txn`` sees, each once."""
        return keys_after(txn, self._dbs, None)

    def _key_batches(self, n_keys: int) -> Iterator[list[bytes]]:
        """All keys in lists of up to ``n_keys``, each list of another moment."""
        position: bytes | None = None
        while True:
            with self._reading() as txn:
                part = list(islice(keys_after(txn, self._dbs, position), n_keys))
            if not part:
                return
            position = part[-1]
            yield part

    def _new_builder(self, filter: Any) -> Builder:
        return Builder(self._dbs, filter)

    def _step(self, builder: Builder, n_keys: int) -> tuple[int, int]:
        """Let a builder pass up to ``n_keys`` keys; returns how many it passed, and at which transaction."""
        with self._reading() as txn:
            return builder.step(txn, n_keys), txn.id()

    # --- what the traffic is like

    def _watch_generation(self) -> None:
        """Another filter answers from now on: count its lookups from here."""
        if self._reported[2] != self._replica.generation:
            self._reported = (self._n_filtered, self._n_false_positives, self._replica.generation)

    def _samples_full(self) -> None:
        """Many absent keys have been drawn: have them written soon, and draw fewer until then."""
        is_flushing = runs(self._flusher)
        if not is_flushing and time.monotonic() - self._flushed_at >= FLUSH_SECONDS and not self._was_forked():
            if self._closing:
                return
            self._flusher = threading.Thread(target=self._flush_aside, name="dlbf-misses", daemon=True)
            try:
                self._flusher.start()
            except RuntimeError:
                self._flusher = None
                self._draw_every(2 * self._sample_every)
        elif not is_flushing or self._n_samples >= 2 * misses.BUFFER_KEYS:
            self._draw_every(2 * self._sample_every)

    def _draw_every(self, every: float) -> None:
        """Draw one absent key in ``every``; those that wait to be written are thinned to that, so all stay uniform."""
        with Attempt(self._sample_lock):
            waiting, before = self._take_samples(), self._sample_every
            if waiting:
                every = max(every, before)  # there are no more of them than were drawn
            self._sample_misses(every, misses.BUFFER_KEYS, 0)
            self._add_samples([key for key in waiting if random.random() * every < before])

    def _flush_aside(self) -> None:
        try:
            self._flush(wait=False)
        except (lmdb.Error, StoreError) as error:
            log.debug("%s: sampled absent keys were not written: %s", self.path, error)
        finally:
            self._flusher = None

    def _flush(self, wait: bool = True) -> None:
        """Write what is known of the traffic, in a transaction of its own; ``wait`` for who writes, or be Busy."""
        with Writing(self, wait) as txn:
            self._report(txn)
            self._commit(txn, OperationLog(), True)

    def _report(self, txn: Any, added: int | None = None, deleted: int | None = None) -> None:
        """Write sampled absent keys and counts of lookups; ``added``, ``deleted``: as of the checkpoint in ``txn``."""
        replica = self._replica
        self._flushed_at = time.monotonic()
        traffic = read_traffic(txn, self._dbs)
        lookups, passed, generation = self._n_filtered, self._n_false_positives, replica.generation
        fresh = (lookups - self._reported[0], passed - self._reported[1])
        self._reported = (lookups, passed, generation)
        traffic = observe(traffic, generation, sum(fresh), fresh[1])
        if added is not None and deleted is not None:
            traffic = replace(traffic, added=added, deleted=deleted)
        if self._miss_limit:
            drawn, every = self._take_samples(), self._sample_every
            every = misses.write_misses(txn, self._dbs, drawn, every, self._miss_limit, traffic.scale)
            self._draw_every(every)
        txn.put(TRAFFIC_KEY, traffic.pack(), db=self._dbs.meta)
        replica.traffic = traffic

    # --- committing

    def _begin_locked(self) -> Any:
        """Begin, with the write lock held; the replica is current then if it can be."""
        self._drop_live()  # it will be of the past, and would keep pages from being used again
        while True:
            try:
                txn = self._begin_txn()
                break
            except lmdb.MapResizedError:
                self._resize(0)
        now = txn.id() - 1
        replica = self._replica
        if replica.filter is None or replica.applied != now or replica.torn:
            with Attempt(self._lock):
                self._withdraw()
                if replica.catch_up(txn, now):
                    self._watch_generation()
                    self._offer(replica.filter, replica.applied, replica.removed)
        return txn

    def _begin_write_again(self, txn: Any, number: int | None = None) -> Any:
        """After a full map: abort, make it larger, begin again; as transaction ``number``, where that matters."""
        self._abort(txn)
        self._give_file_lock()
        self._resize(2 * self._env.info()["map_size"])
        log.info("%s: the map has grown to %d bytes", self.path, self._env.info()["map_size"])
        txn = self._begin_locked()
        if number is not None and txn.id() != number:
            self._abort(txn)
            raise Overtaken(
                "another process wrote while the LMDB map was being made larger; nothing of this transaction has "
                "been stored. "
                "Run it again"
            )
        return txn

    def _commit(self, txn: Any, operations: OperationLog, dirty: bool) -> None:
        """Commit the data and, with it, the journal record."""
        if not dirty:
            return
        number = txn.id()
        replica = self._replica
        steps.reached("data-written")
        if replica.filter is None:
            if replica.kind == FULL:
                with Attempt(self._lock):
                    self._commit_grown(txn, operations, number)
            else:
                self._commit_unfiltered(txn, operations, number)
            return
        flags = FLAG_REMOVED if operations.n_removed else 0
        due = replica.journal_bytes + operations.nbytes > replica.journal_limit
        if len(replica.filter) + operations.n_most > replica.capacity:
            with Attempt(self._lock):
                self._commit_grown(txn, operations, number)
        elif due:
            with Attempt(self._lock):
                self._commit_checkpoint(txn, operations, number, flags)
        else:
            if self._n_samples >= misses.BUFFER_KEYS // 4:
                self._report(txn)
            record = operations.record(number, replica.generation, flags)
            self._commit_with(txn, number, record)
            if len(operations):
                with Attempt(self._lock):
                    self._apply(record, number, operations)
            else:
                with Attempt(self._lock):
                    if replica.filter is not None and replica.applied == number - 1:
                        replica.passed(number, 0, 0, len(record))
                        self._offer(replica.filter, number, replica.removed)
            steps.reached("filter-applied")

    def _commit_with(
        self, txn: Any, number: int, record: bytes, names: tuple[str, str] = ("journal-written", "commit-done")
    ) -> None:
        """Write the journal record and commit; ``names`` of the two steps."""
        tail = self._replica.tail
        journal.append(txn, self._dbs, tail, number, record)
        steps.reached(names[0])
        txn.commit()
        self._give_file_lock()
        tail.known = number
        steps.reached(names[1])

    def _distrust_replica(self, is_full: bool) -> None:
        """The filter could not follow a commit of ours: it is dropped, not trusted."""
        replica = self._replica
        if is_full:
            replica.full = replica.filter
        replica.drop()

    def _apply(self, record: bytes, number: int, operations: OperationLog) -> None:
        """Apply our own commit, which has happened."""
        replica = self._replica
        if replica.filter is None or replica.applied != number - 1:
            return  # another thread has caught up already
        self._withdraw()
        replica.torn = True
        try:
            apply_record(replica.filter, record)
        except FilterFullError:
            self._distrust_replica(True)
            return
        except BaseException:
            self._distrust_replica(False)
            raise
        replica.passed(number, operations.n_added, operations.n_removed, len(record))
        self._offer(replica.filter, number, replica.removed)

    def _commit_checkpoint(self, txn: Any, operations: OperationLog, number: int, flags: int) -> None:
        """Commit together with a checkpoint, which the journal's length has made due."""
        replica = self._replica
        record = operations.record(number, replica.generation, flags)
        # Operations that take more room than the filter are left to the checkpoint.
        omit = len(record) > replica.journal_limit
        self._withdraw()
        filter = replica.filter
        replica.drop()  # until it is all done: the filter is ahead of the data now
        try:
            apply_record(filter, record)
        except FilterFullError:
            replica.full = filter
            self._commit_grown(txn, operations, number)
            return
        removed = number if flags & FLAG_REMOVED else replica.removed
        added, deleted = replica.added + operations.n_added, replica.deleted + operations.n_removed
        self._report(txn, added, deleted)
        checkpoint, sums = replica.write_checkpoint(txn, filter, number, replica.generation, removed)
        if omit:
            record = operations.record(number, replica.generation, flags | FLAG_OMITTED, False)
        self._commit_with(txn, number, record)
        replica.adopt(filter, checkpoint, sums)
        replica.added, replica.deleted = added, deleted
        self._offer(filter, number, removed)

    def _commit_grown(self, txn: Any, operations: OperationLog, number: int) -> None:
        """Commit together with a larger filter, made from the data as this transaction leaves it."""
        replica = self._replica
        try:
            filter = fill_successor(
                replica.full if replica.filter is None else replica.filter,
                self._count_after(txn, operations),
                operations.n_added,
                lambda: self._keys_after(txn, operations),
                self._info.fpr,
                self._secret,
            )
        except FilterFullError:
            # The data comes first: it is stored, and read without a filter until a rebuild.
            self._withdraw()
            replica.drop()
            replica.reason, replica.kind = f"{TOO_MANY_ALIKE}; remove them and run rebuild()", DAMAGE
            self._commit_unfiltered(txn, operations, number)
            return
        steps.reached("growth-scanned")
        flags = FLAG_REMOVED if operations.n_removed else 0
        traffic = self._traffic_so_far(txn, number)
        added, deleted = traffic.added + operations.n_added, traffic.deleted + operations.n_removed
        self._write_generation(txn, operations, filter, number, flags, replace(traffic, added=added, deleted=deleted))

    def _traffic_so_far(self, txn: Any, number: int) -> Traffic:
        """The traffic record, with the changes before transaction ``number``."""
        return replace(read_traffic(txn, self._dbs), added=self._replica.added, deleted=self._replica.deleted)

    def _write_generation(
        self, txn: Any, operations: OperationLog, filter: Any, number: int, flags: int, traffic: Traffic
    ) -> None:
        """Make ``filter`` the next generation and commit."""
        replica = self._replica
        checkpoint, sums = replica.write_checkpoint(txn, filter, number, number, number)
        self._write_model(txn, filter)
        traffic = replace(traffic, generation=number, absent=0, false_positives=0)
        txn.put(TRAFFIC_KEY, traffic.pack(), db=self._dbs.meta)
        record = operations.record(number, number, flags | FLAG_OMITTED, False)
        self._commit_with(txn, number, record, ("switch-written", "switch-done"))
        self._withdraw()
        self._growth.builder = None
        replica.adopt(filter, checkpoint, sums)
        replica.traffic = traffic
        replica.added, replica.deleted = traffic.added, traffic.deleted
        self._watch_generation()
        self._offer(filter, number, checkpoint.removed)

    def _write_model(self, txn: Any, filter: Any) -> None:
        """Keep the model of a learned filter beside it, and what it was compiled from."""
        db = self._dbs.model
        model = filter.model if generations.is_learned(filter) and filter.model_bytes else None
        compiled = sealed(model.to_bytes()) if model is not None else None
        if txn.get(COMPILED_KEY, db=db) == compiled and (compiled is not None or not txn.stat(db)["entries"]):
            return  # a filter that grows keeps its model
        txn.drop(db, delete=False)
        if model is None:
            return
        txn.put(COMPILED_KEY, compiled, db=db)
        pickle = model.seal(self._secret) if self._secret is not None else None
        if pickle is not None:
            txn.put(ESTIMATOR_KEY, sealed(pickle), db=db)

    def _commit_unfiltered(self, txn: Any, operations: OperationLog, number: int) -> None:
        """Commit in a store whose filter this process cannot use."""
        replica = self._replica
        if replica.kind != VERSION:
            checkpoint = read_checkpoint(txn, self._dbs)
            if replica.kind != SECRET and (checkpoint is None or checkpoint.state != STATE_BROKEN):
                broken = Checkpoint(number, number, number, number, 0, 0, STATE_BROKEN, replica.reason)
                txn.put(CHECKPOINT_KEY, broken.pack(), db=self._dbs.meta)
                journal.delete_range(txn, self._dbs.filter, b"", None)
                checkpoint = broken
                steps.reached("broken-marked")
            if replica.kind != SECRET and number % 256 == 0:
                journal.trim(txn, self._dbs, max(0, number - BROKEN_JOURNAL_RECORDS))
            generation = checkpoint.generation if checkpoint is not None else number
            flags = FLAG_REMOVED if operations.n_removed else 0
            omit = operations.nbytes > BROKEN_RECORD_BYTES and replica.kind != SECRET
            record = operations.record(number, generation, flags | (FLAG_OMITTED if omit else 0), not omit)
            self._commit_with(txn, number, record)
        else:
            # Not ours to write: the gap tells whoever can read the filter.
            txn.commit()
            self._give_file_lock()
            steps.reached("commit-done")

    # --- growing

    def _tend(self, n_operations: int) -> None:
        """After a commit: a step of the next generation, if one is due.

        What was committed is stored whatever becomes of that, so a failure is no error of the caller's; it is tried
        again later, and by the commit that needs it.
        """
        growth = self._growth
        if growth.failed_at != self._replica.generation:
            growth.failure, growth.failed_at = "", self._replica.generation
            growth.n_failures = growth.pause = 0
        if growth.pause:
            growth.pause -= 1
            return
        try:
            self._grow(n_operations)
        except TimeoutError:
            raise  # from a signal handler
        except self._growth_errors as error:
            if self._env is None:
                return  # another thread has closed it
            growth.n_failures += 1
            growth.pause = min(1 << growth.n_failures, GROWTH_PAUSE_COMMITS)
            if str(error) != growth.failure:
                growth.failure = str(error)
                log.warning("%s: the change is stored, but the filter could not be made larger: %s", self.path, error)

    def _grow(self, n_operations: int) -> None:
        replica, growth = self._replica, self._growth
        if replica.filter is None and replica.full is not None:
            self._grow_full()
            return
        if growth.builder is None and not replica.needs_successor():
            return
        with Attempt(self._build_lock, blocking=False) as taken:
            if not taken:
                return
            builder = growth.builder
            if builder is None or growth.generation != replica.generation:
                growth.builder = None
                filter = replica.filter
                if filter is None or not replica.needs_successor():
                    return
                # One that did not fit into the regions that its predecessor's keys suggested is made without a model.
                failed = growth.misfit == replica.generation
                empty = generations.successor(None if failed else filter, len(filter), self._info.fpr, self._secret)
                builder = growth.builder = self._new_builder(empty)
                growth.generation = self._replica.generation
            try:
                self._step(builder, BUILD_KEYS_AT_ONCE + BUILD_KEYS_PER_OPERATION * n_operations)
                if builder.done:
                    self._switch(builder)
            except FilterFullError:
                growth.builder = None
                growth.misfit = replica.generation
            except BaseException:
                growth.builder = None  # it may have met a key, and not know that it has
                raise

    def _grow_full(self) -> None:
        """Our last commit brought a region more keys than it has room for: make a larger filter now.

        The next commit would do it, too, but that may be a day away, and until then every read would go to the data.
        """
        with Writing(self) as txn:
            while True:
                if self._replica.kind != FULL:
                    return
                number = txn.id()
                try:
                    with Attempt(self._lock):
                        self._commit_grown(txn, OperationLog(), number)
                    return
                except lmdb.MapFullError:
                    txn = self._begin_write_again(txn)

    def _switch(self, builder: Builder, prepare: Callable[[Any, int], Traffic] | None = None) -> None:
        """Make a finished builder's filter the store's, in one transaction.

        ``prepare`` is called with the transaction and its number, and writes what else belongs to the new generation.
        """
        prepare = prepare or self._traffic_so_far
        with Writing(self) as txn:
            while True:
                steps.reached("switch-began")
                number = txn.id()
                try:
                    with Attempt(self._lock):
                        builder.finish(txn)
                        traffic = prepare(txn, number)
                        self._write_generation(txn, OperationLog(), builder.filter, number, 0, traffic)
                    return
                except lmdb.MapFullError:
                    txn = self._begin_write_again(txn)

    def _build(self, builder: Builder, n_keys: int, progress: Callable[[int, int], None]) -> None:
        """Fill a builder's filter up to the newest transaction but a few."""
        passed = 0
        before = 0
        # Five times outrun by writers: the switch will do the rest while they wait.
        while builder.restarts < 5:
            before, restarts = builder.applied, builder.restarts
            n_passed, now = self._step(builder, BUILD_KEYS_PER_STEP)
            passed += n_passed
            behind = now - before
            if builder.restarts != restarts:
                passed = 0
            progress(min(passed, n_keys), n_keys)
            if builder.done and behind <= CLOSE_RECORDS:
                return
