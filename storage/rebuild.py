"""Learning a store's filter anew while the store is in use.

Phases: *negatives* (the absent keys asked for, less those that are there by now), *scan* (a sample of the keys, in
short read transactions), *train* (model and plan; most of the time), *build* (every key into the new filter, step by
step, following the journal), *measure* (held-out negatives), *switch* (one write transaction).  Nothing is written
before the last.

Memory is bounded by the samples, ``MAX_KEYS`` and ``MAX_NEGATIVES``, and two filters.  Training fits two candidates at
a time, which is what uses a second core; scanning and filling are one thread each.
"""

import math
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from dlbf.errors import ChecksumError, FilterFullError, StoreError
from dlbf.kernels.keys import read_keys
from dlbf.storage import generations, misses, steps
from dlbf.storage.build import TOO_MANY_ALIKE, Builder
from dlbf.storage.drift import LEAST_KEYS, LEAST_NEGATIVES, NO_MODEL, observed_rate
from dlbf.storage.layout import BUILD_KEY, LONG_KEY, STORE_KEY, BuildInfo, StoreInfo, Traffic
from dlbf.storage.longkeys import long_state
from dlbf.storage.misses import read_misses
from dlbf.storage.replica import read_traffic
from dlbf.storage.report import FilterFigures, RebuildReport
from dlbf.storage.secret import make_secret
from dlbf.storage.verify import check_meta, unknown_meta
from dlbf.theory.designs import get_design

if TYPE_CHECKING:
    from dlbf.storage.store import Store

__all__ = ["DELETABILITY", "absent_now", "rebuild", "sample_keys"]

Progress = Callable[[str, int, int], None]

# What is kept to learn from.
MAX_KEYS = 500_000
MAX_NEGATIVES = 500_000
SCAN_KEYS_PER_STEP = 16384
# Deleted keys that answer "absent" at once, of a hundred: what fit() has by default, too.
DELETABILITY = 0.9
# Room in each region of the model for so many standard deviations of chance.
SPARE_SIGMAS = 3.0
# Progress within training, whose number of steps is not known beforehand.
TRAIN_STEPS = 1000


@dataclass
class Phases:
    """Where a rebuild is, and how long each phase took."""

    progress: Progress | None
    seconds: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """One phase; gives the function that reports from within it."""
        began = time.perf_counter()
        steps.reached(f"rebuild-{name}")

        def report(done: int, total: int) -> None:
            if self.progress is not None:
                self.progress(name, done, total)

        report(0, 1)
        yield report
        self.seconds.append((name, time.perf_counter() - began))


def rebuild(
    store: "Store",
    negatives: Iterable[Any] | None,
    *,
    design: str,
    model: Any,
    fpr: float | None,
    deletability: float | None,
    adversarial_fpr: float,
    dry_run: bool,
    if_needed: bool,
    allow_false_negatives: bool,
    progress: Progress | None,
) -> RebuildReport:
    """See ``dlbf.storage.Store.rebuild``."""
    check_design(design, allow_false_negatives)
    generations.check_fpr(fpr)
    why = "asked for"
    before = figures_now(store)
    if if_needed:
        found = store.drift()
        if not found.due:
            return RebuildReport(False, "not needed", before, None, store._info.fpr, found.keys)
        why = "; ".join(found.reasons)
    need_secret(store, dry_run)
    target = fpr or store._info.fpr
    phases = Phases(progress)
    source = "caller" if negatives is not None else "traffic"
    with phases.phase("negatives"):
        absent, n_stored = absent_now(store, negatives, MAX_NEGATIVES)
    n_keys = len(store)
    notes: list[str] = []
    if n_stored and source == "caller":
        notes.append(
            f"{n_stored:,} of {len(absent) + n_stored:,} negatives are in the store, and were left out: a negative is "
            "a key that is asked for and absent"
        )
    prepared = None
    sampled: list[bytes] = []
    if wants_learning(design, model, n_keys, len(absent), source, notes):
        with phases.phase("scan") as report:
            sampled = sample_keys(store, n_keys, MAX_KEYS, report)
        with phases.phase("train") as report:
            prepared = learn(
                sampled, absent, design, model, target, deletability, adversarial_fpr, store._secret, n_keys, report,
                notes,
            )  # fmt: skip
        n_keys = max(n_keys, len(sampled))
    empty = choose(prepared, design, n_keys, target, store._secret, notes)
    if prepared is not None and empty is not prepared.filter:
        prepared = None
    result = RebuildReport(
        done=False,
        reason="dry run" if dry_run else why,
        before=before,
        after=figures(empty, n_keys),
        fpr_target=target,
        keys=n_keys,
        sampled_keys=len(sampled),
        negatives=len(absent),
        held_out=len(prepared.held) if prepared is not None else 0,
        negatives_from=source if absent else "none",
        phases=tuple(phases.seconds),
        notes=tuple(notes),
    )
    if dry_run:
        return result
    filter = build(store, empty, n_keys, phases)
    measured = math.nan
    if prepared is not None and prepared.held:
        with phases.phase("measure"):
            filter.filter = prepared.measured(filter.filter)
            measured = filter.filter.plan.measured_fpr or 0.0
    with phases.phase("switch") as report:
        switch(store, filter, target, measured, result, sum(s for _, s in phases.seconds), allow_false_negatives)
        report(1, 1)
    return replace(
        result,
        done=True,
        keys=len(filter.filter),
        after=figures(filter.filter, len(filter.filter), measured),
        phases=tuple(phases.seconds),
    )


