"""From a fitted estimator to integers: tables, quadratic forms and trees.

scikit-learn is not imported here: an estimator is known by the names of its classes, and read through its fitted
attributes.
"""

import math
import struct
from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

from dlbf.models.estimators import Estimator, one_thread
from dlbf.models.features import Features, PackedKeys
from dlbf.models.kinds import KINDS, ROWS, kind_of_class
from dlbf.models.measuring import measure
from dlbf.models.model import Model, make, seal_under
from dlbf.typenames import Keys

__all__ = ["LINEAR", "SUPPORTED", "class_name", "compile", "float_scores", "score_rows"]

Array = npt.NDArray[np.float64]

# Score units per nat in the forms that have room for it; a table's scale follows from its largest weight.
UNITS_PER_NAT = 256.0

SUPPORTED = tuple(name for kind in ROWS.values() for name in kind.classes)
LINEAR = ("LogisticRegression", "SGDClassifier", "LinearSVC")


def _quantise_table(weights: Array, weight_bits: int, clip: float) -> tuple[bytes, float]:
    """Weights as int8 or packed uint4, and the units per nat; ``clip`` is the largest weight that is kept."""
    top = 127 if weight_bits == 8 else 7
    scale = top / clip if clip > 0 else 1.0
    whole = np.clip(np.rint(weights * scale), -top - 1, top).astype(np.int64)
    if weight_bits == 8:
        return whole.astype(np.int8).tobytes(), scale
    shifted = (whole + 8).astype(np.uint8)
    return (shifted[0::2] | shifted[1::2] << 4).tobytes(), scale


def _table(estimator: Estimator, features: Features, weight_bits: int, kind: str, clip_sigmas: float | None) -> Model:
    weights = _weights(estimator)
    if clip_sigmas is not None and not clip_sigmas > 0:
        raise ValueError(f"clip_sigmas must be above 0, found {clip_sigmas!r}")
    largest = float(np.abs(weights).max(initial=0.0))
    # Sixteen steps are too few for the rare large weights: cut those off.
    sigmas = clip_sigmas if clip_sigmas is not None else (3.0 if weight_bits == 4 else math.inf)
    deviation = float(weights.std())
    clip = min(largest, sigmas * deviation) if deviation > 0 else largest
    payload, scale = _quantise_table(weights, weight_bits, clip)
    bias = _bounded(_intercept(estimator) * scale)
    return make(f"int{weight_bits} table", payload, kind, features, bias=bias, scale=scale)


def _finite(values: npt.ArrayLike, what: str) -> Array:
    """Fitted numbers as doubles; what is not finite has no place among integers."""
    found = np.asarray(values, dtype=np.float64)
    if not np.isfinite(found).all():
        raise ValueError(f"{what} of the estimator has values that are not finite; it cannot be compiled to integers")
    return found


def _weights(estimator: Estimator) -> Array:
    found = estimator.coef_
    return _finite(found.toarray() if hasattr(found, "toarray") else found, "coef_").ravel()  # sparsify() was called


def _intercept(estimator: Estimator) -> float:
    return float(_finite(estimator.intercept_, "intercept_").ravel()[0])


def _bounded(value: float) -> int:
    return max(-(1 << 29), min(1 << 29, round(value)))


