"""``dlbf bench guard``: engines with and without a guard before them, same keys, same run, everything in memory."""

import contextlib
import importlib.util
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from dlbf.bench.timing import Ratio, Say, Timing, Work, call_with_each, side_by_side
from dlbf.datasets import listed_urls
from dlbf.storage import Guard
from dlbf.storage.engines import Adapter, LmdbEngine, SqliteEngine, engine_for

if TYPE_CHECKING:
    import rocksdict

__all__ = ["ENGINES", "PAIRS", "Bar", "EngineCosts", "Pair", "Read", "Reads", "against_rocksdb", "bar", "costs"]

VALUE = b"v" * 100
CACHE_BYTES = 1 << 30
BLOOM_BITS_PER_KEY = 10
# The bar: RocksDB with its Bloom filter takes so many times as long to say no.
AT_LEAST = 2.0
OURS, PEER = "dlbf Guard before RocksDB", "RocksDB, Bloom filter"

Maker = Callable[[int], list[bytes]]


@dataclass(frozen=True)
class Read:
    """A read in nanoseconds, and how many times as long RocksDB with its Bloom filter takes."""

    ns: float
    peer_over_this: Ratio


@dataclass(frozen=True)
class Reads:
    """Reads of absent and of present keys, by contender."""

    keys: int
    absent: dict[str, Read]
    present: dict[str, Read]
    guard_bits_per_key: float


@dataclass(frozen=True)
class Bar:
    """How many times as fast a guard must say no, and says it."""

    ratio: Ratio
    at_least: float
    met: bool


@dataclass(frozen=True)
class Pair:
    """An operation with and without a guard."""

    bare_ns: float
    guarded_ns: float
    ratio: Ratio

    @classmethod
    def of(cls, times: Mapping[str, Timing]) -> "Pair":
        """The pair of the times of ``bare`` and ``guarded``."""
        bare, guarded = times["bare"], times["guarded"]
        return cls(bare.best, guarded.best, guarded.ratio(bare))


# The operations whose costs are told.
PAIRS = ("absent", "present", "put new", "overwrite", "delete", "batch of new", "overwrite unknown")


@dataclass(frozen=True)
class EngineCosts:
    """What a guard saves and costs before one engine: each of ``PAIRS``."""

    engine: str
    keys: int
    pairs: dict[str, Pair]

    def to_dict(self) -> dict[str, object]:
        """For JSON: the pairs beside the engine."""
        return {"engine": self.engine, "keys": self.keys, **self.pairs}


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


def _rocksdb(folder: Path, bloom: bool) -> "rocksdict.Rdict":
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(CACHE_BYTES))
    if bloom:
        table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    options.set_block_based_table_factory(table)
    return rocksdict.Rdict(str(folder), options)


def against_rocksdb(
    n_keys: int, n_queries: int, rounds: int, folder: Path | None = None, say: Say = lambda text: None
) -> Reads:
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
        gets: dict[str, Callable[[bytes], object]] = {
            OURS: guard.get,
            PEER: databases["bloom"].get,
            "RocksDB, no filter": databases["none"].get,
        }
        contenders = {name: call_with_each(get) for name, get in gets.items()}
        for get in gets.values():  # every block into the cache
            call_with_each(get)(stored)
        return Reads(
            n_keys,
            _reads(side_by_side(contenders, absent, rounds, say)),
            _reads(side_by_side(contenders, present, rounds, say)),
            guard.stats().bits_per_key,
        )


def _reads(times: Mapping[str, Timing]) -> dict[str, Read]:
    return {name: Read(timing.best, times[PEER].ratio(timing)) for name, timing in times.items()}


def bar(reads: Reads) -> Bar:
    """Whether the guard is as much faster as was promised."""
    ratio = reads.absent[OURS].peer_over_this
    return Bar(ratio, AT_LEAST, ratio[0] >= AT_LEAST)


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


Opener = Callable[[Path], contextlib.AbstractContextManager[Adapter]]
# How an engine is opened, and the module it needs.
ENGINES: dict[str, tuple[Opener, str]] = {
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
    say: Say = lambda text: None,
) -> list[EngineCosts]:
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
                reads = {"bare": call_with_each(engine.get), "guarded": call_with_each(guard.get)}
                pairs = {}
                for what, keys in (("absent", absent), ("present", present)):
                    say(f"{name}: {what}")
                    pairs[what] = Pair.of(side_by_side(reads, keys, rounds))
                say(f"{name}: writes")
                n_written = max(50, asked // 10)
                pairs |= _writes(engine, guard, n_written, rounds)
                pairs["overwrite unknown"] = _overwrites(engine, guard, present, n_written, rounds)
        rows.append(EngineCosts(name, n, pairs))
    return rows


def _writes(engine: Adapter, guard: Guard, n_keys: int, rounds: int) -> dict[str, Pair]:
    """New keys, the same again, deletes, and new keys in one batch: each contender its own keys."""
    contenders = {
        "bare": _actions(engine.put, engine.delete, engine.put_many),
        "guarded": _actions(guard.put, guard.delete, guard.update),
    }
    rounds_of: dict[str, dict[str, list[float]]] = {}
    for turn in range(rounds):
        for who, actions in list(contenders.items())[:: 1 if turn % 2 else -1]:
            keys = [b"%s %d %s" % (who.encode(), turn, key) for key in listed_urls(n_keys, seed=2000 + turn)]
            for what, action in actions.items():
                times = side_by_side({who: action}, lambda _, keys=keys: keys, 1)  # type: ignore[misc]
                rounds_of.setdefault(what, {}).setdefault(who, []).extend(times[who].rounds)
    return {what: Pair.of({who: Timing(tuple(ns)) for who, ns in times.items()}) for what, times in rounds_of.items()}


def _overwrites(engine: Adapter, guard: Guard, present: Maker, n_keys: int, rounds: int) -> Pair:
    """Keys that were there before the guard: it must ask for them."""
    puts = {"bare": _put_each(engine.put), "guarded": _put_each(guard.put)}
    return Pair.of(side_by_side(puts, lambda turn: present(turn)[:n_keys], rounds))


def _put_each(put: Callable[[bytes, bytes], object]) -> Work:
    """Store a value for each key."""

    def work(batch: Sequence[bytes]) -> None:
        for key in batch:
            put(key, VALUE)

    return work


def _actions(
    put: Callable[[bytes, bytes], object],
    delete: Callable[[bytes], object],
    put_many: Callable[[list[tuple[bytes, bytes]]], object],
) -> dict[str, Work]:
    """The writes that are timed, in their order."""

    return {
        "put new": _put_each(put),
        "overwrite": _put_each(put),
        "delete": call_with_each(delete),
        "batch of new": lambda batch: put_many([(key, VALUE) for key in batch]),
    }
