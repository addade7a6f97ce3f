"""Puts the sections of the page together."""

import json
from html import escape

from dlbf.report.figures import Figures
from dlbf.report.page.answer import about, how_to_use, key_figures, page_title, top, warnings
from dlbf.report.page.curves import curves, trade_offs
from dlbf.report.page.designs import designs
from dlbf.report.page.markup import Page
from dlbf.report.page.method import foot, method, words
from dlbf.report.page.model import scores
from dlbf.report.page.places import places
from dlbf.report.page.times import read_path
from dlbf.report.style import CSS

__all__ = ["render"]


def render(figures: Figures) -> str:
    """The whole document.

    Parameters
    ----------
    figures : Figures
        Of ``dlbf.report.collect``, or the same read back from JSON with ``Figures.from_dict``.
    """
    page = Page(figures)
    body = [
        top(page), "<main>", key_figures(page), about(page), warnings(page), how_to_use(page), designs(page),
        curves(page), trade_offs(page), places(page), scores(page), read_path(page), words(), method(page),
        "</main>", foot(page),
    ]  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
        'content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n<link rel="icon" '
        f'href="data:,">\n<title>{escape(page_title(page))}</title>\n<style>{CSS}</style>\n</head>\n'
        f"<body>\n{''.join(part + chr(10) for part in body if part)}"
        # For machines: the same figures.  Nothing in a string may end the element.
        f'<script type="application/json" id="figures">{_safe_json(page.data)}</script>\n</body>\n</html>\n'
    )


def _safe_json(data: dict[str, object]) -> str:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
