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
    arguments = ["demo", "--keys", "20000", "--seed", "1", "--json", "--keep", tmp_path / "store"]
    done = subprocess.run(
        [sys.executable, "-m", "dlbf", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["ok"]
    assert figures["lost_keys"] == figures["half_written_seen"] == 0
    assert figures["seed"] == 1
    assert figures["deleted"]["keys"] == 2000
    nothing, counting, before, learned = figures["rows"]
    assert nothing["bits_per_key"] == 0
    assert learned["name"] == "Store, learned"
    assert learned["model_bytes"] > 0
    assert learned["bits_per_key"] < before["bits_per_key"] < counting["bits_per_key"]
    # It learns from one part of a stream and is measured on another.  The counting filter is not keyed, so its figure
    # is always the same; the others are planned for less than the target.
    for row in (counting, before, learned):
        assert row["fpr"] <= 1.05 * figures["fpr_target"], row
    with Store(tmp_path / "store", readonly=True) as store:
        assert len(store) == 18_001
        assert store.verify().ok
        assert store.drift().reasons == ()


def test_demo_fits_a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(build(), ["demo", "--keys", "1000"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    # Whether so little traffic is enough to learn from is a matter of which keys were sampled: if not, it says so, and
    # claims nothing.
    text = " ".join(done.stdout.split())
    assert "too few to learn from" not in text or "learned" not in text
    for step in ("1 fill", "2 serve", "3 learn", "4 compare", "5 delete", "6 crash", "7 recover", "8 verify"):
        assert any(line.startswith(step) for line in lines)


def test_demo_refuses_to_overwrite_what_is_there(tmp_path):
    done = CliRunner().invoke(build(), ["demo", "--keep", str(tmp_path)])
    assert done.exit_code == 2
    assert "something there already" in done.output
