"""Figures 7a, 7b, 8a and 8b of the deletable learned Bloom filter report: its designs against memory.

Each as one picture: as printed (the sandwich split with the ``b1*`` of one-bit cells), corrected, and built.
"""

import itertools
import math
from functools import lru_cache

import numpy as np

from dlbf.figures.curves import Claim, Curves, Panel
from dlbf.figures.simulated import Simulated, TwoRegions, simulate
from dlbf.theory.formulas import ALPHA, lbf_2cbf_split, slbf_2cbf_split
from dlbf.theory.planner import plan
from dlbf.theory.plans import Plan
from dlbf.theory.three_filter import optimise_three_filters

__all__ = ["DELETIONS", "MODELS", "MODEL_BITS", "N_KEYS", "claims", "deletability_curves", "fpr_curves", "model_words"]

# Google Transparency Report, as both papers use it.
N_KEYS = 1_700_000
MODEL_BYTES = 25_900  # 0.0259 MB
MODELS = ((0.005, 0.55), (0.001, 0.76))  # (FPR_L, F_n): panels a and b
COUNTER_BITS = 4
DELETIONS = 0.1
MODEL_BITS = 8 * MODEL_BYTES / N_KEYS
BUDGETS = (*np.arange(1, 12, 0.5).tolist(), *np.arange(12, 51, 1.0).tolist())
BUILT_BUDGETS = (5.0, 8.0, 11.0, 16.0, 20.0, 24.0, 28.0, 32.0, 38.0, 44.0, 50.0)


def _cells(bits: float) -> float:
    """Rate of counters with so many bits per key they store."""
    return float(ALPHA ** (bits / COUNTER_BITS))


def printed_split(p: float, fnr: float, bits: float) -> TwoRegions | None:
    """The sandwich with the backup's bits as printed, those of one-bit cells; None below the printed limit."""
    initial, backup = slbf_2cbf_split(p, fnr, bits, counter_bits=1)
    return TwoRegions(_cells(initial), _cells(backup / fnr), cell_bits=COUNTER_BITS) if initial > 0 else None


def _rates_of(found: Plan) -> TwoRegions:
    front = 1.0 if found.initial is None else found.initial.fpr
    if len(found.regions) == 1:
        return TwoRegions(found.regions[0].member.fpr, cell_bits=COUNTER_BITS)
    low, high = (region.member.fpr for region in found.regions)
    return TwoRegions(front, low, high, cell_bits=COUNTER_BITS)


def _kept(rates: TwoRegions, fnr: float, removed: float) -> float:
    """Share of removed keys that still pass once a share of the keys is gone, for counters."""

    def at(rate: float) -> float:
        hashes = max(1.0, math.log2(1 / rate)) if rate < 1 else 0.0
        return float((1 - (1 - rate ** (1 / hashes)) ** (1 - removed)) ** hashes) if hashes else 1.0

    return at(rates.initial) * (fnr * at(rates.low) + (1 - fnr) * at(rates.high))


def _put(row: dict[str, float], name: str, fpr: float, first: float, after: float) -> None:
    row[f"{name} fpr"], row[f"{name} kept first"], row[f"{name} kept after"] = fpr, first, after


def _built(row: dict[str, float], name: str, found: Simulated) -> None:
    row[f"{name} fpr built"] = found.fpr
    row[f"{name} kept first built"], row[f"{name} kept after built"] = 1 - found.first, 1 - found.after


@lru_cache(maxsize=4)
def _design_rows(p: float, fnr: float) -> tuple[dict[str, float], ...]:
    """FPR and deletability of the report's designs at each budget (bits per key of filters and model)."""
    rows = []
    for bits in BUDGETS:
        row: dict[str, float] = {"model_fpr": p, "model_fnr": fnr, "bits_per_key": bits}
        built: dict[str, TwoRegions] = {}
        for name in ("counting", "slbf-2cbf", "lbf-2cbf", "auto"):
            found = plan(
                name, model_fpr=p, model_fnr=fnr, bits_per_key=bits, counter_bits=COUNTER_BITS, deletions=DELETIONS,
                model_bits_per_key=MODEL_BITS,
            )  # fmt: skip
            if found.feasible:
                _put(row, name, found.fpr, 1 - found.deletability, 1 - found.deletability_after())
                if name != "auto":
                    built[name] = _rates_of(found)
        printed = printed_split(p, fnr, bits - MODEL_BITS)
        if printed is not None:
            passing = p + (1 - p) * printed.low
            _put(row, "printed", printed.initial * passing, _kept(printed, fnr, 0), _kept(printed, fnr, DELETIONS))
            built["printed"] = printed
        three = optimise_three_filters(p, fnr, max(bits - MODEL_BITS, 0), DELETIONS)
        row["lbf-3sbf fpr"] = three.fpr
        built["lbf-3sbf"] = TwoRegions(
            1.0, three.member, 1.0, three.deleted_low, three.deleted_high, cell_bits=1
        )  # fmt: skip
        if bits in BUILT_BUDGETS:
            for name, rates in built.items():
                _built(row, name, simulate(p, fnr, rates, DELETIONS))
        rows.append(row)
    return tuple(rows)


