"""What a figure is made of: claims, and panels of curves."""

from dataclasses import dataclass

__all__ = ["Claim", "Curves", "Panel"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A published statement and what we compute for it."""

    statement: str
    published: str
    computed: str
    agrees: bool
    command: str = ""  # what a reader types to see it


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes: columns of the table against `x`."""

    title: str
    x: str
    y: str
    series: tuple[tuple[str, str], ...]  # (label, column)
    rows: tuple[dict[str, float], ...]
    log_y: bool = True
    marks: tuple[tuple[float, str], ...] = ()  # vertical lines
    points: tuple[str, ...] = ()  # columns drawn as dots in the colour of the series at the same place; "" for none


@dataclass(frozen=True, slots=True)
class Curves:
    """Everything behind one figure."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    claims: tuple[Claim, ...] = ()
    rows: tuple[dict[str, float], ...] = ()
    one_legend: bool = False  # all panels have the same curves: one legend, beside them
