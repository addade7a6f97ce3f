"""``dlbf report``: the figures, the page that shows them, and files of every kind."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest
from click.testing import CliRunner

from dlbf.cli import build
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.report import Figures, Targets, collect, gather, prepare
from dlbf.report import render as render_figures
from dlbf.report.charts import Axis, Series, line_chart, nice_ticks
from dlbf.report.comparing import peer_rows
from dlbf.report.wording import file_size, nanoseconds, percent, show_key
from dlbf.theory import DESIGNS

VOID = {"meta", "link", "br", "img", "input", "hr"}
EVIL = b"<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"


def run(*arguments, **more):
    return CliRunner().invoke(build(), [str(each) for each in arguments], **more)


class Reader(HTMLParser):
    """Reads a page, refuses unbalanced elements, and keeps what the tests ask about."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.data, self.text = [], [], [], []
        self.feed(page)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "data":
            self.data.append([dict(attrs), ""])

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "data" in self.open:
            self.data[-1][1] += data
        self.text.append(data)


def render(data):
    """The page of figures that were read back from JSON."""
    return render_figures(Figures.from_dict(data))


def svgs(page):
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg\b.*?</svg>", page, re.DOTALL)]


def check_page(page, figures):
    """What holds for every page: well-formed, alone, and with the same numbers as the figures."""
    reader = Reader(page)
    for tag, attributes in reader.elements:
        for name in ("src", "href", "action", "srcset", "poster"):
            assert attributes.get(name, "data:,") == "data:,", (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
        if tag == "script":
            assert attributes["type"] == "application/json"
    for needle in ("http://", "https://", "@import", "url("):
        outside = re.sub(r"url\(#c[0-9a-f]{8}\)", "", page)
        assert needle not in outside.replace("</", "<"), needle
    for attributes, shown in reader.data:
        value = figures
        for step in attributes["data-from"].split("."):
            value = value[int(step)] if isinstance(value, list) else value[step]
        assert json.loads(attributes["value"]) == value, attributes
        assert shown
        assert any(char.isdigit() for char in shown)
    embedded = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])
    assert embedded == figures
    charts = [svg for svg in svgs(page) if svg.get("class") == "chart"]
    for chart in charts:
        assert chart.find("title").text
        assert chart.find("desc").text
        assert chart.get("aria-labelledby") == f"{chart.find('title').get('id')} {chart.find('desc').get('id')}"
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for row in figures["warnings"]:
        assert row in "".join(reader.text)
    return reader, charts


def made(keys, negatives, fpr=0.02, deletability=0.5, **more):
    inputs = prepare(gather("keys.txt", [list(keys)], 10**6), gather("asked.txt", [list(negatives)], 10**6))
    # As it is read back from --json.
    return json.loads(json.dumps(collect(inputs, Targets(fpr, deletability, 1.0), quick=True, **more).to_dict()))


@pytest.fixture(scope="module")
def learned():
    return made(listed_urls(6000), ordinary_urls(12000))


@pytest.fixture(scope="module")
def hopeless():
    rng = np.random.default_rng(3)
    ids = [rng.bytes(8).hex().encode() for _ in range(8000)]
    return made(ids[:2000], ids[2000:])


# --- the figures


def test_report_of_keys_with_a_pattern_recommends_a_model_and_measures_it(learned):
    found = learned["recommendation"]
    assert found["learned"]
    assert found["bytes"] < found["plain_bytes"]
    assert found["saved_share"] == pytest.approx(1 - found["bytes"] / found["plain_bytes"])
    assert found["lost_keys"] == 0
    # The rate asked for lies within the 99 % interval, or above it.
    assert found["fpr_measured"]["interval_99"][0] <= 0.02
    assert found["deletability_measured"]["interval_99"][1] >= 0.5
    rows = {row["design"]: row for row in learned["designs"]}
    assert set(rows) == {"auto", "cuckoo", "bloom", "counting", "d-left", "plbf", "lbf-2cbf"}
    assert rows["auto"]["bytes"] == found["bytes"]
    for row in rows.values():
        assert row["feasible"]
        assert row["bytes"] == pytest.approx(row["bits_per_key"] * 6000 / 8, abs=1)
        assert row["fpr_measured"]["interval_99"][0] <= 0.02
    assert rows["counting"]["bits_per_key"] > rows["cuckoo"]["bits_per_key"] > rows["auto"]["bits_per_key"]
    assert sum(region["key_share"] for region in learned["regions"]) == pytest.approx(1)
    assert sum(learned["scores"]["keys"]) == pytest.approx(1)
    assert 0 < learned["scores"]["overlap"] < 0.5


