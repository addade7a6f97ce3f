"""One shard from its keys, and which shard has which key: plain functions, for whoever runs them wherever."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dlbf.errors import DlbfError, FilterFullError
from dlbf.filters.base import check_count, header_of, payload_of
from dlbf.filters.ribbon import SortedHashes, fill_ribbon
from dlbf.filters.ribbon_sizes import RibbonGeometry, ribbon_fpr
from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.keys import read_keys
from dlbf.kernels.ribbon import ribbon_partition
from dlbf.kernels.sharded import mix_for_shards, route_hashes
from dlbf.learned.assembly import INITIAL, scaled_params
from dlbf.learned.composite import fill_parts, member_id, parts_of, set_counts
from dlbf.sharded.blueprint import Blueprint, read_blueprint
from dlbf.sharded.container import pack_shard
from dlbf.sharded.learned import LearnedShard, empty_shard
from dlbf.typenames import Keys

__all__ = ["build_from_hashes", "build_shard", "digest", "route", "shard_memory"]

Hashes = npt.NDArray[np.uint64]
Regions = npt.NDArray[np.uint8]
N = TypeVar("N", bound=np.generic)

# Keys of a generator that are held at once.
CHUNK_KEYS = 1 << 16
# A table that had no room is made so much larger.
LARGER = 1.05
WORKING_BYTES = 16 << 20


def shard_memory(n_keys: int, bits_per_key: float = 10.0) -> int:
    """Bytes that building a static shard of so many keys needs besides the interpreter: an upper bound.

    Hash and region of each key (9 bytes, and an eighth more while they are gathered), the filter twice (in memory, and
    as the bytes that are returned), and some for the threads.

    Examples
    --------
    >>> shard_memory(1 << 22) >> 20
    66
    """
    return round(n_keys * (9 * 1.125 + 2 * bits_per_key / 8)) + WORKING_BYTES


def route(blueprint: bytes, batch: Keys, secret: bytes | None = None) -> npt.NDArray[np.uint32]:
    """The number of the shard of every key of a batch.

    Parameters
    ----------
    blueprint : bytes
    batch : iterable of keys, numpy array of dtype S, U or object, or Arrow string or binary array
    secret : bytes, optional
        The one that the blueprint was made with.

    Returns
    -------
    numpy.ndarray of uint32
    """
    plan = read_blueprint(blueprint, secret)
    return route_hashes(hash64_many(batch, plan.secret), plan.n_shards)


def digest(
    blueprint: bytes, batch: Keys, secret: bytes | None = None
) -> tuple[npt.NDArray[np.uint32], Hashes, Regions]:
    """What a static shard is built from, of every key of a batch: number of its shard, hash, score region.

    9 bytes of a key travel instead of the key itself; ``build_from_hashes`` takes them.
    """
    plan = read_blueprint(blueprint, secret)
    keys = list(batch) if isinstance(batch, Iterator) else batch
    hashes = hash64_many(keys, plan.secret)
    return route_hashes(hashes, plan.n_shards), hashes, plan.pattern.region_of(keys)


def build_shard(blueprint: bytes, number: int, keys: Keys, secret: bytes | None = None) -> bytes:
    """One shard from its keys.

    Parameters
    ----------
    blueprint : bytes
        Of ``dlbf.build.blueprint``.
    number : int
        Of the shard.
    keys : iterable of keys
        All keys of the shard (``route`` says which these are), in any order; repeated ones count once.  Generators are
        streamed.
    secret : bytes, optional
        The one that the blueprint was made with.

    Returns
    -------
    bytes
        A part for ``dlbf.build.combine``.  The same blueprint and keys give the same bytes.

    Raises
    ------
    ValueError
        If a key belongs to another shard.

    Notes
    -----
    A static shard needs ``shard_memory(n_keys)`` bytes, whatever the size of the keys; another one the keys, too.

    Examples
    --------
    >>> import dlbf.build
    >>> from dlbf.datasets import listed_urls, ordinary_urls
    >>> keys, absent = list(listed_urls(8000)), list(ordinary_urls(8000))
    >>> plan = dlbf.build.blueprint(keys[:4000], absent, n_keys=8000, shards=2, model="ngram")
    >>> numbers = dlbf.build.route(plan, keys)
    >>> part = build_shard(plan, 1, [key for key, number in zip(keys, numbers) if number == 1])
    """
    plan = read_blueprint(blueprint, secret)
    number = check_count("number", number, 0, plan.n_shards - 1)
    if not plan.pattern.is_static:
        return _part(plan, number, _filled(plan, number, read_keys(keys)))
    hashes: list[Hashes] = []
    regions: list[Regions] = []
    for batch in _batches(keys):
        numbers, some, of_them = digest(blueprint, batch, secret)
        _check_numbers(numbers, number, plan.n_shards)
        hashes.append(some)
        regions.append(of_them)
    return build_from_hashes(blueprint, number, _joined(hashes, np.uint64), _joined(regions, np.uint8), secret)


def build_from_hashes(
    blueprint: bytes, number: int, hashes: Hashes, regions: Regions, secret: bytes | None = None
) -> bytes:
    """The same for a static shard, from the hash and the region of each of its keys.

    Parameters
    ----------
    blueprint : bytes
    number : int
    hashes : numpy.ndarray of uint64
        Of ``digest``, in any order, repeated ones as they come; the array is used up.
    regions : numpy.ndarray of uint8
        Of ``digest``, in the same order; used up like the hashes.
    secret : bytes, optional
    """
    plan = read_blueprint(blueprint, secret)
    if not plan.pattern.is_static:
        raise DlbfError("only static shards are built from hashes; use build_shard, or design='static'")
    _check_numbers(route_hashes(hashes, plan.n_shards), number, plan.n_shards)
    mix_for_shards(hashes)
    return _part(plan, number, _solved(plan, hashes, regions))


def _batches(keys: Keys) -> Iterator[Keys]:
    if not isinstance(keys, Iterator):
        yield keys
        return
    while batch := list(islice(keys, CHUNK_KEYS)):
        yield batch


def _joined(arrays: list[npt.NDArray[N]], dtype: type[N]) -> npt.NDArray[N]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)


def _check_numbers(numbers: npt.NDArray[np.uint32], number: int, n_shards: int) -> None:
    wrong = np.flatnonzero(numbers != number)
    if wrong.size:
        raise ValueError(
            f"{wrong.size} keys do not belong to shard {number} of {n_shards}; the first is key {wrong[0]}, of shard "
            f"{numbers[wrong[0]]}. Pass those for which dlbf.build.route gives {number}, with the same secret"
        )


def _part(plan: Blueprint, number: int, shard: LearnedShard) -> bytes:
    """The blueprint, so that a part is all that is needed, and the shard."""
    return plan.data + pack_shard(header_of(shard), payload_of(shard), number, plan.n_shards, plan.set_id)


def _solved(plan: Blueprint, hashes: Hashes, regions: Regions) -> LearnedShard:
    """A ribbon filter in each region that has one; sizes are those that the keys need."""
    pattern = plan.pattern
    n_regions = len(pattern.plan.regions)
    before = ribbon_partition(hashes, regions, n_regions)
    stored = {part.region for part in parts_of(pattern)}
    n_keys = [0 if r in stored else _different(hashes[before[r] : before[r + 1]]) for r in range(n_regions)]
    own, rates = [], []
    for part, params in zip(parts_of(pattern), plan.params, strict=True):
        r = part.region
        own.append(SortedHashes(hashes[before[r] : before[r + 1]], member_id(pattern, r), 1))
        n_keys[r] = own[-1].n_keys
        rates.append(ribbon_fpr(RibbonGeometry(*params[:4])) or plan.fpr)
    while True:
        geometries = [keys.geometry(rate) for keys, rate in zip(own, rates, strict=True)]
        made = empty_shard(pattern, [tuple(each) for each in geometries], max(1, sum(n_keys)), plan.secret)
        # A shard that cannot be solved, one in many millions, has more rows the next time.
        rooms = zip(own, geometries, fill_parts(made), strict=True)
        if all([fill_ribbon(keys, geometry, room, 1) for keys, geometry, room in rooms]):
            break
    set_counts(made, sum(n_keys), sum(n for r, n in enumerate(n_keys) if r not in stored))
    return made


def _different(hashes: Hashes) -> int:
    """How many different ones there are; they are sorted."""
    hashes.sort()
    return int(np.count_nonzero(hashes[1:] != hashes[:-1])) + 1 if hashes.size else 0


def _filled(plan: Blueprint, number: int, keys: list[bytes]) -> LearnedShard:
    """Tables with these keys, sized for what each region has of them; larger ones if a key finds no room."""
    pattern = plan.pattern
    hashes = hash64_many(keys, plan.secret)
    _check_numbers(route_hashes(hashes, plan.n_shards), number, plan.n_shards)
    # Each key once, in an order that depends on nothing but the keys.
    _, order = np.unique(hashes, return_index=True)
    ordered = [keys[i] for i in order.tolist()]
    counts = np.bincount(pattern.region_of(ordered), minlength=len(pattern.plan.regions))
    room = plan.headroom
    while True:
        made = empty_shard(pattern, _sizes(plan, counts.tolist(), room), max(1, len(ordered)), plan.secret)
        try:
            made.update(ordered)
        except FilterFullError:
            room *= LARGER
            continue
        return made


def _sizes(plan: Blueprint, counts: Sequence[int], room: float) -> list[tuple[int, ...]]:
    total = sum(counts)
    return [
        scaled_params(
            part.kind, params, planned, -int(-(total if part.role == INITIAL else counts[part.region]) * room // 1)
        )
        for part, params, planned in zip(parts_of(plan.pattern), plan.params, plan.part_keys, strict=True)
    ]
