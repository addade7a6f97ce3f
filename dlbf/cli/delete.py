"""``dlbf delete``: take keys out."""

import json
import sys
from pathlib import Path

import click

from dlbf.cli.keys import given_keys, keys_options
from dlbf.cli.stores import EXIT_INTERRUPTED, EXIT_NO, open_store, secret_option, store_argument, uninterrupted
from dlbf.cli.text import codec_options, shown

__all__ = ["command"]


@click.command("delete")
@store_argument
@keys_options
@codec_options
@click.option("--quiet", is_flag=True, help="Do not name keys that are not there.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@secret_option
def command(
    path: Path,
    keys: tuple[str, ...],
    keys_file: str | None,
    codec: str | None,
    column: str | None,
    format: str | None,
    quiet: bool,
    as_json: bool,
    secret_file: Path | None,
) -> None:
    """Delete KEY... from the store at PATH.

    KEYs named as arguments are deleted together or not at all; those of --keys-file 10,000 at a time.  Exit code 0:
    all were there; 1: some were not, and standard error names them; 2: trouble.

    \b
    dlbf delete urls evil.example/login
    dlbf delete urls --keys-file no-longer-listed.txt
    dlbf scan urls --prefix evil.example/ --keys-only | dlbf delete urls --escape -f -
    """
    n_deleted = n_absent = 0
    interrupted = False
    with open_store(path, write=True, secret_file=secret_file) as store:
        try:
            for batch in given_keys(keys, keys_file, codec, column, format):
                with uninterrupted():
                    with store.write() as txn:
                        absent = [key for key in batch if not txn.delete(key)]
                    n_absent += len(absent)
                    n_deleted += len(batch) - len(absent)
                    for key in absent if not quiet else ():
                        click.echo(f"{path}: no key {shown(key)}", err=True)
        except KeyboardInterrupt:
            interrupted = True
    if as_json:
        click.echo(json.dumps({"deleted": n_deleted, "absent": n_absent, "interrupted": interrupted}))
    elif keys_file is not None or interrupted:
        click.echo(f"{path}: {n_deleted:,} deleted, {n_absent:,} were not there", err=True)
    if interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if n_absent:
        sys.exit(EXIT_NO)
