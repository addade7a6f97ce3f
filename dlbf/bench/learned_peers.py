"""``dlbf bench learned --peers``: the published learned filters beside ours, on the same keys with the same model.

A model learns from all keys and from two thirds of the absent ones.  Every filter gets that model, the keys, and a
sixth of the absent keys to choose its thresholds and sizes by.  Rates are those of the last sixth, which nothing was
fitted on; keys are drawn alike throughout.

Three kinds stand side by side: ours (what ``auto`` and ``static`` give), published designs as this library builds them
(no region bounded, as in the papers), and the filters of the package learnedbf with our model as their classifier.
Fast PLBF finds faster what PLBF looks for; the search here looks at every cut of the score, so the row ``plbf`` stands
for both.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from dlbf import models
from dlbf.bench.data import Split
from dlbf.bench.learned_foreign import FOREIGN, Foreign, version
from dlbf.bench.results import Bar
from dlbf.bench.timing import Say, Work, ask_each_in, fresh, side_by_side
from dlbf.learned import LearnedFilter
from dlbf.learned.evaluation import Rate
from dlbf.models import Model

__all__ = ["CLBF_MEMORY", "CLBF_TIMES", "TARGETS", "PeerFigures", "PeerRow", "bars", "measure"]

TARGETS = (0.01, 0.001)
# What the authors of the cascaded learned Bloom filter say of it beside PLBF: up to 24 % less memory, and rejecting up
# to 14 times as fast.
CLBF_MEMORY = 1 - 0.24
CLBF_TIMES = 14
TIMED_AT_ONCE = 200


@dataclass(frozen=True)
class Entry:
    """A filter of this library that takes part.

    Attributes
    ----------
    name : str
        What the table calls it.
    design : str
        For ``LearnedFilter.fit``.
    worst : float
        The largest rate for keys that are made to look like stored ones; 1: not bounded.
    cannot : tuple of str
        What it cannot do that others can.
    published : bool
        Whether it is a design of others.
    """

    name: str
    design: str
    worst: float
    cannot: tuple[str, ...] = ()
    published: bool = False

    def fit(self, split: Split, model: Model, fpr: float) -> LearnedFilter:
        """The filter of the split's keys."""
        return LearnedFilter.fit(
            split.keys, split.negatives, fpr=fpr, deletability=0.0, adversarial_fpr=self.worst, design=self.design,
            model=model, progress=False,
        )  # fmt: skip


UNBOUNDED = "bound forged keys"
ENTRIES = (
    Entry("static, worst case 0.1", "static", 0.1, ("add", "remove")),
    Entry("static", "static", 1.0, ("add", "remove", UNBOUNDED)),
    Entry("auto, worst case 0.1", "auto", 0.1),
    Entry("auto", "auto", 1.0, (UNBOUNDED,)),
    Entry("lbf", "lbf", 1.0, ("remove", UNBOUNDED), published=True),
    Entry("slbf", "slbf", 1.0, ("remove", UNBOUNDED), published=True),
    Entry("plbf", "plbf", 1.0, ("remove", UNBOUNDED), published=True),
    Entry("ada-bf", "ada-bf", 1.0, ("remove", UNBOUNDED), published=True),
)
FOREIGN_CANNOT = ("add", "remove", UNBOUNDED, "take bytes", "be kept in a file")


@dataclass(frozen=True)
class PeerRow:
    """One filter at one target: its figures, or why there are none.

    Attributes
    ----------
    name, code : str
        What it is called; whose code it is.
    bits_per_key : float
        Of the filter and the model.
    fpr_planned, fpr : float
        The rate it says it will have (what it was asked for, of the package's); that of unseen absent keys, with its
        99 % interval.
    lost_keys : int
        Stored keys that it denies.
    query_ns, batch_ns : float
        Of one absent key, asked alone and in a batch.
    build_seconds : float
        Without the training of the model.
    """

    name: str
    code: str
    fpr_target: float
    deletable: bool
    cannot: tuple[str, ...]
    error: str | None = None
    bits_per_key: float | None = None
    fpr_planned: float | None = None
    fpr: float | None = None
    fpr_interval: tuple[float, float] | None = None
    lost_keys: int = 0
    query_ns: float | None = None
    batch_ns: float | None = None
    build_seconds: float | None = None

    @property
    def over_planned(self) -> float | None:
        """Measured over planned."""
        return None if self.fpr is None or not self.fpr_planned else self.fpr / self.fpr_planned

    @property
    def over_target(self) -> float | None:
        """Measured over what was asked for."""
        return None if self.fpr is None else self.fpr / self.fpr_target

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return vars(self) | {"over_planned": self.over_planned, "over_target": self.over_target}


@dataclass
class PeerFigures:
    """All rows, and what they share."""

    keys: int
    negatives: int
    unseen: int
    models: dict[str, dict[str, object]] = field(default_factory=dict)
    rows: list[PeerRow] = field(default_factory=list)

    @property
    def lost_keys(self) -> int:
        """Stored keys that were denied, in all."""
        return sum(row.lost_keys for row in self.rows)


class _Batch(Protocol):
    """What answers for many keys."""

    def contains_many(self, keys: Sequence[bytes], /) -> Any: ...


@dataclass
class _Built:
    """A filter to be measured: what answers, its row so far, and how one key after the other is asked for."""

    row: PeerRow
    filter: _Batch
    ask: Work


