"""Keys that a command is given: as arguments, or one a line in a file."""

import contextlib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from dlbf.cli.inputs import open_lines
from dlbf.cli.records import Record, read_records
from dlbf.cli.text import CODECS

__all__ = ["KEYS_PER_BATCH", "complete_key", "decode_argument", "given_keys", "keys_options"]

KEYS_PER_BATCH = 10_000
MAX_COMPLETIONS = 50


def decode_argument(text: str, codec: str | None, name: str = "KEY") -> bytes:
    """The bytes that an argument stands for."""
    try:
        return CODECS[codec or "text"].decode(os.fsencode(text))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=name) from None


def complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys of the store that begin so, for the shell."""
    with contextlib.suppress(Exception):  # a shell wants silence
        from dlbf.storage import Store

        with Store(Path(ctx.params["path"]), readonly=True) as store:
            found = [os.fsdecode(key) for key in islice(store.keys(os.fsencode(incomplete)), MAX_COMPLETIONS)]
            return [key for key in found if key.isprintable() and " " not in key]
    return []


def keys_options(command: Any) -> Any:
    """The arguments KEY... and the option ``--keys-file``."""
    command = click.option(
        "-f", "--keys-file", metavar="FILE", type=click.Path(allow_dash=True, dir_okay=False),
        help='Take keys from a file too, one a line (.gz, .xz; "-" is standard input).',
    )(command)  # fmt: skip
    return click.argument("keys", metavar="[KEY]...", nargs=-1, shell_complete=complete_key)(command)


def given_keys(keys: tuple[str, ...], keys_file: str | None, codec: str | None) -> Iterator[list[bytes]]:
    """All keys, in batches: first the arguments, then those in the file."""
    if not keys and keys_file is None:
        raise click.UsageError("no key given: name one, or a file of keys with --keys-file")
    if keys:
        yield [decode_argument(key, codec) for key in keys]
    if keys_file is not None:
        with open_lines(keys_file) as lines:
            found = (record.key for record in read_records(lines, "keys", codec) if isinstance(record, Record))
            while batch := list(islice(found, KEYS_PER_BATCH)):
                yield batch
