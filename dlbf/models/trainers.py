"""Trainers: how a model of each kind is fitted by scikit-learn and compiled.

The kinds themselves are rows of ``dlbf/models/kinds.py``; a new one gets its trainer here, in ``TRAINERS``.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dlbf.kernels.descent import descend
from dlbf.kernels.features import LEXICAL_NAMES
from dlbf.kernels.forks import forks
from dlbf.models.compiling import LINEAR, class_name, compile, score_rows
from dlbf.models.estimators import Estimator, one_thread
from dlbf.models.features import Features, PackedKeys, guess_view
from dlbf.models.kinds import ROWS
from dlbf.models.measuring import Quality, filter_bits, measure
from dlbf.models.model import Model

if TYPE_CHECKING:
    from sklearn.linear_model import SGDClassifier

__all__ = [
    "MIN_SAVING",
    "SMALLEST_BYTES",
    "TRAINERS",
    "Objective",
    "Progress",
    "Rows",
    "Task",
    "Trainer",
    "best_table",
    "fit_table",
    "some_rows",
    "table_features",
    "train_given",
]

Rows = npt.NDArray[np.int64]
Progress = Callable[[str, float], None]
Objective = Callable[[Quality, int], float]
Attempts = Callable[["Task", int], Iterable[tuple[Model, Quality]]]

SMALLEST_BYTES = 256
# Of gradients, each weight's own (the sum of its squared ones starts at 1): 0.05 needs twice the passes, 0.2 wavers.
FIRST_STEP = 0.1
# Passes over the keys: at most so many while each brings LEAST_GAIN of the bits, judged by a tenth of the negatives;
# where those are too few to judge, a fixed number.
MAX_PASSES = 10
FEW_PASSES = 6
LEAST_GAIN = 0.003
LEAST_JUDGED = 5000
MOST_JUDGES = 20_000
# A model must save this share of the bits, or it is not worth its time.
MIN_SAVING = 0.01
# The lexical value that takes as long as half of the others together: left out where it tells hardly more than they do.
ENTROPY = LEXICAL_NAMES.index("entropy_sixteenths")
TREE_LEAVES = 16
TREE_ROWS = 60_000
MEASURED_ROWS = 200_000


def some_rows(rows: Rows, n: int, rng: np.random.Generator) -> Rows:
    return rows if len(rows) <= n else np.sort(rng.choice(rows, n, replace=False))


class Task:
    """The keys, the negatives to learn from and those held out, and what the result is to be good at."""

    def __init__(self, keys: PackedKeys, negatives: PackedKeys, train_rows: Rows, held_rows: Rows, n_keys: int) -> None:
        self.view = guess_view(keys)
        self.packed = keys.followed_by(negatives)
        self.key_rows = np.arange(len(keys), dtype=np.int64)
        self.train_rows, self.held_rows = train_rows + len(keys), held_rows + len(keys)
        self.n_keys = n_keys
        self.fpr, self.deletability, self.n_regions = 0.01, 0.0, 8
        self.objective: Objective | None = None
        self.split: bytes | None = None
        self.report: Progress = lambda stage, fraction: None
        self.epochs: int | None = None
        self.seed = 0
        self.measured: dict[int, tuple[Rows, Rows]] = {}

    def quality(self, model: Model, max_rows: int = MEASURED_ROWS) -> Quality:
        """Measured on the same keys and held-out negatives for every model of one size of sample."""
        if max_rows not in self.measured:
            rng = np.random.default_rng(self.seed)
            self.measured[max_rows] = some_rows(self.key_rows, max_rows, rng), some_rows(self.held_rows, max_rows, rng)
        key_rows, held_rows = self.measured[max_rows]
        keys, queries = score_rows(model, self.packed, key_rows), score_rows(model, self.packed, held_rows)
        return measure(keys, queries, self.n_regions, self.fpr, self.deletability)

    def total_bits(self, quality: Quality, n_bytes: int) -> float:
        """Bits per key of filter and model together."""
        if self.objective is not None:
            return self.objective(quality, n_bytes)
        return quality.bits_per_key + 8 * n_bytes / self.n_keys

    def plain_bits(self) -> float:
        """The same without a model."""
        one = np.ones(1)
        quality = Quality(0.0, filter_bits(one, one, self.fpr, self.deletability), (1.0,), (1.0,), ())
        return self.total_bits(quality, 0)


def fit_table(task: Task, features: Features, max_rows: int, stage: str, epochs: int | None = None) -> "SGDClassifier":
    """A logistic regression by stochastic gradients over the packed keys; no matrix of all rows is ever made.

    Passes go on while they bring something on negatives that are set aside for that, which are neither learnt from nor
    those that the filter is planned with.
    """
    rng = np.random.default_rng(task.seed)
    positive, negative = some_rows(task.key_rows, max_rows, rng), some_rows(task.train_rows, max_rows, rng)
    passes = epochs or task.epochs
    judges: Rows = negative[:0]
    if passes is None and len(negative) >= LEAST_JUDGED:
        shuffled = rng.permutation(negative)
        n_judges = min(MOST_JUDGES, len(negative) // 10)
        judges, negative = shuffled[:n_judges], np.sort(shuffled[n_judges:])
    rows = np.concatenate((positive, negative))
    labels = np.repeat(np.array([1, 0], dtype=np.uint8), [len(positive), len(negative)])
    asked = some_rows(positive, len(judges), rng)
    weights = np.zeros(features.n_weights + 1, dtype=np.float32)
    squares = np.ones_like(weights)
    best, best_bits = weights, math.inf
    limit = passes or (MAX_PASSES if len(judges) else FEW_PASSES)
    for number in range(limit):
        order = rng.permutation(len(rows))
        descend(
            task.packed.data, task.packed.offsets, rows[order], labels[order], features.order, features.split_byte,
            features.log2_weights, weights, squares, FIRST_STEP / math.sqrt(number + 1),
        )  # fmt: skip
        task.report(stage, (number + 1) / limit)
        if not len(judges):
            best = weights
            continue
        model = compile(_as_estimator(weights, task.seed), features, kind="ngram")
        scores = (score_rows(model, task.packed, asked), score_rows(model, task.packed, judges))
        # Without deletability: that is where a better model shows most.
        bits = measure(*scores, task.n_regions, task.fpr).bits_per_key
        enough = bits > (1 - LEAST_GAIN) * best_bits
        if bits < best_bits:
            best, best_bits = weights.copy(), bits
        if enough:
            break
    task.report(stage, 1.0)
    return _as_estimator(best, task.seed)


def _as_estimator(weights: npt.NDArray[np.float32], seed: int) -> "SGDClassifier":
    """The weights, the last of them the intercept, as scikit-learn has them."""
    from sklearn.linear_model import SGDClassifier

    estimator = SGDClassifier(loss="log_loss", penalty=None, random_state=seed)
    estimator.classes_ = np.array([0, 1])
    estimator.coef_ = weights[None, :-1].astype(np.float64)
    estimator.intercept_ = weights[-1:].astype(np.float64)
    estimator.n_features_in_ = len(weights) - 1
    return estimator


def _sample_matrix(task: Task, features: Features, max_rows: int) -> tuple[Any, npt.NDArray[np.int8]]:
    rng = np.random.default_rng(task.seed)
    positive, negative = some_rows(task.key_rows, max_rows, rng), some_rows(task.train_rows, max_rows, rng)
    labels = np.repeat(np.array([1, 0], dtype=np.int8), [len(positive), len(negative)])
    order = rng.permutation(len(labels))
    rows = np.concatenate((positive, negative))[order]
    return features.rows(task.packed, rows), labels[order]


def best_table(
    task: Task, estimator: Estimator, features: Features, weight_bits: int, kind: str
) -> tuple[Model, Quality]:
    """Quantise with the clipping that costs least; int8 needs none."""
    best: tuple[float, Model, Quality] | None = None
    for sigmas in (None,) if weight_bits == 8 else (2.5, 3.0, 3.5, 4.5):
        model = compile(estimator, features, weight_bits=weight_bits, clip_sigmas=sigmas, kind=kind)
        quality = task.quality(model)
        bits = task.total_bits(quality, model.nbytes)
        if best is None or bits < best[0]:
            best = bits, model, quality
    assert best is not None
    return best[1], best[2]


def table_features(task: Task, log2_weights: int) -> Features:
    # Below 2**12 weights runs of three bytes collide too often to be worth having.
    return Features("ngram", 1 << log2_weights, 3 if log2_weights >= 12 else 2, task.split)


def _train_ngram(task: Task, max_bytes: int, weight_bits: int, features: Features | None) -> tuple[Model, Quality]:
    log2_weights = (max_bytes * 8 // weight_bits).bit_length() - 1
    if not 4 <= log2_weights <= 24:
        raise ValueError(f"max_bytes must be 16 to 8388608 for a table, found {max_bytes}")
    chosen = features or table_features(task, log2_weights)
    estimator = fit_table(task, chosen, 1 << 40, f"fit {chosen.n_weights} weights")
    return best_table(task, estimator, chosen, weight_bits, "ngram")


def _train_svm(
    task: Task, max_bytes: int, weight_bits: int, features: Features | None, max_rows: int = 40_000
) -> tuple[Model, Quality]:
    from sklearn.svm import LinearSVC

    log2_weights = (max_bytes * 8 // weight_bits).bit_length() - 1
    chosen = features or table_features(task, max(4, min(24, log2_weights)))
    task.report("fit LinearSVC", 0.0)
    matrix, labels = _sample_matrix(task, chosen, max_rows)
    estimator = LinearSVC(C=0.02, tol=1e-3, max_iter=200, random_state=task.seed)
    _quietly(estimator, matrix, labels)
    task.report("fit LinearSVC", 1.0)
    if chosen.view == "ngram":
        return best_table(task, estimator, chosen, weight_bits, "svm")
    model = compile(estimator, chosen, kind="svm")
    return model, task.quality(model)


def _quietly(estimator: Estimator, matrix: object, labels: npt.NDArray[np.int8]) -> None:
    """Fit without a warning at the iteration limit: held-out negatives judge the result, not convergence."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(matrix, labels)


