"""When a rebuild is due: what the filter was built for against what it meets now."""

import math
from typing import NamedTuple

from dlbf.filters.base import Filter
from dlbf.filters.layered import LayeredFilter
from dlbf.storage import generations, layers
from dlbf.storage.commits import Commits
from dlbf.storage.figures import NO_MODEL
from dlbf.storage.layout import BuildInfo
from dlbf.storage.ledger import Ledger
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.observing import TOLERATED, observed_rate
from dlbf.storage.report import Drift
from dlbf.storage.samples import DELETABILITY, LEAST_KEYS, LEAST_NEGATIVES, absent_now, sample_keys

__all__ = ["drift"]

# A rebuild that would save less than this share of the bytes, or less than this number, is not worth while ...
LEAST_SAVING = 0.25
LEAST_SAVED_BYTES = 4096
# ... nor one of a store that has lost less than this share of its keys since its filter was made.
LEAST_CHANGE = 0.25
# Share of the keys exchanged after which a model should learn anew.  A filter whose every region has a rate of its own
# keeps it for keys that the model never saw: they only fall where there is less room for them.  One that lets a region
# pass unchecked (deletability near 0, no cap) has few places elsewhere, for keys that score low: these are full after a
# turnover of 11 to 53 %.
ROOM_TURNOVER = 0.5
RATE_TURNOVER = 0.15
HELD_WORST_CASE = 0.5
# What the estimate learns from.
ESTIMATE_ROWS = 10_000
ESTIMATE_MODEL_BYTES = (256, 8192)


def drift(commits: Commits, estimate: bool) -> Drift:
    """See ``dlbf.storage.Store.drift``."""
    ledger, environment = commits.ledger, commits.environment
    state, reason = ledger.state()
    filter = ledger.filter
    with environment.reading() as txn:
        n_keys = commits.source.count_cheaply(txn, filter)
        n_misses = txn.stat(environment.dbs.misses)["entries"] + commits.traffic.n_samples
        traffic, build = commits.log.read_traffic(txn), commits.log.read_build(txn)
    target = ledger.settings.info.fpr
    if filter is not None:
        traffic = commits.traffic.observed(traffic, ledger.generation)
    rate, low = observed_rate(traffic)
    built_keys = build.keys if build is not None else 0
    learned = has_model(filter)
    now_bytes = generations.lasting_bytes(filter) if filter is not None else 0
    then_bytes, would_learn = 0, learned
    reasons = []
    if filter is None:
        reasons.append(f"the filter cannot be used, every read goes to the data: {reason or state}")
    else:
        then_bytes = _tight_bytes(filter, n_keys, target, ledger.settings.secret)
        if estimate and _may_learn(filter, build, n_keys, n_misses):
            share = _learned_share(commits, n_keys, n_misses, target)
            then_bytes, would_learn = int(share * then_bytes), share < 1
    saving = max(0, now_bytes - then_bytes)
    learns_now = would_learn and not learned
    if low > TOLERATED * target:
        reasons.append(
            f"false positives: {rate:.3%} of {traffic.absent:,} absent lookups (at least {low:.3%}); "
            f"the target is {target:.3%}{_what_helps(filter)}"
        )
    pays = saving >= LEAST_SAVED_BYTES and saving >= LEAST_SAVING * now_bytes and n_keys
    if pays and (learns_now or n_keys <= (1 - LEAST_CHANGE) * _keys_then(ledger, build)):
        how = "with a model" if learns_now else "at the right size"
        reasons.append(f"memory: a filter {how} takes about {saving:,} bytes less ({saving / now_bytes:.0%})")
    churn = _churn(filter, ledger, built_keys)
    reasons += churn.reasons
    return Drift(
        due=bool(reasons),
        healthy=filter is not None and state == "filtering",
        reasons=tuple(reasons),
        observed_fpr=rate,
        observed_low=low,
        target=target,
        window=traffic.absent,
        keys=n_keys,
        capacity=ledger.sizes.capacity if filter is not None else 0,
        keys_at_build=built_keys,
        built=build.time if build is not None else 0.0,
        added=ledger.added,
        deleted=ledger.deleted,
        bits_per_key=8 * now_bytes / n_keys if n_keys else math.nan,
        estimated_bits_per_key=8 * then_bytes / n_keys if n_keys and then_bytes else math.nan,
        saving_bytes=saving,
        would_learn=would_learn,
        misses=n_misses,
        turnover=churn.turnover,
        churn_costs=churn.costs,
        churn_limit=churn.limit,
    )


