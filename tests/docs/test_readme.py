"""The examples of README and documentation run as they stand."""

import re
import tomllib

import pytest
from support import guard_engines
from support.places import ROOT

FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")
CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`]*`", re.DOTALL | re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Packages of extras that an example may need; without them it is skipped.
OPTIONAL = ("rocksdict", "plyvel", "redis", "valkey", "sklearn", "matplotlib", "pyarrow")


def examples(page):
    # A setup.py is shown, not run: test_capi.py builds what it describes.
    return [code for code in FENCE.findall(page.read_text()) if not code.startswith("# setup.py")]


def run(code, where, namespace):
    for name in OPTIONAL:
        if re.search(rf"^\s*(?:import|from) {name}\b", code, re.MULTILINE):
            pytest.importorskip(name)
    if "6379" not in code:
        exec(compile(code, where, "exec"), namespace)
        return
    with guard_engines.running("redis") as folder:
        exec(compile(code.replace("6379", (folder / "port").read_text()), where, "exec"), namespace)


def test_readme_has_examples():
    assert len(examples(PAGES[0])) >= 3


@pytest.mark.parametrize("number", range(len(examples(PAGES[0]))))
def test_readme_example_runs(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(examples(PAGES[0])[number], f"README example {number}", {})


# embedding.md and fleet.md need servers; test_guard_docs.py and test_fleet_docs.py start them and run their examples.
WITH_SERVERS = ("embedding", "fleet")


@pytest.mark.parametrize("page", [p for p in PAGES[1:] if p.stem not in WITH_SERVERS], ids=lambda page: page.stem)
def test_examples_of_page_run_in_their_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for number, code in enumerate(examples(page)):
        run(code, f"{page.name} example {number}", namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = CODE.sub("", page.read_text())
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not missing


def test_readme_shows_what_is_installed():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    text = PAGES[0].read_text()
    assert "dlbf" in scripts
    assert "make demo" in text
    assert "make test" in text
