"""``dlbf bench replay``: histories, the counting, and what it calls wrong."""

import json
import lzma
import random

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
from click.testing import CliRunner

from dlbf.bench.histories import Change, made_trace, read_trace
from dlbf.bench.replay import Row, replay, worst_stretch
from dlbf.cli import build
from dlbf.datasets import ordinary_urls
from dlbf.storage import Store

ABSENT = list(ordinary_urls(20_000))


def test_made_trace_is_a_history():
    changes, absent = made_trace(60, 3000)
    live, ever, back = set(), set(), 0
    for change in changes:
        assert len(set(change.removed)) == len(change.removed)
        assert len(set(change.added)) == len(change.added)
        assert live.issuperset(change.removed)
        live.difference_update(change.removed)
        assert live.isdisjoint(change.added)
        live.update(change.added)
        back += len(ever.intersection(change.added))
        ever.update(change.added)
    assert back > 500  # keys do come back
    assert ever.isdisjoint(absent)
    assert changes == made_trace(60, 3000)[0]


def test_read_trace_adds_up_the_differences(tmp_path):
    (tmp_path / "urls.malicious.txt").write_text("a\nb\nc\nd\n")
    (tmp_path / "urls.benign.txt").write_text("x\ny\n")
    trace = b"2020-01-01T00:00\tabc\t\t1 1 2\n2020-01-02T00:00\tdef\t2 2\t3\n"
    (tmp_path / "trace.urls.malicious.tsv.xz").write_bytes(lzma.compress(trace))
    changes, absent = read_trace(tmp_path)
    assert changes == [
        Change("2020-01-01T00:00", [], [b"a", b"b", b"d"]),
        Change("2020-01-02T00:00", [b"b", b"d"], [b"c"]),
    ]
    assert sorted(absent) == [b"x", b"y"]


def test_replay_counts_what_happens(tmp_path):
    changes = [
        Change("1", [], [b"a", b"b", b"c"]),
        Change("2", [b"a", b"b"], [b"d"]),
        Change("3", [], [b"a"]),
    ]
    result = replay(tmp_path / "s", changes, ABSENT, n_queries=2000, rebuild=False)
    assert result.ok, result.problems
    figures = result.summary()
    assert (figures.insertions, figures.deletions, figures.reinsertions) == (5, 2, 1)
    assert (figures.most_live_keys, figures.live_keys_at_end, figures.absent_lookups) == (3, 3, 6000)
    assert [row.live for row in result.rows] == [3, 2, 3]


def row(n_unseen, n_passing):
    return Row("", 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, "filtering", "cuckoo", "", 0.0, n_unseen, n_passing)


def test_worst_stretch_is_that_of_batches_in_a_row():
    rows = [row(100, n) for n in (0, 0, 9, 0, 5, 5, 0, 0)]
    assert worst_stretch(rows, 1) == 0.09
    assert worst_stretch(rows, 2) == 0.05
    assert worst_stretch(rows, 3) == pytest.approx(14 / 300)
    assert worst_stretch(rows, 100) == pytest.approx(19 / 800)
    assert worst_stretch([row(0, 0)] * 3, 2) != worst_stretch([row(0, 0)] * 3, 2)  # NaN: nothing was asked
    assert worst_stretch([], 5) != worst_stretch([], 5)


