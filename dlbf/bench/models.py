"""``dlbf bench models``: what a model is worth, and how fast a score is.

Speed is measured in turns with one LMDB miss and one row of scikit-learn, in one run.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from dlbf.bench.data import Split
from dlbf.models import measure, train
from dlbf.models.features import Features
from dlbf.models.model import Model

__all__ = ["SIZES", "bench_models", "quality"]

# Bytes and bits per weight of the tables in the comparison.
SIZES = ((256, 4), (1024, 4), (4096, 4), (8192, 8), (8192, 4), (16384, 4), (32768, 4))


def quality(
    split: Split, sizes: Sequence[tuple[int, int]] = SIZES, say: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """KL and bits per key of ``ngram`` models of several sizes, on negatives that nothing was fitted on.

    Bits per key include the model and are those of an ideal allocation, for (fpr, deletability).
    """
    rows = []
    for n_bytes, weight_bits in sizes:
        say(f"{split.name} split: {n_bytes} bytes of int{weight_bits}")
        model = train(
            split.learnt_keys,
            split.learnt_negatives,
            kind="ngram",
            max_bytes=n_bytes,
            weight_bits=weight_bits,
            validation=split.negatives,
            progress=False,
        )
        keys, unseen = model.score_many(split.keys), model.score_many(split.unseen)
        row: dict[str, Any] = {"split": split.name, "nbytes": n_bytes, "weight_bits": weight_bits}
        row["kl"] = measure(keys, unseen).kl
        row["kl_float"], row["kl_integer"] = model.report["kl_float"], model.report["kl_integer"]
        for fpr, deletability in ((0.01, 0.0), (0.001, 0.0), (0.01, 0.9), (0.001, 0.9)):
            bits = measure(keys, unseen, 8, fpr, deletability).bits_per_key
            row[f"bits_{fpr:g}_{deletability:g}"] = bits + 8 * n_bytes / len(split.keys)
        rows.append(row)
    return rows


def _best(work: dict[str, tuple[Callable[[], Any], int]], rounds: int) -> dict[str, float]:
    """The best time per item of each piece of work, in nanoseconds; the pieces take turns."""
    best = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, (call, n) in work.items():
            started = time.perf_counter_ns()
            call()
            best[name] = min(best[name], (time.perf_counter_ns() - started) / n)
    return best


def bench_models(models: Sequence[Model], keys: Sequence[bytes], *, rounds: int = 60) -> list[dict[str, Any]]:
    """Time ``score``, ``score_many``, an LMDB miss and ``predict_proba`` on one row.

    Parameters
    ----------
    models : sequence of Model
        Those that still have their estimator are also timed against it.
    keys : sequence of bytes
        The first half, at most 500, are asked for; the others are stored in a temporary LMDB environment.
    rounds : int
        The best of so many is reported.

    Returns
    -------
    list of dict
        One per model: ``score_ns``, ``score_many_ns``, ``lmdb_miss_ns``, the two ratios to it, and ``predict_ns``.

    Examples
    --------
    >>> from dlbf.models import no_model
    >>> rows = bench_models([no_model()], [b"key %d" % i for i in range(200)], rounds=1)
    >>> rows[0]["kind"], rows[0]["score_ns"] > 0
    ('none', True)
    """
    import lmdb

    keys = list(keys)
    # Turns of half a millisecond: on a busy machine some of many run undisturbed, and the best is one of those.
    n_asked = max(1, min(500, len(keys) // 2))
    asked, stored = keys[:n_asked], keys[n_asked:]
    rows = []
    with tempfile.TemporaryDirectory() as path:
        environment = lmdb.open(path, map_size=1 << 30, sync=False)
        with environment.begin(write=True) as transaction:
            for key in stored:
                transaction.put(key, b"value")

        def miss() -> None:
            begin = environment.begin
            for key in asked:
                with begin() as transaction:
                    transaction.get(key)

        for model in models:

            def one(score: Callable[[bytes], int] = model.score) -> None:
                for key in asked:
                    score(key)

            many: list[bytes] = asked * (-(-4000 // len(asked)))
            work: dict[str, tuple[Callable[[], Any], int]] = {
                "lmdb_miss_ns": (miss, len(asked)),
                "score_ns": (one, len(asked)),
                "score_many_ns": (_many(model, many), len(many)),
            }
            estimator, features = model.estimator, model.features
            if estimator is not None and features is not None:
                predict = getattr(estimator, "predict_proba", None) or estimator.decision_function
                work["predict_ns"] = (_one_row(predict, features, asked[0]), 1)
            best = _best(work, rounds)
            rows.append(
                {
                    "kind": model.kind,
                    "form": model.form,
                    "nbytes": model.nbytes,
                    **best,
                    "score_ratio": best["score_ns"] / best["lmdb_miss_ns"],
                    "score_many_ratio": best["score_many_ns"] / best["lmdb_miss_ns"],
                }
            )
        environment.close()
    return rows


def _many(model: Model, keys: list[bytes]) -> Callable[[], Any]:
    return lambda: model.score_many(keys)


def _one_row(predict: Callable[[Any], Any], features: Features, key: bytes) -> Callable[[], Any]:
    matrix = features.transform([key])
    return lambda: predict(matrix)
