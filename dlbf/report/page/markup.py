"""Puts figures into HTML: numbers that say where they come from, and tables.

Whatever comes from outside (keys, file names, error texts) passes through ``html.escape``.  Every number that the page
takes from the figures is a ``<data>`` element that says which, so that a test can compare all of them.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from dlbf.report.figures import Figures

__all__ = ["NO", "Format", "Page", "cell", "column_heads", "row_cells", "table"]

Format = Callable[[float], str]
# Where there is no figure.
NO = "–"


class Page:
    """Figures, and the way their numbers are put into text.

    Attributes
    ----------
    figures : Figures
        What the page says.
    data : dict
        The same as JSON, which the page carries and every number on it refers to.
    """

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        self.data: dict[str, Any] = json.loads(json.dumps(figures.to_dict(), allow_nan=False))

    def num(self, path: str, show: Format) -> str:
        """The number at a path of the JSON, such as ``designs.3.bytes``, in words that people read."""
        value: Any = self.data
        for step in path.split("."):
            if value is None:
                return NO
            value = value[int(step)] if isinstance(value, list) else value.get(step)
        if value is None:
            return NO
        return f'<data value="{value!r}" data-from="{path}">{escape(show(value))}</data>'


def cell(label: str, content: str, kind: str = "") -> str:
    """A cell that carries the name of its column, for narrow screens."""
    attribute = f' class="{kind}"' if kind else ""
    return f'<td data-label="{escape(label)}"{attribute}><span>{content}</span></td>'


def row_cells(labels: Sequence[str], contents: Sequence[str]) -> str:
    """One cell for each column."""
    return "".join(cell(label, content) for label, content in zip(labels, contents, strict=True))


def column_heads(names: Iterable[str]) -> str:
    """The cells of a table's head."""
    return "".join(f'<th scope="col">{name}</th>' for name in names)


def table(caption: str, head: str, rows: Iterable[str], wide: bool = True) -> str:
    """A table; a wide one becomes a list of cards on a narrow screen."""
    kind = ' class="wide"' if wide else ""
    return (
        f"<table{kind}><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
