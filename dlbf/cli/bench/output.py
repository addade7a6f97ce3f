"""What the sections of ``dlbf bench`` share when they print."""

import json
import sys
from collections.abc import Iterable, Mapping

import click
from rich.console import Console
from rich.table import Table

from dlbf.bench.results import plain
from dlbf.bench.timing import Ratio
from dlbf.cli.console import terminal

__all__ = ["met", "number", "ratio", "table", "wide_console", "write_json", "write_machine"]


def number(value: float | None, digits: int = 0) -> str:
    """A number for a cell; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def ratio(value: Ratio | None) -> str:
    """A ratio with its quartiles."""
    return "-" if value is None else f"{value[0]:.2f} ({value[1]:.2f}-{value[2]:.2f})"


def met(bar: bool) -> str:
    """Whether a bar is met, in six letters."""
    return "met   " if bar else "MISSED"


def table(title: str, headings: Iterable[str], left: Iterable[str] = ()) -> Table:
    """An empty table; columns are for numbers, on the right, but for those named as ``left``."""
    made = Table(title=title)
    texts = set(left)
    for heading in headings:
        made.add_column(heading, justify="left" if heading in texts else "right")
    return made


def wide_console(width: int = 160) -> Console:
    """The terminal; so many columns when the output goes to a file."""
    return terminal(width=None if sys.stdout.isatty() else width)


def write_json(figures: Mapping[str, object]) -> None:
    """Everything, for a machine, on standard output."""
    click.echo(json.dumps(figures, indent=2, default=plain))


def write_machine(where: Mapping[str, str]) -> None:
    """The line under every table: where its figures come from."""
    click.echo(
        f"{where['processor']}, {where['cores']} cores, {where['memory']}, {where['system']}, "
        f"Python {where['python']}, dlbf {where['dlbf']}, commit {where['commit']}, {where['date']}"
    )
