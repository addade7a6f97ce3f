"""``dlbf demo``, small, in a process of its own (it kills one, too)."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("sklearn")
from click.testing import CliRunner

from dlbf.cli import build
from dlbf.storage import Store


def test_demo_does_the_whole_job_and_keeps_the_store(tmp_path):
    arguments = ["demo", "--keys", "3000", "--json", "--keep", tmp_path / "store"]
    done = subprocess.run(
        [sys.executable, "-m", "dlbf", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["ok"]
    assert figures["lost_keys"] == figures["half_written_seen"] == 0
    assert figures["deleted"]["keys"] == 300
    assert figures["rebuild"]["negatives"] > 0
    bits = {row["name"]: row["bits_per_key"] for row in figures["rows"]}
    assert bits["nothing (py-lmdb)"] == 0
    assert bits["Store, learned"] < bits["counting Bloom, 4 bits"]
    with Store(tmp_path / "store", readonly=True) as store:
        assert len(store) == 2701
        assert store.verify().ok


def test_demo_fits_a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(build(), ["demo", "--keys", "1000"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for step in ("1 fill", "2 serve", "3 learn", "4 compare", "5 delete", "6 crash", "7 recover", "8 verify"):
        assert any(line.startswith(step) for line in lines)


def test_demo_refuses_to_overwrite_what_is_there(tmp_path):
    done = CliRunner().invoke(build(), ["demo", "--keep", str(tmp_path)])
    assert done.exit_code == 1
    assert "something there already" in done.output
