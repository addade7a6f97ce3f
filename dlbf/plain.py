"""Plain data: what JSON can hold."""

import math
from typing import Any

__all__ = ["plain_data"]


def plain_data(value: object) -> Any:
    """The same in lists and dictionaries, as JSON has them; numbers that are not finite become None.

    Examples
    --------
    >>> plain_data({"rates": (0.5, float("nan"))})
    {'rates': [0.5, None]}
    """
    if isinstance(value, dict):
        return {name: plain_data(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
