"""Files of keys, divided into pieces that workers read by themselves, each in batches."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple

from dlbf.errors import DlbfError
from dlbf.typenames import Keys

__all__ = ["FORMATS", "Piece", "divide", "fingerprint", "read_piece"]

FORMATS = ("lines", "csv", "parquet")
SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv"}
# About a million keys.
PIECE_BYTES = 64 << 20
# Read at once.
BLOCK_BYTES = 4 << 20
MOST_RECORD_BYTES = 64 << 20
# A quoted value of CSV, which begins where a value does; without its end if that is not there.
QUOTED = re.compile(rb'(?<![^,\r\n])"(?:[^"]|"")*+(?:"|\Z)')
# By what file systems tell one content of a file from another, where they do.
MARKS = (
    "ETag", "etag", "e_tag", "md5Hash", "content_md5", "crc32c", "checksum", "content_hash", "generation", "version_id",
    "VersionId", "mtime", "LastModified", "last_modified", "updated", "modified",
)  # fmt: skip
BATCH_ROWS = 1 << 16


class Piece(NamedTuple):
    """A part of a source: bytes of a file of lines (those that begin there), row groups of Parquet, or a whole CSV.

    A CSV is not divided: whether an end of a line ends a record depends on the quotes before it.
    """

    path: str
    format: str
    column: str | None
    start: int
    end: int


def divide(
    sources: Sequence[str], format: str | None = None, column: str | None = None, piece_bytes: int = PIECE_BYTES
) -> list[Piece]:
    """Divide files of keys into pieces, the same ones whoever asks.

    Parameters
    ----------
    sources : sequence of str
        Paths, or addresses that fsspec knows (``s3://bucket/keys.txt``).
    format : {"lines", "csv", "parquet"}, optional
        By default what the name says, else lines.
    column : str, optional
        The column of the keys, of CSV and Parquet; the first by default.
    piece_bytes : int
        Size of a piece of lines.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"expected one of the formats {', '.join(FORMATS)}, found {format!r}")
    pieces: list[Piece] = []
    for path in sources:
        kind = format or SUFFIXES.get(PurePath(path).suffix, "lines")
        if kind == "parquet":
            with _open(path) as file:
                n_groups = _parquet(path, file).num_row_groups
            pieces += [Piece(path, kind, column, group, group + 1) for group in range(n_groups)]
        elif kind == "csv":
            pieces.append(Piece(path, kind, column, 0, 0))
        else:
            n_bytes = _size(path)
            pieces += [
                Piece(path, kind, None, at, min(at + piece_bytes, n_bytes)) for at in range(0, n_bytes, piece_bytes)
            ]
    return pieces


def fingerprint(sources: Sequence[str]) -> list[list[object]]:
    """Path and size of every source, and what its file system tells of its content: others mean other keys.

    That is the time of the last change, or an etag or checksum of an address that has one.  Not seen: a file of the same
    size whose time was set back, and an address of which nothing but the size is known.
    """
    return [[path, *_content(path)] for path in sources]


def read_piece(piece: Piece) -> Iterator[Keys]:
    """The keys of a piece in batches; empty ones, and nulls, are passed over."""
    with _open(piece.path) as file:
        if piece.format == "lines":
            yield from _lines(file, piece.start, piece.end)
        elif piece.format == "csv":
            yield from _csv(piece, file)
        else:
            table = _parquet(piece.path, file)
            name = _column(piece, table.schema_arrow.names)
            groups = list(range(piece.start, piece.end))
            for batch in table.iter_batches(BATCH_ROWS, row_groups=groups, columns=[name]):
                yield _filled(batch.column(0))


def _lines(file: BinaryIO, start: int, end: int) -> Iterator[list[bytes]]:
    """Lines that begin in [start, end); as everywhere they end in LF or CR LF."""
    rest = b""
    if start:
        # The line that the byte before belongs to is the piece's before this one.
        file.seek(start - 1)
        start += len(file.readline()) - 1
    file.seek(start)
    at = start
    while at < end and (block := file.read(min(BLOCK_BYTES, end - at))):
        at += len(block)
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        yield [key for line in lines if (key := line.removesuffix(b"\r"))]
    if rest:
        last = (rest + file.readline() if at >= end else rest).removesuffix(b"\n").removesuffix(b"\r")
        if last:
            yield [last]


