"""The beginning of the page: the answer, its key figures, what it is about, warnings, and how to use it."""

import re
import shlex
from html import escape
from pathlib import Path

from dlbf.filters.kinds import BASES
from dlbf.filters.tables import CUCKOO
from dlbf.report.page.markup import Page
from dlbf.report.wording import bits, count, file_size, nanoseconds, percent, show_key
from dlbf.theory import get_design

__all__ = ["about", "how_to_use", "key_figures", "page_title", "top", "warnings"]

# An option of the command line, with its number, in running text.
OPTION = re.compile(r"--[a-z-]+(?: [0-9.]*[0-9])?")


def page_title(page: Page) -> str:
    """The question that the page answers, not yet escaped."""
    return f"Which filter fits {Path(page.figures.inputs.keys.name).name}?"


def top(page: Page) -> str:
    """The answer."""
    answer = page.figures.recommendation
    below = f'<p class="price">{escape(answer.price)}</p>' if answer.price else ""
    return (
        f'<header class="top"><h1>{escape(page_title(page))}</h1><p '
        f'class="answer">{escape(answer.sentence)}</p>{below}</header>'
    )


def key_figures(page: Page) -> str:
    """Four cards: memory, what is saved, false alarms, time."""
    cards = [_memory(page), _saving(page), _false_alarms(page)]
    if page.figures.recommendation.absent_ns is not None:
        cards.append(_time(page))
    items = "".join(
        f'<li><span class="what">{what}</span><b>{value}</b><span class="note">{note}</span></li>'
        for what, value, note in cards
    )
    return f'<ul class="figures">{items}</ul>'


def _memory(page: Page) -> tuple[str, str, str]:
    answer = page.figures.recommendation
    note = ""
    if answer.plain is not None and answer.learned:
        note = (
            f"instead of {page.num('recommendation.plain_bytes', file_size)}, the smallest without a model that can "
            "forget removed keys"
        )
    return "Memory", page.num("recommendation.bytes", file_size), note


def _saving(page: Page) -> tuple[str, str, str]:
    answer = page.figures.recommendation
    if answer.learned and answer.saved_bytes is not None:
        saved = f'<span class="good">{page.num("recommendation.saved_share", percent)}</span>'
        note = f"{page.num('recommendation.saved_bytes', file_size)} less, for {_forgetting(page)}"
        return "Memory saved", saved, note
    note = f"for {_keys(page)} key{'' if answer.n_keys == 1 else 's'}"
    return "Bits per key", page.num("recommendation.bits_per_key", bits), note


def _false_alarms(page: Page) -> tuple[str, str, str]:
    where = "measured on a quarter of your absent keys, set aside; other traffic may differ"
    if page.figures.recommendation.fpr_measured is None:
        where = "predicted; there were no absent keys to measure it on"
    elif page.figures.inputs.asked_made_up:
        where = "measured on made-up keys"
    return "False alarms", _rate(page), f"of the requests for keys that are not there; {where}"


def _time(page: Page) -> tuple[str, str, str]:
    note = f"instead of {page.num('recommendation.without_filter_ns', nanoseconds)} without a filter"
    if page.figures.recommendation.learned:
        note += f"; {page.num('read_path.absent_plain_ns', nanoseconds)} without a model"
    note += "; all data in memory"
    return "Time to say “not there”", page.num("recommendation.absent_ns", nanoseconds), note


def _forgetting(page: Page) -> str:
    """What the smaller filter gives up of the larger one."""
    answer = page.figures.recommendation
    larger = page.num("recommendation.plain_forgotten", percent)
    if answer.forgotten is None:
        return f"forgetting no removed keys instead of {larger}"
    if answer.plain_forgotten is not None and percent(answer.forgotten) == percent(answer.plain_forgotten):
        return f"the same {_keys(page)} keys"
    return f"forgetting {page.num('recommendation.forgotten', percent)} instead of {larger} of removed keys"


def _rate(page: Page) -> str:
    """The false-alarm rate of the recommended filter: measured if it could be."""
    measured = page.figures.recommendation.fpr_measured is not None
    path = "recommendation.fpr_measured.value" if measured else "recommendation.fpr_predicted"
    return page.num(path, percent)


def _keys(page: Page) -> str:
    return ("about " if page.figures.inputs.keys.sampled else "") + page.num("recommendation.n_keys", count)


