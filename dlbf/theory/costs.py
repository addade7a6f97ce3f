"""What a base filter costs: bits per stored key as a function of its false-positive rate.

Every base filter here costs ``slope * ln(1/e) + fixed`` bits per key it stores at rate ``e``:

- cells of ``c`` bits (Bloom ``c = 1``, counting ``c = 2, 4, 8``, succinct counters ``c`` about 2.1): ``c / (ln 2)^2``
  per nat and nothing fixed, for any ``e`` up to 1;
- tables of fingerprints (cuckoo, d-left): ``1 / (load ln 2)`` per nat and a fixed price for the slots a lookup
  compares, for ``e`` up to some maximum;
- ``slope = 0``: one possible rate, ``max_fpr``, at one price.  ``ALL`` is that with rate 1 and price 0: no filter at
  all.

The optimiser in ``dlbf.theory.allocation`` knows only these three numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlbf.filters import kinds
from dlbf.geometry import LN2_SQUARED, cell_price, fingerprint_price

__all__ = [
    "ALL",
    "BASES",
    "COUNTER_WIDTHS",
    "EXACT_SET_BITS",
    "LN2_SQUARED",
    "Cost",
    "base_cost",
    "base_costs",
    "cell_cost",
    "fingerprint_cost",
]

# Bits per *deleted* key of an exact set: 1.5 slots of 64 bits, and 32 bytes for the key itself and its length.
EXACT_SET_BITS = 1.5 * 64 + 32 * 8

COUNTER_WIDTHS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Cost:
    """Bits per stored key: ``slope * ln(1/e) + fixed``, for ``0 < e <= max_fpr``.

    Parameters
    ----------
    base : str
        Name of the base filter this is the price of.
    slope : float
        Bits per key and nat of ``ln(1/e)``; 0 means that ``max_fpr`` is the only rate on offer.
    fixed : float
        Bits per key whatever the rate.
    max_fpr : float
        Largest rate the filter can be built for.

    Examples
    --------
    >>> round(Cost("bits", slope=1 / math.log(2) ** 2).bits(0.01), 2)
    9.59
    """

    base: str
    slope: float
    fixed: float = 0.0
    max_fpr: float = 1.0

    def __post_init__(self) -> None:
        for name in ("slope", "fixed"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} of {self.base!r}: expected a finite number >= 0, found {value!r}")
        if not 0 < self.max_fpr <= 1:
            raise ValueError(f"max_fpr of {self.base!r}: expected 0 < max_fpr <= 1, found {self.max_fpr!r}")

    def bits(self, fpr: float) -> float:
        """Bits per stored key at the rate ``fpr``."""
        if not 0 < fpr <= self.max_fpr * (1 + 1e-12):
            raise ValueError(f"rate of {self.base!r}: expected 0 < fpr <= {self.max_fpr}, found {fpr!r}")
        return self.slope * math.log(1 / min(fpr, 1.0)) + self.fixed


ALL = Cost("all", 0.0)


def cell_cost(cell_bits: float, base: str | None = None) -> Cost:
    """Cost of a Bloom-type filter with cells of ``cell_bits`` bits and the best (real) number of hashes.

    Examples
    --------
    >>> round(cell_cost(4).bits(0.01), 1)
    38.3
    """
    if not (math.isfinite(cell_bits) and cell_bits > 0):
        raise ValueError(f"cell_bits: expected a finite number > 0, found {cell_bits!r}")
    return Cost(base or ("bits" if cell_bits == 1 else "counters"), *cell_price(cell_bits))


def fingerprint_cost(base: str, load: float, extra_bits: float, max_fpr: float) -> Cost:
    """Cost of a table of fingerprints: ``(log2(1/e) + extra_bits) / load`` bits per key.

    ``extra_bits`` pays for the slots one lookup compares (``log2`` of their number) and for counters, if any.

    Examples
    --------
    >>> round(fingerprint_cost("cuckoo", load=0.95, extra_bits=3, max_fpr=0.5).bits(0.01), 1)
    10.2
    """
    if not 0 < load <= 1:
        raise ValueError(f"load: expected 0 < load <= 1, found {load!r}")
    return Cost(base, *fingerprint_price(load, extra_bits, max_fpr))


# What has a price; the numbers are in the rows of the table of base filters.
BASES = (*(row.name for row in kinds.BASES.values() if row.price is not None), "all")


def base_costs(base: str, counter_bits: int = 4) -> list[Cost]:
    """Price of the named base filter: the lower of one or more lines.

    Parameters
    ----------
    base : str
        One of ``BASES``.
    counter_bits : int
        Width of a counter, for ``"counters"``.

    Examples
    --------
    >>> [round(cost.bits(0.01), 1) for cost in base_costs("cuckoo")]
    [9.2, 9.3]
    """
    if base == "all":
        return [ALL]
    row = kinds.BASES.get(base)
    if row is not None and row.price is not None:
        return [Cost(base, *line) for line in row.price(counter_bits)]
    raise ValueError(f"base: expected one of {', '.join(BASES)}, found {base!r}")


def base_cost(base: str, counter_bits: int = 4) -> Cost:
    """The one line, or the first, of ``base_costs``: exact for cells, and for cuckoo below a rate of 2 %.

    Examples
    --------
    >>> round(base_cost("counters").bits(0.01), 1)
    38.3
    """
    return base_costs(base, counter_bits)[0]
