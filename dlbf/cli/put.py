"""``dlbf put``: store one key."""

import sys
from pathlib import Path

import click

from dlbf.cli.keys import complete_key, decode_argument
from dlbf.cli.stores import EXIT_NO, Trouble, open_store, secret_option, store_argument
from dlbf.cli.text import codec_options, json_fields, json_line, shown

__all__ = ["command"]


@click.command("put")
@store_argument
@click.argument("key", metavar="KEY", shell_complete=complete_key)
@click.argument("value", metavar="[VALUE]", required=False)
@click.option(
    "-f", "--value-file", metavar="FILE", type=click.Path(allow_dash=True, dir_okay=False),
    help='The value is what is in this file, all of its bytes ("-" is standard input).',
)  # fmt: skip
@codec_options
@click.option("--if-absent", is_flag=True, help="Do nothing, and exit with 1, if the key is there.")
@click.option("--fpr", type=float, help="Rate of false positives, for a new store; 0.01 if not given.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
@secret_option
def command(
    path: Path,
    key: str,
    value: str | None,
    value_file: str | None,
    codec: str | None,
    if_absent: bool,
    fpr: float | None,
    as_json: bool,
    secret_file: Path | None,
) -> None:
    """Store VALUE under KEY in the store at PATH, which is made if there is none.

    VALUE "-" is standard input, and "" an empty value.  It is on disk when the command returns.

    \b
    dlbf put urls evil.example/login "listed 2026-11-16"
    curl -s https://example.org | dlbf put cache example.org -
    dlbf put cache --hex 00ff1a 0102
    """
    if value is not None and value_file is not None:
        raise click.UsageError("give VALUE or --value-file, not both")
    if value is None and value_file is None:
        raise click.UsageError(
            'no value given: expected VALUE, "-" for standard input, or --value-file FILE; an empty value is ""'
        )
    if value == "-":
        value, value_file = None, "-"
    raw_key = decode_argument(key, codec)
    raw_value = _read(value_file) if value_file is not None else decode_argument(value or "", codec, "VALUE")
    if fpr is not None and not 0 < fpr < 1:
        raise click.BadParameter(f"expected a rate between 0 and 1, found {fpr:g}", param_hint="--fpr")
    with open_store(path, write=True, create=True, fpr=fpr, secret_file=secret_file) as store, store.write() as txn:
        is_there = if_absent and raw_key in txn
        is_new = False if is_there else txn.put(raw_key, raw_value)
    if as_json:
        done = {"stored": not is_there, "new": is_new, "value_bytes": len(raw_value)}
        click.echo(json_line(json_fields("key", raw_key) | done), nl=False)
    if is_there:
        click.echo(f"{path}: there is a key {shown(raw_key)} already; it keeps its value", err=True)
        sys.exit(EXIT_NO)


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise Trouble(f"{name}: cannot be read: {error.strerror}") from error
