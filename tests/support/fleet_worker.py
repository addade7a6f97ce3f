"""One host of a run on a real cluster: a writer, or a reader that looks for stored keys which the filter denies.

``python -m support.fleet_worker ABOUT``: JSON, see `serve`; prints a line when it is ready, and what it saw at the end.
"""

import json
import os
import random
import sys
import time
from dataclasses import asdict

from support.fleet_board import CALM, END, GONE, MOST_KEYS, RUN, STORED, UNSURE, Board, key_of, now


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


def write(guard, board, about, seen):
    """Put key after key; delete one in four of them some time later."""
    writer = about["writer"]
    r = random.Random(os.getpid())
    while board.order[0] != END:
        number = int(board.next[writer])
        if board.order[0] != RUN or number >= MOST_KEYS:
            time.sleep(0.01)
            continue
        board.next[writer] = number + 1
        began = now()
        try:
            guard.put(key_of(writer, number), b"v")
            board.stored(writer, number)
            seen["puts"] += 1
            seen["put_seconds"].append(now() - began)
        except Exception as error:
            board.state[writer, number] = UNSURE
            seen["failed_puts"] += 1
            seen["errors"][str(error)[:100]] = seen["errors"].get(str(error)[:100], 0) + 1
            time.sleep(0.02)
        if number % 4 == 0 and number > 40:
            old = number - r.randrange(4, 40, 4)
            if board.state[writer, old] == STORED:
                board.state[writer, old] = GONE
                try:
                    guard.delete(key_of(writer, old))
                    seen["deletes"] += 1
                except Exception:
                    seen["failed_deletes"] += 1
        time.sleep(r.random() * about["think"])


def look(guard, board, writer, number, seen):
    """Get a stored key; note it if the filter denied it."""
    age = now() - board.times[writer, number]
    before = guard.traffic.n_filtered
    try:
        value = guard.get(key_of(writer, number))
    except Exception as error:  # the engine, while it fails over
        seen["failed_gets"] += 1
        seen["errors"][str(error)[:100]] = seen["errors"].get(str(error)[:100], 0) + 1
        time.sleep(0.01)
        return
    seen["gets"] += 1
    if value is None and guard.traffic.n_filtered > before and board.state[writer, number] == STORED:
        seen["denied"].append((writer, number, age))


def get_well(guard, lease):
    """Wait until the filter has answered for two leases; its state."""
    end = now() + 60
    since = now()
    while now() < min(end, since + 2 * lease):
        if guard.state != "filtering":
            since = now()
        time.sleep(0.01)
    return guard.state


def sweep(guard, board, seen):
    """Look at every stored key."""
    for writer in range(len(board.next)):
        for number in board.numbers(writer):
            look(guard, board, writer, number, seen)


def read(guard, board, about, seen):
    """Ask for stored keys, the newest most, and for keys that were never there."""
    r = random.Random(os.getpid())
    said = set()
    while board.order[0] != END:
        order = int(board.order[0])
        if order != RUN:
            if order not in said:
                said.add(order)
                if order == CALM:
                    seen["state"] = get_well(guard, about["lease"])
                else:
                    sweep(guard, board, seen)
                print(json.dumps(order), flush=True)
            time.sleep(0.01)
            continue
        for _ in range(20):
            writer = r.randrange(len(board.next))
            n = int(board.next[writer])
            number = max(0, n - 1 - r.randrange(4 if r.random() < 0.6 else n + 1))
            if board.state[writer, number] == STORED:
                look(guard, board, writer, number, seen)
            try:
                guard.get(b"never %d" % r.randrange(1 << 40))
                seen["absent"] += 1
            except Exception:
                seen["failed_gets"] += 1
                time.sleep(0.01)
        time.sleep(r.random() * about["think"])


def serve(about):
    """``about``: ports, name, folder, board, n_writers, writer (or null), label, lease, consistency, think."""
    board = Board(about["board"], about["n_writers"])
    seen = dict.fromkeys(("puts", "failed_puts", "deletes", "failed_deletes", "gets", "failed_gets", "absent"), 0)
    seen |= {"denied": [], "errors": {}, "put_seconds": [], "state": "", "label": about["label"]}
    with open_guard(about) as guard:
        print(json.dumps("ready"), flush=True)
        (read if about["writer"] is None else write)(guard, board, about, seen)
        stats = guard.stats()
        seen["lookups"], seen["filtered"] = stats.lookups, stats.filtered
        seen["unfiltered"], seen["false_positives"] = stats.unfiltered, stats.false_positives
        seen["fleet"] = asdict(stats.fleet)
    waits = sorted(seen.pop("put_seconds"))
    seen["median_put"] = waits[len(waits) // 2] if waits else 0.0
    seen["longest_put"] = waits[-1] if waits else 0.0
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
