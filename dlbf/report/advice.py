"""Puts the recommendation, and what a reader should know before trusting it, into sentences."""

import math
from collections.abc import Sequence

from dlbf.learned import LearnedFilter
from dlbf.report.figures import Built, EqualForgetting, PlainFigures, Point, ReadPath, Recommendation, Scores
from dlbf.report.inputs import UNSEEN_ONE_IN, Inputs, Targets
from dlbf.report.wording import count, file_size, percent, plain_words

__all__ = ["recommend", "warnings_for"]

# Below this many keys any filter is a few kilobytes.
FEW_KEYS = 1000
# Score histograms that overlap less than this can be told apart by eye.
TELLS_APART = 0.6
# With removed keys forgotten as well as without a model, a saving below this is worth a word.
LITTLE_SAVED = 0.1


def recommend(
    inputs: Inputs,
    lf: LearnedFilter,
    main: Built,
    plain_row: tuple[str, Built] | None,
    read_path: ReadPath | None,
    rejected: Scores | None,
) -> Recommendation:
    """The answer, its figures, and one sentence.

    Parameters
    ----------
    lf : LearnedFilter
        The recommended filter.
    main : Built
        Its figures.
    plain_row : (str, Built) or None
        The smallest design without a model that meets the targets.
    rejected : Scores or None
        Those of a model that did not pay.
    """
    design, plain = plain_row or ("", None)
    learned = lf.model.kind != "none"
    base = lf.plan.regions[0].base
    return Recommendation(
        sentence=(_learned_sentence(inputs, main, plain) if learned else _plain_sentence(inputs, main, base, rejected)),
        price=_price(main, plain) if learned and plain else None,
        learned=learned,
        design="auto" if learned else base,
        model=lf.plan.model,
        model_bytes=lf.model.nbytes,
        filter=base,
        n_keys=inputs.n_keys,
        bits_per_key=main.bits_per_key,
        bytes=main.bytes,
        plain=PlainFigures(design, plain.bits_per_key, plain.bytes, plain.deletability) if plain else None,
        forgotten=main.forgotten,
        plain_forgotten=plain.forgotten if plain else None,
        saved_share=_saved_share(main, plain) if learned and plain else 0.0,
        saved_bytes=plain.bytes - main.bytes if plain else None,
        fpr_predicted=main.fpr_predicted,
        fpr_measured=main.fpr_measured,
        deletability=main.deletability,
        deletability_measured=main.deletability_measured,
        adversarial_fpr=main.adversarial_fpr,
        absent_ns=read_path.absent_ns if read_path else None,
        without_filter_ns=read_path.steps.lmdb_miss_ns if read_path else None,
        lost_keys=int((~lf.contains_many(inputs.keys)).sum()),
    )


def _saved_share(main: Built, plain: Built) -> float:
    return 1 - main.bytes / plain.bytes


def _your_keys(inputs: Inputs) -> str:
    about = "about " if inputs.key_source.sampled else ""
    return f"your {about}{count(inputs.n_keys)} key{'' if inputs.n_keys == 1 else 's'}"


def _learned_sentence(inputs: Inputs, main: Built, plain: Built | None) -> str:
    use = f"Use a learned filter: it holds {_your_keys(inputs)} in {file_size(main.bytes)}"
    stops = f"stops all but {percent(main.fpr)} of the requests for keys you do not have"
    if plain is None:
        return f"{use} and {stops}; no filter without a model can do what you asked for."
    return f"{use} instead of {file_size(plain.bytes)} ({percent(_saved_share(main, plain))} less), and {stops}."


def _plain_sentence(inputs: Inputs, main: Built, base: str, rejected: Scores | None) -> str:
    if not inputs.learnt:
        why = "there are no absent keys to learn from"
    elif len(inputs.keys) < FEW_KEYS:
        why = "with so few keys a model would be larger than the filter"
    elif rejected is not None and rejected.overlap < TELLS_APART:
        why = (
            "a model can tell your keys from absent ones, but for so few keys, and with what you ask of removed "
            "keys, it would save less than it costs"
        )
    else:
        why = "a model would save less than it costs, because your keys look like the absent ones"
    return (
        f"Use a plain {plain_words(base)} without a model: it holds {_your_keys(inputs)} in {file_size(main.bytes)} at "
        f"{percent(main.fpr_predicted)} false alarms; {why}."
    )


def _price(main: Built, plain: Built) -> str:
    """How well removed keys are forgotten, with the model and without: sizes alone compare unequal filters."""
    larger = percent(plain.forgotten or 0.0)
    if main.forgotten is None:
        return f"The price: it forgets none of the keys that you remove later; the larger filter forgets {larger}."
    smaller = percent(main.forgotten)
    if smaller == larger:
        return f"Both forget {larger} of the keys that you remove later."
    return f"The price: it forgets {smaller} of the keys that you remove later; the larger filter forgets {larger}."