def check_design(design: str, allow_false_negatives: bool) -> None:
    """Refuse what cannot be a store's filter."""
    try:
        row = get_design(design)
    except ValueError as error:
        raise StoreError(f"unknown design {design!r} for a store's filter ({error})") from None
    if row.false_negatives and not allow_false_negatives:
        raise StoreError(
            f"the design {design!r} may answer 'absent' for a stored key; choose another, or pass "
            "allow_false_negatives=True if that is what you want"
        )
    if not row.deletable:
        raise StoreError(
            f"the design {design!r} cannot forget keys, so it cannot follow a store; choose 'auto' or another "
            "deletable design"
        )


def need_secret(store: "Store", dry_run: bool) -> None:
    """A store that has lost its secret gets a new one, unless the caller keeps it."""
    if not store._info.keyed or store._secret is not None or dry_run:
        return
    if store._info.secret_elsewhere:
        raise StoreError(f"{store.path}: this store's secret is kept by its owner; open it with secret= to rebuild")
    store._secret = store._replica.secret = make_secret(store.path)


# --- what to learn from


def absent_now(store: "Store", negatives: Iterable[Any] | None, limit: int) -> tuple[list[bytes], int]:
    """Absent keys that are asked for: those given, or the sampled ones; and how many were left out because they are in
    the store by now.

    Each once: a program that polls for one key teaches nothing about others, and a key that is held out to measure with
    must not be one that was learnt.
    """
    rng = random.Random(0)
    found: list[bytes] = []
    if negatives is None:
        if not store.readonly and store._n_samples and store._writer == 0:
            store._flush()
        with store._reading() as txn:
            found = list(islice(read_misses(txn, store._dbs), limit))
    else:
        # A reservoir: uniform over what is given, however much that is.
        seen = 0
        if isinstance(negatives, (str, bytes, bytearray, memoryview)):
            read_keys(negatives)  # says that this is one key
        batches = iter(negatives)
        while batch := read_keys(list(islice(batches, 65536))):
            for key in batch:
                seen += 1
                if len(found) < limit:
                    found.append(key)
                elif (at := rng.randrange(seen)) < limit:
                    found[at] = key
    found = list(dict.fromkeys(found))
    absent: list[bytes] = []
    for first in range(0, len(found), SCAN_KEYS_PER_STEP):
        part = found[first : first + SCAN_KEYS_PER_STEP]
        absent.extend(key for key, value in zip(part, store._fetch_many(part), strict=True) if value is None)
    rng.shuffle(absent)
    return absent, len(found) - len(absent)