def _quadratic(squares: Array, lines: Array, constant: float, centres: Array, features: Features, kind: str) -> Model:
    """The form ``constant + sum(squares * x**2 + lines * x)`` in nats, as integers with a common power of two.

    Rounding is exact at ``centres``, the values that keys have, whatever it does far from them.
    """
    # A sum far beyond what a score holds would be cut off for every key alike: take fewer units per nat then.
    tops = np.where(np.arange(len(lines)) > 0, 255.0, 2048.0) if features.view == "lexical" else 65535.0
    reach = max(abs(constant) * 2, 0.0 if squares.any() else float((np.abs(lines) * tops).sum()))
    if not math.isfinite(reach):
        raise ValueError("the estimator's weights are too large to be compiled to integers")
    unit_bits = int(math.log2(UNITS_PER_NAT))
    while reach * 2.0**unit_bits > 2**30:
        unit_bits -= 1
    fraction = unit_bits + 32
    while fraction > unit_bits and (
        np.abs(squares).max(initial=0.0) * 2.0**fraction > 2**24 - 1
        or np.abs(lines).max(initial=0.0) * 2.0**fraction > 2**31 - 2**17  # room for what is made good below
    ):
        fraction -= 1
    a = np.clip(np.rint(squares * 2.0**fraction), -(2**24), 2**24)
    # What the factor of the square lost is made good around the centre.
    lines = lines + 2.0 * (squares - a / 2.0**fraction) * centres
    b = np.clip(np.rint(lines * 2.0**fraction), -(2**31), 2**31 - 1)
    constant += float(((squares - a / 2.0**fraction) * -(centres**2) + (lines - b / 2.0**fraction) * centres).sum())
    terms = [(i, int(a[i]), int(b[i])) for i in range(len(a)) if a[i] or b[i]]
    payload = b"".join(struct.pack("<HHii", i, 0, x, y) for i, x, y in terms)
    units = 2.0**unit_bits
    shift = fraction - unit_bits
    return make(
        "quadratic", payload, kind, features, _bounded(constant * units), len(terms), sum_shift=shift, scale=units
    )


def _linear(estimator: Estimator, features: Features, kind: str) -> Model:
    lines = _weights(estimator)
    nothing = np.zeros_like(lines)
    return _quadratic(nothing, lines, _intercept(estimator), nothing, features, kind)


def _gaussian(estimator: Estimator, features: Features) -> Model:
    mean = _finite(estimator.theta_, "theta_")
    # A deviation so small beside the mean would need a constant beyond what a score holds.  All of these are so narrow
    # that a value other than the mean decides by itself, before and after.
    narrowest = np.maximum(mean**2 * mean.shape[1] / 2.0**30, 1e-6)
    variance = np.maximum(_finite(estimator.var_, "var_"), narrowest)
    squares = 0.5 / variance[0] - 0.5 / variance[1]
    lines = mean[1] / variance[1] - mean[0] / variance[0]
    constants = 0.5 * (mean[0] ** 2 / variance[0] - mean[1] ** 2 / variance[1] + np.log(variance[0] / variance[1]))
    prior = np.clip(estimator.class_prior_, 1e-300, 1.0)
    constant = float(constants.sum() + np.log(prior[1] / prior[0]))
    return _quadratic(squares, lines, constant, mean[1], features, "naive-bayes")


class _Node:
    """A node of any library's tree: either a leaf's value, or a test and two children."""

    __slots__ = ("left", "right", "threshold", "value", "variable")

    def __init__(self, variable: int, threshold: float, left: int, right: int, value: float) -> None:
        self.variable, self.threshold, self.left, self.right, self.value = variable, threshold, left, right, value


def _from_tree(tree: Estimator, value_of: Callable[[int], float]) -> Callable[[int], _Node]:
    """Nodes of a ``sklearn.tree._tree.Tree``."""

    def node(i: int) -> _Node:
        left = int(tree.children_left[i])
        if left < 0:
            return _Node(-1, 0.0, -1, -1, value_of(i))
        return _Node(int(tree.feature[i]), float(tree.threshold[i]), left, int(tree.children_right[i]), 0.0)

    return node


def _from_histogram(nodes: npt.NDArray[np.void]) -> Callable[[int], _Node]:
    """Nodes of a histogram gradient booster's predictor."""

    def node(i: int) -> _Node:
        row = nodes[i]
        if row["is_leaf"]:
            return _Node(-1, 0.0, -1, -1, float(row["value"]))
        if row["is_categorical"]:
            raise TypeError("categorical splits are not compiled; fit without categorical_features")
        return _Node(int(row["feature_idx"]), float(row["num_threshold"]), int(row["left"]), int(row["right"]), 0.0)

    return node


