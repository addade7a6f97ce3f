"""Bytes as text and back: how the command line writes keys and values.

============  ==========================================================================================
text          the bytes as they are
escape        printable UTF-8 as it is; ``\\\\``, ``\\t``, ``\\n``, ``\\r`` and ``\\xNN`` for everything else
hex           two digits a byte
base64        as in RFC 4648, padded
============  ==========================================================================================

Every way but "text" gives one line without tabs, for any bytes, and decoding gives them back.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import click

__all__ = [
    "CODECS",
    "Codec",
    "bytes_text",
    "codec_options",
    "escape",
    "json_fields",
    "json_line",
    "parse_json_fields",
    "shown",
    "unescape",
]

F = TypeVar("F", bound=Callable[..., object])  # a command, or a function that becomes one

SHORT_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
UNESCAPES = {b"\\": b"\\", b"t": b"\t", b"n": b"\n", b"r": b"\r"}
PLAIN = re.compile(rb"[ -\[\]-~]*")
ESCAPED = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)


def escape(data: bytes) -> bytes:
    """One line of printable UTF-8 that ``unescape`` turns back into ``data``.

    Examples
    --------
    >>> escape("grün\\t1".encode() + b"\\xff").decode()
    'grün\\\\t1\\\\xff'
    """
    if PLAIN.fullmatch(data):
        return data
    out = []
    for char in data.decode("utf-8", "surrogateescape"):
        if char in SHORT_ESCAPES:
            out.append(SHORT_ESCAPES[char])
        elif char.isprintable():
            out.append(char)
        else:
            out.extend(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
    return "".join(out).encode()


def unescape(data: bytes) -> bytes:
    """The bytes that ``escape`` was given.

    Raises
    ------
    ValueError
        If a backslash begins nothing that is known.
    """
    return ESCAPED.sub(_unescape_one, data) if b"\\" in data else data


def _unescape_one(match: re.Match[bytes]) -> bytes:
    name = match[1]
    if len(name) == 3:
        return bytes.fromhex(name[1:].decode())
    if name not in UNESCAPES:
        raise ValueError(
            f"expected \\\\, \\t, \\n, \\r or \\xNN, found {match[0].decode(errors='replace')!r}; "
            "write a backslash as \\\\, or pass --text if backslashes are just backslashes"
        )
    return UNESCAPES[name]


def _from_hex(data: bytes) -> bytes:
    try:
        return bytes.fromhex(data.decode())
    except ValueError:
        raise ValueError(f"expected pairs of hexadecimal digits, found {shown(data)}") from None


def _from_base64(data: bytes) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"expected base64, found {shown(data)} ({error})") from None


class Codec(NamedTuple):
    """A way of writing bytes, see the module."""

    name: str
    encode: Callable[[bytes], bytes]
    decode: Callable[[bytes], bytes]


CODECS = {
    codec.name: codec
    for codec in (
        Codec("text", bytes, bytes),
        Codec("escape", escape, unescape),
        Codec("hex", lambda data: data.hex().encode(), _from_hex),
        Codec("base64", base64.b64encode, _from_base64),
    )
}


def codec_options(command: F) -> F:
    """The options ``--text``, ``--escape``, ``--hex`` and ``--base64``; the command gets ``codec``, a name or None."""
    helps = {
        "base64": "Keys and values are written in base64.",
        "hex": "Keys and values are written in hexadecimal.",
        "escape": "Keys and values are written with \\t \\n \\r \\\\ \\xNN.",
        "text": "Keys and values are written as they are.",
    }
    for name, text in helps.items():
        command = click.option(f"--{name}", "codec", flag_value=name, default=None, help=text)(command)
    return command


def bytes_text(n: float) -> str:
    """A number of bytes, for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if n < 1024:
            return f"{n:,.0f} {unit}" if unit == "bytes" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def shown(data: bytes, limit: int = 60) -> str:
    """Bytes for a message: escaped, and cut if there are many."""
    text = escape(data[: limit + 1]).decode()
    return f"'{text}'" if len(data) <= limit else f"'{text[:limit]}...'"


def json_fields(name: str, data: bytes) -> dict[str, object]:
    """A field of a JSON object: ``name`` if the bytes are UTF-8, else ``name_base64``."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def json_line(record: Mapping[str, object]) -> bytes:
    """A JSON object as one line of UTF-8."""
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def parse_json_fields(record: Mapping[str, object], name: str) -> bytes | None:
    """The bytes of a field as ``json_fields`` writes it; None if there is no such field.

    Raises
    ------
    ValueError
        If it is there twice or is not text.
    """
    encoded = f"{name}_base64"
    if name in record and encoded in record:
        raise ValueError(f"expected one of {name!r} and {encoded!r}, found both")
    value = record.get(name, record.get(encoded))
    if name not in record and encoded not in record:
        return None
    if not isinstance(value, str):
        raise ValueError(f"expected a string as {name!r}, found {json.dumps(value)[:40]}")
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} has half of a surrogate pair, which is no character") from None
    return raw if name in record else _from_base64(raw)
