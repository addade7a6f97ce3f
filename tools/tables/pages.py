"""README and docs with every table and figure as the records give it."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.tables import attacks, filters, history, shards, stores, stress
from tools.tables.cells import Grid, Record
from tools.tables.records import FIGURES_FOLDER, ROOT, read_record

__all__ = ["BLOCK", "INLINE", "MOST_COLUMNS", "TABLES", "documents", "figure", "render", "rewrite"]

TABLES = attacks.TABLES | stores.TABLES | filters.TABLES | stress.TABLES | history.TABLES | shards.TABLES
MOST_COLUMNS = 8  # of a table that can be read on a page; wider ones are written in parts
BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)
INLINE = re.compile(r"(<!-- figure: (?P<path>[^:>]+):(?P<format>[^ >]*) -->)(?P<body>[^<]*)(<!-- end -->)")


def _grid_of_records(name: str, root: Path) -> tuple[Grid, Record]:
    """A table that a record brings with it, and the record."""
    for path in sorted((root / FIGURES_FOLDER).glob("*.json")):
        record: Record = json.loads(path.read_text())
        own = record.get("tables", {}).get(name)
        if own is not None:
            return (own["headings"], own["rows"]), record
    raise KeyError(f"no table {name!r}; there are: {', '.join(sorted(TABLES))}, and those that records bring")


def render(name: str, root: Path = ROOT) -> str:
    """A table as markdown, and under it where its figures come from; or that it has not been recorded."""
    known = TABLES.get(name)
    if known is None:
        (headings, rows), record = _grid_of_records(name, root)
    else:
        if known.section is not None and not (root / FIGURES_FOLDER / f"{known.section}.json").exists():
            return f'*Not recorded yet; `make tables SECTIONS="{known.section}"` does it.*\n'
        record = {} if known.section is None else read_record(known.section, root)
        headings, rows = known.make(record)
    lines = "\n\n".join(_markdown(*part) for part in _parts(headings, rows)).splitlines()
    if "machine" in record:
        where = record["machine"]
        data = f"; {record['data']}" if "data" in record else ""
        lines += [
            "",
            f"<sub>`{record['command']}`{data}; {where['processor']}, {where['cores']} cores, {where['memory']}, "
            f"Python {where['python']}, commit {where['commit']}, {where['date']}</sub>",
        ]
    return "\n".join(lines) + "\n"


def _parts(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Grid]:
    """The table, or several that fit a page, each with the first column."""
    n_columns = len(headings) - 1
    n_parts = 1 if len(headings) <= MOST_COLUMNS else -(-n_columns // (MOST_COLUMNS - 1))
    for part in range(n_parts):
        first, last = (1 + n_columns * i // n_parts for i in (part, part + 1))
        yield [headings[0], *headings[first:last]], [[row[0], *row[first:last]] for row in rows]


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(headings)} |", "|" + "|".join(_alignment(rows, i) for i in range(len(headings))) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in map(str, row))} |" for row in rows]
    return "\n".join(lines)


def _alignment(rows: Sequence[Sequence[str]], column: int) -> str:
    """Numbers to the right."""
    cells = [str(row[column]).strip("*") for row in rows if str(row[column]) not in ("-", "")]
    return "---:" if cells and all(re.match(r"[+<-]?\d", cell) for cell in cells) else "---"


def figure(path: str, spec: str, root: Path = ROOT) -> str:
    """One number: a path into a section's record, or ``derived`` and a name; and a Python format."""
    section, *steps = path.strip().split("/")
    if section == "derived":
        source, derive = attacks.DERIVED["/".join(steps)]
        return format(derive({} if source is None else read_record(source, root)), spec)
    value: Any = read_record(section, root)
    for step in steps:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return format(value, spec)


def rewrite(text: str, root: Path = ROOT) -> str:
    """A markdown file with every table and figure as the records give it."""
    text = BLOCK.sub(lambda block: block[1] + render(block["name"], root) + block[4], text)
    return INLINE.sub(lambda inline: inline[1] + figure(inline["path"], inline["format"], root) + inline[5], text)


def documents(root: Path = ROOT) -> list[Path]:
    """README and all pages of the documentation."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
