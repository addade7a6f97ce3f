"""What operators see of a host among many."""

from dataclasses import asdict, dataclass
from typing import ClassVar

from dlbf.storage.fleet.servers import HostRow
from dlbf.storage.report import NeedlessReads

__all__ = ["FleetFigures", "FleetStats"]


@dataclass(frozen=True)
class FleetFigures:
    """What a host of many knows; see ``FleetStats.fleet``.

    Attributes
    ----------
    host : str
        This host's name in the log; leases are called after it.
    consistency : str
        "strict" or "bounded".
    lease_left_seconds : float
        How long "absent" may still be said without another word of the log; 0: it may not.
    epoch : int
        The log's; it rises when the log's server is replaced.
    head, position : int
        The newest record heard of, and the last one that this host's filter has.
    generation : int
        The filter's.
    hosts : tuple of HostRow
        Who holds a lease, and how far each is; empty if the log does not answer.
    waits : int
        How often a put waited for other hosts.
    waited_seconds : float
        How long in all.
    waited_for : dict
        Seconds that puts of this host waited, by the leases they waited for.
    lapsed : dict
        Leases that this host took away because they stood still, and how often.
    foreign : int
        Keys that ``watch_foreign_writes`` found in the engine though nobody announced them.
    reason : str
        Why reads pass through at this moment; empty: they do not.
    """

    host: str
    consistency: str
    lease_left_seconds: float
    epoch: int
    head: int
    position: int
    generation: int
    hosts: tuple[HostRow, ...]
    waits: int
    waited_seconds: float
    waited_for: dict[str, float]
    lapsed: dict[str, int]
    foreign: int
    reason: str


@dataclass(frozen=True)
class FleetStats:
    """The figures of a guard among many hosts: those of every guard (``Stats``), and ``fleet``.

    What only a filter on disk has is 0.  Counts of lookups are those of this process since it opened the guard.
    """

    keys: int
    filter_bytes: int
    lookups: int
    filtered: int
    false_positives: int
    unfiltered: int
    fpr_target: float
    state: str
    reason: str
    capacity: int
    generation: int
    last_txn: int
    design: str
    fleet: FleetFigures

    model_bytes: ClassVar[int] = 0
    model: ClassVar[str] = "none"
    journal_records: ClassVar[int] = 0
    journal_bytes: ClassVar[int] = 0
    checkpoint_txn: ClassVar[int] = 0
    map_size: ClassVar[int] = 0
    map_used: ClassVar[int] = 0
    map_use: ClassVar[float] = 0.0
    file_bytes: ClassVar[int] = 0
    misses: ClassVar[int] = 0
    remembered: ClassVar[int] = 0
    layers: ClassVar[None] = None

    @property
    def readers(self) -> int:
        """Hosts that hold a lease."""
        return len(self.fleet.hosts)

    @property
    def needless_reads(self) -> NeedlessReads:
        """Reads of keys that were not there."""
        return NeedlessReads(ordinary=self.false_positives)

    @property
    def bits_per_key(self) -> float:
        """Bits of filter per key."""
        return 8 * self.filter_bytes / self.keys if self.keys else float("nan")

    @property
    def observed_fpr(self) -> float:
        """Share of lookups of absent keys that the filter let through (NaN before the first one)."""
        absent = self.filtered + self.false_positives
        return self.false_positives / absent if absent else float("nan")

    def asdict(self) -> dict[str, object]:
        """All figures, for a machine."""
        return asdict(self) | {"bits_per_key": self.bits_per_key, "observed_fpr": self.observed_fpr}
