"""``dlbf bench adversary``: every attack on every design, the price of a bound, and what the defence costs."""

from __future__ import annotations

import gc
import random
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import dlbf
from dlbf import models
from dlbf.adversary import (
    ATTACKS,
    CHALLENGES,
    Attack,
    BlackBoxMutation,
    Challenge,
    DeletionDriven,
    Oracle,
    Pollution,
    StoreFilter,
    WhiteBoxMutation,
    attack_target,
    measure_hybrid,
    play,
    reveal,
)
from dlbf.adversary.games import Setup
from dlbf.bench.data import Split
from dlbf.bench.timing import side_by_side
from dlbf.figures.curves import Curves, Panel
from dlbf.figures.drawing import draw_curves
from dlbf.figures.laws import BOUND_SERIES, bound_rows
from dlbf.learned import LearnedFilter
from dlbf.learned.evaluation import Rate
from dlbf.models import Model
from dlbf.theory import shares_from_scores

__all__ = ["attacks", "costs", "draw_price", "games", "hybrid", "price", "smaller", "stores", "train"]

SECRET = bytes(range(16))
FPR = 0.01
BOUND = 0.05
MODEL_BYTES = 4096
Say = Callable[[str], None]

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


def _fit(split: Split, model: Model, design: str, keyed: bool, bound: float, **more: Any) -> LearnedFilter:
    more.setdefault("fpr", FPR)
    return LearnedFilter.fit(
        split.keys, split.negatives, design=design, model=model, adversarial_fpr=bound,
        secret=SECRET if keyed else None, progress=False, **more,
    )  # fmt: skip


def _row(found: Rate) -> dict[str, Any]:
    return {"value": found.value, "interval_99": list(found.interval), "hits": found.hits, "trials": found.trials}


