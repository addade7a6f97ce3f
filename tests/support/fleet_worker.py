"""One host of a run on a real cluster: a writer, or a reader that looks for stored keys which the filter denies.

``python -m support.fleet_worker ABOUT``: JSON, see `serve`; prints a line when it is ready, and what it saw at the end.
"""

import json
import logging
import os
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path

from support.fleet_board import END, GONE, MOST_KEYS, RUN, STORED, UNSURE, Board, key_of, now
from support.fleet_recorder import Recorder

ENGINE_SECONDS = 20.0  # how long the engine may take to say whether it has a key that was denied


def open_guard(about):
    import redis
    from redis.cluster import ClusterNode

    from dlbf.storage import Guard
    from dlbf.storage.engines.redis import RedisEngine
    from dlbf.storage.logs import ValkeyLog

    def client():
        nodes = [ClusterNode("127.0.0.1", port) for port in about["ports"]]
        return redis.RedisCluster(startup_nodes=nodes, socket_timeout=1.0, socket_connect_timeout=1.0)

    last = None
    for _ in range(100):  # the cluster may be in the middle of a fail-over
        try:
            return Guard(
                RedisEngine(client()),
                about["folder"],
                log=ValkeyLog(client(), about["name"]),
                secret=b"s" * 16,
                label=about["label"],
                lease_seconds=about["lease"],
                consistency=about["consistency"],
            )
        except Exception as error:
            last = error
            time.sleep(0.2)
    raise last


