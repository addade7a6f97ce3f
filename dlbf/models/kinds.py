"""The table of model kinds: how a model was made, which is stored with it and never used for scoring.

A new kind costs a row here and its trainer in ``dlbf/models/training.py``.
"""

from dataclasses import dataclass

__all__ = ["KINDS", "ROWS", "Kind", "kind_of_class", "kind_of_number"]


@dataclass(frozen=True)
class Kind:
    """One row of the table.

    Attributes
    ----------
    name : str
        What users call it.
    number : int
        What stands for it in a model's parameters.
    view : {"ngram", "values", "any", "none"}
        What it is fitted on: hashed runs of bytes, lexical or numeric values, either, or nothing.
    classes : tuple of str
        The scikit-learn classes that are compiled to this kind, as people are told of them.
    """

    name: str
    number: int
    view: str
    classes: tuple[str, ...] = ()


_TABLE = (
    Kind("none", 0, "none"),
    Kind("ngram", 1, "ngram", ("LogisticRegression", "SGDClassifier")),
    Kind("svm", 4, "any", ("LinearSVC",)),
    Kind("naive-bayes", 3, "values", ("GaussianNB",)),
    Kind(
        "trees", 2, "values",
        (
            "DecisionTreeClassifier",
            "RandomForestClassifier",
            "ExtraTreesClassifier",
            "GradientBoostingClassifier",
            "HistGradientBoostingClassifier",
            "AdaBoostClassifier (of decision trees)",
        ),
    ),
)  # fmt: skip

ROWS: dict[str, Kind] = {kind.name: kind for kind in _TABLE}
# The names by number.
KINDS = tuple(kind.name for kind in sorted(_TABLE, key=lambda kind: kind.number))


def kind_of_number(number: int) -> Kind | None:
    """The kind that a model's parameters name, or None.

    Examples
    --------
    >>> kind_of_number(1).name
    'ngram'
    """
    return next((kind for kind in _TABLE if kind.number == number), None)


def kind_of_class(name: str) -> Kind:
    """The kind that a scikit-learn class is compiled to.

    Examples
    --------
    >>> kind_of_class("LinearSVC").name
    'svm'
    """
    return next(kind for kind in _TABLE if any(known.split()[0] == name for known in kind.classes))
