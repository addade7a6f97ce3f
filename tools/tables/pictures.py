"""Pictures that are drawn from recorded figures, as SVG: bits per key beside the bounds."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tools.tables.records import ROOT, read_record

__all__ = ["PICTURES", "PICTURES_FOLDER", "redraw"]

PICTURES_FOLDER = "docs/img"
FPR = 0.01
# No filter without a model takes less: log2(1/e), and log2(e) = 1.44 more where it deletes in place.
LEAST = math.log2(1 / FPR)
LEAST_DELETING = LEAST + math.log2(math.e)

WIDTH, LEFT, STEP, TOP = 860, 226, 30, 60
SCALE = 56.0  # units for a bit
LONGEST = 10.2  # bits; longer bars are broken


@dataclass(frozen=True)
class Bar:
    """A filter: its name, its bits per key, whether it is ours and learns, and whether it deletes."""

    name: str
    bits: float
    style: str
    deletes: str


def _bars(root: Path) -> list[Bar]:
    filters = {row["name"]: row["bits_per_key"] for row in read_record("filters", root)["rows"]}
    layers = {row["name"]: row["bits_per_key"] for row in read_record("layers", root)["sizes"]}
    learned = read_record("learned", root)["sizes"][1]["bits_per_key"]
    return [
        Bar("counting Bloom filter", filters["CountingBloomFilter"], "other", "deletes"),
        Bar("Bloom filter", filters["rbloom"], "other", "cannot delete"),
        Bar("cuckoo filter (dlbf)", filters["CuckooFilter"], "plain", "deletes"),
        Bar("dlbf store, no model", layers["0.01, no model"], "plain", "deletes"),
        Bar("dlbf learned filter", learned, "ours", "deletes in place"),
        Bar("dlbf learned store, cap 10 %", layers["0.01, worst case 0.1"], "ours", "deletes"),
        Bar("dlbf learned store, cap 50 %", layers["0.01, worst case 0.5"], "ours", "deletes"),
        Bar("dlbf learned store, no cap", layers["0.01, no worst case"], "ours", "deletes"),
    ]


def _x(bits: float) -> float:
    return LEFT + SCALE * min(bits, LONGEST)


def _bar(number: int, bar: Bar) -> str:
    y = TOP + STEP * number
    end = _x(bar.bits)
    value = f"{bar.bits:.1f}, {bar.deletes}"
    broken = ""
    if bar.bits > LONGEST:
        broken = f'<path d="M{end - 26} {y + 22} l8 -22 m6 0 l-8 22" class="gap"/>'
    inside = bar.bits > 9
    place = (end - (34 if broken else 8), "end", "in") if inside else (end + 7, "start", "out")
    return (
        f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(bar.name)}</text>'
        f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="21" class="{bar.style}"/>{broken}'
        f'<text x="{place[0]:.1f}" y="{y + 15}" text-anchor="{place[1]}" class="{place[2]}">{escape(value)}</text>'
    )


def _bound(bits: float, words: str, anchor: str, bottom: float) -> str:
    x = _x(bits)
    beside = x + (6 if anchor == "start" else -6)
    return (
        f'<line x1="{x:.1f}" y1="36" x2="{x:.1f}" y2="{bottom}" class="bound"/>'
        f'<text x="{beside:.1f}" y="48" text-anchor="{anchor}" class="word">{escape(words)}</text>'
    )


def _bits_per_key(root: Path) -> str:
    bars = _bars(root)
    bottom = TOP + STEP * len(bars)
    keys = read_record("layers", root)["keys"]
    body = "".join(_bar(number, bar) for number, bar in enumerate(bars))
    title = f"Bits per key for {keys:,} malicious URLs at a false-positive rate of 1 %, model included"
    bounds = _bound(LEAST, f"{LEAST:.2f}: the least without a model", "end", bottom) + _bound(
        LEAST_DELETING, f"{LEAST_DELETING:.2f}: that deletes in place", "start", bottom
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 14}" role="img" aria-label="{title}">'
        "<style>text{font:14px system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif;fill:#1b2330}"
        "text.title{font-weight:650}text.word{font-size:12.5px;fill:#b3340b}text.in{fill:#fff}text.out{paint-order:stroke;stroke:#fff;stroke-width:5px}"
        ".other{fill:#8c97a8}.plain{fill:#4d78b8}.ours{fill:#0b62d6}"
        ".bound{stroke:#b3340b;stroke-dasharray:5 4}.gap{stroke:#fff;stroke-width:2;fill:none}</style>"
        f'<rect width="{WIDTH}" height="{bottom + 14}" rx="10" fill="#fff"/>'
        f'<text x="16" y="24" class="title">{escape(title)}</text>{bounds}{body}</svg>\n'
    )


PICTURES: dict[str, Callable[[Path], str]] = {"bits-per-key.svg": _bits_per_key}


def redraw(root: Path = ROOT) -> list[str]:
    """Draw every picture as the records give it; the names of those that have changed."""
    changed = []
    for name, draw in PICTURES.items():
        path = root / PICTURES_FOLDER / name
        drawn = draw(root)
        if not path.exists() or path.read_text() != drawn:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(drawn)
            changed.append(name)
    return changed
