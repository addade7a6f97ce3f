"""The sections on what memory buys: fewer false alarms, more forgetting, more resistance to forged keys."""

import math
from collections.abc import Sequence
from html import escape

from dlbf.report.charts import Axis, Series, is_visible, line_chart, nice_ticks, swatch
from dlbf.report.figures import Curve, PeerRow
from dlbf.report.page.markup import NO, Page, cell, column_heads, table
from dlbf.report.wording import bits, design_title, percent
from dlbf.theory import DESIGNS

__all__ = ["curves", "trade_offs"]

# Ends the name of a curve.
LOSSY = ", can lose keys"
HEIGHT = 300


def curves(page: Page) -> str:
    """Two charts, of filters that can delete and of those that cannot, and the same as a table."""
    rates = sorted({rate for curve in page.figures.curves for rate, _ in curve.points})
    low, high = min(rates[0], 1e-4), max(rates[-1], 0.1)
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    y = Axis(
        low, high, "false alarms", [10.0**power for power in powers], _percent_tick, log=True,
        notes=[(page.figures.targets.fpr, "asked for")],
    )  # fmt: skip
    with_deletion, losing = _curve_chart(page, True, y)
    without_deletion, _ = _curve_chart(page, False, y)
    measured = any(row.bits_per_key is not None for row in page.figures.peers)
    dots = "Dots are filters of other libraries, built and measured here. " if measured else ""
    return (
        "<section><h2>How memory buys fewer false alarms</h2><p>Each line is one kind of filter. Find your target on "
        "the left axis and follow the dashed line to the right: what you cross first is smallest. "
        f"{_blue_line(losing)} Names joined by “=” share a line. {dots}The dotted grey line "
        "is the least that any filter without a model can have: what lies left of it is what learning buys.</p>"
        f'<div class="pair">{with_deletion}{without_deletion}</div>{_curve_table(page)}</section>'
    )


def _percent_tick(value: float) -> str:
    return f"{100 * value:g} %"


def _number_tick(value: float) -> str:
    return f"{value:g}"


def _curve_chart(page: Page, deletable: bool, y: Axis) -> tuple[str, list[str]]:
    """The chart, and the letters in it of filters that can lose keys."""
    drawn = [curve for curve in page.figures.curves if curve.deletable == deletable]
    series = _series(drawn, [row for row in page.figures.peers if row.deletable == deletable])
    # Counters are so dear that they would squeeze everything else: the frame ends before them.
    bound = next(curve for curve in drawn if curve.kind == "bound")
    right = math.ceil(1.9 * max(cost for _, cost in bound.points))
    x = Axis(0, right, "bits per key", nice_ticks(0, right, 6), _number_tick)
    title = "Filters that can delete" if deletable else "Filters that cannot delete"
    seen = [each for each in series if is_visible(each, x, y, HEIGHT)]
    description = f"False-alarm rate against bits per key for {len(seen)} filters; further left is smaller."
    cut = [each.name for each in series if each not in seen]
    beyond = f"<p class='small soft'>Outside the frame: {escape('; '.join(cut))}.</p>" if cut else ""
    chart = line_chart(title, description, seen, x, y, HEIGHT)
    losing = [each.mark for each in seen if each.name.endswith(LOSSY)]
    return f"<figure><h3>{title}</h3>{chart}{_legend(seen)}{beyond}</figure>", losing


def _legend(series: Sequence[Series]) -> str:
    return f'<ul class="legend">{"".join(f"<li>{swatch(each)}{escape(each.name)}</li>" for each in series)}</ul>'


def _blue_line(losing: Sequence[str]) -> str:
    """Which line is the recommended one, and why not those that can lose keys."""
    text = "Among the filters that can delete, the thick blue line is the recommended one."
    if not losing:
        return text
    letters = " and ".join((", ".join(losing[:-1]), losing[-1])) if len(losing) > 1 else losing[0]
    return f"{text} {letters} can be smaller in places, but can lose keys."


def _curve_names(curve: Curve) -> str:
    if curve.kind == "bound":
        return "least without a model"
    if curve.kind != "design":
        return " = ".join(curve.names)
    lossy = LOSSY if any(DESIGNS[name].false_negatives for name in curve.names) else ""
    return " = ".join(design_title(name) for name in curve.names) + lossy


def _series(drawn: Sequence[Curve], peers: Sequence[PeerRow]) -> list[Series]:
    series: list[Series] = []
    colour = 0
    for curve in drawn:
        points = [(cost, rate) for rate, cost in curve.points]
        if curve.kind == "bound":
            series.append(Series(_curve_names(curve), points, "bound", 2))
        elif "auto" in curve.names:
            series.append(Series(_curve_names(curve), points, "main"))
        else:
            dashed = 0 if curve.kind == "design" else 1
            mark = chr(ord("A") + colour)
            series.append(Series(_curve_names(curve), points, f"c{colour % 10}", dashed, mark=mark))
            colour += 1
    for row in peers:
        if row.missing is None and row.bits_per_key is not None and row.fpr_measured and row.fpr_measured.hits:
            at = [(row.bits_per_key, row.fpr_measured.value)]
            series.append(Series(row.name, at, f"c{colour % 10}", dots=True))
            colour += 1
    return series


