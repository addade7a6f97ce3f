"""Learning a store's filter anew while the store is in use.

Phases: *negatives* (the absent keys asked for, less those that are there by now), *scan* (a sample of the keys, in
short read transactions), *train* (model and plan; most of the time), *build* (every key into the new filter, step by
step, following the journal), *measure* (held-out negatives), *switch* (one write transaction).  Nothing is written
before the last.

Memory is bounded by the samples, ``MAX_KEYS`` and ``MAX_NEGATIVES``, and two filters.  Training fits two candidates at
a time, which is what uses a second core; scanning and filling are one thread each.
"""

import math
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from dlbf.errors import ChecksumError, FilterFullError, StoreError
from dlbf.filters.base import Filter
from dlbf.storage import generations, layers, misses, steps
from dlbf.storage.build import Builder, LayeredBuilder
from dlbf.storage.commits import Commits
from dlbf.storage.drift import drift
from dlbf.storage.figures import figures, figures_now
from dlbf.storage.filling import filled, larger, pattern_of
from dlbf.storage.keys import Key
from dlbf.storage.layers import Gathering
from dlbf.storage.layout import BUILD_KEY, LONG_KEY, STORE_KEY, BuildInfo, StoreInfo, TrafficRecord
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.longkeys import long_state
from dlbf.storage.parallel import builders_on, check_on, why_alone
from dlbf.storage.report import RebuildReport
from dlbf.storage.samples import DELETABILITY, LEAST_KEYS, LEAST_NEGATIVES, absent_now, sample_keys
from dlbf.storage.secret import make_secret
from dlbf.storage.verify import check_meta, unknown_meta
from dlbf.theory.designs import get_design

if TYPE_CHECKING:
    from dlbf.learned import Explanation
    from dlbf.learned.filter import LearnedFilter
    from dlbf.learned.preparing import Prepared
    from dlbf.models import Model

__all__ = ["Progress", "Wishes", "rebuild"]

Progress = Callable[[str, int, int], None]

# What is kept to learn from.
MAX_KEYS = 500_000
MAX_NEGATIVES = 500_000
# Room in each region of the model for so many standard deviations of chance.
SPARE_SIGMAS = 3.0
# A worst case so many times the target is worth a note: the secret bounds it, but not to what the target suggests.
FAR_ABOVE = 20.0
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


@dataclass(frozen=True, slots=True)
class Wishes:
    """What kind of filter is asked for; see ``dlbf.storage.Store.rebuild``."""

    design: str
    model: "str | Model | None"
    fpr: float | None
    deletability: float | None
    adversarial_fpr: float | None
    allow_false_negatives: bool
    groups: str | Callable[[bytes], Hashable] | None = None
    tables: bool = False  # that delete in place, also when the filter has grown
    layers: bool = False


def rebuild(
    commits: Commits,
    wishes: Wishes,
    negatives: Iterable[Key] | None,
    *,
    dry_run: bool,
    if_needed: bool,
    progress: Progress | None,
    on: object = None,
) -> RebuildReport:
    """See ``dlbf.storage.Store.rebuild``."""
    check_on(on)
    check_design(wishes.design, wishes.allow_false_negatives)
    generations.check_fpr(wishes.fpr)
    ledger, settings = commits.ledger, commits.ledger.settings
    why = "asked for"
    before = figures_now(ledger)
    if if_needed:
        drifted = drift(commits, True)
        if not drifted.due:
            return RebuildReport(False, "not needed", before, None, settings.info.fpr, drifted.keys)
        why = "; ".join(drifted.reasons)
    need_secret(commits, dry_run)
    target = wishes.fpr or settings.info.fpr
    phases = Phases(progress)
    source = "caller" if negatives is not None else "traffic"
    with phases.phase("negatives"):
        if negatives is None:
            commits.flush_samples()
        absent, n_stored = absent_now(commits.log, commits.source, negatives, MAX_NEGATIVES)
    n_keys = count(commits)
    notes = left_out(n_stored, len(absent)) if source == "caller" else []
    wishes = with_layers(commits, wishes, n_keys, notes)
    prepared = None
    sampled: list[bytes] = []
    if wants_learning(wishes, n_keys, len(absent), source, notes):
        with phases.phase("scan") as report:
            sampled = sample_keys(commits.source, n_keys, MAX_KEYS, report)
        with phases.phase("train") as report:
            prepared = learn(sampled, absent, wishes, target, settings.secret, n_keys, report, notes)
        n_keys = max(n_keys, len(sampled))
    notes += why_alone(commits, on, wishes.layers)
    choose = choose_layers if wishes.layers else choose_tables
    empty = choose(prepared, wishes, n_keys, target, settings.secret, notes)
    prepared = prepared if prepared is not None and prepared.filter is pattern_of(empty) else None
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
        trade=prepared.filter.plan.trade() if prepared is not None else (),
    )
    return result if dry_run else put_in(commits, wishes, result, empty, prepared, phases, on, sampled)


