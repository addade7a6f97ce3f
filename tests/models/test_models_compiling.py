"""Estimators that are hard to turn into integers, and those that cannot be."""

import random
import warnings

import numpy as np
import pytest

from dlbf import models
from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.models import Features, compile

N = 2000
KEYS, NEGATIVES = list(listed_urls(N)), list(ordinary_urls(N))
LABELS = np.repeat([1, 0], N)


def fitted(estimator, view="lexical", labels=LABELS):
    features = Features("ngram", 1024) if view == "ngram" else Features(view)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(features.transform(KEYS + NEGATIVES), labels), features


def number_sets():
    rng = random.Random(1)

    def big(start, width):
        return [(start + rng.randrange(width)).to_bytes(8, "big") for _ in range(N)]

    yield big(17 * 10**11, 10**9), [rng.randbytes(8) for _ in range(N)]
    yield big(17 * 10**11, 10**9), big(169 * 10**10, 10**9)
    yield big(10**9, 10**6), big(10**9 - 10**7, 2 * 10**7)
    yield (
        [str(10**9 + rng.randrange(10**6)) for _ in range(N)],
        [str(10**9 + rng.randrange(-(10**8), 10**8)) for _ in range(N)],
    )


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("smoothing", [1e-9, 1e-6])
def test_naive_bayes_of_narrow_values_keeps_its_divergence(number, smoothing):
    from sklearn.naive_bayes import GaussianNB

    keys, negatives = list(number_sets())[number]
    view = Features("numeric")
    estimator = GaussianNB(var_smoothing=smoothing).fit(view.transform(keys + negatives), LABELS)
    report = compile(estimator, view, keys=keys, negatives=negatives).report
    assert report["kl_integer"] > 0.85 * report["kl_float"] > 0.85
    trained = models.train(keys, negatives, kind="naive-bayes", progress=False)
    assert trained.report["kl_integer"] > 0.85 * trained.report["kl_float"]


@pytest.mark.parametrize("view", ["lexical", "numeric"])
@pytest.mark.parametrize("factor", [1.0, 1e6, 1e30])
def test_linear_with_large_weights_keeps_its_order(view, factor):
    from sklearn.linear_model import SGDClassifier

    estimator, features = fitted(SGDClassifier(random_state=0), view)
    estimator.coef_ *= factor
    estimator.intercept_ *= factor
    report = compile(estimator, features, keys=KEYS, negatives=NEGATIVES).report
    assert report["kl_integer"] == pytest.approx(report["kl_float"], rel=0.05)


@pytest.mark.parametrize("kind", ["naive-bayes", "auto"])
def test_train_keys_that_are_all_alike_does_not_fail(kind):
    model = models.train([b"a"] * 50, [b"a"] * 50, kind=kind, progress=False)
    assert abs(model.report["kl_integer"]) < 0.1


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("attribute", ["coef_", "intercept_"])
@pytest.mark.parametrize("view", ["ngram", "lexical"])
def test_compile_weights_that_are_not_finite_are_refused(value, attribute, view):
    from sklearn.linear_model import LogisticRegression

    estimator, features = fitted(LogisticRegression(), view)
    getattr(estimator, attribute).flat[0] = value
    with pytest.raises(ValueError, match=f"{attribute} of the estimator has values that are not finite"):
        compile(estimator, features)


def test_compile_sparse_weights_are_those_of_dense_ones():
    from sklearn.linear_model import SGDClassifier

    estimator, features = fitted(SGDClassifier(random_state=0), "ngram")
    assert compile(estimator, features) == compile(estimator.sparsify(), features)


def test_compile_booster_that_starts_from_an_estimator_is_refused():
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.naive_bayes import GaussianNB

    estimator, features = fitted(GradientBoostingClassifier(n_estimators=2, init=GaussianNB()))
    with pytest.raises(TypeError, match="starts from a GaussianNB"):
        compile(estimator, features)


@pytest.mark.parametrize("loss", ["log_loss", "exponential"])
def test_compile_booster_has_the_scores_it_had(loss):
    from sklearn.ensemble import GradientBoostingClassifier

    estimator, features = fitted(
        GradientBoostingClassifier(n_estimators=3, loss=loss), labels=np.arange(2 * N) < N // 2
    )
    model = compile(estimator, features)
    wanted = estimator.decision_function(features.transform(KEYS + NEGATIVES))
    assert np.allclose(model.score_many(KEYS + NEGATIVES) / model.scale, wanted, atol=0.002)


def test_compile_categorical_values_are_refused_whether_split_on_or_not():
    from sklearn.ensemble import HistGradientBoostingClassifier

    estimator, features = fitted(HistGradientBoostingClassifier(max_iter=3, categorical_features=[20, 21]))
    with pytest.raises(TypeError, match="fit without categorical_features"):
        compile(estimator, features)


def test_compile_two_labels_for_each_key_are_refused():
    from sklearn.tree import DecisionTreeClassifier

    estimator, features = fitted(DecisionTreeClassifier(max_depth=2), labels=np.c_[LABELS, LABELS])
    with pytest.raises(ValueError, match="expected one label for each key, found 2"):
        compile(estimator, features)


@pytest.mark.parametrize("features", [None, "ngram", "lexical", "numeric"])
def test_compile_unfitted_estimator_is_called_unfitted(features):
    from sklearn.linear_model import LogisticRegression

    with pytest.raises(ValueError, match="is not fitted"):
        compile(LogisticRegression(), features)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "forest"}, "kind must be one of ngram"),
        ({"weight_bits": 3}, "weight_bits must be 4 or 8"),
        ({"clip_sigmas": 0}, "clip_sigmas must be above 0"),
    ],
)
def test_compile_impossible_arguments_say_so(arguments, words):
    from sklearn.linear_model import SGDClassifier

    estimator, features = fitted(SGDClassifier(), "ngram")
    with pytest.raises(ValueError, match=words):
        compile(estimator, features, **arguments)


def test_compile_older_adaboost_sums_log_odds():
    from sklearn.ensemble import AdaBoostClassifier
    from sklearn.tree import DecisionTreeClassifier

    estimator, features = fitted(AdaBoostClassifier(DecisionTreeClassifier(max_depth=2), n_estimators=5))
    matrix = features.transform(KEYS + NEGATIVES)
    votes = compile(estimator, features).score_many(KEYS + NEGATIVES)
    assert np.corrcoef(votes, estimator.decision_function(matrix))[0, 1] > 0.9999
    estimator.algorithm = "SAMME.R"  # before scikit-learn 1.6
    model = compile(estimator, features)
    shares = [np.clip(tree.predict_proba(matrix), np.finfo(float).eps, None) for tree in estimator.estimators_]
    wanted = sum(np.log(share[:, 1] / share[:, 0]) for share in shares)
    assert np.allclose(model.score_many(KEYS + NEGATIVES) / model.scale, wanted, atol=0.02)
