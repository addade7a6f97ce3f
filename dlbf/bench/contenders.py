"""Every filter that is measured or tested, ours and their peers: the one list that all others ask.

``SHAPES`` has our filters in every shape they come in, for the tests.  ``OURS`` and ``PEERS`` have what ``dlbf bench``
and the asv suite measure, under the names their tables show.
"""

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dlbf
from dlbf.bench.timing import ask_each_in, call_with_each
from dlbf.datasets import ordinary_urls
from dlbf.filters import Filter
from dlbf.learned import LearnedFilter

__all__ = ["OURS", "PEERS", "SECRET", "SHAPES", "Contender", "Shape", "ask_each", "n_learnt", "size_in_bits"]

SECRET = bytes(range(16))


@dataclass(frozen=True)
class Shape:
    """One of our filters in one shape.

    Attributes
    ----------
    cls : type
        The class of the filter.
    small : mapping
        A geometry that a few dozen keys fill, as the tests want it.
    options : mapping
        What chooses the shape.
    """

    cls: type[Filter]
    small: Mapping[str, int]
    options: Mapping[str, object] = field(default_factory=dict)

    def make(self, n_keys: int, fpr: float, secret: bytes | None = None) -> Filter:
        """An empty filter for so many keys at a rate."""
        create: Callable[..., Filter] = self.cls
        return create(n_keys, fpr, secret=secret, **self.options)

    def make_small(self, secret: bytes | None = None) -> Filter:
        """An empty filter of the small geometry."""
        create: Callable[..., Filter] = self.cls
        return create(**self.small, **self.options, secret=secret)


SHAPES = {
    "bloom": Shape(dlbf.BloomFilter, {"bits": 1000, "hashes": 4}),
    "bloom-blocked": Shape(dlbf.BloomFilter, {"bits": 1024, "hashes": 4}, {"layout": "blocked"}),
    "counting-2": Shape(dlbf.CountingBloomFilter, {"counters": 301, "hashes": 3}, {"counter_bits": 2}),
    "counting-4": Shape(dlbf.CountingBloomFilter, {"counters": 301, "hashes": 3}, {"counter_bits": 4}),
    "counting-8": Shape(dlbf.CountingBloomFilter, {"counters": 301, "hashes": 3}, {"counter_bits": 8}),
    "counting-blocked": Shape(dlbf.CountingBloomFilter, {"counters": 256, "hashes": 3}, {"layout": "blocked"}),
    "deletable": Shape(dlbf.DeletableBloomFilter, {"bits": 1001, "hashes": 4, "regions": 100}),
    "dleft": Shape(dlbf.DLeftFilter, {"buckets": 8, "remainder_bits": 9}),
    "cuckoo": Shape(dlbf.CuckooFilter, {"buckets": 40, "prefixes": 10, "suffix_bits": 5}),
    "cuckoo-wide": Shape(dlbf.CuckooFilter, {"buckets": 40, "prefixes": 28, "suffix_bits": 24}),
    "exact": Shape(dlbf.ExactSet, {"capacity": 40}),
    "elastic": Shape(dlbf.ElasticBloomFilter, {"bits": 256, "hashes": 4}),
    "succinct": Shape(dlbf.SuccinctCountingFilter, {"counters": 301, "hashes": 3}),
}


@dataclass(frozen=True)
class Contender:
    """A filter that is measured beside others.

    Attributes
    ----------
    distribution : str
        The package whose version is reported.
    make : callable
        Makes it empty, for so many keys at a rate.
    keeps : str
        How it is kept through a restart.
    cannot : tuple of str
        What it cannot do that others can.
    """

    distribution: str
    make: Callable[[int, float], Any]
    keeps: str
    cannot: tuple[str, ...] = ()


# --- peers under the names that ours use


def _rbloom(n_keys: int, fpr: float) -> object:
    import rbloom

    return rbloom.Bloom(n_keys, fpr)


def _pybloomfiltermmap(n_keys: int, fpr: float) -> object:
    import pybloomfilter

    return pybloomfilter.BloomFilter(n_keys, fpr, str(Path(tempfile.mkdtemp()) / "filter"))


class FastBloom:
    """A filter of fastbloom-rs."""

    def __init__(self, n_keys: int, fpr: float, counting: bool = False) -> None:
        import fastbloom_rs

        builder = fastbloom_rs.FilterBuilder(n_keys, fpr)
        self.filter = builder.build_counting_bloom_filter() if counting else builder.build_bloom_filter()
        self.ask = self.filter.contains_bytes
        self.contains_many = self.filter.contains_bytes_batch
        self.update = self.filter.add_bytes_batch
        if counting:
            self.remove = self.filter.remove_bytes

    @property
    def nbytes(self) -> int:
        """Size of the bit array."""
        return len(self.filter.get_bytes())


