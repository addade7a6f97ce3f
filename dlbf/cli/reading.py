"""Files for the command line: lines, compressed lines, a column of CSV or Parquet, standard input, secrets."""

import csv
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import click

__all__ = ["BAD_FILE", "OPENERS", "read_keys_from", "read_secret"]

# How compressed files are opened, from a path or from an open file.
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
# What reading such a file raises when the file is the problem.
BAD_FILE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def read_keys_from(name: str, column: str | None) -> list[bytes]:
    """The keys in a file, one per line, or those of a column.

    Parameters
    ----------
    name : str
        A path; ``-`` is standard input.  ``.gz`` and ``.xz`` are decompressed; ``.parquet`` needs pyarrow.
    column : str, optional
        A column by its heading (or number, from 0, for CSV without headings): the file is then CSV, or Parquet.

    Raises
    ------
    click.ClickException
        If the file cannot be read, or has no such column.
    """
    path = Path(name)
    try:
        if name == "-":
            return _from_text(sys.stdin.buffer, column, "standard input")
        if path.suffix in (".parquet", ".pq"):
            return _from_parquet(path, column)
        with OPENERS[path.suffix](path) if path.suffix in OPENERS else path.open("rb") as file:
            return _from_text(file, column, name)
    except (*BAD_FILE, UnicodeDecodeError, csv.Error) as error:
        raise click.ClickException(f"{name}: cannot be read: {error}") from error


def _from_text(file: BinaryIO, column: str | None, name: str) -> list[bytes]:
    if column is not None:
        return _from_csv(file, column, name)
    # A line ends in LF or CR LF; other white space belongs to the key.
    return [line for line in (raw.removesuffix(b"\r") for raw in file.read().split(b"\n")) if line]


def _from_csv(file: BinaryIO, column: str, name: str) -> list[bytes]:
    rows = csv.reader(io.StringIO(file.read().decode(), newline=""))
    heading = next(rows, [])
    found = []
    if column in heading:
        at = heading.index(column)
    elif column.isdigit() and int(column) < len(heading):
        at = int(column)
        found.append(heading[at])
    else:
        raise click.ClickException(f"{name}: no column {column!r}; there are: {', '.join(heading) or 'none'}")
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        if at >= len(row):
            raise click.ClickException(f"{name}, row {number}: {len(row)} columns, expected more than {at}")
        found.append(row[at])
    return [value.encode() for value in found if value]


def _from_parquet(path: Path, column: str | None) -> list[bytes]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise click.ClickException(
            f"{path}: Parquet needs pyarrow ({error}); install it with: pip install pyarrow"
        ) from error
    try:
        names = pyarrow.parquet.read_schema(path).names
        if column is None and len(names) != 1:
            raise click.ClickException(f"{path}: name one of its columns with --column: {', '.join(names)}")
        wanted = column if column is not None else names[0]
        if wanted not in names:
            raise click.ClickException(f"{path}: no column {wanted!r}; there are: {', '.join(names)}")
        values = pyarrow.parquet.read_table(path, columns=[wanted]).column(0).to_pylist()
    except pyarrow.ArrowException as error:
        raise click.ClickException(f"{path}: cannot be read: {error}") from error
    if any(not isinstance(value, str | bytes | None) for value in values):
        raise click.ClickException(f"{path}: column {wanted!r} holds neither text nor bytes")
    return [value if isinstance(value, bytes) else value.encode() for value in values if value]


def read_secret(path: Path) -> bytes:
    """The 16 bytes of a secret from a file."""
    secret = path.read_bytes()
    if len(secret) != 16:
        raise click.ClickException(
            f"{path}: a secret has 16 bytes, found {len(secret)}; make one with: head -c 16 /dev/urandom"
        )
    return secret
