"""Fitting a learned filter: train, measure on held-out negatives, plan, build, fill."""

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dlbf.kernels.hashing import hash64_many
from dlbf.kernels.keys import read_keys
from dlbf.learned.assembly import (
    FEW_KEYS,
    FLAG_HIDES_SCORE,
    FLAG_OWN_KEYS,
    MEMBER,
    Part,
    build_parts,
    composite_bytes,
)
from dlbf.learned.explanation import Alternative, Explanation, Region
from dlbf.learned.filter import LearnedFilter, predicted_rates
from dlbf.models import Model, no_model, train
from dlbf.theory import Plan, get_design, plan, shares_from_scores
from dlbf.theory.planner import AUTO_BASES

__all__ = ["Prepared", "Targets", "fit", "prepare"]

Progress = Callable[[str, float], None]
Scores = npt.NDArray[np.int32]

# Negatives the model never sees: they choose the thresholds and measure the query shares.
HELD_OUT_SHARE = 0.2
# False positives expected among the held-out negatives below which a measured rate is not worth much (18 % error).
ENOUGH_HITS = 30
MAX_BINS = 1024
# Bins kept in the plan, from which other targets are planned.
KEPT_BINS = 96
MAX_REGIONS = 8
# Each region has a filter of its own with room to spare, and an entry in the directory: few keys want few of them.
REGIONS_TRIED = (MAX_REGIONS, 4, 2)
# A model that saves less than this share of the bits is not worth its time.
MIN_SAVING = 0.01


def _reporter(progress: Any) -> Progress:
    if callable(progress):
        report: Progress = progress
        return report
    if progress is None:
        progress = sys.stderr.isatty()
    if not progress:
        return lambda stage, fraction: None

    def show(stage: str, fraction: float) -> None:
        sys.stderr.write(f"\rdlbf: {stage:<44s} {fraction:4.0%}" + ("\n" if fraction >= 1 else ""))
        sys.stderr.flush()

    return show


def _as_list(keys: Iterable[Any]) -> list[Any]:
    if isinstance(keys, list) and all(type(key) is bytes for key in keys):
        return keys
    return read_keys(keys)


def _distinct(keys: list[bytes]) -> list[bytes]:
    """Each key once, in the order of first appearance."""
    hashes = hash64_many(keys)
    if len(np.unique(hashes)) == len(keys):
        return keys
    return list(dict.fromkeys(keys))


