"""The expiring filter: entries leave by themselves when their time is over."""

import math
from datetime import timedelta
from typing import Self

from dlbf import format
from dlbf.errors import ChecksumError, FilterFullError, FormatError
from dlbf.filters.base import MAX_PAYLOAD_BYTES, Filter, check_count, check_target
from dlbf.filters.part import after_kill
from dlbf.filters.tables import PADDING_BYTES, CuckooFilter
from dlbf.geometry import (
    BUCKET_SLOTS,
    CUCKOO_MAX_FPR,
    MAX_PREFIXES,
    MAX_SUFFIX_BITS,
    CuckooGeometry,
    cuckoo_bucket_bits,
    cuckoo_fpr,
    cuckoo_geometry,
)
from dlbf.kernels.expiring import ENTRY_BYTES, HEAD_BYTES, MOST_TABLES, ExpiringCore, ManualClock, SystemClock
from dlbf.typenames import Key

__all__ = ["ExpiringFilter", "ManualClock"]

MOST_STEPS = (MOST_TABLES - 1) // 2
LEAST_TTL_NS = 1_000_000
MOST_TTL_NS = 10**18 * 4  # 126 years: no sum of times leaves 64 bits


def _in_ns(ttl: object) -> int:
    """A time to live in nanoseconds, or an error that says what is wrong with it."""
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"ttl must be seconds or a timedelta, found {ttl!r}")
    if not LEAST_TTL_NS <= seconds * 1e9 <= MOST_TTL_NS:
        raise ValueError(f"ttl must be between 0.001 and {MOST_TTL_NS // 10**9} seconds, found {ttl!r}")
    return round(seconds * 1e9)


