"""A cache backend of Django that knows its misses: no query for a key that is not cached.

::

    CACHES = {"default": {"BACKEND": "recipe_django.GuardedCache", "LOCATION": "/var/cache/app", "TIMEOUT": 300}}

Values and times are in an SQLite table, the filter of their keys beside it; any number of processes of a machine share
both.  ``python examples/recipe_django.py`` tries it; needs ``pip install django``.
"""

import contextlib
import pickle
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache

from dlbf.storage import Guard
from dlbf.storage.engines import SqliteEngine


class GuardedCache(BaseCache):
    """Django's cache protocol on a guarded table.  Values are pickled, as in its own: keep the folder private."""

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        folder = Path(location)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = sqlite3.connect(folder / "cache.db", check_same_thread=False, timeout=30)
        connection.execute("PRAGMA journal_mode = WAL")
        self._engine = SqliteEngine(connection, "cache", expires="until")
        self._guard = Guard(self._engine, folder / "guard", sync="none")  # a cache may lose what it has at a power cut

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        """The value, or ``default``."""
        record = self._guard.get(self.make_and_validate_key(key, version))
        return default if record is None else pickle.loads(record)

    def set(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        """Keep a value for some time."""
        until = self.get_backend_timeout(timeout)
        seconds = None if until is None else until - time.time()
        name = self.make_and_validate_key(key, version)
        if seconds is not None and seconds <= 0:
            self._guard.delete(name)
        else:
            self._guard.put(name, pickle.dumps(value), ttl=seconds)

    def add(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Keep a value unless there is one."""
        if self.has_key(key, version):
            return False
        self.set(key, value, timeout, version)
        return True

    def touch(self, key: str, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Keep what is there for some time from now on."""
        missing = object()
        value = self.get(key, missing, version)
        if value is missing:
            return False
        self.set(key, value, timeout, version)
        return True

    def delete(self, key: str, version: int | None = None) -> bool:
        """Drop a value."""
        return self._guard.delete(self.make_and_validate_key(key, version))

    def has_key(self, key: str, version: int | None = None) -> bool:
        """Whether there is a value; most often answered from memory if there is none."""
        return self.make_and_validate_key(key, version) in self._guard

    def clear(self) -> None:
        """Drop everything."""
        self._guard.clear()

    def tidy(self) -> int:
        """Once a day: delete rows whose time is over; returns how many."""
        return self._engine.purge()

    def release(self) -> None:
        """Close the files; Django's ``close`` comes after every request, this at the end."""
        self._guard.close()
        self._engine.connection.close()


def main() -> None:
    """What Django does with a cache."""
    from django.conf import settings
    from django.core.cache import caches

    with tempfile.TemporaryDirectory() as folder:
        settings.configure(CACHES={"default": {"BACKEND": f"{__name__}.GuardedCache", "LOCATION": folder}})
        cache = caches["default"]
        with contextlib.closing(contextlib.ExitStack()) as stack:
            stack.callback(cache.release)
            cache.set("page", {"title": "Home"}, timeout=60)
            assert cache.get("page") == {"title": "Home"}
            assert cache.get_or_set("count", lambda: 1) == 1
            assert cache.incr("count") == 2
            assert not cache.add("page", "another")
            cache.set("short", 1, timeout=0.001)
            time.sleep(0.01)
            assert cache.get("short") is None
            assert cache.tidy() == 1
            assert cache.touch("page", 120)
            assert cache.delete_many(["page", "count"]) is None
            assert cache.get_many(["page", "count"]) == {}
            before = cache._guard.stats().filtered
            assert all(cache.get(f"absent{i}") is None for i in range(1000))
            print(f"1000 misses: {1000 - cache._guard.stats().filtered + before} queries")


if __name__ == "__main__":
    main()
