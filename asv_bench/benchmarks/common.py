"""Shared by all benchmarks: the filters under test, fresh keys, sizes."""

import gc
import os
from functools import partial

from dlbf.bench.contenders import OURS, PEERS, SECRET
from dlbf.datasets import listed_urls, ordinary_urls

__all__ = [
    "DELETABLE", "FILTERS", "FPR", "SECRET", "TINY", "make_keys", "queries", "rbloom_or_skip", "size", "sizes",
]  # fmt: skip

FPR = 0.01
TINY = os.environ.get("DLBF_BENCH_TINY", "0") not in ("", "0")

# What is built from all keys at once has benchmarks of its own: learned.py, and RibbonBuild of filters.py.
FILTERS = {
    name: partial(contender.make, fpr=FPR)
    for name, contender in OURS.items()
    if name not in ("LearnedFilter", "RibbonFilter")
}
DELETABLE = [name for name in FILTERS if "remove" not in OURS[name].cannot]


def size(n, tiny=1000):
    """A number of keys; a small one when the suite is only checked."""
    return min(n, tiny) if TINY else n


def sizes(*wanted):
    """Numbers of keys to compare; one small one when the suite is only checked."""
    return [size(wanted[0])] if TINY else list(wanted)


def rbloom_or_skip(n_keys):
    """The peer, at the same size; a benchmark that needs it is skipped without it."""
    try:
        return PEERS["rbloom"].make(n_keys, FPR)
    except ImportError:
        raise NotImplementedError from None


def queries(n, hit_ratio, keys, seed=7):
    """Fresh bytes objects (no cached hash), ``hit_ratio`` of them from ``keys``, evenly mixed."""
    n_hits = int(n * hit_ratio)
    hits = [bytes(bytearray(key)) for key in keys[:n_hits]]
    misses = list(ordinary_urls(n - n_hits, seed))
    if not hits or not misses:
        return hits or misses
    step = len(hits) / len(misses)
    mixed, taken = [], 0
    for i, miss in enumerate(misses):
        upto = int((i + 1) * step)
        mixed += [miss, *hits[taken:upto]]
        taken = upto
    return mixed + hits[taken:]


def make_keys(n):
    """The keys that go into a filter."""
    if not TINY:
        gc.collect()
    return list(listed_urls(n))
