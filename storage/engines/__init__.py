"""Adapters between ``dlbf.storage.Guard`` and key-value engines.

None of them imports its engine before it is used.
"""

from collections.abc import Callable, MutableMapping
from typing import Any

from dlbf.storage.engines.base import Adapter, Engine, PlainAdapter, refuse_asynchronous
from dlbf.storage.engines.dbm import DbmEngine
from dlbf.storage.engines.leveldb import LevelEngine
from dlbf.storage.engines.lmdb import LmdbEngine
from dlbf.storage.engines.mapping import MappingEngine
from dlbf.storage.engines.redis import RedisEngine
from dlbf.storage.engines.rocksdb import RocksEngine
from dlbf.storage.engines.sqlite import SqliteEngine

__all__ = [
    "Adapter",
    "DbmEngine",
    "Engine",
    "LevelEngine",
    "LmdbEngine",
    "MappingEngine",
    "RedisEngine",
    "RocksEngine",
    "SqliteEngine",
    "engine_for",
]

# By the name of a class, so that an engine that is not installed is not imported to look.
KNOWN: dict[tuple[str, str], Callable[[Any], Adapter]] = {
    ("builtins", "Rdict"): RocksEngine,  # as compiled modules name their classes
    ("rocksdict", "Rdict"): RocksEngine,
    ("plyvel", "DB"): LevelEngine,
    ("plyvel", "PrefixedDB"): LevelEngine,
    ("dbm", "_Database"): DbmEngine,
    ("_gdbm", "gdbm"): DbmEngine,
    ("_dbm", "dbm"): DbmEngine,
    ("builtins", "Environment"): LmdbEngine,
    ("lmdb", "Environment"): LmdbEngine,
    ("redis", "Redis"): RedisEngine,
    ("redis", "RedisCluster"): RedisEngine,
    ("valkey", "Valkey"): RedisEngine,
    ("valkey", "ValkeyCluster"): RedisEngine,
}


def engine_for(engine: object) -> Adapter:
    """The adapter for an engine, by its type.

    Parameters
    ----------
    engine : object
        An adapter, a ``rocksdict.Rdict``, a ``plyvel.DB``, what ``dbm.open`` returned, an ``lmdb.Environment`` (its
        unnamed database), a ``redis`` client, a mutable mapping, or any ``Engine``.

    Raises
    ------
    TypeError
        If it is none of them, or a client for asyncio.

    Examples
    --------
    >>> type(engine_for({})).__name__
    'MappingEngine'
    """
    if isinstance(engine, Adapter):
        return engine
    for parent in type(engine).__mro__:
        adapter = KNOWN.get((parent.__module__.partition(".")[0], parent.__name__))
        if adapter is not None:
            return adapter(engine)
    refuse_asynchronous(engine)
    if isinstance(engine, MutableMapping):
        return MappingEngine(engine)
    if isinstance(engine, Engine) and not isinstance(engine, type):
        return PlainAdapter(engine)
    hint = "an object with get, put, delete and scan, or an adapter of dlbf.storage.engines"
    if type(engine).__name__ == "Connection":
        hint = "SqliteEngine(connection, table) of dlbf.storage.engines, which names the table"
    raise TypeError(f"cannot guard a {type(engine).__module__}.{type(engine).__name__}; give {hint}")
