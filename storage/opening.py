"""Opening an LMDB environment: how large its map is, who may write it, and where its newest transaction is told."""

import contextlib
import logging
import mmap
import struct
from pathlib import Path
from typing import Any

import lmdb

from dlbf.errors import StoreError
from dlbf.storage.cutfile import lost_pages
from dlbf.storage.layout import DATA_FILE, DATABASES, READERS_FILE
from dlbf.storage.metapages import META_BYTES, format_of, read_metas
from dlbf.storage.room import Room, is_full, reserve_lock_file, room_left

__all__ = ["SYNC_MODES", "map_meta_pages", "open_environment"]

log = logging.getLogger("dlbf.storage")
SYNC_MODES = {
    "full": {"sync": True, "metasync": True},
    "data": {"sync": True, "metasync": False},
    "none": {"sync": False, "metasync": False},
}
# Address space, not memory or disk: a map this large never has to grow.  Where that much is not to be had, less is
# taken.
DEFAULT_MAP_BYTES = 1 << 40
LEAST_MAP_BYTES = 1 << 20
MOST_MAP_BYTES = 1 << 46
# A store reads while it keeps another transaction for its next read.
LEAST_READERS = 2
MOST_READERS = 1 << 20
# Read transactions that py-lmdb keeps for reuse: beginning a new one takes a lock that all processes share.
SPARE_TXNS = 1


def open_environment(
    path: Path,
    map_size: int | None,
    max_readers: int,
    sync: str,
    *,
    readonly: bool,
    writemap: bool,
    lock_timeout: float | None,
) -> tuple[lmdb.Environment, Room | None]:
    """The environment, and the lock of those that write it.

    Raises
    ------
    StoreError
        If it cannot be opened; nothing is left open then.
    """
    if map_size is not None and not 0 <= map_size <= MOST_MAP_BYTES:
        raise ValueError(f"map_size must be from 0 to {MOST_MAP_BYTES:,} bytes, found {map_size:,}")
    if not isinstance(max_readers, int) or not LEAST_READERS <= max_readers <= MOST_READERS:
        raise ValueError(
            f"max_readers must be from {LEAST_READERS} to {MOST_READERS:,} (a store needs {LEAST_READERS} itself; each "
            f"takes 64 bytes of lock.mdb), found {max_readers!r}"
        )
    env = room = None
    options = {"max_readers": max_readers, "readonly": readonly, "create": not readonly, **SYNC_MODES[sync]}
    try:
        if not writemap:
            # The lock comes second: LMDB knows best what is wrong with a path.
            env = _open(path, map_size, options)
            _refuse_cut(path)
            if readonly:
                return env, None
            return env, Room(path / DATA_FILE, mapped=False, timeout=lock_timeout)
        path.mkdir(exist_ok=True)
        room = Room(path / DATA_FILE, mapped=True, timeout=lock_timeout)
        _refuse_cut(path)
        size = room.fitting(map_size or 0)
        reserve_lock_file(path / READERS_FILE, max_readers)
        # LMDB takes only an empty file for a new one, and makes that as long as the map; what is somebody else's it
        # refuses, and that is to stay as it is.
        is_ours = format_of(room.first_bytes(META_BYTES)) is not None
        (room.reserve if is_ours else room.check)(size)
        env = _open(path, size, {"writemap": True, **options})
        room.reserve(env.info()["map_size"])
        return env, room
    except BaseException as error:
        if env is not None:
            env.close()
        if room is not None:
            room.close()
        if isinstance(error, OSError):
            raise StoreError(f"{path}: cannot be opened for writing: {error}") from error
        raise


