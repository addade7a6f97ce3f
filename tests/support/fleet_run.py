"""Writers and readers in processes of their own on a real cluster, with pauses, kills and fail-overs.

``python -m support.fleet_run --seconds 600 --failovers 3`` (in ``tests/``) runs one and prints what was seen.
"""

import argparse
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from support.fleet_board import END, STORED, Board, key_of, now
from support.places import TESTS
from support.valkey import Cluster, redis

NAME = "run"
LOG_KEY = b"dlbf:fleet:{%s}" % NAME.encode()


class Worker:
    """The parent's side of a host."""

    def __init__(self, about):
        self.about = about
        self.ready = threading.Event()
        self.done = 0  # the last order that it has carried out
        self.seen = None
        with (Path(about["board"]).parent / f"{about['label'].replace(' ', '-')}.log").open("a") as told:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "support.fleet_worker", json.dumps(about)],
                cwd=TESTS,
                stdout=subprocess.PIPE,
                stderr=told,
                text=True,
            )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        for line in self.process.stdout:
            said = json.loads(line)
            if said == "ready":
                self.ready.set()
            elif isinstance(said, int):
                self.done = said
            else:
                self.seen = said

    def pause(self, seconds):
        """Let it do nothing for a while, as if its machine were stopped."""
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def end(self, seconds):
        """Wait for its end; kill it if it does not come."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def kill(self):
        """End it at once; a second time nothing happens."""
        if self.process.poll() is None:
            self.process.kill()  # also while it is stopped
        self.process.wait()
        self._thread.join()
        self.process.stdout.close()


class Run:
    """A cluster and its hosts.

    Parameters
    ----------
    n_writers, n_readers : int
    consistency : str
    lease : float
        Seconds.
    think : float
        Most seconds between two operations of a host.
    seed : int
    """

    def __init__(self, n_writers=2, n_readers=4, consistency="strict", lease=0.5, think=0.01, seed=0):
        self.lease = lease
        self.consistency = consistency
        self.random = random.Random(seed)
        self.failovers = self.lost = self.kills = self.pauses = self.stalls = 0
        self.faults = []  # when, and what was done
        self.orders = 0
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="dlbf-fleet-", dir=memory if memory.is_dir() else None))
        self.workers = []
        self.finished = []
        self.cluster = None
        try:
            self.board = Board(self.folder / "board", n_writers + 1)
            self.cluster = Cluster()
            for number in range(n_writers + n_readers):
                writer = number if number < n_writers else None
                about = {
                    "ports": [server.port for server in self.cluster.servers],
                    "name": NAME,
                    "folder": str(self.folder / f"host{number}"),
                    "board": str(self.folder / "board"),
                    "forger": n_writers,  # a writer that `forge` is
                    "writer": writer,
                    "label": f"{'reader' if writer is None else 'writer'} {number}",
                    "lease": lease,
                    "consistency": consistency,
                    "think": think,
                }
                self.workers.append(Worker(about))
            for worker in self.workers:
                assert worker.ready.wait(120), f"{worker.about['label']} does not get ready"
        except BaseException:
            self.close()
            raise

    # --- faults

    def say(self, text):
        """Note what was done to hosts and servers, and when."""
        self.faults.append((now(), text))

    def pause_host(self, seconds=None):
        self.pauses += 1
        worker = self.random.choice(self.workers)
        seconds = seconds or self.random.choice((0.2, 0.8, 1.5)) * self.lease
        self.say(f"pause {worker.about['label']} for {seconds:.2f} s")
        worker.pause(seconds)

    def kill_host(self):
        """Kill a host; another process takes its place."""
        self.kills += 1
        place = self.random.randrange(len(self.workers))
        old = self.workers[place]
        self.say(f"kill {old.about['label']}, process {old.process.pid}")
        old.kill()
        self.workers[place] = Worker(old.about)

    def stall_server(self, key=LOG_KEY, seconds=0.5):
        """Stop the primary of a key for less than the time after which it is replaced."""
        self.stalls += 1
        primary = self.cluster.primary_of(key)
        self.say(f"stop server {primary.port} for {seconds:.2f} s")
        primary.stop()
        time.sleep(seconds)
        primary.go_on()

    def freeze_server(self, key=LOG_KEY):
        """Stop the primary of a key until it was replaced; then it goes on, and does not know of that yet."""
        cluster = self.cluster
        primary = cluster.primary_of(key)
        replica = cluster.replicas_of(primary)[0]
        self.say(f"stop server {primary.port} until {replica.port} has replaced it")
        primary.stop()
        try:
            wait_for(lambda: replica.client.execute_command("ROLE")[0] == b"master", 30, "no replica is promoted")
        finally:
            primary.go_on()
        self.failovers += 1
        self.say(f"server {replica.port} has replaced {primary.port}, which goes on")
        wait_for(lambda: primary.client.execute_command("ROLE")[0] == b"slave", 30, "the old primary stays one")
        wait_for(cluster.is_well, 30, "the cluster does not get well")
        self.say("the cluster is well")

    def fail_over(self, key=LOG_KEY, lose=True):
        """Kill the primary of a key, with ``lose`` after its replica has not heard of its last writes."""
        cluster = self.cluster
        primary = cluster.primary_of(key)
        replica = cluster.replicas_of(primary)[0]
        before = primary.client.execute_command("DBSIZE")
        if lose:
            replica.stop()
            end = time.monotonic() + 0.8
            while primary.client.execute_command("DBSIZE") <= before and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(0.1)
        before = primary.client.execute_command("DBSIZE")
        self.say(f"kill server {primary.port}")
        primary.kill()
        if lose:
            replica.go_on()
        wait_for(lambda: replica.client.execute_command("ROLE")[0] == b"master", 30, "no replica is promoted")
        self.say(f"server {replica.port} has replaced {primary.port}")
        self.lost += max(0, before - replica.client.execute_command("DBSIZE"))
        self.failovers += 1
        revive(cluster, primary, replica)
        self.say(f"server {primary.port} is back, empty, as a replica")

    def forge(self):
        """Put a key past the guards and say that it is stored: somebody must see that it is denied."""
        forger = len(self.board.next) - 1
        number = int(self.board.next[forger])
        with self.cluster.client() as client:
            client.set(key_of(forger, number), b"v")
        self.board.stored(forger, number)
        self.board.next[forger] = number + 1

    # --- the end

    def finish(self, forge=False):
        """Let all hosts look at every stored key once more, end them; what they saw, in one dict.

        With ``forge`` there is one among them that they must deny: a harness that sees nothing proves nothing.
        """
        wait_for(self.cluster.is_well, 30, "the cluster does not get well")
        for worker in self.workers:
            assert worker.ready.wait(60), f"{worker.about['label']} does not get ready"
        for _ in range(5):
            self._order("get well")
            if forge:
                self.forge()
            self._order("look at every key")
            if not forge or any(one["writer"] == self.forger for one in self.denials()):
                break  # else it was a false positive, a generation was being made, or a lease lapsed
        self.board.order[0] = END
        for worker in self.workers:
            worker.end(60)
        return self.judged([worker.seen for worker in self.workers])

    @property
    def forger(self):
        """The number of the writer that `forge` is."""
        return len(self.board.next) - 1

    def _order(self, what):
        self.orders += 1
        self.say(f"order {self.orders}: {what}")
        self.board.order[0] = self.orders
        for worker in self.workers:
            if worker.about["writer"] is None:
                trouble = f"{worker.about['label']} does not carry out: {what}"
                wait_for(lambda worker=worker: worker.done == self.orders, 180, trouble)

    def denials(self):
        """Every denial that a reader has written down, also those of readers that were killed since."""
        lines = [line for path in sorted(self.folder.glob("denied-*.jsonl")) for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines]

    def judged(self, all_seen):
        """What was seen, with the stored keys that were denied though the engine has them."""
        assert None not in all_seen, "a host ended without a word"
        total = {
            name: sum(seen[name] for seen in all_seen) for name in all_seen[0] if isinstance(all_seen[0][name], int)
        }
        readers = [seen for seen in all_seen if seen["label"].startswith("reader")]
        denials = self.denials()
        limit = 0.0 if self.consistency == "strict" else self.lease
        with self.cluster.client() as client:
            # There when it was denied, or there now: no key is put twice.  A deletion that began meanwhile hides that.
            there = [one for one in denials if one["engine"] or client.get(one["key"]) is not None]
            missing = sum(
                1
                for writer in range(len(self.board.next))
                for number in self.board.numbers(writer)
                if client.get(key_of(writer, number)) is None
            )
        wrong = [one for one in there if one["writer"] != self.forger]
        n_stored = int((self.board.state == STORED).sum())
        return total | {
            "wrong": [one for one in wrong if one["age"] >= limit],
            "early": len([one for one in wrong if one["age"] < limit]),
            "latest": max((one["age"] for one in wrong), default=0.0),
            "forged": len(there) - len(wrong),
            "sweeps": self.orders // 2,
            "denied_and_lost": len(denials) - len(there),
            "undecided": sum(one["deleted"] and not one["engine"] for one in denials),
            "stored": n_stored,
            "stored_and_lost": missing,
            "readers": {seen["label"]: (seen["state"], seen["fleet"]["reason"]) for seen in readers},
            "saved": sum(seen["filtered"] for seen in readers) / max(1, sum(seen["absent"] for seen in readers)),
            "median_put": max(seen["median_put"] for seen in all_seen),
            "longest_put": max(seen["longest_put"] for seen in all_seen),
            "errors": {text: n for seen in all_seen for text, n in seen["errors"].items()},
            "failovers": self.failovers,
            "lost_keys": self.lost,
            "kills": self.kills,
            "pauses": self.pauses,
            "stalls": self.stalls,
        }

    def explain(self, most=400):
        """Everything that explains a failure: what was done to whom, what hosts said, and where their traces are."""
        kept = Path(tempfile.mkdtemp(prefix="dlbf-fleet-failed-"))
        self.board.alarm[0] += 1  # hosts that run write their traces
        time.sleep(1.0)
        keys = {one["key"] for one in self.denials()}
        lines = [f"{when:.4f} {text}" for when, text in self.faults]
        for path in sorted(self.folder.glob("*.*")):
            shutil.copy(path, kept)
            if path.suffix == ".log":
                lines += [f"{path.stem}: {line}" for line in path.read_text().splitlines()[-40:]]
            elif path.suffix == ".txt":
                told = path.read_text().splitlines()
                lines += [f"{path.stem}: {line}" for line in told if any(key in line for key in keys)][-40:]
                lines += [f"{path.stem}: {line}" for line in told[-2:]]
        lines += [str(one) for one in self.denials()]
        return "\n".join([f"all traces are in {kept}", *lines[-most:]])

    def close(self):
        """End everything and remove it."""
        for worker in self.workers:
            with contextlib.suppress(OSError):
                worker.kill()
        if self.cluster is not None:
            self.cluster.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if error is not None:
                print(self.explain())
        finally:
            self.close()


def wait_for(condition, seconds, trouble):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(redis.exceptions.RedisError, OSError, LookupError):
            if condition():
                return
        assert time.monotonic() < end, trouble
        time.sleep(0.05)


def revive(cluster, server, primary):
    """Start a server that was killed, empty, as a replica of a primary."""
    assert server.start()
    for other in cluster.alive():
        if other is not server:
            server.client.execute_command("CLUSTER MEET", "127.0.0.1", other.port)
    name = primary.client.execute_command("CLUSTER MYID").decode()
    known = f"127.0.0.1:{primary.port}"

    def knows():
        return any(one.startswith(known) and about["node_id"] == name for one, about in cluster.nodes(server).items())

    wait_for(knows, 30, "the servers do not meet again")

    def follows():
        with contextlib.suppress(redis.exceptions.RedisError):
            server.client.execute_command("CLUSTER REPLICATE", name)
        return server.client.execute_command("ROLE")[0] == b"slave"

    wait_for(follows, 30, "the server does not become a replica")
    # The name that it had before belongs to nobody now.
    for other in cluster.alive():
        for about in cluster.nodes(other).values():
            if "fail" in about["flags"].split(","):
                with contextlib.suppress(redis.exceptions.RedisError):
                    other.client.execute_command("CLUSTER FORGET", about["node_id"])
    wait_for(cluster.is_well, 30, "the cluster does not get well")


def long_run(run, seconds, n_failovers):
    """Pauses and kills all the time, fail-overs evenly; then the end."""
    began = time.monotonic()
    due = [began + seconds * (number + 1) / (n_failovers + 1) for number in range(n_failovers)]
    while time.monotonic() < began + seconds:
        if due and time.monotonic() > due[0]:
            due.pop(0)
            key = LOG_KEY if len(due) % 2 == 0 else b"w0-%d" % run.random.randrange(1000)
            run.fail_over(key)
            continue
        fault = run.random.random()
        if fault < 0.15:
            run.kill_host()
        elif fault < 0.25:
            run.stall_server(run.random.choice((LOG_KEY, b"w0-1", b"w0-2", b"w0-3")), run.random.uniform(0.2, 0.8))
        else:
            run.pause_host()
        time.sleep(run.random.random() * 3)
    return run.finish()


def main(argv=None):
    parser = argparse.ArgumentParser(description="Hosts on a real cluster, with faults.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--failovers", type=int, default=3)
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--consistency", default="strict")
    parser.add_argument("--lease", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    with Run(options.writers, options.readers, options.consistency, lease=options.lease, seed=options.seed) as run:
        seen = long_run(run, options.seconds, options.failovers)
        print(json.dumps(seen, indent=2))
        assert not seen["wrong"], f"{len(seen['wrong'])} stored keys were denied"
    return 0


if __name__ == "__main__":
    sys.exit(main())