def left_out(n_stored: int, n_absent: int) -> list[str]:
    """A note about negatives that are none."""
    if not n_stored:
        return []
    return [
        f"{n_stored:,} of {n_absent + n_stored:,} negatives are in the store, and were left out: a negative is a key "
        "that is asked for and absent"
    ]


def put_in(
    commits: Commits,
    wishes: Wishes,
    planned: RebuildReport,
    empty: Filter | Gathering,
    prepared: "Prepared[LearnedFilter] | None",
    phases: Phases,
    on: object,
    sampled: list[bytes],
) -> RebuildReport:
    """Fill the filter that was planned, measure it, and make it the one that answers."""
    with phases.phase("build") as report, builders_on(commits, on, sampled) as new_builder:
        builder = filled(commits, new_builder, empty, planned.keys, report)
    measured = math.nan
    notes = planned.notes
    if prepared is not None and prepared.held:
        with phases.phase("measure"):
            if isinstance(empty, Gathering):
                plan = prepared.draft.explain(cast("LearnedFilter", generations.composite_of(builder.filter)))
                measured = float(builder.filter.contains_many(prepared.held).mean())
            else:
                learned = prepared.measured(cast("LearnedFilter", builder.filter))  # as ``prepared.filter`` was
                builder.filter, plan = learned, learned.plan
                measured = plan.measured_fpr or 0.0
            notes += shifts(plan)
    with phases.phase("switch") as report:
        switch(commits, builder, planned, measured, sum(s for _, s in phases.seconds), wishes)
        report(1, 1)
    filter = builder.filter
    return replace(
        planned,
        done=True,
        keys=len(filter),
        after=figures(filter, len(filter), measured),
        phases=tuple(phases.seconds),
        notes=notes,
    )


def shifts(plan: "Explanation") -> tuple[str, ...]:
    """What was measured on samples unlike the traffic, where nothing bounds it."""
    if plan.adversarial_fpr < 0.5:
        return ()
    return tuple(f"no worst case asked for: {s.fpr:.2%} of {s.n_keys:,} {s.name} pass" for s in plan.shifted)


def count(commits: Commits) -> int:
    """Number of keys there are."""
    with commits.environment.reading() as txn:
        return commits.source.count(txn)


def check_design(design: str, allow_false_negatives: bool) -> None:
    """Refuse what cannot be a store's filter."""
    if design in (generations.LAYERS, generations.TABLES):
        return
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


def need_secret(commits: Commits, dry_run: bool) -> None:
    """A store that has lost its secret gets a new one, unless the caller keeps it."""
    settings, path = commits.ledger.settings, commits.environment.path
    if not settings.info.keyed or settings.secret is not None or dry_run:
        return
    if settings.info.secret_elsewhere:
        raise StoreError(f"{path}: this store's secret is kept by its owner; open it with secret= to rebuild")
    settings.secret = make_secret(path)


# --- what to learn from


