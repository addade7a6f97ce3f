"""``python -m tools.tables``: record sections, then rewrite README and docs."""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.tables.pages import documents, rewrite
from tools.tables.pictures import redraw
from tools.tables.records import ROOT, SECTIONS, record

__all__ = ["main"]


def _record(names: Sequence[str], root: Path) -> list[str]:
    """Measure sections anew; those that failed."""
    failed = []
    for name in names:
        start = time.monotonic()
        print(f"{name}: {SECTIONS[name].command}", flush=True)
        try:
            record(name, root)
        except (subprocess.CalledProcessError, ValueError, OSError) as error:
            failed.append(name)
            print(f"{name}: failed, its old record stays: {error}", flush=True)
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    return failed


def _rewrite(root: Path) -> list[str]:
    """Write every page and draw every picture as the records give it; those that failed."""
    failed = []
    for path in documents(root):
        text = path.read_text()
        try:
            new = rewrite(text, root)
        except (OSError, KeyError, IndexError) as error:
            failed.append(path.name)
            print(f"{path.name}: left as it is: {error}", flush=True)
            continue
        if new != text:
            path.write_text(new)
            print(f"{path.name}: rewritten", flush=True)
    try:
        for name in redraw(root):
            print(f"{name}: drawn", flush=True)
    except (OSError, KeyError, IndexError) as error:
        failed.append("pictures")
        print(f"pictures: left as they are: {error}", flush=True)
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Record sections, then rewrite the files; 1 if a section failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.tables", description=main.__doc__)
    parser.add_argument("sections", nargs="*", help=f"all, or some of: {', '.join(SECTIONS)}")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    arguments = parser.parse_args(argv)
    wanted = list(arguments.sections)
    if wanted == ["all"]:
        wanted = [name for name, section in SECTIONS.items() if section.by_default]
    unknown = sorted(set(wanted) - set(SECTIONS))
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; there are: {', '.join(SECTIONS)}")
    failed = _record(wanted, arguments.root) + _rewrite(arguments.root)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
