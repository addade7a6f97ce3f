"""The task of a planner: the arguments of ``plan``, checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlbf.filters.kinds import BASES
from dlbf.theory.allocation import Allocation, allocate
from dlbf.theory.costs import ALL, COUNTER_WIDTHS, Cost, base_cost, base_costs
from dlbf.theory.designs import Design
from dlbf.theory.shares import as_shares, merge_shares, two_regions

__all__ = ["Costs", "Task", "check_task"]

Floats = npt.NDArray[np.float64]
Costs = Sequence[Cost] | Sequence[Sequence[Cost]]


@dataclass(frozen=True, slots=True)
class Task:
    """Checked arguments of one call of ``plan``."""

    design: Design
    keys: Floats
    queries: Floats
    bits: float | None  # of the filters
    fpr: float | None
    fnr: float | None
    deletability: float
    adversarial_fpr: float
    counter_bits: int
    deletions: float
    model_bits: float
    max_regions: int
    weight: float
    bases: tuple[str, ...]
    query_floor: float

    def cost(self, base: str) -> list[Cost]:
        """What the named base filter costs; ``"chosen"`` is any of those to choose from, or none."""
        if base == "chosen":
            lines = [line for name in self.bases for line in base_costs(name, self.counter_bits)]
            # Above one half a filter of cells has one hash and is dearer than the formula: what is chosen must be real.
            honest = [line if line.fixed else dataclasses.replace(line, max_fpr=0.5) for line in lines]
            return [ALL, *honest]
        lines = base_costs(base, self.counter_bits)
        # What costs something at every rate competes with no filter at all.
        return [ALL, *lines] if self.design.chooses_model else lines

    def merged(self, cuts: Sequence[int]) -> tuple[Floats, Floats]:
        """Shares of the keys and of the queries in the regions between the cuts."""
        queries = merge_shares(self.queries, cuts) + self.query_floor
        return merge_shares(self.keys, cuts), queries / queries.sum()

    def allocate(self, keys: Floats, queries: Floats, costs: Costs) -> Allocation:
        """The best filters for regions with these shares, under the targets of the task."""
        return allocate(
            keys, queries, costs,
            fpr=self.fpr, bits=self.bits, deletability=self.deletability, adversarial_fpr=self.adversarial_fpr,
        )  # fmt: skip


def check_task(
    row: Design,
    model_fpr: float | None,
    model_fnr: float | None,
    key_shares: npt.ArrayLike | None,
    query_shares: npt.ArrayLike | None,
    bits_per_key: float | None,
    fpr: float | None,
    deletability: float,
    adversarial_fpr: float | None,
    fnr: float | None,
    counter_bits: int,
    deletions: float,
    model_bits: float,
    max_regions: int,
    objective: str | float,
    bases: Sequence[str],
    query_floor: float,
) -> Task:
    """The task that these arguments of ``plan`` describe; ValueError where they make no sense."""
    keys, queries = _check_shares(row, model_fpr, model_fnr, key_shares, query_shares)
    if (fpr is None) == (bits_per_key is None):
        raise ValueError(f"expected exactly one of bits_per_key and fpr, found {bits_per_key!r} and {fpr!r}")
    if fpr is not None:
        fpr = _inside("fpr", fpr, 0, 1, True, True)
    bits = None
    model_bits = _inside("model_bits_per_key", model_bits, 0, math.inf, False, True)
    if bits_per_key is not None:
        bits = _inside("bits_per_key", bits_per_key, 0, math.inf, True, True) - (model_bits if row.learned else 0.0)
    _inside("deletability", deletability, 0, 1, False, True)
    worst = _inside("adversarial_fpr", row.worst_case(deletability, adversarial_fpr), 0, 1, True, False)
    _inside("query_floor", query_floor, 0, 1, False, False)
    if fnr is not None:
        _inside("fnr", fnr, 0, 1, True, False)
    _inside("deletions", deletions, 0, 1, False, False)
    if counter_bits not in COUNTER_WIDTHS:
        raise ValueError(f"counter_bits: expected one of {COUNTER_WIDTHS}, found {counter_bits!r}")
    if not (isinstance(max_regions, (int, np.integer)) and 1 <= max_regions <= 255):
        raise ValueError(f"max_regions: expected an integer from 1 to 255, found {max_regions!r}")
    if isinstance(objective, str):
        if objective not in ("fpr", "fpr+fnr"):
            raise ValueError(f"objective: expected 'fpr', 'fpr+fnr' or a weight from 0 to 1, found {objective!r}")
        weight = 1.0 if objective == "fpr" else 0.5
    else:
        weight = _inside("objective", objective, 0, 1, False, False)
    bases = tuple(bases)
    for base in bases:
        if base_cost(base).base == "all" or not BASES[base].deletable:
            raise ValueError(f"bases: expected deletable base filters, found {base!r}")
    return Task(
        row, keys, queries, bits, fpr, fnr, float(deletability), worst, counter_bits, float(deletions),
        model_bits if row.learned else 0.0, int(max_regions), weight, bases, float(query_floor),
    )  # fmt: skip


def _check_shares(
    row: Design,
    model_fpr: float | None,
    model_fnr: float | None,
    key_shares: npt.ArrayLike | None,
    query_shares: npt.ArrayLike | None,
) -> tuple[Floats, Floats]:
    """Shares of the keys and of the queries, however they were given."""
    by_rates = model_fpr is not None or model_fnr is not None
    by_shares = key_shares is not None or query_shares is not None
    if by_rates and by_shares:
        raise ValueError("expected model_fpr and model_fnr, or key_shares and query_shares; found some of both")
    if by_rates:
        if model_fpr is None or model_fnr is None:
            raise ValueError(f"expected model_fpr and model_fnr, found {model_fpr!r} and {model_fnr!r}")
        keys, queries = two_regions(_number("model_fpr", model_fpr), _number("model_fnr", model_fnr))
    elif by_shares:
        if key_shares is None or query_shares is None:
            missing = "key_shares" if key_shares is None else "query_shares"
            raise ValueError(f"expected key_shares and query_shares, found no {missing}")
        keys, queries = as_shares(key_shares, query_shares)
        for name, shares in (("key_shares", keys), ("query_shares", queries)):
            if not math.isclose(float(shares.sum()), 1, abs_tol=1e-6):
                raise ValueError(f"{name}: expected shares that add up to 1, found a sum of {float(shares.sum()):.6g}")
        keys, queries = keys / keys.sum(), queries / queries.sum()
    elif row.regions == 1 or row.chooses_model:
        keys, queries = np.ones(1), np.ones(1)
    else:
        raise ValueError(f"{row.name} uses a model: expected model_fpr and model_fnr, or key_shares and query_shares")
    if row.regions == 2 and len(keys) == 1:
        raise ValueError(f"{row.name} has two regions: expected at least two shares, found one")
    return keys, queries


def _inside(name: str, value: float, low: float, high: float, open_low: bool, open_high: bool) -> float:
    """``value`` as a float between the ends, which may be open; ValueError outside."""
    value = _number(name, value)
    if not ((value > low if open_low else value >= low) and (value < high if open_high else value <= high)):
        signs = ("<" if open_low else "<=", "<" if open_high else "<=")
        raise ValueError(f"{name}: expected {low:g} {signs[0]} {name} {signs[1]} {high:g}, found {value!r}")
    return value


def _number(name: str, value: float) -> float:
    if isinstance(value, (bool, str, bytes)):
        raise ValueError(f"{name}: expected a number, found {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected a number, found {value!r}") from None
    if math.isnan(number):
        raise ValueError(f"{name}: expected a number, found {value!r}")
    return number
