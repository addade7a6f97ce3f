"""The elastic Bloom filter: a Bloom filter that forgets, doubles and halves without its keys."""

import mmap
import sys

import numpy as np
import numpy.typing as npt

from dlbf import format
from dlbf.errors import ChecksumError, FilterFullError, FormatError
from dlbf.filters.base import (
    COMMON_PARAMS,
    MAX_ITEMS,
    MAX_PAYLOAD_BYTES,
    Filter,
    Intersecting,
    aligned_zeros,
    check_count,
    check_rate,
    geometry_of,
    secret_of,
)
from dlbf.filters.elastic_sizes import (
    BUCKET_POSITIONS,
    LEAST_LOG2,
    MAX_HASHES,
    MAX_LOG2,
    MAX_SLOTS,
    SHARE_UNIT,
    ElasticGeometry,
    elastic_geometry,
    elastic_levels,
    elastic_log2,
    elastic_price,
    elastic_slots,
)
from dlbf.filters.row import Base, Planned
from dlbf.geometry import cell_fpr, cell_rate_at_load
from dlbf.kernels.elastic import A_DOUBLING_MISSING, NOTHING_MISSING, SLOTS_MISSING, ElasticCore
from dlbf.typenames import Key, Keys, Memory

__all__ = ["ELASTIC", "ElasticBloomFilter"]

# From this size on memory comes from the system by pages, which can be moved without being copied.
PAGED_BYTES = 1 << 20


