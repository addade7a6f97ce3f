"""``dlbf bench``: dlbf beside its peers; one module per section, imported when it is called."""

import click

from dlbf.cli.lazy import LazyGroup

__all__ = ["command"]

# section -> one line of help; the module is ``dlbf.cli.bench.<section>`` and its click command ``command``.
SECTIONS = {
    "adversary": "Attacks on every design and on a store, the price of a bound, the cost of the defence.",
    "filters": "Classical filters: size, rate and time beside their peers.",
    "fleet": "Hosts that share a filter on a cluster of this machine: reads, puts, a host that is stopped or new.",
    "growing": "The filter that grows without its keys: bits, rates, single adds, questions, beside what is promised.",
    "guard": "A guard before RocksDB and other engines: what it saves and costs.",
    "layers": "A store's layered filter: bits per key, rates, absent reads, beside what was promised.",
    "learned": "Learned filters: every design, the sizes of auto, queries and fitting beside peers.",
    "models": "What models of several sizes are worth, and what a score costs.",
    "poison": "How far somebody gets who fills the traffic that a store learns from with junk.",
    "problems": "The open problems of the published sources, each measured.",
    "promises": "What becomes of the rate that a fit promises, with few and with many negatives.",
    "replay": "A block list's history through a store: keys missed, rate and size after every batch.",
    "scale": "Cost per key from 100,000 to 30 million keys, and how it grows.",
    "shards": "Filters in shards beside one filter: time, size, evenness; building them, to 100 billion keys.",
    "store": "The store beside py-lmdb, RocksDB and LevelDB on mixes of reads and writes, warm and cold.",
    "stress": "Needless reads of filters and stores of one size: replayed false positives, popular keys, churn.",
}


class Sections(LazyGroup):
    """Says in one line that a folder of real keys is not there or not complete."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a section."""
        try:
            return super().invoke(ctx)
        except FileNotFoundError as error:
            raise click.ClickException(str(error)) from error


@click.group("bench", cls=Sections, package="dlbf.cli.bench", commands_help=SECTIONS)
def command() -> None:
    """Measure dlbf beside its peers, same keys, same run."""