def _without(negatives: list[bytes], keys: list[bytes]) -> list[bytes]:
    """The negatives that are not among the keys."""
    same_hash = np.isin(hash64_many(negatives), hash64_many(keys))
    if not same_hash.any():
        return negatives
    stored = {negatives[i] for i in np.flatnonzero(same_hash).tolist()}.intersection(keys)
    return [key for key in negatives if key not in stored]


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What is asked of a filter: the parameters of ``dlbf.LearnedFilter.fit``, which see, and its defaults.

    Examples
    --------
    >>> Targets(fpr=0.01).design
    'auto'
    >>> Targets(fpr=2)
    Traceback (most recent call last):
    ValueError: fpr must be above 0 and at most 1, found 2
    """

    fpr: float | None = None
    deletability: float | None = None
    adversarial_fpr: float = 1.0
    design: str = "auto"
    model: str | Model | None = "auto"
    counter_bits: int | None = None
    bits_per_key: float | None = None
    headroom: float = 1.0
    deletions: float = 0.1
    secret: bytes | None = field(default=None, repr=False)
    random_state: int = 0
    max_model_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.fpr is not None and self.bits_per_key is not None:
            raise ValueError("pass either fpr= or bits_per_key=, not both: one follows from the other")
        for name, value in (("fpr", self.fpr), ("adversarial_fpr", self.adversarial_fpr)):
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, found {value!r}")
        if self.fpr is not None and self.fpr >= 1:
            raise ValueError(f"fpr must be below 1, found {self.fpr!r}")
        if self.bits_per_key is not None and not 0 < self.bits_per_key < 4096:
            raise ValueError(f"bits_per_key must be above 0, found {self.bits_per_key!r}")
        if self.deletability is not None and not 0 <= self.deletability < 1:
            raise ValueError(f"deletability must be at least 0 and below 1, found {self.deletability!r}")
        if not 1 <= self.headroom <= 1000:
            raise ValueError(f"headroom must be between 1 and 1000, found {self.headroom!r}")
        if get_design(self.design).keyed and self.secret is None:
            raise ValueError(f"the design {self.design!r} is keyed: pass secret= (16 bytes, secrets.token_bytes(16))")


def fit(keys: Iterable[Any], negatives: Iterable[Any], targets: Targets, progress: Any = None) -> LearnedFilter:
    """See ``dlbf.LearnedFilter.fit``."""
    report = _reporter(progress)
    report("reading keys", 0.0)
    key_list = _distinct(_as_list(keys))
    prepared = prepare(key_list, negatives, targets, report)
    report("filling", 0.0)
    prepared.filter.update(key_list)
    report("measuring", 0.5)
    final = prepared.measured(prepared.filter)
    report("done", 1.0)
    return final


@dataclass(frozen=True)
class Prepared:
    """A learned filter that is planned and laid out, and still empty.

    Attributes
    ----------
    filter : LearnedFilter
        Empty; somebody fills it.
    held : list of bytes
        Negatives that the model has not seen.
    """

    filter: LearnedFilter
    held: list[bytes]
    explain: Callable[[LearnedFilter | None], Explanation]

    def measured(self, filled: LearnedFilter) -> LearnedFilter:
        """``filled``, which was ``filter``, with what the held-out negatives show in its plan."""
        # The text of the plan grows by what was measured: lay the parts out anew around it.
        return filled._with_plan(self.explain(filled))


def prepare(
    key_list: list[bytes],
    negatives: Iterable[Any],
    targets: Targets,
    progress: Any = None,
    *,
    n_keys: int | None = None,
    spare: float = 0.0,
    compare: bool = True,
) -> Prepared:
    """Train, plan and lay out a learned filter without filling it.

    Parameters
    ----------
    key_list : list of bytes
        Distinct keys: all that will be stored, or a random sample of them.
    negatives : iterable of keys
        As in ``dlbf.LearnedFilter.fit``.
    progress : callable, optional
        As in ``dlbf.LearnedFilter.fit``.
    targets : Targets
        What is asked of the filter.
    n_keys : int, optional
        How many will be stored, if ``key_list`` is a sample.
    spare : float
        Room in each region for so many standard deviations more than its share: where keys come and go, or are a
        sample, the regions' shares are not exact.
    compare : bool
        Also plan what else was possible, for people to see.
    """
    design, secret, bits_per_key, headroom = targets.design, targets.secret, targets.bits_per_key, targets.headroom
    row = get_design(design)
    fpr = 0.01 if targets.fpr is None and bits_per_key is None else targets.fpr
    deletability = targets.deletability
    if deletability is None:
        deletability = 0.9 if design == "auto" and bits_per_key is None else 0.0
    report = _reporter(progress)
    # A key that was asked for often tells no more about others; and held out, it would have been learnt all the same.
    given = _distinct(_as_list(negatives))
    if not key_list:
        raise ValueError("no keys to fit: pass at least one, or use a plain filter such as dlbf.CuckooFilter")
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        warnings.warn(text, stacklevel=5)  # whoever called LearnedFilter.fit

    negative_list = _without(given, key_list)
    if n_stored := len(given) - len(negative_list):
        note(
            f"{n_stored:,} of {len(given):,} negatives are among the keys, and were left out: a negative is a key that "
            "is asked for and absent" + ("" if negative_list else "; none is left to learn from")
        )
    aims = {
        "fpr": fpr,
        "bits_per_key": bits_per_key,
        "deletability": deletability,
        "adversarial_fpr": targets.adversarial_fpr,
        "headroom": headroom,
    }

    # The held-out negatives are drawn here, so that the model cannot have seen them whoever trains it.
    rng = np.random.default_rng(targets.random_state)
    order = rng.permutation(len(negative_list))
    share = HELD_OUT_SHARE
    goal = fpr if fpr is not None else 0.01
    if len(negative_list) * share * goal < ENOUGH_HITS:
        share = 0.5
    n_held = round(len(negative_list) * share)
    held = [negative_list[i] for i in order[:n_held].tolist()]
    learnt = [negative_list[i] for i in order[n_held:].tolist()]
    scarce = n_held * goal < ENOUGH_HITS
    if scarce and row.learned and (negative_list or not n_stored):
        needed = math.ceil(ENOUGH_HITS / goal / 0.5)
        note(
            f"{len(negative_list)} negatives cannot show a rate of {goal:g}; give at least {needed:,}. "
            "The plan assumes the worst that they allow, so the filter is larger than it need be"
        )

    total = max(n_keys or 0, len(key_list))
    chosen = _model(
        targets, row.learned and n_held >= 2, key_list, learnt, held, goal, deletability, row.hides_score, total, report
    )  # fmt: skip
    report("scoring", 0.0)
    key_scores = _scores(chosen, key_list, secret, row.hides_score)
    held_scores = _scores(chosen, held, secret, row.hides_score)
    report("planning", 0.0)
    model_bits = 8 * chosen.nbytes / total
    aim = fpr
    if fpr is not None and chosen.kind != "none":
        # A rate f measured on n held-out negatives is uncertain by sqrt(f / n), and thresholds and model were chosen by
        # the same negatives: aim lower by one and a half times that.
        aim = fpr * max(0.5, 1 - 1.5 * math.sqrt(1 / max(1.0, fpr * n_held)))
    arguments: dict[str, Any] = {
        "bits_per_key": bits_per_key,
        "fpr": aim,
        "deletability": deletability,
        "adversarial_fpr": targets.adversarial_fpr,
        "counter_bits": targets.counter_bits or 4,
        "deletions": targets.deletions,
        "max_regions": MAX_REGIONS,
    }
    floor = (3.0 if scarce else 1.0) / max(1, n_held)
    edges: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
    if chosen.kind != "none":
        key_shares, query_shares, edges = shares_from_scores(key_scores, held_scores, MAX_BINS)
        arguments.update(
            key_shares=key_shares, query_shares=query_shares, model_bits_per_key=model_bits, query_floor=floor
        )
    elif row.learned and design != "auto":
        arguments.update(key_shares=[1.0, 0.0], query_shares=[1.0, 0.0])
    layout = _Layout(edges, key_scores, chosen, total / len(key_list), spare, headroom)
    if design == "auto":
        bases = AUTO_BASES if targets.counter_bits is None else ("counters",)
        # Without a model there is nothing to be uncertain of: that one aims at the rate itself.
        plain = {name: value for name, value in arguments.items() if name not in _OF_A_MODEL} | {"fpr": fpr}
        found, with_model = _smallest(layout, arguments, plain, bases, bits_per_key)
    else:
        found = with_model = _planned(layout, design, arguments, bits_per_key)
    alternatives = _alternatives(layout, design, found, arguments, fpr) if compare else []
    if chosen.kind != "none" and design == "auto" and len(found.regions) == 1:
        bits = None if with_model is None else layout.bits_per_key(with_model)
        alternatives.insert(0, Alternative(f"{chosen.kind} model", bits, "saves less than it costs"))
        chosen = no_model()
    bins: tuple[tuple[float, float], ...] = ()
    if chosen.kind != "none":
        coarse_keys, coarse_queries, _ = shares_from_scores(key_scores, held_scores, KEPT_BINS)
        bins = tuple((round(float(k), 6), round(float(q), 6)) for k, q in zip(coarse_keys, coarse_queries, strict=True))
    return _lay_out(
        replace(layout, model=chosen), found, key_list, held, secret, fpr if fpr is not None else found.fpr, aims,
        alternatives, notes, bins, total,
    )  # fmt: skip


def _feasible(design: str, arguments: dict[str, Any]) -> Plan:
    found = plan(design, **arguments)
    if not found.feasible:
        raise ValueError(
            f"{design} cannot meet these targets: {found.reason}; the smallest budget that could is "
            f"{found.min_bits:.2f} bits per key"
        )
    return found


# Arguments of `plan` that are about a model.
_OF_A_MODEL = ("key_shares", "query_shares", "model_bits_per_key", "query_floor")


@dataclass(frozen=True)
class _Layout:
    """How a plan for these keys becomes bytes."""

    edges: npt.NDArray[np.int64]  # of the bins of scores that plans cut between
    key_scores: Scores
    model: Model
    scale: float  # keys to store for each one known
    spare: float
    headroom: float

    def thresholds(self, found: Plan) -> list[int]:
        """Cut c lies before bin c, and bin c starts at edges[c - 1]."""
        if len(self.edges):
            return [int(self.edges[cut - 1]) for cut in found.cuts]
        return [0] * (len(found.regions) - 1)

    def counts(self, found: Plan) -> list[int]:
        """Keys of each region, of those known."""
        regions = np.searchsorted(self.thresholds(found), self.key_scores, side="right")
        return [int(n) for n in np.bincount(regions, minlength=len(found.regions))]

    def sizes(self, found: Plan) -> list[int]:
        """Keys that each region is made for."""
        few = FEW_KEYS if self.spare else 0
        return [math.ceil(self.scale * (n + self.spare * math.sqrt(n))) + few for n in self.counts(found)]

    def expected(self, found: Plan) -> list[int]:
        """Keys that will be in each region when as many are stored as the filter is planned for."""
        return [math.ceil(self.scale * self.headroom * n) for n in self.counts(found)]

    def parts(self, found: Plan) -> list[Part]:
        """The base filters."""
        return build_parts(found, self.sizes(found), self.headroom)

    def model_bytes(self, found: Plan) -> int:
        """Bytes of the model, where the plan uses it."""
        return self.model.nbytes if len(found.regions) > 1 else 0

    def nbytes(self, found: Plan) -> int:
        """What the filter's ``nbytes`` will be."""
        return composite_bytes(self.parts(found), self.model_bytes(found))

    def bits_per_key(self, found: Plan) -> float:
        """The same for each key."""
        return 8 * self.nbytes(found) / (self.scale * len(self.key_scores))

    def fpr(self, found: Plan) -> float:
        """The rate of what is built."""
        initial, members = predicted_rates(self.parts(found), self.expected(found))
        return initial * sum(region.query_share * rate for region, rate in zip(found.regions, members, strict=True))


