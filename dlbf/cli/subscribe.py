"""``dlbf subscribe``: a copy of a published filter, kept fresh."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlbf.cli.engines import without_password
from dlbf.cli.exits import EXIT_NO, Trouble
from dlbf.cli.reading import read_secret
from dlbf.cli.stores import secret_option
from dlbf.cli.text import bytes_text
from dlbf.errors import DlbfError

if TYPE_CHECKING:
    from dlbf.storage.distribution import Refreshed

__all__ = ["command"]

HOW = {"same": "as it was", "delta": "by deltas", "full": "the whole filter"}


@click.command("subscribe")
@click.argument("source")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@secret_option
@click.option("--once", is_flag=True, help="Look once, then end.")
@click.option("--interval", type=click.FloatRange(min=0.05), default=1.0, show_default=True, help="Seconds.")
@click.option("--max-age", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Seconds; see below.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each look.")
def command(
    source: str, file: Path, secret_file: Path | None, once: bool, interval: float, max_age: float, as_json: bool
) -> None:
    """Keep a copy of the filter that is published at SOURCE in FILE.

    SOURCE is a folder, http(s)://..., or redis://HOST:PORT/DB?feed=NAME.  FILE is replaced whole, never changed in
    place.  Programs of this host that open subscribe(SOURCE, cache=FILE) begin with it and read only what has changed.
    With --secret-file only what was published with that secret is taken.

    Exit codes: 0, also after Ctrl-C; 1 with --once: there is a filter, and it is older than --max-age; 2 trouble:
    nothing is published there, it cannot be read or is damaged, or FILE cannot be written.
    """
    from dlbf.storage.distribution import Follower
    from dlbf.storage.distribution.places import place_for

    secret = None if secret_file is None else read_secret(secret_file)
    try:
        place = place_for(source)
    except (ValueError, TypeError) as error:
        raise Trouble(without_password(str(error))) from None
    follower = Follower(place, secret, file)
    done = follower.refresh()
    if done.how == "nothing":
        raise Trouble(f"{place.where}: nothing is published there; check SOURCE, or start dlbf publish first")
    _tell(done, as_json)
    failing = False
    try:
        while not once:
            time.sleep(interval)
            try:
                done = follower.refresh()
                failing = False
            except (DlbfError, OSError) as error:
                if not failing:
                    click.echo(f"not refreshed: {error}", err=True)
                failing = True
            else:
                if as_json or done.how != "same":
                    _tell(done, as_json)
    except KeyboardInterrupt:
        return  # how one ends it
    if done.age_seconds > max_age:
        click.echo(f"the newest version is {done.age_seconds:.0f} s old, expected at most {max_age:g}", err=True)
        sys.exit(EXIT_NO)


def _tell(done: "Refreshed", as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(done)))
        return
    click.echo(
        f"version {done.version} up to position {done.position}, {max(0.0, done.age_seconds):.1f} s old: "
        f"{HOW[done.how]}, {bytes_text(done.n_bytes)} read"
    )