def _share(tree: Estimator) -> Callable[[int], float]:
    """The share of the positive class in a node, less one half."""

    def value(i: int) -> float:
        counts = np.asarray(tree.value[i]).ravel()
        return float(counts[1] / counts.sum() - 0.5)

    return value


def _vote(share: Callable[[int], float], weight: float) -> Callable[[int], float]:
    return lambda i: weight if share(i) > 0 else -weight


def _log_odds(share: Callable[[int], float]) -> Callable[[int], float]:
    least = float(np.finfo(np.float64).eps)  # as scikit-learn has it

    def value(i: int) -> float:
        positive = share(i) + 0.5
        return math.log(max(positive, least) / max(1.0 - positive, least))

    return value


def _step(values: Array, rate: float) -> Callable[[int], float]:
    return lambda i: rate * float(values[i])


def _trees(estimator: Estimator, name: str) -> tuple[list[Callable[[int], _Node]], float]:
    """The trees of an ensemble, leaves in its own units, and the constant they are added to."""
    if name == "DecisionTreeClassifier":
        return [_from_tree(estimator.tree_, _share(estimator.tree_))], 0.0
    if name in ("RandomForestClassifier", "ExtraTreesClassifier"):
        return [_from_tree(member.tree_, _share(member.tree_)) for member in estimator.estimators_], 0.0
    if name == "AdaBoostClassifier":
        trees = []
        for member, weight in zip(estimator.estimators_, estimator.estimator_weights_, strict=False):
            if not hasattr(member, "tree_"):
                raise TypeError(
                    f"AdaBoostClassifier is compiled only over decision trees, found {type(member).__name__}"
                )
            share = _share(member.tree_)
            # What AdaBoost summed by default before scikit-learn 1.6: log-odds, not votes.
            summed = getattr(estimator, "algorithm", None) == "SAMME.R"
            trees.append(_from_tree(member.tree_, _log_odds(share) if summed else _vote(share, float(weight))))
        return trees, 0.0
    if name == "GradientBoostingClassifier":
        rate = float(estimator.learning_rate)
        trees = []
        for member in estimator.estimators_[:, 0]:
            trees.append(_from_tree(member.tree_, _step(member.tree_.value[:, 0, 0], rate)))
        if isinstance(estimator.init_, str):  # "zero"
            return trees, 0.0
        if type(estimator.init_).__name__ != "DummyClassifier":
            raise TypeError(
                f"a GradientBoostingClassifier that starts from a {type(estimator.init_).__name__} is not compiled; "
                "fit without init="
            )
        prior = np.clip(estimator.init_.class_prior_, 1e-300, 1.0)
        half = 0.5 if estimator.loss == "exponential" else 1.0
        return trees, half * float(np.log(prior[1] / prior[0]))
    if np.any(getattr(estimator, "is_categorical_", None)):
        # Its columns are in another order than those of the matrix it was fitted on.
        raise TypeError("categorical values are not compiled; fit without categorical_features")
    trees = [_from_histogram(stage[0].nodes) for stage in estimator._predictors]
    return trees, float(np.ravel(estimator._baseline_prediction)[0])


def _flatten(node_of: Callable[[int], _Node]) -> list[tuple[int, int, int, float]]:
    """One tree, breadth first, so that children are neighbours and come after their parent.

    Tests that no 16-bit value can pass or fail are followed, not stored.
    """

    def settle(i: int) -> _Node:
        node = node_of(i)
        while node.variable >= 0 and not 0 <= math.floor(min(node.threshold, 65535.0)) < 65535:
            node = node_of(node.right if node.threshold < 0 else node.left)
        return node

    queue = [settle(0)]
    rows: list[tuple[int, int, int, float]] = []
    for node in queue:  # grows while we read it
        if node.variable < 0:
            rows.append((255, 0, 0, node.value))
            continue
        # x is whole, so x <= t and x <= floor(t) are the same question.
        rows.append((node.variable, math.floor(node.threshold), len(queue), 0.0))
        queue += [settle(node.left), settle(node.right)]
    if len(rows) > 65535:
        raise ValueError(f"a tree has {len(rows)} nodes, at most 65535 are compiled; limit max_leaf_nodes")
    return rows