def sample_keys(store: "Store", n_keys: int, limit: int, report: Callable[[int, int], None]) -> list[bytes]:
    """All keys, or a uniform sample of about ``limit`` of them, read in short transactions."""
    rng = random.Random(0)
    share = min(1.0, limit / max(1, n_keys))
    kept: list[bytes] = []
    passed = 0
    for part in store._key_batches(SCAN_KEYS_PER_STEP):
        passed += len(part)
        if share >= 1:
            kept.extend(part)
        else:
            expected = share * len(part)
            n_wanted = int(expected) + (rng.random() < expected % 1)
            kept.extend(rng.sample(part, min(n_wanted, len(part))))
        report(min(passed, n_keys), n_keys)
        if len(kept) >= 2 * limit:
            break  # a store that has doubled meanwhile; what there is will do
    return kept


def wants_learning(design: str, model: Any, n_keys: int, n_absent: int, source: str, notes: list[str]) -> bool:
    """Whether to plan a composite at all; says why not."""
    if design == "cuckoo" or (design == "auto" and (model is None or model == "none")):
        return False
    row = get_design(design)
    if not n_keys:
        notes.append("no keys: a filter without a model")
        return False
    if not row.learned:
        return True
    if n_absent >= LEAST_NEGATIVES and (n_keys >= LEAST_KEYS or design != "auto"):
        return True
    few = f"{n_absent:,} absent keys known" + (", sampled from the traffic" if source == "traffic" else "")
    if design != "auto":
        raise StoreError(
            f"the design {design!r} learns, and there are {few}; give at least {LEAST_NEGATIVES} with negatives=, or "
            "serve some traffic first (sample_misses=True)"
        )
    if n_keys < LEAST_KEYS:
        notes.append(f"{n_keys:,} keys: too few for a model to pay")
    else:
        notes.append(f"{few}: too few to learn from (at least {LEAST_NEGATIVES}), so a filter without a model")
    return False


def learn(
    keys: list[bytes],
    absent: list[bytes],
    design: str,
    model: Any,
    fpr: float,
    deletability: float | None,
    adversarial_fpr: float,
    secret: bytes | None,
    n_keys: int,
    report: Callable[[int, int], None],
    notes: list[str],
) -> Any:
    """Train, plan and lay out; None if that needs something that is not there."""
    from dlbf.learned.fitting import Targets, prepare

    if deletability is None and design == "auto":
        deletability = DELETABILITY
    stages: list[str] = []

    def stage(name: str, fraction: float) -> None:
        if not stages or stages[-1] != name:
            stages.append(name)
        # The number of candidates is not known: each stage takes a sixth of what is left.
        report(round(TRAIN_STEPS * (1 - (5 / 6) ** (len(stages) - 1 + min(1.0, fraction)))), TRAIN_STEPS)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            targets = Targets(
                fpr=fpr,
                deletability=deletability,
                adversarial_fpr=adversarial_fpr,
                design=design,
                model=model,
                headroom=generations.REBUILD_ROOM,
                secret=secret,
            )
            prepared = prepare(
                keys, absent, targets, stage, n_keys=max(n_keys, len(keys)), spare=SPARE_SIGMAS, compare=False
            )
        except ImportError as error:
            if design != "auto":
                raise
            notes.append(f"no model: {error}")
            return None
        except ValueError as error:
            raise StoreError(f"no filter for these targets: {error}") from error
    notes.extend(str(warning.message) for warning in caught)
    report(TRAIN_STEPS, TRAIN_STEPS)
    return prepared


def choose(prepared: Any, design: str, n_keys: int, fpr: float, secret: bytes | None, notes: list[str]) -> Any:
    """The empty filter to fill: the learned one unless one without a model is as small."""
    plain = generations.new_filter("auto", generations.rebuilt_capacity(n_keys), fpr, secret)
    if prepared is None:
        return plain
    if design != "auto" or (prepared.filter.model_bytes and generations.pays(prepared.filter, plain)):
        return prepared.filter
    notes.append("a model does not pay for these keys and this traffic, so a filter without one")
    return plain


# --- building and switching

# A filter with that much more room than keys is not full because of their number.
MOST_ROOM = 4.0