def wants_learning(wishes: Wishes, n_keys: int, n_absent: int, source: str, notes: list[str]) -> bool:
    """Whether to plan a composite at all; says why not."""
    design, model = wishes.design, wishes.model
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
    wishes: Wishes,
    fpr: float,
    secret: bytes | None,
    n_keys: int,
    report: Callable[[int, int], None],
    notes: list[str],
) -> "Prepared[LearnedFilter] | None":
    """Train, plan and lay out; None if that needs something that is not there."""
    from dlbf.learned.fitting import Targets, prepare

    design, deletability, cap = wishes.design, wishes.deletability, wishes.adversarial_fpr
    if deletability is None and design == "auto":
        deletability = DELETABILITY
    if wishes.layers:
        plan = layers.Plan(fpr, layers.REBUILT_SHARE, secret, cap=cap or 1.0)
        design, deletability, fpr, cap = "static", 0.0, plan.base_fpr, plan.base_cap
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
                adversarial_fpr=cap,
                design=design,
                model=wishes.model,
                headroom=1.0 if wishes.layers else generations.REBUILD_ROOM,
                secret=secret,
                groups=wishes.groups,
            )
            prepared = prepare(
                keys, absent, targets, stage, n_keys=max(n_keys, len(keys)), spare=SPARE_SIGMAS, compare=False
            )
        except ImportError as error:
            if wishes.design != "auto":
                raise
            notes.append(f"no model: {error}")
            return None
        except ValueError as error:
            raise StoreError(f"no filter for these targets: {error}") from error
    notes.extend(str(warning.message) for warning in caught)
    report(TRAIN_STEPS, TRAIN_STEPS)
    return prepared


def with_layers(commits: Commits, wishes: Wishes, n_keys: int, notes: list[str]) -> Wishes:
    """The wishes, decided whether the filter is to have layers or tables that delete in place; says why."""
    asked, why_tables = wishes.design, commits.ledger.settings.why_tables
    if asked == generations.LAYERS and why_tables:
        raise StoreError(f"no layers here: {why_tables}; choose 'auto' or 'tables'")
    wanted = asked == generations.LAYERS
    if asked == "auto" and why_tables and n_keys >= layers.LEAST_KEYS:
        notes.append(f"tables that delete in place: {why_tables}")
    elif asked == "auto" and n_keys >= layers.LEAST_KEYS:
        churn = layers.churn(commits.ledger.added, commits.ledger.deleted, n_keys)
        wanted = churn <= layers.BREAK_EVEN
        notes.append(
            f"{'layers' if wanted else 'tables that delete in place'}: {churn:.1%} of the keys were deleted for every "
            f"{layers.REBUILT_SHARE:.0%} added, and layers are better up to {layers.BREAK_EVEN:.1%}"
        )
    design = "auto" if asked in (generations.LAYERS, generations.TABLES) else asked
    if not wanted:
        return replace(wishes, design=design, tables=asked != "auto" or n_keys >= layers.LEAST_KEYS)
    # Nothing is deleted from a base; but no region of it may let more pass than was asked for.
    deletability = DELETABILITY if wishes.deletability is None else wishes.deletability
    cap = 1 - deletability if wishes.adversarial_fpr is None else min(wishes.adversarial_fpr, 1 - deletability)
    return replace(wishes, design=design, deletability=0.0, adversarial_fpr=cap, layers=True)


def choose_layers(
    prepared: "Prepared[LearnedFilter] | None",
    wishes: Wishes,
    n_keys: int,
    fpr: float,
    secret: bytes | None,
    notes: list[str],
) -> Filter | Gathering:
    """What gathers the layered filter: with the model unless a base without one is as small."""
    plain = layers.Plan(fpr, layers.REBUILT_SHARE, secret)
    if prepared is None:
        return Gathering(plain, n_keys)
    learned = replace(plain, pattern=prepared.filter, cap=wishes.adversarial_fpr or 1.0)
    if prepared.filter.model_bytes and learned.base_bytes(n_keys) < plain.base_bytes(n_keys):
        if secret is not None:
            note_worst_case(min(learned.cap, prepared.filter.plan.adversarial_fpr), fpr, notes)
        return Gathering(learned, n_keys)
    notes.append("a model does not pay for these keys and this traffic, so a filter without one")
    return Gathering(plain, n_keys)


