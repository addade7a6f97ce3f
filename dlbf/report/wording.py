"""Plain words: numbers as people read them, keys that cannot harm the page, and what each design is."""

import math

from dlbf.filters.kinds import BASES
from dlbf.theory.designs import DESIGNS

__all__ = [
    "SHORT_LIST",
    "bits",
    "count",
    "design_title",
    "file_size",
    "nanoseconds",
    "number",
    "percent",
    "percent_closely",
    "plain_words",
    "show_key",
]

# What people compare first; the page has the others behind a click.
SHORT_LIST = ("auto", "cuckoo", "bloom", "counting", "d-left", "plbf", "lbf-2cbf")
LONGEST_KEY_SHOWN = 72

UNITS = {1e3: "kB", 1e6: "MB", 1e9: "GB", 1e12: "TB"}
# A space where no line is broken.
GLUE = "\N{NO-BREAK SPACE}"


def design_title(name: str) -> str:
    """Name of a design for people who do not read papers."""
    return DESIGNS[name].title if name in DESIGNS else name


def plain_words(base: str) -> str:
    """A base filter in words."""
    if base == "all":
        return "no filter (everything passes)"
    return BASES[base].words if base in BASES else base


def count(value: float) -> str:
    """A whole number with thousands separated."""
    return f"{round(value):,}"


def number(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:.3g}"


def bits(value: float) -> str:
    """Bits per key.

    Examples
    --------
    >>> bits(5.6612), bits(38.3), bits(3072)
    ('5.66', '38.3', '3,072')
    """
    if value < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def file_size(n_bytes: float) -> str:
    """Bytes in the unit that keeps the number short; 1 kB is 1,000 bytes.

    Examples
    --------
    >>> file_size(384), file_size(526_123), file_size(12_300_000)
    ('384\\xa0bytes', '526\\xa0kB', '12.3\\xa0MB')
    """
    if n_bytes < 1000:
        return f"{n_bytes:.0f}{GLUE}bytes"
    unit = next((unit for unit in (1e3, 1e6, 1e9) if n_bytes < 999.5 * unit), 1e12)
    return f"{n_bytes / unit:.3g}{GLUE}{UNITS[unit]}"


def percent(share: float, digits: int = 2) -> str:
    """A share with so many significant digits; a rate that is not 0 never reads as 0, nor one that is not all as all.

    Examples
    --------
    >>> percent(0.00956), percent(0.38), percent(0.00001), percent(0), percent(1), percent(0.9996)
    ('0.96\\xa0%', '38\\xa0%', '0.001\\xa0%', '0\\xa0%', '100\\xa0%', '99.96\\xa0%')
    >>> percent(0.01021), percent(0.01021, 3), percent(0.9903), percent(0.9903, 3)
    ('1\\xa0%', '1.02\\xa0%', '99\\xa0%', '99.03\\xa0%')
    """
    value = 100 * share
    if value in (0, 100):
        return f"{value:.0f}{GLUE}%"
    # Close to all, what is missing is what matters; one digit less of it says as much.
    telling, digits = (100 - value, digits - 1) if 99 < value < 100 else (value, digits)
    places = max(0, digits - 1 - math.floor(math.log10(telling)))
    text = f"{value:.{places}f}"
    return f"{text.rstrip('0').rstrip('.') if places else text}{GLUE}%"


def percent_closely(share: float) -> str:
    """A share with three significant digits, for the ends of an interval."""
    return percent(share, 3)


def nanoseconds(value: float) -> str:
    """A short time in the unit that keeps the number short.

    Examples
    --------
    >>> nanoseconds(144.3), nanoseconds(1234), nanoseconds(2.5e6)
    ('144\\xa0ns', '1.23\\xa0µs', '2.5\\xa0ms')
    """
    for unit, name in ((1.0, "ns"), (1e3, "µs"), (1e6, "ms")):
        if value < 999.5 * unit:
            return f"{value / unit:.3g}{GLUE}{name}"
    return f"{value / 1e9:.3g}{GLUE}s"


def show_key(key: bytes) -> str:
    """A key as text that stays on its line: what is not printable is written as ``\\x..``, long ones are cut.

    The result is not yet escaped for HTML.

    Examples
    --------
    >>> show_key(b"a.example/x"), show_key(bytes([0, 255])), show_key("‮".encode())
    ('a.example/x', '\\\\x00\\\\xff', '\\\\xe2\\\\x80\\\\xae')
    """
    shown = []
    for char in key[: 4 * LONGEST_KEY_SHOWN].decode("utf-8", "surrogateescape"):
        # Control characters, marks that turn the direction of writing, and bytes that are no text.
        safe = char.isprintable() and char != "\\"
        shown.append(char if safe else "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape")))
        if len(shown) > LONGEST_KEY_SHOWN:
            break
    text = "".join(shown[:LONGEST_KEY_SHOWN])
    return text if len(shown) <= LONGEST_KEY_SHOWN else f"{text}…"
