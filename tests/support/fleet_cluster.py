"""Servers of the simulator: the models of `fleet_servers`, which are replaced by replicas with an older state.

What a server that was replaced still answers, hosts that have not noticed believe for a while.
"""

from support.fleet_plan import MS, SECOND
from support.fleet_servers import DataModel, LogModel


class LogServer:
    """One process with the log; ``dead_at`` is set when another one replaces it."""

    def __init__(self, model):
        self.model = model
        self.dead_at = None
        self.listeners = {}  # position of an add -> what to call with the epoch
        self.followers = []  # indices of hosts that believe in it though it was replaced


class LogCluster:
    """The log's primary, and those before it that still answer."""

    def __init__(self, world):
        self.world = world
        self.count = 0
        self.primary = self._start(None)
        self.stale = []

    def _start(self, state):
        self.count += 1
        durable = self.world.plan.settings.durable
        return LogServer(LogModel(b"L%d" % self.count, state, durable))

    def view(self, host):
        """The server a host believes to be the primary."""
        for server in self.stale:
            if self.world.now < server.dead_at and host.index in server.followers:
                return server
        return self.primary

    def call(self, server, command):
        """What a server answers; None if it is gone."""
        world = self.world
        if server.dead_at is not None and world.now >= server.dead_at:
            return None
        model = server.model
        raw = model.call(command.function, command.arguments())
        world.oracle.log_called(server, command, raw)
        if model.state.wakes and server.listeners:
            for position in [one for one in model.state.wakes if one in server.listeners]:
                server.listeners.pop(position)(model.state.wakes.pop(position))
        return raw

    def listen(self, server, position, tell):
        """Call ``tell`` with the epoch when every lease has acknowledged a position."""
        if server.dead_at is not None and self.world.now >= server.dead_at:
            return
        wakes = server.model.state.wakes
        if position in wakes:
            tell(wakes.pop(position))
        else:
            server.listeners[position] = tell

    def fail_over(self, state):
        """A replica with this state, older perhaps, becomes primary."""
        world = self.world
        settings = world.plan.settings
        old = self.primary
        if settings.durable:
            state = old.model.state  # nothing that was acknowledged is lost, and the old one can acknowledge nothing
        self.primary = self._start(state.copy())
        old.dead_at = world.now + (0 if settings.durable else world.random.randint(0, settings.old_primary))
        for host in world.hosts:
            if world.random.random() < 0.5:
                old.followers.append(host.index)
        self.stale = [one for one in self.stale if one.dead_at > world.now]
        self.stale.append(old)
        world.say(f"log fails over from {old.model.epoch} to {self.primary.model.identity}")


class DataServer:
    """One process with data; ``undo`` has what each change replaced, newest last."""

    def __init__(self, shard, model):
        self.shard = shard
        self.model = model
        self.undo = []
        self.dead_at = None
        self.followers = []


