"""Everything a report says, as plain data: the page and ``--json`` are two views of it."""

import datetime
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

import dlbf
from dlbf.bench.timing import machine
from dlbf.filters.base import Filter
from dlbf.learned import LearnedFilter
from dlbf.report.comparing import (
    Say,
    Targets,
    built_row,
    curves,
    design_rows,
    for_all_keys,
    forged_tradeoff,
    peer_rows,
    sample_evenly,
)
from dlbf.report.inputs import UNSEEN_ONE_IN, Inputs
from dlbf.report.readpath import measure_read_path
from dlbf.report.wording import count, file_size, percent, plain_words, show_key
from dlbf.theory import DESIGNS

__all__ = ["SHORT_LIST", "collect"]

# Keys that every design is built for, and absent keys it is asked for: all 22 take a quarter of a minute.
BUILT_KEYS = 100_000
ASKED_ABSENT = 100_000
# What people compare first; the page has the others behind a click.
SHORT_LIST = ("auto", "cuckoo", "bloom", "counting", "d-left", "plbf", "lbf-2cbf")
DELETABILITIES = (0.0, 0.5, 0.65, 0.9, 0.99)
HISTOGRAM_BINS = 44
EXAMPLES = 3
# Below this many keys any filter is a few kilobytes.
FEW_KEYS = 1000
# Score histograms that overlap less than this can be told apart by eye.
TELLS_APART = 0.6
# With removed keys forgotten as well as without a model, a saving below this is worth a word.
LITTLE_SAVED = 0.1
# What a read from a disk is taken to cost, in nanoseconds, where the page shows one; said to be an assumption there.
DISK_READ_NS = 100_000


def collect(
    inputs: Inputs,
    targets: Targets,
    examples: bool = True,
    quick: bool = False,
    say: Say = lambda stage, fraction: None,
) -> dict[str, Any]:
    """Fit, build, measure and plan; nothing but plain data comes back.

    Parameters
    ----------
    inputs : Inputs
        At least one key.
    targets : Targets
        Rates asked for.
    examples : bool
        Whether some of the keys themselves may be shown.
    quick : bool
        A first look: one kind of model, the designs of the short list, and shorter timing.
    say : callable
        Told the stage and how far the whole is, from 0 to 1.

    Raises
    ------
    ValueError
        If there are no keys, or the targets make no sense.
    """
    if not inputs.keys:
        raise ValueError("a report needs at least one key")

    def part(start: float, stop: float) -> Say:
        return lambda stage, fraction: say(stage, start + (stop - start) * min(1.0, fraction))

    n_keys = inputs.n_keys
    names = SHORT_LIST if quick else tuple(DESIGNS)
    lf, few = _fit(inputs, targets, quick, part(0.02, 0.3))
    basis, compared = _basis(lf, inputs, targets, part(0.3, 0.35))
    if basis is lf and lf.nbytes >= (without := _fit_plain(inputs, targets)).nbytes:
        # What was planned to be a little smaller came out no smaller: a model must earn its place.
        lf, compared = without, True
    asked, made_up = _asked(inputs)
    main = built_row(lf, inputs.keys, asked, n_keys)
    sample = sample_evenly(inputs.keys, BUILT_KEYS)
    rows = design_rows(names, sample, inputs.learnt, asked, targets, basis, n_keys, part(0.35, 0.6))
    for row in rows:
        if row["design"] == "auto":
            row |= main  # built for all keys, not for the sample
        if made_up and row.get("uses_model"):
            row["fpr_measured"] = None  # absent keys nobody asked for say nothing about a model
    peers = peer_rows(sample, asked, targets.fpr, part(0.6, 0.65))
    explanation = None if basis is None else for_all_keys(basis.plan, basis.model.nbytes, n_keys)
    planned = for_all_keys(lf.plan, lf.model.nbytes, n_keys) if explanation is None else explanation
    drawn = curves(names, explanation, targets, part(0.65, 0.8))
    say("trade-offs", 0.8)
    tradeoff = _tradeoff(planned, targets, quick)
    plain_row = _plain(rows)
    equal = _equal_forgetting(planned, targets, plain_row, drawn) if main["uses_model"] else None
    plain = _plain_filter(inputs.keys, targets)
    timing = part(0.9, 1.0)
    times = measure_read_path(
        lf, plain, inputs.keys, asked, targets.secret, 5 if quick else 20, lambda fraction: timing("timing", fraction)
    )
    learned = bool(main["uses_model"])
    read_path = None if times is None else _read_path(times, main, plain_row, learned)
    scores = None if basis is None else _scores(basis, compared, inputs)
    figures: dict[str, Any] = {
        "dlbf": dlbf.__version__,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "targets": {
            "fpr": targets.fpr,
            "deletability": targets.deletability,
            "adversarial_fpr": targets.adversarial_fpr,
            "keyed": targets.secret is not None,
            "seed": targets.seed,
        },
        "inputs": _input_figures(inputs, len(sample), len(asked), made_up),
        "warnings": _warnings(
            inputs, targets, lf, scores if compared else None, few, tradeoff["forged"], equal, forgotten(main)
        ),
        "recommendation": _recommendation(inputs, lf, main, plain_row, read_path, scores if compared else None),
        "designs": rows,
        "peers": peers,
        "curves": drawn,
        "tradeoff": tradeoff,
        "equal_forgetting": equal,
        "scores": scores,
        "regions": _regions(lf, inputs, examples),
        "read_path": read_path,
        "examples_shown": examples,
        "quick": quick,
    }
    say("done", 1.0)
    cleaned: dict[str, Any] = _finite(figures)
    return cleaned


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value