def _curve_table(page: Page) -> str:
    drawn = page.figures.curves
    rates = sorted({rate for curve in drawn for rate, _ in curve.points if len(curve.points) > 3}, reverse=True)
    body = []
    for i, curve in enumerate(drawn):
        places = {rate: j for j, (rate, _) in enumerate(curve.points)}
        cells = [
            cell(percent(rate), page.num(f"curves.{i}.points.{places[rate]}.1", bits) if rate in places else NO)
            for rate in rates
        ]
        what = "can delete" if curve.deletable else "cannot delete"
        body.append(
            f'<tr><th scope="row">{escape(_curve_names(curve))}<span '
            f'class="sub">{what}</span></th>{"".join(cells)}</tr>'
        )
    heads = column_heads(("Filter", *map(percent, rates)))
    return (
        '<details class="numbers"><summary>The same as a table: bits per key at each rate</summary>'
        f"{table('Computed from the scores of your keys, model included.', heads, body)}</details>"
    )


def trade_offs(page: Page) -> str:
    """Two charts, of forgetting and of resisting forged keys, and the same as tables."""
    tradeoff = page.figures.tradeoff
    costs = [cost for curve in tradeoff.deletability for _, cost in curve.points] or [1.0]
    most = max(*costs, *(cost for _, cost in tradeoff.forged), 0.0) * 1.05
    y = Axis(0, most, "bits per key", nice_ticks(0, most), _number_tick)
    forget = page.num("targets.deletability", percent)
    return (
        '<section id="trade"><h2>What you can trade</h2>'
        "<p>A removed key still <em>looks</em> like a key, so the model cannot "
        "help to forget it, and it cannot help against somebody who makes up keys that look like yours. The "
        "more you ask for here, the less a model saves. If your keys are never removed, or a removed key may cause "
        f"a needless look each time it is asked for, ask for less than {forget} and save memory.</p>"
        f'<div class="pair">{_forgetting_chart(page, y)}{_forged_chart(page, y)}</div>'
        f"{_worst_case_table(page)}{_tradeoff_tables(page)}</section>"
    )


def _forgetting_chart(page: Page, y: Axis) -> str:
    series = []
    for number, curve in enumerate(page.figures.tradeoff.deletability):
        main = curve.fpr == page.figures.targets.fpr
        style, dashed = ("main", 0) if main else (f"c{number}", number + 1)
        series.append(Series(f"{percent(curve.fpr)} false alarms", curve.points, style, dashed))
    x = Axis(0, 1, "removed keys forgotten", (0, 0.25, 0.5, 0.75, 1), _percent_tick)
    series = [each for each in series if is_visible(each, x, y)]
    title = "The price of forgetting removed keys"
    chart = line_chart(title, "Bits per key against the share of removed keys that are forgotten.", series, x, y)
    return f"<figure><h3>{title}</h3>{chart}{_legend(series)}</figure>"


def _forged_chart(page: Page, y: Axis) -> str:
    forged = page.figures.tradeoff.forged
    low = min((rate for rate, _ in forged), default=0.01)
    ticks = [tick for tick in (0.001, 0.01, 0.1, 1.0) if low <= tick]
    x = Axis(low, 1.0, "forged keys allowed to pass", ticks, _percent_tick, log=True)
    title = "The price of resisting forged keys"
    chart = line_chart(
        title, "Bits per key against the share of forged keys that may pass; less is safer and dearer.",
        [Series("the same false alarms", forged, "main")], x, y,
    )  # fmt: skip
    return (
        f"<figure><h3>{title}</h3>{chart}<figcaption>At {page.num('targets.fpr', percent)} false alarms; at most as "
        "large a share of removed keys is remembered. To the left is safer.</figcaption></figure>"
    )


def _worst_case_table(page: Page) -> str:
    """The one trade that matters: ordinary rate, worst case, bits."""
    rows = page.figures.tradeoff.worst_case
    if len(rows) < 2:
        return ""
    body = [
        f'<tr><th scope="row">{page.num(f"tradeoff.worst_case.{i}.worst_case", percent)}'
        f"{' (recommended)' if row.chosen else ''}</th>"
        f"{cell('Traffic like yours', page.num(f'tradeoff.worst_case.{i}.fpr', percent))}"
        f"{cell('Bits per key', page.num(f'tradeoff.worst_case.{i}.bits_per_key', bits))}</tr>"
        for i, row in enumerate(rows)
    ]
    return table(
        "The worst case is the largest share let through of forged keys, removed keys and traffic unlike yours; ask "
        "for another with --adversarial-fpr.",
        column_heads(("Worst case", "Traffic like yours", "Bits per key")), body, wide=False,
    )  # fmt: skip


def _tradeoff_tables(page: Page) -> str:
    tradeoff = page.figures.tradeoff
    wanted = sorted({share for curve in tradeoff.deletability for share, _ in curve.points})
    labels = [f"{percent(share)} forgotten" for share in wanted]
    body = []
    for i, curve in enumerate(tradeoff.deletability):
        places = {share: j for j, (share, _) in enumerate(curve.points)}
        cells = "".join(
            cell(
                label,
                page.num(f"tradeoff.deletability.{i}.points.{places[share]}.1", bits) if share in places else NO,
            )
            for label, share in zip(labels, wanted, strict=True)
        )
        body.append(f'<tr><th scope="row">{page.num(f"tradeoff.deletability.{i}.fpr", percent)}</th>{cells}</tr>')
    forged = [
        f'<tr><th scope="row">{page.num(f"tradeoff.forged.{i}.0", percent)}</th>'
        f"{cell('Bits per key', page.num(f'tradeoff.forged.{i}.1', bits))}</tr>"
        for i in range(len(tradeoff.forged))
    ]
    first = table(
        "Bits per key, model included, computed from the scores of your keys.",
        column_heads(("False alarms", *labels)), body,
    )  # fmt: skip
    second = table(
        "Forged keys allowed to pass, and the bits per key it takes.",
        column_heads(("Forged keys that pass", "Bits per key")), forged, wide=False,
    )  # fmt: skip
    return f'<details class="numbers"><summary>The same as tables</summary>{first}{second}</details>'
