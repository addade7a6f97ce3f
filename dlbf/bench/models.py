"""``dlbf bench models``: what a model is worth, and how fast a score is.

Speed is measured in turns with one LMDB miss and one row of scikit-learn, in one run.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from dlbf.bench.data import Split
from dlbf.models import measure, train
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


# Keys of one turn, half a millisecond: on a busy machine some of many turns run undisturbed, and the best is one of
# those.  More for a batch.
TURN_KEYS = 500
BATCH_KEYS = 4000


def bench_models(
    models: Sequence[Model], asked: Sequence[bytes], stored: Sequence[bytes], *, rounds: int = 60
) -> list[dict[str, Any]]:
    """Time ``score``, ``score_many``, an LMDB miss and ``predict_proba`` on one row, in turns.

    Twice: with other keys in every turn, each a new object, as requests bring them; and with the same ones again and
    again, for which every page that LMDB reads is in the processor's first caches.

    Parameters
    ----------
    models : sequence of Model
        Those that still have their estimator are also timed against it.
    asked : sequence of bytes
        Keys to score and to look for.
    stored : sequence of bytes
        What a temporary LMDB environment holds; none of ``asked``.
    rounds : int
        The best of so many is reported.

    Returns
    -------
    list of dict
        One per model: ``fresh`` and ``same``, each with ``score_ns``, ``score_many_ns``, ``lmdb_miss_ns`` and the two
        ratios to it; and ``predict_ns``.

    Examples
    --------
    >>> from dlbf.models import no_model
    >>> keys = [b"key %d" % i for i in range(200)]
    >>> rows = bench_models([no_model()], keys[:100], keys[100:], rounds=1)
    >>> rows[0]["kind"], rows[0]["fresh"]["score_ns"] > 0
    ('none', True)
    """
    import lmdb

    rows = []
    with tempfile.TemporaryDirectory() as path:
        environment = lmdb.open(path, map_size=1 << 30, sync=False)
        with environment.begin(write=True) as transaction:
            for key in stored:
                transaction.put(key, b"value")

        def miss(keys: Sequence[bytes]) -> None:
            begin = environment.begin
            for key in keys:
                with begin() as transaction:
                    transaction.get(key)

        for model in models:
            row: dict[str, Any] = {"kind": model.kind, "form": model.form, "nbytes": model.nbytes}
            work: dict[str, tuple[Callable[[Sequence[bytes]], Any], int]] = {
                "lmdb_miss_ns": (miss, TURN_KEYS),
                "score_ns": (_one_by_one(model), TURN_KEYS),
                "score_many_ns": (model.score_many, BATCH_KEYS),
            }
            for name, keys in (("fresh", asked), ("same", asked[:TURN_KEYS])):
                best = row[name] = _best(work, keys, rounds)
                best["score_ratio"] = best["score_ns"] / best["lmdb_miss_ns"]
                best["score_many_ratio"] = best["score_many_ns"] / best["lmdb_miss_ns"]
            estimator, features = model.estimator, model.features
            if estimator is not None and features is not None:
                predict = getattr(estimator, "predict_proba", None) or estimator.decision_function
                matrix = features.transform([asked[0]])
                row |= _best({"predict_ns": (_same_row(predict, matrix), 1)}, asked, rounds)
            rows.append(row)
        environment.close()
    return rows


def _best(
    work: dict[str, tuple[Callable[[Sequence[bytes]], Any], int]], keys: Sequence[bytes], rounds: int
) -> dict[str, float]:
    """The best time per key of each piece of work, in nanoseconds; the pieces take turns.

    Each turn asks for the next keys, as new objects; for the same ones if there are no more than it needs.
    """
    best = dict.fromkeys(work, float("inf"))
    batches = {name: itertools.cycle(keys) for name in work}
    same = len(keys) <= TURN_KEYS
    kept = {name: list(itertools.islice(itertools.cycle(keys), n)) for name, (_, n) in work.items()}
    for _ in range(rounds):
        for name, (call, n) in work.items():
            batch = kept[name] if same else [bytes(bytearray(key)) for key in itertools.islice(batches[name], n)]
            started = time.perf_counter_ns()
            call(batch)
            best[name] = min(best[name], (time.perf_counter_ns() - started) / n)
    return best


def _one_by_one(model: Model) -> Callable[[Sequence[bytes]], None]:
    def run(keys: Sequence[bytes], score: Callable[[bytes], int] = model.score) -> None:
        for key in keys:
            score(key)

    return run


def _same_row(predict: Callable[[Any], Any], matrix: Any) -> Callable[[Sequence[bytes]], Any]:
    return lambda keys: predict(matrix)
