"""A cache on disk with times to live and a decorator, in the manner of the package diskcache: a miss reads nothing.

``python examples/recipe_diskcache.py`` tries it; dlbf is all it needs.
"""

import pickle
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Self

from dlbf.storage import Store

_UNTIL = struct.Struct("<d")  # before every value: when it is over, in seconds since 1970; infinity: never


class Cache:
    """Values by name, shared by any number of processes of a machine.  Values are pickled: keep the folder private."""

    def __init__(self, folder: str) -> None:
        self.store = Store(folder, sync="data")

    def set(self, key: str, value: Any, expire: float | None = None) -> None:
        """Keep a value, for ``expire`` seconds if given."""
        until = float("inf") if expire is None else time.time() + expire
        self.store[key] = _UNTIL.pack(until) + pickle.dumps(value)

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or ``default``; a key that was never set is known from memory."""
        record = self.store.get(key)
        if record is None or self._is_over(record):
            return default
        return pickle.loads(memoryview(record)[_UNTIL.size :])

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __getitem__(self, key: str) -> Any:
        missing = object()
        value = self.get(key, missing)
        if value is missing:
            raise KeyError(key)
        return value

    def __contains__(self, key: str) -> bool:
        record = self.store.get(key)
        return record is not None and not self._is_over(record)

    def __delitem__(self, key: str) -> None:
        del self.store[key]

    def __iter__(self) -> Iterator[str]:
        return (key.decode() for key, record in self.store.items() if not self._is_over(record))

    def memoize(self, expire: float | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Let a function be computed once for each list of arguments."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def cached(*arguments: Any) -> Any:
                key = f"{function.__qualname__}{arguments!r}"
                missing = object()
                value = self.get(key, missing)
                if value is missing:
                    value = function(*arguments)
                    self.set(key, value, expire)
                return value

            return cached

        return decorate

    def expire(self) -> int:
        """Delete what is over, in one transaction; returns how many.  The filter forgets it, too."""
        over = [key for key, record in self.store.items() if self._is_over(record)]
        with self.store.write() as txn:
            return sum(txn.delete(key) for key in over)

    @staticmethod
    def _is_over(record: bytes) -> bool:
        return _UNTIL.unpack_from(record)[0] <= time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.store.close()


def main() -> None:
    """Set, get, expire, memoize."""
    with tempfile.TemporaryDirectory() as folder, Cache(folder) as cache:
        cache["a"] = {"any": "object"}
        cache.set("b", 1, expire=0.001)
        time.sleep(0.01)
        assert cache["a"] == {"any": "object"}
        assert "b" not in cache
        assert cache.expire() == 1
        calls = []

        @cache.memoize(expire=60)
        def square(number: int) -> int:
            calls.append(number)
            return number * number

        assert [square(3), square(3), square(4)] == [9, 9, 16]
        assert calls == [3, 4]
        before = cache.store.stats().filtered
        assert all(cache.get(f"absent {i}") is None for i in range(1000))
        print(f"1000 misses: {1000 - cache.store.stats().filtered + before} reads")


if __name__ == "__main__":
    main()
