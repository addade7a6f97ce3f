"""Coverage of the Python and the Cython lines by the default test suite.

    python .ci/coverage.py [--python 95] [--cython 90] [--missing] [pytest arguments]

Builds a copy of the sources under ``build/coverage`` with counters in the kernels, so the usual build stays as it is,
runs the tests with it, prints both figures and fails below the limits.

Python lines are counted by coverage.py, in child processes too.  Cython lines are counted by the C compiler: Cython
writes a comment with file and line before the C code of each source line, and a source line counts as executed when the
first C statement after one of its comments was.  Lines that produce no C code (declarations) do not count.
"""

import argparse
import filecmp
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "coverage"
TREE = WORK / "tree"
# Workers of pytest-xdist and forked children end by os._exit, where the counters would be lost.
KEEPER = """\
import ctypes
import os
import sys

leave = os._exit


def keep_counts_and_leave(status):
    for name, module in list(sys.modules.items()):
        if name.startswith("dlbf.") and str(getattr(module, "__file__", "")).endswith(".so"):
            ctypes.CDLL(module.__file__).__gcov_dump()
    leave(status)


os._exit = keep_counts_and_leave
"""
MARK = re.compile(r'^\s*/\* "(?P<file>[^"]+\.(?:pyx|pxd))":(?P<line>\d+)$')

CONFIG = f"""\
[run]
source = dlbf
parallel = true
concurrency = thread,multiprocessing
patch = subprocess,_exit
data_file = {WORK / "data" / "python"}
core = ctrace
[report]
exclude_also =
    if TYPE_CHECKING:
    raise NotImplementedError
"""


def copy_sources() -> None:
    """The tree as it is installed, ``storage/`` in its place; unchanged files keep their times."""
    wanted: dict[Path, Path] = {}
    for path in (path for path in ROOT.iterdir() if path.is_file() and path.name not in (".coverage", ".git")):
        wanted[TREE / path.name] = path
    folders = {name: name for name in ("dlbf", "tests", "docs", "examples", "asv_bench", "tools", ".ci")} | {
        "storage": "dlbf/storage"
    }
    for folder, place in folders.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and not {"__pycache__", ".asv"} & set(path.parts) and path.suffix != ".so":
                wanted[TREE / place / path.relative_to(ROOT / folder)] = path
    for target, source in wanted.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or not filecmp.cmp(source, target, shallow=False):
            shutil.copyfile(source, target)
    if not (TREE / "storage").exists():
        (TREE / "storage").symlink_to(TREE / "dlbf" / "storage")  # where links of the documentation lead
    for path in (*(TREE / "dlbf").rglob("*"), *(TREE / "tests").rglob("*")):
        if path.suffix in (".py", ".pyx", ".pxd", ".pyi", ".h") and path not in wanted:
            path.unlink()


def run(command: list[str], **environment: str) -> int:
    return subprocess.run(command, cwd=TREE, env=os.environ | environment, check=False).returncode


def cython_lines() -> dict[str, dict[int, bool]]:
    """Source file -> line -> whether it was executed."""
    lines: dict[str, dict[int, bool]] = defaultdict(dict)
    for counters in sorted((TREE / "build").rglob("*.gcno")):
        source = next((TREE / "build" / "cython").rglob(f"{counters.stem}.c"))
        told = subprocess.run(
            ["gcov", "--json-format", "--stdout", counters.name], cwd=counters.parent, capture_output=True, check=True
        ).stdout
        report = json.loads(gzip.decompress(told) if told[:2] == b"\x1f\x8b" else told)
        counts: dict[int, int] = defaultdict(int)
        for file in report["files"]:
            if Path(file["file"]).name == source.name:
                for line in file["lines"]:
                    counts[line["line_number"]] += line["count"]
        place: tuple[str, int] | None = None
        for number, text in enumerate(source.read_text().splitlines(), 1):
            if mark := MARK.match(text):
                place = mark["file"], int(mark["line"])
            elif place and number in counts:
                if place[0].startswith("dlbf/"):
                    seen = lines[place[0]]
                    seen[place[1]] = seen.get(place[1], False) or counts[number] > 0
                place = None
    return lines


def python_lines() -> dict[str, tuple[int, list[int]]]:
    """Source file -> number of lines, lines that were not executed."""
    base = [sys.executable, "-m", "coverage"]
    rc = f"--rcfile={WORK / 'coveragerc'}"
    run([*base, "combine", "-q", rc])
    if run([*base, "json", "-q", rc, "-o", str(WORK / "python.json")]):
        raise SystemExit("coverage.py has no report to give")
    files = json.loads((WORK / "python.json").read_text())["files"]
    return {
        name: (data["summary"]["num_statements"], data["missing_lines"])
        for name, data in files.items()
        if data["summary"]["num_statements"]
    }


def ranges(numbers: list[int]) -> str:
    """``[1, 2, 3, 7]`` as ``1-3 7``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def table(title: str, files: dict[str, tuple[int, list[int]]], show_missing: bool) -> float:
    """Print one line per file that misses something; the share of lines that were executed, in per cent."""
    total = sum(n for n, _ in files.values())
    missed = sum(len(lines) for _, lines in files.values())
    print(f"\n{title}: lines missed by the tests")
    for name, (n, lines) in sorted(files.items()):
        if lines:
            print(f"  {name:40} {100 - 100 * len(lines) / n:6.1f} %  {len(lines):4} of {n:4}", end="")
            print(f"  {ranges(lines)}" if show_missing else "")
    return 100 * (1 - missed / total) if total else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=float, default=95.0, help="least share of Python lines, in per cent")
    parser.add_argument("--cython", type=float, default=90.0, help="least share of Cython lines, in per cent")
    parser.add_argument("--missing", action="store_true", help="name the lines that were missed")
    parser.add_argument("--report-only", action="store_true", help="do not run the tests again")
    options, arguments = parser.parse_known_args()
    failed = 0
    if not options.report_only:
        copy_sources()
        shutil.rmtree(WORK / "data", ignore_errors=True)
        (WORK / "data").mkdir(parents=True)
        (WORK / "coveragerc").write_text(CONFIG)
        (TREE / "counts_keeper.py").write_text(KEEPER)
        if run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], DLBF_COVERAGE="1"):
            raise SystemExit("the build with counters failed")
        for counts in (TREE / "build").rglob("*.gcda"):
            counts.unlink()
        tests = ["-m", "pytest", "-q", "-n", "2", "-m", "not slow and not timing", "-p", "no:cacheprovider"]
        # These fail the disk under the process, and the files of the counters with it.
        tests += ["-p", "counts_keeper", "--ignore", "tests/crash/test_store_faults.py"]
        tests += arguments
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={WORK / 'coveragerc'}", *tests]
        failed = run(command, PYTHONPATH=str(TREE))
    python = python_lines()
    cython = {
        name: (len(lines), [line for line, done in lines.items() if not done]) for name, lines in cython_lines().items()
    }
    python_share = table("Python", python, options.missing)
    cython_share = table("Cython", cython, options.missing)
    print(f"\ncoverage: Python {python_share:.1f} % (at least {options.python:g} %), ", end="")
    print(f"Cython {cython_share:.1f} % (at least {options.cython:g} %)")
    if failed:
        raise SystemExit("tests failed while coverage was measured")
    if python_share < options.python or cython_share < options.cython:
        raise SystemExit("coverage is below its limit")


if __name__ == "__main__":
    main()
