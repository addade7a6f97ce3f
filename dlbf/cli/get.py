"""``dlbf get``: values of keys."""

import sys
from pathlib import Path

import click

from dlbf.cli.keys import given_keys, keys_options
from dlbf.cli.records import record_writer
from dlbf.cli.stores import EXIT_NO, open_store, secret_option, store_argument
from dlbf.cli.text import CODECS, codec_options, escape, json_fields, json_line, shown

__all__ = ["command"]


@click.command("get")
@store_argument
@keys_options
@codec_options
@click.option("--raw", is_flag=True, help="Write the value and nothing else, no end of line.")
@click.option("--quiet", is_flag=True, help="Do not name keys that are not there.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
@secret_option
def command(
    path: Path,
    keys: tuple[str, ...],
    keys_file: str | None,
    codec: str | None,
    column: str | None,
    format: str | None,
    raw: bool,
    quiet: bool,
    as_json: bool,
    secret_file: Path | None,
) -> None:
    """The value of KEY in the store at PATH.

    One KEY: its value.  Several, or --keys-file: a line "key TAB value" for each that is there.  Exit code 0: all are
    there; 1: some are not, and standard error names them; 2: trouble.

    Keys are taken as they are typed; values are written as they are, with an end of line (to a terminal with what is
    not printable escaped; with --raw the bytes alone).

    \b
    dlbf get urls evil.example/login
    dlbf get urls --keys-file visited.txt.gz > listed.tsv
    dlbf get cache --hex 00ff1a --raw > value.bin
    """
    single = len(keys) == 1 and keys_file is None
    if raw and not single:
        raise click.UsageError("--raw writes one value: name one KEY")
    out = sys.stdout.buffer
    line = record_writer("tsv", "escape" if codec in (None, "text") else codec)
    n_absent = 0
    with open_store(path, secret_file=secret_file) as store:
        for batch in given_keys(keys, keys_file, codec, column, format):
            for key, value in zip(batch, store.get_many(batch), strict=True):
                if value is None:
                    n_absent += 1
                    if not quiet:
                        click.echo(f"{path}: no key {shown(key)}", err=True)
                if as_json:
                    found = {"found": value is not None} | ({} if value is None else json_fields("value", value))
                    out.write(json_line(json_fields("key", key) | found))
                elif value is not None and single:
                    out.write(value if raw else _encoded(value, codec) + b"\n")
                elif value is not None:
                    out.write(line(key, value))
        out.flush()
    if n_absent:
        sys.exit(EXIT_NO)


def _encoded(value: bytes, codec: str | None) -> bytes:
    if codec is not None:
        return CODECS[codec].encode(value)
    return value if not sys.stdout.isatty() or _is_printable(value) else escape(value)


def _is_printable(value: bytes) -> bool:
    """Whether a terminal shows it as it is; line ends and tabs are fine."""
    try:
        return all(char.isprintable() or char in "\n\t" for char in value.decode())
    except UnicodeDecodeError:
        return False
