"""Base filters: the public set-like classes over the compiled kernels."""

from dlbf.filters.base import Filter
from dlbf.filters.bloom import BloomFilter, CountingBloomFilter
from dlbf.filters.deletable import DeletableBloomFilter
from dlbf.filters.exact import ExactSet
from dlbf.filters.files import open_filter
from dlbf.filters.ribbon import RibbonFilter
from dlbf.filters.succinct import SuccinctCountingFilter
from dlbf.filters.tables import CuckooFilter, DLeftFilter

__all__ = [
    "BloomFilter",
    "CountingBloomFilter",
    "CuckooFilter",
    "DLeftFilter",
    "DeletableBloomFilter",
    "ExactSet",
    "Filter",
    "RibbonFilter",
    "SuccinctCountingFilter",
    "open_filter",
]
