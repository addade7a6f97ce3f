"""Training asked for what it cannot do, and with what the caller brings."""

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
