"""A read-through cache in a program of your own: what is not there is known from memory, without touching the disk."""

import sys
from collections.abc import Callable

from dlbf.storage import Store


class Cache:
    """Values of a slow function, kept in a store; any number of processes may share it."""

    def __init__(self, path: str, slow: Callable[[bytes], bytes]) -> None:
        self.store = Store(path, fpr=0.01, sync="data")
        self.slow = slow

    def get(self, key: bytes) -> bytes:
        """The value, computed at most once (until it is forgotten)."""
        value = self.store.get(key)  # a key that is not there costs a filter lookup, no disk read
        if value is None:
            value = self.store[key] = self.slow(key)
        return value

    def forget(self, key: bytes) -> bool:
        """Drop a value that is out of date; the filter forgets the key, too."""
        return self.store.delete(key)

    def tidy(self) -> str:
        """Once a day: learn from the keys asked for and missed, if that is worth while."""
        return self.store.rebuild(if_needed=True).reason


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(f"usage: {sys.argv[0]} PATH < WORDS  (PATH: the store, made if there is none)", file=sys.stderr)
        sys.exit(2)
    cache = Cache(sys.argv[1], slow=lambda key: key.upper())
    print(*(cache.get(word).decode() for word in sys.stdin.buffer.read().split()), sep="\n")
    print(cache.tidy(), cache.store.stats().state, file=sys.stderr)
    cache.store.close()
