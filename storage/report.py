"""What a store tells about itself."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from dlbf.notebook import Shown
from dlbf.plain import plain_data
from dlbf.storage.generations import MIN_CAPACITY
from dlbf.theory.trade import Trade, trade_lines

__all__ = ["Drift", "FilterFigures", "Layers", "NeedlessReads", "RebuildReport", "Stats", "Verification"]


@dataclass(frozen=True)
class Layers(Shown):
    """The layers of a store's filter; see ``Stats.layers``.

    Attributes
    ----------
    base_bytes, delta_bytes, absent_bytes : int
        Memory of each: the static base (with its model), the tables of keys added since, the keys known to be absent.
    base_keys : int
        Keys that the base was made of.
    added_keys : int
        Entries of the tables, and ``planned_keys`` is how many are planned for before the next base.
    dead_keys : int
        Keys that the base still lets pass and that are not there any more.
    absent_keys : int
        Keys that are known to be absent.
    shared : bool
        Whether the base is in memory that all processes which have the store open use together.
    absent_limit_bytes : int
        What the keys known to be absent may take at most, in each process.

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
    ...     store.update({b"key %d" % i: b"" for i in range(5000)})
    ...     layers = store.stats().layers
    >>> layers.base_keys, layers.added_keys, layers.dead_keys, layers.absent_keys
    (5000, 0, 0, 0)
    """

    base_bytes: int
    delta_bytes: int
    absent_bytes: int
    base_keys: int
    added_keys: int
    planned_keys: int
    dead_keys: int
    absent_keys: int
    shared: bool = False
    absent_limit_bytes: int = 0


@dataclass(frozen=True)
class NeedlessReads(Shown):
    """Reads of keys that were not there, by why the filter let them pass; see ``Stats.needless_reads``.

    Attributes
    ----------
    ordinary : int
        False positives that were not known, or not any more.
    deleted : int
        Keys that were deleted, as far as that was still known.
    repeated : int
        Keys that were known to be absent before and had to make room for others, as far as that was still known.
    spared : int
        Questions that would have cost such a read, were the key not known to be absent.

    Examples
    --------
    >>> reads = NeedlessReads(ordinary=90, deleted=3, repeated=7)
    >>> reads.total
    100
    """

    ordinary: int = 0
    deleted: int = 0
    repeated: int = 0
    spared: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.ordinary + self.deleted + self.repeated


@dataclass(frozen=True)
class Stats(Shown):
    """A store's figures, see ``dlbf.storage.Store.stats``.

    Counts of lookups are those of this process since it opened the store.

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Store(folder.name) as store:
    ...     store[b"key"] = b"value"
    ...     store.get(b"key"), store.get(b"absent")
    ...     stats = store.stats()
    (b'value', None)
    >>> stats.keys, stats.lookups, stats.filtered, stats.false_positives
    (1, 2, 1, 0)
    >>> folder.cleanup()
    """

    keys: int
    filter_bytes: int
    model_bytes: int
    lookups: int
    filtered: int
    false_positives: int
    unfiltered: int
    fpr_target: float
    state: str
    reason: str
    capacity: int
    generation: int
    journal_records: int
    journal_bytes: int
    checkpoint_txn: int
    last_txn: int
    map_size: int
    map_used: int
    file_bytes: int
    readers: int
    design: str = "cuckoo"
    model: str = "none"
    misses: int = 0
    needless_reads: NeedlessReads = NeedlessReads()
    layers: Layers | None = None

    @property
    def bits_per_key(self) -> float:
        """Bits of filter and model per key, keys known to be absent included."""
        return 8 * (self.filter_bytes + self.model_bytes) / self.keys if self.keys else float("nan")

    @property
    def remembered(self) -> int:
        """Questions answered because the key was known to be absent, though base or tables let it pass."""
        return self.needless_reads.spared

    @property
    def observed_fpr(self) -> float:
        """Share of lookups of absent keys that the filter let through (NaN before the first one)."""
        absent = self.filtered + self.false_positives
        return self.false_positives / absent if absent else float("nan")

    @property
    def map_use(self) -> float:
        """Share of the LMDB map in use."""
        return self.map_used / self.map_size if self.map_size else float("nan")

    def asdict(self) -> dict[str, Any]:
        """All figures, for a machine."""
        return asdict(self) | {
            "bits_per_key": self.bits_per_key,
            "remembered": self.remembered,
            "observed_fpr": self.observed_fpr,
            "map_use": self.map_use,
        }


@dataclass(frozen=True)
class Verification(Shown):
    """What ``dlbf.storage.Store.verify`` found.

    Attributes
    ----------
    keys : int
        Keys in the data.
    missing : int
        Keys that the filter would deny.  Anything but 0 is a bug or damage.
    extra : int
        Entries of the filter that belong to no key: lost memory and false positives, nothing worse.
    problems : tuple of str
        Everything found, in words.
    examples : tuple of bytes
        Some of the missing keys.

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Store(folder.name) as store:
    ...     store[b"key"] = b"value"
    ...     found = store.verify()
    >>> found.ok, found.keys, found.missing, found.extra
    (True, 1, 0, 0)
    >>> folder.cleanup()
    """

    keys: int
    missing: int
    extra: int
    problems: tuple[str, ...] = ()
    examples: tuple[bytes, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether the filter holds exactly the keys of the data and every stored byte of it is as written."""
        return not self.missing and not self.extra and not self.problems

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class FilterFigures(Shown):
    """A store's filter at one moment.

    Attributes
    ----------
    design : str
        "cuckoo" for the filter without a model; otherwise the design of the learned filter.
    model : str
        Kind of model; "none".
    keys, filter_bytes, model_bytes, capacity : int
        Keys stored, bytes without the model, bytes of the model, keys planned for.
    fpr_predicted : float
        For queries like those it was built for, with the keys that are in it (of a filter not built yet: those that
        will be).
    fpr_measured : float
        Share of absent keys let through: held-out negatives if there are any, otherwise the traffic (NaN: unknown).
    deletability : float
        Predicted share of deleted keys that answer "absent".

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
    ...     store.update({b"key %d" % i: b"" for i in range(2000)})
    ...     figures = store.rebuild(design="cuckoo").after
    >>> figures.design, figures.model, figures.keys, figures.model_bytes
    ('cuckoo', 'none', 2000, 0)
    """

    design: str
    model: str
    keys: int
    filter_bytes: int
    model_bytes: int
    capacity: int
    fpr_predicted: float
    fpr_measured: float
    deletability: float

    @property
    def nbytes(self) -> int:
        """Bytes of filter and model."""
        return self.filter_bytes + self.model_bytes

    @property
    def bits_per_key(self) -> float:
        """Bits of filter and model per key."""
        return 8 * self.nbytes / self.keys if self.keys else float("nan")

    def asdict(self) -> dict[str, Any]:
        """All figures, for a machine."""
        return dict(plain_data(asdict(self) | {"nbytes": self.nbytes, "bits_per_key": self.bits_per_key}))


