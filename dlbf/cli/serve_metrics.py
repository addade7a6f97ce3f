"""``dlbf serve-metrics``: the figures of stores and guards for Prometheus, over HTTP."""

import contextlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlbf.cli.engines import engine_option
from dlbf.cli.exits import Trouble
from dlbf.cli.stores import secret_option
from dlbf.cli.watching import open_readonly

if TYPE_CHECKING:
    from dlbf.metrics import Collector

__all__ = ["command"]


@click.command("serve-metrics")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@engine_option
@secret_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="0: any free one.")
@click.option("--once", is_flag=True, help="Print the figures and end, without a server.")
def command(
    paths: tuple[Path, ...], engine: str | None, secret_file: Path | None, host: str, port: int, once: bool
) -> None:
    """Serve the figures of the stores and guards in PATH... as Prometheus text, under /metrics.

    Sizes, state, log and generation are everybody's.  Lookups are those of a process: for them let the program that
    asks serve its own figures, with dlbf.metrics.collector(store).

    Exit codes: 0, also after Ctrl-C; 2 trouble: a PATH is neither, or the port is taken.
    """
    from dlbf.metrics import collector

    if engine is not None and len(paths) > 1:
        raise Trouble(f"--engine is for one guard, found {len(paths)} paths; serve each guard by itself")
    with contextlib.ExitStack() as stack:
        source = collector(*(stack.enter_context(open_readonly(path, engine, secret_file)) for path in paths))
        if once:
            click.echo(source.text(), nl=False)
            return
        server = stack.enter_context(make_server(source, host, port))
        click.echo(f"http://{host}:{server.server_address[1]}/metrics; end it with Ctrl-C", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def make_server(source: "Collector", host: str, port: int) -> ThreadingHTTPServer:
    """A server of a collector's text, which listens already."""
    from dlbf.metrics import CONTENT_TYPE

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/metrics", "/"):
                self.send_error(404, "only /metrics is here")
                return
            body = source.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a line for every scrape helps nobody."""

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise Trouble(f"{host}:{port} cannot be listened on ({error}); choose another --port or --host") from None
