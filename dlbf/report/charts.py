"""Charts as inline SVG, drawn here: no library, no script, colours from the page's style sheet.

Every chart is 400 units wide, so that its text can be read on a phone; it scales with its column.  Each has a title and
a description for those who listen to it, and the page has its numbers as a table.
"""

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Series", "bar_chart", "histogram_chart", "is_visible", "line_chart", "nice_ticks", "swatch", "time_chart"]

WIDTH = 400


@dataclass(frozen=True)
class Series:
    """One line, or a set of points, of a line chart.

    Attributes
    ----------
    name : str
        For the legend and the tooltip.
    points : sequence of (float, float)
        x and y.
    style : str
        CSS class: ``c0`` .. ``c9`` for the colours, ``main`` for the one that matters, ``bound`` for limits.
    dashed : int
        0 is solid; others differ, so that nothing hangs on the colour alone.
    dots : bool
        Points instead of a line.
    mark : str
        A letter beside the line, so that it can be told from the others without colours.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: str
    dashed: int = 0
    dots: bool = False
    mark: str = ""


DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2")


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover a range.

    Examples
    --------
    >>> nice_ticks(0, 23)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    span = max(high - low, 1e-12)
    power = 10 ** math.floor(math.log10(span / about))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= about)
    first = math.ceil(low / step - 1e-9)
    return [round(float(i * step), 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _id(title: str) -> str:
    """For ids in the page: titles differ."""
    return f"{zlib.crc32(title.encode()):08x}"


def _frame(title: str, description: str, height: float, body: Sequence[str]) -> str:
    number = _id(title)
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {height:g}" aria-labelledby="t{number} d{number}">'
        f'<title id="t{number}">{escape(title)}</title><desc id="d{number}">{escape(description)}</desc>'
        + "".join(body)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _rect(x: float, y: float, width: float, height: float, style: str, tip: str = "") -> str:
    inner = f"<title>{escape(tip)}</title>" if tip else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{max(height, 0):.1f}" class="{style}">'
        f"{inner}</rect>"
    )


def swatch(series: Series) -> str:
    """The sign of a series for a legend."""
    if series.dots:
        mark = f'<circle cx="14" cy="6" r="4" class="dot {series.style}"/>'
    else:
        mark = f'<line x1="1" y1="6" x2="27" y2="6" class="line {series.style}"{_dash(series)}/>'
    if series.mark:
        mark += f'<circle cx="14" cy="6" r="6" class="mark {series.style}"/>'
        mark += _text(14, 9.7, series.mark, style="letter")
    return f'<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true">{mark}</svg>'


def _dash(series: Series) -> str:
    dash = DASHES[series.dashed % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


@dataclass(frozen=True)
class Axis:
    """One axis: its range, ticks and words."""

    low: float
    high: float
    label: str
    ticks: Sequence[float]
    show: Callable[[float], str]
    log: bool = False
    notes: Sequence[tuple[float, str]] = field(default=())  # values to mark, with a word

    def at(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        here = math.log(max(value, 1e-300)) if self.log else value
        return (here - low) / ((high - low) or 1.0)


@dataclass(frozen=True)
class Plot:
    """Where a line chart draws: the axes' frame, in the chart's units."""

    x: Axis
    y: Axis
    height: float
    left: float = 68.0
    top: float = 12.0

    @property
    def right(self) -> float:
        """Of the frame, as are left, top and bottom."""
        return WIDTH - 24.0

    @property
    def bottom(self) -> float:
        """Below it are the horizontal axis's words."""
        return self.height - 44.0

    def px(self, value: float) -> float:
        """Across, of a value on the horizontal axis."""
        return self.left + (self.right - self.left) * self.x.at(value)

    def py(self, value: float) -> float:
        """Down, of a value on the vertical axis."""
        return self.top + (self.bottom - self.top) * (1 - self.y.at(value))

    def shown(self, series: Series) -> list[tuple[float, float]]:
        """Places of a series inside the frame, with room for its letter if it has one; the last first."""
        points = [(self.px(at), self.py(value)) for at, value in series.points]
        margin = 8 if series.mark and len(points) > 1 else 0
        left, top, right, bottom = self.left + margin, self.top + margin, self.right - margin, self.bottom - margin
        spots = points[::-1]
        if not series.dots:
            for (x1, y1), (x2, y2) in reversed(list(itertools.pairwise(points))):
                # Only the part inside: of a line that leaves the frame at once a few even steps would all lie outside.
                part = _clip(x1, y1, x2, y2, left, top, right, bottom)
                if part is not None:
                    a, b = part
                    spots += [(x1 + (x2 - x1) * t, y1 + (y2 - y1) * t) for t in _steps(b, a, 12)]
        near = 1e-6
        return [(x, y) for x, y in spots if left - near <= x <= right + near and top - near <= y <= bottom + near]