def test_report_on_absent_keys_nothing_was_fitted_on(learned):
    given = learned["inputs"]["negatives"]
    assert given["learnt"] + given["unseen"] == given["used"] == 12000
    assert given["unseen"] == learned["recommendation"]["fpr_measured"]["trials"]
    inputs = prepare(gather("k", [[b"a"]], 9), gather("n", [[b"%d" % (i % 500) for i in range(1000)]], 1000))
    assert not set(inputs.learnt) & set(inputs.unseen)
    assert inputs.repeated_negatives == 500


def test_report_of_random_keys_says_that_no_model_is_best(hopeless):
    found = hopeless["recommendation"]
    assert not found["learned"]
    assert "without a model" in found["sentence"]
    assert "look like the absent" in found["sentence"]
    assert hopeless["scores"]["for_comparison_only"]
    assert hopeless["scores"]["overlap"] > 0.6
    assert any("nothing is wrong" in text for text in hopeless["warnings"])
    page = render(hopeless)
    _, charts = check_page(page, hopeless)
    assert len(charts) == 7
    assert "CuckooFilter(2000, 0.02)" in page


def test_report_read_path_adds_up(learned):
    path = learned["read_path"]
    steps = path["hash_ns"] + path["model_ns"] + path["filter_ns"] + path["call_ns"]
    assert steps == pytest.approx(path["learned_ns"])
    assert path["absent_ns"] == pytest.approx(path["learned_ns"] + path["fpr"] * path["lmdb_miss_ns"])
    assert min(path["hash_ns"], path["model_ns"], path["filter_ns"], path["call_ns"]) >= 0
    assert path["model_ns"] > 0


def test_report_curves_and_tradeoffs_fall_with_what_is_asked(learned):
    for curve in learned["curves"]:
        costs = [cost for _, cost in curve["points"]]
        rates = [rate for rate, _ in curve["points"]]
        assert rates == sorted(rates, reverse=True)
        # Bits grow as the rate falls; plans are within a hundredth of the optimum.
        assert all(later >= earlier * 0.99 for earlier, later in itertools.pairwise(costs)), curve["names"]
    names = [name for curve in learned["curves"] for name in curve["names"]]
    assert {"auto", "bloom", "xor", "binary fuse", "least without a model"} <= set(names)
    for curve in learned["tradeoff"]["deletability"]:
        assert [at for at, _ in curve["points"]] == [0, 0.5, 0.65, 0.9, 0.99]
        costs = [cost for _, cost in curve["points"]]
        assert all(later >= earlier * 0.99 for earlier, later in itertools.pairwise(costs))
    allowed = [rate for rate, _ in learned["tradeoff"]["forged"]]
    assert allowed[0] == 1.0
    assert allowed == sorted(allowed, reverse=True)


def test_report_says_what_was_wrong_with_the_files():
    keys = [b"key %d" % i for i in range(40)]
    figures = made(keys + keys[:5], keys[:7] + [b"absent %d" % (i % 30) for i in range(60)])
    text = " ".join(figures["warnings"])
    assert figures["inputs"]["keys"]["duplicates"] == 5
    assert figures["inputs"]["negatives"]["overlapping"] == 7
    assert "7 of the absent keys (10\xa0%) are stored keys and were dropped" in text
    assert "5 keys occur more than once" in text
    assert "Only 60 absent keys" in text
    assert "30 absent keys are repeats" in text
    check_page(render(figures), figures)


def test_report_needs_no_more_negatives_than_it_says():
    def warned(n):
        figures = made([b"k%d" % i for i in range(30)], [b"n%d" % i for i in range(n)], fpr=0.1)
        return [text for text in figures["warnings"] if "too few" in text]

    assert "at least 1,200" in warned(1199)[0]
    assert not warned(1200)


@pytest.mark.parametrize(
    ("keys", "negatives"),
    [
        ([b"one"], []),
        ([b"one"], [b"two"]),
        ([b""], [b"", b"x"]),
        ([bytes([i]) * (i + 1) for i in range(200)], [bytes([255, i]) for i in range(100)]),
        ([b"long" * 300 + b"%d" % i for i in range(60)], [b"longer" * 300 + b"%d" % i for i in range(60)]),
        ([EVIL + b"%d" % i for i in range(80)], [b"</script></svg><b>%d" % i for i in range(80)]),
    ],
    ids=["no negatives", "one of each", "empty key", "binary", "too long for LMDB", "hostile"],
)
def test_report_of_odd_keys_is_a_whole_page(keys, negatives):
    figures = made(keys, negatives)
    assert figures["recommendation"]["lost_keys"] == 0
    check_page(render(figures), figures)


