"""The attacks: each a class with a budget of queries and, where it changes the filter, of changes.

An attack first spends its queries (``Attack.run``), learning from the answers, and can then name new keys that it
expects to be false positives (``Attack.forge``).  All of them work on anything with ``in``; those that read the
model or the bits do so through what the game reveals, and never see a secret.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dlbf.adversary.forging import key_with_hash
from dlbf.adversary.oracle import Oracle
from dlbf.adversary.places import cells_of_hashes
from dlbf.filters import BloomFilter, CountingBloomFilter
from dlbf.filters.base import Filter, geometry_of, payload_of
from dlbf.filters.bloom import CellFilter
from dlbf.kernels.hashing import hash64
from dlbf.learned import LearnedFilter
from dlbf.learned.composite import part_filter, parts_of

__all__ = [
    "ATTACKS",
    "Attack",
    "BlackBoxMutation",
    "DeletionDriven",
    "HashCollision",
    "Pollution",
    "WhiteBoxMutation",
    "mutate",
]

LETTERS = b"abcdefghijklmnopqrstuvwxyz"
DIGITS = b"0123456789"
BATCH = 512
# How many of the newest finds are mutated further, and how often an old acquaintance is tried instead.
POOL = 4096
EXPLORE = 0.05
# Most mutations that a climbing adversary scores at a time, in batches.
CLIMB = 4
# Tries in vain before an attack gives up: there may be no more keys of the kind.
PATIENCE = 1000
# Keys of one hash that bring a 4-bit counter to its maximum.
SATURATING = 15


def mutate(key: bytes, rng: random.Random) -> bytes:
    """The key with one of its characters changed to another of the same kind; empty keys grow by a letter.

    Examples
    --------
    >>> mutate(b"a.example/1", random.Random(1))
    b'a.sxample/1'
    """
    if not key:
        return bytes([rng.choice(LETTERS)])
    at = rng.randrange(len(key))
    # Punctuation holds a URL together: move to a letter or digit if there is one near.
    for step in range(len(key)):
        if key[(at + step) % len(key)] in LETTERS or key[(at + step) % len(key)] in DIGITS:
            at = (at + step) % len(key)
            break
    kind = DIGITS if key[at] in DIGITS else LETTERS
    return key[:at] + bytes([rng.choice(kind)]) + key[at + 1 :]


class Attack(ABC):
    """An adversary with a budget.

    Parameters
    ----------
    queries : int
        New absent keys it asks for.
    changes : int
        Keys it inserts or removes, for attacks that do.
    seed : int
        The same seed does the same.
    """

    name: ClassVar[str]
    changes_target: ClassVar[bool] = False

    def __init__(self, queries: int = 100_000, *, changes: int = 0, seed: int = 0) -> None:
        if queries < 0 or changes < 0:
            raise ValueError(f"a budget must not be negative, found queries={queries!r}, changes={changes!r}")
        self.queries = queries
        self.changes = changes
        self.rng = random.Random(seed)
        self.found: list[bytes] = []

    def _fresh(self, oracle: Oracle, make: Callable[[], bytes], n: int, taken: set[bytes] | None = None) -> list[bytes]:
        """Up to ``n`` different keys from ``make`` that would count."""
        taken = set() if taken is None else taken
        out: list[bytes] = []
        misses = 0
        while len(out) < n and misses < PATIENCE:
            key = make()
            if key in taken or not oracle.is_fresh(key):
                misses += 1
                continue
            misses = 0
            taken.add(key)
            out.append(key)
        return out

    def _remember(self, keys: list[bytes]) -> None:
        self.found += keys
        del self.found[:-POOL]

    def _child(self, oracle: Oracle) -> bytes:
        """A mutation of a key that answered "maybe": mostly of a false positive, sometimes of a stored one."""
        if self.found and self.rng.random() >= EXPLORE:
            return mutate(self.rng.choice(self.found), self.rng)
        return mutate(self.rng.choice(oracle.known), self.rng)

    def _ask_children(self, oracle: Oracle) -> None:
        """Query until positive, mutate, repeat; until the queries are spent."""
        while oracle.left:
            batch = self._fresh(oracle, lambda: self._child(oracle), min(BATCH, oracle.left))
            if not batch:
                return
            answers = oracle.ask(batch)
            self._remember([key for key, yes in zip(batch, answers.tolist(), strict=True) if yes])

    @abstractmethod
    def run(self, oracle: Oracle) -> None:
        """Spend the budget."""

    def forge(self, oracle: Oracle, n: int) -> list[bytes]:
        """Up to ``n`` new keys that it expects to be false positives; none of them is asked for."""
        return self._fresh(oracle, lambda: self._child(oracle), n)


class BlackBoxMutation(Attack):
    """Query until positive, mutate, repeat: changes a letter of a stored key or of an earlier false positive.

    Sees nothing but answers.  A learned filter without defence says yes again and again: what looks like a stored key
    scores like one.

    Examples
    --------
    >>> from dlbf import BloomFilter
    >>> keys = [b"key number %d" % i for i in range(1000)]
    >>> f = BloomFilter(1000, 0.05, secret=bytes(16)); f.update(keys)
    >>> oracle = Oracle(f, keys, queries=5000)
    >>> BlackBoxMutation(5000).run(oracle)
    >>> oracle.asked, 0.03 < oracle.hits / oracle.asked < 0.07
    (5000, True)
    """

    name = "black-box mutation"

    def run(self, oracle: Oracle) -> None:
        self._ask_children(oracle)


class Forgery(Attack):
    """An attack that works out by itself which keys are worth a question."""

    @abstractmethod
    def _candidates(self, oracle: Oracle, n: int) -> list[bytes]:
        """At most ``n`` keys to ask for; none when it has no more."""

    def run(self, oracle: Oracle) -> None:
        while oracle.left:
            batch = self._candidates(oracle, min(BATCH, oracle.left))
            if not batch:
                return
            oracle.ask(batch)

    def forge(self, oracle: Oracle, n: int) -> list[bytes]:
        return self._candidates(oracle, n)


class WhiteBoxMutation(Forgery):
    """Reads the model and all filter bits, and climbs the score into the region whose bits let most pass.

    Where the hash has no secret it answers its questions itself, from a copy, and asks only for false positives.

    Examples
    --------
    >>> from dlbf import BloomFilter
    >>> from dlbf.adversary import reveal
    >>> keys = [b"key number %d" % i for i in range(1000)]
    >>> f = BloomFilter(1000, 0.05); f.update(keys)
    >>> oracle = Oracle(f, keys, queries=500, revealed=reveal(f))
    >>> WhiteBoxMutation(500).run(oracle)
    >>> oracle.hits / oracle.asked
    1.0
    """

    name = "white-box mutation"

    @staticmethod
    def _enough(n: int) -> int:
        return min(CLIMB * BATCH, n + n // 4 + 64)

    def _candidates(self, oracle: Oracle, n: int) -> list[bytes]:
        seen = oracle.revealed
        if seen is None:
            raise ValueError("a white-box attack needs what the filter reveals: pass revealed=reveal(filter)")
        if seen.filter is not None:
            return self._false_positives(oracle, n)
        if seen.model is None:
            return self._fresh(oracle, lambda: self._child(oracle), n)
        # Climb: of some mutations keep those nearest to the weakest region; those inside it are the next parents.
        chosen: list[bytes] = []
        taken: set[bytes] = set()
        for _ in range(PATIENCE):
            pool = self._fresh(oracle, lambda: self._child(oracle), self._enough(n - len(chosen)), taken)
            if not pool:
                break
            misses = seen.misses(pool, seen.weakest)
            inside = [key for key, miss in zip(pool, misses.tolist(), strict=True) if miss == 0]
            chosen += inside
            best = inside or [pool[i] for i in np.argsort(misses, kind="stable")[: max(1, BATCH // 8)]]
            self._remember(best)
            if len(chosen) >= n:
                break
        return chosen[:n]

    def _false_positives(self, oracle: Oracle, n: int) -> list[bytes]:
        """Mutations that the copy says are false positives."""
        copy = oracle.revealed.filter if oracle.revealed is not None else None
        assert copy is not None
        chosen: list[bytes] = []
        taken: set[bytes] = set()
        for _ in range(PATIENCE):
            pool = self._fresh(oracle, lambda: self._child(oracle), self._enough(n - len(chosen)), taken)
            if not pool:
                break
            hits = [key for key, yes in zip(pool, copy.contains_many(pool).tolist(), strict=True) if yes]
            self._remember(hits)
            chosen += hits
            if len(chosen) >= n:
                break
        return chosen[:n]


class HashCollision(Forgery):
    """Keys made to have the hash of a stored key: false positives by arithmetic, no search and no luck.

    Against XXH3-64 every one succeeds where the filter looks at the hash alone, and where a model looks at the key too,
    once its text is taken from a key of the same region.  Against a keyed hash they are keys like any other.

    Examples
    --------
    >>> from dlbf import CuckooFilter
    >>> keys = [b"key number %d" % i for i in range(1000)]
    >>> rates = []
    >>> for secret in (None, bytes(16)):
    ...     f = CuckooFilter(1000, 0.01, secret=secret); f.update(keys)
    ...     oracle = Oracle(f, keys, queries=1000)
    ...     HashCollision(1000).run(oracle)
    ...     rates.append(oracle.hits / oracle.asked)
    >>> rates[0], rates[1] < 0.03
    (1.0, True)
    """

    name = "hash collision"

    def _collision(self, oracle: Oracle) -> bytes:
        victim = self.rng.choice(oracle.known)
        # Text like the victim's, so that a model scores it alike; one change makes it another key.
        text = mutate(victim.ljust(16, b"-"), self.rng)
        return key_with_hash(text, hash64(victim))

    def _candidates(self, oracle: Oracle, n: int) -> list[bytes]:
        seen = oracle.revealed
        if seen is None or seen.filter is None:
            return self._fresh(oracle, lambda: self._collision(oracle), n)
        # With the model at hand, ask only for those it sends to the right filter.
        chosen: list[bytes] = []
        taken: set[bytes] = set()
        for _ in range(PATIENCE):
            pool = self._fresh(oracle, lambda: self._collision(oracle), BATCH, taken)
            if not pool:
                break
            chosen += [key for key, yes in zip(pool, seen.filter.contains_many(pool).tolist(), strict=True) if yes]
            if len(chosen) >= n:
                break
        return chosen[:n]


class Pollution(Attack):
    """Chosen insertions that fill a filter with as few keys as possible; then black-box mutation.

    Where it can compute the hash of a filter of cells, each key it inserts sets only cells that were empty: the share
    of set bits grows from 1/2 towards ln 2 at capacity, and the rate with its k-th power.  Where it cannot, but knows
    the model, it inserts keys of one region only, the one that lets most pass: its filter was planned for its share of
    the keys, not for all.

    Examples
    --------
    >>> from dlbf import BloomFilter
    >>> from dlbf.adversary import reveal
    >>> keys, rates = [b"key number %d" % i for i in range(500)], []
    >>> for secret in (None, bytes(16)):
    ...     f = BloomFilter(1000, 0.01, secret=secret); f.update(keys)
    ...     oracle = Oracle(f, keys, queries=20_000, changes=500, revealed=reveal(f))
    ...     Pollution(20_000, changes=500).run(oracle)
    ...     rates.append(oracle.hits / oracle.asked)
    >>> rates[0] > 2 * rates[1], rates[1] < 0.014
    (True, True)
    """

    name = "pollution"
    changes_target = True

    def run(self, oracle: Oracle) -> None:
        self.insert(oracle)
        self.found.clear()
        self._ask_children(oracle)

    def insert(self, oracle: Oracle) -> None:
        """Spend the changes."""
        seen = oracle.revealed
        cells = _only_cells(seen.filter) if seen is not None else None
        if cells is not None:
            self._fill_cells(oracle, cells)
            return
        while oracle.changes and not oracle.refused:
            wanted = min(BATCH, oracle.changes)
            if seen is None or seen.model is None:
                batch = self._fresh(oracle, lambda: self._child(oracle), wanted)
            else:
                pool = self._fresh(oracle, lambda: self._child(oracle), CLIMB * BATCH)
                misses = seen.misses(pool, seen.weakest)
                batch = [pool[i] for i in np.argsort(misses, kind="stable")[:wanted]]
                self._remember(batch)
            if not batch:
                return
            oracle.insert(batch)

    def _fill_cells(self, oracle: Oracle, inner: CellFilter) -> None:
        """Insert keys whose cells are all empty, or as many of them as can be found quickly."""
        geometry = geometry_of(inner)
        n_cells, n_hashes = geometry["n_cells"], geometry["n_hashes"]
        taken = _occupied_cells(inner)
        random_words = np.random.default_rng(self.rng.getrandbits(32))
        effort = 4096
        while oracle.changes and not oracle.refused:
            hashes = random_words.integers(0, 1 << 64, effort, dtype=np.uint64)
            cells = cells_of_hashes(hashes, n_cells, n_hashes).astype(np.int64)
            free = (~taken[cells]).sum(axis=1)
            batch: list[bytes] = []
            for i in np.argsort(-free, kind="stable")[: max(1, effort // 64)].tolist():
                if len(batch) >= oracle.changes:
                    break
                # Others of this batch may have taken its cells by now.
                if int((~taken[cells[i]]).sum()) < free[i]:
                    continue
                taken[cells[i]] = True
                batch.append(key_with_hash(b"%016d" % self.rng.randrange(10**16), int(hashes[i])))
            oracle.insert(batch)


def _only_cells(inner: Filter | None) -> CellFilter | None:
    """The one array of cells that a filter without a model consists of; None for all others."""
    if isinstance(inner, LearnedFilter) and len(parts_of(inner)) == len(inner.plan.regions) == 1:
        inner = part_filter(inner, 0)
    if isinstance(inner, (BloomFilter, CountingBloomFilter)) and not geometry_of(inner)["block_cells"]:
        return inner
    return None


def _occupied_cells(inner: CellFilter) -> npt.NDArray[np.bool_]:
    """Which cells of a revealed filter are in use."""
    bits = np.unpackbits(np.frombuffer(bytes(payload_of(inner)), dtype=np.uint8), bitorder="little")
    geometry = geometry_of(inner)
    width, n_cells = geometry["cell_bits"], geometry["n_cells"]
    used: npt.NDArray[np.bool_] = bits[: n_cells * width].reshape(n_cells, width) != 0
    return np.asarray(used.any(axis=1))


class DeletionDriven(Attack):
    """Inserts and deletes: drives counters to saturation, or makes a filter forget keys of others.

    *Saturate*: where it can compute the hash, it inserts 15 keys with one and the same hash, so that their 4-bit
    counters stand at the maximum, where they stay when the keys are deleted again; so it fills a filter that is empty.
    Where it cannot, it inserts and deletes in turns and hopes.  *Free*: it then deletes its false positives, which were
    never there.  A store knows that and does nothing; a filter by itself cannot know, and loses a key of somebody else.

    Parameters
    ----------
    queries, changes, seed
        See ``Attack``.
    free : bool
        Also try to delete what is not there.

    Examples
    --------
    >>> from dlbf import CountingBloomFilter
    >>> keys, rates = [b"key number %d" % i for i in range(200)], []
    >>> for secret in (None, bytes(16)):
    ...     f = CountingBloomFilter(400, 0.01, secret=secret); f.update(keys)
    ...     oracle = Oracle(f, keys, queries=2000, changes=20_000)
    ...     DeletionDriven(2000, changes=20_000, free=False).run(oracle)
    ...     rates.append((oracle.hits / oracle.asked, len(f), oracle.lost()))
    >>> rates[0][0] > 0.2, rates[1][0] < 0.01, [row[1:] for row in rates]
    (True, True, [(200, 0), (200, 0)])
    """

    name = "deletion"
    changes_target = True

    def __init__(self, queries: int = 100_000, *, changes: int = 0, seed: int = 0, free: bool = True) -> None:
        super().__init__(queries, changes=changes, seed=seed)
        self.free = free

    def run(self, oracle: Oracle) -> None:
        # Freeing takes one change each; the rest goes into inserting and deleting.
        kept = min(oracle.changes // 10, 2000) if self.free else 0
        self._saturate(oracle, kept)
        self.found.clear()
        self._ask_children(oracle)
        victims = list(dict.fromkeys(self.found))[: min(kept, oracle.changes)]
        if victims:
            oracle.remove(victims)

    def _saturate(self, oracle: Oracle, kept: int) -> None:
        group = SATURATING
        room = max(group, len(oracle.known) // 10)
        while oracle.changes - kept >= 2 * group and not oracle.refused:
            batch: list[bytes] = []
            while len(batch) + group <= min(room, (oracle.changes - kept) // 2):
                value = self.rng.getrandbits(64)
                batch += [key_with_hash(b"%016d" % self.rng.randrange(10**16), value) for _ in range(group)]
            done = oracle.insert(batch)
            oracle.remove(batch[:done])


ATTACKS: tuple[type[Attack], ...] = (BlackBoxMutation, WhiteBoxMutation, HashCollision, Pollution, DeletionDriven)
