"""A store's keys in parts, each read by a process that opens the store for it; see ``dlbf.storage.parallel``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dlbf.storage.lmdbsource import LmdbSource
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.longkeys import get_any
from dlbf.storage.parts import Options, open_parts
from dlbf.storage.ranges import batches_between, even_cuts

__all__ = ["StorePart", "StoreParts"]


@dataclass(frozen=True)
class StorePart:
    """Keys above ``after``, up to and with ``upto``; None: all on that side."""

    path: str
    after: bytes | None
    upto: bytes | None

    def batches(self, n_keys: int) -> Iterator[list[bytes]]:
        """In lists of up to so many, each of another moment, none of which is before the opening."""
        environment = open_parts(Path(self.path), Options(readonly=True)).environment
        try:
            yield from read_part(LmdbSource(environment, environment.dbs), self.after, self.upto, n_keys)
        finally:
            environment.let_go()


class StoreParts:
    """See ``dlbf.storage.source.Parts``."""

    def __init__(self, source: LmdbSource) -> None:
        self.source = source

    def cut(self, n_parts: int, sampled: Sequence[bytes]) -> list[StorePart]:
        """Ranges of keys."""
        source, path = self.source, str(self.source.environment.path.absolute())
        with source.environment.reading() as txn:
            cuts = even_cuts(n_parts, sampled, lambda key: next(source.keys_after(txn, key), None))
        return [StorePart(path, *ends) for ends in zip([None, *cuts], [*cuts, None], strict=True)]

    def count(self, txn: Txn) -> int:
        """Number of keys that the transaction sees."""
        return self.source.count(txn)

    def there(self, txn: Txn, keys: list[bytes]) -> list[bytes]:
        """Those of ``keys`` that the transaction sees."""
        return [key for key in keys if get_any(txn, self.source.dbs, key) is not None]


def read_part(source: LmdbSource, after: bytes | None, upto: bytes | None, n_keys: int) -> Iterator[list[bytes]]:
    """The keys of a range in lists, each in a read transaction of its own: a long one would keep pages from reuse."""

    def read(position: bytes | None) -> list[bytes]:
        with source.environment.reading() as txn:
            return list(islice(source.keys_after(txn, position), n_keys))

    return batches_between(read, after, upto)
