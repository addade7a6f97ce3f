"""``dlbf bench adversary``: every attack on every design, the price of a bound, and what the defence costs."""

from __future__ import annotations

import gc
import random
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import dlbf
from dlbf import models
from dlbf.adversary import (
    ATTACKS,
    CHALLENGES,
    Attack,
    BlackBoxMutation,
    Challenge,
    DeletionDriven,
    Hybrid,
    Oracle,
    Outcome,
    Pollution,
    StoreFilter,
    WhiteBoxMutation,
    attack_target,
    measure_hybrid,
    play,
    reveal,
)
from dlbf.adversary.games import Setup
from dlbf.bench.contenders import SECRET
from dlbf.bench.data import Split
from dlbf.bench.timing import Ratio, Say, Work, ask_each_in, call_with_each, fresh, side_by_side
from dlbf.figures.curves import Curves, Panel
from dlbf.figures.drawing import draw_curves
from dlbf.figures.laws import BOUND_SERIES, bound_rows
from dlbf.learned import LearnedFilter
from dlbf.learned.evaluation import Rate
from dlbf.models import Model
from dlbf.theory import shares_from_scores

__all__ = [
    "AttackRow",
    "Built",
    "Cost",
    "GameRow",
    "HybridFigures",
    "Price",
    "StoreRow",
    "attacks",
    "costs",
    "draw_price",
    "games",
    "hybrid",
    "price",
    "smaller",
    "stores",
    "train",
]

FPR = 0.01
BOUND = 0.05
MODEL_BYTES = 4096

# Name, design, keyed, bound.  A design without regions has its rate for a bound.
ROWS: tuple[tuple[str, str, bool, float], ...] = (
    ("lbf", "lbf", False, 1.0),
    ("slbf", "slbf", False, 1.0),
    ("plbf", "plbf", False, 1.0),
    ("auto", "auto", False, 1.0),
    ("cuckoo", "cuckoo", False, 1.0),
    ("counting", "counting", False, 1.0),
    ("secure-bloom", "secure-bloom", True, 1.0),
    ("cuckoo, keyed", "cuckoo", True, 1.0),
    ("uptown", "uptown", True, 1.0),
    ("bodega", "bodega", True, BOUND),
    ("keyed sandwich (slbf)", "slbf", True, BOUND),
    ("bodega-cbf", "bodega-cbf", True, BOUND),
    ("keyed sandwich (slbf-2cbf)", "slbf-2cbf", True, BOUND),
    ("auto, keyed", "auto", True, BOUND),
)


def smaller(split: Split, n_keys: int) -> Split:
    """The split with at most so many keys, and twice as many negatives of each kind."""
    some = 2 * n_keys
    return Split(
        split.name, split.learnt_keys[:n_keys], split.learnt_negatives[:some], split.keys[:n_keys],
        split.negatives[:some], split.unseen[:some],
    )  # fmt: skip


def train(split: Split) -> Model:
    """One model for all designs."""
    return models.train(
        split.learnt_keys, split.learnt_negatives, kind="ngram", max_bytes=MODEL_BYTES, validation=split.negatives,
        progress=False,
    )  # fmt: skip


def _fit(
    split: Split, model: Model, design: str, keyed: bool, bound: float, *, fpr: float | None = FPR,
    bits_per_key: float | None = None, headroom: float = 1.0,
) -> LearnedFilter:  # fmt: skip
    return LearnedFilter.fit(
        split.keys, split.negatives, design=design, model=model, adversarial_fpr=bound,
        secret=SECRET if keyed else None, progress=False, fpr=fpr, bits_per_key=bits_per_key, headroom=headroom,
    )  # fmt: skip


def _plain_rate(rate: Rate) -> dict[str, object]:
    """A measured rate, for JSON."""
    return {"value": rate.value, "interval_99": list(rate.interval), "hits": rate.hits, "trials": rate.trials}


@dataclass(frozen=True)
class AttackRow:
    """One design, and what each attack on it achieved: name to outcome."""

    name: str
    design: str
    keyed: bool
    bits_per_key: float
    fpr_planned: float
    adversarial_fpr_planned: float
    fpr: Rate
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """For JSON: the outcomes beside the design."""
        own = {name: value for name, value in vars(self).items() if name not in ("fpr", "outcomes")}
        told = {
            name: _plain_rate(each.queries) | {"bound": each.bound, "lost_keys": each.lost, "refused": each.refused}
            for name, each in self.outcomes.items()
        }
        return own | {"fpr": _plain_rate(self.fpr)} | told