def test_report_without_keys_is_refused():
    with pytest.raises(ValueError, match="at least one key"):
        made([], [b"x"])


def test_figures_come_back_from_json_as_they_were(learned, hopeless):
    for data in (learned, hopeless):
        # Names and their order, too: others read this JSON.
        assert json.dumps(Figures.from_dict(data).to_dict()) == json.dumps(data)
    described = ["design", "summary", "learned", "deletable", "can_lose_keys", "keyed", "feasible"]
    row = made([b"one"], [])["designs"][-1]
    assert list(row) == [*described, "reason"]
    row = learned["designs"][0]
    assert list(row) == [
        *described, "uses_model", "bits_per_key", "bytes", "fpr_predicted", "fpr_measured", "fnr_predicted",
        "deletability", "deletability_measured", "adversarial_fpr",
    ]  # fmt: skip


# --- the page


def test_page_shows_the_figures_and_nothing_else(learned):
    page = render(learned)
    reader, charts = check_page(page, learned)
    # Sizes, two sets of curves, two trade-offs, scores, time.
    assert len(charts) == 7
    text = "".join(reader.text)
    assert text.index(learned["recommendation"]["sentence"]) < text.index("Memory saved")
    assert len(reader.data) > 150
    for row in learned["designs"]:
        assert file_size(row["bytes"]) in text
    assert render(learned) == page


def text_of(figures):
    return " ".join("".join(Reader(render(figures)).text).split())


def test_report_says_what_the_smaller_filter_gives_up(learned):
    found = learned["recommendation"]
    rows = {row["design"]: row for row in learned["designs"]}
    # As measured, like every other figure at the top, and not as planned.
    shares = [rows[name]["deletability_measured"]["value"] for name in ("auto", found["plain_design"])]
    assert [found["forgotten"], found["plain_forgotten"]] == shares
    assert shares[1] == pytest.approx(0.98, abs=0.02)
    forgets = [percent(share) for share in shares]
    assert (
        f"it forgets {forgets[0]} of the keys that you remove later; the larger filter forgets {forgets[1]}."
        in (found["price"])
    )
    text = text_of(learned)
    assert f"less, for forgetting {forgets[0]} instead of {forgets[1]} of removed keys".replace("\xa0", " ") in text
    assert text.index(found["price"].replace("\xa0", " ")) < text.index("Memory saved")
    equal = learned["equal_forgetting"]
    assert equal["deletability"] == 0.98
    # The same rate as without a model, for every key: only the model itself is left, as a cost.
    assert equal["saved_share"] < 0.1 < found["saved_share"]
    assert any(text.startswith("The saving has a price: about") for text in learned["warnings"])


@pytest.mark.parametrize("which", ["learned", "hopeless"])
def test_report_recommends_in_one_short_sentence(request, which):
    sentence = request.getfixturevalue(which)["recommendation"]["sentence"]
    assert sentence.endswith(".")
    assert ". " not in sentence
    assert len(sentence.split()) <= 45


def test_report_gives_the_price_of_resisting_forged_keys(learned):
    (text,) = [text for text in learned["warnings"] if "--adversarial-fpr" in text]
    prices = dict(learned["tradeoff"]["forged"])
    named = re.findall(r"--adversarial-fpr ([0-9.]+) \([0-9.]+\xa0%, about (.*?)\)", text)
    assert f"<code>--adversarial-fpr {named[0][0]}</code>" in render(learned)
    assert named[-1][0] == "0.02"
    for rate, size in named:
        assert size == file_size(prices[float(rate)] * 6000 / 8)
    assert 'id="trade"' in render(learned)
    assert "no limit on forged keys" in text_of(learned)


def test_report_filter_pays_from_where_both_ways_take_the_same_time(learned):
    path = learned["read_path"]
    for share, look in ((path["pays_from"], path["lmdb_miss_ns"]), (path["disk_pays_from"], path["disk_read_ns"])):
        # The look for a key that is there is made either way.
        without = share * look
        with_it = share * (path["learned_ns"] + path["fpr"] * look) + (1 - share) * path["learned_hit_ns"]
        assert with_it == pytest.approx(without)
    assert f"pays when more than {percent(path['pays_from'])}".replace("\xa0", " ") in text_of(learned)


