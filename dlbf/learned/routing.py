"""Keys scored and hashed once, for a learned filter that is asked for them again and again."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlbf.errors import HashMismatchError
from dlbf.filters.hashed import KeyHashes, Selection
from dlbf.format import hash_identity
from dlbf.kernels.hashing import checksum64, hash64_many
from dlbf.kernels.keys import HashReader
from dlbf.learned.assembly import AT_MODEL_PARAMS
from dlbf.learned.composite import Composite
from dlbf.typenames import Keys

__all__ = ["RoutedKeys", "Routing"]

AT_FLAGS, AT_THRESHOLDS = 8, 16  # in the directory
FLAG_HIDES_SCORE = 1


@dataclass(frozen=True, eq=False, repr=False)
class RoutedKeys:
    """Hash and score region of every key of a batch; made by ``LearnedFilter.route_keys``.

    ``r[3:7]``, or an array of numbers or bools in the brackets, selects some of them.

    Attributes
    ----------
    hashes : KeyHashes
        Of the keys.
    regions : numpy.ndarray of uint8
        Their score regions.
    route : int
        A checksum of the model and its thresholds, which tells filters apart that route keys in different ways.
    """

    hashes: KeyHashes
    regions: npt.NDArray[np.uint8]
    route: int
    __hash__ = None  # type: ignore[assignment]
    __iter__ = None  # no batch of keys

    def __post_init__(self) -> None:
        if self.regions.dtype != np.uint8 or self.regions.shape != (len(self.hashes),):
            raise TypeError(
                f"expected {len(self.hashes)} regions of dtype uint8, found {self.regions.shape} of "
                f"{self.regions.dtype}"
            )
        regions = np.ascontiguousarray(self.regions).view()
        regions.flags.writeable = False
        object.__setattr__(self, "regions", regions)

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, selection: Selection) -> "RoutedKeys":
        return RoutedKeys(self.hashes[selection], self.regions[selection], self.route)

    def __repr__(self) -> str:
        return f"<RoutedKeys: {len(self)} of route {self.route:016x}>"


class Routing(Composite):
    """What a learned filter does with keys that were scored before."""

    __hash__ = None

    def _why_keys(self) -> str:
        directory = self._directory()
        hides_score = int.from_bytes(directory[AT_FLAGS : AT_FLAGS + 4], "little") & FLAG_HIDES_SCORE
        if self._head()[0] > 1 and not hides_score:
            return "this LearnedFilter has a model that scores keys (route_keys and contains_routed do that once)"
        return self._why_whole_keys()

    def _why_whole_keys(self) -> str:
        """Why hash and region of a key will not do; "" if they will."""
        exact = any(part.row.cls.NEEDS_KEYS for part, _, _ in self._layout)
        return f"the design {self.design} compares whole keys with those of an exact set" if exact else ""

    def _route(self) -> int:
        """A checksum of all that decides about a key's region."""
        directory = self._directory()
        flags = int.from_bytes(directory[AT_FLAGS : AT_FLAGS + 4], "little") & FLAG_HIDES_SCORE
        head = directory[:4] + bytes([flags]) + directory[AT_THRESHOLDS:AT_MODEL_PARAMS]
        return checksum64(head + self.model.to_bytes())

    def route_keys(self, keys: Keys) -> RoutedKeys:
        """Hash and score a batch of keys once.

        Parameters
        ----------
        keys : iterable of keys, numpy array of dtype S, U, object or integers, or Arrow string or binary array

        Returns
        -------
        RoutedKeys
            For ``contains_routed`` of this filter, and of others with the same model, thresholds and secret: its
            copies, and what it becomes when keys come and go.

        Examples
        --------
        >>> from dlbf import LearnedFilter
        >>> from dlbf.datasets import listed_urls, ordinary_urls
        >>> keys, negatives = list(listed_urls(3000)), list(ordinary_urls(20000))
        >>> lf = LearnedFilter.fit(keys, negatives, fpr=0.01, model="ngram")
        >>> routed = lf.route_keys(keys[:100])
        >>> bool(lf.contains_routed(routed).all()), bool(lf.copy().contains_routed(routed[5:7]).all())
        (True, True)
        """
        if self.filter_id:  # of a shard: the kernel's hashes are mixed with it already
            keys = list(keys) if isinstance(keys, Iterator) else keys
            hashes, regions = hash64_many(keys, self._secret), self._regions_many(keys)
        else:
            hashes, regions = self._route_many(keys)
        return RoutedKeys(KeyHashes(hashes, *hash_identity(self._secret)), regions, self._route())

    def contains_routed(self, routed: RoutedKeys) -> npt.NDArray[np.bool_]:
        """``contains_many`` of the keys that ``route_keys`` was given.

        Raises
        ------
        HashMismatchError
            If they were routed by a filter with another secret, model or thresholds.
        TypeError
            If the design compares whole keys (an exact set of deleted ones).
        """
        if not isinstance(routed, RoutedKeys):
            raise TypeError(f"expected the RoutedKeys that route_keys gives, found {type(routed).__name__}")
        expected, found = hash_identity(self._secret), (routed.hashes.hash_kind, routed.hashes.key_check)
        if found != expected or routed.route != self._route():
            what = "model or thresholds" if found == expected else "hash (different secrets, or only one has one)"
            raise HashMismatchError(
                f"this LearnedFilter expects keys of route {self._route():016x}, found route {routed.route:016x}, of a "
                f"filter with another {what}; route the keys again: lf.route_keys(keys)"
            )
        if why := self._why_whole_keys():
            raise TypeError(f"{why}, so hash and region are not enough; pass the keys")
        if len(routed) and int(routed.regions.max()) >= self._head()[0]:
            raise HashMismatchError(
                f"expected regions below {self._head()[0]}, found {routed.regions.max()}; route the keys again"
            )
        return self.contains_many(HashReader(routed.hashes.values, routed.regions))  # type: ignore[arg-type]
