"""``dlbf build``: a sharded filter from files of keys, by as many workers as there are."""

import dataclasses
import json
import time
import warnings
from pathlib import Path
from typing import Any

import click

from dlbf.cli.console import terminal
from dlbf.cli.exits import Trouble
from dlbf.cli.fit import check_files, progress_bar, reporter
from dlbf.cli.reading import read_keys_from, read_secret
from dlbf.models.kinds import KINDS

__all__ = ["command"]


@click.command("build")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file.")
@click.option("--negatives", "negatives_file", required=True, help="A file of keys that are asked for and absent.")
@click.option("--fpr", type=float, default=0.01, show_default=True, help="Target false-positive rate.")
@click.option("--adversarial-fpr", type=float, help="Worst case: largest rate for forged keys.")
@click.option("--shards", default="auto", show_default=True, help="A power of two; auto: 4 million keys in each.")
@click.option("--model", type=click.Choice(["auto", "none", *KINDS]), default="auto", show_default=True)
@click.option("--on", default="processes", show_default=True, help="Or dask://host:port, ray[://host:port], spark.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; one for every processor by default.")
@click.option(
    "--work", type=click.Path(file_okay=False, path_type=Path), help="Folder of what is half done; FILE.work."
)
@click.option("--format", type=click.Choice(["lines", "csv", "parquet"]), help="What sources are, if not by name.")
@click.option("--column", help="The column of the keys, of CSV and Parquet; the first by default.")
@click.option("--secret-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="16 bytes.")
@click.option("--seed", type=int, default=0, show_default=True, help="Same input and seed, same filter.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    sources: tuple[str, ...],
    output: Path,
    negatives_file: str,
    shards: str,
    model: str,
    secret_file: Path | None,
    seed: int,
    as_json: bool,
    **settings: Any,
) -> None:
    """Build a filter of the keys in SOURCEs, split into shards so that no worker must hold all keys.

    A SOURCE is a file of lines, .csv or .parquet, local or any address that fsspec knows.  An interrupted build goes on
    where it was when it is run again with the same arguments.

    \b
    dlbf build keys-*.parquet -o keys.dlbf --negatives asked.txt
    dlbf build s3://bucket/keys.txt -o keys.dlbf --negatives asked.txt --on dask://scheduler:8786 --work /shared/work
    """
    from dlbf.build import build_file

    check_files("", None, output)
    secret = None if secret_file is None else read_secret(secret_file)
    negatives = read_keys_from(negatives_file)
    console = terminal(stderr=True)
    start = time.perf_counter()
    try:
        with progress_bar(console) as bar, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            report = build_file(
                sources, output, negatives, shards=_shards(shards), model=None if model == "none" else model,
                secret=secret, random_state=seed, progress=reporter(bar),
                **{name: value for name, value in settings.items() if value is not None},
            )  # fmt: skip
    except (OSError, ValueError) as error:
        raise Trouble(str(error)) from error
    seconds = time.perf_counter() - start
    for warning in caught:
        console.print(f"warning: {warning.message}", style="yellow", highlight=False, markup=False)
    if as_json:
        figures = dataclasses.asdict(report) | {"file": str(output), "seconds": seconds}
        click.echo(json.dumps(figures, indent=2, allow_nan=False))
        return
    again = f", {report.resumed} tasks done before" if report.resumed else ""
    click.echo(
        f"{output}: {report.n_keys:,} keys in {report.n_shards:,} shards, {report.n_bytes:,} bytes "
        f"({8 * report.n_bytes / max(1, report.n_keys):.2f} bits per key) in {seconds:.1f} s{again}"
    )


def _shards(text: str) -> int | None:
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"--shards: expected a power of two or auto, found {text!r}") from None
