"""Many hosts in virtual time: the protocol of `dlbf.storage.fleet` beside models of its servers, and faults.

``python -m support.fleet_sim --seed 17 --trace`` (in ``tests/``) replays a seed; ``--seeds 0:5000 --jobs 2`` runs many.
"""

import argparse
import heapq
import multiprocessing
import random
import sys
import time

from support.fleet_cluster import DataCluster, LogCluster, lag_of
from support.fleet_hosts import SimHost, SimReplicas
from support.fleet_oracle import Oracle, Violation
from support.fleet_plan import MS, SECOND, Plan, draw

NEVER = b"never"  # a key that nobody puts
LIMIT = 40_000  # events


class World:
    """Everything of one seed."""

    def __init__(self, plan: Plan, tracing=False):
        self.plan = plan
        self.tracing = tracing
        self.random = random.Random(plan.seed + 0.5)
        self.now = 0
        self.queue = []
        self.ticket = 0
        self.events = 0
        self.quiet = False  # no more faults
        self.cuts = set()
        self.values = 0
        self.replicas = SimReplicas()
        self.traffic = [b"k%d" % number for number in range(plan.n_keys)]
        self.last = [b"z%d" % number for number in range(plan.n_hosts)]  # put when faults have ended
        self.keys = self.traffic + self.last
        self.hosts = []
        self.log = LogCluster(self)
        self.data = DataCluster(self)
        self.oracle = Oracle(self)

    def say(self, text):
        if self.tracing:
            print(f"{self.now / MS:11.3f}  {text}")

    def at(self, when, act, *args):
        self.ticket += 1
        heapq.heappush(self.queue, (when, self.ticket, act, args))

    def value(self):
        self.values += 1
        return b"v%d" % self.values

    # --- messages

    def delay(self, kind):
        r = self.random.random
        if self.quiet:
            return int((0.2 + 2 * r()) * MS)
        held = self.plan.held.get(kind)
        if held is not None and r() < held:
            return int(r() * 3 * SECOND)
        if r() < self.plan.slow:
            return int(r() * 600 * MS)
        return int((0.2 + 3 * r()) * MS)

    def loses(self, host, place):
        if self.cuts and (host.index, place) in self.cuts:
            return True
        return not self.quiet and self.random.random() < self.plan.loss

    def send(self, host, place, kind, execute, resume, repeatable):
        """Have ``execute`` run on a server and ``resume`` with what it gives, or with None when patience is over."""
        start = self.now
        deadline = start + self.plan.timeout
        over = False

        def arrive():
            if self.loses(host, place):
                lost()
                return
            raw = execute()
            if self.tracing:
                self.say(f"    {host.name.decode()} {kind} -> {raw}")
            if raw is None or self.loses(host, place):
                lost()
                return
            when = self.now + self.delay(kind)
            if when > deadline:
                lost()
            host.at(when, reply, raw)

        def reply(raw):
            nonlocal over
            if not over:
                over = True
                resume(raw)

        def lost():
            host.at(max(self.now, deadline), reply, None)

        when = start + self.delay(kind)
        if when > deadline:
            lost()
        self.at(when, arrive)
        if repeatable and not self.quiet and self.random.random() < self.plan.doubled:
            self.at(when + self.delay(kind), arrive)

    # --- faults

    def schedule(self):
        """Draw when each fault happens."""
        plan = self.plan
        r = self.random

        def sometime():
            return r.randint(SECOND // 2, plan.active)

        for _ in range(plan.crashes):
            self.at(sometime(), self.crash)
        for _ in range(plan.pauses):
            self.at(sometime(), self.pause)
        for _ in range(plan.cuts):
            self.at(sometime(), self.cut)
        moments = [sometime() for _ in range(max(plan.log_failovers, plan.data_failovers))]
        for number in range(plan.log_failovers):
            when = moments[number]
            self.at(max(1, when - lag_of(self)), self.copy_log, when)
        for number in range(plan.data_failovers):
            near = moments[number] + r.randint(0, 300 * MS)
            self.at(near if plan.together else sometime(), self.replace_data)
        for _ in range(plan.moves):
            self.at(sometime(), self.move_slot)

    def crash(self):
        if self.quiet:
            return
        host = self.random.choice(self.hosts)
        self.say(f"{host.name.decode()} crashes")
        host.alive = False
        fresh = SimHost(self, host.index, host.life + 1)
        self.hosts[host.index] = fresh
        self.at(self.now + self.random.choice((0, self.random.randint(0, 2 * SECOND))), self.launch, fresh)

    def launch(self, host):
        host.at(self.now, host.tend)
        host.at(self.now, host.act)

    def pause(self):
        if self.quiet:
            return
        host = self.random.choice(self.hosts)
        host.paused = self.now + self.random.choice((200, 900, 1300, 2500)) * self.random.randint(1, MS)
        self.say(f"{host.name.decode()} is paused until {host.paused / MS:.3f}")

    def cut(self):
        if self.quiet:
            return
        r = self.random
        host = r.choice(self.hosts)
        places = ["log", *range(max(self.plan.n_slots, len(self.data.shards)))]
        for place in r.choice((["log"], places[1:], places)):
            self.cuts.add((host.index, place))
        self.say(f"{host.name.decode()} is cut off: {sorted(map(str, self.cuts))}")
        self.at(self.now + r.randint(0, 3 * SECOND), self.heal, host.index)

    def heal(self, index):
        self.cuts = {one for one in self.cuts if one[0] != index}

    def copy_log(self, when):
        """What the replica has that becomes the log's primary later."""
        self.at(when, self.replace_log, self.log.primary, self.log.primary.model.state.copy())

    def replace_log(self, primary, state):
        if self.quiet:
            return
        # If another one became primary meanwhile, the replica either followed it or was promoted from what it had.
        followed = primary is not self.log.primary and self.random.random() < 0.5
        self.log.fail_over(self.log.primary.model.state if followed else state)

    def replace_data(self):
        if self.quiet:
            return
        r = self.random
        shard = r.randrange(len(self.data.shards))
        self.data.fail_over(shard, lag_of(self))
        if self.plan.moves and r.random() < 0.5:  # an operator moves what it has elsewhere
            for slot, owner in enumerate(self.data.owner):
                if owner == shard:
                    target = r.randrange(len(self.data.shards))
                    self.at(self.now + r.randint(0, 30 * MS), self.data.move, slot, target)

    def move_slot(self):
        if not self.quiet:
            self.data.move(self.random.randrange(self.plan.n_slots), self.random.randrange(len(self.data.shards)))

    # --- the run

    def run(self):
        """Run to the end.

        Raises
        ------
        Violation
        """
        plan = self.plan
        for index in range(plan.n_hosts):
            self.hosts.append(SimHost(self, index, 1))
            self.launch(self.hosts[-1])
        self.schedule()
        self.at(plan.active, self.calm)
        queue = self.queue
        oracle = self.oracle
        while queue:
            self.now, _, act, args = heapq.heappop(queue)
            self.events += 1
            act(*args)
            if oracle.dirty_keys or oracle.dirty_hosts:
                oracle.check()
            if self.quiet and self.done():
                return
            if self.events > LIMIT:
                raise Violation(f"more than {LIMIT} events")

    def calm(self):
        """The faults end: from here on everything must get well."""
        self.say("faults end")
        self.quiet = True
        self.cuts.clear()
        self.waiting = {}
        settings = self.plan.settings
        self.limit = self.now + 10 * SECOND + 6 * (settings.grace + settings.put_limit)
        for host in self.hosts:
            host.deaf = True
            host.paused = min(host.paused, self.now)
            self.waiting[host.index] = True
            host.at(self.now, self.finally_put, host)

    def finally_put(self, host):
        def over(error):
            if error is None:
                del self.waiting[host.index]
            else:
                host.at(self.now + 100 * MS, self.finally_put, host)

        host.put([self.last[host.index]], 0, over)

    def done(self):
        """Whether all puts have finished and every reader denies by itself what is not there."""
        if self.now > self.limit:
            states = [(h.name, h.core.answers(h.clock()), h.core.epoch, h.busy) for h in self.hosts]
            raise Violation(f"not well again: puts of {sorted(self.waiting)} are not done, {states}")
        if self.waiting:
            return False
        return all(host.core.denies(NEVER, host.clock()) for host in self.hosts if host.reads)


def simulate(seed, tracing=False):
    """Run one seed; how many events it had.

    Raises
    ------
    Violation
        With what went wrong, and the seed.
    """
    world = World(draw(seed), tracing)
    try:
        world.run()
    except Violation as error:
        raise Violation(f"seed {seed}: {error}") from error
    return world.events


def attempt(seed):
    """The violation of a seed as text, or None, and its events."""
    try:
        return seed, None, simulate(seed)
    except Exception as error:
        return seed, f"{type(error).__name__}: {error}", 0


def main(argv=None):
    parser = argparse.ArgumentParser(description="Simulate many hosts in virtual time.")
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--trace", action="store_true", help="say what happens")
    parser.add_argument("--seeds", default="0:1000", help="first:last+1")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--stop", type=int, default=10, help="give up after so many violations")
    options = parser.parse_args(argv)
    if options.seed is not None:
        if options.trace:
            print(draw(options.seed))
        print(simulate(options.seed, options.trace), "events")
        return 0
    first, last = map(int, options.seeds.split(":"))
    began = time.monotonic()
    bad = events = n = 0
    with multiprocessing.Pool(options.jobs) as pool:
        for seed, trouble, count in pool.imap_unordered(attempt, range(first, last), 50):
            n += 1
            events += count
            if trouble:
                bad += 1
                print(trouble if str(seed) in trouble else f"seed {seed}: {trouble}", flush=True)
                if bad >= options.stop:
                    pool.terminate()
                    break
            if n % 5000 == 0:
                print(f"{n} seeds, {bad} violations, {n / (time.monotonic() - began):.0f} a second", flush=True)
    seconds = time.monotonic() - began
    print(f"{n} seeds, {bad} violations, {events} events, {seconds:.0f} s, {n / seconds:.1f} seeds a second")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
