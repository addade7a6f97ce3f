"""``dlbf bench learned --peers``: the published learned filters beside ours."""

import builtins
import json
from dataclasses import replace

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("sklearn")
from click.testing import CliRunner

from dlbf import models
from dlbf.bench import learned_foreign, learned_peers
from dlbf.bench.data import random_split
from dlbf.bench.learned_peers import CLBF_MEMORY, CLBF_TIMES, PeerFigures, PeerRow, bars, measure
from dlbf.cli import build
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.theory import DESIGNS

SPLIT = random_split(list(listed_urls(2000)), list(ordinary_urls(24_000)))


def row(name, **figures):
    return PeerRow(name, "dlbf", 0.01, False, (), **figures)


@pytest.fixture(scope="module")
def model():
    return models.train(
        SPLIT.learnt_keys, SPLIT.learnt_negatives, kind="ngram", max_bytes=1024, validation=SPLIT.negatives,
        progress=False,
    )  # fmt: skip


@pytest.fixture
def trained(monkeypatch, model):
    """What a model would have learnt from, call by call; the one that comes back is there already."""
    calls = []

    def train(keys, negatives, **options):
        calls.append({*negatives, *options["validation"]})
        return model

    monkeypatch.setattr(models, "train", train)
    return calls


def test_measure_has_a_row_for_every_filter_and_measures_on_unseen_keys(monkeypatch, model, trained):
    monkeypatch.setattr(learned_peers, "FOREIGN", {})
    few = [entry for entry in learned_peers.ENTRIES if entry.name in ("static", "auto", "plbf")]
    monkeypatch.setattr(learned_peers, "ENTRIES", few)
    figures = measure(SPLIT, [0.02], rounds=1)
    assert [one.name for one in figures.rows] == ["static", "auto", "plbf"]
    assert trained[0].isdisjoint(SPLIT.unseen)
    assert figures.unseen == len(SPLIT.unseen) == 4000
    assert figures.lost_keys == 0
    for one in figures.rows:
        assert one.error is None
        assert one.deletable == (one.name == "auto")
        # At most 80 of 4,000 are promised; 5 deviations of 9 above.
        assert one.fpr <= 125 / 4000
        assert one.over_target == pytest.approx(one.fpr / 0.02)
        assert one.query_ns > 0 < one.batch_ns
    plbf = figures.rows[-1]
    assert plbf.bits_per_key > 8 * model.nbytes / 2000  # the model is counted


def test_every_published_design_is_one_of_ours():
    designs = {entry.design for entry in learned_peers.ENTRIES if entry.published}
    assert {"lbf", "slbf", "plbf", "ada-bf"} <= designs <= set(DESIGNS)
    for entry in learned_peers.ENTRIES:
        assert DESIGNS[entry.design].deletable == ("remove" not in entry.cannot)
        assert (entry.worst == 1) == (learned_peers.UNBOUNDED in entry.cannot)


def test_a_filter_that_cannot_be_had_says_why(monkeypatch, trained):
    monkeypatch.setattr(learned_peers, "FOREIGN", {})
    monkeypatch.setattr(learned_peers, "ENTRIES", [learned_peers.Entry("counting", "nothing of that name", 1.0)])
    figures = measure(SPLIT, [0.02], rounds=1)
    assert "nothing of that name" in figures.rows[0].error
    assert figures.rows[0].bits_per_key is None
    assert bars(figures) == []


def test_foreign_filters_store_our_keys_and_score_with_our_model(model):
    pytest.importorskip("learnedbf")
    peer = learned_foreign.Foreign("LBF", model, SPLIT.keys, SPLIT.negatives, SPLIT.unseen, 0.02, 0)
    assert peer.contains_many(SPLIT.keys).all()
    # 80 of 4,000 expected; nothing of it knows these keys, and 250 would be 19 deviations more.
    assert 0 < peer.contains_many(SPLIT.unseen).sum() < 250
    assert peer.size_in_bits > 8 * model.nbytes
    peer.ask(SPLIT.unseen[:3])


def test_a_missing_package_is_named_with_what_to_do(monkeypatch, trained):
    real = builtins.__import__

    def without(name, *arguments, **more):
        if name == "learnedbf":
            raise ImportError("No module named 'learnedbf'")
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(learned_peers, "ENTRIES", ())
    figures = measure(SPLIT, [0.02], rounds=1)
    assert [one.name for one in figures.rows] == list(learned_foreign.FOREIGN)
    assert all("learnedbf did not run" in one.error and "dlbf[bench]" in one.error for one in figures.rows)


def test_what_a_peer_raises_is_its_result(monkeypatch, trained):
    monkeypatch.setattr(learned_peers, "version", lambda: "1.0")

    def broken(*arguments):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(learned_peers, "Foreign", broken)
    monkeypatch.setattr(learned_peers, "ENTRIES", ())
    monkeypatch.setattr(learned_peers, "FOREIGN", {"PLBF": True})
    (found,) = measure(SPLIT, [0.02], rounds=1).rows
    assert found.error == "did not run: ZeroDivisionError: broken"


def test_clbf_is_a_bar_beside_both_plbf():
    rows = [
        row("static", bits_per_key=3.0, query_ns=100.0),
        row("plbf", bits_per_key=4.0, query_ns=120.0),
        row("FastPLBF", bits_per_key=3.5, query_ns=20_000.0),
    ]
    judged = bars(PeerFigures(1, 1, 1, {}, rows))
    assert [bar.found for bar in judged] == pytest.approx([3 / 4, 100 / 120, 3 / 3.5, 100 / 20_000])
    assert [bar.at_most for bar in judged] == [CLBF_MEMORY, 1 / CLBF_TIMES] * 2
    assert [bar.met for bar in judged] == [True, False, False, True]
    assert len(bars(PeerFigures(1, 1, 1, {}, [rows[0], rows[1], replace(rows[2], error="did not run")]))) == 2


def test_command_prints_tables_or_json(monkeypatch):
    monkeypatch.delenv("DLBF_DATA", raising=False)
    monkeypatch.setattr(learned_peers, "FOREIGN", {})
    monkeypatch.setattr(learned_peers, "ENTRIES", [e for e in learned_peers.ENTRIES if e.name in ("static", "plbf")])
    options = "--keys 2000 --target 0.05 --rounds 1 --model trees"
    arguments = ["bench", "learned", "--peers", *options.split()]
    done = CliRunner().invoke(build(), [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [one["name"] for one in told["rows"]] == ["static", "plbf"]
    assert told["rows"][0]["over_planned"] is not None
    assert [bar["store"] for bar in told["bars"]] == ["CLBF", "CLBF"]
    done = CliRunner().invoke(build(), arguments)
    assert done.exit_code == 0, done.output
    assert "plbf" in done.stdout
    assert "time to reject" in done.stdout


def test_a_denied_key_is_exit_code_1(monkeypatch):
    monkeypatch.delenv("DLBF_DATA", raising=False)
    figures = PeerFigures(1, 1, 1, {"0.01": {"model": "none"}}, [row("static", build_seconds=1.0, lost_keys=3)])
    monkeypatch.setattr(learned_peers, "measure", lambda *arguments, **options: figures)
    done = CliRunner().invoke(build(), ["bench", "learned", "--peers", "--keys", "1000"])
    assert done.exit_code == 1
    assert "3 stored keys were denied" in done.stderr


def test_peers_stand_alone():
    done = CliRunner().invoke(build(), ["bench", "learned", "--peers", "--only", "fit"])
    assert done.exit_code == 2
    assert "leave out --only" in done.stderr