class Hazy:
    """A filter of hazy."""

    def __init__(self, kind: str, n_keys: int, fpr: float) -> None:
        import hazy

        # Its cuckoo filter has one rate, whatever is asked for.
        self.filter = hazy.CuckooFilter(n_keys) if kind == "CuckooFilter" else getattr(hazy, kind)(n_keys, fpr)
        self.ask = self.filter.__contains__
        self.contains_many = self.filter.query_many
        self.update = self.filter.update
        if kind != "BloomFilter":
            self.remove = self.filter.remove

    @property
    def nbytes(self) -> int:
        """Size of the filter."""
        return int(self.filter.size_in_bytes)


class Fuse:
    """A filter of pyfusefilter, made from all keys at once."""

    def __init__(self, n_keys: int, fpr: float) -> None:
        import xxhash
        from pyfusefilter import pyfusefilter

        try:
            pyfusefilter.hash("key")
        except TypeError:
            # Release 1.3.0 hands text to xxhash, which since its version 4 wants bytes.  Repaired here, in its favour:
            # keys need not become text first.
            pyfusefilter.hash = xxhash.xxh64_intdigest
        self.make = pyfusefilter.Fuse8

    def build_from(self, keys: list[bytes]) -> object:
        """The filter of these keys."""
        return self.make(keys)


def n_learnt(n_keys: int) -> int:
    """Absent keys that a model learns from: as many as there are keys, and enough to show a rate of 1 %."""
    return max(n_keys, 10_000)


class Learned:
    """Ours with a model; the negatives it learns from are not those that are asked for."""

    def __init__(self, n_keys: int, fpr: float) -> None:
        self.fpr = fpr
        self.negatives = list(ordinary_urls(n_learnt(n_keys)))

    def build_from(self, keys: list[bytes]) -> LearnedFilter:
        """The filter fitted to these keys."""
        return LearnedFilter.fit(keys, self.negatives, fpr=self.fpr, deletability=0.9, model="ngram", progress=False)


class Ribbon:
    """Ours that is made from all keys at once."""

    def __init__(self, n_keys: int, fpr: float) -> None:
        self.fpr = fpr

    def build_from(self, keys: list[bytes]) -> dlbf.RibbonFilter:
        """The filter of these keys."""
        return dlbf.RibbonFilter.build(keys, self.fpr)


# --- the list

STATIC = ("remove", "add", "batch query", "keyed hash", "checksummed file", "rates other than 0.4 %")
NOT_OURS = ("keyed hash", "checksummed file")
PEERS = {
    "rbloom": Contender("rbloom", _rbloom, "file", ("remove", "batch query", *NOT_OURS)),
    "pybloomfiltermmap3": Contender(
        "pybloomfiltermmap3", _pybloomfiltermmap, "mapped file", ("remove", "batch query", *NOT_OURS)
    ),
    "fastbloom-rs": Contender("fastbloom-rs", FastBloom, "bytes", ("remove", *NOT_OURS)),
    "fastbloom-rs counting": Contender("fastbloom-rs", functools.partial(FastBloom, counting=True), "bytes", NOT_OURS),
    "hazy Bloom": Contender("hazy", functools.partial(Hazy, "BloomFilter"), "file", ("remove", *NOT_OURS)),
    "hazy counting": Contender("hazy", functools.partial(Hazy, "CountingBloomFilter"), "file", NOT_OURS),
    "hazy cuckoo": Contender("hazy", functools.partial(Hazy, "CuckooFilter"), "file", ("choose the rate", *NOT_OURS)),
    "pyfusefilter Fuse8": Contender("pyfusefilter", Fuse, "bytes", STATIC),
}


def _ours(shape: str, *cannot: str, secret: bytes | None = None) -> Contender:
    return Contender(
        "dlbf", functools.partial(SHAPES[shape].make, secret=secret), "mapped file, checksummed", tuple(cannot)
    )


OURS = {
    "BloomFilter": _ours("bloom", "remove"),
    "BloomFilter blocked": _ours("bloom-blocked", "remove"),
    "CountingBloomFilter": _ours("counting-4"),
    "CountingBloomFilter keyed": _ours("counting-4", secret=SECRET),
    "SuccinctCountingFilter": _ours("succinct"),
    "DeletableBloomFilter": _ours("deletable", "remove every key"),
    "DLeftFilter": _ours("dleft"),
    "CuckooFilter": _ours("cuckoo"),
    "CuckooFilter keyed": _ours("cuckoo", secret=SECRET),
    "RibbonFilter": Contender("dlbf", Ribbon, "mapped file, checksummed", ("remove", "add")),
    "LearnedFilter": Contender("dlbf", Learned, "mapped file, checksummed"),
}


# --- what contenders are asked, under whatever name they have for it


def size_in_bits(filter: Any) -> float:
    """Size of a filter in bits."""
    for name in ("size_in_bits", "num_bits"):
        if hasattr(filter, name):
            return float(getattr(filter, name))
    return 8 * float(filter.nbytes if hasattr(filter, "nbytes") else filter.size_in_bytes())


def ask_each(filter: Any) -> Callable[[Sequence[bytes]], None]:
    """A loop over the fastest way to ask for one key: a method if there is one, else ``in``."""
    ask = getattr(filter, "ask", None)
    return ask_each_in(filter) if ask is None else call_with_each(ask)