def test_replay_counts_needless_reads_by_cause_and_keeps_keys_unseen(tmp_path, monkeypatch):
    keys = [b"key %d" % i for i in range(6000)]
    changes = [Change("1", [], keys), Change("2", keys[:40], []), Change("3", [], [])]
    asked = set()

    class Watched(Store):
        def get_many(self, keys, default=None):
            asked.update(keys)
            return super().get_many(keys, default)

        def get(self, key, default=None):
            asked.add(key)
            return super().get(key, default)

    monkeypatch.setattr("dlbf.storage.Store", Watched)
    result = replay(tmp_path / "s", changes, ABSENT, n_queries=15_000, design="layers", model="none")
    assert result.ok, result.problems
    assert {each.design for each in result.rows} == {"layers"}
    # A deleted key still passes the base.  The first time it costs a read, unless the commit remembered it.
    first, second, third = result.rows
    # Whose trace another key has taken since counts as an ordinary one.
    assert second.deleted <= second.removed_passing <= 40
    assert second.removed_passing + second.false_positives == second.ordinary + second.deleted + second.repeated
    assert first.ordinary == first.false_positives
    assert first.ordinary > 50  # 15,000 questions at 1 %
    # Keys in turn: the third batch asks for ones that were found out before.
    assert third.remembered > 0
    unseen = set(ABSENT[: len(ABSENT) // 3])
    assert asked.isdisjoint(unseen)
    assert [each.unseen for each in result.rows] == [len(unseen)] * 3
    figures = result.summary()
    assert figures.needless_reads["ordinary"] == sum(each.ordinary for each in result.rows)
    assert figures.needless_reads["remembered"] >= third.remembered
    assert result.bars("layers")[0].found == 0
    assert figures.fpr_unseen == pytest.approx(0.01, abs=0.004)  # 20,000 questions, 200 expected: 5.6 deviations


def test_replay_of_a_filter_that_lets_too_much_pass_misses_its_bar(tmp_path):
    changes = [Change("1", [], [b"key %d" % i for i in range(2000)])]
    result = replay(tmp_path / "s", changes, ABSENT, fpr=0.05, n_queries=100, rebuild=False)
    assert result.bars("cuckoo")[2].met
    result.fpr_target = 0.01
    assert not result.bars("cuckoo")[2].met


class Forgetful(Store):
    """A store that does what a replay must not let pass."""

    fault = ""

    def get_many(self, keys, default=None):
        answers = super().get_many(keys, default)
        if self.fault == "misses" and random.random() < 0.5:
            answers = [None for _ in answers]
        return answers

    def stats(self):
        found = super().stats()
        if self.fault == "rate":
            object.__setattr__(found, "filtered", found.filtered * 98 // 100)
        if self.fault == "pass-through":
            object.__setattr__(found, "state", "pass-through")
        return found


@pytest.mark.parametrize(
    ("fault", "words"),
    [("misses", "were not found"), ("rate", "false positives seen"), ("pass-through", "without its filter")],
)
def test_replay_tells_what_is_wrong(tmp_path, monkeypatch, fault, words):
    random.seed(0)
    monkeypatch.setattr(Forgetful, "fault", fault)
    monkeypatch.setattr("dlbf.storage.Store", Forgetful)
    changes, absent = made_trace(5, 500)
    result = replay(tmp_path / "s", changes, absent, n_queries=2000, rebuild=False)
    assert not result.ok
    assert any(words in problem for problem in result.problems)


def test_replay_of_a_store_with_other_keys_is_told_at_the_end(tmp_path, monkeypatch):
    class Leaking(Store):
        def items(self, *arguments, **more):
            return (item for item in super().items(*arguments, **more) if item[0] != b"a")

    monkeypatch.setattr("dlbf.storage.Store", Leaking)
    result = replay(tmp_path / "s", [Change("1", [], [b"a", b"b"])], ABSENT, n_queries=10, rebuild=False)
    assert result.problems == ["at the end: the keys of the store are not those of the list"]


def test_bench_replay_rebuilds_a_made_history_and_draws_it(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    monkeypatch.delenv("DLBF_DATA", raising=False)
    picture = tmp_path / "replay.png"
    arguments = ["bench", "replay", "--batches", "12", "--keys", "20000", "--model", "ngram", "--plot", str(picture)]
    done = CliRunner().invoke(build(), [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)["designs"]["auto"]
    assert figures["ok"]
    assert figures["missed_keys"] == 0
    assert figures["batches_above_bar"] == 0
    assert figures["rebuilds"] >= 1
    assert len(figures["rows"]) == 12
    assert sum(figures["batches_by_design"].values()) == 12
    assert {row["design"] for row in figures["rows"]} == figures["batches_by_design"].keys()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bench_replay_of_two_designs_has_a_line_for_each(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("DLBF_DATA", raising=False)
    picture = tmp_path / "replay.svg"
    arguments = ["bench", "replay", "--batches", "8", "--keys", "2000", "--design", "cuckoo", "--design", "auto"]
    done = CliRunner().invoke(build(), [*arguments, "--no-rebuild", "--plot", str(picture), "--json"])
    assert done.exit_code == 0, done.output
    designs = json.loads(done.stdout)["designs"]
    assert list(designs) == ["cuckoo", "auto"]
    assert designs["auto"]["insertions"] == designs["cuckoo"]["insertions"] > 0
    drawn = picture.read_text()
    # matplotlib draws text as shapes, and says in a comment what they are.
    for label in ("cuckoo", "auto", "auto: 0 rebuilds", "answered by: cuckoo"):
        assert f"<!-- {label} -->" in drawn


def test_bench_replay_of_two_models_has_a_store_for_each(monkeypatch):
    monkeypatch.delenv("DLBF_DATA", raising=False)
    arguments = ["bench", "replay", "--batches", "4", "--keys", "1000", "--design", "layers", "--design", "tables"]
    done = CliRunner().invoke(build(), [*arguments, "--model", "ngram", "--model", "none", "--no-rebuild", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    names = ["layers, ngram", "tables, ngram", "layers, no model", "tables, no model"]
    assert list(told["designs"]) == names
    assert [bar["store"] for bar in told["bars"]] == [name for name in names for _ in range(3)]


def test_bench_replay_prints_a_summary(monkeypatch):
    monkeypatch.delenv("DLBF_DATA", raising=False)
    done = CliRunner().invoke(build(), ["bench", "replay", "--batches", "5", "--keys", "500", "--no-rebuild"])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "ok"
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.slow
@pytest.mark.data
def test_the_real_history_is_replayed_without_a_missed_key(data_dir):
    done = CliRunner().invoke(build(), ["bench", "replay", "--data", str(data_dir), "--json"])
    figures = json.loads(done.stdout)["designs"]["auto"]
    assert done.exit_code == 0, figures["problems"][:5]
    assert (figures["batches"], figures["insertions"], figures["deletions"]) == (1917, 1_195_127, 1_176_868)
    assert figures["reinsertions"] == 451_651
    assert figures["missed_keys"] == 0
    assert figures["fpr_worst_batch"] <= 1.5 * figures["fpr_target"]
