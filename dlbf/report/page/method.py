"""The end of the page: the words used, how everything was measured, and what made it."""

from html import escape

from dlbf.report.figures import MeasuredRate
from dlbf.report.page.markup import Page
from dlbf.report.wording import bits, count, percent, percent_closely

__all__ = ["foot", "method", "words"]

WORDS = {
    "Bits per key": "Memory divided by the number of keys; 8 bits are one byte.",
    "kB, MB": "A thousand bytes, a million bytes.",
    "ns, µs, ms": "A billionth, a millionth, a thousandth of a second.",
    "False alarm (false positive)": (
        "An absent key that the filter lets through. It costs one needless look, never a wrong answer."
    ),
    "Removed keys forgotten (deletability)": (
        "Share of removed keys that the filter afterwards says “no” to. The others go on causing needless looks; they "
        "do no other harm."
    ),
    "Forged keys that pass (adversarial rate)": (
        "Largest share of absent keys that passes if somebody chooses them knowing the model, but not the filter’s "
        "secret."
    ),
    "Cap": (
        "A bound on the share of forged keys that pass. Requests unlike those learnt from, and removed keys, stay "
        "below it, too."
    ),
    "Layers": (
        "How a store keeps its filter: a part that never changes, tables of what was added since, and a list of keys "
        "known to be absent."
    ),
    "Can lose keys (false negatives)": (
        "Whether a stored key could be answered “not there”. For everything that dlbf recommends the answer is no."
    ),
    "Model": "A table of small whole numbers that scores a key by its pieces of text. All sizes here include it.",
    "Ngram": "A kind of model: it scores a key by the short runs of characters (n-grams) in it.",
    "Keyed hashing": (
        "The filter mixes a secret into every key, so that nobody without it can work out which absent keys would pass."
    ),
    "Seed": "Where the random choices of training start: the same seed and the same files give the same filter.",
    "LMDB": "The embedded database that dlbf keeps its stores in; a read there stands for a look into your data.",
}


def words() -> str:
    """A short dictionary."""
    items = "".join(f"<dt>{word}</dt><dd>{text}</dd>" for word, text in WORDS.items())
    return f"<section><h2>Words used here</h2><dl>{items}</dl></section>"


def method(page: Page) -> str:
    """How everything was measured, for readers who doubt it."""
    answer = page.figures.recommendation
    lines = [_keys_used(page), _negatives_used(page)]
    if answer.fpr_measured is not None:
        lines.append(_rate_measured(page, answer.fpr_measured))
    if answer.deletability_measured is not None:
        lines.append(_forgetting_measured(page))
    lines.append(
        f"<b>Lost keys</b>: all {page.num('inputs.keys.used', count)} keys were asked for after building; "
        f"{page.num('recommendation.lost_keys', count)} were missed"
    )
    lines.append(_asked_for(page))
    if page.figures.quick:
        lines.append("<b>A first look</b> (--quick): one kind of model, the short list of designs, short timing")
    items = "".join(f"<li>{line}.</li>" for line in lines)
    return (
        f"<section><h2>How this was measured</h2><ul class='small'>{items}</ul><p class='small soft'>“Measured” means "
        "built here and counted; “predicted” and the curves are computed from the scores of your keys. "
        f"{_built_and_computed(page)}Times depend on the machine and on what else it does.</p></section>"
    )


def _source(page: Page, kind: str, what: str, name: str, sampled: bool) -> str:
    at = f"inputs.{kind}"
    return (
        f"<b>{what}</b>: {page.num(f'{at}.used', count)} used, of {page.num(f'{at}.lines', count)} in "
        f'<span class="key">{escape(name)}</span>{" (a random sample)" if sampled else ""}'
    )


def _keys_used(page: Page) -> str:
    keys = page.figures.inputs.keys
    source = _source(page, "keys", "Keys", keys.name, keys.sampled)
    return f"{source}; {page.num('inputs.keys.duplicates', count)} duplicates counted once"


def _negatives_used(page: Page) -> str:
    negatives = page.figures.inputs.negatives
    source = _source(page, "negatives", "Absent keys", negatives.name, negatives.sampled)
    return (
        f"{source}; {page.num('inputs.negatives.overlapping', count)} that are stored keys dropped. "
        f"{page.num('inputs.negatives.learnt', count)} of them taught the model and set the sizes; "
        f"{page.num('inputs.negatives.unseen', count)} others were kept apart, and only what is called measured comes "
        "from those"
    )


def _interval(page: Page, at: str) -> str:
    low, high = (page.num(f"{at}.interval_99.{end}", percent_closely) for end in (0, 1))
    return f"between {low} and {high}"


def _rate_measured(page: Page, rate: MeasuredRate) -> str:
    at = "recommendation.fpr_measured"
    return (
        f"<b>False alarms of the recommended filter</b>: {page.num(f'{at}.hits', count)} of "
        f"{page.num(f'{at}.trials', count)} absent keys; with 99 % confidence the true rate is "
        f"{_interval(page, at)}{_beside_target(page, rate)}. Predicted: "
        f"{page.num('recommendation.fpr_predicted', percent_closely)}"
    )


def _beside_target(page: Page, rate: MeasuredRate) -> str:
    """What the interval of the measured rate says about the rate asked for, where it is not all below."""
    low, high = rate.interval_99
    asked = page.figures.targets.fpr
    if high <= asked:
        return ""
    target = page.num("targets.fpr", percent)
    if low > asked:
        return f", so it is above your {target}"
    return f", so a true rate {'slightly ' if high < 1.2 * asked else ''}above your {target} is not ruled out"


def _forgetting_measured(page: Page) -> str:
    at = "recommendation.deletability_measured"
    return (
        f"<b>Removed keys forgotten</b>: {page.num(f'{at}.trials', count)} keys were removed from a copy, and the "
        f"filter then said “no” to {page.num(f'{at}.hits', count)} of them, {page.num(f'{at}.value', percent)}; "
        f"with 99 % confidence the true share is {_interval(page, at)}. Predicted: "
        f"{page.num('recommendation.deletability', percent_closely)}"
    )


def _asked_for(page: Page) -> str:
    targets = page.figures.targets
    forged = "no limit on forged keys"
    if targets.adversarial_fpr < 1:
        forged = f"at most {page.num('targets.adversarial_fpr', percent)} of forged keys let through"
    return (
        f"<b>Asked for</b>: at most {page.num('targets.fpr', percent)} false alarms, at least "
        f"{page.num('targets.deletability', percent)} of removed keys forgotten, {forged}; keyed hashing "
        f"{'on' if targets.keyed else 'off'}; seed {page.num('targets.seed', count)}"
    )


def _built_and_computed(page: Page) -> str:
    """How far the recommended filter is from its curve, where it is larger."""
    answer = page.figures.recommendation
    if not answer.learned:
        return ""
    for i, curve in enumerate(page.figures.curves):
        for j, (rate, computed) in enumerate(curve.points):
            wanted = "auto" in curve.names and rate == page.figures.targets.fpr
            if wanted and computed < answer.bits_per_key:
                return (
                    "Built filters are a little larger than computed, the more so the fewer the keys: the recommended "
                    f"one has {page.num('recommendation.bits_per_key', bits)} bits per key, its curve "
                    f"{page.num(f'curves.{i}.points.{j}.1', bits)}. "
                )
    return ""


def foot(page: Page) -> str:
    """What made the page, and when."""
    return (
        f"<footer><p>dlbf {escape(page.figures.dlbf)}, {escape(page.figures.made)}. This page stands alone: it loads "
        "nothing and runs no script. The figures are in it as JSON.</p></footer>"
    )
