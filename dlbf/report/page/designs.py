"""The section on what each design, and each peer, costs."""

from collections.abc import Sequence
from html import escape

from dlbf.report.charts import bar_chart
from dlbf.report.figures import Built, DesignRow
from dlbf.report.page.markup import Page, column_heads, row_cells, table
from dlbf.report.wording import SHORT_LIST, bits, count, design_title, file_size, percent

__all__ = ["designs"]

DESIGN_COLUMNS = (
    "Memory", "Bits per key", "False alarms, predicted", "False alarms, measured",
    "Removed keys forgotten, measured",
    "Forged keys that pass", "Can delete?", "Can lose keys?",
)  # fmt: skip
PEER_COLUMNS = ("Bits per key", "False alarms, measured", "Can delete?")


def designs(page: Page) -> str:
    """A chart of the short list, how to choose, and tables of all designs and peers."""
    rows = page.figures.designs
    places = {row.design: number for number, row in enumerate(rows)}
    short = [places[name] for name in SHORT_LIST if name in places]
    others = sorted(
        (i for i in range(len(rows)) if i not in short),
        key=lambda i: (not rows[i].feasible, built.bits_per_key if (built := rows[i].built) else 0.0),
    )
    target = page.num("targets.fpr", percent)
    forget = page.num("targets.deletability", percent)
    more = ""
    if others:
        more = (
            f"<details><summary>The other {len(others)} designs from the literature</summary>"
            f"{_design_table(page, others, 'Same targets, same model, same keys.')}</details>"
        )
    return (
        f"<section><h2>What each kind of filter would cost</h2><p>All were asked for the same: at most {target} false "
        f"alarms and, where keys can be removed at all, at least {forget} of the removed keys forgotten. Shorter bars "
        "are better.</p>"
        f'<div class="pair"><figure>{_chart(page)}</figure><div><h3>How to choose</h3>{_why_not_smaller(page)}'
        "<p><b>Can delete?</b> If keys ever leave your set, a filter that cannot delete must be rebuilt, or its "
        "false alarms grow. <b>Can lose keys?</b> A filter that can may deny a key that is stored; dlbf never "
        "recommends one.</p><p><b>Forged keys that pass</b> is the worst case: somebody who knows the model sends "
        "absent keys that look as much like yours as "
        f"possible.</p></div></div>{_design_table(page, short, _how_built(page))}{more}{_peers(page)}</section>"
    )


def _smallest_first(page: Page) -> list[tuple[DesignRow, Built]]:
    """The designs of the short list that can be built."""
    rows = {row.design: row for row in page.figures.designs}
    able = [
        (row, row.built) for name in SHORT_LIST if (row := rows.get(name)) is not None and row.feasible and row.built
    ]
    return sorted(able, key=lambda pair: pair[1].bytes)


def _chart(page: Page) -> str:
    bars = []
    for row, built in _smallest_first(page):
        what = "can delete" if row.deletable else "cannot delete"
        style = "main" if _is_chosen(page, row) else "plain"
        bars.append((f"{_row_title(row)}, {what}", built.bytes, file_size(built.bytes), style))
    return bar_chart(
        "Memory of each filter for your keys",
        "Bars, smallest first: " + "; ".join(f"{name}, {shown}" for name, _, shown, _ in bars) + ".",
        bars,
    )


def _how_built(page: Page) -> str:
    inputs = page.figures.inputs
    built = "Each was really built, with all your keys."
    if inputs.built_keys < inputs.keys.used:
        built = (
            "The recommended filter was built with all your keys, the others with "
            f"{page.num('inputs.built_keys', count)} of them and scaled up."
        )
    if inputs.keys.sampled:
        built = built.replace("all your keys", "the whole sample of your keys") + " Sizes are for all keys."
    return built


