"""``dlbf bench stress``: the workloads that learned, stacked and adaptive filters are compared on in the literature.

After Sabale, Gatterbauer and Pandey (2026).  All questions are about absent keys, and what counts is how many of them
are needless reads: not answered "absent" from memory.  *one-pass*: every absent key once.  *uniform*: any of them,
again and again.  *zipf*: some are popular, in many orders of popularity.  *replay*: false positives that were found are
a tenth of all questions.  *churn*: a fifth of the keys changes places with keys that are asked for, round after round.

Filters and stores have the same bits per key, the model included.  Two more workloads are run at a rate instead: Zipf's
law with the exponent 1, and a thousand false positives asked for in a circle.
"""

import math
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dlbf.bench.results import Bar
from dlbf.bench.stress_subjects import STRESSED, Keys, Shared, Size, Subject, train
from dlbf.bench.stress_workloads import (
    WORKLOADS,
    Answers,
    Cost,
    Places,
    circle,
    count,
    one_pass,
    popular_orders,
    replay,
    uniform,
)  # fmt: skip
from dlbf.bench.timing import Say

__all__ = [
    "BUDGETS", "Bar", "Settings", "StressFigures", "StressRow", "SwapRound", "TargetRow", "bars", "measure",
]  # fmt: skip

BUDGETS = (8.2, 12.9)
ZIPF_EXPONENT = 1.5
SWAPPED_SHARE = 5  # one key in so many leaves in a round
UPKEEP_QUESTIONS = 20_000  # between one upkeep and the next
TARGET_FPR = 0.01
TARGET_ZIPF_EXPONENT = 1.0
IN_CIRCLE = 1000
# What the project asks of a store with a model: needless reads per million, and over its target in a round of churn.
BAR_BUDGET = 8.2
BAR_REPLAY, BAR_ZIPF, BAR_CHURN = 200, 300, 1.2
BAR_TARGET_ZIPF, BAR_CIRCLE = 2000, 1000


@dataclass(frozen=True)
class Settings:
    """How much is asked.

    Attributes
    ----------
    questions : int
        Of each workload, of each order of popularity, and of each round of churn.
    target_questions : int
        Of each of the workloads at a rate.
    orders, rounds : int
        Orders of popularity; rounds of churn.
    seed : int
        Same seed, same questions.
    """

    questions: int = 1_000_000
    target_questions: int = 3_000_000
    orders: int = 20
    rounds: int = 10
    seed: int = 0


@dataclass(frozen=True)
class SwapRound:
    """One round of churn, and what the questions after it cost.

    Attributes
    ----------
    worst_stretch : float
        Needless reads per million between two upkeeps, mostly the first: nobody knew yet what had changed.
    refused, lost : int
        Keys that were not taken; keys that were, and are not found.
    bits_per_key : float
        After the questions.
    rebuilt : list of str
        Why the filter was made anew, as often as it was.
    """

    cost: Cost
    worst_stretch: float
    refused: int
    lost: int
    bits_per_key: float
    rebuilt: list[str]


@dataclass
class StressRow:
    """One subject of one size in all workloads; None where one was not run.

    Attributes
    ----------
    error : str or None
        Why it cannot be had at this size.
    bits_per_key, bits_per_key_after : float
        At first, and the most seen after a workload without churn: what is remembered takes room.
    lost_keys : int
        Stored keys that were not found at first.
    zipf : list of Cost
        One per order of popularity.
    churn : list of SwapRound, or str
        One per round; or why keys cannot be exchanged.
    """

    name: str
    budget: float
    error: str | None = None
    fpr_target: float = 0.0
    bits_per_key: float = 0.0
    bits_per_key_after: float = 0.0
    lost_keys: int = 0
    one_pass: Cost | None = None
    uniform: Cost | None = None
    zipf: list[Cost] = field(default_factory=list)
    replay: Cost | None = None
    churn: list[SwapRound] | str = field(default_factory=list)

    @property
    def zipf_median(self) -> float | None:
        """Needless reads per million questions, in the middle of all orders."""
        return statistics.median(cost.per_million for cost in self.zipf) if self.zipf else None

    @property
    def zipf_worst(self) -> Cost | None:
        """The order with the most needless reads."""
        return max(self.zipf, key=lambda cost: cost.needless, default=None)

    @property
    def rounds(self) -> list[SwapRound]:
        """The rounds of churn that were run."""
        return [] if isinstance(self.churn, str) else self.churn

    @property
    def churn_worst(self) -> SwapRound | None:
        """The round with the most needless reads."""
        return max(self.rounds, key=lambda each: each.cost.needless, default=None)

    @property
    def lost_in_all(self) -> int:
        """Keys that were not found, at first or after an exchange."""
        return self.lost_keys + sum(each.lost for each in self.rounds)

    def to_dict(self) -> dict[str, object]:
        """For JSON: with the figures of all orders and rounds."""
        worst = self.churn_worst
        return vars(self) | {
            "zipf_median_per_million": self.zipf_median,
            "zipf_worst": self.zipf_worst,
            "churn_worst_per_million": None if worst is None else worst.cost.per_million,
            "refused": sum(each.refused for each in self.rounds) if self.rounds else None,
            "lost_in_all": self.lost_in_all,
        }


