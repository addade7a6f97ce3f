"""What filters that cannot forget a key say when they are asked to."""

import numpy as np
import numpy.typing as npt

from dlbf.errors import NotDeletableError
from dlbf.filters.base import Filter
from dlbf.typenames import Key, Keys

__all__ = ["NotDeletable"]


class NotDeletable(Filter):
    """Mixin for filters that cannot forget: the removing methods say so."""

    DELETABLE = False

    def _refuse(self) -> NotDeletableError:
        return NotDeletableError(
            f"a {type(self).__name__} cannot remove keys; use CuckooFilter (smallest), CountingBloomFilter, "
            "DLeftFilter or DeletableBloomFilter"
        )

    def remove(self, key: Key) -> bool:
        """Always raises NotDeletableError."""
        raise self._refuse()

    def discard(self, key: Key) -> bool:
        """Always raises NotDeletableError."""
        raise self._refuse()

    def remove_many(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Always raises NotDeletableError."""
        raise self._refuse()