def _why_not_smaller(page: Page) -> str:
    """Why the recommendation is not the shortest bar, where it is not."""
    smaller = [
        design_title(row.design)
        for row, built in _smallest_first(page)
        if built.bytes < page.figures.recommendation.bytes and not row.deletable
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


def _is_chosen(page: Page, row: DesignRow) -> bool:
    return row.design == page.figures.recommendation.design


def _row_title(row: DesignRow) -> str:
    title = design_title(row.design)
    if row.design == "auto" and row.feasible and row.built:
        return f"{title} (learned)" if row.built.uses_model else f"{title} (no model)"
    return title


def _row_summary(row: DesignRow) -> str:
    if row.design != "auto":
        return row.summary
    if row.built and not row.built.uses_model:
        return "design “auto”: here it does without a model"
    return "design “auto”: for each range of scores, the smallest filter that can delete"


def _design_table(page: Page, numbers: Sequence[int], caption: str) -> str:
    body = []
    for i in numbers:
        row = page.figures.designs[i]
        chosen = _is_chosen(page, row)
        tag = '<span class="tag">recommended</span>' if chosen and row.design != "auto" else ""
        title, summary = _row_title(row), _row_summary(row)
        sub = f'<span class="sub">{escape(summary)}</span>' if summary.lower() not in title.lower() else ""
        name = f'<th scope="row">{escape(title)}{tag}{sub}</th>'
        if not row.feasible or row.built is None:
            reason = escape(row.reason or "")
            body.append(
                f'<tr>{name}<td class="text soft" colspan="{len(DESIGN_COLUMNS)}">Not possible: {reason}</td></tr>'
            )
            continue
        kind = ' class="chosen"' if chosen else ""
        cells = _design_cells(page, f"designs.{i}", row, row.built)
        body.append(f"<tr{kind}>{name}{row_cells(DESIGN_COLUMNS, cells)}</tr>")
    return table(caption, column_heads(("Filter", *DESIGN_COLUMNS)), body)


def _design_cells(page: Page, at: str, row: DesignRow, built: Built) -> list[str]:
    """Of the columns, in their order."""
    measured = page.num(f"{at}.fpr_measured.value", percent)
    if built.fpr_measured and not built.fpr_measured.hits:
        measured = f"below {page.num(f'{at}.fpr_measured.interval_99.1', percent)}"
    forgotten = page.num(f"{at}.deletability_measured.value", percent)
    if row.deletable and built.deletability_measured is None:
        forgotten = f"{page.num(f'{at}.deletability', percent)} predicted"
    lose = f"yes, {page.num(f'{at}.fnr_predicted', percent)}" if row.can_lose_keys else "no"
    return [
        page.num(f"{at}.bytes", file_size), page.num(f"{at}.bits_per_key", bits),
        page.num(f"{at}.fpr_predicted", percent), measured, forgotten, page.num(f"{at}.adversarial_fpr", percent),
        "yes" if row.deletable else "no", lose,
    ]  # fmt: skip


def _peers(page: Page) -> str:
    body, absent = [], []
    for i, row in enumerate(page.figures.peers):
        if row.missing == "not installed":
            absent.append(row.name)
            continue
        name = f'<th scope="row">{escape(row.name)} <span class="soft">{escape(row.version or "")}</span></th>'
        if row.missing is not None:
            body.append(f'<tr>{name}<td class="text soft" colspan="3">Did not run: {escape(row.missing)}</td></tr>')
            continue
        cells = (
            page.num(f"peers.{i}.bits_per_key", bits), page.num(f"peers.{i}.fpr_measured.value", percent),
            "yes" if row.deletable else "no",
        )  # fmt: skip
        body.append(f"<tr>{name}{row_cells(PEER_COLUMNS, cells)}</tr>")
    note = f"Not installed here: {escape(', '.join(absent))} (pip install 'dlbf[bench]')."
    if not body:
        return f'<p class="small soft">Other libraries were not compared. {note}</p>' if absent else ""
    below = f'<p class="small soft">{note}</p>' if absent else ""
    caption = "Filters without a model from other projects. Some have one rate each, whatever is asked for."
    return (
        "<details><summary>Other libraries on this machine, same keys</summary>"
        f"{table(caption, column_heads(('Library', *PEER_COLUMNS)), body)}{below}</details>"
    )
