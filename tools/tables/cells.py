"""The cells of tables: numbers, shares, ratios and rates as text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Grid", "Record", "Table", "bound", "measured", "met", "number", "percent", "ratio"]

# What was recorded of a section: JSON, of whatever shape the section has.
Record = Mapping[str, Any]
# Headings and rows.
Grid = tuple[Sequence[str], Sequence[Sequence[str]]]


@dataclass(frozen=True)
class Table:
    """A table of one section, or of none if it is computed."""

    section: str | None
    make: Callable[[Record], Grid]


def number(value: float | None, digits: int = 0) -> str:
    """A number for a cell."""
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 2) -> str:
    """A share for a cell."""
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def ratio(value: Sequence[float] | None) -> str:
    """A ratio with its quartiles."""
    return "-" if value is None else f"{value[0]:.2f} ({value[1]:.2f}-{value[2]:.2f})"


def met(row: Record) -> str:
    """Whether a bar is met."""
    return "met" if row["met"] else "**missed**"


def measured(rate: Record | None) -> str:
    """A rate with its 99 % interval."""
    if rate is None:
        return "-"
    low, high = rate["interval_99"]
    return f"{100 * rate['value']:.2f} % ({100 * low:.2f}-{100 * high:.2f})"


def bound(value: float) -> str:
    """A bound that is worth the name, in percent."""
    return "none" if value > 0.5 else f"{100 * value:.3g} %"
