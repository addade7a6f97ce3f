r"""The file format: how every dlbf object is laid out in bytes.

This module turns bytes into records and back; it does no I/O.  Everything is little-endian;
bit 0 of a byte is its least significant one; cell 0 of a packed array is in the lowest bits.

::

    offset  width  type   field
         0      8  bytes  magic  89 44 4C 42 46 0D 0A 1A   ("\x89DLBF\r\n\x1a")
         8      2  u16    version, now 1
        10      2  u16    kind of object (KIND_NAMES)
        12      2  u16    hash: 0 none, 1 XXH3-64 seed 0, 2 SipHash-2-4, 3 SipHash-1-3
        14      2  u16    flags: bit 0 = open for writing, other bits zero
        16      8  u64    key check: the keyed hash of b"dlbf key check", 0 when unkeyed
        24      8  u64    payload size in bytes
        32      8  u64    number of items
        40    128  u64*16 parameters; their meaning belongs to the kind
       168      8  u64    XXH3-64 of the chunk sums
       176     72  bytes  reserved, zero
       248      8  u64    XXH3-64 of bytes 0 .. 247
       256      p  bytes  payload
     256+p     8c  u64*c  chunk sums: XXH3-64 of each 16 KiB of the payload, c = ceil(p / 16384)

The header's sum covers the sum of the chunk sums, which cover the payload: every bit of an object is
under a checksum.  Sums of chunks instead of one sum let a mapped file be used at once and be
checked chunk by chunk as it is touched; the price is 8 bytes per 16 KiB (0.05 %).

Reserved bytes are written zero and refused otherwise, so a later version can give them a
meaning.  The version is raised when a reader of the old one would misunderstand a file; readers refuse versions
they do not know.  Flag bit 0 is set while a file is mapped for writing and cleared, with fresh sums, when it is
closed: a file that still has it was not closed, and its sums mean nothing.

An object of kind 40 (``ShardedFilter``) is followed by its shards, each an object of its own (kind 41): parameter 5,
counted from 0, says how many bytes follow the chunk sums.  See ``dlbf/sharded/container.py``.

Checksums find accidents, not attackers: XXH3 is not a signature.
"""

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from dlbf.errors import ChecksumError, FormatError, VersionError
from dlbf.kernels.hashing import Sip24Secret, checksum64, checksum64_chunks, decided_secret, hash64

__all__ = [
    "CHUNK_BYTES",
    "HEADER_BYTES",
    "KIND_NAMES",
    "MAGIC",
    "VERSION",
    "Header",
    "Layout",
    "chunk_sums",
    "fitting_secret",
    "layout",
    "pack",
    "payload_size",
    "read_header",
    "unpack",
    "write_header",
]

MAGIC = b"\x89DLBF\r\n\x1a"
VERSION = 1
HEADER_BYTES = 256
CHUNK_BYTES = 16384
N_PARAMS = 16
# Which parameter of a sharded filter says how many bytes follow the object.
SHARDS_PARAM = 5

HASH_NONE = 0
HASH_XXH3 = 1
HASH_SIP24 = 2  # keyed objects of dlbf 0.1
HASH_SIP13 = 3

FLAG_OPEN_FOR_WRITING = 1

KIND_MODEL = 16
KIND_LEARNED = 32
KIND_LAYERED = 33
KIND_GROWING = 34
KIND_EXPIRING = 35
KIND_SHARDED = 40
KIND_SHARD = 41
KIND_BLUEPRINT = 42

# What the numbers stand for; dlbf.filters.kinds adds the base filters.
KIND_NAMES = {
    KIND_MODEL: "model",
    KIND_LEARNED: "LearnedFilter",
    KIND_LAYERED: "LayeredFilter",
    KIND_GROWING: "GrowingFilter",
    KIND_EXPIRING: "ExpiringFilter",
    KIND_SHARDED: "ShardedFilter",
    KIND_SHARD: "shard of a ShardedFilter",
    KIND_BLUEPRINT: "blueprint",
}

