"""What a key costs in filters of one size, for ``dlbf bench scale``."""

import contextlib
import gc
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

import dlbf
from dlbf.bench.contenders import OURS, PEERS, ask_each, size_in_bits
from dlbf.bench.scale_keys import ABSENT, batches, make_keys
from dlbf.bench.scale_results import FPR, LEARNED, PEER, FilterCosts
from dlbf.bench.timing import Say, Work, side_by_side

__all__ = ["measure_filters"]

SCALED = ("CuckooFilter", "CountingBloomFilter", "BloomFilter", "BloomFilter blocked")
# The learned filter is fitted to so many keys, with room for the others, which are then added.  Its build time is that
# of adding; fitting takes the same time at every size and is told apart.
LEARN_FROM = 100_000
LEARNED_ROOM = 1.1
N_ASKED = 4000


def _empty(n_keys: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The filters by name, empty, and why others do not take part."""
    made: dict[str, Any] = {name: OURS[name].make(n_keys, FPR) for name in SCALED}
    missing = {}
    try:
        made[PEER] = PEERS[PEER].make(n_keys, FPR)
    except Exception as error:  # a missing or broken peer is named, whatever it raises
        missing[PEER] = f"{type(error).__name__}: {error}"
    return made, missing


def _fit(n_keys: int, learnt: int) -> tuple[dlbf.LearnedFilter, float]:
    """A learned filter of the first ``learnt`` keys with room for all, and the seconds that fitting took."""
    # The model learns from keys that are not stored: those it knows score higher than those still to come, and
    # regions sized by them would soon be full.
    n_learnt = max(learnt, 10_000)  # fewer absent keys cannot show a rate of 1 %
    likes, unlikes, unseen = (
        make_keys(np.arange(first, first + n_learnt)) for first in (ABSENT // 2, 2 * ABSENT, 3 * ABSENT)
    )
    keys = make_keys(np.arange(learnt))
    start = time.perf_counter()
    model = dlbf.models.train(likes, unlikes, kind="ngram", max_bytes=4096, progress=False)
    fitted = dlbf.LearnedFilter.fit(
        keys, unseen, fpr=FPR, deletability=0.9, headroom=n_keys / learnt * LEARNED_ROOM, model=model, progress=False
    )
    return fitted, time.perf_counter() - start


def measure_filters(n_keys: int, rounds: int, say: Say) -> tuple[dict[str, FilterCosts], dict[str, str]]:
    """The costs of every filter for so many keys, and why others did not run."""
    filters, missing = _empty(n_keys)
    learnt = min(LEARN_FROM, n_keys // 2)
    fit_seconds = None
    with contextlib.suppress(ImportError):
        say("fitting a model")
        filters[LEARNED], fit_seconds = _fit(n_keys, learnt)
    costs = _build(filters, n_keys, learnt, say)
    rng = np.random.default_rng(3)

    def absent(turn: int) -> list[bytes]:
        return make_keys(rng.integers(ABSENT, 1 << 50, N_ASKED))

    def present(turn: int) -> list[bytes]:
        return make_keys(rng.integers(0, n_keys, N_ASKED))

    gc.collect()
    say("asking")
    each: dict[str, Work] = {name: ask_each(filter) for name, filter in filters.items()}
    many: dict[str, Work] = {
        name: filter.contains_many for name, filter in filters.items() if hasattr(filter, "contains_many")
    }
    for name, timing in side_by_side(each, absent, rounds).items():
        costs[name].absent = timing.best
    for name, timing in side_by_side(each, present, rounds).items():
        costs[name].present = timing.best
    for name, timing in side_by_side(many, absent, rounds).items():
        costs[name].batch = timing.best
    if fit_seconds is not None:
        costs[LEARNED].fit_seconds = fit_seconds
    return costs, missing


class Filled(Protocol):
    """A filter that keys are added to."""

    def update(self, keys: Sequence[bytes], /) -> object: ...


def _build(filters: Mapping[str, Filled], n_keys: int, learnt: int, say: Say) -> dict[str, FilterCosts]:
    """Add all keys to every filter, in turns; the learned one has the first ``learnt`` already."""
    names = list(filters)
    seconds = dict.fromkeys(names, 0.0)
    added = dict.fromkeys(names, 0)
    for number, (first, batch) in enumerate(batches(n_keys)):
        say(f"building, {first:,} keys done")
        for name in names[number % len(names) :] + names[: number % len(names)]:
            new = batch[max(0, learnt - first) :] if name == LEARNED else batch
            start = time.process_time()
            filters[name].update(new)
            seconds[name] += time.process_time() - start
            added[name] += len(new)
    return {
        name: FilterCosts(seconds[name] / added[name] * 1e9, size_in_bits(filters[name]) / n_keys) for name in names
    }
