"""``dlbf bench problems``: the open problems of the published sources, measured."""

import click

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

__all__ = ["command"]


@click.command("problems")
@counted("--keys", "n_keys", default=5_000, least=1000, help="Keys of the filters that are built.")
@click.option("--only", multiple=True, help="One problem by its name; repeat for more.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(n_keys: int, only: tuple[str, ...], as_json: bool) -> None:
    """The open problems of the published sources, each measured on filters that are built.

    \b
    dlbf bench problems --only dlbf-churn
    dlbf bench problems --json
    """
    from dlbf.bench.problems import PROBLEMS

    unknown = sorted(set(only) - set(PROBLEMS))
    if unknown:
        raise click.UsageError(f"--only: expected some of {', '.join(PROBLEMS)}, found {', '.join(unknown)}")
    grids = {}
    with terminal(stderr=True).status("measuring") as status:
        for name in only or PROBLEMS:
            status.update(PROBLEMS[name][0])
            grids[name] = PROBLEMS[name][1](n_keys)
    if as_json:
        tables = {f"problem-{name}": {"headings": grid.headings, "rows": grid.rows} for name, grid in grids.items()}
        write_json({"machine": machine(), "data": f"{n_keys:,} keys made here", "tables": tables})
        return
    console = wide_console()
    for name, grid in grids.items():
        shown = table(PROBLEMS[name][0], grid.headings)
        for row in grid.rows:
            shown.add_row(*row)
        console.print(shown)
    write_machine(machine())
