"""Count what the house rules limit: cycles, private uses, classes, long modules and functions, ``Any``.

    python tools/house.py [ROOT] [--all] [--json] [--check]

Prints a table of figures, limits and the worst offenders; ``--all`` lists every offender, ``--json`` prints them for
programs, ``--check`` leaves with 1 when a limit is passed.  Nothing is imported: files are only read.

The package is ``dlbf/`` and ``storage/`` (``dlbf.storage``).  A ``.pyx`` is one module with its ``.pxd`` and ``.pyi``.

Modules in a cycle
    Every import counts: at the top, inside a function, under ``TYPE_CHECKING``, in a stub, and every ``cimport``.
    ``from p import x`` leads to ``p.x`` if that is a module, else to ``p``, whose ``__init__`` then counts with all
    that it imports.  Python also runs the packages around an imported module; that is no import here, because nothing
    of theirs is asked for.  ``import_module`` of a constant is an import.  Of an f-string, as in a lazy
    ``__getattr__``, it imports every module behind its known beginning whose name stands in the file as a string; so
    does a call with ``package="p"``, as the command line's group of commands.
Imports against the layers
    As ``house_layers`` says.
Uses of private names
    ``from m import _x``, ``m._x``, ``thing._x`` and ``getattr(thing, "_x")``, where ``_x`` is not defined in the same
    module (as a function, class, variable, slot, ``cdef`` attribute, or by ``self._x = ...``).  A parameter annotated
    with a class that was imported is of another module in any case.  ``self._x`` and ``cls._x`` are a class's own, and
    so are ``Base._x(self)``, and ``other._x`` if ``other`` is annotated with a class of the module; those that come
    from a base in another module are a figure apart.  Names with two underscores, the documented ones of named tuples,
    and those of modules that are not ours (``os._exit``) do not count.
Fields of a class
    Attributes of ``self`` assigned anywhere in it, annotated names in its body (dataclass fields) but for ``ClassVar``,
    slots, and ``cdef`` attributes; inherited ones are included as far as the base is ours.
Names of a class
    Its own methods, properties, class attributes and fields, special methods included.  What it inherits is not; with
    that it is a figure apart.
Lines of a function
    From ``def`` to its end, docstring left out; a function inside another counts in both.
Signatures with ``Any``
    Functions and methods of ``.py`` and ``.pyi`` files whose parameters or result mention ``Any``, or a name given to a
    type with ``Any``, here or in another module; each counts once, with all its overloads.
"""

import argparse
import ast
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from house_cython import CythonReader
from house_layers import forbidden, is_below
from house_modules import Class, Module, Place
from house_python import PythonReader

__all__ = ["LIMITS", "PACKAGE", "Figure", "count", "load", "main"]

PACKAGE = {"dlbf": "dlbf", "storage": "dlbf.storage"}
BESIDE = {"tests": "tests", "asv_bench": "asv_bench", "tools": "tools", "examples": "examples"}

MAX_FIELDS = 25
MAX_NAMES = 45
MAX_PYTHON_LINES = 500
MAX_CYTHON_LINES = 700
MAX_FUNCTION_LINES = 60

CYCLES = "modules in a cycle"
LAYERS = "imports against the layers"
PRIVATE = "uses of private names"
FIELDS = f"classes above {MAX_FIELDS} fields"
NAMES = f"classes above {MAX_NAMES} names"
PYTHON = f"Python files above {MAX_PYTHON_LINES} lines"
CYTHON = f"Cython files above {MAX_CYTHON_LINES} lines"
FUNCTIONS = f"functions above {MAX_FUNCTION_LINES} lines"
ANY = "signatures with Any"

# The most that a figure of the package may be.
LIMITS = {CYCLES: 0, LAYERS: 0, PRIVATE: 0, FIELDS: 0, NAMES: 0, PYTHON: 0, CYTHON: 0, FUNCTIONS: 5, ANY: 80}


@dataclass
class Figure:
    """One count with what was counted."""

    title: str
    value: int
    limit: int | None  # None: only for information
    offenders: list[str] = field(default_factory=list)

    @property
    def is_passed(self) -> bool:
        return self.limit is not None and self.value > self.limit


