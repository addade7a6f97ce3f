"""The section on time: what happens when a key is not there."""

from collections.abc import Sequence
from html import escape

from dlbf.report.charts import time_chart
from dlbf.report.figures import ReadPath
from dlbf.report.page.markup import NO, Format, Page, cell, column_heads, table
from dlbf.report.wording import count, nanoseconds, percent

__all__ = ["read_path"]

# A step shorter than this is shown with the one before.
TOO_SHORT_NS = 1.0
# A piece of a bar: its name, its time and its style.
Piece = tuple[str, float, str]


def read_path(page: Page) -> str:
    """Where the time goes, and what the filter saves; nothing where nothing could be timed."""
    path = page.figures.read_path
    if path is None:
        return ""
    pieces = _pieces(path)
    legend = "".join(
        f'<li><svg class="swatch" viewBox="0 0 28 12" aria-hidden="true"><rect x="4" y="1" width="20" height="10" '
        f'class="bar {style}"/></svg>{escape(word)}</li>'
        for word, value, style in pieces
        if value > 0
    )
    where = page.figures.machine
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
        f"{show('learned_hit_ns')} more than without a filter. {_when_it_pays(page, path)}</li></ul>"
        f'<div class="pair"><figure>{_chart(path, pieces)}<ul class="legend">{legend}</ul></figure>'
        f"{_step_table(page, path)}</div>"
        f"<p class='small soft'>{show('asked_keys', count)} keys of {show('mean_key_bytes', _some)} bytes on average "
        f"were asked for, {show('stored_keys', count)} were in a temporary LMDB. All steps took turns; the best of "
        f"{show('rounds', count)} turns counts. {escape(here)}.</p></section>"
    )


def _joined(path: ReadPath) -> bool:
    """The filter is looked into while the model works: nothing is left that could be told apart."""
    return path.learned and path.steps.filter_ns < TOO_SHORT_NS


def _pieces(path: ReadPath) -> list[Piece]:
    """What the time of the recommended filter is made of."""
    if _joined(path):
        inner = [("ask the model and look into the filter", path.steps.model_ns + path.steps.filter_ns, "model")]
    else:
        inner = [
            ("ask the model", path.steps.model_ns, "model"),
            ("look into the filter", path.steps.filter_ns, "filter"),
        ]
    return [
        ("read the key, call the filter", path.steps.call_ns, "call"),
        ("hash the key", path.steps.hash_ns, "hash"),
        *inner,
        ("false alarms: needless LMDB reads", path.fpr * path.steps.lmdb_miss_ns, "lmdb"),
    ]


def _chart(path: ReadPath, pieces: Sequence[Piece]) -> str:
    miss = path.steps.lmdb_miss_ns
    rows: list[tuple[str, Sequence[Piece], str]] = [
        ("No filter: read LMDB (the test database), find nothing", [("LMDB read", miss, "lmdb")], nanoseconds(miss))
    ]
    if path.learned:
        plain = [("filter", path.steps.plain_ns, "filter"), ("false alarms", path.plain_fpr * miss, "lmdb")]
        rows.append(("Filter without a model (cuckoo)", plain, nanoseconds(path.absent_plain_ns)))
    name = "Recommended: learned filter" if path.learned else "Recommended: filter without a model"
    rows.append((name, pieces, nanoseconds(path.absent_ns)))
    return time_chart(
        "Time to answer a request for an absent key",
        "; ".join(f"{name}: {shown}" for name, _, shown in rows) + ".",
        rows,
    )


def _step_table(page: Page, path: ReadPath) -> str:
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
    if not path.learned:
        del steps["model_ns"]
    elif _joined(path):
        del steps["filter_ns"]
        steps["model_ns"] = "Ask the model and look into the filter"
    body = [
        f'<tr><th scope="row">{what}</th>{cell("Time", page.num(f"read_path.{name}", nanoseconds))}</tr>'
        for name, what in steps.items()
    ]
    return table("Time of each step, per key", column_heads(("Step", "Time")), body, wide=False)


def _when_it_pays(page: Page, path: ReadPath) -> str:
    disk = page.num("read_path.disk_pays_from", percent)
    if path.pays_from is None:
        text = "With all data in memory this filter saves memory, not time"
    else:
        text = (
            f"In memory this filter pays when more than {page.num('read_path.pays_from', percent)} of requests are for "
            "absent keys"
        )
    return text + (f"; with such a disk, when more than {disk} are." if disk != NO else ".")


def _some(value: float) -> str:
    return f"{value:.1g}" if value < 1 else f"{value:.0f}"