def model_words(p: float, fnr: float) -> str:
    """The model in a title."""
    return f"model: FPR {p:.1%}, FNR {fnr:.0%}"


_FPR_SERIES = (
    ("counting", "counting"),
    ("slbf-2cbf as printed", "printed"),
    ("slbf-2cbf corrected", "slbf-2cbf"),
    ("lbf-2cbf = slbf-3cbf", "lbf-2cbf"),
    ("lbf-3sbf, FPR+FNR", "lbf-3sbf"),
    ("auto (tables)", "auto"),
)


def fpr_curves(which: int) -> Curves:
    """Figure 7a (`which` 0) or 7b (1): FPR against bits per key."""
    p, fnr = MODELS[which]
    rows = _design_rows(p, fnr)
    limit = slbf_2cbf_split(p, fnr, 1, COUNTER_BITS)[1] + MODEL_BITS
    printed = slbf_2cbf_split(p, fnr, 1, 1)[1] + MODEL_BITS
    panel = Panel(
        model_words(p, fnr), "bits_per_key", "false-positive rate",
        tuple((label, f"{name} fpr") for label, name in _FPR_SERIES), rows,
        marks=((printed, "printed limit"), (limit, "slbf-2cbf feasible")),
        points=tuple("" if name == "auto" else f"{name} fpr built" for _, name in _FPR_SERIES),
    )  # fmt: skip
    letter = "ab"[which]
    return Curves(
        f"report-figure-7{letter}-fpr", f"Report, Figure 7{letter}: false-positive rate against memory", (panel,),
        (_limit_claim(which), *(() if which else (_equal_claim(), _three_filter_claim(), *_worked_claims()))), rows,
        one_legend=True,
    )  # fmt: skip


def deletability_curves(which: int) -> Curves:
    """Figure 8a (`which` 0) or 8b (1): deletability against bits per key."""
    p, fnr = MODELS[which]
    rows = _design_rows(p, fnr)
    lines = (
        ("counting, first removal", "counting kept first"),
        ("slbf-2cbf as printed, after 10 %", "printed kept after"),
        ("slbf-2cbf corrected, first", "slbf-2cbf kept first"),
        ("lbf-2cbf = slbf-3cbf, first", "lbf-2cbf kept first"),
        ("lbf-2cbf = slbf-3cbf, after 10 %", "lbf-2cbf kept after"),
        ("auto (tables), first", "auto kept first"),
    )
    panel = Panel(
        model_words(p, fnr), "bits_per_key", "1 - deletability (lbf-3sbf: 0)", lines, rows,
        points=tuple("" if column.startswith("auto") else f"{column} built" for _, column in lines),
    )  # fmt: skip
    letter = "ab"[which]
    return Curves(
        f"report-figure-8{letter}-deletability", f"Report, Figure 8{letter}: deletability against memory", (panel,),
        () if which else _deletability_claims(), rows, one_legend=True,
    )  # fmt: skip


# --- claims

_PLAN = "dlbf plan {} --model-fpr 0.005 --model-fnr 0.55 --bits-per-key 24 --model-bits-per-key 0.1219"


def _limit_claim(which: int) -> Claim:
    (p, fnr), printed = MODELS[which], (6, 9)[which]
    ours = slbf_2cbf_split(p, fnr, 1, COUNTER_BITS)[1]
    one = slbf_2cbf_split(p, fnr, 1, 1)[1]
    return Claim(
        f"slbf-2cbf with 4-bit counters is feasible from (FPR_L {p:.1%}, F_n {fnr:.0%})",
        f"b = about {printed}",
        f"b = {ours:.1f} (about {printed} is c = 1: {one:.2f})",
        agrees=False,
        command=f"dlbf plan slbf-2cbf --model-fpr {p} --model-fnr {fnr} --bits-per-key {printed}",
    )


