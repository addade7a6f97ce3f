"""From files of keys to the file of a sharded filter: sample, train, count, build, combine; resumed where it stopped."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlbf.build.combining import combine
from dlbf.build.planning import blueprint
from dlbf.build.runs import gather, scatter
from dlbf.build.sources import Piece, divide, fingerprint, read_piece
from dlbf.build.workers import Workers, workers_on
from dlbf.errors import DlbfError
from dlbf.filters.files import open_filter
from dlbf.filters.writing import replace_file
from dlbf.format import hash_identity
from dlbf.kernels.hashing import checksum64, hash64_many
from dlbf.kernels.keys import read_keys
from dlbf.models import Model
from dlbf.sharded.blueprint import read_blueprint
from dlbf.typenames import Keys

__all__ = ["BuildReport", "build_file"]

SAMPLE_KEYS = 100_000
# Of a run: some 100 MiB while it is sorted, however large its piece is.
RUN_KEYS = 1 << 21

Told = Callable[[str, float], None]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class BuildReport:
    """What was built.

    Attributes
    ----------
    n_keys : int
        In the filter, each once.
    n_read : int
        Keys that were read.
    n_shards : int
    n_pieces : int
        Pieces that the sources were divided into.
    n_bytes : int
        Of the file.
    resumed : int
        Tasks that an interrupted run had done.
    """

    n_keys: int
    n_read: int
    n_shards: int
    n_pieces: int
    n_bytes: int
    resumed: int


def build_file(
    sources: Sequence[str | Path],
    output: str | Path,
    negatives: Keys,
    *,
    on: object = "processes",
    workers: int | None = None,
    shards: int | None = None,
    format: str | None = None,
    column: str | None = None,
    work: str | Path | None = None,
    secret: bytes | None = None,
    progress: Told | None = None,
    **options: Any,
) -> BuildReport:
    """Build a static sharded filter from files of keys, however many there are.

    Parameters
    ----------
    sources : sequence of paths
        Lines, CSV or Parquet; local, or any address that fsspec knows.
    output : path
        Replaced whole or not at all.
    negatives : iterable of keys
        A sample of what is asked for and absent.
    on : str, dask.distributed.Client or pyspark.sql.SparkSession
        ``"processes"`` of this machine, ``"dask://host:port"``, ``"ray"`` (the cluster that this process is in, else one
        on this machine), ``"ray://host:port"``, ``"spark"``, or a client of Dask or session of Spark.
    workers : int, optional
        Processes; by default one for every processor, 1: this process alone.
    shards : int, optional
        A power of two; by default as many as leave 4 million keys in each.
    format : {"lines", "csv", "parquet"}, optional
        By default what the names say, else lines.
    column : str, optional
        The column of the keys, of CSV and Parquet; the first by default.
    work : path, optional
        A folder that all workers see, 9 bytes for every key, removed at the end; ``output`` with ``.work`` by default.
        What is in it from an interrupted run of the same build is not done again.
    secret : bytes, optional
        16 bytes for keyed hashing; every worker gets it.
    progress : callable, optional
        ``callable(phase, fraction)``; phases are sample, train, count, build, combine.
    options
        What else ``dlbf.build.blueprint`` takes.

    Returns
    -------
    BuildReport

    Notes
    -----
    The bytes depend on the keys, the negatives and the options alone: neither on the workers and their number, nor on
    tasks that were lost and run again.
    """
    names, output = [str(source) for source in sources], Path(output)
    tell = progress or (lambda phase, fraction: None)
    folder = Path(work) if work is not None else output.with_name(output.name + ".work")
    if shards is not None and (shards < 1 or shards & (shards - 1)):  # before a folder is made
        raise ValueError(f"shards must be a power of two, found {shards}")
    pieces = divide(names, format, column)
    if not pieces:
        raise DlbfError(f"no keys in {', '.join(names) or 'no sources'}")
    absent = read_keys(negatives)
    about: dict[str, object] = {
        "sources": fingerprint(names), "format": format, "column": column, "shards": shards,
        "negatives": f"{int(np.bitwise_xor.reduce(hash64_many(absent)) if absent else 0):016x} of {len(absent)}",
        "options": {name: _told(value) for name, value in sorted(options.items())},
        "hash": hash_identity(secret),
    }  # fmt: skip
    with workers_on(on, workers) as who:
        job = _Job(folder, who, tell)
        job.begin(about)
        plan, n_read = _planned(job, pieces, absent, shards, secret, options)
        n_shards = read_blueprint(plan, secret).n_shards
        runs = job.tasks("count", scatter_piece, [(plan, piece, str(folder), secret) for piece in pieces])
        parts = job.tasks("build", gather_shard, [(plan, n, runs, str(folder), secret) for n in range(n_shards)])
    tell("combine", 0.0)
    combine(output, [folder / name for name in parts])
    tell("combine", 1.0)
    shutil.rmtree(folder)
    with open_filter(output, secret=secret) as made:
        return BuildReport(len(made), n_read, n_shards, len(pieces), output.stat().st_size, job.resumed)


def _told(value: object) -> str:
    """What an option is, so that two builds can be told apart."""
    return f"model {checksum64(value.to_bytes()):016x}" if isinstance(value, Model) else repr(value)


def sample_piece(task: tuple[Piece, int, bytes | None]) -> tuple[int, Hashes, list[bytes]]:
    """How many keys a piece has, and those of them with the smallest hashes, in their order: a sample, the same each
    time."""
    piece, most, secret = task
    n_keys, limit = 0, np.uint64(2**64 - 1)
    kept, of_them = np.empty(0, dtype=np.uint64), list[bytes]()
    for batch in read_piece(piece):
        hashes = hash64_many(batch, secret)
        n_keys += len(hashes)
        chosen = np.flatnonzero(hashes <= limit)
        if not chosen.size:
            continue
        keys = batch if isinstance(batch, list) else read_keys(batch)
        kept = np.concatenate([kept, hashes[chosen]])
        of_them += [keys[at] for at in chosen.tolist()]
        if len(kept) > 2 * most:
            kept, of_them = _smallest(kept, of_them, most)
            limit = kept[-1]
    return n_keys, *_smallest(kept, of_them, most)


def _smallest(hashes: Hashes, keys: list[bytes], most: int) -> tuple[Hashes, list[bytes]]:
    """The keys with the smallest hashes, each once."""
    smallest, first = np.unique(hashes, return_index=True)
    return smallest[:most], [keys[at] for at in first[:most].tolist()]


def scatter_piece(task: tuple[bytes, Piece, str, bytes | None]) -> list[str]:
    """``scatter`` of a piece; several runs if it has more keys than a worker may hold."""
    plan, piece, folder, secret = task
    return [scatter(plan, batches, folder, secret) for batches in _portions(read_piece(piece), RUN_KEYS)]


def _portions(batches: Iterator[Keys], most: int) -> Iterator[Iterator[Keys]]:
    """Batches in portions of about ``most`` keys, one portion after the other."""
    ahead: list[Keys] = []

    def portion() -> Iterator[Keys]:
        n_keys = 0
        for batch in chain([ahead.pop()], batches):
            yield batch
            n_keys += len(batch)  # type: ignore[arg-type]
            if n_keys >= most:
                return

    for batch in batches:
        ahead.append(batch)
        yield portion()


def gather_shard(task: tuple[bytes, int, Sequence[str], str, bytes | None]) -> list[str]:
    """``gather`` of a shard."""
    plan, number, runs, folder, secret = task
    return [gather(plan, number, runs, folder, secret)]


def _planned(
    job: "_Job", pieces: Sequence[Piece], absent: list[bytes], shards: int | None, secret: bytes | None,
    options: dict[str, Any],
) -> tuple[bytes, int]:  # fmt: skip
    """The blueprint, and how many keys there are; those of the interrupted run, if it had them."""
    if (kept := job.read("blueprint")) is not None and (counted := job.read("keys")) is not None:
        job.resumed += 1
        return kept, int(counted)
    # More from each piece than its share, so that uneven pieces leave enough.
    most = min(SAMPLE_KEYS, 4 * SAMPLE_KEYS // len(pieces) + 64)
    n_keys, limit, done = 0, np.uint64(2**64 - 1), 0
    sample = np.empty(0, dtype=np.uint64), list[bytes]()
    for _, (n, hashes, keys) in job.workers.run(sample_piece, [(piece, most, secret) for piece in pieces]):
        n_keys += n
        # Below the smallest of these limits every piece has told of all of its keys.
        limit = min(limit, hashes[-1]) if len(hashes) == most else limit
        sample = np.concatenate([sample[0], hashes]), sample[1] + keys
        done += 1
        job.tell("sample", done / len(pieces))
    hashes, keys = _smallest(*sample, SAMPLE_KEYS)
    chosen = keys[: int(np.count_nonzero(hashes <= limit))]
    if not n_keys:
        raise DlbfError("no keys in the sources: expected one on every line, or in a column")
    job.tell("train", 0.0)
    plan = blueprint(chosen, absent, n_keys=n_keys, shards=shards, secret=secret, **options)
    job.tell("train", 1.0)
    job.write("keys", str(n_keys).encode())
    job.write("blueprint", plan)
    return plan, n_keys


class _Job:
    """The folder of a build: what was done is noted there, a task's result in a file of its own."""

    def __init__(self, folder: Path, workers: Workers, tell: Told) -> None:
        self.folder, self.workers, self.tell = folder, workers, tell
        self.resumed = 0

    def begin(self, about: dict[str, object]) -> None:
        """Make the folder, or see that it is of the same build."""
        text = json.dumps(about, sort_keys=True).encode()
        self.folder.mkdir(parents=True, exist_ok=True)
        before = self.read("about")
        if before is None and any(self.folder.iterdir()):
            raise DlbfError(f"{self.folder}: expected a folder of an interrupted build, or none; name another one")
        if before is not None and before != text:
            old = json.loads(before)
            other = ", ".join(name for name in sorted(about) if old.get(name) != json.loads(text)[name])
            raise DlbfError(
                f"{self.folder}: from another build, or its sources have changed (other: {other}); remove it, or name "
                "another folder"
            )
        self.write("about", text)

    def read(self, name: str) -> bytes | None:
        """What was written under that name."""
        path = self.folder / name
        return path.read_bytes() if path.exists() else None

    def write(self, name: str, data: bytes) -> None:
        """Whole or not at all."""
        replace_file(self.folder / name, data, False)

    def tasks(self, phase: str, function: Callable[[Any], list[str]], tasks: Sequence[Any]) -> list[str]:
        """The files that tasks have written, in their order; done are those whose files are there."""
        names: dict[int, list[str]] = {}
        for number in range(len(tasks)):
            noted = self.read(f"{phase}-{number}")
            if noted is not None and all((self.folder / name).exists() for name in noted.decode().split()):
                names[number] = noted.decode().split()
        self.resumed += len(names)
        left = [number for number in range(len(tasks)) if number not in names]
        self.tell(phase, len(names) / len(tasks))
        for at, written in self.workers.run(function, [tasks[number] for number in left]):
            names[left[at]] = written
            self.write(f"{phase}-{left[at]}", " ".join(written).encode())
            self.tell(phase, len(names) / len(tasks))
        return [name for number in range(len(tasks)) for name in names[number]]