def load(root: Path, folders: dict[str, str]) -> dict[str, Module]:
    """Every module below the given folders of ``root``; ``folders`` says which package each of them is."""
    files: dict[str, list[Path]] = {}
    for folder, package in folders.items():
        for path in sorted((root / folder).rglob("*")):
            inside = path.relative_to(root / folder)
            hidden = any(part.startswith(".") or part in ("build", "__pycache__") for part in inside.parts)
            if path.suffix in (".py", ".pyx", ".pxd", ".pyi") and not hidden:
                parts = [package, *inside.with_suffix("").parts]
                files.setdefault(".".join(parts[:-1] if parts[-1] == "__init__" else parts), []).append(path)
    modules = {}
    for name, paths in files.items():
        module = Module(name, is_package=any(path.stem == "__init__" for path in paths))
        # Declarations first: a .pyx uses the private names that its .pxd declares.
        for path in sorted(paths, key=lambda path: (".pxd", ".py", ".pyx", ".pyi").index(path.suffix)):
            text = path.read_text(encoding="utf-8")
            shown = path.relative_to(root).as_posix()
            module.lines[shown] = len(text.splitlines())
            if path.suffix in (".py", ".pyi"):
                PythonReader(module, shown, set(files)).read(ast.parse(text, shown), stub=path.suffix == ".pyi")
            else:
                CythonReader(module, shown, set(files)).read(text)
        modules[name] = module
    return modules


def count(modules: dict[str, Module], limits: dict[str, int]) -> list[Figure]:
    """Every figure of some modules; one without a limit in ``limits`` is for information."""
    cycles = find_cycles(modules)
    classes = ClassTable(modules)
    lines = [(n, path) for module in modules.values() for path, n in module.lines.items()]
    functions = [(n, place) for module in modules.values() for place, n in module.functions]
    against = sorted({f"{edge.where}  {name} -> {edge.target}: {why}" for name, edge, why in forbidden(modules)})
    found = {
        CYCLES: (sum(map(len, cycles)), [describe_cycle(modules, cycle) for cycle in cycles]),
        LAYERS: (len(against), against),
        PRIVATE: listed(places(module.private for module in modules.values())),
        FIELDS: listed(above(classes.sizes(fields), MAX_FIELDS)),
        NAMES: listed(above(classes.sizes(own_names), MAX_NAMES)),
        PYTHON: listed(above(((n, path) for n, path in lines if path.endswith((".py", ".pyi"))), MAX_PYTHON_LINES)),
        CYTHON: listed(above(((n, path) for n, path in lines if path.endswith((".pyx", ".pxd"))), MAX_CYTHON_LINES)),
        FUNCTIONS: listed(above(((n, f"{at.where}  {at.what}") for n, at in functions), MAX_FUNCTION_LINES)),
        ANY: listed(places(signatures_with_any(modules))),
        "uses of a base's private names through self, the base in another module": listed(
            places(module.inherited for module in modules.values())
        ),
        "excused private names of other projects": listed(places(module.excused for module in modules.values())),
        f"classes above {MAX_NAMES} names with the inherited ones": listed(above(classes.sizes(all_names), MAX_NAMES)),
    }
    return [Figure(title, n, limits.get(title), offenders) for title, (n, offenders) in found.items()]


def listed(offenders: list[str]) -> tuple[int, list[str]]:
    return len(offenders), offenders


def places(groups: Iterable[Iterable[Place]]) -> list[str]:
    """Places as lines; the files with most of them first."""
    found = [place for group in groups for place in group]
    per_file = Counter(place.where.partition(":")[0] for place in found)

    def order(place: Place) -> tuple[int, str, int]:
        path, _, line = place.where.partition(":")
        return -per_file[path], path, int(line)

    return [f"{place.where}  {place.what}" for place in sorted(found, key=order)]


def above(sizes: Iterable[tuple[int, str]], limit: int) -> list[str]:
    """What is larger than ``limit``, the largest first."""
    return [f"{n:5,}  {what}" for n, what in sorted(sizes, key=lambda size: (-size[0], size[1])) if n > limit]


def signatures_with_any(modules: dict[str, Module]) -> list[list[Place]]:
    """Those that mention Any or a name for a type with Any, wherever that name was given."""
    hiding = {"typing.Any"}

    def hides(module: Module, names: set[str]) -> bool:
        full = {module.bound.get(name, f"{module.name}.{name}") for name in names}
        return "Any" in names or not hiding.isdisjoint(full)

    n_before = 0
    while len(hiding) > n_before:
        n_before = len(hiding)
        for module in modules.values():
            hiding |= {f"{module.name}.{alias}" for alias, names in module.aliases.items() if hides(module, names)}
    return [
        [place for place, names in module.signatures.values() if hides(module, names)] for module in modules.values()
    ]


