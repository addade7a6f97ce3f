"""Between reading and building: runs, in which the keys of a piece lie shard by shard, nine bytes each.

A run is a file of its own, named by its content, so that a task that is run again changes nothing::

    offset  width      field (little-endian)
         0      8      "DLBFRUN1"
         8      8      u64  number of shards S
        16     8*(S+1) u64  for every shard the number of keys before it, and the number n of all
           8*S         u64  checksum of the hashes of every shard, exclusive or with that of its regions
           8           u64  checksum of all above
           8*n         u64  hashes
             n         u8   regions
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dlbf.build.combining import part_name
from dlbf.build.shards import build_from_hashes, digest
from dlbf.errors import ChecksumError, DlbfError
from dlbf.filters.writing import replace_file
from dlbf.kernels.hashing import checksum64
from dlbf.sharded.blueprint import read_blueprint
from dlbf.sharded.container import MAX_SHARDS
from dlbf.typenames import Keys

__all__ = ["gather", "scatter"]

MAGIC = b"DLBFRUN1"


def scatter(blueprint: bytes, batches: Iterable[Keys], folder: str | Path, secret: bytes | None = None) -> str:
    """Write the hashes and regions of some keys as a run, shard by shard.

    Parameters
    ----------
    blueprint : bytes
        Of a static design.
    batches : iterable of batches of keys
        As ``route`` takes them.  13 bytes of each key are held.
    folder : path
        That all workers see.
    secret : bytes, optional

    Returns
    -------
    str
        The name of the run in the folder; the same keys in the same order give the same one.
    """
    plan = read_blueprint(blueprint, secret)
    if not plan.pattern.is_static:
        raise DlbfError("only static shards are built from runs; use build_shard, or design='static'")
    found = [digest(blueprint, batch, secret) for batch in batches]
    numbers = np.concatenate([np.empty(0, np.uint32), *(each[0] for each in found)])
    order = np.argsort(numbers, kind="stable")
    hashes = np.concatenate([np.empty(0, np.uint64), *(each[1] for each in found)])[order]
    regions = np.concatenate([np.empty(0, np.uint8), *(each[2] for each in found)])[order]
    del found, order
    before = np.zeros(plan.n_shards + 1, dtype=np.uint64)
    np.cumsum(np.bincount(numbers, minlength=plan.n_shards), out=before[1:], dtype=np.uint64)
    bounds = before.tolist()
    sums = [
        _sum(hashes[first:end], regions[first:end]) for first, end in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    head = MAGIC + np.uint64(plan.n_shards).tobytes() + before.tobytes() + np.array(sums, dtype=np.uint64).tobytes()
    data = b"".join((head, np.uint64(checksum64(head)).tobytes(), hashes.tobytes(), regions.tobytes()))
    name = f"{checksum64(data):016x}.run"
    replace_file(Path(folder) / name, data, False)
    return name


def gather(
    blueprint: bytes, number: int, runs: Sequence[str], folder: str | Path, secret: bytes | None = None
) -> str:
    """Build a shard from what all runs have of it, and write the part.

    Parameters
    ----------
    blueprint : bytes
    number : int
        Of the shard.
    runs : sequence of str
        The names that ``scatter`` gave; one that comes twice counts once.
    folder : path
        Where the runs are; the part is written there, too.
    secret : bytes, optional

    Returns
    -------
    str
        The name of the part in the folder.
    """
    slices = [Slice.of(Path(folder) / name, number) for name in sorted(set(runs))]
    n_keys = sum(each.n_keys for each in slices)
    hashes, regions = np.empty(n_keys, dtype=np.uint64), np.empty(n_keys, dtype=np.uint8)
    at = 0
    for each in slices:
        each.read(hashes[at : at + each.n_keys], regions[at : at + each.n_keys])
        at += each.n_keys
    part = build_from_hashes(blueprint, number, hashes, regions, secret)
    name = part_name(part)
    replace_file(Path(folder) / name, part, False)
    return name


def _sum(hashes: npt.NDArray[np.uint64], regions: npt.NDArray[np.uint8]) -> int:
    return checksum64(hashes.tobytes()) ^ checksum64(regions.tobytes())


class Slice(NamedTuple):
    """What a run has of a shard: where its hashes and its regions are, how many keys, and their checksum."""

    path: Path
    hashes_at: int
    regions_at: int
    n_keys: int
    checksum: int

    @classmethod
    def of(cls, path: Path, number: int) -> "Slice":
        """Of shard ``number`` in the run at ``path``; its table is compared with its checksum."""
        with path.open("rb") as file:
            head = file.read(16)
            n_shards = int.from_bytes(head[8:16], "little")
            if head[:8] != MAGIC or not number < n_shards <= MAX_SHARDS:
                raise DlbfError(f"{path}: expected a run with a shard {number}; remove it and run the build again")
            head += file.read(8 * (2 * n_shards + 1))
            if file.read(8) != np.uint64(checksum64(head)).tobytes():
                raise ChecksumError(f"{path}: damaged; remove it and run the build again")
        table = np.frombuffer(head, dtype="<u8", offset=16).tolist()
        first, end, n_all = table[number], table[number + 1], table[n_shards]
        start = len(head) + 8
        return cls(path, start + 8 * first, start + 8 * n_all + first, end - first, table[n_shards + 1 + number])

    def read(self, hashes: npt.NDArray[np.uint64], regions: npt.NDArray[np.uint8]) -> None:
        """Read into arrays of ``n_keys`` and compare with the checksum."""
        with self.path.open("rb") as file:
            file.seek(self.hashes_at)
            file.readinto(hashes.data.cast("B"))
            file.seek(self.regions_at)
            file.readinto(regions.data)
        if _sum(hashes, regions) != self.checksum:
            raise ChecksumError(f"{self.path}: damaged; remove it and run the build again")
