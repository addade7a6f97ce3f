"""What a store tells about itself."""

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Stats", "Verification"]


@dataclass(frozen=True)
class Stats:
    """A store's figures, see :meth:`dlbf.storage.Store.stats`.

    Counts of lookups are those of this process since it opened the store.

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Store(folder.name) as store:
    ...     store[b"key"] = b"value"
    ...     store.get(b"key"), store.get(b"absent")
    ...     stats = store.stats()
    (b'value', None)
    >>> stats.keys, stats.lookups, stats.filtered, stats.false_positives
    (1, 2, 1, 0)
    >>> folder.cleanup()
    """

    keys: int
    filter_bytes: int
    model_bytes: int
    lookups: int
    filtered: int
    false_positives: int
    unfiltered: int
    fpr_target: float
    state: str
    reason: str
    capacity: int
    generation: int
    journal_records: int
    journal_bytes: int
    checkpoint_txn: int
    last_txn: int
    map_size: int
    map_used: int
    file_bytes: int
    readers: int

    @property
    def bits_per_key(self) -> float:
        """Bits of filter and model per key."""
        return 8 * (self.filter_bytes + self.model_bytes) / self.keys if self.keys else float("nan")

    @property
    def observed_fpr(self) -> float:
        """Share of lookups of absent keys that the filter let through (NaN before the first one)."""
        absent = self.filtered + self.false_positives
        return self.false_positives / absent if absent else float("nan")

    @property
    def map_use(self) -> float:
        """Share of the LMDB map in use."""
        return self.map_used / self.map_size if self.map_size else float("nan")

    def asdict(self) -> dict[str, Any]:
        """All figures, for a machine."""
        return asdict(self) | {
            "bits_per_key": self.bits_per_key,
            "observed_fpr": self.observed_fpr,
            "map_use": self.map_use,
        }


@dataclass(frozen=True)
class Verification:
    """What :meth:`dlbf.storage.Store.verify` found.

    Attributes
    ----------
    keys : int
        Keys in the data.
    missing : int
        Keys that the filter would deny.  Anything but 0 is a bug or damage.
    extra : int
        Entries of the filter that belong to no key: lost memory and false positives, nothing worse.
    problems : tuple of str
        Everything found, in words.
    examples : tuple of bytes
        Some of the missing keys.

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Store(folder.name) as store:
    ...     store[b"key"] = b"value"
    ...     found = store.verify()
    >>> found.ok, found.keys, found.missing, found.extra
    (True, 1, 0, 0)
    >>> folder.cleanup()
    """

    keys: int
    missing: int
    extra: int
    problems: tuple[str, ...] = ()
    examples: tuple[bytes, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether the filter holds exactly the keys of the data and every stored byte of it is as written."""
        return not self.missing and not self.extra and not self.problems

    def __bool__(self) -> bool:
        return self.ok