def _steps(first: float, last: float, n: int) -> list[float]:
    return [first + (last - first) * i / n for i in range(n + 1)]


def _clip(
    x1: float, y1: float, x2: float, y2: float, left: float, top: float, right: float, bottom: float
) -> tuple[float, float] | None:
    """The part of a line inside a rectangle, as shares of its length; None: nothing of it (Liang and Barsky)."""
    first, last = 0.0, 1.0
    for move, room in ((x1 - x2, x1 - left), (x2 - x1, right - x1), (y1 - y2, y1 - top), (y2 - y1, bottom - y1)):
        if move == 0:
            if room < 0:
                return None
        elif move < 0:
            first = max(first, room / move)
        else:
            last = min(last, room / move)
    return (first, last) if first <= last else None


def is_visible(series: Series, x: Axis, y: Axis, height: float = 280) -> bool:
    """Whether ``line_chart`` shows anything of a series: what it does not show has no place in a legend."""
    return bool(Plot(x, y, height).shown(series))


def line_chart(title: str, description: str, series: Sequence[Series], x: Axis, y: Axis, height: float = 280) -> str:
    """Lines and points over two axes; what lies outside is cut off at the frame."""
    plot = Plot(x, y, height)
    left, top, px, py = plot.left, plot.top, plot.px, plot.py
    width, tall = plot.right - left, plot.bottom - top
    body = []
    for tick in y.ticks:
        body.append(_line(left, py(tick), left + width, py(tick), "grid"))
        body.append(_text(left - 5, py(tick) + 4, y.show(tick), "end"))
    for tick in x.ticks:
        body.append(_line(px(tick), top, px(tick), top + tall, "grid"))
        body.append(_text(px(tick), top + tall + 15, x.show(tick)))
    for value, word in y.notes:
        body.append(_line(left, py(value), left + width, py(value), "note"))
        body.append(_text(left + width - 3, py(value) - 4, word, "end", "noted"))
    for value, word in x.notes:
        body.append(_line(px(value), top, px(value), top + tall, "note"))
        body.append(_text(px(value) - 4, top + 11, word, "end", "noted"))
    clip = f"c{_id(title)}"
    body.append(
        f'<clipPath id="{clip}"><rect x="{left}" y="{top - 4}" width="{width + 5}" height="{tall + 8}"/></clipPath>'
        f'<g clip-path="url(#{clip})">'
    )
    # What matters is drawn last, on top.
    for each in sorted(series, key=lambda one: (one.dots, one.style == "main")):
        tip = f"<title>{escape(each.name)}</title>"
        if each.dots or len(each.points) == 1:
            for at, value in each.points:
                body.append(
                    f'<circle cx="{px(at):.1f}" cy="{py(value):.1f}" r="4" class="dot {each.style}">{tip}</circle>'
                )
            continue
        path = " ".join(f"{px(at):.1f},{py(value):.1f}" for at, value in each.points)
        body.append(f'<polyline points="{path}" class="line {each.style}"{_dash(each)}>{tip}</polyline>')
        if each.style == "main":
            body += [
                f'<circle cx="{px(a):.1f}" cy="{py(v):.1f}" r="3" class="dot main">{tip}</circle>'
                for a, v in each.points
            ]
    body.append("</g>")
    body += _marks(series, plot)
    body.append(_line(left, top + tall, left + width, top + tall, "axis"))
    body.append(_line(left, top, left, top + tall, "axis"))
    body.append(_text(left + width / 2, height - 10, x.label, style="label"))
    middle = top + tall / 2
    body.append(
        f'<text x="11" y="{middle:.1f}" text-anchor="middle" class="label" transform="rotate(-90 11 {middle:.1f})">'
        f"{escape(y.label)}</text>"
    )
    return _frame(title, description, height, body)


