"""``dlbf load``: fill a store from a file."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlbf.cli.progress import progress_bar
from dlbf.cli.reading import PARQUET, Records, input_options, open_records
from dlbf.cli.records import FORMATS, Record, RecordError, format_of
from dlbf.cli.stores import (
    EXIT_INTERRUPTED,
    EXIT_NO,
    EXIT_TROUBLE,
    Trouble,
    open_store,
    secret_option,
    store_argument,
    uninterrupted,
)
from dlbf.cli.text import codec_options

if TYPE_CHECKING:
    from dlbf.storage import Store
    from dlbf.storage.transactions import WriteTransaction

__all__ = ["command"]

# A transaction is at most so many records, and not much more than so many bytes.
RECORDS_PER_BATCH = 10_000
BYTES_PER_BATCH = 16 << 20
MAX_COMPLAINTS = 5


@dataclass
class Tally:
    """What has been stored for good."""

    records: int = 0
    new: int = 0
    skipped: int = 0
    last_line: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    error: str | None = None


@click.command("load")
@store_argument
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True, dir_okay=False))
@input_options
@click.option("--value-column", help="The column of the values, if they are not in one called value.")
@codec_options
@click.option("--atomic", is_flag=True, help="Everything or nothing: one transaction.")
@click.option("--from-line", type=click.IntRange(min=1), default=1, help="Go on from this line of FILE.")
@click.option("--skip-bad", is_flag=True, help="Pass over lines that are no records, and exit with 1.")
@click.option("--fpr", type=click.FloatRange(0, 1, min_open=True, max_open=True), help="For a new store; default 0.01.")
@click.option("--quiet", is_flag=True, help="No progress bar, no summary.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@secret_option
def command(
    path: Path,
    file: str,
    column: str | None,
    format: str | None,
    value_column: str | None,
    codec: str | None,
    atomic: bool,
    from_line: int,
    skip_bad: bool,
    fpr: float | None,
    quiet: bool,
    as_json: bool,
    secret_file: Path | None,
) -> None:
    """Put the records of FILE ("-" is standard input) into the store at PATH, which is made if there is none.

    \b
    --format tsv    .tsv     key TAB value, with \\t \\n \\r \\\\ \\xNN in them;
                             a line without TAB is a key with an empty value
    --format csv    .csv     headings key,value, or --column and --value-column
    --format jsonl  .jsonl   {"key": "...", "value": "..."}, or key_base64,
                             value_base64
    --format keys   .txt     a key a line, as it is; values are empty

    .parquet has columns like csv, and needs pyarrow.  Files ending in .gz or .xz are decompressed.  Where the columns
    of a csv are not plain to see, it asks.

    Lines are stored in their order, 10,000 to a transaction, and are on disk when it ends: an interrupted or failed
    load leaves a whole store with all lines up to some line, and says which.  Loading a line twice changes nothing, so
    run it again, from the start or with --from-line.  With --atomic readers see all of FILE at once, or nothing of it.

    \b
    dlbf load urls blocked.txt.gz
    dlbf export old - | dlbf load new - --format tsv
    """
    if format is None and column is None and format_of(file) is None and Path(file).suffix not in PARQUET:
        raise click.UsageError(f"{file}: its name does not tell what it is; pass --format {'|'.join(FORMATS)}")
    tally = Tally()
    started = time.perf_counter()
    opened = open_records(
        file, format=format, column=column, value_column=value_column, with_values=True, codec=codec,
        first_line=from_line, skip_bad=skip_bad, quiet=quiet,
    )  # fmt: skip
    with opened as records, contextlib.ExitStack() as stack:
        batches = _batches(records, quiet)
        try:
            # The first records are read before a store is made for them.
            batch = next(batches, None)
            store = stack.enter_context(open_store(path, write=True, create=True, fpr=fpr, secret_file=secret_file))
            show = stack.enter_context(progress_bar("loading", records.n_bytes, quiet or as_json))
            with store.write() if atomic else contextlib.nullcontext() as whole:
                while batch is not None:
                    _put(store, whole, batch, tally)
                    show(records.position(), tally.records)
                    batch = next(batches, None)
        except KeyboardInterrupt:
            tally.interrupted = True
        except (RecordError, Trouble) as error:
            tally.error = str(error) if isinstance(error, Trouble) else f"{records.name}, {error}"
        if atomic and (tally.interrupted or tally.error):
            tally.records = tally.new = tally.last_line = 0
    tally.seconds = time.perf_counter() - started
    _report(path, file, tally, quiet, as_json)


@dataclass
class Batch:
    records: list[Record]
    n_bad: int
    last_line: int


def _batches(records: Records, quiet: bool) -> Iterator[Batch]:
    """Records in lots of one transaction each."""
    batch, n_bytes, complaints = Batch([], 0, 0), 0, 0
    try:
        for record in records:
            if isinstance(record, RecordError):
                batch.n_bad += 1
                complaints += 1
                if complaints <= MAX_COMPLAINTS and not quiet:
                    click.echo(f"{records.name}, {record}", err=True)
                elif complaints == MAX_COMPLAINTS + 1 and not quiet:
                    click.echo("more of that kind ...", err=True)
                continue
            batch.records.append(record)
            batch.last_line = record.line
            n_bytes += len(record.key) + len(record.value)
            if len(batch.records) >= RECORDS_PER_BATCH or n_bytes >= BYTES_PER_BATCH:
                yield batch
                batch, n_bytes = Batch([], 0, 0), 0
    except (RecordError, Trouble):
        # What came before the bad line is stored; the error comes when the next batch is asked for.
        if batch.records:
            yield batch
        raise
    if batch.records or batch.n_bad:
        yield batch


def _put(store: "Store", whole: "WriteTransaction | None", batch: Batch, tally: Tally) -> None:
    """Store a batch and count it; Ctrl-C comes before or after, not in between."""
    with uninterrupted():
        with contextlib.nullcontext(whole) if whole is not None else store.write() as txn:
            tally.new += sum(txn.put(record.key, record.value) for record in batch.records)
        tally.records += len(batch.records)
        tally.skipped += batch.n_bad
        tally.last_line = batch.last_line or tally.last_line


def _report(path: Path, file: str, tally: Tally, quiet: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(tally) | {"path": str(path), "file": file}))
    rate = tally.records / tally.seconds if tally.seconds else 0.0
    done = f"{path}: {tally.records:,} records stored, {tally.new:,} of them new keys"
    if tally.interrupted or tally.error:
        click.echo(f"Error: {tally.error}" if tally.error else "interrupted", err=True)
        if tally.last_line:
            done += f", up to line {tally.last_line:,} of {file}; the store is whole"
            click.echo(f"{done}; for the rest, run it again with --from-line {tally.last_line + 1}", err=True)
        else:
            click.echo(f"{path}: nothing was stored", err=True)
        sys.exit(EXIT_INTERRUPTED if tally.interrupted else EXIT_TROUBLE)
    if not quiet and not as_json:
        skipped = f"; {tally.skipped:,} lines were no records" if tally.skipped else ""
        click.echo(f"{done}, in {tally.seconds:.1f} s ({rate:,.0f} a second){skipped}", err=True)
    if tally.skipped:
        sys.exit(EXIT_NO)
