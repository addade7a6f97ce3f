"""The example of docs/fleet.md runs as it is printed."""

import re

import pytest
from support.places import ROOT

pytest.importorskip("redis")

from support.valkey import Server

PAGE = (ROOT / "docs" / "fleet.md").read_text()


def test_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with Server() as server:
        for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(snippet.replace("6379", str(server.port)), {})
    assert capsys.readouterr().out == "b'1815' None filtering\n"