_HEAD = struct.Struct("<8sHHHHQQQ16QQ")  # bytes 0 .. 175
_RESERVED = bytes(248 - _HEAD.size)
_KEY_CHECK = b"dlbf key check"


@dataclass(frozen=True)
class Header:
    """The fixed part of an object; see the module's diagram."""

    kind: int
    n_payload_bytes: int
    params: tuple[int, ...] = ()
    n_items: int = 0
    hash_kind: int = HASH_NONE
    key_check: int = 0
    flags: int = 0
    sums_checksum: int = 0
    version: int = field(default=VERSION)


class Layout(NamedTuple):
    """Where the parts of an object are, in bytes from its start."""

    payload: slice
    sums: slice
    total: int


def layout(n_payload_bytes: int) -> Layout:
    """The places of payload and chunk sums for a payload of that size."""
    end = HEADER_BYTES + n_payload_bytes
    total = end + 8 * (-(-n_payload_bytes // CHUNK_BYTES))
    return Layout(slice(HEADER_BYTES, end), slice(end, total), total)


def hash_identity(secret: bytes | None) -> tuple[int, int]:
    """The (hash kind, key check) that objects made with ``secret`` carry."""
    if secret is None:
        return HASH_XXH3, 0
    return HASH_SIP24 if isinstance(secret, Sip24Secret) else HASH_SIP13, hash64(_KEY_CHECK, secret)


def is_keyed(header: Header) -> bool:
    """Whether the object's keys are hashed with a secret."""
    return header.hash_kind in (HASH_SIP24, HASH_SIP13)


def fitting_secret(header: Header, secret: bytes | None) -> bytes | None:
    """``secret`` for the hash that the object was made with; ValueError unless it is the object's.

    One that has been decided for a hash, as those of filters are, must be for this object's: what is inside of another
    object is asked by that one's hash.
    """
    if header.hash_kind == HASH_NONE:
        return secret
    if is_keyed(header) and secret is None:
        raise ValueError("this filter was made with a secret; pass the same 16 bytes as secret=")
    if header.hash_kind == HASH_XXH3 and secret is not None:
        raise ValueError("this filter was made without a secret; open it without secret=")
    decided = decided_secret(secret, header.hash_kind == HASH_SIP24)
    if hash_identity(decided) != (header.hash_kind, header.key_check):
        raise ValueError("wrong secret: this filter was made with another one; its answers would be meaningless")
    return decided


def chunk_sums(payload: bytes | bytearray | memoryview) -> bytes:
    """The chunk sums of a payload."""
    return checksum64_chunks(payload, CHUNK_BYTES)


def write_header(header: Header) -> bytes:
    """The 256 bytes of a header."""
    params = header.params + (0,) * (N_PARAMS - len(header.params))
    head = _HEAD.pack(
        MAGIC,
        header.version,
        header.kind,
        header.hash_kind,
        header.flags,
        header.key_check,
        header.n_payload_bytes,
        header.n_items,
        *params,
        header.sums_checksum,
    )
    head += _RESERVED
    return head + checksum64(head).to_bytes(8, "little")


def pack(header: Header, payload: bytes | bytearray | memoryview) -> bytes:
    """A whole object: header, payload, chunk sums."""
    sums = chunk_sums(payload)
    values = {name: getattr(header, name) for name in header.__dataclass_fields__}
    values.update(n_payload_bytes=len(payload), sums_checksum=checksum64(sums))
    return b"".join((write_header(Header(**values)), payload, sums))


def payload_size(data: bytes | bytearray | memoryview) -> int:
    """What the beginning of an object says about the size of its payload; nothing of it is checked."""
    return int.from_bytes(bytes(data[24:32]), "little")


def read_header(data: bytes | bytearray | memoryview, where: str = "data") -> Header:
    """Decode and check a header; sizes are compared with what is there before they are used.

    Parameters
    ----------
    data : buffer
        The whole object (only its first 256 bytes and its length are looked at).
    where : str
        Named in errors, for example the path of a file.
    """
    n = len(data)
    if n < HEADER_BYTES:
        raise FormatError(f"{where}: expected at least {HEADER_BYTES} bytes, found {n}; the file is cut or not dlbf's")
    raw = bytes(data[:HEADER_BYTES])
    if raw[:8] != MAGIC:
        raise FormatError(f"{where}: expected the magic {MAGIC!r}, found {raw[:8]!r}; this is not a dlbf object")
    (version,) = struct.unpack_from("<H", raw, 8)
    if checksum64(raw[:248]) != int.from_bytes(raw[248:], "little"):
        raise ChecksumError(f"{where}: the header's checksum does not match; restore the file or build it again")
    if version != VERSION:
        raise VersionError(f"{where}: format version {version} found, this dlbf reads {VERSION}; upgrade dlbf")
    if raw[_HEAD.size : 248] != _RESERVED:
        raise FormatError(f"{where}: reserved header bytes are not zero; written by a newer dlbf?")
    _, version, kind, hash_kind, flags, key_check, n_payload, n_items, *rest = _HEAD.unpack_from(raw)
    if flags & ~FLAG_OPEN_FOR_WRITING:
        raise FormatError(f"{where}: unknown flags {flags:#x}; written by a newer dlbf?")
    if hash_kind not in (HASH_NONE, HASH_XXH3, HASH_SIP24, HASH_SIP13):
        raise FormatError(f"{where}: unknown hash {hash_kind}; written by a newer dlbf?")
    expected = layout(n_payload).total + (rest[SHARDS_PARAM] if kind == KIND_SHARDED else 0)
    if n != expected:
        raise FormatError(f"{where}: expected {expected} bytes, found {n}; the file is cut or has been appended to")
    return Header(
        kind=kind,
        n_payload_bytes=n_payload,
        params=tuple(rest[:N_PARAMS]),
        n_items=n_items,
        hash_kind=hash_kind,
        key_check=key_check,
        flags=flags,
        sums_checksum=rest[N_PARAMS],
        version=version,
    )


def read_sums(data: bytes | bytearray | memoryview, header: Header, where: str = "data") -> bytes:
    """The chunk sums, checked against the header."""
    if header.flags & FLAG_OPEN_FOR_WRITING:
        raise ChecksumError(
            f"{where}: was being written and not closed, so its contents are unproven; "
            "build it again, or accept them with open_filter(path, mode='r+', recover=True) "
            "if only the process died and the machine did not"
        )
    sums = bytes(data[layout(header.n_payload_bytes).sums])
    if checksum64(sums) != header.sums_checksum:
        raise ChecksumError(f"{where}: the chunk sums do not match the header; restore the file or build it again")
    return sums


def unpack(data: bytes | bytearray | memoryview, where: str = "data") -> tuple[Header, memoryview]:
    """The header and payload of a whole object, every byte checked."""
    header = read_header(data, where)
    sums = read_sums(data, header, where)
    payload = memoryview(data).cast("B")[layout(header.n_payload_bytes).payload]
    computed = chunk_sums(payload)
    if computed != sums:
        bad = next(i for i in range(0, len(sums), 8) if computed[i : i + 8] != sums[i : i + 8]) // 8
        raise ChecksumError(
            f"{where}: bytes {HEADER_BYTES + bad * CHUNK_BYTES} and on do not match their checksum; "
            "restore the file or build it again"
        )
    return header, payload


def float_to_param(value: float) -> int:
    """A float as a parameter: its IEEE 754 bits."""
    return int.from_bytes(struct.pack("<d", value), "little")


def param_to_float(value: int) -> float:
    """The inverse of ``float_to_param``."""
    (number,) = struct.unpack("<d", value.to_bytes(8, "little"))
    return float(number)
