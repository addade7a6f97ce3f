"""Training asked for what it cannot do, and with what the caller brings."""

import random
import struct
import sys

import pytest

from dlbf import models
from dlbf.bench.keys import listed_urls, ordinary_urls

KEYS, NEGATIVES = list(listed_urls(400)), list(ordinary_urls(1200))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_bytes": 1 << 26}, "max_bytes must be 16 to 8388608 for a table"),
        ({"max_bytes": 3}, "max_bytes must be at least 16"),
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
