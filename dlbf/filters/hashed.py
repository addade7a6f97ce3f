"""Hash once, ask many filters: hashes that know how they were made, and the methods that take them.

A filter without a model sees nothing of a key but its 64-bit hash.  Filters with the same secret (or all without one)
see the same hash, whatever their kind, size and ``filter_id``; so it can be computed once, kept instead of the key, and
given to all of them.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dlbf import format
from dlbf.errors import HashMismatchError
from dlbf.kernels.core import FilterCore
from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.keys import HashReader
from dlbf.typenames import Integers, Keys

__all__ = ["ByHash", "KeyHashes", "Selection", "checked_hashes", "hash_keys", "int_key"]

# What selects some of a batch: a slice, a mask, or numbers.
Selection = slice | npt.NDArray[np.bool_] | Integers


def int_key(number: int) -> bytes:
    """The key that an integer is, in batches of numpy integers of any width and by itself.

    8 bytes, little-endian; negative numbers in two's complement with a ninth byte, 0xFF, behind them.  So 7 is the same
    key in an array of int8 and of uint64, and -1 is not 2**64 - 1.

    Parameters
    ----------
    number : int
        At least -2**63, below 2**64.

    Examples
    --------
    >>> import dlbf, numpy as np
    >>> f = dlbf.CuckooFilter(1000)
    >>> f.update(np.arange(100, dtype=np.int32))
    >>> dlbf.int_key(7) in f, bool(f.contains_many(np.array([7], dtype=np.uint8))[0]), dlbf.int_key(-1).hex()
    (True, True, 'ffffffffffffffffff')
    """
    if isinstance(number, bool | np.bool_) or not isinstance(number, int | np.integer):
        raise TypeError(f"expected an integer, found {type(number).__name__}")
    value = int(number)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"expected an integer of at least -2**63 and below 2**64, found {value}; use str(number)")
    return value.to_bytes(8, "little") if value >= 0 else value.to_bytes(9, "little", signed=True)


@dataclass(frozen=True, eq=False, repr=False)
class KeyHashes:
    """The hashes of a batch of keys, and how they were made.

    Made by ``dlbf.hash_keys``.  ``h[3:7]``, or an array of numbers or bools in the brackets, selects some of them.  To
    keep them elsewhere, keep the three attributes and call this class with them.

    Attributes
    ----------
    values : numpy.ndarray of uint64
        One for every key, read-only.
    hash_kind : int
        1: XXH3-64, 3: SipHash-1-3 under a secret, 2: SipHash-2-4, of filters that dlbf 0.1 made.
    key_check : int
        The hash of a fixed text under the secret, which tells two secrets apart; 0 without one.

    Examples
    --------
    >>> import dlbf
    >>> h = dlbf.hash_keys(["anna", "bob", "clara"])
    >>> len(h), len(h[1:]), h[1:] == dlbf.hash_keys([b"bob", b"clara"])
    (3, 2, True)
    """

    values: npt.NDArray[np.uint64]
    hash_kind: int
    key_check: int
    __hash__ = None  # type: ignore[assignment]
    __iter__ = None  # a batch of hashes is no batch of keys

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.dtype != np.uint64 or values.ndim != 1:
            raise TypeError(f"expected one dimension of uint64, found {values.ndim} of {values.dtype}")
        values = np.ascontiguousarray(values).view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, selection: Selection) -> "KeyHashes":
        if isinstance(selection, int | np.integer):
            raise TypeError(f"one hash alone is not a batch; use a slice, [{selection}:{selection + 1}]")
        return KeyHashes(self.values[selection], self.hash_kind, self.key_check)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyHashes):
            return NotImplemented
        same = (self.hash_kind, self.key_check) == (other.hash_kind, other.key_check)
        return same and np.array_equal(self.values, other.values)

    def __repr__(self) -> str:
        return f"<KeyHashes: {len(self)} by {_named(self.hash_kind, self.key_check)}>"


def hash_keys(keys: Keys, secret: bytes | None = None) -> KeyHashes:
    """Hash a batch of keys once, for any number of filters that were made with the same secret.

    Parameters
    ----------
    keys : iterable of keys, numpy array of dtype S, U, object or integers, or Arrow string or binary array
        Generators are streamed: 8 bytes are kept of each key.
    secret : bytes, optional
        That the filters were made with.

    Returns
    -------
    KeyHashes
        For ``contains_hashes``, ``add_hashes``, ``remove_hashes`` of filters, and ``RibbonFilter.build_from_hashes``.

    Examples
    --------
    >>> import dlbf
    >>> day, week = dlbf.CuckooFilter(1000), dlbf.BloomFilter(10_000)
    >>> h = dlbf.hash_keys(["anna", "bob"])
    >>> day.add_hashes(h[:1]); week.add_hashes(h)
    >>> day.contains_hashes(h).tolist(), week.contains_hashes(h).tolist()
    ([True, False], [True, True])
    """
    return KeyHashes(hash64_many(keys, secret), *format.hash_identity(secret))


def _named(hash_kind: int, key_check: int) -> str:
    if hash_kind == format.HASH_XXH3:
        return "XXH3-64 without a secret"
    name = "SipHash-2-4" if hash_kind == format.HASH_SIP24 else "SipHash-1-3"
    return f"{name} under the secret with the check {key_check:016x}"


def checked_hashes(hashes: KeyHashes, secret: bytes | None, who: str) -> npt.NDArray[np.uint64]:
    """The bare hashes; HashMismatchError unless they are those of a filter that was made with ``secret``."""
    if not isinstance(hashes, KeyHashes):
        raise TypeError(f"expected the KeyHashes that dlbf.hash_keys gives, found {type(hashes).__name__}")
    expected = format.hash_identity(secret)
    found = (hashes.hash_kind, hashes.key_check)
    if found != expected:
        again = "dlbf.hash_keys(keys, secret=...), with this filter's secret"
        if secret is None:
            again = "dlbf.hash_keys(keys)"
        elif expected[0] == format.HASH_SIP24:
            again = "with the filter's own hash_keys(keys), since dlbf 0.1 made it"
        raise HashMismatchError(
            f"this {who} expects hashes by {_named(*expected)}, found hashes by {_named(*found)}; "
            f"hash the keys again: {again}"
        )
    return hashes.values


class ByHash(FilterCore):
    """Methods of filters that take hashes instead of keys; the answers are those for the keys."""

    NEEDS_KEYS: ClassVar[bool] = False  # compares whole keys, so a hash is not enough
    _secret: bytes | None

    def _why_keys(self) -> str:
        """Why this filter must see the keys themselves; "" if their hashes will do."""
        return f"a {type(self).__name__} compares whole keys" if self.NEEDS_KEYS else ""

    def _hashed(self, hashes: KeyHashes) -> HashReader:
        """The batch that stands for keys with these hashes."""
        values = checked_hashes(hashes, self._secret, type(self).__name__)
        if why := self._why_keys():
            raise TypeError(f"{why}, so their hashes are not enough; pass the keys")
        return HashReader(values)

    def hash_keys(self, keys: Keys) -> KeyHashes:
        """``dlbf.hash_keys`` of a batch with this filter's secret, by the hash that it was made with.

        Examples
        --------
        >>> import dlbf
        >>> f = dlbf.CuckooFilter(1000, secret=bytes(16))
        >>> f.hash_keys(["anna"]) == dlbf.hash_keys(["anna"], secret=bytes(16))
        True
        """
        return KeyHashes(hash64_many(keys, self._secret), *format.hash_identity(self._secret))

    def contains_hashes(self, hashes: KeyHashes) -> npt.NDArray[np.bool_]:
        """``contains_many`` of the keys with these hashes.

        Parameters
        ----------
        hashes : KeyHashes
            From ``dlbf.hash_keys``, or ``hash_keys`` of a filter.

        Raises
        ------
        HashMismatchError
            If they were made with another secret than the filter.
        TypeError
            If the filter needs the keys themselves: an ``ExactSet``, or a filter with a model (``route_keys`` there).
        """
        return self.contains_many(self._hashed(hashes))  # type: ignore[arg-type]

    def add_hashes(self, hashes: KeyHashes) -> None:
        """``update`` with the keys that have these hashes; raises what that and ``contains_hashes`` raise."""
        self.update(self._hashed(hashes))  # type: ignore[arg-type]

    def remove_hashes(self, hashes: KeyHashes) -> npt.NDArray[np.bool_]:
        """``remove_many`` of the keys with these hashes; raises what that and ``contains_hashes`` raise."""
        return self.remove_many(self._hashed(hashes))  # type: ignore[arg-type]
