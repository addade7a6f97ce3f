"""``dlbf scan``: look through a store in key order."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dlbf.cli.keys import complete_key, decode_argument
from dlbf.cli.stores import open_store, secret_option, store_argument
from dlbf.cli.text import CODECS, codec_options, json_fields, json_line

if TYPE_CHECKING:
    from dlbf.storage import Store

__all__ = ["command", "range_options", "ranged"]

F = TypeVar("F", bound=Callable[..., object])  # a command, or a function that becomes one


def range_options(command: F) -> F:
    """The options that choose keys; the command gets prefix, start, stop, limit and reverse."""
    for option in (
        click.option("--reverse", is_flag=True, help="From the last to the first."),
        click.option("--limit", type=click.IntRange(min=0), help="At most so many."),
        click.option("--stop", metavar="KEY", shell_complete=complete_key, help="Only keys before this one."),
        click.option("--start", metavar="KEY", shell_complete=complete_key, help="Only keys from this one on."),
        click.option("--prefix", metavar="KEY", shell_complete=complete_key, help="Only keys that begin so."),
    ):
        command = option(command)
    return command


def ranged(
    store: "Store",
    codec: str | None,
    prefix: str | None,
    start: str | None,
    stop: str | None,
    limit: int | None,
    reverse: bool,
) -> Iterator[tuple[bytes, bytes]]:
    """The items of a store that the options of ``range_options`` choose."""

    def bound(text: str | None, name: str) -> bytes | None:
        return None if text is None else decode_argument(text, codec, name)

    items = store.items(
        bound(prefix, "--prefix") or b"", bound(start, "--start"), bound(stop, "--stop"), reverse=reverse
    )
    return islice(items, limit)


@click.command("scan")
@store_argument
@range_options
@click.option("--keys-only", is_flag=True, help="Only the keys.")
@click.option("--count", is_flag=True, help="Only how many there are.")
@codec_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
@secret_option
def command(
    path: Path,
    keys_only: bool,
    count: bool,
    codec: str | None,
    as_json: bool,
    secret_file: Path | None,
    **chosen: Any,
) -> None:
    """Keys and values of the store at PATH in the order of their bytes, "key TAB value" a line, of one moment.

    What is not printable is escaped (\\t, \\n, \\r, \\\\, \\xNN), so that every line is one item; --hex and --base64
    write everything so, --text nothing.  Bounds are given in the same way.

    \b
    dlbf scan urls --limit 10
    dlbf scan urls --prefix evil.example/ --keys-only
    dlbf scan urls --start m --stop n --count
    """
    out = sys.stdout.buffer
    line = _line_maker(as_json, keys_only, codec)
    with open_store(path, secret_file=secret_file) as store:
        items = ranged(store, codec, **chosen)
        if count:
            everything = not any(chosen.values()) and chosen["limit"] is None
            found = len(store) if everything else sum(1 for _ in items)
            click.echo(f'{{"count": {found}}}' if as_json else found)
            return
        for key, value in items:
            out.write(line(key, value))
        out.flush()


def _line_maker(as_json: bool, keys_only: bool, codec: str | None) -> Callable[[bytes, bytes], bytes]:
    if as_json:
        return lambda key, value: json_line(
            json_fields("key", key) | ({} if keys_only else json_fields("value", value))
        )
    encode = CODECS[codec or "escape"].encode
    if keys_only:
        return lambda key, value: encode(key) + b"\n"
    return lambda key, value: b"%b\t%b\n" % (encode(key), encode(value))