@dataclass(frozen=True)
class RebuildReport(Shown):
    """What ``dlbf.storage.Store.rebuild`` did, or would do.

    Attributes
    ----------
    done : bool
        Whether the store has a new filter now.
    reason : str
        Why it was done, or why not.
    before, after : FilterFigures or None
        The filter before (None: there was none that could be used) and after; what is planned if not done.
    fpr_target : float
        The target rate of the new filter.
    keys : int
        Keys in the store.
    sampled_keys : int
        Keys that the model has learnt from.
    negatives : int
        Absent keys used, those held out included.
    held_out : int
        Of these, the ones that only measured.
    negatives_from : str
        "traffic" (sampled misses), "caller", or "none".
    phases : tuple of (str, float)
        Seconds per phase, in order.
    notes : tuple of str
        What an operator should know.
    trade : tuple of dlbf.theory.Trade
        What a lower or a higher worst case would cost with the same model; empty without one.

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
    ...     store.update({b"key %d" % i: b"" for i in range(2000)})
    ...     report = store.rebuild(design="cuckoo")
    >>> report.done, report.keys, report.after.design
    (True, 2000, 'cuckoo')
    """

    done: bool
    reason: str
    before: FilterFigures | None
    after: FilterFigures | None
    fpr_target: float
    keys: int
    sampled_keys: int = 0
    negatives: int = 0
    held_out: int = 0
    negatives_from: str = "none"
    phases: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()
    trade: tuple[Trade, ...] = ()

    @property
    def seconds(self) -> float:
        """All phases together."""
        return sum(seconds for _, seconds in self.phases)

    @property
    def design(self) -> str:
        """Design of the new filter."""
        return self.after.design if self.after is not None else ""

    @property
    def model(self) -> str:
        """Kind of model of the new filter."""
        return self.after.model if self.after is not None else ""

    @property
    def bits_per_key(self) -> float:
        """Of the new filter, model included (of the old one if nothing was done)."""
        found = self.after or self.before
        return found.bits_per_key if found is not None else float("nan")

    @property
    def saved_bytes(self) -> int:
        """Bytes that the new filter takes less than the old one."""
        return self.before.nbytes - self.after.nbytes if self.before and self.after else 0

    def asdict(self) -> dict[str, Any]:
        """All figures, for a machine (JSON: NaN is None)."""
        figures = {
            "before": self.before.asdict() if self.before is not None else None,
            "after": self.after.asdict() if self.after is not None else None,
            "phases": dict(self.phases),
            "seconds": self.seconds,
            "saved_bytes": self.saved_bytes,
            "bits_per_key": self.bits_per_key,
        }
        return dict(plain_data(asdict(self) | figures))

    def __str__(self) -> str:
        lines = [f"{'done' if self.done else 'not done'}: {self.reason}"]
        rows: list[tuple[str, Any]] = [
            ("design", lambda f: f.design),
            ("model", lambda f: f"{f.model}, {f.model_bytes:,} bytes" if f.model != "none" else "none"),
            ("keys", lambda f: f"{f.keys:,}"),
            ("bytes", lambda f: f"{f.nbytes:,}"),
            # A smaller filter than the smallest is not made: with fewer keys their number does not tell its size.
            ("bits per key", lambda f: f"{f.bits_per_key:.2f}" if f.keys >= MIN_CAPACITY else "-"),
            ("FPR predicted", lambda f: _rate(f.fpr_predicted)),
            ("FPR measured", lambda f: _rate(f.fpr_measured)),
            ("deletability", lambda f: f"{f.deletability:.3f}"),
        ]
        if self.before is not None or self.after is not None:
            second = "after" if self.done else "planned"
            lines.append(f"{'':<15}{'before':>24}{second if self.after is not None else '':>24}")
            for name, show in rows:
                cells = ["-" if found is None else show(found) for found in (self.before, self.after)]
                lines.append(f"{name:<15}{cells[0]:>24}{cells[1] if self.after is not None else '':>24}")
            lines.append(f"{'target':<15}{'':>24}{_rate(self.fpr_target):>24}")
        if self.negatives:
            lines.append(
                f"learnt from {self.sampled_keys:,} keys and {self.negatives:,} absent ones ({self.negatives_from}), "
                f"{self.held_out:,} of these held out to measure"
            )
        lines.extend(trade_lines(self.trade))
        if self.phases:
            lines.append("  ".join(f"{name} {seconds:.1f} s" for name, seconds in self.phases))
        lines.extend(f"note: {note}" for note in self.notes)
        return "\n".join(lines)


