"""``dlbf bench stress``: its questions, its counting, the sizes of its subjects, and what it calls wrong."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dlbf.bench import stress
from dlbf.bench.stress import Settings, StressFigures, StressRow, SwapRound, TargetRow, bars, measure
from dlbf.bench.stress_subjects import STRESSED, FilterSubject, Keys, Shared, Size, train
from dlbf.bench.stress_workloads import WORKLOADS, Cost, circle, count, one_pass, popular_orders, replay, uniform
from dlbf.cli import build
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.errors import FilterFullError

pytest.importorskip("sklearn")

FEW = Settings(questions=4000, target_questions=4000, orders=3, rounds=2)


class Oracle:
    """Answers as a filter does whose false positives are known; with ``remembers`` each of them costs once."""

    def __init__(self, false_positives, remembers=False):
        self.passing, self.remembers = set(false_positives), remembers
        self.asked = []

    def __call__(self, places):
        self.asked.append(places)
        answers = []
        for place in places.tolist():
            answers.append(place in self.passing)
            if self.remembers:
                self.passing.discard(place)
        return np.array(answers, dtype=bool)


# --- counting


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40), st.sets(st.integers(0, 9)))
def test_cost_is_that_of_a_plain_count(questions, found):
    seen, distinct, repeated = set(found), 0, 0
    for place, needless in questions:
        if needless:
            distinct += place not in seen
            repeated += place in seen
            seen.add(place)
    places = np.array([place for place, _ in questions], dtype=np.intp)
    needless = np.array([each for _, each in questions], dtype=bool)
    known = np.array(sorted(found), dtype=np.intp)
    assert count(places, needless, known) == Cost(len(questions), distinct, repeated)


def test_cost_of_no_questions_is_nothing():
    assert Cost(0, 0, 0).per_million == 0
    assert Cost(1000, 1, 2).to_dict() == {"questions": 1000, "distinct": 1, "repeated": 2, "per_million": 3000.0}


# --- questions


def test_one_pass_asks_for_every_key_once():
    oracle = Oracle({3, 5})
    assert one_pass(10, oracle) == Cost(10, 2, 0)
    assert oracle.asked[0].tolist() == list(range(10))


def test_uniform_asks_again_and_the_same_with_the_same_seed():
    oracle = Oracle({0})
    cost = uniform(4, 1000, oracle, seed=1)
    assert cost.distinct == 1
    # A quarter of 1,000: 250, sd 13.7; five of those.
    assert abs(cost.needless - 250) < 69
    assert uniform(4, 1000, Oracle({0}, remembers=True), seed=1) == Cost(1000, 1, 0)
    uniform(4, 1000, again := Oracle({0}), seed=1)
    uniform(4, 1000, other := Oracle({0}), seed=2)
    assert np.array_equal(oracle.asked[0], again.asked[0])
    assert not np.array_equal(oracle.asked[0], other.asked[0])


def test_popular_keys_follow_the_law_in_each_order_another_way():
    orders = list(popular_orders(5, 40_000, 1.5, 6, seed=0))
    shares = np.arange(1, 6) ** -1.5
    shares /= shares.sum()
    for places in orders:
        found = np.sort(np.bincount(places, minlength=5) / len(places))[::-1]
        # Standard deviations are at most sqrt(0.25 / 40,000) = 0.0025; five of those.
        assert np.abs(found - shares).max() < 0.0125
    assert len({np.bincount(places).argmax() for places in orders}) > 1


def test_replay_counts_the_second_half_and_asks_a_tenth_of_it_for_what_was_found():
    oracle = Oracle(range(10))
    cost = replay(1000, 20_000, oracle, seed=0)
    first, second = oracle.asked
    assert (len(first), len(second), cost.questions) == (10_000, 10_000, 10_000)
    assert set(range(10)) <= set(first.tolist())  # each is missed with a chance of 0.999 ** 10,000
    assert cost.distinct == 0
    # A tenth, and a hundredth of the rest: 1,090, sd below 32; five of those.
    assert abs(cost.repeated - 1090) < 160
    assert replay(1000, 20_000, Oracle(range(10), remembers=True), seed=0) == Cost(10_000, 0, 0)
    assert replay(1000, 2000, Oracle(()), seed=0) == Cost(1000, 0, 0)


@pytest.mark.parametrize(("remembers", "repeated"), [(False, 50), (True, 0)])
def test_circle_asks_for_what_was_found(remembers, repeated):
    oracle = Oracle(range(0, 1000, 10), remembers)
    assert circle(1000, 7, 50, oracle) == (7, Cost(50, 0, repeated))
    assert oracle.asked[-1].tolist() == [i % 7 * 10 for i in range(50)]


def test_circle_of_fewer_than_wanted_and_of_none():
    assert circle(100, 1000, 50, Oracle({4, 8})) == (2, Cost(50, 0, 50))
    assert circle(100, 1000, 50, Oracle(())) == (0, Cost(0, 0, 0))


# --- subjects


@pytest.fixture(scope="module")
def keys():
    absent = list(ordinary_urls(20_000))
    return Keys(list(listed_urls(4000)), absent[:10_000], absent[10_000:])


@pytest.fixture(scope="module")
def shared(keys):
    return train(keys, "ngram")


@pytest.mark.parametrize("name", STRESSED)
def test_subject_has_its_size_and_loses_nothing(name, keys, shared, tmp_path):
    subject = STRESSED[name].make(keys, Size(bits_per_key=12.9), shared, tmp_path / "store")
    try:
        # Buckets, cache lines and whole remainder bits leave some of the budget unused.
        assert 12.0 < subject.bits_per_key <= 12.9
        assert subject.lost(keys.stored) == 0
        assert subject.lost(keys.asked[:100]) > 90
        needless = subject.ask(keys.asked, np.arange(len(keys.asked)))
        # Made for at most 0.5 %, of 10,000: 50, sd 7; twice as many are seven of those.
        assert needless.sum() < 100
    finally:
        subject.close()
    assert not (tmp_path / "store").exists()


def test_filter_for_a_rate_has_that_rate(keys, shared, tmp_path):
    subject = STRESSED["CuckooFilter"].make(keys, Size(fpr=0.1), shared, tmp_path / "none")
    assert subject.fpr_target == 0.1
    # 10 % of 10,000: 1,000, sd 30; five of those.
    assert abs(subject.ask(keys.asked, np.arange(10_000)).sum() - 1000) < 150


def test_store_counts_what_its_statistics_count(keys, shared, tmp_path):
    subject = STRESSED["Store"].make(keys, Size(fpr=0.05), shared, tmp_path / "store")
    places = np.resize(np.arange(2000), 5000)
    subject.restart()
    before = subject.store.stats()
    needless = subject.ask(keys.asked, places)
    after = subject.store.stats()
    assert needless.sum() == after.false_positives - before.false_positives > 0
    assert after.unfiltered == before.unfiltered
    with pytest.raises(RuntimeError, match="was found"):
        subject.ask(keys.stored, np.arange(1))
    subject.close()


@pytest.mark.parametrize("name", ["Store", "Store, learned", "CuckooFilter"])
def test_swap_exchanges_keys(name, keys, shared, tmp_path):
    subject = STRESSED[name].make(keys, Size(fpr=0.001), shared, tmp_path / "store")
    gone, come = keys.stored[:800], keys.asked[:800]
    assert subject.swap(gone, come) == 0
    assert subject.upkeep() == "" or name.startswith("Store")
    assert subject.lost(keys.stored[800:] + come) == 0
    if name.startswith("Store"):
        assert subject.lost(gone) == 800
        assert sorted(subject.store) == sorted(keys.stored[800:] + come)
    subject.close()


class Narrow:
    """A set that takes so many keys, and is hurt when keys are removed that it does not hold."""

    def __init__(self, keys, most):
        self.keys, self.most = set(keys), most
        self.nbytes = 100

    def add(self, key):
        if len(self.keys) >= self.most:
            raise FilterFullError("no room")
        self.keys.add(key)

    def remove_many(self, keys):
        for key in keys:
            self.keys.remove(key)

    def contains_many(self, keys):
        return np.array([key in self.keys for key in keys], dtype=bool)


def test_refused_keys_are_counted_and_neither_lost_nor_removed():
    subject = FilterSubject(Narrow([b"a", b"b", b"c"], most=4), 3, 0.01)
    assert subject.swap([b"a"], [b"d", b"e", b"f"]) == 1
    assert subject.lost([b"b", b"c", b"d", b"e", b"f"]) == 0
    assert subject.lost([b"a", b"b"]) == 1
    assert subject.swap([b"b", b"f"], [b"f"]) == 0
    assert subject.filter.keys == {b"c", b"d", b"e", b"f"}
    assert subject.lost([b"c", b"d", b"e", b"f"]) == 0


def test_learned_filter_by_itself_refuses_keys_that_look_absent(keys, shared, tmp_path):
    subject = STRESSED["LearnedFilter"].make(keys, Size(bits_per_key=8.2), shared, tmp_path / "none")
    # They all belong to the region that has the least room.
    assert 0 < subject.swap(keys.stored[:800], keys.asked[:800]) < 800


# --- everything together


def small(*arguments):
    sizes = ("--keys", 2000, "--negatives", 8000, "--questions", 2000, "--target-questions", 2000)
    return ["bench", "stress", *map(str, (*sizes, "--orders", 2, "--rounds", 2, *arguments))]


@pytest.fixture
def made_keys(monkeypatch):
    monkeypatch.delenv("DLBF_DATA", raising=False)


def test_command_measures_every_contender(made_keys):
    done = CliRunner().invoke(build(), small("--bits-per-key", 12.9, "--json"), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert [row["name"] for row in figures["rows"]] == list(STRESSED)
    assert (figures["keys"], figures["asked"], figures["settings"]["orders"]) == (2000, 4000, 2)
    for row in figures["rows"]:
        assert row["error"] is None
        assert row["lost_in_all"] == 0
        assert row["one_pass"]["questions"] == 4000
        assert row["one_pass"]["repeated"] == 0
        assert [cost["questions"] for cost in row["zipf"]] == [2000, 2000]
        assert row["replay"]["questions"] == 1000
        if STRESSED[row["name"]].cannot_swap:
            assert row["churn"] == "cannot remove keys"
        else:
            assert [each["cost"]["questions"] for each in row["churn"]] == [2000, 2000]
    assert [row["name"] for row in figures["targets"]] == [name for name, one in STRESSED.items() if one.at_targets]
    assert {bar["store"] for bar in figures["bars"]} == {"Store, learned"}


def test_command_prints_tables_and_bars(made_keys):
    names = ("--contender", "Store, learned", "--contender", "BloomFilter")
    done = CliRunner().invoke(build(), small(*names, "--only", "replay", "--bits-per-key", 8.2), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "8.2 bits per key" in done.stdout
    assert "12.9 bits per key" not in done.stdout
    assert "made for 1 %" not in done.stdout
    assert "Store, learned: replay, per million" in done.stdout
    assert "CuckooFilter" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--contender", "Stone"), "found Stone"),
        (("--keys", 30_000, "--only", "churn"), "expected at least 6,000 absent keys"),
        (("--only", "nothing"), "one-pass"),
        (("--bits-per-key", 0), "--bits-per-key"),
    ],
)
def test_command_says_what_it_expects(made_keys, arguments, told):
    done = CliRunner().invoke(build(), small(*arguments))
    assert done.exit_code == 2
    assert told in done.stderr


def test_size_that_cannot_be_had_is_said_in_the_row(keys):
    figures = measure(keys, FEW, budgets=[1.0], names=["plbf"], workloads=["one-pass"])
    (row,) = figures.rows
    assert "bits" in row.error
    assert row.one_pass is None


class Denying:
    """A subject that loses a key in the second exchange, and answers everything else well."""

    fpr_target, bits_per_key, swaps = 0.01, 8.0, 0

    def ask(self, absent, places):
        return np.zeros(len(places), dtype=bool)

    def lost(self, keys):
        return int(self.swaps == 2)

    def restart(self):
        pass

    def swap(self, gone, come):
        assert not set(gone) & set(come)
        self.swaps += 1
        return 0

    def upkeep(self):
        return "upkeep" if self.swaps == 1 else ""

    def close(self):
        pass


def test_lost_key_is_told_by_the_exit_code(made_keys, monkeypatch):
    monkeypatch.setitem(STRESSED, "Store", stress.STRESSED["Store"].__class__(lambda *_: Denying()))
    done = CliRunner().invoke(build(), small("--contender", "Store", "--only", "churn", "--bits-per-key", 8.2))
    assert done.exit_code == 1
    assert "1 stored keys were denied" in done.stderr


def test_churn_exchanges_a_fifth_in_every_round(keys, monkeypatch):
    swaps = []

    class Watched(Denying):
        def ask(self, absent, places):
            needless = super().ask(absent, places)
            needless[0] = self.swaps == 1
            return needless

        def swap(self, gone, come):
            swaps.append((set(gone), set(come)))
            return super().swap(gone, come)

    monkeypatch.setitem(STRESSED, "Store", stress.STRESSED["Store"].__class__(lambda *_: Watched()))
    monkeypatch.setattr(stress, "UPKEEP_QUESTIONS", 10)
    settings = Settings(questions=95, rounds=5)
    (row,) = measure(keys, settings, budgets=[8.2], names=["Store"], workloads=["churn"]).rows
    assert [len(each.rebuilt) for each in row.rounds] == [11, 0, 0, 0, 0]  # after the exchange and ten times later
    assert [each.worst_stretch for each in row.rounds] == [1e6 / 9, 0, 0, 0, 0]
    stored, asked = set(keys.stored), set(keys.asked)
    for gone, come in swaps:
        assert len(gone) == len(come) == 800
        assert gone <= stored
        assert come <= asked
        stored = stored - gone | come
        asked = asked - come | gone


def test_bars_are_those_of_learned_stores():
    def cost(per_million):
        return Cost(1_000_000, 0, per_million)

    row = StressRow("Store, learned", 8.2, None, 0.001, 8.0, 8.3)
    row.zipf, row.replay = [cost(10), cost(310), cost(20)], cost(200)
    row.churn = [SwapRound(cost(1100), 1100.0, 0, 0, 8.0, []), SwapRound(cost(1300), 9.0, 2, 1, 8.0, ["churn"])]
    other = StressRow("LearnedFilter", 8.2, None, 0.001, 8.0, 8.0, replay=cost(100_000))
    figures = StressFigures(1, 1, FEW, [row, other], [TargetRow("Store, learned", 0.01, 5, 5, cost(1), 9, cost(2000))])
    found = {bar.what: (round(bar.found, 6), bar.met) for bar in bars(figures)}
    assert found == {
        "bits per key, with all that is remembered": (8.3, False),
        "replay, per million": (200, True),
        "Zipf 1.5, worst order, per million": (310, False),
        "churn, worst round over the target": (1.3, False),
        "churn, keys refused": (2, False),
        "keys lost": (1, False),
        "Zipf 1.0 at 1 %, per million": (1, True),
        "circle at 1 %, per million": (2000, False),
    }
    assert row.zipf_median == 20
    assert math.isclose(row.to_dict()["churn_worst_per_million"], 1300)
    assert figures.lost_keys == 1


def test_model_is_trained_only_for_those_that_learn(keys, monkeypatch):
    monkeypatch.setattr(stress, "train", lambda *_: pytest.fail("nobody here learns"))
    figures = measure(keys, FEW, budgets=[9.0], names=["BloomFilter"], workloads=["one-pass", "targets"])
    assert figures.targets == []
    assert figures.rows[0].one_pass.questions == 10_000
    assert Shared(None, "ngram").model is None
    assert set(WORKLOADS) == {"one-pass", "uniform", "zipf", "replay", "churn", "targets"}
