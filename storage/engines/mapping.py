"""A dict, or any other mutable mapping of bytes to bytes."""

import os
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, MutableMapping

from dlbf.storage.engines.base import Adapter

__all__ = ["MappingEngine"]

# Whose reads are known to be fresh; a mapping of another type may lag behind something.
PLAIN = (dict, OrderedDict, defaultdict)


class MappingEngine(Adapter):
    """A mutable mapping of bytes to bytes.

    Examples
    --------
    >>> engine = MappingEngine({b"a": b"1"})
    >>> engine.get(b"a"), engine.get(b"b"), list(engine.scan(b""))
    (b'1', None, [b'a'])
    """

    in_flight = False

    def __init__(self, mapping: MutableMapping[bytes, bytes]) -> None:
        self.mapping = mapping
        self.fresh = type(mapping) in PLAIN
        # A dict dies with its process: what a filter knows of one says nothing about the next.
        self._identity = os.urandom(16) if isinstance(mapping, dict) else b""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        return self.mapping.get(key)

    def has(self, key: bytes) -> bool:
        """Whether a key is there."""
        return key in self.mapping

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        self.mapping[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.mapping.pop(key, None)

    def scan(self, start: bytes) -> Iterator[bytes]:
        """The keys of now."""
        return iter(list(self.mapping))

    def count(self) -> int | None:
        """Number of keys."""
        return len(self.mapping)

    def identity(self) -> bytes:
        """Another one for every dict, empty for other mappings."""
        return self._identity
