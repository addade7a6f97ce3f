"""Models of the two server libraries, exact to the reply: what Lua must answer, in Python.

`LogModel.call` and `DataModel.call` take what a driver sends behind the keys and give what a client library returns.
The order of lists is part of the reply: leases by name, open adds and records by position.
"""

import copy
from dataclasses import dataclass, field


@dataclass
class Lease:
    counter: int
    acked: int
    ttl_ms: int
    label: bytes


@dataclass
class Checkpoint:
    upload: bytes = b""
    position: int = 0
    meta: bytes = b""


@dataclass
class LogState:
    """What the keys of one log hold: all of it is replicated, and may be lost."""

    number: int = 0
    identity: bytes = b""
    nonce: bytes = b""
    settled: int = 0
    head: int = 0
    generation: int = 0
    end_position: int = 0
    ttl_ms: int = 0
    trimmed: int = 0  # records up to here are gone
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    log: dict[int, bytes] = field(default_factory=dict)
    leases: dict[bytes, Lease] = field(default_factory=dict)
    open: dict[int, bytes] = field(default_factory=dict)
    begins: dict[int, bytes] = field(default_factory=dict)
    uploads: dict[bytes, dict[int, tuple[bytes, bytes]]] = field(default_factory=dict)
    waits: dict[int, bytes] = field(default_factory=dict)
    wakes: dict[int, bytes] = field(default_factory=dict)
    torn: bool = False  # one of the keys was lost alone

    def copy(self):
        """What a replica has at this moment."""
        other = copy.copy(self)
        other.checkpoint = copy.copy(self.checkpoint)
        other.log = dict(self.log)
        other.leases = {name: copy.copy(one) for name, one in self.leases.items()}
        other.open = dict(self.open)
        other.begins = dict(self.begins)
        other.uploads = {name: dict(chunks) for name, chunks in self.uploads.items()}
        other.waits = dict(self.waits)
        other.wakes = dict(self.wakes)
        return other


def owner_of(lease):
    return lease.rpartition(b".")[0]


def number_of(lease):
    return int(lease.rpartition(b".")[2])


