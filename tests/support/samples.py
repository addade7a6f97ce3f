"""Keys with fixed seeds and a small filter of every kind, for all tests."""

import functools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import dlbf
from dlbf.bench.contenders import SHAPES
from dlbf.errors import StoreError
from dlbf.filters.elastic_sizes import SHARE_UNIT, ElasticGeometry
from dlbf.storage.room import Room

SECRET = bytes(range(16))


def skip_without_writemap(folder: Path) -> None:
    """Skip a test of stores written through LMDB's map where there can be none: not every file system gives room."""
    try:
        Room(folder / "probe", mapped=True).close()
    except StoreError as error:
        pytest.skip(str(error))


def url_keys(n: int, seed: int = 0) -> list[bytes]:
    """``n`` different keys that look like URLs; two seeds share none."""
    rng = random.Random(seed)
    words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(997)]
    return [b"https://%s.example/%d/%s/%d" % (words[i % 997], seed, words[(i * 31) % 997], i) for i in range(n)]


def small_filters(secret: bytes | None = None) -> dict[str, Callable[[], dlbf.filters.Filter]]:
    """A maker of a small filter for every class, counter width and layout."""
    return {name: functools.partial(shape.make_small, secret) for name, shape in SHAPES.items()}


SMALL_FILTERS = small_filters()
DELETABLE = sorted(name for name, shape in SHAPES.items() if shape.cls.DELETABLE)


def elastic_of_buckets(n_bits: int, slots: int, hashes: int = 3, share: float = 0.5) -> dlbf.ElasticBloomFilter:
    """An elastic filter with buckets of so few slots that they overflow."""
    log2 = n_bits.bit_length() - 1
    f = dlbf.ElasticBloomFilter.__new__(dlbf.ElasticBloomFilter)
    f._create(ElasticGeometry(log2, log2, hashes, int(share * SHARE_UNIT), slots), 0, 0.0, None, 0)
    return f