def _what_helps(filter: Filter | None) -> str:
    """What brings the rate of a layered filter back."""
    if not isinstance(filter, LayeredFilter):
        return ""
    if layers.has_to_fold(filter):
        return f"; a new base without {filter.dead:,} deleted keys and with {filter.n_added:,} added ones will help"
    return "; a new base alone would not help: rebuild() with absent keys like these to learn from (negatives=)"


def has_model(filter: Filter | None) -> bool:
    """Whether there is a filter, and it has a model."""
    composite = generations.composite_of(filter)
    return composite is not None and bool(composite.model_bytes)


def _may_learn(filter: Filter, build: BuildInfo | None, n_keys: int, n_misses: int) -> bool:
    """Whether a model might pay that nobody has tried yet."""
    if has_model(filter) or n_keys < LEAST_KEYS or n_misses < LEAST_NEGATIVES:
        return False
    # A learned store that emptied and filled again has a plain filter: what was tried before does not count.
    lost_model = build is not None and build.model != NO_MODEL
    return build is None or lost_model or 2 * build.negatives < n_misses or 2 * build.keys < n_keys


def _keys_then(ledger: Ledger[Txn], build: BuildInfo | None) -> float:
    """The number of keys that the filter was made for."""
    if build is not None and build.generation == ledger.generation:
        return build.keys
    if isinstance(ledger.filter, LayeredFilter):
        return ledger.filter.base_keys
    # Grown since: its room is there for the keys to come, and without it the next ones would ask for it again.
    learned = has_model(ledger.filter)
    return ledger.sizes.capacity / (generations.LEARNED_GROWTH if learned else generations.GROWTH)


class Churn(NamedTuple):
    """What new keys that the model has not learnt cost, and whether it should learn anew."""

    turnover: float
    costs: str
    limit: float
    reasons: list[str]


def _churn(filter: Filter | None, ledger: Ledger[Txn], built_keys: int) -> Churn:
    """The keys exchanged since the model learnt, as a share, and what follows."""
    turnover = (ledger.added + ledger.deleted) / 2 / built_keys if built_keys else 0.0
    composite = generations.composite_of(filter)
    if composite is None or not composite.model_bytes:
        return Churn(turnover, "", math.nan, [])
    held = composite.plan.adversarial_fpr <= HELD_WORST_CASE
    costs, limit = ("room", ROOM_TURNOVER) if held else ("rate", RATE_TURNOVER)
    if turnover < limit:
        return Churn(turnover, costs, limit, [])
    reason = (
        f"churn: {ledger.added:,} keys added and {ledger.deleted:,} deleted since the model learnt from "
        f"{built_keys:,}: a turnover of {turnover:.0%}; here churn costs {costs}, so a rebuild is due at {limit:.0%}"
    )
    return Churn(turnover, costs, limit, [reason])


def _tight_bytes(filter: Filter, n_keys: int, fpr: float, secret: bytes | None) -> int:
    """Bytes of the same kind of filter at the size that a rebuild would give it."""
    if isinstance(filter, LayeredFilter):
        return layers.rebuilt_bytes(filter, n_keys, fpr, secret)
    plain = generations.new_filter("auto", generations.rebuilt_capacity(n_keys), fpr, secret)
    if not generations.is_learned(filter) or not n_keys:
        return int(plain.nbytes)
    return min(int(plain.nbytes), int(generations.tightened(filter, n_keys).nbytes))


def _learned_share(commits: Commits, n_keys: int, n_misses: int, fpr: float) -> float:
    """Size of a learned filter over that of one without a model, estimated from small samples; 1 if it does not pay."""
    growth = commits.growth
    known = (commits.ledger.generation, n_keys.bit_length(), n_misses.bit_length())
    if growth.estimate is None or growth.estimate[0] != known:
        growth.estimate = (known, _learn_a_little(commits, n_keys, fpr))
    return growth.estimate[1]


def _learn_a_little(commits: Commits, n_keys: int, fpr: float) -> float:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return 1.0
    from dlbf.models import train

    commits.flush_samples(wait=False)
    negatives, _ = absent_now(commits.log, commits.source, None, 2 * ESTIMATE_ROWS)
    keys = sample_keys(commits.source, n_keys, ESTIMATE_ROWS, lambda done, total: None)
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