def warnings_for(
    inputs: Inputs,
    targets: Targets,
    lf: LearnedFilter,
    main: Built,
    few_negatives: bool,
    rejected: Scores | None,
    forged: Sequence[Point],
    equal: EqualForgetting | None,
) -> list[str]:
    """What a reader should know before trusting the page, most important first."""
    return [
        *_too_few_negatives(inputs, targets, few_negatives),
        *_wrong_with_the_files(inputs),
        *_keys_look_alike(inputs, lf, rejected),
        *_sampled(inputs),
        *_little_saved(main, equal),
        *_forged_keys_pass(inputs, targets, lf, forged),
    ]


def _n_negatives(inputs: Inputs) -> int:
    return len(inputs.learnt) + len(inputs.unseen)


def _too_few_negatives(inputs: Inputs, targets: Targets, few_negatives: bool) -> list[str]:
    negatives = _n_negatives(inputs)
    # Thirty false alarms among the unseen, which are a quarter: an error of about a fifth.
    enough = math.ceil(30 / targets.fpr * UNSEEN_ONE_IN)
    if not negatives:
        give = "The store has kept none: let it serve for a while, or give" if inputs.key_source.is_store else "Give"
        return [
            "There are no absent keys, so nothing could be learnt: the figures below are for filters without a model, "
            f"measured with made-up keys. {give} a sample of what is really asked for and not there, at least "
            f"{count(enough)} keys."
        ]
    if few_negatives or negatives < enough:
        return [
            f"Only {count(negatives)} absent keys: too few to show a rate of {percent(targets.fpr)} well. The measured "
            f"rates are rough and the filter is larger than it need be; give at least {count(enough)}."
        ]
    return []


def _wrong_with_the_files(inputs: Inputs) -> list[str]:
    texts = []
    if inputs.overlapping:
        share = inputs.overlapping / max(1, len(inputs.negative_source.sample))
        texts.append(
            f"{count(inputs.overlapping)} of the absent keys ({percent(share)}) are stored keys and were dropped."
            + (" So many suggest that the wrong file was given." if share > 0.1 else "")
        )
    if inputs.duplicate_keys:
        texts.append(f"{count(inputs.duplicate_keys)} keys occur more than once; each was counted once.")
    if inputs.repeated_negatives > 0.2 * max(1, _n_negatives(inputs)):
        texts.append(
            f"{count(inputs.repeated_negatives)} absent keys are repeats. They count as often as they are asked for; "
            "the same key is never both learnt from and measured on."
        )
    return texts


def _keys_look_alike(inputs: Inputs, lf: LearnedFilter, rejected: Scores | None) -> list[str]:
    if rejected is not None and rejected.overlap >= TELLS_APART and len(inputs.keys) >= FEW_KEYS:
        return [
            "The absent keys look like the stored ones: no model tells them apart well enough to pay for itself. That "
            "is normal for random ids and hashes, and nothing is wrong."
        ]
    highest = lf.plan.regions[-1]
    if lf.model.kind != "none" and highest.query_share > 0.25:
        return [
            f"{percent(highest.query_share)} of the absent keys look just like stored keys to the model: it helps with "
            "the others only."
        ]
    return []


def _sampled(inputs: Inputs) -> list[str]:
    texts = []
    for source, kind in ((inputs.key_source, "keys"), (inputs.negative_source, "absent keys")):
        if source.sampled:
            where, what = ("store", "keys") if source.is_store else (f"file of {kind}", "lines")
            texts.append(
                f"The {where} is large: a random sample of {count(len(source.sample))} of its "
                f"{count(source.total)} {what} was used. Sizes are for all of them; raise --sample to use more."
            )
    return texts


def _little_saved(main: Built, equal: EqualForgetting | None) -> list[str]:
    if equal is None or equal.saved_share >= LITTLE_SAVED:
        return []
    passing = "all" if main.forgotten is None else f"about {percent(1 - main.forgotten, 1)} of"
    saves = percent(equal.saved_share) if equal.saved_share >= 0.005 else "nothing"
    return [
        f"The saving has a price: {passing} the keys that you remove later still get a “maybe”, and so a needless "
        f"look. If {percent(equal.deletability)} of them must get a “no”, a model saves {saves} here."
    ]


def _forged_keys_pass(inputs: Inputs, targets: Targets, lf: LearnedFilter, forged: Sequence[Point]) -> list[str]:
    passing = lf.plan.adversarial_fpr
    if lf.model.kind == "none" or targets.adversarial_fpr < 0.5 or passing <= 5 * targets.fpr:
        return []
    return [
        f"If strangers can send you requests: somebody who knows the model can make up keys of which up to "
        f"{percent(passing)} cause a needless look. To lower that, {_resisting(passing, forged, inputs.n_keys)}"
    ]


def _resisting(passing: float, forged: Sequence[Point], n_keys: int) -> str:
    """What to ask for against forged keys and what it costs, where this share of them passes now."""
    safer = [(rate, bits) for rate, bits in forged if rate <= 0.75 * passing]
    prices = [
        f"--adversarial-fpr {rate:g} ({percent(rate)}, about {file_size(bits * n_keys / 8)})"
        for rate, bits in dict.fromkeys((*safer[:1], *safer[-1:]))
    ]
    if not prices:
        return "ask for less with --adversarial-fpr."
    return f"make this report again with {' or '.join(prices)}; see “What you can trade”."
