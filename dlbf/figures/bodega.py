"""Figures 6, 7 and 8 of the Bodega paper: its example against the adversary's share of the queries."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dlbf.figures.curves import Claim, Curves, Panel
from dlbf.figures.deletable import N_KEYS
from dlbf.filters import BloomFilter
from dlbf.theory.allocation import allocate
from dlbf.theory.costs import cell_cost
from dlbf.theory.formulas import ALPHA, hybrid_crossover, hybrid_fpr

__all__ = [
    "NEGATIVES",
    "Example",
    "built_example",
    "claims",
    "crossovers",
    "high_curves",
    "low_curves",
    "mixed_curves",
]

# The Bodega example: 2 MB = 1 for the model + 0.5 + 0.5 for the two filters, and a 128-bit key for each.  The model's
# FPR and FNR are both a quarter of the FPR of a Bloom filter of the model's size; Q_N scales its true-negative rate.
MODEL_BITS, HIGH_BITS, LOW_BITS, SECRET_BITS = 8_000_000, 4_000_000, 4_000_000, 128
RATIO = 0.25
NEGATIVES = 0.5


def _bloom(n_keys: float, n_bits: float, hashes: int | None) -> float:
    """Rate of a Bloom filter; with the best (real) number of hashes when `hashes` is None."""
    if hashes is None:
        return ALPHA ** (n_bits / n_keys) if n_keys else 0.0
    return math.pow(-math.expm1(-hashes * n_keys / n_bits), hashes)


@dataclass(frozen=True, slots=True)
class Example:
    """Rates of the Bodega example with a given number of hashes."""

    model: float  # FPR and FNR of the model
    high: float
    low: float
    plain: float  # a keyed Bloom filter with all the memory

    @classmethod
    def with_hashes(cls, hashes: int | None) -> Example:
        """The example as published; with the best (real) number of hashes when `hashes` is None."""
        model = RATIO * _bloom(N_KEYS, MODEL_BITS, hashes)
        total = MODEL_BITS + HIGH_BITS + LOW_BITS
        return cls(
            model,
            _bloom(N_KEYS * (1 - model), HIGH_BITS - SECRET_BITS, hashes),
            _bloom(N_KEYS * model, LOW_BITS - SECRET_BITS, hashes),
            _bloom(N_KEYS, total - SECRET_BITS, hashes),
        )

    def hybrid(self, a_high: float, a_low: float) -> float:
        tnr = (1 - self.model) * NEGATIVES
        return hybrid_fpr(self.model, self.high, self.low, a_high, a_low, tnr)

    def crossover(self, high_weight: float) -> float | None:
        """Adversarial share at which the keyed Bloom filter is as good."""
        tnr = (1 - self.model) * NEGATIVES
        return hybrid_crossover(self.model, self.high, self.low, self.plain, high_weight, tnr)

    def best(self, a_high: float, a_low: float) -> float:
        """The same megabyte in the two filters, split for this very mix of queries."""
        honest = 1 - a_high - a_low
        queries = [a_low + honest * (1 - self.model) * NEGATIVES, a_high + honest * self.model]
        bits = (HIGH_BITS + LOW_BITS - 2 * SECRET_BITS) / N_KEYS
        return allocate([self.model, 1 - self.model], queries, [cell_cost(1)], bits=bits).fpr


# Number of hashes (None: the best) and how to call it.
HASHES = ((None, "best number of hashes"), (1, "one hash, as in the authors' model code"))


def _curves(name: str, title: str, high_weight: float) -> Curves:
    """FPR against the adversary's share of the queries, of which `high_weight` score high."""
    panels, everything = [], []
    for hashes, words in HASHES:
        example = Example.with_hashes(hashes)
        rows = []
        for share in np.linspace(0, 1, 201).tolist():
            a_high, a_low = share * high_weight, share * (1 - high_weight)
            row: dict[str, float] = {
                "adversarial share": share,
                "hashes (0: best)": hashes or 0,
                "Bodega": example.hybrid(a_high, a_low),
                "keyed Bloom": example.plain,
            }
            if hashes is None:
                row["Bodega, best split"] = example.best(a_high, a_low)
            rows.append(row)
        everything += rows
        crossing = example.crossover(high_weight)
        series = [("Bodega, 1 + 0.5 + 0.5 MB", "Bodega"), ("keyed Bloom filter, 2 MB", "keyed Bloom")]
        if hashes is None:
            series.append(("Bodega, best split of the filters' 1 MB", "Bodega, best split"))
        marks = ((crossing, f"equal at {crossing:.1%}"),) if crossing is not None else ()
        panels.append(Panel(words, "adversarial share", "false-positive rate", tuple(series), tuple(rows), True, marks))
    return Curves(name, title, tuple(panels), claims(high_weight), tuple(everything))


