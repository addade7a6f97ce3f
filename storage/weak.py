"""Calls of a method that do not keep its object alive: what a part calls back must not own who owns the part."""

import weakref
from collections.abc import Callable
from typing import TypeVar, cast

__all__ = ["weakly"]

Method = TypeVar("Method", bound=Callable[..., object])


def weakly(method: Method) -> Method:
    """The same method; nothing happens when its object is gone."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: object, **options: object) -> object:
        alive = reference()
        return None if alive is None else alive(*arguments, **options)

    return cast(Method, call)