def _equal_claim() -> Claim:
    gaps = []
    for (p, fnr), bits in itertools.product(MODELS, (25, 30, 40, 50)):
        found = [
            plan(name, model_fpr=p, model_fnr=fnr, bits_per_key=bits, counter_bits=COUNTER_BITS)
            for name in ("slbf-2cbf", "lbf-2cbf", "slbf-3cbf")
        ]
        if found[0].feasible:
            gaps += [abs(found[0].fpr / other.fpr - 1) for other in found[1:]]
    return Claim(
        "slbf-2cbf has the lowest FPR",
        "below lbf-2cbf",
        f"equal to lbf-2cbf and slbf-3cbf wherever feasible{' (to nine digits)' if max(gaps) < 1e-9 else ': no'}",
        agrees=False,
        command=_PLAN.format("slbf-2cbf lbf-2cbf slbf-3cbf"),
    )


def _three_filter_claim() -> Claim:
    p, fnr = MODELS[0]
    sandwich = plan("slbf-2cbf", model_fpr=p, model_fnr=fnr, bits_per_key=24, model_bits_per_key=MODEL_BITS).fpr
    three = optimise_three_filters(p, fnr, 24 - MODEL_BITS, DELETIONS).fpr
    return Claim(
        "FPR of slbf-2cbf and lbf-3sbf for b from 9 to 32 (FPR_L 0.5%, F_n 55%)",
        "about the same",
        f"{sandwich:.4f} against {three:.4f} at b = 24, c = 4",
        agrees=False,
        command=_PLAN.format("slbf-2cbf lbf-3sbf"),
    )


def _worked_claims() -> tuple[Claim, ...]:
    initial, backup = slbf_2cbf_split(0.01, 0.5, 20, 2)
    worked = ALPHA ** (initial / 2) * 0.01 / 0.5
    below = lbf_2cbf_split(0.01, 0.5, 20, 2)
    command = "dlbf plan {} --model-fpr 0.01 --model-fnr 0.5 --bits-per-key 20 --counter-bits 2 --details"
    return (
        Claim(
            "worked example F_n 0.5, p 0.01, c 2, b 20: b1* of slbf-2cbf",
            "4.782",
            f"{backup:.3f} (4.782 is c = 1), FPR {worked:.5f}",
            agrees=False,
            command=command.format("slbf-2cbf"),
        ),
        Claim(
            "the same: lbf-2cbf b1*, b2*", "14.782, 5.218", f"{below[0]:.3f}, {below[1]:.3f}", agrees=True,
            command=command.format("lbf-2cbf"),
        ),
    )  # fmt: skip


def _deletability_claims() -> tuple[Claim, ...]:
    p, fnr = MODELS[0]
    bits = 24.0
    printed = printed_split(p, fnr, bits - MODEL_BITS)
    assert printed is not None
    found = {
        name: plan(
            name, model_fpr=p, model_fnr=fnr, bits_per_key=bits, deletions=DELETIONS, model_bits_per_key=MODEL_BITS
        )
        for name in ("slbf-2cbf", "lbf-2cbf", "counting")
    }
    first = {name: each.deletability for name, each in found.items()}
    wrong = 1 - _kept(printed, fnr, 0)
    return (
        Claim(
            "lbf-3sbf deletes every key", "deletability 1", "1, by construction", agrees=True,
            command=_PLAN.format("lbf-3sbf"),
        ),
        Claim(
            "order of deletability (FPR_L 0.5%, F_n 55%, b 24)",
            f"by its formulas lbf-3sbf 1, slbf-2cbf {wrong:.3f}, lbf-2cbf {first['lbf-2cbf']:.3f}",
            f"lbf-3sbf 1, counting {first['counting']:.3f}, then slbf-2cbf {first['slbf-2cbf']:.3f} = lbf-2cbf "
            f"{first['lbf-2cbf']:.3f}: a model takes bits from where deleted keys fall",
            agrees=False,
            command=_PLAN.format("counting slbf-2cbf lbf-2cbf lbf-3sbf"),
        ),
        Claim(
            "deletability (slbf-2cbf, b 24)",
            "defined for the first removal, evaluated after lambda n",
            f"{first['slbf-2cbf']:.3f} for the first, {found['slbf-2cbf'].average_deletability():.3f} on average over "
            f"lambda = 10 %, {found['slbf-2cbf'].deletability_after():.3f} after it",
            agrees=False,
            command=_PLAN.format("slbf-2cbf") + " --deletions 0.1 --details",
        ),
    )  # fmt: skip


def claims() -> tuple[Claim, ...]:
    """What the report says of FPR and deletability beside what we compute, without the curves."""
    return (
        _limit_claim(0), _limit_claim(1), _equal_claim(), _three_filter_claim(), *_worked_claims(),
        *_deletability_claims(),
    )  # fmt: skip
