"""dlbf: deletable learned Bloom filters.

The plain filters are imported at once; what learning needs (``LearnedFilter``, ``models``, ``theory``), what not every
program needs (``open_filter``, filters that grow or expire), and what is for keys beyond one machine
(``ShardedFilter``, ``build``), on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dlbf._version import __version__
from dlbf.errors import (
    ChecksumError,
    DlbfError,
    FilterFullError,
    FormatError,
    HashMismatchError,
    ModelMismatchError,
    NotDeletableError,
    ReadOnlyError,
    ReinsertionError,
    StaticFilterError,
    StoreError,
    VersionError,
)

try:
    from dlbf.filters import (
        BloomFilter,
        CountingBloomFilter,
        CuckooFilter,
        DeletableBloomFilter,
        DLeftFilter,
        ExactSet,
        KeyHashes,
        RibbonFilter,
        SuccinctCountingFilter,
        hash_keys,
        int_key,
    )
except ModuleNotFoundError as error:
    if (error.name or "").startswith("dlbf.kernels"):
        raise ImportError(
            "dlbf is being imported from its sources, where the kernels are not built; start Python in another "
            "directory, or build them here with: pip install -e ."
        ) from error
    raise

if TYPE_CHECKING:
    from dlbf import build, models, theory
    from dlbf.filters import ElasticBloomFilter, ExpiringFilter, GrowingFilter, ManualClock, open_filter
    from dlbf.learned import LearnedFilter
    from dlbf.sharded import ShardedFilter

__all__ = [
    "BloomFilter",
    "ChecksumError",
    "CountingBloomFilter",
    "CuckooFilter",
    "DLeftFilter",
    "DeletableBloomFilter",
    "DlbfError",
    "ElasticBloomFilter",
    "ExactSet",
    "ExpiringFilter",
    "FilterFullError",
    "FormatError",
    "GrowingFilter",
    "HashMismatchError",
    "KeyHashes",
    "LearnedFilter",
    "ManualClock",
    "ModelMismatchError",
    "NotDeletableError",
    "ReadOnlyError",
    "ReinsertionError",
    "RibbonFilter",
    "ShardedFilter",
    "StaticFilterError",
    "StoreError",
    "SuccinctCountingFilter",
    "VersionError",
    "__version__",
    "build",
    "hash_keys",
    "int_key",
    "models",
    "open_filter",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name in ("build", "models", "theory", "storage"):
        return importlib.import_module(f"dlbf.{name}")
    if name in ("ElasticBloomFilter", "ExpiringFilter", "GrowingFilter", "ManualClock", "open_filter"):
        return getattr(importlib.import_module("dlbf.filters"), name)
    if name == "LearnedFilter":
        return importlib.import_module("dlbf.learned").LearnedFilter
    if name == "ShardedFilter":
        return importlib.import_module("dlbf.sharded").ShardedFilter
    raise AttributeError(f"module 'dlbf' has no attribute {name!r}")


def __dir__() -> list[str]:
    # What there is for users, imported yet or not; not what this file imports for itself.
    return [*__all__, "storage", *(name for name in globals() if name.startswith("__") and name not in __all__)]
