"""dlbf: deletable learned Bloom filters."""

from dlbf._version import __version__
from dlbf.errors import (
    ChecksumError,
    DlbfError,
    FilterFullError,
    FormatError,
    ModelMismatchError,
    NotDeletableError,
    StoreError,
    VersionError,
)

__all__ = [
    "ChecksumError",
    "DlbfError",
    "FilterFullError",
    "FormatError",
    "ModelMismatchError",
    "NotDeletableError",
    "StoreError",
    "VersionError",
    "__version__",
]
