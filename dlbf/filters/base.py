"""What all public filters share: construction from parameters, bytes, copies, set algebra.

A filter class brings a kernel (``dlbf.kernels``), a table of its parameters and the arithmetic that belongs to
them.  Parameters are unsigned 64-bit integers; the first three are the same for all filters.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np

from dlbf import format
from dlbf.errors import FilterFullError, FormatError
from dlbf.filters.hashed import ByHash
from dlbf.filters.part import AsPart
from dlbf.kernels.hashing import checksum64, decided_secret
from dlbf.typenames import Memory

__all__ = [
    "Filter",
    "FilterFile",
    "aligned_zeros",
    "check_all",
    "detach",
    "geometry_of",
    "header_of",
    "inherit",
    "is_held",
    "mapped_file",
    "open_over",
    "open_payload",
    "payload_of",
    "secret_of",
    "set_mapped_file",
    "write_sums",
]

COMMON_PARAMS = ("capacity", "fpr", "filter_id")
# More than any machine's memory, and small enough that no product of two parameters overflows.
MAX_PAYLOAD_BYTES = 1 << 46
MAX_ITEMS = 1 << 62  # len() can say no more


def aligned_zeros(n_bytes: int) -> Any:
    """A zeroed, writable array of bytes that starts on a cache line.

    Not a memoryview of it: the garbage collector clears those before the filter that still uses them.
    """
    raw = np.zeros(n_bytes + 63, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes]


def check_count(name: str, value: object, least: int, most: int) -> int:
    """``value`` as an int in [least, most], or an error that says so."""
    # 1e6 is how people write a million.
    whole = value.is_integer() if isinstance(value, float) else not isinstance(value, bool)
    if not isinstance(value, (int, np.integer, float)) or not whole:
        raise TypeError(f"{name} must be a whole number, found {value!r}")
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"{name} must be between {least} and {most}, found {number}")
    return number


def check_rate(fpr: object) -> float:
    """A false-positive rate that a filter can be asked for."""
    if isinstance(fpr, bool) or not isinstance(fpr, (int, float, np.floating)):
        raise TypeError(f"fpr must be a number between 0 and 1, found {fpr!r}")
    rate = float(fpr)
    if not 1e-15 <= rate < 1:
        raise ValueError(f"fpr must be at least 1e-15 and below 1, found {rate!r}")
    return rate


def check_target(capacity: object, fpr: object) -> tuple[int, float]:
    """The usual way to ask for a size: that many keys at that rate."""
    if capacity is None:
        raise TypeError("pass capacity= (number of keys) and fpr=, or an exact geometry")
    return check_count("capacity", capacity, 1, 1 << 42), check_rate(fpr)


class FilterFile(Protocol):
    """A file that a filter is mapped from; see ``dlbf.filters.files``."""

    writable: bool

    def close(self, filter: "Filter | None") -> None:
        """Write back if writable and a filter is there to write, unmap, unlock."""

    def write_back(self, filter: "Filter") -> None:
        """Write what the header must say, and sums."""


class Filter(AsPart, ByHash):
    """Base of the public filter classes; each also derives from a kernel.

    Subclasses define ``KIND``, ``PARAMS`` (names of their own parameters), ``_payload_bytes(params)``, which
    also checks them, and ``_apply(params)``, which hands them to the kernel.  A payload of zeros is an empty filter.

    Examples
    --------
    >>> import dlbf
    >>> f = dlbf.CuckooFilter(100)
    >>> isinstance(f, Filter), f.capacity, f.fpr_target, len(f)
    (True, 100, 0.01, 0)
    """

    KIND: ClassVar[int]
    PARAMS: ClassVar[tuple[str, ...]]
    DELETABLE: ClassVar[bool] = True
    IN_PLACE: ClassVar[bool] = True  # can it be changed in a file that is mapped?
    __hash__ = None  # type: ignore[assignment]

    _params: tuple[int, ...]
    _secret: bytes | None
    _file: FilterFile | None = None  # that this filter is mapped from

    # --- life

    def _create(self, own: tuple[int, ...], capacity: int, fpr: float, secret: bytes | None, filter_id: int) -> None:
        """Start as an empty filter on a buffer of our own."""
        params = (capacity, format.float_to_param(fpr), check_count("filter_id", filter_id, 0, 2**64 - 1), *own)
        self._open(params, aligned_zeros(self._payload_bytes(params)), 0, secret)
        self._settle()

    def _open(
        self, params: tuple[int, ...], payload: Memory, n_items: int, secret: bytes | None, sums: bytes | None = None
    ) -> None:
        """Start on a buffer that somebody else owns."""
        self._attach(payload, secret, n_items, params[2], sums, format.CHUNK_BYTES)
        self._params = params
        self._secret = decided_secret(secret)
        self._apply(params)

    @classmethod
    def _from_payload(
        cls,
        header: format.Header,
        payload: Memory,
        secret: bytes | None,
        where: str,
        sums: bytes | None = None,
        recover: bool = False,
    ) -> Self:
        """A filter over ``payload``, whose size is compared with what the parameters say it must be.

        With ``recover`` the number of items comes from the contents: the header's is out of date.
        """
        if header.kind != cls.KIND:
            found = format.KIND_NAMES.get(header.kind, f"kind {header.kind}")
            raise FormatError(f"{where}: expected a {cls.__name__}, found a {found}; dlbf.open_filter takes any")
        if header.hash_kind == format.HASH_NONE:
            raise FormatError(f"{where}: a {cls.__name__} without a hash; written by a newer dlbf?")
        secret = format.fitting_secret(header, secret)
        n_params = len(COMMON_PARAMS) + len(cls.PARAMS)
        params = header.params[:n_params]
        if any(header.params[n_params:]):
            raise FormatError(f"{where}: unknown parameters of a {cls.__name__}; written by a newer dlbf?")
        try:
            expected = cls._payload_bytes(params)
        except ValueError as error:
            raise FormatError(f"{where}: impossible parameters: {error}") from None
        if expected != header.n_payload_bytes:
            raise FormatError(
                f"{where}: parameters call for {expected} payload bytes, the header says {header.n_payload_bytes}"
            )
        if header.n_items > MAX_ITEMS:
            raise FormatError(f"{where}: expected at most {MAX_ITEMS} items, the header says {header.n_items}")
        self = cls.__new__(cls)
        try:
            self._open(params, payload, header.n_items, secret, sums)
            if recover:
                self._set_items(self._recovered_count())
            self._check_opened()
        except FormatError as error:
            # What looks at the contents does not know where they came from.
            raise type(error)(f"{where}: {error}") from None
        return self

    def _recovered_count(self) -> int:
        """Number of items after the process that wrote the file was killed; raises where a kill can lose keys."""
        return self.approximate_count()

    def _check_opened(self) -> None:
        """For kernels that must look at their contents before they can trust them."""

    def _settle(self) -> None:
        """Called when the filter is on a buffer in memory that only its own methods change."""

    # --- what a class fills in

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        raise NotImplementedError

    def _apply(self, params: tuple[int, ...]) -> None:
        raise NotImplementedError

    def _merge(self, other: Any, union: bool) -> bool | None:
        """Take in the contents of ``other``; False if they do not fit."""
        raise NotImplementedError

    def _param(self, name: str) -> int:
        return self._params[(COMMON_PARAMS + self.PARAMS).index(name)]

    def close(self) -> None:
        """Let go of the buffer and, for a mapped file, write it back and close it; later use raises ValueError.

        Waits for ``dlbf.capi.FilterReader`` objects of other threads; one of this thread's own is a DlbfError.
        """
        self._check_readers()
        file, self._file = self._file, None
        if file is not None:
            file.close(self)
        self._detach()

    def _write_sums(self, view: memoryview, payload: memoryview, flush: Callable[[], object]) -> None:
        """Write fresh sums, the count, and no flag; contents first, so that a valid header means valid contents."""
        sums = format.chunk_sums(payload)
        view[format.layout(len(payload)).sums] = sums
        flush()
        header = replace(self._header(self._params, len(self)), sums_checksum=checksum64(sums))
        view[: format.HEADER_BYTES] = format.write_header(header)
        flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._file is not None:
            self.close()

    # --- what it is

    @property
    def capacity(self) -> int | None:
        """Number of keys it was planned for, None if its geometry was given."""
        return self._params[0] or None

    @property
    def fpr_target(self) -> float | None:
        """The false-positive rate it was planned for, None if its geometry was given."""
        return format.param_to_float(self._params[1]) or None

    @property
    def nbytes(self) -> int:
        """Bytes of the filter itself."""
        return int(self.n_payload_bytes)

    @property
    def bits_per_key(self) -> float:
        """``nbytes`` in bits, per key stored now (NaN while it is empty)."""
        return 8 * self.nbytes / len(self) if len(self) else math.nan

    @property
    def fill(self) -> float:
        """Share of the filter's cells or slots in use."""
        raise NotImplementedError

    def approximate_count(self) -> int:
        """Number of keys, estimated from the contents alone."""
        raise NotImplementedError

    @property
    def expected_fpr(self) -> float:
        """False-positive rate that theory gives for as many keys as are stored now."""
        raise NotImplementedError

    def __repr__(self) -> str:
        name = type(self).__name__
        if self.closed:
            return f"<{name}, closed>"
        keyed = ", keyed" if self._secret is not None else ""
        return f"<{name}: {len(self)} keys, {self.nbytes} bytes{keyed}>"

    # --- bytes

    def _header(self, params: tuple[int, ...], n_items: int) -> format.Header:
        hash_kind, key_check = format.hash_identity(self._secret)
        return format.Header(
            kind=self.KIND,
            n_payload_bytes=self._payload_bytes(params),
            params=params,
            n_items=n_items,
            hash_kind=hash_kind,
            key_check=key_check,
        )

    def to_bytes(self) -> bytes:
        """The whole filter as bytes, in the format of ``dlbf.format``.  The secret is not part of them."""
        params, payload, n_items = self._snapshot(bytearray)
        return format.pack(self._header(params, n_items), payload)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, secret: bytes | None = None) -> Self:
        """The filter that ``to_bytes`` made; the bytes are copied.

        Raises
        ------
        FormatError, ChecksumError, VersionError
            If the bytes are not a whole, unchanged filter of this class.
        ValueError
            If ``secret`` is not the one it was made with.
        """
        header, payload = format.unpack(data)
        own = aligned_zeros(len(payload))
        own[:] = payload
        self = cls._from_payload(header, own, secret, "data")
        self._settle()
        return self

    def save(self, path: str | Path) -> None:
        """Write the filter to a file, whole or not at all; an existing file is replaced.

        Open it again with ``dlbf.open_filter``.

        Raises
        ------
        DlbfError
            If that file is mapped with ``mode="r+"``, by this filter or another: ``close()`` completes it, and whoever
            has it mapped would go on writing to a file that is no longer there.
        """
        from dlbf.filters.writing import write_file  # only filters that are saved need it

        write_file(Path(path), self.to_bytes())

    def __reduce__(self) -> tuple[object, ...]:
        # A pickle holds the secret too: without it the copy could not answer.  Its hash is the header's.
        return _from_bytes, (type(self), self.to_bytes(), None if self._secret is None else bytes(self._secret))

    # --- sets

    def copy(self) -> Self:
        """An independent filter with the same contents, in memory and writable."""
        params, own, n_items = self._snapshot(aligned_zeros)
        other = type(self).__new__(type(self))
        other._open(params, own, n_items, self._secret)
        other._settle()
        return other

    __copy__ = copy

    def __deepcopy__(self, memo: object) -> Self:
        return self.copy()

    def clear(self) -> None:
        """Forget every key; size and secret stay."""
        self._wipe()

    def _differences(self, other: "Filter") -> str:
        """Which of the things that must be equal to combine two filters are not."""
        names = COMMON_PARAMS + self.PARAMS
        # What a filter was planned for is a remark, not geometry.
        parts = [
            f"{name} ({mine} and {theirs})"
            for name, mine, theirs in zip(names[2:], self._params[2:], other._params[2:], strict=True)
            if mine != theirs
        ]
        if format.hash_identity(self._secret) != format.hash_identity(other._secret):
            parts.append("hash (different secrets, or only one has one)")
        return ", ".join(parts)

    def _combine(self, other: "Filter", union: bool) -> Self:
        """Take ``other`` in, or raise and change nothing."""
        if parts := self._differences(other):
            raise ValueError(
                f"these filters cannot be combined; they differ in {parts}. Build both with the same values"
            )
        most = min(len(self), len(other))
        if not self._merge(other, union):
            raise FilterFullError(
                f"the union of {len(self)} and {len(other)} keys does not fit; both filters are unchanged. "
                "Build a larger filter from the keys"
            )
        if not union:
            self._set_items(min(most, self.approximate_count()))
        return self

    def __or__(self, other: object) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        return self.copy()._combine(other, True)

    def __ior__(self, other: object) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        return self._combine(other, True)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        if self._differences(other):
            return False
        return self._contents() == other._contents()

    def _contents(self) -> tuple[bytearray, int]:
        """Payload and number of items, both of one moment."""
        _, payload, n_items = self._snapshot(bytearray)
        return payload, n_items