def _forest(estimator: Estimator, features: Features, name: str) -> Model:
    nodes, constant = _trees(estimator, name)
    if not 0 < len(nodes) <= 32768:
        raise ValueError(f"expected 1 to 32768 trees, found {len(nodes)}")
    trees = [_flatten(node_of) for node_of in nodes]
    largest = max((abs(row[3]) for tree in trees for row in tree), default=0.0)
    # Leaves are 16 bits; the sum of all of them must stay within the score's limit, which 32768 trees do.
    scale = min(UNITS_PER_NAT * 16, 32767 / largest) if largest > 0 else 1.0
    firsts, body, at = [], [], 0
    for tree in trees:
        firsts.append(struct.pack("<I", at))
        at += len(tree)
        for variable, threshold, left, value in tree:
            field = round(value * scale) & 0xFFFF if variable == 255 else threshold
            body.append(struct.pack("<HHBB", field, left, variable, 0))
    payload = b"".join(firsts + body)
    return make("trees", payload, "trees", features, _bounded(constant * scale), len(trees), scale=scale)


def class_name(estimator: object) -> str:
    """The supported class an estimator is or derives from."""
    names = [name.split()[0] for name in SUPPORTED]
    for base in type(estimator).__mro__:
        if base.__name__ in names and base.__module__.startswith("sklearn."):
            return base.__name__
    raise TypeError(
        f"{type(estimator).__module__}.{type(estimator).__name__} cannot be compiled to integers; "
        f"supported are scikit-learn's {', '.join(SUPPORTED)}"
    )


def _check_fitted(estimator: Estimator, name: str, features: Features) -> None:
    classes = estimator.classes_
    if getattr(estimator, "n_outputs_", 1) != 1:
        raise ValueError(f"expected one label for each key, found {estimator.n_outputs_}; fit on a single column")
    if len(classes) != 2:
        raise ValueError(f"expected two classes (negative, key), found {len(classes)}: {list(classes)!r}")
    n_columns = getattr(estimator, "n_features_in_", features.n_columns)
    if n_columns != features.n_columns:
        raise ValueError(
            f"the {name} was fitted on {n_columns} columns, the {features.view} view has {features.n_columns}; "
            "pass the Features whose transform() it was fitted on"
        )


def _as_features(features: Features | str | None, estimator: Estimator) -> Features:
    if isinstance(features, Features):
        return features
    n_columns = int(getattr(estimator, "n_features_in_", 0))
    if features is None:
        features = "lexical" if n_columns == Features("lexical").n_columns else "ngram"
    if features == "ngram":
        if n_columns < 16 or n_columns & (n_columns - 1):
            raise ValueError(f"{n_columns} columns are not an ngram table; pass features=Features(...) explicitly")
        return Features("ngram", n_columns)
    return Features(features)


