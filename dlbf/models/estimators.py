"""What a fitted estimator is to type checkers, and how it is asked: by one thread."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

__all__ = ["Estimator", "one_thread"]


class Estimator(Protocol):
    """A fitted object of scikit-learn, or a part of one; it says nothing of the types of its attributes."""

    def __getattr__(self, name: str, /) -> Any:
        """What fitting has learnt, by scikit-learn's names."""


def one_thread() -> AbstractContextManager[object]:
    """Keep scikit-learn's trees from using OpenMP's threads.

    These wait for each other by spinning, which costs more than it saves on so few rows, above all on a busy machine.
    And in a child of ``fork()`` whose parent has used them, GNU's OpenMP waits for ever for threads that are not there.
    """
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:  # then there is no scikit-learn either
        return nullcontext()
    return cast("AbstractContextManager[object]", threadpool_limits(limits=1, user_api="openmp"))
