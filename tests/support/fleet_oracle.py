"""What must hold after every step of the simulator: the promise, and what FLEET's proof rests on."""

from dlbf.storage.fleet.records import Add, Begin, Done, End, Remove, decode


class Violation(AssertionError):
    """The protocol broke a promise or an invariant."""


class SimReplica:
    """A filter without collisions: counts, perhaps over a base that lets everything pass that it knew."""

    __slots__ = ("absent", "base", "counts", "generation")

    def __init__(self, generation, base, counts):
        self.generation = generation
        self.base = base
        self.counts = counts
        self.absent = set()

    def apply(self, position, record):
        if record is None:
            return
        counts = self.counts
        if isinstance(record, Add):
            for key in record.keys:
                self.absent.discard(key)
                if key not in self.base:
                    counts[key] = counts.get(key, 0) + 1
        else:
            for key in record.keys:
                if key not in self.base:
                    counts[key] = counts.get(key, 0) - 1
                    if counts[key] < 0:
                        raise Violation(f"count of {key!r} below zero in generation {self.generation} at {position}")

    def maybe(self, key):
        return (key in self.base or self.counts.get(key, 0) > 0) and key not in self.absent


class Audit:
    """What a perfect reader of one log server knows: every record of its epoch, and a replica of each generation."""

    def __init__(self, epoch):
        self.epoch = epoch
        self.head = 0
        self.generation = 0
        self.replica = None