@dataclass(frozen=True)
class StoreRow:
    """A default store under one attack."""

    attack: str
    stated_bound: float
    rate: Rate
    lost_keys: int
    keys_before: int
    keys_after: int
    filter_bytes_before: int
    filter_bytes_after: int
    state: str

    def to_dict(self) -> dict[str, object]:
        """For JSON: the rate beside the rest."""
        rest = {name: value for name, value in vars(self).items() if name not in ("attack", "stated_bound", "rate")}
        return {"attack": self.attack, "stated_bound": self.stated_bound, **_plain_rate(self.rate), **rest}


@dataclass(frozen=True)
class GameRow:
    """One game against one target."""

    target: str
    outcome: Outcome

    def to_dict(self) -> dict[str, object]:
        """For JSON: the outcome beside the target."""
        return {"target": self.target, **self.outcome.to_dict()}


@dataclass(frozen=True)
class Built:
    """A filter built for a bound and a rate."""

    adversarial_fpr: float
    fpr: float
    bits_per_key: float


@dataclass(frozen=True)
class Price:
    """Bits per key against the bound: the rows of ``bound_rows``, and filters as built."""

    curve: list[dict[str, float]]
    built: list[Built]


@dataclass(frozen=True)
class HybridFigures:
    """Two designs of equal memory, and their rates for every adversarial share."""

    bits_per_key: dict[str, float]
    rates: Hybrid

    def to_dict(self) -> dict[str, object]:
        """For JSON: the rates beside the sizes."""
        return {"bits_per_key": self.bits_per_key, **self.rates.to_dict()}


@dataclass(frozen=True)
class Cost:
    """A read of an absent key with and without the defence; ``one`` and ``other`` name what was compared."""

    what: str
    one: str
    one_ns: float
    other: str
    other_ns: float
    ratio: Ratio

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "what": self.what,
            "with": self.one,
            "with_ns": self.one_ns,
            "without": self.other,
            "without_ns": self.other_ns,
            "ratio": self.ratio,
        }


def attacks(
    split: Split, model: Model, queries: int = 100_000, changes: int = 20_000, say: Say = lambda text: None,
    only: Sequence[str] = (),
) -> list[AttackRow]:  # fmt: skip
    """Every design under every attack: the rate over distinct absent keys that the attack asked for.

    Everything but the secret is revealed to those who can use it.  Attacks that change the contents meet a filter of
    the same targets that was made with room for their keys.
    """
    rows = []
    for name, design, keyed, bound in ROWS:
        if only and design not in only:
            continue
        say(f"{name}: fitting")
        lf = _fit(split, model, design, keyed, bound)
        row = AttackRow(
            name, design, keyed, lf.bits_per_key, lf.plan.fpr, lf.plan.adversarial_fpr, lf.evaluate(split.unseen).fpr
        )
        rows.append(row)
        roomy = _fit(split, model, design, keyed, bound, headroom=1 + changes / len(split.keys))
        for attack in ATTACKS:
            if attack is DeletionDriven and not lf.deletable:
                continue
            say(f"{name}: {attack.name}")
            target = roomy.copy() if attack.changes_target else lf
            made = attack(queries, changes=changes if attack.changes_target else 0)
            row.outcomes[attack.name] = attack_target(target, split.keys, made, bound=target.plan.adversarial_fpr)
    return rows


