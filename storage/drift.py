"""When a rebuild is due: what the filter was built for against what it meets now."""

import contextlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dlbf.storage import generations
from dlbf.storage.layout import BUILD_KEY, BuildInfo, Traffic
from dlbf.storage.replica import read_traffic
from dlbf.storage.report import Drift

if TYPE_CHECKING:
    from dlbf.storage.store import Store

__all__ = ["LEAST_KEYS", "LEAST_NEGATIVES", "NO_MODEL", "drift", "observe", "observed_rate", "read_build"]

# Absent lookups that the observed rate is taken over: when there are more, older ones lose half of their weight.
WINDOW = 1_000_000
# One-sided, 99.9 %: asked once an hour, chance alone says "due" once in six weeks, and then only if the true rate is at
# the limit already.
Z_LOW = 3.0902
# The rate may be so much above its target before that is a reason.
TOLERATED = 1.1
# A rebuild that would save less than this share of the bytes, or less than this number, is not worth while ...
LEAST_SAVING = 0.25
LEAST_SAVED_BYTES = 4096
# ... nor one of a store that has lost less than this share of its keys since its filter was made.
LEAST_CHANGE = 0.25
# So many keys and absent keys are needed before it is worth asking whether a model pays.
LEAST_KEYS = 1000
LEAST_NEGATIVES = 500
# What a build record calls a filter without a model.
NO_MODEL = "none"
# What the estimate learns from.
ESTIMATE_ROWS = 10_000
ESTIMATE_MODEL_BYTES = (256, 8192)


def observe(traffic: Traffic, generation: int, absent: int, false_positives: int) -> Traffic:
    """The traffic record after so many more absent lookups of a generation's filter."""
    if traffic.generation != generation:
        traffic = replace(traffic, generation=generation, absent=0, false_positives=0)
    absent, false_positives = traffic.absent + absent, traffic.false_positives + false_positives
    while absent > WINDOW:
        absent, false_positives = absent // 2, false_positives // 2
    return replace(traffic, absent=absent, false_positives=false_positives)


def observed_rate(traffic: Traffic) -> tuple[float, float]:
    """The rate that the traffic shows, and the least that it could truly be (Wilson)."""
    n = traffic.absent
    if not n:
        return math.nan, 0.0
    rate, z2 = traffic.false_positives / n, Z_LOW**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_LOW * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return rate, max(0.0, centre - half)


def read_build(txn: Any, store: "Store") -> BuildInfo | None:
    """What the last rebuild wrote; None if there was none, or it cannot be read."""
    with contextlib.suppress(ValueError):
        record = txn.get(BUILD_KEY, db=store._dbs.meta)
        return BuildInfo.unpack(bytes(record) if record is not None else None)
    return None


