"""What changed between two versions of a filter's bytes.

A delta knows nothing of keys or of kinds of filters: it lists the bytes that differ, so it tells nobody a key and is a
few bytes per changed key.  It fits exactly one content and gives exactly one: both have their sums in it.

Layout, little-endian:

| bytes | field | type | meaning |
|---|---|---|---|
| 0-7 | magic | 8 bytes | ``89 44 4C 42 46 44 0D 0A`` |
| 8-9 | version | u16 | 1 |
| 10-15 | reserved | 6 bytes | zero, refused otherwise |
| 16-23 | base_bytes | u64 | length of the content that it fits |
| 24-31 | base_sum | u64 | its ``checksum64`` |
| 32-39 | result_bytes | u64 | length of the content that it gives |
| 40-47 | result_sum | u64 | its ``checksum64`` |
| 48-55 | n_changed | u64 | bytes that differ; the shorter content is filled up with zeros |
| 56- | body | zlib | 9 * n_changed bytes: eight planes of gaps, then the differences |

A *gap* is the distance of a changed byte from the one before (the first: from the beginning), a u64 whose bytes are in
eight planes: all lowest bytes first.  High planes are zeros, which zlib makes a thousandth of.  A *difference* is the
exclusive or of the old byte and the new one, never zero.
"""

import mmap
import struct
import zlib

import numpy as np
import numpy.typing as npt

from dlbf.errors import ChecksumError, FormatError, VersionError
from dlbf.kernels.hashing import checksum64

__all__ = ["Content", "apply_delta", "content_of", "make_delta", "sum_of"]

Content = npt.NDArray[np.uint8]

MAGIC = b"\x89DLBFD\r\n"
VERSION = 1
_HEAD = struct.Struct("<8sH6sQQQQQ")
PLANES = 8
# Compared at once, so that what is needed beside the two contents stays small.
COMPARED_BYTES = 1 << 22


def content_of(data: bytes | bytearray | memoryview | mmap.mmap) -> Content:
    """The bytes of a filter as an array over the same memory."""
    return np.frombuffer(data, dtype=np.uint8)


def sum_of(content: Content) -> int:
    """Its ``checksum64``."""
    return checksum64(content.data)


def make_delta(old: Content, new: Content) -> bytes:
    """What leads from ``old`` to ``new``.

    Examples
    --------
    >>> old, new = content_of(b"one content"), content_of(b"another content")
    >>> bytes(apply_delta(old, sum_of(old), make_delta(old, new)))
    b'another content'
    """
    places: list[npt.NDArray[np.int64]] = []
    differences: list[Content] = []
    for start in range(0, len(new), COMPARED_BYTES):
        part = new[start : start + COMPARED_BYTES]
        before = np.zeros(len(part), dtype=np.uint8)
        common = old[start : start + len(part)]
        before[: len(common)] = common
        before ^= part
        changed = np.flatnonzero(before)
        places.append(changed + start)
        differences.append(before[changed])
    indexes = np.concatenate(places) if places else np.zeros(0, dtype=np.int64)
    gaps = np.diff(indexes, prepend=0).astype("<u8")
    planes = gaps.view(np.uint8).reshape(-1, PLANES).T.tobytes()
    head = _HEAD.pack(
        MAGIC, VERSION, bytes(6), len(old), sum_of(old), len(new), sum_of(new), len(indexes)
    )  # fmt: skip
    return head + zlib.compress(planes + b"".join(part.tobytes() for part in differences), 6)


def apply_delta(old: Content, old_sum: int, delta: bytes, where: str = "delta") -> Content:
    """The content that a delta leads to; ``old`` stays as it is.

    Parameters
    ----------
    old : array
        The content before.
    old_sum : int
        Its ``checksum64``, which the caller knows.
    delta : bytes
        From ``make_delta``.
    where : str
        Named in errors.

    Raises
    ------
    FormatError, ChecksumError, VersionError
        If it is no delta, fits another content, or gives something else than its maker had.
    """
    n_changed, result_bytes, result_sum = _checked_head(old, old_sum, delta, where)
    body = _inflated(delta[_HEAD.size :], (PLANES + 1) * n_changed, where)
    planes = np.frombuffer(body, dtype=np.uint8, count=PLANES * n_changed).reshape(PLANES, n_changed)
    gaps = np.ascontiguousarray(planes.T).view("<u8").reshape(-1)
    differences = np.frombuffer(body, dtype=np.uint8, offset=PLANES * n_changed)
    new = np.zeros(result_bytes, dtype=np.uint8)
    n_common = min(len(old), result_bytes)
    new[:n_common] = old[:n_common]
    if n_changed:
        # Each gap is below the length, and at least 1 but for the first: so that none of the sums can wrap.
        if gaps.max() >= result_bytes or (n_changed > 1 and not gaps[1:].all()):
            raise FormatError(f"{where}: changes bytes that are not there; get the whole filter")
        indexes = np.cumsum(gaps)
        if indexes[-1] >= result_bytes:
            raise FormatError(f"{where}: changes bytes that are not there; get the whole filter")
        new[indexes] ^= differences
    if sum_of(new) != result_sum:
        raise ChecksumError(f"{where}: does not give what its maker had; get the whole filter")
    return new


def _checked_head(old: Content, old_sum: int, delta: bytes, where: str) -> tuple[int, int, int]:
    if len(delta) < _HEAD.size or delta[:8] != MAGIC:
        raise FormatError(f"{where}: expected a delta of a filter, found {delta[:8]!r}; get the whole filter")
    _, version, reserved, base_bytes, base_sum, result_bytes, result_sum, n_changed = _HEAD.unpack_from(delta)
    if version != VERSION or any(reserved):
        raise VersionError(f"{where}: delta of version {version}, this dlbf reads {VERSION}; upgrade dlbf")
    if (base_bytes, base_sum) != (len(old), old_sum):
        raise ChecksumError(f"{where}: is for another version of the filter than the one here; get the whole filter")
    # What deflate can make of so many bytes, at most: nothing is allocated on the word of a head alone.
    limit = 1100 * len(delta)
    if n_changed > min(result_bytes, limit) or result_bytes > len(old) + limit:
        raise FormatError(f"{where}: says that {n_changed:,} of {result_bytes:,} bytes changed; get the whole filter")
    return n_changed, result_bytes, result_sum


def _inflated(body: bytes, n_bytes: int, where: str) -> bytes:
    inflating = zlib.decompressobj()
    try:
        data = inflating.decompress(body, n_bytes + 1)
    except zlib.error as error:
        raise ChecksumError(f"{where}: cannot be unpacked ({error}); get the whole filter") from None
    if len(data) != n_bytes or not inflating.eof or inflating.unused_data:
        raise ChecksumError(f"{where}: expected {n_bytes:,} bytes in it, found others; get the whole filter")
    return data
