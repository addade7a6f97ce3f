"""The class of every kind of base filter, as the number in a file's header or a composite's directory names it."""

from dlbf.filters.base import Filter
from dlbf.filters.bloom import BloomFilter, CountingBloomFilter
from dlbf.filters.deletable import DeletableBloomFilter
from dlbf.filters.exact import ExactSet
from dlbf.filters.succinct import SuccinctCountingFilter
from dlbf.filters.tables import CuckooFilter, DLeftFilter

__all__ = ["BASE_CLASSES"]

BASE_CLASSES: dict[int, type[Filter]] = {
    cls.KIND: cls
    for cls in (
        BloomFilter,
        CountingBloomFilter,
        DeletableBloomFilter,
        DLeftFilter,
        CuckooFilter,
        ExactSet,
        SuccinctCountingFilter,
    )
}