def drift(store: "Store", estimate: bool) -> Drift:
    """See ``dlbf.storage.Store.drift``."""
    state, reason = store._state()
    replica = store._replica
    with store._reading() as txn:
        n_keys = store._known_keys(txn)
        n_misses = txn.stat(store._dbs.misses)["entries"] + store._n_samples
        traffic = read_traffic(txn, store._dbs)
        build = read_build(txn, store)
    filter = replica.filter
    target = store._info.fpr
    if filter is not None:
        # What this process has not reported yet.
        fresh = (store._n_filtered - store._reported[0], store._n_false_positives - store._reported[1])
        traffic = observe(traffic, replica.generation, sum(fresh), fresh[1])
    rate, low = observed_rate(traffic)
    built_keys = build.keys if build is not None else 0
    learned = filter is not None and bool(getattr(filter, "model_bytes", 0))
    reasons = []
    now_bytes = filter.nbytes if filter is not None else 0
    then_bytes, would_learn = now_bytes, learned
    if filter is None:
        reasons.append(f"the filter cannot be used, every read goes to the data: {reason or state}")
        then_bytes = 0
    else:
        then_bytes = _tight_bytes(filter, n_keys, target, store._secret)
        # A learned store that emptied and filled again has a plain filter: what was tried before does not count.
        lost_model = build is not None and build.model != NO_MODEL and not learned
        tried = build is not None and 2 * build.negatives >= n_misses and 2 * build.keys >= n_keys and not lost_model
        may_learn = not learned and not tried and n_keys >= LEAST_KEYS and n_misses >= LEAST_NEGATIVES
        if estimate and may_learn:
            share = _learned_share(store, n_keys, n_misses, target)
            if share < 1:
                then_bytes, would_learn = int(share * then_bytes), True
    saving = max(0, now_bytes - then_bytes)
    keys_then: float = built_keys
    if build is None or build.generation != replica.generation:
        # Grown since: its room is there for the keys to come, and without it the next ones would ask for it again.
        keys_then = replica.capacity / (generations.LEARNED_GROWTH if learned else generations.GROWTH)
    changed = n_keys <= (1 - LEAST_CHANGE) * keys_then or (would_learn and not learned)
    if low > TOLERATED * target:
        reasons.append(
            f"false positives: {rate:.3%} of {traffic.absent:,} absent lookups (at least {low:.3%}); "
            f"the target is {target:.3%}"
        )
    if saving >= LEAST_SAVED_BYTES and saving >= LEAST_SAVING * now_bytes and changed and n_keys:
        how = "with a model" if would_learn and not learned else "at the right size"
        reasons.append(f"memory: a filter {how} takes about {saving:,} bytes less ({saving / now_bytes:.0%})")
    if learned and built_keys and replica.added + replica.deleted >= built_keys:
        reasons.append(
            f"churn: {replica.added:,} keys added and {replica.deleted:,} deleted since the model learnt from "
            f"{built_keys:,}"
        )
    return Drift(
        due=bool(reasons),
        healthy=filter is not None and state == "filtering",
        reasons=tuple(reasons),
        observed_fpr=rate,
        observed_low=low,
        target=target,
        window=traffic.absent,
        keys=n_keys,
        capacity=replica.capacity if filter is not None else 0,
        keys_at_build=built_keys,
        built=build.time if build is not None else 0.0,
        added=replica.added,
        deleted=replica.deleted,
        bits_per_key=8 * now_bytes / n_keys if n_keys else math.nan,
        estimated_bits_per_key=8 * then_bytes / n_keys if n_keys and then_bytes else math.nan,
        saving_bytes=saving,
        would_learn=would_learn,
        misses=n_misses,
    )


def _tight_bytes(filter: Any, n_keys: int, fpr: float, secret: bytes | None) -> int:
    """Bytes of the same kind of filter at the size that a rebuild would give it."""
    plain = generations.new_filter("auto", generations.rebuilt_capacity(n_keys), fpr, secret)
    if not generations.is_learned(filter) or not n_keys:
        return int(plain.nbytes)
    return min(int(plain.nbytes), int(generations.tightened(filter, n_keys).nbytes))


def _learned_share(store: "Store", n_keys: int, n_misses: int, fpr: float) -> float:
    """Size of a learned filter over that of one without a model, estimated from small samples; 1 if it does not pay."""
    known = (store._replica.generation, n_keys.bit_length(), n_misses.bit_length())
    if store._estimate is None or store._estimate[0] != known:
        store._estimate = (known, _learn_a_little(store, n_keys, fpr))
    return store._estimate[1]


def _learn_a_little(store: "Store", n_keys: int, fpr: float) -> float:
    from dlbf.storage.rebuild import DELETABILITY, absent_now, sample_keys

    try:
        import sklearn  # noqa: F401
    except ImportError:
        return 1.0
    from dlbf.models import train

    negatives, _ = absent_now(store, None, 2 * ESTIMATE_ROWS)
    keys = sample_keys(store, n_keys, ESTIMATE_ROWS, lambda done, total: None)
    if len(keys) < LEAST_KEYS or len(negatives) < LEAST_NEGATIVES:
        return 1.0
    half = len(negatives) // 2
    # A quarter of a bit per key for the model.
    least, most = ESTIMATE_MODEL_BYTES
    n_bytes = max(least, min(most, 1 << (n_keys // 32).bit_length()))
    model = train(
        keys, negatives[:half], kind="ngram", max_bytes=n_bytes, validation=negatives[half:], fpr=fpr,
        deletability=DELETABILITY, n_keys=n_keys, epochs=4, progress=False,
    )  # fmt: skip
    return min(1.0, float(model.report["total_bits_per_key"] / model.report["plain_bits_per_key"]))
