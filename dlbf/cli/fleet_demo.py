"""``dlbf fleet demo``: four hosts on a cluster, a host and a primary killed, and what each host answers meanwhile."""

import json
import mmap
import secrets
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TypedDict

import click

from dlbf.cli.demo import Teller
from dlbf.cli.exits import EXIT_NO
from dlbf.cli.fleet_host import LEASE_SECONDS, board_bytes
from dlbf.cli.fleet_servers import DemoCluster, wait_for

__all__ = ["demo"]

N_HOSTS = 4
TRAFFIC_SECONDS = 3.0
LOG_KEY = b"dlbf:fleet:{demo}"


class Facts(TypedDict):
    """What a host says of itself."""

    state: str
    stored: int
    lookups: int
    saved: int
    needless: int
    passed_through: int
    denied: int
    failed: int
    longest_put_seconds: float


NOTHING: Facts = {
    "state": "starting", "stored": 0, "lookups": 0, "saved": 0, "needless": 0, "passed_through": 0, "denied": 0,
    "failed": 0, "longest_put_seconds": 0.0,
}  # fmt: skip


class DemoHost:
    """A host in a process of its own, and the last that it said."""

    def __init__(self, about: dict[str, object]) -> None:
        self.facts = NOTHING
        self.longest_put = 0.0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dlbf.cli.fleet_host", json.dumps(about)], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.facts = json.loads(line)
            self.longest_put = max(self.longest_put, self.facts["longest_put_seconds"])

    def kill(self) -> None:
        """End it at once."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


def demo(as_json: bool) -> None:
    """See the module; exits with 1 if a stored key was denied."""
    teller = Teller(as_json)
    with tempfile.TemporaryDirectory() as folder:
        figures = _run(Path(folder), teller)
    if as_json:
        click.echo(json.dumps(figures, indent=2))
    elif figures["denied"]:
        click.echo(f"{figures['denied']} answers denied a key that was stored: that must not happen; report it")
    else:
        click.echo(f"No stored key was denied.  {figures['saved_share']:.2%} of the reads of absent keys were saved.")
    if figures["denied"]:
        sys.exit(EXIT_NO)


def _run(folder: Path, teller: Teller) -> dict[str, object]:
    hosts: list[DemoHost] = []
    with teller.step("cluster", "starting six servers") as tell:
        cluster = DemoCluster()
        tell("three primaries and a replica of each, on this machine, in memory")
    try:
        path = folder / "board"
        path.write_bytes(bytes(board_bytes(N_HOSTS)))
        about = {
            "ports": [server.port for server in cluster.servers],
            "board_path": str(path),
            "n_hosts": N_HOSTS,
            "secret": secrets.token_hex(16),
        }
        with teller.step("hosts", "opening four guards that share a log") as tell:
            hosts += [DemoHost({**about, "me": me, "folder": str(folder / f"host{me}")}) for me in range(N_HOSTS)]
            _until_filtering(hosts)
            tell("four hosts, each with a lease and a filter of its own")
        with teller.step("traffic", "storing keys, asking for them and for absent ones") as tell:
            time.sleep(TRAFFIC_SECONDS)
            tell("each stores keys, asks for those of all hosts, and as often for absent ones")
            for line in _lines(hosts):
                tell(line)
        with teller.step("a host", "killing host 4") as tell:
            _forget_longest(hosts)
            hosts[3].kill()
            time.sleep(TRAFFIC_SECONDS)
            longest = max(host.longest_put for host in hosts[:3])
            tell(f"host 4 killed; the longest put waited {longest:.2f} s (its lease was {LEASE_SECONDS} s)")
            for line in _lines(hosts[:3]):
                tell(line)
        with teller.step("a primary", "killing the primary that has the log") as tell:
            primary = cluster.primary_of(LOG_KEY)
            replica = cluster.replica_of(primary)
            primary.kill()
            promoted = wait_for(lambda: replica.role() == b"master", "no replica is promoted")
            well = _until_filtering(hosts[:3])
            time.sleep(TRAFFIC_SECONDS)
            tell(f"its replica took over after {promoted:.1f} s; all hosts filter again {well:.1f} s later")
            for line in _lines(hosts[:3]):
                tell(line)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), board_bytes(N_HOSTS)) as board:
            struct.pack_into("<q", board, 8 * N_HOSTS, 1)
        for host in hosts[:3]:
            host.process.wait(30)
        facts = [host.facts for host in hosts]
        saved, needless = sum(one["saved"] for one in facts), sum(one["needless"] for one in facts)
        return {
            "hosts": facts,
            "denied": sum(one["denied"] for one in facts),
            "saved_share": saved / max(1, saved + needless),
            "longest_put_seconds": longest,
            "promoted_seconds": promoted,
            "filtering_again_seconds": well,
        }
    finally:
        for host in hosts:
            host.kill()
        cluster.kill()


def _forget_longest(hosts: list[DemoHost]) -> None:
    for host in hosts:
        host.longest_put = 0.0


def _until_filtering(hosts: list[DemoHost]) -> float:
    """Wait until all hosts say, from now on, that their filters answer."""
    for host in hosts:
        host.facts = {**host.facts, "state": "not heard of"}
    return wait_for(lambda: all(host.facts["state"] == "filtering" for host in hosts), "not all hosts filter", 120.0)


def _lines(hosts: list[DemoHost]) -> list[str]:
    lines = [f"{'':8}{'stored':>8} {'asked':>10} {'saved':>10} {'through':>9} {'denied':>7}"]
    for number, host in enumerate(hosts):
        one = host.facts
        lines.append(
            f"host {number + 1:<3}{one['stored']:>8,} {one['lookups']:>10,} {one['saved']:>10,} "
            f"{one['passed_through']:>9,} {one['denied']:>7}"
        )
    return lines
