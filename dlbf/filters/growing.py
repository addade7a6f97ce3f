"""A deletable filter that grows from nothing to any size, without its keys."""

from typing import Self

from dlbf import format
from dlbf.errors import DlbfError
from dlbf.filters.base import MAX_PAYLOAD_BYTES, Filter, aligned_zeros, check_count, check_rate, geometry_of, secret_of
from dlbf.kernels.growing import DEEPEST, PAGE_BUCKETS, PAGE_ENTRIES, GrowingCore
from dlbf.kernels.hashing import decided_secret
from dlbf.typenames import Memory

__all__ = ["GrowingFilter", "fingerprint_lengths"]

LEAST_FPR = 1e-9
# How much of the rate each generation may use: an eleventh of four fifths for the first that a filter has and for each
# of ten doublings, so that a thousandfold growth costs no bit; those that follow share the rest.
EVEN_DOUBLINGS = 10
EVEN_SHARE = 0.0733
TAIL = 8.0
HASH_BITS = 64


def fingerprint_lengths(fpr: float, first_depth: int) -> bytes:
    """Bits of a new fingerprint at each depth of its page; a part of the format.

    A key that is added to a page of depth d takes ``2**-length / (256 * 2**d)`` of the rate, for ever.  A page takes in
    192 keys between two splits (384 before the first one), so a generation costs ``0.75 * 2**-length``.

    Examples
    --------
    >>> list(fingerprint_lengths(0.01, 0)[:14])
    [11, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 12, 12, 13]
    """
    lengths = [0] * first_depth
    used = 0.0
    before = 1
    for depth in range(first_depth, DEEPEST + 1):
        doublings = depth - first_depth
        if doublings <= EVEN_DOUBLINGS:
            allowed = EVEN_SHARE * (doublings + 1)
        else:
            rest = 1 - EVEN_SHARE * (EVEN_DOUBLINGS + 1)
            allowed = 1 - rest * TAIL / (TAIL + doublings - EVEN_DOUBLINGS)
        weight = PAGE_ENTRIES / PAGE_BUCKETS / (1 if doublings == 0 else 2)
        # An entry of the page that was split has one bit less, and must have room.
        length = max(1, before - 1)
        most = HASH_BITS - 9 - depth
        while length < most and used + weight * 2.0**-length > allowed * fpr:
            length += 1
        used += weight * 2.0**-length
        lengths.append(length)
        before = length
    return bytes(lengths)


