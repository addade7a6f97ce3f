"""Every error dlbf raises on purpose.

All derive from ``DlbfError``; those that are also a built-in kind of error
derive from that too, so ``except ValueError`` or ``except KeyError`` work as
a Python user expects.  Messages say what was expected, what was found, where, and
what to do next.
"""

__all__ = [
    "ChecksumError",
    "DlbfError",
    "FilterFullError",
    "FormatError",
    "HashMismatchError",
    "ModelMismatchError",
    "NotDeletableError",
    "ReadOnlyError",
    "ReinsertionError",
    "StaticFilterError",
    "StoreError",
    "VersionError",
]


class DlbfError(Exception):
    """Base class of every error dlbf raises on purpose.

    Examples
    --------
    >>> import dlbf
    >>> issubclass(dlbf.FormatError, dlbf.DlbfError), issubclass(dlbf.FormatError, ValueError)
    (True, True)
    """


class FormatError(DlbfError, ValueError):
    """Bytes that are not a dlbf object, or not a whole one.

    Examples
    --------
    >>> import dlbf
    >>> dlbf.CuckooFilter.from_bytes(b"something else")
    Traceback (most recent call last):
        ...
    dlbf.errors.FormatError: ...
    """


class HashMismatchError(DlbfError, ValueError):
    """Hashes, or routed keys, that were made for another filter.

    Examples
    --------
    >>> import dlbf
    >>> dlbf.CuckooFilter(10, secret=bytes(16)).contains_hashes(dlbf.hash_keys([b"a"]))
    Traceback (most recent call last):
        ...
    dlbf.errors.HashMismatchError: ...
    """


class ChecksumError(FormatError):
    """Bytes that were a dlbf object once and have changed since.

    Examples
    --------
    >>> import dlbf
    >>> data = bytearray(dlbf.CuckooFilter(10).to_bytes())
    >>> data[260] ^= 1
    >>> dlbf.CuckooFilter.from_bytes(data)
    Traceback (most recent call last):
        ...
    dlbf.errors.ChecksumError: ...
    """


class VersionError(FormatError):
    """A dlbf object written by a version this one cannot read.

    Examples
    --------
    >>> import dlbf
    >>> issubclass(dlbf.VersionError, dlbf.FormatError)
    True
    """


class ModelMismatchError(DlbfError, ValueError):
    """A filter and a model that do not belong together.

    Examples
    --------
    >>> import dlbf
    >>> issubclass(dlbf.ModelMismatchError, ValueError)
    True
    """


class FilterFullError(DlbfError):
    """A table with no room for one more key; everything in it is still there.

    Examples
    --------
    >>> import dlbf
    >>> f = dlbf.CuckooFilter(100)
    >>> f.update(b"%d" % n for n in range(1000))
    Traceback (most recent call last):
        ...
    dlbf.errors.FilterFullError: ...
    >>> b"0" in f
    True
    """


class NotDeletableError(DlbfError, TypeError):
    """A removal asked of a filter that cannot forget keys.

    Examples
    --------
    >>> import dlbf
    >>> dlbf.BloomFilter(100).remove(b"key")
    Traceback (most recent call last):
        ...
    dlbf.errors.NotDeletableError: ...
    """


class StaticFilterError(NotDeletableError):
    """A change asked of a filter that is built once, from all of its keys.

    Examples
    --------
    >>> import dlbf
    >>> dlbf.RibbonFilter.build([b"a", b"b"]).add(b"c")
    Traceback (most recent call last):
        ...
    dlbf.errors.StaticFilterError: ...
    """


class StoreError(DlbfError):
    """A store that cannot do what was asked; its data is untouched.

    Examples
    --------
    >>> from dlbf.storage import Store
    >>> Store("/nowhere/at/all", readonly=True)
    Traceback (most recent call last):
        ...
    dlbf.errors.StoreError: ...
    """


class ReadOnlyError(DlbfError, TypeError):
    """A change asked of a filter that is mapped read-only.

    Examples
    --------
    >>> import dlbf, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> dlbf.CuckooFilter(100).save(f"{folder.name}/f.dlbf")
    >>> with dlbf.open_filter(f"{folder.name}/f.dlbf") as f:
    ...     f.is_writable
    False
    >>> dlbf.open_filter(f"{folder.name}/f.dlbf").add(b"key")
    Traceback (most recent call last):
        ...
    dlbf.errors.ReadOnlyError: ...
    >>> folder.cleanup()
    """


class ReinsertionError(DlbfError, ValueError):
    """A key that a design with an unforgetting deleted set cannot take (back).

    Examples
    --------
    >>> import dlbf
    >>> issubclass(dlbf.ReinsertionError, ValueError)
    True
    """
