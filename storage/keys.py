"""What users give as keys, values and items, as bytes."""

from collections.abc import Iterable, Mapping
from typing import Any

from dlbf.kernels.keys import read_key

__all__ = ["MISSING", "Key", "Value", "as_items", "as_key", "as_value"]

Key = bytes | str | bytearray | memoryview
Value = bytes | bytearray | memoryview

# A default that nobody can have given.
MISSING = object()


def as_key(key: object) -> bytes:
    """A key as bytes; str is UTF-8."""
    if type(key) is bytes:
        return key
    return read_key(key)


def as_value(value: Any) -> bytes:
    """A value as bytes."""
    if type(value) is bytes:
        return value
    try:
        return memoryview(value).tobytes()
    except TypeError:
        raise TypeError(
            f"a value must be bytes or another buffer, not {type(value).__name__}; encode it first"
        ) from None


def as_items(other: Any) -> Iterable[tuple[Any, Any]]:
    """What ``update`` takes: a mapping, anything with ``keys()`` (a snapshot, say), or pairs."""
    if isinstance(other, Mapping):
        return other.items()
    return ((key, other[key]) for key in other.keys()) if hasattr(other, "keys") else other  # noqa: SIM118
