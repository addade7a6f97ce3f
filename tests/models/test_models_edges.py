"""Training asked for what it cannot do, and with what the caller brings."""

import random
import struct
import sys

import pytest

from dlbf import models
from dlbf.datasets import listed_urls, ordinary_urls

KEYS, NEGATIVES = list(listed_urls(400)), list(ordinary_urls(1200))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_bytes": 1 << 26}, "max_bytes must be 16 to 8388608 for a table"),
        ({"max_bytes": 3}, "max_bytes must be a whole number of at least 16"),
        ({"max_bytes": 1024.5}, "max_bytes must be a whole number"),
        ({"weight_bits": 5}, "weight_bits must be 4 or 8"),
        ({"validation": 1.5}, "validation must be a share between 0 and 1"),
        ({"validation": [b"one"]}, "validation needs at least 2 negatives"),
    ],
)
def test_train_with_impossible_arguments_says_so(arguments, words):
    with pytest.raises(ValueError, match=words):
        models.train(KEYS, NEGATIVES, progress=False, **arguments)


def test_train_without_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install 'dlbf\[train\]'"):
        models.train(KEYS, NEGATIVES, progress=False)


def test_train_with_an_estimator_of_the_callers_compiles_it():
    from sklearn.linear_model import LogisticRegression
    from sklearn.tree import DecisionTreeClassifier

    for estimator in (LogisticRegression(C=0.1), DecisionTreeClassifier(max_depth=4, random_state=0)):
        kind = "trees" if isinstance(estimator, DecisionTreeClassifier) else "ngram"
        model = models.train(KEYS, NEGATIVES, kind=kind, estimator=estimator, progress=False)
        scores = model.score_many(KEYS).mean() - model.score_many(NEGATIVES).mean()
        assert scores > 0


def test_train_takes_packed_keys_shows_progress_and_samples_long_lists(capsys):
    model = models.train(KEYS, NEGATIVES, max_bytes=64, epochs=2, max_rows=300, progress=True)
    assert model.nbytes <= 64
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["naive-bayes", "trees"])
def test_the_entropy_is_asked_for_only_where_it_tells(kind):
    def asks(model):
        n = model.params[7]
        if kind == "trees":
            return 27 in bytes(model.payload[4 * n :])[4::6]
        return any(struct.unpack_from("<H", model.payload, 12 * i) == (27,) for i in range(n))

    plain = models.train(list(listed_urls(3000)), list(ordinary_urls(6000)), kind=kind, max_bytes=1024, progress=False)
    assert plain.nbytes > 100
    assert not asks(plain)
    # The estimator itself agrees with what was compiled of it, whatever the column holds.
    assert plain.report["kl_float"] == pytest.approx(plain.report["kl_integer"], rel=0.02)
    # Keys and negatives of the same lengths and classes of characters: the entropy alone tells them apart.  And so it
    # does where nothing else differs between any two of them.
    rng = random.Random(1)
    for most in (3, 1):
        even = ["".join(rng.sample("bcdf" * 8, 32)) + "/" * rng.randrange(most) for _ in range(800)]
        uneven = ["".join(rng.sample("b" * 26 + "cdf" * 2, 32)) + "/" * rng.randrange(most) for _ in range(800)]
        assert asks(models.train(uneven, even, kind=kind, max_bytes=1024, progress=False))


def test_auto_small_limit_keeps_the_best_that_was_screened():
    for max_bytes in (32, 64, 256, 300, 512):
        model = models.train(KEYS, NEGATIVES, kind="auto", max_bytes=max_bytes, progress=False)
        assert 0 < model.nbytes <= max_bytes
        assert model.report["total_bits_per_key"] < 0.9 * model.report["plain_bits_per_key"]


def test_auto_tries_small_trees():
    found = models.train(KEYS, NEGATIVES, kind="auto", progress=False).report["candidates"]
    assert any(candidate["kind"] == "trees" and candidate["nbytes"] <= 256 for candidate in found)


def test_auto_larger_limit_than_any_table_is_no_error():
    model = models.train(KEYS[:100], NEGATIVES[:200], kind="auto", max_bytes=1 << 25, progress=False)
    assert model.nbytes < 1 << 20


@pytest.mark.parametrize(("kind", "max_bytes"), [("naive-bayes", 100), ("trees", 20)])
def test_train_model_that_does_not_fit_says_so(kind, max_bytes):
    with pytest.raises(ValueError, match=f"max_bytes is {max_bytes}"):
        models.train(KEYS, NEGATIVES, kind=kind, max_bytes=max_bytes, progress=False)


def test_train_with_an_estimator_keeps_to_the_size():
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    def train(estimator, **more):
        return models.train(KEYS, NEGATIVES, estimator=estimator, max_bytes=512, progress=False, **more)

    assert train(LogisticRegression()).form == "int8 table"
    assert train(LogisticRegression()).nbytes == train(LogisticRegression(), weight_bits=4).nbytes == 512
    assert train(LogisticRegression(), weight_bits=4).form == "int4 table"
    with pytest.raises(ValueError, match="max_bytes is 512"):
        train(RandomForestClassifier(20, random_state=0), kind="trees")
    with pytest.raises(TypeError, match="a RandomForestClassifier over the ngram view cannot be compiled"):
        train(RandomForestClassifier(20))
    with pytest.raises(TypeError, match="supported are"):
        train(object())
    with pytest.raises(ValueError, match="auto chooses the estimator"):
        train(LogisticRegression(), kind="auto")


@pytest.mark.parametrize(("kind", "view"), [("ngram", "lexical"), ("trees", "ngram"), ("naive-bayes", "ngram")])
def test_train_view_that_does_not_fit_the_kind_is_refused(kind, view):
    with pytest.raises(ValueError, match=f"kind '{kind}' is not fitted on the {view} view"):
        models.train(KEYS, NEGATIVES, kind=kind, features=view, progress=False)
    with pytest.raises(ValueError, match="auto chooses the view"):
        models.train(KEYS, NEGATIVES, kind="auto", features=view, progress=False)


@pytest.mark.parametrize("kind", ["ngram", "trees", "naive-bayes", "svm", "auto"])
def test_train_every_kind_shows_progress(kind):
    calls = []
    models.train(KEYS, NEGATIVES, kind=kind, progress=lambda stage, share: calls.append((stage, share)))
    assert calls[-1][1] == 1.0