def _planned(layout: _Layout, design: str, arguments: dict[str, Any], budget: float | None) -> Plan:
    """A plan that meets the targets; within the budget, if there is one, when laid out."""
    found = _feasible(design, arguments)
    return found if budget is None else _within_budget(layout, design, arguments, found, budget)


def _smallest(
    layout: _Layout, with_model: dict[str, Any], plain: dict[str, Any], bases: Sequence[str], budget: float | None
) -> tuple[Plan, Plan | None]:
    """The plan of ``auto`` that is the smallest (for a budget: has the lowest rate) as laid out, and the best with a
    model.

    Plans count the bits of the filters.  Whole buckets, room for the luck of the draw in each region, and the directory
    come on top; with few keys they decide.
    """

    def price(found: Plan) -> float:
        return layout.fpr(found) if budget is not None else layout.nbytes(found)

    def tried(arguments: dict[str, Any]) -> list[Plan]:
        try:
            return [_planned(layout, "auto", arguments, budget)]
        except ValueError:
            return []

    without = min((found for base in bases for found in tried({**plain, "bases": (base,)})), key=price, default=None)
    learned = None
    if layout.model.kind != "none":
        plans = [p for n in REGIONS_TRIED for p in tried({**with_model, "bases": bases, "max_regions": n})]
        learned = min((found for found in plans if found.learned), key=price, default=None)
    if learned is not None and (without is None or price(learned) < (1 - MIN_SAVING) * price(without)):
        return learned, learned
    if without is None:
        # Nothing will do; say why not.
        return _planned(layout, "auto", {**with_model, "bases": bases}, budget), None
    return without, learned


