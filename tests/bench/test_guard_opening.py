"""The section of ``dlbf bench guard`` about opening."""

import json

from click.testing import CliRunner

from dlbf.bench.guard_opening import Numbered, Opening, opening
from dlbf.cli import build


def test_numbered_engine_has_the_keys_that_it_scans():
    engine = Numbered(30)
    keys = list(engine.scan(b""))
    assert keys == sorted(keys)
    assert len(keys) == engine.count() == 30
    assert all(engine.get(key) for key in keys)
    assert list(engine.scan(keys[7])) == keys[7:]
    assert [engine.get(key) for key in (b"key 000000000030", b"key 00", b"", b"key 00000000000x")] == [None] * 4


def test_opening_tells_time_and_memory_of_another_process(tmp_path):
    found = opening(20_000, 2, tmp_path)
    assert found.keys == 20_000
    assert found.filter_bytes > 20_000 / 2
    assert found.first_answer_ms > 0
    assert not list(tmp_path.iterdir())


def test_bars_of_opening():
    assert Opening(10, 1000, 20.0, 150).met
    assert Opening(10, 1000, 1.0, None).met
    assert not Opening(10, 1000, 20.1, 0).met
    assert not Opening(10, 1000, 1.0, 151).met


def test_bench_guard_opening_prints_and_gives_json(tmp_path):
    arguments = ["bench", "guard", "--only", "opening", "--opened-keys", "2000", "--rounds", "1"]
    shown = CliRunner().invoke(build(), [*arguments, "--folder", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "first answer" in shown.output
    figures = json.loads(CliRunner().invoke(build(), [*arguments, "--json"]).stdout)
    assert figures["opening"]["keys"] == 2000
    assert set(figures) == {"machine", "opening"}
