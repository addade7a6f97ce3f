"""Progress bars of the store's commands: on standard error, and only if that is a terminal."""

import contextlib
from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(what: str, total: int | None, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left.

    Parameters
    ----------
    what : str
        One word.
    total : int, optional
        Steps at the end; None if nobody knows, and there is no time left then.
    quiet : bool
        Show nothing.

    Yields
    ------
    callable
        Takes the steps done and the number of records done.
    """
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from dlbf.cli.console import terminal

    console = terminal(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda steps, records: None
        return
    time_column = TimeElapsedColumn() if total is None else TimeRemainingColumn()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        *(() if total is None else (TaskProgressColumn(),)),
        TextColumn("{task.fields[records]:,} records"),
        time_column,
        TextColumn("" if total is None else "left"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total, records=0)
        yield lambda steps, records: bar.update(task, completed=steps, records=records)