def stores(split: Split, queries: int = 100_000, changes: int = 20_000, say: Say = lambda text: None) -> list[StoreRow]:
    """A default store under every attack: rate, lost keys, and the size of its filter."""
    from dlbf.storage import Store

    rows = []
    for attack in ATTACKS:
        say(f"store: {attack.name}")
        with (
            tempfile.TemporaryDirectory() as folder,
            Store(f"{folder}/store", fpr=FPR, sync="none", secret=SECRET) as store,
        ):
            with store.write() as txn:
                for key in split.keys:
                    txn.put(key, b"")
            store.rebuild()  # just large enough, so that its rate is that of a full filter
            store.get(b"")
            before = store.stats()
            oracle = Oracle(
                StoreFilter(store), split.keys, queries, changes if attack.changes_target else 0,
                reveal(store.ledger.filter),
            )  # fmt: skip
            attack(queries, changes=oracle.changes).run(oracle)
            after = store.stats()
            rows.append(
                StoreRow(
                    attack=attack.name,
                    stated_bound=before.fpr_target,
                    rate=Rate(oracle.hits, oracle.asked, before.fpr_target),
                    lost_keys=oracle.lost(),
                    keys_before=before.keys,
                    keys_after=after.keys,
                    filter_bytes_before=before.filter_bytes,
                    filter_bytes_after=after.filter_bytes,
                    state=after.state,
                )
            )
    return rows


def games(
    split: Split, model: Model, queries: int = 20_000, rounds: int = 5, say: Say = lambda text: None
) -> list[GameRow]:
    """The five challenges, each round with another secret; the best attack that its rules allow."""

    def classical(number: int) -> tuple[dlbf.BloomFilter, Collection[bytes]]:
        f = dlbf.BloomFilter(len(split.keys), FPR, secret=number.to_bytes(16, "little"))
        f.update(split.keys)
        return f, split.keys

    def learned(number: int) -> tuple[LearnedFilter, Collection[bytes]]:
        secret = number.to_bytes(16, "little")
        return LearnedFilter.fit(
            split.keys, split.negatives, fpr=FPR, adversarial_fpr=BOUND, design="bodega", model=model, secret=secret,
            progress=False,
        ), split.keys  # fmt: skip

    def with_room(design: str) -> Callable[[int], tuple[LearnedFilter, Collection[bytes]]]:
        def setup(number: int) -> tuple[LearnedFilter, Collection[bytes]]:
            return LearnedFilter.fit(
                split.keys, split.negatives, fpr=FPR, adversarial_fpr=BOUND, design=design, model=model,
                secret=number.to_bytes(16, "little"), headroom=1.5, progress=False,
            ), split.keys  # fmt: skip

        return setup

    def adversary_of(rules: Challenge) -> Callable[[int], Attack]:
        if rules.changes:
            return lambda number: Pollution(queries, changes=len(split.keys), seed=number)
        kind = WhiteBoxMutation if rules.reveals else BlackBoxMutation
        return lambda number: kind(queries, seed=number)

    rows = []
    for name, rules in CHALLENGES.items():
        setups: dict[str, Setup] = {"bodega": learned} if rules.learned else {"keyed Bloom filter": classical}
        if rules.changes:
            setups = {f"{design}, room for half as many again": with_room(design) for design in ("bodega", "auto")}
        for target, setup in setups.items():
            say(f"game: {name}, {target}")
            rows.append(GameRow(target, play(name, adversary_of(rules), setup, rounds=rounds, forgeries=queries)))
    return rows


def price(split: Split, model: Model) -> Price:
    """Bits per key against the bound, from the scores of these keys; and filters of three bounds as built."""
    key_shares, query_shares, _ = shares_from_scores(
        model.score_many(split.keys), model.score_many(split.negatives), 64
    )
    model_bits = 8 * model.nbytes / len(split.keys)
    built = []
    for bound in (0.02, 0.05, 0.2, 1.0):
        for fpr in (0.01, 0.001):
            lf = _fit(split, model, "plbf", True, bound, fpr=fpr)
            built.append(Built(bound, fpr, lf.bits_per_key))
    return Price(bound_rows(key_shares.tolist(), query_shares.tolist(), model_bits, 31), built)


def draw_price(figures: Price, path: Path) -> None:
    """The curve of ``price`` as a picture."""
    rows = list(figures.curve)
    rows += [
        {"adversarial FPR": each.adversarial_fpr, f"built {each.fpr:g}": each.bits_per_key} for each in figures.built
    ]
    rows.sort(key=lambda row: row["adversarial FPR"])
    series = (
        *BOUND_SERIES, ("as built (plbf, keyed), 1 %", "built 0.01"), ("as built (plbf, keyed), 0.1 %", "built 0.001")
    )  # fmt: skip
    panel = Panel("model included", "adversarial FPR", "bits per key", series, tuple(rows), False)
    draw_curves(Curves("price-of-a-bound", "The price of a bound", (panel,)), path)


