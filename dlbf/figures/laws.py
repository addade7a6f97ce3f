"""What the theory says in curves: the worth of a model, the ridge of the sandwich, the price of a bound."""

import math
from collections.abc import Sequence

import numpy as np

from dlbf.figures.curves import Claim, Curves, Panel
from dlbf.figures.report_designs import MODELS
from dlbf.theory.allocation import allocate, sandwich
from dlbf.theory.costs import cell_cost
from dlbf.theory.planner import plan
from dlbf.theory.shares import saved_bits, two_regions

__all__ = ["BOUND_SERIES", "bound_curves", "bound_rows", "ridge_curves", "saving_curves"]


def saving_curves() -> Curves:
    """Bits per key against what the model knows, for three kinds of cell: slope c / (ln 2)^2."""
    rows, gaps = [], []
    for kl in np.linspace(0, 4.5, 46).tolist():
        # Two regions with half the keys each; the queries' share of the upper one sets KL(G||H).
        low, high = 0.0, 0.5
        for _ in range(80):
            p = 0.5 * (low + high)
            known = 0.5 * math.log(0.5 / (1 - p)) + 0.5 * math.log(0.5 / p) if p else math.inf
            low, high = (p, high) if known > kl else (low, p)
        keys, queries = [0.5, 0.5], [1 - high, high]
        row = {"nats": kl}
        for cell_bits in (1, 2, 4):
            row[f"c = {cell_bits}"] = allocate(keys, queries, [cell_cost(cell_bits)], fpr=0.001).bits
            plain = cell_cost(cell_bits).bits(0.001)
            row[f"line c = {cell_bits}"] = max(0.0, plain - saved_bits(keys, queries, cell_bits))
            if kl > 0 and high > 0.002:
                gaps.append(abs(row[f"c = {cell_bits}"] / row[f"line c = {cell_bits}"] - 1))
        row["auto"] = plan("auto", key_shares=keys, query_shares=queries, fpr=0.001).bits
        rows.append(row)
    series = (("4-bit counters", "c = 4"), ("2-bit counters", "c = 2"), ("bits", "c = 1"), ("auto", "auto"))
    claim = Claim(
        "a model that knows KL nats saves c KL / (ln 2)^2 bits per key", "-",
        f"largest relative error {max(gaps):.0e} while every region has a filter", agrees=True,
    )  # fmt: skip
    panel = Panel("FPR 0.1 %", "nats", "bits per key", series, tuple(rows), log_y=False)
    return Curves("theory-saving", "What a model is worth", (panel,), (claim,), tuple(rows))


def ridge_curves() -> Curves:
    """Along the ridge memory, FPR and deletability stay; the share of absent keys rejected before the model grows."""
    p, fnr, bits, cell_bits = 0.01, 0.5, 20.0, 2
    keys, queries = two_regions(p, fnr)
    cost = cell_cost(cell_bits)
    found = allocate(keys, queries, [cost], bits=bits)
    top, _ = sandwich(found.rates)
    rows = []
    for initial_bits in np.linspace(0, cost.bits(top), 60).tolist():
        front = math.exp(-initial_bits / cost.slope)
        own = np.array(found.rates) / front
        rows.append(
            {
                "initial bits": initial_bits,
                "FPR": front * float(queries @ own),
                "1 - deletability": front * float(keys @ own),
                "bits": initial_bits
                + sum(g * cost.bits(min(1.0, e)) for g, e in zip(keys.tolist(), own.tolist(), strict=True)),
                "reaches the model": front,
            }
        )
    spread = max(row["FPR"] for row in rows) / min(row["FPR"] for row in rows) - 1
    memory = max(row["bits"] for row in rows) - min(row["bits"] for row in rows)
    series = (
        ("absent keys that reach the model", "reaches the model"),
        ("1 - deletability", "1 - deletability"),
        ("FPR", "FPR"),
    )
    panel = Panel(
        "F_n 0.5, p 0.01, c 2, b 20", "initial bits", "rate", series, tuple(rows),
        marks=((0.0, "lbf-2cbf"), (cost.bits(top), "slbf-2cbf")),
    )  # fmt: skip
    claim = Claim(
        "lbf-2cbf, slbf-3cbf and slbf-2cbf are one ridge", "-",
        f"FPR varies by {spread:.0e}, memory by {memory:.0e} bits", agrees=True,
    )  # fmt: skip
    return Curves("theory-ridge", "The sandwich is a ridge", (panel,), (claim,), tuple(rows))


def bound_rows(
    key_shares: Sequence[float], query_shares: Sequence[float], model_bits: float = 0.0, n_points: int = 61
) -> list[dict[str, float]]:
    """The price of a bound: bits per key against ``adversarial_fpr`` at an ordinary FPR of 1 % and of 0.1 %.

    Parameters
    ----------
    key_shares, query_shares : sequence of float
        Shares of the keys and of the queries in each score region.
    model_bits : float
        Bits per key of the model.

    Examples
    --------
    >>> rows = bound_rows([0.2, 0.8], [0.99, 0.01], n_points=3)
    >>> [round(row["FPR 0.01"], 2) for row in rows]
    [14.38, 7.68, 2.95]
    """
    cost = cell_cost(1)
    return [
        {"adversarial FPR": bound}
        | {
            f"FPR {f:g}": model_bits + allocate(key_shares, query_shares, [cost], fpr=f, adversarial_fpr=bound).bits
            for f in (0.01, 0.001)
        }
        | {"floor": cost.bits(bound)}
        for bound in np.geomspace(0.001, 1, n_points).tolist()
    ]


def _sandwich_claim() -> Claim:
    gaps = []
    for p, fnr in MODELS:
        for bits in range(8, 31, 2):
            pair = [plan(name, model_fpr=p, model_fnr=fnr, bits_per_key=bits) for name in ("bodega", "slbf")]
            if all(found.feasible for found in pair):
                gaps.append(abs(pair[1].adversarial_fpr / pair[0].adversarial_fpr - 1))
    return Claim(
        "the keyed sandwich has the bound of bodega at equal memory", "-",
        f"largest relative difference {max(gaps):.0e} over {len(gaps)} budgets", max(gaps) < 1e-6,
    )  # fmt: skip


BOUND_SERIES = (("FPR 1 %", "FPR 0.01"), ("FPR 0.1 %", "FPR 0.001"), ("floor: the bound alone", "floor"))


def bound_curves() -> Curves:
    """Bits per key against the adversarial bound and against deletability: all gain lives in the gap to the FPR."""
    keys = [0.02, 0.03, 0.05, 0.1, 0.2, 0.6]
    queries = [0.70, 0.17, 0.08, 0.035, 0.012, 0.003]
    cost = cell_cost(1)
    forged, removed = bound_rows(keys, queries), []
    for kept in np.geomspace(0.001, 1, 61).tolist():
        removed.append(
            {"1 - deletability": kept}
            | {f"FPR {f:g}": allocate(keys, queries, [cost], fpr=f, deletability=1 - kept).bits for f in (0.01, 0.001)}
            | {"floor": cost.bits(kept)}
        )
    panels = (
        Panel("bound on forged scores", "adversarial FPR", "bits per key", BOUND_SERIES, tuple(forged), False),
        Panel("bound on deleted keys", "1 - deletability", "bits per key", BOUND_SERIES, tuple(removed), False),
    )
    return Curves("theory-adversary", "What a bound costs", panels, (_sandwich_claim(),), (*forged, *removed))
