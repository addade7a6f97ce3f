"""Guard a RocksDB database that holds data already, and see what the filter saves.

Run with ``python examples/guard_rocksdb.py``; needs ``pip install 'dlbf[engines]'``.
"""

import tempfile
import time

import rocksdict

from dlbf.storage import Guard


def main() -> None:
    """Make a database, guard it, ask for keys that are not there."""
    with tempfile.TemporaryDirectory() as folder:
        db = rocksdict.Rdict(f"{folder}/db", rocksdict.Options(raw_mode=True))
        for i in range(20_000):  # what the program has stored before it knew of guards
            db[b"user:%d" % i] = b"record %d" % i
        db.flush()

        with Guard(db, f"{folder}/guard", fpr=0.01) as guard:  # reads the keys once
            absent = [b"guest:%d" % i for i in range(20_000)]
            for name, get in (("RocksDB", db.get), ("guarded", guard.get)):
                start = time.perf_counter()
                assert not any(get(key) for key in absent)
                print(f"{name}: {(time.perf_counter() - start) / len(absent) * 1e9:.0f} ns per absent key")
            guard[b"user:new"] = b"1"
            del guard[b"user:7"]
            stats = guard.stats()
            print(f"{stats.filtered} of {stats.lookups} lookups never reached RocksDB")
            print(f"{stats.bits_per_key:.1f} bits per key")
            assert guard.verify().ok

        with Guard(db, f"{folder}/guard") as guard:  # opening again reads no keys
            assert guard.get(b"user:new") == b"1"
            assert guard.get(b"user:7") is None
        db.close()


if __name__ == "__main__":
    main()