def _value_features(task: Task, features: Features | None) -> Features:
    return features or Features(task.view, split=task.split)


def _fit_values(
    task: Task, chosen: Features, max_rows: int, fit: Callable[[npt.NDArray[np.uint16], npt.NDArray[np.int8]], object]
) -> tuple[Model, Quality]:
    """Compile what ``fit`` learns from values; without the entropy, unless that costs bits."""
    matrix, labels = _sample_matrix(task, chosen, max_rows)
    model = compile(fit(matrix, labels), chosen)
    quality = task.quality(model)
    if chosen.view == "lexical" and np.ptp(matrix[:, :ENTROPY], axis=0).any():
        # A column of zeros is the same in both classes: nothing is learnt from it, so nothing compiled asks for it.
        matrix[:, ENTROPY] = 0
        faster = compile(fit(matrix, labels), chosen)
        other = task.quality(faster)
        if task.total_bits(other, faster.nbytes) <= (1 + MIN_SAVING) * task.total_bits(quality, model.nbytes):
            return faster, other
    return model, quality


def _train_bayes(
    task: Task, max_bytes: int, weight_bits: int, features: Features | None, max_rows: int = 200_000
) -> tuple[Model, Quality]:
    from sklearn.naive_bayes import GaussianNB

    def fit(matrix: npt.NDArray[np.uint16], labels: npt.NDArray[np.int8]) -> object:
        return GaussianNB(var_smoothing=1e-6).fit(matrix, labels)

    task.report("fit GaussianNB", 0.0)
    found = _fit_values(task, _value_features(task, features), max_rows, fit)
    task.report("fit GaussianNB", 1.0)
    return found


