"""The gradient descent that tables are learnt by, against a plain reference."""

import numpy as np
import pytest

from dlbf.datasets import listed_urls, ordinary_urls
from dlbf.kernels.descent import descend
from dlbf.kernels.features import ngram_rows, pack_keys
from dlbf.models import train

KEYS, ABSENT = list(listed_urls(4000)), list(ordinary_urls(8000))


def reference(data, offsets, rows, labels, order, split, log2_weights, weights, squares, rate):
    """The same steps in double precision, one index at a time."""
    for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
        indices, _ = ngram_rows(data, offsets, np.array([row]), order, split, log2_weights)
        found = [*indices.tolist(), 1 << log2_weights]
        gradient = 1 / (1 + np.exp(-weights[found].sum())) - label
        for index in found:
            squares[index] += gradient**2
            weights[index] -= rate * gradient / np.sqrt(squares[index])


@pytest.mark.parametrize(("order", "log2_weights"), [(2, 6), (3, 12)])
def test_steps_are_those_of_the_reference(order, log2_weights):
    keys = [b"", b"a", b"abc", b"x" * 400, *KEYS[:100], *ABSENT[:100]]
    data, offsets = pack_keys(keys)
    rows = np.random.default_rng(1).permutation(len(keys))
    labels = (rows < 104).astype(np.uint8)
    size = (1 << log2_weights) + 1
    weights, squares = np.zeros(size, np.float32), np.ones(size, np.float32)
    expected, sums = np.zeros(size), np.ones(size)
    for _ in range(2):
        descend(data, offsets, rows, labels, order, 47, log2_weights, weights, squares, 0.1)
        reference(data, offsets, rows, labels, order, 47, log2_weights, expected, sums, 0.1)
    # 400 steps of single precision; a weight's own are at most 0.1 each.
    np.testing.assert_allclose(weights, expected, atol=2e-3)
    np.testing.assert_allclose(squares, sums, rtol=2e-3)
    assert np.abs(expected).max() > 0.1


def test_arrays_that_do_not_fit_are_refused():
    data, offsets = pack_keys([b"a/b"])
    rows, label, good = np.array([0]), np.ones(1, np.uint8), np.ones(17, np.float32)
    for labels, weights, squares, words in (
        (np.ones(2, np.uint8), good, good, "expected 1 labels, found 2"),
        (label, np.ones(16, np.float32), good, "expected 17 weights"),
        (label, good, np.ones(18, np.float32), "expected 17 weights"),
    ):
        with pytest.raises(ValueError, match=words):
            descend(data, offsets, rows, labels, 3, 47, 4, weights, squares, 0.1)
    with pytest.raises(IndexError):
        descend(data, offsets, np.array([1]), label, 3, 47, 4, good.copy(), good.copy(), 0.1)
    descend(data, offsets, rows[:0], label[:0], 3, 47, 4, good, good.copy(), 0.1)
    assert (good == 1).all()


def test_passes_end_when_they_no_longer_help():
    """Ten passes at most; the stages of the report tell how many there were."""
    told = []
    arguments = {"kind": "ngram", "max_bytes": 512, "progress": lambda stage, fraction: told.append(fraction)}
    first = train(KEYS, ABSENT, **arguments)
    assert 2 <= len(told) <= 11
    assert told[-1] == 1.0
    assert first == train(KEYS, ABSENT, **arguments)
    told.clear()
    train(KEYS, ABSENT, epochs=3, **arguments)
    assert told[:3] == pytest.approx([1 / 3, 2 / 3, 1])


def test_estimator_beside_the_model_scores_as_learnt():
    model = train(KEYS, ABSENT, kind="ngram", max_bytes=4096)
    matrix = model.features.transform(KEYS[:500] + ABSENT[:500])
    decision = model.estimator.decision_function(matrix)
    assert (decision[:500] > 0).mean() > 0.8
    assert (model.estimator.predict(matrix)[500:] == 0).mean() > 0.9
    assert np.corrcoef(decision, model.score_many(KEYS[:500] + ABSENT[:500]))[0, 1] > 0.99
