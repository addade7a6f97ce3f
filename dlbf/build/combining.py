"""Putting shards together: each once, all of them, all made for each other."""

import mmap
from collections.abc import Iterable
from pathlib import Path

from dlbf import format
from dlbf.errors import DlbfError, FormatError
from dlbf.filters.writing import write_pieces
from dlbf.kernels.hashing import checksum64
from dlbf.sharded.blueprint import split_part
from dlbf.sharded.container import inner_header, pieces, read_index

__all__ = ["combine", "part_name", "verify_container"]

Buffer = bytes | bytearray | memoryview


def part_name(part: Buffer) -> str:
    """A name for a part, by its content: equal parts have equal names, whoever built them.

    Examples
    --------
    >>> part_name(b"")
    '2d06800538d394c2.part'
    """
    return f"{checksum64(part):016x}.part"


def combine(path: str | Path, parts: Iterable[Buffer | str | Path], *, allow_missing: bool = False) -> None:
    """Write the file of a sharded filter from its parts, and read it again to verify it.

    Parameters
    ----------
    path : path
        Replaced whole or not at all.
    parts : iterable of bytes or paths
        What ``build_shard`` made, in any order; files are mapped, not read into memory.  A part that comes twice (a
        task that was run again) counts once.
    allow_missing : bool
        Leave out shards that are not among the parts: they answer "maybe", and ``|`` puts them in later.

    Raises
    ------
    FormatError, ChecksumError
        If something is no part, or damaged.
    DlbfError
        If parts were built with different blueprints, if two differ that are for the same shard, or if one is missing.
    """
    maps: list[mmap.mmap] = []
    shards: dict[int, memoryview] = {}
    first: memoryview | None = None
    header: format.Header | None = None
    try:
        for count, given in enumerate(parts):
            where = str(given) if isinstance(given, str | Path) else f"part {count}"
            plan, shard = split_part(memoryview(_mapped(given, maps)) if isinstance(given, str | Path) else given)
            head, _ = format.unpack(shard, where)
            if first is None or header is None:
                first, header = plan, head
                if len(plan):
                    format.unpack(plan, f"{where}: its blueprint")
            if plan != first or head.params[14:] != header.params[14:]:
                raise DlbfError(f"{where}: built with another blueprint than the parts before it; build it again")
            number = head.params[13] if head.kind == format.KIND_SHARD else -1
            inner_header(head, number, header.params[14], header.params[15], where)
            before = shards.setdefault(number, shard)
            if before is not shard and before != shard:
                raise DlbfError(f"{where}: differs from another part for shard {number}: built from other keys")
        if header is None or first is None:
            raise DlbfError("no parts: expected those that dlbf.build.build_shard made")
        n_shards = header.params[14]
        missing = [number for number in range(n_shards) if number not in shards]
        if missing and not allow_missing:
            raise DlbfError(
                f"{len(missing)} of {n_shards} shards are missing, the first is {missing[0]}; build them, or pass "
                "allow_missing=True: they answer 'maybe' then"
            )
        _write(Path(path), bytes(first), header, [shards.get(number) for number in range(n_shards)])
    finally:
        shards.clear()
        first = plan = shard = before = None  # type: ignore[assignment]
        for each in maps:
            _close(each)


def _write(path: Path, plan: bytes, like: format.Header, shards: list[memoryview | None]) -> None:
    n_shards, set_id = like.params[14:16]
    if plan:
        n_keys, rate = format.read_header(plan).params[:2]
    else:
        n_keys, rate = like.params[0] * n_shards, like.params[1]
    params = (n_keys, rate, 0, n_shards, set_id)
    header = format.Header(format.KIND_SHARDED, 0, params, 0, like.hash_kind, like.key_check)
    write_pieces(path, pieces(header, plan, shards))
    verify_container(path)


def verify_container(path: Path) -> None:
    """Compare every byte of a sharded filter's file with its checksums; an error names what is damaged."""
    maps: list[mmap.mmap] = []
    try:
        view = memoryview(_mapped(path, maps))
        header = format.read_header(view, str(path))
        if header.kind != format.KIND_SHARDED:
            raise FormatError(f"{path}: expected a ShardedFilter, found kind {header.kind}")
        sums = format.read_sums(view, header, str(path))
        inside = view[format.layout(header.n_payload_bytes).payload]
        if format.chunk_sums(inside) != sums:
            raise FormatError(f"{path}: the index does not match its checksums; write it again")
        index = read_index(header, inside, str(path))
        for number, entry in enumerate(index.entries):
            if entry.n_bytes:
                where = f"{path}: shard {number}"
                head, _ = format.unpack(view[entry.offset : entry.offset + entry.n_bytes], where)
                inner_header(head, number, len(index.entries), index.set_id, where)
    finally:
        view = inside = None  # type: ignore[assignment]
        for each in maps:
            _close(each)


def _mapped(path: str | Path, maps: list[mmap.mmap]) -> mmap.mmap:
    with Path(path).open("rb") as file:
        if not Path(path).stat().st_size:
            raise FormatError(f"{path}: empty; expected a part that dlbf.build.build_shard made")
        maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return maps[-1]


def _close(mapped: mmap.mmap) -> None:
    try:
        mapped.close()
    except BufferError:
        pass  # an error that is being raised still refers to it; it goes with that
