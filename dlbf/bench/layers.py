"""``dlbf bench layers``: what a store's layered filter takes, lets pass and costs to ask, beside what was promised.

*sizes*: just after a rebuild, for several rates and worst cases, with a model and without.  *life*: averaged from one
rebuild to the next, while 5 % are added, 1 % deleted, and absent keys asked for.  *growing*: from nothing, without a
model.  *times*: an absent ``get`` beside that of tables that delete in place, just after a rebuild and while keys are
added.  *sharing*: private memory of eight processes that have one store open.
"""

import gc
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean

from dlbf.bench.results import Bar
from dlbf.bench.sharing import Sharing, measure_sharing
from dlbf.bench.timing import Say
from dlbf.models import Model
from dlbf.storage import Store

__all__ = ["PARTS", "Grown", "LayerFigures", "Life", "SizeRow", "Times", "bars", "measure"]

PARTS = ("sizes", "life", "growing", "times", "sharing")
VALUE = b"v"
ASKED_AT_ONCE = 20_000
LIFE_STEPS = 20
GROWN_SHARE, DELETED_SHARE = 0.05, 0.01
GROWTH_BATCH = 1000
JUDGED_FROM = 10_000
TIMED_KEYS = 20_000
TIMED_AT_ONCE = 500
TIMED_TURNS = 9
# At most so much more than the target may pass.
MOST_PASSING = 1.05


@dataclass(frozen=True)
class Wanted:
    """One line of the sizes: a rate, the worst case (1: none), whether to learn, and the bits per key at most."""

    fpr: float
    worst: float
    learned: bool
    at_most: float

    @property
    def name(self) -> str:
        """What a reader calls it."""
        if not self.learned:
            return f"{self.fpr:.4g}, no model"
        return f"{self.fpr:.4g}, " + (f"worst case {self.worst:g}" if self.worst < 1 else "no worst case")


WANTED = (
    Wanted(0.01, 0.1, True, 3.7),
    Wanted(0.01, 0.2, True, 2.7),
    Wanted(0.01, 0.5, True, 1.45),
    Wanted(0.01, 1.0, True, 0.66),
    Wanted(0.001, 0.1, True, 4.2),
    Wanted(0.01, 1.0, False, 7.0),
    Wanted(0.001, 1.0, False, 10.3),
)
LIFE_AT_MOST = 4.6
GROWING_AT_MOST = 9.5
TIMES_AT_MOST = 1.05
PRIVATE_AT_MOST = 0.15
PROCESSES = 8
ASKED_BY_EACH = 2000


@dataclass(frozen=True)
class SizeRow:
    """A store just after a rebuild."""

    name: str
    fpr: float
    bits_per_key: float
    at_most: float
    measured_fpr: float
    missed_keys: int
    model: str
    model_bytes: int
    rebuild_seconds: float


@dataclass(frozen=True)
class Life:
    """A store from one rebuild to the next; the rates are those of absent keys, what is remembered included."""

    mean_bits: float
    first_bits: float
    last_bits: float
    worst_fpr: float
    missed_keys: int
    generations: int


@dataclass(frozen=True)
class Grown:
    """A store without a model that grows from nothing, in transactions of 1,000 keys."""

    keys: int
    most_bits: float
    most_bits_at: int
    mean_bits: float
    missed_keys: int


@dataclass(frozen=True)
class Times:
    """Nanoseconds of an absent ``get``, with layers and with tables that delete in place, asked in turns."""

    what: str
    layers_ns: float
    tables_ns: float
    added_keys: int  # since the base was made

    @property
    def ratio(self) -> float:
        """Layers over tables."""
        return self.layers_ns / self.tables_ns


@dataclass
class LayerFigures:
    """Everything that was measured."""

    keys: int
    asked: int
    sizes: list[SizeRow] = field(default_factory=list)
    life: Life | None = None
    growing: Grown | None = None
    times: list[Times] = field(default_factory=list)
    sharing: Sharing | None = None

    @property
    def missed_keys(self) -> int:
        """Stored keys that were denied: none, or a promise is broken."""
        parts = [*self.sizes, *(part for part in (self.life, self.growing) if part is not None)]
        return sum(part.missed_keys for part in parts)