def _marks(series: Sequence[Series], plot: Plot) -> list[str]:
    """The letters, each on its line at the first place from the end where no other is."""
    taken: list[tuple[float, float]] = []
    body = []
    for each in series:
        inside = plot.shown(each) if each.mark else []
        free = (spot for spot in inside if all(math.dist(spot, other) >= 15 for other in taken))
        spot = next(free, inside[0] if inside else None)
        if spot is None:
            continue
        taken.append(spot)
        x, y = spot
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" class="mark {each.style}"/>')
        body.append(_text(x, y + 3.5, each.mark, style="letter"))
    return body


def bar_chart(title: str, description: str, rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Horizontal bars: name, value, its text, CSS class."""
    step, top = 40.0, 4.0
    largest = max((value for _, value, _, _ in rows), default=1.0) or 1.0
    body = []
    room = WIDTH - 90.0
    for number, (name, value, shown, style) in enumerate(rows):
        y = top + number * step
        body.append(_text(0, y + 12, name, "start", "name" if style == "main" else ""))
        body.append(_rect(0, y + 17, room * value / largest, 15, f"bar {style}", f"{name}: {shown}"))
        body.append(_text(max(room * value / largest, 0.5) + 6, y + 29, shown, "start", "value"))
    return _frame(title, description, top + step * len(rows), body)


def time_chart(title: str, description: str, rows: Sequence[tuple[str, Sequence[tuple[str, float, str]], str]]) -> str:
    """Stacked horizontal bars: name, pieces (name, value, CSS class), text of the whole."""
    step, top = 44.0, 4.0
    largest = max((sum(value for _, value, _ in pieces) for _, pieces, _ in rows), default=1.0) or 1.0
    body = []
    room = WIDTH - 76.0
    for number, (name, pieces, shown) in enumerate(rows):
        y = top + number * step
        body.append(_text(0, y + 12, name, "start"))
        at = 0.0
        for word, value, style in pieces:
            if value > 0:
                body.append(_rect(at, y + 17, room * value / largest, 18, f"bar {style}", word))
                at += room * value / largest
        body.append(_text(at + 6, y + 31, shown, "start", "value"))
    return _frame(title, description, top + step * len(rows), body)


def histogram_chart(
    title: str,
    description: str,
    edges: Sequence[float],
    above: Sequence[float],
    below: Sequence[float],
    borders: Sequence[float],
    words: tuple[str, str, str],
) -> str:
    """Two histograms back to back: keys upwards, absent keys downwards, with dashed borders between regions.

    ``words`` are those of the upper, the lower and the horizontal axis.
    """
    height, left, right, top, bottom = 300.0, 10.0, 10.0, 8.0, 40.0
    width, tall = WIDTH - left - right, (height - top - bottom) / 2
    middle = top + tall
    largest = max(*above, *below, 1e-9)
    low, high = edges[0], edges[-1]

    def px(value: float) -> float:
        return left + width * (value - low) / ((high - low) or 1.0)

    body = []
    for number, (up, down) in enumerate(zip(above, below, strict=True)):
        x, next_x = px(edges[number]), px(edges[number + 1])
        wide = max(0.6, next_x - x - 0.8)
        # Square roots: a thin tail is what decides, and must be seen.
        for share, style, word in ((up, "keys", words[0]), (down, "absent", words[1])):
            if share <= 0:
                continue
            size = (tall - 4) * math.sqrt(share / largest)
            start = middle - size if style == "keys" else middle
            tip = f"score {edges[number]:g} to {edges[number + 1]:g}: {share:.2%} of {word}"
            body.append(_rect(x, start, wide, size, f"bar {style}", tip))
    for border in borders:
        body.append(_line(px(border), top, px(border), height - bottom, "border"))
    body.append(_line(left, middle, left + width, middle, "axis"))
    body.append(_text(left + 4, top + 12, f"▲ {words[0]}", "start", "name"))
    body.append(_text(left + width - 4, height - bottom - 6, f"▼ {words[1]}", "end", "name"))
    for tick in nice_ticks(low, high, 6):
        body.append(_text(px(tick), height - bottom + 14, f"{tick:g}"))
    body.append(_text(left + width / 2, height - 8, words[2], style="label"))
    return _frame(title, description, height, body)
