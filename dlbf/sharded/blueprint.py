"""A blueprint as bytes: all that shards have in common, so that they can be built anywhere.

An object of kind 42 in the format of ``dlbf.format``: parameters 0 keys, 1 rate (IEEE 754), 3 number of shards; the
hash and its key check; payload::

    offset  width   field (little-endian)
         0      4   u32  n, bytes of the text
         4      n   text (JSON): "headroom"; "parts": for each part of the pattern "params", the parameters of its
                    kind, and "n_keys", for how many keys these are
       4+n          the pattern: an empty LearnedFilter with the model, the regions and the plan

Its checksum is the set id of its shards.
"""

import json
from dataclasses import dataclass
from functools import lru_cache

from dlbf import format
from dlbf.errors import FormatError
from dlbf.kernels.hashing import checksum64
from dlbf.learned import LearnedFilter
from dlbf.learned.composite import parts_of
from dlbf.sharded.learned import pattern_of, planned_keys

__all__ = ["Blueprint", "pack_blueprint", "read_blueprint", "split_part"]

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Blueprint:
    """What a blueprint says.

    Attributes
    ----------
    pattern : LearnedFilter
        Empty; its model, regions and plan are those of all shards.
    params : tuple of tuple of int
        Parameters of each of its parts.
    part_keys : tuple of int
        For how many keys they are.
    set_id : int
        That its shards carry.
    """

    data: bytes
    pattern: LearnedFilter
    params: tuple[tuple[int, ...], ...]
    part_keys: tuple[int, ...]
    headroom: float
    n_keys: int
    fpr: float
    n_shards: int
    set_id: int
    secret: bytes | None


def pack_blueprint(planned: LearnedFilter, n_keys: int, n_shards: int, headroom: float, secret: bytes | None) -> bytes:
    """The blueprint of a filter that is planned and still empty."""
    pattern = pattern_of(planned, secret)
    rows = zip(parts_of(planned), planned_keys(planned), strict=True)
    about = {"headroom": headroom, "parts": [{"params": list(part.params), "n_keys": n} for part, n in rows]}
    text = json.dumps(about, separators=(",", ":"), allow_nan=False).encode()
    hash_kind, key_check = format.hash_identity(secret)
    rate = format.float_to_param(planned.fpr_target or planned.plan.fpr)
    header = format.Header(format.KIND_BLUEPRINT, 0, (n_keys, rate, 0, n_shards), 0, hash_kind, key_check)
    return format.pack(header, len(text).to_bytes(4, "little") + text + pattern.to_bytes())


def read_blueprint(data: Buffer, secret: bytes | None = None) -> Blueprint:
    """What a blueprint says; FormatError if it is none, ValueError if it was made with another secret."""
    return _read(bytes(data), secret if secret is None or isinstance(secret, bytes) else bytes(secret))


@lru_cache(maxsize=4, typed=True)
def _read(data: bytes, secret: bytes | None) -> Blueprint:
    header, payload = format.unpack(data, "the blueprint")
    if header.kind != format.KIND_BLUEPRINT:
        found = format.KIND_NAMES.get(header.kind, f"kind {header.kind}")
        raise FormatError(f"expected a blueprint (dlbf.build.blueprint), found a {found}")
    secret = format.fitting_secret(header, secret)
    n_text = int.from_bytes(payload[:4], "little")
    pattern = LearnedFilter.from_bytes(payload[4 + n_text :], secret)
    try:
        about = json.loads(bytes(payload[4 : 4 + n_text]))
        params = tuple(tuple(int(value) for value in part["params"]) for part in about["parts"])
        part_keys = tuple(int(part["n_keys"]) for part in about["parts"])
        headroom = float(about["headroom"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError(f"the text of a blueprint cannot be read ({error}); make it again") from None
    if len(params) != len(parts_of(pattern)):
        raise FormatError(f"a blueprint for {len(params)} parts and a pattern of {len(parts_of(pattern))}")
    n_keys, rate, _, n_shards = header.params[:4]
    return Blueprint(
        data, pattern, params, part_keys, headroom, n_keys, format.param_to_float(rate), n_shards, checksum64(data),
        secret,
    )  # fmt: skip


def split_part(part: Buffer) -> tuple[memoryview, memoryview]:
    """A part divided: the blueprint that it was built with (empty for plain shards), and the shard."""
    view = memoryview(part).cast("B")
    if len(view) >= format.HEADER_BYTES and int.from_bytes(view[10:12], "little") == format.KIND_BLUEPRINT:
        end = format.layout(format.payload_size(view)).total
        return view[:end], view[end:]
    return view[:0], view