def test_page_says_when_a_rate_above_the_target_is_not_ruled_out(learned):
    other = json.loads(json.dumps(learned))
    rate = other["recommendation"]["fpr_measured"]
    for interval, words in (
        ([0.0187, 0.02042], "between 1.87 % and 2.04 %, so a true rate slightly above your 2 % is not ruled out."),
        ([0.012, 0.0311], "between 1.2 % and 3.11 %, so a true rate above your 2 % is not ruled out."),
        ([0.0211, 0.0311], "between 2.11 % and 3.11 %, so it is above your 2 %."),
        ([0.0111, 0.0199], "between 1.11 % and 1.99 %. Predicted"),
    ):
        rate["interval_99"] = interval
        assert words in text_of(other)


def test_page_shows_the_measured_share_of_forgotten_keys(learned):
    other = json.loads(json.dumps(learned))
    row = next(row for row in other["designs"] if row["design"] == "cuckoo")
    row["deletability"], row["deletability_measured"]["value"] = 0.111, 0.222
    assert "22 %" in text_of(other)
    assert "11 %" not in text_of(other).split("Cuckoo filter")[1].split("Bloom filter")[0]
    row["deletability_measured"] = None
    assert "11 % predicted" in text_of(other)


def test_page_says_where_the_filter_can_live(learned, hopeless):
    file, store, hosts = "A file, or a guard before your engine", "A store, in layers", "Each of several hosts"
    for figures in (learned, hopeless):
        section = render(figures).split("<h2>Where it can live</h2>")[1].split("</section>")[0]
        built = [i for i, row in enumerate(figures["designs"]) if row["design"] == "static" and "bytes" in row]
        rows = re.findall("<tr>(.*?)</tr>", section)[1:]
        names = [re.search(r"<th[^>]*>(.*?)</th>", row)[1] for row in rows]
        assert names == ([file, store, hosts] if built else [file, hosts])
        assert all(f'data-from="designs.{i}.bytes"' in rows[1] for i in built)
        assert 'data-from="targets.adversarial_fpr"' in section
    quick = learned | {"designs": [row for row in learned["designs"] if row["design"] != "static"]}
    assert store not in render(quick)


def test_page_shows_no_step_of_no_time(learned):
    other = json.loads(json.dumps(learned))
    other["read_path"]["filter_ns"] = 0.0
    assert "Ask the model and look into the filter" in text_of(other)
    assert "0 ns" not in re.findall(r"Hash the key.*All of the filter", text_of(other))[0].split()
    other["read_path"]["filter_ns"] = 30.0
    assert "Ask the model and look" not in text_of(other)


def test_page_names_the_lines_that_can_lose_keys(learned):
    other = json.loads(json.dumps(learned))
    curve = next(curve for curve in other["curves"] if curve["names"] == ["lbf-2cbf"])
    assert "can be smaller in places" not in text_of(other)
    curve["points"] = [[rate, 3.0] for rate, _ in curve["points"]]
    losing = [name for name, design in DESIGNS.items() if design.deletable and design.false_negatives]
    curve["names"] = losing[:1]
    letter = re.search(r"recommended one. (.) can be smaller in places, but can lose keys", text_of(other))[1]
    assert re.search(rf">{letter}</text></svg>[^<]*, can lose keys</li>", render(other))


def test_page_notices_a_number_that_is_not_in_the_figures(learned):
    page = render(learned)
    other = json.loads(json.dumps(learned))
    other["designs"][2]["bytes"] += 1
    with pytest.raises(AssertionError):
        check_page(page, other)


def test_page_escapes_keys_file_names_and_errors(learned):
    other = json.loads(json.dumps(learned))
    evil = EVIL.decode()
    other["inputs"]["keys"]["name"] = other["inputs"]["negatives"]["name"] = evil
    other["regions"][0]["example_keys"] = other["regions"][0]["example_absent"] = [evil]
    other["designs"][1] |= {"feasible": False, "reason": evil}
    other["peers"][0] = {"name": evil, "version": evil, "missing": evil, "deletable": False}
    other["recommendation"]["model"] = other["scores"]["model"] = other["machine"]["processor"] = evil
    other["warnings"] = [evil]
    page = render(other)
    reader, _ = check_page(page, other)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert {tag for tag, _ in reader.elements if tag in ("script", "img", "b")} == {"script", "b"}
    assert sum(tag == "script" for tag, _ in reader.elements) == 1
    assert evil in "".join(reader.text)