class Worker:
    """What a writer and a reader share: the guard, the board, what was seen, what was done lately."""

    def __init__(self, about, guard, board):
        self.about = about
        self.guard = guard
        self.board = board
        folder = Path(about["board"]).parent
        who = f"{about['label'].replace(' ', '-')}-{os.getpid()}"
        self.recorder = Recorder(guard, folder / f"trace-{who}.txt")
        self.denials = folder / f"denied-{who}.jsonl"
        self.alarm = 0
        self.seen = dict.fromkeys(
            ("puts", "failed_puts", "deletes", "failed_deletes", "gets", "failed_gets", "absent"), 0
        )
        self.seen |= {"errors": {}, "put_seconds": [], "state": "", "label": about["label"]}

    def order(self):
        """What to do now."""
        if self.board.alarm[0] != self.alarm:
            self.alarm = int(self.board.alarm[0])
            self.recorder.dump()
        return int(self.board.order[0])

    def failed(self, what, error):
        self.seen[what] += 1
        text = f"{type(error).__name__}: {error}"[:100]
        self.seen["errors"][text] = self.seen["errors"].get(text, 0) + 1

    # --- a writer

    def write(self):
        """Put key after key; delete one in four of them some time later."""
        board, seen, writer = self.board, self.seen, self.about["writer"]
        r = random.Random(os.getpid())
        while (order := self.order()) != END:
            number = int(board.next[writer])
            if order != RUN or number >= MOST_KEYS:
                time.sleep(0.01)
                continue
            board.next[writer] = number + 1
            began = now()
            try:
                self.guard.put(key_of(writer, number), b"v")
                board.stored(writer, number)
                seen["puts"] += 1
                seen["put_seconds"].append(now() - began)
            except Exception as error:
                board.state[writer, number] = UNSURE
                self.failed("failed_puts", error)
                time.sleep(0.02)
            if number % 4 == 0 and number > 40:
                self.delete(number - r.randrange(4, 40, 4))
            time.sleep(r.random() * self.about["think"])

    def delete(self, number):
        writer = self.about["writer"]
        if self.board.state[writer, number] == STORED:
            self.board.state[writer, number] = GONE
            try:
                self.guard.delete(key_of(writer, number))
                self.seen["deletes"] += 1
            except Exception as error:
                self.failed("failed_deletes", error)

    # --- a reader

    def look(self, writer, number):
        """Get a stored key; note it if the filter denied it."""
        guard, board = self.guard, self.board
        began = now()
        age = began - board.times[writer, number]
        before = guard.traffic.n_filtered
        try:
            value = guard.get(key_of(writer, number))
        except Exception as error:  # the engine, while it fails over
            self.failed("failed_gets", error)
            time.sleep(0.01)
            return
        self.seen["gets"] += 1
        if value is None and guard.traffic.n_filtered > before and board.state[writer, number] == STORED:
            self.denied(writer, number, began, age)

    def denied(self, writer, number, began, age):
        """Write down a denial at once, and all that explains it: this process may be killed."""
        board = self.board
        about = {"key": key_of(writer, number).decode(), "writer": writer, "number": number, "age": age}
        about |= {"began": began, "ended": now(), "reader": self.about["label"], "beliefs": self.recorder.beliefs()}
        about["engine"] = self.ask_engine(key_of(writer, number))
        about["deleted"] = bool(board.state[writer, number] != STORED)  # since: what the engine says means nothing then
        self.recorder.say(f"denied {about}")
        with self.denials.open("a") as file:
            file.write(json.dumps(about) + "\n")
        if about["engine"] and writer < self.about["forger"]:
            board.alarm[0] += 1

    def ask_engine(self, key):
        """Whether the engine has a key; None if it does not say."""
        end = now() + ENGINE_SECONDS
        while now() < end:
            try:
                return self.guard.engine.get(key) is not None
            except Exception:  # it fails over
                time.sleep(0.1)
        return None

    def get_well(self):
        """Wait until the filter has answered for two leases without a break; "filtering" if it did, else its state."""
        end = now() + 60
        since = now()
        while now() < since + 2 * self.about["lease"]:
            if (state := self.guard.state) != "filtering":
                since = now()
                if since > end:
                    return state
            time.sleep(0.01)
        return "filtering"  # a busy machine may make the lease lapse again a moment later

    def sweep(self):
        """Look at every stored key."""
        for writer in range(len(self.board.next)):
            for number in self.board.numbers(writer):
                self.look(writer, number)

    def read(self):
        """Ask for stored keys, the newest most, and for keys that were never there."""
        guard, board, seen = self.guard, self.board, self.seen
        r = random.Random(os.getpid())
        said = RUN
        while (order := self.order()) != END:
            if order != RUN:
                if order != said:
                    said = order
                    if order % 2:
                        seen["state"] = self.get_well()
                    else:
                        self.sweep()
                    print(json.dumps(order), flush=True)
                time.sleep(0.01)
                continue
            for _ in range(20):
                writer = r.randrange(len(board.next))
                n = int(board.next[writer])
                number = max(0, n - 1 - r.randrange(4 if r.random() < 0.6 else n + 1))
                if board.state[writer, number] == STORED:
                    self.look(writer, number)
                try:
                    guard.get(b"never %d" % r.randrange(1 << 40))
                    seen["absent"] += 1
                except Exception as error:
                    self.failed("failed_gets", error)
                    time.sleep(0.01)
            time.sleep(r.random() * self.about["think"])


def serve(about):
    """``about``: ports, name, folder, board, forger, writer (or null), label, lease, consistency, think."""
    logging.basicConfig(format=f"%(asctime)s {about['label']} %(message)s", level=logging.INFO)
    board = Board(about["board"], about["forger"] + 1)
    with open_guard(about) as guard:
        worker = Worker(about, guard, board)
        print(json.dumps("ready"), flush=True)
        worker.read() if about["writer"] is None else worker.write()
        seen = worker.seen
        stats = guard.stats()
        seen["lookups"], seen["filtered"] = stats.lookups, stats.filtered
        seen["unfiltered"], seen["false_positives"] = stats.unfiltered, stats.false_positives
        seen["fleet"] = asdict(stats.fleet)
        worker.recorder.dump()
    waits = sorted(seen.pop("put_seconds"))
    seen["median_put"] = waits[len(waits) // 2] if waits else 0.0
    seen["longest_put"] = waits[-1] if waits else 0.0
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
