"""Which integers a model sees of a key, as one small description that travels with the model."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlbf.kernels.features import (
    LEXICAL_NAMES,
    NUMERIC_NAMES,
    check_ngram,
    ngram_rows,
    pack_keys,
    value_rows,
)
from dlbf.typenames import Keys

__all__ = ["Features", "PackedKeys", "guess_split_byte", "guess_view"]

VIEWS = ("none", "ngram", "lexical", "numeric")
NO_SPLIT = 256


class PackedKeys:
    """A batch of keys in two arrays: all bytes, and where each key begins."""

    def __init__(self, keys: Keys) -> None:
        self.data, self.offsets = pack_keys(keys)

    def followed_by(self, other: "PackedKeys") -> "PackedKeys":
        """Both batches in one; rows of ``other`` come after those of ``self``."""
        both = PackedKeys(())
        both.data = np.concatenate((self.data, other.data))
        both.offsets = np.concatenate((self.offsets, other.offsets[1:] + self.offsets[-1]))
        return both

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return bytes(self.data[self.offsets[row] : self.offsets[row + 1]])


@dataclass(frozen=True)
class Features:
    """The view of keys that an estimator was fitted on.

    Parameters
    ----------
    view : {"ngram", "lexical", "numeric"}
        Hashed runs of bytes; 28 counts and flags of text keys; 28 numbers of binary and integer-like keys.
    n_weights : int
        Columns of the ``ngram`` view, a power of two.
    order : int
        Bytes in a run, 2 to 4.
    split : bytes or None
        The byte that ends the head of a key: runs before and after it are told apart, and the lexical
        view counts it as the end of the host.

    Examples
    --------
    >>> Features("lexical").names[20]
    'host_is_address'
    >>> Features("lexical").transform(["10.0.0.1/a.exe"])[0, 20]
    np.uint16(1)
    >>> Features("ngram", n_weights=1024).transform([b"example.org/a"]).shape
    (1, 1024)
    """

    view: str = "ngram"
    n_weights: int = 8192
    order: int = 3
    split: bytes | None = b"/"

    def __post_init__(self) -> None:
        if self.view not in VIEWS[1:]:
            raise ValueError(f"view must be one of {', '.join(VIEWS[1:])}; found {self.view!r}")
        if self.split is not None and len(self.split) != 1:
            raise ValueError(f"split must be one byte or None, found {self.split!r}")
        if self.view == "ngram":
            if self.n_weights & (self.n_weights - 1):
                raise ValueError(f"n_weights must be a power of two, found {self.n_weights}")
            check_ngram(self.order, self.split_byte, self.log2_weights)

    @property
    def log2_weights(self) -> int:
        """log2 of the table's size (0 for the other views)."""
        return self.n_weights.bit_length() - 1 if self.view == "ngram" else 0

    @property
    def split_byte(self) -> int:
        """The split byte as the kernels take it; 256 means none."""
        return NO_SPLIT if self.split is None else self.split[0]

    @property
    def n_columns(self) -> int:
        """Columns of `transform`'s result."""
        return self.n_weights if self.view == "ngram" else len(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns; the hashed view has none."""
        return {"ngram": (), "lexical": LEXICAL_NAMES, "numeric": NUMERIC_NAMES}[self.view]

    def transform(self, keys: "Keys | PackedKeys") -> Any:
        """The matrix to fit an estimator on: CSR of float32 for ``ngram`` (needs scipy), else an array of uint16."""
        packed = keys if isinstance(keys, PackedKeys) else PackedKeys(keys)
        matrix = self.rows(packed, np.arange(len(packed), dtype=np.int64))
        if self.view == "ngram":
            # scikit-learn's trees write out of bounds when a row names a column twice.
            matrix.sum_duplicates()
        return matrix

    def rows(self, packed: PackedKeys, rows: npt.NDArray[np.int64]) -> Any:
        """The same for some rows of packed keys; a column that a key has twice is named twice there."""
        rows = np.ascontiguousarray(rows)
        if self.view != "ngram":
            return value_rows(packed.data, packed.offsets, rows, self.view, self.split_byte)
        from scipy.sparse import csr_matrix

        indices, indptr = ngram_rows(packed.data, packed.offsets, rows, self.order, self.split_byte, self.log2_weights)
        ones = np.ones(len(indices), dtype=np.float32)
        return csr_matrix((ones, indices, indptr), shape=(len(rows), self.n_weights), copy=False)


def _sample(packed: PackedKeys, n: int = 2000) -> list[bytes]:
    return [packed[i] for i in range(0, len(packed), max(1, len(packed) // n))]


def guess_split_byte(packed: PackedKeys) -> bytes | None:
    """The separator that most keys have: where a URL's path, an address's domain or an id's second part begins.

    Examples
    --------
    >>> guess_split_byte(PackedKeys([b"ann@example.org", b"bob@example.net"]))
    b'@'
    """
    sample = _sample(packed)
    # In this order among equals: a URL or an e-mail address also has dots and hyphens.
    shares = [(sum(mark in key for key in sample), mark) for mark in (b"/", b"@", b":", b"|", b"#", b"_", b"-", b".")]
    most, mark = max(shares, key=lambda item: item[0])
    return mark if sample and 2 * most >= len(sample) else None


def guess_view(packed: PackedKeys) -> str:
    """``numeric`` for integers and binary keys, else ``lexical``.

    Examples
    --------
    >>> guess_view(PackedKeys([b"1234", b"77"])), guess_view(PackedKeys([b"a.b/c"]))
    ('numeric', 'lexical')
    """
    sample = _sample(packed)
    if not sample:
        return "lexical"
    decimal = sum(key.isdigit() for key in sample)
    binary = sum(any(byte < 9 or byte == 127 for byte in key) or not _is_utf8(key) for key in sample)
    return "numeric" if 2 * max(decimal, binary) >= len(sample) else "lexical"


def _is_utf8(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
