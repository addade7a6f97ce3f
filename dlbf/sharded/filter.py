"""ShardedFilter: many filters as one, each for the keys whose hash begins with its number."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self, cast

import numpy as np
import numpy.typing as npt

from dlbf import format
from dlbf.errors import ChecksumError, DlbfError, FilterFullError, NotDeletableError, StaticFilterError
from dlbf.filters.base import Filter, check_count, check_target, header_of
from dlbf.filters.kinds import BASES
from dlbf.filters.writing import write_pieces
from dlbf.kernels.hashing import checksum64
from dlbf.kernels.sharded import FILTER_ID
from dlbf.learned.explanation import Explanation
from dlbf.sharded.container import MAX_SHARDS, Index, Table, pieces
from dlbf.sharded.holding import ShardHolder
from dlbf.sharded.learned import LearnedShard
from dlbf.typenames import Key, Keys

__all__ = ["ShardedFilter", "shard_room"]

# Standard deviations by which a shard may have more keys than its part: beyond, once in 10^9 shards.
SLACK_DEVIATIONS = 6.0

Buffer = bytes | bytearray | memoryview


def shard_room(n_keys: int, n_shards: int) -> int:
    """Keys that a shard needs room for when ``n_keys`` are spread over ``n_shards`` by their hash.

    Their number in one shard is binomial; six standard deviations more than its mean are exceeded once in 10^9 shards.

    Examples
    --------
    >>> shard_room(64_000_000, 64), shard_room(100, 1)
    (1005954, 100)
    """
    if n_shards == 1:
        return n_keys
    share = 1 / n_shards
    return math.ceil(n_keys * share + SLACK_DEVIATIONS * math.sqrt(n_keys * share * (1 - share)) + 1)


class ShardedFilter(ShardHolder):
    """A filter split into a power of two of filters by the top bits of each key's hash.

    Made empty from a class of filters, as here; from keys that outgrow one machine by ``dlbf.build``; opened by
    ``dlbf.open_filter``, whatever its size in some milliseconds.  It has the methods of the other filters as far as its
    shards have them.

    Parameters
    ----------
    base : type
        ``dlbf.CuckooFilter``, ``dlbf.BloomFilter`` or another class of plain filters that is not static.
    capacity : int
        Keys that all shards together are planned for.
    fpr : float
        False-positive rate.
    shards : int
        Their number, a power of two.
    secret : bytes, optional
        16 bytes for keyed hashing.
    options
        What else ``base`` takes.

    Notes
    -----
    A shard that does not match its checksums, or is missing, answers "maybe" for each of its keys; it is named in
    ``damaged`` or ``missing``, logged once, and ``replace_shard`` puts a good one in its place.  The others go on.

    Examples
    --------
    >>> import dlbf
    >>> f = ShardedFilter(dlbf.CuckooFilter, 10_000, 0.01, shards=8)
    >>> f.update(b"%d" % i for i in range(5000))
    >>> len(f), b"17" in f, len(f.shards), f.remove(b"17"), sum(len(shard) for shard in f.shards)
    (5000, True, 8, True, 4999)
    """

    __hash__ = None

    def __init__(
        self, base: type[Filter], capacity: int, fpr: float = 0.01, *, shards: int = 64, secret: bytes | None = None,
        **options: object,
    ) -> None:  # fmt: skip
        capacity, fpr = check_target(capacity, fpr)
        shards = check_count("shards", shards, 1, MAX_SHARDS)
        if not any(row.cls is base and not row.static for row in BASES.values()):
            raise TypeError(f"expected a class of plain filters that keys can be added to, found {base!r}")
        make = cast(Callable[..., Filter], base)
        room = max(1, shard_room(capacity, shards))
        made = [make(room, fpr, secret=secret, filter_id=FILTER_ID, **options) for _ in range(shards)]
        head = format.write_header(replace(header_of(made[0]), n_items=0))
        params = (
            capacity,
            format.float_to_param(fpr),
            0,
            shards,
            checksum64(head + shards.to_bytes(8, "little")),
            0,
            0,
        )
        self._begin(params, Index(params[4], b"", Table.empty(shards)), secret, True)
        for number, filter in enumerate(made):
            self._put_shard(number, filter)

    # --- changing

    def _need_changeable(self, removing: bool) -> None:
        shard = self._any_shard()
        static = isinstance(shard, LearnedShard) and shard.is_static
        if static or (shard is not None and any(row.static and type(shard) is row.cls for row in BASES.values())):
            raise StaticFilterError(
                "the shards of this filter are built once, from all of their keys; build those that changed anew "
                "(dlbf.build.build_shard) and put them in with replace_shard"
            )
        deletable = shard.deletable if isinstance(shard, LearnedShard) else shard is None or shard.DELETABLE
        if removing and not deletable:
            raise NotDeletableError("the shards of this filter cannot remove keys; CuckooFilter shards can")

    def add(self, key: Key) -> None:
        """Add one key, to its shard."""
        if self.is_writable:
            self._need_changeable(False)
        super().add(key)

    def update(self, keys: Keys) -> None:
        """Add every key of a batch."""
        if self.is_writable:
            self._need_changeable(False)
        super().update(keys)

    def remove(self, key: Key) -> bool:
        """Remove one key; see ``dlbf.CountingBloomFilter.remove``."""
        if self.is_writable:
            self._need_changeable(True)
        return super().remove(key)

    def discard(self, key: Key) -> bool:
        """Like ``remove``, but False instead of KeyError."""
        if self.is_writable:
            self._need_changeable(True)
        return super().discard(key)

    def remove_many(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """``discard`` every key of a batch."""
        if self.is_writable:
            self._need_changeable(True)
        return super().remove_many(keys)

    def _make_room(self, n_key_bytes: int) -> None:
        number = self._wanted_shard()
        was_open = self._is_open(number)
        if not was_open:
            self._open_shard(number)
        shard = self._shard_at(number)
        if shard is None:
            why = self._origin.trouble.get(number, f"shard {number} is missing")
            raise DlbfError(f"{why}; keys of this shard cannot be changed before replace_shard() mends it")
        if was_open:
            raise FilterFullError(
                f"shard {number} of {self.n_shards} has no room for one more key after {len(cast(Filter, shard))}; "
                "nothing was lost. Build this shard anew from its keys, with more room; replace_shard puts it in"
            )

    def clear(self) -> None:
        """Forget every key; size and secret stay."""
        if self.is_writable:
            self._need_changeable(False)
            self._check_all()
            self._lock()
            try:
                for number in range(self.n_shards):
                    if (shard := self._shard_at(number)) is not None:
                        cast(Filter, shard).clear()
            finally:
                self._unlock()
        else:
            super().clear()  # which says why not

    # --- what it is

    @property
    def nbytes(self) -> int:
        """Bytes of all shards, the model that they share, and the table of them.

        As for other filters neither headers and checksums nor the text of the plan count.  For shards that were not
        opened yet it is what the file has of them.
        """
        if self.closed:
            return 0
        total = 32 * self.n_shards + (0 if self._origin.pattern is None else self._origin.pattern.model_bytes)
        for number, entry in enumerate(self._origin.index.entries):
            if (shard := self._shard_at(number)) is not None:
                total += cast(Filter, shard).nbytes
            elif entry.n_bytes:
                # 256 bytes of header, and 8 of sums for every 16 KiB.
                n = entry.n_bytes - format.HEADER_BYTES
                total += n - 8 * -(-n // (format.CHUNK_BYTES + 8))
        return total

    @property
    def plan(self) -> Explanation:
        """The plan that learned shards were built to; AttributeError for plain ones."""
        if self._origin.pattern is None:
            raise AttributeError("plain shards have no plan")
        return self._origin.pattern.plan

    @property
    def fill(self) -> float:
        """Keys stored over keys planned for."""
        return len(self) / self.capacity if self.capacity else math.nan

    def approximate_count(self) -> int:
        """Number of keys, estimated from the contents; of damaged shards what the index says."""
        self._check_all()
        total = 0
        for number, entry in enumerate(self._origin.index.entries):
            shard = self._shard_at(number)
            total += entry.n_items if shard is None else cast(Filter, shard).approximate_count()
        return total

    @property
    def expected_fpr(self) -> float:
        """False-positive rate that theory gives: the mean of the shards', a damaged or missing one passes all."""
        if self._origin.pattern is not None:
            self._check_all()
            bad = sum(self._shard_at(number) is None for number in range(self.n_shards)) / self.n_shards
            return bad + (1 - bad) * self._origin.pattern.plan.fpr
        self._check_all()
        found = (self._shard_at(number) for number in range(self.n_shards))
        return sum(1.0 if shard is None else cast(Filter, shard).expected_fpr for shard in found) / self.n_shards

    # --- bytes and sets

    def _pieces(self) -> Iterator[Buffer]:
        parts: list[Buffer | None] = []
        for number, entry in enumerate(self._origin.index.entries):
            if self._origin.view is not None and not self._is_open(number) and not self.is_writable:
                parts.append(self._origin.view[entry.offset : entry.offset + entry.n_bytes] if entry.n_bytes else None)
                continue
            if not self._is_open(number):
                self._open_shard(number)
            parts.append(None if self._shard_at(number) is None else self._bare_part(number))
        return pieces(replace(self._own_header(), params=self._params[:5]), self._origin.index.pattern, parts)

    def to_bytes(self) -> bytes:
        """The whole filter as bytes; shards that are damaged or missing are missing in them."""
        self._need_alive()
        return b"".join(self._pieces())

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, secret: bytes | None = None) -> Self:
        """The filter that ``to_bytes`` made; the bytes are copied.  Damaged shards answer "maybe"."""
        own = memoryview(bytearray(data))
        header = format.read_header(own)
        sums = format.read_sums(own, header)
        inside = own[format.layout(header.n_payload_bytes).payload]
        if format.chunk_sums(inside) != sums:
            raise ChecksumError("data: the index does not match its checksums; build it again")
        self = cls._opened(header, own, inside, secret, "data")
        for number in range(self.n_shards):
            self._open_shard(number)
        return self

    def save(self, path: str | Path) -> None:
        """Write the filter to a file, whole or not at all, without a copy of it in memory; an existing one is replaced.

        Shards that are damaged or missing are missing in the file.
        """
        self._need_alive()
        write_pieces(Path(path), self._pieces())

    def copy(self) -> Self:
        """An independent filter with the same contents, in memory."""
        return type(self).from_bytes(self.to_bytes(), self._secret)

    __copy__ = copy

    def __or__(self, other: object) -> Self:
        """The shards of both: of filters that were made for each other, neither of which has a shard of the other."""
        if type(other) is not type(self):
            return NotImplemented
        return self._joined(other)

    def __ior__(self, other: object) -> Self:
        raise TypeError("shards are put together into another filter: f = f | g")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardedFilter):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    def __repr__(self) -> str:
        if self.closed:
            return "<ShardedFilter, closed>"
        keyed = ", keyed" if self._secret is not None else ""
        return f"<ShardedFilter: {len(self)} keys in {self.n_shards} shards, {self.nbytes} bytes{keyed}>"