# --- for the rest of the library: what its users have no use for

F = TypeVar("F", bound=Filter)


def open_payload(
    cls: type[F], header: format.Header, payload: Memory, secret: bytes | None, where: str, recover: bool = False
) -> F:
    """A filter over ``payload``, which it keeps; its size is compared with what the parameters say it must be."""
    return cls._from_payload(header, payload, secret, where, recover=recover)


def open_over(cls: type[F], params: tuple[int, ...], payload: Memory, n_items: int, secret: bytes | None) -> F:
    """A filter over ``payload``, whose size and contents nobody checks."""
    made = cls.__new__(cls)
    made._open(params, payload, n_items, secret)
    return made


def detach(filter: Filter) -> None:
    """Let go of the buffer, which somebody else owns."""
    filter._detach()


def secret_of(filter: Filter) -> bytes | None:
    """The secret that the filter hashes with."""
    return filter._secret


def is_held(filter: Filter) -> bool:
    """Whether any thread has a ``dlbf.capi.FilterReader`` of the filter."""
    return filter._is_held


def check_all(filter: Filter) -> None:
    """Compare all of a mapped filter with its sums now; ChecksumError if it differs."""
    filter._check_all()


def payload_of(filter: Filter) -> memoryview:
    """The bytes that the filter works on, all of them checked; whoever writes to them must be alone."""
    return filter._payload()


