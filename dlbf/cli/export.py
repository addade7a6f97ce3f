"""``dlbf export``: a store's records in a file."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dlbf.cli.inputs import OPENERS
from dlbf.cli.progress import progress_bar
from dlbf.cli.records import FORMATS, RecordError, format_of, record_heading, record_writer
from dlbf.cli.scan import range_options, ranged
from dlbf.cli.stores import EXIT_INTERRUPTED, Trouble, open_store, secret_option, store_argument
from dlbf.cli.text import codec_options

__all__ = ["command"]

RECORDS_PER_STEP = 5000


@click.command("export")
@store_argument
@click.argument("file", metavar="[FILE]", type=click.Path(allow_dash=True, dir_okay=False), default="-")
@click.option("--format", type=click.Choice(FORMATS), help="What to write; by FILE's name if not given.")
@codec_options
@range_options
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.option("--quiet", is_flag=True, help="No progress bar, no summary.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON; FILE cannot be standard output.")
@secret_option
def command(
    path: Path,
    file: str,
    format: str | None,
    codec: str | None,
    force: bool,
    quiet: bool,
    as_json: bool,
    secret_file: Path | None,
    **chosen: Any,
) -> None:
    """Write the records of the store at PATH, as they are at one moment, to FILE or standard output.

    The formats are those of dlbf load, which reads any bytes back from tsv, csv and jsonl; keys has no values.  To
    standard output it is tsv unless --format says otherwise.  A FILE that ends in .gz or .xz is compressed.  FILE
    appears when it is complete.  While an export runs the store may be written, and grows by what is written.

    \b
    dlbf export urls backup.jsonl.gz
    dlbf export urls --prefix evil.example/ --format keys | wc -l
    """
    to_stdout = file == "-"
    if as_json and to_stdout:
        raise click.UsageError("--json needs a FILE: standard output has the records")
    format = format or ("tsv" if to_stdout else format_of(file))
    if format is None or format not in FORMATS:
        raise click.UsageError(
            f"{file}: its name tells no format that can be written; pass --format {'|'.join(FORMATS)}, or a name that "
            "ends in .tsv, .csv, .jsonl or .txt"
        )
    if not to_stdout and not force and Path(file).exists():
        raise Trouble(f"{file}: there is such a file already; pass --force to replace it")
    line = record_writer(format, codec)
    started = time.perf_counter()
    n_records = n_bytes = 0
    try:
        with open_store(path, secret_file=secret_file) as store, _output(file) as out:
            everything = not any(value for value in chosen.values() if value != 0) and chosen["limit"] is None
            total = len(store) if everything else None
            out.write(record_heading(format))
            with progress_bar("exporting", total, quiet or as_json or (to_stdout and sys.stdout.isatty())) as show:
                for key, value in ranged(store, codec, **chosen):
                    n_bytes += out.write(line(key, value))
                    n_records += 1
                    if n_records % RECORDS_PER_STEP == 0:
                        show(n_records, n_records)
    except RecordError as error:
        raise Trouble(str(error)) from error
    except KeyboardInterrupt:
        click.echo(
            "interrupted; " + ("the output is not complete" if to_stdout else f"no {file} was written"), err=True
        )
        sys.exit(EXIT_INTERRUPTED)
    seconds = time.perf_counter() - started
    if as_json:
        click.echo(json.dumps({"path": str(path), "file": file, "records": n_records, "seconds": seconds}))
    elif not quiet and not to_stdout:
        size = Path(file).stat().st_size
        click.echo(f"{file}: {n_records:,} records, {size:,} bytes, in {seconds:.1f} s", err=True)


@contextlib.contextmanager
def _output(file: str) -> Iterator[Any]:
    """Somewhere to write; a file is there when all of it is."""
    if file == "-":
        out = sys.stdout.buffer
        yield out
        out.flush()
        return
    target = Path(file)
    temporary = target.with_name(f".{target.name}.part")
    try:
        with temporary.open("wb") as raw:
            with OPENERS[target.suffix](raw, "wb") if target.suffix in OPENERS else contextlib.nullcontext(raw) as out:
                yield out
            raw.flush()
        temporary.replace(target)
    except OSError as error:
        raise Trouble(f"{file}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