def _rate(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4%}"


@dataclass(frozen=True)
class Drift(Shown):
    """How far a store is from what its filter was built for; see ``dlbf.storage.Store.drift``.

    Attributes
    ----------
    due : bool
        Whether a rebuild is worth while, or needed.
    healthy : bool
        False: the filter cannot be used, and every read goes to the data.
    reasons : tuple of str
        Why it is due.
    observed_fpr : float
        Share of absent keys that passed, over the window (NaN: nothing seen).
    observed_low : float
        Lower end of its 99.9 % interval: what noise cannot explain.
    target : float
        The target rate.
    window : int
        Absent lookups in the window, of all processes that reported.
    keys, capacity : int
        Keys now, and the number that the filter is planned for.
    keys_at_build : int
        Keys when the filter was last rebuilt (0: never).
    built : float
        When, in seconds since 1970 (0: never).
    added, deleted : int
        Keys added and deleted since this generation's filter was made.
    bits_per_key : float
        Now, model included.
    estimated_bits_per_key : float
        After a rebuild (NaN: cannot be told).
    saving_bytes : int
        Bytes that a rebuild would save, estimated; 0 if none.
    would_learn : bool
        Whether the estimate counts on a model.
    misses : int
        Absent keys sampled for training.
    turnover : float
        Share of the keys exchanged since the filter was last rebuilt: half of those added and deleted.
    churn_costs : str
        What that costs a learned filter: "room" where every region has a rate of its own (a cap, or deletability 0.9),
        "rate" where one lets all pass (deletability near 0); "" without a model.
    churn_limit : float
        Turnover at which a rebuild is due for that alone: 0.5 or 0.15 (NaN without a model).

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
    ...     store.update({b"key %d" % i: b"" for i in range(2000)})
    ...     drift = store.drift()
    >>> drift.healthy, drift.keys, drift.target
    (True, 2000, 0.01)
    """

    due: bool
    healthy: bool
    reasons: tuple[str, ...]
    observed_fpr: float
    observed_low: float
    target: float
    window: int
    keys: int
    capacity: int
    keys_at_build: int
    built: float
    added: int
    deleted: int
    bits_per_key: float
    estimated_bits_per_key: float
    saving_bytes: int
    would_learn: bool
    misses: int
    turnover: float = 0.0
    churn_costs: str = ""
    churn_limit: float = math.nan

    @property
    def growth(self) -> float:
        """Keys over capacity."""
        return self.keys / self.capacity if self.capacity else float("nan")

    @property
    def saving_bits_per_key(self) -> float:
        """Bits per key that a rebuild would save, estimated."""
        return 8 * self.saving_bytes / self.keys if self.keys else 0.0

    def asdict(self) -> dict[str, Any]:
        """All figures, for a machine (JSON: NaN is None)."""
        return dict(plain_data(asdict(self) | {"growth": self.growth, "saving_bits_per_key": self.saving_bits_per_key}))
