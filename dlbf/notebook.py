"""Plans, reports and figures as tables, where a notebook shows them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import Field, fields, is_dataclass
from html import escape
from typing import ClassVar, Protocol, TypeGuard

__all__ = ["Shown"]

MOST_ROWS = 40  # longer lists are data for a program, not for a reader


class _Record(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


class Shown:
    """A dataclass that notebooks show as tables: its figures, then its rows.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Size(Shown):
    ...     n_keys: int
    >>> Size(1500)._repr_html_()
    '<table><caption>Size</caption><tr><th>n keys</th><td>1,500</td></tr></table>'
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return "".join(_tables(type(self).__name__, self)) if _is_record(self) else ""


def _is_record(value: object) -> TypeGuard[_Record]:
    return is_dataclass(value)


def _members(value: _Record) -> Iterator[tuple[str, object]]:
    """The fields of a dataclass and what it computes from them."""
    for one in fields(value):
        yield one.name, getattr(value, one.name)
    for name in dict.fromkeys(name for parent in type(value).__mro__ for name in vars(parent)):
        if not name.startswith("_") and isinstance(getattr(type(value), name), property):
            yield name, getattr(value, name)


def _is_grid(value: object) -> TypeGuard[tuple[_Record, ...]]:
    return isinstance(value, tuple) and bool(value) and all(map(_is_record, value))


def _is_nested(value: object) -> TypeGuard[_Record]:
    """A dataclass that has no words of its own."""
    return _is_record(value) and type(value).__str__ is object.__str__


def _tables(title: str, value: _Record) -> Iterator[str]:
    rows, later = [], []
    for name, member in _members(value):
        words = name.replace("_", " ")
        if _is_nested(member):
            later.append(_tables(words, member))
        elif _is_grid(member):
            later.append(_grid(words, member))
        elif text := _cell(member):
            rows.append(f"<tr><th>{escape(words)}</th><td>{text}</td></tr>")
    yield f"<table><caption>{escape(title)}</caption>{''.join(rows)}</table>"
    for more in later:
        yield from more


def _grid(title: str, records: Sequence[_Record]) -> Iterator[str]:
    """A table with a line for each of the records."""
    lines = [dict(_flat(record)) for record in records[:MOST_ROWS]]
    cells = {
        name: [_cell(line.get(name)) for line in lines] for name in dict.fromkeys(n for line in lines for n in line)
    }
    columns = {name: texts for name, texts in cells.items() if any(texts)}
    yield f"<table><caption>{escape(title)}</caption>{_line('th', map(escape, columns))}"
    yield from (_line("td", texts) for texts in zip(*columns.values(), strict=True))
    yield "</table>"


def _flat(record: _Record, before: str = "") -> Iterator[tuple[str, object]]:
    for name, member in _members(record):
        words = f"{before}{name.replace('_', ' ')}"
        if _is_nested(member):
            yield from _flat(member, f"{words} ")
        else:
            yield words, member


def _line(tag: str, texts: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in texts)}</tr>"


def _cell(value: object) -> str:
    """What stands in a cell; empty for what says nothing, or is too long to be read."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}" if math.isfinite(value) else ""
        case bytes():
            return escape(repr(value))
        case dict():
            return _cell(tuple(f"{name}: {inner}" for name, inner in value.items()))
        case tuple() | list():
            return "<br>".join(map(_words, value)) if len(value) <= MOST_ROWS else ""
    return "" if value is None else escape(str(value))


def _words(value: object) -> str:
    """One entry of a list; pairs are a name and a figure."""
    return " ".join(map(_cell, value)) if isinstance(value, tuple) else _cell(value)