def _memory(n_bytes: int) -> Memory:
    """Zeroed memory, of a kind that can grow in place if there is much of it."""
    if n_bytes < PAGED_BYTES or not sys.platform.startswith("linux"):
        zeros: Memory = aligned_zeros(n_bytes)
        return zeros
    return mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class ElasticBloomFilter(ElasticCore, Intersecting):
    """A Bloom filter that forgets keys, and doubles and halves without being given them again.

    Parameters
    ----------
    initial_capacity : int
        Number of keys that fit before it first doubles.  It never gets smaller than that.
    fpr : float
        False-positive rate that it keeps to at every size.
    secret : bytes, optional
        16 bytes for the keyed hash, as for ``dlbf.BloomFilter``.
    filter_id : int
        Separates the positions of filters that share a hash.
    bits, hashes : int
        Exact geometry instead of ``initial_capacity`` and ``fpr``: bits to begin with, a power of two from 256 on, and
        probes per key.  It then doubles when half of the bits are ones.

    Notes
    -----
    The structure of Wu et al. (2021): the bits answer, and beside them stands a fingerprint for each hash of each key,
    so that nothing is lost when the array changes.  That costs dearly: some hundreds of bits per key.
    ``dlbf.GrowingFilter`` grows without keys in a fiftieth of the space; use this one where the published structure,
    the speed of a Bloom filter, or ``contains(key, exact=True)`` is what you need.

    The array doubles when its share of ones reaches ``fpr ** (1 / hashes)``, and halves below a quarter of that; a
    bucket of 256 positions at a time, a few with every change, so no single ``add`` pays for all.  ``len`` counts keys
    with their repetitions.  A key may be added a dozen times; when copies of few keys have filled their bucket, ``add``
    raises ``dlbf.FilterFullError`` and nothing has changed.  Removing a key that was never added raises KeyError, for
    the fingerprints tell.

    A file mapped with ``mode="r+"`` keeps its size: ``add`` raises ``dlbf.FilterFullError`` when it would have to
    double.  If it is not closed, it cannot be recovered, for a bucket is divided in more than one step.

    Examples
    --------
    >>> f = ElasticBloomFilter(100, 0.01)
    >>> f.bits
    2048
    >>> f.update([b"%d" % i for i in range(5000)]); len(f), f.bits > 40_000, f.expected_fpr < 0.01
    (5000, True, True)
    >>> f.remove(b"7"), b"7" in f, f.contains(b"8", exact=True)
    (True, False, True)
    """

    KIND = 10
    PARAMS = ("initial_log2", "allocated_log2", "n_hashes", "full_share", "bucket_slots")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        initial_capacity: int | None = None,
        fpr: float = 0.01,
        *,
        bits: int | None = None,
        hashes: int | None = None,
        secret: bytes | None = None,
        filter_id: int = 0,
    ) -> None:
        if bits is None and hashes is None:
            if initial_capacity is None:
                raise TypeError("pass initial_capacity= (number of keys to begin with) and fpr=, or bits= and hashes=")
            initial_capacity = check_count("initial_capacity", initial_capacity, 1, 1 << 36)
            fpr = check_rate(fpr)
            geometry = elastic_geometry(initial_capacity, fpr)
        elif initial_capacity is not None or bits is None or hashes is None:
            raise TypeError("pass either initial_capacity and fpr, or both bits= and hashes=, not a mixture")
        else:
            bits = check_count("bits", bits, 1 << LEAST_LOG2, 1 << MAX_LOG2)
            if bits & (bits - 1):
                raise ValueError(f"bits must be a power of two, found {bits}")
            log2 = bits.bit_length() - 1
            half = SHARE_UNIT // 2
            n_hashes = check_count("hashes", hashes, 1, MAX_HASHES)
            geometry = ElasticGeometry(log2, log2, n_hashes, half, elastic_slots(half))
            initial_capacity, fpr = 0, 0.0
        self._create(geometry, initial_capacity, fpr, secret, filter_id)

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        geometry = ElasticGeometry(*params[3:])
        check_count("initial_log2", geometry.initial_log2, LEAST_LOG2, MAX_LOG2)
        check_count("allocated_log2", geometry.allocated_log2, geometry.initial_log2, MAX_LOG2)
        check_count("n_hashes", geometry.n_hashes, 1, MAX_HASHES)
        check_count("full_share", geometry.full_share, 1, SHARE_UNIT - 1)
        check_count("bucket_slots", geometry.bucket_slots, 1, MAX_SLOTS)
        return check_count("payload bytes", elastic_levels(geometry)[1], 1, MAX_PAYLOAD_BYTES)

    def _apply(self, params: tuple[int, ...]) -> None:
        geometry = ElasticGeometry(*params[3:])
        self._set_geometry(*geometry, elastic_levels(geometry)[0])

    def _settle(self) -> None:
        # What will grow should not have to be copied for it.
        if self.nbytes >= PAGED_BYTES and not isinstance(self._owner, mmap.mmap):
            memory = _memory(self.nbytes)
            self._lock()
            try:
                self._go_on_in(memory)
            finally:
                self._unlock()

    def _recovered_count(self) -> int:
        raise ChecksumError(
            "was being written and not closed; the buckets of an elastic filter change in more than one step, so a "
            "kill may have left half of a change. Build it again"
        )

    def _check_opened(self) -> None:
        # A mapped read-only file is looked at no further than its head: the bits may have any value.
        if not self._head_is_sound() or (self.is_writable and not self._is_sound()):
            raise FormatError(f"the fingerprints of a {type(self).__name__} contradict its bits; build it again")

    @classmethod
    def _items_in(cls, payload: memoryview) -> int:
        return int.from_bytes(payload[16:24], "little")

    def _check_part(self) -> None:
        if not self._head_is_sound():
            raise FormatError("an elastic filter in a learned filter contradicts itself; build it again")

    # --- growing and shrinking

    def _allocate(self, log2: int) -> None:
        """Have a buffer for so many positions; called under ``_lock``."""
        params = (*self._params[: len(COMMON_PARAMS)], *self.geometry._replace(allocated_log2=log2))
        n_bytes = self._payload_bytes(params)
        if isinstance(self._owner, mmap.mmap) and n_bytes >= PAGED_BYTES:
            try:
                self._resize(n_bytes)
            except (BufferError, OSError, SystemError):  # somebody looks at it, or there is no room where it is
                self._go_on_in(_memory(n_bytes))
        else:
            self._go_on_in(_memory(n_bytes))
        self._params = params
        self._apply(params)

    def _make_room(self, n_key_bytes: int) -> None:
        self._lock()  # other threads may be adding keys at this moment
        try:
            missing, allocated = self._missing(), self._param("allocated_log2")
            if missing == SLOTS_MISSING:
                raise FilterFullError(
                    "no room for one more copy of this key: copies of it, or of a key beside it, have filled their "
                    "bucket, and doubling would not part them; nothing was lost. Count repeats with DLeftFilter or "
                    "CountingBloomFilter"
                )
            if missing != NOTHING_MISSING and not self._has_level():
                self._check_growth(allocated)
                self._allocate(allocated + 1)
            if missing == A_DOUBLING_MISSING:
                self._double_now()
        finally:
            self._unlock()

    def _check_growth(self, allocated: int) -> None:
        if self._file is not None:
            raise FilterFullError(
                f"a mapped ElasticBloomFilter cannot double, and after {len(self)} keys it would have to; nothing was "
                "lost. Add to a copy in memory (filter.copy()) and save that"
            )
        if allocated == MAX_LOG2:
            raise FilterFullError(f"an ElasticBloomFilter has at most 2**{MAX_LOG2} bits; nothing was lost")

    def _has_level(self) -> bool:
        """Whether there is room for the doubling that is under way or would be next; called under ``_lock``."""
        doublings = int.from_bytes(bytes(self._payload()[:4]), "little")
        return self._param("allocated_log2") > self._param("initial_log2") + doublings

    def _trim(self) -> None:
        """Give back the memory of levels that halving has emptied."""
        if self._file is None and self._spare_levels() > 0:
            self._lock()
            try:
                if (spare := self._spare_levels()) > 0:
                    self._allocate(self._param("allocated_log2") - spare)
            finally:
                self._unlock()

    def _remove_one(self, key: Key) -> int:
        answer = super()._remove_one(key)
        self._trim()
        return answer

    def remove_many(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """``discard`` every key of a batch.

        Returns
        -------
        numpy.ndarray of bool
            True where the filter now answers "absent" because of the removal; False where it still answers "maybe"
            and where the key was certainly not there.
        """
        answers = super().remove_many(keys)
        self._trim()
        return answers

    def clear(self) -> None:
        """Forget every key, and be as small as at first."""
        super().clear()
        self._trim()

    # --- what it is

    @property
    def geometry(self) -> ElasticGeometry:
        """Bits at first and those with room now (as powers of two), hashes, when it doubles, slots of a bucket."""
        return ElasticGeometry(*self._params[3:])

    @property
    def bits(self) -> int:
        """Number of bits now: a power of two, or on the way from one to the next."""
        log2, _, n_split, *_ = self._head()
        return (1 << log2) + n_split * BUCKET_POSITIONS

    @property
    def hashes(self) -> int:
        """Probes per key."""
        return self._param("n_hashes")

    @property
    def full_share(self) -> float:
        """Share of ones at which the array doubles; below a quarter of it, it halves."""
        return self._param("full_share") / SHARE_UNIT

    @property
    def is_moving(self) -> bool:
        """Whether a doubling or halving is under way."""
        _, move, n_split, *_ = self._head()
        return bool(move or n_split)

    @property
    def fill(self) -> float:
        """Share of ones: the chance that a probe meets one."""
        log2, _, _, _, weight, _ = self._head()
        return weight / (2 << log2)

    def approximate_count(self) -> int:
        """Number of keys (exact)."""
        return min(self._head()[3], MAX_ITEMS)

    @property
    def expected_fpr(self) -> float:
        """False-positive rate: the share of ones to the power of the hashes."""
        return float(self.fill**self.hashes)

    def contains(self, key: Key, exact: bool = False) -> bool:
        """Whether the key is there; ``key in filter``.

        Parameters
        ----------
        key : key
        exact : bool
            Compare the fingerprints, too: a false positive then takes a collision of 64-bit hashes.  Some hundred
            times slower than asking the bits, for keys that they let pass.

        Examples
        --------
        >>> f = ElasticBloomFilter(100)
        >>> f.add("anna"); f.contains("anna"), f.contains("anna", exact=True), f.contains("bob", exact=True)
        (True, True, False)
        """
        return self.count(key) > 0 if exact else key in self

    def count(self, key: Key) -> int:
        """How often the key was added: exact but for keys with the same 64-bit hash."""
        self._check_all()
        return int(self._count_one(key))

    # --- sets

    def _differences(self, other: Filter) -> str:
        # Filters of any size may be combined; their hashes must agree, in number too.
        parts = []
        theirs = ElasticGeometry(**geometry_of(other))
        if theirs.n_hashes != self.hashes:
            parts.append(f"n_hashes ({self.hashes} and {theirs.n_hashes})")
        if other.filter_id != self.filter_id:
            parts.append(f"filter_id ({self.filter_id} and {other.filter_id})")
        if format.hash_identity(self._secret) != format.hash_identity(secret_of(other)):
            parts.append("hash (different secrets, or only one has one)")
        return ", ".join(parts)

    def _merge(self, other: "ElasticBloomFilter", union: bool) -> bool:
        theirs, n_theirs = other._entries()
        if union:
            return self._unite(theirs, n_theirs)
        mine, n_mine = self._entries()
        excess = _excess(mine, theirs)
        self._take_entries(excess)
        self._count_keys((len(mine) - len(excess)) // self.hashes - n_mine)
        self._trim()
        return True

    def _unite(self, entries: npt.NDArray[np.uint64], n_keys: int) -> bool:
        """Take in the entries of so many keys; False if they do not fit, and then none of them stays."""
        done = 0
        while (done := self._put_entries(entries, done)) < len(entries):
            try:
                self._make_room(0)
            except FilterFullError:
                self._take_entries(entries[:done])
                self._trim()
                return False
        self._count_keys(n_keys)
        self._add_items(n_keys)
        return True

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        if self._differences(other):
            return False
        # Where an entry stands depends on the order of changes, and means nothing; nor does the size reached.
        return len(self) == len(other) and bool(np.array_equal(_sorted_entries(self), _sorted_entries(other)))


def _sorted_entries(filter: ElasticBloomFilter) -> npt.NDArray[np.uint64]:
    entries, _ = filter._entries()
    entries.sort()
    return entries


def _excess(mine: npt.NDArray[np.uint64], theirs: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """What of ``mine`` goes beyond ``theirs``, as often as it does."""
    values, counts = np.unique(mine, return_counts=True)
    others, other_counts = np.unique(theirs, return_counts=True)
    kept = np.zeros(len(values), dtype=counts.dtype)
    if len(others):
        at = np.minimum(np.searchsorted(others, values), len(others) - 1)
        kept = np.where(others[at] == values, np.minimum(counts, other_counts[at]), 0)
    return np.repeat(values, counts - kept)


# --- the row


def _geometry(n_keys: int, planned: Planned, counter_bits: int) -> tuple[int, ...]:
    return tuple(elastic_geometry(n_keys, min(planned.fpr, 0.999)))


def _scaled(params: tuple[int, ...], n_before: int, n_keys: int) -> tuple[int, ...]:
    _, _, n_hashes, full_share, *rest = params
    log2 = elastic_log2(n_keys, n_hashes, full_share)
    return (log2, log2, n_hashes, full_share, *rest)


# A part of a composite has a fixed place, so there it does not double: it is full instead.  At fifty times the price of
# a cuckoo filter no plan ever chooses it.
ELASTIC = Base(
    name="elastic",
    cls=ElasticBloomFilter,
    words="elastic Bloom filter",
    geometry=_geometry,
    scaled=_scaled,
    rate=lambda n_keys, params: cell_fpr(n_keys, 1 << params[0], params[2]),
    price=lambda counter_bits: (elastic_price(),),
    fills=True,
    rate_at_load=cell_rate_at_load,
)
