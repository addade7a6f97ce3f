"""The page of a report: figures in, one self-contained HTML document out.

Whatever comes from outside (keys, file names, error texts) passes through ``html.escape``.  Every number that the page
takes from the figures is a ``<data>`` element that says which, so that a test can compare all of them.
"""

import json
import math
import re
import shlex
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dlbf.filters.kinds import BASES
from dlbf.filters.tables import CUCKOO
from dlbf.report import wording
from dlbf.report.charts import (
    Axis,
    Series,
    bar_chart,
    histogram_chart,
    is_visible,
    line_chart,
    nice_ticks,
    swatch,
    time_chart,
)
from dlbf.report.figures import SHORT_LIST
from dlbf.report.style import CSS
from dlbf.report.wording import bits, count, design_title, file_size, nanoseconds, percent, percent_closely, plain_words
from dlbf.theory import DESIGNS

__all__ = ["render"]

Format = Callable[[float], str]
# An option of the command line, with its number, in running text.
OPTION = re.compile(r"--[a-z-]+(?: [0-9.]*[0-9])?")
# Columns of a table: heading, and where to align it.
NO = "–"


class Page:
    """Figures, and the ways they are put into text."""

    def __init__(self, figures: dict[str, Any]) -> None:
        self.figures = figures

    def get(self, path: str) -> Any:
        """The figure at a path such as ``designs.3.bytes``; None where there is none."""
        value: Any = self.figures
        for step in path.split("."):
            if value is None:
                return None
            value = value[int(step)] if isinstance(value, list) else value.get(step)
        return value

    def num(self, path: str, show: Format) -> str:
        """A number of the figures in words that people read."""
        value = self.get(path)
        if value is None:
            return NO
        return f'<data value="{value!r}" data-from="{path}">{escape(show(value))}</data>'


def render(figures: dict[str, Any]) -> str:
    """The whole document.

    Parameters
    ----------
    figures : dict
        Of ``dlbf.report.figures.collect``, or the same read back from JSON.
    """
    page = Page(json.loads(json.dumps(figures, allow_nan=False)))
    body = [
        _head(page), "<main>", _key_figures(page), _about(page), _warnings(page), _how_to_use(page), _designs(page),
        _curves(page), _tradeoff(page), _scores(page), _read_path(page), _words(), _method(page), "</main>",
        _foot(page),
    ]  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
        'content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n<link rel="icon" '
        f'href="data:,">\n<title>{escape(_title(page))}</title>\n<style>{CSS}</style>\n</head>\n'
        f"<body>\n{''.join(part + chr(10) for part in body if part)}"
        # For machines: the same figures.  Nothing in a string may end the element.
        f'<script type="application/json" id="figures">{_safe_json(page.figures)}</script>\n</body>\n</html>\n'
    )


