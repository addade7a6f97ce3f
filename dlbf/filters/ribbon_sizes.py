"""Sizes and rates of ribbon filters; how they are laid out is in ``dlbf/kernels/ribbon.pxd``."""

import math
from typing import NamedTuple

from dlbf.geometry import Price

__all__ = [
    "BLOCK_ROWS",
    "MAX_COLUMNS",
    "RibbonGeometry",
    "ribbon_bytes",
    "ribbon_columns",
    "ribbon_fpr",
    "ribbon_geometry",
    "ribbon_keys",
    "ribbon_price",
    "ribbon_rows",
    "ribbon_shards",
]

SHARD_KEYS = 2048
BLOCK_ROWS = 64
MAX_COLUMNS = 56  # of the 64 bits of a fingerprint
# Rows beyond one per key: with one in a thousand, and two for every shard, about one seed in ten spreads the keys of a
# shard evenly enough.
KEYS_PER_SPARE_ROW = 1024
SPARE_ROWS = 2


class RibbonGeometry(NamedTuple):
    """Ribbon filter: shards, rows of all of them, columns, and blocks of 64 rows that have one column more."""

    n_shards: int
    n_rows: int
    n_columns: int
    n_wide: int


def ribbon_shards(n_keys: int) -> int:
    """Shards for ``n_keys``: none has more than 2,048 on average."""
    return -(-n_keys // SHARD_KEYS)


def ribbon_rows(n_keys: int, n_shards: int) -> int:
    """Rows for ``n_keys`` in so many shards."""
    return n_keys + n_keys // KEYS_PER_SPARE_ROW + SPARE_ROWS * n_shards


def ribbon_keys(geometry: RibbonGeometry) -> int:
    """Keys for which there are so many rows: exact unless a shard needed more rows than others.

    Examples
    --------
    >>> [ribbon_keys(ribbon_geometry(n, 0.01)) for n in (0, 1, 5000, 10**6)]
    [0, 1, 5000, 1000000]
    """
    rows = geometry.n_rows - SPARE_ROWS * geometry.n_shards
    return max(0, rows - rows // (KEYS_PER_SPARE_ROW + 1))


def ribbon_columns(n_rows: int, fpr: float) -> tuple[int, int]:
    """Columns, and blocks with one more, for a rate of at most ``fpr``.

    Examples
    --------
    >>> ribbon_columns(100_000, 1 / 128), ribbon_columns(100_000, 0.01)
    ((7, 0), (6, 1126))
    """
    n_columns = math.floor(math.log2(1 / fpr) + 1e-9)
    n_blocks = -(-n_rows // BLOCK_ROWS)
    # Half of what passes the others fails one more column: 2^-c * (1 - share / 2) is the rate.
    share = 2 - 2 * fpr * 2.0**n_columns
    # A row that reaches into a narrow block is asked for the narrow columns only.
    n_wide = 1 + math.ceil(share * n_rows / BLOCK_ROWS) if share > 1e-6 else 0
    return (n_columns + 1, 0) if n_wide >= max(1, n_blocks) else (n_columns, n_wide)


def ribbon_geometry(n_keys: int, fpr: float) -> RibbonGeometry:
    """The smallest ribbon filter for ``n_keys`` different keys at ``fpr``.

    Examples
    --------
    >>> ribbon_geometry(100_000, 0.01)
    RibbonGeometry(n_shards=49, n_rows=100195, n_columns=6, n_wide=1129)
    """
    n_shards = ribbon_shards(n_keys)
    n_rows = ribbon_rows(n_keys, n_shards)
    return RibbonGeometry(n_shards, n_rows, *ribbon_columns(n_rows, fpr))


def ribbon_bytes(geometry: RibbonGeometry) -> int:
    """Bytes of the table of shards and of the columns.

    Examples
    --------
    >>> round(8 * ribbon_bytes(ribbon_geometry(10**6, 1 / 1024)) / 10**6, 2)
    10.04
    """
    n_blocks = -(-geometry.n_rows // BLOCK_ROWS)
    return 8 * ((geometry.n_shards + 2) // 2) + 8 * (n_blocks * geometry.n_columns + geometry.n_wide)


def ribbon_fpr(geometry: RibbonGeometry) -> float:
    """False-positive rate: half for each column, of which a part of the rows has one more.

    Examples
    --------
    >>> round(ribbon_fpr(ribbon_geometry(10**6, 0.01)), 4)
    0.01
    """
    if geometry.n_rows == 0:
        return 0.0
    share = min(1.0, max(0, geometry.n_wide - 1) * BLOCK_ROWS / geometry.n_rows)
    return float(2.0**-geometry.n_columns * (1 - share / 2))


def ribbon_price() -> Price:
    """Price of a ribbon filter: a bit per halving of the rate, spare rows, and the entries of the table.

    Between two powers of two it costs up to 0.086 bits more: a share of the queries is asked one bit more than others,
    and the average of two rates is larger than their geometric mean.  Half of that is in the fixed part.
    """
    rows = 1 + 1 / KEYS_PER_SPARE_ROW + SPARE_ROWS / SHARD_KEYS
    return Price(rows / math.log(2.0), 32 / SHARD_KEYS + 0.05)
