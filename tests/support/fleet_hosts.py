"""Hosts of the simulator: drivers that run the operations of `dlbf.storage.fleet`, and their traffic."""

import pickle

from dlbf.storage.fleet import building, reading, writing
from dlbf.storage.fleet.commands import DataCommand, LogAdd, LogCommand
from dlbf.storage.fleet.host import Host, identities_of
from dlbf.storage.fleet.messages import Answer, Batch, FleetError, Identities, Lost, Pause, RaiseFences, Scan
from support.fleet_oracle import SimReplica
from support.fleet_plan import MS, SECOND

ONCE = ("put", "remove")  # never sent twice
N_PAGES = 2


class SimReplicas:
    """Makes replicas of what `SimBuild` and `SimReplica` saved."""

    def count(self, meta):
        return int(meta)

    def load(self, generation, position, meta, chunks):
        base, counts = pickle.loads(b"".join(chunks))
        return SimReplica(generation, base, counts)


def dump(base, counts):
    data = pickle.dumps((base, counts))
    return b"2", [data[:20], data[20:]]


class SavingReplica(SimReplica):
    """A replica of a host: it can be stored as a checkpoint."""

    __slots__ = ()

    def save(self):
        return dump(self.base, dict(self.counts))


class HostReplicas(SimReplicas):
    """Makes replicas for hosts."""

    def load(self, generation, position, meta, chunks):
        base, counts = pickle.loads(b"".join(chunks))
        return SavingReplica(generation, base, counts)


class SimBuild:
    """A generation in the making."""

    def __init__(self, world):
        self.world = world
        self.counts = {}

    def start(self, generation, keys):
        self.added(keys)

    def scanned(self, keys):
        self.added(keys)

    def added(self, keys):
        for key in keys:
            self.counts[key] = self.counts.get(key, 0) + 1

    def finish(self):
        plan = self.world.plan
        if not plan.layered:
            return dump(frozenset(), self.counts)
        base = dict.fromkeys(self.counts)
        for key in self.world.keys:
            if self.world.random.random() < plan.false_positives:
                base[key] = None
        return dump(base, {})


class Op:
    """One operation under way."""

    __slots__ = ("add", "gen", "name", "then")

    def __init__(self, name, gen, then):
        self.name = name
        self.gen = gen
        self.then = then
        self.add = None  # (epoch, position, keys) of the last add that was answered


