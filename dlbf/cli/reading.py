"""Keys and records for every command that reads a file of them; and secrets.

What a file is is told by ``--format``, else by its name, else by what is in it: lines, unless they are surely something
else.  See ``dlbf.cli.records`` for lines and ``dlbf.cli.tables`` for columns.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path, PurePath
from typing import Any, TypeVar

import click

from dlbf.cli.exits import Trouble
from dlbf.cli.inputs import Lines, open_lines
from dlbf.cli.records import FORMATS, Record, RecordError, format_of, read_records
from dlbf.cli.tables import (
    DELIMITERS,
    SAMPLE_LINES,
    choose_columns,
    looks_like_a_table,
    named_columns,
    read_table,
)

__all__ = ["Records", "input_options", "open_records", "read_key_batches", "read_keys_from", "read_secret"]

F = TypeVar("F", bound=Callable[..., object])  # a command, or a function that becomes one

KEYS_PER_BATCH = 1 << 16
PARQUET = (".parquet", ".pq")
# How files begin that are no text.
MAGICS = {b"PAR1": "Parquet; name it .parquet", b"\x1f\x8b": "gzip; name it .gz", b"\xfd7zXZ": "xz; name it .xz"}


def input_options(command: F) -> F:
    """The options ``--column`` and ``--format`` of commands that read keys."""
    command = click.option(
        "--format", type=click.Choice(FORMATS), help="What the file is, if neither its name nor its content tells."
    )(command)
    return click.option(
        "--column", help="The column of the keys, of CSV, TSV, JSON lines or Parquet: its heading, or number from 0."
    )(command)


class Records:
    """Records of an open file, with the place reached, for progress bars; ``plain``: its lines, if those are keys."""

    def __init__(
        self,
        name: str,
        records: Iterable[Record | RecordError],
        lines: Lines | None,
        plain: Iterable[bytes] | None = None,
    ) -> None:
        self.name = name
        self.plain = plain
        self.n_bytes = None if lines is None else lines.n_bytes
        self._records = records
        self._lines = lines

    def position(self) -> int:
        """Bytes read so far; 0 if nobody knows."""
        return 0 if self._lines is None else self._lines.position()

    def __iter__(self) -> Iterator[Record | RecordError]:
        return iter(self._records)


@contextlib.contextmanager
def open_records(
    name: str,
    *,
    format: str | None = None,
    column: str | None = None,
    value_column: str | None = None,
    with_values: bool = False,
    codec: str | None = None,
    first_line: int = 1,
    skip_bad: bool = False,
    quiet: bool = False,
) -> Iterator[Records]:
    """Open a file of records or keys; ``-`` is standard input.

    Parameters
    ----------
    name : str
        A path.  ``.gz`` and ``.xz`` are decompressed; ``.parquet`` needs pyarrow.
    format : str, optional
        One of ``dlbf.cli.records.FORMATS``.
    column, value_column : str, optional
        Where keys and values are, in a table.
    with_values : bool
        Whether values are wanted.
    codec : str, optional
        As for ``dlbf.cli.records.read_records``.
    first_line : int
        The same.
    skip_bad : bool
        The same.
    quiet : bool
        Do not tell on standard error how a table is read that nobody has explained.

    Raises
    ------
    Trouble
        If it cannot be opened, or if it is not clear what is in it; also while reading.
    """

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    if value_column is not None and column is None:
        raise click.UsageError("--value-column needs --column, the column of the keys")
    if format is None and PurePath(name).suffix in PARQUET:
        yield Records(name, _parquet(Path(name), column, value_column, with_values, first_line, say), None)
        return
    with open_lines(name) as opened:
        lines: Iterable[bytes] = opened
        format = format or format_of(name)
        if column is not None and format in (None, "keys"):
            format = "csv"
        if format is None:
            source = iter(lines)
            head = list(islice(source, SAMPLE_LINES))
            _check_lines(opened.name, head)
            lines, format = chain(head, source), "keys"
        if format == "csv" or (format == "tsv" and column is not None):
            records: Iterable[Record | RecordError] = read_table(
                opened.name, lines, delimiters=DELIMITERS if format == "csv" else "\t", column=column,
                value_column=value_column, with_values=with_values, codec=codec, first_line=first_line,
                skip_bad=skip_bad, say=say,
            )  # fmt: skip
        else:
            fields = (column or "key", value_column or "value")
            if format == "tsv" and not with_values:
                say(f"{opened.name}: read as TSV, keys from the first column; --column chooses another, by its heading")
            records = read_records(lines, format, codec, first_line, skip_bad, fields)
        is_plain = format == "keys" and codec in (None, "text")
        yield Records(opened.name, records, opened, lines if is_plain else None)


def _check_lines(name: str, head: list[bytes]) -> None:
    """Refuse lines that are surely no keys, in a file of which nobody has said what it is."""
    first = head[0] if head else b""
    for magic, what in MAGICS.items():
        if first.startswith(magic):
            raise Trouble(f"{name}: expected lines, found {what}")
    heading = looks_like_a_table(head)
    if heading:
        listed = ", ".join(cell.decode("utf-8", "backslashreplace") for cell in heading)
        raise Trouble(
            f"{name}: looks like a table with the columns {listed}; name that of the keys with --column, or pass "
            "--format keys if every line is a key"
        )
    if first.startswith(b'{"') and all(line.startswith(b"{") for line in head if line.strip()):
        raise Trouble(f"{name}: looks like JSON lines; pass --format jsonl, or --format keys if every line is a key")


def read_key_batches(
    name: str, column: str | None = None, format: str | None = None, codec: str | None = None
) -> Iterator[list[bytes]]:
    """The keys of a file, some at a time; empty ones are passed over.

    Raises
    ------
    Trouble
        If the file cannot be read, or it is not clear what the keys in it are.
    """
    with open_records(name, format=format, column=column, codec=codec) as records:
        if records.plain is not None:
            source = iter(records.plain)
            while lines := list(islice(source, KEYS_PER_BATCH)):
                # As in records: a line ends in LF or CR LF; other white space belongs to the key.
                yield [line for raw in lines if (line := raw.removesuffix(b"\n").removesuffix(b"\r"))]
            return
        try:
            keys = (record.key for record in records if isinstance(record, Record) and record.key)
            while batch := list(islice(keys, KEYS_PER_BATCH)):
                yield batch
        except RecordError as error:
            raise Trouble(f"{records.name}, {error}") from error


def read_keys_from(name: str, column: str | None = None, format: str | None = None) -> list[bytes]:
    """All keys of a file; see ``read_key_batches``."""
    return list(chain.from_iterable(read_key_batches(name, column, format)))


def _parquet(
    path: Path,
    column: str | None,
    value_column: str | None,
    with_values: bool,
    first_line: int,
    say: Callable[[str], object],
) -> Iterator[Record]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise Trouble(f"{path}: Parquet needs pyarrow ({error}); install it with: pip install pyarrow") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            heading = [name.encode("utf-8", "surrogateescape") for name in names]
            if column is None:
                key, value, told, _ = choose_columns(str(path), heading, True, with_values)
                say(f"{path}: read as Parquet, {told}")
            else:
                places = named_columns(heading, column, value_column)
                if places is None:
                    missing = next(each for each in (column, value_column) if each not in (None, *names))
                    raise Trouble(f"{path}: no column {missing!r}; there are: {', '.join(names)}")
                key, value = places
            wanted = [names[each] for each in (key, value) if each is not None]
            number = 0
            for batch in file.iter_batches(KEYS_PER_BATCH, columns=list(dict.fromkeys(wanted))):
                columns = [_cells(path, each, batch.column(each).to_pylist()) for each in wanted]
                for row in zip(*columns, strict=True):
                    number += 1
                    if number >= first_line and row[0] is not None:
                        yield Record(number, row[0], (row[1] if value is not None else None) or b"")
    except (OSError, pyarrow.ArrowException) as error:
        raise Trouble(f"{path}: cannot be read: {error}") from error


def _cells(path: Path, column: str, values: list[Any]) -> list[bytes | None]:
    if any(not isinstance(value, str | bytes | None) for value in values):
        raise Trouble(f"{path}: column {column!r} holds neither text nor bytes")
    return [value.encode() if isinstance(value, str) else value for value in values]


def read_secret(path: Path) -> bytes:
    """The 16 bytes of a secret from a file."""
    secret = path.read_bytes()
    if len(secret) != 16:
        raise click.ClickException(
            f"{path}: a secret has 16 bytes, found {len(secret)}; make one with: head -c 16 /dev/urandom"
        )
    return secret