def warnings(page: Page) -> str:
    """What to know before trusting the page; nothing where there is nothing."""
    if not page.figures.warnings:
        return ""
    items = "".join(f"<li>{OPTION.sub(_code, escape(text))}</li>" for text in page.figures.warnings)
    return f'<section class="warnings"><h2>Before you rely on this</h2><ul>{items}</ul></section>'


def _code(option: re.Match[str]) -> str:
    return f"<code>{option[0]}</code>"


def about(page: Page) -> str:
    """What filters are, for readers who have never met one."""
    return (
        "<section><h2>What this is about</h2><p>Your <b>keys</b> are the names that things are stored under. A "
        "database is often asked for keys it does not have (<b>absent</b> ones), and must look before it can say so. "
        "A <b>filter</b> is a small summary of the keys, kept in memory, that is asked first. "
        "Its “no” is always right, so the database need not look. Its “maybe” is wrong for a few requests (here "
        f"{_rate(page)}): those are <b>false alarms</b>, and cost one needless look, nothing more. A stored key is "
        "never missed. The fewer false alarms you allow, the more memory a filter needs.</p><p>A <b>learned</b> filter "
        "carries a tiny <b>model</b> of what your keys look like, and spends its memory where the model is unsure. "
        "Where keys have a pattern that absent ones lack, that saves memory; where they are random, nothing "
        "does.</p></section>"
    )


def how_to_use(page: Page) -> str:
    """The command or the code that makes the recommended filter."""
    figures = page.figures
    if figures.inputs.keys.is_store:
        steps = _rebuild_a_store(page)
    elif figures.recommendation.learned:
        steps = _fit_a_file(page)
    else:
        steps = _make_in_python(page)
    return f"<section><h2>Use it</h2><p>For whoever builds it in:</p>{steps}</section>"


def _rebuild_a_store(page: Page) -> str:
    inputs = page.figures.inputs
    given = "" if inputs.negatives.is_store else f" --negatives {_file_argument(inputs.negatives.name)}"
    command = f"dlbf rebuild {_file_argument(inputs.keys.name)}{given} {_target_options(page)}"
    return (
        f"<pre>{escape(command)}</pre><p>gives the store such a filter while it "
        "serves; reads and writes go on. If the best filter has changed by then, it takes that one.</p>"
        "<p>A store of 4,096 keys or more that deletes little need not forget in place. It keeps its keys in layers: "
        "a filter that does not change, small tables of what was added since, and a short list of keys that it looked "
        "for and did not find, so that a false alarm costs one look and not one for every request. That takes some two "
        "bits per key less than the filter of this page. Add <code>--dry-run</code> to see which it would be, and "
        "why.</p>"
    )


def _fit_a_file(page: Page) -> str:
    inputs = page.figures.inputs
    files = f"{_file_argument(inputs.keys.name)} {_file_argument(inputs.negatives.name)}"
    command = f"dlbf fit {files} {_target_options(page)} -o keys.dlbf"
    code = 'with dlbf.open_filter("keys.dlbf") as f:\n    key in f      # False: certainly not there'
    return (
        f"<pre>{escape(command)}</pre><p>makes the filter; in Python it is then</p><pre>{escape(code)}</pre>"
        "<p>This filter has no planned room for more keys. To add half as many again, use "
        "<code>--headroom 1.5</code>.</p>"
    )


def _make_in_python(page: Page) -> str:
    answer = page.figures.recommendation
    kind = BASES.get(answer.filter, CUCKOO).cls.__name__
    code = f"f = dlbf.{kind}({answer.n_keys}, {page.figures.targets.fpr:g})\nf.update(keys)\nkey in f"
    return f"<pre>{escape(code)}</pre><p>The first number is how many keys there is room for.</p>"


def _target_options(page: Page) -> str:
    targets = page.figures.targets
    options = f"--fpr {targets.fpr:g} --deletability {targets.deletability:g}"
    usual = get_design("auto").worst_case(targets.deletability, None)
    return options + (f" --adversarial-fpr {targets.adversarial_fpr:g}" if targets.adversarial_fpr != usual else "")


def _file_argument(name: str) -> str:
    return shlex.quote(name if name.isprintable() else show_key(name.encode("utf-8", "surrogateescape")))