def _safe_json(figures: dict[str, Any]) -> str:
    text = json.dumps(figures, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _title(page: Page) -> str:
    return f"Which filter fits {Path(page.get('inputs.keys.name')).name}?"


def _head(page: Page) -> str:
    price = page.get("recommendation.price")
    below = f'<p class="price">{escape(price)}</p>' if price else ""
    return (
        f'<header class="top"><h1>{escape(_title(page))}</h1><p '
        f'class="answer">{escape(page.get("recommendation.sentence"))}</p>{below}</header>'
    )


def _key_figures(page: Page) -> str:
    learned = page.get("recommendation.learned")
    cards = []
    plain = ""
    if page.get("recommendation.plain_bytes") is not None and learned:
        plain = (
            f"instead of {page.num('recommendation.plain_bytes', file_size)}, the smallest without a model that can "
            "forget removed keys"
        )
    cards.append(("Memory", page.num("recommendation.bytes", file_size), plain))
    if learned and page.get("recommendation.saved_bytes") is not None:
        saved = f'<span class="good">{page.num("recommendation.saved_share", percent)}</span>'
        note = f"{page.num('recommendation.saved_bytes', file_size)} less, for {_forgetting(page)}"
        cards.append(("Memory saved", saved, note))
    else:
        note = f"for {_keys(page)} key{'' if page.get('recommendation.n_keys') == 1 else 's'}"
        cards.append(("Bits per key", page.num("recommendation.bits_per_key", bits), note))
    rate, where = _rate_path(page), "measured on a quarter of your absent keys, set aside; other traffic may differ"
    if page.get("recommendation.fpr_measured") is None:
        where = "predicted; there were no absent keys to measure it on"
    elif page.get("inputs.asked_made_up"):
        where = "measured on made-up keys"
    cards.append(("False alarms", page.num(rate, percent), f"of the requests for keys that are not there; {where}"))
    if page.get("recommendation.absent_ns") is not None:
        note = f"instead of {page.num('recommendation.without_filter_ns', nanoseconds)} without a filter"
        if learned:
            note += f"; {page.num('read_path.absent_plain_ns', nanoseconds)} without a model"
        note += "; all data in memory"
        cards.append(("Time to say “not there”", page.num("recommendation.absent_ns", nanoseconds), note))
    items = "".join(
        f'<li><span class="what">{what}</span><b>{value}</b><span class="note">{note}</span></li>'
        for what, value, note in cards
    )
    return f'<ul class="figures">{items}</ul>'


def _forgetting(page: Page) -> str:
    """What the smaller filter gives up of the larger one."""
    larger = page.num("recommendation.plain_forgotten", percent)
    if page.get("recommendation.forgotten") is None:
        return f"forgetting no removed keys instead of {larger}"
    mine = page.num("recommendation.forgotten", percent)
    if percent(page.get("recommendation.forgotten")) == percent(page.get("recommendation.plain_forgotten")):
        return f"the same {_keys(page)} keys"
    return f"forgetting {mine} instead of {larger} of removed keys"


def _rate_path(page: Page) -> str:
    """Where the false-alarm rate of the recommended filter is: measured if it could be."""
    measured = page.get("recommendation.fpr_measured") is not None
    return "recommendation.fpr_measured.value" if measured else "recommendation.fpr_predicted"


def _keys(page: Page) -> str:
    about = "about " if page.get("inputs.keys.sampled") else ""
    return about + page.num("recommendation.n_keys", count)


def _warnings(page: Page) -> str:
    found = page.get("warnings")
    if not found:
        return ""
    items = "".join(f"<li>{OPTION.sub(_code, escape(text))}</li>" for text in found)
    return f'<section class="warnings"><h2>Before you rely on this</h2><ul>{items}</ul></section>'


def _code(found: re.Match[str]) -> str:
    return f"<code>{found[0]}</code>"


def _about(page: Page) -> str:
    rate = page.num(_rate_path(page), percent)
    return (
        "<section><h2>What this is about</h2><p>Your <b>keys</b> are the names that things are stored under. A "
        "database is often asked for keys it does not have (<b>absent</b> ones), and must look before it can say so. "
        "A <b>filter</b> is a small summary of the keys, kept in memory, that is asked first. "
        "Its “no” is always right, so the database need not look. Its “maybe” is wrong for a few requests (here "
        f"{rate}): those are <b>false alarms</b>, and cost one needless look, nothing more. A stored key is never "
        "missed. The fewer false alarms you allow, the more memory a filter needs.</p><p>A <b>learned</b> filter "
        "carries a tiny <b>model</b> of what your keys look like, and spends its memory where the model is unsure. "
        "Where keys have a pattern that absent ones lack, that saves memory; where they are random, nothing "
        "does.</p></section>"
    )


def _how_to_use(page: Page) -> str:
    targets = page.get("targets")
    names = [_file_argument(page.get(f"inputs.{kind}.name")) for kind in ("keys", "negatives")]
    learned = page.get("recommendation.learned")
    asked = f"--fpr {targets['fpr']:g} --deletability {targets['deletability']:g}"
    if targets["adversarial_fpr"] < 1:
        asked += f" --adversarial-fpr {targets['adversarial_fpr']:g}"
    if page.get("inputs.keys.is_store"):
        given = "" if page.get("inputs.negatives.is_store") else f" --negatives {names[1]}"
        middle = (
            f"<pre>{escape(f'dlbf rebuild {names[0]}{given} {asked}')}</pre><p>gives the store such a filter while it "
            "serves; reads and writes go on. If the best filter has changed by then, it takes that one.</p>"
        )
    elif learned:
        command = f"dlbf fit {names[0]} {names[1]} {asked} -o keys.dlbf"
        code = 'with dlbf.open_filter("keys.dlbf") as f:\n    key in f      # False: certainly not there'
        middle = (
            f"<pre>{escape(command)}</pre><p>makes the filter; in Python it is then</p><pre>{escape(code)}</pre>"
            "<p>This filter has no planned room for more keys. To add half as many again, use "
            "<code>--headroom 1.5</code>.</p>"
        )
    else:
        kind = BASES.get(page.get("recommendation.filter"), CUCKOO).cls.__name__
        code = f"f = dlbf.{kind}({page.get('recommendation.n_keys')}, {targets['fpr']:g})\nf.update(keys)\nkey in f"
        middle = f"<pre>{escape(code)}</pre><p>The first number is how many keys there is room for.</p>"
    return f"<section><h2>Use it</h2><p>For whoever builds it in:</p>{middle}</section>"


def _file_argument(name: str) -> str:
    shown = name if name.isprintable() else wording.show_key(name.encode("utf-8", "surrogateescape"))
    return shlex.quote(shown)


# --- designs


def _designs(page: Page) -> str:
    rows = page.get("designs")
    order = {name: number for number, name in enumerate(SHORT_LIST)}
    short = sorted((i for i, row in enumerate(rows) if row["design"] in order), key=lambda i: order[rows[i]["design"]])
    able = sorted((i for i in short if rows[i]["feasible"]), key=lambda i: rows[i]["bytes"])
    bars = []
    for i in able:
        chosen = _is_chosen(page, rows[i])
        what = "can delete" if rows[i]["deletable"] else "cannot delete"
        style = "main" if chosen else "plain"
        bars.append((f"{_row_title(rows[i])}, {what}", rows[i]["bytes"], file_size(rows[i]["bytes"]), style))
    chart = bar_chart(
        "Memory of each filter for your keys",
        "Bars, smallest first: " + "; ".join(f"{name}, {shown}" for name, _, shown, _ in bars) + ".",
        bars,
    )
    others = sorted(
        (i for i in range(len(rows)) if i not in short),
        key=lambda i: (not rows[i]["feasible"], rows[i].get("bits_per_key", 0.0)),
    )
    target = page.num("targets.fpr", percent)
    forget = page.num("targets.deletability", percent)
    more = ""
    if others:
        more = (
            f"<details><summary>The other {len(others)} designs from the literature</summary>"
            f"{_design_table(page, others, 'Same targets, same model, same keys.')}</details>"
        )
    built = "Each was really built, with all your keys."
    if page.get("inputs.built_keys") < page.get("inputs.keys.used"):
        built = (
            "The recommended filter was built with all your keys, the others with "
            f"{page.num('inputs.built_keys', count)} of them and scaled up."
        )
    if page.get("inputs.keys.sampled"):
        built = built.replace("all your keys", "the whole sample of your keys") + " Sizes are for all keys."
    return (
        f"<section><h2>What each kind of filter would cost</h2><p>All were asked for the same: at most {target} false "
        f"alarms and, where keys can be removed at all, at least {forget} of the removed keys forgotten. Shorter bars "
        "are better.</p>"
        f'<div class="pair"><figure>{chart}</figure><div><h3>How to choose</h3>{_why_not_smaller(page, able)}'
        "<p><b>Can delete?</b> If keys ever leave your set, a filter that cannot delete must be rebuilt, or its "
        "false alarms grow. <b>Can lose keys?</b> A filter that can may deny a key that is stored; dlbf never "
        "recommends one.</p><p><b>Forged keys that pass</b> is the worst case: somebody who knows the model sends "
        "absent keys that look as much like yours as "
        f"possible.</p></div></div>{_design_table(page, short, built)}{more}{_peers(page)}</section>"
    )


def _why_not_smaller(page: Page, able: Sequence[int]) -> str:
    """Why the recommendation is not the shortest bar, where it is not."""
    rows = page.get("designs")
    smaller = [
        design_title(rows[i]["design"])
        for i in able
        if rows[i]["bytes"] < page.get("recommendation.bytes") and not rows[i]["deletable"]
    ]
    if not smaller:
        return ""
    one = len(smaller) == 1
    which = f"The {escape(smaller[0].lower())} is" if one else "The filters above the recommended one are"
    it = "it" if one else "they"
    return (
        f"<p><b>Why not the shortest bar?</b> {which} smaller because {it} cannot forget removed "
        "keys. If your keys never leave, make this report again with <code>--deletability 0</code>.</p>"
    )


def _is_chosen(page: Page, row: dict[str, Any]) -> bool:
    return bool(row["design"] == page.get("recommendation.design"))


def _row_title(row: dict[str, Any]) -> str:
    title = design_title(row["design"])
    if row["design"] == "auto" and row["feasible"]:
        return f"{title} (learned)" if row["uses_model"] else f"{title} (no model)"
    return title


def _cell(label: str, content: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<td data-label="{escape(label)}"{attribute}><span>{content}</span></td>'


DESIGN_COLUMNS = (
    "Memory", "Bits per key", "False alarms, predicted", "False alarms, measured",
    "Removed keys forgotten, measured",
    "Forged keys that pass", "Can delete?", "Can lose keys?",
)  # fmt: skip


def _design_table(page: Page, numbers: Sequence[int], caption: str) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Filter", *DESIGN_COLUMNS))
    body = []
    for i in numbers:
        row, at = page.get(f"designs.{i}"), f"designs.{i}"
        chosen = _is_chosen(page, row)
        tag = '<span class="tag">recommended</span>' if chosen and row["design"] != "auto" else ""
        title, summary = _row_title(row), row["summary"]
        if row["design"] == "auto":
            summary = "design “auto”: for each range of scores, the smallest filter that can delete"
            if not row.get("uses_model", True):
                summary = "design “auto”: here it does without a model"
        sub = f'<span class="sub">{escape(summary)}</span>' if summary.lower() not in title.lower() else ""
        name = f'<th scope="row">{escape(title)}{tag}{sub}</th>'
        if not row["feasible"]:
            reason = escape(row.get("reason", ""))
            body.append(
                f'<tr>{name}<td class="text soft" colspan="{len(DESIGN_COLUMNS)}">Not possible: {reason}</td></tr>'
            )
            continue
        measured = page.num(f"{at}.fpr_measured.value", percent)
        if row["fpr_measured"] and not row["fpr_measured"]["hits"]:
            measured = f"below {page.num(f'{at}.fpr_measured.interval_99.1', percent)}"
        forgotten = page.num(f"{at}.deletability_measured.value", percent)
        if row["deletable"] and row["deletability_measured"] is None:
            forgotten = f"{page.num(f'{at}.deletability', percent)} predicted"
        lose = f"yes, {page.num(f'{at}.fnr_predicted', percent)}" if row["can_lose_keys"] else "no"
        cells = [
            page.num(f"{at}.bytes", file_size), page.num(f"{at}.bits_per_key", bits),
            page.num(f"{at}.fpr_predicted", percent), measured, forgotten, page.num(f"{at}.adversarial_fpr", percent),
            "yes" if row["deletable"] else "no", lose,
        ]  # fmt: skip
        kind = ' class="chosen"' if chosen else ""
        body.append(
            f"<tr{kind}>{name}"
            + "".join(_cell(label, cell) for label, cell in zip(DESIGN_COLUMNS, cells, strict=True))
            + "</tr>"
        )
    return (
        f'<table class="wide"><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def _peers(page: Page) -> str:
    rows = page.get("peers")
    body = []
    absent = [row["name"] for row in rows if row.get("missing") == "not installed"]
    for i, row in enumerate(rows):
        if row["name"] in absent:
            continue
        name = f'<th scope="row">{escape(row["name"])} <span class="soft">{escape(row.get("version", ""))}</span></th>'
        if "missing" in row:
            body.append(f'<tr>{name}<td class="text soft" colspan="3">Did not run: {escape(row["missing"])}</td></tr>')
            continue
        body.append(
            f"<tr>{name}{_cell('Bits per key', page.num(f'peers.{i}.bits_per_key', bits))}"
            f"{_cell('False alarms, measured', page.num(f'peers.{i}.fpr_measured.value', percent))}"
            f"{_cell('Can delete?', 'yes' if row['deletable'] else 'no')}</tr>"
        )
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("Library", "Bits per key", "False alarms, measured", "Can delete?")
    )
    without = f"Not installed here: {escape(', '.join(absent))} (pip install 'dlbf[bench]')." if absent else ""
    if not body:
        return f'<p class="small soft">Other libraries were not compared. {without}</p>' if absent else ""
    without = f'<p class="small soft">{without}</p>' if absent else ""
    return (
        "<details><summary>Other libraries on this machine, same keys</summary>"
        '<table class="wide"><caption>Filters without a model from other projects. Some have one rate each, whatever '
        f"is asked for.</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        f"{without}</details>"
    )


# --- curves


def _curves(page: Page) -> str:
    drawn = page.get("curves")
    target = page.get("targets.fpr")
    rates = sorted({rate for curve in drawn for rate, _ in curve["points"]})
    low, high = min(rates[0], 1e-4), max(rates[-1], 0.1)
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    y = Axis(
        low, high, "false alarms", [10.0**power for power in powers], lambda value: f"{100 * value:g} %", log=True,
        notes=[(target, "asked for")],
    )  # fmt: skip
    charts, losing = [], []
    for deletable in (True, False):
        mine = [(i, curve) for i, curve in enumerate(drawn) if curve["deletable"] == deletable]
        series = _series(page, mine, deletable)
        # Counters are so dear that they would squeeze everything else: the frame ends before them.
        bound = next(curve for _, curve in mine if curve["kind"] == "bound")
        right = math.ceil(1.9 * max(b for _, b in bound["points"]))
        x = Axis(0, right, "bits per key", nice_ticks(0, right, 6), lambda value: f"{value:g}")
        title = "Filters that can delete" if deletable else "Filters that cannot delete"
        seen = [each for each in series if is_visible(each, x, y, 300)]
        words = f"False-alarm rate against bits per key for {len(seen)} filters; further left is smaller."
        cut = [each.name for each in series if each not in seen]
        beyond = f"<p class='small soft'>Outside the frame: {escape('; '.join(cut))}.</p>" if cut else ""
        losing += [each.mark for each in seen if deletable and each.name.endswith(LOSSY)]
        charts.append(
            f"<figure><h3>{title}</h3>{line_chart(title, words, seen, x, y, 300)}{_legend(seen)}{beyond}</figure>"
        )
    measured = any("bits_per_key" in row for row in page.get("peers"))
    dots = "Dots are filters of other libraries, built and measured here. " if measured else ""
    return (
        "<section><h2>How memory buys fewer false alarms</h2><p>Each line is one kind of filter. Find your target on "
        "the left axis and follow the dashed line to the right: what you cross first is smallest. "
        f"{_blue_line(losing)} Names joined by “=” share a line. {dots}The dotted grey line "
        "is the least that any filter without a model can have: what lies left of it is what learning buys.</p>"
        f'<div class="pair">{"".join(charts)}</div>{_curve_table(page)}</section>'
    )


def _legend(series: Sequence[Series]) -> str:
    return f'<ul class="legend">{"".join(f"<li>{swatch(each)}{escape(each.name)}</li>" for each in series)}</ul>'


def _blue_line(losing: Sequence[str]) -> str:
    """Which line is the recommended one, and why not those that can lose keys."""
    text = "Among the filters that can delete, the thick blue line is the recommended one."
    if not losing:
        return text
    letters = " and ".join((", ".join(losing[:-1]), losing[-1])) if len(losing) > 1 else losing[0]
    return f"{text} {letters} can be smaller in places, but can lose keys."


# Ends the name of a curve.
LOSSY = ", can lose keys"


def _curve_names(curve: dict[str, Any]) -> str:
    if curve["kind"] == "bound":
        return "least without a model"
    if curve["kind"] != "design":
        return " = ".join(curve["names"])
    lossy = LOSSY if any(DESIGNS[name].false_negatives for name in curve["names"]) else ""
    return " = ".join(design_title(name) for name in curve["names"]) + lossy


def _series(page: Page, mine: Sequence[tuple[int, dict[str, Any]]], deletable: bool) -> list[Series]:
    series: list[Series] = []
    colour = 0
    for _, curve in mine:
        mark = chr(ord("A") + colour)
        points = [(b, rate) for rate, b in curve["points"]]
        if curve["kind"] == "bound":
            series.append(Series(_curve_names(curve), points, "bound", 2))
        elif "auto" in curve["names"]:
            series.append(Series(_curve_names(curve), points, "main"))
        else:
            dashed = 0 if curve["kind"] == "design" else 1
            series.append(Series(_curve_names(curve), points, f"c{colour % 10}", dashed, mark=mark))
            colour += 1
    for row in page.get("peers"):
        if (
            "missing" not in row
            and row["deletable"] == deletable
            and row["fpr_measured"]
            and row["fpr_measured"]["hits"]
        ):
            at = [(row["bits_per_key"], row["fpr_measured"]["value"])]
            series.append(Series(row["name"], at, f"c{colour % 10}", dots=True))
            colour += 1
    return series


def _curve_table(page: Page) -> str:
    drawn = page.get("curves")
    rates = sorted({rate for curve in drawn for rate, _ in curve["points"] if len(curve["points"]) > 3}, reverse=True)
    head = '<th scope="col">Filter</th>' + "".join(f'<th scope="col">{percent(rate)}</th>' for rate in rates)
    body = []
    for i, curve in enumerate(drawn):
        at = {rate: j for j, (rate, _) in enumerate(curve["points"])}
        cells = [
            _cell(percent(rate), page.num(f"curves.{i}.points.{at[rate]}.1", bits) if rate in at else NO)
            for rate in rates
        ]
        what = "can delete" if curve["deletable"] else "cannot delete"
        body.append(
            f'<tr><th scope="row">{escape(_curve_names(curve))}<span '
            f'class="sub">{what}</span></th>{"".join(cells)}</tr>'
        )
    return (
        '<details class="numbers"><summary>The same as a table: bits per key at each rate</summary>'
        f'<table class="wide"><caption>Computed from the scores of your keys, model included.</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></details>"
    )


# --- trade-offs


def _tradeoff(page: Page) -> str:
    curves = page.get("tradeoff.deletability")
    target = page.get("targets.fpr")
    top = max((b for curve in curves for _, b in curve["points"]), default=1.0)
    forged = page.get("tradeoff.forged")
    top = max([top, *(b for _, b in forged)]) * 1.05
    y = Axis(0, top, "bits per key", nice_ticks(0, top), lambda value: f"{value:g}")
    series = []
    for number, curve in enumerate(curves):
        style = "main" if curve["fpr"] == target else f"c{number}"
        series.append(
            Series(
                f"{percent(curve['fpr'])} false alarms", curve["points"], style, 0 if style == "main" else number + 1
            )
        )
    x = Axis(0, 1, "removed keys forgotten", (0, 0.25, 0.5, 0.75, 1), lambda value: f"{100 * value:g} %")
    title = "The price of forgetting removed keys"
    series = [each for each in series if is_visible(each, x, y)]
    first = line_chart(title, "Bits per key against the share of removed keys that are forgotten.", series, x, y)
    title2 = "The price of resisting forged keys"
    low = min((rate for rate, _ in forged), default=0.01)
    x2 = Axis(
        low, 1.0, "forged keys allowed to pass", [tick for tick in (0.001, 0.01, 0.1, 1.0) if low <= tick],
        lambda value: f"{100 * value:g} %", log=True,
    )  # fmt: skip
    second = line_chart(
        title2, "Bits per key against the share of forged keys that may pass; less is safer and dearer.",
        [Series("your other targets kept", forged, "main")], x2, y,
    )  # fmt: skip
    forget = page.num("targets.deletability", percent)
    return (
        '<section id="trade"><h2>What you can trade</h2>'
        "<p>A removed key still <em>looks</em> like a key, so the model cannot "
        "help to forget it, and it cannot help against somebody who makes up keys that look like yours. The "
        "more you ask for here, the less a model saves. If your keys are never removed, or a removed key may cause "
        f"a needless look each time it is asked for, ask for less than {forget} and save memory.</p>"
        f'<div class="pair"><figure><h3>{title}</h3>{first}{_legend(series)}</figure>'
        f"<figure><h3>{title2}</h3>{second}<figcaption>At {page.num('targets.fpr', percent)} false alarms and "
        f"{forget} of removed keys forgotten. To the left is "
        f"safer.</figcaption></figure></div>{_tradeoff_tables(page)}</section>"
    )


def _tradeoff_tables(page: Page) -> str:
    curves = page.get("tradeoff.deletability")
    wanted = sorted({d for curve in curves for d, _ in curve["points"]})
    head = '<th scope="col">False alarms</th>' + "".join(f'<th scope="col">{percent(d)} forgotten</th>' for d in wanted)
    body = []
    for i, curve in enumerate(curves):
        at = {d: j for j, (d, _) in enumerate(curve["points"])}
        cells = "".join(
            _cell(
                f"{percent(d)} forgotten",
                page.num(f"tradeoff.deletability.{i}.points.{at[d]}.1", bits) if d in at else NO,
            )
            for d in wanted
        )
        body.append(f'<tr><th scope="row">{page.num(f"tradeoff.deletability.{i}.fpr", percent)}</th>{cells}</tr>')
    forged = "".join(
        f'<tr><th scope="row">{page.num(f"tradeoff.forged.{i}.0", percent)}</th>'
        f"{_cell('Bits per key', page.num(f'tradeoff.forged.{i}.1', bits))}</tr>"
        for i in range(len(page.get("tradeoff.forged")))
    )
    return (
        '<details class="numbers"><summary>The same as tables</summary><table class="wide"><caption>Bits per key, '
        "model included, computed from the scores of your keys.</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table><table><caption>Forged keys allowed to "
        "pass, and the bits per key it takes.</caption><thead><tr><th "
        'scope="col">Forged keys that pass</th><th scope="col">Bits per '
        f"key</th></tr></thead><tbody>{forged}</tbody></table></details>"
    )


# --- scores and regions


def _scores(page: Page) -> str:
    scores = page.get("scores")
    if scores is None:
        return ""
    alone = scores["for_comparison_only"]
    title = "What the model thinks of your keys and of absent ones"
    chart = histogram_chart(
        title,
        "Two histograms of model scores back to back: stored keys upwards, absent keys downwards. The less they "
        "overlap, the more a model saves.",
        scores["edges"], scores["keys"], scores["absent"], scores["borders"],
        ("stored keys", "absent keys", "score: to the right, looks more like a stored key"),
    )  # fmt: skip
    if alone:
        told = (
            "This model was trained only to show you this: it would not pay for itself, and the recommendation is to "
            "do without. The more the two sides overlap, the less a model can help; and for few keys even a good one "
            "costs more than it saves."
        )
    else:
        told = (
            "Where the lower bars are long and the upper ones short, a request is almost surely for an absent key, "
            "and a strong filter for the few keys there costs little. Dashed lines cut the scores into regions; each "
            "has a filter of its own strength."
        )
    table = "" if alone else _region_table(page)
    return (
        f'<section><h2>What the model sees</h2><div class="pair"><figure>{chart}<figcaption>The higher a bar, the '
        "more keys have that score (heights are square roots of the shares, so that small ones can be seen). Model: "
        f"{escape(scores['model'])}.</figcaption></figure><div><p>The model gives every key a score, a whole number: "
        f"the higher, the more it looks like one of yours.</p><p>{told}</p><p>"
        f"{page.num('scores.overlap', percent)} of the two histograms overlap ({percent(0)}: told apart perfectly, "
        f"{percent(1)}: not at all).</p></div></div>{_score_table(page)}{table}</section>"
    )


def _score_table(page: Page) -> str:
    edges = page.get("scores.edges")
    body = []
    for i in range(len(edges) - 1):
        cells = _cell("Stored keys", page.num(f"scores.keys.{i}", percent)) + _cell(
            "Absent keys", page.num(f"scores.absent.{i}", percent)
        )
        body.append(f'<tr><th scope="row">{_whole(edges[i])} to {_whole(edges[i + 1] - 1)}</th>{cells}</tr>')
    return (
        '<details class="numbers"><summary>The same as a table</summary>'
        "<table><caption>Share of keys with each score; the first and the last "
        'row include what lies beyond.</caption><thead><tr><th scope="col">Score</th><th scope="col">Stored keys</th>'
        f'<th scope="col">Absent keys</th></tr></thead><tbody>{"".join(body)}</tbody></table></details>'
    )


REGION_COLUMNS = (
    "Your keys in it", "Absent requests in it", "Filter", "Bits per key", "Share of the memory",
    "False alarms, predicted", "False alarms, measured",
)  # fmt: skip


def _region_table(page: Page) -> str:
    regions = page.get("regions")
    shown = page.get("examples_shown")
    names = ("Region", *REGION_COLUMNS, *(("Examples",) if shown else ()))
    head = "".join(f'<th scope="col"{" class=text" if name == "Examples" else ""}>{name}</th>' for name in names)
    body = []
    for i, region in enumerate(regions):
        low = "lowest scores" if region["score_from"] is None else f"scores from {_whole(region['score_from'])}"
        words = ""
        if i == 0:
            words = "looks least like your keys"
        elif i == len(regions) - 1:
            words = "looks most like your keys"
        name = f'<th scope="row">{low}<span class="sub">{words}</span></th>'
        at = f"regions.{i}"
        cells = [
            page.num(f"{at}.key_share", percent), page.num(f"{at}.query_share", percent),
            escape(plain_words(region["filter"])), page.num(f"{at}.bits_per_key", bits),
            page.num(f"{at}.share_of_bytes", percent), page.num(f"{at}.fpr_predicted", percent),
            page.num(f"{at}.fpr_measured", percent),
        ]  # fmt: skip
        row = "".join(_cell(label, cell) for label, cell in zip(REGION_COLUMNS, cells, strict=True))
        if shown:
            row += _cell("Examples", _examples(region), "text")
        body.append(f"<tr>{name}{row}</tr>")
    return (
        '<h3>The regions</h3><table class="wide"><caption>Low scores first. Few keys and many absent requests: a '
        "strong filter for few. Many keys and few absent requests: a weak one is "
        f"enough.</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def _whole(value: int) -> str:
    """A whole number with a minus sign that is not taken for a hyphen."""
    return str(value).replace("-", "\N{MINUS SIGN}")


def _examples(region: dict[str, Any]) -> str:
    parts = []
    for name, what in (("example_keys", "stored"), ("example_absent", "absent")):
        if region[name]:
            parts.append(
                f'<span class="example"><span class="soft">{what}</span> <span '
                f'class="key">{escape(region[name][0])}</span></span>'
            )
    return "".join(parts) or NO


# --- read path


# A step shorter than this is shown with the one before.
TOO_SHORT_NS = 1.0


def _read_path(page: Page) -> str:
    if page.get("read_path") is None:
        return ""
    path = page.get("read_path")
    learned = path["learned"]
    wasted = path["fpr"] * path["lmdb_miss_ns"]
    pieces = [
        ("read the key, call the filter", path["call_ns"], "call"), ("hash the key", path["hash_ns"], "hash"),
        ("ask the model", path["model_ns"], "model"), ("look into the filter", path["filter_ns"], "filter"),
        ("false alarms: needless LMDB reads", wasted, "lmdb"),
    ]  # fmt: skip
    steps = {
        "call_ns": "Read the key and call the filter from Python",
        "hash_ns": "Hash the key",
        "model_ns": "Ask the model for a score",
        "filter_ns": "Look into the filter",
        "learned_ns": "All of the filter",
        "learned_batch_ns": "The same, thousands of keys at a time, per key",
        "plain_ns": "Filter without a model",
        "lmdb_miss_ns": "LMDB read that finds nothing (data in memory)",
        "lmdb_hit_ns": "LMDB read that finds the key",
        "learned_hit_ns": "The filter before a read that finds the key",
    }
    if learned and path["filter_ns"] < TOO_SHORT_NS:
        # The filter is looked into while the model works: nothing is left that could be told apart.
        del steps["filter_ns"]
        steps["model_ns"] = "Ask the model and look into the filter"
        pieces[2:4] = [("ask the model and look into the filter", path["model_ns"] + path["filter_ns"], "model")]
    miss = path["lmdb_miss_ns"]
    rows: list[tuple[str, Sequence[tuple[str, float, str]], str]] = [
        ("No filter: read LMDB (the test database), find nothing", [("LMDB read", miss, "lmdb")], nanoseconds(miss))
    ]
    if learned:
        alone = [("filter", path["plain_ns"], "filter"), ("false alarms", path["plain_fpr"] * miss, "lmdb")]
        rows.append(("Filter without a model (cuckoo)", alone, nanoseconds(path["absent_plain_ns"])))
    name = "Recommended: learned filter" if learned else "Recommended: filter without a model"
    rows.append((name, pieces, nanoseconds(path["absent_ns"])))
    chart = time_chart(
        "Time to answer a request for an absent key",
        "; ".join(f"{name}: {shown}" for name, _, shown in rows) + ".",
        rows,
    )
    legend = "".join(
        f'<li><svg class="swatch" viewBox="0 0 28 12" aria-hidden="true"><rect x="4" y="1" width="20" height="10" '
        f'class="bar {style}"/></svg>{escape(word)}</li>'
        for word, value, style in pieces
        if value > 0
    )
    body = "".join(
        f'<tr><th scope="row">{what}</th>{_cell("Time", page.num(f"read_path.{name}", nanoseconds))}</tr>'
        for name, what in steps.items()
        if learned or name != "model_ns"
    )
    where = page.get("machine")
    here = f"{where['processor']}, {where['cores']} cores, {where['system']}, Python {where['python']}"

    def show(name: str, words: Format = nanoseconds) -> str:
        return page.num(f"read_path.{name}", words)

    return (
        "<section><h2>What happens when a key is not there</h2><p>Of 1,000 requests for absent keys, about "
        f"{show('passes_per_1000', _some)} get a “maybe” and go on to the database; all others are answered in "
        f"{show('learned_ns')} from memory.</p><ul><li><b>Data in memory</b>, as measured here: on average "
        f"{show('absent_ns')} instead of {show('lmdb_miss_ns')} without a filter.</li><li><b>Data on a disk</b> that "
        f"takes {show('disk_read_ns')} for a look (assumed, not measured): 1,000 such requests would take "
        f"{show('disk_with_ns')} instead of {show('disk_without_ns')}.</li><li><b>A key that is there</b> costs "
        f"{show('learned_hit_ns')} more than without a filter. {_when_it_pays(page)}</li></ul>"
        f'<div class="pair"><figure>{chart}<ul class="legend">{legend}</ul></figure>'
        '<table><caption>Time of each step, per key</caption><thead><tr><th scope="col">Step</th>'
        f'<th scope="col">Time</th></tr></thead><tbody>{body}</tbody></table></div>'
        f"<p class='small soft'>{show('asked_keys', count)} keys of {show('mean_key_bytes', _some)} bytes on average "
        f"were asked for, {show('stored_keys', count)} were in a temporary LMDB. All steps took turns; the best of "
        f"{show('rounds', count)} turns counts. {escape(here)}.</p></section>"
    )


def _when_it_pays(page: Page) -> str:
    disk = page.num("read_path.disk_pays_from", percent)
    if page.get("read_path.pays_from") is None:
        text = "With all data in memory this filter saves memory, not time"
    else:
        text = (
            f"In memory this filter pays when more than {page.num('read_path.pays_from', percent)} of requests are for "
            "absent keys"
        )
    return text + (f"; with such a disk, when more than {disk} are." if disk != NO else ".")


def _some(value: float) -> str:
    return f"{value:.1g}" if value < 1 else f"{value:.0f}"


# --- the end


WORDS = {
    "Bits per key": "Memory divided by the number of keys; 8 bits are one byte.",
    "kB, MB": "A thousand bytes, a million bytes.",
    "ns, µs, ms": "A billionth, a millionth, a thousandth of a second.",
    "False alarm (false positive)": (
        "An absent key that the filter lets through. It costs one needless look, never a wrong answer."
    ),
    "Removed keys forgotten (deletability)": (
        "Share of removed keys that the filter afterwards says “no” to. The others go on causing needless looks; they "
        "do no other harm."
    ),
    "Forged keys that pass (adversarial rate)": (
        "Largest share of absent keys that passes if somebody chooses them knowing the model, but not the filter’s "
        "secret."
    ),
    "Can lose keys (false negatives)": (
        "Whether a stored key could be answered “not there”. For everything that dlbf recommends the answer is no."
    ),
    "Model": "A table of small whole numbers that scores a key by its pieces of text. All sizes here include it.",
    "Ngram": "A kind of model: it scores a key by the short runs of characters (n-grams) in it.",
    "Keyed hashing": (
        "The filter mixes a secret into every key, so that nobody without it can work out which absent keys would pass."
    ),
    "Seed": "Where the random choices of training start: the same seed and the same files give the same filter.",
    "LMDB": "The embedded database that dlbf keeps its stores in; a read there stands for a look into your data.",
}


def _words() -> str:
    items = "".join(f"<dt>{word}</dt><dd>{text}</dd>" for word, text in WORDS.items())
    return f"<section><h2>Words used here</h2><dl>{items}</dl></section>"


def _method(page: Page) -> str:
    lines = []
    for kind, what in (("keys", "Keys"), ("negatives", "Absent keys")):
        at = f"inputs.{kind}"
        text = (
            f"<b>{what}</b>: {page.num(f'{at}.used', count)} used, of {page.num(f'{at}.lines', count)} in "
            f'<span class="key">{escape(page.get(f"{at}.name"))}</span>'
        )
        text += " (a random sample)" if page.get(f"{at}.sampled") else ""
        if kind == "keys":
            text += f"; {page.num(f'{at}.duplicates', count)} duplicates counted once"
        else:
            text += (
                f"; {page.num(f'{at}.overlapping', count)} that are stored keys dropped. "
                f"{page.num(f'{at}.learnt', count)} of them taught the model and set the sizes; "
                f"{page.num(f'{at}.unseen', count)} others were kept apart, and only what is called measured comes "
                "from those"
            )
        lines.append(text)
    rate = page.get("recommendation.fpr_measured")
    if rate is not None:
        at = "recommendation.fpr_measured"
        lines.append(
            f"<b>False alarms of the recommended filter</b>: {page.num(f'{at}.hits', count)} of "
            f"{page.num(f'{at}.trials', count)} absent keys; with 99 % confidence the true rate is between "
            f"{page.num(f'{at}.interval_99.0', percent_closely)} and "
            f"{page.num(f'{at}.interval_99.1', percent_closely)}{_beside_target(page)}. Predicted: "
            f"{page.num('recommendation.fpr_predicted', percent_closely)}"
        )
    if page.get("recommendation.deletability_measured") is not None:
        at = "recommendation.deletability_measured"
        lines.append(
            f"<b>Removed keys forgotten</b>: {page.num(f'{at}.trials', count)} keys were removed from a copy, and the "
            f"filter then said “no” to {page.num(f'{at}.hits', count)} of them, {page.num(f'{at}.value', percent)}; "
            f"with 99 % confidence the true share is between {page.num(f'{at}.interval_99.0', percent_closely)} and "
            f"{page.num(f'{at}.interval_99.1', percent_closely)}. Predicted: "
            f"{page.num('recommendation.deletability', percent_closely)}"
        )
    lines.append(
        f"<b>Lost keys</b>: all {page.num('inputs.keys.used', count)} keys were asked for after building; "
        f"{page.num('recommendation.lost_keys', count)} were missed"
    )
    forged = "no limit on forged keys"
    if page.get("targets.adversarial_fpr") < 1:
        forged = f"at most {page.num('targets.adversarial_fpr', percent)} of forged keys let through"
    lines.append(
        f"<b>Asked for</b>: at most {page.num('targets.fpr', percent)} false alarms, at least "
        f"{page.num('targets.deletability', percent)} of removed keys forgotten, {forged}; keyed hashing "
        f"{'on' if page.get('targets.keyed') else 'off'}; seed {page.num('targets.seed', count)}"
    )
    if page.get("quick"):
        lines.append("<b>A first look</b> (--quick): one kind of model, the short list of designs, short timing")
    items = "".join(f"<li>{line}.</li>" for line in lines)
    return (
        f"<section><h2>How this was measured</h2><ul class='small'>{items}</ul><p class='small soft'>“Measured” means "
        "built here and counted; “predicted” and the curves are computed from the scores of your keys. "
        f"{_built_and_computed(page)}Times depend on the machine and on what else it does.</p></section>"
    )


def _built_and_computed(page: Page) -> str:
    """How far the recommended filter is from its curve."""
    for i, curve in enumerate(page.get("curves")):
        for j, (rate, computed) in enumerate(curve["points"]):
            wanted = "auto" in curve["names"] and rate == page.get("targets.fpr")
            if wanted and page.get("recommendation.learned") and computed < page.get("recommendation.bits_per_key"):
                return (
                    "Built filters are a little larger than computed, the more so the fewer the keys: the recommended "
                    f"one has {page.num('recommendation.bits_per_key', bits)} bits per key, its curve "
                    f"{page.num(f'curves.{i}.points.{j}.1', bits)}. "
                )
    return ""


def _beside_target(page: Page) -> str:
    """What the interval of the measured rate says about the rate asked for, where it is not all below."""
    low, high = page.get("recommendation.fpr_measured.interval_99")
    asked = page.get("targets.fpr")
    if high <= asked:
        return ""
    target = page.num("targets.fpr", percent)
    if low > asked:
        return f", so it is above your {target}"
    return f", so a true rate {'slightly ' if high < 1.2 * asked else ''}above your {target} is not ruled out"


def _foot(page: Page) -> str:
    return (
        f"<footer><p>dlbf {escape(page.get('dlbf'))}, {escape(page.get('made'))}. This page stands alone: it loads "
        "nothing and runs no script. The figures are in it as JSON.</p></footer>"
    )