@pytest.mark.parametrize("how_many", ["one", "all"])
def test_page_names_libraries_that_are_not_installed_in_one_line(learned, how_many):
    other = json.loads(json.dumps(learned))
    names = [row["name"] for row in other["peers"]][: 1 if how_many == "one" else None]
    for row in other["peers"][: len(names)]:
        row.pop("bits_per_key", None)
        row.pop("fpr_measured", None)
        row["missing"] = "not installed"
    if how_many == "one":
        other["peers"][1] = {"name": "broken", "version": "1", "missing": "OSError: no", "deletable": False}
    page = render(other)
    text = "".join(check_page(page, other)[0].text)
    assert f"Not installed here: {', '.join(names)}" in text
    assert ("Did not run: OSError: no" in text) == (how_many == "one")
    if how_many == "all":
        assert "Dots are filters of other libraries" not in text
        assert "Other libraries were not compared." in text


def test_report_tells_a_missing_library_from_a_broken_one(monkeypatch):
    import importlib.metadata

    version = importlib.metadata.version

    def without_rbloom(name):
        if name == "rbloom":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_rbloom)
    rows = {row.name: row for row in peer_rows(list(listed_urls(1000)), list(ordinary_urls(3000)), 0.02)}
    assert rows["rbloom"].missing == "not installed"


def test_page_shows_examples_only_when_allowed(learned):
    keys, negatives = list(listed_urls(2000)), list(ordinary_urls(8000))
    without = made(keys, negatives, deletability=0, examples=False)

    def shown(figures, keys):
        page = render(figures)
        return [key for key in keys if key.decode() in page]

    assert learned["recommendation"]["learned"]
    assert without["recommendation"]["learned"]
    assert shown(learned, [*listed_urls(6000), *ordinary_urls(12000)])
    assert not shown(without, keys + negatives)


# --- wording, charts, sampling


def test_show_key_of_any_bytes_is_printable_and_short():
    rng = np.random.default_rng(1)
    for _ in range(300):
        key = rng.bytes(int(rng.integers(0, 200)))
        assert show_key(key).isprintable()
    for evil in ("\u202e", "\u2066", "\x1b[31m", "a\nb", "\ufeff", "\u0085"):
        assert evil not in show_key(evil.encode())
    assert show_key(b"a\\x00") != show_key(b"a\x00")
    assert show_key(b"x" * 500).endswith("…")
    assert show_key("žluťoučký".encode()) == "žluťoučký"


def test_percent_never_rounds_something_to_nothing_or_to_all():
    for exponent in range(1, 12):
        small = 10.0**-exponent
        assert percent(small).split("\xa0")[0].strip("0.") != ""
        assert percent(1 - small) != "100\xa0%" or exponent > 10
    assert [file_size(n) for n in (0, 999, 999_499, 999_501)] == ["0\xa0bytes", "999\xa0bytes", "999\xa0kB", "1\xa0MB"]
    assert nanoseconds(0.0) == "0\xa0ns"


def test_legends_name_what_their_chart_shows_and_nothing_else(learned):
    other = json.loads(json.dumps(learned))
    for name, size, rate in (("far to the right", 500.0, 0.01), ("far below", 8.0, 1e-9), ("well inside", 8.0, 0.01)):
        measured = {"hits": 9, "trials": 900, "value": rate, "interval_99": [0.005, 0.02]}
        row = {"name": name, "deletable": True, "version": "1", "bits_per_key": size, "fpr_measured": measured}
        other["peers"].append(row)
    curve = next(curve for curve in other["curves"] if curve["names"] == ["lbf-2cbf"])
    curve["points"] = [[rate, 900.0] for rate, _ in curve["points"]]
    figures = re.findall(
        r'<figure><h3>.*?</h3>(<svg class="chart".*?</svg>)<ul class="legend">(.*?)</ul>', render(other)
    )
    assert len(figures) == 3
    listed = []
    for chart, legend in figures:
        names = [re.sub(r"<svg.*?</svg>", "", each) for each in re.findall(r"<li>(.*?)</li>", legend)]
        clip = re.search(r'<clipPath.*?x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', chart)
        x, y, wide, tall = map(float, clip.groups())
        drawn = set()
        for element in ElementTree.fromstring(chart).iter():
            title = element.find("title")
            if element.tag == "circle" and title is not None:
                ends = [(float(element.get("cx")), float(element.get("cy")))] * 2
            elif element.tag == "polyline":
                ends = [tuple(map(float, pair.split(","))) for pair in element.get("points").split()]
                assert len(ends) > 1  # one point makes no line
            else:
                continue
            # A thousand places on each piece, an exact reference for what the frame lets through.
            places = (
                (x1 + (x2 - x1) * i / 999, y1 + (y2 - y1) * i / 999)
                for (x1, y1), (x2, y2) in itertools.pairwise(ends)
                for i in range(1000)
            )
            if any(x <= px <= x + wide and y <= py <= y + tall for px, py in places):
                drawn.add(title.text)
        assert set(names) == drawn
        assert len(names) == len(set(names))
        # Each letter in the legend is in the chart, too.
        letters = re.findall(r'class="letter">(.)<', legend)
        assert sorted(letters) == sorted(re.findall(r'class="letter">(.)<', chart))
        listed += names
    assert "well inside" in listed
    assert not {"far to the right", "far below"} & set(listed)
    assert "Outside the frame" in text_of(other)


