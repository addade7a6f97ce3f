"""Records in files: the formats of ``dlbf load`` and ``dlbf export``.

======  =====================================================================================================
tsv     key, tab, value; both escaped, so that any bytes come back; a line without a tab is a key with no value
csv     headings ``key,value``, then the bytes as they are, in quotes where CSV needs them; see ``tables``
jsonl   ``{"key": "...", "value": "..."}`` a line; ``key_base64`` and ``value_base64`` where bytes are not UTF-8
keys    a key a line, as it is, and no values
======  =====================================================================================================

Lines end in LF; CR LF is read too.  Empty lines are passed over.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import NamedTuple

from dlbf.cli.text import CODECS, Codec, json_fields, json_line, parse_json_fields, shown

__all__ = ["FORMATS", "RecordError", "format_of", "read_records", "record_heading", "record_writer"]

SUFFIXES = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "keys",
    ".keys": "keys",
}
FORMATS = ("tsv", "csv", "jsonl", "keys")
CSV_SPECIAL = re.compile(rb'[,"\r\n]')
BOM = b"\xef\xbb\xbf"


class RecordError(ValueError):
    """A line that is no record, or a record that a format has no line for."""


class Record(NamedTuple):
    """What one line says."""

    line: int
    key: bytes
    value: bytes


def format_of(name: str) -> str | None:
    """The format that a file's name tells, whether it is compressed or not; None if it does not."""
    path = PurePath(name)
    if path.suffix in (".gz", ".xz"):
        path = path.with_suffix("")
    return SUFFIXES.get(path.suffix)


def default_codec(format: str) -> str:
    """How a format writes bytes when nobody says."""
    return "text" if format in ("keys", "csv") else "escape"


def read_records(
    lines: Iterable[bytes],
    format: str,
    codec: str | None = None,
    first_line: int = 1,
    skip_bad: bool = False,
    fields: tuple[str, str] = ("key", "value"),
) -> Iterator[Record | RecordError]:
    """The records of a file that has one a line, one by one.

    Parameters
    ----------
    lines : iterable of bytes
        With their ends.
    format : str
        One of ``FORMATS``, but for csv.
    codec : str, optional
        How bytes are written, a name in ``dlbf.cli.text.CODECS``; not for jsonl.
    first_line : int
        Lines before it are passed over.
    skip_bad : bool
        Yield the error for a line that is no record instead of raising it.
    fields : tuple of str
        Names of key and value in jsonl.

    Raises
    ------
    RecordError
        With the number of the line.
    """
    how = CODECS[codec or default_codec(format)]
    parse = _parser(format, how, fields)
    for number, line in enumerate(lines, 1):
        if number == 1 and (format == "jsonl" or how.name != "text"):
            line = line.removeprefix(BOM)
        if number < first_line:
            continue
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if not line:
            continue
        try:
            yield Record(number, *parse(line))
        except (ValueError, RecursionError) as error:
            problem = RecordError(f"line {number}: {error}")
            if not skip_bad:
                raise problem from None
            yield problem


def _parser(format: str, codec: Codec, fields: tuple[str, str]) -> Callable[[bytes], tuple[bytes, bytes]]:
    decode = codec.decode
    if format == "keys":
        return lambda line: (decode(line), b"")
    return (lambda line: _parse_json(line, *fields)) if format == "jsonl" else lambda line: _parse_tsv(line, decode)


def _parse_tsv(line: bytes, decode: Callable[[bytes], bytes]) -> tuple[bytes, bytes]:
    key, _, value = line.partition(b"\t")
    if b"\t" in value:
        raise ValueError(
            f"expected key, tab, value, found {line.count(bytes([9])) + 1} columns in {shown(line)}; "
            "a tab in a key or value is written \\t; of a table with other columns choose with --column"
        )
    return decode(key), decode(value)


def _parse_json(line: bytes, key_field: str, value_field: str) -> tuple[bytes, bytes]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected a JSON object, found {shown(line)} ({error.msg})") from None
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, found {shown(line)}")
    key, value = parse_json_fields(record, key_field), parse_json_fields(record, value_field)
    if key is None:
        found = ", ".join(map(str, record)) or "nothing"
        raise ValueError(
            f"expected the field '{key_field}' or '{key_field}_base64', found {shown(found.encode())}; name another "
            "with --column"
        )
    return key, value or b""


def record_heading(format: str) -> bytes:
    """What a file begins with."""
    return b"key,value\n" if format == "csv" else b""


def record_writer(format: str, codec: str | None = None) -> Callable[[bytes, bytes], bytes]:
    """A function that makes the line of a key and a value, with its end.

    The function raises ``RecordError`` for a key that the format cannot hold.
    """
    how = CODECS[codec or default_codec(format)]
    encode = how.encode
    if format == "tsv":
        if how.name == "text":
            return _plain_tsv
        return lambda key, value: b"%b\t%b\n" % (encode(key), encode(value))
    if format == "csv":
        return lambda key, value: b"%b,%b\n" % (_csv_cell(encode(key)), _csv_cell(encode(value)))
    if format == "jsonl":
        return lambda key, value: json_line(json_fields("key", key) | json_fields("value", value))
    if how.name == "text":
        return _plain_key
    return lambda key, value: encode(_not_empty(key)) + b"\n"


def _csv_cell(data: bytes) -> bytes:
    return b'"%b"' % data.replace(b'"', b'""') if CSV_SPECIAL.search(data) else data


def _not_empty(key: bytes) -> bytes:
    if not key:
        raise RecordError("the empty key has no line in the format keys; use --format tsv, csv or jsonl")
    return key


def _plain_key(key: bytes, value: bytes) -> bytes:
    if b"\n" in key or key.endswith(b"\r"):
        raise RecordError(
            f"the key {shown(key)} would not come back from a line of its own; use --format tsv, csv or jsonl, or "
            "--escape"
        )
    return _not_empty(key) + b"\n"


def _plain_tsv(key: bytes, value: bytes) -> bytes:
    if any(mark in part for mark in (b"\t", b"\n") for part in (key, value)) or value.endswith(b"\r"):
        raise RecordError(
            f"the key {shown(key)} or its value has a tab or the end of a line in it, which --text cannot tell from "
            "the file's own; leave --text away"
        )
    return b"%b\t%b\n" % (key, value)
