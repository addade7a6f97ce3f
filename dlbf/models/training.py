"""Training: scikit-learn fits on the very integers the kernels will score, and what pays is kept."""

import sys
import time
from typing import cast

import numpy as np

from dlbf.models.compiling import float_scores, score_rows
from dlbf.models.estimators import Estimator
from dlbf.models.features import Features, PackedKeys, guess_split_byte
from dlbf.models.kinds import KINDS, ROWS
from dlbf.models.measuring import Quality, measure
from dlbf.models.model import Model, seal_under
from dlbf.models.searching import train_auto
from dlbf.models.trainers import TRAINERS, Objective, Progress, Task, some_rows, train_given
from dlbf.typenames import Keys

__all__ = ["train"]

DEFAULT_BYTES = 8192
AUTO_BYTES = 65536
MOST_BYTES = 1 << 23  # of a table


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


def _take(keys: Keys, max_rows: int, rng: np.random.Generator) -> PackedKeys:
    """Pack a batch; of a longer list than ``max_rows``, a random part of it."""
    if isinstance(keys, PackedKeys):
        return keys
    if isinstance(keys, list | tuple) and len(keys) > max_rows:
        chosen = np.sort(rng.choice(len(keys), max_rows, replace=False))
        return PackedKeys([keys[i] for i in chosen.tolist()])
    return PackedKeys(keys)


def _check_view(kind: str, features: Features | None) -> None:
    """Refuse a view that the kind cannot be fitted on."""
    if features is None:
        return
    if kind == "auto":
        raise ValueError("auto chooses the view itself; name a kind with features=")
    if ROWS[kind].view not in ("any", "ngram" if features.view == "ngram" else "values"):
        raise ValueError(f"kind {kind!r} is not fitted on the {features.view} view")


def _check_arguments(
    kind: str, max_bytes: int | None, weight_bits: int, features: Features | None, estimator: object
) -> None:
    """Refuse arguments of ``train`` that make no sense, and to train without scikit-learn."""
    if kind not in (*KINDS[1:], "auto"):
        raise ValueError(f"kind must be one of {', '.join(KINDS[1:])} or auto; found {kind!r}")
    if max_bytes is not None and (not isinstance(max_bytes, int | np.integer) or max_bytes < 16):
        raise ValueError(f"max_bytes must be a whole number of at least 16, found {max_bytes!r}")
    if weight_bits not in (4, 8):
        raise ValueError(f"weight_bits must be 4 or 8, found {weight_bits!r}")
    if estimator is None:
        _check_view(kind, features)
    elif kind == "auto":
        raise ValueError("auto chooses the estimator itself; name a kind with estimator=")
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ImportError("training needs scikit-learn; install it with pip install 'dlbf[train]'") from None


def _make_task(
    keys: Keys,
    negatives: Keys,
    validation: float | Keys,
    max_rows: int,
    n_keys: int | None,
    rng: np.random.Generator,
) -> tuple[Task, PackedKeys]:
    """What is trained on and what is held out; and the keys, packed."""
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
    task = Task(packed, absent, np.sort(learnt), held, n_keys or total or len(packed))
    if len(packed) > max_rows:
        task.key_rows = some_rows(task.key_rows, max_rows, rng)
    task.train_rows = some_rows(task.train_rows, max_rows, rng)
    return task, packed


def _measure_both(task: Task, model: Model, features: Features) -> tuple[Quality, Quality]:
    """The quality of the estimator's own scores and of the model's integers, on a sample."""
    key_rows = some_rows(task.key_rows, 50_000, np.random.default_rng(1))
    held_rows = some_rows(task.held_rows, 50_000, np.random.default_rng(2))
    before = measure(
        float_scores(model.estimator, features, task.packed, key_rows),
        float_scores(model.estimator, features, task.packed, held_rows),
        task.n_regions,
    )
    after = measure(score_rows(model, task.packed, key_rows), score_rows(model, task.packed, held_rows), task.n_regions)
    return before, after


def train(
    keys: Keys,
    negatives: Keys,
    kind: str = "ngram",
    max_bytes: int | None = None,
    *,
    validation: float | Keys = 0.2,
    fpr: float = 0.01,
    deletability: float = 0.0,
    n_regions: int = 8,
    n_keys: int | None = None,
    objective: Objective | None = None,
    features: Features | str | None = None,
    estimator: object = None,
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
        Passes over the keys of a table; by default while they help on negatives set aside for that, at most 10, or 6
        where negatives are too few to tell.
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
    if isinstance(features, str):
        features = Features(features)
    _check_arguments(kind, max_bytes, weight_bits, features, estimator)
    task, packed = _make_task(keys, negatives, validation, max_rows, n_keys, np.random.default_rng(random_state))
    task.fpr, task.deletability, task.n_regions = fpr, deletability, n_regions
    task.objective, task.epochs, task.seed = objective, epochs, random_state
    task.split = features.split if features is not None else guess_split_byte(packed)
    task.report = _progress(progress)

    candidates: list[dict[str, object]] = []
    size = max_bytes or (AUTO_BYTES if kind == "auto" else DEFAULT_BYTES)
    quality: Quality | None
    if kind == "auto":
        model, quality = train_auto(task, min(size, MOST_BYTES), candidates)
    elif estimator is not None:
        model, quality = train_given(task, cast(Estimator, estimator), features, kind, size, weight_bits)
    else:
        model, quality = TRAINERS[kind].fit(task, size, weight_bits, features)
    if max_bytes is not None and model.nbytes > max_bytes:
        raise ValueError(f"the {model.kind} model needs {model.nbytes} bytes, max_bytes is {max_bytes}")
    seal_under(model, secret)
    model.report.update(
        n_keys=len(task.key_rows),
        n_negatives=len(task.train_rows),
        n_held_out=len(task.held_rows),
        candidates=candidates,
        plain_bits_per_key=task.plain_bits(),
        total_bits_per_key=task.plain_bits(),
        quality=quality,
        kl_float=0.0,
        kl_integer=0.0,
    )
    if quality is not None and model.features is not None:
        before, after = _measure_both(task, model, model.features)
        total = task.total_bits(quality, model.nbytes)
        model.report.update(kl_float=before.kl, kl_integer=after.kl, total_bits_per_key=total)
    model.report["seconds"] = time.perf_counter() - started
    return model