class Oracle:
    """Watches servers and hosts from outside."""

    def __init__(self, world):
        self.world = world
        plan = world.plan
        self.strict = plan.settings.strict
        self.exact = plan.settings.exact
        self.ttl = plan.settings.ttl
        self.keys = world.keys
        self.audits = {}
        self.adds = {}  # (epoch, position) -> keys, of every add that a log server took
        self.used = set()  # (epoch, position, key) of every SET that was sent
        self.removed = {}  # key -> remove records of it
        self.vanished = {}  # key -> deletions and overwritings that were reported
        self.there = dict.fromkeys(self.keys, False)
        self.since = {}  # key -> since when it is there
        self.lives = dict.fromkeys(self.keys, 0)  # how often it has vanished
        self.stored = {}  # value -> life of its key in which it was stored
        self.due = {}  # key -> since when nobody may say that it is absent
        self.dirty_keys = {}
        self.dirty_hosts = {}

    def fail(self, text):
        raise Violation(f"at {self.world.now / 1e6:.3f} ms: {text}")

    # --- the log

    def log_called(self, server, command, raw):
        function = command.function
        state = server.model.state
        if function == "revoke" and len(raw) > 6 and raw[6] == 1:
            self._revoked(command)
        audit = self.audits.get(raw[0])
        if audit is None:
            audit = self.audits[raw[0]] = Audit(raw[0])
        if function == "end" and len(raw) > 6 and raw[6] == 1:
            self._ended(audit, server)
        while audit.head < state.head:
            position = audit.head + 1
            self._recorded(audit, position, decode(state.log[position])[1])
            audit.head = position

    def _recorded(self, audit, position, record):
        if isinstance(record, Add):
            self.adds[audit.epoch, position] = record.keys
        elif isinstance(record, Remove):
            for key in record.keys:
                count = self.removed[key] = self.removed.get(key, 0) + 1
                if count > self.vanished.get(key, 0):
                    self.fail(f"more remove records of {key!r} than deletions")
            if record.generation != audit.generation:
                return
        elif isinstance(record, Begin | End | Done):
            return
        if audit.replica is not None:
            audit.replica.apply(position, record)

    def _ended(self, audit, server):
        """Each add without `done` is in the generation."""
        state = server.model.state
        found = state.checkpoint
        chunks = [state.uploads[found.upload][number][0] for number in range(len(state.uploads[found.upload]))]
        replica = self.world.replicas.load(state.generation, found.position, found.meta, chunks)
        audit.generation = state.generation
        audit.replica = replica
        for position in range(found.position + 1, audit.head + 1):
            if position in state.log:
                record = decode(state.log[position])[1]
                if isinstance(record, Add):
                    replica.apply(position, record)
        for position, data in state.open.items():
            for key in decode(data)[1].keys:
                if not replica.maybe(key):
                    self.fail(f"the add of {key!r} at {position} is open and not in generation {state.generation}")

    def _revoked(self, command):
        """No reader may believe in a lease that a writer took for lapsed."""
        for host in self.world.hosts:
            core = host.core
            if core.lease == command.lease and core.epoch == command.epoch and host.clock() < core.until:
                self.fail(f"the lease {command.lease!r} was revoked {core.until - host.clock()} ns too early")

    # --- data

    def key_changed(self, key):
        there = self.world.data.present(key)
        if there == self.there[key]:
            return
        self.there[key] = there
        if there:
            self.since[key] = self.world.now
            self.dirty_keys[key] = True
        else:
            self.lives[key] += 1
            self.due.pop(key, None)

    def data_replaced(self):
        for key in self.keys:
            self.key_changed(key)
            self.dirty_keys[key] = True

    def data_called(self, stale, command, raw, add):
        """A data server ran a command; ``add`` is what the operation had announced when it was sent."""
        key = command.key
        function = command.function
        if function == "put":
            if not raw[0]:
                return
            if raw[1]:
                self.vanished[key] = self.vanished.get(key, 0) + 1
            if stale is None:
                self._set(key, command, add)
        elif function == "delete":
            if raw[0]:
                self.vanished[key] = self.vanished.get(key, 0) + 1
                if stale is not None:
                    self.due.pop(key, None)  # its remove may be logged, though the primary has the key
        elif function != "replace" or not raw[0]:
            return
        if stale is None:
            self.key_changed(key)
            if function != "delete":
                self.stored[command.value] = self.lives[key]
                self.world.data.expires(command.value, command.px)

    def sent(self, command, add):
        """A SET leaves a host: each needs an add of its own."""
        if add is None or command.key not in add[2] or command.stamp != add[0]:
            self.fail(f"SET {command.key!r} was not announced")
        if (add[0], add[1], command.key) in self.used:
            self.fail(f"SET {command.key!r} was sent twice for the add at {add[1]}")
        self.used.add((add[0], add[1], command.key))

    def _set(self, key, command, add):
        epoch, position, _ = add
        if key not in self.adds.get((epoch, position), ()):
            self.fail(f"SET {key!r} without a record of its add")
        if not (self.strict and self.exact):
            return
        for host in self.world.hosts:
            core = host.core
            if core.answers(host.clock()) and (core.copy.epoch != epoch or core.copy.position < position):
                self.fail(f"SET {key!r} of add {position} in {epoch!r}: {core.name!r} answers and does not know of it")

    # --- operations

    def put_returned(self, items):
        for key, value in items:
            if self.stored.get(value) == self.lives[key] and self.world.data.present(key):
                self.due.setdefault(key, self.world.now)
                self.dirty_keys[key] = True
                if not self.strict:
                    self.world.at(self.world.now + self.ttl, self.mature, key)

    def mature(self, key):
        self.dirty_keys[key] = True

    def owed(self, key):
        """What says that a get that begins now must not deny a key; None if nothing does."""
        due = self.due.get(key)
        if due is None or (not self.strict and self.world.now < due + self.ttl):
            return None
        return self.lives[key]

    def denied(self, host, key, owed):
        """A get that began when ``owed`` said something has answered absent."""
        if owed is not None and self.world.data.present(key) and self.lives[key] == owed and key in self.due:
            self.fail(f"{host.core.name!r} denied {key!r}, which is stored")

    # --- after every step

    def check(self):
        if self.dirty_keys:
            for host in self.world.hosts:
                self._check(host, self.dirty_keys)
            self.dirty_keys = {}
        if self.dirty_hosts:
            for host in self.dirty_hosts:
                self._check(host, self.keys)
            self.dirty_hosts = {}

    def _check(self, host, keys):
        core = host.core
        copy = core.copy
        if copy is None or not core.answers(host.clock()):
            return
        if copy.epoch != core.epoch:
            self.fail(f"{core.name!r} answers with a generation of another epoch")
        maybe = copy.replica.maybe
        world = self.world
        for key in keys:
            if not self.there[key] or maybe(key):
                continue
            if not world.data.present(key):
                self.key_changed(key)
                continue
            if self.owed(key) is not None:
                self.fail(f"{core.name!r} would deny {key!r}, which is stored")
            late = self.strict or self.since[key] + self.ttl <= world.now
            if late and self.exact and world.data.counted(copy.generation, key):
                self.fail(f"{core.name!r} would deny {key!r}, which is there, though nobody was told yet")
