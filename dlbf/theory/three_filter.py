"""The design with one member filter and two filters of deleted keys (lbf-3sbf, lbf-3cbf), optimised globally.

Of ``b`` bits per key, ``b1`` go to the members below the threshold, ``b2`` and ``b3`` to the deleted keys above and
below it::

    e = a^(b1 / F)    u = a^(b2 / (lambda (1-F)))    v = a^(b3 / (lambda F))        a = alpha^(1/c)
    FPR = p (1-u) + (1-p) (1-v) e          FNR = (1-F) u + F v

The product ``(1-v) e`` makes this non-convex; a descent from a lucky start may stop anywhere.  But for given ``v``
the rest is convex in one variable with a closed form, so one dimension is left, and that one is scanned.

Minimising FPR alone has a useless answer: no bits for the deleted sets means ``u = v = 1``, everything counts as
deleted, FPR = 0 and FNR = 1.  So the whole front is computed: the least FPR for each FNR allowed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlbf.theory.formulas import ALPHA

__all__ = ["ThreeFilters", "optimise_three_filters", "pareto_front", "smallest_three_filters"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ThreeFilters:
    """One allocation: rates, bits per key of the whole set, and what they give.

    Examples
    --------
    >>> found = optimise_three_filters(0.005, 0.55, bits_per_key=8, deletions=0.1)
    >>> round(found.bits, 6), found.fpr < 0.01
    (8.0, True)
    """

    member: float
    deleted_high: float
    deleted_low: float
    member_bits: float
    deleted_high_bits: float
    deleted_low_bits: float
    fpr: float
    fnr: float

    @property
    def bits(self) -> float:
        """Bits per key of all three."""
        return self.member_bits + self.deleted_high_bits + self.deleted_low_bits


class _Model:
    def __init__(self, p: float, fnr: float, deletions: float, cell_bits: float) -> None:
        for name, value in (("model_fpr", p), ("model_fnr", fnr)):
            if not 0 < value < 1:
                raise ValueError(f"{name}: expected 0 < {name} < 1, found {value!r}")
        if not 0 < deletions <= 1:
            raise ValueError(f"deletions: expected 0 < deletions <= 1, found {deletions!r}")
        if not (math.isfinite(cell_bits) and cell_bits > 0):
            raise ValueError(f"cell_bits: expected a finite number > 0, found {cell_bits!r}")
        self.p, self.fnr = p, fnr
        nat = cell_bits / -math.log(ALPHA)  # bits per stored key and nat
        # Bits per key of the whole set for one nat of each filter.
        self.w_member = nat * fnr
        self.w_high = nat * deletions * (1 - fnr)
        self.w_low = nat * deletions * fnr

    def make(self, x_member: float, x_high: float, x_low: float) -> ThreeFilters:
        e, u, v = math.exp(-x_member), math.exp(-x_high), math.exp(-x_low)
        # expm1: with rates next to 1 the FPR is a small difference.
        fpr = self.p * -math.expm1(-x_high) + (1 - self.p) * -math.expm1(-x_low) * e
        fnr = (1 - self.fnr) * u + self.fnr * v
        return ThreeFilters(
            e, u, v, self.w_member * x_member, self.w_high * x_high, self.w_low * x_low, fpr, fnr
        )  # fmt: skip

    def split(self, x_low: Floats, bits: float, weight: float) -> tuple[Floats, Floats, Floats]:
        """For each ``v = e^-x_low``, the best ``x_member`` and ``x_high`` of what is left, and the objective."""
        left = np.maximum(bits - self.w_low * x_low, 0.0)
        v = np.exp(-x_low)
        gain_member = weight * (1 - self.p) * -np.expm1(-x_low)  # objective: gain_member * e + gain_high * u
        gain_high = (1 - weight) * (1 - self.fnr) - weight * self.p
        if gain_high <= 0:
            x_member, x_high = (
                left / self.w_member,
                np.zeros_like(left),
            )  # u = 1 is best: the model's top says "deleted"
        else:
            # Lagrange: gain_member e / w_member = gain_high u / w_high, and w_member x_m + w_high x_h = left.
            with np.errstate(divide="ignore"):
                shift = np.log(gain_member * self.w_high) - math.log(gain_high * self.w_member)
            x_member = np.clip(
                (left + self.w_high * np.maximum(shift, -1e300)) / (self.w_member + self.w_high), 0, None
            )
            x_member = np.minimum(x_member, left / self.w_member)
            x_high = np.maximum(left - self.w_member * x_member, 0.0) / self.w_high
        value = (
            weight * self.p * -np.expm1(-x_high)
            + gain_member * np.exp(-x_member)
            + (1 - weight) * ((1 - self.fnr) * np.exp(-x_high) + self.fnr * v)
        )
        return x_member, x_high, value


def optimise_three_filters(
    model_fpr: float,
    model_fnr: float,
    bits_per_key: float,
    deletions: float,
    *,
    cell_bits: float = 1,
    weight: float = 0.5,
    points: int = 4001,
) -> ThreeFilters:
    """Global minimum of ``weight * FPR + (1 - weight) * FNR``; 0.5 is the published objective FPR + FNR, 1 is FPR
    alone.

    Parameters
    ----------
    model_fpr, model_fnr : float
        Error rates of the model.
    bits_per_key : float
        Budget for all three filters.
    deletions : float
        Deleted keys as a share of all keys (``lambda``).
    cell_bits : float
        1 for bits, the width for counters.
    points : int
        Size of the scan over the third filter's share, refined around its best point.

    Examples
    --------
    >>> found = optimise_three_filters(0.005, 0.55, bits_per_key=8, deletions=0.1)
    >>> round(found.fpr, 5), round(found.fnr, 5)
    (0.00849, 0.00064)
    """
    if not (math.isfinite(bits_per_key) and bits_per_key >= 0):
        raise ValueError(f"bits_per_key: expected a finite number >= 0, found {bits_per_key!r}")
    if not 0 <= weight <= 1:
        raise ValueError(f"weight: expected 0 <= weight <= 1, found {weight!r}")
    model = _Model(model_fpr, model_fnr, deletions, cell_bits)
    top = bits_per_key / model.w_low
    # Both even and geometric steps: the optimum can sit at a share of a thousandth.
    even = np.linspace(0, top, points)
    small = top * np.geomspace(1e-9, 1, points) if top > 0 else even
    grid = np.unique(np.concatenate((even, small)))
    for _ in range(12):
        x_member, x_high, value = model.split(grid, bits_per_key, weight)
        at = int(np.argmin(value))
        result = model.make(float(x_member[at]), float(x_high[at]), float(grid[at]))
        low, high = grid[max(0, at - 1)], grid[min(len(grid) - 1, at + 1)]
        if high <= low:
            break
        grid = np.unique(np.append(np.linspace(low, high, 33), grid[at]))
    return result


def pareto_front(
    model_fpr: float,
    model_fnr: float,
    bits_per_key: float,
    deletions: float,
    *,
    cell_bits: float = 1,
    fnr: Sequence[float] | None = None,
    points: int = 2001,
) -> list[ThreeFilters]:
    """Least FPR for each FNR allowed; unlike a sweep over weights this also finds the concave parts of the front.

    Parameters
    ----------
    fnr : sequence of float, optional
        FNRs allowed; by default 41 values from the smallest possible up to 1.

    Examples
    --------
    >>> front = pareto_front(0.005, 0.55, 8, 0.1, fnr=[0.001, 0.01])
    >>> [round(point.fpr, 5) for point in front]
    [0.00821, 0.00705]
    """
    if not (math.isfinite(bits_per_key) and bits_per_key > 0):
        raise ValueError(f"bits_per_key: expected a finite number > 0, found {bits_per_key!r}")
    model = _Model(model_fpr, model_fnr, deletions, cell_bits)
    if fnr is None:
        least = optimise_three_filters(
            model_fpr, model_fnr, bits_per_key, deletions, cell_bits=cell_bits, weight=0.0
        ).fnr  # fmt: skip
        fnr = np.geomspace(least * (1 + 1e-9), 1.0, 41).tolist()

    def rate(u: Floats, v: Floats, x_high: Floats, x_low: Floats) -> tuple[Floats, Floats]:
        # All that is left buys the member filter.
        left = bits_per_key - model.w_low * x_low - model.w_high * x_high
        x_member = np.maximum(left, 0) / model.w_member
        passing = model.p * (1 - u) + (1 - model.p) * (1 - v) * np.exp(-x_member)
        return np.where(left >= 0, passing, math.inf), x_member

    return [found for allowed in fnr if (found := _scan(model, allowed, rate, points)) is not None]


def smallest_three_filters(
    model_fpr: float,
    model_fnr: float,
    deletions: float,
    *,
    fnr: float,
    fpr: float | None = None,
    cell_bits: float = 1,
    points: int = 2001,
) -> ThreeFilters | None:
    """The fewest bits per key for an FNR and an FPR (None: whatever it is); None if no number of bits is enough.

    Examples
    --------
    >>> found = smallest_three_filters(0.005, 0.55, 0.1, fnr=0.01, fpr=0.00705)
    >>> round(found.bits, 2), round(found.fpr, 5), round(found.fnr, 5)
    (8.0, 0.00705, 0.01)
    >>> smallest_three_filters(0.005, 0.55, 0.1, fnr=0.01, fpr=0.001) is None
    True
    """
    model = _Model(model_fpr, model_fnr, deletions, cell_bits)

    def bits(u: Floats, v: Floats, x_high: Floats, x_low: Floats) -> tuple[Floats, Floats]:
        x_member = np.zeros_like(v)
        if fpr is not None:
            # What the deleted sets leave for the member filter to pass.
            passing = (fpr - model.p * (1 - u)) / ((1 - model.p) * (1 - v))
            x_member = np.where(passing > 0, np.maximum(-np.log(passing), 0), math.inf)
        return model.w_low * x_low + model.w_high * x_high + model.w_member * x_member, x_member

    return _scan(model, fnr, bits, points)


@functools.cache
def _unit_grid(points: int) -> Floats:
    """Even and geometric steps from 0 to 1: the optimum can sit next to 0."""
    return np.unique(np.concatenate((np.linspace(0, 1, points), np.geomspace(1e-12, 1, points))))


def _scan(
    model: _Model,
    allowed: float,
    price: Callable[[Floats, Floats, Floats, Floats], tuple[Floats, Floats]],
    points: int,
) -> ThreeFilters | None:
    """Of all with the FNR ``allowed``, the one of the lowest price; None if none has a finite one.

    ``price`` of the rates ``u``, ``v`` and their nats gives the price and the nats of the member filter.
    """
    if not 0 < allowed <= 1:
        raise ValueError(f"fnr: expected 0 < fnr <= 1, found {allowed!r}")
    # FNR is met with equality: u from v.
    low_v, high_v = max(0.0, (allowed - (1 - model.fnr)) / model.fnr), min(1.0, allowed / model.fnr)
    v = low_v + (high_v - low_v) * _unit_grid(points)
    found = None
    for _ in range(6):
        with np.errstate(divide="ignore", invalid="ignore"):
            u = np.clip((allowed - model.fnr * v) / (1 - model.fnr), 0, 1)
            x_low, x_high = -np.log(v), -np.log(u)
            value, x_member = price(u, v, x_high, x_low)
        at = int(np.argmin(np.nan_to_num(value, nan=math.inf, posinf=math.inf)))
        if not math.isfinite(value[at]):
            break
        found = model.make(float(x_member[at]), float(x_high[at]), float(x_low[at]))
        low, high = v[max(0, at - 1)], v[min(len(v) - 1, at + 1)]
        v = np.unique(np.append(np.linspace(low, high, 33), v[at]))
    return found
