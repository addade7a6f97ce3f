"""Keys that a command is given: as arguments, or one a line in a file."""

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import click

from dlbf.cli.reading import input_options, read_key_batches
from dlbf.cli.text import CODECS

__all__ = ["complete_key", "decode_argument", "given_keys", "keys_options"]

F = TypeVar("F", bound=Callable[..., object])  # a command, or a function that becomes one

KEYS_PER_TRANSACTION = 10_000
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
            keys = [os.fsdecode(key) for key in islice(store.keys(os.fsencode(incomplete)), MAX_COMPLETIONS)]
            return [key for key in keys if key.isprintable() and " " not in key]
    return []


def keys_options(command: F) -> F:
    """The arguments KEY..., and the options ``--keys-file``, ``--column`` and ``--format`` of that file."""
    command = click.option(
        "-f", "--keys-file", metavar="FILE", type=click.Path(allow_dash=True, dir_okay=False),
        help='Take keys from a file too: lines, or a column (.gz, .xz; "-" is standard input).',
    )(input_options(command))  # fmt: skip
    return click.argument("keys", metavar="[KEY]...", nargs=-1, shell_complete=complete_key)(command)


def given_keys(
    keys: tuple[str, ...], keys_file: str | None, codec: str | None, column: str | None, format: str | None
) -> Iterator[list[bytes]]:
    """All keys, in batches: first the arguments, then those in the file."""
    if not keys and keys_file is None:
        raise click.UsageError("no key given: name one, or a file of keys with --keys-file")
    if keys:
        yield [decode_argument(key, codec) for key in keys]
    if keys_file is not None:
        in_file = chain.from_iterable(read_key_batches(keys_file, column, format, codec))
        while batch := list(islice(in_file, KEYS_PER_TRANSACTION)):
            yield batch
