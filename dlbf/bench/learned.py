"""``dlbf bench learned``: every design at one budget, the sizes of ``auto``, and its speed beside its peers."""

import gc
import importlib.metadata
import random
import resource
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dlbf import models
from dlbf.bench.contenders import OURS, PEERS, SECRET
from dlbf.bench.data import Split
from dlbf.bench.timing import Answers, Ratio, Say, Work, ask_each_in, fresh, side_by_side
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.learned import LearnedFilter
from dlbf.theory import DESIGNS

__all__ = [
    "DesignRow",
    "FitTimes",
    "Measured",
    "QueryTimes",
    "SizeRow",
    "designs",
    "fit_times",
    "made_split",
    "query_times",
    "sizes",
]

TARGETS = ((0.01, 0.0), (0.01, 0.9), (0.001, 0.9))
# Models that are fitted for their time.
FITTED = ("ngram", "auto")


@dataclass(frozen=True)
class Measured:
    """What a design delivers, beside what was planned; deletability is None for one that cannot delete."""

    bits_per_key: float
    fpr: float
    fpr_planned: float
    fnr: float
    fnr_planned: float
    deletability: float | None
    deletability_planned: float | None
    adversarial_fpr: float
    adversarial_fpr_planned: float
    query_absent_ns: float


@dataclass(frozen=True)
class DesignRow:
    """One design at the budget: its figures, or why it cannot be had."""

    design: str
    figures: Measured | str

    def to_dict(self) -> dict[str, object]:
        """For JSON: the figures beside the name."""
        if isinstance(self.figures, str):
            return {"design": self.design, "error": self.figures}
        return {"design": self.design} | vars(self.figures)


@dataclass(frozen=True)
class SizeRow:
    """What ``auto`` needs for one target, and the rates of what was built."""

    split: str
    fpr_target: float
    deletability_target: float
    keys: int
    bits_per_key: float
    model: str
    fpr: float
    fpr_interval: tuple[float, float]
    deletability: float | None
    lost_keys: int
    seconds: float
    plan: dict[str, Any]


@dataclass(frozen=True)
class QueryTimes:
    """An absent key in a learned filter and in its peers.

    Attributes
    ----------
    ns : dict
        Contender to nanoseconds.
    ratios : dict
        Contender to its time over that of rbloom; empty if that did not run.
    rbloom_error : str or None
        Why rbloom did not run.
    learnedbf : float or str
        Nanoseconds of the package learnedbf, or why it did not run.
    """

    design: str
    bits_per_key: float
    ns: dict[str, float]
    ratios: dict[str, Ratio]
    rbloom_error: str | None
    learnedbf: float | str

    def to_dict(self) -> dict[str, object]:
        """For JSON: a name for every figure, without what was not measured."""
        out: dict[str, object] = {"design": self.design, "bits_per_key": self.bits_per_key}
        if self.rbloom_error is not None:
            out["rbloom"] = self.rbloom_error
        for name, ns in self.ns.items():
            out[f"{name} ns"] = ns
            if name in self.ratios:
                out[f"{name} / rbloom"] = self.ratios[name]
        if isinstance(self.learnedbf, float):
            out |= {"learnedbf ns": self.learnedbf, "learnedbf / learned": self.learnedbf / self.ns["learned"]}
        else:
            out["learnedbf"] = self.learnedbf
        return out


@dataclass
class FitTimes:
    """Seconds of fitting, by model, beside scikit-learn's on the same keys; and the memory it took."""

    keys: int
    negatives: int
    seconds: dict[str, float] = field(default_factory=dict)
    peak_mib: float = 0.0
    sklearn_seconds: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """For JSON: a name for every figure."""
        return {
            "keys": self.keys,
            "negatives": self.negatives,
            **{f"fit {kind} s": seconds for kind, seconds in self.seconds.items()},
            "peak MiB": self.peak_mib,
            "scikit-learn s": self.sklearn_seconds,
            **{f"fit {kind} / scikit-learn": seconds / self.sklearn_seconds for kind, seconds in self.seconds.items()},
        }


def made_split(n_keys: int) -> Split:
    """Keys made here, in the shape of a random split of real ones."""
    keys = list(listed_urls(n_keys))
    learnt, negatives, unseen = (list(ordinary_urls(n_keys, seed)) for seed in (0, 1, 2))
    return Split("made", keys, learnt, keys, negatives, unseen)