class SimHost:
    """One process; after a crash another one takes its place."""

    def __init__(self, world, index, life):
        self.world = world
        self.index = index
        plan = world.plan
        self.name = b"h%d-%d" % (index, life)
        self.life = life
        self.reads = index >= plan.writers_only
        self.core = Host(self.name, plan.settings, HostReplicas(), owner=world.data.owner_in)
        if plan.vague:
            self.core.maybe = self.vaguely
        self.alive = True
        self.paused = 0  # until then nothing runs here
        self.rate = 1_000_000 + world.random.choice((-plan.drift, 0, plan.drift))
        self.offset = world.random.randint(1, 1000) * SECOND
        self.busy = {}  # names of operations of which one runs at a time
        self.empty = False  # whether the log has no generation
        self.identities = []  # what the last `Identities` said
        self.deaf = False  # stops its traffic

    # --- time

    def clock(self):
        return self.offset + self.world.now * self.rate // 1_000_000

    def true_time(self, local):
        when = (local - self.offset) * 1_000_000 // self.rate
        while self.offset + when * self.rate // 1_000_000 < local:
            when += 1
        return when

    def at(self, when, act, *args):
        self.world.at(when, self.run, act, args)

    def run(self, act, args):
        """Do something here, unless this process is dead; later if it is paused."""
        if not self.alive:
            return
        if self.world.now < self.paused:
            self.world.at(self.paused, self.run, act, args)
            return
        act(*args)
        self.world.oracle.dirty_hosts[self] = True

    def vaguely(self, key):
        """What the filter says to a writer: collisions and staleness may let any key pass."""
        return self.world.random.random() < self.world.plan.vague or Host.maybe(self.core, key)

    # --- operations

    def start(self, name, gen, then=None):
        self.step(Op(name, gen, then), None)

    def once(self, name, make, then=None):
        """Start an operation unless one of this name is under way."""
        if name in self.busy:
            return
        self.busy[name] = True

        def over(result, error):
            del self.busy[name]
            if then is not None:
                then(result, error)

        self.start(name, make(), over)

    def step(self, op, answer):
        try:
            if isinstance(answer, Lost):
                request = op.gen.throw(answer)
            else:
                request = op.gen.send(answer)
        except StopIteration as stop:
            self.finish(op, stop.value, None)
        except FleetError as error:
            self.finish(op, None, error)
        else:
            self.perform(op, request)

    def finish(self, op, result, error):
        if self.world.tracing:
            self.world.say(f"{self.name.decode()} {op.name}: {result if error is None else repr(error)}")
        if op.then is not None:
            op.then(result, error)

    def perform(self, op, request):
        sent = self.clock()

        def resume(raw):
            if raw is None:
                self.step(op, Lost(self.clock()))
            else:
                if type(request) is LogAdd and len(raw) > 6:
                    op.add = (raw[0], raw[7], writing_keys(request))
                self.step(op, Answer(sent, self.clock(), raw))

        if isinstance(request, LogCommand):
            self.ask_log(request, resume)
        elif isinstance(request, Batch):
            self.ask_all(op, request, sent)
        elif isinstance(request, Pause):
            self.wait(request, resume)
        elif isinstance(request, DataCommand):
            self.ask_data(op, request, resume)
        elif isinstance(request, Identities):
            self.ask_identities(resume)
        elif isinstance(request, RaiseFences):
            self.raise_fences(request, resume)
        else:
            assert isinstance(request, Scan)
            self.scan(request.build, resume)

    def ask_log(self, command, resume):
        log = self.world.log
        server = log.view(self)
        kind = command.function
        self.world.send(self, "log", kind, lambda: log.call(server, command), resume, kind not in ONCE)

    def ask_data(self, op, command, resume):
        world = self.world
        data = world.data
        stale = data.view(self, data.owner[data.slot(command.key)])
        kind = command.function
        arguments = command.arguments()
        add = op.add
        if kind == "put":
            world.oracle.sent(command, add)

        def execute():
            raw = data.call(stale, kind, command.key, arguments)
            if raw is not None:
                world.oracle.data_called(stale, command, raw, add)
            return raw

        world.send(self, data.slot(command.key), kind, execute, resume, kind not in ONCE)

    def ask_all(self, op, request, sent):
        answers = [None] * len(request.commands)
        missing = [len(answers)]

        def one(number):
            def resume(raw):
                now = self.clock()
                answers[number] = Lost(now) if raw is None else Answer(sent, now, raw)
                missing[0] -= 1
                if not missing[0]:
                    self.step(op, Answer(sent, now, b"", tuple(answers)))

            return resume

        for number, command in enumerate(request.commands):
            self.ask_data(op, command, one(number))

    def wait(self, request, resume):
        world = self.world
        over = [False]

        def end(raw):
            if not over[0]:
                over[0] = True
                resume(raw)

        self.at(max(world.now, self.true_time(request.until)), end, b"")
        if request.wake:
            log = world.log
            server = log.view(self)

            def tell(epoch):
                if not world.loses(self, "log"):
                    self.at(world.now + world.delay("wake"), end, epoch)

            if not world.loses(self, "log"):
                world.at(world.now + world.delay("wake"), log.listen, server, request.wake, tell)

    def ask_identities(self, resume):
        """The layout, then each server; of the primaries as the cluster's majority knows them."""
        world = self.world
        data = world.data

        def layout():
            return data.layout

        def servers(word):
            if word is None:
                resume(None)
                return
            world.send(self, "log", "identities", lambda: [word, *data.identities()], known, True)

        def known(raw):
            if raw is not None:
                self.identities = raw[1:]
            resume(raw and [b"%d" % raw[0], *raw[1:]])

        world.send(self, "log", "identities", layout, servers, True)

    def raise_fences(self, request, resume):
        world = self.world
        data = world.data
        replies = []
        slots = range(len(data.owner))

        def one(raw):
            replies.append(raw)
            if len(replies) == len(slots):
                if None in replies:
                    resume(None)
                else:
                    refused = [fence for raised, fence in replies if not raised]
                    resume(max(refused, key=lambda fence: int(fence.partition(b":")[0] or 0), default=b""))

        for slot in slots:
            stale = data.view(self, data.owner[slot])
            world.send(self, slot, "fences", self._raiser(request, slot, stale), one, True)

    def _raiser(self, request, slot, stale):
        data = self.world.data

        def execute():
            server = stale or data.shards[data.owner[slot]]
            named = server.model.identity if data.knows(request.identities, server, slot) else b"?"
            return data.call_slot(server, stale, slot, request.stamp, named)

        return execute

    def scan(self, build, resume):
        """Every key of every server, in pages; a page of a server that `Identities` did not name counts for nothing."""
        world = self.world
        data = world.data
        replies = []
        pages = [(server.shard, page) for server in data.servers() for page in range(N_PAGES)]

        def one(raw):
            replies.append(raw)
            if raw is not None:
                build.scanned(raw)
            if len(replies) == len(pages):
                resume(None if None in replies else b"")

        def reader(shard, page):
            stale = data.view(self, shard)

            def execute():
                server = stale or data.shards[shard]
                if stale is not None and world.now >= stale.dead_at:
                    return None
                if server.model.identity not in identities_of(self.identities):
                    return None
                return [key for key in server.model.values if key[-1] // len(data.owner) % N_PAGES == page]

            return execute

        for shard, page in pages:
            world.send(self, shard, "scan", reader(shard, page), one, True)

    # --- what a guard does by itself

    def tend(self):
        """At each renewal: load, renew, rebuild, as a driver would."""
        world = self.world
        r = world.random
        plan = world.plan
        core = self.core
        self.at(world.now + plan.renewal * r.randint(8, 12) // 10, self.tend)
        if not self.reads:
            if core.owes:
                self.once("flush", lambda: writing.flush(core))
            return
        if core.wants_load:
            self.once("load", lambda: reading.load(core), self.loaded)
        if core.copy is not None:
            self.once("renew", lambda: reading.renew(core))
        if self.empty or core.rebuild_due or (not self.deaf and r.random() < plan.rebuilds):
            self.once("rebuild", lambda: building.rebuild(core, SimBuild(world)))
        if core.copy is not None and not self.deaf and r.random() < plan.checkpoints:
            self.once("checkpoint", lambda: building.checkpoint(core))

    def loaded(self, result, error):
        self.empty = result is False
        if result:
            self.once("renew", lambda: reading.renew(self.core))

    # --- traffic

    def act(self):
        """One operation of an application, then the next."""
        world = self.world
        if self.deaf:
            return
        r = world.random
        plan = world.plan
        self.at(world.now + r.randint(0, 2 * plan.think), self.act)
        roll = r.random()
        if roll < 0.4:
            self.get(r.choice(world.traffic))
        elif roll < 0.4 + 0.6 * plan.deletes:
            self.delete(self.some_keys())
        else:
            self.put(self.some_keys(), r.randint(50, 2000) if r.random() < plan.expiry else 0)

    def some_keys(self):
        world = self.world
        r = world.random
        if len(world.traffic) > 1 and r.random() < world.plan.batches:
            return r.sample(world.traffic, 2)
        return [r.choice(world.traffic)]

    def put(self, keys, px=0, then=None):
        world = self.world
        items = [(key, world.value()) for key in keys]
        if world.tracing:
            world.say(f"{self.name.decode()} put {items} px={px}")

        def over(result, error):
            if error is None:
                world.oracle.put_returned(items)
            if then is not None:
                then(error)

        if len(items) == 1:
            self.start("put", writing.put(self.core, *items[0], px), over)
        else:
            self.start("put", writing.put_many(self.core, items, px), over)

    def delete(self, keys):
        if self.world.tracing:
            self.world.say(f"{self.name.decode()} delete {keys}")
        if len(keys) == 1:
            self.start("delete", writing.delete(self.core, keys[0]))
        else:
            self.start("delete", writing.delete_many(self.core, keys))

    def get(self, key):
        """Ask whether absent may be said, take the copy, probe: other operations may come between."""
        world = self.world
        r = world.random
        owed = world.oracle.owed(key)
        valid = self.core.answers(self.clock())
        gap = r.choice((0, 0, r.randint(0, 3 * MS), r.randint(0, 500 * MS)))
        early = self.core.copy if r.random() < 0.5 else None
        self.at(world.now + gap, self.probe, key, owed, valid, early)

    def probe(self, key, owed, valid, early):
        world = self.world
        copy = early or self.core.copy
        if valid and copy is not None and not copy.replica.maybe(key):
            world.oracle.denied(self, key, owed)
        elif world.random.random() < world.plan.absent:
            self.read(key)

    def read(self, key):
        """Read the engine; what it does not have enters the set of absent keys."""
        world = self.world
        data = world.data
        core = self.core
        note = core.note(key)
        if note is None:
            return
        stale = data.view(self, data.owner[data.slot(key)])

        def entered(raw):
            if raw is None:
                return
            found, primary = raw
            if not found and primary and core.may_enter(key, note):
                note.copy.replica.absent.add(key)

        world.send(self, data.slot(key), "read", lambda: data.call(stale, "read", key, []), entered, True)


def writing_keys(command):
    """The keys of an add."""
    from dlbf.storage.fleet.records import decode

    return decode(command.record)[1].keys
