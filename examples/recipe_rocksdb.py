"""RocksDB without filters of its own on the last level: a guard answers for absent keys, so that they are not needed.

``optimize_filters_for_hits`` tells RocksDB that most questions find their key, which behind a guard is true: it then
keeps no filter for its last level, where about nine tenths of the keys are.
``python examples/recipe_rocksdb.py [keys]`` compares both; needs ``pip install rocksdict``.
"""

import sys
import tempfile
from pathlib import Path

import rocksdict

from dlbf.storage import Guard


def open_database(path: str, guarded: bool) -> rocksdict.Rdict:
    """A database with Bloom filters of 10 bits per key; behind a guard not on its last level."""
    table = rocksdict.BlockBasedOptions()
    table.set_bloom_filter(10, False)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_optimize_filters_for_hits(guarded)
    return rocksdict.Rdict(path, options)


def filled(database: rocksdict.Rdict, n_keys: int) -> None:
    """Into the last level, as a database is after some time."""
    for half in (0, 1):
        for i in range(half, n_keys, 2):
            database[b"user:%08d" % i] = b"a record"
        database.flush()
    database.compact_range(None, None)


def size(folder: Path) -> int:
    """Bytes of the database's tables, filters among them."""
    return sum(path.stat().st_size for path in folder.glob("*.sst"))


def main() -> None:
    """Sizes with and without filters in the tables, and what absent keys cost behind a guard."""
    n_keys = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        for guarded in (False, True):
            place = Path(folder) / f"guarded {guarded}"
            database = open_database(str(place), guarded)
            filled(database, n_keys)
            sizes[guarded] = size(place)
            if guarded:
                with Guard(database, f"{folder}/guard") as users:
                    assert users.get(b"user:00000007") == b"a record"
                    assert users.get_many([b"guest:%d" % i for i in range(10_000)]) == [None] * 10_000
                    stats = users.stats()
                    print(f"10000 absent keys: {10_000 - stats.filtered} reads")
            database.close()
    print(f"bits per key that the tables no longer have: {8 * (sizes[False] - sizes[True]) / n_keys:.0f}")


if __name__ == "__main__":
    main()
