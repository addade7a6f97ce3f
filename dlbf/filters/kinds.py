"""The table of base filters: one row each, which every other module asks.

A new base filter costs its kernel (``dlbf/kernels``), its class with its row (``dlbf/filters``), a line here, and a
case in ``dlbf/kernels/composite.pyx``.
"""

from importlib import import_module

from dlbf import format
from dlbf.errors import FormatError
from dlbf.filters.base import Filter
from dlbf.filters.bloom import BITS, COUNTERS
from dlbf.filters.deletable import DELETABLE
from dlbf.filters.elastic import ELASTIC
from dlbf.filters.exact import EXACT
from dlbf.filters.ribbon import RIBBON
from dlbf.filters.row import Base
from dlbf.filters.succinct import SUCCINCT
from dlbf.filters.tables import CUCKOO, DLEFT

__all__ = ["BASES", "add_base", "base_of_kind", "class_of_kind"]

BASES: dict[str, Base] = {}  # by name, in the order in which people see them
_NUMBERED: dict[int, Base] = {}
# Classes of filters that are no bases, by the number in their header: module and name, imported when one is opened.
COMPOSITES = {
    format.KIND_LEARNED: ("dlbf.learned", "LearnedFilter"),
    format.KIND_GROWING: ("dlbf.filters.growing", "GrowingFilter"),
    format.KIND_EXPIRING: ("dlbf.filters.expiring", "ExpiringFilter"),
    format.KIND_SHARDED: ("dlbf.sharded", "ShardedFilter"),
}


def add_base(row: Base) -> None:
    """Put a row into the table; ValueError if its name or its number is taken.

    Before the modules that are made from the table (``dlbf.theory``, the command line) are imported.
    """
    if row.name in BASES or row.number in format.KIND_NAMES:
        taken = BASES[row.name].cls.__name__ if row.name in BASES else format.KIND_NAMES[row.number]
        raise ValueError(f"the base filter {row.name!r} of kind {row.number}: its name or its number is a {taken}'s")
    BASES[row.name] = _NUMBERED[row.number] = row
    format.KIND_NAMES[row.number] = row.cls.__name__


def base_of_kind(number: int) -> Base | None:
    """The row of the base filter with that number in its header, or None.

    Examples
    --------
    >>> base_of_kind(5).name
    'cuckoo'
    """
    return _NUMBERED.get(number)


def class_of_kind(number: int, where: str) -> type[Filter]:
    """The class of the filters with that number in their header; FormatError, about ``where``, if there is none."""
    if number in COMPOSITES:
        module, name = COMPOSITES[number]
        composite: type[Filter] = getattr(import_module(module), name)
        return composite
    row = base_of_kind(number)
    if row is None:
        found = format.KIND_NAMES.get(number, f"kind {number}")
        raise FormatError(f"{where}: expected a filter, found a {found}")
    return row.cls


for _row in (BITS, COUNTERS, SUCCINCT, DELETABLE, DLEFT, CUCKOO, EXACT, RIBBON, ELASTIC):
    add_base(_row)
