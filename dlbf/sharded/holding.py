"""Holding shards: opening them from a file when they are needed, checking them, completing the file."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, cast

import numpy as np
import numpy.typing as npt

from dlbf import format
from dlbf.errors import ChecksumError, DlbfError, FormatError
from dlbf.filters.base import Filter, aligned_zeros, check_count, detach, header_of, open_payload, payload_of, secret_of
from dlbf.filters.kinds import BASES
from dlbf.kernels.hashing import checksum64, decided_secret
from dlbf.kernels.sharded import FILTER_ID, ShardedCore
from dlbf.learned import LearnedFilter
from dlbf.sharded.blueprint import read_blueprint, split_part
from dlbf.sharded.container import (
    Entry,
    Index,
    aligned,
    inner_header,
    pack_index,
    pack_shard,
    pieces,
    read_index,
    shard_header,
)
from dlbf.sharded.learned import open_learned
from dlbf.typenames import Keys, Memory

__all__ = ["ShardHolder", "Shards"]

log = logging.getLogger("dlbf")

Buffer = bytes | bytearray | memoryview


class Shards(Sequence[Filter]):
    """The shards of a filter, each opened when it is asked for; ``filter.shards``."""

    def __init__(self, owner: "ShardHolder") -> None:
        self._owner = owner

    def __len__(self) -> int:
        return self._owner.n_shards

    def __getitem__(self, number: int) -> Filter:  # type: ignore[override]
        if not isinstance(number, int) or not -len(self) <= number < len(self):
            raise IndexError(f"expected the number of a shard, 0 to {len(self) - 1}, found {number!r}")
        return self._owner.shard(number % len(self))


@dataclass
class Origin:
    """Where the shards of a filter come from.

    Attributes
    ----------
    index : Index
    pattern : LearnedFilter or None
        Whose model learned shards share.
    view : memoryview or None
        Of a mapped file, or of bytes; None if the shards were made in memory.
    where : str
        What errors call it.
    recovering : bool
        Accept shards that were being written when their process died.
    trouble : dict
        What is wrong with shards that are damaged or missing, by number.
    final : dict
        Headers of the shards that were changed, once they are let go of.
    """

    index: Index
    pattern: LearnedFilter | None = None
    view: memoryview | None = None
    where: str = "data"
    recovering: bool = False
    trouble: dict[int, str] = field(default_factory=dict)
    final: dict[int, format.Header] = field(default_factory=dict)


class ShardHolder(ShardedCore, Filter):
    """What ``dlbf.ShardedFilter`` has of its shards."""

    KIND = format.KIND_SHARDED
    PARAMS = ("n_shards", "set_id", "shards_bytes", "pattern_bytes")
    __hash__ = None

    _origin: Origin

    # --- life

    def _begin(
        self, params: tuple[int, ...], index: Index, secret: bytes | None, writable: bool,
        pattern: LearnedFilter | None = None,
    ) -> None:  # fmt: skip
        self._origin = Origin(index, pattern)
        # The shards have buffers of their own.
        self._attach(aligned_zeros(8) if writable else bytes(8), secret, 0, 0)
        self._params = params
        self._secret = decided_secret(secret)
        self._set_shards(index.entries.rows[:, 2].tolist(), pattern)

    @classmethod
    def _from_payload(
        cls,
        header: format.Header,
        payload: Memory,
        secret: bytes | None,
        where: str,
        sums: bytes | None = None,
        recover: bool = False,
    ) -> Self:
        """The filter in a mapped file; ``payload`` is the index's, and its memoryview's object is all of the file."""
        inside = cast(memoryview, payload)
        whole = memoryview(inside.obj).cast("B")
        if sums is not None and format.chunk_sums(inside) != sums:
            raise ChecksumError(f"{where}: the index does not match its checksums; build it again")
        return cls._opened(header, whole, inside, secret, where, recover)

    @classmethod
    def _opened(
        cls, header: format.Header, whole: memoryview, inside: memoryview, secret: bytes | None, where: str,
        recover: bool = False,
    ) -> Self:  # fmt: skip
        if header.kind != cls.KIND or header.hash_kind == format.HASH_NONE:
            found = format.KIND_NAMES.get(header.kind, f"kind {header.kind}")
            raise FormatError(f"{where}: expected a ShardedFilter, found a {found}")
        secret = format.fitting_secret(header, secret)
        index = read_index(header, inside, where)
        pattern = None
        if index.pattern:
            if checksum64(index.pattern) != index.set_id:
                raise FormatError(f"{where}: the blueprint is not that of the shards; build it again")
            pattern = read_blueprint(index.pattern, secret).pattern
        self = cls.__new__(cls)
        self._begin(header.params[:7], index, secret, not whole.readonly, pattern)
        origin = self._origin
        origin.view, origin.where, origin.recovering = whole, where, recover
        return self

    def _open_shard(self, number: int) -> None:
        entry = self._origin.index.entries[number]
        try:
            self._put_shard(number, self._read_shard(number, entry))
        except (DlbfError, ValueError) as error:
            if self.closed:
                raise
            # Not the error itself: whoever keeps it keeps the file mapped.
            self._origin.trouble[number] = why = str(error)
            self._put_shard(number, None)
            log.warning("%s; its keys are answered with 'maybe' until replace_shard() mends it", why)

    def _read_shard(self, number: int, entry: Entry) -> Filter:
        where = f"{self._origin.where}: shard {number} of {self.n_shards}"
        if self._origin.view is None or not entry.n_bytes:
            raise DlbfError(f"{where} is missing")
        with self._origin.view[entry.offset : entry.offset + entry.n_bytes] as data:
            header, payload = self._checked(data, entry, where)
            shard = self._filter_of(header, payload, number, where)
            if shard.is_writable:
                marked = shard_header(header_of(shard), number, self.n_shards, self._origin.index.set_id)
                data[: format.HEADER_BYTES] = format.write_header(replace(marked, flags=format.FLAG_OPEN_FOR_WRITING))
        return shard

    def _checked(self, data: memoryview, entry: Entry, where: str) -> tuple[format.Header, memoryview]:
        """Header and payload of a shard; all of it matches its sums, or was being written when its process died."""
        if self._origin.recovering:
            header = format.read_header(data, where)
            if header.flags & format.FLAG_OPEN_FOR_WRITING:
                return header, data[format.layout(header.n_payload_bytes).payload]
        elif int.from_bytes(data[248:256], "little") != entry.checksum:
            raise ChecksumError(f"{where}: its header is not the one that the index tells of")
        return format.unpack(data, where)

    def _filter_of(self, header: format.Header, payload: memoryview, number: int, where: str) -> Filter:
        torn = bool(header.flags & format.FLAG_OPEN_FOR_WRITING)
        inner = replace(inner_header(header, number, self.n_shards, self._origin.index.set_id, where), flags=0)
        if self._origin.pattern is not None:
            if inner.kind != format.KIND_LEARNED:
                raise FormatError(f"{where}: a shard without the model that the others share; build it again")
            return open_learned(self._origin.pattern, inner, payload, self._secret, where, torn)
        row = next((row for row in BASES.values() if row.number == inner.kind), None)
        if row is None or inner.params[2] != FILTER_ID:
            raise FormatError(f"{where}: not a plain filter made for a shard; build it again")
        if torn:
            return open_payload(row.cls, inner, payload, self._secret, where, recover=True)
        return open_payload(row.cls, inner, payload, self._secret, where)

    def _why_keys(self) -> str:
        shard = None if self._origin.pattern is not None else self._any_shard()
        if self._origin.pattern is not None and len(self._origin.pattern.plan.regions) > 1:
            return "the shards of this filter have a model that scores keys"
        needs = shard is not None and shard.NEEDS_KEYS
        return "the shards of this filter compare whole keys" if needs else ""

    def _any_shard(self) -> Filter | None:
        """One that is open and sound: they are all of a kind."""
        for number in range(self.n_shards):
            if not self._is_open(number):
                self._open_shard(number)
            if (shard := self._shard_at(number)) is not None:
                return cast(Filter, shard)
        return None

    def _detach(self) -> None:
        if self.closed:
            return
        super()._detach()  # none is opened any more
        opened = {number: self._shard_at(number) for number in range(self.n_shards)}
        for number, core in opened.items():
            if core is not None:
                shard = cast(Filter, core)
                if shard.is_writable:
                    self._origin.final[number] = header_of(shard)
                detach(shard)
        self._forget_shards()
        if self._origin.view is not None:
            self._origin.view.release()
            self._origin.view = None

    def _write_sums(self, view: memoryview, payload: memoryview, flush: Callable[[], object]) -> None:
        """Complete the shards that were opened for writing, then the index."""
        entries = list(self._origin.index.entries)
        for number, header in self._origin.final.items():
            entry = entries[number]
            with view[entry.offset : entry.offset + entry.n_bytes] as data:
                places = format.layout(header.n_payload_bytes)
                sums = format.chunk_sums(data[places.payload])
                data[places.sums] = sums
                flush()
                head = replace(header, sums_checksum=checksum64(sums))
                data[: format.HEADER_BYTES] = format.write_header(
                    shard_header(head, number, self.n_shards, self._origin.index.set_id)
                )
                checksum = int.from_bytes(data[248:256], "little")
            entries[number] = Entry(entry.offset, entry.n_bytes, header.n_items, checksum)
        flush()
        index = pack_index(self._own_header(), self._origin.index.pattern, entries)
        view[format.HEADER_BYTES : len(index)] = index[format.HEADER_BYTES :]
        flush()
        view[: format.HEADER_BYTES] = index[: format.HEADER_BYTES]
        flush()

    # --- shards

    @property
    def shards(self) -> Shards:
        """The shards, by number.

        Each is a filter that answers for its own keys: a copy, so that nobody changes or closes it behind this
        filter's back.
        """
        self._need_alive()
        return Shards(self)

    def shard(self, number: int) -> Filter:
        """``shards[number]``; DlbfError if it is damaged or missing."""
        return self._held(number).copy()

    def _held(self, number: int) -> Filter:
        """The filter that answers for a shard."""
        self._need_alive()
        if not self._is_open(number):
            self._open_shard(number)
        found = self._shard_at(number)
        if found is None:
            raise DlbfError(self._origin.trouble.get(number, f"shard {number} is missing"))
        return cast(Filter, found)

    @property
    def damaged(self) -> dict[int, str]:
        """Shards that were found damaged so far, and what is wrong with them; ``check()`` looks at all."""
        return {
            number: why for number, why in self._origin.trouble.items() if self._origin.index.entries[number].n_bytes
        }

    @property
    def missing(self) -> list[int]:
        """Shards that are not there, and answer "maybe"."""
        self._need_alive()
        return [
            number
            for number, entry in enumerate(self._origin.index.entries)
            if not entry.n_bytes
            and (self._origin.view is not None or not self._is_open(number) or self._shard_at(number) is None)
        ]

    def check(self) -> dict[int, str]:
        """Compare every shard with its checksums; what is ``damaged``."""
        self._need_alive()
        self._check_all()
        return self.damaged

    def route(self, keys: Keys) -> npt.NDArray[np.uint32]:
        """The number of the shard of each key, as a numpy array."""
        return self._route(keys)

    @property
    def blueprint(self) -> bytes:
        """What the shards were built to, for ``dlbf.build.build_shard``; empty for plain ones."""
        return self._origin.index.pattern

    def part(self, number: int) -> bytes:
        """A shard as bytes, to be put into another container by ``dlbf.build.combine`` or ``replace_shard``."""
        return self._origin.index.pattern + self._bare_part(number)

    def _bare_part(self, number: int) -> bytes:
        self._held(number)  # or an error
        self._lock()
        try:
            shard = cast(Filter, self._shard_at(number))
            return pack_shard(header_of(shard), payload_of(shard), number, self.n_shards, self._origin.index.set_id)
        finally:
            self._unlock()

    def replace_shard(self, number: int, part: Buffer) -> None:
        """Put another shard in the place of one: rebuilt, or shipped from elsewhere.

        In memory; ``save`` writes the file anew.  A filter that is mapped for writing is refused.

        Parameters
        ----------
        number : int
        part : bytes
            From ``dlbf.build.build_shard`` or ``part``, for this place in a filter of the same blueprint.
        """
        self._need_alive()
        if self._file is not None and self._file.writable:
            raise DlbfError("this filter is mapped with mode='r+', where shards keep their size; open it with mode='r'")
        where = f"the part for shard {number}"
        header, payload = format.unpack(split_part(part)[1], where)
        own = aligned_zeros(len(payload))
        own[:] = payload
        fresh = self._filter_of(header, own, check_count("number", number, 0, self.n_shards - 1), where)
        before = self._replace_shard(number, fresh)
        self._origin.trouble.pop(number, None)
        if before is not None:
            detach(cast(Filter, before))

    def _need_alive(self) -> None:
        if self.closed:
            raise ValueError("this filter is closed")

    def _joined(self, other: Self) -> Self:
        ours, theirs = (set(range(self.n_shards)) - set(f.missing) - set(f.damaged) for f in (self, other))
        same = header_of(self).params[:5] == header_of(other).params[:5] and self.blueprint == other.blueprint
        if not same or format.hash_identity(secret_of(self)) != format.hash_identity(secret_of(other)):
            raise ValueError("these filters cannot be combined; they were not built with the same blueprint and secret")
        if both := sorted(ours & theirs):
            raise ValueError(
                f"both filters have shard {both[0]}{f' and {len(both) - 1} more' if both[1:] else ''}: only disjoint "
                "shards can be put together; replace_shard puts one in the place of another"
            )
        parts = [
            self._bare_part(n) if n in ours else other._bare_part(n) if n in theirs else None
            for n in range(self.n_shards)
        ]
        header = replace(self._own_header(), params=self._params[:5])
        return type(self).from_bytes(b"".join(pieces(header, self.blueprint, parts)), self._secret)

    # --- what the file says

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        return aligned(params[6], 8) + 32 * params[3]

    def _own_header(self) -> format.Header:
        return self._header(self._params, len(self))
