"""What a store and a guard have in common for their users: reading, care, closing."""

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, overload

import lmdb
import numpy as np
import numpy.typing as npt

from dlbf.errors import StoreError
from dlbf.kernels.environment import WriteLock
from dlbf.kernels.keys import read_keys
from dlbf.kernels.ledger import ABSENT, UNKNOWN
from dlbf.kernels.locks import Held
from dlbf.kernels.lookup import LookupCore
from dlbf.storage import misses
from dlbf.storage.commits import Commits
from dlbf.storage.drift import drift
from dlbf.storage.environment import Environment
from dlbf.storage.keys import MISSING, Key, as_key
from dlbf.storage.ledger import Ledger
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.parts import Opened
from dlbf.storage.rebuild import Progress, Wishes, rebuild
from dlbf.storage.report import Drift, RebuildReport, Stats
from dlbf.storage.source import Source
from dlbf.storage.statistics import gather
from dlbf.storage.traffic import Traffic
from dlbf.storage.views import ItemsRange, KeysRange, ValuesRange, bounds
from dlbf.storage.weak import weakly

if TYPE_CHECKING:
    from dlbf.models import Model

__all__ = ["CLOSE_PATIENCE_SECONDS", "Face", "sample_limit"]

T = TypeVar("T")

# How long close() waits for what other threads are writing.
CLOSE_PATIENCE_SECONDS = 30.0
# Fewer sampled keys are not worth a transaction when the store is closed.
FLUSH_LEAST_KEYS = 32


def sample_limit(sample_misses: bool | int, readonly: bool) -> int:
    """How many absent keys are sampled."""
    if not isinstance(sample_misses, int) or sample_misses < 0:
        raise ValueError(f"sample_misses must be True, False or a number of keys, found {sample_misses!r}")
    if readonly:
        return 0
    return misses.DEFAULT_LIMIT if sample_misses is True else int(sample_misses)