def bars(figures: LayerFigures) -> list[Bar]:
    """What is asked of the figures there are."""
    found = []
    bar = partial(Bar, "Store")
    for row in figures.sizes:
        found.append(bar(f"bits per key, {row.name}", row.bits_per_key, row.at_most))
        found.append(bar(f"rate over the target, {row.name}", row.measured_fpr / row.fpr, MOST_PASSING))
    if figures.life is not None:
        found.append(bar("bits per key, from rebuild to rebuild", figures.life.mean_bits, LIFE_AT_MOST))
        found.append(bar("rate over the target, from rebuild to rebuild", figures.life.worst_fpr / 0.01, MOST_PASSING))
    if figures.growing is not None:
        found.append(bar("bits per key, while growing without a model", figures.growing.most_bits, GROWING_AT_MOST))
    found += [bar(f"absent get, {times.what}, over tables", times.ratio, TIMES_AT_MOST) for times in figures.times]
    if figures.sharing is not None:
        found.append(bar("private memory of a process, over the filter", figures.sharing.share, PRIVATE_AT_MOST))
    return [*found, bar("keys missed", figures.missed_keys, 0)]


def measure(
    keys: list[bytes],
    negatives: list[bytes],
    unseen: list[bytes],
    folder: Path,
    *,
    parts: Sequence[str] = PARTS,
    model: str | Model = "auto",
    shared_keys: int = 10_000_000,
    say: Say = lambda text: None,
) -> LayerFigures:
    """Make stores of these keys and measure them.

    Parameters
    ----------
    keys : list of bytes
        What is stored.
    negatives : list of bytes
        Absent keys to learn from.
    unseen : list of bytes
        Absent keys that rates are measured on.
    folder : path
        Where stores are made.
    parts : sequence of str
        Of ``PARTS``.
    model : str or Model
        What stores with a model learn.
    shared_keys : int
        Keys of the store that several processes open.
    say : callable
        Told what is being done.
    """
    figures = LayerFigures(len(keys), len(unseen))
    if "sizes" in parts:
        with closing(_loaded(folder / "sizes", keys)) as store:
            for wanted in WANTED:
                say(f"rebuilding for {wanted.name}")
                figures.sizes.append(_size(store, wanted, keys, negatives, unseen, model))
    if "life" in parts:
        say("from one rebuild to the next")
        figures.life = _life(folder / "life", keys, negatives, unseen, model)
    if "growing" in parts:
        say("growing")
        figures.growing = _grow(folder / "growing", keys)
    if "times" in parts:
        for learned in (False, True):
            say("asking, with a model" if learned else "asking")
            own = model if learned else None
            figures.times += _times(folder / f"times-{learned}", keys, negatives, unseen, own)
    if "sharing" in parts:
        figures.sharing = measure_sharing(shared_keys, PROCESSES, ASKED_BY_EACH, folder / "sharing", say)
    return figures


def _loaded(path: Path, keys: Sequence[bytes]) -> Store:
    path.parent.mkdir(parents=True, exist_ok=True)
    store = Store(path, sync="none")
    store.update((key, VALUE) for key in keys)
    return store


def _missed(store: Store, keys: list[bytes]) -> int:
    return sum(value is None for value in store.get_many(keys))


def _passing(store: Store, absent: list[bytes]) -> float:
    """Share of the absent keys that the filter lets pass."""
    return float(store.ledger.filter.contains_many(absent).mean())


def _size(
    store: Store, wanted: Wanted, keys: list[bytes], negatives: list[bytes], unseen: list[bytes], model: str | Model
) -> SizeRow:
    began = time.perf_counter()
    if wanted.learned:
        store.rebuild(
            negatives, "layers", model=model, fpr=wanted.fpr, deletability=0.0, adversarial_fpr=wanted.worst
        )  # fmt: skip
    else:
        store.rebuild(design="layers", model=None, fpr=wanted.fpr)
    seconds = time.perf_counter() - began
    stats = store.stats()
    return SizeRow(
        wanted.name, wanted.fpr, stats.bits_per_key, wanted.at_most, _passing(store, unseen), _missed(store, keys),
        stats.model, stats.model_bytes, seconds,
    )  # fmt: skip


