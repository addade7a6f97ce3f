"""``dlbf bench layers``: its parts, what it judges, and that it calls a denied key wrong."""

import json

import pytest
from click.testing import CliRunner
from support.learned_common import small_model

from dlbf.bench import layers
from dlbf.bench.layers import Grown, LayerFigures, Life, SizeRow, Times, bars, measure
from dlbf.cli import build
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.storage.sharing import CAN_SHARE

pytest.importorskip("sklearn")

N_KEYS = 12_000
KEYS = list(listed_urls(N_KEYS))
ABSENT = list(ordinary_urls(18_000))


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    return measure(
        KEYS,
        ABSENT[:12_000],
        ABSENT[12_000:],
        tmp_path_factory.mktemp("stores"),
        model=small_model(),
        shared_keys=400_000,
    )


def test_sizes_are_those_of_what_was_asked_for(figures):
    learned = {row.name: row for row in figures.sizes if row.model_bytes}
    assert [row.name for row in figures.sizes] == [wanted.name for wanted in layers.WANTED]
    capped, half, free = (
        learned[f"0.01, {what}"].bits_per_key for what in ("worst case 0.1", "worst case 0.5", "no worst case")
    )
    assert free <= half < capped < figures.sizes[5].bits_per_key < figures.sizes[6].bits_per_key
    # 6,000 absent keys at 1 %: 60 pass, sd 7.7; five of those.
    assert all(row.measured_fpr < row.fpr + 5 * (row.fpr / 6000) ** 0.5 for row in figures.sizes)
    assert figures.missed_keys == 0


def test_life_grows_by_what_was_added_and_remembered(figures):
    life = figures.life
    assert life.first_bits < life.mean_bits
    assert life.generations in (0, 1)


def test_growing_is_judged_from_10_000_keys_on(figures):
    assert figures.growing.keys == N_KEYS
    assert 10_000 < figures.growing.most_bits_at <= N_KEYS
    assert 6 < figures.growing.mean_bits <= figures.growing.most_bits


@pytest.mark.skipif(not CAN_SHARE, reason="needs Linux: anonymous files with seals, /proc")
def test_processes_share_all_but_a_little(figures):
    assert figures.sharing.processes == layers.PROCESSES
    # Who does not get the list in time has a copy of its own, which a busy machine may bring about.
    if figures.sharing.sharing == layers.PROCESSES:
        # 340 KB of filter, and some 40 pages of small objects, which vary; with a base of its own it is above 1.4.
        assert figures.sharing.share < 0.75
    assert figures.sharing.sharing >= 2


def test_times_are_of_both_kinds(figures):
    assert len(figures.times) == 4
    assert all(times.layers_ns > 0 and times.tables_ns > 0 for times in figures.times)


def test_bars_say_what_is_missed():
    figures = LayerFigures(
        10,
        10,
        [SizeRow("a", 0.01, 3.8, 3.7, 0.0104, 0, "ngram", 256, 1.0)],
        Life(4.7, 3.8, 5.0, 0.02, 1, 1),
        Grown(10, 9.4, 10, 8.0, 2),
        [Times("b", 106.0, 100.0, 3)],
    )
    assert [(bar.found, bar.met) for bar in bars(figures)] == [
        (3.8, False), (pytest.approx(1.04), True), (4.7, False), (2.0, False), (9.4, True), (1.06, False), (3, False),
    ]  # fmt: skip
    assert [bar.met for bar in bars(LayerFigures(10, 10))] == [True]
    assert bars(figures)[0].to_dict()["met"] is False


def test_command_prints_figures_and_bars(monkeypatch):
    arguments = ["bench", "layers", "--keys", "10000", "--negatives", "6000", "--only", "growing"]
    monkeypatch.delenv("DLBF_DATA", raising=False)
    done = CliRunner().invoke(build(), arguments)
    assert done.exit_code == 0, done.output
    assert "keys missed: 0" in done.output
    found = json.loads(CliRunner().invoke(build(), [*arguments, "--json"]).stdout)
    assert found["growing"]["missed_keys"] == 0
    assert {"machine", "data", "bars"} <= set(found)


def test_denied_key_ends_with_1(monkeypatch):
    monkeypatch.delenv("DLBF_DATA", raising=False)
    monkeypatch.setattr(layers, "_missed", lambda store, keys: 3)
    done = CliRunner().invoke(
        build(), ["bench", "layers", "--keys", "10000", "--negatives", "6000", "--only", "growing"]
    )
    assert done.exit_code == 1
    assert "3 stored keys were denied" in done.output
