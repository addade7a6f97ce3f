"""Plans, reports and figures as notebooks show them: tables in HTML that parses, with every text escaped."""

from dataclasses import dataclass
from html.parser import HTMLParser

import pytest

import dlbf
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.notebook import MOST_ROWS, Shown
from dlbf.storage import Store
from dlbf.theory import plan


class Tables(HTMLParser):
    """Captions, and the rows of each table; fails at tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.open = {}, []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag == "br":
            self.rows[-1][-1] += " / "
            return
        self.open.append(tag)
        if tag == "table":
            self.rows = []
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] == "caption":
            self.tables[data] = self.rows
        else:
            self.rows[-1][-1] += data


def tables(value):
    return Tables(value._repr_html_()).tables


def test_plan_is_shown_with_its_regions():
    found = tables(plan("lbf-2cbf", model_fpr=0.01, model_fnr=0.5, bits_per_key=20, counter_bits=2))
    assert ["fpr", "0.00163"] in found["Plan"]
    names, *rows = found["regions"]
    assert {"key share", "member base", "member fpr"} <= set(names)
    assert len(rows) == 2
    infeasible = plan("lbf-2cbf", model_fpr=0.01, model_fnr=0.5, bits_per_key=1, deletability=0.9)
    assert ["feasible", "no"] in tables(infeasible)["Plan"]
    assert all(text for row in tables(infeasible)["Plan"] for text in row)  # NaN and None are left out


def test_store_figures_are_shown(tmp_path):
    with Store(tmp_path, sync="none") as store:
        store.update((b"<%d>" % i, b"") for i in range(5000))
        store.get(b"absent")
        found = tables(store.stats())
        assert ["keys", "5,000"] in found["Stats"]
        assert ["lookups", "1"] in found["Stats"]
        assert any(row[0] == "bits per key" for row in found["Stats"])
        assert any(row[0] == "base keys" for row in found["layers"])
        assert ["ok", "yes"] in tables(store.verify())["Verification"]
        assert ["due", "no"] in tables(store.drift())["Drift"]
        report = tables(store.rebuild(model=None))
        assert ["done", "yes"] in report["RebuildReport"]
        assert ["keys", "5,000"] in report["after"]


def test_learned_filter_is_shown():
    pytest.importorskip("sklearn")
    negatives = list(ordinary_urls(8000))
    lf = dlbf.LearnedFilter.fit(list(listed_urls(2000)), negatives, fpr=0.01, model="naive-bayes", design="plbf-cbf")
    found = tables(lf.plan)
    assert len(found["regions"]) == 1 + len(lf.plan.regions)
    assert "alternatives" not in found or len(found["alternatives"]) == 1 + len(lf.plan.alternatives)
    assert any(row[0] == "fpr" and "predicted" in row[1] for row in tables(lf.evaluate(negatives))["Evaluation"])


@dataclass(frozen=True)
class Inner:
    name: str


@dataclass(frozen=True)
class Outer(Shown):
    text: str
    many: tuple[int, ...]
    rows: tuple[Inner, ...] = (Inner("<script>"),)


def test_text_is_escaped_and_long_lists_are_left_out():
    shown = Outer("<b>&", tuple(range(MOST_ROWS + 1)))._repr_html_()
    assert "<script>" not in shown
    assert "<b>" not in shown
    found = Tables(shown).tables
    assert found["Outer"] == [["text", "<b>&"]]
    assert found["rows"] == [["name"], ["<script>"]]
    assert ["many", "0 / 1"] in tables(Outer("", (0, 1)))["Outer"]
