from collections.abc import Callable
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type[Any])

def own_methods(*names: str) -> Callable[[_Class], _Class]: ...