class Face(LookupCore):
    """The base has the fast half of every lookup.

    Attributes
    ----------
    ledger : Ledger
        The filter that answers, and what it is complete for.
    traffic : Traffic
        Counters of lookups, and the sample of absent keys.
    source : Source
        Where the data are.
    """

    ledger: Ledger[Txn]
    traffic: Traffic
    source: Source[Txn]
    _environment: Environment
    _commits: Commits

    def _prepare(self, opened: Opened, limit: int) -> tuple[Ledger[Txn], Traffic]:
        """The parts that every face has; ``limit`` absent keys are sampled."""
        environment = self._environment = opened.environment
        self._close_lock = threading.RLock()

        def is_open() -> bool:
            return not environment.closing and not environment.was_forked()

        traffic = Traffic(limit, weakly(self._flush), is_open)
        ledger = Ledger(opened.log, opened.settings, traffic.watch_generation, is_open)
        ledger.watch(opened.log.word)
        return ledger, traffic

    def _flush(self) -> None:
        self._commits.flush(wait=False)

    @property
    def path(self) -> Path:
        """The directory."""
        return self._environment.path

    @property
    def readonly(self) -> bool:
        """Whether nothing is written."""
        return self._environment.readonly

    # --- lookups

    def _look_up_slowly(self, key: Key, default: T) -> bytes | T:
        """Every lookup that is not the common one: see ``dlbf.kernels.lookup.LookupCore``."""
        self._environment.check()
        wanted = as_key(key)
        ledger, traffic = self.ledger, self.traffic
        traffic.count(lookups=1)
        answer = ledger.ask(wanted)
        if answer == UNKNOWN and ledger.refresh():
            answer = ledger.ask(wanted)
        if answer == ABSENT:
            traffic.count(filtered=1)
            traffic.absent(wanted)
            return default
        moment = ledger.moment()
        value = self.source.fetch(wanted)
        if answer == UNKNOWN:
            traffic.count(unfiltered=1)
        elif value is None:
            traffic.count(false_positives=1)
            ledger.remember(wanted, moment)
        if value is None:
            traffic.absent(wanted)
            return default
        return value

    @overload
    def get_many(self, keys: Iterable[Key], default: None = None) -> list[bytes | None]: ...
    @overload
    def get_many(self, keys: Iterable[Key], default: T) -> list[bytes | T]: ...
    def get_many(self, keys: Iterable[Key], default: T = None) -> list[bytes | T]:  # type: ignore[assignment]
        """The values of many keys, ``default`` for those that are not there.

        Parameters
        ----------
        keys : iterable of keys
            Anything that the filters take as a batch.
        default : object, optional

        Returns
        -------
        list
            One value per key, in their order; of a store all of one moment.

        Examples
        --------
        >>> import tempfile
        >>> from dlbf.storage import Store
        >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as s:
        ...     s.update({b"a": b"1", b"b": b"2"})
        ...     s.get_many([b"b", b"x", b"a"])
        [b'2', None, b'1']
        """
        wanted, read, values = self._read_many(keys, self.source.fetch_places)
        out: list[bytes | T] = [default] * len(wanted)
        for i, value in zip(read, values, strict=True):
            if value is not None:
                out[i] = value
        return out

    def contains_many(self, keys: Iterable[Key]) -> npt.NDArray[np.bool_]:
        """Which of many keys are there.

        Parameters
        ----------
        keys : iterable of keys
            Anything that the filters take as a batch.

        Returns
        -------
        numpy.ndarray of bool
            Certain, unlike a filter's: what it lets pass is looked up.  Values stay where they are if the engine can
            tell without them.

        Examples
        --------
        >>> import tempfile
        >>> from dlbf.storage import Store
        >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as s:
        ...     s.update({b"a": b"1", b"b": b"2"})
        ...     s.contains_many([b"b", b"x", b"a"])
        array([ True, False,  True])
        """
        wanted, read, there = self._read_many(keys, self.source.has_places)
        out = np.zeros(len(wanted), dtype=np.bool_)
        out[read] = there
        return out

    def _read_many(
        self, keys: Iterable[Key], fetch: Callable[[list[bytes], Sequence[int], int], tuple[Sequence[int], list[T]]]
    ) -> tuple[list[bytes], Sequence[int], list[T]]:
        """The keys, the places of those that the filter lets pass, and what the source says about these: a value or
        None, or whether they are there."""
        self._environment.check()
        wanted = read_keys(keys)
        ledger, traffic = self.ledger, self.traffic
        traffic.count(lookups=len(wanted))
        maybe, position = ledger.ask_many(wanted)
        moment = ledger.moment()
        asked: Sequence[int] = range(len(wanted)) if maybe is None else maybe.nonzero()[0].tolist()
        read, values = fetch(wanted, asked, position) if asked else (asked, [])
        absent = [i for i, value in zip(read, values, strict=True) if value is None or value is False]
        if maybe is None or len(read) > len(asked):
            traffic.count(unfiltered=len(wanted))
        else:
            traffic.count(filtered=len(wanted) - len(read), false_positives=len(absent))
            for i in absent:
                ledger.remember(wanted[i], moment)
        traffic.draw_many(wanted, set(read).difference(absent))
        return wanted, read, values

    @overload
    def pop(self, key: Key) -> bytes: ...
    @overload
    def pop(self, key: Key, default: T) -> bytes | T: ...
    def pop(self, key: Key, default: object = MISSING) -> object:
        """Delete a key and return its value."""
        value = self._take(as_key(key))
        if value is None and default is MISSING:
            raise KeyError(key)
        return default if value is None else value

    def _take(self, key: bytes) -> bytes | None:
        """Delete a key; its value, or None if it is not there."""
        raise NotImplementedError  # each face brings its own

    def items(
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> ItemsRange:
        """Keys and values in key order.

        Parameters
        ----------
        prefix : key
            Only keys that begin with it.
        start, stop : key, optional
            Only keys from ``start`` on, and before ``stop``.
        reverse : bool
            From the last to the first.

        Returns
        -------
        ItemsRange
            A view, like that of a dict.  Each of its iterators is of the moment it was begun; the store may be changed
            meanwhile.  While one is not exhausted or closed, LMDB keeps old pages and the file grows with each write.
        """
        return ItemsRange(self, self.source, *bounds(prefix, start, stop), reverse)

    def keys(
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> KeysRange:
        """Keys in order; see ``items``."""
        return KeysRange(self, self.source, *bounds(prefix, start, stop), reverse)

    def values(
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> ValuesRange:
        """Values in the order of their keys; see ``items``."""
        return ValuesRange(self, self.source, *bounds(prefix, start, stop), reverse)

    def __iter__(self) -> Iterator[bytes]:
        return self.source.keys(b"", None, False)

    def __reversed__(self) -> Iterator[bytes]:
        return self.source.keys(b"", None, True)

    def __len__(self) -> int:
        with self._environment.reading() as txn:
            return self.source.count(txn)

    __hash__ = object.__hash__

    # --- care

    def rebuild(
        self,
        negatives: Iterable[Key] | None = None,
        design: str = "auto",
        *,
        model: "str | Model | None" = "auto",
        fpr: float | None = None,
        deletability: float | None = None,
        adversarial_fpr: float | None = None,
        groups: str | Callable[[bytes], Hashable] | None = None,
        dry_run: bool = False,
        if_needed: bool = False,
        allow_false_negatives: bool = False,
        progress: Progress | None = None,
        on: object = None,
    ) -> RebuildReport:
        """Make a new filter from the keys there are and the absent ones asked for, while reads and writes go on.

        Parameters
        ----------
        negatives : iterable of keys, optional
            Keys that are asked for and absent.  By default those that the store has sampled itself; if there are too
            few to learn from, the filter gets no model.
        design : str
            "auto": the cheapest of all, with a model where that pays; a store of 4,096 keys or more gets layers unless
            it deletes often (the report says why).  "layers" and "tables" force either.  "cuckoo": a table without a
            model.  Or a deletable design of ``dlbf.theory.DESIGNS``.
        model : str, Model or None
            As for ``dlbf.LearnedFilter.fit``; None: no model.
        fpr : float, optional
            A new target rate.
        deletability : float, optional
            Least share of deleted keys that then answer "absent" without reading the data; 0.9 by default, what costs
            3.3 bits per key.  A store that hardly deletes, or is hardly asked for what it deleted, takes 0.
        adversarial_fpr : float, optional
            The worst case: the largest rate for keys made to look like stored ones, deleted keys and traffic unlike
            that learnt; ``1 - deletability`` if not given.
        groups : "host" or callable, optional
            Hold out whole groups of absent keys, as for ``dlbf.LearnedFilter.fit``: the rate is then measured on hosts
            (or whatever the function tells of a key) that were not learnt from.
        dry_run : bool
            Learn and plan, and change nothing.
        if_needed : bool
            Do nothing unless ``drift`` says that a rebuild is due.
        allow_false_negatives : bool
            Accept a design that may answer "absent" for a stored key.
        progress : callable, optional
            Called with the phase's name, how much of it is done and how much there is.
        on : int, str or client, optional
            Who scans the keys of a store for layers, each a part: so many processes, or as ``dlbf.build.build_file``.

        Returns
        -------
        RebuildReport

        Raises
        ------
        StoreError
            If the design cannot be a store's filter, or the store cannot be written.

        Notes
        -----
        Repairs a store whose filter cannot be used.  Nothing is written before the switch, which is one transaction:
        interrupted at any moment, the old filter goes on serving.

        *A guard* needs it after anything that changed the engine behind it: another program's writes, a restored
        backup, a server that came back with less or more than it had.

        Run it in a process of its own (``dlbf rebuild``) where reads must not wait: training takes a core or two.
        Memory: at most 500,000 keys and as many absent ones are kept to learn from, whatever the size of the store.

        Examples
        --------
        >>> import tempfile
        >>> from dlbf.storage import Store
        >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as s:
        ...     s.update({b"key %d" % i: b"" for i in range(2000)})
        ...     report = s.rebuild()
        ...     report.done, report.design, s.stats().bits_per_key < 12
        (True, 'cuckoo', True)
        """
        self._environment.check()
        if self.readonly:
            raise StoreError(f"{self.path}: opened with readonly=True; open it again to rebuild")
        self._before_rebuild()
        wishes = Wishes(design, model, fpr, deletability, adversarial_fpr, allow_false_negatives, groups)
        return rebuild(self._commits, wishes, negatives, dry_run=dry_run, if_needed=if_needed, progress=progress, on=on)

    def _before_rebuild(self) -> None:
        """Raise if it cannot be done."""

    def drift(self, estimate: bool = True) -> Drift:
        """How far the store is from what its filter was built for, and whether a rebuild is due.

        Parameters
        ----------
        estimate : bool
            Also learn from a small sample to tell what a model would save, where that is not known yet; takes a second
            or two, and scikit-learn.

        Returns
        -------
        Drift
            ``due`` and ``reasons``, with the figures behind them.
        """
        self._environment.check()
        return drift(self._commits, estimate)

    def checkpoint(self) -> None:
        """Write the filter into the environment and shorten the journal, so that opening needs no replay."""
        self._commits.checkpoint()

    def sync(self) -> None:
        """Wait until everything committed is on disk (for the modes in which commits do not)."""
        if self.readonly:
            raise StoreError(f"{self.path}: opened with readonly=True; sync() is for who writes")
        with self._environment.reading():  # so that the map does not move meanwhile
            self._environment.handle.sync(True)

    @property
    def state(self) -> str:
        """ "filtering" or "pass-through"."""
        return "closed" if self._environment.handle is None else self.ledger.state()[0]

    def stats(self) -> Stats:
        """Figures for operators; cheap enough to ask for every second."""
        self._environment.check()
        return gather(self._environment, self.ledger, self.source, self.traffic)

    # --- closing

    def close(self) -> None:
        """Let go of the environment; a long journal is checkpointed first.  Closing twice is allowed.

        Write transactions of this thread are undone, iterators and snapshots end.

        Raises
        ------
        StoreError
            If another thread has been writing, or making a backup, for 30 seconds: the store stays open then.  It never
            waits for another *process*: if one is writing, the journal stays as it is, and the sample of absent keys
            that this process has not written yet is lost.
        """
        environment = self._environment
        if environment.was_forked():
            # Not ours to close: it would free the parent's slots in LMDB's table of readers.
            environment.handle = None
            return
        if environment.handle is None:
            self._let_go()  # what is left, if that was interrupted
            return
        self._commits.writes.end_left_open()
        with Held(self._close_lock):
            if environment.handle is None:
                return  # another thread was faster
            environment.closing = threading.get_ident()
            try:
                if not self.readonly:
                    self._without_writers(lambda: None)  # and nobody begins to write from now on
                    self._leave_tidy()
                self._close()
            finally:
                self._may_have_closed()

    def _leave_tidy(self) -> None:
        """Save the next who opens it a long journal, and keep what was sampled; unless another process is writing."""
        with contextlib.suppress(lmdb.Error, StoreError):
            if self.ledger.filter is not None and self.ledger.log_bytes > 4096:
                self._commits.checkpoint(wait=False)
            if self.traffic.n_samples >= FLUSH_LEAST_KEYS:
                self._commits.flush(wait=False)

    def _close(self) -> None:
        environment = self._environment
        if environment.handle is None or environment.was_forked():
            self._let_go()
            return
        environment.closing = threading.get_ident()
        try:
            ended = self.traffic.end_flushing(CLOSE_PATIENCE_SECONDS)
            if not self.ledger.end_loading(CLOSE_PATIENCE_SECONDS) or not ended:
                # It waits for this one: a signal handler that came in the middle of a change.
                raise StoreError(f"{self.path}: a change of the store has not ended; close it later")
            # py-lmdb waits for a write transaction of another thread, which could not end it any more then.
            self._without_writers(self._let_go)
        finally:
            self._may_have_closed()

    def _may_have_closed(self) -> None:
        if self._environment.handle is not None:
            self._environment.closing = 0

    def _without_writers(self, act: Callable[[], object]) -> None:
        """Wait until no thread of this process writes, and do something before the next one does."""
        with WriteLock(self._commits.writes, timeout=CLOSE_PATIENCE_SECONDS) as taken:
            if not taken:
                raise StoreError(
                    f"{self.path}: another thread has been writing, or making a backup, for "
                    f"{CLOSE_PATIENCE_SECONDS:.0f} s; end its transaction there, then close the store"
                )
            act()

    def _let_go(self) -> None:
        """Close everything; what an exception has interrupted is done when it is called again."""
        if self.ledger.lock.is_mine():
            # A signal handler closes the store while this thread reads the filter out of the map, and may go on with
            # that: the map stays until this is called again, or everything is collected.
            self.ledger.withdraw()
            self._environment.leave()
            return
        with Held(self.ledger.lock):  # another thread that has it may be reading the filter, too
            self.ledger.withdraw()
            self._environment.let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