def compile(
    estimator: object,
    features: Features | str | None = None,
    *,
    keys: Keys | None = None,
    negatives: Keys | None = None,
    weight_bits: int = 8,
    clip_sigmas: float | None = None,
    kind: str | None = None,
    secret: bytes | None = None,
) -> Model:
    """Turn a fitted scikit-learn estimator into integers.

    Parameters
    ----------
    estimator : object
        A fitted classifier of two classes, the second one being "is a key".
    features : Features or {"ngram", "lexical", "numeric"}
        What it was fitted on; a name stands for that view's defaults, with the estimator's number of weights.
    keys, negatives : iterables of keys, optional
        If both are given, the loss by quantisation is measured on them and put into ``report``.
    weight_bits : {8, 4}
        For tables: 4 bits lose a little more and hold twice as many weights.
    clip_sigmas : float, optional
        For tables: weights beyond so many standard deviations are cut off.  The default is 3 at 4 bits, none at 8.
    kind : str, optional
        What ``Model.kind`` says; found from the estimator by default.
    secret : bytes, optional
        Seals ``Model.pickle``.

    Returns
    -------
    Model

    Raises
    ------
    TypeError
        If the estimator cannot be compiled; the message lists those that can.

    Notes
    -----
    Trees, linear and naive-Bayes models over the ``lexical`` and ``numeric`` views; linear ones over ``ngram``.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> view = Features("lexical")
    >>> keys, negatives = [f"10.0.0.{i}/a.exe" for i in range(50)], [f"example.org/page/{i}" for i in range(50)]
    >>> estimator = GaussianNB().fit(view.transform(keys + negatives), [1] * 50 + [0] * 50)
    >>> model = compile(estimator, view)
    >>> model.score("10.1.1.1/b.exe") > model.score("example.org/page/x")
    True
    """
    name = class_name(estimator)
    if getattr(estimator, "classes_", None) is None:
        raise ValueError(f"the {name} is not fitted; call fit(features.transform(keys + negatives), labels) first")
    if weight_bits not in (4, 8):
        raise ValueError(f"weight_bits must be 4 or 8, found {weight_bits!r}")
    if kind is not None and kind not in KINDS[1:]:
        raise ValueError(f"kind must be one of {', '.join(KINDS[1:])}; found {kind!r}")
    fitted = cast(Estimator, estimator)
    view = _as_features(features, fitted)
    _check_fitted(fitted, name, view)
    linear = name in LINEAR
    label = kind or kind_of_class(name).name
    if linear and view.view == "ngram":
        model = _table(fitted, view, weight_bits, label, clip_sigmas)
    elif linear:
        model = _linear(fitted, view, label)
    elif view.view == "ngram":
        raise TypeError(f"a {name} over the ngram view cannot be compiled; use the lexical or numeric view")
    elif name == "GaussianNB":
        model = _gaussian(fitted, view)
    else:
        model = _forest(fitted, view, name)
    model.estimator = estimator
    seal_under(model, secret)
    if keys is not None and negatives is not None:
        model.report.update(quantisation_loss(model, PackedKeys(keys), PackedKeys(negatives)))
    return model


def float_scores(estimator: Estimator, features: Features, packed: PackedKeys, rows: npt.NDArray[np.int64]) -> Array:
    """The estimator's own scores, in floating point: what the integers approximate."""
    with one_thread():
        return _float_scores(estimator, features, packed, rows)


def _float_scores(estimator: Estimator, features: Features, packed: PackedKeys, rows: npt.NDArray[np.int64]) -> Array:
    out = []
    for first in range(0, len(rows), 20000):
        matrix = features.rows(packed, rows[first : first + 20000])
        if hasattr(estimator, "decision_function"):
            out.append(np.asarray(estimator.decision_function(matrix), dtype=np.float64))
        elif hasattr(estimator, "theta_"):
            with np.errstate(divide="ignore", invalid="ignore"):  # values that never vary have no density
                both = estimator.predict_joint_log_proba(matrix)
                out.append(np.nan_to_num(both[:, 1] - both[:, 0]))
        else:
            out.append(estimator.predict_proba(matrix)[:, 1])
    return np.concatenate(out) if out else np.empty(0)


def score_rows(model: Model, packed: PackedKeys, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The integer scores of some packed keys."""
    return model.score_packed(packed.data, packed.offsets, np.ascontiguousarray(rows))


def quantisation_loss(model: Model, keys: PackedKeys, negatives: PackedKeys, n_regions: int = 8) -> dict[str, float]:
    """KL before and after quantisation, on at most 50,000 of each."""
    if model.features is None or model.estimator is None:
        return {"kl_float": 0.0, "kl_integer": 0.0}
    both = []
    rows = [np.arange(0, len(p), max(1, len(p) // 50000), dtype=np.int64) for p in (keys, negatives)]
    for score in (
        lambda packed, chosen: float_scores(model.estimator, model.features, packed, chosen),
        lambda packed, chosen: score_rows(model, packed, chosen),
    ):
        both.append(measure(score(keys, rows[0]), score(negatives, rows[1]), n_regions).kl)
    return {"kl_float": both[0], "kl_integer": both[1]}