class GrowingFilter(GrowingCore, Filter):
    """A filter for an unknown number of keys: it grows as they come, a few hundred at a time, and keeps its rate.

    Keys can be removed.  Nothing is read again to grow: fingerprints give up a bit whenever their page is split, and
    new ones are made long enough for the rate to stay below ``fpr`` at any size.  No single ``add`` pays for all: one
    in some hundred splits a page.  At 1 % it takes 14 to 15 bits per key, whatever their number, until it has grown a
    thousandfold, and up to four more by a millionfold.  If the number of keys is known, ``CuckooFilter`` is smaller.

    Parameters
    ----------
    fpr : float
        Largest false-positive rate, at every size; at least 1e-9.  With hashes of 64 bits it is kept up to some
        ``fpr * 2**55`` keys, which matters only below 1e-6.
    initial_capacity : int
        Keys that it has room for before it begins to grow; fewer cost little, so a low guess is a good one.
    secret : bytes, optional
        16 bytes for the keyed hash, as for ``dlbf.BloomFilter``.
    filter_id : int
        Separates the positions of filters that share a hash.

    Notes
    -----
    Like every filter of fingerprints it holds a key that is added twice two times, up to some five hundred times.
    A file of it can be mapped for reading, and is checked whole when it is opened; to change one, use ``from_bytes``
    and ``save``.  Removing keys gives memory back; the number of pages stays.  Adding, removing and asking touch one
    page of at most 511 entries, whatever the size; only the directory, a pointer for each page, is copied when it
    doubles.  Removing a key that is older than some twenty doublings strikes it from every page that came of its own.

    Examples
    --------
    >>> f = GrowingFilter(0.01)
    >>> f.update(b"%d" % i for i in range(100_000))
    >>> len(f), b"7" in f, f.expected_fpr < 0.01, f.bits_per_key < 16
    (100000, True, True, True)
    >>> f.remove(b"7")
    True
    """

    KIND = format.KIND_GROWING
    PARAMS = ("first_depth", "n_bytes")
    IN_PLACE = False

    def __init__(
        self, fpr: float = 0.01, initial_capacity: int = 1000, *, secret: bytes | None = None, filter_id: int = 0
    ) -> None:
        fpr = check_rate(fpr)
        if fpr < LEAST_FPR:
            raise ValueError(f"fpr of a GrowingFilter must be at least {LEAST_FPR}, found {fpr!r}")
        capacity = check_count("initial_capacity", initial_capacity, 1, 1 << 36)
        first_depth = (-(-capacity // PAGE_ENTRIES) - 1).bit_length()
        filter_id = check_count("filter_id", filter_id, 0, 2**64 - 1)
        self._attach(aligned_zeros(8), secret, 0, filter_id)
        self._params = (capacity, format.float_to_param(fpr), filter_id, first_depth, 0)
        self._secret = decided_secret(secret)
        self._apply(self._params)
        self._begin_empty()

    def _open(
        self, params: tuple[int, ...], payload: Memory, n_items: int, secret: bytes | None, sums: bytes | None = None
    ) -> None:
        super()._open(params, payload, n_items, secret, sums)
        self._index()

    def _settle(self) -> None:
        # Pages of our own, which can grow; the payload is let go.
        self._own_pages()
        self._attach(aligned_zeros(8), self._secret, len(self), self.filter_id)

    @classmethod
    def _payload_bytes(cls, params: tuple[int, ...]) -> int:
        fpr = format.param_to_float(params[1])
        if not LEAST_FPR <= fpr < 1:
            raise ValueError(f"fpr must be at least {LEAST_FPR} and below 1, found {fpr!r}")
        check_count("first_depth", params[3], 0, DEEPEST - 1)
        return check_count("n_bytes", params[4], 16, MAX_PAYLOAD_BYTES)

    def _apply(self, params: tuple[int, ...]) -> None:
        self._set_geometry(params[3], fingerprint_lengths(format.param_to_float(params[1]), params[3]))

    def _params_with(self, n_bytes: int) -> tuple[int, ...]:
        """The parameters of a payload of that size."""
        return (*self._params[:4], n_bytes)

    def close(self) -> None:
        """Let go of the memory and, if it is mapped, of the file; later use raises ValueError."""
        super().close()
        self._let_go()

    @property
    def nbytes(self) -> int:
        """Bytes of memory: pages, what the allocator keeps of each, directory."""
        return self._memory()

    @property
    def fill(self) -> float:
        """Keys in proportion to those that would make every page split."""
        entries, _, _, n_pages, _, _ = self._figures()
        return min(1.0, entries / (n_pages * PAGE_ENTRIES))

    def approximate_count(self) -> int:
        """Number of keys, by the entries."""
        entries, void_keys, *_ = self._figures()
        return entries + round(void_keys)

    @property
    def expected_fpr(self) -> float:
        """False-positive rate, by the lengths of the fingerprints that are there."""
        return min(1.0, self._figures()[2])

    def _differences(self, other: Filter) -> str:
        # How many bytes the pages take is no difference in itself.
        mine, theirs = geometry_of(self), geometry_of(other)
        pairs = {
            "fpr": (self.fpr_target, other.fpr_target),
            "filter_id": (self.filter_id, other.filter_id),
            "initial_capacity": (mine["first_depth"], theirs["first_depth"]),
        }
        parts = [name for name, (here, there) in pairs.items() if here != there]
        if format.hash_identity(self._secret) != format.hash_identity(secret_of(other)):
            parts.append("hash (different secrets, or only one has one)")
        return ", ".join(parts)

    def __or__(self, other: object) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        raise DlbfError(
            "two GrowingFilters cannot be united: their fingerprints have different lengths. Add the keys of one to "
            "the other (update), or their hashes (add_hashes)"
        )

    __ior__ = __or__
    __hash__ = None