def test_charts_survive_flat_and_single_points():
    assert nice_ticks(0, 0)
    axis = Axis(0, 0, "x", [0], str)
    chart = ElementTree.fromstring(
        line_chart(
            "<t>", "&d", [Series("<one>", [(0, 0)], "main", mark="A")], axis, Axis(1e-9, 1, "y", [1], str, log=True)
        )
    )
    assert chart.find("title").text == "<t>"
    assert "nan" not in ElementTree.tostring(chart, "unicode").replace("nano", "")


def test_gather_keeps_every_key_with_the_same_chance():
    # 400 samples of 20 of 100: each key 80 times, standard deviation 8; six of them is once in a hundred million.
    times = np.zeros(100)
    for seed in range(400):
        found = gather("n", ([b"%d" % i for i in range(start, start + 30)] for start in range(0, 100, 30)), 20, seed)
        assert (found.total, len(found.sample)) == (120, 20)
        for key in set(found.sample):
            if int(key) < 100:
                times[int(key)] += 1
    expected = 400 * 20 / 120
    assert np.abs(times - expected).max() < 6 * np.sqrt(expected)
    with pytest.raises(ValueError, match="at least 1"):
        gather("n", [], 0)


# --- the command


@pytest.fixture
def files(tmp_path):
    (tmp_path / "keys.txt").write_bytes(b"\r\n".join(listed_urls(300)) + b"\n\n")
    (tmp_path / "asked.txt").write_bytes(b"\n".join(ordinary_urls(900)) + b"\n")
    (tmp_path / "empty.txt").write_bytes(b"\n\n")
    return tmp_path


def test_report_command_writes_the_page_and_prints_the_same_figures(files):
    out = files / "report.html"
    out.write_text("old")
    done = run("report", files / "keys.txt", files / "asked.txt", "-o", out, "--quick", "--json", "--fpr", "0.05")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["inputs"]["keys"]["used"] == 300
    assert figures["targets"]["fpr"] == 0.05
    check_page(out.read_text("utf-8"), figures)
    assert sorted(path.name for path in files.iterdir()) == ["asked.txt", "empty.txt", "keys.txt", "report.html"]


