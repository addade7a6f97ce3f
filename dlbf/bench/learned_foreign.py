"""The learned filters of the PyPI package learnedbf, made to score with a model of ours.

The package takes rows of numbers, not keys, and a classifier that scores rows.  Here a row is the number of a key in a
list, and the classifier is our compiled model: so its filters differ from ours in nothing but themselves.  Its scores
must be in [0, 1], and it cuts that range into pieces of equal length: a score becomes its rank among all scores that
the filter is fitted to, which cuts where the keys are.
"""

import contextlib
import importlib.metadata
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dlbf.models import Model

__all__ = ["FOREIGN", "Foreign", "version"]

# Its class to whether it is made for a rate; the other one is made for a size.
FOREIGN = {"LBF": True, "SLBF": True, "PLBF": True, "FastPLBF": True, "FastPLBFpp": True, "AdaBF": False}


def version() -> str:
    """The version that is installed; ImportError, with what to do, if it is not or cannot be imported."""
    try:
        found = importlib.metadata.version("learnedbf")
        import learnedbf  # noqa: F401
    except Exception as error:  # a broken peer is reported, whatever it raises
        raise ImportError(
            f"learnedbf did not run: {type(error).__name__}: {error}; install it with: pip install 'dlbf[bench]'"
        ) from error
    return found


class Foreign:
    """A filter of learnedbf that stores keys and scores them with a model of ours.

    Parameters
    ----------
    name : str
        One of ``FOREIGN``.
    model : Model
        Scores the keys.
    keys, negatives : sequence of bytes
        What is stored; absent keys that thresholds and sizes are chosen by.
    asked : sequence of bytes
        What will be asked for besides; these only get their numbers here.
    fpr : float
        Rate it is made for.
    n_bits : int
        Size it is made for, the model included, if its class wants one.

    Raises
    ------
    ValueError
        The package finds no such filter.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        keys: Sequence[bytes],
        negatives: Sequence[bytes],
        asked: Sequence[bytes],
        fpr: float,
        n_bits: int,
    ) -> None:
        import learnedbf

        numbered = [*keys, *negatives, *asked]
        self._number = {key: number for number, key in enumerate(numbered)}
        n_fitted = len(keys) + len(negatives)
        ladder = np.sort(model.score_many(numbered[:n_fitted]))
        wanted: dict[str, float] = {"epsilon": fpr} if FOREIGN[name] else {"m": n_bits}
        self._filter = getattr(learnedbf, name)(classifier=_classifier(model, numbered, ladder), **wanted)
        rows = np.arange(n_fitted).reshape(-1, 1)
        self._quietly(lambda: self._filter.fit(rows, np.arange(n_fitted) < len(keys)))

    def _quietly(self, work: Callable[[], Any]) -> Any:
        """Do something without the package's words on standard output and its warnings."""
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()

    @property
    def size_in_bits(self) -> float:
        """What the package says it takes, the model included."""
        return float(sum(self._filter.get_size().values()))

    def contains_many(self, keys: Sequence[bytes]) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Its answer for each of the keys it was made with."""
        rows = np.array([self._number[key] for key in keys]).reshape(-1, 1)
        return np.asarray(self._quietly(lambda: self._filter.predict(rows)), dtype=bool)

    def ask(self, keys: Sequence[bytes]) -> None:
        """Ask for one key after the other."""
        for key in keys:
            self._filter.predict(np.array([[self._number[key]]]))


def _classifier(model: Model, numbered: Sequence[bytes], ladder: "np.ndarray[Any, Any]") -> object:
    """What the package calls a fitted classifier."""
    from sklearn.base import BaseEstimator

    class Classifier(BaseEstimator):  # type: ignore[misc]
        def __init__(self) -> None:
            self.is_fitted_ = True

        def fit(self, rows: object, labels: object) -> object:
            return self

        def get_size(self) -> int:
            return 8 * model.nbytes

        def predict_score(self, rows: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
            scores = model.score_many([numbered[int(row)] for row in rows[:, 0]])
            ranks: np.ndarray[Any, Any] = np.searchsorted(ladder, scores, side="right") / (len(ladder) + 1)
            return ranks

    return Classifier()
