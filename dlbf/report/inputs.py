"""What a report is made from: the targets, and samples of the keys and of the absent keys."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dlbf.kernels.hashing import hash64_many

__all__ = ["UNSEEN_ONE_IN", "Gathered", "Inputs", "Targets", "gather", "prepare", "sample_evenly"]

# One absent key in so many is kept for measuring alone: nothing is trained, cut or sized by it.
UNSEEN_ONE_IN = 4
# Separates the choice of the unseen from every other use of the hash.
UNSEEN_SECRET = b"dlbf report: out"


@dataclass(frozen=True)
class Targets:
    """What was asked for."""

    fpr: float
    deletability: float
    adversarial_fpr: float
    secret: bytes | None = None
    seed: int = 0


@dataclass(frozen=True)
class Gathered:
    """A uniform sample of a stream of keys.

    Attributes
    ----------
    name : str
        Where it came from.
    total : int
        Keys in the stream.
    sample : list of bytes
        All of them, or a sample if there were more than asked for.
    is_store : bool
        They came from a store; else from a file.
    """

    name: str
    total: int
    sample: list[bytes]
    is_store: bool = False

    @property
    def sampled(self) -> bool:
        """Whether some were left out."""
        return len(self.sample) < self.total


def gather(name: str, batches: Iterable[list[bytes]], at_most: int, seed: int = 0) -> Gathered:
    """Keep at most ``at_most`` keys of a stream, each with the same chance; memory does not grow with the stream.

    Examples
    --------
    >>> numbers = gather("numbers", ([b"%d" % i] for i in range(1000)), at_most=10)
    >>> numbers.total, len(numbers.sample), numbers.sampled
    (1000, 10, True)
    """
    if at_most < 1:
        raise ValueError(f"at_most: expected at least 1, found {at_most!r}")
    rng = np.random.default_rng(seed)
    kept: list[bytes] = []
    total = 0
    for batch in batches:
        room = min(at_most - len(kept), len(batch))
        kept += batch[:room]
        total += room
        rest = batch[room:]
        if rest:
            # Key number i (from 0) takes a place among i + 1; it is kept if that place is one of ours.
            places = (rng.random(len(rest)) * (total + 1 + np.arange(len(rest)))).astype(np.int64)
            for number in np.flatnonzero(places < at_most).tolist():
                kept[places[number]] = rest[number]
            total += len(rest)
    return Gathered(name, total, kept)


@dataclass(frozen=True)
class Inputs:
    """Keys and absent keys, ready to fit and to measure.

    Attributes
    ----------
    keys : list of bytes
        Distinct.
    learnt, unseen : list of bytes
        Absent keys to fit on, and those only the final figures are measured on; never the same key in both.
    n_keys : int
        Keys to be stored; those in the file, estimated if it was sampled.
    duplicate_keys, overlapping, repeated_negatives : int
        Keys that occurred before, negatives that are keys and were dropped, negatives that occurred before.
    """

    key_source: Gathered
    negative_source: Gathered
    keys: list[bytes]
    learnt: list[bytes]
    unseen: list[bytes]
    n_keys: int
    duplicate_keys: int
    overlapping: int
    repeated_negatives: int


def prepare(keys: Gathered, negatives: Gathered) -> Inputs:
    """Drop what cannot be right, and set aside the absent keys that only measure."""
    distinct = list(dict.fromkeys(keys.sample))
    stored = set(distinct)
    absent = [key for key in negatives.sample if key not in stored]
    # By the key itself, so that one asked for twice is not learnt and then measured.
    aside = hash64_many(absent, UNSEEN_SECRET) % np.uint64(UNSEEN_ONE_IN) == 0
    share = len(distinct) / max(1, len(keys.sample))
    return Inputs(
        key_source=keys,
        negative_source=negatives,
        keys=distinct,
        learnt=[key for key, out in zip(absent, aside.tolist(), strict=True) if not out],
        unseen=[key for key, out in zip(absent, aside.tolist(), strict=True) if out],
        n_keys=round(keys.total * share) if keys.sampled else len(distinct),
        duplicate_keys=len(keys.sample) - len(distinct),
        overlapping=len(negatives.sample) - len(absent),
        repeated_negatives=len(absent) - len(set(absent)),
    )


def sample_evenly(items: Sequence[bytes], at_most: int) -> list[bytes]:
    """At most so many, evenly spread: a sorted file is not cut off."""
    if len(items) <= at_most:
        return list(items)
    step = len(items) / at_most
    return [items[int(i * step)] for i in range(at_most)]