def test_report_command_samples_large_files_and_scales_to_all(files):
    done = run("report", files / "keys.txt", files / "asked.txt", "--sample", 100, "--quick", "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    given = figures["inputs"]["keys"]
    assert (given["lines"], given["used"], given["n_keys"], given["sampled"]) == (300, 100, 300, True)
    found = figures["recommendation"]
    assert found["bytes"] == pytest.approx(found["bits_per_key"] * 300 / 8, abs=1)
    assert "about 300 keys" in found["sentence"]
    assert sum("random sample of 100 of its" in text for text in figures["warnings"]) == 2


def test_report_command_with_a_secret_hashes_with_it(files):
    (files / "secret").write_bytes(bytes(range(16)))
    arguments = ["report", files / "keys.txt", files / "asked.txt", "--json", "--quick"]
    done = run(*arguments, "--secret-file", files / "secret")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["targets"]["keyed"]


def test_report_of_a_store_takes_its_keys_and_what_it_was_asked_for_in_vain(tmp_path):
    from dlbf.storage import Store

    keys, absent = list(listed_urls(3000)), list(ordinary_urls(9000))
    path = tmp_path / "urls"
    with Store(path, fpr=0.05) as store:
        store.update(dict.fromkeys(keys, b"v"))
        for key in absent:
            assert store.get(key) is None
    out = tmp_path / "r.html"
    done = run("report", path, "-o", out, "--quick", "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    given = figures["inputs"]
    assert (given["keys"]["used"], given["keys"]["is_store"]) == (3000, True)
    assert given["negatives"]["is_store"]
    # A store keeps one in so many of them.
    assert 200 < given["negatives"]["used"] <= 9000
    assert figures["targets"]["fpr"] == 0.05
    assert figures["targets"]["keyed"]
    assert figures["recommendation"]["lost_keys"] == 0
    check_page(page := out.read_text("utf-8"), figures)
    assert f"dlbf rebuild {path} --fpr 0.05 --deletability 0.9</pre>" in page
    assert "It keeps its keys in layers" in page
    assert "dlbf fit" not in page
    # The store is as it was, and the report's own lookups are no traffic.
    with Store(path, readonly=True) as store:
        assert len(store) == 3000
        assert store.stats().misses == given["negatives"]["used"]


def test_report_of_a_store_with_other_absent_keys_and_of_one_never_asked(tmp_path):
    from dlbf.storage import Store

    path, asked = tmp_path / "urls", tmp_path / "asked.txt"
    asked.write_bytes(b"\n".join(ordinary_urls(900)))
    with Store(path) as store:
        store.update(dict.fromkeys(listed_urls(300), b"v"))
    done = run("report", path, asked, "-o", tmp_path / "r.html", "--quick", "--json", "--fpr", "0.02", "--sample", 200)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["targets"]["fpr"] == 0.02
    assert figures["inputs"]["negatives"]["lines"] == 900
    assert any(
        text.startswith("The store is large: a random sample of 200 of its 300 keys") for text in figures["warnings"]
    )
    assert f"dlbf rebuild {path} --negatives {asked} --fpr 0.02" in (tmp_path / "r.html").read_text("utf-8")
    done = run("report", path, "-o", tmp_path / "r.html", "--quick", "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert not figures["recommendation"]["learned"]
    assert "let it serve for a while" in figures["warnings"][0]


def test_report_of_a_folder_that_is_no_store_says_so(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    done = run("report", tmp_path, "-o", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "not a store: expected data.mdb in it, found a.txt" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["empty.txt", "asked.txt", "-o", "r.html"], "no keys in it"),
        (["missing.txt", "asked.txt", "-o", "r.html"], "cannot be read"),
        (["keys.txt", "missing.txt", "-o", "r.html"], "cannot be read"),
        (["keys.txt", "asked.txt"], "nothing to do"),
        (["-", "-", "-o", "r.html"], "only one of"),
        (["keys.txt", "asked.txt", "-o", "no/such/r.html"], "no folder"),
        (["keys.txt", "asked.txt", "-o", "r.html", "--fpr", "2"], "fpr"),
        (["keys.txt", "asked.txt", "-o", "r.html", "--deletability", "1"], "deletability"),
        (["keys.txt", "asked.txt", "-o", "r.html", "--adversarial-fpr", "0"], "adversarial_fpr"),
        (["keys.txt", "asked.txt", "-o", "r.html", "--sample", "0"], "--sample"),
    ],
)
def test_report_command_with_bad_input_says_what_is_wrong_and_writes_nothing(files, monkeypatch, arguments, words):
    monkeypatch.chdir(files)
    done = run("report", *arguments)
    assert done.exit_code != 0
    assert words in done.output
    assert "Traceback" not in done.output
    assert not (files / "r.html").exists()


@pytest.mark.parametrize("moment", ["comparing", "writing"])
def test_report_interrupted_leaves_the_old_page_and_no_rest(files, learned, moment):
    out = files / "report.html"
    out.write_text("old")
    program = """
import json, os, signal, sys
import dlbf.report
from dlbf.cli import main
moment = sys.argv.pop()
collect, fsync = dlbf.report.collect, os.fsync
def comparing(*arguments, say, **more):
    return collect(*arguments, say=lambda *_: os.kill(os.getpid(), signal.SIGINT), **more)
def fetching(*arguments, **more):
    return dlbf.report.Figures.from_dict(json.load(sys.stdin))
def writing(file):
    os.kill(os.getpid(), signal.SIGINT)
    fsync(file)
if moment == "comparing":
    dlbf.report.collect = comparing
else:
    dlbf.report.collect, os.fsync = fetching, writing
main()
"""
    process = subprocess.run(
        [sys.executable, "-c", program, "report", "keys.txt", "asked.txt", "-o", "report.html", "--quick", moment],
        cwd=files, env={**os.environ, "TMPDIR": str(files)}, input=json.dumps(learned), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (130, "interrupted\n")
    assert out.read_text() == "old"
    assert sorted(path.name for path in files.iterdir()) == ["asked.txt", "empty.txt", "keys.txt", "report.html"]


# --- a real browser


CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
# Run inside the page: what lies outside the width, which charts have no size, and whether anything complained.
PROBE = """
<script>
window.addEventListener("load", () => {
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
  const wide = document.documentElement.clientWidth;
  const out = [...document.querySelectorAll("body *")].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.width > 0 && box.right > wide + 1 && !each.closest("thead") && !each.closest("clipPath, svg g");
  }).map((each) => each.tagName + "." + each.getAttribute("class"));
  // Nor may anything stick out of the card it is in.
  document.querySelectorAll("section").forEach((section) => {
    const edge = section.getBoundingClientRect().right;
    section.querySelectorAll("table, figure, pre, p").forEach((each) => {
      if (each.getBoundingClientRect().right > edge + 1) out.push("over the edge: " + each.tagName);
    });
  });
  const flat = [...document.querySelectorAll("svg.chart")].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.width < 250 || box.height < 60;
  }).length;
  const small = [...document.querySelectorAll("svg.chart text")].filter((each) =>
    each.getBoundingClientRect().height < 8).length;
  document.body.setAttribute("data-found", JSON.stringify({
    wide, scroll: document.documentElement.scrollWidth, out: out.slice(0, 5), flat, small,
    charts: document.querySelectorAll("svg.chart").length}));
});
</script>
"""


def browse(folder, page, *arguments):
    path = folder / "page.html"
    path.write_text(page, "utf-8")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}", *arguments, path.as_uri(),
        ],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, complaints


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("which", ["learned", "hopeless"])
@pytest.mark.parametrize("width", [390, 768, 880, 1280, 1440])
def test_page_in_a_browser_fits_its_width(request, tmp_path, which, width):
    page = render(request.getfixturevalue(which))
    _, complaints = browse(tmp_path, page, "--dump-dom", f"--window-size={width},900")
    assert not complaints
    # A window cannot be as narrow as a phone in every build; a frame can.
    probed = page.replace("</body>", f"{PROBE}</body>").replace("default-src 'none';", "default-src 'unsafe-inline';")
    (tmp_path / "inner.html").write_text(probed, "utf-8")
    frame = (
        f'<iframe id="f" src="inner.html" width="{width}" height="900" style="border:0"></iframe><script>'
        'window.onload = () => { document.body.setAttribute("data-found", '
        'document.getElementById("f").contentDocument.body.getAttribute("data-found")); };</script>'
    )
    dom, complaints = browse(tmp_path, frame, "--dump-dom", "--window-size=1600,1000", "--allow-file-access-from-files")
    assert not complaints
    found = json.loads(re.search(r'data-found="(.*?)"', dom)[1].replace("&quot;", '"'))
    assert found["wide"] == width
    assert found["scroll"] <= width, found
    assert found["out"] == []
    assert found["flat"] == 0
    assert found["small"] == 0
    assert found["charts"] == 7


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_page_in_a_browser_draws_and_prints(learned, tmp_path):
    page = render(learned)
    for width in (390, 1280):
        shot = tmp_path / f"{width}.png"
        _, complaints = browse(tmp_path, page, f"--window-size={width},2000", f"--screenshot={shot}")
        assert not complaints
        # A blank page of that size compresses to a few kilobytes.
        assert shot.stat().st_size > 40_000
    paper = tmp_path / "page.pdf"
    browse(tmp_path, page, "--no-pdf-header-footer", f"--print-to-pdf={paper}")
    pages = len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes()))
    assert 3 <= pages <= 14


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_hostile_keys_run_nothing_in_a_browser(tmp_path):
    keys = [
        b"<script>document.title='gone'</script><img src=x onerror=document.title='gone'>%d" % i for i in range(1500)
    ]
    figures = made(keys, list(ordinary_urls(6000)))
    page = render(figures)
    assert "document.title" in page
    # Without the page's own policy, so that only the escaping stands between.
    bare = re.sub(r"<meta http-equiv.*?>", "", page, flags=re.DOTALL)
    dom, complaints = browse(tmp_path, bare, "--dump-dom", "--window-size=800,900")
    assert not complaints
    assert "<title>Which filter fits" in dom
    assert "<img" not in dom


@pytest.mark.slow
@pytest.mark.data
def test_report_of_real_urls_in_two_minutes_of_processor_time(tmp_path):
    from dlbf.bench.data import data_folder

    folder = data_folder(None)
    if folder is None:
        pytest.skip("DLBF_DATA names no folder")
    sources = [next(folder.glob(f"urls.{kind}.txt*")) for kind in ("malicious", "benign")]
    before = time.process_time()
    done = run("report", *sources, "-o", tmp_path / "r.html", "--json")
    assert done.exit_code == 0, done.output
    assert time.process_time() - before < 120
    figures = json.loads(done.stdout)
    check_page((tmp_path / "r.html").read_text("utf-8"), figures)
    assert len(figures["designs"]) == len(DESIGNS)
    assert figures["recommendation"]["learned"]
    assert figures["recommendation"]["saved_share"] > 0.3
