"""``dlbf rebuild``: learn a store's filter anew, while the store is in use."""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dlbf.cli.console import terminal
from dlbf.cli.engines import check_engine, engine_option, open_guard
from dlbf.cli.reading import input_options, read_keys_from, read_secret
from dlbf.cli.stores import check_store
from dlbf.models.kinds import KINDS
from dlbf.theory import DESIGNS

__all__ = ["command"]

USABLE = [name for name, design in DESIGNS.items() if design.deletable] + ["layers", "tables"]
PHASES = {
    "negatives": "collecting absent keys",
    "scan": "sampling keys",
    "train": "learning",
    "build": "building",
    "measure": "measuring",
    "switch": "switching",
}


@click.command("rebuild")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@engine_option
@click.option("--adopt-engine", is_flag=True, help="The engine was restored, copied, or another guard's: take it.")
@click.option("--negatives", metavar="FILE", help="A file of absent keys to learn from, instead of the traffic's.")
@input_options
@click.option("--design", type=click.Choice(USABLE), default="auto", show_default=True, help="Which filter.")
@click.option("--model", type=click.Choice(["auto", *KINDS]), default="auto", show_default=True, help="Which model.")
@click.option("--fpr", type=float, help="A new target rate.")
@click.option("--deletability", type=float, help="Least share of deleted keys that answer 'absent'; 0.9 for auto.")
@click.option("--adversarial-fpr", type=float, help="Worst case: largest rate for forged keys; 1 - deletability.")
@click.option("--group-by", "groups", type=click.Choice(["host"]), help="Hold out whole groups of absent keys.")
@click.option("--allow-false-negatives", is_flag=True, help="Accept a design that may deny a stored key.")
@click.option("--dry-run", is_flag=True, help="Learn and plan, and change nothing.")
@click.option("--on", help="Who scans the keys: a number of processes, processes, dask://host:port, ray or spark.")
@click.option("--if-needed", is_flag=True, help="Only if it is due (see `dlbf info`).")
@click.option("--secret-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="If kept elsewhere.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, and no report if nothing was done.")
def command(
    path: Path,
    engine: str | None,
    adopt_engine: bool,
    negatives: str | None,
    column: str | None,
    format: str | None,
    design: str,
    model: str,
    fpr: float | None,
    deletability: float | None,
    adversarial_fpr: float | None,
    groups: str | None,
    allow_false_negatives: bool,
    dry_run: bool,
    on: str | None,
    if_needed: bool,
    secret_file: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Learn the filter of the store in PATH anew, from its keys and the absent keys it was asked for.

    Other processes go on reading and writing; nothing changes for them before the new filter is complete.  Ctrl-C at
    any time: the old one goes on serving.  PATH may be the directory of a guard: then --engine says where its data are
    (`dlbf verify --help` has examples).  RocksDB and LevelDB let in one process: stop the others first.

    \b
    dlbf rebuild /var/lib/urls
    dlbf rebuild /var/lib/urls.guard --engine rocksdb:/var/lib/urls.rocksdb
    dlbf rebuild /var/lib/urls --if-needed --json     # for cron
    dlbf rebuild /var/lib/urls --negatives visited.txt.gz --fpr 0.001 --dry-run

    Exit codes: 0 done, or not needed, or dry run; 2 trouble: bad usage, PATH is not a store or a guard, the engine
    cannot be opened or is not the guard's, or another error; 130 interrupted.  After an error or Ctrl-C the old filter
    serves.
    """
    from dlbf.storage import Guard, Store

    check_engine(path, engine)
    if engine is None:
        check_store(path)
    if adopt_engine and engine is None:
        raise click.UsageError("--adopt-engine needs --engine, the engine that the filter is to be made for")
    secret = None if secret_file is None else read_secret(secret_file)
    absent = None if negatives is None else read_keys_from(negatives, column, format)
    console = terminal(stderr=True)
    bar = Progress(
        TextColumn("{task.description:<22}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=console, disable=quiet or not console.is_terminal,
    )  # fmt: skip
    try:
        # Its own lookups are not traffic.
        opened: contextlib.AbstractContextManager[Store | Guard]
        if engine is not None:
            opened = open_guard(path, engine, write=True, secret=secret, adopt=adopt_engine)
        else:
            opened = Store(path, create=False, secret=secret, sample_misses=False)
        with opened as store, bar:
            report = store.rebuild(
                absent, design, model=model, fpr=fpr, deletability=deletability, adversarial_fpr=adversarial_fpr,
                groups=groups, dry_run=dry_run, if_needed=if_needed, allow_false_negatives=allow_false_negatives,
                progress=_shower(bar), on=int(on) if on is not None and on.isdigit() else on,
            )  # fmt: skip
    except KeyboardInterrupt:
        click.echo("interrupted: nothing was changed, the old filter goes on serving", err=True)
        sys.exit(130)
    except (ValueError, ImportError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(report.asdict(), indent=2, allow_nan=False))
    elif report.done or not quiet:
        click.echo(str(report))


def _shower(bar: Progress) -> Callable[[str, int, int], None]:
    """One line per phase, as they come."""
    tasks: dict[str, TaskID] = {}

    def show(phase: str, done: int, total: int) -> None:
        if phase not in tasks:
            for task in tasks.values():
                bar.update(task, completed=bar.tasks[task].total)
            tasks[phase] = bar.add_task(PHASES.get(phase, phase), total=max(1, total))
        bar.update(tasks[phase], completed=done, total=max(1, total))

    return show