def _train_trees(
    task: Task, max_bytes: int, weight_bits: int, features: Features | None, max_rows: int = TREE_ROWS
) -> tuple[Model, Quality]:
    from sklearn.ensemble import HistGradientBoostingClassifier

    per_tree = 4 + 6 * (2 * TREE_LEAVES - 1)
    n_trees = max(1, min(64, max_bytes // per_tree))
    leaves = TREE_LEAVES if max_bytes >= per_tree else max(2, ((max_bytes - 4) // 6 + 1) // 2)

    def fit(matrix: npt.NDArray[np.uint16], labels: npt.NDArray[np.int8]) -> object:
        estimator = HistGradientBoostingClassifier(
            max_iter=n_trees, max_leaf_nodes=leaves, learning_rate=0.3, early_stopping=False, random_state=task.seed
        )
        with one_thread():
            return estimator.fit(matrix, labels)

    task.report("fit trees", 0.0)
    found = _fit_values(task, _value_features(task, features), max_rows, fit)
    task.report("fit trees", 1.0)
    return found


def train_given(
    task: Task, estimator: Estimator, features: Features | None, kind: str, max_bytes: int, weight_bits: int
) -> tuple[Model, Quality]:
    name = class_name(estimator)  # before anything is fitted
    if features is None and ROWS[kind].view != "values":
        features = table_features(task, max(4, min(24, (max_bytes * 8 // weight_bits).bit_length() - 1)))
    chosen = _value_features(task, features)
    if chosen.view == "ngram" and name not in LINEAR:
        raise TypeError(f"a {name} over the ngram view cannot be compiled; use kind='trees' or the lexical view")
    matrix, labels = _sample_matrix(task, chosen, 200_000)
    with one_thread() if forks() else nullcontext():
        fitted = estimator.fit(matrix, labels)
    model = compile(fitted, chosen, weight_bits=weight_bits)
    return model, task.quality(model)


@dataclass(frozen=True)
class Trainer:
    """How a model of one kind is made.

    Attributes
    ----------
    fit : callable
        ``fit(task, max_bytes, weight_bits, features)``: a model of that size; the kind's row says which views it takes.
    screen : callable
        ``screen(task, max_bytes)``: what ``auto`` tries on a part of the keys.
    finish : callable
        The same on all keys, if the kind is the most promising.
    """

    fit: Callable[[Task, int, int, Features | None], tuple[Model, Quality]]
    screen: Attempts
    finish: Attempts


def _screen_trees(task: Task, max_bytes: int) -> Iterator[tuple[Model, Quality]]:
    for n_bytes in (SMALLEST_BYTES, 2048):
        yield _train_trees(task, min(max_bytes, n_bytes), 8, None, 10_000)


def _finish_trees(task: Task, max_bytes: int) -> Iterator[tuple[Model, Quality]]:
    for n_bytes in sorted({min(max_bytes, n) for n in (SMALLEST_BYTES, 512, 1024, 2048, 4096, 8192)}):
        yield _train_trees(task, n_bytes, 8, None)


# In the order in which ``auto`` tries them; it tries tables before, at many sizes.
TRAINERS: dict[str, Trainer] = {
    "ngram": Trainer(_train_ngram, screen=lambda task, max_bytes: (), finish=lambda task, max_bytes: ()),
    "naive-bayes": Trainer(
        _train_bayes,
        screen=lambda task, max_bytes: [_train_bayes(task, max_bytes, 8, None, 20_000)],
        finish=lambda task, max_bytes: [_train_bayes(task, max_bytes, 8, None)],
    ),
    "trees": Trainer(_train_trees, screen=_screen_trees, finish=_finish_trees),
    "svm": Trainer(
        _train_svm,
        screen=lambda task, max_bytes: [_train_svm(task, min(max_bytes, 4096), 4, None, 10_000)],
        finish=lambda task, max_bytes: [_train_svm(task, min(max_bytes, 8192), 4, None)],
    ),
}