def _life(path: Path, keys: list[bytes], negatives: list[bytes], unseen: list[bytes], model: str | Model) -> Life:
    n_first = math.ceil(len(keys) / (1 + GROWN_SHARE))
    n_gone = int(DELETED_SHARE * n_first)
    coming, leaving = keys[n_first:], keys[:n_gone]
    bits, rates = [], []
    with closing(_loaded(path, keys[:n_first])) as store:
        store.rebuild(negatives, "layers", model=model)
        first_generation = store.stats().generation
        for step in range(LIFE_STEPS + 1):
            bits.append(store.stats().bits_per_key)
            rates.append(_passing(store, unseen))
            if step == LIFE_STEPS:
                break
            for key in islice(unseen, step * ASKED_AT_ONCE, (step + 1) * ASKED_AT_ONCE):
                store.get(key)
            with store.write() as txn:
                for key in _part(coming, step):
                    txn.put(key, VALUE)
                for key in _part(leaving, step):
                    txn.delete(key)
        missed = _missed(store, keys[n_gone:])
        generations = int(store.stats().generation != first_generation)
    return Life(fmean(bits), bits[0], bits[-1], max(rates), missed, generations)


def _part(keys: list[bytes], step: int) -> list[bytes]:
    return keys[len(keys) * step // LIFE_STEPS : len(keys) * (step + 1) // LIFE_STEPS]


def _grow(path: Path, keys: list[bytes]) -> Grown:
    bits: list[tuple[float, int]] = []
    with closing(Store(path, sync="none")) as store:
        for start in range(0, len(keys), GROWTH_BATCH):
            store.update((key, VALUE) for key in keys[start : start + GROWTH_BATCH])
            if start + GROWTH_BATCH > JUDGED_FROM:
                stats = store.stats()
                bits.append((stats.bits_per_key, stats.keys))
        missed = _missed(store, keys)
    most, at = max(bits, default=(math.nan, 0))
    return Grown(len(keys), most, at, fmean(each for each, _ in bits) if bits else math.nan, missed)


def _times(
    path: Path, keys: list[bytes], negatives: list[bytes], unseen: list[bytes], model: str | Model | None
) -> list[Times]:
    """Just after a rebuild, and at the worst moment while as many keys are added as are planned for."""
    n_first = math.ceil(len(keys) / (1 + GROWN_SHARE))
    coming = keys[n_first:]
    words = "no model" if model is None else "with a model"
    layered, tables = _loaded(path / "layers", keys[:n_first]), _loaded(path / "tables", keys[:n_first])
    with closing(layered), closing(tables):
        for store, design in ((layered, "layers"), (tables, "tables")):
            store.rebuild(negatives if model is not None else None, design, model=model)

        def timed(what: str) -> Times:
            best = _best_times((layered.get, tables.get), unseen[:TIMED_KEYS])
            layers = layered.stats().layers
            return Times(f"{words}, {what}", *best, 0 if layers is None else layers.added_keys)

        at_first, growing = timed("after a rebuild"), []
        for step in range(LIFE_STEPS):
            for key in _part(coming, step):
                layered[key] = tables[key] = VALUE
            if step % 2:
                growing.append(timed("while keys are added"))
    return [at_first, max(growing, key=lambda times: times.ratio)]


def _best_times(
    gets: tuple[Callable[[bytes], object], Callable[[bytes], object]], absent: list[bytes]
) -> tuple[float, float]:
    """The time of one ``get`` in nanoseconds, of each.

    Both are asked for the same few keys in turns, and the best of several turns counts: other programs disturb both
    alike, and mostly neither.  The first turn is not timed: what it reads for nothing is known afterwards.
    """
    totals = [0.0, 0.0]
    enabled = gc.isenabled()
    gc.disable()
    try:
        for start in range(0, len(absent), TIMED_AT_ONCE):
            part = absent[start : start + TIMED_AT_ONCE]
            best = [math.inf, math.inf]
            for number in range(TIMED_TURNS + 1):
                for which, get in enumerate(gets):
                    began = time.perf_counter_ns()
                    for key in part:
                        get(key)
                    took = time.perf_counter_ns() - began
                    if number:
                        best[which] = min(best[which], took)
            totals = [total + one for total, one in zip(totals, best, strict=True)]
    finally:
        if enabled:
            gc.enable()
    return totals[0] / len(absent), totals[1] / len(absent)
