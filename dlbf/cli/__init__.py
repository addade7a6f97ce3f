"""The ``dlbf`` command line: one module per command, loaded only when called."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["main"]

# command -> one line of help; the module is ``dlbf.cli.<command>`` and its click command ``command``.
COMMANDS = {
    "demo": "The main job, end to end, on keys made here.",
    "bench": "Measure dlbf beside its peers, same keys, same run.",
    "build": "Build a sharded filter from files of keys, by processes or Dask.",
    "completion": "Print the script that makes a shell complete dlbf's commands.",
    "delete": "Delete keys from a store.",
    "export": "Write a store's records to a file: TSV, CSV, JSON lines or keys.",
    "fit": "Fit a learned filter to a file of keys and a file of absent keys.",
    "fleet": "Watch the hosts that share a log: leases, waits, pass-through.",
    "get": "Look up keys in a store.",
    "info": "What a store, a guard or a filter file is; whether it should be rebuilt.",
    "load": "Fill a store from a file: TSV, CSV, JSON lines, Parquet or keys.",
    "plan": "Predict every design for a model and a budget; or draw the published figures.",
    "publish": "Publish the filter of a store or a guard for many hosts.",
    "put": "Store one key, in a new store if there is none.",
    "rebuild": "Learn the filter of a store or a guard anew, while it is in use.",
    "report": "Which filter fits a file of keys, and why: one HTML page.",
    "scan": "Look through a store in the order of its keys.",
    "serve-metrics": "Serve the figures of stores and guards for Prometheus.",
    "subscribe": "Keep a fresh copy of a filter that is published elsewhere.",
    "top": "Watch a store or a guard while it is in use.",
    "verify": "Compare the filter of a store or a guard with its data; check every record.",
}

# What an optional dependency comes with.
EXTRAS = {
    "sklearn": "train",
    "scipy": "train",
    "rich": "cli",
    "matplotlib": "plot",
    "rbloom": "bench",
    "rocksdict": "engines",
    "plyvel": "engines",
    "distributed": "dask",
    "ray": "ray",
    "pyspark": "spark",
    "redis": "engines",
    "valkey": "engines",
}


def build() -> "click.Group":
    """The click group, with commands imported on first use."""
    import click

    from dlbf._version import __version__
    from dlbf.cli.lazy import LazyGroup

    class Commands(LazyGroup):
        def invoke(self, ctx: click.Context) -> object:
            # Not at the top: a shell that completes a command's name waits for every import.
            from dlbf.cli.stores import EXIT_INTERRUPTED, Trouble, trouble

            try:
                with trouble():
                    return super().invoke(ctx)
            except KeyboardInterrupt:  # click would leave with 1, which means something else
                click.echo("interrupted", err=True)
                ctx.exit(EXIT_INTERRUPTED)
            except ModuleNotFoundError as error:
                extra = EXTRAS.get((error.name or "").partition(".")[0])
                if extra is None:
                    raise
                raise Trouble(
                    f"this needs the [{extra}] extra ({error}); install it with: pip install 'dlbf[{extra}]'"
                ) from error

    @click.group(
        cls=Commands,
        package="dlbf.cli",
        commands_help=COMMANDS,
        modules={"build": "building"},  # a module called build would take the place of this function
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    @click.version_option(__version__, prog_name="dlbf")
    def group() -> None:
        """Deletable learned Bloom filters: smaller than any filter without a model, and they forget on request."""

    return group


def main(argv: list[str] | None = None) -> None:
    """Entry point of the ``dlbf`` script and of ``python -m dlbf``."""
    try:
        group = build()
    except ImportError as error:
        print(
            f"dlbf: the command line needs the [cli] extra ({error}); install it with: pip install 'dlbf[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)  # as in exits, which needs click
    group.main(args=argv, prog_name="dlbf")
