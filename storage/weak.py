"""Calls of a method that do not keep its object alive: what a part calls back must not own who owns the part."""

import weakref
from collections.abc import Callable
from typing import TypeVar, cast

from dlbf.errors import StoreError

__all__ = ["weakly"]

Method = TypeVar("Method", bound=Callable[..., object])


def weakly(method: Method) -> Method:
    """The same method; StoreError when its object is gone."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: object, **options: object) -> object:
        alive = reference()
        if alive is None:
            raise StoreError("the store or guard that this belonged to is gone; keep it as long as its parts are used")
        return alive(*arguments, **options)

    return cast(Method, call)
