"""Base filters: the public set-like classes over the compiled kernels.

``open_filter`` is imported on first use: most programs that make filters map no files.
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
    from dlbf.filters.files import open_filter

__all__ = [
    "BloomFilter",
    "CountingBloomFilter",
    "CuckooFilter",
    "DLeftFilter",
    "DeletableBloomFilter",
    "ExactSet",
    "Filter",
    "KeyHashes",
    "RibbonFilter",
    "SuccinctCountingFilter",
    "hash_keys",
    "int_key",
    "open_filter",
]


def __getattr__(name: str) -> Any:
    if name == "open_filter":
        return importlib.import_module("dlbf.filters.files").open_filter
    raise AttributeError(f"module 'dlbf.filters' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
