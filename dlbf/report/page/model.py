"""The section on what the model sees: its scores, and the regions they are cut into."""

from html import escape
from itertools import pairwise

from dlbf.report.charts import histogram_chart
from dlbf.report.figures import RegionFigures, Scores
from dlbf.report.page.markup import NO, Page, cell, column_heads, row_cells, table
from dlbf.report.wording import bits, percent, plain_words

__all__ = ["scores"]

REGION_COLUMNS = (
    "Your keys in it", "Absent requests in it", "Filter", "Bits per key", "Share of the memory",
    "False alarms, predicted", "False alarms, measured",
)  # fmt: skip


def scores(page: Page) -> str:
    """Histograms of the scores, the regions of the recommended filter; nothing where no model was trained."""
    seen = page.figures.scores
    if seen is None:
        return ""
    chart = histogram_chart(
        "What the model thinks of your keys and of absent ones",
        "Two histograms of model scores back to back: stored keys upwards, absent keys downwards. The less they "
        "overlap, the more a model saves.",
        seen.edges, seen.keys, seen.absent, seen.borders,
        ("stored keys", "absent keys", "score: to the right, looks more like a stored key"),
    )  # fmt: skip
    if seen.for_comparison_only:
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
    regions = "" if seen.for_comparison_only else _region_table(page)
    return (
        f'<section><h2>What the model sees</h2><div class="pair"><figure>{chart}<figcaption>The higher a bar, the '
        "more keys have that score (heights are square roots of the shares, so that small ones can be seen). Model: "
        f"{escape(seen.model)}.</figcaption></figure><div><p>The model gives every key a score, a whole number: "
        f"the higher, the more it looks like one of yours.</p><p>{told}</p><p>"
        f"{page.num('scores.overlap', percent)} of the two histograms overlap ({percent(0)}: told apart perfectly, "
        f"{percent(1)}: not at all).</p></div></div>{_score_table(page, seen)}{regions}</section>"
    )


def _score_table(page: Page, seen: Scores) -> str:
    columns = ("Stored keys", "Absent keys")
    body = []
    for i, (low, next_low) in enumerate(pairwise(seen.edges)):
        shares = (page.num(f"scores.keys.{i}", percent), page.num(f"scores.absent.{i}", percent))
        body.append(
            f'<tr><th scope="row">{_whole(low)} to {_whole(next_low - 1)}</th>{row_cells(columns, shares)}</tr>'
        )
    caption = "Share of keys with each score; the first and the last row include what lies beyond."
    return (
        '<details class="numbers"><summary>The same as a table</summary>'
        f"{table(caption, column_heads(('Score', *columns)), body, wide=False)}</details>"
    )


def _region_table(page: Page) -> str:
    regions = page.figures.regions
    shown = page.figures.examples_shown
    body = []
    for i, region in enumerate(regions):
        low = "lowest scores" if region.score_from is None else f"scores from {_whole(region.score_from)}"
        words = ""
        if i == 0:
            words = "looks least like your keys"
        elif i == len(regions) - 1:
            words = "looks most like your keys"
        at = f"regions.{i}"
        cells = row_cells(REGION_COLUMNS, [
            page.num(f"{at}.key_share", percent), page.num(f"{at}.query_share", percent),
            escape(plain_words(region.filter)), page.num(f"{at}.bits_per_key", bits),
            page.num(f"{at}.share_of_bytes", percent), page.num(f"{at}.fpr_predicted", percent),
            page.num(f"{at}.fpr_measured", percent),
        ])  # fmt: skip
        if shown:
            cells += cell("Examples", _examples(region), "text")
        body.append(f'<tr><th scope="row">{low}<span class="sub">{words}</span></th>{cells}</tr>')
    heads = column_heads(("Region", *REGION_COLUMNS)) + ('<th scope="col" class=text>Examples</th>' if shown else "")
    caption = (
        "Low scores first. Few keys and many absent requests: a strong filter for few. Many keys and few absent "
        "requests: a weak one is enough."
    )
    return f"<h3>The regions</h3>{table(caption, heads, body)}"


def _whole(value: int) -> str:
    """A whole number with a minus sign that is not taken for a hyphen."""
    return str(value).replace("-", "\N{MINUS SIGN}")


def _examples(region: RegionFigures) -> str:
    parts = [
        f'<span class="example"><span class="soft">{what}</span> <span class="key">{escape(examples[0])}</span></span>'
        for what, examples in (("stored", region.example_keys), ("absent", region.example_absent))
        if examples
    ]
    return "".join(parts) or NO