def measure(
    split: Split,
    targets: Sequence[float] = TARGETS,
    *,
    kind: str = "auto",
    rounds: int = 20,
    say: Say = lambda text: None,
) -> PeerFigures:
    """Every filter at every target.

    Parameters
    ----------
    split : Split
        The keys; of the absent ones a part that nothing is fitted on.
    targets : sequence of float
        Rates.
    kind : str
        Kind of the model that all share.
    rounds : int
        Turns of the timing; the best counts.
    say : callable
        Told what is being done.
    """
    figures = PeerFigures(len(split.keys), len(split.learnt_negatives) + len(split.negatives), len(split.unseen))
    for fpr in targets:
        say(f"{fpr:g}: training the model that all share")
        start = time.perf_counter()
        model = models.train(
            split.learnt_keys, split.learnt_negatives, kind=kind, fpr=fpr, deletability=0.0,
            validation=split.negatives, n_keys=len(split.keys), progress=False,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        figures.models[f"{fpr:g}"] = {"model": str(model), "nbytes": model.nbytes, "seconds": seconds}
        built = [_ours(entry, split, model, fpr, say) for entry in ENTRIES]
        sizes = {one.row.name: one.row.bits_per_key for one in built if isinstance(one, _Built)}
        ada_bits = int((sizes.get("ada-bf") or 0) * len(split.keys))
        built += [_foreign(name, split, model, fpr, ada_bits, say) for name in FOREIGN]
        figures.rows += _timed(built, split, rounds, say)
    return figures


def _ours(entry: Entry, split: Split, model: Model, fpr: float, say: Say) -> _Built | PeerRow:
    say(f"{fpr:g}: {entry.name}")
    code = "dlbf, published design" if entry.published else "dlbf"
    row = PeerRow(entry.name, code, fpr, "remove" not in entry.cannot, entry.cannot)
    start = time.perf_counter()
    try:
        lf = entry.fit(split, model, fpr)
    except ValueError as error:
        return replace(row, error=str(error))
    seconds = time.perf_counter() - start
    row = replace(row, bits_per_key=lf.bits_per_key, fpr_planned=lf.plan.fpr, build_seconds=seconds)
    return _Built(_rated(row, lf, split), lf, ask_each_in(lf))


def _foreign(name: str, split: Split, model: Model, fpr: float, n_bits: int, say: Say) -> _Built | PeerRow:
    row = PeerRow(name, "learnedbf", fpr, False, FOREIGN_CANNOT)
    try:
        row = replace(row, code=f"learnedbf {version()}")
    except ImportError as error:
        return replace(row, error=str(error))
    say(f"{fpr:g}: {name} of learnedbf")
    start = time.perf_counter()
    try:
        peer = Foreign(name, model, split.keys, split.negatives, split.unseen, fpr, n_bits)
    except Exception as error:  # whatever a peer raises is its result
        return replace(row, error=f"did not run: {type(error).__name__}: {error}")
    seconds = time.perf_counter() - start
    bits = peer.size_in_bits / len(split.keys)
    row = replace(row, bits_per_key=bits, fpr_planned=fpr, build_seconds=seconds)
    return _Built(_rated(row, peer, split), peer, peer.ask)


def _rated(row: PeerRow, filter: _Batch, split: Split) -> PeerRow:
    """The row with the rate of unseen keys, and the number of stored ones that are denied."""
    passing = int(np.asarray(filter.contains_many(split.unseen)).sum())
    rate = Rate(passing, len(split.unseen), row.fpr_target)
    denied = int((~np.asarray(filter.contains_many(split.keys))).sum())
    return replace(row, fpr=rate.value, fpr_interval=rate.interval, lost_keys=denied)


def _timed(built: Sequence[_Built | PeerRow], split: Split, rounds: int, say: Say) -> list[PeerRow]:
    """All rows, those of filters with their times, which are taken in turns."""
    say("asking for absent keys")

    def asked(turn: int) -> list[bytes]:
        return fresh(random.Random(turn).choices(split.unseen, k=TIMED_AT_ONCE))

    def times(ways: Mapping[str, Work]) -> dict[str, float]:
        return {name: timing.best for name, timing in side_by_side(ways, asked, rounds).items()} if ways else {}

    filters = {f"{one.row.code}: {one.row.name}": one for one in built if isinstance(one, _Built)}
    singly = times({name: one.ask for name, one in filters.items()})
    batched = times({name: one.filter.contains_many for name, one in filters.items()})
    rows = {name: replace(one.row, query_ns=singly[name], batch_ns=batched[name]) for name, one in filters.items()}
    return [rows[f"{one.row.code}: {one.row.name}"] if isinstance(one, _Built) else one for one in built]


def bars(figures: PeerFigures) -> list[Bar]:
    """What CLBF's authors say of it beside PLBF, as bars for ours: beside PLBF as built here, and beside learnedbf's.

    Less memory with ``static``, which like PLBF has no bound for forged keys; and the time of the same filter.
    """
    judged = []
    for fpr in dict.fromkeys(row.fpr_target for row in figures.rows):
        rows = {row.name: row for row in figures.rows if row.fpr_target == fpr and row.error is None}
        ours = rows.get("static")
        for name, words in (("plbf", "plbf"), ("FastPLBF", "FastPLBF of learnedbf")):
            peer = rows.get(name)
            if ours is None or peer is None:
                continue
            what = f"{fpr:g}: static to {words}"
            if ours.bits_per_key and peer.bits_per_key:
                judged.append(Bar("CLBF", f"{what}, bits per key", ours.bits_per_key / peer.bits_per_key, CLBF_MEMORY))
            if ours.query_ns and peer.query_ns:
                judged.append(Bar("CLBF", f"{what}, time to reject", ours.query_ns / peer.query_ns, 1 / CLBF_TIMES))
    return judged