def _fit(inputs: Inputs, targets: Targets, quick: bool, say: Say) -> tuple[LearnedFilter, bool]:
    """The filter that ``dlbf fit`` would make, and whether it said that the absent keys are too few."""
    # A quick model is not searched for, so its size has to be guessed: under half a bit per key.
    guess: dict[str, Any] = {
        "model": "ngram",
        "max_model_bytes": int(min(8192, max(256, 2 ** int(math.log2(len(inputs.keys) / 20))))),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        lf = LearnedFilter.fit(
            inputs.keys, inputs.learnt, fpr=targets.fpr, deletability=targets.deletability,
            adversarial_fpr=targets.adversarial_fpr, secret=targets.secret, random_state=targets.seed, progress=say,
            **(guess if quick else {}),
        )  # fmt: skip
    return lf, bool(caught)


def _fit_plain(inputs: Inputs, targets: Targets) -> LearnedFilter:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return LearnedFilter.fit(
            inputs.keys, inputs.learnt, fpr=targets.fpr, deletability=targets.deletability, model=None,
            adversarial_fpr=targets.adversarial_fpr, secret=targets.secret, random_state=targets.seed, progress=False,
        )  # fmt: skip


def _basis(lf: LearnedFilter, inputs: Inputs, targets: Targets, say: Say) -> tuple[LearnedFilter | None, bool]:
    """The filter whose model serves the comparison; True if it was trained only to compare, the answer being none."""
    if lf.model.kind != "none":
        return lf, False
    if len(inputs.learnt) < 50 or len(inputs.keys) < 50:
        return None, False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        small = LearnedFilter.fit(
            sample_evenly(inputs.keys, BUILT_KEYS), inputs.learnt, fpr=targets.fpr, design="plbf", model="ngram",
            max_model_bytes=1024, random_state=targets.seed, progress=say,
        )  # fmt: skip
    return (small, True) if small.model.kind != "none" else (None, False)


def _asked(inputs: Inputs) -> tuple[list[bytes], bool]:
    """Absent keys to measure on; True if they had to be made up, which does for filters without a model only."""
    if inputs.unseen:
        return sample_evenly(inputs.unseen, ASKED_ABSENT), False
    stored = set(inputs.keys)
    raw = np.random.default_rng(0).bytes(16 * 20_000)
    return [key for i in range(20_000) if (key := raw[16 * i : 16 * i + 16]) not in stored], True


def _plain(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The smallest design without a model that can delete and meets the targets."""
    able = [row for row in rows if row["feasible"] and row["deletable"] and not row["learned"]]
    return min(able, key=lambda row: float(row["bits_per_key"])) if able else None


def _plain_filter(keys: list[bytes], targets: Targets) -> Filter:
    made = dlbf.CuckooFilter(max(1, len(keys)), min(targets.fpr, targets.adversarial_fpr, 0.25), secret=targets.secret)
    made.update(keys)
    return made


def _input_figures(inputs: Inputs, built: int, asked: int, made_up: bool) -> dict[str, Any]:
    return {
        "keys": {
            "name": inputs.key_source.name,
            "is_store": inputs.key_source.is_store,
            "lines": inputs.key_source.total,
            "used": len(inputs.keys),
            "sampled": inputs.key_source.sampled,
            "duplicates": inputs.duplicate_keys,
            "n_keys": inputs.n_keys,
            "mean_bytes": float(np.mean([len(key) for key in inputs.keys])),
        },
        "negatives": {
            "name": inputs.negative_source.name,
            "is_store": inputs.negative_source.is_store,
            "lines": inputs.negative_source.total,
            "used": len(inputs.learnt) + len(inputs.unseen),
            "sampled": inputs.negative_source.sampled,
            "overlapping": inputs.overlapping,
            "repeated": inputs.repeated_negatives,
            "learnt": len(inputs.learnt),
            "unseen": len(inputs.unseen),
        },
        "built_keys": built,
        "asked_absent": asked,
        "asked_made_up": made_up,
    }


def _tradeoff(explanation: Any, targets: Targets, quick: bool) -> dict[str, Any]:
    rates = [targets.fpr]
    if not quick:
        rates = sorted({min(0.25, 5 * targets.fpr), targets.fpr, targets.fpr / 10}, reverse=True)
    deletabilities = tuple(sorted({*DELETABILITIES, targets.deletability}))
    return {
        "deletability": [
            {"fpr": rate, "points": [(d, b) for d, b in points if math.isfinite(b)]}
            for rate, points in explanation.tradeoff(deletabilities, tuple(rates)).items()
        ],
        "forged": forged_tradeoff(explanation, targets),
    }


def _equal_forgetting(
    explanation: Any, targets: Targets, plain: dict[str, Any] | None, drawn: Sequence[dict[str, Any]]
) -> dict[str, float] | None:
    """What a model saves if removed keys must be forgotten as well as without one; both sizes are computed.

    None where that was asked for anyway, or there is no filter without a model to compare with.
    """
    # A filter without a model forgets a removed key unless it raises a false alarm.
    deletability = 1 - targets.fpr
    if plain is None or targets.deletability >= deletability:
        return None
    alone = next(
        (
            b
            for curve in drawn
            if plain["design"] in curve["names"]
            for rate, b in curve["points"]
            if rate == targets.fpr
        ),
        math.inf,
    )
    (_, learned), *_ = explanation.tradeoff((deletability,), (targets.fpr,))[targets.fpr]
    if not math.isfinite(learned) or not math.isfinite(alone):
        return None
    return {
        "deletability": deletability,
        "bits_per_key": learned,
        "plain_bits_per_key": alone,
        "saved_share": max(0.0, 1 - learned / alone),
    }


def _scores(basis: LearnedFilter, compared: bool, inputs: Inputs) -> dict[str, Any]:
    """Histograms of the scores of keys and of unseen absent keys, with the borders of the regions."""
    keys = basis.model.score_many(sample_evenly(inputs.keys, 200_000))
    absent = basis.model.score_many(inputs.unseen or inputs.learnt)
    both = np.concatenate((keys, absent))
    borders = [region.low for region in basis.plan.regions if region.low is not None]
    low, high = (int(edge) for edge in np.quantile(both, (0.002, 0.998)))
    low, high = min([low, *borders]), max([high + 1, *(border + 1 for border in borders)])
    step = max(1, math.ceil((high - low) / HISTOGRAM_BINS))
    edges = np.arange(low, high + step, step)

    def shares(scores: Any) -> list[float]:
        # What lies outside is counted in the bins at the ends.
        inside = np.clip((scores.astype(np.int64) - low) // step, 0, len(edges) - 2)
        return [float(share) for share in np.bincount(inside, minlength=len(edges) - 1) / max(1, len(scores))]

    of_keys, of_absent = shares(keys), shares(absent)
    return {
        "edges": [int(edge) for edge in edges],
        "keys": of_keys,
        "absent": of_absent,
        "overlap": sum(map(min, of_keys, of_absent)),
        "borders": [int(border) for border in borders],
        "for_comparison_only": compared,
        "model": basis.plan.model,
    }


def _regions(lf: LearnedFilter, inputs: Inputs, examples: bool) -> list[dict[str, Any]]:
    thresholds = [region.low for region in lf.plan.regions if region.low is not None]
    some_keys = sample_evenly(inputs.keys, 20_000)
    some_absent = sample_evenly(inputs.unseen, 20_000)

    def pick(source: list[bytes]) -> list[list[bytes]]:
        found: list[list[bytes]] = [[] for _ in lf.plan.regions]
        if examples and source:
            for key, region in zip(
                source, np.searchsorted(thresholds, lf.model.score_many(source), side="right"), strict=True
            ):
                if len(found[region]) < EXAMPLES:
                    found[region].append(key)
        return found

    rows = []
    for region, keys, absent in zip(lf.plan.regions, pick(some_keys), pick(some_absent), strict=True):
        rows.append(
            {
                "score_from": region.low,
                "key_share": region.key_share,
                "query_share": region.query_share,
                "filter": region.base,
                "bits_per_key": 8 * region.n_bytes / region.n_keys if region.n_keys else 0.0,
                "share_of_bytes": region.n_bytes / max(1, sum(r.n_bytes for r in lf.plan.regions)),
                "fpr_predicted": region.fpr,
                "fpr_measured": region.measured_fpr,
                "example_keys": [show_key(key) for key in keys],
                "example_absent": [show_key(key) for key in absent],
            }
        )
    return rows


def _read_path(
    times: dict[str, Any], main: dict[str, Any], plain: dict[str, Any] | None, learned: bool
) -> dict[str, Any]:
    fpr = main["fpr_measured"]["value"] if main["fpr_measured"] else main["fpr_predicted"]
    plain_fpr = plain["fpr_predicted"] if plain else main["fpr_predicted"]
    miss = times["lmdb_miss_ns"]

    def pays_from(look: float) -> float | None:
        """Share of requests for absent keys above which the filter saves time, if a look costs so much."""
        saved, extra = (1 - fpr) * look - times["learned_ns"], times["learned_hit_ns"]
        return extra / (extra + saved) if saved > 0 else None

    return times | {
        "fpr": fpr,
        "plain_fpr": plain_fpr,
        "learned": learned,
        "absent_ns": times["learned_ns"] + fpr * miss,
        "absent_plain_ns": times["plain_ns"] + plain_fpr * miss,
        "saved_share": 1 - (times["learned_ns"] + fpr * miss) / miss,
        "passes_per_1000": 1000 * fpr,
        "disk_read_ns": DISK_READ_NS,
        "disk_without_ns": 1000.0 * DISK_READ_NS,
        "disk_with_ns": 1000 * (times["learned_ns"] + fpr * DISK_READ_NS),
        "pays_from": pays_from(miss),
        "disk_pays_from": pays_from(DISK_READ_NS),
    }


def _recommendation(
    inputs: Inputs,
    lf: LearnedFilter,
    main: dict[str, Any],
    plain: dict[str, Any] | None,
    read_path: dict[str, Any] | None,
    rejected: dict[str, Any] | None,
) -> dict[str, Any]:
    """The answer, its figures, and one sentence; ``rejected`` are the scores of a model that did not pay."""
    learned = lf.model.kind != "none"
    n_bytes = main["bytes"]
    base = lf.plan.regions[0].base
    saved = 1 - n_bytes / plain["bytes"] if plain and learned else 0.0
    rate = main["fpr_measured"] or {"value": main["fpr_predicted"]}
    about = "about " if inputs.key_source.sampled else ""
    keys = f"{about}{count(inputs.n_keys)} key{'' if inputs.n_keys == 1 else 's'}"
    price = None
    if learned and plain:
        sentence = (
            f"Use a learned filter: it holds your {keys} in {file_size(n_bytes)} instead of "
            f"{file_size(plain['bytes'])} ({percent(saved)} less), and stops all but {percent(rate['value'])} of the "
            "requests for keys you do not have."
        )
        price = _forgetting(main, plain)
    elif learned:
        sentence = (
            f"Use a learned filter: it holds your {keys} in {file_size(n_bytes)} and stops all but "
            f"{percent(rate['value'])} of the requests for keys you do not have; no filter without a model can do what "
            "you asked for."
        )
    else:
        if not inputs.learnt:
            why = "there are no absent keys to learn from"
        elif len(inputs.keys) < FEW_KEYS:
            why = "with so few keys a model would be larger than the filter"
        elif rejected is not None and rejected["overlap"] < TELLS_APART:
            why = (
                "a model can tell your keys from absent ones, but for so few keys, and with what you ask of removed "
                "keys, it would save less than it costs"
            )
        else:
            why = "a model would save less than it costs, because your keys look like the absent ones"
        sentence = (
            f"Use a plain {plain_words(base)} without a model: it holds your {keys} in {file_size(n_bytes)} at "
            f"{percent(main['fpr_predicted'])} false alarms; {why}."
        )
    return {
        "sentence": sentence,
        "price": price,
        "learned": learned,
        "design": "auto" if learned else base,
        "model": lf.plan.model,
        "model_bytes": lf.model.nbytes,
        "filter": base,
        "n_keys": inputs.n_keys,
        "bits_per_key": main["bits_per_key"],
        "bytes": n_bytes,
        "plain_design": plain["design"] if plain else None,
        "plain_bits_per_key": plain["bits_per_key"] if plain else None,
        "plain_bytes": plain["bytes"] if plain else None,
        "plain_deletability": plain["deletability"] if plain else None,
        "forgotten": forgotten(main),
        "plain_forgotten": forgotten(plain) if plain else None,
        "saved_share": saved,
        "saved_bytes": plain["bytes"] - n_bytes if plain else None,
        "fpr_predicted": main["fpr_predicted"],
        "fpr_measured": main["fpr_measured"],
        "deletability": main["deletability"],
        "deletability_measured": main["deletability_measured"],
        "adversarial_fpr": main["adversarial_fpr"],
        "absent_ns": read_path["absent_ns"] if read_path else None,
        "without_filter_ns": read_path["lmdb_miss_ns"] if read_path else None,
        "lost_keys": int((~lf.contains_many(inputs.keys)).sum()),
    }


def _forgetting(main: dict[str, Any], plain: dict[str, Any]) -> str:
    """How well removed keys are forgotten, with the model and without: sizes alone compare unequal filters."""
    mine, larger = forgotten(main), percent(forgotten(plain) or 0.0)
    if mine is None:
        return f"The price: it forgets none of the keys that you remove later; the larger filter forgets {larger}."
    if percent(mine) == larger:
        return f"Both forget {larger} of the keys that you remove later."
    return (
        f"The price: it forgets {percent(mine)} of the keys that you remove later; the larger filter forgets {larger}."
    )


def forgotten(row: dict[str, Any]) -> float | None:
    """Share of removed keys that a filter then says "no" to, as measured if it was; None if it cannot remove."""
    if row["deletability"] is None:
        return None
    measured = row["deletability_measured"]
    return float(row["deletability"] if measured is None else measured["value"])


def _warnings(
    inputs: Inputs,
    targets: Targets,
    lf: LearnedFilter,
    rejected: dict[str, Any] | None,
    few: bool,
    forged: Sequence[tuple[float, float]],
    equal: dict[str, float] | None,
    forgets: float | None,
) -> list[str]:
    """What a reader should know before trusting the page, most important first."""
    found = []
    negatives = len(inputs.learnt) + len(inputs.unseen)
    # Thirty false alarms among the unseen, which are a quarter: an error of about a fifth.
    enough = math.ceil(30 / targets.fpr * UNSEEN_ONE_IN)
    if not negatives:
        found.append(
            "There are no absent keys, so nothing could be learnt: the figures below are for filters without a model, "
            "measured with made-up keys. "
            + ("The store has kept none: let it serve for a while, or give" if inputs.key_source.is_store else "Give")
            + f" a sample of what is really asked for and not there, at least {count(enough)} keys."
        )
    elif few or negatives < enough:
        found.append(
            f"Only {count(negatives)} absent keys: too few to show a rate of {percent(targets.fpr)} well. The measured "
            f"rates are rough and the filter is larger than it need be; give at least {count(enough)}."
        )
    if inputs.overlapping:
        share = inputs.overlapping / max(1, len(inputs.negative_source.sample))
        found.append(
            f"{count(inputs.overlapping)} of the absent keys ({percent(share)}) are stored keys and were dropped."
            + (" So many suggest that the wrong file was given." if share > 0.1 else "")
        )
    if inputs.duplicate_keys:
        found.append(f"{count(inputs.duplicate_keys)} keys occur more than once; each was counted once.")
    if inputs.repeated_negatives > 0.2 * max(1, negatives):
        found.append(
            f"{count(inputs.repeated_negatives)} absent keys are repeats. They count as often as they are asked for; "
            "the same key is never both learnt from and measured on."
        )
    if rejected is not None and rejected["overlap"] >= TELLS_APART and len(inputs.keys) >= FEW_KEYS:
        found.append(
            "The absent keys look like the stored ones: no model tells them apart well enough to pay for itself. That "
            "is normal for random ids and hashes, and nothing is wrong."
        )
    elif lf.model.kind != "none" and lf.plan.regions[-1].query_share > 0.25:
        found.append(
            f"{percent(lf.plan.regions[-1].query_share)} of the absent keys look just like stored keys to the model: "
            "it helps with the others only."
        )
    for source, kind in ((inputs.key_source, "keys"), (inputs.negative_source, "absent keys")):
        if source.sampled:
            where, what = ("store", "keys") if source.is_store else (f"file of {kind}", "lines")
            found.append(
                f"The {where} is large: a random sample of {count(len(source.sample))} of its "
                f"{count(source.total)} {what} was used. Sizes are for all of them; raise --sample to use more."
            )
    if equal is not None and equal["saved_share"] < LITTLE_SAVED:
        passing = "all" if forgets is None else f"about {percent(1 - forgets, 1)} of"
        saves = percent(equal["saved_share"]) if equal["saved_share"] >= 0.005 else "nothing"
        found.append(
            f"The saving has a price: {passing} the keys that you remove later still get a “maybe”, and so a needless "
            f"look. If {percent(equal['deletability'])} of them must get a “no”, a model saves {saves} here."
        )
    if lf.model.kind != "none" and targets.adversarial_fpr >= 0.5 and lf.plan.adversarial_fpr > 5 * targets.fpr:
        found.append(
            f"If strangers can send you requests: somebody who knows the model can make up keys of which up to "
            f"{percent(lf.plan.adversarial_fpr)} cause a needless look. To lower that, "
            f"{_resisting(lf.plan.adversarial_fpr, forged, inputs.n_keys)}"
        )
    return found


def _resisting(now: float, forged: Sequence[tuple[float, float]], n_keys: int) -> str:
    """What to ask for against forged keys and what it costs, where the filter now lets this share of them pass."""
    safer = [(rate, bits) for rate, bits in forged if rate <= 0.75 * now]
    prices = [
        f"--adversarial-fpr {rate:g} ({percent(rate)}, about {file_size(bits * n_keys / 8)})"
        for rate, bits in dict.fromkeys((*safer[:1], *safer[-1:]))
    ]
    if not prices:
        return "ask for less with --adversarial-fpr."
    return f"make this report again with {' or '.join(prices)}; see “What you can trade”."
