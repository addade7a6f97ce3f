"""An exact set of keys with the face of a filter."""

from collections.abc import Iterator

from dlbf import format
from dlbf.errors import FormatError
from dlbf.filters.base import (
    MAX_ITEMS,
    MAX_PAYLOAD_BYTES,
    Filter,
    Intersecting,
    aligned_zeros,
    check_count,
    secret_of,
)
from dlbf.filters.row import Base
from dlbf.kernels.exact import ExactCore

__all__ = ["EXACT", "ExactSet"]

HEAD_BYTES = 16
ENTRY_BYTES = 12  # hash and length before each key
MAX_KEY_BYTES = (1 << 32) - 1
MEAN_KEY_BYTES = 32  # a first guess for the arena; it grows


class ExactSet(ExactCore, Intersecting):
    """A set of keys in one flat buffer: no false positives, and a key is in it once or not at all.

    Parameters
    ----------
    capacity : int
        Number of keys to make room for; it grows by itself while it owns its buffer.  One that is mapped from a file
        keeps its size, and reuses the room of removed keys.
    secret : bytes, optional
        16 bytes for the keyed hash, as for ``dlbf.BloomFilter``.
    filter_id : int
        Separates the positions of filters that share a hash.

    Examples
    --------
    >>> s = ExactSet()
    >>> s.update([b"a", b"b", b"a"]); len(s), b"a" in s, b"c" in s
    (2, True, False)
    >>> s.remove(b"a"), sorted(s)
    (True, [b'b'])
    """

    KIND = 6
    PARAMS = ("n_slots", "arena_bytes")
    NEEDS_KEYS = True

    def __init__(self, capacity: int = 16, *, secret: bytes | None = None, filter_id: int = 0) -> None:
        capacity = check_count("capacity", capacity, 1, 1 << 40)
        self._create((self._slots_for(capacity), capacity * MEAN_KEY_BYTES), capacity, 0.0, secret, filter_id)

    @staticmethod
    def _slots_for(n_keys: int) -> int:
        # One slot in four stays free.
        return max(8, n_keys * 3 // 2 + 1)

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        n_slots, arena_bytes = params[3:]
        check_count("n_slots", n_slots, 2, MAX_PAYLOAD_BYTES // 8)
        check_count("arena_bytes", arena_bytes, 0, MAX_PAYLOAD_BYTES)
        return HEAD_BYTES + 8 * n_slots + arena_bytes

    def _apply(self, params: tuple[int, ...]) -> None:
        self._set_geometry(*params[3:])

    def _recovered_count(self) -> int:
        return min(int(self._stored_items()), MAX_ITEMS)

    def _check_opened(self) -> None:
        # Slots are offsets: followed only after all of them have been looked at.
        self._check_all()
        if not self._is_sound():
            raise FormatError("the table of an ExactSet points outside of itself; build it again")

    @classmethod
    def _items_in(cls, payload: memoryview) -> int:
        return int.from_bytes(payload[:8], "little")

    def _check_part(self) -> None:
        if not self._is_sound():
            raise FormatError("an exact set in a learned filter points outside of itself; build it again")

    def _grown(self, n_key_bytes: int) -> tuple[int, ...] | None:
        n_slots, arena_bytes = self._param("n_slots"), self._param("arena_bytes")
        needed = (ENTRY_BYTES + n_key_bytes + 3) // 4 * 4
        n_used = int.from_bytes(self._payload()[8:HEAD_BYTES], "little")  # by keys that have left, too
        crowded = 4 * (len(self) + 1) > 3 * n_slots
        if not crowded and n_used + needed <= arena_bytes:
            return None
        # Twice what is needed now, so that the cost of moving is spread over as many keys again; moving alone makes
        # room where the arena is full of keys that have left.
        if crowded:
            n_slots = self._slots_for(2 * (len(self) + 1))
        return n_slots, max(arena_bytes, 2 * (self._used_bytes() + needed))

    def _make_room(self, n_key_bytes: int) -> None:
        if self._file is not None:
            if not self._compacted(n_key_bytes):
                super()._make_room(n_key_bytes)
            return
        if n_key_bytes > MAX_KEY_BYTES:
            raise ValueError(f"a key of an ExactSet has at most {MAX_KEY_BYTES} bytes, found {n_key_bytes}")
        self._lock()  # other threads may be adding keys at this moment
        try:
            n_slots = self._param("n_slots")
            if 4 * (len(self) + 1) > 3 * n_slots:
                n_slots = self._slots_for(2 * (len(self) + 1))
            # Twice what is needed now, so that the cost of moving is spread over as many bytes again.
            arena_bytes = max(2 * (self._used_bytes() + ENTRY_BYTES + n_key_bytes + 3), 256)
            params = (*self._params[:3], n_slots, arena_bytes)
            self._move_to(aligned_zeros(self._payload_bytes(params)), n_slots, arena_bytes)
            self._params = params
        finally:
            self._unlock()

    def _compacted(self, n_key_bytes: int) -> bool:
        """Give back the bytes of removed keys, for a set that cannot grow; whether there is room for the key now."""
        self._lock()
        try:
            n_slots, arena_bytes = self._param("n_slots"), self._param("arena_bytes")
            needed = (ENTRY_BYTES + n_key_bytes + 3) // 4 * 4
            fits = 4 * (len(self) + 1) <= 3 * n_slots and self._used_bytes() + needed <= arena_bytes
            if fits:
                self._compact(aligned_zeros(self.nbytes))
            return bool(fits)
        finally:
            self._unlock()

    def __iter__(self) -> Iterator[bytes]:
        """The keys, in no particular order."""
        return iter(self._keys())

    def _differences(self, other: Filter) -> str:
        # Sets of any size may be combined; only the hash must agree.
        hashes = format.hash_identity(self._secret) == format.hash_identity(secret_of(other))
        return "" if hashes and self.filter_id == other.filter_id else "hash (secret or filter_id)"

    def _merge(self, other: "ExactSet", union: bool) -> bool:
        theirs = list(other)
        if union:
            self.update(theirs)
        else:
            keep = set(theirs)
            self.remove_many([key for key in self._keys() if key not in keep])
        return True

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return not self._differences(other) and set(self._keys()) == set(other)

    @property
    def fill(self) -> float:
        """Share of slots in use."""
        return len(self) / self._param("n_slots")

    def approximate_count(self) -> int:
        """Number of keys (exact)."""
        return len(self)

    @property
    def expected_fpr(self) -> float:
        """Zero."""
        return 0.0


# --- the row

PLANNED_KEY_BYTES = 64  # of the arena, for each key that a plan expects

EXACT = Base(
    name="exact",
    cls=ExactSet,
    words="exact set",
    geometry=lambda n_keys, planned, counter_bits: (ExactSet._slots_for(n_keys), n_keys * PLANNED_KEY_BYTES),
    scaled=lambda params, n_before, n_keys: (ExactSet._slots_for(n_keys), n_keys * PLANNED_KEY_BYTES, *params[2:]),
    rate=lambda n_keys, params: 0.0,
    fills=True,
    growable=True,
)
