"""What ``kind="auto"`` does: try kinds and sizes on a part of the keys, then fit the most promising on all of them."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dlbf.models.compiling import compile
from dlbf.models.measuring import Quality
from dlbf.models.model import Model, no_model
from dlbf.models.trainers import MIN_SAVING, SMALLEST_BYTES, TRAINERS, Task, best_table, fit_table, table_features

__all__ = ["train_auto"]

T = TypeVar("T")

# What ``auto`` spends on a candidate before it decides which to fit on everything.
SCREEN_ROWS = 50_000
SCREEN_EPOCHS = 3


def _side_by_side(work: Callable[[int], T], items: Sequence[int]) -> list[T]:
    """``work`` of every item, two at a time: features and gradients are computed without the GIL.

    Each fit draws from its own generator, so the order in which they end changes nothing.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(work, items))


class _Search:
    """What ``auto`` has tried, and the best of it."""

    def __init__(self, task: Task, max_bytes: int, candidates: list[dict[str, object]]) -> None:
        self.task, self.max_bytes, self.candidates = task, max_bytes, candidates
        self.best: tuple[float, Model, Quality] | None = None
        # Sizes of tables, as powers of two.
        self.largest = max_bytes.bit_length() - 1
        self.smallest = min(SMALLEST_BYTES.bit_length() - 1, self.largest)
        self.tables: dict[tuple[int, int], float] = {}  # (log2 of the weights, bits of each): total bits

    def consider(self, model: Model, quality: Quality, screened: bool) -> float:
        """Remember the model if it is small enough; its total bits."""
        bits = self.task.total_bits(quality, model.nbytes)
        if model.nbytes <= self.max_bytes:
            self.candidates.append(
                {
                    "kind": model.kind,
                    "form": model.form,
                    "nbytes": model.nbytes,
                    "total_bits": bits,
                    "kl": quality.kl,
                    "screened": screened,
                }
            )
            if self.best is None or bits < self.best[0]:
                self.best = bits, model, quality
        return bits

    def pays(self, plain: float) -> bool:
        """Whether the best is worth its time beside a filter without a model."""
        return self.best is not None and self.best[0] <= (1 - MIN_SAVING) * plain

    def screen_tables(self) -> None:
        """Try tables: total bits fall and then rise with the size, so every fourth size, then the best's neighbours."""
        self._try_sizes(range(self.smallest, self.largest + 2, 2))
        middle = min(self.tables, key=lambda size: self.tables[size])[0]
        self._try_sizes((middle - 1, middle + 1))

    def _try_sizes(self, sizes: Iterable[int]) -> None:
        known = {size for size, _ in self.tables}
        fresh = [size for size in sizes if self.smallest <= size <= self.largest + 1 and size not in known]
        for log2_weights, found in zip(fresh, _side_by_side(self._screen_table, fresh), strict=True):
            for weight_bits, model, quality in found:
                self.tables[log2_weights, weight_bits] = self.consider(model, quality, True)

    def _screen_table(self, log2_weights: int) -> list[tuple[int, Model, Quality]]:
        features = table_features(self.task, log2_weights)
        fitted = fit_table(self.task, features, SCREEN_ROWS, f"try {1 << log2_weights} weights", SCREEN_EPOCHS)
        found = []
        for weight_bits in (8, 4):
            if self.smallest <= log2_weights - (weight_bits == 4) <= self.largest:
                model = compile(fitted, features, weight_bits=weight_bits, kind="ngram")
                found.append((weight_bits, model, self.task.quality(model, SCREEN_ROWS)))
        return found

    def finish_tables(self) -> None:
        """With all keys larger tables pay more than the sample showed, so also fit the next size."""
        log2_weights, weight_bits = min(self.tables, key=lambda size: self.tables[size])

        def finish(size: int) -> tuple[Model, Quality]:
            features = table_features(self.task, size)
            estimator = fit_table(self.task, features, 1 << 40, f"fit {1 << size} weights")
            return best_table(self.task, estimator, features, weight_bits, "ngram")

        finalists = [size for size in (log2_weights, log2_weights + 1) if size - (weight_bits == 4) <= self.largest]
        for model, quality in _side_by_side(finish, finalists):
            self.consider(model, quality, False)


def train_auto(task: Task, max_bytes: int, candidates: list[dict[str, object]]) -> tuple[Model, Quality | None]:
    """Screen kinds and sizes on a part of the keys, then fit the most promising on all of them."""
    plain = task.plain_bits()
    candidates.append({"kind": "none", "form": "none", "nbytes": 0, "total_bits": plain, "kl": 0.0})
    search = _Search(task, max_bytes, candidates)
    search.screen_tables()
    for trainer in TRAINERS.values():
        for model, quality in trainer.screen(task, max_bytes):
            search.consider(model, quality, True)
    if search.best is None or not search.pays(plain):
        return no_model(), None
    kind = search.best[1].kind
    search.best = None
    if kind == "ngram":
        search.finish_tables()
    for model, quality in TRAINERS[kind].finish(task, max_bytes):
        search.consider(model, quality, False)
    if search.best is None or not search.pays(plain):
        return no_model(), None
    return search.best[1], search.best[2]