def hybrid(split: Split, model: Model, bits_per_key: float = 8.0) -> HybridFigures:
    """bodega and secure-bloom of equal memory for every adversarial share."""
    made = {
        design: _fit(split, model, design, True, 1.0, fpr=None, bits_per_key=bits_per_key)
        for design in ("bodega", "secure-bloom")
    }
    oracle = Oracle(made["bodega"], split.keys, 0, revealed=reveal(made["bodega"]))
    forged = WhiteBoxMutation(0).forge(oracle, 50_000)
    rates = measure_hybrid(made["bodega"], made["secure-bloom"], split.unseen, forged, queries=50_000)
    return HybridFigures({name: lf.bits_per_key for name, lf in made.items()}, rates)


class _Compared:
    """Pieces of work that are timed in one run, and which of them are compared."""

    def __init__(self) -> None:
        self.work: dict[str, Work] = {}
        self.pairs: list[tuple[str, str, str]] = []

    def add(self, what: str, one: str, other: str, first: Work, second: Work) -> None:
        """Compare two new pieces of work."""
        self.work[one], self.work[other] = first, second
        self.pairs.append((what, one, other))

    def add_to(self, what: str, one: str, other: str, second: Work) -> None:
        """Compare a known piece of work with a new one."""
        self.work[other] = second
        self.pairs.append((what, one, other))

    def measure(self, inputs: Callable[[int], Sequence[bytes]], rounds: int, say: Say) -> list[Cost]:
        """Time everything in turns."""
        gc.freeze()  # else every turn would first look at all keys
        try:
            times = side_by_side(self.work, inputs, rounds, say)
        finally:
            gc.unfreeze()
        return [
            Cost(what, one, times[one].best, other, times[other].best, times[one].ratio(times[other]))
            for what, one, other in self.pairs
        ]


def _add_filters(compared: _Compared, split: Split, model: Model) -> None:
    for what, design in (("cuckoo", "cuckoo"), ("auto", "auto"), ("sandwich (slbf)", "slbf")):
        bound = BOUND if design != "cuckoo" else 1.0
        first, second = (_fit(split, model, design, secret, bound) for secret in (True, False))
        one, other = (f"{word} {what}" for word in ("keyed", "unkeyed"))
        compared.add(f"key in {what}", one, other, ask_each_in(first), ask_each_in(second))
        compared.add(
            f"{what}.contains_many", f"{one}, many", f"{other}, many", first.contains_many, second.contains_many
        )
    lf = _fit(split, model, "bodega", True, BOUND)
    compared.add_to("keyed sandwich / bodega", "keyed sandwich (slbf)", "bodega", ask_each_in(lf))
    compared.add_to(
        "keyed sandwich / bodega, contains_many", "keyed sandwich (slbf), many", "bodega, many", lf.contains_many
    )
    keyed, unkeyed = (dlbf.BloomFilter(len(split.keys), FPR, secret=secret) for secret in (SECRET, None))
    for bloom in (keyed, unkeyed):
        bloom.update(split.keys)
    compared.add("key in BloomFilter", "keyed bloom", "unkeyed bloom", ask_each_in(keyed), ask_each_in(unkeyed))


def costs(split: Split, model: Model, rounds: int = 60, say: Say = lambda text: None) -> list[Cost]:
    """Reads of absent keys with and without the defence, in turns in one run."""
    from dlbf.storage import Store

    compared = _Compared()
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(f"{folder}/keyed", sync="none") as keyed,
        Store(f"{folder}/unkeyed", sync="none", keyed=False) as unkeyed,
    ):
        say("filling two stores")
        for store in (keyed, unkeyed):
            with store.write() as txn:
                for key in split.keys:
                    txn.put(key, b"")
            store.get(b"")
        compared.add(
            "Store.get",
            "keyed store, get",
            "unkeyed store, get",
            call_with_each(keyed.get),
            call_with_each(unkeyed.get),
        )
        compared.add("Store.get_many", "keyed store, many", "unkeyed store, many", keyed.get_many, unkeyed.get_many)
        say("fitting")
        _add_filters(compared, split, model)

        def asked(turn: int) -> list[bytes]:
            return fresh(random.Random(turn).choices(split.unseen, k=3000))

        return compared.measure(asked, rounds, say)
