"""The page about published filters: its code and its commands run as they stand."""

import re
import shlex

import pytest
from support.places import ROOT

PAGE = (ROOT / "docs" / "distribution.md").read_text()


def test_examples_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(snippet, "distribution.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == "True False filtering\n"
    pytest.importorskip("click")
    pytest.importorskip("rich")
    from click.testing import CliRunner

    from dlbf.cli import build

    lines = re.findall(r"^\$ dlbf (.*)$", PAGE, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        done = CliRunner().invoke(build(), shlex.split(line))
        assert done.exit_code == 0, done.output
