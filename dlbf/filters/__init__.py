"""Base filters: the public set-like classes over the compiled kernels.

What not every program needs (``LAZY``) is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dlbf.filters.base import Filter
from dlbf.filters.bloom import BloomFilter, CountingBloomFilter
from dlbf.filters.deletable import DeletableBloomFilter
from dlbf.filters.exact import ExactSet
from dlbf.filters.hashed import KeyHashes, hash_keys, int_key
from dlbf.filters.ribbon import RibbonFilter
from dlbf.filters.succinct import SuccinctCountingFilter
from dlbf.filters.tables import CuckooFilter, DLeftFilter

if TYPE_CHECKING:
    from dlbf.filters.elastic import ElasticBloomFilter
    from dlbf.filters.expiring import ExpiringFilter, ManualClock
    from dlbf.filters.files import open_filter
    from dlbf.filters.growing import GrowingFilter

__all__ = [
    "BloomFilter",
    "CountingBloomFilter",
    "CuckooFilter",
    "DLeftFilter",
    "DeletableBloomFilter",
    "ElasticBloomFilter",
    "ExactSet",
    "ExpiringFilter",
    "Filter",
    "GrowingFilter",
    "KeyHashes",
    "ManualClock",
    "RibbonFilter",
    "SuccinctCountingFilter",
    "hash_keys",
    "int_key",
    "open_filter",
]

LAZY = {
    "ElasticBloomFilter": "dlbf.filters.elastic",
    "ExpiringFilter": "dlbf.filters.expiring",
    "GrowingFilter": "dlbf.filters.growing",
    "ManualClock": "dlbf.filters.expiring",
    "open_filter": "dlbf.filters.files",
}


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(importlib.import_module(LAZY[name]), name)
    raise AttributeError(f"module 'dlbf.filters' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
