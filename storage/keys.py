"""What users give as keys, values and items, as bytes."""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar, cast

from dlbf.kernels.keys import read_key

__all__ = ["MISSING", "Items", "Key", "Value", "as_items", "as_key", "as_value"]

Key = bytes | str | bytearray | memoryview
Value = bytes | bytearray | memoryview

K = TypeVar("K")
V = TypeVar("V", covariant=True)


class Keyed(Protocol[K, V]):
    """What has keys and their values: a mapping, or a snapshot."""

    def keys(self) -> Iterable[K]:
        """All of them."""
        ...

    def __getitem__(self, key: K, /) -> V: ...


# What ``update`` takes.
Items = Keyed[bytes, Value] | Keyed[str, Value] | Keyed[Key, Value] | Iterable[tuple[Key, Value]]

# A default that nobody can have given.
MISSING = object()


def as_key(key: object) -> bytes:
    """A key as bytes; str is UTF-8."""
    if type(key) is bytes:
        return key
    return read_key(key)


def as_value(value: Value) -> bytes:
    """A value as bytes."""
    if type(value) is bytes:
        return value
    try:
        return memoryview(value).tobytes()
    except TypeError:
        raise TypeError(
            f"a value must be bytes or another buffer, not {type(value).__name__}; encode it first"
        ) from None


def as_items(other: Items) -> Iterable[tuple[Key, Value]]:
    """What ``update`` takes: a mapping, anything with ``keys()`` (a snapshot, say), or pairs."""
    if isinstance(other, Mapping):
        return other.items()
    if hasattr(other, "keys"):  # not isinstance: to ask a protocol takes as long as a small batch
        keyed = cast("Keyed[Key, Value]", other)
        return ((key, keyed[key]) for key in keyed.keys())  # noqa: SIM118
    return other
