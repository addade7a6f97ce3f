"""The tables and figures of README and docs are those of the recorded output, and nothing else."""

import json
import re
import shutil
import sys

import pytest
from support.places import ROOT

sys.path.append(str(ROOT))  # tools/ is not installed; last, so that the dlbf under test stays the same
from tools.tables import pages, pictures, records
from tools.tables.__main__ import main

PAGES = pages.documents(ROOT)
# A cell that is a figure: 12.3, **0.89**, 45 %, 1,234 ns, 0.67 (0.62-0.69), 9.2 / 12.6
NUMERIC_CELL = re.compile(r"\**[<+-]?\d[\d,.]*( ?(%|ns|µs|ms|s|x|bits|KiB|MiB))?( ?[/(].*)?\**")


def marked(page):
    text = page.read_text()
    return "<!-- table:" in text or "<!-- figure:" in text


@pytest.mark.parametrize("page", [page for page in PAGES if marked(page)], ids=lambda page: page.name)
def test_page_quotes_what_was_recorded(page):
    text = page.read_text()
    assert pages.rewrite(text, ROOT) == text, f"{page.name} differs from the records; run: make tables"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_markers_are_closed(page):
    text = page.read_text()
    opened = len(re.findall(r"<!-- (?:table|figure): ", text))
    assert opened == len(pages.BLOCK.findall(text)) + len(pages.INLINE.findall(text))


def loose_tables(text):
    """Tables outside of markers with a column of figures; the first column has names, be they numbers."""
    rest = pages.BLOCK.sub("", text)
    for table in re.findall(r"(?:^\|.*\n)+", rest, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()[2:]]
        if any(
            len(column) > 1 and all(map(NUMERIC_CELL.fullmatch, column)) for column in [*zip(*rows, strict=False)][1:]
        ):
            yield table


# README is checked from its first marker on.
CHECKED = [page for page in PAGES if page.name != "README.md" or marked(page)]


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: page.name)
def test_tables_of_figures_are_between_markers(page):
    loose = list(loose_tables(page.read_text()))
    assert not loose, f"{page.name}: put it between <!-- table: NAME --> and <!-- end -->:\n{loose[0]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_fit_a_page(page):
    code = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for line in re.findall(r"^\|.*\|$", code, re.MULTILINE):
        assert len(re.sub(r"`[^`]*`", "", line).strip("|").split("|")) <= pages.MOST_COLUMNS, line


def test_wide_table_is_written_in_parts(checkout):
    names = [f"c{i}" for i in range(11)]
    own = {"command": "dlbf bench x", "tables": {"mine": {"headings": names, "rows": [names, names]}}}
    (checkout / records.FIGURES_FOLDER / "x.json").write_text(json.dumps(own))
    first, second = pages.render("mine", checkout).rstrip("\n").split("\n\n")
    assert first.splitlines()[0] == "| c0 | c1 | c2 | c3 | c4 | c5 |"
    assert second.splitlines()[-1] == "| c0 | c6 | c7 | c8 | c9 | c10 |"


def test_pictures_show_what_was_recorded(checkout):
    for name, draw in pictures.PICTURES.items():
        path = ROOT / pictures.PICTURES_FOLDER / name
        assert path.read_text() == draw(ROOT), f"{name} differs from the records; run: make tables"
    assert pictures.redraw(checkout) == list(pictures.PICTURES)
    assert pictures.redraw(checkout) == []
    path = checkout / records.FIGURES_FOLDER / "layers.json"
    path.write_text(path.read_text().replace('"bits_per_key": 3.5', '"bits_per_key": 4.5'))
    assert pictures.redraw(checkout) == list(pictures.PICTURES)


def test_loose_table_is_found():
    assert list(loose_tables("| a | b |\n|---|---|\n| x | 1.5 |\n| y | **2.0 %** |\n"))
    assert not list(loose_tables("| a | b |\n|---|---|\n| x | one |\n| y | 2 of them |\n"))


# A time, a ratio or a rate as somebody measured it, in running text.
QUOTED = re.compile(
    r"\d[\d.,]*\s(?:ns|µs|ms|(?:nano|micro|milli)seconds?|MiB)\b|\d\.\d+ times|\d\.\d\d+ %|\d+\.\d+ bits per key"
)
# Settings and formulas, which no run can change.
FIXED = {
    "format.md": {"0.05 %"},
    "storage.md": {"32 MiB", "40 ms", "1.25 times", "1.1 times", "1 MiB", "8 MiB"},
    "benchmarks.md": {"1 MiB"},
    "theory.md": {"0.086 bits per key"},
    "threat-model.md": {"1.25 times"},
    "learned.md": {"6.64 bits per key", "3.3 bits per key"},
}


