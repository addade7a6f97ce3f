"""Histories for ``dlbf bench replay``: keys that leave a list and come (back), batch by batch, real or made here."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlbf.bench.data import read_named
from dlbf.datasets import listed_urls, ordinary_urls

__all__ = ["Change", "made_trace", "read_trace"]


@dataclass(frozen=True)
class Change:
    """One batch of the history: first keys are removed, then keys are added."""

    when: str
    removed: list[bytes]
    added: list[bytes]


def read_trace(folder: Path) -> tuple[list[Change], list[bytes]]:
    """The real history in a folder (see ``dlbf.bench.data``), and keys that never were on the list, shuffled.

    ``trace.urls.malicious.tsv`` has a line per batch: time, name, removed, added; the latter two are differences of
    ascending line numbers, from 1, of ``urls.malicious.txt``.
    """
    keys = read_named(folder, "urls.malicious.txt")

    def named(differences: bytes) -> list[bytes]:
        at, found = 0, []
        for difference in differences.split():
            at += int(difference)
            found.append(keys[at - 1])
        return found

    changes = []
    for line in read_named(folder, "trace.urls.malicious.tsv"):
        when, _, removed, added = line.split(b"\t")
        changes.append(Change(when.decode(), named(removed), named(added)))
    absent = read_named(folder, "urls.benign.txt")
    random.Random("absent").shuffle(absent)
    return changes, absent


def made_trace(n_batches: int, n_keys: int, seed: int = 0) -> tuple[list[Change], list[bytes]]:
    """A history made here, as lumpy as a real one: keys stay for some batches, some come back, once half vanish.

    Parameters
    ----------
    n_batches : int
        Length of the history.
    n_keys : int
        Different keys in it.
    seed : int
        Same seed, same history.
    """
    rng = random.Random(f"trace {seed}")
    fresh = iter(listed_urls(n_keys, seed))
    live: dict[bytes, int] = {}
    former: dict[bytes, None] = {}
    vanished: list[bytes] = []
    changes = []
    for number in range(n_batches):
        removed = [key for key, until in live.items() if until <= number]
        returning, vanished = vanished, []
        if number == n_batches // 2:
            vanished = [key for key, until in live.items() if until > number][::2]
            removed += vanished
        for key in removed:
            del live[key]
        # The first batch brings a fifth of all keys, a later one in twenty a burst.
        share = n_keys / 5 if number == 0 else 0.8 * n_keys / n_batches
        added = _take(fresh, int(share * (3 if rng.random() < 0.05 else 1)))
        returning += rng.sample(list(former), min(len(former), len(added) // 2))
        added = list(dict.fromkeys(added + returning))
        for key in added:
            live[key] = number + 1 + int(rng.expovariate(1 / 12))
            former.pop(key, None)
        former |= dict.fromkeys(removed)
        changes.append(Change(f"batch {number}", removed, added))
    return changes, list(ordinary_urls(max(100_000, n_keys), seed))


def _take(source: Iterator[bytes], n: int) -> list[bytes]:
    return [key for key, _ in zip(source, range(n), strict=False)]
