"""Every error dlbf raises on purpose.

All derive from :class:`DlbfError`; those that are also a built-in kind of error
derive from that too, so ``except ValueError`` or ``except KeyError`` work as
a Python user expects.  Messages say what was expected, what was found, where, and
what to do next.
"""

__all__ = [
    "ChecksumError",
    "DlbfError",
    "FilterFullError",
    "FormatError",
    "ModelMismatchError",
    "NotDeletableError",
    "ReadOnlyError",
    "StoreError",
    "VersionError",
]


class DlbfError(Exception):
    """Base class of every error dlbf raises on purpose."""


class FormatError(DlbfError, ValueError):
    """Bytes that are not a dlbf object, or not a whole one."""


class ChecksumError(FormatError):
    """Bytes that were a dlbf object once and have changed since."""


class VersionError(FormatError):
    """A dlbf object written by a version this one cannot read."""


class ModelMismatchError(DlbfError, ValueError):
    """A filter and a model that do not belong together."""


class FilterFullError(DlbfError):
    """A table with no room for one more key; everything in it is still there."""


class NotDeletableError(DlbfError, TypeError):
    """A removal asked of a filter that cannot forget keys."""


class StoreError(DlbfError):
    """A store that cannot do what was asked; its data is untouched."""


class ReadOnlyError(DlbfError, TypeError):
    """A change asked of a filter that is mapped read-only."""