def loose_figures(text):
    """What looks measured in running text outside of markers; code is not text."""
    text = pages.INLINE.sub("", pages.BLOCK.sub("", text))
    text = re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```|^    [^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE))
    return QUOTED.findall(text)


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: page.name)
def test_figures_in_running_text_are_between_markers(page):
    loose = set(loose_figures(page.read_text())) - FIXED.get(page.name, set())
    assert not loose, f"{page.name}: put it between <!-- figure: PATH:FORMAT --> and <!-- end -->, or into FIXED"


def test_loose_figure_is_found():
    assert loose_figures("It took 31 microseconds,\n1.3 times as long; 0.84 % passed.") == [
        "31 microseconds", "1.3 times", "0.84 %",
    ]  # fmt: skip
    marked_one = "It takes <!-- figure: x/rows/0/bits:.2f -->9.5 ms<!-- end --> and `f(1.2 ms)`.\n\n    $ sleep 3 ms\n"
    assert not loose_figures(marked_one)
    assert loose_figures("    $ sleep 3 ms\n\nThen 2 ms passed, `or 4 ms`.") == ["2 ms"]


def test_records_say_where_they_come_from():
    recorded = sorted((ROOT / records.FIGURES_FOLDER).glob("*.json"))
    assert recorded
    for path in recorded:
        found = json.loads(path.read_text())
        assert path.stem in records.SECTIONS or "tables" in found, path
        assert found["command"].startswith(("dlbf bench", "python asv_bench/", "python tools/")), path
        assert {"processor", "python", "commit", "date"} <= set(found["machine"]), path
        assert "/" not in found.get("data", ""), f"{path}: a path has no place in a record"


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the tables are made from, with one small page."""
    shutil.copytree(ROOT / records.FIGURES_FOLDER, tmp_path / records.FIGURES_FOLDER)
    (tmp_path / "README.md").write_text("<!-- table: which-filter -->\nold\n<!-- end -->\n")
    return tmp_path


def test_main_rewrites_pages(checkout):
    assert main(["--root", str(checkout)]) == 0
    text = (checkout / "README.md").read_text()
    # Computed, not recorded: 8 * CuckooFilter(10**6, 0.01).nbytes / 10**6.
    assert "| `CuckooFilter` | 9.1 / 12.5 | yes |" in text
    assert main(["--root", str(checkout)]) == 0
    assert (checkout / "README.md").read_text() == text


def test_failed_section_keeps_its_record_and_the_others(checkout, monkeypatch, capsys):
    kept = (checkout / records.FIGURES_FOLDER / "filters.json").read_bytes()
    monkeypatch.setitem(records.SECTIONS, "filters", records.Section(("no-such-section",)))
    small = ("filters", "--keys", "500", "--queries", "500", "--rounds", "1")
    monkeypatch.setitem(records.SECTIONS, "designs", records.Section(small, made_keys=True))
    assert main(["--root", str(checkout), "filters", "designs"]) == 1
    assert "failed: filters" in capsys.readouterr().out
    assert (checkout / records.FIGURES_FOLDER / "filters.json").read_bytes() == kept
    recorded = json.loads((checkout / records.FIGURES_FOLDER / "designs.json").read_text())
    assert recorded["keys"] == 500
    assert recorded["command"] == "dlbf bench filters --keys 500 --queries 500 --rounds 1"


def test_record_may_bring_its_own_table(checkout):
    own = {"command": "dlbf bench x", "tables": {"mine": {"headings": ["a", "b"], "rows": [["x", "1"], ["y|z", "2"]]}}}
    (checkout / records.FIGURES_FOLDER / "x.json").write_text(json.dumps(own))
    assert pages.render("mine", checkout) == "| a | b |\n|---|---:|\n| x | 1 |\n| y/z | 2 |\n"


def test_figure_in_running_text_is_replaced(checkout):
    own = {"command": "dlbf bench x", "rows": [{"bits": 5.6612}]}
    (checkout / records.FIGURES_FOLDER / "x.json").write_text(json.dumps(own))
    text = "It takes <!-- figure: x/rows/0/bits:.2f -->9<!-- end --> bits."
    assert "-->5.66<!--" in pages.rewrite(text, checkout)


def test_derived_figures_are_those_of_the_records(checkout):
    path = checkout / records.FIGURES_FOLDER / "attacks.json"
    found = json.loads(path.read_text())
    keyed = [row for row in found["attacks"] if row["keyed"] and row["adversarial_fpr_planned"] <= 0.5]
    keyed[0]["hash collision"]["value"] = 3 * keyed[0]["adversarial_fpr_planned"]
    path.write_text(json.dumps(found))
    assert pages.figure("derived/attacks-over-bound", ".2f", checkout) == "3.00"
    assert pages.figure("derived/bodega-crossover-predicted", ".2%", checkout) == "0.87%"
    with pytest.raises(KeyError):
        pages.figure("derived/no-such-figure", "d", checkout)


def test_table_without_a_record_says_so(checkout):
    (checkout / records.FIGURES_FOLDER / "filters.json").unlink()
    assert 'make tables SECTIONS="filters"' in pages.render("peers", checkout)


def test_unknown_names_say_what_there_is(checkout, capsys):
    with pytest.raises(KeyError, match="which-filter"):
        pages.render("no-such-table", checkout)
    with pytest.raises(FileNotFoundError, match='make tables SECTIONS="nothing"'):
        records.read_record("nothing", checkout)
    with pytest.raises(SystemExit):
        main(["--root", str(checkout), "no-such-section"])
    assert "filters" in capsys.readouterr().err
