"""What ``dlbf bench stress`` asks: filters and stores of a stated size, under one small interface.

A subject is as large as it may be within its bits per key, everything that must be in memory counted: a filter is made
for the rate that just fits, a store is rebuilt with one target after another until it does.
"""

import math
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from dlbf import models
from dlbf.bench.contenders import OURS, size_in_bits
from dlbf.bench.stress_workloads import Answers, Places
from dlbf.errors import FilterFullError
from dlbf.filters import Filter
from dlbf.learned import LearnedFilter
from dlbf.models import Model
from dlbf.storage import Store

__all__ = [
    "STRESSED",
    "FilterSubject",
    "Keys",
    "Shared",
    "Size",
    "StoreSubject",
    "Stressed",
    "Subject",
    "train",
]

VALUE = b"v"
KEYS_PER_COMMIT = 10_000
# A store is as large as it should be when it takes at least this share of its bits.
CLOSE_ENOUGH = 0.98
# ... or when a rate this little lower, in halvings, no longer fits.
LEAST_HALVINGS = 0.1
# Of the bits of a store, the share that absent keys which were found may take: what is left decides the rate.
REMEMBERED_SHARE = 0.1
# The worst case of a learned store over its rate: in churn keys that have left are asked for, and look like others.
WORST_OVER_RATE = 20
# Of the learned filter by itself, as ``fit`` chooses for a rate; with a budget alone it need not forget at all.
DELETABILITY = 0.9
# Rates that any filter can be made for.
RATES = (1e-9, 0.5)
# The model is to be good for filters of some eight bits per key; at most a bit and a third of those are its own, which
# is what "auto" chooses for URLs.
MODEL_FPR = 0.001
KEYS_PER_MODEL_BYTE = 6
MODEL_BYTES = (256, 65536)


