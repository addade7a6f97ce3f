"""Shared by all benchmarks: the filters under test and fresh keys."""

import gc

import dlbf
from dlbf.bench.keys import listed_urls, ordinary_urls

FPR = 0.01
SECRET = bytes(range(16))

FILTERS = {
    "bloom": lambda n: dlbf.BloomFilter(n, FPR),
    "bloom-blocked": lambda n: dlbf.BloomFilter(n, FPR, layout="blocked"),
    "counting": lambda n: dlbf.CountingBloomFilter(n, FPR),
    "counting-keyed": lambda n: dlbf.CountingBloomFilter(n, FPR, secret=SECRET),
    "succinct": lambda n: dlbf.SuccinctCountingFilter(n, FPR),
    "dlbf": lambda n: dlbf.DeletableBloomFilter(n, FPR),
    "d-left": lambda n: dlbf.DLeftFilter(n, FPR),
    "cuckoo": lambda n: dlbf.CuckooFilter(n, FPR),
}
DELETABLE = [name for name in FILTERS if not name.startswith("bloom")]


def rbloom_or_skip(n_keys):
    """The peer, at the same size; a benchmark that needs it is skipped without it."""
    try:
        import rbloom
    except ImportError:
        raise NotImplementedError from None
    return rbloom.Bloom(n_keys, FPR)


def queries(n, hit_ratio, keys, seed=7):
    """Fresh bytes objects (no cached hash), ``hit_ratio`` of them from ``keys``, evenly mixed."""
    n_hits = int(n * hit_ratio)
    hits = [bytes(bytearray(key)) for key in keys[:n_hits]]
    misses = list(ordinary_urls(n - n_hits, seed))
    if not hits or not misses:
        return hits or misses
    return [key for pair in zip(hits, misses, strict=True) for key in pair]


def make_keys(n):
    """The keys that go into a filter."""
    gc.collect()
    return list(listed_urls(n))