class DataCluster:
    """Shards with slots that move, and the primaries of each."""

    def __init__(self, world):
        self.world = world
        plan = world.plan
        n = plan.n_shards + plan.new_servers
        self.started = [0] * n
        self.shards = [self._start(shard, {}, {}) for shard in range(n)]
        self.stale = []
        self.owner = [slot % plan.n_shards for slot in range(plan.n_slots)]
        self.moving = {}  # slot -> shard it moves to
        self.layout = 1
        self.deadlines = {}  # value -> time from which it is not there any more

    def _start(self, shard, values, fences):
        self.started[shard] += 1
        identity = b"D%d.%d" % (shard, self.started[shard])
        return DataServer(shard, DataModel(identity, values, fences))

    def slot(self, key):
        return key[-1] % len(self.owner)

    # --- who has what

    def purge(self, server, key):
        """Take away what has expired."""
        value = server.model.values.get(key)
        if value is not None and value in self.deadlines and self.deadlines[value] <= self.world.now:
            del server.model.values[key]
            if server is self.holder(key):
                self.world.oracle.key_changed(key)

    def holder(self, key):
        """The server that has a key, or would."""
        slot = self.slot(key)
        source = self.shards[self.owner[slot]]
        if slot in self.moving and key not in source.model.values:
            return self.shards[self.moving[slot]]
        return source

    def present(self, key):
        server = self.holder(key)
        self.purge(server, key)
        return key in server.model.values

    def view(self, host, shard):
        """A server that was replaced and that a host still talks to; None for the primary."""
        for server in self.stale:
            if server.shard == shard and host.index in server.followers and self.world.now < server.dead_at:
                return server
        return None

    def _route(self, function, key):
        """The server that runs a function on a key; None while the key and its slot's fence are apart."""
        slot = self.slot(key)
        source = self.shards[self.owner[slot]]
        if slot not in self.moving:
            return source
        target = self.shards[self.moving[slot]]
        if function not in ("put", "raise_fence"):
            return source if key in source.model.values else target
        fence = self.fence(slot)
        here = (key in source.model.values) + (fence in source.model.fences)
        if here == 2:
            return source
        there = key in target.model.values and fence in target.model.fences
        return target if here == 0 and there else None

    @staticmethod
    def fence(slot):
        return b"f%d" % slot

    # --- calls

    def call(self, stale, function, key, arguments):
        """What a server answers to a function; None if none does.  ``stale`` is what `view` said when it was sent."""
        world = self.world
        if stale is not None:
            if world.now >= stale.dead_at:
                return None
            server = stale
        else:
            server = self._route(function, key)
            if server is None:
                return None
        self.purge(server, key)
        model = server.model
        fence = self.fence(self.slot(key))
        value = model.values.get(key)
        stamp = model.fences.get(fence)
        if function == "put" and not world.plan.settings.fenced:
            model.values[key] = arguments[0]
            raw = [1, int(value is not None), model.identity, b""]
        elif function == "read":
            raw = [int(value is not None), int(stale is None)]
        else:
            raw = model.call(function, key, fence, arguments)
        if model.values.get(key) is not value:
            server.undo.append((world.now, 0, key, value))
        if model.fences.get(fence) is not stamp:
            server.undo.append((world.now, 1, fence, stamp))
        return raw

    def expires(self, value, px):
        if px:
            self.deadlines[value] = self.world.now + px * MS

    # --- faults

    def fail_over(self, shard, lag):
        """A replica that is ``lag`` behind becomes primary."""
        world = self.world
        old = self.shards[shard]
        states = (dict(old.model.values), dict(old.model.fences))
        for when, which, key, before in reversed(old.undo):
            if when <= world.now - lag:
                break
            if before is None:
                states[which].pop(key, None)
            else:
                states[which][key] = before
        foreign = [slot for slot, owner in enumerate(self.owner) if shard not in (owner, self.moving.get(slot))]
        for slot in foreign:  # servers drop what they have of slots that others own
            states[1].pop(self.fence(slot), None)
            for key in [key for key in states[0] if self.slot(key) == slot]:
                del states[0][key]
        self.shards[shard] = self._start(shard, *states)
        old.dead_at = world.now + world.random.randint(0, world.plan.stale_data)
        for host in world.hosts:
            if world.random.random() < 0.5:
                old.followers.append(host.index)
        self.stale = [one for one in self.stale if one.dead_at > world.now]
        self.stale.append(old)
        world.say(f"data server {old.model.identity} -> {self.shards[shard].model.identity}, {lag / MS:.0f} ms behind")
        world.oracle.data_replaced()

    def move(self, slot, target):
        """Begin to move a slot, a key at a time, its fence somewhere between them."""
        world = self.world
        if slot in self.moving or target == self.owner[slot]:
            return
        self.moving[slot] = target
        self.layout += 1
        world.say(f"slot {slot} begins to move from shard {self.owner[slot]} to {target}")
        pace = world.random.choice((0, 5 * MS, 100 * MS))
        world.at(world.now + pace, self._move_some, slot, pace)

    def _move_some(self, slot, pace):
        world = self.world
        target = self.shards[self.moving[slot]].model
        source = self.shards[self.owner[slot]].model
        fence = self.fence(slot)
        left = [(0, key) for key in source.values if self.slot(key) == slot]
        if fence in source.fences:
            left.append((1, fence))
        if left:
            which, key = world.random.choice(left)
            self._carry(self.shards[self.owner[slot]], self.shards[self.moving[slot]], which, key)
            self.layout += 1
            world.at(world.now + pace, self._move_some, slot, pace)
        else:
            self.owner[slot] = self.moving.pop(slot)
            self.layout += 1
            world.say(f"slot {slot} has moved to {target.identity}")
        world.oracle.data_replaced()

    def _carry(self, source, target, which, key):
        now = self.world.now
        giving, taking = ((source.model.values, target.model.values), (source.model.fences, target.model.fences))[which]
        source.undo.append((now, which, key, giving[key]))
        target.undo.append((now, which, key, taking.get(key)))
        taking[key] = giving.pop(key)

    # --- what builders ask

    def counted(self, generation, key):
        """Whether a generation read a key's slot from the server that has it."""
        return self.holder(key).model.identity == self.owner_in(generation.places, key)

    def identities(self):
        """Servers, each with its slots."""
        found = []
        for server in self.servers():
            slots = [b"%d" % slot for slot, owner in enumerate(self.owner) if owner == server.shard]
            found.append(server.model.identity + b" " + b",".join(slots))
        return sorted(found)

    def owner_in(self, places, key):
        """The server that had a key's slot, by what `identities` said."""
        slot = b"%d" % self.slot(key)
        return next(place.partition(b" ")[0] for place in places if slot in place.partition(b" ")[2].split(b","))

    @staticmethod
    def knows(identities, server, slot):
        """Whether a server is among those that a builder was told of."""
        return server.model.identity in identities

    def call_slot(self, server, stale, slot, stamp, identity):
        """Raise the fence of a slot; None if the server is gone."""
        if stale is not None and self.world.now >= stale.dead_at:
            return None
        fence = self.fence(slot)
        before = server.model.fences.get(fence)
        raw = server.model.call("raise_fence", b"", fence, [stamp, identity])
        if server.model.fences.get(fence) is not before:
            server.undo.append((self.world.now, 1, fence, before))
        return raw

    def servers(self):
        """The servers that have slots, or get one."""
        shards = sorted({*self.owner, *self.moving.values()})
        return [self.shards[one] for one in shards]


def lag_of(world):
    """How far a replica is behind when it becomes primary."""
    r = world.random
    return r.choice((0, r.randint(0, 50 * MS), r.randint(0, SECOND), r.randint(0, 4 * SECOND)))
