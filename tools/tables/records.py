"""What is recorded in ``docs/figures``: sections of ``dlbf bench`` and other counts; and the recording."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FIGURES_FOLDER", "ROOT", "SECTIONS", "Section", "read_record", "record"]

ROOT = Path(__file__).parents[2]
FIGURES_FOLDER = "docs/figures"


@dataclass(frozen=True)
class Section:
    """A command whose output is recorded.

    Attributes
    ----------
    arguments : tuple of str
        What follows the program.
    program : tuple of str
        What Python runs; it takes ``--json``.
    made_keys : bool
        Measure on keys made here, even if there is a folder of real ones.
    by_default : bool
        Part of ``make tables SECTIONS=all``.
    dropped : tuple of str
        What is in the output but not recorded, because it is long and in no table: explanations of plans.
    """

    arguments: tuple[str, ...]
    program: tuple[str, ...] = ("-m", "dlbf", "bench")
    made_keys: bool = False
    by_default: bool = True
    dropped: tuple[str, ...] = ("plan",)

    @property
    def command(self) -> str:
        """What a reader types to repeat it."""
        words = self.program[1:] if self.program[0] == "-m" else ("python", *self.program)
        return shlex.join((*words, *self.arguments))


SECTIONS = {
    "filters": Section(("filters",), made_keys=True),
    "models": Section(("models",)),
    "learned": Section(("learned", "--only", "sizes")),
    "learned-times": Section(("learned", "--only", "queries", "--only", "fit")),
    "learned-peers": Section(("learned", "--peers")),
    "designs": Section(("learned", "--keys", "20000", "--only", "designs"), made_keys=True),
    "store": Section(("store",)),
    "attacks": Section(("adversary", "--only", "attacks", "--only", "store")),
    "games": Section(("adversary", "--only", "games", "--keys", "50000")),
    "bounds": Section(("adversary", "--only", "price", "--only", "hybrid", "--only", "cost", "--keys", "100000")),
    "guard": Section(("guard", "--keys", "100000", "--queries", "5000"), made_keys=True),
    "fleet": Section(("fleet",), made_keys=True),
    "replay": Section(
        tuple(
            "replay --design auto --design layers --design tables --model ngram --model none "
            "--plot docs/img/replay.png".split()
        ),
        dropped=("rows",),
    ),
    "layers": Section(("layers", "--only", "sizes", "--only", "life", "--only", "growing")),
    "shards": Section(
        tuple(
            "shards --keys 200000 --negatives 200000 --only times --only even --only build --only arithmetic".split()
        ),
        made_keys=True,
    ),
    "stress": Section(("stress",)),
    "poison": Section(("poison",), made_keys=True),
    "problems": Section(("problems",), made_keys=True),
    "promises": Section(("promises",), made_keys=True),
    "distribution": Section((), program=("tools/delta_sizes.py",), made_keys=True),
    "scale": Section(("scale",), made_keys=True),
    "instructions": Section(
        ("--releases", "docs/figures/instructions.json"), program=("asv_bench/benchmarks/hot_paths.py",), made_keys=True
    ),
    "scale-large": Section(
        ("scale", "--max-keys", "3e7", "--plot", "docs/img/scale.png"), made_keys=True, by_default=False
    ),
}


def read_record(section: str, root: Path = ROOT) -> dict[str, Any]:
    """What was recorded of a section."""
    path = root / FIGURES_FOLDER / f"{section}.json"
    if not path.exists():
        raise FileNotFoundError(f'{path}: not recorded yet; run: make tables SECTIONS="{section}"')
    recorded: dict[str, Any] = json.loads(path.read_text())
    return recorded


def _without(dropped: Collection[str], value: Any) -> Any:
    """The figures without what is long and in no table, wherever it is."""
    if isinstance(value, dict):
        return {name: _without(dropped, inner) for name, inner in value.items() if name not in dropped}
    return [_without(dropped, inner) for inner in value] if isinstance(value, list) else value


def record(name: str, root: Path = ROOT, more: Sequence[str] = ()) -> Path:
    """Run a section's command and write what it prints.

    Parameters
    ----------
    name : str
        One of ``SECTIONS``.
    root : path
        The checkout.
    more : sequence of str
        Further arguments of the command.
    """
    section = SECTIONS[name]
    environment = {key: value for key, value in os.environ.items() if not (section.made_keys and key == "DLBF_DATA")}
    done = subprocess.run(
        [sys.executable, *section.program, *section.arguments, *more, "--json"],
        stdout=subprocess.PIPE, text=True, env=environment, cwd=root, check=False,
    )  # fmt: skip
    # A section that has found a bar missed exits with 1, after its figures.
    if done.returncode and not (done.returncode == 1 and done.stdout.startswith("{")):
        raise subprocess.CalledProcessError(done.returncode, section.command)
    figures = {"command": section.command, **_without(section.dropped, json.loads(done.stdout))}
    path = root / FIGURES_FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")
    return path