def _within_budget(layout: _Layout, design: str, arguments: dict[str, Any], found: Plan, budget: float) -> Plan:
    """Plan for less until what is built, in whole cells and slots and with its directory, costs no more than asked."""
    spend = budget
    for _ in range(12):
        cost = layout.bits_per_key(found)
        if cost <= budget:
            break
        spend -= 1.2 * (cost - budget)
        if spend <= 0:
            n_keys = len(layout.key_scores)
            parts = [replace(part, shares_with=0) for part in layout.parts(found)]
            fixed = 8 * composite_bytes(parts, layout.model_bytes(found)) / n_keys
            raise ValueError(
                f"{budget:g} bits per key are too few for {n_keys} keys: directory and model alone take "
                f"{fixed:.1f}; the smallest budget that could do is {fixed + 1:.1f} bits per key"
            )
        found = _feasible(design, {**arguments, "bits_per_key": spend})
    return found


def _model(
    targets: Targets,
    wanted: bool,
    keys: list[bytes],
    learnt: list[bytes],
    held: list[bytes],
    fpr: float,
    deletability: float,
    hides_score: bool,
    n_keys: int,
    report: Progress,
) -> Model:
    model, secret = targets.model, targets.secret
    if isinstance(model, Model) and wanted:
        return model
    if model is None or isinstance(model, Model) or model == "none" or not wanted or len(learnt) < 4:
        return no_model()
    if hides_score:
        # The model is trained on what it will see: the keyed hash.
        keys, learnt, held = (_hidden(batch, secret) for batch in (keys, learnt, held))
    return train(
        keys,
        learnt,
        kind=model,
        max_bytes=targets.max_model_bytes,
        validation=held,
        fpr=fpr,
        deletability=deletability,
        n_keys=n_keys,
        random_state=targets.random_state,
        progress=report,
        secret=secret,
    )


