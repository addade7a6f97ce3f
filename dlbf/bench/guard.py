"""Engines with and without a guard before them, same keys, same run, everything in memory."""

import contextlib
import importlib.util
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb

from dlbf.bench.timing import Timing, side_by_side
from dlbf.datasets import listed_urls
from dlbf.storage import Guard
from dlbf.storage.engines import Adapter, LmdbEngine, SqliteEngine, engine_for

__all__ = ["ENGINES", "against_rocksdb", "bar", "costs"]

VALUE = b"v" * 100
CACHE_BYTES = 1 << 30
BLOOM_BITS_PER_KEY = 10
# The bar: RocksDB with its Bloom filter takes so many times as long to say no.
AT_LEAST = 2.0


Maker = Callable[[int], list[bytes]]


def _keys(n_keys: int, n_queries: int) -> tuple[list[bytes], Maker, Maker]:
    """Keys to store, and makers of fresh absent and present ones for a round."""
    stored = list(listed_urls(n_keys, seed=0))

    def absent(turn: int) -> list[bytes]:
        return list(listed_urls(n_queries, seed=1000 + turn))

    def present(turn: int) -> list[bytes]:
        step = max(1, n_keys // n_queries)
        # New objects: one that was stored would have its place in the processor's cache.
        return [bytes(bytearray(key)) for key in stored[turn % step :: step][:n_queries]]

    return stored, absent, present


def _ask(get: Callable[[bytes], Any]) -> Callable[[Sequence[bytes]], object]:
    def run(batch: Sequence[bytes]) -> object:
        for key in batch:
            get(key)
        return None

    return run


def _rocksdb(folder: Path, bloom: bool) -> Any:
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(CACHE_BYTES))
    if bloom:
        table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    options.set_block_based_table_factory(table)
    return rocksdict.Rdict(str(folder), options)


