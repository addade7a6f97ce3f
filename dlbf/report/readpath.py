"""Measures where the time of a read goes: hash, model, filter, and the LMDB read that a filter saves."""

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dlbf.filters.base import Filter
from dlbf.kernels.hashing import hash64_many
from dlbf.learned import LearnedFilter
from dlbf.models import no_model
from dlbf.report.figures import Built, ReadPath, StepTimes
from dlbf.report.progress import Say, say_nothing

__all__ = ["add_up", "measure_steps"]

# Turns are short, so that on a busy machine some run undisturbed; the best of each chunk of keys counts.
CHUNK = 500
N_CHUNKS = 8
# Keys put into the temporary LMDB environment at most: beyond this its depth, and so its time, hardly grows.
MAX_STORED = 200_000
VALUE = bytes(64)
# What a read from a disk is taken to cost, in nanoseconds, where the page shows one; said to be an assumption there.
DISK_READ_NS = 100_000


def measure_steps(
    learned: LearnedFilter,
    plain: Filter,
    keys: Sequence[bytes],
    absent: Sequence[bytes],
    secret: bytes | None = None,
    rounds: int = 20,
    say: Say = say_nothing,
) -> StepTimes | None:
    """Nanoseconds per key of each step, taken in turns in one run.

    Parameters
    ----------
    learned, plain : filters
        The recommended filter and the one without a model.
    keys, absent : sequences of keys
        What is stored, and what is asked for in vain.
    secret : bytes, optional
        Of the filters, for the time of the hash.
    rounds : int
        Turns of each piece.
    say : callable
        Told how far it is, from 0 to 1.

    Returns
    -------
    StepTimes or None
        None where there is nothing to ask for.
    """
    import lmdb

    with tempfile.TemporaryDirectory() as folder:
        environment = lmdb.open(folder, map_size=1 << 30, sync=False)
        try:
            limit = environment.max_key_size()
            stored = [key for key in keys[:MAX_STORED] if 0 < len(key) <= limit]
            asked = [key for key in absent[: CHUNK * N_CHUNKS] if 0 < len(key) <= limit]
            if not stored or not asked:
                return None
            with environment.begin(write=True) as transaction:
                for key in stored:
                    transaction.put(key, VALUE)
            best = _times(learned, plain, environment, stored, asked, secret, rounds, say)
        finally:
            environment.close()
    # Every batch reads its keys from the list; what is left belongs to the step.
    batch, reading = best["batch"], min(best["reading"], best["batch"])
    model_ns = min(max(0.0, best["model"] - reading), batch - reading) if learned.model.kind != "none" else 0.0
    hash_ns = min(max(0.0, best["hash"] - reading), batch - reading - model_ns)
    return StepTimes(
        len(asked), len(stored), float(np.mean([len(key) for key in asked])), rounds, hash_ns=hash_ns,
        model_ns=model_ns, filter_ns=batch - reading - model_ns - hash_ns,
        call_ns=max(0.0, best["learned"] - batch) + reading, learned_ns=max(best["learned"], batch),
        learned_batch_ns=batch, plain_ns=best["plain"], lmdb_miss_ns=best["miss"], lmdb_hit_ns=best["hit"],
        learned_hit_ns=best["learned_hit"],
    )  # fmt: skip


def _times(
    learned: LearnedFilter,
    plain: Filter,
    environment: Any,
    stored: Sequence[bytes],
    asked: Sequence[bytes],
    secret: bytes | None,
    rounds: int,
    say: Say,
) -> dict[str, float]:
    def ask(filter: Filter) -> Callable[[Sequence[bytes]], None]:
        def run(batch: Sequence[bytes]) -> None:
            for key in batch:
                key in filter  # noqa: B015

        return run

    def read(batch: Sequence[bytes]) -> None:
        begin = environment.begin
        for key in batch:
            with begin() as transaction:
                transaction.get(key)

    model = learned.model
    steps = max(1, len(stored) // (CHUNK * N_CHUNKS))
    present = list(stored[::steps][: CHUNK * N_CHUNKS])
    work: dict[str, tuple[Callable[[Sequence[bytes]], Any], Sequence[bytes]]] = {
        "learned": (ask(learned), asked),
        "batch": (learned.contains_many, asked),
        "reading": (no_model().score_many, asked),
        "hash": (lambda batch: hash64_many(batch, secret), asked),
        "model": (model.score_many, asked),
        "plain": (ask(plain), asked),
        "miss": (read, asked),
        "hit": (read, present),
        "learned_hit": (ask(learned), present),
    }
    n_chunks = max(1, min(N_CHUNKS, len(asked) // CHUNK, len(present) // CHUNK))
    best: dict[str, list[float]] = {name: [float("inf")] * n_chunks for name in work}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            say("timing", turn / rounds)
            for chunk in range(n_chunks):
                for name, (call, source) in work.items():
                    # Fresh objects: a key that has been asked for before would have a hash of its own.
                    batch = [bytes(bytearray(key)) for key in source[chunk * CHUNK : (chunk + 1) * CHUNK]]
                    started = time.perf_counter_ns()
                    call(batch)
                    took = (time.perf_counter_ns() - started) / len(batch)
                    best[name][chunk] = min(best[name][chunk], took)
    finally:
        gc.enable()
    return {name: float(np.mean(times)) for name, times in best.items()}


def add_up(times: StepTimes, main: Built, plain: Built | None) -> ReadPath:
    """What the recommended filter, and one without a model, cost and save for a request."""
    fpr = main.fpr
    plain_fpr = (plain or main).fpr_predicted
    miss = times.lmdb_miss_ns

    def pays_from(look: float) -> float | None:
        """Share of requests for absent keys above which the filter saves time, if a look costs so much."""
        saved, extra = (1 - fpr) * look - times.learned_ns, times.learned_hit_ns
        return extra / (extra + saved) if saved > 0 else None

    return ReadPath(
        times,
        fpr=fpr,
        plain_fpr=plain_fpr,
        learned=main.uses_model,
        absent_ns=times.learned_ns + fpr * miss,
        absent_plain_ns=times.plain_ns + plain_fpr * miss,
        saved_share=1 - (times.learned_ns + fpr * miss) / miss,
        passes_per_1000=1000 * fpr,
        disk_read_ns=DISK_READ_NS,
        disk_without_ns=1000.0 * DISK_READ_NS,
        disk_with_ns=1000 * (times.learned_ns + fpr * DISK_READ_NS),
        pays_from=pays_from(miss),
        disk_pays_from=pays_from(DISK_READ_NS),
    )
