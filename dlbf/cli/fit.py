"""``dlbf fit``: a learned filter from a file of keys and a file of absent keys."""

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dlbf.cli.console import terminal
from dlbf.cli.reading import input_options, read_keys_from, read_secret
from dlbf.models.kinds import KINDS
from dlbf.theory import DESIGNS

if TYPE_CHECKING:
    from dlbf.learned import LearnedFilter

__all__ = ["command", "reporter"]


@click.command("fit")
@click.argument("keys_file", metavar="KEYS")
@click.argument("negatives_file", metavar="NEGATIVES")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the filter here.")
@click.option("--fpr", type=float, help="Target false-positive rate; 0.01 unless --bits-per-key is given.")
@click.option("--bits-per-key", type=float, help="A budget instead of a rate, model included.")
@click.option("--deletability", type=float, help="Least share of removed keys that answer 'absent'; 0.9 for auto.")
@click.option("--adversarial-fpr", type=float, help="Worst case: largest rate for forged keys; 1 - deletability.")
@click.option("--design", type=click.Choice(list(DESIGNS)), default="auto", show_default=True, help="Which filter.")
@click.option("--model", type=click.Choice(["auto", *KINDS]), default="auto", show_default=True, help="Which model.")
@click.option("--max-model-bytes", type=int, help="Largest model to consider.")
@click.option("--counter-bits", type=click.Choice(["2", "4", "8"]), help="Width of counters.")
@click.option("--group-by", "groups", type=click.Choice(["host"]), help="Hold out whole groups of negatives.")
@click.option("--headroom", type=float, default=1.0, show_default=True, help="Room for so many times the keys.")
@click.option("--deletions", type=float, default=0.1, show_default=True, help="Deleted keys planned for, as a share.")
@click.option("--secret-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="16 bytes.")
@input_options
@click.option("--negatives-column", help="The same for NEGATIVES where it differs.")
@click.option("--seed", type=int, default=0, show_default=True, help="Same input and seed, same filter.")
@click.option(
    "--tradeoff", type=click.Path(dir_okay=False, path_type=Path), help="Draw bits against deletability (PNG)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    keys_file: str,
    negatives_file: str,
    output: Path | None,
    column: str | None,
    format: str | None,
    negatives_column: str | None,
    secret_file: Path | None,
    counter_bits: str | None,
    seed: int,
    tradeoff: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Fit a learned filter to KEYS, which it stores, and NEGATIVES, a sample of what is asked for and absent.

    Files have one key per line, or are .csv, .tsv, .jsonl or .parquet (which needs pyarrow) with a column of keys: it
    is found if there is only one, or one called "key"; else name it with --column.  All but Parquet may be compressed
    (.gz, .xz); "-" is standard input.

    \b
    dlbf fit blocked.txt visited.txt.gz -o blocked.dlbf
    dlbf fit keys.csv asked.csv --column url --fpr 0.001 --deletability 0 -o keys.dlbf
    """
    from dlbf.learned import LearnedFilter

    check_files(keys_file, negatives_file, output, tradeoff)
    if output is None and tradeoff is None and not as_json:
        raise click.UsageError("nothing to do: name a file with -o, or ask for --json or --tradeoff")
    secret = None if secret_file is None else read_secret(secret_file)
    console = terminal(stderr=True)
    start = time.perf_counter()
    with progress_bar(console) as bar, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        report = reporter(bar)
        report(f"reading {keys_file}", 0.0)
        keys = read_keys_from(keys_file, column, format)
        report(f"reading {negatives_file}", 0.0)
        negatives = read_keys_from(negatives_file, negatives_column or column, format)
        for name, batch in ((keys_file, keys), (negatives_file, negatives)):
            if not batch:
                raise click.ClickException(f"{name}: no keys in it")
        try:
            lf = LearnedFilter.fit(
                keys, negatives, secret=secret, random_state=seed, progress=report,
                counter_bits=None if counter_bits is None else int(counter_bits), **settings,
            )  # fmt: skip
        except (ValueError, ImportError) as error:
            raise click.ClickException(str(error)) from error
    for warning in caught:
        console.print(f"warning: {warning.message}", style="yellow", highlight=False, markup=False)
    if output is not None:
        try:
            lf.save(output)
        except OSError as error:
            raise click.ClickException(f"{output}: cannot be written: {error}") from error
    if tradeoff is not None:
        _draw(lf, tradeoff)
    if as_json:
        figures = lf.plan.to_dict() | {"nbytes": lf.nbytes, "seconds": time.perf_counter() - start}
        if output is not None:
            figures["file"] = str(output)
        click.echo(json.dumps(figures, indent=2, allow_nan=False))
        return
    click.echo(str(lf.plan))
    click.echo()
    if output is not None:
        size = output.stat().st_size
        click.echo(f"{output}: {size:,} bytes ({lf.nbytes:,} of filter) in {time.perf_counter() - start:.1f} s")
    if tradeoff is not None:
        click.echo(f"{tradeoff}: bits per key against deletability")


def check_files(keys_file: str, negatives_file: str | None, *written: Path | None) -> None:
    """Say what is wrong with the names of files before minutes of work, not after."""
    if keys_file == negatives_file == "-":
        raise click.UsageError("only one of KEYS and NEGATIVES can be standard input")
    for path in written:
        if path is not None and not path.parent.is_dir():
            raise click.ClickException(f"{path}: cannot be written: there is no folder {path.parent}")


def progress_bar(console: Console) -> Progress:
    """A bar that is gone afterwards, and not there at all where nobody looks."""
    return Progress(
        TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip


def reporter(bar: Progress) -> Callable[[str, float], None]:
    """A function that shows a stage, and how far the whole is, on a progress bar."""
    task = bar.add_task("starting", total=1.0)

    def report(stage: str, fraction: float) -> None:
        bar.update(task, description=stage, completed=fraction)

    return report


def _draw(lf: "LearnedFilter", path: Path) -> None:
    from dlbf.learned.picture import draw_tradeoff

    try:
        draw_tradeoff(lf.plan, path)
    except ImportError as error:
        raise click.ClickException(
            f"the picture needs matplotlib ({error}); install it with: pip install 'dlbf[plot]'"
        ) from error
