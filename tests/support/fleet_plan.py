"""What one seed of the simulator does: how many hosts, which engine, which faults, how often."""

import random
from dataclasses import dataclass, field

from dlbf.storage.fleet.host import Settings

MS = 1_000_000
SECOND = 1000 * MS

# Requests that one seed may hold up far longer than a lease: where a rule protects a gap between two steps, the gap
# has to be long now and then.
HOLDABLE = (
    "put",
    "replace",
    "delete",
    "raise_fence",
    "add",
    "remove",
    "done",
    "renew",
    "hello",
    "look",
    "chunk",
    "leases",
    "revoke",
    "begin",
    "end",
    "scan",
    "identities",
    "fences",
    "read",
    "settle",
    "wake",
)


@dataclass
class Plan:
    """Everything that is drawn before the first event."""

    seed: int
    settings: Settings
    n_hosts: int
    n_keys: int
    n_shards: int
    n_slots: int
    layered: bool  # replicas have a base that never changes, with false positives; or only counts
    false_positives: float
    active: int  # when faults and traffic end
    think: int  # mean time between two operations of a host
    renewal: int  # time between two renewals
    timeout: int  # after which a request counts as lost
    slow: float  # share of messages that take long
    held: dict[str, float] = field(default_factory=dict)  # share of messages of one kind that take very long
    loss: float = 0.0
    doubled: float = 0.0
    expiry: float = 0.0
    absent: float = 0.0  # share of gets that read the engine and may enter the set of absent keys
    batches: float = 0.0
    deletes: float = 0.3
    rebuilds: float = 0.0  # by whim, at each renewal
    checkpoints: float = 0.0
    trims: bool = True
    writers_only: int = 0
    drift: int = 0  # parts in a million, at most
    crashes: int = 0
    pauses: int = 0
    cuts: int = 0
    log_failovers: int = 0
    data_failovers: int = 0
    together: bool = False  # fail-overs of log and data happen at about the same time
    moves: int = 0  # of slots
    new_servers: int = 0  # data servers that come without slots
    vague: float = 0.0  # share of keys that a writer's filter lets pass, whatever it holds
    stale_data: int = 0  # how long a data server that was replaced goes on answering


def draw(seed: int) -> Plan:
    """The plan of a seed.  Each has only some kinds of faults: what hides a mistake is often another fault."""
    r = random.Random(seed)
    chance = r.random
    ttl = SECOND
    margin = 100 * MS
    engine = r.choices(("fenced", "durable", "both", "limited"), (75, 8, 5, 12))[0]
    settings = Settings(
        ttl=ttl,
        margin=margin,
        old_primary=r.choice((0, 300 * MS, 900 * MS)),
        strict=chance() < 0.75,
        durable=engine in ("durable", "both"),
        fenced=engine in ("fenced", "both"),
        put_limit=700 * MS,
        replaces=chance() < 0.9,
        tells=chance() < 0.9,
        tries=r.choice((2, 5)),
    )
    n_keys = r.choice((1, 1, 2, 2, 3, 5))
    n_shards = r.choice((1, 1, 2, 3))
    plan = Plan(
        seed=seed,
        settings=settings,
        n_hosts=r.choice((2, 2, 3, 3, 4)),
        n_keys=n_keys,
        n_shards=n_shards,
        n_slots=r.choice((1, 2, 3)) if n_shards == 1 else r.choice((n_shards, n_shards + 1)),
        layered=chance() < 0.4,
        false_positives=r.choice((0.0, 0.3)),
        active=r.choice((4, 6, 8)) * SECOND,
        think=r.choice((60, 150, 400)) * MS,
        renewal=r.choice((100, 250, 400)) * MS,
        timeout=r.choice((150, 400, 900)) * MS,
        slow=r.choice((0.0, 0.02, 0.15)),
        deletes=r.choice((0.1, 0.3, 0.45)),
        drift=r.choice((0, 0, 44_000)),
    )
    for kind in r.sample(HOLDABLE, r.choice((0, 0, 1, 1, 2, 3))):
        plan.held[kind] = r.choice((0.1, 0.4))
    if chance() < 0.35:
        plan.loss = r.choice((0.01, 0.06))
    if chance() < 0.35:
        plan.doubled = r.choice((0.03, 0.15))
    if chance() < 0.25:
        plan.expiry = 0.4
    if chance() < 0.5:
        plan.absent = 1.0
    if chance() < 0.3:
        plan.batches = 0.4
    if chance() < 0.6:
        plan.rebuilds = r.choice((0.02, 0.1))
    if chance() < 0.35:
        plan.checkpoints = 0.1
    if chance() < 0.3:
        plan.writers_only = 1
    if chance() < 0.3:
        plan.crashes = r.choice((1, 2, 4))
    if chance() < 0.45:
        plan.pauses = r.choice((1, 3, 6))
    if chance() < 0.3:
        plan.cuts = r.choice((1, 3))
    if chance() < 0.4:
        plan.log_failovers = r.choice((1, 1, 2, 3))
    if chance() < 0.4:
        plan.data_failovers = r.choice((1, 2, 4))
        plan.stale_data = r.choice((0, 0, 300 * MS, 1500 * MS))
    plan.together = chance() < 0.4
    if chance() < 0.3:
        plan.moves = r.choice((1, 3, 6))
        plan.new_servers = r.choice((0, 1))
    if chance() < 0.5:
        plan.vague = 0.5
    return plan