def forged(keys: Sequence[bytes], n: int) -> list[bytes]:
    """Absent keys that look like stored ones: a key with two of its bytes exchanged for others of the same kind."""
    rng = random.Random(1)
    stored = set(keys)
    made: list[bytes] = []
    while len(made) < n:
        key = bytearray(rng.choice(keys))
        for _ in range(2):
            at = rng.randrange(len(key)) if key else 0
            if key:
                key[at] = rng.choice(b"abcdefghijklmnopqrstuvwxyz")
        if bytes(key) not in stored:
            made.append(bytes(key))
    return made


def designs(split: Split, bits_per_key: float = 16.0, say: Say = lambda text: None) -> list[DesignRow]:
    """Every design at the same budget: measured beside planned."""
    say("training one model for all designs")
    model = models.train(
        split.learnt_keys, split.learnt_negatives, kind="ngram", max_bytes=8192, validation=split.negatives,
        progress=False,
    )  # fmt: skip
    gone = random.Random(2).sample(split.keys, min(len(split.keys) // 10, 20_000))
    attack = forged(split.keys, 20_000)
    rows = []
    for name, design in DESIGNS.items():
        say(name)
        try:
            lf = LearnedFilter.fit(
                split.keys, split.negatives, design=name, bits_per_key=bits_per_key, model=model, progress=False,
                secret=SECRET if design.keyed else None,
            )  # fmt: skip
        except ValueError as error:
            rows.append(DesignRow(name, str(error)))
            continue
        rows.append(DesignRow(name, _measured(lf, split, gone, attack)))
    return rows


def _measured(lf: LearnedFilter, split: Split, gone: list[bytes], attack: list[bytes]) -> Measured:
    """The figures of one filter: ``gone`` are keys to delete, ``attack`` are forged ones."""
    rates = lf.evaluate(split.unseen, deleted=gone)
    best = _absent_ns(lf, split.unseen)
    left = lf.copy()
    if lf.deletable:
        left.remove_many(gone)
    kept = list(set(split.keys) - set(gone))
    return Measured(
        bits_per_key=lf.bits_per_key,
        fpr=rates.fpr.value,
        fpr_planned=lf.plan.fpr,
        fnr=float((~left.contains_many(kept)).mean()),
        fnr_planned=lf.plan.fnr,
        deletability=None if rates.first_removal is None else rates.first_removal.value,
        deletability_planned=lf.plan.deletability if lf.deletable else None,
        adversarial_fpr=float(lf.contains_many(attack).mean()),
        adversarial_fpr_planned=lf.plan.adversarial_fpr,
        query_absent_ns=best,
    )


def _absent_ns(filter: Answers, unseen: Sequence[bytes]) -> float:
    """Nanoseconds of the best of many short turns: on a busy machine some of them run undisturbed."""
    best = float("inf")
    for turn in range(60):
        first = turn * 1000 % min(10_000, len(unseen))
        asked = fresh(unseen[first:][:1000])
        start = time.perf_counter_ns()
        for key in asked:
            key in filter  # noqa: B015
        best = min(best, (time.perf_counter_ns() - start) / len(asked))
    return best


def sizes(split: Split, kind: str = "auto", say: Say = lambda text: None) -> list[SizeRow]:
    """What ``auto`` needs for the three targets; measured on negatives that nothing was fitted on."""
    rows = []
    for fpr, deletability in TARGETS:
        say(f"{split.name} split: fpr {fpr:g}, deletability {deletability:g}")
        start = time.perf_counter()
        # The model learns from one part of the negatives, sizes are chosen by another, figures come from a third.
        model = models.train(
            split.learnt_keys, split.learnt_negatives, kind=kind, fpr=fpr, deletability=deletability,
            validation=split.negatives, n_keys=len(split.keys), progress=False,
        )  # fmt: skip
        lf = LearnedFilter.fit(
            split.keys, split.negatives, fpr=fpr, deletability=deletability, model=model, progress=False
        )
        seconds = time.perf_counter() - start
        sample = random.Random(3).sample(split.keys, min(20_000, len(split.keys) // 10))
        measured = lf.evaluate(split.unseen, deleted=sample)
        rows.append(
            SizeRow(
                split=split.name,
                fpr_target=fpr,
                deletability_target=deletability,
                keys=len(split.keys),
                bits_per_key=lf.bits_per_key,
                model=str(lf.model),
                fpr=measured.fpr.value,
                fpr_interval=measured.fpr.interval,
                deletability=measured.first_removal.value if measured.first_removal else None,
                lost_keys=int((~lf.contains_many(split.keys)).sum()),
                seconds=seconds,
                plan=lf.plan.to_dict(),
            )
        )
    return rows


def query_times(split: Split, rounds: int = 60, n_queries: int = 4000, say: Say = lambda text: None) -> QueryTimes:
    """One absent key and a batch, in turns with rbloom and, one key at a time, with learnedbf."""
    say("fitting for the timing")
    lf = LearnedFilter.fit(split.keys, split.negatives, fpr=0.01, model="ngram", progress=False)
    contenders: dict[str, Work] = {"learned": ask_each_in(lf), "learned, batch": lf.contains_many}
    rbloom_error = None
    try:
        peer = PEERS["rbloom"].make(len(split.keys), 0.01)
        peer.update(split.keys)
        contenders["rbloom"] = ask_each_in(peer)
    except ImportError as error:
        rbloom_error = f"did not run: {error}"
    plain = OURS["CuckooFilter"].make(len(split.keys), 0.01)
    plain.update(split.keys)
    contenders["CuckooFilter"] = ask_each_in(plain)

    def asked(turn: int) -> list[bytes]:
        return fresh(random.Random(turn).choices(split.unseen, k=n_queries))

    say("asking for absent keys")
    gc.freeze()  # else every turn would first look at millions of keys
    try:
        times = side_by_side(contenders, asked, rounds)
    finally:
        gc.unfreeze()
    reference = times.get("rbloom")
    others = {name: timing for name, timing in times.items() if name != "rbloom"}
    return QueryTimes(
        lf.design,
        lf.bits_per_key,
        ns={name: timing.best for name, timing in times.items()},
        ratios={name: timing.ratio(reference) for name, timing in others.items()} if reference else {},
        rbloom_error=rbloom_error,
        learnedbf=_learnedbf(split, say),
    )


def _learnedbf(split: Split, say: Say) -> float | str:
    """Nanoseconds for one key of the PyPI package learnedbf, or why not; its time does not depend on the fit."""
    try:
        importlib.metadata.version("learnedbf")
        import numpy as np
        from learnedbf import LBF
        from learnedbf.classifiers import ScoredDecisionTreeClassifier
    except Exception as error:  # a missing or broken peer is reported, whatever it raises
        return f"did not run: {type(error).__name__}: {error}"
    say("learnedbf")
    n = 2000
    try:
        # It takes numbers, not keys: the same lexical values our trees use.
        features = models.Features("lexical")
        matrix = np.vstack([features.transform(split.keys[:n]), features.transform(split.negatives[:n])])
        labels = np.repeat([True, False], n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peer = LBF(epsilon=0.01, classifier=ScoredDecisionTreeClassifier())
            peer.fit(matrix, labels)
            row = matrix[-1:]
            peer.predict(row)
            start = time.perf_counter_ns()
            for _ in range(50):
                peer.predict(row)
        return (time.perf_counter_ns() - start) / 50
    except Exception as error:
        return f"did not run: {type(error).__name__}: {error}"


def fit_times(split: Split, say: Say = lambda text: None) -> FitTimes:
    """Fitting beside scikit-learn's own HashingVectorizer and SGDClassifier, same keys, same run."""
    times = FitTimes(len(split.keys), len(split.learnt_negatives))
    for kind in FITTED:
        say(f"fitting, model={kind!r}")
        start = time.perf_counter()
        LearnedFilter.fit(split.keys, split.learnt_negatives, fpr=0.01, model=kind, progress=False)
        times.seconds[kind] = time.perf_counter() - start
    scale = 1024**2 if sys.platform == "darwin" else 1024
    times.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
    say("HashingVectorizer and SGDClassifier")
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import SGDClassifier

    texts = [key.decode("latin-1") for key in [*split.keys, *split.learnt_negatives]]
    labels = [1] * len(split.keys) + [0] * len(split.learnt_negatives)
    start = time.perf_counter()
    matrix = HashingVectorizer(analyzer="char", ngram_range=(3, 3), lowercase=False, n_features=2**16).transform(texts)
    SGDClassifier(loss="log_loss", random_state=0).fit(matrix, labels)
    times.sklearn_seconds = time.perf_counter() - start
    return times
