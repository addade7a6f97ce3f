"""The referee between an adversary and what it attacks: answers, counts, and keeps to the budget."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dlbf.adversary.revealing import Revealed
from dlbf.errors import DlbfError, FilterFullError

__all__ = ["BudgetError", "Oracle", "StoreFilter"]

Answers = npt.NDArray[np.bool_]


class BudgetError(DlbfError):
    """An adversary asked or changed more than its budget allows."""


class StoreFilter:
    """The filter of a ``dlbf.storage.Store`` as somebody sees it who can time its reads.

    ``key in store`` is never wrong, so it tells nothing.  Whoever can tell a read that touched the data from one that
    did not, by its time or from the operator's figures, knows the filter's answer; this is that adversary.

    Parameters
    ----------
    store : Store

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> with tempfile.TemporaryDirectory() as folder, Store(folder + "/store") as store:
    ...     store[b"a"] = b"1"
    ...     StoreFilter(store).contains_many([b"a", b"b"]).tolist()
    [True, False]
    """

    def __init__(self, store: Any) -> None:
        self.store = store

    def __contains__(self, key: bytes) -> bool:
        return bool(self.contains_many([key])[0])

    def contains_many(self, keys: Sequence[bytes]) -> Answers:
        """The filter's answers; all True where the store has to read without its filter."""
        self.store.get(keys[0] if keys else b"")  # the filter catches up with the last commit
        inner = self.store.ledger.filter
        if inner is None:
            return np.ones(len(keys), dtype=bool)
        return np.asarray(inner.contains_many(keys), dtype=bool)

    def update(self, keys: Iterable[bytes]) -> None:
        """Store keys, in one transaction."""
        with self.store.write() as txn:
            for key in keys:
                txn.put(key, b"")

    def remove_many(self, keys: Sequence[bytes]) -> Answers:
        """Delete keys, in one transaction; False for those that were not there."""
        with self.store.write() as txn:
            return np.array([txn.delete(key) for key in keys], dtype=bool)


class Target(Protocol):
    """Anything with ``in``; see ``Oracle`` for what else is used where it exists."""

    def __contains__(self, key: bytes, /) -> bool:
        """Whether the key may be there."""


class Oracle:
    """Answers an adversary's questions, applies its changes, and keeps the score.

    A false positive counts once, however often it is asked for: every question is a key that is not stored and was
    not asked before, or it does not count.

    Parameters
    ----------
    target : object
        Anything with ``in``; ``contains_many`` is used where it exists.  Changes need ``update`` and ``remove_many``.
    members : collection of bytes
        The stored keys.  The adversary knows them all, as in the published games.
    queries : int
        New absent keys it may ask for.
    changes : int
        Keys it may insert or remove.
    revealed : Revealed, optional
        What else it can see.

    Attributes
    ----------
    asked, hits : int
        Absent keys asked for so far, and how many of them were answered "maybe".
    refused : int
        Insertions for which the target said that it was full.

    Examples
    --------
    >>> from dlbf import CuckooFilter
    >>> f = CuckooFilter(100, 0.01); f.update([b"a", b"b"])
    >>> oracle = Oracle(f, [b"a", b"b"], queries=10)
    >>> oracle.ask([b"a", b"c", b"c"]).tolist(), oracle.asked
    ([True, False, False], 1)
    """

    def __init__(
        self,
        target: Target,
        members: Collection[bytes],
        queries: int,
        changes: int = 0,
        revealed: Revealed | None = None,
    ) -> None:
        self.target: Any = target
        self.known = list(members)
        self.members = set(members)
        self.queries = queries
        self.changes = changes
        self.revealed = revealed
        self.asked = 0
        self.hits = 0
        self.refused = 0
        self._answers: dict[bytes, bool] = {}

    @property
    def left(self) -> int:
        """Questions that may still be asked."""
        return self.queries - self.asked

    def is_fresh(self, key: bytes) -> bool:
        """Whether a key is neither stored nor asked for before: only such keys count."""
        return key not in self.members and key not in self._answers

    def _ask_target(self, keys: Sequence[bytes]) -> Answers:
        many = getattr(self.target, "contains_many", None)
        if many is not None:
            return np.asarray(many(keys), dtype=bool)
        return np.array([key in self.target for key in keys], dtype=bool)

    def ask(self, keys: Sequence[bytes]) -> Answers:
        """The target's answers.  Stored keys and keys asked before are answered too, and not counted again.

        Raises
        ------
        BudgetError
            If there are more new keys than questions left; nothing has been asked then.
        """
        fresh = [key for key in dict.fromkeys(keys) if self.is_fresh(key)]
        if len(fresh) > self.left:
            raise BudgetError(f"{len(fresh)} new keys asked, {self.left} questions left of {self.queries}")
        if fresh:
            answers = self._ask_target(fresh)
            self._answers.update(zip(fresh, answers.tolist(), strict=True))
            self.asked += len(fresh)
            self.hits += int(answers.sum())
        return np.array([self._answers.get(key, True) for key in keys], dtype=bool)

    def _spend(self, n: int) -> None:
        if n > self.changes:
            raise BudgetError(f"{n} keys to change, {self.changes} changes left")
        self.changes -= n

    def insert(self, keys: Sequence[bytes]) -> int:
        """Insert absent keys; returns how many went in before the target said that it was full."""
        fresh = [key for key in dict.fromkeys(keys) if key not in self.members]
        self._spend(len(fresh))
        done = 0
        try:
            if getattr(self.target, "add", None) is None:
                self.target.update(fresh)
                done = len(fresh)
            else:
                for key in fresh:
                    self.target.add(key)
                    done += 1
        except FilterFullError:
            self.refused += len(fresh) - done
        self.members.update(fresh[:done])
        for key in fresh[:done]:
            self._answers.pop(key, None)
        return done

    def remove(self, keys: Sequence[bytes]) -> None:
        """Ask for the removal of keys, stored or not: whether one may remove what is not there is for the target."""
        self._spend(len(keys))
        self.target.remove_many(keys)
        self.members.difference_update(keys)

    def lost(self) -> int:
        """Stored keys that the target denies."""
        keys = list(self.members)
        return int((~self._ask_target(keys)).sum()) if keys else 0

    def judge(self, keys: Sequence[bytes]) -> int:
        """How many of these keys, all new, are false positives: the end of a game.

        Raises
        ------
        ValueError
            If one is stored, was asked before, or comes twice.
        """
        if len(set(keys)) != len(keys) or not all(self.is_fresh(key) for key in keys):
            raise ValueError("a forged key must be new: not stored, not asked for before, not given twice")
        return int(self._ask_target(keys).sum()) if keys else 0