def attacks(
    split: Split, model: Model, queries: int = 100_000, changes: int = 20_000, say: Say = lambda text: None,
    only: Sequence[str] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Every design under every attack: the rate over distinct absent keys that the attack asked for.

    Everything but the secret is revealed to those who can use it.  Attacks that change the contents meet a filter of
    the same targets that was made with room for their keys.
    """
    rows: list[dict[str, Any]] = []
    for name, design, keyed, bound in ROWS:
        if only and design not in only:
            continue
        say(f"{name}: fitting")
        lf = _fit(split, model, design, keyed, bound)
        row: dict[str, Any] = {
            "name": name, "design": design, "keyed": keyed, "bits_per_key": lf.bits_per_key, "fpr_planned": lf.plan.fpr,
            "adversarial_fpr_planned": lf.plan.adversarial_fpr,
            "fpr": _row(lf.evaluate(split.unseen).fpr),
        }  # fmt: skip
        rows.append(row)
        roomy = _fit(split, model, design, keyed, bound, headroom=1 + changes / len(split.keys))
        for attack in ATTACKS:
            if attack is DeletionDriven and not lf.deletable:
                continue
            say(f"{name}: {attack.name}")
            target = roomy.copy() if attack.changes_target else lf
            made = attack(queries, changes=changes if attack.changes_target else 0)
            found = attack_target(target, split.keys, made, bound=target.plan.adversarial_fpr)
            row[attack.name] = _row(found.queries) | {
                "bound": found.bound, "lost_keys": found.lost, "refused": found.refused
            }  # fmt: skip
    return rows


def stores(
    split: Split, queries: int = 100_000, changes: int = 20_000, say: Say = lambda text: None
) -> list[dict[str, Any]]:
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
                {
                    "attack": attack.name,
                    "stated_bound": before.fpr_target,
                    **_row(Rate(oracle.hits, oracle.asked, before.fpr_target)),
                    "lost_keys": oracle.lost(),
                    "keys_before": before.keys,
                    "keys_after": after.keys,
                    "filter_bytes_before": before.filter_bytes,
                    "filter_bytes_after": after.filter_bytes,
                    "state": after.state,
                }
            )
    return rows


def games(
    split: Split, model: Model, queries: int = 20_000, rounds: int = 5, say: Say = lambda text: None
) -> list[dict[str, Any]]:
    """The five challenges, each round with another secret; the best attack that its rules allow."""

    def classical(number: int) -> tuple[Any, Collection[bytes]]:
        f = dlbf.BloomFilter(len(split.keys), FPR, secret=number.to_bytes(16, "little"))
        f.update(split.keys)
        return f, split.keys

    def learned(number: int) -> tuple[Any, Collection[bytes]]:
        secret = number.to_bytes(16, "little")
        return LearnedFilter.fit(
            split.keys, split.negatives, fpr=FPR, adversarial_fpr=BOUND, design="bodega", model=model, secret=secret,
            progress=False,
        ), split.keys  # fmt: skip

    def with_room(design: str) -> Setup:
        def setup(number: int) -> tuple[Any, Collection[bytes]]:
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
            found = play(name, adversary_of(rules), setup, rounds=rounds, forgeries=queries)
            rows.append({"target": target} | found.to_dict())
    return rows


def price(split: Split, model: Model) -> dict[str, Any]:
    """Bits per key against the bound, from the scores of these keys; and filters of three bounds as built."""
    key_shares, query_shares, _ = shares_from_scores(
        model.score_many(split.keys), model.score_many(split.negatives), 64
    )
    model_bits = 8 * model.nbytes / len(split.keys)
    built = []
    for bound in (0.02, 0.05, 0.2, 1.0):
        for fpr in (0.01, 0.001):
            lf = _fit(split, model, "plbf", True, bound, fpr=fpr)
            built.append({"adversarial_fpr": bound, "fpr": fpr, "bits_per_key": lf.bits_per_key})
    return {"curve": bound_rows(key_shares.tolist(), query_shares.tolist(), model_bits, 31), "built": built}


def draw_price(found: dict[str, Any], path: Path) -> None:
    """The curve of ``price`` as a picture."""
    rows = [dict(row) for row in found["curve"]]
    for row in found["built"]:
        rows.append({"adversarial FPR": row["adversarial_fpr"], f"built {row['fpr']:g}": row["bits_per_key"]})
    rows.sort(key=lambda row: row["adversarial FPR"])
    series = (
        *BOUND_SERIES, ("as built (plbf, keyed), 1 %", "built 0.01"), ("as built (plbf, keyed), 0.1 %", "built 0.001")
    )  # fmt: skip
    panel = Panel("model included", "adversarial FPR", "bits per key", series, tuple(rows), False)
    draw_curves(Curves("price-of-a-bound", "The price of a bound", (panel,)), path)


def hybrid(split: Split, model: Model, bits_per_key: float = 8.0) -> dict[str, Any]:
    """bodega and secure-bloom of equal memory for every adversarial share."""
    made = {
        design: _fit(split, model, design, True, 1.0, fpr=None, bits_per_key=bits_per_key)
        for design in ("bodega", "secure-bloom")
    }
    oracle = Oracle(made["bodega"], split.keys, 0, revealed=reveal(made["bodega"]))
    forged = WhiteBoxMutation(0).forge(oracle, 50_000)
    found = measure_hybrid(made["bodega"], made["secure-bloom"], split.unseen, forged, queries=50_000)
    return {"bits_per_key": {name: lf.bits_per_key for name, lf in made.items()}} | found.to_dict()


def _each(filter_: Any) -> Callable[[Sequence[bytes]], None]:
    def run(batch: Sequence[bytes]) -> None:
        for key in batch:
            key in filter_  # noqa: B015

    return run


def _gets(store: Any) -> Callable[[Sequence[bytes]], None]:
    def run(batch: Sequence[bytes]) -> None:
        get = store.get
        for key in batch:
            get(key)

    return run


def costs(split: Split, model: Model, rounds: int = 60, say: Say = lambda text: None) -> list[dict[str, Any]]:
    """Reads of absent keys with and without the defence, in turns in one run."""
    from dlbf.storage import Store

    pairs: list[tuple[str, str, str]] = []
    contenders: dict[str, Callable[[Sequence[bytes]], object]] = {}

    def add(what: str, one: str, other: str, first: Any, second: Any) -> None:
        contenders[one], contenders[other] = first, second
        pairs.append((what, one, other))

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
        add("Store.get", "keyed store, get", "unkeyed store, get", _gets(keyed), _gets(unkeyed))
        add("Store.get_many", "keyed store, many", "unkeyed store, many", keyed.get_many, unkeyed.get_many)
        say("fitting")
        for what, design in (("cuckoo", "cuckoo"), ("auto", "auto"), ("sandwich (slbf)", "slbf")):
            made = [
                _fit(split, model, design, secret, BOUND if design != "cuckoo" else 1.0) for secret in (True, False)
            ]
            one, other = (f"{word} {what}" for word in ("keyed", "unkeyed"))
            add(f"key in {what}", one, other, *map(_each, made))
            add(f"{what}.contains_many", f"{one}, many", f"{other}, many", *(lf.contains_many for lf in made))
        lf = _fit(split, model, "bodega", True, BOUND)
        contenders["bodega"] = _each(lf)
        pairs.append(("keyed sandwich / bodega", "keyed sandwich (slbf)", "bodega"))
        contenders["bodega, many"] = lf.contains_many
        pairs.append(("keyed sandwich / bodega, contains_many", "keyed sandwich (slbf), many", "bodega, many"))
        plain = {secret: dlbf.BloomFilter(len(split.keys), FPR, secret=secret) for secret in (SECRET, None)}
        for f in plain.values():
            f.update(split.keys)
        add("key in BloomFilter", "keyed bloom", "unkeyed bloom", _each(plain[SECRET]), _each(plain[None]))

        def fresh(turn: int) -> list[bytes]:
            return [bytes(bytearray(key)) for key in random.Random(turn).choices(split.unseen, k=3000)]

        gc.freeze()  # else every turn would first look at all keys
        try:
            times = side_by_side(contenders, fresh, rounds, say)
        finally:
            gc.unfreeze()
    return [
        {
            "what": what,
            "with": one,
            "with_ns": times[one].best,
            "without": other,
            "without_ns": times[other].best,
            "ratio": times[one].ratio(times[other]),
        }
        for what, one, other in pairs
    ]
