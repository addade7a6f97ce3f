"""Filling the filter that a rebuild has planned, in larger room if it has to be."""

from collections.abc import Callable

from dlbf.errors import FilterFullError, StoreError
from dlbf.filters.base import Filter
from dlbf.storage import generations
from dlbf.storage.build import TOO_MANY_ALIKE, Builder
from dlbf.storage.commits import Commits
from dlbf.storage.layers import Gathering
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.parallel import NewBuilder

__all__ = ["filled", "larger", "pattern_of"]

# A filter with that much more room than keys is not full because of their number.
MOST_ROOM = 4.0


def filled(
    commits: Commits,
    new_builder: NewBuilder,
    empty: Filter | Gathering,
    n_keys: int,
    report: Callable[[int, int], None],
) -> Builder[Txn]:
    """A builder that is done; its filter is larger than ``empty`` if the store outgrew that meanwhile."""
    room = 1.0
    while True:
        builder = new_builder(empty)
        try:
            commits.build(builder, n_keys, report)
            return builder
        except FilterFullError:
            room *= 1.2
            if room > MOST_ROOM:
                raise StoreError(
                    f"{commits.environment.path}: {TOO_MANY_ALIKE}; remove them and run rebuild() again"
                ) from None
            # New keys may all be of one region, which then needs many times its room.
            empty = larger(empty, room)


def pattern_of(empty: Filter | Gathering) -> Filter | None:
    """What was planned with a model, or perhaps without."""
    return empty.pattern if isinstance(empty, Gathering) else empty


def larger(empty: Filter | Gathering, room: float) -> Filter | Gathering:
    """An empty filter like this one with ``room`` times the room; one table with little more than it had."""
    if isinstance(empty, Gathering):
        return empty.enlarged(room)
    return generations.enlarged(empty, room if generations.is_learned(empty) else 1.2)
