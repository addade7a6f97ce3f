"""``dlbf report``: one page that says which filter fits the user's keys, and why."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlbf.cli.console import terminal
from dlbf.cli.reading import input_options, read_key_batches, read_secret
from dlbf.cli.stores import open_store
from dlbf.filters.writing import write_file
from dlbf.theory import get_design

if TYPE_CHECKING:
    from dlbf.report.inputs import Gathered
    from dlbf.storage import Store

__all__ = ["command"]

BATCH_KEYS = 1 << 16


@click.command("report")
@click.argument("keys_file", metavar="KEYS")
@click.argument("negatives_file", metavar="[NEGATIVES]", required=False)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the page here.")
@click.option("--fpr", type=float, help="False alarms wanted at most; 0.01 if not given, or the store's own target.")
@click.option(
    "--deletability", type=float, default=0.9, show_default=True, help="Least share of removed keys that is forgotten."
)
@click.option("--adversarial-fpr", type=float, help="Worst case: largest rate for forged keys; 1 - deletability.")
@click.option(
    "--sample", type=click.IntRange(1), default=1_000_000, show_default=True, help="Most keys to use of a file."
)
@click.option("--quick", is_flag=True, help="A first look in seconds: one kind of model, fewer designs.")
@click.option("--no-examples", is_flag=True, help="Show none of the keys themselves.")
@click.option("--secret-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="16 bytes.")
@input_options
@click.option("--negatives-column", help="The same for NEGATIVES where it differs.")
@click.option("--seed", type=int, default=0, show_default=True, help="Same input and seed, same figures but times.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(
    keys_file: str,
    negatives_file: str | None,
    output: Path | None,
    fpr: float | None,
    deletability: float,
    adversarial_fpr: float | None,
    sample: int,
    quick: bool,
    no_examples: bool,
    secret_file: Path | None,
    column: str | None,
    format: str | None,
    negatives_column: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Say which filter fits KEYS, given NEGATIVES, a sample of what is asked for and absent: one HTML page.

    The page stands alone (no script, no request) and an existing one is replaced in one step.  Files are read as by
    `dlbf fit`; of large ones a random sample is used, and the page says so.  It shows a few of the keys unless
    --no-examples is given.  KEYS may be the directory of a store, which goes on serving: then NEGATIVES, if not given,
    are the absent keys that the store was asked for.

    \b
    dlbf report blocked.txt visited.txt.gz -o report.html
    dlbf report keys.csv asked.csv --column url --fpr 0.001 --deletability 0 -o report.html
    dlbf report /var/lib/urls -o report.html
    """
    from dlbf.cli.fit import check_files, progress_bar, reporter
    from dlbf.report import Targets, collect, gather, prepare, render

    check_files(keys_file, negatives_file, output)
    if output is None and not as_json:
        raise click.UsageError("nothing to do: name a file with -o, or ask for --json")
    is_store = keys_file != "-" and Path(keys_file).is_dir()
    secret = None if secret_file is None else read_secret(secret_file)
    console = terminal(stderr=True)
    with progress_bar(console) as bar:
        report = reporter(bar)
        report(f"reading {keys_file}", 0.0)
        name = "(none given)"
        absent: Iterator[list[bytes]] = iter(())
        if is_store:
            with open_store(Path(keys_file), secret_file=secret_file) as store:
                fpr = store.stats().fpr_target if fpr is None else fpr
                # A store's filter is keyed, so that of the report is.
                secret = store.ledger.settings.secret
                keys, asked = _read_store(store, keys_file, sample, seed)
                name, absent = f"{keys_file} (asked for in vain)", iter([asked])
        else:
            keys = gather(keys_file, read_key_batches(keys_file, column, format), sample, seed)
        if not keys.total:
            raise click.ClickException(f"{keys_file}: no keys in it; a report needs at least one")
        if negatives_file is not None:
            report(f"reading {negatives_file}", 0.01)
            name, absent = negatives_file, read_key_batches(negatives_file, negatives_column or column, format)
        negatives = gather(name, absent, sample, seed + 1)
        inputs = prepare(keys, replace(negatives, is_store=is_store and negatives_file is None))
        try:
            worst = get_design("auto").worst_case(deletability, adversarial_fpr)
            targets = Targets(0.01 if fpr is None else fpr, deletability, worst, secret, seed)
            figures = collect(inputs, targets, examples=not no_examples, quick=quick, say=report)
        except (ValueError, ImportError) as error:
            raise click.ClickException(str(error)) from error
    if output is not None:
        try:
            write_file(output, render(figures).encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise click.ClickException(f"{output}: cannot be written: {error}") from error
    if as_json:
        click.echo(json.dumps(figures.to_dict(), indent=2, allow_nan=False))
        return
    for text in figures.warnings:
        console.print(f"warning: {text}", style="yellow", highlight=False, markup=False)
    click.echo(figures.recommendation.sentence)
    click.echo(f"{output}: {output.stat().st_size:,} bytes" if output is not None else "")


def _read_store(store: "Store", name: str, sample: int, seed: int) -> tuple["Gathered", list[bytes]]:
    """A sample of the keys of a store, and of what it was asked for in vain."""
    from dlbf.report import gather
    from dlbf.storage.samples import absent_now

    everything = iter(store.keys())
    keys = gather(name, iter(lambda: list(islice(everything, BATCH_KEYS)), []), sample, seed)
    return replace(keys, is_store=True), absent_now(store.ledger.log, store.source, None, sample)[0]
