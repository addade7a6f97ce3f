"""Calls of a method that do not keep its object alive: what a part calls back must not own who owns the part."""

import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["weakly"]


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method; nothing happens when its object is gone."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any, **options: Any) -> Any:
        alive = reference()
        return None if alive is None else alive(*arguments, **options)

    return call
