"""Files of keys, divided into pieces that workers read by themselves, each in batches."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple

from dlbf.errors import DlbfError
from dlbf.typenames import Keys

__all__ = ["FORMATS", "Piece", "divide", "fingerprint", "read_piece"]

FORMATS = ("lines", "csv", "parquet")
SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv"}
# About a million keys: what a worker holds of them are 13 bytes each.
PIECE_BYTES = 64 << 20
BLOCK_BYTES = 4 << 20
BATCH_ROWS = 1 << 16


class Piece(NamedTuple):
    """A part of a source: bytes of a file of lines (those that begin there), row groups of Parquet, or a whole CSV."""

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
    """Path and size of every source: another one means other keys."""
    return [[path, _size(path)] for path in sources]


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
    heading = csv.open_csv(file).schema.names
    name = _column(piece, heading)
    file.seek(0)
    options = csv.ConvertOptions(include_columns=[name], column_types={name: arrow.binary()})
    with csv.open_csv(file, convert_options=options) as reader:
        for batch in reader:
            yield _filled(batch.column(0))


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