def _hidden(keys: Sequence[bytes], secret: bytes | None) -> list[bytes]:
    return [int(h).to_bytes(8, "little") for h in hash64_many(keys, secret)]


def _scores(model: Model, keys: list[bytes], secret: bytes | None, hides_score: bool) -> Scores:
    scores: Scores = model.score_many(_hidden(keys, secret) if hides_score else keys)
    return scores


def _alternatives(
    layout: _Layout, design: str, found: Plan, arguments: dict[str, Any], fpr: float | None
) -> list[Alternative]:
    """What the same targets would cost otherwise, laid out."""
    if design != "auto":
        return []
    others = []
    model = layout.model
    plain = {name: value for name, value in arguments.items() if name not in _OF_A_MODEL} | {"fpr": fpr}
    for name in ("cuckoo", "d-left", "counting"):
        other = plan(name, **plain)
        if other.feasible and [region.member.base for region in found.regions] != [other.regions[0].member.base]:
            others.append(Alternative(f"{name}, no model", layout.bits_per_key(other), "larger"))
    if model.kind != "none":
        for name in ("lbf-2cbf", "plbf-cbf"):
            other = plan(name, **arguments)
            if other.feasible:
                bits = layout.bits_per_key(other)
                others.append(Alternative(name, bits, "counters cost more than fingerprints"))
    for candidate in model.report.get("candidates", ()) if model.report else ():
        if not candidate.get("screened") or candidate["kind"] == "none":
            continue
        name = f"{candidate['kind']} model, {candidate['nbytes']:,} bytes"
        others.append(Alternative(name, candidate["total_bits"], "estimated on a sample"))
    return others