@dataclass(frozen=True)
class TargetRow:
    """One subject made for a rate: Zipf's law with the exponent 1, and found false positives asked for in a circle."""

    name: str
    fpr_target: float
    bits_per_key: float
    bits_per_key_after: float
    zipf: Cost
    in_circle: int
    circle: Cost


@dataclass(frozen=True)
class StressFigures:
    """Everything that was measured."""

    keys: int
    asked: int
    settings: Settings
    rows: list[StressRow] = field(default_factory=list)
    targets: list[TargetRow] = field(default_factory=list)

    @property
    def lost_keys(self) -> int:
        """Keys that any subject denied: none, or a promise is broken."""
        return sum(row.lost_in_all for row in self.rows)


def measure(
    keys: Keys,
    settings: Settings,
    *,
    budgets: Sequence[float] = BUDGETS,
    names: Sequence[str] = (),
    workloads: Sequence[str] = WORKLOADS,
    model: str = "ngram",
    folder: Path | None = None,
    say: Say = lambda text: None,
) -> StressFigures:
    """Make every subject at every size and ask it.

    Parameters
    ----------
    keys : Keys
        What is stored, learnt from and asked for.
    settings : Settings
        How much is asked.
    budgets : sequence of float
        Bits per key.
    names : sequence of str
        Of ``STRESSED``; by default all of them.
    workloads : sequence of str
        Of ``WORKLOADS``.
    model : str
        Kind of the model that all learned subjects share.
    folder : path, optional
        Where stores are made.
    say : callable
        Told what is being done.
    """
    n_swapped = len(keys.stored) // SWAPPED_SHARE
    if "churn" in workloads and len(keys.asked) < n_swapped:
        raise ValueError(
            f"expected at least {n_swapped:,} absent keys to ask for, a fifth of the keys, found {len(keys.asked):,}; "
            "give more, or leave churn out"
        )
    wanted = names or list(STRESSED)
    figures = StressFigures(len(keys.stored), len(keys.asked), settings)
    shared = Shared(None, model)
    if any(STRESSED[name].learned for name in wanted):
        say("training the model")
        shared = train(keys, model)
    with tempfile.TemporaryDirectory(dir=folder) as top:
        if any(each != "targets" for each in workloads):
            for budget in budgets:
                for name in wanted:
                    say(f"{name} at {budget:g} bits per key: making it")
                    place = Path(top) / f"{name} {budget:g}"
                    figures.rows.append(_row(name, budget, keys, shared, place, settings, workloads, say))
        if "targets" in workloads:
            for name in wanted:
                if STRESSED[name].at_targets:
                    say(f"{name} for {TARGET_FPR:.0%}")
                    figures.targets.append(_target_row(name, keys, shared, Path(top) / name, settings))
    return figures


def _row(
    name: str, budget: float, keys: Keys, shared: Shared, place: Path, settings: Settings, workloads: Sequence[str],
    say: Say,
) -> StressRow:  # fmt: skip
    """A subject of one size in all workloads; each begins with one that remembers nothing."""
    row = StressRow(name, budget)
    try:
        subject = STRESSED[name].make(keys, Size(bits_per_key=budget), shared, place)
    except ValueError as error:
        row.error = str(error)
        return row
    with closing(subject):
        row.fpr_target, row.bits_per_key = subject.fpr_target, subject.bits_per_key
        row.lost_keys = subject.lost(keys.stored)
        n_absent, n_questions, seed = len(keys.asked), settings.questions, settings.seed

        def ask(places: Places) -> Answers:
            answers = subject.ask(keys.asked, places)
            row.bits_per_key_after = max(row.bits_per_key_after, subject.bits_per_key)
            return answers

        def begin(workload: str) -> bool:
            if workload in workloads:
                say(f"{name} at {budget:g} bits per key: {workload}")
                subject.restart()
            return workload in workloads

        if begin("one-pass"):
            row.one_pass = one_pass(n_absent, ask)
        if begin("uniform"):
            row.uniform = uniform(n_absent, n_questions, ask, seed)
        for places in popular_orders(n_absent, n_questions, ZIPF_EXPONENT, settings.orders, seed):
            if not begin("zipf"):
                break
            row.zipf.append(count(places, ask(places)))
        if begin("replay"):
            row.replay = replay(n_absent, n_questions, ask, seed)
        if begin("churn"):
            row.churn = STRESSED[name].cannot_swap or _churn(subject, keys, settings)
    return row


