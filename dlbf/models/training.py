"""Training: scikit-learn fits on the very integers the kernels will score, and what pays is kept."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dlbf.kernels.features import LEXICAL_NAMES
from dlbf.models.compiling import LINEAR, class_name, compile, float_scores, score_rows
from dlbf.models.features import Features, PackedKeys, guess_split_byte, guess_view
from dlbf.models.measuring import Quality, filter_bits, measure
from dlbf.models.model import KINDS, Model, no_model

__all__ = ["train"]

T = TypeVar("T")
Rows = npt.NDArray[np.int64]
Progress = Callable[[str, float], None]
Objective = Callable[[Quality, int], float]

DEFAULT_BYTES = 8192
AUTO_BYTES = 65536
SMALLEST_BYTES = 256
MOST_BYTES = 1 << 23  # of a table
# Rows of one partial fit: large enough that scikit-learn's checks cost nothing, small enough that memory does not show.
BATCH_ROWS = 32768
# Gradient steps that a fit takes at least, if need be by going over few keys again.
MIN_STEPS = 1_000_000
# A model must save this share of the bits, or it is not worth its time.
MIN_SAVING = 0.01
# The lexical value that takes as long as half of the others together: left out where it tells hardly more than they do.
ENTROPY = LEXICAL_NAMES.index("entropy_sixteenths")
TREE_LEAVES = 16
TREE_ROWS = 60_000
# What ``auto`` spends on a candidate before it decides which to fit on everything.
SCREEN_ROWS = 50_000
SCREEN_EPOCHS = 3
MEASURED_ROWS = 200_000


def _show(stage: str, fraction: float) -> None:
    end = "\n" if fraction >= 1 else ""
    sys.stderr.write(f"\rdlbf: {stage:<44s} {fraction:4.0%}{end}")
    sys.stderr.flush()


def _progress(progress: bool | Progress | None) -> Progress:
    if callable(progress):
        return progress
    if progress is None:
        progress = sys.stderr.isatty()
    return _show if progress else lambda stage, fraction: None


def _take(keys: Iterable[Any], max_rows: int, rng: np.random.Generator) -> PackedKeys:
    """Pack a batch; of a longer list than ``max_rows``, a random part of it."""
    if isinstance(keys, PackedKeys):
        return keys
    if isinstance(keys, list | tuple) and len(keys) > max_rows:
        chosen = np.sort(rng.choice(len(keys), max_rows, replace=False))
        return PackedKeys([keys[i] for i in chosen.tolist()])
    return PackedKeys(keys)


def _some(rows: Rows, n: int, rng: np.random.Generator) -> Rows:
    return rows if len(rows) <= n else np.sort(rng.choice(rows, n, replace=False))


class _Task:
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
            self.measured[max_rows] = _some(self.key_rows, max_rows, rng), _some(self.held_rows, max_rows, rng)
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


def _fit_table(task: _Task, features: Features, max_rows: int, stage: str, epochs: int | None = None) -> Any:
    """A logistic regression by stochastic gradients, a batch at a time; no matrix of all rows is ever made."""
    from sklearn.linear_model import SGDClassifier

    rng = np.random.default_rng(task.seed)
    positive, negative = _some(task.key_rows, max_rows, rng), _some(task.train_rows, max_rows, rng)
    n = len(positive) + len(negative)
    labels = np.repeat(np.array([1, 0], dtype=np.int8), [len(positive), len(negative)])
    rows = np.concatenate((positive, negative))
    probe = features.rows(task.packed, positive[:: max(1, len(positive) // 1000)])
    mean_columns = max(1.0, probe.nnz / probe.shape[0])
    # One step moves a key's score by about eta0 * columns: the rate is set so that key length does not matter.
    estimator = SGDClassifier(
        loss="log_loss",
        alpha=1e-7,
        learning_rate="invscaling",
        eta0=min(0.5, 6.0 / mean_columns),
        power_t=0.2,
        random_state=task.seed,
    )
    passes = epochs or task.epochs or min(20, max(2, math.ceil(MIN_STEPS / n)))
    done = 0
    for _ in range(passes):
        order = rng.permutation(n)
        for first in range(0, n, BATCH_ROWS):
            part = order[first : first + BATCH_ROWS]
            estimator.partial_fit(features.rows(task.packed, rows[part]), labels[part], classes=np.array([0, 1]))
            done += len(part)
            task.report(stage, done / (n * passes))
    return estimator


def _sample_matrix(task: _Task, features: Features, max_rows: int) -> tuple[Any, npt.NDArray[np.int8]]:
    rng = np.random.default_rng(task.seed)
    positive, negative = _some(task.key_rows, max_rows, rng), _some(task.train_rows, max_rows, rng)
    labels = np.repeat(np.array([1, 0], dtype=np.int8), [len(positive), len(negative)])
    order = rng.permutation(len(labels))
    rows = np.concatenate((positive, negative))[order]
    return features.rows(task.packed, rows), labels[order]


def _best_table(task: _Task, estimator: Any, features: Features, weight_bits: int, kind: str) -> tuple[Model, Quality]:
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


def _table_features(task: _Task, log2_weights: int) -> Features:
    # Below 2**12 weights runs of three bytes collide too often to be worth having.
    return Features("ngram", 1 << log2_weights, 3 if log2_weights >= 12 else 2, task.split)


def _train_ngram(task: _Task, max_bytes: int, weight_bits: int, features: Features | None) -> tuple[Model, Quality]:
    log2_weights = (max_bytes * 8 // weight_bits).bit_length() - 1
    if not 4 <= log2_weights <= 24:
        raise ValueError(f"max_bytes must be 16 to 8388608 for a table, found {max_bytes}")
    chosen = features or _table_features(task, log2_weights)
    estimator = _fit_table(task, chosen, 1 << 40, f"fit {chosen.n_weights} weights")
    return _best_table(task, estimator, chosen, weight_bits, "ngram")


def _train_svm(
    task: _Task, max_bytes: int, weight_bits: int, features: Features | None, max_rows: int = 40_000
) -> tuple[Model, Quality]:
    from sklearn.svm import LinearSVC

    log2_weights = (max_bytes * 8 // weight_bits).bit_length() - 1
    chosen = features or _table_features(task, max(4, min(24, log2_weights)))
    task.report("fit LinearSVC", 0.0)
    matrix, labels = _sample_matrix(task, chosen, max_rows)
    estimator = LinearSVC(C=0.02, tol=1e-3, max_iter=200, random_state=task.seed)
    _quietly(estimator, matrix, labels)
    task.report("fit LinearSVC", 1.0)
    if chosen.view == "ngram":
        return _best_table(task, estimator, chosen, weight_bits, "svm")
    model = compile(estimator, chosen, kind="svm")
    return model, task.quality(model)


def _quietly(estimator: Any, matrix: Any, labels: Any) -> None:
    """Fit without a warning at the iteration limit: held-out negatives judge the result, not convergence."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(matrix, labels)


