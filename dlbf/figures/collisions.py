"""Figures 2, 3 and 4 of the deletable Bloom filter (DlBF) paper: how many keys can be forgotten, and at what price.

Equation 1 as published (with its leading "1 -"), corrected for the key's own bit, and counted in filters.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dlbf.figures.curves import Claim, Curves, Panel
from dlbf.filters import DeletableBloomFilter
from dlbf.theory.formulas import dlbf_clean_chance, dlbf_deletability

__all__ = ["claims", "density_curves", "rate_curves", "regions_curves", "removable"]

HASHES = 5
RATIOS = (10, 20, 40)  # m / r
SMALL_BITS, SMALL_REGIONS, SMALL_KEYS = 240, 24, 22  # the paper's example
N_LARGE = 4_000  # keys of a filter that stands for large ones
ROUNDS = 150  # small filters for each point


def _names(first: int, n: int) -> npt.NDArray[np.bytes_]:
    return np.arange(first, first + n).astype("S12")


def removable(n_keys: int, bits: int, hashes: int, regions: int, rounds: int) -> float:
    """Share of the keys that could be removed, counted in so many filters with keys of their own."""
    total = 0
    for number in range(rounds):
        filled = DeletableBloomFilter(bits=bits, hashes=hashes, regions=regions)
        keys = _names(number * n_keys, n_keys)
        filled.update(keys)
        total += int(filled.remove_many(keys).sum())
    return total / (rounds * n_keys)


def density_curves() -> Curves:
    """Figure 2: deletability against the bits per key, for several bits per region."""
    rows = []
    for per_key in (*range(3, 12), *range(12, 33, 2)):
        row: dict[str, float] = {"m/n": per_key}
        n_bits = per_key * N_LARGE
        for ratio in RATIOS:
            regions = n_bits // ratio
            row[f"Eq. 1, {ratio}"] = dlbf_deletability(N_LARGE, n_bits, HASHES, regions, as_published=True)
            row[f"corrected, {ratio}"] = dlbf_deletability(N_LARGE, n_bits, HASHES, regions)
            if per_key % 4 == 0:
                row[f"built, {ratio}"] = removable(N_LARGE, n_bits, HASHES, regions, 1)
        rows.append(row)
    series = [(f"m/r = {ratio}, {words}", f"{words}, {ratio}") for ratio in RATIOS for words in ("Eq. 1", "corrected")]
    points = [f"built, {ratio}" if words == "corrected" else "" for ratio in RATIOS for words in ("Eq. 1", "corrected")]
    panel = Panel(
        f"k = {HASHES}, n = {N_LARGE:,}", "m/n", "share of keys that can be removed", tuple(series), tuple(rows),
        log_y=False, points=tuple(points), marks=((16, "m/n = 16"),),
    )  # fmt: skip
    return Curves(
        "dlbf-figure-2-deletability", "DlBF, Figure 2: deletability against memory", (panel,), (_ratio_claim(),),
        tuple(rows), one_legend=True,
    )  # fmt: skip


def regions_curves() -> Curves:
    """Figure 3: deletability of the small filter against the number of keys, for several numbers of regions."""
    rows = []
    chosen = (12, SMALL_REGIONS, 48)
    for n_keys in range(4, 41, 2):
        row: dict[str, float] = {"keys": n_keys}
        for regions in chosen:
            row[f"Eq. 1, {regions}"] = dlbf_deletability(n_keys, SMALL_BITS, HASHES, regions, as_published=True)
            row[f"corrected, {regions}"] = dlbf_deletability(n_keys, SMALL_BITS, HASHES, regions)
            if n_keys % 6 == 4:
                row[f"built, {regions}"] = removable(n_keys, SMALL_BITS, HASHES, regions, ROUNDS)
        rows.append(row)
    series = [
        (f"r = {regions}, {words}", f"{words}, {regions}") for regions in chosen for words in ("Eq. 1", "corrected")
    ]
    points = [
        f"built, {regions}" if words == "corrected" else "" for regions in chosen for words in ("Eq. 1", "corrected")
    ]
    panel = Panel(
        f"m = {SMALL_BITS}, k = {HASHES}, {ROUNDS} filters for each point", "keys", "share of keys that can be removed",
        tuple(series), tuple(rows), log_y=False, points=tuple(points), marks=((SMALL_KEYS, f"n = {SMALL_KEYS}"),),
    )  # fmt: skip
    return Curves(
        "dlbf-figure-3-regions", "DlBF, Figure 3: deletability against the number of keys", (panel,), (_small_claim(),),
        tuple(rows), one_legend=True,
    )  # fmt: skip


def _asked() -> Iterator[int]:
    """Where the keys that are asked begin, far from those that are stored."""
    yield from range(10**9, 10**10, 10**6)


@lru_cache(maxsize=256)
def _rates_built(n_keys: int, rounds: int) -> tuple[float, float]:
    """Rates of the small filter before and after half of its keys are removed."""
    passed = [0, 0]
    n_asked = 2_000
    for number, start in zip(range(rounds), _asked(), strict=False):
        filled = DeletableBloomFilter(bits=SMALL_BITS, hashes=HASHES, regions=SMALL_REGIONS)
        keys, asked = _names(number * n_keys, n_keys), _names(start, n_asked)
        filled.update(keys)
        passed[0] += int(filled.contains_many(asked).sum())
        filled.remove_many(keys[: n_keys // 2])
        passed[1] += int(filled.contains_many(asked).sum())
    return passed[0] / (rounds * n_asked), passed[1] / (rounds * n_asked)


def rate_curves() -> Curves:
    """Figure 4: false positives of the small filter before and after half of its keys are removed."""
    rows = []
    cells = SMALL_BITS - SMALL_REGIONS
    for n_keys in range(4, 41, 2):
        before = -math.expm1(HASHES * n_keys * math.log1p(-1 / cells))
        # Each removed key clears the bits of its that lie in clean regions.
        cleared = n_keys // 2 * HASHES * dlbf_clean_chance(n_keys, SMALL_BITS, HASHES, SMALL_REGIONS) / cells
        half = -math.expm1(HASHES * (n_keys - n_keys // 2) * math.log1p(-1 / cells))
        row = {
            "keys": float(n_keys),
            "Bloom": (-math.expm1(HASHES * n_keys * math.log1p(-1 / SMALL_BITS))) ** HASHES,
            "before": before**HASHES,
            "after": (before - cleared) ** HASHES,
            "counting": half**HASHES,
        }
        if n_keys % 6 == 4 and n_keys > 4:
            row["before built"], row["after built"] = _rates_built(n_keys, ROUNDS)
        rows.append(row)
    series = (
        ("Bloom filter of all m bits", "Bloom"),
        ("DlBF, full", "before"),
        ("DlBF, half of the keys removed", "after"),
        ("if every bit could be cleared", "counting"),
    )
    panel = Panel(
        f"m = {SMALL_BITS}, k = {HASHES}, r = {SMALL_REGIONS}", "keys", "false-positive rate", series, tuple(rows),
        points=("", "before built", "after built", ""), marks=((SMALL_KEYS, f"n = {SMALL_KEYS}"),),
    )  # fmt: skip
    return Curves(
        "dlbf-figure-4-rates", "DlBF, Figure 4: false positives before and after deletions", (panel,),
        (_price_claim(),), tuple(rows), one_legend=True,
    )  # fmt: skip


# --- claims


def _small_claim() -> Claim:
    theory = dlbf_deletability(SMALL_KEYS, SMALL_BITS, HASHES, SMALL_REGIONS, as_published=True)
    ours = dlbf_deletability(SMALL_KEYS, SMALL_BITS, HASHES, SMALL_REGIONS)
    built = removable(SMALL_KEYS, SMALL_BITS, HASHES, SMALL_REGIONS, 4 * ROUNDS)
    return Claim(
        f"DlBF m {SMALL_BITS}, k {HASHES}, r {SMALL_REGIONS}, n {SMALL_KEYS}: share of deletable keys",
        "theory 90 %, simulation 80 %",
        f"Eq. 1 {theory:.2f} (as printed, without its leading '1 -': {1 - theory:.2f}); corrected for the key's own "
        f"bit {ours:.2f}; built {built:.2f}",
        agrees=False,
        command="dlbf plan --figures figures --only dlbf-figure-3",
    )


def _ratio_claim() -> Claim:
    n_bits = 16 * N_LARGE
    theory, ours = (
        dlbf_deletability(N_LARGE, n_bits, HASHES, n_bits // 20, as_published=published) for published in (True, False)
    )
    built = removable(N_LARGE, n_bits, HASHES, n_bits // 20, 1)
    return Claim(
        "DlBF m/r = 20, m/n = 16: share of deletable keys",
        "90 %",
        f"Eq. 1 {theory:.2f} at k = {HASHES}, corrected {ours:.2f}, built {built:.2f}",
        agrees=False,
        command="dlbf plan --figures figures --only dlbf-figure-2",
    )


def _price_claim() -> Claim:
    full, half = _rates_built(SMALL_KEYS, ROUNDS)
    cells = SMALL_BITS - SMALL_REGIONS
    bloom, dlbf = ((-math.expm1(-HASHES * SMALL_KEYS / m)) ** HASHES for m in (SMALL_BITS, cells))
    return Claim(
        f"DlBF m {SMALL_BITS}, r {SMALL_REGIONS}, n {SMALL_KEYS}: the price of a tenth of the bits for marks",
        "-",
        f"FPR {dlbf:.3f} instead of {bloom:.3f}; built {full:.3f}, and {half:.3f} once half of the keys are removed",
        agrees=True,
        command="dlbf plan --figures figures --only dlbf-figure-4",
    )


def claims() -> tuple[Claim, ...]:
    """What the paper says beside what we compute, without the curves."""
    return (_small_claim(), _ratio_claim(), _price_claim())