def _churn(subject: Subject, keys: Keys, settings: Settings) -> list[SwapRound]:
    """A fifth of the keys changes places with as many that are asked for; then the absent ones are asked for.

    Upkeep is done after the exchange and after every 20,000 questions.
    """
    random = np.random.default_rng([settings.seed, SWAPPED_SHARE])
    stored, asked = list(keys.stored), list(keys.asked)
    rounds = []
    for _ in range(settings.rounds):
        n_swapped = len(stored) // SWAPPED_SHARE
        leaving = random.choice(len(stored), n_swapped, replace=False).tolist()
        coming = random.choice(len(asked), n_swapped, replace=False).tolist()
        for old, new in zip(leaving, coming, strict=True):
            stored[old], asked[new] = asked[new], stored[old]
        refused = subject.swap([asked[new] for new in coming], [stored[old] for old in leaving])
        rebuilt = [subject.upkeep()]
        places = random.integers(0, len(asked), settings.questions)
        needless = []
        for part in np.array_split(places, math.ceil(len(places) / UPKEEP_QUESTIONS)):
            needless.append(subject.ask(asked, part))
            rebuilt.append(subject.upkeep())
        lost = subject.lost(stored)
        worst = 1e6 * max(float(part.mean()) for part in needless)
        cost = count(places, np.concatenate(needless))
        rounds.append(SwapRound(cost, worst, refused, lost, subject.bits_per_key, list(filter(None, rebuilt))))
    return rounds


def _target_row(name: str, keys: Keys, shared: Shared, place: Path, settings: Settings) -> TargetRow:
    n_absent, n_questions = len(keys.asked), settings.target_questions
    with closing(STRESSED[name].make(keys, Size(fpr=TARGET_FPR), shared, place)) as subject:

        def ask(places: Places) -> Answers:
            return subject.ask(keys.asked, places)

        bits = subject.bits_per_key
        subject.restart()
        (places,) = popular_orders(n_absent, n_questions, TARGET_ZIPF_EXPONENT, 1, settings.seed)
        zipf = count(places, ask(places))
        after = subject.bits_per_key
        subject.restart()
        n_found, found = circle(n_absent, IN_CIRCLE, n_questions, ask)
        after = max(after, subject.bits_per_key)
        return TargetRow(name, subject.fpr_target, bits, after, zipf, n_found, found)


def bars(figures: StressFigures) -> list[Bar]:
    """What the project asks of stores that learn, and what the figures say."""
    found = []
    for row in figures.rows:
        if row.budget != BAR_BUDGET or not _judged(row.name) or row.error is not None:
            continue
        found.append(Bar(row.name, "bits per key, with all that is remembered", row.bits_per_key_after, row.budget))
        if row.replay is not None:
            found.append(Bar(row.name, "replay, per million", row.replay.per_million, BAR_REPLAY))
        if row.zipf_worst is not None:
            found.append(Bar(row.name, "Zipf 1.5, worst order, per million", row.zipf_worst.per_million, BAR_ZIPF))
        if row.churn_worst is not None:
            over = row.churn_worst.cost.per_million / (1e6 * row.fpr_target)
            found.append(Bar(row.name, "churn, worst round over the target", over, BAR_CHURN))
            found.append(Bar(row.name, "churn, keys refused", sum(each.refused for each in row.rounds), 0))
        found.append(Bar(row.name, "keys lost", row.lost_in_all, 0))
    for target in figures.targets:
        if _judged(target.name):
            found.append(Bar(target.name, "Zipf 1.0 at 1 %, per million", target.zipf.per_million, BAR_TARGET_ZIPF))
            found.append(Bar(target.name, "circle at 1 %, per million", target.circle.per_million, BAR_CIRCLE))
    return found


def _judged(name: str) -> bool:
    """Stores with a model: filters by themselves cannot remember."""
    return name.startswith("Store") and STRESSED[name].learned
