"""dlbf: deletable learned Bloom filters."""

from dlbf._version import __version__
from dlbf.errors import (
    ChecksumError,
    DlbfError,
    FilterFullError,
    FormatError,
    ModelMismatchError,
    NotDeletableError,
    ReadOnlyError,
    StoreError,
    VersionError,
)
from dlbf.filters import (
    BloomFilter,
    CountingBloomFilter,
    CuckooFilter,
    DeletableBloomFilter,
    DLeftFilter,
    ExactSet,
    SuccinctCountingFilter,
    open_filter,
)

__all__ = [
    "BloomFilter",
    "ChecksumError",
    "CountingBloomFilter",
    "CuckooFilter",
    "DLeftFilter",
    "DeletableBloomFilter",
    "DlbfError",
    "ExactSet",
    "FilterFullError",
    "FormatError",
    "ModelMismatchError",
    "NotDeletableError",
    "ReadOnlyError",
    "StoreError",
    "SuccinctCountingFilter",
    "VersionError",
    "__version__",
    "open_filter",
]
