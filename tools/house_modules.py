"""What is known of a module after reading it, and what both readers share: where an import leads, whose a name is."""

from dataclasses import dataclass, field

__all__ = ["OWN", "Class", "Import", "Module", "Place", "Reader", "is_private"]

# Names with an underscore that Python documents for everybody.
DOCUMENTED = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
# Private names of other projects for which these have no public one, with what they are.
EXCUSED = {
    "_predictors": "the trees of scikit-learn's histogram gradient boosting",
    "_baseline_prediction": "the score that those trees start from",
}
OWN = {"self", "cls", "super()", "type(self)", "self.__class__"}


@dataclass(frozen=True, order=True)
class Place:
    """What was found, and where."""

    where: str  # path:line
    what: str


@dataclass(frozen=True)
class Import:
    """One import of a module of the project."""

    target: str
    where: str


@dataclass
class Class:
    """A class, without what it inherits."""

    where: str
    bases: list[str] = field(default_factory=list)  # as they are written
    fields: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)  # methods, properties, class attributes; fields are not repeated here


@dataclass
class Module:
    """One module: a ``.py`` file, or a ``.pyx`` with its ``.pxd`` and ``.pyi``."""

    name: str
    is_package: bool = False
    lines: dict[str, int] = field(default_factory=dict)  # path -> number of lines
    imports: list[Import] = field(default_factory=list)
    private: list[Place] = field(default_factory=list)  # uses of another module's private names
    excused: list[Place] = field(default_factory=list)
    inherited: list[Place] = field(default_factory=list)  # self._x that no class of this module defines
    classes: dict[str, Class] = field(default_factory=dict)
    functions: list[tuple[Place, int]] = field(default_factory=list)  # and their lines without the docstring
    signatures: dict[str, tuple[Place, set[str]]] = field(default_factory=dict)  # and the names in each
    aliases: dict[str, set[str]] = field(default_factory=dict)  # name given to a type -> the names in that type
    bound: dict[str, str] = field(default_factory=dict)  # local name -> full name of what was imported
    own: set[str] = field(default_factory=set)  # private names that it defines


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_" and name not in DOCUMENTED


class Reader:
    """What both languages share: where an import leads."""

    def __init__(self, module: Module, path: str, known: set[str]) -> None:
        self.module, self.path, self.known = module, path, known

    def place(self, line: int, what: str) -> Place:
        return Place(f"{self.path}:{line}", what)

    def is_ours(self, name: str) -> bool:
        return name in self.known or name.partition(".")[0] in self.known

    def add_import(self, target: str, line: int) -> None:
        """The module itself; the packages around it are run too, but nothing of theirs is asked for."""
        found = Import(target, f"{self.path}:{line}")
        if target in self.known and target != self.module.name and found not in self.module.imports:
            self.module.imports.append(found)

    def import_names(self, source: str, names: list[tuple[str, str]], line: int) -> None:
        """``from source import name as local``: of the submodule if ``name`` is one, else of ``source``."""
        for name, local in names:
            full = f"{source}.{name}"
            self.add_import(full if full in self.known else source, line)
            self.module.bound[local] = full
            if is_private(name) and full not in self.known and self.is_ours(source) and source != self.module.name:
                self.module.private.append(self.place(line, f"from {source} import {name}"))

    def use(self, line: int, owner: str, name: str, type_of_owner: str = "") -> None:
        """Judge ``owner._name``."""
        if not is_private(name):
            return
        place = self.place(line, f"{owner}.{name}")
        bound = self.module.bound.get(owner, "")
        imported = [full for full in (bound, self.module.bound.get(type_of_owner, "")) if self.is_ours(full)]
        if owner in OWN or type_of_owner in self.module.classes:
            if name not in self.module.own:
                self.module.inherited.append(place)
        elif name in EXCUSED:
            self.module.excused.append(place)
        elif bound and not imported:
            pass  # os._exit and its like
        elif name not in self.module.own or imported:
            self.module.private.append(place)
