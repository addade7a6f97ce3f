"""The embedding guide and the examples of guards run as they stand."""

import re
import runpy
import sys

import pytest
from support import guard_engines
from support.places import ROOT

GUIDE = (ROOT / "docs" / "embedding.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def need(text):
    for name in ("rocksdict", "plyvel", "redis"):
        if f"import {name}" in text:
            pytest.importorskip(name)


@pytest.fixture(scope="module")
def redis_port():
    with guard_engines.running("redis") as folder:
        yield (folder / "port").read_text()


def test_guide_has_an_example_for_every_engine():
    for word in ("rocksdict", "plyvel", "sqlite3", "dbm", "lmdb", "redis", "class Files", "(Adapter)"):
        assert any(word in snippet for snippet in SNIPPETS), word


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_guide_example_runs(number, tmp_path, monkeypatch, request):
    text = SNIPPETS[number]
    need(text)
    if "redis" in text:
        text = text.replace("6379", request.getfixturevalue("redis_port"))
    monkeypatch.chdir(tmp_path)
    exec(compile(text, f"embedding.md, example {number}", "exec"), {"__name__": "example"})


def test_own_engine_takes_less_than_thirty_lines():
    (own,) = [text for text in SNIPPETS if "class Files" in text]
    assert 0 < own.split("class Files")[1].split("\nwith ")[0].strip().count("\n") < 30


@pytest.mark.parametrize("name", ["guard_rocksdb", "guard_redis", "guard_own_engine"])
def test_example_runs(name, monkeypatch, capsys, request):
    path = ROOT / "examples" / f"{name}.py"
    need(path.read_text())
    arguments = [request.getfixturevalue("redis_port")] if "redis" in name else []
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