def _lay_out(
    layout: _Layout,
    found: Plan,
    keys: list[bytes],
    held: list[bytes],
    secret: bytes | None,
    fpr_target: float,
    aims: dict[str, Any],
    alternatives: list[Alternative],
    notes: list[str],
    bins: tuple[tuple[float, float], ...],
    n_keys: int,
) -> Prepared:
    row = get_design(found.design)
    model = layout.model
    n_regions = len(found.regions)
    thresholds = layout.thresholds(found)
    if n_regions > 1 and model.kind == "none":
        raise ValueError(f"the design {found.design!r} needs a model, and these keys gave none; use design='auto'")
    hides = row.hides_score
    regions_of_held = np.searchsorted(thresholds, _scores(model, held, secret, hides), side="right")
    held_counts = np.bincount(regions_of_held, minlength=n_regions)
    sizes, parts = layout.sizes(found), layout.parts(found)
    capacity = math.ceil(n_keys * layout.headroom)
    initial, members = predicted_rates(parts, layout.expected(found))
    key_shares = np.array(layout.counts(found)) / max(1, len(keys))
    query_shares = held_counts / max(1, len(held)) if len(held) else np.array([r.query_share for r in found.regions])
    rates = initial * np.array(members)
    deleted_rates = [0.0 if r.deleted is None or r.deleted.base == "exact" else r.deleted.fpr for r in found.regions]
    n_bytes = {(part.role, part.region): part.nbytes for part in parts}
    bases = {(part.role, part.region): part.base for part in parts}

    def explain(filter_: LearnedFilter | None) -> Explanation:
        measured: list[float | None] = [None] * n_regions
        overall = None
        if filter_ is not None and len(held):
            answers = filter_.contains_many(held)
            overall = float(answers.mean())
            for r in range(n_regions):
                inside = regions_of_held == r
                measured[r] = float(answers[inside].mean()) if inside.any() else None
        if found.false_negatives:
            predicted_fpr, fnr, gone = found.fpr, found.fnr, found.deletability
        else:
            predicted_fpr = float(query_shares @ rates)
            fnr = 0.0
            if any(r.deleted is not None for r in found.regions):
                exact = np.array([r.deleted is not None for r in found.regions])
                gone = 1 - float((key_shares * rates)[~exact].sum())
            else:
                gone = 1 - float(key_shares @ rates) if row.deletable else 0.0
            if found.design == "dlbf":
                gone = found.deletability
        total = 8 * composite_bytes(parts, model.nbytes) / n_keys
        return Explanation(
            design=found.design,
            fpr=predicted_fpr,
            fnr=fnr,
            deletability=gone,
            # A score that nobody can see or choose cannot be forged: the ordinary rate is all there is.
            adversarial_fpr=predicted_fpr if hides else float(max(rates)),
            bits_per_key=total,
            model_bits_per_key=8 * model.nbytes / n_keys,
            model=f"{model.kind}, {model.nbytes:,} bytes" if model.kind != "none" else "no model",
            n_keys=n_keys,
            initial_base=bases.get((0, 0)),
            initial_fpr=initial,
            initial_bytes=n_bytes.get((0, 0), 0),
            counter_bits=found.counter_bits,
            deletions=found.deletions,
            regions=tuple(
                Region(
                    low=None if r == 0 else thresholds[r - 1],
                    key_share=float(key_shares[r]),
                    query_share=float(query_shares[r]),
                    base=bases.get((MEMBER, r), "all"),
                    n_keys=sizes[r],
                    n_bytes=n_bytes.get((MEMBER, r), 0),
                    fpr=members[r],
                    measured_fpr=measured[r],
                    deleted_base=bases.get((2, r)),
                    deleted_fpr=deleted_rates[r] if (2, r) in bases else None,
                )
                for r in range(n_regions)
            ),
            targets=aims,
            measured_fpr=overall,
            alternatives=tuple(alternatives),
            warnings=tuple(notes),
            bins=bins,
            held_out=len(held),
        )

    flags = FLAG_HIDES_SCORE * hides | FLAG_OWN_KEYS * (secret is not None)
    made = LearnedFilter._assemble(parts, thresholds, model, flags, explain(None), capacity, fpr_target, secret)
    return Prepared(made, held, explain)