def _open(path: Path, map_size: int | None, options: dict[str, Any]) -> lmdb.Environment:
    """The environment, with as large a map as there may be if none is given."""
    size = max(map_size or DEFAULT_MAP_BYTES, LEAST_MAP_BYTES)
    while True:
        least = LEAST_MAP_BYTES
        try:
            if not options.get("writemap"):
                # LMDB would take no more than what is committed, and then another process commits the next page.
                with contextlib.suppress(FileNotFoundError):
                    least += (path / DATA_FILE).stat().st_size
                size = max(size, least)
            return lmdb.open(
                str(path),
                map_size=size,
                max_dbs=len(DATABASES) + 1,
                max_spare_txns=SPARE_TXNS,
                readahead=False,
                **options,
            )
        except (lmdb.MemoryError, MemoryError) as error:
            if map_size is not None or size <= least:
                raise _no_memory(path, size, error) from error
            size //= 4
        except lmdb.MapResizedError:
            continue  # it has grown by more than that
        except lmdb.Error as error:
            if "already open" in str(error):
                raise StoreError(
                    f"{path}: already open in this process, or in the one it was forked from; share that "
                    "Store between threads, close it first, or start processes with spawn"
                ) from error
            if isinstance(error, lmdb.InvalidError):
                raise StoreError(f"{path}: data.mdb is not an LMDB file ({error}); restore a backup") from error
            if "Cannot allocate" in str(error):
                if map_size is not None or size <= least:
                    raise _no_memory(path, size, error) from error
                size //= 4
                continue
            if isinstance(error, lmdb.PageNotFoundError):
                _refuse_cut(path)  # LMDB 1.0 looks for some pages itself
            hint = ""
            if "Permission denied" in str(error):
                hint = "; whoever opens a store, for reading too, must be able to write its lock.mdb"
            if is_full(error):
                hint = f"; {room_left(path)}: make room"
            raise StoreError(f"{path}: LMDB cannot open it: {error}{hint}") from error


def _refuse_cut(path: Path) -> None:
    """StoreError if the data file lacks pages that are in use; LMDB has not read any but its first two yet."""
    data = path / DATA_FILE
    if n_lost := lost_pages(data):
        raise StoreError(
            f"{path}: data.mdb has been cut short: {n_lost:,} pages in use are behind its end, at byte "
            f"{data.stat().st_size:,} (a copy that was not finished, or a full disk?); restore a backup"
        ) from lmdb.CorruptedError("data.mdb is cut short")


def _no_memory(path: Path, size: int, error: Exception) -> StoreError:
    return StoreError(
        f"{path}: this process may not map the {size:,} bytes that are needed ({error}); raise its limit of address "
        "space (ulimit -v), or open the store with a smaller map_size if one was given"
    )


def map_meta_pages(path: Path, env: lmdb.Environment) -> tuple[mmap.mmap, int, int] | None:
    """LMDB's two meta pages, and where in them the transaction ids are; None, and a warning, if they are not there."""
    psize: int = env.stat()["psize"]
    try:
        # Not the lock file: closing any descriptor of that would drop LMDB's locks.
        with (path / DATA_FILE).open("rb") as file:
            meta_map = mmap.mmap(file.fileno(), 2 * psize, access=mmap.ACCESS_READ)
            metas = read_metas(file.fileno())
    except (OSError, ValueError) as error:
        log.warning("%s: reading without the filter: the meta pages cannot be mapped (%s)", path, error)
        return None
    if hasattr(mmap, "MADV_RANDOM"):
        # Else the system reads ahead, megabytes on some disks, when these two pages have been put out of memory.
        meta_map.madvise(mmap.MADV_RANDOM)
    if metas is not None and metas[1].page_bytes == metas[2].page_bytes == psize:
        places = metas[0].txn_id_offset, psize + metas[0].txn_id_offset
        # The id may rise between two looks; a layout that is not understood stays wrong.
        for _ in range(10):
            before = env.info()["last_txnid"]
            newest = max(struct.unpack_from("=Q", meta_map, place)[0] for place in places)
            if before <= newest <= env.info()["last_txnid"] + 1:
                return meta_map, *places
    head = meta_map[:32].hex(" ", 8)
    meta_map.close()
    log.warning(
        "%s: reading without the filter: LMDB's meta pages are not of a known layout (they begin with %s, and the "
        "newest transaction is %s); use py-lmdb with LMDB 0.9 or 1.0",
        path,
        head,
        env.info()["last_txnid"],
    )
    return None
