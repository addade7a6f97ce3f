"""The ``dlbf`` command line: one module per command, loaded only when called."""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["main"]

# command -> one line of help; the module is ``dlbf.cli.<command>`` and its click command ``command``.
COMMANDS = {
    "demo": "The main job, end to end, on keys made here.",
    "bench": "Measure dlbf beside its peers, same keys, same run.",
    "fit": "Fit a learned filter to a file of keys and a file of absent keys.",
    "info": "What a filter file is: kind, geometry, size, plan.",
    "report": "Which filter fits a file of keys, and why: one HTML page.",
    "plan": "Predict every design for a model and a budget; or draw the published figures.",
}


def build() -> "click.Group":
    """The click group, with commands imported on first use."""
    import click

    from dlbf._version import __version__
    from dlbf.errors import DlbfError

    class LazyGroup(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return sorted(COMMANDS)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in COMMANDS:
                return None
            command: click.Command = importlib.import_module(f"dlbf.cli.{cmd_name}").command
            return command

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Commands"):
                formatter.write_dl(sorted(COMMANDS.items()))

        def invoke(self, ctx: click.Context) -> object:
            try:
                return super().invoke(ctx)
            except DlbfError as error:
                raise click.ClickException(str(error)) from error

    @click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(__version__, prog_name="dlbf")
    def group() -> None:
        """Deletable learned Bloom filters: smaller than any filter without a model, and they forget on request."""

    return group


def main(argv: list[str] | None = None) -> None:
    """Entry point of the ``dlbf`` script and of ``python -m dlbf``."""
    try:
        group = build()
    except ImportError as error:
        sys.exit(f"dlbf: the command line needs the [cli] extra ({error}); install it with: pip install 'dlbf[cli]'")
    group.main(args=argv, prog_name="dlbf")
