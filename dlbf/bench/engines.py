"""Key-value stores under one small interface, so that the same operations can be timed on all of them.

Every engine has its own loop over the operations, written the way its users write it: none pays for a wrapper.
"""

import contextlib
import ctypes
import importlib.metadata
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import lmdb

from dlbf.storage import Store

__all__ = ["ENGINES", "Engine", "Operation", "evict", "missing"]

# A key to read, with None, or a key to write, with its value.
Operation = tuple[bytes, bytes | None]

FPR = 0.01
# Bits per key with which the filters of RocksDB and LevelDB reach 1 %: ours is compared at the same rate.
BLOOM_BITS_PER_KEY = 10
MAP_BYTES = 1 << 36
WRITEMAP_BYTES = 1 << 34
LOAD_BATCH = 10_000
MADV_DONTNEED = 4
MADV_RANDOM = 1
# LevelDB keeps blocks in a cache of its own: warm means that all of them are in it.
CACHE_BYTES = 1 << 30


class Engine:
    """A store in a folder of its own; commits do not wait for the disk in any of them.

    Attributes
    ----------
    distribution : str
        The package whose version is reported.
    cannot : tuple of str
        What it cannot do that the others can.
    mixes : str
        The mixes it can take part in.
    """

    name: ClassVar[str]
    distribution: ClassVar[str]
    cannot: ClassVar[Sequence[str]] = ()
    mixes: ClassVar[str] = "ABCD"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_open = False
        self.open()

    def open(self) -> None:
        """Open what is in the folder; once is enough."""
        if not self.is_open:
            self._open()
            self.is_open = True

    def close(self) -> None:
        """Let go of the files; once is enough."""
        if self.is_open:
            self.is_open = False
            self._close()

    def _open(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def load(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Store the first keys, in batches."""
        raise NotImplementedError

    def settle(self, absent: Sequence[bytes]) -> None:
        """Bring what was loaded into the shape it has after a while: compacted, filters of the right size."""

    def run(self, operations: Sequence[Operation]) -> int:
        """Do the operations one by one; how many reads found something."""
        raise NotImplementedError

    def filter_bytes(self) -> int | None:
        """Memory of the filter, None where there is none or it is not told."""
        return None

    def filter_design(self) -> str | None:
        """The kind of filter that answers, None where there is none or it is not told."""
        return None


class DlbfStore(Engine):
    """Ours, with the filter that it chooses where there is nothing to learn from."""

    name = "dlbf Store"
    distribution = "dlbf"

    def _open(self) -> None:
        self.store = Store(self.folder, fpr=FPR, sync="none")

    def load(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        for part in batches(items):
            with self.store.write() as txn:
                for key, value in part:
                    txn.put(key, value)

    def settle(self, absent: Sequence[bytes]) -> None:
        self.store.rebuild(model=None)

    def run(self, operations: Sequence[Operation]) -> int:
        store, n_hits = self.store, 0
        for key, value in operations:
            if value is None:
                if store.get(key) is not None:
                    n_hits += 1
            else:
                store[key] = value
        return n_hits

    def _close(self) -> None:
        self.store.close()

    def filter_bytes(self) -> int | None:
        stats = self.store.stats()
        return int(stats.filter_bytes + stats.model_bytes)

    def filter_design(self) -> str | None:
        return str(self.store.stats().design)


class TableStore(DlbfStore):
    """Ours, with a table that deletes in place."""

    name = "dlbf Store, table"

    def settle(self, absent: Sequence[bytes]) -> None:
        self.store.rebuild(design="cuckoo")


class LearnedStore(DlbfStore):
    """Ours, with a filter that has learnt from absent keys."""

    name = "dlbf Store, learned"

    def settle(self, absent: Sequence[bytes]) -> None:
        self.store.rebuild(negatives=absent)
        if not self.store.stats().model_bytes:
            raise RuntimeError("rebuild() chose a filter without a model for these keys: see the other row")


class MappedStore(DlbfStore):
    """Ours, written through LMDB's map."""

    name = "dlbf Store, writemap"
    cannot = ("several writing processes",)

    def _open(self) -> None:
        self.store = Store(self.folder, fpr=FPR, sync="none", writemap=True)


class Lmdb(Engine):
    """py-lmdb alone: a read transaction for every read, as a program needs that must see the newest commit."""

    name = "py-lmdb"
    distribution = "lmdb"
    cannot: ClassVar[Sequence[str]] = ("filter",)
    options: ClassVar[dict[str, Any]] = {"map_size": MAP_BYTES}

    def _open(self) -> None:
        # readahead=False is what a store larger than memory needs; ours has it too.
        self.environment = lmdb.open(
            str(self.folder), sync=False, metasync=False, readahead=False, max_spare_txns=1, **self.options
        )

    def load(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        for part in batches(items):
            with self.environment.begin(write=True) as txn:
                for key, value in part:
                    txn.put(key, value)

    def run(self, operations: Sequence[Operation]) -> int:
        begin, n_hits = self.environment.begin, 0
        for key, value in operations:
            if value is None:
                with begin() as txn:
                    if txn.get(key) is not None:
                        n_hits += 1
            else:
                with begin(write=True) as txn:
                    txn.put(key, value)
        return n_hits

    def _close(self) -> None:
        self.environment.close()


class LmdbMapped(Lmdb):
    """py-lmdb alone, written through its map; the file is as long as that from the start."""

    name = "py-lmdb, writemap"
    cannot = ("filter", "refuse a write on a full disk")
    options: ClassVar[dict[str, Any]] = {"map_size": WRITEMAP_BYTES, "writemap": True}


class LmdbKept(Lmdb):
    """py-lmdb with one read transaction for all reads: faster, and blind to later commits."""

    name = "py-lmdb, one transaction"
    cannot = ("filter", "see commits made after the transaction began")
    mixes = "C"

    def run(self, operations: Sequence[Operation]) -> int:
        n_hits = 0
        with self.environment.begin() as txn:
            get = txn.get
            for key, _ in operations:
                if get(key) is not None:
                    n_hits += 1
        return n_hits


class RbloomLmdb(Lmdb):
    """rbloom before py-lmdb, as one would write it by hand."""

    name = "rbloom before py-lmdb"
    distribution = "rbloom"
    cannot = ("delete", "keep its filter through a restart", "see other processes' writes")

    def _open(self) -> None:
        import rbloom

        super()._open()
        self.bloom = rbloom.Bloom(max(1, 2 * self.environment.stat()["entries"]), FPR)
        with self.environment.begin() as txn, txn.cursor() as cursor:
            self.bloom.update(cursor.iternext(values=False))

    def load(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        import rbloom

        super().load(items)
        self.bloom = rbloom.Bloom(2 * len(items), FPR)  # twice the room: it cannot grow
        self.bloom.update(key for key, _ in items)

    def run(self, operations: Sequence[Operation]) -> int:
        begin, bloom, n_hits = self.environment.begin, self.bloom, 0
        for key, value in operations:
            if value is None:
                if key in bloom:
                    with begin() as txn:
                        if txn.get(key) is not None:
                            n_hits += 1
            else:
                with begin(write=True) as txn:
                    txn.put(key, value)
                bloom.add(key)
        return n_hits

    def filter_bytes(self) -> int | None:
        return int(self.bloom.size_in_bits) // 8


class RocksBloom(Engine):
    """RocksDB with its Bloom filter.

    rocksdict forgets the filter given in its options when a database is opened again, and knows no Ribbon filter; so
    the policy is written into RocksDB's own options file.  That has no place for the size of the block cache, which
    is RocksDB's default here.
    """

    name = "RocksDB, Bloom (rocksdict)"
    distribution = "rocksdict"
    cannot = ("several processes",)
    policy = f"bloomfilter:{BLOOM_BITS_PER_KEY}:false"

    def _open(self) -> None:
        import rocksdict

        if not list(self.folder.glob("OPTIONS-*")):
            options = rocksdict.Options(raw_mode=True)
            options.set_block_based_table_factory(rocksdict.BlockBasedOptions())
            rocksdict.Rdict(str(self.folder), options).close()
            newest = max(self.folder.glob("OPTIONS-*"))
            text, changed = re.subn(r"filter_policy=\S+", f"filter_policy={self.policy}", newest.read_text())
            if not changed:
                raise RuntimeError("RocksDB's options file names no filter policy")
            newest.write_text(text)
        options, columns = rocksdict.Options.load_latest(str(self.folder))
        self.db = rocksdict.Rdict(str(self.folder), options, columns)

    def load(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        import rocksdict

        for part in batches(items):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key, value in part:
                batch.put(key, value)
            self.db.write(batch)

    def settle(self, absent: Sequence[bytes]) -> None:
        self.db.flush()
        self.db.compact_range(None, None)

    def run(self, operations: Sequence[Operation]) -> int:
        db, get, n_hits = self.db, self.db.get, 0
        for key, value in operations:
            if value is None:
                if get(key) is not None:
                    n_hits += 1
            else:
                db[key] = value
        return n_hits

    def _close(self) -> None:
        self.db.flush()
        self.db.close()

    def filter_bytes(self) -> int | None:
        text = self.db.property_value("rocksdb.aggregated-table-properties") or ""
        size_text = re.search(r"filter block size=(\d+)", text)
        return int(size_text[1]) if size_text else None


class RocksRibbon(RocksBloom):
    """RocksDB with its Ribbon filter: the same rate in less memory."""

    name = "RocksDB, Ribbon (rocksdict)"
    policy = f"ribbonfilter:{BLOOM_BITS_PER_KEY}:-1"


class Leveldb(Engine):
    """LevelDB with its Bloom filter."""

    name = "LevelDB, Bloom (plyvel)"
    distribution = "plyvel"
    cannot = ("several processes",)

    def _open(self) -> None:
        import plyvel

        self.db = plyvel.DB(
            str(self.folder),
            create_if_missing=True,
            bloom_filter_bits=BLOOM_BITS_PER_KEY,
            lru_cache_size=CACHE_BYTES,
        )

    def load(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        for part in batches(items):
            with self.db.write_batch() as batch:
                for key, value in part:
                    batch.put(key, value)

    def settle(self, absent: Sequence[bytes]) -> None:
        self.db.compact_range()

    def run(self, operations: Sequence[Operation]) -> int:
        get, put, n_hits = self.db.get, self.db.put, 0
        for key, value in operations:
            if value is None:
                if get(key) is not None:
                    n_hits += 1
            else:
                put(key, value)
        return n_hits

    def _close(self) -> None:
        self.db.close()


ENGINES: tuple[type[Engine], ...] = (
    DlbfStore, TableStore, LearnedStore, MappedStore, Lmdb, LmdbMapped, LmdbKept, RbloomLmdb, RocksBloom, RocksRibbon,
    Leveldb,
)  # fmt: skip


def batches(items: Sequence[tuple[bytes, bytes]]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    """Parts of the size of one transaction."""
    for first in range(0, len(items), LOAD_BATCH):
        yield items[first : first + LOAD_BATCH]


def missing(distribution: str) -> str | None:
    """Why a peer cannot take part, None if it is installed."""
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed; pip install {distribution}"
    return None


def _unmap_pages(folder: Path) -> None:
    """Give back the pages of every mapping of a file in the folder; they are read again when they are touched."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    call: Callable[..., int] = ctypes.CDLL(None).madvise
    for line in maps.read_text().splitlines():
        fields = line.split(maxsplit=5)
        # Only shared mappings of files: what is private to the process would be lost.
        if len(fields) == 6 and fields[5].startswith(f"{folder.resolve()}/") and fields[1].endswith("s"):
            start, end = (int(part, 16) for part in fields[0].split("-"))
            call(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)
            # Else the system reads megabytes around the first few keys, and a small database is warm after them.
            call(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_RANDOM)


def evict(folder: Path) -> None:
    """Put every page of the folder's files out of memory, while they may be open."""
    # Not LMDB's lock file: closing any descriptor of it drops the process's locks.
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock.mdb", "LOCK")]
    for path in paths:
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.fsync(file.fileno())
    _unmap_pages(folder)
    if hasattr(os, "posix_fadvise"):
        for path in paths:
            with contextlib.suppress(OSError), path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
