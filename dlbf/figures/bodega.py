"""Figures 6, 7 and 8 of the Bodega paper: its example against alpha, Q_N and what the adversary sends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dlbf.figures.curves import Claim, Curves, Panel
from dlbf.figures.report_designs import N_KEYS
from dlbf.filters import BloomFilter
from dlbf.theory.allocation import allocate
from dlbf.theory.costs import cell_cost
from dlbf.theory.formulas import ALPHA, hybrid_crossover, hybrid_fpr

__all__ = [
    "NEGATIVES",
    "Example",
    "built_example",
    "claims",
    "crossing_of",
    "crossovers",
    "curves",
    "measured_example",
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

    def hybrid(self, a_high: float, a_low: float, negatives: float = NEGATIVES) -> float:
        """Rate with these shares of forged high and low scores; `negatives` is Q_N."""
        tnr = (1 - self.model) * negatives
        return hybrid_fpr(self.model, self.high, self.low, a_high, a_low, tnr)

    def crossover(self, high_weight: float) -> float | None:
        """Adversarial share at which the keyed Bloom filter is as good."""
        tnr = (1 - self.model) * NEGATIVES
        return hybrid_crossover(self.model, self.high, self.low, self.plain, high_weight, tnr)

    def best(self, a_high: float, a_low: float, negatives: float = NEGATIVES) -> float:
        """The same megabyte in the two filters, split for this very mix of queries."""
        honest = 1 - a_high - a_low
        queries = [a_low + honest * (1 - self.model) * negatives, a_high + honest * self.model]
        bits = (HIGH_BITS + LOW_BITS - 2 * SECRET_BITS) / N_KEYS
        return allocate([self.model, 1 - self.model], queries, [cell_cost(1)], bits=bits).fpr


# What is swept: name of the column, and how a value of it becomes (a_P, a_N, Q_N).
ALPHA_FIXED = 0.2  # the adversary's share in Figures 7 and 8
Sweep = Callable[[float], tuple[float, float, float]]
SWEEPS: dict[int, tuple[str, str, Sweep]] = {
    6: ("adversarial share", "alpha split equally, a_P = a_N", lambda share: (share / 2, share / 2, NEGATIVES)),
    7: ("Q_N", f"alpha = {ALPHA_FIXED:g}, split equally", lambda part: (ALPHA_FIXED / 2, ALPHA_FIXED / 2, part)),
    8: (
        "a_P / alpha",
        f"alpha = {ALPHA_FIXED:g}",
        lambda part: (ALPHA_FIXED * part, ALPHA_FIXED * (1 - part), NEGATIVES),
    ),
}
WORDS = {
    6: "against the adversary's share of the queries",
    7: "against the share of true negatives",
    8: "against what the adversary sends",
}
HASHES = ((1, "as printed: one hash, as in the authors' model code"), (None, "corrected: the best number of hashes"))


def _rows(number: int, hashes: int | None) -> list[dict[str, float]]:
    column, _, place = SWEEPS[number]
    example = Example.with_hashes(hashes)
    measured = measured_example() if hashes is None else None
    rows = []
    for step in range(101):
        value = step / 100
        high, low, negatives = place(value)
        row: dict[str, float] = {
            column: value,
            "hashes (0: best)": hashes or 0,
            "Bodega": example.hybrid(high, low, negatives),
            "keyed Bloom": example.plain,
        }
        if measured is not None:
            row["Bodega, best split"] = example.best(high, low, negatives)
            if step % 10 == 0:
                row["Bodega built"] = measured.hybrid(high, low, negatives)
                row["keyed Bloom built"] = measured.plain
        rows.append(row)
    return rows


def curves(number: int) -> Curves:
    """Figure 6, 7 or 8: as printed, and corrected with filters of that size built and asked."""
    column, setting, _ = SWEEPS[number]
    panels, everything = [], []
    for hashes, words in HASHES:
        rows = _rows(number, hashes)
        everything += rows
        series = [("Bodega, 1 + 0.5 + 0.5 MB", "Bodega"), ("keyed Bloom filter, 2 MB", "keyed Bloom")]
        if hashes is None:
            series.append(("Bodega, best split of the filters' 1 MB", "Bodega, best split"))
        crossing = crossing_of(number, hashes)
        marks = ((crossing, f"equal at {crossing:.2g}"),) if crossing is not None else ()
        points = ("Bodega built", "keyed Bloom built") if hashes is None else ()
        panels.append(
            Panel(words, column, "false-positive rate", tuple(series), tuple(rows), True, marks, points)
        )  # fmt: skip
    title = f"Bodega, Figure {number}: {WORDS[number]} ({setting})"
    return Curves(f"bodega-figure-{number}", title, tuple(panels), (_claim(number),), tuple(everything))


def crossing_of(number: int, hashes: int | None) -> float | None:
    """Where, in the figure of that number, the keyed Bloom filter becomes as good; None if nowhere.

    The rate is a straight line in what each figure sweeps.

    Examples
    --------
    >>> round(crossing_of(6, 1), 3), crossing_of(7, 1)
    (0.499, None)
    """
    _, _, place = SWEEPS[number]
    example = Example.with_hashes(hashes)
    start, end = (example.hybrid(*place(value)) for value in (0.0, 1.0))
    if (start <= example.plain) == (end <= example.plain):
        return None
    return (example.plain - start) / (end - start)


def _where(number: int, hashes: int | None) -> str:
    crossing = crossing_of(number, hashes)
    example = Example.with_hashes(hashes)
    better = example.hybrid(*SWEEPS[number][2](0.0)) <= example.plain
    if crossing is None:
        return "everywhere" if better else "nowhere"
    return f"{'up to' if better else 'from'} {SWEEPS[number][0]} {crossing:.2g}"


def _claim(number: int) -> Claim:
    printed, corrected = (_where(number, hashes) for hashes, _ in HASHES)
    return Claim(
        f"Figure {number}: Bodega beats the keyed Bloom filter ({SWEEPS[number][1]})",
        f"in realistic scenarios (with its one hash: {printed})",
        f"{corrected} with the best number of hashes",
        corrected == printed,
        command=f"dlbf plan --figures figures --only bodega-figure-{number}",
    )


def claims() -> tuple[Claim, ...]:
    """What the paper says beside what we compute, figure by figure, and if all forged keys score high."""
    made = []
    for hashes, words in ((None, "best number of hashes"), (1, "one hash, as in the authors' model code")):
        crossing = Example.with_hashes(hashes).crossover(1.0)
        assert crossing is not None
        made.append(
            Claim(
                f"Bodega beats the keyed Bloom filter when every forged key scores high ({words})",
                "in realistic scenarios",
                f"up to an adversarial share of {crossing:.1%}",
                agrees=True,
                command="dlbf plan --figures figures --only hybrid",
            )
        )
    hashes_claim = Claim(
        "number of hashes in the authors' model code",
        "k = ceil(ln 2 n/m), that is 1",
        "k = ln 2 m/n, which favours the larger keyed Bloom filter",
        agrees=False,
        command="dlbf plan --figures figures --only bodega",
    )
    return (*(_claim(number) for number in SWEEPS), *made, hashes_claim)


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


def measured_example() -> Example:
    """The example with the rates that its built filters have."""
    whole, answers = built_example()
    return replace(whole, **{name: float(said.mean()) for name, said in answers.items()})


def crossovers() -> dict[str, float]:
    """Adversarial shares at which a keyed Bloom filter is as good as the published Bodega filter.

    ``predicted`` and ``measured`` are for filters with whole numbers of hashes, ``one_hash`` for the authors' code.
    """
    whole, _ = built_example()
    shares = {
        "predicted": whole.crossover(1.0),
        "measured": measured_example().crossover(1.0),
        "one_hash": Example.with_hashes(1).crossover(1.0),
    }
    return {name: share for name, share in shares.items() if share is not None}
