"""The section on where a filter can live: in a file, in the layers of a store, on several hosts."""

from dlbf.report.page.markup import Page, cell, column_heads, table
from dlbf.report.wording import bits, file_size, percent

__all__ = ["places"]

COLUMNS = ("Memory", "Bits per key", "Forged keys that pass", "What changes")


def places(page: Page) -> str:
    """What the same keys take in each place, and what the cap on forged keys has to do with it."""
    return (
        "<section><h2>Where it can live</h2><p>The filter of this page forgets removed keys in place. A store can do "
        "with less, because it has the keys and can make a part of its filter anew; and hosts that only ask can have a "
        f"copy. The cap, at most {page.num('targets.adversarial_fpr', percent)} of forged keys, holds in all of "
        f"them.</p>{table('For the same keys and targets.', _head(), _rows(page))}"
        '<p class="small soft">Layers: a filter that never changes, small tables of the keys added since (a new first '
        "layer is made when they are a twentieth of all), and a short list of keys that were looked for and not found, "
        "so that a false alarm costs one look and not one for every request.</p></section>"
    )


def _head() -> str:
    return f'{column_heads(("Where", *COLUMNS[:-1]))}<th scope="col" class="text">{COLUMNS[-1]}</th>'


def _rows(page: Page) -> list[str]:
    static = next((f"designs.{i}" for i, row in enumerate(page.figures.designs) if row.design == "static"), None)
    here = "recommendation"
    rows = [
        _row(page, "A file, or a guard before your engine", here, "keys are added and removed in place"),
        _row(page, "Each of several hosts", here, "a copy, some seconds old; no key travels, only changed bytes"),
    ]
    if static is not None and page.figures.designs[int(static.removeprefix("designs."))].built is not None:
        rows.insert(1, _row(page, "A store, in layers", static, "its first layer; keys added since come on top"))
    return [f"<tr>{row}</tr>" for row in rows]


def _row(page: Page, name: str, at: str, words: str) -> str:
    numbers = (
        page.num(f"{at}.bytes", file_size), page.num(f"{at}.bits_per_key", bits),
        page.num(f"{at}.adversarial_fpr", percent),
    )  # fmt: skip
    cells = "".join(cell(label, number) for label, number in zip(COLUMNS, numbers, strict=False))
    return f'<th scope="row">{name}</th>{cells}{cell(COLUMNS[-1], words, "text")}'
