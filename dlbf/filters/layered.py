"""The layered filter of stores and guards: a static base, tables of what was added since, keys known to be absent."""

from collections.abc import Iterator
from typing import Self, cast

from dlbf import format
from dlbf.errors import FilterFullError, FormatError, StaticFilterError
from dlbf.filters.base import (
    MAX_PAYLOAD_BYTES,
    Filter,
    aligned_zeros,
    check_count,
    open_payload,
    secret_of,
)
from dlbf.filters.kinds import class_of_kind
from dlbf.filters.tables import CuckooFilter
from dlbf.geometry import MAX_PREFIXES, MAX_SUFFIX_BITS, cuckoo_fpr, cuckoo_geometry
from dlbf.kernels.hashing import decided_secret
from dlbf.kernels.layers import MOST_TABLES, LayeredCore
from dlbf.typenames import Memory

__all__ = ["PLANNED_TABLES", "LayeredFilter"]

# Tables that the keys which are planned for fill; each has its part of the delta's rate.  Fewer are larger, and mostly
# empty for longer; more cost each key the logarithm of their number.
PLANNED_TABLES = 4
LEAST_TABLE_ROOM = 64
# What all tables see of a key: its hash as it is, so that its place in them is computed once.
TABLE_ID = 0


class LayeredFilter(LayeredCore, Filter):
    """See ``dlbf/kernels/layers.pxd``.  Made by ``over``, from a base that holds all keys there are.

    Its bytes are those of the base (an object of its own, with its header), then those of each table.  The set of
    absent keys is in none of them.

    Examples
    --------
    >>> import dlbf
    >>> f = LayeredFilter.over(dlbf.RibbonFilter.build([b"a", b"b"], 0.01), 0.01, 1000, 0.001)
    >>> f.add(b"c"); b"a" in f, b"c" in f, len(f), f.remove(b"c"), b"c" in f
    (True, True, 3, True, False)
    """

    KIND = format.KIND_LAYERED
    PARAMS = ("base_bytes", "delta_bytes", "base_keys", "table_room", "n_buckets", "n_prefixes", "suffix_bits")
    NEEDS_KEYS = True  # the base may have a model
    __hash__ = None

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise TypeError("a LayeredFilter is made from a static filter of all keys: LayeredFilter.over(base, ...)")

    @classmethod
    def over(cls, base: Filter, fpr: float, added_keys: int, added_fpr: float) -> Self:
        """The filter of the keys in ``base``, with room for ``added_keys`` more.

        Parameters
        ----------
        base : Filter
            Of all keys there are; nobody changes it any more.
        fpr : float
            Rate that the whole is meant to have.
        added_keys : int
            Keys that are expected before the next base; twice as many fit.
        added_fpr : float
            Part of the rate that is left for them.
        """
        room = max(LEAST_TABLE_ROOM, -(-added_keys // PLANNED_TABLES))
        geometry = cuckoo_geometry(room, added_fpr / PLANNED_TABLES)
        capacity = len(base) + PLANNED_TABLES * room
        params = (capacity, format.float_to_param(fpr), 0, 0, 0, len(base), room, *geometry)
        made = cls.__new__(cls)
        made._begin(params, len(base), secret_of(base))
        made.set_layers(base, [], room)
        return made

    # --- life

    def _begin(self, params: tuple[int, ...], n_items: int, secret: bytes | None) -> None:
        # The layers have buffers of their own.
        self._attach(aligned_zeros(8), secret, n_items, 0)
        self._params = params
        self._secret = decided_secret(secret)

    def _open(
        self,
        params: tuple[int, ...],
        payload: Memory,
        n_items: int,
        secret: bytes | None,
        sums: bytes | None = None,
    ) -> None:
        self._begin(params, n_items, secret)
        base_bytes, _, base_keys, room, *geometry = params[3:]
        # An array is a buffer, too; before Python 3.12 the stubs of numpy do not say so.
        objects = list(_objects(memoryview(cast(bytes, payload)).cast("B"), base_bytes))
        (header, inside), *rest = objects
        if header.kind == self.KIND:
            raise FormatError("the base of a layered filter is one itself; run rebuild()")
        base = open_payload(class_of_kind(header.kind, "the base"), header, inside, secret, "the base")
        if len(base) > base_keys or len(rest) > MOST_TABLES:
            raise FormatError(
                f"a layered filter with {len(rest)} tables and a base of {len(base)} keys, expected at most "
                f"{MOST_TABLES} and {base_keys}; run rebuild()"
            )
        tables = []
        for number, (header, inside) in enumerate(rest):
            table = open_payload(CuckooFilter, header, inside, secret, f"table {number}")
            # In the first files each had a hash of its own.
            if table.geometry != tuple(geometry) or table.filter_id not in (TABLE_ID, number + 1):
                raise FormatError(f"table {number} of a layered filter has the place of another; run rebuild()")
            tables.append(table)
        self.set_layers(base, tables, room)

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        base_bytes, delta_bytes, base_keys, room, *geometry = params[3:]
        check_count("base_bytes", base_bytes, format.HEADER_BYTES, MAX_PAYLOAD_BYTES)
        check_count("delta_bytes", delta_bytes, 0, MAX_PAYLOAD_BYTES)
        check_count("base_keys", base_keys, 0, 1 << 62)
        check_count("table_room", room, 1, 1 << 42)
        n_buckets, n_prefixes, suffix_bits = geometry
        check_count("n_buckets", n_buckets, 1, 1 << 40)
        check_count("n_prefixes", n_prefixes, 2, MAX_PREFIXES)
        check_count("suffix_bits", suffix_bits, 0, MAX_SUFFIX_BITS)
        return base_bytes + delta_bytes

    def _tables(self) -> list[CuckooFilter]:
        return cast("list[CuckooFilter]", self._counted_tables())

    def _new_table(self) -> CuckooFilter:
        buckets, prefixes, suffix_bits = self._params[7:]
        return CuckooFilter(
            buckets=buckets, prefixes=prefixes, suffix_bits=suffix_bits, secret=self._secret, filter_id=TABLE_ID
        )

    def _make_room(self, n_key_bytes: int) -> None:
        """Begin another table."""
        self._lock()  # other threads may be changing keys at this moment
        try:
            tables = self._tables()
            if len(tables) == MOST_TABLES:
                raise FilterFullError(
                    f"{self.n_added:,} keys were added to a base of {self.base_keys:,}, and there is room for no more; "
                    "nothing was lost. Make a new base from all keys"
                )
            # One that is empty was begun by another thread meanwhile.  One that is not may have no room for a key
            # although it has fewer than it is meant for.
            if not tables or len(tables[-1]):
                self._add_table(self._new_table())
        finally:
            self._unlock()

    def _refuse_key(self) -> None:
        raise FilterFullError(
            "this key looks like one in a table that is full, and must go there too; nothing was lost. Make a new base "
            "from all keys"
        )

    def correct_count(self, n_keys: int, n_there: int | None = None) -> None:
        """Count so many keys in the base: two keys with one hash are one to it.

        Of these ``n_there`` are there (by default all), the others are dead.
        """
        self._params = (*self._params[:5], n_keys, *self._params[6:])
        self._set_items(n_keys if n_there is None else n_there)

    # --- what it is

    @property
    def static(self) -> Filter:
        """The base."""
        return cast(Filter, self.base)

    @property
    def base_keys(self) -> int:
        """Keys that the base was made of."""
        return self._params[5]

    @property
    def planned_added(self) -> int:
        """Added keys that are planned for before the next base."""
        return PLANNED_TABLES * self._params[6]

    @property
    def dead(self) -> int:
        """Keys that the base still lets pass and that are not there any more."""
        return max(0, self.base_keys + self.n_added - len(self))

    @property
    def base_bytes(self) -> int:
        """Bytes of the base, model included."""
        return self.static.nbytes

    @property
    def delta_bytes(self) -> int:
        """Bytes of the tables."""
        return sum(table.nbytes for table in self._tables())

    @property
    def nbytes(self) -> int:
        """Bytes of all three layers."""
        return 0 if self.closed else self.static.nbytes + self.delta_bytes + self.absent.nbytes

    @property
    def fill(self) -> float:
        """Keys added since the base was made over those that are planned for."""
        return self.n_added / self.planned_added

    def approximate_count(self) -> int:
        """Number of keys (exact)."""
        return len(self)

    @property
    def expected_fpr(self) -> float:
        """False-positive rate of keys that were never asked for before."""
        return self.rate_with(self.n_added)

    def rate_with(self, n_added: int) -> float:
        """The same when so many keys have been added."""
        room, *geometry = self._params[6:]
        whole, rest = divmod(n_added, room)
        rates = [cuckoo_fpr(n, *geometry) for n in [room] * whole + [rest] * bool(rest)]
        return min(1.0, self.static.expected_fpr + sum(rates))

    # --- bytes and copies

    def to_bytes(self) -> bytes:
        """Base and tables as bytes, in the format of ``dlbf.format``; no secret, and no absent keys."""
        base = self.static.to_bytes()
        self._begin_reading()
        try:
            tables = b"".join(table.to_bytes() for table in self._tables())
            n_items = len(self)
        finally:
            self._end_reading()
        params = (*self._params[:3], len(base), len(tables), *self._params[5:])
        return format.pack(self._header(params, n_items), base + tables)

    def copy(self) -> Self:
        """One that can be changed without changing this one.  They share the base, which nobody changes."""
        other = type(self).__new__(type(self))
        self._begin_reading()
        try:
            tables = [table.copy() for table in self._tables()]
            other._begin(self._params, len(self), self._secret)
            other.set_absent(self.absent.copy())
        finally:
            self._end_reading()
        other.set_layers(self.base, tables, self._params[6])
        return other

    __copy__ = copy

    def with_base(self, data: memoryview) -> Self:
        """A copy over a base in ``data``, which has the bytes of its own (``static.to_bytes()``)."""
        other = self.copy()
        ((header, inside),) = _objects(data.cast("B"), len(data))
        base = open_payload(type(self.static), header, inside, self._secret, "the base")
        other.set_layers(base, other._tables(), self._params[6])
        return other

    def clear(self) -> None:
        """Always raises StaticFilterError: the base cannot be emptied."""
        raise StaticFilterError("the base of a layered filter is static; make another filter from no keys")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LayeredFilter):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()


def _objects(payload: memoryview, base_bytes: int) -> Iterator[tuple[format.Header, memoryview]]:
    """Header and payload of each object in the bytes of a layered filter; the first is the base."""
    at = 0
    while at < len(payload):
        places = format.layout(format.payload_size(payload[at:]))
        end = at + places.total
        if end > len(payload) or (at == 0 and end != base_bytes):
            raise FormatError(f"a layer of {places.total} bytes where {len(payload) - at} are left; run rebuild()")
        yield format.read_header(payload[at:end], "a layer"), payload[at:end][places.payload]
        at = end