def _csv(piece: Piece, file: BinaryIO) -> Iterator[Keys]:
    csv = _arrow("pyarrow.csv", piece.path)
    arrow = _arrow("pyarrow", piece.path)
    names: list[str] | None = None
    for block in _records(piece.path, file):
        buffer = arrow.py_buffer(block)
        reading = {
            "read_options": csv.ReadOptions(column_names=names, block_size=len(block) + 1, use_threads=False),
            "parse_options": csv.ParseOptions(newlines_in_values=True),
        }
        heading = csv.read_csv(arrow.BufferReader(buffer), **reading).schema.names if names is None else names
        name = _column(piece, heading)
        options = csv.ConvertOptions(include_columns=[name], column_types={name: arrow.binary()})
        table = csv.read_csv(arrow.BufferReader(buffer), convert_options=options, **reading)
        names = heading
        for column in table.column(0).chunks:
            yield _filled(column)


def _records(path: str, file: BinaryIO) -> Iterator[bytes]:
    """Blocks of a CSV that end where a record does.

    Arrow can cut by itself, but it drops the line feed of a quoted CR LF that its cut goes through.
    """
    rest = b""
    while block := file.read(BLOCK_BYTES):
        data = rest + block
        end = _last_end(data)
        if end:
            yield data[:end]
        rest = data[end:]
        if len(rest) > MOST_RECORD_BYTES:
            raise DlbfError(
                f"{path}: expected records of CSV of at most {MOST_RECORD_BYTES >> 20} MiB, ended by line feeds, found a "
                "longer one; is a quote left open, or is this no CSV?"
            )
    if rest:
        yield rest


def _last_end(data: bytes) -> int:
    """Where the last line feed ends that is outside of quoted values; 0: there is none."""
    end, last = 0, 0
    for quoted in QUOTED.finditer(data):
        if (at := data.rfind(b"\n", last, quoted.start())) >= 0:
            end = at + 1
        last = quoted.end()
    at = data.rfind(b"\n", last)
    return at + 1 if at >= 0 else end


def _filled(column: Any) -> Keys:
    """Without nulls and empty keys."""
    compute = _arrow("pyarrow.compute", "")
    wanted = compute.greater(compute.binary_length(column), 0)
    kept: Keys = column.filter(wanted)
    return kept


def _column(piece: Piece, names: Sequence[str]) -> str:
    name = names[0] if piece.column is None and names else piece.column
    if name not in names:
        raise DlbfError(f"{piece.path}: no column {name!r}; there are: {', '.join(names)}")
    return str(name)


def _parquet(path: str, file: BinaryIO) -> Any:
    return _arrow("pyarrow.parquet", path).ParquetFile(file)


def _arrow(module: str, path: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DlbfError(
            f"{path}: CSV and Parquet need pyarrow ({error}); install it with: pip install pyarrow"
        ) from error


def _remote(path: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise DlbfError(f"{path}: this needs fsspec ({error}); install it with: pip install fsspec") from error
    return fsspec.core.url_to_fs(path)


@contextlib.contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    if "://" in path:
        system, inside = _remote(path)
        with system.open(inside, "rb") as file:
            yield file
        return
    with open(path, "rb") as file:  # noqa: PTH123
        yield file


def _size(path: str) -> int:
    if "://" in path:
        system, inside = _remote(path)
        return int(system.size(inside))
    with _open(path) as file:
        return file.seek(0, 2)


def _content(path: str) -> list[object]:
    if "://" not in path:
        about = Path(path).stat()
        return [about.st_size, str(about.st_mtime_ns)]
    system, inside = _remote(path)
    told = system.info(inside)
    return [int(system.size(inside)), *(f"{name} {told[name]}" for name in MARKS if told.get(name))]
