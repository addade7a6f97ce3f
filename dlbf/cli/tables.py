"""CSV and its relatives: which character separates cells, whether the first row is headings, which column has the keys.

Where there is one plausible reading it is taken and told; where there are several, an error lists them and names the
options that choose.  Cells are bytes: whatever is not a separator, a quote or the end of a line comes as it is.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from dlbf.cli.exits import Trouble
from dlbf.cli.records import BOM, Record, RecordError
from dlbf.cli.text import CODECS, shown

__all__ = ["DELIMITERS", "SAMPLE_LINES", "choose_columns", "looks_like_a_table", "named_columns", "read_table"]

SAMPLE_LINES = 200
DELIMITERS = ",;\t|"
# What a heading looks like: a name, and neither a number, an address nor a path.
NAME = re.compile(r"[^\W\d][\w -]{0,63}")
# csv wants a limit, and more than its own 128 KiB fit into a value.
MAX_CELL_BYTES = 2**31 - 1


class Columns(NamedTuple):
    """How to read a table.

    ``value`` is None if values are empty; ``has_heading``: the first row is no record.
    """

    delimiter: str
    width: int
    has_heading: bool
    key: int
    value: int | None


def read_table(
    name: str,
    lines: Iterable[bytes],
    *,
    delimiters: str = DELIMITERS,
    column: str | None = None,
    value_column: str | None = None,
    with_values: bool = False,
    codec: str | None = None,
    first_line: int = 1,
    skip_bad: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> Iterator[Record | RecordError]:
    """The records of a table; see ``dlbf.cli.records.read_records`` for what is common.

    Parameters
    ----------
    name : str
        Of the file, for messages.
    lines : iterable of bytes
        With their ends.
    delimiters : str
        Characters that may separate cells.
    column, value_column : str, optional
        Columns of the keys and of the values: by heading, or by number (from 0) if there are no headings.
    with_values : bool
        Whether somebody wants values, so that columns beside that of the keys need an explanation.
    say : callable
        Is told how the file is read, if nobody has said how.

    Raises
    ------
    Trouble
        If it could be read in several ways.
    RecordError
        As in ``read_records``: a row that has more or fewer cells than the first.
    """
    source = iter(lines)
    head = list(islice(source, SAMPLE_LINES))
    if head and head[0].startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Trouble(f"{name}: expected UTF-8, found UTF-16; save it as UTF-8")
    if head:
        head[0] = head[0].removeprefix(BOM)
    sample = {delimiter: rows for delimiter in delimiters if (rows := _sample(head, delimiter))}
    if not sample:
        if column is not None and not head:
            raise Trouble(f"{name}: no column {column!r}; there are: none")
        if any(line.strip() for line in head):
            raise RecordError(f"line 1: expected CSV, found {shown(head[0])}")
        return
    columns = _guess(name, sample, with_values, say) if column is None else _named(name, sample, column, value_column)
    heading_due = columns.has_heading
    decode = CODECS[codec or "text"].decode
    for number, row in _rows(chain(head, source), columns.delimiter):
        if not row or number < first_line:
            heading_due = heading_due and not row
            continue
        if heading_due:
            heading_due = False
            continue
        try:
            if isinstance(row, csv.Error):
                raise ValueError(row)
            yield Record(number, *_cells(row, columns, decode))
        except ValueError as error:
            problem = RecordError(f"line {number}: {error}")
            if not skip_bad:
                raise problem from None
            yield problem


def _cells(row: list[str], columns: Columns, decode: Callable[[bytes], bytes]) -> tuple[bytes, bytes]:
    """Key and value in a row."""
    if len(row) != columns.width:
        raise ValueError(
            f"expected {columns.width} columns, found {len(row)}; a cell with {columns.delimiter!r} or a quote in it "
            "needs quotes around it"
        )
    value = b"" if columns.value is None else decode(row[columns.value].encode("latin-1"))
    return decode(row[columns.key].encode("latin-1")), value


def _rows(lines: Iterable[bytes], delimiter: str) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """Rows, or what is wrong with them, each with the number of the line it ends on.

    Cells are Latin-1, which has a character for every byte: they come back as they were, whatever their encoding.
    """
    csv.field_size_limit(MAX_CELL_BYTES)
    reader = csv.reader((line.decode("latin-1") for line in lines), delimiter=delimiter, strict=True)
    while True:
        try:
            for row in reader:
                yield reader.line_num, row
            return
        except csv.Error as error:
            yield reader.line_num, error


def _sample(head: list[bytes], delimiter: str) -> list[list[bytes]]:
    """The first rows, up to one that is none: no CSV, or cut in the middle of a quoted cell."""
    rows = []
    for _, row in _rows(head, delimiter):
        if isinstance(row, csv.Error):
            break
        if row:
            rows.append([cell.encode("latin-1") for cell in row])
    return rows


def looks_like_a_table(head: list[bytes]) -> list[bytes]:
    """The headings, if lines that nobody has called a table are surely one; else nothing."""
    for delimiter in DELIMITERS:
        rows = _sample(head, delimiter)
        if len(rows) > 2 and len(rows[0]) > 1 and len({len(row) for row in rows}) == 1 and _is_heading(rows):
            return rows[0]
    return []


def _is_heading(rows: list[list[bytes]]) -> bool | None:
    """Whether the first row is headings; None: who knows."""
    names = [_name(cell) for cell in rows[0]]
    if "key" in names:
        return True
    if not all(map(NAME.fullmatch, names)) or len(set(names)) < len(names):
        return False
    columns = list(zip(*(row for row in rows[1:] if len(row) == len(names)), strict=True))
    # In some column nothing else is a name: numbers, addresses, paths.
    return any(not any(NAME.fullmatch(_name(cell)) for cell in column) for column in columns) or None


def _name(cell: bytes) -> str:
    return cell.decode("utf-8", "replace").strip().lower()


def _guess(name: str, sample: dict[str, list[list[bytes]]], with_values: bool, say: Callable[[str], object]) -> Columns:
    """Columns that nobody has named."""
    widths = {delimiter: {len(row) for row in rows} for delimiter, rows in sample.items()}
    # One that gives every row the same number of cells, and more than one; else one that makes headings of the first.
    good = [delimiter for delimiter, seen in widths.items() if len(seen) == 1 and seen != {1}]
    good += [each for each, rows in sample.items() if len(rows[0]) > 1 and _is_heading(rows) is not False]
    if not good and any(seen != {1} for seen in widths.values()):
        delimiter = max(widths, key=lambda each: len(widths[each]))
        few, many = min(widths[delimiter]), max(widths[delimiter])
        raise Trouble(
            f"{name}: its rows have {few} to {many} cells; pass --format keys if every line is a key, or --column with "
            "the column of the keys if it is CSV"
        )
    delimiter = good[0] if good else next(iter(sample))
    rows = sample[delimiter]
    key, value, told, has_heading = choose_columns(name, rows[0], _is_heading(rows), with_values)
    say(f"{name}: read as CSV, {told}")
    return Columns(delimiter, len(rows[0]), has_heading, key, value)


def choose_columns(
    name: str, first: list[bytes], is_heading: bool | None, with_values: bool
) -> tuple[int, int | None, str, bool]:
    """The columns of keys and values in a table whose first row is given, what to tell, and whether that is headings.

    Raises
    ------
    Trouble
        If several choices make sense.
    """
    if len(first) == 1:
        if is_heading is None:
            raise Trouble(
                f"{name}: its first row, {shown(first[0])}, may be a heading or a key; pass --column "
                f"{shown(first[0])} if it is a heading, --column 0 if it is a key"
            )
        told = f"keys from its only column, {shown(first[0])}" if is_heading else "one column without a heading"
        return 0, None, told, is_heading
    names = [_name(cell) for cell in first]
    others = [each for each in names if each not in ("key", "value")]
    if is_heading and "key" in names and not (with_values and others and "value" not in names):
        value = names.index("value") if with_values and "value" in names else None
        told = f"keys from the column {shown(first[names.index('key')])}"
        if value is not None:
            told += f", values from {shown(first[value])}"
        return names.index("key"), value, told, True
    raise Trouble(f"{name}: a table of {len(first)} columns; {_ask(first, is_heading, with_values)}")


def _ask(first: list[bytes], is_heading: bool | None, with_values: bool) -> str:
    more = " (and the values: --value-column)" if with_values else ""
    if is_heading is False:
        listed = ", ".join(f"{number} ({shown(cell, 30)})" for number, cell in enumerate(first))
        return f"name that of the keys with --column{more}: there are no headings, so by number, from 0: {listed}"
    listed = ", ".join(cell.decode("utf-8", "backslashreplace") for cell in first)
    return f"name that of the keys with --column{more}: {listed}"


def named_columns(first: list[bytes], column: str, value_column: str | None) -> tuple[int, int | None] | None:
    """Where the headings are that somebody has named; None: not all are there."""
    wanted = [each.encode("utf-8", "surrogateescape") for each in (column, value_column) if each is not None]
    if not all(each in first for each in wanted):
        return None
    places = [first.index(each) for each in wanted]
    return places[0], places[1] if value_column is not None else None


def _named(name: str, sample: dict[str, list[list[bytes]]], column: str, value_column: str | None) -> Columns:
    """Columns by their headings, else by their numbers."""
    for delimiter, rows in sample.items():
        places = named_columns(rows[0], column, value_column)
        if places is not None:
            return Columns(delimiter, len(rows[0]), True, *places)
    # That which gives all rows the same number of cells, and more than one, if there is any.
    delimiter = min(sample, key=lambda each: (len({len(row) for row in sample[each]}), len(sample[each][0]) == 1))
    if len(sample[delimiter][0]) == 1:
        delimiter = next(iter(sample))
    first = sample[delimiter][0]
    for each in (column, value_column):
        if each is not None and not (each.isdigit() and int(each) < len(first)):
            there = ", ".join(cell.decode("utf-8", "backslashreplace") for cell in first)
            raise Trouble(f"{name}: no column {each!r}; there are: {there}")
    return Columns(delimiter, len(first), False, int(column), None if value_column is None else int(value_column))