def _step_ns(ttl_ns: int, steps: int) -> int:
    return -(-ttl_ns // steps)


def _places(n_tables: int, geometry: tuple[int, ...]) -> tuple[int, int]:
    """Where the tables begin, and how many bytes each has."""
    n_buckets, n_prefixes, suffix_bits = geometry
    n_bytes = -(-n_buckets * cuckoo_bucket_bits(n_prefixes, suffix_bits) // 8) + PADDING_BYTES
    return _line(HEAD_BYTES + ENTRY_BYTES * n_tables), _line(n_bytes)


def _line(n_bytes: int) -> int:
    return (n_bytes + 63) // 64 * 64


class ExpiringFilter(ExpiringCore, Filter):
    """A deletable filter whose entries leave by themselves: never before their time, and little after it.

    Parameters
    ----------
    capacity : int
        Number of entries to plan for: keys that are added within any period of ``ttl`` and one step.
    fpr : float
        False-positive rate with so many entries.
    ttl : float or datetime.timedelta
        Seconds that a key stays after it was added.
    steps : int
        Parts that ``ttl`` is divided into, up to 24.  An entry leaves at most ``ttl / steps`` late (``lateness``).
        More of them make questions slower, for there is a table for each.
    secret : bytes, optional
        16 bytes for the keyed hash, as for ``dlbf.BloomFilter``.
    filter_id : int
        Separates the positions of filters that share a hash.
    clock : dlbf.ManualClock, optional
        Where the time comes from instead of the system; the attribute ``clock`` can be set later, too.

    Notes
    -----
    *When entries leave.*  A key that was added at the time t answers "maybe" until t + ``ttl``, and leaves between then
    and t + ``ttl`` + ``lateness``.  Adding it again keeps it for longer; each addition is an entry of its own, of which
    four are counted in a step.  ``remove`` takes the entry that would leave first.  Remove only keys within their time:
    when it is over, the key may be gone, and another with the same fingerprint would be removed instead.  A key that
    was added more than three times within one step can no longer be removed from that step; it leaves with it.

    *Which time.*  The time of day when the filter is made or opened, and from then on a clock that nobody sets; so a
    running process does not notice when the time of day is changed.  Files hold times of day: opened after the clock
    was set forward, entries leave earlier by as much; after it was set back, the time stands still for the filter until
    it reaches the newest change in the file, and entries leave later by as much.  A file that is opened when all of its
    entries have lived their time is an empty filter.  A mapped file that is only read (``mode="r"``) ages in the same
    way.  Pickles, ``from_bytes`` and ``open_filter`` have the system's clock.  ``clear()`` forgets the newest change.

    It takes about twice the bytes of a ``dlbf.CuckooFilter``, so that all of its keys may come at once or evenly; when
    all tables are in use ``add`` raises ``dlbf.FilterFullError`` and nothing has changed.

    Examples
    --------
    >>> import dlbf
    >>> clock = dlbf.ManualClock(0)
    >>> f = ExpiringFilter(1000, 0.01, ttl=3600, clock=clock)
    >>> f.update(["anna", "bob"]); f.remove("bob"), "anna" in f, f.lateness
    (True, True, 450.0)
    >>> clock.advance(3600); "anna" in f, len(f)
    (True, 1)
    >>> clock.advance(450); "anna" in f, len(f)
    (False, 0)
    """

    KIND = format.KIND_EXPIRING
    PARAMS = ("ttl_ns", "steps", "n_tables", "table_room", "n_buckets", "n_prefixes", "suffix_bits")
    __hash__ = None

    def __init__(
        self,
        capacity: int | None = None,
        fpr: float = 0.01,
        *,
        ttl: float | timedelta,
        steps: int = 8,
        secret: bytes | None = None,
        filter_id: int = 0,
        clock: SystemClock | None = None,
    ) -> None:
        capacity, fpr = check_target(capacity, fpr)
        steps = check_count("steps", steps, 1, MOST_STEPS)
        room = -(-capacity // steps)
        # A table that is half full has half of its rate, so together they have what ``steps`` full ones have.
        geometry = cuckoo_geometry(room, min(fpr / steps, CUCKOO_MAX_FPR))
        # Each step may leave one table partly filled; there are entries of steps + 1 of them.
        self._create((_in_ns(ttl), steps, 2 * steps + 1, room, *geometry), capacity, fpr, secret, filter_id)
        if clock is not None:
            self.clock = clock

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        ttl_ns, steps, n_tables, room, n_buckets, n_prefixes, suffix_bits = params[3:]
        check_count("ttl_ns", ttl_ns, LEAST_TTL_NS, MOST_TTL_NS)
        check_count("steps", steps, 1, MOST_STEPS)
        check_count("n_tables", n_tables, 1, MOST_TABLES)
        check_count("table_room", room, 1, 1 << 42)
        check_count("n_buckets", n_buckets, 1, 1 << 40)
        check_count("n_prefixes", n_prefixes, 2, MAX_PREFIXES)
        check_count("suffix_bits", suffix_bits, 0, MAX_SUFFIX_BITS)
        at, n_bytes = _places(n_tables, params[7:])
        return check_count("payload bytes", at + n_tables * n_bytes, 1, MAX_PAYLOAD_BYTES)

    def _apply(self, params: tuple[int, ...]) -> None:
        ttl_ns, steps, n_tables, room, *geometry = params[3:]
        places = _places(n_tables, tuple(geometry))
        self._set_geometry(ttl_ns, _step_ns(ttl_ns, steps), n_tables, room, *places, *geometry)

    def _recovered_count(self) -> int:
        if torn := after_kill(CuckooFilter, self.geometry):
            raise ChecksumError(f"was being written and not closed; {torn}. Build it again")
        return int(self._recount())

    def _check_opened(self) -> None:
        if not self._head_is_sound():
            raise FormatError(f"the head of an {type(self).__name__} contradicts itself; build it again")
        self._set_items(self._stored())

    def _make_room(self, n_key_bytes: int) -> None:
        raise FilterFullError(
            f"no room for one more key: there are {len(self)} entries within their time of {self.ttl:g} s, and it was "
            f"planned for {self.capacity}; nothing was lost. Build a larger filter, or wait until some have left"
        )

    # --- what it is

    @property
    def ttl(self) -> float:
        """Seconds that a key stays after it was added."""
        return self._param("ttl_ns") / 1e9

    @property
    def steps(self) -> int:
        """Parts that the time to live is divided into."""
        return self._param("steps")

    @property
    def lateness(self) -> float:
        """Seconds that a key may stay longer, at most."""
        return _step_ns(self._param("ttl_ns"), self.steps) / 1e9

    @property
    def geometry(self) -> CuckooGeometry:
        """Buckets, prefixes, suffix bits of each table."""
        return CuckooGeometry(*self._params[7:])

    @property
    def fill(self) -> float:
        """Share of slots in use, of all tables."""
        return len(self) / (BUCKET_SLOTS * self.geometry.n_buckets * self._param("n_tables"))

    def approximate_count(self) -> int:
        """Number of entries that have not left (exact)."""
        return len(self)

    @property
    def expected_fpr(self) -> float:
        """False-positive rate that theory gives for as many entries as are stored now."""
        return 1 - math.prod(1 - cuckoo_fpr(n, *self.geometry) for n in self._entries())

    def count(self, key: Key) -> int:
        """How many fingerprints equal to the key's are where the key's would be, and have not left."""
        return int(self._count_one(key))

    def expire(self) -> int:
        """Empty the tables of entries that have left, which every change does by itself; how many are left."""
        self._drop()
        return len(self)

    def copy(self) -> Self:
        """An independent filter with the same contents and clock, in memory and writable."""
        other = super().copy()
        other.clock = self.clock
        return other

    __copy__ = copy
