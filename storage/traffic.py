"""What a store or a guard is asked: counters, observed rates, and a sample of the absent keys.

Knows nothing of stores: it is told how to write down what it has (``flush``), and whether it still may.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import lmdb

from dlbf.errors import StoreError
from dlbf.kernels.locks import Held
from dlbf.kernels.traffic import TrafficCore
from dlbf.storage import misses
from dlbf.storage.layout import TrafficRecord
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.observing import observe
from dlbf.storage.tablelog import TableLog

__all__ = ["Reads", "Traffic"]

log = logging.getLogger("dlbf.storage")

# A process writes the absent keys it has sampled by itself at most so often; more are thinned until then.  Writing one
# costs as much as twenty absent reads, so this is what bounds the cost: a full buffer takes a tenth of a second.
FLUSH_SECONDS = 10.0
# While the buffer fills, time and room are looked at so often.
CHECKS = 16


@dataclass(slots=True)
class Reported:
    """Lookups that are in the traffic record already, and the generation that had answered them."""

    filtered: int = 0
    false_positives: int = 0
    generation: int = 0


class Reads(NamedTuple):
    """Lookups of absent keys, and how many of them went to the data."""

    absent: int
    needless: int


class Traffic(TrafficCore):
    """See the module.

    Parameters
    ----------
    limit : int
        How many absent keys are sampled; 0: none.
    flush : callable
        Writes ``report`` in a transaction of its own unless somebody else is writing; called in another thread.
    is_open : callable
        Whether that may be begun.
    """

    def __init__(self, limit: int, flush: Callable[[], None], is_open: Callable[[], bool]) -> None:
        self.limit = limit
        self._flush = flush
        self._is_open = is_open
        self._sample_lock = threading.RLock()  # taking samples, thinning them, putting them back
        self._flusher: threading.Thread | None = None
        self._flushed_at = time.monotonic()
        self._reported = Reported()
        self._began = Reported()  # what was counted when the generation began to answer
        self._written = TrafficRecord()  # what the last report has left

    def start(self, txn: Txn, log: TableLog) -> None:
        """Begin to draw absent keys, as rarely as the sample there is asks for."""
        if self.limit:
            self._start(misses.drawing_rate(txn, log.dbs, self.limit, log.read_traffic(txn).scale))

    def start_often(self) -> None:
        """Begin to draw them as often as any process does, without a look at the sample: the first report looks."""
        if self.limit:
            self._start(misses.LEAST_EVERY)

    def _start(self, every: float) -> None:
        self.sample(every, misses.BUFFER_KEYS // CHECKS, int.from_bytes(os.urandom(8), "little") | 1)

    # --- rates

    def watch_generation(self, generation: int) -> None:
        """Another filter answers from now on: count its lookups from here."""
        if self._reported.generation != generation:
            self._reported = Reported(self.n_filtered, self.n_false_positives, generation)
        if self._began.generation != generation:
            self._began = Reported(self.n_filtered, self.n_false_positives, generation)

    def reads_of(self, generation: int) -> Reads:
        """What a generation's filter was asked for: by this process, or by all up to its last report."""
        began, written = self._began, self._written
        if began.generation != generation:
            return Reads(0, 0)
        needless = self.n_false_positives - began.false_positives
        own = Reads(self.n_filtered - began.filtered + needless, needless)
        if written.generation != generation or written.false_positives <= needless:
            return own
        return Reads(written.absent, written.false_positives)

    def observed(self, record: TrafficRecord, generation: int) -> TrafficRecord:
        """The traffic record with what this process has not reported yet."""
        passed = self.n_false_positives - self._reported.false_positives
        return observe(record, generation, self.n_filtered - self._reported.filtered + passed, passed)

    def report(self, txn: Txn, log: TableLog, generation: int, changes: tuple[int, int] | None = None) -> None:
        """Write sampled absent keys and counts of lookups; ``changes``: keys added and deleted up to a checkpoint."""
        self._flushed_at = time.monotonic()
        self.report_due = False
        record = self.observed(log.read_traffic(txn), generation)
        self._reported = Reported(self.n_filtered, self.n_false_positives, generation)
        if changes is not None:
            record = replace(record, added=changes[0], deleted=changes[1])
        if self.limit:
            every = self.sample_every
            # Each once: a program that polls for one key must not fill the sample with it.
            drawn = list(dict.fromkeys(self.take_samples()))
            self._draw_every(misses.write_misses(txn, log.dbs, drawn, every, self.limit, record.scale))
        log.write_traffic(txn, record)
        self._written = record

    # --- samples

    def samples_grown(self) -> None:
        """More absent keys have been drawn: have them written if it is time, and draw fewer if there is no room."""
        is_flushing = self._flusher is not None and self._flusher.is_alive()
        if time.monotonic() - self._flushed_at >= FLUSH_SECONDS and not is_flushing and self._is_open():
            self.report_due = True
            self._flusher = threading.Thread(target=self._flush_aside, name="dlbf-misses", daemon=True)
            try:
                self._flusher.start()
            except RuntimeError:
                self._flusher = None
        while self.n_samples >= misses.BUFFER_KEYS or self.sample_bytes >= misses.BUFFER_BYTES:
            self._draw_every(2 * self.sample_every)
        self.check(min(self.n_samples + misses.BUFFER_KEYS // CHECKS, misses.BUFFER_KEYS))

    def _draw_every(self, every: float) -> None:
        """Draw one absent key in ``every``; those that wait to be written are thinned to that, so all stay uniform."""
        with Held(self._sample_lock):
            before = self.sample_every
            if self.n_samples:
                every = max(every, before)  # there are no more of them than were drawn
                self.thin_samples(before / every)
            self.sample(every, self.n_samples + misses.BUFFER_KEYS // CHECKS)

    def _flush_aside(self) -> None:
        try:
            self._flush()
        except (lmdb.Error, StoreError) as error:
            log.debug("sampled absent keys were not written: %s", error)
        finally:
            self._flushed_at = time.monotonic()  # or tried to, or there is nobody who could: not at once again
            self._flusher = None

    def end_flushing(self, patience_seconds: float) -> bool:
        """Before closing: wait for the thread that writes samples; False if it has not ended."""
        thread = self._flusher
        if thread is None or not thread.is_alive():
            return True
        thread.join(patience_seconds)
        return not thread.is_alive()