def claims(high_weight: float) -> tuple[Claim, ...]:
    """What the paper says beside what we compute, if `high_weight` of the adversary's queries score high."""
    made = []
    for hashes, words in HASHES:
        example = Example.with_hashes(hashes)
        crossing = example.crossover(high_weight)
        if crossing is not None:
            where = f"up to an adversarial share of {crossing:.1%}"
        else:
            where = "at every share" if example.hybrid(0.0, 0.0) <= example.plain else "at no share"
        made.append(
            Claim(
                f"Bodega beats the keyed Bloom filter ({words})",
                "in realistic scenarios",
                where,
                where != "at no share",
            )
        )
    hashes_claim = Claim(
        "number of hashes in the authors' model code",
        "k = ceil(ln 2 n/m), that is 1",
        "k = ln 2 m/n, which favours the larger keyed Bloom filter",
        agrees=False,
    )
    return (*made, hashes_claim)


def high_curves() -> Curves:
    """The adversary forges high scores only."""
    return _curves("bodega-figure-6-high", "Bodega filter, adversary forges high scores (a_N = 0)", 1.0)


def low_curves() -> Curves:
    """The adversary sends low scores only."""
    return _curves("bodega-figure-7-low", "Bodega filter, adversary sends low scores (a_P = 0)", 0.0)


def mixed_curves() -> Curves:
    """Half of the adversary's queries score high."""
    return _curves("bodega-figure-8-mixed", "Bodega filter, adversary sends both alike (a_P = a_N)", 0.5)


@lru_cache(maxsize=1)
def built_example() -> tuple[Example, dict[str, npt.NDArray[np.bool_]]]:
    """The Bodega example with filters of its size, filled and asked: rates expected, and all answers."""
    model = Example.with_hashes(None).model
    n_high = round(N_KEYS * (1 - model))
    sizes = {
        "high": (n_high, HIGH_BITS - SECRET_BITS),
        "low": (N_KEYS - n_high, LOW_BITS - SECRET_BITS),
        "plain": (N_KEYS, MODEL_BITS + HIGH_BITS + LOW_BITS - SECRET_BITS),
    }
    asked = np.arange(N_KEYS, N_KEYS + 400_000).astype("S8")
    expected, answers = {}, {}
    for number, (name, (n_keys, n_bits)) in enumerate(sizes.items()):
        hashes = max(1, round(math.log(2) * n_bits / n_keys))
        made = BloomFilter(bits=n_bits, hashes=hashes, secret=number.to_bytes(16, "little"))
        made.update(np.arange(n_keys).astype("S8"))
        expected[name] = _bloom(n_keys, n_bits, hashes)
        answers[name] = made.contains_many(asked)
    return Example(model, expected["high"], expected["low"], expected["plain"]), answers


def crossovers() -> dict[str, float]:
    """Adversarial shares at which a keyed Bloom filter is as good as the published Bodega filter.

    ``predicted`` and ``measured`` are for filters with whole numbers of hashes, ``one_hash`` for the authors' code.
    """
    whole, answers = built_example()
    shares = {
        "predicted": whole.crossover(1.0),
        "measured": replace(whole, **{name: float(said.mean()) for name, said in answers.items()}).crossover(1.0),
        "one_hash": Example.with_hashes(1).crossover(1.0),
    }
    return {name: share for name, share in shares.items() if share is not None}