def against_rocksdb(
    n_keys: int, n_queries: int, rounds: int, folder: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Reads of a guarded RocksDB (its own filter off) beside one with its Bloom filter and one with none."""
    stored, absent, present = _keys(n_keys, n_queries)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        databases = {}
        for name in ("guarded", "bloom", "none"):
            say(f"loading RocksDB: {name}")
            database = databases[name] = _rocksdb(place / name, name == "bloom")
            stack.callback(database.close)
            engine_for(database).put_many([(key, VALUE) for key in stored])
            database.flush()
            database.compact_range(None, None)
        say("reading the keys into the guard")
        guard = stack.enter_context(Guard(databases["guarded"], place / "guard", sync="none"))
        gets = {
            "dlbf Guard before RocksDB": guard.get,
            "RocksDB, Bloom filter": databases["bloom"].get,
            "RocksDB, no filter": databases["none"].get,
        }
        contenders = {name: _ask(get) for name, get in gets.items()}
        for get in gets.values():  # every block into the cache
            _ask(get)(stored)
        return {
            "keys": n_keys,
            "absent": _figures(side_by_side(contenders, absent, rounds, say), "RocksDB, Bloom filter"),
            "present": _figures(side_by_side(contenders, present, rounds, say), "RocksDB, Bloom filter"),
            "guard_bits_per_key": guard.stats().bits_per_key,
        }


def _figures(times: dict[str, Timing], peer: str) -> dict[str, Any]:
    return {name: {"ns": time.best, "peer_over_this": times[peer].ratio(time)} for name, time in times.items()}


def bar(figures: dict[str, Any]) -> dict[str, Any]:
    """Whether the guard is as much faster as was promised."""
    ratio = figures["absent"]["dlbf Guard before RocksDB"]["peer_over_this"]
    return {"ratio": ratio, "at_least": AT_LEAST, "met": ratio[0] >= AT_LEAST}


# --- what a guard costs and saves, engine by engine


@contextlib.contextmanager
def _open_rocksdict(folder: Path) -> Iterator[Adapter]:
    with contextlib.closing(_rocksdb(folder, bloom=False)) as database:
        yield engine_for(database)


@contextlib.contextmanager
def _open_plyvel(folder: Path) -> Iterator[Adapter]:
    import plyvel

    with contextlib.closing(plyvel.DB(str(folder), create_if_missing=True, lru_cache_size=CACHE_BYTES)) as database:
        yield engine_for(database)


@contextlib.contextmanager
def _open_sqlite3(folder: Path) -> Iterator[Adapter]:
    with contextlib.closing(sqlite3.connect(folder, check_same_thread=False)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        yield SqliteEngine(connection, "pairs")


@contextlib.contextmanager
def _open_dbm(folder: Path) -> Iterator[Adapter]:
    import dbm

    with dbm.open(str(folder), "c") as database:
        yield engine_for(database)


@contextlib.contextmanager
def _open_lmdb(folder: Path) -> Iterator[Adapter]:
    with lmdb.open(str(folder), map_size=1 << 34, sync=False) as environment:
        yield LmdbEngine(environment)


@contextlib.contextmanager
def _open_dict(folder: Path) -> Iterator[Adapter]:
    yield engine_for({})


@contextlib.contextmanager
def _open_redis(port: int) -> Iterator[Adapter]:
    import redis

    from dlbf.storage.engines import RedisEngine

    with redis.Redis(host="127.0.0.1", port=port) as client:
        engine = RedisEngine(client, prefix=b"dlbf bench ")
        try:
            yield engine
        finally:
            for key in list(engine.scan(b"")):
                engine.delete(key)
            engine.release()


ENGINES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "dict": (_open_dict, ""),
    "rocksdict": (_open_rocksdict, "rocksdict"),
    "plyvel": (_open_plyvel, "plyvel"),
    "sqlite3": (_open_sqlite3, ""),
    "dbm": (_open_dbm, ""),
    "lmdb": (_open_lmdb, ""),
}


def costs(
    n_keys: int,
    n_queries: int,
    rounds: int,
    redis_port: int | None = None,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Reads and writes of every engine that is installed, bare and guarded; times in ns, nothing waits for a disk."""
    opening = {name: how for name, (how, needed) in ENGINES.items() if not needed or importlib.util.find_spec(needed)}
    if redis_port is not None:
        opening["redis"] = lambda _: _open_redis(redis_port)
    rows = []
    for name, how in opening.items():
        n = n_keys if name not in ("dbm", "redis") else min(n_keys, 5000)
        asked = n_queries if name not in ("dbm", "redis") else min(n_queries, 1000)
        stored, absent, present = _keys(n, asked)
        with tempfile.TemporaryDirectory(dir=folder) as place, how(Path(place) / name) as engine:
            say(f"{name}: loading")
            engine.put_many([(key, VALUE) for key in stored])
            with Guard(engine, Path(place) / "guard", sync="none") as guard:
                reads = {"bare": _ask(engine.get), "guarded": _ask(guard.get)}
                row: dict[str, Any] = {"engine": name, "keys": n}
                for what, keys in (("absent", absent), ("present", present)):
                    say(f"{name}: {what}")
                    row[what] = _pair(side_by_side(reads, keys, rounds))
                say(f"{name}: writes")
                row |= _writes(engine, guard, max(50, asked // 10), rounds)
        rows.append(row)
    return rows


def _writes(engine: Adapter, guard: Guard, n_keys: int, rounds: int) -> dict[str, dict[str, Any]]:
    """New keys, the same again, deletes, and new keys in one batch: each contender its own keys."""
    contenders: dict[str, Any] = {"bare": (engine.put, engine.delete, engine.put_many)}
    contenders["guarded"] = (guard.put, guard.delete, guard.update)
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(rounds):
        for who, (put, delete, put_many) in list(contenders.items())[:: 1 if turn % 2 else -1]:
            keys = [b"%s %d %s" % (who.encode(), turn, key) for key in listed_urls(n_keys, seed=2000 + turn)]
            actions = {
                "put new": lambda batch, put=put: [put(key, VALUE) for key in batch],
                "overwrite": lambda batch, put=put: [put(key, VALUE) for key in batch],
                "delete": lambda batch, delete=delete: [delete(key) for key in batch],
                "batch of new": lambda batch, put_many=put_many: put_many([(key, VALUE) for key in batch]),
            }
            for what, action in actions.items():
                times = side_by_side({who: action}, lambda _, keys=keys: keys, 1)  # type: ignore[misc]
                found.setdefault(what, {}).setdefault(who, []).extend(times[who].rounds)
    return {what: _pair({who: Timing(tuple(ns)) for who, ns in times.items()}) for what, times in found.items()}


def _pair(times: dict[str, Timing]) -> dict[str, Any]:
    return {
        "bare_ns": times["bare"].best,
        "guarded_ns": times["guarded"].best,
        "ratio": times["guarded"].ratio(times["bare"]),
    }