class LogModel:
    """The library ``dlbf_log`` on one server process."""

    def __init__(self, identity, state=None, durable=False):
        self.identity = b"durable" if durable else identity
        self.state = state or LogState()
        self.begun = 0
        self.next_nonce = b""  # what a real server chose, where one is compared

    @property
    def epoch(self):
        return b"%d:%s.%s" % (self.state.number, self.state.identity, self.state.nonce)

    def call(self, function, arguments):
        """The reply to one function: six fields, and more if the epoch was right."""
        epoch, *rest = arguments
        state = self.state
        if state.number == 0 or state.identity != self.identity or state.torn:
            self.begin_epoch(state.number + 1)
        if epoch != self.epoch:
            return self.heading()
        result = getattr(self, f"do_{function}")(*rest)
        return self.heading() + result

    def heading(self):
        state = self.state
        return [self.epoch, state.settled, state.head, state.generation, state.end_position, self.floor()]

    def floor(self):
        return min((lease.acked for lease in self.state.leases.values()), default=self.state.head)

    def begin_epoch(self, number):
        old = self.state
        self.begun += 1
        nonce = self.next_nonce or b"%d" % self.begun
        self.state = LogState(number=number, identity=self.identity, nonce=nonce, ttl_ms=old.ttl_ms)

    # --- helpers

    def append(self, record):
        state = self.state
        state.head += 1
        state.log[state.head] = record
        return state.head

    def records(self, after, limit):
        log = self.state.log
        flat = []
        for position in range(after + 1, self.state.head + 1):
            if len(flat) >= 2 * limit:
                break
            if position in log:
                flat += [position, log[position]]
        return flat

    def rows(self):
        flat = []
        for name, lease in sorted(self.state.leases.items()):
            flat += [name, lease.counter, lease.acked, lease.ttl_ms]
        return flat

    def adds(self):
        flat = []
        for position, record in sorted(self.state.open.items()):
            flat += [position, record]
        return flat

    def least(self, owner):
        """What every lease but those of one owner has acknowledged; None without any."""
        return min((one.acked for name, one in self.state.leases.items() if owner_of(name) != owner), default=None)

    def wake(self):
        state = self.state
        for position, owner in list(state.waits.items()):
            least = self.least(owner)
            if least is None or least >= position:
                del state.waits[position]
                state.wakes[position] = self.epoch

    # --- functions

    def do_look(self, after, limit):
        state = self.state
        found = state.checkpoint
        begun = state.begins.get(state.generation, b"")
        records = self.records(after, limit)
        return [1, found.upload, found.position, found.meta, begun, self.adds(), records]

    def do_hello(self, lease, label, ttl_ms, acked, limit):
        state = self.state
        mine = [name for name in state.leases if owner_of(name) == owner_of(lease)]
        late = any(number_of(name) > number_of(lease) for name in mine)
        others = len(state.leases) > len(mine)
        if late or (others and state.ttl_ms != ttl_ms):
            return [0, state.ttl_ms]
        for name in mine:
            if name != lease:
                del state.leases[name]
        state.ttl_ms = ttl_ms
        before = state.leases.get(lease)
        counter = before.counter + 1 if before else 1
        acked = max(acked, before.acked) if before else acked
        state.leases[lease] = Lease(counter, acked, ttl_ms, label)
        self.wake()
        return [1, self.records(acked, limit)]

    def do_renew(self, lease, acked, limit, record, *done):
        self.finish(record, done)
        found = self.state.leases.get(lease)
        if found is None:
            return [0]
        found.counter += 1
        found.acked = max(found.acked, acked)
        self.wake()
        return [1, self.records(acked, limit)]

    def do_add(self, owner, record):
        state = self.state
        position = self.append(record)
        state.open[position] = record
        least = self.least(owner)
        if least is not None and least < position:
            state.waits[position] = owner
        return [1, position, self.rows()]

    def do_leases(self):
        return [1, self.rows()]

    def do_revoke(self, lease, counter):
        found = self.state.leases.get(lease)
        if found is None or found.counter != counter:
            return [0]
        del self.state.leases[lease]
        self.wake()
        return [1]

    def do_done(self, record, *done):
        self.finish(record, done)
        return [1]

    def finish(self, record, done):
        found = [position for position in done if self.state.open.pop(position, None) is not None]
        if found:
            self.append(record)

    def do_remove(self, generation, record):
        if generation != self.state.generation or not generation:
            return [0]
        return [1, self.append(record)]

    def do_begin(self, record):
        if not self.state.settled:
            return [0]
        adds = self.adds()
        generation = self.append(record)
        self.state.begins[generation] = record
        return [1, generation, adds]

    def do_put_chunk(self, upload, number, data, checksum):
        self.state.uploads.setdefault(upload, {})[number] = (data, checksum)
        return [1]

    def do_chunk(self, upload, number):
        found = self.state.uploads.get(upload, {}).get(number)
        return [0] if found is None else [1, *found]

    def do_end(self, generation, position, upload, meta, record):
        state = self.state
        if generation not in state.begins or generation <= state.generation or position < state.trimmed:
            return [0]
        state.generation = generation
        self.keep(upload, position, meta)
        state.begins = {one: begun for one, begun in state.begins.items() if one >= generation}
        state.end_position = self.append(record)
        return [1, state.end_position]

    def keep(self, upload, position, meta):
        """The checkpoint before stays for a minute (drivers of slow hosts may be loading it); here for ever."""
        self.state.checkpoint = Checkpoint(upload, position, meta)

    def do_checkpoint(self, generation, position, upload, meta):
        state = self.state
        if not generation or generation != state.generation or position <= state.checkpoint.position:
            return [0]
        self.keep(upload, position, meta)
        return [1]

    def do_trim(self, position):
        state = self.state
        last = min(position, state.checkpoint.position, state.head)
        state.trimmed = max(state.trimmed, last)
        for one in [one for one in state.log if one <= last]:
            del state.log[one]
        return [1]

    def do_settle(self):
        self.state.settled = 1
        return [1]

    def do_new_epoch(self, at_least):
        if self.state.number >= at_least:
            return [0]
        self.begin_epoch(at_least)
        return [1]


class DataModel:
    """The library ``dlbf_data`` on one server process; ``values`` and ``fences`` are replicated, and may be lost."""

    def __init__(self, identity, values=None, fences=None):
        self.identity = identity
        self.values = {} if values is None else values
        self.fences = {} if fences is None else fences

    def call(self, function, key, fence, arguments):
        """The reply to one function on a key and the fence of its slot."""
        return getattr(self, f"do_{function}")(key, fence, *arguments)

    def do_put(self, key, fence, value, stamp, px):
        found = self.fences.get(fence, b"")
        if found != stamp + b"@" + self.identity:
            return [0, 0, self.identity, found]
        existed = int(key in self.values)
        self.values[key] = value
        return [1, existed, self.identity, found]

    def do_replace(self, key, fence, value, px, *identities):
        if key not in self.values or self.identity not in identities:
            return [0, self.identity]
        self.values[key] = value
        return [1, self.identity]

    def do_delete(self, key, fence):
        return [int(self.values.pop(key, None) is not None), self.identity]

    def do_raise_fence(self, key, fence, stamp, identity):
        found = self.fences.get(fence, b"")
        older = int(found.partition(b":")[0] or 0) < int(stamp.partition(b":")[0])
        if self.identity != identity or not (older or found.rpartition(b"@")[0] == stamp):
            return [0, found]
        self.fences[fence] = stamp + b"@" + self.identity
        return [1, self.fences[fence]]