class ClassTable:
    """The classes of all modules, so that bases are found."""

    def __init__(self, modules: dict[str, Module]) -> None:
        self.modules = modules

    def all(self) -> list[tuple[str, Module, Class]]:
        return [(name, module, found) for module in self.modules.values() for name, found in module.classes.items()]

    def find(self, full: str) -> tuple[Module, Class] | None:
        """A class by its full name, also by that of a package that re-exports it."""
        home, _, name = full.rpartition(".")
        module = self.modules.get(home)
        if module is None:
            return None
        if name in module.classes:
            return module, module.classes[name]
        imported = module.bound.get(name)
        return self.find(imported) if imported and imported != full else None

    def family(self, module: Module, found: Class) -> list[Class]:
        """A class and all its bases that are ours."""
        family = [found]
        for base in found.bases:
            first, _, rest = base.partition("[")[0].partition(".")
            full = module.bound.get(first, f"{module.name}.{first}")
            parent = self.find(f"{full}.{rest}" if rest else full)
            if parent is not None and parent[1] is not found:
                family += self.family(*parent)
        return family

    def sizes(self, names_of: Callable[[Class, list[Class]], set[str]]) -> list[tuple[int, str]]:
        """How many names each class has by ``names_of``, which gets the class and its bases."""
        sizes = []
        for name, module, found in self.all():
            names = names_of(found, self.family(module, found)[1:])
            sizes.append((len(names), f"{found.where}  {name}"))
        return sizes


def fields(found: Class, bases: list[Class]) -> set[str]:
    return found.fields.union(*(base.fields for base in bases))


def own_names(found: Class, bases: list[Class]) -> set[str]:
    return found.names | (found.fields - all_names(Class(""), bases))


def all_names(found: Class, bases: list[Class]) -> set[str]:
    return (found.names | found.fields).union(*(base.names | base.fields for base in bases))


def find_cycles(modules: dict[str, Module]) -> list[list[str]]:
    """Groups of modules that all lead to one another, the largest first."""
    reach: dict[str, set[str]] = {}
    for start in modules:
        seen: set[str] = set()
        todo = [start]
        while todo:
            new = {edge.target for edge in modules[todo.pop()].imports if edge.target in modules} - seen
            seen |= new
            todo += new
        reach[start] = seen
    groups = {
        tuple(sorted(other for other in reach[name] if name in reach[other])) for name in modules if name in reach[name]
    }
    return sorted(map(list, groups), key=lambda group: (-len(group), group))


def describe_cycle(modules: dict[str, Module], group: list[str]) -> str:
    """The modules of a group, and a shortest way round from the first one."""
    ways: dict[str, list[str]] = {group[0]: []}
    todo = [group[0]]
    for name in todo:
        for edge in modules[name].imports:
            way = [*ways[name], f"{edge.where} imports {edge.target}"]
            if edge.target == group[0]:
                return f"{len(group)} modules: {', '.join(group)}; one way round: {'; '.join(way)}"
            if edge.target in group and edge.target not in ways:
                ways[edge.target] = way
                todo.append(edge.target)
    raise AssertionError(f"{group} is no cycle")


def show(heading: str, figures: Sequence[Figure], n_shown: int | None) -> None:
    print(f"\n{heading}\n{'':2}{'figure':>7} {'limit':>6}")
    for figure in figures:
        mark = "!" if figure.is_passed else " "
        limit = "-" if figure.limit is None else f"{figure.limit:,}"
        print(f"{mark:2}{figure.value:7,} {limit:>6}  {figure.title}")
        if n_shown is not None and not figure.is_passed:
            continue
        for offender in figure.offenders[:n_shown]:
            print(f"{'':18}{offender}")
        n_more = len(figure.offenders) - (n_shown or len(figure.offenders))
        if n_more > 0:
            print(f"{'':18}and {n_more:,} more: --all")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count what the house rules limit.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--all", action="store_true", help="list every offender")
    parser.add_argument("--json", action="store_true", help="print figures and offenders as JSON")
    parser.add_argument("--check", action="store_true", help="leave with 1 when a limit is passed")
    options = parser.parse_args(arguments)

    modules = load(options.root, PACKAGE | BESIDE)
    ours = {name: module for name, module in modules.items() if is_below(name, "dlbf")}
    package = count(ours, LIMITS)
    beside = count({name: module for name, module in modules.items() if name not in ours}, {})
    if options.json:
        groups = {"package": package, "beside": beside}
        print(json.dumps({name: [vars(figure) for figure in figures] for name, figures in groups.items()}, indent=1))
    else:
        n_shown = None if options.all else 3
        show("the package: dlbf, dlbf.storage", package, n_shown)
        show("beside it: " + ", ".join(BESIDE), [figure for figure in beside if figure.value], n_shown)
    return 1 if options.check and any(figure.is_passed for figure in package) else 0


if __name__ == "__main__":
    raise SystemExit(main())
