"""The one trade of a learned filter: what a lower worst case costs, for the same rate on ordinary traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy.typing as npt

from dlbf.theory.planner import plan

__all__ = ["WORST_CASES", "Trade", "trade", "trade_lines"]

WORST_CASES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)


@dataclass(frozen=True, slots=True)
class Trade:
    """One row of the trade.

    Attributes
    ----------
    fpr : float
        Rate on traffic like that learnt.
    worst_case : float
        Rate of the weakest region: forged, deleted and drifted queries meet at most this one.
    bits_per_key : float
        Model included.
    chosen : bool
        Whether this is the filter at hand.

    Examples
    --------
    >>> from dlbf.theory import Trade
    >>> Trade(fpr=0.01, worst_case=0.1, bits_per_key=5.6, chosen=True).worst_case
    0.1
    """

    fpr: float
    worst_case: float
    bits_per_key: float
    chosen: bool = False


def trade(
    *,
    key_shares: npt.ArrayLike,
    query_shares: npt.ArrayLike,
    fpr: float | None = None,
    bits_per_key: float | None = None,
    model_bits_per_key: float = 0.0,
    query_floor: float = 0.0,
    worst_cases: Sequence[float] = WORST_CASES,
) -> tuple[Trade, ...]:
    """Plan ``auto`` for each worst case, the loosest first.

    Parameters
    ----------
    key_shares, query_shares : array_like
        As for ``dlbf.theory.plan``, like the next three.
    fpr, bits_per_key : float, optional
        Rate wanted, or bits to spend.
    model_bits_per_key, query_floor : float
        Size of the model; what is added to the query share of each region.
    worst_cases : sequence of float
        Values of ``adversarial_fpr``.  A cap of A also makes at least ``1 - A`` of the deleted keys answer "absent", so
        deletability is not asked for besides.

    Returns
    -------
    tuple of Trade
        Without those that no budget reaches, and without those that come out the same as a tighter one.

    Examples
    --------
    >>> rows = trade(key_shares=[0.05, 0.95], query_shares=[0.99, 0.01], fpr=0.01, worst_cases=(0.5, 0.1))
    >>> [(row.worst_case, round(row.bits_per_key, 2)) for row in rows]
    [(0.5, 3.29), (0.1, 5.71)]
    """
    rows: list[Trade] = []
    for worst in sorted(set(worst_cases), reverse=True):
        found = plan(
            "auto", key_shares=key_shares, query_shares=query_shares, fpr=fpr, bits_per_key=bits_per_key,
            adversarial_fpr=worst, model_bits_per_key=model_bits_per_key, query_floor=query_floor,
        )  # fmt: skip
        if not found.feasible:
            continue
        row = Trade(found.fpr, found.adversarial_fpr, found.bits)
        if rows and _alike(rows[-1], row):
            rows.pop()
        rows.append(row)
    return tuple(rows)


def _alike(one: Trade, other: Trade) -> bool:
    return abs(one.bits_per_key - other.bits_per_key) < 0.005 and abs(one.fpr - other.fpr) < 0.005 * one.fpr


def trade_lines(rows: Sequence[Trade]) -> list[str]:
    """The rows as a small table of text; empty where there is nothing to choose between.

    Examples
    --------
    >>> print(*trade_lines((Trade(0.01, 0.5, 3.4), Trade(0.01, 0.1, 5.6, True))), sep="\\n")
    traffic like that learnt   worst case   bits/key
                     1.0000%       50.00%       3.40
                     1.0000%       10.00%       5.60  this filter
    worst case (adversarial_fpr): of forged, deleted and drifted queries, at most
    """
    if len(rows) < 2:
        return []
    lines = [f"{'traffic like that learnt':>24}{'worst case':>13}{'bits/key':>11}"]
    for row in rows:
        mark = "  this filter" if row.chosen else ""
        lines.append(f"{row.fpr:>24.4%}{row.worst_case:>13.2%}{row.bits_per_key:>11.2f}{mark}")
    lines.append("worst case (adversarial_fpr): of forged, deleted and drifted queries, at most")
    return lines