@dataclass(frozen=True)
class Keys:
    """What is stored, what is learnt from, and what is asked for; nothing is fitted on the last.

    Attributes
    ----------
    stored, asked : list of bytes
        Keys, and absent keys.
    learnt : list of bytes
        Other absent keys: the first half teaches the model, the second decides sizes.
    """

    stored: list[bytes]
    learnt: list[bytes]
    asked: list[bytes]

    @property
    def deciding(self) -> list[bytes]:
        """Absent keys that the model has not learnt from."""
        return self.learnt[len(self.learnt) // 2 :]


@dataclass(frozen=True)
class Shared:
    """The one model that all learned subjects begin with, and the kind of those that stores learn later."""

    model: Model | None
    kind: str


def train(keys: Keys, kind: str) -> Shared:
    """Learn to tell stored keys from absent ones."""
    n_keys = len(keys.stored)
    most = min(max(1 << (n_keys // KEYS_PER_MODEL_BYTE).bit_length() - 1, MODEL_BYTES[0]), MODEL_BYTES[1])
    model = models.train(
        keys.stored, keys.learnt[: len(keys.learnt) // 2], kind=kind, max_bytes=None if kind == "auto" else most,
        validation=keys.deciding, fpr=MODEL_FPR, n_keys=n_keys, progress=False,
    )  # fmt: skip
    return Shared(model, kind)


@dataclass(frozen=True)
class Size:
    """What a subject is made for: so many bits per key, or a rate."""

    bits_per_key: float | None = None
    fpr: float | None = None


class Subject(Protocol):
    """Something that is asked for absent keys.

    Attributes
    ----------
    fpr_target : float
        The rate it was made for.
    """

    fpr_target: float

    @property
    def bits_per_key(self) -> float:
        """What it takes now."""

    def ask(self, absent: Sequence[bytes], places: Places) -> Answers:
        """Ask for absent keys in this order."""

    def lost(self, keys: Sequence[bytes]) -> int:
        """How many stored keys are not found; those that were refused do not count."""

    def restart(self) -> None:
        """Forget what earlier questions have taught it."""

    def swap(self, gone: Sequence[bytes], come: Sequence[bytes]) -> int:
        """Remove keys and add others; how many were not taken."""

    def upkeep(self) -> str:
        """What an owner does from time to time; why the filter was made anew, "" if it was not."""

    def close(self) -> None:
        """Let go of what it has."""


# --- filters


class FilterSubject:
    """A filter by itself: every "maybe" to an absent key is a needless read, each time."""

    def __init__(self, filter: Filter | LearnedFilter, n_keys: int, fpr_target: float) -> None:
        self.filter = filter
        self.fpr_target = fpr_target
        self._n_keys = n_keys
        self._refused: set[bytes] = set()

    @property
    def bits_per_key(self) -> float:
        return size_in_bits(self.filter) / self._n_keys

    def ask(self, absent: Sequence[bytes], places: Places) -> Answers:
        passes: Answers = self.filter.contains_many(absent)[places]
        return passes

    def lost(self, keys: Sequence[bytes]) -> int:
        taken = [key for key in keys if key not in self._refused]
        return int(len(taken) - self.filter.contains_many(taken).sum())

    def restart(self) -> None:
        pass

    def swap(self, gone: Sequence[bytes], come: Sequence[bytes]) -> int:
        self.filter.remove_many([key for key in gone if key not in self._refused])
        self._refused.difference_update(gone)
        refused = []
        for key in come:
            try:
                self.filter.add(key)
            except FilterFullError:
                refused.append(key)
        self._refused.update(refused)
        return len(refused)

    def upkeep(self) -> str:
        return ""

    def close(self) -> None:
        pass


def _plain(name: str, keys: Keys, size: Size, shared: Shared, folder: Path) -> Subject:
    """A filter without a model, for the lowest rate that fits."""
    n_keys = len(keys.stored)

    def filled(fpr: float) -> Filter:
        made = OURS[name].make(n_keys, fpr)
        if hasattr(made, "build_from"):
            return cast(Filter, made.build_from(keys.stored))
        made.update(keys.stored)
        return cast(Filter, made)

    fpr = size.fpr or _fitting_rate(lambda rate: size_in_bits(filled(rate)) / n_keys, size)
    return FilterSubject(filled(fpr), n_keys, fpr)


def _fitting_rate(bits_per_key: Callable[[float], float], size: Size) -> float:
    """The lowest rate that fits, to a hundredth of a bit; the highest there is if none does."""
    assert size.bits_per_key is not None
    low, high = (math.log2(1 / rate) for rate in reversed(RATES))
    while high - low > 0.01:
        middle = (low + high) / 2
        if bits_per_key(2**-middle) <= size.bits_per_key:
            low = middle
        else:
            high = middle
    return 2**-low


def _learned(
    design: str, keys: Keys, size: Size, shared: Shared, folder: Path, deletability: float | None = None
) -> Subject:
    """A learned filter of a design; ValueError if it cannot be had at this size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # few negatives: sizes are cautious
        made = LearnedFilter.fit(
            keys.stored, keys.deciding, size.fpr, bits_per_key=size.bits_per_key, design=design,
            deletability=deletability, model=shared.model, progress=False,
        )  # fmt: skip
    return FilterSubject(made, len(keys.stored), made.plan.fpr)


# --- stores


def _worst_case(fpr: float) -> float:
    return min(0.1, WORST_OVER_RATE * fpr)


class StoreSubject:
    """A store; each question is one ``get``, as a server's are.

    Parameters
    ----------
    folder : path
        A folder that is not there yet.
    keys : Keys
        What it is filled with, and the absent keys its filter learns from.
    size : Size
        Bits per key, or a rate.
    model : Model or None
        What the first filter is made with.
    later : str or None
        The kind of model that later filters learn; None: none.
    """

    def __init__(self, folder: Path, keys: Keys, size: Size, model: Model | None, later: str | None) -> None:
        self.folder = folder
        self._later = later
        budget = size.bits_per_key
        self._remember_bytes = None if budget is None else int(REMEMBERED_SHARE * budget * len(keys.stored) / 8)
        self.store = self._open()
        self._fill(keys.stored)
        self._size(keys, size, model)
        self.fpr_target = self.store.stats().fpr_target

    def _open(self) -> Store:
        return Store(self.folder, sync="none", remember_bytes=self._remember_bytes)

    def _fill(self, keys: Sequence[bytes]) -> None:
        for start in range(0, len(keys), KEYS_PER_COMMIT):
            with self.store.write() as txn:
                for key in keys[start : start + KEYS_PER_COMMIT]:
                    txn.put(key, VALUE)

    def _size(self, keys: Keys, size: Size, model: Model | None) -> None:
        """Rebuild for the rate, or for one after the other until the bits fit, with what traffic makes it remember."""

        def rebuild(fpr: float) -> None:
            absent = keys.deciding if model is not None else None
            self.store.rebuild(absent, model=model, fpr=fpr, adversarial_fpr=_worst_case(fpr))

        def bits(fpr: float) -> float:
            rebuild(fpr)
            room = 0 if self.store.stats().layers is None else self._remember_bytes or 0
            return self.bits_per_key + 8 * room / len(keys.stored)

        if size.bits_per_key is None:
            rebuild(size.fpr or 0.01)
            return
        budget = size.bits_per_key
        # Rates are halved so many times; between a count that fits and one that does not is the one that is sought.
        fits, too_much = (-math.log2(rate) for rate in reversed(RATES))
        halvings = budget / 1.2
        while True:
            taken = bits(2**-halvings)
            if CLOSE_ENOUGH * budget <= taken <= budget:
                return
            if taken <= budget:
                fits = max(fits, halvings)
            else:
                too_much = min(too_much, halvings)
            if too_much - fits <= LEAST_HALVINGS:
                break
            # Without a model a bit per key halves the rate once, with one more often: this ends on the near side.
            halvings += 0.99 * budget - taken
            if not fits < halvings < too_much:
                halvings = (fits + too_much) / 2
        rebuild(2**-fits)

    @property
    def bits_per_key(self) -> float:
        return float(self.store.stats().bits_per_key)

    def ask(self, absent: Sequence[bytes], places: Places) -> Answers:
        get, traffic = self.store.get, self.store.traffic
        before = traffic.n_filtered
        needless = []
        for number, place in enumerate(places.tolist()):
            if get(absent[place]) is not None:
                raise RuntimeError(f"a key that is not in the store was found: {absent[place]!r}")
            answered = traffic.n_filtered
            if answered == before:
                needless.append(number)
            before = answered
        out = np.zeros(len(places), dtype=np.bool_)
        out[needless] = True
        return out

    def lost(self, keys: Sequence[bytes]) -> int:
        return sum(value is None for value in self.store.get_many(list(keys)))

    def restart(self) -> None:
        self.store.close()
        self.store = self._open()
        self.store.get(b"")  # loads the filter

    def swap(self, gone: Sequence[bytes], come: Sequence[bytes]) -> int:
        for start in range(0, max(len(gone), len(come)), KEYS_PER_COMMIT):
            part = slice(start, start + KEYS_PER_COMMIT)
            with self.store.write() as txn:
                for key in gone[part]:
                    txn.delete(key)
                for key in come[part]:
                    txn.put(key, VALUE)
        return 0

    def upkeep(self) -> str:
        worst = _worst_case(self.fpr_target)
        report = self.store.rebuild(model=self._later, adversarial_fpr=worst, if_needed=True)
        return str(report.reason) or "due" if report.done else ""

    def close(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)


def _store(learns: bool, keys: Keys, size: Size, shared: Shared, folder: Path) -> Subject:
    return StoreSubject(folder, keys, size, *((shared.model, shared.kind) if learns else (None, None)))


# --- the list


@dataclass(frozen=True)
class Stressed:
    """One line of the list.

    Attributes
    ----------
    make : callable
        Makes the subject: from keys, a size, the model, and a folder that is not there yet.
    learned : bool
        Whether it needs the model.
    cannot_swap : str
        Why keys cannot be exchanged for others; "" if they can.
    at_targets : bool
        Whether it also takes part where a rate is given instead of a size.
    """

    make: Callable[[Keys, Size, Shared, Path], Subject]
    learned: bool = False
    cannot_swap: str = ""
    at_targets: bool = False


FIXED = "cannot remove keys"
STRESSED = {
    "BloomFilter": Stressed(partial(_plain, "BloomFilter"), cannot_swap=FIXED),
    "RibbonFilter": Stressed(partial(_plain, "RibbonFilter"), cannot_swap=FIXED),
    "CuckooFilter": Stressed(partial(_plain, "CuckooFilter"), at_targets=True),
    "slbf": Stressed(partial(_learned, "slbf"), learned=True, cannot_swap=FIXED),
    "plbf": Stressed(partial(_learned, "plbf"), learned=True, cannot_swap=FIXED),
    "ada-bf": Stressed(partial(_learned, "ada-bf"), learned=True, cannot_swap=FIXED),
    "LearnedFilter": Stressed(partial(_learned, "auto", deletability=DELETABILITY), learned=True, at_targets=True),
    "Store": Stressed(partial(_store, False), at_targets=True),
    "Store, learned": Stressed(partial(_store, True), learned=True, at_targets=True),
}