def choose_tables(
    prepared: "Prepared[LearnedFilter] | None",
    wishes: Wishes,
    n_keys: int,
    fpr: float,
    secret: bytes | None,
    notes: list[str],
) -> Filter | Gathering:
    """The empty filter to fill: the learned one unless one without a model is as small."""
    plain = generations.new_filter("auto", generations.rebuilt_capacity(n_keys), fpr, secret)
    if prepared is None:
        return plain
    if wishes.design != "auto" or (prepared.filter.model_bytes and generations.pays(prepared.filter, plain)):
        if secret is not None:
            note_worst_case(prepared.filter.plan.adversarial_fpr, fpr, notes)
        return prepared.filter
    notes.append("a model does not pay for these keys and this traffic, so a filter without one")
    return plain


def note_worst_case(worst: float, target: float, notes: list[str]) -> None:
    """Say so if whoever makes keys that look like stored ones passes far more often than others."""
    if worst > FAR_ABOVE * target:
        notes.append(
            f"keys made to look like stored ones pass at up to {worst:.1%}, {worst / target:,.0f} times the target of "
            f"{target:g}; pass adversarial_fpr= to bound it (see the threat model)"
        )


# --- switching


def switch(
    commits: Commits,
    builder: Builder[Txn],
    planned: RebuildReport,
    measured: float,
    seconds: float,
    wishes: Wishes,
) -> None:
    """Catch up and make the new filter the one that answers, with everything that is known about it, in one
    transaction."""
    settings, dbs = commits.ledger.settings, commits.environment.dbs
    before = settings.info
    info = StoreInfo(planned.fpr_target, before.created, before.secret_elsewhere, before.keyed)
    damaged = False
    with commits.environment.reading() as txn:
        try:
            misses.check_misses(txn, dbs)
        except ChecksumError:
            damaged = True

    def prepare(txn: Txn, position: int) -> TrafficRecord:
        traffic = commits.log.read_traffic(txn)
        if info != before or check_meta(txn, dbs, (STORE_KEY, LONG_KEY)) or unknown_meta(txn, dbs):
            # All of it anew: a record under a damaged key could not be found to be deleted.
            long = long_state(txn, dbs)
            txn.drop(dbs.meta, delete=False)
            txn.put(STORE_KEY, info.pack(), db=dbs.meta)
            txn.put(LONG_KEY, long.pack(), db=dbs.meta)
        filter = builder.filter
        after = figures(filter, len(filter), measured)
        record = BuildInfo(
            generation=position,
            time=time.time(),
            keys=len(filter),
            negatives=planned.negatives,
            design=after.design,
            model=after.model,
            fpr_predicted=after.fpr_predicted,
            fpr_measured=None if math.isnan(measured) else measured,
            bits_per_key=after.bits_per_key if after.keys else 0.0,
            seconds=seconds,
            allow_false_negatives=wishes.allow_false_negatives,
            tables=wishes.tables,
        )
        txn.put(BUILD_KEY, record.pack(), db=dbs.meta)
        commits.on_rebuilt(txn)
        limit = commits.traffic.limit or misses.DEFAULT_LIMIT
        return TrafficRecord(position, scale=misses.age_misses(txn, dbs, limit, traffic.scale, damaged))

    while True:
        try:
            commits.switch(builder, prepare)
            break
        except FilterFullError:
            # The last records did not fit: once more, a little larger.
            empty = larger(builder.gathering if isinstance(builder, LayeredBuilder) else builder.filter, 1.2)
            builder = filled(commits, commits.new_builder, empty, count(commits), lambda done, total: None)
    settings.info = info