def build(store: "Store", empty: Any, n_keys: int, phases: Phases) -> Builder:
    """Fill the filter while the store is in use."""
    with phases.phase("build") as report:
        return filled(store, empty, n_keys, report)


def filled(store: "Store", empty: Any, n_keys: int, report: Callable[[int, int], None]) -> Builder:
    """A builder that is done; its filter is larger than ``empty`` if the store outgrew that meanwhile."""
    room = 1.0
    while True:
        builder = store._new_builder(empty)
        try:
            store._build(builder, n_keys, report)
            return builder
        except FilterFullError:
            room *= 1.2
            if room > MOST_ROOM:
                raise StoreError(f"{store.path}: {TOO_MANY_ALIKE}; remove them and run rebuild() again") from None
            # New keys may all be of one region, which then needs many times its room.
            empty = generations.enlarged(empty, room if generations.is_learned(empty) else 1.2)


def switch(
    store: "Store",
    builder: Builder,
    fpr: float,
    measured: float,
    result: RebuildReport,
    seconds: float,
    allow_false_negatives: bool,
) -> None:
    """Catch up and make the new filter the store's, with everything that is known about it, in one transaction."""
    info = StoreInfo(fpr, store._info.created, store._info.secret_elsewhere, store._info.keyed)
    damaged = False
    with store._reading() as txn:
        try:
            misses.check_misses(txn, store._dbs)
        except ChecksumError:
            damaged = True

    def prepare(txn: Any, number: int) -> Traffic:
        dbs = store._dbs
        before = read_traffic(txn, dbs)
        if info != store._info or check_meta(txn, dbs, (STORE_KEY, LONG_KEY)) or unknown_meta(txn, dbs):
            # All of it anew: a record under a damaged key could not be found to be deleted.
            long = long_state(txn, dbs)
            txn.drop(dbs.meta, delete=False)
            txn.put(STORE_KEY, info.pack(), db=dbs.meta)
            txn.put(LONG_KEY, long.pack(), db=dbs.meta)
        filter = builder.filter
        found = figures(filter, len(filter), measured)
        record = BuildInfo(
            generation=number,
            time=time.time(),
            keys=len(filter),
            negatives=result.negatives,
            design=found.design,
            model=found.model,
            fpr_predicted=found.fpr_predicted,
            fpr_measured=None if math.isnan(measured) else measured,
            bits_per_key=found.bits_per_key if found.keys else 0.0,
            seconds=seconds,
            allow_false_negatives=allow_false_negatives,
        )
        txn.put(BUILD_KEY, record.pack(), db=dbs.meta)
        scale = misses.age_misses(txn, dbs, store._miss_limit or misses.DEFAULT_LIMIT, before.scale, damaged)
        return Traffic(number, scale=scale)

    while True:
        try:
            store._switch(builder, prepare)
            break
        except FilterFullError:
            # The last records did not fit: once more, a little larger.
            builder = filled(store, generations.enlarged(builder.filter, 1.2), len(store), lambda done, total: None)
    store._info = info


# --- figures


def figures_now(store: "Store") -> FilterFigures | None:
    """The figures of the filter that serves now; None if there is none."""
    is_filtering = store._state()[0] == "filtering"
    filter = store._replica.filter  # another thread may take it away at any time
    if not is_filtering or filter is None:
        return None
    with store._reading() as txn:
        traffic = read_traffic(txn, store._dbs)
    rate = observed_rate(traffic)[0] if traffic.generation == store._replica.generation else math.nan
    return figures(filter, len(filter), rate)


def figures(filter: Any, n_keys: int, measured: float = math.nan) -> FilterFigures:
    """The figures of a filter with ``n_keys`` in it."""
    learned = generations.is_learned(filter)
    model_bytes = filter.model_bytes if learned else 0
    rate, deletability = generations.expected_rates(filter, n_keys)
    return FilterFigures(
        design=generations.design_of(filter),
        model=filter.model.kind if learned else NO_MODEL,
        keys=n_keys,
        filter_bytes=filter.nbytes - model_bytes,
        model_bytes=model_bytes,
        capacity=generations.capacity_of(filter),
        fpr_predicted=rate,
        fpr_measured=measured,
        deletability=deletability,
    )
