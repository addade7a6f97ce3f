"""Is this build slower than another?  The same benchmarks in both, in turn, and the ratio of every time.

    python tools/compare.py ../before .          # two checkouts, each with its .venv, built
    make asv-compare BASE=v0.1.0                 # a revision is built in build/compare first

Each run of a benchmark gives many times; the best of several runs counts, because a busy machine only ever adds.  The
two builds take turns, so that both meet the same machine.  Other people's code (RocksDB, py-lmdb) is in the same
tables and is the same in both: how far its ratios are from 1 is how little this measurement can tell.

Instructions of the hot paths (``asv_bench/benchmarks/hot_paths.py`` of this checkout, under callgrind) are the same on
every run: there a change of one in a hundred is real.

Stores are measured at a size below that of layers and at one above: a build that has layers is compared
with one that has none only in the first, and ``design`` tells which filter answered.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What `dlbf bench` is asked for: a few seconds each.
RUNS: dict[str, list[str]] = {
    "filters": ["filters", "--keys", "100000", "--queries", "1000", "--rounds", "12"],
    "small store": ["store", "--keys", "4000", "--mix", "B", "--temperature", "warm", "--rounds", "5"],
    "store": ["store", "--keys", "20000", "--mix", "B", "--temperature", "warm", "--rounds", "5"],
    "guard": ["guard", "--keys", "4000", "--queries", "4000", "--rounds", "3"],
}
INSTRUCTIONS = "instructions"
HOT_PATHS = ROOT / "asv_bench" / "benchmarks" / "hot_paths.py"
LABELS = ("name", "engine", "mix", "absent_share")
# Times of other people's code have none of these in their names.
OURS = ("dlbf", "guarded_ns", "Filter, ", "ExactSet, ")

Times = dict[str, float]


@dataclass(frozen=True)
class Compared:
    """One time of both builds, in the unit of the benchmark, or a number of instructions."""

    run: str
    what: str
    before: float
    now: float
    design: str = ""

    @property
    def ratio(self) -> float:
        """Above 1: slower than before."""
        return self.now / self.before

    @property
    def is_ours(self) -> bool:
        """Is it dlbf's?  Others show what the machine does."""
        return self.run == INSTRUCTIONS or any(word in self.what for word in OURS)


def is_time(name: str) -> bool:
    """Is a figure of this name a time, or a table of times?"""
    return name == "ns" or name.endswith(("_ns", "us_per_key"))


