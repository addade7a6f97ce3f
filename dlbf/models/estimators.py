"""What a fitted estimator is to type checkers: scikit-learn says nothing of the types of its attributes."""

from typing import Any, Protocol

__all__ = ["Estimator"]


class Estimator(Protocol):
    """A fitted object of scikit-learn, or a part of one."""

    def __getattr__(self, name: str, /) -> Any:
        """What fitting has learnt, by scikit-learn's names."""