def _value_features(task: _Task, features: Features | None) -> Features:
    return features or Features(task.view, split=task.split)


def _fit_values(
    task: _Task, chosen: Features, max_rows: int, fit: Callable[[Any, npt.NDArray[np.int8]], Any]
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


def _train_bayes(task: _Task, features: Features | None, max_rows: int = 200_000) -> tuple[Model, Quality]:
    from sklearn.naive_bayes import GaussianNB

    def fit(matrix: Any, labels: npt.NDArray[np.int8]) -> Any:
        return GaussianNB(var_smoothing=1e-6).fit(matrix, labels)

    task.report("fit GaussianNB", 0.0)
    found = _fit_values(task, _value_features(task, features), max_rows, fit)
    task.report("fit GaussianNB", 1.0)
    return found


def _train_trees(
    task: _Task, max_bytes: int, features: Features | None, max_rows: int = TREE_ROWS
) -> tuple[Model, Quality]:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    per_tree = 4 + 6 * (2 * TREE_LEAVES - 1)
    n_trees = max(1, min(64, max_bytes // per_tree))
    leaves = TREE_LEAVES if max_bytes >= per_tree else max(2, ((max_bytes - 4) // 6 + 1) // 2)

    def fit(matrix: Any, labels: npt.NDArray[np.int8]) -> Any:
        estimator = HistGradientBoostingClassifier(
            max_iter=n_trees, max_leaf_nodes=leaves, learning_rate=0.3, early_stopping=False, random_state=task.seed
        )
        # Threads that wait for each other by spinning cost more than they save on so few rows, above all on a busy
        # machine.
        with threadpool_limits(limits=1, user_api="openmp"):
            return estimator.fit(matrix, labels)

    task.report("fit trees", 0.0)
    found = _fit_values(task, _value_features(task, features), max_rows, fit)
    task.report("fit trees", 1.0)
    return found


def _train_given(
    task: _Task, estimator: Any, features: Features | None, kind: str, max_bytes: int, weight_bits: int
) -> tuple[Model, Quality]:
    name = class_name(estimator)  # before anything is fitted
    if features is None and kind in ("ngram", "svm"):
        features = _table_features(task, max(4, min(24, (max_bytes * 8 // weight_bits).bit_length() - 1)))
    chosen = _value_features(task, features)
    if chosen.view == "ngram" and name not in LINEAR:
        raise TypeError(f"a {name} over the ngram view cannot be compiled; use kind='trees' or the lexical view")
    matrix, labels = _sample_matrix(task, chosen, 200_000)
    model = compile(estimator.fit(matrix, labels), chosen, weight_bits=weight_bits)
    return model, task.quality(model)


def _check_view(kind: str, features: Features | None) -> None:
    """Refuse a view that the kind cannot be fitted on."""
    if features is None or kind == "svm":
        return
    if kind == "auto":
        raise ValueError("auto chooses the view itself; name a kind with features=")
    if (kind == "ngram") != (features.view == "ngram"):
        raise ValueError(f"kind {kind!r} is not fitted on the {features.view} view")


def _side_by_side(work: Callable[[int], T], items: Sequence[int]) -> list[T]:
    """``work`` of every item, two at a time: features and gradients are computed without the GIL.

    Each fit draws from its own generator, so the order in which they end changes nothing.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(work, items))


def _train_auto(task: _Task, max_bytes: int, candidates: list[dict[str, Any]]) -> tuple[Model, Quality | None]:
    """Screen kinds and sizes on a part of the keys, then fit the most promising on all of them."""
    plain = task.plain_bits()
    candidates.append({"kind": "none", "form": "none", "nbytes": 0, "total_bits": plain, "kl": 0.0})
    best: tuple[float, Model, Quality] | None = None

    def consider(model: Model, quality: Quality, screened: bool) -> float:
        nonlocal best
        bits = task.total_bits(quality, model.nbytes)
        candidates.append(
            {
                "kind": model.kind,
                "form": model.form,
                "nbytes": model.nbytes,
                "total_bits": bits,
                "kl": quality.kl,
                "screened": screened,
            }
        )
        if best is None or bits < best[0]:
            best = bits, model, quality
        return bits

    largest = max_bytes.bit_length() - 1
    smallest = min(SMALLEST_BYTES.bit_length() - 1, largest)
    tables: dict[tuple[int, int], float] = {}

    def screen(log2_weights: int) -> list[tuple[int, Model, Quality]]:
        features = _table_features(task, log2_weights)
        fitted = _fit_table(task, features, SCREEN_ROWS, f"try {1 << log2_weights} weights", SCREEN_EPOCHS)
        found = []
        for weight_bits in (8, 4):
            if smallest <= log2_weights - (weight_bits == 4) <= largest:
                model = compile(fitted, features, weight_bits=weight_bits, kind="ngram")
                found.append((weight_bits, model, task.quality(model, SCREEN_ROWS)))
        return found

    def try_sizes(sizes: Iterable[int]) -> None:
        known = {size for size, _ in tables}
        fresh = [size for size in sizes if smallest <= size <= largest + 1 and size not in known]
        for log2_weights, found in zip(fresh, _side_by_side(screen, fresh), strict=True):
            for weight_bits, model, quality in found:
                tables[log2_weights, weight_bits] = consider(model, quality, True)

    # Total bits fall and then rise with the size: try every fourth size, then the neighbours of the best.
    try_sizes(range(smallest, largest + 2, 2))
    middle = min(tables, key=lambda size: tables[size])[0]
    try_sizes((middle - 1, middle + 1))
    rest: list[Callable[[], tuple[Model, Quality]]] = [
        lambda: _train_bayes(task, None, 20_000),
        lambda: _train_trees(task, min(max_bytes, SMALLEST_BYTES), None, 10_000),
        lambda: _train_trees(task, min(max_bytes, 2048), None, 10_000),
        lambda: _train_svm(task, min(max_bytes, 4096), 4, None, 10_000),
    ]
    for attempt in rest:
        model, quality = attempt()
        if model.nbytes <= max_bytes:
            consider(model, quality, True)
    assert best is not None
    if best[0] > (1 - MIN_SAVING) * plain:
        return no_model(), None
    kind = best[1].kind
    best = None
    if kind == "ngram":
        # With all keys larger tables pay more than the sample showed, so also fit the next size.
        (log2_weights, weight_bits) = min(tables, key=lambda size: tables[size])

        def finish(size: int) -> tuple[Model, Quality]:
            features = _table_features(task, size)
            estimator = _fit_table(task, features, 1 << 40, f"fit {1 << size} weights")
            return _best_table(task, estimator, features, weight_bits, "ngram")

        finalists = [size for size in (log2_weights, log2_weights + 1) if size - (weight_bits == 4) <= largest]
        for model, quality in _side_by_side(finish, finalists):
            consider(model, quality, False)
    elif kind == "trees":
        for n_bytes in sorted({min(max_bytes, n) for n in (SMALLEST_BYTES, 512, 1024, 2048, 4096, 8192)}):
            model, quality = _train_trees(task, n_bytes, None)
            if model.nbytes <= max_bytes:
                consider(model, quality, False)
    elif kind == "svm":
        consider(*_train_svm(task, min(max_bytes, 8192), 4, None), False)
    else:
        model, quality = _train_bayes(task, None)
        if model.nbytes <= max_bytes:
            consider(model, quality, False)
    if best is None or best[0] > (1 - MIN_SAVING) * plain:
        return no_model(), None
    return best[1], best[2]


def train(
    keys: Iterable[Any],
    negatives: Iterable[Any],
    kind: str = "ngram",
    max_bytes: int | None = None,
    *,
    validation: float | Iterable[Any] = 0.2,
    fpr: float = 0.01,
    deletability: float = 0.0,
    n_regions: int = 8,
    n_keys: int | None = None,
    objective: Objective | None = None,
    features: Features | str | None = None,
    estimator: Any = None,
    weight_bits: int = 8,
    epochs: int | None = None,
    max_rows: int = 1_000_000,
    random_state: int = 0,
    progress: bool | Progress | None = None,
    secret: bytes | None = None,
) -> Model:
    """Learn to tell keys from the absent keys that will be asked for, and compile the result to integers.

    Parameters
    ----------
    keys, negatives : iterables of keys
        The stored keys, and a sample of keys that are asked for and absent.
    kind : {"ngram", "trees", "naive-bayes", "svm", "auto"}
        ``ngram``: logistic regression over hashed runs of bytes.  ``trees``: gradient boosting over lexical or numeric
        values.  ``naive-bayes``: Gaussian, over the same.  ``svm``: a linear support vector machine over hashed
        runs.  ``auto``: whichever of these, at whichever size, or none, needs the fewest bits in all.
    max_bytes : int, optional
        The compiled model's size, at most: 8192 by default, 65536 for ``auto``.
    validation : float or iterable of keys
        Which negatives are held out of training to measure the result: a share of ``negatives``, or negatives of
        your own (then all of ``negatives`` is learnt from).
    fpr, deletability : float
        What the filter behind the model is meant to reach; ``auto`` minimises its bits.
    n_regions : int
        How many regions that filter has.
    n_keys : int, optional
        How many keys share the model's bits, if more than ``keys``.
    objective : callable, optional
        ``objective(quality, n_bytes)`` gives the total bits per key, instead of the estimate for ``fpr`` and
        ``deletability``.
    features : Features or str, optional
        The view to learn from; chosen by looking at the keys by default.
    estimator : object, optional
        An unfitted estimator of the same kind, to be fitted instead of the default one.
    weight_bits : {8, 4}
        For tables (``auto`` tries both).
    epochs : int, optional
        Passes over the keys; by default as many as make a million steps, 2 to 20.
    max_rows : int
        Of longer lists, a random sample of so many keys and so many negatives is used.
    random_state : int
        Same data and same state give the same model.
    progress : bool or callable, optional
        ``callable(stage, fraction)``; True writes to standard error, the default does so on a terminal.
    secret : bytes, optional
        Seals ``Model.pickle``.

    Returns
    -------
    Model
        ``model.report`` has the measured ``kl_float`` and ``kl_integer`` (before and after quantisation), ``quality``,
        ``total_bits_per_key``, the candidates of ``auto``, and the time taken.

    Notes
    -----
    Memory: the packed bytes of keys and negatives, and one batch of features; 1 M + 1 M URLs stay well below 1 GiB.

    Examples
    --------
    >>> keys = [f"10.0.{i}.7/bin{i}.exe" for i in range(400)]
    >>> negatives = [f"example.org/articles/{i}/a-story.html" for i in range(400)]
    >>> model = train(keys, negatives, kind="ngram", max_bytes=1024)
    >>> model.nbytes, model.score("10.0.9.9/binx.exe") > model.score("example.org/articles/7/x.html")
    (1024, True)
    """
    started = time.perf_counter()
    if kind not in (*KINDS[1:], "auto"):
        raise ValueError(f"kind must be one of {', '.join(KINDS[1:])} or auto; found {kind!r}")
    if max_bytes is not None and (not isinstance(max_bytes, int | np.integer) or max_bytes < 16):
        raise ValueError(f"max_bytes must be a whole number of at least 16, found {max_bytes!r}")
    if weight_bits not in (4, 8):
        raise ValueError(f"weight_bits must be 4 or 8, found {weight_bits!r}")
    if isinstance(features, str):
        features = Features(features)
    if estimator is None:
        _check_view(kind, features)
    elif kind == "auto":
        raise ValueError("auto chooses the estimator itself; name a kind with estimator=")
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ImportError("training needs scikit-learn; install it with pip install 'dlbf[train]'") from None
    rng = np.random.default_rng(random_state)
    total = len(keys) if isinstance(keys, list | tuple) else None
    packed, absent = _take(keys, max_rows, rng), _take(negatives, max_rows, rng)
    if not len(packed) or len(absent) < 4:
        raise ValueError(f"training needs keys and at least 4 negatives, found {len(packed)} and {len(absent)}")
    order = rng.permutation(len(absent))
    if isinstance(validation, float | int):
        if not 0 < validation < 1:
            raise ValueError(f"validation must be a share between 0 and 1, or negatives; found {validation!r}")
        n_held = max(2, round(validation * len(absent)))
        held, learnt = order[:n_held], order[n_held:]
    else:
        held_out = _take(validation, max_rows, rng)
        held, learnt = len(absent) + rng.permutation(len(held_out)), order
        absent = absent.followed_by(held_out)
        if len(held) < 2:
            raise ValueError("validation needs at least 2 negatives")
    task = _Task(packed, absent, np.sort(learnt), held, n_keys or total or len(packed))
    if len(packed) > max_rows:
        task.key_rows = _some(task.key_rows, max_rows, rng)
    task.train_rows = _some(task.train_rows, max_rows, rng)
    task.fpr, task.deletability, task.n_regions = fpr, deletability, n_regions
    task.objective, task.epochs, task.seed = objective, epochs, random_state
    task.split = features.split if features is not None else guess_split_byte(packed)
    task.report = _progress(progress)

    candidates: list[dict[str, Any]] = []
    size = max_bytes or (AUTO_BYTES if kind == "auto" else DEFAULT_BYTES)
    quality: Quality | None
    if kind == "auto":
        model, quality = _train_auto(task, min(size, MOST_BYTES), candidates)
    elif estimator is not None:
        model, quality = _train_given(task, estimator, features, kind, size, weight_bits)
    elif kind == "ngram":
        model, quality = _train_ngram(task, size, weight_bits, features)
    elif kind == "svm":
        model, quality = _train_svm(task, size, weight_bits, features)
    elif kind == "naive-bayes":
        model, quality = _train_bayes(task, features)
    else:
        model, quality = _train_trees(task, size, features)
    if max_bytes is not None and model.nbytes > max_bytes:
        raise ValueError(f"the {model.kind} model needs {model.nbytes} bytes, max_bytes is {max_bytes}")
    model._secret = secret
    model.report.update(
        n_keys=len(task.key_rows),
        n_negatives=len(task.train_rows),
        n_held_out=len(held),
        candidates=candidates,
        plain_bits_per_key=task.plain_bits(),
        total_bits_per_key=task.plain_bits(),
        quality=quality,
        kl_float=0.0,
        kl_integer=0.0,
    )
    if quality is not None and model.features is not None:
        key_rows = _some(task.key_rows, 50_000, np.random.default_rng(1))
        held_rows = _some(task.held_rows, 50_000, np.random.default_rng(2))
        before = measure(
            float_scores(model.estimator, model.features, task.packed, key_rows),
            float_scores(model.estimator, model.features, task.packed, held_rows),
            n_regions,
        )
        after = measure(score_rows(model, task.packed, key_rows), score_rows(model, task.packed, held_rows), n_regions)
        model.report.update(
            kl_float=before.kl, kl_integer=after.kl, total_bits_per_key=task.total_bits(quality, model.nbytes)
        )
    model.report["seconds"] = time.perf_counter() - started
    return model
