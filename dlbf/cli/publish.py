"""``dlbf publish``: a store's or guard's filter for many hosts."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlbf.cli.engines import engine_option, without_password
from dlbf.cli.exits import Trouble
from dlbf.cli.stores import secret_option, store_argument
from dlbf.cli.text import bytes_text
from dlbf.cli.watching import open_readonly
from dlbf.errors import StoreError

if TYPE_CHECKING:
    from dlbf.storage import Published

__all__ = ["command"]


@click.command("publish")
@store_argument
@click.argument("target")
@engine_option
@secret_option
@click.option("--once", is_flag=True, help="Publish one version, then end.")
@click.option("--interval", type=click.FloatRange(min=0.05), default=1.0, show_default=True, help="Seconds.")
@click.option("--full", is_flag=True, help="Begin with the whole filter, even if a delta would do.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each version.")
def command(
    path: Path, target: str, engine: str | None, secret_file: Path | None, once: bool, interval: float, full: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Publish the filter of the store or guard in PATH to TARGET, for hosts that `dlbf subscribe` to it.

    TARGET is a folder, which any web server may serve, or redis://HOST:PORT/DB?feed=NAME.  Programs that use PATH are
    not disturbed.  Each line tells what a new version takes: the delta, which hosts read, beside the whole filter.
    Neither keys nor the secret are published.

    Exit codes: 0, also after Ctrl-C; 2 trouble: PATH is neither, or TARGET cannot be written.
    """
    from dlbf.storage.distribution.places import target_for
    from dlbf.storage.distribution.publishing import Publisher

    try:
        place = target_for(target)
    except (ValueError, TypeError) as error:
        raise Trouble(without_password(str(error))) from None
    with open_readonly(path, engine, secret_file) as store, Publisher(store, place) as publisher:
        _tell(publisher.publish(full), as_json)
        failing = False
        try:
            while not once:
                time.sleep(interval)
                try:
                    done = publisher.publish()
                    failing = False
                except StoreError as error:
                    if not failing:
                        click.echo(f"not published: {error}", err=True)
                    failing = True
                else:
                    if done.how != "same":
                        _tell(done, as_json)
        except KeyboardInterrupt:
            pass  # how one ends it


def _tell(done: "Published", as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(done)))
        return
    what = {"same": "nothing had changed", "full": f"the whole filter, {bytes_text(done.full_bytes)}"}
    delta = f"a delta of {bytes_text(done.delta_bytes)} beside a filter of {bytes_text(done.full_bytes)}"
    click.echo(
        f"version {done.version}, {done.keys:,} keys up to position {done.position}: {what.get(done.how, delta)}"
    )