def header_of(filter: Filter) -> format.Header:
    """The header of the filter as it is now."""
    return filter._header(filter._params, len(filter))


def write_sums(filter: Filter, view: memoryview, payload: memoryview, flush: Callable[[], object]) -> None:
    """Complete the file that a filter is mapped from and has let go of."""
    filter._write_sums(view, payload, flush)


def geometry_of(filter: Filter) -> dict[str, int]:
    """The parameters of the filter's own class, by name."""
    return dict(zip(filter.PARAMS, filter._params[len(COMMON_PARAMS) :], strict=True))


def mapped_file(filter: Filter) -> FilterFile | None:
    """The file that the filter is mapped from."""
    return filter._file


def set_mapped_file(filter: Filter, file: FilterFile) -> None:
    """Let ``filter.close()`` close that file, too."""
    filter._file = file


def inherit(filter: Filter) -> None:
    """In a child of fork(): the filter's file is the parent's, and cannot be changed here."""
    filter._inherit()


def _from_bytes(cls: type[Filter], data: bytes, secret: bytes | None) -> Filter:
    return cls.from_bytes(data, secret)


class Intersecting(Filter):
    """Mixin for filters whose contents can be intersected."""

    def __and__(self, other: object) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        return self.copy()._combine(other, False)

    def __iand__(self, other: object) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        return self._combine(other, False)