def times_of(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Every time in a record of ``dlbf bench``, and what it is of.

    >>> dict(times_of({"rows": [{"name": "dlbf Bloom", "add_ns": 40.0, "fpr": 0.01}], "ns": {"all": 3}}))
    {'dlbf Bloom, add_ns': 40.0, 'ns, all': 3.0}
    """
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from times_of(inner, (*path, str(name)))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            labels = [str(inner[name]) for name in LABELS if name in inner] if isinstance(inner, dict) else []
            yield from times_of(inner, (*path[:-1], *labels) if labels else (*path, str(i)))
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and any(map(is_time, path)):
        yield ", ".join(path), float(value)


def designs_of(record: object) -> dict[str, str]:
    """Which filter each store had."""
    engines = record.get("engines", {}) if isinstance(record, dict) else {}
    return {name: str(engine["filter_design"]) for name, engine in engines.items() if engine.get("filter_design")}


def checkout(name: str) -> Path:
    """A built checkout: the folder of that name, or a revision, built in ``build/compare`` unless it is there."""
    if Path(name).is_dir():
        return Path(name).resolve()
    git = ["git", "-C", str(ROOT)]
    asked = subprocess.run(
        [*git, "rev-parse", "--verify", "-q", f"{name}^{{commit}}"], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        raise SystemExit(f"{name}: neither a folder nor a revision of {ROOT}")
    tree = ROOT / "build" / "compare" / asked.stdout.strip()[:12]
    if not (tree / ".venv" / ".built").exists():
        print(f"{name}: building {tree}", file=sys.stderr)
        tree.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run([*git, "archive", asked.stdout.strip()], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
        environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "VENV")}
        subprocess.run(["make", ".venv/.built"], cwd=tree, env=environment, stdout=sys.stderr, check=True)
    return tree


def counted(tree: Path) -> dict[str, float | None]:
    """Instructions per key of the hot paths of a checkout."""
    command = [str(tree / ".venv" / "bin" / "python"), "-P", str(HOT_PATHS)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed\n{done.stderr}")
    counts: dict[str, float | None] = json.loads(done.stdout)
    return counts


def compare_instructions(trees: tuple[Path, Path], progress: bool = False) -> list[Compared]:
    """The hot paths that both builds have."""
    if progress:
        print(f"{INSTRUCTIONS}: {trees[0]} and {trees[1]}", file=sys.stderr)
    before, now = counted(trees[0]), counted(trees[1])
    return [
        Compared(INSTRUCTIONS, name, old, new)
        for name, old in before.items()
        if old is not None and (new := now.get(name)) is not None
    ]


def bench(tree: Path, arguments: Sequence[str]) -> object:
    """What ``dlbf bench`` of a checkout measures."""
    command = [str(tree / ".venv" / "bin" / "dlbf"), "bench", *arguments, "--json"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed; build the checkout first\n{done.stderr}")
    return json.loads(done.stdout)


def compare(run: str, trees: tuple[Path, Path], rounds: int, progress: bool = False) -> list[Compared]:
    """The best times of both builds in ``rounds`` runs of one benchmark each, in turn."""
    best: tuple[Times, Times] = ({}, {})
    designs: list[dict[str, str]] = [{}, {}]
    for i in range(rounds):
        for build in (0, 1) if i % 2 == 0 else (1, 0):
            if progress:
                print(f"{run}: round {i + 1} of {rounds}, {trees[build]}", file=sys.stderr)
            record = bench(trees[build], RUNS[run])
            designs[build] = designs_of(record)
            for what, time in times_of(record):
                best[build][what] = min(time, best[build].get(what, time))
    rows = []
    for what in best[0]:
        if best[0][what] > 0 and what in best[1]:
            store = next((name for name in designs[1] if name in what.split(", ", 1)[0] or what.endswith(name)), "")
            kinds = [design.get(store, "") for design in designs]
            design = kinds[1] if kinds[0] == kinds[1] else f"{kinds[0] or '?'} -> {kinds[1]}"
            rows.append(Compared(run, what, best[0][what], best[1][what], design))
    return rows


def summary(rows: Sequence[Compared]) -> list[str]:
    """A line for each benchmark: the middle ratio of ours and of others."""
    lines = []
    for run in dict.fromkeys(row.run for row in rows):
        parts = []
        for title, is_ours in (("dlbf", True), ("others", False)):
            ratios = [row.ratio for row in rows if row.run == run and row.is_ours == is_ours]
            if ratios:
                parts.append(f"{title} {statistics.median(ratios):.3f} (median of {len(ratios)})")
        lines.append(f"{run}: {', '.join(parts)}")
    return lines


def slower(rows: Sequence[Compared], share: float) -> list[str]:
    """A line for each of ours that got slower by more than a share, counts before times."""
    found = [row for row in rows if row.is_ours and row.ratio > 1 + share]
    found.sort(key=lambda row: (row.run != INSTRUCTIONS, -row.ratio))
    title = f"slower by more than {share:.0%}: {len(found) or 'nothing'}"
    return [title, *(f"{row.ratio:7.3f}  {row.run}: {row.what}" for row in found)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, and say by the exit code whether a median of ours is above ``--at-most``."""
    parser = argparse.ArgumentParser(description="Times of two builds of dlbf, and their ratios.")
    parser.add_argument("before", help="a checkout with its .venv, built, or a revision")
    parser.add_argument("now", help="another")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each benchmark in each build (3)")
    parser.add_argument("--only", choices=[INSTRUCTIONS, *RUNS], action="append", help="only these benchmarks")
    parser.add_argument("--at-most", type=float, help="exit with 1 if a median of ours is above this")
    parser.add_argument("--json", action="store_true", help="figures for a machine")
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        parser.error(f"--rounds must be at least 1, found {given.rounds}")
    trees = (checkout(given.before), checkout(given.now))
    rows = []
    for run in given.only or [INSTRUCTIONS, *RUNS]:
        if run == INSTRUCTIONS:
            rows += compare_instructions(trees, progress=True)
        else:
            rows += compare(run, trees, given.rounds, progress=True)
    if given.json:
        print(json.dumps([asdict(row) | {"ratio": row.ratio, "ours": row.is_ours} for row in rows], indent=2))
    else:
        for row in sorted(rows, key=lambda row: (not row.is_ours, row.run, -row.ratio)):
            print(f"{row.ratio:7.3f}  {row.before:12.1f} {row.now:12.1f}  {row.run}: {row.what}  {row.design}".rstrip())
        print(*summary(rows), *slower(rows, 0.05), sep="\n")
    too_slow = [
        run
        for run in dict.fromkeys(row.run for row in rows)
        if given.at_most
        and statistics.median(row.ratio for row in rows if row.run == run and row.is_ours) > given.at_most
    ]
    return 1 if too_slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
