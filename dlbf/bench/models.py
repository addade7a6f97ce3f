"""``dlbf bench models``: what a model is worth, and how fast a score is.

Speed is measured in turns with one LMDB miss and one row of scikit-learn, in one run.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlbf.bench.data import Split
from dlbf.bench.timing import Say, Work, call_with_each, fresh
from dlbf.models import measure, train
from dlbf.models.model import Model

__all__ = ["SIZES", "ScoreTimes", "Speed", "Worth", "bench_models", "quality"]

# Bytes and bits per weight of the tables in the comparison.
SIZES = ((256, 4), (1024, 4), (4096, 4), (8192, 8), (8192, 4), (16384, 4), (32768, 4))


# (fpr, deletability) of the bits per key that are told.
TARGETS = ((0.01, 0.0), (0.001, 0.0), (0.01, 0.9), (0.001, 0.9))


@dataclass(frozen=True)
class Worth:
    """What a model of one size is worth: KL in nats, and bits per key, the model included, for each of ``TARGETS``."""

    split: str
    nbytes: int
    weight_bits: int
    kl: float
    kl_float: float
    kl_integer: float
    bits: dict[tuple[float, float], float]

    def to_dict(self) -> dict[str, object]:
        """For JSON: a name for every target."""
        out = {name: value for name, value in vars(self).items() if name != "bits"}
        return out | {f"bits_{fpr:g}_{deletability:g}": bits for (fpr, deletability), bits in self.bits.items()}


def quality(split: Split, sizes: Sequence[tuple[int, int]] = SIZES, say: Say = lambda text: None) -> list[Worth]:
    """KL and bits per key of ``ngram`` models of several sizes, on negatives that nothing was fitted on.

    Bits per key include the model and are those of an ideal allocation.
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
        kl = measure(keys, unseen).kl
        own = 8 * n_bytes / len(split.keys)
        bits = {target: measure(keys, unseen, 8, *target).bits_per_key + own for target in TARGETS}
        report = model.report
        rows.append(Worth(split.name, n_bytes, weight_bits, kl, report["kl_float"], report["kl_integer"], bits))
    return rows


@dataclass(frozen=True)
class ScoreTimes:
    """Nanoseconds per key of an LMDB miss and of scores, one by one and in batches."""

    lmdb_miss_ns: float
    score_ns: float
    score_many_ns: float

    @property
    def score_ratio(self) -> float:
        """A score over a miss."""
        return self.score_ns / self.lmdb_miss_ns

    @property
    def score_many_ratio(self) -> float:
        """A score in a batch over a miss."""
        return self.score_many_ns / self.lmdb_miss_ns

    def to_dict(self) -> dict[str, float]:
        """For JSON: with the ratios."""
        return vars(self) | {"score_ratio": self.score_ratio, "score_many_ratio": self.score_many_ratio}


@dataclass(frozen=True)
class Speed:
    """How fast one model is, on keys that are new in every turn and on the same ones again and again.

    ``predict_ns`` is the time of one row in scikit-learn, None for a model without its estimator.
    """

    kind: str
    form: str
    nbytes: int
    fresh: ScoreTimes
    same: ScoreTimes
    predict_ns: float | None

    def to_dict(self) -> dict[str, object]:
        """For JSON: without what was not measured."""
        return {name: value for name, value in vars(self).items() if value is not None}


# Keys of one turn, half a millisecond: on a busy machine some of many turns run undisturbed, and the best is one of
# those.  More for a batch.
TURN_KEYS = 500
BATCH_KEYS = 4000


def bench_models(
    models: Sequence[Model], asked: Sequence[bytes], stored: Sequence[bytes], *, rounds: int = 60
) -> list[Speed]:
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
    list of Speed
        One per model.

    Examples
    --------
    >>> from dlbf.models import no_model
    >>> keys = [b"key %d" % i for i in range(200)]
    >>> rows = bench_models([no_model()], keys[:100], keys[100:], rounds=1)
    >>> rows[0].kind, rows[0].fresh.score_ns > 0
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
            work: dict[str, tuple[Work, int]] = {
                "lmdb_miss_ns": (miss, TURN_KEYS),
                "score_ns": (call_with_each(model.score), TURN_KEYS),
                "score_many_ns": (model.score_many, BATCH_KEYS),
            }
            fresh_times, same_times = (ScoreTimes(**_best(work, keys, rounds)) for keys in (asked, asked[:TURN_KEYS]))
            predict_ns = None
            estimator, features = model.estimator, model.features
            if estimator is not None and features is not None:
                predict = getattr(estimator, "predict_proba", None) or estimator.decision_function
                matrix = features.transform([asked[0]])
                predict_ns = _best({"predict": (_same_row(predict, matrix), 1)}, asked, rounds)["predict"]
            rows.append(Speed(model.kind, model.form, model.nbytes, fresh_times, same_times, predict_ns))
        environment.close()
    return rows


def _best(work: dict[str, tuple[Work, int]], keys: Sequence[bytes], rounds: int) -> dict[str, float]:
    """The best time per key of each piece of work, in nanoseconds; the pieces take turns.

    Each turn asks for the next keys, as new objects; for the same ones if there are no more than it needs.
    """
    best = dict.fromkeys(work, float("inf"))
    batches = {name: itertools.cycle(keys) for name in work}
    same = len(keys) <= TURN_KEYS
    kept = {name: list(itertools.islice(itertools.cycle(keys), n)) for name, (_, n) in work.items()}
    for _ in range(rounds):
        for name, (call, n) in work.items():
            batch = kept[name] if same else fresh(itertools.islice(batches[name], n))
            started = time.perf_counter_ns()
            call(batch)
            best[name] = min(best[name], (time.perf_counter_ns() - started) / n)
    return best


def _same_row(predict: Callable[[object], object], matrix: object) -> Work:
    return lambda keys: predict(matrix)
